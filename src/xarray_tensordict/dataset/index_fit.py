"""Index coordinates of a group that differ from those of a group above: a DataTree has one index for a dim along a branch."""

from __future__ import annotations

from collections.abc import Mapping

import xarray as xr

from ..core.blocks import with_renamed_chunks
from ..core.model import Key, group_name
from ..core.naming import free_name


def fit_indexes(datasets: Mapping[Key, xr.Dataset]) -> tuple[dict[Key, xr.Dataset], list[str]]:
    """Give a dim whose own coordinate differs from that of a group above a name of its own, below that group too.

    The coordinate keeps its name. Index coordinates are read where a group above has one of the same dim.

    Parameters
    ----------
    datasets
        By the key of their group, parents first, without indexes.

    Returns
    -------
    datasets
        With dims that a DataTree accepts.
    warnings
        One sentence for each dim that was renamed.
    """
    renamed: dict[Key, dict[str, str]] = {}
    indexes: dict[Key, dict[str, xr.Variable]] = {}
    fitted: dict[Key, xr.Dataset] = {}
    told: list[str] = []
    for key, ds in datasets.items():
        above = indexes.get(key[:-1], {}) if key else {}
        names = dict(renamed.get(key[:-1], {})) if key else {}
        own = {str(dim): ds.variables[dim] for dim in ds.dims if dim in ds.variables and ds[dim].dims == (dim,)}
        for dim, variable in own.items():
            if dim in above and not variable.equals(above[dim]):
                names[dim] = free_name(f"{dim}_{key[-1]}", map(str, {*ds.variables, *ds.dims, *above}))
                told.append(
                    f"the coordinate {dim!r} of {group_name(key)!r} differs from that of the group above, so its dim is "
                    f"called {names[dim]!r}"
                )
        renamed[key], indexes[key] = names, {**above, **own}
        fitted[key] = _with_dims(ds, {dim: name for dim, name in names.items() if dim in ds.dims})
    return fitted, told


def _with_dims(ds: xr.Dataset, names: Mapping[str, str]) -> xr.Dataset:
    if not names:
        return ds
    moved = ds.rename_dims(names)
    for variable in moved.variables.values():
        variable.encoding = with_renamed_chunks(variable.encoding, names)
    unlimited = ds.encoding.get("unlimited_dims")
    moved.encoding = dict(ds.encoding)
    if unlimited:
        moved.encoding["unlimited_dims"] = {names.get(dim, dim) for dim in unlimited}
    return moved
