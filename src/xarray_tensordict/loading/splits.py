"""``ds.td.split``: parts of a Dataset for training, validation and test that share no chunk, no episode and no time."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from ..core.model import Inference, Key, entry_name
from .kept import chunk_marks
from .order import Ints
from .samples import labels, whole_number

_ROUNDING = 1e-9


def split(
    ds: xr.Dataset, inference: Inference, parts: Mapping[str, float], *, by: str | Key | None, seed: int | None
) -> dict[str, xr.Dataset]:
    """Split a Dataset along a batch dim; see ``Dataset.td.split``."""
    shares = _checked(parts)
    dims = tuple(str(dim) for dim in inference.batch_dims)
    if not dims:
        raise ValueError(
            f"there is no batch dim to split along: {inference.explained}. Set it with ds.td.set_batch_dims(...)"
        )
    if not isinstance(by, Hashable):
        raise TypeError(f"by: expected the name of one variable, or None, found {by!r}")
    label: str | None = entry_name(by)
    dim, unit, what = _chunks(ds, dims[0]) if label is None else _values(ds, label, dims)
    sizes = np.bincount(unit)
    order = np.arange(len(sizes))
    if seed is not None:
        order = np.random.default_rng(whole_number(seed, "seed", 0)).permutation(order)
    ends = np.concatenate([[0], np.cumsum(sizes[order])])
    targets = np.concatenate([[0.0], np.cumsum(shares)]) * len(unit)
    right = np.clip(np.searchsorted(ends, targets), 1, len(sizes))
    cuts = right - (targets - ends[right - 1] < ends[right] - targets)  # the border that is nearest
    found = {}
    for name, first, last in zip(parts, cuts[:-1], cuts[1:], strict=True):
        if first == last:
            other = "" if by is not None else f"; by={dim!r} cuts between rows"
            raise ValueError(
                f"split: {name!r} would be empty: there are {len(sizes)} {what} along {dim!r}, and none of them is cut{other}. "
                f"Pass a larger share than {parts[name]}"
            )
        rows = np.flatnonzero(np.isin(unit, order[first:last]))
        together = rows[-1] - rows[0] + 1 == len(rows)
        part = ds.isel({dim: slice(int(rows[0]), int(rows[-1]) + 1) if together else rows})
        found[name] = part if part.td.batch_dims == dims else part.td.set_batch_dims(dims)
    return found


def _checked(parts: Any) -> list[float]:
    if not isinstance(parts, Mapping) or not parts:
        raise TypeError(f"split: expected the share of each part, {{'train': 0.8, 'test': 0.2}}, got {parts!r}")
    for name, share in parts.items():
        if isinstance(share, bool) or not isinstance(share, (int, float, np.number)) or not 0 < share <= 1:
            raise ValueError(f"split: expected a share between 0 and 1 for {name!r}, got {share!r}")
    shares = [float(share) for share in parts.values()]
    if sum(shares) > 1 + _ROUNDING:
        raise ValueError(f"split: the shares add up to {sum(shares):.6g}, expected at most 1: {dict(parts)!r}")
    return shares


def _chunks(ds: xr.Dataset, dim: str) -> tuple[str, Ints, str]:
    """The dim, the chunk of each row of it (of the variable with most bytes), and what these are called."""
    found = [
        (variable.nbytes, marks)
        for variable in ds.variables.values()
        if dim in variable.dims and (marks := chunk_marks(variable, variable.dims.index(dim))) is not None
    ]
    if not found:
        return dim, np.arange(ds.sizes[dim]), "rows"
    marks = max(found, key=lambda pair: pair[0])[1]
    return dim, np.repeat(np.arange(len(marks) - 1), np.diff(marks)), "chunks"


def _values(ds: xr.Dataset, by: str, dims: tuple[str, ...]) -> tuple[str, Ints, str]:
    """The dim of a variable, the number of the value of each row, and what the values are called.

    Numbers and times count in ascending order, text as it appears.
    """
    if by not in ds.variables and by in dims:
        return by, np.arange(ds.sizes[by]), "rows"
    along = [dim for dim in dims if by in ds.variables and dim in ds.variables[by].dims]
    if by in ds.variables and len(along) != 1:
        raise ValueError(
            f"by: expected a variable along one of the batch dims {list(dims)}, and {by!r} has the dims "
            f"{list(ds.variables[by].dims)}; ds.td.concat('row') joins the rows of a table with episodes of its own in each column"
        )
    values = labels(ds, "by", by, tuple(along) or dims, tuple(ds.sizes[dim] for dim in along))
    numbers, _ = pd.factorize(values, sort=values.dtype.kind in "iufmM", use_na_sentinel=False)
    return along[0], numbers, f"values of {by!r}"
