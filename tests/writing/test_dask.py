"""Writing what dask holds, and what is lazy: streaming, default chunks, incomplete stores, HDF5, the bar."""

import builtins
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import dask
import dask.array
import h5py
import numpy as np
import pytest
import xarray as xr
import zarr
from dask.callbacks import Callback
from dask.delayed import Delayed
from distributed import Client
from tensordict import TensorDict

import xarray_tensordict
from written import assert_gives_back, era, reopened
from xarray_tensordict.core.blocks import Bytes
from xarray_tensordict.formats.raw.arrays import RawArray
from xarray_tensordict.formats.zarr.new_arrays import CHUNK_BYTES, default_chunks
from xarray_tensordict.writing import values as streaming

LAYOUTS = pytest.mark.parametrize("layout", ["tensordict", "xarray"])
FORMATS = pytest.mark.parametrize("zarr_format", [2, 3])


# -- the chunks of a new store -----------------------------------------------------------------------------------------

IMAGES = xr.Variable(("time", "y", "x"), np.zeros((1000, 64, 64), "f4"))
ZEROS = dask.array.zeros
CHUNKS = {
    "rows along the batch of about a mebibyte": (IMAGES, ["time"], {}, (CHUNK_BYTES // (4 * 64 * 64), 64, 64)),
    "few rows": (IMAGES[:3], ["time"], {}, (3, 64, 64)),
    "a feature that is asked for": (IMAGES, ["time"], {"y": 16}, (256, 16, 64)),
    "the whole batch that is asked for": (IMAGES, ["time"], {"time": -1}, (1000, 64, 64)),
    "several batch dims like one": (
        xr.Variable(("member", "time", "x"), np.zeros((8, 1000, 4096), "f4")),
        ["member", "time"],
        {},
        (1, 64, 4096),
    ),
    "a batch dim that stands last": (
        xr.Variable(("x", "time"), np.zeros((4096, 1000), "f4")),
        ["time"],
        {},
        (4096, 64),
    ),
    "rows too large for a codec": (
        xr.Variable(("time", "x"), ZEROS((2, 1 << 26), chunks=-1, dtype="f4")),
        ["time"],
        {},
        (1, 1 << 24),
    ),
    "features as dask cut them": (
        xr.Variable(("time", "x"), ZEROS((1000, 8192), chunks=(50, 4096), dtype="f4")),
        ["time"],
        {},
        (50, 4096),
    ),
    "blocks of dask cut evenly": (
        xr.Variable(("time", "x"), ZEROS((1000, 4096), chunks=(100, 4096), dtype="f4")),
        ["time"],
        {},
        (50, 4096),
    ),
    "bytes that are asked for": (IMAGES, ["time"], {"time": Bytes(1 << 22)}, (256, 64, 64)),
    "bytes beside a size": (IMAGES, ["time"], {"time": Bytes(1 << 20), "y": 16}, (256, 16, 64)),
    "bytes along one of several batch dims": (
        xr.Variable(("member", "time", "x"), np.zeros((8, 1000, 4096), "f4")),
        ["member", "time"],
        {"time": Bytes(1 << 22)},
        (1, 256, 4096),
    ),
    "bytes along a feature": (IMAGES, ["time"], {"time": 1, "x": Bytes(1 << 12)}, (1, 64, 16)),
    "blocks of dask put together to so many bytes": (
        xr.Variable(("time", "x"), ZEROS((1000, 1024), chunks=(3, 1024), dtype="f4")),
        ["time"],
        {"time": Bytes(1 << 20)},
        (255, 1024),
    ),
}


@pytest.mark.parametrize(("variable", "batch", "asked", "expected"), CHUNKS.values(), ids=CHUNKS)
def test_chunks_by_default(variable, batch, asked, expected):
    assert default_chunks(variable, batch, asked) == expected


@LAYOUTS
@FORMATS
def test_a_new_store_has_them(tmp_path, layout, zarr_format):
    ds = xr.Dataset({"x": (("time", "f"), dask.array.ones((300, 4096), chunks=(100, -1), dtype="f4"))})
    ds["next/x"] = ds["x"] + 1
    ds.td.to_zarr(tmp_path / "a.zarr", layout=layout, zarr_format=zarr_format)
    for name in ("x", "next/x"):
        assert zarr.open_array(tmp_path / "a.zarr" / name, mode="r").chunks == (50, 4096)
    ds.td.to_zarr(tmp_path / "b.zarr", layout=layout, zarr_format=zarr_format, chunks={"f": 1024})
    assert zarr.open_array(tmp_path / "b.zarr" / "x", mode="r").chunks == (100, 1024)


def test_chunks_of_a_store_that_was_opened_are_kept_and_tiny_ones_of_hdf5_merged(tmp_path):
    ds = xr.Dataset({"x": (("time", "f"), np.ones((5000, 8), "f4"))})
    ds.td.to_zarr(tmp_path / "a.zarr", chunks={"time": 7})
    reopened(tmp_path / "a.zarr").td.to_zarr(tmp_path / "b.zarr")
    assert zarr.open_array(tmp_path / "b.zarr" / "x", mode="r").chunks == (7, 8)
    ds.td.to_h5(tmp_path / "a.h5", chunks={"time": 1})
    reopened(tmp_path / "a.h5").td.to_zarr(tmp_path / "c.zarr")
    assert zarr.open_array(tmp_path / "c.zarr" / "x", mode="r").chunks == (5000, 8)


def test_shards_choose_chunks_that_they_can_hold(tmp_path):
    ds = xr.Dataset({"x": (("time", "f"), np.ones((1000, 4096), "f4"))})
    ds.td.to_zarr(tmp_path / "a.zarr", shards={"time": 150})
    array = zarr.open_array(tmp_path / "a.zarr" / "x", mode="r")
    assert (array.chunks, array.shards) == ((50, 4096), (150, 4096))


def test_shards_of_bytes_hold_whole_chunks_and_no_more_than_there_are(tmp_path):
    ds = xr.Dataset({"x": (("time", "f"), np.ones((1000, 4096), "f4")), "y": ("time", np.arange(1000))})
    for chunks, expected in (({"time": "1MiB"}, 64), ({"time": 60}, 60), (None, 64)):
        ds.td.to_zarr(tmp_path / "a.zarr", mode="w", chunks=chunks, shards={"time": "4 MiB"})
        array = zarr.open_array(tmp_path / "a.zarr" / "x", mode="r")
        assert (array.chunks, array.shards) == ((expected, 4096), (256 // expected * expected, 4096))
        assert xr.open_dataset(tmp_path / "a.zarr", engine="tensordict").load().identical(ds)
    assert zarr.open_array(tmp_path / "a.zarr" / "y", mode="r").shards == (1000,)
    ds.td.to_zarr(tmp_path / "a.zarr", mode="w", shards={"time": "100 kB"})  # less than a chunk would have
    array = zarr.open_array(tmp_path / "a.zarr" / "x", mode="r")
    assert (array.chunks, array.shards) == ((6, 4096), (6, 4096))


@pytest.mark.parametrize("kind", ["zarr", "h5"])
def test_chunks_of_bytes_replace_those_of_the_store_that_was_opened(tmp_path, kind):
    made = xr.Dataset({"x": (("time", "f"), np.arange(40_000.0).reshape(5000, 8))})
    made.td.to_zarr(tmp_path / "a.zarr", chunks={"time": 7})
    for blocks in (None, {}):
        with xr.open_dataset(tmp_path / "a.zarr", engine="tensordict", chunks=blocks) as ds:
            if kind == "zarr":
                ds.td.to_zarr(tmp_path / "b.zarr", chunks={"time": "128KiB"}, mode="w")
                assert zarr.open_array(tmp_path / "b.zarr" / "x", mode="r").chunks == (
                    2048 if blocks is None else 2044,
                    8,
                )
            else:
                ds.td.to_h5(tmp_path / "b.h5", chunks={"time": "128KiB"})
                with h5py.File(tmp_path / "b.h5") as file:
                    assert file["x"].chunks == (2048, 8)
        with xr.open_dataset(tmp_path / f"b.{kind}", engine="tensordict", batch_dims="time") as found:
            xr.testing.assert_equal(found["x"].load().drop_vars(found["x"].coords), made["x"])


@pytest.mark.parametrize("size", ["much", "24", "-1MiB", "1e999B", "1e300B", 10**300, "", 0, 1.5])
def test_sizes_that_are_neither_rows_nor_bytes_are_refused(tmp_path, size):
    with pytest.raises(
        ValueError, match="expected a size of at least 1, -1 for the whole dim, or bytes such as '1MiB' for 'x'"
    ):
        xr.Dataset({"v": ("x", np.zeros(0))}).td.to_zarr(tmp_path / "a.zarr", chunks={"x": size})
    assert not (tmp_path / "a.zarr").exists()


# -- streaming ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["zarr", "h5"])
@pytest.mark.parametrize("target", ["a.zarr", "a.zarr.zip", "a.h5", "region"])
def test_what_is_lazy_is_written_block_by_block(tmp_path, monkeypatch, source, target):
    monkeypatch.setattr(streaming, "STREAM_BYTES", 4096)
    ds = xr.Dataset({"x": (("time", "f"), np.arange(400 * 16.0).reshape(400, 16))})
    ds["next/x"] = ds["x"] + 1
    path = tmp_path / f"source.{source}"
    (ds.td.to_zarr if source == "zarr" else ds.td.to_h5)(path, chunks={"time": 10})
    largest = []
    read = RawArray.__getitem__  # chunks of whole rows are decoded without zarr

    def watched(self, key):
        found = read(self, key)
        largest.append(found.nbytes)
        return found

    monkeypatch.setattr(RawArray, "__getitem__", watched)
    with xr.open_dataset(path, engine="tensordict") as lazy:
        if target == "region":
            (ds * 0).td.to_zarr(tmp_path / "b.zarr")
            lazy.td.to_zarr(tmp_path / "b.zarr", region={"time": slice(0, 400)})
            target = "b.zarr"
        else:
            (lazy.td.to_h5 if target == "a.h5" else lazy.td.to_zarr)(tmp_path / target)
        assert lazy["x"].variable.chunks is None
    assert source == "h5" or max(largest) <= 4096
    assert_gives_back(tmp_path / target, ds)


MEMORY = """
import resource, sys, dask, dask.array, numpy as np, xarray as xr, xarray_tensordict
dask.config.set(scheduler="threads", num_workers=2)
folder, kind = sys.argv[1], sys.argv[2]
writers = {"zarr": lambda ds, path: ds.td.to_zarr(path), "h5": lambda ds, path: ds.td.to_h5(path)}
x = dask.array.random.default_rng(0).random((128, 1 << 20), chunks=(1, -1))  # 1 GiB in blocks of 8 MiB
ds = xr.Dataset({"x": (("time", "f"), x)})
writers[kind](ds.isel(time=slice(0, 2)), folder + "/small." + kind)
with xr.open_dataset(folder + "/small." + kind, engine="tensordict") as small:
    writers[kind](small, folder + "/again." + kind)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
writers[kind](ds, folder + "/a." + kind)
with xr.open_dataset(folder + "/a." + kind, engine="tensordict") as lazy:
    writers[kind](lazy, folder + "/b." + kind)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zarr", "h5"])
def test_memory_is_bounded_by_the_blocks_in_flight(tmp_path, kind):
    found = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path), kind], capture_output=True, text=True, check=True
    )
    # 1 GiB goes through twice; two blocks of 32 MiB are read, encoded and written at the same time
    assert int(found.stdout) < 320


# -- compute=False, and stores that are not complete -------------------------------------------------------------------


def warned(function) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [str(warning.message) for warning in caught]


@LAYOUTS
@FORMATS
def test_a_template_shows_in_both_libraries_that_it_is_not_complete(tmp_path, layout, zarr_format):
    path = tmp_path / "a.zarr"
    ds = era()
    delayed = ds.chunk(time=2).td.to_zarr(path, layout=layout, zarr_format=zarr_format, compute=False)
    assert isinstance(delayed, Delayed)
    with pytest.warns(UserWarning, match=r"a\.zarr: the store is not complete: 't2m'"):
        template = reopened(path)
    assert np.isnan(template["t2m"]).all()
    assert template["run"].values.tolist() == [0] * 4
    assert template.td.batch_size == (4,)
    assert not [name for name in template.attrs if name.startswith("__")]
    with pytest.warns(UserWarning, match="not complete"):
        xarray_tensordict.open_persistent(path).close()
    with pytest.warns(UserWarning, match="not complete: 'next/t2m'"):
        reopened(path, group="next")
    if layout == "tensordict":
        assert TensorDict.from_zarr(path).batch_size == (4,)
    delayed.compute()
    assert_gives_back(path, ds)
    assert "__xarray_tensordict_incomplete__" not in zarr.open_group(path, mode="r").attrs


def test_a_store_that_is_replaced_in_place_reports_it_until_it_is_whole():
    store = zarr.storage.MemoryStore()
    era().td.to_zarr(store)

    def look(block):
        seen.append(warned(lambda: xr.open_dataset(store, engine="tensordict")))
        return block

    seen = []
    x = dask.array.zeros(4, chunks=2).map_blocks(look, dtype="f8", meta=np.empty(0))
    with dask.config.set(scheduler="synchronous"):  # warnings are caught for the whole process
        xr.Dataset({"x": ("t", x)}).td.to_zarr(store, mode="w")
    assert all("the store is not complete" in told for messages in seen for told in messages)
    assert len(seen) == 2
    assert_gives_back(store, xr.Dataset({"x": ("t", np.zeros(4))}))


def test_values_that_equal_the_fill_value_count_as_written(tmp_path):
    path = tmp_path / "a.zarr"
    ds = xr.Dataset({"x": ("t", np.zeros(4)), "n": ("t", np.zeros(4, "i8")), "nan": ("t", np.full(4, np.nan))})
    ds.chunk(t=2).td.to_zarr(path, compute=False)
    for start in (0, 2):
        part = ds.isel(t=slice(start, start + 2))
        part.td.to_zarr(path, region={"t": slice(start, start + 2)})
    assert_gives_back(path, ds)


# -- HDF5 --------------------------------------------------------------------------------------------------------------


@LAYOUTS
@pytest.mark.parametrize("scheduler", ["sync", "threads", "processes", lambda dsk, keys: dask.get(dsk, keys)])
def test_hdf5_takes_blocks_whatever_local_scheduler_is_set(tmp_path, layout, scheduler):
    with dask.config.set(scheduler=scheduler, num_workers=2):
        era().chunk(time=1, lat=1).td.to_h5(tmp_path / "a.h5", layout=layout)
    assert_gives_back(tmp_path / "a.h5", era())


def test_blocks_that_others_depend_on_are_written_and_stay(tmp_path):
    x = dask.array.arange(12, chunks=3)
    ds = xr.Dataset({"x": ("t", x), "y": ("t", x + 1), "z": ("t", x - x.sum())})
    ds.td.to_h5(tmp_path / "a.h5")
    assert_gives_back(tmp_path / "a.h5", ds.compute())


@pytest.fixture
def cluster():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Client(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0") as client:
            yield client


@LAYOUTS
def test_a_cluster_computes_and_the_client_writes(tmp_path, layout, cluster, capfd):
    ds = era()
    ds.chunk(time=1).td.to_h5(tmp_path / "a.h5", layout=layout, progress=True)
    ds.chunk(time=1).td.to_zarr(tmp_path / "a.zarr", layout=layout, progress=True)
    assert "Completed" in capfd.readouterr().out
    ds.chunk(time=1).td.to_zarr(tmp_path / "b.zarr", layout=layout, compute=False).compute()
    for name in ("a.h5", "a.zarr", "b.zarr"):
        assert_gives_back(tmp_path / name, ds)
    with pytest.raises(NotImplementedError, match="one writer"):
        ds.chunk(time=1).td.to_h5(tmp_path / "b.h5", compute=False)
    assert not (tmp_path / "b.h5").exists()


def of_value(value: float, rows: int = 60) -> xr.Dataset:
    return xr.Dataset({"x": (("t", "f"), np.full((rows, 3), value))}).chunk(t=1)


@LAYOUTS
class TestComputationsOfOtherThreads:
    """Each file gets its own blocks, whichever computation dask starts first."""

    def test_files_that_are_written_as_one_graph(self, tmp_path, layout):
        dask.compute(*[of_value(i).td.to_h5(tmp_path / f"{i}", layout=layout, compute=False) for i in range(6)])
        for i in range(6):
            assert_gives_back(tmp_path / f"{i}", of_value(i).compute())

    def test_files_that_are_written_by_threads(self, tmp_path, layout):
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda i: of_value(i).td.to_h5(tmp_path / f"{i}", layout=layout), range(6)))
        for i in range(6):
            assert_gives_back(tmp_path / f"{i}", of_value(i).compute())

    def test_a_file_that_is_appended_to(self, tmp_path, layout):
        of_value(0).td.to_h5(tmp_path / "a.h5", layout=layout, unlimited_dims=["t"])
        with computing():
            for i in range(1, 4):
                of_value(i).td.to_h5(tmp_path / "a.h5", append_dim="t")
        assert_gives_back(tmp_path / "a.h5", xr.concat([of_value(i).compute() for i in range(4)], "t"))

    @pytest.mark.parametrize("progress", [True, False])
    def test_a_file_that_is_written_while_others_compute(self, tmp_path, layout, progress):
        with computing():
            for i in range(4):
                of_value(i).td.to_h5(tmp_path / f"{i}", layout=layout, progress=progress)
                assert_gives_back(tmp_path / f"{i}", of_value(i).compute())


@contextmanager
def computing():
    """Another thread computes with dask all the time."""
    stop = threading.Event()

    def compute():
        while not stop.is_set():
            assert dask.array.ones(10, chunks=5).sum().compute() == 10

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(compute)
        try:
            yield
        finally:
            stop.set()
            found.result()


@pytest.mark.parametrize("kind", ["to_h5", "to_zarr", "to_memmap"])
def test_callbacks_that_are_set_for_all_see_the_blocks(tmp_path, kind):
    seen = []
    with Callback(posttask=lambda key, *others: seen.append(key)):
        getattr(of_value(1).td, kind)(tmp_path / "a", progress=True)
    assert len(seen) >= 8
    seen.clear()
    getattr(of_value(1).td, kind)(tmp_path / "b", progress=True)
    assert not seen


# -- the bar -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["to_zarr", "to_h5", "to_memmap"])
@pytest.mark.parametrize("has_tqdm", [True, False])
def test_a_bar_is_shown_where_it_is_asked_for(tmp_path, monkeypatch, capfd, kind, has_tqdm):
    imported = builtins.__import__

    def without_tqdm(name, *args, **keywords):
        if name.startswith("tqdm"):
            raise ImportError(name)
        return imported(name, *args, **keywords)

    if not has_tqdm:
        monkeypatch.setattr(builtins, "__import__", without_tqdm)
    ds = era().chunk(time=1)
    getattr(ds.td, kind)(tmp_path / "quiet")
    assert capfd.readouterr() == ("", "")
    getattr(ds.td, kind)(tmp_path / "loud", progress=True)
    out, err = capfd.readouterr()
    assert ("writing" in err) if has_tqdm else ("Completed" in out)
