"""The generated cases 1 to 13 and their twins: structure, names and batch. The cases themselves say what is right.

The fixture ``doors`` has opened the store through both doors and checked that they agree; ``doors.td`` is
``ds.td.to_tensordict(unbatched="keep")``. The other cases are in ``test_cases_values.py`` and ``test_cases_write.py``.
"""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from tensordict import TensorDict

import corpus
from corpus import assert_entry, assert_unbatched, is_zarr, of_case, text, values, write
from xarray_tensordict.testing import assert_same_tensordict


def open_tree(path, **keywords):
    return xr.open_datatree(path, engine="tensordict", **keywords)


# --- case 1: arrays without any names ------------------------------------------------------------------------------


@of_case(1)
def test_arrays_without_names_share_one_leading_dim(doors):
    ds = doors.ds
    assert ds.obs.dims == ("batch_0", "dim_3")
    assert ds.reward.dims == ds.done.dims == ("batch_0",)
    assert dict(ds.sizes) == {"batch_0": 6, "dim_3": 3}
    assert (ds.obs.dtype, ds.reward.dtype, ds.done.dtype) == (np.float32, np.float64, np.bool_)
    np.testing.assert_array_equal(ds.obs, (np.arange(18) / 4).reshape(6, 3))
    np.testing.assert_array_equal(ds.reward, np.linspace(0, 1, 6))
    np.testing.assert_array_equal(ds.done, [False, False, True, False, False, True])


@of_case(1)
def test_arrays_without_names_give_a_tensordict(doors):
    td = doors.td
    assert list(td.batch_size) == [6]
    assert_entry(td, "obs", (np.arange(18) / 4).reshape(6, 3), torch.float32)
    assert_entry(td, "reward", np.linspace(0, 1, 6), torch.float64)
    assert_entry(td, "done", [False, False, True, False, False, True], torch.bool)
    assert td[2]["obs"].tolist() == [1.5, 1.75, 2.0]
    assert doors.ptd[2]["obs"].tolist() == [1.5, 1.75, 2.0]


# --- case 2: only a few arrays have names --------------------------------------------------------------------------


# the original is zarr v2 with the fill value 0, and its zeros are read as xarray reads them
@pytest.mark.filterwarnings("ignore:.*zeros of .*latitudes:xarray_tensordict.warnings.MissingValuesWarning")
@of_case(2)
def test_some_arrays_have_names(doors):
    ds = doors.ds
    assert ds.latitudes.dims == ("values",)
    assert ds.sizes["values"] == 5
    assert ds.data.shape == (4, 2, 1, 5)
    assert ds.data.dtype == np.float32
    assert len(set(ds.data.dims)) == 4
    assert all(size == 5 for dim, size in zip(ds.data.dims, ds.data.shape, strict=True) if dim == "values")
    np.testing.assert_array_equal(ds.data, np.arange(40).reshape(4, 2, 1, 5))
    assert ds.dates.dtype.kind == "M"
    assert ds.dates.dims == ds.data.dims[:1]
    expected = np.arange("2020-01-01", "2020-01-05", dtype="M8[D]")
    np.testing.assert_array_equal(ds.dates.values.astype("M8[s]"), expected.astype("M8[s]"))
    assert list(ds.attrs["variables"]) == ["t", "q"]


# the original is zarr v2 with the fill value 0, and its zeros are read as xarray reads them
@pytest.mark.filterwarnings("ignore:.*zeros of .*latitudes:xarray_tensordict.warnings.MissingValuesWarning")
@of_case(2)
def test_data_and_dates_are_the_batch_and_lookups_are_whole(doors):
    td = doors.td
    assert list(td.batch_size) == [4]
    assert_entry(td, "data", np.arange(40).reshape(4, 2, 1, 5), torch.float32)
    days = np.arange("2020-01-01", "2020-01-05", dtype="M8[D]").astype("M8[ns]").astype("i8")
    assert_entry(td, "dates", days, torch.int64)
    assert_unbatched(td, "latitudes", [-90, -45, 5, 45, 90])
    assert_unbatched(td, "longitudes", np.linspace(0, 288, 5))
    assert_unbatched(td, "mean", [19.5, 20.5])


# --- case 3: null names --------------------------------------------------------------------------------------------


@of_case(3)
def test_null_names_become_distinct_feature_dims(doors):
    ds = doors.ds
    assert ds.a.dims[0] == ds.b.dims[0] == "time"
    assert ds.a.shape == (4, 2)
    assert ds.b.shape == (4, 3)
    assert ds.a.dims[1] != ds.b.dims[1]
    assert all(isinstance(dim, str) for dim in ds.dims)
    assert ds.c.dims == ()


@of_case(3)
def test_a_scalar_has_no_vote(doors):
    td = doors.td
    assert list(td.batch_size) == [4]
    assert td.names == ["time"]
    assert_entry(td, "a", np.arange(8.0).reshape(4, 2))
    assert_entry(td, "b", np.arange(12.0).reshape(4, 3))
    assert_unbatched(td, "c", 7.5)


# --- case 4: an ordinary xarray store ------------------------------------------------------------------------------

FIELD = np.arange(60, dtype="f4").reshape(4, 3, 5)
DAYS = np.arange("2021-03-01", "2021-03-05", dtype="M8[D]").astype("M8[ns]")


@of_case(4)
def test_coordinates_do_not_block_the_batch(doors):
    assert set(doors.ds.coords) == {"time", "lat", "lon", "height"}
    td = doors.td
    assert list(td.batch_size) == [4]
    assert td.names == ["time"]
    assert_entry(td, "t2m", 280 + FIELD, torch.float32)
    assert_entry(td, "tp", FIELD / np.float32(100), torch.float32)
    assert_entry(td, "time", DAYS.astype("i8"), torch.int64)
    assert td[1]["time"].item() == DAYS[1].astype("i8")
    assert_unbatched(td, "lat", [10, 0, -10])
    assert_unbatched(td, "lon", np.arange(5) * 72.0)
    assert_unbatched(td, "height", 2.0)


@of_case(4)
def test_given_batch_dims_extend_the_batch(store, open_both):
    given = open_both(store, batch_dims=["time", "lat", "lon"])
    td = given.td
    assert list(td.batch_size) == [4, 3, 5]
    assert td.names == ["time", "lat", "lon"]
    assert_entry(td, "t2m", 280 + FIELD)
    assert list(given.ptd.batch_size) == [4, 3, 5]


@of_case(4)
@pytest.mark.parametrize("suffix", [".zarr", ".nc"])
def test_what_is_written_opens_in_bare_tensordict_and_comes_back_identical(doors, tmp_path, open_both, suffix):
    new = write(doors.ds, tmp_path / f"new{suffix}")
    if suffix == ".zarr":
        bare = TensorDict.from_zarr(new)
        assert list(bare.batch_size) == [4]
        assert bare.names == ["time"]
        assert_entry(bare, "t2m", 280 + FIELD, torch.float32)
    else:
        bare = TensorDict.from_h5(new, batch_size=[4])
        assert_entry(bare, "t2m", 280 + FIELD, torch.float32)
    again = open_both(new)
    xr.testing.assert_identical(again.ds, doors.ds)
    assert_same_tensordict(again.ds.td.to_tensordict(), doors.ds.td.to_tensordict())


# --- case 5: equal sizes by accident -------------------------------------------------------------------------------


@of_case(5)
def test_equal_sizes_of_different_dims_are_not_merged(doors):
    td = doors.td
    assert list(td.batch_size) == [4]
    assert td.names == ["time"]
    assert_entry(td, "u", np.arange(16.0).reshape(4, 4))
    assert_entry(td, "v", np.arange(4.0))
    assert_unbatched(td, "cell_area", [10, 20, 30, 40])


# --- case 6: a replay buffer with two groups of different length ---------------------------------------------------

IMAGES = np.arange(7 * 48, dtype="u2").astype("u1").reshape(7, 4, 4, 3)


@of_case(6)
def test_a_tree_has_a_batch_for_each_group(store):
    with open_tree(store) as dt:
        assert {"/data", "/meta"} <= set(dt.groups)
        td = dt.td.to_tensordict()
    assert list(td.batch_size) == []
    assert list(td["data"].batch_size) == [7]
    assert list(td["meta"].batch_size) == [2]
    assert_entry(td, ("data", "img"), IMAGES, torch.uint8)
    assert_entry(td, ("data", "state"), np.arange(35).reshape(7, 5), torch.float32)
    assert_entry(td, ("data", "action"), np.arange(14).reshape(7, 2), torch.float32)
    assert_entry(td, ("meta", "episode_ends"), [3, 7], torch.int64)


@of_case(6)
def test_the_root_leaves_out_groups_with_their_own_batch_and_says_so(doors):
    assert not doors.ds.variables
    shown = repr(doors.ds.td)
    assert "data" in shown
    assert "meta" in shown
    assert "group=" in shown
    assert "nested=True" in shown


@of_case(6)
def test_one_group_is_a_dataset_of_its_own(store, open_both):
    data = open_both(store, group="data")
    assert set(data.ds.data_vars) == {"img", "state", "action"}
    (leading,) = {var.dims[0] for var in data.ds.data_vars.values()}
    assert data.ds.sizes[leading] == 7
    assert list(data.td.batch_size) == [7]
    assert data.ds.img.dtype == np.uint8
    np.testing.assert_array_equal(data.ds.img, IMAGES)


@of_case(6)
def test_the_flat_view_qualifies_dims_that_clash(store, open_both):
    both = open_both(store, nested=True)
    image, ends = both.ds["data/img"], both.ds["meta/episode_ends"]
    assert image.dims[0] != ends.dims[0]
    assert not any("/" in dim for dim in both.ds.dims)
    np.testing.assert_array_equal(image, IMAGES)


# --- case 7: ragged demonstrations ---------------------------------------------------------------------------------


@of_case(7)
def test_each_demonstration_has_its_own_length(store):
    with open_tree(store) as dt:
        td = dt.td.to_tensordict()
    assert list(td["data"].batch_size) == []
    assert list(td["data", "demo_0"].batch_size) == [3], "the second axis of (3, 3) is features"
    assert list(td["data", "demo_1"].batch_size) == [5]
    assert_entry(td, ("data", "demo_1", "obs", "eef"), np.arange(15).reshape(5, 3) + 1, torch.float32)
    assert_entry(td, ("data", "demo_0", "actions"), np.arange(9).reshape(3, 3), torch.float64)
    assert_entry(td, ("data", "demo_0", "dones"), [0, 0, 1], torch.int64)
    assert text(td["mask", "train"]) == ["demo_0"]


@of_case(7)
def test_attributes_of_groups_survive_as_python(store, open_both):
    demo = open_both(store, group="data/demo_0")
    assert demo.ds.attrs["num_samples"] == 3
    assert list(demo.td.batch_size) == [3]
    data = open_both(store, group="data")
    assert data.ds.attrs["total"] == 8
    assert json.loads(data.ds.attrs["env_args"])["env_name"] == "Lift"


@pytest.mark.later
@of_case(7)
def test_ragged_demonstrations_are_concatenated_lazily(store):
    with open_tree(store) as dt:
        ds = dt["data"].td.concat("time", index="episode")
        assert not ds.variables["actions"]._in_memory
        assert ds.sizes["time"] == 8
        episode, step = ds["episode"].values.tolist(), ds["step"].values.tolist()
        assert episode in ([0, 0, 0, 1, 1, 1, 1, 1], ["demo_0"] * 3 + ["demo_1"] * 5)
        assert step == [0, 1, 2, 0, 1, 2, 3, 4]
        expected = np.concatenate([np.arange(9).reshape(3, 3), np.arange(15).reshape(5, 3)])
        np.testing.assert_array_equal(ds["actions"], expected)
        np.testing.assert_array_equal(ds["obs/eef"][3:], np.arange(15).reshape(5, 3) + 1)
        assert list(ds.td.batch_size) == [8]


# --- case 9: rows beside a group of scalars and weights ------------------------------------------------------------


@of_case(9)
def test_nested_groups_do_not_vote_for_their_parent(doors):
    ds, td = doors.ds, doors.td
    assert list(td.batch_size) == [6]
    rows = {"observations", "actions", "terminals", "timeouts"}
    assert set(ds.td.batched.data_vars) == rows
    assert len({ds[name].dims[0] for name in rows}) == 1
    assert_entry(td, "observations", np.arange(12).reshape(6, 2), torch.float32)
    assert_entry(td, "terminals", [False] * 5 + [True], torch.bool)
    assert_entry(td, "timeouts", [False, False, True, False, False, False], torch.bool)


@of_case(9)
def test_metadata_is_kept_whole_in_every_row(doors):
    weight = np.arange(6).reshape(3, 2)
    assert doors.ds["metadata/algorithm"].item() == "SAC"
    td = doors.td
    assert text(td["metadata", "algorithm"]) == "SAC"
    assert text(td[0]["metadata"]["algorithm"]) == "SAC"
    assert_unbatched(td, ("metadata", "policy", "fc0", "weight"), weight)
    np.testing.assert_array_equal(values(td[0]["metadata"]["policy", "fc0", "weight"]), weight)
    assert_unbatched(td, ("metadata", "iteration"), 2000)


@of_case(9)
def test_a_count_of_batch_dims_is_accepted(store, open_both):
    given = open_both(store, batch_dims=1)
    assert list(given.td.batch_size) == list(given.ptd.batch_size) == [6]


# --- case 11: tensordict's HDF5 records no batch -------------------------------------------------------------------


@of_case(11)
def test_equal_trailing_sizes_are_no_evidence_for_a_second_batch_dim(store, doors, open_both):
    assert list(doors.td.batch_size) == [3]
    assert list(open_both(store, batch_dims=2).td.batch_size) == [3, 4]


@of_case(11)
def test_what_is_written_to_hdf5_keeps_batch_size_names_and_dims(store, tmp_path, open_both):
    names = ("time", "feat")
    named = open_both(store, dims={"a": names, "n/b": names})
    new = write(named.ds, tmp_path / "new.h5")
    again = open_both(new)
    for td in (again.td, again.ptd):
        assert list(td.batch_size) == [3]
        assert td.names == ["time"]
    assert again.ds["a"].dims == names
    assert again.ds["n/b"].dims == names
    assert_same_tensordict(again.ds.td.to_tensordict(), named.ds.td.to_tensordict())


# --- case 12: a store that tensordict wrote ------------------------------------------------------------------------


@of_case(12)
def test_a_tensordict_comes_back_with_its_names_and_non_tensors(store, doors):
    ds, td = doors.ds, doors.td
    leading = "time" if is_zarr(store) else "batch_0"  # tensordict records no names in HDF5
    assert ds.a.dims == (leading, "dim_4")
    assert ds.b.dims == (leading,)
    assert ds.b.dtype == np.bool_
    assert ds["n/c"].dims == (leading, "dim_2")
    assert ds["n/c"].dtype == np.int16
    assert "__tensordict__" not in ds.attrs
    assert "s" in ds.coords
    assert ds.s.item() == "hello"
    assert list(td.batch_size) == [3]
    assert text(td["s"]) == "hello"
    if is_zarr(store):
        assert td.names == ["time"]
        assert td["n"].names == ["time"]
        assert "cfg" in ds.coords
        assert ds.cfg.item() == {"lr": 0.1}
        assert td["cfg"] == {"lr": 0.1}


@of_case(12, twin=False)
def test_a_tensordict_goes_through_xarray_and_back_unchanged(store, doors, tmp_path):
    stored = TensorDict.from_zarr(store).to_tensordict()
    new = write(doors.ds, tmp_path / "new.zarr")
    assert_same_tensordict(TensorDict.from_zarr(new).to_tensordict(), stored)
    assert_same_tensordict(doors.ds.td.to_tensordict(), stored)


# --- case 13: unrelated axes of equal length -----------------------------------------------------------------------


def dims_of(ds):
    return {name: var.dims for name, var in ds.variables.items()}


@of_case(13)
def test_made_up_names_are_distinct_in_an_array_and_shared_between_arrays(doors):
    ds = doors.ds
    assert len(set(ds.x.dims)) == 2
    assert ds.y.dims == ds.x.dims[:1]
    assert ds.z.dims[0] not in ds.x.dims
    np.testing.assert_array_equal(ds.x, np.arange(9.0).reshape(3, 3))
    np.testing.assert_array_equal(ds.z, np.arange(15).reshape(5, 3))
    assert_entry(doors.td, "x", np.arange(9.0).reshape(3, 3))


@of_case(13)
def test_made_up_names_do_not_depend_on_the_order_of_access(store, doors):
    expected = dims_of(doors.ds)
    with xr.open_dataset(store, engine="tensordict") as ds:
        assert {name: ds[name].load().dims for name in ("z", "y", "x")} == expected
    with xr.open_dataset(store, engine="tensordict", drop_variables=["x"]) as ds:
        assert dims_of(ds) == {name: dims for name, dims in expected.items() if name != "x"}
    with xr.open_dataset(store, engine="tensordict", group="/") as ds:
        assert dims_of(ds) == expected
    with open_tree(store) as dt:
        assert dims_of(dt.to_dataset()) == expected


def test_made_up_names_do_not_depend_on_the_group(tmp_path):
    """The content of case 13 one level down."""
    tree = {f"g/{name}": array for name, array in corpus.twins.phony().items()}
    path = corpus.build(lambda folder: corpus.twins.write_hdf5(folder, tree, {}), tmp_path)
    with xr.open_dataset(path, engine="tensordict", group="g") as ds, open_tree(path) as dt:
        assert dims_of(dt["g"].to_dataset()) == dims_of(ds)
        assert ds.y.dims == ds.x.dims[:1]


def test_every_case_is_specified():
    """Some test asserts what each generated case says; a new case must not go unnoticed."""
    for other in ("test_cases_values.py", "test_cases_write.py"):
        runpy.run_path(str(Path(__file__).with_name(other)))
    assert corpus.specified == set(corpus.CASE_NAMES)
