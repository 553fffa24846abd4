"""Zeros of zarr v2 arrays whose fill value is 0: xarray reads them as missing, and the opening names them."""

from __future__ import annotations

import json
import warnings
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


@pytest.mark.parametrize("keywords", [{"use_zarr_fill_value_as_mask": False}, {"mask_and_scale": False}], ids=str)
def test_stay_zeros_with_the_option_that_is_named(tmp_path: Path, keywords: dict[str, Any]) -> None:
    path = write(tmp_path / "images.zarr")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds = opened_by_both(path, **keywords)
    assert ds["images"].dtype == np.uint8
    np.testing.assert_array_equal(ds["images"], IMAGES)


def test_that_the_caller_takes_for_missing_are_no_news(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds = opened_by_both(write(tmp_path / "images.zarr"), use_zarr_fill_value_as_mask=True)
    np.testing.assert_array_equal(ds["images"], MASKED)


@pytest.mark.parametrize("dtype", ["i2", "u4", "f4", "f8", "?"])
def test_of_every_kind_of_number_are_named(tmp_path: Path, dtype: str) -> None:
    with pytest.warns(MissingValuesWarning, match=r"\['images'\]"):
        xr.open_dataset(write(tmp_path / "images.zarr", dtype=dtype), engine="tensordict").close()


def test_in_a_group_are_named_by_their_path(tmp_path: Path) -> None:
    root = zarr.open_group(tmp_path / "nested.zarr", mode="w", zarr_format=2)
    array = root.create_array("a/b/n", data=np.arange(3), fill_value=0)
    array.attrs["_ARRAY_DIMENSIONS"] = ["time"]
    with pytest.warns(MissingValuesWarning, match=r"zeros of \['a/b/n'\]"):
        xr.open_dataset(tmp_path / "nested.zarr", engine="tensordict").close()
    with pytest.warns(MissingValuesWarning, match=r"zeros of \['a/b/n'\]"):
        xr.open_datatree(tmp_path / "nested.zarr", engine="tensordict").close()


@pytest.mark.parametrize(
    "keywords",
    [{"fill": None}, {"fill": 7}, {"attrs": {"scale_factor": 0.5}}],
    ids=["no fill value", "another fill value", "packed values"],
)
def test_are_not_spoken_of_where_they_are_no_default(tmp_path: Path, keywords: dict[str, Any]) -> None:
    path = write(tmp_path / "images.zarr", **keywords)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened_by_both(path).close()


def test_of_raw_arrays_are_zeros(tmp_path: Path) -> None:
    root = zarr.open_group(tmp_path / "raw.zarr", mode="w", zarr_format=2)
    root.create_array("images", data=IMAGES, fill_value=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds = opened_by_both(tmp_path / "raw.zarr")
    assert ds["images"].dtype == np.uint8


@pytest.mark.parametrize("write_with", ["td.to_zarr", "to_zarr"])
def test_of_what_the_writers_write_are_zeros(tmp_path: Path, write_with: str) -> None:
    ds = xr.Dataset({"n": (("time", "x"), np.array([[0, 1], [2, 0]])), "flag": ("time", [False, True])})
    write = ds.td.to_zarr if write_with == "td.to_zarr" else ds.to_zarr
    write(tmp_path / "own.zarr", zarr_format=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert opened_by_both(tmp_path / "own.zarr")["n"].values.tolist() == [[0, 1], [2, 0]]
