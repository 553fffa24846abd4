"""A change of a zarr store, checked and ready: its documents are staged, its values wait; here it is carried out.

==================  ==========================================================  ===========================
what changes        while it is written, readers see                            where it fails or is killed
==================  ==========================================================  ===========================
new arrays          nothing of them                                             nothing of them
rows appended       the rows there were                                         the rows there were
JSON texts          the texts as they were                                      the texts as they were
values overwritten  old and new values, under a mark that names the variables   the mark stays
==================  ==========================================================  ===========================
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import zarr

from ..._compat.xarray import zarr_group_blocks
from ..._compat.zarr import await_requests, each_at_once, get_bytes, is_transactional, on_store, run, set_bytes
from ...core.metadata import BATCH_ATTR, INCOMPLETE_ATTR
from ...core.model import Key
from ...quiet import ZARR_SAYS, quiet
from ...writing.running import compute_all
from .blocks import Block, full_region, held_by_dask, write_in_memory, writes
from .completeness import mark_of, unwritten
from .new_arrays import NewGroup
from .target import ZarrTarget
from .transaction import Staged, Taken, as_json, attrs_key, join, pending, taken


@dataclass
class Change:
    """What is to be written to a store.

    Attributes
    ----------
    staged
        The store, with the documents as they are to be.
    target
        The group that is changed.
    root
        The path of the outermost group.
    zarr_format
        2 or 3.
    consolidate
        Whether the metadata of the outermost group is consolidated even where it was not before.
    blocks
        Values that go into arrays.
    texts
        Chunks of JSON texts by key; none of them is one that the documents name now.
    created
        The paths of arrays that are new.
    overwritten
        The paths of arrays that get other values where there are some, as the mark calls them.
    """

    staged: Staged
    target: ZarrTarget
    root: str
    zarr_format: int
    consolidate: bool = False
    blocks: list[Block] = field(default_factory=list)
    texts: dict[str, bytes] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)
    overwritten: set[str] = field(default_factory=set)

    @property
    def path(self) -> str:
        """The path of the group that is changed."""
        return "/".join(self.target.prefix)

    # -- what is staged ------------------------------------------------------------------------------------------------

    def attrs(self, path: str) -> dict[str, Any]:
        """The attributes of a group or an array, as they are to be."""
        whole = self.staged.document(attrs_key(path, self.zarr_format)) or {}
        return dict(whole.get("attributes", {}) if self.zarr_format == 3 else whole)

    def set_attrs(self, path: str, **changed: Any) -> None:
        """Change some attributes; those that are None go."""
        found = self.attrs(path)
        attrs = {name: value for name, value in {**found, **changed}.items() if value is not None}
        if attrs == found:
            return
        key = attrs_key(path, self.zarr_format)
        if self.zarr_format == 3:
            self.staged.edit(key, attributes=attrs)
        else:
            self.staged.put(key, as_json(attrs))

    def name_axes(self, path: str, dims: list[str]) -> None:
        """Write dimension names into the documents of an array; zarr has no call that does so."""
        if self.zarr_format == 3:
            self.staged.edit(join(path, "zarr.json"), dimension_names=dims)
            return
        document = self.staged.document(join(path, ".zarray")) or {}
        if document.get("fill_value") not in (None, "NaN"):
            # xarray would take it for a mask; it is zero, which is what a missing chunk reads as without one, too
            self.staged.put(join(path, ".zarray"), as_json({**document, "fill_value": None}))
        self.set_attrs(path, _ARRAY_DIMENSIONS=dims)

    def require_parents(self) -> None:
        """Groups above the one that is written: without them nobody finds it."""
        version: Any = self.zarr_format
        for length in range(len(self.target.prefix)):
            above = "/".join(self.target.prefix[:length])
            zarr.open_group(self.staged, path=above, mode="a", use_consolidated=False, zarr_format=version)

    def create(self, key: Key, group: NewGroup) -> None:
        """Stage the new arrays of one group, and note their values."""
        path = join(self.path, *key)
        attrs = {**self.attrs(path), **group.ds.attrs}
        if group.batch_record is not None:
            attrs[BATCH_ATTR] = dict(group.batch_record)
        ds = group.ds.assign_attrs(attrs)
        found = zarr_group_blocks(ds, self.staged, path, encoding=group.encoding, zarr_format=self.zarr_format)
        for values, array, region in found:
            self.created.append(array.path)
            self.blocks.append((values, on_store(array, self.staged.inner), full_region(array, region)))

    # -- carrying it out -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Write all that is in memory."""
        if is_transactional(self.staged.inner):
            self.finish()  # such a store takes chunks of arrays that it knows, and shows nothing before it is committed
        else:
            each_at_once(self._remove, self.created)
        if self.overwritten:
            self._mark({"kind": "overwrite", "arrays": sorted(self.overwritten)})
        write_in_memory(self.blocks)
        each_at_once(lambda key: set_bytes(self.staged.inner, key, self.texts[key]), list(self.texts))

    async def _remove(self, path: str) -> None:
        """Chunks that a writer has left who was killed: they would pass for those of the new array."""
        await self.staged.inner.delete_dir(path)

    def _mark(self, content: Mapping[str, Any]) -> None:
        """Say in the store what is being overwritten, until the change is committed."""
        keys = [attrs_key(self.path, self.zarr_format)]
        if self.zarr_format == 2:  # readers from far away see this one alone
            keys.append(join(self.root, ".zmetadata"))
        for key in keys:
            held = run(get_bytes(self.staged.inner, key))
            whole = {} if held is None else json.loads(held)
            if held is None and key.endswith(".zmetadata"):
                continue
            inside = whole
            if key.endswith(".zmetadata"):
                inside = whole["metadata"].setdefault(join(self.path.removeprefix(self.root), ".zattrs"), {})
            elif self.zarr_format == 3:
                inside = whole.setdefault("attributes", {})
            inside[INCOMPLETE_ATTR] = dict(content)
            self.staged.put(key, self.staged.documents.get(key, held))  # without the mark
            marked = as_json(whole)
            self.staged.found[key] = marked
            run(set_bytes(self.staged.inner, key, marked))

    def finish(self) -> None:
        """Commit the documents: from here on readers see the change."""
        version: Any = self.zarr_format
        parts = self.path.split("/")
        for length in range(len(parts), -1, -1):
            path = "/".join(parts[:length])
            is_outermost = path == self.root
            if self._was_consolidated(path) or (is_outermost and self.consolidate and self._can_consolidate):
                zarr.consolidate_metadata(self.staged, path=path or None, zarr_format=version)
            if is_outermost:
                break
        self.staged.commit(self.target.name, self.root)

    @property
    def _can_consolidate(self) -> bool:
        return self.staged.inner.supports_consolidated_metadata

    def _was_consolidated(self, path: str) -> bool:
        self.staged.document(join(path, "zarr.json" if self.zarr_format == 3 else ".zmetadata"))
        found = self.staged.found[join(path, "zarr.json" if self.zarr_format == 3 else ".zmetadata")]
        return found is not None and (
            self.zarr_format == 2 or json.loads(found).get("consolidated_metadata") is not None
        )

    def abandon(self) -> None:
        """Remove the chunks of new arrays and texts, unless documents that could not be put back name them."""
        with suppress(Exception):
            if not is_transactional(self.staged.inner) and pending(self.staged.inner, self.root) is None:
                each_at_once(self._remove, self.created)
                each_at_once(self.staged.inner.delete, list(self.texts))


def carry_out(change: Change, *, progress: bool) -> None:
    """Write and commit, in a store that has been taken. Where it fails, readers see the store as it was."""
    with zarr_writes():
        try:
            change.begin()
            held = held_by_dask(change.blocks)
            if held:
                compute_all([writes(held, _nothing)], progress=progress)
            change.finish()
        except BaseException:
            await_requests()
            change.abandon()
            raise


def delayed(change: Change) -> Any:
    """A ``Delayed`` that takes the store, writes and commits."""
    return writes(held_by_dask(change.blocks), partial(_finish, change), partial(_begin, change))


def _begin(change: Change) -> Taken:
    held = Taken(change.staged.inner, change.target.name, change.root)
    with zarr_writes():
        change.staged.check(change.target.name)
        change.begin()
    return held


def _finish(change: Change, held: Taken) -> None:
    with zarr_writes():
        change.finish()
    held.release()


def _nothing(first: Any) -> None:
    return None


# -- templates ---------------------------------------------------------------------------------------------------------


def settle(target: ZarrTarget, root: str, consolidate: bool, first: Any = None, *, all_written: bool = False) -> None:
    """Remove the mark of a template of which nothing is missing any more.

    Writers of other regions may come to the same end at the same time; each does the same.
    """
    path = "/".join(target.prefix)
    group = zarr.open_group(target.store, path=path, mode="r", use_consolidated=False)
    mark = mark_of(group)
    if mark is None or mark.get("kind") != "create" or not mark.get("created"):
        return
    if not all_written and unwritten(group, mark):
        return
    with taken(target.store, target.name, root), zarr_writes():
        change = Change(Staged(target.store), target, root, int(group.metadata.zarr_format), consolidate)
        change.set_attrs(path, **{INCOMPLETE_ATTR: None})
        change.finish()


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
