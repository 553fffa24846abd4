"""From a Dataset or a DataTree to a tensordict in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
import xarray as xr
from tensordict import NonTensorData, UnbatchedTensor

from .._compat.xarray import is_index_data, past_cache, read
from ..core.inference import BatchDims
from ..core.model import Inference, Key
from ..dataset.entries import Entry, Plan, Unbatched, plan_entries, td_names
from ..dataset.record import infer_dataset
from ..dataset.trees import flat_view
from ..formats.raw.files import THREADS, at_once
from ..warnings import LeftOutWarning, warn
from .block_reads import BlocksRead, blocks_read
from .classes import as_class
from .filling import Filling, fill, takes_bytes, targets
from .frames import Frame
from .raw_rows import RowsRead, mapped_tensor, raw_rows
from .values import rows_from_numpy, tensor_from_numpy

Leaf = Any
"""A tensor, an ``UnbatchedTensor``, a ``NonTensorData`` or a ``NonTensorStack``."""

Job: TypeAlias = xr.Variable | RowsRead | BlocksRead | Filling
"""A variable to be read, or what reads one straight into a tensor."""

WORTH_THREADS = 2**20
"""From so many bytes on several variables are read at once; to start threads takes as long as to read less."""


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


def _leaves(
    plan: Plan, *, copy: bool | None, unbatched: Unbatched, into: Mapping[Key, torch.Tensor]
) -> dict[Key, Leaf]:
    tensors = [entry for entry in plan.entries if entry.form == "tensor"] if copy is False and not into else []
    found = {entry.key: mapped_tensor(entry.variable) for entry in tensors}
    mapped = {key: tensor for key, tensor in found.items() if tensor is not None}
    unread = [entry for entry in plan.entries if entry.key not in mapped]
    jobs = [_job(entry, into, blocks=copy is not False) for entry in unread]
    rest = iter(compute_together(jobs, [entry.name for entry in unread]))
    leaves: dict[Key, Leaf] = {}
    for entry in plan.entries:
        if entry.key in mapped:
            leaves[entry.key] = place_tensor(entry, mapped[entry.key], unbatched)
            continue
        array = next(rest)
        # the values of an index must never change, so they are never shared
        share = True if copy is None and is_index_data(entry.variable) else copy
        try:
            leaves[entry.key] = make_leaf(entry, array, copy=share, unbatched=unbatched)
        except (OverflowError, TypeError) as error:
            plan.left_out[entry.name] = str(error)
    return leaves


def _job(entry: Entry, into: Mapping[Key, torch.Tensor], *, blocks: bool) -> Job:
    """What reads an entry, into the tensor that is to hold it if there is one."""
    if entry.form != "tensor" or entry.variable.chunks is not None:
        return entry.variable
    rows = raw_rows(entry.variable, entry.torch_dtype)
    target = into.get(entry.key) if entry.entry_class == "batched" else None
    if rows is not None and target is not None and takes_bytes(target):
        return RowsRead(rows, slice(None), target)
    if rows is not None and target is None and entry.key not in into:
        return RowsRead(rows, slice(None))
    found = blocks_read(past_cache(entry.variable), entry.name, entry.torch_dtype, target) if blocks else None
    if found is not None:
        return found
    if entry.key in into:
        return Filling(entry, into[entry.key], lambda entry: make_leaf(entry, read(entry.variable)))
    return entry.variable


def compute_together(jobs: Sequence[Job], names: Sequence[str] | None = None) -> list[Any]:
    """Read variables, past xarray's cache: those backed by dask in one computation, several of the others at once.

    Parameters
    ----------
    jobs
        Variables, or what reads one straight into a tensor.
    names
        How messages call them.

    Returns
    -------
    list
        Numpy arrays, and the tensors.
    """
    chunked = {
        index: job.data for index, job in enumerate(jobs) if isinstance(job, xr.Variable) and job.chunks is not None
    }
    found: dict[int, Any] = {}
    if chunked:
        from .dask_arrays import compute_arrays

        found = dict(zip(chunked, compute_arrays(list(chunked.values())), strict=True))
    here = {index: job for index, job in enumerate(jobs) if index not in found}
    found.update(_read_here(here, names))
    return [found[index] for index in range(len(jobs))]


def _read_here(jobs: Mapping[int, Job], names: Sequence[str] | None) -> dict[int, Any]:
    """Carry out jobs, several at once."""
    blocks = {index: job for index, job in jobs.items() if isinstance(job, BlocksRead)}
    tasks: dict[int, list[tuple[int, Callable[[], Any]]]] = {THREADS: []}
    for index, job in jobs.items():
        if isinstance(job, BlocksRead):
            tasks.setdefault(job.threads, []).extend((index, task) for task in job.tasks)
        else:
            tasks[THREADS].append((index, partial(_read, job)))
    found: dict[int, Any] = {}
    for threads in sorted(tasks, reverse=True):  # those of which few are to be held at once come last
        size = sum(jobs[index].nbytes for index in {index for index, _ in tasks[threads]})
        values = at_once(
            lambda task: _named(task[1], names[task[0]] if names else None),
            tasks[threads],
            threads if size >= WORTH_THREADS else 1,
        )
        found.update({index: value for (index, _), value in zip(tasks[threads], values, strict=True)})
    return found | {index: _named(job.finish, names[index] if names else None) for index, job in blocks.items()}


def _read(job: xr.Variable | RowsRead | Filling) -> Any:
    return read(job) if isinstance(job, xr.Variable) else job()


def _named(call: Callable[[], Any], name: str | None) -> Any:
    """Read a variable; where that fails the error names it, so that it can be excluded."""
    try:
        return call()
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        if name is not None:
            error.add_note(f"while reading the variable {name!r}; exclude=[{name!r}] leaves it out")
        raise


def make_leaf(
    entry: Entry, array: np.ndarray[Any, Any] | torch.Tensor, *, copy: bool | None = None, unbatched: Unbatched = "keep"
) -> Leaf:
    """Make the leaf of an entry from the values of its variable, or from their tensor.

    Raises
    ------
    OverflowError
        For times outside 1678 to 2262.
    TypeError
        For objects that are no rows: dates of another calendar.
    """
    sizes = entry.batch.sizes
    if isinstance(array, torch.Tensor):
        there = entry.entry_class == "partial" and array.ndim == len(entry.shape)  # read into its place
        return array if there else place_tensor(entry, array, unbatched)
    if entry.form == "value":
        return NonTensorData(python_value(array), batch_size=sizes)
    if entry.form == "rows":
        values = _broadcast_numpy(entry, array)
        return rows_from_numpy(values, ndim=len(sizes), batch_size=sizes, names=td_names(entry.batch))
    torch_dtype = getattr(torch, entry.torch_dtype) if entry.torch_dtype is not None else None
    tensor = tensor_from_numpy(array, name=entry.name, copy=copy, torch_dtype=torch_dtype)
    return place_tensor(entry, tensor, unbatched)


def place_tensor(entry: Entry, tensor: torch.Tensor, unbatched: Unbatched) -> Leaf:
    """Make the leaf of an entry from its tensor: broadcast to the batch, expanded or unbatched."""
    if entry.entry_class == "partial":
        return broadcast(tensor, entry)
    if entry.entry_class == "unbatched":
        sizes = entry.batch.sizes
        return tensor.expand(*sizes, *tensor.shape) if unbatched == "expand" else UnbatchedTensor(tensor)
    return tensor


def python_value(array: np.ndarray[Any, Any]) -> Any:
    """One value as Python holds it: a str and not a ``np.str_``; an array of more dimensions as nested lists.

    It belongs to whoever asks: a change of it is seen nowhere else.
    """
    if array.dtype.kind in "mM":
        return array.astype("int64").tolist()
    value = array.item() if array.ndim == 0 else array.tolist()
    return str(value) if isinstance(value, np.str_) else deepcopy(value)


def broadcast(tensor: torch.Tensor, entry: Entry) -> torch.Tensor:
    """Broadcast a partial entry to the batch, by name and without copying."""
    for axis in entry.missing_axes:
        tensor = tensor.unsqueeze(axis)
    return tensor.expand(entry.shape)


def _broadcast_numpy(entry: Entry, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if entry.entry_class != "partial":
        return array
    return np.broadcast_to(np.expand_dims(array, entry.missing_axes), entry.shape)


def warn_left_out(left_out: Mapping[str, str]) -> None:
    """One warning for all variables that a tensordict cannot hold."""
    if left_out:
        told = "; ".join(f"{name!r}: {reason}" for name, reason in left_out.items())
        warn(f"left out of the tensordict {told}", LeftOutWarning)


def tree_to_tensordict(dt: xr.DataTree, batch_dims: BatchDims | None = None, **options: Any) -> Any:
    """Convert a DataTree to nested tensordicts, each node with its own batch."""
    flat, inference = flat_view(dt, batch_dims)
    return to_tensordict(flat, inference=inference, **options)
