"""Large arrays that are neither in memory nor held by dask are written block by block: dask takes them over."""

from __future__ import annotations

import secrets
from typing import Any

import xarray as xr

from .._compat.xarray import in_memory, is_index_data, past_cache
from ..core.blocks import PreferredChunks, merged_chunks, row_blocks
from .plan import Source

STREAM_BYTES = 32 << 20
"""What is read at once; smaller arrays are read as a whole."""


def is_lazy(variable: xr.Variable) -> bool:
    """Whether the values would have to be read."""
    return variable.chunks is None and bool(variable.ndim) and not (in_memory(variable) or is_index_data(variable))


def streamed(variable: xr.Variable) -> xr.Variable:
    """The variable, held by dask in blocks of about :data:`STREAM_BYTES` if it is lazy and larger than that.

    Examples
    --------
    >>> import numpy as np
    >>> streamed(xr.Variable("x", np.zeros(3))).chunks is None
    True
    """
    if not is_lazy(variable) or variable.nbytes <= STREAM_BYTES:
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


def stream_source(source: Source) -> None:
    """Let dask take over what is large and lazy among the variables of a source."""
    for node in source.nodes.values():
        for name, variable in node.variables.items():
            node.variables[name] = streamed(variable)
