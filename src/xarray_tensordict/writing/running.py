"""How a write is carried out: beside what is there and then renamed, and computed on whichever scheduler of dask is set.

A crash leaves what was there before, a store can be written onto itself, and lazy arrays of the old store stay readable
until the new one is whole.
"""

from __future__ import annotations

import ctypes
import errno
import inspect
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import copy_context
from functools import partial
from multiprocessing.pool import Pool
from pathlib import Path
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

FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
"""The error numbers of a full disk, file or quota."""


@contextmanager
def replaced(
    target: Path,
    lock: Callable[[], AbstractContextManager[Any]] = nullcontext,
    *,
    exclusive: bool = False,
    beside: Path | None = None,
) -> Iterator[Path]:
    """Give a path beside `target` to write to, a file or a folder, which becomes `target` if nothing is raised.

    What is at `target` is removed only after that. Links are followed: what they point to is replaced.

    Parameters
    ----------
    lock
        Entered when all is written, for the time of the exchange.
    exclusive
        Whether another process may not have put anything there in the meantime.
    beside
        Where the path is to be, if not beside `target`; on the same disk.

    Raises
    ------
    FileExistsError
        With `exclusive`, where another process has.

    Examples
    --------
    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "data.txt"
    >>> with replaced(target) as beside:
    ...     _ = beside.write_text("whole")
    >>> target.read_text()
    'whole'
    """
    target = Path(os.path.realpath(target))
    written = free_name(beside or target, "tmp")
    written.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield written
        with lock():
            if not exclusive:
                swap(written, target)
                return
            try:
                os.rename(written, target)  # where there is nothing, or an empty folder
            except OSError as error:
                if not target.exists():
                    raise
                raise FileExistsError(f"{target}: another process has written it in the meantime") from error
    except BaseException:
        remove(written)
        raise


def swap(new: Path, target: Path) -> None:
    """Put `new` in the place of `target`, of which it is a neighbour, and remove what was there."""
    if new.is_file() and not target.is_dir():
        os.replace(new, target)
        return
    if target.exists() and _exchange(new, target):
        remove(new)
        return
    old = None
    try:
        if target.exists():
            old = free_name(target, "old")
            os.rename(target, old)
        os.rename(new, target)
    except BaseException:
        if old is not None and old.exists() and not target.exists():
            os.rename(old, target)
        remove(new)
        raise
    if old is not None:
        remove(old)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step, so that a crash never leaves a folder's name to nothing; False where it cannot.

    Linux has ``renameat2`` for this and macOS ``renamex_np``, but not for every file system; Python offers neither.
    """
    if os.name != "posix":
        return False
    libc = ctypes.CDLL(None)
    names = os.fsencode(one), os.fsencode(other)
    if hasattr(libc, "renameat2"):
        here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
        return bool(libc.renameat2(here, names[0], here, names[1], exchange) == 0)
    if hasattr(libc, "renamex_np"):
        return bool(libc.renamex_np(*names, 2) == 0)  # RENAME_SWAP
    return False


def free_name(target: Path, kind: str) -> Path:
    """An unused name beside `target`."""
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.{kind}")


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        try:
            shutil.rmtree(path, ignore_errors=True)
        except BaseException:  # Ctrl-C: no other code would remove the rest
            shutil.rmtree(path, ignore_errors=True)
            raise
    else:
        with suppress(FileNotFoundError):
            path.unlink()


def allocate(number: int, start: int, stop: int, name: str | None) -> None:
    """Take the blocks of an open file from `start` to `stop`, where the system can; the file is as long then.

    Parameters
    ----------
    number
        The file descriptor.
    name
        What the message calls it.

    Raises
    ------
    OSError
        Where there are not as many.
    """
    if stop <= start or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(number, start, stop - start)
    except OSError as error:
        # other errors are those of file systems that cannot
        if error.errno in FULL:
            raise OSError(error.errno, os.strerror(error.errno), name) from error


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
