"""How many samples are read and shuffled together, from the chunks of the entries; and threads that read ahead."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

import numpy as np

from ..formats.raw.files import BESIDE_OTHERS, THREADS
from ..formats.zarr.remote import AHEAD, AHEAD_BYTES, SHARD_BYTES
from .kept import chunk_marks
from .order import (
    BLOCK_BYTES,
    BUFFER_BYTES,
    BUFFER_ROWS,
    READ_BYTES,
    WHOLE_BYTES,
    Blocks,
    Ints,
    common_marks,
    every,
    merge_marks,
)
from .reader import RowReader
from .samples import Samples

T = TypeVar("T")

_NAME = "xarray-tensordict read ahead"
_PATIENCE = 1.0
"""Seconds that a forgotten iterator waits for its thread to end: it may be in the middle of a read."""
_END: Any = object()
_NO_METER = nullcontext()


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
    waits
        Entered while a list is waited for.

    Notes
    -----
    The thread ends when the iterator does, when :meth:`close` is called, when the object is no longer referred to (as
    after ``break``), when waiting for an item is interrupted, and when the interpreter exits. An error of the iterator is
    raised where the item would have come.
    """

    def __init__(
        self, start: Callable[[], Iterator[list[T]]], depth: int, waits: AbstractContextManager[Any] = _NO_METER
    ) -> None:
        self._waits = waits
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
        with self._waits:
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


def in_order(tasks: Iterable[Callable[[], T]], nbytes: int, *, far: bool) -> Generator[T, None, None]:
    """Carry out reads of so many bytes, several at once, and give what they return in their order.

    While one is used, the next ones run.
    """
    waiting: deque[Future[T]] = deque()
    most, held = (AHEAD, AHEAD_BYTES) if far else (THREADS, WHOLE_BYTES)
    most = max(1, min(most, held // max(nbytes, 1)))
    beside_others = most > 1 and not far  # measured on 2 cores: threads within threads take 1.4 times as long
    pool = ThreadPoolExecutor(most, _NAME, BESIDE_OTHERS.set, (beside_others,))
    try:
        for task in tasks:
            waiting.append(pool.submit(task))
            if len(waiting) > most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def plan_blocks(
    reader: RowReader, samples: Samples, batch_size: int, *, shuffle: bool, buffer: int | None = None
) -> Blocks:
    """Plan the blocks of samples that are read as a whole, and shuffled.

    Parameters
    ----------
    reader, samples
        What is read.
    batch_size
        How many samples make a batch.
    shuffle
        Whether the samples of a buffer are shuffled, or only read together.
    buffer
        How many samples; by default it goes by their size.
    """
    sample_bytes = max(1, samples.width * reader.row_bytes)
    if not shuffle:
        buffer = max(1, READ_BYTES // sample_bytes)
    elif buffer is None:
        buffer = max(min(BUFFER_ROWS, BUFFER_BYTES // sample_bytes), batch_size)
    target = max(1, min(BLOCK_BYTES // sample_bytes, buffer // 16))
    # where the buffer holds several shards, each is read as a whole
    shard_bytes = min(SHARD_BYTES, buffer * sample_bytes // 2) if shuffle else SHARD_BYTES
    marks = _marks(reader, samples, buffer, shard_bytes)
    count = len(samples)
    if marks is None:
        marks = np.append(0, every(target, count)) if count else np.zeros(1, np.int64)
        # what is not chunked is read row by row: a block is in the cache of the system when its first row was read
        return Blocks(marks, buffer, read_whole=False)
    return Blocks(merge_marks(marks, target), buffer)


def _marks(reader: RowReader, samples: Samples, buffer: int, shard_bytes: int) -> Ints | None:
    """The first sample of each run of samples that begin in the same chunk; None where nothing is chunked."""
    last = len(samples.sizes) - len(samples.sides) - 1
    limit = max(1, buffer * samples.width)
    first = _axis_marks(reader, 0, limit, shard_bytes)
    if samples.windows is None or not len(samples):
        return first
    along = first if not last else _axis_marks(reader, last, limit, shard_bytes)
    if first is None and along is None:
        return None
    coords = np.unravel_index(samples.windows.first, samples.sizes[: last + 1])
    return _changes(_block_of(coords[0], first), _block_of(coords[last], along)) * samples.patches


def _axis_marks(reader: RowReader, axis: int, limit: int, shard_bytes: int) -> Ints | None:
    found = []
    for column in reader.columns:
        if axis in column.held:
            marks = chunk_marks(column.planned.variable, column.held.index(axis), shard_bytes)
            if marks is not None:
                found.append((marks, column.row_bytes))
    return common_marks(found, limit)


def _block_of(rows: Ints, marks: Ints | None) -> Ints:
    """The number of the block that each row is in."""
    return np.zeros(len(rows), np.int64) if marks is None else np.searchsorted(marks, rows, "right")


def _changes(*numbers: Ints) -> Ints:
    """The borders of the runs in which all of several arrays stay as they are: [0, 2, 4] for [1, 1, 2, 2]."""
    count = len(numbers[0])
    if not count:
        return np.zeros(1, np.int64)
    changed = np.zeros(count - 1, bool)
    for found in numbers:
        changed |= np.diff(found) != 0
    return np.concatenate([np.zeros(1, np.int64), np.flatnonzero(changed) + 1, np.array([count])])
