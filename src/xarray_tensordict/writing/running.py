"""Compute what dask is to write, on whichever scheduler is set, with a bar if one is asked for."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from multiprocessing.pool import Pool
from typing import Any

import dask
import dask.base
import dask.multiprocessing
import dask.threaded
from dask.callbacks import Callback, local_callbacks
from dask.local import MultiprocessingPoolExecutor
from dask.system import CPU_COUNT

from .._compat.dask import functions_of
from .._compat.zarr import await_requests

_base: Any = dask.base
_POLL = 0.05
"""Seconds between two looks at the workers."""


def distributed_client() -> Any:
    """The client of ``dask.distributed`` that ``dask.compute`` would use; None with another scheduler."""
    owner = getattr(_base.get_scheduler(), "__self__", None)
    return owner if type(owner).__module__.partition(".")[0] == "distributed" else None


def compute_all(delayed: Sequence[Any], *, progress: bool = False) -> None:
    """Compute ``Delayed`` objects as one graph, for what they do and not for what they give.

    Where a task fails, dask raises while others still run. This raises when they are done, so that nothing is written
    after the code that cleans up and tries again.
    """
    if not delayed:
        return
    client = distributed_client()
    try:
        if client is None:
            bars = [progress_bar()] if progress else []
            with own_callbacks(*bars) as called, _tasks_awaited() as keywords:
                _base.compute(*delayed, **keywords, **called)
        elif progress:
            _compute_shown(client, delayed)
        else:
            _base.compute(*delayed)
    except BaseException:
        if client is not None:
            _await_workers(client, _keys(delayed))
        await_requests()
        raise


def _compute_shown(client: Any, delayed: Sequence[Any]) -> None:
    import distributed

    futures = client.compute(list(delayed))
    show: Any = distributed.progress
    try:
        show(futures, notebook=False)  # which waits, as a widget does not
        client.gather(futures)
    finally:
        client.cancel(futures)


# -- what still runs after an error ------------------------------------------------------------------------------------


class _Watched(Executor):
    """Hands tasks on to another executor, and can wait for those that are not done."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self._max_workers = executor._max_workers  # dask asks for it
        self._running: list[Future[Any]] = []

    def submit(self, function: Any, /, *args: Any, **keywords: Any) -> Future[Any]:
        self._running = [future for future in self._running if not future.done()]
        if isinstance(self._executor, ThreadPoolExecutor):
            # numpy.errstate and the like, as in dask's own threads
            function = partial(copy_context().run, function)
        future: Future[Any] = self._executor.submit(function, *args, **keywords)
        self._running.append(future)
        return future

    def settle(self) -> None:
        """Wait; none is cancelled, since those of a ``multiprocessing`` pool never report that they run."""
        wait(self._running)


@contextmanager
def _tasks_awaited() -> Iterator[dict[str, Any]]:
    """Keywords for ``dask.compute`` on a local scheduler, of which no task runs any more afterwards."""
    scheduler, pool = dask.config.get("scheduler", None), dask.config.get("pool", None)
    get = _base.get_scheduler()
    threads = get in (None, dask.threaded.get)
    watched: _Watched | None = None
    own: ThreadPoolExecutor | None = None
    if isinstance(scheduler, Executor):
        watched = _Watched(scheduler)
    elif pool is not None and (threads or get is dask.multiprocessing.get):
        watched = _Watched(MultiprocessingPoolExecutor(pool) if isinstance(pool, Pool) else pool)
    elif threads:
        # processes are awaited by dask, threads are not
        own = ThreadPoolExecutor(dask.config.get("num_workers", None) or CPU_COUNT)
        watched = _Watched(own)
    try:
        yield {} if watched is None else {"scheduler" if watched._executor is scheduler else "pool": watched}
    finally:
        if watched is not None:
            watched.settle()
        if own is not None:
            own.shutdown()


def _keys(delayed: Sequence[Any]) -> set[Any]:
    """The keys of all tasks, under which they are computed: those of fused ones as well."""
    collections, _ = _base.unpack_collections(*delayed)
    found = (*collections, *_base.optimize(*collections))
    return {key for each in found for key in each.__dask_graph__()}


def _await_workers(client: Any, keys: AbstractSet[Any]) -> None:
    """Wait until no worker of a cluster has a task of a computation that failed.

    The scheduler has taken the tasks back, which workers hear of a moment later, and do not stop for.
    """
    quiet = 0
    while quiet < 2:
        time.sleep(_POLL)
        try:
            found = client.run(_has_tasks, keys, on_error="ignore")
        except (OSError, RuntimeError):
            return  # the cluster itself is gone
        quiet = 0 if any(found.values()) else quiet + 1


def _has_tasks(keys: AbstractSet[Any], dask_worker: Any) -> bool:
    """Whether a worker runs one of some tasks, or is going to."""
    state = dask_worker.state
    waiting = {task.key for task in state.tasks.values() if task.state in {"ready", "constrained", "waiting", "fetch"}}
    return bool(keys & (waiting | {task.key for task in state.all_running_tasks}))


# -- progress of a computation -----------------------------------------------------------------------------------------


@contextmanager
def own_callbacks(*callbacks: Callback) -> Iterator[dict[str, Any]]:
    """Keywords for ``dask.compute`` on a local scheduler, so that it calls these, and those that are set for all.

    dask gives what is set for all to the computation that starts first, of whichever thread. No keywords are given for
    a scheduler of the caller that takes none.
    """
    if not callbacks or not _takes_callbacks():
        yield {}
        return
    context: Any = local_callbacks
    with context() as for_all:
        yield {"callbacks": [*for_all, *(functions_of(each) for each in callbacks)]}


def _takes_callbacks() -> bool:
    get = _base.get_scheduler()
    if get is None:
        return True
    parameters = inspect.signature(get).parameters.values()
    return any(each.name == "callbacks" or each.kind is each.VAR_KEYWORD for each in parameters)


def progress_bar() -> Callback:
    """A bar for what a local scheduler of dask computes: tqdm's where it is installed, else dask's."""
    make: Any
    try:
        from tqdm.auto import tqdm
        from tqdm.dask import TqdmCallback

        make = partial(TqdmCallback, tqdm_class=tqdm, desc="writing", unit="task")
    except ImportError:
        from dask.diagnostics.progress import ProgressBar as make  # noqa: N813
    bar: Callback = make()
    return bar
