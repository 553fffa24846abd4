"""Give an array back what its stored form lost: the resolution of times, the dtype of unpacked floats, the order of dims.

The writers store times as nanoseconds and batch dims first, because bare tensordict reads such arrays as they are, and
say in the array's own record (:data:`~..core.metadata.ARRAY_ATTR`) what the variable was. Nothing is read here before it is
indexed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import xarray as xr
from xarray.core import indexing

from .._compat.xarray import data_of
from ..core.metadata import CF_SCALES
from ..core.model import ArrayRecord, Key, StoredGroup
from ..formats.array_wrappers import _Wrapped

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
        and decoded[name].encoding.get("_FillValue") == 0
    ]


def masked_text(names: Collection[str]) -> str:
    """Say whose zeros became NaN, and how to open them otherwise."""
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
    told their role here, and the names go.
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
                f"{self.where}: the store says that these times have the resolution {self.dtype}, and some are finer, so another program "
                "has written them; open the store with decode_times=False to get the nanoseconds"
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
