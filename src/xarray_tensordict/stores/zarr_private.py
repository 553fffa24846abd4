"""What is private of zarr, in one module: members one by one, arrays under other metadata, documents of metadata.

zarr's public interface opens a group as a whole or raises: one member that it cannot read hides all others.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import warnings
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import zarr
from xarray.backends.zarr import DIMENSION_KEY
from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import FsspecStore, StorePath
from zarr.storage._common import make_store_path

from .array_wrappers import FLOAT_CODES

_METADATA_KEYS = ("zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata")

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Wait for a coroutine in the event loop of zarr."""
    return sync(coroutine)


def document(node: zarr.Group, name: str) -> Any:
    """A JSON document below a group; None where there is none."""
    buffer = sync(node.store.get(_below(node, name), default_buffer_prototype()))
    return None if buffer is None else json.loads(buffer.to_bytes())


def any_exists(node: zarr.Group, *names: str) -> bool:
    """Whether there is a file of one of these names below a group."""
    return any(sync(node.store.exists(_below(node, name))) for name in names)


def _below(node: zarr.Group, name: str) -> str:
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


def open_members(nodes: Sequence[zarr.Group]) -> list[list[tuple[str, Any]]]:
    """Open all members of some groups at once, each for itself: by name a group, an array, or the exception it raised."""
    return [[(name, _as_sync(member)) for name, member in members] for members in sync(_open_members(nodes))]


async def _listed(node: zarr.Group) -> set[str]:
    store: Any = node.store
    if not isinstance(store, FsspecStore) or store.path:
        return {name async for name in store.list_dir(node.path)}
    # the root of a file system, as of zip::s3://...: zarr asks for "/next", which archives do not list
    try:
        return {name.rstrip("/").rpartition("/")[2] for name in await store.fs._ls(node.path, detail=False)}
    except FileNotFoundError:
        return set()


async def _open_members(nodes: Sequence[zarr.Group]) -> list[list[tuple[str, Any]]]:
    limit = asyncio.Semaphore(zarr.config.get("async.concurrency") or 64)

    async def names_in(node: zarr.Group) -> list[str]:
        async with limit:
            return sorted((await _listed(node)).difference(_METADATA_KEYS))

    async def opened(node: zarr.Group, name: str) -> Any:
        async with limit:
            return await node._async_group.getitem(name)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # dtypes that have no v3 specification yet
        names = await asyncio.gather(*map(names_in, nodes))
        places = [(node, name) for node, inside in zip(nodes, names, strict=True) for name in inside]
        found = iter(await asyncio.gather(*(opened(*place) for place in places), return_exceptions=True))
    return [[(name, next(found)) for name in inside] for inside in names]


def _as_sync(member: Any) -> Any:
    if isinstance(member, zarr.AsyncArray):
        return zarr.Array(member)
    return zarr.Group(member) if isinstance(member, zarr.AsyncGroup) else member


def read_together(arrays: Sequence[zarr.Array[Any]]) -> list[bytes | BaseException]:
    """The bytes of several small arrays, all requests at once; for each the exception that it raised, if any."""

    async def read() -> list[Any]:
        limit = asyncio.Semaphore(zarr.config.get("async.concurrency") or 64)

        async def one(array: zarr.Array[Any]) -> bytes:
            async with limit:
                return np.asarray(await array._async_array.getitem(...)).tobytes()

        return await asyncio.gather(*map(one, arrays), return_exceptions=True)

    return sync(read()) if arrays else []


def unpickles(array: zarr.Array[Any]) -> bool:
    """Whether a codec of the array loads pickles, which can run any code: numcodecs' own, under any name."""
    metadata: Any = array.metadata
    if metadata.zarr_format == 3:
        codecs = [codec.to_dict().get("name", "") for codec in metadata.codecs]
    else:
        codecs = [getattr(codec, "codec_id", "") for codec in (*(metadata.filters or ()), metadata.compressor)]
    return any("pickle" in str(codec) for codec in codecs)


def walk_members(node: zarr.Group) -> Iterator[tuple[str, zarr.Group | zarr.Array[Any]]]:
    """All groups and arrays below a group that can be opened, by path; ``members()`` raises for one that cannot."""
    for name, member in open_members([node])[0]:
        if isinstance(member, BaseException):
            continue
        yield name, member
        if isinstance(member, zarr.Group):
            yield from ((f"{name}/{path}", inner) for path, inner in walk_members(member))


def with_dims(array: zarr.Array[Any], dims: tuple[str, ...]) -> zarr.Array[Any]:
    """The same array under other dimension names; nothing is written."""
    metadata: Any = array.metadata
    if metadata.zarr_format == 3:
        if metadata.dimension_names == dims:
            return array
        changed = dataclasses.replace(metadata, dimension_names=dims)
    else:
        if metadata.attributes.get(DIMENSION_KEY) == list(dims):
            return array
        changed = dataclasses.replace(metadata, attributes={**metadata.attributes, DIMENSION_KEY: list(dims)})
    inner = array._async_array
    return zarr.Array(zarr.AsyncArray(metadata=changed, store_path=inner.store_path, config=inner.config))


def nczarr_dims(node: zarr.Group, name: str, attrs: Mapping[str, Any]) -> list[str] | None:
    """NCZarr records fully qualified dims in ``.zarray``, newer versions in ``.zattrs``."""
    record = attrs.get("_nczarr_array")
    if record is None:
        record = (document(node, f"{name}/.zarray") or {}).get("_NCZARR_ARRAY")
    refs = (record or {}).get("dimrefs", (record or {}).get("dimension_references"))
    return None if refs is None else [ref.rsplit("/", 1)[-1] for ref in refs]


def open_as_codes(node: zarr.Group, name: str) -> tuple[zarr.Array[Any], str]:
    """Open a v3 array of a dtype that numpy lacks as the integers of the same width; gives the dtype of torch, too."""
    metadata = document(node, f"{name}/zarr.json")
    if metadata is None:
        raise KeyError(name)
    declared = metadata["data_type"]
    torch_dtype = declared["name"] if isinstance(declared, dict) else declared
    code = FLOAT_CODES[torch_dtype]
    metadata["data_type"], metadata["fill_value"] = code, _fill_code(metadata.get("fill_value"), torch_dtype)
    path = StorePath(node.store, _below(node, name))
    return zarr.Array(zarr.AsyncArray(metadata=metadata, store_path=path)), torch_dtype


def _fill_code(fill: Any, torch_dtype: str) -> int:
    if isinstance(fill, str) and fill.startswith("0x"):
        return int(fill, 16)
    if not fill:
        return 0
    import torch

    value = torch.tensor(float(fill)).to(getattr(torch, torch_dtype))
    return int(value.view(torch.uint16 if value.element_size() == 2 else torch.uint8).item())
