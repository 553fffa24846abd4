"""What HDF5 objects record: attributes, as xarray's h5netcdf backend shows them, and the names of dims.

Names are those of netCDF-4 dimensions, dimension scales, labels, and ``DimensionNames``.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from ...core.metadata import ARRAY_ATTR, MARKER_ATTRS
from ...core.model import Key, LeftOut
from ...core.objects import jsonable

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
PLACEHOLDER = "This is a netCDF dimension but not a netCDF variable"
NON_COORD_PREFIX = "_nc4_non_coord_"
"""What netCDF puts before the name of a variable that is named like a dimension it does not describe."""


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


# -- written ------------------------------------------------------------------------------------------------------------


def write_attrs(obj: Any, attrs: Mapping[Any, Any], record: Mapping[str, Any]) -> None:
    """Write attributes, and in the record those that HDF5 would give back changed (``[1]`` as ``1``, None, dicts)."""
    record = dict(record)
    for name, value in attrs.items():
        fits = stored_attribute(value)
        if fits is not None:
            obj.attrs[str(name)] = fits
        else:
            record.setdefault("attrs", {})[str(name)] = jsonable(value)
    if record:
        obj.attrs[ARRAY_ATTR] = json.dumps(record)


def stored_attribute(value: Any) -> Any:
    """An attribute as h5py takes it, None where HDF5 does not give it back as it was."""
    if isinstance(value, str):
        return None if not value or "\0" in value else value
    if isinstance(value, bool | int | float | complex | np.bool_ | np.number):
        return value if not isinstance(value, int) or -(2**63) <= value < 2**64 else None
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc" and value.ndim == 1 and value.size > 1:
        return value
    if isinstance(value, list) and len(value) > 1:
        types = {type(item) for item in value}
        if types == {str} and not any("\0" in item for item in value):
            return np.array(value, dtype=h5py.string_dtype())
        if len(types) == 1 and types <= {int, float}:
            return np.array(value)
    return None


def netcdf_attrs(attrs: Mapping[Any, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes that netCDF holds, and the record, with those that it gives back changed or does not hold at all."""
    plain: dict[str, Any] = {}
    record = dict(record)
    for name, value in attrs.items():
        changed = stored_attribute(value) is None or isinstance(value, bool | np.bool_)
        if changed:
            record.setdefault("attrs", {})[str(name)] = jsonable(value)
        if not changed or _is_netcdf(value):
            plain[str(name)] = value
    if record:
        plain[ARRAY_ATTR] = json.dumps(record)
    return plain


def _is_netcdf(value: Any) -> bool:
    """Whether netCDF holds an attribute: numbers, a text, or a list of texts without a number among them."""
    if not isinstance(value, str | list | np.ndarray):
        return False
    kind = np.asarray(value).dtype.kind
    return kind in "iuf" or (kind == "U" and all(isinstance(item, str) and "\0" not in item for item in value))


# -- names of dims -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """A dimension scale: the netCDF-4 dimension `name`."""

    name: str
    size: int
    unlimited: bool


@dataclass(frozen=True)
class Axis:
    """What is recorded for one axis of a dataset."""

    name: str | None = None
    scale: Scale | None = None


def identity(obj: Any) -> tuple[Any, ...]:
    """Tells one HDF5 object from another, by whatever link it was reached."""
    info = h5py.h5o.get_info(obj.id if isinstance(obj, h5py.HLObject) else obj)
    return (info.fileno, info.addr)


def is_scale(dataset: Any) -> bool:
    """Whether `dataset` is a dimension scale: in netCDF-4, a dimension."""
    return bool(h5py.h5ds.is_scale(dataset.id))


def _has(dataset: Any, name: bytes) -> bool:
    """Whether there is an attribute; `attrs` of h5py takes several times as long."""
    return bool(h5py.h5a.exists(dataset.id, name))


def is_placeholder(dataset: Any) -> bool:
    """Whether `dataset` stands for a netCDF dimension without a coordinate variable."""
    if not _has(dataset, b"NAME"):
        return False
    try:
        name = dataset.attrs["NAME"]
    except Exception:  # the attribute is of another kind, so netCDF did not write it
        return False
    return PLACEHOLDER in (name.decode("ascii", "replace") if isinstance(name, bytes) else str(name))


class ScaleTable:
    """The dimension scales of one file, each looked up once.

    HDF5 finds the name of an object reached by reference in a search of the whole file, so names are kept, and those
    of a group that is listed are put in by :meth:`add`.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[Any, ...], str] = {}
        self._scales: dict[tuple[Any, ...], Scale] = {}

    def add(self, dataset: Any, name: str) -> Scale:
        """Register the scale `dataset`, listed as `name`."""
        found = identity(dataset)
        self._names.setdefault(found, name)
        return self._scale(dataset.id, found)

    def by_reference(self, dataset: Any, reference: Any) -> Scale | None:
        """The scale that `reference`, a member of the DIMENSION_LIST of `dataset`, points to; None if to nothing."""
        try:
            target = h5py.h5r.dereference(reference, dataset.id)
            if not isinstance(target, h5py.h5d.DatasetID):
                return None
            found = identity(target)
            if found not in self._names:
                path = h5py.h5i.get_name(target)
                if not path:
                    return None
                self._names[found] = path.decode("utf-8", "surrogateescape").rsplit("/", 1)[-1]
            return self._scale(target, found)
        except (ValueError, OSError, RuntimeError, KeyError):
            return None

    def forget_sizes(self) -> None:
        """Look sizes up again: the file can be written to."""
        self._scales.clear()

    def _scale(self, target: Any, found: tuple[Any, ...]) -> Scale:
        if found not in self._scales:
            space = target.get_space()
            shape = space.get_simple_extent_dims()
            unlimited = bool(shape) and space.get_simple_extent_dims(True)[0] == h5py.h5s.UNLIMITED
            size = shape[0] if shape else 0
            if unlimited:
                size = max(size, _largest_use(target))
            self._scales[found] = Scale(self._names[found], size, unlimited)
        return self._scales[found]


def _largest_use(scale: Any) -> int:
    """The largest extent of the axes that `scale` is attached to, which is the size of an unlimited dimension."""
    size = 0
    uses = h5py.Dataset(scale).attrs["REFERENCE_LIST"] if h5py.h5a.exists(scale, b"REFERENCE_LIST") else ()
    for reference, axis in uses:
        try:
            shape = h5py.h5r.dereference(reference, scale).get_space().get_simple_extent_dims()
        except Exception:  # the variable was deleted, or is corrupt: h5py raises nearly anything
            shape = ()
        if axis < len(shape):
            size = max(size, shape[axis])
    return size


def recorded_axes(
    dataset: Any, name: str, table: ScaleTable, dimension_ids: Callable[[], Mapping[int, Scale]]
) -> tuple[Axis, ...]:
    """What is recorded for each axis of `dataset`, listed as `name`.

    Parameters
    ----------
    table
        The scales of the file.
    dimension_ids
        Gives the dimensions that the group of `dataset` knows by their netCDF-4 number.
    """
    ndim = len(dataset.shape)
    if not ndim:
        return ()
    axes = [Axis()] * ndim
    scale = table.add(dataset, name) if is_scale(dataset) else None
    if scale is not None and ndim > 1 and _has(dataset, b"_Netcdf4Coordinates"):
        known = dimension_ids()
        numbers = dataset.attrs["_Netcdf4Coordinates"]
        if len(numbers) == ndim and all(int(number) in known for number in numbers):
            return tuple(Axis(known[int(number)].name, known[int(number)]) for number in numbers)
    if _has(dataset, b"DIMENSION_LIST"):
        axes = [_attached(dataset, references, table) for references in dataset.attrs["DIMENSION_LIST"]]
        axes = (axes + [Axis()] * ndim)[:ndim]
    elif scale is not None:
        axes[0] = Axis(scale.name, scale)
    if all(axis.name is not None for axis in axes):
        return tuple(axes)
    names = _other_names(dataset, ndim)
    return tuple(Axis(other) if axis.name is None else axis for axis, other in zip(axes, names, strict=True))


def _attached(dataset: Any, references: Any, table: ScaleTable) -> Axis:
    """The scale of one axis. Of several the last, as netCDF-C and h5netcdf do."""
    for reference in reversed(list(references)):
        scale = table.by_reference(dataset, reference)
        if scale is not None:
            return Axis(scale.name, scale)
    return Axis()


def _other_names(dataset: Any, ndim: int) -> tuple[str | None, ...]:
    """Names from HDF5 dimension labels, or from an attribute ``DimensionNames`` ("nscan,nray", as in GPM files)."""
    names: list[str | None] = [None] * ndim
    if _has(dataset, b"DIMENSION_LABELS"):
        names = [label or None for label in _labels(dataset) or names]
    if _has(dataset, b"DimensionNames"):
        value = dataset.attrs["DimensionNames"]
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        parts = [part.strip() for part in text.split(",")] if isinstance(text, str) else []
        if len(parts) == ndim:
            names = [name or part or None for name, part in zip(names, parts, strict=True)]
    return tuple(names)


def _labels(dataset: Any) -> list[str] | None:
    """The labels of the axes; None where the attribute is anything else, which HDF5's own functions crash on."""
    found = marker(dataset, "DIMENSION_LABELS")
    if not isinstance(found, np.ndarray) or found.shape != (dataset.ndim,):
        return None
    return [decode_text(label) for label in found.tolist()] if found.dtype.kind in "OSU" else None


def attached_scales(dataset: Any, axis: int) -> list[h5py.Dataset]:
    """The dimension scales of an axis; an attribute that lists none is passed over, as HDF5's own functions do not."""
    lists = marker(dataset, "DIMENSION_LIST")
    if not isinstance(lists, np.ndarray) or lists.shape != (dataset.ndim,) or not isinstance(lists[axis], np.ndarray):
        return []
    return [dataset.file[reference] for reference in lists[axis] if reference]


def write_label(dataset: Any, axis: int, name: str) -> None:
    """Name an axis.

    Raises
    ------
    ValueError
        Where the attribute of the labels is there and holds none.
    """
    if _has(dataset, b"DIMENSION_LABELS") and _labels(dataset) is None:
        raise ValueError(
            f"{dataset.file.filename}: {dataset.name!r} has an attribute DIMENSION_LABELS that is no list of "
            f"{dataset.ndim} names; delete it with h5py (del file[{dataset.name!r}].attrs['DIMENSION_LABELS']), and try again"
        )
    dataset.dims[axis].label = name
