"""The generated cases 15 to 44 and their twins: what the values of each kind of array are, through both doors."""

import re
import warnings

import h5py
import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from tensordict import TensorDict

import corpus
import twins
import xarray_tensordict
from corpus import assert_entry, assert_unbatched, is_zarr, of_case, text, write
from xarray_tensordict.testing import assert_same_tensordict

NAT = -(2**63)
FORMATS = pytest.mark.parametrize("suffix", [".zarr", ".h5"])


def warned(recorded):
    return [str(warning.message) for warning in recorded]


# --- case 15: booleans ---------------------------------------------------------------------------------------------


@of_case(15)
def test_booleans_are_booleans(doors):
    ds, td = doors.ds, doors.td
    assert ds.done.dtype == np.bool_
    assert "dtype" not in ds.done.attrs
    assert_entry(td, "done", [True, False, False, True], torch.bool)
    assert doors.ptd["done"].dtype == torch.bool
    assert ds.flag.shape == ()
    assert ds.flag.item() is True
    assert td["flag"].item() is True


@of_case(15)
@FORMATS
def test_booleans_survive_two_cycles(doors, tmp_path, open_both, suffix):
    ds = doors.ds
    for cycle in range(2):
        again = open_both(write(ds, tmp_path / f"{cycle}{suffix}"))
        ds = again.ds
        assert ds.done.dtype == np.bool_
        assert "dtype" not in ds.done.attrs
        assert_entry(again.td, "done", [True, False, False, True], torch.bool)
        assert again.ptd["done"].dtype == torch.bool
        assert ds.flag.item() is True


# --- case 17: records ----------------------------------------------------------------------------------------------


@of_case(17)
def test_records_are_nested_entries_and_their_neighbour_is_readable(doors):
    td = doors.td
    assert list(td.batch_size) == [3]
    assert_entry(td, "w", [0.1, 0.2, 0.3], torch.float64)
    assert_entry(td, ("rec", "id"), [7, 8, 9], torch.int32)
    assert_entry(td, ("rec", "pos"), np.arange(6).reshape(3, 2), torch.float32)
    assert_entry(doors.ptd, ("rec", "id"), [7, 8, 9], torch.int32)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_records_in_zarr_are_nested_entries_too(tmp_path, open_both, zarr_format):
    """The zarr twin of case 17; zarr-python reads no record with an array in it."""
    records = np.array([(7, 0.5), (8, 1.5), (9, 2.5)], dtype=[("id", "<i4"), ("mass", "<f8")])
    root = zarr.open_group(str(tmp_path / "records.zarr"), mode="w", zarr_format=zarr_format)
    root.create_array("rec", shape=(3,), dtype=records.dtype)[...] = records
    root.create_array("w", shape=(3,), dtype="f8")[...] = [0.1, 0.2, 0.3]
    td = open_both(tmp_path / "records.zarr").td
    assert list(td.batch_size) == [3]
    assert_entry(td, "w", [0.1, 0.2, 0.3], torch.float64)
    assert_entry(td, ("rec", "id"), [7, 8, 9], torch.int32)
    assert_entry(td, ("rec", "mass"), [0.5, 1.5, 2.5], torch.float64)


# --- case 19: ragged rows ------------------------------------------------------------------------------------------


@of_case(19)
def test_ragged_rows_are_one_item_per_row(doors):
    td = doors.td
    assert list(td.batch_size) == [3]
    assert_entry(td, "label", [4, 5, 6], torch.int64)
    for source in (td, doors.ptd):
        middle = np.asarray(source[1]["jpeg"])
        assert middle.dtype == np.uint8
        assert middle.tolist() == [255, 216, 0, 1]
        assert np.asarray(source[2]["jpeg"]).size == 0


@of_case(19)
def test_one_variable_is_read_without_its_neighbour(store):
    with xr.open_dataset(store, engine="tensordict") as ds:
        assert ds.label.values.tolist() == [4, 5, 6]
        assert not ds.variables["jpeg"]._in_memory


# --- case 20: references -------------------------------------------------------------------------------------------


def open_with_warnings(path):
    """Both doors, and what opening each of them warned of."""
    with warnings.catch_warnings(record=True) as of_ds:
        warnings.simplefilter("always")
        ds = xr.open_dataset(path, engine="tensordict")
    with warnings.catch_warnings(record=True) as of_ptd:
        warnings.simplefilter("always")
        ptd = xarray_tensordict.open_persistent(path)
    doors = corpus.Doors(path, ds, ptd)
    doors.check_law()
    return doors, warned(of_ds), warned(of_ptd)


@of_case(20)
def test_references_do_not_keep_the_rest_from_being_read(store):
    doors, of_ds, of_ptd = open_with_warnings(store)
    td = doors.td
    assert_entry(td, "x", [1, 2], torch.float64)
    assert_entry(td, "y", [3, 4], torch.float64)
    for messages in (of_ds, of_ptd):
        if "refs" in doors.ds.variables:
            assert doors.ds.refs.values.tolist() == ["/x", "/y"]
        else:
            assert len(messages) == 1
            assert "refs" in messages[0]
        if "palette" in doors.ds.y.attrs:
            assert doors.ds.y.attrs["palette"] == "/x"
        else:
            assert any("palette" in message for message in messages)
    doors.close()


@of_case(20)
@FORMATS
@pytest.mark.filterwarnings("ignore:.*refs:UserWarning")
def test_what_can_be_read_can_be_written(store, tmp_path, open_both, suffix):
    ds = xr.open_dataset(store, engine="tensordict")
    again = open_both(write(ds.drop_vars("refs", errors="ignore"), tmp_path / f"new{suffix}"))
    assert_entry(again.td, "y", [3, 4], torch.float64)
    ds.close()


@of_case(20)
@pytest.mark.filterwarnings("ignore:.*refs:UserWarning")
def test_asking_for_what_was_left_out_names_it(doors):
    if "refs" in doors.ds.variables:
        assert text(doors.ptd["refs"]) == ["/x", "/y"]
    else:
        with pytest.raises(TypeError, match="refs"):
            doors.ptd["refs"]


# --- case 21: links ------------------------------------------------------------------------------------------------


@of_case(21)
def test_links_are_followed_and_cycles_are_cut(store):
    doors, *messages = open_with_warnings(store)
    for name in ("raw", "alias", "soft"):
        assert_entry(doors.td, name, np.arange(3.0), torch.float64)
    assert "gone" not in doors.ds.variables
    for warnings_of_a_door in messages:
        assert len(warnings_of_a_door) <= 1
        assert all(re.search("gone|self", message) for message in warnings_of_a_door)
    keys = list(doors.ptd.keys(include_nested=True))
    assert ("loop", "v") in keys
    assert all(len(key) <= 3 for key in keys if isinstance(key, tuple))
    for key in keys:
        assert doors.ptd.get(key) is not None
    doors.close()


# --- case 22: null dataspaces --------------------------------------------------------------------------------------


@of_case(22)
def test_an_empty_dataset_neither_votes_nor_fails(store):
    doors, *messages = open_with_warnings(store)
    td = doors.td
    assert list(td.batch_size) == [2]
    assert_entry(td, "v", [1, 2], torch.float64)
    assert "nothing" not in doors.ds.variables or doors.ds["nothing"].item() is None
    assert doors.ds.v.attrs.get("note") in (None, "", b"")
    for warnings_of_a_door in messages:
        assert len(warnings_of_a_door) <= 1
        assert all("nothing" in message for message in warnings_of_a_door)
    doors.close()


# --- case 23: an unlimited dim -------------------------------------------------------------------------------------


@of_case(23)
def test_a_short_variable_is_filled_up_to_its_unlimited_dim(doors):
    ds, td = doors.ds, doors.td
    assert ds.sizes["time"] == 4
    np.testing.assert_array_equal(ds.a, [1, 2, 3, 4])
    np.testing.assert_array_equal(ds.b, [9, np.nan, np.nan, np.nan])
    assert list(td.batch_size) == [4]
    assert td.names == ["time"]
    assert_entry(td, "b", [9, np.nan, np.nan, np.nan], torch.float64)
    assert "time" in ds.encoding["unlimited_dims"]
    assert doors.ptd[3]["b"].isnan()


@of_case(23)
def test_an_unlimited_dim_stays_resizable(doors, tmp_path, open_both):
    new = write(doors.ds, tmp_path / "new.nc")
    with h5py.File(new) as file:
        assert file["a"].maxshape == (None,)
        assert file["b"].maxshape == (None,)
    again = open_both(new)
    assert "time" in again.ds.encoding["unlimited_dims"]
    assert_entry(again.td, "b", [9, np.nan, np.nan, np.nan])


# --- case 26: half floats ------------------------------------------------------------------------------------------


@of_case(26)
def test_half_floats_keep_their_dtype(doors):
    td = doors.td
    assert list(td.batch_size) == [2]
    assert_entry(td, "h", [0.5, 1.5], torch.float16)
    assert td["w"].dtype == doors.ptd["w"].dtype == torch.bfloat16
    assert td["w"].tolist() == [1.0, 2.0]
    assert doors.ds.w.dtype == np.float32
    np.testing.assert_array_equal(doors.ds.w, [1.0, 2.0])


@of_case(26)
@FORMATS
def test_half_floats_are_written_and_read_again(doors, tmp_path, open_both, suffix):
    again = open_both(write(doors.ds, tmp_path / f"new{suffix}"))
    assert_entry(again.td, "h", [0.5, 1.5], torch.float16)
    assert again.td["w"].dtype == torch.bfloat16
    assert again.td["w"].tolist() == [1.0, 2.0]


# --- case 27: big-endian -------------------------------------------------------------------------------------------


@of_case(27)
def test_big_endian_arrays_are_native_tensors(doors):
    td = doors.td
    assert list(td.batch_size) == [3]
    for source in (td, doors.ptd):
        assert_entry(source, "f", [1, 2.5, -3], torch.float32)
        assert_entry(source, "i", [1, 256, 65536], torch.int32)
        assert_entry(source, "u", [1, 256, 512], torch.uint16)


@of_case(27)
@FORMATS
def test_big_endian_arrays_are_written(doors, tmp_path, open_both, suffix):
    again = open_both(write(doors.ds, tmp_path / f"new{suffix}"))
    assert_same_tensordict(again.ds.td.to_tensordict(), doors.ds.td.to_tensordict())


# --- case 29: packed values ----------------------------------------------------------------------------------------

SST = [10.0, 15.0, np.nan, -5.0]


@of_case(29)
def test_packed_values_are_decoded_through_both_doors(doors):
    assert doors.ds.sst.dtype.kind == "f"
    np.testing.assert_array_equal(doors.ds.sst, SST)
    assert_entry(doors.td, "sst", SST)
    assert_entry(doors.ptd, "sst", SST)


@of_case(29)
def test_packed_values_are_codes_without_decoding(store, open_both):
    raw = open_both(store, mask_and_scale=False)
    for source in (raw.td, raw.ptd):
        assert_entry(source, "sst", [0, 10, -999, -30], torch.int16)
    assert raw.ds.sst.dtype == np.int16


@of_case(29)
def test_the_default_writes_decoded_values(doors, tmp_path, open_both):
    new = write(doors.ds, tmp_path / "new.zarr")
    assert_entry(TensorDict.from_zarr(new), "sst", SST)
    assert_entry(open_both(new).td, "sst", SST)


@of_case(29)
def test_a_value_written_through_the_lazy_door_is_encoded_or_refused(store, open_both):
    try:
        ptd = xarray_tensordict.open_persistent(store, mode="r+")
        ptd.set_at_("sst", torch.tensor(12.0), 0)
        ptd.close()
    except (TypeError, ValueError, NotImplementedError, RuntimeError) as error:
        assert "sst" in str(error)
        expected, code = SST, 0
    else:
        expected, code = [12.0, *SST[1:]], 4
    stored = zarr.open_array(f"{store}/sst", mode="r")[0] if is_zarr(store) else h5py.File(store)["sst"][0]
    assert stored == code
    assert_entry(open_both(store).td, "sst", expected)


@of_case(29)
def test_the_read_only_lazy_door_refuses_writes_in_words(doors):
    with pytest.raises(TypeError, match="sst"):
        doors.ptd.set_at_("sst", torch.tensor(12.0), 0)


# --- case 31: CF times ---------------------------------------------------------------------------------------------

TIMES = [946686900_000000000, 946708500_000000000]


@of_case(31)
def test_times_are_int64_nanoseconds_in_a_tensordict(doors):
    ds, td = doors.ds, doors.td
    assert ds.time.dtype.kind == ds.t_obs.dtype.kind == "M"
    expected = np.array(["2000-01-01T00:35", "2000-01-01T06:35"], "M8[ns]")
    np.testing.assert_array_equal(ds.time.values.astype("M8[ns]"), expected)
    for source in (td, doors.ptd):
        assert_entry(source, "time", TIMES, torch.int64)
        assert_entry(source, "t_obs", [TIMES[0], NAT], torch.int64)


@of_case(31)
def test_the_smallest_integer_becomes_nat_again(doors):
    back = xarray_tensordict.to_dataset(doors.td, template=doors.ds)
    assert np.isnat(back.t_obs.values).tolist() == [False, True]
    np.testing.assert_array_equal(back.time.values.astype("M8[ns]"), doors.ds.time.values.astype("M8[ns]"))


@of_case(31)
@pytest.mark.parametrize("written_by", ["this package", "xarray"])
def test_appended_times_keep_their_steps(store, doors, tmp_path, open_both, written_by):
    if written_by == "xarray" and not is_zarr(store):
        pytest.skip("plain xarray appends to zarr only")
    target = store if written_by == "xarray" else write(doors.ds, tmp_path / "new.zarr")
    later = doors.ds.load().assign_coords(time=doors.ds.time + np.timedelta64(12, "h"))
    later.td.to_zarr(target, append_dim="time")
    again = open_both(target)
    steps = np.diff(again.ds.time.values.astype("M8[ns]"))
    assert steps.tolist() == [np.timedelta64(6, "h").astype("m8[ns]").astype("i8")] * 3
    assert_entry(again.td, "time", [TIMES[0] + i * 6 * 3600 * 10**9 for i in range(4)], torch.int64)
    assert_entry(again.td, "t_obs", [TIMES[0], NAT] * 2, torch.int64)


# --- case 32: times as a dtype of the format -----------------------------------------------------------------------


@of_case(32)
def test_native_times_need_no_units(doors):
    ds, td = doors.ds, doors.td
    assert ds.when.dtype.kind == "M"
    assert ds.lag.dtype.kind == "m"
    assert ds.when.values[0] == np.datetime64("2020-01-01")
    assert np.isnat(ds.when.values[1])
    assert ds.lag.values.astype("m8[s]").astype(int).tolist() == [3, -1]
    assert list(td.batch_size) == [2]
    assert td.names == ["row"]
    assert_entry(td, "x", [0.5, 1.5], torch.float64)
    for source in (td, doors.ptd):
        assert_entry(source, "when", [1577836800_000000000, NAT], torch.int64)
        assert_entry(source, "lag", [3_000000000, -1_000000000], torch.int64)
        assert source[0]["when"].item() == 1577836800_000000000


# --- case 35: strings ----------------------------------------------------------------------------------------------

NAMES, CODES = ["a", "", "blåbær"], ["x1", "x2", "x3"]


def assert_strings(doors):
    assert doors.ds["name"].values.tolist() == NAMES
    assert doors.ds.code.values.tolist() == CODES
    assert doors.ds["name"].dtype.kind in "OUT"
    assert doors.ds.code.dtype.kind in "OUT"
    td = doors.td
    assert list(td.batch_size) == [3]
    assert td.names == ["row"]
    for source in (td, doors.ptd):
        assert text(source["name"]) == NAMES
        assert text(source["code"]) == CODES
        assert text(source[2]["name"]) == "blåbær"
        assert text(source[0]["code"]) == "x1"
    assert_entry(td, "v", [1, 2, 3], torch.int32)


@of_case(35)
def test_strings_are_one_item_per_row(doors):
    assert_strings(doors)


@of_case(35)
@FORMATS
def test_strings_survive_two_cycles(doors, tmp_path, open_both, suffix):
    ds = doors.ds
    for cycle in range(2):
        again = open_both(write(ds, tmp_path / f"{cycle}{suffix}"))
        assert_strings(again)
        ds = again.ds


# --- case 37: dims without a coordinate ----------------------------------------------------------------------------


@of_case(37)
def test_a_placeholder_is_a_dim_and_no_entry(doors):
    ds, td = doors.ds, doors.td
    assert dict(ds.sizes) == {"row": 3, "col": 2, "t": 2}
    assert set(ds.variables) == {"v", "w", "t"}
    assert set(ds.coords) == {"t"}
    assert list(td.batch_size) == [3]
    assert td.names == ["row"]
    assert set(td.keys()) == {"v", "w", "t"}
    assert_entry(td, "v", np.arange(6).reshape(3, 2), torch.float32)
    assert_entry(td, "w", [7, 8, 9], torch.int32)
    assert_unbatched(td, "t", [0.0, 0.5])
    assert_entry(doors.ptd, "v", np.arange(6).reshape(3, 2), torch.float32)


# --- case 38: stale consolidated metadata --------------------------------------------------------------------------


@of_case(38)
def test_the_store_is_read_as_it_is_and_not_as_it_was(doors):
    ds = doors.ds
    np.testing.assert_array_equal(ds.x, [0, 1, 2, 3])
    np.testing.assert_array_equal(ds["new"], [1, 2, 3, 4])
    assert "old" not in ds
    assert list(doors.td.batch_size) == [4]
    assert set(doors.ptd.keys()) == {"x", "new"}


@of_case(38)
def test_a_write_refreshes_the_consolidated_copy(store, doors, open_both):
    more = xr.Dataset({"more": ("t", np.arange(4.0))})
    more.td.to_zarr(store, mode="a")
    again = open_both(store)
    assert {"x", "new", "more"} <= set(again.ds.variables)
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


# --- case 40: one dim twice ----------------------------------------------------------------------------------------

REPEATED = pytest.mark.filterwarnings("ignore:.*(Duplicate dimension names|repeat|cov):UserWarning")


@of_case(40)
@REPEATED
def test_the_batch_stops_before_a_repeated_dim(doors):
    td = doors.td
    assert list(td.batch_size) == [2]
    assert td.names == ["time"]
    assert_entry(td, "cov", np.arange(18.0).reshape(2, 3, 3))
    assert_entry(td, "mu", np.arange(6.0).reshape(2, 3))


@of_case(40)
@REPEATED
def test_a_repeated_dim_cannot_be_batch(store):
    with pytest.raises(ValueError, match="site"):
        xr.open_dataset(store, engine="tensordict", batch_dims=3).td.to_tensordict()


@of_case(40)
@REPEATED
def test_a_repeated_dim_is_written_as_it_was(doors, tmp_path, open_both):
    new = write(doors.ds, tmp_path / "new.zarr")
    assert zarr.open_array(f"{new}/cov", mode="r").metadata.dimension_names == ("time", "site", "site")
    again = open_both(new)
    assert again.ds["cov"].dims == doors.ds["cov"].dims
    assert_same_tensordict(again.ds.td.to_tensordict(), doors.ds.td.to_tensordict())


# --- case 41: columns that become a MultiIndex ---------------------------------------------------------------------


@of_case(41)
def test_levels_open_as_plain_coords(doors):
    assert set(doors.ds.coords) == {"run", "step"}
    assert list(doors.td.batch_size) == [4]
    assert_entry(doors.td, "run", [0, 0, 1, 1])


@of_case(41)
def test_a_multiindex_becomes_columns_of_numbers(doors):
    td = doors.ds.set_index(point=["run", "step"]).td.to_tensordict()
    assert list(td.batch_size) == [4]
    assert_entry(td, "y", np.arange(4.0))
    for key in td.keys(include_nested=True):
        assert isinstance(td[key], torch.Tensor), key


@of_case(41)
@FORMATS
def test_a_multiindex_is_stored_and_restored_or_refused_before_anything_is_touched(doors, tmp_path, open_both, suffix):
    stacked = doors.ds.load().set_index(point=["run", "step"])
    target = write(xr.Dataset({"precious": ("t", np.arange(3.0))}), tmp_path / f"target{suffix}")
    try:
        stacked.td.to_zarr(target, mode="w") if suffix == ".zarr" else stacked.td.to_h5(target, mode="w")
    except NotImplementedError as error:
        assert "point" in str(error)
        np.testing.assert_array_equal(open_both(target).ds.precious, np.arange(3.0))
    else:
        again = open_both(target).ds
        assert again.y.values.tolist() == [0, 1, 2, 3]
        assert again.indexes["point"].equals(stacked.indexes["point"])


# --- case 43: a zip file -------------------------------------------------------------------------------------------


@of_case(43)
def test_a_zip_store_opens_by_its_name(doors):
    assert list(doors.td.batch_size) == [3]
    assert doors.td.names == ["t"]
    assert_entry(doors.td, "x", np.arange(6).reshape(3, 2), torch.float32)
    assert doors.ds.x.attrs["units"] == "m"
    assert doors.ds.attrs["title"] == "zipped"


# --- case 44: awkward names ----------------------------------------------------------------------------------------


def assert_awkward(doors):
    assert set(doors.ds.data_vars) == set(twins.AWKWARD_NAMES)
    td = doors.td
    assert set(td.keys()) == set(doors.ptd.keys()) == set(twins.AWKWARD_NAMES)
    assert list(td.batch_size) == [2]
    assert td.names == ["row no."]
    for i, name in enumerate(twins.AWKWARD_NAMES):
        assert_entry(td, name, [i, i + 0.5], torch.float64)
        assert_entry(doors.ptd, name, [i, i + 0.5], torch.float64)


@of_case(44)
def test_names_are_kept_exactly(doors):
    assert_awkward(doors)


@of_case(44)
@FORMATS
def test_names_are_written_exactly(doors, tmp_path, open_both, suffix):
    assert_awkward(open_both(write(doors.ds, tmp_path / f"new{suffix}")))


def test_a_key_with_a_slash_is_refused_by_name():
    """In a Dataset "a/b" is the nested entry ("a", "b"), so there is no place in it for a flat key "PASS/FAIL"."""
    with pytest.raises(ValueError, match="PASS/FAIL"):
        xarray_tensordict.to_dataset(TensorDict({"PASS/FAIL": torch.zeros(2)}, [2]))
