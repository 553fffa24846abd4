"""Where the chunks of a lazy variable begin: those of dask, or those of the store as far as the selection shows them."""

from __future__ import annotations

import numpy as np
import xarray as xr

from .._compat.xarray import backend_array, stored_positions
from ..formats.raw.arrays import RawArray
from .order import Ints


def chunk_marks(variable: xr.Variable, axis: int) -> Ints | None:
    """The borders of the chunks along an axis, 0 and its size included.

    None where a part of a chunk can be read as cheaply as the whole: in memory, in contiguous layouts.
    """
    size = variable.shape[axis]
    if variable.chunks is not None:
        return np.cumsum([0, *variable.chunks[axis]], dtype=np.int64)
    chunk = _stored_chunk(variable, axis)
    positions = None if chunk is None else stored_positions(variable, axis)
    if chunk is None or positions is None:
        return None
    if isinstance(positions, range) and positions.step == 1:
        inner = np.arange(chunk - positions.start % chunk, size, chunk, dtype=np.int64)
    else:
        number = np.asarray(positions, dtype=np.int64) // chunk
        inner = np.flatnonzero(np.diff(number)) + 1
    return np.concatenate([[0], inner, [size]]) if size else np.zeros(1, np.int64)


def _stored_chunk(variable: xr.Variable, axis: int) -> int | None:
    """The size of the chunks of the store, None where any row is read by itself."""
    array = backend_array(variable)
    stored = getattr(array, "wrapped", array)
    if array is None or (isinstance(stored, RawArray) and not stored.is_compressed):
        return None
    chunk = variable.encoding.get("preferred_chunks", {}).get(variable.dims[axis])
    if isinstance(chunk, tuple):
        chunk = chunk[0] if chunk else None
    return int(chunk) if isinstance(chunk, (int, np.integer)) and chunk > 0 else None


def block_of(rows: Ints, marks: Ints | None) -> Ints:
    """The number of the block that each row is in."""
    return np.zeros(len(rows), np.int64) if marks is None else np.searchsorted(marks, rows, "right")


def changes(*numbers: Ints) -> Ints:
    """The borders of the runs in which all of several arrays stay as they are.

    Examples
    --------
    >>> changes(np.array([1, 1, 2, 2]), np.array([0, 0, 0, 5])).tolist()
    [0, 2, 3, 4]
    """
    count = len(numbers[0])
    if not count:
        return np.zeros(1, np.int64)
    changed = np.zeros(count - 1, bool)
    for found in numbers:
        changed |= np.diff(found) != 0
    return np.concatenate([np.zeros(1, np.int64), np.flatnonzero(changed) + 1, np.array([count])])
