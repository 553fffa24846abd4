"""An iterator that is run in a thread of its own, some items ahead of whoever takes them."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_NAME = "xarray-tensordict read ahead"
_PATIENCE = 1.0
"""Seconds that a forgotten iterator waits for its thread to end: it may be in the middle of a read."""
_END: Any = object()


def _started(start: Callable[[], Iterator[list[T]]]) -> Generator[list[T], None, None]:
    yield from start()


def _stop(pool: ThreadPoolExecutor, lists: Generator[Any, None, None], waiting: deque[Future[Any]]) -> None:
    for future in waiting:
        future.cancel()
    waiting.clear()
    ended = pool.submit(lists.close)
    pool.shutdown(wait=False)
    if not threading.current_thread().name.startswith(_NAME):
        wait([ended], _PATIENCE)


class ReadAhead(Generic[T]):
    """Run an iterator of lists in a background thread, and iterate over their items.

    Parameters
    ----------
    start
        Gives the iterator; called in the thread. A list is handed over at once: to wake a thread takes 0.05 ms and more.
    depth
        How many lists may wait to be taken, while the next one is made.

    Notes
    -----
    The thread ends when the iterator does, when :meth:`close` is called, when the object is no longer referred to (as
    after ``break``), when waiting for an item is interrupted, and when the interpreter exits. An error of the iterator is
    raised where the item would have come.
    """

    def __init__(self, start: Callable[[], Iterator[list[T]]], depth: int) -> None:
        self._taken: deque[T] = deque()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=_NAME)
        self._lists = _started(start)
        self._waiting: deque[Future[Any]] = deque()
        for _ in range(depth + 1):
            self._make_next()
        # what the thread knows does not refer to this object, so that a forgotten one is collected
        self._finalizer = weakref.finalize(self, _stop, self._pool, self._lists, self._waiting)
        self._finalizer.atexit = False  # then the threads of all pools have ended

    def _make_next(self) -> None:
        self._waiting.append(self._pool.submit(next, self._lists, _END))

    def _take(self) -> Any:
        """Wait for the next list; it makes room for another one."""
        if not self._waiting:
            return _END
        found = self._waiting.popleft().result()
        self._make_next()
        return found

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        while not self._taken:
            try:
                found = self._take()
            except BaseException:
                self.close()
                raise
            if found is _END:
                self.close()
                raise StopIteration
            self._taken.extend(found)
        return self._taken.popleft()

    def close(self) -> None:
        """End the thread and wait until it has ended."""
        self._taken.clear()
        self._finalizer()
        self._pool.shutdown()
