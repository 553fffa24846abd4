"""A Dataset as groups of entries: a :class:`Group` maps names to groups and entries, as a zarr or h5py group does.

Entries are read by :mod:`..tensors.reading`, when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeAlias

from ..core.model import Key, group_name
from ..dataset.entries import Entry, Plan, td_names
from ..tensors.reading import held_axes
from ..tensors.selection import Selection

Sizes: TypeAlias = tuple[int, ...]


@dataclass
class OpenedStore:
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

    source: OpenedStore
    key: Key
    sizes: Sizes
    names: tuple[str | None, ...]
    members: dict[str, Entry | Group] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, source: OpenedStore) -> Group:
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
    def _empty(cls, key: Key, plan: Plan, source: OpenedStore) -> Group:
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


def _sliced(entry: Entry, selection: Selection) -> Entry:
    """The same entry of a part of the batch; nothing is read."""
    if entry.form == "value":
        return entry
    held = held_axes(entry, len(selection.sizes))
    variable = entry.variable[tuple(selection.slices[axis] for axis in held)] if held else entry.variable
    sizes = (*selection.picked, *entry.sizes[len(selection.sizes) :])
    return replace(entry, variable=variable, batch=replace(entry.batch, sizes=sizes))
