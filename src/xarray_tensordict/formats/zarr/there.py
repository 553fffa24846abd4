"""A zarr store that is to be changed: what is in it, what is to be written where, and its records afterwards."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr
import zarr

from ...core.metadata import ARRAY_ATTR, NON_TENSOR_ATTR, UNBATCHED_NAME, own_array_record
from ...core.model import GroupBatch, Inference, Key
from ...dataset.open import OpenOptions, open_flat
from ...dataset.record import infer_dataset
from ...quiet import quiet
from ...writing.blockwise import contiguous
from ...writing.lazy_sources import reads_from
from ...writing.plan import Source
from ...writing.store_fit import fit
from ...writing.streaming import streamed
from .completeness import kept_texts, mark_of
from .create import is_consolidated
from .finish import Finish, zarr_writes
from .read import ZarrGroupStore
from .target import ZarrTarget
from .write import ZarrOptions


@dataclass
class There:
    """The store that is changed.

    Attributes
    ----------
    ds
        What the engine makes of it, all groups as one Dataset.
    inference
        The batch of `ds`.
    root
        The group, open for writing.
    where
        How messages call it.
    consolidated
        Whether it had consolidated metadata.
    """

    ds: xr.Dataset
    inference: Inference
    root: zarr.Group
    where: str
    consolidated: bool

    def member(self, key: Key) -> zarr.Array[Any] | None:
        """The array of a variable; None where it is kept as JSON: in a text of its own, or in the entry ``_unbatched``."""
        path = "/".join(key)
        found = self.root.get(path)
        if not isinstance(found, zarr.Array) or NON_TENSOR_ATTR in found.attrs or path in kept_texts(self.root):
            return None
        return found

    def text_path(self, key: Key) -> str:
        """Where a variable that is kept as JSON stands: at its own path, or in the entry ``_unbatched``."""
        path = "/".join(key)
        return path if path in self.root or path in kept_texts(self.root) else UNBATCHED_NAME


@dataclass
class Part:
    """A part of an array that is to be written.

    Attributes
    ----------
    path
        Of the array, below the group that is changed.
    array
        The array.
    before, shape
        The shape that the array has, and the one that it gets; None where it stays.
    where
        What part of it.
    variable
        The values, as the array stores them.
    """

    path: str
    array: zarr.Array[Any]
    before: tuple[int, ...]
    shape: tuple[int, ...] | None
    where: tuple[slice, ...]
    variable: xr.Variable


@dataclass
class Change:
    """What is to be written: parts of arrays, and new contents of JSON texts.

    Attributes
    ----------
    parts
        Of arrays.
    texts
        By path: a variable whose values are kept as JSON, with its new values.
    """

    parts: list[Part] = field(default_factory=list)
    texts: dict[Key, xr.Variable] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """The paths of all that is changed."""
        return {part.path for part in self.parts} | {"/".join(key) for key in self.texts}


def open_there(target: ZarrTarget, options: ZarrOptions, shown: Any = None) -> There:
    """Open the group at a target through the engine, and for writing.

    Parameters
    ----------
    shown
        The store that the engine opens, where that is not the one to write to.
    """
    prefix = "/".join(target.prefix)
    reader = ZarrGroupStore.open(
        target.store if shown is None else shown,
        description=target.description,
        root=prefix,
        consolidated=False,
        storage_options=options.storage_options if shown is None else None,
    )
    mark = mark_of(reader.zarr_group) or {}
    # whoever completes a store knows that it is not complete; where an append stopped sizes differ, too
    told = "" if mark.get("kind") == "append" else ".*the store is not complete"
    with quiet((re.escape(target.description) + told, UserWarning)):
        ds = open_flat(reader, OpenOptions(nested=True))
    with zarr_writes():
        root = zarr.open_group(
            target.store, path=prefix, mode="r+", use_consolidated=False, storage_options=options.storage_options
        )
    return There(ds, infer_dataset(ds), root, target.name, is_consolidated(target, options))


def settle_lazy(source: Source, there: There, target: ZarrTarget) -> None:
    """Load what would be read from arrays while they are written; data of dask that would is refused.

    Coordinates come along with whatever is written, and are small: they are always loaded.

    Raises
    ------
    ValueError
        For variables that dask would read from the store.
    """
    refused = []
    written = {"/".join((*target.prefix, str(name))) for name in source.flat.variables if name in there.ds.variables}
    for node in source.nodes.values():
        for name, variable in node.variables.items():
            if not reads_from(variable, target, written):
                continue
            if variable.chunks is not None and name not in node.coords:
                refused.append(node.names[name])
                continue
            loaded = xr.Variable(variable.dims, variable.values, variable.attrs, fastpath=True)
            loaded.encoding = variable.encoding
            node.variables[name] = loaded
    if refused:
        raise ValueError(
            f"{target.name}: dask would read {refused[:5]} from the store that is written; load them first "
            "(ds.load()), or write to "
            f"another store"
        )


def plan_region(
    change: Change,
    there: There,
    key: Key,
    name: str,
    new: xr.Variable,
    where: tuple[slice, ...],
    shape: tuple[int, ...] | None,
) -> None:
    """Plan to write `new` at `where` (by the axes of the variable) of what is at `key`, grown to `shape` first."""
    old = there.ds.variables[name]
    array = there.member(key)
    if array is None:
        change.texts[key] = _patched(old, new, where, shape)
        return
    encoded = fit(name, streamed(new), old, array, there.where)
    order = own_array_record(array.attrs.get(ARRAY_ATTR)).get("order") or list(range(new.ndim))
    axes = [order.index(axis) for axis in range(new.ndim)]
    change.parts.append(
        Part(
            "/".join(key),
            array,
            tuple(old.shape[axis] for axis in axes),
            None if shape is None else tuple(shape[axis] for axis in axes),
            tuple(where[axis] for axis in axes),
            contiguous(encoded),
        )
    )


def _patched(
    old: xr.Variable, new: xr.Variable, where: tuple[slice, ...], shape: tuple[int, ...] | None
) -> xr.Variable:
    values = np.asarray(new.values)
    there = np.asarray(old.values)
    dtype = there.dtype if there.dtype.kind not in "UST" else np.result_type(there.dtype, values.dtype)
    held = np.empty(there.shape if shape is None else shape, dtype)
    held[tuple(slice(0, size) for size in there.shape)] = there
    held[where] = values
    changed = xr.Variable(old.dims, held, old.attrs, fastpath=True)
    changed.encoding = old.encoding
    return changed


def finish_of(
    there: There,
    target: ZarrTarget,
    options: ZarrOptions,
    batches: Mapping[Key, GroupBatch],
    records: Mapping[Key, Mapping[str, Any]] | None = None,
) -> Finish:
    """The last step of a change; consolidated metadata that was there is made true again even where none is asked for."""
    consolidate = options.consolidated is not False or there.consolidated
    return Finish(target.store, target.prefix, options.storage_options, consolidate, records or {}, batches)
