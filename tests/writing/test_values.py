"""An encoding outlives the values it was made for: what is written with it is read as it was, or refused by name."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import xarray as xr

from xarray_tensordict import StoredFormWarning
from xarray_tensordict.writing import values as packing

WRITERS: dict[str, Callable[..., Any]] = {
    "zarr2": lambda ds, path, **more: ds.td.to_zarr(path, layout="xarray", zarr_format=2, **more),
    "zarr3": lambda ds, path, **more: ds.td.to_zarr(path, layout="xarray", zarr_format=3, **more),
    "h5": lambda ds, path, **more: ds.td.to_h5(path, layout="xarray", **more),
}
KINDS = pytest.mark.parametrize("kind", WRITERS)
CHUNKED = pytest.mark.parametrize("chunked", [False, True], ids=["memory", "dask"])


def one(values: Any, encoding: Mapping[str, Any] | None = None) -> xr.Dataset:
    ds = xr.Dataset({"v": ("q", np.asarray(values))})
    ds["v"].encoding = dict(encoding or {})
    return ds


def read(path: Path, name: str = "v") -> np.ndarray:
    with xr.open_dataset(path, engine="tensordict") as ds:
        return ds[name].values


def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(found, expected)
    assert found.dtype.kind == expected.dtype.kind


# -- times -------------------------------------------------------------------------------------------------------------

SECONDS = {"dtype": "int32", "units": "seconds since 1970-01-01"}
STALE_TIMES = {
    "past the last second of int32": (["2038-01-30", "2038-01-31"], SECONDS),
    "no time among days": (["NaT", "1970-01-02"], {"dtype": "int32", "units": "days since 1970-01-01"}),
    "the fill value": (
        ["1970-01-02", "1970-01-03"],
        {"dtype": "int64", "units": "days since 1970-01-01", "_FillValue": 1},
    ),
    "missing_value": (
        ["1970-01-02", "1970-01-03"],
        {"units": "days since 1970-01-01", "dtype": "i4", "missing_value": 2},
    ),
    "between float32": (
        ["2020-01-01T00:00:01", "2020-01-02"],
        {"dtype": "float32", "units": "seconds since 1970-01-01"},
    ),
}


@KINDS
@CHUNKED
@pytest.mark.parametrize(("times", "encoding"), STALE_TIMES.values(), ids=STALE_TIMES)
class TestTimes:
    def test_are_never_bent_to_an_encoding_that_came_along(self, tmp_path, kind, chunked, times, encoding) -> None:
        ds = one(np.array(times, "M8[ns]"), encoding)
        if chunked and encoding["dtype"] == "float32":
            with pytest.raises(ValueError, match=r"'v': float32 with units=.* does not hold .*drop_encoding"):
                WRITERS[kind](ds.chunk(q=1), tmp_path / "a")
            return
        WRITERS[kind](ds.chunk(q=1) if chunked else ds, tmp_path / "a")
        assert_same(read(tmp_path / "a"), ds["v"].values)

    def test_are_refused_where_it_was_asked_for(self, tmp_path, kind, chunked, times, encoding) -> None:
        ds = one(np.array(times, "M8[ns]"))
        with pytest.raises(ValueError, match=r"'v'|not possible to encode"):
            WRITERS[kind](ds.chunk(q=1) if chunked else ds, tmp_path / "a", encoding={"v": encoding})
        assert not (tmp_path / "a").exists()


@KINDS
def test_times_that_fit_keep_their_encoding(tmp_path: Path, kind: str) -> None:
    ds = one(np.array(["2037-12-31", "1970-01-01"], "M8[ns]"), SECONDS)
    WRITERS[kind](ds, tmp_path / "a")
    with xr.open_dataset(tmp_path / "a", engine="tensordict") as found:
        assert found["v"].encoding["dtype"] == np.dtype("int32")
        assert_same(found["v"].values, ds["v"].values)


@KINDS
def test_durations_that_do_not_fit_are_written_without_the_encoding(tmp_path: Path, kind: str) -> None:
    ds = one(np.array([1, 40_000], "m8[s]").astype("m8[ns]"), {"dtype": "int16", "units": "seconds"})
    WRITERS[kind](ds, tmp_path / "a")
    with xr.open_dataset(tmp_path / "a", engine="tensordict", decode_timedelta=True) as found:
        assert_same(found["v"].values, ds["v"].values)


# -- numbers -----------------------------------------------------------------------------------------------------------


@KINDS
@CHUNKED
@pytest.mark.parametrize("encoding", [{"dtype": "float32"}, {"dtype": "int32", "_FillValue": 2}, {"add_offset": 0.5}])
def test_integers_stay_what_they_are(tmp_path: Path, kind: str, chunked: bool, encoding: Any) -> None:
    ds = one(np.array([2**24 + 1, 2]), encoding)
    WRITERS[kind](ds.chunk() if chunked else ds, tmp_path / "a")
    assert_same(read(tmp_path / "a"), ds["v"].values)


@pytest.mark.parametrize("kind", ["zarr2", "zarr3"])
def test_complex_numbers_that_are_the_fill_value_are_kept(tmp_path: Path, kind: str) -> None:
    ds = one(np.array([1 + 2j, 3.0]), {"_FillValue": 1 + 2j})
    with pytest.warns(UserWarning, match="'v': complex128 with _FillValue=.* does not hold"):
        WRITERS[kind](ds, tmp_path / "a")
    assert_same(read(tmp_path / "a"), ds["v"].values)


PACKED = {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -32768}
F4 = np.array([1, np.nan, -999], "f4")
STALE = {
    "too large": ([0.5, np.nan, 1e6], PACKED, "int16 with scale_factor=0.5"),
    "between the codes": ([0.5, np.nan, 0.6], PACKED, "int16 with scale_factor=0.5"),
    "the code of NaN": ([0.5, np.nan, -16384.0], PACKED, "int16 with scale_factor=0.5"),
    "a fill value": (F4, {"_FillValue": -999.0}, "float32 with _FillValue=-999.0"),
    "missing_value": (F4, {"missing_value": -999.0}, "float32 with missing_value=-999.0"),
    "two values": (F4, {"_FillValue": -999.0, "missing_value": 7.0}, "float32 with _FillValue=-999.0"),
    "packed integers": (
        F4.astype("f8"),
        {"_FillValue": -500, "missing_value": 7, "scale_factor": 2.0, "add_offset": 1.0, "dtype": "i2"},
        "int16",
    ),
    "packed floats": (F4, {"_FillValue": -499.5, "scale_factor": 2.0, "dtype": "f4"}, "float32 with scale_factor=2.0"),
}


@KINDS
@pytest.mark.parametrize(("values", "encoding", "told"), STALE.values(), ids=STALE)
class TestAPackingThatCameAlongAndDoesNotHoldTheValues:
    def test_is_dropped_with_a_warning_where_they_are_in_memory(self, tmp_path, kind, values, encoding, told) -> None:
        ds = one(values, encoding)
        with pytest.warns(StoredFormWarning, match=f"'v': {told}.* does not hold .*, so it is written as float"):
            WRITERS[kind](ds, tmp_path / "a")
        assert_same(read(tmp_path / "a"), ds["v"].values)

    def test_stops_the_write_where_dask_computes_them(self, tmp_path, kind, values, encoding, told) -> None:
        ds = one(values, encoding).chunk(q=1)
        with pytest.raises(ValueError, match=f"'v': {told}.* does not hold .*drop_encoding"):
            WRITERS[kind](ds, tmp_path / "a")
        assert not (tmp_path / "a").exists()
        WRITERS[kind](ds.assign(v=ds["v"].drop_encoding()), tmp_path / "a")
        assert_same(read(tmp_path / "a"), ds["v"].values)

    def test_does_not_matter_to_tensordicts_layout(self, tmp_path, kind, values, encoding, told) -> None:
        ds = one(values, encoding).chunk(q=1)
        (ds.td.to_h5 if kind == "h5" else ds.td.to_zarr)(tmp_path / "a")
        assert_same(read(tmp_path / "a"), ds["v"].values)


ASKED = {
    "bool": ([0, 2], {"dtype": "bool"}, "does not hold 2"),
    "no scale": ([1.0, 2.0], {"dtype": "int16", "scale_factor": 0.0, "_FillValue": -1}, "does not hold 1.0"),
    "overflow": ([1e300], {"dtype": "float32"}, r"does not hold 1e\+300"),
    "no such fill": ([1.0], {"dtype": "int8", "_FillValue": 999}, "int8 with _FillValue=999 does not hold"),
    "two fills": ([1.0], {"_FillValue": 1e20, "missing_value": -1.0}, "one value stands for what is missing"),
    "the fill value": ([1.0, 7.0], {"_FillValue": 7.0}, "does not hold 7.0"),
    "complex": ([1 + 1j], {"dtype": "int16"}, "does not hold"),
    "too large": ([1e6], PACKED, r"int16 with scale_factor=0\.5, .* does not hold 1000000"),
    "infinite": ([np.inf], PACKED, "does not hold inf"),
    "the code of NaN": ([-16384.0], PACKED, "does not hold -16384"),
}


@KINDS
@CHUNKED
@pytest.mark.parametrize(("values", "encoding", "says"), ASKED.values(), ids=ASKED)
def test_what_was_asked_for_and_loses_values_is_refused(
    tmp_path: Path, kind: str, chunked: bool, values: Any, encoding: Any, says: str
) -> None:
    ds = one(values)
    with pytest.raises(ValueError, match=f"'v'.*{says}"):
        WRITERS[kind](ds.chunk() if chunked else ds, tmp_path / "a", encoding={"v": encoding})
    assert not (tmp_path / "a").exists()


@KINDS
def test_a_value_is_found_among_many(tmp_path: Path, kind: str) -> None:
    values = np.zeros(packing._AT_ONCE + 2)
    values[-1] = 1e6
    with pytest.raises(ValueError, match=r"'v'.* does not hold 1000000\.0"):
        WRITERS[kind](one(values), tmp_path / "a", encoding={"v": {"dtype": "int16", "scale_factor": 0.5}})


@KINDS
@CHUNKED
@pytest.mark.parametrize("fills", [{"missing_value": [-1.0, -999.0]}, {"_FillValue": -1.0, "missing_value": [-999.0]}])
def test_several_values_for_missing_ones_become_one(tmp_path: Path, kind: str, chunked: bool, fills: Any) -> None:
    ds = one([np.nan, -999.0], {name: np.array(fill) for name, fill in fills.items()})
    WRITERS[kind](ds.chunk() if chunked else ds, tmp_path / "a")
    assert_same(read(tmp_path / "a"), ds["v"].values)


# -- into a store that is there ----------------------------------------------------------------------------------------

THERE = {
    "a number": ({"_FillValue": -999.0}, [1.0, np.nan], -999.0, 5.0),
    "zero": ({"_FillValue": 0.0}, [1.0, np.nan], 0.0, -1.0),
    "infinity": ({"_FillValue": np.inf}, [1.0, np.nan], np.inf, -np.inf),
    "float32": ({"_FillValue": np.float32(1e20), "dtype": "f4"}, np.array([1, np.nan], "f4"), np.float32(1e20), 2.0),
    "integers": ({"_FillValue": -1, "dtype": "i8"}, [1.0, np.nan], -1.0, 2.0),
    "between integers": ({"_FillValue": -1, "dtype": "i8"}, [1.0, np.nan], 1.5, 2.0),
    "packed": (PACKED, [0.5, np.nan], 1e6, 2.5),
    "the code of NaN": (PACKED, [0.5, np.nan], -16384.0, 2.5),
    "days": (
        {"_FillValue": 3, "dtype": "i4", "units": "days since 1970-01-01"},
        np.array(["1970-01-02", "NaT"], "M8[ns]"),
        np.datetime64("1970-01-04", "ns"),
        np.datetime64("1970-01-05", "ns"),
    ),
}


def appended(ds: xr.Dataset, path: Path, kind: str) -> None:
    (ds.td.to_h5 if kind == "h5" else ds.td.to_zarr)(path, append_dim="q")


def into_region(ds: xr.Dataset, path: Path, kind: str) -> None:
    ds.td.to_zarr(path, region={"q": slice(0, 1)})


def overwritten(ds: xr.Dataset, path: Path, kind: str) -> None:
    both = xr.concat([ds, ds], "q")
    (both.td.to_h5 if kind == "h5" else both.td.to_zarr)(path, mode="a")


# HDF5 has no regions, and what is overwritten there gets an encoding of its own
WAYS = [
    (kind, write)
    for kind in WRITERS
    for write in (appended, into_region, overwritten)
    if kind != "h5" or write is appended
]


# a fill value of 0 that was asked for is no other in zarr v2 than the one that is written by default
@pytest.mark.filterwarnings("ignore:.*zeros of ..v...:xarray_tensordict.warnings.MissingValuesWarning")
@CHUNKED
@pytest.mark.parametrize(("kind", "write"), WAYS)
@pytest.mark.parametrize(("encoding", "before", "wrong", "right"), THERE.values(), ids=THERE)
def test_what_would_be_read_as_missing_is_refused(
    tmp_path: Path, kind: str, chunked: bool, write: Any, encoding: Any, before: Any, wrong: Any, right: Any
) -> None:
    path, ds = tmp_path / "a", one(before, encoding)
    WRITERS[kind](ds, path, chunks={"q": 1}, **({"unlimited_dims": ["q"]} if kind == "h5" else {}))
    dtype = read(path).dtype
    for value, fits in ((wrong, False), (right, True)):
        rows = one(np.array([value], dtype))
        rows = rows.chunk() if chunked else rows
        if fits:
            write(rows, path, kind)
            assert np.count_nonzero(read(path) == value) == (2 if write is overwritten else 1)
            continue
        with pytest.raises(ValueError, match="'v'"):
            write(rows, path, kind)
        if not (chunked and write is overwritten):  # of which it cannot be said what dask has written of it
            assert_same(read(path), ds["v"].values)


# -- the dtype that is unpacked to -------------------------------------------------------------------------------------

SINGLE = {"dtype": "int16", "scale_factor": np.float32(0.3052037), "_FillValue": np.int16(-1)}
TO_SINGLE = {
    "scale": SINGLE,
    "scale and offset": {**SINGLE, "add_offset": np.float32(273.15)},
    "scale of Python": {**SINGLE, "scale_factor": 0.5},
    "no scale, int32": {"dtype": "int32", "_FillValue": -1},
}


@KINDS
@CHUNKED
@pytest.mark.parametrize("encoding", TO_SINGLE.values(), ids=TO_SINGLE)
def test_float32_stays_float32(tmp_path: Path, kind: str, chunked: bool, encoding: Any) -> None:
    codes = xr.Dataset({"v": ("q", np.array([0, 7, 2993, -1], encoding["dtype"]))})
    codes["v"].attrs = {word: value for word, value in encoding.items() if word != "dtype"}
    ds = xr.decode_cf(codes).astype("f4", keep_attrs=True).load()
    ds["v"].encoding = dict(encoding)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        WRITERS[kind](ds.chunk(q=2) if chunked else ds, tmp_path / "a")
    with xr.open_dataset(tmp_path / "a", engine="tensordict") as found:
        assert found["v"].encoding["dtype"] == np.dtype(encoding["dtype"])
        assert found["v"].dtype == np.float32
        np.testing.assert_array_equal(found["v"].values, ds["v"].values)
    with xr.open_dataset(tmp_path / "a", engine="h5netcdf" if kind == "h5" else "zarr", chunks=None) as plain:
        widened = plain["v"].dtype != np.float32
    told = [str(each.message) for each in caught if each.category is StoredFormWarning]
    assert len(told) == widened
    assert all("'v' of dtype float32 is packed" in message and "float64" in message for message in told)


@KINDS
@CHUNKED
@pytest.mark.filterwarnings("ignore:variable 'v' of dtype float32 is packed:UserWarning")
def test_float32_is_appended_to_packed_float32(tmp_path: Path, kind: str, chunked: bool) -> None:
    ds = one(np.array([1, 7, 2993], "f4") * np.float32(0.3052037), SINGLE)
    WRITERS[kind](ds, tmp_path / "a", **({"unlimited_dims": ["q"]} if kind == "h5" else {}))
    appended(ds.chunk(q=2) if chunked else ds, tmp_path / "a", kind)
    found = read(tmp_path / "a")
    np.testing.assert_array_equal(found, np.tile(ds["v"].values, 2))
    assert found.dtype == np.float32


@KINDS
def test_float64_stays_float64_where_its_packing_is_of_float32(tmp_path: Path, kind: str) -> None:
    ds = one(np.array([0.5, 1.0, np.nan]), {**SINGLE, "scale_factor": np.float32(0.5)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoredFormWarning)
        WRITERS[kind](ds, tmp_path / "a")
    found = read(tmp_path / "a")
    np.testing.assert_array_equal(found, ds["v"].values)
    assert found.dtype == np.float64


# -- without a dim of the batch, beside those that have it -------------------------------------------------------------


@pytest.mark.parametrize("kind", ["zarr2", "zarr3", "h5"])
class TestUnbatched:
    """What layout="tensordict" keeps in the entry ``_unbatched`` is packed as it was, and unpacked again."""

    PACKED: ClassVar[dict[str, Any]] = {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -1}

    def written(self, path: Path, kind: str, values: Any, encoding: Any) -> xr.Dataset:
        ds = xr.Dataset({"x": ("time", np.arange(3.0)), "pk": ("y", np.asarray(values))})
        ds["pk"].encoding = dict(encoding)
        if kind == "h5":
            ds.td.to_h5(path)
        else:
            ds.td.to_zarr(path, zarr_format=int(kind[-1]))
        return ds

    def test_values_come_back(self, tmp_path: Path, kind: str) -> None:
        ds = self.written(tmp_path / "a", kind, [1.0, 2.5, np.nan], self.PACKED)
        with xr.open_dataset(tmp_path / "a", engine="tensordict") as found:
            xr.testing.assert_identical(found.load(), ds)
            assert found["pk"].encoding["scale_factor"] == 0.5
        with xr.open_dataset(tmp_path / "a", engine="tensordict", mask_and_scale=False) as raw:
            assert raw["pk"].dtype == np.int16
            assert raw["pk"].values.tolist() == [2, 5, -1]

    def test_values_that_do_not_fit_are_not_packed(self, tmp_path: Path, kind: str) -> None:
        with pytest.warns(StoredFormWarning, match="'pk': int16 with scale_factor=0.5.* does not hold 1000000000.0"):
            ds = self.written(tmp_path / "a", kind, [1.0, 1e9, np.nan], self.PACKED)
        with xr.open_dataset(tmp_path / "a", engine="tensordict") as found:
            xr.testing.assert_identical(found.load(), ds)

    def test_float32_stays_float32(self, tmp_path: Path, kind: str) -> None:
        encoding = {**self.PACKED, "scale_factor": np.float32(0.1)}
        with pytest.warns(StoredFormWarning, match="'pk' of dtype float32 is packed"):
            ds = self.written(tmp_path / "a", kind, np.array([1, 3], "f4") * np.float32(0.1), encoding)
        with xr.open_dataset(tmp_path / "a", engine="tensordict") as found:
            xr.testing.assert_identical(found.load(), ds)

    def test_other_values_are_packed_as_those_before(self, tmp_path: Path, kind: str) -> None:
        self.written(tmp_path / "a", kind, [1.0, 2.5, np.nan], self.PACKED)
        other = xr.Dataset({"pk": ("y", [4.0, np.nan, 0.5])})
        (other.td.to_h5 if kind == "h5" else other.td.to_zarr)(tmp_path / "a", mode="a")
        assert_same(read(tmp_path / "a", "pk"), other["pk"].values)
