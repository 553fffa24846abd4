"""The metadata of tensordict, and of this package, on disk: reading and writing it as pure functions.

Sources: ``_ZarrBackend`` and ``_H5Backend`` in ``tensordict/persistent.py`` (0.15.3) for the names that start with
``__tensordict``; section 7 of the design for the rest.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .model import RecordedBatch

BATCH_ATTR = "__tensordict__"
"""Group attribute: batch size and names. A JSON object in zarr, a JSON string in HDF5."""
NON_TENSOR_ATTR = "__tensordict_non_tensor__"
"""Array attribute: the array holds the bytes of one non-tensor value, as JSON or as a pickle."""
STACK_ATTR = "__tensordict_stack__"
"""Array attribute: the array holds the elements of a NonTensorStack of this shape."""
STR_ATTR = "__tensordict_str__"
"""Attribute of an HDF5 scalar string that tensordict wrote."""
ARRAY_ATTR = "__xarray_tensordict__"
"""Array attribute of this package: ``{"role": "data" | "coord", "torch_dtype": ..., "dims": [...]}``, all optional."""
UNBATCHED_NAME = "_unbatched"
"""Root entry that holds the numeric arrays a tensordict with a batch cannot hold."""
BATCH_DIMS_ATTR = "tensordict_batch_dims"
"""Dataset attribute: the batch dims, where they are not what the inference would find."""
CF_FILLS = ("_FillValue", "missing_value")
CF_SCALES = ("scale_factor", "add_offset")
CF_PACKING = (*CF_SCALES, *CF_FILLS, "dtype", "_Unsigned")
CF_TIMES = ("units", "calendar")
CF_WORDS = (*CF_PACKING, *CF_TIMES)
"""The attributes, and words of an encoding, that say what stored numbers mean."""
NS_UNITS = "nanoseconds since 1970-01-01"
"""The CF units of times, which are stored as int64 for tensordict."""
NS_ATTRS: Mapping[str, Mapping[str, str]] = {
    "M": {"units": NS_UNITS, "calendar": "proleptic_gregorian"},
    "m": {"units": "nanoseconds", "dtype": "timedelta64[ns]"},
}
"""The attributes of datetimes and of timedeltas that are stored as int64 nanoseconds, by the kind of their dtype."""
INCOMPLETE_ATTR = "__xarray_tensordict_incomplete__"
"""Group attribute of this package while arrays of the group are being written: which ones, see :class:`Incomplete`."""
COMMIT_ATTR = "__xarray_tensordict_commit__"
"""Group attribute of this package while the metadata of a zarr store is replaced: the documents as they were, by key."""
MARKER_ATTRS = frozenset({BATCH_ATTR, NON_TENSOR_ATTR, STACK_ATTR, STR_ATTR, ARRAY_ATTR, INCOMPLETE_ATTR, COMMIT_ATTR})
"""Attributes that belong to the formats and are not shown."""

KNOWN_VERSION = 1


def parse_batch_record(value: Any, where: str) -> RecordedBatch:
    """Read the value of a group's ``__tensordict__`` attribute.

    Parameters
    ----------
    value
        A mapping (zarr), or the JSON text of one (HDF5): ``{"batch_size": [...], "names": [...], "version": 1}``.
        ``names`` may be missing or null, as tensordict leaves it out for a tensordict without names.
    where
        How messages call the group, for example ``"data.h5, group '/next'"``.

    Raises
    ------
    ValueError
        If the record is malformed, or has a version that this package does not know.

    Examples
    --------
    >>> parse_batch_record('{"batch_size": [3], "names": ["time"], "version": 1}', "data.h5, group '/'")
    RecordedBatch(sizes=(3,), names=('time',))
    """
    record = _as_mapping(value, where)
    version = record.get("version", KNOWN_VERSION)
    if isinstance(version, bool) or version != KNOWN_VERSION:
        raise ValueError(
            f"{where}: attribute {BATCH_ATTR!r} has version {version!r}, expected {KNOWN_VERSION}; a newer tensordict or "
            f"xarray-tensordict wrote it. Update xarray-tensordict, or open the store with engine='zarr' or 'h5netcdf'"
        )
    sizes = record.get("batch_size")
    if sizes is not None:
        sizes = _as_list(sizes, "batch_size", where)
        if not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes):
            raise _malformed(where, f"batch_size is {sizes!r}, and should be a list of sizes")
    names = record.get("names")
    if names is not None:
        names = _as_list(names, "names", where)
        if not all(name is None or isinstance(name, str) for name in names):
            raise _malformed(where, f"names is {names!r}, and should be a list of names (or null)")
        if sizes is not None and len(names) != len(sizes):
            raise _malformed(where, f"it has {len(sizes)} batch sizes ({sizes!r}) and {len(names)} names ({names!r})")
    if sizes is None and names is None:
        raise _malformed(where, "it has neither batch_size nor names")
    return RecordedBatch(None if sizes is None else tuple(sizes), None if names is None else tuple(names))


def _as_mapping(value: Any, where: str) -> Mapping[str, Any]:
    if isinstance(value, (str, bytes)):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise _malformed(where, f"it is no JSON: {error}") from error
    if not isinstance(value, Mapping):
        raise _malformed(where, f"it is {value!r}, and should be an object")
    return value


def _as_list(value: Any, what: str, where: str) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise _malformed(where, f"{what} is {value!r}, and should be a list")
    return list(value)


def _malformed(where: str, found: str) -> ValueError:
    return ValueError(
        f"{where}: the attribute {BATCH_ATTR!r} is malformed: {found}. "
        f"Correct the attribute, or delete it: the batch is then inferred from the arrays"
    )


def batch_record(sizes: Sequence[int], names: Sequence[str | None] | None) -> dict[str, Any]:
    """Build the value of ``__tensordict__``, as tensordict writes it.

    Examples
    --------
    >>> batch_record((3,), ("time",))
    {'batch_size': [3], 'version': 1, 'names': ['time']}
    """
    record: dict[str, Any] = {"batch_size": list(sizes), "version": KNOWN_VERSION}
    if names is not None and any(name is not None for name in names):
        record["names"] = list(names)
    return record


def own_array_record(value: Any) -> dict[str, Any]:
    """Read the value of this package's array attribute; anything else counts as absent."""
    if isinstance(value, (bytes, str)):
        try:
            value = json.loads(value)
        except (json.JSONDecodeError, UnicodeDecodeError):
            return {}
    return dict(value) if isinstance(value, Mapping) else {}


def decode_non_tensor(
    payload: bytes, attrs: Mapping[str, Any], where: str, *, allow_pickle: bool
) -> tuple[np.ndarray[Any, Any], int]:
    """Decode the payload of a non-tensor entry.

    Returns
    -------
    value
        An array of 0 dimensions that holds the value (see :func:`scalar_array`), or, for the elements of a
        NonTensorStack, an array of the shape of the stack.
    ndim
        How many dimensions it has.

    Raises
    ------
    PermissionError
        For a pickle that nobody asked to load.
    ValueError
        For an unknown encoding.
    """
    encoding = _non_tensor_encoding(attrs)
    if encoding == "json":
        value = json.loads(payload.decode("utf-8"))
    elif encoding == "pickle":
        if not allow_pickle:
            raise PermissionError(
                "it is a pickled Python object, and loading a pickle can run any code. Pass allow_pickle=True if you "
                "trust the store"
            )
        value = pickle.loads(payload)  # noqa: S301 - only with allow_pickle=True
    else:
        raise ValueError(f"{where}: unknown non-tensor encoding {encoding!r}, expected 'json' or 'pickle'")
    stack = attrs.get(STACK_ATTR)
    if stack is None:
        return scalar_array(value), 0
    return stacked_array(value, tuple(int(size) for size in stack)), len(stack)


def is_pickled(attrs: Mapping[str, Any]) -> bool:
    """Whether an array holds a pickle, by its attributes; malformed ones count as none."""
    try:
        return bool(_non_tensor_encoding(attrs) == "pickle")
    except ValueError:
        return False


def _non_tensor_encoding(attrs: Mapping[str, Any]) -> Any:
    marker = attrs.get(NON_TENSOR_ATTR)
    if isinstance(marker, (bytes, str)):
        marker = json.loads(marker)
    return marker.get("encoding") if isinstance(marker, Mapping) else None


def scalar_array(value: Any) -> np.ndarray[Any, Any]:
    """Put one Python value into an array of 0 dimensions: str, number and bool as such, all else as an object.

    Examples
    --------
    >>> scalar_array(3).dtype, scalar_array({"lr": 0.1}).item()
    (dtype('int64'), {'lr': 0.1})
    """
    if isinstance(value, (bool, float)) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return np.array(value)
    held = np.empty((), dtype=object)
    held[()] = value
    return held


def stacked_array(values: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Put the nested lists of a NonTensorStack into an array: numbers and bools of one type as such, else objects."""
    held = np.empty(shape, dtype=object)
    for index in np.ndindex(shape):
        item = values
        for position in index:
            item = item[position]
        held[index] = item
    kinds = {type(item) for item in held.ravel()}
    if len(kinds) == 1 and kinds <= {bool, float, int}:
        try:
            return held.astype(next(iter(kinds)))
        except OverflowError:
            return held
    return held


def axes_of_multiscales(attrs: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Read the axes that an OME-Zarr image group gives its arrays.

    Source: the OME-Zarr specification, 0.4 (attribute ``multiscales``) and 0.5 (the same below ``ome``).

    Returns
    -------
    dict
        Path of an array below the group to the names of its axes.

    Examples
    --------
    >>> axes_of_multiscales({"multiscales": [{"axes": [{"name": "y"}, {"name": "x"}], "datasets": [{"path": "0"}]}]})
    {'0': ('y', 'x')}
    """
    nested = attrs.get("ome")
    scales = attrs.get("multiscales", nested.get("multiscales") if isinstance(nested, Mapping) else None)
    found: dict[str, tuple[str, ...]] = {}
    for scale in scales if isinstance(scales, list) else ():
        if not isinstance(scale, Mapping) or not isinstance(scale.get("axes"), list):
            continue
        # 0.3 has plain strings, 0.4 objects
        names = [axis.get("name") if isinstance(axis, Mapping) else axis for axis in scale["axes"]]
        axes = tuple(name for name in names if isinstance(name, str))
        if len(axes) == len(names):
            paths = [entry.get("path") for entry in scale.get("datasets", ()) if isinstance(entry, Mapping)]
            found.update((path, axes) for path in paths if isinstance(path, str))
    return found


def dims_from_attribute(attrs: Mapping[str, Any], ndim: int) -> tuple[str, ...] | None:
    """Read ``DimensionNames`` ("nscan,nray"), which NASA's GPM products carry; None if it does not fit.

    Examples
    --------
    >>> dims_from_attribute({"DimensionNames": "nscan,nray"}, 2)
    ('nscan', 'nray')
    """
    value = attrs.get("DimensionNames")
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str):
        return None
    names = tuple(name.strip() for name in value.split(","))
    return names if len(names) == ndim and all(names) else None
