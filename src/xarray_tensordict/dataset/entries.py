"""Which variable of a Dataset becomes which entry of a tensordict, and how.

Nothing is read here: :mod:`..tensors.reading` reads entries, for ``to_tensordict``, the lazy tensordict, batches and writers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import pandas as pd
import xarray as xr
from pandas.api.extensions import ExtensionDtype

from .._compat.xarray import (
    bare_array,
    in_memory,
    is_index_data,
    multiindex_dims,
    positional,
    reads_far,
    reads_fresh_arrays,
    remade,
    transpose_axes,
)
from ..core.model import EntryClass, GroupBatch, Inference, Key, cached_property, entry_name
from ..core.naming import there_are
from ..core.values import held_objects, widened_dtype_name
from ..core.voting import is_marked
from ..formats.raw.arrays import RawRows, raw_rows
from .describe import check_paths, key_of

Unbatched = Literal["drop", "keep", "expand", "raise"]
Form = Literal["tensor", "rows", "value"]
Names = Iterable[str | Key]
"""Names of variables or groups; a nested one is ``"next/done"`` or ``("next", "done")``."""

_TORCH_KINDS = "biufc"
_NOT_IN_TORCH = frozenset(np.dtype(name).name for name in ("longdouble", "clongdouble")) - {"float64", "complex128"}


@dataclass(frozen=True)
class Entry:
    """A variable as an entry of a tensordict.

    Attributes
    ----------
    key
        Its key in the tensordict.
    name
        The name of the variable in the Dataset.
    variable
        The variable, its batch dims in front and in the order of the batch.
    entry_class
        Batched, partial (to be broadcast) or unbatched (to be kept whole, or expanded).
    form
        A tensor; "rows": one Python object for each batch element; "value": one Python object for all.
    batch
        The batch of the group it is in.
    missing_axes
        The batch axes that a partial variable lacks.
    torch_dtype
        The name of the torch dtype its values were widened from.
    """

    key: Key
    name: str
    variable: xr.Variable
    entry_class: EntryClass
    form: Form
    batch: GroupBatch
    missing_axes: tuple[int, ...] = ()
    torch_dtype: str | None = None

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The batch that it has: none of an unbatched entry."""
        return () if self.entry_class == "unbatched" else self.batch.sizes

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor, broadcast to the batch where it is partial; of rows, the batch they are in."""
        if self.form == "rows":
            return self.sizes
        held = len(self.sizes) - len(self.missing_axes)
        return (*self.sizes, *self.variable.shape[held:])

    @cached_property
    def is_plain(self) -> bool:
        """Whether its values as they are read are the tensor."""
        return self.form == "tensor" and not self.missing_axes

    @cached_property
    def raw(self) -> RawRows | None:
        """Its rows, where they can be read straight from a file."""
        found = bare_array(self.variable) if self.form == "tensor" else None
        return None if found is None else raw_rows(*found, self.torch_dtype)

    @cached_property
    def is_fresh(self) -> bool:
        """Whether every read of the variable gives an array of its own."""
        return reads_fresh_arrays(self.variable)

    @cached_property
    def is_far(self) -> bool:
        """Whether reading it is mostly waiting for a store."""
        return reads_far(self.variable)

    def lazy(self) -> Entry:
        """The same entry for many reads: the variable past xarray's cache, its axes called by their position."""
        return replace(self, variable=positional(self.variable))


@dataclass
class Plan:
    """What a Dataset becomes.

    Attributes
    ----------
    batches
        The batch of every group that has entries, and of those above; ``()`` is the root.
    entries
        In the order of the Dataset.
    unbatched
        Entries that ``unbatched="drop"`` leaves out.
    left_out
        Names of variables that no tensordict can hold, each with the reason.
    """

    batches: Mapping[Key, GroupBatch]
    entries: list[Entry] = field(default_factory=list)
    unbatched: list[Entry] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def td_names(batch: GroupBatch) -> list[str | None]:
    """The dimension names a tensordict gets: those this package made up are None there."""
    return [None if dim is None or is_marked(dim) else dim for dim in batch.dims]


def plan_entries(
    ds: xr.Dataset,
    inference: Inference,
    *,
    coords: bool | Iterable[str] = True,
    unbatched: Unbatched = "drop",
    include: Names | None = None,
    exclude: Names = (),
) -> Plan:
    """Plan the conversion of a Dataset.

    Parameters
    ----------
    coords
        Whether coordinates become entries; or the names of those that do.
    unbatched
        What happens to numeric variables (and arrays of strings) without a batch dim.
    include, exclude
        As in :func:`chosen_names`.

    Raises
    ------
    ValueError
        For an unknown `unbatched`; for an unbatched variable with ``unbatched="raise"``; for a name in `coords`, `include` or
        `exclude` that the Dataset does not have; for two variables that claim one path.
    """
    if unbatched not in {"drop", "keep", "expand", "raise"}:
        raise ValueError(f"unbatched: expected 'drop', 'keep', 'expand' or 'raise', got {unbatched!r}")
    chosen = chosen_names(ds, include, exclude)
    some_coords = None if isinstance(coords, bool) else _checked_names(ds, coords)
    tuples = multiindex_dims(ds)
    plan = Plan(inference.groups)
    check_paths(ds)
    for name, variable in ds.variables.items():
        key = key_of(name)
        if name in tuples or name not in chosen:
            continue
        if name in ds.coords and (coords is False or (some_coords is not None and str(name) not in some_coords)):
            continue
        try:
            variable = with_numpy_dtype(variable)
            reason = why_not(variable)
        except ValueError as error:
            reason = str(error)
        if reason is not None:
            plan.left_out[str(name)] = reason
            continue
        _place(plan, _entry(key, str(name), variable, inference), unbatched)
    if unbatched == "raise" and plan.unbatched:
        names = ", ".join(repr(entry.name) for entry in plan.unbatched)
        raise ValueError(
            f"unbatched='raise': {names} start with none of the batch dims {list(inference.batch_dims)}; choose "
            f"unbatched='drop', 'keep' or 'expand', or other batch_dims"
        )
    return plan


def _place(plan: Plan, entry: Entry, unbatched: Unbatched) -> None:
    one_value = entry.form == "value" and not entry.variable.ndim
    if entry.entry_class == "unbatched" and not one_value:
        plan.unbatched.append(entry)
        if unbatched in {"drop", "raise"}:
            return
    plan.entries.append(entry)


def _entry(key: Key, name: str, variable: xr.Variable, inference: Inference) -> Entry:
    batch = inference.groups[key[:-1]]
    entry_class = inference.classes[key]
    if entry_class != "unbatched":
        variable = _batch_first(variable, batch)
    form: Form = "tensor"
    if variable.dtype.kind not in "biufcmM" or variable.encoding.get("tensordict_non_tensor"):
        form = "rows" if batch.sizes and entry_class != "unbatched" else "value"
    missing = () if entry_class != "partial" else tuple(i for i, d in enumerate(batch.dims) if d not in variable.dims)
    return Entry(key, name, variable, entry_class, form, batch, missing, torch_dtype_of(variable))


def torch_dtype_of(variable: xr.Variable) -> str | None:
    """The dtype recorded where values were widened, as long as they still have the widened dtype."""
    recorded = variable.encoding.get("torch_dtype")
    return str(recorded) if recorded is not None and variable.dtype.name == widened_dtype_name(recorded) else None


def _batch_first(variable: xr.Variable, batch: GroupBatch) -> xr.Variable:
    lead = [dim for dim in batch.dims if dim in variable.dims]
    if list(variable.dims[: len(lead)]) == lead:
        return variable
    # by axis number: transpose by name refuses a dim that stands twice
    order = [variable.dims.index(dim) for dim in lead]
    order += [axis for axis in range(variable.ndim) if axis not in order]
    return transpose_axes(variable, order)


def with_numpy_dtype(variable: xr.Variable) -> xr.Variable:
    """A variable whose dtype is numpy's, where pandas holds numbers or times (``Int64``, ``boolean``, sparse, with a time zone).

    All rows decide, so that rows and batches have the dtype of the whole. Missing floats become NaN, missing times NaT.

    Raises
    ------
    ValueError
        Where integers or bools are missing.
    """
    dtype: Any = variable.dtype
    if not isinstance(dtype, ExtensionDtype) or dtype.kind not in "biufcmM":
        return variable
    found = f"M8[{dtype.unit}]" if isinstance(dtype, pd.DatetimeTZDtype) else getattr(dtype, "subtype", None)
    found = np.dtype(found or dtype.numpy_dtype)
    values: Any = variable.data
    missing = int(values.isna().sum())
    if missing and found.kind in "biu":
        raise ValueError(
            f"its dtype {dtype} has {missing} missing values, which a tensor of {found} cannot hold; fill them with .fillna(...), "
            f"or convert it with .astype('float64')"
        )
    values = (
        values.to_numpy(dtype=found, na_value=np.nan) if missing and found.kind == "f" else values.to_numpy(dtype=found)
    )
    return remade(variable, data=values)


def why_not(variable: xr.Variable) -> str | None:
    """Why no tensordict can hold a variable, without reading it; None where one can."""
    dtype = variable.dtype
    calendar = calendar_of(variable) if dtype.kind == "O" else None
    if calendar is not None:
        return (
            f"it holds dates of the calendar {calendar!r}, or outside 1678 to 2262, which int64 nanoseconds cannot hold; "
            "convert the calendar with ds.convert_calendar('standard')"
        )
    if dtype.kind in _TORCH_KINDS and dtype.name in _NOT_IN_TORCH:
        narrower = "float64" if dtype.kind == "f" else "complex128"
        return f"torch has no dtype for {dtype.name}; convert it with .astype({narrower!r}), which loses precision"
    if dtype.kind == "V":
        return f"its dtype {dtype} holds records or raw bytes, which torch has no dtype for"
    return None


def calendar_of(variable: xr.Variable) -> Any:
    """The calendar of dates of cftime, as a store declares it or as objects in memory have it; None for other objects."""
    declared = variable.encoding.get("calendar", variable.attrs.get("calendar"))
    if declared is not None or not (in_memory(variable) or is_index_data(variable)):
        return declared
    values = np.asarray(variable.values)
    return (
        next((item.calendar for item in values.flat if hasattr(item, "calendar")), None)
        if held_objects(values) == "dates"
        else None
    )


def chosen_names(ds: xr.Dataset, include: Names | None, exclude: Names = ()) -> set[Hashable]:
    """The variables that `include` names, or all, without those that `exclude` names; the name of a group stands for what it holds.

    Examples
    --------
    >>> ds = xr.Dataset({"obs": ("t", [1]), "next/obs": ("t", [1]), "next/done": ("t", [1])})
    >>> chosen_names(ds, ["next"], exclude=[("next", "done")])
    {'next/obs'}
    """
    chosen = set(ds.variables)
    if include is not None:
        chosen = _below(ds, _checked_names(ds, include))
    return chosen - _below(ds, _checked_names(ds, exclude)) if exclude else chosen


def _below(ds: xr.Dataset, names: set[str]) -> set[Hashable]:
    return {
        name for name in ds.variables for key in [key_of(name)] if not names.isdisjoint(accumulate(key, "{}/{}".format))
    }


def _checked_names(ds: xr.Dataset, names: Names) -> set[str]:
    found = {names} if isinstance(names, str) else {str(entry_name(name)) for name in names}
    known = {"/".join(key_of(name)[:n]) for name in ds.variables for n in range(1, len(key_of(name)) + 1)}
    for name in sorted(found - known):
        raise ValueError(f"there is no variable or group {name!r} in the dataset; {there_are(name, ds.variables)}")
    if isinstance(names, tuple) and len(names) > 1 and (path := "/".join(map(str, map(entry_name, names)))) in known:
        raise ValueError(f"{names!r} can be several names, or {path!r}: pass {list(names)!r} or {[path]!r}")
    return found
