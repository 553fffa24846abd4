"""A zarr store that is to be changed: what is in it, what is to be written where, and its records afterwards."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
import zarr

from ..core.metadata import ARRAY_ATTR, NON_TENSOR_ATTR, UNBATCHED_NAME, is_pickled, own_array_record
from ..core.model import GroupBatch, Inference, Key
from ..dataset.record import infer_dataset
from ..opening.datasets import OpenOptions, open_flat
from ..stores.zarr_completeness import is_json, kept_texts, mark_of
from ..stores.zarr_private import unpickles
from ..stores.zarr_store import ZarrGroupStore
from .lazy_sources import reads_from
from .plan import Source
from .running import compute_all
from .store_fit import fit
from .stored_form import contiguous
from .streaming import streamed
from .zarr_create import is_consolidated
from .zarr_finish import Finish, delayed_finish, finish, mark, settle_mark, zarr_writes
from .zarr_target import ZarrTarget
from .zarr_writer import ZarrOptions


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
    paths
        Of the arrays, below the group that is changed.
    """

    regions: list[tuple[zarr.Array[Any], tuple[int, ...] | None, tuple[slice, ...], xr.Variable]] = field(
        default_factory=list
    )
    texts: dict[Key, xr.Variable] = field(default_factory=dict)
    paths: set[str] = field(default_factory=set)


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
    with warnings.catch_warnings():
        # whoever completes a store knows that it is not complete
        warnings.filterwarnings("ignore", message=".*the store is not complete")
        ds = open_flat(reader, OpenOptions(nested=True))
    with zarr_writes():
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
    change.paths.add("/".join(key))
    encoded = fit(name, streamed(new), old, array, there.where)
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


def write_change(
    change: Change,
    there: There,
    step: Finish,
    options: ZarrOptions,
    marked: Mapping[str, Any],
    created: Sequence[Any] = (),
) -> Any:
    """Resize, write what is in memory, then what dask holds as one graph, then finish.

    Where that fails, arrays that were grown get their old shape back, so that no row of it passes for data. A mark says
    meanwhile what is being done, for the case that the process dies.

    Parameters
    ----------
    marked
        The mark, without the names of the arrays; empty where it has been set.
    created
        What writes arrays that have just been created.

    Returns
    -------
    dask.delayed.Delayed or None
        With ``compute=False`` what writes the rest, and finishes.
    """
    names = sorted({*change.paths, *("/".join(key) for key in change.texts)})
    grown = [(array, tuple(array.shape)) for array, shape, *_ in change.regions if shape is not None]
    if marked and names:
        mark_there(there, step, {**marked, "arrays": names})
    try:
        stored = [*created, *_write_regions(change, there)]
        if options.compute:
            compute_all(stored, progress=options.progress)
        # last, since a dask graph can fail while it is computed
        if change.texts:
            from .json_texts import rewrite_texts

            rewrite_texts(change.texts, there)
    except BaseException:
        with zarr_writes():
            for array, shape in grown:
                array.resize(shape)
        if marked:
            take_back(there, step)
        raise
    if not options.compute:
        return delayed_finish(step, stored)
    finish(step)
    return None


def mark_there(there: There, step: Finish, content: Mapping[str, Any]) -> None:
    """Mark the store, with the JSON texts that may be written anew: of those, a process that dies would leave nothing.

    The group is opened anew: it keeps the attributes that it had, and would write them back without the mark.
    """
    texts = whole_texts(there.root, [*content["arrays"], UNBATCHED_NAME])
    mark(step, {**content, "texts": texts} if texts else content)
    there.root = step.open()


def whole_texts(root: zarr.Group, paths: Sequence[str]) -> dict[str, str]:
    """The JSON texts among some arrays of a group; what a write that did not finish has kept of those it left in pieces."""
    found = {path: text.decode() for path, text in kept_texts(root).items()}
    for path in paths:
        array = root.get(path)
        if not isinstance(array, zarr.Array) or NON_TENSOR_ATTR not in array.attrs or unpickles(array):
            continue
        text = np.asarray(array[...]).tobytes()
        if not is_pickled(dict(array.attrs)) and is_json(text):
            found[path] = text.decode()
    return found


def take_back(there: There, step: Finish) -> None:
    """Remove the mark of a change after which the store is as it was."""
    finish(replace(step, consolidate=there.consolidated, records={}, batches={}))


def write_region(change: Change, there: There, step: Finish, options: ZarrOptions, region: Mapping[str, slice]) -> Any:
    """Write to a part of the arrays; their metadata stay, so that many processes can do so at the same time."""
    stored = _write_regions(change, there)
    names = sorted(change.paths)
    if not options.compute:
        from dask.delayed import delayed

        settle = partial(_settle_after, step, dict(region), names)
        return delayed(settle, pure=False)(stored)
    compute_all(stored, progress=options.progress)
    if change.texts:
        from .json_texts import rewrite_texts

        rewrite_texts(change.texts, there)
        finish(step, unmark=False)
    settle_mark(step, region, names)
    return None


def _settle_after(step: Finish, region: Mapping[str, slice], names: list[str], results: Any) -> None:
    settle_mark(step, region, names)


def _write_regions(change: Change, there: There) -> list[Any]:
    """Write what is in memory; returns a ``Delayed`` for what dask holds."""
    sources, targets, regions = [], [], []
    found = mark_of(there.root)
    with zarr_writes():
        for array, shape, where, variable in change.regions:
            if shape is not None:
                array.resize(shape)
            if found is not None and found.get("kind") == "create":
                # as long as the mark is there, a chunk that is missing counts as not written
                array = array.with_config({"write_empty_chunks": True})
            if variable.chunks is None:
                if 0 not in variable.shape:
                    array[where] = np.asarray(variable.values)
                continue
            sources.append(_aligned(variable.data, where, array.shards or array.chunks))
            targets.append(array)
            regions.append(where)
        if not sources:
            return []
        import dask.array

        store: Any = dask.array.store
        return [store(sources, targets, regions=regions, lock=False, compute=False)]


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


def finish_of(
    there: There,
    target: ZarrTarget,
    options: ZarrOptions,
    batches: Mapping[Key, GroupBatch],
    records: Mapping[Key, Mapping[str, Any]] | None = None,
) -> Finish:
    """The last step of a change; consolidated metadata that was there is made true again even where none is asked for."""
    consolidate = options.consolidated is not False or there.consolidated
    return Finish(target.store, target.prefix, options.storage_options, consolidate, records or {}, batches)
