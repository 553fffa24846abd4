"""Values only: numpy arrays to tensordict leaves and back, and nothing about stores, dims or batches.

Two rules hold for everything here. A tensor that comes out can be written to, and never makes torch warn; and a value
that the other side cannot hold exactly raises, it is never rounded or wrapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack

from .._compat.tensordict import IS_0_14
from ..core.values import held_objects, is_number, objects, python_objects, to_nanoseconds
from ..warnings import quiet, without_collection

_TORCH_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64 complex64 complex128".split()
    )
}
_HAS_NUMPY_TWIN = frozenset(_TORCH_DTYPES.values())


# --- numpy -> torch ---------------------------------------------------------------------------------------------------


def torch_dtype(dtype: Any) -> torch.dtype | None:
    """Return the torch dtype that values of a numpy dtype get in a tensordict.

    Parameters
    ----------
    dtype
        A numpy dtype, anything ``np.dtype`` takes, or an array (any object with a ``dtype``).

    Returns
    -------
    torch.dtype or None
        None where torch has no such dtype (strings, objects, ``longdouble``). Datetimes and timedeltas are int64.

    Examples
    --------
    >>> torch_dtype(">f4"), torch_dtype("datetime64[s]"), torch_dtype("U3")
    (torch.float32, torch.int64, None)
    """
    found = np.dtype(getattr(dtype, "dtype", dtype))
    if found.kind in "mM":
        return torch.int64
    if found.kind not in "biufc":
        return None
    return _TORCH_DTYPES.get(found.name)


def tensor_from_numpy(
    array: Any,
    *,
    name: str,
    copy: bool | None = None,
    torch_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Turn an array of numbers, bools, datetimes or timedeltas into a tensor that can be written to.

    Parameters
    ----------
    array
        Any layout and byte order; a numpy scalar is a 0-d array. Datetimes become int64 nanoseconds since 1970-01-01
        (timedeltas int64 nanoseconds), NaT the smallest int64.
    name
        How messages call the variable.
    copy
        None shares memory with `array` where torch can (writable, native byte order, positive strides, no two
        elements in one place), True always copies, False raises instead of copying.
    torch_dtype
        The dtype of the tensor, for values that were widened because numpy has no such dtype (``torch.bfloat16``).

    Raises
    ------
    TypeError
        torch has no dtype for the values.
    OverflowError
        A date or duration is outside of what int64 nanoseconds hold (dates: 1677-09-21 to 2262-04-11).
    ValueError
        A time is finer than a nanosecond, or a copy was needed although ``copy=False``.

    Examples
    --------
    >>> import numpy as np
    >>> tensor_from_numpy(np.arange(3, dtype=">i2")[::-1], name="x")
    tensor([2, 1, 0], dtype=torch.int16)
    >>> tensor_from_numpy(np.array(["1970-01-02", "NaT"], "M8[s]"), name="time")
    tensor([      86400000000000, -9223372036854775808])
    """
    source = np.asarray(array)
    if source.dtype.kind in "mM":
        values = _nanoseconds(source, name)
    elif _TORCH_DTYPES.get(source.dtype.name) is None or source.dtype.kind not in "biufc":
        raise TypeError(_no_torch_dtype(source, name))
    else:
        values = source
    if copy is True or not _torch_can_share(values):
        values = np.array(values, dtype=values.dtype.newbyteorder("="), order="C", copy=True)
    tensor = torch.from_numpy(values)
    if torch_dtype is torch.complex32:
        hear_of_complex32()
        tensor = tensor.to(torch_dtype)
    elif torch_dtype is not None:
        tensor = tensor.to(torch_dtype)
    if copy is False:
        why = None
        if tensor.dtype != _TORCH_DTYPES[values.dtype.name]:
            why = f"its {source.dtype} values are converted to {tensor.dtype}"
        elif source.size and not np.shares_memory(values, source):
            why = _why_copied(source)
        if why:
            raise ValueError(
                f"{name!r} cannot be had without a copy: {why}; use copy=None (copies only where it must) or copy=True"
            )
    return tensor


def _torch_can_share(array: np.ndarray[Any, Any]) -> bool:
    """Whether ``torch.from_numpy`` takes `array` as it is and every element of the tensor can be written alone."""
    if not (array.flags.writeable and array.flags.aligned and array.dtype.isnative):
        return False
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        return False  # torch looks at the strides of axes without a second element, too
    return are_apart(array.strides, array.shape, array.itemsize)


@cache
def hear_of_complex32() -> None:
    """Let torch warn that the dtype is experimental, which it does once in a process."""
    with quiet(("ComplexHalf", UserWarning)):
        torch.zeros(1, dtype=torch.complex64).to(torch.complex32)


def are_apart(strides: Sequence[int], shape: Sequence[int], itemsize: int) -> bool:
    """Whether no two elements share a place, as in what was broadcast and in sliding windows.

    Examples
    --------
    >>> are_apart((8, 4), (3, 2), 4), are_apart((4, 4), (3, 2), 4)
    (True, False)
    """
    extent = itemsize
    # axes by stride: each must step past all that the smaller ones cover
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size == 1:
            continue
        if stride < extent:
            return 0 in shape
        extent += stride * (size - 1)
    return True


def _why_copied(array: np.ndarray[Any, Any]) -> str:
    if array.dtype.kind in "mM" and np.datetime_data(array.dtype)[0] != "ns":
        return f"its {array.dtype} values are converted to nanoseconds"
    if not array.dtype.isnative:
        return f"its byte order is not native ({array.dtype.str})"
    if not array.flags.writeable:
        return "it is read-only"
    return f"torch cannot use its memory layout (strides {array.strides} of shape {array.shape})"


def _no_torch_dtype(array: np.ndarray[Any, Any], name: str) -> str:
    """The message for a dtype that torch lacks: what was expected, what was found, what to do."""
    dtype = array.dtype
    if dtype.kind == "O" and held_objects(array) == "dates":
        return (
            f"{name!r} holds cftime dates of another calendar, and a tensor needs dates of the standard calendar "
            "between 1678 and 2262 (int64 nanoseconds since 1970-01-01); convert them with ds.convert_calendar() "
            "where that is right, open with decode_times=False to get the numbers, or leave the variable out"
        )
    expected = f"{name!r} cannot become a tensor: expected numbers, bools, datetimes or timedeltas, found dtype {dtype}"
    if dtype.kind == "f":
        return f"{expected}, which torch does not have; convert it first with .astype('float64')"
    if dtype.kind == "c":
        return f"{expected}, which torch does not have; convert it first with .astype('complex128')"
    if dtype.kind == "V":
        return f"{expected}; take its fields one by one, or convert it to a dtype that torch has"
    return f"{expected}; a tensordict holds it as non-tensor data, or convert it first with .astype(...)"


def _nanoseconds(array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """The int64 nanoseconds of datetimes or timedeltas of any unit, NaT the smallest int64."""
    unit, _ = np.datetime_data(array.dtype)
    if array.dtype.kind == "m" and unit in "YM":
        raise TypeError(
            f"{name!r} holds durations in calendar units ({array.dtype}), which have no fixed length in nanoseconds; "
            "convert them to days or another fixed unit first"
        )
    counts, lost = to_nanoseconds(array)
    if lost is None:
        return counts
    if unit in {"ps", "fs", "as"}:
        raise ValueError(
            f"{name!r} ({array.dtype}) is finer than a nanosecond, which is what a tensor holds; "
            f"round it first with .astype('{array.dtype.kind}8[ns]')"
        )
    low, high = np.nanmin(array), np.nanmax(array)
    what = "dates" if array.dtype.kind == "M" else "durations"
    span = "1677-09-21 to 2262-04-11" if array.dtype.kind == "M" else "about 292 years to either side"
    raise OverflowError(
        f"{name!r} holds {what} from {low} to {high} ({array.dtype}), and a tensor holds int64 nanoseconds, "
        f"that is {span}; select what lies inside, leave the variable out, or store it as numbers"
    )


def broadcast(values: Any, axes: Sequence[int], sizes: Sequence[int]) -> Any:
    """Put in the axes of a batch of these sizes that an array or a tensor lacks, without copying."""
    if not axes:
        return values
    values = values[tuple(None if axis in axes else slice(None) for axis in range(len(sizes)))]
    shape = (*sizes, *values.shape[len(sizes) :])
    return values.expand(shape) if isinstance(values, torch.Tensor) else np.broadcast_to(values, shape)


# --- tensors whose dtype numpy lacks ----------------------------------------------------------------------------------

_CODES = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is an ordinary tensor on the CPU, whose memory may be written to."""
    return type(tensor) is torch.Tensor and tensor.device.type == "cpu" and not tensor.requires_grad


def to_codes(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The memory of a tensor on the CPU as a numpy array: its values, or their codes where numpy lacks the dtype.

    Examples
    --------
    >>> to_codes(torch.ones(2, dtype=torch.bfloat16))
    array([16256, 16256], dtype=uint16)
    """
    plain = tensor if tensor.dtype in _HAS_NUMPY_TWIN else tensor.view(_CODES[tensor.element_size()])
    return plain.numpy()


def from_codes(codes: np.ndarray[Any, Any], dtype: str | torch.dtype | None) -> torch.Tensor:
    """A tensor over the memory of an array of values, or of the codes of a dtype that numpy lacks; the way back."""
    tensor = torch.from_numpy(codes)
    target_dtype: Any = getattr(torch, dtype) if type(dtype) is str else dtype
    if target_dtype is None or target_dtype is tensor.dtype:
        return tensor
    if target_dtype is torch.complex32:
        hear_of_complex32()
    return tensor.view(target_dtype)


# --- torch -> numpy ---------------------------------------------------------------------------------------------------


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the ordinary strided tensor behind a subclass (memory-mapped, unbatched, a parameter), detached."""
    base = getattr(tensor, "_base_tensor", None)  # UnbatchedTensor: every public operation on it stays unbatched
    if base is not None:
        tensor = base()
    tensor = tensor.detach()
    return tensor if type(tensor) is torch.Tensor else tensor.as_subclass(torch.Tensor)


def numpy_from_tensor(tensor: torch.Tensor, *, name: str) -> tuple[np.ndarray[Any, Any], str | None]:
    """Turn a tensor of any device into a numpy array.

    Parameters
    ----------
    tensor
        Detached, resolved (conjugate and negative views) and moved to the CPU first. Memory is shared where torch can.
    name
        How messages call the entry.

    Returns
    -------
    array
        The values; those of a dtype that numpy does not have are widened, without loss, to float32 or complex64.
    widened_from
        The name of that dtype (``"bfloat16"``), or None.

    Raises
    ------
    TypeError
        Sparse, nested and quantized tensors, and dtypes that hold no numbers one by one (``int4``, ``bits8``).
    ValueError
        Tensors on the meta device, which hold no values.

    Examples
    --------
    >>> import torch
    >>> numpy_from_tensor(torch.ones(2, dtype=torch.bfloat16), name="x")
    (array([1., 1.], dtype=float32), 'bfloat16')
    """
    if tensor.is_nested:
        raise TypeError(
            f"{name!r} is a nested tensor, and an array has one shape; pad it first with "
            "tensor.to_padded_tensor(...), or store its rows as separate entries"
        )
    if tensor.layout != torch.strided:
        raise TypeError(f"{name!r} is a sparse tensor ({tensor.layout}), and an array is dense; call .to_dense() first")
    if tensor.is_quantized:
        raise TypeError(f"{name!r} is a quantized tensor ({tensor.dtype}); call .dequantize() or .int_repr() first")
    if tensor.device.type == "meta":
        raise ValueError(f"{name!r} is on the meta device, so it has no values; fill it on a real device first")
    plain = plain_tensor(tensor).cpu().resolve_conj().resolve_neg()
    if plain.dtype in _HAS_NUMPY_TWIN:
        return plain.numpy(), None
    wide = torch.complex64 if plain.dtype.is_complex else torch.float32
    dtype_name = str(plain.dtype).removeprefix("torch.")
    try:
        if not (plain.dtype.is_floating_point or plain.dtype.is_complex):
            raise NotImplementedError
        return plain.to(wide).numpy(), dtype_name
    except NotImplementedError as error:
        raise TypeError(
            f"{name!r} has dtype torch.{dtype_name}, which numpy has no twin for and torch cannot convert; "
            "view it as bytes first with .view(torch.uint8)"
        ) from error


# --- non-tensor data: numpy -> tensordict -------------------------------------------------------------------------------

Array: TypeAlias = np.ndarray[Any, Any]

_PLAIN_TYPES = (str, bytes, bool, int, float, complex, type(None))
"""What ``NonTensorStack(*rows)`` wraps by itself, 3 times faster than one ``NonTensorData`` after the other."""


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
    # tolist() would give plain ints for nanoseconds
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


# --- non-tensor data: tensordict -> numpy -------------------------------------------------------------------------------


def one_value(value: Any) -> Array:
    """Hold any one Python value in a 0-d array, such that ``.item()`` gives it back.

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
