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

import xarray_tensordict  # noqa: F401 - registers ds.td

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
