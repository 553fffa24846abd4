"""Make the pictures in ``docs/_static`` again: ``make screenshots``. It needs chromium."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import xarray as xr

import xarray_tensordict  # noqa: F401 - registers ds.td

STATIC = Path(__file__).parent / "_static"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --window-size=760,310"
).split()
PAGE = """<!DOCTYPE html><html data-theme="{theme}"><head><meta charset="utf-8"><meta name="color-scheme" content="{theme}">
<style>body {{ margin: 16px; font: 14px sans-serif; background: {back}; color: {front} }}</style></head>
<body>{html}</body></html>"""
COLOURS = {"light": ("#ffffff", "#1f2328"), "dark": ("#14181e", "#ced6dd")}


def example(folder: Path) -> xr.Dataset:
    """The store of the page "Getting started", as it is opened there."""
    rng = np.random.default_rng(0)
    path = folder / "era.zarr"
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


def main() -> None:
    """Write one picture for each theme."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise SystemExit(f"expected one of {BROWSERS} on the PATH, found none; install chromium")
    STATIC.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        html = example(Path(folder)).td._repr_html_().replace("type='checkbox'", "type='checkbox' checked")
        for theme, (back, front) in COLOURS.items():
            page = Path(folder) / f"{theme}.html"
            page.write_text(PAGE.format(theme=theme, back=back, front=front, html=html), encoding="utf-8")
            target = STATIC / f"repr-{theme}.png"
            profile = f"--user-data-dir={folder}/profile-{theme}"
            subprocess.run([browser, *FLAGS, profile, f"--screenshot={target}", page.as_uri()], check=True, timeout=60)  # noqa: S603


if __name__ == "__main__":
    main()
