"""Numpy arrays from those of dask, each allocated once where that is possible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import dask
import dask.array
import numpy as np


def compute_arrays(arrays: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """Compute dask arrays together, as one graph.

    Dask keeps all chunks and joins them in the end, which takes the memory twice. Where it computes in this process, the
    chunks are put into their places as they are ready.
    """
    compute: Any = dask.base.compute
    if not _is_in_this_process():
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
    """Where the chunks of an array go; they do not fit where the array says another dtype than its chunks have."""

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


def _is_in_this_process() -> bool:
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
