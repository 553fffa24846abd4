"""The members of zarr groups, each for itself: zarr's public interface opens a group as a whole or raises.

Those of local files are opened from their metadata files. Zarr reads each file as a task of its event loop and parses
each document anew, and that is most of the time that many small arrays take.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import zarr
from zarr.storage import LocalStore

from ..._compat.zarr import METADATA_KEYS, DocumentParser, list_members, open_each

_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
"""What zarr's own store takes for "there is no such file"."""
_ALONE = 64
"""So many files are read one after the other, to see how late the disk answers."""
_LATE = 1e-4
"""Files that take more seconds than this, each, are read by several threads; from memory one takes 5e-6, and threads as
much more (measured: 500 files 2 ms, by threads 9 ms)."""
_THREADS = min(32, (os.cpu_count() or 1) + 4)
_LEFT_TO_ZARR = object()

Member = tuple[str, Any]
"""A name, and the group, the array, or the exception that opening it raised."""


def open_members(nodes: Sequence[zarr.Group]) -> list[list[Member]]:
    """Open all members of some groups at once, each for itself: by name a group, an array, or the exception it raised."""
    are_local = all(map(is_local, nodes))
    names = [_names_in(folder_of(node)) for node in nodes] if are_local else list_members(nodes)
    places = [(node, name) for node, inside in zip(nodes, names, strict=True) for name in inside]
    found = _from_files(nodes, places) if are_local else [_LEFT_TO_ZARR] * len(places)
    # what is out of the ordinary is opened by zarr, whose errors and choices hold
    rest = [number for number, member in enumerate(found) if member is _LEFT_TO_ZARR]
    for number, member in zip(rest, open_each([places[number] for number in rest]), strict=True):
        found[number] = member
    each = iter(found)
    return [[(name, next(each)) for name in inside] for inside in names]


def walk_members(node: zarr.Group) -> Iterator[tuple[str, zarr.Group | zarr.Array[Any]]]:
    """All groups and arrays below a group that can be opened, by path; ``members()`` raises for one that cannot."""
    for name, member in open_members([node])[0]:
        if isinstance(member, BaseException):
            continue
        yield name, member
        if isinstance(member, zarr.Group):
            yield from ((f"{name}/{path}", inner) for path, inner in walk_members(member))


def is_local(node: zarr.Group | zarr.Array[Any]) -> bool:
    """Whether a group or an array lies in files of this machine; a subclass of the store may read in a way of its own."""
    return type(node.store) is LocalStore


def folder_of(node: zarr.Group | zarr.Array[Any]) -> str:
    """The folder of a group or an array in local files."""
    store: Any = node.store
    return os.path.join(os.fspath(store.root), *node.path.split("/")) if node.path else os.fspath(store.root)


def _names_in(folder: str) -> list[str]:
    try:
        return sorted(set(os.listdir(folder)).difference(METADATA_KEYS))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _from_files(nodes: Sequence[zarr.Group], places: Sequence[tuple[zarr.Group, str]]) -> list[Any]:
    folders = {id(node): folder_of(node) for node in nodes}
    asked = [(node.metadata.zarr_format, os.path.join(folders[id(node)], name)) for node, name in places]
    parser = DocumentParser()
    return [_parsed(parser, *place, texts) for place, texts in zip(places, _read_all(asked), strict=True)]


def _read_all(asked: Sequence[tuple[int, str]]) -> Iterator[tuple[bytes | None, bytes | None] | OSError]:
    for start in range(0, len(asked), _ALONE):
        begun = time.perf_counter()
        found = list(map(_read, asked[start : start + _ALONE]))
        is_late = time.perf_counter() - begun > _LATE * len(found)
        yield from found
        if is_late:
            yield from _read_by_threads(asked[start + _ALONE :])
            return


def _read_by_threads(asked: Sequence[tuple[int, str]]) -> Iterator[tuple[bytes | None, bytes | None] | OSError]:
    size = max(-(-len(asked) // _THREADS), 1)
    slices = [asked[start : start + size] for start in range(0, len(asked), size)]
    with ThreadPoolExecutor(_THREADS) as threads:
        for part in threads.map(lambda some: list(map(_read, some)), slices):
            yield from part


def _read(asked: tuple[int, str]) -> tuple[bytes | None, bytes | None] | OSError:
    """The document of a member, and the attributes that v2 keeps beside it; None for a file that is not there."""
    zarr_format, folder = asked
    try:
        if zarr_format == 3:
            return _bytes_of(f"{folder}/zarr.json"), None
        document = _bytes_of(f"{folder}/.zarray")
        document = _bytes_of(f"{folder}/.zgroup") if document is None else document
        return document, None if document is None else _bytes_of(f"{folder}/.zattrs")
    except OSError as error:
        return error


def _bytes_of(path: str) -> bytes | None:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except _ABSENT:
        return None


def _parsed(
    parser: DocumentParser, node: zarr.Group, name: str, texts: tuple[bytes | None, bytes | None] | OSError
) -> Any:
    """A member from its documents; what zarr would not take for a plain array or group is left to it."""
    # zarr takes a backslash for a slash, and knows what consolidated metadata lists
    if isinstance(texts, OSError) or "\\" in name or node.metadata.consolidated_metadata is not None:
        return _LEFT_TO_ZARR
    document, attributes = texts
    if document is None:
        return KeyError(name)
    try:
        return parser.node(node, name, json.loads(document), None if attributes is None else json.loads(attributes))
    except Exception:
        return _LEFT_TO_ZARR
