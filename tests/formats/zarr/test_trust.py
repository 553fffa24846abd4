"""Nothing in a zarr store is trusted: what is malformed is left out or refused by name, in every kind of store."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import fsspec
import numcodecs
import numpy as np
import obstore
import pytest
import xarray as xr
import zarr
from packaging.version import Version
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore, ObjectStore

import xarray_tensordict
from written import content
from xarray_tensordict.core import model
from xarray_tensordict.core.metadata import LARGEST
from xarray_tensordict.warnings import ZARR_SAYS, LeftOutWarning, quiet

FORMATS = pytest.mark.parametrize("zarr_format", [2, 3])
KINDS = ("folder", "zip", "memory", "fsspec", "obstore")
ALL_KINDS = pytest.mark.parametrize("kind", KINDS)
Files = dict[str, bytes]


def small_store(folder: Path, zarr_format: Any, **options: Any) -> Files:
    """A store of three arrays, as its files."""
    root = zarr.open_group(folder, mode="w", zarr_format=zarr_format)
    for name in ("obs", "act", "next/obs"):
        root.create_array(name, data=np.arange(64.0).reshape(16, 4), chunks=(8, 4), **options)
    return content(folder)


def placed(files: Files, kind: str, folder: Path) -> Any:
    """The same files in a store of another kind."""
    if kind == "memory":
        return MemoryStore(
            {key: default_buffer_prototype().buffer.from_bytes(content) for key, content in files.items()}
        )
    if kind == "fsspec":
        memory = fsspec.filesystem("memory")
        name = f"/{folder.name}.zarr"
        memory.rm(name, recursive=True) if memory.exists(name) else None
        for key, content in files.items():
            memory.pipe(f"{name}/{key}", content)
        return f"memory:/{name}"
    if kind == "obstore":
        store = obstore.store.MemoryStore()
        for key, content in files.items():
            obstore.put(store, key, content)
        return ObjectStore(store)
    if kind == "zip":
        with zipfile.ZipFile(folder / "placed.zip", "w") as archive:
            for key, content in files.items():
                archive.writestr(key, content)
        return folder / "placed.zip"
    for key, content in files.items():
        (folder / "placed.zarr" / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / "placed.zarr" / key).write_bytes(content)
    return folder / "placed.zarr"


def changed(files: Files, key: str, change: Callable[[dict[str, Any]], Any]) -> Files:
    """The same files with one JSON document changed; what the change returns takes its place."""
    document = json.loads(files.get(key, b"{}"))
    document = change(document) or document
    return {**files, key: json.dumps(document).encode()}


def names(source: Any) -> set[str]:
    return {str(name) for name in xr.open_dataset(source, engine="tensordict", nested=True).variables}


# -- names, depth, cycles ----------------------------------------------------------------------------------------------


@FORMATS
@pytest.mark.parametrize("kind", ["zip", "memory", "fsspec"])
@pytest.mark.parametrize("path", ["/abs", "/", "act//deep", "next//obs", "../out", "next/../obs"])
def test_a_member_without_a_name_is_left_out(tmp_path: Path, zarr_format: int, kind: str, path: str) -> None:
    files = small_store(tmp_path / "s", zarr_format)
    copies = {f"{path}/{key[4:]}": content for key, content in files.items() if key.startswith("obs/")}
    source = placed({**files, **copies}, kind, tmp_path)
    is_listed = not path.startswith("act")  # which is an array
    is_listed &= kind != "fsspec" or Version(zarr.__version__) < Version("3.4")
    with nullcontext() if not is_listed else pytest.warns(LeftOutWarning, match="which no name has"):
        assert names(source) == {"obs", "act", "next/obs"}
        tree = xr.open_datatree(source, engine="tensordict")
    assert {node.path for node in tree.subtree} == {"/", "/next"}


@FORMATS
@ALL_KINDS
def test_groups_that_are_nested_too_deeply_are_refused(tmp_path: Path, zarr_format: int, kind: str) -> None:
    files = small_store(tmp_path / "s", zarr_format)
    name = "zarr.json" if zarr_format == 3 else ".zgroup"
    deep = {f"{'/'.join('a' * depth)}/{name}": files[f"next/{name}"] for depth in range(1, 300)}
    source = placed({**files, **deep}, kind, tmp_path)
    for open_it in (xr.open_dataset, xr.open_datatree):
        with pytest.raises(ValueError, match=r"at most 32 levels of groups, found more.*group="):
            open_it(source, engine="tensordict")
    with pytest.raises(ValueError, match="at most 32 levels of groups"):
        xr.open_dataset(source, engine="tensordict", group="absent")
    assert xr.open_dataset(source, engine="tensordict", group="next")["obs"].shape == (16, 4)


@FORMATS
@ALL_KINDS
def test_a_store_of_too_many_members_is_refused(
    tmp_path: Path, zarr_format: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = placed(small_store(tmp_path / "s", zarr_format), kind, tmp_path)
    assert names(source) == {"obs", "act", "next/obs"}
    monkeypatch.setattr(model, "MOST_GROUPS", 2)
    with pytest.raises(ValueError, match="at most 2 groups, found more"):
        xr.open_dataset(source, engine="tensordict")


@FORMATS
def test_a_link_to_a_group_above_is_left_out(tmp_path: Path, zarr_format: int) -> None:
    small_store(tmp_path / "s", zarr_format)
    (tmp_path / "s" / "next" / "up").symlink_to(tmp_path / "s", target_is_directory=True)
    (tmp_path / "s" / "beside").symlink_to(tmp_path / "s" / "obs", target_is_directory=True)
    with pytest.warns(LeftOutWarning, match="'next/up': .*a link to a group that it is in"):
        assert names(tmp_path / "s") == {"obs", "act", "next/obs", "beside"}


@FORMATS
def test_a_pipe_in_the_place_of_a_document_is_left_out(tmp_path: Path, zarr_format: int) -> None:
    small_store(tmp_path / "s", zarr_format)
    document = tmp_path / "s" / "obs" / ("zarr.json" if zarr_format == 3 else ".zarray")
    document.unlink()
    os.mkfifo(document)
    with pytest.warns(LeftOutWarning, match="'obs': .*found a pipe or a device"):
        assert names(tmp_path / "s") == {"act", "next/obs"}


CHUNKS: dict[str, dict[str, Any]] = {
    "as they are": {"compressors": None},
    "compressed": {},
    "several codecs": {"filters": numcodecs.Delta("f8")},
    "shards": {"shards": (8, 4), "chunks": (4, 4)},
    "parts of rows": {"chunks": (8, 2)},
}
IN_PLACE = {"a pipe": os.mkfifo, "a folder": os.mkdir, "a device": lambda path: os.symlink("/dev/zero", path)}


@pytest.mark.parametrize("what", IN_PLACE)
@pytest.mark.parametrize("chunks", CHUNKS)
@FORMATS
def test_what_is_no_file_in_the_place_of_a_chunk_is_refused_and_not_waited_for(
    tmp_path: Path, zarr_format: Any, chunks: str, what: str
) -> None:
    if zarr_format == 2 and chunks == "shards":
        pytest.skip("v2 has no shards")
    if zarr_format == 3 and chunks == "several codecs":
        pytest.skip("v3 has filters of its own")
    options = {"chunks": (8, 4), **CHUNKS[chunks]}
    root = zarr.open_group(tmp_path / "s.zarr", mode="w", zarr_format=zarr_format)
    root.create_array("obs", data=np.arange(64.0).reshape(16, 4), **options)
    path = tmp_path / "s.zarr" / "obs" / ("1.0" if zarr_format == 2 else "c/1/0")
    path.unlink()
    IN_PLACE[what](path)
    found = "a folder" if what == "a folder" else "a pipe or a device"
    match = f"s.zarr, array 'obs': .*{path}: expected a file, found {found}"
    for source in (tmp_path / "s.zarr", zarr.storage.LocalStore(tmp_path / "s.zarr"), root):
        ds = xr.open_dataset(source, engine="tensordict", chunks=None)
        ptd = xarray_tensordict.open_persistent(source)
        begun = time.perf_counter()
        for read in (
            lambda ds=ds: ds.obs.values,
            lambda ds=ds: ds.obs[:, 1].values,
            lambda ptd=ptd: ptd[9].to_tensordict(),
        ):
            with pytest.raises(OSError, match=match):
                read()
        assert time.perf_counter() - begun < 1
        np.testing.assert_array_equal(ds.obs[:8], np.arange(32.0).reshape(8, 4))
        ptd.close()


@pytest.mark.parametrize("what", ["a pipe", "a folder"])
@FORMATS
def test_an_append_to_a_chunk_that_is_no_file_is_refused(tmp_path: Path, zarr_format: Any, what: str) -> None:
    ds = xr.Dataset({"obs": ("time", np.arange(5.0))})
    ds.td.to_zarr(tmp_path / "s.zarr", zarr_format=zarr_format, chunks={"time": 4})
    path = tmp_path / "s.zarr" / "obs" / ("1" if zarr_format == 2 else "c/1")
    path.unlink()
    IN_PLACE[what](path)
    with pytest.raises(OSError, match=r"obs.*expected a file, found a"):
        ds.td.to_zarr(tmp_path / "s.zarr", append_dim="time")


@FORMATS
def test_the_mark_of_a_killed_write_puts_back_documents_of_the_store_alone(tmp_path: Path, zarr_format: Any) -> None:
    small_store(tmp_path / "s", zarr_format)
    root = zarr.open_group(tmp_path / "s", mode="r+")
    for key in ("../outside/zarr.json", "obs/c/0/0", "/zarr.json"):
        root.attrs["__xarray_tensordict_commit__"] = {key: "{}"}
        with pytest.raises(ValueError, match="no document of a store"):
            xr.open_dataset(tmp_path / "s", engine="tensordict")
    root.attrs["__xarray_tensordict_commit__"] = ["zarr.json"]
    with pytest.raises(ValueError, match="s, __xarray_tensordict_commit__: Expected `object`, got `array`"):
        xr.open_dataset(tmp_path / "s", engine="tensordict")
    assert not (tmp_path / "outside").exists()


# -- documents ---------------------------------------------------------------------------------------------------------

DEEP = b"[" * 10_000 + b"]" * 10_000
ODD: dict[str, tuple[int, str, Any]] = {
    "a bool in a shape": (0, "shape", [True, 4]),
    "a text for a shape": (0, "shape", "16"),
    "a negative size": (0, "shape", [-16, 4]),
    "a size of thirty digits": (0, "shape", [10**30, 4]),
    "no shape": (0, "shape", None),
    "a bool for a chunk": (2, "chunks", [True, 4]),
    "chunks of another rank": (2, "chunks", [8]),
    "a number for a dtype": (2, "dtype", 8),
    "an unknown dtype": (2, "dtype", "<q9"),
    "a list for a compressor": (2, "compressor", ["zstd"]),
    "an unknown compressor": (2, "compressor", {"id": "pcodec"}),
    "a setting of another type": (2, "compressor", {"id": "blosc", "shuffle": ""}),
    "an order of lists": (2, "order", ["C"]),
    "a chunk grid of bools": (3, "chunk_grid", {"name": "regular", "configuration": {"chunk_shape": [True, 4]}}),
    "a list for a data type": (3, "data_type", ["float64"]),
    "an unknown data type": (3, "data_type", "float4096"),
    "numbers for codecs": (3, "codecs", [1, 2]),
    "an unknown codec": (3, "codecs", [{"name": "bytes"}, {"name": "pcodec"}]),
    "no chunk key encoding": (3, "chunk_key_encoding", None),
    "numbers for dimension names": (3, "dimension_names", [1, 2]),
    "a text for dimension names": (3, "dimension_names", "xy"),
    "a list for attributes": (3, "attributes", ["a"]),
    "a text for attributes": (3, "attributes", "abc"),
}
CASES = [
    pytest.param(zarr_format, member, value, id=f"v{zarr_format} {title}")
    for title, (only, member, value) in ODD.items()
    for zarr_format in ((only,) if only else (2, 3))
]


def _with(member: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda found: {name: v for name, v in {**found, member: value}.items() if v is not None}


@pytest.mark.parametrize(("zarr_format", "member", "value"), CASES)
@pytest.mark.parametrize("kind", ["folder", "fsspec", "consolidated"])
def test_an_array_with_an_odd_document_is_left_out(
    tmp_path: Path, zarr_format: int, member: str, value: Any, kind: str
) -> None:
    files = small_store(tmp_path / "s", zarr_format)
    key = "obs/zarr.json" if zarr_format == 3 else "obs/.zarray"
    files = changed(files, key, _with(member, value))
    source = placed(_consolidated(files, zarr_format) if kind == "consolidated" else files, kind, tmp_path)
    keywords = {"consolidated": True} if kind == "consolidated" else {}
    with pytest.warns(LeftOutWarning, match=r"left out 'obs': its metadata cannot be read"):
        ds = xr.open_dataset(source, engine="tensordict", **keywords)
    assert set(ds.variables) == {"act", "next/obs"}


def _consolidated(files: Files, zarr_format: int) -> Files:
    documents = {key: json.loads(content) for key, content in files.items() if key.endswith((".json", "y", "p", "s"))}
    if zarr_format == 2:
        return {**files, ".zmetadata": json.dumps({"metadata": documents, "zarr_consolidated_format": 1}).encode()}
    listed = {key.removesuffix("/zarr.json"): value for key, value in documents.items() if "/" in key}
    return changed(files, "zarr.json", _with("consolidated_metadata", {"kind": "inline", "metadata": listed}))


@pytest.mark.parametrize("value", [["a"], "abc", {"_ARRAY_DIMENSIONS": [1, 2]}, {"_ARRAY_DIMENSIONS": "ab"}])
@ALL_KINDS
def test_an_array_of_v2_with_odd_attributes_is_left_out(tmp_path: Path, kind: str, value: Any) -> None:
    files = changed(small_store(tmp_path / "s", 2), "obs/.zattrs", lambda found: value)
    with pytest.warns(LeftOutWarning, match="left out 'obs': its metadata cannot be read"):
        assert names(placed(files, kind, tmp_path)) == {"act", "next/obs"}


def test_the_document_of_an_array_that_is_that_of_a_group_is_no_group(tmp_path: Path) -> None:
    files = small_store(tmp_path / "s", 2)
    with pytest.warns(LeftOutWarning, match="left out 'obs': .*missing required field"):
        assert names(placed({**files, "obs/.zarray": files[".zgroup"]}, "folder", tmp_path)) == {"act", "next/obs"}


@FORMATS
@ALL_KINDS
def test_json_that_is_nested_without_end_is_left_out(tmp_path: Path, zarr_format: int, kind: str) -> None:
    files = small_store(tmp_path / "s", zarr_format)
    files["obs/zarr.json" if zarr_format == 3 else "obs/.zattrs"] = b'{"a": ' + DEEP + b"}"
    with pytest.warns(LeftOutWarning, match="left out 'obs': .*nested too deeply"):
        assert names(placed(files, kind, tmp_path)) == {"act", "next/obs"}


@FORMATS
@pytest.mark.parametrize("content", [b"", b"[]", b'"a"', b"3", b"\xff", DEEP, b'{"zarr_format": 7, "node_type": 3}'])
@pytest.mark.parametrize("kind", ["folder", "zip", "memory", "fsspec"])
def test_an_odd_root_is_one_error_that_names_store_and_document(
    tmp_path: Path, zarr_format: int, content: bytes, kind: str
) -> None:
    key = "zarr.json" if zarr_format == 3 else ".zgroup"
    source = placed({**small_store(tmp_path / "s", zarr_format), key: content}, kind, tmp_path)
    name = "<MemoryStore>" if kind == "memory" else str(source)
    for open_it in (xr.open_dataset, xr.open_datatree, xarray_tensordict.open_persistent):
        keywords = {} if open_it is xarray_tensordict.open_persistent else {"engine": "tensordict"}
        with pytest.raises(ValueError, match=rf"{name}.*{key}"):
            open_it(source, **keywords)


@FORMATS
def test_an_array_larger_than_memory_opens_and_reading_it_is_an_error_that_names_it(
    tmp_path: Path, zarr_format: Any
) -> None:
    root = zarr.open_group(tmp_path / "large.zarr", mode="w", zarr_format=zarr_format)
    root.create_array("obs", shape=(10**15,), chunks=(10**9,), dtype="f8")
    root.create_array("obs2", shape=(10**15, 2), chunks=(10**15, 2), dtype="f8")
    ds = xr.open_dataset(tmp_path / "large.zarr", engine="tensordict")
    assert ds["obs"].shape == (10**15,)
    for name in ("obs", "obs2"):
        with pytest.raises((OSError, ValueError), match=rf"large\.zarr.*{name}"):
            ds[name].load()


@FORMATS
@pytest.mark.parametrize("name", ["standard_name", "axis", "units", "positive", "coordinates", "bounds"])
def test_an_attribute_of_cf_that_is_no_text_has_no_meaning(tmp_path: Path, zarr_format: Any, name: str) -> None:
    small_store(tmp_path / "s", zarr_format)
    array = zarr.open_group(tmp_path / "s", mode="r+")["obs"]
    for value in (["air"], {"a": 1}, 3):
        array.attrs[name] = value
        ds = xr.open_dataset(tmp_path / "s", engine="tensordict", decode_cf=False)
        assert ds["obs"].attrs == {name: value}
        assert ds.td.to_tensordict()["obs"].shape == (16, 4)


# -- what is read while a store is opened ------------------------------------------------------------------------------


@FORMATS
@pytest.mark.parametrize("size", [1000, 8 * LARGEST])
def test_a_json_entry_that_inflates_is_left_out_before_it_is_decoded(
    tmp_path: Path, zarr_format: Any, size: int
) -> None:
    small_store(tmp_path / "s", zarr_format)
    root = zarr.open_group(tmp_path / "s", mode="r+")
    attributes = {"__tensordict_non_tensor__": {"encoding": "json"}}
    root.create_array("note", shape=(size,), chunks=(8 * LARGEST,), dtype="u1", attributes=attributes)
    with pytest.warns(LeftOutWarning, match="left out 'note': .*may have 64 MiB"):
        assert names(tmp_path / "s") == {"obs", "act", "next/obs"}


NOTE = {"__tensordict_non_tensor__": {"encoding": "json"}}
LARGE = b"1" * (1 << 24)
V3 = {"zstd": zarr.codecs.ZstdCodec(), "gzip": zarr.codecs.GzipCodec(), "blosc": zarr.codecs.BloscCodec()}
INFLATING = [*((3, name) for name in V3), *((2, name) for name in ("lz4", "zlib", "bz2", "lzma"))]


def note(folder: Path, zarr_format: int, compressors: Any) -> None:
    small_store(folder, zarr_format)
    content = np.frombuffer(b'["a", "b"]', "u1")
    zarr.open_group(folder, mode="r+").create_array("note", data=content, compressors=compressors, attributes=NOTE)


@pytest.mark.parametrize(("zarr_format", "name"), INFLATING)
def test_a_json_entry_is_not_decompressed_to_more_than_its_chunk(tmp_path: Path, zarr_format: int, name: str) -> None:
    codec = numcodecs.get_codec({"id": name})
    note(tmp_path / "s", zarr_format, V3[name] if zarr_format == 3 else codec)
    assert xr.open_dataset(tmp_path / "s", engine="tensordict")["note"].values.item() == ["a", "b"]
    (tmp_path / "s" / "note" / ("c/0" if zarr_format == 3 else "0")).write_bytes(codec.encode(LARGE))
    tracemalloc.start()
    with pytest.warns(LeftOutWarning, match="left out 'note'"):
        assert names(tmp_path / "s") == {"obs", "act", "next/obs"}
    assert tracemalloc.get_traced_memory()[1] < len(LARGE) * 3 / 4
    tracemalloc.stop()


def test_a_json_entry_with_a_checksum_or_without_compression_is_read_and_one_compressed_twice_is_not(
    tmp_path: Path,
) -> None:
    crc = zarr.codecs.Crc32cCodec()
    for name, compressors in {"zstd": [V3["zstd"], crc], "crc32c": [crc], "none": None}.items():
        note(tmp_path / name, 3, compressors)
        assert xr.open_dataset(tmp_path / name, engine="tensordict")["note"].values.item() == ["a", "b"]
    note(tmp_path / "s", 3, [V3["gzip"], V3["zstd"]])
    with pytest.warns(LeftOutWarning, match=r"'note': .*one of the compressors .*found \['gzip', 'zstd'\]"):
        assert names(tmp_path / "s") == {"obs", "act", "next/obs"}


# -- damage ------------------------------------------------------------------------------------------------------------

COMPRESSORS: dict[str, tuple[int, Any]] = {
    "zstd": (3, zarr.codecs.ZstdCodec()),
    "gzip": (3, zarr.codecs.GzipCodec()),
    "blosc": (3, zarr.codecs.BloscCodec()),
    "crc32c": (3, zarr.codecs.Crc32cCodec()),
    "none": (3, None),
    **{f"v2 {name}": (2, numcodecs.get_codec({"id": name})) for name in ("zstd", "lz4", "zlib", "bz2")},
}
WAYS: dict[str, Callable[[Any], Any]] = {
    "load": lambda source: xr.open_dataset(source, engine="tensordict").load(),
    "to_tensordict": lambda source: xr.open_dataset(source, engine="tensordict").td.to_tensordict(),
    "dask": lambda source: xr.open_dataset(source, engine="tensordict", chunks={}).compute(scheduler="synchronous"),
    "batches": lambda source: list(xr.open_dataset(source, engine="tensordict").td.batches(4)),
    "ptd[i]": lambda source: xarray_tensordict.open_persistent(source)[[3, 1]],
    "ptd to_tensordict": lambda source: xarray_tensordict.open_persistent(source).to_tensordict(),
}


def _flipped(files: Files, place: int) -> Files:
    shard = bytearray(files["obs/c/0/0"])
    shard[place] ^= 0xFF
    return {**files, "obs/c/0/0": bytes(shard)}


def _damaged_archive(source: Path) -> None:
    content = source.read_bytes()
    with zipfile.ZipFile(source) as archive:
        start = archive.getinfo("obs/c/0/0").header_offset + 60
    source.write_bytes(content[:start] + bytes(8) + content[start + 8 :])


def assert_named(way: str, source: Any, *words: str) -> None:
    with pytest.raises((OSError, ValueError)) as found:
        WAYS[way](source)
    said = " ".join([str(found.value), *getattr(found.value, "__notes__", ())])
    assert all(word in said for word in (str(source), *words)), said


@pytest.mark.parametrize(
    ("codec", "kind", "way"),
    [(codec, "folder", way) for codec in COMPRESSORS for way in WAYS]
    + [(codec, kind, way) for codec in ("zstd", "v2 zlib") for kind in ("zip", "fsspec") for way in WAYS],
)
def test_a_chunk_that_was_cut_is_an_error_that_names_store_and_array(
    tmp_path: Path, codec: str, kind: str, way: str
) -> None:
    zarr_format, compressor = COMPRESSORS[codec]
    files = small_store(tmp_path / "s", zarr_format, compressors=compressor)
    key = "obs/c/0/0" if zarr_format == 3 else "obs/0.0"
    assert_named(way, placed({**files, key: files[key][:-20]}, kind, tmp_path), "obs")


@pytest.mark.parametrize("way", WAYS)
def test_damage_of_a_shard_an_archive_or_a_text_is_an_error_that_names_store_and_array(
    tmp_path: Path, way: str
) -> None:
    sharded = small_store(tmp_path / "sharded", 3, shards=(16, 4))
    for place in (0, -9, -2):
        assert_named(way, placed(_flipped(sharded, place), "folder", tmp_path), "'obs'")
    archive = placed(small_store(tmp_path / "s", 3), "zip", tmp_path)
    _damaged_archive(archive)
    assert_named(way, archive, "'obs'")
    archive.write_bytes(archive.read_bytes()[:-100])
    assert_named(way, archive, "the zip archive cannot be read")
    for zarr_format in (2, 3):
        folder = tmp_path / f"no code point {zarr_format}"
        small_store(folder, zarr_format)
        with quiet(*ZARR_SAYS):
            word = {"data": np.array(["ab"] * 16, "<U2"), "chunks": (16,), "compressors": None}
            zarr.open_group(folder, mode="r+").create_array("word", **word)
        chunk = folder / "word" / ("c/0" if zarr_format == 3 else "0")
        chunk.write_bytes(b"\xff" * len(chunk.read_bytes()))
        assert_named(way, folder, "word")


# -- a root that is one array ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zarr_format", "member", "value", "named"),
    [
        (2, "compressor", {"id": "pcodec", "level": 8}, "pcodec"),
        (2, "filters", [{"id": "fpzip"}], "fpzip"),
        (2, "dtype", "<q9", "<q9"),
        (3, "codecs", [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "pcodec"}], "pcodec"),
        (3, "data_type", "float4096", "float4096"),
        (3, "data_type", {"name": "numpy.odd", "configuration": {}}, r"numpy\.odd"),
        (3, "chunk_key_encoding", None, "chunk_key_encoding"),
    ],
)
@ALL_KINDS
def test_what_is_unknown_of_the_one_array_of_a_store_is_named(
    tmp_path: Path, zarr_format: Any, member: str, value: Any, named: str, kind: str
) -> None:
    zarr.create_array(tmp_path / "a.zarr", data=np.arange(4.0), zarr_format=zarr_format)
    document = "zarr.json" if zarr_format == 3 else ".zarray"
    source = placed(changed(content(tmp_path / "a.zarr"), document, _with(member, value)), kind, tmp_path)
    with pytest.raises(ValueError, match=rf"the array cannot be read .*{named}"):
        xr.open_dataset(source, engine="tensordict")
