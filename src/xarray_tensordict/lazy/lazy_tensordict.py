"""The class that ``open_persistent`` returns: a ``PersistentTensorDict`` over a tree of groups and entries.

What tensordict calls is private, and in :mod:`.._compat.tensordict`; the methods here have names of this package.
Entries are read by :mod:`..tensors.reading`, when they are asked for.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeAlias, TypeVar

import torch
from tensordict import NonTensorData, NonTensorStack, PersistentTensorDict, TensorDict

from .._compat.tensordict import NO_DEFAULT, LazyTensorDict, indexed_names, register_pytree
from ..core.model import Key, cached_property, group_name
from ..core.naming import printable, td_names, there_are
from ..core.values import short_dtype
from ..dataset.describe import warn_empty
from ..dataset.entries import Entry, Plan
from ..formats.raw.files import Kept
from ..tensors.reading import Request, finish, read_entries, sliced, tensor_dtype
from ..tensors.selection import Selection, is_key, select

Names: TypeAlias = Any
"""The names of batch dims, None for one that has none; None where none has one."""
Class = TypeVar("Class", bound=type)

# --- the tree ---------------------------------------------------------------------------------------------------------


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
    _reads: list[None] = field(default_factory=list)
    """An element for each read under way: to append one is atomic, and no lock is copied by a fork."""
    _maps: Kept = field(default_factory=Kept)
    """Files that lie open for the next read of rows, until the store is closed."""

    def read(self, requests: Sequence[Request]) -> list[Any]:
        """Read entries, as :func:`read_entries` does; a store that is closed meanwhile is closed behind the last read."""
        self._reads.append(None)  # first, so that close() sees it or this sees close()
        try:
            if self.closed:
                raise ValueError(
                    f"{self.description}: the store was closed with close(); open it again to read from it"
                )
            return read_entries(requests, self._maps)
        finally:
            self._reads.pop()
            self._close_unread()

    def close(self) -> None:
        """Close the store, once and when nothing is read from it."""
        self.closed = True
        self._close_unread()

    def _close_unread(self) -> None:
        if self.closed and not self._reads:
            self._maps = Kept()
            closer, self.closer = self.closer, None
            if closer is not None:
                closer()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "closer": None, "_reads": []}


@dataclass
class Group:
    """What a tensordict reads: its path, its entries (None for a group) in the order of the Dataset, and its groups."""

    source: OpenedStore
    key: Key
    entries: dict[str, Entry | None]
    levels: dict[tuple[str], XarrayPersistentTensorDict]

    @cached_property
    def members(self) -> dict[str, Entry | XarrayPersistentTensorDict]:
        """Entries and tensordicts, by name."""
        return {name: entry or self.levels[name,] for name, entry in self.entries.items()}

    def __getitem__(self, path: str) -> Entry | XarrayPersistentTensorDict:
        name, _, rest = path.partition("/")
        member = self.entries[name] or self.levels[name,]
        if not rest:
            return member
        if isinstance(member, Entry):
            raise KeyError(path)
        return member.file[rest]

    def __contains__(self, path: str) -> bool:
        try:
            self[path]
        except KeyError:
            return False
        return True

    def walk(self) -> Iterator[str]:
        """The paths of everything below, groups included."""
        for name, member in self.members.items():
            yield name
            if not isinstance(member, Entry):
                yield from (f"{name}/{path}" for path in member.file.walk())

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
            f"memory or ds.td.to_zarr(path) to a new store, or open it with mode='r+' where plain tensordict reads it"
        )

    def __repr__(self) -> str:
        return f"{self.source.description}, group {group_name(self.key)!r}" if self.key else self.source.description


# --- what writes, refused ----------------------------------------------------------------------------------------------

_WRITERS = "set update set_non_tensor create_nested clear popitem __setitem__ __delitem__".split()

_CHANGE_NO_DATA = frozenset(
    "auto_batch_size_ auto_device_ clear_device_ clear_refs_for_compile_ detach_ lock_ memmap_refresh_ pin_memory_ "
    "rename_ requires_grad_ share_memory_ unlock_".split()
)

_ACTIONS = {"del_": "delete", "__delitem__": "delete", "rename_key_": "rename"}


def refuse_writes(cls: Class) -> Class:
    """Refuse every public method that writes: those listed, and all others whose names end in ``_``.

    Many of the latter would change what was read, not the store, and say nothing. They are not listed, so that those of
    later versions of tensordict are refused as well.
    """
    in_place = {name for name in dir(cls) if name.endswith("_") and not name.startswith("_")} - _CHANGE_NO_DATA
    for name in (*_WRITERS, *in_place):
        setattr(cls, name, _refusal(name))
    return cls


def _refusal(name: str) -> Callable[..., None]:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        key = args[0] if args else kwargs.get("key")
        if is_key(key):
            self.file.refuse(_ACTIONS.get(name, "write"), key)
        self.file.refuse("write rows" if name == "__setitem__" else f"change entries with {name}()")

    refuse.__name__ = name
    refuse.__doc__ = "Refuse, with a ``TypeError``: the object is read-only."
    return refuse


# --- the tensordict ----------------------------------------------------------------------------------------------------


@refuse_writes
class XarrayPersistentTensorDict(LazyTensorDict):
    """A ``PersistentTensorDict`` that reads through xarray; see :func:`~.persistent.open_persistent`."""

    file: Group

    def __init__(self, *, group: Group, batch_size: Sequence[int], names: Names, device: Any = None) -> None:
        super().__init__(group=group, batch_size=batch_size, names=_or_none(names), device=device)

    @classmethod
    def of(
        cls, entries: Iterable[Entry], plan: Plan, source: OpenedStore, device: Any, key: Key = ()
    ) -> XarrayPersistentTensorDict:
        """The tensordict of the entries of one group of a plan."""
        below: dict[str, list[Entry]] = {}
        for entry in entries:
            below.setdefault(entry.key[len(key)], []).append(entry)
        group = Group(source, key, dict.fromkeys(below), {})
        for name, found in below.items():
            if len(found[0].key) == len(key) + 1:
                group.entries[name] = found[0].lazy()
            else:
                group.levels[name,] = cls.of(found, plan, source, device, (*key, name))
        batch = plan.batches[key]
        return cls(group=group, batch_size=batch.sizes, names=td_names(batch), device=device)

    # --- entries ---

    def _node(self, key: str | Key, default: Any = NO_DEFAULT) -> Any:
        """The node of a key; one that is not there raises in words, or is `default`."""
        group = self.file
        path = key if isinstance(key, str) else "/".join(key)
        if path in group:
            return group[path]
        if default is not NO_DEFAULT:
            return default
        name = group.full_name(path)
        if name in group.source.left_out:
            raise TypeError(f"{group.source.description}: {name!r} is left out: {group.source.left_out[name]}")
        if any(leaf.name == name for leaf in group.source.unbatched):
            raise KeyError(
                f"{name!r} of {group.source.description} has no batch dim: it is in .unbatched of this tensordict, and "
                f"in ds.td.unbatched"
            )
        hidden = next((each for each in group.source.hidden if f"/{name}/".startswith(f"{each}/")), None)
        if hidden is not None:
            raise KeyError(
                f"{name!r} of {group.source.description} is in the group {hidden!r}, which has a batch of its own and is not shown: "
                f"open it with group={hidden!r}, all groups with nested=True or xr.open_datatree(...)"
            )
        above, _, last = path.rpartition("/")
        if above and not isinstance(found := self._node(above), Entry):
            return found._node(last)  # says what there is in that group
        raise KeyError(f"there is no entry {name!r} in {group.source.description}; {there_are(path, group.members)}")

    def _read_entry(self, key: str | Key, default: Any) -> Any:
        node = self._node(key, default)
        return self._read(node) if isinstance(node, Entry) else node

    def _read_entry_at(self, key: str | Key, index: Any, default: Any) -> Any:
        node = self._node(key, default)
        if not isinstance(node, Entry):
            return node if node is default else node[index]
        shape = self.batch_size if node.form == "value" else node.shape
        return self._read(node, select(index, shape, what=repr(node.name)))

    def _read(self, leaf: Entry, selection: Selection | None = None) -> Any:
        """Read one entry, or what was selected of it."""
        batch = self.batch_size if selection is None else selection.result(self.batch_size)
        (array,) = self.file.source.read([(leaf, selection)])
        return self._sent(finish(leaf, array, selection, batch))

    def _sent(self, value: Any) -> Any:
        return value if self.device is None else value.to(self.device)

    def _describe(self, key: str | Key) -> dict[str, Any]:
        node = self._node(key)
        if not isinstance(node, Entry):
            return {"dtype": None, "shape": node.batch_size, "dim": node.batch_dims, "array": False}
        if node.form == "value":
            return {"non_tensor": True}
        shape = torch.Size(node.shape)
        kind = {"non_tensor": True} if node.form == "rows" else {"dtype": tensor_dtype(node), "array": True}
        return {**kind, "shape": shape, "dim": len(shape)}

    def entry_class(self, key: Any) -> type:
        node = self._node(key)
        if not isinstance(node, Entry):
            return type(self)
        return {"tensor": torch.Tensor, "rows": NonTensorStack, "value": NonTensorData}[node.form]

    def get_item_shape(self, key: Any) -> torch.Size:
        """The shape of an entry, without reading it."""
        shape: torch.Size = self._describe(key).get("shape", self.batch_size)
        return shape

    @property
    def unbatched(self) -> TensorDict:
        """The entries without a batch dim, which are not in this tensordict: read into a TensorDict of batch ``[]``."""
        source, prefix = self.file.source, self.file.key
        found = [(tuple(leaf.name.split("/")), leaf) for leaf in source.unbatched]
        found = [(key[len(prefix) :], leaf) for key, leaf in found if key[: len(prefix)] == prefix]
        arrays = source.read([(leaf, None) for _, leaf in found])
        td = TensorDict({}, batch_size=[], device=self.device)
        for (key, leaf), array in zip(found, arrays, strict=True):
            td.set(key, self._sent(finish(leaf, array, None, ())))
        return td

    # --- indices ---

    def __getitem__(self, item: Any) -> Any:
        return super().__getitem__(item) if is_key(item) else self._read_rows(item)

    def __getitems__(self, indices: Any) -> Any:
        """Read rows for a ``DataLoader``, in the worker."""
        return self._read_rows(indices)

    def _read_rows(self, index: Any) -> Any:
        selection = select(index, self.batch_size, what="tensordict")
        if selection.slices is None:
            return self._load(selection)
        return self._copy_lazily(selection)

    def to_tensordict(self, *, retain_none: bool | None = None) -> TensorDict:
        """Read everything into a ``TensorDict``."""
        if not self.file.entries and not self.file.key:
            warn_empty(self.file.source.description, self.file.source.hidden)
        return self._load(None)

    def _load(self, selection: Selection | None) -> TensorDict:
        """Read all entries, or the rows that were selected, into memory."""
        arrays = iter(self.file.source.read([(leaf, selection) for leaf in self._leaves()]))
        return self._built(arrays, selection, self.device)

    def _leaves(self) -> Iterator[Entry]:
        for member in self.file.members.values():
            if isinstance(member, Entry):
                yield member
            else:
                yield from member._leaves()

    def _built(self, arrays: Iterator[Any], selection: Selection | None, device: Any) -> TensorDict:
        """The TensorDict of what was read for each of the leaves."""
        batch, names = self.batch_size, _or_none(self.names)
        if selection is not None:
            names = indexed_names(names, batch, selection.items)
            batch = selection.result(batch)
        entries = {
            name: finish(member, next(arrays), selection, batch, names)
            if isinstance(member, Entry)
            else member._built(arrays, selection, device)
            for name, member in self.file.members.items()
        }
        return TensorDict(entries, batch_size=batch, names=names, device=device)

    # --- batch size, copies, devices ---

    @PersistentTensorDict.batch_size.setter  # type: ignore[untyped-decorator]
    def batch_size(self, value: Any) -> None:
        size = torch.Size(value)
        for name, member in self.file.members.items():
            is_value = isinstance(member, Entry) and member.form == "value"
            if not is_value and tuple(member.shape[: len(size)]) != size:
                raise RuntimeError(
                    f"batch size and array size mismatch: {name!r} has shape {tuple(member.shape)}, batch_size={tuple(size)}"
                )
        self._set_batch(size, _or_none([*self.names, *[None] * len(size)][: len(size)]))

    def _copy_lazily(self, selection: Selection | None = None) -> Any:
        """Another lazy object over the same store, or over the part of the batch that slices select."""
        entries = self.file.entries
        if selection is not None:
            entries = {name: entry and sliced(entry, selection) for name, entry in entries.items()}
        levels = {name: level._copy_lazily(selection) for name, level in self.file.levels.items()}
        size = self.batch_size if selection is None else selection.result(self.batch_size)
        group = replace(self.file, entries=entries, levels=levels)
        return type(self)(group=group, batch_size=size, names=self.names, device=self.device)

    def _copy_data(self, newfile: Any) -> Any:
        td = self._load(None)
        if newfile is None:
            return td
        return td.to_h5(newfile) if str(newfile).endswith((".h5", ".hdf5")) else td.to_zarr(newfile)

    def empty(self, recurse: bool = False, **options: Any) -> TensorDict:
        """Make a TensorDict without the entries; with ``recurse=True`` with the groups. No tensor is read."""
        if not recurse:
            return super().empty(**options)
        return self._skeleton().empty(recurse=True, **{"device": self.device, **options})

    def memmap_like(self, *args: Any, **kwargs: Any) -> TensorDict:
        """Make memory maps of the shapes and dtypes of the entries, without reading them."""
        return self._skeleton().memmap_like(*args, **kwargs)

    def _skeleton(self) -> TensorDict:
        """A TensorDict of the same shapes and dtypes that takes no memory; non-tensor entries are read."""
        values = (
            torch.zeros((), dtype=tensor_dtype(leaf)).expand(leaf.shape)
            if leaf.form == "tensor"
            else self.file.source.read([(leaf, None)])[0]
            for leaf in self._leaves()
        )
        return self._built(values, None, torch.device("cpu"))

    def _read_into_maps(self, prefix: Any, **options: Any) -> TensorDict:
        mapped = self._skeleton().memmap_like(prefix, **options)
        for key, target in mapped.items(include_nested=True, leaves_only=True):  # one entry in memory at a time
            if isinstance(target, torch.Tensor):
                target.copy_(self.get(key))
        return mapped

    # --- life ---

    def __getstate__(self) -> dict[str, Any]:
        opened = {"group": self.file, "batch_size": self.batch_size, "names": self.names, "device": self.device}
        return {**opened, "locked": self.is_locked}

    def __setstate__(self, state: dict[str, Any]) -> None:
        locked = state.pop("locked")
        XarrayPersistentTensorDict.__init__(self, **state)
        if locked:
            self.lock_()

    def __repr__(self) -> str:
        source = self.file.source
        device = "" if self.device is None else f"device={self.device}, "
        names = ",".join(map(str, self.names))
        head = f"{type(self).__name__}(batch_size={_sizes_text(self.batch_size)}, names=[{names}], {device}fields="
        hidden = f"\n    not shown: {len(source.hidden)} groups with a batch of their own: group=... or nested=True"
        shown = f"{head}{_fields_text(self._fields(), '', len(head) + 1)})\n    store: {printable(self.file)}"
        return shown + (hidden if source.hidden and not self.file.key else "")

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"

    def _fields(self) -> dict[str, Any]:
        """The text of each entry, and the fields of each nested tensordict; no array is read."""
        batch = len(self.batch_size)
        found: dict[str, Any] = {}
        for name, member in self.file.members.items():
            if not isinstance(member, Entry):
                extra = member.batch_size[batch:]
                found[printable(name) + (f" {_sizes_text(extra)}" if extra else "")] = member._fields()
            elif member.form == "tensor":
                dtype = str(tensor_dtype(member)).removeprefix("torch.")
                found[printable(name)] = f"{short_dtype(dtype)}{_sizes_text(member.shape[batch:])}"
            else:
                found[printable(name)] = self.entry_class(name).__name__
        return found


def _sizes_text(sizes: Iterable[int]) -> str:
    return f"[{','.join(map(str, sizes))}]"


def _fields_text(fields: Any, indent: str, used: float) -> str:
    """Fields on one line where `used` columns before them leave room, else each on its own, as tensordict shows them."""
    if isinstance(fields, str):
        return fields
    flat = ", ".join(f"{name}: {_fields_text(value, '', -math.inf)}" for name, value in fields.items())
    if used + len(flat) + 2 <= 80 or not fields:
        return f"{{{flat}}}"
    inner = f"{indent}    "
    lines = (f"{inner}{k}: {_fields_text(v, inner, len(inner) + len(k) + 3)}" for k, v in fields.items())
    return "{\n" + ",\n".join(lines) + "}"


register_pytree(XarrayPersistentTensorDict)


def _or_none(names: list[str | None]) -> Names:
    """The names of batch dims as tensordict takes them: None where none has one."""
    return names if any(name is not None for name in names) else None
