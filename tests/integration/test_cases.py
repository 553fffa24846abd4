"""The generated cases and their twins: one table of what they say is right, held to through both libraries.

The fixture ``libraries`` has opened the store through both libraries and checked that they agree; ``both.td`` is
``ds.td.to_tensordict(unbatched="keep")``.
"""

import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from tensordict import TensorDict

import corpus
import twins
import xarray_tensordict
from corpus import assert_entry, assert_unbatched, is_zarr, of_case, stores_of, text
from written import assert_bare_tensordict_reads
from xarray_tensordict.testing import assert_same_tensordict

NAT = -(2**63)


@dataclass(frozen=True)
class Says:
    """What a case says of the batch, of entries with their dtype, of entries without the batch, of text, and of variables."""

    sizes: list[int]
    entries: Mapping[str, tuple[Any, torch.dtype]]
    names: list[str] | None = None
    unbatched: Mapping[str, Any] = field(default_factory=dict)
    texts: Mapping[str, Any] = field(default_factory=dict)
    dims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    coords: set[str] | None = None
    times: str = ""

    def check(self, both: corpus.Both) -> None:
        ds, td = both.ds, both.td
        assert list(td.batch_size) == list(both.ptd.batch_size) == self.sizes
        assert self.names is None or td.names == self.names
        for name, (expected, dtype) in self.entries.items():
            key, last = tuple(name.split("/")), self.sizes[0] - 1
            assert_entry(td, key, expected, dtype)
            assert_entry(both.ptd, key, expected, dtype)
            assert_entry(td[last], key, expected[last], dtype)
            assert_entry(both.ptd[last], key, expected[last], dtype)
            assert "dtype" not in ds[name].attrs
            assert ds[name].dims[: len(self.sizes)] == ds.td.batch_dims
            assert len(set(ds[name].dims)) == ds[name].ndim or name == "cov"
        for name, expected in self.unbatched.items():
            assert_unbatched(td, tuple(name.split("/")), expected)
        for name, expected in self.texts.items():
            key = tuple(name.split("/"))
            for source in (td, both.ptd):
                assert text(source[key]) == expected
                assert text(source[0][key]) == (expected[0] if isinstance(expected, list) else expected)
            assert ds[name].values.tolist() == expected
        assert {name: ds[name].dims for name in self.dims} == self.dims
        assert self.coords is None or set(ds.coords) == self.coords
        assert all(ds[name].dtype.kind in "mM" for name in self.times.split())


F4, F8, I4, I8, BOOL = torch.float32, torch.float64, torch.int32, torch.int64, torch.bool
FIELD = np.arange(60, dtype="f4").reshape(4, 3, 5)
DAYS = np.arange("2020-01-01", "2020-01-05", dtype="M8[D]").astype("M8[ns]").astype("i8")
SST = [10.0, 15.0, np.nan, -5.0]
TIMES = [946686900_000000000, 946708500_000000000]

SAYS = {
    1: Says([6], {"obs": ((np.arange(18) / 4).reshape(6, 3), F4), "reward": (np.linspace(0, 1, 6), F8),
        "done": ([False, False, True, False, False, True], BOOL)},
        dims={"obs": ("batch_0", "dim_3"), "reward": ("batch_0",), "done": ("batch_0",)}),
    2: Says([4], {"data": (np.arange(40).reshape(4, 2, 1, 5), F4), "dates": (DAYS, I8)},
        unbatched={"latitudes": [-90, -45, 5, 45, 90], "longitudes": np.linspace(0, 288, 5), "mean": [19.5, 20.5]},
        dims={"latitudes": ("values",)}, times="dates"),
    3: Says([4], {"a": (np.arange(8.0).reshape(4, 2), F8), "b": (np.arange(12.0).reshape(4, 3), F8)}, ["time"], unbatched={"c": 7.5},
        dims={"a": ("time", "dim_2"), "b": ("time", "dim_3"), "c": ()}),
    4: Says([4], {"t2m": (280 + FIELD, F4), "tp": (FIELD / np.float32(100), F4), "time": (DAYS + (425 * 86400 * 10**9), I8)}, ["time"],
        unbatched={"lat": [10, 0, -10], "lon": np.arange(5) * 72.0, "height": 2.0}, coords={"time", "lat", "lon", "height"}),
    5: Says([4], {"u": (np.arange(16.0).reshape(4, 4), F8), "v": (np.arange(4.0), F8)}, ["time"],
        unbatched={"cell_area": [10, 20, 30, 40]}),
    9: Says([6], {"observations": (np.arange(12).reshape(6, 2), F4), "terminals": ([False] * 5 + [True], BOOL),
        "timeouts": ([False, False, True, False, False, False], BOOL)},
        unbatched={"metadata/policy/fc0/weight": np.arange(6).reshape(3, 2), "metadata/iteration": 2000},
        texts={"metadata/algorithm": "SAC"}),
    11: Says([3], {"a": (np.arange(12).reshape(3, 4), F4), "n/b": (np.ones((3, 4)), F4)}),
    12: Says([3], {"a": (np.arange(12).reshape(3, 4), F4), "b": ([True, False, True], BOOL), "n/c": (np.ones((3, 2)), torch.int16)},
        texts={"s": "hello"}),
    15: Says([4], {"done": ([True, False, False, True], BOOL)}, unbatched={"flag": True}),
    17: Says([3], {"w": ([0.1, 0.2, 0.3], F8), "rec/id": ([7, 8, 9], I4), "rec/pos": (np.arange(6).reshape(3, 2), F4)}),
    19: Says([3], {"label": ([4, 5, 6], I8)}),
    23: Says([4], {"a": ([1, 2, 3, 4], F8), "b": ([9, np.nan, np.nan, np.nan], F8)}, ["time"]),
    26: Says([2], {"h": ([0.5, 1.5], torch.float16), "w": ([1.0, 2.0], torch.bfloat16)}),
    27: Says([3], {"f": ([1, 2.5, -3], F4), "i": ([1, 256, 65536], I4), "u": ([1, 256, 512], torch.uint16)}),
    29: Says([4], {"sst": (SST, F8)}, ["time"]),
    31: Says([2], {"time": (TIMES, I8), "t_obs": ([TIMES[0], NAT], I8), "v": ([1, 2], F4)}, ["time"], times="time t_obs"),
    32: Says([2], {"x": ([0.5, 1.5], F8), "when": ([1577836800_000000000, NAT], I8), "lag": ([3_000000000, -1_000000000], I8)}, ["row"],
        times="when lag"),
    35: Says([3], {"v": ([1, 2, 3], I4)}, ["row"], texts={"name": ["a", "", "blåbær"], "code": ["x1", "x2", "x3"]}),
    37: Says([3], {"v": (np.arange(6).reshape(3, 2), F4), "w": ([7, 8, 9], I4)}, ["row"], unbatched={"t": [0.0, 0.5]},
        dims={"v": ("row", "col"), "w": ("row",), "t": ("t",)}, coords={"t"}),
    38: Says([4], {"x": ([0, 1, 2, 3], I8), "new": ([1, 2, 3, 4], F8)}, ["t"]),
    40: Says([2], {"cov": (np.arange(18.0).reshape(2, 3, 3), F8), "mu": (np.arange(6.0).reshape(2, 3), F8)}, ["time"],
        dims={"cov": ("time", "site", "site")}),
    41: Says([4], {"y": (np.arange(4.0), F8), "run": ([0, 0, 1, 1], I8)}, ["point"], coords={"run", "step"}),
    43: Says([3], {"x": (np.arange(6).reshape(3, 2), F4)}, ["t"]),
    49: Says([12], {"x": (np.arange(24).reshape(12, 2), I8)}, ["t"]),
    51: Says([6], {"x": (np.arange(6.0), F8)}, ["t"]),
    53: Says([32], {"x": (np.arange(64).reshape(32, 2), F4), "y": (np.arange(32), I8)}, ["row"]),
    44: Says([2], {name: ([i, i + 0.5], F8) for i, name in enumerate(twins.AWKWARD_NAMES)}, ["row no."]),
}  # fmt: skip

REPEATED = pytest.mark.filterwarnings("ignore:.*(Duplicate dimension names|repeat|cov):UserWarning")
# the original is zarr v2 with the fill value 0, and its zeros are read as xarray reads them
ZEROS = pytest.mark.filterwarnings("ignore:.*zeros of .*latitudes:xarray_tensordict.warnings.MissingValuesWarning")
MARKS = {2: ZEROS, 40: REPEATED}


def of_all(*, twin: bool) -> pytest.MarkDecorator:
    found = [
        each
        for number, says in SAYS.items()
        for each in stores_of(number, says, twin=twin, marks=MARKS.get(number, ()))
    ]
    return pytest.mark.parametrize(("store", "says"), found, indirect=["store"])


@of_all(twin=True)
def test_a_store_is_what_its_case_says(both, says):
    says.check(both)


@of_all(twin=False)
@pytest.mark.filterwarnings("ignore:The data type")  # of strings of a fixed length in zarr v3
def test_it_is_so_when_it_was_written_again_and_again(both, says, tmp_path, open_both):
    """Through zarr, HDF5 and zarr; the values of ragged rows are objects, which zarr does not hold."""
    ragged, dtypes = "jpeg" in both.ds.variables, {dtype for _, dtype in says.entries.values()}
    again = both
    for suffix in ("h5", "h5") if ragged else ("zarr", "h5", "zarr"):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.{suffix}"
        again = open_both(corpus.write(again.ds, path))
        says.check(again)
        assert_same_tensordict(again.ds.td.to_tensordict(), both.ds.td.to_tensordict())
        if not ragged:
            xr.testing.assert_identical(again.ds.load(), both.ds.load())
        if suffix == "zarr" and torch.bfloat16 not in dtypes:  # which is stored as integers
            assert_bare_tensordict_reads(path, both.ds)


def test_every_case_is_specified():
    """Some test asserts what each generated case says; a new case must not go unnoticed."""
    assert corpus.specified == set(corpus.CASE_NAMES)


# -- what is asked for when a store is opened --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("store", "batch_dims", "sizes"),
    [*stores_of(4, ["time", "lat", "lon"], [4, 3, 5]), *stores_of(9, 1, [6]), *stores_of(11, 2, [3, 4])],
    indirect=["store"],
)
def test_given_batch_dims_are_the_batch(store, open_both, batch_dims, sizes):
    given = open_both(store, batch_dims=batch_dims)
    assert list(given.td.batch_size) == list(given.ptd.batch_size) == sizes
    assert isinstance(batch_dims, int) or given.td.names == batch_dims


@of_case(40)
@REPEATED
def test_a_repeated_dim_cannot_be_batch(store):
    with pytest.raises(ValueError, match="site"):
        xr.open_dataset(store, engine="tensordict", batch_dims=3).td.to_tensordict()


@of_case(29)
def test_packed_values_are_codes_without_decoding(store, open_both):
    raw = open_both(store, mask_and_scale=False)
    for source in (raw.td, raw.ptd):
        assert_entry(source, "sst", [0, 10, -999, -30], torch.int16)


# -- groups ------------------------------------------------------------------------------------------------------------

IMAGES = np.arange(7 * 48, dtype="u2").astype("u1").reshape(7, 4, 4, 3)


def open_tree(path, **keywords):
    return xr.open_datatree(path, engine="tensordict", **keywords)


@of_case(6)
def test_a_replay_buffer_has_a_batch_for_each_group(store, both, open_both):
    with open_tree(store) as dt:
        assert {"/data", "/meta"} <= set(dt.groups)
        td = dt.td.to_tensordict()
    assert [list(each.batch_size) for each in (td, td["data"], td["meta"])] == [[], [7], [2]]
    assert_entry(td, ("data", "img"), IMAGES, torch.uint8)
    assert_entry(td, ("data", "state"), np.arange(35).reshape(7, 5), F4)
    assert_entry(td, ("data", "action"), np.arange(14).reshape(7, 2), F4)
    assert_entry(td, ("meta", "episode_ends"), [3, 7], I8)
    assert not both.ds.variables
    assert all(word in repr(both.ds.td) for word in ("data", "meta", "group=", "nested=True"))
    data = open_both(store, group="data")
    assert set(data.ds.data_vars) == {"img", "state", "action"}
    assert len({var.dims[0] for var in data.ds.data_vars.values()}) == 1
    assert_entry(data.td, "img", IMAGES, torch.uint8)
    both = open_both(store, nested=True)
    assert both.ds["data/img"].dims[0] != both.ds["meta/episode_ends"].dims[0]
    assert not any("/" in dim for dim in both.ds.dims)
    np.testing.assert_array_equal(both.ds["data/img"], IMAGES)


@of_case(7)
def test_each_demonstration_has_its_own_length_and_they_are_joined(store, open_both):
    with open_tree(store) as dt:
        td = dt.td.to_tensordict()
        ds = dt["data"].td.concat("time", index="episode")
        assert not ds.variables["actions"]._in_memory
        assert ds["episode"].values.tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
        assert ds["step"].values.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
        np.testing.assert_array_equal(
            ds["actions"], np.concatenate([np.arange(9).reshape(3, 3), np.arange(15).reshape(5, 3)])
        )
        assert list(ds.td.batch_size) == [8]
    assert list(td["data"].batch_size) == []
    assert list(td["data", "demo_0"].batch_size) == [3], "the second axis of (3, 3) is features"
    assert list(td["data", "demo_1"].batch_size) == [5]
    assert_entry(td, ("data", "demo_1", "obs", "eef"), np.arange(15).reshape(5, 3) + 1, F4)
    assert_entry(td, ("data", "demo_0", "dones"), [0, 0, 1], I8)
    assert text(td["mask", "train"]) == ["demo_0"]
    assert open_both(store, group="data/demo_0").ds.attrs["num_samples"] == 3
    attrs = open_both(store, group="data").ds.attrs
    assert attrs["total"] == 8
    assert json.loads(attrs["env_args"])["env_name"] == "Lift"


# -- names -------------------------------------------------------------------------------------------------------------


def dims_of(ds):
    return {name: var.dims for name, var in ds.variables.items()}


@of_case(13)
def test_made_up_names_are_distinct_in_an_array_and_do_not_depend_on_how_it_is_opened(store, both):
    expected = dims_of(both.ds)
    assert len(set(both.ds.x.dims)) == 2
    assert both.ds.y.dims == both.ds.x.dims[:1]
    assert both.ds.z.dims[0] not in both.ds.x.dims
    assert_entry(both.td, "x", np.arange(9.0).reshape(3, 3))
    with xr.open_dataset(store, engine="tensordict") as ds:
        assert {name: ds[name].load().dims for name in ("z", "y", "x")} == expected
    with xr.open_dataset(store, engine="tensordict", drop_variables=["x"]) as ds:
        assert dims_of(ds) == {name: dims for name, dims in expected.items() if name != "x"}
    with xr.open_dataset(store, engine="tensordict", group="/") as ds, open_tree(store) as dt:
        assert dims_of(ds) == dims_of(dt.to_dataset()) == expected


def test_made_up_names_do_not_depend_on_the_group(tmp_path):
    """The content of case 13 one level down."""
    tree = {f"g/{name}": array for name, array in twins.phony().items()}
    path = corpus.build(lambda folder: twins.write_hdf5(folder, tree, {}), tmp_path)
    with xr.open_dataset(path, engine="tensordict", group="g") as ds, open_tree(path) as dt:
        assert dims_of(dt["g"].to_dataset()) == dims_of(ds)
        assert ds.y.dims == ds.x.dims[:1]


# -- what single cases say besides -------------------------------------------------------------------------------------


@of_case(2)
@ZEROS
def test_attributes_of_a_group_are_those_of_the_dataset(both):
    assert list(both.ds.attrs["variables"]) == ["t", "q"]


@of_case(12)
def test_a_tensordict_comes_back_with_its_names_and_non_tensors(store, both):
    leading = "time" if is_zarr(store) else "batch_0"  # tensordict records no names in HDF5
    assert both.ds.a.dims == (leading, "dim_4")
    assert both.ds["n/c"].dims == (leading, "dim_2")
    assert "__tensordict__" not in both.ds.attrs
    assert "s" in both.ds.coords
    if is_zarr(store):
        assert both.td.names == both.td["n"].names == ["time"]
        assert both.ds.cfg.item() == both.td["cfg"] == {"lr": 0.1}
        assert_same_tensordict(both.ds.td.to_tensordict(), TensorDict.from_zarr(store).to_tensordict())


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_records_in_zarr_are_nested_entries_too(tmp_path, open_both, zarr_format):
    """The zarr twin of case 17; zarr-python reads no record with an array in it."""
    records = np.array([(7, 0.5), (8, 1.5), (9, 2.5)], dtype=[("id", "<i4"), ("mass", "<f8")])
    root = zarr.open_group(str(tmp_path / "records.zarr"), mode="w", zarr_format=zarr_format)
    root.create_array("rec", shape=(3,), dtype=records.dtype)[...] = records
    root.create_array("w", shape=(3,), dtype="f8")[...] = [0.1, 0.2, 0.3]
    expected = {"w": ([0.1, 0.2, 0.3], F8), "rec/id": ([7, 8, 9], I4), "rec/mass": ([0.5, 1.5, 2.5], F8)}
    Says([3], expected).check(open_both(tmp_path / "records.zarr"))


@of_case(19)
def test_ragged_rows_are_one_item_per_row_and_are_not_read_with_their_neighbour(store, both):
    for source in (both.td, both.ptd):
        middle = np.asarray(source[1]["jpeg"])
        assert middle.dtype == np.uint8
        assert middle.tolist() == [255, 216, 0, 1]
        assert np.asarray(source[2]["jpeg"]).size == 0
    with xr.open_dataset(store, engine="tensordict") as ds:
        assert ds.label.values.tolist() == [4, 5, 6]
        assert not ds.variables["jpeg"]._in_memory


@pytest.fixture
def told(store):
    """The both of a store, and what opening each of them warned of."""
    messages = []
    opened = []
    for opener in (
        lambda: xr.open_dataset(store, engine="tensordict"),
        lambda: xarray_tensordict.open_persistent(store),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            opened.append(opener())
        messages.append([str(warning.message) for warning in caught])
    both = corpus.Both(store, *opened)
    both.check_law()
    yield both, messages
    both.close()


@of_case(20)
def test_references_are_left_out_by_name_and_the_rest_is_read_and_written(told, tmp_path, open_both):
    both, messages = told
    assert_entry(both.td, "x", [1, 2], F8)
    for said in messages:
        assert len(said) == 1
        assert "refs" in said[0]
        assert both.ds.y.attrs.get("palette") == "/x" or "palette" in said[0]
    with pytest.raises(TypeError, match="refs"):
        both.ptd["refs"]
    for suffix in (".zarr", ".h5"):
        assert_entry(open_both(corpus.write(both.ds, tmp_path / f"new{suffix}")).td, "y", [3, 4], F8)


@of_case(21)
def test_links_are_followed_and_cycles_are_cut(told):
    both, messages = told
    for name in ("raw", "alias", "soft"):
        assert_entry(both.td, name, np.arange(3.0), F8)
    assert "gone" not in both.ds.variables
    for said in messages:
        assert len(said) <= 1
        assert all(re.search("gone|self", message) for message in said)
    keys = list(both.ptd.keys(include_nested=True))
    assert ("loop", "v") in keys
    assert all(len(key) <= 3 for key in keys if isinstance(key, tuple))
    assert all(both.ptd.get(key) is not None for key in keys)


@of_case(22)
def test_an_empty_dataset_neither_votes_nor_fails(told):
    both, messages = told
    assert list(both.td.batch_size) == [2]
    assert_entry(both.td, "v", [1, 2], F8)
    assert "nothing" not in both.ds.variables or both.ds["nothing"].item() is None
    assert both.ds.v.attrs.get("note") in (None, "", b"")
    for said in messages:
        assert len(said) <= 1
        assert all("nothing" in message for message in said)


@of_case(31)
@pytest.mark.parametrize("written_by", ["this package", "xarray"])
def test_appended_times_keep_their_steps(store, both, tmp_path, open_both, written_by):
    if written_by == "xarray" and not is_zarr(store):
        pytest.skip("plain xarray appends to zarr only")
    target = store if written_by == "xarray" else corpus.write(both.ds, tmp_path / "new.zarr")
    later = both.ds.load().assign_coords(time=both.ds.time + np.timedelta64(12, "h"))
    later.td.to_zarr(target, append_dim="time")
    again = open_both(target)
    assert_entry(again.td, "time", [TIMES[0] + i * 6 * 3600 * 10**9 for i in range(4)], I8)
    assert_entry(again.td, "t_obs", [TIMES[0], NAT] * 2, I8)


@of_case(37)
def test_a_placeholder_is_a_dim_and_no_entry(both):
    assert dict(both.ds.sizes) == {"row": 3, "col": 2, "t": 2}
    assert set(both.ds.variables) == set(both.td.keys()) == {"v", "w", "t"}


@of_case(38)
def test_a_write_refreshes_the_consolidated_copy(store, both, open_both):
    assert set(both.ds.variables) == set(both.ptd.keys()) == {"x", "new"}
    xr.Dataset({"more": ("t", np.arange(4.0))}).td.to_zarr(store, mode="a")
    assert {"x", "new", "more"} <= set(open_both(store).ds.variables)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr-python on consolidated metadata in v3
        bare = zarr.open_group(str(store), mode="r")
        assert {"x", "new", "more"} <= set(bare.array_keys())
        assert bare["x"].shape == (4,)


@of_case(38)
@pytest.mark.filterwarnings("ignore:.*[Cc]onsolidated")
def test_a_listed_but_missing_array_is_an_error_or_absent_and_never_zeros(store):
    try:
        ds = xr.open_dataset(store, engine="tensordict", consolidated=True)
        found = ds["old"].values if "old" in ds else None
    except (KeyError, OSError, ValueError) as error:
        assert "old" in str(error)
    else:
        assert found is None


@of_case(40)
@REPEATED
def test_a_repeated_dim_is_written_as_it_was(both, tmp_path):
    new = corpus.write(both.ds, tmp_path / "new.zarr")
    assert zarr.open_array(f"{new}/cov", mode="r").metadata.dimension_names == ("time", "site", "site")


@of_case(43)
def test_a_zip_store_keeps_its_attributes(both):
    assert both.ds.x.attrs["units"] == "m"
    assert both.ds.attrs["title"] == "zipped"


@of_case(44)
def test_names_are_kept_exactly(both):
    assert set(both.ds.data_vars) == set(both.td.keys()) == set(both.ptd.keys()) == set(twins.AWKWARD_NAMES)


@of_case(51)
@pytest.mark.parametrize("changed", [True, False])
def test_a_store_is_never_lost_by_writing_it_onto_itself(store, open_both, changed):
    expected = np.arange(6.0)
    with xr.open_dataset(store, engine="tensordict", chunks={} if changed else None) as ds:
        made = ds + 1 if changed else ds
        try:
            made.td.to_zarr(store, mode="w") if is_zarr(store) else made.td.to_h5(store, mode="w")
        except (ValueError, OSError, RuntimeError) as error:
            assert re.search(re.escape(store.name), str(error)), "the message names the store"
        else:
            expected = expected + changed
    assert_entry(open_both(store).td, "x", expected)
