"""The zarr writer: carry a :class:`~.plan.WritePlan` out with xarray's own ``Dataset.to_zarr``, group by group.

Nested names never reach xarray, which writes them as nested arrays that it cannot read again. The record of the batch
is written last, when all arrays are whole.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr
import zarr
from xarray.core.coordinates import Coordinates

from ..core.metadata import ARRAY_ATTR, BATCH_ATTR, NON_TENSOR_ATTR, STACK_ATTR, UNBATCHED_NAME
from ..core.model import Key
from ..core.unbatched_entry import encode_array
from ..dataset.xarray_private import past_cache, read
from .encodings import zarr_encoding
from .packing import packed
from .plan import GroupPlan, WritePlan
from .stored_form import Stored, contiguous, to_json


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
    """

    encoding: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    chunks: Mapping[str, int] = field(default_factory=dict)
    shards: Mapping[str, int] = field(default_factory=dict)
    compressors: Any = None
    zarr_format: int = 3
    consolidated: bool | None = None
    storage_options: dict[str, Any] | None = None
    compute: bool = True


def write_new(plan: WritePlan, store: Any, prefix: Key, options: ZarrOptions, *, mode: str = "w") -> list[Any]:
    """Write a whole plan into a store where there is nothing yet below `prefix`, or what is there goes.

    Returns
    -------
    list
        With ``compute=False`` a ``Delayed`` for each group.
    """
    datasets = {key: dataset_of(plan, key, options) for key in plan.groups}
    return write_groups(plan, datasets, store, prefix, options, mode=mode)


def write_groups(
    plan: WritePlan, datasets: Mapping[Key, xr.Dataset], store: Any, prefix: Key, options: ZarrOptions, *, mode: str
) -> list[Any]:
    """Write prepared Datasets, parents first, then the records of the batch, then consolidate."""
    delayed = []
    with quiet():
        for key, ds in datasets.items():
            written = write_group(ds, plan.groups[key], store, (*prefix, *key), options, mode=mode if not key else "a")
            delayed += [] if options.compute else [written]
        finish(plan, store, prefix, options)
    return delayed


def write_group(ds: xr.Dataset, group: GroupPlan, store: Any, path: Key, options: ZarrOptions, *, mode: str) -> Any:
    """Write one group through xarray; chunks of dask are aligned, so that no two tasks write to one of the store."""
    names = {name: group.node.names[name] for name in group.stored}
    explicit = {
        local: {**ds.variables[local].encoding, **options.encoding[name]}
        for local, name in names.items()
        if name in options.encoding
    }
    to_zarr: Any = ds.to_zarr
    return to_zarr(
        store,
        group="/".join(path) or None,
        mode=mode,
        encoding=explicit,
        compute=options.compute,
        consolidated=False,
        align_chunks=True,
        storage_options=options.storage_options,
        zarr_format=options.zarr_format,
    )


def finish(plan: WritePlan, store: Any, prefix: Key, options: ZarrOptions) -> None:
    """Write the record of the batch of every group, and consolidate the metadata."""
    for key, group in plan.groups.items():
        if group.batch_record is not None:
            node = open_group(store, (*prefix, *key), "r+", options)
            node.attrs[BATCH_ATTR] = group.batch_record
    if options.consolidated is not False:
        consolidate(store, options)


def open_group(store: Any, key: Key, mode: Any, options: ZarrOptions) -> zarr.Group:
    """Open a group past consolidated metadata, which a write makes stale."""
    return zarr.open_group(
        store, path="/".join(key), mode=mode, use_consolidated=False, storage_options=options.storage_options
    )


def consolidate(store: Any, options: ZarrOptions) -> None:
    """Consolidate the metadata of the whole store, where the store supports it."""
    root = open_group(store, (), "r+", options)
    if root.store.supports_consolidated_metadata:
        zarr.consolidate_metadata(root.store, zarr_format=root.metadata.zarr_format)


@contextmanager
def quiet() -> Iterator[None]:
    """Zarr warns of fixed-length strings and of consolidated metadata, for which v3 has no specification yet."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The data type .* does not have a Zarr V3 specification")
        warnings.filterwarnings("ignore", message="Consolidated metadata", category=UserWarning)
        yield


def check_attrs(plan: WritePlan) -> None:
    """Raise ``TypeError`` for attributes that JSON does not hold, before the target is touched."""
    for key, group in plan.groups.items():
        owners = {f"group {'/' + '/'.join(key)!r}": group.attrs or {}}
        owners |= {f"variable {group.node.names[name]!r}": v.attrs for name, v in group.node.variables.items()}
        for owner, attrs in owners.items():
            for name, value in attrs.items():
                try:
                    json.dumps(_jsonable(value))
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
    keep_cf = plan.layout == "xarray"
    full = group.node.names[name]
    encoding = zarr_encoding(
        full,
        stored.variable,
        zarr_format=options.zarr_format,
        chunks=options.chunks,
        shards=options.shards,
        compressors=options.compressors,
        keep_cf=keep_cf,
    )
    if keep_cf:
        variable, encoding = packed(full, variable, encoding, options.encoding.get(full, {}))
    variable.encoding = encoding
    if not keep_cf and options.zarr_format == 3 and "_FillValue" not in attrs:
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


def unbatched_object(plan: WritePlan) -> dict[str, Any]:
    """The content of the entry ``_unbatched``."""
    return {
        path: encode_array(
            read_now(stored.variable),
            tuple(str(dim) for dim in stored.variable.dims),
            attrs=json.loads(to_json({name: _jsonable(value) for name, value in stored.variable.attrs.items()}, path)),
            role=role,
            torch_dtype=stored.record.get("torch_dtype"),
        )
        for path, (stored, role) in plan.unbatched.items()
    }


def read_now(variable: xr.Variable) -> np.ndarray[Any, Any]:
    """The values, computed if dask holds them."""
    return np.asarray(variable.data.compute() if variable.chunks is not None else read(variable))


def _jsonable(value: Any) -> Any:
    """An attribute as xarray writes it to zarr."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value
