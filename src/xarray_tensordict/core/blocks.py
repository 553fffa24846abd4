"""How an array is cut into blocks of rows: for dask to read, and for the chunks of a new store. Pure functions of shapes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .model import StoredArray

READ_BYTES = 128 << 20
"""What dask reads at once of an array without chunks: dask's own ``array.chunk-size``."""
MERGED_BYTES = 16 << 20
"""How many bytes of small chunks dask reads at once where that is better."""
TINY = 1 << 20, 1000
"""Chunks below so many bytes cost dask more than their reading does (a task takes about 0.2 ms), where there are so many."""


class Bytes(int):
    """How many bytes a chunk or a shard should hold, in place of how long it is along a dim."""


class PreferredChunks(dict[str, int]):
    """``encoding["preferred_chunks"]`` whose sizes are multiples of what the store reads at once, or free.

    xarray takes the sizes to read from ``get(dim, size)``. With ``get(dim)`` it looks for the sizes that the caller's
    own ``chunks=`` should not separate, which are those of the store: None where it has none.
    """

    stored: Mapping[str, int]

    def __init__(self, sizes: Mapping[str, int] | Iterable[tuple[str, int]], stored: Mapping[str, int]) -> None:
        super().__init__(sizes)
        self.stored = dict(stored)

    def get(self, dim: str, *default: int) -> int | None:  # type: ignore[override]
        return super().get(dim, *default) if default else self.stored.get(dim)


def with_renamed_chunks(encoding: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """An encoding whose preferred chunks are under other names of the dims."""
    chunks = encoding.get("preferred_chunks")
    if chunks is None:
        return dict(encoding)
    sizes = {names.get(str(dim), str(dim)): size for dim, size in chunks.items()}
    if isinstance(chunks, PreferredChunks):
        sizes = PreferredChunks(sizes, {names.get(dim, dim): size for dim, size in chunks.stored.items()})
    return {**encoding, "preferred_chunks": sizes}


def rows_in(nbytes: int, shape: Sequence[int], axis: int, itemsize: int) -> int:
    """How many rows along an axis, whole along all others, take so many bytes; one at least.

    Examples
    --------
    >>> rows_in(1 << 20, (1000, 256), 0, 4), rows_in(1, (1000, 256), 0, 4)
    (1024, 1)
    """
    row = itemsize * math.prod(size for at, size in enumerate(shape) if at != axis)
    return max(nbytes // max(row, 1), 1)


def row_blocks(shape: Sequence[int], itemsize: int, target: int) -> tuple[int, ...]:
    """Blocks of about `target` bytes that follow each other in C order: whole rows, and parts of a row that is larger.

    Examples
    --------
    >>> row_blocks((1000, 256, 256), 4, 128 << 20)
    (512, 256, 256)
    >>> row_blocks((2, 100_000, 100_000), 4, 128 << 20)
    (1, 335, 100000)
    """
    sizes = [max(size, 1) for size in shape]
    for axis in range(len(sizes)):
        inner = itemsize * math.prod(sizes[axis + 1 :])
        rows = target // inner
        if rows >= 1:
            sizes[axis] = min(sizes[axis], rows)
            break
        sizes[axis] = 1
    return tuple(sizes)


def merged_chunks(chunks: Sequence[int], shape: Sequence[int], itemsize: int, target: int) -> tuple[int, ...]:
    """Multiples of chunks of at most `target` bytes, the last axes first, so that rows become whole.

    Examples
    --------
    >>> merged_chunks((16, 3), (100_000, 6), 4, 1 << 20)
    (43680, 6)
    """
    sizes = [min(chunk, max(size, 1)) for chunk, size in zip(chunks, shape, strict=True)]
    for axis in reversed(range(len(sizes))):
        times = target // (itemsize * math.prod(sizes))
        if times > 1:
            sizes[axis] = min(sizes[axis] * times, max(shape[axis], 1))
    return tuple(sizes)


def borders(positions: range | np.ndarray[Any, Any], step: int) -> list[int]:
    """Where positions of an array pass from one block of `step` to another; 0 and their number included.

    Nothing is cut where they come back to a block.

    Examples
    --------
    >>> borders(range(3, 20), 8), borders(range(9, -1, -3), 5)
    ([0, 5, 13, 17], [0, 2, 4])
    """
    count = len(positions)
    if isinstance(positions, range):
        if not count or positions.step == 0:
            return [0, count]
        if positions.step < 0:
            return [count - border for border in reversed(borders(positions[::-1], step))]
        first = positions.start // step + 1
        last = positions[-1] // step
        cuts = [-((positions.start - number * step) // positions.step) for number in range(first, last + 1)]
        return [0, *sorted({cut for cut in cuts if 0 < cut < count}), count]
    numbers = np.asarray(positions) // step
    found = np.flatnonzero(np.diff(numbers)) + 1
    if len(found) + 1 > len(np.unique(numbers)):
        return [0, count]
    return [0, *found.tolist(), count]


def preferred_chunks(arrays: Sequence[tuple[tuple[str, ...], StoredArray]]) -> list[dict[str, int]]:
    """What dask is to read at once of each array, given with the names of its dims.

    Arrays without chunks share their blocks along their first dim: the largest row among them decides, so
    that ``a + b`` works block by block.
    """
    rows: dict[tuple[str, int], int] = {}
    first_axes = [(dims[0], array.shape[0]) if dims else ("", 0) for dims, array in arrays]
    for first_axis, (dims, array) in zip(first_axes, arrays, strict=True):
        if array.pieces is None and dims:
            own = row_blocks(array.shape, array.dtype.itemsize, READ_BYTES)[0]
            rows[first_axis] = min(rows.get(first_axis, own), own)
    for first_axis, (_, array) in zip(first_axes, arrays, strict=True):
        if array.pieces and array.pieces[0] and first_axis in rows and rows[first_axis] < first_axis[1]:
            # where blocks can be whole chunks of the arrays beside them, they are
            rows[first_axis] = max(rows[first_axis] // array.pieces[0] * array.pieces[0], 1)
    return [_preferred(dims, array, rows) for dims, array in arrays]


def _preferred(dims: tuple[str, ...], array: StoredArray, rows: Mapping[tuple[str, int], int]) -> dict[str, int]:
    if not dims:
        return {}
    shape, itemsize, pieces = array.shape, array.dtype.itemsize, array.pieces
    if pieces is None:
        blocks = row_blocks(shape, itemsize, READ_BYTES)
        return PreferredChunks(zip(dims, (rows[dims[0], shape[0]], *blocks[1:]), strict=True), {})
    # what the caller's chunks should not separate
    stored = array.encoding.get("chunks") or array.encoding.get("chunksizes") or pieces
    count = math.prod(-(-full // max(piece, 1)) for full, piece in zip(shape, pieces, strict=True))
    small, many = array.merges or (0, 0)
    if itemsize * math.prod(pieces) < small and count > many:
        pieces = merged_chunks(pieces, shape, itemsize, MERGED_BYTES)
    if pieces == stored:
        return dict(zip(dims, pieces, strict=True))
    return PreferredChunks(zip(dims, pieces, strict=True), dict(zip(dims, stored, strict=True)))
