"""Descriptions of arrays for the inference, and which groups a flat Dataset leaves out.

Those are groups with a batch of their own under a root without one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends.common import NONE_VAR_NAME

from ..core.model import (
    ArrayInfo,
    GroupBatch,
    Inference,
    Key,
    Kind,
    Role,
    StoredArray,
    StoredGroup,
    group_name,
    text_of,
)
from ..core.voting import names_of, referenced_names
from ..warnings import LeftOutWarning, warn

# What the inference reads of a variable. xarray moves some of them from attrs to encoding when it decodes.
_CF_ATTRS = frozenset(
    "axis standard_name units positive bounds climatology coordinates grid_mapping cell_measures ancillary_variables "
    "formula_terms calendar MATLAB_class".split()
)


def key_of(name: Any) -> Key:
    """The key of a variable: ``"next/obs"`` is ``("next", "obs")``; a variable without a name is stored as xarray does."""
    return tuple(str(NONE_VAR_NAME if name is None else name).split("/"))


def check_paths(ds: xr.Dataset) -> None:
    """Two variables cannot have one path, ``1`` and ``"1"``, and neither can a variable and a group, ``"a"`` and ``"a/b"``."""
    keys: dict[Key, Hashable] = {}
    for name in ds.variables:
        other = keys.setdefault(key_of(name), name)
        if other is not name:
            raise ValueError(f"variables {other!r} and {name!r} claim one path: {str(name)!r}; rename one of the two")
    for key, name in keys.items():
        if "" in key:
            raise ValueError(
                f"variable {name!r}: '' cannot be a part of a path (a '/' separates nested keys); rename it"
            )
        for length in range(1, len(key)):
            if key[:length] in keys:
                raise ValueError(
                    f"variables {keys[key[:length]]!r} and {name!r} claim one path: {'/'.join(key[:length])!r} cannot be "
                    "an entry and a group; rename one of them"
                )


def kind_of(dtype: Any, attrs: Mapping[str, Any]) -> Kind:
    """What the elements of an array are; encoded times count as times."""
    if not isinstance(dtype, np.dtype):
        return "object"  # a pandas extension array: categories, nullable numbers, ...
    if dtype.kind in "mM":
        return "time"
    if dtype.kind in "biufc":
        if text_of(attrs.get("MATLAB_class")) == "char":
            return "string"  # stored as numbers of characters
        units = attrs.get("units")
        encoded = isinstance(units, str) and " since " in units
        return "time" if encoded or str(attrs.get("dtype", "")).startswith("timedelta64") else "numeric"
    metadata: Mapping[str, Any] = dtype.metadata or {}
    if dtype.kind in "SUT" or (dtype.kind == "O" and metadata.get("element_type") in (str, bytes)):
        return "string"
    return "object"


def describe_group(group: StoredGroup, dims: Mapping[str, tuple[str | None, ...]]) -> list[ArrayInfo]:
    """Describe the arrays of one group of a store.

    Parameters
    ----------
    group
        The group.
    dims
        The dims of each array, after the caller's ``dims=``.
    """
    claimed = referenced_names({"coordinates": group.attrs.get("coordinates")})
    for array in group.arrays.values():
        claimed |= referenced_names({"coordinates": array.attrs.get("coordinates")})
    return [
        ArrayInfo(
            (*group.key, name),
            array.shape,
            kind_of(array.dtype, array.attrs),
            dims[name],
            _role(name, array, dims[name], claimed),
            array.unlimited,
            _cf_attrs(array.attrs),
            array.dtype.kind not in "fc",
        )
        for name, array in group.arrays.items()
    ]


def _cf_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Those that the inference reads; CF knows them as text alone, and a store may hold anything."""
    return {name: value for name, value in attrs.items() if name in _CF_ATTRS and isinstance(value, str | bytes)}


def _role(name: str, array: StoredArray, dims: tuple[str | None, ...], claimed: Iterable[str]) -> Role:
    if dims == (name,):
        return "index"
    return "coord" if array.role == "coord" or (name in claimed and array.role is None) else "data"


def describe_dataset(ds: xr.Dataset, prefix: Key = ()) -> list[ArrayInfo]:
    """Describe the variables of a Dataset, of which ``"a/b"`` is in the group ``("a",)``."""
    unlimited_dims = set(ds.encoding.get("unlimited_dims", ()))
    infos = []
    for name, variable in ds.variables.items():
        key = (*prefix, *key_of(name))
        found = _cf_attrs(variable.encoding) | _cf_attrs(variable.attrs)
        dims = tuple(str(dim) for dim in variable.dims)
        role: Role = "data"
        if name in ds.coords:
            role = "index" if dims == (str(name),) else "coord"
        unlimited = frozenset(axis for axis, dim in enumerate(variable.dims) if dim in unlimited_dims)
        kind = kind_of(variable.dtype, found)
        # integers with a fill value are floats once they are decoded
        integral = np.dtype(variable.encoding.get("dtype") or np.float64).kind not in "fc" or (
            getattr(variable.dtype, "kind", "O") not in "fc"
        )
        infos.append(ArrayInfo(key, _known_shape(key, variable), kind, dims, role, unlimited, found, integral))
    return infos


def _known_shape(key: Key, variable: xr.Variable) -> tuple[int, ...]:
    shape: tuple[int, ...] = variable.shape
    if any(size != size for size in shape):
        raise ValueError(
            f"variable {'/'.join(key)!r} has the shape {shape}: it is a dask array of chunks of unknown sizes, as a selection "
            f"by a mask gives, which xarray does not support. Call compute_chunk_sizes() of the array before it becomes a "
            f"variable, or select with ds.isel and positions"
        )
    return shape


Hidden = Mapping[str, tuple[int, ...]]
"""The batch size of each group that is left out, by its path in the store."""


def hidden_groups(inference: Inference) -> dict[Key, GroupBatch]:
    """Find the groups that a flat Dataset leaves out, topmost only: those with a batch of their own under a root without one.

    Groups of the same entries side by side are shown or left out together: one odd episode must not hide the others.
    """
    hidden: dict[Key, GroupBatch] = {}
    for key in sorted(inference.groups, key=len):
        if inference.groups[key].sizes and not is_within(key, hidden):
            hidden[key] = inference.groups[key]
    alike = _alike(inference).values()
    shown = {key for keys in alike if any(not inference.groups[each].sizes for each in keys) for key in keys}
    return {key: batch for key, batch in hidden.items() if key not in shown}


def mixed_groups(inference: Inference, hidden: Collection[Key], infos: Mapping[Key, ArrayInfo]) -> list[str]:
    """Sentences on sibling groups with the same entries of which only some have a batch: episodes of which some have one row more."""
    found: list[str] = []
    for keys in _alike(inference).values():
        batched = [key for key in keys if inference.groups[key].sizes]
        others = [key for key in keys if not inference.groups[key].sizes]
        if batched and others and not is_within(keys[0], hidden):
            odd = others[0]
            numeric = {key: info for key, info in infos.items() if info.shape and info.kind == "numeric"}
            rows = {"/".join(key[len(odd) :]): i.shape[0] for key, i in numeric.items() if key[: len(odd)] == odd}
            reason = inference.groups[odd].reason
            found.append(
                f"groups of the same entries differ: {names_of(batched)} has batch size {list(inference.groups[batched[0]].sizes)}, "
                f"{names_of(others)} none ({reason}), so none of them is left out.{odd_rows(rows)}"
            )
    return found


def odd_rows(rows: Mapping[str, int]) -> str:
    """A sentence, after a space, on the entries of an episode that have another number of rows than most; "" where none have.

    Examples
    --------
    >>> odd_rows({"obs": 21, "actions": 20, "rewards": 20})[:34]
    " 'obs' has 21 rows, 'actions' 20. "
    """
    counts = list(rows.values())
    # an episode of as many of both has one observation more than actions
    most = max(counts, key=lambda count: (counts.count(count), -count), default=0)
    odd = [entry for entry, count in rows.items() if count != most]
    if not odd:
        return ""
    like = next(entry for entry, count in rows.items() if count == most)
    return (
        f" {odd[0]!r} has {rows[odd[0]]} rows, {like!r} {most}. Leave out what has another number of rows than most arrays: "
        f"{dropped(odd)} when opening"
    )


def dropped(entries: Iterable[str]) -> str:
    """The keyword of the opening that leaves entries out, in whichever group they are.

    Examples
    --------
    >>> dropped(["observations/obs"])
    "drop_variables=['obs']"
    """
    return f"drop_variables={sorted({entry.rpartition('/')[2] for entry in entries})}"


def _alike(inference: Inference) -> dict[tuple[Key, frozenset[Key]], list[Key]]:
    """The groups side by side that have the same entries."""
    entries: dict[Key, set[Key]] = {}
    for key in inference.classes:
        for length in range(1, len(key)):
            entries.setdefault(key[:length], set()).add(key[length:])
    found: dict[tuple[Key, frozenset[Key]], list[Key]] = {}
    for key in sorted(entries):
        found.setdefault((key[:-1], frozenset(entries[key])), []).append(key)
    return found


def is_within(key: Key, groups: Collection[Key]) -> bool:
    """Whether a group is one of some groups, or lies in one."""
    return any(key[:length] in groups for length in range(len(key) + 1))


def parent_of_episodes(
    hidden: Collection[Key], inference: Inference, infos: Mapping[Key, ArrayInfo], stored: Mapping[Key, StoredGroup]
) -> Key | None:
    """The group whose groups are episodes that ``dt.td.concat`` joins: at least two, of the same entries, dtypes and features."""
    for parent in dict.fromkeys(key[:-1] for key in hidden):
        groups = [key for key in inference.groups if key[:-1] == parent and key and inference.groups[key].sizes]
        layouts = {frozenset(_layout(key, inference, infos, stored)) for key in groups}
        if len(groups) > 1 and len(layouts) == 1 and set(groups) <= set(hidden):
            return parent
    return None


def holds_numbered(inference: Inference, parent: Key = ()) -> bool:
    """Whether all entries of a group that have a batch lie in groups of the same entries whose names differ in numbers only."""
    groups: dict[str, set[Key]] = {}
    for key, found in inference.classes.items():
        if found == "batched" and key[: len(parent)] == parent:
            groups.setdefault(key[len(parent)], set()).add(key[len(parent) + 1 :])
    names, entries = {re.sub(r"\d+", "*", name) for name in groups}, {frozenset(below) for below in groups.values()}
    return len(groups) > 1 and len(names) == len(entries) == 1 and () not in next(iter(entries))


def numbered_text(inference: Inference) -> list[str]:
    """A sentence on groups of equal length that may be episodes, in the root or one group down; none where there are none."""
    parents = dict.fromkeys(key[:depth] for depth in (0, 1) for key in inference.classes if len(key) > depth)
    found = next((group_name(parent) for parent in parents if holds_numbered(inference, parent)), None)
    text = (
        f"if the groups in {found!r} are episodes, xr.open_datatree(...)[{found!r}].td.concat('time') puts their rows one behind "
        f"the other"
    )
    return [] if found is None else [text]


def _layout(
    group: Key, inference: Inference, infos: Mapping[Key, ArrayInfo], stored: Mapping[Key, StoredGroup]
) -> list[Any]:
    """What episodes must agree on: names, dtypes and feature sizes of the entries that have rows, and the scalars."""
    found: list[Any] = []
    for key, info in infos.items():
        if key[: len(group)] == group and (inference.classes[key] == "batched" or not info.shape):
            dtype = stored[key[:-1]].arrays[key[-1]].dtype
            # strings of another longest length are strings
            found.append((key[len(group) :], info.kind, dtype.kind if info.kind == "string" else dtype, info.shape[1:]))
    return found


def hidden_text(hidden: Hidden, episodes_in: str | None) -> str:
    """A sentence on the groups that are left out and how to get them; "" where none is."""
    if not hidden:
        return ""
    first = next(iter(hidden))
    some = ", ".join(f"{path} {list(sizes)}" for path, sizes in list(hidden.items())[:5])
    more = f" and {len(hidden) - 5} more" if len(hidden) > 5 else ""
    groups = "groups" if len(hidden) > 1 else "group"
    text = (
        f"{len(hidden)} {groups} with a batch of their own ({some}{more}); open one with group={first!r}, "
        f"all with xr.open_datatree(...) or nested=True"
    )
    if episodes_in is None:
        return text
    return f"{text}; episodes of different lengths become one Dataset with xr.open_datatree(...)[{episodes_in!r}].td.concat('time')"


def warn_empty(where: str, hidden: Sequence[str]) -> None:
    """Warn that a tensordict holds nothing because every group of its store has a batch of its own."""
    if hidden:
        warn(
            f"{where}: the tensordict is empty, because {len(hidden)} groups with a batch of their own are not shown; open one "
            f"with group={hidden[0]!r}, all with xr.open_datatree(...) or nested=True",
            LeftOutWarning,
        )
