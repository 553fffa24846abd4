"""Windows along several dims: where they lie, and the boxes of a store that are read for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..core.model import cached_property
from ..tensors.reading import of_variable, read_all
from ..tensors.values import from_codes, to_codes
from .kept import Values
from .order import Ints
from .reader import Column, Part, RowReader, blame

_WASTE = 4
"""Patches are read as one box unless it holds more than this many times what they need."""


@dataclass(frozen=True)
class PatchPart:
    """What was read of one entry, patches one behind the other.

    Attributes
    ----------
    column
        The entry.
    boxes
        What was read, each box with the axes of the entry.
    box
        Which of them each patch is in.
    inside
        Where each patch begins in its box, along the axes that the entry has.
    widths
        The sizes of a patch along all axes.
    """

    column: Column
    boxes: list[Values]
    box: Ints
    inside: list[Ints]
    widths: tuple[int, ...]

    def pick(self, first: int, last: int) -> Values:
        """The values of some of the rows of all patches, in memory of their own; an entry that lacks an axis is repeated."""
        each, held = math.prod(self.widths), self.column.held
        patches = range(first // each, last // each)
        along = [self.widths[axis] if axis in held else 1 for axis in range(len(self.widths))]
        features = self._codes[0].shape[len(held) :]
        found = np.empty((len(patches), *self.widths, *features), self._codes[0].dtype)
        for place, patch in enumerate(patches):
            begins = [int(starts[patch]) for starts in self.inside]
            key = tuple(slice(begin, begin + self.widths[axis]) for begin, axis in zip(begins, held, strict=True))
            found[place] = self._codes[self.box[patch]][key].reshape(*along, *features)
        flat = found.reshape((-1, *features))
        return from_codes(flat, self.boxes[0].dtype) if isinstance(self.boxes[0], torch.Tensor) else flat

    @cached_property
    def _codes(self) -> list[np.ndarray[Any, Any]]:
        return [to_codes(values) if isinstance(values, torch.Tensor) else values for values in self.boxes]


def read_patches(reader: RowReader, corners: Sequence[Ints], widths: tuple[int, ...]) -> list[PatchPart | Part]:
    """Read patches, those that lie together as one box.

    Parameters
    ----------
    reader
        What they are read with.
    corners
        For each axis that rows are counted through, where each patch begins.
    widths
        Their sizes along these axes.
    """
    whole: Sequence[Part | None] = [None] * len(reader.columns)
    if not all(column.held for column in reader.columns):
        whole = reader.read(np.empty(0, np.int64))
    held = {
        column.held: _Boxes.over([(corners[axis], widths[axis]) for axis in column.held]) for column in reader.columns
    }
    jobs = [
        of_variable(column.entry.variable[key], column.entry.name, far=column.is_far)
        for column in reader.columns
        if column.held
        for key in held[column.held].keys
    ]
    try:
        read = iter(read_all(jobs))
    except Exception as error:
        blame(error, jobs)
        raise
    parts: list[PatchPart | Part] = []
    for column, part in zip(reader.columns, whole, strict=True):
        boxes = held[column.held]
        if part is not None and not column.held:
            parts.append(part)
            continue
        values = [column.tensor([next(read)]) for _ in boxes.keys]
        shaped = [v.reshape((*boxes.shape(n), *v.shape[1:])) for n, v in enumerate(values)]
        parts.append(PatchPart(column, shaped, boxes.number, boxes.inside, widths))
    return parts


@dataclass(frozen=True)
class _Boxes:
    """Boxes that hold patches: their slices, the number of that of each patch, and where it begins in there."""

    keys: list[tuple[slice, ...]]
    number: Ints
    inside: list[Ints]

    def shape(self, number: int) -> tuple[int, ...]:
        return tuple(along.stop - along.start for along in self.keys[number])

    @classmethod
    def over(cls, sides: Sequence[tuple[Ints, int]]) -> _Boxes:
        if not sides:
            return cls([], np.empty(0, np.int64), [])
        starts, widths = [side[0] for side in sides], [side[1] for side in sides]
        number, inside = np.empty(len(starts[0]), np.int64), [begin.copy() for begin in starts]
        keys: list[tuple[slice, ...]] = []
        for group in cover(starts, widths):
            lows = [int(begin[group].min()) for begin in starts]
            highs = [int(begin[group].max()) + width for begin, width in zip(starts, widths, strict=True)]
            for along, low in zip(inside, lows, strict=True):
                along[group] -= low
            number[group] = len(keys)
            keys.append(tuple(map(slice, lows, highs)))
        return cls(keys, number, inside)


def cover(starts: Sequence[Ints], widths: Sequence[int]) -> list[Ints]:
    """Patches that lie together: groups whose common box holds at most so many times their cells.

    Examples
    --------
    >>> [group.tolist() for group in cover([np.array([0, 2, 90, 94])], [3])]
    [[0, 1], [2, 3]]
    """
    todo, found = [np.arange(len(starts[0]))], []
    while todo:
        group = todo.pop()
        here = [begin[group] for begin in starts]
        spans = [int(begin.max() - begin.min()) + width for begin, width in zip(here, widths, strict=True)]
        distinct = len(np.unique(np.stack(here), axis=1).T)
        if math.prod(spans) <= _WASTE * distinct * math.prod(widths):
            found.append(group)
            continue
        ordered = [np.sort(begin) for begin in here]
        gaps = [int(np.diff(begin).max(initial=0)) - width for begin, width in zip(ordered, widths, strict=True)]
        axis = int(np.argmax(gaps))
        if gaps[axis] > 0:
            cut = ordered[axis][np.diff(ordered[axis]).argmax() + 1]
        else:  # nowhere is a gap: halve the longest side
            axis = int(np.argmax([span / width for span, width in zip(spans, widths, strict=True)]))
            cut = ordered[axis][0] + (spans[axis] - widths[axis] + 1) // 2
        behind = here[axis] >= cut
        todo += [group[behind], group[~behind]]
    return sorted(found, key=lambda group: int(group[0]))
