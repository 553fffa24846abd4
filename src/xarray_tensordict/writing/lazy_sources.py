"""Which stores a lazy Dataset reads from, so that none is overwritten while it is read.

Best effort: xarray's lazy arrays and dask's graphs are walked for arrays of zarr and files of HDF5. Private interfaces
of both are read here and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import xarray as xr
import zarr

from ..formats.places import Place, overlap, place_of

_INNER = (
    "array",
    "_array",
    "_wrapped",
    "_source",
    "_otherwise",
    "datastore",
    "func",
    "args",
    "kwargs",
    "function",
    "keywords",
    "store",
)
_DEEPEST = 40


def sources_of(variable: xr.Variable) -> list[Place]:
    """Where the values of a variable come from, as far as they are still to be read: arrays of zarr stores, and files."""
    data: Any = variable._data
    found: list[Place] = []
    seen: set[int] = set()
    if hasattr(data, "__dask_graph__"):
        for value in dict(data.__dask_graph__()).values():
            _walk(value, found, seen, 0)
    else:
        _walk(data, found, seen, 0)
    return found


def _walk(value: Any, found: list[Place], seen: set[int], depth: int) -> None:
    if depth > _DEEPEST or id(value) in seen or isinstance(value, np.ndarray | str | bytes | int | float | type(None)):
        return
    seen.add(id(value))
    if isinstance(value, zarr.Array):
        found.append(place_of(value))
        return
    path = getattr(value, "_filename", None) or getattr(value, "_path", None)
    if isinstance(path, str | os.PathLike) and not isinstance(value, xr.Variable):
        found.append(place_of(path))
    for inner in _parts(value):
        _walk(inner, found, seen, depth + 1)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value
    else:
        for name in _INNER:
            inner = getattr(value, name, None)
            if inner is not None:
                yield inner


def reads_from(variable: xr.Variable, written: Collection[Place]) -> bool:
    """Whether the values of a variable come, still unread, from one of some places."""
    return any(overlap(source, place) for source in sources_of(variable) for place in written)


def refuse_reading_from(ds: xr.Dataset, place: Place, name: str) -> None:
    """Raise where a Dataset still has to read from the store that is about to be overwritten.

    Raises
    ------
    ValueError
        Names the variables and the store, `name`.
    """
    lazy = [str(name) for name, variable in ds.variables.items() if reads_from(variable, [place])]
    if lazy:
        raise ValueError(
            f"{name}: {lazy[:5]} are read lazily from the store that is to be overwritten, and their values would be "
            f"lost; load them first (ds.load()), or write to another store"
        )
