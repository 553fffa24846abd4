"""``mode="r+"``: tensordict's own writable object, for the stores that it reads to the same entries as this package.

A value written through it must mean the same through both doors. So anything that is decoded, left out or shaped by
this package (packed data, times, text, unbatched entries) makes the open fail, with the name of the first such entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from tensordict import NonTensorData, NonTensorStack, PersistentTensorDict, TensorDict

from .._compat.tensordict import entry_class, metadata_of
from ..core.model import Key
from ..dataset.entries import Entry, Plan, plan_entries, td_names
from ..dataset.record import infer_dataset
from ..formats.registry import Source, find_source, is_url
from ..quiet import quiet
from ..tensors.reading import finish, read_together, tensor_dtype
from ..testing import assert_same_tensordict

_EPOCH = (
    "nanoseconds since 1970-01-01",
    "nanoseconds since 1970-01-01 00:00:00",
    "nanoseconds since 1970-01-01T00:00:00",
)
_NAT = np.iinfo(np.int64).min


@dataclass(frozen=True)
class _Bare:
    """A store as tensordict opens it, with the batch that this package found."""

    source: Source
    plan: Plan
    group: str
    allow_pickle: bool

    def open(self, mode: str, device: Any = None) -> PersistentTensorDict:
        options: dict[str, Any] = {"allow_pickle": self.allow_pickle or None}
        batch_size = self.plan.batches[()].sizes
        td = self.source.format.open_bare(
            self.source.value, self.group.strip("/"), mode, device=device, batch_size=batch_size, **options
        )
        _settle(td, self.plan)
        return td


def open_writable(
    store: Any, ds: xr.Dataset, description: str, *, device: Any = None, keywords: Mapping[str, Any]
) -> PersistentTensorDict:
    """Open a store as bare tensordict does, for reading and writing, after checking that it reads it correctly.

    Parameters
    ----------
    store
        A path, a zarr store, or a group of zarr or h5py that is open for writing.
    ds
        The same store, opened by the engine; it is closed here.
    description
        How messages call the store.
    device
        The device that entries are sent to when they are read.
    keywords
        What the engine was asked for; of these only ``group`` concerns tensordict.

    Raises
    ------
    ValueError
        Where tensordict reads something else than this package does; the message names the first variable.
    """
    source = find_source(store)
    try:
        plan = plan_entries(ds, infer_dataset(ds))
        bare = _Bare(source, plan, keywords.get("group") or "", bool(keywords.get("allow_pickle")))
        reason = _why_not_the_store(source) or _why_not_the_plan(plan, ds) or _why_not_bare(bare)
    finally:
        ds.close()
    if reason is not None:
        raise ValueError(
            f"{description} cannot be opened with mode='r+': {reason}. A write through tensordict would not mean the "
            f"same through xarray. Open it with mode='r', or write a copy with ds.td.to_zarr(path) and open that"
        )
    return bare.open("r+", device)


def _why_not_the_store(source: Source) -> str | None:
    if source.is_path and is_url(source.value):
        return "it is a URL, and writing to URLs is not supported here"
    return source.format.why_not_changed(source.value)


def _why_not_the_plan(plan: Plan, ds: xr.Dataset) -> str | None:
    """What this package makes of the store beyond its plain arrays."""
    told = [
        *ds.encoding.get("xarray_tensordict", {}).get("left_out", ()),
        *(f"{name!r}: {why}" for name, why in plan.left_out.items()),
    ]
    if told:
        return f"not all of it can be shown: {told[0]}"
    for path in ds.encoding.get("xarray_tensordict", {}).get("hidden_groups", {}):
        return (
            f"the group {path!r} has a batch of its own and is not shown; ask for it with group={path!r}, or for all "
            f"with nested=True"
        )
    for entry in plan.unbatched:
        return f"{entry.name!r} has none of the batch dims {list(entry.batch.dims)}, and tensordict takes no such array"
    for entry in plan.entries:
        if entry.entry_class == "partial" or entry.variable.dims != ds.variables[entry.name].dims:
            return f"{entry.name!r} does not lead with the batch dims {list(entry.batch.dims)} in the store"
        decoded = why_decoded(entry)
        if decoded is not None:
            return f"{entry.name!r} {decoded}"
    return None


def why_decoded(entry: Entry) -> str | None:
    """How the values of an entry differ from those that are stored, as far as its encoding tells."""
    encoding, kind = entry.variable.encoding, entry.variable.dtype.kind
    for name in ("scale_factor", "add_offset", "char_dim_name"):
        if name in encoding:
            return f"is decoded ({name}={encoding[name]!r})"
    fills = [
        np.asarray(encoding[name]).ravel() for name in ("_FillValue", "missing_value") if encoding.get(name) is not None
    ]
    if kind in "mM":
        units, dtype = str(encoding.get("units")), encoding.get("dtype")
        plain = units in _EPOCH if kind == "M" else units == "nanoseconds"
        if not (plain and dtype == np.dtype("int64") and all((fill == _NAT).all() for fill in fills)):
            return f"holds times that are decoded (units={units!r})"
        return None
    if kind in "fc" and all(np.isnan(fill).all() for fill in fills):
        return None
    return f"has a missing value that is decoded ({fills[0].tolist()})" if fills and kind in "biufc" else None


def _why_not_bare(bare: _Bare) -> str | None:
    """How what tensordict finds differs from the plan."""
    try:
        td = bare.open("r")
    except (ValueError, KeyError, IndexError, TypeError, RuntimeError) as error:
        return f"tensordict does not open it ({error})"
    try:
        return next(_differences(td, bare.plan), None)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return f"tensordict cannot read it ({type(error).__name__}: {error})"
    finally:
        if bare.source.is_path:
            td.close()


def _differences(bare: PersistentTensorDict, plan: Plan) -> Iterator[str]:
    found: dict[Key, type] = {}
    for key in bare.keys(include_nested=True):
        found[(key,) if isinstance(key, str) else key] = entry_class(bare, key)
    entries = {entry.key: entry for entry in plan.entries}
    for key, entry in entries.items():
        if key not in found:
            yield f"tensordict does not see {entry.name!r}"
            continue
        difference = _entry_difference(bare, key, entry.lazy(), found[key])
        if difference is not None:
            yield f"{entry.name!r} {difference}"
    for key in sorted(found):
        if key not in entries and not issubclass(found[key], PersistentTensorDict):
            yield f"tensordict lists {'/'.join(key)!r}, which is no variable"


def _entry_difference(bare: PersistentTensorDict, key: Key, leaf: Entry, cls: type) -> str | None:
    if (cls is torch.Tensor) != (leaf.form == "tensor"):
        return f"is a {cls.__name__} there, and {'a tensor' if leaf.form == 'tensor' else 'non-tensor data'} here"
    if leaf.form == "tensor":
        there = metadata_of(bare, key)
        dtype, shape = there.get("dtype", "of a dtype that tensordict lacks"), list(there.get("shape", ()))
        if dtype != tensor_dtype(leaf) or shape != list(leaf.shape):
            return f"is {dtype} {shape} there, and {tensor_dtype(leaf)} {list(leaf.shape)} here: it is decoded"
        return None
    with quiet((".*reads the string", FutureWarning)):  # as bytes, for now
        value = bare.get(key)
    (array,) = read_together([(leaf, None)])
    batch = value.batch_size
    try:
        assert_same_tensordict(
            *(TensorDict({"value": v}, batch_size=batch) for v in (finish(leaf, array, None, batch), value))
        )
    except AssertionError as error:
        return f"is read otherwise: {error}"
    assert issubclass(cls, (NonTensorData, NonTensorStack))
    return None


def _settle(td: PersistentTensorDict, plan: Plan) -> None:
    """Give each level its batch size and names: HDF5 records neither for tensordict, nested groups of zarr no names."""
    for key, batch in sorted(plan.batches.items(), key=lambda item: len(item[0])):
        level = td.get(key, None) if key else td
        if not isinstance(level, PersistentTensorDict):
            continue
        if tuple(level.batch_size) != tuple(batch.sizes):
            level.batch_size = batch.sizes
        names = td_names(batch)
        if any(name is not None for name in names):
            level.names = names
