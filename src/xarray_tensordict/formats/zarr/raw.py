"""Which arrays of zarr are read without it: in local files, of native byte order, in chunks of whole rows.

They lie there as they are in memory, or each chunk is compressed by one codec.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import zarr
from xarray.backends.common import BackendArray
from zarr.codecs import BytesCodec

from ..fingerprint import RemovedError
from ..raw.arrays import RawArray
from ..raw.files import NotRawError, PlainFiles, open_file
from .chunks import EncodedChunks, decoder_of
from .guard import Guard

_KINDS = "biufcmM"
_NATIVE = (None, sys.byteorder)
_LEFT_TO_ZARR = object()


@dataclass(frozen=True)
class ChunkFiles(PlainFiles):
    """The chunks of an array, each a file of its own.

    They are opened for each read and closed again, so that what was written in between is seen, and no file stays open.
    """

    guard: Guard
    metadata: Any
    axes: int
    size: int
    chunk: int

    @property
    def part(self) -> int:
        return self.chunk

    @cached_property
    def _paths(self) -> dict[int, str]:
        """The paths that were asked for: to make one takes longer than to open the file."""
        return {}

    def where(self, number: int) -> str:
        found = self._paths.get(number)
        if found is None:
            key = self.metadata.encode_chunk_key((number, *(0,) * (self.axes - 1)) if self.axes else ())
            found = self._paths[number] = os.path.join(self.guard.folder, *key.split("/"))
        return found

    def place(self, number: int) -> tuple[str, int]:
        return self.where(number), 0

    @contextmanager
    def opened(self, number: int) -> Iterator[tuple[int, int]]:
        path = self.where(number)
        try:
            with open_file(path) as fileno:
                found = os.fstat(fileno).st_size
                if found != self.chunk:
                    raise NotRawError(f"{path}: expected a chunk of {self.chunk} bytes, found {found}")
                self.guard.check()  # after the file is opened: what is renamed in between is seen
                yield fileno, 0
        except RemovedError:
            raise
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise NotRawError(f"{path}: there is no such chunk") from error


def as_raw(array: zarr.Array[Any], otherwise: BackendArray, guard: Guard) -> RawArray | None:
    """The array as one that is read without zarr; None where it takes more than one codec, or chunks are parts of rows.

    Parameters
    ----------
    array
        What is to be read, in local files.
    otherwise
        What reads it through zarr: where a chunk is missing, is of another size, or parts of its rows are asked for.
    guard
        Tells whether the array is still what was opened.
    """
    codec = _only_codec(array)
    decoder = None if codec is None else decoder_of(codec)
    if codec is _LEFT_TO_ZARR or (codec is not None and decoder is None):
        return None
    shape, chunks = tuple(array.shape), tuple(array.chunks)
    if not math.prod(shape) or chunks[1:] != shape[1:]:
        return None
    chunk = math.prod(chunks) * array.dtype.itemsize
    count = -(-shape[0] // chunks[0]) if shape else 1
    files = ChunkFiles(guard, array.metadata, len(shape), count * chunk, chunk)
    data = files if decoder is None else EncodedChunks(files.where, guard, files.size, chunk, decoder)
    return RawArray(data, array.dtype, shape, otherwise)


def _only_codec(array: zarr.Array[Any]) -> Any:
    """What compresses the chunks, None where nothing does; `_LEFT_TO_ZARR` where there is more to do than that."""
    # by the metadata: the properties of the array take longer than all the rest, and each array of a store is asked
    metadata: Any = array.metadata
    if metadata.zarr_format == 2:
        plain = metadata.order == "C" and not metadata.filters and array.dtype.kind in _KINDS
        return metadata.compressor if plain else _LEFT_TO_ZARR
    codecs = metadata.codecs
    if len(codecs) not in (1, 2) or type(codecs[0]) is not BytesCodec or metadata.storage_transformers:
        return _LEFT_TO_ZARR
    if not array.dtype.isnative or array.dtype.kind not in _KINDS:
        return _LEFT_TO_ZARR
    try:
        _ = array.chunks
    except NotImplementedError:  # chunks of different sizes have no one shape
        return _LEFT_TO_ZARR
    endian = codecs[0].endian
    if getattr(endian, "value", endian) not in _NATIVE:
        return _LEFT_TO_ZARR
    return codecs[1] if len(codecs) == 2 else None
