"""The values of one entry of a tensordict as a numpy array: how a Dataset holds what a tensordict holds.

No dims and no names are decided here, only values: tensors through :mod:`.values`, and non-tensor data as strings,
numbers or objects.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tensordict import UnbatchedTensor

from ..core.model import Key
from .non_tensor import flatten, one_value, rows
from .values import numpy_from_tensor
from .walking import NonTensor

NON_TENSOR = "tensordict_non_tensor"
"""Marks a variable in its encoding: a tensordict holds its numbers (or its single value) as non-tensor data."""

Array = np.ndarray[Any, Any]


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
    """

    key: Key
    values: Array
    batch_axes: int
    encoding: dict[str, Any] = field(default_factory=dict)
    child: torch.Tensor | NonTensor | None = None

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


def make_leaf(key: Key, child: torch.Tensor | NonTensor, batch_axes: int) -> Leaf:
    """Read the values of one entry.

    Parameters
    ----------
    key
        Its key.
    child
        What the tensordict holds.
    batch_axes
        The number of batch dims of the tensordict it is in.

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
