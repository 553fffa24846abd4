"""Windows of ``ds.td.batches``: along which dim, within which episodes, and what is read for them."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from loading_samples import numbered
from persistent_samples import grid_ds, grid_of
from xarray_tensordict.testing import assert_same_tensordict


@pytest.mark.filterwarnings("ignore:.*has no rows")
@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(2, 4), max_size=30),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from([False, True, "full"]),
    st.booleans(),
)
def test_windows_are_those_cut_by_hand(episodes, width, stride, size, bounded, shuffle, chunked):
    rows = len(episodes)
    ds = numbered(rows, episode=np.array(episodes, int))
    td = ds.td.to_tensordict()
    starts = [
        start
        for start in range(rows - width + 1)
        if not bounded or len({*itertools.accumulate(np.diff(episodes[start : start + width]) != 0)} | {0}) == 1
    ]
    begins = [0, *(np.flatnonzero(np.diff(episodes)) + 1).tolist()] if bounded else [0]
    starts = [start for start in starts if (start - max(b for b in begins if b <= start)) % stride == 0]
    ds = ds.chunk({"time": 4}) if chunked else ds
    options = {"window": {"time": width}, "stride": stride, **({"within": "episode"} if bounded else {"gaps": False})}
    if rows and not starts:
        with pytest.raises(ValueError, match=f"no window of {width} along 'time' fits"):
            ds.td.batches(size, **options)
        return
    batches = ds.td.batches(size, **options, shuffle=shuffle, seed=0, buffer_size=7, prefetch=0)
    found = list(batches)
    assert len(found) == len(batches) == -(-len(starts) // size)
    if found:
        together = torch.cat(found)
        order = together["n"][:, 0].argsort() if shuffle else torch.arange(len(starts))
        expected = torch.stack([td[start : start + width] for start in starts])
        assert {tuple(batch.names) for batch in found} == {(None, "time")}
        assert torch.equal(together["n"][order], expected["n"])
        assert torch.equal(together["x"][order], expected["x"])
        assert torch.equal(together["episode"][order], expected["episode"])


def buffers_of(envs, rows):
    """A table of ``[env, time]`` with partial entries, text and what has no batch dim."""
    n = np.arange(envs * rows).reshape(envs, rows)
    return xr.Dataset(
        {
            "n": (("env", "time"), n),
            "x": (("env", "time", "f"), np.repeat(n[..., None], 2, -1).astype("f4")),
            "task": (("env",), np.array([f"task {env}" for env in range(envs)], object)),
            "text": (("env", "time"), np.array([[f"{e}.{t}" for t in range(rows)] for e in range(envs)], object)),
            "clock": (("time", "f"), np.arange(2 * rows).reshape(rows, 2)),
            "mask": (("f",), np.ones(2)),
        },
        coords={"episode": (("env", "time"), n % rows // 3 + np.arange(envs)[:, None])},
    ).td.set_batch_dims(["env", "time"])


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 8),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 7),
    st.sampled_from([False, True, "full"]),
    st.sampled_from([None, {"env": 1, "time": 3}, {"env": 2, "time": 2}]),
)
def test_windows_along_a_later_dim_run_for_each_index_of_those_in_front(
    envs, rows, width, stride, size, shuffle, chunks
):
    ds = buffers_of(envs, rows)
    td = ds.td.to_tensordict()
    wanted = [
        td[env, start : start + width]
        for env in range(envs)
        for begin in range(0, rows, 3)
        for start in range(begin, min(begin + 3, rows) - width + 1, stride)
    ]
    options = {"window": {"time": width}, "stride": stride, "within": "episode"}
    options |= {"shuffle": shuffle, "seed": 0, "prefetch": 0}
    if not wanted:
        with pytest.raises(ValueError, match=f"no window of {width} along 'time' fits"):
            ds.td.batches(size, **options)
        return
    found = list((ds if chunks is None else ds.chunk(chunks)).td.batches(size, **options))
    assert sum(batch.batch_size[0] for batch in found) == len(wanted)
    samples = [sample for batch in found for sample in batch.unbind(0)]
    for batch in found:
        assert batch.names == [None, "time"]
        assert batch.get("task").batch_size == batch.batch_size
    for sample, expected in zip(sorted(samples, key=lambda sample: int(sample["n"][0])), wanted, strict=True):
        assert_same_tensordict(expected, sample)


def test_other_batch_dims_behind_the_window_stay():
    ds = grid_of(grid_ds())
    td = ds.td.to_tensordict()
    (batch,) = ds.td.batches(10, window={"time": 2})
    assert batch.batch_size == (3, 2, 3)
    assert batch.names == [None, "time", "member"]
    for start in range(3):
        assert_same_tensordict(td[start : start + 2], batch[start])


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_target_is_the_end_of_a_longer_window_so_it_is_in_the_episode_and_behind_no_gap(shuffle, chunked):
    """Three rows of input, one that nobody sees, and two of target: the recipe of the docs."""
    hours = np.delete(np.arange(32), [13, 14, 25])
    runs = [range(10), range(10, 13), range(13, 23), range(23, 29)]  # two episodes, the second with two gaps
    ds = numbered(len(hours), width=2, hour=hours, episode=np.repeat([0, 1], [10, 19])).assign(
        text=("time", np.array([f"row {row}" for row in range(len(hours))], object)), known=("f", [True, False])
    )
    wanted = [[*range(at, at + 6)] for run in runs for at in run[: max(len(run) - 5, 0)]]
    batches = (ds.chunk(time=5) if chunked else ds).td.batches(
        4, window={"time": 3 + 1 + 2}, within="episode", gaps="hour", shuffle=shuffle, seed=0, unbatched="keep"
    )
    found = []
    for batch in batches:
        past, _, future = batch.split([3, 1, 2], dim=1)
        assert (past.names, past.batch_size[1], future.batch_size[1]) == ([None, "time"], 3, 2)
        assert past["x"].untyped_storage().data_ptr() == batch["x"].untyped_storage().data_ptr()  # not copied
        assert past["known"].tolist() == future["known"].tolist() == [True, False]
        target = future.select("n", "text")
        assert [*target.keys()] == ["n", "text"]
        for inputs, outputs in zip(past.unbind(0), target.unbind(0), strict=True):
            found.append(inputs["n"].tolist() + outputs["n"].tolist())
            assert list(outputs["text"]) == [f"row {row}" for row in found[-1][3:]]
    assert sorted(found) == [window[:3] + window[4:] for window in wanted]
    assert len(found) == 5 + 5 + 1


def test_windows_read_the_rows_they_need_and_each_once(counted):
    ds, chunks = counted
    ds = ds.assign_coords(episode=("time", np.arange(100) // 20))
    batches = ds.td.batches(4, window={"time": 4}, stride=20, within="episode", prefetch=0)
    chunks.clear()
    assert [batch["n"][:, 0].tolist() for batch in batches] == [[0, 20, 40, 60], [80]]
    assert sorted(chunks) == sorted(f"n/c/{chunk}" for chunk in (0, 4, 8, 12, 16))
    batches = ds.td.batches(17, window={"time": 4}, within="episode", prefetch=0, shuffle="full", seed=0)
    assert sum(len(batch) for batch in batches) == 85
    chunks.clear()
    (batch,) = ds.td.batches(100, window={"time": 4}, within="episode", shuffle="full", seed=0)
    assert batch.batch_size == (85, 4)
    assert sorted(chunks) == sorted(f"n/c/{chunk}" for chunk in range(20))


def test_episodes_shorter_than_a_window_are_skipped_and_counted():
    ds = numbered(10, episode=[0, 0, 0, 0, 1, 1, 2, 2, 2, 2])
    batches = ds.td.batches(2, window={"time": 3}, within="episode")
    assert [batch["n"][:, 0].tolist() for batch in batches] == [[0, 1], [6, 7]]
    assert "4 windows of 3 rows along 'time'; 1 of 3 episodes are shorter and skipped" in repr(batches)


def test_within_may_be_text_or_a_lazy_variable(tmp_path):
    numbered(6, episode=["a", "a", "b", "b", "a", "a"]).td.to_zarr(tmp_path / "n.zarr", chunks={"time": 2})
    for chunks in (None, {}):
        with xr.open_dataset(tmp_path / "n.zarr", engine="tensordict", chunks=chunks) as ds:
            batches = ds.td.batches(9, window={"time": 2}, within="episode")
            assert [batch["n"].tolist() for batch in batches] == [[[0, 1], [2, 3], [4, 5]]]


@pytest.mark.filterwarnings("ignore:.*has no rows")
@pytest.mark.parametrize("method", ["batches", "to_torch_dataset"])
def test_a_window_longer_than_every_episode_is_refused_with_the_longest_one(method):
    ds = numbered(10, episode=[0, 0, 0, 0, 1, 1, 2, 2, 2, 2])
    make = getattr(ds.td, method)
    with pytest.raises(
        ValueError, match=r"no window of 5 along 'time' fits: the longest episode of 'episode' has 4 rows"
    ):
        make(2, window={"time": 5}, within="episode")
    with pytest.raises(ValueError, match=r"no window of 11 along 'time' fits: 'time' has 10 rows"):
        make(2, window={"time": 11})
    assert len(ds.isel(time=slice(0)).td.batches(2, window={"time": 5}, within="episode")) == 0


def test_within_may_have_dims_of_size_one_behind_the_rows():
    ds = numbered(6)
    ds["traj"] = ("time", "one"), np.array([[0], [0], [0], [1], [1], [1]])
    (batch,) = ds.td.batches(9, window={"time": 2}, within="traj")
    assert batch["n"].tolist() == [[0, 1], [1, 2], [3, 4], [4, 5]]
    ds["done"] = ("time", "one"), np.array([[False]] * 6)
    with pytest.raises(ValueError, match=r"ds = ds.td.concat\('time', by='done'\)"):
        ds.td.batches(9, window={"time": 2}, within="done")


@pytest.mark.parametrize(
    "labels",
    [
        pd.array(["a"] * 4 + [None] * 8, dtype="string"),
        np.array(["a"] * 4 + [None] * 4 + [np.nan] * 4, dtype=object),
        pd.array([1] * 4 + [None] * 8, dtype="Int64"),
    ],
    ids=["strings", "objects", "integers"],
)
@pytest.mark.filterwarnings(
    "ignore:left out of the tensordict 'episode'"
)  # as an entry: missing integers are no tensor
def test_missing_labels_are_one_episode(labels):
    ds = xr.Dataset({"x": ("t", np.arange(12)), "episode": ("t", labels)})
    found = [
        row["x"].tolist() for batch in ds.td.batches(1, window={"t": 4}, stride=4, within="episode") for row in batch
    ]
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_labels_that_cannot_be_compared_are_refused_by_name():
    labels = np.empty(4, object)
    labels[:] = [np.zeros(2)] * 4
    ds = xr.Dataset({"x": ("t", np.arange(4)), "episode": ("t", labels)})
    with pytest.raises(TypeError, match="within: 'episode' holds objects such as array"):
        ds.td.batches(1, window={"t": 2}, within="episode")
