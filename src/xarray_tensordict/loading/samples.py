"""What one sample is: a row of the first batch dim, or a window along a batch dim."""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
import xarray as xr

from ..core.model import Inference, Key, entry_name
from ..core.naming import there_are
from ..dataset.describe import hidden_text
from ..dataset.records import infer_dataset, opening_notes
from ..tensors.reading import read_variables
from ..warnings import warn
from .order import Ints

Bools: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"

_PARTS_OF_TIMES = ("year", "month", "season", "day", "dayofyear", "hour", "minute", "second")

MOST_ROWS = 2**40
"""More rows than this are refused: the numbers of all take 8 TiB."""


@dataclass(frozen=True)
class Windows:
    """The windows of a table of ``[leading, time]``, in its order.

    Attributes
    ----------
    first
        The first row of each window, counted through the flattened table.
    width
        How many rows each window has.
    episodes, skipped
        How many episodes there are, and how many of them are shorter than a window.
    longest
        How many rows the longest episode has.
    """

    first: Ints
    width: int
    episodes: int
    skipped: int
    longest: int

    def __len__(self) -> int:
        return len(self.first)


def find_windows(shape: tuple[int, int], width: int, stride: int, begins: Bools | None = None) -> Windows:
    """Find the windows that start at every `stride`-th row of each episode and end in it.

    Parameters
    ----------
    shape
        How many tables there are, and how many rows each of them has.
    width, stride
        Rows of a window, and from the start of one to that of the next.
    begins
        An array of `shape`: the rows that an episode begins with, besides the first of each table, which always does.

    Examples
    --------
    >>> find_windows((1, 7), 2, 1, np.array([[0, 0, 0, 1, 1, 0, 0]], bool)).first.tolist()
    [0, 1, 4, 5]
    """
    tables, rows = shape
    first_rows = np.zeros(shape, bool) if begins is None else begins.copy()
    first_rows[:, :1] = True
    firsts = np.flatnonzero(first_rows)
    lengths = np.diff(firsts, append=tables * rows)
    counts = np.maximum((lengths - width) // stride + 1, 0)
    within = np.arange(counts.sum(), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    first = np.repeat(firsts, counts) + within * stride
    return Windows(first, width, len(firsts), int((lengths < width).sum()), int(lengths.max(initial=0)))


def changes(values: np.ndarray[Any, Any]) -> Bools:
    """The rows whose value is not that of the row before, by tables of rows; NaN equals NaN.

    Examples
    --------
    >>> changes(np.array([[0, 0, 1, 0]])).tolist()
    [[False, False, True, True]]
    """
    before = np.concatenate([values[:, :1], values[:, :-1]], axis=1)
    differs = np.asarray(values != before, dtype=bool)
    if values.dtype.kind in "fc":
        differs &= ~(np.asarray(values != values, dtype=bool) & np.asarray(before != before, dtype=bool))
    elif values.dtype.kind in "mM":
        differs &= ~(np.isnat(values) & np.isnat(before))
    return differs


def rows_behind_gaps(values: np.ndarray[Any, Any], most: float | None = None) -> Bools:
    """The rows that do not follow the row before: the values do not rise, or rise by more than `most`.

    Parameters
    ----------
    values
        Tables of int64, float64, or times, which count in their own unit.
    most
        None: one and a half times the usual step, the most common one as its first two digits say. So months are usual
        steps, though one is longer than another, and those of a clock that does not tick evenly.

    Examples
    --------
    >>> rows_behind_gaps(np.array([[0, 1, 2, 3, 7, 8, 0, 1]]))[0].nonzero()[0].tolist()
    [0, 4, 6]
    """
    steps = np.diff(values, axis=-1, prepend=values[:, :1])
    steps = steps.astype(np.int64) if steps.dtype.kind == "m" else steps  # NaT is the smallest number
    rises = np.asarray(steps > 0, dtype=bool)
    if most is None:
        usual = steps[rises & (steps < np.inf)].astype("f8")
        digits = 10.0 ** (np.floor(np.log10(usual)) - 1)
        found, counts = np.unique(np.round(usual / digits) * digits, return_counts=True)
        most = 1.5 * float(found[counts.argmax()]) if len(found) else 0.0
    follows: Bools = rises & np.asarray(steps <= most, dtype=bool)
    return ~follows


@dataclass(frozen=True)
class Side:
    """A dim behind the one that `within` and `gaps` cut: where windows begin along it, and how wide they are.

    Attributes
    ----------
    windowed
        Whether it is an axis of the samples; else each index is a sample of its own.
    """

    dim: str
    starts: Ints
    width: int
    windowed: bool


@dataclass(frozen=True)
class Samples:
    """The samples of a Dataset.

    Attributes
    ----------
    sizes
        The sizes of the leading batch dims: of the first, or of all up to the last one that windows run along. A sample is
        made of rows of the table of these sizes, which are counted through.
    dim
        The name of the dim that the rows of a sample run along; of several, the first.
    windows
        None where a sample is a single row.
    sides
        The dims behind `dim`, where windows run along several.
    rest
        The sizes of the batch dims behind, which each sample has whole.
    """

    sizes: tuple[int, ...]
    dim: str
    windows: Windows | None = None
    sides: tuple[Side, ...] = ()
    rest: tuple[int, ...] = ()

    def __len__(self) -> int:
        return math.prod(self.sizes) if self.windows is None else len(self.windows) * self.patches

    @property
    def patches(self) -> int:
        """How many samples there are in each window along `dim`."""
        return math.prod(len(side.starts) for side in self.sides)

    @property
    def widths(self) -> tuple[int, ...]:
        """The sizes of a sample along all dims of the table."""
        front = (1,) * (len(self.sizes) - len(self.sides) - 1)
        return (*front, 1 if self.windows is None else self.windows.width, *(side.width for side in self.sides))

    @property
    def width(self) -> int:
        """How many rows a sample has."""
        return math.prod(self.widths)

    @property
    def names(self) -> tuple[str | None, ...]:
        """The names of the axes of batches: that of the windows has none."""
        return (
            (self.dim,)
            if self.windows is None
            else (None, self.dim, *(side.dim for side in self.sides if side.windowed))
        )

    def __str__(self) -> str:
        if self.windows is None:
            return f"{len(self)} rows along {self.dim!r}"
        windows, shape = self.windows, self.shape(0)[1:]
        text = f"{len(self)} windows of {' x '.join(map(str, shape))} rows along {', '.join(map(repr, self.names[1:]))}"
        if windows.skipped:
            text += f"; {windows.skipped} of {windows.episodes} episodes are shorter and skipped"
        return text

    def shape(self, count: int) -> tuple[int, ...]:
        """The leading shape of so many samples."""
        if self.windows is None:
            return (count,)
        return (count, self.windows.width, *(side.width for side in self.sides if side.windowed))

    def rows(self, samples: Ints) -> Ints:
        """The rows of samples along one dim, those of one behind those of the other."""
        if self.windows is None:
            return samples
        found: Ints = self.windows.first[samples][:, None] + np.arange(self.windows.width)
        return found.reshape(-1)

    def corners(self, samples: Ints) -> list[Ints]:
        """Where samples begin along each dim of the table."""
        assert self.windows is not None
        counts = [len(side.starts) for side in self.sides]
        window, *behind = np.unravel_index(samples, (len(self.windows), *counts))
        front = np.unravel_index(self.windows.first[window], self.sizes[: len(self.sizes) - len(self.sides)])
        return [*front, *(side.starts[number] for side, number in zip(self.sides, behind, strict=True))]


def for_windows(ds: xr.Dataset, inference: Inference, window: Any) -> Inference:
    """The batch of a Dataset whose leading batch dims are those that windows run along, and those in front of them."""
    dims = [str(dim) for dim in inference.batch_dims]
    if window is None or not dims:
        return inference
    if not isinstance(window, Mapping) or not window:
        raise ValueError(f"window: expected dims and numbers of rows, {{{dims[-1]!r}: 8}}, got {window!r}")
    for dim in window:
        if dim not in ds.dims:
            raise ValueError(f"window: there is no dim {dim!r}; {there_are(str(dim), [str(name) for name in ds.dims])}")
    leading = max((place + 1 for place, dim in enumerate(dims) if dim in window), default=len(dims))
    order = [*dims[:leading], *(dim for dim in window if dim not in dims), *dims[leading:]]
    return inference if order == dims else infer_dataset(ds, given=order)


def samples_of(
    ds: xr.Dataset,
    inference: Inference,
    *,
    window: Mapping[str, int] | None = None,
    stride: int | Mapping[str, int] = 1,
    within: str | Key | None = None,
    gaps: str | Key | Mapping[str, Any] | Literal[False] | None = None,
) -> Samples:
    """The samples of a Dataset, whose batch is that :func:`for_windows`; `within` and `gaps` are read.

    Raises
    ------
    ValueError
        Where there is no batch dim, or more than `MOST_ROWS` rows; for a window of no rows, or of more than
        any episode has; for `within` or `gaps` that do not say where the episodes are.
    """
    dims = tuple(str(dim) for dim in inference.batch_dims)
    if not dims:
        notes = opening_notes(ds)
        hidden = hidden_text(notes.get("hidden_groups", {}), notes.get("episodes_in"))
        advice = f"Not shown: {hidden}" if hidden else "Pass batch_dims=..., or set it with ds.td.set_batch_dims(...)"
        raise ValueError(f"there is no batch dim to make batches along: {inference.explained}. {advice}")
    if 0 in inference.batch_size:
        dim = dims[inference.batch_size.index(0)]
        warn(
            f"{dim!r} has no rows, so no batch holds a value: the selection that gave the Dataset found none",
            UserWarning,
        )
    if window is None:
        if within is not None or gaps is not None or stride != 1:
            example = f"window={{{dims[-1]!r}: 8}}"
            raise ValueError(f"stride=, within= and gaps= are for windows: pass their length, {example}")
        return Samples(_checked_rows(ds, inference.batch_size[:1], dims), dims[0], rest=inference.batch_size[1:])
    widths = {dim: whole_number(width, f"window of {dim!r}", 1) for dim, width in window.items()}
    strides = _strides(stride, widths)
    windowed = [place for place, dim in enumerate(dims) if dim in widths]
    first, last = windowed[0], windowed[-1]
    sizes = _checked_rows(ds, inference.batch_size[: last + 1], dims)
    gaps = None if gaps is False else gaps
    windows = _cut_windows(ds, dims[: first + 1], sizes[: first + 1], widths, strides, within, gaps)
    sides = tuple(_side(dims[place], sizes[place], widths, strides) for place in range(first + 1, last + 1))
    return Samples(sizes, dims[first], windows, sides, inference.batch_size[last + 1 :])


def _cut_windows(
    ds: xr.Dataset,
    dims: tuple[str, ...],
    sizes: tuple[int, ...],
    widths: Mapping[str, int],
    strides: Mapping[str, int],
    within: str | Key | None,
    gaps: Any,
) -> Windows:
    """The windows along the last of some dims, cut by `within` and `gaps`."""
    dim, table = dims[-1], (math.prod(sizes[:-1]), sizes[-1])
    begins = np.zeros(table, bool)
    if within is not None:
        begins |= changes(labels(ds, "within", within, dims, sizes).reshape(table))
    if gaps is not None:
        begins |= _gaps(ds, gaps, dims, sizes, table)
    windows = find_windows(table, widths[dim], strides[dim], begins)
    if windows.longest and not len(windows):
        longest = f"{dim!r} has"
        if gaps is not None:
            longest = f"the longest run of rows without a gap ({gaps=}) has"
        elif within is not None:
            longest = f"the longest episode of {within!r} has"
        raise _too_long(dim, widths[dim], longest, windows.longest)
    return windows


def _side(dim: str, size: int, widths: Mapping[str, int], strides: Mapping[str, int]) -> Side:
    if dim not in widths:
        return Side(dim, np.arange(size), 1, windowed=False)
    starts = np.arange(0, size - widths[dim] + 1, strides[dim])
    if size and not len(starts):
        raise _too_long(dim, widths[dim], f"{dim!r} has", size)
    return Side(dim, starts, widths[dim], windowed=True)


def _too_long(dim: str, width: int, longest: str, most: int) -> ValueError:
    return ValueError(
        f"window: no window of {width} along {dim!r} fits: {longest} {most} rows; take a shorter one, "
        f"window={{{dim!r}: {most}}} or less"
    )


def _strides(stride: Any, widths: Mapping[str, int]) -> dict[str, int]:
    """The stride along each dim of the windows."""
    if not isinstance(stride, Mapping):
        return dict.fromkeys(widths, whole_number(stride, "stride", 1))
    if wrong := [dim for dim in stride if dim not in widths]:
        raise ValueError(f"stride: {wrong[0]!r} is none of the dims of window=, which are {list(widths)}")
    return {dim: whole_number(stride.get(dim, 1), f"stride of {dim!r}", 1) for dim in widths}


def _checked_rows(ds: xr.Dataset, sizes: tuple[int, ...], dims: tuple[str, ...]) -> tuple[int, ...]:
    """The sizes of the table of rows, of which there are no more than an order can be made of."""
    rows = math.prod(sizes)
    if rows > MOST_ROWS:
        raise ValueError(
            f"{ds.encoding.get('source', 'the Dataset')}: there are {rows} rows along {list(dims[: len(sizes)])}, and batches "
            f"are made of {MOST_ROWS} at most, since their order is held in memory. Select a part with ds.isel(...)"
        )
    return tuple(sizes)


def whole_number(value: Any, what: str, least: int) -> int:
    """A number that the caller gave, checked."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what}: expected a whole number, got {value!r}") from None
    if number < least or isinstance(value, bool):
        raise ValueError(f"{what}: expected a whole number of at least {least}, got {value!r}")
    return number


def labels(
    ds: xr.Dataset, option: str, label: str | Key, dims: tuple[str, ...], sizes: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    """The label of each row, such as its episode: numbers for objects, the same for all that are missing (None, NaN, NA)."""
    name: str = entry_name(label)
    variable = _column(ds, option, name, dims)
    values = None if variable.dtype.kind == "b" else read_column(variable, name, dims, sizes)
    if values is None or _are_flags(values):
        dim = variable.dims[0] if variable.ndim == 1 else "row"
        numbers = "" if values is None else " of 0 and 1, where one value comes back behind the other"
        flagged = "ds" if values is None else f"ds.assign({{{name!r}: ds[{name!r}].astype(bool)}})"
        raise ValueError(
            f"{option}: {name!r} holds flags{numbers}, and episodes are runs of equal values; number them first, along {dim!r}: "
            f"ds = {flagged}.td.concat({dim!r}, by={name!r}) has a coordinate for {option}='episode'"
        )
    if values.dtype.kind != "O":
        return values
    try:
        found, _ = pd.factorize(values.ravel())
    except TypeError:
        raise TypeError(
            f"{option}: {name!r} holds objects such as {values.flat[0]!r:.60}, which cannot be compared as labels of episodes; "
            f"pass a variable of numbers or strings"
        ) from None
    return np.asarray(found).reshape(sizes)


def _are_flags(values: np.ndarray[Any, Any]) -> bool:
    """Whether numbers are all 0 or 1, and a value comes back behind the other one, as no number of an episode does."""
    if values.dtype.kind not in "iuf" or not ((values == 0) | (values == 1)).all():
        return False
    return bool((np.diff(values, axis=-1) != 0).sum(axis=-1).max(initial=0) > 1)


def _gaps(ds: xr.Dataset, gaps: Any, dims: tuple[str, ...], sizes: tuple[int, ...], table: tuple[int, int]) -> Bools:
    """The rows of a table that do not follow the row before."""
    gaps = entry_name(gaps)
    if not isinstance(gaps, str) and (not isinstance(gaps, Mapping) or len(gaps) != 1):
        raise ValueError(
            f"gaps: expected the name of a variable, or one with its largest step, {{'time': '1h'}}, or False, got {gaps!r}"
        )
    ((name, most),) = {gaps: None}.items() if isinstance(gaps, str) else gaps.items()
    name = entry_name(name)
    values = rising(read_column(_column(ds, "gaps", name, dims), name, dims, sizes).reshape(table), name)
    return rows_behind_gaps(values, None if most is None else _most(most, name, values.dtype))


def rising(values: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """Values as :func:`rows_behind_gaps` takes them."""
    if values.dtype.kind == "O" and values.size:
        with suppress(TypeError, ValueError):  # dates of another calendar have differences
            values = (values - values.flat[0]).astype("m8[us]")
    if values.dtype.kind not in "iufmM":
        raise TypeError(
            f"gaps: {name!r} has dtype {values.dtype}; expected numbers or times, which rise from row to row"
        )
    return values.astype({"i": "i8", "u": "i8", "f": "f8"}.get(values.dtype.kind, values.dtype))


def _most(given: Any, name: str, dtype: np.dtype[Any]) -> float:
    """The largest step from a row to the next, in the unit of the values."""
    counts_time = dtype.kind in "mM"
    kinds = (str, timedelta, np.timedelta64) if counts_time else (int, float, np.integer, np.floating)
    if (
        not isinstance(given, kinds)
        or isinstance(given, bool)
        or (isinstance(given, np.timedelta64) and not counts_time)
    ):
        expected = "a duration such as '1h'" if counts_time else "a number"
        raise TypeError(f"gaps: {name!r} has dtype {dtype}; expected {expected} as its largest step, got {given!r}")
    most: Any = given
    if counts_time:
        most = pd.Timedelta(given).to_timedelta64().astype(f"m8[{np.datetime_data(dtype)[0]}]").astype(np.int64)
    if not most > 0:
        raise ValueError(f"gaps: the largest step of {name!r} must be more than nothing, got {given!r}")
    return most  # type: ignore[no-any-return]


def _column(ds: xr.Dataset, option: str, name: Any, dims: tuple[str, ...]) -> xr.Variable:
    """A variable of one value for each row; torchrl's columns have the shape [time, 1]."""
    if not isinstance(name, Hashable):
        raise TypeError(
            f"{option}: expected the name of one variable, such as 'episode' or ('next', 'done'), got {name!r}"
        )
    if name not in ds.variables:
        raise ValueError(
            f"{option}: there is no variable {name!r}; {there_are(name, ds.variables)}{_of_times(ds, name, dims)}"
        )
    variable = ds.variables[name]
    ones = [d for d, size in zip(variable.dims, variable.shape, strict=True) if size == 1 and d not in dims]
    variable = variable.isel(dict.fromkeys(ones, 0))
    if dims[-1] not in variable.dims or not set(variable.dims) <= set(dims):
        raise ValueError(
            f"{option}: expected one value of {name!r} for each row along {dims[-1]!r}, and its dims among {list(dims)}, found "
            f"the dims {list(variable.dims)}; windows run along {dims[-1]!r} for each of the batch dims in front of it, which "
            f"ds.td.set_batch_dims(...) chooses"
        )
    return variable


def _of_times(ds: xr.Dataset, field: Hashable, dims: tuple[str, ...]) -> str:
    """How to make a variable of a part of times along one of some dims, as the end of a message."""
    for name, coord in ds.coords.items():
        is_time = coord.dtype.kind == "M" or isinstance(getattr(ds.xindexes.get(name), "index", None), xr.CFTimeIndex)
        if field in _PARTS_OF_TIMES and is_time and coord.ndim == 1 and coord.dims[0] in dims:
            return f". Add it: ds = ds.assign_coords({field}=ds[{str(name)!r}].dt.{field})"
    return ""


def read_column(
    variable: xr.Variable, name: str, dims: tuple[str, ...], sizes: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    """The values of a column for each row of the table."""
    (values,) = read_variables([variable], [name])
    order = [variable.dims.index(dim) for dim in dims if dim in variable.dims]
    missing = tuple(axis for axis, dim in enumerate(dims) if dim not in variable.dims)
    return np.broadcast_to(np.expand_dims(np.asarray(values).transpose(order), missing), sizes)
