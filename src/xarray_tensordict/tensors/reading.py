"""The values of entries: the one way in which variables are read, into tensors and into numpy arrays.

What lies in files as it is in memory is read into its place. What is large is decoded block by block. What dask backs is
computed in one graph. Everything else is read by xarray, several variables at once.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from tensordict import NonTensorData

from .._compat.xarray import backend_array, bare_array, is_bare, on_backend, positional, read, stored_place
from ..core.blocks import borders, merged_chunks, row_blocks
from ..dataset.entries import Entry
from ..formats.pieces import HeldPiece, is_far, pieces_of
from ..formats.raw.arrays import RawArray, RawRows, uncoded
from ..formats.raw.files import THREADS, at_once, reuse_memory
from ..formats.raw.kept import Kept
from .non_tensor import python_value, rows_from_numpy
from .selection import Selection
from .values import broadcast, from_codes, tensor_from_numpy, to_codes, torch_dtype

WORTH_THREADS = 2**20
"""From so many bytes on several variables are read at once; to start threads takes as long as to read less."""
BLOCK_BYTES = 4 << 20
"""How many bytes are decoded at once (measured, 105 MB of packed int16: with 1 MiB xarray's own work begins to show)."""
_CORES = os.cpu_count() or 1
FAR_THREADS = 10
"""How many blocks of a store far away are waited for at once: as many as zarr asks for."""
_TOGETHER = 32 << 20
"""How many bytes of chunks are decompressed at once, at most, where a chunk is not larger."""


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
        How many tasks at most run at once.
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
    tasks = [(number, task) for number, job in enumerate(reads) for task in job.tasks]
    for threads in sorted(
        {job.threads for job in reads}, reverse=True
    ):  # those of which few are to be held at once come last
        here = {number for number, job in enumerate(reads) if job.threads == threads}
        own = tasks if len(here) == len(reads) else [task for task in tasks if task[0] in here]
        size = sum(reads[number].nbytes for number in here)
        values = at_once(
            lambda task: _named(task[1], reads[task[0]].name), own, threads if size >= WORTH_THREADS else 1
        )
        found.update({number: value for (number, _), value in zip(own, values, strict=True)})
    return [found[number] if job.result is None else _named(job.result, job.name) for number, job in enumerate(reads)]


def _named(call: Callable[[], Any], name: str) -> Any:
    try:
        return call()
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        error.add_note(f"while reading the variable {name!r}; exclude=[{name!r}] leaves it out")
        raise


def read_variables(variables: Sequence[xr.Variable], names: Sequence[str]) -> list[np.ndarray[Any, Any]]:
    """Read whole variables into numpy arrays, past xarray's cache."""
    return read_all([of_variable(*each) for each in zip(variables, names, strict=True)])


def of_variable(variable: xr.Variable, name: str) -> Read:
    """The read of a variable by xarray or dask, into a numpy array."""
    if variable.chunks is not None:
        return Read(name, variable.nbytes, delayed=variable.data)
    return Read(name, variable.nbytes, [partial(read, variable)])


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
    if entry.raw is not None and (target is None or _takes_bytes(target)):
        return of_rows(entry, entry.raw, slice(None), target)
    found = _of_blocks(entry, target) if blocks and entry.form == "tensor" else None
    return found or of_variable(entry.variable, entry.name)


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


def _takes_bytes(target: torch.Tensor) -> bool:
    """Whether the bytes of a store can be read into a tensor."""
    return _is_plain(target) and target.is_contiguous()


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor.device.type == "cpu" and not tensor.requires_grad


def mapped_tensor(variable: xr.Variable) -> torch.Tensor | None:
    """The values of a variable as a tensor over a private copy-on-write map of its file: nothing is read.

    None where that cannot be: it is not of a memory-mapped tensordict, is compressed, is in memory already, or rows are
    picked by number. Writes to the tensor reach nobody else.
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


def read_together(requests: Sequence[tuple[Entry, Selection | None]]) -> list[np.ndarray[Any, Any] | torch.Tensor]:
    """Read entries, or what was selected of each, for :func:`finish`; what dask backs is computed in one graph."""
    return read_all([_request(entry, selection) for entry, selection in requests])


def _request(entry: Entry, selection: Selection | None) -> Read:
    """The least that has to be read; nothing is read yet."""
    if selection is None or entry.form == "value":
        return of_entry(entry) if entry.is_plain else of_variable(entry.variable, entry.name)
    rows = selection.rows
    if rows is not None and entry.raw is not None and entry.is_plain:
        return of_rows(entry, entry.raw, rows)
    held = held_axes(entry, len(selection.sizes))
    if _points_are_read(entry, selection):
        points = tuple(xr.Variable("points", selection.points[axis]) for axis in held)
        return of_variable(entry.variable[points].transpose("points", ...), entry.name)
    outer = tuple(selection.outer[axis] for axis in held)
    whole = all(
        isinstance(part, slice) and part == slice(0, selection.sizes[axis], 1)
        for axis, part in zip(held, outer, strict=True)
    )
    return of_variable(entry.variable if whole else entry.variable[outer], entry.name)


def held_axes(entry: Entry, axes: int) -> list[int]:
    """Which of the first `axes` axes of an entry its variable has."""
    return [axis for axis in range(axes) if axis not in entry.missing_axes]


def _points_are_read(entry: Entry, selection: Selection) -> bool:
    return selection.is_sparse and len(held_axes(entry, len(selection.sizes))) > 1


def finish(
    entry: Entry,
    values: np.ndarray[Any, Any] | torch.Tensor,
    selection: Selection | None,
    batch: Sequence[int],
    names: Sequence[str | None] | None = None,
) -> Any:
    """Turn what :func:`read_together` gave into the leaf of a tensordict.

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
    if entry.form == "rows":
        return _rows(entry, values, selection, names)
    copy = None if entry.is_fresh else True
    tensor = tensor_from_numpy(values, name=entry.name, copy=copy, torch_dtype=widened_dtype(entry))
    if selection is not None and _points_are_read(entry, selection):
        axes, sizes = _behind_points(entry, selection)
        return broadcast(tensor.view(*selection.picked, *tensor.shape[1:]), axes, sizes).contiguous()
    block = entry.sizes if selection is None else (*selection.block, *entry.sizes[len(selection.block) :])
    tensor = broadcast(tensor, entry.missing_axes, [block[axis] for axis in entry.missing_axes])
    return (tensor if selection is None else _picked(tensor, selection.local)).contiguous()


def _behind_points(entry: Entry, selection: Selection) -> tuple[list[int], list[int]]:
    """The axes of the result that a variable of which points were read lacks, and their sizes."""
    gone = len(selection.sizes) - len(selection.picked)
    later = [axis for axis in entry.missing_axes if axis >= len(selection.sizes)]
    return [axis - gone for axis in later], [entry.sizes[axis] for axis in later]


def _rows(
    entry: Entry, array: np.ndarray[Any, Any], selection: Selection | None, names: Sequence[str | None] | None
) -> Any:
    if selection is not None and _points_are_read(entry, selection):
        sizes = (*selection.picked, *entry.sizes[len(selection.sizes) :])
        values = np.expand_dims(
            array.reshape((*selection.picked, *array.shape[1:])), tuple(_behind_points(entry, selection)[0])
        )
        values = np.broadcast_to(values, (*sizes, *values.shape[len(sizes) :]))
        return rows_from_numpy(values, ndim=len(sizes), batch_size=sizes)
    consumed = () if selection is None else selection.block
    block = (*consumed, *entry.sizes[len(consumed) :])
    values = np.expand_dims(array, entry.missing_axes)
    values = np.broadcast_to(values, (*block, *values.shape[len(block) :]))
    if selection is not None:
        rest = values.shape[len(consumed) :]
        values = values.reshape((math.prod(consumed), *rest))
        values = values[selection.positions.reshape(-1)].reshape((*selection.picked, *rest))
        block = (*selection.picked, *block[len(consumed) :])
    names = names if names is not None and len(names) == len(block) else None
    return rows_from_numpy(values, ndim=len(block), batch_size=block, names=names)


def _picked(tensor: torch.Tensor, local: Sequence[Any]) -> torch.Tensor:
    """The elements of a block that an index picks."""
    if not local:
        return tensor
    rows, *rest = local
    if isinstance(rows, torch.Tensor) and rows.ndim == 1 and all(part == slice(None) for part in rest):
        # in one thread: for the rows of a batch torch starts all of its own, which have to wait for each other
        # (measured on busy cores: 64 rows of 12 kB 16 ms, with numpy 0.1 ms)
        return from_codes(np.take(to_codes(tensor), rows.numpy(), axis=0), tensor.dtype)
    return tensor[tuple(local)]


# --- block by block ---------------------------------------------------------------------------------------------------

Block = tuple[slice, ...]


@dataclass
class _Blocks:
    """A variable that is read block by block into one tensor, so that what its decoding takes is that of a few blocks.

    Blocks go along the chunks of the store, so that each chunk is read once. One that is larger than a block is kept, as
    it is stored, while its parts are decoded.
    """

    entry: Entry
    variable: xr.Variable
    tensor: torch.Tensor
    _differs: bool = field(default=False, init=False)

    def fill(self, key: Block) -> None:
        """Read a block of the variable."""
        if self._differs:
            return
        part = self.variable[key]
        blocks = list(_split(part.shape, row_blocks(part.shape, part.dtype.itemsize, BLOCK_BYTES)))
        if len(blocks) > 1:
            stored = backend_array(part)
            pieces = pieces_of(stored)
            if pieces is not None:
                part = on_backend(part, HeldPiece(stored, pieces))
        target = self.tensor[key]
        if not all(self._put(target[block], read(part[block])) for block in blocks):
            self._differs = True

    def _put(self, target: torch.Tensor, array: np.ndarray[Any, Any]) -> bool:
        if tuple(target.shape) != array.shape:
            return False
        if self.entry.torch_dtype is None and array.dtype.kind in "biufc" and _is_plain(target):
            if torch_dtype(array.dtype) != target.dtype:
                return False
            target.numpy()[...] = array  # torch would start threads of its own
            return True
        try:
            tensor = tensor_from_numpy(array, name=self.entry.name, torch_dtype=widened_dtype(self.entry))
        except (OverflowError, TypeError, ValueError):
            return False  # whoever takes the values as they are tells why
        if tensor.dtype != target.dtype:
            return False
        target.copy_(tensor)
        return True

    def result(self) -> torch.Tensor | np.ndarray[Any, Any]:
        """The tensor; the values as they are where a block has another dtype than the variable promises."""
        return read(self.variable) if self._differs else self.tensor


def _of_blocks(entry: Entry, target: torch.Tensor | None) -> Read | None:
    """The read of an entry block by block; None where that takes no less memory than to read it at once."""
    backend, dtype = backend_array(entry.variable), tensor_dtype(entry)
    if backend is None or dtype is None or (entry.variable.nbytes <= BLOCK_BYTES and target is None):
        return None
    variable = positional(entry.variable)
    pieces, far = pieces_of(backend), is_far(backend)
    piece = 0 if pieces is None else math.prod(pieces) * variable.dtype.itemsize
    plain = (
        entry.torch_dtype is None and is_bare(variable) and variable.dtype.isnative and variable.dtype.kind in "biufc"
    )
    if plain and target is None and (far or piece < BLOCK_BYTES):
        return None  # what reads it takes little more than the result
    grid = _grid(variable, pieces)
    if plain and target is None and len(grid) == 1:
        return None
    # more threads than cores would decode no faster, and each holds blocks
    threads = FAR_THREADS if far else max(1, min(THREADS, _CORES, _TOGETHER // max(piece, 1)))
    reuse_memory()
    blocks = _Blocks(entry, variable, _empty(variable.shape, dtype) if target is None else target)
    tasks = [partial(blocks.fill, key) for key in grid]
    return Read(entry.name, variable.nbytes, tasks, blocks.result, threads)


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor in memory of numpy, which asks for large pages (measured: 420 MB, 0.1 s less to fault them in)."""
    size = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.empty(size, np.uint8)).view(dtype).view(shape)


def _grid(variable: xr.Variable, pieces: tuple[int, ...] | None) -> list[Block]:
    """Blocks of whole pieces of the store, as far as the variable shows them."""
    shape, itemsize = variable.shape, variable.dtype.itemsize
    if pieces is None:
        return list(_split(shape, row_blocks(shape, itemsize, BLOCK_BYTES)))
    places = [stored_place(variable, axis) for axis in range(variable.ndim)]
    own = [size if place is None else pieces[place[0]] for place, size in zip(places, shape, strict=True)]
    steps = merged_chunks(own, shape, itemsize, BLOCK_BYTES)
    cuts = [
        [0, size] if place is None else borders(place[1], step)
        for place, step, size in zip(places, steps, shape, strict=True)
    ]
    return [*itertools.product(*([slice(*ends) for ends in itertools.pairwise(cut)] for cut in cuts))]


def _split(shape: Sequence[int], block: Sequence[int]) -> Iterator[Block]:
    if not math.prod(shape):
        return itertools.product()
    return itertools.product(
        *(
            [slice(first, min(first + step, size)) for first in range(0, size, step)]
            for size, step in zip(shape, block, strict=True)
        )
    )
