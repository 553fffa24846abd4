"""The arguments of ``ds.td`` as people write them: names of dims, of variables and of groups; and what ``da.td`` says."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest
import xarray as xr

import xarray_tensordict
from xarray_tensordict.lazy.persistent import OpenOptions
from xarray_tensordict.loading.methods import BatchOptions


@pytest.fixture
def ds() -> xr.Dataset:
    step = np.arange(6)
    return xr.Dataset(
        {
            "obs": (("time", "x"), np.ones((6, 2), "f4")),
            "next/obs": (("time", "x"), np.ones((6, 2), "f4")),
            "next/done": ("time", step == 3),
            "next/episode": ("time", step // 4),
        },
        coords={"time": step},
    )


def keys(td) -> list[str]:
    return sorted("/".join(key) if isinstance(key, tuple) else key for key in td.keys(True, True))


def test_batch_dims_are_chosen_as_dims_are_transposed(ds):
    assert ds.td.batch_dims == ("time",)
    chosen = ds.td.set_batch_dims("x", "time")
    assert chosen.td.batch_size == (2, 6)
    assert ds.td.set_batch_dims(["x", "time"]).identical(chosen)
    assert ds.td.set_batch_dims(np.array(["x", "time"])).identical(chosen)
    assert ds.td.set_batch_dims(()).td.batch_size == ()
    forgotten = chosen.td.set_batch_dims(None)
    assert forgotten.identical(ds)
    assert chosen.td.batch_dims == ("x", "time")  # a copy


@pytest.mark.parametrize("wrong", [(), (1,), (np.int64(1),), ("time", None), (["time"], "x")])
def test_what_names_no_batch_dims_is_refused(ds, wrong):
    with pytest.raises(TypeError, match="expected names of dims"):
        ds.td.set_batch_dims(*wrong)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"include": ["obs"]}, ["obs"]),
        ({"include": "next"}, ["next/done", "next/episode", "next/obs"]),
        ({"include": ["next"], "exclude": [("next", "episode")]}, ["next/done", "next/obs"]),
        ({"include": ["obs", "next"], "coords": False}, ["next/done", "next/episode", "next/obs", "obs"]),
        ({"include": ["obs"], "exclude": ["obs"]}, []),
        ({"include": []}, []),
        ({"exclude": ["next"]}, ["obs", "time"]),
        ({"exclude": iter([("next", "done"), "time", "obs"])}, ["next/episode", "next/obs"]),
    ],
)
def test_include_names_what_becomes_entries_and_exclude_what_of_it_does_not(ds, chosen, expected):
    assert keys(ds.td.to_tensordict(**chosen)) == expected


def test_a_tuple_that_is_several_names_or_one_is_refused(ds):
    ds = ds.assign(done=ds["next/done"])
    with pytest.raises(
        ValueError, match=r"can be several names, or 'next/done': pass \['next', 'done'\] or \['next/done'\]"
    ):
        ds.td.to_tensordict(exclude=("next", "done"))
    assert "obs" in keys(ds.td.to_tensordict(exclude=("next", "done", "time")))


@pytest.mark.parametrize(
    ("chosen", "error", "message"),
    [
        (
            {"include": True},
            TypeError,
            "include: expected a name or a list of names of variables or groups, found True",
        ),
        ({"exclude": 3}, TypeError, "exclude: expected a name or a list of names of variables or groups, found 3"),
        ({"include": iter(["time"]), "coords": False}, ValueError, r"leaves out \['time'\]; pass coords=\['time'\]"),
        ({"include": ["time", "obs"], "coords": []}, ValueError, r"leaves out \['time'\]"),
    ],
)
def test_names_that_choose_nothing_are_refused(ds, chosen, error, message):
    with pytest.raises(error, match=message):
        ds.td.to_tensordict(**chosen)


def test_include_is_taken_wherever_exclude_is(ds, tmp_path):
    taken = {"include": ["next"], "exclude": [("next", "episode")]}
    expected = ["next/done", "next/obs"]
    (batch,) = ds.td.batches(6, **taken)
    assert keys(batch) == expected
    assert keys(ds.td.to_torch_dataset(**taken)[0]) == expected
    ds.td.to_memmap(tmp_path / "memmap", **taken)
    with xr.open_dataset(tmp_path / "memmap", engine="tensordict") as opened:
        assert sorted(map(str, opened)) == expected
    with pytest.raises(ValueError, match=r"no variable or group 'next/don'.*Did you mean 'next/done'"):
        ds.td.to_tensordict(include=["next/don"])


def test_a_nested_variable_is_named_by_its_path_or_its_key(ds):
    for name in ("next/episode", ("next", "episode")):
        windows = ds.td.batches(9, window={"time": 2}, within=name)
        assert [batch.batch_size[0] for batch in windows] == [4]
        assert ds.td.split({"a": 0.6, "b": 0.4}, by=name)["a"].sizes["time"] == 4
    for name in ("next/done", ("next", "done")):
        assert ds.td.concat("time", by=name)["episode"].values.tolist() == [0, 0, 0, 0, 1, 1]
    for gaps in (("next", "episode"), {("next", "episode"): 1}):
        with pytest.raises(ValueError, match="run of rows without a gap"):
            [*ds.td.batches(9, window={"time": 6}, gaps=gaps)]


def test_variables_are_dropped_by_key_and_by_path_from_the_root(ds, tmp_path):
    ds.td.to_zarr(tmp_path / "a.zarr")

    def opened(drop):
        with xr.open_dataset(tmp_path / "a.zarr", engine="tensordict", drop_variables=drop) as found:
            return sorted(map(str, found))

    assert opened([("next", "obs"), "next/episode"]) == ["next/done", "obs"]
    assert opened(["obs"]) == ["next/done", "next/episode"]  # in all groups, as xarray drops from each
    assert opened(["/obs"]) == ["next/done", "next/episode", "next/obs"]


def test_an_array_says_where_its_tensordict_is(ds):
    assert "ds.td of the Dataset" in repr(ds["obs"].td)
    with pytest.raises(AttributeError, match=r"'to_tensordict': .*da\.to_dataset\(name='x'\)\.td"):
        ds["obs"].td.to_tensordict()
    assert keys(ds["obs"].to_dataset(name="x").td.to_tensordict()) == ["time", "x"]


@pytest.mark.parametrize("name", ["batches", "split", "to_torch_dataset", "set_batch_dims", "to_persistent", "batched"])
def test_a_tree_says_which_dataset_has_what_it_lacks(name):
    call = name if name == "batched" else f"{name}(...)"
    demos = {f"data/demo_{n}/obs": xr.Dataset({"eef": (("time", "f"), np.ones((n + 2, 3)))}) for n in range(2)}
    tree = xr.DataTree.from_dict(demos)
    one = f"which a Dataset has: dt['data/demo_0'].td.to_dataset().td.{call} is of this group"
    with pytest.raises(AttributeError, match=re.escape(one)):
        getattr(tree.td, name)
    rows = xr.DataTree.from_dict({"/a": xr.Dataset({"x": ("time", [1, 2])}), "/b": xr.Dataset({"x": ("time", [1])})})
    with pytest.raises(AttributeError, match=re.escape(f", dt.td.concat('time').td.{call} of all episodes beside it")):
        getattr(rows.td, name)
    with pytest.raises(AttributeError, match=re.escape(f": dt.td.to_dataset().td.{call} is of this")):
        getattr(rows["a"].td, name)
    assert hasattr(rows["a"].td.to_dataset().td, name)
    assert hasattr(rows.td.concat("time").td, name)
    with pytest.raises(AttributeError, match=r"has no 'nothing'$"):
        _ = tree.td.nothing


def test_the_types_of_results_are_written_down():
    returns = {
        name: inspect.signature(getattr(xr.Dataset.td, name)).return_annotation
        for name in ("to_tensordict", "to_persistent")
    }
    assert returns == {"to_tensordict": "TensorDict", "to_persistent": "PersistentTensorDict"}


def test_options_that_are_shared_are_those_of_the_function_that_lists_them():
    def listed(function, *without):
        return sorted(inspect.signature(function).parameters.keys() - {"self", *without})

    assert sorted(BatchOptions.__annotations__) == listed(xr.Dataset.td.batches, "batch_size", "batch_dims")
    known = listed(xarray_tensordict.open_persistent, "store", "mode", "device", "of_xarray")
    assert sorted(OpenOptions.__annotations__) == sorted([*known, "chunks"])
    for name in ("to_tensordict", "to_zarr", "to_h5", "to_memmap"):
        of_a_tree = inspect.signature(getattr(xr.DataTree.td, name))
        assert of_a_tree == inspect.signature(getattr(xr.Dataset.td, name)), name


def test_batched_keeps_the_coordinates_of_the_dims_that_are_left() -> None:
    ds = xr.Dataset(
        {"t": (("time", "level"), np.zeros((3, 2))), "mask": ("lat", [True, False]), "depth": ("level", [1.0, 2.0])},
        coords={"time": [0, 1, 2], "level": [500, 850], "lat": [1.0, 2.0], "run": 7},
    )
    assert set(ds.td.batched.variables) == {"t", "time", "level", "run"}
    assert set(ds.td.unbatched.variables) == {"mask", "depth", "level", "lat", "run"}
