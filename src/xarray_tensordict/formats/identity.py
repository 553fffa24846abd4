"""Whether two sources are one place, and whether an array is still what was opened.

A place is known through any objects, wrappers and ways of spelling; a lazy Dataset shows which places it reads from, so
that none is overwritten while it is read.

A store is described once, when it is opened, and its arrays are read later, in other processes, too. Then there may be
another store in its place, whose bytes mean something else. :class:`Fingerprint` shows which arrays are the same;
:class:`Described` sees, by one look at the status of a file, whether there is anything to compare. A format defines how an array
is found again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr
import zarr
from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore, StorePath, ZipStore

from .._compat.xarray import data_of
from .._compat.zarr import base_store, dictionary_of
from ..core.metadata import CF_PACKING, CF_TIMES
from ..core.model import is_url, path_key

_SETTLED = 50_000_000
"""A file that changed less than so many ns ago can change again within the same tick of the clock of its file system."""

_CODING = frozenset((*CF_PACKING, *CF_TIMES))

Identity = tuple[int, int, int]


class ReplacedError(OSError, ValueError):
    """Something else has taken the place of what was opened."""


class RemovedError(ReplacedError, FileNotFoundError):
    """What was opened is not there any more."""


class ChangedError(OSError):
    """A store was changed by a writer while it was opened or changed; it can be tried again."""


def identity_of(status: os.stat_result) -> Identity:
    """What distinguishes a file from the one that takes its place, or is written over it, on any machine that sees it."""
    return status.st_ino, status.st_mtime_ns, status.st_size


def replaced(where: str, expected: str, found: str) -> ReplacedError:
    """The error for what is not as it was opened."""
    return ReplacedError(
        f"{where}: expected {expected}, as it was opened, found {found}. Another file has taken its place since; open the "
        f"store again"
    )


def coding_of(attrs: Mapping[str, Any]) -> str:
    """The attributes that define what stored numbers mean, as one text."""
    if _CODING.isdisjoint(attrs):
        return "[]"
    return repr([(name, np.asarray(attrs[name]).tolist()) for name in sorted(_CODING & attrs.keys())])


@dataclass(frozen=True)
class Fingerprint:
    """What an array was when it was described.

    Attributes
    ----------
    dtype
        The dtype in words.
    shape
        Its shape.
    grows
        The axes that may be longer later.
    means
        What else defines how bytes become values, by name: codecs, attributes, the place in a file.
    """

    dtype: str
    shape: tuple[int, ...]
    grows: tuple[bool, ...] = ()
    means: Mapping[str, str] = field(default_factory=dict)

    def compare(self, now: Fingerprint | None, where: str) -> None:
        """Raise a `ReplacedError` unless an array of now is the same; what either does not know is not compared.

        Parameters
        ----------
        now
            The array that is found now, None where there is none.
        where
            How messages call it.
        """
        if now is None:
            raise replaced(where, f"{self.dtype} {list(self.shape)}", "no array")
        differ = [name for name, text in self.means.items() if now.means.get(name, text) != text]
        fits = self.dtype == now.dtype and self._has_room_for(now.shape)
        if differ or not fits:
            raise replaced(where, self._words(differ, whole=not fits), now._words(differ, whole=not fits))

    def _has_room_for(self, shape: tuple[int, ...]) -> bool:
        grows = self.grows or (False,) * len(self.shape)
        return len(shape) == len(self.shape) and all(
            now == size or (may_grow and now > size)
            for now, size, may_grow in zip(shape, self.shape, grows, strict=True)
        )

    def _words(self, names: list[str], *, whole: bool) -> str:
        parts = [f"{self.dtype} {list(self.shape)}"] if whole else []
        return ", ".join([*parts, *(f"the {name} {self.means[name]}" for name in names)])


@dataclass(eq=False)
class Described:
    """A file that describes arrays, which was read when the store was opened.

    Parameters
    ----------
    path
        The file.
    read
        Reads its description; called where it is no longer the same file. It has to be picklable.
    status
        Its status from before it was read.
    """

    path: str
    read: Callable[[], Any]
    status: os.stat_result
    opened_at: int = field(default_factory=time.time_ns)
    _seen: tuple[Identity | None, Any] | None = None

    def changed(self) -> Any:
        """The present description in the file; None where it is the one that was read.

        Raises
        ------
        RemovedError, ReplacedError
            Where it is gone, or cannot be parsed.
        """
        try:
            status = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._removed() from error
        identity, found = self._seen or (_settled(self.status, self.opened_at), None)
        if identity_of(status) == identity:
            return found
        try:
            found = self.read()
        except FileNotFoundError as error:
            raise self._removed() from error
        except Exception as error:  # half a file, or one of another program
            raise replaced(self.path, "metadata", f"what cannot be read ({error})") from error
        if found is None:
            raise replaced(self.path, "metadata", f"none in its {status.st_size} bytes")
        self._seen = _settled(status, time.time_ns()), found
        return found

    def _removed(self) -> RemovedError:
        return RemovedError(
            f"{self.path}: it is not there any more. The store was removed or renamed since it was opened; open it again "
            f"where it is now"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_seen": None}


def _settled(status: os.stat_result, now: int) -> Identity | None:
    return None if abs(now - status.st_mtime_ns) < _SETTLED else identity_of(status)


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
    if isinstance(source, str) and is_url(source):
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


def describe_source(source: Any) -> str:
    """How messages call a source."""
    if isinstance(source, (str, os.PathLike)):
        return str(os.fspath(source))
    for attribute in ("filename", "store_path", "name"):
        value = getattr(source, attribute, None)
        if isinstance(value, str) or (value is not None and attribute == "store_path"):
            return str(value)
    return _describe_zarr_store(source) if type(source).__module__.startswith("zarr.") else f"<{type(source).__name__}>"


def _describe_zarr_store(store: Any) -> str:
    """Where it is, as far as it shows: a store in memory has only a number."""
    if isinstance(store, LocalStore):
        return str(store.root)
    if isinstance(store, ZipStore):
        return str(store.path)
    if isinstance(store, FsspecStore) and store.path:
        return str(store.fs.unstrip_protocol(store.path))
    if isinstance(store, StorePath):
        inside = _describe_zarr_store(store.store)
        return f"{inside.rstrip('/')}/{store.path}" if store.path else inside
    return str(store.store) if isinstance(store, ObjectStore) else f"<{type(store).__name__}>"


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
