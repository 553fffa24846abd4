"""Rows of all entries of a lazy Dataset, each read once however often it is picked, and the TensorDicts made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from tensordict import TensorDict

from ..core.model import GroupBatch, Key, cached_property
from ..dataset.entries import Entry, Plan, Unbatched
from ..formats.raw.arrays import RawRows
from ..formats.raw.files import Kept
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
from .order import READ_BYTES, Ints

Shape: TypeAlias = tuple[int, ...]
Values: TypeAlias = "torch.Tensor | np.ndarray[Any, Any]"

_WASTE = 4
"""Rows of several leading dims are read as one block unless it holds more than this many times what is needed."""
_OBJECT_BYTES = 64
"""What a string or another object counts for where sizes are estimated: a Python str of a dozen letters."""
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
        size = self.entry.variable.dtype.itemsize if self.entry.form == "tensor" else _OBJECT_BYTES
        return math.prod(self.entry.variable.shape[len(self.held) :]) * size

    def along(self, rows: Ints, kept: Kept) -> Read:
        """The read of rows along its first axis."""
        found = _as_slice(rows)
        if self.raw is not None:
            return of_rows(self.entry, self.raw, found, kept=kept)
        return of_variable(self.entry.variable[(found,)], self.entry.name)

    def tensor(self, read: list[Any]) -> Values:
        """What was read, its leading axes as one, as a tensor if it becomes one."""
        values = np.concatenate(read) if len(read) > 1 else read[0]
        lead = values.ndim - (self.entry.variable.ndim - len(self.held))
        if self.held and lead > 1:
            values = values.reshape((math.prod(values.shape[:lead]), *values.shape[lead:]))
        if self.entry.form != "tensor" or isinstance(values, torch.Tensor):
            return values
        return tensor_from_numpy(values, name=self.entry.name, torch_dtype=widened_dtype(self.entry))

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
    values
        One item for each row that was read.
    index
        Which of them belongs to each row that was asked for; None: they are the same.
    own
        Whether nothing else refers to the memory.
    """

    column: Column
    values: Values
    index: Ints | None
    own: bool

    def pick(self, first: int, last: int) -> Values:
        """The values of some of the rows that were asked for, in memory of their own."""
        if not self.column.held or (self.index is None and self.own and last - first == len(self.values)):
            return self.values
        array = self._array
        # in one thread: those of torch wait for each other on busy cores
        copied = array[first:last].copy() if self.index is None else np.take(array, self.index[first:last], axis=0)
        return from_codes(copied, self.values.dtype) if isinstance(self.values, torch.Tensor) else copied

    @cached_property
    def _array(self) -> np.ndarray[Any, Any]:
        return to_codes(self.values) if isinstance(self.values, torch.Tensor) else self.values


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
    """

    def __init__(self, plan: Plan, sizes: Shape, names: Sequence[str | None], *, unbatched: Unbatched = "drop") -> None:
        leave_out_times(plan)
        self.sizes = sizes
        self.columns = [Column.of(entry, len(sizes)) for entry in plan.entries]
        self.row_bytes = sum(column.row_bytes for column in self.columns)
        self.is_straight = len(sizes) == 1 and all(column.held and column.raw is not None for column in self.columns)
        self._keys = [column.entry.key for column in self.columns]
        self._batches = plan.batches
        self._names = tuple(names)
        self._unbatched = unbatched
        self._kept = Kept()
        self._whole: dict[Key, Values] = {}
        self._last: tuple[Shape, Frame, list[Entry | None]] | None = None
        _warn_of_repeats(self.columns)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_whole": {}}  # a pickle holds no data

    # --- rows ---

    def read(self, asked: Ints) -> list[Part]:
        """Read rows, in any order and repeatedly; what costs more than a copy is read once."""
        rows, places = (asked, None) if self.is_straight else _distinct(asked)
        wanted = [self._wanted(column, asked, rows, places) for column in self.columns]
        jobs = [job for own, _ in wanted for job in own]
        try:
            read = iter(read_all(jobs))
        except Exception as error:
            _blame(error, jobs)
            raise
        return [
            self._part(column, [next(read) for _ in own], index)
            for column, (own, index) in zip(self.columns, wanted, strict=True)
        ]

    def _part(self, column: Column, read: list[Any], index: Ints | None) -> Part:
        if column.held:
            own = column.raw is not None or column.entry.is_fresh or len(read) > 1
            return Part(column, column.tensor(read), index, own)
        if read:
            self._whole[column.entry.key] = column.tensor(read)
        return Part(column, self._whole[column.entry.key], None, own=False)

    def _wanted(self, column: Column, asked: Ints, rows: Ints, places: Ints | None) -> tuple[list[Read], Ints | None]:
        """What to read of an entry, and which of the items read belongs to each of the rows that were asked for."""
        if not column.held:
            return ([] if column.entry.key in self._whole else [of_entry(column.entry)]), None
        if column.raw is not None and len(self.sizes) == 1:
            return [column.along(asked, self._kept)], None  # to put its rows in order afterwards would be a second copy
        held = [self.sizes[axis] for axis in column.held]
        if len(held) < len(self.sizes):
            coords = np.unravel_index(rows, self.sizes)
            projected = np.ravel_multi_index([coords[axis] for axis in column.held], held)
            rows, index = np.unique(projected, return_inverse=True)
            places = index if places is None else index[places]
        if len(held) == 1:
            return [column.along(rows, self._kept)], places
        coords = np.unravel_index(rows, held)
        axes = [np.unique(along) for along in coords]
        name, variable = column.entry.name, column.entry.variable
        if math.prod(map(len, axes)) <= _WASTE * len(rows):
            block = tuple(map(len, axes))
            found = [np.searchsorted(axis, along) for axis, along in zip(axes, coords, strict=True)]
            place = np.ravel_multi_index(found, block)
            read = of_variable(variable[tuple(map(_as_slice, axes))], name)
            return [read], place if places is None else place[places]
        tables = rows // held[-1]
        cuts = [0, *(np.flatnonzero(np.diff(tables)) + 1).tolist(), len(rows)]
        return [
            of_variable(variable[(*(int(along[lo]) for along in coords[:-1]), _as_slice(coords[-1][lo:hi]))], name)
            for lo, hi in pairwise(cuts)
        ], places

    # --- TensorDicts ---

    def join(self, pieces: Sequence[Sequence[Values]]) -> list[Values]:
        """The values of several pieces as those of one."""
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
    tensors = [found for found in values if isinstance(found, torch.Tensor)]
    return torch.cat(tensors) if tensors else np.concatenate([np.asarray(found) for found in values])


def _blame(error: BaseException, jobs: Sequence[Read]) -> None:
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
