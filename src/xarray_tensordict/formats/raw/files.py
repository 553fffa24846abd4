"""Bytes of arrays that lie in files as they are in memory: read into their place, or picked from a map of the file.

What lies together is read into the destination. Many small pieces are copied from a read-only map, for one read or, with
:class:`Kept`, for all reads of whoever reads one batch after the other; the size of the file is looked at before each.
A map never leaves this package: whoever reads copies what it selects. (A write to a read-only map kills the process, and
so does a read behind the end of a file.) The one exception is :meth:`Bytes.private`, a copy-on-write map that can be
written to.
"""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np

from ..counting import COUNTED

Buffer = np.ndarray[Any, np.dtype[np.uint8]]
Places = np.ndarray[Any, np.dtype[np.int64]]
T = TypeVar("T")
R = TypeVar("R")

THREADS = 4
"""How many reads wait at once; two keep a fast disk busy, and they only copy."""
DECODERS = min(THREADS, os.cpu_count() or 1)
"""How many chunks are decoded at once: threads without a core of their own take longer (measured on 2: 155 ms, 203 with 4)."""
BESIDE_OTHERS: ContextVar[bool] = ContextVar("xarray-tensordict reads beside others", default=False)
"""Whether this thread is one of several that read at the same time."""
_PIECE = 2**23
"""Rows and ranges that are larger are read in pieces, at once (measured on 2 cores: 200 MB in 35 ms, not in 48)."""
LONG_ROW = 2**18
"""Rows that are larger are read in pieces, too, and those that follow each other as one."""
_PAGE = 4096
"""From this size on to read a row takes less than to fault in its pages (measured, 64 rows of 12 kB: 0.1 ms, 0.2 to 0.3 ms
through a new map, 0.06 ms through one that has been read before)."""

_BECAME_SHORTER = "{}: it became shorter while it was read; another program writes to it"

_REUSED = 2**24
"""Freed memory is used again while no more than twice this is free; see :func:`reuse_memory`."""

CAN_READ_AT = hasattr(os, "preadv")
"""Whether a file can be read at a place without moving the position that others share."""


class NotRawError(Exception):
    """The bytes are not where they were expected; the library of the format has to be asked."""


_MOST = 256
"""How many files are kept mapped, and so open, at most; of more, the others are opened for each read."""


class Kept:
    """Read-only maps of files that are read again and again: to fault in a page takes about as long as to copy it.

    They are kept for one reader and not longer, because a file that is mapped stays open. A pickle holds none.
    """

    def __init__(self) -> None:
        self._maps: dict[tuple[str, int, int], tuple[tuple[int, int, int], Buffer]] = {}

    def found(self, path: str, offset: int, size: int) -> Buffer | None:
        """The map of a part of a file that has that path; None where there is none, or the file is another or changed its size."""
        try:
            return self.of_file(path, offset, size, os.stat(path))
        except OSError:
            return None

    def of_file(self, name: str, offset: int, size: int, status: os.stat_result) -> Buffer | None:
        """The map of a part of a file that has this status now; None where there is none, or it is of another file."""
        held = self._maps.get((name, offset, size))
        return held[1] if held is not None and held[0] == _identity(status) else None

    def map_of(self, name: str, fileno: int, offset: int, size: int) -> Buffer | None:
        """The map of a part of an open file, whose size was just looked at; None where there are enough.

        Parameters
        ----------
        name
            The path, or what else tells the files of a reader apart.
        """
        key = (name, offset, size)
        # while a file is mapped no other one gets its number
        identity = _identity(os.fstat(fileno))
        held = self._maps.get(key)
        if held is None or held[0] != identity:
            if held is None and len(self._maps) >= _MOST:
                return None
            held = self._maps[key] = identity, map_file(fileno, offset, size, mmap.ACCESS_READ)
        return held[1]

    def __reduce__(self) -> tuple[type[Kept], tuple[()]]:
        return Kept, ()


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_dev, status.st_ino, status.st_size


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

    def rows(self, starts: Places, out: Buffer, kept: Kept | None = None) -> bool:
        """Copy the bytes at each of `starts` into a row of `out`; False where there is nothing faster than `view`.

        Parameters
        ----------
        starts
            In any order; multiples of the length of a row, unless there is only one.
        out
            Is filled.
        kept
            What the reader keeps from one read to the next.

        Raises
        ------
        ValueError, OSError, NotRawError
            As `view` does.
        """

    def private(self) -> Buffer | None:
        """All bytes as a private copy-on-write map; None where the format does not promise that its files stay as they are."""


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

    def place(self, number: int) -> tuple[str, int] | None:
        """The path of a file, and where in it the bytes begin; None where only to open it tells."""
        return None

    def mapped(self, number: int, kept: Kept) -> Buffer | None:
        """The bytes in a file as a map that is kept, after a look at its size; None where no more maps are kept."""
        place = self.place(number)
        found = None if place is None else kept.found(*place, self.part)
        if found is not None:
            return found
        with self.opened(number) as (fileno, offset):
            return kept.map_of(self.where(number), fileno, offset, self.part)

    def mapped_range(self, start: int, length: int, kept: Kept) -> Buffer | None:
        """Some of the bytes, in a map that is kept; None where they lie in several files, or no more maps are kept."""
        number, inside = divmod(start, self.part)
        held = None if inside + length > self.part else self.mapped(number, kept)
        return None if held is None else held[inside : inside + length]

    def view(self, start: int, stop: int) -> Buffer | None:
        if start >= stop:
            return np.empty(0, np.uint8)
        if self.size > self.part:
            return None
        with self.opened(0) as (fileno, offset):
            return map_file(fileno, offset + start, stop - start, mmap.ACCESS_READ)

    def private(self) -> Buffer | None:
        return None

    def rows(self, starts: Places, out: Buffer, kept: Kept | None = None) -> bool:
        length = out.shape[1]
        if not out.size:
            return True
        if len(starts) == 1 and kept is not None and length <= _PIECE:
            self._range(int(starts[0]), out[0], kept)
            return True
        if length >= LONG_ROW or len(starts) == 1:
            self._large_rows(starts, out)
            return True
        if self.part % length:
            return False
        step = max(1, _PIECE // length)
        pieces = [slice(first, first + step) for first in range(0, len(starts), step)]
        at_once(lambda piece: self._small_rows(starts[piece], out[piece], kept), pieces)
        return True

    def _large_rows(self, starts: Places, out: Buffer) -> None:
        """Rows one by one, those that follow each other as one: what is larger than a piece in pieces, many at once."""
        cuts = [0, *(np.flatnonzero(np.diff(starts) != out.shape[1]) + 1).tolist(), len(starts)]
        wanted = [
            (int(starts[lo]) + skipped, out[lo:hi].reshape(-1)[skipped : skipped + _PIECE])
            for lo, hi in pairwise(cuts)
            for skipped in range(0, (hi - lo) * out.shape[1], _PIECE)
        ]
        count = -(-len(wanted) // -(-out.nbytes // _PIECE))  # so that a task reads about a piece
        at_once(self._copy, [wanted[first : first + count] for first in range(0, len(wanted), count)])

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

    def _small_rows(self, starts: Places, out: Buffer, kept: Kept | None) -> None:
        if self.size == self.part:
            self._pick(0, starts, out, kept)
            return
        order = np.argsort(starts, kind="stable")
        numbers = starts[order] // self.part
        for places in np.split(order, np.flatnonzero(np.diff(numbers)) + 1):
            picked = np.empty((len(places), out.shape[1]), np.uint8)
            number = int(starts[places[0]] // self.part)
            self._pick(number, starts[places] - number * self.part, picked, kept)
            out[places] = picked

    def _range(self, start: int, out: Buffer, kept: Kept) -> None:
        """Copy what lies together, from the map of its file."""
        held = self.mapped_range(start, len(out), kept)
        if held is None:
            self._copy([(start, out)])
        else:
            out[:] = held

    def _pick(self, number: int, starts: Places, out: Buffer, kept: Kept | None) -> None:
        """Copy rows that are all in one file: one by one, or where a map takes less from that."""
        length = out.shape[1]
        held = None if kept is None else self.mapped(number, kept)
        if held is not None:
            _take(held, starts // length, out)
            return
        with self.opened(number) as (fileno, offset):
            if length >= _PAGE and CAN_READ_AT:
                for start, row in zip((starts + offset).tolist(), out, strict=True):
                    if os.preadv(fileno, (row,), start) != length:
                        raise OSError(_BECAME_SHORTER.format(self.where(number)))
                return
            first, stop = int(starts.min()), int(starts.max()) + length
            _take(map_file(fileno, offset + first, stop - first, mmap.ACCESS_READ), (starts - first) // length, out)


def _take(held: Buffer, numbers: Places, out: Buffer) -> None:
    # the numbers are in bounds; numpy writes into `out` itself only where it need not check them
    np.take(held.reshape(-1, out.shape[1]), numbers, axis=0, out=out, mode="clip")


def _read_at(fileno: int, out: memoryview, start: int) -> int:
    if CAN_READ_AT:
        return os.preadv(fileno, [out], start)
    os.lseek(fileno, start, os.SEEK_SET)
    found = os.read(fileno, out.nbytes)
    out[: len(found)] = found
    return len(found)


def map_file(fileno: int, offset: int, size: int, access: int) -> Buffer:
    """Map a part of a file, which must be there."""
    extra = offset % mmap.ALLOCATIONGRANULARITY
    mapped = mmap.mmap(fileno, size + extra, access=access, offset=offset - extra)
    return np.frombuffer(mapped, np.uint8, size, extra)


def at_once(function: Callable[[T], R], tasks: Sequence[T], threads: int = THREADS) -> list[R]:
    """Call a function that mostly reads for each of `tasks`, in a few threads; the results are in their order.

    The threads are made for this call: a pool that is kept does not survive a fork. A thread that reads beside others makes none.
    """
    if min(len(tasks), threads) < 2 or BESIDE_OTHERS.get():
        return [function(task) for task in tasks]
    counting: dict[str, Any] = {"initializer": COUNTED.set, "initargs": (COUNTED.get(),)}
    with ThreadPoolExecutor(min(threads, len(tasks)), thread_name_prefix="xarray-tensordict", **counting) as pool:
        return list(pool.map(function, tasks))


def reuse_memory() -> None:
    """Make glibc keep freed blocks for the next ones, in place of giving each back to the system, and taking it anew.

    It does so up to the size of the largest array that has been freed so far (``man mallopt``, M_MMAP_THRESHOLD). Nothing
    is written to this one, so it takes no memory. Measured: 0.4 s less for 420 MB that are decoded in blocks of 2 MiB.
    """
    np.empty(_REUSED, np.uint8)


@contextmanager
def open_file(path: str) -> Iterator[int]:
    """Open a file for reading, without Python's layers; a pipe in its place is not waited for."""
    fileno = os.open(path, os.O_RDONLY | sum(getattr(os, flag, 0) for flag in ("O_CLOEXEC", "O_BINARY", "O_NONBLOCK")))
    try:
        yield fileno
    finally:
        os.close(fileno)
