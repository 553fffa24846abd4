"""Add variables to a zarr store, and overwrite those that are there: ``mode="a"`` and ``"r+"``."""

from __future__ import annotations

from typing import Any

import xarray as xr

from ...core.metadata import BATCH_ATTR, UNBATCHED_NAME
from ...core.model import GroupBatch, Key
from ...writing.additions import plan_added
from ...writing.append_checks import same_values
from ...writing.plan import Source, WritePlan
from ...writing.store_fit import check_sizes
from ...writing.stored_form import Layout
from ...writing.streaming import stream_source
from .changes import finish_change, mark_there, texts_of, write_change
from .completeness import mark_of, tell_incomplete
from .finish import zarr_writes
from .json_texts import merge_unbatched
from .target import ZarrTarget
from .there import Change, There, finish_of, plan_region
from .undo import Undo, undone
from .write import ZarrOptions, check_attrs, dataset_of, write_group


def add_variables(
    source: Source, there: There, target: ZarrTarget, options: ZarrOptions, layout: Layout, *, mode: str
) -> Any:
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
    change = Change()
    for key, node in source.nodes.items():
        for local, variable in node.variables.items():
            name = node.names[local]
            if name in old.variables:
                check_sizes(name, source.flat.variables[name], old.variables[name], {}, there.where)
                whole = tuple(slice(0, size) for size in variable.shape)
                plan_region(change, there, (*key, local), name, variable, whole, None)
    stream_source(source)
    plan = plan_added(source, old, there.inference, new, _layout(there, layout), "zarr", options.encoding)
    check_attrs(plan)
    step = finish_of(there, target, options, _batches(plan, there))
    names = {*change.names, *new}
    _refuse_unfinished(there, names)
    # what has been written over cannot be put back
    parts = sorted(part.path for part in change.parts)
    leaving = {"kind": "overwrite", "arrays": parts} if parts else None
    with undone(Undo(step, there.consolidated, leaving), there.where) as undo:
        texts = {*texts_of(change, there), *([UNBATCHED_NAME] if plan.unbatched else [])}
        mark_there(there, step, {"kind": "overwrite", "arrays": sorted(names)}, sorted(texts))
        stored = write_change(change, there, options, undo, _create(plan, there, target, options, undo))
    return finish_change(step, options, stored)


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


def _refuse_unfinished(there: There, names: set[str]) -> None:
    """Raise where the store is not complete and this write does not complete it: it would remove the mark.

    Raises
    ------
    ValueError
        Nothing has been written.
    """
    pending = mark_of(there.root)
    told = None if pending is None else tell_incomplete(there.root)
    if (
        pending is not None
        and told is not None
        and not 0 < len(pending.get("arrays", ())) <= len(names.intersection(pending["arrays"]))
    ):
        raise ValueError(f"{told}. Nothing else is written to {there.where} before that")


def _layout(there: There, asked: Layout) -> Layout:
    """The store decides: variables that are added to one of tensordict's must not make it unreadable for tensordict."""
    if BATCH_ATTR in there.root.attrs:
        return "tensordict"
    return "xarray" if there.ds.variables else asked


def _create(plan: WritePlan, there: There, target: ZarrTarget, options: ZarrOptions, undo: Undo) -> list[Any]:
    """Create the new arrays, group by group, and give what writes them; attributes are added to those there are.

    An array that was created and not filled would pass for one of fill values.
    """
    delayed = []
    with zarr_writes():
        if plan.unbatched:
            merge_unbatched(plan, there, undo)
        for key, group in plan.groups.items():
            bare = WritePlan(plan.layout, plan.format, {key: group})
            ds = dataset_of(bare, key, options)
            named = sorted(str(name) for name in ds.coords if name not in ds.dims)
            _note_created(key, ds, there, undo)
            path = "/".join(key)
            node = there.root.require_group(path) if path else there.root
            attrs = {**dict(node.attrs), **(group.attrs or {})}
            words = [*str(attrs.get("coordinates", "")).split(), *named]
            if words:
                attrs["coordinates"] = " ".join(dict.fromkeys(words))
            if group.batch_record is not None and (BATCH_ATTR in there.root.attrs or not there.ds.variables):
                attrs[BATCH_ATTR] = group.batch_record
            whole = ds.reset_coords(named).assign_attrs(attrs)
            written = write_group(whole, group, target.store, (*target.prefix, *key), options, mode="a")
            delayed += [written] if any(ds[name].chunks for name in ds.variables) else []
    return delayed


def _note_created(key: Key, ds: xr.Dataset, there: There, undo: Undo) -> None:
    """Note the first group of a path that is not there, or the arrays that come into one that is."""
    for length in range(1, len(key) + 1):
        path = "/".join(key[:length])
        if path not in there.root:
            undo.creates(path)
            return
    undo.changes_attrs("/".join(key))
    paths = ["/".join((*key, str(name))) for name in ds.variables]
    for path in paths:
        if path not in there.root:
            undo.creates(path)


def _batches(plan: WritePlan, there: There) -> dict[Key, GroupBatch]:
    """The batch of each group after the change."""
    batches = dict(there.inference.groups) if there.ds.variables else {}
    for key, group in plan.groups.items():
        record = group.batch_record
        if key not in batches and record is not None:
            names = tuple(record.get("names") or (None,) * len(record["batch_size"]))
            batches[key] = GroupBatch(names, tuple(record["batch_size"]), "recorded", "")
    return batches
