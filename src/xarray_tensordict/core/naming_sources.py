"""Dimension names in conventions other than xarray's: OME-Zarr ``multiscales`` and GPM-style ``DimensionNames``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def axes_of_multiscales(attrs: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Read the axes that an OME-Zarr image group gives its arrays.

    Source: the OME-Zarr specification, 0.4 (attribute ``multiscales``) and 0.5 (the same below ``ome``).

    Returns
    -------
    dict
        Path of an array below the group to the names of its axes.

    Examples
    --------
    >>> axes_of_multiscales({"multiscales": [{"axes": [{"name": "y"}, {"name": "x"}], "datasets": [{"path": "0"}]}]})
    {'0': ('y', 'x')}
    """
    nested = attrs.get("ome")
    scales = attrs.get("multiscales", nested.get("multiscales") if isinstance(nested, Mapping) else None)
    found: dict[str, tuple[str, ...]] = {}
    for scale in scales if isinstance(scales, list) else ():
        if not isinstance(scale, Mapping) or not isinstance(scale.get("axes"), list):
            continue
        # 0.3 has plain strings, 0.4 objects
        names = [axis.get("name") if isinstance(axis, Mapping) else axis for axis in scale["axes"]]
        axes = tuple(name for name in names if isinstance(name, str))
        if len(axes) == len(names):
            paths = [entry.get("path") for entry in scale.get("datasets", ()) if isinstance(entry, Mapping)]
            found.update((path, axes) for path in paths if isinstance(path, str))
    return found


def dims_from_attribute(attrs: Mapping[str, Any], ndim: int) -> tuple[str, ...] | None:
    """Read ``DimensionNames`` ("nscan,nray"), which NASA's GPM products carry; None if it does not fit.

    Examples
    --------
    >>> dims_from_attribute({"DimensionNames": "nscan,nray"}, 2)
    ('nscan', 'nray')
    """
    value = attrs.get("DimensionNames")
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str):
        return None
    names = tuple(name.strip() for name in value.split(","))
    return names if len(names) == ndim and all(names) else None
