"""What a Dataset and the arrays of a store remember of each other: the record of batch dims, the tensorclass, the stored form.

The record of batch dims is ``ds.attrs["tensordict_batch_dims"]``, kept only where the inference would not find it. It is a JSON
text, because attributes are lost or changed otherwise: a one-element list comes back from netCDF as a string. A list names the
batch dims of the root; an object gives them for each group that does not simply follow the group above it, ``{"": ["time"],
"next": ["time", "agent"]}``. Where the inference would not find the same, it also describes the Dataset: ``"/in_front"`` lists
the other dims, so that dims that come in front later (``xr.concat`` along a new dim) are taken for new batch dims and these are
not; ``"/axes"`` holds the dims of a variable and ``"/sizes"`` the sizes of these dims, so that ``rename`` is followed and is
not taken for a reduction or a transposition.

The writers store times as nanoseconds and batch dims first, because plain tensordict reads such arrays as they are, and note in the
record of the array (:data:`~..core.metadata.ARRAY_ATTR`) what the variable was. From that the stored form is restored; nothing is
read before it is indexed. Of a tensorclass the name is kept in ``ds.encoding``, never the class, which may come from anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import msgspec
import numpy as np
import xarray as xr
from xarray.conventions import decode_cf_variables
from xarray.core import indexing

from .._compat.xarray import data_of
from ..core.inference import infer_batch
from ..core.metadata import ARRAY_ATTR, BATCH_DIMS_ATTR, CF_SCALES, checked, parse_attribute
from ..core.model import ArrayInfo, ArrayRecord, Inference, Key, RecordedBatch, StoredGroup, group_name, path_key
from ..core.values import widened_dtype_name
from ..core.voting import feature_dims
from ..formats.array_wrappers import _Wrapped
from ..warnings import InferredBatchWarning, warn
from .describe import describe_dataset, key_of

_IN_FRONT = "/in_front"
_AXES = "/axes"
_SIZES = "/sizes"

Batches = Mapping[Key, Sequence[str | None]]


def read_record(attrs: Mapping[Any, Any], where: str = "the dataset") -> dict[Key, RecordedBatch]:
    """Read the record from the attributes of a Dataset; empty where there is none.

    Raises
    ------
    ValueError
        Where the attribute is there and is not a record.
    """
    text = attrs.get(BATCH_DIMS_ATTR)
    if text is None:
        return {}
    what = f"{where}: attrs[{BATCH_DIMS_ATTR!r}]"
    try:
        value = parse_attribute(text, object, what)
        groups = dict(value) if isinstance(value, dict) else {"": value}
        extra = {name.removeprefix("/"): groups.pop(name) for name in (_IN_FRONT, _AXES, _SIZES) if name in groups}
        record = checked({"groups": groups, **extra}, _Record, what)
    except ValueError as error:
        raise ValueError(f"{error}. Set it with ds.td.set_batch_dims(...), or delete it") from None
    found = {}
    for path, names in record.groups.items():
        own = {name: dims for name, dims in record.axes.items() if f"{name}/".startswith(f"{path}/" if path else "")}
        found[path_key(path)] = RecordedBatch(None, names, record.in_front, own, record.sizes)
    return found


class _Record(msgspec.Struct):
    groups: dict[str, tuple[str, ...]]
    in_front: frozenset[str] = frozenset()
    axes: dict[str, tuple[str, ...]] = {}
    sizes: dict[str, int] = {}


def infer_dataset(ds: xr.Dataset, *, given: str | Sequence[str] | int | None = None) -> Inference:
    """Infer the batch of a Dataset from its variables and its record; a warning names what the record no longer fits."""
    recorded = read_record(ds.attrs) if given is None else {}
    found = infer_batch(describe_dataset(ds), given=given, recorded=recorded, group_attrs={(): ds.attrs})
    for sentence in found.warnings:
        warn(sentence, InferredBatchWarning)
    return found


def with_record(ds: xr.Dataset, batches: Batches) -> xr.Dataset:
    """Record the batch dims, even where the inference would find them."""
    value = _smallest(batches)
    infos = describe_dataset(ds)
    names = {str(name) for dims in batches.values() for name in dims if name is not None}
    holders = [info for info in infos if names.intersection(info.dims)]
    dims = {dim for info in holders for dim in info.dims if dim is not None} - names
    others = sorted(dims - feature_dims(dims, infos, infos).keys())
    if others or len(names) > 1 or not _says(infer_batch(infos, group_attrs={(): ds.attrs}), batches):
        value = value if isinstance(value, dict) else {"": value}
        value |= {_IN_FRONT: others} if others else {}
        value |= _axes(holders, names)
    ds = ds.copy(deep=False)
    ds.attrs = {**ds.attrs, BATCH_DIMS_ATTR: json.dumps(value)}
    return ds


def _axes(infos: Sequence[ArrayInfo], names: set[str]) -> dict[str, Any]:
    """The dims, and their sizes, of few variables that have all of the batch dims between them, those with the most first."""
    axes: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    missing = set(names)
    for info in sorted(infos, key=lambda info: (-len(names.intersection(info.dims)), -len(info.dims), info.key)):
        if missing.intersection(info.dims):
            axes["/".join(info.key)] = [str(dim) for dim in info.dims]
            sizes |= {str(dim): size for dim, size in info.axes}
            missing.difference_update(info.dims)
    return {_AXES: axes, _SIZES: sizes} if axes else {}


def set_record_if_needed(ds: xr.Dataset, batches: Batches) -> xr.Dataset:
    """Record the batch dims, by group, if the inference would not find just these; a group without any follows the one above."""
    # an existing record of the same batch stays as it is
    return ds if _says(infer_dataset(ds), batches) else with_record(ds, batches)


def _says(inferred: Inference, batches: Batches) -> bool:
    expected = _complete(batches, inferred.groups)
    return all(inferred.groups[key].dims == dims for key, dims in expected.items())


def _complete(batches: Batches, groups: Mapping[Key, Any]) -> dict[Key, tuple[str | None, ...]]:
    expected = {}
    for key in groups:
        known = next(key[:length] for length in range(len(key), -1, -1) if key[:length] in batches or not length)
        expected[key] = tuple(batches.get(known, ()))
    return expected


def _smallest(batches: Batches) -> list[Any] | dict[str, Any]:
    """A list if all groups follow the root, else an object of those that do not follow the group above them."""
    kept: dict[Key, list[str | None]] = {(): list(batches.get((), ()))}
    for key in sorted(batches, key=len):
        above = next(key[:length] for length in range(len(key) - 1, -1, -1) if key[:length] in kept) if key else ()
        if list(batches[key]) != kept[above]:
            kept[key] = list(batches[key])
    if set(kept) == {()}:
        return kept[()]
    return {"/".join(key): dims for key, dims in kept.items()}


class Answer:
    """The decision about a batch, kept as long as the question stays the same."""

    def __init__(self) -> None:
        self._question: list[Any] | None = None
        self._inference: Inference | None = None

    def to(self, question: list[Any], infer: Callable[[], Inference]) -> Inference:
        """The answer there is, or that of `infer` where `question`, all that the inference looks at, is another."""
        try:
            known = self._inference is not None and self._question == question
        except ValueError:  # attributes that are arrays, and not the same objects
            known = False
        if self._inference is None or not known:
            self._question, self._inference = question, infer()
        return self._inference


_UNITS = frozenset({"s", "ms", "us"})
# they belong to the stored numbers; xarray would turn times of another resolution into NaT with them (measured)
_STORED_ONLY = ("units", "calendar", "dtype", "_FillValue")


def masked_zeros(group: StoredGroup, decoded: Mapping[Any, xr.Variable]) -> list[str]:
    """The arrays of a group whose zeros became NaN because 0 is their fill value in zarr v2, where it is the default."""
    return [
        "/".join((*group.key, name))
        for name, array in group.arrays.items()
        if array.masks
        and array.dtype.kind in "biuf"
        and not {*CF_SCALES} & {*array.attrs}
        and name in decoded
        and np.array_equal(decoded[name].encoding.get("_FillValue", np.nan), 0)  # a damaged one may be a list
    ]


def masked_text(names: Collection[str]) -> str:
    """A sentence on the arrays whose zeros became NaN, and how to keep the zeros."""
    return (
        f"zeros of {sorted(names)} are read as missing (NaN): these zarr v2 arrays have the fill value 0, which zarr, tifffile and "
        f"kerchunk write by default; use_zarr_fill_value_as_mask=False opens the zeros as zeros, True as now and without this "
        f"warning"
    )


def stored_attrs(attrs: Mapping[str, Any], record: ArrayRecord) -> dict[str, Any]:
    """The attributes of an array as they were written: its packing has the dtype of what it unpacks to, which JSON lost."""
    dtype = record.get("unpacked")
    if dtype is None:
        return dict(attrs)
    return {
        word: np.dtype(dtype).type(value) if word in CF_SCALES and isinstance(value, int | float) else value
        for word, value in attrs.items()
    }


def odd_scale(variable: xr.Variable) -> str | None:
    """The attribute by which the values of a variable cannot be scaled: it is no number, or they are none."""
    for word in CF_SCALES:
        if word in variable.attrs:
            scale = np.asarray(variable.attrs[word])
            if scale.dtype.kind not in "biuf" or scale.size != 1 or variable.dtype.kind not in "biufc":
                return word
    return None


def how_to_decode(variable: xr.Variable, decoders: Mapping[str, Any]) -> str:
    """How to open a variable that cannot be decoded: ``decode_cf=False`` shows fill values as data, so not where its times are why."""
    if " since " in str(variable.attrs.get("units")):
        install = "" if find_spec("cftime") else "install cftime (pip install cftime), or "
        with suppress(Exception):
            decode_cf_variables({"": variable}, {}, **{**decoders, "decode_times": False})
            return f"{install}open with decode_times=False to get its numbers"
    return "open with decode_cf=False to get it as stored"


def torch_dtype_of(variable: xr.Variable) -> str | None:
    """The dtype recorded where values were widened, as long as they still have the widened dtype."""
    recorded = variable.encoding.get("torch_dtype")
    return str(recorded) if recorded is not None and variable.dtype.name == widened_dtype_name(recorded) else None


def restore(variable: xr.Variable, record: ArrayRecord, where: str) -> xr.Variable:
    """A decoded variable as it was written.

    Parameters
    ----------
    variable
        As xarray has decoded it.
    record
        The array's own record; what it does not know, or what does not fit, is left alone.
    where
        How messages call the variable: the store, and its name.
    """
    unit, order, unpacked = record.get("datetime_unit"), record.get("order"), record.get("unpacked")
    if unit in _UNITS and variable.dtype.kind in "mM" and np.datetime_data(variable.dtype)[0] != unit:
        dtype = np.dtype(f"{variable.dtype.kind}8[{unit}]")
        kept = {name: value for name, value in variable.encoding.items() if name not in _STORED_ONLY}
        variable = _with_data(variable, variable.dims, OfDtype(data_of(variable), dtype, where), kept)
    elif unpacked is not None and variable.dtype.kind == "f" and variable.dtype != unpacked:
        wrapped = OfDtype(data_of(variable), np.dtype(unpacked), where)
        variable = _with_data(variable, variable.dims, wrapped, dict(variable.encoding))
    if order is not None and len(order) == variable.ndim and order != sorted(order):
        dims = tuple(variable.dims[axis] for axis in order)
        encoding = dict(variable.encoding)
        for name in ("chunks", "chunksizes", "shards", "original_shape"):
            if isinstance(encoding.get(name), tuple) and len(encoding[name]) == variable.ndim:
                encoding[name] = tuple(encoding[name][axis] for axis in order)
        variable = _with_data(variable, dims, Transposed(data_of(variable), tuple(order)), encoding)
    return variable


def claim_nested_coordinates(groups: Mapping[Key, StoredGroup]) -> None:
    """Understand ``coordinates = "metadata/algorithm"``, as plain ``Dataset.to_zarr`` writes it for nested names.

    Groups are decoded one by one. So arrays of other groups (of those above, or below one of those) that are named are
    given their role here, and the names go.
    """
    for key, group in groups.items():
        for attrs in (group.attrs, *(array.attrs for array in group.arrays.values())):
            text = attrs.get("coordinates")
            words = text.split() if isinstance(text, str) else []
            others = [word for word in words if word not in group.arrays]
            claimed = {word for word in others if _claim(groups, key, word)}
            rest = [word for word in words if word not in claimed]
            if claimed and rest:
                attrs["coordinates"] = " ".join(rest)
            elif claimed:
                del attrs["coordinates"]


def _claim(groups: Mapping[Key, StoredGroup], key: Key, word: str) -> bool:
    """Make a coordinate of the array that `word` names, as seen from the group at `key` or from one above it."""
    for length in range(len(key), -1, -1):
        *path, name = (*key[:length], *word.split("/"))
        group = groups.get(tuple(path))
        if group is not None and name in group.arrays:
            group.arrays[name].role = group.arrays[name].role or "coord"
            return True
    return False


def _with_data(variable: xr.Variable, dims: Any, data: Any, encoding: dict[str, Any]) -> xr.Variable:
    changed = xr.Variable(dims, indexing.LazilyIndexedArray(data), variable.attrs, fastpath=True)
    changed.encoding = encoding
    return changed


class OfDtype(_Wrapped):
    """Times in the resolution they were written in, or floats in the dtype they were packed from."""

    def __init__(self, array: Any, dtype: np.dtype[Any], where: str) -> None:
        super().__init__(array)
        self.dtype, self.where = dtype, where
        self.shape = tuple(array.shape)

    def _read(self, key: tuple[Any, ...]) -> Any:
        values = self._read_wrapped(key)
        found = values.astype(self.dtype)
        if self.dtype.kind in "mM" and not np.array_equal(found.astype(values.dtype), values, equal_nan=True):
            raise ValueError(
                f"{self.where}: the store records that these times have the resolution {self.dtype}, and some are finer, so another "
                "program has written them; open the store with decode_times=False to get the nanoseconds"
            )
        return found


class Transposed(_Wrapped):
    """An array whose axes are in another order than in the store: axis `i` is axis ``order[i]`` there."""

    def __init__(self, array: Any, order: tuple[int, ...]) -> None:
        super().__init__(array)
        self._order = order
        self.dtype = array.dtype
        self.shape = tuple(array.shape[axis] for axis in order)

    def _read(self, key: tuple[Any, ...]) -> Any:
        stored: list[Any] = [slice(None)] * len(key)
        for axis, part in zip(self._order, key, strict=True):
            stored[axis] = part
        found = self._read_wrapped(tuple(stored))
        kept = [axis for axis, part in enumerate(stored) if not isinstance(part, int | np.integer)]
        return found.transpose([kept.index(axis) for axis in self._order if axis in kept])


ENCODING_KEY = "xarray_tensordict"
"""Where a Dataset keeps the notes of the engine."""
_CLASSES = "tensorclasses"


def opening_notes(ds: xr.Dataset) -> Mapping[str, Any]:
    """What the engine noted when it opened a Dataset; nothing for any other."""
    notes: Mapping[str, Any] = ds.encoding.get(ENCODING_KEY, {})
    return notes


def class_path(cls: type) -> str:
    """How a class is called.

    Examples
    --------
    >>> class_path(dict)
    'builtins.dict'
    """
    return f"{cls.__module__}.{cls.__qualname__}"


def note_classes(ds: xr.Dataset, classes: Mapping[Key, str]) -> None:
    """Keep the names of classes by group, with the fields that the groups have now."""
    if not classes:
        return
    fields = _fields(ds.variables, classes)
    noted = {group_name(key): {"class": name, "fields": fields[key]} for key, name in classes.items()}
    ds.encoding = {**ds.encoding, ENCODING_KEY: {**opening_notes(ds), _CLASSES: noted}}


def classes_of(ds: xr.Dataset, names: Iterable[Any] | None = None) -> dict[Key, str]:
    """The classes by group whose fields are still those of the Dataset, or of its variables `names`.

    Examples
    --------
    >>> ds = xr.Dataset({"obs": ("time", [1.0]), "next/obs": ("time", [2.0])})
    >>> note_classes(ds, {(): "robots.Step", ("next",): "robots.Observation"})
    >>> classes_of(ds)
    {(): 'robots.Step', ('next',): 'robots.Observation'}
    >>> classes_of(ds.drop_vars("obs"))
    {('next',): 'robots.Observation'}
    """
    noted: Mapping[str, Any] = opening_notes(ds).get(_CLASSES, {})
    found = {path_key(path): entry for path, entry in noted.items()}
    fields = _fields(ds.variables if names is None else names, found)
    return {key: entry["class"] for key, entry in found.items() if fields[key] == entry["fields"]}


def class_attrs(name: str) -> dict[str, str]:
    """The attributes of a group in a store that name the class. A text, since netCDF holds no objects."""
    return {ARRAY_ATTR: json.dumps({"tensorclass": name})}


def _fields(names: Iterable[Any], groups: Iterable[Key]) -> dict[Key, list[str]]:
    """What is in each of some groups."""
    found: dict[Key, set[str]] = {key: set() for key in groups}
    for key in map(key_of, names) if found else ():
        for length in range(len(key)):
            if key[:length] in found:
                found[key[:length]].add(key[length])
    return {key: sorted(fields) for key, fields in found.items()}
