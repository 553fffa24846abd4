"""Variables of a zarr store that are kept as JSON texts: rows of Python objects, and the entry ``_unbatched``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
import zarr

from ..core.metadata import ARRAY_ATTR, NON_TENSOR_ATTR, UNBATCHED_NAME, own_array_record
from ..core.model import Key
from ..core.unbatched_entry import with_values
from ..stores.zarr_private import unpickles
from .plan import WritePlan
from .stored_form import Place, store_form, to_json
from .zarr_there import There, whole_texts
from .zarr_writer import json_markers, json_variable, unbatched_object


def rewrite_texts(texts: Mapping[Key, xr.Variable], there: There) -> None:
    """Write new values of variables that are kept as JSON: rows of objects, and parts of the entry ``_unbatched``."""
    content = _unbatched_content(there)
    for key, variable in texts.items():
        path = "/".join(key)
        array = there.member(key)
        if array is None:
            content[path] = with_values(content[path], np.asarray(variable.values))
            continue
        _rewrite_rows(key, variable, array, there)
    if any(there.member(key) is None for key in texts):
        _put_text(there.root, UNBATCHED_NAME, to_json(content, UNBATCHED_NAME), dict(there.root[UNBATCHED_NAME].attrs))


def _rewrite_rows(key: Key, variable: xr.Variable, array: zarr.Array[Any], there: There) -> None:
    batch = there.inference.groups[key[:-1]]
    name = "/".join(key)
    place = Place(name, "tensordict", "zarr", "batched", tuple(map(str, batch.dims)))
    held = variable.copy(data=variable.values.astype(object))
    stored = store_form(held, place)
    stored.record = {k: v for k, v in own_array_record(array.attrs.get(ARRAY_ATTR)).items() if k == "role"}
    if stored.form != "json":
        stored.payload = held.values.tolist()
    markers = json_markers(stored, tuple(variable.shape[: len(batch.sizes)]))
    _put_text(there.root, name, to_json(stored.payload, name), {**dict(array.attrs), **markers})


def _put_text(root: zarr.Group, path: str, text: str, attrs: dict[str, Any]) -> None:
    variable = json_variable(path.rsplit("/", 1)[-1], text, attrs, set())
    names: Any = [str(dim) for dim in variable.dims]
    is_v3 = root.metadata.zarr_format == 3
    array = root.create_array(
        path,
        shape=variable.shape,
        dtype="uint8",
        overwrite=True,
        dimension_names=names if is_v3 else None,
        attributes=attrs if is_v3 else {**attrs, "_ARRAY_DIMENSIONS": names},
    )
    array[...] = variable.values


def _unbatched_content(there: There) -> dict[str, Any]:
    entry = there.root.get(UNBATCHED_NAME)
    if isinstance(entry, zarr.Array) and unpickles(entry):
        raise PermissionError(
            f"{there.where}: a codec of the entry {UNBATCHED_NAME!r} would unpickle it, which can run any code; write the "
            f"store again, with mode='w'"
        )
    text = whole_texts(there.root, [UNBATCHED_NAME]).get(UNBATCHED_NAME)
    return {} if text is None else dict(json.loads(text))


def merge_unbatched(plan: WritePlan, there: There) -> None:
    """Add what a plan puts into the entry ``_unbatched`` to what is there."""
    content = {**_unbatched_content(there), **unbatched_object(plan)}
    _put_text(there.root, UNBATCHED_NAME, to_json(content, UNBATCHED_NAME), {NON_TENSOR_ATTR: {"encoding": "json"}})
