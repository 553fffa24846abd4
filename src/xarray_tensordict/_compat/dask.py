"""What this package needs of dask beyond its public interface: graphs, schedulers, the chunks it would choose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from multiprocessing.pool import ThreadPool
from typing import Any

import dask
import dask.array
import numpy as np
from dask.callbacks import Callback


def functions_of(callback: Callback) -> Any:
    """What a callback does at the start, before and after each task, and at the end, as schedulers take it."""
    functions: Any = callback._callback
    return functions


def compute_arrays(arrays: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """Compute dask arrays together, as one graph.

    Dask keeps all chunks and joins them in the end, which takes the memory twice. Where it computes in this process, the
    chunks are put into their places as they are ready.
    """
    compute: Any = dask.base.compute
    if not is_in_this_process():
        return [np.asarray(found) for found in compute(*arrays)]
    placed = {number: _Places(array) for number, array in enumerate(arrays) if _is_joined(array)}
    store: Any = dask.array.store
    sources = [arrays[number] for number in placed]
    stored = [store(sources, list(placed.values()), lock=False, compute=False)] if placed else []
    rest = [number for number in range(len(arrays)) if number not in placed]
    values = dict(zip(rest, compute(*stored, *(arrays[number] for number in rest))[len(stored) :], strict=True))
    wrong = [number for number, places in placed.items() if not places.fits]
    values |= {number: places.values for number, places in placed.items() if places.fits}
    values |= dict(zip(wrong, compute(*(arrays[number] for number in wrong)), strict=True))
    return [np.asarray(values[number]) for number in range(len(arrays))]


class _Places:
    """Where the chunks of an array go; they do not fit where the array declares another dtype than its chunks have."""

    def __init__(self, array: Any) -> None:
        self.values: np.ndarray[Any, Any] = np.empty(array.shape, array.dtype)
        self._put: list[int] = []

    def __setitem__(self, key: Any, chunk: Any) -> None:
        place = self.values[key]
        if type(chunk) is np.ndarray and (chunk.dtype, chunk.shape) == (place.dtype, place.shape):
            place[...] = chunk
            self._put.append(place.size)  # in one step, so that threads need no lock

    @property
    def fits(self) -> bool:
        """Whether all chunks are in their places: not so, too, where they were put into a copy in another process."""
        return sum(self._put) == self.values.size


def is_in_this_process() -> bool:
    """Whether the scheduler runs threads of this process: any other would fill copies of the arrays."""
    import dask.local
    import dask.threaded

    get_scheduler: Any = dask.base.get_scheduler
    pool = dask.config.get("pool", None)
    has_threads = pool is None or isinstance(pool, ThreadPoolExecutor | ThreadPool)
    return has_threads and get_scheduler() in (None, dask.threaded.get, dask.local.get_sync)


def _is_joined(array: Any) -> bool:
    """Whether dask joins several numpy chunks of known sizes and of plain numbers."""
    several = array.npartitions > 1 and type(array._meta) is np.ndarray and array.dtype.kind in "biufcmM"
    return several and not math.isnan(math.prod(array.shape))


_BLOCKS = 8
"""Of fewer blocks one needs a large part of the tasks anyway."""
_TASKS = 200_000
"""Larger graphs are not looked at: it would take longer than a second."""


def share_of_last_block(array: Any) -> float:
    """Which part of the tasks of an array its last block along the first axis needs; 0 where that is not looked at."""
    from dask.core import flatten

    graph = array.__dask_graph__()
    if array.numblocks[0] < _BLOCKS or not 0 < len(graph) <= _TASKS:
        return 0.0
    last = array.blocks[-1]
    return len(last.__dask_graph__().cull(set(flatten(last.__dask_keys__())))) / len(graph)


def row_chunks(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
    """The chunks along the first axis that dask chooses for an array whose other axes stay whole; one of objects."""
    if dtype.hasobject or 0 in shape:  # dask does not know the size of objects
        return (shape[0],)
    return _chosen_rows(shape, dtype, dask.config.get("array.chunk-size"))


@lru_cache(2**12)
def _chosen_rows(shape: tuple[int, ...], dtype: np.dtype[Any], limit: int | str) -> tuple[int, ...]:
    normalize: Any = dask.array.core.normalize_chunks
    rows: tuple[int, ...] = normalize(("auto", *shape[1:]), shape=shape, limit=limit, dtype=dtype)[0]
    return rows
