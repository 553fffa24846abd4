"""The methods that write to a tensordict, refused in words by lazy objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..tensors.selection import is_key

Class = TypeVar("Class", bound=type)

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
