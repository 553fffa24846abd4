"""Episodes in one table: the rows of all of them, and a variable that marks where each ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import xarray as xr

from .._compat.xarray import is_loaded
from ..core.metadata import BATCH_DIMS_ATTR, STEP_ATTR
from ..core.model import GroupBatch, Key, entry_name
from ..core.voting import is_time_name
from .records import infer_dataset, set_record_if_needed
from .trees import flatten

_ENDS = ("episode_ends", "meta/episode_ends", "data/episode_ends", "../meta/episode_ends")
"""Where replay buffers keep the row behind each episode (diffusion policy: ``meta/episode_ends``)."""

_TRAJECTORIES = "collector/traj_ids"
"""What torchrl's collectors and samplers read themselves: it stays an entry."""

_PAIRS = (
    ("terminals", "timeouts"),
    ("terminated", "truncated"),
    ("terminations", "truncations"),
    ("is_last", "is_terminal"),
)
"""Columns of flags of which one alone misses ends of episodes: D4RL, gymnasium, Minari, RLDS."""

_COLUMNS: dict[tuple[str, ...], str] = {
    ("episode",): "numbers",
    ("episode_index",): "numbers",
    (_TRAJECTORIES,): "numbers",
    **dict.fromkeys(_PAIRS, "flags"),
    ("is_last",): "flags",
    ("terminals",): "flags",
    ("next/done",): "flags",
    ("dones",): "flags",
    ("is_first",): "firsts",
    ("is_init",): "firsts",
}
"""What columns of these names hold for each row, in the order in which they are looked for: the number of its episode (this
package, Minari and LeRobot, torchrl), whether it is the last of one (torchrl, robomimic), or the first (RLDS, torchrl)."""


@dataclass(frozen=True)
class _Table:
    """The rows, and the values that mark where episodes end.

    ``kind`` is what `values` are: "ends", the row behind each episode; "numbers", "flags" or "firsts", one for each row along
    the dim `along`. With each `run` rows an episode ends in any case: those of one env, where a table of ``[time, env]`` was
    joined.
    """

    rows: xr.Dataset
    where: str
    kind: str
    name: str
    values: np.ndarray[Any, Any]
    along: str
    run: int


def holds_table(dt: xr.DataTree) -> bool:
    """Whether a node is one table, and the groups in it are entries of its rows or parts of one replay buffer."""
    if _find(dt, _ENDS) is not None:
        return True
    batch = set(dt.td.batch_dims) if dt.data_vars else set()
    return any(batch.intersection(variable.dims) for variable in dt.data_vars.values())


def _find(dt: xr.DataTree, paths: Sequence[str]) -> xr.Variable | None:
    for path in paths:
        try:
            found = dt[path]
        except KeyError:
            continue
        if isinstance(found, xr.DataArray):
            return found.variable
    return None


def label_node(dt: xr.DataTree, dim: str, index: str, step: str, by: str | Key | None, hint: str) -> xr.Dataset:
    """The rows of the table in a node, or in its group ``data``, along `dim`, with the coordinates `index` and `step`.

    `by` is the variable that marks where episodes end, None looks for it; `hint` is added to the message where there are none.

    Raises
    ------
    ValueError
        Where no variable marks the ends of episodes, or it does not fit the table.
    """
    by = _checked_by(by)
    ends = _find(dt, (by, f"../{by}") if by is not None else _ENDS)
    node = dt.children["data"] if "data" in dt.children and not dt.data_vars else dt
    return _label(_table(flatten(node), ends, f"group {dt.path!r}", (dim, index), by, hint), dim, index, step)


def label_dataset(ds: xr.Dataset, dim: str, index: str, step: str, by: str | Key | None) -> xr.Dataset:
    """The rows of a Dataset with the coordinates `index` and `step`; see :func:`label_node`."""
    by = _checked_by(by)
    name = by or next((name for name in _ENDS if name in ds.variables), None)
    hint = " Groups that are episodes are shown by xr.open_datatree(...), where dt[...].td.concat(...) takes them together."
    return _label(_table(ds, ds.variables.get(name), "the dataset", (dim, index), by, hint), dim, index, step)


def _checked_by(by: Any) -> str | None:
    if by is None or isinstance(by, str) or (isinstance(by, tuple) and by not in _PAIRS):
        return cast("str | None", entry_name(by))
    pairs = " and ".join(" with ".join(pair) for pair in _PAIRS)
    raise TypeError(f"by: expected the name of one variable, got {by!r}; of the pairs {pairs} one name is enough")


def _table(
    rows: xr.Dataset, ends: xr.Variable | None, where: str, asked: tuple[str, str], by: str | None, hint: str
) -> _Table:
    dim, index = asked
    inference = infer_dataset(rows)
    batch = [str(each) for each in inference.batch_dims]
    if by is not None:
        ends = rows.variables.get(by, ends)
        if ends is None:
            raise ValueError(f"by: {where} has no variable {by!r}; there are {sorted(map(str, rows.variables))}.{hint}")
    kind, names = _marked_by(by, ends, rows, batch) if ends is not None else _columns(rows, index, batch)
    if not names:
        half = next((repr(name) for pair in _PAIRS for name in pair if name in rows.variables), "")
        raise ValueError(
            f"{where} holds no episodes: expected groups with a batch of their own, a variable 'episode_ends' (there or in "
            f"'meta'), a column {index!r} or 'episode_index' of episode numbers, or flags 'terminals' (and 'timeouts'), 'terminated' "
            f"with 'truncated', 'is_first', 'is_last', 'next/done' or 'dones' of 0 and 1; name another variable with by={half}. "
            f"Found variables {sorted(map(str, rows.variables))}.{hint}"
        )
    if not batch:
        raise ValueError(f"the table of episodes has no batch dim: {inference.explained}")
    along = dim if kind == "ends" and dim in batch else batch[0]
    run = rows.sizes[along]
    dims = _row_dims(rows.variables[names[0]], batch) if kind != "ends" and names[0] in rows.variables else []
    if len(dims) == 1:
        along, run = dims[0], rows.sizes[dims[0]]
    elif dims:
        along, (rows, run) = dim, _joined(rows, names[0], dims, dim, where, inference.groups)
    columns = [rows.variables[name] for name in names if name in rows.variables]
    if not columns and ends is not None:
        columns = [ends]  # in the group above
    values = [np.asarray(column.values).ravel() for column in columns]
    if kind in {"flags", "firsts"}:
        checked = [_checked_flags(found, name, where) for found, name in zip(values, names, strict=True)]
        values = [np.logical_or.reduce(checked)]
    elif names != (_TRAJECTORIES,):
        used = _ENDS if kind == "ends" and not by else names
        rows = rows.drop_vars([name for name in used if name in rows.variables])
    return _Table(rows, where, kind, " | ".join(names), values[0], along, run)


def _marked_by(
    by: str | None, ends: xr.Variable, rows: xr.Dataset, batch: Sequence[str]
) -> tuple[str, tuple[str, ...]]:
    """What the variable holds that was named, or found; of a pair of flags both are read where both are there."""
    if by is None:
        return "ends", ("episode_ends",)
    local = by.rpartition("/")[2]
    flags = {name for names, kind in _COLUMNS.items() if kind == "flags" for name in names}
    is_column = bool(_row_dims(ends, batch)) or ends.size in [rows.sizes[each] for each in batch[:1]]
    if _COLUMNS.get((local,)) == "firsts":
        return "firsts", (by,)
    if ends.dtype.kind == "b" or by in flags:
        pair = next((pair for pair in _PAIRS if by in pair), ())
        return "flags", pair if pair and all(_is_column(rows, name, batch, "biuf") for name in pair) else (by,)
    return "numbers" if by in rows.variables and is_column and local != "episode_ends" else "ends", (by,)


def _columns(rows: xr.Dataset, index: str, batch: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The columns that mark where episodes end, and what they hold."""
    for names, kind in ({(index,): "numbers"} | _COLUMNS).items():
        if all(_is_column(rows, name, batch, "biu" if kind == "numbers" else "biuf") for name in names):
            return kind, names
    return "none", ()


def _is_column(ds: xr.Dataset, name: str, batch: Sequence[str], kinds: str) -> bool:
    """Whether a variable holds one number or flag for each row."""
    variable = ds.variables.get(name)
    if variable is None or variable.dtype.kind not in kinds or not variable.ndim:
        return False
    return variable.size == variable.shape[0] or bool(_row_dims(variable, batch))


def _row_dims(variable: xr.Variable, batch: Sequence[str]) -> list[str]:
    """The batch dims of a variable that has no others; torchrl's columns have a dim of size one behind them."""
    others = [size for dim, size in zip(variable.dims, variable.shape, strict=True) if dim not in batch]
    return [dim for dim in batch if dim in variable.dims] if all(size == 1 for size in others) else []


def _joined(
    rows: xr.Dataset, name: str, dims: Sequence[str], dim: str, where: str, groups: Mapping[Key, GroupBatch]
) -> tuple[xr.Dataset, int]:
    """A table of ``[time, env]`` as rows along `dim`, the steps of each env behind those of the one before, lazy as it was.

    Returns
    -------
    tuple
        The rows, and how many each env has.

    Raises
    ------
    ValueError
        Where `dim` is in the table already, or the variable that marks the ends has more than two batch dims.
    """
    usual = next((each for each in dims if is_time_name(each)), dims[1])
    steps = dim if dim in dims else usual
    other = next(each for each in dims if each != steps)
    found = f"{where}: {name!r} has dims {rows.variables[name].dims}"
    if len(dims) > 2:
        raise ValueError(f"{found}, and concat joins rows along two batch dims at most; select first, isel({other}=0)")
    if dim in rows.dims or dim in rows.variables:
        directly = "ds.td.concat('row'). By hand" if steps == usual else "by hand"
        raise ValueError(
            f"{found}, and the steps of each {other!r}, one behind the other, need a dim of their own: {dim!r} is in the table "
            f"already. Choose another, {directly}, where the last step of each {other!r} ends an episode: "
            f"ds.stack(row=({other!r}, {steps!r}), create_index=False).transpose('row', ...).td.concat('row')"
        )
    lazy = {
        label: variable.chunk(variable.encoding.get("preferred_chunks", {}))
        for label, variable in rows.variables.items()
        if not is_loaded(variable) and variable.chunks is None and {*dims}.intersection(variable.dims)
    }
    stacked = rows.assign(lazy).stack({dim: (other, steps)}, create_index=False).transpose(dim, ...)
    stacked.attrs.pop(BATCH_DIMS_ATTR, None)
    return set_record_if_needed(stacked, _with_rows(groups, dims, dim)), rows.sizes[steps]


def _with_rows(groups: Mapping[Key, GroupBatch], dims: Sequence[str], dim: str) -> dict[Key, tuple[str | None, ...]]:
    """The batch dims of each group, where `dim`, in front, takes the place of others."""
    return {
        key: (dim, *(each for each in batch.dims if each not in dims)) if {*dims} & {*batch.dims} else batch.dims
        for key, batch in groups.items()
    }


def _label(table: _Table, dim: str, index: str, step: str) -> xr.Dataset:
    along, size = table.along, table.rows.sizes[table.along]
    ends = _checked_ends(table, size) if table.kind == "ends" else _ends_of_rows(table, size)
    lengths = np.diff(ends, prepend=0)
    # rows behind the last end belong to no finished episode
    size = int(ends[-1]) if len(ends) else 0
    rows = table.rows.isel({along: slice(0, size)})
    labels = _checked_numbers(table, ends) if table.kind == "numbers" else np.arange(len(ends))
    groups = infer_dataset(rows).groups
    if along != dim:
        rows = rows.rename({along: dim})
    taken = [name for name in (index, step) if name in rows.variables]
    if taken:
        raise ValueError(
            f"{table.where} has a variable {taken[0]!r} already; choose another name for the column with index= or step="
        )
    coords: Mapping[str, Any] = {
        index: (dim, np.repeat(labels, lengths), {STEP_ATTR: step}),
        step: (dim, np.arange(size) - np.repeat(ends - lengths, lengths)),
    }
    return set_record_if_needed(rows.assign_coords(coords), _with_rows(groups, [along], dim))


def _checked_flags(values: np.ndarray[Any, Any], name: str, where: str) -> np.ndarray[Any, Any]:
    flags = values.astype(bool)
    if values.dtype.kind not in "biuf" or not np.array_equal(flags, values):
        raise ValueError(
            f"{where}: {name!r} of dtype {values.dtype} {values[:5].tolist()}... has values that are no flags; expected one of 0 "
            f"or 1 for each row"
        )
    return flags


def _checked_ends(table: _Table, size: int) -> np.ndarray[Any, Any]:
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


def _ends_of_rows(table: _Table, size: int) -> np.ndarray[Any, Any]:
    """The row behind each run of equal numbers or each flag, or of each first row; rows behind the last are an episode cut short."""
    values = table.values
    if values.size != size:
        raise ValueError(
            f"{table.where}: {table.name!r} has {values.size} elements for the {size} rows along {table.along!r}; expected one each"
        )
    is_last = {"numbers": values[:-1] != values[1:], "flags": values[:-1], "firsts": values[1:]}[table.kind]
    runs = np.arange(table.run, size + 1, max(table.run, 1))
    return np.union1d(np.flatnonzero(is_last) + 1, runs).astype("int64")


def _checked_numbers(table: _Table, ends: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The number of each episode; where the envs of a joined table count for themselves, they are counted through."""
    labels = table.values[ends - 1] if len(ends) else table.values[:0]
    if len(np.unique(labels)) == len(labels):
        return labels
    seen: set[tuple[Any, Any]] = set()
    for row, label in zip([0, *ends[:-1].tolist()], labels.tolist(), strict=True):
        episode = (row // table.run, label)
        if episode in seen:
            raise ValueError(
                f"{table.where}: the episode {label} of {table.name!r} comes back in row {row}, behind other episodes; "
                f"bring its rows together first, for example with ds.sortby({table.name!r})"
            )
        seen.add(episode)
    return np.arange(len(ends))
