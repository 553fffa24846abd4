"""An iterator that is run in a thread of its own, some items ahead of whoever takes them."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_PATIENCE = 1.0
"""Seconds that a forgotten iterator waits for its thread to end: it may be in the middle of a read."""
_NOT_LONG = 1e-3
"""Seconds that an item may wait for others to be handed over with it: to wake a thread takes 0.05 ms and more."""


class _Channel:
    """What the thread and the taker share. The thread knows nothing else, so that a forgotten taker is collected."""

    def __init__(self, depth: int, together: int) -> None:
        self.depth = depth
        self.together = together
        self.items: deque[Any] = deque()
        self.changed = threading.Condition()
        self.error: BaseException | None = None
        self.finished = False
        self.closed = False

    def put(self, items: list[Any]) -> bool:
        """Wait for room and put items; False where nobody takes any more."""
        with self.changed:
            self.changed.wait_for(lambda: self.closed or len(self.items) + len(items) <= self.depth)
            if not self.closed:
                self.items.extend(items)
                self.changed.notify_all()
            return not self.closed

    def finish(self, error: BaseException | None) -> None:
        with self.changed:
            self.error, self.finished = error, True
            self.changed.notify_all()

    def take(self) -> list[Any]:
        """The next items, when there are some."""
        with self.changed:
            self.changed.wait_for(lambda: self.items or self.finished or self.closed)
            if self.items:
                taken = [self.items.popleft() for _ in range(min(self.together, len(self.items)))]
                self.changed.notify_all()
                return taken
            error, self.error = self.error, None
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.items.clear()
            self.changed.notify_all()


def _grouped(iterator: Iterator[Any], together: int) -> Iterator[list[Any]]:
    """Several items at once, of which nobody waits long for the first; those before an error, too."""
    items: list[Any] = []
    since = 0.0
    try:
        for item in iterator:
            since = since if items else time.monotonic()
            items.append(item)
            del item
            if len(items) >= together or time.monotonic() - since > _NOT_LONG:
                yield items
                items = []
    except Exception:
        if items:
            yield items
        raise
    if items:
        yield items


def _run(start: Callable[[], Iterator[Any]], channel: _Channel) -> None:
    error: BaseException | None = None
    iterator: Any = None
    try:
        iterator = start()
        for items in _grouped(iterator, channel.together):
            if not channel.put(items):
                break
            del items  # what waits in a full channel is enough
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
    """Run an iterator in a background thread.

    Parameters
    ----------
    start
        Gives the iterator; called in the thread.
    depth
        How many items may wait to be taken.
    together
        How many of them are handed over at once, at most: items that take less time than it takes to wake a thread.

    Notes
    -----
    The thread ends when the iterator does, when :meth:`close` is called, when the object is no longer referred to (as
    after ``break``), when waiting for an item is interrupted, and when the interpreter exits. An error of the iterator is
    raised where the item would have come.
    """

    def __init__(self, start: Callable[[], Iterator[T]], depth: int, together: int = 1) -> None:
        self._channel = _Channel(depth, together)
        self._taken: deque[T] = deque()
        self._thread = threading.Thread(
            target=_run, args=(start, self._channel), name="xarray-tensordict read ahead", daemon=True
        )
        self._finalizer = weakref.finalize(self, _stop, self._channel, self._thread)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if not self._taken:
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
