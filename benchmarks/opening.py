"""Opening: stores of many leaves, trees of many groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import xarray as xr
import zarr
from tensordict import TensorDict

from xarray_tensordict import ArrayInfo, infer_batch, open_persistent

from .jobs import Job, Sizes


def jobs(folder: Path, sizes: Sizes) -> Iterator[Job]:
    """The jobs of opening."""
    for zarr_format in (3, 2):
        yield from _zarr_leaves(folder, sizes, zarr_format)
    yield from _hdf5_leaves(folder, sizes)
    yield from _groups(folder, sizes)
    yield from _hdf5_groups(folder, sizes)
    yield from _inference()


def _zarr_leaves(folder: Path, sizes: Sizes, zarr_format: Literal[2, 3]) -> Iterator[Job]:
    path = folder / f"leaves{zarr_format}.zarr"
    attributes = {"__tensordict__": {"batch_size": [100], "version": 1}}
    group = zarr.create_group(str(path), attributes=attributes, zarr_format=zarr_format)
    own: Any = {"attributes": {"_ARRAY_DIMENSIONS": ["row", "f"]}}
    if zarr_format == 3:
        own = {"dimension_names": ["row", "f"]}
    for number in range(sizes.leaves):
        array = group.create_array(f"x{number}", shape=(100, 4), dtype="f4", **own)
        array[...] = np.full((100, 4), number)
    yield from _leaves(
        f"{sizes.leaves} small leaves, zarr v{zarr_format}",
        path,
        lambda: TensorDict.from_zarr(str(path)),
        lambda: xr.open_zarr(path, chunks=None, consolidated=False),
    )


def _hdf5_leaves(folder: Path, sizes: Sizes) -> Iterator[Job]:
    path = folder / "leaves.h5"
    with h5py.File(path, "w") as file:
        for number in range(sizes.leaves):
            file[f"x{number}"] = np.full((100, 4), number, "f4")
    yield from _leaves(
        f"{sizes.leaves} small leaves, HDF5",
        path,
        lambda: TensorDict.from_h5(str(path)),
        lambda: xr.open_dataset(path, engine="h5netcdf", phony_dims="sort"),
    )


def _leaves(what: str, path: Path, open_bare: Callable[[], Any], open_plain: Callable[[], xr.Dataset]) -> Iterator[Job]:
    yield Job(
        f"{what}: open",
        {
            "this package": lambda: xr.open_dataset(path, engine="tensordict"),
            "tensordict": open_bare,
            "xarray": open_plain,
        },
        repeats=3,
    )
    yield Job(
        f"{what}: open_persistent",
        {"this package": lambda: open_persistent(path), "tensordict": open_bare},
        repeats=3,
    )
    ds, bare, plain = xr.open_dataset(path, engine="tensordict"), open_bare(), open_plain()
    yield Job(
        f"{what}: load",
        {
            "this package": ds.td.to_tensordict,
            "tensordict": bare.to_tensordict,
            "xarray": lambda: plain.copy().compute(),
        },
        repeats=3,
    )


def _groups(folder: Path, sizes: Sizes) -> Iterator[Job]:
    for count in sizes.groups:
        path = folder / f"groups{count}.zarr"
        root = zarr.create_group(str(path))
        for number in range(count):
            group = root.create_group(f"g{number}")
            for name in ("obs", "act", "rew"):
                group.create_array(
                    name, shape=(5 + number % 3, 2), dtype="f4", compressors=None, dimension_names=["row", "f"]
                )
        yield Job(
            f"groups of 3 arrays, zarr: open {count} as a tree",
            {
                "this package": lambda path=path: xr.open_datatree(path, engine="tensordict"),
                "xarray": lambda path=path: xr.open_datatree(path, engine="zarr", consolidated=False, chunks=None),
            },
            repeats=2,
        )
        dt = xr.open_datatree(path, engine="tensordict")
        yield Job(
            f"episodes of 3 arrays: concat of {count}",
            {
                "this package": lambda dt=dt: dt.td.concat("row"),
                "xarray": lambda dt=dt: xr.concat([node.to_dataset().chunk() for node in dt.children.values()], "row"),
            },
            repeats=2,
        )


def _hdf5_groups(folder: Path, sizes: Sizes) -> Iterator[Job]:
    for count in sizes.groups:
        path = folder / f"groups{count}.h5"
        with h5py.File(path, "w") as file:
            for number in range(count):
                for name in ("obs", "act", "rew"):
                    file[f"g{number}/{name}"] = np.zeros((5 + number % 3, 2), "f4")
        yield Job(
            f"groups of 3 arrays, HDF5: open {count} as a tree",
            {"this package": lambda path=path: xr.open_datatree(path, engine="tensordict")},
            repeats=2,
        )


def _inference() -> Iterator[Job]:
    """The inference by itself, on descriptions of 100 arrays: at most 2 ms on a quiet machine for those in one group."""
    numbers = range(100)
    described = {
        "over the same dims": [ArrayInfo((f"x{n}",), (10, 3, 5), dims=("time", "lat", "lon")) for n in numbers],
        "over dims of their own": [ArrayInfo((f"x{n}",), (10 + n, 3), dims=(f"a{n}", f"b{n}")) for n in numbers],
        "without names": [ArrayInfo((f"x{n}",), (10, n + 1)) for n in numbers],
        "in 50 groups": [ArrayInfo((f"g{n // 2}", f"x{n % 2}"), (10, 3)) for n in numbers],
        "in 50 nested groups": [ArrayInfo((*(f"g{m}" for m in range(n // 2)), f"x{n}"), (10, 3)) for n in numbers],
    }
    for what, arrays in described.items():
        yield Job(
            f"the inference by itself, 100 arrays: {what}", {"this package": lambda arrays=arrays: infer_batch(arrays)}
        )
