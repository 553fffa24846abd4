"""Whether an array is still what was opened: one that was removed or replaced since is refused by name.

A store is described once, when it is opened, and its arrays are read later, in other processes, too. Then there may be
another store in its place, whose bytes mean something else. :class:`Fingerprint` shows which arrays are the same;
:class:`Described` sees, by one look at the status of a file, whether there is anything to compare. A format defines how an array
is found again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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


class ChangedError(OSError):
    """A store was changed by a writer while it was opened or changed; it can be tried again."""


def identity_of(status: os.stat_result) -> Identity:
    """What distinguishes a file from the one that takes its place, or is written over it, on any machine that sees it."""
    return status.st_ino, status.st_mtime_ns, status.st_size


def replaced(where: str, expected: str, found: str) -> ReplacedError:
    """The error for what is not as it was opened."""
    return ReplacedError(
        f"{where}: expected {expected}, as it was opened, found {found}. Another file has taken its place since; open the "
        f"store again"
    )


def coding_of(attrs: Mapping[str, Any]) -> str:
    """The attributes that define what stored numbers mean, as one text."""
    if _CODING.isdisjoint(attrs):
        return "[]"
    return repr([(name, np.asarray(attrs[name]).tolist()) for name in sorted(_CODING & attrs.keys())])


@dataclass(frozen=True)
class Fingerprint:
    """What an array was when it was described.

    Attributes
    ----------
    dtype
        The dtype in words.
    shape
        Its shape.
    grows
        The axes that may be longer later.
    means
        What else defines how bytes become values, by name: codecs, attributes, the place in a file.
    """

    dtype: str
    shape: tuple[int, ...]
    grows: tuple[bool, ...] = ()
    means: Mapping[str, str] = field(default_factory=dict)

    def compare(self, now: Fingerprint | None, where: str) -> None:
        """Raise a `ReplacedError` unless an array of now is the same; what either does not know is not compared.

        Parameters
        ----------
        now
            The array that is found now, None where there is none.
        where
            How messages call it.
        """
        if now is None:
            raise replaced(where, f"{self.dtype} {list(self.shape)}", "no array")
        differ = [name for name, text in self.means.items() if now.means.get(name, text) != text]
        fits = self.dtype == now.dtype and self._has_room_for(now.shape)
        if differ or not fits:
            raise replaced(where, self._words(differ, whole=not fits), now._words(differ, whole=not fits))

    def _has_room_for(self, shape: tuple[int, ...]) -> bool:
        grows = self.grows or (False,) * len(self.shape)
        return len(shape) == len(self.shape) and all(
            now == size or (may_grow and now > size)
            for now, size, may_grow in zip(shape, self.shape, grows, strict=True)
        )

    def _words(self, names: list[str], *, whole: bool) -> str:
        parts = [f"{self.dtype} {list(self.shape)}"] if whole else []
        return ", ".join([*parts, *(f"the {name} {self.means[name]}" for name in names)])


@dataclass(eq=False)
class Described:
    """A file that describes arrays, which was read when the store was opened.

    Parameters
    ----------
    path
        The file.
    read
        Reads its description; called where it is no longer the same file. It has to be picklable.
    status
        Its status from before it was read.
    """

    path: str
    read: Callable[[], Any]
    status: os.stat_result
    opened_at: int = field(default_factory=time.time_ns)
    _seen: tuple[Identity | None, Any] | None = None

    def changed(self) -> Any:
        """The present description in the file; None where it is the one that was read.

        Raises
        ------
        RemovedError, ReplacedError
            Where it is gone, or cannot be parsed.
        """
        try:
            status = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._removed() from error
        identity, found = self._seen or (_settled(self.status, self.opened_at), None)
        if identity_of(status) == identity:
            return found
        try:
            found = self.read()
        except FileNotFoundError as error:
            raise self._removed() from error
        except Exception as error:  # half a file, or one of another program
            raise replaced(self.path, "metadata", f"what cannot be read ({error})") from error
        if found is None:
            raise replaced(self.path, "metadata", f"none in its {status.st_size} bytes")
        self._seen = _settled(status, time.time_ns()), found
        return found

    def _removed(self) -> RemovedError:
        return RemovedError(
            f"{self.path}: it is not there any more. The store was removed or renamed since it was opened; open it again "
            f"where it is now"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_seen": None}


def _settled(status: os.stat_result, now: int) -> Identity | None:
    return None if abs(now - status.st_mtime_ns) < _SETTLED else identity_of(status)
