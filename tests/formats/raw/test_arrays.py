"""Arrays that lie in files as they are in memory are read without their library, and to the same values."""

import asyncio
import pickle
import threading
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from raw_samples import index_for, raw_behind
from xarray_tensordict import open_persistent
from xarray_tensordict.formats.raw import arrays as raw_arrays
from xarray_tensordict.formats.raw import files as raw_files
from xarray_tensordict.formats.raw.arrays import RawArray
from xarray_tensordict.testing import assert_same_tensordict

ROWS = 12


def values(shape=(ROWS, 3, 4), dtype="f4"):
    return np.random.default_rng(0).integers(0, 100, shape).astype(dtype)


def write(path: Path, array: np.ndarray[Any, Any], layout: str, chunks: Any = None) -> Path:
    """One leaf ``x`` in a layout that is raw."""
    if layout == "hdf5":
        with h5py.File(path, "w", userblock_size=512) as file:
            file.create_dataset("first", data=np.arange(len(array)))
            file.create_dataset("x", data=array)
        return path
    if layout == "memmap":
        TensorDict({"x": torch.from_numpy(array)}, [len(array)]).memmap(str(path))
        return path
    group = zarr.create_group(str(path), zarr_format=int(layout[-1]))
    group.create_array("x", shape=array.shape, chunks=chunks or array.shape, dtype=array.dtype, compressors=None)[
        ...
    ] = array
    return path


LAYOUTS = ("zarr2", "zarr3", "hdf5", "memmap")


@pytest.fixture
def no_library(monkeypatch):
    """Reading through the library of the format fails."""

    def refuse(self, key, reason):
        raise AssertionError(f"read through the library: {reason}")

    monkeypatch.setattr(RawArray, "_through_library", refuse)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["f4", "f2", "c8", "?", "u1", "u8", "i2"])
def test_raw_arrays_are_read_without_the_library(layout, dtype, tmp_path, no_library):
    array = values(dtype=dtype)
    path = write(tmp_path / "s", array, layout)
    with xr.open_dataset(path, engine="tensordict") as ds, open_persistent(path) as ptd:
        np.testing.assert_array_equal(ds["x"].values, array)
        assert ds["x"].dtype == array.dtype
        np.testing.assert_array_equal(ptd["x"].numpy(), array)
        np.testing.assert_array_equal(ptd.get_at("x", [5, 1, 1]).numpy(), array[[5, 1, 1]])


@pytest.mark.parametrize("layout", ["zarr2", "zarr3"])
@pytest.mark.parametrize("rows", [1, 4, 5, 12, 20])
def test_chunks_of_whole_rows_are_read_without_zarr(layout, rows, tmp_path, no_library):
    array = values()
    path = write(tmp_path / "s", array, layout, chunks=(rows, 3, 4))
    with xr.open_dataset(path, engine="tensordict") as ds:
        np.testing.assert_array_equal(ds["x"].values, array)
        np.testing.assert_array_equal(ds["x"][3:11:2].values, array[3:11:2])
        np.testing.assert_array_equal(ds["x"][[11, 0, 4, 4]].values, array[[11, 0, 4, 4]])


@pytest.mark.parametrize("layout", ["zarr2", "zarr3"])
def test_large_rows_cross_chunks_in_one_read(layout, tmp_path, no_library, monkeypatch):
    monkeypatch.setattr(raw_files, "_PART", 5000)  # neither a row nor a chunk
    array = values((ROWS, 1200))
    path = write(tmp_path / "s", array, layout, chunks=(5, 1200))
    with open_persistent(path) as ptd:
        np.testing.assert_array_equal(ptd["x"].numpy(), array)
        np.testing.assert_array_equal(ptd.get_at("x", slice(2, 11)).numpy(), array[2:11])
        np.testing.assert_array_equal(ptd.get_at("x", [11, 2, 7, 2]).numpy(), array[[11, 2, 7, 2]])


def test_only_the_files_of_the_asked_rows_are_opened_each_once(tmp_path, monkeypatch):
    array = values((ROWS, 1200))
    path = write(tmp_path / "s", array, "zarr3", chunks=(3, 1200))
    opened = []
    original = raw_files.os.open
    with open_persistent(path) as ptd:
        monkeypatch.setattr(raw_files.os, "open", lambda name, *rest: opened.append(name) or original(name, *rest))
        ptd.get_at("x", [10, 1, 9, 0])
    assert sorted(Path(name).parts[-2] for name in opened if "/c/" in str(name)) == ["0", "3"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("inner", [(), (3,), (2, 700)], ids=["small", "rows", "large"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_index_picks_what_it_picks_in_memory(layout, inner, data, tmp_path_factory):
    array = values((ROWS, *inner))
    path = tmp_path_factory.mktemp("raw") / "s"
    write(path, array, layout, chunks=(data.draw(st.sampled_from([1, 5, ROWS, 20])), *inner))
    memory = torch.from_numpy(array)
    with open_persistent(path) as ptd:
        view, there = ptd, memory
        if data.draw(st.booleans()):
            start, stop, step = (
                data.draw(st.integers(0, 3)),
                data.draw(st.integers(8, ROWS)),
                data.draw(st.integers(1, 2)),
            )
            view, there = ptd[start:stop:step], memory[start:stop:step]
        index = data.draw(index_for(len(there)))
        torch.testing.assert_close(view.get_at("x", index), there[index], rtol=0, atol=0)
        torch.testing.assert_close(view[index]["x"], there[index], rtol=0, atol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_selection_of_a_dataset_is_that_of_a_dataset_in_memory(layout, data, tmp_path_factory):
    array = values()
    path = tmp_path_factory.mktemp("raw") / "s"
    write(path, array, layout, chunks=(data.draw(st.sampled_from([1, 5, ROWS])), 3, 4))

    def selection(size: int) -> st.SearchStrategy[Any]:
        number = st.integers(-size, size - 1)
        # xarray's lazy arrays take a start before the first row for the last one where the step is negative
        bound = st.none() | st.integers(-size, size + 2)
        step = st.none() | st.sampled_from([1, 2, 5, -1, -2])
        return st.one_of(number, st.builds(slice, bound, bound, step), st.lists(number, max_size=5).map(np.array))

    with xr.open_dataset(path, engine="tensordict") as ds:
        x = ds["x"]
        memory = xr.DataArray(array, dims=x.dims)
        for _ in range(data.draw(st.integers(1, 2))):
            chosen = {
                dim: data.draw(selection(size))
                for dim, size in zip(x.dims, x.shape, strict=True)
                if size and data.draw(st.booleans())
            }
            chosen = {dim: part.astype(int) if isinstance(part, np.ndarray) else part for dim, part in chosen.items()}
            x, memory = x.isel(chosen), memory.isel(chosen)
        np.testing.assert_array_equal(x.values, memory.values)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pointwise_selections_are_read(layout, tmp_path):
    array = values()
    path = write(tmp_path / "s", array, layout)
    points = xr.DataArray([3, 3, 0], dims="point"), xr.DataArray([0, 2, 1], dims="point")
    with xr.open_dataset(path, engine="tensordict") as ds:
        found = ds["x"][points]
        np.testing.assert_array_equal(found.values, array[[3, 3, 0], [0, 2, 1]])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_read_is_the_callers_own(layout, tmp_path):
    array = values()
    path = write(tmp_path / "s", array, layout)
    with open_persistent(path) as ptd:
        for index in (slice(None), slice(2, 5), [4, 1], 3):
            ptd.get_at("x", index).zero_()
        ptd["x"].zero_()
        np.testing.assert_array_equal(ptd["x"].numpy(), array)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_raw_arrays_pickle_small_and_read_in_many_threads(layout, tmp_path):
    array = values()
    path = write(tmp_path / "s", array, layout)
    with xr.open_dataset(path, engine="tensordict") as ds:
        raw = raw_behind(ds)
        text = pickle.dumps(raw)
        assert len(text) < 4000
        again = pickle.loads(text)
        found = {}
        threads = [threading.Thread(target=lambda i=i: found.update({i: again.take([i, 0])})) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all((found[i] == array[[i, 0]]).all() for i in range(8))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_load_async_reads_raw_arrays(layout, tmp_path):
    array = values()
    path = write(tmp_path / "s", array, layout)
    with xr.open_dataset(path, engine="tensordict") as ds:
        loaded = asyncio.run(ds.isel({ds["x"].dims[0]: slice(2, 7)}).load_async())
        np.testing.assert_array_equal(loaded["x"].values, array[2:7])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("index", [ROWS, -ROWS - 1, [0, ROWS]])
def test_rows_out_of_bounds_are_refused(layout, index, tmp_path):
    path = write(tmp_path / "s", values(), layout)
    with open_persistent(path) as ptd, pytest.raises(IndexError):
        ptd.get_at("x", index)
    with xr.open_dataset(path, engine="tensordict") as ds, pytest.raises(IndexError):
        raw_behind(ds).take(np.asarray(index))


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_codes_of_dtypes_without_a_numpy_twin_keep_every_bit(dtype, tmp_path, no_library):
    codes = np.arange(256, dtype="u1") if "float8" in dtype else np.arange(0, 65536, dtype="u2")
    path = tmp_path / "s.zarr"
    group = zarr.create_group(str(path))
    group.create_array("x", shape=codes.shape, chunks=codes.shape, dtype=codes.dtype, compressors=None)[...] = codes
    metadata = path / "x" / "zarr.json"
    metadata.write_text(metadata.read_text().replace(f'"uint{8 * codes.itemsize}"', f'"{dtype}"'))
    with open_persistent(path) as ptd, xr.open_dataset(path, engine="tensordict") as ds:
        unsigned = torch.uint8 if codes.itemsize == 1 else torch.uint16
        assert ptd["x"].dtype == getattr(torch, dtype)
        np.testing.assert_array_equal(ptd["x"].view(unsigned).numpy(), codes)
        np.testing.assert_array_equal(ptd.get_at("x", [255, 3]).view(unsigned).numpy(), codes[[255, 3]])
        assert_same_tensordict(ptd.to_tensordict(), ds.td.to_tensordict())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_scalar_and_an_empty_array_are_read(layout, tmp_path):
    path = tmp_path / "s"
    if layout == "hdf5":
        with h5py.File(path, "w") as file:
            file["one"], file["none"] = np.float32(2.5), np.empty((0, 3))
    elif layout == "memmap":
        TensorDict({"one": torch.tensor(2.5), "none": torch.empty(0, 3)}).memmap(str(path))
    else:
        group = zarr.create_group(str(path), zarr_format=int(layout[-1]))
        group.create_array("one", shape=(), dtype="f4", compressors=None)[...] = 2.5
        group.create_array("none", shape=(0, 3), dtype="f8", compressors=None)
    with xr.open_dataset(path, engine="tensordict") as ds:
        assert ds["one"].values.item() == 2.5
        assert ds["none"].values.shape == (0, 3)


def test_raw_arrays_are_the_only_ones_that_are_read_so(tmp_path):
    path = tmp_path / "s.zarr"
    group = zarr.create_group(str(path))
    array = values()
    for name, options in {
        "sharded": {"shards": (ROWS, 3, 4), "chunks": (3, 3, 4), "compressors": None},
        "columns": {"chunks": (ROWS, 1, 4), "compressors": None},
        "transposed": {"filters": [zarr.codecs.TransposeCodec(order=(2, 1, 0))], "compressors": None},
        "big": {"serializer": zarr.codecs.BytesCodec(endian="big"), "compressors": None},
        "checked": {"compressors": [zarr.codecs.Crc32cCodec()]},
    }.items():
        group.create_array(name, shape=array.shape, dtype="f4", **{"chunks": array.shape, **options})[...] = array
    v2 = zarr.create_group(str(tmp_path / "two.zarr"), zarr_format=2)
    v2.create_array("fortran", shape=array.shape, chunks=array.shape, dtype="f4", compressors=None, order="F")[...] = (
        array
    )
    v2.create_array("big", shape=array.shape, chunks=array.shape, dtype=">f4", compressors=None)[...] = array
    for store in (path, tmp_path / "two.zarr"):
        with xr.open_dataset(store, engine="tensordict") as ds:
            for name in ds.data_vars:
                # before its values are read: then they are in memory, and nothing is behind them
                if (store.name, name) == ("two.zarr", "big"):
                    raw_behind(ds, str(name))
                else:
                    with pytest.raises(AttributeError):
                        raw_behind(ds, str(name))
                np.testing.assert_array_equal(ds[name].values, array, err_msg=str(name))


def test_packed_values_are_decoded_from_raw_codes(tmp_path, no_library):
    path = tmp_path / "s.zarr"
    ds = xr.Dataset({"t": ("time", [1.5, np.nan, 3.0])})
    ds.to_zarr(
        path,
        consolidated=False,
        encoding={"t": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -9, "compressors": None}},
    )
    with open_persistent(path) as ptd:
        torch.testing.assert_close(ptd["t"], torch.tensor(ds["t"].values), equal_nan=True)
        torch.testing.assert_close(ptd.get_at("t", [2, 0]), torch.tensor([3.0, 1.5], dtype=ptd["t"].dtype))


def test_few_small_rows_of_a_large_file_are_not_read_with_all_between_them(tmp_path, monkeypatch):
    array = np.arange(100_000, dtype="i4").reshape(-1, 2)
    path = write(tmp_path / "s", array, "zarr3")
    read = []
    original = raw_arrays.np.empty
    monkeypatch.setattr(raw_files.np, "empty", lambda size, *rest: read.append(size) or original(size, *rest))
    with open_persistent(path) as ptd:
        np.testing.assert_array_equal(ptd.get_at("x", [40_000, 3]).numpy(), array[[40_000, 3]])
    assert all(np.prod(size) < 10_000 for size in read)
