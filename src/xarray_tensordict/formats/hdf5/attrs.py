"""What HDF5 objects record: attributes, as xarray's h5netcdf backend shows them, and the names of dims.

Names are those of netCDF-4 dimensions, dimension scales, labels, and ``DimensionNames``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import h5py
import numpy as np

from ...core.metadata import (
    ARRAY_ATTR,
    INCOMPLETE_ATTR,
    MARKER_ATTRS,
    UNBATCHED_NAME,
    Incomplete,
    dims_from_attribute,
    parse,
    parse_attribute,
)
from ...core.model import Key, LeftOut
from ...core.values import jsonable
from .links import UnreadableError, member_of

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
_SCALES = (["DIMENSION_SCALE"], [b"DIMENSION_SCALE"])
_RAW_BYTES = ("_FillValue", "missing_value")  # xarray decodes all bytes but these
PLACEHOLDER = "This is a netCDF dimension but not a netCDF variable"
NON_COORD_PREFIX = "_nc4_non_coord_"
"""What netCDF puts before the name of a variable that is named like a dimension it does not describe."""


NO_NAME = "its name is not UTF-8"


def readable_name(name: str | bytes) -> str:
    """A name for messages; h5py gives those that are not UTF-8 as bytes."""
    return name if isinstance(name, str) else name.decode("utf-8", "backslashreplace")


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
        if name in _HIDDEN and not (name == "CLASS" and str(marker(obj, name)) in _SEARCH_INDEX):
            continue
        if isinstance(name, bytes):
            left_out.append(LeftOut(key, NO_NAME, readable_name(name)))
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
        return decode_text(value)
    return None if isinstance(value, h5py.Empty) else value


def append_mark(root: Any, where: str) -> Incomplete | None:
    """What an append that has not finished has noted in the root group of a file; None where there is nothing.

    Raises
    ------
    ValueError
        Where it is malformed; `where` is how messages call the file.
    """
    found = marker(root, INCOMPLETE_ATTR)
    return None if found is None else parse_attribute(found, Incomplete, f"{where}: the attribute {INCOMPLETE_ATTR!r}")


def unbatched_content(group: Any, where: str) -> dict[str, dict[str, Any]]:
    """The arrays in the entry ``_unbatched`` of a group, by path; raises a ValueError where it holds anything else."""
    found = group[UNBATCHED_NAME]
    text = found[()] if isinstance(found, h5py.Dataset) else "a group"
    return parse(text, dict[str, dict[str, Any]], f"{where}: the entry {UNBATCHED_NAME!r}")


def reference_kind(dtype: np.dtype[Any]) -> str | None:
    """What kind of HDF5 references `dtype` holds, at any depth, None if it holds none."""
    found = h5py.check_ref_dtype(dtype)
    if found is not None:
        return "region reference" if found is h5py.RegionReference else "object reference"
    base = dtype.subdtype[0] if dtype.subdtype is not None else h5py.check_vlen_dtype(dtype)
    inner = [base] if isinstance(base, np.dtype) else [dtype[name] for name in dtype.names or ()]
    return next(filter(None, map(reference_kind, inner)), None)


def decode_text(value: bytes | str) -> str:
    """The text of an HDF5 string; bytes that are no UTF-8 become lone surrogates, as h5py does in attributes."""
    return value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")


def _read_attribute(obj: Any, name: str) -> Any:
    """As h5netcdf and xarray give it: arrays of strings become lists, what has one element is that element."""
    attribute = obj.attrs.get_id(name)
    dtype, kind = attribute.dtype, reference_kind(attribute.dtype)
    if kind is not None:
        raise UnreadableError(f"an {kind}" if kind.startswith("o") else f"a {kind}")
    if dtype.kind == "V" and dtype.names is None and dtype.subdtype is None:
        raise UnreadableError(f"opaque ({dtype.itemsize} bytes)")
    string = h5py.check_string_dtype(dtype)
    if attribute.shape is None:
        return "" if string else np.array([], dtype)
    value = obj.attrs[name]
    if string:
        is_char = string.length == 1  # which stays bytes in a list
        texts = [item if is_char else decode_text(item) for item in np.ravel(np.asarray(value, object)).tolist()]
        value = texts if attribute.shape else texts[0]
    if not np.isscalar(value) and len(value) == 1:
        value = value[0]
    if isinstance(value, bytes) and name not in _RAW_BYTES:
        with suppress(UnicodeDecodeError):
            return value.decode("utf-8")
    return value


# -- written ------------------------------------------------------------------------------------------------------------


def stored_attrs(
    attrs: Mapping[Any, Any], record: Mapping[str, Any], owner: str, *, netcdf: bool = False
) -> dict[str, Any]:
    """Attributes as h5py or netCDF take them; the record holds those that would come back changed (``[1]`` as ``1``).

    Raises
    ------
    TypeError, ValueError
        For what neither HDF5 nor JSON holds; `owner` is how messages call what has them.
    """
    found: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    for name, value in attrs.items():
        if not str(name):
            raise ValueError(f"{owner} has an attribute whose name is empty, which HDF5 cannot hold; rename it")
        fits = _stored_attribute(value)
        changed = fits is None or (netcdf and isinstance(value, bool | np.bool_))
        if changed:
            try:
                kept[str(name)] = json.loads(json.dumps(jsonable(value)))
            except (TypeError, ValueError) as error:
                raise TypeError(
                    f"attribute {name!r} of {owner} is {value!r:.60}, which neither HDF5 nor JSON holds ({error}); "
                    f"convert it to a number, a string or a list"
                ) from error
        if not changed or (netcdf and _is_netcdf(value)):
            found[str(name)] = value if netcdf else fits
    if record or kept:
        found[ARRAY_ATTR] = json.dumps({**record, "attrs": kept} if kept else record)
    return found


def _stored_attribute(value: Any) -> Any:
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


def _is_netcdf(value: Any) -> bool:
    """Whether netCDF holds an attribute: numbers, a text, or a list of texts without a number among them."""
    if not isinstance(value, str | list | np.ndarray):
        return False
    kind = np.asarray(value).dtype.kind
    return kind in "iuf" or (kind == "U" and all(isinstance(item, str) and "\0" not in item for item in value))


# -- names of dims -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """What is recorded for one axis of a dataset: its name, and of a dimension scale (a netCDF-4 dimension) the size."""

    name: str | None = None
    size: int | None = None
    unlimited: bool = False

    @property
    def is_scale(self) -> bool:
        return self.size is not None


def identity(obj: Any) -> tuple[Any, ...]:
    """Identifies an HDF5 object, by any link it was reached."""
    info = h5py.h5o.get_info(obj.id if isinstance(obj, h5py.HLObject) else obj)
    return (info.fileno, info.addr)


def is_scale(dataset: Any) -> bool:
    """Whether `dataset` is a dimension scale: in netCDF-4, a dimension.

    HDF5's own function ends the process where the class is another text of that length, or a list of several.
    """
    return np.ravel(marker(dataset, "CLASS")).tolist() in _SCALES and bool(h5py.h5ds.is_scale(dataset.id))


def _has(dataset: Any, name: bytes) -> bool:
    """Whether there is an attribute; `attrs` of h5py takes several times as long."""
    return bool(h5py.h5a.exists(dataset.id, name))


def is_placeholder(dataset: Any) -> bool:
    """Whether `dataset` stands for a netCDF dimension without a coordinate variable."""
    return PLACEHOLDER in str(marker(dataset, "NAME"))


@dataclass(frozen=True)
class Shared:
    """What a group shares with those below it.

    Attributes
    ----------
    scales
        Its dimension scales.
    numbers
        Those with a netCDF-4 number, by it.
    """

    scales: list[Axis] = field(default_factory=list)
    numbers: dict[int, Axis] = field(default_factory=dict)


class ScaleTable:
    """The dimension scales of one file, each looked up once.

    HDF5 finds the name of an object reached by reference in a search of the whole file, so names are kept, and those
    of a group that is listed are put in before.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[Any, ...], str] = {}
        self._axes: dict[tuple[Any, ...], Axis] = {}
        self._shared: dict[tuple[Any, ...], Shared] = {}

    def axis(self, scale: Any, name: str | None = None) -> Axis:
        """What the scale with that h5py id records, listed as `name` or reached by a reference."""
        found = identity(scale)
        if found not in self._names:
            path = name if name is not None else h5py.h5i.get_name(scale).decode("utf-8", "surrogateescape")
            self._names[found] = path.rsplit("/", 1)[-1]
        if found not in self._axes:
            space = scale.get_space()
            shape = space.get_simple_extent_dims()
            unlimited = bool(shape) and space.get_simple_extent_dims(True)[0] == h5py.h5s.UNLIMITED
            size = shape[0] if shape else 0
            self._axes[found] = Axis(
                self._names[found], max(size, _largest_use(scale)) if unlimited else size, unlimited
            )
        return self._axes[found]

    def attached(self, dataset: Any, references: list[Any]) -> Axis:
        """The scale of one axis of a dataset. Of several the last, as netCDF-C and h5netcdf do."""
        for reference in reversed(references):
            with suppress(Exception):  # it is null, of another type, or dangling: h5py raises nearly anything
                target = h5py.h5r.dereference(reference, dataset.id)
                if isinstance(target, h5py.h5d.DatasetID):
                    return self.axis(target)
        return Axis()

    def shared(self, group: Any, members: Mapping[str, Any] | None = None) -> Shared:
        """What a group shares, looked up once; `members` are its own where they are open already."""
        key = identity(group)
        if members is not None or key not in self._shared:
            self._shared[key] = self._share(_opened(group) if members is None else members)
        return self._shared[key]

    def _share(self, members: Mapping[str, Any]) -> Shared:
        found = Shared()
        for name, member in members.items():
            with suppress(Exception):  # it is corrupt, which is reported when it is described as an array
                if isinstance(member, h5py.Dataset) and member.shape and is_scale(member):
                    found.scales.append(self.axis(member.id, name))
                    number = np.ravel(marker(member, "_Netcdf4Dimid"))
                    if len(number) == 1 and number.dtype.kind in "iu":
                        found.numbers[int(number[0])] = found.scales[-1]
        return found


def _opened(group: Any) -> dict[str, Any]:
    found = {}
    for name in group:
        with suppress(Exception):  # h5py raises nearly anything for a dangling link
            found[name] = member_of(group, name)
    return found


def _largest_use(scale: Any) -> int:
    """The largest extent of the axes that `scale` is attached to, which is the size of an unlimited dimension."""
    size = 0
    for use, axis in _uses(scale):
        with suppress(Exception):  # as there
            size = max(size, use.get_space().get_simple_extent_dims()[axis])
    return size


def _uses(scale: Any) -> list[tuple[Any, int]]:
    """The h5py ids that a scale says that it is attached to, and their axes."""
    uses, found = marker(h5py.Dataset(scale), "REFERENCE_LIST"), []
    for use in uses.ravel() if isinstance(uses, np.ndarray) else ():
        with suppress(Exception):  # the variable was deleted, or is corrupt: h5py raises nearly anything
            reference, axis = use
            found.append((h5py.h5r.dereference(reference, scale), int(axis)))
    return found


def scale_uses(dataset: Any) -> list[tuple[h5py.Dataset, int]]:
    """The datasets whose axes the dimension scale `dataset` names, and which axes; none where it is no scale."""
    if not is_scale(dataset):
        return []
    found = [(h5py.Dataset(use), axis) for use, axis in _uses(dataset.id) if isinstance(use, h5py.h5d.DatasetID)]
    return [(use, axis) for use, axis in found if axis < use.ndim and dataset in attached_scales(use, axis)]


def recorded_axes(dataset: Any, name: str, table: ScaleTable, chain: Iterable[Any]) -> tuple[Axis, ...]:
    """What is recorded for each axis of `dataset`, listed as `name`.

    Parameters
    ----------
    table
        The scales of the file.
    chain
        The groups that enclose the dataset, the root of the file first.
    """
    ndim = len(dataset.shape)
    if not ndim:
        return ()
    axes = [Axis()] * ndim
    own = table.axis(dataset.id, name) if is_scale(dataset) else None
    if own is not None and ndim > 1 and _has(dataset, b"_Netcdf4Coordinates"):
        known = {number: axis for group in chain for number, axis in table.shared(group).numbers.items()}
        numbers = marker(dataset, "_Netcdf4Coordinates")
        if np.shape(numbers) == (ndim,) and all(number in known for number in numbers.tolist()):
            return tuple(known[number] for number in numbers.tolist())
    if _has(dataset, b"DIMENSION_LIST"):
        axes = [table.attached(dataset, references) for references in _scale_references(dataset)]
    elif own is not None:
        axes[0] = own
    if all(axis.name is not None for axis in axes):
        return tuple(axes)
    others = dims_from_attribute({"DimensionNames": marker(dataset, "DimensionNames")}, ndim) or (None,) * ndim
    labels = _labels(dataset) or ("",) * ndim
    names = zip(axes, labels, others, strict=True)
    return tuple(Axis(label or other) if axis.name is None else axis for axis, label, other in names)


def _scale_references(dataset: Any) -> list[list[Any]]:
    """The references to the scales of each axis; none where the attribute is malformed: HDF5's own functions crash on that."""
    lists = marker(dataset, "DIMENSION_LIST")
    rows = lists if isinstance(lists, np.ndarray) and lists.shape == (dataset.ndim,) else [None] * dataset.ndim
    return [list(row) if isinstance(row, np.ndarray) else [] for row in rows]


def _labels(dataset: Any) -> list[str] | None:
    """The labels of the axes; None where the attribute is anything else, which HDF5's own functions crash on."""
    found = marker(dataset, "DIMENSION_LABELS")
    if not isinstance(found, np.ndarray) or found.shape != (dataset.ndim,):
        return None
    labels = found.tolist()
    return list(map(decode_text, labels)) if all(isinstance(label, (str, bytes)) for label in labels) else None


def attached_scales(dataset: Any, axis: int) -> list[h5py.Dataset]:
    """The dimension scales of an axis; dangling references are passed over."""
    found = []
    for reference in _scale_references(dataset)[axis]:
        with suppress(Exception):  # as where they are read
            found.append(dataset.file[reference])
    return [scale for scale in found if isinstance(scale, h5py.Dataset)]


def free_axes(dataset: Any, names: Sequence[str]) -> dict[int, str]:
    """The axes that no dimension scale names, with the labels that they are to have.

    Raises
    ------
    ValueError
        Where a dimension scale gives an axis another name, and where the attribute of the labels is there and holds none.
    """
    where, axes = dataset.file.filename, recorded_axes(dataset, dataset.name.rpartition("/")[2], ScaleTable(), ())
    for number, (axis, name) in enumerate(zip(axes, names, strict=True)):
        if axis.is_scale and axis.name != name:  # which readers ask first
            raise ValueError(
                f"{where}: axis {number} of {dataset.name!r} was to be called {name!r}, and the dimension scale {axis.name!r} "
                f"names it; rename the scale with h5py, file.move(...), or leave the axis out of dims=. Nothing was changed"
            )
    if _labels(dataset) is None and _has(dataset, b"DIMENSION_LABELS"):
        raise ValueError(
            f"{where}: {dataset.name!r} has an attribute DIMENSION_LABELS that is no list of {dataset.ndim} names; delete it "
            f"with h5py (del file[{dataset.name!r}].attrs['DIMENSION_LABELS']), and try again"
        )
    return {number: name for number, name in enumerate(names) if not axes[number].is_scale}
