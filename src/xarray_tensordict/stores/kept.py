"""What a reader of batches keeps from one read to the next: maps of the files it reads."""

from __future__ import annotations

import mmap
import os

from .raw_files import Buffer, map_file

_MOST = 64
"""How many files are kept mapped, and so open, at most."""


class Kept:
    """Read-only maps of files that are read again and again: to fault in a page takes about as long as to copy it.

    They are kept for one reader and not longer, because a file that is mapped stays open. A pickle holds none.
    """

    def __init__(self) -> None:
        self._maps: dict[tuple[int, int, int, int], Buffer] = {}

    def map_of(self, fileno: int, offset: int, size: int) -> Buffer:
        """The map of a part of an open file, whose size was just looked at."""
        status = os.fstat(fileno)
        # while a file is mapped no other one gets its number
        key = (status.st_dev, status.st_ino, offset, size)
        found = self._maps.get(key)
        if found is None:
            found = map_file(fileno, offset, size, mmap.ACCESS_READ)
            if len(self._maps) >= _MOST:
                self._maps.pop(next(iter(self._maps), key), None)
            self._maps[key] = found
        return found

    def __reduce__(self) -> tuple[type[Kept], tuple[()]]:
        return Kept, ()
