"""The lazy door: a ``PersistentTensorDict`` over stores and Datasets, compared with the same in memory throughout.

``open_persistent(store)`` and ``xr.open_dataset(store, engine="tensordict").td.to_tensordict()`` show the same (the law
of two doors); and whatever can be asked of a TensorDict in memory gives the same when the lazy object is asked.
"""

import copy
import gc
import operator
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import dask
import h5py
import numpy as np
import pandas as pd
import pytest
import tensordict
import torch
import xarray as xr
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    PersistentTensorDict,
    TensorDict,
    lazy_stack,
)
from tensordict.base import _is_leaf_nontensor
from torch.utils import _pytree as pytree
from zarr.storage import LocalStore, MemoryStore, WrapperStore

import xarray_tensordict  # noqa: F401 - registers ds.td
from xarray_tensordict import dialect, open_persistent
from xarray_tensordict.lazy_tensordict import XarrayPersistentTensorDict
from xarray_tensordict.persistent import persistent_from_dataset
from xarray_tensordict.selection import select
from xarray_tensordict.testing import assert_same_tensordict

# --- what is opened ------------------------------------------------------------------------------------------------


def flat_td():
    """One batch dim, nested groups, rows of text, one value for all."""
    return TensorDict(
        {
            "obs": torch.arange(6 * 3 * 4.0).view(6, 3, 4),
            "action": torch.arange(6, dtype=torch.int16),
            "done": torch.tensor([False, True, False, False, True, True]),
            "task": ["a", "bb", "", "dé", "e", "f"],
            "robot": "panda",
            "next": {"obs": torch.arange(6 * 3.0).view(6, 3) / 7, "info": {"step": torch.arange(6)}},
        },
        batch_size=[6],
        names=["time"],
    )


def grid_ds():
    """Two batch dims, partial entries, unbatched entries, times, text of one and of two batch dims."""
    rng = np.random.default_rng(0)
    return xr.Dataset(
        {
            "x": (("time", "member", "lat"), rng.random((4, 3, 5)).astype("f4")),
            "mask": (("time", "member"), rng.random((4, 3)) > 0.5),
            "weight": (("member",), np.array([1, 2, 3], "u1")),
            "per_time": (("time", "lat"), rng.random((4, 5))),
            "lat_weight": (("lat",), rng.random(5)),
        },
        coords={
            "time": pd.date_range("2000-01-01", periods=4, unit="ns"),
            "lat": np.linspace(-90, 90, 5),
            "label": (("time", "member"), np.array([[f"{i}{j}" for j in range(3)] for i in range(4)], dtype=object)),
            "who": (("member",), np.array(["p", "q", "r"], dtype=object)),
        },
    )


def grid_of(ds):
    return ds.td.set_batch_dims(["time", "member"])


def as_zarr(td, path):
    td.to_zarr(path)


def as_chunked_zarr(td, path):
    td.to_zarr(path, chunks=2)


def as_hdf5(td, path):
    td.to_h5(path)


FORMATS = {"zarr": (as_zarr, ".zarr"), "chunked-zarr": (as_chunked_zarr, ".zarr"), "hdf5": (as_hdf5, ".h5")}
STORES = [*FORMATS, "memory", "dask"]


def make_persistent(kind, folder):
    """The lazy object for `flat_td`, by the kind of its store."""
    td = flat_td()
    if kind in FORMATS:
        write, suffix = FORMATS[kind]
        path = folder / f"flat{suffix}"
        write(td, path)
        ptd = open_persistent(path)
        ptd.names = ["time"]  # HDF5 of tensordict records none
        return ptd
    as_zarr(td, folder / "flat.zarr")
    ds = xr.open_dataset(folder / "flat.zarr", engine="tensordict")
    return persistent_from_dataset(ds.load() if kind == "memory" else ds.chunk({"time": 2}))


@pytest.fixture(params=STORES)
def flat(request, tmp_path):
    ptd = make_persistent(request.param, tmp_path)
    yield ptd
    ptd.close()


@pytest.fixture(params=["store", "memory", "dask"])
def grid(request, tmp_path):
    ds = grid_of(grid_ds())
    if request.param == "store":
        ds.to_zarr(tmp_path / "grid.zarr", zarr_format=3, consolidated=False)
        ptd = open_persistent(tmp_path / "grid.zarr")
    else:
        ptd = persistent_from_dataset(ds if request.param == "memory" else ds.chunk({"time": 2, "member": 1}))
    yield ptd
    ptd.close()


@pytest.fixture
def zarr_path(tmp_path):
    path = tmp_path / "buffer.zarr"
    flat_td().to_zarr(path, chunks=1)
    return path


# --- the law of two doors ------------------------------------------------------------------------------------------
# The cases of the corpus are held to it by the fixture `doors`.


def test_both_doors_show_the_same(flat):
    td = flat_td()
    assert isinstance(flat, PersistentTensorDict)
    assert_same_tensordict(flat.to_tensordict(), td)
    assert_same_tensordict(flat, td)


def test_both_doors_show_the_same_of_a_grid(grid):
    expected = grid_of(grid_ds()).td.to_tensordict()
    assert_same_tensordict(grid.to_tensordict(), expected)
    assert_same_tensordict(grid, expected)
    assert grid["weight"].is_contiguous()
    assert grid.names == ["time", "member"]


DTYPES = [
    torch.uint8,
    torch.int16,
    torch.int64,
    torch.bool,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex64,
]


@st.composite
def tensordicts(draw, depth=2, batch=None):
    batch = draw(st.lists(st.integers(0, 3), max_size=2)) if batch is None else batch
    entries = {}
    for name in draw(st.lists(st.sampled_from(["a", "b", "key with space", "ü"]), unique=True, min_size=1, max_size=3)):
        kind = draw(st.sampled_from(["tensor", "tensor", "text", "number", "group"]))
        if kind == "group" and depth:
            entries[name] = draw(tensordicts(depth=depth - 1, batch=batch))
        elif kind == "text":
            entries[name] = NonTensorData(draw(st.text(max_size=3)), batch_size=batch)
        elif kind == "number":
            entries[name] = NonTensorData(draw(st.integers(-3, 3)), batch_size=batch)
        else:
            shape = [*batch, *draw(st.lists(st.integers(0, 2), max_size=2))]
            dtype = draw(st.sampled_from(DTYPES))
            entries[name] = torch.randint(0, 2, shape).to(dtype)
    names = draw(st.none() | st.just(["t", "env"][: len(batch)])) if batch else None
    return TensorDict(entries, batch_size=batch, names=names)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(td=tensordicts(), data=st.data())
def test_what_tensordict_writes_opens_through_both_doors(td, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("generated") / "td.zarr"
    td.to_zarr(path)
    ptd = open_persistent(path)
    with xr.open_dataset(path, engine="tensordict") as ds:
        expected = ds.td.to_tensordict()
    assert_same_tensordict(ptd.to_tensordict(), expected)
    assert_same_tensordict(ptd, expected)
    if ptd.batch_dims:
        size = ptd.batch_size[0]
        rows = data.draw(st.lists(st.integers(-size, size - 1), max_size=4)) if size else []
        assert_same_tensordict(
            ptd[torch.tensor(rows, dtype=torch.long)], expected[torch.tensor(rows, dtype=torch.long)]
        )
    ptd.close()


@pytest.mark.parametrize("batch", [[], [0], [2, 0], [0, 3], [1], [2, 3]], ids=str)
@pytest.mark.parametrize("form", FORMATS)
def test_batches_of_every_kind(batch, form, tmp_path):
    td = TensorDict(
        {"x": torch.ones(*batch, 2), "text": NonTensorData("t", batch_size=batch), "n": {"y": torch.zeros(batch)}},
        batch,
    )
    write, suffix = FORMATS[form]
    write(td, tmp_path / f"td{suffix}")
    count = {"batch_dims": len(batch)}
    ptd = open_persistent(tmp_path / f"td{suffix}", **count)
    with xr.open_dataset(tmp_path / f"td{suffix}", engine="tensordict", **count) as ds:
        expected = ds.td.to_tensordict()
    assert list(ptd.batch_size) == batch
    assert_same_tensordict(ptd.to_tensordict(), expected)
    assert_same_tensordict(ptd, expected)
    if batch:
        assert_same_tensordict(ptd[:1].to_tensordict(), expected[:1])
        assert_same_tensordict(
            ptd[torch.zeros(batch[0], dtype=torch.bool)], expected[torch.zeros(batch[0], dtype=torch.bool)]
        )
    ptd.close()


def test_arguments_reach_the_engine(zarr_path):
    named = open_persistent(zarr_path, batch_dims=1, dims={"obs": ("row", "column")}, nested=False)
    assert named.names == ["time"]
    assert "next" not in named.keys()
    group = open_persistent(zarr_path, group="next")
    assert set(group.keys()) == {"obs", "info"}
    without = open_persistent(zarr_path, drop_variables=["obs"], chunks={})
    assert "obs" not in without.keys()
    assert without["action"].tolist() == list(range(6))
    for ptd in (named, group, without):
        ptd.close()
    with pytest.raises(TypeError, match="engine"):
        open_persistent(zarr_path, engine="zarr")


def test_packed_data_and_times_are_decoded(tmp_path):
    ds = xr.Dataset(
        {"t2m": ("time", np.array([280.5, np.nan, 290.0]))},
        coords={"time": pd.date_range("2000", periods=3, unit="ns")},
    )
    encoding = {
        "t2m": {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -1},
        "time": {"units": "hours since 1999-01-01"},
    }
    ds.to_zarr(tmp_path / "packed.zarr", encoding=encoding, zarr_format=3, consolidated=False)
    ptd = open_persistent(tmp_path / "packed.zarr")
    torch.testing.assert_close(ptd["t2m"], torch.tensor(ds.t2m.values), equal_nan=True)
    assert ptd["time"].tolist() == ds.time.values.astype("M8[ns]").astype("i8").tolist()
    assert ptd.get_at("time", 1).item() == ds.time.values.astype("M8[ns]").astype("i8")[1]
    ptd.close()


def test_bfloat16_keeps_its_dtype_in_every_read():
    widened = xr.Variable(("row", "f"), np.arange(8, dtype="f4").reshape(4, 2), encoding={"torch_dtype": "bfloat16"})
    ptd = persistent_from_dataset(xr.Dataset({"w": widened, "y": ("row", np.arange(4))}))
    for tensor in (ptd["w"], ptd.get_at("w", [0]), ptd[1]["w"], ptd[1:3]["w"], ptd.to_tensordict()["w"]):
        assert tensor.dtype is torch.bfloat16
    assert "bfloat16" in repr(ptd)


# --- indices -------------------------------------------------------------------------------------------------------

ROWS_OF_6 = {
    "int": 2,
    "negative int": -1,
    "numpy int": np.int64(3),
    "0-d tensor": torch.tensor(4),
    "list": [4, 0],
    "list with duplicates": [1, 1, 1],
    "list with negative numbers": [-1, 0, -6],
    "unsorted list": [5, 3, 4, 0],
    "list of bools": [True, False, False, True, False, False],
    "range": range(1, 6, 2),
    "tensor": torch.tensor([3, 1]),
    "tensor of int32": torch.tensor([0, 5], dtype=torch.int32),
    "2-d tensor": torch.tensor([[0, 1], [5, 4], [2, 2]]),
    "empty tensor": torch.tensor([], dtype=torch.long),
    "array": np.array([2, 5]),
    "array of uint16": np.array([2, 5], dtype="u2"),
    "mask": torch.tensor([True, False, True, False, False, True]),
    "mask of nothing": torch.zeros(6, dtype=torch.bool),
    "array mask": np.array([True, True, False, False, False, False]),
    "new dim": None,
    "new dim and int": (None, 2),
    "int and ellipsis": (2, ...),
    "ellipsis and tensor": (..., torch.tensor([1, 0])),
    "slice and new dim": (slice(1, 3), None),
    "tuple of one list": ([1, 2],),
}
SLICES_OF_6 = {
    "slice": slice(1, 4),
    "open slice": slice(None, 3),
    "negative slice": slice(-3, None),
    "stepped slice": slice(None, None, 2),
    "empty slice": slice(4, 2),
    "slice too long": slice(2, 100),
    "everything": slice(None),
    "tuple of a slice": (slice(0, 2),),
    "ellipsis": ...,
    "nothing": (),
    "slice and ellipsis": (slice(1, 2), ...),
}
ROWS_OF_4_BY_3 = {
    "int": 1,
    "two ints": (1, -1),
    "int and slice": (1, slice(0, 2)),
    "slice and int": (slice(1, 3), 2),
    "slice and list": (slice(None), [2, 0]),
    "list and int": ([3, 0, 0], 1),
    "int and list": (1, [2, 0]),
    "pairs": ([3, 0, 3], [2, 2, 0]),
    "pairs in a grid": (torch.tensor([[0], [3]]), torch.tensor([[0, 2]])),
    "mask of both": torch.arange(12).view(4, 3) % 5 == 0,
    "mask of nothing": torch.zeros(4, 3, dtype=torch.bool),
    "mask of the first": torch.tensor([True, False, False, True]),
    "mask of the second": (slice(None), torch.tensor([True, False, True])),
    "ellipsis and int": (..., 0),
    "new dim between": (slice(None), None, 1),
    "tensor of both": (torch.tensor([1, 2]), slice(0, 3, 2)),
}
SLICES_OF_4_BY_3 = {
    "slice": slice(1, 3),
    "two slices": (slice(1, 3), slice(None, None, 2)),
    "ellipsis": (..., slice(1, 2)),
}


def ids(table):
    return pytest.mark.parametrize("index", table.values(), ids=table.keys())


@ids(ROWS_OF_6)
def test_rows_by_number_are_loaded(flat, index):
    found, expected = flat[index], flat_td()[as_torch(index)]
    assert type(found) is TensorDict
    assert_same_tensordict(found, expected)


@ids(SLICES_OF_6)
def test_a_slice_is_a_lazy_view(flat, index):
    found = flat[index]
    assert type(found) is type(flat)
    assert_same_tensordict(found.to_tensordict(), flat_td()[index])
    assert_same_tensordict(found, flat_td()[index])


@ids(ROWS_OF_4_BY_3)
def test_rows_of_two_batch_dims(grid, index):
    found = grid[index]
    assert type(found) is TensorDict
    assert_same_tensordict(found, grid_of(grid_ds()).td.to_tensordict()[as_torch(index)])


@ids(SLICES_OF_4_BY_3)
def test_slices_of_two_batch_dims(grid, index):
    found = grid[index]
    assert type(found) is type(grid)
    assert_same_tensordict(found.to_tensordict(), grid_of(grid_ds()).td.to_tensordict()[index])


def as_torch(index):
    """The same index where tensordict or torch in memory do not take its form."""
    if isinstance(index, tuple):
        return tuple(as_torch(part) for part in index)
    return torch.as_tensor(index.astype("int64")) if isinstance(index, np.ndarray) and index.dtype == "u2" else index


@ids({**ROWS_OF_6, **SLICES_OF_6})
def test_get_at_reads_rows_of_one_tensor(flat, index):
    for key in ("obs", "action", "done", ("next", "obs"), ("next", "info", "step")):
        expected = flat_td()[key][as_torch((list(index),) if isinstance(index, (list, range)) else index)]
        found = flat.get_at(key, index)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


INTO_FEATURES = {
    "row and feature": (2, 1),
    "slices": (slice(1, 3), slice(None), slice(0, 4, 3)),
    "list of features": (slice(None), [2, 0]),
    "last feature": (..., -1),
    "points": ([0, 5, 5], [2, 0, 2], [3, 3, 0]),
    "mask of everything": torch.arange(72).view(6, 3, 4) % 7 == 0,
    "mask of features": (1, torch.arange(12).view(3, 4) > 8),
    "apart": ([0, 1], slice(None), [3, 2]),
    "new dim": (None, 0, None, [1, 1]),
}


@ids(INTO_FEATURES)
def test_get_at_reaches_into_features(flat, index):
    assert torch.equal(flat.get_at("obs", index), flat_td()["obs"][index])


@ids({**ROWS_OF_4_BY_3, **SLICES_OF_4_BY_3})
def test_get_at_of_batched_and_partial_entries(grid, index):
    td = grid_of(grid_ds()).td.to_tensordict()
    for key in ("x", "mask", "weight", "per_time", "time"):
        found, expected = grid.get_at(key, index), td[key][index]
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
        assert found.is_contiguous()


@ids({**ROWS_OF_4_BY_3, **SLICES_OF_4_BY_3})
def test_get_at_of_rows_of_text(grid, index):
    td = grid_of(grid_ds()).td.to_tensordict()
    picked = torch.arange(12).view(4, 3)[index]
    for key in ("label", "who"):
        texts = np.array(td.get(key).tolist(), dtype=object).reshape(-1)
        found = grid.get_at(key, index)
        assert tuple(found.batch_size) == tuple(picked.shape)
        assert (found.tolist() if picked.ndim else found.data) == texts[picked.numpy()].tolist()


@ids({**ROWS_OF_6, **SLICES_OF_6})
def test_get_at_of_one_value_and_of_groups(flat, index):
    batch = torch.zeros(6)[as_torch(index if isinstance(index, tuple) else (index,))].shape
    value = flat.get_at("robot", index)
    assert value.data == "panda"
    assert value.batch_size == batch
    assert_same_tensordict(flat.get_at("next", index), flat_td()["next"][as_torch(index)])


@ids({name: ROWS_OF_6[name] for name in ("int", "list", "unsorted list", "tensor", "mask")} | {"slice": slice(1, 4)})
def test_sub_tensordicts_read_through(flat, index):
    sub = flat._get_sub_tensordict(index if isinstance(index, (int, slice)) else torch.as_tensor(index))
    assert_same_tensordict(sub, flat_td()[index])
    assert_same_tensordict(sub.to_tensordict(), flat_td()[index])


WRONG = {
    "too large": (6, IndexError),
    "too small": (-7, IndexError),
    "in a list": ([0, 6], IndexError),
    "in an array": (np.array([-7]), IndexError),
    "mask too short": (torch.ones(5, dtype=torch.bool), IndexError),
    "mask of two dims": (torch.ones(6, 2, dtype=torch.bool), IndexError),
    "floats": (torch.tensor([0.5]), IndexError),
    "a float": (1.5, IndexError),
    "negative step": (slice(None, None, -1), ValueError),
    "zero step": (slice(None, None, 0), ValueError),
    "numpy bool": (np.bool_(True), IndexError),
    "two ellipses": ((..., ...), IndexError),
    "array of text": (np.array(["a"]), IndexError),
}


@pytest.mark.parametrize(("index", "error"), WRONG.values(), ids=WRONG.keys())
def test_what_is_no_index_raises_as_torch_does(flat, index, error):
    with pytest.raises(error):
        flat[index]
    with pytest.raises(error):
        flat.get_at("action", index)
    with pytest.raises(error):
        flat.get_at("task", index)


def test_an_index_of_too_many_dims_raises(flat):
    with pytest.raises(IndexError, match="too many"):
        flat[0, 0]
    with pytest.raises(IndexError, match="too many"):
        flat.get_at("action", (0, 0))


def test_a_view_of_a_view_of_a_view(flat):
    td = flat_td()
    assert_same_tensordict(flat[1:][::2][1:][0], td[1:][::2][1:][0])
    assert torch.equal(flat[2:5].get_at("obs", [2, 0]), td[2:5]["obs"][[2, 0]])
    assert_same_tensordict(flat[1:]["next"][::2].to_tensordict(), td[1:]["next"][::2])


def test_nested_groups_with_more_batch_dims(tmp_path):
    td = TensorDict(
        {
            "x": torch.arange(4.0),
            "sub": TensorDict({"y": torch.arange(24).view(4, 3, 2)}, [4, 3], names=["t", "agent"]),
        },
        [4],
        names=["t"],
    )
    td.to_zarr(tmp_path / "td.zarr")
    ptd = open_persistent(tmp_path / "td.zarr")
    assert list(ptd["sub"].batch_size) == [4, 3]
    assert ptd["sub"].names == ["t", "agent"]
    assert_same_tensordict(ptd, td)
    for index in (0, [1, 3], slice(1, 3), torch.tensor([True, False, True, False]), None, (..., [0])):
        assert_same_tensordict(ptd[index], td[index])
    assert_same_tensordict(ptd["sub"][:, 1], td["sub"][:, 1])
    assert_same_tensordict(ptd["sub"][[0, 1], [2, 2]], td["sub"][[0, 1], [2, 2]])
    ptd.close()


# --- keys ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("include_nested", [False, True])
@pytest.mark.parametrize("leaves_only", [False, True])
@pytest.mark.parametrize("is_leaf", [None, _is_leaf_nontensor], ids=["default", "non-tensors are leaves"])
def test_keys_values_and_items(flat, include_nested, leaves_only, is_leaf):
    arguments = {"include_nested": include_nested, "leaves_only": leaves_only, "is_leaf": is_leaf}
    td = flat_td()
    expected = set(td.keys(**arguments))
    if is_leaf is None and leaves_only:
        expected -= {"robot", "task"}
    assert set(flat.keys(**arguments)) == expected
    assert len(list(flat.values(**arguments))) == len(expected)
    items = dict(flat.items(**arguments))
    assert set(items) == expected
    for key, value in items.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, td[key])


def test_keys_that_are_there_and_keys_that_are_not(flat):
    keys = flat.keys(include_nested=True)
    for key in ("obs", ("next", "obs"), ("next", "info", "step"), "task", "robot", "next"):
        assert key in keys
    for key in ("no", ("next", "no"), ("obs", "no"), "next/obs", ("no", "obs")):
        assert key not in keys
        assert flat.get(key, None) is None or key == "next/obs"
    assert "obs" in flat.keys()
    assert ("next", "obs") not in flat.keys()
    assert sorted(flat.keys(include_nested=True, leaves_only=True, sort=True), key=str) == sorted(
        flat.keys(include_nested=True, leaves_only=True), key=str
    )


def test_groups_and_leaves_know_their_class(flat):
    assert flat.entry_class("obs") is torch.Tensor
    assert flat.entry_class("task") is NonTensorStack
    assert flat.entry_class("robot") is NonTensorData
    assert issubclass(flat.entry_class("next"), PersistentTensorDict)
    assert flat.get_item_shape("obs") == torch.Size([6, 3, 4])
    assert flat.get_item_shape(("next", "obs")) == torch.Size([6, 3])


def test_entries_come_as_in_memory(flat):
    td = flat_td()
    assert flat["task"] == td["task"]
    assert flat["robot"] == "panda"
    assert isinstance(flat.get("robot"), NonTensorData)
    assert isinstance(flat.get("task"), NonTensorStack)
    assert isinstance(flat["next"], PersistentTensorDict)
    assert flat["next"] is flat["next"]
    assert flat["next", "info"] is flat["next"]["info"]
    assert torch.equal(flat["next", "info", "step"], flat["next"]["info"]["step"])
    assert torch.equal(flat.get(("next", "obs")), td["next", "obs"])
    assert len(flat) == 6
    assert [row["action"].item() for row in flat] == list(range(6))


def test_a_key_that_is_not_there_is_an_error_that_names_the_store(zarr_path):
    ptd = open_persistent(zarr_path)
    with pytest.raises(KeyError, match=r"no entry 'no' in .*buffer.zarr"):
        ptd["no"]
    with pytest.raises(KeyError, match="'next/no'"):
        ptd["next", "no"]
    assert ptd.get("no", 5) == 5
    assert ptd.get_at("no", 0, default=None) is None
    ptd.close()


# --- what is not in the tensordict ---------------------------------------------------------------------------------


def test_unbatched_entries_are_apart(grid):
    assert set(grid.unbatched.keys()) == {"lat", "lat_weight"}
    assert list(grid.unbatched.batch_size) == []
    assert type(grid.unbatched) is TensorDict
    assert type(grid.unbatched["lat"]) is torch.Tensor
    assert torch.equal(grid.unbatched["lat"], torch.linspace(-90, 90, 5, dtype=torch.float64))
    assert set(grid[1:].unbatched.keys()) == {"lat", "lat_weight"}
    with pytest.raises(KeyError, match=r"'lat' .* no batch dim.*unbatched"):
        grid["lat"]
    assert grid.get("lat", None) is None
    assert "lat" not in grid.keys()


def test_unbatched_entries_of_a_group_are_with_the_group():
    ds = xr.Dataset(
        {"x": ("t", np.arange(3)), "g/y": ("t", np.arange(3)), "g/w": ("f", np.arange(2)), "v": ("f", np.zeros(2))}
    )
    ptd = persistent_from_dataset(ds, "t")
    assert ptd.unbatched["g", "w"].tolist() == [0, 1]
    assert set(ptd["g"].unbatched.keys()) == {"w"}


def test_a_member_that_was_left_out_says_why_when_it_is_asked_for(tmp_path):
    with h5py.File(tmp_path / "refs.h5", "w") as file:
        file["x"] = np.arange(3.0)
        file.create_dataset("refs", (3,), dtype=h5py.ref_dtype)
    with pytest.warns(UserWarning, match="refs"):
        ptd = open_persistent(tmp_path / "refs.h5")
    assert set(ptd.keys()) == {"x"}
    with pytest.raises(TypeError, match="'refs' is left out: .*reference"):
        ptd["refs"]
    assert ptd.get("refs", None) is None
    assert "refs" not in ptd.keys()
    ptd.close()


FAR = np.array(["0001-01-01", "9999-12-31", "NaT"], "M8[s]")


@pytest.mark.parametrize("chunked", [False, True])
def test_times_that_do_not_fit_are_left_out_through_both_doors(chunked):
    ds = xr.Dataset({"x": ("t", np.arange(3)), "far": ("t", FAR), "near": ("t", np.array([0, 1, 2], "M8[s]"))})
    ds = ds.chunk() if chunked else ds
    with pytest.warns(UserWarning, match="'far'") as warned:
        ptd = persistent_from_dataset(ds)
    assert len(warned) == 1
    with pytest.warns(UserWarning, match="'far'"):
        expected = ds.td.to_tensordict()
    assert_same_tensordict(ptd.to_tensordict(), expected)
    assert ptd["near"].tolist() == [0, 10**9, 2 * 10**9]
    with pytest.raises(TypeError, match="'far' is left out"):
        ptd["far"]


def test_dates_of_another_calendar_are_left_out(tmp_path):
    encoding = {"t": {"units": "days since 2000-01-01", "calendar": "360_day"}}
    times = xr.date_range("2000-01-01", periods=3, calendar="360_day", use_cftime=True)
    xr.Dataset({"x": ("t", np.arange(3))}, coords={"t": times}).to_zarr(
        tmp_path / "c.zarr", encoding=encoding, zarr_format=3, consolidated=False
    )
    with pytest.warns(UserWarning, match="360_day"):
        ptd = open_persistent(tmp_path / "c.zarr")
    with pytest.raises(TypeError, match="'t' is left out.*360_day"):
        ptd["t"]
    ptd.close()


# --- what is read, and what it belongs to --------------------------------------------------------------------------


def test_what_was_read_is_the_callers_own(flat):
    td = flat_td()
    for _ in range(2):
        for read in (
            lambda: flat["obs"],
            lambda: flat.get_at("obs", slice(None)),
            lambda: flat[:]["obs"],
            lambda: flat[[0, 1, 2, 3, 4, 5]]["obs"],
            lambda: flat.to_tensordict()["obs"],
            lambda: dict(flat.items())["obs"],
            lambda: flat.clone()["obs"],
        ):
            tensor = read()
            assert torch.equal(tensor, td["obs"])
            tensor.zero_()
        flat[1]["obs"].fill_(9)
        flat["next"]["obs"].add_(1)
    assert_same_tensordict(flat, td)
    flat.lock_()
    flat["obs"].zero_()
    list(flat.values(include_nested=True, leaves_only=True))[0].zero_()
    assert_same_tensordict(flat, td)


def test_no_read_changes_a_dataset_in_memory(grid):
    ds = grid_of(grid_ds())
    ptd = persistent_from_dataset(ds)
    before = ds.copy(deep=True)
    for key in ptd.keys(include_nested=True, leaves_only=True):
        ptd[key].zero_()
        ptd.get_at(key, slice(0, 2)).zero_()
        ptd[:2][key].zero_()
        ptd.get_at(key, 0).zero_()
    ptd.to_tensordict().zero_()
    ptd.unbatched.zero_()
    xr.testing.assert_identical(ds, before)


def test_broadcast_entries_can_be_written_to_element_by_element(grid):
    for tensor in (grid["weight"], grid[1:]["weight"], grid[[0, 1]]["weight"], grid.get_at("weight", slice(0, 2))):
        tensor[0, 0] = 77
        assert (tensor == 77).sum() == 1


def test_a_chunked_array_that_dask_shares_is_copied():
    values = np.arange(4.0)
    ptd = persistent_from_dataset(xr.Dataset({"x": ("t", dask.array.from_array(values, chunks=4))}))
    ptd["x"].zero_()
    assert values.tolist() == [0, 1, 2, 3]


class CountingStore(WrapperStore):
    """A zarr store that counts what is read of each array."""

    chunks: ClassVar = []  # of all instances: zarr makes a read-only one of its own

    async def get(self, key, prototype, byte_range=None):
        if "/c/" in key or key.endswith("/c"):
            self.chunks.append(key)
        return await super().get(key, prototype, byte_range)


@pytest.fixture
def counting(tmp_path):
    td = TensorDict({"x": torch.arange(40.0).view(8, 5), "n": {"y": torch.arange(8)}}, [8], names=["t"])
    td.to_zarr(tmp_path / "counted.zarr", chunks=1)
    return CountingStore(LocalStore(tmp_path / "counted.zarr"))


READS = {
    "open": (lambda p: None, []),
    "repr": (repr, []),
    "html": (lambda p: p._repr_html_(), []),
    "keys": (lambda p: list(p.keys(include_nested=True, leaves_only=True)), []),
    "slice": (lambda p: p[2:5][::2], []),
    "shape": (lambda p: (p.get_item_shape("x"), p.entry_class("x"), len(p), p.numel(), p.batch_size), []),
    "clone(False)": (lambda p: p.clone(False), []),
    "to(device)": (lambda p: p.to("cpu"), []),
    "lock": (lambda p: p.lock_(), []),
    "empty": (lambda p: p.empty(recurse=True), []),
    "memmap_like": (lambda p: p.memmap_like(), []),
    "int": (lambda p: p[3], ["n/y/c/3", "x/c/3/0"]),
    "list": (lambda p: p[[6, 1, 6]], ["n/y/c/1", "n/y/c/6", "x/c/1/0", "x/c/6/0"]),
    "get_at int": (lambda p: p.get_at("x", 3), ["x/c/3/0"]),
    "get_at list": (lambda p: p.get_at("x", [7, 0]), ["x/c/0/0", "x/c/7/0"]),
    "get_at mask": (lambda p: p.get_at("x", torch.arange(8) > 6), ["x/c/7/0"]),
    "get_at nested": (lambda p: p.get_at(("n", "y"), slice(2, 3)), ["n/y/c/2"]),
    "get_at features": (lambda p: p.get_at("x", (2, slice(0, 1))), ["x/c/2/0"]),
    "one of a view": (lambda p: p[4:]["n"].get_at("y", 1), ["n/y/c/5"]),
}


@pytest.mark.parametrize(("read", "chunks"), READS.values(), ids=READS.keys())
def test_only_what_is_asked_for_is_read(counting, read, chunks):
    ptd = open_persistent(counting)
    counting.chunks.clear()
    read(ptd)
    assert sorted(counting.chunks) == chunks
    ptd.close()


def test_points_of_a_large_grid_are_read_alone(tmp_path):
    array = np.arange(30 * 30).reshape(30, 30)
    zarr.create_array(str(tmp_path / "g.zarr" / "x"), data=array, chunks=(1, 1), dimension_names=("a", "b"))
    zarr.open_group(str(tmp_path / "g.zarr"), mode="a")
    store = CountingStore(LocalStore(tmp_path / "g.zarr"))
    ptd = open_persistent(store, batch_dims=["a", "b"])
    store.chunks.clear()
    points = (torch.arange(0, 30, 2), torch.arange(29, 0, -2))
    assert torch.equal(ptd[points]["x"], torch.from_numpy(array)[points])
    assert len(store.chunks) == 15


def test_dask_computes_once_for_all_entries(tmp_path):
    ds = grid_of(grid_ds()).chunk()
    computed = []

    def scheduler(graph, keys, **kwargs):
        computed.append(keys)
        return dask.get(graph, keys, **kwargs)

    ptd = persistent_from_dataset(ds)
    with dask.config.set(scheduler=scheduler):
        ptd.to_tensordict()
        ptd[[0, 2]]
    assert len(computed) == 2


def test_threads_read_at_the_same_time(flat):
    td = flat_td()

    def read(number):
        index = [number % 6, (number * 5) % 6]
        assert_same_tensordict(flat[index], td[index])
        return torch.equal(flat.get_at("obs", index), td["obs"][index])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(64)))


# --- tensordict's operations ---------------------------------------------------------------------------------------


def test_locking_reaches_nested_groups(flat):
    flat.lock_()
    assert flat.is_locked
    assert flat["next"].is_locked
    assert flat["next", "info"].is_locked
    assert torch.equal(flat["obs"], flat_td()["obs"])
    flat.unlock_()
    assert not flat["next", "info"].is_locked
    with flat.lock_():
        assert flat["next"].is_locked
    assert not flat.is_locked


def test_cloning(flat, tmp_path):
    assert type(flat.clone()) is TensorDict
    assert_same_tensordict(flat.clone(), flat_td())
    lazy = flat.clone(False)
    assert type(lazy) is type(flat)
    assert lazy is not flat
    lazy.names = ["other"]
    assert flat.names == ["time"]
    assert_same_tensordict(flat.copy(), flat_td())
    assert_same_tensordict(copy.copy(flat), flat_td())
    written = flat.clone(newfile=tmp_path / "clone.zarr")
    assert_same_tensordict(written.to_tensordict(), flat_td())
    written["action"] = torch.zeros(6, dtype=torch.int16)
    assert_same_tensordict(flat, flat_td())


@pytest.mark.parametrize("threads", [0, 2])
def test_memory_maps(flat, tmp_path, threads):
    mapped = flat.memmap(tmp_path / "map", num_threads=threads)
    assert type(mapped) is TensorDict
    assert mapped.is_memmap()
    assert_same_tensordict(mapped, flat_td())
    loaded = TensorDict.load_memmap(tmp_path / "map", allow_pickle=True)
    assert type(loaded) is TensorDict
    assert_same_tensordict(loaded, flat_td())
    for meta in (tmp_path / "map").rglob("meta.json"):
        assert "Persistent" not in meta.read_text()
    assert_same_tensordict(flat.memmap(), flat_td())


def test_saving_and_loading(flat, tmp_path):
    flat.save(tmp_path / "saved")
    assert_same_tensordict(tensordict.load(tmp_path / "saved"), flat_td())
    flat.save(tmp_path / "saved.tdz", archive=True)
    assert_same_tensordict(tensordict.load(tmp_path / "saved.tdz"), flat_td())
    like = flat.memmap_like(tmp_path / "like")
    assert like["obs"].shape == (6, 3, 4)
    assert like["obs"].dtype == torch.float32


@pytest.mark.filterwarnings("ignore:The h5 backend of PersistentTensorDict reads the string:FutureWarning")
def test_writing_with_tensordict(flat, tmp_path):
    assert_same_tensordict(flat.to_zarr(tmp_path / "new.zarr").to_tensordict(), flat_td())
    written = flat.to_h5(tmp_path / "new.h5")
    assert torch.equal(written["next", "obs"], flat_td()["next", "obs"])
    assert torch.equal(flat[1:4].to_zarr(tmp_path / "part.zarr")["obs"], flat_td()["obs"][1:4])
    assert type(flat).from_zarr(tmp_path / "new.zarr").batch_size == flat.batch_size
    written.close()


def test_devices_and_dtypes(flat):
    moved = flat.to("cpu")
    assert flat.device is None
    assert moved.device == moved["next"].device == torch.device("cpu")
    assert type(moved) is type(flat)
    assert_same_tensordict(moved[1:3], flat_td()[1:3])
    assert flat.to("meta")["obs"].device.type == "meta"
    assert flat.to("meta")[[0]]["next", "obs"].device.type == "meta"
    assert flat.to("meta")[:2]["next"].get_at("obs", 0).device.type == "meta"
    cast = flat.to(torch.float64)
    assert type(cast) is TensorDict
    assert cast["next", "obs"].dtype == torch.float64


def test_the_device_argument(zarr_path):
    ptd = open_persistent(zarr_path, device="meta")
    assert ptd.device == torch.device("meta")
    assert ptd["obs"].device.type == ptd[[1]]["obs"].device.type == ptd.to_tensordict().device.type == "meta"
    assert ptd["next"].device.type == "meta"
    ptd.close()


def double(value):
    return value * 2 if isinstance(value, torch.Tensor) else value


OPERATIONS = {
    "apply": lambda td: td.apply(lambda x: x * 2),
    "named_apply": lambda td: td.named_apply(lambda name, x: x + len(name), nested_keys=True),
    "stack": lambda td: torch.stack([td, td]),
    "stack dim 1": lambda td: torch.stack([td, td], 1),
    "cat": lambda td: torch.cat([td, td]),
    "lazy stack": lambda td: lazy_stack([td, td]).to_tensordict(),
    "split": lambda td: torch.cat(td.split(4)),
    "split first": lambda td: td.split([2, 4])[0],
    "chunk": lambda td: td.chunk(3)[1],
    "unbind": lambda td: td.unbind(0)[3],
    "gather": lambda td: td.gather(0, torch.tensor([3, 0])),
    "masked_select": lambda td: td.masked_select(torch.arange(6) > 3),
    "add": lambda td: td.select_tensors() + 1 if hasattr(td, "select_tensors") else td + 1,
    "flatten_keys": lambda td: td.flatten_keys("."),
    "split_keys": lambda td: td.split_keys(["obs"])[0],
    "contiguous": lambda td: td.contiguous(),
    "expand": lambda td: td.expand(2, 6),
    "pytree": lambda td: pytree.tree_map(double, td),
    "to_dict": lambda td: TensorDict({"obs": td.to_dict()["obs"], "y": td.to_dict()["next"]["info"]["step"]}),
    "numpy": lambda td: TensorDict({"obs": torch.from_numpy(td.numpy()["obs"])}),
    "empty": lambda td: td.empty(),
    "dense": lambda td: td.to_tensordict().view(2, 3),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_operations_give_what_they_give_in_memory(flat, operation):
    assert_same_tensordict(operation(flat), operation(flat_td()))


def test_pytrees(flat):
    leaves, spec = pytree.tree_flatten(flat)
    in_memory, _ = pytree.tree_flatten(flat_td())
    assert sorted(leaf.numel() for leaf in leaves) == sorted(leaf.numel() for leaf in in_memory)
    assert_same_tensordict(pytree.tree_unflatten(leaves, spec), flat_td())


def test_a_lazy_stack_of_stores(flat):
    stack = LazyStackedTensorDict(flat, flat.clone(False))
    assert torch.equal(stack["obs"], torch.stack([flat_td()["obs"]] * 2))
    assert_same_tensordict(stack[1].to_tensordict(), flat_td())
    assert ("next", "obs") in set(stack.keys(include_nested=True, leaves_only=True))


def test_it_is_a_part_of_other_tensordicts(flat):
    held = TensorDict({"store": flat}, [6])
    assert torch.equal(held["store", "obs"], flat_td()["obs"])
    assert_same_tensordict(held[[0, 2]]["store"], flat_td()[[0, 2]])


def test_the_batch_size_can_be_made_to_fit(flat):
    with pytest.raises(RuntimeError, match="batch size and array size mismatch"):
        flat.batch_size = [3]
    with pytest.raises(RuntimeError, match="mismatch"):
        flat.batch_size = [6, 3]
    assert list(flat.batch_size) == [6]
    assert flat.names == ["time"]
    flat.batch_size = []
    assert list(flat.batch_size) == []
    assert flat.names == []
    assert flat.to_tensordict().batch_size == torch.Size([])
    with pytest.raises(IndexError):
        flat[0]


def test_names_can_be_changed_for_this_object(flat):
    flat.names = ["step"]
    assert flat["next"].names == ["step"]
    assert flat[1:3].names == flat[[0]].names == flat.to_tensordict().names == ["step"]
    assert flat[1:3]["next"].names == ["step"]
    assert flat[0].names == []


@pytest.mark.parametrize("compact", [True, False])
def test_the_repr_shows_entries_without_reading_them(flat, compact):
    with (
        tensordict.set_printoptions(compact=compact)
        if hasattr(tensordict, "set_printoptions")
        else warnings.catch_warnings()
    ):
        text = repr(flat)
    for part in (
        "obs: Tensor(shape=torch.Size([6, 3, 4]), dtype=torch.float32)",
        "task: NonTensorStack",
        "names=['time']",
    ):
        assert part in text
    assert "obs" in flat._repr_html_()
    assert str(flat[2:4]).count("torch.Size([2") >= 5


# --- read-only, in words -------------------------------------------------------------------------------------------

WRITES = {
    "set": lambda p: p.set("obs", torch.zeros(6, 3, 4)),
    "set a new key": lambda p: p.set("new", torch.zeros(6)),
    "set nested": lambda p: p.set(("next", "new"), torch.zeros(6)),
    "set in a new group": lambda p: p.set(("new", "new"), torch.zeros(6)),
    "set a group": lambda p: p.set("new", TensorDict({"a": torch.zeros(6)}, [6])),
    "[]": lambda p: operator.setitem(p, "obs", torch.zeros(6, 3, 4)),
    "[] of rows": lambda p: operator.setitem(p, 0, flat_td()[0]),
    "[] of rows by a number": lambda p: operator.setitem(p, slice(2), 0),
    "set_": lambda p: p.set_("obs", torch.zeros(6, 3, 4)),
    "set_at_": lambda p: p.set_at_("obs", torch.zeros(3, 4), 0),
    "set_at_ nested": lambda p: p.set_at_(("next", "obs"), torch.zeros(3), 0),
    "set_non_tensor": lambda p: p.set_non_tensor("robot", "ur5"),
    "update": lambda p: p.update({"obs": torch.zeros(6, 3, 4)}),
    "update_": lambda p: p.update_(flat_td()),
    "update_at_": lambda p: p.update_at_(flat_td()[0], 0),
    "copy_": lambda p: p.copy_(flat_td()),
    "copy_at_": lambda p: p.copy_at_(flat_td()[0], 0),
    "del": lambda p: operator.delitem(p, "obs"),
    "del_": lambda p: p.del_("obs"),
    "pop": lambda p: p.pop("obs"),
    "popitem": lambda p: p.popitem(),
    "clear": lambda p: p.clear(),
    "setdefault": lambda p: p.setdefault("new", torch.zeros(6)),
    "rename_key_": lambda p: p.rename_key_("obs", "other"),
    "zero_": lambda p: p.zero_(),
    "fill_": lambda p: p.fill_("obs", 1.0),
    "masked_fill_": lambda p: p.masked_fill_(torch.ones(6, dtype=torch.bool), 0),
    "apply_": lambda p: p.apply_(lambda x: x + 1),
    "add_": lambda p: p.add_(1),
    "mul_": lambda p: p.mul_(2),
    "nested zero_": lambda p: p["next"].zero_(),
    "create_nested": lambda p: p.create_nested("new"),
    "replace": lambda p: p.replace({"obs": torch.zeros(6, 3, 4)}),
    "stack out": lambda p: torch.stack([flat_td()[0]] * 6, out=p),
    "through a sub-tensordict": lambda p: p._get_sub_tensordict(0).set_("obs", torch.zeros(3, 4)),
    "into a view": lambda p: p[:2].set_("action", torch.zeros(2, dtype=torch.int16)),
    "memmap_": lambda p: p.memmap_(),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_writes_are_refused_in_words_and_change_nothing(zarr_path, write):
    ptd = open_persistent(zarr_path)
    files = {path: path.read_bytes() for path in zarr_path.rglob("*") if path.is_file()}
    with pytest.raises(TypeError, match=r"buffer\.zarr.* is read-only.*to_tensordict\(\).*mode='r\+'"):
        write(ptd)
    assert {path: path.read_bytes() for path in zarr_path.rglob("*") if path.is_file()} == files
    assert_same_tensordict(ptd, flat_td())
    ptd.close()


def test_the_refusal_names_the_entry(zarr_path):
    ptd = open_persistent(zarr_path)
    with pytest.raises(TypeError, match="write 'next/obs'"):
        ptd["next"].set_at_("obs", torch.zeros(3), 0)
    with pytest.raises(TypeError, match="delete 'next/obs'"):
        del ptd["next", "obs"]
    ptd.close()


# --- closing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
def test_after_close_a_read_says_so(form, tmp_path):
    ptd = make_persistent(form, tmp_path)
    view = ptd[1:3]
    ptd.close()
    ptd.close()
    for read in (
        lambda: ptd["obs"],
        lambda: ptd[0],
        lambda: ptd.to_tensordict(),
        lambda: view["next", "obs"],
        lambda: ptd.unbatched,
    ):
        with pytest.raises(ValueError, match="was closed"):
            read()
    assert "obs" in repr(ptd)


def test_closing_frees_the_file(tmp_path):
    ptd = make_persistent("hdf5", tmp_path)
    ptd["obs"]
    ptd.close()
    with h5py.File(tmp_path / "flat.h5", "r+") as file:
        file["action"][0] = 5


def test_a_file_is_freed_without_close(tmp_path):
    ptd = make_persistent("hdf5", tmp_path)
    ptd["obs"]
    del ptd
    gc.collect()
    with h5py.File(tmp_path / "flat.h5", "r+") as file:
        file["action"][0] = 5


def test_closing_leaves_the_dataset_of_the_caller_open(zarr_path):
    with xr.open_dataset(zarr_path, engine="tensordict") as ds:
        ptd = ds.td.to_persistent()
        assert_same_tensordict(ptd, flat_td())
        ptd.close()
        assert_same_tensordict(ds.td.to_tensordict(), flat_td())


def test_what_the_dataset_has_loaded_is_not_read_again(counting):
    with xr.open_dataset(counting, engine="tensordict") as ds:
        ds["x"].load()
        counting.chunks.clear()
        ptd = ds.td.to_persistent()
        assert torch.equal(ptd["x"], torch.arange(40.0).view(8, 5))
        assert counting.chunks == []


# --- what can be opened --------------------------------------------------------------------------------------------


def test_stores_and_open_objects(zarr_path, tmp_path):
    bare = TensorDict.from_zarr(zarr_path)
    with zarr.storage.ZipStore(tmp_path / "td.zarr.zip", mode="w") as zipped:
        flat_td().to_zarr(zipped)
    memory = MemoryStore()
    flat_td().to_zarr(memory)
    for store in (
        str(zarr_path),
        zarr_path,
        LocalStore(zarr_path),
        zarr.open_group(zarr_path, mode="r"),
        bare,
        memory,
        tmp_path / "td.zarr.zip",
    ):
        ptd = open_persistent(store)
        assert_same_tensordict(ptd, flat_td())
        assert_same_tensordict(ptd[[3, 0]], flat_td()[[3, 0]])
        ptd["obs"].zero_()
        assert_same_tensordict(ptd, flat_td())
        ptd.close()


def test_an_open_hdf5_file(tmp_path):
    flat_td().exclude("robot").to_h5(tmp_path / "td.h5").close()
    with h5py.File(tmp_path / "td.h5") as file:
        ptd = open_persistent(file)
        ptd.names = ["time"]
        assert_same_tensordict(ptd, flat_td().exclude("robot"))
        group = open_persistent(file["next"])
        assert torch.equal(group["obs"], flat_td()["next", "obs"])
        ptd.close()
        assert file["action"][1] == 1


def test_nothing_at_the_path(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing"):
        open_persistent(tmp_path / "nothing.zarr")


def test_an_empty_store(tmp_path):
    zarr.open_group(tmp_path / "empty.zarr", mode="w")
    ptd = open_persistent(tmp_path / "empty.zarr")
    assert list(ptd.keys()) == []
    assert ptd.batch_size == torch.Size([])
    assert_same_tensordict(ptd.to_tensordict(), TensorDict())
    assert "fields" in repr(ptd)


def test_names_that_are_awkward():
    names = ["keys", "batch_size", "with space", "ünï", "a.b", "_x", "0", "file", "names"]
    ptd = persistent_from_dataset(xr.Dataset({name: ("t", [i, i + 1]) for i, name in enumerate(names)}))
    assert set(ptd.keys()) == set(names)
    for i, name in enumerate(names):
        assert ptd[name].tolist() == [i, i + 1]
        assert ptd.get_at(name, 1).item() == i + 1


@pytest.mark.filterwarnings("ignore:Duplicate dimension names present:UserWarning")
def test_dims_that_repeat_and_batches_that_do_not_lead():
    ds = xr.Dataset({"cov": (("t", "f"), np.arange(6.0).reshape(2, 3))})
    ds["square"] = xr.Variable(("t", "f", "f"), np.arange(18).reshape(2, 3, 3))
    ds["late"] = (("f", "t"), np.arange(6).reshape(3, 2))
    ptd = persistent_from_dataset(ds, "t")
    expected = ds.td.to_tensordict("t")
    assert_same_tensordict(ptd, expected)
    for index in (1, [1, 0], slice(1, 2)):
        assert_same_tensordict(ptd[index], expected[index])
    assert torch.equal(ptd.get_at("square", (0, [2, 0], [1, 1])), expected["square"][0, [2, 0], [1, 1]])


def test_objects_in_rows():
    rows = np.empty(3, dtype=object)
    rows[:] = [np.arange(2, dtype="u1"), np.arange(0, dtype="u1"), np.arange(5, dtype="u1")]
    ds = xr.Dataset({"x": ("t", np.arange(3)), "jpeg": ("t", rows)})
    ptd, expected = persistent_from_dataset(ds, "t"), ds.td.to_tensordict("t")
    assert_same_tensordict(ptd, expected)
    assert ptd[2]["jpeg"].tolist() == [0, 1, 2, 3, 4]
    assert [len(row) for row in ptd[[2, 0]].get("jpeg").tolist()] == [5, 2]
    assert ptd.get_at("jpeg", 1).data.size == 0


# --- mode="r+" -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
def test_a_store_of_tensordict_opens_for_writing(form, tmp_path):
    td = flat_td().exclude("robot", "task")
    write, suffix = FORMATS[form]
    path = tmp_path / f"td{suffix}"
    write(td, path)
    ptd = open_persistent(path, mode="r+")
    assert type(ptd) is PersistentTensorDict
    assert_same_tensordict(ptd.to_tensordict().refine_names("time"), td)
    ptd.set_at_("obs", torch.full((3, 4), -1.0), 2)
    ptd["new"] = torch.ones(6)
    ptd.close()
    again = open_persistent(path)
    assert (again.get_at("obs", 2) == -1).all()
    assert again["new"].tolist() == [1] * 6
    again.close()


def test_text_written_by_tensordict_in_zarr_is_read_the_same(tmp_path):
    flat_td().to_zarr(tmp_path / "td.zarr")
    ptd = open_persistent(tmp_path / "td.zarr", mode="r+")
    assert_same_tensordict(ptd.to_tensordict(), flat_td())
    assert ptd["next"].names == ["time"]


def test_a_group_opens_for_writing(tmp_path):
    for path in (tmp_path / "td.zarr", tmp_path / "td.h5"):
        td = TensorDict({"g": {"x": torch.arange(3.0)}, "y": torch.zeros(3)}, [3])
        (td.to_zarr if path.suffix == ".zarr" else td.to_h5)(path).close()
        ptd = open_persistent(path, mode="r+", group="g")
        ptd.set_at_("x", torch.tensor(7.0), 1)
        ptd.close()
        assert open_persistent(path)["g", "x"].tolist() == [0, 7, 2]


def test_ragged_groups_open_for_writing_when_they_are_asked_for(tmp_path):
    with h5py.File(tmp_path / "demos.h5", "w") as file:
        for number, length in enumerate((3, 5)):
            file[f"demo_{number}/actions"] = np.zeros((length, 2), "f4")
            file[f"demo_{number}/reward"] = np.zeros(length, "f4")
    with pytest.raises(ValueError, match="'/demo_0' .* nested=True"):
        open_persistent(tmp_path / "demos.h5", mode="r+")
    ptd = open_persistent(tmp_path / "demos.h5", mode="r+", nested=True)
    assert [list(ptd[key].batch_size) for key in sorted(ptd.keys())] == [[3], [5]]
    ptd["demo_1"].set_at_("reward", torch.tensor(1.0), 4)
    ptd.close()
    assert open_persistent(tmp_path / "demos.h5", group="demo_1")["reward"].tolist() == [0, 0, 0, 0, 1]


def plain(**variables):
    return xr.Dataset({"x": (("t", "f"), np.arange(6.0).reshape(3, 2)), **variables}, coords={})


CLOCK = np.array([0, 3600, 7200], "M8[s]").astype("M8[ns]")
REFUSED = {
    "packed": (
        plain(p=("t", np.array([0.5, 1.0, 2.0]))),
        {"p": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}},
        "'p' is decoded",
    ),
    "a missing value": (plain(p=("t", np.arange(3.0))), {"p": {"_FillValue": -9.0}}, "'p' has a missing value"),
    "integers with a missing value": (plain(p=("t", np.arange(3.0))), {"p": {"dtype": "i2", "_FillValue": -9}}, "'p'"),
    "times": (plain(p=("t", CLOCK)), {"p": {"units": "hours since 1970-01-01", "dtype": "i8"}}, "'p' holds times"),
    "bools as bytes": (plain(p=("t", np.array([True, False, True]))), {"p": {"dtype": "i1"}}, "'p'"),
    "an unbatched entry": (plain(p=("lat", np.arange(5.0))), {}, "'p' has none of the batch dims"),
    "a batch that does not lead": (plain(p=(("f", "t"), np.zeros((2, 3)))), {}, "'p' does not lead"),
}


@pytest.mark.parametrize(("ds", "encoding", "message"), REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("suffix", [".zarr", ".nc"])
def test_what_bare_tensordict_reads_otherwise_is_refused(ds, encoding, message, suffix, tmp_path):
    path = tmp_path / f"store{suffix}"
    if suffix == ".zarr":
        if "bool" in str(ds.dtypes.get("p")):
            pytest.skip("zarr stores bools as they are")
        ds.to_zarr(path, encoding=encoding, zarr_format=3, consolidated=False)
    else:
        ds.to_netcdf(path, encoding=encoding, engine="h5netcdf")
    with pytest.raises(ValueError, match=rf"store\{suffix} cannot be opened with mode='r\+': {message}"):
        open_persistent(path, mode="r+", batch_dims=["t"])
    open_persistent(path, batch_dims=["t"]).close()


def test_text_that_tensordict_reads_as_bytes_is_refused(tmp_path):
    flat_td().to_h5(tmp_path / "td.h5").close()
    with pytest.raises(ValueError, match="'(robot|task)'.*str"):
        open_persistent(tmp_path / "td.h5", mode="r+")


def test_raw_codes_can_be_written_when_they_are_asked_for(tmp_path):
    ds = plain(p=("t", np.array([0.5, 1.0, 2.0])))
    ds.to_zarr(
        tmp_path / "p.zarr",
        encoding={"p": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}},
        zarr_format=3,
        consolidated=False,
    )
    ptd = open_persistent(tmp_path / "p.zarr", mode="r+", mask_and_scale=False, batch_dims=["t"])
    assert ptd["p"].tolist() == [1, 2, 4]


def test_zip_archives_are_refused(tmp_path):
    with zarr.storage.ZipStore(tmp_path / "td.zarr.zip", mode="w") as zipped:
        flat_td().to_zarr(zipped)
    with pytest.raises(ValueError, match="zip archive"):
        open_persistent(tmp_path / "td.zarr.zip", mode="r+")


@pytest.mark.parametrize("mode", ["w", "a", "x", "w-"])
def test_modes_that_make_a_store_say_how_to_write_one(mode, zarr_path):
    with pytest.raises(ValueError, match=r"to_zarr\(path\)"):
        open_persistent(zarr_path, mode=mode)


def test_an_unknown_mode(zarr_path):
    with pytest.raises(ValueError, match="expected 'r' or 'r\\+', got 'rb'"):
        open_persistent(zarr_path, mode="rb")


# --- the private interface of tensordict ---------------------------------------------------------------------------


def test_a_missing_part_of_the_private_interface_is_named():
    with pytest.raises(ImportError, match=r"tensordict .* lacks PersistentTensorDict\._set_at_str, .*0\.15\.3"):
        dialect._check(["PersistentTensorDict._set_at_str"])
    dialect._check(dialect._probe())


def test_the_probe_finds_what_is_missing(monkeypatch):
    monkeypatch.delattr(PersistentTensorDict, "_make_nested")
    monkeypatch.delattr("tensordict._td_memmap._memmap_filename")
    assert dialect._probe() == ["PersistentTensorDict._make_nested", "tensordict._td_memmap._memmap_filename"]


def test_the_dialect_answers_for_itself(zarr_path):
    """What ``PersistentTensorDict`` itself asks of a dialect, apart from what this package overrides."""
    ptd = open_persistent(zarr_path)
    own, root = ptd._backend, ptd.file
    assert own.available()
    assert own.is_read_only(root)
    assert torch.equal(own.read_full(root["action"]), flat_td()["action"])
    assert torch.equal(own.read_at(root["next/obs"], (2, 1), "cpu"), flat_td()["next", "obs"][2, 1])
    assert own.read_non_tensor(root["robot"]) == "panda"
    assert own.read_non_tensor_stack(root["task"]) == flat_td().get("task").tolist()
    assert own.holds_rows(root["task"], [6])
    assert not own.holds_rows(root["obs"], [6])
    assert own.node_dtype(root["obs"]) == np.dtype("f4")
    for opener in (lambda: own.open_file("x", "r"), lambda: own.open_new_file("x")):
        with pytest.raises(TypeError):
            opener()
    ptd.close()


def test_selections_are_pure():
    found = select((slice(None), [4, 2, 4]), (3, 5, 2))
    assert found.outer[0] == slice(0, 3, 1)
    assert found.outer[1].tolist() == [2, 4]
    assert found.picked == (3, 3)
    assert select(..., (3, 5)).outer == ()
    assert isinstance(XarrayPersistentTensorDict, type)
