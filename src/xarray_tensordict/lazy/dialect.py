"""The storage dialect through which a ``PersistentTensorDict`` reads lazy nodes, and all that is private of tensordict.

tensordict's ``PersistentTensorDict`` leaves storage to a dialect, one method for each thing it asks of h5py or zarr.
The one here answers from :mod:`.lazy_nodes`. The interface is private: this module is the only one that imports private
names, and it says at import what is missing where a version of tensordict has another interface.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import tensordict
import torch
from tensordict import PersistentTensorDict

from ..dataset.entries import Entry
from .lazy_nodes import Group, finish, read_together
from .selection import select

_WORKS_FROM = "0.15.3"

_OF_THE_CLASS = (
    "_check_batch_size _clone _create_nested_str _create_nested_tuple _del _fill_ _from_dict _get_array _get_at_str "
    "_get_at_tuple _get_metadata _get_names_idx _get_str _get_tuple _index_tensordict _inplace_on_copies _make_nested "
    "_masked_fill_ _maybe_names _memmap_ _open_h5 _open_zarr _read_array_at _rename_key _set _set_at_str _set_at_tuple "
    "_set_non_tensor _set_str _set_tuple _setitem_index _stack_onto_ _to_tensordict _write_back"
).split()
"""The methods that :mod:`.persistent` overrides or calls."""

_OF_THE_DIALECT = (
    "is_array is_non_tensor is_non_tensor_meta node_dtype read_full read_non_tensor read_at holds_rows is_read_only "
    "non_tensor_stack_shape read_non_tensor_stack keys walk_keys contains close getstate setstate"
).split()


def _probe() -> list[str]:
    """What this package needs of tensordict and does not find."""
    from importlib import import_module

    missing = [f"PersistentTensorDict.{name}" for name in _OF_THE_CLASS if not hasattr(PersistentTensorDict, name)]
    wanted = {
        "tensordict.persistent": ("_H5Backend", "_PersistentBackend"),
        "tensordict.base": ("NO_DEFAULT", "_register_tensor_class"),
        "tensordict._pytree": ("_register_td_node",),
        "tensordict._td_memmap": ("_memmap_filename",),
    }
    for module, names in wanted.items():
        try:
            found = import_module(module)
        except ImportError:
            missing.append(module)
            continue
        missing += [f"{module}.{name}" for name in names if not hasattr(found, name)]
    backend = getattr(import_module("tensordict.persistent"), "_PersistentBackend", None)
    if backend is not None:
        missing += [f"_PersistentBackend.{name}" for name in _OF_THE_DIALECT if not hasattr(backend, name)]
    return missing


def _check(missing: Sequence[str]) -> None:
    if missing:
        raise ImportError(
            f"tensordict {tensordict.__version__} lacks {', '.join(missing)}, which the lazy door of xarray-tensordict "
            f"needs (private interfaces). It works with tensordict {_WORKS_FROM} and newer versions that keep them: "
            f"install one of these. xr.open_dataset(store, engine='tensordict') and ds.td.to_tensordict() work without"
        )


_check(_probe())

from tensordict._pytree import _register_td_node  # noqa: E402 - after the probe
from tensordict._td_memmap import _memmap_filename  # noqa: E402
from tensordict.base import NO_DEFAULT, _register_tensor_class  # noqa: E402
from tensordict.persistent import _H5Backend, _PersistentBackend  # noqa: E402

__all__ = [
    "NO_DEFAULT",
    "H5GroupDialect",
    "XarrayDialect",
    "memmap_filename",
    "metadata_of",
    "register_class",
    "register_pytree",
    "unravel_key",
]

# tensordict gives them no types
memmap_filename: Any = _memmap_filename
register_class: Any = _register_tensor_class
register_pytree: Any = _register_td_node
unravel_key: Any = tensordict.unravel_key


def metadata_of(td: Any, key: Any) -> dict[str, Any]:
    """What a ``PersistentTensorDict`` says of an entry without reading it: shape, and dtype if it is a tensor."""
    metadata: dict[str, Any] = td._get_metadata(key)
    return metadata


class H5GroupDialect(_H5Backend):
    """tensordict's own dialect of HDF5, for a group of a file: ``close()`` closes the file."""

    def close(self, file: Any) -> None:
        file.file.close()


class XarrayDialect(_PersistentBackend):
    """Reads groups and leaves of a Dataset; refuses every write.

    The "file" and the "groups" of tensordict are :class:`~.lazy_nodes.Group` objects, its "arrays" leaves.
    """

    name = "xarray"
    allow_pickle = False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @staticmethod
    def available() -> bool:
        return True

    def check_available(self) -> None:
        """Nothing beyond this package is needed."""

    # --- what a node is ---

    def is_array(self, node: Entry | Group) -> bool:
        return isinstance(node, Entry)

    def is_non_tensor(self, node: Entry) -> bool:
        return node.form != "tensor"

    def is_non_tensor_meta(self, node: Entry) -> bool:
        return node.form != "tensor"

    def node_dtype(self, node: Entry) -> Any:
        return node.variable.dtype

    def holds_rows(self, node: Entry, batch_size: Sequence[int]) -> bool:
        # by its dims, not by its sizes: the plan has decided
        return node.form == "rows"

    def non_tensor_stack_shape(self, node: Entry) -> torch.Size | None:
        return torch.Size(node.sizes) if node.form == "rows" else None

    # --- reads ---

    def read_full(self, node: Entry) -> torch.Tensor:
        (array,) = read_together([(node, None)])
        tensor: torch.Tensor = finish(node, array, None, node.sizes)
        return tensor

    def read_non_tensor(self, node: Entry) -> Any:
        (array,) = read_together([(node, None)])
        value = finish(node, array, None, node.sizes)
        return value.tolist() if node.form == "rows" else value.data

    read_non_tensor_stack = read_non_tensor

    def read_at(self, node: Entry, idx: Any, device: Any) -> torch.Tensor:
        selection = select(idx, node.shape)
        (array,) = read_together([(node, selection)])
        tensor: torch.Tensor = finish(node, array, selection, selection.picked)
        return tensor.to(device)

    # --- structure ---

    def keys(self, file: Group) -> Iterator[str]:
        return iter(file.members)

    def walk_keys(self, file: Group) -> Iterator[str]:
        return file.walk()

    def contains(self, file: Group, key: str) -> bool:
        return key in file

    def close(self, file: Group) -> None:
        file.source.close()

    # --- pickling: nodes pickle without data, as their variables do ---

    def getstate(self, file: Group) -> dict[str, Any]:
        return {"node": file}

    def setstate(self, state: dict[str, Any]) -> Any:
        return state.pop("node")

    # --- writes ---

    def is_read_only(self, file: Group) -> bool:
        return True

    def open_file(self, filename: Any, mode: str) -> NoReturn:
        raise TypeError("use xarray_tensordict.open_persistent(store) to open a store")

    def open_new_file(self, filename: Any, metadata: Mapping[str, Any] | None = None) -> NoReturn:
        raise TypeError("write a new store with td.to_zarr(path), td.to_h5(path) or ds.td.to_zarr(path)")
