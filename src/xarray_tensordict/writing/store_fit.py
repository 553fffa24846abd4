"""New values for an array that is there: encoded exactly as the array is, or refused before a byte is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import xarray as xr
import zarr
from xarray.conventions import decode_cf_variable, encode_cf_variable

from ..core.metadata import ARRAY_ATTR, CF_FILLS, CF_PACKING, CF_SCALES, CF_TIMES, NS_UNITS, own_array_record
from ..core.model import Inference
from ..quiet import XARRAY_SAYS, quiet
from .packing import checked, with_one_fill
from .stored_form import as_declared, map_values, nanoseconds


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
    elif kind == "O" and array.dtype.kind in "iuf":  # dates of another calendar
        fitted = _encoded(name, new, there, array, where)
    elif kind in "UTOS":
        fitted = _text(name, new, array, where)
    elif _is_coded(there, attrs) or (array.metadata.zarr_format == 2 and array.dtype != there.dtype):
        fitted = _encoded(name, new, there, array, where)
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
    return _encoded(name, new, there, array, where)


def _exactly(values: np.ndarray[Any, Any], dtype: np.dtype[Any], name: str, where: str) -> np.ndarray[Any, Any]:
    converted = values.astype(dtype)
    if not np.array_equal(converted.astype(values.dtype), values, equal_nan=True):
        raise ValueError(
            f"{where}: variable {name!r} has the resolution {dtype} there, and the new times are finer "
            f"({values.dtype}); round "
            f"them, or write to a new store"
        )
    return converted


def _encoded(name: str, new: xr.Variable, there: xr.Variable, array: zarr.Array[Any], where: str) -> xr.Variable:
    """Encode with the packing, units and fill value of the array, and check that times come back as they were."""
    encoding = {word: there.encoding[word] for word in (*CF_PACKING, *CF_TIMES) if word in there.encoding}
    held = new.load() if new.dtype.kind in "mMO" and new.chunks is not None else new
    if new.dtype.kind in "iufc":
        held = checked(
            name,
            held,
            {**encoding, "dtype": array.dtype},
            exactly=not set(CF_SCALES) & set(encoding),
            remedy=f"{where} stores it so; write to a new store",
        )
    bare = xr.Variable(held.dims, held._data, {}, with_one_fill(encoding), fastpath=True)
    # xarray warns where it takes other units than those of the array, which is refused below
    with quiet(*XARRAY_SAYS):
        coded = encode_cf_variable(bare, name=name)
    if new.dtype.kind in "mMO" and not _comes_back(name, held, coded, array, encoding):
        raise ValueError(
            f"{where}: variable {name!r} is stored as {array.dtype} in the units {encoding.get('units')!r}, which "
            "cannot hold the "
            f"new times exactly; round them, or write to a new store"
        )
    if coded.dtype != array.dtype:
        target = np.dtype(array.dtype)
        coded = map_values(coded, lambda values: values.astype(target), target)
    return coded


def _comes_back(
    name: str, new: xr.Variable, coded: xr.Variable, array: zarr.Array[Any], encoding: Mapping[str, Any]
) -> bool:
    """Whether encoded times are decoded by the units of the array to what they were: xarray may choose others."""
    attrs = {**dict(array.attrs), **{word: encoding[word] for word in CF_FILLS if word in encoding}}
    stored = np.asarray(coded.values)
    held = stored.astype(array.dtype)
    if not np.array_equal(held.astype(stored.dtype), stored, equal_nan=stored.dtype.kind == "f"):
        return False
    try:
        decoded = decode_cf_variable(name, xr.Variable(new.dims, held, attrs), decode_timedelta=new.dtype.kind == "m")
    except (ValueError, OverflowError):
        return False
    if new.dtype.kind == "O":
        return bool(decoded.values.tolist() == new.values.tolist())
    return decoded.dtype.kind == new.dtype.kind and np.array_equal(
        np.asarray(decoded.values), np.asarray(new.values), equal_nan=True
    )


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
