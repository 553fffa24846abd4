"""From a source to the nodes of a zarr store: its root, with as few requests as its kind allows, and the members of groups."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import zarr
from zarr.abc.store import Store as ZarrStoreBase
from zarr.storage import LocalStore, MemoryStore, StorePath, ZipStore

from ..._compat.zarr import (
    Document,
    ForkSafeZipStore,
    LocalFiles,
    Read,
    base_store,
    codec_names,
    document_keys,
    each_at_once,
    folder_of,
    get_bytes,
    group_of,
    is_local,
    is_remote,
    join,
    layers_of,
    list_members,
    read_documents,
    run,
    store_path,
)
from ...core.metadata import COMMIT_ATTR, checked, parse
from ...core.model import DEEPEST_GROUP, Key, check_size, group_name, path_key, why_no_key
from ...core.naming import groups_there
from ..base import StoreOptions, archive_names
from .arrays import Nodes, loaded
from .documents import Consolidated, Node, NotEnteredError
from .remote import AtOnce, is_of_client, many_at_once, raise_translated
from .transaction import as_committed

_IMPLICIT_DEPTH = 2
"""How many folders without documents are looked through for one that has some."""
_OF_EACH_COMMIT = ("zarr.json", ".zattrs", ".zmetadata")
_ROOT_FILES = ("/zarr.json", "/.zgroup")
T = TypeVar("T")

Listed = Mapping[str, Document]
"""The documents that consolidated metadata list, by path."""


@dataclass(frozen=True)
class Opened:
    """The root of a store: a group, or the one array there is.

    Attributes
    ----------
    node
        The group or the array.
    owns
        Whether the store was opened here, and is to be closed.
    state
        See :func:`state_of`; from before it was read.
    tree
        What finds the other groups and arrays.
    """

    node: Node
    owns: bool
    state: Any
    tree: Tree


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
        if isinstance(source, zarr.Group) and source.metadata.consolidated_metadata is None:
            options = replace(options, consolidated=False)
        source, options = source.store_path, replace(options, zarr_format=int(source.metadata.zarr_format))
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
    try:
        return _open(source, description, options, owns)
    except _NoStoreError as error:
        raise FileNotFoundError(f"{error}; {_way_out(source)}") from None
    except Exception as error:
        raise_translated(error, source, description)
        raise


def _open(source: Any, description: str, options: StoreOptions, owns: bool) -> Opened:
    try:
        place = _as_local_files(store_path(source, options.storage_options))
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(
            f"{description}: the zip archive cannot be read ({error}); it is cut short or damaged"
        ) from error
    store = place.store
    try:
        while True:
            state = state_of(place.store)
            document, listed = _Root(place, description, options).read()
            tree = Tree(description, listed)
            kind = "array" if document.file == ".zarray" or document.content.get("node_type") == "array" else "group"
            try:
                node = tree.nodes.node(place, document)
            except Exception as error:
                raise ValueError(
                    f"{description}: the {kind} cannot be read ({type(error).__name__}: {error})"
                ) from error
            if not isinstance(node, zarr.Group) or listed is not None or COMMIT_ATTR not in node.attrs:
                return Opened(node, owns, None if listed is not None else state, tree)
            committed = as_committed(place.store, place.path, node.attrs.asdict(), description)
            place = StorePath(committed, place.path)
    except BaseException:
        if owns:
            store.close()
        raise


def _as_local_files(place: StorePath) -> StorePath:
    """The place in a store whose path does not depend on the working directory, which may change before it is read."""
    store = place.store
    if type(store) is not LocalStore:
        return place
    return StorePath(LocalFiles(store.root.absolute(), read_only=store.read_only), place.path)


def _archive_path(source: Any) -> str | None:
    """The path of a zip archive that can be opened by its path: zarr itself goes by the ending of the name."""
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source).removeprefix("file://")
        return path if os.path.isfile(path) else None
    # one that is open for writing is not whole on disk yet
    if type(source) is ZipStore and source.read_only:
        return os.fspath(source.path)
    return None


def _way_out(source: Any) -> str:
    if isinstance(source, ZipStore):
        names = archive_names(str(source.path)) or []
        inner = [name.rpartition("/")[0] for name in names if name.endswith(_ROOT_FILES)]
        if inner:
            return f"the archive has one in its folder {min(inner, key=len)!r}: unpack it, and open that"
    if isinstance(source, str) and is_remote(source) and source.endswith(".zip") and "::" not in source:
        return f"an archive that is not on this machine opens as 'zip::{source}'"
    return "check the path"


class _NoStoreError(FileNotFoundError):
    pass


@dataclass(frozen=True)
class _Root:
    """The root of a store that is being opened."""

    place: StorePath
    description: str
    options: StoreOptions

    def read(self) -> tuple[Document, Listed | None]:
        """Its document, and what consolidated metadata list; one request for v3, and for v2 where its format is known."""
        asked, version = self.options.consolidated, self.options.zarr_format
        if not self.place.store.supports_consolidated_metadata:
            if asked:
                raise ValueError(
                    f"{self.description}: a store of this kind has no consolidated metadata; pass consolidated=None"
                )
            asked = False
        for zarr_format in (3, 2) if version is None else (version,):
            if asked is not False and zarr_format == 2 and (listing := self._tried(self._zmetadata)) is not None:
                return listing
            (found,) = read_documents([self.place], zarr_format)
            if isinstance(found, BaseException):
                raise self._named(found) from found
            if found is not None:
                document = loaded(found, f"{self.description}, ")
                listed = self._tried(partial(self._inline, document)) if asked is not False else None
                if asked and listed is None and document.content.get("node_type", "group") == "group":
                    raise ValueError(f"{self.description}: it has no consolidated metadata; pass consolidated=None")
                return document, listed
        raise _NoStoreError(
            f"{self.description}: no zarr group was found there. Expected a zarr.json (v3) or .zgroup (v2) file"
        )

    def _named(self, error: BaseException) -> BaseException:
        if isinstance(error, OSError) or is_of_client(error):
            return error
        return ValueError(
            f"{self.description}: the metadata of the root cannot be read ({type(error).__name__}: {error}); it is damaged"
        )

    def _tried(self, function: Callable[[], T]) -> T | None:
        """Read consolidated metadata; where they are not asked for, and cannot be read, the store is read without."""
        try:
            return function()
        except ValueError:
            if self.options.consolidated is not None:
                raise
            return None

    def _inline(self, document: Document) -> Listed | None:
        found = document.content.get("consolidated_metadata")
        if found is None:
            return None
        listed = checked(found, Consolidated, f"{self.description}, zarr.json, consolidated_metadata").metadata
        return {join(self.place.path, path): Document("zarr.json", content) for path, content in listed.items()}

    def _zmetadata(self) -> tuple[Document, Listed] | None:
        content = run(get_bytes(self.place.store, join(self.place.path, ".zmetadata")))
        found = {} if content is None else parse(content, Consolidated, f"{self.description}, .zmetadata").metadata
        keys = [(key, *key.rpartition("/")[::2]) for key in found if key.endswith((".zgroup", ".zarray"))]
        documents = {path: Document(file, found[key], found.get(join(path, ".zattrs"))) for key, path, file in keys}
        if "" not in documents:
            return None
        root = loaded(documents.pop(""), f"{self.description}, ")
        return root, {join(self.place.path, path): document for path, document in documents.items()}


def _by_group(paths: Iterable[str]) -> dict[str, set[str]]:
    """The names in each group, from the paths of groups and arrays; a path ends at a part that is no name."""
    found: dict[str, set[str]] = {}
    for path in paths:
        above = ""
        for name in path.split("/", DEEPEST_GROUP + 1):  # what is deeper is never asked for
            found.setdefault(above, set()).add(name)
            if _why_no_name(name) is not None:
                break
            above = join(above, name)
    return found


def _why_no_name(name: str) -> str | None:
    """Why a part of a key of a store is no name of a member, as the end of a sentence; None where it is one."""
    return why_no_key(name) or ("it has a backslash, which zarr takes for a slash" if "\\" in name else None)


def is_far(store: Any) -> bool:
    """Whether requests to a store take long, or may do so: an unknown wrapper of a store can do anything."""
    own = ("zarr.storage", "zarr.experimental", "xarray_tensordict.")
    wrappers = layers_of(store)[:-1]
    return is_remote(store) or not all(type(wrapper).__module__.startswith(own) for wrapper in wrappers)


def state_of(store: Any) -> Any:
    """What changes with each commit to a store that is read document by document; None where that is not asked for.

    Readers of several documents compare it before and afterwards.
    """
    base = base_store(store)
    if isinstance(base, LocalStore):
        return [_written_at(base.root / name) for name in _OF_EACH_COMMIT]
    if isinstance(base, MemoryStore):
        return each_at_once(partial(get_bytes, base), _OF_EACH_COMMIT)
    return None


def _written_at(path: Path) -> tuple[int, int, int] | None:
    with suppress(OSError):
        status = os.stat(path)
        return status.st_ino, status.st_mtime_ns, status.st_size
    return None


def unpickles(array: zarr.Array[Any]) -> bool:
    """Whether a codec of the array loads pickles, which can run any code: numcodecs' own, under any name."""
    return any("pickle" in codec for codec in codec_names(array))


def holds_nodes(store: ZarrStoreBase, path: str) -> bool:
    """Whether a folder without a document, as some writers leave them for groups, holds groups or arrays."""

    async def holds_a_node(path: str, depth: int) -> bool:
        try:
            children = [child async for child in store.list_dir(path)]
        except NotADirectoryError:  # fsspec lists a file as a folder that holds itself
            return False
        for inner in (f"{path}/{child.rstrip('/')}" for child in children):
            for document in ("zarr.json", ".zgroup", ".zarray"):
                if await store.exists(f"{inner}/{document}"):
                    return True
            if depth and await holds_a_node(inner, depth - 1):
                return True
        return False

    return run(holds_a_node(path, _IMPLICIT_DEPTH))


# -- members -----------------------------------------------------------------------------------------------------------

Member = tuple[str, Any]
"""A name, and the group, the array, or the exception that opening it raised."""


class Tree:
    """The groups and arrays of a store, found from the groups above them.

    Parameters
    ----------
    description
        How messages call the store.
    listed
        What consolidated metadata list.
    """

    def __init__(self, description: str = "", listed: Listed | None = None) -> None:
        self.nodes = Nodes()
        self._description = description
        self._listed = listed
        self._names = None if listed is None else _by_group(listed)
        self._depth = 0
        self._above: dict[str, tuple[Any, ...]] = {}

    @property
    def is_consolidated(self) -> bool:
        """Whether consolidated metadata are all that is read."""
        return self._listed is not None

    def members(self, groups: Sequence[zarr.Group]) -> list[list[Member]]:
        """Open all members of some groups at once, each for itself; folders that are no groups are not among them."""
        if not groups:
            return []
        known = self._known(groups[0].store)
        with many_at_once() if is_far(groups[0].store) else nullcontext():
            names = list_members(groups) if known is None else [sorted(known.get(group.path, ())) for group in groups]
            check_size(self._description, sum(map(len, names)), path_key(groups[0].path)[self._depth :])
            places = [(group, name) for group, inside in zip(groups, names, strict=True) for name in inside]
            each = iter(self._opened(places))
        return [[(name, found) for name in inside if (found := next(each)) is not None] for inside in names]

    def _known(self, store: ZarrStoreBase) -> dict[str, set[str]] | None:
        """The names in each group, where consolidated metadata list them, or the store does so with one look."""
        if self._names is None and (keys := document_keys(store)) is not None:
            self._names = _by_group({key.rpartition("/")[0] for key in keys if "/" in key})
        return self._names

    def _opened(self, places: Sequence[tuple[zarr.Group, str]]) -> list[Any]:
        """What is at each place: a group, an array, an exception, or None."""
        reasons = [_why_no_name(name) for _, name in places]
        named = [place for place, why in zip(places, reasons, strict=True) if why is None]
        paths = [StorePath(group.store, join(group.path, name)) for group, name in named]
        if self._listed is not None:
            documents: list[Read] = [self._listed.get(path.path) for path in paths]
        else:
            store: Any = places[0][0].store if places else None
            asked = [StorePath(AtOnce(store), path.path) for path in paths] if is_far(store) else paths
            documents = read_documents(asked, places[0][0].metadata.zarr_format) if paths else []
        each = zip(paths, documents, strict=True)
        return [
            self._node(group, *next(each)) if why is None else NotEnteredError(f"{why}, which no name has")
            for (group, _), why in zip(places, reasons, strict=True)
        ]

    def _node(self, group: zarr.Group, place: StorePath, document: Read) -> Any:
        if isinstance(document, BaseException):
            return document
        try:
            node = self._without_document(group, place) if document is None else self.nodes.node(place, document)
            return self._refused(group, node) or node
        except Exception as error:  # zarr raises any class for what it does not know
            return error

    def _without_document(self, group: zarr.Group, place: StorePath) -> zarr.Group | None:
        """A group without a document of its own, as some writers leave them, that holds others; None where there is none."""
        version = group.metadata.zarr_format
        if self._names is not None:
            is_group = place.path in self._names
        else:
            is_group = (not is_local(group) or os.path.isdir(folder_of(place))) and holds_nodes(place.store, place.path)
        if not is_group and not self.is_consolidated and isinstance(read_documents([place], 5 - version)[0], Document):
            raise ValueError(f"it is of zarr format {5 - version}, and the group that it is in of {version}")
        return group_of(place, {}, version) if is_group else None

    def _refused(self, above: zarr.Group, node: Any) -> Exception | None:
        """Why a group is not entered: it is nested too deeply, or a link points from it to one above it."""
        if not isinstance(node, zarr.Group) or not is_local(node):
            return None
        known = self._above.get(above.path) or (_folder_identity(above),)
        identity = _folder_identity(node)
        self._above[node.path] = (*known, identity)
        return NotEnteredError("it is a link to a group that it is in") if identity in known else None

    def walk(self, group: zarr.Group) -> Iterator[tuple[str, zarr.Group | zarr.Array[Any]]]:
        """All groups and arrays below a group that can be opened, by path from it."""
        level = {"": group}
        while level:
            below: dict[str, zarr.Group] = {}
            for path, members in zip(level, self.members(list(level.values())), strict=True):
                for name, member in members:
                    if isinstance(member, zarr.Group | zarr.Array):
                        yield join(path, name), member
                    if isinstance(member, zarr.Group):
                        below[join(path, name)] = member
            level = below

    def child(self, group: zarr.Group, path: str | None) -> zarr.Group:
        """The group at a path in another.

        Raises
        ------
        FileNotFoundError
            Where there is none; the groups there are get listed.
        """
        parts: Key = path_key(path)
        if not parts:
            return group
        node = self._at(group, parts)
        if isinstance(node, zarr.Group):
            self._depth = len(path_key(node.path))
            return node
        found = "does not exist" if node is None else f"is no group that can be opened ({node})"
        there = [path_key(name) for name, child in self.walk(group) if isinstance(child, zarr.Group)]
        raise FileNotFoundError(
            f"{self._description}: group {group_name(parts)!r} {found}; {groups_there(parts, there)}"
        )

    def _at(self, group: zarr.Group, parts: Key) -> Any:
        above = group_of(StorePath(group.store, join(group.path, *parts[:-1])), {}, group.metadata.zarr_format)
        known = self._known(group.store)
        if known is not None and parts[-1] not in known.get(above.path, ()):
            return None
        return self._opened([(above, parts[-1])])[0]


def _folder_identity(group: zarr.Group) -> tuple[int, int]:
    status = os.stat(folder_of(group))
    return status.st_dev, status.st_ino
