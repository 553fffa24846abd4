"""``ds.td.to_zarr``: a store is created, replaced or changed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import zarr
from zarr.abc.store import Store
from zarr.storage import LocalStore, StorePath, ZipStore

from ..._compat.zarr import (
    Document,
    LocalFiles,
    each_at_once,
    get_bytes,
    is_transactional,
    join,
    list_keys,
    read_documents,
    run,
    set_bytes,
)
from ...core.metadata import INCOMPLETE_ATTR
from ...core.model import Key, group_name, is_url, path_key
from ...writing.plan import Source, plan_write, stream_source
from ...writing.running import replaced
from ..identity import Place, describe_source, place_of, refuse_reading_from
from .arrays import loaded
from .change import Change, carry_out, delayed, settle, writes, zarr_writes
from .new_arrays import HOLDS, NewGroup, ZarrOptions, new_groups
from .transaction import LOCK, as_json, is_document, pending, taken

Groups = Mapping[Key, NewGroup]


def write_store(source: Source, target: ZarrTarget, options: ZarrOptions) -> Any:
    """Write a store as ``Dataset.to_zarr`` does with the same arguments.

    Returns
    -------
    dask.delayed.Delayed or None
        With ``compute=False`` what writes the values.

    Raises
    ------
    FileExistsError
        Where the target exists and may not be replaced.
    FileNotFoundError
        Where there is no store to be changed.
    ValueError, TypeError, NotImplementedError
        For what does not fit the store; nothing has been written.
    BlockingIOError, OSError
        Where another writer is changing the store, or has changed it; nothing has been written.
    """
    mode, append_dim, region = options.mode, options.append_dim, options.region
    if append_dim is None and region is None and mode not in {"a", "a-", "r+"}:
        return _create(source, target, options)
    if target.kind == "zip":
        raise ValueError(
            f"{target.description}: a zip file cannot be changed in place; unpack it, change the folder, and write "
            "it again with mode='w'"
        )
    if append_dim is not None and region is not None:
        raise ValueError(f"expected append_dim or region, found both: append_dim={append_dim!r}, region={region!r}")
    if append_dim is not None and mode not in {None, "a", "a-"}:
        raise ValueError(f"append_dim={append_dim!r} goes with mode='a' or none, found mode={mode!r}")
    if region is not None and mode not in {None, "a", "r+"}:
        raise ValueError(f"region goes with mode='r+', 'a' or none, found mode={mode!r}")
    found = target.group_format()
    if found is None:
        if mode in {"a", "a-"} and append_dim is None:
            return _create(source, target, options)
        raise FileNotFoundError(f"{target.name}: there is no zarr group to change; write one first, with mode='w'")
    options = replace(options, zarr_format=_checked_format(target, options, found))
    return _change(source, target, options) if region is None else _write_region(source, target, options)


def _checked_format(target: ZarrTarget, options: ZarrOptions, found: int) -> int:
    if options.zarr_format not in (None, found):
        raise ValueError(
            f"{target.name}: zarr_format={options.zarr_format} was given, and the store has zarr format {found}"
        )
    return found


# -- an existing store -------------------------------------------------------------------------------------------------


def _change(source: Source, target: ZarrTarget, options: ZarrOptions) -> Any:
    from .update import add, append, open_there

    with taken(target.store, target.name, target.root()), zarr_writes():
        there = open_there(source, target, options)
        if options.append_dim is None:
            add(source, there, options)
        else:
            append(source, there, str(options.append_dim))
        if options.compute:
            carry_out(there.change, progress=options.progress)
            return None
    return delayed(there.change)


def _write_region(source: Source, target: ZarrTarget, options: ZarrOptions) -> Any:
    """Whole chunks are written without more ado, by many processes at once; for anything else the store is taken."""
    from .update import open_there, write_region

    def planned() -> tuple[Change, bool]:
        there = open_there(source, target, options)
        is_apart = write_region(source, there, options.region)
        return there.change, is_apart

    root = target.root()
    if pending(target.store, root) is not None:
        with taken(target.store, target.name, root):
            pass  # which puts back what a killed writer has left
    change, is_apart = planned()
    last = partial(settle, target, change.consolidate)
    if is_apart:
        with zarr_writes():
            change.write_in_memory()
            if not options.compute:
                return writes(change.held, last)
            change.compute(progress=options.progress)
    else:
        with taken(target.store, target.name, root):
            change, _ = planned()
            if options.compute:
                carry_out(change, progress=options.progress)
        if not options.compute:
            return delayed(change)
    last()
    return None


# -- a new store -------------------------------------------------------------------------------------------------------


def _create(source: Source, target: ZarrTarget, options: ZarrOptions) -> Any:
    """Write a new store: a local folder or a zip file beside and renamed, any other in place."""
    if options.mode == "w":
        check_replaceable(target)
    else:
        _refuse_existing(target)
    if target.kind == "zip" and target.prefix and target.exists():
        raise ValueError(
            f"{target.name}: a zip file cannot be changed in place, and all else in it would be lost; unpack it, write the "
            "group to the folder, and pack it again"
        )
    if target.kind == "zip" and not options.compute:
        raise NotImplementedError(
            f"{target.description}: a zip file is written at once, compute=False is not possible; write to a folder, "
            "and pack it when it is whole"
        )
    # a group in a store has the format of the store
    found = replace(target, prefix=()).group_format() if target.prefix and target.kind != "zip" else None
    version = options.zarr_format or int(zarr.config.get("default_zarr_format", 3))
    options = replace(options, zarr_format=version if found is None else _checked_format(target, options, found))
    in_place = target.kind == "store" or (target.kind == "folder" and not options.compute)
    if in_place:
        refuse_reading_from(source.flat, target.place, target.name)
    stream_source(source)
    groups = new_groups(plan_write(source, options.layout, HOLDS, encoding=options.encoding), options)
    if in_place:
        return _create_in_place(groups, target, options)
    return _create_zip(groups, target, options) if target.kind == "zip" else _create_folder(groups, target, options)


def _refuse_existing(target: ZarrTarget) -> None:
    if target.exists():
        raise FileExistsError(
            f"{target.name}: there is something already. Pass mode='w' to replace it, mode='a' to add to it, or "
            "append_dim= to append; or choose another path"
        )


def _staged(groups: Groups, target: ZarrTarget, options: ZarrOptions) -> Change:
    """All groups of a new store, staged."""
    with zarr_writes():
        change = Change(target, options.zarr_format or 3, options.consolidated is not False)
        change.require_parents()
        for key, group in groups.items():
            change.create(key, group)
    return change


def _create_folder(groups: Groups, target: ZarrTarget, options: ZarrOptions) -> None:
    """A new folder, written beside and renamed; in an existing store it is that of the group alone."""
    place = root = Path(os.path.realpath(target.path))
    lock: Callable[[], Any] = nullcontext
    inner = target
    if target.prefix and root.exists():
        place, inner = root.joinpath(*target.prefix), replace(target, prefix=())
        lock = partial(_group_placed, target, options)
        options = replace(options, consolidated=False)
    elif root.exists():
        lock = partial(taken, target.store, target.name)
    with replaced(place, lock, exclusive=options.mode != "w" and place == root, beside=root) as beside:
        carry_out(_staged(groups, replace(inner, store=LocalStore(beside)), options), progress=options.progress)


@contextmanager
def _group_placed(target: ZarrTarget, options: ZarrOptions) -> Iterator[None]:
    """Around the placing of a group in a store: the groups above it, and consolidated metadata where there are any."""
    with taken(target.store, target.name, target.root()), zarr_writes():
        if options.mode != "w":
            _refuse_existing(target)
        change = Change(target, options.zarr_format or 3, options.consolidated is not False)
        change.require_parents()
        Path(os.path.realpath(target.path)).joinpath(*target.prefix[:-1]).mkdir(parents=True, exist_ok=True)
        yield
        change.finish()


def _create_in_place(groups: Groups, target: ZarrTarget, options: ZarrOptions) -> Any:
    """Nothing is seen of a new store before it is whole; one that is replaced is marked until then."""
    with taken(target.store, target.name, target.root()), zarr_writes():
        if options.mode == "w":
            _empty(target, options)
        else:
            _refuse_existing(target)
        change = _staged(groups, target, options)
        change.set_attrs(change.path, **{INCOMPLETE_ATTR: None})
        if options.compute:
            carry_out(change, progress=options.progress)
            return None
        held = change.held
        if held:  # a template: tensordict opens it, and other processes may fill it
            arrays = [
                join(*key, str(name)) for key, g in groups.items() for name, v in g.ds.variables.items() if v.chunks
            ]
            change.set_attrs(change.path, **{INCOMPLETE_ATTR: {"kind": "create", "created": True, "arrays": arrays}})
        change.blocks = [block for block in change.blocks if not hasattr(block[0], "dask")]
        carry_out(change, progress=False)
    return writes(held, partial(settle, target, change.consolidate, all_written=True))


def _empty(target: ZarrTarget, options: ZarrOptions) -> None:
    """Leave an empty group that is marked in the place of the old one."""
    path, version = "/".join(target.prefix), options.zarr_format or 3
    if node_at(target.store, path) is None:
        return
    if is_transactional(target.store):
        run(target.store.delete_dir(path))
        return
    mark = {INCOMPLETE_ATTR: {"kind": "create"}}
    if version == 3:
        documents: dict[str, Any] = {"zarr.json": {"zarr_format": 3, "node_type": "group", "attributes": mark}}
    else:
        documents = {".zattrs": mark, ".zgroup": {"zarr_format": 2}}
    kept = {join(path, name): as_json(content) for name, content in documents.items()}
    for key, content in kept.items():
        run(set_bytes(target.store, key, content))
    keys = list_keys(target.store, f"{path}/" if path else "")
    each_at_once(target.store.delete, [key for key in keys if key not in kept and key.rpartition("/")[2] != LOCK])


def _create_zip(groups: Groups, target: ZarrTarget, options: ZarrOptions) -> None:
    """Write to a folder, then pack it: an entry of a zip file cannot be replaced, and zarr would write some twice."""
    opened = target.store if isinstance(target.store, ZipStore) else None
    if opened is not None and list_keys(opened):
        raise ValueError(
            f"{target.description}: the zip store holds something already, and an entry of a zip file cannot be replaced; "
            f"open a new one with mode='w'"
        )
    parent = Path(os.path.realpath(target.path)).parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.path.name}.", suffix=".tmp", dir=parent) as folder:
        whole, options = replace(target, store=LocalStore(folder)), replace(options, consolidated=False)
        carry_out(_staged(groups, whole, options), progress=options.progress)
        if opened is not None:
            _copy(whole.store, opened)
            return
        with replaced(target.path) as beside, ZipStore(beside, mode="w") as archive:
            _copy(whole.store, archive)


def _copy(source: Store, archive: ZipStore) -> None:
    """Each entry once, those of the root last, so that a part of an archive opens as no store."""
    for key in sorted(list_keys(source), key=lambda key: (-key.count("/"), is_document(key), key != ".zattrs", key)):
        content = run(get_bytes(source, key))
        assert content is not None
        run(set_bytes(archive, key, content))


# -- where a store is written ------------------------------------------------------------------------------------------

_MARKS = ("zarr.json", ".zgroup", ".zarray", ".zmetadata", ".zattrs")


@dataclass(frozen=True)
class ZarrTarget:
    """A place for a store.

    Attributes
    ----------
    kind
        "folder": a local folder, which can be written beside and renamed. "zip": one file, written once.
        "store": any other store, written in place.
    description
        How messages call it.
    path
        Of a folder or a zip file, absolute; of no meaning for any other store.
    store
        The store of zarr.
    prefix
        The group in it that is written.
    """

    kind: Literal["folder", "zip", "store"]
    description: str
    path: Path
    store: Store
    prefix: Key

    @property
    def name(self) -> str:
        """The target with its group, as messages call it."""
        return f"{self.description}, group {group_name(self.prefix)!r}" if self.prefix else self.description

    @property
    def place(self) -> Place:
        """The group, as a place."""
        return place_of(self.store).below("/".join(self.prefix))

    def exists(self) -> bool:
        """Whether there is anything at the target group."""
        if self.kind == "store":
            return node_at(self.store, "/".join(self.prefix)) is not None
        if self.kind == "zip":
            return self.path.exists()
        place = self.path.joinpath(*self.prefix)
        names = {child.name for child in place.iterdir()} if place.is_dir() else set()
        return place.is_file() or bool(names - {LOCK})

    def group_format(self) -> int | None:
        """The zarr format of an existing group, else None."""
        if self.kind != "store" and not self.path.exists():
            return None
        found = node_at(self.store, "/".join(self.prefix))
        return found[1] if found is not None and found[0] == "group" else None

    def root(self) -> str:
        """The path of the outermost group: where the metadata is consolidated, and a change is noted."""
        for length in range(len(self.prefix) + 1):
            path = "/".join(self.prefix[:length])
            if node_at(self.store, path) is not None:
                return path
        return ""


def node_at(store: Store, path: str) -> tuple[str, int] | None:
    """What is at a path of a store, "group" or "array", and its zarr format; None where there is nothing."""
    for version in (3, 2):
        (found,) = read_documents([StorePath(store, path)], version)
        if isinstance(found, BaseException) and not isinstance(found, KeyError):  # of stores that have no v2
            raise found
        if isinstance(found, Document):
            kind = "array" if found.file == ".zarray" else "group"
            return str(loaded(found).content.get("node_type", kind)), version
    return None


def resolve_target(store: Any, group: str | None, storage_options: dict[str, Any] | None) -> ZarrTarget:
    """Resolve the ``store`` argument; relative paths start at the present working directory, now and later.

    Raises
    ------
    TypeError
        For what is no store.
    PermissionError
        For a store, or a group of one, that was opened for reading only.
    """
    prefix = path_key(group)
    if type(store).__module__ == "fsspec.mapping":
        store = zarr.storage.FsspecStore.from_mapper(store)
    description = describe_source(store)
    if getattr(store, "read_only", False) is True:
        raise PermissionError(f"{description}: the store was opened for reading only; open it for writing")
    if isinstance(store, zarr.Group | zarr.storage.StorePath):
        prefix = (*path_key(store.path), *prefix)
        store = store.store
    if isinstance(store, zarr.storage.LocalStore):
        return _folder(store.root, description, prefix)
    if isinstance(store, zarr.storage.ZipStore):
        return ZarrTarget("zip", description, Path(store.path), store, prefix)
    if isinstance(store, str | os.PathLike):
        text = os.fsdecode(os.fspath(store))
        if is_url(text):
            opened = zarr.storage.FsspecStore.from_url(text, storage_options=storage_options)
            return ZarrTarget("store", description, Path(), opened, prefix)
        return _folder(text.removeprefix("file://"), description, prefix)
    if isinstance(store, dict):
        store = zarr.storage.MemoryStore(store)
    if isinstance(store, Store):
        return ZarrTarget("store", description, Path(), store, prefix)
    raise TypeError(
        f"store: expected a path, a URL, a zarr store or a zarr group to write to, found {type(store).__name__}"
    )


def _folder(path: Any, description: str, prefix: Key) -> ZarrTarget:
    absolute = Path(os.path.abspath(os.path.expanduser(path)))
    kind: Literal["folder", "zip"] = "zip" if absolute.suffix == ".zip" or absolute.is_file() else "folder"
    return ZarrTarget(kind, description, absolute, LocalFiles(absolute), prefix)


def check_replaceable(target: ZarrTarget) -> None:
    """Raise unless what is at a local target is a zarr store: ``mode="w"`` removes it.

    Raises
    ------
    ValueError
        For a folder or file of anything else.
    """
    if target.kind == "store" or not target.path.exists():
        return
    if target.kind == "zip":
        with target.path.open("rb") as file:
            is_zip = target.path.is_file() and file.read(2) in (b"PK", b"")
        if not is_zip:
            raise ValueError(
                f"{target.description}: mode='w' would replace this file, which is no zip file; delete it first"
            )
        return
    there = {child.name for child in target.path.iterdir()} - {LOCK}
    if there and not any(name in there for name in _MARKS):
        raise ValueError(
            f"{target.description}: mode='w' would replace this folder, which is no zarr store: it holds "
            f"{sorted(there)[:5]}; choose another path, or delete it first"
        )
