"""One entry of the batches: how its rows are read, and what was read of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
import xarray as xr

from ..dataset.entries import Entry
from ..formats.raw.kept import Kept
from ..lazy.lazy_nodes import Leaf
from ..tensors.raw_rows import RawRows, RowsRead, raw_rows
from .order import Ints

Job: TypeAlias = "xr.Variable | RowsRead"
Values: TypeAlias = "torch.Tensor | np.ndarray[Any, Any]"

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

    @cached_property
    def _array(self) -> np.ndarray[Any, Any] | None:
        """The values as an array: numpy copies in one thread, while those of torch wait for each other on busy cores."""
        if isinstance(self.values, np.ndarray):
            return self.values
        try:
            return self.values.numpy()
        except TypeError:  # a dtype that numpy lacks
            return None

    def pick(self, first: int, last: int) -> Values:
        """The values of some of the rows that were asked for, in memory of their own."""
        if not self.member.held:
            return self.values
        if self.index is None and self.own and last - first == len(self.values):
            return self.values
        array = self._array
        if array is None:
            where = slice(first, last) if self.index is None else torch.from_numpy(self.index[first:last])
            return torch.as_tensor(self.values)[where].clone()
        copied = array[first:last].copy() if self.index is None else np.take(array, self.index[first:last], axis=0)
        return copied if array is self.values else torch.from_numpy(copied)


def as_slice(rows: Ints) -> slice | Ints:
    """Rows as a slice where they follow each other: a store reads that better."""
    if not len(rows):
        return slice(0, 0)
    first, last = int(rows[0]), int(rows[-1])
    together = last - first + 1 == len(rows) and bool((rows[1:] > rows[:-1]).all())
    return slice(first, last + 1) if together else rows
