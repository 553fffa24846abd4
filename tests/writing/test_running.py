"""A write that fails raises when nothing is written any more: tasks and requests beside the one that failed go on."""

import asyncio
import functools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr
import zarr.storage

from clusters import SCHEDULERS
from written import content, documents
from xarray_tensordict.testing import assert_same_tensordict


def fails_beside(folder: Path, block: np.ndarray, block_info: Any = None) -> np.ndarray:
    """The first block fails as soon as the second one has started, which takes its time."""
    started, done = folder / "started", folder / "done"
    if block_info[0]["chunk-location"][0]:
        started.touch()
        time.sleep(0.3)
        done.touch()
        return block
    while not started.exists():
        time.sleep(0.001)
    raise ValueError("this block fails")


def dataset(rows: int = 4) -> xr.Dataset:
    return xr.Dataset({"x": (("time", "f"), np.arange(3.0 * rows).reshape(rows, 3))})


def failing(folder: Path, rows: int = 4) -> xr.Dataset:
    blocks = dataset(rows).chunk(time=rows // 2)
    function = functools.partial(fails_beside, folder)
    return blocks.assign(x=blocks["x"].copy(data=blocks["x"].data.map_blocks(function, dtype="f8")))


def create(ds: xr.Dataset, path: Path, name: str = "new.zarr") -> None:
    ds.td.to_zarr(path / name, mode="w")


def append(ds: xr.Dataset, path: Path) -> None:
    ds.td.to_zarr(path / "a.zarr", append_dim="time")


def add(ds: xr.Dataset, path: Path) -> None:
    ds.rename(x="y").td.to_zarr(path / "a.zarr", mode="a")


def shown(ds: xr.Dataset, path: Path) -> None:
    ds.td.to_zarr(path / "a.zarr", append_dim="time", progress=True)


def replace(ds: xr.Dataset, path: Path) -> None:
    create(ds, path, "a.zarr")


def memmap(ds: xr.Dataset, path: Path) -> None:
    ds.td.to_memmap(path / "new")


def archive(ds: xr.Dataset, path: Path) -> None:
    create(ds, path, "new.zip")


WRITERS = pytest.mark.parametrize("write", [create, replace, append, shown, add, memmap, archive])


@pytest.fixture(params=["default", "threads", "thread pool", "executor"])
def local(request: pytest.FixtureRequest) -> Iterator[None]:
    """The ways to have dask compute in threads of this process."""
    with ThreadPoolExecutor(3) as executor, ThreadPool(3) as pool:
        keywords = {
            "default": {"num_workers": 3},
            "threads": {"scheduler": "threads", "pool": executor},
            "thread pool": {"pool": pool},
            "executor": {"scheduler": executor},
        }[request.param]
        with dask.config.set(keywords):
            yield


def assert_nothing_comes_after(write: Callable[[xr.Dataset, Path], None], folder: Path) -> None:
    path, flags = folder / "stores", folder / "flags"
    flags.mkdir()
    dataset().td.to_zarr(path / "a.zarr", chunks={"time": 2})
    before = documents(path)
    with pytest.raises(ValueError, match="this block fails"):
        write(failing(flags), path)
    assert (flags / "done").exists(), "the block beside the one that failed is still computed"
    # what an append leaves is behind the last row, where nobody sees it
    assert documents(path) == before
    held = content(path)
    time.sleep(0.4)
    assert content(path) == held
    # whoever tries again, with other values, is not written over
    write(dataset() + 1, path)
    assert documents(path) != before or content(path) != held


@WRITERS
@pytest.mark.usefixtures("local")
def test_with_threads_it_raises_when_all_are_done(tmp_path, write):
    assert_nothing_comes_after(write, tmp_path)


@pytest.mark.slow
@pytest.mark.faults
@WRITERS
@pytest.mark.parametrize("scheduler", SCHEDULERS, indirect=True)
def test_with_each_scheduler_it_raises_when_all_are_done(
    tmp_path: Path, write: Callable[[xr.Dataset, Path], None], scheduler: AbstractContextManager[Any]
) -> None:
    with scheduler:
        assert_nothing_comes_after(write, tmp_path)


def test_a_computation_inside_of_a_task_does_not_wait_for_itself(tmp_path):
    def nested(block: np.ndarray) -> np.ndarray:
        return np.asarray(dask.array.asarray(block).rechunk((1, -1)).sum(axis=1, keepdims=True).compute()) + block

    blocks = dataset().chunk(time=1)
    ds = blocks.assign(x=blocks["x"].copy(data=blocks["x"].data.map_blocks(nested, dtype="f8")))
    with dask.config.set(num_workers=1):
        ds.td.to_zarr(tmp_path / "a.zarr")
    with xr.open_dataset(tmp_path / "a.zarr", engine="tensordict") as found:
        x = dataset()["x"]
        np.testing.assert_array_equal(found["x"], x + x.sum("f"))


def test_tasks_see_the_context_of_the_caller(tmp_path):
    def mode(block: np.ndarray) -> np.ndarray:
        return np.full_like(block, np.geterr()["divide"] == "raise")

    ds = dataset().chunk(time=2)
    ds = ds.assign(x=ds["x"].copy(data=ds["x"].data.map_blocks(mode, dtype="f8")))
    with np.errstate(divide="raise"):
        ds.td.to_zarr(tmp_path / "a.zarr")
    with xr.open_dataset(tmp_path / "a.zarr", engine="tensordict") as found:
        assert found["x"].all()


class Failing(zarr.storage.WrapperStore[zarr.storage.LocalStore]):
    """A store that fails to write one chunk while it still writes the next one."""

    fails = False

    async def set(self, key: str, value: Any) -> None:
        if self.fails and key.endswith("x/c/2/0"):
            raise OSError("no space left")
        if self.fails and key.endswith("x/c/3/0"):
            await asyncio.sleep(0.3)
        await super().set(key, value)


@pytest.mark.parametrize("chunked", [False, True])
def test_requests_of_zarr_are_awaited(tmp_path, chunked):
    store = Failing(zarr.storage.LocalStore(tmp_path / "a.zarr"))
    dataset().td.to_zarr(store, chunks={"time": 2})
    before = documents(tmp_path / "a.zarr")
    rows = dataset().chunk(time=4) if chunked else dataset()
    store.fails = True
    with pytest.raises(OSError, match="no space left"):
        rows.td.to_zarr(store, append_dim="time")
    assert documents(tmp_path / "a.zarr") == before
    assert content(tmp_path / "a.zarr") == (time.sleep(0.4), content(tmp_path / "a.zarr"))[1]
    store.fails = False
    rows.td.to_zarr(store, append_dim="time")
    with xr.open_dataset(tmp_path / "a.zarr", engine="tensordict") as found:
        expected = xr.concat([dataset(), dataset()], "time")
        assert_same_tensordict(found.td.to_tensordict(), expected.td.to_tensordict())
