"""Values on their way to a store: what is large and lazy is written block by block, as what dask holds is.

Functions of values are applied to such blocks, or to all of the values where they are in memory.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from .._compat.xarray import in_memory, is_index_data, past_cache, read, remade
from ..core.blocks import PreferredChunks, merged_chunks, row_blocks

Values = np.ndarray[Any, Any]

STREAM_BYTES = 32 << 20
"""What is read at once; smaller arrays are read as a whole."""


def streamed(variable: xr.Variable) -> xr.Variable:
    """The variable, held by dask in blocks of about :data:`STREAM_BYTES` if it is lazy and larger than that.

    Examples
    --------
    >>> import numpy as np
    >>> streamed(xr.Variable("x", np.zeros(3))).chunks is None
    True
    """
    is_lazy = variable.chunks is None and variable.ndim and not (in_memory(variable) or is_index_data(variable))
    if not is_lazy or variable.nbytes <= STREAM_BYTES:
        return variable
    held: Any = past_cache(variable)
    # a name of its own: dask would pickle the array for one
    name = f"stream-{secrets.token_hex(8)}"
    blocks = dict(zip(variable.dims, _blocks(variable), strict=True))
    chunked: xr.Variable = held.chunk(blocks, from_array_kwargs={"name": name})
    chunked.encoding = variable.encoding
    return chunked


def _blocks(variable: xr.Variable) -> tuple[int, ...]:
    """Whole chunks of the store the values are read from, rows where it has none."""
    preferred = variable.encoding.get("preferred_chunks") or {}
    free = isinstance(preferred, PreferredChunks) and not preferred.stored
    sizes = dict(preferred.items())
    pieces = [sizes.get(dim, size) for dim, size in variable.sizes.items()]
    if free or not sizes or len(pieces) != variable.ndim or not all(isinstance(piece, int) for piece in pieces):
        return row_blocks(variable.shape, variable.dtype.itemsize, STREAM_BYTES)
    return merged_chunks(pieces, variable.shape, variable.dtype.itemsize, STREAM_BYTES)


# -- functions of values -----------------------------------------------------------------------------------------------


def map_values(variable: xr.Variable, function: Callable[[Values], Values], dtype: np.dtype[Any]) -> xr.Variable:
    """Apply an elementwise function: block by block where dask holds the values, to all of them at once elsewhere."""
    data: Any = (
        variable.data.map_blocks(function, dtype=dtype) if variable.chunks is not None else function(read(variable))
    )
    return remade(variable, data=data)


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
