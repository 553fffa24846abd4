"""The documents of a zarr store: what they have to be, what is made of them, and the files that they are in."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import zarr
from msgspec import Meta, Struct
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.storage import LocalStore, StorePath

from ..._compat.zarr import METADATA_KEYS, get_bytes, tried_at_once
from ..raw.files import open_file, read_part, size_of

_Size = Annotated[int, Meta(ge=0)]


class _Named(Struct):
    name: str
    configuration: dict[str, Any] = {}


class RegularGrid(Struct):
    """The configuration of the chunk grid of that name."""

    chunk_shape: list[_Size]


class _GroupV3(Struct, tag_field="node_type", tag="group"):
    zarr_format: Literal[3]


class ArrayV3(Struct, tag_field="node_type", tag="array"):
    """The document of an array of v3."""

    zarr_format: Literal[3]
    shape: list[_Size]
    data_type: str | _Named
    chunk_grid: _Named
    chunk_key_encoding: str | _Named
    codecs: list[str | _Named]
    fill_value: Any
    dimension_names: list[str | None] | None = None


class _GroupV2(Struct):
    zarr_format: Literal[2]


class ArrayV2(Struct):
    """The document of an array of v2."""

    zarr_format: Literal[2]
    shape: list[_Size]
    chunks: list[_Size]
    dtype: str | list[list[Any]]
    fill_value: Any = None
    order: Literal["C", "F"] = "C"
    compressor: dict[str, Any] | None = None
    filters: list[dict[str, Any]] | None = None
    dimension_separator: Literal[".", "/"] = "."


class Consolidated(Struct):
    """Consolidated metadata, of v3 (documents by path) and of v2 (by key)."""

    metadata: dict[str, Any]


DOCUMENTS: dict[str, Any] = {"zarr.json": _GroupV3 | ArrayV3, ".zgroup": _GroupV2, ".zarray": ArrayV2}


class NotEnteredError(ValueError):
    """A member that is not looked at, and why, as the end of a sentence."""


class CodedArray(NamedTuple):
    """An array of a dtype that numpy lacks, as the integers of the same width, and the name of the dtype."""

    array: zarr.Array[Any]
    torch_dtype: str


Node: TypeAlias = "zarr.Group | zarr.Array[Any] | CodedArray"


# -- reading them ------------------------------------------------------------------------------------------------------


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
"""Files that take more seconds than this, each, are read by several threads; from memory one takes 5e-6, and threads as
much more (measured: 500 files 2 ms, by threads 9 ms)."""
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
    if places and is_local(places[0]):
        return list(_read_all([(zarr_format, folder_of(place)) for place in places]))
    return tried_at_once(partial(_requested, zarr_format), places)


async def _requested(zarr_format: int, place: StorePath) -> Document | None:
    async def content(file: str) -> bytes | None:
        return await get_bytes(place.store, f"{place.path}/{file}".lstrip("/"))

    if zarr_format == 3:
        found = await content("zarr.json")
        return None if found is None else Document("zarr.json", found)
    array, group, attributes = await asyncio.gather(*map(content, (".zarray", ".zgroup", ".zattrs")))
    if array is not None:
        return Document(".zarray", array, attributes)
    return None if group is None else Document(".zgroup", group, attributes)


def _read_all(asked: Sequence[tuple[int, str]]) -> Iterator[Read]:
    for start in range(0, len(asked), _ALONE):
        begun = time.perf_counter()
        found = _read_some(asked[start : start + _ALONE])
        is_late = time.perf_counter() - begun > _LATE * len(found)
        yield from found
        if is_late:
            rest = asked[start + _ALONE :]
            size = -(-len(rest) // _THREADS) or 1
            with ThreadPoolExecutor(_THREADS) as threads:
                for part in threads.map(_read_some, [rest[at : at + size] for at in range(0, len(rest), size)]):
                    yield from part
            return


def _read_some(asked: Sequence[tuple[int, str]]) -> list[Read]:
    return list(map(_read, asked))


def _read(asked: tuple[int, str]) -> Read:
    zarr_format, folder = asked
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
        with open_file(path) as fileno:
            return read_part(fileno, 0, size_of(fileno, path))
    except _ABSENT:
        return None


class LocalFiles(LocalStore):
    """A ``LocalStore`` that waits for no pipe.

    zarr's own does, and it reads a folder in the place of a chunk as a chunk that is missing.
    """

    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        path = f"{self.root}{os.sep}{key}"
        try:
            with open_file(path) as fileno:
                content = read_part(fileno, *_span(byte_range, size_of(fileno, path)))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except IsADirectoryError:
            if key.rpartition("/")[2] in METADATA_KEYS:
                return None
            raise
        return (prototype or default_buffer_prototype()).buffer.from_bytes(content)

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        return await asyncio.to_thread(self.get_sync, key, prototype=prototype, byte_range=byte_range)


def _span(asked: ByteRequest | None, size: int) -> tuple[int, int]:
    """Where a part of a file begins and ends."""
    if isinstance(asked, RangeByteRequest):
        return asked.start, min(asked.end, size)
    if isinstance(asked, OffsetByteRequest):
        return asked.offset, size
    return (max(0, size - asked.suffix) if isinstance(asked, SuffixByteRequest) else 0), size
