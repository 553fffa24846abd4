"""The ``meta.json`` files of a memory-mapped tensordict, and what they mean, level by level.

They are read here and not by ``TensorDict.load_memmap``, which raises for the whole store where one entry has a dtype that
it cannot load (float8), a class that is not imported, or a pickle, and which maps every file. Nothing here imports a class
that a store names, and nothing is unpickled without being asked for. Sources: ``_td.py``, ``_lazy.py`` and
``tensorclass.py`` of tensordict 0.15.3.
"""

from __future__ import annotations

import math
import os
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ...core.metadata import Size, checked, scalar_array, stacked_array
from ...core.model import DEEPEST_GROUP, MOST_GROUPS
from ...core.values import CODE_DTYPES
from ..identity import Described
from ..raw.arrays import RawArray
from .files import Location, Noted, TensorEntry, bytes_of, file_stem, read_json, read_small, size_of, stem_in
from .levels import Level, stack_shape, stacked_levels

META = "meta.json"
CLASS_NAME = "_tensorclass"
"""Where this package keeps the name of a tensorclass in ``meta.json``; tensordict minds only objects there."""
BYTES = "_bytes"
"""Where it keeps a list of the entries of bytes, which are written as text: ``[key, dtype]``."""
LOST_NAMES = ("shape", "device", "_type")
"""Keys that ``meta.json`` has a use of its own for: tensordict loses such entries without a word (measured, 0.15.3)."""
_PLAIN_DTYPES = frozenset(
    "bool uint8 int8 int16 int32 int64 float16 float32 float64 complex64 complex128 uint16 uint32 uint64".split()
)
_PICKLED = "it is a pickled Python object, and loading a pickle can run any code. Pass allow_pickle=True if you trust the store"
_SLASH = "its key has a '/', and '/' separates nested keys in a Dataset; rename it with td.rename_key_(...), and save it again"
_EMPTY = "its key is empty, and no variable has such a name; rename it with td.rename_key_(...), and save it again"
_LOST = "so tensordict has written the values and not what they are; rename the key and save it again"
_RAGGED = (
    "it is a nested tensor, whose rows have sizes of their own; pad it with tensordict, or read it with tensordict.load"
)
_KNOWN_VERSION = 1


class Words(msgspec.Struct, rename="_{}".format):
    """The words of a ``meta.json`` that are no entries. An entry may be called so, too: it is an object, and no word.

    Attributes
    ----------
    type, class
        The class of the tensordict, which older versions record otherwise.
    """

    type: str
    class_: str | None = msgspec.field(default=None, name="_class")
    format_version: int = 0
    shape: tuple[Size, ...] | None = msgspec.field(default=None, name="shape")
    names: tuple[str | None, ...] | None = None
    stack_dim: Size | None = msgspec.field(default=None, name="stack_dim")
    stack_dim_name: str | None = msgspec.field(default=None, name="stack_dim_name")
    is_non_tensor: bool = False
    tensorclass: str | None = None
    bytes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Folder:
    """A folder with a ``meta.json``, which has been read.

    Attributes
    ----------
    meta, words
        The whole document, and its description of the folder itself.
    above
        This folder and those above it, by what identifies a folder.
    """

    path: Location
    meta: Mapping[str, Any]
    words: Words
    described: Described
    above: tuple[Any, ...]

    @property
    def class_name(self) -> str:
        """The class that it names, as ``"module.name"``."""
        text = self.words.type if self.words.class_ is None else self.words.class_
        return text.removeprefix("<class '").removesuffix("'>").replace(":", ".")

    def has(self, name: str) -> bool:
        """Whether something of that name, which is no key of the tensordict, is in the folder."""
        return name not in self.meta and (self.path / name).exists()

    @property
    def kind(self) -> str:
        """What is in it, in words."""
        words, own = self.words, self.class_name.rpartition(".")[2]
        if words.stack_dim is not None:
            return "non-tensor rows" if "NonTensor" in own else "lazy stack"
        if self.has("_source"):
            return "a view of another tensordict"
        if self.has("_tensordict"):
            return "non-tensor data" if own == "NonTensorData" else "tensorclass"
        # older versions record the class alone
        if words.is_non_tensor or ("shape" not in self.meta and ("data" in self.meta or self.has("other.pickle"))):
            return "non-tensor data"
        return "an entry that this version does not know" if words.shape is None else "tensordict"


class LevelReader:
    """Reads a tensordict, level by level; pickled values are loaded with `allow_pickle` alone."""

    def __init__(self, *, allow_pickle: bool = False) -> None:
        self._allow_pickle = allow_pickle
        self._count = 0

    def level(self, path: Location) -> Level:
        """The level in a folder, and those below it.

        Raises
        ------
        ValueError
            Where it has no ``meta.json`` of a tensordict.
        """
        folder = self._folder(path)
        if folder is None:
            raise ValueError(f"{path}: expected a memory-mapped tensordict, found no {META} there")
        return self._level(folder)

    def _folder(self, path: Location, parent: Folder | None = None) -> Folder | None:
        file = path / META
        try:
            meta, described = read_json(file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        above = () if parent is None else parent.above
        status = os.stat(path) if isinstance(path, Path) else None
        identity = str(path) if status is None else (status.st_dev, status.st_ino)
        self._count += 1
        if identity in above or len(above) > DEEPEST_GROUP or self._count > MOST_GROUPS:
            raise ValueError(
                f"{path}: it links to a folder above it, or is nested more than {DEEPEST_GROUP} levels deep, or one of more than "
                f"{MOST_GROUPS} folders"
            )
        # the fields of a tensorclass are beside the words
        fields = "_tensordict" not in meta and (path / "_tensordict").exists()
        stated = {
            word: value for word, value in meta.items() if not (isinstance(value, dict) or (fields and word[:1] != "_"))
        }
        words = checked(stated, Words, f"{file}: it is not the metadata of a tensordict")
        if words.format_version > _KNOWN_VERSION:
            raise ValueError(
                f"{file}: it has format version {words.format_version}, expected at most {_KNOWN_VERSION}; a newer tensordict "
                f"wrote it. Update xarray-tensordict"
            )
        return Folder(path, meta, words, described, (*above, identity))

    def _level(self, folder: Folder) -> Level:
        kind, words = folder.kind, folder.words
        if words.stack_dim is not None and kind == "lazy stack":
            levels = [self._level(member) for member in self._members(folder)]
            if not levels:
                raise ValueError(
                    f"{folder.path}: expected a folder '0' with the first member of a lazy stack, found none"
                )
            return stacked_levels(levels, words.stack_dim, words.stack_dim_name)
        if kind == "tensorclass":
            return self._tensorclass(folder)
        if kind != "tensordict" or words.shape is None:
            raise ValueError(
                f"{folder.path / META}: expected a tensordict, found {kind} ({folder.class_name}). tensordict.load(...) may "
                f"know it; save its .contiguous() or .to_tensordict() to open it here"
            )
        if words.names is not None and len(words.names) != len(words.shape):
            raise ValueError(
                f"{folder.path / META}: it has {len(words.shape)} batch sizes ({list(words.shape)}) and {len(words.names)} names "
                f"({list(words.names)}); correct '_names', or delete it"
            )
        level = Level(words.shape, words.names, tensorclass=words.tensorclass)
        for key, entry in folder.meta.items():
            if not isinstance(entry, dict):
                continue
            if not key or "/" in key:
                level.left_out[key] = _SLASH if key else _EMPTY
            elif entry.get("type") is not None:
                self._add_child(level, key, folder)
            else:
                file = folder.path / f"{stem_in(folder.path, key, '.memmap')}.memmap"
                add_leaf(level, key, file, folder.described, (key,), entry)
        for key in LOST_NAMES:
            if (folder.path / f"{key}.memmap").exists() or (folder.path / key / META).exists():
                level.left_out[key] = f"{META} has a use of its own for the word {key!r}, {_LOST}"
        return level

    def _add_child(self, level: Level, key: str, folder: Folder) -> None:
        try:
            child = self._folder(folder.path / stem_in(folder.path, key, ""), folder)
            if child is None:
                level.left_out[key] = f"its folder {file_stem(key)} has no {META}"
            elif child.kind.startswith("non-tensor"):
                value = self._value(child, level.batch or ())
                level.add_value(key, _as_bytes(value, dict(folder.words.bytes).get(key)))
            elif child.kind.startswith("a view"):
                level.left_out[key] = f"it is {child.kind} ({child.class_name}); save its .contiguous() instead"
            else:
                level.children[key] = self._level(child)
        except PermissionError as error:
            level.left_out[key] = str(error)
        except (ValueError, OSError) as error:
            level.left_out[key] = f"it cannot be read: {error}"

    def _tensorclass(self, folder: Folder) -> Level:
        inner = self._folder(folder.path / "_tensordict", folder)
        if inner is None:
            raise ValueError(f"{folder.path}: its folder _tensordict has no {META}")
        level = self._level(inner)
        level.tensorclass = level.tensorclass or folder.class_name
        fields = {key: value for key, value in folder.meta.items() if key not in ("_type", "_class", "_format_version")}
        if folder.has("other.pickle"):
            try:
                fields.update(self._unpickled(folder.path / "other.pickle"))
            except PermissionError as error:
                level.left_out["other.pickle"] = f"fields of {level.tensorclass}: {error}"
        for key, value in fields.items():
            if not key or "/" in key:
                level.left_out[key] = _SLASH if key else _EMPTY
            elif key in level.arrays or key in level.children:
                level.left_out[key] = f"{folder.path / META} has a field of that name beside the entry, which is shown"
            else:
                level.add_value(key, scalar_array(value))
        return level

    # non-tensor data

    def _value(self, folder: Folder, batch: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """The value of an entry: one for all, or one for each row.

        Raises
        ------
        PermissionError
            For a pickle without ``allow_pickle=True``.
        """
        meta, dim = folder.meta, folder.words.stack_dim
        if dim is None:
            return scalar_array(
                meta["data"] if "data" in meta else self._unpickled(folder.path / "other.pickle")["data"]
            )
        data = meta.get("data")
        if data is None:
            inner = (*batch[:dim], *batch[dim + 1 :])
            data = [self._value(member, inner).tolist() for member in self._members(folder)]
        elif data == "pickle.pkl":
            data = self._unpickled(folder.path / data)
        if not isinstance(data, list):
            raise ValueError(  # noqa: TRY004 - the content of a store is no argument
                f"{folder.path / META}: expected rows or 'pickle.pkl' as 'data', found {data!r:.80}"
            )
        return stacked_array(data, stack_shape(data, batch))

    def _unpickled(self, file: Location) -> Any:
        if not self._allow_pickle:
            raise PermissionError(_PICKLED)
        content = read_small(file)
        try:
            return pickle.loads(content)  # noqa: S301 - only with allow_pickle=True
        except Exception as error:  # it runs code of the classes that are pickled
            raise ValueError(f"{file}: the pickle cannot be loaded ({type(error).__name__}: {error})") from error

    def _members(self, folder: Folder) -> list[Folder]:
        """The members of a lazy stack."""
        members: list[Folder] = []
        while (folder.path / str(len(members))).exists():
            path = folder.path / str(len(members))
            member = self._folder(path, folder)
            if member is None:
                raise ValueError(f"{path}: a member of a lazy stack has no {META}")
            members.append(member)
        return members


def add_leaf(
    level: Level, key: str, file: Location, described: Described, keys: tuple[str, ...], entry: object
) -> None:
    """Add a tensor whose bytes are in `file`; its description, `entry`, stands at `keys` of `described`."""
    try:
        noted = Noted(described, keys, checked(entry, TensorEntry, "its metadata are malformed"))
        size = _checked_size(noted.stated, file)
    except ValueError as error:
        level.left_out[key] = str(error)
        return
    dtype = noted.stated.dtype.removeprefix("torch.")
    array = RawArray(bytes_of(file, size, noted), np.dtype(CODE_DTYPES.get(dtype, dtype)), noted.stated.shape)
    level.add_tensor(key, array, dtype if dtype in CODE_DTYPES else None)


def _checked_size(entry: TensorEntry, file: Location) -> int:
    """How many bytes a tensor has.

    Raises
    ------
    ValueError
        Where numpy has no such dtype, or they are not in the file.
    """
    dtype = entry.dtype.removeprefix("torch.")
    if entry.is_nested:
        raise ValueError(_RAGGED)
    if dtype not in _PLAIN_DTYPES and dtype not in CODE_DTYPES:
        raise ValueError(f"its dtype torch.{dtype} has no twin in numpy, nor a wider one")
    itemsize = np.dtype(CODE_DTYPES.get(dtype, dtype)).itemsize
    if math.prod(filter(None, entry.shape)) * itemsize > sys.maxsize:
        raise ValueError(f"no array can have the shape {list(entry.shape)}")
    size = math.prod(entry.shape) * itemsize
    if size:  # otherwise there is no file
        try:
            found = size_of(file)
        except FileNotFoundError:
            raise ValueError(f"its file {file.name} is missing") from None
        if found < size:
            raise ValueError(
                f"its file {file.name} has {found} bytes, and {META} says that it holds {entry}, which is {size} bytes; it was "
                f"truncated, or {META} is of another version of the store: restore it"
            )
    return size


def _as_bytes(value: np.ndarray[Any, Any], dtype: str | None) -> np.ndarray[Any, Any]:
    """Bytes that were written as text (see :data:`BYTES`), as they were."""
    if dtype is None:
        return value
    encoded = np.empty(value.shape, object)
    for index in np.ndindex(value.shape):
        encoded[index] = _encoded(value[index])
    is_flat = all(isinstance(item, bytes) for item in encoded.flat)
    return encoded.astype(dtype) if is_flat else encoded


def _encoded(text: Any) -> Any:
    return list(map(_encoded, text)) if isinstance(text, list) else str(text).encode("utf-8", "surrogateescape")
