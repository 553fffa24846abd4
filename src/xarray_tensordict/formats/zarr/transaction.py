"""A change of a zarr store as a transaction: chunks are written first, the documents of metadata last, all or none.

No reader sees rows beyond the shape in the document, so chunks may be written at any time by one writer that has taken
the store. The documents are kept in memory until :meth:`Staged.commit` writes them. Meanwhile an attribute of the outermost
group holds them as they were: a commit that was killed is rolled back by the next that opens the store.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import platform
import secrets
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import filelock
import zarr
from zarr.abc.store import Store
from zarr.storage import LocalStore, WrapperStore

from ..._compat.zarr import (
    METADATA_KEYS,
    await_requests,
    base_store,
    create_only,
    each_at_once,
    get_bytes,
    is_transactional,
    join,
    run,
    set_bytes,
)
from ...core.metadata import COMMIT_ATTR, INCOMPLETE_ATTR, Incomplete, checked, parse
from ...core.model import why_no_key
from ...core.naming import printable
from ..identity import ChangedError

LOCK = ".xarray-tensordict.lock"
"""An object beside the documents of the outermost group, which is there only while the store is changed."""
WAIT = 60.0
"""So many seconds another writer is waited for."""

Documents = dict[str, bytes | None]
"""The documents of metadata by key; None where there is none."""


class Staged(WrapperStore[Store]):
    """A store that passes chunks through and keeps documents back until they are committed.

    Parameters
    ----------
    store
        Where the chunks go.
    documents
        Shown in the place of those of the store.

    Attributes
    ----------
    inner
        The store that the chunks are in.
    """

    def __init__(self, store: Store, documents: Mapping[str, bytes | None] | None = None) -> None:
        super().__init__(store)
        self.inner = store
        self.documents: Documents = dict(documents or {})
        self.found: Documents = {}

    def _with_store(self, store: Store) -> Self:
        copied = type(self)(store, self.documents)
        copied.documents, copied.found = self.documents, self.found
        return copied

    async def _document(self, key: str) -> bytes | None:
        if key in self.documents:
            return self.documents[key]
        if key not in self.found:
            self.found[key] = await get_bytes(self.inner, key)
        return self.found[key]

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        if not is_document(key) or byte_range is not None:
            return await self.inner.get(key, prototype, byte_range)
        content = await self._document(key)
        return None if content is None else prototype.buffer.from_bytes(content)

    async def _get_many(self, requests: Iterable[Any]) -> AsyncIterator[Any]:  # type: ignore[override]
        for key, prototype, byte_range in requests:
            yield key, await self.get(key, prototype, byte_range)

    async def set(self, key: str, value: Any) -> None:
        if is_document(key):
            await self._document(key)
            self.documents[key] = value.to_bytes()
        else:
            await self.inner.set(key, value)

    async def set_if_not_exists(self, key: str, value: Any) -> None:
        if not await self.exists(key):
            await self.set(key, value)

    async def _set_many(self, values: Iterable[Any]) -> None:
        for key, value in values:
            await self.set(key, value)

    async def exists(self, key: str) -> bool:
        return await self._document(key) is not None if is_document(key) else await self.inner.exists(key)

    async def delete(self, key: str) -> None:
        if is_document(key):
            await self._document(key)
            self.documents[key] = None
        else:
            await self.inner.delete(key)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        start = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        present = (key for key, content in self.documents.items() if content is not None and key.startswith(start))
        names = {key.removeprefix(start).partition("/")[0] for key in present}
        async for name in self.inner.list_dir(prefix):
            name = name.rstrip("/")
            names.discard(name)
            if name != LOCK:
                yield name
        for name in names:
            yield name

    # -- what is to be changed -----------------------------------------------------------------------------------------

    def document(self, key: str) -> dict[str, Any] | None:
        """A document as it is to be."""
        content = run(self._document(key))
        return None if content is None else parse(content, dict[str, Any], key)

    def put(self, key: str, content: bytes | None) -> None:
        """Change a document; None removes it."""
        run(self._document(key))
        self.documents[key] = content

    def edit(self, key: str, **changed: Any) -> None:
        """Change some entries of a document."""
        self.put(key, as_json({**(self.document(key) or {}), **changed}))

    def check(self, where: str) -> None:
        """Raise unless the documents in the store are those that were read; of new ones that of the root alone is asked for.

        Raises
        ------
        ChangedError
            Names the store and the first documents that are others.
        """
        now = _read(self.inner, [key for key, content in self.found.items() if content is not None or "/" not in key])
        changed = [key for key in now if now[key] != self.found[key]]
        if changed:
            raise ChangedError(
                f"{where}: {changed[:3]} were changed by another program while this write was on its way. Nothing was "
                f"changed by it: try again"
            )

    def commit(self, where: str, root: str = "") -> None:
        """Write the documents that are to be others, all or none of them.

        Parameters
        ----------
        where
            How messages call the store.
        root
            The path of the outermost group.

        Raises
        ------
        ChangedError
            Where another program has changed a document since it was read.
        """
        changed_documents = {key: content for key, content in self.documents.items() if content != self.found.get(key)}
        self.found = {key: self.found[key] for key in changed_documents}
        if is_transactional(self.inner):
            _write(self.inner, changed_documents)
        else:
            self.check(where)
            _switch(self.inner, root, self.found, changed_documents, where)
        self.found, self.documents = {**self.found, **changed_documents}, {}


# -- documents ---------------------------------------------------------------------------------------------------------


def is_document(key: str) -> bool:
    """Whether a key is that of a document of metadata."""
    return key.rpartition("/")[2] in METADATA_KEYS


def attrs_key(path: str, zarr_format: int) -> str:
    """The key of the document that holds the attributes of what is at a path."""
    return join(path, "zarr.json" if zarr_format == 3 else ".zattrs")


def as_json(content: Any) -> bytes:
    """A document as zarr writes it."""
    return json.dumps(content, indent=zarr.config.get("json_indent")).encode()


def _read(store: Store, keys: Iterable[str]) -> Documents:
    names = list(keys)
    return dict(zip(names, each_at_once(lambda key: get_bytes(store, key), names), strict=True))


def _write(store: Store, documents: Mapping[str, bytes | None]) -> None:
    """Set or delete documents: what is deepest first, one level after the other, so that a group comes after its arrays."""

    async def put(key: str) -> None:
        content = documents[key]
        await (store.delete(key) if content is None else set_bytes(store, key, content))

    ordered = sorted(documents, key=lambda key: (-key.count("/"), key))
    for depth, keys in itertools.groupby(ordered, lambda key: key.count("/")):
        if depth:
            each_at_once(put, list(keys))
        else:
            for key in keys:  # v2: .zattrs before .zgroup before .zmetadata, by which readers find the store
                run(put(key))


def _switch(store: Store, root: str, before: Documents, after: Mapping[str, bytes | None], where: str) -> None:
    """Replace documents by others. What fails or is interrupted is put back; what is killed leaves the mark."""
    if not after:
        return
    last = attrs_key(root, 3 if any(key.endswith("zarr.json") for key in after) else 2)
    alone = len(after) == 1 or not any(content is not None for content in before.values())
    if not alone and last not in after:
        found = run(get_bytes(store, last))
        before, after = {**before, last: found}, {**after, last: found}
    try:
        if not alone:
            run(set_bytes(store, last, _marked(last, before)))
        _write_before(store, last, after)
    except BaseException as error:
        await_requests()
        try:
            _write_before(store, last, before)
        except Exception as second:
            error.add_note(
                f"{where}: the metadata could not be put back ({type(second).__name__}: {second}). The document {last!r} holds "
                f"it, and the next write puts it back"
            )
        raise


def _marked(key: str, before: Documents) -> bytes:
    """The document at a key with the mark: all documents as they were."""
    content = before[key]
    whole = {} if content is None else parse(content, dict[str, Any], key)
    attrs = whole.setdefault("attributes", {}) if key.endswith(".json") else whole
    attrs[COMMIT_ATTR] = {key: None if content is None else content.decode() for key, content in before.items()}
    return as_json(whole)


def _write_before(store: Store, last: str, documents: Mapping[str, bytes | None]) -> None:
    """Write documents, that at the key `last` when all others are there."""
    _write(store, {key: content for key, content in documents.items() if key != last})
    _write(store, {last: documents[last]} if last in documents else {})


def _held_in(attrs: Mapping[str, Any], where: str) -> Documents:
    """The documents as a mark holds them; they are written to the store, and nothing else may be."""
    held = checked(attrs[COMMIT_ATTR], dict[str, str | None], f"{where}, {COMMIT_ATTR}")
    for key in held:
        if not is_document(key) or why_no_key(key) is not None:
            raise ValueError(f"{where}, {COMMIT_ATTR}: {key!r} is no document of a store; delete the attribute")
    return {key: None if text is None else text.encode() for key, text in held.items()}


def roll_back(store: Store, root: str) -> None:
    """Put the documents back that a killed commit has left changed; to be called by one who has taken the store."""
    key = pending(store, root)
    if key is not None:
        whole = parse(run(get_bytes(store, key)) or b"{}", dict[str, Any], f"{store}, {key}")
        _write_before(store, key, _held_in(whole["attributes"] if key.endswith(".json") else whole, str(store)))


def pending(store: Store, root: str) -> str | None:
    """The key of the document that marks an unfinished or killed commit; None where there is none."""
    for zarr_format in (3, 2):
        key = attrs_key(root, zarr_format)
        content = run(get_bytes(store, key))
        if content is not None and COMMIT_ATTR.encode() in content:
            return key
    return None


def as_committed(store: Store, root: str, attrs: Mapping[str, Any], where: str) -> Store:
    """A store without an unfinished or killed commit, by the attributes of its outermost group.

    What a killed writer has left in a local store is put back; where that is not possible, the store is shown as it was.
    Consolidated metadata changes as a whole, and needs none of this.

    Raises
    ------
    ValueError
        Where the attributes hold something else than documents of the store.
    """
    held = _held_in(attrs, where)
    return store if _rolled_back(store, root) else Staged(store, held)


def _rolled_back(store: Store, root: str) -> bool:
    """Whether a local store could be put back: no writer changes it, and it can be written to."""
    base = base_store(store)
    if not isinstance(base, LocalStore):
        return False
    try:
        with taken(LocalStore(base.root), str(base.root), root, wait=0):
            return True
    except OSError:
        return False


# -- stores whose chunks are not all written ----------------------------------------------------------------------------
#
# A template that is to be filled, or an overwrite that died, has a mark; all other writes show nothing before they are whole. Chunks
# of a template are written even where they hold nothing but fill values: what is missing has not been written.


def mark_of(group: zarr.Group) -> Incomplete | None:
    """The mark of a group, None where it has none; a ValueError where it is malformed."""
    found = group.attrs.get(INCOMPLETE_ATTR)
    what = f"{group.store_path}: the attribute {INCOMPLETE_ATTR!r}"
    return None if found is None else checked(found, Incomplete, what)


def unwritten(group: zarr.Group, names: Iterable[str]) -> list[str]:
    """Those of some arrays that are not there, or have a chunk (a shard) that was never written."""
    found = []
    for path in names:
        array = group.get(path)
        if isinstance(array, zarr.Array):
            sizes = array.shards or array.chunks
            inside = math.prod(size // chunk for size, chunk in zip(sizes, array.chunks, strict=True))
            count = math.prod(-(-size // stored) for size, stored in zip(array.shape, sizes, strict=True))
            if array.nchunks_initialized // inside == count:
                continue
        found.append(path)
    return found


def incomplete_text(group: zarr.Group, below: str = "") -> str | None:
    """What is wrong with a group that bears a mark, as a sentence; None where all has been written after all.

    Parameters
    ----------
    below
        Only arrays below this path count.
    """
    mark = mark_of(group)
    if mark is None:
        return None
    names = [path for path in mark.arrays if not below or f"{path}/".startswith(f"{below}/")]
    if mark.kind == "create" and mark.created:
        lacking = unwritten(group, names)
        if not lacking:
            return None
        return (
            f"the store is not complete: {_listed(lacking)} have chunks that have not been written, which read as the fill "
            f"value (NaN for floats). Compute the Delayed that the writer returned, or write the missing parts with "
            f"ds.td.to_zarr(store, region=...)"
        )
    if mark.kind == "overwrite" and names:
        return (
            f"the store is not complete: {_listed(names)} were being written, and that did not finish, so they may hold a "
            f"part of the old values and a part of the new ones; write them again with mode='a'"
        )
    if mark.kind == "create":
        return (
            "the store is not complete: its writer stopped before all arrays were created; write it again with mode='w'"
        )
    return None


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:5]))
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


# -- one writer at a time ----------------------------------------------------------------------------------------------


class Taken:
    """The right to change a store, until it is given back or, with the process, lost.

    A local folder is locked by the operating system; in any other store an object names the writer, and a copy that was
    pickled may give it back.
    """

    _lock: filelock.BaseFileLock | None = None
    _inode = 0
    _token: bytes | None = None
    _stays = False

    def __init__(self, store: Store, where: str, root: str = "", *, wait: float | None = None) -> None:
        self._target, self._key, self._where = store, join(root, LOCK), where
        wait = WAIT if wait is None else wait
        base = base_store(store)
        if is_transactional(base):
            return
        if isinstance(base, LocalStore):
            self._lock_folder(Path(base.root, root), wait)
        else:
            self._create_object(wait)

    def _lock_folder(self, folder: Path, wait: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / LOCK, thread_local=False)
        try:
            lock.acquire(timeout=wait)
        except filelock.Timeout as error:
            raise BlockingIOError(
                f"{self._where}: another process or thread is changing the store, and has not finished within {wait:g} s. "
                f"Nothing was changed: try again"
            ) from error
        self._lock, self._inode = lock, os.stat(lock.lock_file).st_ino
        with suppress(ValueError):  # a worker of a cluster keeps the result of a task, and hands copies of it to others
            distributed = sys.modules.get("distributed")
            self._stays = distributed is not None and distributed.get_worker() is not None

    def _create_object(self, wait: float) -> None:
        who = {"host": platform.node(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        self._token = token = json.dumps({**who, "token": secrets.token_hex(8)}).encode()
        end, pause = time.monotonic() + wait, 0.01
        try:
            while True:
                run(create_only(self._target, self._key, token))
                found = run(get_bytes(self._target, self._key))
                if found == token:
                    return
                if time.monotonic() > end:
                    holder = "another writer" if found is None else printable(found.decode(errors="replace"))
                    raise BlockingIOError(
                        f"{self._where}: {holder} is changing the store, and has not finished within {wait:g} s. Nothing was "
                        f"changed: try again. If that writer is gone, delete the object {self._key!r} in the store"
                    )
                time.sleep(pause)
                pause = min(2 * pause, 1.0)
        except BaseException:
            await_requests()
            self.release()
            raise

    def release(self) -> None:
        """Give the store back."""
        lock, self._lock = self._lock, None
        if lock is not None:
            with suppress(OSError):
                # the folder may have been replaced, and the file in the new one be that of another writer
                if os.stat(lock.lock_file).st_ino == self._inode:
                    os.unlink(lock.lock_file)
            lock.release()
        token, self._token = self._token, None
        if token is not None and run(get_bytes(self._target, self._key)) == token:
            run(self._target.delete(self._key))

    def __del__(self) -> None:
        # after a failed graph of dask no other code gives a folder back
        if self._lock is not None:
            self.release()

    def __getstate__(self) -> dict[str, Any]:
        if self._lock is not None and not self._stays:
            raise ValueError(
                f"{self._where}: the lock of a folder belongs to one process, and this scheduler of dask hands it to another. "
                f"Nothing was changed: compute with scheduler='threads' or on a cluster, or write with compute=True"
            )
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_inode")}


@contextmanager
def taken(store: Store, where: str, root: str = "", *, wait: float | None = None) -> Iterator[Taken]:
    """Take a store for the time of a block, and put back first what a killed writer has left.

    Raises
    ------
    BlockingIOError
        Where another writer does not give it back in time.
    """
    held = Taken(store, where, root, wait=wait)
    try:
        if not is_transactional(store):
            roll_back(store, root)
        yield held
    finally:
        held.release()
