"""Variables of a zarr store that are kept as JSON texts: rows of Python objects, and the entry ``_unbatched``.

A new text goes into a chunk that the document does not name: the key of the chunk is spelled in another way each time. So
readers see the old text until the document changes, and a write that dies leaves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
import zarr
from zarr.storage import MemoryStore

from ..._compat.zarr import get_bytes, join, on_store, run
from ...core.metadata import ARRAY_ATTR, NON_TENSOR_ATTR, UNBATCHED_NAME, parse, parse_array_record
from ...core.model import Key
from ...core.values import to_json
from ...writing.stored_form import Place, store_form, with_values
from .new_arrays import json_markers, json_variable
from .open import unpickles

if TYPE_CHECKING:
    from .update import There

_LARGEST_CHUNK = 1 << 30
"""Codecs refuse more than 2 GiB."""


def stage_texts(texts: Mapping[Key, xr.Variable], added: Mapping[str, Any], there: There) -> None:
    """Stage new values of variables that are kept as JSON: rows of objects, and parts of the entry ``_unbatched``.

    Parameters
    ----------
    added
        New parts of the entry ``_unbatched``, as they are stored.
    """
    rows = {key: variable for key, variable in texts.items() if "/".join(key) in there.arrays}
    for key, variable in rows.items():
        attrs = _attrs_of(there, "/".join(key))
        text, markers = _rows_text(key, variable, attrs, there)
        _stage(there, "/".join(key), text, {**attrs, **markers})
    if not added and len(rows) == len(texts):
        return
    content = _unbatched_content(there)
    for key, variable in texts.items():
        path = "/".join(key)
        if key in rows:
            continue
        if path not in content:
            raise ValueError(
                f"{there.where}: {path!r} has a dtype or a codec that cannot be written to; write a new store"
            )
        content[path] = with_values(path, content[path], np.asarray(variable.values))
    attrs = _attrs_of(there, UNBATCHED_NAME) or {NON_TENSOR_ATTR: {"encoding": "json"}}
    _stage(there, UNBATCHED_NAME, to_json({**content, **added}, UNBATCHED_NAME), attrs)


def _rows_text(key: Key, variable: xr.Variable, attrs: dict[str, Any], there: There) -> tuple[str, dict[str, Any]]:
    batch = there.batches[key[:-1]]
    name = "/".join(key)
    held = variable.copy(data=variable.values.astype(object))
    stored = store_form(held, Place(name, "tensordict", "zarr", "batched", tuple(map(str, batch.dims))))
    stored.record = {k: v for k, v in parse_array_record(attrs.get(ARRAY_ATTR), name).items() if k == "role"}
    if stored.form != "json":
        stored.payload = held.values.tolist()
    return to_json(stored.payload, name), json_markers(stored, tuple(variable.shape[: len(batch.sizes)]))


def _attrs_of(there: There, path: str) -> dict[str, Any]:
    array = there.arrays.get(path)
    return {} if array is None else {name: v for name, v in array.attrs.items() if name != "_ARRAY_DIMENSIONS"}


def _unbatched_content(there: There) -> dict[str, Any]:
    array = there.arrays.get(UNBATCHED_NAME)
    if array is None:
        return {}
    if unpickles(array):
        raise PermissionError(
            f"{there.where}: a codec of the entry {UNBATCHED_NAME!r} would unpickle it, which can run any code; write the "
            f"store again, with mode='w'"
        )
    return parse(np.asarray(array[...]).tobytes(), dict[str, Any], f"{there.where}, entry {UNBATCHED_NAME!r}")


def _stage(there: There, path: str, text: str, attrs: Mapping[str, Any]) -> None:
    """Stage the document of the array of a text, and note its values."""
    change = there.change
    key, is_v3 = join(change.path, path), change.zarr_format == 3
    old = change.staged.document(join(key, "zarr.json" if is_v3 else ".zarray"))
    other = old is not None and (old["chunk_key_encoding"]["name"] == "default" if is_v3 else len(old["shape"]) == 1)
    variable = json_variable(path.rpartition("/")[2], text, attrs, set())
    dim = str(variable.dims[0])
    shape, dims = ((variable.size,), [dim]) if is_v3 or not other else ((1, variable.size), [f"{dim}_text", dim])
    encoding: Any = {"name": "v2" if other else "default", "separator": "." if other else "/"}
    names: Any = dims
    memory = MemoryStore()
    version: Any = change.zarr_format
    array = zarr.create_group(memory, zarr_format=version).create_array(
        key,
        shape=shape,
        chunks=tuple(max(1, min(size, _LARGEST_CHUNK)) for size in shape),
        dtype="uint8",
        chunk_key_encoding=encoding if is_v3 else None,
        dimension_names=names if is_v3 else None,
        attributes=dict(variable.attrs) if is_v3 else {**variable.attrs, "_ARRAY_DIMENSIONS": dims},
    )
    for name in ("zarr.json",) if is_v3 else (".zarray", ".zattrs"):
        change.staged.put(join(key, name), run(get_bytes(memory, join(key, name))))
    whole = tuple(slice(0, size) for size in shape)
    metadata: Any = array.metadata
    grid = (-(-size // chunk) for size, chunk in zip(shape, array.chunks, strict=True))
    change.texts += [join(key, metadata.encode_chunk_key(place)) for place in np.ndindex(*grid)]
    change.blocks.append((variable.values.reshape(shape), on_store(array, change.staged.inner), whole))
