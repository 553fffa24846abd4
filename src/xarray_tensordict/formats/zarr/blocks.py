"""Values on their way into the chunks of zarr arrays: what is in memory at once, what dask holds as one graph."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import zarr

Region = tuple[slice, ...]
Block = tuple[Any, "zarr.Array[Any]", Region]
"""Values in memory or held by dask, the array, and where in it they go."""


def full_region(array: zarr.Array[Any], region: Region | None = None) -> Region:
    """A region with its starts and stops; all of the array where none is given."""
    parts = region or (slice(None),) * array.ndim
    return tuple(slice(*part.indices(size)[:2]) for part, size in zip(parts, array.shape, strict=True))


def write_in_memory(blocks: Iterable[Block]) -> None:
    """Write what dask does not hold."""
    for values, array, region in blocks:
        if not hasattr(values, "dask") and 0 not in values.shape:
            array[region] = np.asarray(values)


def held_by_dask(blocks: Iterable[Block]) -> list[Block]:
    """What has to be computed."""
    return [block for block in blocks if hasattr(block[0], "dask")]


def cuts_chunks(array: zarr.Array[Any], region: Region) -> str | None:
    """Where a region holds a part of a chunk, or of a shard, that another writer may write to; None where it does not."""
    for axis, (part, size, chunk) in enumerate(zip(region, array.shape, array.shards or array.chunks, strict=True)):
        if part.start % chunk or (part.stop % chunk and part.stop != size):
            return f"{part.start}:{part.stop} along axis {axis} cuts the chunks of the store, which are {chunk} long"
    return None


def writes(blocks: Sequence[Block], last: Callable[[Any], Any], first: Callable[[], Any] | None = None) -> Any:
    """One ``Delayed`` that writes blocks of dask.

    Parameters
    ----------
    last
        Called when all is written, with what `first` gave.
    first
        Called before any block is written. What it gives is kept until the end, and released where a block fails.
    """
    from dask.array.core import Array
    from dask.delayed import Delayed
    from dask.highlevelgraph import HighLevelGraph

    class Writes(Delayed):
        """Optimised together with arrays: a block that others need, too, is computed once."""

        __dask_optimize__ = staticmethod(Array.__dask_optimize__)

        def __reduce__(self) -> Any:
            return Delayed, (self._key, self.dask)

    name = f"write-zarr-{secrets.token_hex(8)}"
    layer: dict[Any, Any] = {(name, "first"): (_called, first)}
    sources = []
    written = []
    for number, (values, array, region) in enumerate(blocks):
        source = values.rechunk(_aligned(values.chunks, region, array.shards or array.chunks))
        sources.append(source)
        layer[(name, "array", number)] = (_given, array, (name, "first"))
        for index, place in zip(np.ndindex(source.numblocks), _places(source.chunks, region), strict=True):
            key = (name, number, *index)
            layer[key] = (_write, (name, "array", number), place, (source.name, *index))
            written.append(key)
    layer[name] = (_finished, last, (name, "first"), written)
    graph: Any = HighLevelGraph.from_collections(name, layer, dependencies=sources)
    make: Any = Writes
    return make(name, graph)


def _called(function: Callable[[], Any] | None) -> Any:
    return None if function is None else function()


def _given(array: Any, first: Any) -> Any:
    return array


def _write(array: Any, place: tuple[tuple[int, int], ...], values: Any) -> None:
    array[tuple(slice(*part) for part in place)] = np.asarray(values)


def _finished(last: Callable[[Any], Any], first: Any, written: Any) -> Any:
    return last(first)


def _places(chunks: Sequence[Sequence[int]], region: Region) -> Iterable[tuple[tuple[int, int], ...]]:
    """Where each block goes, as starts and stops: dask would take slices in a tuple for a task."""
    axes = []
    for sizes, part in zip(chunks, region, strict=True):
        ends = list(itertools.accumulate(sizes, initial=part.start))
        axes.append(list(itertools.pairwise(ends)))
    return itertools.product(*axes)


def _aligned(blocks: Sequence[Sequence[int]], region: Region, chunks: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Blocks such that each chunk of the store is written by one task."""
    wanted = []
    for part, sizes, chunk in zip(region, blocks, chunks, strict=True):
        step = max(chunk, -(-max(sizes, default=1) // chunk) * chunk)
        length = part.stop - part.start
        first = min(length, (step - part.start % chunk) if part.start % chunk else step)
        rest = length - first
        wanted.append(tuple(size for size in (first, *[step] * (rest // step), rest % step) if size) or (0,))
    return tuple(wanted)
