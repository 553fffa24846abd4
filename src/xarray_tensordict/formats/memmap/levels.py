"""One level of a memory-mapped tensordict, and the members of a lazy stack as one level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from xarray.core import indexing

from ...core.metadata import stacked_array
from ...core.model import StoredArray
from ...core.values import same_object
from ..array_wrappers import OuterArray, WidenedArray, _Wrapped, read_outer

_MOST_ROWS = 2**24


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
    stack_dim
        The axis along which the members are stacked then.
    """

    batch: tuple[int, ...] | None = ()
    names: tuple[str | None, ...] | None = None
    arrays: dict[str, StoredArray] = field(default_factory=dict)
    children: dict[str, Level] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    tensorclass: str | None = None
    ragged: str | None = None
    stack_dim: int = 0

    def add_value(self, name: str, value: np.ndarray[Any, Any]) -> None:
        """Add a non-tensor entry."""
        dims = (None,) * value.ndim
        self.arrays[name] = StoredArray(name, value, dims, role="coord", non_tensor=True, raw=value.ndim > 0)

    def add_tensor(self, name: str, data: Any, torch_dtype: str | None) -> None:
        """Add a tensor: a lazy array, of the codes of a torch dtype where that is given, whose values are widened."""
        encoding = {} if torch_dtype is None else {"torch_dtype": torch_dtype}
        shape = tuple(data.shape)
        # a compressed entry is decompressed from its beginning for each row
        chunk_shape = shape if getattr(data, "is_compressed", False) else None
        if torch_dtype is not None and data.dtype.kind == "u":
            data = WidenedArray(data, torch_dtype)
        self.arrays[name] = StoredArray(
            name, data, (None,) * len(shape), {}, encoding, raw=bool(shape), chunk_shape=chunk_shape
        )


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


def stacked_levels(levels: list[Level], dim: int, name: str | None = None) -> Level:
    """The members of a lazy stack as one level; as `children` where they differ."""
    first = levels[0]
    if first.batch is not None and dim > len(first.batch):
        raise ValueError(f"expected a stack along an axis up to {len(first.batch)}, found one along axis {dim}")
    ragged = next(filter(None, (_difference(first, level, number) for number, level in enumerate(levels))), None)
    if ragged is not None or first.batch is None:
        return Level(
            None, children={str(number): level for number, level in enumerate(levels)}, ragged=ragged, stack_dim=dim
        )
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
        level.children[key] = stacked_levels([other.children[key] for other in levels], dim)
    return level


def show_rows(level: Level, capacity: int, rows: int, first: int) -> None:
    """Show the first `rows` of `capacity` rows; or all, from the row `first` on, with those before it behind the last one."""
    if level.batch is None and level.stack_dim == 0:  # its members are the rows
        members = list(level.children.values())
        if len(members) == capacity:
            shown = (members[first:] + members[:first])[:rows]
            level.children = {str(number): member for number, member in enumerate(shown)}
        return
    if level.batch and level.batch[0] == capacity:
        level.batch = (rows, *level.batch[1:])
    for name, array in level.arrays.items():
        if array.shape[:1] != (capacity,):
            continue
        if array.non_tensor:
            values = np.roll(array.data, -first, axis=0)[:rows].tolist()
            level.add_value(name, stacked_array(values, stack_shape(values, level.batch or ())))
        elif first:
            array.data = TurnedArray(array.data, first)
        else:
            key = indexing.BasicIndexer((slice(rows), *(slice(None),) * (len(array.shape) - 1)))
            array.data = indexing.LazilyIndexedArray(array.data)[key]
    for child in level.children.values():
        show_rows(child, capacity, rows, first)


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
    if all(not value.ndim and same_object(value.item(), values[0].item()) for value in values):
        return values[0]
    if len(values) * math.prod(batch) > _MOST_ROWS:
        raise ValueError(f"the members differ, and would be {len(values)} times {list(batch)} Python objects")
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


class StackedArray(OuterArray):
    """Arrays of one shape and dtype, stacked along a new axis; only the members that are selected are read."""

    def __init__(self, members: Sequence[Any], axis: int) -> None:
        self._members = list(members)
        self._axis = axis
        shape = tuple(members[0].shape)
        self.dtype = np.dtype(members[0].dtype)
        self.shape = (*shape[:axis], len(self._members), *shape[axis:])

    def _read(self, key: tuple[Any, ...]) -> Any:
        which, rest = key[self._axis], (*key[: self._axis], *key[self._axis + 1 :])
        if isinstance(which, int | np.integer):
            return read_outer(self._members[int(which)], rest)
        numbers = range(len(self._members))[which] if isinstance(which, slice) else [int(number) for number in which]
        place = sum(not isinstance(part, int | np.integer) for part in key[: self._axis])
        # of no members too: the first one has the shape
        read = [read_outer(self._members[number], rest) for number in numbers or [0]]
        return np.stack(read, axis=place).take(range(len(numbers)), axis=place)


class TurnedArray(_Wrapped):
    """A lazy array whose first row is another one; those before it come behind its last."""

    def __init__(self, array: Any, first: int) -> None:
        super().__init__(array)
        self._first = first
        self.shape = tuple(array.shape)
        self.dtype = np.dtype(array.dtype)

    def _read(self, key: tuple[Any, ...]) -> Any:
        rows = (np.arange(self.shape[0])[key[0]] + self._first) % self.shape[0]
        if rows.ndim == 0:
            return self._read_wrapped((int(rows), *key[1:]))
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        parts = [part for part in np.split(rows, breaks) if part.size]
        if len(parts) > 2:
            return self._read_wrapped((rows, *key[1:]))
        read = [self._read_wrapped((slice(int(part[0]), int(part[-1]) + 1), *key[1:])) for part in parts]
        return np.concatenate(read) if read else self._read_wrapped((slice(0, 0), *key[1:]))
