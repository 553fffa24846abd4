"""A zarr store that is to be changed: what is in it, what is to be written where, and its records afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr
import zarr

from ..core.metadata import ARRAY_ATTR, BATCH_ATTR, NON_TENSOR_ATTR, STACK_ATTR, batch_record, own_array_record
from ..core.model import GroupBatch, Inference, Key
from ..dataset.describe import key_of
from ..dataset.entries import td_names
from ..dataset.record import infer_dataset
from ..opening.datasets import OpenOptions, open_flat
from ..stores.zarr_private import walk_members
from ..stores.zarr_store import ZarrGroupStore
from .lazy_sources import reads_from
from .plan import Source
from .store_fit import check_same, fit
from .stored_form import contiguous
from .zarr_create import is_consolidated, refresh_consolidated
from .zarr_target import ZarrTarget
from .zarr_writer import ZarrOptions, quiet


@dataclass
class There:
    """The store that is changed.

    Attributes
    ----------
    ds
        What the engine makes of it, all groups as one Dataset.
    inference
        The batch of `ds`.
    root
        The group, open for writing.
    where
        How messages call it.
    consolidated
        Whether it had consolidated metadata.
    """

    ds: xr.Dataset
    inference: Inference
    root: zarr.Group
    where: str
    consolidated: bool

    def member(self, key: Key) -> zarr.Array[Any] | None:
        """The array at a path; None where the variable is kept in the entry ``_unbatched``."""
        found = self.root.get("/".join(key))
        return found if isinstance(found, zarr.Array) else None


@dataclass
class Change:
    """What is to be written: regions of arrays, and new contents of JSON texts.

    Attributes
    ----------
    regions
        Array, new shape or None, where to write, what.
    texts
        By path: a variable whose values are kept as JSON, with its new values.
    """

    regions: list[tuple[zarr.Array[Any], tuple[int, ...] | None, tuple[slice, ...], xr.Variable]] = field(
        default_factory=list
    )
    texts: dict[Key, xr.Variable] = field(default_factory=dict)


def open_there(target: ZarrTarget, options: ZarrOptions) -> There:
    """Open the group at a target through the engine, and for writing."""
    prefix = "/".join(target.prefix)
    reader = ZarrGroupStore.open(
        target.store,
        description=target.description,
        root=prefix,
        consolidated=False,
        storage_options=options.storage_options,
    )
    ds = open_flat(reader, OpenOptions(nested=True))
    with quiet():
        root = zarr.open_group(
            target.store, path=prefix, mode="r+", use_consolidated=False, storage_options=options.storage_options
        )
    return There(ds, infer_dataset(ds), root, target.name, is_consolidated(target, options))


def settle_lazy(source: Source, there: There, target: ZarrTarget) -> None:
    """Load what would be read from arrays while they are written; data of dask that would is refused.

    Coordinates come along with whatever is written, and are small: they are always loaded.

    Raises
    ------
    ValueError
        For variables that dask would read from the store.
    """
    refused = []
    written = {"/".join((*target.prefix, str(name))) for name in source.flat.variables if name in there.ds.variables}
    for node in source.nodes.values():
        for name, variable in node.variables.items():
            if not reads_from(variable, target, written):
                continue
            if variable.chunks is not None and name not in node.coords:
                refused.append(node.names[name])
                continue
            loaded = xr.Variable(variable.dims, variable.values, variable.attrs, fastpath=True)
            loaded.encoding = variable.encoding
            node.variables[name] = loaded
    if refused:
        raise ValueError(
            f"{target.name}: dask would read {refused[:5]} from the store that is written; load them first "
            "(ds.load()), or write to "
            f"another store"
        )


def check_sizes(name: str, new: xr.Variable, old: xr.Variable, free: Mapping[str, int | None], where: str) -> None:
    """Raise ``ValueError`` unless a variable fits what is there; `free` has other sizes for some dims, None for any."""
    check_same(name, new, old, where)
    for dim, found, expected in zip(new.dims, new.shape, old.shape, strict=True):
        wanted = free.get(str(dim), expected)
        if wanted is not None and found != wanted:
            raise ValueError(f"{where}: variable {name!r} needs size {wanted} along {dim!r}, found {found}")


def plan_region(
    change: Change,
    there: There,
    key: Key,
    name: str,
    new: xr.Variable,
    where: tuple[slice, ...],
    shape: tuple[int, ...] | None,
) -> None:
    """Plan to write `new` at `where` (by the axes of the variable) of what is at `key`, grown to `shape` first."""
    old = there.ds.variables[name]
    array = there.member(key)
    if array is None or NON_TENSOR_ATTR in array.attrs:
        change.texts[key] = _patched(old, new, where, shape)
        return
    encoded = fit(name, new, old, array, there.where)
    order = own_array_record(array.attrs.get(ARRAY_ATTR)).get("order") or list(range(new.ndim))
    axes = [order.index(axis) for axis in range(new.ndim)]
    stored_where = tuple(where[axis] for axis in axes)
    stored_shape = None if shape is None else tuple(shape[axis] for axis in axes)
    change.regions.append((array, stored_shape, stored_where, contiguous(encoded)))


def _patched(
    old: xr.Variable, new: xr.Variable, where: tuple[slice, ...], shape: tuple[int, ...] | None
) -> xr.Variable:
    values = np.asarray(new.values)
    there = np.asarray(old.values)
    dtype = there.dtype if there.dtype.kind not in "UST" else np.result_type(there.dtype, values.dtype)
    held = np.empty(there.shape if shape is None else shape, dtype)
    held[tuple(slice(0, size) for size in there.shape)] = there
    held[where] = values
    changed = xr.Variable(old.dims, held, old.attrs, fastpath=True)
    changed.encoding = old.encoding
    return changed


def write_change(change: Change, there: There, *, compute: bool) -> list[Any]:
    """Resize, then write: what is in memory at once, dask arrays as one graph.

    Where that fails, arrays that were grown get their old shape back, so that no row of it passes for data.
    """
    grown = [(array, tuple(array.shape)) for array, shape, *_ in change.regions if shape is not None]
    try:
        return _write_change(change, there, compute=compute)
    except BaseException:
        with quiet():
            for array, shape in grown:
                array.resize(shape)
        raise


def _write_change(change: Change, there: There, *, compute: bool) -> list[Any]:
    sources, targets, regions = [], [], []
    with quiet():
        for array, shape, where, variable in change.regions:
            if shape is not None:
                array.resize(shape)
            if variable.chunks is None:
                if 0 not in variable.shape:
                    array[where] = np.asarray(variable.values)
                continue
            sources.append(_aligned(variable.data, where, array.shards or array.chunks))
            targets.append(array)
            regions.append(where)
        stored = []
        if sources:
            import dask.array

            store: Any = dask.array.store
            stored = [store(sources, targets, regions=regions, lock=False, compute=compute)]
        # last, since a dask graph can fail while it is computed
        if change.texts:
            from .json_texts import rewrite_texts

            rewrite_texts(change.texts, there)
    return [] if compute else stored


def _aligned(data: Any, where: tuple[slice, ...], chunks: tuple[int, ...]) -> Any:
    """Rechunk so that each chunk of the store is written by one task."""
    wanted = []
    for part, sizes, chunk in zip(where, data.chunks, chunks, strict=True):
        step = max(chunk, -(-max(sizes, default=1) // chunk) * chunk)
        length = part.stop - part.start
        first = min(length, (step - part.start % chunk) if part.start % chunk else step)
        rest = length - first
        wanted.append(tuple(size for size in (first, *[step] * (rest // step), rest % step) if size) or (0,))
    return data.rechunk(tuple(wanted))


def finish_update(there: There, batches: Mapping[Key, GroupBatch], target: ZarrTarget, options: ZarrOptions) -> None:
    """Make true what the store records: batches, where a group has one, shapes of stacks, consolidated metadata."""
    with quiet():
        groups = [
            ((), there.root),
            *((key_of(path), node) for path, node in walk_members(there.root) if isinstance(node, zarr.Group)),
        ]
        for key, group in groups:
            batch = next((batches[key[:n]] for n in range(len(key), -1, -1) if key[:n] in batches), None)
            if batch is not None and BATCH_ATTR in group.attrs:
                _record(group, batch)
        refresh_consolidated(target, options, had=there.consolidated)


def _record(group: zarr.Group, batch: GroupBatch) -> None:
    """Record the batch of one group; recorded names stay, since the flat view may call its dims otherwise."""
    found: Any = group.attrs[BATCH_ATTR]
    names = found.get("names") if isinstance(found, Mapping) else None
    if names is None or len(names) != len(batch.sizes):
        names = td_names(batch)
    record = batch_record(batch.sizes, names)
    if found != record:
        group.attrs[BATCH_ATTR] = record
    sizes: Any = list(batch.sizes)
    for _, array in group.arrays():
        if array.attrs.get(STACK_ATTR, sizes) != sizes:
            array.attrs[STACK_ATTR] = sizes
