"""Functions of values, applied block by block where dask holds a variable."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from .._compat.xarray import read

Values = np.ndarray[Any, Any]


def map_values(variable: xr.Variable, function: Callable[[Values], Values], dtype: np.dtype[Any]) -> xr.Variable:
    """Apply an elementwise function: block by block where dask holds the values, to all of them at once elsewhere."""
    data: Any = (
        variable.data.map_blocks(function, dtype=dtype) if variable.chunks is not None else function(read(variable))
    )
    mapped = xr.Variable(variable.dims, data, variable.attrs, fastpath=True)
    mapped.encoding = variable.encoding
    return mapped


def read_now(variable: xr.Variable) -> Values:
    """The values, computed if dask holds them."""
    return np.asarray(variable.data.compute() if variable.chunks is not None else read(variable))


def contiguous(variable: xr.Variable) -> xr.Variable:
    """Text in C order: zarr writes strings of any length in the wrong order, silently, where it is not (measured)."""
    if variable.dtype.kind not in "OT" or variable.ndim < 2:
        return variable
    return map_values(variable, np.ascontiguousarray, variable.dtype)


def as_declared(variable: xr.Variable, name: str) -> xr.Variable:
    """The same variable; blocks of dask that are not of the dtype that was declared must lose nothing by becoming it.

    ``apply_ufunc(output_dtypes=)`` and ``map_blocks(template=)`` do not check the dtype that they are given, and stores
    cast silently.
    """
    dtype = variable.dtype
    if variable.chunks is None or dtype.kind not in "biufcUS":
        return variable
    return map_values(variable, partial(_cast_exactly, dtype=dtype, name=name), dtype)


def _cast_exactly(values: Values, *, dtype: np.dtype[Any], name: str) -> Values:
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
