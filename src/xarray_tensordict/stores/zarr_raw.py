"""Which arrays of zarr lie in local files as they are in memory: uncompressed, in whole rows, of native byte order."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import zarr
from xarray.backends.common import BackendArray
from zarr.codecs import BytesCodec
from zarr.storage import LocalStore

from .raw_arrays import RawArray
from .raw_files import NotRawError, PlainFiles, open_file

_KINDS = "biufcmM"
_NATIVE = (None, sys.byteorder)


@dataclass(frozen=True)
class ChunkFiles(PlainFiles):
    """The chunks of an array, each a file of its own.

    They are opened for each read and closed again, so that what was written in between is seen, and no file stays open.
    """

    folder: str
    metadata: Any
    axes: int
    size: int
    chunk: int

    @property
    def part(self) -> int:
        return self.chunk

    def where(self, number: int) -> str:
        key = self.metadata.encode_chunk_key((number, *(0,) * (self.axes - 1)) if self.axes else ())
        return os.path.join(self.folder, *key.split("/"))

    @contextmanager
    def opened(self, number: int) -> Iterator[tuple[int, int]]:
        path = self.where(number)
        try:
            with open_file(path) as fileno:
                found = os.fstat(fileno).st_size
                if found != self.chunk:
                    raise NotRawError(f"{path}: expected a chunk of {self.chunk} bytes, found {found}")
                yield fileno, 0
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotRawError(f"{path}: there is no such chunk") from error


def as_raw(array: zarr.Array[Any], otherwise: BackendArray) -> RawArray | None:
    """The array as one that is read without zarr; None where it has to be decoded, or is not in local files.

    Parameters
    ----------
    array
        What is to be read.
    otherwise
        What reads it through zarr: where a chunk is missing, is of another size, or parts of its rows are asked for.
    """
    # a subclass may read in a way of its own
    if type(array.store) is not LocalStore or not _is_plain(array):
        return None
    shape, chunks = tuple(array.shape), tuple(array.chunks)
    if not math.prod(shape) or chunks[1:] != shape[1:]:
        return None
    chunk = math.prod(chunks) * array.dtype.itemsize
    count = -(-shape[0] // chunks[0]) if shape else 1
    folder = os.path.join(os.fspath(array.store.root), *array.path.split("/"))
    files = ChunkFiles(folder, array.metadata, len(shape), count * chunk, chunk)
    return RawArray(files, array.dtype, shape, otherwise)


def _is_plain(array: zarr.Array[Any]) -> bool:
    # by the metadata: the properties of the array take longer than all the rest, and each array of a store is asked
    metadata: Any = array.metadata
    if metadata.zarr_format == 2:
        plain = metadata.order == "C" and metadata.compressor is None and not metadata.filters
        return bool(plain and array.dtype.kind in _KINDS)
    codecs = metadata.codecs
    if len(codecs) != 1 or type(codecs[0]) is not BytesCodec or metadata.storage_transformers:
        return False
    if not array.dtype.isnative or array.dtype.kind not in _KINDS:
        return False
    try:
        _ = array.chunks
    except NotImplementedError:  # chunks of different sizes have no one shape
        return False
    endian = codecs[0].endian
    return getattr(endian, "value", endian) in _NATIVE
