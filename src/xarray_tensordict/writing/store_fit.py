"""New values for an array that is there: encoded exactly as the array is, or refused before a byte is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import xarray as xr
import zarr

from ..core.metadata import ARRAY_ATTR, CF_PACKING, NS_UNITS, own_array_record
from ..core.model import Inference
from ..core.objects import held_objects
from .blockwise import as_declared, map_values, read_now
from .packing import encoded
from .stored_form import nanoseconds


class Existing(Protocol):
    """A store that is appended to: what the engine makes of it, its batch, and how messages call it."""

    @property
    def ds(self) -> xr.Dataset: ...

    @property
    def inference(self) -> Inference: ...

    @property
    def where(self) -> str: ...


_CODED = frozenset(CF_PACKING) - {"dtype"}
_TEXT = "UTO"


def check_same(name: str, new: xr.Variable, there: xr.Variable, where: str) -> None:
    """Raise ``ValueError`` unless `new` has the dims and the dtype of what is there; sizes are not compared."""
    if new.dims != there.dims:
        raise ValueError(
            f"{where}: variable {name!r} has dims {list(there.dims)} there, found {list(new.dims)}; transpose or "
            "rename the dims"
        )
    kinds = new.dtype.kind, there.dtype.kind
    text = all(kind in _TEXT for kind in kinds)
    times = kinds[0] == kinds[1] and kinds[0] in "mM"
    if kinds == ("S", "S") or text or times:
        return
    if new.dtype.name != there.dtype.name:
        raise ValueError(
            f"{where}: variable {name!r} has dtype {there.dtype} there, found {new.dtype}; convert it with "
            f".astype({there.dtype.name!r}) if nothing is lost by that"
        )


def check_sizes(name: str, new: xr.Variable, old: xr.Variable, free: Mapping[str, int | None], where: str) -> None:
    """Raise ``ValueError`` unless a variable fits what is there; `free` has other sizes for some dims, None for any."""
    check_same(name, new, old, where)
    for dim, found, expected in zip(new.dims, new.shape, old.shape, strict=True):
        wanted = free.get(str(dim), expected)
        if wanted is not None and found != wanted:
            raise ValueError(f"{where}: variable {name!r} needs size {wanted} along {dim!r}, found {found}")


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
    kind = new.dtype.kind
    if kind not in _TEXT + "S":
        new = as_declared(new, name)
    if kind in "mM":
        fitted = _times(name, new, there, array, attrs, where)
    elif kind == "O" and ("calendar" in there.encoding or _holds_dates(new)):
        fitted = _dates(name, new, there, array, where)
    elif kind in "UTOS":
        fitted = _text(name, new, array, where)
    elif _is_coded(there, attrs) or (array.metadata.zarr_format == 2 and array.dtype != there.dtype):
        fitted = _as_there(name, new, there, array, where)
    else:
        fitted = new
    order = own_array_record(attrs.get(ARRAY_ATTR)).get("order")
    return fitted if order is None else _in_stored_order(fitted, order)


def _is_coded(there: xr.Variable, attrs: Mapping[str, Any]) -> bool:
    """Whether values are read as others than those stored: zarr v2 has the fill value of xarray in the metadata."""
    found = there.encoding.get("_FillValue")
    return bool(_CODED & set(attrs)) or (found is not None and not _is_nan(found))


def _is_nan(value: Any) -> bool:
    return isinstance(value, (float, complex, np.inexact)) and bool(np.isnan(value))


def _in_stored_order(variable: xr.Variable, order: list[int]) -> xr.Variable:
    axes = [order.index(axis) for axis in range(len(order))]
    numbered = xr.Variable(range(variable.ndim), variable._data, fastpath=True).transpose(*axes)
    return xr.Variable([variable.dims[axis] for axis in axes], numbered._data, variable.attrs, fastpath=True)


def _times(
    name: str, new: xr.Variable, there: xr.Variable, array: zarr.Array[Any], attrs: dict[str, Any], where: str
) -> xr.Variable:
    dtype = there.dtype
    if there.dtype != new.dtype or new.chunks is not None:  # blocks of dask may be finer than was declared
        new = map_values(new, lambda values: _exactly(values, dtype, name, where), dtype)
    if array.dtype.kind in "mM":
        stored = np.dtype(array.dtype)
        return map_values(new, lambda values: _exactly(values, stored, name, where), stored)
    exact = array.dtype == np.dtype("int64") and attrs.get("units") in (NS_UNITS, "nanoseconds")
    if exact and not _is_coded(there, attrs):
        return map_values(new, lambda values: nanoseconds(values, name), np.dtype("int64"))
    return _as_there(name, new, there, array, where)


def _holds_dates(variable: xr.Variable) -> bool:
    """Whether Python objects in memory are dates; those of dask are not computed for the question."""
    return variable.chunks is None and held_objects(read_now(variable)) == "dates"


def _dates(name: str, new: xr.Variable, there: xr.Variable, array: zarr.Array[Any], where: str) -> xr.Variable:
    """Dates of cftime: numbers in the units and the calendar of the array."""
    expected = there.encoding.get("calendar")
    new = xr.Variable(new.dims, read_now(new), new.attrs, fastpath=True)
    found = {getattr(item, "calendar", None) for item in new.values.flat}
    if expected is None or found - {expected}:
        raise ValueError(
            f"{where}: variable {name!r} has {f'dates of the calendar {expected!r}' if expected else 'no dates'} there, found "
            f"{' and '.join(f'dates of the calendar {each!r}' if each else 'objects that are no dates' for each in found)}; "
            "convert them with ds.convert_calendar(), or drop the variable"
        )
    return _as_there(name, new, there, array, where)


def _as_there(name: str, new: xr.Variable, there: xr.Variable, array: zarr.Array[Any], where: str) -> xr.Variable:
    """Encoded with the packing, units and fill value of the array; what does not come back is refused."""
    return encoded(
        name, new, there.encoding, np.dtype(array.dtype), remedy=f"{where} stores it so; write to a new store"
    )


def _exactly(values: np.ndarray[Any, Any], dtype: np.dtype[Any], name: str, where: str) -> np.ndarray[Any, Any]:
    converted = values.astype(dtype)
    if not np.array_equal(converted.astype(values.dtype), values, equal_nan=True):
        raise ValueError(
            f"{where}: variable {name!r} has the resolution {dtype} there, and the new times are finer "
            f"({values.dtype}); round "
            f"them, or write to a new store"
        )
    return converted


def _text(name: str, new: xr.Variable, array: zarr.Array[Any], where: str) -> xr.Variable:
    stored = np.dtype(array.dtype)
    if stored.kind not in "US":
        return (
            new
            if new.dtype.kind != "O" or new.chunks is not None
            else new.copy(data=np.asarray(new.values, dtype=object))
        )

    def convert(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        found = values.astype(stored.kind)
        if found.dtype.itemsize > stored.itemsize:
            raise ValueError(
                f"{where}: variable {name!r} has strings of at most {stored} there, and the new ones are longer "
                f"({found.dtype}); "
                f"write to a new store, with strings of any length (.astype(object))"
            )
        return found.astype(stored)

    return map_values(new, convert, stored)
