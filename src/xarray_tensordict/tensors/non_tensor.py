"""Non-tensor data, strings and other Python objects: from numpy arrays to a tensordict, and back."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack

from .._compat.tensordict import IS_0_14
from ..core.values import is_number, objects, python_objects
from ..quiet import without_collection

Array: TypeAlias = np.ndarray[Any, Any]

_PLAIN_TYPES = (str, bytes, bool, int, float, complex, type(None))
"""What ``NonTensorStack(*rows)`` wraps by itself, 3 times faster than one ``NonTensorData`` after the other."""


# --- numpy -> tensordict ----------------------------------------------------------------------------------------------


def python_value(array: np.ndarray[Any, Any]) -> Any:
    """One value as Python holds it: a str and not a ``np.str_``; an array of more dimensions as nested lists.

    It is a value of its own: a change of it is seen nowhere else.
    """
    if array.dtype.kind in "mM":
        return array.astype("int64").tolist()
    value = array.item() if array.ndim == 0 else array.tolist()
    return str(value) if isinstance(value, np.str_) else deepcopy(value)


def rows_from_numpy(
    array: Any, *, ndim: int, batch_size: Sequence[int], names: Sequence[str | None] | None = None
) -> NonTensorStack | NonTensorData:
    """Turn an array of strings or objects into non-tensor data, one Python object per row.

    Parameters
    ----------
    array
        Strings (fixed length, variable length, bytes), objects, or numbers that are to be kept as Python numbers.
    ndim
        How many leading axes are the batch. With 0 the whole array is one value.
    batch_size
        The batch size of the result. With ``ndim > 0`` it is the shape of the leading axes.
    names
        The names of the batch dims. A tensordict with names copies all rows of a stack that has others (measured,
        100,000 strings: 1.4 to 2.1 s; 0.2 s where they are the same).

    Returns
    -------
    NonTensorStack or NonTensorData
        A stack of the rows: ``str`` (never ``np.str_``), ``bytes``, None and NaN as they are, arrays in object arrays
        as they are; where `array` has more than `ndim` axes each row is a (nested) list. For ``ndim == 0`` one
        NonTensorData with the value.

    Examples
    --------
    >>> import numpy as np
    >>> rows_from_numpy(np.array(["a", "b"]), ndim=1, batch_size=[2]).tolist()
    ['a', 'b']
    >>> rows_from_numpy(np.array(["a", "b"]), ndim=0, batch_size=[]).data
    ['a', 'b']
    """
    values = np.asarray(array)
    size = torch.Size(batch_size)
    if ndim == 0:
        return NonTensorData(data=_python_rows(values[None])[0], batch_size=size)
    if tuple(size) != values.shape[:ndim]:
        raise ValueError(
            f"the rows of an array of shape {values.shape} with {ndim} batch axes have batch size "
            f"{list(values.shape[:ndim])}, not {list(size)}"
        )
    if 0 in size and IS_0_14:  # which cannot hold a stack without rows
        return NonTensorData(data="", batch_size=size)
    stack: NonTensorStack
    with without_collection():
        if 0 in size:  # ``NonTensorStack()`` alone has only one dim
            shape = tuple(max(length, 1) for length in size)
            stack = _stack_rows([None] * prod(shape), shape)[tuple(slice(length) for length in size)]
        else:
            rows = _python_rows(values.reshape((size.numel(), *values.shape[ndim:])))
            stack = _stack_rows(rows, tuple(size), tuple(names or (None,) * ndim))
    return stack


def _python_rows(array: Array) -> list[Any]:
    """One Python object for each step along the first axis."""
    # tolist() would give bare ints for nanoseconds
    rows: list[Any] = python_objects(objects(array.flat, array.shape) if array.dtype.kind in "mM" else array)
    return rows


def _stack_rows(rows: list[Any], size: tuple[int, ...], names: tuple[str | None, ...] = ()) -> Any:
    name, rest = (names[0], names[1:]) if names else (None, ())
    if len(size) > 1:
        step = len(rows) // size[0]
        parts = (_stack_rows(rows[i : i + step], size[1:], rest) for i in range(0, len(rows), step))
        return NonTensorStack(*parts, stack_dim_name=name)
    wrapped = (row if type(row) in _PLAIN_TYPES else NonTensorData(data=row) for row in rows)
    return NonTensorStack(*wrapped, stack_dim_name=name)


# --- tensordict -> numpy ----------------------------------------------------------------------------------------------


def one_value(value: Any) -> Array:
    """Hold one Python value in a 0-d array, whatever it is, such that ``.item()`` gives it back.

    Examples
    --------
    >>> one_value("text"), one_value(2.5)
    (array('text', dtype='<U4'), array(2.5))
    >>> one_value([1, "a"])
    array(list([1, 'a']), dtype=object)
    """
    if isinstance(value, (bool, int, float, complex, str, bytes)) or is_number(value):
        plain = np.asarray(value)
        # numpy drops zeros at the end of strings, and cannot hold large ints
        if plain.dtype.kind != "O" and (plain.dtype.kind not in "SU" or plain.item() == value):
            return plain
    return objects([value], ())
