"""Compressed chunks of zarr in local files: each one that is needed is read and decoded once, in a few threads.

zarr decodes the same bytes in the same libraries; what it does around that takes as long (measured: 100 MB of int16 in 64
chunks of zstd, 0.34 s of processor time, and 0.15 s to decode them).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numcodecs
import numpy as np

from ..fingerprint import RemovedError
from ..raw.files import Buffer, NotRawError, Places, at_once, reuse_memory

if TYPE_CHECKING:
    from ..raw.kept import Kept
    from .local import Guard

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_HEADER = 18


@dataclass(frozen=True)
class EncodedChunks:
    """The chunks of an array, each a file of its own that holds whole rows; see :class:`~..raw.files.Bytes`.

    Attributes
    ----------
    where
        The path of the chunk of a number.
    guard
        Tells whether the array is still what was opened.
    size, chunk
        How many bytes there are in all, and in a chunk, decoded.
    codec
        What decodes a chunk.
    """

    where: Callable[[int], str]
    guard: Guard
    size: int
    chunk: int
    codec: Any

    @property
    def is_compressed(self) -> bool:
        return True

    def view(self, start: int, stop: int) -> Buffer | None:
        """None: parts of rows are read by zarr, chunk by chunk; here all chunks would be held at once."""
        return np.empty(0, np.uint8) if start >= stop else None

    def private(self) -> Buffer | None:
        return None

    def rows(self, starts: Places, out: Buffer, kept: Kept | None = None) -> bool:
        if not out.size:
            return True
        reuse_memory()
        if len(starts) == 1:
            self._range(int(starts[0]), out[0])
            return True
        length = out.shape[1]
        if self.chunk % length:
            return False
        order = np.argsort(starts, kind="stable")
        cuts = np.flatnonzero(np.diff(starts[order] // self.chunk)) + 1

        def copy(places: Places) -> None:
            number, inside = np.divmod(starts[places], self.chunk)
            out[places] = self._decoded(int(number[0])).reshape(-1, length)[inside // length]

        at_once(copy, np.split(order, cuts))
        return True

    def _range(self, start: int, out: Buffer) -> None:
        stop = start + out.nbytes

        def copy(number: int) -> None:
            begin = number * self.chunk
            first, last = max(start, begin), min(stop, begin + self.chunk)
            there = out[first - start : last - start]
            found = self._decoded(number, there if there.nbytes == self.chunk else None)
            if found is not there:
                there[:] = found[first - begin : last - begin]

        at_once(copy, range(start // self.chunk, -(-stop // self.chunk)))

    def _decoded(self, number: int, out: Buffer | None = None) -> Buffer:
        """The bytes of a chunk; in `out`, which has its size, where the codec can be trusted to fill it."""
        path = self.where(number)
        try:
            with open(path, "rb") as file:
                self.guard.check()  # after the file is opened: what is renamed in between is seen
                encoded = file.read()
        except RemovedError:
            raise
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise NotRawError(f"{path}: there is no such chunk") from error
        if type(self.codec) is numcodecs.Blosc and len(encoded) != int.from_bytes(encoded[12:16], "little"):
            # blosc believes its header and reads behind the end
            raise OSError(
                f"{path}: the chunk was cut short: it holds {len(encoded)} bytes. Restore it, or leave it out"
            )
        try:
            if out is not None and _decoded_size(self.codec, encoded) == self.chunk:
                self.codec.decode(encoded, out)
                return out
            found = np.frombuffer(self.codec.decode(encoded), np.uint8)
        except Exception as error:  # whatever a codec raises
            raise NotRawError(f"{path}: the chunk cannot be decoded ({error})") from error
        if found.nbytes != self.chunk:
            raise NotRawError(f"{path}: expected a chunk of {self.chunk} bytes, found {found.nbytes}")
        return found


def _decoded_size(codec: Any, encoded: bytes) -> int | None:
    """How many bytes there will be, where the data says so itself.

    A codec that writes into a given array does not tell how many bytes it wrote, and is content with less.
    """
    if type(codec) is numcodecs.Zstd and encoded[:4] == _ZSTD_MAGIC and len(encoded) > _ZSTD_HEADER:
        # RFC 8878, 3.1.1.1: a byte of flags; a window, unless there is one segment; the number of a dictionary; the size
        flags = encoded[4]
        width = (1 if flags & 0x20 else 0, 2, 4, 8)[flags >> 6]
        place = 5 + (not flags & 0x20) + (0, 1, 2, 4)[flags & 3]
        size = int.from_bytes(encoded[place : place + width], "little")
        return (size + 256 if width == 2 else size) if width else None
    if type(codec) is numcodecs.LZ4 and len(encoded) > 4:
        return int.from_bytes(encoded[:4], "little")
    if type(codec) is numcodecs.Blosc and len(encoded) >= 16:
        return int.from_bytes(encoded[4:8], "little")
    return None
