"""Files of ``td.consolidate(filename)``: the bytes of all tensors, a JSON text that says where each is, and its length.

Source: ``_rebuild_tensordict_files_consolidated`` in ``tensordict/_reductions.py`` (0.15.3). No class that a file names
is imported.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from ...core.metadata import scalar_array
from ..fingerprint import Described, Entry, said_of
from .arrays import CODE_DTYPES, PLAIN_DTYPES
from .files import FileBytes
from .levels import Level, Node, Stack, leaf_of, stacked_rows

_LENGTH = 8  # bytes of the length at the end, little-endian
_OWN_NAMES = frozenset({"cls", "non_tensors", "leaves", "cls_metadata", "size"})
_NESTED_TENSOR = "<NJT"


def read_footer(path: str) -> Mapping[str, Any] | None:
    """The JSON text at the end of a file, its ``size`` the number of bytes before it; None where it is no such file."""
    size = os.path.getsize(path)
    if size < _LENGTH:
        return None
    with open(path, "rb") as file:
        file.seek(size - _LENGTH)
        length = int.from_bytes(file.read(_LENGTH), "little")
        if length > size - _LENGTH:
            return None
        file.seek(size - _LENGTH - length)
        if file.read(1) != b"{":
            return None
        try:
            found = json.loads(b"{" + file.read(length - 1))
        except ValueError:
            return None
    if not isinstance(found, dict) or not {"cls", "leaves"} <= found.keys():
        return None
    return {**found, "size": size - _LENGTH - length}


def consolidated_level(path: str, footer: Mapping[str, Any], status: os.stat_result) -> Node:
    """The root level of a file; `status` is from before it was read."""
    path = os.path.abspath(path)
    return _node(Described(path, partial(read_footer, path), status), (), footer, int(footer["size"]))


def _node(file: Described, place: tuple[str, ...], meta: Mapping[str, Any], held: int) -> Node:
    children = {key: value for key, value in meta.items() if key not in _OWN_NAMES}
    own = meta.get("cls_metadata", {})
    if "stack_dim" in own:
        members = tuple(
            _node(file, (*place, str(number)), children[str(number)], held) for number in range(len(children))
        )
        return Stack(members, int(own["stack_dim"]), own.get("stack_dim_name"))
    names = own.get("names")
    level = Level(tuple(own.get("batch_size", ())), tuple(names) if names is not None else None)
    level.tensorclass = _class_name(str(meta["cls"]))
    for key, leaf in meta["leaves"].items():
        dtype, shape, start, stop, *_ = leaf
        entry = Entry(file, (*place, "leaves", key), said_of(leaf))
        inside = int(start), min(int(stop), held)
        _add_leaf(level, key, entry, str(dtype).removeprefix("torch."), tuple(shape), inside)
    for key, (value, *_) in meta.get("non_tensors", {}).items():
        level.values[key] = scalar_array(value)
    for key, child in children.items():
        if not key or "/" in key:
            level.left_out[key] = "its key is empty or has a '/', which separates nested keys in a Dataset; rename it"
        elif "NonTensor" in str(child["cls"]):
            level.values[key] = _rows(child, level.batch or ())
        else:
            level.children[key] = _node(file, (*place, key), child, held)
    return level


def _add_leaf(level: Level, key: str, entry: Entry, dtype: str, shape: tuple[int, ...], place: tuple[int, int]) -> None:
    if key.startswith(_NESTED_TENSOR):
        name = key.rpartition(">")[2]
        level.left_out[name] = "it is a nested tensor, whose rows have sizes of their own; pad it with tensordict"
    elif not key or "/" in key:
        level.left_out[key] = "its key is empty or has a '/', which separates nested keys in a Dataset; rename it"
    elif dtype not in PLAIN_DTYPES and dtype not in CODE_DTYPES:
        level.left_out[key] = f"its dtype torch.{dtype} has no twin in numpy, nor a wider one"
    else:
        size = math.prod(shape) * np.dtype(CODE_DTYPES.get(dtype, dtype)).itemsize
        if size > place[1] - place[0]:
            level.left_out[key] = f"its {size} bytes are not all in bytes {place[0]} to {place[1]} of the damaged file"
            return
        what = f"{dtype} {list(shape)}"
        source = FileBytes(entry.described.path, size, what, entry, place[0]) if size else None
        level.leaves[key] = leaf_of(source, dtype, shape)


def _rows(meta: Mapping[str, Any], batch: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The values of a NonTensorStack, whose members are numbered."""
    dim = int(meta["cls_metadata"]["stack_dim"])
    inner = (*batch[:dim], *batch[dim + 1 :])
    single = meta.get("non_tensors", {})
    found = []
    for number in range(len(single) + len([key for key in meta if key not in _OWN_NAMES])):
        key = str(number)
        found.append(scalar_array(single[key][0]) if key in single else _rows(meta[key], inner))
    return stacked_rows(found, inner, dim)


def _class_name(cls: str) -> str | None:
    return cls.removeprefix("<class '").removesuffix("'>") if cls.startswith("<class '") else None
