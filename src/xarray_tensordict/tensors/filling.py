"""Tensors that are filled in place: those of an existing tensordict (``out=``), and new ones of what is large.

What is large is decoded block by block into one tensor, so that decoding takes the memory of a few blocks. Blocks go along
what the store has to read as a whole (a chunk, a shard), so that it is read once. One that is larger than a block is kept,
as it is stored, while its parts are decoded.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from tensordict import TensorDict, is_tensor_collection

from .._compat.xarray import backend_array, is_bare, on_backend, positional, read, reads_far, stored_place, zarr_array
from ..core.blocks import borders, merged_chunks, row_blocks
from ..dataset.entries import Entry, Plan
from ..formats.array_wrappers import FieldArray, OuterArray, WidenedArray, read_outer
from ..formats.hdf5.arrays import Hdf5Array
from ..formats.raw.arrays import RawArray
from ..formats.raw.files import THREADS, reuse_memory
from ..formats.zarr.remote import AHEAD_BYTES, AT_ONCE, SHARD_BYTES
from .reading import tensor_dtype
from .values import are_apart, is_plain, tensor_from_numpy, to_codes, torch_dtype

_CORES = os.cpu_count() or 1
_TOGETHER = 32 << 20
"""How many bytes of chunks are decompressed at once, at most, where a chunk is not larger."""
_SHARD = 4 << 20
"""Shards of local stores that are larger are read in parts."""

Block = tuple[slice, ...]


def in_blocks(
    entry: Entry, dtype: torch.dtype, target: torch.Tensor | None, block_bytes: int
) -> tuple[Sequence[Callable[[], Any]], Callable[[], Any], int] | None:
    """How an entry is read block by block; None where that takes no less memory than to read it at once.

    Parameters
    ----------
    entry
        The entry.
    dtype
        The dtype of its tensor.
    target
        A tensor that is filled; None for a new one.
    block_bytes
        How many bytes are decoded at once.

    Returns
    -------
    tasks
        What reads the blocks, in any order and at the same time.
    result
        Gives the tensor when all is done.
    threads
        How many tasks at most run at once.
    """
    backend = backend_array(entry.variable)
    if backend is None:
        return None
    variable = positional(entry.variable)
    far = reads_far(variable)
    pieces = pieces_of(backend)
    piece = 0 if pieces is None else math.prod(pieces) * variable.dtype.itemsize
    plain = entry.torch_dtype is None and is_bare(variable)
    plain = plain and variable.dtype.isnative and variable.dtype.kind in "biufc"
    if plain and target is None and (far or piece < block_bytes):
        return None  # what reads it takes little more than the result
    grid = _grid(variable, pieces, block_bytes)
    if plain and target is None and len(grid) == 1:
        return None
    # more threads than cores would decode no faster, and each holds blocks
    if far:
        threads = max(1, min(AT_ONCE, AHEAD_BYTES // max(piece, block_bytes)))
    else:
        threads = max(1, min(THREADS, _CORES, _TOGETHER // max(piece, 1)))
    reuse_memory()
    try:
        tensor = _empty(variable.shape, dtype) if target is None else target
    except MemoryError:
        return None  # reading it as a whole raises an error with its name
    filled = _Filled(entry, variable, tensor, block_bytes)
    return [partial(filled.fill, key) for key in grid], filled.result, threads


@dataclass
class _Filled:
    """A variable and the tensor that its blocks are read into."""

    entry: Entry
    variable: xr.Variable
    tensor: torch.Tensor
    block_bytes: int
    _differs: bool = field(default=False, init=False)

    def fill(self, key: Block) -> None:
        """Read a block of the variable."""
        if self._differs:
            return
        part = self.variable[key]
        blocks = list(_split(part.shape, row_blocks(part.shape, part.dtype.itemsize, self.block_bytes)))
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
        if self.entry.torch_dtype is None and array.dtype.kind in "biufc" and is_plain(target):
            if torch_dtype(array.dtype) != target.dtype:
                return False
            target.numpy()[...] = array  # torch would start threads of its own
            return True
        widened = None if self.entry.torch_dtype is None else target.dtype
        try:
            tensor = tensor_from_numpy(array, name=self.entry.name, torch_dtype=widened)
        except (OverflowError, TypeError, ValueError):
            return False  # taking the values as they are raises the reason
        if tensor.dtype != target.dtype:
            return False
        target.copy_(tensor)
        return True

    def result(self) -> torch.Tensor | np.ndarray[Any, Any]:
        """The tensor; the values as they are where a block has another dtype than the variable promises."""
        return read(self.variable) if self._differs else self.tensor


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor in memory of numpy, which asks for large pages (measured: 420 MB, 0.1 s less to fault them in)."""
    size = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.empty(size, np.uint8)).view(dtype).view(shape)


def _grid(variable: xr.Variable, pieces: tuple[int, ...] | None, block_bytes: int) -> list[Block]:
    """Blocks of whole chunks of the store, as far as the variable shows them."""
    shape, itemsize = variable.shape, variable.dtype.itemsize
    if pieces is None:
        return list(_split(shape, row_blocks(shape, itemsize, block_bytes)))
    places = [stored_place(variable, axis) for axis in range(variable.ndim)]
    own = [size if place is None else pieces[place[0]] for place, size in zip(places, shape, strict=True)]
    steps = merged_chunks(own, shape, itemsize, block_bytes)
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


# --- what a store reads at once ---------------------------------------------------------------------------------------


def pieces_of(array: Any, shard_bytes: int | None = None) -> tuple[int, ...] | None:
    """The shape of what is read as a whole: a chunk, or a shard that is no larger. None where any part is read by itself."""
    if isinstance(array, WidenedArray):
        return pieces_of(array.wrapped, shard_bytes)
    if isinstance(array, FieldArray):
        found = pieces_of(array.wrapped, shard_bytes)
        return None if found is None else (*found, *array.shape[len(found) :])
    if isinstance(array, RawArray):
        return array.pieces
    if isinstance(array, Hdf5Array):
        return array.chunks
    stored = zarr_array(array)
    if stored is None:
        return tuple(array.shape)  # nothing is known of it
    try:
        shards = stored.shards
        if shard_bytes is None:
            shard_bytes = SHARD_BYTES if getattr(array, "is_far", False) else _SHARD
        return tuple(
            stored.chunks if shards is None or math.prod(shards) * array.dtype.itemsize > shard_bytes else shards
        )
    except NotImplementedError:  # chunks of different sizes have no one shape
        return tuple(array.shape)


class HeldPiece(OuterArray):
    """Reads whole chunks of another array, and keeps the last one: what is asked for next is taken from there."""

    def __init__(self, array: Any, pieces: tuple[int, ...]) -> None:
        self._array = array
        self._pieces = pieces
        self.dtype = np.dtype(array.dtype)
        self.shape = tuple(array.shape)
        self._held: tuple[tuple[slice, ...], np.ndarray[Any, Any]] | None = None

    def _read(self, key: tuple[Any, ...]) -> Any:
        # xarray asks for slices that go up, and for sorted numbers
        spans = [_span(part, size) for part, size in zip(key, self.shape, strict=True)]
        if self._held is None or not all(
            hull.start <= first and stop <= hull.stop for hull, (first, stop) in zip(self._held[0], spans, strict=True)
        ):
            hull = tuple(
                slice(first // piece * piece, min(-(-stop // piece) * piece, size), 1)
                for (first, stop), piece, size in zip(spans, self._pieces, self.shape, strict=True)
            )
            self._held = None  # not two at a time
            self._held = hull, read_outer(self._array, hull)
        hull, values = self._held
        moved = [_moved(part, lead.start, size) for part, lead, size in zip(key, hull, self.shape, strict=True)]
        # what was asked for must not keep the whole chunk, nor be changed with it
        return np.array(read_outer(values, tuple(moved)))


def _span(part: Any, size: int) -> tuple[int, int]:
    """From where to where a part of a key picks."""
    numbers: Any = range(size)[part] if isinstance(part, slice) else np.atleast_1d(part)
    return (int(numbers[0]), int(numbers[-1]) + 1) if len(numbers) else (0, 0)


def _moved(part: Any, start: int, size: int) -> Any:
    if not isinstance(part, slice):
        return part - start
    numbers = range(size)[part]
    return slice(numbers.start - start, numbers.stop - start, numbers.step)


def targets(plan: Plan, out: Any) -> dict[Any, torch.Tensor]:
    """The tensors of `out` that entries can be read into; checked for all before anything is read.

    Raises
    ------
    TypeError
        Where `out` is no tensordict.
    ValueError
        Where it lacks an entry, or has one of another shape or dtype.
    """
    if not is_tensor_collection(out):
        raise TypeError(f"out: expected a tensordict whose tensors are to be filled, got {type(out).__name__}")
    found = {}
    for entry in plan.entries:
        # whether times fit shows as they are read; the others are made from their values
        if entry.form == "tensor" and entry.entry_class != "unbatched" and entry.variable.dtype.kind in "biufc":
            target = _target(out, entry.key, torch.Size(entry.shape), tensor_dtype(entry))
            if _is_held(out, entry.key, target):
                found[entry.key] = target
    _refuse_shared(found)
    # a partial entry is broadcast when it was read
    return {entry.key: found[entry.key] for entry in plan.entries if entry.key in found and entry.is_plain}


def _refuse_shared(tensors: Mapping[Any, torch.Tensor]) -> None:
    """Raise where two tensors share memory: one would be written over the other."""
    reaching: list[tuple[Any, torch.Tensor]] = []
    for key, tensor in sorted(tensors.items(), key=lambda item: item[1].data_ptr()):
        reaching = [each for each in reaching if each[1].data_ptr() + _extent(each[1]) > tensor.data_ptr()]
        shared = next((other for other, before in reaching if _overlap(before, tensor)), None)
        if shared is not None:
            raise ValueError(
                f"out: the tensors at {_shown(shared)!r} and {_shown(key)!r} share their memory; clone one of them first"
            )
        if tensor.numel():
            reaching.append((key, tensor))


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors whose memory reaches into each other have an element in common, as far as that is easily found."""
    if one.device != other.device or not other.numel():
        return False
    if one.data_ptr() == other.data_ptr():
        return True
    shares: Any = np.shares_memory
    try:
        return bool(shares(to_codes(one.detach()), to_codes(other.detach()), max_work=10_000))
    except (TypeError, np.exceptions.TooHardError):
        return False  # another device


def _extent(tensor: torch.Tensor) -> int:
    """How many bytes there are from the first element to the end of the last one."""
    steps = sum(step * (size - 1) for step, size in zip(tensor.stride(), tensor.shape, strict=True))
    return (steps + 1) * tensor.element_size()


def fill(out: Any, td: TensorDict) -> Any:
    """Copy the values of `td` into the tensors of an existing tensordict, but for those that are there already."""
    for key, value in td.items(include_nested=True, leaves_only=True):
        target = _target(out, key, value.shape, value.dtype)
        if not _is_held(out, key, target):
            out.set_(key, torch.as_tensor(value))
        elif target is not value:
            target.copy_(torch.as_tensor(value))
    return out


def _is_held(out: Any, key: Any, target: torch.Tensor) -> bool:
    """Whether `out` holds a tensor; lazy stacks, parts by index and stores make a new one for each ``get``."""
    again = out.get(key)
    return again is target or again.data_ptr() == target.data_ptr()


def _target(out: Any, key: Any, shape: torch.Size, dtype: torch.dtype | None) -> torch.Tensor:
    target = out.get(key, None)
    if isinstance(target, torch.Tensor) and target.shape == shape and target.dtype == dtype:
        if target.layout == torch.strided and not are_apart(target.stride(), shape, 1):
            raise ValueError(
                f"out: elements of the tensor at {_shown(key)!r} share their memory, it was expanded or unfolded; clone it "
                f"first"
            )
        if target.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"out: the tensor at {_shown(key)!r} requires grad; pass out.detach(), which shares its memory"
            )
        return target
    found = "nothing" if target is None else type(target).__name__
    if isinstance(target, torch.Tensor):
        found = f"{target.dtype} {list(target.shape)}"
    raise ValueError(f"out: expected {dtype} {list(shape)} at {_shown(key)!r}, found {found}")


def _shown(key: Any) -> Any:
    return key[0] if isinstance(key, tuple) and len(key) == 1 else key
