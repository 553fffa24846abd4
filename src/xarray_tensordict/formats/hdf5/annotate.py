"""Adding dimension labels and records of batches to an HDF5 file."""

from __future__ import annotations

import json
from typing import Any

import h5py

from ...core.metadata import BATCH_ATTR
from ..base import Annotations, check_records
from .attrs import attached_scales, marker, write_label
from .file import open_for_changes


def annotate_hdf5(source: Any, annotations: Annotations) -> None:
    """Write labels and attributes into a file; see :meth:`~..base.Format.annotate`."""
    if isinstance(source, str):
        with open_for_changes(source) as file:
            annotate_hdf5(file, annotations)
        return
    group = (annotations.group or "").strip("/")
    root = source[group] if group else source
    check_records(root, annotations)
    labels = [
        (root["/".join(key)], axis, dim) for key, dims in annotations.dims.items() for axis, dim in enumerate(dims)
    ]
    for dataset, axis, dim in [label for label in labels if not _has_scale(*label)]:
        write_label(dataset, axis, dim)
    for key, record in annotations.records.items():
        node = root.get("/".join(key)) if key else root
        if isinstance(node, h5py.Group):
            node.attrs[BATCH_ATTR] = json.dumps(record)


def _has_scale(dataset: Any, axis: int, dim: str) -> bool:
    """Whether a dimension scale names an axis so; readers ask it first.

    Raises
    ------
    ValueError
        Where it has another name: nothing was written then.
    """
    is_scale = marker(dataset, "CLASS") == "DIMENSION_SCALE"
    scales = attached_scales(dataset, axis) or ([dataset] if is_scale and not axis else [])
    names = [scale.name.rpartition("/")[2].removeprefix("_nc4_non_coord_") for scale in scales]
    if names and dim not in names:
        raise ValueError(
            f"{dataset.file.filename}: axis {axis} of {dataset.name!r} was to be called {dim!r}, and the dimension scale "
            f"{scales[-1].name!r} names it; rename the scale with h5py, file.move(...), or leave the axis out of dims=. Nothing was "
            f"changed"
        )
    return bool(names)
