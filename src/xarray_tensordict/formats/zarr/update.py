"""What a change of a zarr store consists of: rows that are appended, a region, variables that are added or overwritten.

Everything is checked against the store, and staged; no chunk is written here. Existing arrays are written to through zarr, with
values encoded as the array holds them, so that stores without dimension names (tensordict's own) can be appended to.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
import zarr

from ..._compat.zarr import on_store
from ...core.metadata import (
    ARRAY_ATTR,
    BATCH_ATTR,
    INCOMPLETE_ATTR,
    NON_TENSOR_ATTR,
    STACK_ATTR,
    batch_record,
    own_array_record,
)
from ...core.model import GroupBatch, Key
from ...dataset.entries import td_names
from ...dataset.open import OpenOptions, open_flat
from ...dataset.record import infer_dataset
from ...quiet import quiet
from ...writing.additions import plan_added
from ...writing.adopt_names import adopt_names, grown_dims
from ...writing.append_checks import check_append, same_values
from ...writing.blockwise import contiguous
from ...writing.lazy_sources import reads_from
from ...writing.plan import Source, unbatched_object
from ...writing.store_fit import check_sizes, fit
from ...writing.stored_form import Layout
from ...writing.streaming import stream_source, streamed
from ..fingerprint import ChangedError
from .blocks import cuts_chunks
from .change import Change
from .completeness import mark_of, tell_incomplete
from .json_texts import stage_texts
from .new_arrays import ZarrOptions, new_groups
from .open import walk_members
from .read import ZarrGroupStore
from .target import ZarrTarget
from .transaction import Staged, join


@dataclass
class There:
    """The store that is changed, and the change.

    Attributes
    ----------
    ds
        What the engine makes of it, all groups as one Dataset.
    batches
        The batch of each group.
    arrays, groups
        The members that zarr opens, by path.
    where
        How messages call it.
    change
        What is to be written.
    texts
        Variables whose values are kept as JSON, with their new values.
    """

    ds: xr.Dataset
    batches: Mapping[Key, GroupBatch]
    arrays: dict[str, zarr.Array[Any]]
    groups: dict[str, zarr.Group]
    where: str
    change: Change
    texts: dict[Key, xr.Variable] = field(default_factory=dict)

    @property
    def inference(self) -> Any:
        """The batch of all groups."""
        return infer_dataset(self.ds)

    @property
    def mark(self) -> Mapping[str, Any] | None:
        """The mark of a store that is not complete."""
        return mark_of(self.groups[""])

    def member(self, key: Key) -> zarr.Array[Any] | None:
        """The array of a variable; None where it is kept as JSON: in a text of its own, or in the entry ``_unbatched``."""
        found = self.arrays.get("/".join(key))
        return None if found is None or NON_TENSOR_ATTR in found.attrs else found


def open_there(target: ZarrTarget, options: ZarrOptions, zarr_format: int) -> There:
    """Open the group at a target through the engine, and for writing."""
    path, root = "/".join(target.prefix), target.root()
    # those who complete a store know that it is not complete
    with quiet((re.escape(target.description) + ".*the store is not complete", UserWarning)):
        reader = ZarrGroupStore.open(target.store, description=target.description, root=path, consolidated=False)
        ds = open_flat(reader, OpenOptions(nested=True))
    group = zarr.open_group(target.store, path=path, mode="r", use_consolidated=False)
    members = dict(walk_members(group))
    arrays = {name: node for name, node in members.items() if isinstance(node, zarr.Array)}
    groups = {"": group, **{name: node for name, node in members.items() if isinstance(node, zarr.Group)}}
    change = Change(Staged(target.store), target, root, zarr_format, options.consolidated is not False)
    return There(ds, infer_dataset(ds).groups if ds.variables else {}, arrays, groups, target.name, change)


def settle_lazy(source: Source, there: There) -> None:
    """Load what would be read from arrays while they are written; data of dask that would is refused.

    Coordinates come along with whatever is written, and are small: they are always loaded.

    Raises
    ------
    ValueError
        For variables that dask would read from the store.
    """
    refused = []
    place = there.change.target.place
    written = [place.below(str(name)) for name in source.flat.variables if name in there.ds.variables]
    for node in source.nodes.values():
        for name, variable in node.variables.items():
            if not reads_from(variable, written):
                continue
            if variable.chunks is not None and name not in node.coords:
                refused.append(node.names[name])
                continue
            loaded = xr.Variable(variable.dims, variable.values, variable.attrs, fastpath=True)
            loaded.encoding = variable.encoding
            node.variables[name] = loaded
    if refused:
        raise ValueError(
            f"{there.where}: dask would read {refused[:5]} from the store that is written; load them first "
            "(ds.load()), or write to another store"
        )


# -- append ------------------------------------------------------------------------------------------------------------


def append(source: Source, there: There, append_dim: str) -> None:
    """Plan to add rows: all that has the dim grows.

    Raises
    ------
    ValueError
        For rows that do not fit.
    """
    if there.mark is not None:
        told = tell_incomplete(there.groups[""]) or "the store is marked as not complete"
        raise ValueError(f"{told}. Nothing is appended to {there.where} before that")
    source, there.ds, dims = grown_dims(source, there.ds, append_dim)
    check_append(source, there.ds, dims, there.where)
    for key, node in source.nodes.items():
        for local, variable in node.variables.items():
            name, flat = node.names[local], source.flat.variables[node.names[local]]
            old = there.ds.variables[name]
            axis = next((number for number, dim in enumerate(flat.dims) if dim in dims), None)
            if axis is None:
                continue
            start = old.shape[axis]
            stop = start + variable.shape[axis]
            where = tuple(
                slice(start, stop) if number == axis else slice(0, size) for number, size in enumerate(old.shape)
            )
            shape = tuple(stop if number == axis else size for number, size in enumerate(old.shape))
            _write_part(there, (*key, local), name, variable, where, shape)
    added = {dim: int(source.flat.sizes[dim]) for dim in dims}
    there.batches = grown(infer_dataset(there.ds).groups, added)
    stage_texts(there.texts, {}, there)
    _record_batches(there)


def grown(batches: Mapping[Key, GroupBatch], added: Mapping[str, int]) -> dict[Key, GroupBatch]:
    """The batch of each group after an append."""
    return {
        key: replace(
            batch, sizes=tuple(s + added.get(str(dim), 0) for dim, s in zip(batch.dims, batch.sizes, strict=True))
        )
        for key, batch in batches.items()
    }


def _write_part(
    there: There, key: Key, name: str, new: xr.Variable, where: tuple[slice, ...], shape: tuple[int, ...] | None
) -> None:
    """Plan to write `new` at `where` (by the axes of the variable) of what is at `key`, grown to `shape` first."""
    old = there.ds.variables[name]
    array = there.member(key)
    if array is None:
        there.texts[key] = _patched(old, new, where, shape)
        return
    encoded = contiguous(fit(name, streamed(new), old, array, there.where))
    order = own_array_record(array.attrs.get(ARRAY_ATTR)).get("order") or list(range(new.ndim))
    axes = [order.index(axis) for axis in range(new.ndim)]
    if shape is not None:
        _grow(there, array, tuple(shape[axis] for axis in axes))
    target = on_store(array, there.change.staged.inner, None if shape is None else tuple(shape[axis] for axis in axes))
    if there.mark is not None and there.mark.get("kind") == "create":
        # as long as the mark is there, a chunk that is missing counts as not written
        target = target.with_config({"write_empty_chunks": True})
    there.change.blocks.append((encoded.data, target, tuple(where[axis] for axis in axes)))


def _grow(there: There, array: zarr.Array[Any], shape: tuple[int, ...]) -> None:
    key = join(array.path, "zarr.json" if there.change.zarr_format == 3 else ".zarray")
    document = there.change.staged.document(key)
    if document is None or tuple(document["shape"]) != array.shape:
        raise ChangedError(f"{there.where}: {array.path!r} was changed by another program just now; try again")
    there.change.staged.edit(key, shape=list(shape))


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


def _record_batches(there: There) -> None:
    """Make the recorded batch true, in every group that has a record, and the shapes of stacks.

    Recorded names stay: the flat view may have others.
    """
    for path, group in there.groups.items():
        key = tuple(part for part in path.split("/") if part)
        batch = next((there.batches[key[:n]] for n in range(len(key), -1, -1) if key[:n] in there.batches), None)
        if batch is None or BATCH_ATTR not in group.attrs:
            continue
        found: Any = group.attrs[BATCH_ATTR]
        names = found.get("names") if isinstance(found, Mapping) else None
        if names is None or len(names) != len(batch.sizes):
            names = td_names(batch)
        there.change.set_attrs(group.path, **{BATCH_ATTR: batch_record(batch.sizes, names)})
        for name, array in there.arrays.items():
            if name.rpartition("/")[0] == path and STACK_ATTR in array.attrs:
                there.change.set_attrs(array.path, **{STACK_ATTR: list(batch.sizes)})


# -- region ------------------------------------------------------------------------------------------------------------


def write_region(source: Source, there: There, region: Any) -> bool:
    """Plan to write to a part of the arrays; their metadata stay.

    Returns
    -------
    bool
        Whether it changes nothing but whole chunks, so that others may write to other chunks at the same time.

    Raises
    ------
    ValueError
        For a region that does not fit, or values of dask that would be written to parts of chunks.
    """
    source, region, _ = adopt_names(source, there.ds, region, None)
    unknown = [str(name) for name in source.flat.variables if name not in there.ds.variables]
    if unknown:
        raise ValueError(f"{there.where}: {unknown[:5]} are not there, and a region cannot add variables; drop them")
    found = _resolve_region(source, there, region)
    sizes = {dim: part.stop - part.start for dim, part in found.items()}
    for key, node in source.nodes.items():
        for local, variable in node.variables.items():
            name = node.names[local]
            flat, old = source.flat.variables[name], there.ds.variables[name]
            # an index says where things are, and is not changed by what is written there
            if flat.dims == (name,) and name in found:
                _check_region_labels(name, variable, old[found[name]], found[name], there.where)
                continue
            if not set(found) & set(map(str, flat.dims)):
                _check_left_alone(name, variable, old, found, there.where)
                continue
            check_sizes(name, flat, old, sizes, there.where)
            where = tuple(found.get(str(dim), slice(0, size)) for dim, size in zip(old.dims, old.shape, strict=True))
            _write_part(there, (*key, local), name, variable, where, None)
    cut = {array.path: cuts_chunks(array, part) for _, array, part in there.change.blocks}
    for values, array, _ in there.change.blocks:
        if cut[array.path] and hasattr(values, "dask"):
            raise ValueError(
                f"{there.where}: the region {cut[array.path]}, in {array.path!r}, and dask may write from several workers; "
                f"choose a region of whole chunks, or load the dataset"
            )
    stage_texts(there.texts, {}, there)
    return not there.texts and not any(cut.values())


def _resolve_region(source: Source, there: There, region: Any) -> dict[str, slice]:
    """The region as slices; "auto" is looked up in the index coordinates.

    Raises
    ------
    ValueError
        For dims that are not there, slices with a step, coordinates that are not found in one piece.
    """
    new, old = source.flat, there.ds
    asked = dict.fromkeys(map(str, new.dims), "auto") if region == "auto" else region
    if not isinstance(asked, Mapping):
        raise TypeError(f"region: expected slices by dim, or 'auto', found {region!r}")
    found: dict[str, slice] = {}
    for dim, part in asked.items():
        if dim not in new.dims or dim not in old.sizes:
            raise ValueError(
                f"region: {dim!r} is no dim of both the dataset {sorted(map(str, new.dims))} and the store "
                f"{sorted(map(str, old.sizes))}"
            )
        if isinstance(part, str) and part == "auto":
            part = _by_coordinate(new, old, str(dim), there.where)
        if not isinstance(part, slice) or part.step not in {1, None}:
            raise ValueError(f"region: expected a slice without a step for {dim!r}, found {part!r}")
        start, stop, _ = part.indices(int(old.sizes[dim]))
        if stop - start != new.sizes[dim]:
            raise ValueError(
                f"region: {dim!r} has size {new.sizes[dim]} in the dataset, and {part} is {max(stop - start, 0)} long"
            )
        found[str(dim)] = slice(start, stop)
    return found


def _by_coordinate(new: xr.Dataset, old: xr.Dataset, dim: str, where: str) -> slice:
    if dim not in new.variables or dim not in old.variables:
        if new.sizes[dim] != old.sizes[dim]:
            raise ValueError(
                f"{where}: region='auto' finds a region by the values of a coordinate, and {dim!r} has none; give the region "
                f"as a slice, region={{{dim!r}: slice(...)}}"
            )
        return slice(0, int(new.sizes[dim]))
    positions = pd.Index(old.variables[dim].values).get_indexer(pd.Index(new.variables[dim].values))
    if (positions == -1).any():
        missing = new.variables[dim].values[positions == -1]
        raise ValueError(
            f"{where}: region='auto': {missing[:3]} are not among the values of the coordinate {dim!r} there"
        )
    if (np.diff(positions) != 1).any():
        raise ValueError(
            f"{where}: region='auto': the values of {dim!r} are not one contiguous part of the coordinate there"
        )
    return slice(int(positions[0]), int(positions[-1]) + 1)


def _check_region_labels(name: str, new: xr.Variable, old: xr.Variable, part: slice, where: str) -> None:
    """Refuse rows whose labels are others than those of the place where they are to be written."""
    if not same_values(new, old):
        raise ValueError(
            f"{where}: the values of {name!r} are not those that the store has in the region {part.start}:{part.stop}, so the "
            f"rows would stand under other labels. Let region='auto' find their place, or drop {name!r} to write them there "
            f"all the same"
        )


def _check_left_alone(name: str, new: xr.Variable, old: xr.Variable, region: Collection[str], where: str) -> None:
    """Refuse variables that no dim of the region places anywhere, unless they are what is there."""
    if not same_values(new, old):
        raise ValueError(
            f"{where}: variable {name!r} has none of the dims of the region, {sorted(region)}, so nothing of it is written, "
            f"and its values are not those there; drop it, or overwrite it with mode='a'"
        )


# -- add and overwrite -------------------------------------------------------------------------------------------------


def add(source: Source, there: There, options: ZarrOptions, layout: Layout, *, mode: str) -> None:
    """``mode="a"`` and ``"r+"``: overwrite the variables that are there, and with "a" add the others.

    Raises
    ------
    ValueError
        For variables that do not fit what is there, or with "r+" new ones.
    """
    old = there.ds
    new = [str(name) for name in source.flat.variables if name not in old.variables]
    if new and mode == "r+":
        raise ValueError(f"{there.where}: {new[:5]} are not there, and mode='r+' adds no variables; pass mode='a'")
    _check_labels(source, old, there.where)
    for key, node in source.nodes.items():
        for local, variable in node.variables.items():
            name = node.names[local]
            if name in old.variables:
                check_sizes(name, source.flat.variables[name], old.variables[name], {}, there.where)
                _write_part(
                    there, (*key, local), name, variable, tuple(slice(0, size) for size in variable.shape), None
                )
                if there.member((*key, local)) is not None:
                    there.change.overwritten.add("/".join((*key, local)))
    stream_source(source)
    plan = plan_added(
        source, old, there.inference if old.variables else None, new, _layout(there, layout), "zarr", options.encoding
    )
    groups = new_groups(replace(plan, unbatched={}), options)
    _complete(there, {*there.change.overwritten, *("/".join(key) for key in there.texts), *new})
    stage_texts(there.texts, unbatched_object(plan), there)
    _record_batches(there)
    for key, group in groups.items():
        named = sorted(str(name) for name in group.ds.coords if name not in group.ds.dims)
        path = join(there.change.path, *key)
        words = [*str(there.change.attrs(path).get("coordinates", "")).split(), *named]
        listed = {"coordinates": " ".join(dict.fromkeys(words))} if words else {}
        records = BATCH_ATTR in there.groups[""].attrs or not there.ds.variables
        ds = group.ds.reset_coords(named).assign_attrs(listed)
        there.change.create(key, replace(group, ds=ds, batch_record=group.batch_record if records else None))


def _check_labels(source: Source, old: xr.Dataset, where: str) -> None:
    """Refuse other labels for rows that are there and are not written anew.

    Raises
    ------
    ValueError
        Nothing has been written.
    """
    for node in source.nodes.values():
        for local, variable in node.variables.items():
            name = node.names[local]
            if (
                name not in old.variables
                or old.variables[name].dims != (name,)
                or same_values(variable, old[name].variable)
            ):
                continue
            kept = [
                str(other)
                for other, v in old.variables.items()
                if name in v.dims and other not in source.flat.variables
            ]
            if kept:
                raise ValueError(
                    f"{where}: the values of {name!r} are not those that the store has, and {kept[:5]} would get them as labels, "
                    f"too. Write to a new store, drop {name!r} if the order is the same, or pass {kept[:5]} as well"
                )


def _complete(there: There, names: set[str]) -> None:
    """Remove the mark of a store that this write completes.

    Raises
    ------
    ValueError
        Where it is not complete afterwards.
    """
    pending = there.mark
    if pending is None:
        return
    told = tell_incomplete(there.groups[""])
    if told is not None and not 0 < len(pending.get("arrays", ())) <= len(names.intersection(pending["arrays"])):
        raise ValueError(f"{told}. Nothing else is written to {there.where} before that")
    there.change.set_attrs(there.change.path, **{INCOMPLETE_ATTR: None})


def _layout(there: There, asked: Layout) -> Layout:
    """The store decides: variables that are added to one of tensordict's must not make it unreadable for tensordict."""
    if BATCH_ATTR in there.groups[""].attrs:
        return "tensordict"
    return "xarray" if there.ds.variables else asked
