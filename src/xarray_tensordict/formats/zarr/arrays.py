"""Arrays of zarr: from their documents, whether one is still what was opened, and rows that are read without zarr.

zarr reads a chunk that is missing as the fill value. One that was never written and one that was removed with the whole store
look the same; the document of the array distinguishes them.
"""

from __future__ import annotations

import marshal
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numcodecs
import numpy as np
import zarr
from xarray.backends.common import BackendArray
from xarray.backends.zarr import DIMENSION_KEY
from xarray.core import indexing
from zarr.abc.store import Store
from zarr.codecs import BloscCodec, BytesCodec, GzipCodec, ZstdCodec
from zarr.storage import StorePath

from ..._compat.xarray import shown_dtype, shown_values
from ..._compat.zarr import (
    Document,
    array_like,
    array_of,
    check_blosc,
    folder_of,
    group_of,
    is_local,
    is_pipeline_chosen,
    read_documents,
)
from ...core.metadata import checked, from_json
from ...core.model import cached_property
from ...core.values import CODE_DTYPES
from ...warnings import ZARR_SAYS, quiet
from ..array_wrappers import named_errors
from ..counting import COUNTED
from ..identity import Described, Fingerprint, RemovedError, coding_of
from ..raw.arrays import RawArray, counted_from_start
from ..raw.files import DECODERS, Buffer, Kept, NotRawError, Places, PlainFiles, at_once, open_file, reuse_memory
from .documents import DOCUMENTS, ArrayV2, ArrayV3, CodedArray, Node, RegularGrid
from .remote import many_at_once

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_HEADER = 18
_KINDS = "biufcmM"
_LEFT_TO_ZARR = object()
_V3 = {ZstdCodec: numcodecs.Zstd, BloscCodec: numcodecs.Blosc, GzipCodec: numcodecs.GZip}
_V2 = {numcodecs.Zstd, numcodecs.Blosc, numcodecs.GZip, numcodecs.Zlib, numcodecs.LZ4, numcodecs.BZ2, numcodecs.LZMA}


# -- groups and arrays ---------------------------------------------------------------------------------------------------


def loaded(document: Document, where: str = "") -> Document:
    """The same document, read from JSON, the attributes apart; messages call it by `where` and the name of its file."""
    content, attributes = dict(_parsed(document.content, f"{where}{document.file}")), document.attributes
    if document.file == "zarr.json" and attributes is None:
        attributes = content.pop("attributes", None)
    name = "zarr.json, attributes" if document.file == "zarr.json" else ".zattrs"
    return Document(document.file, content, {} if attributes is None else _parsed(attributes, f"{where}{name}"))


def _parsed(content: Any, what: str) -> dict[str, Any]:
    value = from_json(content, what) if isinstance(content, bytes) else content
    return value if type(value) is dict else checked(value, dict[str, Any], what)  # JSON has no other keys than texts


class Nodes:
    """Groups and arrays from documents. Arrays of a store are often alike but for their attributes: those are parsed once."""

    def __init__(self) -> None:
        self._alike: dict[tuple[str, bytes], tuple[Any, str | None] | None] = {}

    def node(self, place: StorePath, document: Document) -> Node:
        """The group or the array at a place.

        Raises
        ------
        ValueError
            Where the document is none of a group or an array: its file, the member, what was expected and what was found.
            What zarr raises for dtypes and codecs comes through.
        """
        own = loaded(document)
        rest, attributes = own.content, own.attributes
        rest.pop("consolidated_metadata", None)
        alike = document.file, marshal.dumps(rest, 2)  # unlike equality, it distinguishes 1, 1.0 and True
        if alike not in self._alike:
            kind = checked(rest, DOCUMENTS[document.file], document.file)
            is_array = isinstance(kind, ArrayV2 | ArrayV3)
            self._alike[alike] = _array_of(rest, kind, place, document.file) if is_array else None
        found = self._alike[alike]
        if found is None:
            return group_of(place, attributes, 3 if document.file == "zarr.json" else 2)
        if document.file == ".zarray" and DIMENSION_KEY in attributes:
            checked(attributes[DIMENSION_KEY], list[str | None], DIMENSION_KEY)
        array = array_like(found[0], place, attributes=attributes)
        return array if found[1] is None else CodedArray(array, found[1])


def _array_of(document: dict[str, Any], kind: Any, place: StorePath, what: str) -> tuple[Any, str | None]:
    torch_dtype, plain = None, {**document, "attributes": {}}
    if isinstance(kind, ArrayV3):
        if kind.chunk_grid.name == "regular":
            checked(kind.chunk_grid.configuration, RegularGrid, f"{what}, chunk_grid")
        declared = kind.data_type if isinstance(kind.data_type, str) else kind.data_type.name
        if declared in CODE_DTYPES:
            torch_dtype = declared
            plain |= {"data_type": CODE_DTYPES[declared], "fill_value": _fill_code(kind.fill_value, declared)}
    with quiet(*ZARR_SAYS):
        array = array_of(plain, place)
    repr(array.metadata)  # codecs of numcodecs take any setting, and some fail when they are shown
    itemsize = max(array.dtype.itemsize, 1)
    if math.prod(kind.shape) * itemsize >= 2**63:
        raise ValueError(
            f"{what}: an array of shape {kind.shape} and {itemsize} bytes an element is larger than any can be"
        )
    return array, torch_dtype


def _fill_code(fill: Any, torch_dtype: str) -> int:
    if isinstance(fill, str) and fill.startswith("0x"):
        return int(fill, 16)
    if fill is None or (fill == 0 and math.copysign(1, fill) > 0):
        return 0
    import torch

    value = torch.tensor(float(fill)).to(getattr(torch, torch_dtype))
    return int(value.view(torch.uint16 if value.element_size() == 2 else torch.uint8).item())


def open_again(store: Store, path: str, zarr_format: int) -> tuple[zarr.Array[Any], str | None]:
    """An array as it is now, and the dtype of torch where numpy lacks it.

    Raises
    ------
    FileNotFoundError
        Where there is no document of it.
    """
    place = StorePath(store, path)
    (found,) = read_documents([place], zarr_format)
    if isinstance(found, BaseException):
        raise found
    node = None if found is None else Nodes().node(place, found)
    if node is None or isinstance(node, zarr.Group):
        raise FileNotFoundError(f"{store}: there is no array {path!r}")
    return node if isinstance(node, CodedArray) else (node, None)


# -- is it still there -------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Guard:
    """Checks whether an array is still what was opened.

    Attributes
    ----------
    folder
        The folder of the array.
    metadata, torch_dtype
        Its metadata; its dtype, where numpy lacks it and the metadata have integers of the same width.
    described
        The document of the array.
    """

    folder: str
    metadata: Any
    torch_dtype: str | None
    described: Described
    _fits: Any = None

    @classmethod
    def of(cls, array: zarr.Array[Any], torch_dtype: str | None = None) -> Guard | None:
        """The guard of an array; None where it is not in local files."""
        if not is_local(array):
            return None
        folder, metadata = folder_of(array), array.metadata
        document = os.path.join(folder, "zarr.json" if metadata.zarr_format == 3 else ".zarray")
        try:
            status = os.stat(document)
        except (FileNotFoundError, NotADirectoryError):  # opened by the metadata of a group above it
            return None
        read = partial(open_again, array.store, array.path, metadata.zarr_format)
        return cls(folder, metadata, torch_dtype, Described(document, read, status))

    def check(self) -> None:
        """Raise where the array is gone, or another one; one that has grown is the same.

        Raises
        ------
        RemovedError, ReplacedError
            With what was expected, and what was found.
        """
        now = self.described.changed()
        if now is None or now is self._fits:
            return
        array, torch_dtype = now
        _fingerprint_of(self.metadata, self.torch_dtype).compare(
            _fingerprint_of(array.metadata, torch_dtype), self.folder
        )
        self._fits = now

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fits": None}


def _fingerprint_of(metadata: Any, torch_dtype: str | None) -> Fingerprint:
    native = metadata.dtype.to_native_dtype()
    if metadata.zarr_format == 2:
        names = ["chunks", "order", "filters", "compressor", "dimension_separator", "fill_value"]
    else:
        names = ["chunk_grid", "codecs", "chunk_key_encoding", "fill_value"]
    means = {name: repr(getattr(metadata, name)) for name in names}
    if native.itemsize == 1:  # a byte has no order: zarr leaves it out of codecs in shards once it has seen the dtype
        means = {name: re.sub(r"endian=<[^>]*>", "endian=None", text) for name, text in means.items()}
    grows = (True,) * len(metadata.shape)
    return Fingerprint(
        torch_dtype or str(native), metadata.shape, grows, {**means, "attributes": coding_of(metadata.attributes)}
    )


class ZarrArray(BackendArray):
    """An array that zarr reads; errors name it, after a check whether it is still there.

    Attributes
    ----------
    otherwise, is_far
        The array of xarray, and whether its store is far away.
    """

    def __init__(self, array: Any, where: str, guard: Guard | None, *, far: bool = False) -> None:
        self.otherwise, self.is_far = array, far
        self._where, self._guard = where, guard
        self.dtype, self.shape = shown_dtype(array.dtype), array.shape

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        with self._reading(key):
            return self._checked(self.otherwise[key])

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> Any:
        with self._reading(key):
            return self._checked(await self.otherwise.async_getitem(key))

    def _checked(self, values: Any) -> Any:
        """The values; numpy makes strings of any numbers, and fails when one of them is looked at."""
        if self.dtype.kind == "U":
            codes = np.ascontiguousarray(values).reshape(-1).view(np.dtype("u4").newbyteorder(self.dtype.byteorder))
            if codes.size and codes.max() > sys.maxunicode:
                raise ValueError(f"{int(codes.max())} is no code point of a character")
        return shown_values(values, self.dtype)

    @contextmanager
    def _reading(self, key: indexing.ExplicitIndexer) -> Iterator[None]:
        for picked, size in zip(key.tuple, self.shape, strict=True):
            if not isinstance(picked, slice):
                counted_from_start(np.asarray(picked), size)
        with named_errors(self._where), many_at_once() if self.is_far else nullcontext():
            try:
                yield
            finally:
                if self._guard is not None:
                    self._guard.check()


# -- rows without zarr -------------------------------------------------------------------------------------------------
#
# zarr decodes the same bytes in the same libraries; what it does around that takes as long (measured: 105 MB of int16 in 64
# chunks of zstd, 0.39 s of processor time, 0.21 s here; 100 chunks of 8 kB, 35 ms and 10 ms).


@dataclass(frozen=True)
class ChunkFiles(PlainFiles):
    """The chunks of an array, each a file of its own.

    They are opened for each read and closed again, so that what was written in between is seen, and no file stays open.
    """

    guard: Guard
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
            axes = len(self.guard.metadata.shape)
            key = self.guard.metadata.encode_chunk_key((number, *(0,) * (axes - 1)) if axes else ())
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


@dataclass(frozen=True)
class EncodedChunks:
    """The chunks of an array, each a file of its own that holds whole rows; see :class:`~..raw.files.Bytes`.

    Attributes
    ----------
    where
        The path of the chunk of a number.
    guard
        Checks whether the array is still what was opened.
    size, chunk
        How many bytes there are in all, and in a chunk, decoded.
    codec
        What decodes a chunk.
    """

    where: Callable[[int], str]
    guard: Guard
    size: int
    chunk: int
    codec: Any

    is_compressed: ClassVar[bool] = True

    def view(self, start: int, stop: int) -> Buffer | None:
        """None: parts of rows are read by zarr, chunk by chunk; here all chunks would be held at once."""
        return np.empty(0, np.uint8) if start >= stop else None

    def private(self) -> Buffer | None:
        return None

    def rows(self, starts: Places, out: Buffer, kept: Kept | None = None) -> bool:
        if not out.size:
            return True
        reuse_memory()
        if len(starts) == 1:
            self._range(int(starts[0]), out[0])
            return True
        length = out.shape[1]
        if self.chunk % length:
            return False
        order = np.argsort(starts, kind="stable")
        cuts = np.flatnonzero(np.diff(starts[order] // self.chunk)) + 1

        def copy(places: Places) -> None:
            number, inside = divmod(int(starts[places[0]]), self.chunk)
            if np.all(np.diff(places) == 1) and np.all(np.diff(starts[places]) == length):
                self._decode(number, inside, out[places[0] : places[-1] + 1].reshape(-1))
            else:
                rows = (starts[places] - number * self.chunk) // length
                out[places] = self._decoded(number).reshape(-1, length)[rows]

        at_once(copy, np.split(order, cuts), DECODERS)
        return True

    def _range(self, start: int, out: Buffer) -> None:
        stop = start + out.nbytes

        def copy(number: int) -> None:
            begin = number * self.chunk
            first, last = max(start, begin), min(stop, begin + self.chunk)
            self._decode(number, first - begin, out[first - start : last - start])

        at_once(copy, range(start // self.chunk, -(-stop // self.chunk)), DECODERS)

    def _decode(self, number: int, first: int, out: Buffer) -> None:
        """Decode what follows the byte `first` of a chunk; straight into `out` where that is the whole chunk."""
        found = self._decoded(number, out if out.nbytes == self.chunk else None)
        if found is not out:
            out[:] = found[first : first + out.nbytes]

    def _decoded(self, number: int, out: Buffer | None = None) -> Buffer:
        """The bytes of a chunk; in `out`, which has its size, where the codec can be trusted to fill it."""
        path = self.where(number)
        try:
            with COUNTED.get() as counted, open_file(path) as fileno:
                self.guard.check()  # after the file is opened: what is renamed in between is seen
                encoded = os.read(fileno, os.fstat(fileno).st_size)
                if counted is not None:
                    counted.received(encoded)
        except RemovedError:
            raise
        except OSError as error:  # the message of zarr is clear
            raise NotRawError(f"{path}: there is no such chunk") from error
        try:
            if type(self.codec) is numcodecs.Blosc:
                check_blosc(encoded[:16], len(encoded))
            if out is not None and _decoded_size(self.codec, encoded) == self.chunk:
                self.codec.decode(encoded, out)
                return out
            found = np.frombuffer(self.codec.decode(encoded), np.uint8)
        except Exception as error:  # codecs raise any class
            raise NotRawError(f"{path}: the chunk cannot be decoded ({error})") from error
        if found.nbytes != self.chunk:
            raise NotRawError(f"{path}: expected a chunk of {self.chunk} bytes, found {found.nbytes}")
        return found


def _decoded_size(codec: Any, encoded: bytes) -> int | None:
    """How many bytes there will be, where the data records it.

    A codec that writes into a given array does not return how many bytes it wrote, and accepts fewer.
    """
    if type(codec) is numcodecs.Zstd and encoded[:4] == _ZSTD_MAGIC and len(encoded) > _ZSTD_HEADER:
        # RFC 8878, 3.1.1.1: a byte of flags; a window, unless there is one segment; the number of a dictionary; the size
        flags = encoded[4]
        width = (1 if flags & 0x20 else 0, 2, 4, 8)[flags >> 6]
        place = 5 + (not flags & 0x20) + (0, 1, 2, 4)[flags & 3]
        size = int.from_bytes(encoded[place : place + width], "little")
        return (size + 256 if width == 2 else size) if width else None
    if type(codec) is numcodecs.LZ4 and len(encoded) > 4:
        return int.from_bytes(encoded[:4], "little")
    if type(codec) is numcodecs.Blosc and len(encoded) >= 16:
        return int.from_bytes(encoded[4:8], "little")
    return None


def as_raw(array: zarr.Array[Any], otherwise: BackendArray, guard: Guard) -> RawArray | None:
    """The array as one that is read without zarr; None where it takes more than one codec, or chunks are parts of rows.

    Parameters
    ----------
    array
        What is to be read, in local files, of native byte order.
    otherwise
        What reads it through zarr: where a chunk is missing, is of another size, or parts of its rows are asked for.
    guard
        Checks whether the array is still what was opened.
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
    files = ChunkFiles(guard, count * chunk, chunk)
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
    if getattr(endian, "value", endian) not in (None, sys.byteorder):
        return _LEFT_TO_ZARR
    return codecs[1] if len(codecs) == 2 else None


def decoder_of(codec: Any) -> Any:
    """What decodes chunks of this compressor; None for one that is left to zarr."""
    if is_pipeline_chosen():
        return None  # the user has chosen what decodes
    if type(codec) in _V3:
        return _V3[type(codec)]()  # how something is compressed does not matter to what decompresses it
    return codec if type(codec) in _V2 else None
