"""``td.to_memmap`` out of memory: streamed, in parallel, put off, of trees, and killed on the way."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import dask.array
import numpy as np
import pytest
import tensordict
import torch
import xarray as xr
from tensordict import TensorDict

import xarray_tensordict  # noqa: F401 - registers ds.td
from memmap_samples import beside, both_doors, weather
from xarray_tensordict.testing import assert_same_tensordict


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "written"


def many_blocks() -> xr.Dataset:
    """Blocks that cut rows, so that tasks write to interleaved places of one file."""
    whole = np.arange(60 * 50, dtype="f4").reshape(60, 50)
    return xr.Dataset(
        {
            "x": (("time", "f"), dask.array.from_array(whole, chunks=(7, 11))),
            "next/x": (("time", "f"), dask.array.from_array(whole + 1, chunks=(60, 1))),
            "half": ("time", dask.array.arange(60, chunks=1, dtype="f4")),
            "label": ("time", [f"row {i}" for i in range(60)]),
        },
        coords={"time": np.arange(60)},
    ).td.set_batch_dims("time")


# -- schedulers --------------------------------------------------------------------------------------------------------


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("scheduler", "put_off"),
    [
        ("sync", False),
        ("threads", False),
        ("threads", True),
        pytest.param("processes", False, marks=SLOW),
        ("processes", True),
    ],
)
def test_every_scheduler_writes_the_same_bits(path, scheduler, put_off):
    ds = many_blocks()
    with dask.config.set(scheduler=scheduler, num_workers=2):
        written = ds.td.to_memmap(path, compute=not put_off)
        if put_off:
            written.compute()
    assert_same_tensordict(ds.td.to_tensordict(), tensordict.load(path))
    assert_same_tensordict(ds.td.to_tensordict(), both_doors(path))
    assert beside(path) == []


def test_many_threads_write_into_one_file_without_a_lost_block(path):
    whole = np.random.default_rng(0).integers(0, 2**31, (40, 97))
    for chunks in [(1, 97), (40, 1), (3, 5)] * 4:
        ds = xr.Dataset({"x": (("time", "f"), dask.array.from_array(whole, chunks=chunks))}).td.set_batch_dims("time")
        with dask.config.set(scheduler="threads", num_workers=8):
            ds.td.to_memmap(path)
        assert torch.equal(tensordict.load(path)["x"], torch.from_numpy(whole))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning:distributed", "ignore::ResourceWarning")
def test_workers_of_a_cluster_write_the_file_themselves(tmp_path):
    from distributed import Client, LocalCluster

    ds = many_blocks()
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        ds.td.to_memmap(tmp_path / "at once")
        ds.td.to_memmap(tmp_path / "later", compute=False).compute()
        ds.td.to_memmap(tmp_path / "later.tdz", compute=False).compute()
        with xr.open_dataset(tmp_path / "at once", engine="tensordict", chunks={"time": 13}) as lazy:
            (lazy.drop_vars("label") * 2).td.set_batch_dims("time").td.to_memmap(tmp_path / "twice")
    for name in ("at once", "later", "later.tdz"):
        assert_same_tensordict(ds.td.to_tensordict(), tensordict.load(tmp_path / name))
    assert torch.equal(tensordict.load(tmp_path / "twice")["x"], 2 * ds.td.to_tensordict()["x"])
    assert sorted(os.listdir(tmp_path)) == ["at once", "later", "later.tdz", "twice"]


# -- put off -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["written", "written.tdz"])
def test_what_is_put_off_leaves_the_old_store_until_it_is_computed(tmp_path, name):
    path = tmp_path / name
    weather().td.to_memmap(path, unbatched="drop")
    later = many_blocks().td.to_memmap(path, compute=False)
    assert_same_tensordict(weather().td.to_tensordict(), tensordict.load(path))
    later = pickle.loads(pickle.dumps(later))
    later.compute()
    assert_same_tensordict(many_blocks().td.to_tensordict(), tensordict.load(path))
    assert beside(path) == []


def test_a_dataset_without_dask_can_be_put_off_too(path):
    later = weather().td.to_memmap(path, compute=False, unbatched="drop")
    assert not path.exists()
    later.compute()
    assert_same_tensordict(weather().td.to_tensordict(), tensordict.load(path))
    later.compute()  # there is nothing left to do
    assert_same_tensordict(weather().td.to_tensordict(), tensordict.load(path))


def test_what_failed_can_be_computed_again(path):
    flag = path.with_name("flag")

    def fail_once(block: Any) -> Any:
        if not flag.exists():
            flag.touch()
            raise ZeroDivisionError
        return block

    data = dask.array.ones((4, 2), chunks=(1, 2)).map_blocks(fail_once, meta=np.zeros((0, 0)))
    later = xr.Dataset({"x": (("time", "f"), data)}).td.to_memmap(path, compute=False)
    with pytest.raises(ZeroDivisionError):
        later.compute()
    assert not path.exists()
    later.compute()
    assert tensordict.load(path)["x"].sum() == 8


def test_computing_it_twice_does_not_lose_what_came_between(path):
    later = many_blocks().td.to_memmap(path, compute=False)
    later.compute()
    weather().td.to_memmap(path, unbatched="drop")
    with pytest.raises(FileNotFoundError, match=r"can be computed once\. Call it again"):
        later.compute()
    assert_same_tensordict(weather().td.to_tensordict(), tensordict.load(path))


def test_mode_w_minus_is_asked_again_when_it_is_computed(path):
    later = many_blocks().td.to_memmap(path, mode="w-", compute=False)
    weather().td.to_memmap(path, unbatched="drop")
    with pytest.raises(FileExistsError, match="mode='w' to replace"):
        later.compute()
    assert_same_tensordict(weather().td.to_tensordict(), tensordict.load(path))


def test_refusals_are_not_put_off(path):
    with pytest.raises(ValueError, match=r"'shape': .* rename it"):
        xr.Dataset({"shape": ("time", dask.array.zeros(3))}).td.to_memmap(path, compute=False)
    assert beside(path) == []


def test_progress_is_shown(path, capsys):
    many_blocks().td.to_memmap(path, progress=True)
    assert "100%" in capsys.readouterr().err


# -- trees -------------------------------------------------------------------------------------------------------------


def episodes() -> xr.DataTree:
    def episode(length: int) -> xr.Dataset:
        rows = np.arange(length * 2.0).reshape(length, 2)
        return xr.Dataset({"obs": (("time", "f"), rows), "task": ("time", [f"{i}" for i in range(length)])})

    return xr.DataTree.from_dict(
        {"/data/demo_0": episode(3), "/data/demo_1": episode(5), "/data/demo_1/next": episode(5)}
    )


@pytest.mark.parametrize("name", ["written", "written.tdz"])
@pytest.mark.parametrize("chunked", [False, True])
def test_the_nodes_of_a_tree_keep_their_own_batches(tmp_path, name, chunked):
    path = tmp_path / name
    dt = episodes().chunk() if chunked else episodes()
    dt.td.to_memmap(path)
    loaded = tensordict.load(path)
    assert_same_tensordict(episodes().td.to_tensordict(), loaded)
    assert loaded["data"].batch_size == ()
    assert [loaded["data", f"demo_{i}"].batch_size for i in (0, 1)] == [(3,), (5,)]
    assert loaded["data", "demo_1", "next"].batch_size == (5,)
    again = xr.open_datatree(path, engine="tensordict")
    assert again["data/demo_1"].td.batch_size == (5,)
    assert_same_tensordict(loaded, again.td.to_tensordict())


def test_a_tree_can_be_put_off(path):
    later = episodes().chunk().td.to_memmap(path, compute=False)
    assert not path.exists()
    later.compute()
    assert_same_tensordict(episodes().td.to_tensordict(), tensordict.load(path))


# -- memory ------------------------------------------------------------------------------------------------------------

_MEASURE = """
import resource, sys, dask, dask.array, xarray as xr, xarray_tensordict
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
def dataset(blocks):
    data = dask.array.random.random((blocks, 2**19), chunks=(1, 2**19))  # blocks of 4 MiB
    return xr.Dataset({"x": (("time", "f"), data)}).td.set_batch_dims("time")
with dask.config.set(scheduler="threads", num_workers=2):
    dataset(4).td.to_memmap(sys.argv[1])
    before = peak()
    dataset(100).td.to_memmap(sys.argv[1])
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss is that of Linux")
def test_a_variable_of_400_megabytes_passes_through_little_memory(path):
    printed = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(path)], check=True, capture_output=True, text=True
    ).stdout
    assert tensordict.load(path)["x"].shape == (100, 2**19)
    assert int(printed) < 60  # MiB, of blocks in flight


# -- killed ------------------------------------------------------------------------------------------------------------

_KILLED = """
import os, signal, sys
import dask, dask.array, numpy as np, tensordict, xarray as xr, xarray_tensordict
from xarray_tensordict.formats.memmap import write as memmap_writer
from xarray_tensordict.writing import replacing

def killed(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

def after(function):
    return lambda *args, **kwargs: (function(*args, **kwargs), killed())

def third(block, block_info=None):
    if block_info[0]["chunk-location"][0] == 3:
        killed()
    return block

def at(point):
    data = dask.array.ones((8, 3), chunks=(1, 3))
    if point == "a block":
        data = data.map_blocks(third, dtype="f8", meta=np.zeros((0, 0)))
    ds = xr.Dataset({"x": (("time", "f"), data), "y": ("time", np.arange(8))}).td.set_batch_dims("time")
    if point == "before the layout":
        memmap_writer._lay_out = killed
    if point == "in the layout":
        memmap_writer._Target.__setitem__ = killed
    if point == "before the rename":
        memmap_writer._put_in_place = killed
    if point == "between the renames":
        replacing._exchange = lambda one, other: False
        os.rename = after(os.rename)
    if point == "after the exchange":
        replacing._exchange = after(replacing._exchange)
    if point == "in the archive":
        tensordict.pack_memmap = after(tensordict.pack_memmap)
    ds.td.to_memmap(sys.argv[1])

with dask.config.set(scheduler="sync"):
    for point in sys.argv[2:]:
        child = os.fork()
        if not child:
            at(point)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, point
        print(point, end=";")
        try:
            print(tuple(tensordict.load(sys.argv[1]).keys()))
        except FileNotFoundError:
            print("absent")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("name", ["written", pytest.param("written.tdz", marks=SLOW)])
def test_a_writer_that_is_killed_leaves_the_old_store_or_the_new_one(tmp_path, name):
    path = tmp_path / name
    old = TensorDict({"old": torch.arange(5)}, [5])
    old.save(path)
    points = ["before the layout", "in the layout", "a block", "before the rename"]
    points += ["in the archive"] if name.endswith(".tdz") else ["after the exchange"]
    lines = subprocess.run(
        [sys.executable, "-c", _KILLED, str(path), *points], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    found = dict(line.split(";") for line in lines)
    new = found.pop("after the exchange", None)
    assert found == dict.fromkeys([point for point in points if point != "after the exchange"], "('old',)")
    if new is None:
        assert_same_tensordict(old, tensordict.load(path))
    else:
        assert new in {"('x', 'y')", "('y', 'x')"}
        assert tensordict.load(path)["x"].sum() == 24
