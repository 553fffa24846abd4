"""Dates of cftime (noleap, 360_day): written with the layout of xarray, appended to, and refused where they cannot be kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xarray_tensordict  # noqa: F401 - registers ds.td
from xarray_tensordict import LeftOutWarning, StoredFormWarning

CREATE: dict[str, Callable[..., Any]] = {
    "zarr2": lambda ds, path: ds.td.to_zarr(path, layout="xarray", zarr_format=2),
    "zarr3": lambda ds, path: ds.td.to_zarr(path, layout="xarray", zarr_format=3),
    "plain zarr": lambda ds, path: ds.to_zarr(path, consolidated=False),
    "h5": lambda ds, path: ds.td.to_h5(path, layout="xarray", unlimited_dims=["time"]),
}
KINDS = pytest.mark.parametrize("kind", CREATE)
CHUNKED = pytest.mark.parametrize("chunked", [False, True], ids=["memory", "dask"])


def days(first: str, calendar: str = "noleap", rows: int = 4, freq: str = "D") -> xr.Dataset:
    times = xr.date_range(first, periods=rows, calendar=calendar, freq=freq, use_cftime=True)
    return xr.Dataset({"x": ("time", np.arange(float(rows))), "seen": ("time", times.values)}, coords={"time": times})


def append(ds: xr.Dataset, path: Path, kind: str) -> None:
    if kind == "h5":
        ds.td.to_h5(path, layout="xarray", append_dim="time")
    else:
        ds.td.to_zarr(path, layout="xarray", append_dim="time")


def dates(path: Path, name: str = "time") -> list[Any]:
    with xr.open_dataset(path, engine="tensordict") as ds:
        return list(ds[name].values)


@KINDS
@CHUNKED
@pytest.mark.parametrize(("calendar", "first"), [("noleap", "2000-01-30"), ("360_day", "2000-02-29")])
def test_dates_of_another_calendar_are_appended(
    tmp_path: Path, kind: str, chunked: bool, calendar: str, first: str
) -> None:
    old, new = days(first, calendar), days("2000-03-05", calendar)
    CREATE[kind](old, tmp_path / "a")
    append(new.chunk(time=2) if chunked else new, tmp_path / "a", kind)
    for name in ("time", "seen"):
        assert dates(tmp_path / "a", name) == [*old[name].values, *new[name].values]


@KINDS
def test_no_rows_of_dates_are_appended(tmp_path: Path, kind: str) -> None:
    old = days("2000-01-30")
    CREATE[kind](old, tmp_path / "a")
    append(old.isel(time=slice(0, 0)), tmp_path / "a", kind)
    assert dates(tmp_path / "a") == list(old["time"].values)


@KINDS
def test_dates_of_a_calendar_that_the_store_does_not_have_are_refused(tmp_path: Path, kind: str) -> None:
    old = days("2000-01-30")
    CREATE[kind](old, tmp_path / "a")
    with pytest.raises(ValueError, match=r"'(time|seen)' has dates of the calendar 'noleap' there, found .*'360_day'"):
        append(days("2000-03-05", "360_day"), tmp_path / "a", kind)
    assert dates(tmp_path / "a") == list(old["time"].values)


@KINDS
def test_dates_between_the_units_of_the_store_are_refused(tmp_path: Path, kind: str) -> None:
    old = days("2000-01-30")
    for name in ("time", "seen"):
        old[name].encoding = {"units": "days since 2000-01-01", "calendar": "noleap", "dtype": "int64"}
    CREATE[kind](old, tmp_path / "a")
    with pytest.raises(ValueError, match=r"'(time|seen)'.*does not hold"):
        append(days("2000-03-05", freq="h"), tmp_path / "a", kind)
    assert dates(tmp_path / "a") == list(old["time"].values)


@KINDS
def test_text_is_not_appended_to_dates_nor_dates_to_text(tmp_path: Path, kind: str) -> None:
    old, new = days("2000-01-30"), days("2000-03-05")
    CREATE[kind](old, tmp_path / "a")
    with pytest.raises(
        ValueError, match="'seen' has dates of the calendar 'noleap' there, found objects that are no dates"
    ):
        append(new.assign(seen=("time", np.array(list("abcd"), object))), tmp_path / "a", kind)
    words = old.assign(seen=("time", np.array(list("abcd"), object)))
    CREATE[kind](words, tmp_path / "b")
    with pytest.raises(ValueError, match="'seen' has no dates there"):
        append(new, tmp_path / "b", kind)
    assert dates(tmp_path / "b", "seen") == list("abcd")


@pytest.mark.parametrize("kind", ["zarr2", "zarr3", "h5"])
def test_units_that_came_along_and_would_round_dates_are_left(tmp_path: Path, kind: str) -> None:
    ds = days("2000-01-30", freq="h")
    ds["seen"].encoding = {"units": "days since 2000-01-01", "calendar": "noleap", "dtype": "int32"}
    CREATE[kind](ds, tmp_path / "a")
    assert dates(tmp_path / "a", "seen") == list(ds["seen"].values)


@CHUNKED
def test_a_tensordict_leaves_them_out_by_name_whether_a_store_declares_them_or_not(chunked: bool) -> None:
    ds = days("2000-01-30")
    with pytest.warns(LeftOutWarning, match="'time': it holds dates of the calendar 'noleap'"):
        found = (ds.drop_vars("seen").chunk(time=2) if chunked else ds).td.to_tensordict()
    assert set(found.keys()) == {"x"}


def test_a_memory_mapped_tensordict_refuses_them_by_name(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"'(time|seen)' cannot be written: it holds dates of the calendar 'noleap'"):
        days("2000-01-30").td.to_memmap(tmp_path / "a")


# -- layout="tensordict", which has one calendar, and times far apart ---------------------------------------------------

WRITE: dict[str, Callable[..., Any]] = {
    "zarr": lambda ds, path, **options: ds.td.to_zarr(path, **options),
    "h5": lambda ds, path, **options: ds.td.to_h5(path, **options),
}


def model_output(calendar: str = "noleap", first: str = "2000-02-27") -> xr.Dataset:
    ds = days(first, calendar).drop_vars("seen")
    return ds.assign(time_bnds=(("time", "bnds"), np.stack([ds.time.values] * 2, axis=1)))


@pytest.mark.parametrize("kind", WRITE)
def test_all_variables_with_such_dates_are_refused_together_and_each_advice_works(tmp_path: Path, kind: str) -> None:
    ds = model_output()
    with pytest.raises(ValueError, match=r"variables 'time', 'time_bnds' hold cftime dates.*layout='xarray'") as error:
        WRITE[kind](ds, tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    WRITE[kind](ds, tmp_path / "kept", layout="xarray")
    assert dates(tmp_path / "kept", "time_bnds")[0][0] == ds.time.values[0]
    assert "ds.drop_vars(['time', 'time_bnds'])" in str(error.value)
    WRITE[kind](ds.drop_vars(["time_bnds", "time"]), tmp_path / "dropped")
    converted = ds.convert_calendar("standard")
    with pytest.warns(StoredFormWarning, match="'time_bnds' holds dates of the calendar 'noleap'"):
        WRITE[kind](converted, tmp_path / "converted")
    with xr.open_dataset(tmp_path / "converted", engine="tensordict") as found:
        np.testing.assert_array_equal(found.time_bnds, np.stack([converted.time.values] * 2, axis=1))


def test_a_date_that_the_standard_calendar_lacks_is_refused_by_name(tmp_path: Path) -> None:
    ds = model_output("360_day", "2000-02-29")
    converted = ds.assign_coords(time=np.datetime64("2000-02-28", "ns") + np.arange(4))
    with pytest.raises(ValueError, match=r"'time_bnds' holds a date that the standard calendar lacks .*2000-02-30"):
        converted.td.to_zarr(tmp_path / "a")
    converted.drop_vars("time_bnds").td.to_zarr(tmp_path / "a")


@pytest.mark.parametrize("kind", WRITE)
def test_times_more_than_292_years_apart_come_back_from_the_layout_of_xarray(tmp_path: Path, kind: str) -> None:
    times = np.array(["1700-01-01", "NaT", "2200-01-01T00:00:00.000000001"], "M8[ns]")
    WRITE[kind](xr.Dataset({"x": ("time", times)}), tmp_path / "a", layout="xarray")
    with xr.open_dataset(tmp_path / "a", engine="tensordict") as found:
        np.testing.assert_array_equal(found.x, times)
