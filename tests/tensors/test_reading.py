"""Variables that are read block by block hold what they hold when they are read at once."""

from pathlib import Path
from typing import Any

import h5py
import numcodecs
import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from xarray_tensordict import open_persistent
from xarray_tensordict._compat.xarray import backend_array
from xarray_tensordict.dataset.entries import plan_entries
from xarray_tensordict.tensors import filling, reading
from xarray_tensordict.tensors.filling import HeldChunk

PACKED = {"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": 3}
TIMES = {"units": "hours since 2000-01-01"}
FORMATS = ("zarr v2", "zarr v3", "zarr v3 sharded", "HDF5", "HDF5 contiguous")
V3 = [None, zarr.codecs.ZstdCodec(), zarr.codecs.GzipCodec(level=1)]
V2 = [None, numcodecs.Blosc(), numcodecs.Zlib(), numcodecs.BZ2()]


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(reading, "BLOCK_BYTES", 64)


def write(
    path: Path, kind: str, array: np.ndarray[Any, Any], chunks: tuple[int, ...], attrs: dict[str, Any], codec: Any
):
    if kind.startswith("HDF5"):
        options = {} if kind.endswith("contiguous") else {"chunks": tuple(map(min, chunks, array.shape))}
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=array, **options)
            for name, value in attrs.items():
                file["x"].attrs[name] = array.dtype.type(value) if name == "_FillValue" else value
        return
    options = {"chunks": chunks, "compressors": codec}
    if kind.endswith("sharded"):
        options["shards"] = tuple(2 * chunk for chunk in chunks)
    group = zarr.create_group(str(path), zarr_format=2 if kind == "zarr v2" else 3)
    stored = group.create_array("x", shape=array.shape, dtype=array.dtype, fill_value=1, **options)
    stored[...] = array
    stored.attrs.update(attrs)


def selections(size: int):
    """What ``isel`` takes along an axis."""
    bound = st.integers(-size, size)
    step = st.sampled_from([None, 1, 2, 3, -1, -2])
    numbers = st.lists(st.integers(0, size - 1), min_size=1, max_size=2 * size)
    # xarray itself fails to take an empty slice with a negative step
    slices = st.builds(slice, st.none() | bound, st.none() | bound, step).filter(lambda part: len(range(size)[part]))
    return st.one_of(st.just(slice(None)), slices, numbers, numbers.map(sorted))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_layout_and_selection_in_blocks_is_what_is_read_at_once(data, tmp_path_factory, monkeypatch):
    shape = tuple(data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3)))
    chunks = tuple(data.draw(st.integers(1, size + 1)) for size in shape)
    kind = data.draw(st.sampled_from(FORMATS))
    dtype = data.draw(st.sampled_from(["<i2", ">i2", "<f4", ">f8", "|u1"]))
    attrs = data.draw(st.sampled_from([{}, PACKED, TIMES])) if dtype[1] != "f" else {}
    codec = data.draw(st.sampled_from(V2 if kind == "zarr v2" else V3))
    path = tmp_path_factory.mktemp("blocks") / "s"
    write(path, kind, np.random.default_rng(0).integers(0, 100, shape).astype(dtype), chunks, attrs, codec)
    monkeypatch.setattr(reading, "BLOCK_BYTES", data.draw(st.sampled_from([1, 16, 64, 200])))
    with xr.open_dataset(path, engine="tensordict") as whole:
        picked = whole.isel(
            {dim: data.draw(selections(size)) for dim, size in zip(whole["x"].dims, shape, strict=True)}
        )
        picked = picked.td.set_batch_dims(picked["x"].dims[:1])
        td = picked.td.to_tensordict()
        out = td.clone().zero_()
        apart = TensorDict({"x": torch.zeros(*td["x"].shape, 2, dtype=td["x"].dtype)[..., 0]}, td.batch_size)
        picked.td.to_tensordict(out=out)
        picked.td.to_tensordict(out=apart)
        lazy = picked.td.to_persistent().to_tensordict()
        monkeypatch.setattr(filling, "in_blocks", lambda *_: None)
        expected = picked.td.to_tensordict()["x"]
    for found in (td, out, apart, lazy):
        assert found["x"].dtype == expected.dtype
        torch.testing.assert_close(found["x"], expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_packed_is_read_in_blocks(kind, tmp_path, small_blocks):
    write(tmp_path / "s", kind, np.arange(96, dtype="i2").reshape(24, 4), (6, 4), PACKED, None)
    with xr.open_dataset(tmp_path / "s", engine="tensordict") as ds:
        (entry,) = plan_entries(ds, ds.td.infer()).entries
        found = reading.of_entry(entry)
        assert len(found.tasks) > 1
        np.testing.assert_array_equal(reading.read_all([found])[0].numpy(), ds["x"].values)


@pytest.mark.parametrize("kind", ["zarr v2", "zarr v3", "HDF5"])
def test_each_chunk_is_read_once_however_many_blocks_it_has(kind, tmp_path, small_blocks, monkeypatch):
    write(
        tmp_path / "s",
        kind,
        np.arange(240, dtype="i2").reshape(60, 4),
        (20, 4),
        PACKED,
        None if "HDF5" in kind else "auto",
    )
    with xr.open_dataset(tmp_path / "s", engine="tensordict") as ds:
        backend = type(backend_array(ds.variables["x"]))
        asked = []
        original = backend.__getitem__
        monkeypatch.setattr(backend, "__getitem__", lambda self, key: asked.append(key.tuple) or original(self, key))
        ds.td.to_tensordict()
    assert sorted(key[0].start for key in asked) == [0, 20, 40]


def test_blocks_of_another_dtype_than_the_variable_promises_are_read_at_once(tmp_path, small_blocks, monkeypatch):
    path = tmp_path / "s"
    # only the later values need nanoseconds, and xarray looks at the first and the last
    hours = np.arange(40.0)
    hours[20] += 1e-4
    write(path, "zarr v3", hours, (5,), TIMES, None)
    with xr.open_dataset(path, engine="tensordict") as ds, open_persistent(path) as ptd:
        expected = ds["x"].values.astype("M8[ns]").view("i8")
        np.testing.assert_array_equal(ds.drop_vars([]).td.to_tensordict()["x"].numpy(), expected)
        np.testing.assert_array_equal(ptd.to_tensordict()["x"].numpy(), expected)


def test_a_chunk_that_is_missing_in_the_middle_of_blocks_reads_as_fill(tmp_path, small_blocks):
    path = tmp_path / "s"
    write(path, "zarr v3", np.arange(240, dtype="i2").reshape(60, 4), (20, 4), PACKED, None)
    (path / "x/c/1/0").unlink()
    with open_persistent(path) as ptd:
        found = ptd.to_tensordict()["x"]
        assert (found[20:40] == 10.5).all()
        torch.testing.assert_close(found, ptd["x"], equal_nan=True)


def test_an_error_in_a_block_names_the_variable(tmp_path, small_blocks):
    path = tmp_path / "s"
    write(path, "zarr v3", np.arange(240, dtype="i2").reshape(60, 4), (20, 4), PACKED, zarr.codecs.ZstdCodec())
    (path / "x/c/1/0").write_bytes(b"no zstd")
    with xr.open_dataset(path, engine="tensordict") as ds, pytest.raises(OSError, match="x/c/1/0") as found:
        ds.td.to_tensordict()
    assert "exclude=['x']" in "".join(found.value.__notes__)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_held_chunk_gives_what_its_array_gives(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    chunk_shape = tuple(data.draw(st.integers(1, size + 1)) for size in shape)
    array = np.arange(np.prod(shape)).reshape(shape)

    class Stored(xr.backends.BackendArray):
        dtype, shape = array.dtype, array.shape

        def __getitem__(self, key):
            return array[key.tuple]

    variable = xr.Variable(
        [f"d{axis}" for axis in range(len(shape))],
        xr.core.indexing.LazilyIndexedArray(HeldChunk(Stored(), chunk_shape)),
    )
    for _ in range(3):
        key = {dim: data.draw(selections(size)) for dim, size in zip(variable.dims, shape, strict=True)}
        expected = xr.Variable(variable.dims, array).isel(key)
        np.testing.assert_array_equal(variable.isel(key).values, expected.values)
