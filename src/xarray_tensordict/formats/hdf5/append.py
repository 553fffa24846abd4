"""Append rows along a dim of an HDF5 file, in place: datasets that can grow get longer, nested groups and texts too.

The order keeps the old rows readable: marks with the old sizes, then the rows, then the records, and the marks go. HDF5
writes metadata only where this module flushes. What a failed or killed append has left is taken back by its marks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import xarray as xr

from ...core.metadata import (
    ARRAY_ATTR,
    BATCH_ATTR,
    INCOMPLETE_ATTR,
    STACK_ATTR,
    UNBATCHED_NAME,
    batch_record,
    own_array_record,
)
from ...core.model import GroupBatch, Inference, Key
from ...core.objects import to_json
from ...dataset.entries import td_names
from ...dataset.open import OpenOptions, open_flat
from ...dataset.record import infer_dataset
from ...writing.plan import Source
from ...writing.store_fit import check_append, fit, grown
from ...writing.stored_form import with_values
from ...writing.streaming import read_now, streamed
from .attrs import NON_COORD_PREFIX, attached_scales
from .file import check_not_written, release_readers
from .output import Hdf5Output, Part, changed_in_place, store_blocks
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
    before, after
        The shape of the dataset, as the engine shows it.
    values
        As the dataset stores them, in memory or held by dask.
    """

    path: str
    where: tuple[slice, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    values: xr.Variable


@dataclass
class Append:
    """What an append does to a file, checked and encoded; nothing is written yet.

    Attributes
    ----------
    dim
        The dim, as the Dataset calls it.
    base
        The path of the group that is appended to.
    rows
        Of datasets.
    texts
        Variables in the entry ``_unbatched``, whole.
    batches
        The batch of each group afterwards.
    """

    dim: str
    base: str
    rows: list[Rows] = field(default_factory=list)
    texts: dict[str, xr.Variable] = field(default_factory=dict)
    batches: Mapping[Key, GroupBatch] = field(default_factory=dict)


@dataclass(frozen=True)
class _There:
    ds: xr.Dataset
    inference: Inference
    where: str


def append_rows(source: Source, path: Path, prefix: Key, dim: str, *, progress: bool = False) -> None:
    """Append to a file, or leave the rows that it has.

    Raises
    ------
    FileNotFoundError
        Where there is no file.
    ValueError
        For rows that do not fit, and for datasets that cannot grow; the message says how to make some that can.
    BlockingIOError
        Where another process has the file open.
    OSError
        Where the disk is full.
    """
    _check_there(path, prefix)
    try:
        with changed_in_place(path) as output:
            take_back(output)
            append = _planned(source, output.file, path, prefix, dim)
            try:
                _write(append, output, progress=progress)
            except BaseException:
                take_back(output)
                raise
    finally:
        release_readers(path)  # those that were opened meanwhile would keep the file open for writing


def check_rows(source: Source, path: Path, prefix: Key, dim: str) -> None:
    """Check rows that are going to be appended later; raises as :func:`append_rows` does."""
    _check_there(path, prefix)
    check_not_written(path)
    with h5py.File(path, "r") as file:
        _planned(source, file, path, prefix, dim)


def _where(path: Path, prefix: Key) -> str:
    return str(path) + (f", group {'/' + '/'.join(prefix)!r}" if prefix else "")


def _check_there(path: Path, prefix: Key) -> None:
    if not path.exists():
        raise FileNotFoundError(
            f"{_where(path, prefix)}: there is no file to append to; write one first, with mode='w'"
        )


# -- planning ----------------------------------------------------------------------------------------------------------


def _planned(source: Source, file: h5py.File, path: Path, prefix: Key, dim: str) -> Append:
    """Check new rows against an open file, and encode them as it stores them."""
    where = _where(path, prefix)
    store = Hdf5Store.open(file, root="/".join(prefix))
    ds = open_flat(store, OpenOptions(nested=True))
    there = _There(ds, infer_dataset(ds), where)
    check_append(source, ds, dim, where)
    found = Append(
        dim, "/" + "/".join(prefix), batches=grown(there.inference.groups, {dim: int(source.flat.sizes[dim])})
    )
    for key, node in source.nodes.items():
        for local, variable in node.variables.items():
            if dim in source.flat.variables[node.names[local]].dims:
                _plan_variable(found, there, file, (*prefix, *key, local), node.names[local], variable)
    return found


def _plan_variable(found: Append, there: _There, file: h5py.File, key: Key, name: str, new: xr.Variable) -> None:
    old = there.ds.variables[name]
    axis = old.dims.index(found.dim)
    dataset = _dataset(file, key)
    if dataset is None:
        if UNBATCHED_NAME not in file[found.base]:
            raise ValueError(f"{there.where}: {name!r} is a field of records, whose rows cannot be appended one by one")
        found.texts[name] = xr.Variable(old.dims, np.concatenate([old.values, new.values], axis), old.attrs)
        return
    order = own_array_record(dataset.attrs.get(ARRAY_ATTR)).get("order") or list(range(new.ndim))
    axes = [order.index(number) for number in range(new.ndim)]
    before = tuple(old.shape[a] for a in axes)
    after = tuple(old.shape[a] + (new.shape[a] if a == axis else 0) for a in axes)
    _check_growing(dataset, after, name, there.where, found.dim)
    # what the array of a zarr store is to `fit`
    attrs = {
        word: value for word, value in dataset.attrs.items() if isinstance(value, (str, bytes)) or _is_number(value)
    }
    dtype = np.dtype(object) if dataset.dtype.kind == "O" else np.dtype(dataset.dtype)
    bare: Any = SimpleNamespace(attrs=attrs, dtype=dtype, metadata=SimpleNamespace(zarr_format=3))
    held = streamed(new)
    fitted = fit(name, xr.Variable(old.dims, held._data, held.attrs, fastpath=True), old, bare, there.where)
    if fitted.dtype.kind == "O" and dtype.kind != "O" and not h5py.check_opaque_dtype(dataset.dtype):
        raise TypeError(f"{there.where}: variable {name!r} holds Python objects, and the dataset there {dataset.dtype}")
    where = tuple(
        slice(old.shape[a], stop) if a == axis else slice(0, stop) for a, stop in zip(axes, after, strict=True)
    )
    found.rows.append(Rows(dataset.name, where, before, after, fitted))


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


def _check_growing(dataset: h5py.Dataset, shape: tuple[int, ...], name: str, where: str, dim: str) -> None:
    if dataset.chunks is None or any(
        most is not None and size > most for size, most in zip(shape, dataset.maxshape, strict=True)
    ):
        raise ValueError(
            f"{where}: {name!r} cannot grow along {dim!r}: its shape {dataset.shape} is fixed (maxshape "
            f"{dataset.maxshape}), which HDF5 decides when a dataset is created. Read the file, xr.concat it with the new "
            f"rows and write it with mode='w'; with ds.encoding['unlimited_dims'] = {{{dim!r}}} it can grow from then on"
        )


# -- writing -----------------------------------------------------------------------------------------------------------


def _write(append: Append, output: Hdf5Output, *, progress: bool) -> None:
    """Grow the datasets of a file that is open for writing, and make its records true."""
    file = output.file
    targets = [(Part(output, file[rows.path], rows.where), rows) for rows in append.rows]
    # a disk that is full has to say so while nothing has changed
    output.room(sum(part.size(rows.values) for part, rows in targets), reserve=True)
    _mark(append, file)
    output.flush()
    for rows in append.rows:
        for axis, scale in enumerate(_scales(file[rows.path])):
            if scale is not None and scale.shape[0] < rows.after[axis]:
                scale.resize((rows.after[axis],))
        file[rows.path].resize(rows.after)
    for part, rows in targets:
        if rows.values.chunks is None and 0 not in rows.values.shape:
            part[tuple(slice(0, size) for size in rows.values.shape)] = read_now(rows.values)
    held = [(part, rows.values.data) for part, rows in targets if rows.values.chunks is not None]
    store_blocks([data for _, data in held], [part for part, _ in held], progress=progress)
    output.flush()
    base = file[append.base]
    if append.texts:
        entry = base[UNBATCHED_NAME]
        content = json.loads(entry[()])
        for name, variable in append.texts.items():
            content[name] = with_values(name, content[name], np.asarray(variable.values))
        entry[()] = to_json(content, UNBATCHED_NAME)
    for key, batch in append.batches.items():
        _record(base["/".join(key)] if key else base, batch)
    for dataset in _marked(file):
        del dataset.attrs[INCOMPLETE_ATTR]
    del file.attrs[INCOMPLETE_ATTR]
    output.flush()


def _scales(dataset: h5py.Dataset) -> list[h5py.Dataset | None]:
    """The netCDF dimension of each axis, where that has no coordinate; it is a dataset of its own, as long as the dim."""
    found: list[h5py.Dataset | None] = []
    for axis in range(dataset.ndim):
        scales = attached_scales(dataset, axis)
        free = [scale for scale in scales if scale != dataset and scale.ndim == 1 and scale.maxshape[0] is None]
        found.append(free[-1] if free else None)
    return found


def _record(group: h5py.Group, batch: GroupBatch) -> None:
    if BATCH_ATTR in group.attrs:
        names = json.loads(group.attrs[BATCH_ATTR]).get("names")
        if names is None or len(names) != len(batch.sizes):
            names = td_names(batch)
        group.attrs[BATCH_ATTR] = json.dumps(batch_record(batch.sizes, names))
    for member in group.values():
        if isinstance(member, h5py.Dataset) and STACK_ATTR in member.attrs:
            member.attrs[STACK_ATTR] = list(batch.sizes)


# -- marks -------------------------------------------------------------------------------------------------------------


def _mark(append: Append, file: h5py.File) -> None:
    """Mark the file, and each dataset that will grow with the shape that it has."""
    file.attrs[INCOMPLETE_ATTR] = json.dumps({"kind": "append", "dim": append.dim, "group": append.base})
    for rows in append.rows:
        dataset = file[rows.path]
        for axis, scale in enumerate(_scales(dataset)):
            if scale is not None and INCOMPLETE_ATTR not in scale.attrs and rows.before[axis] != rows.after[axis]:
                scale.attrs[INCOMPLETE_ATTR] = list(scale.shape)
        dataset.attrs[INCOMPLETE_ATTR] = list(rows.before)


def _marked(file: h5py.File) -> Iterator[h5py.Dataset]:
    """The datasets with a mark."""
    found: list[h5py.Dataset] = []

    def look(_: str, member: Any) -> None:
        if isinstance(member, h5py.Dataset) and h5py.h5a.exists(member.id, INCOMPLETE_ATTR.encode()):
            found.append(member)

    file.visititems(look)
    yield from found


def take_back(output: Hdf5Output) -> None:
    """Cut what an append has left that failed or was killed: the rows that were there before stay."""
    file = output.file
    if INCOMPLETE_ATTR not in file.attrs:
        return
    for dataset in _marked(file):
        dataset.resize(tuple(int(size) for size in dataset.attrs[INCOMPLETE_ATTR]))
        del dataset.attrs[INCOMPLETE_ATTR]
    del file.attrs[INCOMPLETE_ATTR]
    output.flush()
