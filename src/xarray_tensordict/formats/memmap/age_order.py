"""The rows of a full ring buffer, which overwrites its oldest ones, in the order in which they were written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ...core.model import StoredArray
from ..array_wrappers import _Wrapped


def writer_cursor(folder: Path) -> int | None:
    """Where the writer of a buffer would write next, of which torchrl keeps a note beside the storage.

    A writer that keeps the rows with the highest values has no such order.
    """
    try:
        found = json.loads((folder.parent / "writer" / "metadata.json").read_bytes())
        cursor = None if "rank_key" in found else found.get("cursor")
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    return cursor if type(cursor) is int else None


def in_age_order(array: StoredArray, rows: int, cursor: int) -> StoredArray:
    """Begin an array of `rows` rows with the oldest row, the one that the writer would overwrite next."""
    if array.shape[:1] == (rows,):
        is_loaded = isinstance(array.data, np.ndarray)
        array.data = np.roll(array.data, -cursor, axis=0) if is_loaded else TurnedArray(array.data, cursor)
    return array


class TurnedArray(_Wrapped):
    """A lazy array whose first row is another one; those before it come behind its last."""

    def __init__(self, array: Any, first: int) -> None:
        super().__init__(array)
        self._first = first
        self.shape = tuple(array.shape)
        self.dtype = np.dtype(array.dtype)

    def _read(self, key: tuple[Any, ...]) -> Any:
        rows = (np.arange(self.shape[0])[key[0]] + self._first) % self.shape[0]
        if rows.ndim == 0:
            return self._read_wrapped((int(rows), *key[1:]))
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        parts = [part for part in np.split(rows, breaks) if part.size]
        if len(parts) > 2:
            return self._read_wrapped((rows, *key[1:]))
        read = [self._read_wrapped((slice(int(part[0]), int(part[-1]) + 1), *key[1:])) for part in parts]
        return np.concatenate(read) if read else self._read_wrapped((slice(0, 0), *key[1:]))
