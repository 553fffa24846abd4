"""Requests to stores, counted for the loop that reads: how many, how many bytes, and for how long one was under way."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from contextvars import ContextVar
from time import perf_counter
from typing import Any, Self

now = perf_counter
"""The clock that everything here goes by."""


class Work:
    """What several threads do: ``with work`` around each time that one of them does it.

    Attributes
    ----------
    times
        How often it was begun.
    nbytes
        The bytes of all answers, as they are stored.
    hits, misses
        How many chunks were found among those that are kept, and how many were not.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = 0, 0.0, 0.0  # how many are at it, since when, and the seconds before; read without the lock
        self.times = self.nbytes = self.hits = self.misses = 0

    @property
    def seconds(self) -> float:
        """How long at least one thread did it."""
        inside, since, before = self._state
        return before + (now() - since if inside else 0.0)

    def __enter__(self) -> Self:
        with self._lock:
            inside, since, before = self._state
            self._state = inside + 1, since if inside else now(), before
            self.times += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            inside, since, before = self._state
            self._state = inside - 1, since, before + (now() - since if inside == 1 else 0.0)

    def received(self, answer: Any) -> None:
        """Count the bytes of an answer; None where there is no such object."""
        with self._lock:
            self.nbytes += 0 if answer is None else len(answer)

    def claimed(self, count: int, missing: int) -> None:
        """Count chunks that were looked for, of which so many are to be read."""
        with self._lock:
            self.hits, self.misses = self.hits + count - missing, self.misses + missing


_NOT = nullcontext()
COUNTED: ContextVar[Work | nullcontext[None]] = ContextVar("xarray-tensordict requests", default=_NOT)
"""Where requests are counted: what makes one writes ``with COUNTED.get() as counted``, which is None where nothing counts."""
