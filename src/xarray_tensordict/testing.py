"""Assertions for tests of code that moves tensordicts through stores.

``==``, ``.all()`` and ``assert_close`` of tensordict overlook dtypes, names, batch sizes and strings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from tensordict import UnbatchedTensor, is_tensor_collection

from .tensors.values import numpy_from_tensor
from .tensors.walking import Child, NonTensor, TensorCollection, children, has_leaves, is_node, stack_conflict, stack_of

__all__ = ["assert_same_tensordict"]

Difference = tuple[str, str, str]
"""What differs, what was expected, what was found."""


def assert_same_tensordict(a: TensorCollection, b: TensorCollection) -> None:
    """Raise unless two tensordicts hold the same data, to the bit.

    The same are: the keys of the leaves (in any order; groups without leaves do not count); the batch size and the
    dimension names of every level; the dtype and the bits of every tensor, except that every NaN equals every NaN;
    unbatched tensors only among themselves; non-tensor entries through ``tolist()``, with ``str``, ``bytes``,
    ``bool``, ``int`` and ``float`` distinguished, arrays by dtype and element by element, and one value for a whole batch
    equal to a stack of rows that all hold it.

    Neither the class of the tensordict (in memory, persistent, a lazy stack, a tensorclass) counts nor the device.

    Parameters
    ----------
    a
        What is expected.
    b
        What was found.

    Raises
    ------
    AssertionError
        The first difference, in the order of the sorted keys.

    Examples
    --------
    >>> import torch
    >>> from tensordict import TensorDict
    >>> a = TensorDict({"x": torch.zeros(2, 3)}, batch_size=[2])
    >>> assert_same_tensordict(a, a.clone())
    >>> assert_same_tensordict(a, a.to(torch.float64))
    Traceback (most recent call last):
        ...
    AssertionError: tensordicts differ at 'x': dtype: expected torch.float32, found torch.float64
    """
    for td in (a, b):
        if not is_tensor_collection(td):
            raise TypeError(f"expected two tensordicts, found a {type(td).__name__}")
    for what, expected, found in _levels(a, b, ()):
        raise AssertionError(f"tensordicts differ at {what}: expected {expected}, found {found}")


def _levels(a: TensorCollection, b: TensorCollection, key: tuple[str, ...]) -> Iterator[Difference]:
    where = repr("/".join(key)) if key else "the root"
    if tuple(a.batch_size) != tuple(b.batch_size):
        yield f"{where}: batch size", str(list(a.batch_size)), str(list(b.batch_size))
        return
    if list(a.names) != list(b.names):
        yield f"{where}: names", str(list(a.names)), str(list(b.names))
        return
    ragged = next((td for td in (a, b) if stack_conflict(td)), None)
    if ragged is not None:
        # Its entries cannot be had as a whole (or not without a change of dtype), but row by row.
        stack = stack_of(ragged)
        assert stack is not None
        dim = stack.stack_dim
        for number, (left, right) in enumerate(zip(a.unbind(dim), b.unbind(dim), strict=True)):
            yield from _levels(left, right, (*key, f"[{number}]"))
        return
    left, right = ({name: child for name, child in children(td).items() if has_leaves(child)} for td in (a, b))
    for name in sorted(left.keys() | right.keys()):
        yield from _children(left.get(name), right.get(name), (*key, name))


def _children(a: Child | None, b: Child | None, key: tuple[str, ...]) -> Iterator[Difference]:
    where = repr("/".join(key))
    kinds = [_kind(child) for child in (a, b)]
    if kinds[0] != kinds[1]:
        yield where, kinds[0], kinds[1]
    elif isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        yield from _tensors(a, b, where)
    elif isinstance(a, NonTensor) and isinstance(b, NonTensor):
        if a.stacked or b.stacked or a.batch_size != b.batch_size:
            yield from _values(a.tolist(), b.tolist(), where)
        else:
            yield from _values(a.value, b.value, where)
    else:
        yield from _levels(a, b, key)


def _kind(child: Child | None) -> str:
    if child is None:
        return "no such key"
    if isinstance(child, UnbatchedTensor):
        return "an unbatched tensor"
    if isinstance(child, torch.Tensor):
        return "a tensor"
    return "a nested tensordict" if is_node(child) else "a non-tensor entry"


# --- tensors and arrays -----------------------------------------------------------------------------------------------


def _tensors(a: torch.Tensor, b: torch.Tensor, where: str) -> Iterator[Difference]:
    for what in ("dtype", "layout"):
        expected, found = getattr(a, what), getattr(b, what)
        if expected != found:
            yield f"{where}: {what}", str(expected), str(found)
            return
    if a.layout != torch.strided:
        a, b = a.to_dense(), b.to_dense()
    yield from _arrays(numpy_from_tensor(a, name=where)[0], numpy_from_tensor(b, name=where)[0], where)


def _arrays(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], where: str) -> Iterator[Difference]:
    for what in ("dtype", "shape"):
        expected, found = getattr(a, what), getattr(b, what)
        if expected != found:
            yield f"{where}: {what}", str(expected), str(found)
            return
    if a.dtype.kind == "O":
        yield from _values(a.ravel().tolist(), b.ravel().tolist(), where)
        return
    same = _same_bits(a, b)
    if not same.all():
        index = tuple(int(i) for i in np.argwhere(~same)[0])
        what = f"{where}: element {list(index)}" if index else f"{where}: value"
        yield what, repr(a[index]), f"{b[index]!r} ({int((~same).sum())} of {same.size} differ)"


def _same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    if a.dtype.kind == "c":
        same: np.ndarray[Any, np.dtype[np.bool_]] = _same_bits(a.real, b.real) & _same_bits(a.imag, b.imag)
        return same
    if a.dtype.kind == "f":
        # every bit counts, so that -0.0 is not 0.0; only NaN has many patterns that mean the same
        return np.asarray((np.equal(a, b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b)))
    if a.dtype.kind in "mM":
        return np.asarray(np.equal(a, b) | (np.isnat(a) & np.isnat(b)))
    return np.asarray(a == b)


# --- non-tensor values ------------------------------------------------------------------------------------------------


def _values(a: Any, b: Any, where: str) -> Iterator[Difference]:
    """The differences of two Python values."""
    a, b = _plain(a), _plain(b)
    if a is b:
        return
    if type(a) is not type(b):
        yield where, _shown(a), _shown(b)
    elif isinstance(a, (list, tuple, dict)):
        yield from _items(a, b, where)
    elif isinstance(a, (np.ndarray, np.generic)):
        yield from _arrays(np.asarray(a), np.asarray(b), where)
    elif isinstance(a, torch.Tensor):
        yield from _tensors(a, b, where)
    elif is_tensor_collection(a):
        yield from _levels(a, b, (where.strip("'"),))
    elif not _equal(a, b):
        yield where, _shown(a), _shown(b)


def _items(a: Any, b: Any, where: str) -> Iterator[Difference]:
    """The differences of two lists, tuples or dicts."""
    is_mapping = isinstance(a, dict)
    if is_mapping and _typed(a) != _typed(b):
        yield f"{where}: keys", str(list(a)), str(list(b))
    elif len(a) != len(b):
        yield f"{where}: length", str(len(a)), str(len(b))
    else:
        for name in a if is_mapping else range(len(a)):
            yield from _values(a[name], b[name], f"{where}[{name!r}]")


def _plain(value: Any) -> Any:
    """Numbers of numpy as Python's, which is what ``tolist()`` of an array of them gives."""
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        return value.item()
    if isinstance(value, list):
        return list(value) if type(value) is not list else value  # tensordict's LinkedList
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) < 80 else text[:77] + '...'} ({type(value).__name__})"


def _typed(values: Any) -> set[tuple[type, Any]]:
    """Hashable values with their types, because ``1 == True == 1.0``."""
    return {(type(value), value) for value in values}


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, (float, complex)):
        return bool(_same_bits(np.asarray(a), np.asarray(b)))
    if isinstance(a, (set, frozenset)):
        return _typed(a) == _typed(b)
    try:
        return bool(a == b) or bool(a != a and b != b)
    except Exception:  # any object may be non-tensor data: one that cannot be compared is not equal
        return False
