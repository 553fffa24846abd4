"""Windows that go on into the next episode or over missing rows without being told to: one warning that says what to pass."""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from loading_samples import numbered
from written import reopened_as
from xarray_tensordict import LeftOutWarning

DAYS = pd.date_range("2020-01-01", periods=800, freq="D")
CALENDAR = xr.date_range("2020-01-01", periods=800, freq="D", calendar="noleap", use_cftime=True)


def along(index, dim="time"):
    return xr.Dataset({"x": ((dim, "f"), np.zeros((len(index), 2)))}, {dim: index}).td.set_batch_dims(dim)


def said(ds, **options):
    """What both ways to make samples say; they say the same."""
    options = {"window": {"time": 4}, **options}
    texts = []
    for make in (lambda: ds.td.batches(8, **options), lambda: ds.td.to_torch_dataset(**options)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            make()
        caught = [each for each in caught if each.category is not LeftOutWarning]  # dates of other calendars
        assert {each.category for each in caught} <= {UserWarning}
        assert {Path(each.filename) for each in caught} <= {Path(__file__)}
        texts.append([str(each.message) for each in caught])
    assert texts[0] == texts[1]
    return "; ".join(texts[0])


@pytest.mark.parametrize("index", [DAYS, CALENDAR], ids=["standard", "noleap"])
def test_a_season_of_several_years(index):
    ds = along(index)
    winters = ds.sel(time=ds["time"].dt.season == "DJF")
    found = said(winters)
    assert found.startswith(
        f"6 of {winters.sizes['time'] - 3} windows along 'time' go on over missing rows, where 'time' does"
    )
    assert "2020-12-01" in found
    assert said(winters, gaps="time") == said(winters, gaps=False) == said(winters, window={"time": 1}) == ""
    assert len(winters.drop_vars("time").td.batches(1, window={"time": 4}, gaps=False)) == winters.sizes["time"] - 3


@pytest.mark.parametrize("index", [DAYS, np.arange(800), np.arange(800) * 0.1], ids=["times", "numbers", "seconds"])
def test_parts_of_a_split_at_random(index):
    ds = along(index).chunk({"time": 5})
    part = ds.td.split({"train": 0.8, "test": 0.2}, seed=0)["train"]
    assert "windows along 'time' go on over missing rows" in said(part)
    assert "windows along 'time' go on over missing rows" in said(
        ds.isel(time=np.random.default_rng(0).permutation(800))
    )


REGULAR = {
    "days": DAYS,
    "months": pd.date_range("2000-01-01", periods=60, freq="MS"),
    "months of another calendar": xr.date_range(
        "2000-01-15", periods=60, freq="MS", calendar="noleap", use_cftime=True
    ),
    "years": pd.date_range("1900-01-01", periods=60, freq="YS"),
    "a clock that is not even": DAYS + pd.to_timedelta(np.arange(800) % 7, "h"),
    "numbers": np.arange(800),
    "falling": np.linspace(80, 17, 64),
    "text": [f"sample {row}" for row in range(40)],
    "levels": pd.MultiIndex.from_product([range(8), range(5)], names=["a", "b"]),
    "intervals": pd.interval_range(0, 40),
}


@pytest.mark.filterwarnings("ignore:.*MultiIndex.*")
@pytest.mark.parametrize("index", REGULAR.values(), ids=REGULAR)
def test_rows_that_follow_each_other_are_nothing_to_warn_of(index):
    if isinstance(index, pd.MultiIndex):
        index = xr.Coordinates.from_pandas_multiindex(index, "time")["time"]
    assert said(along(index)) == ""


def test_without_a_coordinate_there_is_nothing_to_say():
    assert said(numbered(40)) == ""
    assert said(numbered(40, clock=[0] * 40)) == ""


def test_numbers_along_a_dim_that_is_no_batch_are_no_rows():
    ds = xr.Dataset({"x": (("time", "level"), np.zeros((5, 6)))}, {"level": [100, 200, 300, 500, 850, 1000]})
    assert said(ds.td.set_batch_dims("time"), window={"level": 3}) == ""


@pytest.mark.parametrize("form", ["memory", "zarr3", "h5"])
@pytest.mark.parametrize("index", ["episode", "demo"])
def test_episodes_that_concat_made_in_memory_and_written(tmp_path, form, index):
    demos = {f"/{name}": numbered(rows) for name, rows in (("demo_0", 5), ("demo_1", 6), ("demo_2", 7))}
    joined = xr.DataTree.from_dict(demos).td.concat("time", index=index)
    ds = reopened_as(form, joined, tmp_path, rows=5)
    assert said(ds) == (
        f"6 of 15 windows along 'time' go on from one episode into the next, as {index!r} says: pass within={index!r} to cut them "
        "there, or gaps=False if that is meant"
    )
    assert said(ds, within=index) == said(ds, gaps="step") == said(ds, gaps=False) == ""
    assert said(ds.isel(time=slice(0, 5))) == ""


def test_rows_of_a_table_that_concat_labelled():
    table = numbered(12).assign(dones=("time", np.tile([0, 0, 0, 1], 3)))
    ds = table.td.concat("time")
    assert said(ds).startswith("6 of 9 windows along 'time' go on from one episode into the next")
    assert said(ds, stride=4) == ""


def test_windows_of_several_tables_and_patches_are_all_counted():
    x = np.zeros((3, 10, 8))
    times = DAYS[[0, 1, 2, 3, 4, 9, 10, 11, 12, 13]]
    ds = xr.Dataset({"x": (("env", "time", "lat"), x)}, {"time": times}).td.set_batch_dims("env", "time")
    assert said(ds, window={"time": 2}).startswith("3 of 27 windows")
    assert said(ds, window={"time": 2, "lat": 4}, stride={"lat": 4}).startswith("6 of 54 windows")
