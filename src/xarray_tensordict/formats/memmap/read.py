"""Memory-mapped tensordicts as :class:`...core.model.Store`: folders, ``.tdz`` archives, and checkpoints of replay buffers.

Opening reads the ``meta.json`` files alone.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...core.model import Key, LeftOut, RecordedBatch, StoredArray, StoredGroup, group_name
from ...core.suggest import there_are
from ...warnings import IncompleteStoreWarning, InferredBatchWarning, LeftOutWarning, warn
from ..fingerprint import Described, Entry, said_of
from .age_order import in_age_order, writer_cursor
from .consolidated import consolidated_level, read_footer
from .files import ArchiveFiles, FolderFiles
from .levels import META, Level, LevelReader, Node

STORAGE_META = "storage_metadata.json"
_SINGLE = "_-single-tensor-_"
_COMPACT = frozenset({"_storage_shape", "shift", "is_full"})
"""Entries that the compact checkpoints of torchrl have (``TED2Flat``, ``TED2Nested``)."""


def is_memmap_folder(path: Path) -> bool:
    """Whether a folder looks like a memory-mapped tensordict, or a checkpoint of a replay buffer of torchrl."""
    return any((path / name).is_file() for name in (META, STORAGE_META, f"storage/{META}", f"storage/{STORAGE_META}"))


class MemmapStore:
    """A memory-mapped tensordict, open for reading. Use :meth:`open`.

    Parameters
    ----------
    reader
        What reads its levels.
    root
        The level that is opened.
    description
        How messages call it.
    """

    def __init__(self, reader: LevelReader, root: Node, description: str, turn: tuple[int, int] | None = None) -> None:
        self._reader = reader
        self._turn = turn
        self._description = description
        self._nodes: dict[Key, Node] = {(): root}
        self._levels: dict[Key, Level] = {}
        self._told = False

    @classmethod
    def open(
        cls,
        path: str,
        *,
        description: str,
        root: str | None = None,
        allow_pickle: bool = False,
        filled: bool = True,
    ) -> MemmapStore:
        """Open a folder or an archive.

        Parameters
        ----------
        path
            A folder with a ``meta.json``; what ``ReplayBuffer.dumps`` wrote, or the folder ``storage`` in it; a
            ``.tdz`` archive.
        description
            How messages call it.
        root
            The path of the nested tensordict to open.
        allow_pickle
            Whether pickled non-tensor entries are loaded. This runs code that the store brings.
        filled
            Whether a replay buffer is trimmed to the rows that have been filled.

        Raises
        ------
        FileNotFoundError
            If there is no group `root`.
        ValueError
            If it is no such store, or is damaged.
        """
        status = os.stat(path)
        if os.path.isfile(path) and not zipfile.is_zipfile(path) and (footer := read_footer(path)) is not None:
            level = consolidated_level(path, footer, status)
            return cls(LevelReader(FolderFiles(os.path.dirname(path))), level, description)._at(root)
        if os.path.isfile(path):
            reader = LevelReader(ArchiveFiles(path), allow_pickle=allow_pickle)
            return cls(reader, reader.root(), description)._at(root)
        folder = Path(path)
        if not (folder / META).is_file() and not (folder / STORAGE_META).is_file():
            folder /= "storage"
        files = FolderFiles(str(folder))
        described = files.described((STORAGE_META,))
        checkpoint = None if described is None else _checkpoint(folder)
        if checkpoint is None or described is None:
            reader = LevelReader(files, allow_pickle=allow_pickle)
            return cls(reader, reader.root(), description)._at(root)
        if checkpoint.get("is_pytree"):
            level, trim = _pytree(files, folder, checkpoint, described, description, filled=filled)
            return cls(LevelReader(files), level, description, _turn(folder, trim, description))._at(root)
        reader = LevelReader(files, allow_pickle=allow_pickle)
        node = reader.root()
        level = reader.level(node)
        batch = level.batch or ()
        if level.values.keys() >= _COMPACT:
            _tell_compact(description, checkpoint)
            batch = ()
        trim = None
        if filled and batch:
            trim = (batch[0], _filled_rows(checkpoint, batch, writer_cursor(folder), description))
            reader = LevelReader(files, allow_pickle=allow_pickle, trim=trim)
        return cls(reader, node, description, _turn(folder, trim, description))._at(root)

    @property
    def description(self) -> str:
        return self._description

    @property
    def has_tensordict_marker(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing stays open."""

    def group(self, key: Key = ()) -> StoredGroup:
        """Describe the group at `key`; nothing is read but metadata."""
        level = self._level(key)
        if level.ragged is not None:
            self._tell_ragged(key, level)
        arrays: dict[str, StoredArray] = {}
        for name, leaf in level.leaves.items():
            encoding = {} if leaf.torch_dtype is None else {"torch_dtype": leaf.torch_dtype}
            ndim = len(leaf.data.shape)
            # a compressed entry is decompressed from its beginning for each row
            pieces = tuple(leaf.data.shape) if getattr(leaf.data, "is_compressed", False) else None
            arrays[name] = StoredArray(name, leaf.data, (None,) * ndim, {}, encoding, raw=ndim > 0, pieces=pieces)
        for name, value in level.values.items():
            dims = (None,) * value.ndim
            arrays[name] = StoredArray(name, value, dims, role="coord", non_tensor=True, raw=value.ndim > 0)
        if self._turn is not None:
            arrays = {name: in_age_order(array, *self._turn) for name, array in arrays.items()}
        return StoredGroup(
            key,
            arrays,
            tuple(level.children),
            recorded=None if level.batch is None else RecordedBatch(level.batch, level.names),
            left_out=[LeftOut((*key, name), reason) for name, reason in level.left_out.items()],
            tensorclass=level.tensorclass,
        )

    def _at(self, root: str | None) -> MemmapStore:
        key = tuple(part for part in (root or "").split("/") if part)
        try:
            self._level(key)
        except KeyError:
            raise FileNotFoundError(
                f"{self._description}: group {group_name(key)!r} does not exist; "
                f"{there_are(group_name(key), self._groups(), 'the groups there are')}"
            ) from None
        self._nodes, self._levels = {(): self._nodes[key]}, {(): self._levels[key]}
        return self

    def _level(self, key: Key) -> Level:
        if key not in self._levels:
            if key not in self._nodes:
                parent = self._level(key[:-1])
                if key[-1] not in parent.children:
                    raise KeyError(f"{self._description}: there is no group {group_name(key)!r}")
                self._nodes[key] = parent.children[key[-1]]
            self._levels[key] = self._reader.level(self._nodes[key])
        return self._levels[key]

    def _groups(self, key: Key = ()) -> list[str]:
        found = []
        for name in self._level(key).children:
            found += [group_name((*key, name)), *self._groups((*key, name))]
        return found

    def _tell_ragged(self, key: Key, level: Level) -> None:
        """One warning: a lazy stack whose members differ has no arrays."""
        if self._told:
            return
        self._told = True

        last = group_name((*key, next(reversed(level.children))))
        warn(
            f"{self._description}: the members of the lazy stack at {group_name(key)!r} differ ({level.ragged}), so "
            f"they are "
            f"shown as the groups {group_name((*key, '0'))!r} to {last!r}. Open one of them with group=, or, where they "
            f"differ in the number of rows alone, concatenate them with xr.open_datatree(...).td.concat(dim)",
            LeftOutWarning,
        )


# -- checkpoints of replay buffers (torchrl/data/replay_buffers/checkpointers.py) --------------------------------------


def _checkpoint(folder: Path) -> dict[str, Any]:
    path = folder / STORAGE_META
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: it is no JSON ({error}); it is damaged, or not of torchrl") from error
    if not (isinstance(found, dict) and type(found.get("len")) is int):
        raise ValueError(f"{path}: expected the metadata of a storage of torchrl, with 'len', found {found!r:.200}")
    return found


def _turn(folder: Path, trim: tuple[int, int] | None, where: str) -> tuple[int, int] | None:
    """The rows of a full buffer, and the one that is the oldest; None where they are in the order of their age."""
    cursor = writer_cursor(folder)
    if trim is None or not cursor or trim[1] < trim[0]:
        return None
    if 0 < cursor < trim[1]:
        return trim[1], cursor
    if cursor != trim[1]:
        warn(
            f"{where}: the writer of the replay buffer notes that it would write row {cursor} next, and there are {trim[1]}; the "
            f"rows are in the order of the storage, and which of them is the oldest is not known",
            IncompleteStoreWarning,
        )
    return None


def _filled_rows(checkpoint: Mapping[str, Any], batch: tuple[int, ...], cursor: int | None, where: str) -> int:
    """How many rows along the first dim have been filled.

    A storage counts elements over its ``ndim`` leading dims, and does not say what its ``ndim`` is. The cursor of the
    writer counts rows.
    """
    length, capacity = int(checkpoint["len"]), batch[0]
    candidates = []
    elements = 1
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
            f"{where}: the replay buffer holds {length} elements of batch size {list(batch)}, which are {candidates} "
            f"rows for "
            f"a storage of ndim=1, 2, ...; {candidates[0]} are shown, and the last of them may be empty. Open with "
            f"filled=False for all {capacity}",
            InferredBatchWarning,
        )
    return candidates[0] if candidates else capacity


def _tell_compact(where: str, checkpoint: Mapping[str, Any]) -> None:

    warn(
        f"{where}: the replay buffer was saved in a compact form of torchrl's own (FlatStorageCheckpointer or "
        f"NestedStorageCheckpointer), in which observations and their successors share rows. It is shown as it is "
        f"stored, not trimmed to its {checkpoint['len']} elements; load it with torchrl, and dump it with the default "
        f"checkpointer",
        InferredBatchWarning,
    )


def _shared_lead(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    shared: tuple[int, ...] = ()
    for sizes in zip(*shapes, strict=False):
        if len(set(sizes)) > 1:
            break
        shared = (*shared, sizes[0])
    return shared


def _pytree(
    files: FolderFiles,
    folder: Path,
    checkpoint: Mapping[str, Any],
    described: Described,
    where: str,
    *,
    filled: bool,
) -> tuple[Level, tuple[int, int] | None]:
    """The level that a storage of tensors in dicts, lists and tuples is shown as, and the rows there are and are shown."""
    entries: Mapping[str, Mapping[str, Any]] = checkpoint.get("metadata") or {}
    shapes = [tuple(entry["shape"]) for entry in entries.values()]
    shared = _shared_lead(shapes)
    rows = _filled_rows(checkpoint, shared, writer_cursor(folder), where) if filled and shared else None
    batch = () if not shared else (shared[0] if rows is None else rows,)
    trim = None if rows is None else (shared[0], rows)
    reader = LevelReader(files, trim=trim)
    root = Level(batch)
    for path, entry in entries.items():
        parts = [part.replace("_<dot>_", ".") for part in path.split(".")]
        *above, last = path.split(".")
        stored: Key = (*above, f"{last}.memmap")
        if (folder / f"{path}.memmap").is_file():
            parts, stored = [path], (f"{path}.memmap",)
        if parts == [_SINGLE]:
            parts = [folder.parent.name if folder.name == "storage" else folder.name]
        level = root
        for part in parts[:-1]:
            below = level.children.setdefault(part, Level(batch))
            assert isinstance(below, Level)
            level = below
        reader.add_leaf(level, parts[-1], entry, stored, Entry(described, ("metadata", path), said_of(entry)))
    return root, trim
