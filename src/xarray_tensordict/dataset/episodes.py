"""Episodes of different lengths as one lazy Dataset: groups ``demo_0``, ``demo_1``, ... below one node."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import xarray as xr
from xarray.core.indexing import LazilyIndexedArray

from .._compat.xarray import data_of, dataset_of, remade
from ..core.inference import infer_batch
from ..core.model import Inference
from ..core.naming import feature_name
from ..core.voting import is_made_up, is_marked, is_time_name
from ..warnings import LeftOutWarning, warn
from .describe import describe_dataset, dropped, key_of, odd_rows
from .episode_tables import holds_table, label_table, table_of
from .joined_rows import RepeatedRow, is_joinable, join, row_chunks
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
    by: str | None = None,
    unbatched: Unbatched = "drop",
    fill_value: Mapping[str, Any] | None = None,
) -> xr.Dataset:
    """Concatenate the episodes below a node; see ``DataTree.td.concat``."""
    if unbatched not in {"drop", "expand"}:
        raise ValueError(f"unbatched: expected 'drop' or 'expand', got {unbatched!r}")
    episodes = {} if by is not None or holds_table(dt) else _episode_groups(dt)
    if not episodes:
        below = [name for name, child in dt.children.items() if _episode_groups(child, quietly=True)]
        return label_table(table_of(dt, dim, index, by, below, _why_none(dt)), dim, index, step)
    groups = {name: flat for name, (flat, _) in episodes.items()}
    left_out: set[str] = set()
    single: set[str] = set()
    parts = {}
    for name, (flat, inference) in episodes.items():
        part = _one_episode(dt.children[name].path, flat, inference, dim, (index, step))
        parts[name] = _with_single_values(part, dim, unbatched, left_out)
        single |= part.single.keys() - part.coords
    if unbatched == "expand":
        _check_expanded(single, parts, dim, groups)
    parts = _filled(parts, dim, fill_value or {})
    _check_alike(parts, dim, groups)
    parts = _with_shared_coords(parts, dim, left_out)
    for sentence in _without(left_out, parts, dim, groups):
        warn(sentence, LeftOutWarning)
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


def _without(
    left_out: set[str], parts: Mapping[str, xr.Dataset], dim: str, groups: Mapping[str, xr.Dataset]
) -> list[str]:
    """Say which entries are not in the result, and how to get them: the same for all rows, or with other rows (Minari)."""
    first = next(iter(parts))
    longer = {name: (part.sizes[dim] + 1,) for name, part in parts.items()}
    other_rows = _of_several_shapes(left_out, groups) | {
        entry
        for entry in left_out
        if all(entry in ds.variables and ds[entry].shape[:1] == longer[name] for name, ds in groups.items())
    }
    found = []
    if same := sorted(left_out - other_rows):
        found.append(
            f"episodes were concatenated without {same}, which have no batch dim: there is one array of them for each episode and "
            f"not for each row. unbatched='expand' repeats them for each row; they are in the groups, for example dt[{first!r}]"
        )
    if other_rows:
        found.append(
            f"episodes were concatenated without {sorted(other_rows)}, which have another number of rows than the others"
            f"{_rows_text(other_rows, parts, dim, groups)}; {dropped(other_rows)} when opening leaves them out without this "
            f"warning. They are in the groups, for example dt[{first!r}]"
        )
    return found


def _of_several_shapes(entries: Iterable[str], groups: Mapping[str, xr.Dataset]) -> set[str]:
    shapes = {entry: {ds[entry].shape for ds in groups.values() if entry in ds.variables} for entry in entries}
    return {entry for entry, found in shapes.items() if len(found) > 1}


def _rows_text(
    entries: Collection[str], parts: Mapping[str, xr.Dataset], dim: str, groups: Mapping[str, xr.Dataset]
) -> str:
    name = next(iter(parts))
    shapes = {entry: groups[name][entry].shape[:1] for entry in sorted(entries) if entry in groups[name].variables}
    shapes |= {str(key): (parts[name].sizes[dim],) for key, v in parts[name].data_vars.items() if key not in entries}
    counts = [f"{entry}: {shape[0]}" for entry, shape in shapes.items() if shape]
    return f" (in {name!r} {', '.join(counts[: len(entries) + 1])})"


def _check_expanded(
    entries: Iterable[str], parts: Mapping[str, xr.Dataset], dim: str, groups: Mapping[str, xr.Dataset]
) -> None:
    if wrong := _of_several_shapes(entries, groups):
        raise ValueError(
            f"unbatched='expand': {sorted(wrong)} have another shape in another episode, so no array of rows can hold them"
            f"{_rows_text(wrong, parts, dim, groups)}; {dropped(wrong)} when opening leaves them out"
        )


@dataclass(frozen=True)
class _Episode:
    """One episode under the common name of its batch dim, and its variables without that dim."""

    rows: xr.Dataset
    single: dict[str, xr.Variable]
    coords: frozenset[str]


def _one_episode(path: str, ds: xr.Dataset, inference: Inference, dim: str, taken: Sequence[str]) -> _Episode:
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
    rows: dict[str, xr.Variable] = {}
    single: dict[str, xr.Variable] = {}
    for label, variable in ds.variables.items():
        (rows if dim in variable.dims else single)[str(label)] = variable
    moved = {key: _with_common_dims(variable, dim) for key, variable in rows.items()}
    coords = frozenset(str(name) for name in ds.coords)
    # the index of a row is made when all rows are there
    return _Episode(dataset_of(moved, coords, ds.attrs), single, coords)


def _with_common_dims(variable: xr.Variable, dim: str) -> xr.Variable:
    """The rows first, and features whose names the engine made up for one episode as it calls them in all."""
    first = variable.transpose(dim, ...)
    names: list[str] = [dim]
    for name, size in zip(first.dims[1:], first.shape[1:], strict=True):
        names.append(feature_name(size, {*names, *map(str, first.dims)}) if is_marked(str(name)) else str(name))
    moved = remade(first, dims=tuple(names))
    moved.encoding = variable.encoding
    return moved


def _with_single_values(episode: _Episode, dim: str, unbatched: Unbatched, left_out: set[str]) -> xr.Dataset:
    """One value for an episode becomes one for each of its rows; coordinates of features stay as they are."""
    rows = episode.rows
    kept: dict[str, xr.Variable] = {}
    for name, variable in episode.single.items():
        is_coord_of_features = name in episode.coords and set(variable.dims) <= set(rows.dims)
        if variable.ndim and is_coord_of_features:
            kept[name] = variable
        elif not variable.ndim or unbatched == "expand":
            kept[name] = _repeated(variable, dim, rows.sizes[dim])
        else:
            left_out.add(name)
    coords = {name: variable for name, variable in kept.items() if name in episode.coords}
    return rows.assign({name: v for name, v in kept.items() if name not in coords}).assign_coords(coords)


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
        held = xr.Variable(held.dims, held.data.map_blocks(_as_objects, dtype=object), held.attrs, held.encoding)
    wide: xr.Variable = held.set_dims({dim: size, **dict(zip(held.dims, held.shape, strict=True))})
    return wide


def _as_objects(values: Any) -> np.ndarray[Any, Any]:
    return np.asarray(values, dtype=object)


# -- joining -----------------------------------------------------------------------------------------------------------


def _filled(parts: Mapping[str, xr.Dataset], dim: str, fill_value: Mapping[str, Any]) -> dict[str, xr.Dataset]:
    """Entries that an episode lacks, filled with what the caller says."""
    filled = dict(parts)
    for entry, value in fill_value.items():
        sample = next((part for part in parts.values() if entry in part.variables), None)
        if sample is None:
            known = sorted({str(name) for part in parts.values() for name in part.variables})
            raise ValueError(f"fill_value: no episode has a variable {entry!r}; there are {known}")
        like = sample.variables[entry]
        held = _as_held(value, like.dtype)
        if held is None:
            raise ValueError(f"fill_value: {entry!r} has dtype {like.dtype}, which cannot hold {value!r}")
        for name, part in parts.items():
            if entry not in part.variables:
                rows = xr.Variable(like.dims, np.broadcast_to(held, (part.sizes[dim], *like.shape[1:])), like.attrs)
                is_coord = entry in sample.coords
                filled[name] = (filled[name].assign_coords if is_coord else filled[name].assign)({entry: rows})
    return filled


def _as_held(value: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
    """A single value as a column of this dtype holds it, a longer text in a longer dtype; None where it cannot."""
    if dtype.kind == "O":
        found: np.ndarray[Any, Any] = np.empty((), object)
        found[()] = value
        return found
    try:
        found = np.asarray(value, f"{dtype.kind}8") if dtype.kind in "mM" else np.asarray(value)
    except (TypeError, ValueError):
        return None
    if found.ndim or found.dtype.kind not in _HOLDS.get(dtype.kind, dtype.kind):
        return None
    if dtype.kind in "US":
        return found
    with np.errstate(all="ignore"):
        cast = found.astype(dtype)
    if dtype.kind in "fc":
        return cast if np.isfinite(found) == np.isfinite(cast) else None  # the nearest number will do
    return cast if cast == found or (dtype.kind in "mM" and np.isnat(found)) else None


_HOLDS = {"f": "biuf", "c": "biufc", "i": "biuf", "u": "biuf"}
"""Values of which kinds a column of a kind can hold, if it is not of that kind alone."""


def _check_alike(parts: Mapping[str, xr.Dataset], dim: str, groups: Mapping[str, xr.Dataset]) -> None:
    """Episodes have the same entries, with the same dtypes and feature sizes, or an error names the first that differs."""
    first_name, first = next(iter(parts.items()))
    for name, part in parts.items():
        for entry in sorted(set(map(str, first.variables)) ^ set(map(str, part.variables))):
            has, lacks = (first_name, name) if entry in first.variables else (name, first_name)
            if entry in groups[lacks].variables:
                rows, other = (parts[each].sizes[dim] for each in (has, lacks))
                raise ValueError(
                    f"{entry!r} has {rows} rows in episode {has!r}, as its other entries, and "
                    f"{groups[lacks][entry].shape[0]} in {lacks!r}, where they have {other}; leave it out with "
                    f"{dropped([entry])} when opening, or pass what its rows are with fill_value={{{entry!r}: ...}}"
                )
            raise ValueError(
                f"{entry!r} is in episode {has!r} and not in {lacks!r}; leave it out with drop_variables=[...] when opening (which "
                f"takes groups that are no episodes too), or pass what its rows are with fill_value={{{entry!r}: ...}}"
            )
        for label, variable in part.variables.items():
            _check_variable(str(label), variable, first.variables[label], name, first_name)


def _check_variable(entry: str, variable: xr.Variable, other: xr.Variable, name: str, first_name: str) -> None:
    # strings of another longest length are strings
    dtypes = {v.dtype.kind if v.dtype.kind in "SU" else v.dtype for v in (variable, other)}
    if variable.dims != other.dims or variable.shape[1:] != other.shape[1:] or len(dtypes) > 1:
        raise ValueError(
            f"{entry!r} has dims {other.dims}, shape {other.shape} and dtype {other.dtype} in episode {first_name!r}, and "
            f"{variable.dims}, {variable.shape}, {variable.dtype} in {name!r}; episodes must agree but for their length"
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


def _chunked(part: xr.Dataset, dim: str) -> xr.Dataset:
    """All rows backed by dask: chunks that are there stay."""
    rows = {name: v for name, v in part.variables.items() if dim in v.dims and v.chunks is None}
    if not rows:
        return part
    chunked = {name: v.chunk({dim: row_chunks(v.shape, v.dtype)}) for name, v in rows.items()}
    coords = {name: variable for name, variable in chunked.items() if name in part.coords}
    return part.assign({name: v for name, v in chunked.items() if name not in coords}).assign_coords(
        xr.Coordinates(coords, indexes={})
    )


def _joined(parts: Mapping[str, xr.Dataset], dim: str, index: str, step: str, batch_dims: Sequence[str]) -> xr.Dataset:
    columns = join(parts, dim)
    numbered = [
        _chunked(part.drop_vars(columns), dim).assign_coords(
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
        names=list(parts), **_differing_attrs({name: part.attrs for name, part in parts.items()})
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
    everywhere = set.intersection(*(set(found) for found in attrs.values())) - {"names"}
    lists = {name: [_python(found[name]) for found in attrs.values()] for name in sorted(everywhere)}
    return {
        name: values
        for name, values in lists.items()
        if all(map(_is_short, values)) and any(value != values[0] for value in values[1:])
    }


def _is_short(value: Any) -> bool:
    return isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= _LONGEST_TEXT)


def _python(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
