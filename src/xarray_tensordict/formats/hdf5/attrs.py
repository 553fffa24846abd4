"""Attributes of HDF5 objects, as xarray's h5netcdf backend shows them."""

from __future__ import annotations

import warnings
from typing import Any

import h5py
import numpy as np

from ...core.metadata import MARKER_ATTRS
from ...core.model import Key, LeftOut

_HIDDEN = frozenset(
    {
        "CLASS",
        "NAME",
        "REFERENCE_LIST",
        "DIMENSION_LIST",
        "DIMENSION_LABELS",
        "_Netcdf4Dimid",
        "_Netcdf4Coordinates",
        "_nc3_strict",
        "_NCProperties",
        "_NCCOPY",
    }
    | MARKER_ATTRS
)
_SEARCH_INDEX = frozenset({"TINDEX", "INDEX"})  # groups of PyTables, which are not shown
_RAW_BYTES = ("_FillValue", "missing_value")  # xarray decodes all bytes but these


class UnreadableError(Exception):
    """What an HDF5 object holds has no counterpart here; the message says what it is."""


def read_attributes(obj: Any, key: Key, left_out: list[LeftOut]) -> dict[str, Any]:
    """The attributes of `obj` that a user should see; those without a Python value are added to `left_out`."""
    attrs: dict[str, Any] = {}
    try:
        # most have none, and to list them takes h5py ten times as long as to count them
        names = list(obj.attrs) if h5py.h5a.get_num_attrs(obj.id) else []
    except Exception as err:  # h5py raises nearly anything here: broken attributes must not hide the object
        left_out.append(LeftOut(key, f"its attributes cannot be listed: {err}"))
        return attrs
    for name in names:
        if name in _HIDDEN and not (name == "CLASS" and marker(obj, name) in _SEARCH_INDEX):
            continue
        try:
            attrs[name] = _read_attribute(obj, name)
        except UnreadableError as err:
            left_out.append(LeftOut(key, f"it is {err}", name))
        except Exception as err:  # as above
            left_out.append(LeftOut(key, f"it cannot be read: {err}", name))
    return attrs


def marker(obj: Any, name: str) -> Any:
    """The value of an attribute of the format itself, None if it is absent or cannot be read."""
    try:
        value = obj.attrs[name] if h5py.h5a.exists(obj.id, name.encode()) else None
    except Exception:  # as above; a broken marker is no marker
        return None
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return None if isinstance(value, h5py.Empty) else value


def reference_kind(dtype: np.dtype[Any]) -> str | None:
    """What kind of HDF5 references `dtype` holds, at whatever depth, None if it holds none."""
    found = h5py.check_ref_dtype(dtype)
    if found is not None:
        return "region reference" if found is h5py.RegionReference else "object reference"
    base = h5py.check_vlen_dtype(dtype)
    if isinstance(base, np.dtype):
        return reference_kind(base)
    if dtype.subdtype is not None:
        return reference_kind(dtype.subdtype[0])
    for field in (dtype.fields or {}).values():
        inner = reference_kind(field[0])
        if inner is not None:
            return inner
    return None


def decode_text(value: bytes | str) -> str:
    """The text of an HDF5 string; bytes that are no UTF-8 become lone surrogates, as h5py does in attributes."""
    return value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")


def _read_attribute(obj: Any, name: str) -> Any:
    attribute = obj.attrs.get_id(name)
    dtype = attribute.dtype
    kind = reference_kind(dtype)
    if kind is not None:
        raise UnreadableError(f"an {kind}" if kind.startswith("o") else f"a {kind}")
    if dtype.kind == "V" and dtype.names is None and dtype.subdtype is None:
        raise UnreadableError(f"opaque ({dtype.itemsize} bytes)")
    string = h5py.check_string_dtype(dtype)
    if attribute.shape is None:
        return "" if string else np.array([], dtype)
    value = obj.attrs[name]
    if string:
        value = _decode_strings(value, string.length)
    if not np.isscalar(value) and len(value) == 1:
        value = value[0]
    if isinstance(value, bytes) and name not in _RAW_BYTES:
        try:
            value = value.decode("utf-8")
        except UnicodeDecodeError:
            warnings.warn(
                f"attribute {name!r} of {obj.name!r} is not valid UTF-8: it stays bytes", UnicodeWarning, stacklevel=2
            )
    return value


def _decode_strings(value: Any, length: int | None) -> Any:
    """Strings as h5netcdf gives them: arrays become lists, and only strings of one byte ("char") stay bytes."""
    if length is not None and length > 1:
        return decode_text(value) if isinstance(value, bytes) else [decode_text(item) for item in value.flat]
    return value if np.isscalar(value) else value.tolist()
