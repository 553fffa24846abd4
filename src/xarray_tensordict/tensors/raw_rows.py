"""Tensors straight from arrays that lie in files as they are in memory, past the layers of xarray.

The same values as through xarray, which stays in the way wherever anything has to be decoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr

from .._compat.xarray import bare_array
from ..formats.array_wrappers import WidenedArray
from ..formats.raw.arrays import RawArray
from ..formats.raw.kept import Kept
from .values import hear_of_complex32, torch_dtype


@dataclass(frozen=True)
class RawRows:
    """Rows of an array that can become a tensor as they are.

    Attributes
    ----------
    array
        The array.
    codes
        The name of the torch dtype whose codes it holds, None where it holds the values themselves.
    numbers
        The rows; None for an array of no axes.
    kept
        What the reader keeps from one read to the next; None: nothing.
    """

    array: RawArray
    codes: str | None
    numbers: range | None
    kept: Kept | None = None

    def take(self, rows: Any) -> torch.Tensor:
        """Read rows: a number, a slice, or a 1-d array of numbers that are in bounds, in any order."""
        return self._tensor(self.array.take(self._places(rows), kept=self.kept))

    def take_into(self, out: torch.Tensor) -> None:
        """Read all rows into a contiguous tensor of the same shape and dtype on the CPU."""
        there = out if self.codes is None else out.view(_code_dtype(self.array))
        self.array.take(self._places(slice(None)), there.numpy())

    def _places(self, rows: Any) -> Any:
        numbers = self.numbers
        if numbers is None or numbers == range(self.array.shape[0]):
            return rows
        if isinstance(rows, (int, np.integer)):
            return numbers[rows]
        if isinstance(rows, slice):
            found = numbers[rows]
            return slice(found.start, found.stop, found.step)
        return np.asarray(rows) * numbers.step + numbers.start

    def _tensor(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self.codes is None else viewed_as(tensor, self.codes)


@dataclass(frozen=True)
class RowsRead:
    """One read of rows, to be carried out; all rows are read into `target`, if there is one."""

    rows: RawRows
    places: Any
    target: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        """How many bytes it reads, about."""
        numbers = self.rows.numbers
        if numbers is None or isinstance(self.places, (int, np.integer)):
            count = 1
        else:
            count = len(numbers[self.places]) if isinstance(self.places, slice) else np.size(self.places)
        return count * self.rows.array.row_size

    def __call__(self) -> torch.Tensor:
        if self.target is None:
            return self.rows.take(self.places)
        self.rows.take_into(self.target)
        return self.target


def raw_rows(
    variable: xr.Variable, widened_from: torch.dtype | str | None = None, kept: Kept | None = None
) -> RawRows | None:
    """The rows behind a variable that has not been loaded; None where they have to be decoded or picked by number.

    Parameters
    ----------
    variable
        The variable.
    widened_from
        The torch dtype that its values are to have, where that is not the twin of its own.
    kept
        What the reader keeps from one read to the next; None: nothing.
    """
    found = bare_array(variable)
    if found is None:
        return None
    array, key = found
    codes = None
    if isinstance(array, WidenedArray):
        array, codes = array.wrapped, array.torch_dtype
    if not isinstance(array, RawArray) or codes != _dtype_name(widened_from):
        return None
    if codes is None and (array.dtype.kind not in "biufc" or torch_dtype(array.dtype) is None):
        return None
    if not array.dtype.isnative or not all(isinstance(part, slice) for part in key):
        return None
    if not array.shape:
        return RawRows(array, codes, None, kept)
    numbers = range(array.shape[0])[key[0]]
    inner = zip(key[1:], array.shape[1:], strict=True)
    if numbers.step < 1 or any(range(size)[part] != range(size) for part, size in inner):
        return None
    return RawRows(array, codes, numbers, kept)


def _dtype_name(dtype: torch.dtype | str | None) -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")


def _code_dtype(array: RawArray) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, array.dtype.name)
    return dtype


def mapped_tensor(variable: xr.Variable) -> torch.Tensor | None:
    """The values of a variable as a tensor over a private copy-on-write map of its file: nothing is read.

    None where that cannot be: it is not of a memory-mapped tensordict, is compressed, is in memory already, or rows are
    picked by number. Writes to the tensor reach nobody else.
    """
    found = bare_array(variable)
    if found is None:
        return None
    array, key = found
    torch_dtype = None
    if isinstance(array, WidenedArray):
        array, torch_dtype = array.wrapped, array.torch_dtype
    if not isinstance(array, RawArray) or not all(isinstance(part, int | np.integer | slice) for part in key):
        return None
    if any(isinstance(part, slice) and (part.step or 1) < 0 for part in key):
        return None  # torch has no negative strides
    view = array.private(key)
    if view is None or not view.flags.aligned:
        return None
    tensor = torch.from_numpy(view)
    return tensor if torch_dtype is None else viewed_as(tensor, torch_dtype)


def viewed_as(codes: torch.Tensor, torch_dtype: str) -> torch.Tensor:
    """Integers as the values of a dtype of the same width whose codes they are."""
    if torch_dtype == "complex32":
        hear_of_complex32()
    return codes.view(getattr(torch, torch_dtype))
