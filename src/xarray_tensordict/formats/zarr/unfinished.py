"""An append to a zarr store that did not finish: the store as it was before, from what the mark has noted.

Some arrays have grown and others not, so the store as it is fits no dataset. The rows are appended again to the store as it
was, in arrays that may have grown already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import zarr

from ..._compat.zarr import document
from ...core.metadata import BATCH_ATTR, INCOMPLETE_ATTR
from .completeness import kept_texts, mark_of
from .entries import Overlay, as_json, attrs_key, key_below, with_attrs
from .texts import text_entries
from .there import Change


def state_before(root: zarr.Group, change: Change, records: Mapping[str, Any]) -> dict[str, Any]:
    """What a mark notes of a store before an append: the shapes of the arrays, and the records of the batch."""
    nodes = {path: root[path] if path else root for path in records}
    return {
        "shapes": {part.path: list(part.before) for part in change.parts},
        "records": {path: node.attrs[BATCH_ATTR] for path, node in nodes.items()},
    }


def completed_dim(root: zarr.Group, region: Any) -> str | None:
    """The dim of a region that is just the rows of an append that did not finish; None for any other."""
    mark = mark_of(root) or {}
    if mark.get("kind") != "append" or "before" not in mark or not isinstance(region, Mapping) or len(region) != 1:
        return None
    dim, part = next(iter(region.items()))
    if not isinstance(part, slice) or part.indices(mark["stop"]) != (mark["start"], mark["stop"], 1):
        return None
    return str(dim)


def store_before(root: zarr.Group) -> Overlay:
    """The store as it was before the append that its mark tells of; nothing is written."""
    before = (mark_of(root) or {})["before"]
    name = "zarr.json" if root.metadata.zarr_format == 3 else ".zarray"
    documents = {}
    for path, shape in before["shapes"].items():
        documents[key_below(root, f"{path}/{name}")] = as_json({**document(root, f"{path}/{name}"), "shape": shape})
    for path in {"", *before["records"]}:
        record = {BATCH_ATTR: before["records"][path]} if path in before["records"] else {}
        changed = {**record, **({} if path else {INCOMPLETE_ATTR: None})}
        documents[attrs_key(root, path)] = with_attrs(root, path, **changed)
    for path, text in kept_texts(root).items():
        documents |= text_entries(root, path, text)
    return Overlay(root.store, documents)
