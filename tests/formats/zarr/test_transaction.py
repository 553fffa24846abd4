"""A change of a zarr store is a transaction: readers see it whole or not at all, and two writers never lose each other's rows."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import dask.array
import numpy as np
import pytest
import xarray as xr
import zarr
from tensordict import TensorDict
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore

import xarray_tensordict
from written import content, documents
from xarray_tensordict.core.metadata import COMMIT_ATTR
from xarray_tensordict.formats.zarr import transaction

FORMATS = pytest.mark.parametrize("zarr_format", [2, 3])
LAYOUTS = pytest.mark.parametrize("layout", ["tensordict", "xarray"])


def rows(start: int, stop: int) -> xr.Dataset:
    """Numbers that say which row they are in, nested ones too, objects, and a time-only series under a batch of two dims."""
    numbers = np.arange(start, stop, dtype="f8")
    told = np.empty((stop - start, 1), object)
    told[:, 0] = [{"row": int(number)} for number in numbers]
    return xr.Dataset(
        {
            "x": (("time", "run", "f"), np.repeat(numbers[:, None, None], 3, 2)),
            "next/x": (("time", "run"), numbers[:, None]),
            "told": (("time", "run"), told),
            "clock": ("time", numbers),
        }
    ).td.set_batch_dims(["time", "run"])


def assert_rows(ds: xr.Dataset, count: int) -> None:
    expected = rows(0, count)
    for name, variable in expected.variables.items():
        assert ds[name].values.tolist() == variable.values.tolist(), name


# -- readers -----------------------------------------------------------------------------------------------------------


def of_the_engine(path: Any) -> int:
    ds = xr.open_dataset(path, engine="tensordict").load()
    assert_rows(ds, ds.sizes["time"])
    assert ds.td.batch_size == (ds.sizes["time"], 1)
    return ds.sizes["time"]


def of_the_lazy_tensordict(path: Any) -> int:
    td = xarray_tensordict.open_persistent(path)
    found = td.to_tensordict()
    td.close()
    assert found["x"][:, 0, 0].tolist() == found["next", "x"][:, 0].tolist() == list(range(len(found)))
    return len(found)


def of_plain_xarray(path: Any) -> int:
    ds = xr.open_zarr(path).load()
    assert ds["x"].values[:, 0, 0].tolist() == list(range(ds.sizes["time"]))
    return ds.sizes["time"]


def of_bare_tensordict(path: Any) -> int:
    td = TensorDict.from_zarr(path)
    assert td["x"][:, 0, 0].tolist() == td["next", "x"][:, 0].tolist() == list(range(td.batch_size[0]))
    return int(td.batch_size[0])


READERS = [of_the_engine, of_the_lazy_tensordict, of_plain_xarray, of_bare_tensordict]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("zarr_format", [3, pytest.param(2, marks=pytest.mark.slow)])
def test_readers_in_a_loop_see_whole_prefixes_while_rows_are_appended(
    tmp_path: Path, zarr_format: Any, read: Callable[[Any], int]
) -> None:
    if zarr_format == 2 and read is of_bare_tensordict:
        pytest.skip(
            "zarr v2 keeps shapes and attributes in two documents, which plain tensordict reads one after the other"
        )
    path = tmp_path / "a.zarr"
    rows(0, 2).td.to_zarr(path, zarr_format=zarr_format, chunks={"time": 3})
    stop, seen = threading.Event(), [2]

    def watch() -> None:
        while not stop.is_set():
            seen.append(read(path))

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        for start in range(2, 12):
            rows(start, start + 1).chunk(time=1).td.to_zarr(path, append_dim="time")
            if watching.done():
                break
        stop.set()
        watching.result()
    assert seen == sorted(seen)
    assert read(path) == 12


@FORMATS
@LAYOUTS
def test_nothing_is_seen_of_an_append_before_it_is_computed(tmp_path: Path, zarr_format: Any, layout: Any) -> None:
    path = tmp_path / "a.zarr"
    ds = rows(0, 2)[["x", "next/x"]] if layout == "xarray" else rows(0, 2)
    ds.td.to_zarr(path, zarr_format=zarr_format, layout=layout)
    more = (rows(2, 5)[["x", "next/x"]] if layout == "xarray" else rows(2, 5)).chunk(time=1)
    todo = more.td.to_zarr(path, append_dim="time", compute=False)
    assert [xr.open_zarr(path).sizes["time"], xr.open_zarr(path, consolidated=False).sizes["time"]] == [2, 2]
    assert xr.open_dataset(path, engine="tensordict").sizes["time"] == 2
    todo.compute()
    assert xr.open_zarr(path).sizes["time"] == 5
    assert xr.open_dataset(path, engine="tensordict")["next/x"].values[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_another_append_comes_first_and_the_delayed_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    rows(0, 2).td.to_zarr(path)
    todo = rows(2, 3).chunk(time=1).td.to_zarr(path, append_dim="time", compute=False)
    rows(2, 4).td.to_zarr(path, append_dim="time")
    with pytest.raises(OSError, match=r"were changed by another program.*try again"):
        todo.compute()
    assert of_the_engine(path) == 4
    rows(4, 5).td.to_zarr(path, append_dim="time")  # the store has been given back
    assert of_the_engine(path) == 5


def test_a_block_that_others_need_too_is_computed_once(tmp_path: Path) -> None:
    computed = []

    def count(block: np.ndarray) -> np.ndarray:
        computed.append(1)
        return block + 1

    x = dask.array.zeros((8, 2), chunks=(2, 2)).map_blocks(count, dtype="f8", meta=np.empty((0, 0)))
    ds = xr.Dataset({"x": (("time", "f"), x)})
    total, _ = dask.compute(ds.sum(), ds.td.to_zarr(tmp_path / "a.zarr", compute=False))
    assert total["x"] == 16
    assert len(computed) == 4
    computed.clear()
    dask.compute(ds.mean(), ds.td.to_zarr(tmp_path / "a.zarr", append_dim="time", compute=False))
    assert len(computed) == 4
    assert xr.open_zarr(tmp_path / "a.zarr")["x"].shape == (16, 2)


# -- writers -----------------------------------------------------------------------------------------------------------


def stores(kind: str, tmp_path: Path) -> Any:
    if kind == "folder":
        return tmp_path / "a.zarr"
    if kind == "fsspec":
        return f"memory://{tmp_path.name}.zarr"
    if kind == "obstore":
        import obstore.store

        return ObjectStore(obstore.store.MemoryStore())
    return MemoryStore()


KINDS = pytest.mark.parametrize("kind", ["folder", "memory", "fsspec", "obstore"])


def pairs(offset: int, count: int) -> xr.Dataset:
    numbers = np.arange(offset, offset + count, dtype="f8")
    return xr.Dataset({"obs": ("time", numbers), "next/obs": ("time", numbers)}).td.set_batch_dims("time")


@KINDS
def test_two_appenders_lose_no_rows(tmp_path: Path, kind: str) -> None:
    store = stores(kind, tmp_path)
    pairs(0, 5).td.to_zarr(store, chunks={"time": 16})

    def work(offset: int) -> None:
        for number in range(6):
            pairs(offset + 5 * number, 5).td.to_zarr(store, append_dim="time")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, [100, 200]))
    found = xr.open_dataset(store, engine="tensordict").load()
    assert sorted(found["obs"].values) == [*range(5), *range(100, 130), *range(200, 230)]
    np.testing.assert_array_equal(found["obs"], found["next/obs"])


def test_a_writer_that_finds_the_lock_and_loses_sight_of_it_waits_and_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    url, tried = "memory://lock-that-was-given-back.zarr", []
    pairs(0, 5).td.to_zarr(url)
    create = MemoryFileSystem.pipe_file

    def taken_at_first(self: Any, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        if mode == "create" and path.endswith(transaction.LOCK):
            tried.append(path)
            if len(tried) == 1:  # the other writer had it, and gave it back before anybody could look
                raise FileExistsError(path)
        create(self, path, value, mode, **kwargs)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", taken_at_first)
    pairs(5, 2).td.to_zarr(url, append_dim="time")
    assert len(tried) == 2
    assert xr.open_dataset(url, engine="tensordict")["obs"].values.tolist() == list(range(7))


def test_a_local_folder_behind_fsspec_is_appended_to_and_other_files_in_it_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    pairs(0, 5).td.to_zarr(path)
    (path / "README").write_text("what this is")
    store = FsspecStore.from_url(f"file://{path}")
    pairs(5, 2).td.to_zarr(store, append_dim="time")
    assert xr.open_dataset(store, engine="tensordict")["next/obs"].values.tolist() == list(range(7))
    assert not (path / transaction.LOCK).exists()


@pytest.mark.slow
def test_processes_that_append_lose_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    pairs(0, 5).td.to_zarr(path, chunks={"time": 16})
    program = (
        "import sys, numpy as np, xarray as xr, xarray_tensordict\n"
        "for number in range(8):\n"
        "    n = np.arange(5.0) + float(sys.argv[2]) + 5 * number\n"
        "    ds = xr.Dataset({'obs': ('time', n), 'next/obs': ('time', n)}).td.set_batch_dims('time')\n"
        "    ds.td.to_zarr(sys.argv[1], append_dim='time')\n"
    )
    started = [subprocess.Popen([sys.executable, "-c", program, str(path), str(start)]) for start in (100, 200)]
    assert [process.wait(300) for process in started] == [0, 0]
    found = xr.open_dataset(path, engine="tensordict").load()
    assert sorted(found["obs"].values) == [*range(5), *range(100, 140), *range(200, 240)]
    np.testing.assert_array_equal(found["obs"], found["next/obs"])


@KINDS
def test_a_store_that_somebody_else_changes_is_refused_with_nothing_changed(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "WAIT", 0.1)
    store = stores(kind, tmp_path)
    pairs(0, 5).td.to_zarr(store)
    opened: Any = LocalStore(store) if kind == "folder" else FsspecStore.from_url(store) if kind == "fsspec" else store
    with transaction.taken(opened, "here"):
        with pytest.raises(BlockingIOError, match=r"is changing the store.*Nothing was changed: try again"):
            pairs(5, 5).td.to_zarr(store, append_dim="time")
        with pytest.raises(BlockingIOError, match="try again"):
            pairs(5, 5).rename(obs="more").td.to_zarr(store, mode="a")
        assert xr.open_dataset(store, engine="tensordict")["obs"].values.tolist() == [0, 1, 2, 3, 4]
    pairs(5, 5).td.to_zarr(store, append_dim="time")
    assert xr.open_dataset(store, engine="tensordict").sizes["time"] == 10


def test_an_object_of_a_writer_that_is_gone_can_be_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "WAIT", 0.1)
    held: dict[str, Any] = {}
    store = MemoryStore(held)
    pairs(0, 5).td.to_zarr(store)
    taken = transaction.Taken(store, "here")
    with pytest.raises(BlockingIOError, match=rf"\"pid\": {os.getpid()}.*delete the object '{transaction.LOCK}'"):
        pairs(5, 5).td.to_zarr(store, append_dim="time")
    del held[transaction.LOCK]
    pairs(5, 5).td.to_zarr(store, append_dim="time")
    taken.release()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows removes no file that is open")
def test_a_lock_on_a_file_that_was_removed_meanwhile_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder removes the file as it gives the store back, after the next writer has opened it and before it locks it."""
    fcntl = pytest.importorskip("fcntl")
    flock, removed = fcntl.flock, []

    def late(number: int, flags: int) -> None:
        if not removed and flags & fcntl.LOCK_EX:
            removed.append(True)
            (tmp_path / transaction.LOCK).unlink()
        flock(number, flags)

    (tmp_path / transaction.LOCK).touch()
    monkeypatch.setattr(fcntl, "flock", late)
    with transaction.taken(LocalStore(tmp_path), "here"):
        assert removed
        with pytest.raises(BlockingIOError, match="try again"):
            transaction.Taken(LocalStore(tmp_path), "here", wait=0)


def test_a_writer_whose_folder_was_replaced_leaves_the_lock_of_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    first = transaction.Taken(LocalStore(path), "here")
    path.rename(tmp_path / "old")
    second = transaction.Taken(LocalStore(path), "here")
    first.release()
    with pytest.raises(BlockingIOError, match="try again"):
        transaction.Taken(LocalStore(path), "here", wait=0)
    second.release()
    transaction.Taken(LocalStore(path), "here", wait=0).release()


def test_a_lock_is_not_handed_to_another_process_and_an_object_is(tmp_path: Path) -> None:
    with (
        transaction.taken(LocalStore(tmp_path), "here") as held,
        pytest.raises(ValueError, match=r"here: the lock of a folder.*scheduler='threads'"),
    ):
        pickle.dumps(held)
    url = f"file://{tmp_path}"
    taken = transaction.Taken(FsspecStore.from_url(url), "here")
    pickle.loads(pickle.dumps(taken)).release()
    transaction.Taken(FsspecStore.from_url(url), "here", wait=0).release()


@pytest.mark.slow
def test_a_delayed_append_is_refused_where_no_process_could_hold_the_store(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    pairs(0, 4).td.to_zarr(path, chunks={"time": 3})
    before = content(path)
    todo = pairs(4, 4).chunk(time=1).td.to_zarr(path, append_dim="time", compute=False)
    with pytest.raises(ValueError, match="Nothing was changed: compute with scheduler='threads'"):
        todo.compute(scheduler="processes", num_workers=2)
    assert content(path) == before
    pairs(4, 4).chunk(time=1).td.to_zarr(path, append_dim="time", compute=False).compute(scheduler="threads")
    assert xr.open_dataset(path, engine="tensordict").sizes["time"] == 8


def test_what_another_program_has_changed_in_the_meantime_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    pairs(0, 4).td.to_zarr(path, chunks={"time": 2})

    def resized(block: np.ndarray) -> np.ndarray:
        array = zarr.open_array(path / "obs", mode="r+")
        if array.shape == (4,):
            array.resize((5,))
        return block

    more = pairs(4, 2).chunk(time=2)
    more = more.assign(obs=more["obs"].copy(data=more["obs"].data.map_blocks(resized, dtype="f8", meta=np.empty(0))))
    with pytest.raises(OSError, match=r"\['obs/zarr.json'\] were changed by another program"):
        more.td.to_zarr(path, append_dim="time")
    assert json.loads((path / "zarr.json").read_bytes())["attributes"]["__tensordict__"]["batch_size"] == [4]


@pytest.mark.parametrize("mode", [None, "w-"])
def test_of_two_that_create_a_folder_one_is_refused(tmp_path: Path, mode: Any) -> None:
    path = tmp_path / "a.zarr"

    def overtaken(block: np.ndarray) -> np.ndarray:
        if not path.exists():
            pairs(0, 3).td.to_zarr(path)
        return block

    ds = pairs(10, 4).chunk(time=4)
    ds = ds.assign(obs=ds["obs"].copy(data=ds["obs"].data.map_blocks(overtaken, dtype="f8", meta=np.empty(0))))
    with pytest.raises(FileExistsError, match="in the meantime"):
        ds.td.to_zarr(path, mode=mode)
    assert xr.open_dataset(path, engine="tensordict").sizes["time"] == 3
    assert [child.name for child in tmp_path.iterdir()] == ["a.zarr"]


def test_regions_that_share_a_text_or_a_chunk_come_one_after_the_other(tmp_path: Path) -> None:
    path, count = tmp_path / "a.zarr", 24
    rows(0, count).assign(x=rows(0, count)["x"] - 1).td.to_zarr(path, chunks={"time": 8})

    def work(start: int) -> None:
        part = rows(start, start + 3)
        part.td.to_zarr(path, region={"time": slice(start, start + 3)})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(0, count, 3)))
    assert of_the_engine(path) == count


def test_regions_of_whole_chunks_take_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "WAIT", 0.1)
    path = tmp_path / "a.zarr"
    pairs(0, 6).td.to_zarr(path, chunks={"time": 3})
    with transaction.taken(LocalStore(path), "here"):
        (pairs(3, 3) * -1).td.to_zarr(path, region={"time": slice(3, 6)})
        with pytest.raises(BlockingIOError):
            pairs(1, 1).td.to_zarr(path, region={"time": slice(1, 2)})
    assert xr.open_dataset(path, engine="tensordict")["obs"].values.tolist() == [0, 1, 2, -3, -4, -5]


def test_nothing_is_left_beside_the_store_or_in_it(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    pairs(0, 6).td.to_zarr(path)
    pairs(6, 2).td.to_zarr(path, append_dim="time")
    pairs(0, 8).rename(obs="more").drop_vars("next/obs").td.to_zarr(path, mode="a")
    pairs(0, 2).chunk(time=1).td.to_zarr(path, group="g", compute=False).compute()
    pairs(0, 2).td.to_zarr(path, group="h")
    assert {child.name for child in path.iterdir()} == {"zarr.json", "obs", "next", "more", "g", "h"}
    assert [child.name for child in tmp_path.iterdir()] == ["a.zarr"]


# -- killed commits ----------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Nothing is cleaned up after it."""


def killed_in_commit(path: Path, monkeypatch: pytest.MonkeyPatch, zarr_format: Any) -> None:
    """Leave a store whose writer died when one array had grown and the others had not."""
    name = "zarr.json" if zarr_format == 3 else ".zarray"

    class Dying(zarr.storage.WrapperStore[LocalStore]):
        dead = False

        async def set(self, key: str, value: Any) -> None:
            if self.dead or key == f"next/x/{name}":
                self.dead = True
                raise Killed
            await super().set(key, value)

    with pytest.raises(Killed):
        rows(2, 4).td.to_zarr(Dying(LocalStore(path)), append_dim="time")
    assert is_marked(path)


def is_marked(path: Path) -> bool:
    return any(COMMIT_ATTR in file.read_text() for file in path.glob("*") if file.name in {"zarr.json", ".zattrs"})


@FORMATS
@pytest.mark.parametrize("consolidated", [True, False])
def test_the_next_to_open_a_folder_rolls_a_killed_commit_back(
    tmp_path: Path, zarr_format: Any, consolidated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.zarr"
    rows(0, 2).td.to_zarr(path, zarr_format=zarr_format, consolidated=consolidated)
    before = documents(path)
    killed_in_commit(path, monkeypatch, zarr_format)
    assert of_the_engine(path) == 2
    assert documents(path) == before
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert of_bare_tensordict(path) == 2
    rows(2, 5).td.to_zarr(path, append_dim="time")
    assert of_the_engine(path) == 5


@FORMATS
def test_those_who_may_not_write_see_a_killed_commit_as_it_was(
    tmp_path: Path, zarr_format: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.zarr"
    rows(0, 2).td.to_zarr(path, zarr_format=zarr_format, consolidated=False)
    killed_in_commit(path, monkeypatch, zarr_format)
    monkeypatch.setattr(transaction, "_rolled_back", lambda store, root: False)
    for read in (of_the_engine, of_the_lazy_tensordict):
        assert read(path) == 2
    assert is_marked(path)
