"""What is private of zarr (codecs: :mod:`.zarr_codecs`): members one by one, arrays under other metadata, documents of metadata.

zarr's public interface opens a group as a whole or raises: one member that it cannot read hides all others.
"""

from __future__ import annotations

import asyncio
import bz2
import lzma
import math
import os
import stat
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numcodecs
import numpy as np
import zarr
from xarray.backends.zarr import DIMENSION_KEY
from zarr.abc.store import ByteRequest, Store
from zarr.core import codec_pipeline
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.group import GroupMetadata
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore, MemoryStore, StorePath, WrapperStore, ZipStore
from zarr.storage._common import make_store_path
from zarr.storage._local import _get

from ..core.model import is_url

PIPELINE = "codec_pipeline.path"
PIPELINE_CLASSES = ("BatchedCodecPipeline", "FusedCodecPipeline")
PIPELINES = [f"zarr.core.codec_pipeline.{name}" for name in PIPELINE_CLASSES if hasattr(codec_pipeline, name)]
"""What decodes chunks in zarr, the default, and, since 3.4, one that needs less processor time."""
IS_FASTER = len(PIPELINES) > 1
METADATA_KEYS = ("zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata")

T = TypeVar("T")
run = sync  # waits for a coroutine in the event loop of zarr


def await_requests() -> None:
    """Wait until the event loop of zarr has nothing to do: where one request of several fails, zarr raises at once."""

    async def others() -> None:
        if running := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(running, timeout=60)

    sync(others())


def layers_of(store: Any) -> list[Any]:
    """A store, and what it wraps, one behind the other."""
    found = [store]
    while isinstance(found[-1], WrapperStore):
        found.append(found[-1]._store)
    return found


def base_store(store: Any) -> Any:
    """The store behind all wrappers."""
    return layers_of(store)[-1]


def dictionary_of(store: MemoryStore) -> Any:
    """What a store in memory keeps its entries in."""
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
    except OSError:  # some servers do not name the condition that failed
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
    inner = array._async_array
    if shape is None:
        return array_like(inner, StorePath(store, array.path))
    metadata = array.metadata.update_shape(shape)
    return zarr.Array(zarr.AsyncArray(metadata=metadata, store_path=StorePath(store, array.path), config=inner.config))


def documents_of(array: zarr.Array[Any]) -> dict[str, bytes]:
    """The documents of an array as they are stored, by name."""
    documents = array.metadata.to_buffer_dict(default_buffer_prototype()).items()
    return {name: content.to_bytes() for name, content in documents}


def join(*parts: str) -> str:
    """The key of what is at a path below another."""
    return "/".join(part for part in parts if part)


def list_keys(store: Store, prefix: str = "") -> list[str]:
    """The keys in a store that begin with a prefix; it is opened first, where its owner has not."""

    async def found() -> list[str]:
        await store._ensure_open()
        return [key async for key in store.list_prefix(prefix)]

    return sync(found())


def list_members(nodes: Sequence[zarr.Group]) -> list[list[str]]:
    """The names of all members of some groups, which are asked at once."""
    found = [_entries(folder_of(node)) for node in nodes] if is_local(nodes[0]) else each_at_once(_listed, nodes)
    return [sorted(names.difference(METADATA_KEYS)) for names in found]


def _entries(folder: str) -> set[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return set(os.listdir(folder))
    return set()


async def _listed(node: zarr.Group) -> set[str]:
    store: Any = node.store
    if not isinstance(store, FsspecStore) or store.path:
        return {name async for name in store.list_dir(node.path)}
    # the root of a file system, as of zip::s3://...: zarr asks for "/next", which archives do not list
    try:
        return {name.rstrip("/").rpartition("/")[2] for name in await store.fs._ls(node.path, detail=False)}
    except FileNotFoundError:
        return set()


def codec_names(array: zarr.Array[Any]) -> list[str]:
    """What the chunks of an array are encoded with, by the names of numcodecs, innermost first."""
    metadata: Any = array.metadata
    if metadata.zarr_format == 2:
        codecs = (*(metadata.filters or ()), metadata.compressor)
        return [str(getattr(codec, "codec_id", "")) for codec in codecs if codec is not None]
    return [str(codec.to_dict().get("name", "")).removeprefix("numcodecs.") for codec in metadata.codecs]


def is_pipeline_chosen() -> bool:
    """Whether the user has set what decodes chunks."""
    return zarr.config.get(PIPELINE) not in PIPELINES


def read_together(arrays: Sequence[zarr.Array[Any]]) -> list[bytes | BaseException]:
    """The bytes of several small arrays, or what each raises; no chunk becomes larger than the array declares."""

    async def read(array: zarr.Array[Any]) -> bytes:
        return np.asarray(await on_store(array, _Bounded(array)).async_array.getitem(...)).tobytes()

    return tried_at_once(read, arrays)


class _Bounded(WrapperStore[Store]):
    """The store of an array, which refuses chunks that become too large, or whose size is not known before: shards, two compressors."""

    _supports_sync_io = False  # every read comes through `get`

    def __init__(self, array: zarr.Array[Any]) -> None:
        super().__init__(array.store)
        self._codecs = codec_names(array)
        self._most = math.prod(array.chunks) * array.dtype.itemsize
        found = [codec for codec in self._codecs if codec not in _NOT_COMPRESSED]
        if len(found) > 1 or not set(found) <= _BOUNDED.keys():
            raise ValueError(
                f"expected one of the compressors {sorted(_BOUNDED)} for what is read while a store is opened, found {found}"
            )

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        found = await super().get(key, prototype, byte_range)
        content = b"" if found is None else found.to_bytes()
        for codec in reversed(self._codecs if content else []):
            content = content[:-4] if codec == "crc32c" else content
            if codec == "blosc":
                check_blosc(content[:16], len(content))
            if codec in _BOUNDED:
                _check_decompressed(content, _BOUNDED[codec](), self._most)
        return found


def _check_decompressed(content: bytes, codec: Any, most: int) -> None:
    """Raise a ValueError where a chunk has more than `most` bytes, of which no more are made to find out."""
    if hasattr(codec, "decode"):
        codec.decode(content, out=bytearray(most))  # which raises where it is too small
    elif len(codec.decompress(content, most + 1)) > most:
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
"""Decompressors with a limit on their output: numcodecs into an output of that size, Python's own up to that size."""


def check_blosc(header: bytes, size: int) -> None:
    """Raise an OSError for a chunk of blosc that was cut short: blosc believes its header, and reads behind the end.

    Bytes 12 to 15 of the header hold the size of the whole (c-blosc, README_CHUNK_FORMAT).
    """
    whole = int.from_bytes(header[12:16], "little")
    if size < max(whole, 16):
        raise OSError(f"a chunk was cut short: expected {whole} bytes, found {size}")


def store_path(source: Any, storage_options: dict[str, Any] | None) -> StorePath:
    """The place that a source is, opened for reading."""
    return sync(make_store_path(source, mode="r", storage_options=storage_options))


def array_of(document: dict[str, Any], place: StorePath) -> zarr.AsyncArray[Any]:
    """An array from its document."""
    metadata: Any = document
    return zarr.AsyncArray(metadata=metadata, store_path=place)


def group_of(place: StorePath, attributes: dict[str, Any], zarr_format: Any) -> zarr.Group:
    """A group of these attributes; nothing is read."""
    return zarr.Group(zarr.AsyncGroup(GroupMetadata(attributes, zarr_format), store_path=place))


def array_like(array: zarr.AsyncArray[Any], path: StorePath, **metadata: Any) -> zarr.Array[Any]:
    """A copy of an array elsewhere or under other metadata, which is not parsed again: it must fit what there is."""
    copied, changed = copied_plainly(array), copied_plainly(array.metadata)
    for name, value in metadata.items():
        object.__setattr__(changed, name, value)
    object.__setattr__(copied, "metadata", changed)
    object.__setattr__(copied, "store_path", path)
    return zarr.Array(copied)


def copied_plainly(instance: T) -> T:
    """``copy.copy`` of an instance of a plain class takes five times as long."""
    new = object.__new__(type(instance))
    new.__dict__.update(instance.__dict__)
    return new


def with_dims(array: zarr.Array[Any], dims: tuple[str, ...]) -> zarr.Array[Any]:
    """The same array under other dimension names, one for each axis; nothing is written."""
    metadata: Any = array.metadata
    inner = array._async_array
    if metadata.zarr_format == 3:
        return array if metadata.dimension_names == dims else array_like(inner, inner.store_path, dimension_names=dims)
    if metadata.attributes.get(DIMENSION_KEY) == list(dims):
        return array
    return array_like(inner, inner.store_path, attributes={**metadata.attributes, DIMENSION_KEY: list(dims)})


def document_keys(store: Store) -> list[str] | None:
    """The keys of all documents of a store that is asked for all keys as fast as for those of one folder; None of any other."""
    if type(store) is MemoryStore:
        keys = list(store._store_dict)
    elif isinstance(store, ZipStore):
        keys = store._zf.namelist()
    else:
        return None
    return [key for key in keys if key.rpartition("/")[2] in METADATA_KEYS]


def is_remote(source: Any) -> bool:
    """Whether requests to the store take long: all but local files and memory."""
    if isinstance(source, (str, os.PathLike)):
        return is_url(os.fspath(source))
    if isinstance(source, StorePath):
        return is_remote(source.store)
    base = base_store(source)
    return isinstance(base, Store) and not isinstance(base, LocalStore | MemoryStore | ZipStore)


# -- documents of metadata ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Document:
    """The document of a group or an array.

    Attributes
    ----------
    file
        The name of its file.
    content
        The bytes, or what consolidated metadata hold in their place.
    attributes
        Those that v2 keeps in a file of their own, likewise; None where there are none.
    """

    file: str
    content: Any
    attributes: Any = None


Read: TypeAlias = Document | BaseException | None

_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_ALONE = 64
"""So many files are read one after the other, to see how late the disk answers."""
_LATE = 1e-4
"""Where these take more seconds than this, each, the others are read by several threads; from memory one takes 5e-6, and
threads as much more (measured: 500 files 2 ms, by threads 9 ms)."""
_READ = os.O_RDONLY | sum(getattr(os, flag, 0) for flag in ("O_CLOEXEC", "O_BINARY", "O_NONBLOCK"))
_THREADS = min(32, (os.cpu_count() or 1) + 4)


def is_local(node: Any) -> bool:
    """Whether a group or an array lies in files of this machine; a subclass of the store may read in a way of its own."""
    return type(node.store) in (LocalStore, LocalFiles)


def folder_of(node: Any) -> str:
    """The folder of a group or an array in local files."""
    return f"{node.store.root}{os.sep}{node.path}" if node.path else str(node.store.root)


def read_documents(places: Sequence[StorePath], zarr_format: int) -> list[Read]:
    """The documents of several groups or arrays of one store, read at once.

    Returns
    -------
    list
        None where there is no document, and where it cannot be read the exception.
    """
    if not places or not is_local(places[0]):
        return tried_at_once(partial(_requested, zarr_format), places)
    folders, read, begun = list(map(folder_of, places)), partial(_read, zarr_format), time.perf_counter()
    found = list(map(read, folders[:_ALONE]))
    if time.perf_counter() - begun <= _LATE * len(found):
        return [*found, *map(read, folders[_ALONE:])]
    with ThreadPoolExecutor(_THREADS) as threads:
        return [*found, *threads.map(read, folders[_ALONE:])]


async def _requested(zarr_format: int, place: StorePath) -> Document | None:
    async def content(file: str) -> bytes | None:
        return await get_bytes(place.store, join(place.path, file))

    if zarr_format == 3:
        found = await content("zarr.json")
        return None if found is None else Document("zarr.json", found)
    array, group, attributes = await asyncio.gather(*map(content, (".zarray", ".zgroup", ".zattrs")))
    if array is not None:
        return Document(".zarray", array, attributes)
    return None if group is None else Document(".zgroup", group, attributes)


def _read(zarr_format: int, folder: str) -> Read:
    try:
        for file in ("zarr.json",) if zarr_format == 3 else (".zarray", ".zgroup"):
            content = _bytes_of(f"{folder}/{file}")
            if content is not None:
                return Document(file, content, _bytes_of(f"{folder}/.zattrs") if zarr_format == 2 else None)
    except OSError as error:
        return error
    return None


def _bytes_of(path: str) -> bytes | None:
    try:
        fileno = os.open(path, _READ)  # a third of the time that Python's layers take
    except _ABSENT:
        return None
    try:
        size = _size(path, os.fstat(fileno))
        return os.read(fileno, size) if size else b""
    except IsADirectoryError:
        return None
    finally:
        os.close(fileno)


def _size(path: str, status: os.stat_result) -> int:
    """The size of a file; a pipe or a device of that name may never end."""
    if stat.S_ISREG(status.st_mode):
        return status.st_size
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(f"{path}: expected a file, found a folder")
    raise OSError(f"{path}: expected a file, found a pipe or a device")


class LocalFiles(LocalStore):
    """A ``LocalStore`` that waits for no pipe; zarr's own also reads a folder in the place of a chunk as one that is missing."""

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        return await asyncio.to_thread(self.get_sync, key, prototype=prototype, byte_range=byte_range)

    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        path = self.root / key
        try:
            _size(str(path), os.stat(path))
            return _get(path, prototype or default_buffer_prototype(), byte_range)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except IsADirectoryError:
            if path.name in METADATA_KEYS:
                return None
            raise


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
    for store in (store for store in list(_opened) if store._is_open):
        store._forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
