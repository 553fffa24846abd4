"""What a store says cannot control a terminal, and is no markup in a page: names of all kinds, and attributes."""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr
from click.testing import CliRunner

from xarray_tensordict import inspect, open_persistent
from xarray_tensordict.command_line.app import main
from xarray_tensordict.core.naming import printable

WORDS = [
    "\x1b[2J",  # clears the screen
    "ok\rno",
    "\x9b31m",
    "\u202egnp",
    "\u2066a\u2069",
    "a\nwhy: forged",
    "a\u2028b",
    "<script>alert(1)<b>",
]
BAD = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def assert_harmless(text: str) -> None:
    assert not BAD.search(text), ascii(text)
    assert "\nwhy: forged" not in text


@contextmanager
def harmless_warnings() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for each in caught:
        assert_harmless(str(each.message))
        assert "\n" not in str(each.message)


def write_zarr(path: Path, zarr_format: Any) -> None:
    root = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    root.attrs["title"] = "".join(WORDS)
    for word, name, shape, dims in members():
        names: dict[str, Any] = (
            {"dimension_names": dims} if zarr_format == 3 else {"attributes": {"_ARRAY_DIMENSIONS": dims}}
        )
        array = root.create_array(name, data=np.zeros(shape, "f4"), **names)
        array.attrs["coordinates"] = f"{word} lat"
        array.attrs["units"] = word
    for word in WORDS:
        root.create_array(f"odd{word}/x", data=np.zeros((7, 2)))


def members() -> Iterator[tuple[str, str, tuple[int, ...], list[str]]]:
    """For each word the name, the shape and the dims of some arrays."""
    for word in WORDS:
        yield word, f"x{word}", (4, 3, 2), ["time", f"d{word}", f"e{word}"]
        yield word, f"z{word}", (4,), ["time"]
        yield word, f"static{word}", (3,), [f"d{word}"]


def write_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.attrs["title"] = "".join(WORDS)
        scales: dict[str, Any] = {}
        for word, name, shape, dims in members():
            file[name] = np.zeros(shape, "f4")
            file[name].attrs["coordinates"] = f"{word} lat"
            for axis, dim in enumerate(dims):
                if dim not in scales:
                    scales[dim] = file.create_dataset(dim, data=np.arange(float(shape[axis])))
                    scales[dim].make_scale(dim)
                file[name].dims[axis].attach_scale(scales[dim])
        for word in WORDS:
            file[f"odd{word}/x"] = np.zeros((7, 2))
            file[f"left{word}"] = np.zeros(4, [("a", "f4"), (f"b{word}", "f8")])


@pytest.fixture(scope="module", params=["zarr 2", "zarr 3", "HDF5"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "store"
    if request.param == "HDF5":
        write_hdf5(path)
    else:
        write_zarr(path, int(request.param[-1]))
    return path


def test_what_is_shown_of_a_store(store: Path) -> None:
    with harmless_warnings():
        ds = xr.open_dataset(store, engine="tensordict")
        dt: Any = xr.open_datatree(store, engine="tensordict")
        ptd = open_persistent(store)
        found = inspect(store)
        shown = [repr(ds.td), repr(dt.td), repr(ptd), repr(found), found.text(None), repr(ds.td.batches(2))]
        pages = [ds.td._repr_html_(), dt.td._repr_html_(), ptd._repr_html_(), found._repr_html_()]
    for text in (*shown, *pages):
        assert_harmless(text)
    for page in pages:
        assert "<script" not in page
        assert "(1)<b>" not in page
    for word in WORDS:
        assert printable(f"x{word}") in found.text(None)
        assert printable(f"x{word}") in repr(ptd)


@pytest.mark.parametrize("command", ["inspect", "inspect --json", "check", "check --json", "annotate"])
def test_what_the_command_line_prints(store: Path, tmp_path: Path, command: str) -> None:
    name, *options = command.split()
    if name == "annotate":  # which changes it
        copy = shutil.copytree if store.is_dir() else shutil.copy
        store = Path(copy(store, tmp_path / "copy"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = CliRunner().invoke(main, [name, str(store), *options])
    assert result.output
    assert_harmless(result.output)


def test_what_convert_prints(store: Path, tmp_path: Path) -> None:
    arguments = ["convert", str(store), str(tmp_path / "new.zarr"), "--unbatched", "drop", "--progress"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = CliRunner().invoke(main, arguments)
    assert_harmless(re.sub(r"\r|\x1b\[A", "", result.output))  # of the bar


def test_errors_that_name_what_there_is(store: Path) -> None:
    with harmless_warnings():
        ds: Any = xr.open_dataset(store, engine="tensordict")
        ptd = open_persistent(store)
        wrong = [
            lambda: xr.open_dataset(store, engine="tensordict", batch_dims="tiem"),
            lambda: xr.open_dataset(store, engine="tensordict", batch_dims=9),
            lambda: xr.open_dataset(store, engine="tensordict", group="od"),
            lambda: ds.td.to_tensordict(exclude=["x"]),
            lambda: ds.td.to_tensordict(unbatched="raise"),
            lambda: ds.td.set_batch_dims([f"d{WORDS[0]}", f"d{WORDS[0]}"]),
            lambda: ptd["x"],
            lambda: ptd.set(f"x{WORDS[0]}", 0),
            lambda: ds.td.batches(2, exclude=["x"]),
            lambda: xr.open_dataset(store, engine="tensordict", dims={"x": ("a",)}),
        ]
        for call in wrong:
            with pytest.raises((ValueError, KeyError, TypeError, OSError)) as caught:
                call()
            assert_harmless(str(caught.value))
