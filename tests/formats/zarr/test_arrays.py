"""Compressed chunks that are decoded without zarr hold what zarr reads, and where they do not zarr is asked."""

from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raw_samples import index_for, raw_behind
from xarray_tensordict import open_persistent
from xarray_tensordict.formats.raw.arrays import RawArray
from xarray_tensordict.formats.zarr.arrays import EncodedChunks, _decoded_size, decoder_of

V3 = {
    "zstd": zarr.codecs.ZstdCodec(level=3),
    "zstd, checked": zarr.codecs.ZstdCodec(checksum=True),
    "blosc": zarr.codecs.BloscCodec(cname="lz4", shuffle="bitshuffle", typesize=4),
    "gzip": zarr.codecs.GzipCodec(level=2),
}
V2 = {
    "zstd": numcodecs.Zstd(),
    "blosc": numcodecs.Blosc(),
    "gzip": numcodecs.GZip(),
    "zlib": numcodecs.Zlib(),
    "lz4": numcodecs.LZ4(),
    "bz2": numcodecs.BZ2(),
    "lzma": numcodecs.LZMA(),
}
CODECS = [*((3, codec) for codec in V3.values()), *((2, codec) for codec in V2.values())]
NAMES = [*(f"v3 {name}" for name in V3), *(f"v2 {name}" for name in V2)]


def write(path: Path, array: np.ndarray[Any, Any], chunks: Any, zarr_format: int, codec: Any, **options: Any) -> Any:
    group = zarr.create_group(str(path), zarr_format=zarr_format)
    stored = group.create_array(
        "x",
        shape=array.shape,
        chunks=chunks,
        dtype=array.dtype,
        compressors=codec,
        fill_value=0 if array.dtype == bool else 7,
        **options,
    )
    stored[...] = array
    return stored


def chunk_file(array: Any, *number: int) -> Path:
    return Path(str(array.store.root), "x", array.metadata.encode_chunk_key(number))


@pytest.fixture
def no_library(monkeypatch):
    """Reading through zarr fails."""

    def refuse(self, key, reason):
        raise AssertionError(f"read through the library: {reason}")

    monkeypatch.setattr(RawArray, "_through_library", refuse)


@pytest.mark.parametrize(("zarr_format", "codec"), CODECS, ids=NAMES)
@pytest.mark.parametrize("dtype", ["f4", "i2", "?", "c8", "u1"])
def test_chunks_of_each_codec_are_decoded_without_zarr(zarr_format, codec, dtype, tmp_path, no_library):
    array = np.random.default_rng(0).integers(0, 100, (12, 3, 4)).astype(dtype)
    write(tmp_path / "s", array, (5, 3, 4), zarr_format, codec)
    with open_persistent(tmp_path / "s") as ptd, xr.open_dataset(tmp_path / "s", engine="tensordict") as ds:
        np.testing.assert_array_equal(ds["x"].values, array)
        np.testing.assert_array_equal(ptd["x"].numpy(), array)
        np.testing.assert_array_equal(ptd.get_at("x", [11, 0, 4, 4]).numpy(), array[[11, 0, 4, 4]])
        np.testing.assert_array_equal(ds["x"][3:11:2].values, array[3:11:2])
        np.testing.assert_array_equal(ds["x"][7].values, array[7])


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_grid_of_chunks_holds_what_zarr_reads(data, tmp_path_factory):
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    chunks = tuple(data.draw(st.integers(1, size + 2)) for size in shape)
    if data.draw(st.booleans()):
        chunks = (chunks[0], *shape[1:])  # whole rows
    zarr_format, codec = data.draw(st.sampled_from(CODECS))
    array = np.random.default_rng(0).integers(0, 100, shape).astype(data.draw(st.sampled_from(["f4", "i2"])))
    path = tmp_path_factory.mktemp("grid") / "s"
    stored = write(path, array, chunks, zarr_format, codec)
    for number in np.ndindex(*(-(-size // step) for size, step in zip(shape, chunks, strict=True))):
        if not data.draw(st.integers(0, 3)):
            chunk_file(stored, *number).unlink(missing_ok=True)
    expected = np.asarray(stored[...])
    index = data.draw(index_for(shape[0]))
    with open_persistent(path, batch_dims=1) as ptd, xr.open_dataset(path, engine="tensordict") as ds:
        np.testing.assert_array_equal(ptd["x"].numpy(), expected)
        torch.testing.assert_close(ptd.get_at("x", index), torch.from_numpy(expected)[index], rtol=0, atol=0)
        parts = tuple(slice(data.draw(st.integers(0, size - 1)), None, 2) for size in shape)
        np.testing.assert_array_equal(ds["x"][parts].values, expected[parts])


@pytest.mark.parametrize(("zarr_format", "codec"), CODECS, ids=NAMES)
@pytest.mark.parametrize(("rows", "cut"), [(1, None), (3, None), *((2, cut) for cut in (0, 3, 20, 500, -1))])
def test_a_chunk_that_was_cut_or_decodes_to_another_size_is_an_error_that_names_it(
    zarr_format, codec, rows, cut, tmp_path
):
    array = np.random.default_rng(0).random((4, 300)).astype("f4")
    stored = write(tmp_path / "s", array, (2, 300), zarr_format, codec)
    other = write(tmp_path / "other", array[:rows], (rows, 300), zarr_format, codec)
    chunk_file(stored, 1, 0).write_bytes(chunk_file(other, 0, 0).read_bytes()[:cut])
    with open_persistent(tmp_path / "s") as ptd:
        np.testing.assert_array_equal(ptd.get_at("x", [1, 0]).numpy(), array[[1, 0]])
        for index in (slice(None), [2, 0], 3):
            with pytest.raises(OSError, match=r"s/x/\S*"):
                ptd.get_at("x", index)


@pytest.mark.parametrize("size", [0, 1, 5, 200, 255, 256, 257, 70_000, 2**24])
def test_zstd_and_lz4_tell_the_size_that_they_decode_to(size):
    content = np.random.default_rng(0).integers(0, 3, size, dtype="u1").tobytes()
    for codec in (numcodecs.Zstd(), numcodecs.Zstd(checksum=True), numcodecs.LZ4()):
        encoded = bytes(codec.encode(content)) if size or codec.codec_id == "zstd" else b""
        assert _decoded_size(codec, encoded) in ((size,) if size > 9 else (size, None))
    assert _decoded_size(numcodecs.GZip(), numcodecs.GZip().encode(content)) is None


def test_what_takes_more_than_one_codec_or_is_not_whole_rows_is_left_to_zarr(tmp_path):
    array = np.random.default_rng(0).random((12, 3, 4)).astype("f4")
    options = {
        "rows": {},
        "columns": {"chunks": (12, 1, 4)},
        "two codecs": {"compressors": [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]},
        "sharded": {"chunks": (3, 3, 4), "shards": (12, 3, 4)},
        "transposed": {"filters": [zarr.codecs.TransposeCodec(order=(2, 1, 0))]},
        "big": {"serializer": zarr.codecs.BytesCodec(endian="big")},
    }
    group = zarr.create_group(str(tmp_path / "s"))
    for name, own in options.items():
        group.create_array(name, shape=array.shape, dtype="f4", **{"chunks": (4, 3, 4), **own})[...] = array
    with xr.open_dataset(tmp_path / "s", engine="tensordict") as ds:
        for name in options.keys() - {"rows"}:
            with pytest.raises(AttributeError):
                raw_behind(ds, name)  # before its values are in memory
            np.testing.assert_array_equal(ds[name].values, array)
        raw_behind(ds, "rows")


def test_each_chunk_is_read_once_and_no_other(tmp_path, monkeypatch):
    array = np.random.default_rng(0).random((40, 3)).astype("f4")
    write(tmp_path / "s", array, (8, 3), 3, zarr.codecs.ZstdCodec())
    decoded = []
    original = EncodedChunks._decoded
    with open_persistent(tmp_path / "s") as ptd:
        monkeypatch.setattr(
            EncodedChunks, "_decoded", lambda self, n, *out: decoded.append(n) or original(self, n, *out)
        )
        rows = [39, 0, 1, 17, 0, 38]
        np.testing.assert_array_equal(ptd.get_at("x", rows).numpy(), array[rows])
    assert sorted(decoded) == [0, 2, 4]


def test_a_codec_pipeline_of_the_users_choice_is_used():
    assert decoder_of(zarr.codecs.ZstdCodec()) is not None
    with zarr.config.set({"codec_pipeline.path": "somewhere.Else"}):
        assert decoder_of(zarr.codecs.ZstdCodec()) is None


@pytest.mark.parametrize("chunks", [5, 12])
def test_batches_of_compressed_chunks_come_in_blocks_of_chunks(chunks, tmp_path):
    array = np.arange(36, dtype="f4").reshape(12, 3)
    write(tmp_path / "s", array, (chunks, 3), 3, zarr.codecs.ZstdCodec())
    with xr.open_dataset(tmp_path / "s", engine="tensordict") as ds:
        for shuffle in (False, True, "full"):
            found = torch.cat([batch["x"] for batch in ds.td.batches(4, shuffle=shuffle, seed=0)]).numpy()
            np.testing.assert_array_equal(found[np.argsort(found[:, 0])], array)
        assert ds.variables["x"].encoding["preferred_chunks"][ds["x"].dims[0]] == chunks
