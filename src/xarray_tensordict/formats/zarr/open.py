"""Opening the root of a zarr store, with as few requests as its kind allows.

Zarr asks for the metadata of both formats, four requests where one answers; in a store far away each is paid for.
"""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import dataclass
from typing import Any, TypeAlias

import zarr
from zarr.abc.store import Store as ZarrStoreBase
from zarr.errors import ContainsArrayError, GroupNotFoundError, NodeNotFoundError
from zarr.storage import StorePath, ZipStore

from ..._compat.zarr import group_from_zmetadata
from ...core.suggest import there_are
from ...quiet import ZARR_SAYS, quiet
from ..remote import client_errors, is_remote
from .zip import ForkSafeZipStore

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
    """

    node: Node
    owns: bool


@dataclass(frozen=True)
class _Request:
    """What the caller asks of the opening."""

    source: Any
    description: str
    consolidated: bool | None
    storage_options: dict[str, Any] | None
    zarr_format: Any

    def group(self, **changed: Any) -> zarr.Group:
        options: dict[str, Any] = {"zarr_format": self.zarr_format, "use_consolidated": self.consolidated, **changed}
        return zarr.open_group(self.source, mode="r", **self._extra(), **options)

    def array(self) -> zarr.Array[Any]:
        return zarr.open_array(self.source, mode="r", zarr_format=self.zarr_format, **self._extra())

    def _extra(self) -> dict[str, Any]:
        return {} if self.storage_options is None else {"storage_options": self.storage_options}


def open_node(
    source: Any,
    description: str,
    *,
    consolidated: bool | None = None,
    storage_options: dict[str, Any] | None = None,
    zarr_format: Any = None,
) -> Opened:
    """Open a path, a URL, a store, a group or an array for reading.

    Parameters
    ----------
    consolidated
        None: stores of this machine are read as they are (fresh, and no slower), all others through consolidated
        metadata where there is any.

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
        return Opened(source, owns=False)
    owns = not isinstance(source, (ZarrStoreBase, StorePath))
    if isinstance(source, ZipStore) and not source.read_only:
        raise ValueError(
            f"{description}: the zip store is open for writing, and a zip file can be read when it is whole: close it, and "
            f"open {str(source.path)!r}"
        )
    archive = _archive_path(source)
    if archive is not None:
        # a file of our own, with its own position: a fork of the process must not share it
        source, owns, consolidated = ForkSafeZipStore(archive, mode="r"), True, False
    if consolidated is None and not is_remote(source):
        consolidated = False
    request = _Request(source, description, consolidated, storage_options, zarr_format)
    with client_errors(source, description), quiet(*ZARR_SAYS):
        return Opened(_open(request), owns)


def _archive_path(source: Any) -> str | None:
    """The path of a zip archive that can be opened by its path: zarr itself goes by the ending of the name."""
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source).removeprefix("file://")
        return path if os.path.isfile(path) else None
    # one that is open for writing is not whole on disk yet
    if type(source) is ZipStore and source.read_only:
        return os.fspath(source.path)
    return None


def _open(request: _Request) -> Node:
    try:
        return _open_group(request)
    except _ABSENT as error:
        node = _array_or_none(request)
        if node is None:
            raise FileNotFoundError(
                f"{request.description}: no zarr group was found there. Expected a zarr.json (v3) or .zgroup (v2) file; "
                f"{_way_out(request)}"
            ) from error
        return node
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
        return request.group() if request.consolidated is False else _open_consolidated(request)
    except _ABSENT:
        raise
    except (ValueError, KeyError, TypeError):
        if request.consolidated is not None:
            raise
        # one dtype that numpy lacks makes the consolidated metadata unreadable as a whole
        return request.group(use_consolidated=False)


def _open_consolidated(request: _Request) -> zarr.Group:
    """One request for zarr v3, and one for v2 where its format is known."""
    if request.zarr_format in (None, 3):
        try:
            return request.group(zarr_format=3)
        except _ABSENT as error:
            if request.zarr_format == 3 or isinstance(error, ContainsArrayError):
                raise
    found = group_from_zmetadata(request.source, request.storage_options)
    if found is not None:
        return found
    if request.consolidated:
        return request.group(zarr_format=2)
    return request.group(zarr_format=2, use_consolidated=False)


def _array_or_none(request: _Request) -> zarr.Array[Any] | None:
    try:
        return request.array()
    except (ValueError, OSError, KeyError, TypeError, AttributeError):
        return None  # a group, or unreadable, of which the opening as a group tells


def child(group: zarr.Group, path: str | None, description: str) -> zarr.Group:
    """The group at `path` in another.

    Raises
    ------
    FileNotFoundError
        Where there is none; the groups there are get listed.
    """
    parts = [part for part in (path or "").split("/") if part]
    if not parts:
        return group
    try:
        node = group["/".join(parts)]
    except KeyError:
        node = None
    if not isinstance(node, zarr.Group):
        found = "is an array" if node is not None else "does not exist"
        there = [f"/{name}" for name, child in group.members(max_depth=2) if isinstance(child, zarr.Group)]
        raise FileNotFoundError(
            f"{description}: group {'/' + '/'.join(parts)!r} {found}; "
            f"{there_are('/' + '/'.join(parts), there, 'the groups there are')}"
        )
    return node
