"""Training loops: this package, a hand-written loader over a memory map, and xbatcher with a DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
import xarray as xr
import zarr
from tensordict import TensorDict
from torch.utils.data import DataLoader

import xarray_tensordict  # noqa: F401 - registers ds.td

from .jobs import Job, Sizes

BATCH = 256
WINDOW = 8
FEATURES = (3, 32, 32)
FEW = 16
"""So many rows xbatcher gives where it makes batches row by row: of a store of one chunk each reads all."""

Side = Callable[[], Iterator[Any]]


def write_stores(folder: Path, rows: int) -> dict[str, Path]:
    """One entry of so many rows of 12 kB, in each layout."""
    values = np.random.default_rng(0).random((rows, *FEATURES), dtype="f4")
    ds = xr.Dataset({"x": (("time", "channel", "y", "x_"), values)}).td.set_batch_dims("time")
    paths = {
        "zarr, one raw chunk": folder / "one.zarr",
        "HDF5, contiguous": folder / "one.h5",
        "memory-mapped": folder / "memmap",
        "zarr, chunks of 256": folder / "chunked.zarr",
        "zarr, chunks of 256, zstd": folder / "packed.zarr",
    }
    raw = {"x": {"compressors": ()}}
    ds.td.to_zarr(paths["zarr, one raw chunk"], encoding=raw, chunks=dict.fromkeys(ds.dims, -1))
    ds.td.to_h5(paths["HDF5, contiguous"])
    ds.td.to_memmap(paths["memory-mapped"])
    chunks = {**dict.fromkeys(ds.dims, -1), "time": 256}
    ds.td.to_zarr(paths["zarr, chunks of 256"], encoding=raw, chunks=chunks)
    ds.td.to_zarr(paths["zarr, chunks of 256, zstd"], chunks=chunks)
    values.tofile(folder / "x.bin")
    return paths


def ours(ds: xr.Dataset, **options: Any) -> Side:
    return lambda: iter(ds.td.batches(BATCH, seed=0, **options))


def ours_in_loader(ds: xr.Dataset) -> Side:
    data = ds.td.to_torch_dataset()
    return lambda: iter(DataLoader(data, batch_size=BATCH, shuffle=True, collate_fn=data.collate))


def by_hand(folder: Path, rows: int, *, shuffle: bool) -> Side:
    """What one writes without a library: a memory map and an index."""

    def batches() -> Iterator[torch.Tensor]:
        mapped = np.memmap(folder / "x.bin", "f4", mode="r", shape=(rows, *FEATURES))
        order = np.random.default_rng(0).permutation(rows) if shuffle else None
        for first in range(0, rows, BATCH):
            if order is None:
                yield torch.from_numpy(np.array(mapped[first : first + BATCH]))
            else:
                yield torch.from_numpy(mapped[order[first : first + BATCH]])

    return batches


def by_library(path: Path) -> Side:
    """The loop that one writes with the library of the format."""

    def batches() -> Iterator[TensorDict]:
        with ExitStack() as stack:
            if path.suffix == ".zarr":
                x = zarr.open_group(path, mode="r")["x"]
            elif path.suffix == ".h5":
                x = stack.enter_context(h5py.File(path))["x"]
            else:
                x = TensorDict.load_memmap(path)["x"]
            for first in range(0, x.shape[0], BATCH):
                rows = x[first : first + BATCH]
                rows = rows.clone() if isinstance(rows, torch.Tensor) else torch.from_numpy(rows)
                yield TensorDict({"x": rows}, [len(rows)])

    return batches


def windows_by_hand(folder: Path, rows: int) -> Side:
    def batches() -> Iterator[torch.Tensor]:
        mapped = np.memmap(folder / "x.bin", "f4", mode="r", shape=(rows, *FEATURES))
        starts = np.random.default_rng(0).permutation(rows - WINDOW + 1)[: rows // WINDOW]
        for first in range(0, len(starts), BATCH // WINDOW):
            yield torch.from_numpy(mapped[starts[first : first + BATCH // WINDOW, None] + np.arange(WINDOW)])

    return batches


def our_windows(ds: xr.Dataset) -> Side:
    def batches() -> Iterator[Any]:
        found = ds.td.batches(BATCH // WINDOW, window={"time": WINDOW}, shuffle="full", seed=0)
        for number, batch in enumerate(found):
            if number * BATCH >= ds.sizes["time"]:
                return
            yield batch

    return batches


def xbatcher_in_loader(ds: xr.Dataset, *, rows: int, batch_size: int | None, overlap: int = 0) -> Side:
    """xbatcher's own way to a DataLoader; it makes one sample of `rows` rows after the other."""
    import xbatcher
    from xbatcher.loaders.torch import MapDataset

    sizes = {str(dim): size for dim, size in ds.sizes.items() if dim != "time"}
    generator = xbatcher.BatchGenerator(
        ds["x"], {"time": rows, **sizes}, input_overlap={"time": overlap} if overlap else {}
    )
    data = MapDataset(generator)
    shuffle = batch_size is not None
    return lambda: iter(DataLoader(data, batch_size=batch_size, shuffle=shuffle))


def sides_of(ds: xr.Dataset, plain: xr.Dataset, path: Path, rows: int) -> dict[str, dict[str, Side]]:
    """The sides of each job on one store."""
    folder = path.parent
    return {
        "batches": {
            "ours": ours(ds),
            "xbatcher": xbatcher_in_loader(plain, rows=BATCH, batch_size=None),
            "a loop": by_library(path),
            "by hand": by_hand(folder, rows, shuffle=False),
        },
        "shuffled": {
            "ours": ours(ds, shuffle=True),
            "xbatcher": xbatcher_in_loader(plain, rows=1, batch_size=FEW),
            "by hand": by_hand(folder, rows, shuffle=True),
        },
        "fully shuffled": {
            "ours": ours(ds, shuffle="full"),
            "xbatcher": xbatcher_in_loader(plain, rows=1, batch_size=FEW),
            "by hand": by_hand(folder, rows, shuffle=True),
        },
        "DataLoader, shuffled": {
            "ours": ours_in_loader(ds),
            "xbatcher": xbatcher_in_loader(plain, rows=1, batch_size=FEW),
            "by hand": by_hand(folder, rows, shuffle=True),
        },
        "windows of 8, shuffled": {
            "ours": our_windows(ds),
            "xbatcher": xbatcher_in_loader(plain, rows=WINDOW, batch_size=FEW // WINDOW, overlap=WINDOW - 1),
            "by hand": windows_by_hand(folder, rows),
        },
    }


def jobs(folder: Path, sizes: Sizes) -> Iterator[Job]:
    """The jobs of loading: one epoch each. xbatcher makes one small batch where it makes them row by row."""
    rows = max(sizes.rows // 2, 2 * BATCH)
    yield from _small_rows(folder, rows * 16)
    for layout, path in write_stores(folder, rows).items():
        with xr.open_dataset(path, engine="tensordict") as ds, _plain(path, ds) as plain:
            for job, sides in sides_of(ds, plain, path, rows).items():
                few = None if job == "batches" else 1
                calls = {
                    "this package": _run(sides["ours"]),
                    "other": _run(sides["xbatcher"], few),
                    "limit": _run(sides["by hand"]),
                }
                if "a loop" in sides:
                    calls["a loop"] = _run(sides["a loop"])
                share = 1.0 if few is None else FEW / rows
                yield Job(f"{layout}: {job}", calls, repeats=3, other="xbatcher", shares={"other": share})


def _run(side: Side, most: int | None = None) -> Callable[[], None]:
    def run() -> None:
        for _ in islice(side(), most):
            pass

    return run


def _plain(path: Path, ds: xr.Dataset) -> xr.Dataset:
    """The store as xarray itself opens it, for xbatcher; ours where xarray cannot."""
    if path.suffix == ".zarr":
        return xr.open_zarr(path, chunks=None, consolidated=False)
    if path.suffix != ".h5":
        return ds
    plain = xr.open_dataset(path, engine="h5netcdf", phony_dims="sort")
    return plain.rename(dict(zip(plain["x"].dims, ds["x"].dims, strict=True)))


def _small_rows(folder: Path, rows: int) -> Iterator[Job]:
    """Five entries, of 165 bytes a row: what a batch costs besides its bytes."""
    features = {"obs": (17,), "action": (6,), "reward": (1,), "done": (1,), "next": (17,)}
    generator = np.random.default_rng(0)
    data = {name: generator.random((rows, *shape), dtype="f4") for name, shape in features.items()}
    data["done"] = data["done"] > 0.99
    path = folder / "small.zarr"
    TensorDict({name: torch.from_numpy(values) for name, values in data.items()}, [rows]).to_zarr(str(path))
    for name, values in data.items():
        values.tofile(folder / f"{name}.bin")

    def by_hand(batch: int, shuffle: bool) -> Iterator[TensorDict]:
        maps = {
            name: np.memmap(folder / f"{name}.bin", values.dtype, mode="r", shape=values.shape)
            for name, values in data.items()
        }
        order = np.random.default_rng(0).permutation(rows) if shuffle else None
        for first in range(0, rows, batch):
            picked = slice(first, first + batch) if order is None else order[first : first + batch]
            found = {name: torch.from_numpy(np.array(mapped[picked])) for name, mapped in maps.items()}
            yield TensorDict(found, [min(batch, rows - first)])

    with xr.open_dataset(path, engine="tensordict") as ds:
        for batch in (32, BATCH):
            for shuffle in (False, "full"):
                yield Job(
                    f"five small entries, {batch} rows: {'fully shuffled' if shuffle else 'batches'}",
                    {
                        "this package": _run(lambda b=batch, s=shuffle: iter(ds.td.batches(b, shuffle=s, seed=0))),
                        "limit": _run(lambda b=batch, s=shuffle: by_hand(b, bool(s))),
                    },
                    repeats=3,
                )
