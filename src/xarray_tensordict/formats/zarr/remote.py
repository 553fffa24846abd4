"""Stores far away: how much is asked of them at once, how far ahead, what is kept of them, and what their errors mean.

A request takes as long as a thousand chunks take to decode, so that what counts is how many are on their way. All numbers
for that are here; :func:`.open.is_far` finds these stores. Requests that fail in passing (503, timeouts) are tried again by the
library of the store: obstore does so, fsspec's http does not.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import zarr
from zarr.abc.store import Store
from zarr.storage import WrapperStore

from ..._compat.zarr import is_remote
from ..counting import COUNTED

AT_ONCE = 64
"""How many requests are on their way at once, in the whole process."""
AHEAD = 8
"""How many reads of a loop are under way at once, in their order."""
AHEAD_BYTES = 128 << 20
"""How many bytes they hold, decoded, unless one of them does."""
SHARD_BYTES = 64 << 20
"""Shards are asked for as a whole up to this size; of larger ones the chunks are."""
COLUMN_BYTES = 4 << 20
"""Columns of few chunks are read once, as a whole, and held, up to this size."""
MERGED = 16 << 20, 8
"""Chunks below so many bytes are read several at once by dask, which waits for few tasks, where there are more than so many."""
KEEP_BYTES = 256 << 20
"""How many bytes of decoded chunks a loop keeps for its next epoch, of stores that are far away or compressed."""

_CONCURRENCY = "async.concurrency"


# --- requests ---------------------------------------------------------------------------------------------------------


class AtOnce(WrapperStore[Store]):
    """A store that is far away, with at most :func:`at_once` requests at once over all readers."""

    _supports_sync_io = False  # zarr's pipelines then read through `get`

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        async with _slots():
            with COUNTED.get() as counted:
                found = await super().get(key, prototype, byte_range)
                if counted is not None:
                    counted.received(found)
            return found

    if hasattr(Store, "get_ranges"):  # not in zarr 3.1

        async def get_ranges(
            self, key: str, byte_ranges: Sequence[Any], **options: Any
        ) -> AsyncIterator[Sequence[tuple[int, Any]]]:
            by_get: Any = super(WrapperStore, self)
            async for group in by_get.get_ranges(key, byte_ranges, **options):
                yield group


def at_once() -> int:
    """How many requests may be on their way: the setting of zarr that the user chose, else `AT_ONCE`."""
    chosen = int(zarr.config.get(_CONCURRENCY) or AT_ONCE)
    return AT_ONCE if chosen == _default() else chosen


def _default() -> int:
    return int(zarr.config.defaults[0]["async"]["concurrency"])


_semaphores: weakref.WeakKeyDictionary[Any, tuple[int, asyncio.Semaphore]] = weakref.WeakKeyDictionary()


def _slots() -> asyncio.Semaphore:
    """What the requests of one event loop wait at; there is one for zarr in each process."""
    loop, most = asyncio.get_running_loop(), at_once()
    held = _semaphores.get(loop)
    if held is None or held[0] != most:
        held = _semaphores[loop] = most, asyncio.Semaphore(most)
    return held[1]


class _Raised:
    """How many reads want that zarr asks for `AT_ONCE` chunks at once, and whether its setting was changed for them."""

    def __init__(self) -> None:
        self.lock, self.reads, self.is_set = threading.Lock(), 0, False

    def change(self, by: int) -> None:
        """Begin or end a read: the first one changes the setting of zarr, unless the user has; the last one restores it."""
        with self.lock:
            self.reads += by
            if self.reads and not self.is_set and zarr.config.get(_CONCURRENCY) == _default():
                zarr.config.set({_CONCURRENCY: AT_ONCE})
                self.is_set = True
            elif not self.reads and self.is_set:
                if zarr.config.get(_CONCURRENCY) == AT_ONCE:
                    zarr.config.set({_CONCURRENCY: _default()})
                self.is_set = False


_raised = _Raised()


@contextmanager
def many_at_once() -> Iterator[None]:
    """Let zarr ask for `AT_ONCE` chunks at once, unless the user has chosen how many."""
    _raised.change(1)
    try:
        yield
    finally:
        _raised.change(-1)


def _after_fork() -> None:
    """No thread reads in a process that was just forked, and none holds the lock."""
    _raised.lock, _raised.reads = threading.Lock(), 0
    _raised.change(0)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# --- errors -----------------------------------------------------------------------------------------------------------

_CLIENTS = frozenset({"botocore", "aiobotocore", "aiohttp", "obstore", "s3fs", "gcsfs", "adlfs", "google", "azure"})
_REFUSALS = ("credential", "accessdenied", "access denied", "forbidden", "unauthenticated", "permissiondenied")
_MISSING_PACKAGES = {
    "s3": "xarray-tensordict[s3]",
    "s3a": "xarray-tensordict[s3]",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "http": "aiohttp",
    "https": "aiohttp",
}


def raise_translated(error: Exception, source: Any, description: str) -> None:
    """Raise an error of a client of a store far away (s3fs, obstore, ...) as one of Python's own; others are let pass."""
    found = _translated(error, description) if is_remote(source) else None
    if found is not None:
        raise found from error


def _translated(error: Exception, description: str) -> Exception | None:
    cause = f"{type(error).__name__}: {error}".split("\n")[0]
    words = cause.lower()
    if isinstance(error, ImportError):
        scheme = description.partition("://")[0]
        package = _MISSING_PACKAGES.get(scheme, "the package it names")
        allow = ", client_options={'allow_http': True}" if scheme == "http" else ""
        instead = (
            f", or obstore and open zarr.storage.ObjectStore(obstore.store.from_url(url{allow}), read_only=True), which repeats "
            f"requests that fail"
            if package == "aiohttp"
            else ""
        )
        return ImportError(
            f"{description}: URLs of this kind need a package that is missing ({error}): install {package!r}{instead}"
        )
    if isinstance(error, PermissionError) or (is_of_client(error) and any(word in words for word in _REFUSALS)):
        return PermissionError(
            f"{description}: the store refuses access ({cause}). Pass credentials in storage_options, for s3:// as "
            f"{{'key': ..., 'secret': ...}}, or {{'anon': True}} to read what is public"
        )
    if "bucket does not exist" in words or "nosuchbucket" in words:
        return FileNotFoundError(f"{description}: the bucket is not there ({cause}); create it, or check its name")
    if is_of_client(error) or isinstance(error, (ConnectionError, TimeoutError)):
        return ConnectionError(
            f"{description}: the store does not answer as it should ({cause}); check address and network"
        )
    return None


def is_of_client(error: BaseException) -> bool:
    """Whether an error has a class of a client of stores far away, whose message is the server's answer."""
    return type(error).__module__.partition(".")[0] in _CLIENTS
