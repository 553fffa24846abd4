"""JSON texts of a zarr store: the arrays that hold them, and what a write that did not finish has kept of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import zarr
from zarr.storage import MemoryStore

from ..._compat.zarr import unpickles
from ...core.metadata import NON_TENSOR_ATTR, is_pickled
from .completeness import JsonText, is_json, kept_texts
from .entries import entries_below, key_below
from .write import json_variable

_LARGEST_CHUNK = 1 << 30
"""Codecs refuse more than 2 GiB."""


def own_text(root: zarr.Group, path: str) -> JsonText | None:
    """The text that an array of a group holds; None where there is none, or none that is whole."""
    array = root.get(path)
    if not isinstance(array, zarr.Array) or NON_TENSOR_ATTR not in array.attrs or unpickles(array):
        return None
    attrs = dict(array.attrs)
    try:
        text = np.asarray(array[...]).tobytes()
    except (ValueError, RuntimeError):
        return None  # a chunk that does not fit its metadata
    return JsonText(text.decode(), attrs) if not is_pickled(attrs) and is_json(text) else None


def whole_texts(root: zarr.Group, paths: Sequence[str]) -> dict[str, JsonText]:
    """The JSON texts among some arrays of a group; what a write that did not finish has kept of those it left in pieces."""
    found = kept_texts(root)
    for path in paths:
        own = own_text(root, path)
        if own is not None:
            found[path] = own
    return found


def text_entries(root: zarr.Group, path: str, text: JsonText) -> dict[str, bytes]:
    """What an array that holds a text consists of: the text is one chunk, so that one request replaces it."""
    variable = json_variable(path.rsplit("/", 1)[-1], text.text, text.attrs, set())
    names: Any = [str(dim) for dim in variable.dims]
    is_v3 = root.metadata.zarr_format == 3
    composed = zarr.create_group(MemoryStore(), zarr_format=root.metadata.zarr_format)
    key = key_below(root, path)
    array = composed.create_array(
        key,
        shape=variable.shape,
        chunks=(min(variable.size, _LARGEST_CHUNK),),
        dtype="uint8",
        dimension_names=names if is_v3 else None,
        attributes=variable.attrs if is_v3 else {**variable.attrs, "_ARRAY_DIMENSIONS": names},
    )
    array[...] = variable.values
    return entries_below(composed, key)
