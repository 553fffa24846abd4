"""Lazy arrays around lazy arrays: one field of records, codes of dtypes that numpy lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
from xarray.backends.common import BackendArray
from xarray.coding.strings import create_vlen_dtype
from xarray.core import indexing
from xarray.core.variable import Variable

from ..core.dtypes import widened_dtype_name


class _Wrapped(BackendArray):
    """Reads through another lazy array, which does the indexing."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __init__(self, array: Any) -> None:
        self._wrapped = array

    @property
    def wrapped(self) -> Any:
        """The array that it reads through: records, or codes as integers of the same width."""
        return self._wrapped

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> Any:
        raise NotImplementedError

    def _read_wrapped(self, key: tuple[Any, ...]) -> np.ndarray[Any, Any]:
        return read_outer(self._wrapped, key)


def read_outer(array: Any, key: tuple[Any, ...]) -> np.ndarray[Any, Any]:
    """Read a selection of a lazy array by ints, slices and one list of numbers for each axis."""
    lazy = indexing.LazilyIndexedArray(array) if isinstance(array, BackendArray) else array
    return np.asarray(Variable([f"axis_{axis}" for axis in range(len(array.shape))], lazy)[key].values)


class FieldArray(_Wrapped):
    """One field of an array of records; a sub-array field has its own axes behind those of the records."""

    def __init__(self, array: Any, field: str) -> None:
        super().__init__(array)
        self._field = field
        dtype = np.dtype(array.dtype).fields[field][0]
        self._ndim = len(array.shape)
        self.dtype = dtype.base
        self.shape = tuple(array.shape) + dtype.shape

    def _read(self, key: tuple[Any, ...]) -> Any:
        records = self._read_wrapped(key[: self._ndim])
        rest = key[self._ndim :]
        values = records[self._field]
        lead = (slice(None),) * (values.ndim - len(rest))
        for axis in reversed(range(len(rest))):
            values = values[(*lead, *(slice(None),) * axis, rest[axis])]
        return values


class WidenedArray(_Wrapped):
    """Values of a torch dtype that numpy lacks, read as float32 (complex32: complex64) of the same value."""

    def __init__(self, array: Any, torch_dtype: str) -> None:
        super().__init__(array)
        self.torch_dtype = torch_dtype
        self.dtype = np.dtype(widened_dtype_name(torch_dtype))
        self.shape = tuple(array.shape)

    def _read(self, key: tuple[Any, ...]) -> Any:
        import torch

        codes = np.array(self._read_wrapped(key))
        native = codes.astype(codes.dtype.newbyteorder("="))
        if self.torch_dtype == "complex32":  # torch converts it too, with a warning
            return native[..., None].view("float16").astype("float32").view("complex64").reshape(codes.shape)
        tensor = torch.from_numpy(np.atleast_1d(native)).view(getattr(torch, self.torch_dtype))
        return tensor.to(torch.float32).numpy().reshape(codes.shape)


class TextArray(_Wrapped):
    """Fixed-length bytes of a store that nobody wrote for xarray, read as text; bytes that are no UTF-8 stay bytes."""

    def __init__(self, array: Any) -> None:
        super().__init__(array)
        self.dtype = create_vlen_dtype(str)
        self.shape = tuple(array.shape)

    def _read(self, key: tuple[Any, ...]) -> Any:
        encoded = self._read_wrapped(key)
        text = np.empty(encoded.shape, dtype=object)
        for index in np.ndindex(encoded.shape):
            text[index] = _as_text(bytes(encoded[index]))
        return text


def _as_text(value: bytes) -> str | bytes:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value
