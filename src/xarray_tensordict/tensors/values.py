"""Values only: numpy arrays to tensordict leaves and back, and nothing about stores, dims or batches.

Two rules hold for everything here. A tensor that comes out can be written to, and never makes torch warn; and a value
that the other side cannot hold exactly raises, it is never rounded or wrapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from ..collection import without_collection
from ..quiet import quiet

_TORCH_DTYPES: dict[str, torch.dtype] = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
}
_HAS_NUMPY_TWIN = frozenset(_TORCH_DTYPES.values())

_NS_MAX = 2**63 - 1
"""The last nanosecond that int64 holds; its negative is the first, one below that is NaT."""

_FINER_THAN_NS = ("ps", "fs", "as")

_NS_PER_UNIT = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "D": 86_400_000_000_000,
    "W": 604_800_000_000_000,
}

_PLAIN_TYPES = (str, bytes, bool, int, float, complex, type(None))
"""What ``NonTensorStack(*rows)`` wraps by itself, 3 times faster than one ``NonTensorData`` after the other."""


# --- numpy -> torch ---------------------------------------------------------------------------------------------------


def torch_dtype(dtype: Any) -> torch.dtype | None:
    """Return the torch dtype that values of a numpy dtype get in a tensordict.

    Parameters
    ----------
    dtype
        A numpy dtype, anything ``np.dtype`` takes, or an array (whatever has a ``dtype``).

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
    if copy is False and source.size and not np.shares_memory(values, source):
        raise ValueError(_copy_needed(source, name))
    if copy is False and tensor.dtype != _TORCH_DTYPES[values.dtype.name]:
        why = f"its {source.dtype} values are converted to {tensor.dtype}"
        raise ValueError(f"{name!r} cannot be had without a copy: {why}; use copy=None")
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
    """Let torch say that the dtype is experimental, which it does once in a process."""
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


def _copy_needed(array: np.ndarray[Any, Any], name: str) -> str:
    if array.dtype.kind in "mM" and np.datetime_data(array.dtype)[0] != "ns":
        why = f"its {array.dtype} values are converted to nanoseconds"
    elif not array.dtype.isnative:
        why = f"its byte order is not native ({array.dtype.str})"
    elif not array.flags.writeable:
        why = "it is read-only"
    else:
        why = f"torch cannot use its memory layout (strides {array.strides} of shape {array.shape})"
    return f"{name!r} cannot be had without a copy: {why}; use copy=None (copies only where it must) or copy=True"


def _no_torch_dtype(array: np.ndarray[Any, Any], name: str) -> str:
    """The message for a dtype that torch lacks: what was expected, what was found, what to do."""
    dtype = array.dtype
    if dtype.kind == "O" and _holds_cftime(array):
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


def _holds_cftime(array: np.ndarray[Any, Any]) -> bool:
    """Whether the first object that is not missing is a date of cftime (which is not imported for this)."""
    for item in array.flat:
        if item is not None and not isinstance(item, float):
            return type(item).__module__.partition(".")[0] == "cftime"
    return False


def _nanoseconds(array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """The int64 nanoseconds of datetimes or timedeltas of any unit, NaT the smallest int64."""
    kind = array.dtype.kind
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    unit, step = np.datetime_data(native.dtype)
    if unit == "generic" or (unit == "ns" and step == 1):
        # A view, so that memory can be shared. numpy counts generic units as nanoseconds too.
        return native.view(np.int64)
    if kind == "m" and unit in "YM":
        raise TypeError(
            f"{name!r} holds durations in calendar units ({array.dtype}), which have no fixed length in nanoseconds; "
            "convert them to days or another fixed unit first"
        )
    if unit in _FINER_THAN_NS:
        converted = native.astype(f"{kind}8[ns]")
        if not np.array_equal(converted.astype(native.dtype), native, equal_nan=True):
            raise ValueError(
                f"{name!r} ({array.dtype}) is finer than a nanosecond, which is what a tensor holds; "
                f"round it first with .astype('{kind}8[ns]')"
            )
        return converted.view(np.int64)
    _check_range(native, name)
    return native.astype(f"{kind}8[ns]").view(np.int64)


def _check_range(array: np.ndarray[Any, Any], name: str) -> None:
    """Raise for times that int64 nanoseconds cannot hold: numpy's ``astype`` wraps around, silently."""
    counts = array.view(np.int64)[~np.isnat(array)]
    if not counts.size:
        return
    first, last = _range_in_steps(array.dtype)
    if int(counts.min()) < first or int(counts.max()) > last:
        low, high = np.nanmin(array), np.nanmax(array)
        what = "dates" if array.dtype.kind == "M" else "durations"
        span = "1677-09-21 to 2262-04-11" if array.dtype.kind == "M" else "about 292 years to either side"
        raise OverflowError(
            f"{name!r} holds {what} from {low} to {high} ({array.dtype}), and a tensor holds int64 nanoseconds, "
            f"that is {span}; select what lies inside, leave the variable out, or store it as numbers"
        )


def _range_in_steps(dtype: np.dtype[Any]) -> tuple[int, int]:
    """The first and the last count of `dtype`'s own unit whose nanoseconds fit into int64."""
    unit, step = np.datetime_data(dtype)
    if unit in _NS_PER_UNIT:
        ns = _NS_PER_UNIT[unit] * step
        return -(_NS_MAX // ns), _NS_MAX // ns
    # Years and months: the one that the first nanosecond lies in has begun before it.
    first = int(np.datetime64(-_NS_MAX, "ns").astype(dtype).view(np.int64)) + 1
    return first, int(np.datetime64(_NS_MAX, "ns").astype(dtype).view(np.int64))


# --- rows: non-tensor data --------------------------------------------------------------------------------------------


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
        return _empty_stack(tuple(size)) if _stacks_can_be_empty() else NonTensorData(data="", batch_size=size)
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


@cache
def _stacks_can_be_empty() -> bool:
    """Whether a tensordict can hold a stack without rows, which with tensordict 0.14 it cannot."""
    try:
        TensorDict({"rows": NonTensorStack()}, batch_size=[0])
    except IndexError:
        return False
    return True


def _empty_stack(size: tuple[int, ...]) -> NonTensorStack:
    """A stack without rows that still has its whole batch size: ``NonTensorStack()`` alone is always ``[0]``."""
    if size[0]:
        return NonTensorStack(*(_empty_stack(size[1:]) for _ in range(size[0])))
    if len(size) == 1:
        return NonTensorStack()
    row = _empty_stack(size[1:]) if 0 in size[1:] else _stack_rows([None] * int(np.prod(size[1:])), size[1:])
    empty: NonTensorStack = NonTensorStack(row)[:0]
    return empty


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
    if not (plain.dtype.is_floating_point or plain.dtype.is_complex):
        raise TypeError(_no_numpy_dtype(name, dtype_name))
    try:
        return plain.to(wide).numpy(), dtype_name
    except NotImplementedError as error:
        raise TypeError(_no_numpy_dtype(name, dtype_name)) from error


def _no_numpy_dtype(name: str, dtype_name: str) -> str:
    return (
        f"{name!r} has dtype torch.{dtype_name}, which numpy has no twin for and torch cannot convert; "
        "view it as bytes first with .view(torch.uint8)"
    )
