"""Adding dimension labels and records of batches to an HDF5 file."""

from __future__ import annotations

import json
from typing import Any

import h5py

from ...core.metadata import BATCH_ATTR
from ..base import Annotations, check_records
from .attrs import write_labels
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
    for key, dims in annotations.dims.items():
        write_labels(root["/".join(key)], dims)
    for key, record in annotations.records.items():
        node = root.get("/".join(key)) if key else root
        if isinstance(node, h5py.Group):
            node.attrs[BATCH_ATTR] = json.dumps(record)
