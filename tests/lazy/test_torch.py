"""The lazy tensordict with what comes after it: pickles, worker processes, modules, replay buffers."""

import multiprocessing
import os
import pickle
import warnings
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch.utils.data import DataLoader

from persistent_samples import needs_0_15
from xarray_tensordict import open_persistent
from xarray_tensordict.lazy.persistent import persistent_from_dataset
from xarray_tensordict.testing import assert_same_tensordict

ROWS = 24


def buffer_td():
    return TensorDict(
        {
            "x": torch.arange(ROWS * 2.0).view(ROWS, 2),
            "y": torch.arange(ROWS),
            "next": {"x": torch.arange(ROWS * 2.0).view(ROWS, 2) + 2},
        },
        batch_size=[ROWS],
        names=["time"],
    )


def write(kind, folder, td=None):
    """A store with the rows of a tensordict, by default those of `buffer_td`, in chunks."""
    path, chunked, td = folder / f"buffer.{kind}", td is None, buffer_td() if td is None else td
    if kind == "h5":
        td.to_h5(path, **({"chunks": True} if chunked else {})).close()
    elif kind == "zarr":
        td.to_zarr(path, **({"chunks": 4} if chunked else {}))
    else:
        with zarr.storage.ZipStore(path, mode="w") as store:
            td.to_zarr(store)
    return path


KINDS = ["zarr", "zip", "h5"]


@pytest.fixture(params=KINDS)
def buffer(request, tmp_path):
    ptd = open_persistent(write(request.param, tmp_path))
    ptd.names = ["time"]
    yield ptd
    ptd.close()


# --- pickling ------------------------------------------------------------------------------------------------------


def again(td):
    return pickle.loads(pickle.dumps(td))


def test_a_pickle_opens_the_store_again_with_rows_device_and_lock(buffer):
    buffer["x"]
    opened = again(buffer)
    assert type(opened) is type(buffer)
    assert_same_tensordict(opened, buffer_td())
    assert_same_tensordict(opened[[3, 1]], buffer_td()[[3, 1]])
    assert opened["next"].names == ["time"]
    opened.close()
    with pytest.raises(ValueError, match="closed"):
        opened["x"]
    assert buffer["y"][3] == 3
    view = again(buffer[4:10:2])
    assert view["y"].tolist() == [4, 6, 8]
    assert torch.equal(again(buffer["next"])["x"], buffer_td()["next", "x"])
    assert again(buffer.to("meta"))["x"].device.type == "meta"
    locked = again(buffer.lock_())
    assert locked.is_locked
    assert locked["next"].is_locked
    assert not view.is_locked


@pytest.mark.parametrize("kind", KINDS)
def test_a_pickle_holds_no_data(kind, tmp_path):
    sizes = []
    for rows in ("000010", "100000"):
        (tmp_path / rows).mkdir()
        with open_persistent(
            write(kind, tmp_path / rows, TensorDict({"x": torch.arange(int(rows))}, [int(rows)]))
        ) as ptd:
            ptd.to_tensordict()
            ptd[1:5]["x"]
            sizes.append(len(pickle.dumps(ptd)))
    assert sizes[1] < sizes[0] + 100


def test_over_a_dataset_in_memory_a_pickle_holds_the_data():
    ptd = persistent_from_dataset(xr.Dataset({"x": ("t", np.arange(1000.0))}))
    pickled = pickle.dumps(ptd)
    assert len(pickled) > 8000
    assert torch.equal(pickle.loads(pickled)["x"], torch.arange(1000.0, dtype=torch.float64))


# --- DataLoader ----------------------------------------------------------------------------------------------------


def as_it_is(batch):
    return batch


def describe(batch):
    return type(batch).__name__, tuple(batch.batch_size), list(batch.names)


COLLATE = [
    pytest.param(None, id="default collate", marks=needs_0_15("has no default collate for tensordicts")),
    pytest.param(as_it_is, id="identity"),
]


def assert_every_row_once(loader):
    batches = list(loader)
    assert {describe(batch)[0] for batch in batches} == {"TensorDict"}
    seen = torch.cat([batch["y"] for batch in batches])
    assert sorted(seen.tolist()) == list(range(ROWS))
    assert torch.equal(torch.cat([batch["x"] for batch in batches]), torch.stack([seen * 2.0, seen * 2.0 + 1], -1))
    assert torch.equal(torch.cat([batch["next", "x"] for batch in batches])[:, 0], seen * 2.0 + 2)


@pytest.mark.parametrize("collate", COLLATE)
def test_batches_in_this_process(buffer, collate):
    assert_every_row_once(DataLoader(buffer, batch_size=8, shuffle=True, collate_fn=collate))


@pytest.mark.parametrize("collate", COLLATE)
@pytest.mark.parametrize(
    "method",
    ["fork", pytest.param("forkserver", marks=pytest.mark.slow), pytest.param("spawn", marks=pytest.mark.slow)],
)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_batches_in_workers(buffer, collate, method):
    buffer[0], buffer["next", "x"]  # the parent has read: its threads and handles are there when it forks
    loader = DataLoader(
        buffer,
        batch_size=8,
        shuffle=True,
        num_workers=2 if method == "fork" else 1,
        collate_fn=collate,
        multiprocessing_context=multiprocessing.get_context(method),
        timeout=300,  # far more than it takes: other tests run beside it
    )
    assert_every_row_once(loader)
    assert buffer["y"][3] == 3, "the parent still reads"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_of_a_view_of_a_dataset_in_memory():
    ds = xr.Dataset({"x": (("t", "f"), np.arange(20.0).reshape(10, 2))})
    view = persistent_from_dataset(ds, "t")[2:8]
    loader = DataLoader(
        view, batch_size=3, num_workers=1, multiprocessing_context="fork", timeout=60, collate_fn=as_it_is
    )
    assert torch.cat([batch["x"] for batch in loader]).tolist() == np.arange(20.0).reshape(10, 2)[2:8].tolist()


def test_single_samples(buffer):
    sample = next(iter(DataLoader(buffer, batch_size=None, collate_fn=as_it_is)))
    assert describe(sample) == ("TensorDict", (), [])


# --- copies of other kinds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("buffer", ["zarr"], indirect=True)
def test_tensors_are_written_cloned_mapped_and_flattened_as_in_memory(buffer, tmp_path):
    td, pytree = buffer_td(), torch.utils._pytree
    assert_same_tensordict(buffer.clone(), td)
    assert_same_tensordict(buffer.clone(newfile=tmp_path / "clone.zarr").to_tensordict(), td)
    assert_same_tensordict(buffer.to_zarr(tmp_path / "new.zarr").to_tensordict(), td)
    written = buffer.to_h5(tmp_path / "new.h5")
    assert torch.equal(written["next", "x"], td["next", "x"])
    written.close()
    assert type(buffer).from_zarr(tmp_path / "new.zarr").batch_size == buffer.batch_size
    mapped = buffer.memmap(tmp_path / "map")
    assert mapped.is_memmap()
    assert_same_tensordict(mapped, td)
    loaded = TensorDict.load_memmap(tmp_path / "map")
    assert type(loaded) is TensorDict
    loaded.names = ["time"]  # 0.14 keeps none
    assert_same_tensordict(loaded, td)
    assert buffer.memmap_like(tmp_path / "like")["next", "x"].shape == (ROWS, 2)
    assert_same_tensordict(pytree.tree_map(lambda x: x * 2, buffer), pytree.tree_map(lambda x: x * 2, td))
    assert np.array_equal(buffer.numpy()["x"], td["x"].numpy())


# --- modules and replay buffers ------------------------------------------------------------------------------------


def test_modules_write_into_the_rows_that_were_read(buffer):
    module = TensorDictModule(torch.nn.Linear(2, 3), in_keys=["x"], out_keys=["action"])
    nested = TensorDictModule(lambda x: x + 1, in_keys=[("next", "x")], out_keys=[("next", "value")])
    batch = nested(module(buffer[[5, 1, 1]]))
    assert batch["action"].shape == (3, 3)
    assert torch.equal(batch["next", "value"], buffer_td()["next", "x"][[5, 1, 1]] + 1)
    assert "action" not in set(buffer.keys())


def test_modules_read_from_the_lazy_object(buffer):
    module = TensorDictModule(torch.nn.Linear(2, 3), in_keys=["x"], out_keys=["action"])
    out = module(buffer, tensordict_out=TensorDict({}, buffer.batch_size))
    assert out["action"].shape == (ROWS, 3)
    with pytest.raises(TypeError, match="read-only"):
        module(buffer)


def replay_buffers():
    """torchrl uses what tensordict deprecates; that is not what is tested."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torchrl.data", reason="torchrl is in the extra 'test'")


def test_replay_buffers_sample_from_it(buffer):
    data = replay_buffers()
    storage = data.TensorStorage(buffer)
    replay = data.TensorDictReplayBuffer(storage=storage, batch_size=5)
    assert len(replay) == ROWS
    for _ in range(3):
        sample = replay.sample()
        assert type(sample) is TensorDict
        assert list(sample.batch_size) == [5]
        assert torch.equal(sample["x"][:, 0], sample["y"] * 2.0)
        assert torch.equal(sample["next", "x"], sample["x"] + 2)
        sample["x"].zero_()
    assert_same_tensordict(buffer, buffer_td())
    assert torch.equal(storage[3]["x"], buffer_td()["x"][3])
    with pytest.raises(TypeError, match="read-only"):
        replay.extend(buffer_td()[:2])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_readers_of_one_archive_do_not_disturb_each_other(tmp_path):
    """They would share one file position: a third of the reads raised ``BadZipFile``."""
    ptd = open_persistent(write("zip", tmp_path))
    ptd[0]
    with ProcessPoolExecutor(
        4, mp_context=multiprocessing.get_context("fork"), initializer=_keep, initargs=(ptd,)
    ) as pool:
        assert list(pool.map(_read_kept, range(4))) == [True] * 4
    ptd.close()


_kept = []


def _keep(ptd):
    _kept.append(ptd)


def _read_kept(number):
    # not pickled: with fork the arguments of the initializer are inherited
    expected = buffer_td()
    return all(
        torch.equal(_kept[0].get_at("x", [i, number]), expected["x"][[i, number]]) for i in list(range(ROWS)) * 4
    )
