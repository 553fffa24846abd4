"""Episodes in one table: rows of all of them, and something that says where each ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from ..core.features import is_time_name
from .record import infer_dataset, set_record_if_needed
from .trees import flatten

_ENDS = ("episode_ends", "meta/episode_ends", "data/episode_ends", "../meta/episode_ends")
"""Where replay buffers keep the row behind each episode (diffusion policy: ``meta/episode_ends``)."""

_TRAJECTORIES = "collector/traj_ids"
"""What torchrl's collectors and samplers read themselves: it stays an entry."""

_NUMBERS = ("episode", "episode_index", _TRAJECTORIES)
"""Columns that number the episodes: this package and Minari, LeRobot, torchrl's collectors."""

_FLAGS = (("terminals", "timeouts"), ("terminals",), ("next/done",), ("dones",))
"""Columns that are true in the last row of an episode: D4RL, torchrl, robomimic."""


@dataclass(frozen=True)
class Table:
    """The rows, and the values that say where episodes end.

    Attributes
    ----------
    rows
        The table.
    where
        How messages call it.
    kind
        What `values` are: the row behind each episode, one number for each row, or one flag for each row.
    name
        How messages call the values.
    values
        One-dimensional.
    """

    rows: xr.Dataset
    where: str
    kind: str
    name: str
    values: np.ndarray[Any, Any]


def holds_table(dt: xr.DataTree) -> bool:
    """Whether a node is one table, and the groups in it are entries of its rows or parts of one replay buffer."""
    return _find(dt, _ENDS) is not None or bool(dt.data_vars and dt.td.batch_size)


def table_of(dt: xr.DataTree, dim: str, index: str, by: str | None, groups: Sequence[str] = (), why: str = "") -> Table:
    """The table in a node or in its group ``data``.

    Parameters
    ----------
    dim, index
        The names that the rows, and the numbers of the episodes, get.
    by
        The variable that says where episodes end; None to look for it.
    groups
        Groups in the node that hold episodes themselves, for the message.
    why
        Why the groups in the node are no episodes, for the message.

    Raises
    ------
    ValueError
        Where nothing says so.
    """
    ends = _find(dt, (by, f"../{by}") if by is not None else _ENDS)
    node = dt.children["data"] if "data" in dt.children and not dt.data_vars else dt
    rows = flatten(node)
    hint = "".join(f" There are some in {name!r}: dt[{name!r}].td.concat(...)." for name in groups[:1])
    return _table(rows, None if ends is None else ends.variable, f"group {dt.path!r}", (dim, index), by, hint or why)


def table_of_dataset(ds: xr.Dataset, dim: str, index: str, by: str | None) -> Table:
    """A Dataset as a table."""
    name = by or next((name for name in _ENDS if name in ds.variables), None)
    hint = " Groups of different lengths are shown by xr.open_datatree(...), where dt[...].td.concat(...) takes them together."
    return _table(ds, ds.variables.get(name), "the dataset", (dim, index), by, hint)


def _table(
    rows: xr.Dataset, ends: xr.Variable | None, where: str, asked: tuple[str, str], by: str | None, hint: str
) -> Table:
    dim, index = asked
    if by is not None:
        if ends is None and by not in rows.variables:
            raise ValueError(f"by: {where} has no variable {by!r}; there are {sorted(map(str, rows.variables))}.{hint}")
        variable = rows.variables[by] if ends is None else ends
        return _by_name(rows, where, by, variable)
    if ends is not None:
        found = [name for name in _ENDS if name in rows.variables and rows.variables[name].ndim == 1]
        return Table(rows.drop_vars(found), where, "ends", "episode_ends", _flat(ends))
    numbers = next((name for name in (index, *_NUMBERS) if _is_column(rows, name)), None)
    if numbers is not None:
        kept = rows if numbers == _TRAJECTORIES else rows.drop_vars(numbers)
        return Table(kept, where, "numbers", numbers, _flat(rows.variables[numbers]))
    for names in _FLAGS:
        if all(_is_column(rows, name) for name in names):
            flags = np.logical_or.reduce([_flat(rows.variables[name]).astype(bool) for name in names])
            return Table(rows, where, "flags", " | ".join(names), flags)
    _check_one_row_dim(rows, where, index, dim)
    raise ValueError(
        f"{where} holds no episodes: expected groups with a batch of their own, a variable 'episode_ends' (there or in "
        f"'meta'), a column {index!r} or 'episode_index' of episode numbers, or flags 'terminals', 'next/done' or 'dones'; "
        f"name another variable with by=. Found variables {sorted(map(str, rows.variables))}.{hint}"
    )


def _check_one_row_dim(rows: xr.Dataset, where: str, index: str, dim: str) -> None:
    """What says where episodes end may be there along two batch dims: a table has one."""
    batch = [str(dim) for dim in infer_dataset(rows).batch_dims]
    for name in (index, *_NUMBERS, *(name for names in _FLAGS for name in names)):
        variable = rows.variables.get(name)
        if (
            variable is None
            or variable.dtype.kind not in "biu"
            or len(batch) < 2
            or not {*batch[:2]} <= {*variable.dims}
        ):
            continue
        times = [each for each in batch[:2] if each == dim] or [each for each in batch[:2] if is_time_name(each)]
        steps = (times or batch[1:2])[0]
        other = next(each for each in batch[:2] if each != steps)
        # the steps of one go on behind each other, and then come those of the next
        advice = f"ds.stack(row=({other!r}, {steps!r}), create_index=False).transpose('row', ...)"
        message = (
            f"{where}: {name!r} has dims {variable.dims}, and concat needs one dim of rows; select one of {other!r}, "
            f"isel({other}=0), or stack them, the steps of each {other!r} one behind the other: {advice}"
        )
        if name not in {index, *_NUMBERS} and not bool(variable.isel({steps: -1}).all()):
            message += (
                f". Its last rows are not flagged, so the last episode of one {other!r} would go on with the first of the next: flag "
                f"them before, ds[{name!r}][{{{steps!r}: -1}}] = True"
            )
        raise ValueError(message)


def _by_name(rows: xr.Dataset, where: str, by: str, variable: xr.Variable) -> Table:
    values = _flat(variable)
    known_flags = {name for names in _FLAGS for name in names}
    if values.dtype.kind == "b" or by in known_flags:
        return Table(rows, where, "flags", by, values.astype(bool))
    sizes = infer_dataset(rows).batch_size
    is_column = (
        by in rows.variables and bool(sizes) and values.size == sizes[0] and by.rpartition("/")[2] != "episode_ends"
    )
    kept = rows.drop_vars(by) if by in rows.variables and by != _TRAJECTORIES else rows
    return Table(kept, where, "numbers" if is_column else "ends", by, values)


def _find(dt: xr.DataTree, paths: Sequence[str]) -> xr.DataArray | None:
    for path in paths:
        try:
            found = dt[path]
        except KeyError:
            continue
        if isinstance(found, xr.DataArray):
            return found
    return None


def _is_column(ds: xr.Dataset, name: str) -> bool:
    """Whether a variable holds one number or flag for each row."""
    variable = ds.variables.get(name)
    return (
        variable is not None
        and variable.dtype.kind in "biu"
        and variable.ndim >= 1
        and variable.size == variable.shape[0]
    )


def _flat(variable: xr.Variable) -> np.ndarray[Any, Any]:
    return np.asarray(variable.values).ravel()


def label_table(table: Table, dim: str, index: str, step: str) -> xr.Dataset:
    """The rows of a table with the coordinates `index` and `step`.

    Raises
    ------
    ValueError
        Where the table has no batch, or what says where episodes end does not fit it.
    """
    inference = infer_dataset(table.rows)
    if not inference.batch_size:
        raise ValueError(f"the table of episodes has no batch dim: {inference.reason}")
    batch, size = str(inference.batch_dims[0]), inference.batch_size[0]
    if table.kind == "ends":
        ends = _checked_ends(table, size)
    else:
        if table.values.size != size:
            raise ValueError(
                f"{table.where}: {table.name!r} has {table.values.size} elements for the {size} rows along {batch!r}; expected one each"
            )
        ends = _changes(table.values) if table.kind == "numbers" else _behind_flags(table.values)
    lengths = np.diff(ends, prepend=0)
    # rows behind the last end belong to no finished episode
    size = int(ends[-1]) if len(ends) else 0
    rows = table.rows.isel({batch: slice(0, size)})
    labels = _checked_numbers(table, ends) if table.kind == "numbers" else np.arange(len(ends))
    if batch != dim:
        rows = rows.rename({batch: dim})
    taken = [name for name in (index, step) if name in rows.variables]
    if taken:
        raise ValueError(f"{table.where} has a variable {taken[0]!r} already; choose another name with index= or step=")
    coords: Mapping[str, Any] = {
        index: (dim, np.repeat(labels, lengths)),
        step: (dim, np.arange(size) - np.repeat(ends - lengths, lengths)),
    }
    return set_record_if_needed(rows.assign_coords(coords), {(): (dim, *map(str, inference.batch_dims[1:]))})


def _checked_ends(table: Table, size: int) -> np.ndarray[Any, Any]:
    given = table.values
    with np.errstate(invalid="ignore"):
        ends = given.astype("int64") if given.dtype.kind in "iuf" else np.empty(0, "int64")
    if not np.array_equal(ends, given) or (given.dtype.kind == "f" and not np.isfinite(given).all()):
        raise ValueError(
            f"{table.where}: {table.name!r} {given[:5].tolist()}... has values that are no numbers of rows: expected, for each "
            f"episode, the number of the row behind its last one"
        )
    if np.any(np.diff(ends, prepend=0) < 0) or (len(ends) and ends[-1] > size) or (size and not len(ends)):
        raise ValueError(
            f"{table.where}: {table.name!r} {ends[:5].tolist()}... does not fit a table of {size} rows: expected ascending ends up "
            f"to {size}"
        )
    return ends


def _changes(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The row behind each run of equal values."""
    return (
        np.append(np.flatnonzero(values[1:] != values[:-1]) + 1, len(values)) if len(values) else np.empty(0, "int64")
    )


def _behind_flags(flags: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The row behind each flag; the rows behind the last one are an episode that was cut short."""
    ends = np.flatnonzero(flags) + 1
    return ends if not len(flags) or (len(ends) and ends[-1] == len(flags)) else np.append(ends, len(flags))


def _checked_numbers(table: Table, ends: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    labels = table.values[ends - 1] if len(ends) else table.values[:0]
    if len(np.unique(labels)) == len(labels):
        return labels
    seen, first = np.unique(labels, return_index=True)
    again = next(place for place, label in enumerate(labels) if first[np.searchsorted(seen, label)] != place)
    raise ValueError(
        f"{table.where}: the episode {labels[again]} of {table.name!r} comes back in row {ends[again - 1]}, behind other episodes; "
        f"bring its rows together first, for example with ds.sortby({table.name!r})"
    )
