"""What is private of the codecs of zarr: chunks are looked at before they are decoded, and by the pipeline that takes less time."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import numcodecs
import zarr
from zarr.codecs import BloscCodec, ShardingCodec
from zarr.codecs._v2 import V2Codec
from zarr.core import codec_pipeline

from .zarr import IS_FASTER, PIPELINE, PIPELINE_CLASSES, PIPELINES, check_blosc, copied_plainly, layers_of


def with_checked_chunks(array: zarr.Array[Any]) -> zarr.Array[Any]:
    """The same array, of which a chunk of blosc that was cut short is an error, and which takes less time to decode from zarr 3.4 on.

    Its pipeline is its own: the setting of zarr is that of all arrays. Not where the user has chosen one, and the faster one only for
    stores of zarr itself: others may do more in `get`, which it does not call.
    """
    copied = copied_plainly(array._async_array)
    old: Any = copied.codec_pipeline
    if type(old).__name__ not in PIPELINE_CLASSES:
        return array
    before, to_bytes, after = old.array_array_codecs, _checked(old.array_bytes_codec), old.bytes_bytes_codecs
    parts = {
        "array_array_codecs": before,
        "array_bytes_codec": to_bytes,
        "bytes_bytes_codecs": tuple(map(_checked, after)),
    }
    codecs = (*before, to_bytes, *parts["bytes_bytes_codecs"])
    new: Any = replace(old, **parts) if not hasattr(old, "codecs") else None
    is_own = all(type(layer).__module__.startswith(_OWN_STORES) for layer in layers_of(array.store))
    if new is None or (is_own and _is_fast_available()):
        pipelines: Any = codec_pipeline
        with suppress(AttributeError, TypeError):  # a codec that only works asynchronously; another release of zarr
            transform = pipelines.ChunkTransform(codecs=codecs)
            options = {"codecs": codecs, "sync_transform": transform, "batch_size": old.batch_size}
            new = pipelines.FusedCodecPipeline(**parts, **options)
    object.__setattr__(copied, "codec_pipeline", new or old)
    return zarr.Array(copied)


def _is_fast_available() -> bool:
    return IS_FASTER and bool(zarr.config.get(PIPELINE) == PIPELINES[0])


_OWN_STORES = ("zarr.storage", "zarr.experimental", "xarray_tensordict.")


def _checked(codec: Any) -> Any:
    """A codec whose chunks of blosc are looked at."""
    if type(codec) is BloscCodec:
        new = object.__new__(_Blosc)
        new.__dict__.update(codec.__dict__)
        return new
    if type(codec) is ShardingCodec:
        shards = object.__new__(_Shards)
        shards.__setstate__(codec.__getstate__())
        return shards
    if type(codec) is V2Codec and type(codec.compressor) is numcodecs.Blosc:
        return replace(codec, compressor=CheckedBlosc.of(codec.compressor))
    if type(getattr(codec, "_codec", None)) is numcodecs.Blosc:
        new = copied_plainly(codec)
        new.__dict__["_codec"] = CheckedBlosc.of(codec._codec)
        return new
    return codec


class CheckedBlosc(numcodecs.Blosc):  # type: ignore[misc]
    """Blosc, of which a chunk that was cut short is an error."""

    @classmethod
    def of(cls, codec: numcodecs.Blosc) -> CheckedBlosc:
        """The same codec, checked."""
        config = codec.get_config()
        return cls(**{name: value for name, value in config.items() if name != "id"})

    def decode(self, buf: Any, out: Any = None) -> Any:
        content = memoryview(buf).cast("B")
        check_blosc(bytes(content[:16]), len(content))
        return super().decode(buf, out)


class _Blosc(BloscCodec):
    @cached_property
    def _blosc_codec(self) -> Any:
        return CheckedBlosc.of(super()._blosc_codec)


class _Shards(ShardingCodec):
    """Shards whose chunks are checked, and decoded by the faster pipeline where there is one."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        object.__setattr__(self, "codecs", tuple(map(_checked, self.codecs)))

    @property
    def codec_pipeline(self) -> Any:
        pipelines: Any = codec_pipeline
        return pipelines.FusedCodecPipeline.from_codecs(self.codecs) if _is_fast_available() else super().codec_pipeline

    async def _load_full_shard_maybe(self, byte_getter: Any, *arguments: Any, **options: Any) -> Any:
        return await super()._load_full_shard_maybe(_NotEmpty(byte_getter), *arguments, **options)


class _NotEmpty:
    """What gets a shard; zarr before 3.4 takes one of no bytes for one that is not there, and shows fill values."""

    def __init__(self, getter: Any) -> None:
        self._getter = getter

    async def get(self, *arguments: Any, **options: Any) -> Any:
        found = await self._getter.get(*arguments, **options)
        if found is not None and not len(found):
            raise OSError("a shard is empty: expected an index of its chunks, found 0 bytes")
        return found
