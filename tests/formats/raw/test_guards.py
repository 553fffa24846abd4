"""Where the bytes are not as they were described, the library is asked, or an error says what was found."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from tensordict import TensorDict

from xarray_tensordict import open_persistent
from xarray_tensordict.formats.hdf5.read import Hdf5Store
from xarray_tensordict.formats.raw import files
from xarray_tensordict.formats.raw.arrays import RawArray

ARRAY = np.arange(24, dtype="f4").reshape(6, 4)


def zarr_of(path: Path, chunks=(6, 4), zarr_format=3, **options) -> zarr.Array:
    group = zarr.create_group(str(path), zarr_format=zarr_format)
    array = group.create_array("x", shape=ARRAY.shape, chunks=chunks, dtype="f4", compressors=None, **options)
    array[...] = ARRAY
    return array


def chunk(array: zarr.Array, number: int = 0) -> Path:
    return Path(str(array.store.root), "x", array.metadata.encode_chunk_key((number, 0)))


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("chunks", [(6, 4), (2, 4)])
def test_a_missing_chunk_reads_as_the_fill_value(zarr_format, chunks, tmp_path):
    path = tmp_path / "s.zarr"
    array = zarr_of(path, chunks, zarr_format, fill_value=7)
    chunk(array).unlink()
    expected = ARRAY.copy()
    expected[: chunks[0]] = 7
    with open_persistent(path) as ptd:
        np.testing.assert_array_equal(ptd["x"].numpy(), expected)
        np.testing.assert_array_equal(ptd.get_at("x", [5, 0]).numpy(), expected[[5, 0]])
        np.testing.assert_array_equal(ptd.get_at("x", 1).numpy(), expected[1])


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("size", [0, 8, 95, 97, 200])
def test_a_chunk_of_another_size_is_an_error_that_names_the_file_and_the_sizes(zarr_format, size, tmp_path):
    path = tmp_path / "s.zarr"
    array = zarr_of(path, zarr_format=zarr_format)
    os.truncate(chunk(array), size)
    with open_persistent(path) as ptd:
        for index in (slice(None), 3, [0, 1]):
            with pytest.raises(OSError, match=rf"s\.zarr/x/\S*: expected a chunk of 96 bytes, found {size}") as error:
                ptd.get_at("x", index)
            assert any("'x'" in note for note in error.value.__notes__)


@pytest.mark.parametrize("mode", ["r+", "a"])
def test_an_hdf5_file_that_this_process_writes_to_is_read_by_hdf5(mode, tmp_path):
    path = tmp_path / "s.h5"
    with h5py.File(path, "w") as file:
        file["x"] = ARRAY
    with h5py.File(path, mode) as file:
        with open_persistent(path) as ptd:
            file["x"][2] = 9  # in the buffers of HDF5
            assert ptd.get_at("x", 2).tolist() == [9] * 4
            np.testing.assert_array_equal(ptd["x"].numpy()[2], [9] * 4)
        with open_persistent(file) as ptd:
            file["x"][3] = 8
            assert ptd.get_at("x", [3]).tolist() == [[8] * 4]


def described(path: Path, name: str = "x"):
    """What reads a dataset: a ``RawArray`` where that is done without HDF5."""
    return Hdf5Store.open(path).group().arrays[name].data


def test_the_place_of_a_contiguous_dataset_counts_the_userblock(tmp_path):
    path = tmp_path / "s.h5"
    with h5py.File(path, "w", userblock_size=1024) as file:
        file["x"] = ARRAY
    offset = described(path).data.offset
    np.testing.assert_array_equal(np.fromfile(path, "f4", ARRAY.size, offset=offset).reshape(ARRAY.shape), ARRAY)


def test_what_hdf5_keeps_elsewhere_is_read_by_hdf5(tmp_path):
    path = tmp_path / "s.h5"
    compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    compact.set_layout(h5py.h5d.COMPACT)
    with h5py.File(path, "w") as file:
        file["x"] = ARRAY
        file.create_dataset("external", data=ARRAY, external=[(str(tmp_path / "raw.bin"), 0, h5py.h5f.UNLIMITED)])
        file.create_dataset("unallocated", shape=ARRAY.shape, dtype="f4", fillvalue=3)
        file.create_dataset("chunked", data=ARRAY, chunks=(2, 4))
        space = h5py.h5s.create_simple(ARRAY.shape)
        small = h5py.h5d.create(file.id, b"compact", h5py.h5t.NATIVE_FLOAT, space, compact)
        small.write(h5py.h5s.ALL, h5py.h5s.ALL, ARRAY)
        virtual = h5py.VirtualLayout(ARRAY.shape, "f4")
        virtual[:] = h5py.VirtualSource(str(path), "x", ARRAY.shape)
        file.create_virtual_dataset("virtual", virtual)
        file["linked"] = h5py.SoftLink("/x")
    expected = dict.fromkeys(("x", "external", "chunked", "compact", "virtual", "linked"), ARRAY)
    expected["unallocated"] = np.full_like(ARRAY, 3)
    assert isinstance(described(path), RawArray)
    for name in ("external", "unallocated", "chunked", "compact", "virtual"):
        assert not isinstance(described(path, name), RawArray), name
    with xr.open_dataset(path, engine="tensordict") as ds:
        for name, array in expected.items():
            np.testing.assert_array_equal(ds[name].values, array, err_msg=name)
            np.testing.assert_array_equal(ds[name][[4, 1]].values, array[[4, 1]], err_msg=name)


def test_types_that_hdf5_converts_are_read_by_hdf5(tmp_path):
    path = tmp_path / "s.h5"
    twelve = h5py.h5t.STD_I16LE.copy()
    twelve.set_precision(12)
    with h5py.File(path, "w") as file:
        dataset = h5py.h5d.create(file.id, b"twelve", twelve, h5py.h5s.create_simple((4,)))
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array([-5, 3, 2, -1], "i2"))
        file["big"] = ARRAY.astype(">f4")
    with open_persistent(path, batch_dims=()) as ptd:
        assert ptd["twelve"].tolist() == [-5, 3, 2, -1]
        np.testing.assert_array_equal(ptd["big"].numpy(), ARRAY)


@pytest.mark.parametrize("driver", ["core", "stdio"])
def test_files_that_no_descriptor_reads_are_read_by_hdf5(driver, tmp_path):
    path = tmp_path / "s.h5"
    with h5py.File(path, "w") as file:
        file["x"] = ARRAY
    with h5py.File(path, "r", driver=driver) as file, open_persistent(file) as ptd:
        np.testing.assert_array_equal(ptd["x"].numpy(), ARRAY)
    with open(path, "rb") as stream, xr.open_dataset(stream, engine="tensordict") as ds:
        np.testing.assert_array_equal(ds["x"].values, ARRAY)


def test_an_hdf5_file_that_was_replaced_is_read_as_it_was_opened(tmp_path):
    path = tmp_path / "s.h5"
    with h5py.File(path, "w") as file:
        file["x"] = ARRAY
    with open_persistent(path) as ptd:
        assert ptd.get_at("x", 0).tolist() == ARRAY[0].tolist()
        with h5py.File(tmp_path / "other.h5", "w") as file:
            file["x"] = np.zeros((1000, 4), "f4")
            file["y"] = ARRAY
        os.replace(tmp_path / "other.h5", path)
        np.testing.assert_array_equal(ptd["x"].numpy(), ARRAY)


def test_a_dataset_can_be_written_over_the_file_it_came_from(tmp_path):
    path = tmp_path / "s.nc"
    xr.Dataset({"x": (("t", "f"), ARRAY)}).to_netcdf(path, engine="h5netcdf")
    ds = xr.load_dataset(path, engine="tensordict")
    part = xr.open_dataset(path, engine="tensordict")
    rows = part["x"][1:3].load()
    part.close()
    ds.isel(t=slice(0, 2)).to_netcdf(path, engine="h5netcdf")
    np.testing.assert_array_equal(ds["x"].values, ARRAY)
    np.testing.assert_array_equal(rows.values, ARRAY[1:3])


def test_a_wrapped_store_is_read_through_its_wrapper(tmp_path):
    zarr_of(tmp_path / "s.zarr")
    seen = []

    class Counting(zarr.storage.WrapperStore):
        async def get(self, key, prototype, byte_range=None):
            seen.append(key)
            return await self._store.get(key, prototype, byte_range)

    store = Counting(zarr.storage.LocalStore(str(tmp_path / "s.zarr"), read_only=True))
    with xr.open_dataset(store, engine="tensordict") as ds:
        np.testing.assert_array_equal(ds["x"].values, ARRAY)
    assert "x/c/0/0" in seen


@pytest.mark.parametrize("chunks", [(6, 4), (2, 4)])
def test_batches_and_rows_keep_a_map_and_see_a_file_that_has_taken_its_place(chunks, tmp_path):
    path = tmp_path / "s.zarr"
    array = zarr_of(path, chunks)
    with xr.open_dataset(path, engine="tensordict") as ds, open_persistent(path) as ptd:
        assert ptd[5]["x"].tolist() == ptd.get_at("x", -1).tolist() == ARRAY[5].tolist()
        batches = ds.td.batches(6, shuffle="full", seed=0, prefetch=0)
        order = [int(row[0]) // 4 for row in next(iter(batches))["x"]]
        array[...] = ARRAY + 1
        batches.set_epoch(0)
        np.testing.assert_array_equal(next(iter(batches))["x"].numpy(), ARRAY[order] + 1)
        assert ptd[5]["x"].tolist() == (ARRAY[5] + 1).tolist()
        chunk(array, 5 // chunks[0]).unlink()
        assert ptd[5]["x"].tolist() == [0] * 4  # as zarr reads it


@pytest.mark.parametrize("most", [0, 2, 256])
@pytest.mark.parametrize("shuffle", [False, "full"])
def test_of_many_files_some_are_kept_and_the_others_opened_for_each_read(most, shuffle, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_MOST", most)
    array = np.arange(60 * 1100, dtype="f4").reshape(60, 1100)
    group = zarr.create_group(str(tmp_path / "s.zarr"))
    group.create_array("x", shape=array.shape, chunks=(7, 1100), dtype="f4", compressors=None)[...] = array
    with xr.open_dataset(tmp_path / "s.zarr", engine="tensordict") as ds:
        batches = ds.td.batches(8, shuffle=shuffle, seed=0, prefetch=0)
        monkeypatch.setattr("xarray_tensordict.loading.batches.RAW_BYTES", 1)
        for _ in range(2):
            found = torch.cat([batch["x"] for batch in batches])
            order = found[:, 0].long() // 1100
            np.testing.assert_array_equal(found.numpy(), array[order])
            assert sorted(order.tolist()) == list(range(60))
        # in order, all batches but the last cross from one file to the next, and are read
        assert len(batches._reader._maps._maps) == min(most, 9 if shuffle else 1)


@pytest.mark.parametrize("layout", ["zarr", "hdf5", "memmap"])
def test_a_file_cut_short_while_it_is_read_is_an_error_and_not_a_crash(layout, tmp_path):
    path = tmp_path / "s"
    array = np.ones((1000, 3000), "f4")  # so large that each batch is a read of its own
    if layout == "zarr":
        group = zarr.create_group(str(path))
        group.create_array("x", shape=array.shape, chunks=array.shape, dtype="f4", compressors=None)[...] = array
    elif layout == "hdf5":
        with h5py.File(path, "w") as file:
            file["x"] = array
    else:
        TensorDict({"x": torch.from_numpy(array)}, [1000]).memmap(str(path))
    code = f"""
import os, pathlib, xarray as xr
from xarray_tensordict import open_persistent
path = pathlib.Path({str(path)!r})
file = path if path.is_file() else max((f for f in path.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)
ptd, ds = open_persistent(path), xr.open_dataset(path, engine="tensordict")
started = [iter(ds.td.batches(500, shuffle=shuffle, seed=0, prefetch=0)) for shuffle in (False, "full")]
for batches in started:
    next(batches)
ptd.get_at("x", 999)
os.truncate(file, 5000)
rows = [lambda index=index: ptd.get_at("x", index) for index in (slice(None), [999, 3], 999)]
for read in [*rows, *(lambda batches=batches: list(batches) for batches in started)]:
    try:
        read()
    except (OSError, ValueError) as error:
        assert file.name in str(error) and "12000000" in str(error), error
    else:
        raise AssertionError
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_dataset_behind_an_external_link_is_read_by_hdf5(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = ARRAY + 1
    path = tmp_path / "s.h5"
    with h5py.File(path, "w") as file:
        file["first"] = ARRAY
        file["x"] = h5py.ExternalLink("other.h5", "x")
    assert isinstance(described(path, "first"), RawArray)
    assert not isinstance(described(path), RawArray)
    with xr.open_dataset(path, engine="tensordict") as ds:
        np.testing.assert_array_equal(ds["first"].values, ARRAY)
        np.testing.assert_array_equal(ds["x"][[4, 1]].values, ARRAY[[4, 1]] + 1)


def test_what_was_found_out_about_a_file_is_forgotten_when_it_is_opened_anew(tmp_path):
    path = tmp_path / "s.h5"
    with h5py.File(path, "w") as file:
        file["x"] = ARRAY
    ptd = open_persistent(path)
    assert ptd.get_at("x", 2).tolist() == ARRAY[2].tolist()
    ds = xr.open_dataset(path, engine="tensordict")
    ds["x"][:1].load()
    ds.close()
    ptd.close()
    with h5py.File(path, "r+") as file:
        file["y"] = ARRAY
        file["x"][2] = 9  # in the buffers of HDF5
        np.testing.assert_array_equal(ds["x"][[2]].values, [[9] * 4])


def test_a_pickle_of_batches_holds_no_map(tmp_path):
    path = tmp_path / "s.zarr"
    zarr_of(path)
    batches = xr.open_dataset(path, engine="tensordict").td.batches(2, shuffle="full", seed=0, prefetch=0)
    first = [batch["x"] for batch in batches]
    again = pickle.loads(pickle.dumps(batches))
    again.set_epoch(0)
    torch.testing.assert_close([batch["x"] for batch in again], first, rtol=0, atol=0)
