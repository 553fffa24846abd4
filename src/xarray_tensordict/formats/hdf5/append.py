"""Append rows along a dim of an HDF5 file, in place: datasets that can grow get longer, nested groups and texts too.

The order keeps the old rows readable: a mark with the old sizes, then the rows, then the records, and the mark goes. HDF5
writes metadata only where this module flushes. What a failed or killed append has left is taken back by its mark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import xarray as xr

from ..._compat.xarray import data_of
from ...core.metadata import (
    ARRAY_ATTR,
    BATCH_ATTR,
    INCOMPLETE_ATTR,
    STACK_ATTR,
    UNBATCHED_NAME,
    batch_record,
    parse_array_record,
    parse_batch_record,
)
from ...core.model import GroupBatch, Key, group_name
from ...core.naming import td_names
from ...core.values import to_json
from ...dataset.open import OpenOptions, open_flat
from ...writing.plan import Source
from ...writing.store_fit import fit, fitting_rows
from ...writing.stored_form import with_values
from ...writing.values import streamed
from .attrs import (
    NON_COORD_PREFIX,
    append_mark,
    attached_scales,
    marker,
    read_attributes,
    stored_attrs,
    unbatched_content,
)
from .file import without_readers
from .output import Hdf5Output, Target, changed_in_place, write_values
from .read import Hdf5Store


@dataclass(frozen=True)
class _Rows:
    """New rows of one dataset, as it stores them: where they go, and its shapes before and after, as they are shown.

    `attrs` are the attributes that change, None for those that go.
    """

    dataset: h5py.Dataset
    where: tuple[slice, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    values: xr.Variable
    attrs: Mapping[str, Any]


@dataclass
class _Append:
    """What an append does to the group `base` of a file, checked and encoded; nothing is written yet.

    `ds` holds the existing variables, `texts` are variables in the entry ``_unbatched``, whole, and `batches` those of the groups
    afterwards.
    """

    dim: str
    base: h5py.Group
    where: str
    ds: xr.Dataset
    batches: Mapping[Key, GroupBatch]
    rows: list[_Rows] = field(default_factory=list)
    texts: dict[str, xr.Variable] = field(default_factory=dict)


def append_rows(source: Source, path: Path, prefix: Key, dim: str, *, progress: bool = False) -> None:
    """Append to a file, or leave the rows that it has.

    Raises
    ------
    FileNotFoundError
        Where there is no file.
    ValueError
        For rows that do not fit, and for datasets that cannot grow; the message shows how to make some that can.
    BlockingIOError
        Where another process has the file open.
    OSError
        Where the disk is full.
    """
    where = str(path) + (f", group {group_name(prefix)!r}" if prefix else "")
    if not path.exists():
        raise FileNotFoundError(f"{where}: there is no file to append to; write one first, with mode='w'")
    with changed_in_place(path) as output:
        _take_back(output)
        append = _planned(source, output.file, where, prefix, dim)
        try:
            _write(append, output, progress=progress)
        except BaseException:
            _take_back(output)
            raise


# -- planning ----------------------------------------------------------------------------------------------------------


def _planned(source: Source, file: h5py.File, where: str, prefix: Key, dim: str) -> _Append:
    """Check new rows against an open file, and encode them as it stores them."""
    ds = open_flat(Hdf5Store.open(file, root=group_name(prefix)), OpenOptions(nested=True))
    rows = fitting_rows(source, ds, dim, where)
    append = _Append(dim, file[group_name(prefix)], where, ds, rows.batches())
    for key, name, variable, axis in rows.variables():
        _plan_variable(append, key, name, variable, axis, rows.attrs.get(name, {}))
    return append


def _plan_variable(
    append: _Append, key: Key, name: str, new: xr.Variable, axis: int, changed: Mapping[str, Any]
) -> None:
    old, where = append.ds.variables[name], append.where
    paths = ["/".join((*key[:-1], local)) for local in (key[-1], NON_COORD_PREFIX + key[-1])]
    dataset = next((found for found in map(append.base.get, paths) if isinstance(found, h5py.Dataset)), None)
    if dataset is None:
        if UNBATCHED_NAME not in append.base:
            raise ValueError(f"{where}: {name!r} is a field of records, whose rows cannot be appended one by one")
        append.texts[name] = xr.Variable(old.dims, np.concatenate([old.values, new.values], axis), old.attrs)
        return
    record = marker(dataset, ARRAY_ATTR)
    order = parse_array_record(record, name).get("order") or list(range(new.ndim))
    axes = [order.index(number) for number in range(new.ndim)]
    before = tuple(old.shape[a] for a in axes)
    after = tuple(old.shape[a] + (new.shape[a] if a == axis else 0) for a in axes)
    _check_growing(dataset, after, name, where, str(old.dims[axis]))
    # what the array of a zarr store is to `fit`
    dtype = np.dtype(object) if dataset.dtype.kind == "O" else np.dtype(dataset.dtype)
    attrs = {**read_attributes(dataset, (), []), ARRAY_ATTR: record}
    array: Any = SimpleNamespace(attrs=attrs, dtype=dtype, metadata=SimpleNamespace(zarr_format=3))
    held = streamed(new)
    fitted = fit(name, xr.Variable(old.dims, data_of(held), held.attrs, fastpath=True), old, array, where)
    if fitted.dtype.kind == "O" and dtype.kind != "O" and not h5py.check_opaque_dtype(dataset.dtype):
        raise TypeError(f"{where}: variable {name!r} holds Python objects, and the dataset there {dataset.dtype}")
    starts = [old.shape[a] if a == axis else 0 for a in axes]
    append.rows.append(_Rows(dataset, tuple(map(slice, starts, after)), before, after, fitted, changed))


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


def _write(append: _Append, output: Hdf5Output, *, progress: bool) -> None:
    """Grow the datasets of a file that is open for writing, and make its records true."""
    file, base = output.file, append.base
    # a full disk has to raise while nothing has changed
    output.room(sum(rows.values.nbytes for rows in append.rows))
    scales = {scale: size for rows in append.rows for scale, size in _growing_scales(rows)}
    before = {rows.dataset.name: rows.before for rows in append.rows} | {each.name: each.shape for each in scales}
    mark = {"kind": "append", "dim": append.dim, "group": base.name, "before": before}
    with without_readers():  # threads of this process see all of this or nothing
        file.attrs[INCOMPLETE_ATTR] = json.dumps(mark)
        output.flush()
        for scale, size in scales.items():
            scale.resize((size,))
        for rows in append.rows:
            rows.dataset.resize(rows.after)
    write_values([(Target(output, rows.dataset), rows.where, rows.values) for rows in append.rows], progress=progress)
    output.flush()
    with without_readers():
        for rows in append.rows:
            if rows.attrs:
                _set_attrs(rows.dataset, rows.attrs)
        if append.texts:
            content = unbatched_content(base, append.where)
            for name, variable in append.texts.items():
                content[name] = with_values(name, content[name], np.asarray(variable.values))
            base[UNBATCHED_NAME][()] = to_json(content, UNBATCHED_NAME)
        for key, batch in append.batches.items():
            _record(base["/".join(key)] if key else base, batch, append.where)
        del file.attrs[INCOMPLETE_ATTR]
    output.flush()


def _growing_scales(rows: _Rows) -> Iterator[tuple[h5py.Dataset, int]]:
    """The netCDF dimensions that get longer; one without a coordinate is a dataset of its own, as long as the dim."""
    for axis, size in enumerate(rows.after):
        for scale in attached_scales(rows.dataset, axis)[-1:]:  # which names the dim
            if scale.maxshape == (None,) and len(scale) < size:
                yield scale, size


def _record(group: h5py.Group, batch: GroupBatch, where: str) -> None:
    if BATCH_ATTR in group.attrs:
        names = parse_batch_record(group.attrs[BATCH_ATTR], where).names
        fitting = names is not None and len(names) == len(batch.sizes)
        group.attrs[BATCH_ATTR] = json.dumps(batch_record(batch.sizes, names if fitting else td_names(batch)))
    for member in group.values():
        if isinstance(member, h5py.Dataset) and STACK_ATTR in member.attrs:
            member.attrs[STACK_ATTR] = list(batch.sizes)


def _set_attrs(dataset: h5py.Dataset, changed: Mapping[str, Any]) -> None:
    record = json.loads(marker(dataset, ARRAY_ATTR) or "{}")
    whole = {**record.pop("attrs", {}), **changed}
    held = {name: value for name, value in whole.items() if value is not None}
    found = stored_attrs(held, record, f"dataset {dataset.name!r}", netcdf="_NCProperties" in dataset.file.attrs)
    dataset.attrs.update(found)
    for name in {*changed, ARRAY_ATTR} - found.keys():
        if name in dataset.attrs:
            del dataset.attrs[name]


def _take_back(output: Hdf5Output) -> None:
    """Cut what an append has left that failed or was killed: the rows that were there before stay."""
    file = output.file
    if INCOMPLETE_ATTR not in file.attrs:
        return
    with suppress(ValueError):  # of another version
        mark = append_mark(file, file.filename)
        for path, shape in mark.before.items() if mark is not None else ():
            if path in file:
                file[path].resize(shape)
    del file.attrs[INCOMPLETE_ATTR]
    output.flush()
