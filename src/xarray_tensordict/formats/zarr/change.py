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

import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from ..._compat.xarray import zarr_group_blocks
from ..._compat.zarr import await_requests, each_at_once, is_transactional, join, on_store
from ...core.metadata import BATCH_ATTR, INCOMPLETE_ATTR
from ...core.model import Key
from ...warnings import ZARR_SAYS, quiet
from ...writing.running import compute_all
from .new_arrays import NewGroup
from .transaction import Staged, Taken, as_json, attrs_key, mark_of, pending, taken, unwritten

if TYPE_CHECKING:
    from .write import ZarrTarget

Region = tuple[slice, ...]
Block = tuple[Any, "zarr.Array[Any]", Region]
"""Values in memory or held by dask, the array, and where in it they go."""


@dataclass
class Change:
    """What is to be written to a store.

    Attributes
    ----------
    target
        The group that is changed.
    zarr_format
        2 or 3.
    consolidate
        Whether the metadata of the outermost group is consolidated even where it was not before.
    root
        The path of the outermost group.
    staged
        The store, with the documents as they are to be.
    blocks
        Values that go into arrays.
    texts
        The keys of chunks of JSON texts; none of them is one that the documents name now.
    created
        The paths of arrays that are new.
    overwritten
        The paths of arrays that get other values where there are some, as the mark calls them.
    """

    target: ZarrTarget
    zarr_format: int
    consolidate: bool = False
    blocks: list[Block] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    created: list[str] = field(default_factory=list)
    overwritten: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.root = self.target.root()
        self.staged = Staged(self.target.store)

    @property
    def path(self) -> str:
        """The path of the group that is changed."""
        return "/".join(self.target.prefix)

    @property
    def held(self) -> list[Block]:
        """The blocks that dask has to compute."""
        return [block for block in self.blocks if hasattr(block[0], "dask")]

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
        """Groups above the one that is written: without them no reader finds it."""
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
            parts = region or (slice(None),) * array.ndim
            whole = tuple(slice(*part.indices(size)[:2]) for part, size in zip(parts, array.shape, strict=True))
            self.blocks.append((values, on_store(array, self.staged.inner), whole))

    # -- carrying it out -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Write all that is in memory."""
        if is_transactional(self.staged.inner):
            self.finish()  # such a store takes chunks of arrays that it knows, and shows nothing before it is committed
        else:
            each_at_once(self._remove, self.created)
        if self.overwritten:
            self._mark_overwritten()
        self.write_in_memory()

    def write_in_memory(self) -> None:
        """Write what dask does not hold."""
        for values, array, region in self.blocks:
            if not hasattr(values, "dask") and 0 not in values.shape:
                array[region] = np.asarray(values)

    def compute(self, *, progress: bool) -> None:
        """Write what dask holds."""
        if self.held:
            compute_all([writes(self.held)], progress=progress)

    async def _remove(self, path: str) -> None:
        """Chunks that a writer has left who was killed: they would pass for those of the new array."""
        await self.staged.inner.delete_dir(path)

    def _mark_overwritten(self) -> None:
        """Mark in the store what is being overwritten, until the change is committed: the mark is a change of its own."""
        key = attrs_key(self.path, self.zarr_format)
        self.staged.document(key)
        self.staged.documents.setdefault(key, self.staged.found[key])  # which is committed without the mark
        marking = Change(self.target, self.zarr_format)
        marking.staged.found = self.staged.found  # documents are read once
        mark = {"kind": "overwrite", "arrays": sorted(self.overwritten)}
        marking.set_attrs(self.path, **{INCOMPLETE_ATTR: mark})
        marking.finish()
        self.staged.found |= marking.staged.found

    def finish(self) -> None:
        """Commit the documents: from here on readers see the change."""
        version: Any = self.zarr_format
        parts = self.path.split("/")
        for length in range(len(parts), -1, -1):
            path = "/".join(parts[:length])
            is_outermost = path == self.root
            asked = is_outermost and self.consolidate and self.staged.inner.supports_consolidated_metadata
            if asked or self._was_consolidated(path):
                zarr.consolidate_metadata(self.staged, path=path or None, zarr_format=version)
            if is_outermost:
                break
        self.staged.commit(self.target.name, self.root)

    def _was_consolidated(self, path: str) -> bool:
        key = join(path, "zarr.json" if self.zarr_format == 3 else ".zmetadata")
        self.staged.document(key)
        found = self.staged.found[key]
        if self.zarr_format == 2 or found is None:
            return found is not None
        return (self.staged.document(key) or {}).get("consolidated_metadata") is not None

    def abandon(self) -> None:
        """Remove the chunks of new arrays and texts, unless documents that could not be put back name them."""
        with suppress(Exception):
            if not is_transactional(self.staged.inner) and pending(self.staged.inner, self.root) is None:
                each_at_once(self._remove, self.created)
                each_at_once(self.staged.inner.delete, self.texts)


def carry_out(change: Change, *, progress: bool) -> None:
    """Write and commit, in a store that has been taken. Where it fails, readers see the store as it was."""
    with zarr_writes():
        try:
            change.begin()
            change.compute(progress=progress)
            change.finish()
        except BaseException:
            await_requests()
            change.abandon()
            raise


def delayed(change: Change) -> Any:
    """A ``Delayed`` that takes the store, writes and commits."""
    held = change.held
    change.blocks = [block for block in change.blocks if not hasattr(block[0], "dask")]
    # the store is taken by a task of its own: where its result cannot be handed on, nothing has been written
    take = partial(Taken, change.staged.inner, change.target.name, change.root)
    return writes(held, partial(_finish, change), partial(_begin, change), take)


def _begin(change: Change, held: Taken) -> None:
    try:
        with zarr_writes():
            change.staged.check(change.target.name)
            change.begin()
    except BaseException:
        held.release()  # the traceback would keep it
        raise


def _finish(change: Change, held: Taken, *tasks: Any) -> None:
    try:
        with zarr_writes():
            change.finish()
    finally:
        held.release()


def settle(target: ZarrTarget, consolidate: bool, *tasks: Any, all_written: bool = False) -> None:
    """Remove the mark of a template of which nothing is missing any more.

    Writers of other regions may come to the same end at the same time; each does the same. `tasks` of dask come before it.
    """
    path = "/".join(target.prefix)
    group = zarr.open_group(target.store, path=path, mode="r", use_consolidated=False)
    mark = mark_of(group)
    if mark is None or mark.kind != "create" or not mark.created:
        return
    if not all_written and unwritten(group, mark.arrays):
        return
    with taken(target.store, target.name, target.root()), zarr_writes():
        change = Change(target, int(group.metadata.zarr_format), consolidate)
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


# -- blocks of dask ----------------------------------------------------------------------------------------------------


def writes(
    blocks: Sequence[Block],
    last: Callable[..., Any] | None = None,
    first: Callable[[Any], Any] | None = None,
    take: Callable[[], Any] | None = None,
) -> Any:
    """One ``Delayed`` that writes blocks of dask.

    Parameters
    ----------
    take
        What it gives is kept until the end, and released where a block fails.
    first
        Called before any block is written, with what `take` gave.
    last
        Called when all is written, with what `take` gave.
    """
    from dask.array.core import Array
    from dask.delayed import Delayed
    from dask.highlevelgraph import HighLevelGraph

    class Writes(Delayed):
        """Optimised together with arrays: a block that others need, too, is computed once."""

        __dask_optimize__ = staticmethod(Array.__dask_optimize__)

        def __reduce__(self) -> Any:
            return Delayed, (self._key, self.dask)

    name = f"write-zarr-{secrets.token_hex(8)}"
    layer: dict[Any, Any] = {(name, "taken"): (_called, take), (name, "first"): (_called, first, (name, "taken"))}
    sources = []
    written = []
    for number, (values, array, region) in enumerate(blocks):
        source = values.rechunk(_aligned(values.chunks, region, array.shards or array.chunks))
        sources.append(source)
        layer[(name, "array", number)] = (_given, array, (name, "first"))
        for index, place in zip(np.ndindex(source.numblocks), _places(source.chunks, region), strict=True):
            key = (name, number, *index)
            layer[key] = (_write, (name, "array", number), place, (source.name, *index))
            written.append(key)
    layer[name] = (_called, last, (name, "taken"), (name, "first"), written)
    graph: Any = HighLevelGraph.from_collections(name, layer, dependencies=sources)
    make: Any = Writes
    return make(name, graph)


def _called(function: Callable[..., Any] | None, *given: Any) -> Any:
    return None if function is None else function(*given)


def _given(array: Any, first: Any) -> Any:
    return array


def _write(array: Any, place: tuple[tuple[int, int], ...], values: Any) -> None:
    array[tuple(slice(*part) for part in place)] = np.asarray(values)


def _places(chunks: Sequence[Sequence[int]], region: Region) -> Iterable[tuple[tuple[int, int], ...]]:
    """Where each block goes, as starts and stops: dask would take slices in a tuple for a task."""
    axes = []
    for sizes, part in zip(chunks, region, strict=True):
        ends = list(itertools.accumulate(sizes, initial=part.start))
        axes.append(list(itertools.pairwise(ends)))
    return itertools.product(*axes)


def _aligned(blocks: Sequence[Sequence[int]], region: Region, chunks: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Blocks such that each chunk of the store is written by one task."""
    sizes_along = []
    for part, sizes, chunk in zip(region, blocks, chunks, strict=True):
        step = max(chunk, -(-max(sizes, default=1) // chunk) * chunk)
        length = part.stop - part.start
        first = min(length, (step - part.start % chunk) if part.start % chunk else step)
        rest = length - first
        sizes_along.append(tuple(size for size in (first, *[step] * (rest // step), rest % step) if size) or (0,))
    return tuple(sizes_along)
