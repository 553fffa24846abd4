"""A chunk of blosc that was cut short is an error, in every way of reading: the library itself reads behind its end."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.codecs import BloscCodec, BytesCodec, ShardingCodec
from zarr.core import codec_pipeline
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import LocalStore, MemoryStore

from xarray_tensordict import open_persistent
from xarray_tensordict._compat.zarr import PIPELINES

VALUES = np.random.default_rng(0).random((8, 64))
"""Numbers that blosc cannot compress, which it copies as they are."""


@pytest.fixture(params=["zarr2", "zarr3", "zip"])
def cut(request: Any, tmp_path: Path) -> Path:
    """A store with chunks of whole rows in `rows`, and of parts of rows in `parts`; the first chunk of each is cut."""
    v3 = request.param == "zarr3"
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=3 if v3 else 2)
    for name, chunks in (("rows", (4, 64)), ("parts", (4, 32)), ("whole", (4, 64))):
        codec = BloscCodec(cname="lz4", shuffle="noshuffle") if v3 else numcodecs.Blosc(cname="lz4", shuffle=0)
        group.create_array(name, data=VALUES, chunks=chunks, compressors=codec)
    for name in ("rows", "parts"):
        first = tmp_path / "a.zarr" / name / ("c/0/0" if v3 else "0.0")
        first.write_bytes(first.read_bytes()[:500])
    if request.param != "zip":
        return tmp_path / "a.zarr"
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for file in sorted((tmp_path / "a.zarr").rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(tmp_path / "a.zarr"))
    return tmp_path / "a.zip"


@pytest.mark.parametrize("name", ["rows", "parts"])
@pytest.mark.parametrize("chunks", [None, {}], ids=["numpy", "dask"])
def test_reading_it_names_the_array(cut: Path, name: str, chunks: Any) -> None:
    with xr.open_dataset(cut, engine="tensordict", chunks=chunks) as ds:
        for read in (lambda: ds[name].load(), lambda: ds[[name]].td.to_tensordict(), lambda: ds[name][:2, :3].values):
            with pytest.raises(OSError, match=rf"{name}.*cut short: expected \d+ bytes, found 500"):
                read()
        np.testing.assert_array_equal(ds[name][4:], VALUES[4:])
        np.testing.assert_array_equal(ds["whole"], VALUES)
    ptd = open_persistent(cut)
    with pytest.raises(OSError, match="cut short"):
        ptd[[1, 0]]
    assert ptd[5][name].tolist() == VALUES[5].tolist()


@pytest.mark.skipif(len(PIPELINES) == 1, reason="zarr has one pipeline before 3.4")
def test_another_pipeline_is_used_for_arrays_of_this_package_only(tmp_path: Path, monkeypatch: Any) -> None:
    """What a setting of zarr would change for arrays of others, too: their stores may do more in `get`."""
    whole = xr.Dataset({"x": (("time", "k"), VALUES)})
    whole.td.to_zarr(tmp_path / "a.zarr", layout="xarray", chunks={"time": 2}, shards={"time": 4})
    used = []
    for name in PIPELINES:
        pipeline: Any = getattr(codec_pipeline, name.rpartition(".")[2])
        read = pipeline.read

        async def noted(self: Any, *arguments: Any, read: Any = read, **options: Any) -> Any:
            used.append((type(self).__name__, zarr.config.get("codec_pipeline.path")))
            return await read(self, *arguments, **options)

        monkeypatch.setattr(pipeline, "read", noted)
    with xr.open_dataset(tmp_path / "a.zarr", engine="tensordict") as ds:
        np.testing.assert_array_equal(ds["x"][1:3], VALUES[1:3])
    assert set(used) == {("FusedCodecPipeline", PIPELINES[0])}


def coded(buffer: Any) -> Any:
    return None if buffer is None else buffer.from_bytes(bytes(byte ^ 0x5A for byte in buffer.to_bytes()))


def coding(base: Any) -> Any:
    """A store of somebody else, which stores other bytes than it gives."""

    class Coding(base):
        async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
            return coded(await super().get(key, prototype or default_buffer_prototype(), byte_range))

        async def set(self, key: str, value: Any, *arguments: Any) -> None:
            await super().set(key, coded(value))

    return Coding


@pytest.mark.parametrize("base", [MemoryStore, LocalStore])
@pytest.mark.parametrize("codecs", [{"compressors": None}, {}, {"shards": (4, 64)}], ids=["raw", "zstd", "shards"])
def test_stores_that_do_more_in_get_are_asked_with_it(tmp_path: Path, base: Any, codecs: Any) -> None:
    store = coding(base)(*([tmp_path] if base is LocalStore else []))
    array = zarr.create_group(store).create_array(
        "x", shape=(8, 64), chunks=(2, 64), dtype="f8", dimension_names=("t", "k"), **codecs
    )
    array[...] = VALUES
    with xr.open_dataset(store, engine="tensordict") as ds:
        np.testing.assert_array_equal(ds["x"], VALUES)
        np.testing.assert_array_equal(next(iter(ds.td.batches(8)))["x"], VALUES)


@pytest.mark.parametrize("whole", [False, True])
def test_chunks_in_shards_are_looked_at_too(tmp_path: Path, whole: bool) -> None:
    """The index of a shard is at its start, and right, so that nothing else shows that the end is missing."""
    blosc = BloscCodec(cname="lz4", shuffle="noshuffle")
    shards = ShardingCodec(chunk_shape=(2, 64), codecs=[BytesCodec(), blosc], index_location="start")
    group = zarr.create_group(tmp_path / "a.zarr")
    group.create_array("x", shape=(8, 64), chunks=(8, 64), dtype="f8", serializer=shards, compressors=None)[...] = (
        VALUES
    )
    shard = tmp_path / "a.zarr" / "x" / "c" / "0" / "0"
    shard.write_bytes(shard.read_bytes()[:-200])
    for source in (tmp_path / "a.zarr", pickle.dumps(xr.open_dataset(tmp_path / "a.zarr", engine="tensordict"))):
        ds = pickle.loads(source) if isinstance(source, bytes) else xr.open_dataset(source, engine="tensordict")
        with pytest.raises(OSError, match=r"'x'.*cut short"):
            ds["x"][slice(None) if whole else slice(6, 8)].load()
        np.testing.assert_array_equal(ds["x"][:6], VALUES[:6])


def test_an_empty_shard_is_an_error_and_a_missing_one_is_the_fill_value(tmp_path: Path) -> None:
    ds = xr.Dataset({"x": (("t", "k"), VALUES)})
    ds.td.to_zarr(tmp_path / "a.zarr", layout="xarray", chunks={"t": 1}, shards={"t": 2})
    files = sorted((tmp_path / "a.zarr" / "x" / "c").rglob("0"))
    files = [file for file in files if file.is_file()]
    files[0].write_bytes(b"")
    files[-1].unlink()
    with xr.open_dataset(tmp_path / "a.zarr", engine="tensordict") as found:
        assert np.isnan(found["x"][-2:]).all()
        for read in (lambda: found["x"][:2].load(), lambda: found["x"][0].load(), lambda: list(found.td.batches(4))):
            with pytest.raises(OSError, match="'x'"):
                read()
