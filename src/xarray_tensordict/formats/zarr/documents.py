"""The documents of a zarr store: where they are read, what they have to be, and the groups and arrays that they describe.

Zarr's public interface opens the members of a group as a whole or raises; here each stands for itself. Zarr also asks for the
documents of both formats where one would do, reads each file as a task of its event loop, and parses each document anew, which
is most of the time that many small arrays take.
"""

from __future__ import annotations

import asyncio
import math
import os
import stat
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import zarr
from msgspec import Meta, Struct
from xarray.backends.zarr import DIMENSION_KEY
from zarr.abc.store import Store
from zarr.storage import LocalStore, StorePath

from ..._compat.zarr import array_like, array_of, get_bytes, group_of, tried_at_once
from ...core.documents import checked, parse
from ...core.dtypes import CODE_DTYPES
from ...core.model import why_no_key
from ...quiet import ZARR_SAYS, quiet

# -- what they have to be ----------------------------------------------------------------------------------------------

_Size = Annotated[int, Meta(ge=0)]
_MOST_BYTES = 2**63


class _Named(Struct):
    name: str
    configuration: dict[str, Any] = {}


class _RegularGrid(Struct):
    chunk_shape: list[_Size]


class _GroupV3(Struct, tag_field="node_type", tag="group"):
    zarr_format: Literal[3]


class _ArrayV3(Struct, tag_field="node_type", tag="array"):
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


class _ArrayV2(Struct):
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


_KINDS: dict[str, Any] = {"zarr.json": _GroupV3 | _ArrayV3, ".zgroup": _GroupV2, ".zarray": _ArrayV2}


class NotEnteredError(ValueError):
    """A member that is not looked at, and why, as the end of a sentence."""


class CodedArray(NamedTuple):
    """An array of a dtype that numpy lacks, as the integers of the same width, and the name of the dtype."""

    array: zarr.Array[Any]
    torch_dtype: str


Node: TypeAlias = "zarr.Group | zarr.Array[Any] | CodedArray"


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

    def loaded(self, where: str) -> Document:
        """The same document, read from JSON."""
        attributes = None if self.attributes is None else _parsed(self.attributes, f"{where}.zattrs")
        return Document(self.file, _parsed(self.content, f"{where}{self.file}"), attributes)

    def parsed(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The document without its attributes, and these."""
        found = self.loaded("")
        if self.file != "zarr.json":
            return found.content, found.attributes or {}
        document = dict(found.content)
        attributes = document.pop("attributes", None)
        return document, {} if attributes is None else _parsed(attributes, "zarr.json, attributes")


def _parsed(content: Any, what: str) -> dict[str, Any]:
    kind = dict[str, Any]
    return parse(content, kind, what) if isinstance(content, bytes) else checked(content, kind, what)


class Nodes:
    """Groups and arrays from documents. Arrays of a store are often alike but for their attributes: those are parsed once."""

    def __init__(self) -> None:
        self._alike: dict[str, tuple[Any, str | None] | None] = {}

    def node(self, place: StorePath, document: Document) -> Node:
        """The group or the array at a place.

        Raises
        ------
        ValueError
            Where the document is none of a group or an array: its file, the member, what was expected and what was found.
            What zarr raises for dtypes and codecs comes through.
        """
        rest, attributes = document.parsed()
        rest.pop("consolidated_metadata", None)
        alike = repr(rest)  # unlike equality, it tells 1, 1.0 and True apart
        if alike not in self._alike:
            kind = checked(rest, _KINDS[document.file], document.file)
            is_array = isinstance(kind, _ArrayV2 | _ArrayV3)
            self._alike[alike] = _array_of(rest, kind, place, document.file) if is_array else None
        found = self._alike[alike]
        if found is None:
            return group_of(place, attributes, 3 if document.file == "zarr.json" else 2)
        if document.file == ".zarray" and DIMENSION_KEY in attributes:
            checked(attributes[DIMENSION_KEY], list[str | None], DIMENSION_KEY)
        array = array_like(found[0], place, attributes)
        return array if found[1] is None else CodedArray(array, found[1])


def _array_of(document: dict[str, Any], kind: Any, place: StorePath, what: str) -> tuple[Any, str | None]:
    torch_dtype, plain = None, {**document, "attributes": {}}
    if isinstance(kind, _ArrayV3):
        if kind.chunk_grid.name == "regular":
            checked(kind.chunk_grid.configuration, _RegularGrid, f"{what}, chunk_grid")
        declared = kind.data_type if isinstance(kind.data_type, str) else kind.data_type.name
        if declared in CODE_DTYPES:
            torch_dtype = declared
            plain |= {"data_type": CODE_DTYPES[declared], "fill_value": _fill_code(kind.fill_value, declared)}
    with quiet(*ZARR_SAYS):
        array = array_of(plain, place)
    itemsize = max(array.dtype.itemsize, 1)
    if math.prod(kind.shape) * itemsize >= _MOST_BYTES:
        raise ValueError(
            f"{what}: an array of shape {kind.shape} and {itemsize} bytes an element is larger than any can be"
        )
    return array, torch_dtype


def _fill_code(fill: Any, torch_dtype: str) -> int:
    if isinstance(fill, str) and fill.startswith("0x"):
        return int(fill, 16)
    if fill is None or (fill == 0 and math.copysign(1, fill) > 0):
        return 0
    import torch

    value = torch.tensor(float(fill)).to(getattr(torch, torch_dtype))
    return int(value.view(torch.uint16 if value.element_size() == 2 else torch.uint8).item())


def why_no_name(name: str) -> str | None:
    """Why a part of a key of a store is no name of a member, as the end of a sentence; None where it is one.

    Examples
    --------
    >>> why_no_name("obs"), why_no_name("..")
    (None, "it has the part '..'")
    """
    return why_no_key(name) or ("it has a backslash, which zarr takes for a slash" if "\\" in name else None)


# -- where they are read -----------------------------------------------------------------------------------------------

_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_ALONE = 64
"""So many files are read one after the other, to see how late the disk answers."""
_LATE = 1e-4
"""Files that take more seconds than this, each, are read by several threads; from memory one takes 5e-6, and threads as
much more (measured: 500 files 2 ms, by threads 9 ms)."""
_THREADS = min(32, (os.cpu_count() or 1) + 4)

Read: TypeAlias = Document | BaseException | None


def is_local(node: Any) -> bool:
    """Whether a group or an array lies in files of this machine; a subclass of the store may read in a way of its own."""
    return type(node.store) is LocalStore


def folder_of(node: Any) -> str:
    """The folder of a group or an array in local files."""
    return os.path.join(str(node.store.root), *(node.path.split("/") if node.path else ()))


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


def open_again(store: Store, path: str, zarr_format: int) -> tuple[zarr.Array[Any], str | None]:
    """An array as it is now, and the dtype of torch where numpy lacks it.

    Raises
    ------
    FileNotFoundError
        Where there is no document of it.
    """
    place = StorePath(store, path)
    (found,) = read_documents([place], zarr_format)
    if isinstance(found, BaseException):
        raise found
    node = None if found is None else Nodes().node(place, found)
    if node is None or isinstance(node, zarr.Group):
        raise FileNotFoundError(f"{store}: there is no array {path!r}")
    return node if isinstance(node, CodedArray) else (node, None)


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
        found = list(map(_read, asked[start : start + _ALONE]))
        is_late = time.perf_counter() - begun > _LATE * len(found)
        yield from found
        if is_late:
            with ThreadPoolExecutor(_THREADS) as threads:
                yield from threads.map(_read, asked[start + _ALONE :])
            return


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
    """A file; a pipe or a device of that name may never end."""
    try:
        with open(path, "rb", buffering=0, opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(f"{path}: expected a file, found a pipe or a device")
            return file.read()
    except _ABSENT:
        return None


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
