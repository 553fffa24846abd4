"""Memory-mapped tensordicts as a :class:`~..base.Format` and as :class:`...core.model.Store`.

These are folders, ``.tdz`` archives, and checkpoints of replay buffers.
"""

from __future__ import annotations

import os
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from ...core.metadata import Size, checked, parse
from ...core.model import Key, LeftOut, RecordedBatch, StoredGroup, group_name, path_key, why_no_key
from ...core.naming import groups_there
from ...warnings import IncompleteStoreWarning, InferredBatchWarning, LeftOutWarning, warn
from ..base import Format, StoreOptions, archive_names
from ..identity import Described
from .files import TensorEntry, read_json, read_small, root_of
from .folders import META, LevelReader, add_leaf
from .levels import Level, show_rows

if TYPE_CHECKING:
    import xarray as xr

    from ...core.model import Store


def is_memmap_folder(path: Path) -> bool:
    """Whether a folder looks like a memory-mapped tensordict, or a checkpoint of a replay buffer of torchrl."""
    return any((path / name).is_file() for name in (META, STORAGE_META, f"storage/{META}", f"storage/{STORAGE_META}"))


def open_memmap(path: str, description: str, options: StoreOptions) -> MemmapStore:
    """Open a folder with a ``meta.json``, a ``.tdz`` archive, what ``ReplayBuffer.dumps`` wrote or ``storage`` in it.

    Raises
    ------
    FileNotFoundError
        If there is no such group.
    ValueError
        If it is no such store, or is damaged.
    """
    folder = Path(path)
    if folder.is_dir() and not (folder / META).is_file() and not (folder / STORAGE_META).is_file():
        folder /= "storage"
    with root_of(str(folder)) as location:
        if isinstance(location, Path) and (location / STORAGE_META).is_file():
            level = read_checkpoint(location, description, options)
        else:
            level = LevelReader(allow_pickle=options.allow_pickle).level(location)
    key = path_key(options.group)
    try:
        return MemmapStore(level, key, description)
    except KeyError:
        there = groups_there(key, _keys(level))
        raise FileNotFoundError(f"{description}: group {group_name(key)!r} does not exist; {there}") from None


class MemmapStore:
    """A memory-mapped tensordict, whose metadata have been read; see :class:`...core.model.Store`."""

    def __init__(self, top: Level, key: Key, description: str) -> None:
        self._top, self._key = top, key
        self._root = _at(top, key)
        self._description = description
        self._has_warned = False

    @property
    def description(self) -> str:
        return self._description

    def enclosing(self) -> MemmapStore | None:
        """The group that holds the opened one."""
        return MemmapStore(self._top, self._key[:-1], self._description) if self._key else None

    def close(self) -> None:
        """Nothing stays open."""

    def group(self, key: Key = ()) -> StoredGroup:
        """Describe the group at `key`; nothing is read but metadata."""
        level = _at(self._root, key)
        if level.ragged is not None and not self._has_warned:
            self._has_warned = True
            first, last = (group_name((*key, name)) for name in ("0", next(reversed(level.children))))
            warn(
                f"{self._description}: the members of the lazy stack at {group_name(key)!r} differ ({level.ragged}), so "
                f"they are shown as the groups {first!r} to {last!r}. Open one of them with group=, or, where they "
                f"differ in the number of rows alone, concatenate them with xr.open_datatree(...).td.concat(dim)",
                LeftOutWarning,
            )
        return StoredGroup(
            key,
            dict(level.arrays),
            tuple(level.children),
            recorded=None if level.batch is None else RecordedBatch(level.batch, level.names),
            left_out=[LeftOut((*key, name), reason) for name, reason in level.left_out.items()],
            tensorclass=level.tensorclass,
        )


def _at(level: Level, key: Key) -> Level:
    for part in key:
        level = level.children[part]
    return level


def _keys(level: Level, key: Key = ()) -> list[Key]:
    found = []
    for name, child in level.children.items():
        found += [(*key, name), *_keys(child, (*key, name))]
    return found


STORAGE_META = "storage_metadata.json"
_SINGLE = "_-single-tensor-_"
_COMPACT = frozenset({"_storage_shape", "shift", "is_full"})
"""Entries that the compact checkpoints of torchrl have (``TED2Flat``, ``TED2Nested``)."""


class _Checkpoint(msgspec.Struct):
    len: Size
    is_pytree: bool = False
    metadata: dict[str, TensorEntry] | None = None


class _Writer(msgspec.Struct):
    cursor: int | None = None
    rank_key: Any = None


def read_checkpoint(folder: Path, where: str, options: StoreOptions) -> Level:
    """The tensordict of the storage in a folder, by default trimmed to the rows that have been filled.

    Raises
    ------
    ValueError
        Where the metadata of the storage are damaged.
    """
    found, described = read_json(folder / STORAGE_META)
    what = f"{folder / STORAGE_META}: it is not the metadata of a storage of torchrl"
    checkpoint, cursor = checked(found, _Checkpoint, what), writer_cursor(folder)
    if checkpoint.is_pytree:
        return _pytree(folder, checkpoint, described, cursor, where, filled=options.filled)
    level = LevelReader(allow_pickle=options.allow_pickle).level(folder)
    if level.arrays.keys() >= _COMPACT:
        warn(
            f"{where}: the replay buffer was saved in a compact form of torchrl's own (FlatStorageCheckpointer or "
            f"NestedStorageCheckpointer), in which observations and their successors share rows. It is shown as it is "
            f"stored, not trimmed to its {checkpoint.len} elements; load it with torchrl, and dump it with the default "
            f"checkpointer",
            InferredBatchWarning,
        )
        return level
    if options.filled and level.batch:
        _show_filled(level, level.batch, checkpoint.len, cursor, where)
    return level


def _show_filled(level: Level, batch: tuple[int, ...], length: int, cursor: int | None, where: str) -> None:
    """Show the rows that have been filled, in the order in which they were written."""
    rows, first = _filled_rows(length, batch, cursor, where), 0
    if cursor and rows == batch[0] != cursor:
        if 0 < cursor < rows:
            first = cursor
        else:
            warn(
                f"{where}: the writer of the replay buffer notes that it would write row {cursor} next, and there are {rows}; "
                f"the rows are in the order of the storage, and which of them is the oldest is not known",
                IncompleteStoreWarning,
            )
    if first or rows < batch[0]:
        show_rows(level, batch[0], rows, first)


def _filled_rows(length: int, batch: tuple[int, ...], cursor: int | None, where: str) -> int:
    """How many rows along the first dim have been filled.

    A storage counts elements over its ``ndim`` leading dims, and does not record its ``ndim``. The cursor of the
    writer counts rows.
    """
    capacity, elements = batch[0], 1
    candidates = []
    for size in (1, *batch[1:]):
        elements *= size
        rows = -(-length // max(elements, 1))
        if rows <= capacity and rows not in candidates:
            candidates.append(rows)
    if len(candidates) > 1:
        agreeing = [rows for rows in candidates if cursor is not None and cursor in (rows, rows % capacity)]
        candidates = agreeing or candidates
    if len(candidates) > 1:
        warn(
            f"{where}: the replay buffer holds {length} elements of batch size {list(batch)}, which are {candidates} rows "
            f"for a storage of ndim=1, 2, ...; {candidates[0]} are shown, and the last of them may be empty. Open with "
            f"filled=False for all {capacity}",
            InferredBatchWarning,
        )
    return candidates[0] if candidates else capacity


def _pytree(
    folder: Path, checkpoint: _Checkpoint, described: Described, cursor: int | None, where: str, *, filled: bool
) -> Level:
    """The level that a storage of tensors in dicts, lists and tuples is shown as."""
    entries = checkpoint.metadata or {}
    sizes = zip(*(entry.shape for entry in entries.values()), strict=False)
    shared = tuple(size[0] for size in takewhile(lambda size: len(set(size)) == 1, sizes))
    root = Level(shared[:1])
    for path, entry in entries.items():
        parts, file = [part.replace("_<dot>_", ".") for part in path.split(".")], folder / f"{path}.memmap"
        if "/" in path or why_no_key("/".join(parts)) is not None:
            root.left_out[path] = "its path in the metadata of the storage is none of a tensor"
            continue
        if file.is_file():
            parts = [path]
        else:
            file = folder.joinpath(*path.split(".")).with_suffix(".memmap")
        if parts == [_SINGLE]:
            parts = [folder.parent.name if folder.name == "storage" else folder.name]
        level = root
        for part in parts[:-1]:
            level = level.children.setdefault(part, Level(shared[:1]))
        add_leaf(level, parts[-1], file, described, ("metadata", path), entry)
    if filled and shared:
        _show_filled(root, shared, checkpoint.len, cursor, where)
    return root


# --- the order in which rows were written -----------------------------------------------------------------------------


def writer_cursor(folder: Path) -> int | None:
    """Where the writer of a buffer would write next, of which torchrl keeps a note beside the storage.

    A writer that keeps the rows with the highest values has no such order.
    """
    file = folder.parent / "writer" / "metadata.json"
    try:
        content = read_small(file)
    except FileNotFoundError:
        return None
    found = parse(content, _Writer, str(file))
    return None if found.rank_key is not None else found.cursor


class MemmapFormat(Format):
    """What ``td.memmap``, ``td.save`` and ``ReplayBuffer.dumps`` write."""

    expects = "a memory-mapped tensordict"
    marks = "'meta.json'"
    targets: ClassVar = {"memmap": (), "tdz": (".tdz",)}
    why_not_annotated = (
        "a memory-mapped tensordict records its batch, and has no place for the names of other dims; set td.names with "
        "tensordict, or give the names on opening with dims={...}"
    )

    def claims(self, source: Any) -> bool:
        if not isinstance(source, str):
            return False
        if os.path.isdir(source):
            return is_memmap_folder(Path(source)) or bool(_compact_files(source))
        return _is_archive(source)

    def open(self, source: Any, description: str, options: StoreOptions) -> Store:
        if os.path.isdir(source) and not is_memmap_folder(Path(source)):
            raise ValueError(
                f"{description}: expected a checkpoint of a replay buffer with memory-mapped tensors, found one that "
                f"keeps them in an HDF5 file, in a compact form of torchrl's own; open {_compact_files(source)[0]!r} for "
                f"its arrays"
            )
        return open_memmap(source, description, options)

    def kind(self, source: Any) -> str:
        return "archive of a tensordict" if str(source).endswith(".tdz") else "memory-mapped tensordict"

    def why_not_changed(self, source: Any) -> str | None:
        return "it is a memory-mapped tensordict, which tensordict.TensorDict.load_memmap(path, mode='r+') opens for writing"

    def write(self, ds: xr.Dataset | xr.DataTree, target: str, *, layout: str, chunks: Any, **options: Any) -> None:
        ds.td.to_memmap(target, **options)


def _compact_files(folder: str) -> list[str]:
    """The HDF5 files of a checkpoint of torchrl that keeps no memory-mapped tensors."""
    return sorted(map(str, Path(folder).glob("storage/*.h5")))


def _is_archive(path: str) -> bool:
    names = archive_names(path)
    return path.endswith(".tdz") if names is None else "meta.json" in names
