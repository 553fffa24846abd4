"""How many samples are read and shuffled together: from the chunks of the entries, and their sizes."""

from __future__ import annotations

import numpy as np

from ..formats.raw.files import THREADS
from .chunks import block_of, changes, chunk_marks
from .order import (
    BLOCK_BYTES,
    BUFFER_BYTES,
    BUFFER_ROWS,
    READ_BYTES,
    WHOLE_BYTES,
    Blocks,
    Ints,
    common_marks,
    every,
    merge_marks,
)
from .reading import RowReader
from .samples import Samples

__all__ = ["READ_BYTES", "plan_blocks"]


def plan_blocks(
    reader: RowReader, samples: Samples, batch_size: int, *, shuffle: bool, buffer: int | None = None
) -> Blocks:
    """Plan the blocks of samples that are read as a whole, and shuffled.

    Parameters
    ----------
    reader, samples
        What is read.
    batch_size
        How many samples make a batch.
    shuffle
        Whether the samples of a buffer are shuffled, or only read together.
    buffer
        How many samples; by default it goes by their size.
    """
    sample_bytes = max(1, samples.width * reader.row_bytes)
    if not shuffle:
        buffer = max(1, READ_BYTES // sample_bytes)
    elif buffer is None:
        buffer = max(min(BUFFER_ROWS, BUFFER_BYTES // sample_bytes), batch_size)
    target = max(1, min(BLOCK_BYTES // sample_bytes, buffer // 16))
    marks = _marks(reader, samples, buffer)
    if not shuffle and marks is not None:
        # several chunks, which are decoded at the same time
        largest = int(np.diff(marks).max(initial=0))
        buffer = max(buffer, min(THREADS * largest, WHOLE_BYTES // sample_bytes))
    count = len(samples)
    if marks is None:
        marks = np.append(0, every(target, count)) if count else np.zeros(1, np.int64)
        # what is not chunked is read row by row: a block is in the cache of the system when its first row was read
        return Blocks(marks, buffer, read_whole=False)
    return Blocks(merge_marks(marks, target), buffer)


def _marks(reader: RowReader, samples: Samples, buffer: int) -> Ints | None:
    """The first sample of each run of samples that begin in the same chunk; None where nothing is chunked."""
    last = len(samples.sizes) - 1
    limit = max(1, buffer * samples.width)
    first = _axis_marks(reader, 0, limit)
    if samples.windows is None or not len(samples):
        return first
    along = first if not last else _axis_marks(reader, last, limit)
    if first is None and along is None:
        return None
    coords = np.unravel_index(samples.windows.first, samples.sizes)
    return changes(block_of(coords[0], first), block_of(coords[last], along))


def _axis_marks(reader: RowReader, axis: int, limit: int) -> Ints | None:
    found = []
    for member in reader.members:
        if axis in member.held:
            marks = chunk_marks(member.entry.variable, member.held.index(axis))
            if marks is not None:
                found.append((marks, member.row_bytes))
    return common_marks(found, limit)
