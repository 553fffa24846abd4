"""Opening: stores of many leaves, trees of many groups, columns of text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import xarray as xr
import zarr
from tensordict import TensorDict

from .jobs import Job, Sizes


def jobs(folder: Path, sizes: Sizes) -> Iterator[Job]:
    """The jobs of opening."""
    yield from _leaves(folder, sizes)
    yield from _groups(folder, sizes)
    yield from _texts(folder, sizes)


def _leaves(folder: Path, sizes: Sizes) -> Iterator[Job]:
    path = folder / "leaves.zarr"
    group = zarr.create_group(str(path), attributes={"__tensordict__": {"batch_size": [100], "version": 1}})
    for number in range(sizes.leaves):
        array = group.create_array(f"x{number}", shape=(100, 4), dtype="f4", dimension_names=["row", "f"])
        array[...] = np.full((100, 4), number)
    yield Job(
        f"{sizes.leaves} small leaves: open",
        {
            "this package": lambda: xr.open_dataset(path, engine="tensordict"),
            "tensordict": lambda: TensorDict.from_zarr(str(path)),
            "xarray": lambda: xr.open_zarr(path, chunks=None, consolidated=False),
        },
        repeats=3,
    )
    ds, bare = xr.open_dataset(path, engine="tensordict"), TensorDict.from_zarr(str(path))
    plain = xr.open_zarr(path, chunks=None, consolidated=False)
    yield Job(
        f"{sizes.leaves} small leaves: load",
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
                group.create_array(name, shape=(5 + number % 3, 2), dtype="f4", compressors=None)
        yield Job(
            f"{count} groups of 3 arrays: open as a tree",
            {"this package": lambda path=path: xr.open_datatree(path, engine="tensordict")},
            repeats=2,
        )


def _texts(folder: Path, sizes: Sizes) -> Iterator[Job]:
    for count in sizes.texts:
        path = folder / f"texts{count}.zarr"
        texts = np.array([f"caption {number}" for number in range(count)])
        xr.Dataset({"x": ("row", np.arange(count)), "caption": ("row", texts)}).to_zarr(path, consolidated=False)
        opened = xr.open_dataset(path, engine="tensordict").td.set_batch_dims("row")
        yield Job(
            f"{count} strings: to_tensordict",
            {"this package": opened.td.to_tensordict, "xarray": lambda opened=opened: opened.copy().compute()},
            repeats=1,
        )
        yield Job(
            f"{count} strings, left out with `exclude=`",
            {"this package": lambda opened=opened: opened.td.to_tensordict(exclude=["caption"])},
            repeats=3,
        )
