"""The chunks of a first write stay for all that is appended, so what is asked for is kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

import xarray_tensordict  # noqa: F401 - registers ds.td
from xarray_tensordict.formats.zarr.new_arrays import CHUNK_BYTES

KINDS = pytest.mark.parametrize("kind", ["zarr2", "zarr3", "h5"])
LAYOUTS = pytest.mark.parametrize("layout", ["tensordict", "xarray"])
CHUNKED = pytest.mark.parametrize("chunked", [False, True], ids=["memory", "dask"])


def day(first: int, rows: int) -> xr.Dataset:
    x = np.arange(first * 3, (first + rows) * 3, dtype="f4").reshape(rows, 3)
    return xr.Dataset({"x": (("time", "f"), x)}, coords={"time": np.arange(first, first + rows)})


def create(ds: xr.Dataset, path: Path, kind: str, layout: Any, **more: Any) -> None:
    if kind == "h5":
        ds.td.to_h5(path, layout=layout, unlimited_dims=["time"], **more)
    else:
        ds.td.to_zarr(path, layout=layout, zarr_format=int(kind[-1]), **more)


def append(ds: xr.Dataset, path: Path, kind: str) -> None:
    (ds.td.to_h5 if kind == "h5" else ds.td.to_zarr)(path, append_dim="time")


def chunks_of(path: Path, kind: str, name: str = "x") -> Any:
    if kind == "h5":
        with h5py.File(path) as file:
            return file[name].chunks
    return zarr.open_array(path / name, mode="r").chunks


@KINDS
@LAYOUTS
@CHUNKED
@pytest.mark.parametrize("rows", [4, 1, 0])
def test_chunks_larger_than_the_first_write_are_kept(
    tmp_path: Path, kind: str, layout: Any, chunked: bool, rows: int
) -> None:
    first = day(0, rows)
    create(first.chunk(time=2) if chunked else first, tmp_path / "a", kind, layout, chunks={"time": 1000})
    assert chunks_of(tmp_path / "a", kind) == (1000, 3)
    assert chunks_of(tmp_path / "a", kind, "time") == (1000,)
    for start in (rows, rows + 40):
        append(day(start, 40), tmp_path / "a", kind)
    with xr.open_dataset(tmp_path / "a", engine="tensordict") as found:
        xr.testing.assert_equal(found.load(), day(0, rows + 80))
    if kind != "h5":
        chunk_files = [name for _, _, names in os.walk(tmp_path / "a" / "x") for name in names if name[0] not in ".z"]
        assert len(chunk_files) == 1


@LAYOUTS
def test_shards_larger_than_the_first_write_are_kept(tmp_path: Path, layout: Any) -> None:
    day(0, 4).td.to_zarr(tmp_path / "a", layout=layout, chunks={"time": 100}, shards={"time": 1000})
    array = zarr.open_array(tmp_path / "a" / "x", mode="r")
    assert (array.chunks, array.shards) == ((100, 3), (1000, 3))


@KINDS
def test_the_whole_dim_is_as_long_as_it_is(tmp_path: Path, kind: str) -> None:
    create(day(0, 4), tmp_path / "a", kind, "tensordict", chunks={"time": -1})
    assert chunks_of(tmp_path / "a", kind) == (4, 3)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_first_write_of_no_rows_has_the_chunks_of_many(tmp_path: Path, zarr_format: Any) -> None:
    day(0, 0).td.to_zarr(tmp_path / "a", zarr_format=zarr_format)
    assert chunks_of(tmp_path / "a", "zarr") == (CHUNK_BYTES // 12, 3)


@LAYOUTS
def test_a_dim_of_hdf5_that_cannot_grow_has_chunks_that_fit_it(tmp_path: Path, layout: Any) -> None:
    day(0, 4).td.to_h5(tmp_path / "a", layout=layout, chunks={"time": 1000})
    assert chunks_of(tmp_path / "a", "h5") == (4, 3)
