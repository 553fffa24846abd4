"""The values of one entry of a tensordict as a numpy array: how a Dataset holds what a tensordict holds.

No dims and no names are decided here, only values: tensors through :mod:`.values`, and non-tensor data as strings,
numbers or objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch
from tensordict import UnbatchedTensor

from ..core.model import Key
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


def one_value(value: Any) -> Array:
    """Hold one Python value in a 0-d array, whatever it is, such that ``.item()`` gives it back.

    Examples
    --------
    >>> one_value("text"), one_value(2.5)
    (array('text', dtype='<U4'), array(2.5))
    >>> one_value([1, "a"])
    array(list([1, 'a']), dtype=object)
    """
    if isinstance(value, (bool, int, float, complex, str, bytes)) or _is_number(value):
        plain = np.asarray(value)
        # numpy drops zeros at the end of strings, and cannot hold large ints
        if plain.dtype.kind != "O" and (plain.dtype.kind not in "SU" or plain.item() == value):
            return plain
    return objects([value], ())


def rows(values: list[Any], shape: tuple[int, ...]) -> Array:
    """Hold one value for each row: numbers of one type as numbers, everything else as objects.

    Examples
    --------
    >>> rows(["a", "bc"], (2,))
    array(['a', 'bc'], dtype=object)
    >>> rows([1, 2], (2,)), rows([1, 2.5], (2,))
    (array([1, 2]), array([1, 2.5], dtype=object))
    """
    types = {type(value) for value in values}
    if len(types) == 1 and (types <= {bool, int, float, complex} or _is_number(values[0])):
        numbers = np.array(values)
        if numbers.dtype.kind in "biufc" and (int not in types or numbers.dtype.kind in "iu"):
            return numbers.reshape(shape)
    return objects(values, shape)


def objects(values: Iterable[Any], shape: tuple[int, ...]) -> Array:
    """Make an object array of exactly these elements, also where they are lists or arrays themselves."""
    result = np.empty(prod(shape), object)
    for position, value in enumerate(values):
        result[position] = value
    return result.reshape(shape)


def flatten(nested: Any, depth: int) -> list[Any]:
    """The elements of lists that are nested `depth` deep."""
    flat = list(nested)
    for _ in range(depth - 1):
        flat = [item for part in flat for item in part]
    return flat


def nested_shape(value: Any) -> tuple[int, ...] | None:
    """The shape of nested lists if they are rectangular; ``()`` for what is no list, None for ragged ones.

    Examples
    --------
    >>> nested_shape([["a", "b"], ["c", "d"]]), nested_shape([["a"], "b"])
    ((2, 2), None)
    """
    if not isinstance(value, list):
        return ()
    shapes = {nested_shape(item) for item in value}
    if len(shapes) > 1 or None in shapes:
        return None
    return (len(value), *(shapes.pop() or ())) if shapes else (len(value),)


def _is_number(value: Any) -> bool:
    return isinstance(value, np.generic) and value.dtype.kind in "biufc"
