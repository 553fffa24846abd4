"""Zeros of zarr v2 arrays whose fill value is 0: xarray reads them as missing, and the opening names them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

from xarray_tensordict import MissingValuesWarning, open_persistent
from xarray_tensordict.testing import assert_same_tensordict

IMAGES = np.array([[[0, 1], [2, 0]], [[3, 4], [0, 5]]], "u1")
MASKED = np.where(IMAGES == 0, np.nan, IMAGES)


def write(path: Path, fill: Any = 0, *, attrs: dict[str, Any] | None = None, dtype: str = "u1") -> Path:
    """What tifffile writes: named dims, and the fill value that zarr takes by default."""
    root = zarr.open_group(path, mode="w", zarr_format=2)
    for name, values, dims in (
        ("images", IMAGES.astype(dtype), ["time", "y", "x"]),
        ("group/mask", IMAGES.astype(bool), ["time", "y", "x"]),
        ("reward", np.array([0.0, 1.5], "f4"), ["time"]),
        ("action", np.array([3, 0], "i8"), ["time"]),
    ):
        array = root.create_array(name, data=values, fill_value=fill if name == "images" else None)
        array.attrs.update({"_ARRAY_DIMENSIONS": dims, **(attrs or {} if name == "images" else {})})
    return path


def as_reference(path: Path) -> Path:
    """The same store as kerchunk refers to it."""
    found: dict[str, Any] = {}
    for file in sorted(path.rglob("*")):
        if file.is_file():
            is_document = file.name.startswith(".z")
            text = file.read_text() if is_document else [str(file), 0, file.stat().st_size]
            found[file.relative_to(path).as_posix()] = text
    reference = path.with_suffix(".json")
    reference.write_text(json.dumps({"version": 1, "refs": found}))
    return reference


def opened_by_both(path: Path, **keywords: Any) -> xr.Dataset:
    ds = xr.open_dataset(path, engine="tensordict", **keywords)
    with open_persistent(path, **keywords) as ptd:
        assert_same_tensordict(ptd.to_tensordict(), ds.td.to_tensordict())
    return ds


@pytest.mark.parametrize("as_kerchunk", [False, True], ids=["zarr", "kerchunk"])
def test_are_named_when_a_store_is_opened_either_way(tmp_path: Path, as_kerchunk: bool) -> None:
    path = write(tmp_path / "images.zarr")
    path = as_reference(path) if as_kerchunk else path
    told = (
        r"zeros of \['images'\] are read as missing \(NaN\).*use_zarr_fill_value_as_mask=False opens the zeros as zeros"
    )
    for open_one in (lambda: xr.open_dataset(path, engine="tensordict"), lambda: open_persistent(path)):
        with pytest.warns(MissingValuesWarning, match=told) as caught:
            open_one().close()
        assert len(caught) == 1
    with pytest.warns(MissingValuesWarning, match=told):
        xr.open_datatree(path, engine="tensordict").close()
    with pytest.warns(MissingValuesWarning):
        ds = opened_by_both(path)
    np.testing.assert_array_equal(ds["images"], MASKED)
    if not as_kerchunk:
        with xr.open_zarr(path, consolidated=False) as plain:
            np.testing.assert_array_equal(plain["images"], MASKED)


@pytest.mark.parametrize("dtype", ["i2", "u4", "f4", "f8", "?"])
def test_of_every_kind_of_number_are_named(tmp_path: Path, dtype: str) -> None:
    with pytest.warns(MissingValuesWarning, match=r"\['images'\]"):
        xr.open_dataset(write(tmp_path / "images.zarr", dtype=dtype), engine="tensordict").close()


def test_in_a_group_are_named_by_their_path(tmp_path: Path) -> None:
    root = zarr.open_group(tmp_path / "nested.zarr", mode="w", zarr_format=2)
    array = root.create_array("a/b/n", data=np.arange(3), fill_value=0)
    array.attrs["_ARRAY_DIMENSIONS"] = ["time"]
    for open_one in (xr.open_dataset, xr.open_datatree):
        with pytest.warns(MissingValuesWarning, match=r"zeros of \['a/b/n'\]"):
            open_one(tmp_path / "nested.zarr", engine="tensordict").close()


def of_the_writer(name: str) -> Callable[[Path], Any]:
    def written(path: Path) -> Any:
        ds = xr.Dataset({"images": (("time", "y", "x"), IMAGES), "flag": ("time", [False, True])})
        return (ds.td if name == "td" else ds).to_zarr(path, zarr_format=2)

    return written


NO_NEWS: dict[str, tuple[Callable[[Path], Any], dict[str, Any], Any]] = {
    "the option that is named": (write, {"use_zarr_fill_value_as_mask": False}, IMAGES),
    "nothing is decoded": (write, {"mask_and_scale": False}, IMAGES),
    "the caller takes them for missing": (write, {"use_zarr_fill_value_as_mask": True}, MASKED),
    "no fill value": (partial(write, fill=None), {}, IMAGES),
    "another fill value": (partial(write, fill=7), {}, IMAGES * 1.0),
    "packed values": (partial(write, attrs={"scale_factor": 0.5}), {}, MASKED / 2),
    "raw arrays": (
        lambda path: zarr.open_group(path, mode="w", zarr_format=2).create_array("images", data=IMAGES),
        {},
        IMAGES,
    ),
    "what the writer here writes": (of_the_writer("td"), {}, IMAGES),
    "what plain xarray writes": (of_the_writer("plain"), {}, IMAGES),
}


@pytest.mark.parametrize("case", NO_NEWS)
def test_are_not_spoken_of_where_nothing_is_read_as_missing_by_default(tmp_path: Path, case: str) -> None:
    make, keywords, expected = NO_NEWS[case]
    make(tmp_path / "images.zarr")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds = opened_by_both(tmp_path / "images.zarr", **keywords)
    np.testing.assert_array_equal(ds["images"], expected)
    assert (ds["images"].dtype == np.uint8) == (expected is IMAGES)
