"""Tables of ``[time, env]`` as rows of episodes: the steps of each env one behind the other, and no episode across two envs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from written import reopened_as

TIMES, ENVS = 20, 3
REWARD = np.arange(TIMES * ENVS).reshape(TIMES, ENVS)
LENGTHS = {0: (10, 10), 1: (7, 13), 2: (20,)}
"""How long the episodes of each env are."""
STEPS = [step for lengths in LENGTHS.values() for length in lengths for step in range(length)]


def per_env(lengths: dict[int, tuple[int, ...]], make: Any) -> np.ndarray:
    return np.stack([np.concatenate([make(n) for n in found]) for found in lengths.values()], axis=1)


def last_row(length: int) -> np.ndarray:
    return np.arange(length) == length - 1


NUMBERS = np.stack([np.repeat(np.arange(len(found)), found) for found in LENGTHS.values()], axis=1)
"""Each env counts its own episodes from 0."""


def grid(order: tuple[str, str] = ("time", "env"), **columns: Any) -> xr.Dataset:
    ds = xr.Dataset(
        {
            "reward": (("time", "env"), REWARD),
            "obs": (("time", "env", "f"), np.repeat(REWARD[..., None], 2, -1).astype("f4")),
            "clock": ("time", np.arange(TIMES) * 0.5),
            "task": ("env", np.array(["a", "b", "c"], object)),
            "mean": ("f", [1.0, 2.0]),
            **columns,
        },
        coords={"env": [7, 8, 9]},
    )
    return ds.transpose(*order, ...).td.set_batch_dims(list(order))


def flagged() -> np.ndarray:
    flags = per_env(LENGTHS, last_row)
    flags[-1] = [True, False, False]  # the last episodes of two envs were cut short
    return flags[..., None]


@pytest.mark.filterwarnings("ignore:.*Zarr format 3.*", "ignore:.*does not have a Zarr V3 specification.*")
@pytest.mark.parametrize("form", ["memory", "zarr2", "zarr3", "h5", "memmap"])
@pytest.mark.parametrize("order", [("time", "env"), ("env", "time")])
def test_the_steps_of_each_env_are_joined_along_the_dim_that_is_asked_for(
    tmp_path: Path, form: str, order: tuple[str, str]
) -> None:
    table = grid(order, **{"next/done": (("time", "env", "one"), flagged())})
    ds = reopened_as(form, table, tmp_path, rows=6).td.concat("row")
    assert (ds.td.batch_dims, ds.td.batch_size) == (("row",), (60,))
    assert ds["reward"].values.tolist() == REWARD.T.ravel().tolist()
    assert ds["obs"].dims == ("row", "dim_2" if form == "memmap" else "f")
    assert ds["obs"].values[:, 1].tolist() == REWARD.T.ravel().tolist()
    assert ds["episode"].values.tolist() == [0] * 10 + [1] * 10 + [2] * 7 + [3] * 13 + [4] * 20
    assert ds["step"].values.tolist() == STEPS
    assert ds["env"].values.tolist() == [7] * 20 + [8] * 20 + [9] * 20
    assert ds["task"].values.tolist() == ["a"] * 20 + ["b"] * 20 + ["c"] * 20
    assert ds["clock"].values.tolist() == [step * 0.5 for step in range(20)] * 3
    assert ds["mean"].values.tolist() == [1.0, 2.0]
    windows = [
        window["reward"].tolist()
        for batch in ds.td.batches(4, window={"row": 5}, within="episode", shuffle=True, seed=0)
        for window in batch
    ]
    assert len(windows) == 6 + 6 + 3 + 9 + 16
    assert all(np.diff(window).tolist() == [ENVS] * 4 for window in windows)


def test_a_lazy_table_stays_lazy_and_is_read_in_its_chunks(tmp_path: Path) -> None:
    ds = reopened_as("zarr3", grid(**{"next/done": (("time", "env"), flagged()[..., 0])}), tmp_path, rows=6).td.concat(
        "row"
    )
    assert ds["obs"].chunks is not None
    assert not ds["reward"].variable._in_memory


@pytest.mark.parametrize("by", [None, "traj"])
def test_numbers_that_each_env_counts_for_itself_are_counted_through(by: str | None) -> None:
    ds = grid(**{by or "episode_index": (("time", "env"), NUMBERS)}).td.concat("row", by=by)
    assert ds["episode"].values.tolist() == [0] * 10 + [1] * 10 + [2] * 7 + [3] * 13 + [4] * 20
    assert ds["step"].values.tolist() == STEPS


def test_numbers_that_are_unique_are_kept_and_torchrls_stay_an_entry() -> None:
    ids = NUMBERS + np.array([0, 100, 200])
    ds = grid(**{"collector/traj_ids": (("time", "env"), ids)}).td.concat("row")
    assert ds["episode"].values.tolist() == ids.T.ravel().tolist()
    assert ds["collector/traj_ids"].values.tolist() == ids.T.ravel().tolist()


def test_an_episode_that_comes_back_within_an_env_is_refused() -> None:
    back = NUMBERS.copy()
    back[-1, 1] = 0
    with pytest.raises(ValueError, match="episode 0 of 'episode_index' comes back in row 39"):
        grid(episode_index=(("time", "env"), back)).td.concat("row")


@pytest.mark.parametrize("dim", ["time", "env", "obs", "f"])
def test_a_name_that_is_taken_is_refused_and_the_advice_joins_the_same_rows(dim: str) -> None:
    flags = flagged()[..., 0]
    flags[-1] = True
    table = grid(**{"next/done": (("time", "env"), flags)}).drop_vars("env")
    with pytest.raises(ValueError, match=rf"'{dim}' is in the table already. Choose another") as caught:
        table.td.concat(dim)
    by_hand = eval(str(caught.value).rpartition(": ")[2], {"ds": table})
    steps, other = ("env", "time") if dim == "env" else ("time", "env")
    flat = table["reward"].transpose(other, steps).values.ravel().tolist()
    assert by_hand["reward"].values.tolist() == flat
    if dim != "env":
        assert "ds.td.concat('row')" in str(caught.value)
        assert by_hand["episode"].values.tolist() == table.td.concat("row")["episode"].values.tolist()


def test_flags_along_three_batch_dims_are_refused_and_one_can_be_selected() -> None:
    done = np.ones((2, 3, 4), bool)
    ds = xr.Dataset({"x": (("env", "time", "agent"), np.zeros((2, 3, 4))), "dones": (("env", "time", "agent"), done)})
    ds = ds.td.set_batch_dims(["env", "time", "agent"])
    with pytest.raises(ValueError, match=r"two batch dims at most; select first, isel\(env=0\)"):
        ds.td.concat("row")
    assert ds.isel(env=0).td.concat("row").sizes["row"] == 12


@pytest.mark.parametrize("column", [{"episode": ("time", [0, 0, 1, 1])}, {"episode_ends": ("n", [2, 4])}])
def test_what_has_one_value_for_each_step_cuts_along_the_steps(column: dict[str, Any]) -> None:
    """As many envs as steps: the sizes do not say which of them the episodes run along."""
    ds = xr.Dataset({"x": (("env", "time"), np.arange(16).reshape(4, 4)), **column}).td.set_batch_dims(["env", "time"])
    joined = ds.td.concat("time")
    assert joined["episode"].dims == ("time",)
    assert joined["step"].values.tolist() == [0, 1, 0, 1]
    assert joined.td.batch_dims == ("time", "env")
    assert joined.td.to_tensordict()["x"][1].tolist() == [1, 5, 9, 13]


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 5).flatmap(lambda rows: st.lists(st.lists(st.booleans(), min_size=rows, max_size=rows), min_size=1)),
    st.booleans(),
    st.booleans(),
)
def test_each_row_is_in_the_episode_of_its_env(flags: list[list[bool]], times_first: bool, as_numbers: bool) -> None:
    flags = flags[:6]
    done = np.array(flags)
    order = ("time", "env") if times_first else ("env", "time")
    rows = np.arange(done.size).reshape(done.shape)
    numbers = np.cumsum(done, axis=1) - done
    column = {"episode_index": numbers} if as_numbers else {"dones": done}
    ds = xr.Dataset({name: (("env", "time"), values) for name, values in {"n": rows, **column}.items()})
    joined = ds.transpose(*order).td.set_batch_dims(list(order)).td.concat("row")
    found: dict[int, list[int]] = {}
    for episode, row in zip(joined["episode"].values.tolist(), joined["n"].values.tolist(), strict=True):
        found.setdefault(episode, []).append(row)
    expected = []
    for env, ends in enumerate(flags):
        for step, starts_anew in enumerate([True, *ends[:-1]]):
            if starts_anew:
                expected.append([])
            expected[-1].append(int(rows[env, step]))
    assert [found[episode] for episode in sorted(found)] == expected
