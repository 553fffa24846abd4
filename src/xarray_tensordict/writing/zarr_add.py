"""Add variables to a zarr store, and overwrite those that are there: ``mode="a"`` and ``"r+"``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import xarray as xr
import zarr

from ..core.metadata import BATCH_ATTR
from ..core.model import GroupBatch, Key
from ..stores.zarr_completeness import mark_of, tell_incomplete
from .additions import plan_added
from .append_checks import same_values
from .json_texts import merge_unbatched
from .plan import Source, WritePlan
from .store_fit import check_sizes
from .stored_form import Layout
from .streaming import stream_source
from .zarr_finish import zarr_writes
from .zarr_target import ZarrTarget
from .zarr_there import Change, There, finish_of, mark_there, plan_region, take_back, write_change
from .zarr_writer import ZarrOptions, check_attrs, dataset_of, write_group


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
    plan = plan_added(source, old, there.inference, new, _layout(there, layout), "zarr")
    check_attrs(plan)
    step = finish_of(there, target, options, _batches(plan, there))
    names = {*change.paths, *("/".join(key) for key in change.texts), *new}
    _refuse_unfinished(there, names)
    mark_there(there, step, {"kind": "overwrite", "arrays": sorted(names)})
    made = Created()
    try:
        _create(plan, there, target, options, made)
        return write_change(change, there, step, options, {}, made.delayed)
    except BaseException:
        # an array that was created and not filled would pass for one of fill values
        made.remove()
        if change.regions:
            mark_there(there, step, {"kind": "overwrite", "arrays": sorted(names.difference(new))})
        else:
            take_back(there, step)
        raise


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


@dataclass
class Created:
    """What has been created so far: to be written by dask, or removed again."""

    delayed: list[Any] = field(default_factory=list)
    before: list[tuple[zarr.Group, frozenset[str], dict[str, Any]]] = field(default_factory=list)

    def remove(self) -> None:
        """Leave the groups as they were."""
        with zarr_writes():
            for node, names, attrs in self.before:
                for name in set(node.keys()) - names:
                    del node[name]
                node.attrs.put(attrs)


def _create(plan: WritePlan, there: There, target: ZarrTarget, options: ZarrOptions, made: Created) -> None:
    """Create the new arrays, group by group; attributes of groups are added to those there are."""
    with zarr_writes():
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
            made.before.append((node, frozenset(node.keys()), dict(node.attrs)))
            written = write_group(whole, group, target.store, (*target.prefix, *key), options, mode="a")
            made.delayed += [written] if any(ds[name].chunks for name in ds.variables) else []


def _batches(plan: WritePlan, there: There) -> dict[Key, GroupBatch]:
    """The batch of each group after the change."""
    batches = dict(there.inference.groups) if there.ds.variables else {}
    for key, group in plan.groups.items():
        record = group.batch_record
        if key not in batches and record is not None:
            names = tuple(record.get("names") or (None,) * len(record["batch_size"]))
            batches[key] = GroupBatch(names, tuple(record["batch_size"]), "recorded", "")
    return batches
