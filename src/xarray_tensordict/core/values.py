"""Values that numpy, torch and JSON hold in different ways: Python objects, times, dtypes that numpy lacks. Pure functions.

The dtype of an array of Python objects is no information, so every writer, ``to_tensordict`` and the checks of an append ask
:func:`held_objects`. Times are int64 nanoseconds since 1970-01-01 in stores and tensors.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import numpy as np

Held = Literal["text", "bytes", "dates", "rows", "objects"]

_JSON_SCALARS = (str, bool, int, float, type(None))


def held_objects(values: np.ndarray[Any, Any]) -> Held:
    """Find out what an array of dtype object holds.

    Returns
    -------
    str
        "text": strings only, or no element at all. "bytes": bytes only, none of which ends with a NUL, so that an array
        of fixed length (dtype S) gives them back. "dates": a date of cftime is among the elements. "rows": a numpy array
        is among them. "objects": anything else; JSON holds it or nothing does.

    Examples
    --------
    >>> held_objects(np.array(["a", "bc"], object)), held_objects(np.array([b"a", None], object))
    ('text', 'objects')
    """
    kinds = {type(item) for item in values.flat}
    if kinds <= {str, np.str_}:
        return "text"
    if kinds <= {bytes, np.bytes_} and not any(item.endswith(b"\0") for item in values.flat):
        return "bytes"
    if any(kind.__module__.partition(".")[0] == "cftime" for kind in kinds):  # which need not be installed
        return "dates"
    return "rows" if any(issubclass(kind, np.ndarray) for kind in kinds) else "objects"


def is_text_dtype(dtype: np.dtype[Any]) -> bool:
    """Whether an object dtype is marked as one of strings, as xarray and h5py mark it."""
    metadata: Mapping[str, Any] = dtype.metadata or {}
    return metadata.get("element_type") is str or metadata.get("vlen") is str


def python_objects(values: np.ndarray[Any, Any]) -> Any:
    """Nested lists of Python objects, or one object: numpy's own strings and numbers become Python's."""
    return _plain(values.tolist(), values.ndim if values.dtype.kind == "O" else 0)


def _plain(item: Any, depth: int) -> Any:
    if depth:
        return [_plain(part, depth - 1) for part in item]
    return item.item() if isinstance(item, np.generic) and item.dtype.kind not in "mMV" else item


def objects(values: Iterable[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Make an object array of exactly these elements, also where they are lists or arrays themselves."""
    result = np.empty(math.prod(shape), object)
    for position, value in enumerate(values):
        result[position] = value
    return result.reshape(shape)


def rows(values: list[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Hold one value for each row: numbers of one type as numbers, everything else as objects.

    Examples
    --------
    >>> rows(["a", "bc"], (2,))
    array(['a', 'bc'], dtype=object)
    >>> rows([1, 2], (2,)), rows([1, 2.5], (2,))
    (array([1, 2]), array([1, 2.5], dtype=object))
    """
    types = {type(value) for value in values}
    if len(types) == 1 and (types <= {bool, int, float, complex} or is_number(values[0])):
        numbers = np.array(values)
        if numbers.dtype.kind in "biufc" and (int not in types or numbers.dtype.kind in "iu"):
            return numbers.reshape(shape)
    return objects(values, shape)


def is_number(value: Any) -> bool:
    """Whether it is a number of numpy's own."""
    return isinstance(value, np.generic) and value.dtype.kind in "biufc"


def flatten(nested: Any, depth: int) -> list[Any]:
    """The elements of lists that are nested `depth` deep."""
    flat = list(nested) if depth else [nested]
    for _ in range(depth - 1):
        flat = [item for part in flat for item in part]
    return flat


def nested_shape(value: Any, depth: int) -> tuple[int, ...]:
    """The shape of nested lists, as far as they are rectangular and at most `depth` deep.

    Examples
    --------
    >>> nested_shape([["a", "b"], ["c", "d"]], 2), nested_shape([["a"], "b"], 2)
    ((2, 2), (2,))
    """
    if not depth or not isinstance(value, list):
        return ()
    inner = {nested_shape(item, depth - 1) for item in value}
    return (len(value), *(inner.pop() if len(inner) == 1 else ()))


def jsonable(value: Any) -> Any:
    """An attribute as JSON takes it: arrays of numpy as lists, its scalars as Python's."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value


def to_json(payload: Any, name: str) -> str:
    """The JSON text of an object.

    Raises
    ------
    TypeError
        Where JSON has no text for it.
    """
    try:
        return json.dumps(payload)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"variable {name!r} holds a Python object that JSON cannot hold ({error}), and objects are stored as JSON, "
            "never as pickles; convert it to numbers, strings, lists or dicts, or drop it"
        ) from error


def same_object(a: Any, b: Any) -> bool:
    """Whether two JSON objects are equal with equal types; NaN equals NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Mapping):
        return set(a) == set(b) and all(same_object(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same_object(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and math.isnan(a):
        return math.isnan(b)
    return isinstance(a, _JSON_SCALARS) and bool(a == b)


_MAX = 2**63 - 1
"""The last nanosecond that int64 holds; its negative is the first, one below that is NaT."""


def to_nanoseconds(times: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], Any]:
    """The int64 nanoseconds of datetimes or timedeltas of any unit, NaT the smallest int64.

    Returns
    -------
    counts
        A view where the times are nanoseconds.
    lost
        The first time that nanoseconds do not hold, out of range or finer; None where there is none. numpy wraps around
        silently, both ways, so its own conversion does not show a loss.

    Examples
    --------
    >>> to_nanoseconds(np.array(["1970-01-02", "NaT"], "M8[s]"))
    (array([      86400000000000, -9223372036854775808]), None)
    >>> to_nanoseconds(np.array(["2500-01-01"], "M8[s]"))[1]
    np.datetime64('2500-01-01T00:00:00')
    """
    native = np.asarray(times).astype(times.dtype.newbyteorder("="), copy=False)
    unit, step = np.datetime_data(native.dtype)
    if step == 1 and unit in {"ns", "generic"}:
        return native.view(np.int64), None
    finest = f"{native.dtype.kind}8[ns]"
    if unit in {"ps", "fs", "as"}:
        converted = native.astype(finest)
        lost = (converted.astype(native.dtype) != native) & ~np.isnat(native)
    else:
        if unit in "YM":  # the one that the first nanosecond lies in has begun before it
            first, last = (np.datetime64(end, "ns").astype(native.dtype).view(np.int64) for end in (-_MAX, _MAX))
            first += 1
        else:
            last = _MAX // np.array(1, f"m8[{step}{unit}]").astype("m8[ns]").view(np.int64)
            first = -last
        counts = native.view(np.int64)
        lost = ((counts < first) | (counts > last)) & ~np.isnat(native)
        converted = (np.where(lost, np.array(0, native.dtype), native) if lost.any() else native).astype(finest)
    return converted.view(np.int64), native[lost].ravel()[0] if lost.any() else None


CodedDtype = Literal[
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "complex32",
]
"""Their names; torch and zarr v3 (zarr-specs, data type extensions) name the floats alike."""

CODE_DTYPES: dict[str, str] = dict.fromkeys(get_args(CodedDtype), "uint8") | {
    "bfloat16": "uint16",
    "complex32": "uint32",
}
"""The integers of the same width, as which memory maps and zarr v3 of other tools store their values."""


def widened_dtype_name(torch_dtype: str) -> str:
    """The dtype of numpy that holds every value of a dtype that numpy lacks.

    Examples
    --------
    >>> widened_dtype_name("bfloat16")
    'float32'
    """
    return "complex64" if torch_dtype == "complex32" else "float32"


def short_dtype(name: str) -> str:
    """A dtype as tensordict abbreviates it.

    Examples
    --------
    >>> [short_dtype(name) for name in ("float32", "uint8", "bfloat16", "bool", "str")]
    ['f32', 'u8', 'bf16', 'bool', 'str']
    """
    return re.sub(r"^(bf|[fuic])[a-z]+(?=\d)", r"\1", name)
