"""From a source to the nodes of a zarr store: its root, with as few requests as its kind allows, and the members of groups.

Zarr asks for the metadata of both formats, four requests where one answers; in a store far away each is paid for. Its public
interface opens the members of a group as a whole or raises; here each is opened for itself. Those of local files are opened
from their metadata files: zarr reads each file as a task of its event loop and parses each document anew, and that is most of
the time that many small arrays take.
"""

from __future__ import annotations

import json
import os
import time
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import zarr
from zarr.abc.store import Store as ZarrStoreBase
from zarr.errors import (
    ArrayNotFoundError,
    ContainsArrayError,
    ContainsGroupError,
    GroupNotFoundError,
    NodeNotFoundError,
)
from zarr.storage import LocalStore, MemoryStore, StorePath, WrapperStore, ZipStore

from ..._compat.zarr import (
    METADATA_KEYS,
    DocumentParser,
    ForkSafeZipStore,
    base_store,
    each_at_once,
    get_bytes,
    group_from_zmetadata,
    implicit_group,
    list_members,
    moved,
    open_each,
    root_as_codes,
    unwrapped,
)
from ...core.metadata import COMMIT_ATTR
from ...core.model import path_key
from ...core.suggest import there_are
from ...quiet import ZARR_SAYS, quiet
from ..base import StoreOptions
from .local import folder_of, is_local
from .transaction import as_committed

_ROOT_FILES = ("/zarr.json", "/.zgroup")
_ABSENT = (FileNotFoundError, GroupNotFoundError, NodeNotFoundError, ContainsArrayError)

Node: TypeAlias = "zarr.Group | zarr.Array[Any]"


@dataclass(frozen=True)
class Opened:
    """The root of a store: a group, or the one array there is.

    Attributes
    ----------
    node
        The group or the array.
    owns
        Whether the store was opened here, and is to be closed.
    torch_dtype
        The dtype of an array where numpy lacks it; `node` has integers of the same width.
    """

    node: Node
    owns: bool
    torch_dtype: str | None = None


@dataclass(frozen=True)
class _Request:
    """What the caller asks of the opening."""

    source: Any
    description: str
    options: StoreOptions

    def group(self, **changed: Any) -> zarr.Group:
        options: dict[str, Any] = {
            "zarr_format": self.options.zarr_format,
            "use_consolidated": self.options.consolidated,
            **changed,
        }
        return zarr.open_group(self.source, mode="r", **self._extra(), **options)

    def array(self) -> zarr.Array[Any]:
        version: Any = self.options.zarr_format
        return zarr.open_array(self.source, mode="r", zarr_format=version, **self._extra())

    def _extra(self) -> dict[str, Any]:
        return {} if self.options.storage_options is None else {"storage_options": self.options.storage_options}


def open_node(source: Any, description: str, options: StoreOptions) -> Opened:
    """Open a path, a URL, a store, a group or an array for reading.

    With ``consolidated=None`` stores of this machine are read as they are (fresh, and no slower), all others through
    consolidated metadata where there is any.

    Raises
    ------
    FileNotFoundError
        Where there is neither a group nor an array.
    PermissionError, ConnectionError, ImportError
        Where a store far away refuses, does not answer, or needs a package that is not installed.
    ValueError
        Where the metadata cannot be read.
    """
    if isinstance(source, (zarr.Group, zarr.Array)):
        return Opened(_at_absolute_path(source), owns=False)
    owns = not isinstance(source, (ZarrStoreBase, StorePath))
    if isinstance(source, ZipStore) and not source.read_only:
        raise ValueError(
            f"{description}: the zip store is open for writing, and a zip file can be read when it is whole: close it, and "
            f"open {str(source.path)!r}"
        )
    archive = _archive_path(source)
    if archive is not None:
        # a file of our own, with its own position: a fork of the process must not share it
        source, owns, options = ForkSafeZipStore(archive, mode="r"), True, replace(options, consolidated=False)
    if options.consolidated is None and not is_remote(source):
        options = replace(options, consolidated=False)
    request = _Request(source, description, options)
    with client_errors(source, description), quiet(*ZARR_SAYS):
        node, torch_dtype = _open(request)
        node = _at_absolute_path(node)
        if isinstance(node, zarr.Group) and COMMIT_ATTR in node.attrs:
            node = as_committed(node)
        return Opened(node, owns, torch_dtype)


def _at_absolute_path(node: Node) -> Node:
    """The same node of a store whose path does not depend on the working directory, which may change before it is read."""
    store: Any = node.store
    if type(store) is not LocalStore or store.root.is_absolute():
        return node
    absolute = LocalStore(store.root.absolute(), read_only=store.read_only)
    return moved(node, StorePath(absolute, node.path))


def _archive_path(source: Any) -> str | None:
    """The path of a zip archive that can be opened by its path: zarr itself goes by the ending of the name."""
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source).removeprefix("file://")
        return path if os.path.isfile(path) else None
    # one that is open for writing is not whole on disk yet
    if type(source) is ZipStore and source.read_only:
        return os.fspath(source.path)
    return None


def _open(request: _Request) -> tuple[Node, str | None]:
    try:
        return _open_group(request), None
    except _ABSENT as error:
        found = _array_or_none(request)
        if found is None:
            raise FileNotFoundError(
                f"{request.description}: no zarr group was found there. Expected a zarr.json (v3) or .zgroup (v2) file; "
                f"{_way_out(request)}"
            ) from error
        return found
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{request.description}: the metadata of the root group cannot be read ({error}); it is corrupt"
        ) from error
    except ValueError as error:
        raise ValueError(f"{request.description}: the zarr group cannot be opened: {error}") from error


def _way_out(request: _Request) -> str:
    source = request.source
    if isinstance(source, ZipStore):
        with zipfile.ZipFile(source.path) as archive:
            inner = [name.rpartition("/")[0] for name in archive.namelist() if name.endswith(_ROOT_FILES)]
        if inner:
            return f"the archive has one in its folder {min(inner, key=len)!r}: unpack it, and open that"
    if isinstance(source, str) and is_remote(source) and source.endswith(".zip") and "::" not in source:
        return f"an archive that is not on this machine opens as 'zip::{source}'"
    return "check the path"


def _open_group(request: _Request) -> zarr.Group:
    try:
        return request.group() if request.options.consolidated is False else _open_consolidated(request)
    except _ABSENT:
        raise
    except (ValueError, KeyError, TypeError):
        if request.options.consolidated is not None:
            raise
        # one dtype that numpy lacks makes the consolidated metadata unreadable as a whole
        return request.group(use_consolidated=False)


def _open_consolidated(request: _Request) -> zarr.Group:
    """One request for zarr v3, and one for v2 where its format is known."""
    if request.options.zarr_format in (None, 3):
        try:
            return request.group(zarr_format=3)
        except _ABSENT as error:
            if request.options.zarr_format == 3 or isinstance(error, ContainsArrayError):
                raise
    found = group_from_zmetadata(request.source, request.options.storage_options)
    if found is not None:
        return found
    if request.options.consolidated:
        return request.group(zarr_format=2)
    return request.group(zarr_format=2, use_consolidated=False)


def _array_or_none(request: _Request) -> tuple[zarr.Array[Any], str | None] | None:
    """The one array of a store; None where there is none."""
    try:
        return request.array(), None
    except (*_ABSENT, ArrayNotFoundError, ContainsGroupError):
        return None
    except Exception as error:
        try:
            return root_as_codes(request.source, request.options.storage_options)
        except Exception:
            raise ValueError(
                f"{request.description}: the array cannot be read ({type(error).__name__}: {error})"
            ) from error


def child(group: zarr.Group, path: str | None, description: str) -> zarr.Group:
    """The group at `path` in another.

    Raises
    ------
    FileNotFoundError
        Where there is none; the groups there are get listed.
    """
    parts = path_key(path)
    if not parts:
        return group
    node: Node | None
    try:
        node = group["/".join(parts)]
    except KeyError:
        node = implicit_group(group, "/".join(parts))
    if not isinstance(node, zarr.Group):
        found = "is an array" if node is not None else "does not exist"
        there = [f"/{name}" for name, child in walk_members(group) if isinstance(child, zarr.Group)]
        raise FileNotFoundError(
            f"{description}: group {'/' + '/'.join(parts)!r} {found}; "
            f"{there_are('/' + '/'.join(parts), there, 'the groups there are')}"
        )
    return node


def state_of(source: Any) -> Any:
    """What changes with each commit to a store that is read document by document; None where that is not asked for.

    Whoever reads several documents compares it before and afterwards.

    Parameters
    ----------
    source
        A path, a store, or a group that is already open.
    """
    if isinstance(source, str | os.PathLike):
        text = os.fsdecode(source)
        base: Any = None if "://" in text else LocalStore(text)
    else:
        base = base_store(source)
    if isinstance(base, LocalStore):
        return tuple(map(_identity, (base.root / "zarr.json", base.root / ".zattrs", base.root / ".zmetadata")))
    if isinstance(base, MemoryStore):
        return tuple(each_at_once(partial(get_bytes, base), ("zarr.json", ".zattrs", ".zmetadata")))
    return None


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


# -- members -----------------------------------------------------------------------------------------------------------

_NO_FILE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
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
    folders = {id(node): folder_of(node) for node in nodes} if are_local else {}
    names = list(map(_names_in, folders.values())) if are_local else list_members(nodes)
    places = [(node, name) for node, inside in zip(nodes, names, strict=True) for name in inside]
    found: list[Any] = [_LEFT_TO_ZARR] * len(places)
    if are_local:
        asked = [(node.metadata.zarr_format, os.path.join(folders[id(node)], name)) for node, name in places]
        parser = DocumentParser()
        found = [_parsed(parser, *place, texts) for place, texts in zip(places, _read_all(asked), strict=True)]
    # what is out of the ordinary is opened by zarr, whose errors and choices hold
    rest = [number for number, member in enumerate(found) if member is _LEFT_TO_ZARR]
    for number, member in zip(rest, open_each([places[number] for number in rest]), strict=True):
        found[number] = member
    for number, (node, name) in enumerate(places):
        if isinstance(found[number], KeyError) and (
            not are_local or os.path.isdir(os.path.join(folders[id(node)], name))
        ):
            implicit = implicit_group(node, name)  # its length, so whether it is true, is the number of its members
            found[number] = found[number] if implicit is None else implicit
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


def _names_in(folder: str) -> list[str]:
    try:
        return sorted(set(os.listdir(folder)).difference(METADATA_KEYS))
    except (FileNotFoundError, NotADirectoryError):
        return []


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
    except _NO_FILE:
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


# -- stores far away ---------------------------------------------------------------------------------------------------

_LOCAL = (LocalStore, MemoryStore, ZipStore)
_CLIENTS = frozenset({"botocore", "aiobotocore", "aiohttp", "obstore", "s3fs", "gcsfs", "adlfs", "google", "azure"})
_REFUSALS = ("credential", "accessdenied", "access denied", "forbidden", "unauthenticated", "permissiondenied")
_MISSING_PACKAGES = {
    "s3": "xarray-tensordict[s3]",
    "s3a": "xarray-tensordict[s3]",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
}


def is_remote(source: Any) -> bool:
    """Whether requests to the store take long: all but local files and memory."""
    if isinstance(source, (str, os.PathLike)):
        text = os.fspath(source)
        return "://" in text and not text.startswith("file://")
    if isinstance(source, StorePath):
        return is_remote(source.store)
    if isinstance(source, WrapperStore):
        return is_remote(unwrapped(source))
    return isinstance(source, ZarrStoreBase) and not isinstance(source, _LOCAL)


@contextmanager
def client_errors(source: Any, description: str) -> Iterator[None]:
    """Raise errors of the clients of stores far away (s3fs, obstore, ...) as Python's own; others pass as they are."""
    try:
        yield
    except Exception as error:
        told = _translated(error, description) if is_remote(source) else None
        if told is None:
            raise
        raise told from error


def _translated(error: Exception, description: str) -> Exception | None:
    told = f"{type(error).__name__}: {error}".split("\n")[0]
    words = told.lower()
    if isinstance(error, ImportError):
        scheme = description.partition("://")[0]
        package = _MISSING_PACKAGES.get(scheme, "the package it names")
        return ImportError(
            f"{description}: URLs of this kind need a package that is missing ({error}): install {package!r}"
        )
    of_a_client = type(error).__module__.partition(".")[0] in _CLIENTS
    if isinstance(error, PermissionError) or (of_a_client and any(word in words for word in _REFUSALS)):
        return PermissionError(
            f"{description}: the store refuses access ({told}). Pass credentials in storage_options, for s3:// as "
            f"{{'key': ..., 'secret': ...}}, or {{'anon': True}} to read what is public"
        )
    if "bucket does not exist" in words or "nosuchbucket" in words:
        return FileNotFoundError(f"{description}: the bucket is not there ({told}); create it, or check its name")
    if of_a_client or isinstance(error, (ConnectionError, TimeoutError)):
        return ConnectionError(
            f"{description}: the store does not answer as it should ({told}); check address and network"
        )
    return None
