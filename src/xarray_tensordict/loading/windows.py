"""Windows of equal length along one dim that never cross from one episode to the next. Pure: numpy and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .order import Ints


@dataclass(frozen=True)
class Windows:
    """The windows of a table of ``[lead, time]``, in its order.

    Attributes
    ----------
    first
        The first row of each window, counted through the flattened table.
    width
        How many rows each window has.
    episodes, skipped
        How many episodes there are, and how many of them are shorter than a window.
    longest
        How many rows the longest episode has.
    """

    first: Ints
    width: int
    episodes: int
    skipped: int
    longest: int

    def __len__(self) -> int:
        return len(self.first)


def find_windows(
    shape: tuple[int, int], width: int, stride: int, episodes: np.ndarray[Any, Any] | None = None
) -> Windows:
    """Find the windows that start at every `stride`-th row of each episode and end in it.

    Parameters
    ----------
    shape
        How many tables there are, and how many rows each of them has.
    width, stride
        Rows of a window, and from the start of one to that of the next.
    episodes
        An array of `shape`: an episode is a run of equal values (NaN equals NaN), so that a value which comes back
        later is another episode. None: each table is one episode.

    Examples
    --------
    >>> find_windows((1, 7), 2, 1, np.array([[0, 0, 0, 1, 0, 0, 0]])).first.tolist()
    [0, 1, 4, 5]
    """
    tables, rows = shape
    begins = np.arange(tables, dtype=np.int64) * rows
    if episodes is not None and rows:
        changed = _differs(episodes[:, 1:], episodes[:, :-1])
        begins = np.flatnonzero(np.concatenate([np.ones((tables, 1), bool), changed], axis=1))
    if not rows:
        begins = begins[:0]
    lengths = np.diff(begins, append=tables * rows)
    counts = np.maximum((lengths - width) // stride + 1, 0)
    within = np.arange(counts.sum(), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    first = np.repeat(begins, counts) + within * stride
    return Windows(first, width, len(begins), int((lengths < width).sum()), int(lengths.max(initial=0)))


def _differs(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    differs = np.asarray(a != b, dtype=bool)
    if a.dtype.kind in "fc":
        differs &= ~(np.asarray(a != a, dtype=bool) & np.asarray(b != b, dtype=bool))
    elif a.dtype.kind in "mM":
        differs &= ~(np.isnat(a) & np.isnat(b))
    return differs
