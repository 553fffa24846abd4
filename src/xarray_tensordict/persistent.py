"""The lazy door: a ``PersistentTensorDict`` over any store that the engine opens, or any Dataset."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
import xarray as xr
from tensordict import MemoryMappedTensor, NonTensorData, NonTensorStack, PersistentTensorDict, TensorDict, unravel_key

from .convert import compute_together, warn_left_out
from .dialect import NO_DEFAULT, XarrayDialect, memmap_filename, register_class, register_pytree
from .entries import Entry, Plan, plan_entries
from .inference import BatchDims
from .lazy_nodes import Group, Leaf, Source, read_together
from .model import Key
from .record import infer_dataset
from .selection import Selection, select
from .sources import describe_source
from .tensors import tensor_from_numpy

Values = Iterator[Any]


def open_persistent(
    store: Any,
    *,
    mode: str = "r",
    device: Any = None,
    batch_dims: BatchDims | None = None,
    **engine_keywords: Any,
) -> PersistentTensorDict:
    """Open a store as a ``PersistentTensorDict``: lazy, decoded, nested.

    The same as ``xr.open_dataset(store, engine="tensordict")``, through tensordict's door:
    ``open_persistent(store).to_tensordict()`` and ``ds.td.to_tensordict()`` are equal.

    Parameters
    ----------
    store
        Whatever the engine opens: a path, a URL, a zarr store or group, an h5py file or group, an open
        ``PersistentTensorDict``.
    mode
        ``"r"``: read only. ``"r+"``: for stores that bare tensordict reads to the same entries; the result is then
        tensordict's own writable object.
    device
        The device that entries are sent to when they are read.
    batch_dims
        Names, or a count, of the batch dims; by default they are inferred.
    **engine_keywords
        The parameters of the engine and of ``xr.open_dataset``: ``group``, ``nested``, ``dims``, ``drop_variables``,
        ``mask_and_scale``, ``decode_times``, ``chunks``, ``storage_options``, ...

    Returns
    -------
    PersistentTensorDict
        With ``mode="r"``: entries are read when they are asked for, each time anew, and are the caller's own.

        ======================================  ============================================================
        ``ptd["x"]``, ``ptd["next", "x"]``      reads the entry
        ``ptd.get_at("x", index)``              reads these rows of the entry
        ``ptd[3]``, ``ptd[[5, 1]]``, a mask     reads these rows of all entries: a ``TensorDict``
        ``ptd[10:20]``                          reads nothing: a lazy view
        ``ptd.clone(False)``                    reads nothing: another lazy object over the same store
        ``ptd.to_tensordict()``, ``clone()``    reads everything: a ``TensorDict``
        ``ptd.unbatched``                       reads the entries without a batch dim: a ``TensorDict``
        ======================================  ============================================================

    Raises
    ------
    ValueError
        For an unknown mode, and for ``mode="r+"`` with a store that bare tensordict reads otherwise; the message names
        the first entry that differs.

    Examples
    --------
    >>> import tempfile, torch
    >>> from tensordict import TensorDict
    >>> path = tempfile.mkdtemp() + "/buffer.zarr"
    >>> _ = TensorDict({"obs": torch.arange(6.0).view(3, 2), "done": torch.zeros(3, dtype=torch.bool)}, [3]).to_zarr(path)
    >>> ptd = open_persistent(path)
    >>> ptd[[2, 0]]["obs"]
    tensor([[4., 5.],
            [0., 1.]])
    """
    _check_mode(mode, store)
    if "engine" in engine_keywords:
        raise TypeError("open_persistent always uses engine='tensordict'; for a Dataset of another engine use ds.td.to_persistent()")
    keywords = {"cache": False, **engine_keywords}
    if batch_dims is not None:
        keywords["batch_dims"] = batch_dims
    ds = xr.open_dataset(store, engine="tensordict", **keywords)
    description = describe_source(store)
    if mode == "r+":
        from .writable import open_writable

        return open_writable(store, ds, description, device=device, keywords=engine_keywords)
    try:
        return _persistent(ds, None, description=description, device=device, closer=ds.close)
    except BaseException:
        ds.close()
        raise


def _check_mode(mode: str, store: Any) -> None:
    if mode in {"r", "r+"}:
        return
    if mode in {"w", "w-", "x", "a"}:
        raise ValueError(
            f"mode={mode!r}: open_persistent opens stores that exist ({describe_source(store)}); write a new one with "
            f"td.to_zarr(path), td.to_h5(path), ds.td.to_zarr(path) or ds.td.to_h5(path)"
        )
    raise ValueError(f"mode: expected 'r' or 'r+', got {mode!r}")


def persistent_from_dataset(ds: xr.Dataset, batch_dims: BatchDims | None = None, *, device: Any = None) -> PersistentTensorDict:
    """A lazy ``PersistentTensorDict`` over a Dataset of any engine; nothing is written, and no array is read yet.

    Parameters
    ----------
    ds
        The Dataset; it is not changed, and ``close()`` does not close it.
    batch_dims
        Names, or a count, of the batch dims; by default those of ``ds.td``.
    device
        The device that entries are sent to when they are read.
    """
    source = ds.encoding.get("source")
    return _persistent(ds, batch_dims, description=str(source) if source else "the dataset", device=device, closer=None)


def _persistent(
    ds: xr.Dataset, batch_dims: BatchDims | None, *, description: str, device: Any, closer: Callable[[], None] | None
) -> XarrayPersistentTensorDict:
    plan = plan_entries(ds, infer_dataset(ds, given=batch_dims))
    _leave_out_times(plan)
    warn_left_out(plan.left_out)
    source = Source(description, {**_told(ds), **plan.left_out}, [Leaf.of(entry) for entry in plan.unbatched], closer)
    return XarrayPersistentTensorDict(group=Group.of(plan, source), device=device)


def _leave_out_times(plan: Plan) -> None:
    """Leave out times that int64 nanoseconds cannot hold, as ``to_tensordict`` does: only their values tell."""
    uncertain = [entry for entry in plan.entries if entry.variable.dtype.kind in "mM" and _may_overflow(entry)]
    for entry, values in zip(uncertain, compute_together([entry.variable for entry in uncertain]), strict=True):
        try:
            tensor_from_numpy(values, name=entry.name)
        except (OverflowError, TypeError) as error:
            plan.left_out[entry.name] = str(error)
            plan.entries.remove(entry)


def _may_overflow(entry: Entry) -> bool:
    return not entry.variable.dtype.name.endswith(("[ns]", "64"))


def _told(ds: xr.Dataset) -> dict[str, str]:
    """What the opening left out, by name; the note holds sentences like ``'a/b': reason``."""
    told = {}
    for sentence in ds.encoding.get("xarray_tensordict", {}).get("left_out", ()):
        quote = sentence[0]
        name, _, reason = sentence[1:].partition(f"{quote}: ")
        told[name] = reason
    return told


class XarrayPersistentTensorDict(PersistentTensorDict):
    """A ``PersistentTensorDict`` that reads through xarray; see :func:`open_persistent`."""

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

    def _node(self, key: Any) -> Leaf | Group:
        """The node of a key; raises for one that is not there, in words."""
        path = "/".join((key,) if isinstance(key, str) else key)
        group: Group = self.file
        if path in group:
            return group[path]
        name = group.full_name(path)
        if name in group.source.left_out:
            raise TypeError(f"{group.source.description}: {name!r} is left out: {group.source.left_out[name]}")
        if any(leaf.name == name for leaf in group.source.unbatched):
            raise KeyError(f"{name!r} of {group.source.description} has no batch dim: it is in .unbatched, and in ds.td.unbatched")
        raise KeyError(f"there is no entry {name!r} in {group.source.description}; there are: {sorted(group.members)}")

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
        return self._read(node, None)

    _get_tuple = _get_str

    def _get_at_str(self, key: Any, idx: Any, default: Any, **kwargs: Any) -> Any:
        node = self._get_array(key, default)
        if node is default:
            return default
        if isinstance(node, Group):
            return self._nested(unravel_key(key))[idx]
        if node.form != "value":
            return self._read(node, idx)
        return self._read(node, None)[idx]

    _get_at_tuple = _get_at_str

    def _read_array_at(self, array: Leaf, idx: Any) -> Any:
        return self._read(array, idx)

    def _read(self, leaf: Leaf, idx: Any) -> Any:
        """Read one entry, or with an index the part of it that the index picks."""
        self.file.source.check_open()
        selection = None if idx is None else select(idx, leaf.shape, what=repr(leaf.name))
        (array,) = read_together([(leaf, selection)])
        return self._sent(leaf.finish(array, selection, self.batch_size))

    def _sent(self, value: Any) -> Any:
        return value if self._device is None else value.to(self._device)

    def _nested(self, key: Any) -> XarrayPersistentTensorDict:
        first, *rest = (key,) if isinstance(key, str) else key
        found: XarrayPersistentTensorDict = self._nested_tensordicts[(first,)]
        return found._nested(tuple(rest)) if rest else found

    def _make_nested(self, key: Any, group: Group) -> XarrayPersistentTensorDict:
        import weakref

        nested = type(self)(group=group, device=self._device)
        nested._nested_parent = (weakref.ref(self), key)
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
        kind = {"non_tensor": True} if node.form == "rows" else {"dtype": node.dtype, "array": True}
        return {**kind, "shape": shape, "dim": len(shape)}

    def entry_class(self, key: Any) -> type:
        node = self._get_array(key)
        if isinstance(node, Group):
            return type(self)
        return {"tensor": torch.Tensor, "rows": NonTensorStack, "value": NonTensorData}[node.form]

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
            td.set(key, self._sent(leaf.finish(array, None, ())))
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

    def _leaves(self) -> Iterator[Leaf]:
        for name, member in self.file.members.items():
            if isinstance(member, Leaf):
                yield member
            else:
                yield from self._nested(name)._leaves()

    def _built(self, arrays: Values, selection: Selection | None) -> TensorDict:
        batch, names = self.batch_size, self._maybe_names()
        if selection is not None:
            batch = torch.Size((*selection.picked, *batch[len(selection.sizes) :]))
            names = self._get_names_idx(selection.items)
        entries: dict[str, Any] = {}
        for name, member in self.file.members.items():
            if isinstance(member, Leaf):
                entries[name] = member.finish(next(arrays), selection, batch)
            else:
                entries[name] = self._nested(name)._built(arrays, selection)
        return TensorDict(entries, batch_size=batch, names=names, device=self._device)

    # --- batch size, copies, devices ---

    def _check_batch_size(self, batch_size: Sequence[int]) -> None:
        size = tuple(batch_size)
        for name, member in self.file.members.items():
            shape = self._nested(name).batch_size if isinstance(member, Group) else member.shape
            value = isinstance(member, Leaf) and member.form == "value"
            if not value and tuple(shape[: len(size)]) != size:
                raise ValueError(f"batch size and array size mismatch: {name!r} has shape {tuple(shape)}, batch_size={size}")

    @PersistentTensorDict.batch_size.setter  # type: ignore[attr-defined, untyped-decorator]
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

    def _memmap_(
        self, *, prefix: Any, copy_existing: bool, executor: Any, futures: Any, inplace: bool, like: bool, robust_key: Any, **rest: Any
    ) -> Any:
        """Write one level as memory maps, holding one entry in memory at a time; what comes out is a plain TensorDict."""
        if inplace:
            self._refuse("memory-map in place", "use memmap()")
        level = TensorDict({}, batch_size=self.batch_size, names=self._maybe_names(), device="cpu")
        folder = None if prefix is None else Path(prefix)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        options = {"copy_existing": copy_existing, "executor": executor, "futures": futures, "inplace": False, "like": like}
        for name, member in self.file.members.items():
            if isinstance(member, Group):
                value: Any = self._nested(name)
            elif member.form != "tensor":
                value = self._read(member, None).to("cpu")
            else:
                filename = None if folder is None else memmap_filename(folder, name, robust_key)
                values = torch.zeros((), dtype=member.dtype).expand(member.shape) if like else self._read(member, None).cpu()
                value = MemoryMappedTensor.from_tensor(values, filename=filename, copy_data=not like, existsok=rest["existsok"])
            level._tensordict[name] = value
        # its own files are taken as they are
        return level._memmap_(prefix=folder, robust_key=robust_key, **options, **{**rest, "existsok": True})

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
                text = f"Tensor(shape={torch.Size(member.shape)}, dtype={member.dtype})"
            else:
                shape = torch.Size(member.shape) if member.form == "rows" else self.batch_size
                text = f"{self.entry_class(name).__name__}(shape={shape})"
            lines.append(f"{indent}        {name}: {text},")
        if not self.file.key:
            told = f", store={self.file.source.description!r}"
        else:
            told = ""
        lines[-1] = lines[-1].rstrip(",") + "}," if self.file.members else lines[-1] + "},"
        lines.append(f"{indent}    batch_size={self.batch_size}, names={self.names}, device={self.device}{told})")
        return "\n".join(lines)

    # --- what a read-only store refuses ---

    def _refuse(self, what: str, instead: str = "") -> NoReturn:
        raise TypeError(
            f"cannot {what}: {self.file!r} is read-only through xarray. Convert it first, with to_tensordict() to memory or "
            f"ds.td.to_zarr(path) to a new store, or open it with mode='r+' where bare tensordict reads it"
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


State = tuple[torch.Size, "list[str | None] | None", dict[Key, Any]]
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
