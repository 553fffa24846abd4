"""The ``meta.json`` files of a memory-mapped tensordict, and what they mean, level by level.

Sources: ``_td.py``, ``_lazy.py``, ``tensorclass.py`` and ``_utils_key_json.py`` of tensordict 0.15.3. Nothing here
imports a class that a store names, and nothing is unpickled without being asked for.
"""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...core.metadata import scalar_array, stacked_array
from ...core.model import Key
from ..array_wrappers import WidenedArray
from ..fingerprint import Described, Entry, said_of
from ..raw.arrays import RawArray
from .arrays import CODE_DTYPES, PLAIN_DTYPES, StackedArray
from .files import Files

META = "meta.json"
PICKLED = (
    "it is a pickled Python object, and loading a pickle can run any code. Pass allow_pickle=True if you trust the "
    "store"
)
_KNOWN_VERSION = 1
_OWN_NAMES = frozenset({"_type", "_class", "_format_version"})
CLASS_NAME = "_tensorclass"
"""Where this package keeps the name of a tensorclass in ``meta.json``; tensordict minds only objects there."""
LOST_NAMES = ("shape", "device", "_type")
"""Keys that ``meta.json`` has a use of its own for: tensordict loses such entries without a word (measured, 0.15.3)."""
_UNSAFE = {*'/<>:"|?*\\ \0%', *map(chr, range(32)), chr(127)}


@dataclass(frozen=True)
class Leaf:
    """A tensor: a lazy array, and the torch dtype that its values are widened from."""

    data: Any
    torch_dtype: str | None = None


@dataclass
class Level:
    """One level of a tensordict.

    Attributes
    ----------
    batch
        The batch size; None for the members of a lazy stack that cannot be stacked, which are `children` then.
    names
        The names of the batch dims.
    leaves
        The tensors.
    values
        Non-tensor entries: an array of 0 dimensions, or one element for each row.
    children
        The nested tensordicts.
    left_out
        What cannot be shown, with the reason.
    tensorclass
        The class, if it was not a plain tensordict: ``"module:name"``.
    ragged
        How the members of a lazy stack differ, which are `children` for this reason.
    """

    batch: tuple[int, ...] | None = ()
    names: tuple[str | None, ...] | None = None
    leaves: dict[str, Leaf] = field(default_factory=dict)
    values: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    children: dict[str, Node] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    tensorclass: str | None = None
    ragged: str | None = None


@dataclass(frozen=True)
class Folder:
    """A folder with a ``meta.json``, which has been read; the rows of what is in it are trimmed where `trimmed`."""

    path: Key
    meta: Mapping[str, Any]
    described: Described
    trimmed: bool = True


@dataclass(frozen=True)
class Stack:
    """Tensordicts stacked along a dim."""

    members: tuple[Node, ...]
    dim: int
    name: str | None = None


Node = Folder | Stack | Level


def file_stem(key: str) -> str:
    """How tensordict calls the file (or folder) of a key.

    Examples
    --------
    >>> file_stem("wind speed/10m"), file_stem(".."), file_stem("")
    ('wind%20speed%2F10m', '%2E%2E', '%')
    """
    if not key:
        return "%"
    if key in (".", ".."):
        return "%2E" * len(key)
    return "".join(f"%{ord(char):02X}" if char in _UNSAFE else char for char in key)


def _stems(key: str) -> list[str]:
    """The encoded name, and the bare one that older versions wrote, where it names something in the folder."""
    stems = [file_stem(key)]
    if key not in ("", ".", "..") and not {"/", "\\", "\0"} & set(key):
        stems.append(key)
    return stems


class LevelReader:
    """Reads levels, each when it is asked for.

    Parameters
    ----------
    files
        Where they are.
    allow_pickle
        Whether pickled values are loaded.
    trim
        How many rows there is room for, and how many are shown.
    """

    def __init__(self, files: Files, *, allow_pickle: bool = False, trim: tuple[int, int] | None = None) -> None:
        self._files = files
        self._allow_pickle = allow_pickle
        self._trim = trim

    def root(self, path: Key = ()) -> Folder:
        """The folder at `path`.

        Raises
        ------
        ValueError
            Where it has no ``meta.json`` of tensordict.
        """
        folder = self._folder(path)
        if folder is None:
            raise ValueError(f"{self._files.where(path)}: expected a memory-mapped tensordict, found no {META} there")
        return folder

    def level(self, node: Node) -> Level:
        """Read one level; the levels below it are read when they are asked for."""
        if isinstance(node, Level):
            return node
        if isinstance(node, Stack):
            return self._stacked(node)
        kind = self._kind(node)
        if kind == "lazy stack":
            members = self._members(node)
            return self._stacked(Stack(members, node.meta["stack_dim"], node.meta.get("stack_dim_name")))
        if kind == "tensorclass":
            return self._tensorclass(node)
        if kind != "tensordict":
            raise ValueError(
                f"{self._files.where((*node.path, META))}: expected a tensordict, found {kind} "
                f"({_class_name(node.meta)}). "
                f"tensordict.load(...) may know it; save its .contiguous() or .to_tensordict() to open it here"
            )
        return self._tensordict(node)

    def add_leaf(self, level: Level, key: str, entry: Mapping[str, Any], path: Key, source: Entry) -> None:
        """Add a tensor whose file is known; `entry`, which comes from `source`, has its ``dtype`` and ``shape``."""
        folder = Folder(path[:-1], {}, source.described)
        stem = path[-1].removesuffix(".memmap")
        there = self._files.names(folder.path)
        self._add(level, key, entry, folder, stem if path[-1] in there else None, source)

    # what a folder is

    def _folder(self, path: Key, *, trimmed: bool = True) -> Folder | None:
        where = self._files.where((*path, META))
        described = self._files.described((*path, META))
        text = self._files.read((*path, META))
        if text is None or described is None:
            return None
        try:
            meta = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{where}: it is no JSON ({error}); it is damaged, or not of tensordict") from error
        if not isinstance(meta, dict) or "_type" not in meta:
            raise ValueError(
                f"{where}: expected the metadata of a tensordict, found JSON without '_type'; another program wrote it"
            )
        version = meta.get("_format_version", 0)
        if isinstance(version, int) and version > _KNOWN_VERSION:
            raise ValueError(
                f"{where}: it has format version {version}, expected at most {_KNOWN_VERSION}; a newer tensordict "
                f"wrote it. "
                f"Update xarray-tensordict"
            )
        return Folder(path, meta, described, trimmed)

    def _kind(self, folder: Folder) -> str:
        meta = folder.meta
        if meta.get("_is_non_tensor") is True:
            return "non-tensor data"
        if isinstance(meta.get("stack_dim"), int):
            return "non-tensor rows" if "NonTensor" in _class_name(meta) else "lazy stack"
        names = self._files.names(folder.path)
        if "_source" in names and "_source" not in meta:
            return "a view of another tensordict"
        if "_tensordict" in names and "_tensordict" not in meta:
            return "tensorclass"
        return "tensordict"

    # tensordicts

    def _tensordict(self, folder: Folder) -> Level:
        meta, names = folder.meta, folder.meta.get("_names")
        batch = self._rows(tuple(meta.get("shape", ())), folder)
        level = Level(batch, tuple(names) if isinstance(names, list) else None)
        level.tensorclass = meta.get(CLASS_NAME) if isinstance(meta.get(CLASS_NAME), str) else None
        there = self._files.names(folder.path)
        for key, entry in meta.items():
            if not isinstance(entry, dict):
                continue
            if not key or "/" in key:
                said = "is empty" if not key else "has a '/'"
                level.left_out[key] = (
                    f"its key {said}, and '/' separates nested keys in a Dataset; rename it with tensordict"
                )
            elif entry.get("type") is not None:
                self._add_child(level, key, folder)
            elif entry.get("dtype") is not None and entry.get("shape") is not None:
                stem = next((stem for stem in _stems(key) if f"{stem}.memmap" in there), None)
                self._add(level, key, entry, folder, stem, Entry(folder.described, (key,), said_of(entry)))
        for key in LOST_NAMES:
            if f"{key}.memmap" in there or (key in there and META in self._files.names((*folder.path, key))):
                level.left_out[key] = (
                    f"{META} has a use of its own for the word {key!r}, so tensordict has written the values and not what "
                    f"they are; rename the key and save it again"
                )
        return level

    def _add(
        self, level: Level, key: str, entry: Mapping[str, Any], folder: Folder, stem: str | None, source: Entry
    ) -> None:
        dtype, stored = str(entry["dtype"]).removeprefix("torch."), tuple(entry["shape"])
        if entry.get("is_nested"):
            level.left_out[key] = (
                "it is a nested tensor, whose rows have sizes of their own; pad it with tensordict, or read it with "
                "tensordict.load"
            )
        elif dtype not in PLAIN_DTYPES and dtype not in CODE_DTYPES:
            level.left_out[key] = f"its dtype torch.{dtype} has no twin in numpy, nor a wider one"
        elif not all(isinstance(size, int) and size >= 0 for size in stored):
            level.left_out[key] = f"its shape in {META} is {list(stored)}, which is none"
        elif stem is None and math.prod(stored):
            level.left_out[key] = f"its file {file_stem(key)}.memmap is missing"
        else:
            path = (*folder.path, f"{stem or file_stem(key)}.memmap")
            size = math.prod(stored) * np.dtype(CODE_DTYPES.get(dtype, dtype)).itemsize
            data = self._files.array(path, size, f"{dtype} {list(stored)}", source) if size else None
            level.leaves[key] = leaf_of(data, dtype, self._rows(stored, folder))

    def _rows(self, shape: tuple[int, ...], folder: Folder) -> tuple[int, ...]:
        if self._trim is None or not folder.trimmed or not shape or shape[0] != self._trim[0]:
            return shape
        return (self._trim[1], *shape[1:])

    def _add_child(self, level: Level, key: str, folder: Folder) -> None:
        try:
            found = (self._folder((*folder.path, stem), trimmed=folder.trimmed) for stem in _stems(key))
            child = next((child for child in found if child is not None), None)
            if child is None:
                level.left_out[key] = f"its folder {file_stem(key)} has no {META}"
                return
            kind = self._kind(child)
            if kind.startswith("non-tensor"):
                level.values[key] = self._value(child, level.batch or ())
            elif kind.startswith("a view"):
                level.left_out[key] = f"it is {kind} ({_class_name(child.meta)}); save its .contiguous() instead"
            else:
                level.children[key] = child
        except PermissionError as error:
            level.left_out[key] = str(error)
        except ValueError as error:
            level.left_out[key] = f"it cannot be read: {error}"

    # tensorclasses

    def _tensorclass(self, folder: Folder) -> Level:
        inner = self._folder((*folder.path, "_tensordict"), trimmed=folder.trimmed)
        if inner is None:
            raise ValueError(f"{self._files.where(folder.path)}: its folder _tensordict has no {META}")
        level = self.level(inner)
        level.tensorclass = level.tensorclass or _class_name(folder.meta).replace(":", ".")
        for key, value in folder.meta.items():
            if key not in _OWN_NAMES:
                level.values[key] = scalar_array(value)
        pickled = self._files.read((*folder.path, "other.pickle"))
        if pickled is not None and self._allow_pickle:
            loaded = pickle.loads(pickled)  # noqa: S301 - only with allow_pickle=True
            level.values.update({key: scalar_array(value) for key, value in loaded.items()})
        elif pickled is not None:
            level.left_out["other.pickle"] = f"fields of {level.tensorclass}: {PICKLED}"
        return level

    # non-tensor data

    def _value(self, folder: Folder, batch: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """The value of an entry: one for all, or one for each row.

        Raises
        ------
        PermissionError
            For a pickle that nobody asked to load.
        """
        meta = folder.meta
        if not isinstance(meta.get("stack_dim"), int):
            if "data" in meta:
                return scalar_array(meta["data"])
            return scalar_array(self._unpickled((*folder.path, "other.pickle"))["data"])
        data = meta.get("data")
        if data is None:
            members = self._members(folder)
            found = [self._value(member, _without(batch, meta["stack_dim"])) for member in members]
            data = [value.item() if not value.ndim else value.tolist() for value in found]
        elif isinstance(data, str):
            if data != "pickle.pkl":
                where = self._files.where((*folder.path, META))
                raise ValueError(f"{where}: expected rows or 'pickle.pkl' as 'data', found {data!r}")
            data = self._unpickled((*folder.path, data))
        if self._trim is not None and folder.trimmed and len(data) == self._trim[0]:
            data = data[: self._trim[1]]
        return stacked_array(data, stack_shape(data, batch))

    def _unpickled(self, path: Key) -> Any:
        if not self._allow_pickle:
            raise PermissionError(PICKLED)
        pickled = self._files.read(path)
        if pickled is None:
            raise ValueError(f"{self._files.where(path)}: it is missing")
        return pickle.loads(pickled)  # noqa: S301 - only with allow_pickle=True

    # lazy stacks

    def _members(self, folder: Folder) -> tuple[Folder, ...]:
        dim, names = folder.meta["stack_dim"], self._files.names(folder.path)
        trimmed = folder.trimmed and dim != 0
        members: list[Folder] = []
        while str(len(members)) in names:
            path = (*folder.path, str(len(members)))
            member = self._folder(path, trimmed=trimmed)
            if member is None:
                raise ValueError(f"{self._files.where(path)}: a member of a lazy stack has no {META}")
            members.append(member)
        if self._trim is not None and folder.trimmed and dim == 0 and len(members) == self._trim[0]:
            del members[self._trim[1] :]
        return tuple(members)

    def _stacked(self, stack: Stack) -> Level:
        levels = [self.level(member) for member in stack.members]
        if not levels:
            return Level(batch=None)
        first = levels[0]
        ragged = next(filter(None, (_difference(first, level, number) for number, level in enumerate(levels))), None)
        if ragged is not None:
            children: dict[str, Node] = {str(number): level for number, level in enumerate(levels)}
            return Level(None, children=children, ragged=ragged)
        assert first.batch is not None
        dim = stack.dim
        batch = (*first.batch[:dim], len(levels), *first.batch[dim:])
        names = None
        if first.names is not None or stack.name is not None:
            inner = first.names or (None,) * len(first.batch)
            names = (*inner[:dim], stack.name, *inner[dim:])
        level = Level(batch, names, tensorclass=first.tensorclass)
        for other in levels:
            level.left_out.update(other.left_out)
        for key, leaf in first.leaves.items():
            level.leaves[key] = Leaf(StackedArray([other.leaves[key].data for other in levels], dim), leaf.torch_dtype)
        for key in first.values:
            if key not in level.left_out:
                level.values[key] = stacked_values([other.values[key] for other in levels], first.batch, dim)
        for key in first.children:
            level.children[key] = Stack(tuple(other.children[key] for other in levels), dim)
        return level


def leaf_of(source: Any, dtype: str, shape: tuple[int, ...]) -> Leaf:
    """The tensor of a torch dtype whose bytes are `source`; None for a tensor without elements."""
    codes = np.dtype(CODE_DTYPES.get(dtype, dtype))
    array = RawArray(_Nothing() if source is None else source, np.dtype(codes), shape)
    return Leaf(WidenedArray(array, dtype), dtype) if dtype in CODE_DTYPES else Leaf(array)


class _Nothing:
    """The bytes of an array without elements, for which tensordict writes no file."""

    def view(self, start: int, stop: int) -> Any:
        return np.empty(stop - start, np.uint8)

    def rows(self, starts: Any, out: Any, kept: Any = None) -> bool:
        return True

    def private(self) -> Any:
        return np.empty(0, np.uint8)


def _class_name(meta: Mapping[str, Any]) -> str:
    """The class that a ``meta.json`` names, as ``"module:name"`` or ``"module.name"``."""
    found = meta.get("_class")
    if isinstance(found, str):
        return found
    return str(meta.get("_type", "")).removeprefix("<class '").removesuffix("'>")


def _without(batch: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*batch[:axis], *batch[axis + 1 :])


def stack_shape(data: Any, batch: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a NonTensorStack, stored as nested lists: the batch, or as deep as they are equally long."""
    if 0 in batch:
        return batch
    shape: tuple[int, ...] = ()
    level = [data]
    while level and all(isinstance(item, list) and len(item) == len(level[0]) for item in level):
        shape = (*shape, len(level[0]))
        level = [part for item in level for part in item]
    return batch if batch and shape[: len(batch)] == batch else shape


def _difference(first: Level, level: Level, number: int) -> str | None:
    """How a member of a lazy stack differs from the first one, in words."""
    if first.batch is None or level.batch is None:
        return level.ragged or first.ragged or "a member is an empty stack"
    for key in sorted({*_described(first), *_described(level)}):
        one, other = _described(first).get(key, "absent"), _described(level).get(key, "absent")
        if one != other:
            return f"{key!r} is {one} in member 0 and {other} in member {number}"
    one, other = (f"of batch {list(found.batch or ())} {list(found.names or ())}" for found in (first, level))
    return f"it is {one} in member 0 and {other} in member {number}" if one != other else None


def _described(level: Level) -> dict[str, str]:
    tensors = {
        key: f"{leaf.torch_dtype or leaf.data.dtype} {list(leaf.data.shape)}" for key, leaf in level.leaves.items()
    }
    values = dict.fromkeys([*level.values, *level.left_out], "a non-tensor entry")
    return {**tensors, **values, **dict.fromkeys(level.children, "a nested tensordict")}


def stacked_values(values: list[np.ndarray[Any, Any]], batch: tuple[int, ...], dim: int) -> np.ndarray[Any, Any]:
    """The values of the members of a lazy stack: the one they all hold, or one for each row."""
    first = values[0]
    if not any(value.ndim for value in values) and all(_same(value.item(), first.item()) for value in values):
        return first
    return stacked_rows(values, batch, dim)


def stacked_rows(values: list[np.ndarray[Any, Any]], batch: tuple[int, ...], dim: int) -> np.ndarray[Any, Any]:
    """Values of members of the batch size `batch`, one for each or one for each row, stacked along a new axis `dim`."""
    rows = []
    for value in values:
        held = np.empty(batch, object)
        if value.shape == batch and value.ndim:
            held[...] = value.astype(object)
        else:
            held.fill(value.item() if not value.ndim else value.tolist())
        rows.append(held)
    stacked = np.stack(rows, axis=dim)
    return stacked_array(stacked.tolist(), stacked.shape)


def _same(one: Any, other: Any) -> bool:
    from ...core.objects import same_object

    return same_object(one, other)
