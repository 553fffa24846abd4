"""Python objects in arrays: what an array of them holds, and their JSON. Pure functions of values.

The dtype of such an array says nothing, so every writer, ``to_tensordict`` and the checks of an append ask
:func:`held_objects`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

Held = Literal["text", "bytes", "dates", "rows", "objects"]

_JSON_SCALARS = (str, bool, int, float, type(None))


def held_objects(values: np.ndarray[Any, Any]) -> Held:
    """Say what an array of dtype object holds.

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
    """Whether an object dtype says itself that it holds strings, as xarray and h5py mark it."""
    metadata: Mapping[str, Any] = dtype.metadata or {}
    return metadata.get("element_type") is str or metadata.get("vlen") is str


def python_objects(values: np.ndarray[Any, Any]) -> Any:
    """Nested lists of Python objects, or one object: numpy's own scalars become Python's."""
    return _plain(values.tolist(), values.ndim if values.dtype.kind == "O" else 0)


def _plain(item: Any, depth: int) -> Any:
    if depth:
        return [_plain(part, depth - 1) for part in item]
    return item.item() if isinstance(item, np.generic) else item


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
