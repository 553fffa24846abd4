"""What comes from the entry ``_unbatched`` is decoded as all other arrays are, or is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

from xarray_tensordict import LeftOutWarning

KINDS = pytest.mark.parametrize("kind", ["zarr2", "zarr3", "h5"])


def written(ds: xr.Dataset, path: Path, kind: str, layout: Any) -> Path:
    if kind == "h5":
        ds.td.to_h5(path, layout=layout)
    else:
        ds.td.to_zarr(path, layout=layout, zarr_format=int(kind[-1]))
    return path


@pytest.fixture
def scene() -> xr.Dataset:
    ds = xr.Dataset(
        {"refl": (("time", "y"), np.ones((5, 3)), {"grid_mapping": "crs"}), "crs": ((), 0, {"crs_wkt": "..."})},
        coords={
            "t0": ((), np.datetime64("2024-01-01", "ns")),
            "area": ("y", [1.0, 2.0, 3.0]),
            "when": ("y", np.array(["2000-01-01", "NaT", "2000-01-03"], "M8[s]")),
        },
    )
    ds["pk"] = ("y", [1.0, 2.0, np.nan])
    ds["pk"].encoding = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}
    return ds


OPTIONS: dict[str, dict[str, Any]] = {
    "all coords": {"decode_coords": "all"},
    "no coords": {"decode_coords": False},
    "packed": {"mask_and_scale": False},
    "no times": {"decode_times": False},
    "nothing": {"decode_cf": False},
}


@KINDS
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_both_layouts_open_alike(tmp_path: Path, scene: xr.Dataset, kind: str, options: dict[str, Any]) -> None:
    found = {}
    for layout in ("tensordict", "xarray"):
        with xr.open_dataset(written(scene, tmp_path / layout, kind, layout), engine="tensordict", **options) as ds:
            found[layout] = {name: (name in ds.coords, ds[name].dtype) for name in ("crs", "t0", "area", "pk")}
    assert found["tensordict"] == found["xarray"]


@KINDS
def test_with_the_defaults_all_comes_back(tmp_path: Path, scene: xr.Dataset, kind: str) -> None:
    with xr.open_dataset(written(scene, tmp_path / "a", kind, "tensordict"), engine="tensordict") as found:
        xr.testing.assert_identical(found.load(), scene)
        assert found["when"].dtype == "M8[s]"


@KINDS
def test_times_of_a_resolution_that_are_not_decoded_are_nanoseconds(
    tmp_path: Path, scene: xr.Dataset, kind: str
) -> None:
    path = written(scene, tmp_path / "a", kind, "tensordict")
    with xr.open_dataset(path, engine="tensordict", decode_times=False) as found:
        assert found["when"].values.tolist() == [946684800 * 10**9, -(2**63), 946857600 * 10**9]
        assert found["when"].attrs["units"] == "nanoseconds since 1970-01-01"


@KINDS
def test_an_array_that_does_not_start_with_the_batch_is_read_in_its_own_order(tmp_path: Path, kind: str) -> None:
    x = xr.DataArray(np.arange(24.0).reshape(2, 4, 3), dims=("lat", "time", "f"))
    path = written(xr.Dataset({"x": x}).td.set_batch_dims("time"), tmp_path / "a", kind, "tensordict")
    for key in ({}, {"time": 1}, {"lat": [1, 0], "time": slice(1, 3)}, {"lat": 0, "f": -1}):
        with xr.open_dataset(path, engine="tensordict") as found:
            xr.testing.assert_equal(found["x"].isel(key), x.isel(key))


@KINDS
def test_an_entry_of_an_older_version_opens(tmp_path: Path, kind: str) -> None:
    ds = xr.Dataset({"x": ("time", np.arange(3.0)), "lat": ("lat", [1.0, 2.0])})
    path = written(ds, tmp_path / "a", kind, "tensordict")
    older = {
        "lat": {"dims": ["lat"], "dtype": "float64", "attrs": {}, "role": "coord", "data": [1.0, 2.0]},
        "half": {
            "dims": ["lat"],
            "dtype": "float32",
            "attrs": {},
            "role": "data",
            "data": [1.0, 2.0],
            "torch_dtype": "bfloat16",
        },
        "step": {"dims": [], "dtype": "m8[s]", "attrs": {"long_name": "step"}, "role": "data", "data": 60},
    }
    if kind == "h5":
        with h5py.File(path, "r+") as file:
            file["_unbatched"][()] = json.dumps(older)
    else:
        group = zarr.open_group(path, mode="r+")
        attrs = dict(group["_unbatched"].attrs)
        text = np.frombuffer(json.dumps(older).encode(), "u1")
        dims = {"dimension_names": ["text"]} if kind == "zarr3" else {}
        array = group.create_array("_unbatched", data=text, overwrite=True, **dims)
        array.attrs.update({**attrs, **({"_ARRAY_DIMENSIONS": ["text"]} if kind == "zarr2" else {})})
    with xr.open_dataset(path, engine="tensordict", decode_timedelta=True) as found:
        assert found["half"].encoding["torch_dtype"] == "bfloat16"
        assert found["step"].values == np.timedelta64(60, "s")
        assert found["step"].dtype == "m8[s]"
        assert found["step"].attrs["long_name"] == "step"
        assert "lat" in found.coords


@pytest.mark.parametrize("form", ["zarr", "h5"])
def test_times_that_another_program_made_finer_are_an_error_that_names_them(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"s.{form}"
    ds = xr.Dataset({"x": ("time", [1.0, 2.0]), "when": ("time", np.arange(2).astype("M8[D]").astype("M8[s]"))})
    ds.td.set_batch_dims("time").td.to_h5(path) if form == "h5" else ds.td.set_batch_dims("time").td.to_zarr(path)
    if form == "h5":
        with h5py.File(path, "r+") as file:
            file["when"][1] += 1
    else:
        array = zarr.open_array(path / "when", mode="r+")
        array[1] = array[1] + np.timedelta64(1, "ns") if array.dtype.kind == "M" else array[1] + 1
    with (
        xr.open_dataset(path, engine="tensordict") as found,
        pytest.raises(ValueError, match=rf"s\.{form}: 'when': .*some are finer"),
    ):
        found["when"].load()


@pytest.mark.parametrize("scale", ["a/b", [1.0, 2.0], {"x": 1}])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_array_whose_scale_is_no_number_is_left_out_by_name(tmp_path: Path, scale: Any, zarr_format: int) -> None:
    root = zarr.open_group(tmp_path / "s", mode="w", zarr_format=zarr_format)
    root.create_array("x", data=np.arange(6.0))
    root.create_array("packed", data=np.arange(6), attributes={"scale_factor": scale})
    with pytest.warns(LeftOutWarning, match=r"'packed'.*its scale_factor is .*decode_cf=False"):
        ds = xr.open_dataset(tmp_path / "s", engine="tensordict")
    assert list(ds.variables) == ["x"]
    assert "packed" in xr.open_dataset(tmp_path / "s", engine="tensordict", decode_cf=False)


def test_text_that_says_it_is_scaled_is_left_out_by_name(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "s.h5", "w") as file:
        file["x"] = np.arange(6.0)
        file.create_dataset("text", data=["a"] * 6, dtype=h5py.string_dtype())
        file["text"].attrs["add_offset"] = 1
    with pytest.warns(LeftOutWarning, match=r"'text'.*its add_offset is"):
        ds = xr.open_dataset(tmp_path / "s.h5", engine="tensordict")
    assert list(ds.variables) == ["x"]


@pytest.mark.parametrize("suffix", ["zarr", "nc"])
def test_a_time_that_cannot_be_decoded_names_store_and_variable(tmp_path: Path, suffix: str) -> None:
    """Only the first and the last value are looked at when a store is opened."""
    path = tmp_path / f"damaged.{suffix}"
    ds = xr.Dataset({"when": ("time", np.array([0, 1 << 62, 1]), {"units": "days since 1970-01-01"})})
    ds.to_zarr(path, consolidated=False) if suffix == "zarr" else ds.to_netcdf(path)
    opened = xr.open_dataset(path, engine="tensordict")
    for read in (lambda: opened.load(), lambda: opened.td.to_tensordict(), lambda: opened.chunk().compute()):
        with pytest.raises(OSError, match=f"damaged.{suffix}.*'when'.*it cannot be read"):
            read()
    assert opened["when"][::2].dt.year.values.tolist() == [1970, 1970]
