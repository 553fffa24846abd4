"""Rows of all entries of a lazy Dataset, each read once however often it is picked, and the TensorDicts made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from tensordict import TensorDict

from ..core.model import GroupBatch, cached_property
from ..dataset.entries import Entry, Plan, Unbatched
from ..formats.raw.arrays import RawRows
from ..formats.raw.files import Kept, reuse_memory
from ..formats.zarr.remote import AHEAD, COLUMN_BYTES, SHARD_BYTES
from ..tensors.reading import (
    Frame,
    Read,
    leave_out_times,
    make_leaf,
    of_entry,
    of_rows,
    of_variable,
    read_all,
    widened_dtype,
)
from ..tensors.values import from_codes, tensor_from_numpy, to_codes
from ..warnings import SlowReadWarning, warn
from .kept import OBJECT_BYTES, Claim, Grid, KeptBlocks, Values, chunk_marks, whole_grid
from .order import READ_BYTES, Ints, ranges

Shape: TypeAlias = tuple[int, ...]

_WASTE = 4
"""Rows of several leading dims are read as one block unless it holds more than this many times what is needed."""
_LEAST_KEPT = 0.25
"""Chunks are kept where at least this part of all rows can be: of less, most are forgotten before they come again."""
_REPEATED = 0.3
"""The part of all tasks that one block needs: at most 0.16 for arithmetic, rolling windows, shifts and other chunks of 8
blocks, at least 0.44 where a mean, a deviation or a cumulative sum is in the graph (measured with dask 2026.8)."""


@dataclass(frozen=True)
class Column:
    """One entry of the batches.

    Attributes
    ----------
    planned
        The entry, its variable as the Dataset has it.
    entry
        The entry, its variable as it is read.
    held
        Which of the leading batch dims it has; none for what is read once and for all.
    raw
        Its rows, where they are read straight from a file, in any order.
    """

    planned: Entry
    entry: Entry
    held: tuple[int, ...]
    raw: RawRows | None

    @classmethod
    def of(cls, planned: Entry, lead: int) -> Column:
        """The column of an entry whose rows are counted through the first `lead` batch dims."""
        entry = planned.lazy()
        batched = entry.entry_class != "unbatched" and entry.form != "value"
        held = tuple(axis for axis in range(lead) if batched and axis not in entry.missing_axes)
        raw = entry.raw
        return cls(planned, entry, held, None if raw is None or raw.array.is_compressed else raw)

    @property
    def row_bytes(self) -> int:
        """About how many bytes one row takes."""
        if not self.held:
            return 0
        size = self.entry.variable.dtype.itemsize if self.entry.form == "tensor" else OBJECT_BYTES
        return math.prod(self.entry.variable.shape[len(self.held) :]) * size

    def along(self, rows: Ints, kept: Kept | None = None) -> Read:
        """The read of rows along its first axis."""
        found = _as_slice(rows)
        if self.raw is not None:
            return of_rows(self.entry, self.raw, found, kept=kept)
        return of_variable(self.entry.variable[(found,)], self.entry.name, far=self.is_far)

    def grid(self, *, keep: bool) -> Grid | None:
        """Its chunks, where they are kept or it is held as a whole; None where rows are read by themselves."""
        if not self.held or self.raw is not None or self.entry.variable.chunks is not None:
            return None
        marks = [chunk_marks(self.planned.variable, axis) for axis in range(len(self.held))]
        chunks = math.prod(1 if found is None else len(found) - 1 for found in marks)
        if self.is_far and self.entry.variable.nbytes <= COLUMN_BYTES and chunks <= AHEAD:
            return whole_grid(self.entry.variable.shape[: len(self.held)])
        known = [found for found in marks if found is not None]
        return Grid(tuple(known)) if keep and len(known) == len(marks) else None

    def is_unsharded(self, grid: Grid) -> bool:
        """Whether its chunks are what its store is asked for."""
        asked = [chunk_marks(self.planned.variable, axis, SHARD_BYTES) for axis in range(len(self.held))]
        return all(np.array_equal(marks, () if a is None else a) for marks, a in zip(grid.marks, asked, strict=True))

    @cached_property
    def is_far(self) -> bool:
        """Whether it is in a store that is far away."""
        return self.entry.is_far

    def chunks(self, grid: Grid, numbers: Ints) -> list[Read]:
        """The reads of chunks, whose rows then follow each other."""
        if len(self.held) == 1:
            (marks,) = grid.marks
            return [self.along(ranges(marks[numbers], marks[numbers + 1]))]
        return [of_variable(self.entry.variable[key], self.entry.name, far=self.is_far) for key in grid.slices(numbers)]

    def block(self, rows: Ints, sizes: list[int]) -> tuple[list[Read], Ints | None]:
        """The reads of rows that are counted through several axes, and the place of each in what is read."""
        name, variable = self.entry.name, self.entry.variable
        coords = np.unravel_index(rows, sizes)
        axes = [np.unique(along) for along in coords]
        if math.prod(map(len, axes)) <= _WASTE * len(rows):
            found = [np.searchsorted(axis, along) for axis, along in zip(axes, coords, strict=True)]
            place = np.ravel_multi_index(found, tuple(map(len, axes)))
            return [of_variable(variable[tuple(map(_as_slice, axes))], name, far=self.is_far)], place
        tables = rows // sizes[-1]
        cuts = [0, *(np.flatnonzero(np.diff(tables)) + 1).tolist(), len(rows)]
        return [
            of_variable(
                variable[(*(int(along[lo]) for along in coords[:-1]), _as_slice(coords[-1][lo:hi]))],
                name,
                far=self.is_far,
            )
            for lo, hi in pairwise(cuts)
        ], None

    def tensor(self, read: list[Any]) -> Values:
        """What was read, its leading axes as one, as a tensor if it becomes one."""
        flat = [self._flat(values) for values in read]
        values = np.concatenate(flat) if len(flat) > 1 else flat[0]
        if self.entry.form != "tensor" or isinstance(values, torch.Tensor):
            return values
        return tensor_from_numpy(values, name=self.entry.name, torch_dtype=widened_dtype(self.entry))

    def _flat(self, values: Any) -> Any:
        lead = values.ndim - (self.entry.variable.ndim - len(self.held))
        return values.reshape((-1, *values.shape[lead:])) if self.held and lead > 1 else values

    def placed(self, batch: GroupBatch, shape: Shape, lead: int) -> Entry:
        """The entry in batches of one shape.

        Parameters
        ----------
        batch
            That of the tensordict which holds the entry.
        shape
            The leading shape of samples.
        lead
            How many batch dims are replaced by `shape`.
        """
        if self.entry.entry_class == "unbatched":
            return replace(self.entry, batch=batch)
        later = (axis - lead + len(shape) for axis in self.entry.missing_axes if axis >= lead)
        missing = (*range(0 if self.held else len(shape)), *later)
        return replace(self.entry, batch=batch, missing_axes=missing)


@dataclass(frozen=True)
class Part:
    """What was read of one entry.

    Attributes
    ----------
    column
        The entry.
    arrays
        One item for each row that was read, in one array or in several.
    which
        For each row that was asked for the number of its array; None where there is one array.
    index
        For each row that was asked for its place in the array; None: they are the same.
    own
        Whether nothing else refers to the memory.
    """

    column: Column
    arrays: list[Values]
    which: Ints | None
    index: Ints | None
    own: bool

    def pick(self, first: int, last: int) -> Values:
        """The values of some of the rows that were asked for, in memory of their own."""
        values = self.arrays[0]
        if not self.column.held or (self.index is None and self.own and last - first == len(values)):
            return values
        copied = self._taken(slice(first, last))
        return from_codes(copied, values.dtype) if isinstance(values, torch.Tensor) else copied

    def _taken(self, rows: slice) -> np.ndarray[Any, Any]:
        # in one thread: those of torch wait for each other on busy cores
        if self.index is None:
            return self._codes[0][rows].copy()
        index = self.index[rows]
        if self.which is None:
            found = _as_slice(index)
            return self._codes[0][found].copy() if isinstance(found, slice) else np.take(self._codes[0], index, axis=0)
        taken = np.empty((len(index), *self._codes[0].shape[1:]), self._codes[0].dtype)
        which = self.which[rows]
        for number in np.unique(which).tolist():
            places = np.flatnonzero(which == number)
            taken[_as_slice(places)] = self._codes[number][_as_slice(index[places])]
        return taken

    @cached_property
    def _codes(self) -> list[np.ndarray[Any, Any]]:
        return [to_codes(values) if isinstance(values, torch.Tensor) else values for values in self.arrays]


@dataclass
class Wanted:
    """What is to be read of an entry, each of `reads` into an array of its own.

    Attributes
    ----------
    claim
        The chunks that are kept, or waited for; None where only these rows are read.
    which, index
        As of :class:`Part`.
    """

    column: Column
    reads: list[list[Read]]
    index: Ints | None
    which: Ints | None = None
    claim: Claim | None = None


class RowReader:
    """Reads rows of a Dataset into TensorDicts.

    Parameters
    ----------
    plan
        Its entries; nothing is read yet, except times that may not fit into int64 nanoseconds.
    sizes
        The sizes of the leading batch dims that rows are counted through.
    names
        The names of the axes of samples, in place of the leading batch dims.
    unbatched
        As in ``ds.td.to_tensordict``.
    keep
        How many bytes of decoded chunks are kept, of stores that are compressed or far away.

    Attributes
    ----------
    least_kept
        Nothing is kept where less than this part of all rows would be.
    """

    def __init__(
        self, plan: Plan, sizes: Shape, names: Sequence[str | None], *, unbatched: Unbatched = "drop", keep: int = 0
    ) -> None:
        leave_out_times(plan)
        self.sizes = sizes
        self.columns = [Column.of(entry, len(sizes)) for entry in plan.entries]
        self.row_bytes = sum(column.row_bytes for column in self.columns)
        self.is_straight = len(sizes) == 1 and all(column.held and column.raw is not None for column in self.columns)
        self._keys = [column.entry.key for column in self.columns]
        self._batches = plan.batches
        self._names = tuple(names)
        self._unbatched = unbatched
        self.kept = KeptBlocks(keep)
        self.least_kept = _LEAST_KEPT
        self._maps = Kept()
        self._last: tuple[Shape, Frame, list[Entry | None]] | None = None
        _warn_of_repeats(self.columns)

    # --- rows ---

    @cached_property
    def is_far(self) -> bool:
        """Whether some of its rows are in a store that is far away."""
        return any(column.is_far for column in self.columns if column.held)

    def begin_epoch(self) -> None:
        """Forget what is not to be kept between epochs; batches are made in memory that others have given back."""
        reuse_memory()
        if not self.kept.most:
            self.kept.clear()

    def read(self, asked: Ints) -> list[Part]:
        """Read rows, in any order and repeatedly; what costs more than a copy is read once."""
        rows, places = (asked, None) if self.is_straight else _distinct(asked)

        def plan(claims: list[Claim]) -> list[Wanted]:
            return [self.wanted(number, asked, rows, places, claims) for number in range(len(self.columns))]

        return [self.part(wanted, arrays) for wanted, arrays in self.fetch(plan)]

    def fetch(self, plan: Callable[[list[Claim]], list[Wanted]]) -> list[tuple[Wanted, list[Values]]]:
        """Read at once what a plan asks for, and what it has claimed from where that is kept.

        Parameters
        ----------
        plan
            Gets a list, to which it adds what it claims.
        """
        claims: list[Claim] = []
        try:
            wanted = plan(claims)
            jobs = [job for each in wanted for reads in each.reads for job in reads]
            try:
                read = iter(read_all(jobs))
            except Exception as error:
                blame(error, jobs)
                raise
            made = [[each.column.tensor([next(read) for _ in reads]) for reads in each.reads] for each in wanted]
        except BaseException as error:
            for claim in claims:
                self.kept.fail(claim.own, error)
            raise
        for each, arrays in zip(wanted, made, strict=True):
            if each.claim is not None:
                self.kept.settle(each.claim.own, arrays)
        return [
            (each, arrays if each.claim is None else [held.values.result() for held in each.claim.held])
            for each, arrays in zip(wanted, made, strict=True)
        ]

    def part(self, wanted: Wanted, arrays: list[Values]) -> Part:
        """The rows that were asked for, from what :meth:`fetch` gives."""
        column = wanted.column
        if wanted.claim is not None:
            return Part(column, arrays, wanted.which, wanted.index, own=False)
        own = column.raw is not None or column.entry.is_fresh or len(wanted.reads[0]) > 1
        return Part(column, arrays, None, wanted.index, own)

    def wanted(self, number: int, asked: Ints, rows: Ints, places: Ints | None, claims: list[Claim]) -> Wanted:
        """What to read of an entry, and where each of the rows that were asked for is in it; what is claimed is noted."""
        column = self.columns[number]
        if not column.held:
            claims.append(self.kept.claim(number, [0], [1], 0, pinned=True))
            return Wanted(column, [[of_entry(column.entry)] for _ in claims[-1].own], None, claim=claims[-1])
        if column.raw is not None and len(self.sizes) == 1:
            # to put its rows in order afterwards would be a second copy
            return Wanted(column, [[column.along(asked, self._maps)]], None)
        held = [self.sizes[axis] for axis in column.held]
        if len(held) < len(self.sizes):
            coords = np.unravel_index(rows, self.sizes)
            projected = np.ravel_multi_index([coords[axis] for axis in column.held], held)
            rows, index = np.unique(projected, return_inverse=True)
            places = index if places is None else index[places]
        grid = self.grids[number]
        if grid is not None and len(rows):
            return self._claimed(number, grid, rows, places, claims)
        if len(held) == 1:
            return Wanted(column, [[column.along(rows, self._maps)]], places)
        reads, place = column.block(rows, held)
        if place is not None:
            places = place if places is None else place[places]
        return Wanted(column, [reads], places)

    def _claimed(self, number: int, grid: Grid, rows: Ints, places: Ints | None, claims: list[Claim]) -> Wanted:
        """The chunks that rows are in."""
        chunks, inside = grid.place(rows)
        numbers, chunk = np.unique(chunks, return_inverse=True)
        claim, reads = self.claim(number, grid, numbers, claims)
        chunk, inside = (chunk, inside) if places is None else (chunk[places], inside[places])
        which = claim.which[chunk] if len(claim.held) > 1 else None
        return Wanted(self.columns[number], reads, claim.first[chunk] + inside, which, claim)

    def claim(self, number: int, grid: Grid, chunks: Ints, claims: list[Claim]) -> tuple[Claim, list[list[Read]]]:
        """Claim chunks of a column, and the reads of those that are not kept already."""
        column = self.columns[number]
        claim = self.kept.claim(
            number, chunks.tolist(), grid.sizes(chunks).tolist(), column.row_bytes, pinned=grid.pinned
        )
        claims.append(claim)
        return claim, [column.chunks(grid, np.array(held.numbers)) for held in claim.own]

    @cached_property
    def grids(self) -> list[Grid | None]:
        """The chunks of each column that are kept; None for what is read row by row."""
        columns = [column for column in self.columns if column.held and column.raw is None]
        size = sum(column.entry.variable.nbytes for column in columns)
        keeps = self.least_kept * size <= self.kept.most > 0
        return [column.grid(keep=keeps) for column in self.columns]

    @cached_property
    def keeps_far(self) -> bool:
        """Whether every chunk that is far away is asked for by itself, not with its shard, and kept when it has been read."""
        far = [(c, grid) for c, grid in zip(self.columns, self.grids, strict=True) if c.held and c.is_far]
        return bool(far) and all(grid is not None and (grid.pinned or c.is_unsharded(grid)) for c, grid in far)

    # --- TensorDicts ---

    def join(self, pieces: Sequence[Sequence[Values]]) -> list[Values]:
        """The values of several reads as those of one."""
        return [
            values[0] if not column.held else _concatenated(values)
            for column, values in zip(self.columns, zip(*pieces, strict=True), strict=True)
        ]

    def assemble(self, picked: Sequence[Values], shape: Shape) -> TensorDict:
        """Build the TensorDict of samples.

        Parameters
        ----------
        picked
            For each entry the values of all rows of the samples, in memory of their own.
        shape
            The leading shape of the samples.
        """
        made = self._last
        if made is None or made[0] != shape:
            made = self._last = shape, *self._made_for(shape)  # all batches but the last one have one shape
        _, frame, entries = made
        leaves = [
            values if entry is None else self._leaf(column, entry, values, shape)
            for column, entry, values in zip(self.columns, entries, picked, strict=True)
        ]
        return frame.filled(dict(zip(self._keys, leaves, strict=True)))

    def _made_for(self, shape: Shape) -> tuple[Frame, list[Entry | None]]:
        """The tensordicts to be filled, and the entries as they are in them; None where rows go in as they are."""
        lead = len(self.sizes)
        batches = {
            key: replace(batch, dims=(*self._names, *batch.dims[lead:]), sizes=(*shape, *batch.sizes[lead:]))
            for key, batch in self._batches.items()
        }
        placed = ((column, column.placed(batches[column.entry.key[:-1]], shape, lead)) for column in self.columns)
        entries = [None if c.held and entry.is_plain and len(shape) == 1 else entry for c, entry in placed]
        return Frame(batches, self._keys), entries

    def _leaf(self, column: Column, entry: Entry, values: Values, shape: Shape) -> Any:
        if column.held:
            values = values.reshape((*shape, *values.shape[1:]))
        elif isinstance(values, torch.Tensor):
            values = values.clone()
        return make_leaf(entry, values, unbatched=self._unbatched)


def _as_slice(rows: Ints) -> slice | Ints:
    """Rows as a slice where they follow each other: a store reads that better."""
    if not len(rows):
        return slice(0, 0)
    first, last = int(rows[0]), int(rows[-1])
    together = last - first + 1 == len(rows) and bool((rows[1:] > rows[:-1]).all())
    return slice(first, last + 1) if together else rows


def _distinct(rows: Ints) -> tuple[Ints, Ints | None]:
    """Rows in ascending order, none twice, and the places of the given ones among them; None: they are the same."""
    if np.all(rows[1:] > rows[:-1]):
        return rows, None
    return np.unique(rows, return_inverse=True)


def _concatenated(values: Sequence[Values]) -> Values:
    # in one thread, as in `Part`
    joined = np.concatenate([to_codes(found) if isinstance(found, torch.Tensor) else found for found in values])
    return from_codes(joined, values[0].dtype) if isinstance(values[0], torch.Tensor) else joined


def blame(error: BaseException, jobs: Sequence[Read]) -> None:
    """Note the variable that cannot be read; of those that dask computes together, it is looked for."""
    if any(repr(job.name) in note for job in jobs for note in getattr(error, "__notes__", ())):
        return
    for job in jobs:
        try:
            read_all([job])
        except Exception:  # whatever it is, it was raised already
            error.add_note(f"while reading the variable {job.name!r}; exclude=[{job.name!r}] leaves it out")
            return


def _warn_of_repeats(columns: Sequence[Column]) -> None:
    """Warn of graphs of dask that each batch goes through anew, such as a mean over all rows that nobody computed yet."""
    chunked = [
        column
        for column in columns
        if column.held and column.entry.variable.chunks is not None and column.entry.variable.nbytes >= 2 * READ_BYTES
    ]
    if not chunked:
        return
    from .._compat.dask import share_of_last_block

    found = [c.entry.name for c in chunked if share_of_last_block(c.entry.variable.data) > _REPEATED]
    if found:
        warn(
            f"each read of a batch computes most of the dask graph of {', '.join(map(repr, found))}, as with a mean over all rows "
            f"that is lazy itself. Compute such statistics first (mean = ds.mean('time').compute()), or write the result with "
            f"ds.td.to_zarr(...) and read batches from there",
            SlowReadWarning,
        )
