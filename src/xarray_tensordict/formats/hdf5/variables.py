"""One HDF5 dataset, or one field of its records, as a :class:`...core.model.StoredArray`."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import h5py
import numpy as np

from ...core.metadata import ARRAY_ATTR, INCOMPLETE_ATTR, NON_TENSOR_ATTR, STACK_ATTR, STR_ATTR, own_array_record
from ...core.model import Key, LeftOut, StoredArray
from ..raw.arrays import RawArray
from .arrays import (
    ConstantArray,
    Decoding,
    Element,
    Hdf5Array,
    element_of,
    fill_value,
    text_dtype,
)
from .attrs import Axis, Scale, ScaleTable, UnreadableError, marker, read_attributes, recorded_axes
from .file import Hdf5Source, file_name
from .opened import OpenedDataset, VirtualSources, as_raw

# the names that netCDF4-python, and xarray after it, give to HDF5 filters
_FILTERS = {1: "zlib", 2: "szip", 307: "bzip2", 32004: "blosc", 32015: "zstd"}
_SELDOM = {4: "SZIP", 307: "bzip2", 32000: "LZF", 32001: "blosc", 32004: "LZ4", 32008: "bitshuffle", 32015: "Zstandard"}


@dataclass(frozen=True)
class GroupFacts:
    """What a dataset has to know about its group.

    Attributes
    ----------
    source, scales
        The file, and its dimension scales.
    netcdf
        Whether a netCDF library wrote the file.
    marked
        Tells whether the file or group bears any mark of netCDF or tensordict.
    dimension_ids
        Gives the dimensions of the group by their netCDF-4 number.
    enum_types
        Gives the enum types with a name that the group knows, as pairs of name and encoded HDF5 type.
    allow_pickle
        Whether pickled values are read.
    unlimited
        The unlimited dimensions that the arrays of the group are found to use, or are.
    """

    source: Hdf5Source
    scales: ScaleTable
    netcdf: bool
    marked: Callable[[], bool]
    dimension_ids: Callable[[], Mapping[int, Scale]]
    enum_types: Callable[[], list[tuple[str, bytes]]]
    allow_pickle: bool = False
    unlimited: set[str] = field(default_factory=set)


def is_record(dataset: Any) -> bool:
    """Whether `dataset` holds records, which are shown as a group with one array for each field."""
    return record_dtype(dataset.dtype) is not None


def record_dtype(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """The compound dtype in `dtype` (itself, or the elements of an array type), None if it is none."""
    while dtype.subdtype is not None:
        dtype = dtype.subdtype[0]
    return dtype if dtype.names is not None else None


def check_readable(dataset: Any) -> None:
    """Raise :class:`UnreadableError` where it is clear without reading that `dataset` has no values to give."""
    if dataset.shape is None:
        raise UnreadableError("it is empty (a null dataspace, which has neither shape nor values)")
    properties = dataset.id.get_create_plist()
    for number in range(properties.get_nfilters()):
        code, _, _, name = properties.get_filter(number)
        if not h5py.h5z.filter_avail(code):
            called = name.decode("utf-8", "replace") or _SELDOM.get(code, "unknown")
            raise UnreadableError(
                f"it is compressed with filter {code} ({called}), which is not installed: "
                f"install hdf5plugin and import it before opening the file"
            )


def read_array(facts: GroupFacts, dataset: Any, path: str, name: str, key: Key, left_out: list[LeftOut]) -> StoredArray:
    """Describe `dataset`, a member of the group at `key` that is shown as `name`; raises :class:`UnreadableError`."""
    axes = recorded_axes(dataset, path.rsplit("/", 1)[-1], facts.scales, facts.dimension_ids)
    raw = _is_raw(facts, axes)
    by_scale = any(axis.scale is not None for axis in axes)
    # char arrays of netCDF stay bytes for xarray to join; elsewhere strings of a fixed length are text
    is_bytes = bool(own_array_record(marker(dataset, ARRAY_ATTR)).get("bytes"))
    element = element_of(dataset.dtype, fixed_text=not (by_scale or facts.netcdf or is_bytes))
    attrs = read_attributes(dataset, (*key, name), left_out)
    constant = _decoded_value(facts, dataset, element)
    if constant is not None:
        value = StoredArray(
            name, constant, (), attrs, {"source": file_name(dataset)}, role="coord", non_tensor=True, raw=raw
        )
        _apply_own_record(dataset, value, (*key, name), left_out)
        return value
    marked = marker(dataset, STACK_ATTR) is not None or marker(dataset, STR_ATTR) is not None
    if element.opaque and len(dataset.shape) and not marked:
        element = replace(element, dtype=np.dtype(object), decoding=Decoding.VALUE)
    array = _stored_array(facts, dataset, path, name, axes, element, attrs)
    array.raw = raw
    array.non_tensor = element.opaque or marked
    if array.non_tensor or (raw and array.dtype.kind in "OSU"):
        array.role = "coord"
    if element.decoding is Decoding.VALUE:
        array.dims, array.unlimited, array.encoding = (), frozenset(), {"source": file_name(dataset)}
    elif _keeps_dtype(element, raw):
        array.encoding["dtype"] = _encoded_dtype(facts, dataset)
    _apply_own_record(dataset, array, (*key, name), left_out)
    facts.unlimited.update(
        dim for number, dim in enumerate(array.dims) if dim and number in array.unlimited and axes[number].name is None
    )
    return array


def read_field(
    facts: GroupFacts, dataset: Any, path: str, fields: tuple[str, ...], dtype: np.dtype[Any], outer: tuple[int, ...]
) -> StoredArray:
    """Describe one field of the records of `dataset`; raises :class:`UnreadableError`.

    `dtype` is that of the field, `outer` the axes of array types around the record that it is in.
    """
    axes = recorded_axes(dataset, path.rsplit("/", 1)[-1], facts.scales, facts.dimension_ids)
    raw = _is_raw(facts, axes)
    element = element_of(dtype, fixed_text=True)
    element = replace(element, axes=(*outer, *element.axes))
    array = _stored_array(facts, dataset, path, fields[-1], axes, element, {}, fields)
    array.raw = raw
    array.non_tensor = element.opaque
    if element.decoding is Decoding.NONE and element.dtype.kind not in "mM":
        array.encoding["dtype"] = element.dtype
    elif raw and array.dtype.kind in "OSU":
        array.role = "coord"
    return array


def _is_raw(facts: GroupFacts, axes: tuple[Axis, ...]) -> bool:
    return not any(axis.name for axis in axes) if axes else not facts.marked()


def _stored_array(
    facts: GroupFacts,
    dataset: Any,
    path: str,
    name: str,
    axes: tuple[Axis, ...],
    element: Element,
    attrs: dict[str, Any],
    fields: tuple[str, ...] = (),
) -> StoredArray:
    """The array, before anything that depends on markers."""
    grows = frozenset(axis for axis, size in enumerate(dataset.maxshape) if size is None)
    shape = tuple(
        max(size, axis.scale.size) if number in grows and axis.scale is not None and axis.scale.unlimited else size
        for number, (size, axis) in enumerate(zip(dataset.shape, axes, strict=True))
    )
    facts.unlimited.update(
        axis.name
        for number, axis in enumerate(axes)
        if axis.name is not None and (number in grows if axis.scale is None else axis.scale.unlimited)
    )
    before = marker(dataset, INCOMPLETE_ATTR)
    if before is not None:  # rows behind these are those of an append that has not finished
        shape = tuple(np.ravel(before).tolist())
    fill = fill_value(dataset, element, attrs, fields, netcdf=facts.netcdf) if shape != dataset.shape else None
    opened = OpenedDataset.of(facts.source, dataset, path, None if fields else attrs, shape)
    virtual = VirtualSources.of(dataset, file_name(dataset)) if dataset.chunks is None else None
    data: Hdf5Array | RawArray = Hdf5Array(facts.source, opened, element, shape, fields, fill, virtual)
    if element.decoding is Decoding.NONE and not (element.axes or fields) and shape == dataset.shape:
        raw = as_raw(facts.source, opened, dataset, element.dtype, data)
        data = data if raw is None else raw
    dims = (*(axis.name for axis in axes), *(None for _ in element.axes))
    chunks = dataset.chunks if dataset.shape else None
    pieces = None if chunks is None else (*chunks, *element.axes)
    encoding = _encoding(dataset, data, pieces)
    return StoredArray(name, data, dims, attrs, encoding, grows, pieces=pieces, merges=True)


def _encoding(dataset: Any, data: Hdf5Array | RawArray, chunks: tuple[int, ...] | None) -> dict[str, Any]:
    """How `dataset` is stored, in the words of xarray's h5netcdf backend."""
    encoding: dict[str, Any] = {"contiguous": chunks is None, "chunksizes": chunks}
    encoding |= dict.fromkeys(_FILTERS.values(), False)
    properties = dataset.id.get_create_plist()
    filters = [properties.get_filter(number) for number in range(properties.get_nfilters())]
    codes = {code for code, *_ in filters}
    encoding["shuffle"], encoding["fletcher32"] = h5py.h5z.FILTER_SHUFFLE in codes, h5py.h5z.FILTER_FLETCHER32 in codes
    for code, _, values, _ in filters:
        if code == h5py.h5z.FILTER_DEFLATE:
            encoding["zlib"], encoding["complevel"] = True, values[0]
        elif code in _FILTERS and code > 255:
            encoding[_FILTERS[code]] = True
            if values:
                encoding["complevel"] = values[0]
    compression = dataset.compression if filters else None
    if compression not in (None, "gzip"):
        encoding["compression"], encoding["compression_opts"] = compression, dataset.compression_opts
    encoding["source"] = file_name(dataset)
    encoding["original_shape"] = data.shape
    return encoding


def _keeps_dtype(element: Element, raw: bool) -> bool:
    """Whether ``encoding["dtype"]`` helps: with a dtype of str, xarray reads a whole column of strings as it opens."""
    if element.opaque or element.dtype.kind in "mM":
        return False
    return element.decoding is not Decoding.TEXT or not raw


def _encoded_dtype(facts: GroupFacts, dataset: Any) -> Any:
    dtype = dataset.dtype
    if h5py.check_vlen_dtype(dtype) is str:
        return str
    codes = h5py.check_enum_dtype(dtype)
    if codes is not None:
        stored = dataset.id.get_type()
        for name, known in facts.enum_types():
            if h5py.h5t.decode(known) == stored:
                return np.dtype(dtype, metadata={"enum": codes, "enum_name": name})
    return dtype


def _decoded_value(facts: GroupFacts, dataset: Any, element: Element) -> ConstantArray | None:
    """The value of a scalar that is marked as a non-tensor, None if it is not marked."""
    mark = marker(dataset, NON_TENSOR_ATTR)
    if mark is None:
        return None
    try:
        encoding = json.loads(mark)["encoding"]
    except (TypeError, ValueError, KeyError) as err:
        raise UnreadableError(f"its attribute {NON_TENSOR_ATTR} is {mark!r}, which does not tell the encoding") from err
    if encoding == "pickle":
        if not facts.allow_pickle:
            raise UnreadableError(
                "it holds a pickled Python object: pass allow_pickle=True if you trust who wrote the file "
                "(unpickling runs code that the file brings)"
            )
        return ConstantArray(pickle.loads(_payload(dataset[()])), object)  # noqa: S301 - with allow_pickle=True only
    if encoding != "json" or dataset.shape != () or element.decoding is not Decoding.TEXT:
        raise UnreadableError(
            f"it is marked as a value in the encoding {encoding!r}, which this version cannot read there"
        )
    try:
        value = json.loads(dataset[()])
    except ValueError as err:
        raise UnreadableError(f"it is marked as JSON and is none: {err}") from err
    return ConstantArray(value, _dtype_of(value))


def _payload(found: Any) -> bytes:
    if isinstance(found, np.ndarray) and found.dtype.kind in "iu":
        return found.astype(np.uint8).tobytes()
    return base64.b64decode(found)


def _dtype_of(value: Any) -> Any:
    if isinstance(value, str):
        return text_dtype()
    if isinstance(value, (bool, float)):
        return type(value)
    return np.int64 if isinstance(value, int) and -(2**63) <= value < 2**63 else object


def _apply_own_record(dataset: Any, array: StoredArray, key: Key, left_out: list[LeftOut]) -> None:
    """Role, torch dtype and dims that this package has written."""
    text = marker(dataset, ARRAY_ATTR)
    if text is None:
        return
    try:
        record = json.loads(text)
        role, torch_dtype, dims = (record.get(name) for name in ("role", "torch_dtype", "dims"))
        if role not in (None, "data", "coord") or not (dims is None or len(dims) == len(array.shape)):
            raise ValueError(f"role {role!r}, dims {dims!r} of an array of shape {array.shape}")
        dims = None if dims is None else tuple(name if name is None else str(name) for name in dims)
    except (TypeError, ValueError, AttributeError) as err:
        left_out.append(LeftOut(key, f"it is malformed, and ignored: {err}", ARRAY_ATTR))
        return
    array.record = record
    array.attrs.update(record.get("attrs", {}))
    array.role = role or array.role
    if torch_dtype is not None:
        array.encoding["torch_dtype"] = str(torch_dtype)
    if dims is not None:
        array.dims = tuple(name or old for name, old in zip(dims, array.dims, strict=True))
        array.raw = array.raw and not any(array.dims)
