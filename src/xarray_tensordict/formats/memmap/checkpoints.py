"""Checkpoints of torchrl's replay buffers (torchrl/data/replay_buffers/checkpointers.py): a tensordict and its counts."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from ...warnings import IncompleteStoreWarning, InferredBatchWarning, warn
from ..base import StoreOptions
from ..fingerprint import Described, Entry, said_of
from .age_order import in_age_order, writer_cursor
from .files import read_json
from .levels import Level, LevelReader

STORAGE_META = "storage_metadata.json"
_SINGLE = "_-single-tensor-_"
_COMPACT = frozenset({"_storage_shape", "shift", "is_full"})
"""Entries that the compact checkpoints of torchrl have (``TED2Flat``, ``TED2Nested``)."""


def read_checkpoint(folder: Path, where: str, options: StoreOptions) -> Level:
    """The tensordict of the storage in a folder, by default trimmed to the rows that have been filled.

    Raises
    ------
    ValueError
        Where the metadata of the storage are damaged.
    """
    checkpoint, described = read_json(folder / STORAGE_META)
    if not (isinstance(checkpoint, dict) and type(checkpoint.get("len")) is int):
        raise ValueError(
            f"{folder / STORAGE_META}: expected the metadata of a storage of torchrl, with 'len', found {checkpoint!r:.200}"
        )
    if checkpoint.get("is_pytree"):
        return _pytree(folder, checkpoint, described, where, filled=options.filled)
    level = LevelReader(allow_pickle=options.allow_pickle).level(folder)
    if level.arrays.keys() >= _COMPACT:
        warn(
            f"{where}: the replay buffer was saved in a compact form of torchrl's own (FlatStorageCheckpointer or "
            f"NestedStorageCheckpointer), in which observations and their successors share rows. It is shown as it is "
            f"stored, not trimmed to its {checkpoint['len']} elements; load it with torchrl, and dump it with the default "
            f"checkpointer",
            InferredBatchWarning,
        )
        return level
    if not options.filled or not level.batch:
        return level
    trim = level.batch[0], _filled_rows(checkpoint["len"], level.batch, writer_cursor(folder), where)
    level = LevelReader(allow_pickle=options.allow_pickle, trim=trim).level(folder)
    _begin_with_the_oldest(level, trim, writer_cursor(folder), where)
    return level


def _begin_with_the_oldest(level: Level, trim: tuple[int, int] | None, cursor: int | None, where: str) -> None:
    """Turn the rows of a full buffer so that they are in the order in which they were written."""
    if trim is None or not cursor or trim[1] < trim[0] or cursor == trim[1]:
        return
    if not 0 < cursor < trim[1]:
        warn(
            f"{where}: the writer of the replay buffer notes that it would write row {cursor} next, and there are {trim[1]}; the "
            f"rows are in the order of the storage, and which of them is the oldest is not known",
            IncompleteStoreWarning,
        )
        return
    level.arrays = {name: in_age_order(array, trim[1], cursor) for name, array in level.arrays.items()}
    for child in level.children.values():
        _begin_with_the_oldest(child, trim, cursor, where)


def _filled_rows(length: int, batch: tuple[int, ...], cursor: int | None, where: str) -> int:
    """How many rows along the first dim have been filled.

    A storage counts elements over its ``ndim`` leading dims, and does not say what its ``ndim`` is. The cursor of the
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


def _pytree(folder: Path, checkpoint: Mapping[str, Any], described: Described, where: str, *, filled: bool) -> Level:
    """The level that a storage of tensors in dicts, lists and tuples is shown as."""
    entries: Mapping[str, Mapping[str, Any]] = checkpoint.get("metadata") or {}
    sizes = zip(*(entry["shape"] for entry in entries.values()), strict=False)
    shared = tuple(size[0] for size in takewhile(lambda size: len(set(size)) == 1, sizes))
    rows = _filled_rows(checkpoint["len"], shared, writer_cursor(folder), where) if filled and shared else None
    batch = () if not shared else (shared[0] if rows is None else rows,)
    trim = None if rows is None else (shared[0], rows)
    reader = LevelReader(trim=trim)
    root = Level(batch)
    for path, entry in entries.items():
        parts, file = [part.replace("_<dot>_", ".") for part in path.split(".")], folder / f"{path}.memmap"
        if file.is_file():
            parts = [path]
        else:
            file = folder.joinpath(*path.split(".")).with_suffix(".memmap")
        if parts == [_SINGLE]:
            parts = [folder.parent.name if folder.name == "storage" else folder.name]
        level = root
        for part in parts[:-1]:
            level = level.children.setdefault(part, Level(batch))
        reader.add_leaf(level, parts[-1], entry, file, Entry(described, ("metadata", path), said_of(entry)))
    _begin_with_the_oldest(root, trim, writer_cursor(folder), where)
    return root
