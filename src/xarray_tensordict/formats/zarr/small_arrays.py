"""Chunks that are read while a store is opened, and must not become more than they should when they are decompressed."""

from __future__ import annotations

import bz2
import lzma
import math
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numcodecs
import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.storage import WrapperStore

from ..._compat.zarr import codec_names, on_store, tried_at_once
from ..._compat.zarr_codecs import check_blosc


def read_together(arrays: Sequence[zarr.Array[Any]]) -> list[bytes | BaseException]:
    """The bytes of several small arrays, all requests at once; for each the exception that it raised, if any.

    No chunk is decoded to more than the size that the array declares.
    """

    async def read(array: zarr.Array[Any]) -> bytes:
        return np.asarray(await on_store(array, _Bounded(array)).async_array.getitem(...)).tobytes()

    return tried_at_once(read, arrays)


class _Bounded(WrapperStore[Store]):
    """The store of an array, which refuses chunks that are more than they should be when they are decompressed.

    Raises
    ------
    ValueError
        Where their size is not known in advance: shards, several compressors, one that is not known here.
    """

    _supports_sync_io = False  # every read comes through `get`

    def __init__(self, array: zarr.Array[Any]) -> None:
        super().__init__(array.store)
        self._codecs = codec_names(array)
        self._most = math.prod(array.chunks) * array.dtype.itemsize
        found = [codec for codec in self._codecs if codec not in _NOT_COMPRESSED]
        if len(found) > 1 or not set(found) <= _BOUNDED.keys():
            raise ValueError(
                f"expected one of the compressors {sorted(_BOUNDED)} for what is read while a store is opened, found {found}"
            )

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        found = await super().get(key, prototype, byte_range)
        content = b"" if found is None else found.to_bytes()
        for codec in reversed(self._codecs if content else []):
            content = content[:-4] if codec == "crc32c" else content
            if codec == "blosc":
                check_blosc(content[:16], len(content))
            if codec in _BOUNDED:
                _check_decompressed(content, _BOUNDED[codec](), self._most)
        return found


def _check_decompressed(content: bytes, codec: Any, most: int) -> None:
    """Raise a ValueError where a chunk has more than `most` bytes, of which no more are made to find out."""
    if hasattr(codec, "decode"):
        codec.decode(content, out=bytearray(most))  # which raises where it is too small
    elif len(codec.decompress(content, most + 1)) > most:
        raise ValueError(f"a chunk has more than the {most} bytes that the array has in one")


_NOT_COMPRESSED = frozenset({"bytes", "crc32c", "transpose", "vlen-utf8", "vlen-bytes"})
_BOUNDED: dict[str, Callable[[], Any]] = {
    "blosc": numcodecs.Blosc,
    "bz2": bz2.BZ2Decompressor,
    "gzip": partial(zlib.decompressobj, wbits=47),
    "lz4": numcodecs.LZ4,
    "lzma": lzma.LZMADecompressor,
    "zlib": partial(zlib.decompressobj, wbits=47),
    "zstd": numcodecs.Zstd,
}
"""Decompressors with a limit on their output: numcodecs into an output of that size, Python's own up to that size."""
