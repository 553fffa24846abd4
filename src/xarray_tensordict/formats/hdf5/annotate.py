"""Adding dimension labels and records of batches to an HDF5 file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import h5py

from ...core.metadata import BATCH_ATTR
from ..base import Annotations, check_records
from .attrs import NON_COORD_PREFIX, attached_scales, marker, write_labels
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
    named = {root["/".join(key)]: dims for key, dims in annotations.dims.items()}
    for dataset, dims in named.items():
        _check_scales(dataset, dims)
    for dataset, dims in named.items():
        write_labels(dataset, dims)
    for key, record in annotations.records.items():
        node = root.get("/".join(key)) if key else root
        if isinstance(node, h5py.Group):
            node.attrs[BATCH_ATTR] = json.dumps(record)


def _check_scales(dataset: h5py.Dataset, dims: Sequence[str]) -> None:
    """Raise a ValueError where a dimension scale gives an axis another name: readers ask it first."""
    for axis, dim in enumerate(dims):
        is_scale = marker(dataset, "CLASS") == "DIMENSION_SCALE"
        scales = attached_scales(dataset, axis) or ([dataset] if is_scale and not axis else [])
        names = [scale.name.rpartition("/")[2].removeprefix(NON_COORD_PREFIX) for scale in scales]
        if names and dim not in names:
            raise ValueError(
                f"{dataset.file.filename}: axis {axis} of {dataset.name!r} was to be called {dim!r}, and the dimension scale "
                f"{scales[-1].name!r} names it; rename the scale with h5py, file.move(...), or leave the axis out of dims=. "
                f"Nothing was changed"
            )
