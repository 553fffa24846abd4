"""Threads and processes on one lazy object, a store that is closed while it is read, and what is left behind.

No test waits for a time: what happens at the same time is held by events.
"""

import gc
import itertools
import multiprocessing
import os
import shutil
import sys
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
import torch
import xarray as xr

from xarray_tensordict import open_persistent
from xarray_tensordict.lazy import lazy_tensordict

ROWS = 200
KINDS = ("chunked.zarr", "raw.zarr", "zipped.zip", "s.h5", "memmap", "archive.tdz")


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """One Dataset in stores of each kind: the value of an element says its row."""
    folder = tmp_path_factory.mktemp("threads")
    ds = xr.Dataset({"n": ("time", np.arange(ROWS)), "x": (("time", "f"), np.arange(ROWS * 3.0).reshape(ROWS, 3))})
    ds.td.to_zarr(folder / "chunked.zarr", chunks={"time": 25})
    ds.td.to_zarr(folder / "raw.zarr", encoding={name: {"compressors": None} for name in ds.data_vars})
    shutil.make_archive(str(folder / "zipped"), "zip", folder / "chunked.zarr")
    ds.td.to_h5(folder / "s.h5", chunks={"time": 25})
    ds.td.to_memmap(folder / "memmap")
    ds.td.to_memmap(folder / "archive.tdz")
    return folder


def check(td, rows):
    """Raise unless a tensordict holds these rows."""
    assert td["n"].tolist() == list(rows)
    assert torch.equal(td["x"], torch.arange(ROWS * 3.0).view(ROWS, 3)[list(rows)])


def read_rows(ptd, number):
    """Read in four ways, which rows the number says."""
    rows = np.random.default_rng(number).permutation(ROWS)[:20].tolist()
    check(ptd[rows], rows)
    check(ptd[number : number + 40].to_tensordict(), range(number, number + 40))
    assert ptd.get_at("n", number).item() == number
    if number % 8 == 0:
        check(ptd.to_tensordict(), range(ROWS))
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_sixteen_threads_read_one_lazy_object(kind, stores):
    with open_persistent(stores / kind) as ptd, ThreadPoolExecutor(16) as pool:
        assert all(pool.map(read_rows, itertools.repeat(ptd), range(20)))


@pytest.mark.parametrize("kind", ["chunked.zarr", "s.h5", "memmap"])
def test_eight_processes_read_one_lazy_object(kind, stores):
    with open_persistent(stores / kind) as ptd:
        read_rows(ptd, 0)
        with ProcessPoolExecutor(8, mp_context=multiprocessing.get_context("fork")) as pool:
            found = [pool.submit(read_rows, ptd, number) for number in range(24)]
            assert all(each.result(timeout=120) for each in found)


# --- closing ---------------------------------------------------------------------------------------------------------


def open_files(folder):
    """The files below a folder that this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if target.startswith(str(folder)):
            found.append(target)
    return found


needs_proc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc/self/fd says which files are open")


@needs_proc
@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_is_closed_during_reads_is_closed_behind_the_last_of_them(kind, stores, monkeypatch):
    ptd = open_persistent(stores / kind)
    view, started, closed = ptd[50:150], threading.Barrier(4), threading.Event()
    read_entries = lazy_tensordict.read_entries

    def held(*request):
        started.wait(60)
        assert closed.wait(60)
        return read_entries(*request)

    with ThreadPoolExecutor(3) as pool:
        monkeypatch.setattr(lazy_tensordict, "read_entries", held)
        reads = [pool.submit(ptd.to_tensordict), pool.submit(lambda: ptd[[9, 2]]), pool.submit(lambda: view["n"])]
        started.wait(60)
        ptd.close()
        with pytest.raises(ValueError, match=rf"{kind}.*closed with close\(\); open it again"):
            ptd[3]
        closed.set()
        check(reads[0].result(60), range(ROWS))
        check(reads[1].result(60), [9, 2])
        assert reads[2].result(60).tolist() == list(range(50, 150))
    assert not open_files(stores)


# --- what is left behind ---------------------------------------------------------------------------------------------


@needs_proc
@pytest.mark.parametrize("kind", KINDS)
def test_half_read_objects_can_be_collected_in_any_order(kind, stores):
    for order in ((0, 1, 2), (2, 1, 0)):
        ptd = open_persistent(stores / kind)
        objects = [ptd, ptd[10:40], iter(ptd.items())]
        del ptd
        next(objects[2])
        for place in order:
            objects[place] = None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            gc.collect()
    assert not open_files(stores)


@needs_proc
@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_over_batches_that_is_left_leaves_no_thread_and_no_file(kind, stores):
    shuffled = {"shuffle": "full", "seed": 0, "window": {"time": 3}}
    with xr.open_dataset(stores / kind, engine="tensordict") as ds:
        for options in ({}, {"shuffle": True, "seed": 0}, shuffled, {"prefetch": 8}):
            for batch in ds.td.batches(4, **options):
                assert len(batch) == 4
                break
    del batch, ds
    gc.collect()
    assert not [thread.name for thread in threading.enumerate() if "read ahead" in thread.name]
    assert not open_files(stores)
