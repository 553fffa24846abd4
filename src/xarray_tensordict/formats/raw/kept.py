"""What a reader of batches keeps from one read to the next: maps of the files it reads."""

from __future__ import annotations

import mmap
import os

from .files import Buffer, map_file

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
        held = self._maps.get((path, offset, size))
        if held is None:
            return None
        try:
            status = os.stat(path)
        except OSError:
            return None
        return held[1] if held[0] == _identity(status) else None

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
