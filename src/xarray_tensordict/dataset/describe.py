"""Descriptions of arrays for the inference: of those in a store, and of the variables of a Dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends.common import NONE_VAR_NAME

from ..core.model import ArrayInfo, Key, Kind, Role, StoredArray, StoredGroup, text_of
from ..core.voting import referenced_names

# What the inference reads of a variable. xarray moves some of them from attrs to encoding when it decodes.
_CF_ATTRS = (
    "axis standard_name units positive bounds climatology coordinates grid_mapping cell_measures ancillary_variables "
    "formula_terms calendar MATLAB_class"
).split()


def key_of(name: Any) -> Key:
    """The key of a variable: ``"next/obs"`` is ``("next", "obs")``; a variable without a name is stored as xarray does."""
    return tuple(str(NONE_VAR_NAME if name is None else name).split("/"))


def kind_of(dtype: Any, attrs: Mapping[str, Any]) -> Kind:
    """Say what the elements of an array are; encoded times count as times."""
    if not isinstance(dtype, np.dtype):
        return "object"  # a pandas extension array: categories, nullable numbers, ...
    if dtype.kind in "mM":
        return "time"
    if dtype.kind in "biufc":
        if text_of(attrs.get("MATLAB_class")) == "char":
            return "string"  # stored as numbers of characters
        units = attrs.get("units")
        encoded = isinstance(units, str) and " since " in units
        return "time" if encoded or str(attrs.get("dtype", "")).startswith("timedelta64") else "numeric"
    metadata: Mapping[str, Any] = dtype.metadata or {}
    if dtype.kind in "SUT" or (dtype.kind == "O" and metadata.get("element_type") in (str, bytes)):
        return "string"
    return "object"


def describe_group(group: StoredGroup, dims: Mapping[str, tuple[str | None, ...]]) -> list[ArrayInfo]:
    """Describe the arrays of one group of a store.

    Parameters
    ----------
    group
        The group.
    dims
        The dims of each array, after the caller's ``dims=``.
    """
    claimed = referenced_names({"coordinates": group.attrs.get("coordinates")})
    for array in group.arrays.values():
        claimed |= referenced_names({"coordinates": array.attrs.get("coordinates")})
    return [
        ArrayInfo(
            (*group.key, name),
            array.shape,
            kind_of(array.dtype, array.attrs),
            dims[name],
            _role(name, array, dims[name], claimed),
            array.unlimited,
            _cf_attrs(array.attrs),
            array.dtype.kind not in "fc",
        )
        for name, array in group.arrays.items()
    ]


def _cf_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Those that the inference reads; CF knows them as text alone, and a store may hold anything."""
    return {name: attrs[name] for name in _CF_ATTRS if isinstance(attrs.get(name), str | bytes)}


def _role(name: str, array: StoredArray, dims: tuple[str | None, ...], claimed: Iterable[str]) -> Role:
    if dims == (name,):
        return "index"
    return "coord" if array.role == "coord" or (name in claimed and array.role is None) else "data"


def describe_dataset(ds: xr.Dataset, prefix: Key = ()) -> list[ArrayInfo]:
    """Describe the variables of a Dataset, of which ``"a/b"`` is in the group ``("a",)``."""
    unlimited_dims = set(ds.encoding.get("unlimited_dims", ()))
    infos = []
    for name, variable in ds.variables.items():
        key = (*prefix, *key_of(name))
        found = _cf_attrs(variable.encoding) | _cf_attrs(variable.attrs)
        dims = tuple(str(dim) for dim in variable.dims)
        role: Role = "data"
        if name in ds.coords:
            role = "index" if dims == (str(name),) else "coord"
        unlimited = frozenset(axis for axis, dim in enumerate(variable.dims) if dim in unlimited_dims)
        kind = kind_of(variable.dtype, found)
        # integers with a fill value are floats once they are decoded
        integral = np.dtype(variable.encoding.get("dtype") or np.float64).kind not in "fc" or (
            getattr(variable.dtype, "kind", "O") not in "fc"
        )
        infos.append(ArrayInfo(key, _known_shape(key, variable), kind, dims, role, unlimited, found, integral))
    return infos


def _known_shape(key: Key, variable: xr.Variable) -> tuple[int, ...]:
    shape: tuple[int, ...] = variable.shape
    if any(size != size for size in shape):
        raise ValueError(
            f"variable {'/'.join(key)!r} has the shape {shape}: it is a dask array of chunks of unknown sizes, as a selection "
            f"by a mask gives, which xarray does not support. Call compute_chunk_sizes() of the array before it becomes a "
            f"variable, or select with ds.isel and positions"
        )
    return shape
