"""A warning of windows that go on from one episode into the next, or over missing rows, where the caller did not say so."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import xarray as xr
from xarray.indexes import PandasIndex, PandasMultiIndex

from ..warnings import warn
from .samples import Bools, Samples, changes, read_column, rising, rows_behind_gaps


def warn_of_crossings(ds: xr.Dataset, batch_dims: Collection[str], samples: Samples, within: Any, gaps: Any) -> None:
    """Warn once where neither `within` nor `gaps` was passed, and labels of episodes or an index say that windows cross.

    Parameters
    ----------
    batch_dims
        Those of the Dataset. Along another dim, such as levels, numbers that do not rise evenly are no gaps; times are.

    Notes
    -----
    An index is in memory; of the store, only a column that ``concat`` made is read, as `within` would read it.
    """
    windows = samples.windows
    if windows is None or within is not None or gaps is not None or windows.width < 2 or not len(windows):
        return
    dim, rows = samples.dim, ds.sizes[samples.dim]
    first = windows.first[: np.searchsorted(windows.first, rows)]  # those of other tables are the same
    tables = len(windows) // len(first)

    def crossing(begins: Bools) -> str:
        runs = np.cumsum(begins)
        count = int((runs[first + windows.width - 1] > runs[first]).sum()) * tables * samples.patches
        return f"{count} of {len(samples)} windows along {dim!r}" if count else ""

    for name in _labels_of_episodes(ds, dim):
        if text := crossing(changes(read_column(ds.variables[name], name, (dim,), (rows,))[None])[0]):
            warn(
                f"{text} go on from one episode into the next, as {name!r} says: pass within={name!r} to cut them there, or "
                f"gaps=False if that is meant",
                UserWarning,
            )
            return
    values = _rising_index(ds, dim, is_batch=dim in batch_dims)
    if values is not None and (text := crossing(begins := rows_behind_gaps(values[None])[0])):
        row = int(np.flatnonzero(begins[1:])[0])
        before, after = (str(each) for each in ds.variables[dim].values[row : row + 2])
        warn(
            f"{text} go on over missing rows, where {dim!r} does not rise by its usual step: {after} follows on {before}. Pass "
            f"gaps={dim!r} to cut them there, or gaps=False if that is meant",
            UserWarning,
        )


def _labels_of_episodes(ds: xr.Dataset, dim: str) -> list[str]:
    """The numbers of episodes as ``concat`` makes them: under its usual name, or with the names of the groups."""
    return [
        str(name)
        for name, variable in ds.variables.items()
        if name in ds.coords and variable.dims == (dim,) and variable.dtype.kind in "iu" and name != dim
        if name == "episode" or "names" in variable.attrs
    ]


def _rising_index(ds: xr.Dataset, dim: str, *, is_batch: bool) -> np.ndarray[Any, Any] | None:
    """The index of a dim, where its steps say whether rows are missing."""
    index = ds.xindexes.get(dim)
    if not isinstance(index, PandasIndex) or isinstance(index, PandasMultiIndex):
        return None
    counts_time = isinstance(index.index, xr.CFTimeIndex) or index.index.dtype.kind in "mM"
    if index.index.is_monotonic_decreasing or not (counts_time or (is_batch and index.index.dtype.kind in "iuf")):
        return None
    return rising(index.index.values, dim)
