"""The nested tensordicts of some groups, to be filled with leaves once, or again and again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from tensordict import TensorDict

from ..core.model import GroupBatch, Key
from ..dataset.entries import td_names


class Frame:
    """What the tensordicts of some leaves have in common.

    Parameters
    ----------
    batches
        The batch of each group that holds leaves or is above one.
    keys
        The keys of the leaves.
    """

    def __init__(self, batches: Mapping[Key, GroupBatch], keys: Iterable[Key]) -> None:
        found: dict[Key, None] = {(): None}
        for key in keys:
            found.update(dict.fromkeys(key[:length] for length in range(1, len(key))))
        # a group is made when those within it have been
        self._groups = [
            (key, torch.Size(batches[key].sizes), _names(batches[key])) for key in sorted(found, key=len, reverse=True)
        ]

    def filled(self, leaves: Mapping[Key, Any]) -> TensorDict:
        """The nested tensordict that holds `leaves`, each group with its batch size and names."""
        held: dict[Key, dict[str, Any]] = {key: {} for key, _, _ in self._groups}
        for key, leaf in leaves.items():
            held[key[:-1]][key[-1]] = leaf
        for key, size, names in self._groups:
            td = TensorDict(held[key], batch_size=size, names=names and list(names))
            if key:
                held[key[:-1]][key[-1]] = td
        return td


def _names(batch: GroupBatch) -> Any:
    """The names of the axes, None where there are none; tensordict's types do not say that one may be None."""
    names = td_names(batch)
    return names if any(name is not None for name in names) else None
