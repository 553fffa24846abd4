"""The HDF5 writer: carry a :class:`~...writing.plan.WritePlan` out with h5py, or with xarray's h5netcdf engine.

With ``layout="tensordict"`` the file holds nothing but the arrays that bare tensordict is to read, their dims as HDF5
dimension labels; netCDF's placeholders for dims would be entries there. Blocks are written one after the other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import h5py
import numpy as np
import xarray as xr
from xarray.core.coordinates import Coordinates

from ..._compat.xarray import netcdf_group, past_cache
from ...core.metadata import ARRAY_ATTR, BATCH_ATTR, NON_TENSOR_ATTR, STACK_ATTR, STR_ATTR, UNBATCHED_NAME
from ...core.model import Key
from ...core.objects import jsonable, to_json
from ...writing.blockwise import read_now
from ...writing.encodings import hdf5_encoding
from ...writing.plan import GroupPlan, WritePlan, unbatched_object
from ...writing.stored_form import Stored
from .blocks import store_blocks
from .output import Hdf5Output

_JSON_MARK = json.dumps({"encoding": "json"})
_NETCDF_WORDS = ("zlib", "complevel", "chunksizes", "contiguous", "dtype")
_H5PY_WORDS = ("shuffle", "fletcher32", "compression", "compression_opts", "scaleoffset", "chunks")
_KNOWN = frozenset((*_NETCDF_WORDS, *_H5PY_WORDS))


@dataclass(frozen=True)
class Hdf5Options:
    """What the caller says about the arrays.

    Attributes
    ----------
    encoding
        By the names of the Dataset: h5netcdf's words, or h5py's.
    chunks
        Sizes by dim.
    progress
        Show a bar while dask computes.
    """

    encoding: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    chunks: Mapping[str, int] = field(default_factory=dict)
    progress: bool = False


def write_with_h5py(plan: WritePlan, output: Hdf5Output, prefix: Key, options: Hdf5Options) -> None:
    """Write the groups of a plan below `prefix`; what is there under the same names is replaced."""
    file = output.file
    pending: list[tuple[Any, h5py.Dataset]] = []
    for key, group in plan.groups.items():
        node = file.require_group("/" + "/".join((*prefix, *key)))
        sizes = tuple(group.batch_record["batch_size"]) if group.batch_record is not None else ()
        write_attrs(node, group.attrs or {}, {})
        for name, stored in group.stored.items():
            if name in node:
                del node[name]
            asked = _dataset_options(name, stored, group, options)
            output.flush(_write(node, name, stored, sizes, asked, group.node.unlimited, pending))
    if plan.unbatched:
        root = file.require_group("/" + "/".join(prefix))
        text = to_json(_merged_unbatched(plan, root), UNBATCHED_NAME)
        output.flush(_write_json(root, UNBATCHED_NAME, text, {}, {}))
    store_blocks([data for data, _ in pending], [dataset for _, dataset in pending], progress=options.progress)
    for _, dataset in pending:
        output.flush(dataset)
    _record_batches(plan, file, prefix)


def _record_batches(plan: WritePlan, file: h5py.File, prefix: Key) -> None:
    for key, group in plan.groups.items():
        if group.batch_record is not None:
            file["/" + "/".join((*prefix, *key))].attrs[BATCH_ATTR] = json.dumps(group.batch_record)


def _merged_unbatched(plan: WritePlan, root: h5py.Group) -> dict[str, Any]:
    """The content of the entry ``_unbatched``: what is there, and what is new."""
    there = root.get(UNBATCHED_NAME)
    content = dict(json.loads(there[()])) if there is not None else {}
    content |= unbatched_object(plan)
    if there is not None:
        del root[UNBATCHED_NAME]
    return content


# -- one variable ------------------------------------------------------------------------------------------------------


def _write(
    node: h5py.Group,
    name: str,
    stored: Stored,
    sizes: tuple[int, ...],
    options: dict[str, Any],
    unlimited: frozenset[str],
    pending: list[tuple[Any, h5py.Dataset]],
) -> h5py.Dataset:
    if stored.form == "json" and not stored.variable.ndim:
        return _write_scalar(node, name, stored)
    variable, dtype = _for_h5py(stored)
    if any(dim in unlimited for dim in variable.dims):
        options["maxshape"] = tuple(None if dim in unlimited else size for dim, size in variable.sizes.items())
        options.setdefault("chunks", True)
    if 0 in variable.shape and "maxshape" not in options:  # HDF5 cuts no such array
        options = {word: options[word] for word in ("dtype",) if word in options}
    dtype = np.dtype(options.pop("dtype", dtype))
    dataset = node.create_dataset(name, shape=variable.shape, dtype=dtype, **options)
    try:
        _fill(dataset, variable, pending)
    except ValueError as error:
        if "NULL" not in str(error):
            raise
        raise ValueError(
            f"variable {name!r} holds a string with a NUL character, which HDF5 cannot hold; write it with "
            "ds.td.to_zarr(), or "
            f"remove the character"
        ) from error
    for axis, dim in enumerate(variable.dims):
        dataset.dims[axis].label = str(dim)
    record = dict(stored.record)
    if dtype.kind == "S" and not h5py.check_opaque_dtype(dtype):
        record["bytes"] = True
    write_attrs(dataset, stored.variable.attrs, record)
    if stored.stack:
        dataset.attrs[STACK_ATTR] = list(sizes)
    return dataset


def _for_h5py(stored: Stored) -> tuple[xr.Variable, np.dtype[Any]]:
    """The variable with values that h5py takes, and the dtype of the dataset."""
    variable = stored.variable
    if stored.form == "json":
        values = np.array(stored.payload)
        dtype: np.dtype[Any] = h5py.opaque_dtype(values.dtype)
        return xr.Variable(variable.dims, values.astype(dtype)), dtype
    if stored.form == "ragged":
        first = next((row for row in variable.values.flat if isinstance(row, np.ndarray)), np.empty(0))
        return variable, h5py.vlen_dtype(first.dtype)
    if variable.dtype.kind in "UTO":
        data: Any = variable.data.astype(object) if variable.chunks is not None else read_now(variable).astype(object)
        return xr.Variable(variable.dims, data, fastpath=True), h5py.string_dtype()
    return variable, variable.dtype


def _fill(dataset: h5py.Dataset, variable: xr.Variable, pending: list[tuple[Any, h5py.Dataset]]) -> None:
    if 0 in variable.shape:
        return
    if variable.chunks is not None:
        pending.append((variable.data, dataset))
        return
    dataset[...] = past_cache(variable).values


def _write_scalar(node: h5py.Group, name: str, stored: Stored) -> h5py.Dataset:
    value = stored.payload
    if isinstance(value, str) and "\0" not in value:
        dataset = node.create_dataset(name, data=value, dtype=h5py.string_dtype())
        dataset.attrs[STR_ATTR] = True
        write_attrs(dataset, stored.variable.attrs, stored.record)
        return dataset
    return _write_json(node, name, to_json(value, name), stored.variable.attrs, stored.record)


def _write_json(
    node: h5py.Group, name: str, text: str, attrs: Mapping[str, Any], record: Mapping[str, Any]
) -> h5py.Dataset:
    dataset = node.create_dataset(name, data=text, dtype=h5py.string_dtype())
    dataset.attrs[NON_TENSOR_ATTR] = _JSON_MARK
    write_attrs(dataset, attrs, dict(record))
    return dataset


def write_attrs(obj: Any, attrs: Mapping[Any, Any], record: Mapping[str, Any]) -> None:
    """Write attributes, and in the record those that HDF5 would give back changed (``[1]`` as ``1``, None, dicts)."""
    record = dict(record)
    for name, value in attrs.items():
        fits = _attribute(value)
        if fits is not None:
            obj.attrs[str(name)] = fits
        else:
            record.setdefault("attrs", {})[str(name)] = jsonable(value)
    if record:
        obj.attrs[ARRAY_ATTR] = json.dumps(record)


def _attribute(value: Any) -> Any:
    """An attribute as h5py takes it, None where HDF5 does not give it back as it was."""
    if isinstance(value, str):
        return None if not value or "\0" in value else value
    if isinstance(value, bool | int | float | np.bool_ | np.number):
        return value if not isinstance(value, int) or -(2**63) <= value < 2**64 else None
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc" and value.ndim == 1 and value.size > 1:
        return value
    if isinstance(value, list) and len(value) > 1:
        types = {type(item) for item in value}
        if types == {str} and not any("\0" in item for item in value):
            return np.array(value, dtype=h5py.string_dtype())
        if len(types) == 1 and types <= {int, float}:
            return np.array(value)
    return None


def check_attrs(plan: WritePlan) -> None:
    """Raise for attributes that neither HDF5 nor JSON holds."""
    for key, group in plan.groups.items():
        where = f"group {'/' + '/'.join(key)!r}"
        owners = [(where, group.attrs or {})]
        owners += [(f"variable {group.node.names[name]!r}", v.attrs) for name, v in group.node.variables.items()]
        for owner, attrs in owners:
            for name, value in attrs.items():
                if not str(name):
                    raise ValueError(f"{owner} has an attribute whose name is empty, which HDF5 cannot hold; rename it")
                if _attribute(value) is None:
                    to_json_attribute(owner, name, value)


def to_json_attribute(owner: str, name: Any, value: Any) -> None:
    """Raise where an attribute is no JSON either."""
    try:
        json.dumps(jsonable(value))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"attribute {name!r} of {owner} is {value!r:.60}, which neither HDF5 nor JSON holds ({error}); convert "
            "it to a "
            f"number, a string or a list"
        ) from error


# -- options of h5py.Group.create_dataset ------------------------------------------------------------------------------


def _dataset_options(name: str, stored: Stored, group: GroupPlan, options: Hdf5Options) -> dict[str, Any]:
    asked = dict(options.encoding.get(group.node.names[name], {}))
    unknown = sorted(set(asked) - _KNOWN)
    if unknown:
        raise ValueError(
            f"unexpected encoding parameters for {group.node.names[name]!r}: {unknown}; layout='tensordict' knows "
            f"{sorted(_KNOWN)}"
        )
    variable = stored.variable
    inherited = hdf5_encoding(variable, chunks=options.chunks, growing=group.node.unlimited)
    return h5py_options({**inherited, **asked}) if variable.ndim else {}


def h5py_options(encoding: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``create_dataset`` from an encoding in the words of netCDF4 or of h5py."""
    options = {
        word: encoding[word]
        for word in ("dtype", "compression", "compression_opts", "shuffle", "fletcher32", "scaleoffset")
        if encoding.get(word) not in (None, False)
    }
    if encoding.get("zlib"):
        options.setdefault("compression", "gzip")
    if encoding.get("complevel") and options.get("compression") == "gzip":
        options.setdefault("compression_opts", encoding["complevel"])
    chunks = encoding.get("chunksizes", encoding.get("chunks"))
    if chunks is not None:
        options["chunks"] = tuple(chunks) if isinstance(chunks, list) else chunks
    elif encoding.get("contiguous") and not options:
        options["chunks"] = None
    return options


# -- layout="xarray" ---------------------------------------------------------------------------------------------------


def write_with_xarray(plan: WritePlan, output: Hdf5Output, prefix: Key, options: Hdf5Options, *, new: bool) -> None:
    """Write the groups of a plan as netCDF-4, through xarray's h5netcdf engine."""
    for number, (key, group) in enumerate(plan.groups.items()):
        ds = _netcdf_dataset(group, options)
        explicit = {}
        for name in group.stored:
            encoding, asked = ds.variables[name].encoding, options.encoding.get(group.node.names[name])
            # xarray drops chunks that are larger than the array, unless they are asked for
            sizes = zip(encoding.get("chunksizes", ()), ds.variables[name].shape, strict=False)
            if asked is not None or any(chunk > size for chunk, size in sizes):
                explicit[name] = {**encoding, **(asked or {})}
        with netcdf_group(
            ds,
            output.file,
            output.flush,
            new=new and not number,
            group="/".join((*prefix, *key)) or None,
            encoding=explicit,
            unlimited_dims=sorted(group.node.unlimited & set(map(str, ds.dims))),
        ) as (sources, targets):
            store_blocks(sources, targets, progress=options.progress)
            for target in targets:
                output.flush(target.dataset)
    _record_batches(plan, output.file, prefix)


def _netcdf_dataset(group: GroupPlan, options: Hdf5Options) -> xr.Dataset:
    variables: dict[str, xr.Variable] = {}
    for name, stored in group.stored.items():
        attrs = _netcdf_attrs(stored.variable.attrs, stored.record)
        if stored.form == "json":
            attrs[NON_TENSOR_ATTR] = _JSON_MARK
            variables[name] = xr.Variable((), to_json(stored.payload, name), attrs, {"coordinates": None})
        elif stored.form == "ragged":
            raise TypeError(
                f"variable {group.node.names[name]!r} holds one array for each element, which xarray cannot write; "
                "write it with "
                f"layout='tensordict', or pad the rows, or drop it"
            )
        else:
            cut = hdf5_encoding(stored.variable, chunks=options.chunks, growing=group.node.unlimited)
            variables[name] = xr.Variable(stored.variable.dims, stored.variable._data, attrs, fastpath=True)
            variables[name].encoding = {**cut, **stored.encoding}
    # CF cannot name a coordinate that says so itself
    coords = {name for name in group.coords if group.stored[name].record.get("role") != "coord"}
    data = {name: variable for name, variable in variables.items() if name not in coords}
    own = Coordinates({name: variables[name] for name in variables if name in coords}, indexes={})
    return xr.Dataset(data, coords=own, attrs=_netcdf_attrs(group.attrs or {}, {}))


def _netcdf_attrs(attrs: Mapping[Any, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes that netCDF holds, and the record, with those that it gives back changed or does not hold at all."""
    plain: dict[str, Any] = {}
    record = dict(record)
    for name, value in attrs.items():
        changed = _attribute(value) is None or isinstance(value, bool | np.bool_)
        if changed:
            record.setdefault("attrs", {})[str(name)] = jsonable(value)
        if not changed or _is_netcdf(value):
            plain[str(name)] = value
    if record:
        plain[ARRAY_ATTR] = json.dumps(record)
    return plain


def _is_netcdf(value: Any) -> bool:
    """Whether netCDF holds an attribute: numbers, a text, or a list of texts without a number among them."""
    if not isinstance(value, str | list | np.ndarray):
        return False
    kind = np.asarray(value).dtype.kind
    return kind in "iuf" or (kind == "U" and all(isinstance(item, str) and "\0" not in item for item in value))
