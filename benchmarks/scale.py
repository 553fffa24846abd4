"""A dataset several times the memory of the workers: store, normalise, store, train. Peak memory, time, and spot checks.

Run ``python benchmarks/scale.py --megabytes 1000 --limit-megabytes 400``; it takes a folder on disk with room for about twice
the data. dask pauses a worker at 80 % of its limit, and a worker holds about half of that before it has any data: the free
part of the limit is what the data are to be compared with. The values of any row
can be computed from its number, so rows are checked without keeping them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import dask.array
import numpy as np
import psutil
import xarray as xr
from distributed import Client, LocalCluster

import xarray_tensordict  # noqa: F401 - registers ds.td

# torch is imported where a batch is read: workers import this file, and would hold 200 MB of it for nothing
FEATURES = (64, 256)
ROW_BYTES = 4 * FEATURES[0] * FEATURES[1]
BLOCK = 256


def rows(start: int, stop: int) -> np.ndarray[Any, Any]:
    """The values of some rows: a wave over the features, scaled by the number of the row."""
    wave = np.sin(np.arange(FEATURES[0] * FEATURES[1], dtype="f4")).reshape(FEATURES)
    return (np.arange(start, stop, dtype="f4") % 1009)[:, None, None] * wave


def _block(block_info: Any = None) -> np.ndarray[Any, Any]:
    start, stop = block_info[None]["array-location"][0]
    return rows(start, stop)


def source(count: int) -> xr.Dataset:
    """The data as dask makes them, block by block."""
    sizes = tuple(min(BLOCK, count - start) for start in range(0, count, BLOCK))
    data = dask.array.map_blocks(
        _block, chunks=(sizes, *((size,) for size in FEATURES)), dtype="f4", meta=np.zeros((0, 0, 0), "f4")
    )
    return xr.Dataset(
        {"obs": (("time", "channel", "f"), data), "mask": ("f", np.arange(FEATURES[1]) % 2)},
        coords={"time": np.arange(count)},
    )


class Peaks:
    """The largest resident memory of this process and of those that it started, looked at ten times a second."""

    def __init__(self) -> None:
        self.bytes: dict[int, int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def of(self, pids: list[int]) -> list[float]:
        return [round(self.bytes.get(pid, 0) / 2**20) for pid in pids]

    def _watch(self) -> None:
        own = psutil.Process()
        while not self._ended.wait(0.1):
            for process in (own, *own.children(recursive=True)):
                try:
                    held = process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
                self.bytes[process.pid] = max(self.bytes.get(process.pid, 0), held)


@contextmanager
def timed(times: dict[str, float], name: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    times[name] = round(time.perf_counter() - started, 1)
    print(name, times[name], file=sys.stderr, flush=True)


def run(folder: Path, megabytes: int, limit_megabytes: int, workers: int = 2, batches: int = 20) -> dict[str, Any]:
    """Go the whole way, and return the peaks in MiB and the times in s."""
    count = max(BLOCK, megabytes * 2**20 // ROW_BYTES)
    raw, scaled = folder / "raw.zarr", folder / "scaled.zarr"
    times: dict[str, float] = {}
    cluster = LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        memory_limit=limit_megabytes * 2**20,
        silence_logs=40,
    )
    with Peaks() as peaks, cluster, Client(cluster) as client:
        pids = list(client.run(lambda: __import__("os").getpid()).values())
        before = psutil.Process().memory_info().rss
        idle = [psutil.Process(pid).memory_info().rss for pid in pids]
        with timed(times, "write"):
            source(count).td.to_zarr(raw)
        with timed(times, "normalise"), xr.open_dataset(raw, engine="tensordict", chunks={}) as ds:
            held = ds.td.batched
            mean, std = held.mean("time").compute(), held.std("time").compute()
            ((held - mean) / std.where(std > 0, 1)).td.to_zarr(scaled)
        after = list(client.run(lambda: __import__("os").getpid()).values())
        with timed(times, "train"):
            checked = _train(scaled, mean["obs"].values, std["obs"].values, count, batches)
    return {
        "data_megabytes": count * ROW_BYTES // 2**20,
        "limit_megabytes": limit_megabytes,
        "workers_before": [round(held / 2**20) for held in idle],
        "worker_peaks": peaks.of(pids),
        "workers_lost": len(set(pids) - set(after)),
        "client_before": round(before / 2**20),
        "client_peak": peaks.of([psutil.Process().pid])[0],
        "seconds": times,
        "rows_checked": checked,
    }


def _train(store: Path, mean: Any, std: Any, count: int, batches: int) -> int:
    """Read random batches, and compare each row with what it has to be."""
    import torch

    from xarray_tensordict import open_persistent

    generator = torch.Generator().manual_seed(0)
    checked = 0
    with open_persistent(store) as ptd:
        assert ptd.batch_size == torch.Size([count])
        for _ in range(batches):
            numbers = torch.randint(0, count, (32,), generator=generator).tolist()
            batch = ptd[numbers]
            for number, found in zip(numbers, batch["obs"].numpy(), strict=True):
                expected = (rows(number, number + 1)[0] - mean) / np.where(std > 0, std, 1)
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
                checked += 1
            assert batch["time"].tolist() == numbers
    return checked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1000, help="the size of the data")
    parser.add_argument("--limit-megabytes", type=int, default=400, help="the memory limit of each worker")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=None, help="where the stores are written; removed afterwards")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder, prefix="scale-"))
    try:
        json.dump(run(folder, options.megabytes, options.limit_megabytes, options.workers), sys.stdout, indent=2)
        print()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
