"""What is private of zarr, in one module: members one by one, arrays under other metadata.

zarr's public interface opens a group as a whole or raises: one member that it cannot read hides all others.
"""

from __future__ import annotations

import asyncio
import bz2
import lzma
import math
import os
import threading
import weakref
import zlib
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

import numcodecs
import numpy as np
import zarr
from xarray.backends.zarr import DIMENSION_KEY
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.group import GroupMetadata
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore, MemoryStore, StorePath, WrapperStore, ZipStore
from zarr.storage._common import make_store_path

PIPELINE = "zarr.core.codec_pipeline.BatchedCodecPipeline"
"""What decodes chunks unless the user chooses something else."""
METADATA_KEYS = ("zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata")

_IMPLICIT_DEPTH = 2
"""How many folders without documents are looked through for one that has some."""

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Wait for a coroutine in the event loop of zarr."""
    return sync(coroutine)


def await_requests(seconds: float = 60) -> None:
    """Wait until the event loop of zarr has nothing to do: where one request of several fails, zarr raises at once."""

    async def others() -> None:
        running = asyncio.all_tasks() - {asyncio.current_task()}
        if running:
            await asyncio.wait(running, timeout=seconds)

    sync(others())


def base_store(store: Any) -> Any:
    """The store behind all wrappers."""
    while isinstance(store, WrapperStore):
        store = store._store
    return store


def dictionary_of(store: MemoryStore) -> Any:
    """The dictionary that a store in memory keeps its entries in."""
    return store._store_dict


def is_transactional(store: Any) -> bool:
    """Whether a store has transactions of its own, as those of sessions that are committed (Icechunk)."""
    return callable(getattr(getattr(base_store(store), "session", None), "commit", None))


async def get_bytes(store: Store, key: str) -> bytes | None:
    """One entry of a store; None where there is none."""
    buffer = await store.get(key, default_buffer_prototype())
    return None if buffer is None else buffer.to_bytes()


async def set_bytes(store: Store, key: str, content: bytes) -> None:
    """Set one entry of a store."""
    await store.set(key, default_buffer_prototype().buffer.from_bytes(content))


async def create_only(store: Store, key: str, content: bytes) -> None:
    """Set one entry of a store unless it is there; zarr's own store for fsspec looks first, and another may come between."""
    base = base_store(store)
    if not isinstance(base, FsspecStore):
        await store.set_if_not_exists(key, default_buffer_prototype().buffer.from_bytes(content))
        return
    try:
        await base.fs._pipe_file(f"{base.path}/{key}", content, mode="create")
    except (TypeError, NotImplementedError):  # this file system cannot
        await base.set_if_not_exists(key, default_buffer_prototype().buffer.from_bytes(content))
    except FileExistsError:
        return  # whether it is still there or was deleted meanwhile, this one was not set
    except OSError:  # servers that do not say which condition failed
        if await get_bytes(base, key) is None:
            raise


def each_at_once(function: Callable[[T], Coroutine[Any, Any, Any]], items: Sequence[T]) -> list[Any]:
    """What a function gives for each item, all requests at once; where one fails it raises when none is on its way any more."""
    found = tried_at_once(function, items)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found


def tried_at_once(function: Callable[[T], Coroutine[Any, Any, Any]], items: Sequence[T]) -> list[Any]:
    """What a function gives or raises for each item; as many at once as zarr itself asks for."""

    async def all_of_them() -> list[Any]:
        limit = asyncio.Semaphore(zarr.config.get("async.concurrency") or 64)

        async def one(item: T) -> Any:
            async with limit:
                return await function(item)

        return await asyncio.gather(*map(one, items), return_exceptions=True)

    return sync(all_of_them()) if items else []


def on_store(array: zarr.Array[Any], store: Store, shape: tuple[int, ...] | None = None) -> zarr.Array[Any]:
    """The same array with its chunks in a store, and perhaps of another shape; no document is written."""
    inner, metadata = array._async_array, array.metadata
    if shape is not None:
        metadata = metadata.update_shape(shape)
    return zarr.Array(zarr.AsyncArray(metadata=metadata, store_path=StorePath(store, array.path), config=inner.config))


def join(*parts: str) -> str:
    """The key of what is at a path below another."""
    return "/".join(part for part in parts if part)


def holds_something(store: Store) -> bool:
    """Whether there is anything in a store; opened first, where its owner has not."""

    async def found() -> bool:
        await store._ensure_open()
        async for _ in store.list():
            return True
        return False

    return sync(found())


def list_members(nodes: Sequence[zarr.Group]) -> list[list[str]]:
    """The names of all members of some groups, which are asked at once."""
    return [sorted(names.difference(METADATA_KEYS)) for names in each_at_once(_listed, nodes)]


async def _listed(node: zarr.Group) -> set[str]:
    store: Any = node.store
    if not isinstance(store, FsspecStore) or store.path:
        return {name async for name in store.list_dir(node.path)}
    # the root of a file system, as of zip::s3://...: zarr asks for "/next", which archives do not list
    try:
        return {name.rstrip("/").rpartition("/")[2] for name in await store.fs._ls(node.path, detail=False)}
    except FileNotFoundError:
        return set()


def read_together(arrays: Sequence[zarr.Array[Any]]) -> list[bytes | BaseException]:
    """The bytes of several small arrays, all requests at once; for each the exception that it raised, if any.

    No chunk is decoded to more than the array says that it has.
    """

    async def read(array: zarr.Array[Any]) -> bytes:
        bounded = on_store(
            array, _Bounded(array.store, _compressors(array), math.prod(array.chunks) * array.dtype.itemsize)
        )
        return np.asarray(await bounded._async_array.getitem(...)).tobytes()

    return tried_at_once(read, arrays)


class _Bounded(WrapperStore[Store]):
    """A store that refuses chunks of one array which are more than they should be when they are decompressed."""

    def __init__(self, store: Store, codecs: list[str], most: int) -> None:
        super().__init__(store)
        self._codecs, self._most = codecs, most

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        found = await self._store.get(key, prototype, byte_range)
        if found is not None:
            content = found.to_bytes()
            for codec in reversed(self._codecs):
                content = content[:-4] if codec == "crc32c" else content
                if codec in _BOUNDED:
                    _check_decompressed(content, codec, self._most)
        return found


def _compressors(array: zarr.Array[Any]) -> list[str]:
    """What the chunks of an array are compressed with, and their checksums, by the names of numcodecs, innermost first.

    Raises
    ------
    ValueError
        Where it cannot be told in advance how large they become: shards, several compressors, one that is not known here.
    """
    metadata: Any = array.metadata
    if metadata.zarr_format == 2:
        codecs = [codec.codec_id for codec in (*(metadata.filters or ()), metadata.compressor) if codec is not None]
    else:
        codecs = [each["name"].removeprefix("numcodecs.") for each in metadata.to_dict()["codecs"]]
    found = [codec for codec in codecs if codec not in _NOT_COMPRESSED]
    if len(found) > 1 or not set(found) <= _BOUNDED.keys():
        raise ValueError(
            f"expected one of the compressors {sorted(_BOUNDED)} for what is read while a store is opened, found {found}"
        )
    return codecs


def _check_decompressed(content: bytes, compressor: str, most: int) -> None:
    """Raise a ValueError where a chunk has more than `most` bytes, of which no more are made to find out."""
    make = _BOUNDED[compressor]
    if compressor in {"blosc", "lz4", "zstd"}:
        make().decode(content, out=bytearray(most))  # which raises where it is too small
    elif len(make().decompress(content, most + 1)) > most:
        raise ValueError(f"a chunk has more than the {most} bytes that the array has in one")


_NOT_COMPRESSED = frozenset({"bytes", "crc32c", "transpose", "vlen-utf8", "vlen-bytes"})
_BOUNDED: dict[str, Callable[[], Any]] = {
    "blosc": numcodecs.Blosc,
    "bz2": bz2.BZ2Decompressor,
    "gzip": partial(zlib.decompressobj, wbits=47),
    "lz4": numcodecs.LZ4,
    "lzma": lzma.LZMADecompressor,
    "zlib": partial(zlib.decompressobj, wbits=47),
    "zstd": numcodecs.Zstd,
}
"""What decompresses no more than it is told to: numcodecs into an output of that size, Python's own up to that size."""


def unpickles(array: zarr.Array[Any]) -> bool:
    """Whether a codec of the array loads pickles, which can run any code: numcodecs' own, under any name."""
    metadata: Any = array.metadata
    if metadata.zarr_format == 3:
        codecs = [codec.to_dict().get("name", "") for codec in metadata.codecs]
    else:
        codecs = [getattr(codec, "codec_id", "") for codec in (*(metadata.filters or ()), metadata.compressor)]
    return any("pickle" in str(codec) for codec in codecs)


def store_path(source: Any, storage_options: dict[str, Any] | None) -> StorePath:
    """The place that a source is, opened for reading."""
    return sync(make_store_path(source, mode="r", storage_options=storage_options))


def array_of(document: dict[str, Any], place: StorePath) -> zarr.AsyncArray[Any]:
    """An array from its document."""
    metadata: Any = document
    return zarr.AsyncArray(metadata=metadata, store_path=place)


def array_like(array: zarr.AsyncArray[Any], place: StorePath, attributes: dict[str, Any]) -> zarr.Array[Any]:
    """An array elsewhere that is like another but for its attributes."""
    return _changed(array, place, attributes=attributes)


def group_of(place: StorePath, attributes: dict[str, Any], zarr_format: Any) -> zarr.Group:
    """A group of these attributes; nothing is read."""
    return zarr.Group(zarr.AsyncGroup(GroupMetadata(attributes, zarr_format), store_path=place))


def _changed(array: zarr.AsyncArray[Any], path: StorePath, **metadata: Any) -> zarr.Array[Any]:
    """A copy of an array elsewhere or under other metadata, which is not parsed again: it must fit what there is."""
    copied, changed = _copied(array), _copied(array.metadata)
    for name, value in metadata.items():
        object.__setattr__(changed, name, value)
    object.__setattr__(copied, "metadata", changed)
    object.__setattr__(copied, "store_path", path)
    return zarr.Array(copied)


def _copied(instance: T) -> T:
    """``copy.copy`` of an instance of a plain class takes five times as long."""
    new = object.__new__(type(instance))
    new.__dict__.update(instance.__dict__)
    return new


def with_dims(array: zarr.Array[Any], dims: tuple[str, ...]) -> zarr.Array[Any]:
    """The same array under other dimension names, one for each axis; nothing is written."""
    metadata: Any = array.metadata
    inner = array._async_array
    if metadata.zarr_format == 3:
        return array if metadata.dimension_names == dims else _changed(inner, inner.store_path, dimension_names=dims)
    if metadata.attributes.get(DIMENSION_KEY) == list(dims):
        return array
    return _changed(inner, inner.store_path, attributes={**metadata.attributes, DIMENSION_KEY: list(dims)})


def holds_nodes(store: Store, path: str) -> bool:
    """Whether a folder without a document, as some writers leave them for groups, holds groups or arrays."""

    async def holds_a_node(path: str, depth: int) -> bool:
        try:
            children = [child async for child in store.list_dir(path)]
        except NotADirectoryError:  # fsspec lists a file as a folder that holds itself
            return False
        for child in children:
            inner = f"{path}/{child.rstrip('/')}"
            for document in ("zarr.json", ".zgroup", ".zarray"):
                if await store.exists(f"{inner}/{document}"):
                    return True
            if depth and await holds_a_node(inner, depth - 1):
                return True
        return False

    return sync(holds_a_node(path, _IMPLICIT_DEPTH))


def document_keys(store: Store) -> list[str] | None:
    """The keys of all documents of a store that is asked for all keys as fast as for those of one folder; None of any other."""
    if type(store) is MemoryStore:
        keys = list(store._store_dict)
    elif isinstance(store, ZipStore):
        keys = store._zf.namelist()
    else:
        return None
    return [key for key in keys if key.rpartition("/")[2] in METADATA_KEYS]


_LOCAL = (LocalStore, MemoryStore, ZipStore)


def is_remote(source: Any) -> bool:
    """Whether requests to the store take long: all but local files and memory."""
    if isinstance(source, (str, os.PathLike)):
        text = os.fspath(source)
        return "://" in text and not text.startswith("file://")
    if isinstance(source, StorePath):
        return is_remote(source.store)
    base = base_store(source)
    return isinstance(base, Store) and not isinstance(base, _LOCAL)


# -- zip archives ------------------------------------------------------------------------------------------------------

_opened: weakref.WeakSet[ForkSafeZipStore] = weakref.WeakSet()


class ForkSafeZipStore(ZipStore):
    """A ``ZipStore`` that opens its file anew in a process that was forked: zarr's own shares one position with its parent.

    Measured: four forked readers of one ``ZipStore`` raise ``BadZipFile`` for a third of their reads, since ``seek`` in one
    process moves the position that another is about to read from.
    """

    # two stores of one path are equal, but each has a file of its own
    __hash__ = object.__hash__

    def _sync_open(self) -> None:
        super()._sync_open()
        _opened.add(self)

    def _forget_parent(self) -> None:
        """Open again at the next read, with a lock that no thread of the parent holds."""
        self._is_open = False
        self._lock = threading.RLock()


def _after_fork() -> None:
    for store in list(_opened):
        if store._is_open:
            store._forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
