"""Episodes of different lengths as one lazy Dataset: groups ``demo_0``, ``demo_1``, ... below one node.

Their rows are one lazy array, and one array of dask: a graph for each of thousands of episodes takes minutes.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import xarray as xr
from xarray.core import indexing
from xarray.core.indexing import LazilyIndexedArray

from .._compat.xarray import data_of, dataset_of, remade
from ..core.inference import infer_batch
from ..core.metadata import STEP_ATTR
from ..core.model import Inference, Key
from ..core.naming import check_choice, feature_name
from ..core.values import jsonable
from ..core.voting import is_made_up, is_marked, is_time_name
from ..formats.array_wrappers import OuterArray, read_outer
from ..formats.raw.arrays import counted_from_start
from ..warnings import LeftOutWarning, warn
from .describe import describe_dataset, dropped, holds_numbered, key_of, odd_rows
from .episode_tables import holds_table, label_node
from .records import set_record_if_needed
from .trees import flat_view

Unbatched = Literal["drop", "expand"]

_LONGEST_TEXT = 200
"""Attributes of single episodes that are longer (robomimic keeps whole XML models) stay in the groups."""


def natural_order(names: Sequence[str]) -> list[str]:
    """Sort names as people do.

    Examples
    --------
    >>> natural_order(["demo_12", "demo_2", "demo_1"])
    ['demo_1', 'demo_2', 'demo_12']
    """

    def parts(name: str) -> list[str | int]:
        # the text between numbers and the numbers take turns
        return [int(part) if place % 2 else part for place, part in enumerate(re.split(r"(\d+)", name))]

    return sorted(names, key=parts)


def concat(
    dt: xr.DataTree,
    dim: str,
    *,
    index: str = "episode",
    step: str = "step",
    by: str | Key | None = None,
    unbatched: Unbatched = "drop",
) -> xr.Dataset:
    """Concatenate the episodes below a node; see ``DataTree.td.concat``."""
    check_choice("unbatched", unbatched, ("drop", "expand"))
    episodes = {} if by is not None or holds_table(dt) else _episode_groups(dt)
    # demo_0, demo_1, ... of equal length share a batch; agent_0, agent_1, ... of each of several episodes do, too
    if any(holds_numbered(found) for name, (_, found) in episodes.items() if not re.search(r"\d", name)):
        episodes = {}
    if not episodes:
        below = next((name for name, child in dt.children.items() if _episode_groups(child, quietly=True)), None)
        hint = _why_none(dt) if below is None else f" There are some in {below!r}: dt[{below!r}].td.concat(...)."
        return label_node(dt, dim, index, step, by, hint)
    groups = {name: flat for name, (flat, _) in episodes.items()}
    left_out: set[str] = set()
    parts = {}
    for name, (flat, inference) in episodes.items():
        moved = _along(dt.children[name].path, flat, inference, dim, (index, step))
        parts[name] = _with_single_values(moved, dim, unbatched, left_out)
    _check_alike(parts, dim, groups)
    parts = _with_shared_coords(parts, dim, left_out)
    _warn_without(left_out, parts, dim, groups)
    batches = [[str(each) for each in inference.batch_dims] for _, inference in episodes.values()]
    also = [each for each in batches[0] if all(each in batch for batch in batches)]
    return _joined(parts, dim, index, step, also)


def _episode_groups(dt: xr.DataTree, *, quietly: bool = False) -> dict[str, tuple[xr.Dataset, Inference]]:
    """The groups in a node that have a batch of their own, in natural order; others that hold numbers are named.

    Raises
    ------
    ValueError
        Where a group without a batch has the same entries as one with a batch: an episode would be left out.
    """
    views = {name: flat_view(dt.children[name]) for name in natural_order(list(dt.children))}
    if not any(inference.batch_size for _, inference in views.values()):
        # members of a lazy stack record that they have no batch; what is asked for here is to join them along one
        views = {name: _with_rows(flat) for name, (flat, _) in views.items()}
    found = {name: view for name, view in views.items() if view[1].batch_size}
    without = {
        name: view
        for name, view in views.items()
        if name not in found and any(v.ndim and v.dtype.kind in "biufc" for v in view[0].data_vars.values())
    }
    if not found or not without or quietly:
        return found
    entries = {frozenset(flat.variables): name for name, (flat, _) in reversed(list(found.items()))}
    for name, (flat, _) in without.items():
        like = entries.get(frozenset(flat.variables))
        if like is not None:
            raise ValueError(
                f"group {dt.path!r}: {name!r} has the same entries as the episode {like!r}, and no batch:{_row_counts(flat)}"
            )
    reasons = "; ".join(f"{name!r}: {inference.reason}" for name, (_, inference) in without.items())
    warn(f"groups without a batch are no episodes: {reasons}", LeftOutWarning)
    return found


def _with_rows(flat: xr.Dataset) -> tuple[xr.Dataset, Inference]:
    """A group that records no batch, with the batch that the shapes of its arrays without names give it."""
    infos = [
        replace(info, dims=())
        for info in describe_dataset(flat)
        if all(is_made_up(str(dim), size) for dim, size in zip(info.dims, info.shape, strict=True))
    ]
    found = infer_batch(infos)
    if not found.batch_size:
        return flat, found
    rows = {
        name: remade(v, dims=("batch_0", *v.dims[1:]))
        for name, v in flat.variables.items()
        if found.classes.get(key_of(name)) == "batched"
    }
    moved = xr.Dataset({**flat.variables, **rows}).set_coords(list(flat.coords))
    return moved, infer_batch(describe_dataset(moved))


def _why_none(dt: xr.DataTree) -> str:
    """The first group whose arrays have different numbers of rows (Minari's last observation), as a sentence."""
    for name in natural_order(list(dt.children)):
        flat, inference = flat_view(dt.children[name])
        if not inference.batch_size and (counts := _row_counts(flat)):
            return f" {name!r} is none:{counts}"
    return ""


def _row_counts(flat: xr.Dataset) -> str:
    return odd_rows({str(key): v.shape[0] for key, v in flat.data_vars.items() if v.ndim and v.dtype.kind in "biufc"})


def _warn_without(
    left_out: set[str], parts: Mapping[str, xr.Dataset], dim: str, groups: Mapping[str, xr.Dataset]
) -> None:
    """Warn about entries that are not in the result, with how to get them: the same for all rows, or with other rows (Minari)."""
    first, part = next(iter(parts.items()))
    rows = {name: part.sizes[dim] for name, part in parts.items()}
    other: dict[str, int] = {}
    for entry in sorted(left_out):
        found = {name: ds[entry].shape[0] for name, ds in groups.items() if entry in ds.variables}
        if len({*found.values()}) > 1 or all(count == rows[name] + 1 for name, count in found.items()):
            other[entry] = found.get(first, 0)
    if same := sorted(left_out - other.keys()):
        warn(
            f"episodes were concatenated without {same}, which have no batch dim: there is one array of them for each episode and "
            f"not for each row. unbatched='expand' repeats them for each row; they are in the groups, for example dt[{first!r}]",
            LeftOutWarning,
        )
    if other:
        like = next((str(name) for name in part.data_vars), "the others")
        counts = ", ".join(f"{entry}: {count}" for entry, count in {**other, like: rows[first]}.items())
        warn(
            f"episodes were concatenated without {[*other]}, which have another number of rows than the others (in {first!r} "
            f"{counts}); {dropped(other)} when opening leaves them out without this warning. They are in the groups, for "
            f"example dt[{first!r}]",
            LeftOutWarning,
        )


def _along(path: str, ds: xr.Dataset, inference: Inference, dim: str, taken: Sequence[str]) -> xr.Dataset:
    """One episode under the common name of its batch dim, which is the first, without the index of its rows."""
    dims = [str(each) for each in inference.batch_dims]
    # of (env, time), the rows of an episode are its steps
    batch = dim if dim in dims else next((each for each in dims if is_time_name(each)), dims[0])
    for name in taken:
        if name in ds.variables:
            raise ValueError(
                f"group {path!r} has a variable {name!r} already; choose another name with index= or step="
            )
    if batch != dim and (dim in ds.dims or dim in ds.variables):
        raise ValueError(
            f"group {path!r}: {dim!r} is the name of something else than the batch there; choose another dim"
        )
    if batch != dim:
        ds = ds.rename({batch: dim})
    ds = ds.reset_index([name for name in ds.xindexes if dim in ds[name].dims], drop=False)
    moved = {name: _with_common_dims(v, dim) if dim in v.dims else v for name, v in ds.variables.items()}
    # the index of a row is made when all rows are there
    return dataset_of(moved, ds.coords, ds.attrs, ds.xindexes)


def _with_common_dims(variable: xr.Variable, dim: str) -> xr.Variable:
    """The rows first, and features whose names the engine made up for one episode as it calls them in all."""
    first = variable.transpose(dim, ...)
    names: list[str] = [dim]
    for name, size in zip(first.dims[1:], first.shape[1:], strict=True):
        names.append(feature_name(size, {*names, *map(str, first.dims)}) if is_marked(str(name)) else str(name))
    return remade(first, dims=tuple(names))


def _with_single_values(episode: xr.Dataset, dim: str, unbatched: Unbatched, left_out: set[str]) -> xr.Dataset:
    """One value for an episode becomes one for each of its rows; coordinates of features stay as they are."""
    dims = {each for variable in episode.variables.values() if dim in variable.dims for each in variable.dims}
    kept: dict[Any, xr.Variable] = {}
    for name, variable in episode.variables.items():
        if dim in variable.dims or (variable.ndim and name in episode.coords and dims.issuperset(variable.dims)):
            kept[name] = variable
        elif not variable.ndim or unbatched == "expand":
            kept[name] = _repeated(variable, dim, episode.sizes[dim])
        else:
            left_out.add(str(name))
    indexes = {name: index for name, index in episode.xindexes.items() if kept.get(name) is episode.variables[name]}
    return dataset_of(kept, [name for name in kept if name in episode.coords], episode.attrs, indexes)


def _repeated(variable: xr.Variable, dim: str, size: int) -> xr.Variable:
    """The same values for each row, lazily: nothing is read."""
    held = variable.to_base_variable()
    if is_joinable(held):
        repeated = xr.Variable((dim, *held.dims), LazilyIndexedArray(RepeatedRow(data_of(held), size)), held.attrs)
        repeated.encoding = held.encoding
        return repeated
    held = held if held.chunks is not None else held.chunk()
    if held.dtype.hasobject:
        # dask reads one object as a fixed-length string, and joining cuts longer ones to the first one's length (measured)
        data: Any = held.data.map_blocks(partial(np.asarray, dtype=object), dtype=object)
        held = xr.Variable(held.dims, data, held.attrs, held.encoding)
    wide: xr.Variable = held.set_dims({dim: size, **dict(zip(held.dims, held.shape, strict=True))})
    return wide


# -- joining -----------------------------------------------------------------------------------------------------------


def _check_alike(parts: Mapping[str, xr.Dataset], dim: str, groups: Mapping[str, xr.Dataset]) -> None:
    """Episodes have the same entries, with the same dtypes and feature sizes, or an error names the first that differs."""
    first_name, first = next(iter(parts.items()))
    for name, part in parts.items():
        for entry in sorted(set(map(str, first.variables)) ^ set(map(str, part.variables))):
            has, lacks = (first_name, name) if entry in first.variables else (name, first_name)
            remedy = f"leave it out with {dropped([entry])} when opening, or give each episode an entry of that name"
            if entry in groups[lacks].variables:
                rows, other = (parts[each].sizes[dim] for each in (has, lacks))
                raise ValueError(
                    f"{entry!r} has {rows} rows in episode {has!r}, as its other entries, and "
                    f"{groups[lacks][entry].shape[0]} in {lacks!r}, where they have {other}; {remedy}"
                )
            raise ValueError(f"{entry!r} is in episode {has!r} and not in {lacks!r}; {remedy}")
        for label, variable in part.variables.items():
            like = first.variables[label]
            # strings of another longest length are strings
            dtypes = {v.dtype.kind if v.dtype.kind in "SU" else v.dtype for v in (variable, like)}
            if variable.dims != like.dims or variable.shape[1:] != like.shape[1:] or len(dtypes) > 1:
                raise ValueError(
                    f"{label!r} has dims {like.dims}, shape {like.shape} and dtype {like.dtype} in episode {first_name!r}, and "
                    f"{variable.dims}, {variable.shape}, {variable.dtype} in {name!r}; episodes must agree but for their length. "
                    f"Leave it out with {dropped([str(label)])} when opening"
                )


def _with_shared_coords(parts: Mapping[str, xr.Dataset], dim: str, left_out: set[str]) -> dict[str, xr.Dataset]:
    """Coordinates of features are those of all episodes, or they are left out; an index that differs is an error."""
    first_name, first = next(iter(parts.items()))
    differ: set[str] = set()
    for label, variable in first.variables.items():
        entry = str(label)
        others = [] if dim in variable.dims else list(parts.items())[1:]
        wrong = next((name for name, part in others if not variable.equals(part.variables[entry])), None)
        if wrong is not None and entry in first.xindexes:
            raise ValueError(
                f"the coordinate {entry!r} differs between the episodes {first_name!r} and {wrong!r}, so their features are not "
                f"the same; select what they share, or leave it out with {dropped([entry])} when opening"
            )
        if wrong is not None:
            differ.add(entry)
    left_out |= differ
    return {name: part.drop_vars(differ) for name, part in parts.items()}


def _joined(parts: Mapping[str, xr.Dataset], dim: str, index: str, step: str, batch_dims: Sequence[str]) -> xr.Dataset:
    columns = join(parts, dim)
    numbered = [
        part.drop_vars(columns).assign_coords(
            {index: (dim, np.full(part.sizes[dim], number)), step: (dim, np.arange(part.sizes[dim]))}
        )
        for number, part in enumerate(parts.values())
    ]
    rest = xr.concat(
        numbered,
        dim=dim,
        data_vars="minimal",
        coords="minimal",
        compat="override",
        join="override",
        combine_attrs="drop_conflicts",
    )
    joined = _with_columns(rest, columns, next(iter(parts.values())))
    joined[index].attrs.update(
        {"names": list(parts), STEP_ATTR: step},
        **_differing_attrs({name: part.attrs for name, part in parts.items()}),
    )
    # the other batch dims of the episodes, (env, time), under which each row has them
    others = [each for each in batch_dims if each != dim and each in joined.dims]
    return set_record_if_needed(joined, {(): (dim, *others)})


def _with_columns(rest: xr.Dataset, columns: Mapping[str, xr.Variable], like: xr.Dataset) -> xr.Dataset:
    """A Dataset with more variables; all stand in the order, and are the coordinates, that they are in `like`."""
    coords = {name: column for name, column in columns.items() if name in like.coords}
    data = {name: column for name, column in columns.items() if name not in coords}
    whole = rest.assign(data).assign_coords(coords)
    names = [name for name in (*like.variables, *rest.variables) if name in whole.variables]
    return dataset_of({name: whole.variables[name] for name in names}, whole.coords, rest.attrs, whole.xindexes)


def _differing_attrs(attrs: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Attributes that every episode has and that differ (``num_samples``), as one list each where they are short."""
    everywhere = set.intersection(*(set(found) for found in attrs.values())) - {"names", STEP_ATTR}
    lists = {name: [jsonable(found[name]) for found in attrs.values()] for name in sorted(everywhere)}
    return {
        name: values
        for name, values in lists.items()
        if all(isinstance(each, bool | int | float | str) and len(str(each)) <= _LONGEST_TEXT for each in values)
        and any(each != values[0] for each in values)
    }


Index = tuple[Any, ...]


class JoinedRows(OuterArray):
    """Lazy arrays one after the other along their first axis; only those are read whose rows are asked for.

    Parameters
    ----------
    parts
        Arrays that xarray can index, of the same shape but for the first axis.
    dtype
        That of the result, which holds the values of all.
    """

    def __init__(self, parts: Sequence[Any], dtype: np.dtype[Any]) -> None:
        self._wrapped = tuple(parts)
        self._stops = np.cumsum([part.shape[0] for part in parts])
        self.dtype = dtype
        self.shape = (int(self._stops[-1]), *parts[0].shape[1:])

    def _read(self, key: Index) -> Any:
        rows, *rest = key
        if isinstance(rows, slice):
            numbers = range(self.shape[0])[rows]
            if numbers and numbers.step == 1:
                return self._between(numbers.start, numbers.stop, rest)
            return self._picked(np.arange(numbers.start, numbers.stop, numbers.step), rest)
        picked = np.asarray(rows, np.int64)
        found = self._picked(counted_from_start(picked, self.shape[0]).reshape(-1), rest)
        return found if picked.ndim else found[0]

    def _part(self, number: int, rows: Any, rest: Sequence[Any]) -> np.ndarray[Any, Any]:
        part = self._wrapped[number]
        found = read_outer(part, (rows, *rest))
        # what is in memory stays its owner's
        return found.astype(self.dtype, copy=isinstance(part, np.ndarray))

    def _between(self, start: int, stop: int, rest: Sequence[Any]) -> np.ndarray[Any, Any]:
        first, last = np.searchsorted(self._stops, [start, stop - 1], side="right")
        found = []
        for number in range(first, last + 1):
            begin = int(self._stops[number]) - self._wrapped[number].shape[0]
            end = int(self._stops[number])
            if begin < end:
                found.append(self._part(number, slice(max(start, begin) - begin, min(stop, end) - begin), rest))
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _picked(self, rows: np.ndarray[Any, Any], rest: Sequence[Any]) -> np.ndarray[Any, Any]:
        """Rows by number: those of one part are read together."""
        if not rows.size:
            return self._part(0, slice(0, 0), rest)
        numbers = np.searchsorted(self._stops, rows, side="right")
        order = np.argsort(numbers, kind="stable")
        found = []
        for places in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
            number = int(numbers[places[0]])
            begin = int(self._stops[number]) - self._wrapped[number].shape[0]
            found.append(self._part(number, rows[places] - begin, rest))
        joined = np.concatenate(found)
        result = np.empty_like(joined)
        result[order] = joined
        return result


class RepeatedRow(OuterArray):
    """The same values for each of some rows."""

    def __init__(self, array: Any, size: int) -> None:
        self._wrapped = array
        self.dtype = np.dtype(array.dtype)
        self.shape = (size, *array.shape)

    def _read(self, key: Index) -> Any:
        rows, *rest = key
        values = self._values(tuple(rest))
        if isinstance(rows, int | np.integer):
            return values
        count = len(range(self.shape[0])[rows]) if isinstance(rows, slice) else len(rows)
        return np.repeat(values[None], count, axis=0)

    def _values(self, key: Index) -> np.ndarray[Any, Any]:
        if key or not self.dtype.hasobject:
            return read_outer(self._wrapped, key)
        # one object may be a sequence, which numpy would make an axis of
        value = np.empty((), object)
        value[()] = xr.Variable((), self._wrapped).values.item()
        return value


def is_joinable(variable: xr.Variable) -> bool:
    """Whether the values are in memory or read lazily by xarray: not those of dask, nor of another library."""
    return isinstance(data_of(variable), np.ndarray | indexing.ExplicitlyIndexed)


def joined_variable(parts: Sequence[xr.Variable], dim: str) -> xr.Variable:
    """The rows of all parts as one variable, backed by dask in chunks of one part each, more for a large one."""
    from .._compat.dask import row_chunks

    # xarray's own rules for attributes, encoding and dtype
    like = xr.Variable.concat([_without_rows(part) for part in parts], dim, combine_attrs="drop_conflicts")
    data = indexing.LazilyIndexedArray(JoinedRows([data_of(part) for part in parts], like.dtype))
    joined = remade(like, data=data)
    chunks = tuple(size for part in parts for size in row_chunks(part.shape, part.dtype))
    # to find a name by their contents, dask would pickle all parts
    return joined.chunk({dim: chunks}, name=f"joined-{uuid.uuid4().hex}")


def _without_rows(part: xr.Variable) -> xr.Variable:
    return remade(part, data=np.empty((0, *part.shape[1:]), part.dtype))


def join(parts: Mapping[str, xr.Dataset], dim: str) -> dict[str, xr.Variable]:
    """Of all variables that start with `dim` in every part, and that no part has as an array of dask, the rows of all parts."""
    datasets = list(parts.values())
    names = [name for name, variable in datasets[0].variables.items() if dim in variable.dims]
    columns = {str(name): [ds.variables[name] for ds in datasets] for name in names}
    return {name: joined_variable(column, dim) for name, column in columns.items() if all(map(is_joinable, column))}
