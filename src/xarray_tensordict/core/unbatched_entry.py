"""The root entry ``_unbatched``: numeric arrays that a tensordict with a batch cannot hold, as one JSON object.

Plain tensordict accepts no numeric array that does not start with the batch, in nested groups either. So the writers
put such arrays into one non-tensor entry, which plain tensordict shows and keeps, and the engine takes them out again:
``{"lat": {"dims": ["lat"], "dtype": "float64", "attrs": {...}, "role": "coord", "data": [...]}}``. ``data`` is a
nested list where it is small, and the base64 text of an ``.npy`` file otherwise.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any, Required, cast

import numpy as np
from xarray.core import indexing

from .metadata import NS_ATTRS, UNBATCHED_NAME, checked
from .model import ArrayRecord, Key, StoredArray, StoredGroup, why_no_key
from .values import to_nanoseconds

_WORDS = frozenset({"dims", "dtype", "attrs", "role", "data"})


class EncodedArray(ArrayRecord, total=False):
    """One array of the entry, with its record: its values are `data`."""

    dtype: Required[str]
    data: Required[Any]


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
        The array's own record (:data:`~.metadata.ARRAY_ATTR`): the torch dtype that `values` were widened
        from, for one.

    Examples
    --------
    >>> encode_array(np.array([10.0, 0.0]), ("lat",), attrs={}, role="coord")["data"]
    [10.0, 0.0]
    """
    dtype = values.dtype
    if dtype.kind in "OUT":
        # a list of nothing has no shape
        data = values.tolist() if values.size or values.ndim < 2 else _to_base64(np.empty(values.shape, "U1"))
        return {"dims": list(dims), "dtype": "str", "attrs": dict(attrs), "role": role, "data": data}
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


def entry_record(encoded: Mapping[str, Any]) -> ArrayRecord:
    """The record of one array of the entry."""
    return cast(ArrayRecord, {word: value for word, value in encoded.items() if word not in _WORDS})


def decode_array(encoded: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Decode one array of the entry.

    Raises
    ------
    ValueError, TypeError, OverflowError
        Where the values are none of that dtype, or too few; nothing is unpickled, and no more memory is taken than they fill.

    Examples
    --------
    >>> decode_array({"dims": ["x"], "dtype": "int16", "attrs": {}, "role": "data", "data": [1, 2]})
    array([1, 2], dtype=int16)
    """
    data = encoded["data"]
    if encoded["dtype"] == "str":
        texts = _from_base64(data) if isinstance(data, str) and encoded["dims"] else np.array(data, object)
        if not all(isinstance(text, str) for text in texts.flat):
            raise ValueError("expected text, found other values among it")
        return texts.astype(str)
    dtype = np.dtype(encoded["dtype"])
    plain = np.dtype("int64") if dtype.kind in "mM" else dtype
    if isinstance(data, str):
        values = _from_base64(data)
    elif plain.kind in "biuf":
        values = np.asarray(data, plain)
        if values.tolist() != data:
            raise ValueError(f"expected values of dtype {dtype}, found others among them")
    else:
        raise ValueError(f"expected an array of dtype {dtype} as base64, found {type(data).__name__}")
    if values.dtype.newbyteorder("=") != plain:
        raise ValueError(f"expected values of dtype {dtype}, found {values.dtype}")
    return values.astype(plain).view(dtype)


def _to_base64(values: np.ndarray[Any, Any]) -> str:
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=False)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _from_base64(text: str) -> np.ndarray[Any, Any]:
    """The array of an ``.npy`` file. ``np.load`` takes the memory that its header asks for before it looks at the rest."""
    file = io.BytesIO(base64.b64decode(text, validate=True))
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"expected an .npy file of version 1.0, found {version}")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if min(shape, default=0) < 0:  # numpy takes (-1,) for as many as there are
        raise ValueError(f"expected the shape of an array, found {list(shape)}")
    if dtype.hasobject:
        raise ValueError("it is a pickle, which is never loaded here")
    return np.ndarray(shape, dtype, file.read(), order="F" if is_fortran else "C")


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
        what = f"{where}: the entry {UNBATCHED_NAME!r} is damaged at {path!r}"
        why = why_no_key(path) or _why_taken(groups, (*key, name))
        if why is not None:
            raise ValueError(f"{what}: {why}")
        found = checked(encoded, EncodedArray, what)
        try:
            _group_at(groups, key).arrays[name] = _stored(name, found)
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"{what}: {error}") from error
    return groups


def _why_taken(groups: Mapping[Key, StoredGroup], key: Key) -> str | None:
    """Why there is no room for an array at `key`; None where there is."""
    taken = [key[:length] for length in range(1, len(key)) if _holds(groups, key[:length])]
    if taken:
        return f"{'/'.join(taken[0])!r} is an array"
    return "there is an array or a group of that name already" if key in groups or _holds(groups, key) else None


def _holds(groups: Mapping[Key, StoredGroup], key: Key) -> bool:
    return key[:-1] in groups and key[-1] in groups[key[:-1]].arrays


def _value(data: Any) -> Any:
    """The one object that an array of 0 dimensions holds, whether it is lazy or not."""
    return np.asarray(data if isinstance(data, np.ndarray) else data[indexing.BasicIndexer(())]).item()


def _stored(name: str, encoded: EncodedArray) -> StoredArray:
    """One array as a reader of the store would give it, so that it is decoded as all others are, or is not."""
    values = decode_array(encoded)
    attrs, record = dict(encoded.get("attrs", {})), entry_record(encoded)
    if values.dtype.kind in "mM":
        unit = np.datetime_data(values.dtype)[0]
        if unit != "ns":
            record["datetime_unit"] = unit
        attrs |= NS_ATTRS[values.dtype.kind]
        values, lost = to_nanoseconds(values)
        if lost is not None:
            raise ValueError(f"{lost} is no time that int64 nanoseconds hold")
    encoding = {"torch_dtype": record["torch_dtype"]} if "torch_dtype" in record else {}
    role = encoded.get("role")
    if role == "data" and values.dtype.kind in "biufc":
        role = None  # the CF attributes decide: decode_coords="all" makes coordinates of grid mappings
    return StoredArray(name, values, tuple(encoded["dims"]), attrs, encoding, role=role, record=record)


def _group_at(groups: dict[Key, StoredGroup], key: Key) -> StoredGroup:
    """The group at `key`, made with those above it if all it held went into the entry."""
    if key not in groups:
        parent = _group_at(groups, key[:-1])
        if key[-1] not in parent.groups:
            parent.groups = (*parent.groups, key[-1])
        groups[key] = StoredGroup(key)
    return groups[key]
