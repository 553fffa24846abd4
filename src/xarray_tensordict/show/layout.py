"""How the values of a variable are kept: in memory, as dask chunks, in the chunks of a store."""

from __future__ import annotations

from typing import Any

import xarray as xr

from .._compat.xarray import backend_array, in_memory, zarr_array
from ..formats.raw.arrays import RawArray


def layout_text(variable: xr.Variable) -> str:
    """A few words, from what the variable says of itself; nothing is read.

    "mapped" are bytes that lie in a file as they do in memory, and are read without the library of the format.

    Examples
    --------
    >>> layout_text(xr.Variable("x", [1, 2]))
    'in memory'
    """
    if variable.chunks is not None:
        return f"dask chunks {_shape_text(tuple(max(sizes, default=0) for sizes in variable.chunks))}"
    if in_memory(variable) or isinstance(variable, xr.IndexVariable):
        return "in memory"
    encoding = variable.encoding
    chunks = encoding.get("chunks") or encoding.get("chunksizes")
    words = f"chunks {_shape_text(chunks)}" if chunks else "one piece"
    if encoding.get("shards"):
        words = f"shards {_shape_text(encoding['shards'])} of {words}"
    backend = backend_array(variable)
    if isinstance(backend, RawArray):
        codec = (_compressor(variable, backend) or "compressed") if backend.is_compressed else "mapped"
    else:
        codec = _compressor(variable, backend)
    return f"{words}, {codec}" if codec else words


def _shape_text(sizes: Any) -> str:
    return "(" + ", ".join(str(int(size)) for size in sizes) + ")"


def _compressor(variable: xr.Variable, backend: Any) -> str:
    """The name of the compressor: zarr arrays are asked, since encodings leave the default out."""
    array = None if backend is None else zarr_array(backend)
    if array is not None:
        return ", ".join(map(_codec_name, array.compressors))
    compression = variable.encoding.get("compression")
    return str(compression) if compression else "zlib" if variable.encoding.get("zlib") else ""


def _codec_name(codec: Any) -> str:
    """``zstd`` of a codec of zarr v3 (a class ``ZstdCodec``) or v2 (numcodecs names its own)."""
    return str(getattr(codec, "codec_id", None) or type(codec).__name__.removesuffix("Codec").lower())
