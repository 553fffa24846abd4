"""The rows of many lazy arrays as one lazy array, and as one array of dask: a graph for each of thousands takes minutes."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import xarray as xr
from xarray.core import indexing

from .._compat.xarray import data_of, remade
from ..formats.array_wrappers import OuterArray, read_outer
from ..formats.raw.arrays import counted_from_start

Key = tuple[Any, ...]


class JoinedRows(OuterArray):
    """Lazy arrays one after the other along their first axis; only those are read whose rows are asked for.

    Parameters
    ----------
    parts
        Arrays that xarray can index, of the same shape but for the first axis.
    dtype
        That of the result, which holds the values of all.
    """

    def __init__(self, parts: Sequence[Any], dtype: np.dtype[Any]) -> None:
        self._wrapped = tuple(parts)
        self._stops = np.cumsum([part.shape[0] for part in parts])
        self.dtype = dtype
        self.shape = (int(self._stops[-1]), *parts[0].shape[1:])

    def _read(self, key: Key) -> Any:
        rows, *rest = key
        if isinstance(rows, slice):
            numbers = range(self.shape[0])[rows]
            if numbers and numbers.step == 1:
                return self._between(numbers.start, numbers.stop, rest)
            return self._picked(np.arange(numbers.start, numbers.stop, numbers.step), rest)
        picked = np.asarray(rows, np.int64)
        found = self._picked(counted_from_start(picked, self.shape[0]).reshape(-1), rest)
        return found if picked.ndim else found[0]

    def _part(self, number: int, rows: Any, rest: Sequence[Any]) -> np.ndarray[Any, Any]:
        part = self._wrapped[number]
        found = read_outer(part, (rows, *rest))
        # what is in memory stays its owner's
        return found.astype(self.dtype, copy=isinstance(part, np.ndarray))

    def _between(self, start: int, stop: int, rest: Sequence[Any]) -> np.ndarray[Any, Any]:
        first, last = np.searchsorted(self._stops, [start, stop - 1], side="right")
        found = []
        for number in range(first, last + 1):
            begin = int(self._stops[number]) - self._wrapped[number].shape[0]
            end = int(self._stops[number])
            if begin < end:
                found.append(self._part(number, slice(max(start, begin) - begin, min(stop, end) - begin), rest))
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _picked(self, rows: np.ndarray[Any, Any], rest: Sequence[Any]) -> np.ndarray[Any, Any]:
        """Rows by number: those of one part are read together."""
        if not rows.size:
            return self._part(0, slice(0, 0), rest)
        numbers = np.searchsorted(self._stops, rows, side="right")
        order = np.argsort(numbers, kind="stable")
        found = []
        for places in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
            number = int(numbers[places[0]])
            begin = int(self._stops[number]) - self._wrapped[number].shape[0]
            found.append(self._part(number, rows[places] - begin, rest))
        joined = np.concatenate(found)
        result = np.empty_like(joined)
        result[order] = joined
        return result


class RepeatedRow(OuterArray):
    """The same values for each of some rows."""

    def __init__(self, array: Any, size: int) -> None:
        self._wrapped = array
        self.dtype = np.dtype(array.dtype)
        self.shape = (size, *array.shape)

    def _read(self, key: Key) -> Any:
        rows, *rest = key
        values = self._values(tuple(rest))
        if isinstance(rows, int | np.integer):
            return values
        count = len(range(self.shape[0])[rows]) if isinstance(rows, slice) else len(rows)
        return np.repeat(values[None], count, axis=0)

    def _values(self, key: Key) -> np.ndarray[Any, Any]:
        if key or not self.dtype.hasobject:
            return read_outer(self._wrapped, key)
        # one object may be a sequence, which numpy would make an axis of
        value = np.empty((), object)
        value[()] = xr.Variable((), self._wrapped).values.item()
        return value


def is_joinable(variable: xr.Variable) -> bool:
    """Whether the values are in memory or read lazily by xarray: not those of dask, nor of another library."""
    return isinstance(data_of(variable), np.ndarray | indexing.ExplicitlyIndexed)


def joined_variable(parts: Sequence[xr.Variable], dim: str) -> xr.Variable:
    """The rows of all parts as one variable, backed by dask in chunks of one part each, more for a large one."""
    # xarray's own rules for attributes, encoding and dtype
    like = xr.Variable.concat([_without_rows(part) for part in parts], dim, combine_attrs="drop_conflicts")
    data = indexing.LazilyIndexedArray(JoinedRows([data_of(part) for part in parts], like.dtype))
    joined = remade(like, data=data)
    chunks = tuple(size for part in parts for size in row_chunks(part.shape, part.dtype))
    # to find a name by their contents, dask would pickle all parts
    return joined.chunk({dim: chunks}, name=f"joined-{uuid.uuid4().hex}")


def _without_rows(part: xr.Variable) -> xr.Variable:
    return remade(part, data=np.empty((0, *part.shape[1:]), part.dtype))


@lru_cache(2**12)
def row_chunks(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
    """The chunks of dask along the first axis of one part."""
    from .._compat import dask

    # dask does not know the size of objects
    return (shape[0],) if dtype.hasobject or 0 in shape else dask.row_chunks(shape, dtype)


def join(parts: Mapping[str, xr.Dataset], dim: str) -> dict[str, xr.Variable]:
    """Of all variables that start with `dim` in every part, and that no part has as an array of dask, the rows of all parts."""
    datasets = list(parts.values())
    names = [name for name, variable in datasets[0].variables.items() if dim in variable.dims]
    columns = {str(name): [ds.variables[name] for ds in datasets] for name in names}
    return {name: joined_variable(column, dim) for name, column in columns.items() if all(map(is_joinable, column))}
