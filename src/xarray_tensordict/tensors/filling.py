"""An existing tensordict that is filled in place: what is read goes into its tensors, one entry after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, is_tensor_collection

from ..dataset.entries import Plan
from .reading import tensor_dtype
from .values import are_apart, to_codes


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
            target = _target(out, entry.key, torch.Size(entry.shape), tensor_dtype(entry))
            if _is_held(out, entry.key, target):
                found[entry.key] = target
    _refuse_shared(found)
    # a partial entry is broadcast when it was read
    return {entry.key: found[entry.key] for entry in plan.entries if entry.key in found and entry.is_plain}


def _refuse_shared(tensors: Mapping[Any, torch.Tensor]) -> None:
    """Raise where two tensors share memory: one would be written over the other."""
    reaching: list[tuple[Any, torch.Tensor]] = []
    for key, tensor in sorted(tensors.items(), key=lambda item: item[1].data_ptr()):
        reaching = [each for each in reaching if each[1].data_ptr() + _extent(each[1]) > tensor.data_ptr()]
        shared = next((other for other, before in reaching if _overlap(before, tensor)), None)
        if shared is not None:
            raise ValueError(
                f"out: the tensors at {_shown(shared)!r} and {_shown(key)!r} share their memory; clone one of them first"
            )
        if tensor.numel():
            reaching.append((key, tensor))


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors whose memory reaches into each other have an element in common, as far as that is easily found."""
    if one.device != other.device or not other.numel():
        return False
    if one.data_ptr() == other.data_ptr():
        return True
    shares: Any = np.shares_memory
    try:
        return bool(shares(to_codes(one.detach()), to_codes(other.detach()), max_work=10_000))
    except (TypeError, np.exceptions.TooHardError):
        return False  # another device


def _extent(tensor: torch.Tensor) -> int:
    """How many bytes there are from the first element to the end of the last one."""
    steps = sum(step * (size - 1) for step, size in zip(tensor.stride(), tensor.shape, strict=True))
    return (steps + 1) * tensor.element_size()


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
        if target.layout == torch.strided and not are_apart(target.stride(), shape, 1):
            raise ValueError(
                f"out: elements of the tensor at {_shown(key)!r} share their memory, it was expanded or unfolded; clone it "
                f"first"
            )
        if target.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"out: the tensor at {_shown(key)!r} requires grad; pass out.detach(), which shares its memory"
            )
        return target
    found = "nothing" if target is None else type(target).__name__
    if isinstance(target, torch.Tensor):
        found = f"{target.dtype} {list(target.shape)}"
    raise ValueError(f"out: expected {dtype} {list(shape)} at {_shown(key)!r}, found {found}")


def _shown(key: Any) -> Any:
    return key[0] if isinstance(key, tuple) and len(key) == 1 else key
