"""Whether rows can be appended to a store: everything is compared with what is there before a byte is written.

Silence here would be rows that are missing, or values that mean something else than those before them.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import xarray as xr

from .plan import Source
from .store_fit import check_sizes


def check_append(source: Source, old: xr.Dataset, dim: str | Collection[str], where: str) -> None:
    """Check the rows of `source` against the store that the engine shows as `old`.

    Parameters
    ----------
    dim
        The dim that grows; the dims, where groups have one of their own each.

    Raises
    ------
    ValueError
        For variables that are missing, that are new, that have other dims, dtypes, sizes or units, or that lack the dim and
        differ from what is there. The message names them.
    """
    new = source.flat
    dims = {dim} if isinstance(dim, str) else set(dim)
    for each in sorted(dims):
        if each not in old.sizes:
            raise ValueError(
                f"{where}: append_dim={each!r} is no dim there; the dims are: {sorted(map(str, old.sizes))}"
            )
        if each not in new.sizes:
            raise ValueError(
                f"append_dim={each!r} is no dim of the dataset; the dims are: {sorted(map(str, new.sizes))}"
            )
    _check_names(new, old, dims, where)
    for name, variable in new.variables.items():
        if dims & set(variable.dims):
            check_sizes(str(name), variable, old.variables[name], dict.fromkeys(dims), where)
    _refuse_unknown([str(name) for name in new.variables if name not in old.variables], where)
    _check_units(new, old, where)
    _check_values(source, old, dims, where)


def _check_names(new: xr.Dataset, old: xr.Dataset, dims: set[str], where: str) -> None:
    for name, variable in old.variables.items():
        dim = next((str(dim) for dim in variable.dims if dim in dims), None)
        if dim is None:
            continue
        if name not in new.variables:
            missing = [str(name) for name, v in old.variables.items() if dim in v.dims and name not in new.variables]
            raise ValueError(
                f"{where}: {missing[:5]} have the dim {dim!r} there and are not in the dataset, so their rows would be "
                f"missing; add them"
            )
        if dim not in new.variables[name].dims:
            raise ValueError(
                f"{where}: variable {name!r} has dims {list(variable.dims)} there, found "
                f"{list(new.variables[name].dims)}, so its rows would be missing; give it the dim {dim!r}"
            )
    _refuse_unknown(
        [str(name) for name, v in new.variables.items() if name not in old.variables and dims & set(v.dims)], where
    )


def _refuse_unknown(names: list[str], where: str) -> None:
    if names:
        raise ValueError(
            f"{where}: {names[:5]} are not there, and an append adds rows, no variables; drop them, or write to a new store"
        )


def _check_units(new: xr.Dataset, old: xr.Dataset, where: str) -> None:
    for name, variable in new.variables.items():
        units, there = variable.attrs.get("units"), old.variables[name].attrs.get("units")
        if units is not None and there is not None and units != there:
            raise ValueError(
                f"{where}: variable {name!r} has the units {there!r} there, found {units!r}; convert the values and the "
                f"attribute"
            )


def _check_values(source: Source, old: xr.Dataset, dims: set[str], where: str) -> None:
    """Variables without the dim are not written: they have to be what is there."""
    for node in source.nodes.values():
        for local, variable in node.variables.items():
            name, shown = node.names[local], ", ".join(map(repr, sorted(dims)))
            if dims & set(source.flat.variables[name].dims) or same_values(variable, old.variables[name]):
                continue
            raise ValueError(
                f"{where}: variable {name!r} has no dim {shown}, so an append leaves it as it is, and its values are not "
                f"those there; drop it, or overwrite it with mode='a' first"
            )


def same_values(new: xr.Variable, old: xr.Variable) -> bool:
    """Whether two variables have the same sizes and values; NaN equals NaN, text equals text of another dtype."""
    if new.shape != old.shape:
        return False
    values = [np.asarray(v.data.compute() if v.chunks is not None else v.values) for v in (new, old)]
    if any(array.dtype.kind in "OUST" for array in values):
        return bool(values[0].astype(object).tolist() == values[1].astype(object).tolist())
    return bool(np.array_equal(values[0], values[1], equal_nan=values[0].dtype.kind in "fcmM"))
