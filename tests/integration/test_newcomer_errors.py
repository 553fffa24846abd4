"""The mistakes of the first hour: each message says what was expected, what was found, and what to do next."""

from __future__ import annotations

import warnings
from typing import Any

import dask.array
import h5py
import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from tensordict import NonTensorData, TensorDict

import xarray_tensordict


def opened(path: Any, **keywords: Any) -> xr.Dataset:
    return xr.open_dataset(path, engine="tensordict", **keywords)


@pytest.fixture
def stores(tmp_path, monkeypatch):
    """Some stores in the working folder, as a newcomer has them."""
    monkeypatch.chdir(tmp_path)
    td = TensorDict({"obs": torch.zeros(6, 3), "next": {"obs": torch.zeros(6, 3)}}, [6], names=["time"])
    td.to_zarr("run.zarr")
    td.to_h5("run.h5")
    td.clone().set("meta", NonTensorData({1, 2}, batch_size=[6])).to_zarr("pickled.zarr")
    td.memmap("mapped")
    td.to_zarr("stale.zarr")
    attrs = zarr.open_group("stale.zarr").attrs
    attrs["__tensordict__"] = {**attrs["__tensordict__"], "batch_size": [7]}
    climate = zarr.create_group("climate.zarr")
    climate.create_array("t2m", data=np.zeros((6, 2), "f4"), dimension_names=["time", "lat"])
    climate.create_array("lat", data=np.zeros(2), dimension_names=["lat"])
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    return tmp_path


MISTAKES = [
    ("a path that is not there", lambda: opened("rum.zarr"), FileNotFoundError,
        ["'rum.zarr'", "Check the spelling", "relative paths start at"]),
    ("the folder around the stores", lambda: opened("."), ValueError, ["expected a zarr store", "run.zarr", "open one of these"]),
    ("a file of another kind", lambda: opened("table.csv"), ValueError,
        ["table.csv", "expected a zarr store, an HDF5 file", "pandas.read_csv(path).to_xarray()"]),
    ("batch_dims misspelt on opening", lambda: opened("run.zarr", batch_dims="tme"), ValueError,
        ["run.zarr has no dim 'tme'", "['time']", "Did you mean 'time'?"]),
    ("batch_dims misspelt later", lambda: opened("run.zarr").td.set_batch_dims("Time"), ValueError,
        ["no dim 'Time'", "Did you mean 'time'?"]),
    ("a count that does not fit", lambda: opened("run.zarr", batch_dims=3), ValueError,
        ["batch_dims=3", "'obs' has shape [6, 3]", "give a smaller count"]),
    ("a parameter misspelt", lambda: opened("run.zarr", batch_dim="time"), TypeError,
        ["no parameter 'batch_dim'", "Did you mean 'batch_dims'?"]),
    ("the same for a tree", lambda: xr.open_datatree("run.zarr", engine="tensordict", batchdims="time"), TypeError,
        ["'batchdims'", "Did you mean 'batch_dims'?"]),
    ("the same for open_persistent", lambda: xarray_tensordict.open_persistent("run.zarr", grp="next"), TypeError,
        ["'grp'", "Did you mean 'group'?"]),
    ("a group misspelt, zarr", lambda: opened("run.zarr", group="nxt"), FileNotFoundError, ["/nxt", "Did you mean '/next'?"]),
    ("a group misspelt, HDF5", lambda: opened("run.h5", group="nxt"), OSError, ["/nxt", "Did you mean '/next'?"]),
    ("a group misspelt, memory-mapped", lambda: opened("mapped", group="nxt"), FileNotFoundError, ["/nxt", "Did you mean '/next'?"]),
    ("dims= for an array that is not there", lambda: opened("run.zarr", dims={"obz": ("x",)}), ValueError,
        ["'obz'", "Did you mean 'obs'?"]),
    ("exclude= misspelt", lambda: opened("run.zarr").td.to_tensordict(exclude=["obz"]), ValueError, ["'obz'", "Did you mean 'obs'?"]),
    ("an entry in a group misspelt", lambda: xarray_tensordict.open_persistent("run.zarr")["next", "obz"], KeyError,
        ["'next/obz'", "there are: ['obs']", "Did you mean 'obs'?"]),
    ("the group of an entry misspelt", lambda: xarray_tensordict.open_persistent("run.zarr")["nxt", "obs"], KeyError,
        ["'nxt'", "Did you mean 'next'?"]),
    ("an entry misspelt", lambda: xarray_tensordict.open_persistent("run.zarr")["obz"], KeyError, ["run.zarr", "Did you mean 'obs'?"]),
    ("encoding= misspelt", lambda: opened("run.zarr").td.to_zarr("o.zarr", encoding={"obz": {}}), ValueError,
        ["'obz'", "Did you mean 'obs'?"]),
    ("chunks= misspelt", lambda: opened("run.zarr").td.to_zarr("o.zarr", chunks={"tme": 2}), ValueError,
        ["'tme'", "Did you mean 'time'?"]),
    ("a coordinate in the way of plain tensordict", lambda: xarray_tensordict.annotate("climate.zarr"), ValueError,
        ["'lat'", "do not start with the batch", "ds.td.to_zarr(", "Nothing was changed"]),
    ("an unbatched variable where none may be", lambda: opened("climate.zarr").td.to_tensordict(unbatched="raise"), ValueError,
        ["'lat'", "unbatched='drop', 'keep' or 'expand'"]),
    ("a dtype that torch lacks", lambda: xr.Dataset({"z": ("t", np.zeros(3, np.longdouble))}).td.to_zarr("o.zarr"), TypeError,
        ["'z'", ".astype('float64')"]),
    ("an object that no store holds", lambda: xr.Dataset({"z": ("t", np.array([object()] * 3))}).td.to_zarr("o.zarr"), TypeError,
        ["'z'", "never as pickles", "drop it"]),
    ("a pickled entry", lambda: xarray_tensordict.open_persistent("pickled.zarr")["meta"], TypeError,
        ["'meta'", "can run any code", "allow_pickle=True"]),
    ("writing to a store opened for reading", lambda: xarray_tensordict.open_persistent("run.zarr").set_("obs", torch.zeros(6, 3)),
        TypeError, ["read-only", "to_tensordict()", "mode='r+'"]),
    ("a target that is there", lambda: opened("run.zarr").td.to_zarr("climate.zarr"), FileExistsError,
        ["climate.zarr", "mode='w'", "append_dim="]),
    ("reading after close()", lambda: read_after_close(), ValueError, ["run.h5", "closed", "open it again"]),
]  # fmt: skip


def read_after_close() -> Any:
    ptd = xarray_tensordict.open_persistent("run.h5")
    ptd.close()
    return ptd["obs"]


@pytest.mark.parametrize(
    ("make", "error", "says"), [mistake[1:] for mistake in MISTAKES], ids=[each[0] for each in MISTAKES]
)
@pytest.mark.usefixtures("stores")
def test_the_message_says_what_to_do_next(make, error, says):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with pytest.raises(error) as raised:
            make()
    message = str(raised.value)
    assert [words for words in says if words not in message] == [], message


@pytest.mark.parametrize(
    ("store", "says"),
    [
        ("pickled.zarr", ["pickled.zarr", "left out 'meta'", "allow_pickle=True"]),
        ("stale.zarr", ["recorded batch size [7]", "'obs' of shape [6, 3]", "annotate"]),
    ],
)
@pytest.mark.usefixtures("stores")
def test_what_is_mended_or_left_out_on_opening_is_said_once(store, says):
    with pytest.warns(UserWarning, match="annotate|allow_pickle") as caught:
        opened(store)
    assert len(caught) == 1
    message = str(caught[0].message)
    assert [words for words in says if words not in message] == []
    assert caught[0].filename == __file__


@pytest.mark.usefixtures("stores")
def test_a_file_that_was_opened_without_this_engine_is_reported():
    with h5py.File("raw.h5", "w") as file:
        file["images"] = np.zeros((6, 4, 4), "u1")
    with xr.open_dataset("raw.h5", engine="h5netcdf", phony_dims="sort") as ds:
        assert "engine='tensordict'" in repr(ds.td)


@pytest.mark.usefixtures("stores")
def test_a_forgotten_close_does_not_stand_in_the_way_of_the_next_write():
    ds = opened("run.h5")
    ds.load()
    (ds + 1).td.to_h5("run.h5")
    with opened("run.h5") as again:
        np.testing.assert_array_equal(again["obs"], np.ones((6, 3), "f4"))


def test_chunks_of_unknown_sizes_are_reported():
    values = dask.array.arange(20, chunks=5)
    ds = xr.Dataset({"x": ("time", values[values % 2 == 0])})
    for use in (
        lambda: ds.td.batch_size,
        lambda: ds.td.to_tensordict(),
        lambda: list(ds.td.batches(2)),
        lambda: ds.td.to_zarr("a.zarr"),
    ):
        with pytest.raises(ValueError, match=r"'x' has the shape \(nan,\): .*compute_chunk_sizes"):
            use()


@pytest.mark.parametrize("kind", ["zarr", "h5", "memmap"])
def test_a_group_without_the_one_above_it_is_suggested_by_its_whole_path(tmp_path, kind):
    td = TensorDict({"data": {f"demo_{n}": {"obs": torch.zeros(6, 3)} for n in range(2)}}, [6])
    path = tmp_path / f"demos.{kind}"
    getattr(td, {"memmap": "memmap"}.get(kind, f"to_{kind}"))(path)
    with pytest.raises(
        OSError, match=r"group '/demo_1'.*the groups there are: \['/data'\][.] Did you mean '/data/demo_1'"
    ):
        opened(path, group="demo_1")
    with pytest.raises(OSError, match=r"the groups in '/data' are: \['/data/demo_0', '/data/demo_1'\]"):
        opened(path, group="data/demo_7")
    assert opened(path, group="data/demo_1").td.batch_size == (6,)
