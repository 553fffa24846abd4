"""What a change of a zarr store consists of: rows, a region, variables that are added or overwritten, annotations.

Everything is checked against the store, and staged; no chunk is written here. Existing arrays are written to through zarr, with
values encoded as the array holds them, so that stores without dimension names (tensordict's own) can be appended to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
import zarr

from ..._compat.xarray import remade
from ..._compat.zarr import join, on_store
from ...core.metadata import (
    ARRAY_ATTR,
    BATCH_ATTR,
    INCOMPLETE_ATTR,
    NON_TENSOR_ATTR,
    STACK_ATTR,
    UNBATCHED_NAME,
    Incomplete,
    batch_record,
    parse_array_record,
    parse_batch_record,
)
from ...core.model import GroupBatch, Key, path_key
from ...core.naming import td_names
from ...dataset.open import OpenOptions, open_flat
from ...dataset.records import infer_dataset
from ...warnings import quiet
from ...writing.plan import Source, plan_added, stream_source, unbatched_object
from ...writing.store_fit import adopt_names, check_labels, check_rest, check_sizes, fit, fitting_rows, same_values
from ...writing.values import contiguous, streamed
from ..base import Annotations, StoreOptions, check_records
from ..identity import ChangedError, reads_from
from .change import Change, Region, zarr_writes
from .new_arrays import HOLDS, ZarrOptions, new_groups, stage_texts
from .open import Tree
from .read import ZarrGroupStore
from .transaction import incomplete_text, mark_of, taken
from .write import ZarrTarget, resolve_target


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
    change
        What is to be written.
    texts
        Variables whose values are kept as JSON, with their new values.
    """

    ds: xr.Dataset
    batches: Mapping[Key, GroupBatch]
    arrays: dict[str, zarr.Array[Any]]
    groups: dict[str, zarr.Group]
    change: Change
    texts: dict[Key, xr.Variable] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """How messages call the store."""
        return self.change.target.name

    @property
    def mark(self) -> Incomplete | None:
        """The mark of a store that is not complete."""
        return mark_of(self.groups[""])

    def member(self, key: Key) -> zarr.Array[Any] | None:
        """The array of a variable; None where it is kept as JSON: in a text of its own, or in the entry ``_unbatched``."""
        found = self.arrays.get("/".join(key))
        return None if found is None or NON_TENSOR_ATTR in found.attrs else found

    def stage_texts(self, added: Mapping[str, Any] | None = None) -> None:
        """Stage the texts, and new parts of the entry ``_unbatched``."""
        if self.texts or added:
            stage_texts(self.texts, added or {}, self)


def open_there(source: Source, target: ZarrTarget, options: ZarrOptions) -> There:
    """Open the group at a target through the engine, and for writing what `source` has.

    What would be read from arrays while they are written is loaded; coordinates, which come along with all that is written and
    are small, in any case.

    Raises
    ------
    ValueError
        For variables that dask would read from the store.
    """
    change = Change(target, options.zarr_format or 3, options.consolidated is not False)
    # those who complete a store know that it is not complete
    with quiet((re.escape(target.description) + ".*the store is not complete", UserWarning)):
        asked = StoreOptions(group=change.path, consolidated=False)
        reader = ZarrGroupStore.open(target.store, target.description, asked)
        ds = open_flat(reader, OpenOptions(nested=True))
    members = dict(reader.tree.walk(reader.zarr_group))
    arrays = {name: node for name, node in members.items() if isinstance(node, zarr.Array)}
    groups = {"": reader.zarr_group, **{name: node for name, node in members.items() if isinstance(node, zarr.Group)}}
    there = There(ds, infer_dataset(ds).groups if ds.variables else {}, arrays, groups, change)
    refused = []
    written = [target.place.below(str(name)) for name in source.flat.variables if name in ds.variables]
    for node in source.nodes.values():
        for name, variable in node.variables.items():
            if not reads_from(variable, written):
                continue
            if variable.chunks is not None and name not in node.coords:
                refused.append(node.names[name])
            else:
                node.variables[name] = remade(variable, data=variable.values)
    if refused:
        raise ValueError(
            f"{there.where}: dask would read {refused[:5]} from the store that is written; load them first "
            "(ds.load()), or write to another store"
        )
    return there


def _write_part(
    there: There, key: Key, name: str, new: xr.Variable, where: Region, shape: tuple[int, ...] | None = None
) -> None:
    """Plan to write `new` at `where` (by the axes of the variable) of what is at `key`, grown to `shape` first."""
    old, change = there.ds.variables[name], there.change
    array = there.member(key)
    if array is None:
        there.texts[key] = _patched(old, new, where, old.shape if shape is None else shape)
        return
    encoded = contiguous(fit(name, streamed(new), old, array, there.where))
    order = parse_array_record(array.attrs.get(ARRAY_ATTR), name).get("order") or list(range(new.ndim))
    axes = [order.index(axis) for axis in range(new.ndim)]
    stored = None if shape is None else tuple(shape[axis] for axis in axes)
    if stored is not None:
        document = join(array.path, "zarr.json" if change.zarr_format == 3 else ".zarray")
        found = change.staged.document(document)
        if found is None or tuple(found["shape"]) != array.shape:
            raise ChangedError(f"{there.where}: {array.path!r} was changed by another program just now; try again")
        change.staged.edit(document, shape=list(stored))
    target = on_store(array, change.staged.inner, stored)
    if there.mark is not None and there.mark.kind == "create":
        # as long as the mark is there, a chunk that is missing counts as not written
        target = target.with_config({"write_empty_chunks": True})
    change.blocks.append((encoded.data, target, tuple(where[axis] for axis in axes)))


def _patched(old: xr.Variable, new: xr.Variable, where: Region, shape: tuple[int, ...]) -> xr.Variable:
    values, there = np.asarray(new.values), np.asarray(old.values)
    dtype = there.dtype if there.dtype.kind not in "UST" else np.result_type(there.dtype, values.dtype)
    held = np.empty(shape, dtype)
    # without the dots an object array of no dims would hold the array itself
    kept: tuple[Any, ...] = (*(slice(0, size) for size in there.shape), ...)
    written: tuple[Any, ...] = (*where, ...)
    held[kept] = there
    held[written] = values
    return remade(old, data=held)


def _record_batches(there: There) -> None:
    """Make the recorded batch true, in every group that has a record, and the shapes of stacks.

    Recorded names stay: the flat view may have others.
    """
    for path, group in there.groups.items():
        key = path_key(path)
        batch = next((there.batches[key[:n]] for n in range(len(key), -1, -1) if key[:n] in there.batches), None)
        if batch is None or BATCH_ATTR not in group.attrs:
            continue
        names = parse_batch_record(group.attrs[BATCH_ATTR], there.where).names
        if names is None or len(names) != len(batch.sizes):
            names = tuple(td_names(batch))
        there.change.set_attrs(group.path, **{BATCH_ATTR: batch_record(batch.sizes, names)})
        for name, array in there.arrays.items():
            if name.rpartition("/")[0] == path and STACK_ATTR in array.attrs:
                there.change.set_attrs(array.path, **{STACK_ATTR: list(batch.sizes)})


# -- append ------------------------------------------------------------------------------------------------------------


def append(source: Source, there: There, append_dim: str) -> None:
    """Plan to add rows: all that has the dim grows.

    Raises
    ------
    ValueError
        For rows that do not fit.
    """
    if there.mark is not None:
        unfinished = incomplete_text(there.groups[""]) or "the store is marked as not complete"
        raise ValueError(f"{unfinished}. Nothing is appended to {there.where} before that")
    rows = fitting_rows(source, there.ds, append_dim, there.where)
    there.ds = rows.there
    for key, name, variable, axis in rows.variables():
        shape = list(there.ds.variables[name].shape)
        where = [slice(0, size) for size in shape]
        start, shape[axis] = shape[axis], shape[axis] + variable.shape[axis]
        where[axis] = slice(start, shape[axis])
        _write_part(there, key, name, variable, tuple(where), tuple(shape))
        array = there.member(key)
        if array is not None:
            there.change.set_attrs(array.path, **rows.attrs.get(name, {}))
    there.batches = rows.batches()
    there.stage_texts()
    _record_batches(there)


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
    found = _resolve_region(source.flat, there.ds, region, there.where)
    sizes = {dim: part.stop - part.start for dim, part in found.items()}
    check_rest(source, there.ds, found, there.where)
    for key, name, variable in source.variables():
        flat, old = source.flat.variables[name], there.ds.variables[name]
        if flat.dims == (name,) and name in found:
            _check_region_labels(name, variable, old, found[name], there.where)
        elif not set(found).isdisjoint(flat.dims):
            check_sizes(name, flat, old, sizes, there.where)
            where = tuple(found.get(str(d), slice(0, size)) for d, size in zip(old.dims, old.shape, strict=True))
            _write_part(there, key, name, variable, where)
    cut = {array.path: _cuts_chunks(array, part) for _, array, part in there.change.blocks}
    for _, array, _ in there.change.held:
        if cut[array.path]:
            raise ValueError(
                f"{there.where}: the region {cut[array.path]}, in {array.path!r}, and dask may write from several workers; "
                f"choose a region of whole chunks, or load the dataset"
            )
    there.stage_texts()
    return not there.texts and not any(cut.values())


def _check_region_labels(name: str, new: xr.Variable, old: xr.Variable, part: slice, where: str) -> None:
    if not same_values(new, old[part]):
        raise ValueError(
            f"{where}: the values of {name!r} are not those that the store has in the region {part.start}:{part.stop}, so "
            f"the rows would stand under other labels. Let region='auto' find their place, or drop {name!r} to write them "
            f"there all the same"
        )


def _cuts_chunks(array: zarr.Array[Any], region: Region) -> str | None:
    """Where a region holds a part of a chunk, or of a shard, that another writer may write to; None where it does not."""
    for axis, (part, size, chunk) in enumerate(zip(region, array.shape, array.shards or array.chunks, strict=True)):
        if part.start % chunk or (part.stop % chunk and part.stop != size):
            return f"{part.start}:{part.stop} along axis {axis} cuts the chunks of the store, which are {chunk} long"
    return None


def _resolve_region(new: xr.Dataset, old: xr.Dataset, region: Any, where: str) -> dict[str, slice]:
    """The region as slices; "auto" is looked up in the index coordinates.

    Raises
    ------
    ValueError
        For dims that are not there, slices with a step, coordinates that are not found without gaps.
    """
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
            part = _by_coordinate(new, old, str(dim), where)
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
    start = int(positions[0]) if len(positions) else 0
    if positions.tolist() != list(range(start, start + len(positions))) or start < 0:
        raise ValueError(
            f"{where}: region='auto': the values of {dim!r} are not one contiguous part of the coordinate there; not among its "
            f"values are {new.variables[dim].values[positions == -1][:3]}"
        )
    return slice(start, start + len(positions))


# -- add and overwrite -------------------------------------------------------------------------------------------------


def add(source: Source, there: There, options: ZarrOptions) -> None:
    """``mode="a"`` and ``"r+"``: overwrite the variables that are there, and with "a" add the others.

    Raises
    ------
    ValueError
        For variables that do not fit the store, or with "r+" new ones.
    """
    old, change = there.ds, there.change
    new = [str(name) for name in source.flat.variables if name not in old.variables]
    if new and options.mode == "r+":
        raise ValueError(f"{there.where}: {new[:5]} are not there, and mode='r+' adds no variables; pass mode='a'")
    check_labels(source, old, there.where)
    for path, name, variable in source.variables():
        if name in old.variables:
            check_sizes(name, source.flat.variables[name], old.variables[name], {}, there.where)
            _write_part(there, path, name, variable, tuple(slice(0, size) for size in variable.shape))
            if there.member(path) is not None:
                change.overwritten.add("/".join(path))
    stream_source(source)
    # the store decides: variables that are added to one of tensordict's must not make it unreadable for tensordict
    recorded = BATCH_ATTR in there.groups[""].attrs
    layout = "tensordict" if recorded else "xarray" if old.variables else options.layout
    inference = infer_dataset(old) if old.variables else None
    plan = plan_added(source, old, inference, new, layout, HOLDS, options.encoding)
    groups = new_groups(replace(plan, unbatched={}), options)
    _complete(there, {*change.overwritten, *("/".join(key) for key in there.texts), *new})
    there.stage_texts(unbatched_object(plan))
    _record_batches(there)
    for key, group in groups.items():
        named = sorted(str(name) for name in group.ds.coords if name not in group.ds.dims)
        words = [*str(change.attrs(join(change.path, *key)).get("coordinates", "")).split(), *named]
        listed = {"coordinates": " ".join(dict.fromkeys(words))} if words else {}
        ds = group.ds.reset_coords(named).assign_attrs(listed)
        record = group.batch_record if recorded or not old.variables else None
        change.create(key, replace(group, ds=ds, batch_record=record))


def _complete(there: There, names: set[str]) -> None:
    """Remove the mark of a store that this write completes.

    Raises
    ------
    ValueError
        Where it is not complete afterwards.
    """
    if there.mark is None:
        return
    unfinished, arrays = incomplete_text(there.groups[""]), set(there.mark.arrays)
    if unfinished is not None and not (arrays and arrays <= names):
        raise ValueError(f"{unfinished}. Nothing else is written to {there.where} before that")
    there.change.set_attrs(there.change.path, **{INCOMPLETE_ATTR: None})


# -- annotate ----------------------------------------------------------------------------------------------------------


def annotate_zarr(source: Any, description: str, annotations: Annotations) -> None:
    """Write into the documents of a store; see :meth:`~..base.Format.annotate`."""
    target = resolve_target(source, annotations.group, annotations.storage_options)
    with taken(target.store, target.name, target.root()), zarr_writes():
        change = Change(target, target.group_format() or 3)
        root: Any = zarr.open_group(target.store, path=change.path, mode="r", use_consolidated=False)
        _check_fill_values(root, annotations, description)
        check_records(root, annotations)
        named = {"/".join(key): dims for key, dims in annotations.dims.items()}
        for path, node in Tree(description).walk(root):
            is_text = isinstance(node, zarr.Array) and NON_TENSOR_ATTR in node.attrs and path != UNBATCHED_NAME
            is_named = getattr(node.metadata, "dimension_names", None) or node.attrs.get("_ARRAY_DIMENSIONS")
            if is_text and not is_named:  # without a dimension name for its bytes open_zarr raises
                named[path] = (f"{path.rsplit('/', 1)[-1]}_json",)
        for path, dims in named.items():
            change.name_axes(join(change.path, path), list(dims))
        for key, record in annotations.records.items():
            # a group may be in the entry _unbatched alone
            if not key or isinstance(root.get("/".join(key)), zarr.Group):
                change.set_attrs(join(change.path, *key), **{BATCH_ATTR: record})
        change.finish()


def _check_fill_values(root: zarr.Group, annotations: Annotations, description: str) -> None:
    """In zarr v2 dimension names make xarray take the fill value for a mask: 0 can be taken back, others cannot."""
    if root.metadata.zarr_format != 2:
        return
    arrays: dict[str, Any] = {"/".join(key): root["/".join(key)] for key in annotations.dims}
    masked = [
        f"{name!r} (fill_value {array.fill_value})"
        for name, array in arrays.items()
        if array.fill_value not in (None, 0, 0.0, False, "", b"")
        and array.dtype.kind not in "mM"
        and array.fill_value == array.fill_value  # no NaN
    ]
    if masked:
        raise ValueError(
            f"{description}: with dimension names, plain xarray would take the fill value of these zarr v2 arrays for missing "
            f"data: {', '.join(masked)}. Write the store again with ds.td.to_zarr(...). Nothing was changed"
        )
