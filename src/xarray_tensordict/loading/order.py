"""In which order the samples of a Dataset come, epoch by epoch and rank by rank. Pure: numpy and nothing else.

A *sample* is a row or a window, known by its number. An order says which sample stands at which position, and where
it is best *cut*: the samples between two cuts are read together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from ..core.model import cached_property

Ints: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Shuffle: TypeAlias = "bool | Literal['full']"

BUFFER_ROWS = 10_000
"""How many samples are shuffled together by default: that of torch's own ``Shuffler``."""
BUFFER_BYTES = 1 << 28
"""The default buffer holds no more than this many bytes, unless one chunk does."""
BLOCK_BYTES = 1 << 17
"""Smaller chunks are shuffled in blocks of about this size: what Linux reads ahead of one request."""
READ_BYTES = 1 << 22
"""Small batches are read together, about this many bytes at once, so that the cost of a call does not count."""
RAW_BYTES = 1 << 20
"""The same for raw layouts, whose batches are copied from what was read, which had better be in the cache of the processor."""
WHOLE_BYTES = 1 << 25
"""Several chunks are read at once as long as they take no more than this."""
_TWICE = 2
"""How many samples of each block there have to be in a buffer, on average, that to read a whole buffer repays."""
HAND_BYTES = 1 << 20
"""Small batches are made ahead, and handed over, several at once: about this many bytes of them may wait."""
MIXED = 1 << 17
"""How well an epoch is mixed is computed from so many of its first samples."""
HAND_MOST = 256
"""No more batches than this wait for that reason."""


class Order(Protocol):
    """The samples of one epoch, of one rank."""

    cuts: Ints
    """Ascending positions behind the last sample of each read; the last is the number of samples."""

    def samples(self, first: int, last: int) -> Ints:
        """The numbers of the samples at the positions `first` to `last`, the last excluded."""


@dataclass(frozen=True)
class Options:
    """The checked arguments of ``batches``."""

    batch_size: int
    shuffle: Shuffle = False
    seed: int = 0
    drop_last: bool = False
    prefetch: int = 2
    rank: int = 0
    world_size: int = 1
    device: Any = None


@dataclass
class Place:
    """How far one worker has come in an epoch. With seed and sizes it says all that is needed to go on from there.

    Attributes
    ----------
    epoch
        The number of the epoch.
    position
        How many of its batches were handed over.
    worker, workers
        Which worker it is, of how many that hand over one batch each in turn.
    """

    epoch: int
    position: int = 0
    worker: int = 0
    workers: int = 1

    @classmethod
    def behind(cls, start: int, epoch: int, worker: int = 0, workers: int = 1) -> Place:
        """Where a worker goes on behind the first `start` batches of all. The one whose turn it is becomes the first.

        Examples
        --------
        >>> [Place.behind(5, 0, worker, 2).numbers(8, runs=False) for worker in range(2)]
        [range(5, 9, 2), range(6, 8, 2)]
        """
        worker = (worker + start) % workers
        return cls(epoch, -((worker - start) // workers), worker, workers)

    def numbers(self, count: int, *, runs: bool) -> range:
        """The batches that are still to come, of `count` in an epoch.

        With `runs` each worker has consecutive ones, else every `workers`-th. Those who have one more come first, so that the
        turns are the same for both.

        Examples
        --------
        >>> [Place(0, 1, worker, 2).numbers(7, runs=True) for worker in range(2)]
        [range(1, 4), range(5, 7)]
        """
        if not runs:
            return range(self.worker, count, self.workers)[self.position :]
        each, longer = divmod(count, self.workers)
        first = self.worker * each + min(self.worker, longer)
        return range(first, first + each + (self.worker < longer))[self.position :]


def share(count: int, rank: int, world_size: int) -> tuple[int, int]:
    """The positions of a rank: equally many for each, so that up to ``world_size - 1`` at the end belong to none."""
    each = count // world_size
    return rank * each, (rank + 1) * each


class FullOrder:
    """Any permutation of all samples, each as likely as any other.

    Parameters
    ----------
    count
        The number of samples.
    entropy
        Seed and epoch: the order depends on them and on `count`.
    first, last
        The positions that belong to the rank.
    together
        How many samples are read at once.
    """

    def __init__(self, count: int, entropy: Sequence[int], first: int, last: int, together: int) -> None:
        self._order = np.random.default_rng(list(entropy)).permutation(count)[first:last]
        self.cuts = every(together, last - first)

    def samples(self, first: int, last: int) -> Ints:
        return self._order[first:last]


class BlockOrder:
    """Blocks of consecutive samples, in the given order; with `entropy` the samples of a buffer of blocks are mixed.

    Parameters
    ----------
    starts, stops
        The first sample of each block, and the one behind its last.
    buffer
        A buffer is filled with whole blocks until it holds this many samples, or is as full as whole blocks allow.
    entropy
        What the order within the buffers depends on; None keeps it.
    """

    def __init__(self, starts: Ints, stops: Ints, buffer: int, entropy: Sequence[int] | None = None) -> None:
        kept = stops > starts
        self._starts, self._stops = starts[kept], stops[kept]
        self._entropy = entropy
        ends = np.cumsum(self._stops - self._starts)
        number = (ends - (self._stops - self._starts)) // buffer
        self._first_blocks = np.flatnonzero(np.diff(number, prepend=-1))
        self._ends: Ints = np.append(ends[self._first_blocks[1:] - 1], ends[-1:])
        self.cuts = self._ends
        self._held: tuple[int, Ints] | None = None

    def samples(self, first: int, last: int) -> Ints:
        if self._entropy is None:  # the blocks follow each other
            return np.arange(first, min(last, self._ends.max(initial=0))) + self._starts[:1]
        found = [np.empty(0, np.int64)]
        begin = int(np.searchsorted(self._ends, first, "right"))
        end = int(np.searchsorted(self._ends, last, "left"))
        for buffer in range(begin, min(end + 1, len(self._ends))):
            offset = int(self._ends[buffer - 1]) if buffer else 0
            found.append(self._buffer(buffer, self._entropy)[max(first - offset, 0) : last - offset])
        return np.concatenate(found)

    def _buffer(self, number: int, entropy: Sequence[int]) -> Ints:
        """The samples of one buffer; the last one asked for is kept."""
        held = self._held  # read once: other threads may ask, too
        if held is None or held[0] != number:
            blocks = slice(*[*self._first_blocks, len(self._starts)][number : number + 2])
            samples = ranges(self._starts[blocks], self._stops[blocks])
            held = self._held = number, np.random.default_rng([*entropy, number]).permutation(samples)
        return held[1]


@dataclass(frozen=True)
class Blocks:
    """Blocks of consecutive samples, which are best read as a whole.

    Attributes
    ----------
    marks
        The first sample of each block, and the number of all samples at the end.
    buffer
        How many samples are shuffled together, or read together where nothing is shuffled.
    read_whole
        Whether a block is cheaper to read as a whole than row by row.
    """

    marks: Ints
    buffer: int
    read_whole: bool = True

    @property
    def repay_buffer(self) -> bool:
        """Whether to read a buffer of samples at once, which lie anywhere, reads blocks less often than batch by batch."""
        return self.read_whole and self.buffer >= _TWICE * (len(self.marks) - 1)

    @cached_property
    def count(self) -> int:
        """How many samples there are."""
        return int(self.marks[-1])

    def order(self, entropy: Sequence[int] | None, rank: int, world_size: int) -> BlockOrder:
        """The order of a rank: the blocks as they come, or with `entropy` shuffled, and mixed within each buffer.

        The ranks share out the shuffled blocks; a block at the border of two is cut.
        """
        starts, stops = self.marks[:-1], self.marks[1:]
        if entropy is not None:
            shuffled = np.random.default_rng(list(entropy)).permutation(len(starts))
            starts, stops = starts[shuffled], stops[shuffled]
        first, last = share(self.count, rank, world_size)
        begins = np.cumsum(stops - starts) - (stops - starts)
        inside = np.clip(first - begins, 0, stops - starts), np.clip(last - begins, 0, stops - starts)
        mixed = None if entropy is None else [*entropy, rank]
        return BlockOrder(starts + inside[0], starts + inside[1], self.buffer, mixed)


def merge_marks(marks: Ints, target: int) -> Ints:
    """Merge small neighbouring blocks into blocks of at most about `target` samples; none is cut.

    Examples
    --------
    >>> merge_marks(np.array([0, 2, 4, 6, 8, 20, 21]), 5).tolist()
    [0, 6, 20, 21]
    """
    if len(marks) < 3:
        return marks
    number = marks[:-1] // max(target, 1)
    return np.append(marks[:-1][np.diff(number, prepend=-1) != 0], marks[-1])


def common_marks(marks: Sequence[tuple[Ints, int]], limit: int) -> Ints | None:
    """Where all of several variables have the border of a chunk.

    Parameters
    ----------
    marks
        For each variable the borders of its chunks, 0 and the number of rows included, and how many bytes it holds.
    limit
        Where the common blocks would be larger than this, the borders of the variable with most bytes are taken.

    Returns
    -------
    ndarray or None
        None where no variable is chunked.

    Examples
    --------
    >>> common_marks([(np.array([0, 2, 4, 6, 8]), 10), (np.array([0, 4, 8]), 1)], 4).tolist()
    [0, 4, 8]
    >>> common_marks([(np.array([0, 3, 6, 8]), 10), (np.array([0, 4, 8]), 1)], 4).tolist()
    [0, 3, 6, 8]
    """
    if not marks:
        return None
    common = marks[0][0]
    for found, _ in marks[1:]:
        common = np.intersect1d(common, found)
    largest = max(marks, key=lambda pair: pair[1])[0]
    return common if np.max(np.diff(common), initial=0) <= limit else largest


def mixing(samples: Ints, count: int) -> float:
    """How well an order mixes: the mean distance of samples that follow each other, by that of all permutations of `count`.

    Examples
    --------
    >>> mixing(np.array([0, 1, 2, 3, 4]), 5), mixing(np.array([4, 0, 3, 1, 2]), 5)
    (0.5, 1.0)
    """
    if len(samples) < 2:
        return 1.0
    return min(1.0, float(np.abs(np.diff(samples)).mean()) / ((count + 1) / 3))


def every(step: int, count: int) -> Ints:
    """The numbers `step`, ``2 * step``, ... up to `count`, which is always there.

    Examples
    --------
    >>> every(4, 10).tolist()
    [4, 8, 10]
    """
    return np.append(np.arange(step, count, step, dtype=np.int64), count)


def ranges(starts: Ints, stops: Ints) -> Ints:
    """Several ranges one behind the other.

    Examples
    --------
    >>> ranges(np.array([5, 0]), np.array([7, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    lengths = stops - starts
    total = int(lengths.sum())
    found: Ints = np.arange(total, dtype=np.int64) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    return found


def reads(cuts: Ints, size: int, numbers: range) -> Iterator[tuple[Ints, Ints]]:
    """For each read that some batches need, the first positions of the parts of batches in it, and their ends.

    Parameters
    ----------
    cuts
        Where the reads end; the last is the number of samples.
    size
        How many samples a batch has.
    numbers
        The batches.

    Examples
    --------
    >>> [(first.tolist(), last.tolist()) for first, last in reads(np.array([4, 10]), 3, range(0, 4))]
    [([0, 3], [3, 4]), ([4, 6, 9], [6, 9, 10])]
    """
    if not numbers:
        return
    number = int(np.searchsorted(cuts, numbers[0] * size, "right"))
    begin = int(cuts[number - 1]) if number else 0
    for end in cuts[number:].tolist():
        lo = max(0, -((numbers.start - begin // size) // numbers.step))
        here = numbers[lo : max(0, ((end - 1) // size - numbers.start) // numbers.step + 1)]
        if here:
            edges = np.arange(here.start, here.stop, here.step, dtype=np.int64) * size
            yield np.maximum(edges, begin), np.minimum(edges + size, end)
        if (numbers[-1] + 1) * size <= end:
            return
        begin = end
