"""Variables of a zarr store that are kept as JSON texts: rows of Python objects, and the entry ``_unbatched``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
import zarr

from ..._compat.zarr import unpickles
from ...core.metadata import ARRAY_ATTR, NON_TENSOR_ATTR, UNBATCHED_NAME, own_array_record
from ...core.model import Key
from ...core.objects import to_json
from ...writing.plan import WritePlan, unbatched_object
from ...writing.stored_form import Place, store_form, with_values
from .completeness import JsonText
from .entries import put_entries
from .texts import text_entries, whole_texts
from .there import There
from .undo import Undo
from .write import json_markers


def rewrite_texts(texts: Mapping[Key, xr.Variable], there: There, undo: Undo) -> None:
    """Write new values of variables that are kept as JSON: rows of objects, and parts of the entry ``_unbatched``."""
    unbatched = {key: variable for key, variable in texts.items() if there.text_path(key) == UNBATCHED_NAME}
    for key, variable in texts.items():
        if key not in unbatched:
            _put_text(there.root, "/".join(key), _rows_text(key, variable, there), undo)
    if unbatched:
        content = _unbatched_content(there)
        for key, variable in unbatched.items():
            path = "/".join(key)
            content[path] = with_values(path, content[path], np.asarray(variable.values))
        _put_unbatched(content, there, undo)


def _rows_text(key: Key, variable: xr.Variable, there: There) -> JsonText:
    batch = there.inference.groups[key[:-1]]
    name = "/".join(key)
    attrs = _attrs_of_text(there.root, name)
    place = Place(name, "tensordict", "zarr", "batched", tuple(map(str, batch.dims)))
    held = variable.copy(data=variable.values.astype(object))
    stored = store_form(held, place)
    stored.record = {k: v for k, v in own_array_record(attrs.get(ARRAY_ATTR)).items() if k == "role"}
    if stored.form != "json":
        stored.payload = held.values.tolist()
    markers = json_markers(stored, tuple(variable.shape[: len(batch.sizes)]))
    return JsonText(to_json(stored.payload, name), {**attrs, **markers})


def _attrs_of_text(root: zarr.Group, path: str) -> dict[str, Any]:
    found = whole_texts(root, [path]).get(path)
    member = root.get(path)
    return dict(found.attrs if found is not None else {} if member is None else member.attrs)


def _put_text(root: zarr.Group, path: str, text: JsonText, undo: Undo) -> None:
    entries = text_entries(root, path, text)
    undo.rewrites(path)
    put_entries(root, path, entries)


def _put_unbatched(content: Mapping[str, Any], there: There, undo: Undo) -> None:
    attrs = _attrs_of_text(there.root, UNBATCHED_NAME) or {NON_TENSOR_ATTR: {"encoding": "json"}}
    _put_text(there.root, UNBATCHED_NAME, JsonText(to_json(content, UNBATCHED_NAME), attrs), undo)


def _unbatched_content(there: There) -> dict[str, Any]:
    entry = there.root.get(UNBATCHED_NAME)
    if isinstance(entry, zarr.Array) and unpickles(entry):
        raise PermissionError(
            f"{there.where}: a codec of the entry {UNBATCHED_NAME!r} would unpickle it, which can run any code; write the "
            f"store again, with mode='w'"
        )
    text = whole_texts(there.root, [UNBATCHED_NAME]).get(UNBATCHED_NAME)
    return {} if text is None else dict(json.loads(text.text))


def merge_unbatched(plan: WritePlan, there: There, undo: Undo) -> None:
    """Add what a plan puts into the entry ``_unbatched`` to what is there."""
    _put_unbatched({**_unbatched_content(there), **unbatched_object(plan)}, there, undo)
