"""What plain ``Dataset.to_zarr(append_dim=...)`` breaks in a store of this package: it is told of when the store is opened.

Plain xarray rewrites the attributes of the group, so that the record of the batch is gone and the batch is inferred from the
arrays; nested groups and times of another resolution are what it loses.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr

from ..core.metadata import NS_UNITS
from ..core.model import ArrayInfo, Key, StoredGroup, group_name
from ..core.naming import Dims


def lagging_groups(
    groups: Mapping[Key, StoredGroup], infos: Mapping[Key, ArrayInfo], named: Mapping[Key, Dims]
) -> list[str]:
    """Nested groups that a program which does not know of them has left behind: it grew the root, whose record is gone."""
    sizes = {
        dim: size
        for key, dims in named.items()
        if len(key) == 1
        for dim, size in zip(dims, infos[key].shape, strict=True)
    }
    told = []
    for key, group in groups.items():
        record = group.recorded
        if not key or record is None or not record.names or not record.sizes:
            continue
        dim, size = record.names[0], record.sizes[0]
        if dim is not None and sizes.get(dim, size) > size:
            told.append(
                f"group {group_name(key)!r} has {size} rows along {dim!r} and the root has {sizes[dim]}: rows were appended to "
                f"the root alone, by a program that does not know of nested groups. Append the others with "
                f"ds.td.to_zarr(store, group={group_name(key)!r}, append_dim={dim!r})"
            )
    return told


def lost_times(root: StoredGroup, ds: xr.Dataset) -> list[str]:
    """Times that a plain append has written as NaT: xarray does so, silently, where the resolution is not nanoseconds.

    It also removes the record of the group, `root`. Only the last value is looked at, of the coordinate of a dim (which has no
    gaps otherwise) and of arrays that are recorded as coordinates.
    """
    lost = []
    for name, stored in root.arrays.items():
        variable = ds.variables.get(name)
        if variable is None or variable.dtype.kind != "M" or not variable.size or not variable.ndim:
            continue
        labels = variable.dims == (name,) or "role" in stored.record
        if labels and stored.attrs.get("units") == NS_UNITS and stored.dtype == np.dtype("int64"):
            last = variable[tuple([slice(-1, None)] * variable.ndim)]
            lost += [name] if np.isnat(last.values).all() else []
    if not lost:
        return []
    return [
        (
            f"the last values of {lost} are NaT. If rows were appended with plain xarray, whose times have another resolution than "
            f"nanoseconds, xarray has written NaT for them; write these rows again with ds.td.to_zarr(store, region=...), and append "
            f"with ds.td.to_zarr(store, append_dim=...)"
        )
    ]
