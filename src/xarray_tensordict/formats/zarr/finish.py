"""The last step of every write to zarr: the records of the batch, the mark, the consolidated metadata.

It is carried out when the arrays are whole, by the writer itself or, with ``compute=False``, as the last task of the
``Delayed``. So it holds what it needs as plain values, which can be sent to a worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import zarr

from ..._compat.zarr import await_requests, run
from ...core.metadata import BATCH_ATTR, INCOMPLETE_ATTR, STACK_ATTR, batch_record
from ...core.model import GroupBatch, Key
from ...dataset.entries import td_names
from ...quiet import ZARR_SAYS, quiet
from .completeness import mark_of, unwritten
from .entries import Overlay, attrs_key, set_bytes, unmarked
from .open import walk_members


@dataclass(frozen=True)
class Finish:
    """What is to be done when the arrays of a store are whole.

    Attributes
    ----------
    store, prefix, storage_options
        Where the store is, and the group in it that was written.
    records
        The value of ``__tensordict__`` for each group that gets one.
    batches
        The batch of each group that has a record already.
    consolidate
        Whether the metadata is consolidated.
    """

    store: Any
    prefix: Key
    storage_options: dict[str, Any] | None
    consolidate: bool
    records: Mapping[Key, Mapping[str, Any]] = field(default_factory=dict)
    batches: Mapping[Key, GroupBatch] = field(default_factory=dict)

    def open(self, key: Key = ()) -> zarr.Group:
        """A group below the one that was written, past consolidated metadata, which a write makes stale."""
        return zarr.open_group(
            self.store,
            path="/".join((*self.prefix, *key)),
            mode="r+",
            use_consolidated=False,
            storage_options=self.storage_options,
        )


def finish(step: Finish, *, unmark: bool = True) -> None:
    """Carry out the last step."""
    with zarr_writes():
        root = step.open()
        for key, record in step.records.items():
            node = step.open(key)
            if node.attrs.get(BATCH_ATTR) != record:
                node.attrs[BATCH_ATTR] = dict(record)
        if step.batches:
            _record_batches(root, step.batches)
    _settle_metadata(step, unmark=unmark)


def _settle_metadata(step: Finish, *, unmark: bool) -> None:
    """Consolidate the metadata as it is without the mark, and remove the mark, in one request or at last.

    Whatever fails before leaves the mark in the store, where the next writer finds it.
    """
    with zarr_writes():
        root = step.open()
        found = mark_of(root)
        unmark = unmark and INCOMPLETE_ATTR in root.attrs
        last = attrs_key(root)
        changed = Overlay(root.store, {last: unmarked(root)} if unmark else {})
        if step.consolidate and root.store.supports_consolidated_metadata:
            zarr.consolidate_metadata(changed, zarr_format=root.metadata.zarr_format)
        for key in sorted(changed.documents, key=lambda key: key == last):
            try:
                run(set_bytes(root.store, key, changed.documents[key]))
            except BaseException as error:
                await_requests()
                if not unmark or INCOMPLETE_ATTR in step.open().attrs:
                    raise
                # the last request was carried out all the same: the write is done
                if not isinstance(error, Exception):
                    # whoever interrupts a write takes it for not done, and may try again
                    mark(step, found or {})
                    raise


def delayed_finish(step: Finish, written: Sequence[Any]) -> Any:
    """One ``Delayed`` that computes all of `written`, then carries out the last step."""
    from dask.delayed import delayed

    return delayed(partial(_finish_after, step), pure=False)(list(written))


def _finish_after(step: Finish, results: Any) -> None:
    finish(step)


def mark(step: Finish, content: Mapping[str, Any]) -> None:
    """Say that the group is being written."""
    with zarr_writes():
        step.open().attrs[INCOMPLETE_ATTR] = dict(content)


def settle_mark(step: Finish, region: Mapping[str, slice], written: Sequence[str]) -> None:
    """After a region has been written: remove the mark if nothing is missing any more.

    Writers of other regions may come to the same end at the same time; each does the same.
    """
    with zarr_writes():
        root = step.open()
        found = mark_of(root)
        if found is None:
            return
        if found.get("kind") == "append":
            part = region.get(str(found.get("dim")))
            covers = part is not None and part.start <= found["start"] and part.stop >= found["stop"]
            whole = covers and set(found.get("arrays", ())) <= set(written)
        else:
            whole = found.get("kind") == "create" and bool(found.get("created")) and not unwritten(root, found)
    if whole:
        records = {tuple(part for part in path.split("/") if part): r for path, r in found.get("records", {}).items()}
        finish(Finish(step.store, step.prefix, step.storage_options, True, records, step.batches))


def records_of(root: zarr.Group, batches: Mapping[Key, GroupBatch]) -> dict[str, dict[str, Any]]:
    """The true record of each group that has one, by path; recorded names stay: the flat view may have others."""
    records = {}
    for path, group in _groups_of(root):
        key = tuple(part for part in path.split("/") if part)
        batch = next((batches[key[:n]] for n in range(len(key), -1, -1) if key[:n] in batches), None)
        if batch is None or BATCH_ATTR not in group.attrs:
            continue
        found: Any = group.attrs[BATCH_ATTR]
        names = found.get("names") if isinstance(found, Mapping) else None
        if names is None or len(names) != len(batch.sizes):
            names = td_names(batch)
        records[path] = batch_record(batch.sizes, names)
    return records


def _groups_of(root: zarr.Group) -> Iterator[tuple[str, zarr.Group]]:
    yield "", root
    yield from ((path, node) for path, node in walk_members(root) if isinstance(node, zarr.Group))


def _record_batches(root: zarr.Group, batches: Mapping[Key, GroupBatch]) -> None:
    """Make the recorded batch true, in every group that has a record, and the shapes of stacks."""
    records = records_of(root, batches)
    for path, group in _groups_of(root):
        record = records.get(path)
        if record is None:
            continue
        if group.attrs[BATCH_ATTR] != record:
            group.attrs[BATCH_ATTR] = record
        sizes = record["batch_size"]
        for _, array in group.arrays():
            if array.attrs.get(STACK_ATTR, sizes) != sizes:
                array.attrs[STACK_ATTR] = sizes


@contextmanager
def zarr_writes() -> Iterator[None]:
    """Around what writes with zarr: an error leaves when nothing is written any more, so that it can be cleaned up after.

    Zarr warns of fixed-length strings and of consolidated metadata, for which v3 has no specification yet.
    """
    with quiet(*ZARR_SAYS):
        try:
            yield
        except BaseException:
            await_requests()
            raise
