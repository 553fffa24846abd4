"""Variables that are read block by block into one tensor, so that what their decoding takes is that of a few blocks.

Blocks go along the chunks of the store, so that each chunk is read once. One that is larger than a block is kept, as it is
stored, while its parts are decoded.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr

from .._compat.xarray import backend_array, is_bare, on_backend, read, stored_place
from ..core.blocks import borders, merged_chunks, row_blocks
from ..formats.pieces import HeldPiece, is_far, pieces_of
from ..formats.raw.files import THREADS, reuse_memory
from .values import tensor_from_numpy, torch_dtype

BLOCK_BYTES = 4 << 20
"""How many bytes are decoded at once (measured, 105 MB of packed int16: with 1 MiB xarray's own work begins to show)."""
_CORES = os.cpu_count() or 1
FAR_THREADS = 10
"""How many blocks of a store far away are waited for at once: as many as zarr asks for."""
_TOGETHER = 32 << 20
"""How many bytes of chunks are decompressed at once, at most, where a chunk is not larger."""

Key = tuple[slice, ...]


@dataclass
class BlocksRead:
    """One read of a variable into a tensor.

    Attributes
    ----------
    variable
        What is read; nothing of it has been loaded.
    name
        How messages call it.
    tensor
        Of its shape; is filled.
    widened_from
        The dtype its values have in a tensordict where numpy has no such dtype.
    grid
        The blocks that can be read at the same time.
    threads
        How many of them at most.
    """

    variable: xr.Variable
    name: str
    tensor: torch.Tensor
    widened_from: torch.dtype | None
    grid: list[Key]
    threads: int
    _differs: bool = field(default=False, init=False)

    @property
    def nbytes(self) -> int:
        """How many bytes it reads, about."""
        return int(self.variable.nbytes)

    @property
    def tasks(self) -> list[Callable[[], None]]:
        """What has to be done, in any order and at the same time."""
        return [partial(self._fill, key) for key in self.grid]

    def finish(self) -> torch.Tensor | np.ndarray[Any, Any]:
        """The tensor; the values as they are where a block has another dtype than the variable promises."""
        return read(self.variable) if self._differs else self.tensor

    def _fill(self, key: Key) -> None:
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
        for block in blocks:
            if not self._put(target[block], read(part[block])):
                self._differs = True
                return

    def _put(self, target: torch.Tensor, array: np.ndarray[Any, Any]) -> bool:
        if tuple(target.shape) != array.shape:
            return False
        if self.widened_from is None and array.dtype.kind in "biufc" and _is_plain(target):
            if torch_dtype(array.dtype) != target.dtype:
                return False
            target.numpy()[...] = array  # torch would start threads of its own
            return True
        try:
            tensor = tensor_from_numpy(array, name=self.name, torch_dtype=self.widened_from)
        except (OverflowError, TypeError, ValueError):
            return False  # whoever takes the values as they are tells why
        if tensor.dtype != target.dtype:
            return False
        target.copy_(tensor)
        return True


def blocks_read(
    variable: xr.Variable, name: str, widened_from: torch.dtype | str | None = None, target: torch.Tensor | None = None
) -> BlocksRead | None:
    """What reads a variable block by block; None where that takes no less memory than to read it at once.

    Parameters
    ----------
    variable
        The variable.
    name
        How messages call it.
    widened_from
        The dtype its values have in a tensordict where numpy has no such dtype.
    target
        A tensor of its shape and of the dtype of its values that is filled; None for a new one.
    """
    backend = backend_array(variable)
    widened = getattr(torch, widened_from) if isinstance(widened_from, str) else widened_from
    dtype = widened or torch_dtype(variable.dtype)
    if backend is None or dtype is None or variable.nbytes <= BLOCK_BYTES:
        return None
    pieces, far = pieces_of(backend), is_far(backend)
    piece = 0 if pieces is None else math.prod(pieces) * variable.dtype.itemsize
    plain = widened is None and is_bare(variable) and variable.dtype.isnative and variable.dtype.kind in "biufc"
    if plain and target is None and (far or piece < BLOCK_BYTES):
        return None  # what reads it takes little more than the result
    grid = _grid(variable, pieces)
    if plain and target is None and len(grid) == 1:
        return None
    tensor = _empty(variable.shape, dtype) if target is None else target
    # more threads than cores would decode no faster, and each holds blocks
    threads = FAR_THREADS if far else max(1, min(THREADS, _CORES, _TOGETHER // max(piece, 1)))
    reuse_memory()
    return BlocksRead(variable, name, tensor, widened, grid, threads)


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor in memory of numpy, which asks for large pages (measured: 420 MB, 0.1 s less to fault them in)."""
    size = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.empty(size, np.uint8)).view(dtype).view(shape)


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor.device.type == "cpu" and not tensor.requires_grad


def _grid(variable: xr.Variable, pieces: tuple[int, ...] | None) -> list[Key]:
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


def _split(shape: Sequence[int], block: Sequence[int]) -> itertools.product[Key]:
    if not math.prod(shape):
        return itertools.product()
    return itertools.product(
        *(
            [slice(first, min(first + step, size)) for first in range(0, size, step)]
            for size, step in zip(shape, block, strict=True)
        )
    )
