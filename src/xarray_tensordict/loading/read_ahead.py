"""An iterator that is run in a thread of its own, some items ahead of whoever takes them."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_PATIENCE = 1.0
"""Seconds that a forgotten iterator waits for its thread to end: it may be in the middle of a read."""


class _Channel:
    """What the thread and the taker share. The thread knows nothing else, so that a forgotten taker is collected."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.items: deque[Any] = deque()
        self.changed = threading.Condition()
        self.error: BaseException | None = None
        self.finished = False
        self.closed = False

    def put(self, item: Any) -> bool:
        """Wait for room and put an item; False where nobody takes any more."""
        with self.changed:
            self.changed.wait_for(lambda: self.closed or len(self.items) < self.depth)
            if not self.closed:
                self.items.append(item)
                self.changed.notify_all()
            return not self.closed

    def finish(self, error: BaseException | None) -> None:
        with self.changed:
            self.error, self.finished = error, True
            self.changed.notify_all()

    def take(self) -> Any:
        """The next item, when it is there."""
        with self.changed:
            self.changed.wait_for(lambda: self.items or self.finished or self.closed)
            if self.items:
                item = self.items.popleft()
                self.changed.notify_all()
                return item
            error, self.error = self.error, None
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.items.clear()
            self.changed.notify_all()


def _run(start: Callable[[], Iterator[Any]], channel: _Channel) -> None:
    error: BaseException | None = None
    iterator: Any = None
    try:
        iterator = start()
        for item in iterator:
            if not channel.put(item):
                break
            del item  # what waits in a full channel is enough
    except BaseException as found:  # whatever it is, it belongs to whoever waits for the item
        error = found
    finally:
        try:
            if hasattr(iterator, "close"):
                iterator.close()
        finally:
            channel.finish(error)


def _stop(channel: _Channel, thread: threading.Thread) -> None:
    channel.close()
    if thread is not threading.current_thread():
        thread.join(_PATIENCE)


class ReadAhead(Generic[T]):
    """Run an iterator of lists in a background thread, and iterate over their items.

    Parameters
    ----------
    start
        Gives the iterator; called in the thread. A list is handed over at once: to wake a thread takes 0.05 ms and more.
    depth
        How many lists may wait to be taken.

    Notes
    -----
    The thread ends when the iterator does, when :meth:`close` is called, when the object is no longer referred to (as
    after ``break``), when waiting for an item is interrupted, and when the interpreter exits. An error of the iterator is
    raised where the item would have come.
    """

    def __init__(self, start: Callable[[], Iterator[list[T]]], depth: int) -> None:
        self._taken: deque[T] = deque()
        self._channel = _Channel(depth)
        self._thread = threading.Thread(
            target=_run, args=(start, self._channel), name="xarray-tensordict read ahead", daemon=True
        )
        self._finalizer = weakref.finalize(self, _stop, self._channel, self._thread)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        while not self._taken:
            try:
                self._taken.extend(self._channel.take())
            except BaseException:
                self.close()
                raise
        return self._taken.popleft()

    def close(self) -> None:
        """End the thread and wait until it has ended."""
        self._finalizer.detach()
        self._taken.clear()
        self._channel.close()
        if self._thread is not threading.current_thread():
            self._thread.join()
