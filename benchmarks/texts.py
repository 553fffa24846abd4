"""Columns of text: zarr v2 and v3, HDF5, strings of a fixed length and of any, beside xarray."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
import xarray as xr
import zarr

from xarray_tensordict import open_persistent

from .jobs import Job, Sizes

KINDS = ("zarr v3", "zarr v3, fixed length", "zarr v2", "HDF5", "HDF5, fixed length")


def jobs(folder: Path, sizes: Sizes) -> Iterator[Job]:
    """The jobs of reading columns of text."""
    for kind in KINDS:
        path = folder / kind
        _write(path, kind, sizes.texts)
        yield from _reading(path, kind, sizes.texts, sizes)


def _write(path: Path, kind: str, count: int) -> None:
    texts = np.array([f"caption {number}" for number in range(count)], object)
    if kind.startswith("HDF5"):
        with h5py.File(path, "w") as file:
            file["x"] = np.arange(count)
            file["caption"] = texts.astype("S") if "fixed" in kind else texts
        return
    version = 2 if kind == "zarr v2" else 3
    group = zarr.create_group(str(path), zarr_format=version)
    for name, array in {"x": np.arange(count), "caption": texts.astype("U") if "fixed" in kind else texts}.items():
        dims: dict[str, Any] = (
            {"dimension_names": ["row"]} if version == 3 else {"attributes": {"_ARRAY_DIMENSIONS": ["row"]}}
        )
        dtype = str if array.dtype == object else array.dtype
        group.create_array(name, shape=count, dtype=dtype, **dims)[...] = array


def _reading(path: Path, kind: str, count: int, sizes: Sizes) -> Iterator[Job]:
    opened = xr.open_dataset(path, engine="tensordict")
    dim = opened["x"].dims[0]
    ds, ptd = opened.td.set_batch_dims(dim), open_persistent(path, batch_dims=1)
    picked = np.random.default_rng(1).permutation(count)[: sizes.picked]
    index = torch.from_numpy(picked)
    yield Job(
        f"{count:,} strings: everything, {kind}",
        {"this package": ds.td.to_tensordict, "xarray": lambda: opened.copy().compute()},
        repeats=1,
    )
    yield Job(
        f"{count:,} strings: {sizes.picked} random rows, {kind}",
        {"this package": lambda: ptd[index], "xarray": lambda: opened.isel({dim: picked}).compute()},
        repeats=3,
    )
