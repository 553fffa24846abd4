"""What becomes of ``Variable.encoding`` when a Dataset is written: what fits the new store is kept, the rest dropped.

Encodings outlive what they were made for: chunks of an array that was sliced, codecs of zarr v2 in a v3 store, HDF5
options in zarr. None of them may make a write fail, and none may change a value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import xarray as xr

from ..core.blocks import merged_chunks
from ..core.metadata import CF_WORDS
from ..core.suggest import there_are
from ..formats.zarr.output_chunks import CHUNK_BYTES, default_chunks

_CF_KEPT = (*CF_WORDS, "grid_mapping", "bounds", "cell_measures", "ancillary_variables", "formula_terms")


def cf_encoding(variable: xr.Variable) -> dict[str, Any]:
    """The CF words of an encoding that came along; :func:`.packing.packed` says whether the values fit."""
    kept = {name: variable.encoding[name] for name in _CF_KEPT if name in variable.encoding}
    kinds = {variable.dtype.kind, _dtype_of(kept).kind}
    is_time = variable.dtype.kind in "mM" or (variable.dtype.kind == "O" and "units" in kept)
    # strings: the dtype they were read as says nothing about how they are to be written
    if "b" in kinds or not (is_time or kinds <= set("iufc")):
        kept = {name: value for name, value in kept.items() if name not in CF_WORDS}
    return kept


def _dtype_of(encoding: Mapping[str, Any]) -> np.dtype[Any]:
    try:
        return np.dtype(encoding.get("dtype") or "float64")
    except TypeError:
        return np.dtype("float64")


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


def check_sizes(argument: str, sizes: Mapping[str, int] | None, dims: Mapping[str, int]) -> dict[str, int]:
    """Check ``chunks=`` or ``shards=`` by dim.

    Raises
    ------
    ValueError
        For a dim that is not there, or a size that is none.
    TypeError
        For anything but a mapping.
    """
    if sizes is None:
        return {}
    if not isinstance(sizes, Mapping):
        raise TypeError(f"{argument}: expected sizes by dim, {{'time': 24}}, found {sizes!r}")
    given: Mapping[str, Any] = sizes
    for dim, size in given.items():
        if dim not in dims:
            raise ValueError(f"{argument}: there is no dim {dim!r}; {there_are(dim, dims, 'the dims there are')}")
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or (size < 1 and size != -1):
            raise ValueError(
                f"{argument}: expected a size of at least 1, or -1 for the whole dim, for {dim!r}, found {size!r}"
            )
    return {str(dim): int(size) for dim, size in sizes.items()}


def zarr_encoding(
    name: str,
    variable: xr.Variable,
    *,
    zarr_format: int,
    batch_dims: Collection[str],
    chunks: Mapping[str, int],
    shards: Mapping[str, int],
    compressors: Any,
) -> dict[str, Any]:
    """How a new zarr array is cut and compressed: as the caller asks, then as still fits of the variable's own encoding."""
    encoding: dict[str, Any] = {}
    asked = {str(dim) for dim in variable.dims} & set(chunks)
    inherited = None if asked else _inherited_chunks(variable)
    if variable.ndim:
        wanted = inherited or default_chunks(variable, batch_dims, chunks)
        if inherited is None:
            wanted = _dividing(wanted, variable, shards, chunks)
        encoding["chunks"] = wanted
        if any(str(dim) in shards for dim in variable.dims):
            encoding["shards"] = _shards(name, variable, shards, wanted)
        elif inherited is not None and zarr_format == 3 and fits_shards(wanted, variable.encoding.get("shards")):
            encoding["shards"] = variable.encoding["shards"]
    if compressors is not None:
        encoding["compressors"] = compressors
    elif _codecs_fit(variable.encoding.get("compressors"), zarr_format):
        encoding["compressors"] = variable.encoding["compressors"]
    return encoding


def _dividing(
    chunks: tuple[int, ...], variable: xr.Variable, shards: Mapping[str, int], asked: Mapping[str, int]
) -> tuple[int, ...]:
    """Chunks that nobody asked for, such that the shards which somebody asks for hold whole ones."""
    found = list(chunks)
    for axis, dim in enumerate(map(str, variable.dims)):
        shard = shards.get(dim, -1)
        if shard != -1 and dim not in asked:
            found[axis] = next(part for part in range(min(chunks[axis], shard), 0, -1) if shard % part == 0)
    return tuple(found)


def _inherited_chunks(variable: xr.Variable) -> tuple[int, ...] | None:
    """The chunks that a variable had in its store; those of HDF5 are often tiny, and each would be a file."""
    found = storage_chunks(variable)
    if found is None or variable.encoding.get("chunks") is not None:
        return found
    return merged_chunks(found, variable.shape, max(variable.dtype.itemsize, 1), CHUNK_BYTES)


def fits_shards(chunks: Any, shards: Any) -> bool:
    """Whether shards hold whole chunks."""
    if not isinstance(shards, tuple | list) or not isinstance(chunks, tuple | list) or len(shards) != len(chunks):
        return False
    return all(shard % chunk == 0 for shard, chunk in zip(shards, chunks, strict=True))


def _shards(name: str, variable: xr.Variable, shards: Mapping[str, int], chunks: tuple[int, ...]) -> tuple[int, ...]:
    """Shards by dim; dims that are not named get one that covers the dim (a whole number of chunks)."""
    found = []
    for dim, chunk, full in zip(variable.dims, chunks, variable.shape, strict=True):
        whole = -(-max(full, 1) // chunk) * chunk
        size = shards.get(str(dim), -1)
        if size != -1 and size % chunk:
            raise ValueError(
                f"shards: {size} along {dim!r} is no multiple of the chunk size {chunk} of {name!r}; choose shards "
                "that hold "
                f"whole chunks"
            )
        found.append(whole if size == -1 else size)
    return tuple(found)


def _codecs_fit(compressors: Any, zarr_format: int) -> bool:
    """Whether codecs that were read belong to the format to be written: v3 refuses those of v2, and the reverse."""
    if not isinstance(compressors, tuple):
        return False
    import zarr.abc.codec

    is_v3 = all(isinstance(codec, zarr.abc.codec.Codec) for codec in compressors)
    return is_v3 if zarr_format == 3 else not is_v3
