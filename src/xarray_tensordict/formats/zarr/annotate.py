"""Adding dimension names and records of batches to the metadata of a zarr store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import zarr

from ..._compat.zarr import update_document
from ...core.metadata import BATCH_ATTR, NON_TENSOR_ATTR, UNBATCHED_NAME
from ...quiet import ZARR_SAYS, quiet
from ..base import Annotations, check_records
from .open import walk_members


def annotate_zarr(source: Any, description: str, annotations: Annotations) -> None:
    """Write into the documents of a store; see :meth:`~..base.Format.annotate`."""
    with quiet(*ZARR_SAYS):
        if isinstance(source, zarr.Group):
            whole = source
        else:
            whole = zarr.open_group(
                source, mode="r+", use_consolidated=False, storage_options=annotations.storage_options
            )
        consolidated = _consolidated_paths(whole)
        group = (annotations.group or "").strip("/")
        root: Any = whole[group] if group else whole
        _check_fill_values(root, annotations, description)
        check_records(root, annotations)
        texts = list(_byte_arrays(root))
        for key, dims in annotations.dims.items():
            _name_axes(root["/".join(key)], dims)
        for path, array in texts:
            _name_axes(array, (f"{path.rsplit('/', 1)[-1]}_json",))
        for key, record in annotations.records.items():
            node = root.get("/".join(key)) if key else root  # a group may be in the entry _unbatched alone
            if isinstance(node, zarr.Group) and dict(node.attrs).get(BATCH_ATTR) != record:
                node.attrs[BATCH_ATTR] = record
        for path in consolidated:
            zarr.consolidate_metadata(whole.store, path=path)


def _check_fill_values(root: zarr.Group, annotations: Annotations, description: str) -> None:
    """In zarr v2 dimension names make xarray take the fill value for a mask: 0 can be taken back, others cannot."""
    if root.metadata.zarr_format != 2:
        return
    arrays: dict[str, Any] = {"/".join(key): root["/".join(key)] for key in annotations.dims}
    masked = [
        f"{name!r} (fill_value {array.fill_value})"
        for name, array in arrays.items()
        if array.fill_value not in (None, 0, 0.0, False, "", b"")
        and array.dtype.kind not in "mM"
        and not _is_nan(array.fill_value)
    ]
    if masked:
        raise ValueError(
            f"{description}: with dimension names, plain xarray would take the fill value of these zarr v2 arrays for missing "
            f"data: {', '.join(masked)}. Write the store again with ds.td.to_zarr(...). Nothing was changed"
        )


def _is_nan(value: Any) -> bool:
    return bool(value != value)


def _consolidated_paths(whole: Any) -> list[str]:
    """Where the store has consolidated metadata: at its root, or at the group that was given."""
    found = []
    for path in dict.fromkeys(["", whole.path]):
        try:
            node = zarr.open_group(whole.store, mode="r", path=path or None)
        except (FileNotFoundError, ValueError):
            continue
        if node.metadata.consolidated_metadata is not None:
            found.append(path)
    return found


def _byte_arrays(root: Any) -> Iterator[tuple[str, Any]]:
    """The arrays of bytes that hold non-tensor entries and have no dimension name: without one open_zarr raises."""
    for path, node in walk_members(root):
        if isinstance(node, zarr.Array) and NON_TENSOR_ATTR in node.attrs:
            named = getattr(node.metadata, "dimension_names", None) or node.attrs.get("_ARRAY_DIMENSIONS")
            if not named and path != UNBATCHED_NAME:
                yield path, node


def _name_axes(array: Any, dims: tuple[str, ...]) -> None:
    """Write dimension names into the metadata document of an array; zarr has no call that does so."""
    if array.metadata.zarr_format == 3:
        update_document(array, "zarr.json", {"dimension_names": list(dims)})
        return
    if array.fill_value is not None and not _is_nan(array.fill_value):
        # checked before: it is zero, which is what a missing chunk reads as without a fill value too
        update_document(array, ".zarray", {"fill_value": None})
    update_document(array, ".zattrs", {"_ARRAY_DIMENSIONS": list(dims)})
