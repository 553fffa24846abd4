"""HDF5 files that change: modes of both doors, what is added, appended and refused."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import dask
import dask.array
import h5py
import numpy as np
import pytest
import torch
import xarray as xr
from tensordict import PersistentTensorDict, TensorDict

import xarray_tensordict  # noqa: F401 - registers ds.td
from written import assert_gives_back, era, reopened
from xarray_tensordict import open_persistent
from xarray_tensordict.testing import assert_same_tensordict

LAYOUTS = pytest.mark.parametrize("layout", ["tensordict", "xarray"])
# tensordict warns that it reads strings as bytes until its version 0.17
BYTES = pytest.mark.filterwarnings("ignore:The h5 backend of PersistentTensorDict reads the string:FutureWarning")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.h5"


def growing(rows: int) -> xr.Dataset:
    """A Dataset whose file can grow along time."""
    ds = era(rows)
    ds.encoding["unlimited_dims"] = {"time"}
    return ds


# -- append ------------------------------------------------------------------------------------------------------------


@BYTES
@LAYOUTS
@pytest.mark.parametrize("chunked", [False, True])
def test_append_grows_every_group_and_all_records(path: Path, layout: Any, chunked: bool) -> None:
    whole = growing(6)
    first, rest = whole.isel(time=slice(0, 4)), whole.isel(time=slice(4, 6))
    first.encoding = whole.encoding
    first.td.to_h5(path, layout=layout)
    (rest.chunk(time=1) if chunked else rest).td.to_h5(path, append_dim="time")
    assert_gives_back(path, whole)
    ptd = open_persistent(path)
    assert_same_tensordict(ptd.to_tensordict(), whole.td.to_tensordict())
    ptd.close()
    if layout == "tensordict":
        bare = PersistentTensorDict.from_h5(path, batch_size=[6])
        assert bare["next", "t2m"].shape == (6, 2, 3)
        assert bare["station"] == whole["station"].values.tolist()
        bare.close()
    else:
        with xr.open_dataset(path, engine="h5netcdf") as found:
            xr.testing.assert_identical(found.load(), whole.drop_vars("next/t2m"))


@LAYOUTS
def test_append_to_a_group_of_a_file_leaves_the_rest(path: Path, layout: Any) -> None:
    era().td.to_h5(path, layout=layout)
    growing(3).td.to_h5(path, layout=layout, mode="a", group="runs/a")
    growing(6).isel(time=slice(3, 6)).td.to_h5(path, group="runs/a", append_dim="time")
    assert_gives_back(path, growing(6), group="runs/a")
    np.testing.assert_array_equal(reopened(path, nested=False)["t2m"], era()["t2m"])


def test_append_along_another_dim_than_the_batch_grows_what_is_kept_as_json(path: Path) -> None:
    ds = xr.Dataset({"x": (("time", "f"), np.zeros((4, 2))), "table": (("row", "k"), np.arange(6.0).reshape(3, 2))})
    ds.td.to_h5(path)
    ds[["table"]].td.to_h5(path, append_dim="row")
    assert reopened(path)["table"].values.tolist() == [[0, 1], [2, 3], [4, 5]] * 2


def test_append_to_netcdf_keeps_its_packing_and_units(path: Path) -> None:
    ds = xr.Dataset(
        {"t2m": (("time", "x"), np.array([[280.0, 281.5], [282.0, 283.5]]))},
        coords={"time": np.array(["2000-01-01", "2000-01-02"], "M8[ns]")},
    )
    encoding = {
        "t2m": {"dtype": "i2", "scale_factor": 0.5, "add_offset": 280.0, "_FillValue": -1},
        "time": {"units": "days since 2000-01-01", "dtype": "i4"},
    }
    ds.to_netcdf(path, engine="h5netcdf", encoding=encoding, unlimited_dims=["time"])
    later = ds.assign_coords(time=ds["time"] + np.timedelta64(2, "D"))
    later.td.to_h5(path, append_dim="time")
    with h5py.File(path) as file:
        assert file["t2m"].dtype == np.dtype("i2")
        assert file["t2m"][:].tolist() == [[0, 3], [4, 7]] * 2
        assert file["time"][:].tolist() == [0, 1, 2, 3]
        assert file["t2m"].dims[0][0] == file["time"], "the dimension scale is that of before"
    with xr.open_dataset(path, engine="netcdf4") as found:
        np.testing.assert_array_equal(found["t2m"], np.concatenate([ds["t2m"], ds["t2m"]]))
    with pytest.raises(ValueError, match="does not hold its times"):
        later.assign_coords(time=later["time"] + np.timedelta64(1, "h")).td.to_h5(path, append_dim="time")


def test_dimensions_without_a_coordinate_grow_with_their_variables(path: Path) -> None:
    ds = xr.Dataset({"x": (("time", "f"), np.zeros((4, 2)))})
    ds.to_netcdf(path, engine="h5netcdf", unlimited_dims=["time"])
    ds.td.to_h5(path, append_dim="time")
    for engine in ("h5netcdf", "netcdf4", "tensordict"):
        with xr.open_dataset(path, engine=engine) as found:
            assert found.sizes["time"] == 8


@LAYOUTS
def test_datasets_of_a_fixed_size_are_refused_with_the_way_out(path: Path, layout: Any) -> None:
    era().td.to_h5(path, layout=layout)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"cannot grow along 'time'.*mode='w'.*unlimited_dims"):
        era().td.to_h5(path, append_dim="time")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ds: ds.drop_vars("done"), r"\['done'\] have the dim 'time' there"),
        (lambda ds: ds.assign(more=("time", np.zeros(2))), r"\['more'\] are not there"),
        (lambda ds: ds.assign(t2m=ds["t2m"].astype("f8")), "has dtype float32 there, found float64"),
        (lambda ds: ds.isel(lat=slice(1)), "needs size 2 along 'lat'"),
        (lambda ds: ds.rename(time="hour"), "'time' is no dim of the dataset"),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_a_byte_is_written(path: Path, change: Any, message: str) -> None:
    growing(4).td.to_h5(path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=message):
        change(era(2)).td.to_h5(path, append_dim="time")
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_an_append_that_fails_leaves_the_file_as_it_was(path: Path) -> None:
    def fails(block: Any) -> Any:
        raise RuntimeError("boom")

    ds = xr.Dataset({"x": ("time", np.arange(4.0))})
    ds.encoding["unlimited_dims"] = {"time"}
    ds.td.to_h5(path)
    failing = dask.array.map_blocks(fails, dask.array.zeros(4, chunks=2), dtype="f8", meta=np.zeros(0))
    with pytest.raises(RuntimeError, match="boom"):
        xr.Dataset({"x": ("time", failing)}).td.to_h5(path, append_dim="time")
    assert_gives_back(path, ds)
    assert os.listdir(path.parent) == [path.name]


def test_arguments_of_an_append(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no file to append to"):
        era().td.to_h5(path, append_dim="time")
    growing(4).td.to_h5(path)
    with pytest.raises(ValueError, match="goes with mode='a'"):
        era().td.to_h5(path, append_dim="time", mode="w")
    delayed = era(2).td.to_h5(path, append_dim="time", compute=False)
    assert reopened(path).sizes["time"] == 4
    delayed.compute()
    assert reopened(path).sizes["time"] == 6


# -- what is replaced, and what is not ---------------------------------------------------------------------------------


def test_a_file_of_another_kind_is_never_replaced(path: Path) -> None:
    path.write_text("a,b\n1,2\n")
    for use in (
        lambda: era().td.to_h5(path),
        lambda: era().td.to_h5(path, mode="w"),
        lambda: era().td.to_h5(path, mode="a"),
    ):
        with pytest.raises(ValueError, match=r"a,b.*delete"):
            use()
    assert path.read_text() == "a,b\n1,2\n"


@pytest.mark.parametrize("mode", ["w", "a"])
def test_a_file_that_this_process_has_open_for_writing_is_an_error_that_says_so(path: Path, mode: Any) -> None:
    TensorDict({"x": torch.zeros(4)}, [4]).to_h5(path).close()
    new = xr.Dataset({"y": ("time", np.zeros(4))})
    with h5py.File(path, "r+"), pytest.raises(ValueError, match=r"has the file open for writing.*close it first"):
        new.td.to_h5(path, mode=mode)
    ptd = PersistentTensorDict.from_h5(path, mode="r+")
    with pytest.raises(ValueError, match="has the file open for writing"):
        new.td.to_h5(path, mode=mode)
    ptd["x"] = torch.ones(4)
    ptd.close()
    with h5py.File(path) as file:
        assert file["x"][:].tolist() == [1.0] * 4
    new.td.to_h5(path, mode=mode)


def _write_and_die(path: Path) -> None:
    def dies(block: Any) -> Any:
        os._exit(9)

    data = dask.array.map_blocks(dies, dask.array.zeros(4, chunks=2), dtype="f8", meta=np.zeros(0))
    with dask.config.set(scheduler="synchronous"):  # a fork has none of the threads of its parent
        xr.Dataset({"x": ("time", data)}).td.to_h5(path, mode="w")


def test_a_crash_leaves_the_old_file(path: Path) -> None:
    era().td.to_h5(path)
    process = multiprocessing.get_context("fork").Process(target=_write_and_die, args=(path,))
    process.start()
    process.join(60)
    assert process.exitcode == 9
    assert_gives_back(path, era())


def test_mode_a_keeps_attributes_scales_and_storage_of_what_is_there(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.attrs["history"] = "by hand"
        scale = file.create_dataset("time", data=np.arange(4))
        scale.make_scale("time")
        scale.attrs["long_name"] = "hour"
        x = file.create_dataset("x", data=np.ones((4, 3)), chunks=(2, 3), compression="gzip", shuffle=True)
        x.dims[0].attach_scale(scale)
        x.dims[1].label = "f"
        file.create_group("notes").attrs["author"] = "Åse"
    xr.Dataset({"y": ("time", np.zeros(4)), "next/x": (("time", "f"), np.zeros((4, 3)))}).td.to_h5(path, mode="a")
    with h5py.File(path) as file:
        assert file.attrs["history"] == "by hand"
        assert file["time"].attrs["long_name"] == "hour"
        assert file["x"].dims[0][0] == file["time"]
        assert (file["x"].chunks, file["x"].compression, file["x"].shuffle) == ((2, 3), "gzip", True)
        assert file["notes"].attrs["author"] == "Åse"
        assert set(file) == {"time", "x", "y", "next", "notes"}
    assert reopened(path)["next/x"].shape == (4, 3)


# -- groups, user blocks, file objects ---------------------------------------------------------------------------------


@LAYOUTS
@pytest.mark.parametrize("size", [512, 2048])
def test_a_user_block_is_read_over_and_kept(path: Path, layout: Any, size: int) -> None:
    plain = path.with_name("plain.h5")
    growing(4).td.to_h5(plain, layout=layout)
    with h5py.File(plain) as old, h5py.File(path, "w", userblock_size=size) as new:
        for name in old:
            old.copy(name, new)
        new.attrs.update(old.attrs)
    with path.open("r+b") as file:
        file.write(b"#!/bin/sh\n")
    if layout == "tensordict":
        assert_gives_back(path, era())
        era(2).td.to_h5(path, append_dim="time")
        xr.Dataset({"more": ("time", np.zeros(6))}).td.to_h5(path, mode="a")
        assert reopened(path).sizes["time"] == 6
        assert "more" in reopened(path)
    ptd = open_persistent(path)
    assert ptd.batch_size == reopened(path).td.batch_size
    ptd.close()
    assert path.read_bytes()[:10] == b"#!/bin/sh\n"
    with h5py.File(path) as file:
        assert file.userblock_size == size
