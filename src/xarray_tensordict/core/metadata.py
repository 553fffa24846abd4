"""The metadata of tensordict, and of this package, on disk: reading and writing it as pure functions.

Sources: ``_ZarrBackend`` and ``_H5Backend`` in ``tensordict/persistent.py`` (0.15.3) for the names that start with
``__tensordict``; section 7 of the design for the rest.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np

from .model import ArrayRecord, Key, LeftOut, RecordedBatch
from .values import flatten, nested_shape, rows

T = TypeVar("T")
Size = Annotated[int, msgspec.Meta(ge=0)]

BATCH_ATTR = "__tensordict__"
"""Group attribute: batch size and names. A JSON object in zarr, a JSON string in HDF5."""
NON_TENSOR_ATTR = "__tensordict_non_tensor__"
"""Array attribute: the array holds the bytes of one non-tensor value, as JSON or as a pickle."""
STACK_ATTR = "__tensordict_stack__"
"""Array attribute: the array holds the elements of a NonTensorStack of this shape."""
STR_ATTR = "__tensordict_str__"
"""Attribute of an HDF5 scalar string that tensordict wrote."""
ARRAY_ATTR = "__xarray_tensordict__"
"""Attribute of this package of arrays and groups, see :class:`~.model.ArrayRecord`."""
UNBATCHED_NAME = "_unbatched"
"""Root entry that holds the numeric arrays a tensordict with a batch cannot hold."""
BATCH_DIMS_ATTR = "tensordict_batch_dims"
"""Dataset attribute: the batch dims, where they are not what the inference would find."""
CF_FILLS = ("_FillValue", "missing_value")
CF_SCALES = ("scale_factor", "add_offset")
CF_PACKING = (*CF_SCALES, *CF_FILLS, "dtype", "_Unsigned")
CF_TIMES = ("units", "calendar")
CF_WORDS = (*CF_PACKING, *CF_TIMES)
"""The attributes, and keys of an encoding, that define what stored numbers mean."""
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
STEP_ATTR = "step_variable"
"""The attribute of the labels of episodes that names the numbers of their steps; writers know the labels by it."""
MARKER_ATTRS = frozenset({BATCH_ATTR, NON_TENSOR_ATTR, STACK_ATTR, STR_ATTR, ARRAY_ATTR, INCOMPLETE_ATTR, COMMIT_ATTR})
"""Attributes that belong to the formats and are not shown."""

KNOWN_VERSION = 1


class Incomplete(msgspec.Struct, frozen=True):
    """The mark of a store that is being written.

    Attributes
    ----------
    kind
        "create": a new zarr store whose chunks are still to be filled. "overwrite": arrays of a zarr store that get other
        values. "append": rows that are added to an HDF5 file.
    created
        Whether all arrays of a new store are there.
    arrays
        The arrays that are being written, by their paths below the group.
    group, dim, before
        Of an append: the group, the dim that grows, and the shapes that datasets had, by path.
    """

    kind: Literal["create", "overwrite", "append"]
    created: bool = False
    arrays: tuple[str, ...] = ()
    group: str = "/"
    dim: str | None = None
    before: dict[str, tuple[Size, ...]] = {}


def parse_attribute(value: object, kind: type[T], what: str) -> T:
    """An attribute of a store as a type: an object in zarr, its JSON text in HDF5; see :func:`~.metadata.parse`."""
    return parse(value, kind, what) if isinstance(value, (bytes, str)) else checked(value, kind, what)


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
    what = f"{where}: the attribute {BATCH_ATTR!r}"
    advice = "Correct the attribute, or delete it: the batch is then inferred from the arrays"
    try:
        record = parse_attribute(value, dict[str, Any], what)
    except ValueError as error:
        raise ValueError(f"{error}. {advice}") from None
    version = record.get("version", KNOWN_VERSION)
    if isinstance(version, bool) or version != KNOWN_VERSION:
        raise ValueError(
            f"{where}: attribute {BATCH_ATTR!r} has version {version!r}, expected {KNOWN_VERSION}; a newer tensordict or "
            f"xarray-tensordict wrote it. Update xarray-tensordict, or delete the attribute: the batch is then inferred from the arrays"
        )
    try:
        found = checked(record, _BatchRecord, what)
    except ValueError as error:
        raise ValueError(f"{error}. {advice}") from None
    sizes, names = found.batch_size, found.names
    if sizes is None and names is None:
        raise ValueError(f"{what} has neither batch_size nor names. {advice}")
    if sizes is not None and names is not None and len(names) != len(sizes):
        raise ValueError(
            f"{what} has {len(sizes)} batch sizes ({list(sizes)}) and {len(names)} names ({list(names)}). {advice}"
        )
    return RecordedBatch(sizes, names)


class _BatchRecord(msgspec.Struct):
    batch_size: tuple[Size, ...] | None = None
    names: tuple[str | None, ...] | None = None


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


def parse_array_record(value: object, where: str) -> ArrayRecord:
    """Read the value of this package's attribute of an array or of a group; it is empty where there is none.

    Raises
    ------
    ValueError
        Where it is malformed; `where` is how messages call the array.
    """
    what = f"{where}: the attribute {ARRAY_ATTR!r}"
    record = ArrayRecord() if value is None else parse_attribute(value, ArrayRecord, what)
    order = record.get("order", [])
    if sorted(order) != list(range(len(order))):
        raise ValueError(f"{what}: expected the order of axes, found {order}")
    return record


def read_array_record(value: object, key: Key, left_out: list[LeftOut]) -> ArrayRecord:
    """As :func:`parse_array_record` for the array or group at `key`; one that is malformed is noted in `left_out`."""
    try:
        return parse_array_record(value, repr("/".join(key) or "/"))
    except ValueError as error:
        left_out.append(LeftOut(key, f"it is malformed, and ignored ({error})", ARRAY_ATTR))
        return {}


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
        For a pickle without ``allow_pickle=True``.
    ValueError
        For an unknown encoding.
    """
    encoding = _non_tensor_encoding(attrs, where)
    if encoding == "json":
        value = parse(payload, object, where)
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
    shape = checked(stack, tuple[Size, ...], f"{where}: the attribute {STACK_ATTR!r}")
    return stacked_array(value, shape), len(shape)


def is_pickled(attrs: Mapping[str, Any]) -> bool:
    """Whether an array holds a pickle, by its attributes; malformed ones count as none."""
    try:
        return _non_tensor_encoding(attrs, "") == "pickle"
    except ValueError:
        return False


def _non_tensor_encoding(attrs: Mapping[str, Any], where: str) -> str:
    what = f"{where}: the attribute {NON_TENSOR_ATTR!r}"
    return parse_attribute(attrs.get(NON_TENSOR_ATTR), _NonTensorMark, what).encoding


class _NonTensorMark(msgspec.Struct):
    encoding: str


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
    """Put the nested lists of a NonTensorStack into an array: numbers and bools of one type as such, else objects.

    Raises
    ------
    ValueError
        Where they are not of that shape; no memory is taken for it.
    """
    if 0 in shape:
        return np.empty(shape, dtype=object)
    if nested_shape(values, len(shape)) != shape:
        raise ValueError(f"the elements of a stack are no nested lists of shape {list(shape)}")
    return rows(flatten(values, len(shape)), shape)


class _Axis(msgspec.Struct):
    name: str


class _Resolution(msgspec.Struct):
    path: str


class _Multiscale(msgspec.Struct):
    axes: list[_Axis | str]  # 0.3 has plain strings, 0.4 objects
    datasets: list[_Resolution] = []


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
    for value in scales if isinstance(scales, list) else ():
        try:
            scale = checked(value, _Multiscale, "multiscales")
        except (
            ValueError
        ):  # another program's, or a version without axes: the names are a hint, and the arrays have none
            continue
        axes = tuple(axis if isinstance(axis, str) else axis.name for axis in scale.axes)
        found.update((resolution.path, axes) for resolution in scale.datasets)
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


LARGEST = 64 << 20
"""How many bytes one value may have that is read when a store is opened, decompressed."""


def parse(content: bytes | str, kind: type[T], what: str) -> T:
    """A document of a store, which is JSON, as a type.

    Parameters
    ----------
    content
        JSON, with ``NaN`` and ``Infinity`` as Python's ``json`` writes them.
    kind
        Anything that msgspec checks: a ``msgspec.Struct``, a ``TypedDict``, ``list[str]``, ...
    what
        The store and the document in it, for messages.

    Returns
    -------
    T
        The document. Members that a struct does not name are left out.

    Raises
    ------
    ValueError
        Where it is no JSON, is nested too deeply, or a member is missing or of another type: store, document, member, what was
        expected and what was found.

    Examples
    --------
    >>> parse(b'["time", "env"]', list[str], "store 'a.zarr', array 'obs', dimension_names")
    ['time', 'env']
    >>> parse(b'["time", 3]', list[str], "store 'a.zarr', array 'obs', dimension_names")
    Traceback (most recent call last):
    ...
    ValueError: store 'a.zarr', array 'obs', dimension_names: Expected `str`, got `int` - at `$[1]`
    """
    return checked(from_json(content, what), kind, what)


def from_json(content: bytes | str, what: str) -> Any:
    """As :func:`parse`, and what there is may be anything."""
    try:
        try:
            return msgspec.json.decode(content)  # three times as fast as Python's, which also takes NaN and Infinity
        except (msgspec.DecodeError, UnicodeError):
            return json.loads(content)
    except RecursionError:
        raise ValueError(f"{what}: nested too deeply to be a document of metadata") from None
    except ValueError as error:  # beside what is no JSON: no UTF-8, an integer of thousands of digits
        raise ValueError(f"{what}: not JSON ({error})") from None


def checked(value: object, kind: type[T], what: str) -> T:
    """What was read from JSON already as a type; as :func:`parse`.

    Examples
    --------
    >>> checked({"shape": [3, True]}, dict[str, list[int]], "store 'a.zarr', __tensordict__")
    Traceback (most recent call last):
    ...
    ValueError: store 'a.zarr', __tensordict__: Expected `int`, got `bool` - at `$[...][1]`
    """
    try:
        return msgspec.convert(value, kind)
    except RecursionError:
        raise ValueError(f"{what}: nested too deeply to be a document of metadata") from None
    except (msgspec.ValidationError, UnicodeError) as error:  # a text with half a character
        raise ValueError(f"{what}: {error}") from None
