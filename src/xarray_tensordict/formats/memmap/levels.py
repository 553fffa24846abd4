"""The ``meta.json`` files of a memory-mapped tensordict, and what they mean, level by level.

They are read here and not by ``TensorDict.load_memmap``, which raises for the whole store where one entry has a dtype that
it cannot load (float8), a class that is not imported, or a pickle, and which maps every file. Nothing here imports a class
that a store names, and nothing is unpickled without being asked for. Sources: ``_td.py``, ``_lazy.py`` and
``tensorclass.py`` of tensordict 0.15.3.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from xarray.backends.common import BackendArray
from xarray.core import indexing

from ...core.dtypes import CODE_DTYPES
from ...core.metadata import scalar_array, stacked_array
from ...core.model import StoredArray
from ..array_wrappers import WidenedArray, read_outer
from ..fingerprint import Described
from ..raw.arrays import RawArray
from .files import Location, Noted, bytes_of, file_stem, read_json, read_small, said_of, stem_in

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
_SLASH = "and '/' separates nested keys in a Dataset; rename it with tensordict"
_LOST = "so tensordict has written the values and not what they are; rename the key and save it again"
_RAGGED = (
    "it is a nested tensor, whose rows have sizes of their own; pad it with tensordict, or read it with tensordict.load"
)
_KNOWN_VERSION = 1
_DEEPEST = 100


@dataclass
class Level:
    """One level of a tensordict.

    Attributes
    ----------
    batch
        The batch size; None for the members of a lazy stack that cannot be stacked, which are `children` then.
    names
        The names of the batch dims.
    arrays
        The tensors, and the non-tensor entries: an array of 0 dimensions, or one element for each row.
    children
        The nested tensordicts.
    left_out
        What cannot be shown, with the reason.
    tensorclass
        The class, if it was not a plain tensordict: ``"module.name"``.
    ragged
        How the members of a lazy stack differ, which are `children` for this reason.
    """

    batch: tuple[int, ...] | None = ()
    names: tuple[str | None, ...] | None = None
    arrays: dict[str, StoredArray] = field(default_factory=dict)
    children: dict[str, Level] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    tensorclass: str | None = None
    ragged: str | None = None

    def add_value(self, name: str, value: np.ndarray[Any, Any]) -> None:
        """Add a non-tensor entry."""
        dims = (None,) * value.ndim
        self.arrays[name] = StoredArray(name, value, dims, role="coord", non_tensor=True, raw=value.ndim > 0)

    def add_tensor(self, name: str, data: Any, torch_dtype: str | None) -> None:
        """Add a tensor: a lazy array, and the torch dtype that its values are widened from."""
        encoding = {} if torch_dtype is None else {"torch_dtype": torch_dtype}
        shape = tuple(data.shape)
        # a compressed entry is decompressed from its beginning for each row
        pieces = shape if getattr(data, "is_compressed", False) else None
        self.arrays[name] = StoredArray(name, data, (None,) * len(shape), {}, encoding, raw=bool(shape), pieces=pieces)


@dataclass(frozen=True)
class Folder:
    """A folder with a ``meta.json``, which has been read; the rows of what is in it are trimmed where `trimmed`."""

    path: Location
    meta: Mapping[str, Any]
    described: Described
    trimmed: bool = True

    @property
    def class_name(self) -> str:
        """The class that it names, as ``"module.name"``."""
        found = self.meta.get("_class")
        text = found if isinstance(found, str) else str(self.meta.get("_type", ""))
        return text.removeprefix("<class '").removesuffix("'>").replace(":", ".")

    def has(self, name: str) -> bool:
        """Whether something of that name, which is no key of the tensordict, is in the folder."""
        return name not in self.meta and (self.path / name).exists()

    @property
    def kind(self) -> str:
        """What is in it, in words."""
        meta, own = self.meta, self.class_name.rpartition(".")[2]
        if isinstance(meta.get("stack_dim"), int):
            return "non-tensor rows" if "NonTensor" in own else "lazy stack"
        if self.has("_source"):
            return "a view of another tensordict"
        if self.has("_tensordict"):
            return "non-tensor data" if own == "NonTensorData" else "tensorclass"
        # older versions say nothing but the class
        if meta.get("_is_non_tensor") is True or ("shape" not in meta and ("data" in meta or self.has("other.pickle"))):
            return "non-tensor data"
        return "tensordict" if isinstance(meta.get("shape"), list) else "an entry that this version does not know"


class LevelReader:
    """Reads a tensordict, level by level.

    Parameters
    ----------
    allow_pickle
        Whether pickled values are loaded.
    trim
        How many rows there is room for, and how many are shown.
    """

    def __init__(self, *, allow_pickle: bool = False, trim: tuple[int, int] | None = None) -> None:
        self._allow_pickle = allow_pickle
        self._trim = trim

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

    def _folder(self, path: Location, *, trimmed: bool = True) -> Folder | None:
        file = path / META
        try:
            meta, described = read_json(file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if str(path).count("/") > _DEEPEST:
            raise ValueError(
                f"{file}: it is nested more than {_DEEPEST} levels deep; does a folder link to one above it?"
            )
        if not isinstance(meta, dict) or "_type" not in meta:
            raise ValueError(
                f"{file}: expected the metadata of a tensordict, found JSON without '_type'; another program wrote it"
            )
        version = meta.get("_format_version", 0)
        if isinstance(version, int) and version > _KNOWN_VERSION:
            raise ValueError(
                f"{file}: it has format version {version}, expected at most {_KNOWN_VERSION}; a newer tensordict wrote it. "
                f"Update xarray-tensordict"
            )
        return Folder(path, meta, described, trimmed)

    def _level(self, folder: Folder) -> Level:
        kind = folder.kind
        if kind == "lazy stack":
            levels = [self._level(member) for member in self._members(folder)]
            return _stacked(levels, folder.meta["stack_dim"], folder.meta.get("stack_dim_name"))
        if kind == "tensorclass":
            return self._tensorclass(folder)
        if kind != "tensordict":
            raise ValueError(
                f"{folder.path / META}: expected a tensordict, found {kind} ({folder.class_name}). tensordict.load(...) may "
                f"know it; save its .contiguous() or .to_tensordict() to open it here"
            )
        names = folder.meta.get("_names")
        level = Level(
            self._rows(tuple(folder.meta["shape"]), folder), tuple(names) if isinstance(names, list) else None
        )
        level.tensorclass = folder.meta.get(CLASS_NAME) if isinstance(folder.meta.get(CLASS_NAME), str) else None
        for key, entry in folder.meta.items():
            if not isinstance(entry, dict):
                continue
            if not key or "/" in key:
                found = "has a '/'" if key else "is empty"
                level.left_out[key] = f"its key {found}, {_SLASH}"
            elif entry.get("type") is not None:
                self._add_child(level, key, folder)
            elif entry.get("dtype") is not None and entry.get("shape") is not None:
                file = folder.path / f"{stem_in(folder.path, key, '.memmap')}.memmap"
                self.add_leaf(level, key, entry, file, Noted(folder.described, (key,), said_of(entry)), folder)
        for key in LOST_NAMES:
            if (folder.path / f"{key}.memmap").exists() or (folder.path / key / META).exists():
                level.left_out[key] = f"{META} has a use of its own for the word {key!r}, {_LOST}"
        return level

    def add_leaf(
        self,
        level: Level,
        key: str,
        entry: Mapping[str, Any],
        file: Location,
        source: Noted,
        folder: Folder | None = None,
    ) -> None:
        """Add a tensor, of which `entry` says its dtype and shape."""
        dtype, shape = str(entry["dtype"]).removeprefix("torch."), entry["shape"]
        if entry.get("is_nested"):
            level.left_out[key] = _RAGGED
        elif dtype not in _PLAIN_DTYPES and dtype not in CODE_DTYPES:
            level.left_out[key] = f"its dtype torch.{dtype} has no twin in numpy, nor a wider one"
        elif not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
            level.left_out[key] = f"its shape in {META} is {shape!r:.80}, which is none"
        elif math.prod(shape) and not file.exists():
            level.left_out[key] = f"its file {file.name} is missing"
        else:
            codes = np.dtype(CODE_DTYPES.get(dtype, dtype))
            size = math.prod(shape) * codes.itemsize
            data = bytes_of(file, size, f"{dtype} {shape}", source)
            array = RawArray(data, codes, self._rows(tuple(shape), folder))
            widened = dtype in CODE_DTYPES
            level.add_tensor(key, WidenedArray(array, dtype) if widened else array, dtype if widened else None)

    def _rows(self, shape: tuple[int, ...], folder: Folder | None) -> tuple[int, ...]:
        is_trimmed = folder is None or folder.trimmed
        if self._trim is None or not is_trimmed or not shape or shape[0] != self._trim[0]:
            return shape
        return (self._trim[1], *shape[1:])

    def _add_child(self, level: Level, key: str, folder: Folder) -> None:
        try:
            child = self._folder(folder.path / stem_in(folder.path, key, ""), trimmed=folder.trimmed)
            if child is None:
                level.left_out[key] = f"its folder {file_stem(key)} has no {META}"
            elif child.kind.startswith("non-tensor"):
                value = self._value(child, level.batch or ())
                level.add_value(key, _as_bytes(value, folder.meta.get(BYTES), key))
            elif child.kind.startswith("a view"):
                level.left_out[key] = f"it is {child.kind} ({child.class_name}); save its .contiguous() instead"
            else:
                level.children[key] = self._level(child)
        except PermissionError as error:
            level.left_out[key] = str(error)
        except (ValueError, OSError) as error:
            level.left_out[key] = f"it cannot be read: {error}"

    def _tensorclass(self, folder: Folder) -> Level:
        inner = self._folder(folder.path / "_tensordict", trimmed=folder.trimmed)
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
            level.add_value(key, scalar_array(value))
        return level

    # non-tensor data

    def _value(self, folder: Folder, batch: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """The value of an entry: one for all, or one for each row.

        Raises
        ------
        PermissionError
            For a pickle that nobody asked to load.
        """
        meta, dim = folder.meta, folder.meta.get("stack_dim")
        if not isinstance(dim, int):
            return scalar_array(
                meta["data"] if "data" in meta else self._unpickled(folder.path / "other.pickle")["data"]
            )
        data = meta.get("data")
        if data is None:
            inner = (*batch[:dim], *batch[dim + 1 :])
            data = [self._value(member, inner).tolist() for member in self._members(folder)]
        elif isinstance(data, str):
            if data != "pickle.pkl":
                raise ValueError(f"{folder.path / META}: expected rows or 'pickle.pkl' as 'data', found {data!r}")
            data = self._unpickled(folder.path / data)
        if self._trim is not None and folder.trimmed and len(data) == self._trim[0]:
            data = data[: self._trim[1]]
        return stacked_array(data, stack_shape(data, batch))

    def _unpickled(self, file: Location) -> Any:
        if not self._allow_pickle:
            raise PermissionError(_PICKLED)
        return pickle.loads(read_small(file))  # noqa: S301 - only with allow_pickle=True

    def _members(self, folder: Folder) -> list[Folder]:
        """The members of a lazy stack."""
        dim = folder.meta["stack_dim"]
        members: list[Folder] = []
        while (folder.path / str(len(members))).exists():
            path = folder.path / str(len(members))
            member = self._folder(path, trimmed=folder.trimmed and dim != 0)
            if member is None:
                raise ValueError(f"{path}: a member of a lazy stack has no {META}")
            members.append(member)
        is_trimmed = self._trim is not None and folder.trimmed and dim == 0 and len(members) == self._trim[0]
        return members[: self._trim[1]] if is_trimmed and self._trim else members


def _as_bytes(value: np.ndarray[Any, Any], noted: Any, key: str) -> np.ndarray[Any, Any]:
    """Bytes that were written as text (see :data:`BYTES`), as they were."""
    dtype = next((note[1] for note in noted if isinstance(note, list) and note[:1] == [key]), None) if noted else None
    if dtype is None:
        return value
    encoded = np.empty(value.shape, object)
    for index in np.ndindex(value.shape):
        encoded[index] = _encoded(value[index])
    is_flat = all(isinstance(item, bytes) for item in encoded.flat)
    return encoded.astype(dtype) if is_flat else encoded


def _encoded(text: Any) -> Any:
    return list(map(_encoded, text)) if isinstance(text, list) else str(text).encode("utf-8", "surrogateescape")


# -- stacks ------------------------------------------------------------------------------------------------------------


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


def _stacked(levels: list[Level], dim: int, name: str | None = None) -> Level:
    """The members of a lazy stack as one level; as `children` where they differ."""
    if not levels:
        return Level(batch=None)
    first = levels[0]
    ragged = next(filter(None, (_difference(first, level, number) for number, level in enumerate(levels))), None)
    if ragged is not None or first.batch is None:
        return Level(None, children={str(number): level for number, level in enumerate(levels)}, ragged=ragged)
    batch = (*first.batch[:dim], len(levels), *first.batch[dim:])
    inner = first.names or (None,) * len(first.batch)
    has_names = first.names is not None or name is not None
    level = Level(batch, (*inner[:dim], name, *inner[dim:]) if has_names else None, tensorclass=first.tensorclass)
    for other in levels:
        level.left_out.update(other.left_out)
    for key, array in first.arrays.items():
        members = [other.arrays[key].data for other in levels if key in other.arrays]
        if not array.non_tensor:
            level.add_tensor(key, StackedArray(members, dim), array.encoding.get("torch_dtype"))
        elif key not in level.left_out:
            level.add_value(key, _stacked_values(members, first.batch, dim))
    for key in first.children:
        level.children[key] = _stacked([other.children[key] for other in levels], dim)
    return level


def _difference(first: Level, level: Level, number: int) -> str | None:
    """How a member of a lazy stack differs from the first one, in words."""
    if first.batch is None or level.batch is None:
        return level.ragged or first.ragged or "a member is an empty stack"
    one, other = _contents(first), _contents(level)
    for key in sorted({*one, *other}):
        if one.get(key) != other.get(key):
            return f"{key!r} is {one.get(key, 'absent')} in member 0 and {other.get(key, 'absent')} in member {number}"
    first_batch, batch = (f"of batch {list(found.batch or ())} {list(found.names or ())}" for found in (first, level))
    return f"it is {first_batch} in member 0 and {batch} in member {number}" if first_batch != batch else None


def _contents(level: Level) -> dict[str, str]:
    """What the entries of a level are, in words."""
    values = dict.fromkeys([*level.left_out, *level.arrays], "a non-tensor entry")
    tensors = {key: array for key, array in level.arrays.items() if not array.non_tensor}
    dtypes = {key: array.encoding.get("torch_dtype", array.dtype) for key, array in tensors.items()}
    words = {key: f"{dtypes[key]} {list(array.shape)}" for key, array in tensors.items()}
    return {**values, **words, **dict.fromkeys(level.children, "a nested tensordict")}


def _stacked_values(values: list[np.ndarray[Any, Any]], batch: tuple[int, ...], dim: int) -> np.ndarray[Any, Any]:
    """The values of the members of a lazy stack, of batch size `batch`: the one they all hold, or one for each row."""
    from ...core.objects import same_object

    if all(not value.ndim and same_object(value.item(), values[0].item()) for value in values):
        return values[0]
    rows = []
    for value in values:
        held = np.empty(batch, object)
        if value.shape == batch and value.ndim:
            held[...] = value.astype(object)
        else:
            held.fill(value.tolist())
        rows.append(held)
    stacked = np.stack(rows, axis=dim)
    return stacked_array(stacked.tolist(), stacked.shape)


class StackedArray(BackendArray):
    """Arrays of one shape and dtype, stacked along a new axis; only the members that are selected are read."""

    def __init__(self, members: Sequence[Any], axis: int) -> None:
        self._members = list(members)
        self._axis = axis
        shape = tuple(members[0].shape)
        self.dtype = np.dtype(members[0].dtype)
        self.shape = (*shape[:axis], len(self._members), *shape[axis:])

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> Any:
        which, rest = key[self._axis], (*key[: self._axis], *key[self._axis + 1 :])
        if isinstance(which, int | np.integer):
            return read_outer(self._members[int(which)], rest)
        numbers = range(len(self._members))[which] if isinstance(which, slice) else [int(number) for number in which]
        place = sum(not isinstance(part, int | np.integer) for part in key[: self._axis])
        # of no members too: the first one tells the shape
        read = [read_outer(self._members[number], rest) for number in numbers or [0]]
        return np.stack(read, axis=place).take(range(len(numbers)), axis=place)
