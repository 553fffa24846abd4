"""Whether a store is still what was opened: what has been removed or replaced since is refused by name.

A store is described once, when it is opened, and its arrays are read later, in other processes, too. Then there may be
another store in its place, whose bytes mean something else. To see that takes one look at the status of a file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.metadata import CF_PACKING, CF_TIMES

_SETTLED = 50_000_000
"""A file that changed less than so many ns ago can change again within the same tick of the clock of its file system."""

_CODING = frozenset((*CF_PACKING, *CF_TIMES))

Identity = tuple[int, int, int]


class ReplacedError(OSError, ValueError):
    """Something else has taken the place of what was opened."""


class RemovedError(ReplacedError, FileNotFoundError):
    """What was opened is not there any more."""


def identity_of(status: os.stat_result) -> Identity:
    """What tells a file from the one that takes its place, or is written over it, on any machine that sees it."""
    return status.st_ino, status.st_mtime_ns, status.st_size


def replaced(where: str, expected: str, found: str) -> ReplacedError:
    """The error for what is not as it was opened."""
    return ReplacedError(
        f"{where}: expected {expected}, as it was opened, found {found}. Another file has taken its place since; open the "
        f"store again"
    )


def coding_of(attrs: Mapping[str, Any]) -> str:
    """The attributes that say what stored numbers mean, as one text."""
    if _CODING.isdisjoint(attrs):
        return "[]"
    return repr([(name, np.asarray(attrs[name]).tolist()) for name in sorted(_CODING & attrs.keys())])


class Described:
    """A file that describes arrays, which was read when the store was opened.

    Parameters
    ----------
    path
        The file.
    read
        Gives what it says; called where it is no longer the same file. It has to be picklable.
    status
        Its status from before it was read.
    """

    def __init__(self, path: str, read: Callable[[], Any], status: os.stat_result) -> None:
        self.path = path
        self._read = read
        self._opened = _settled(status)
        self._seen: tuple[Identity | None, Any] = self._opened, None

    def changed(self) -> Any:
        """What the file says now; None where it is the one that was read.

        Raises
        ------
        RemovedError, ReplacedError
            Where it is gone, or does not say anything that can be understood.
        """
        try:
            status = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._removed() from error
        identity, said = self._seen
        if identity_of(status) == identity:
            return said
        try:
            said = self._read()
        except FileNotFoundError as error:
            raise self._removed() from error
        except Exception as error:  # half a file, or one of another program
            raise replaced(self.path, "metadata", f"what cannot be read ({error})") from error
        if said is None:
            raise replaced(self.path, "metadata", f"none in its {status.st_size} bytes")
        self._seen = _settled(status), said
        return said

    def _removed(self) -> RemovedError:
        return RemovedError(
            f"{self.path}: it is not there any more. The store was removed or renamed since it was opened; open it again "
            f"where it is now"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_seen": (self._opened, None)}


def _settled(status: os.stat_result) -> Identity | None:
    return None if abs(time.time_ns() - status.st_mtime_ns) < _SETTLED else identity_of(status)


@dataclass(frozen=True)
class Entry:
    """One array, and what the metadata said of it.

    Attributes
    ----------
    described
        The file that says it, as JSON.
    keys
        Where in it.
    said
        What it said.
    """

    described: Described
    keys: tuple[str, ...]
    said: Any

    def check(self, where: str) -> None:
        """Raise where the metadata say something else now; `where` is how messages call the array."""
        now = self.described.changed()
        if now is None:
            return
        for key in self.keys:
            now = now.get(key) if isinstance(now, dict) else None
        if said_of(now) != self.said:
            raise replaced(where, _in_words(self.said), _in_words(said_of(now)))


def said_of(entry: Any) -> Any:
    """What a JSON entry of tensordict says of a tensor: dtype and shape, and in an archive where its bytes begin and end."""
    if isinstance(entry, dict):
        return entry.get("dtype"), entry.get("shape"), *entry.get("_place", ())
    return entry


def _in_words(said: Any) -> str:
    if not isinstance(said, tuple):
        return "no tensor"
    dtype, shape, *place = said
    text = f"{str(dtype).removeprefix('torch.')} {shape}"
    return f"{text} in bytes {place[0]} to {place[1]}" if place else text
