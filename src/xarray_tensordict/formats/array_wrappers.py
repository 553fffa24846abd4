"""What lazy arrays of several formats share: arrays around arrays, and the names in errors of reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from xarray.backends.common import BackendArray
from xarray.coding.strings import create_vlen_dtype
from xarray.core import indexing
from xarray.core.variable import Variable

from ..core.values import widened_dtype_name
from .identity import ReplacedError


class DamagedError(OSError):
    """What a store holds cannot be read; the message names the store and the array or group."""


@contextmanager
def named_errors(where: str) -> Iterator[None]:
    """Give errors that a library raises while it reads from a store a class and a name.

    Libraries raise nearly anything for damaged bytes, and name neither file nor array. All reading of values goes through
    here, and all describing of groups.

    Parameters
    ----------
    where
        How messages call what is read: the store, and the array or group in it.

    Raises
    ------
    DamagedError
        For any error that does not come from here, or is a :class:`~.fingerprint.ReplacedError`.
    """
    try:
        yield
    except (DamagedError, ReplacedError):
        raise
    except MemoryError as error:
        raise DamagedError(f"{where}: it does not fit into memory ({error}). Select a part of it") from error
    except Exception as error:
        raise DamagedError(
            f"{where}: it cannot be read ({str(error) or type(error).__name__}). If the store is damaged, restore it, or leave the "
            f"variable out with drop_variables=[...]"
        ) from error


@dataclass(frozen=True)
class NamedFunction:
    """What decodes values as they are read, with the names of :func:`named_errors` in its errors."""

    where: str
    function: Callable[[Any], Any]

    def __call__(self, values: Any) -> Any:
        with named_errors(self.where):
            return self.function(values)


class OuterArray(BackendArray):
    """A lazy array that reads ints, slices and one list of numbers for each axis; xarray does what else is asked for."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> Any:
        raise NotImplementedError


class _Wrapped(OuterArray):
    """Reads through another lazy array, which does the indexing."""

    def __init__(self, array: Any) -> None:
        self._wrapped = array

    @property
    def wrapped(self) -> Any:
        """The array that it reads through: records, or codes as integers of the same width."""
        return self._wrapped

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
        values, rest = records[self._field], key[self._ndim :]
        return read_outer(values, ((slice(None),) * (values.ndim - len(rest)) + rest))


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
    """Fixed-length bytes of a store that was not written for xarray, read as text; bytes that are no UTF-8 stay bytes."""

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
