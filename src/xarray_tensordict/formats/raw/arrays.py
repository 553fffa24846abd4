"""Lazy arrays whose bytes lie in files as they are in memory; every read gives a copy of what was selected."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from xarray.backends.common import BackendArray
from xarray.core import indexing

from ...core.model import cached_property
from ..array_wrappers import WidenedArray
from ..identity import ReplacedError
from .files import LONG_ROW, Bytes, Kept, NotRawError, PlainFiles


@dataclass(eq=False)
class RawArray(BackendArray):
    """An array whose bytes are stored one after the other.

    Attributes
    ----------
    data
        Where the bytes are.
    dtype
        The dtype of the elements.
    shape
        The shape; bytes behind it are not read.
    otherwise
        The same array through the library of its format, which is asked where the bytes are not as expected.
    """

    data: Bytes
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    otherwise: BackendArray | None = None

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        if isinstance(key, indexing.VectorizedIndexer):
            return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)
        return self._read(key.tuple)

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> Any:
        return await asyncio.to_thread(self.__getitem__, key)

    @property
    def is_compressed(self) -> bool:
        """Whether rows are not read by themselves: a chunk, or all that is before them, has to be decompressed."""
        return bool(getattr(self.data, "is_compressed", False))

    @property
    def pieces(self) -> tuple[int, ...] | None:
        """The shape of what has to be decompressed as a whole; None where rows are read by themselves."""
        if not self.is_compressed:
            return None
        chunk = getattr(self.data, "chunk", None)
        return self.shape if chunk is None or not self.shape else (max(chunk // self.row_size, 1), *self.shape[1:])

    @cached_property
    def row_size(self) -> int:
        """The number of bytes of a row."""
        return math.prod(self.shape[1:]) * int(self.dtype.itemsize)

    def row(self, number: int, kept: Kept) -> np.ndarray[Any, Any] | None:
        """A short row, whose number is in bounds, from a map that is kept; None where :meth:`take` has to read it."""
        if not self.shape or not 0 < self.row_size < LONG_ROW or not isinstance(self.data, PlainFiles):
            return None
        try:
            found = self.data.mapped_range(number * self.row_size, self.row_size, kept)
        except NotRawError:
            return None
        return None if found is None else found.view(self.dtype).reshape(self.shape[1:]).copy()

    def take(
        self, rows: Any, out: np.ndarray[Any, Any] | None = None, kept: Kept | None = None
    ) -> np.ndarray[Any, Any]:
        """Read whole rows.

        Parameters
        ----------
        rows
            A number, a slice, or an array of numbers, in any order; for a 0-d array anything.
        out
            A C-contiguous array of this dtype and of the shape of the result that is filled; None for a new one.
        kept
            What the reader keeps from one read to the next.
        """
        if self.shape and np.ndim(rows) > 1:  # an index of a store has one dim
            flat = None if out is None else out.reshape(np.size(rows), *self.shape[1:])
            return self.take(np.ravel(rows), flat, kept).reshape(*np.shape(rows), *self.shape[1:])
        key = (rows, *(slice(None),) * (len(self.shape) - 1)) if self.shape else ()
        found = self._read(key, out, kept)
        if out is None or found is out:
            return np.asarray(found)
        out[...] = found
        return out

    def _read(self, key: tuple[Any, ...], out: np.ndarray[Any, Any] | None = None, kept: Kept | None = None) -> Any:
        """A selection by ints, slices and one list of numbers for each axis; `out` is filled where it is whole rows."""
        picked = _picked_shape(key, self.shape)
        if 0 in picked:
            return np.empty(picked, self.dtype)
        is_whole = all(_is_everything(*part) for part in zip(key[1:], self.shape[1:], strict=True))
        try:
            found = self._whole_rows(key[0] if key else 0, out, kept) if is_whole else None
            return self._parts(key) if found is None else found
        except (NotRawError, MemoryError) as reason:
            return self._through_library(key, reason)

    def _through_library(self, key: tuple[Any, ...], reason: NotRawError | MemoryError) -> Any:
        if self.otherwise is None:
            raise reason if isinstance(reason, MemoryError) else OSError(str(reason)) from reason
        try:
            # xarray's base class has no __getitem__ in its types; all that derive from it do
            return self.otherwise[indexing.OuterIndexer(key)]  # type: ignore[index]
        except (IndexError, TypeError, MemoryError, ReplacedError):
            raise
        except Exception as error:  # codecs have errors of their own
            if isinstance(reason, MemoryError):
                raise
            raise OSError(f"{reason}. The file is truncated or damaged: {error}") from error

    def _whole_rows(
        self, rows: Any, out: np.ndarray[Any, Any] | None, kept: Kept | None
    ) -> np.ndarray[Any, Any] | None:
        """The rows of a selection that is not empty; None where their bytes cannot be read one after the other."""
        piece = self.row_size
        lead: tuple[int, ...] = ()
        if not self.shape:
            starts = np.zeros(1, np.int64)
        elif isinstance(rows, slice):
            numbers = range(self.shape[0])[rows]
            lead = (len(numbers),)
            if numbers.step == 1 or len(numbers) == 1:
                starts, piece = np.array([numbers[0] * piece], np.int64), len(numbers) * piece
            else:
                starts = np.arange(numbers.start, numbers.stop, numbers.step, dtype=np.int64) * piece
        else:
            counted = counted_from_start(np.asarray(rows, np.int64), self.shape[0])
            lead, starts = counted.shape, counted.reshape(-1) * piece
        if out is None:
            out = np.empty((*lead, *self.shape[1:]), self.dtype)
        return out if self.data.rows(starts, out.reshape(-1).view(np.uint8).reshape(-1, piece), kept) else None

    def _parts(self, key: tuple[Any, ...]) -> np.ndarray[Any, Any]:
        """Any selection that is not empty, from a view of the rows from the first one to the last."""
        first, stop = 0, 1
        if self.shape:
            rows, first, stop = _only_rows(key[0], self.shape[0])
            key = (rows, *key[1:])
        held = self.data.view(first * self.row_size, stop * self.row_size)
        if held is None:
            raise NotRawError("parts of rows of an array in many files are read by its library")
        array = np.frombuffer(held, self.dtype).reshape((stop - first, *self.shape[1:]) if self.shape else ())
        found = indexing.NumpyIndexingAdapter(array).oindex[indexing.OuterIndexer(key)]
        # a view of a map must not get out
        return np.array(found, copy=True) if np.may_share_memory(found, array) else np.asarray(found)

    def private(self, key: tuple[Any, ...]) -> np.ndarray[Any, Any] | None:
        """A selection by ints and slices as a view of a private copy-on-write map; None where there is none."""
        size = math.prod(self.shape) * self.dtype.itemsize
        mapped = self.data.private()
        if mapped is None:
            return None
        view: np.ndarray[Any, Any] = np.frombuffer(mapped[:size], self.dtype).reshape(self.shape)
        return view[(*key, ...)]  # with the dots a single element is a view, too


@dataclass(frozen=True)
class RawRows:
    """Some rows of an array, each whole.

    Attributes
    ----------
    array
        The array.
    codes
        The name of the torch dtype whose codes it holds, None where it holds the values themselves.
    numbers
        The rows; None for an array of no axes.
    """

    array: RawArray
    codes: str | None
    numbers: range | None

    def take(
        self, rows: Any, out: np.ndarray[Any, Any] | None = None, kept: Kept | None = None
    ) -> np.ndarray[Any, Any]:
        """Read rows: a number, a slice, or an array of numbers that are in bounds; see :meth:`RawArray.take`."""
        return self.array.take(self._places(rows), out, kept)

    def row(self, number: int, kept: Kept) -> np.ndarray[Any, Any] | None:
        """Read one row, as :meth:`RawArray.row` does."""
        return None if self.numbers is None else self.array.row(self.numbers[number], kept)

    def count(self, rows: Any) -> int:
        """How many rows are read."""
        if self.numbers is None or isinstance(rows, (int, np.integer)):
            return 1
        return len(self.numbers[rows]) if isinstance(rows, slice) else int(np.size(rows))

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


def raw_rows(array: Any, key: tuple[Any, ...], torch_dtype: str | None) -> RawRows | None:
    """The rows that a selection of a reader's array has; None where they have to be decoded or picked by number.

    Parameters
    ----------
    array, key
        The array, and what is selected of it.
    torch_dtype
        The torch dtype that the values are to have, where that is not the twin of the array's.
    """
    stored, codes = uncoded(array)
    if not isinstance(stored, RawArray) or codes != torch_dtype or not stored.dtype.isnative:
        return None
    if (codes is None and stored.dtype.kind not in "biufc") or not all(isinstance(part, slice) for part in key):
        return None
    if not stored.shape:
        return RawRows(stored, codes, None)
    numbers = range(stored.shape[0])[key[0]]
    whole = all(_is_everything(*part) for part in zip(key[1:], stored.shape[1:], strict=True))
    return RawRows(stored, codes, numbers) if whole and numbers.step > 0 else None


def uncoded(array: Any) -> tuple[Any, str | None]:
    """The array that holds the codes of a dtype which numpy lacks, and the name of the dtype; or the array itself, and None."""
    return (array.wrapped, array.torch_dtype) if isinstance(array, WidenedArray) else (array, None)


def _picked_shape(key: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    lengths = []
    for part, size in zip(key, shape, strict=True):
        if isinstance(part, slice):
            lengths.append(len(range(size)[part]))
        elif np.ndim(part):
            lengths.append(len(part))
    return tuple(lengths)


def _is_everything(part: Any, size: int) -> bool:
    return isinstance(part, slice) and (part == slice(None) or range(size)[part] == range(size))


def counted_from_start(numbers: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    """The numbers of rows, none of them negative; raises where one is out of bounds."""
    if not numbers.size:
        return numbers
    lowest, highest = int(numbers.min()), int(numbers.max())
    if lowest < -size or highest >= size:
        wrong = lowest if lowest < -size else highest
        raise IndexError(f"index {wrong} is out of bounds for axis 0 with size {size}")
    return np.where(numbers < 0, numbers + size, numbers) if lowest < 0 else numbers


def _only_rows(rows: Any, size: int) -> tuple[Any, int, int]:
    """Some rows as a selection of the rows from the first one to the last, and these two; the second is exclusive."""
    if isinstance(rows, slice):
        numbers = range(size)[rows]
        first, last = sorted((numbers[0], numbers[-1]))
        return slice(None, None, numbers.step), first, last + 1
    counted = counted_from_start(np.asarray(rows), size)
    first, last = int(counted.min()), int(counted.max())
    return (counted - first if counted.ndim else int(counted) - first), first, last + 1
