"""Memory-mapped tensordicts of tests."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from tensordict import TensorDict, TensorDictBase, tensorclass

import xarray_tensordict
from xarray_tensordict._compat.tensordict import IS_0_14
from xarray_tensordict.testing import assert_same_tensordict


@tensorclass
class Step:
    obs: torch.Tensor
    task: Any


def as_saved(td: TensorDictBase) -> TensorDictBase:
    """What tensordict saves of one: version 0.14 forgets the names of dims."""
    if not IS_0_14:
        return td
    found = td.clone(recurse=False)
    for level in (found, *found.values(include_nested=True)):
        if isinstance(level, TensorDictBase):
            level.names = None
    return found


def in_both(path: Any, *, mapped: bool = True, **keywords: Any) -> TensorDict:
    """What both libraries show, which is the same."""
    with xr.open_dataset(path, engine="tensordict", **keywords) as ds:
        td = ds.td.to_tensordict()
        if mapped:
            assert_same_tensordict(td, ds.td.to_tensordict(copy=False))
    persistent = xarray_tensordict.open_persistent(path, **keywords)
    assert_same_tensordict(td, persistent.to_tensordict())
    persistent.close()
    return td


def weather() -> xr.Dataset:
    ds = xr.Dataset(
        {
            "t2m": (("member", "time", "lat"), np.arange(24.0).reshape(2, 4, 3)),
            "late": (("time", "member"), np.arange(8, dtype="i2").reshape(4, 2)),
            "co2": ("time", np.arange(4.0, dtype="f4")),
            "mask": ("lat", [True, False, True]),
            "label": ("time", ["a", "b", "ø", ""]),
        },
        coords={
            "time": np.arange(4).astype("M8[D]").astype("M8[ns]"),
            "lat": [1.0, 2.0, 3.0],
            "height": 2.0,
            "run": "x",
        },
    )
    return ds.td.set_batch_dims(["member", "time"])


def beside(path: Path) -> list[str]:
    """What is left beside a target."""
    return [name for name in os.listdir(path.parent) if name != path.name]


def edit(path: Path, **changes: Any) -> None:
    """Change a ``meta.json``."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
