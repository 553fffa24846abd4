"""Zip archives that forked processes can read: zarr's own store shares one file position with its parent.

Measured: four forked readers of one ``ZipStore`` raise ``BadZipFile`` for a third of their reads: ``seek`` in one
process moves the position that another is about to read from.
"""

from __future__ import annotations

import os
import threading
import weakref

from zarr.storage import ZipStore

_opened: weakref.WeakSet[ForkSafeZipStore] = weakref.WeakSet()


class ForkSafeZipStore(ZipStore):
    """A ``ZipStore`` that opens its file anew in a process that was forked."""

    # two stores of one path are equal, but each has a file of its own
    __hash__ = object.__hash__

    def _sync_open(self) -> None:
        super()._sync_open()
        _opened.add(self)

    def _forget_parent(self) -> None:
        """Open again at the next read, with a lock that no thread of the parent holds."""
        self._is_open = False
        self._lock = threading.RLock()


def _after_fork() -> None:
    for store in list(_opened):
        if store._is_open:
            store._forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
