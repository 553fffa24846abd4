"""What this package uses of tensordict beyond its public names; all that depends on its version is here.

tensordict 0.14.3 and 0.15 are supported. What is needed and not there is named when this module is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module, metadata
from typing import Any

import tensordict
import torch
from packaging.version import Version
from tensordict import NonTensorData, PersistentTensorDict, TensorDict, TensorDictBase

VERSION = Version(metadata.version("tensordict"))
IS_0_14 = Version("0.15") > VERSION
"""Whether tensordict is of the versions that torchrl up to 0.14 needs."""

_SUPPORTED = "0.14.3 and 0.15"

_HOOKS = (
    "_clone _get_at_str _get_at_tuple _get_metadata _get_str _get_tuple _index_tensordict _memmap_ _set _stack_onto_"
).split()
"""The methods of ``PersistentTensorDict`` that :class:`LazyTensorDict` overrides."""

_ATTRIBUTES = "_backend _batch_size _nested_tensordicts".split()
"""The attributes that its ``__init__`` sets and :class:`LazyTensorDict` sets anew."""

_FUNCTIONS = {
    "tensordict.base": ("NO_DEFAULT",),
    "tensordict._pytree": ("_register_td_node",),
    "tensordict.persistent": ("_H5Backend",),
}


def _missing() -> list[str]:
    """What this package needs of tensordict and does not find."""
    missing = [f"PersistentTensorDict.{name}" for name in _HOOKS if not hasattr(PersistentTensorDict, name)]
    set_there = PersistentTensorDict.__init__.__code__.co_names
    missing += [f"PersistentTensorDict().{name}" for name in _ATTRIBUTES if name not in set_there]
    for module, names in _FUNCTIONS.items():
        try:
            found = import_module(module)
        except ImportError:
            missing.append(module)
            continue
        missing += [f"{module}.{name}" for name in names if not hasattr(found, name)]
    return missing


def _check(missing: Sequence[str]) -> None:
    if missing:
        raise ImportError(
            f"tensordict {VERSION} lacks {', '.join(missing)} (private interfaces), which open_persistent "
            f"and ds.td.to_persistent need. They work with tensordict {_SUPPORTED}: install one of these versions. "
            f"xr.open_dataset(store, engine='tensordict') and ds.td.to_tensordict() work without"
        )


_check(_missing())

from tensordict._pytree import _register_td_node  # noqa: E402 - after the check
from tensordict.base import NO_DEFAULT as NO_DEFAULT  # noqa: E402
from tensordict.persistent import _H5Backend  # noqa: E402

register_pytree: Any = _register_td_node


# --- tensordict's own objects ----------------------------------------------------------------------------------------


def open_bare(*, allow_pickle: bool | None = None, **arguments: Any) -> PersistentTensorDict:
    """Open or create a store with tensordict itself.

    Rows of text are read as such, except by tensordict 0.14: it reads them as one value, and all that is pickled.
    """
    if not IS_0_14:
        arguments |= {"non_tensor_as_stack": True, "allow_pickle": allow_pickle}
    return PersistentTensorDict(**arguments)


class _H5GroupBackend(_H5Backend):
    def close(self, file: Any) -> None:
        file.file.close()


def close_with_file(td: PersistentTensorDict) -> None:
    """Make ``close()`` of a tensordict over a group of an HDF5 file close the file."""
    td._backend = _H5GroupBackend()  # type: ignore[no-untyped-call]


def entry_class(td: PersistentTensorDict, key: Any) -> type:
    """The class of an entry, which is not read."""
    try:
        return td.entry_class(key)
    except RuntimeError:  # 0.14 raises for all that is neither a tensor nor a group
        return NonTensorData


def metadata_of(td: PersistentTensorDict, key: Any) -> dict[str, Any]:
    """The shape and dtype of an entry, which is not read."""
    metadata: dict[str, Any] = td._get_metadata(key)
    return metadata


def indexed_names(names: list[str | None] | None, size: torch.Size, index: Any) -> list[str | None] | None:
    """The names of the batch dims of what an index picks; None where none has one."""
    if names is None:
        return None
    if len(index) == 1 and (type(index[0]) is int or (isinstance(index[0], torch.Tensor) and index[0].ndim == 1)):
        found = names[1:] if type(index[0]) is int else names  # what most reads ask for, 60 µs faster
        return found if any(name is not None for name in found) else None
    tensors = [item for item in index if isinstance(item, torch.Tensor)]
    if IS_0_14 and (len(tensors) > 1 or any(tensor.ndim > 1 for tensor in tensors)):
        return None  # it would give one name to several dims
    found = TensorDict(batch_size=size, names=names)[index].names  # type: ignore[arg-type]
    return found if any(name is not None for name in found) else None


# --- tensordicts that this package reads -----------------------------------------------------------------------------


class _ReadOnlyBackend:
    """What a ``PersistentTensorDict`` asks of its storage where no method of :class:`LazyTensorDict` comes before it."""

    allow_pickle = False

    def keys(self, file: Any) -> Iterator[str]:
        return iter(file.entries)

    def walk_keys(self, file: Any) -> Any:
        return file.walk()

    def contains(self, file: Any, key: str) -> bool:
        return key in file

    def close(self, file: Any) -> None:
        file.close()

    def is_read_only(self, file: Any) -> bool:
        return True


class LazyTensorDict(PersistentTensorDict):
    """A read-only ``PersistentTensorDict`` that a subclass reads.

    tensordict's private methods end here: each calls one of those below, or refuses.

    Parameters
    ----------
    group
        It is the attribute ``file``: it has the names of its ``entries`` and the tensordicts of its groups (``levels``), can
        ``walk()`` through all paths below it, checks whether a path is in it, can be closed, and raises the refusals
        (``refuse(action, key)``).
    batch_size
        The batch size.
    names
        The names of the batch dims, None where none has one.
    device
        The device of what is read.
    """

    file: Any
    _td_dim_names: Any = None

    def __init__(self, *, group: Any, batch_size: Sequence[int], names: list[str | None] | None, device: Any) -> None:
        super().__init__(group=group, batch_size=batch_size, device=device, validate_batch_size=False)
        self.backend = "xarray"
        self._backend: Any = _ReadOnlyBackend()
        self._nested_tensordicts: Any = group.levels
        self._set_batch(torch.Size(batch_size), names)

    # --- what a subclass implements ---

    _read_entry: Any
    """``(key, default)``: read an entry; `default` is ``NO_DEFAULT`` where a missing one is an error."""
    _read_entry_at: Any
    """``(key, index, default)``: read rows of an entry."""
    _read_rows: Any
    """``(index)``: read rows of all entries."""
    _describe: Callable[[Any], dict[str, Any]]
    """``(key)``: what tensordict asks of an entry without reading it. A dict with ``array`` (True: a tensor, False: a group) or
    ``non_tensor=True``, and with ``shape``, ``dim`` and ``dtype`` if it has them."""
    _copy_lazily: Any
    """``()``: another lazy object over the same store."""
    _copy_data: Any
    """``(newfile)``: read everything, into a new file if one is given."""
    _read_into_maps: Any
    """``(prefix, **options)``: read everything into memory maps, below the folder `prefix` if there is one."""

    # --- what it uses ---

    def _set_batch(self, size: torch.Size, names: list[str | None] | None) -> None:
        """Set the batch size and its names, of this level alone and without checking them."""
        self._batch_size, self._td_dim_names = size, names

    # --- the hooks of tensordict ---

    # Nothing is cached while locked: what was read is the caller's, and a locked store is no copy of its data.
    @property
    def _cache(self) -> None:
        return None

    @_cache.setter
    def _cache(self, value: Any) -> None:
        pass

    # in 0.14 PersistentTensorDict has its own, which does not ask the hook
    get_at = TensorDictBase.get_at

    def _get_str(self, key: Any, default: Any, **kwargs: Any) -> Any:
        return self._read_entry(tensordict.unravel_key(key), default)

    _get_tuple = _get_str

    def _get_at_str(self, key: Any, idx: Any, default: Any, **kwargs: Any) -> Any:
        return self._read_entry_at(tensordict.unravel_key(key), idx, default)

    _get_at_tuple = _get_at_str

    def _get_metadata(self, key: Any) -> dict[str, Any]:
        try:
            described: dict[str, Any] = self._describe(tensordict.unravel_key(key))
        except TypeError as error:  # left out; `key in td.keys()` asks here, and knows a KeyError
            raise KeyError(str(error)) from None
        return described

    def _index_tensordict(self, index: Any, new_batch_size: Any = None, names: Any = None) -> Any:
        return self._read_rows(index)

    def _clone(self, recurse: bool = True, newfile: Any = None) -> Any:
        return self._copy_data(newfile) if recurse else self._copy_lazily()

    def _memmap_(
        self, *, prefix: Any, inplace: bool, existsok: bool, robust_key: Any, share_non_tensor: bool, **rest: Any
    ) -> Any:
        if inplace:
            self.file.refuse("memory-map in place")
        return self._read_into_maps(prefix, existsok=existsok, robust_key=robust_key, share_non_tensor=share_non_tensor)

    def _set(self, key: Any, *args: Any, **kwargs: Any) -> Any:
        self.file.refuse("write", key)

    def _stack_onto_(self, list_item: Any, dim: int) -> Any:
        self.file.refuse("write entries")

    # tensordict's own ways to open and write stay its own
    from_dict = PersistentTensorDict.from_dict
    from_h5 = PersistentTensorDict.from_h5
    from_zarr = PersistentTensorDict.from_zarr
