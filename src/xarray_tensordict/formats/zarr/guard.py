"""Whether an array of zarr in local files is still there, and what it was: zarr reads what is missing as the fill value.

A chunk that was never written and one that was removed with the whole store look the same. The document of the array
tells them apart.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import zarr
from xarray.backends.common import BackendArray
from xarray.core import indexing

from ..._compat.zarr import open_again
from ..fingerprint import Described, coding_of, replaced
from .members import folder_of, is_local


class Guard:
    """Tells whether an array is still what was opened.

    Parameters
    ----------
    array
        The array, in local files.
    torch_dtype
        Its dtype, where numpy lacks it and `array` has integers of the same width.
    folder
        Where it is.
    """

    def __init__(self, array: zarr.Array[Any], torch_dtype: str | None, folder: str) -> None:
        self._metadata: Any = array.metadata
        self._torch_dtype = torch_dtype
        self._folder = folder
        document = os.path.join(folder, "zarr.json" if array.metadata.zarr_format == 3 else ".zarray")
        read = partial(open_again, array.store, array.path, array.metadata.zarr_format)
        self._described = Described(document, read, os.stat(document))
        self._fits: Any = None

    @classmethod
    def of(cls, array: zarr.Array[Any], torch_dtype: str | None = None) -> Guard | None:
        """The guard of an array; None where it is not in local files."""
        if not is_local(array):
            return None
        try:
            return cls(array, torch_dtype, folder_of(array))
        except (FileNotFoundError, NotADirectoryError):  # opened by the metadata of a group above it
            return None

    @property
    def folder(self) -> str:
        """The folder of the array."""
        return self._folder

    def check(self) -> None:
        """Raise where the array is gone, or another one; one that has grown is the same.

        Raises
        ------
        RemovedError, ReplacedError
            With what was expected, and what was found.
        """
        now = self._described.changed()
        if now is None or now is self._fits:
            return
        array, torch_dtype = now
        then, found = self._metadata, array.metadata
        shrunk = len(then.shape) != len(found.shape) or any(
            size < before for size, before in zip(found.shape, then.shape, strict=True)
        )
        expected, there = _form(then, self._torch_dtype), _form(found, torch_dtype)
        if shrunk or expected != there:
            differ = [name for name in expected if expected[name] != there.get(name)]
            raise replaced(
                self._folder,
                ", ".join([f"shape {tuple(then.shape)}", *(f"{name} {expected[name]}" for name in differ)]),
                ", ".join([f"shape {tuple(found.shape)}", *(f"{name} {there.get(name)}" for name in differ)]),
            )
        self._fits = now

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fits": None}


def _form(metadata: Any, torch_dtype: str | None) -> dict[str, str]:
    """How the chunks of an array become its values."""
    names: tuple[str, ...] = ("data_type", "chunk_grid", "codecs", "chunk_key_encoding", "fill_value")
    if metadata.zarr_format == 2:
        names = ("dtype", "chunks", "order", "filters", "compressor", "dimension_separator", "fill_value")
    form = {name: repr(getattr(metadata, name)) for name in names}
    return {**form, "attributes": coding_of(metadata.attributes), "dtype of torch": str(torch_dtype)}


class GuardedArray(BackendArray):
    """An array that zarr reads, and then a look at whether it is still there."""

    def __init__(self, array: Any, guard: Guard) -> None:
        self._array = array
        self._guard = guard
        self.dtype = array.dtype
        self.shape = array.shape

    @property
    def otherwise(self) -> Any:
        """The array of xarray."""
        return self._array

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        try:
            return self._array[key]
        finally:
            self._guard.check()

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> Any:
        try:
            return await self._array.async_getitem(key)
        finally:
            self._guard.check()
