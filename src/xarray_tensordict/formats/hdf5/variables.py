"""One HDF5 dataset, or one field of its records, as a :class:`...core.model.StoredArray`."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import gt
from typing import Any

import h5py
import numpy as np

from ...core.blocks import TINY
from ...core.metadata import (
    ARRAY_ATTR,
    BATCH_ATTR,
    LARGEST,
    NON_TENSOR_ATTR,
    STACK_ATTR,
    STR_ATTR,
    decode_non_tensor,
    is_pickled,
    read_array_record,
)
from ...core.model import ArrayRecord, Key, LeftOut, StoredArray, cached_property
from ..raw.arrays import RawArray
from .arrays import Element, Hdf5Array, OpenedDataset, as_raw, element_of, fingerprint_of
from .attrs import Axis, ScaleTable, marker, read_attributes, recorded_axes
from .file import Hdf5Source, file_name
from .links import UnreadableError, virtual_parts

_SELDOM = {4: "SZIP", 307: "bzip2", 32000: "LZF", 32001: "blosc", 32004: "LZ4", 32008: "bitshuffle", 32015: "Zstandard"}


@dataclass(frozen=True)
class GroupFacts:
    """What a dataset has to know about its group.

    Attributes
    ----------
    source, scales
        The file, and its dimension scales.
    chain
        The groups down to this one, the root of the file first.
    netcdf
        Whether a netCDF library wrote the file.
    allow_pickle
        Whether pickled values are read.
    unlimited
        The unlimited dimensions that the arrays of the group are found to use, or are.
    before
        The shapes that datasets had before an append that has not finished, by path in the file.
    """

    source: Hdf5Source
    scales: ScaleTable
    chain: list[Any]
    netcdf: bool
    allow_pickle: bool
    unlimited: set[str]
    before: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @cached_property
    def marked(self) -> bool:
        """Whether the file or group bears any mark of netCDF or tensordict."""
        own = self.netcdf or any(marker(group, BATCH_ATTR) is not None for group in self.chain)
        return own or any(self.scales.shared(group).scales for group in reversed(self.chain))


def record_at(dtype: np.dtype[Any], fields: tuple[str, ...] = ()) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The dtype below `fields`, which has names if it is one of records, and the axes of the array types around it."""
    axes: tuple[int, ...] = ()
    for name in (None, *fields):
        dtype = dtype if name is None else dtype[name]
        while dtype.subdtype is not None:
            dtype, shape = dtype.subdtype
            axes = (*axes, *shape)
    return dtype, axes


def check_readable(dataset: Any) -> None:
    """Raise :class:`UnreadableError` where it is clear without reading that `dataset` has no values to give."""
    if dataset.shape is None:
        raise UnreadableError("it is empty (a null dataspace, which has neither shape nor values)")
    for code, _, _, name in _filters(dataset):
        if not h5py.h5z.filter_avail(code):
            called = name.decode("utf-8", "replace") or _SELDOM.get(code, "unknown")
            raise UnreadableError(
                f"it is compressed with filter {code} ({called}), which is not installed: "
                f"install hdf5plugin and import it before opening the file"
            )


def _filters(dataset: Any) -> list[tuple[int, int, tuple[int, ...], bytes]]:
    properties = dataset.id.get_create_plist()
    return [properties.get_filter(number) for number in range(properties.get_nfilters())]


def read_array(
    facts: GroupFacts,
    dataset: Any,
    path: str,
    key: Key,
    left_out: list[LeftOut],
    field: tuple[tuple[str, ...], np.dtype[Any], tuple[int, ...]] | None = None,
) -> StoredArray:
    """Describe `dataset`, or a field of its records, as the array at `key`; raises :class:`UnreadableError`.

    `field` has the names on the way to it, its dtype, and the axes of array types around the record that it is in.
    """
    fields, dtype, outer = field or ((), dataset.dtype, ())
    axes = recorded_axes(dataset, path.rsplit("/", 1)[-1], facts.scales, facts.chain)
    record, attrs, value, marked = ArrayRecord(), dict[str, Any](), None, False
    if field is None:
        record = read_array_record(marker(dataset, ARRAY_ATTR), key, left_out)
        attrs = read_attributes(dataset, key, left_out)
        value = _marked_value(dataset, allow_pickle=facts.allow_pickle)
        marked = marker(dataset, STACK_ATTR) is not None or marker(dataset, STR_ATTR) is not None
    # char arrays of netCDF stay bytes for xarray to join; elsewhere strings of a fixed length are text
    keeps_bytes = facts.netcdf or record.get("bytes") or any(axis.is_scale for axis in axes)
    element = element_of(dtype, fixed_text=field is not None or not keeps_bytes)
    element = replace(element, axes=(*outer, *element.axes))
    if element.opaque and dataset.shape and field is None and not marked:
        element = replace(element, dtype=np.dtype(object), is_value=True)
    if value is not None:
        array = StoredArray(key[-1], value, (), attrs, {"source": file_name(dataset)})
    else:
        array = _stored_array(facts, dataset, path, key[-1], axes, element, attrs, fields)
    for word in {"_FillValue", "missing_value"} & attrs.keys() if element.is_rows else ():
        del attrs[word]
        left_out.append(LeftOut(key, "rows of lengths of their own are not compared with a value", word))
    raw = array.raw = not any(axis.name for axis in axes) if axes else not facts.marked
    array.non_tensor = value is not None or element.opaque or marked
    if (array.non_tensor and field is None) or (raw and array.dtype.kind in "OSU"):
        array.role = "coord"
    if element.is_value:
        array.dims, array.unlimited, array.encoding = (), frozenset(), {"source": file_name(dataset)}
    elif value is None and not (element.opaque or element.dtype.kind in "mM" or (element.is_text and raw)):
        # with a dtype of str, xarray reads a whole column of strings as it opens
        array.encoding["dtype"] = str if h5py.check_vlen_dtype(dtype) is str else dtype.base
    _apply_own_record(array, record, key, left_out)
    grown = (dim for number, dim in enumerate(array.dims) if number in array.unlimited and axes[number].name is None)
    facts.unlimited.update(filter(None, grown))
    return array


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
    grows = frozenset(number for number, most in enumerate(dataset.maxshape) if most is None)
    shape = tuple(
        max(size, axis.size or 0) if number in grows and axis.unlimited else size
        for number, (size, axis) in enumerate(zip(dataset.shape, axes, strict=True))
    )
    ends = (axis.unlimited if axis.is_scale else number in grows for number, axis in enumerate(axes))
    facts.unlimited.update(axis.name for axis, free in zip(axes, ends, strict=True) if axis.name is not None and free)
    before = facts.before.get(dataset.name)
    if before is not None:  # rows behind these are those of an append that has not finished
        if len(before) != len(shape) or any(map(gt, before, dataset.shape)):
            raise UnreadableError(
                f"an append that has not finished noted the shape {list(before)}, found {list(shape)}"
            )
        shape = tuple(before)
    parts = tuple((part, os.path.getsize(part)) for part in virtual_parts(dataset))
    fingerprint = fingerprint_of(dataset, None if fields else attrs, tuple(map(min, dataset.shape, shape)))
    is_linked = file_name(dataset) != facts.source.description
    opened = OpenedDataset(facts.source, path, fingerprint, is_linked, parts)
    chunks = dataset.chunks if dataset.shape else None
    fill = _fill_value(facts, dataset, element, attrs, fields) if shape != dataset.shape else None
    chunk_shape = None if chunks is None or element.is_value else (*chunks, *element.axes)
    data: Hdf5Array | RawArray = Hdf5Array(opened, element, shape, chunk_shape, fields, fill)
    if element.convert is None and not (element.axes or fields or element.is_value) and shape == dataset.shape:
        raw = as_raw(opened, dataset, element.dtype, data)
        data = data if raw is None else raw
    dims = () if element.is_value else (*(axis.name for axis in axes), *(None for _ in element.axes))
    encoding = _encoding(dataset, data, chunk_shape)
    return StoredArray(name, data, dims, attrs, encoding, grows, chunk_shape=chunk_shape, merges=TINY)


def _fill_value(
    facts: GroupFacts, dataset: Any, element: Element, attrs: dict[str, Any], fields: tuple[str, ...]
) -> Any:
    """The value of what a netCDF dimension promises and `dataset` does not store, as netCDF-C gives it."""
    if element.convert is not None:
        return None
    defined = dataset.id.get_create_plist().fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
    if not defined and "_FillValue" in attrs:
        return np.asarray(attrs["_FillValue"]).astype(element.dtype)[()]
    if not defined and facts.netcdf:
        from h5netcdf.legacyapi import default_fillvals

        return default_fillvals.get(element.dtype.str[1:])
    fill = dataset.fillvalue
    for name in fields:
        fill = fill[name]
    return fill


def _encoding(dataset: Any, data: Hdf5Array | RawArray, chunks: tuple[int, ...] | None) -> dict[str, Any]:
    """How `dataset` is stored, in the words of xarray's h5netcdf backend."""
    filters = {code: values for code, _, values, _ in _filters(dataset)}
    encoding: dict[str, Any] = {
        "contiguous": chunks is None,
        "chunksizes": chunks,
        "zlib": h5py.h5z.FILTER_DEFLATE in filters,
        "shuffle": h5py.h5z.FILTER_SHUFFLE in filters,
        "fletcher32": h5py.h5z.FILTER_FLETCHER32 in filters,
        "source": file_name(dataset),
        "original_shape": data.shape,
    }
    if encoding["zlib"]:
        encoding["complevel"] = filters[h5py.h5z.FILTER_DEFLATE][0]
    elif filters and dataset.compression is not None:
        encoding["compression"], encoding["compression_opts"] = dataset.compression, dataset.compression_opts
    return encoding


def _marked_value(dataset: Any, *, allow_pickle: bool) -> np.ndarray[Any, Any] | None:
    """The value of a scalar that is marked as a non-tensor, None if it is not marked."""
    mark = marker(dataset, NON_TENSOR_ATTR)
    if mark is None:
        return None
    size = dataset.size * dataset.dtype.itemsize
    if size > LARGEST:
        raise UnreadableError(f"it is marked as a value, and has {size} bytes; values have {LARGEST} at most")
    if dataset.shape and dataset.dtype.kind not in "iu":
        raise UnreadableError(f"it is marked as a value, and holds {dataset.dtype}")
    attrs = {NON_TENSOR_ATTR: mark}
    found = dataset[()]
    payload = found.astype(np.uint8).tobytes() if isinstance(found, np.ndarray) else bytes(found)
    if is_pickled(attrs) and not isinstance(found, np.ndarray):
        payload = base64.b64decode(payload)
    return decode_non_tensor(payload, attrs, "it", allow_pickle=allow_pickle)[0]


def _apply_own_record(array: StoredArray, record: ArrayRecord, key: Key, left_out: list[LeftOut]) -> None:
    """Role, torch dtype and dims that this package has written."""
    dims = record.get("dims", [None] * len(array.shape))
    if len(dims) != len(array.shape):
        left_out.append(
            LeftOut(key, f"it has the dims {dims} for shape {list(array.shape)}, and is ignored", ARRAY_ATTR)
        )
        return
    array.record = record
    array.attrs.update(record.get("attrs", {}))
    array.role = record.get("role", array.role)
    if "torch_dtype" in record:
        array.encoding["torch_dtype"] = record["torch_dtype"]
    array.dims = tuple(name or old for name, old in zip(dims, array.dims, strict=True))
    if "dims" in record:
        array.raw = array.raw and not any(array.dims)
