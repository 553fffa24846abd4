"""The class that ``open_persistent`` returns: a ``PersistentTensorDict`` over the lazy nodes of a Dataset.

What tensordict calls is private, and in :mod:`.._compat.tensordict`; the methods here have names of this package.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import torch
from tensordict import MemoryMappedTensor, NonTensorData, NonTensorStack, PersistentTensorDict, TensorDict

from .._compat.tensordict import NO_DEFAULT, LazyTensorDict, indexed_names, memmap_filename, register_pytree
from ..core.model import Key
from ..core.suggest import there_are
from ..dataset.entries import Entry
from ..tensors.reading import finish, read_together, tensor_dtype
from ..tensors.selection import Selection, is_key, select
from .lazy_nodes import Group
from .refusals import refuse_writes

Names: TypeAlias = Any
"""The names of batch dims, None for one that has none; None where none has one."""


@refuse_writes
class XarrayPersistentTensorDict(LazyTensorDict):
    """A ``PersistentTensorDict`` that reads through xarray; see :func:`~.persistent.open_persistent`."""

    file: Group

    def __init__(self, *, group: Group, device: Any = None) -> None:
        super().__init__(group=group, batch_size=group.sizes, names=_or_none([*group.names]), device=device)
        for name, member in group.members.items():
            if isinstance(member, Group):
                self._levels[name,] = type(self)(group=member, device=device)

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
        raise KeyError(f"there is no entry {name!r} in {group.source.description}; {there_are(name, group.members)}")

    def _read_entry(self, key: str | Key, default: Any) -> Any:
        node = self._node(key, default)
        if node is default:
            return default
        return self._level(key) if isinstance(node, Group) else self._read(node)

    def _read_entry_at(self, key: str | Key, index: Any, default: Any) -> Any:
        node = self._node(key, default)
        if node is default:
            return default
        if isinstance(node, Group):
            return self._level(key)[index]
        shape = self.batch_size if node.form == "value" else node.shape
        return self._read(node, select(index, shape, what=repr(node.name)))

    def _read(self, leaf: Entry, selection: Selection | None = None) -> Any:
        """Read one entry, or what was selected of it."""
        self.file.source.check_open()
        batch = self.batch_size if selection is None else _selected(self.batch_size, selection)
        (array,) = read_together([(leaf, selection)])
        return self._sent(finish(leaf, array, selection, batch))

    def _sent(self, value: Any) -> Any:
        return value if self.device is None else value.to(self.device)

    def _level(self, key: str | Key) -> XarrayPersistentTensorDict:
        """The tensordict of a group."""
        first, *rest = (key,) if isinstance(key, str) else key
        found: XarrayPersistentTensorDict = self._levels[first,]
        return found._level(tuple(rest)) if rest else found

    def _describe(self, key: str | Key) -> dict[str, Any]:
        node = self._node(key)
        if isinstance(node, Group):
            shape = self._level(key).batch_size
            return {"dtype": None, "shape": shape, "dim": len(shape), "array": False}
        if node.form == "value":
            return {"non_tensor": True}
        shape = torch.Size(node.shape)
        kind = {"non_tensor": True} if node.form == "rows" else {"dtype": tensor_dtype(node), "array": True}
        return {**kind, "shape": shape, "dim": len(shape)}

    def entry_class(self, key: Any) -> type:
        node = self._node(key)
        if isinstance(node, Group):
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
        source.check_open()
        found = [(tuple(leaf.name.split("/")), leaf) for leaf in source.unbatched]
        found = [(key[len(prefix) :], leaf) for key, leaf in found if key[: len(prefix)] == prefix]
        arrays = read_together([(leaf, None) for _, leaf in found])
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
        if not selection.is_slices:
            return self._load(selection)
        view = type(self)(group=self.file.sliced(selection), device=self.device)
        _set_state(view, _state_of(self, selection))
        return view

    def to_tensordict(self, *, retain_none: bool | None = None) -> TensorDict:
        """Read everything into a ``TensorDict``."""
        return self._load(None)

    def _load(self, selection: Selection | None) -> TensorDict:
        """Read all entries, or the rows that were selected, into memory."""
        self.file.source.check_open()
        arrays = iter(read_together([(leaf, selection) for leaf in self._leaves()]))
        return self._built(arrays, selection)

    def _leaves(self) -> Iterator[Entry]:
        for name, member in self.file.members.items():
            if isinstance(member, Entry):
                yield member
            else:
                yield from self._level(name)._leaves()

    def _built(self, arrays: Iterator[Any], selection: Selection | None) -> TensorDict:
        batch, names = self.batch_size, _or_none(self.names)
        if selection is not None:
            names = indexed_names(names, batch, selection.items)
            batch = _selected(batch, selection)
        entries: dict[str, Any] = {}
        for name, member in self.file.members.items():
            if isinstance(member, Entry):
                entries[name] = finish(member, next(arrays), selection, batch, names)
            else:
                entries[name] = self._level(name)._built(arrays, selection)
        return TensorDict(entries, batch_size=batch, names=names, device=self.device)

    # --- batch size, copies, devices ---

    @PersistentTensorDict.batch_size.setter  # type: ignore[untyped-decorator]
    def batch_size(self, value: Any) -> None:
        size = torch.Size(value)
        for name, member in self.file.members.items():
            shape = self._level(name).batch_size if isinstance(member, Group) else member.shape
            value = isinstance(member, Entry) and member.form == "value"
            if not value and tuple(shape[: len(size)]) != size:
                raise RuntimeError(
                    f"batch size and array size mismatch: {name!r} has shape {tuple(shape)}, batch_size={tuple(size)}"
                )
        self._set_batch(size, _or_none([*self.names, *[None] * len(size)][: len(size)]))

    def _copy_lazily(self) -> Any:
        clone = type(self)(group=self.file, device=self.device)
        _set_state(clone, _state_of(self))
        return clone

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
        td = TensorDict({}, batch_size=self.batch_size, names=_or_none(self.names), device="cpu")
        for name, member in self.file.members.items():
            if isinstance(member, Group):
                td.set(name, self._level(name)._skeleton())
            elif member.form == "tensor":
                td.set(name, torch.zeros((), dtype=tensor_dtype(member)).expand(member.shape))
            else:
                td.set(name, self._read(member).to("cpu"))
        return td

    def _map_into(self, folder: Path | None, *, existsok: bool, robust_key: bool | None) -> TensorDict:
        # one entry in memory at a time
        td = TensorDict({}, batch_size=self.batch_size, names=_or_none(self.names), device="cpu")
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        for name, member in self.file.members.items():
            filename: Any = None if folder is None else memmap_filename(folder, name, robust_key)
            if isinstance(member, Group):
                below = None if filename is None else Path(filename.removesuffix(".memmap"))
                td.set(name, self._level(name)._map_into(below, existsok=existsok, robust_key=robust_key))
            elif member.form == "tensor":
                tensor = self._read(member).cpu()
                td.set(name, MemoryMappedTensor.from_tensor(tensor, filename=filename, existsok=existsok))
            else:
                td.set(name, self._read(member).to("cpu"))
        return td

    # --- life ---

    def __getstate__(self) -> dict[str, Any]:
        return {
            "group": self.file,
            "device": self.device,
            "state": _state_of(self),
            "locked": self.is_locked,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        XarrayPersistentTensorDict.__init__(self, group=state["group"], device=state["device"])
        _set_state(self, state["state"])
        if state["locked"]:
            self.lock_()

    def __repr__(self) -> str:
        return self._described("")

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"

    def _described(self, indent: str) -> str:
        lines = [f"{type(self).__name__}(", f"{indent}    fields={{"]
        for name, member in self.file.members.items():
            if isinstance(member, Group):
                text = self._level(name)._described(indent + " " * 8)
            elif member.form == "tensor":
                text = f"Tensor(shape={torch.Size(member.shape)}, dtype={tensor_dtype(member)})"
            else:
                shape = torch.Size(member.shape) if member.form == "rows" else self.batch_size
                text = f"{self.entry_class(name).__name__}(shape={shape})"
            lines.append(f"{indent}        {name}: {text},")
        source = self.file.source
        told = "" if self.file.key else f", store={source.description!r}"
        if source.hidden and not self.file.key:
            told += f", {len(source.hidden)} groups with a batch of their own not shown: group=... or nested=True"
        lines[-1] = lines[-1].rstrip(",") + "}," if self.file.members else lines[-1] + "},"
        lines.append(f"{indent}    batch_size={self.batch_size}, names={self.names}, device={self.device}{told})")
        return "\n".join(lines)


register_pytree(XarrayPersistentTensorDict)


def _selected(batch: torch.Size, selection: Selection) -> torch.Size:
    """The batch size of what an index selects."""
    return torch.Size((*selection.picked, *batch[len(selection.sizes) :]))


def _or_none(names: list[str | None]) -> Names:
    """The names of batch dims as tensordict takes them: None where none has one."""
    return names if any(name is not None for name in names) else None


State: TypeAlias = "tuple[torch.Size, Names, dict[Any, Any]]"
"""The batch size and names of a level, which the user may have changed, and of the levels below it."""


def _state_of(td: XarrayPersistentTensorDict, selection: Selection | None = None) -> State:
    below = {key: _state_of(level, selection) for key, level in td._levels.items()}
    size = td.batch_size if selection is None else _selected(td.batch_size, selection)
    return size, _or_none(td.names), below


def _set_state(td: XarrayPersistentTensorDict, state: State) -> None:
    size, names, below = state
    td._set_batch(size, names)
    for key, level in below.items():
        _set_state(td._levels[key], level)
