"""Where a store is: whether two sources are one place, through any objects, wrappers and ways of spelling.

And which places a lazy Dataset reads from, so that none is overwritten while it is read.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
import zarr
from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore, StorePath, ZipStore

from .._compat.xarray import data_of
from .._compat.zarr import base_store, dictionary_of
from ..core.model import path_key

_INNER = (
    "array",
    "_array",
    "_wrapped",
    "_source",
    "otherwise",
    "datastore",
    "func",
    "args",
    "kwargs",
    "function",
    "keywords",
    "store",
)
_DEEPEST = 40


@dataclass(frozen=True)
class Place:
    """A store, or a group or an array in it.

    Attributes
    ----------
    system
        What the parts of the path are names in: the file system of this machine, a bucket, one dictionary in memory.
    parts
        The path in it.
    """

    system: Any
    parts: tuple[str, ...] = ()

    def below(self, path: str) -> Place:
        """A place further down."""
        return Place(self.system, (*self.parts, *path_key(path)))


def place_of(source: Any) -> Place:
    """Where a source is: a path, a URL, a store of zarr, a group or an array.

    Wrappers are taken off, and whether a store is open for reading only makes no difference.

    Examples
    --------
    >>> from zarr.storage import LocalStore
    >>> place_of("/data/a.zarr/x") == place_of(LocalStore("/data/a.zarr", read_only=True)).below("x")
    True
    """
    if isinstance(source, zarr.Group | zarr.Array | StorePath):
        return place_of(source.store).below(source.path)
    if isinstance(source, dict):
        return Place(("dictionary", id(source)))
    if isinstance(source, str) and "://" in source and not source.startswith("file://"):
        return _of_url(source)
    if isinstance(source, str | os.PathLike):
        return _of_file(os.fspath(source))
    return _of_store(base_store(source))


def overlap(one: Place, other: Place) -> bool:
    """Whether two places are the same, or one of them is inside of the other."""
    length = min(len(one.parts), len(other.parts))
    return one.system == other.system and one.parts[:length] == other.parts[:length]


def _of_file(path: Any) -> Place:
    text = os.fsdecode(path).removeprefix("file://")
    return Place("file", path_key(os.path.realpath(os.path.expanduser(text)).replace(os.sep, "/")))


def _of_url(url: str) -> Place:
    import fsspec.core

    scheme, _, rest = url.rpartition("::")[2].partition("://")
    if scheme in {"memory", "s3", "s3a", "gs", "gcs"} and "::" not in url:
        return Place(_protocol(scheme), path_key(rest))
    filesystem, path = fsspec.core.url_to_fs(url)
    return _of_filesystem(filesystem, path)


def _of_store(store: Store) -> Place:
    if isinstance(store, LocalStore):
        return _of_file(store.root)
    if isinstance(store, ZipStore):
        return _of_file(store.path)
    if isinstance(store, MemoryStore):
        return Place(("dictionary", id(dictionary_of(store))))
    if isinstance(store, FsspecStore):
        return _of_filesystem(store.fs, store.path)
    if isinstance(store, ObjectStore):
        return _of_obstore(store.store)
    return Place(_Compared(store))


def _of_filesystem(filesystem: Any, path: str) -> Place:
    filesystem = getattr(filesystem, "sync_fs", filesystem)
    inner = getattr(filesystem, "fs", None)
    if inner is not None and isinstance(getattr(filesystem, "path", None), str):  # a folder of another file system
        return _of_filesystem(inner, filesystem.path).below(path)
    protocol = filesystem.protocol if isinstance(filesystem.protocol, str) else filesystem.protocol[0]
    if protocol in {"file", "local"}:
        return _of_file(path)
    archive = getattr(filesystem, "fo", None)
    system = _protocol(protocol) if archive is None else (protocol, str(archive))
    return Place(system, path_key(path))


def _of_obstore(store: Any) -> Place:
    prefix = str(getattr(store, "prefix", None) or "")
    kind = type(store).__name__
    if kind == "LocalStore":
        return _of_file(prefix or "/")
    config = getattr(store, "config", None) or {}
    bucket = next((str(config[name]) for name in ("bucket", "container_name") if config.get(name)), None)
    if bucket is None:
        return Place((kind, id(store)), path_key(prefix))
    return Place(_protocol(kind.removesuffix("Store").lower()), (bucket, *path_key(prefix)))


def _protocol(name: str) -> str:
    """One name for what several clients call otherwise."""
    return {"s3a": "s3", "gcs": "gs", "azure": "az", "abfs": "az"}.get(name, name)


class _Compared:
    """A store of another library: two are one if they are equal when both are for reading only."""

    def __init__(self, store: Store) -> None:
        self.held = store

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Compared):
            return False
        try:
            return bool(self.held.with_read_only(True) == other.held.with_read_only(True))
        except NotImplementedError:
            return self.held == other.held

    def __hash__(self) -> int:
        return hash(type(self.held))


# -- where lazy values come from ---------------------------------------------------------------------------------------


def sources_of(variable: xr.Variable) -> list[Place]:
    """Where the values of a variable come from, as far as they are still to be read: arrays of zarr stores, and files.

    Best effort: xarray's lazy arrays and dask's graphs are walked for arrays of zarr and files of HDF5.
    """
    data = data_of(variable)
    found: list[Place] = []
    seen: set[int] = set()
    if hasattr(data, "__dask_graph__"):
        for value in dict(data.__dask_graph__()).values():
            _walk(value, found, seen, 0)
    else:
        _walk(data, found, seen, 0)
    return found


def _walk(value: Any, found: list[Place], seen: set[int], depth: int) -> None:
    if depth > _DEEPEST or id(value) in seen or isinstance(value, np.ndarray | str | bytes | int | float | type(None)):
        return
    seen.add(id(value))
    if isinstance(value, zarr.Array):
        found.append(place_of(value))
        return
    path = getattr(value, "_filename", None) or getattr(value, "_path", None)
    if isinstance(path, str | os.PathLike) and not isinstance(value, xr.Variable):
        found.append(place_of(path))
    for inner in _held_by(value):
        _walk(inner, found, seen, depth + 1)


def _held_by(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value
    else:
        for name in _INNER:
            inner = getattr(value, name, None)
            if inner is not None:
                yield inner


def reads_from(variable: xr.Variable, written: Collection[Place]) -> bool:
    """Whether the values of a variable come, still unread, from one of some places."""
    return any(overlap(source, place) for source in sources_of(variable) for place in written)


def refuse_reading_from(ds: xr.Dataset, place: Place, name: str) -> None:
    """Raise where a Dataset still has to read from the store that is about to be overwritten.

    Raises
    ------
    ValueError
        Names the variables and the store, `name`.
    """
    lazy = [str(name) for name, variable in ds.variables.items() if reads_from(variable, [place])]
    if lazy:
        raise ValueError(
            f"{name}: {lazy[:5]} are read lazily from the store that is to be overwritten, and their values would be "
            f"lost; load them first (ds.load()), or write to another store"
        )
