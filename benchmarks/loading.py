"""Training loops: this package, a hand-written loader over a memory map, and xbatcher with a DataLoader.

``python -m benchmarks.loading [ROWS] [REPEATS]`` prints one table. All sides of a job run in turn in one process, as often as
is asked for; the table has medians, and ratios of the medians.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch.utils.data import DataLoader

import xarray_tensordict  # noqa: F401 - registers ds.td

from .jobs import Job, Sizes

BATCH = 256
WINDOW = 8
FEATURES = (3, 32, 32)

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


def rows_per_second(sides: dict[str, Side], rows: int, repeats: int, most: float = 1.0) -> dict[str, float]:
    """The median of each side, which run in turn; a side that is slower than `most` seconds is stopped there."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(repeats + 1):
        for name, side in sides.items():
            start, done = time.perf_counter(), 0
            for batch in side():
                tensor = batch if isinstance(batch, torch.Tensor) else batch["x"]
                done += tensor.numel() // (FEATURES[0] * FEATURES[1] * FEATURES[2])
                if time.perf_counter() - start > most:
                    break
            if repeat:  # the first one warms the page cache
                found[name].append(done / (time.perf_counter() - start))
    return {name: statistics.median(times) for name, times in found.items()}


def sides_of(ds: xr.Dataset, folder: Path, rows: int) -> dict[str, dict[str, Side]]:
    """The sides of each job on one store."""
    return {
        "batches": {
            "ours": ours(ds),
            "xbatcher": xbatcher_in_loader(ds, rows=BATCH, batch_size=None),
            "by hand": by_hand(folder, rows, shuffle=False),
        },
        "shuffled": {
            "ours": ours(ds, shuffle=True),
            "xbatcher": xbatcher_in_loader(ds, rows=1, batch_size=BATCH),
            "by hand": by_hand(folder, rows, shuffle=True),
        },
        "fully shuffled": {
            "ours": ours(ds, shuffle="full"),
            "xbatcher": xbatcher_in_loader(ds, rows=1, batch_size=BATCH),
            "by hand": by_hand(folder, rows, shuffle=True),
        },
        "DataLoader, shuffled": {
            "ours": ours_in_loader(ds),
            "xbatcher": xbatcher_in_loader(ds, rows=1, batch_size=BATCH),
            "by hand": by_hand(folder, rows, shuffle=True),
        },
        "windows of 8, shuffled": {
            "ours": our_windows(ds),
            "xbatcher": xbatcher_in_loader(ds, rows=WINDOW, batch_size=BATCH // WINDOW, overlap=WINDOW - 1),
            "by hand": windows_by_hand(folder, rows),
        },
    }


def jobs(folder: Path, sizes: Sizes) -> Iterator[Job]:
    """The jobs of loading: the first batches of an epoch, the same number for all sides."""
    rows = max(sizes.rows // 4, 2 * BATCH)

    def first(side: Side) -> Callable[[], None]:
        def run() -> None:
            for _ in islice(side(), 4):
                pass

        return run

    for layout, path in write_stores(folder, rows).items():
        with xr.open_dataset(path, engine="tensordict") as ds:
            for job, sides in sides_of(ds, folder, rows).items():
                columns = {"this package": sides["ours"], "other": sides["xbatcher"], "limit": sides["by hand"]}
                calls = {column: first(side) for column, side in columns.items()}
                yield Job(f"{layout}: {job}", calls, repeats=3, other="xbatcher")


def measure(rows: int = 16_384, repeats: int = 5) -> Iterator[tuple[str, str, float, float, float]]:
    """Every job: its store, our rows per second, and how many times those of xbatcher and of the hand-written loader."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for layout, path in write_stores(folder, rows).items():
            with xr.open_dataset(path, engine="tensordict") as ds:
                for job, sides in sides_of(ds, folder, rows).items():
                    found = rows_per_second(sides, rows, repeats)
                    yield (
                        job,
                        layout,
                        found["ours"],
                        found["ours"] / found["xbatcher"],
                        found["ours"] / found["by hand"],
                    )


def main(rows: int = 16_384, repeats: int = 5) -> None:
    print(f"{'job':24}{'store':28}{'rows/s':>12}{'x xbatcher':>12}{'x by hand':>12}")
    for job, layout, speed, xbatcher, hand in measure(rows, repeats):
        print(f"{job:24}{layout:28}{speed:12,.0f}{xbatcher:12.1f}{hand:12.2f}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
