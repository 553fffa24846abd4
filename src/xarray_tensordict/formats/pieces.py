"""What a reader takes from its store at once, and one such piece that is kept while its parts are asked for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from xarray.backends.common import BackendArray
from xarray.core import indexing
from zarr.storage import LocalStore

from .._compat.xarray import zarr_array
from .array_wrappers import FieldArray, WidenedArray
from .hdf5.arrays import Hdf5Array
from .raw.arrays import RawArray

_SHARD = 4 << 20
"""Shards that are larger are read in parts."""


def pieces_of(array: Any) -> tuple[int, ...] | None:
    """The shape of what has to be read as a whole: a chunk, or a shard. None where any part is read by itself."""
    if isinstance(array, WidenedArray):
        return pieces_of(array.wrapped)
    if isinstance(array, FieldArray):
        found = pieces_of(array.wrapped)
        return None if found is None else (*found, *array.shape[len(found) :])
    if isinstance(array, RawArray):
        return array.pieces
    if isinstance(array, Hdf5Array):
        return array.chunks
    stored = zarr_array(array)
    if stored is None:
        return tuple(array.shape)  # nothing is known of it
    try:
        shards = stored.shards
        return tuple(stored.chunks if shards is None or math.prod(shards) * array.dtype.itemsize > _SHARD else shards)
    except NotImplementedError:  # chunks of different sizes have no one shape
        return tuple(array.shape)


def is_far(array: Any) -> bool:
    """Whether reading is mostly waiting: a zarr store that is not a folder of this machine."""
    while hasattr(array, "wrapped"):
        array = array.wrapped
    stored = zarr_array(array)
    return stored is not None and not isinstance(stored.store, LocalStore)


class HeldPiece(BackendArray):
    """Reads whole pieces of another array, and keeps the last one: what is asked for next is taken from there."""

    def __init__(self, array: Any, pieces: tuple[int, ...]) -> None:
        self._array = array
        self._pieces = pieces
        self.dtype = np.dtype(array.dtype)
        self.shape = tuple(array.shape)
        self._held: tuple[tuple[slice, ...], np.ndarray[Any, Any]] | None = None

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> Any:
        spans = [_span(part, size) for part, size in zip(key, self.shape, strict=True)]
        if self._held is None or not all(
            hull.start <= first and stop <= hull.stop for hull, (first, stop) in zip(self._held[0], spans, strict=True)
        ):
            hull = tuple(
                slice(first // piece * piece, min(-(-stop // piece) * piece, size), 1)
                for (first, stop), piece, size in zip(spans, self._pieces, self.shape, strict=True)
            )
            self._held = None  # not two at a time
            self._held = hull, np.asarray(self._array[indexing.BasicIndexer(hull)])
        hull, values = self._held
        for axis in reversed(range(len(key))):
            part = _moved(key[axis], hull[axis].start, self.shape[axis])
            values = values[(*(slice(None),) * axis, part)]
        # what was asked for must not keep the whole piece, nor be changed with it
        return np.array(values)


def _span(part: Any, size: int) -> tuple[int, int]:
    """From where to where a part of a key picks."""
    if isinstance(part, slice):
        numbers: Any = range(size)[part]
        return (min(numbers[0], numbers[-1]), max(numbers[0], numbers[-1]) + 1) if numbers else (0, 0)
    numbers = np.asarray(part)
    if not numbers.size:
        return 0, 0
    numbers = np.where(numbers < 0, numbers + size, numbers)
    return int(numbers.min()), int(numbers.max()) + 1


def _moved(part: Any, start: int, size: int) -> Any:
    if isinstance(part, slice):
        numbers = range(size)[part]
        if not numbers:
            return slice(0, 0)
        stop = numbers[-1] - start + (1 if numbers.step > 0 else -1)
        return slice(numbers[0] - start, stop if stop >= 0 else None, numbers.step)
    moved = np.asarray(part)
    moved = np.where(moved < 0, moved + size, moved) - start
    return int(moved) if moved.ndim == 0 else moved
