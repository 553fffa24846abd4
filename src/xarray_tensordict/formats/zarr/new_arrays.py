"""New groups and arrays of a zarr store: from a :class:`~...writing.plan.WritePlan` to Datasets that xarray writes as they are.

Nested names never reach xarray, which writes them as nested arrays that it cannot read again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr
from xarray.core.coordinates import Coordinates

from ..._compat.xarray import data_of, past_cache
from ...core.metadata import ARRAY_ATTR, NON_TENSOR_ATTR, STACK_ATTR, UNBATCHED_NAME
from ...core.model import Key
from ...core.objects import jsonable, to_json
from ...writing.blockwise import contiguous
from ...writing.encodings import fits_shards, zarr_encoding
from ...writing.plan import GroupPlan, WritePlan, unbatched_object
from ...writing.stored_form import Stored


@dataclass(frozen=True)
class ZarrOptions:
    """What the caller says about the arrays and the store.

    Attributes
    ----------
    encoding
        By the names of the Dataset, as in ``Dataset.to_zarr``.
    chunks, shards
        Sizes by dim.
    compressors
        As in ``zarr.create_array``, for all arrays.
    zarr_format
        2 or 3; None: that of the store, or zarr's default.
    consolidated
        None and True consolidate where the store supports it.
    compute
        False: return what writes the values as a dask ``Delayed``.
    progress
        Show a bar while dask computes.
    """

    encoding: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    chunks: Mapping[str, int] = field(default_factory=dict)
    shards: Mapping[str, int] = field(default_factory=dict)
    compressors: Any = None
    zarr_format: int | None = None
    consolidated: bool | None = None
    compute: bool = True
    progress: bool = False


@dataclass(frozen=True)
class NewGroup:
    """One group as a Dataset, with the encoding that the caller asks for; checked."""

    ds: xr.Dataset
    encoding: dict[str, dict[str, Any]]
    batch_record: Mapping[str, Any] | None


def new_groups(plan: WritePlan, options: ZarrOptions) -> dict[Key, NewGroup]:
    """The groups of a plan; the entry ``_unbatched`` is in the root.

    Raises
    ------
    ValueError
        For shards that do not hold whole chunks.
    TypeError
        For attributes that JSON does not hold.
    """
    _check_attrs(plan)
    found = {}
    for key, group in plan.groups.items():
        ds = _dataset_of(plan, key, options)
        found[key] = NewGroup(ds, _explicit_encoding(ds, group, options), group.batch_record)
    return found


def _explicit_encoding(ds: xr.Dataset, group: GroupPlan, options: ZarrOptions) -> dict[str, dict[str, Any]]:
    """What the caller asks for by variable, over the encoding that was chosen."""
    found: dict[str, dict[str, Any]] = {}
    for local in group.stored:
        asked = options.encoding.get(group.node.names[local])
        if asked is None or local not in ds.variables:
            continue
        merged = {**ds.variables[local].encoding, **asked}
        shards, chunks = merged.get("shards"), merged.get("chunks")
        if shards is not None and not fits_shards(chunks, shards):
            if asked.get("shards") is not None and asked.get("chunks") is not None:
                raise ValueError(
                    f"encoding: the shards {shards} of {group.node.names[local]!r} do not hold whole chunks, which are "
                    f"{chunks}; choose shards that are multiples of the chunks"
                )
            # one of both was asked for, and the other chosen here
            merged.pop("shards" if asked.get("shards") is None else "chunks")
            if "chunks" not in merged:
                merged["chunks"] = shards
        found[local] = merged
    return found


def _check_attrs(plan: WritePlan) -> None:
    for key, group in plan.groups.items():
        owners = {f"group {'/' + '/'.join(key)!r}": group.attrs or {}}
        owners |= {f"variable {group.node.names[name]!r}": v.attrs for name, v in group.node.variables.items()}
        for owner, attrs in owners.items():
            for name, value in attrs.items():
                try:
                    json.dumps(jsonable(value))
                except (TypeError, ValueError) as error:
                    raise TypeError(
                        f"attribute {name!r} of {owner} is {value!r:.60}, which JSON does not hold ({error}), and zarr keeps "
                        f"attributes as JSON; convert it to a number, a string or a list, or delete it"
                    ) from error


def _dataset_of(plan: WritePlan, key: Key, options: ZarrOptions) -> xr.Dataset:
    """One group as a Dataset whose variables xarray writes as they are, markers among their attributes."""
    group = plan.groups[key]
    sizes = tuple(group.batch_record["batch_size"]) if group.batch_record is not None else ()
    variables = {name: _variable(name, stored, plan, group, sizes, options) for name, stored in group.stored.items()}
    if not key and plan.unbatched:
        taken = {str(dim) for variable in variables.values() for dim in variable.dims}
        text = to_json(unbatched_object(plan), UNBATCHED_NAME)
        variables[UNBATCHED_NAME] = json_variable(UNBATCHED_NAME, text, {}, taken)
    coords = {name for name in group.coords if not _needs_record(group.stored[name])}
    data = {name: variable for name, variable in variables.items() if name not in coords}
    own = Coordinates({name: variables[name] for name in variables if name in coords}, indexes={})
    return xr.Dataset(data, coords=own, attrs=group.attrs or {})


def _needs_record(stored: Stored) -> bool:
    """Whether the array itself says that it is a coordinate, since CF cannot."""
    return stored.record.get("role") == "coord" or stored.form == "json"


def _variable(
    name: str, stored: Stored, plan: WritePlan, group: GroupPlan, sizes: tuple[int, ...], options: ZarrOptions
) -> xr.Variable:
    if stored.form == "json":
        attrs = {**stored.variable.attrs, **json_markers(stored, sizes)}
        taken = {str(dim) for other in group.node.variables.values() for dim in other.dims}
        return json_variable(name, to_json(stored.payload, name), attrs, taken)
    attrs = {**stored.variable.attrs, **_array_markers(stored, sizes)}
    variable = xr.Variable(stored.variable.dims, data_of(past_cache(contiguous(stored.variable))), attrs, fastpath=True)
    cut = zarr_encoding(
        group.node.names[name],
        stored.variable,
        zarr_format=options.zarr_format or 3,
        batch_dims=group.batch_dims,
        chunks=options.chunks,
        shards=options.shards,
        compressors=options.compressors,
    )
    variable.encoding = {**cut, **stored.encoding}
    if plan.layout == "tensordict" and options.zarr_format == 3 and "_FillValue" not in attrs:
        # xarray would add the attribute _FillValue = NaN, for nothing
        variable.encoding["_FillValue"] = None
    return variable


def _array_markers(stored: Stored, sizes: tuple[int, ...]) -> dict[str, Any]:
    """The attributes that tensordict and this package read of an array."""
    markers: dict[str, Any] = {}
    if stored.stack:
        markers[STACK_ATTR] = list(sizes)
    if stored.record:
        markers[ARRAY_ATTR] = dict(stored.record)
    return markers


def json_markers(stored: Stored, sizes: tuple[int, ...]) -> dict[str, Any]:
    """The attributes of the bytes of a JSON text: tensordict's own, and the dims of what it holds."""
    record = dict(stored.record)
    if stored.variable.ndim:
        record["dims"] = [str(dim) for dim in stored.variable.dims]
    if stored.variable.ndim != (len(sizes) if stored.stack else 0):
        record["shape"] = list(stored.variable.shape)
    markers: dict[str, Any] = {NON_TENSOR_ATTR: {"encoding": "json"}}
    if stored.stack:
        markers[STACK_ATTR] = list(sizes)
    if record:
        markers[ARRAY_ATTR] = record
    return markers


def json_variable(name: str, text: str, attrs: Mapping[str, Any], taken: set[str]) -> xr.Variable:
    """A text as tensordict stores it: its bytes, under a dim of its own so that plain xarray opens the store."""
    dim = f"{name}_json"
    while dim in taken:
        dim += "_"
    values = np.frombuffer(text.encode("utf-8"), dtype="uint8")
    marked = {NON_TENSOR_ATTR: {"encoding": "json"}, **attrs}
    # no coordinate has to do with the bytes of a text
    return xr.Variable((dim,), values, marked, {"coordinates": None, "_FillValue": None})
