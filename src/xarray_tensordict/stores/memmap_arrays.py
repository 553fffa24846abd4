"""Lazy arrays over the files of memory-mapped tensordicts; every read gives a copy of what was selected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from xarray.backends.common import BackendArray
from xarray.core import indexing

from ..dataset.xarray_private import bare_array
from .array_wrappers import WidenedArray, read_outer

if TYPE_CHECKING:
    import torch

    from .memmap_files import Bytes

PLAIN_DTYPES = frozenset(
    "bool uint8 int8 int16 int32 int64 float16 float32 float64 complex64 complex128 uint16 uint32 uint64".split()
)
CODE_DTYPES = {
    "bfloat16": "uint16",
    "float8_e4m3fn": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2": "uint8",
    "float8_e5m2fnuz": "uint8",
    "float8_e8m0fnu": "uint8",
    "complex32": "uint32",
}
"""Dtypes of torch that numpy lacks, and the integers of the same width."""
_LARGE_ROW = 4096
"""From this size on rows are read one by one; it takes as long as faulting in a page of a map."""


class MemmapArray(BackendArray):
    """An array whose bytes are stored one after the other.

    Parameters
    ----------
    data
        Where the bytes are.
    dtype
        The dtype of the elements.
    shape
        The shape; bytes behind it are not read.
    """

    def __init__(self, data: Bytes, dtype: Any, shape: tuple[int, ...]) -> None:
        self._data = data
        self.dtype = np.dtype(dtype)
        self.shape = shape

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        found = self._whole_rows(key)
        return self._parts(key) if found is None else found

    @property
    def _row_size(self) -> int:
        return math.prod(self.shape[1:]) * int(self.dtype.itemsize)

    def _whole_rows(self, key: indexing.ExplicitIndexer) -> np.ndarray[Any, Any] | None:
        """The selection, if it is of whole rows that lie together or are large."""
        rows = key.tuple[0] if self.shape else 0
        inner = zip(key.tuple[1:], self.shape[1:], strict=True)
        if isinstance(key, indexing.VectorizedIndexer) or not all(_is_everything(part, size) for part, size in inner):
            return None
        size = self._row_size
        lead: tuple[int, ...] = ()
        if isinstance(rows, int | np.integer):
            number = int(rows) + self.shape[0] if rows < 0 else int(rows)
            starts, piece = [number * size], size
            outside = number < 0 or number >= (self.shape[0] if self.shape else 1)
        elif isinstance(rows, slice):
            numbers = range(self.shape[0])[rows]
            together = len(numbers) > 0 and (numbers.step == 1 or len(numbers) == 1)
            lead, outside = (len(numbers),), not (together or size >= _LARGE_ROW)
            starts, piece = (
                ([numbers[0] * size], len(numbers) * size) if together else ([n * size for n in numbers], size)
            )
        else:
            wanted = np.where(rows < 0, rows + self.shape[0], rows)
            lead, starts, piece = (len(wanted),), (wanted * size).tolist(), size
            outside = size < _LARGE_ROW or not ((wanted >= 0) & (wanted < self.shape[0])).all()
        if outside:
            return None
        array = np.empty((*lead, *self.shape[1:]), self.dtype)
        if not array.size:
            return array
        return array if self._data.rows(starts, _bytes_of(array).reshape(-1, piece)) else None

    def _parts(self, key: indexing.ExplicitIndexer) -> np.ndarray[Any, Any]:
        """Any selection, from a view of the rows from the first one to the last."""
        selection, first, last = _only_rows(key.tuple, self.shape)
        start, stop = first * self._row_size, last * self._row_size
        # numpy makes no array of an empty buffer
        seen = np.frombuffer(self._data.view(start, stop), self.dtype) if start < stop else np.empty(0, self.dtype)
        array = seen.reshape((last - first, *self.shape[1:]) if self.shape else ())
        adapter = indexing.NumpyIndexingAdapter(array)
        explicit = type(key)(selection)
        if isinstance(key, indexing.VectorizedIndexer):
            found = adapter.vindex[explicit]
        elif isinstance(key, indexing.OuterIndexer):
            found = adapter.oindex[explicit]
        else:
            found = adapter[explicit]
        # a view of a map must not get out
        copied: np.ndarray[Any, Any] = np.array(found, copy=True) if np.may_share_memory(found, array) else found
        return np.asarray(copied)

    def private(self, key: tuple[Any, ...]) -> np.ndarray[Any, Any] | None:
        """A selection by ints and slices as a view of a private copy-on-write map; None where there is none."""
        size = math.prod(self.shape) * self.dtype.itemsize
        mapped = self._data.private()
        if mapped is None:
            return None
        view: np.ndarray[Any, Any] = np.frombuffer(mapped[:size], self.dtype).reshape(self.shape)
        return view[(*key, ...)]  # with the dots a single element is a view, too


def _is_everything(part: Any, size: int) -> bool:
    return isinstance(part, slice) and range(size)[part] == range(size)


def _bytes_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return array.reshape(-1).view(np.uint8)


def _only_rows(key: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[tuple[Any, ...], int, int]:
    """The rows that a selection needs, from first to last, and the selection among these."""
    if not shape:
        return key, 0, 1
    rows, rest = key[0], key[1:]
    if isinstance(rows, slice):
        numbers = range(shape[0])[rows]
        if not numbers:
            return (slice(0), *rest), 0, 0
        first, last = min(numbers[0], numbers[-1]), max(numbers[0], numbers[-1])
        stop = numbers[-1] - first + (1 if numbers.step > 0 else -1)
        moved: Any = slice(numbers[0] - first, stop if stop >= 0 else None, numbers.step)
        return (moved, *rest), first, last + 1
    wanted = np.asarray(rows)
    if not wanted.size:
        return key, 0, 0
    wanted = np.where(wanted < 0, wanted + shape[0], wanted)
    first, last = int(wanted.min()), int(wanted.max())
    if first < 0 or last >= shape[0]:
        raise IndexError(f"index {rows} is out of bounds for axis 0 with size {shape[0]}")
    moved = int(wanted) - first if isinstance(rows, int | np.integer) else wanted - first
    return (moved, *rest), first, last + 1


class StackedArray(BackendArray):
    """Arrays of one shape and dtype, stacked along a new axis; only the members that are selected are read."""

    def __init__(self, members: Sequence[Any], axis: int) -> None:
        self._members = list(members)
        self._axis = axis
        shape = tuple(members[0].shape)
        self.dtype = np.dtype(members[0].dtype)
        self.shape = (*shape[:axis], len(self._members), *shape[axis:])

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> Any:
        which, rest = key[self._axis], (*key[: self._axis], *key[self._axis + 1 :])
        if isinstance(which, int | np.integer):
            return read_outer(self._members[int(which)], rest)
        numbers = range(len(self._members))[which] if isinstance(which, slice) else [int(number) for number in which]
        if not numbers:
            one = read_outer(self._members[0], rest)
            return np.empty((*one.shape[: self._place(key)], 0, *one.shape[self._place(key) :]), self.dtype)
        return np.stack([read_outer(self._members[number], rest) for number in numbers], axis=self._place(key))

    def _place(self, key: tuple[Any, ...]) -> int:
        return sum(not isinstance(part, int | np.integer) for part in key[: self._axis])


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
    if not isinstance(array, MemmapArray) or not all(isinstance(part, int | np.integer | slice) for part in key):
        return None
    if any(isinstance(part, slice) and (part.step or 1) < 0 for part in key):
        return None  # torch has no negative strides
    view = array.private(key)
    if view is None or not view.flags.aligned:
        return None
    import torch

    tensor = torch.from_numpy(view)
    return tensor if torch_dtype is None else viewed_as(tensor, torch_dtype)


def viewed_as(codes: torch.Tensor, torch_dtype: str) -> torch.Tensor:
    """Integers as the values of a dtype of the same width whose codes they are."""
    import warnings

    import torch

    with warnings.catch_warnings():  # torch warns once in a process that complex32 is experimental
        warnings.simplefilter("ignore")
        return codes.view(getattr(torch, torch_dtype))
