"""Decoded chunks of the columns of a loop: where they are, and those that are kept, each read once by whoever comes first."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
import xarray as xr

from .._compat.xarray import backend_array, reads_far, stored_place, zarr_array
from ..core.model import cached_property
from ..formats.counting import COUNTED, Work
from ..formats.raw.arrays import RawArray
from ..formats.zarr.arrays import EncodedChunks
from ..tensors.filling import pieces_of
from .order import Ints

Values: TypeAlias = "torch.Tensor | np.ndarray[Any, Any]"

OBJECT_BYTES = 64
"""What a string or another object counts for where sizes are estimated: a Python str of a dozen letters."""
_MOST_CHUNKS = 1 << 24
"""As many along an axis are taken as chunks; of more the rows are."""
_SHARE = 8
"""What is read together is kept, and forgotten, in parts of so little of all that is kept."""


# --- where chunks are -------------------------------------------------------------------------------------------------


def chunk_marks(variable: xr.Variable, axis: int, shard_bytes: int = 0) -> Ints | None:
    """The borders of the chunks along an axis, 0 and its size included.

    None where a part of a chunk can be read as cheaply as the whole: in memory, in contiguous layouts. None also where there are more
    chunks than any store has: each border takes memory, and a small document can say anything.

    Parameters
    ----------
    variable, axis
        What is read.
    shard_bytes
        Shards that are larger are read in parts: the chunks in them count.
    """
    size = variable.shape[axis]
    if variable.chunks is not None:
        return np.cumsum([0, *variable.chunks[axis]], dtype=np.int64)
    place = stored_place(variable, axis)
    chunk = None if place is None else _stored_chunk(variable, axis, place[0], shard_bytes)
    if chunk is None or place is None or size // chunk > _MOST_CHUNKS:
        return None
    positions = place[1]
    if isinstance(positions, range) and positions.step == 1:
        inner = np.arange(chunk - positions.start % chunk, size, chunk, dtype=np.int64)
    else:
        number = np.asarray(positions, dtype=np.int64) // chunk
        inner = np.flatnonzero(np.diff(number)) + 1
    return np.concatenate([[0], inner, [size]]) if size else np.zeros(1, np.int64)


def _stored_chunk(variable: xr.Variable, axis: int, stored_axis: int, shard_bytes: int) -> int | None:
    """The size of the chunks of the store, None where any row is read by itself."""
    array: Any = backend_array(variable)
    stored = getattr(array, "wrapped", array)
    if array is None or (isinstance(stored, RawArray) and not stored.is_compressed):
        return None
    chunk = variable.encoding.get("preferred_chunks", {}).get(variable.dims[axis])
    if isinstance(chunk, tuple):  # chunks of several sizes
        chunk = chunk[0] if chunk else None
    elif shard_bytes and chunk is not None and zarr_array(array) is not None:
        pieces = pieces_of(array, shard_bytes)
        chunk = chunk if pieces is None else pieces[stored_axis]
    return int(chunk) if isinstance(chunk, (int, np.integer)) and chunk > 0 else None


def counts_requests(variable: xr.Variable) -> bool:
    """Whether reading a variable makes no other requests than those that are counted; see :data:`~..formats.counting.COUNTED`."""
    array: Any = backend_array(variable)
    stored = getattr(array, "wrapped", array)
    decoded_here = isinstance(stored, RawArray) and isinstance(stored.data, EncodedChunks)
    return variable.chunks is None and (array is None or decoded_here or reads_far(variable))


@dataclass(frozen=True)
class Grid:
    """The chunks of a column; its rows are counted through those of its axes that rows run along.

    Attributes
    ----------
    marks
        The borders of the chunks along each of these axes, 0 and the size included.
    pinned
        Whether what was read is held as long as the loop.
    """

    marks: tuple[Ints, ...]
    pinned: bool = False

    @cached_property
    def _widths(self) -> list[Ints]:
        return [np.diff(marks) for marks in self.marks]

    def place(self, rows: Ints) -> tuple[Ints, Ints]:
        """The number of the chunk that each row is in, and its place among the rows of the chunk."""
        coords = np.unravel_index(rows, [marks[-1] for marks in self.marks])
        numbers = inside = np.zeros(len(rows), np.int64)
        for along, marks, widths in zip(coords, self.marks, self._widths, strict=True):
            found = np.searchsorted(marks, along, "right") - 1
            numbers = numbers * len(widths) + found
            inside = inside * widths[found] + (along - marks[found])
        return numbers, inside

    def sizes(self, numbers: Ints) -> Ints:
        """How many rows there are in chunks."""
        found = np.ones(len(numbers), np.int64)
        for along, widths in zip(self._unravelled(numbers), self._widths, strict=True):
            found *= widths[along]
        return found

    def slices(self, numbers: Ints) -> Iterator[tuple[slice, ...]]:
        """What the rows of each of some chunks are."""
        for each in zip(*self._unravelled(numbers), strict=True):
            yield tuple(slice(*marks[at : at + 2].tolist()) for at, marks in zip(each, self.marks, strict=True))

    def overlapping(self, key: tuple[slice, ...]) -> Ints:
        """The numbers of the chunks that have a part of a box, which is not empty, ascending."""
        ranges = [
            np.arange(np.searchsorted(marks, along.start, "right") - 1, np.searchsorted(marks, along.stop))
            for along, marks in zip(key, self.marks, strict=True)
        ]
        found: Ints = np.ravel_multi_index(np.ix_(*ranges), [len(widths) for widths in self._widths]).reshape(-1)
        return found

    def _unravelled(self, numbers: Ints) -> Any:
        return np.unravel_index(numbers, [len(widths) for widths in self._widths])


# --- what is kept -----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Held:
    """Some chunks of a column that are read together, and are kept together.

    Attributes
    ----------
    column
        The number of the column.
    numbers
        Those of the chunks.
    values
        Their rows one behind the other, when they have been read.
    pinned
        Whether they are held as long as the loop.
    """

    column: int
    numbers: list[int]
    pinned: bool
    values: Future[Values] = field(default_factory=Future)


@dataclass(frozen=True)
class Claim:
    """The chunks that a read needs.

    Attributes
    ----------
    held
        What they are in.
    own
        Those of `held` that nobody else reads: whoever claims them reads, and settles.
    which
        For each chunk the number of what it is in.
    first
        Its first row there.
    """

    held: list[Held]
    own: list[Held]
    which: Ints
    first: Ints


class KeptBlocks:
    """Chunks that were decoded; those that were not used for longest are forgotten first. A pickle and a fork hold none.

    Parameters
    ----------
    most
        How many bytes are kept, besides what is pinned.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._lock, self._process = threading.Lock(), os.getpid()
        self._places: dict[tuple[int, int], tuple[Held, int]] = {}
        self._used: OrderedDict[Held, int] = OrderedDict()
        self._bytes = 0

    def __reduce__(self) -> Any:
        return KeptBlocks, (self.most,)

    def claim(
        self, column: int, numbers: Sequence[int], sizes: Sequence[int], row_bytes: int, *, pinned: bool
    ) -> Claim:
        """Find chunks, each of so many rows; what is missing is to be read by the caller.

        It must settle what it owns before it waits for what others read.
        """
        if self._process != os.getpid():
            self.clear()  # nobody reads in a fork
        with self._lock:
            own: list[Held] = []
            room = rows = 0
            for number, size in zip(numbers, sizes, strict=True):
                if (column, number) in self._places:
                    continue
                if not own or rows + size > room:
                    own.append(Held(column, [], pinned))
                    room, rows = max(size, self.most // _SHARE // max(row_bytes, 1)), 0
                own[-1].numbers.append(number)
                self._places[column, number] = own[-1], rows
                rows += size
            found = [self._places[column, number] for number in numbers]
            held = list(dict.fromkeys(each for each, _ in found))
            for each in held:
                if each in self._used:
                    self._used.move_to_end(each)
        counted = COUNTED.get()
        if isinstance(counted, Work) and not pinned:
            counted.claimed(len(numbers), sum(len(each.numbers) for each in own))
        order = {each: place for place, each in enumerate(held)}
        which = np.array([order[each] for each, _ in found], np.int64)
        return Claim(held, own, which, np.array([first for _, first in found], np.int64))

    def settle(self, own: Sequence[Held], arrays: Sequence[Values]) -> None:
        """Hand over what was read; whether it is kept depends on what else is."""
        for held, values in zip(own, arrays, strict=True):
            held.values.set_result(values)
            if not held.pinned:
                self._keep(held, _bytes_of(values))

    def _keep(self, held: Held, nbytes: int) -> None:
        with self._lock:
            if self._places.get((held.column, held.numbers[0]), (None,))[0] is not held:
                return  # everything was forgotten meanwhile
            self._used[held] = nbytes
            self._bytes += nbytes
            while self._bytes > self.most:
                oldest, freed = self._used.popitem(last=False)
                self._bytes -= freed
                self._forget(oldest)

    def fail(self, own: Sequence[Held], error: BaseException) -> None:
        """Pass on to those who wait that it could not be read; the next to ask tries again."""
        for held in own:
            with self._lock:
                self._forget(held)
            held.values.set_exception(error)

    def _forget(self, held: Held) -> None:
        for number in held.numbers:
            if self._places.get((held.column, number), (None,))[0] is held:
                del self._places[held.column, number]


def _bytes_of(values: Values) -> int:
    if isinstance(values, np.ndarray) and values.dtype.kind in "OT":
        return values.size * OBJECT_BYTES
    return int(values.nbytes)


def whole_grid(sizes: Sequence[int]) -> Grid:
    """The grid of a column that is read as a whole, and held."""
    return Grid(tuple(np.array([0, size], np.int64) for size in sizes), pinned=True)
