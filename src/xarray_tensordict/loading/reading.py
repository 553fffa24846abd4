"""Rows of all entries of a lazy Dataset, each read once however often it is picked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import xarray as xr
from tensordict import TensorDict

from ..core.model import Inference, Key
from ..dataset.entries import Unbatched, plan_entries
from ..formats.raw.files import at_once, in_turn
from ..formats.raw.kept import Kept
from ..lazy.persistent import leave_out_times
from ..tensors.convert import WORTH_THREADS, compute_together, warn_left_out
from ..tensors.raw_rows import RowsRead
from ..tensors.values import tensor_from_numpy
from .assembly import Assembly
from .members import Job, Member, Part, Values, as_slice
from .order import Ints

_WASTE = 4
"""Rows of several leading dims are read as one block unless it holds more than this many times what is needed."""


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
        self.is_straight = len(sizes) == 1 and all(member.held and member.raw is not None for member in self.members)
        self._assembly = Assembly(self.members, plan, len(sizes), names, expand=unbatched == "expand")
        self._whole: dict[Key, Values] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_whole": {}}  # a pickle holds no data

    def read(self, asked: Ints) -> list[Part]:
        """Read rows, in any order and repeatedly; what costs more than a copy is read once."""
        if self.is_straight:
            return self._read_straight(asked)
        rows, places = _distinct(asked)
        wanted = [self._request(member, asked, rows, places) for member in self.members]
        read = iter(self._read([job for jobs, _ in wanted for job in jobs], wanted))
        return [
            self._part(member, [next(read) for _ in jobs], index)
            for member, (jobs, index) in zip(self.members, wanted, strict=True)
        ]

    def _read_straight(self, asked: Ints) -> list[Part]:
        """What lies in files as it is in memory goes into its place: to put it in order afterwards would be a second copy."""
        rows = as_slice(asked)
        jobs = [RowsRead(member.raw, rows) for member in self.members if member.raw is not None]
        together = len(jobs) > 1 and len(asked) * self.row_bytes >= WORTH_THREADS
        try:
            tensors = (at_once if together else in_turn)(RowsRead.__call__, jobs)
        except Exception as error:
            _blame(error, jobs, [member.entry.name for member in self.members])
            raise
        return [Part(member, tensor, None, own=True) for member, tensor in zip(self.members, tensors, strict=True)]

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
            return [member.along(asked)], None  # to put its rows in order afterwards would be a second copy
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
        """Build the TensorDict of samples from the values of all their rows; `shape` is their leading shape."""
        return self._assembly.assemble(picked, shape)


def _distinct(rows: Ints) -> tuple[Ints, Ints | None]:
    """Rows in ascending order, none twice, and the places of the given ones among them; None: they are the same."""
    if np.all(rows[1:] > rows[:-1]):
        return rows, None
    return np.unique(rows, return_inverse=True)


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
