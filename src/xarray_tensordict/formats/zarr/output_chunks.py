"""The chunks of a new zarr array where nobody asks for any: rows along the batch, as training reads them.

The rule: the other dims are whole (or as dask has cut them, since putting them together would hold all of the batch in
memory); along the batch a chunk holds about :data:`CHUNK_BYTES`, also where there are no rows yet. Where dask holds the
values, its blocks are cut evenly, so that each is written by itself. What the caller asks for is kept, also where it is more
than there is: a store that is appended to keeps the chunks of its first write.

Where the constants come from: Zarr's guide advises chunks of at least 1 MB (zarr.readthedocs.io, "Optimizing
performance"). Measured with rows of 16 KiB and zstd on a local disk, chunks of 0.25, 1, 4, 16 and 64 MiB: one random row
takes 3, 3, 12, 25 and 310 ms; batches of 512 consecutive rows come at 190, 730, 340, 330 and 20 MB/s.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import xarray as xr

from ...core.blocks import row_blocks

CHUNK_BYTES = 1 << 20
"""The size of a chunk before compression."""
ROW_BYTES = 64 << 20
"""A row larger than this is cut, too: codecs take no more than 2 GiB."""
_TEXT_BYTES = 32  # what a string is taken to be long


def default_chunks(
    variable: xr.Variable, batch_dims: Collection[str], fixed: Mapping[str, int] | None = None
) -> tuple[int, ...]:
    """The chunks of a new array.

    Parameters
    ----------
    variable
        Its values.
    batch_dims
        The dims of the batch; of a variable without any the first dim counts as such.
    fixed
        Sizes that the caller asks for, which may be larger than the dim; -1 is the whole dim.

    Examples
    --------
    >>> import numpy as np
    >>> default_chunks(xr.Variable(("time", "y", "x"), np.zeros((1000, 64, 64), "f4")), ["time"])
    (64, 64, 64)
    """
    fixed = fixed or {}
    dims = [str(dim) for dim in variable.dims]
    sizes = [max(1, size) for size in variable.shape]
    blocks = [max(1, *parts) for parts in variable.chunks] if variable.chunks is not None else list(sizes)
    itemsize = variable.dtype.itemsize if variable.dtype.kind not in "OT" else _TEXT_BYTES
    rows = [axis for axis, dim in enumerate(dims) if dim in batch_dims] or [0][: len(dims)]
    features = [axis for axis in range(len(dims)) if axis not in rows]
    found = [
        size if fixed.get(dim) == -1 else fixed.get(dim, min(block, size))
        for dim, size, block in zip(dims, sizes, blocks, strict=True)
    ]
    free = [axis for axis in features if dims[axis] not in fixed]
    if itemsize * math.prod(found[axis] for axis in features) > ROW_BYTES and free:
        others = itemsize * math.prod(found[axis] for axis in features if axis not in free)
        cut = row_blocks([found[axis] for axis in free], others, ROW_BYTES)
        for axis, size in zip(free, cut, strict=True):
            found[axis] = size
    inner = itemsize * math.prod(found[axis] for axis in features)
    for position, axis in enumerate(rows):
        if dims[axis] in fixed:
            continue
        behind = inner * math.prod(found[later] for later in rows[position + 1 :])
        in_front = math.prod(found[earlier] for earlier in rows[:position])
        most = max(1, CHUNK_BYTES // (behind * in_front))
        if not variable.shape[axis]:  # rows come with an append
            found[axis] = most
        else:
            found[axis] = (
                min(most, sizes[axis]) if variable.chunks is None else _even(min(blocks[axis], sizes[axis]), most)
            )
    return tuple(found)


def _even(block: int, most: int) -> int:
    """The largest part of a block that is at most `most` long and cuts it evenly; `most` where that is far smaller."""
    if block <= most:
        return block
    even = next((part for part in range(most, most // 2, -1) if block % part == 0), None)
    return most if even is None else even
