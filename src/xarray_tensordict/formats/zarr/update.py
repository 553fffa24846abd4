"""Change a zarr store that is there: append along a dim, write to a region, overwrite and add variables.

Everything is checked against the store before the first byte is written. Arrays are resized and written with zarr, so
that stores without dimension names (tensordict's own) can be appended to; new arrays are created through xarray.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
import zarr

from ...core.model import GroupBatch, Key
from ...writing.adopt_names import adopt_names
from ...writing.append_checks import check_append, same_values
from ...writing.plan import Source
from ...writing.store_fit import Existing, check_sizes
from ...writing.stored_form import Layout
from .add import add_variables
from .changes import finish_change, mark_there, texts_of, write_change, write_region
from .completeness import mark_of, tell_incomplete
from .create import create_store
from .finish import Finish, records_of
from .target import ZarrTarget
from .there import Change, There, finish_of, open_there, plan_region, settle_lazy
from .undo import Undo, undone
from .unfinished import completed_dim, state_before, store_before
from .write import ZarrOptions

Slices = Mapping[str, slice]


def update_store(
    source: Source,
    target: ZarrTarget,
    options: ZarrOptions,
    layout: Layout,
    *,
    mode: str | None,
    append_dim: Hashable | None,
    region: Any,
    zarr_format: int | None,
) -> Any:
    """Append, write to a region, or overwrite and add, as ``Dataset.to_zarr`` does with the same arguments.

    Raises
    ------
    ValueError, NotImplementedError
        For what does not fit the store; nothing has been written.
    FileNotFoundError
        Where there is no store.
    """
    _check_arguments(target, mode, append_dim, region)
    group = target.group()
    if group is None:
        if mode in {"a", "a-"} and append_dim is None:
            return create_store(source, target, options, layout, replace=False, zarr_format=zarr_format)
        raise FileNotFoundError(f"{target.name}: there is no zarr group to change; write one first, with mode='w'")
    if zarr_format is not None and zarr_format != group.metadata.zarr_format:
        raise ValueError(
            f"{target.name}: zarr_format={zarr_format} was given, and the store has zarr format "
            f"{group.metadata.zarr_format}"
        )
    options = replace(options, zarr_format=int(group.metadata.zarr_format))
    if append_dim is not None and mark_of(group) is not None:
        raise ValueError(
            f"{tell_incomplete(group) or 'the store is marked as not complete'}. Nothing is appended to "
            f"{target.name} before that"
        )
    lacking = completed_dim(group, region)
    if lacking is not None and (plan := _plan_rest(source, group, target, options, lacking)) is not None:
        return _complete(plan, options)
    there = open_there(target, options)
    settle_lazy(source, there, target)
    if append_dim is None and region is None:
        return add_variables(source, there, target, options, layout, mode=str(mode))
    source, region, append_dim = adopt_names(source, there.ds, region, append_dim)
    if append_dim is not None:
        return _append(source, there, target, options, str(append_dim))
    slices = _resolve_region(source, there, region)
    change = _region(source, there, slices)
    step = finish_of(there, target, options, there.inference.groups)
    return write_region(change, there, step, options, slices)


def _check_arguments(target: ZarrTarget, mode: str | None, append_dim: Hashable | None, region: Any) -> None:
    if target.kind == "zip":
        raise ValueError(
            f"{target.description}: a zip file cannot be changed in place; unpack it, change the folder, and write "
            "it again with "
            f"mode='w'"
        )
    if append_dim is not None and region is not None:
        raise ValueError(f"expected append_dim or region, found both: append_dim={append_dim!r}, region={region!r}")
    if append_dim is not None and mode not in {None, "a", "a-"}:
        raise ValueError(f"append_dim={append_dim!r} goes with mode='a' or none, found mode={mode!r}")
    if region is not None and mode not in {None, "a", "r+"}:
        raise ValueError(f"region goes with mode='r+', 'a' or none, found mode={mode!r}")


# -- append ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planned:
    """An append: what is there, what is to be written, and the last step."""

    there: There
    change: Change
    step: Finish


def _append(source: Source, there: There, target: ZarrTarget, options: ZarrOptions, dim: str) -> Any:
    """Check all, grow all that has the dim, write the rows."""
    planned = _plan_append(source, there, target, options, dim)
    change, step = planned.change, planned.step
    size = int(there.ds.sizes[dim])
    with undone(Undo(step, there.consolidated), there.where) as undo:
        if change.names:
            records = records_of(there.root, step.batches)
            marked = {
                "kind": "append",
                "dim": dim,
                "start": size,
                "stop": size + int(source.flat.sizes[dim]),
                "arrays": sorted(change.names),
                "records": records,
                "before": state_before(there.root, change, records),
            }
            mark_there(there, step, marked, texts_of(change, there))
        stored = write_change(change, there, options, undo)
    return finish_change(step, options, stored)


def _plan_append(source: Source, there: There, target: ZarrTarget, options: ZarrOptions, dim: str) -> Planned:
    check_append(source, there.ds, dim, there.where)
    change = _appended(source, there, dim)
    return Planned(there, change, finish_of(there, target, options, grown(there, dim, int(source.flat.sizes[dim]))))


def _plan_rest(source: Source, group: zarr.Group, target: ZarrTarget, options: ZarrOptions, dim: str) -> Planned | None:
    """Plan to append the rows of an append that did not finish again, to the store as it was before.

    None where these are not all the arrays: then they are written as a region, and the mark stays.
    """
    pending = mark_of(group) or {}
    there = open_there(target, options, store_before(group))
    source, _, adopted = adopt_names(source, there.ds, None, dim)
    paths = {"/".join((*key, name)) for key, node in source.nodes.items() for name in node.variables}
    same = adopted == pending["dim"] and there.ds.sizes.get(adopted) == pending["start"]
    same = same and source.flat.sizes.get(adopted) == pending["stop"] - pending["start"]
    if not same or not paths.issuperset(pending["arrays"]):
        return None
    settle_lazy(source, there, target)
    return _plan_append(source, there, target, options, str(adopted))


def _complete(planned: Planned, options: ZarrOptions) -> Any:
    """Where it fails the mark stays: arrays that have not grown yet do so now, and are not shrunk again."""
    undo = Undo(planned.step, planned.there.consolidated)
    return finish_change(planned.step, options, write_change(planned.change, planned.there, options, undo))


def _appended(source: Source, there: There, dim: str) -> Change:
    change = Change()
    for key, node in source.nodes.items():
        for local, variable in node.variables.items():
            name, flat = node.names[local], source.flat.variables[node.names[local]]
            if dim not in flat.dims:
                continue
            old = there.ds.variables[name]
            axis = flat.dims.index(dim)
            start = old.shape[axis]
            stop = start + variable.shape[axis]
            where = tuple(
                slice(start, stop) if number == axis else slice(0, size) for number, size in enumerate(old.shape)
            )
            shape = tuple(stop if number == axis else size for number, size in enumerate(old.shape))
            plan_region(change, there, (*key, local), name, variable, where, shape)
    return change


# -- region ------------------------------------------------------------------------------------------------------------


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


def _region(source: Source, there: There, region: Slices) -> Change:
    change = Change()
    unknown = [str(name) for name in source.flat.variables if name not in there.ds.variables]
    if unknown:
        raise ValueError(f"{there.where}: {unknown[:5]} are not there, and a region cannot add variables; drop them")
    sizes = {dim: part.stop - part.start for dim, part in region.items()}
    pending = mark_of(there.root) or {}
    unfinished = set(pending.get("arrays", ())) if pending.get("kind") == "append" else set()
    for key, node in source.nodes.items():
        for local, variable in node.variables.items():
            name = node.names[local]
            flat, old = source.flat.variables[name], there.ds.variables[name]
            # an index says where things are, and is not changed by what is written there; after an append that did not
            # finish it may be missing
            if flat.dims == (name,) and name in region and name not in unfinished:
                _check_labels(name, variable, old[region[name]], region[name], there.where)
                continue
            if not set(region) & set(map(str, flat.dims)):
                _check_left_alone(name, variable, old, region, there.where)
                continue
            check_sizes(name, flat, old, sizes, there.where)
            where = tuple(region.get(str(dim), slice(0, size)) for dim, size in zip(old.dims, old.shape, strict=True))
            array = there.member((*key, local))
            if array is not None and variable.chunks is not None:
                _check_edges(name, where, array, there.where)
            plan_region(change, there, (*key, local), name, variable, where, None)
    return change


def _check_labels(name: str, new: xr.Variable, old: xr.Variable, part: slice, where: str) -> None:
    """Refuse rows whose labels are others than those of the place where they are to be written."""
    if not same_values(new, old):
        raise ValueError(
            f"{where}: the values of {name!r} are not those that the store has in the region {part.start}:{part.stop}, so the "
            f"rows would stand under other labels. Let region='auto' find their place, or drop {name!r} to write them there "
            f"all the same"
        )


def _check_left_alone(name: str, new: xr.Variable, old: xr.Variable, region: Slices, where: str) -> None:
    """Refuse variables that no dim of the region places anywhere, unless they are what is there."""
    if not same_values(new, old):
        raise ValueError(
            f"{where}: variable {name!r} has none of the dims of the region, {sorted(region)}, so nothing of it is written, "
            f"and its values are not those there; drop it, or overwrite it with mode='a'"
        )


def _check_edges(name: str, where: tuple[slice, ...], array: zarr.Array[Any], store: str) -> None:
    """Refuse a region of dask that cuts a chunk: of two workers that write to one chunk, one may lose."""
    for axis, (part, size, chunk) in enumerate(zip(where, array.shape, array.shards or array.chunks, strict=True)):
        if part.start % chunk or (part.stop % chunk and part.stop != size):
            raise ValueError(
                f"{store}: the region {part.start}:{part.stop} of {name!r} along axis {axis} cuts the chunks of the "
                "store, which are "
                f"{chunk} long, and dask may write from several workers; choose a region of whole chunks, or load "
                "the dataset"
            )


def grown(there: Existing, dim: str, added: int) -> dict[Key, GroupBatch]:
    """The batch of each group after an append."""
    return {
        key: GroupBatch(
            batch.dims,
            tuple(size + added if name == dim else size for name, size in zip(batch.dims, batch.sizes, strict=True)),
            batch.evidence,
            batch.reason,
        )
        for key, batch in there.inference.groups.items()
    }
