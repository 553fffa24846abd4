"""Add variables to a zarr store, and overwrite those that are there: ``mode="a"`` and ``"r+"``."""

from __future__ import annotations

from typing import Any

from ..core.metadata import BATCH_ATTR
from ..core.model import GroupBatch, Key
from .additions import plan_added
from .json_texts import merge_unbatched
from .plan import Source, WritePlan
from .stored_form import Layout
from .zarr_create import joined
from .zarr_target import ZarrTarget
from .zarr_there import Change, There, check_sizes, finish_update, plan_region, write_change
from .zarr_writer import ZarrOptions, check_attrs, dataset_of, quiet, write_group


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
    change = Change()
    for key, node in source.nodes.items():
        for local, variable in node.variables.items():
            name = node.names[local]
            if name in old.variables:
                check_sizes(name, source.flat.variables[name], old.variables[name], {}, there.where)
                whole = tuple(slice(0, size) for size in variable.shape)
                plan_region(change, there, (*key, local), name, variable, whole, None)
    plan = plan_added(source, old, there.inference, new, _layout(there, layout), "zarr")
    check_attrs(plan)
    delayed = write_change(change, there, compute=options.compute)
    delayed += _create(plan, there, target, options)
    batches = _batches(plan, there)
    finish_update(there, batches, target, options)
    return None if options.compute else joined(delayed)


def _layout(there: There, asked: Layout) -> Layout:
    """The store decides: variables that are added to one of tensordict's must not make it unreadable for tensordict."""
    if BATCH_ATTR in there.root.attrs:
        return "tensordict"
    return "xarray" if there.ds.variables else asked


def _create(plan: WritePlan, there: There, target: ZarrTarget, options: ZarrOptions) -> list[Any]:
    """Create the new arrays, group by group; attributes of groups are added to those there are."""
    delayed = []
    with quiet():
        if plan.unbatched:
            merge_unbatched(plan, there)
        for key, group in plan.groups.items():
            path = "/".join(key)
            node = there.root.require_group(path) if path else there.root
            attrs = {**dict(node.attrs), **(group.attrs or {})}
            bare = WritePlan(plan.layout, plan.format, {key: group})
            ds = dataset_of(bare, key, options)
            named = sorted(str(name) for name in ds.coords if name not in ds.dims)
            words = [*str(attrs.get("coordinates", "")).split(), *named]
            if words:
                attrs["coordinates"] = " ".join(dict.fromkeys(words))
            if group.batch_record is not None and (BATCH_ATTR in there.root.attrs or not there.ds.variables):
                attrs[BATCH_ATTR] = group.batch_record
            whole = ds.reset_coords(named).assign_attrs(attrs)
            before, held = set(node.keys()), dict(node.attrs)
            try:
                written = write_group(whole, group, target.store, (*target.prefix, *key), options, mode="a")
            except BaseException:
                # an array that was created and not filled would pass for one of fill values
                for name in set(node.keys()) - before:
                    del node[name]
                node.attrs.put(held)
                raise
            delayed += [] if options.compute else [written]
    return delayed


def _batches(plan: WritePlan, there: There) -> dict[Key, GroupBatch]:
    """The batch of each group after the change."""
    batches = dict(there.inference.groups) if there.ds.variables else {}
    for key, group in plan.groups.items():
        record = group.batch_record
        if key not in batches and record is not None:
            names = tuple(record.get("names") or (None,) * len(record["batch_size"]))
            batches[key] = GroupBatch(names, tuple(record["batch_size"]), "recorded", "")
    return batches
