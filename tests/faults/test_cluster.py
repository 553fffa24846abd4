"""dask.distributed: worker processes write and read what threads and one process do, bit for bit."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr

from crash_writers import ROWS, dataset
from xarray_tensordict import open_persistent
from xarray_tensordict.testing import assert_same_tensordict

distributed = pytest.importorskip("distributed")

# sockets that close while the cluster ends
pytestmark = [pytest.mark.faults, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(scope="module")
def separate_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A scheduler and two workers that were started one by one, as on a cluster."""
    folder = tmp_path_factory.mktemp("scheduler")
    file = folder / "scheduler.json"
    common = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    scheduler = [
        "dask_scheduler",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--dashboard-address",
        "127.0.0.1:0",
        "--scheduler-file",
        str(file),
    ]
    worker = ["dask_worker", "--nthreads", "1", "--no-dashboard", "--scheduler-file", str(file), "--memory-limit", "0"]
    started = [
        subprocess.Popen([sys.executable, "-m", f"distributed.cli.{words[0]}", *words[1:]], **common)
        for words in (scheduler, worker, worker)
    ]
    try:
        with distributed.Client(scheduler_file=str(file), timeout=120, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=120)
            yield client
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(60)


def on(cluster: str, *writes: Callable[..., Path], quick: Callable[..., Path] | None = None) -> list[Any]:
    """What is written on a cluster; all but `quick` are slow."""
    return [
        pytest.param(cluster, write, id=f"{write.__name__}-{cluster}", marks=[] if write is quick else pytest.mark.slow)
        for write in writes
    ]


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Any:
    found = request.getfixturevalue(request.param)
    with found.as_current():
        yield found


# -- writing -----------------------------------------------------------------------------------------------------------


def to_zarr(ds: xr.Dataset, folder: Path) -> Path:
    ds.td.to_zarr(folder / "out.zarr")
    return folder / "out.zarr"


def to_shards(ds: xr.Dataset, folder: Path) -> Path:
    ds.td.to_zarr(folder / "out.zarr", chunks={"time": 1}, shards={"time": 3})
    return folder / "out.zarr"


def delayed(ds: xr.Dataset, folder: Path) -> Path:
    ds.td.to_zarr(folder / "out.zarr", compute=False).compute()
    return folder / "out.zarr"


def regions(ds: xr.Dataset, folder: Path) -> Path:
    ds.td.to_zarr(folder / "out.zarr", compute=False, chunks={"time": 2})
    for start in range(0, ROWS, 2):
        part = ds.isel(time=slice(start, start + 2)).drop_vars("mask")
        part.td.to_zarr(folder / "out.zarr", region={"time": slice(start, start + 2)})
    return folder / "out.zarr"


def append(ds: xr.Dataset, folder: Path) -> Path:
    ds.isel(time=slice(0, 4)).td.to_zarr(folder / "out.zarr")
    ds.isel(time=slice(4, None)).drop_vars("mask").td.to_zarr(folder / "out.zarr", append_dim="time")
    return folder / "out.zarr"


def archive(ds: xr.Dataset, folder: Path) -> Path:
    ds.td.to_zarr(folder / "out.zarr.zip")
    return folder / "out.zarr.zip"


def to_h5(ds: xr.Dataset, folder: Path) -> Path:
    ds.td.to_h5(folder / "out.h5")
    return folder / "out.h5"


def to_netcdf(ds: xr.Dataset, folder: Path) -> Path:
    ds.td.to_h5(folder / "out.nc", layout="xarray")
    return folder / "out.nc"


def to_memmap(ds: xr.Dataset, folder: Path) -> Path:
    ds.drop_vars("mask").td.to_memmap(folder / "out")
    return folder / "out"


EVERY = (to_zarr, to_shards, delayed, regions, append, archive, to_h5, to_netcdf, to_memmap)
SOME = (delayed, regions, to_h5, to_memmap)


@pytest.mark.parametrize(
    ("client", "write"), on("local_cluster", *EVERY, quick=regions) + on("separate_workers", *SOME), indirect=["client"]
)
def test_workers_write_what_one_process_writes(client: Any, tmp_path: Path, write: Callable[..., Path]) -> None:
    ds = dataset().chunk(time=2)
    (tmp_path / "alone").mkdir()
    with dask.config.set(scheduler="synchronous"):
        expected = write(ds, tmp_path / "alone")
    found = write(ds, tmp_path)
    with (
        xr.open_dataset(expected, engine="tensordict") as first,
        xr.open_dataset(found, engine="tensordict") as second,
        open_persistent(found) as ptd,
        dask.config.set(scheduler="synchronous"),
    ):
        xr.testing.assert_identical(first.load(), second.load())
        assert_same_tensordict(first.td.to_tensordict(), second.td.to_tensordict())
        assert_same_tensordict(first.td.to_tensordict(), ptd.to_tensordict())


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("client", "write"),
    on("local_cluster", to_zarr, to_shards, archive, to_h5, to_netcdf, to_memmap)
    + on("separate_workers", to_zarr, to_h5),
    indirect=["client"],
)
# blocks of one row: many tasks, of which several read the same chunk
@pytest.mark.filterwarnings("ignore:The specified chunks separate the stored chunks")
def test_workers_read_and_preprocess_what_one_process_does(client: Any, tmp_path: Path, write: Any) -> None:
    with dask.config.set(scheduler="synchronous"):
        path = write(dataset(), tmp_path)
    with (
        xr.open_dataset(path, engine="tensordict", chunks={"time": 1}) as ds,
        xr.open_dataset(path, engine="tensordict") as eager,
    ):
        assert_same_tensordict(eager.td.to_tensordict(), ds.td.to_tensordict())
        changed, expected = (
            (one - one.min("time")) * 2 for one in (held.td.batched.drop_vars(["text", "done"]) for held in (ds, eager))
        )
        changed.td.to_zarr(tmp_path / "changed.zarr")
        with xr.open_dataset(tmp_path / "changed.zarr", engine="tensordict") as found:
            xr.testing.assert_identical(found.load(), expected.load())
        with ds.td.to_persistent() as lazy:
            assert_same_tensordict(lazy[[4, 1]], eager.td.to_tensordict()[[4, 1]])


# -- a worker that is lost ----------------------------------------------------------------------------------------------


def dies_once(block: np.ndarray[Any, Any], flag: str) -> np.ndarray[Any, Any]:
    """Kill the process that computes it, the first time."""
    import signal

    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return block
    os.kill(os.getpid(), signal.SIGKILL)
    return block


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize("write", [to_zarr, append, to_h5, to_memmap], ids=lambda write: write.__name__)
def test_a_worker_that_is_killed_while_it_writes_is_replaced_and_the_store_is_right(tmp_path: Path, write: Any) -> None:
    ds = dataset()
    chunked = ds.chunk(time=1)
    data = chunked["obs"].data.map_blocks(
        dies_once, flag=str(tmp_path / "died"), dtype="f4", meta=np.zeros((0, 0), "f4")
    )
    cluster = distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        silence_logs=50,
    )
    with cluster, distributed.Client(cluster):
        path = write(chunked.assign(obs=(("time", "f"), data)), tmp_path)
    assert (tmp_path / "died").exists()
    expected = ds.drop_vars("mask") if write is to_memmap else ds
    with xr.open_dataset(path, engine="tensordict") as found:
        assert_same_tensordict(expected.td.to_tensordict(), found.td.to_tensordict())
