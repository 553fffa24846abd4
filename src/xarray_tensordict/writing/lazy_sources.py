"""Which stores a lazy Dataset reads from, so that none is overwritten while it is read.

Best effort: xarray's lazy arrays and dask's graphs are walked for arrays of zarr and files of HDF5. Private interfaces
of both are read here and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

from ..formats.zarr.target import ZarrTarget

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


def sources_of(variable: xr.Variable) -> list[Any]:
    """The zarr arrays, and the paths of HDF5 files, that the values of a variable come from."""
    data: Any = variable._data
    found: list[Any] = []
    seen: set[int] = set()
    if hasattr(data, "__dask_graph__"):
        for value in dict(data.__dask_graph__()).values():
            _walk(value, found, seen, 0)
    else:
        _walk(data, found, seen, 0)
    return found


def _walk(value: Any, found: list[Any], seen: set[int], depth: int) -> None:
    if depth > _DEEPEST or id(value) in seen or isinstance(value, np.ndarray | str | bytes | int | float | type(None)):
        return
    seen.add(id(value))
    if isinstance(value, zarr.Array):
        found.append(value)
        return
    path = getattr(value, "_filename", None) or getattr(value, "_path", None)
    if isinstance(path, str | os.PathLike) and not isinstance(value, xr.Variable):
        found.append(Path(path))
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


def reads_from(variable: xr.Variable, target: ZarrTarget, written: Collection[str] | None = None) -> bool:
    """Whether the values of a variable come, still unread, from the store at `target`.

    Parameters
    ----------
    written
        Paths in the store: only what is read from these counts.
    """
    return any(_same(source, target, written) for source in sources_of(variable))


def _same(source: Any, target: ZarrTarget, written: Collection[str] | None) -> bool:
    store = source.store if isinstance(source, zarr.Array) else source
    if written is not None and isinstance(source, zarr.Array) and source.path not in written:
        return False
    if target.path is not None:
        path = store if isinstance(store, Path) else getattr(store, "root", getattr(store, "path", None))
        return isinstance(path, str | os.PathLike) and _overlap(Path(path), target.path)
    opened: Any = target.store
    if isinstance(opened, str):
        opened = zarr.storage.FsspecStore.from_url(opened, storage_options=target.storage_options)
        return isinstance(store, zarr.storage.FsspecStore) and store.path.rstrip("/") == opened.path.rstrip("/")
    return store is opened or (type(store) is type(opened) and _equal_memory(store, opened))


def _equal_memory(store: Any, opened: Any) -> bool:
    held, other = getattr(store, "_store_dict", None), getattr(opened, "_store_dict", None)
    return held is other if held is not None else bool(store == opened)


def _overlap(one: Path, other: Path) -> bool:
    a, b = Path(os.path.realpath(one)), Path(os.path.realpath(other))
    return a == b or a in b.parents or b in a.parents


def refuse_reading_from(ds: xr.Dataset, target: ZarrTarget) -> None:
    """Raise where a Dataset still has to read from the store that is about to be overwritten.

    Raises
    ------
    ValueError
        Names the variables and the store.
    """
    lazy = [str(name) for name, variable in ds.variables.items() if reads_from(variable, target)]
    if lazy:
        raise ValueError(
            f"{target.name}: {lazy[:5]} are read lazily from the store that is to be overwritten, and their values "
            "would be "
            f"lost; load them first (ds.load()), or write to another store"
        )
