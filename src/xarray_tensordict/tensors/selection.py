"""An index as torch reads it, split into what has to be read from a store and what is then picked in memory.

Pure: it knows neither stores nor tensordicts. A store reads ranges, or sorted positions along each axis, well; torch's
indices may be unsorted, hold duplicates, negative numbers, masks over several axes. So each index becomes an *outer*
index (a slice or sorted unique positions for each axis) and a *local* one, of the block that was read, such that
``array[outer][local]`` is ``array[index]``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from ..core.model import cached_property

Item: TypeAlias = "bool | int | slice | torch.Tensor | None"
Outer: TypeAlias = "slice | np.ndarray[Any, np.dtype[np.int64]]"

_WASTE = 4
"""Points are read one by one where the block around them has more than this many times as many elements."""


@dataclass(frozen=True)
class Selection:
    """An index of an array, or of the batch of a tensordict, that has been checked.

    Attributes
    ----------
    items
        The index without Ellipsis, lists, ranges and masks of more than no axis: ints, slices, None, bools and
        integer tensors. Ints and tensors hold no negative numbers.
    sizes
        The sizes of the axes it consumes, the leading ones.
    picked
        The shape that those axes have in the result.
    """

    items: tuple[Item, ...]
    sizes: tuple[int, ...]
    picked: tuple[int, ...]

    def result(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The shape of what it selects of something larger, which has these sizes."""
        return (*self.picked, *sizes[len(self.sizes) :])

    @cached_property
    def slices(self) -> tuple[slice, ...] | None:
        """The slices of a selection that is nothing but slices, so that the result can be a view; else None."""
        slices = tuple(item for item in self.items if isinstance(item, slice))
        return slices if len(slices) == len(self.items) else None

    @cached_property
    def rows(self) -> int | slice | np.ndarray[Any, np.dtype[np.int64]] | None:
        """What it picks along the first axis, where it picks whole rows, in the order asked for; else None."""
        if not self.items:
            return slice(None)
        rows, *rest = self.items
        if not isinstance(rows, (int, slice, torch.Tensor)) or isinstance(rows, bool):
            return None
        sizes = self.sizes[1:]
        if len(rest) != len(sizes) or not all(
            isinstance(part, slice) and range(size)[part] == range(size) for part, size in zip(rest, sizes, strict=True)
        ):
            return None
        return rows.numpy() if isinstance(rows, torch.Tensor) else rows

    @cached_property
    def _covers(self) -> tuple[tuple[Outer, ...], tuple[Item, ...]]:
        advanced = sum(isinstance(item, (bool, torch.Tensor)) for item in self.items)
        outer: list[Outer] = []
        local: list[Item] = []
        for item in self.items:
            if item is None or isinstance(item, bool):
                local.append(item)
                continue
            read, pick = _cover(item, self.sizes[len(outer)], alone=advanced == 1)
            outer.append(read)
            local.append(pick)
        return tuple(outer), tuple(local)

    @property
    def outer(self) -> tuple[Outer, ...]:
        """For each consumed axis what to read: a slice, or sorted positions without duplicates."""
        return self._covers[0]

    @property
    def local(self) -> tuple[Item, ...]:
        """The index of the block that `outer` reads."""
        return self._covers[1]

    @cached_property
    def block(self) -> tuple[int, ...]:
        """The sizes of the consumed axes in the block that `outer` reads."""
        return tuple(
            len(range(*read.indices(size))) if isinstance(read, slice) else len(read)
            for read, size in zip(self.outer, self.sizes, strict=True)
        )

    @cached_property
    def is_sparse(self) -> bool:
        """Whether the block around the picked points is so much larger that reading the points alone is better."""
        if sum(isinstance(item, torch.Tensor) for item in self.items) < 2:
            return False
        return math.prod(self.block) > _WASTE * max(1, math.prod(self.picked))

    @cached_property
    def points(self) -> tuple[np.ndarray[Any, np.dtype[np.int64]], ...]:
        """For each consumed axis the position of every picked element, in the order of the result."""
        found = []
        for axis, size in enumerate(self.sizes):
            shape = [1] * len(self.sizes)
            shape[axis] = size
            along = torch.arange(size).view(shape).expand(self.sizes)
            found.append(along[self.items].reshape(-1).numpy())
        return tuple(found)

    @cached_property
    def positions(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The picked elements of the block, counted in its own order, in the shape of the result."""
        counted = torch.arange(math.prod(self.block)).view(self.block)
        return counted[self.local].numpy()


def select(index: Any, shape: Sequence[int], *, what: str = "tensor") -> Selection:
    """Check an index against a shape, as torch does.

    Parameters
    ----------
    index
        Ints, slices, None, Ellipsis, bools, lists, ranges, arrays and tensors of ints or bools, or a tuple of these.
        A list is one index, not a tuple of them.
    shape
        What it indexes.
    what
        How messages call what is indexed.

    Raises
    ------
    IndexError
        For too many indices, numbers out of range, masks of another shape, and things that are no index.
    ValueError
        For a slice with a step that is not positive.

    Examples
    --------
    >>> found = select(([3, 0, 3], slice(None)), (4, 2, 5))
    >>> found.outer, found.picked
    ((array([0, 3]), slice(0, 2, 1)), (3, 2))
    """
    if type(index) is int and shape and -shape[0] <= index < shape[0]:  # what most reads ask for, 15 µs faster
        return Selection((index % shape[0],), (shape[0],), ())
    items = [_item(item) for item in (index if isinstance(index, tuple) else (index,))]
    consumed = sum(_axes(item) for item in items)
    if consumed > len(shape):
        raise IndexError(f"too many indices for {what} of dimension {len(shape)}: {consumed} are indexed")
    items = _without_ellipsis(items, len(shape) - consumed)
    sizes = tuple(shape[: sum(_axes(item) for item in items)])
    # torch itself refuses what it cannot index, and shows the shape: a view of one element costs no memory
    picked = torch.zeros((), dtype=torch.bool).expand(sizes)[tuple(items)]
    return Selection(_plain(items, sizes), sizes, tuple(picked.shape))


def is_key(item: Any) -> bool:
    """Whether what stands in brackets is the key of an entry, not an index."""
    return isinstance(item, str) or (isinstance(item, tuple) and bool(item) and all(is_key(part) for part in item))


def _item(item: Any) -> Any:
    """One element of an index in the form torch knows it."""
    if item is None or item is Ellipsis or isinstance(item, (bool, int)):
        return item
    if isinstance(item, slice):
        return slice(
            *(None if bound is None else operator.index(bound) for bound in (item.start, item.stop, item.step))
        )
    if isinstance(item, np.bool_):  # older releases of numpy take it for an int
        raise IndexError(f"a NumPy bool is not a valid index: {item!r}; use bool(...) or a mask")
    if isinstance(item, (list, range, np.ndarray)):
        array = np.asarray(item)
        if array.size and array.dtype.kind not in "biu":
            raise IndexError(f"arrays used as indices must hold ints or bools, found {array.dtype}")
        item = torch.from_numpy(np.array(array, None if array.dtype == bool else np.int64))
    if isinstance(item, torch.Tensor):
        return _tensor_item(item)
    try:
        return operator.index(item)
    except TypeError:
        raise IndexError(
            f"expected ints, slices, None, Ellipsis, lists, arrays or tensors of ints or bools as index, found {item!r}"
        ) from None


def _tensor_item(item: torch.Tensor) -> Any:
    item = item.detach().cpu()
    if item.dtype == torch.uint8:
        item = item.bool()  # as torch reads it
    if item.dtype == torch.bool:
        return item if item.ndim else bool(item)
    if item.is_floating_point() or item.is_complex():
        raise IndexError(f"tensors used as indices must be long, int, byte or bool tensors, found {item.dtype}")
    return item.long() if item.ndim else int(item)


def _axes(item: Any) -> int:
    """How many axes an element of an index consumes."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return item.ndim if isinstance(item, torch.Tensor) and item.dtype == torch.bool else 1


def _without_ellipsis(items: list[Any], rest: int) -> list[Item]:
    places = [place for place, item in enumerate(items) if item is Ellipsis]
    if len(places) > 1:
        raise IndexError("an index can have one ellipsis (...) only")
    if not places:
        return items
    place = places[0]
    items = [*items[:place], *(slice(None),) * rest, *items[place + 1 :]]
    while items and isinstance(items[-1], slice) and items[-1] == slice(None):
        items.pop()
    return items


def _plain(items: Sequence[Item], sizes: tuple[int, ...]) -> tuple[Item, ...]:
    """Masks as the positions they pick, negative numbers counted from the start."""
    plain: list[Item] = []
    axis = 0
    for item in items:
        if isinstance(item, torch.Tensor) and item.dtype == torch.bool:
            plain.extend(item.nonzero(as_tuple=True))
        elif isinstance(item, torch.Tensor):
            plain.append(_counted_from_start(item, axis, sizes[axis]))
        elif isinstance(item, int) and not isinstance(item, bool):
            plain.append(item + sizes[axis] if item < 0 else item)
        else:
            plain.append(item)
        axis += _axes(item)
    return tuple(plain)


def _counted_from_start(item: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    if not item.numel():
        return item
    first, last = (int(bound) for bound in torch.aminmax(item))
    if first < -size or last >= size:  # torch does not look where nothing is picked
        wrong = first if first < -size else last
        raise IndexError(f"index {wrong} is out of bounds for dimension {axis} with size {size}")
    return torch.where(item < 0, item + size, item) if first < 0 else item


def _cover(item: int | slice | torch.Tensor, size: int, *, alone: bool) -> tuple[Outer, Item]:
    """What to read of one axis, and the index of what was read."""
    if isinstance(item, slice):
        return slice(*item.indices(size)), slice(None)
    if isinstance(item, int):
        return slice(item, item + 1, 1), 0
    if not item.numel():
        return slice(0, 0, 1), torch.zeros_like(item)
    if item.ndim == 1 and (item.numel() == 1 or bool((item[1:] > item[:-1]).all())):
        found, inverse = item, torch.arange(item.numel())
        sorted_already = True
    else:
        found, inverse = torch.unique(item, return_inverse=True)
        sorted_already = False
    first, last = int(found[0]), int(found[-1])
    read: Outer = slice(first, last + 1, 1) if last - first + 1 == found.numel() else found.numpy()
    return read, slice(None) if sorted_already and alone else inverse
