"""Episodes of different lengths as one lazy Dataset: groups ``demo_0``, ``demo_1``, ..., or one table with its ends."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from ..callers import outside
from ..core.model import Inference
from .record import infer_dataset, set_record_if_needed
from .trees import flatten

_ENDS = ("episode_ends", "meta/episode_ends", "../meta/episode_ends")
"""Where replay buffers keep the row behind each episode (diffusion policy: ``meta/episode_ends``)."""


def natural_order(names: Sequence[str]) -> list[str]:
    """Sort names as people do.

    Examples
    --------
    >>> natural_order(["demo_12", "demo_2", "demo_1"])
    ['demo_1', 'demo_2', 'demo_12']
    """
    return sorted(names, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])


def concat(dt: xr.DataTree, dim: str, *, index: str = "episode", step: str = "step") -> xr.Dataset:
    """Concatenate the episodes below a node; see ``DataTree.td.concat``."""
    episodes = _episode_groups(dt)
    if episodes:
        return _concat_groups(dt, episodes, dim, index, step)
    table, ends = _table_and_ends(dt, index)
    return _label_table(table, ends, dim, index, step)


# -- groups, one for each episode --------------------------------------------------------------------------------------


def _episode_groups(dt: xr.DataTree) -> list[str]:
    """The children that have a batch of their own, unless they are the tables of one replay buffer."""
    if _find(dt, _ENDS) is not None:
        return []
    found = [name for name, child in dt.children.items() if child.td.batch_size]
    return natural_order(found)


def _concat_groups(dt: xr.DataTree, names: Sequence[str], dim: str, index: str, step: str) -> xr.Dataset:
    parts = {name: _one_episode(dt.children[name], dim, index, step) for name in names}
    _check_alike(parts)
    left_out = {name for part in parts.values() for name in part.attrs.pop("\0left_out")}
    if left_out:
        warnings.warn(
            f"episodes were concatenated without {sorted(left_out)}, which have no batch dim: there is one value of them for each "
            f"episode and not for each row. They are in the groups, for example dt[{names[0]!r}]",
            UserWarning,
            stacklevel=outside(),
        )
    numbered = [
        part.assign_coords({index: (dim, np.full(part.sizes[dim], number)), step: (dim, np.arange(part.sizes[dim]))})
        for number, part in enumerate(parts.values())
    ]
    joined = xr.concat(
        numbered,
        dim=dim,
        data_vars="minimal",
        coords="minimal",
        compat="override",
        join="override",
        combine_attrs="drop_conflicts",
    )
    joined[index].attrs["names"] = list(names)
    return set_record_if_needed(joined, {(): (dim,)})


def _one_episode(node: xr.DataTree, dim: str, index: str, step: str) -> xr.Dataset:
    """One episode under the common name of its batch dim, lazily (backed by dask)."""
    ds = flatten(node)
    inference = node.td.infer()
    batch = str(inference.batch_dims[0])
    unbatched = [name for name in ds.variables if not _leads(ds, name, inference)]
    ds = ds.drop_vars(unbatched)
    if batch != dim:
        if dim in ds.dims or dim in ds.variables:
            raise ValueError(
                f"group {node.path!r}: {dim!r} is the name of something else than the batch there; choose another dim"
            )
        ds = ds.rename({batch: dim})
    for name in (index, step):
        if name in ds.variables:
            raise ValueError(
                f"group {node.path!r} has a variable {name!r} already; choose another name with index= or step="
            )
    ds = ds.reset_index([name for name in ds.xindexes if dim in ds[name].dims], drop=False)
    chunked = ds.chunk({dim: -1})
    chunked.attrs = {**ds.attrs, "\0left_out": [str(name) for name in unbatched]}
    return chunked


def _leads(ds: xr.Dataset, name: Any, inference: Inference) -> bool:
    return inference.batch_dims[0] in ds.variables[name].dims


def _check_alike(parts: Mapping[str, xr.Dataset]) -> None:
    """Episodes have the same entries, with the same dtypes and feature sizes, or an error names the first that differs."""
    first_name, first = next(iter(parts.items()))
    for name, part in parts.items():
        for entry in sorted(set(map(str, first.variables)) ^ set(map(str, part.variables))):
            has, lacks = (first_name, name) if entry in first.variables else (name, first_name)
            raise ValueError(
                f"{entry!r} is in episode {has!r} and not in {lacks!r}; drop it first, for example with drop_variables="
            )
        for label, variable in part.variables.items():
            entry, other = str(label), first.variables[label]
            if (variable.dims, variable.shape[1:], variable.dtype) != (other.dims, other.shape[1:], other.dtype):
                raise ValueError(
                    f"{entry!r} has dims {other.dims}, shape {other.shape} and dtype {other.dtype} in episode {first_name!r}, and "
                    f"{variable.dims}, {variable.shape}, {variable.dtype} in {name!r}; episodes must agree but for their length"
                )


# -- one table, with the ends of the episodes --------------------------------------------------------------------------


def _find(dt: xr.DataTree, paths: Sequence[str]) -> xr.DataArray | None:
    for path in paths:
        try:
            found = dt[path]
        except KeyError:
            continue
        if isinstance(found, xr.DataArray):
            return found
    return None


def _table_and_ends(dt: xr.DataTree, index: str) -> tuple[xr.Dataset, np.ndarray[Any, Any]]:
    ends = _find(dt, _ENDS)
    node = dt.children["data"] if "data" in dt.children and not dt.data_vars else dt
    table = flatten(node)
    if ends is not None:
        if "episode_ends" in table.variables:
            table = table.drop_vars("episode_ends")
        return table, np.asarray(ends.values).astype("int64").ravel()
    numbers = next((table[name] for name in (index, "episode", "episode_index") if name in table.variables), None)
    if numbers is None or numbers.ndim != 1:
        below = [name for name, child in dt.children.items() if _episode_groups(child)]
        hint = f" They are in {below[0]!r}: dt[{below[0]!r}].td.concat(...)." if below else ""
        raise ValueError(
            f"{dt.path!r} holds no episodes: expected groups with a batch of their own, a variable 'episode_ends' (there or in "
            f"'meta'), or a column {index!r} of episode numbers; found groups {sorted(dt.children)} and variables "
            f"{sorted(map(str, dt.variables))}.{hint}"
        )
    values = np.asarray(numbers.values)
    changes = np.flatnonzero(values[1:] != values[:-1]) + 1
    return table.drop_vars([numbers.name]), np.append(changes, len(values)) if len(values) else np.empty(0, "int64")


def _label_table(table: xr.Dataset, ends: np.ndarray[Any, Any], dim: str, index: str, step: str) -> xr.Dataset:
    inference = infer_dataset(table)
    if not inference.batch_size:
        raise ValueError(f"the table of episodes has no batch dim: {inference.reason}")
    batch, size = str(inference.batch_dims[0]), inference.batch_size[0]
    if np.any(np.diff(ends, prepend=0) < 0) or (len(ends) and ends[-1] > size) or (size and not len(ends)):
        raise ValueError(
            f"episode_ends {ends[:5].tolist()}... do not fit a table of {size} rows: expected ascending ends up to {size}"
        )
    # rows behind the last end belong to no finished episode
    size = int(ends[-1]) if len(ends) else 0
    table = table.isel({batch: slice(0, size)})
    lengths = np.diff(ends, prepend=0)
    numbers = np.repeat(np.arange(len(ends)), lengths)
    steps = np.arange(size) - np.repeat(ends - lengths, lengths)
    if batch != dim:
        table = table.rename({batch: dim})
    labelled = table.assign_coords({index: (dim, numbers), step: (dim, steps)})
    return set_record_if_needed(labelled, {(): (dim, *map(str, inference.batch_dims[1:]))})
