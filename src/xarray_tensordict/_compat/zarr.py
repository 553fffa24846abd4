"""What is private of zarr, in one module: members one by one, arrays under other metadata, documents of metadata.

zarr's public interface opens a group as a whole or raises: one member that it cannot read hides all others.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import zarr
from xarray.backends.zarr import DIMENSION_KEY
from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.group import GroupMetadata
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore, MemoryStore, StorePath, WrapperStore, ZipStore
from zarr.storage._common import make_store_path

from ..core.dtypes import CODE_DTYPES
from ..quiet import ZARR_SAYS, quiet

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
    found = _tried_at_once(function, items)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found


def _tried_at_once(function: Callable[[T], Coroutine[Any, Any, Any]], items: Sequence[T]) -> list[Any]:
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


def document(node: zarr.Group | zarr.Array[Any], name: str) -> Any:
    """A JSON document below a group; None where there is none."""
    buffer = sync(node.store.get(_below(node, name), default_buffer_prototype()))
    return None if buffer is None else json.loads(buffer.to_bytes())


def any_exists(node: zarr.Group, *names: str) -> bool:
    """Whether there is a file of one of these names below a group."""
    store: Any = node.store
    if type(store) is LocalStore:
        return any(os.path.isfile(os.path.join(store.root, _below(node, name))) for name in names)
    return any(sync(node.store.exists(_below(node, name))) for name in names)


def _below(node: zarr.Group | zarr.Array[Any], name: str) -> str:
    return f"{node.path}/{name}" if node.path else name


def holds_something(store: Store) -> bool:
    """Whether there is anything in a store; opened first, where its owner has not."""

    async def found() -> bool:
        await store._ensure_open()
        async for _ in store.list():
            return True
        return False

    return sync(found())


def group_from_zmetadata(source: Any, storage_options: dict[str, Any] | None) -> zarr.Group | None:
    """A group of zarr v2 from its consolidated metadata alone; None where there is none. One request, zarr makes four.

    Raises
    ------
    ValueError
        Where it cannot be read.
    """
    path = sync(make_store_path(source, mode="r", storage_options=storage_options))
    buffer = sync((path / ".zmetadata").get())
    if buffer is None or not path.store.supports_consolidated_metadata:
        return None
    metadata = json.loads(buffer.to_bytes())["metadata"]
    if ".zgroup" not in metadata:
        return None
    own = [
        default_buffer_prototype().buffer.from_bytes(json.dumps(metadata.get(name, {})).encode())
        for name in (".zgroup", ".zattrs")
    ]
    return zarr.Group(zarr.AsyncGroup._from_bytes_v2(path, own[0], own[1], buffer))


def list_members(nodes: Sequence[zarr.Group]) -> list[list[str]]:
    """The names of all members of some groups, which are asked at once."""
    return [sorted(names.difference(METADATA_KEYS)) for names in each_at_once(_listed, nodes)]


def open_each(places: Sequence[tuple[zarr.Group, str]]) -> list[Any]:
    """Open some members at once, each for itself: a group, an array, or the exception it raised."""

    async def opened(place: tuple[zarr.Group, str]) -> Any:
        node, name = place
        return await node._async_group.getitem(name)

    with quiet(*ZARR_SAYS):
        return [_as_sync(member) for member in _tried_at_once(opened, places)]


async def _listed(node: zarr.Group) -> set[str]:
    store: Any = node.store
    if not isinstance(store, FsspecStore) or store.path:
        return {name async for name in store.list_dir(node.path)}
    # the root of a file system, as of zip::s3://...: zarr asks for "/next", which archives do not list
    try:
        return {name.rstrip("/").rpartition("/")[2] for name in await store.fs._ls(node.path, detail=False)}
    except FileNotFoundError:
        return set()


def _as_sync(member: Any) -> Any:
    if isinstance(member, zarr.AsyncArray):
        return zarr.Array(member)
    return zarr.Group(member) if isinstance(member, zarr.AsyncGroup) else member


def read_together(arrays: Sequence[zarr.Array[Any]]) -> list[bytes | BaseException]:
    """The bytes of several small arrays, all requests at once; for each the exception that it raised, if any."""

    async def read(array: zarr.Array[Any]) -> bytes:
        return np.asarray(await array._async_array.getitem(...)).tobytes()

    return _tried_at_once(read, arrays)


def unpickles(array: zarr.Array[Any]) -> bool:
    """Whether a codec of the array loads pickles, which can run any code: numcodecs' own, under any name."""
    metadata: Any = array.metadata
    if metadata.zarr_format == 3:
        codecs = [codec.to_dict().get("name", "") for codec in metadata.codecs]
    else:
        codecs = [getattr(codec, "codec_id", "") for codec in (*(metadata.filters or ()), metadata.compressor)]
    return any("pickle" in str(codec) for codec in codecs)


class DocumentParser:
    """Groups and arrays from documents of metadata.

    Arrays of a store are often alike but for their attributes: those are parsed once, which takes longest.
    """

    def __init__(self) -> None:
        self._alike: dict[str, zarr.AsyncArray[Any]] = {}

    def node(
        self, parent: zarr.Group, name: str, document: dict[str, Any], attributes: dict[str, Any] | None
    ) -> zarr.Group | zarr.Array[Any]:
        """The member `name` of a group.

        Parameters
        ----------
        attributes
            Those that zarr v2 keeps in a document of their own.

        Raises
        ------
        ValueError
            Where the document is not that of a plain array or group of the format of its parent; zarr itself may still
            open it. What zarr raises for documents comes through.
        """
        zarr_format = parent.metadata.zarr_format
        path = StorePath(parent.store, _below(parent, name))
        rest = dict(document)
        own = rest.pop("attributes", {}) if zarr_format == 3 else attributes or {}
        kind = rest.get("node_type") if zarr_format == 3 else ("array" if "shape" in rest else "group")
        if rest.get("zarr_format") != zarr_format or type(own) is not dict:
            raise ValueError(f"{name!r} is no plain member")
        if kind == "array":
            alike = repr(rest)  # unlike equality, it tells 1, 1.0 and True apart
            if alike not in self._alike:
                plain: Any = {**rest, "attributes": {}}
                self._alike[alike] = zarr.AsyncArray(metadata=plain, store_path=path)
            return _changed(self._alike[alike], path, attributes=own)
        if kind != "group":
            raise ValueError(f"{name!r} is no plain member")
        return zarr.Group(zarr.AsyncGroup(GroupMetadata.from_dict({**rest, "attributes": own}), store_path=path))


def moved(node: zarr.Group | zarr.Array[Any], path: StorePath) -> zarr.Group | zarr.Array[Any]:
    """The same group or array in a store that shows the same files."""
    inner: Any = _copied(node._async_group if isinstance(node, zarr.Group) else node._async_array)
    object.__setattr__(inner, "store_path", path)
    return zarr.Group(inner) if isinstance(node, zarr.Group) else zarr.Array(inner)


def unwrapped(store: WrapperStore[Any]) -> Store:
    """The store that a wrapper asks."""
    inner: Store = store._store
    return inner


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


def nczarr_dims(node: zarr.Group, name: str, attrs: Mapping[str, Any]) -> list[str] | None:
    """NCZarr records fully qualified dims in ``.zarray``, newer versions in ``.zattrs``."""
    record = attrs.get("_nczarr_array")
    if record is None:
        record = (document(node, f"{name}/.zarray") or {}).get("_NCZARR_ARRAY")
    refs = (record or {}).get("dimrefs", (record or {}).get("dimension_references"))
    return None if refs is None else [ref.rsplit("/", 1)[-1] for ref in refs]


def implicit_group(node: zarr.Group, name: str) -> zarr.Group | None:
    """A group without a document of its own, as some writers leave them, that holds others; None where there is none."""
    store = node.store

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

    path = _below(node, name)
    if not sync(holds_a_node(path, _IMPLICIT_DEPTH)):
        return None
    metadata = GroupMetadata(attributes={}, zarr_format=node.metadata.zarr_format)
    return zarr.Group(zarr.AsyncGroup(metadata, store_path=StorePath(store, path)))


def root_as_codes(source: Any, storage_options: dict[str, Any] | None) -> tuple[zarr.Array[Any], str]:
    """The one array of a store, as :func:`open_as_codes` gives it."""
    path = sync(make_store_path(source, mode="r", storage_options=storage_options))
    return open_as_codes(path.store, path.path)


def open_again(store: Store, path: str, zarr_format: Any) -> tuple[zarr.Array[Any], str | None]:
    """An array as it is now; as :func:`open_as_codes` gives it where numpy lacks its dtype."""
    try:
        with quiet(*ZARR_SAYS):
            return zarr.open_array(store, path=path, zarr_format=zarr_format, mode="r"), None
    except ValueError:
        return open_as_codes(store, path)


def open_as_codes(store: Store, path: str) -> tuple[zarr.Array[Any], str]:
    """Open a v3 array of a dtype that numpy lacks as the integers of the same width; gives the dtype of torch, too.

    Raises
    ------
    KeyError
        Where there is no such array, or it is of another dtype.
    """
    place = StorePath(store, path)
    buffer = sync((place / "zarr.json").get())
    if buffer is None:
        raise KeyError(path)
    metadata = json.loads(buffer.to_bytes())
    declared = metadata["data_type"]
    torch_dtype = declared["name"] if isinstance(declared, dict) else declared
    code = CODE_DTYPES[torch_dtype]
    metadata["data_type"], metadata["fill_value"] = code, _fill_code(metadata.get("fill_value"), torch_dtype)
    return zarr.Array(zarr.AsyncArray(metadata=metadata, store_path=place)), torch_dtype


def _fill_code(fill: Any, torch_dtype: str) -> int:
    if isinstance(fill, str) and fill.startswith("0x"):
        return int(fill, 16)
    if fill is None or (fill == 0 and not np.signbit(fill)):
        return 0
    import torch

    value = torch.tensor(float(fill)).to(getattr(torch, torch_dtype))
    return int(value.view(torch.uint16 if value.element_size() == 2 else torch.uint8).item())


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
