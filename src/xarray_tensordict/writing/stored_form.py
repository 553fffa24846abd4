"""What one variable of a Dataset becomes in a store: its values and its records, whatever the format of the store.

Bare tensordict must read what a variable means, so times become int64 nanoseconds, packed values stay decoded, rows of
strings are marked as such, and Python objects become JSON. What is lost by that is put into the record of the array
(:data:`~..core.metadata.ARRAY_ATTR`), from which the engine restores it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
import xarray as xr
from xarray.coding.strings import create_vlen_dtype

from .._compat.xarray import read
from ..core.metadata import NS_UNITS
from ..core.model import EntryClass

Layout = Literal["tensordict", "xarray"]
Format = Literal["zarr", "hdf5"]
Form = Literal["array", "json", "ragged", "unbatched"]
"""An array; the JSON text of Python objects; one array of any length for each element (HDF5 only); a part of the entry
``_unbatched``."""

CALENDAR = "proleptic_gregorian"

_NUMBERS = "biufc"
_TIMES = "mM"
_STRINGS = "UST"
_CF_TIME_ATTRS = ("units", "calendar", "dtype")
_TEXT_DTYPE: Any = create_vlen_dtype(str)
_JSON_SCALARS = (str, bool, int, float, type(None))


@dataclass
class Stored:
    """How one variable is stored.

    Attributes
    ----------
    variable
        Its values as they are stored, dims and attributes; nothing in its encoding. For ``form="json"`` it has no
        values that matter, but the dims of the variable.
    form
        See :data:`Form`.
    stack
        Whether bare tensordict is to read it as one Python object for each row of the batch.
    record
        What the array's own record has to say.
    payload
        For ``form="json"``: nested lists of the objects, or the one object.
    """

    variable: xr.Variable
    form: Form = "array"
    stack: bool = False
    record: dict[str, Any] = field(default_factory=dict)
    payload: Any = None


@dataclass(frozen=True)
class Place:
    """Where a variable goes.

    Attributes
    ----------
    name
        How messages call the variable: its name in the Dataset.
    layout, format
        What the store is written for, and as.
    entry_class
        How the variable relates to the batch of its group.
    batch_dims
        The batch dims of its group, under the names that the variable has.
    lazily
        Whether values that dask computes must stay uncomputed (``compute=False``).
    """

    name: str
    layout: Layout
    format: Format
    entry_class: EntryClass
    batch_dims: tuple[str, ...] = ()
    lazily: bool = False

    @property
    def rows(self) -> bool:
        """Whether the variable has something of its own for each row of the batch."""
        return bool(self.batch_dims) and self.entry_class == "batched"

    def stack(self, variable: xr.Variable) -> bool:
        """Whether bare tensordict is to read it as a NonTensorStack.

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
        For times that int64 nanoseconds cannot hold, with ``layout="tensordict"``.
    """
    _check_extension(variable, place)
    if not (place.format == "hdf5" and variable.dtype.kind == "U"):  # HDF5 holds strings of any length
        variable = as_declared(variable, place.name)
    kind = variable.dtype.kind
    if kind == "O" and not _is_text_dtype(variable.dtype) and place.layout == "xarray":
        return _of_objects(variable, place)
    if kind not in _NUMBERS + _TIMES + _STRINGS + "O":
        raise TypeError(
            f"variable {place.name!r}: its dtype {variable.dtype} holds records or raw bytes, which cannot be written; "
            f"split it into one variable for each field, or drop it"
        )
    if kind in _TIMES:
        variable = _without_nat(variable)
    if kind == "S" and variable.dtype.itemsize < 2:
        # CF takes an array of single bytes for strings in pieces, and joins them
        variable = map_values(variable, lambda values: values.astype("S2"), np.dtype("S2"))
    if place.layout == "xarray":
        told = {"non_tensor": True} if variable.encoding.get("tensordict_non_tensor") and kind in _NUMBERS else {}
        return Stored(variable, record={**_torch_record(variable), **told})
    axes = batch_axes_first(variable, place.batch_dims)
    stored = _for_tensordict(_transposed(variable, axes), place)
    if axes != sorted(axes):
        stored.record["order"] = [axes.index(axis) for axis in range(len(axes))]
    return stored


def as_declared(variable: xr.Variable, name: str) -> xr.Variable:
    """The same variable; blocks of dask that are not of the dtype that was declared must lose nothing by becoming it.

    ``apply_ufunc(output_dtypes=)`` and ``map_blocks(template=)`` believe what they are told, and stores cast silently.
    """
    dtype = variable.dtype
    if variable.chunks is None or dtype.kind not in _NUMBERS + "US":
        return variable

    return map_values(variable, partial(_cast_exactly, dtype=dtype, name=name), dtype)


def _cast_exactly(values: np.ndarray[Any, Any], *, dtype: np.dtype[Any], name: str) -> np.ndarray[Any, Any]:
    """The values of one block in the declared dtype, if they are the same."""
    if values.dtype == dtype:
        return values
    if dtype.kind in "US":
        cast = values.astype(dtype) if values.dtype.kind in (dtype.kind, *"OT") else None
        if cast is not None and np.array_equal(cast, values):
            return cast
    elif np.can_cast(values.dtype, dtype, "same_kind"):
        cast = values.astype(dtype)
        if dtype.kind not in "iu" or np.array_equal(cast, values):
            return cast
    raise TypeError(
        f"variable {name!r}: its dtype was declared as {dtype}, and dask computes {values.dtype}, which does not "
        "fit; correct the dtype where it is declared (output_dtypes=, dtype=, template=), or convert with .astype()"
    )


def _check_extension(variable: xr.Variable, place: Place) -> None:
    """Raise for the dtypes of pandas: ``groupby_bins`` makes intervals."""
    dtype: Any = variable.dtype
    if isinstance(dtype, np.dtype):
        return
    if isinstance(dtype, pd.IntervalDtype):
        remedy = f"replace the intervals, as with ds[{place.name!r}] = [interval.mid for interval in ds[{place.name!r}].values]"
    else:
        remedy = "convert it with .astype() to a dtype of numpy, or drop it"
    raise TypeError(f"variable {place.name!r} has the dtype {dtype} of pandas, which no store here holds; {remedy}")


def _for_tensordict(variable: xr.Variable, place: Place) -> Stored:
    kind = variable.dtype.kind
    if kind == "O" and not _is_text_dtype(variable.dtype):
        return _of_objects(variable, place)
    if variable.encoding.get("tensordict_non_tensor") and kind in _NUMBERS and (place.rows or not variable.ndim):
        return _json(variable, _python(read(variable)), place)
    if kind in _NUMBERS + _TIMES:
        return _numeric(variable, place)
    if not variable.ndim and kind != "S":
        return _json(variable, str(read(variable)[()]), place)
    return Stored(variable, stack=place.stack(variable))


def _without_nat(variable: xr.Variable) -> xr.Variable:
    """Without the fill value that xarray leaves in the attributes of times that numpy has dtypes for: no store takes it."""
    if not {"_FillValue", "missing_value"} & set(variable.attrs):
        return variable
    attrs = {name: value for name, value in variable.attrs.items() if name not in {"_FillValue", "missing_value"}}
    bare = xr.Variable(variable.dims, variable._data, attrs, fastpath=True)
    bare.encoding = variable.encoding
    return bare


def batch_axes_first(variable: xr.Variable, batch_dims: tuple[str, ...]) -> list[int]:
    """The axes of a variable with those of the batch in front, in its order; as they are where it lacks one."""
    axes = list(range(variable.ndim))
    if not set(batch_dims) <= set(variable.dims):
        return axes
    lead = [variable.dims.index(dim) for dim in batch_dims]
    return lead + [axis for axis in axes if axis not in lead]


def _transposed(variable: xr.Variable, axes: list[int]) -> xr.Variable:
    if axes == sorted(axes):
        return variable
    # by numbers, since xarray transposes no variable that has a dim twice
    numbered = xr.Variable(range(variable.ndim), variable._data, fastpath=True).transpose(*axes)
    moved = xr.Variable([variable.dims[axis] for axis in axes], numbered._data, variable.attrs, fastpath=True)
    dropped = {"chunks", "shards", "chunksizes", "preferred_chunks"}
    moved.encoding = {key: value for key, value in variable.encoding.items() if key not in dropped}
    return moved


def _torch_record(variable: xr.Variable) -> dict[str, Any]:
    recorded = variable.encoding.get("torch_dtype")
    widened = {"complex32": "complex64"}.get(str(recorded), "float32")
    return {"torch_dtype": str(recorded)} if recorded is not None and variable.dtype.name == widened else {}


# -- numbers and times -------------------------------------------------------------------------------------------------


def _numeric(variable: xr.Variable, place: Place) -> Stored:
    if variable.dtype.kind in "fc" and variable.dtype.itemsize > (8 if variable.dtype.kind == "f" else 16):
        raise TypeError(
            f"variable {place.name!r}: neither torch nor zarr has a dtype for {variable.dtype}; convert it with "
            f".astype('float64'), which loses precision"
        )
    if place.batch_dims and place.entry_class != "batched":
        check_times(variable, place)
        return Stored(variable, "unbatched", record=_torch_record(variable))
    if variable.dtype.kind in _TIMES:
        return Stored(encode_times(variable, place), record=_unit_record(variable))
    if not variable.dtype.isnative:
        native = variable.dtype.newbyteorder("=")
        return Stored(map_values(variable, lambda values: values.astype(native), native))
    return Stored(variable, record=_torch_record(variable))


def _unit_record(variable: xr.Variable) -> dict[str, Any]:
    unit = np.datetime_data(variable.dtype)[0]
    return {} if unit == "ns" else {"datetime_unit": unit}


def encode_times(variable: xr.Variable, place: Place) -> xr.Variable:
    """Datetimes as int64 nanoseconds since 1970-01-01, timedeltas as int64 nanoseconds, NaT the smallest int64."""
    is_date = variable.dtype.kind == "M"
    _check_time_attrs(variable, place)
    if not place.lazily or variable.chunks is None:
        check_times(variable, place)
    encoded = map_values(variable, lambda values: nanoseconds(values, place.name), np.dtype("int64"))
    cf = {"units": NS_UNITS, "calendar": CALENDAR} if is_date else {"units": "nanoseconds", "dtype": "timedelta64[ns]"}
    encoded.attrs = {**variable.attrs, **cf}
    return encoded


def _check_time_attrs(variable: xr.Variable, place: Place) -> None:
    for attr in _CF_TIME_ATTRS:
        if attr in variable.attrs:
            raise ValueError(
                f"variable {place.name!r} has dtype {variable.dtype} and the attribute {attr!r}, which says how "
                "times are "
                f"stored; delete the attribute"
            )


def check_times(variable: xr.Variable, place: Place) -> None:
    """Raise ``ValueError`` for times outside of what int64 nanoseconds hold; times in nanoseconds are not read."""
    if variable.dtype.kind not in _TIMES or np.datetime_data(variable.dtype)[0] == "ns" or not variable.size:
        return
    if variable.chunks is None:
        nanoseconds(read(variable), place.name)
        return
    counts = map_values(variable, lambda values: values.view("int64"), np.dtype("int64")).data
    # NaT is the smallest int64, and is no time
    low, high = compute_together(_where_not_nat(counts).min(), counts.max())
    nanoseconds(np.array([max(int(low), -(2**63) + 1), int(high)]).view(variable.dtype), place.name)


def compute_together(*values: Any) -> tuple[Any, ...]:
    """Compute several dask objects as one graph."""
    import dask.base

    compute: Any = dask.base.compute
    return tuple(compute(*values))


def _where_not_nat(counts: Any) -> Any:
    import dask.array

    return dask.array.where(counts == np.iinfo("int64").min, 0, counts)


def nanoseconds(values: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """The int64 nanoseconds of datetimes or timedeltas.

    Raises
    ------
    ValueError
        Outside of what int64 holds: numpy wraps around silently.
    """
    native = np.asarray(values).astype(values.dtype.newbyteorder("="), copy=False)
    finest = native.dtype.str[1:3] + "[ns]"
    try:
        converted = native.astype(finest)
    except OverflowError:  # newer versions of numpy
        converted = np.full(native.shape, "NaT", finest)
    same = (converted.astype(native.dtype) == native) | (np.isnat(converted) & np.isnat(native))
    if not same.all():
        wrong = native[~same].ravel()[0]
        span = "dates between 1677-09-21 and 2262-04-11" if native.dtype.kind == "M" else "durations up to 292 years"
        raise ValueError(
            f"variable {name!r} holds {wrong}, and layout='tensordict' stores times as int64 nanoseconds, which hold "
            f"{span}; write with layout='xarray', or drop the variable"
        )
    return converted.view("int64")


def map_values(
    variable: xr.Variable, function: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]], dtype: np.dtype[Any]
) -> xr.Variable:
    """Apply an elementwise function: block by block where dask holds the values, to all of them at once elsewhere."""
    data: Any = (
        variable.data.map_blocks(function, dtype=dtype) if variable.chunks is not None else function(read(variable))
    )
    mapped = xr.Variable(variable.dims, data, variable.attrs, fastpath=True)
    mapped.encoding = variable.encoding
    return mapped


def contiguous(variable: xr.Variable) -> xr.Variable:
    """Text in C order: zarr writes strings of any length in the wrong order, silently, where it is not (measured)."""
    if variable.dtype.kind not in "OT" or variable.ndim < 2:
        return variable
    return map_values(variable, np.ascontiguousarray, variable.dtype)


# -- Python objects ----------------------------------------------------------------------------------------------------


def _is_text_dtype(dtype: np.dtype[Any]) -> bool:
    metadata: Mapping[str, Any] = dtype.metadata or {}
    return metadata.get("element_type") is str or metadata.get("vlen") is str


def _of_objects(variable: xr.Variable, place: Place) -> Stored:
    """Objects are looked at one by one: the dtype does not tell what they are."""
    values = np.asarray(variable.data.compute() if variable.chunks is not None else read(variable))
    held = xr.Variable(variable.dims, values, variable.attrs, variable.encoding, fastpath=True)
    types = {type(item) for item in values.flat}
    if types <= {str, np.str_} and (values.ndim or place.layout == "xarray"):
        # no element says what an empty array holds; text is the likeliest
        text = xr.Variable(variable.dims, values.astype(_TEXT_DTYPE), variable.attrs, fastpath=True)
        text.encoding = variable.encoding
        return Stored(text, stack=place.stack(text))
    if types <= {bytes, np.bytes_} and not any(item.endswith(b"\0") for item in values.flat):
        length = max(2, max(len(item) for item in values.flat))
        as_bytes = xr.Variable(held.dims, values.astype(f"S{length}"), held.attrs, held.encoding, fastpath=True)
        return Stored(as_bytes, stack=place.stack(held))
    if any(kind.__module__.partition(".")[0] == "cftime" for kind in types):
        return _of_dates(held, place)
    if any(issubclass(kind, np.ndarray) for kind in types):
        return _ragged(held, place)
    return _json(held, _python(values), place)


def _of_dates(variable: xr.Variable, place: Place) -> Stored:
    if place.layout == "xarray":
        return Stored(variable)
    raise ValueError(
        f"variable {place.name!r} holds cftime dates, and layout='tensordict' stores times as int64 nanoseconds of the "
        f"standard calendar; write with layout='xarray', or convert it with ds.convert_calendar(), or drop it"
    )


def _ragged(variable: xr.Variable, place: Place) -> Stored:
    rows = list(variable.values.flat)
    if place.format == "zarr":
        raise TypeError(
            f"variable {place.name!r} holds one array for each element, and zarr has no dtype for ragged rows; write "
            "it "
            f"with ds.td.to_h5(), or pad the rows, or drop it"
        )
    dtypes = {row.dtype for row in rows if isinstance(row, np.ndarray)}
    if not all(isinstance(row, np.ndarray) and row.ndim == 1 for row in rows) or len(dtypes) > 1:
        raise TypeError(
            f"variable {place.name!r} holds arrays as its elements, and HDF5 stores such rows if each is a 1-D array "
            "and all "
            f"have one dtype, found {sorted(map(str, dtypes))}; convert the rows, or drop it"
        )
    if next(iter(dtypes)).kind not in "biuf":
        raise TypeError(
            f"variable {place.name!r} holds arrays of dtype {next(iter(dtypes))} as its elements; ragged rows are "
            "stored as "
            f"numbers only. Convert the rows, or drop it"
        )
    return Stored(variable, "ragged")


def _json(variable: xr.Variable, payload: Any, place: Place) -> Stored:
    text = to_json(payload, place.name)
    if not same_object(json.loads(text), payload):
        raise _no_json(place, payload)
    if place.format == "hdf5" and variable.ndim and _is_text_with_gaps(variable):
        raise TypeError(
            f"variable {place.name!r} holds text with missing values (None or NaN), which HDF5 cannot hold; fill them with "
            f".fillna(''), as xarray's own engines do silently, or write it with ds.td.to_zarr()"
        )
    if place.format == "hdf5" and variable.ndim and not (_one_plain_type(variable) and place.rows):
        raise TypeError(
            f"variable {place.name!r} holds Python objects of several types, or lists of them, which HDF5 cannot hold; "
            f"write it with ds.td.to_zarr(), or convert it to strings, or drop it"
        )
    return Stored(variable, "json", stack=place.stack(variable), payload=payload)


def _is_text_with_gaps(variable: xr.Variable) -> bool:
    items = np.asarray(variable.values).ravel().tolist()
    gaps = [item is None or (isinstance(item, float) and math.isnan(item)) for item in items]
    return any(gaps) and all(gap or isinstance(item, str) for gap, item in zip(gaps, items, strict=True))


def _one_plain_type(variable: xr.Variable) -> bool:
    types = {type(item) for item in np.asarray(variable.values).ravel().tolist()}
    return len(types) == 1 and types <= {bool, int, float}


def to_json(payload: Any, name: str) -> str:
    """The JSON text of an object.

    Raises
    ------
    TypeError
        Where JSON has no text for it.
    """
    try:
        return json.dumps(payload)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"variable {name!r} holds a Python object that JSON cannot hold ({error}), and objects are stored as "
            "JSON, never "
            f"as pickles; convert it to numbers, strings, lists or dicts, or drop it"
        ) from error


def _no_json(place: Place, payload: Any) -> TypeError:
    return TypeError(
        f"variable {place.name!r} holds {payload!r:.80}, which JSON would give back changed (a tuple as a list, a "
        "key as "
        f"a string), and objects are stored as JSON; convert it, or drop it"
    )


def same_object(a: Any, b: Any) -> bool:
    """Whether two JSON objects are equal with equal types; NaN equals NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Mapping):
        return set(a) == set(b) and all(same_object(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same_object(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and math.isnan(a):
        return math.isnan(b)
    return isinstance(a, _JSON_SCALARS) and bool(a == b)


def _python(values: np.ndarray[Any, Any]) -> Any:
    """Nested lists of Python objects, or one: numpy's own scalars become Python's."""
    return _plain(values.tolist(), values.ndim if values.dtype.kind == "O" else 0)


def _plain(item: Any, depth: int) -> Any:
    if depth:
        return [_plain(part, depth - 1) for part in item]
    return item.item() if isinstance(item, np.generic) else item
