"""From a Dataset to tensors: the one way in which the values of entries are read, and what :func:`to_tensordict` makes of them.

What lies in files as it is in memory is read into its place. What is large is decoded block by block. What dask backs is
computed in one graph. Everything else is read by xarray, several variables at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
import xarray as xr
from tensordict import NonTensorData, TensorDict, UnbatchedTensor

from .._compat.xarray import bare_array, is_index_data, read, reads_far
from ..core.inference import BatchDims
from ..core.model import GroupBatch, Inference, Key
from ..dataset.describe import warn_empty
from ..dataset.entries import Entry, Names, Plan, Unbatched, plan_entries, td_names
from ..dataset.records import infer_dataset, opening_notes
from ..dataset.trees import flat_view
from ..formats.raw.arrays import RawArray, RawRows, uncoded
from ..formats.raw.files import THREADS, Kept, at_once
from ..formats.zarr.remote import AT_ONCE
from ..warnings import LeftOutWarning, warn
from .selection import Selection
from .values import (
    broadcast,
    from_codes,
    is_plain,
    python_value,
    rows_from_numpy,
    tensor_from_numpy,
    to_codes,
    torch_dtype,
)

WORTH_THREADS = 2**20
"""From so many bytes on several variables are read at once; to start threads takes as long as to read less."""
BLOCK_BYTES = 4 << 20
"""How many bytes are decoded at once (measured, 105 MB of packed int16: with 1 MiB xarray's own work begins to show)."""


@dataclass
class Read:
    """A variable, or a part of one, to be read.

    Attributes
    ----------
    name
        How messages call the variable.
    nbytes
        How many bytes are read, about.
    tasks
        What has to be done, in any order and at the same time.
    result
        Gives the values when all is done; None where they are what the only task returns.
    threads
        How many tasks at most run at once; more than `THREADS` where they mostly wait.
    delayed
        An array of dask, which is computed together with others.
    """

    name: str
    nbytes: int
    tasks: Sequence[Callable[[], Any]] = ()
    result: Callable[[], Any] | None = None
    threads: int = THREADS
    delayed: Any = None


def read_all(reads: Sequence[Read]) -> list[Any]:
    """Carry out reads, several at once.

    Raises
    ------
    OSError, RuntimeError, ValueError, KeyError
        Where a variable cannot be read; a note names it, so that it can be excluded.
    """
    found: dict[int, Any] = {}
    delayed = {number: job.delayed for number, job in enumerate(reads) if job.delayed is not None}
    if delayed:
        from .._compat.dask import compute_arrays

        found.update(zip(delayed, compute_arrays(list(delayed.values())), strict=True))
    for threads in sorted(
        {job.threads for job in reads}, reverse=True
    ):  # those of which few are held at once come last
        here = [(number, job) for number, job in enumerate(reads) if job.threads == threads]
        tasks = [(number, task) for number, job in here for task in job.tasks]
        worth = threads > THREADS or sum(job.nbytes for _, job in here) >= WORTH_THREADS
        values = at_once(lambda task: _named(task[1], reads[task[0]].name), tasks, threads if worth else 1)
        found.update({number: value for (number, _), value in zip(tasks, values, strict=True)})
    return [found[number] if job.result is None else _named(job.result, job.name) for number, job in enumerate(reads)]


def _named(call: Callable[[], Any], name: str) -> Any:
    try:
        return call()
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        error.add_note(f"while reading the variable {name!r}; exclude=[{name!r}] leaves it out")
        raise


def read_variables(variables: Sequence[xr.Variable], names: Sequence[str]) -> list[np.ndarray[Any, Any]]:
    """Read whole variables into numpy arrays, past xarray's cache."""
    return read_all([of_variable(*each, far=reads_far(each[0])) for each in zip(variables, names, strict=True)])


def of_variable(variable: xr.Variable, name: str, how: Callable[[Any], Any] = read, *, far: bool) -> Read:
    """The read of a variable by xarray or dask, into a numpy array; `how` reads what dask does not hold."""
    if variable.chunks is not None:
        return Read(name, variable.nbytes, delayed=variable.data)
    return Read(name, variable.nbytes, [partial(how, variable)], threads=AT_ONCE if far else THREADS)


def of_entry(entry: Entry, target: torch.Tensor | None = None, *, blocks: bool = True) -> Read:
    """The read of a whole entry.

    Parameters
    ----------
    entry
        The entry.
    target
        A tensor of its shape and dtype that is filled; None for a new one.
    blocks
        Whether what is large may be read block by block, so that decoding takes little more memory than the result.
    """
    if entry.raw is not None and (target is None or (is_plain(target) and target.is_contiguous())):
        return of_rows(entry, entry.raw, slice(None), target)
    dtype = tensor_dtype(entry)
    if blocks and dtype is not None and (target is not None or entry.variable.nbytes > BLOCK_BYTES):
        from .filling import in_blocks

        found = in_blocks(entry, dtype, target, BLOCK_BYTES)
        if found is not None:
            return Read(entry.name, entry.variable.nbytes, *found)
    return of_variable(entry.variable, entry.name, far=entry.is_far)


def of_rows(
    entry: Entry, raw: RawRows, rows: Any, target: torch.Tensor | None = None, kept: Kept | None = None
) -> Read:
    """The read of rows that lie in files as they are in memory: a slice, a number, or numbers in any order."""
    return Read(entry.name, raw.count(rows) * raw.array.row_size, [partial(_take, raw, rows, target, kept)])


def _take(raw: RawRows, rows: Any, target: torch.Tensor | None, kept: Kept | None) -> torch.Tensor:
    if target is not None:
        raw.take(rows, to_codes(target))
        return target
    return from_codes(raw.take(rows, kept=kept), raw.codes)


def mapped_tensor(variable: xr.Variable) -> torch.Tensor | None:
    """The values of a variable as a tensor over a private copy-on-write map of its file: nothing is read.

    None where that cannot be: it is not of a memory-mapped tensordict, is compressed, is in memory already, or rows are
    picked by number. Writes to the tensor reach no other object.
    """
    found = bare_array(variable)
    if found is None:
        return None
    array, codes = uncoded(found[0])
    key = found[1]
    if not isinstance(array, RawArray) or not all(isinstance(part, int | np.integer | slice) for part in key):
        return None
    if any(isinstance(part, slice) and (part.step or 1) < 0 for part in key):
        return None  # torch has no negative strides
    view = array.private(key)
    if view is None or not view.flags.aligned:
        return None
    return from_codes(view, codes)


def tensor_dtype(entry: Entry) -> torch.dtype | None:
    """The dtype of the tensor of an entry; None for non-tensor data."""
    if entry.form != "tensor":
        return None
    return widened_dtype(entry) or torch_dtype(entry.variable.dtype)


def widened_dtype(entry: Entry) -> torch.dtype | None:
    """The dtype that the values of an entry were widened from, because numpy has no such dtype."""
    return None if entry.torch_dtype is None else getattr(torch, entry.torch_dtype)


# --- what an index selects --------------------------------------------------------------------------------------------


Request: TypeAlias = "tuple[Entry, Selection | None]"
"""An entry, and what was selected of it; None for everything."""


def read_entries(requests: Sequence[Request], kept: Kept | None = None) -> list[np.ndarray[Any, Any] | torch.Tensor]:
    """Read entries, or what was selected of each, for :func:`finish`; what dask backs is computed in one graph.

    `kept` is what the reader keeps from one read to the next.
    """
    found: list[Any] = [_one_row(entry, selection, kept) for entry, selection in requests]
    rest = [request for request, row in zip(requests, found, strict=True) if row is None]
    if rest:
        read = iter(read_all([_request(entry, selection, kept) for entry, selection in rest]))
        found = [next(read) if row is None else row for row in found]
    return found


def _one_row(entry: Entry, selection: Selection | None, kept: Kept | None) -> torch.Tensor | None:
    """A short row that lies in a file as it is in memory: there, to plan the read would take longer than to read. Else None."""
    if kept is None or selection is None or type(selection.rows) is not int or entry.raw is None or not entry.is_plain:
        return None
    values = _named(partial(entry.raw.row, selection.rows, kept), entry.name)
    return None if values is None else from_codes(values, entry.raw.codes)


def _request(entry: Entry, selection: Selection | None, kept: Kept | None) -> Read:
    """The least that has to be read; nothing is read yet."""
    if selection is None or entry.form == "value":
        return of_entry(entry) if entry.is_plain else of_variable(entry.variable, entry.name, far=entry.is_far)
    rows = selection.rows
    if rows is not None and entry.raw is not None and entry.is_plain:
        return of_rows(entry, entry.raw, rows, kept=kept)
    held = _held_axes(entry, selection)
    if _points_are_read(entry, selection):
        points = tuple(xr.Variable("points", selection.points[axis]) for axis in held)
        return of_variable(entry.variable[points].transpose("points", ...), entry.name, np.asarray, far=entry.is_far)
    # a lazy entry is past the cache, and what is in memory is copied in the end
    return of_variable(
        entry.variable[tuple(selection.outer[axis] for axis in held)], entry.name, np.asarray, far=entry.is_far
    )


def _held_axes(entry: Entry, selection: Selection) -> list[int]:
    """Which of the axes that a selection consumes the variable of an entry has."""
    return [axis for axis in range(len(selection.sizes)) if axis not in entry.missing_axes]


def _points_are_read(entry: Entry, selection: Selection) -> bool:
    return selection.is_sparse and len(_held_axes(entry, selection)) > 1


def sliced(entry: Entry, selection: Selection) -> Entry:
    """The same entry of a part of the batch that slices select; nothing is read."""
    if entry.form == "value":
        return entry
    key = tuple(selection.outer[axis] for axis in _held_axes(entry, selection))
    batch = replace(entry.batch, sizes=selection.result(entry.sizes))
    return replace(entry, variable=entry.variable[key] if key else entry.variable, batch=batch)


def finish(
    entry: Entry,
    values: np.ndarray[Any, Any] | torch.Tensor,
    selection: Selection | None,
    batch: Sequence[int],
    names: Sequence[str | None] | None = None,
) -> Any:
    """Turn what :func:`read_entries` gave into the leaf of a tensordict.

    Parameters
    ----------
    entry
        The entry.
    values
        What was read of it.
    selection
        What was asked for; None for everything.
    batch
        The batch size of the result where the entry is one value for the whole batch.
    names
        The names of the batch dims of the tensordict that rows are for.
    """
    if isinstance(values, torch.Tensor):
        return values
    if entry.form == "value":
        return NonTensorData(python_value(values), batch_size=batch)
    array, sizes = _picked(entry, values, selection)
    if entry.form == "rows":
        names = names if names is not None and len(names) == len(sizes) else None
        return rows_from_numpy(array, ndim=len(sizes), batch_size=sizes, names=names)
    copy = None if entry.is_fresh or not np.may_share_memory(array, values) else True
    return tensor_from_numpy(array, name=entry.name, copy=copy, torch_dtype=widened_dtype(entry)).contiguous()


def _picked(
    entry: Entry, array: np.ndarray[Any, Any], selection: Selection | None
) -> tuple[np.ndarray[Any, Any], tuple[int, ...]]:
    """What an index picks of the values that were read for it, broadcast to the batch, and its sizes along the batch."""
    if selection is None:
        return broadcast(array, entry.missing_axes, entry.sizes), entry.sizes
    consumed, picked = len(selection.sizes), selection.result(entry.sizes)
    if _points_are_read(entry, selection):
        array = array.reshape((*selection.picked, *array.shape[1:]))
        later = [axis - consumed + len(selection.picked) for axis in entry.missing_axes if axis >= consumed]
        return broadcast(array, later, picked), picked
    array = broadcast(array, entry.missing_axes, (*selection.block, *entry.sizes[consumed:]))
    if any(part != slice(None) if isinstance(part, slice) else True for part in selection.local):
        # in one thread: for the rows of a batch torch starts all of its own, which have to wait for each other
        # (measured on busy cores: 64 rows of 12 kB 16 ms, with numpy 0.1 ms)
        flat = array.reshape((math.prod(selection.block), *array.shape[consumed:]))
        array = np.take(flat, selection.positions.reshape(-1), axis=0).reshape((*selection.picked, *flat.shape[1:]))
    return array, picked


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
    if entry.form != "tensor":
        return finish(entry, np.asarray(values), None, sizes, td_names(entry.batch))
    if isinstance(values, np.ndarray):
        values = tensor_from_numpy(values, name=entry.name, copy=copy, torch_dtype=widened_dtype(entry))
    if entry.entry_class == "unbatched":
        return values.expand(*sizes, *values.shape) if unbatched == "expand" else UnbatchedTensor(values)
    return broadcast(values, entry.missing_axes, sizes)


# --- whole Datasets --------------------------------------------------------------------------------------------------


def to_tensordict(
    ds: xr.Dataset,
    batch_dims: BatchDims | None = None,
    *,
    device: Any = None,
    coords: bool | Iterable[str] = True,
    unbatched: Unbatched = "drop",
    include: Names | None = None,
    exclude: Names = (),
    copy: bool | None = None,
    out: Any = None,
    cls: Any = None,
    inference: Inference | None = None,
) -> Any:
    """Convert a Dataset to a tensordict; see ``Dataset.td.to_tensordict`` for the parameters."""
    if inference is None or batch_dims is not None:
        inference = infer_dataset(ds, given=batch_dims)
    plan = plan_entries(ds, inference, coords=coords, unbatched=unbatched, include=include, exclude=exclude)
    into = {}
    if out is not None:
        from .filling import fill, targets

        into = targets(plan, out)
    leaves = _leaves(plan, copy=copy, unbatched=unbatched, into=into)
    warn_left_out(plan.left_out)
    if not leaves:
        warn_empty("the Dataset", tuple(opening_notes(ds).get("hidden_groups", ())))
    td = Frame(plan.batches, leaves).filled(leaves)
    if out is not None:
        return fill(out, td)
    if device is not None:
        td = td.to(device)
    if cls is None:
        return td
    from .templates import as_class

    return as_class(td, cls, {entry.key for entry in plan.unbatched} if unbatched == "drop" else frozenset())


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


def tree_to_tensordict(dt: xr.DataTree, batch_dims: BatchDims | None = None, **options: Any) -> Any:
    """Convert a DataTree to nested tensordicts, each node with its own batch."""
    flat, inference = flat_view(dt, batch_dims)
    return to_tensordict(flat, inference=inference, **options)


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
    """The names of the axes, None where there are none; in the types of tensordict none may be None."""
    names = td_names(batch)
    return names if any(name is not None for name in names) else None


def leave_out_times(plan: Plan) -> None:
    """Before rows are read: leave out times that int64 nanoseconds cannot hold, which only values show, and warn of all."""
    times = [entry for entry in plan.entries if entry.variable.dtype.kind in "mM"]
    uncertain = [entry for entry in times if not entry.variable.dtype.name.endswith(("[ns]", "64"))]
    found = read_variables([entry.variable for entry in uncertain], [entry.name for entry in uncertain])
    for entry, values in zip(uncertain, found, strict=True):
        try:
            tensor_from_numpy(values, name=entry.name)
        except (OverflowError, TypeError) as error:
            plan.left_out[entry.name] = str(error)
            plan.entries.remove(entry)
    warn_left_out(plan.left_out)


def warn_left_out(left_out: Mapping[str, str]) -> None:
    """One warning for all variables that a tensordict cannot hold."""
    if left_out:
        listed = "; ".join(f"{name!r}: {reason}" for name, reason in left_out.items())
        warn(f"left out of the tensordict {listed}", LeftOutWarning)
