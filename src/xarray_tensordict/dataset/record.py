"""The record of batch dims in memory: ``ds.attrs["tensordict_batch_dims"]``, kept only where it says something new.

A JSON text, because attributes are lost or changed otherwise: a one-element list comes back from netCDF as a string.
A list names the batch dims of the root; an object gives them for each group that does not simply follow the group
above it, ``{"": ["time"], "next": ["time", "agent"]}``. ``"/in_front"`` lists dims that stood in front of those that were
chosen: dims that come in front later (``xr.concat`` along a new dim) are taken for new batch dims, these are not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import xarray as xr

from ..core.inference import infer_batch
from ..core.metadata import BATCH_DIMS_ATTR
from ..core.model import Inference, Key, RecordedBatch
from .describe import describe_dataset

_IN_FRONT = "/in_front"

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
    try:
        value = json.loads(text) if isinstance(text, (str, bytes)) else text
    except json.JSONDecodeError:
        value = None
    groups = dict(value) if isinstance(value, dict) else {"": value}
    in_front = groups.pop(_IN_FRONT, [])
    for names in groups.values():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(
                f"{where}: expected a JSON list of dim names in attrs[{BATCH_DIMS_ATTR!r}], found {text!r}; set it with "
                f"ds.td.set_batch_dims(...) or delete it"
            )
    return {_key(path): RecordedBatch(None, tuple(names), frozenset(in_front)) for path, names in groups.items()}


def _key(path: str) -> Key:
    return tuple(part for part in path.split("/") if part)


def infer_dataset(ds: xr.Dataset, *, given: str | Sequence[str] | int | None = None) -> Inference:
    """Infer the batch of a Dataset from its variables and its record."""
    recorded = read_record(ds.attrs) if given is None else {}
    return infer_batch(describe_dataset(ds), given=given, recorded=recorded, group_attrs={(): ds.attrs})


def with_record(ds: xr.Dataset, batches: Batches) -> xr.Dataset:
    """Record the batch dims, whatever the inference would find."""
    value = _smallest(batches)
    in_front = _dims_in_front(ds, batches.get((), ()))
    if in_front:
        value = {**(value if isinstance(value, dict) else {"": value}), _IN_FRONT: in_front}
    ds = ds.copy(deep=False)
    ds.attrs = {**ds.attrs, BATCH_DIMS_ATTR: json.dumps(value)}
    return ds


def _dims_in_front(ds: xr.Dataset, names: Sequence[str | None]) -> list[str]:
    """The dims that stand in front of the batch dims in some variable: they were passed over, and stay so."""
    found: set[str] = set()
    for variable in ds.variables.values():
        held = [axis for axis, dim in enumerate(variable.dims) if dim in names]
        found.update(str(dim) for dim in variable.dims[: min(held, default=0)])
    return sorted(found.difference(name for name in names if name is not None))


def set_record_if_needed(ds: xr.Dataset, batches: Batches) -> xr.Dataset:
    """Record the batch dims if the inference, asked about this Dataset, would not find just these.

    Parameters
    ----------
    ds
        The Dataset; it is not changed.
    batches
        Batch dims of each group; those not mentioned follow the group above.
    """
    # a record that is there and says the same stays as it is
    inferred = infer_dataset(ds)
    wanted = _complete(batches, inferred.groups)
    if all(inferred.groups[key].dims == dims for key, dims in wanted.items() if key in inferred.groups):
        return ds
    return with_record(ds, batches)


def _complete(batches: Batches, groups: Mapping[Key, Any]) -> dict[Key, tuple[str | None, ...]]:
    wanted = {}
    for key in groups:
        known = next(key[:length] for length in range(len(key), -1, -1) if key[:length] in batches or not length)
        wanted[key] = tuple(batches.get(known, ()))
    return wanted


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
