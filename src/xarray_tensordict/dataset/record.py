"""The record of batch dims in memory: ``ds.attrs["tensordict_batch_dims"]``, kept only where it says something new.

A JSON text, because attributes are lost or changed otherwise: a one-element list comes back from netCDF as a string.
A list names the batch dims of the root; an object gives them for each group that does not simply follow the group
above it, ``{"": ["time"], "next": ["time", "agent"]}``. Where the inference would not find the same, it also says what the
Dataset looked like: ``"/in_front"`` lists the other dims, so that dims that come in front later (``xr.concat`` along a new
dim) are taken for new batch dims and these are not; ``"/axes"`` holds the dims of a variable and ``"/sizes"`` the sizes of these
dims, so that ``rename`` is followed and is not taken for a reduction or a transposition.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import xarray as xr

from ..core.documents import checked
from ..core.features import feature_dims
from ..core.inference import infer_batch
from ..core.metadata import BATCH_DIMS_ATTR, parse_attribute
from ..core.model import ArrayInfo, Inference, Key, RecordedBatch, path_key
from ..warnings import InferredBatchWarning, warn
from .describe import describe_dataset

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
    """Infer the batch of a Dataset from its variables and its record; a warning says what the record does not fit any more."""
    recorded = read_record(ds.attrs) if given is None else {}
    found = infer_batch(describe_dataset(ds), given=given, recorded=recorded, group_attrs={(): ds.attrs})
    for sentence in found.warnings:
        warn(sentence, InferredBatchWarning)
    return found


def with_record(ds: xr.Dataset, batches: Batches) -> xr.Dataset:
    """Record the batch dims, whatever the inference would find."""
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
    """Record the batch dims if the inference, asked about this Dataset, would not find just these.

    Parameters
    ----------
    ds
        The Dataset; it is not changed.
    batches
        Batch dims of each group; those not mentioned follow the group above.
    """
    # a record that is there and says the same stays as it is
    return ds if _says(infer_dataset(ds), batches) else with_record(ds, batches)


def _says(inferred: Inference, batches: Batches) -> bool:
    wanted = _complete(batches, inferred.groups)
    return all(inferred.groups[key].dims == dims for key, dims in wanted.items())


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
