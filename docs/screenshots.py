"""Make the pictures in ``docs/_static`` again: ``make screenshots``. It needs chromium."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from contextlib import chdir
from html import escape
from itertools import product
from pathlib import Path

import numpy as np
import xarray as xr

import xarray_tensordict

STATIC = Path(__file__).resolve().parent / "_static"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --force-device-scale-factor=2"
).split()
PAGE = """<!DOCTYPE html><html data-theme="{theme}"><head><meta charset="utf-8"><meta name="color-scheme" content="{theme}">
<style>
body {{ margin: 16px; font: 14px sans-serif; background: {back}; color: {front} }}
pre {{ margin: 0; font-size: 11.5px; line-height: 1.45 }}
.panel {{ border: 1px solid #8888; border-radius: 6px; padding: 8px 12px; margin-bottom: 10px }}
.side {{ display: grid; grid-template-columns: auto 1fr; gap: 10px }}
.call {{ font: bold 12px monospace; padding-bottom: 8px }}
</style></head>
<body>{html}</body></html>"""
COLOURS = {"light": ("#ffffff", "#1f2328"), "dark": ("#14181e", "#ced6dd")}


def example() -> xr.Dataset:
    """The store of the page "Getting started", as it is opened there."""
    rng = np.random.default_rng(0)
    path = "era.zarr"
    xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), (280 + 10 * rng.random((72, 6, 8))).astype("float32")),
            "land_mask": (("lat", "lon"), rng.random((6, 8)) > 0.5),
        },
        coords={
            "time": np.datetime64("2024-01-01", "ns") + np.arange(72) * np.timedelta64(1, "h"),
            "lat": np.linspace(50, 60, 6),
            "lon": np.linspace(0, 14, 8),
        },
    ).to_zarr(path, consolidated=False)
    return xr.open_dataset(path, engine="tensordict")


def summary(ds: xr.Dataset) -> str:
    """``ds.td`` as a notebook shows it, with its first section open."""
    return ds.td._repr_html_().replace("type='checkbox'", "type='checkbox' checked")


def one_store(ds: xr.Dataset) -> str:
    """The picture of the first page: one store as a Dataset, as a lazy tensordict, and its batch."""
    tensordict = repr(xarray_tensordict.open_persistent("era.zarr"))
    with xr.set_options(display_width=66):
        dataset = repr(ds)
    shown = [
        ('ds = xr.open_dataset("era.zarr", engine="tensordict")', f"<pre>{escape(dataset)}</pre>"),
        ('xarray_tensordict.open_persistent("era.zarr")', f"<pre>{escape(tensordict)}</pre>"),
        ("ds.td", summary(ds)),
    ]
    panels = [f"<div class='panel'><div class='call'>{escape(call)}</div>{html}</div>" for call, html in shown]
    return f"<div class='side'>{panels[0]}{panels[1]}</div>{panels[2]}"


PICTURES = {"repr": (summary, "760,256"), "one-store": (one_store, "1110,500")}


def main() -> None:
    """Write each picture, once for each theme."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise SystemExit(f"expected one of {BROWSERS} on the PATH, found none; install chromium")
    STATIC.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        ds = example()
        for (name, (draw, size)), (theme, (back, front)) in product(PICTURES.items(), COLOURS.items()):
            page = Path(folder) / f"{name}-{theme}.html"
            page.write_text(PAGE.format(theme=theme, back=back, front=front, html=draw(ds)), encoding="utf-8")
            picture = [f"--window-size={size}", f"--screenshot={STATIC / page.stem}.png", page.as_uri()]
            profile = f"--user-data-dir={folder}/profile-{theme}"
            subprocess.run([browser, *FLAGS, profile, *picture], check=True, timeout=60)  # noqa: S603


if __name__ == "__main__":
    main()
