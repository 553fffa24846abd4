"""Rows of all entries of a lazy Dataset, each read once however often it is picked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
import xarray as xr
from tensordict import NonTensorData, TensorDict, UnbatchedTensor

from ..core.model import GroupBatch, Inference, Key
from ..dataset.entries import Entry, Plan, Unbatched, plan_entries
from ..lazy.lazy_nodes import Leaf
from ..lazy.persistent import leave_out_times
from ..stores.kept import Kept
from ..tensors.convert import build, compute_together, python_value, warn_left_out
from ..tensors.raw_rows import RawRows, RowsRead, raw_rows
from ..tensors.values import rows_from_numpy, tensor_from_numpy
from .order import Ints

Job: TypeAlias = "xr.Variable | RowsRead"
Values: TypeAlias = "torch.Tensor | np.ndarray[Any, Any]"

_WASTE = 4
"""Rows of several leading dims are read as one block unless it holds more than this many times what is needed."""
_OBJECT_BYTES = 64
"""What a string or another object counts for where sizes are estimated: a Python str of a dozen letters."""


@dataclass(frozen=True)
class Member:
    """One entry and how it is read.

    Attributes
    ----------
    entry
        As planned.
    leaf
        Its lazy variable and the form of its values.
    held
        Which of the leading batch dims it has; none for what is read once and for all.
    kept
        What the reader keeps from one read to the next.
    """

    entry: Entry
    leaf: Leaf
    held: tuple[int, ...]
    kept: Kept

    @classmethod
    def of(cls, entry: Entry, lead: int, kept: Kept) -> Member:
        leaf = Leaf.of(entry)
        batched = entry.entry_class != "unbatched" and leaf.form != "value"
        return cls(entry, leaf, tuple(axis for axis in range(lead) if batched and axis not in leaf.missing), kept)

    @cached_property
    def raw(self) -> RawRows | None:
        """Its rows, where they are read straight from a file, in any order."""
        if self.leaf.form != "tensor":
            return None
        found = raw_rows(self.leaf.variable, self.leaf.widened_from, self.kept)
        return None if found is None or found.array.is_compressed else found

    def along(self, rows: Ints) -> Job:
        """What reads rows along its first axis."""
        found = as_slice(rows)
        return self.leaf.variable[(found,)] if self.raw is None else RowsRead(self.raw, found)

    @property
    def row_bytes(self) -> int:
        """About how many bytes one row takes."""
        if not self.held:
            return 0
        size = self.leaf.variable.dtype.itemsize if self.leaf.form == "tensor" else _OBJECT_BYTES
        return math.prod(self.leaf.variable.shape[len(self.held) :]) * size


@dataclass(frozen=True)
class Part:
    """What was read of one entry.

    Attributes
    ----------
    values
        One item for each row that was read.
    index
        Which of them belongs to each row that was asked for; None: they are the same.
    own
        Whether nothing else refers to the memory.
    """

    member: Member
    values: Values
    index: Ints | None
    own: bool

    def pick(self, first: int, last: int) -> Values:
        """The values of some of the rows that were asked for, in memory of their own."""
        if not self.member.held:
            return self.values
        if self.index is not None:
            return _taken(self.values, self.index[first:last])
        if self.own and last - first == len(self.values):
            return self.values
        part = self.values[first:last]
        return part.clone() if isinstance(part, torch.Tensor) else part


class RowReader:
    """Reads rows of a Dataset into TensorDicts.

    Parameters
    ----------
    ds
        The Dataset; nothing is read yet, except times that may not fit into int64 nanoseconds.
    inference
        Its batch.
    sizes
        The sizes of the leading batch dims that rows are counted through.
    names
        The names of the axes of samples, in place of the leading batch dims.
    coords, unbatched, exclude
        As in ``ds.td.to_tensordict``.
    """

    def __init__(
        self,
        ds: xr.Dataset,
        inference: Inference,
        sizes: tuple[int, ...],
        names: Sequence[str | None],
        *,
        coords: bool | Iterable[str] = True,
        unbatched: Unbatched = "drop",
        exclude: Iterable[str] = (),
    ) -> None:
        plan = plan_entries(ds, inference, coords=coords, unbatched=unbatched, exclude=exclude)
        leave_out_times(plan)
        warn_left_out(plan.left_out)
        self.sizes = sizes
        kept = Kept()
        self.members = [Member.of(entry, len(sizes), kept) for entry in plan.entries]
        self.row_bytes = sum(member.row_bytes for member in self.members)
        self._straight = len(sizes) == 1 and all(member.raw is not None for member in self.members if member.held)
        self._expand = unbatched == "expand"
        self._names = tuple(names)
        self._groups = _groups(plan)
        self._whole: dict[Key, Values] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_whole": {}}  # a pickle holds no data

    def read(self, asked: Ints) -> list[Part]:
        """Read rows, in any order and repeatedly; what costs more than a copy is read once."""
        # what lies in files as it is in memory is copied into its place: to put it in order afterwards would be a second copy
        rows, places = (asked, None) if self._straight else _distinct(asked)
        wanted = [self._request(member, asked, rows, places) for member in self.members]
        read = iter(self._read([job for jobs, _ in wanted for job in jobs], wanted))
        return [
            self._part(member, [next(read) for _ in jobs], index)
            for member, (jobs, index) in zip(self.members, wanted, strict=True)
        ]

    def _part(self, member: Member, read: list[Any], index: Ints | None) -> Part:
        if member.held:
            values = self._converted(member, _flat(member, read))
            return Part(member, values, index, member.leaf.fresh or len(read) > 1)
        if read:
            self._whole[member.entry.key] = self._converted(member, read[0])
        return Part(member, self._whole[member.entry.key], None, own=False)

    def _request(self, member: Member, asked: Ints, rows: Ints, places: Ints | None) -> tuple[list[Job], Ints | None]:
        """What to read of an entry, and which of the items read belongs to each of the rows that were asked for."""
        if not member.held:
            return ([] if member.entry.key in self._whole else [member.leaf.variable]), None
        if member.raw is not None and len(self.sizes) == 1:
            return [member.along(asked)], None
        held = [self.sizes[axis] for axis in member.held]
        if len(held) < len(self.sizes):
            coords = np.unravel_index(rows, self.sizes)
            projected = np.ravel_multi_index([coords[axis] for axis in member.held], held)
            rows, index = np.unique(projected, return_inverse=True)
            places = index if places is None else index[places]
        if len(held) == 1:
            return [member.along(rows)], places
        coords = np.unravel_index(rows, held)
        axes = [np.unique(along) for along in coords]
        if math.prod(map(len, axes)) <= _WASTE * len(rows):
            block = tuple(map(len, axes))
            found = [np.searchsorted(axis, along) for axis, along in zip(axes, coords, strict=True)]
            place = np.ravel_multi_index(found, block)
            return [member.leaf.variable[tuple(map(as_slice, axes))]], place if places is None else place[places]
        tables = rows // held[-1]
        cuts = [0, *(np.flatnonzero(np.diff(tables)) + 1).tolist(), len(rows)]
        return [
            member.leaf.variable[(*(int(along[lo]) for along in coords[:-1]), as_slice(coords[-1][lo:hi]))]
            for lo, hi in pairwise(cuts)
        ], places

    def _read(self, jobs: Sequence[Job], wanted: Sequence[tuple[list[Job], Any]]) -> list[Any]:
        names = [member.entry.name for member, (own, _) in zip(self.members, wanted, strict=True) for _ in own]
        try:
            return compute_together(jobs, names)
        except Exception as error:
            _blame(error, jobs, names)
            raise

    def _converted(self, member: Member, array: np.ndarray[Any, Any] | torch.Tensor) -> Values:
        if member.leaf.form != "tensor" or isinstance(array, torch.Tensor):
            return array
        return tensor_from_numpy(array, name=member.entry.name, torch_dtype=member.leaf.widened_from)

    def join(self, pieces: Sequence[Sequence[Values]]) -> list[Values]:
        """The values of several pieces as those of one."""
        return [
            values[0] if not member.held else _concatenated(values)
            for member, values in zip(self.members, zip(*pieces, strict=True), strict=True)
        ]

    def assemble(self, picked: Sequence[Values], shape: tuple[int, ...]) -> TensorDict:
        """Build the TensorDict of samples.

        Parameters
        ----------
        picked
            For each member the values of all rows of the samples.
        shape
            The leading shape of the samples.
        """
        batches = {key: self._batch(batch, shape) for key, batch in self._groups.items()}
        leaves = {
            member.entry.key: self._leaf(member, values, shape, batches[member.entry.key[:-1]].sizes)
            for member, values in zip(self.members, picked, strict=True)
        }
        return build(batches, leaves)

    def _batch(self, batch: GroupBatch, shape: tuple[int, ...]) -> GroupBatch:
        lead = len(self.sizes)
        return replace(batch, dims=(*self._names, *batch.dims[lead:]), sizes=(*shape, *batch.sizes[lead:]))

    def _leaf(self, member: Member, values: Values, shape: tuple[int, ...], batch: tuple[int, ...]) -> Any:
        leaf = member.leaf
        if leaf.form == "value":
            return NonTensorData(python_value(np.asarray(values)), batch_size=batch)
        if isinstance(values, torch.Tensor) and member.entry.entry_class == "unbatched":
            own = values.clone()
            return own.expand(*batch, *own.shape) if self._expand else UnbatchedTensor(own)
        lead = len(self.sizes)
        later = tuple(axis - lead + len(shape) for axis in leaf.missing if axis >= lead)
        front = tuple(range(0 if member.held else len(shape)))
        if isinstance(values, np.ndarray):
            rows = values.reshape((*shape, *values.shape[1:])) if member.held else values
            rows = np.expand_dims(rows, (*front, *later))
            return rows_from_numpy(
                np.broadcast_to(rows, (*batch, *rows.shape[len(batch) :])), ndim=len(batch), batch_size=batch
            )
        tensor = values.view(*shape, *values.shape[1:]) if member.held else values.clone()
        for axis in (*front, *later):
            tensor = tensor.unsqueeze(axis)
        return tensor.expand(*batch, *tensor.shape[len(batch) :]) if front or later else tensor


def _groups(plan: Plan) -> dict[Key, GroupBatch]:
    """The batches of the groups that have entries, and of those above them."""
    used = {entry.key[:length] for entry in plan.entries for length in range(len(entry.key))} | {()}
    return {key: batch for key, batch in plan.batches.items() if key in used}


def _distinct(rows: Ints) -> tuple[Ints, Ints | None]:
    """Rows in ascending order, none twice, and the places of the given ones among them; None: they are the same."""
    if np.all(rows[1:] > rows[:-1]):
        return rows, None
    return np.unique(rows, return_inverse=True)


def _taken(values: Values, positions: Ints) -> Values:
    """Items of an array, copied in one thread: torch's threads wait for each other where cores are busy."""
    if isinstance(values, np.ndarray):
        return values[positions]
    try:
        array = values.numpy()
    except TypeError:  # a dtype that numpy lacks
        return values.index_select(0, torch.from_numpy(positions))
    return torch.from_numpy(np.take(array, positions, axis=0))


def as_slice(rows: Ints) -> slice | Ints:
    """Rows as a slice where they follow each other: a store reads that better."""
    if not len(rows):
        return slice(0, 0)
    first, last = int(rows[0]), int(rows[-1])
    together = last - first + 1 == len(rows) and bool((rows[1:] > rows[:-1]).all())
    return slice(first, last + 1) if together else rows


def _flat(member: Member, read: list[Any]) -> Any:
    """What was read, its leading axes as one."""
    if len(read) > 1:
        return np.concatenate(read)
    (array,) = read
    lead = array.ndim - (member.leaf.variable.ndim - len(member.held))
    return array if lead == 1 else array.reshape((math.prod(array.shape[:lead]), *array.shape[lead:]))


def _blame(error: BaseException, jobs: Sequence[Job], names: Sequence[str]) -> None:
    """Note the variable that cannot be read; of those that dask computes together, it is looked for."""
    if any(repr(name) in note for name in names for note in getattr(error, "__notes__", ())):
        return
    for job, name in zip(jobs, names, strict=True):
        try:
            compute_together([job], [name])
        except Exception:  # whatever it is, it was raised already
            error.add_note(f"while reading the variable {name!r}; exclude=[{name!r}] leaves it out")
            return


def _concatenated(values: Sequence[Values]) -> Values:
    tensors = [found for found in values if isinstance(found, torch.Tensor)]
    return torch.cat(tensors) if tensors else np.concatenate([np.asarray(found) for found in values])
