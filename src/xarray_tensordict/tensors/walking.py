"""What is in a tensordict of any class, level by level, and each entry as a numpy array.

Reading the entries of a tensordict has exceptions that depend on its class, and all of them are here: tensorclasses
hand out plain Python values, lazy stacks hide the keys that one of their members lacks and promote dtypes that differ,
and non-tensor data comes as one value for the batch or as one for each row.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from tensordict import (
    LazyStackedTensorDict,
    NonTensorStack,
    PersistentTensorDict,
    UnbatchedTensor,
    is_non_tensor,
    is_tensor_collection,
)

from ..core.model import Key
from ..core.values import flatten, rows
from .values import Array, numpy_from_tensor, one_value

TensorCollection: TypeAlias = Any
"""A TensorDict, PersistentTensorDict, lazy stack or tensorclass: tensordict has no common typed base for them."""


@dataclass(frozen=True)
class NonTensor:
    """A non-tensor entry.

    Attributes
    ----------
    value
        The value itself, or with ``stacked`` a list of values, nested once for each batch axis.
    batch_size
        The batch it is in.
    stacked
        Whether each row has its own value.
    """

    value: Any
    batch_size: tuple[int, ...]
    stacked: bool

    def tolist(self) -> Any:
        """One value per row in nested lists, as tensordict's ``tolist()``."""
        rows = self.value
        if not self.stacked:
            for size in reversed(self.batch_size):
                rows = [rows] * size
        return rows


Child: TypeAlias = "torch.Tensor | NonTensor | TensorCollection"


def children(td: TensorCollection) -> dict[str, Child]:
    """Return what one level of a tensordict holds: tensors, non-tensor entries and nested tensordicts.

    Strings that tensordict wrote to an HDF5 file are ``str``. tensordict itself reads them as bytes, with a warning, until
    its version 0.17.

    Examples
    --------
    >>> from tensordict import TensorDict
    >>> children(TensorDict({"a": torch.zeros(2), "b": "text"}, batch_size=[2]))["b"]
    NonTensor(value='text', batch_size=(2,), stacked=False)
    """
    size = tuple(td.batch_size)
    keys = list(td.keys())  # iterating the tensordict itself gives its rows
    if isinstance(td, PersistentTensorDict):
        return {key: _decoded(td, key) for key in keys}
    return {key: _child(td.get(key), size) for key in keys}


def is_node(child: Child) -> bool:
    """Whether an entry is a nested tensordict."""
    return not isinstance(child, (torch.Tensor, NonTensor))


def has_leaves(child: Child) -> bool:
    """Whether anything is left of an entry when empty groups are pruned."""
    if isinstance(child, (torch.Tensor, NonTensor)):
        return True
    stack = stack_of(child)
    if stack is not None:
        return any(has_leaves(member) for member in stack.tensordicts)
    size = tuple(child.batch_size)
    return any(has_leaves(_child(child.get(key), size)) for key in list(child.keys()))


def _child(value: Any, batch_size: tuple[int, ...]) -> Child:
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, NonTensorStack):
        return NonTensor(value.tolist(), tuple(value.batch_size), stacked=True)
    if is_non_tensor(value):
        return NonTensor(value.data, tuple(value.batch_size), stacked=False)
    if is_tensor_collection(value):
        return value
    # A tensorclass unwraps its fields: one value per row comes as a LinkedList, one value for all as it is.
    if type(value).__name__ == "LinkedList":
        return NonTensor(_plain_lists(value), batch_size, stacked=True)
    return NonTensor(value, batch_size, stacked=False)


def _decoded(td: PersistentTensorDict, key: str) -> Child:
    """Read one entry; what tensordict warns about as "a string which tensordict wrote, read as bytes" is decoded."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        child = _child(td.get(key), tuple(td.batch_size))
    is_text = False
    for warning in caught:
        if issubclass(warning.category, FutureWarning) and "reads the string" in str(warning.message):
            is_text = True
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if is_text and isinstance(child, NonTensor) and isinstance(child.value, bytes):
        return NonTensor(child.value.decode(), child.batch_size, child.stacked)
    return child


def _plain_lists(value: Any) -> Any:
    if type(value).__name__ == "LinkedList":
        return [_plain_lists(item) for item in value]
    return value


# --- lazy stacks ------------------------------------------------------------------------------------------------------


def stack_of(td: TensorCollection) -> LazyStackedTensorDict | None:
    """Return the lazy stack that `td` is, or that a tensorclass is made of; None for every other tensordict."""
    # a tensorclass has no public way to the tensordict it wraps
    inner = vars(td).get("_tensordict", td) if not isinstance(td, LazyStackedTensorDict) else td
    return inner if isinstance(inner, LazyStackedTensorDict) else None


def stack_conflict(td: TensorCollection, key: Sequence[str] = ()) -> str | None:
    """Why the members of a lazy stack cannot be one array per entry; None where they can.

    Examples
    --------
    >>> from tensordict import TensorDict, lazy_stack
    >>> stack_conflict(lazy_stack([TensorDict({"a": torch.zeros(n)}) for n in (2, 3)]))
    "'a' has shape (2,) in member 0 and (3,) in member 1"
    """
    stack = stack_of(td)
    if stack is None or not stack.tensordicts:
        return None
    first, *others = (children(member) for member in stack.tensordicts)
    for number, other in enumerate(others, start=1):
        for name in sorted(first.keys() | other.keys()):
            path = repr("/".join((*key, name)))
            if name not in first or name not in other:
                has, lacks = (0, number) if name in first else (number, 0)
                return f"{path} is in member {has} and not in member {lacks}"
            conflict = _child_conflict(first[name], other[name])
            if conflict:
                return f"{path} {conflict[0]} in member 0 and {conflict[1]} in member {number}"
    return None


def _child_conflict(a: Child, b: Child) -> tuple[str, str] | None:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.shape != b.shape:
            return f"has shape {tuple(a.shape)}", f"{tuple(b.shape)}"
        if a.dtype != b.dtype:
            return f"has dtype {a.dtype}", f"{b.dtype}"
        return None
    kinds = [_kind(child) for child in (a, b)]
    if is_node(a) and is_node(b) and a.batch_size != b.batch_size:  # type: ignore[union-attr]
        return f"has batch size {list(a.batch_size)}", f"{list(b.batch_size)}"  # type: ignore[union-attr]
    return (f"is a {kinds[0]}", f"a {kinds[1]}") if kinds[0] != kinds[1] else None


def _kind(child: Child) -> str:
    if isinstance(child, torch.Tensor):
        return "tensor"
    return "non-tensor entry" if isinstance(child, NonTensor) else "nested tensordict"


# --- one entry as an array --------------------------------------------------------------------------------------------

NON_TENSOR = "tensordict_non_tensor"
"""Marks a variable in its encoding: a tensordict holds its numbers (or its single value) as non-tensor data."""


@dataclass
class Leaf:
    """One entry, about to become a variable.

    Attributes
    ----------
    key
        Its key.
    values
        Its values.
    batch_axes
        How many of the leading axes are those of the batch.
    encoding
        The encoding of the variable.
    child
        What the tensordict holds.
    dims
        The names of its axes, once they are known.
    """

    key: Key
    values: Array
    batch_axes: int
    encoding: dict[str, Any] = field(default_factory=dict)
    child: torch.Tensor | NonTensor | None = None
    dims: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the variable."""
        return "/".join(self.key)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the variable."""
        return tuple(self.values.shape)

    @property
    def is_tensor(self) -> bool:
        """Whether it is data, and not non-tensor data, which becomes a coordinate."""
        return isinstance(self.child, torch.Tensor)


def read_leaf(key: Key, child: torch.Tensor | NonTensor, batch_axes: int) -> Leaf:
    """Read the values of one entry of a tensordict with so many batch dims.

    Raises
    ------
    TypeError, ValueError
        For tensors that no array can hold (sparse, nested, quantized, on the meta device).
    """
    if isinstance(child, torch.Tensor):
        values, torch_dtype = numpy_from_tensor(child, name="/".join(key))
        encoding: dict[str, Any] = {} if torch_dtype is None else {"torch_dtype": torch_dtype}
        return Leaf(key, values, 0 if isinstance(child, UnbatchedTensor) else batch_axes, encoding, child)
    if not child.stacked:
        return Leaf(key, one_value(child.value), 0, {NON_TENSOR: True}, child)
    values = rows(flatten(child.value, len(child.batch_size)), child.batch_size)
    encoding = {} if values.dtype.kind in "OSU" else {NON_TENSOR: True}
    return Leaf(key, values, min(batch_axes, values.ndim), encoding, child)
