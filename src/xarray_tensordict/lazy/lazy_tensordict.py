"""The class of the lazy door: a ``PersistentTensorDict`` over the lazy nodes of a Dataset.

What it overrides and calls of tensordict is private, and listed in :mod:`.dialect`, which checks at import that it is
there.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import torch
from tensordict import MemoryMappedTensor, NonTensorData, NonTensorStack, PersistentTensorDict, TensorDict

from ..core.suggest import there_are
from ..dataset.entries import Entry
from ..tensors.reading import tensor_dtype
from .dialect import NO_DEFAULT, XarrayDialect, memmap_filename, register_class, register_pytree, unravel_key
from .lazy_nodes import Group, finish, read_together
from .selection import Selection, select


class XarrayPersistentTensorDict(PersistentTensorDict):
    """A ``PersistentTensorDict`` that reads through xarray; see :func:`~.persistent.open_persistent`."""

    file: Group
    _td_dim_names: Any = None

    def __init__(self, *, group: Group, device: Any = None) -> None:
        super().__init__(group=group, batch_size=group.sizes, device=device, validate_batch_size=False)
        self.backend = "xarray"
        self._backend = XarrayDialect()
        self.filename = None
        self._td_dim_names = list(group.names) if any(name is not None for name in group.names) else None
        for name, member in group.members.items():
            if isinstance(member, Group):
                self._make_nested((name,), member)

    # Nothing is cached while locked: what was read is the caller's, and a locked store is no copy of its data.
    @property
    def _cache(self) -> None:
        return None

    @_cache.setter
    def _cache(self, value: Any) -> None:
        pass

    # --- entries ---

    def _node(self, key: Any) -> Entry | Group:
        """The node of a key; raises for one that is not there, in words."""
        path = "/".join((key,) if isinstance(key, str) else key)
        group: Group = self.file
        if path in group:
            return group[path]
        name = group.full_name(path)
        if name in group.source.left_out:
            raise TypeError(f"{group.source.description}: {name!r} is left out: {group.source.left_out[name]}")
        if any(leaf.name == name for leaf in group.source.unbatched):
            raise KeyError(
                f"{name!r} of {group.source.description} has no batch dim: it is in .unbatched of this tensordict, and "
                f"in ds.td.unbatched"
            )
        raise KeyError(f"there is no entry {name!r} in {group.source.description}; {there_are(name, group.members)}")

    def _get_array(self, key: Any, default: Any = NO_DEFAULT) -> Any:
        key = unravel_key(key)
        if default is NO_DEFAULT:
            return self._node(key)
        try:
            return self._node(key)
        except (KeyError, TypeError):
            return default

    def _get_str(self, key: Any, default: Any, **kwargs: Any) -> Any:
        node = self._get_array(key, default)
        if node is default:
            return default
        if isinstance(node, Group):
            return self._nested(unravel_key(key))
        return self._read(node)

    _get_tuple = _get_str

    def _get_at_str(self, key: Any, idx: Any, default: Any, **kwargs: Any) -> Any:
        node = self._get_array(key, default)
        if node is default:
            return default
        if isinstance(node, Group):
            return self._nested(unravel_key(key))[idx]
        return self._read_array_at(node, idx)

    _get_at_tuple = _get_at_str

    def _read_array_at(self, array: Entry, idx: Any) -> Any:
        """Read the part of one entry that an index picks."""
        shape = self.batch_size if array.form == "value" else array.shape
        return self._read(array, select(idx, shape, what=repr(array.name)))

    def _read(self, leaf: Entry, selection: Selection | None = None) -> Any:
        """Read one entry, or what was selected of it."""
        self.file.source.check_open()
        batch = self.batch_size
        if selection is not None:
            batch = torch.Size((*selection.picked, *batch[len(selection.sizes) :]))
        (array,) = read_together([(leaf, selection)])
        return self._sent(finish(leaf, array, selection, batch))

    def _sent(self, value: Any) -> Any:
        return value if self._device is None else value.to(self._device)

    def _nested(self, key: Any) -> XarrayPersistentTensorDict:
        first, *rest = (key,) if isinstance(key, str) else key
        found: XarrayPersistentTensorDict = self._nested_tensordicts[(first,)]
        return found._nested(tuple(rest)) if rest else found

    def _make_nested(self, key: Any, group: Group) -> XarrayPersistentTensorDict:
        nested = type(self)(group=group, device=self._device)
        self._nested_tensordicts[key] = nested
        return nested

    def _get_metadata(self, key: Any) -> dict[str, Any]:
        node = self._get_array(key, None)
        if node is None:
            raise KeyError(key)
        if isinstance(node, Group):
            shape = self._nested(unravel_key(key)).batch_size
            return {"dtype": None, "shape": shape, "dim": len(shape), "array": False}
        if node.form == "value":
            return {"non_tensor": True}
        shape = torch.Size(node.shape)
        kind = {"non_tensor": True} if node.form == "rows" else {"dtype": tensor_dtype(node), "array": True}
        return {**kind, "shape": shape, "dim": len(shape)}

    def entry_class(self, key: Any) -> type:
        node = self._get_array(key)
        if isinstance(node, Group):
            return type(self)
        return {"tensor": torch.Tensor, "rows": NonTensorStack, "value": NonTensorData}[node.form]

    def get_item_shape(self, key: Any) -> torch.Size:
        """The shape of an entry, without reading it."""
        self._get_array(key)
        shape: torch.Size = self._get_metadata(key).get("shape", self.batch_size)
        return shape

    @property
    def unbatched(self) -> TensorDict:
        """The entries without a batch dim, which are not in this tensordict: read into a TensorDict of batch ``[]``."""
        source, prefix = self.file.source, self.file.key
        source.check_open()
        found = [(tuple(leaf.name.split("/")), leaf) for leaf in source.unbatched]
        found = [(key[len(prefix) :], leaf) for key, leaf in found if key[: len(prefix)] == prefix]
        arrays = read_together([(leaf, None) for _, leaf in found])
        td = TensorDict({}, batch_size=[], device=self._device)
        for (key, leaf), array in zip(found, arrays, strict=True):
            td.set(key, self._sent(finish(leaf, array, None, ())))
        return td

    # --- indices ---

    def __getitem__(self, item: Any) -> Any:
        if _is_key(item):
            return super().__getitem__(item)
        return self._index_tensordict(item)

    def __getitems__(self, indices: Any) -> Any:
        """Read rows for a ``DataLoader``, in the worker."""
        return self._index_tensordict(indices)

    def _index_tensordict(self, index: Any, new_batch_size: Any = None, names: Any = None) -> Any:
        selection = select(index, self.batch_size, what="tensordict")
        if not selection.is_slices:
            return self._load(selection)
        view = type(self)(group=self.file.sliced(selection), device=self._device)
        _set_state(view, _state_of(self, selection))
        return view

    def _to_tensordict(self, *, retain_none: bool | None = None) -> TensorDict:
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
                yield from self._nested(name)._leaves()

    def _built(self, arrays: Iterator[Any], selection: Selection | None) -> TensorDict:
        batch, names = self.batch_size, self._maybe_names()
        if selection is not None:
            batch = torch.Size((*selection.picked, *batch[len(selection.sizes) :]))
            names = self._get_names_idx(selection.items)  # type: ignore[no-untyped-call]
        entries: dict[str, Any] = {}
        for name, member in self.file.members.items():
            if isinstance(member, Entry):
                entries[name] = finish(member, next(arrays), selection, batch, names)
            else:
                entries[name] = self._nested(name)._built(arrays, selection)
        return TensorDict(entries, batch_size=batch, names=names, device=self._device)

    # --- batch size, copies, devices ---

    def _check_batch_size(self, batch_size: Sequence[int]) -> None:  # type: ignore[override]
        size = tuple(batch_size)
        for name, member in self.file.members.items():
            shape = self._nested(name).batch_size if isinstance(member, Group) else member.shape
            value = isinstance(member, Entry) and member.form == "value"
            if not value and tuple(shape[: len(size)]) != size:
                raise ValueError(
                    f"batch size and array size mismatch: {name!r} has shape {tuple(shape)}, batch_size={size}"
                )

    @PersistentTensorDict.batch_size.setter  # type: ignore[untyped-decorator]
    def batch_size(self, value: Any) -> None:
        size = torch.Size(value)
        try:
            self._check_batch_size(size)
        except ValueError as error:
            raise RuntimeError(str(error)) from None
        names = self._maybe_names()
        self._batch_size = size
        if names is not None:
            kept = [*names, *[None] * len(size)][: len(size)]
            self._td_dim_names = kept if any(name is not None for name in kept) else None

    def _clone(self, recurse: bool = True, newfile: Any = None) -> Any:
        """Clone.

        Without data (``recurse=False``) a lazy object over the same store; with data a TensorDict in memory, or with
        `newfile` a new store of tensordict's own, zarr unless its name ends in .h5 or .hdf5.
        """
        if not recurse:
            clone = type(self)(group=self.file, device=self._device)
            _set_state(clone, _state_of(self))
            return clone
        td = self._load(None)
        if newfile is None:
            return td
        return td.to_h5(newfile) if str(newfile).endswith((".h5", ".hdf5")) else td.to_zarr(newfile)

    def memmap_like(self, *args: Any, **kwargs: Any) -> TensorDict:
        """Make memory maps of the shapes and dtypes of the entries, without reading them."""
        return self._skeleton().memmap_like(*args, **kwargs)

    def _skeleton(self) -> TensorDict:
        """A TensorDict of the same shapes and dtypes that takes no memory; non-tensor entries are read."""
        td = TensorDict({}, batch_size=self.batch_size, names=self._maybe_names(), device="cpu")
        for name, member in self.file.members.items():
            if isinstance(member, Group):
                td.set(name, self._nested(name)._skeleton())
            elif member.form == "tensor":
                td.set(name, torch.zeros((), dtype=tensor_dtype(member)).expand(member.shape))
            else:
                td.set(name, self._read(member).to("cpu"))
        return td

    def _memmap_(self, *, prefix: Any, inplace: bool, existsok: bool, robust_key: Any, **rest: Any) -> Any:
        """Write memory maps, holding one entry in memory at a time; what comes out is a plain TensorDict."""
        if inplace:
            self._refuse("memory-map in place", "use memmap()")
        mapped = self._mapped(None if prefix is None else Path(prefix), existsok=existsok, robust_key=robust_key)
        # what is mapped already is taken as it is; the metadata and non-tensor entries are written
        return mapped._memmap_(prefix=prefix, inplace=False, existsok=True, robust_key=robust_key, **rest)

    def _mapped(self, folder: Path | None, *, existsok: bool, robust_key: Any) -> TensorDict:
        """A TensorDict of memory maps, in the files where tensordict puts them."""
        td = TensorDict({}, batch_size=self.batch_size, names=self._maybe_names(), device="cpu")
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        for name, member in self.file.members.items():
            filename: Any = None if folder is None else memmap_filename(folder, name, robust_key)
            if isinstance(member, Group):
                below = None if filename is None else Path(filename.removesuffix(".memmap"))
                td.set(name, self._nested(name)._mapped(below, existsok=existsok, robust_key=robust_key))
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
            "device": self._device,
            "state": _state_of(self),
            "locked": self._is_locked,
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
                text = self._nested(name)._described(indent + " " * 8)
            elif member.form == "tensor":
                text = f"Tensor(shape={torch.Size(member.shape)}, dtype={tensor_dtype(member)})"
            else:
                shape = torch.Size(member.shape) if member.form == "rows" else self.batch_size
                text = f"{self.entry_class(name).__name__}(shape={shape})"
            lines.append(f"{indent}        {name}: {text},")
        source = self.file.source
        told = "" if self.file.key else f", store={source.description!r}"
        if source.hidden and not self.file.key:
            told += f", {source.hidden} groups with a batch of their own not shown: group=... or nested=True"
        lines[-1] = lines[-1].rstrip(",") + "}," if self.file.members else lines[-1] + "},"
        lines.append(f"{indent}    batch_size={self.batch_size}, names={self.names}, device={self.device}{told})")
        return "\n".join(lines)

    # --- what a read-only store refuses ---

    def _refuse(self, what: str, instead: str = "") -> NoReturn:
        raise TypeError(
            f"cannot {what}: {self.file!r} is read-only through xarray. Convert it first, with to_tensordict() to "
            f"memory or ds.td.to_zarr(path) to a new store, or open it with mode='r+' where bare tensordict reads it"
            + (f"; {instead}" if instead else "")
        )

    def _set(self, key: Any, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse(f"write {_shown(self.file, key)}")

    _set_str = _set_tuple = _set_at_str = _set_at_tuple = _set_non_tensor = _fill_ = _set
    _create_nested_str = _create_nested_tuple = _set

    def _del(self, key: Any) -> NoReturn:
        self._refuse(f"delete {_shown(self.file, key)}")

    def _rename_key(self, old_key: Any, new_key: Any) -> NoReturn:
        self._refuse(f"rename {_shown(self.file, old_key)}")

    def _setitem_index(self, index: Any, value: Any) -> NoReturn:
        self._refuse("write rows")

    def _masked_fill_(self, mask: Any, value: Any) -> NoReturn:
        self._refuse("fill entries")

    def _stack_onto_(self, list_item: Any, dim: int) -> NoReturn:
        self._refuse("write entries")

    def _inplace_on_copies(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse(f"change entries in place with {method.__name__.strip('_')}_")

    def copy_at_(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse to write rows."""
        self._refuse("write rows")

    def _write_back(self, keys: Any, values: Any, method: str) -> NoReturn:
        self._refuse(f"change entries in place with {method}")

    # --- tensordict's own ways to open and write stay its own ---

    @classmethod
    def _open_h5(cls, *args: Any, **kwargs: Any) -> Any:
        return PersistentTensorDict._open_h5(*args, **kwargs)

    @classmethod
    def _open_zarr(cls, *args: Any, **kwargs: Any) -> Any:
        return PersistentTensorDict._open_zarr(*args, **kwargs)

    @classmethod
    def _from_dict(cls, *args: Any, **kwargs: Any) -> Any:
        return PersistentTensorDict._from_dict(*args, **kwargs)


register_class(XarrayPersistentTensorDict)
register_pytree(XarrayPersistentTensorDict)


def _is_key(item: Any) -> bool:
    return isinstance(item, str) or (isinstance(item, tuple) and bool(item) and all(_is_key(part) for part in item))


def _shown(group: Group, key: Any) -> str:
    return repr(group.full_name("/".join((key,) if isinstance(key, str) else map(str, key))))


State: TypeAlias = "tuple[torch.Size, Any, dict[Any, Any]]"
"""The batch size and names of a level, which the user may have changed, and of the levels below it."""


def _state_of(td: XarrayPersistentTensorDict, selection: Selection | None = None) -> State:
    children = {key: _state_of(child, selection) for key, child in td._nested_tensordicts.items()}
    size = td._batch_size
    if selection is not None:
        size = torch.Size((*selection.picked, *size[len(selection.sizes) :]))
    return size, td._maybe_names(), children


def _set_state(td: XarrayPersistentTensorDict, state: State) -> None:
    td._batch_size, td._td_dim_names, children = state
    for key, child in children.items():
        _set_state(td._nested_tensordicts[key], child)
