"""Lazy arrays over the files of memory-mapped tensordicts; every read gives a copy of what was selected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xarray.backends.common import BackendArray
from xarray.core import indexing

from ..array_wrappers import FLOAT_CODES, read_outer

PLAIN_DTYPES = frozenset(
    "bool uint8 int8 int16 int32 int64 float16 float32 float64 complex64 complex128 uint16 uint32 uint64".split()
)
CODE_DTYPES = {**FLOAT_CODES, "complex32": "uint32"}
"""Dtypes of torch that numpy lacks, and the integers of the same width."""


class StackedArray(BackendArray):
    """Arrays of one shape and dtype, stacked along a new axis; only the members that are selected are read."""

    def __init__(self, members: Sequence[Any], axis: int) -> None:
        self._members = list(members)
        self._axis = axis
        shape = tuple(members[0].shape)
        self.dtype = np.dtype(members[0].dtype)
        self.shape = (*shape[:axis], len(self._members), *shape[axis:])

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> Any:
        which, rest = key[self._axis], (*key[: self._axis], *key[self._axis + 1 :])
        if isinstance(which, int | np.integer):
            return read_outer(self._members[int(which)], rest)
        numbers = range(len(self._members))[which] if isinstance(which, slice) else [int(number) for number in which]
        if not numbers:
            one = read_outer(self._members[0], rest)
            return np.empty((*one.shape[: self._place(key)], 0, *one.shape[self._place(key) :]), self.dtype)
        return np.stack([read_outer(self._members[number], rest) for number in numbers], axis=self._place(key))

    def _place(self, key: tuple[Any, ...]) -> int:
        return sum(not isinstance(part, int | np.integer) for part in key[: self._axis])
