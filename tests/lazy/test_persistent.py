"""The lazy door: a ``PersistentTensorDict`` over stores and Datasets, compared with the same in memory throughout.

``open_persistent(store)`` and ``xr.open_dataset(store, engine="tensordict").td.to_tensordict()`` show the same (the law
of two libraries); and whatever can be asked of a TensorDict in memory gives the same when the lazy object is asked.
"""

import gc
import itertools
from inspect import signature

import h5py
import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from tensordict import NonTensorData, NonTensorStack, PersistentTensorDict, TensorDict
from tensordict.base import _is_leaf_nontensor
from zarr.storage import LocalStore, MemoryStore

import xarray_tensordict  # noqa: F401 - registers ds.td
from persistent_samples import FORMATS, flat_td, grid_ds, grid_of, make_persistent, write_td
from xarray_tensordict import open_persistent
from xarray_tensordict._compat import tensordict as compat
from xarray_tensordict.lazy.lazy_tensordict import XarrayPersistentTensorDict
from xarray_tensordict.lazy.persistent import persistent_from_dataset
from xarray_tensordict.testing import assert_same_tensordict
from xarray_tensordict_engine import TensorDictBackendEntrypoint

# --- the law of two libraries ------------------------------------------------------------------------------------------
# The cases of the corpus are held to it by the fixture `both`.


def test_both_libraries_show_the_same_of_a_grid(grid):
    expected = grid_of(grid_ds()).td.to_tensordict()
    assert_same_tensordict(grid.to_tensordict(), expected)
    assert_same_tensordict(grid, expected)
    assert isinstance(grid, PersistentTensorDict)
    assert grid["weight"].is_contiguous()
    assert grid.names == ["time", "member"]


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
    assert "next" not in set(named.keys())
    group = open_persistent(zarr_path, group="next")
    assert set(group.keys()) == {"obs", "info"}
    without = open_persistent(zarr_path, drop_variables=["obs"], chunks={})
    assert "obs" not in set(without.keys())
    assert without["action"].tolist() == list(range(6))
    for ptd in (named, group, without):
        ptd.close()
    with pytest.raises(TypeError, match="engine"):
        open_persistent(zarr_path, engine="zarr")
    spelled_out = set(signature(open_persistent).parameters) - {"store", "mode", "device", "of_xarray"}
    assert spelled_out == set(TensorDictBackendEntrypoint.open_dataset_parameters) - {"filename_or_obj"}


def test_bfloat16_keeps_its_dtype_in_every_read():
    widened = xr.Variable(("row", "f"), np.arange(8, dtype="f4").reshape(4, 2), encoding={"torch_dtype": "bfloat16"})
    ptd = persistent_from_dataset(xr.Dataset({"w": widened, "y": ("row", np.arange(4))}))
    for tensor in (ptd["w"], ptd.get_at("w", [0]), ptd[1]["w"], ptd[1:3]["w"], ptd.to_tensordict()["w"]):
        assert tensor.dtype is torch.bfloat16
    assert "bf16[" in repr(ptd)


# --- keys ----------------------------------------------------------------------------------------------------------


def test_keys_values_and_items(flat):
    td, choices = flat_td(), (False, True)
    for nested, leaves, is_leaf in itertools.product(choices, choices, (None, _is_leaf_nontensor)):
        arguments = {"include_nested": nested, "leaves_only": leaves, "is_leaf": is_leaf}
        expected = set(td.keys(**arguments))
        if is_leaf is None and leaves:
            expected -= {"robot", "task"}
        assert set(flat.keys(**arguments)) == expected
        assert len(list(flat.values(**arguments))) == len(expected)
        items = dict(flat.items(**arguments))
        assert set(items) == expected
        for key, value in items.items():
            assert not isinstance(value, torch.Tensor) or torch.equal(value, td[key])


def test_keys_that_are_there_and_keys_that_are_not(flat):
    keys = flat.keys(include_nested=True)
    for key in ("obs", ("next", "obs"), ("next", "info", "step"), "task", "robot", "next"):
        assert key in keys
    for key in ("no", ("next", "no"), ("obs", "no"), "next/obs", ("no", "obs")):
        assert key not in keys
        assert flat.get(key, None) is None or key == "next/obs"
    assert "obs" in set(flat.keys())
    assert ("next", "obs") not in set(flat.keys())
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
    assert "lat" not in set(grid.keys())


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
    with pytest.raises(TypeError, match=r"'refs' is left out: .*reference"):
        ptd["refs"]
    assert ptd.get("refs", None) is None
    assert "refs" not in ptd.keys()  # noqa: SIM118 - iterating gives rows
    ptd.close()


FAR = np.array(["0001-01-01", "9999-12-31", "NaT"], "M8[s]")


@pytest.mark.parametrize("chunked", [False, True])
def test_times_that_do_not_fit_are_left_out_in_both_libraries(chunked):
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
    with pytest.raises(TypeError, match=r"'t' is left out.*360_day"):
        ptd["t"]
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


@pytest.mark.parametrize("close", [True, False])
def test_a_file_is_free_once_it_is_closed_or_forgotten(tmp_path, close):
    ptd = make_persistent("hdf5", tmp_path)
    ptd["obs"]
    if close:
        ptd.close()
    else:
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


# --- what can be opened --------------------------------------------------------------------------------------------


def test_stores_and_open_objects(zarr_path, tmp_path):
    bare = TensorDict.from_zarr(zarr_path)
    with zarr.storage.ZipStore(tmp_path / "td.zarr.zip", mode="w") as zipped:
        write_td(flat_td(), zipped)
    memory = MemoryStore()
    write_td(flat_td(), memory)
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
    write_td(flat_td().exclude("robot"), tmp_path / "td.h5")
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


# --- the private interface of tensordict ---------------------------------------------------------------------------


def test_a_missing_part_of_the_private_interface_is_named():
    with pytest.raises(ImportError, match=r"tensordict .* lacks PersistentTensorDict\._set .*0\.14\.3 and 0\.15"):
        compat._check(["PersistentTensorDict._set"])
    compat._check(compat._missing())


def test_what_is_missing_is_found(monkeypatch):
    monkeypatch.delattr(PersistentTensorDict, "_get_metadata")
    monkeypatch.delattr("tensordict._pytree._register_td_node")
    monkeypatch.setattr(compat, "_ATTRIBUTES", ["_backend", "_storage"])
    assert compat._missing() == [
        "PersistentTensorDict._get_metadata",
        "PersistentTensorDict()._storage",
        "tensordict._pytree._register_td_node",
    ]


def private_names(cls):
    return {name for name in vars(cls) if name.startswith("_") and not name.startswith(("__", "_abc"))}


def test_every_private_method_that_is_overridden_is_checked():
    overridden = {name for name in private_names(compat.LazyTensorDict) if hasattr(PersistentTensorDict, name)}
    assert overridden - {"_cache", "_td_dim_names", "_nested_parent"} == set(compat._HOOKS)


def test_only_the_module_for_tensordict_overrides_its_private_methods():
    own = private_names(XarrayPersistentTensorDict) - {"_repr_html_"}
    assert not [name for name in own if hasattr(PersistentTensorDict, name)]
