"""Lazy arrays over HDF5 datasets: what their elements become in numpy, and whether a dataset is still the one that was described.

A file that is opened again may be another one by then. A contiguous dataset of a type that numpy has lies in a local file as it is
in memory, and is read without HDF5.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import h5py
import numpy as np
from xarray.backends.common import BackendArray
from xarray.coding.strings import create_vlen_dtype
from xarray.core import indexing

from ..array_wrappers import named_errors
from ..identity import Fingerprint, coding_of, replaced
from ..raw.arrays import RawArray
from ..raw.files import Buffer, Kept, NotRawError, PlainFiles
from .attrs import decode_text, read_attributes, reference_kind
from .file import Hdf5Source
from .links import UnreadableError, check_parts


@dataclass(frozen=True)
class Element:
    """What one element of a dataset, or of a field of its records, becomes.

    Attributes
    ----------
    dtype
        The dtype of the array.
    convert
        Makes an object of what h5py reads: a text, bytes, a ragged row; None where numpy has the type.
    blank
        The object where nothing is stored.
    axes
        The axes within one element (HDF5 array types), which come after those of the dataset.
    opaque
        Whether it is a numpy value in an opaque type, as tensordict writes non-tensor data.
    is_value
        Whether all elements are one value: a 0-d list.
    """

    dtype: np.dtype[Any]
    convert: Callable[[Any], Any] | None = None
    blank: Any = None
    axes: tuple[int, ...] = ()
    opaque: bool = False
    is_value: bool = False

    @property
    def is_text(self) -> bool:
        return self.convert is _text

    @property
    def is_rows(self) -> bool:
        return self.convert is _row


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
        inner = element_of(base, fixed_text=fixed_text)
        return replace(inner, axes=(*shape, *inner.axes))
    if dtype.names is not None:
        raise UnreadableError("it holds records within ragged rows, which are not supported")
    if h5py.check_opaque_dtype(dtype) or dtype.kind == "V":
        return _opaque_element(np.dtype(dtype.str))
    string = h5py.check_string_dtype(dtype)
    if string is not None and (string.length is None or fixed_text):
        return _TEXT
    base = h5py.check_vlen_dtype(dtype)
    if base is not None:
        row = element_of(base, fixed_text=True)  # raises where the rows hold what cannot be read
        return Element(np.dtype(object), _row, np.empty(0, row.dtype))
    if dtype.kind == "O":
        raise UnreadableError(f"it holds Python objects ({dtype!r})")
    return Element(np.dtype(dtype.str))


def _opaque_element(dtype: np.dtype[Any]) -> Element:
    if dtype.kind == "V":
        raise UnreadableError(
            f"it holds opaque data ({dtype.itemsize} bytes each), whose meaning the file does not record"
        )
    if dtype.kind in "Mm":  # as h5py writes times
        return Element(dtype)
    if dtype.kind == "S":
        return Element(create_vlen_dtype(bytes), bytes, b"", opaque=True)
    return Element(dtype, opaque=True)


@dataclass(eq=False)
class Hdf5Array(BackendArray):
    """A dataset, or a field of its records, that is read when it is indexed.

    Attributes
    ----------
    opened
        What the dataset was when it was described.
    element
        What its elements become.
    outer
        The shape of the dataset; larger than what is stored where a netCDF dimension has grown and it has not.
    chunks
        The shape of what HDF5 reads at once; None where any part is read by itself.
    fields
        The names of the record field, one for each level of nesting.
    fill
        The value of what is not stored.
    """

    opened: OpenedDataset
    element: Element
    outer: tuple[int, ...]
    chunks: tuple[int, ...] | None
    fields: tuple[str, ...] = ()
    fill: Any = None

    def __post_init__(self) -> None:
        self.shape = () if self.element.is_value else (*self.outer, *self.element.axes)
        self.dtype = self.element.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(
            key, self.shape, indexing.IndexingSupport.OUTER_1VECTOR, self._getitem
        )

    def _getitem(self, key: tuple[Any, ...]) -> np.ndarray[Any, Any]:
        if self.element.is_value:
            value: np.ndarray[Any, Any] = np.empty((), object)
            with self.opened.read() as dataset:
                value[()] = np.asarray(dataset[()]).tolist()
            return value
        picks = [_pick(part, size) for part, size in zip(key, self.shape, strict=True)]
        ndim = len(self.outer)
        with self.opened.read() as dataset:
            stored = tuple(_below(pick, limit) for pick, limit in zip(picks[:ndim], dataset.shape, strict=True))
            result = self._decode(self._read(dataset, stored))
        lengths = tuple(map(_length, picks[:ndim]))
        if result.shape[:ndim] != lengths:  # the rest is not stored
            whole = np.zeros((*lengths, *self.element.axes), self.dtype)
            blank = self.fill if self.element.convert is None else self.element.blank
            if blank is not None:
                whole.fill(blank)
            whole[tuple(map(slice, result.shape[:ndim]))] = result
            result = whole
        for axis, pick in enumerate(picks[ndim:], ndim):
            result = result[(slice(None),) * axis + (pick,)]
        sizes = zip(key, result.shape, strict=True)
        return result.reshape([size for part, size in sizes if not isinstance(part, (int, np.integer))])

    def _read(self, dataset: Any, key: tuple[Any, ...]) -> np.ndarray[Any, Any]:
        """Read a part of the dataset, as h5py gives it."""
        if not key and not self.element.axes:
            found = _field(dataset, self.fields, key)
            boxed: np.ndarray[Any, Any] = np.empty((), found.dtype if isinstance(found, np.generic) else object)
            boxed[()] = found
            return boxed
        axis = next((axis for axis, part in enumerate(key) if isinstance(part, np.ndarray)), None)
        if axis is None:
            return np.asarray(_field(dataset, self.fields, key))
        rows = key[axis]
        parts = [rows]
        if rows[-1] - rows[0] >= 2 * len(rows):  # HDF5 reads a dense range much faster than as many single rows
            if dataset.chunks is None:
                return np.asarray(_field(dataset, self.fields, key))
            # HDF5 compares each chunk with each row (measured: 10000 rows of 1000 chunks at once 0.8 s, by chunk 0.08 s)
            parts = np.split(rows, np.flatnonzero(np.diff(rows // dataset.chunks[axis])) + 1)
        read = []
        for part in parts:
            span = slice(int(part[0]), int(part[-1]) + 1)
            found = np.asarray(_field(dataset, self.fields, (*key[:axis], span, *key[axis + 1 :])))
            read.append(np.take(found, part - part[0], axis))
        return read[0] if len(read) == 1 else np.concatenate(read, axis)

    def _decode(self, found: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        convert = self.element.convert
        if convert is None:
            # h5py's dtypes carry metadata (enum codes, opaque), which is of no use in memory
            if found.dtype != self.dtype:
                # of the other byte order, in a file that has taken the place of the first
                return found.astype(self.dtype)
            return found.view(self.dtype) if found.dtype.metadata else found
        result = np.empty(found.size, self.dtype)
        for index, item in enumerate(found.flat):
            result[index] = convert(item)
        return result.reshape(found.shape)


def _pick(key: Any, size: int) -> slice | np.ndarray[Any, Any]:
    """A part of a key as something that h5py reads fast: a slice, also of one element, or else an array of numbers."""
    if isinstance(key, slice):
        return slice(*key.indices(size))
    numbers = np.atleast_1d(np.asarray(key, np.intp))
    if not len(numbers):
        return slice(0, 0, 1)
    first, last = int(numbers[0]), int(numbers[-1])
    if len(numbers) == 1:
        first += size if first < 0 else 0
        return slice(first, first + 1, 1)
    step = int(numbers[1]) - first
    return slice(first, last + 1, step) if step > 0 and (np.diff(numbers) == step).all() else numbers


def _length(pick: slice | np.ndarray[Any, Any]) -> int:
    return len(range(pick.start, pick.stop, pick.step)) if isinstance(pick, slice) else len(pick)


def _below(pick: slice | np.ndarray[Any, Any], limit: int) -> slice | np.ndarray[Any, Any]:
    """What is stored of the picked elements; it comes first, as xarray gives keys in ascending order."""
    if isinstance(pick, slice):
        start = min(pick.start, limit)
        return slice(start, max(start, min(pick.stop, limit)), pick.step)
    inside = pick[: np.searchsorted(pick, limit)]
    return inside if len(inside) else slice(0, 0, 1)


def _field(dataset: Any, fields: tuple[str, ...], key: tuple[Any, ...]) -> Any:
    if fields and dataset.dtype.names is not None:
        found, fields = dataset.fields(fields[0])[key], fields[1:]
    else:
        found = dataset[key]
    for name in fields:
        found = found[name]
    return found


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


_TEXT = Element(create_vlen_dtype(str), _text, "")


@dataclass(frozen=True)
class OpenedDataset:
    """A dataset of a source, as it was when it was described.

    Attributes
    ----------
    source, path
        The file, and the path from its group.
    fingerprint
        Its type in words without the byte order, which HDF5 gives with the values, its shape, and the attributes that define
        what its numbers mean.
    linked
        Whether it may be in another file than the source, behind an external link.
    parts
        The files that a virtual dataset is made of, with their sizes: HDF5 gives the fill value for what it cannot open.
    """

    source: Hdf5Source
    path: str
    fingerprint: Fingerprint
    linked: bool
    parts: tuple[tuple[str, int], ...] = ()

    @property
    def where(self) -> str:
        """How messages call it."""
        return f"{self.source.description}: {self.path!r}"

    @contextmanager
    def read(self) -> Iterator[Any]:
        """The open dataset, for as long as the context lasts; then a look at whether the files still hold what was read.

        Raises
        ------
        ReplacedError
            Where there is none, or what it holds would not be what was described.
        OSError
            Where a file became shorter, and for any error of HDF5; the message names the file and the dataset.
        """
        with self.source.locked() as base:
            try:
                with named_errors(self.where):
                    yield self._found(base)
            finally:  # HDF5 may raise something else for the same reason
                self.source.check_size()
                for path, size in self.parts:
                    found = os.path.getsize(path) if os.path.exists(path) else -1
                    if found < size:  # HDF5 would give the fill value
                        raise replaced(f"{self.where}: {path}", f"{size} bytes", "no file" if found < 0 else f"{found}")

    def _found(self, base: Any) -> Any:
        state = self.source.state
        is_checked = self.path in state.checked
        if not self.linked and ((state.as_opened and not self.parts) or (is_checked and not state.writable)):
            return base[self.path]
        dataset, now = base.get(self.path), None
        if isinstance(dataset, h5py.Dataset) and dataset.shape is not None:
            if not is_checked:
                check_parts(dataset, elsewhere=True)
            compared = bool(self.fingerprint.means) and not state.writable
            now = fingerprint_of(dataset, read_attributes(dataset, (), []) if compared else None, dataset.shape)
        self.fingerprint.compare(now, self.where)
        state.checked.add(self.path)
        return dataset


def fingerprint_of(dataset: Any, attrs: Mapping[str, Any] | None, shape: tuple[int, ...]) -> Fingerprint:
    """What a dataset is, which shows `shape`; `attrs` are those that it is read by, as :func:`read_attributes` gives them."""
    grows = tuple(most is None or most > size for size, most in zip(shape, dataset.maxshape, strict=True))
    means = {} if attrs is None else {"attributes": coding_of(attrs)}
    return Fingerprint(_type_name(dataset.dtype), shape, grows, means)


def _type_name(dtype: np.dtype[Any]) -> str:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return f"{list(shape)} of {_type_name(base)}"
    if dtype.names is not None:
        return ", ".join(f"{name}: {_type_name(dtype[name])}" for name in dtype.names).join("{}")
    text = h5py.check_string_dtype(dtype)
    if text is not None:
        return "text" if text.length is None else f"text of {text.length} bytes"
    row = h5py.check_vlen_dtype(dtype)
    if row is not None:
        return f"rows of {_type_name(np.dtype(row))}"
    codes = h5py.check_enum_dtype(dtype)
    return dtype.name if codes is None else f"{dtype.name} {dict(sorted(codes.items()))}"


# -- bytes without HDF5 --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ContiguousDataset(PlainFiles):
    """The bytes of a contiguous dataset, read through the file that HDF5 has open.

    So it is the file that was opened, even where another one has taken its name since; and as HDF5 lets no other code in this
    process write to a file that it has open for reading alone, nothing waits in its buffers.
    """

    dataset: OpenedDataset
    offset: int
    size: int

    def where(self, number: int) -> str:
        return self.dataset.where

    def mapped(self, number: int, kept: Kept) -> Buffer | None:
        with self.dataset.source.locked():
            state = self.dataset.source.state
            if state.as_opened and state.descriptor is not None:
                found = kept.of_file(self.dataset.where, self.offset, self.size, os.fstat(state.descriptor))
                if found is not None:
                    return found
        return super().mapped(number, kept)

    @contextmanager
    def opened(self, number: int) -> Iterator[tuple[int, int]]:
        with self.dataset.source.locked():
            state = self.dataset.source.state
            if not state.as_opened or state.descriptor is None:
                raise NotRawError(f"{self.dataset.where} is to be read by HDF5")
            fileno = os.dup(state.descriptor)  # HDF5 may close its own meanwhile
        try:
            found = os.fstat(fileno).st_size
            if found < self.offset + self.size:
                raise OSError(
                    f"{self.dataset.where}: expected {self.size} bytes from {self.offset} on, and the file ends at {found}. It "
                    f"was truncated; restore it, and open it again"
                )
            yield fileno, self.offset
        finally:
            os.close(fileno)


def as_raw(opened: OpenedDataset, dataset: Any, dtype: np.dtype[Any], otherwise: BackendArray) -> RawArray | None:
    """The dataset as an array that is read without HDF5; None where HDF5 has to convert, unpack or collect it.

    Parameters
    ----------
    opened, dataset
        What the dataset was when it was described, and the dataset itself.
    dtype
        What its elements become.
    otherwise
        What reads it through HDF5, where the file is another one by then.

    Raises
    ------
    UnreadableError
        Where the bytes that it has are not as many as its type and shape need.
    """
    state = opened.source.state
    if opened.linked or not state.as_opened or state.descriptor is None or dtype.kind not in "biufc":
        return None
    if dataset.id.get_create_plist().get_layout() != h5py.h5d.CONTIGUOUS:
        return None
    count, stored_type = math.prod(dataset.shape), dataset.id.get_type()
    offset, size = dataset.id.get_offset(), count * dtype.itemsize
    stored, needed = dataset.id.get_storage_size(), count * stored_type.get_size()
    if stored not in (0, needed):  # HDF5 itself goes on reading in what is behind it
        raise UnreadableError(f"it has {stored} bytes, and its type and shape need {needed}: the file is damaged")
    # not yet stored, or in files of its own; of a type that numpy does not have
    if not size or offset is None or stored != size:
        return None
    found = dataset.dtype
    if found.itemsize != dtype.itemsize or not stored_type.equal(h5py.h5t.py_create(found)):
        return None
    return RawArray(ContiguousDataset(opened, offset, size), dtype, tuple(dataset.shape), otherwise)
