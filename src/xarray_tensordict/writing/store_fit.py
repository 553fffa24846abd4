"""What is written to arrays that are there: whether it fits, as which values, and under which names of dims.

Everything is compared with the store before a byte is written. Otherwise rows could be missing, or values that
mean something else than those before them.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xarray as xr
import zarr

from .._compat.xarray import dataset_of, remade, transpose_axes
from ..core.metadata import ARRAY_ATTR, CF_PACKING, NS_UNITS, STEP_ATTR, parse_array_record
from ..core.model import GroupBatch, Key
from ..core.naming import local_dim
from ..core.values import held_objects
from ..core.voting import is_made_up, is_marked
from ..dataset.records import infer_dataset
from ..warnings import StoredFormWarning, warn
from .plan import Source
from .stored_form import nanoseconds
from .values import Values, as_declared, encoded, map_values, read_now

_CODED = frozenset(CF_PACKING) - {"dtype"}
_TEXT = "UTO"


def check_sizes(name: str, new: xr.Variable, old: xr.Variable, free: Mapping[str, int | None], where: str) -> None:
    """Raise ``ValueError`` unless a variable has the dims, the dtype and the sizes of the stored one.

    Parameters
    ----------
    free
        Other sizes for some dims, None for any.
    """
    if new.dims != old.dims:
        raise ValueError(
            f"{where}: variable {name!r} has dims {list(old.dims)} there, found {list(new.dims)}; transpose or "
            "rename the dims"
        )
    kinds = new.dtype.kind, old.dtype.kind
    alike = kinds[0] == kinds[1] and kinds[0] in "SmM"
    if not alike and not all(kind in _TEXT for kind in kinds) and new.dtype.name != old.dtype.name:
        calendar = old.encoding.get("calendar") if kinds == ("M", "O") else None
        remedy = f"convert it with .astype({old.dtype.name!r}) if nothing is lost by that"
        if calendar is not None:
            remedy = f"convert it with ds.convert_calendar({calendar!r}, use_cftime=True)"
        raise ValueError(f"{where}: variable {name!r} has dtype {old.dtype} there, found {new.dtype}; {remedy}")
    for dim, found, expected in zip(new.dims, new.shape, old.shape, strict=True):
        needed = free.get(str(dim), expected)
        if needed is not None and found != needed:
            raise ValueError(f"{where}: variable {name!r} needs size {needed} along {dim!r}, found {found}")


# -- values as an array stores them ------------------------------------------------------------------------------------


def fit(name: str, new: xr.Variable, there: xr.Variable, array: zarr.Array[Any], where: str) -> xr.Variable:
    """The values of `new` as `array` stores them, its axes in the order of the array.

    Parameters
    ----------
    new
        Decoded, in memory or held by dask.
    there
        The variable that the engine makes of the array.

    Raises
    ------
    ValueError
        For values that the array cannot hold exactly: times between its units, strings longer than its own, numbers that
        would be read as missing. What is packed with a scale is rounded by it, as all there is in the array.
    TypeError
        Where blocks of dask lose values by becoming what they were declared to be.
    """
    attrs = dict(array.attrs)
    kind, fill = new.dtype.kind, there.encoding.get("_FillValue")
    # zarr v2 has the fill value of xarray in the metadata; NaN stands for itself
    fills = fill is not None and not (isinstance(fill, (float, complex, np.inexact)) and np.isnan(fill))
    is_coded = bool(_CODED & set(attrs)) or fills
    if kind not in _TEXT + "S":
        new = as_declared(new, name)
    # Python objects in memory may be dates; those of dask are not computed for the question
    is_dates = kind == "O" and (
        "calendar" in there.encoding or (new.chunks is None and held_objects(read_now(new)) == "dates")
    )
    if kind in "mM":
        fitted = _times(name, new, there, array, where, is_exact=not is_coded and attrs.get("units") in _NANOSECONDS)
    elif is_dates:
        fitted = _dates(name, new, there, array, where)
    elif kind in "UTOS":
        fitted = _text(name, new, array, where)
    elif is_coded or (array.metadata.zarr_format == 2 and array.dtype != there.dtype):
        fitted = _as_there(name, new, there, array, where)
    else:
        fitted = new
    order = parse_array_record(attrs.get(ARRAY_ATTR), name).get("order")
    return fitted if order is None else transpose_axes(fitted, [order.index(axis) for axis in range(len(order))])


_NANOSECONDS = (NS_UNITS, "nanoseconds")


def _times(
    name: str, new: xr.Variable, there: xr.Variable, array: zarr.Array[Any], where: str, *, is_exact: bool
) -> xr.Variable:
    def exactly(dtype: np.dtype[Any]) -> xr.Variable:
        def convert(values: Values) -> Values:
            converted = values.astype(dtype)
            if not np.array_equal(converted.astype(values.dtype), values, equal_nan=True):
                raise ValueError(
                    f"{where}: variable {name!r} has the resolution {dtype} there, and the new times are finer "
                    f"({values.dtype}); round them, or write to a new store"
                )
            return converted

        return map_values(new, convert, dtype)

    if there.dtype != new.dtype or new.chunks is not None:  # blocks of dask may be finer than was declared
        new = exactly(there.dtype)
    if array.dtype.kind in "mM":
        return exactly(np.dtype(array.dtype))
    if is_exact and array.dtype == np.dtype("int64"):
        return map_values(new, lambda values: nanoseconds(values, name), np.dtype("int64"))
    return _as_there(name, new, there, array, where)


def _dates(name: str, new: xr.Variable, there: xr.Variable, array: zarr.Array[Any], where: str) -> xr.Variable:
    """Dates of cftime: numbers in the units and the calendar of the array."""
    expected = there.encoding.get("calendar")
    new = remade(new, data=read_now(new))
    found = {getattr(item, "calendar", None) for item in new.values.flat}
    if expected is None or found - {expected}:
        raise ValueError(
            f"{where}: variable {name!r} has {f'dates of the calendar {expected!r}' if expected else 'no dates'} there, found "
            f"{' and '.join(f'dates of the calendar {each!r}' if each else 'objects that are no dates' for each in found)}; "
            f"{f'convert the dates with ds.convert_calendar({expected!r}), or ' if expected else ''}write to a new store"
        )
    return _as_there(name, new, there, array, where)


def _as_there(name: str, new: xr.Variable, there: xr.Variable, array: zarr.Array[Any], where: str) -> xr.Variable:
    """Encoded with the packing, units and fill value of the array; what does not come back is refused."""
    return encoded(
        name, new, there.encoding, np.dtype(array.dtype), remedy=f"{where} stores it so; write to a new store"
    )


def _text(name: str, new: xr.Variable, array: zarr.Array[Any], where: str) -> xr.Variable:
    stored = np.dtype(array.dtype)
    if stored.kind not in "US":
        is_objects = new.dtype.kind == "O" and new.chunks is None
        return remade(new, data=np.asarray(new.values, dtype=object)) if is_objects else new

    def convert(values: Values) -> Values:
        # numpy casts no strings of any length to fixed ones whose length it would have to find
        found = (values.astype(object) if values.dtype.kind == "T" else values).astype(stored.kind)
        if found.dtype.itemsize > stored.itemsize:
            raise ValueError(
                f"{where}: variable {name!r} has strings of at most {stored} there, and the new ones are longer "
                f"({found.dtype}); write to a new store, with strings of any length (.astype(object))"
            )
        return found.astype(stored)

    return map_values(new, convert, stored)


# -- rows that are appended --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """Rows that fit a store: what is appended, and the store, under the same names of dims; and the dims that grow.

    `attrs` has attributes that are others afterwards, by variable, None for those that go.
    """

    source: Source
    there: xr.Dataset
    dims: frozenset[str]
    attrs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def variables(self) -> Iterator[tuple[Key, str, xr.Variable, int]]:
        """What grows, as :meth:`.plan.Source.variables` gives it, and the axis along which it does."""
        for key, name, variable in self.source.variables():
            for axis, dim in enumerate(self.source.flat.variables[name].dims):
                if dim in self.dims:
                    yield key, name, variable, axis
                    break

    def batches(self) -> dict[Key, GroupBatch]:
        """The batch of each group afterwards."""
        added = {dim: int(self.source.flat.sizes[dim]) for dim in self.dims}
        return {
            key: replace(
                batch, sizes=tuple(s + added.get(str(dim), 0) for dim, s in zip(batch.dims, batch.sizes, strict=True))
            )
            for key, batch in infer_dataset(self.there).groups.items()
        }


def fitting_rows(source: Source, there: xr.Dataset, append_dim: str, where: str) -> Rows:
    """Check the rows of `source` against the store that the engine shows as `there`; the same for all formats.

    Raises
    ------
    ValueError
        For variables that are missing, that are new, that have other dims, dtypes, sizes or units, or that lack the dim and
        differ from the store. The message names them.
    """
    rows = Rows(*_grown_dims(source, there, append_dim))
    _check_rows(rows.source, rows.there, rows.dims, where)
    return replace(rows, attrs=changed_label_attrs(rows.source.flat, rows.there, rows.dims, where))


def _check_rows(source: Source, old: xr.Dataset, dims: Collection[str], where: str) -> None:
    new, dims = source.flat, set(dims)
    for each in sorted(dims):
        if each not in old.sizes:
            raise ValueError(
                f"{where}: append_dim={each!r} is no dim there; the dims are: {sorted(map(str, old.sizes))}"
            )
        if each not in new.sizes:
            raise ValueError(
                f"append_dim={each!r} is no dim of the dataset; the dims are: {sorted(map(str, new.sizes))}"
            )
    grows = [name for name, variable in old.variables.items() if dims & set(variable.dims)]
    missing = [str(name) for name in grows if name not in new.variables]
    if missing:
        raise ValueError(
            f"{where}: {missing[:5]} have the dim {' or '.join(map(repr, sorted(dims)))} there and are not in the dataset, so "
            f"their rows would be missing; add them"
        )
    for name, variable in new.variables.items():
        there = old.variables.get(name)
        if there is None:
            continue
        if name in grows or dims & set(variable.dims):
            check_sizes(str(name), variable, there, dict.fromkeys(map(str, dims)), where)
        _check_units(str(name), variable, there, where)
    unknown = [str(name) for name in new.variables if name not in old.variables]
    if unknown:
        raise ValueError(
            f"{where}: {unknown[:5]} are not there, and an append adds rows, no variables; drop them, or write to a new store"
        )
    check_rest(source, old, dims, where)


def check_rest(source: Source, old: xr.Dataset, dims: Collection[str], where: str) -> None:
    """Raise ``ValueError`` unless all variables that have none of some dims equal the stored ones: they are not written."""
    for _, name, variable in source.variables():
        if set(dims).isdisjoint(source.flat.variables[name].dims) and not same_values(variable, old.variables[name]):
            raise ValueError(
                f"{where}: variable {name!r} has no dim {' or '.join(map(repr, sorted(dims)))}, so it stays as it is, and its "
                f"values are not those there; drop it, or overwrite it with mode='a' first"
            )


def check_labels(source: Source, old: xr.Dataset, where: str) -> None:
    """Refuse other labels for rows that are there and are not written anew.

    Raises
    ------
    ValueError
        Nothing has been written.
    """
    for _, name, variable in source.variables():
        kept = [str(k) for k, v in old.variables.items() if name in v.dims and k not in source.flat.variables]
        is_index = name in old.variables and old.variables[name].dims == (name,)
        if kept and is_index and not same_values(variable, old.variables[name]):
            raise ValueError(
                f"{where}: the values of {name!r} are not those that the store has, and {kept[:5]} would get them as labels, "
                f"too. Write to a new store, drop {name!r} if the order is the same, or pass {kept[:5]} as well"
            )


def _check_units(name: str, new: xr.Variable, old: xr.Variable, where: str) -> None:
    found, expected = (variable.attrs.get("units") for variable in (new, old))
    if None not in (found, expected) and found != expected:
        raise ValueError(
            f"{where}: variable {name!r} has the units {expected!r} there, found {found!r}; convert the values and the attribute"
        )


def same_values(new: xr.Variable, old: xr.Variable) -> bool:
    """Whether two variables have the same sizes and values; NaN equals NaN, text equals text of another dtype."""
    if new.shape != old.shape:
        return False
    values = read_now(new), read_now(old)
    if any(array.dtype.kind in "OUST" for array in values):
        return bool(values[0].astype(object).tolist() == values[1].astype(object).tolist())
    return bool(np.array_equal(values[0], values[1], equal_nan=values[0].dtype.kind in "fcmM"))


# -- names of dims that the engine made up -----------------------------------------------------------------------------


def adopt_names(
    source: Source, there: xr.Dataset, region: Any, append_dim: Hashable | None
) -> tuple[Source, Any, Hashable | None]:
    """Rename dims to those of the store, where these were made up; the region and the dim to append along as well.

    A buffer of ``TensorDict.from_schema`` has no names for its dims: what is written into it is matched by position. Names that
    the store records, and dims that would stand for two of the store's, are left as they are.

    Examples
    --------
    >>> from .plan import source_of_dataset
    >>> there = xr.Dataset({"obs": (("batch_0", "dim_3"), [[0.0] * 3] * 8)})
    >>> rows = source_of_dataset(xr.Dataset({"obs": (("time", "joint"), [[1.0] * 3] * 2)}))
    >>> renamed, region, _ = adopt_names(rows, there, {"time": slice(4, 6)}, None)
    >>> renamed.flat["obs"].dims, region
    (('batch_0', 'dim_3'), {'batch_0': slice(4, 6, None)})
    """
    found: dict[str, set[str]] = {}
    for name, variable in source.flat.variables.items():
        old = there.variables.get(name)
        if old is None or old.ndim != variable.ndim:
            continue
        for mine, theirs in zip(map(str, variable.dims), map(str, old.dims), strict=True):
            if mine not in there.dims and (is_marked(theirs) or is_made_up(theirs, old.sizes[theirs])):
                found.setdefault(mine, set()).add(theirs)
    names = {mine: next(iter(theirs)) for mine, theirs in found.items() if len(theirs) == 1}
    taken = [*names.values(), *map(str, source.flat.dims)]
    names = {mine: theirs for mine, theirs in names.items() if taken.count(theirs) == 1}
    if not names:
        return source, region, append_dim
    if isinstance(region, Mapping):
        region = {names.get(str(dim), dim): part for dim, part in region.items()}
    flat = _with_dims(
        source.flat,
        {name: tuple(names.get(str(d), str(d)) for d in v.dims) for name, v in source.flat.variables.items()},
    )
    # a store that names no dims has those of the flat view in its groups
    nodes = {
        key: replace(
            node,
            variables={
                local: remade(v, dims=flat.variables[node.names[local]].dims) for local, v in node.variables.items()
            },
        )
        for key, node in source.nodes.items()
    }
    return replace(source, flat=flat, nodes=nodes), region, names.get(str(append_dim), append_dim)


def _with_dims(ds: xr.Dataset, dims: Mapping[Any, tuple[str, ...]]) -> xr.Dataset:
    """A Dataset whose variables have other names of dims, without its indexes."""
    variables = {name: remade(variable, dims=dims[name]) for name, variable in ds.variables.items()}
    return dataset_of(variables, ds.coords, ds.attrs)


def _grown_dims(source: Source, there: xr.Dataset, append_dim: str) -> tuple[Source, xr.Dataset, frozenset[str]]:
    """Both under the same names of dims, and which of them grow.

    Where the groups of a tree have a dim of that name each, of different lengths, each is called after its group.
    """
    source, _, adopted = adopt_names(source, there, None, append_dim)
    dim = str(adopted)
    if dim in there.sizes and dim in source.flat.sizes:
        return source, there, frozenset([dim])
    own = {name: tuple(local_dim(str(each), _group(name)) for each in v.dims) for name, v in there.variables.items()}
    mine = {name: tuple(map(str, variable.dims)) for _, name, variable in source.variables()}
    if not any(dim in dims for dims in own.values()) or not any(dim in dims for dims in mine.values()):
        return source, there, frozenset([dim])
    flat, old = _under_own_names(source.flat, mine), _under_own_names(there, own)
    found = {str(each) for each in flat.dims if str(each).rpartition(".")[2] == dim}
    return replace(source, flat=flat), old, frozenset(found)


def _group(name: Hashable) -> tuple[str, ...]:
    return tuple(str(name).split("/")[:-1])


def _under_own_names(ds: xr.Dataset, dims: Mapping[Any, tuple[str, ...]]) -> xr.Dataset:
    """Dims called after the outermost group that has one of that name above, as nodes of a tree share theirs."""
    owners = {(_group(name), dim) for name, own in dims.items() for dim in own}

    def owned(group: tuple[str, ...], dim: str) -> str:
        owner = next(group[:n] for n in range(len(group) + 1) if (group[:n], dim) in owners)
        return ".".join((*owner, dim))

    return _with_dims(ds, {name: tuple(owned(_group(name), dim) for dim in dims[name]) for name in ds.variables})


# -- labels of episodes --------------------------------------------------------------------------------------------------


def changed_label_attrs(
    new: xr.Dataset, there: xr.Dataset, dims: Collection[str], where: str
) -> dict[str, dict[str, Any]]:
    """Check the labels of episodes, of which the last stored one is read, and say which of their attributes change.

    ``concat`` counts them from 0 in each file. A label that comes back would make one episode of two: windows would cross the border,
    and a split would not see it.

    Returns
    -------
    dict
        The attributes by variable; those that are None go.

    Raises
    ------
    ValueError
        For labels that are not behind those of the store, unless the rows continue its last episode.
    """
    changed = {}
    for name, label in new.variables.items():
        old = there.variables[name]
        if not label.size or not old.size or label.dtype.kind not in "iu" or set(dims).isdisjoint(label.dims):
            continue
        step = label.attrs.get(STEP_ATTR, old.attrs.get(STEP_ATTR))
        if label.ndim != 1 or not isinstance(step, str):
            continue
        labels, last = read_now(label), _end(old, -1)
        continues = int(labels[0]) == last and _goes_on(new, there, step)
        lowest = int(labels.min())
        if lowest < last or (lowest == last and not continues):
            shift = max(len(_items(old.attrs.get("names")) or ()), last + 1 - lowest)
            raise ValueError(
                f"{where}: {name!r} numbers episodes, and the last one there is {last}; the rows to be appended start with "
                f"{lowest}, and would be taken for its rows, or for those before it. Write ds.assign_coords({{{name!r}: "
                f"ds[{name!r}].copy(data=ds[{name!r}] + {shift})}}). Rows of the episode {last} itself need {step!r} to go on"
            )
        attrs = _true_attrs(labels, label.attrs, old.attrs)
        if attrs:
            changed[str(name)] = attrs
        if attrs.get("names", ()) is None:
            warn(
                f"{where}: the attributes {sorted(attrs)} of {name!r} do not describe the episodes that are appended, and are "
                f"removed",
                StoredFormWarning,
            )
    return changed


def _end(variable: xr.Variable, place: int) -> int:
    return int(read_now(variable[[place]])[0])


def _goes_on(new: xr.Dataset, there: xr.Dataset, step: str) -> bool:
    """Whether the steps of the first new row follow those of the last stored one, where both have some."""
    variables = [ds.variables.get(step) for ds in (new, there)]
    counted = [each for each in variables if each is not None and each.ndim == 1 and each.size]
    return len(counted) < 2 or _end(counted[0], 0) == _end(counted[1], -1) + 1


def _items(value: Any) -> list[Any] | None:
    if isinstance(value, np.ndarray):
        return list(value.ravel().tolist())
    return list(value) if isinstance(value, list | tuple) else None


def _true_attrs(
    labels: np.ndarray[Any, Any], new: Mapping[Any, Any], old: Mapping[Any, Any]
) -> dict[str, list[Any] | None]:
    """The lists with an item for each episode: joined where the new labels number the new items, gone where nothing does."""
    names, more = (_items(attrs.get("names")) for attrs in (old, new))
    if names is None or (labels.max() < len(names) and more in (None, names)):
        return {}
    lists = {str(word): _items(value) for word, value in old.items()}
    own = {word: items for word, items in lists.items() if items is not None and len(items) == len(names)}
    numbered = range(len(names), len(names) + len(more or ()))
    if more is None or np.unique(labels).tolist() != list(numbered):
        return dict.fromkeys(own)
    added = {word: _items(new.get(word)) or [] for word in own}
    return {word: items + added[word] if len(added[word]) == len(more) else None for word, items in own.items()}
