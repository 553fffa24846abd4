"""Non-tensor data, strings and other Python objects: from numpy arrays to a tensordict, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack

from .._compat.tensordict import IS_0_14
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
    if 0 in size:
        # a tensordict of 0.14 cannot hold a stack without rows
        return NonTensorData(data="", batch_size=size) if IS_0_14 else _empty_stack(tuple(size))
    rows = _python_rows(values.reshape((size.numel(), *values.shape[ndim:])))
    with without_collection():
        return _stack_rows(rows, tuple(size), tuple(names or (None,) * ndim))


def _python_rows(array: np.ndarray[Any, Any]) -> list[Any]:
    """One Python object for each step along the first axis."""
    kind = array.dtype.kind
    if kind == "O":
        array = _python_objects(array)
    elif kind in "mM":
        # tolist() would give bare ints for nanoseconds
        objects = np.empty(array.shape, object)
        for index in np.ndindex(array.shape):
            objects[index] = array[index]
        array = objects
    rows: list[Any] = array.tolist()
    return rows


def _python_objects(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Numpy's own strings and numbers replaced by Python's; everything else is kept as it is."""
    flat = array.ravel()
    if not any(isinstance(item, _NUMPY_SCALARS) for item in flat):
        return array
    result = np.empty(flat.shape, object)
    for position, item in enumerate(flat):
        result[position] = item.item() if isinstance(item, _NUMPY_SCALARS) else item
    return result.reshape(array.shape)


_NUMPY_SCALARS = (np.str_, np.bytes_, np.bool_, np.number)


def _stack_rows(rows: list[Any], size: tuple[int, ...], names: tuple[str | None, ...] = ()) -> NonTensorStack:
    name, rest = (names[0], names[1:]) if names else (None, ())
    if len(size) > 1:
        step = len(rows) // size[0]
        parts = (_stack_rows(rows[i : i + step], size[1:], rest) for i in range(0, len(rows), step))
        return NonTensorStack(*parts, stack_dim_name=name)
    wrapped = (row if type(row) in _PLAIN_TYPES else NonTensorData(data=row) for row in rows)
    return NonTensorStack(*wrapped, stack_dim_name=name)


def _empty_stack(size: tuple[int, ...]) -> NonTensorStack:
    """A stack without rows that still has its whole batch size: ``NonTensorStack()`` alone is always ``[0]``."""
    if size[0]:
        return NonTensorStack(*(_empty_stack(size[1:]) for _ in range(size[0])))
    if len(size) == 1:
        return NonTensorStack()
    row = _empty_stack(size[1:]) if 0 in size[1:] else _stack_rows([None] * int(np.prod(size[1:])), size[1:])
    empty: NonTensorStack = NonTensorStack(row)[:0]
    return empty


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
