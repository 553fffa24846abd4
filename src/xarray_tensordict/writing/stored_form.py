"""What one variable of a Dataset becomes in a store: its values and its records, in every format.

Plain tensordict must read what a variable means, so times become int64 nanoseconds, packed values stay decoded, rows of
strings are marked as such, and Python objects become JSON. What is lost by that is put into the record of the array
(:data:`~..core.metadata.ARRAY_ATTR`), from which the engine restores it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
import xarray as xr
from xarray.coding.strings import create_vlen_dtype

from .._compat.xarray import read, remade, transpose_axes
from ..core.metadata import CF_PACKING, CF_WORDS, NS_ATTRS
from ..core.model import EntryClass
from ..core.unbatched_entry import encode_array, entry_record
from ..core.values import held_objects, is_text_dtype, python_objects, same_object, to_json, to_nanoseconds
from ..dataset.records import torch_dtype_of
from ..warnings import StoredFormWarning, warn
from .values import (
    as_declared,
    check_text,
    decoded_dtype,
    encoded,
    is_packing,
    map_values,
    packed,
    read_now,
    why_refused,
)

Layout = Literal["tensordict", "xarray"]
Form = Literal["array", "json", "ragged", "unbatched"]
"""An array; the JSON text of Python objects; one array of any length for each element (HDF5 only); a part of the entry
``_unbatched``."""

_NUMBERS = "biufc"
_TIMES = "mM"
_STRINGS = "UST"
_LAID_OUT = frozenset({"chunks", "shards", "chunksizes", "preferred_chunks"})
"""The parts of an encoding that refer to axes by their place."""
_TEXT_DTYPE: Any = create_vlen_dtype(str)


@dataclass(frozen=True)
class Holds:
    """What a format can hold, as far as that decides how a variable is stored.

    Attributes
    ----------
    objects
        JSON in the place of any Python object, for each element.
    rows
        Arrays and text of any length as elements.
    typed_attributes
        Attributes with dtypes of their own; else they are JSON.
    unlimited_dims
        Dims that are recorded as growing.
    """

    objects: bool = False
    rows: bool = False
    typed_attributes: bool = False
    unlimited_dims: bool = False


@dataclass
class Stored:
    """How one variable is stored.

    Attributes
    ----------
    variable
        Its values as they are stored, dims and attributes; for ``form="json"`` the dims alone matter.
    stack
        Whether plain tensordict is to read it as one Python object for each row of the batch.
    record
        The content of the array's own record.
    payload
        For ``form="json"``: nested lists of the objects, or the one object.
    encoding
        With ``layout="xarray"``: the CF words that xarray is to encode the values with.
    """

    variable: xr.Variable
    form: Form = "array"
    stack: bool = False
    record: dict[str, Any] = field(default_factory=dict)
    payload: Any = None
    encoding: dict[str, Any] = field(default_factory=dict)
    role: str = "data"


@dataclass(frozen=True)
class Place:
    """Where a variable, which messages call `name`, goes; `asked` is the encoding that the caller asks for."""

    name: str
    layout: Layout
    holds: Holds
    entry_class: EntryClass
    batch_dims: tuple[str, ...] = ()
    asked: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> bool:
        """Whether the variable has something of its own for each row of the batch."""
        return bool(self.batch_dims) and self.entry_class == "batched"

    def stack(self, variable: xr.Variable) -> bool:
        """Whether plain tensordict is to read it as a NonTensorStack.

        It cannot read one of batch size ``[0, 2]``: its stacks forget the sizes behind a zero (measured).
        """
        sizes = variable.shape[: len(self.batch_dims)]
        return self.layout == "tensordict" and self.rows and bool(variable.ndim) and (0 not in sizes or len(sizes) == 1)


def store_form(variable: xr.Variable, place: Place) -> Stored:
    """Decide how a variable is stored, and convert it.

    Raises
    ------
    TypeError
        For values that the format cannot hold: Python objects that JSON cannot give back, ragged rows in zarr, dtypes
        without a counterpart.
    ValueError
        For times that int64 nanoseconds cannot hold, with ``layout="tensordict"``; for values that an encoding which the
        caller asks for does not hold.
    """
    _check_dtype(variable, place)
    if not (place.holds.rows and variable.dtype.kind == "U"):  # of any length
        variable = as_declared(variable, place.name)
    elif variable.chunks is None:
        check_text(read_now(variable).flat, f"variable {place.name!r}")
    kind = variable.dtype.kind
    if kind in _TIMES:
        # no store takes the fill value that xarray leaves in the attributes of times that numpy has dtypes for
        other_attrs = {
            name: value for name, value in variable.attrs.items() if name not in {"_FillValue", "missing_value"}
        }
        variable = remade(variable, attrs=other_attrs)
    if kind == "S" and variable.dtype.itemsize < 2:
        # CF takes an array of single bytes for characters, and joins them
        variable = map_values(variable, lambda values: values.astype("S2"), np.dtype("S2"))
    if place.layout == "xarray":
        return _for_xarray(variable, place)
    axes = list(range(variable.ndim))
    if set(place.batch_dims) <= set(variable.dims):  # those of the batch go in front, in its order
        lead = [variable.dims.index(dim) for dim in place.batch_dims]
        axes = lead + [axis for axis in axes if axis not in lead]
    is_moved = axes != sorted(axes)
    if is_moved:
        kept = {k: v for k, v in variable.encoding.items() if k not in _LAID_OUT}
        variable = transpose_axes(variable, axes)
        variable.encoding = kept
    stored = _for_tensordict(variable, place)
    if is_moved:
        stored.record["order"] = [axes.index(axis) for axis in range(len(axes))]
    return stored


def _check_dtype(variable: xr.Variable, place: Place) -> None:
    """Raise for dtypes that no store here holds: those of pandas (``groupby_bins`` makes intervals), records, raw bytes."""
    dtype: Any = variable.dtype
    if isinstance(dtype, np.dtype):
        if dtype.kind in _NUMBERS + _TIMES + _STRINGS + "O":
            return
        raise TypeError(
            f"variable {place.name!r}: its dtype {dtype} holds records or raw bytes, which cannot be written; split it "
            "into one variable for each field, or drop it"
        )
    remedy = "convert it with .astype() to a dtype of numpy, or drop it"
    if isinstance(dtype, pd.IntervalDtype):
        remedy = f"replace the intervals, as with ds[{place.name!r}] = [interval.mid for interval in ds[{place.name!r}].values]"
    raise TypeError(f"variable {place.name!r} has the dtype {dtype} of pandas, which no store here holds; {remedy}")


def _for_xarray(variable: xr.Variable, place: Place) -> Stored:
    """As plain xarray writes it; values that would come back changed lose their packing, or are refused."""
    kind = variable.dtype.kind
    if (
        variable.dtype == np.dtype("M8[ns]")
        and variable.chunks is None
        and "units" not in {**variable.encoding, **place.asked}
    ):
        variable = _counted_from_1970(variable, place)
    stored = _of_objects(variable, place) if kind == "O" and not is_text_dtype(variable.dtype) else Stored(variable)
    if stored.form == "array":
        stored.record |= _torch_record(variable)
        if variable.encoding.get("tensordict_non_tensor") and kind in _NUMBERS:
            stored.record["non_tensor"] = True
        _pack(stored, place)
    return stored


def _counted_from_1970(variable: xr.Variable, place: Place) -> xr.Variable:
    """Datetimes more than int64 nanoseconds apart as their counts: xarray subtracts the first one, and fails (measured, 2026.9)."""
    times = read_now(variable).ravel()
    counts = times[~np.isnat(times)].astype("M8[us]").astype("int64")
    if not counts.size or int(counts.max()) - int(counts.min()) < _FARTHEST:
        return variable
    return encode_times(variable, place)


_FARTHEST = 2**63 // 1000
"""Microseconds in as many nanoseconds as int64 holds."""


def _pack(stored: Stored, place: Place) -> None:
    """Choose the CF words of an array: those that came along as far as they hold the values, those asked for, or raise.

    Attributes in JSON have one dtype of floats, so xarray decodes what is packed as float32 to float64. The record names
    what it was, and the engine gives that back.
    """
    variable = stored.variable
    stored.variable, kept = packed(place.name, variable, cf_encoding(variable), place.asked)
    whole = stored.encoding = {**kept, **{word: place.asked[word] for word in CF_WORDS if word in place.asked}}
    if variable.dtype.kind != "f" or np.dtype(whole.get("dtype") or variable.dtype).kind not in "iu":
        return
    found = decoded_dtype(variable, whole, as_json=not place.holds.typed_attributes or place.layout == "tensordict")
    if found.kind == "f" and found != variable.dtype:
        stored.record["unpacked"] = variable.dtype.name
        warn(
            f"variable {place.name!r} of dtype {variable.dtype} is packed as {np.dtype(whole['dtype'])}, which xarray reads "
            f"as {found}; engine='tensordict' gives {variable.dtype} back. To store {variable.dtype} itself, write "
            f"ds.assign({{{place.name!r}: ds[{place.name!r}].drop_encoding()}})",
            StoredFormWarning,
        )


def _for_tensordict(variable: xr.Variable, place: Place) -> Stored:
    kind = variable.dtype.kind
    if kind == "O" and not is_text_dtype(variable.dtype):
        return _of_objects(variable, place)
    if variable.encoding.get("tensordict_non_tensor") and kind in _NUMBERS and (place.rows or not variable.ndim):
        return _json(variable, python_objects(read(variable)), place)
    if kind in _NUMBERS + _TIMES:
        return _numeric(variable, place)
    if not variable.ndim and kind != "S":
        return _json(variable, str(read(variable)[()]), place)
    return Stored(variable, stack=place.stack(variable))


def _torch_record(variable: xr.Variable) -> dict[str, Any]:
    recorded = torch_dtype_of(variable)
    return {} if recorded is None else {"torch_dtype": recorded}


# -- numbers and times -------------------------------------------------------------------------------------------------


def _numeric(variable: xr.Variable, place: Place) -> Stored:
    if variable.dtype.kind in "fc" and variable.dtype.itemsize > (8 if variable.dtype.kind == "f" else 16):
        raise TypeError(
            f"variable {place.name!r}: neither torch nor zarr has a dtype for {variable.dtype}; convert it with "
            f".astype({'float64' if variable.dtype.kind == 'f' else 'complex128'!r}), which loses precision"
        )
    unbatched = bool(place.batch_dims) and place.entry_class != "batched"
    if variable.dtype.kind in _TIMES and unbatched:
        held = xr.Variable(variable.dims, read_now(variable), variable.attrs, fastpath=True)
        encode_times(held, place)  # raises for those that a reader could not give back
        return Stored(held, "unbatched")
    if variable.dtype.kind in _TIMES:
        unit = np.datetime_data(variable.dtype)[0]
        return Stored(encode_times(variable, place), record={} if unit == "ns" else {"datetime_unit": unit})
    if unbatched:
        return _unbatched(variable, place)
    if not variable.dtype.isnative:
        native = variable.dtype.newbyteorder("=")
        return Stored(map_values(variable, lambda values: values.astype(native), native))
    return Stored(variable, record=_torch_record(variable))


def _unbatched(variable: xr.Variable, place: Place) -> Stored:
    """A part of the entry ``_unbatched``, packed as it was: plain tensordict shows its text, and no numbers."""
    if place.asked.get("dtype") is not None:
        variable = variable.astype(place.asked["dtype"])
    stored = Stored(variable, "unbatched", record=_torch_record(variable))
    words = {word: value for word, value in cf_encoding(variable).items() if word in CF_PACKING}
    dtype = np.dtype(words.get("dtype") or variable.dtype)
    if variable.dtype.kind == "f" and (dtype.kind in "iu" or dtype == variable.dtype) and is_packing(variable, words):
        _pack(stored, replace(place, asked={}))
        if is_packing(variable, stored.encoding):
            stored.variable = encoded(place.name, stored.variable, words, dtype, remedy="")
    return stored


def with_values(path: str, was: Mapping[str, Any], values: np.ndarray[Any, Any]) -> dict[str, Any]:
    """A part of the entry ``_unbatched`` with other values, packed as those before.

    Raises
    ------
    ValueError
        For values that do not come back from that packing.
    """
    attrs = was.get("attrs", {})
    dims = tuple(was["dims"])
    if values.dtype.kind in "iuf" and any(word in attrs for word in CF_PACKING):
        remedy = "its entry in '_unbatched' is packed so; write to a new store"
        values = encoded(path, xr.Variable(dims, values), attrs, np.dtype(was["dtype"]), remedy=remedy).values
    return encode_array(values, dims, attrs=attrs, role=was.get("role", "data"), record=entry_record(was))


def encode_times(variable: xr.Variable, place: Place) -> xr.Variable:
    """Datetimes as int64 nanoseconds since 1970-01-01, timedeltas as int64 nanoseconds, NaT the smallest int64."""
    for attr in ("units", "calendar", "dtype"):
        if attr in variable.attrs:
            raise ValueError(
                f"variable {place.name!r} has dtype {variable.dtype} and the attribute {attr!r}, which is reserved for how times are "
                "stored; delete the attribute"
            )
    counts = map_values(variable, lambda values: nanoseconds(values, place.name), np.dtype("int64"))
    counts.attrs = {**variable.attrs, **NS_ATTRS[variable.dtype.kind]}
    return counts


def nanoseconds(values: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """The int64 nanoseconds of datetimes or timedeltas.

    Raises
    ------
    ValueError
        Outside of what int64 holds.
    """
    counts, lost = to_nanoseconds(values)
    if lost is not None:
        span = "dates between 1677-09-21 and 2262-04-11" if values.dtype.kind == "M" else "durations up to 292 years"
        raise ValueError(
            f"variable {name!r} holds {lost}, and layout='tensordict' stores times as int64 nanoseconds, which hold "
            f"{span}; write with layout='xarray', or drop the variable"
        )
    return counts


# -- Python objects ----------------------------------------------------------------------------------------------------


def _of_objects(variable: xr.Variable, place: Place) -> Stored:
    """Objects are looked at one by one: the dtype does not show what they are."""
    values = read_now(variable)
    held = xr.Variable(variable.dims, values, variable.attrs, variable.encoding, fastpath=True)
    what = held_objects(values)
    if what == "text" and (values.ndim or place.layout == "xarray"):
        check_text(values.flat, f"variable {place.name!r}")
        text = xr.Variable(variable.dims, values.astype(_TEXT_DTYPE), variable.attrs, variable.encoding, fastpath=True)
        return Stored(text, stack=place.stack(text))
    if what == "bytes":
        length = max(2, max(len(item) for item in values.flat))
        as_bytes = xr.Variable(held.dims, values.astype(f"S{length}"), held.attrs, held.encoding, fastpath=True)
        return Stored(as_bytes, stack=place.stack(held))
    if what == "rows":
        return _ragged(held, place)
    if what != "dates":
        return _json(held, python_objects(values), place)
    if place.layout == "xarray":
        return Stored(held)
    raise ValueError(why_refused([place.name]))


def _ragged(variable: xr.Variable, place: Place) -> Stored:
    rows = list(variable.values.flat)
    if not place.holds.rows:
        raise TypeError(
            f"variable {place.name!r} holds one array for each element, and zarr has no dtype for ragged rows; write "
            f"it with ds.td.to_h5(), or pad the rows, or drop it"
        )
    dtypes = {row.dtype for row in rows if isinstance(row, np.ndarray)}
    one_dtype = len(dtypes) == 1 and next(iter(dtypes)).kind in "biuf"
    if not (one_dtype and all(isinstance(row, np.ndarray) and row.ndim == 1 for row in rows)):
        raise TypeError(
            f"variable {place.name!r} holds arrays as its elements, and HDF5 stores such rows if each is a 1-D array of numbers, "
            f"all of one dtype, found {sorted(map(str, dtypes))}; convert the rows, or drop it"
        )
    return Stored(variable, "ragged")


def _json(variable: xr.Variable, payload: Any, place: Place) -> Stored:
    text = to_json(payload, place.name)
    if not same_object(json.loads(text), payload):
        raise TypeError(
            f"variable {place.name!r} holds {payload!r:.80}, which JSON would give back changed (a tuple as a list, a key as "
            f"a string), and objects are stored as JSON; convert it, or drop it"
        )
    items = np.asarray(variable.values).ravel().tolist() if not place.holds.objects and variable.ndim else []
    gaps = [item is None or (isinstance(item, float) and math.isnan(item)) for item in items]
    if any(gaps) and all(gap or isinstance(item, str) for gap, item in zip(gaps, items, strict=True)):
        raise TypeError(
            f"variable {place.name!r} holds text with missing values (None or NaN), which HDF5 cannot hold; fill them with "
            f".fillna(''), as xarray's own engines do silently, or write it with ds.td.to_zarr()"
        )
    types = {type(item) for item in items}
    numbers = len(types) == 1 and types <= {bool, int, float} and np.array(items).dtype.kind != "O"
    if not place.holds.objects and variable.ndim and not (numbers and place.rows):
        raise TypeError(
            f"variable {place.name!r} holds Python objects of several types, lists, or integers beyond 64 bits, which HDF5 cannot hold; "
            f"write it with ds.td.to_zarr(), or convert it to strings, or drop it"
        )
    return Stored(variable, "json", stack=place.stack(variable), payload=payload)


# -- encodings that came along -----------------------------------------------------------------------------------------
#
# They outlive what they were made for: chunks of an array that was sliced, codecs of zarr v2 in a v3 store, HDF5 options in zarr.
# None of them may make a write fail, and none may change a value: what fits the new store is kept, the rest dropped.

_CF_KEPT = (*CF_WORDS, "grid_mapping", "bounds", "cell_measures", "ancillary_variables", "formula_terms")


def cf_encoding(variable: xr.Variable) -> dict[str, Any]:
    """The CF words of an encoding that came along; :func:`.values.packed` checks whether the values fit."""
    kept = {name: variable.encoding[name] for name in _CF_KEPT if name in variable.encoding}
    kinds = {variable.dtype.kind}
    with suppress(TypeError):
        kinds.add(np.dtype(kept.get("dtype") or "float64").kind)
    is_time = variable.dtype.kind in "mM" or (variable.dtype.kind == "O" and "units" in kept)
    # strings: the dtype they were read as does not define how they are written
    if "b" in kinds or not (is_time or kinds <= set("iufc")):
        kept = {name: value for name, value in kept.items() if name not in CF_WORDS}
    return kept


def storage_chunks(variable: xr.Variable) -> tuple[int, ...] | None:
    """The chunks an encoding asks for, of zarr or of HDF5, where they still fit the variable."""
    chunks = variable.encoding.get("chunks")
    if chunks is None and not variable.encoding.get("contiguous", False):
        chunks = variable.encoding.get("chunksizes")
    if not isinstance(chunks, tuple | list) or len(chunks) != variable.ndim or not variable.ndim:
        return None
    if not all(isinstance(size, int | np.integer) and size > 0 for size in chunks):
        return None
    return tuple(min(int(size), max(full, 1)) for size, full in zip(chunks, variable.shape, strict=True))
