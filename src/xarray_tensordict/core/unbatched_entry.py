"""The root entry ``_unbatched``: numeric arrays that a tensordict with a batch cannot hold, as one JSON object.

Bare tensordict accepts no numeric array that does not lead with the batch, in nested groups either. So the writers
put such arrays into one non-tensor entry, which bare tensordict shows and keeps, and the engine takes them out again:
``{"lat": {"dims": ["lat"], "dtype": "float64", "attrs": {...}, "role": "coord", "data": [...]}}``. ``data`` is a
nested list where it is small, and the base64 text of an ``.npy`` file otherwise.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from xarray.core import indexing

from .metadata import NS_ATTRS, UNBATCHED_NAME
from .model import Key, StoredArray, StoredGroup

_WORDS = frozenset({"dims", "dtype", "attrs", "role", "data"})
LARGEST_LIST = 1024
"""Arrays of more elements than this are kept as base64: JSON lists of numbers are about five times as long."""


def encode_array(
    values: np.ndarray[Any, Any],
    dims: tuple[str, ...],
    *,
    attrs: Mapping[str, Any],
    role: str,
    record: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Encode one array for the entry.

    Parameters
    ----------
    values
        Numbers, bools, datetimes or timedeltas, bytes of one length, or strings.
    dims, attrs, role
        As in the Dataset; ``role`` is "coord" or "data".
    record
        What the array's own record says (:data:`~.metadata.ARRAY_ATTR`): the torch dtype that `values` were widened
        from, for one.

    Examples
    --------
    >>> encode_array(np.array([10.0, 0.0]), ("lat",), attrs={}, role="coord")["data"]
    [10.0, 0.0]
    """
    dtype = values.dtype
    if dtype.kind in "OUT":
        return {"dims": list(dims), "dtype": "str", "attrs": dict(attrs), "role": role, "data": values.tolist()}
    native = np.ascontiguousarray(values, dtype.newbyteorder("=")).reshape(values.shape)
    plain = native.view("int64") if dtype.kind in "mM" else native
    listable = plain.dtype.kind in "biu" or (
        plain.dtype.kind == "f" and plain.dtype.itemsize <= 8 and bool(np.isfinite(plain).all())
    )
    encoded = {
        "dims": list(dims),
        "dtype": native.dtype.str.lstrip("<>=|") if dtype.kind in "mMS" else native.dtype.name,
        "attrs": dict(attrs),
        "role": role,
        "data": plain.tolist() if listable and 0 < plain.size <= LARGEST_LIST else _to_base64(plain),
    }
    return {**(record or {}), **encoded}


def entry_record(encoded: Mapping[str, Any]) -> dict[str, Any]:
    """The record of one array of the entry."""
    return {word: value for word, value in encoded.items() if word not in _WORDS}


def decode_array(encoded: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Decode one array of the entry.

    Examples
    --------
    >>> decode_array({"dims": ["x"], "dtype": "int16", "attrs": {}, "role": "data", "data": [1, 2]})
    array([1, 2], dtype=int16)
    """
    dtype = np.dtype(encoded["dtype"])
    data = encoded["data"]
    is_file = isinstance(data, str) and dtype.kind != "U"
    return np.asarray(_from_base64(data) if is_file else data, dtype)


def _to_base64(values: np.ndarray[Any, Any]) -> str:
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=False)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _from_base64(text: str) -> np.ndarray[Any, Any]:
    return np.asarray(np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False))


def restore_unbatched(groups: dict[Key, StoredGroup], where: str) -> dict[Key, StoredGroup]:
    """Put the arrays of the root's ``_unbatched`` entry back into their groups.

    Raises
    ------
    ValueError
        Where the entry is there and cannot be understood.
    """
    entry = groups[()].arrays.get(UNBATCHED_NAME) if () in groups else None
    value = _value(entry.data) if entry is not None and entry.non_tensor and entry.shape == () else None
    if not isinstance(value, dict) or not all(isinstance(item, dict) and "dims" in item for item in value.values()):
        return groups
    del groups[()].arrays[UNBATCHED_NAME]
    for path, encoded in value.items():
        *parts, name = path.split("/")
        key = tuple(parts)
        try:
            array = _stored(name, encoded)
        except (KeyError, TypeError, ValueError, EOFError) as error:
            raise ValueError(f"{where}: the entry {UNBATCHED_NAME!r} is damaged at {path!r}: {error}") from error
        _group_at(groups, key).arrays[name] = array
    return groups


def _value(data: Any) -> Any:
    """The one object that an array of 0 dimensions holds, whether it is lazy or not."""
    return np.asarray(data if isinstance(data, np.ndarray) else data[indexing.BasicIndexer(())]).item()


def _stored(name: str, encoded: Mapping[str, Any]) -> StoredArray:
    """One array as a reader of the store would give it, so that it is decoded as all others are, or is not."""
    values = decode_array(encoded)
    dims = tuple(encoded["dims"])
    if len(dims) != values.ndim:
        raise ValueError(f"it has dims {list(dims)} for shape {list(values.shape)}")
    attrs, record = dict(encoded.get("attrs", {})), entry_record(encoded)
    if values.dtype.kind in "mM":
        unit = np.datetime_data(values.dtype)[0]
        record |= {} if unit == "ns" else {"datetime_unit": unit}
        attrs |= NS_ATTRS[values.dtype.kind]
        values = values.astype(f"{values.dtype.kind}8[ns]").view("int64")
    encoding = {"torch_dtype": record["torch_dtype"]} if "torch_dtype" in record else {}
    role = encoded.get("role")
    if role == "data" and values.dtype.kind in "biufc":
        role = None  # what CF says counts: decode_coords="all" makes coordinates of grid mappings
    return StoredArray(name, values, dims, attrs, encoding, role=role, record=record)


def _group_at(groups: dict[Key, StoredGroup], key: Key) -> StoredGroup:
    """The group at `key`, made with those above it if all it held went into the entry."""
    if key not in groups:
        parent = _group_at(groups, key[:-1])
        if key[-1] not in parent.groups:
            parent.groups = (*parent.groups, key[-1])
        groups[key] = StoredGroup(key)
    return groups[key]
