"""Dims of a Dataset under the names that the engine made up for a store that names none.

A buffer of ``TensorDict.from_schema`` has no names for its dims: what is written into it is matched by position.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import xarray as xr

from ..core.features import is_made_up, is_marked
from .plan import Node, Source, local_dim


def adopt_names(
    source: Source, there: xr.Dataset, region: Any, append_dim: Hashable | None
) -> tuple[Source, Any, Hashable | None]:
    """Rename dims to those of the store, where these were made up; the region and the dim to append along as well.

    Names that the store records, and dims that would stand for two of the store's, are left as they are.

    Examples
    --------
    >>> from .plan import source_of_dataset
    >>> there = xr.Dataset({"obs": (("batch_0", "dim_3"), [[0.0] * 3] * 8)})
    >>> rows = source_of_dataset(xr.Dataset({"obs": (("time", "joint"), [[1.0] * 3] * 2)}))
    >>> renamed, region, _ = adopt_names(rows, there, {"time": slice(4, 6)}, None)
    >>> renamed.flat["obs"].dims, region
    (('batch_0', 'dim_3'), {'batch_0': slice(4, 6, None)})
    """
    names = _names(source.flat, there)
    if not names:
        return source, region, append_dim
    if isinstance(region, Mapping):
        region = {names.get(str(dim), dim): part for dim, part in region.items()}
    flat = xr.Dataset(
        {name: _renamed(variable, names) for name, variable in source.flat.variables.items()}, attrs=source.flat.attrs
    ).set_coords(list(source.flat.coords))
    nodes = {key: _node(node, flat) for key, node in source.nodes.items()}
    return replace(source, flat=flat, nodes=nodes), region, names.get(str(append_dim), append_dim)


def grown_dims(source: Source, there: xr.Dataset, append_dim: str) -> tuple[Source, xr.Dataset, frozenset[str]]:
    """Both under the same names of dims, and which of them grow.

    Where the groups of a tree have a dim of that name each, of different lengths, each is called after its group.
    """
    source, _, adopted = adopt_names(source, there, None, append_dim)
    dim = str(adopted)
    if dim in there.sizes and dim in source.flat.sizes:
        return source, there, frozenset([dim])
    own = {name: tuple(local_dim(str(each), _group(name)) for each in v.dims) for name, v in there.variables.items()}
    mine = {
        node.names[local]: tuple(map(str, variable.dims))
        for node in source.nodes.values()
        for local, variable in node.variables.items()
    }
    if not any(dim in dims for dims in own.values()) or not any(dim in dims for dims in mine.values()):
        return source, there, frozenset([dim])
    flat, old = _under_own_names(source.flat, mine), _under_own_names(there, own)
    found = {str(each) for each in flat.dims if str(each).rpartition(".")[2] == dim}
    return replace(source, flat=flat), old, frozenset(found)


def _group(name: Hashable) -> tuple[str, ...]:
    return tuple(str(name).split("/")[:-1])


def _under_own_names(ds: xr.Dataset, dims: Mapping[Any, tuple[str, ...]]) -> xr.Dataset:
    """Dims called after the outermost group that has one of that name above, as nodes of a tree share theirs."""
    owners = {(_group(name), dim) for name, own in dims.items() for dim in own}
    variables = {}
    for name, variable in ds.variables.items():
        group = _group(name)
        renamed = []
        for dim in dims[name]:
            owner = next(group[:n] for n in range(len(group) + 1) if (group[:n], dim) in owners)
            renamed.append(".".join((*owner, dim)))
        moved = xr.Variable(renamed, variable._data, variable.attrs, fastpath=True)
        moved.encoding = variable.encoding
        variables[name] = moved
    coords = {name: variables[name] for name in ds.coords}
    data = {name: variable for name, variable in variables.items() if name not in coords}
    return xr.Dataset(data, coords=xr.Coordinates(coords, indexes={}), attrs=ds.attrs)


def _names(new: xr.Dataset, there: xr.Dataset) -> dict[str, str]:
    found: dict[str, set[str]] = {}
    for name, variable in new.variables.items():
        old = there.variables.get(name)
        if old is None or old.ndim != variable.ndim:
            continue
        for mine, theirs in zip(map(str, variable.dims), map(str, old.dims), strict=True):
            if mine not in there.dims and (is_marked(theirs) or is_made_up(theirs, old.sizes[theirs])):
                found.setdefault(mine, set()).add(theirs)
    names = {mine: next(iter(theirs)) for mine, theirs in found.items() if len(theirs) == 1}
    taken = list(names.values())
    return {mine: theirs for mine, theirs in names.items() if taken.count(theirs) == 1 and theirs not in new.dims}


def _renamed(variable: xr.Variable, names: Mapping[str, str]) -> xr.Variable:
    dims = [names.get(str(dim), str(dim)) for dim in variable.dims]
    renamed = xr.Variable(dims, variable._data, variable.attrs, fastpath=True)
    renamed.encoding = variable.encoding
    return renamed


def _node(node: Node, flat: xr.Dataset) -> Node:
    """The group with the dims of the flat view, which are its own where a store names none."""
    variables = {
        local: _renamed(variable, dict(zip(map(str, variable.dims), map(str, flat.variables[name].dims), strict=True)))
        for (local, variable), name in zip(node.variables.items(), map(node.names.get, node.variables), strict=True)
    }
    return replace(node, variables=variables)
