"""An existing tensordict that is filled in place: what is read goes into its tensors, one entry after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict, is_tensor_collection

from ..dataset.entries import Entry, Plan
from .values import torch_dtype


@dataclass(frozen=True)
class Filling:
    """One read of an entry into the tensor that is to hold it.

    Attributes
    ----------
    entry
        The entry.
    target
        A tensor of its shape and dtype, on any device.
    tensor_of
        Reads the entry into a tensor of its own.
    """

    entry: Entry
    target: torch.Tensor
    tensor_of: Callable[[Entry], torch.Tensor]

    @property
    def nbytes(self) -> int:
        """How many bytes it reads, about."""
        return int(self.entry.variable.nbytes)

    def __call__(self) -> torch.Tensor:
        self.target.copy_(self.tensor_of(self.entry))
        return self.target


def takes_bytes(target: torch.Tensor) -> bool:
    """Whether the bytes of a store can be read into a tensor."""
    plain = type(target) is torch.Tensor and target.device.type == "cpu" and not target.requires_grad
    return plain and target.is_contiguous()


def targets(plan: Plan, out: Any) -> dict[Any, torch.Tensor]:
    """The tensors of `out` that entries can be read into; checked for all before anything is read.

    Raises
    ------
    TypeError
        Where `out` is no tensordict.
    ValueError
        Where it lacks an entry, or has one of another shape or dtype.
    """
    if not is_tensor_collection(out):
        raise TypeError(f"out: expected a tensordict whose tensors are to be filled, got {type(out).__name__}")
    found = {}
    for entry in plan.entries:
        # whether times fit shows as they are read; the others are made from their values
        if entry.form == "tensor" and entry.entry_class != "unbatched" and entry.variable.dtype.kind in "biufc":
            dtype = getattr(torch, entry.torch_dtype) if entry.torch_dtype else torch_dtype(entry.variable.dtype)
            target = _target(out, entry.key, torch.Size(entry.shape), dtype)
            if _is_held(out, entry.key, target):
                found[entry.key] = target
    return found


def fill(out: Any, td: TensorDict) -> Any:
    """Copy the values of `td` into the tensors of an existing tensordict, but for those that are there already."""
    for key, value in td.items(include_nested=True, leaves_only=True):
        target = _target(out, key, value.shape, value.dtype)
        if not _is_held(out, key, target):
            out.set_(key, torch.as_tensor(value))
        elif target is not value:
            target.copy_(torch.as_tensor(value))
    return out


def _is_held(out: Any, key: Any, target: torch.Tensor) -> bool:
    """Whether `out` holds a tensor; lazy stacks, parts by index and stores make a new one for each ``get``."""
    again = out.get(key)
    return again is target or again.data_ptr() == target.data_ptr()


def _target(out: Any, key: Any, shape: torch.Size, dtype: torch.dtype | None) -> torch.Tensor:
    target = out.get(key, None)
    if isinstance(target, torch.Tensor) and target.shape == shape and target.dtype == dtype:
        if any(step == 0 and size > 1 for step, size in zip(target.stride(), shape, strict=True)):
            raise ValueError(
                f"out: rows of the tensor at {_shown(key)!r} share their memory, it was expanded; clone it first"
            )
        return target
    found = "nothing" if target is None else type(target).__name__
    if isinstance(target, torch.Tensor):
        found = f"{target.dtype} {list(target.shape)}"
    raise ValueError(f"out: expected {dtype} {list(shape)} at {_shown(key)!r}, found {found}")


def _shown(key: Any) -> Any:
    return key[0] if isinstance(key, tuple) and len(key) == 1 else key
