"""Windows along several dims: where they lie, and the boxes of a store that are read for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from ..tensors.reading import of_variable
from ..tensors.values import from_codes, to_codes
from .kept import Claim, Grid, Values
from .order import Ints
from .reader import Column, Part, Request, RowReader

Array: TypeAlias = "np.ndarray[Any, Any]"

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
    dtype
        That of the tensor they become, whose codes they are; None where they become none.
    box
        Which of them each patch is in.
    inside
        Where each patch begins in its box, along the axes that the entry has.
    widths
        The sizes of a patch along all axes.
    """

    column: Column
    boxes: list[Array]
    dtype: torch.dtype | None
    box: Ints
    inside: list[Ints]
    widths: tuple[int, ...]

    def pick(self, first: int, last: int) -> Values:
        """The values of some of the rows of all patches, in memory of their own; an entry that lacks an axis is repeated."""
        each, held = math.prod(self.widths), self.column.held
        patches = range(first // each, last // each)
        along = [self.widths[axis] if axis in held else 1 for axis in range(len(self.widths))]
        features = self.boxes[0].shape[len(held) :]
        found = np.empty((len(patches), *self.widths, *features), self.boxes[0].dtype)
        for place, patch in enumerate(patches):
            begins = [int(starts[patch]) for starts in self.inside]
            key = tuple(slice(begin, begin + self.widths[axis]) for begin, axis in zip(begins, held, strict=True))
            found[place] = self.boxes[self.box[patch]][key].reshape(*along, *features)
        flat = found.reshape((-1, *features))
        return flat if self.dtype is None else from_codes(flat, self.dtype)


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
    held = {
        column.held: _Boxes.over([(corners[axis], widths[axis]) for axis in column.held]) for column in reader.columns
    }

    def plan(claims: list[Claim]) -> list[Request]:
        return [_request(reader, number, held[column.held], claims) for number, column in enumerate(reader.columns)]

    parts: list[PatchPart | Part] = []
    for grid, (each, arrays) in zip(reader.grids, reader.fetch(plan), strict=True):
        column, boxes = each.column, held[each.column.held]
        if not column.held:
            parts.append(reader.part(each, arrays))
            continue
        dtype = arrays[0].dtype if isinstance(arrays[0], torch.Tensor) else None
        codes = [to_codes(values) if isinstance(values, torch.Tensor) else values for values in arrays]
        if grid is None or each.claim is None:
            shaped = [
                rows.reshape((*_shape(key), *rows.shape[1:])) for key, rows in zip(boxes.keys, codes, strict=True)
            ]
        else:
            shaped = [_from_chunks(grid, key, boxes.chunks(grid), each.claim, codes) for key in boxes.keys]
        parts.append(PatchPart(column, shaped, dtype, boxes.number, boxes.inside, widths))
    return parts


def _request(reader: RowReader, number: int, boxes: _Boxes, claims: list[Claim]) -> Request:
    """What to read of an entry: the chunks that its boxes lie in, where these are kept, else its boxes."""
    column, grid = reader.columns[number], reader.grids[number]
    if not column.held:
        nothing = np.empty(0, np.int64)
        return reader.request(number, nothing, nothing, None, claims)
    if grid is None:
        jobs = [of_variable(column.entry.variable[key], column.entry.name, far=column.is_far) for key in boxes.keys]
        return Request(column, [[job] for job in jobs], None)
    claim, reads = reader.claim(number, grid, boxes.chunks(grid), claims)
    return Request(column, reads, None, claim=claim)


def _from_chunks(grid: Grid, key: tuple[slice, ...], chunks: Ints, claim: Claim, arrays: list[Array]) -> Array:
    """A box, from the chunks that it lies in."""
    box = np.empty((*_shape(key), *arrays[0].shape[1:]), arrays[0].dtype)
    numbers = grid.overlapping(key)
    for place, chunk in zip(np.searchsorted(chunks, numbers), grid.slices(numbers), strict=True):
        first, rows = int(claim.first[place]), arrays[claim.which[place]]
        values = rows[first : first + math.prod(_shape(chunk))].reshape((*_shape(chunk), *rows.shape[1:]))
        both = [(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(key, chunk, strict=True)]
        into, out_of = (
            tuple(slice(low - along.start, high - along.start) for (low, high), along in zip(both, whole, strict=True))
            for whole in (key, chunk)
        )
        box[into] = values[out_of]
    return box


def _shape(key: tuple[slice, ...]) -> tuple[int, ...]:
    return tuple(along.stop - along.start for along in key)


@dataclass(frozen=True)
class _Boxes:
    """Boxes that hold patches: their slices, the number of that of each patch, and where it begins in there."""

    keys: list[tuple[slice, ...]]
    number: Ints
    inside: list[Ints]

    def chunks(self, grid: Grid) -> Ints:
        """The chunks that they lie in."""
        return np.unique(np.concatenate([grid.overlapping(key) for key in self.keys]))

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
