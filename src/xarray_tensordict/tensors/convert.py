"""From a Dataset or a DataTree to a tensordict in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
import xarray as xr
from tensordict import NonTensorData, TensorDict, UnbatchedTensor

from .._compat.xarray import is_index_data
from ..core.inference import BatchDims
from ..core.model import GroupBatch, Inference, Key
from ..dataset.entries import Entry, Plan, Unbatched, plan_entries, td_names
from ..dataset.record import infer_dataset
from ..dataset.trees import flat_view
from ..warnings import LeftOutWarning, warn
from .classes import as_class
from .filling import fill, targets
from .non_tensor import python_value, rows_from_numpy
from .reading import mapped_tensor, of_entry, read_all, widened_dtype
from .values import broadcast, tensor_from_numpy


def to_tensordict(
    ds: xr.Dataset,
    batch_dims: BatchDims | None = None,
    *,
    device: Any = None,
    coords: bool | Iterable[str] = True,
    unbatched: Unbatched = "drop",
    exclude: Iterable[str] = (),
    copy: bool | None = None,
    out: Any = None,
    cls: Any = None,
    inference: Inference | None = None,
) -> Any:
    """Convert a Dataset to a tensordict; see ``Dataset.td.to_tensordict`` for the parameters."""
    if inference is None or batch_dims is not None:
        inference = infer_dataset(ds, given=batch_dims)
    plan = plan_entries(ds, inference, coords=coords, unbatched=unbatched, exclude=exclude)
    into = {} if out is None else targets(plan, out)
    leaves = _leaves(plan, copy=copy, unbatched=unbatched, into=into)
    warn_left_out(plan.left_out)
    td = Frame(plan.batches, leaves).filled(leaves)
    if out is not None:
        return fill(out, td)
    if device is not None:
        td = td.to(device)
    dropped = frozenset(entry.key for entry in plan.unbatched) if unbatched == "drop" else frozenset()
    return td if cls is None else as_class(td, cls, dropped)


def _leaves(plan: Plan, *, copy: bool | None, unbatched: Unbatched, into: Mapping[Key, torch.Tensor]) -> dict[Key, Any]:
    tensors = [entry for entry in plan.entries if entry.form == "tensor"] if copy is False and not into else []
    mapped = {entry.key: mapped_tensor(entry.variable) for entry in tensors}
    unread = [entry for entry in plan.entries if mapped.get(entry.key) is None]
    reads = [of_entry(entry, into.get(entry.key), blocks=copy is not False) for entry in unread]
    found = mapped | dict(zip((entry.key for entry in unread), read_all(reads), strict=True))
    leaves: dict[Key, Any] = {}
    for entry in plan.entries:
        # the values of an index must never change, so they are never shared
        share = True if copy is None and is_index_data(entry.variable) else copy
        try:
            leaves[entry.key] = make_leaf(entry, found.pop(entry.key), copy=share, unbatched=unbatched)
        except (OverflowError, TypeError) as error:
            plan.left_out[entry.name] = str(error)
    return leaves


def make_leaf(
    entry: Entry,
    values: np.ndarray[Any, Any] | torch.Tensor,
    *,
    copy: bool | None = None,
    unbatched: Unbatched = "keep",
) -> Any:
    """Make the leaf of an entry from the values of its variable, or from their tensor.

    Returns
    -------
    Tensor, UnbatchedTensor, NonTensorData or NonTensorStack
        Broadcast to the batch, by name and without copying.

    Raises
    ------
    OverflowError
        For times outside 1678 to 2262.
    TypeError
        For objects that are no rows: dates of another calendar.
    """
    sizes = entry.batch.sizes
    if entry.form == "value":
        return NonTensorData(python_value(np.asarray(values)), batch_size=sizes)
    if entry.form == "rows":
        array = np.expand_dims(np.asarray(values), entry.missing_axes)
        array = np.broadcast_to(array, (*sizes, *array.shape[len(sizes) :]))
        return rows_from_numpy(array, ndim=len(sizes), batch_size=sizes, names=td_names(entry.batch))
    if isinstance(values, np.ndarray):
        values = tensor_from_numpy(values, name=entry.name, copy=copy, torch_dtype=widened_dtype(entry))
    if entry.entry_class == "unbatched":
        return values.expand(*sizes, *values.shape) if unbatched == "expand" else UnbatchedTensor(values)
    return broadcast(values, entry.missing_axes, [sizes[axis] for axis in entry.missing_axes])


class Frame:
    """The nested tensordicts of some groups, to be filled with leaves once, or again and again.

    Parameters
    ----------
    batches
        The batch of each group that holds leaves or is above one.
    keys
        The keys of the leaves.
    """

    def __init__(self, batches: Mapping[Key, GroupBatch], keys: Iterable[Key]) -> None:
        found: dict[Key, None] = {(): None}
        for key in keys:
            found.update(dict.fromkeys(key[:length] for length in range(1, len(key))))
        # a group is made when those within it have been
        self._groups = [
            (key, torch.Size(batches[key].sizes), _names(batches[key])) for key in sorted(found, key=len, reverse=True)
        ]

    def filled(self, leaves: Mapping[Key, Any]) -> TensorDict:
        """The nested tensordict that holds `leaves`, each group with its batch size and names."""
        held: dict[Key, dict[str, Any]] = {key: {} for key, _, _ in self._groups}
        for key, leaf in leaves.items():
            held[key[:-1]][key[-1]] = leaf
        for key, size, names in self._groups:
            td = TensorDict(held[key], batch_size=size, names=names and list(names))
            if key:
                held[key[:-1]][key[-1]] = td
        return td


def _names(batch: GroupBatch) -> Any:
    """The names of the axes, None where there are none; tensordict's types do not say that one may be None."""
    names = td_names(batch)
    return names if any(name is not None for name in names) else None


def warn_left_out(left_out: Mapping[str, str]) -> None:
    """One warning for all variables that a tensordict cannot hold."""
    if left_out:
        listed = "; ".join(f"{name!r}: {reason}" for name, reason in left_out.items())
        warn(f"left out of the tensordict {listed}", LeftOutWarning)


def tree_to_tensordict(dt: xr.DataTree, batch_dims: BatchDims | None = None, **options: Any) -> Any:
    """Convert a DataTree to nested tensordicts, each node with its own batch."""
    flat, inference = flat_view(dt, batch_dims)
    return to_tensordict(flat, inference=inference, **options)
