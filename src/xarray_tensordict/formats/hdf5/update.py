"""Add variables and groups to an HDF5 file that is there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...core.model import Key
from ...dataset.open import OpenOptions, open_flat
from ...dataset.record import infer_dataset
from ...writing.additions import plan_added
from ...writing.plan import Source, WritePlan, plan_write
from ...writing.stored_form import Layout
from .read import Hdf5Store


def plan_addition(
    source: Source, path: Path, layout: Layout, prefix: Key, encoding: Mapping[str, Mapping[str, Any]]
) -> WritePlan:
    """Plan the writing of a Dataset into a group of a file, whose other variables and whose batch stay as they are.

    Raises
    ------
    ValueError
        For dims that have another size there.
    """
    try:
        store = Hdf5Store.open(path, root="/".join(prefix))
    except OSError as error:
        if "has no group" not in str(error):
            raise
        return plan_write(source, layout, "hdf5", encoding=encoding)
    try:
        marked = store.has_tensordict_marker
        old = open_flat(store, OpenOptions(nested=True))
        inference = infer_dataset(old)
        names = [str(name) for name in source.flat.variables]
        plan = plan_added(source, old, inference, names, layout, "hdf5", encoding)
    finally:
        store.close()
    if not marked and old.variables:
        # what others wrote there need not lead with the batch: no record says that it does
        for group in plan.groups.values():
            group.batch_record = None
    return plan
