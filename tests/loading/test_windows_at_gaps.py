"""``gaps=``: windows stop where rows are missing, as they stop where an episode ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from written import reopened_as

HOURS = np.array([0, 1, 2, 3, 7, 8, 9, 10, 11, 15])
"""Hours 4 to 6 and 12 to 14 are missing."""
RUNS = [[0, 1, 2, 3], [4, 5, 6, 7, 8], [9]]
"""The rows that follow each other."""


def windows_in(runs: list[list[int]], width: int, stride: int = 1) -> list[list[int]]:
    return [run[start : start + width] for run in runs for start in range(0, len(run) - width + 1, stride)]


def series(clock: Any = HOURS, **more: Any) -> xr.Dataset:
    rows = len(clock)
    return xr.Dataset(
        {"n": ("time", np.arange(rows)), "x": (("time", "f"), np.ones((rows, 3), "f4")), **more}
    ).assign_coords(clock=("time", clock))


def found(batches: Any) -> list[list[int]]:
    return [row for batch in batches for row in batch["n"].tolist()]


START = np.datetime64("2024-03-01T00", "ns")
CLOCKS: dict[str, Any] = {
    "rows": HOURS,
    "unsigned": HOURS.astype("u1"),
    "seconds": HOURS * 3600.0,
    "seconds in float32": (HOURS * 0.1 + 1000).astype("f4"),
    "times": START + HOURS.astype("m8[h]"),
    "times in seconds": (START + HOURS.astype("m8[h]")).astype("M8[s]"),
    "durations": HOURS.astype("m8[h]").astype("m8[ns]"),
    "uneven": START + (HOURS * 3600 * 10**9 + np.array([0, 3, 1, -9, 4, 7, 2, 0, 5, 1]) * 10**11).astype("m8[ns]"),
    "another calendar": xr.date_range("2024-02-27", periods=16, freq="D", calendar="noleap", use_cftime=True)[HOURS],
    "months": pd.date_range("2023-11-01", periods=16, freq="MS").values[HOURS],
}


@pytest.mark.parametrize("clock", CLOCKS.values(), ids=CLOCKS)
def test_no_window_goes_on_where_rows_are_missing(clock: Any) -> None:
    for width in (1, 3, 5):
        batches = series(clock).td.batches(2, window={"time": width}, gaps="clock", exclude=["clock"])
        assert found(batches) == windows_in(RUNS, width)


@pytest.mark.filterwarnings("ignore:.*Zarr format 3.*", "ignore:.*does not have a Zarr V3 specification.*")
@pytest.mark.parametrize("form", ["memory", "zarr2", "zarr3", "h5", "memmap"])
def test_of_every_format_in_order_and_shuffled_on_every_rank(tmp_path: Path, form: str) -> None:
    ds = reopened_as(form, series(CLOCKS["times"]), tmp_path, rows=3)
    wanted = windows_in(RUNS, 3)
    for shuffle in (False, True, "full"):
        options: dict[str, Any] = {"window": {"time": 3}, "gaps": "clock", "shuffle": shuffle, "seed": 3}
        alone = found(ds.td.batches(2, **options))
        assert (sorted(alone) if shuffle else alone) == wanted
        ranks = [found(ds.td.batches(2, **options, rank=rank, world_size=2)) for rank in range(2)]
        assert [len(rank) for rank in ranks] == [2, 2]
        assert len({tuple(window) for window in [*ranks[0], *ranks[1]] if window in wanted}) == 4


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_in_datasets_of_torch(tmp_path: Path) -> None:
    ds = reopened_as("zarr3", series(CLOCKS["times"]), tmp_path, rows=3)
    wanted = windows_in(RUNS, 3)
    rows = ds.td.to_torch_dataset(window={"time": 3}, gaps="clock")
    assert [rows[number]["n"].tolist() for number in range(len(rows))] == wanted
    batches = ds.td.to_torch_dataset(2, window={"time": 3}, gaps="clock")
    loader = DataLoader(batches, batch_size=None, num_workers=2, collate_fn=batches.collate)
    assert sorted(found(loader)) == wanted


def test_the_largest_step_can_be_given() -> None:
    ds = series()
    assert found(ds.td.batches(9, window={"time": 2}, gaps={"clock": 4})) == windows_in([list(range(10))], 2)
    assert found(ds.td.batches(9, window={"time": 2}, gaps={"clock": 3.5})) == windows_in(RUNS, 2)
    ds = series(CLOCKS["times"])
    for most in ("4h", np.timedelta64(4, "h"), pd.Timedelta("4h").to_pytimedelta()):
        assert len(ds.td.batches(1, window={"time": 2}, gaps={"clock": most})) == 9
    assert found(ds.td.batches(9, window={"time": 2}, gaps={"clock": "239min"})) == windows_in(RUNS, 2)


def test_a_value_that_does_not_rise_or_is_missing_is_no_next_row() -> None:
    ds = series(np.array([0.0, 1, 1, 2, 3, np.nan, 5, 6, 4, 5, np.inf]))
    assert found(ds.td.batches(9, window={"time": 2}, gaps="clock")) == [[0, 1], [2, 3], [3, 4], [6, 7], [8, 9]]
    times = CLOCKS["times"].copy()
    times[6] = np.datetime64("NaT", "ns")
    assert found(series(times).td.batches(9, window={"time": 2}, gaps="clock")) == [
        *([0, 1], [1, 2], [2, 3]),
        *([4, 5], [7, 8]),
    ]


def test_gaps_and_episodes_are_both_borders_and_stride_starts_anew_behind_each() -> None:
    ds = series(episode=("time", [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]))
    runs = [[0, 1, 2], [3], [4, 5, 6], [7, 8], [9]]
    batches = ds.td.batches(9, window={"time": 2}, stride=2, within="episode", gaps="clock")
    assert found(batches) == windows_in(runs, 2, 2) == [[0, 1], [4, 5], [7, 8]]
    assert "2 of 5 episodes are shorter and skipped" in repr(batches)


def test_rows_that_were_picked_from_joined_episodes_are_no_neighbours() -> None:
    """Rows 3 and 7 of an episode stand one behind the other once the rows between them are gone."""
    demos = {f"/demo_{n}": xr.Dataset({"n": ("time", np.arange(8) + 10 * n)}) for n in range(2)}
    ds = xr.DataTree.from_dict(demos).td.concat("time")
    picked = ds.isel(time=np.flatnonzero(~ds["step"].isin([4, 5, 6]).values))
    across = found(picked.td.batches(99, window={"time": 2}, within="episode"))
    assert [3, 7] in across
    apart = found(picked.td.batches(99, window={"time": 2}, within="episode", gaps="step"))
    assert apart == [[0, 1], [1, 2], [2, 3], [10, 11], [11, 12], [12, 13]]
    # the step starts anew in each episode, so that it says enough by itself
    assert found(picked.td.batches(99, window={"time": 2}, gaps="step")) == apart


def test_a_clock_of_all_tables_and_one_of_each() -> None:
    """A table of ``[env, time]``: windows run for each env, whose clocks may differ."""
    n = np.arange(20).reshape(2, 10)
    ds = xr.Dataset({"n": (("env", "time"), n)}, coords={"clock": ("time", HOURS)}).td.set_batch_dims(["env", "time"])
    both = [[10 * env + row for row in run] for env in range(2) for run in RUNS]
    assert found(ds.td.batches(9, window={"time": 3}, gaps="clock")) == windows_in(both, 3)
    ds["own"] = ("env", "time"), np.stack([HOURS, np.arange(10) * 2])
    own = [*RUNS[:1], *RUNS[1:], list(range(10, 20))]
    with pytest.raises(ValueError, match="no window of 11"):
        ds.td.batches(9, window={"time": 11}, gaps="own")
    steps = found(ds.td.batches(9, window={"time": 3}, gaps={"own": 2}))
    assert steps == windows_in(own, 3)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 40), unique=True, min_size=1).map(sorted),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from([False, True, "full"]),
    st.sampled_from([None, 1, 4]),
)
def test_windows_are_the_runs_of_rows_that_follow_each_other(
    hours: list[int], width: int, stride: int, shuffle: Any, chunk: int | None
) -> None:
    runs: list[list[int]] = []
    for row, hour in enumerate(hours):
        if not row or hour != hours[row - 1] + 1:
            runs.append([])
        runs[-1].append(row)
    ds = series(np.array(hours))
    ds = ds if chunk is None else ds.chunk({"time": chunk})
    options: dict[str, Any] = {"window": {"time": width}, "stride": stride, "gaps": {"clock": 1}}
    wanted = windows_in(runs, width, stride)
    if not wanted:
        with pytest.raises(ValueError, match=f"no window of {width} .* without a gap"):
            ds.td.batches(3, **options)
        return
    got = found(ds.td.batches(3, **options, shuffle=shuffle, seed=0))
    assert sorted(got) == wanted
    assert shuffle or got == wanted


@pytest.mark.parametrize(
    ("gaps", "error", "match"),
    [
        ("nothing", ValueError, "gaps: there is no variable 'nothing'"),
        ("word", TypeError, "gaps: 'word' has dtype object; expected numbers or times"),
        ("flag", TypeError, "gaps: 'flag' has dtype bool"),
        ("x", ValueError, r"gaps: expected one value of 'x' for each row along 'time'"),
        (["clock"], ValueError, "gaps: expected the name of a variable, or one with its largest step"),
        ({"clock": 1, "n": 1}, ValueError, "gaps: expected the name of a variable"),
        ({"clock": "1h"}, TypeError, "'clock' has dtype int64; expected a number as its largest step, got '1h'"),
        ({"clock": 0}, ValueError, "the largest step of 'clock' must be more than nothing, got 0"),
        ({"when": 3600}, TypeError, "expected a duration such as '1h' as its largest step, got 3600"),
        ({"when": "-1h"}, ValueError, "must be more than nothing"),
    ],
)
def test_what_does_not_say_where_rows_are_missing_is_refused(gaps: Any, error: Any, match: str) -> None:
    ds = series(
        word=("time", np.array(list("abcdefghij"), object)), flag=("time", HOURS > 3), when=("time", CLOCKS["times"])
    )
    with pytest.raises(error, match=match):
        ds.td.batches(2, window={"time": 2}, gaps=gaps)


@pytest.mark.filterwarnings("ignore:.*has no rows")
def test_a_table_without_rows_has_no_windows() -> None:
    assert len(series().isel(time=slice(0)).td.batches(2, window={"time": 2}, gaps="clock")) == 0
