"""Adding dimension names and records of batches to the metadata of a zarr store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import zarr

from ...core.metadata import BATCH_ATTR, NON_TENSOR_ATTR, UNBATCHED_NAME
from ..base import Annotations, check_records
from .change import Change, zarr_writes
from .open import walk_members
from .target import resolve_target
from .transaction import join, taken


def annotate_zarr(source: Any, description: str, annotations: Annotations) -> None:
    """Write into the documents of a store; see :meth:`~..base.Format.annotate`."""
    target = resolve_target(source, annotations.group, annotations.storage_options)
    with taken(target.store, target.name, target.root()), zarr_writes():
        change = Change(target, target.group_format() or 3)
        root: Any = zarr.open_group(target.store, path=change.path, mode="r", use_consolidated=False)
        _check_fill_values(root, annotations, description)
        check_records(root, annotations)
        named = {"/".join(key): dims for key, dims in annotations.dims.items()}
        named |= {path: (f"{path.rsplit('/', 1)[-1]}_json",) for path, _ in _byte_arrays(root)}
        for path, dims in named.items():
            change.name_axes(join(change.path, path), list(dims))
        for key, record in annotations.records.items():
            # a group may be in the entry _unbatched alone
            if not key or isinstance(root.get("/".join(key)), zarr.Group):
                change.set_attrs(join(change.path, *key), **{BATCH_ATTR: record})
        change.finish()


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


def _byte_arrays(root: Any) -> Iterator[tuple[str, Any]]:
    """The arrays of bytes that hold non-tensor entries and have no dimension name: without one open_zarr raises."""
    for path, node in walk_members(root):
        if isinstance(node, zarr.Array) and NON_TENSOR_ATTR in node.attrs:
            named = getattr(node.metadata, "dimension_names", None) or node.attrs.get("_ARRAY_DIMENSIONS")
            if not named and path != UNBATCHED_NAME:
                yield path, node
