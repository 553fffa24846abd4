"""What an HDF5 file has there when variables are added: which layout it was written in, and old variables that go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import h5py
import numpy as np
import xarray as xr

from ...core.metadata import BATCH_ATTR
from ...core.model import Key, group_name
from ...writing.plan import WritePlan
from ...writing.stored_form import Layout, Stored
from .attrs import NON_COORD_PREFIX, PLACEHOLDER, attached_scales, is_placeholder, is_scale, marker, scale_uses

STORAGE = ("zlib", "complevel", "shuffle", "fletcher32", "compression", "compression_opts")
"""What a new dataset takes over from the one that a variable was read from, or whose place it takes."""
_DIM_NUMBER = "_Netcdf4Dimid"


def layout_there(group: h5py.Group, asked: Layout) -> Layout:
    """The layout of a group that variables are added to; `asked` where nothing in it tells."""

    def tells(_: Any, member: Any) -> Layout | None:
        has = member.attrs.__contains__
        return "xarray" if has(_DIM_NUMBER) else "tensordict" if has("DIMENSION_LABELS") else None

    found: Layout | None = group.visititems(tells)
    if found is None and BATCH_ATTR in group.attrs:
        return "tensordict"
    return found or ("xarray" if "_NCProperties" in group.file.attrs and len(group) else asked)


def _stored_as(group: h5py.Group, name: str) -> list[h5py.Dataset]:
    """The datasets of a variable, of which netCDF gives some another name; not those that stand for a dim."""
    found = [group.get(each) for each in (name, NON_COORD_PREFIX + name)]
    return [each for each in found if isinstance(each, h5py.Dataset) and not is_placeholder(each)]


def _replaced(plan: WritePlan, file: h5py.File, prefix: Key) -> Iterator[tuple[str, Stored, h5py.Dataset]]:
    """The variables of a plan that are there, by their name in the group, and the datasets whose place they take."""
    for key, group in plan.groups.items():
        node = file.get(group_name((*prefix, *key)))
        for name, stored in group.stored.items() if isinstance(node, h5py.Group) else ():
            for dataset in _stored_as(node, name):
                yield name, stored, dataset


def check_replaced(plan: WritePlan, file: h5py.File, prefix: Key) -> None:
    """Raise ``ValueError`` for a variable that would take the place of the scale of a dim, and does not run along it."""
    for name, stored, dataset in _replaced(plan, file, prefix):
        uses = sorted({str(use.name)[1:] for use, _ in scale_uses(dataset)})
        dims = list(map(str, stored.variable.dims))
        if uses and dims[:1] != [name]:
            raise ValueError(
                f"{file.filename}: {dataset.name[1:]!r} ({dataset.dtype}) is the dimension scale of {uses[:5]} there, so a "
                f"variable of that name needs {name!r} as its first dim, found {dims} ({stored.variable.dtype}); "
                f"rename it, or write all variables with mode='w'"
            )


def take_storage(stored: Stored, old: xr.Variable) -> None:
    """Store a variable in chunks and with filters like the equal one whose place it takes, unless it brings its own."""
    new, words = stored.variable, (*STORAGE, "chunksizes")
    is_alike = (new.dims, new.shape, new.dtype) == (old.dims, old.shape, old.dtype)
    if is_alike and not {*words, "chunks"} & new.encoding.keys():
        new.encoding = {**new.encoding, **{word: old.encoding[word] for word in words if old.encoding.get(word)}}


def removed(dataset: h5py.Dataset) -> list[tuple[h5py.Dataset, int]]:
    """Delete a dataset; returns the axes that it was the scale of, which have none then."""
    uses = scale_uses(dataset)
    for use, axis in uses:
        use.dims[axis].detach_scale(dataset)
    for axis in range(dataset.ndim):
        for scale in attached_scales(dataset, axis):
            with suppress(RuntimeError):  # one that does not know of it
                dataset.dims[axis].detach_scale(scale)
    del dataset.parent[dataset.name]
    return uses


def attach(scale: h5py.Dataset, uses: list[tuple[h5py.Dataset, int]], title: str | None = None) -> None:
    """Let a new dataset be the scale, under its name or a title, of the axes that :func:`removed` has given."""
    if uses or title is not None:
        scale.make_scale(scale.name.rpartition("/")[2] if title is None else title)
    for use, axis in uses:
        use.dims[axis].attach_scale(scale)


def remove_netcdf(plan: WritePlan, file: h5py.File, prefix: Key) -> None:
    """Delete the variables of a netCDF-4 file that a plan writes anew; their dims stay, as dims without a variable."""
    for name, _, dataset in _replaced(plan, file, prefix):
        if not is_scale(dataset):
            removed(dataset)
            continue
        size, most, number = len(dataset), dataset.maxshape[:1], marker(dataset, _DIM_NUMBER)
        node, uses = dataset.parent, removed(dataset)
        dim = node.create_dataset(name, (size,), ">f4", maxshape=most, chunks=True if None in most else None)
        attach(dim, uses, f"{PLACEHOLDER}.{size:10}")
        if number is not None:
            dim.attrs[_DIM_NUMBER] = np.int32(number)
