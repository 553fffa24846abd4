"""``ds.td.split``: parts that share no chunk, no episode and no time, as lazy Datasets."""

import itertools
import re

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from loading_samples import numbered

SHARES = {"train": 0.8, "val": 0.1, "test": 0.1}


def rows_of(parts):
    return {name: part["n"].values.tolist() for name, part in parts.items()}


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=20),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.sampled_from(["chunks", "episode", "text"]),
    st.sampled_from([None, 0, 1]),
)
def test_parts_hold_whole_chunks_or_episodes_and_each_row_once(lengths, weights, kind, seed):
    rows = sum(lengths)
    unit = np.repeat(np.arange(len(lengths)), lengths)
    ds = numbered(rows, episode=unit, text=np.array([f"demo_{number}" for number in unit], object))
    ds = ds.chunk({"time": tuple(lengths)}) if kind == "chunks" else ds
    shares = {f"part {number}": weight / sum(weights) for number, weight in enumerate(weights)}
    by = None if kind == "chunks" else kind
    try:
        parts = ds.td.split(shares, by=by, seed=seed)
    except ValueError as error:
        assert "would be empty" in str(error)
        assert min(shares.values()) * rows <= max(lengths)
        return
    found = rows_of(parts)
    assert sorted(itertools.chain(*found.values())) == list(range(rows))
    assert all(numbers == sorted(numbers) for numbers in found.values())
    units = [set(unit[numbers]) for numbers in found.values()]
    assert sum(map(len, units)) == len(lengths)
    if seed is None:
        assert list(itertools.chain(*found.values())) == list(range(rows))
    ends = np.cumsum([len(numbers) for numbers in found.values()])
    assert (np.abs(ends - np.cumsum(list(shares.values())) * rows) <= max(lengths) / 2 + 1e-6).all()
    assert rows_of(ds.td.split(shares, by=by, seed=seed)) == found
    assert [part.td.batch_dims for part in parts.values()] == [("time",)] * len(shares)


def test_seeds_draw_other_episodes():
    ds = numbered(100, episode=np.arange(100) // 5)
    drawn = [tuple(rows_of(ds.td.split(SHARES, by="episode", seed=seed))["test"]) for seed in range(5)]
    assert len(set(drawn)) > 1
    assert {len(rows) for rows in drawn} == {10}


def test_no_chunk_is_read_for_two_parts_and_none_for_the_split(counted):
    ds, chunks = counted
    chunks.clear()
    parts = ds.td.split({"train": 0.62, "test": 0.38})
    assert chunks == []
    assert {name: part.sizes["time"] for name, part in parts.items()} == {"train": 60, "test": 40}
    read = {}
    for name, part in parts.items():
        chunks.clear()
        assert sum(len(batch) for batch in part.td.batches(8, shuffle=True, seed=0)) == part.sizes["time"]
        read[name] = set(chunks)
    assert not read["train"] & read["test"]


def test_times_are_split_from_the_earliest_to_the_latest_and_equal_ones_stay_together():
    hours = np.array([7, 3, 3, 9, 0, 5, 7, 1, 8, 2])
    ds = numbered(10, when=np.datetime64("2024-01-01", "ns") + hours.astype("m8[h]"))
    parts = ds.td.split({"train": 0.5, "test": 0.5}, by="when")
    assert [hours[rows].tolist() for rows in rows_of(parts).values()] == [[3, 3, 0, 1, 2], [7, 9, 5, 7, 8]]
    assert parts["test"].sizes["time"] == 5


def test_a_dim_without_a_coordinate_is_cut_anywhere():
    ds = numbered(10).chunk({"time": 10})
    with pytest.raises(
        ValueError, match=r"'val' would be empty: there are 1 chunks along 'time', .* by='time' cuts between rows"
    ):
        ds.td.split(SHARES)
    found = rows_of(ds.td.split(SHARES, by="time"))
    assert found == {"train": list(range(8)), "val": [8], "test": [9]}
    table = xr.Dataset({"n": (("env", "time"), np.arange(8).reshape(2, 4))}).td.set_batch_dims(["env", "time"])
    assert table.td.split({"a": 0.5, "b": 0.25}, by="time")["b"]["n"].values.tolist() == [[2], [6]]
    assert table.td.split({"a": 0.5, "b": 0.5})["b"]["n"].values.tolist() == [[4, 5, 6, 7]]


def test_rows_without_a_label_stay_together():
    ds = xr.Dataset(
        {"n": ("t", np.arange(6)), "who": ("t", pd.array(["a", None, "b", None, "a", "b"], dtype="string"))}
    )
    parts = rows_of(ds.td.set_batch_dims("t").td.split({"x": 0.34, "y": 0.33, "z": 0.33}, by="who"))
    assert sorted(parts.values()) == [[0, 4], [1, 3], [2, 5]]


@pytest.mark.parametrize(
    ("parts", "options", "error", "message"),
    [
        ({}, {}, TypeError, "expected the share of each part"),
        ([0.8, 0.2], {}, TypeError, "expected the share of each part"),
        (
            {"a": 0.5},
            {"by": ["episode"]},
            TypeError,
            r"by: expected the name of one variable, or None, found \['episode'\]",
        ),
        ({"a": 0.8, "b": 0.3}, {}, ValueError, "the shares add up to 1.1, expected at most 1"),
        ({"a": 0.0, "b": 0.3}, {}, ValueError, "expected a share between 0 and 1 for 'a', got 0.0"),
        ({"a": True}, {}, ValueError, "expected a share between 0 and 1 for 'a', got True"),
        ({"a": 8}, {}, ValueError, "expected a share between 0 and 1"),
        ({"a": 0.95, "b": 0.05}, {}, ValueError, "'b' would be empty: there are 6 rows along 'time'"),
        ({"a": 0.5}, {"by": "nobody"}, ValueError, "by: there is no variable 'nobody'"),
        ({"a": 0.5}, {"by": "done"}, ValueError, "by: 'done' holds flags"),
        ({"a": 0.5}, {"by": "mask"}, ValueError, "by: expected a variable along one of the batch dims"),
        ({"a": 0.5}, {"by": "x"}, ValueError, r"by: expected one value of 'x' for each row along 'time'"),
        ({"a": 0.5}, {"seed": -1}, ValueError, "seed"),
    ],
)
def test_what_makes_no_parts_is_refused(parts, options, error, message):
    ds = numbered(6, width=2, done=[False] * 6).assign(mask=("f", [1.0, 1.0]))
    with pytest.raises(error, match=message):
        ds.td.split(parts, **options)


def test_without_a_batch_dim_there_is_nothing_to_split():
    with pytest.raises(ValueError, match="there is no batch dim to split along"):
        xr.Dataset({"x": ((), 1.0)}).td.split(SHARES)


def test_the_dim_that_could_be_the_batch_is_named_where_there_is_none():
    sizes = {"a": 3, "b": 4, "c": 5}
    ds = xr.Dataset({name: ((name.upper(), "time"), np.zeros((size, 9))) for name, size in sizes.items()})
    for use in (lambda: ds.td.split(SHARES), lambda: ds.td.batches(2)):
        with pytest.raises(ValueError, match=r"there is no batch dim .* pass batch_dims='time' to take it"):
            use()
    assert len(ds.td.batches(2, batch_dims="time")) == 5


@pytest.mark.parametrize("field", ["year", "season", "dayofyear"])
@pytest.mark.parametrize("calendar", ["standard", "noleap"])
@pytest.mark.parametrize("name", ["time", "when"])
def test_a_part_of_times_that_is_no_variable_yet_is_made_as_the_message_says(field, calendar, name):
    times = xr.date_range("2020-01-01", periods=1200, freq="D", calendar=calendar, use_cftime=calendar != "standard")
    ds = xr.Dataset({"x": (("member", "time"), np.zeros((3, 1200)))}, {"time": times}).td.set_batch_dims(
        "member", "time"
    )
    ds = ds if name == "time" else ds.rename_vars(time="when")
    with pytest.raises(ValueError, match=f"by: there is no variable {field!r}; there are: ") as raised:
        ds.td.split({"a": 0.5, "b": 0.5}, by=field)
    line = f"ds = ds.assign_coords({field}=ds[{name!r}].dt.{field})"
    assert str(raised.value).endswith(f". Add it: {line}")
    with pytest.raises(ValueError, match=re.escape(line)):
        ds.td.batches(2, window={"time": 2}, within=field)
    exec(line, found := {"ds": ds})
    parts = found["ds"].td.split({"a": 0.5, "b": 0.5}, by=field)
    assert not {*parts["a"][field].values} & {*parts["b"][field].values}


def test_without_times_nothing_is_made_of_them():
    for ds in (numbered(6), numbered(6).assign_coords(lat=("f", np.zeros(1, "M8[ns]")))):
        with pytest.raises(ValueError, match="there is no variable 'year'") as raised:
            ds.td.split({"a": 0.5, "b": 0.5}, by="year")
        assert "Add it" not in str(raised.value)
