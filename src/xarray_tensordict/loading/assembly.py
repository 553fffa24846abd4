"""From the rows that were read to the TensorDict of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, TensorDict, UnbatchedTensor

from ..core.model import GroupBatch
from ..dataset.entries import Plan
from ..tensors.convert import python_value
from ..tensors.frames import Frame
from ..tensors.values import rows_from_numpy
from .members import Member, Values

Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Place:
    """Where the values of an entry go in batches of one shape.

    Attributes
    ----------
    shape
        The leading shape of samples.
    batch
        That of the tensordict which holds the entry.
    lead
        How many batch dims are replaced by `shape`.
    """

    member: Member
    shape: Shape
    batch: Shape
    lead: int

    @property
    def new_axes(self) -> Shape:
        """The batch axes that the values do not have."""
        later = (axis - self.lead + len(self.shape) for axis in self.member.leaf.missing if axis >= self.lead)
        return (*range(0 if self.member.held else len(self.shape)), *later)

    @property
    def is_plain(self) -> bool:
        """Whether rows are what the tensordict holds, as they are."""
        return (
            self.member.leaf.form == "tensor" and bool(self.member.held) and not self.new_axes and len(self.shape) == 1
        )


class Assembly:
    """Builds the TensorDicts of samples.

    Parameters
    ----------
    members
        The entries.
    plan
        What they were planned as.
    lead
        How many of the leading batch dims rows are counted through.
    names
        The names of the axes of samples, in place of those.
    expand
        Whether entries without a batch are repeated for each sample.
    """

    def __init__(
        self, members: Sequence[Member], plan: Plan, lead: int, names: Sequence[str | None], *, expand: bool
    ) -> None:
        self._members = members
        self._keys = [member.entry.key for member in members]
        self._batches = plan.batches
        self._lead = lead
        self._names = tuple(names)
        self._expand = expand
        self._last: tuple[Shape, Frame, list[_Place | None]] | None = None

    def assemble(self, picked: Sequence[Values], shape: Shape) -> TensorDict:
        """Build the TensorDict of samples.

        Parameters
        ----------
        picked
            For each entry the values of all rows of the samples, in memory of their own.
        shape
            The leading shape of the samples.
        """
        made = self._last
        if made is None or made[0] != shape:
            made = self._last = shape, *self._made_for(shape)  # all batches but the last one have one shape
        _, frame, places = made
        leaves = [
            values if place is None else self._leaf(place, values) for place, values in zip(places, picked, strict=True)
        ]
        return frame.filled(dict(zip(self._keys, leaves, strict=True)))

    def _made_for(self, shape: Shape) -> tuple[Frame, list[_Place | None]]:
        """The tensordicts to be filled, and for each entry its place; None where its values go in as they are."""
        batches = {key: self._batch(batch, shape) for key, batch in self._batches.items()}
        places = [_Place(member, shape, batches[member.entry.key[:-1]].sizes, self._lead) for member in self._members]
        return Frame(batches, self._keys), [None if place.is_plain else place for place in places]

    def _batch(self, batch: GroupBatch, shape: Shape) -> GroupBatch:
        return replace(
            batch,
            dims=(*self._names, *batch.dims[self._lead :]),
            sizes=(*shape, *batch.sizes[self._lead :]),
        )

    def _leaf(self, place: _Place, values: Values) -> Any:
        member, batch = place.member, place.batch
        if member.leaf.form == "value":
            return NonTensorData(python_value(np.asarray(values)), batch_size=batch)
        if isinstance(values, torch.Tensor) and member.entry.entry_class == "unbatched":
            own = values.clone()
            return own.expand(*batch, *own.shape) if self._expand else UnbatchedTensor(own)
        new_axes = place.new_axes
        if isinstance(values, np.ndarray):
            rows = values.reshape((*place.shape, *values.shape[1:])) if member.held else values
            rows = np.expand_dims(rows, new_axes)
            return rows_from_numpy(
                np.broadcast_to(rows, (*batch, *rows.shape[len(batch) :])), ndim=len(batch), batch_size=batch
            )
        tensor = values.view(*place.shape, *values.shape[1:]) if member.held else values.clone()
        for axis in new_axes:
            tensor = tensor.unsqueeze(axis)
        return tensor.expand(*batch, *tensor.shape[len(batch) :]) if new_axes else tensor
