"""The zarr writer: carry a :class:`~...writing.plan.WritePlan` out with xarray's own ``Dataset.to_zarr``, group by group.

Nested names never reach xarray, which writes them as nested arrays that it cannot read again. The record of the batch
is written last, when all arrays are whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr
from xarray.core.coordinates import Coordinates

from ..._compat.xarray import past_cache
from ...core.metadata import ARRAY_ATTR, INCOMPLETE_ATTR, NON_TENSOR_ATTR, STACK_ATTR, UNBATCHED_NAME
from ...core.model import Key
from ...core.objects import jsonable, to_json
from ...writing.blockwise import contiguous
from ...writing.encodings import fits_shards, zarr_encoding
from ...writing.plan import GroupPlan, WritePlan, unbatched_object
from ...writing.running import compute_all
from ...writing.stored_form import Stored
from .finish import Finish, delayed_finish, finish, mark, zarr_writes


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
        2 or 3.
    consolidated
        None and True consolidate where the store supports it.
    storage_options
        For a URL.
    compute
        False: write metadata and what is in memory, return the rest as a dask ``Delayed``.
    progress
        Show a bar while dask computes.
    """

    encoding: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    chunks: Mapping[str, int] = field(default_factory=dict)
    shards: Mapping[str, int] = field(default_factory=dict)
    compressors: Any = None
    zarr_format: int = 3
    consolidated: bool | None = None
    storage_options: dict[str, Any] | None = None
    compute: bool = True
    progress: bool = False


def write_new(plan: WritePlan, store: Any, prefix: Key, options: ZarrOptions, *, in_place: bool = True) -> Any:
    """Write a whole plan into a store where there is nothing yet below `prefix`, or what is there goes.

    The arrays are created first, with what is in memory; then dask writes all others as one graph; then come the records of
    the batch, so that a store that was not finished does not pass for a whole one.

    Parameters
    ----------
    in_place
        Whether others may see the store before it is whole: it is marked until then.

    Returns
    -------
    dask.delayed.Delayed or None
        With ``compute=False`` what writes the rest, and finishes.
    """
    datasets = {key: dataset_of(plan, key, options) for key in plan.groups}
    for key, ds in datasets.items():
        explicit_encoding(ds, plan.groups[key], options)  # raises before anything is written
    records = {key: group.batch_record for key, group in plan.groups.items() if group.batch_record is not None}
    step = Finish(store, prefix, options.storage_options, options.consolidated is not False, records)
    pending = ["/".join((*key, str(name))) for key, ds in datasets.items() for name in ds.variables if ds[name].chunks]
    content = {
        "kind": "create",
        "arrays": pending,
        "records": {"/".join(key): record for key, record in records.items()},
    }
    delayed = []
    with zarr_writes():
        for key, ds in datasets.items():
            if in_place and not key:
                ds = ds.assign_attrs({INCOMPLETE_ATTR: content})
            mode = "a" if key else "w"
            delayed.append(write_group(ds, plan.groups[key], store, (*prefix, *key), options, mode=mode))
    if not pending:
        delayed = []
    elif in_place:
        mark(step, {**content, "created": True})
    if options.compute or not pending:
        compute_all(delayed, progress=options.progress)
        finish(step)
        return None if options.compute else delayed_finish(step, ())
    # a template: tensordict opens it, and whoever fills it
    finish(step, unmark=False)
    return delayed_finish(step, delayed)


def write_group(ds: xr.Dataset, group: GroupPlan, store: Any, path: Key, options: ZarrOptions, *, mode: str) -> Any:
    """Create the arrays of one group through xarray, and write those in memory; the others are left to a ``Delayed``.

    Chunks of dask are aligned with the chunks or shards of the store, so that no two tasks write to one of them.
    """
    to_zarr: Any = ds.to_zarr
    return to_zarr(
        store,
        group="/".join(path) or None,
        mode=mode,
        encoding=explicit_encoding(ds, group, options),
        compute=False,
        consolidated=False,
        align_chunks=True,
        storage_options=options.storage_options,
        zarr_format=options.zarr_format,
    )


def explicit_encoding(ds: xr.Dataset, group: GroupPlan, options: ZarrOptions) -> dict[str, dict[str, Any]]:
    """What the caller asks for by variable, over the encoding that was chosen.

    Raises
    ------
    ValueError
        For shards that do not hold whole chunks.
    """
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


def check_attrs(plan: WritePlan) -> None:
    """Raise ``TypeError`` for attributes that JSON does not hold, before the target is touched."""
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


# -- one group as a Dataset that xarray writes as it is ----------------------------------------------------------------


def dataset_of(plan: WritePlan, key: Key, options: ZarrOptions) -> xr.Dataset:
    """One group as a Dataset whose variables xarray writes as they are, markers among their attributes."""
    group = plan.groups[key]
    sizes = tuple(group.batch_record["batch_size"]) if group.batch_record is not None else ()
    variables = {name: _variable(name, stored, plan, group, sizes, options) for name, stored in group.stored.items()}
    if not key and plan.unbatched:
        variables[UNBATCHED_NAME] = json_variable(
            UNBATCHED_NAME, to_json(unbatched_object(plan), UNBATCHED_NAME), {}, _dims(variables)
        )
    coords = {name for name in group.coords if not _needs_record(group.stored[name])}
    data = {name: variable for name, variable in variables.items() if name not in coords}
    own = Coordinates({name: variables[name] for name in variables if name in coords}, indexes={})
    return xr.Dataset(data, coords=own, attrs=group.attrs or {})


def _needs_record(stored: Stored) -> bool:
    """Whether the array itself says that it is a coordinate, since CF cannot."""
    return stored.record.get("role") == "coord" or stored.form == "json"


def _dims(variables: Mapping[str, xr.Variable]) -> set[str]:
    return {str(dim) for variable in variables.values() for dim in variable.dims}


def _variable(
    name: str, stored: Stored, plan: WritePlan, group: GroupPlan, sizes: tuple[int, ...], options: ZarrOptions
) -> xr.Variable:
    if stored.form == "json":
        attrs = {**stored.variable.attrs, **json_markers(stored, sizes)}
        taken = {str(dim) for other in group.node.variables.values() for dim in other.dims}
        return json_variable(name, to_json(stored.payload, name), attrs, taken)
    attrs = {**stored.variable.attrs, **array_markers(stored, sizes)}
    variable = xr.Variable(stored.variable.dims, past_cache(contiguous(stored.variable))._data, attrs, fastpath=True)
    cut = zarr_encoding(
        group.node.names[name],
        stored.variable,
        zarr_format=options.zarr_format,
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


def array_markers(stored: Stored, sizes: tuple[int, ...]) -> dict[str, Any]:
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
