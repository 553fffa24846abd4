"""Lazy arrays over HDF5 datasets, and what the elements of a dataset become in numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import h5py
import numpy as np
from xarray.backends.common import BackendArray
from xarray.coding.strings import create_vlen_dtype
from xarray.core import indexing

from .attrs import UnreadableError, decode_text, reference_kind
from .file import Hdf5Source
from .opened import OpenedDataset, VirtualSources

_NETCDF_FILL = {
    "i1": -127,
    "u1": 255,
    "i2": -32767,
    "u2": 65535,
    "i4": -2147483647,
    "u4": 4294967295,
    "i8": -9223372036854775806,
    "u8": 18446744073709551614,
    "f4": 9.969209968386869e36,
    "f8": 9.969209968386869e36,
}


class Decoding(Enum):
    """How the elements that h5py reads become the elements of the array."""

    NONE = "none"
    TEXT = "text"  # bytes of any length to str
    ROWS = "rows"  # ragged rows: one numpy array for each element
    BYTES = "bytes"  # opaque bytes of a tensordict: one bytes object for each element
    VALUE = "value"  # an opaque array of a tensordict is one value: a 0-d list


@dataclass(frozen=True)
class Element:
    """What one element of a dataset, or of a field of its records, becomes.

    Attributes
    ----------
    dtype
        The dtype of the array.
    decoding
        How it is made from what h5py reads.
    axes
        The axes within one element (HDF5 array types), which come after those of the dataset.
    opaque
        Whether it is a numpy value in an opaque type, as tensordict writes non-tensor data.
    row
        The dtype of ragged rows.
    characters
        The number of single characters that make one string, where they are the last axis of what h5py reads.
    """

    dtype: np.dtype[Any]
    decoding: Decoding = Decoding.NONE
    axes: tuple[int, ...] = ()
    opaque: bool = False
    row: np.dtype[Any] | None = None
    characters: int = 0


def text_dtype() -> np.dtype[Any]:
    """The dtype of an array of str objects, marked as xarray marks it."""
    dtype: np.dtype[Any] = create_vlen_dtype(str)
    return dtype


def element_of(dtype: np.dtype[Any], *, fixed_text: bool) -> Element:
    """What an element of h5py's `dtype` becomes; `fixed_text` decodes strings of a fixed length, too.

    Raises
    ------
    UnreadableError
        If numpy arrays of plain values cannot hold it.
    """
    kind = reference_kind(dtype)
    if kind is not None:
        raise UnreadableError(f"it holds {kind}s, which have no value outside the file")
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        if base == "S1" and len(shape) == 1:  # how netCDF writes the strings in its compound types
            return Element(text_dtype(), Decoding.TEXT, characters=shape[0])
        inner = element_of(base, fixed_text=fixed_text)
        return replace(inner, axes=(*shape, *inner.axes))
    if dtype.names is not None:
        raise UnreadableError("it holds records within ragged rows, which are not supported")
    if h5py.check_opaque_dtype(dtype) or dtype.kind == "V":
        return _opaque_element(np.dtype(dtype.str))
    string = h5py.check_string_dtype(dtype)
    if string is not None and (string.length is None or fixed_text):
        return Element(text_dtype(), Decoding.TEXT)
    base = h5py.check_vlen_dtype(dtype)
    if base is not None:
        row = element_of(base, fixed_text=True)  # raises where the rows hold what cannot be read
        return Element(np.dtype(object), Decoding.ROWS, row=row.dtype)
    if dtype.kind == "O":
        raise UnreadableError(f"it holds Python objects ({dtype!r})")
    return Element(np.dtype(dtype.str))


def _opaque_element(dtype: np.dtype[Any]) -> Element:
    if dtype.kind == "V":
        raise UnreadableError(
            f"it holds opaque data ({dtype.itemsize} bytes each), whose meaning the file does not tell"
        )
    if dtype.kind in "Mm":  # as h5py writes times
        return Element(dtype)
    if dtype.kind == "S":
        return Element(create_vlen_dtype(bytes), Decoding.BYTES, opaque=True)
    return Element(dtype, opaque=True)


class ConstantArray(BackendArray):
    """A 0-d array whose value was read when the store was opened, because its type depends on it."""

    def __init__(self, value: Any, dtype: Any) -> None:
        self._array = np.empty((), dtype)
        self._array[()] = value
        self.shape: tuple[int, ...] = ()
        self.dtype = self._array.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return self._array.copy()


class Hdf5Array(BackendArray):
    """A dataset, or a field of its records, that is read when it is indexed.

    Parameters
    ----------
    source
        The file.
    opened
        What the dataset was when it was described.
    element
        What its elements become.
    shape
        The shape of the dataset; larger than what is stored where a netCDF dimension has grown and it has not.
    fields
        The names of the record field, one for each level of nesting.
    fill
        The value of what is not stored.
    virtual
        The files that the dataset is made of, where it is virtual.
    """

    def __init__(
        self,
        source: Hdf5Source,
        opened: OpenedDataset,
        element: Element,
        shape: tuple[int, ...],
        fields: tuple[str, ...] = (),
        fill: Any = None,
        virtual: VirtualSources | None = None,
    ) -> None:
        self._source = source
        self._opened = opened
        self._element = element
        self._ndim = len(shape)
        self._fields = fields
        self._fill = fill
        self._virtual = virtual
        self.shape = () if element.decoding is Decoding.VALUE else (*shape, *element.axes)
        self.dtype = element.dtype

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """The shape of what HDF5 reads at once; None where any part is read by itself."""
        if self._element.decoding is Decoding.VALUE:
            return None
        with self._source.locked() as base:
            found = self._opened.find(self._source, base).chunks
        return None if found is None else (*found, *self._element.axes)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(
            key, self.shape, indexing.IndexingSupport.OUTER_1VECTOR, self._getitem
        )

    def _getitem(self, key: tuple[Any, ...]) -> np.ndarray[Any, Any]:
        if self._element.decoding is Decoding.VALUE:
            with self._dataset() as dataset:
                return _value_of(dataset[()])
        selections = [_Selection(part, size) for part, size in zip(key, self.shape, strict=True)]
        outer, inner = selections[: self._ndim], selections[self._ndim :]
        with self._dataset() as dataset:
            limits = dataset.shape
            stored = tuple(selection.stored(limit) for selection, limit in zip(outer, limits, strict=True))
            counts = tuple(selection.count(limit) for selection, limit in zip(outer, limits, strict=True))
            boxed = not counts and not self._element.axes and not self._element.characters
            found = None if 0 in counts else _read(dataset, self._fields, stored, boxed=boxed)
        lengths = tuple(selection.length for selection in outer)
        if found is None:
            result = self._blank(lengths)
        else:
            result = self._decode(_orthogonal(found, tuple(selection.after for selection in outer)))
            if counts != lengths:
                whole = self._blank(lengths)
                whole[tuple(slice(count) for count in counts)] = result
                result = whole
        if inner:
            result = _orthogonal(result, (*(slice(None),) * self._ndim, *(selection.key for selection in inner)))
        return result.reshape([size for size, s in zip(result.shape, selections, strict=True) if not s.scalar])

    @contextmanager
    def _dataset(self) -> Iterator[Any]:
        """The open dataset, for as long as the context lasts; then a look at whether the file still holds what was read."""
        with self._source.locked() as base:
            dataset = self._opened.find(self._source, base)
            try:
                yield dataset
            finally:  # HDF5 may raise something else for the same reason
                self._source.check_size()
                if self._virtual is not None:
                    self._virtual.check(f"{self._source.description}: {self._opened.path!r}")

    @property
    def missing_sources(self) -> tuple[str, ...]:
        """The names of files that a virtual dataset is made of and that are not there."""
        return () if self._virtual is None else self._virtual.missing

    def _blank(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """What is read where nothing is stored."""
        full = (*shape, *self._element.axes)
        if self._element.decoding is Decoding.NONE:
            if self._fill is None:
                return np.zeros(full, self.dtype)
            return np.full(full, self._fill, self.dtype)
        result = np.empty(full, self.dtype)
        blank = np.empty((), object)
        if self._element.decoding is Decoding.ROWS:
            blank[()] = np.empty(0, self._element.row)
        else:
            blank[()] = "" if self._element.decoding is Decoding.TEXT else b""
        result[...] = blank
        return result

    def _decode(self, found: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        decoding = self._element.decoding
        if decoding is Decoding.NONE:
            # h5py's dtypes carry metadata (enum codes, opaque), which is of no use in memory
            if found.dtype != self.dtype:
                # of the other byte order, in a file that has taken the place of the first
                return found.astype(self.dtype)
            return found.view(self.dtype) if found.dtype.metadata else found
        if self._element.characters:
            joined = np.ascontiguousarray(found).view(f"S{self._element.characters}")
            found = joined.reshape(found.shape[:-1])
        converters: dict[Decoding, Callable[[Any], Any]] = {
            Decoding.TEXT: _text,
            Decoding.ROWS: _row,
            Decoding.BYTES: bytes,
        }
        convert = converters[decoding]
        result = np.empty(found.size, self.dtype)
        for index, item in enumerate(found.flat):
            result[index] = convert(item)
        return result.reshape(found.shape)


class _Selection:
    """The part of a key for one axis, as something h5py reads fast and what numpy picks from it afterwards."""

    def __init__(self, key: Any, size: int) -> None:
        self.scalar = isinstance(key, (int, np.integer))
        self.after: Any = slice(None)
        if self.scalar:
            index = int(key) + (size if key < 0 else 0)
            self.key: Any = slice(index, index + 1, 1)
        elif isinstance(key, slice):
            self.key = slice(*key.indices(size))
        else:
            self.key = _as_slice(np.asarray(key, np.intp))
        if isinstance(self.key, slice):
            self.length = len(range(self.key.start, self.key.stop, self.key.step))
        else:
            self.length = len(self.key)

    def count(self, limit: int) -> int:
        """How many of the selected elements are stored; they come first, as xarray gives keys in ascending order."""
        if isinstance(self.key, slice):
            return len(range(self.key.start, min(self.key.stop, limit), self.key.step))
        return int(np.searchsorted(self.key, limit))

    def stored(self, limit: int) -> Any:
        """The key that reads what is stored."""
        if isinstance(self.key, slice):
            return slice(self.key.start, min(self.key.stop, limit), self.key.step)
        inside = self.key[: self.count(limit)]
        if len(inside) and inside[-1] - inside[0] < 2 * len(inside):
            # HDF5 reads a dense range much faster than as many single rows
            self.after = inside - inside[0]
            return slice(int(inside[0]), int(inside[-1]) + 1, 1)
        return inside


def _as_slice(indices: np.ndarray[Any, Any]) -> Any:
    """`indices` as a slice if they are evenly spaced."""
    if not len(indices):
        return slice(0, 0, 1)
    steps = np.diff(indices)
    step = int(steps[0]) if len(steps) else 1
    if step > 0 and (steps == step).all():
        return slice(int(indices[0]), int(indices[-1]) + 1, step)
    return indices


def _read(dataset: Any, fields: tuple[str, ...], key: tuple[Any, ...], *, boxed: bool) -> np.ndarray[Any, Any]:
    """Read `key` of `dataset`, of the given field; `boxed` makes a 0-d array of one element."""
    rows = next((axis for axis, part in enumerate(key) if isinstance(part, np.ndarray)), None)
    if rows is not None and dataset.chunks is not None:
        return _read_by_chunk(dataset, fields, key, rows)
    found = _field(dataset, fields, key)
    if not boxed:
        return np.asarray(found)
    result: np.ndarray[Any, Any] = np.empty((), getattr(found, "dtype", object) if np.isscalar(found) else object)
    result[()] = found
    return result


def _read_by_chunk(dataset: Any, fields: tuple[str, ...], key: tuple[Any, ...], axis: int) -> np.ndarray[Any, Any]:
    """Read rows of a chunked dataset chunk by chunk.

    HDF5 compares each chunk with each row (measured: 10000 rows of 1000 chunks at once 0.8 s, chunk by chunk 0.08 s).
    """
    rows = key[axis]
    borders = np.flatnonzero(np.diff(rows // dataset.chunks[axis])) + 1
    parts = []
    for part in np.split(rows, borders):
        span = slice(int(part[0]), int(part[-1]) + 1)
        found = np.asarray(_field(dataset, fields, (*key[:axis], span, *key[axis + 1 :])))
        parts.append(np.take(found, part - part[0], axis))
    return np.concatenate(parts, axis)


def _field(dataset: Any, fields: tuple[str, ...], key: tuple[Any, ...]) -> Any:
    if fields and dataset.dtype.names is not None:
        found, fields = dataset.fields(fields[0])[key], fields[1:]
    else:
        found = dataset[key]
    for name in fields:
        found = found[name]
    return found


def _orthogonal(array: np.ndarray[Any, Any], keys: tuple[Any, ...]) -> np.ndarray[Any, Any]:
    for axis, key in enumerate(keys):
        if not (isinstance(key, slice) and key == slice(None)):
            array = array[(slice(None),) * axis + (key,)]
    return array


def _text(item: Any) -> Any:
    if isinstance(item, np.bytes_):  # of a fixed length: what is no text stays bytes
        try:
            return item.decode("utf-8")
        except UnicodeDecodeError:
            return bytes(item)
    return decode_text(item)


def _row(item: Any) -> np.ndarray[Any, Any]:
    row = np.asarray(item)
    if row.dtype.kind in "OS":
        texts = np.empty(row.shape, object)
        texts[...] = [decode_text(bytes(part) if isinstance(part, np.bytes_) else part) for part in row.tolist()]
        return texts
    return row


def _value_of(found: Any) -> np.ndarray[Any, Any]:
    result: np.ndarray[Any, Any] = np.empty((), object)
    result[()] = np.asarray(found).tolist()
    return result


def fill_value(dataset: Any, element: Element, attrs: dict[str, Any], fields: tuple[str, ...], *, netcdf: bool) -> Any:
    """The value of what a netCDF dimension promises and `dataset` does not store, as netCDF-C gives it."""
    if element.decoding is not Decoding.NONE:
        return None
    defined = dataset.id.get_create_plist().fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
    if not defined and "_FillValue" in attrs:
        return np.asarray(attrs["_FillValue"]).astype(element.dtype)[()]
    if not defined and netcdf:
        return _NETCDF_FILL.get(element.dtype.str[1:])
    fill = dataset.fillvalue
    for name in fields:
        fill = fill[name]
    return fill
