"""Graphs of dask that each batch goes through anew: a mean over all rows that nobody has computed yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..warnings import SlowReadWarning, warn
from .members import Member

_BLOCKS = 8
"""Of fewer blocks one needs a large part of the tasks anyway."""
_SHARE = 0.3
"""What one block needs of all tasks: at most 0.16 for arithmetic, rolling windows, shifts and other chunks of 8 blocks, at
least 0.44 where a mean, a deviation or a cumulative sum is in the graph (measured with dask 2026.8)."""
_TASKS = 200_000
"""Larger graphs are not looked at: it would take longer than a second."""


def warn_of_repeats(members: Sequence[Member], least: int) -> None:
    """One warning for the entries of at least so many bytes of which each read computes most of the graph."""
    found = [
        member.entry.name
        for member in members
        if member.held and member.leaf.variable.chunks is not None and member.leaf.variable.nbytes >= least
        if _share(member.leaf.variable.data) > _SHARE
    ]
    if found:
        warn(
            f"each read of a batch computes most of the dask graph of {', '.join(map(repr, found))}, as with a mean over all rows "
            f"that is lazy itself. Compute such statistics first (mean = ds.mean('time').compute()), or write the result with "
            f"ds.td.to_zarr(...) and read batches from there",
            SlowReadWarning,
        )


def _share(array: Any) -> float:
    """Which part of the tasks of an array its last block along the first axis needs."""
    from dask.core import flatten

    graph = array.__dask_graph__()
    if array.numblocks[0] < _BLOCKS or not 0 < len(graph) <= _TASKS:
        return 0.0
    last = array.blocks[-1]
    return len(last.__dask_graph__().cull(set(flatten(last.__dask_keys__())))) / len(graph)
