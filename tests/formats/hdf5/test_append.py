"""Appends to HDF5 files change the file in place: what they cost, who may, and what a failed or killed one leaves."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
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
import h5py
import numpy as np
import pytest
import xarray as xr

import corpus
from written import assert_gives_back, era, reopened
from xarray_tensordict import IncompleteStoreWarning, open_persistent
from xarray_tensordict.formats.hdf5.output import Hdf5Output

LAYOUTS = pytest.mark.parametrize("layout", ["tensordict", "xarray"])
FORKS = pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
ROWS = 6


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.h5"


def rows(start: int, count: int = ROWS) -> xr.Dataset:
    """Numbers, text, a nested entry and something without the dim."""
    base = np.arange(start, start + count, dtype="f4")
    ds = xr.Dataset(
        {
            "obs": (("time", "f"), np.repeat(base[:, None], 3, 1)),
            "next/obs": (("time", "f"), np.repeat(base[:, None], 3, 1) + 0.5),
            "text": ("time", np.array([f"row {row}" for row in range(start, start + count)], object)),
            "mask": ("f", [1.0, 0.0, 1.0]),
        },
        coords={"time": np.arange(start, start + count)},
    ).td.set_batch_dims("time")
    ds.encoding["unlimited_dims"] = {"time"}
    return ds


def told(path: Path) -> tuple[xr.Dataset, list[str]]:
    """What the engine opens, loaded, and what it warns of as incomplete."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with xr.open_dataset(path, engine="tensordict") as ds:
            ds.load()
    return ds, [str(each.message) for each in caught if issubclass(each.category, IncompleteStoreWarning)]


def test_an_append_writes_its_rows_and_not_the_file(path: Path) -> None:
    ds = xr.Dataset({"x": (("time", "f"), np.ones((20_000, 100), "f4"))})
    ds.td.to_h5(path, unlimited_dims=["time"], chunks={"time": 100})
    inode, size = path.stat().st_ino, path.stat().st_size
    ds.isel(time=slice(0, 10)).td.to_h5(path, append_dim="time")
    assert path.stat().st_ino == inode
    assert path.stat().st_size < size + 200_000
    assert reopened(path).sizes["time"] == 20_010
    assert os.listdir(path.parent) == [path.name]


def growing(rows: int) -> xr.Dataset:
    """A Dataset whose file can grow along time."""
    ds = era(rows)
    ds.encoding["unlimited_dims"] = {"time"}
    return ds


@LAYOUTS
def test_append_to_a_group_of_a_file_leaves_the_rest(path: Path, layout: Any) -> None:
    era().td.to_h5(path, layout=layout)
    growing(3).td.to_h5(path, layout=layout, mode="a", group="runs/a")
    growing(6).isel(time=slice(3, 6)).td.to_h5(path, group="runs/a", append_dim="time")
    assert_gives_back(path, growing(6), group="runs/a")
    np.testing.assert_array_equal(reopened(path, nested=False)["t2m"], era()["t2m"])


def test_append_along_another_dim_than_the_batch_grows_what_is_kept_as_json(path: Path) -> None:
    ds = xr.Dataset({"x": (("time", "f"), np.zeros((4, 2))), "table": (("row", "k"), np.arange(6.0).reshape(3, 2))})
    ds.td.to_h5(path)
    ds[["table"]].td.to_h5(path, append_dim="row")
    assert reopened(path)["table"].values.tolist() == [[0, 1], [2, 3], [4, 5]] * 2


def test_append_to_netcdf_keeps_its_packing_and_units(path: Path) -> None:
    ds = xr.Dataset(
        {"t2m": (("time", "x"), np.array([[280.0, 281.5], [282.0, 283.5]]))},
        coords={"time": np.array(["2000-01-01", "2000-01-02"], "M8[ns]")},
    )
    encoding = {
        "t2m": {"dtype": "i2", "scale_factor": 0.5, "add_offset": 280.0, "_FillValue": -1},
        "time": {"units": "days since 2000-01-01", "dtype": "i4"},
    }
    ds.to_netcdf(path, engine="h5netcdf", encoding=encoding, unlimited_dims=["time"])
    later = ds.assign_coords(time=ds["time"] + np.timedelta64(2, "D"))
    later.td.to_h5(path, append_dim="time")
    with h5py.File(path) as file:
        assert file["t2m"].dtype == np.dtype("i2")
        assert file["t2m"][:].tolist() == [[0, 3], [4, 7]] * 2
        assert file["time"][:].tolist() == [0, 1, 2, 3]
        assert file["t2m"].dims[0][0] == file["time"], "the dimension scale is that of before"
    with xr.open_dataset(path, engine="netcdf4") as found:
        np.testing.assert_array_equal(found["t2m"], np.concatenate([ds["t2m"], ds["t2m"]]))
    with pytest.raises(ValueError, match="does not hold its times"):
        later.assign_coords(time=later["time"] + np.timedelta64(1, "h")).td.to_h5(path, append_dim="time")


@LAYOUTS
def test_a_dataset_that_is_open_sees_its_own_rows_before_and_after(path: Path, layout: Any) -> None:
    rows(0).td.to_h5(path, layout=layout)
    with xr.open_dataset(path, engine="tensordict", cache=False) as ds, open_persistent(path) as ptd:
        assert ds["obs"].values[-1, 0] == ROWS - 1
        rows(ROWS).td.to_h5(path, append_dim="time")
        assert ds["obs"].values[:, 0].tolist() == list(range(ROWS))
        assert ptd["next", "obs"][:, 0].tolist() == [row + 0.5 for row in range(ROWS)]
        rows(2 * ROWS).td.to_h5(path, append_dim="time")
    assert reopened(path)["obs"].values[:, 0].tolist() == list(range(3 * ROWS))


def test_rows_of_the_file_itself_are_appended_to_it(path: Path) -> None:
    rows(0).td.to_h5(path)
    with xr.open_dataset(path, engine="tensordict", chunks={}) as ds:
        ds.drop_vars("mask").isel(time=slice(0, 4)).td.to_h5(path, append_dim="time")
    assert reopened(path)["obs"].values[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    with h5py.File(path, "r+"):
        pass  # nothing has it open any more


@LAYOUTS
def test_a_failed_append_leaves_the_rows_and_a_retry_works(path: Path, layout: Any) -> None:
    def fails(block: Any) -> Any:
        raise RuntimeError("boom")

    rows(0).td.to_h5(path, layout=layout)
    before, _ = told(path)
    more = rows(ROWS).chunk(time=2)
    broken = more.assign(obs=(("time", "f"), dask.array.map_blocks(fails, more["obs"].data, dtype="f4")))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="boom"):
            broken.td.to_h5(path, append_dim="time")
        after, incomplete = told(path)
        assert after.identical(before)
        assert not incomplete
    more.td.to_h5(path, append_dim="time")
    assert reopened(path)["next/obs"].values[:, 0].tolist() == [row + 0.5 for row in range(2 * ROWS)]


def forked(work: Callable[[], None]) -> int:
    """The exit code of a fork that does some work; dask does without threads there."""

    def run() -> None:
        with dask.config.set(scheduler="synchronous"):
            work()

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join(120)
    return int(process.exitcode or 0)


def append_and_die(path: Path, flushes: int) -> None:
    """Append, and be killed before HDF5 writes for the next time."""
    flush, left = Hdf5Output.flush, [flushes]

    def counted(output: Hdf5Output) -> None:
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        flush(output)

    Hdf5Output.flush = counted  # type: ignore[method-assign]
    rows(ROWS).td.to_h5(path, append_dim="time")


@FORKS
@pytest.mark.parametrize("flushes", [0, 1, 2, 3])
@LAYOUTS
def test_a_killed_append_leaves_the_old_rows_and_a_retry_works(path: Path, layout: Any, flushes: int) -> None:
    """After no flush nothing has happened; then there are marks; then rows; then all is written."""
    rows(0).td.to_h5(path, layout=layout)
    before, _ = told(path)
    assert forked(lambda: append_and_die(path, flushes)) == -signal.SIGKILL
    found, incomplete = told(path)
    if flushes in {1, 2}:
        assert len(incomplete) == 1
        assert "file.h5: the file is not complete: an append along 'time' has not finished" in incomplete[0]
        with pytest.warns(IncompleteStoreWarning, match="append_dim='time'"):
            ptd = open_persistent(path)
        assert ptd.batch_size == (ROWS,)
        assert corpus.text(ptd["text"]) == before["text"].values.tolist()
        ptd.close()
    else:
        assert not incomplete
    if flushes < 3:
        assert found.identical(before)
        rows(ROWS).td.to_h5(path, append_dim="time")
    whole, incomplete = told(path)
    assert not incomplete
    assert whole["obs"].values[:, 0].tolist() == list(range(2 * ROWS))
    assert whole["text"].values.tolist() == [f"row {row}" for row in range(2 * ROWS)]
    assert whole.td.batch_size == (2 * ROWS,)


@pytest.mark.parametrize("how", ["r", "r+"])
def test_a_file_that_is_open_elsewhere_is_refused_by_name(path: Path, how: str) -> None:
    rows(0).td.to_h5(path)
    hold = f"import h5py, sys; f = h5py.File({str(path)!r}, {how!r}); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        ways: list[dict[str, Any]] = [{"append_dim": "time"}, {"mode": "a"}, {"mode": "w"}, {"group": "g"}]
        for options in ways[:1] if how == "r" else ways:
            with pytest.raises(BlockingIOError, match=r"file\.h5: the file is open elsewhere.*try again"):
                rows(ROWS).td.to_h5(path, **options)
        if how == "r":  # a copy may take the place of a file that others read
            xr.Dataset({"more": ("time", np.zeros(ROWS))}).td.to_h5(path, mode="a")
        holder.communicate()
    assert os.listdir(path.parent) == [path.name]
    if how == "r":  # what was added can grow with the rest
        rows(ROWS).drop_vars("mask").assign(more=("time", np.zeros(ROWS))).td.to_h5(path, append_dim="time")
    assert reopened(path)["obs"].values[:, 0].tolist() == list(range(2 * ROWS if how == "r" else ROWS))


def test_two_threads_that_append_lose_no_row(path: Path) -> None:
    rows(0).td.to_h5(path)
    done, refused = [0], []

    def work(start: int) -> None:
        for number in range(8):
            first = start + number * ROWS
            try:
                rows(first).drop_vars("mask").td.to_h5(path, append_dim="time")
                done.append(first)
            except (ValueError, BlockingIOError) as error:
                refused.append(str(error))

    threads = [threading.Thread(target=work, args=(start,)) for start in (1000, 2000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ds = reopened(path)
    expected = {row for first in done for row in range(first, first + ROWS)}
    assert set(ds["obs"].values[:, 0].astype(int).tolist()) == expected
    np.testing.assert_array_equal(ds["next/obs"], ds["obs"] + 0.5)
    assert all("file.h5: this process has the file open" in error or "open elsewhere" in error for error in refused)


@pytest.mark.filterwarnings("ignore::xarray_tensordict.IncompleteStoreWarning")
def test_threads_that_open_and_read_stand_in_the_way_of_no_append_and_see_whole_appends(path: Path) -> None:
    def some(number: int) -> xr.Dataset:
        return rows(number * ROWS)[["obs"]]

    some(0).td.to_h5(path)
    stopped = threading.Event()
    found: list[int] = []

    def read() -> None:
        while not stopped.is_set():
            with xr.open_dataset(path, engine="tensordict") as ds:
                values = ds["obs"].values
            found.append(len(values) % ROWS)

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        try:
            for number in range(1, 11):
                some(number).td.to_h5(path, append_dim="time")
        finally:
            stopped.set()
        for reader in readers:
            reader.result()
    assert found
    assert not any(found)
    assert reopened(path).sizes["time"] == 11 * ROWS


@pytest.mark.parametrize(
    ("mode", "error", "message"),
    [
        ("a", BlockingIOError, r"file\.h5: another writer has changed the file.*try again"),
        ("w-", FileExistsError, r"file\.h5: another writer has made this file"),
    ],
)
def test_of_two_writers_at_once_the_later_one_is_refused(path: Path, mode: Any, error: Any, message: str) -> None:
    if mode == "a":
        rows(0).td.to_h5(path)
    done = []

    def meanwhile(block: Any) -> Any:
        if not done:
            done.append(xr.Dataset({"other": ("time", np.zeros(ROWS))}).td.to_h5(path, mode=mode))
        return block

    data = dask.array.map_blocks(meanwhile, dask.array.zeros(ROWS, chunks=ROWS), dtype="f8", meta=np.zeros(0))
    with pytest.raises(error, match=message):
        xr.Dataset({"mine": ("time", data)}).td.to_h5(path, mode=mode)
    assert "other" in reopened(path)
    assert "mine" not in reopened(path)
    assert os.listdir(path.parent) == [path.name]


def test_a_mark_of_another_version_is_no_error(path: Path) -> None:
    rows(0).td.to_h5(path)
    with h5py.File(path, "r+") as file:
        file.attrs["__xarray_tensordict_incomplete__"] = json.dumps(["of another version"])
    rows(ROWS).td.to_h5(path, append_dim="time")
    ds, incomplete = told(path)
    assert ds.sizes["time"] == 2 * ROWS
    assert not incomplete


def test_a_delayed_append_goes_to_the_file_it_was_made_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match="no file to append to"):
        rows(0).td.to_h5(path, append_dim="time")
    with pytest.raises(ValueError, match="goes with mode='a'"):
        rows(0).td.to_h5(path, append_dim="time", mode="w")
    (path.parent / "elsewhere").mkdir()
    monkeypatch.chdir(path.parent)
    rows(0).td.to_h5("file.h5")
    task = rows(ROWS).td.to_h5("file.h5", append_dim="time", compute=False)
    new = rows(0).td.to_h5("new.h5", compute=False)
    monkeypatch.chdir(path.parent / "elsewhere")
    assert reopened(path).sizes["time"] == ROWS
    task.compute()
    new.compute()
    assert reopened(path).sizes["time"] == 2 * ROWS
    assert (path.parent / "new.h5").exists()
    assert os.listdir() == []
