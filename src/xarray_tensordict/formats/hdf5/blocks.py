"""Blocks of dask on their way into an HDF5 file: computed in parallel, written one by one by this process.

HDF5 has one writer. Whatever the scheduler, blocks are computed where it computes and come here, where each is written as
soon as it is there and then forgotten: nothing is gathered as a whole. Local schedulers start no more blocks than they
have workers before the ones that are done have been written; a cluster keeps finished blocks on its workers, which spill
them to disk beyond their memory limit, until they are fetched.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import dask.base
import numpy as np
from dask.callbacks import Callback
from dask.delayed import delayed

from ...writing.running import distributed_client, own_callbacks, progress_bar

Region = tuple[slice, ...]


def store_blocks(sources: Sequence[Any], targets: Sequence[Any], *, progress: bool = False) -> None:
    """Compute dask arrays as one graph, and write each block to its place as it comes.

    Parameters
    ----------
    sources
        Dask arrays.
    targets
        What takes ``target[region] = block``, one for each source.
    progress
        Show a bar.
    """
    places: dict[str, tuple[Any, Region]] = {}
    blocks: list[Any] = []
    token = secrets.token_hex(8)
    for source, target in zip(sources, targets, strict=True):
        for block, region in zip(source.to_delayed(optimize_graph=False).ravel(), _regions(source), strict=True):
            # a task of its own: its result belongs to nobody else, and can be forgotten
            name = f"block-{token}-{len(blocks)}"
            blocks.append(delayed(_as_it_is)(block, dask_key_name=name))
            places[name] = (target, region)
    if not blocks:
        return

    def put(name: str, block: Any) -> None:
        target, region = places.pop(name)
        target[region] = block

    client = distributed_client()
    if client is not None:
        _from_cluster(client, blocks, put, progress=progress)
    else:
        _from_local(list(places), blocks, put, progress=progress)
    if places:
        raise RuntimeError(
            f"the scheduler of dask has not given {len(places)} of {len(blocks)} blocks; the file is not whole"
        )


def _as_it_is(block: Any) -> Any:
    return np.asarray(block)


def _regions(source: Any) -> Iterator[Region]:
    """The place of each block, in the order of ``to_delayed().ravel()``."""
    borders = [np.cumsum([0, *sizes]).tolist() for sizes in source.chunks]
    for index in np.ndindex(*source.numblocks):
        yield tuple(slice(border[part], border[part + 1]) for border, part in zip(borders, index, strict=True))


class _Put(Callback):
    """Writes a block when it is done; local schedulers call this in the thread that asked for the computation."""

    def __init__(self, put: Callable[[str, Any], None], names: Iterable[str]) -> None:
        self._put = put
        self.left = set(names)
        start: Any = super().__init__
        start()

    def _posttask(self, key: Any, result: Any, dsk: Any, state: Any, worker_id: Any) -> None:
        if key in self.left:
            self._put(key, result)
            self.left.remove(key)
            state["cache"][key] = None


def _from_local(names: list[str], blocks: list[Any], put: Callable[[str, Any], None], *, progress: bool) -> None:
    compute: Any = dask.base.compute
    written = _Put(put, names)
    with own_callbacks(written, *([progress_bar()] if progress else [])) as called:
        results = compute(*blocks, **called)
    for name, block in zip(names, results, strict=True):
        if name in written.left:  # by a scheduler of the caller, which does not call back
            put(name, block)


def _from_cluster(client: Any, blocks: list[Any], put: Callable[[str, Any], None], *, progress: bool) -> None:
    import distributed

    _refuse_worker()
    futures = client.compute(blocks)
    count = len(futures)
    iterate: Any = distributed.as_completed
    done = iterate(futures)
    try:
        del futures
        for future in _counted(done, count, shown=progress):
            put(future.key, future.result())
            future.release()
    except BaseException:
        client.cancel(list(done.futures))
        raise


def _counted(done: Iterable[Any], count: int, *, shown: bool) -> Iterable[Any]:
    """With a bar where tqdm is installed."""
    if not shown:
        return done
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return done
    bar: Iterable[Any] = tqdm(done, total=count, desc="writing", unit="block")
    return bar


def _refuse_worker() -> None:
    """Raise on a worker of a cluster: it is not the process that may write the file."""
    import distributed

    worker_of: Any = distributed.get_worker
    try:
        worker_of()
    except ValueError:
        return
    raise NotImplementedError(
        "ds.td.to_h5 was called on a worker of a dask cluster, and an HDF5 file has one writer, the client: pass "
        "compute=True there, or write with ds.td.to_zarr, which writes from all workers"
    )


def refuse_delayed() -> None:
    """Raise where a ``Delayed`` that writes a file would run on a worker.

    Raises
    ------
    NotImplementedError
        With a cluster as the scheduler.
    """
    if distributed_client() is not None:
        raise NotImplementedError(
            "compute=False: a Delayed runs on a worker of the cluster, and an HDF5 file has one writer, the client; pass "
            "compute=True, or write with ds.td.to_zarr, which writes from all workers"
        )
