"""What this package needs of xarray's lazy arrays beyond its public interface, in one place.

``Variable._data`` and the wrappers of ``xarray.core.indexing`` are private; they have been stable since 2016 and are
checked at import.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from typing import Any, Self

import numpy as np
import pandas as pd
import xarray as xr
from packaging.version import Version
from xarray.backends.common import BackendArray
from xarray.backends.zarr import ZarrStore
from xarray.core import indexing

from .zarr import is_remote

_NEEDED = (
    "MemoryCachedArray",
    "CopyOnWriteArray",
    "LazilyIndexedArray",
    "NumpyIndexingAdapter",
    "PandasIndexingAdapter",
)
_FRESH = frozenset(
    {
        "xarray.backends.zarr",
        "xarray_tensordict.formats.hdf5.arrays",
        "xarray_tensordict.formats.memmap.levels",
        "xarray_tensordict.formats.raw.arrays",
        "xarray_tensordict.formats.zarr.arrays",
    }
)
_MISSING = [name for name in _NEEDED if not hasattr(indexing, name)]
if _MISSING:
    raise ImportError(
        f"xarray {xr.__version__} has no {', '.join(_MISSING)} in xarray.core.indexing, which xarray-tensordict needs; "
        f"install a version of xarray that its dependencies allow"
    )

IS_BEFORE_2026_9 = Version(xr.__version__) < Version("2026.9")
"""Whether xarray reads an array of numpy's ``StringDType`` as it decodes it, and stores booleans in zarr as int8."""


def shown_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype under which xarray does not read an array before its values are asked for."""
    return np.dtype(object) if IS_BEFORE_2026_9 and dtype.kind == "T" else dtype


def shown_values(values: Any, dtype: np.dtype[Any]) -> Any:
    """Values of zarr under the dtype that is shown; of an array without axes zarr gives the text itself."""
    return np.asarray(values, object) if dtype.kind == "O" and isinstance(values, (str, np.ndarray)) else values


def data_of(variable: xr.Variable) -> Any:
    """What a variable holds, lazy or not; ``variable.data`` reads what is lazy."""
    return variable._data


def remade(variable: xr.Variable, *, dims: Any = None, data: Any = None, attrs: Any = None) -> xr.Variable:
    """The same variable with other dims, values or attributes; nothing is read, and its encoding stays."""
    new = xr.Variable(
        variable.dims if dims is None else dims,
        variable._data if data is None else data,
        variable.attrs if attrs is None else attrs,
        fastpath=True,
    )
    new.encoding = variable.encoding
    return new


def dataset_of(
    variables: Mapping[Any, xr.Variable], coords: Collection[Any], attrs: Any = None, indexes: Any = None
) -> xr.Dataset:
    """A Dataset of variables, of which `coords` are coordinates; no index is made, for which they would be read."""
    data = {name: variable for name, variable in variables.items() if name not in coords}
    held = {name: variable for name, variable in variables.items() if name in coords}
    return xr.Dataset(data, coords=xr.Coordinates(held, indexes=dict(indexes or {})), attrs=attrs)


def zarr_variable(store: ZarrStore, name: str, array: Any, *, mask: bool) -> xr.Variable:
    """The variable that xarray makes of an array of zarr, which need not be in the group of `store`.

    Parameters
    ----------
    store
        Of the group that the array is in.
    array
        With dimension names.
    mask
        Whether the fill value stands for missing values.
    """
    private: Any = store
    private._use_zarr_fill_value_as_mask = mask
    private._cache_members, private._members = True, {name: array}
    variable: xr.Variable = private.open_store_variable(name)
    return variable


def _unwrapped(data: Any) -> Any:
    """What is behind xarray's memory cache and copy-on-write."""
    while isinstance(data, (indexing.MemoryCachedArray, indexing.CopyOnWriteArray)):
        data = data.array
    return data


def past_cache(variable: xr.Variable) -> xr.Variable:
    """The same variable without xarray's memory cache and copy-on-write: a read of it goes to the store.

    What the cache has already loaded is taken from there.
    """
    unwrapped = _unwrapped(variable._data)
    if unwrapped is variable._data or isinstance(unwrapped, indexing.NumpyIndexingAdapter):
        return variable
    return remade(variable, data=unwrapped)


def positional(variable: xr.Variable) -> xr.Variable:
    """The same variable past xarray's cache, its axes called by their position, since names may repeat."""
    dims = [f"axis_{axis}" for axis in range(variable.ndim)]
    return xr.Variable(dims, past_cache(variable)._data, fastpath=True)


def bare_array(variable: xr.Variable) -> tuple[Any, tuple[Any, ...]] | None:
    """The array of the reader behind a variable that has not been loaded, and the selection from it.

    None where there is none, or the selection is pointwise or transposes.
    """
    data = _unwrapped(variable._data)
    if isinstance(data, indexing.LazilyIndexedArray) and isinstance(data.array, BackendArray):
        return data.array, data.key.tuple
    return None


def in_memory(variable: xr.Variable) -> bool:
    """Whether the values are a numpy array that belongs to the variable (not to a pandas index, not on disk)."""
    data: Any = variable._data
    while isinstance(data, (indexing.MemoryCachedArray, indexing.CopyOnWriteArray)):
        if isinstance(data, indexing.CopyOnWriteArray) and not data._copied:
            return isinstance(data.array, indexing.NumpyIndexingAdapter)
        data = data.array
    return isinstance(data, (np.ndarray, indexing.NumpyIndexingAdapter))


def is_loaded(variable: xr.Variable) -> bool:
    """Whether nothing is left to read, by xarray's own account."""
    loaded: bool = variable._in_memory
    return loaded


def is_index_data(variable: xr.Variable) -> bool:
    """Whether the values are those of a pandas index, which must never change."""
    return isinstance(_unwrapped(variable._data), indexing.PandasIndexingAdapter)


def reads_fresh_arrays(variable: xr.Variable) -> bool:
    """Whether every read of a variable gives a new array that nothing else refers to.

    So it is with the arrays of the readers here; of any other array (numpy, dask, a pandas index, a reader of
    another library) it is not known.
    """
    backend = backend_array(variable)
    return backend is not None and type(backend).__module__ in _FRESH


def backend_array(variable: xr.Variable) -> BackendArray | None:
    """The array of the reader that is behind all of xarray's wrappers (selection, decoding, cache), if there is one."""
    data: Any = variable._data
    # what an index of pandas calls its array is no layer of xarray
    while isinstance(data, indexing.ExplicitlyIndexed):
        if isinstance(data, BackendArray):
            return data
        data = getattr(data, "array", None)
    return None


def zarr_array(backend: BackendArray) -> Any:
    """The ``zarr.Array`` behind xarray's reader of zarr, or what is read past that; None behind any other reader."""
    while hasattr(backend, "otherwise"):
        backend = backend.otherwise
    return getattr(backend, "_array", None) if type(backend).__module__ == "xarray.backends.zarr" else None


def reads_far(variable: xr.Variable) -> bool:
    """Whether reading a lazy variable is mostly waiting for a store."""
    array: Any = backend_array(variable)
    inner = array
    while inner is not None:
        if hasattr(inner, "is_far"):
            return bool(inner.is_far)
        array, inner = inner, getattr(inner, "wrapped", getattr(inner, "otherwise", None))
    stored = None if array is None else zarr_array(array)
    return stored is not None and is_remote(stored.store)


def read(variable: xr.Variable) -> np.ndarray[Any, Any]:
    """The values as a numpy array, past the cache; in memory they are the variable's own array."""
    uncached = past_cache(variable)
    values = uncached.values if not is_index_data(uncached) else np.array(uncached.values)
    return np.asarray(values)


def multiindex_dims(ds: xr.Dataset) -> frozenset[str]:
    """The names of coordinates that hold the tuples of a pandas MultiIndex; their levels are coordinates too."""
    found = set()
    for name, index in ds.xindexes.items():
        if isinstance(index.to_pandas_index() if hasattr(index, "index") else None, pd.MultiIndex):
            found |= {str(dim) for dim in ds[name].dims} & {str(name)}
    return frozenset(found)


def transpose_axes(variable: xr.Variable, order: list[int]) -> xr.Variable:
    """Transpose by axis number, lazily; ``Variable.transpose`` goes by name, which a repeated dim does not allow."""
    data: Any = indexing.as_indexable(variable._data).transpose(tuple(order))
    return remade(variable, dims=[variable.dims[axis] for axis in order], data=data)


def stored_place(variable: xr.Variable, axis: int) -> tuple[int, range | np.ndarray[Any, Any]] | None:
    """Which axis of the stored array an axis of a lazy variable is, and its positions there; None where that is not known.

    It is not for what is in memory, and behind a selection of points.
    """
    found: range | np.ndarray[Any, Any] = range(variable.shape[axis])
    data: Any = variable._data
    while not isinstance(data, BackendArray):
        if isinstance(data, indexing.PandasIndexingAdapter):
            return None
        if isinstance(data, indexing.LazilyIndexedArray):
            kept = [place for place, key in enumerate(data.key.tuple) if not isinstance(key, (int, np.integer))]
            axis = kept[axis]
            key = data.key.tuple[axis]
            if isinstance(key, slice):
                key = range(*key.indices(data.array.shape[axis]))
            found = _compose(key, found)
        data = getattr(data, "array", None)
        if data is None or isinstance(data, (np.ndarray, indexing.LazilyVectorizedIndexedArray)):
            return None
    return axis, found


def is_bare(variable: xr.Variable) -> bool:
    """Whether nothing is decoded between the array of the reader and a variable."""
    data: Any = variable._data
    while isinstance(data, (indexing.MemoryCachedArray, indexing.CopyOnWriteArray, indexing.LazilyIndexedArray)):
        data = data.array
    return isinstance(data, BackendArray)


def on_backend(variable: xr.Variable, backend: BackendArray) -> xr.Variable:
    """The same selection and decoding of another array of the reader, past the cache."""

    def moved(data: Any) -> Any:
        if isinstance(data, BackendArray):
            return backend
        inner = moved(data.array)
        if isinstance(data, (indexing.MemoryCachedArray, indexing.CopyOnWriteArray)):
            return inner
        changed = copy.copy(data)
        changed.array = inner
        return changed

    return xr.Variable(variable.dims, moved(variable._data), fastpath=True)


def with_decoder(variable: xr.Variable, around: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> None:
    """Put `around` each function that decodes a lazy variable when its values are read."""
    data: Any = variable._data
    while isinstance(data, indexing.ExplicitlyIndexed):
        if hasattr(data, "func"):
            data.func = around(data.func)
        data = getattr(data, "array", None)


def _compose(inner: range | np.ndarray[Any, Any], outer: range | np.ndarray[Any, Any]) -> range | np.ndarray[Any, Any]:
    """The positions `outer` of `inner`."""
    if isinstance(inner, range) and isinstance(outer, range):
        return inner[outer.start : outer.stop : outer.step]
    found: np.ndarray[Any, Any] = np.asarray(inner)[np.asarray(outer)]
    return found


class _NetcdfTarget:
    """A variable of a netCDF file, as a target for blocks."""

    def __init__(self, target: Any, room: Callable[[Any, Any, Any], None]) -> None:
        self._target = target
        self._room = room
        self._dataset = target.get_array()._h5ds

    def __setitem__(self, region: Any, block: Any) -> None:
        self._room(self._dataset, region, block)
        self._target[region] = block


class NetcdfWriter:
    """Writes groups of an open HDF5 file, as ``Dataset.to_netcdf`` does, without what dask has to compute.

    The file is opened by h5netcdf once: each time that looks at all that is in it.

    Parameters
    ----------
    file
        Of h5py; it stays open.
    room
        Called before values are written, with the dataset, the region and the values.
    new
        Whether nothing is in the file yet.

    Attributes
    ----------
    sources, targets
        The dask arrays, encoded, and what takes their blocks: ``target[region] = block``.
    """

    def __init__(self, file: Any, room: Callable[[Any, Any, Any], None], *, new: bool) -> None:
        import h5netcdf

        self._root = h5netcdf.File(file, "w" if new else "a")
        self._room = room
        self.sources: list[Any] = []
        self.targets: list[_NetcdfTarget] = []

    def write(
        self, ds: xr.Dataset, group: str | None, encoding: dict[str, dict[str, Any]], unlimited_dims: list[str]
    ) -> None:
        """Create a group, and write what is in memory."""
        from xarray.backends import H5NetCDFStore, writers

        dump: Any = writers.dump_to_store
        store = H5NetCDFStore(self._root, group=group, mode="a")
        dump(ds, store, self, encoding=encoding, unlimited_dims=unlimited_dims)

    def add(self, source: Any, target: Any) -> None:
        """What xarray hands variables to."""
        from dask.base import is_dask_collection  # which opening a store does without

        own = _NetcdfTarget(target, self._room)
        if is_dask_collection(source):
            self.sources.append(source)
            self.targets.append(own)
        else:
            values = np.asarray(source)
            own[tuple(slice(0, size) for size in values.shape)] = values

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._root.close()


class _ZarrWriter:
    """What xarray hands variables to: values, the array they go into, and where in it."""

    def __init__(self) -> None:
        self.blocks: list[tuple[Any, Any, Any]] = []

    def add(self, source: Any, target: Any, region: Any = None) -> None:
        self.blocks.append((source, target, region))


class _StoreOfBooleans(ZarrStore):
    """A store that keeps booleans as booleans, as newer versions of xarray do."""

    def encode_variable(self, variable: Any, name: Any = None) -> Any:
        encoded = super().encode_variable(variable, name=name)  # type: ignore[no-untyped-call]
        if variable.dtype != bool or encoded.dtype == bool or encoded.attrs.get("dtype") != "bool":
            return encoded
        attrs = {word: value for word, value in encoded.attrs.items() if word != "dtype"}
        return remade(encoded, data=encoded.data.astype(bool), attrs=attrs)


def zarr_group_blocks(
    ds: xr.Dataset, store: Any, path: str, *, encoding: dict[str, dict[str, Any]], zarr_format: int
) -> list[tuple[Any, Any, Any]]:
    """Create a group and its new arrays as ``Dataset.to_zarr`` does; returns the encoded values, which are not written.

    Returns
    -------
    list
        Values in memory or of dask, the array of zarr, and where in it they go (None for all of it).
    """
    from xarray.backends import writers

    dump: Any = writers.dump_to_store
    version: Any = zarr_format
    kind = _StoreOfBooleans if IS_BEFORE_2026_9 else ZarrStore
    opened: Any = kind.open_group(store, mode="a", group=path or None, safe_chunks=False, zarr_format=version)
    opened._validate_encoding(encoding)
    writer = _ZarrWriter()
    dump(ds, opened, writer, encoding=encoding)
    return writer.blocks
