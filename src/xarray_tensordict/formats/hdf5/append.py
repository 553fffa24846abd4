"""Append along a dim of an HDF5 file: datasets that can grow get longer, nested groups and texts too.

The file is copied, the copy grows, and takes the place of the file when it is whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import xarray as xr

from ...core.metadata import ARRAY_ATTR, BATCH_ATTR, STACK_ATTR, UNBATCHED_NAME, batch_record, own_array_record
from ...core.model import GroupBatch, Inference, Key
from ...core.objects import to_json
from ...dataset.entries import td_names
from ...dataset.open import OpenOptions, open_flat
from ...dataset.record import infer_dataset
from ...writing.append_checks import check_append
from ...writing.blockwise import read_now
from ...writing.plan import Source
from ...writing.store_fit import fit
from ...writing.stored_form import with_values
from ...writing.streaming import streamed
from ..zarr.update import grown
from .blocks import store_blocks
from .dims import NON_COORD_PREFIX
from .output import Hdf5Output
from .read import Hdf5Store


@dataclass(frozen=True)
class Rows:
    """New rows of one dataset.

    Attributes
    ----------
    path
        Of the dataset in the file.
    where
        Where they go, by the axes of the dataset.
    shape
        The shape of the dataset afterwards.
    values
        As the dataset stores them, in memory or held by dask.
    """

    path: str
    where: tuple[slice, ...]
    shape: tuple[int, ...]
    values: xr.Variable


@dataclass
class Append:
    """What an append does to a file, checked and encoded; nothing is written yet.

    Attributes
    ----------
    prefix
        The group that is appended to.
    rows
        Of datasets.
    texts
        Variables in the entry ``_unbatched``, whole.
    batches
        The batch of each group afterwards.
    """

    prefix: Key
    rows: list[Rows] = field(default_factory=list)
    texts: dict[str, xr.Variable] = field(default_factory=dict)
    batches: Mapping[Key, GroupBatch] = field(default_factory=dict)


@dataclass(frozen=True)
class _There:
    ds: xr.Dataset
    inference: Inference
    where: str


def plan_append(source: Source, path: Path, prefix: Key, dim: str) -> Append:
    """Check new rows against a file, and encode them as it stores them.

    Raises
    ------
    FileNotFoundError
        Where there is no file.
    ValueError
        For rows that do not fit, and for datasets that cannot grow; the message says how to make some that can.
    """
    where = str(path) + (f", group {'/' + '/'.join(prefix)!r}" if prefix else "")
    if not path.exists():
        raise FileNotFoundError(f"{where}: there is no file to append to; write one first, with mode='w'")
    store = Hdf5Store.open(path, root="/".join(prefix))
    try:
        ds = open_flat(store, OpenOptions(nested=True))
        there = _There(ds, infer_dataset(ds), where)
        check_append(source, ds, dim, where)
        added = int(source.flat.sizes[dim])
        with h5py.File(path, "r") as file:
            found = Append(prefix, batches=grown(there, dim, added))
            for key, node in source.nodes.items():
                for local, variable in node.variables.items():
                    if dim in source.flat.variables[node.names[local]].dims:
                        _plan_variable(found, there, file, (*key, local), node.names[local], variable, dim)
            return found
    finally:
        store.close()


def _plan_variable(
    found: Append, there: _There, file: h5py.File, key: Key, name: str, new: xr.Variable, dim: str
) -> None:
    old = there.ds.variables[name]
    axis = old.dims.index(dim)
    stop = old.shape[axis] + new.shape[axis]
    shape = tuple(stop if number == axis else size for number, size in enumerate(old.shape))
    dataset = _dataset(file, (*found.prefix, *key))
    if dataset is None:
        if f"{UNBATCHED_NAME}" not in file["/" + "/".join(found.prefix)]:
            raise ValueError(f"{there.where}: {name!r} is a field of records, whose rows cannot be appended one by one")
        found.texts["/".join(key)] = xr.Variable(old.dims, np.concatenate([old.values, new.values], axis), old.attrs)
        return
    _check_growing(dataset, shape, name, there.where, dim)
    bare = SimpleNamespace(
        attrs={
            word: value for word, value in dataset.attrs.items() if isinstance(value, (str, bytes)) or _is_number(value)
        },
        dtype=_numpy_dtype(dataset),
        metadata=SimpleNamespace(zarr_format=3),
    )
    held = streamed(new)
    renamed = xr.Variable(old.dims, held._data, held.attrs, fastpath=True)
    fitted = fit(name, renamed, old, bare, there.where)  # type: ignore[arg-type]
    order = own_array_record(bare.attrs.get(ARRAY_ATTR)).get("order") or list(range(new.ndim))
    axes = [order.index(number) for number in range(new.ndim)]
    region = tuple(slice(old.shape[a], stop) if a == axis else slice(0, old.shape[a]) for a in axes)
    found.rows.append(Rows(dataset.name, region, tuple(shape[a] for a in axes), fitted))


def _is_number(value: Any) -> bool:
    return isinstance(value, (np.generic, int, float)) or (
        isinstance(value, np.ndarray) and value.dtype.kind in "biufc"
    )


def _dataset(file: h5py.File, key: Key) -> h5py.Dataset | None:
    for local in (key[-1], NON_COORD_PREFIX + key[-1]):
        found = file.get("/" + "/".join((*key[:-1], local)))
        if isinstance(found, h5py.Dataset):
            return found
    return None


def _numpy_dtype(dataset: h5py.Dataset) -> np.dtype[Any]:
    """Of text and ragged rows, objects; of enums that are bools, bool."""
    return np.dtype(object) if dataset.dtype.kind == "O" else np.dtype(dataset.dtype)


def _check_growing(dataset: h5py.Dataset, shape: tuple[int, ...], name: str, where: str, dim: str) -> None:
    order = own_array_record(dataset.attrs.get(ARRAY_ATTR)).get("order") or list(range(len(shape)))
    wanted = tuple(shape[order.index(number)] for number in range(len(shape)))
    if dataset.chunks is None or any(
        most is not None and size > most for size, most in zip(wanted, dataset.maxshape, strict=True)
    ):
        raise ValueError(
            f"{where}: {name!r} cannot grow along {dim!r}: its shape {dataset.shape} is fixed (maxshape "
            f"{dataset.maxshape}), which HDF5 decides when a dataset is created. Read the file, xr.concat it with the new "
            f"rows and write it with mode='w'; with ds.encoding['unlimited_dims'] = {{{dim!r}}} it can grow from then on"
        )


def write_append(append: Append, output: Hdf5Output, *, progress: bool = False) -> None:
    """Grow the datasets of a file that is open for writing, and make its records true."""
    file = output.file
    base = file["/" + "/".join(append.prefix)]
    sources, targets = [], []
    for rows in append.rows:
        dataset = file[rows.path]
        _grow_scales(dataset, rows.shape)
        dataset.resize(rows.shape)
        if 0 in rows.values.shape:
            continue
        if rows.values.chunks is None:
            dataset[rows.where] = _for_h5py(read_now(rows.values), dataset)
            output.flush(dataset)
        else:
            sources.append(rows.values.data.map_blocks(_for_h5py, dataset.dtype, dtype=rows.values.dtype))
            targets.append(_Part(dataset, rows.where))
    store_blocks(sources, targets, progress=progress)
    for target in targets:
        output.flush(target.dataset)
    if append.texts:
        _rewrite_texts(output, base, append.texts)
    for key, batch in append.batches.items():
        _record(base["/".join(key)] if key else base, batch)


class _Part:
    """A part of a dataset, as a target for blocks."""

    def __init__(self, dataset: h5py.Dataset, where: tuple[slice, ...]) -> None:
        self.dataset = dataset
        self._starts = tuple(part.start for part in where)

    def __setitem__(self, region: tuple[slice, ...], block: Any) -> None:
        moved = zip(region, self._starts, strict=True)
        self.dataset[tuple(slice(part.start + start, part.stop + start) for part, start in moved)] = block


def _for_h5py(values: np.ndarray[Any, Any], like: Any) -> np.ndarray[Any, Any]:
    dtype = getattr(like, "dtype", like)
    if h5py.check_opaque_dtype(dtype):
        return values.astype(np.dtype(dtype.str)).astype(dtype)
    return values.astype(object) if values.dtype.kind in "UT" and dtype.kind == "O" else values


def _grow_scales(dataset: h5py.Dataset, shape: tuple[int, ...]) -> None:
    """Dimensions of netCDF without a coordinate are datasets of their own, and as long as the dim."""
    for axis, size in enumerate(shape):
        for scale in dataset.dims[axis].values():
            if scale.id != dataset.id and scale.ndim == 1 and scale.maxshape[0] is None and scale.shape[0] < size:
                scale.resize((size,))


def _rewrite_texts(output: Hdf5Output, base: h5py.Group, texts: Mapping[str, xr.Variable]) -> None:
    entry = base[UNBATCHED_NAME]
    content = json.loads(entry[()])
    for path, variable in texts.items():
        content[path] = with_values(path, content[path], np.asarray(variable.values))
    entry[()] = to_json(content, UNBATCHED_NAME)
    output.flush(entry)


def _record(group: h5py.Group, batch: GroupBatch) -> None:
    if BATCH_ATTR in group.attrs:
        names = json.loads(group.attrs[BATCH_ATTR]).get("names")
        if names is None or len(names) != len(batch.sizes):
            names = td_names(batch)
        group.attrs[BATCH_ATTR] = json.dumps(batch_record(batch.sizes, names))
    for member in group.values():
        if isinstance(member, h5py.Dataset) and STACK_ATTR in member.attrs:
            member.attrs[STACK_ATTR] = list(batch.sizes)
