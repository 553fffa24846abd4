"""What one sample is: a row of the first batch dim, or a window along a batch dim."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from ..core.model import Inference
from ..tensors.reading import read_variables
from .order import Ints


@dataclass(frozen=True)
class Windows:
    """The windows of a table of ``[lead, time]``, in its order.

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


def find_windows(
    shape: tuple[int, int], width: int, stride: int, episodes: np.ndarray[Any, Any] | None = None
) -> Windows:
    """Find the windows that start at every `stride`-th row of each episode and end in it.

    Parameters
    ----------
    shape
        How many tables there are, and how many rows each of them has.
    width, stride
        Rows of a window, and from the start of one to that of the next.
    episodes
        An array of `shape`: an episode is a run of equal values (NaN equals NaN), so that a value which comes back
        later is another episode. None: each table is one episode.

    Examples
    --------
    >>> find_windows((1, 7), 2, 1, np.array([[0, 0, 0, 1, 0, 0, 0]])).first.tolist()
    [0, 1, 4, 5]
    """
    tables, rows = shape
    begins = np.arange(tables, dtype=np.int64) * rows
    if episodes is not None and rows:
        changed = _differs(episodes[:, 1:], episodes[:, :-1])
        begins = np.flatnonzero(np.concatenate([np.ones((tables, 1), bool), changed], axis=1))
    if not rows:
        begins = begins[:0]
    lengths = np.diff(begins, append=tables * rows)
    counts = np.maximum((lengths - width) // stride + 1, 0)
    within = np.arange(counts.sum(), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    first = np.repeat(begins, counts) + within * stride
    return Windows(first, width, len(begins), int((lengths < width).sum()), int(lengths.max(initial=0)))


def _differs(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    differs = np.asarray(a != b, dtype=bool)
    if a.dtype.kind in "fc":
        differs &= ~(np.asarray(a != a, dtype=bool) & np.asarray(b != b, dtype=bool))
    elif a.dtype.kind in "mM":
        differs &= ~(np.isnat(a) & np.isnat(b))
    return differs


@dataclass(frozen=True)
class Samples:
    """The samples of a Dataset.

    Attributes
    ----------
    sizes
        The sizes of the leading batch dims: of the first, or of all up to the one that the windows run along. A sample is
        made of rows of the table of these sizes, which are counted through.
    dim
        The name of the dim that the rows of a sample run along.
    windows
        None where a sample is a single row.
    """

    sizes: tuple[int, ...]
    dim: str
    windows: Windows | None = None

    def __len__(self) -> int:
        return math.prod(self.sizes) if self.windows is None else len(self.windows)

    @property
    def width(self) -> int:
        """How many rows a sample has."""
        return 1 if self.windows is None else self.windows.width

    def __str__(self) -> str:
        if self.windows is None:
            return f"{len(self)} rows along {self.dim!r}"
        windows = self.windows
        text = f"{len(self)} windows of {windows.width} rows along {self.dim!r}"
        if windows.skipped:
            text += f"; {windows.skipped} of {windows.episodes} episodes are shorter and skipped"
        return text

    def shape(self, count: int) -> tuple[int, ...]:
        """The leading shape of so many samples."""
        return (count,) if self.windows is None else (count, self.windows.width)

    def rows(self, samples: Ints) -> Ints:
        """The rows of samples, those of one behind those of the other."""
        if self.windows is None:
            return samples
        found: Ints = self.windows.first[samples][:, None] + np.arange(self.windows.width)
        return found.reshape(-1)


def samples_of(
    ds: xr.Dataset,
    inference: Inference,
    *,
    window: Mapping[str, int] | None = None,
    stride: int = 1,
    within: str | None = None,
) -> Samples:
    """The samples of a Dataset; `within` is read.

    Raises
    ------
    ValueError
        Where there is no batch dim; for a window along another dim, of no rows, or of more than any episode has; for
        `within` that does not say where the episodes are.
    """
    dims = tuple(str(dim) for dim in inference.batch_dims)
    if not dims:
        raise ValueError(
            f"there is no batch dim to make batches along: {inference.reason}. Pass batch_dims=..., set it with "
            f"ds.td.set_batch_dims(...), or open one group with group=..."
        )
    if window is None:
        if within is not None or stride != 1:
            example = f"window={{{dims[-1]!r}: 8}}"
            raise ValueError(f"stride= and within= say where windows start: give their length, {example}")
        return Samples(inference.batch_size[:1], dims[0])
    dim, width = _checked_window(window, dims)
    stride = whole_number(stride, "stride", 1)
    lead = dims.index(dim)
    sizes = tuple(inference.batch_size[: lead + 1])
    table = (math.prod(sizes[:-1]), sizes[-1])
    episodes = None if within is None else _episodes(ds, within, dims[: lead + 1], sizes).reshape(table)
    windows = find_windows(table, width, stride, episodes)
    if windows.longest and not len(windows):
        longest = f"{dim!r} has" if within is None else f"the longest episode of {within!r} has"
        raise ValueError(
            f"window: no window of {width} along {dim!r} fits: {longest} {windows.longest} rows; take a shorter one, "
            f"window={{{dim!r}: {windows.longest}}} or less"
        )
    return Samples(sizes, dim, windows)


def _checked_window(window: Any, dims: tuple[str, ...]) -> tuple[str, int]:
    if not isinstance(window, Mapping) or len(window) != 1:
        raise ValueError(f"window: expected one batch dim and a number of rows, {{{dims[-1]!r}: 8}}, got {window!r}")
    ((dim, width),) = window.items()
    if dim not in dims:
        raise ValueError(
            f"window: {dim!r} is no batch dim, these are {list(dims)}; windows along other dims come from "
            f"ds.rolling(...).construct(...), or make it a batch dim with batch_dims=..."
        )
    return dim, whole_number(width, f"window of {dim!r}", 1)


def whole_number(value: Any, what: str, least: int) -> int:
    """A number that the caller gave, checked."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what}: expected a whole number, got {value!r}") from None
    if number < least or isinstance(value, bool):
        raise ValueError(f"{what}: expected a whole number of at least {least}, got {value!r}")
    return number


def _labels(values: np.ndarray[Any, Any], within: str) -> np.ndarray[Any, Any]:
    """Numbers for objects, the same for all that are missing (None, NaN, NA): those say of nothing whether it is equal."""
    try:
        numbers, _ = pd.factorize(values.ravel())
    except TypeError:
        raise TypeError(
            f"within: {within!r} holds objects such as {values.flat[0]!r:.60}, which cannot be compared as labels of episodes; "
            f"pass a variable of numbers or strings"
        ) from None
    return np.asarray(numbers).reshape(values.shape)


def _episodes(ds: xr.Dataset, within: str, dims: tuple[str, ...], sizes: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The values of `within` for each row of the table."""
    if within not in ds.variables:
        raise ValueError(f"within: there is no variable {within!r}; there are: {sorted(map(str, ds.variables))}")
    variable = ds.variables[within]
    # torchrl's columns have the shape [time, 1]
    ones = [d for d, size in zip(variable.dims, variable.shape, strict=True) if size == 1 and d not in dims]
    variable = variable.isel(dict.fromkeys(ones, 0))
    if dims[-1] not in variable.dims or not set(variable.dims) <= set(dims):
        raise ValueError(
            f"within: expected one value of {within!r} for each row along {dims[-1]!r}, and its dims among {list(dims)}, found "
            f"the dims {list(variable.dims)}; windows run along {dims[-1]!r} for each of the batch dims in front of it, which "
            f"ds.td.set_batch_dims(...) chooses"
        )
    if variable.dtype.kind == "b":
        squeezed = f".squeeze({ones!r})" if ones else ""
        raise ValueError(
            f"within: {within!r} holds flags, and episodes are runs of equal values; number them first: "
            f"ends = ds[{within!r}]{squeezed}.astype(int); ds = ds.assign_coords(episode=ends.cumsum({dims[-1]!r}) - ends)"
        )
    (values,) = read_variables([variable], [within])
    values = _labels(np.asarray(values), within) if values.dtype.kind == "O" else values
    order = [variable.dims.index(dim) for dim in dims if dim in variable.dims]
    missing = tuple(axis for axis, dim in enumerate(dims) if dim not in variable.dims)
    return np.broadcast_to(np.expand_dims(values.transpose(order), missing), sizes)
