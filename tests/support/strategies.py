"""Generated tensordicts and Datasets, odd ones included."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import xarray as xr
from hypothesis import strategies as st
from tensordict import NonTensorData, NonTensorStack, TensorDict

NAMES = ("a", "obs", "air temp", "wind.speed", "størrelse", "keys", "batch_size", "td", "_x", "0", "meta", "A", "tail ")
DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8)
JSON_VALUES = st.one_of(
    WORDS,
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.none(),
    st.lists(st.integers(0, 9), max_size=3),
    st.dictionaries(WORDS, st.integers(0, 9), max_size=2),
)


@st.composite
def tensors(draw: st.DrawFn, shape: tuple[int, ...]) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    seed = draw(st.integers(0, 2**16))
    values = np.random.default_rng(seed).integers(-100, 100, shape)
    tensor = torch.from_numpy(np.asarray(values)).to(torch.float64)
    if dtype is torch.bool:
        return tensor > 0
    if dtype in {torch.uint8, torch.uint16, torch.uint32, torch.uint64}:
        tensor = tensor.abs()
    tensor = (
        tensor.to(torch.int64).to(dtype)
        if not dtype.is_floating_point and not dtype.is_complex
        else (tensor / 4).to(dtype)
    )
    if dtype.is_floating_point and tensor.numel() and draw(st.booleans()):
        tensor.view(-1)[0] = float("nan")
    return tensor


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[int], list[str | None]]:
    sizes = draw(st.lists(st.integers(0, 4), max_size=2))
    names = draw(st.permutations(["time", "env", "member"]))[: len(sizes)]
    return sizes, [name if draw(st.booleans()) else None for name in names]


@st.composite
def tensordicts(draw: st.DrawFn, *, depth: int = 2, non_tensors: bool = True, batch: Any = None) -> TensorDict:
    """A tensordict with nested ones, of any dtype that zarr and HDF5 hold."""
    sizes, names = batch or draw(batches())
    td = TensorDict({}, sizes, names=names if any(names) else None)
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=3)):
        kinds = ["tensor", "tensor"] + ["nested"] * (depth > 0) + ["value", "rows"] * non_tensors
        kind = draw(st.sampled_from(kinds))
        if kind == "nested":
            nested = draw(tensordicts(depth=depth - 1, non_tensors=non_tensors, batch=(sizes, names)))
            td[name] = nested
        elif kind == "value":
            td.set(name, NonTensorData(draw(JSON_VALUES), batch_size=sizes))
        elif kind == "rows" and sizes and 0 not in sizes:
            rows = _rows(draw, sizes)
            if not is_lost_by_tensordict(rows.tolist()):
                td.set(name, rows)
        else:
            features = draw(st.lists(st.integers(0, 3), max_size=2))
            td[name] = draw(tensors((*sizes, *features)))
    return td


def is_lost_by_tensordict(rows: list[Any]) -> bool:
    """Whether the writers of tensordict 0.15.3 take a stack of stacks for one value: they look at its first row alone.

    They write ``[["a", "a"], ["b", "c"]]`` as ``"a"``.
    """
    if not isinstance(rows[0], list):
        return False
    first: Any = rows
    while isinstance(first[0], list):
        first = first[0]
    return all(value == first[0] for value in first)


def _rows(draw: st.DrawFn, sizes: list[int]) -> NonTensorStack:
    if len(sizes) == 1:
        return NonTensorStack(*(draw(WORDS) for _ in range(sizes[0])))
    return NonTensorStack(*(_rows(draw, sizes[1:]) for _ in range(sizes[0])))


@st.composite
def variables(draw: st.DrawFn, dims: tuple[str, ...], sizes: dict[str, int]) -> xr.Variable:
    shape = tuple(sizes[dim] for dim in dims)
    kind = draw(st.sampled_from(["f4", "f8", "i2", "i8", "u1", "?", "M8[ns]", "m8[ns]", "U"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    count = int(np.prod(shape, dtype=int))
    if kind == "U":
        values: Any = np.array([draw(WORDS) for _ in range(count)], dtype=object).reshape(shape)
    elif kind == "?":
        values = rng.integers(0, 2, shape).astype(bool)
    elif kind == "M8[ns]":
        values = (rng.integers(0, 10**6, shape) * 10**9).astype("M8[ns]")
    elif kind == "m8[ns]":
        values = (rng.integers(0, 10**6, shape) * 10**9).astype("m8[ns]")
    else:
        values = (rng.integers(0, 100, shape)).astype(kind)
    return xr.Variable(dims, np.asarray(values))


@st.composite
def datasets(draw: st.DrawFn) -> xr.Dataset:
    """A Dataset with coordinates on and off the batch, partial and unbatched variables, strings and times."""
    sizes = {"time": draw(st.integers(1, 4)), "member": draw(st.integers(1, 3)), "lat": draw(st.integers(1, 3))}
    choices = [
        ("time",),
        ("time", "lat"),
        ("member", "time"),
        ("member", "time", "lat"),
        ("lat",),
        (),
        ("time", "member"),
    ]
    used = draw(st.lists(st.sampled_from(choices), min_size=1, max_size=4))
    data = {f"v{i}": draw(variables(dims, sizes)) for i, dims in enumerate(used)}
    coords: dict[str, Any] = {}
    if draw(st.booleans()):
        coords["lat"] = np.linspace(-90, 90, sizes["lat"])
    if draw(st.booleans()):
        coords["time"] = np.arange(sizes["time"]).astype("M8[D]").astype("M8[ns]")
    if draw(st.booleans()):
        coords["label"] = draw(variables(("time",), sizes))
    if draw(st.booleans()):
        coords["height"] = 2.0
    return xr.Dataset(data, coords=coords, attrs={"title": "generated"})
