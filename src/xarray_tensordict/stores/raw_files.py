"""Bytes of arrays that lie in files as they are in memory: copied out row by row, or mapped for one read.

Rows are read into the destination, which needs no map: it faults in no pages of the file, and a file that becomes
shorter is an error and not the end of the process. Where many small pieces of a file are selected it is mapped for this
one read, after a look at its size. A map never leaves this package: whoever reads copies what it selects. (A write to a
read-only map kills the process, and so does a read behind the end of a file.) The one exception is
:meth:`Bytes.private`, a copy-on-write map that can be written to.
"""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np

Buffer = np.ndarray[Any, np.dtype[np.uint8]]
Places = np.ndarray[Any, np.dtype[np.int64]]
T = TypeVar("T")
R = TypeVar("R")

THREADS = 4
"""How many reads wait at once; two keep a fast disk busy, and they only copy."""
_PIECE = 2**23
"""Rows and ranges that are larger are read in pieces, at once (measured on 2 cores: 200 MB in 35 ms, not in 48)."""
_LARGE_ROW = 4096
"""From this size on rows are read one by one; it takes as long as faulting in a page of a map."""
_DENSE = 4
"""Small rows are read with all that lies between them where that is at most this many times as much."""


_BECAME_SHORTER = "{}: it became shorter while it was read; another program writes to it"

CAN_READ_AT = hasattr(os, "preadv")
"""Whether a file can be read at a place without moving the position that others share."""


class NotRawError(Exception):
    """The bytes are not where they were expected; the library of the format has to be asked."""


class Bytes(Protocol):
    """The bytes of one array."""

    def view(self, start: int, stop: int) -> Buffer | None:
        """The bytes from `start` to `stop`; they may be a read-only map, to be copied before anybody sees them.

        None where they lie in several files.

        Raises
        ------
        ValueError, OSError
            Where there are fewer bytes than there have to be.
        NotRawError
            Where the bytes are not there at all, and the library of the format tells why.
        """

    def rows(self, starts: Places, out: Buffer) -> bool:
        """Copy the bytes at each of `starts` into a row of `out`; False where there is nothing faster than `view`.

        Raises
        ------
        ValueError, OSError, NotRawError
            As `view` does.
        """

    def private(self) -> Buffer | None:
        """All bytes as a private copy-on-write map; None where they cannot be mapped."""


class PlainFiles(ABC):
    """Bytes in one file, or in files of one size, each of which continues the one before.

    Attributes
    ----------
    size
        How many bytes there are in all.
    """

    size: int

    @property
    def part(self) -> int:
        """How many bytes are in one file."""
        return self.size

    @abstractmethod
    def opened(self, number: int) -> AbstractContextManager[tuple[int, int]]:
        """Open a file, whose size is checked: the file descriptor, and where in the file the bytes begin."""

    @abstractmethod
    def where(self, number: int) -> str:
        """How messages call a file."""

    def view(self, start: int, stop: int) -> Buffer | None:
        if start >= stop:
            return np.empty(0, np.uint8)
        if self.size > self.part:
            return None
        with self.opened(0) as (fileno, offset):
            return map_file(fileno, offset + start, stop - start, mmap.ACCESS_READ)

    def private(self) -> Buffer | None:
        if not self.size:
            return np.empty(0, np.uint8)
        if self.size > self.part:
            return None
        with self.opened(0) as (fileno, offset):
            return map_file(fileno, offset, self.size, mmap.ACCESS_COPY)

    def rows(self, starts: Places, out: Buffer) -> bool:
        length = out.shape[1]
        if not out.size:
            return True
        if length >= _LARGE_ROW or len(starts) == 1:
            self._large_rows(starts, out)
            return True
        if self.part % length:
            return False
        order = np.argsort(starts, kind="stable")
        numbers = starts[order] // self.part
        for places in np.split(order, np.flatnonzero(np.diff(numbers)) + 1):
            self._small_rows(int(starts[places[0]] // self.part), starts, out, places)
        return True

    def _large_rows(self, starts: Places, out: Buffer) -> None:
        """Rows one by one, those that follow each other as one: what is larger than a piece in pieces, many at once."""
        cuts = [0, *(np.flatnonzero(np.diff(starts) != out.shape[1]) + 1).tolist(), len(starts)]
        wanted = [(int(starts[lo]), out[lo:hi].reshape(-1)) for lo, hi in pairwise(cuts)]
        if out.nbytes <= _PIECE:
            self._copy(wanted)
            return
        tasks: list[list[tuple[int, Buffer]]] = [[]]
        filled = 0
        for start, row in wanted:
            for skipped in range(0, len(row), _PIECE):
                piece = row[skipped : skipped + _PIECE]
                if filled + len(piece) > _PIECE and tasks[-1]:
                    tasks.append([])
                    filled = 0
                tasks[-1].append((start + skipped, piece))
                filled += len(piece)
        at_once(self._copy, tasks)

    def _copy(self, wanted: list[tuple[int, Buffer]]) -> None:
        wanted = sorted(wanted, key=lambda found: found[0])
        opened, fileno, offset = -1, -1, 0
        with ExitStack() as stack:
            for start, row in wanted:
                left = row.data
                while left.nbytes:
                    number, inside = divmod(start, self.part)
                    if number != opened:
                        stack.close()
                        fileno, offset = stack.enter_context(self.opened(number))
                        opened = number
                    here = left if inside + left.nbytes <= self.part else left[: self.part - inside]
                    count = _read_at(fileno, here, offset + inside)
                    if not count:
                        raise OSError(_BECAME_SHORTER.format(self.where(number)))
                    if count == left.nbytes:
                        break
                    start, left = start + count, left[count:]

    def _small_rows(self, number: int, starts: Places, out: Buffer, places: Places) -> None:
        """The rows at `places` of `starts`, all in one file and in ascending order."""
        length = out.shape[1]
        inside = starts[places] - number * self.part
        first, stop = int(inside[0]), int(inside[-1]) + length
        with self.opened(number) as (fileno, offset):
            if stop - first <= max(_LARGE_ROW, _DENSE * length * len(places)):
                held = np.empty(stop - first, np.uint8)
                read_fully(fileno, offset + first, held.data, self.where(number))
            else:
                held = map_file(fileno, offset + first, stop - first, mmap.ACCESS_READ)
        if not ((inside - first) % length).any():
            out[places] = held.reshape(-1, length)[(inside - first) // length]
        else:
            out[places] = np.lib.stride_tricks.sliding_window_view(held, length)[inside - first]


def _read_at(fileno: int, out: memoryview, start: int) -> int:
    if CAN_READ_AT:
        return os.preadv(fileno, [out], start)
    os.lseek(fileno, start, os.SEEK_SET)
    found = os.read(fileno, out.nbytes)
    out[: len(found)] = found
    return len(found)


def read_fully(fileno: int, start: int, out: memoryview, name: str) -> None:
    """Fill `out` with the bytes of an open file from `start` on."""
    while out.nbytes:
        count = _read_at(fileno, out, start)
        if not count:
            raise OSError(_BECAME_SHORTER.format(name))
        out, start = out[count:], start + count


def map_file(fileno: int, offset: int, size: int, access: int) -> Buffer:
    """Map a part of a file, which must be there."""
    extra = offset % mmap.ALLOCATIONGRANULARITY
    mapped = mmap.mmap(fileno, size + extra, access=access, offset=offset - extra)
    return np.frombuffer(mapped, np.uint8, size, extra)


def at_once(function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
    """Call a function that mostly reads for each of `tasks`, in a few threads; the results are in their order.

    The threads are made for this call: a pool that is kept does not survive a fork.
    """
    if len(tasks) < 2:
        return in_turn(function, tasks)
    with ThreadPoolExecutor(min(THREADS, len(tasks)), thread_name_prefix="xarray-tensordict") as pool:
        return list(pool.map(function, tasks))


def in_turn(function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
    """Call a function for each of `tasks`; the results are in their order."""
    return [function(task) for task in tasks]


def open_file(path: str) -> Iterator[int]:
    """Open a file for reading, without Python's layers; to be made a context manager."""
    fileno = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    try:
        yield fileno
    finally:
        os.close(fileno)
