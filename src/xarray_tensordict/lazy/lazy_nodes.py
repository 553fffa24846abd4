"""A Dataset as groups and entries that are read when they are asked for, and no more of them than is asked for.

A :class:`Group` maps names to groups and entries, as a zarr or h5py group does. An index becomes the least that has to be
read, and the values become a tensor or non-tensor data. Every read gives memory of its own: writing to a result changes
neither the Dataset nor a later read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeAlias

import numpy as np
import torch
import xarray as xr
from tensordict import NonTensorData

from ..core.model import Key, group_name
from ..dataset.entries import Entry, Plan, td_names
from ..tensors.convert import broadcast, python_value
from ..tensors.reading import Read, of_entry, of_rows, of_variable, read_all, widened_dtype
from ..tensors.values import from_codes, rows_from_numpy, tensor_from_numpy, to_codes
from .selection import Selection

Sizes: TypeAlias = tuple[int, ...]


@dataclass
class Source:
    """What all nodes of one opened Dataset share.

    Attributes
    ----------
    description
        How messages call the store.
    left_out
        Variables that no tensordict can hold, each with the reason.
    unbatched
        The entries that have no batch dim, and are not in the tensordict.
    closer
        What closes the store; None after pickling, and where the Dataset belongs to the caller.
    hidden
        The paths of the groups with a batch of their own, which are not shown.
    closed
        Whether `closer` was called.
    """

    description: str
    left_out: dict[str, str] = field(default_factory=dict)
    unbatched: list[Entry] = field(default_factory=list)
    closer: Callable[[], None] | None = None
    hidden: tuple[str, ...] = ()
    closed: bool = False

    def close(self) -> None:
        """Close the store, once."""
        self.closed = True
        closer, self.closer = self.closer, None
        if closer is not None:
            closer()

    def check_open(self) -> None:
        """Raise where the store was closed."""
        if self.closed:
            raise ValueError(f"{self.description}: the store was closed with close(); open it again to read from it")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "closer": None}


# --- one entry --------------------------------------------------------------------------------------------------------


def read_together(requests: Sequence[tuple[Entry, Selection | None]]) -> list[np.ndarray[Any, Any] | torch.Tensor]:
    """Read entries, or what was selected of each, for :func:`finish`; what dask backs is computed in one graph."""
    return read_all([_request(entry, selection) for entry, selection in requests])


def _request(entry: Entry, selection: Selection | None) -> Read:
    """The least that has to be read; nothing is read yet."""
    if selection is None or entry.form == "value":
        return of_entry(entry) if entry.is_plain else of_variable(entry.variable, entry.name)
    rows = selection.rows
    if rows is not None and entry.raw is not None and entry.is_plain:
        return of_rows(entry, entry.raw, rows)
    held = _held(entry, len(selection.sizes))
    if _points_are_read(entry, selection):
        points = tuple(xr.Variable("points", selection.points[axis]) for axis in held)
        return of_variable(entry.variable[points].transpose("points", ...), entry.name)
    outer = tuple(selection.outer[axis] for axis in held)
    whole = all(
        isinstance(part, slice) and part == slice(0, selection.sizes[axis], 1)
        for axis, part in zip(held, outer, strict=True)
    )
    return of_variable(entry.variable if whole else entry.variable[outer], entry.name)


def _held(entry: Entry, axes: int) -> list[int]:
    """Which of the first `axes` axes of an entry its variable has."""
    return [axis for axis in range(axes) if axis not in entry.missing_axes]


def _points_are_read(entry: Entry, selection: Selection) -> bool:
    return selection.is_sparse and len(_held(entry, len(selection.sizes))) > 1


def finish(
    entry: Entry,
    values: np.ndarray[Any, Any] | torch.Tensor,
    selection: Selection | None,
    batch: Sequence[int],
    names: Sequence[str | None] | None = None,
) -> Any:
    """Turn what :func:`read_together` gave into the leaf of a tensordict.

    Parameters
    ----------
    entry
        The entry.
    values
        What was read of it.
    selection
        What was asked for; None for everything.
    batch
        The batch size of the result where the entry is one value for the whole batch.
    names
        The names of the batch dims of the tensordict that rows are for.
    """
    if isinstance(values, torch.Tensor):
        return values
    if entry.form == "value":
        return NonTensorData(python_value(values), batch_size=batch)
    if entry.form == "rows":
        return _rows(entry, values, selection, names)
    copy = None if entry.is_fresh else True
    tensor = tensor_from_numpy(values, name=entry.name, copy=copy, torch_dtype=widened_dtype(entry))
    if selection is not None and _points_are_read(entry, selection):
        axes, sizes = _behind_points(entry, selection)
        return broadcast(tensor.view(*selection.picked, *tensor.shape[1:]), axes, sizes).contiguous()
    block = entry.sizes if selection is None else (*selection.block, *entry.sizes[len(selection.block) :])
    tensor = broadcast(tensor, entry.missing_axes, [block[axis] for axis in entry.missing_axes])
    return (tensor if selection is None else _picked(tensor, selection.local)).contiguous()


def _behind_points(entry: Entry, selection: Selection) -> tuple[list[int], list[int]]:
    """The axes of the result that a variable of which points were read lacks, and their sizes."""
    gone = len(selection.sizes) - len(selection.picked)
    later = [axis for axis in entry.missing_axes if axis >= len(selection.sizes)]
    return [axis - gone for axis in later], [entry.sizes[axis] for axis in later]


def _rows(
    entry: Entry, array: np.ndarray[Any, Any], selection: Selection | None, names: Sequence[str | None] | None
) -> Any:
    if selection is not None and _points_are_read(entry, selection):
        sizes = (*selection.picked, *entry.sizes[len(selection.sizes) :])
        values = np.expand_dims(
            array.reshape((*selection.picked, *array.shape[1:])), tuple(_behind_points(entry, selection)[0])
        )
        values = np.broadcast_to(values, (*sizes, *values.shape[len(sizes) :]))
        return rows_from_numpy(values, ndim=len(sizes), batch_size=sizes)
    consumed = () if selection is None else selection.block
    block = (*consumed, *entry.sizes[len(consumed) :])
    values = np.expand_dims(array, entry.missing_axes)
    values = np.broadcast_to(values, (*block, *values.shape[len(block) :]))
    if selection is not None:
        rest = values.shape[len(consumed) :]
        values = values.reshape((math.prod(consumed), *rest))
        values = values[selection.positions.reshape(-1)].reshape((*selection.picked, *rest))
        block = (*selection.picked, *block[len(consumed) :])
    names = names if names is not None and len(names) == len(block) else None
    return rows_from_numpy(values, ndim=len(block), batch_size=block, names=names)


def _picked(tensor: torch.Tensor, local: Sequence[Any]) -> torch.Tensor:
    """The elements of a block that an index picks."""
    if not local:
        return tensor
    rows, *rest = local
    if isinstance(rows, torch.Tensor) and rows.ndim == 1 and all(part == slice(None) for part in rest):
        # in one thread: for the rows of a batch torch starts all of its own, which have to wait for each other
        # (measured on busy cores: 64 rows of 12 kB 16 ms, with numpy 0.1 ms)
        return from_codes(np.take(to_codes(tensor), rows.numpy(), axis=0), tensor.dtype)
    return tensor[tuple(local)]


def _sliced(entry: Entry, selection: Selection) -> Entry:
    """The same entry of a part of the batch; nothing is read."""
    if entry.form == "value":
        return entry
    held = _held(entry, len(selection.sizes))
    variable = entry.variable[tuple(selection.slices[axis] for axis in held)] if held else entry.variable
    sizes = (*selection.picked, *entry.sizes[len(selection.sizes) :])
    return replace(entry, variable=variable, batch=replace(entry.batch, sizes=sizes))


# --- groups -----------------------------------------------------------------------------------------------------------


@dataclass
class Group:
    """One level of a tensordict: its batch, its names, and its members.

    Attributes
    ----------
    source
        What all nodes share.
    key
        Its path.
    sizes
        Its batch size.
    names
        The names of its batch dims, None for those that have none.
    members
        Entries and groups, in the order of the Dataset.
    """

    source: Source
    key: Key
    sizes: Sizes
    names: tuple[str | None, ...]
    members: dict[str, Entry | Group] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, source: Source) -> Group:
        """The tree of a plan; groups without entries are left out."""
        root = cls._empty((), plan, source)
        for entry in plan.entries:
            group = root
            for length in range(1, len(entry.key)):
                name = entry.key[length - 1]
                child = group.members.setdefault(name, cls._empty(entry.key[:length], plan, source))
                assert isinstance(child, Group), "a path is a variable or a group"
                group = child
            group.members[entry.key[-1]] = entry.lazy()
        return root

    @classmethod
    def _empty(cls, key: Key, plan: Plan, source: Source) -> Group:
        batch = plan.batches[key]
        return cls(source, key, tuple(batch.sizes), tuple(td_names(batch)))

    def __getitem__(self, path: str) -> Entry | Group:
        node: Entry | Group = self
        for part in path.split("/"):
            if not isinstance(node, Group) or part not in node.members:
                raise KeyError(path)
            node = node.members[part]
        return node

    def __contains__(self, path: str) -> bool:
        try:
            self[path]
        except KeyError:
            return False
        return True

    def walk(self) -> Iterator[str]:
        """The paths of everything below, groups included."""
        for name, node in self.members.items():
            yield name
            if isinstance(node, Group):
                yield from (f"{name}/{path}" for path in node.walk())

    def sliced(self, selection: Selection) -> Group:
        """The same tree over a part of the batch; nothing is read."""
        members = {
            name: node.sliced(selection) if isinstance(node, Group) else _sliced(node, selection)
            for name, node in self.members.items()
        }
        return replace(self, sizes=(*selection.picked, *self.sizes[len(selection.sizes) :]), members=members)

    def full_name(self, key: str | Key) -> str:
        """The name of the variable at `key` below this group."""
        return "/".join((*self.key, key) if isinstance(key, str) else (*self.key, *key))

    def close(self) -> None:
        """Close the store."""
        self.source.close()

    def refuse(self, action: str, key: str | Key | None = None) -> NoReturn:
        """Raise for something that would change the store, naming the entry."""
        entry = "" if key is None else f" {self.full_name(key)!r}"
        raise TypeError(
            f"cannot {action}{entry}: {self!r} is read-only through xarray. Convert it first, with to_tensordict() to "
            f"memory or ds.td.to_zarr(path) to a new store, or open it with mode='r+' where bare tensordict reads it"
        )

    def __repr__(self) -> str:
        return f"{self.source.description}, group {group_name(self.key)!r}" if self.key else self.source.description
