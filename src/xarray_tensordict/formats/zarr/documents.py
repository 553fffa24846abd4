"""What the documents of a zarr store have to be, and what is made of them; nothing is read here."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import zarr
from msgspec import Meta, Struct

_Size = Annotated[int, Meta(ge=0)]


class _Named(Struct):
    name: str
    configuration: dict[str, Any] = {}


class RegularGrid(Struct):
    """The configuration of the chunk grid of that name."""

    chunk_shape: list[_Size]


class _GroupV3(Struct, tag_field="node_type", tag="group"):
    zarr_format: Literal[3]


class ArrayV3(Struct, tag_field="node_type", tag="array"):
    """The document of an array of v3."""

    zarr_format: Literal[3]
    shape: list[_Size]
    data_type: str | _Named
    chunk_grid: _Named
    chunk_key_encoding: str | _Named
    codecs: list[str | _Named]
    fill_value: Any
    dimension_names: list[str | None] | None = None


class _GroupV2(Struct):
    zarr_format: Literal[2]


class ArrayV2(Struct):
    """The document of an array of v2."""

    zarr_format: Literal[2]
    shape: list[_Size]
    chunks: list[_Size]
    dtype: str | list[list[Any]]
    fill_value: Any = None
    order: Literal["C", "F"] = "C"
    compressor: dict[str, Any] | None = None
    filters: list[dict[str, Any]] | None = None
    dimension_separator: Literal[".", "/"] = "."


class Consolidated(Struct):
    """Consolidated metadata, of v3 (documents by path) and of v2 (by key)."""

    metadata: dict[str, Any]


DOCUMENTS: dict[str, Any] = {"zarr.json": _GroupV3 | ArrayV3, ".zgroup": _GroupV2, ".zarray": ArrayV2}


class NotEnteredError(ValueError):
    """A member that is not looked at, and why, as the end of a sentence."""


class CodedArray(NamedTuple):
    """An array of a dtype that numpy lacks, as the integers of the same width, and the name of the dtype."""

    array: zarr.Array[Any]
    torch_dtype: str


Node: TypeAlias = "zarr.Group | zarr.Array[Any] | CodedArray"
