"""What the inference is told of stored arrays and of the variables of a Dataset."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

from xarray_tensordict import LeftOutWarning


def test_floating_point_numbers_are_no_bounds_of_rows(tmp_path: Path) -> None:
    offsets = {"x": np.zeros((900, 2)), "y": np.zeros(900), "x_offsets": np.zeros(5)}
    with h5py.File(tmp_path / "store.h5", "w") as file:
        file.update(offsets)
    group = zarr.open_group(tmp_path / "store.zarr", mode="w")
    for name, values in offsets.items():
        group.create_array(name, data=values)
    for path in ("store.h5", "store.zarr"):
        with xr.open_dataset(tmp_path / path, engine="tensordict") as ds:
            assert ds.td.batch_size == (900,)
    dims = {"x": ("row", "f"), "y": ("row",), "x_offsets": ("bound",)}
    assert xr.Dataset({name: (dims[name], values) for name, values in offsets.items()}).td.batch_dims == ("row",)


def test_counts_with_a_fill_value_are_whole_numbers_once_they_are_decoded(tmp_path: Path) -> None:
    counts = xr.DataArray(np.array([3, 4, 2, 1]), dims="unit", attrs={"_FillValue": -1})
    columns = {"x": ("spike", np.zeros(10)), "y": ("spike", np.zeros(10)), "id": ("unit", np.arange(4))}
    xr.Dataset({**columns, "x_counts": counts, "y_counts": counts}).to_netcdf(tmp_path / "store.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "store.nc", engine="tensordict") as ds:
        assert ds.x_counts.dtype.kind == "f"
        assert ds.td.batch_dims == ds.load().td.batch_dims == ("unit",)


def test_text_of_matlab_does_not_vote(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "store.mat", "w") as file:
        file["data"] = np.zeros((5, 20))
        file["label"] = np.zeros((5, 1))
        file["name"] = np.zeros((900, 1), "u2")
        file["name"].attrs["MATLAB_class"] = np.bytes_("char")
    with xr.open_dataset(tmp_path / "store.mat", engine="tensordict") as ds:
        assert ds.td.batch_size == (5,)
        assert "'name' did not vote, because strings have no vote" in " ".join(repr(ds.td).split())


def test_the_dim_that_the_evidence_of_an_unnamed_store_names_can_be_chosen(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "store.h5", "w") as file:
        file.update({"times": np.zeros(90), "clusters": np.zeros(90), "templates": np.zeros((30, 82, 4))})
    with xr.open_dataset(tmp_path / "store.h5", engine="tensordict") as ds:
        assert ds.td.batch_size == ()
        assert "the arrays share no leading size (2 of 3 start with 90)" in " ".join(repr(ds.td).split())
        assert "choose it with ds.td.set_batch_dims('dim_90')" in " ".join(repr(ds.td).split())
        assert ds.td.set_batch_dims("dim_90").td.to_tensordict().batch_size == (90,)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_scalar_that_is_named_as_a_dim_is_left_out(zarr_format: int) -> None:
    """No Dataset holds both; plain xarray opens nothing of such a store."""
    group = zarr.open_group(store := zarr.storage.MemoryStore(), mode="w", zarr_format=zarr_format)
    for name, values, dims in (("lat", np.float32(3), []), ("t", np.ones((4, 2)), ["time", "lat"])):
        names = {"dimension_names": dims} if zarr_format == 3 else {}
        array = group.create_array(name, data=np.asarray(values), fill_value=np.nan, **names)
        array.attrs.update({"_ARRAY_DIMENSIONS": dims} if zarr_format == 2 else {})
    with pytest.warns(LeftOutWarning, match=r"left out 'lat': it has no dims.*another name with dims="):
        ds = xr.open_dataset(store, engine="tensordict")
    assert dict(ds.sizes) == {"time": 4, "lat": 2}
    with pytest.warns(LeftOutWarning, match="'lat'"):
        assert [*xr.open_datatree(store, engine="tensordict").data_vars] == ["t"]
    both = xr.open_dataset(store, engine="tensordict", dims={"t": ("time", "y")})
    assert both["lat"] == 3
    assert both["t"].dims == ("time", "y")
