"""``ds.td.batches``: what the batches hold, in which order they come, what is read for them, and what is left behind."""

import gc
import itertools
import re
import threading
import time
import warnings
import weakref

import dask
import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from zarr.storage import LocalStore

import strategies
from loading_samples import numbered, rows_of
from persistent_samples import CountingStore, as_chunked_zarr, as_hdf5, as_zarr, flat_td, grid_ds, grid_of
from xarray_tensordict.loading import order
from xarray_tensordict.testing import assert_same_tensordict


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def our_threads():
    return [thread for thread in threading.enumerate() if "read ahead" in thread.name]


def wait_for_no_threads():
    for _ in range(100):
        if not our_threads():
            return
        time.sleep(0.02)
    raise AssertionError(f"still running: {our_threads()}")


# --- what the batches hold -------------------------------------------------------------------------------------------


def assert_batches_of(ds, td, size, **options):
    """Unshuffled batches are the parts of the whole, one after the other."""
    batches = ds.td.batches(size, **options)
    found = list(batches)
    assert len(found) == len(batches) == -(-td.batch_size[0] // size)
    for number, batch in enumerate(found):
        assert_same_tensordict(td[number * size : (number + 1) * size], batch)


@settings(max_examples=25, deadline=None)
@given(strategies.datasets(), st.integers(1, 5), st.sampled_from(["drop", "keep", "expand"]), st.booleans())
def test_unshuffled_batches_are_the_parts_of_to_tensordict(ds, size, unbatched, chunked):
    if not ds.td.batch_dims:
        with pytest.raises(ValueError, match="no batch dim"):
            ds.td.batches(size)
        return
    td = ds.td.to_tensordict(unbatched=unbatched)
    assert_batches_of(ds.chunk() if chunked else ds, td, size, unbatched=unbatched, prefetch=0)


@pytest.mark.parametrize("write", [as_zarr, as_chunked_zarr, as_hdf5, lambda td, path: td.memmap(path)])
@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
def test_batches_come_straight_from_a_store(write, chunks, tmp_path):
    td = flat_td()
    path = tmp_path / ("flat.h5" if write is as_hdf5 else "flat")
    written = write(td, path)
    del written
    gc.collect()
    with xr.open_dataset(path, engine="tensordict", chunks=chunks) as ds:
        for size, prefetch in ((1, 2), (4, 0), (6, 2), (7, 2)):
            assert_batches_of(ds, ds.td.to_tensordict(), size, prefetch=prefetch)


@pytest.mark.parametrize("kind", ["zarr", "h5", "memmap"])
def test_rows_of_raw_layouts_are_the_same_in_any_order(kind, tmp_path):
    # rows of more and of less than a page, which are read in ways of their own
    td = TensorDict(
        {
            "x": torch.rand(60, 1100),
            "b": torch.rand(60, 3).bfloat16(),
            "n": torch.arange(60),
            "p": {"y": torch.rand(60)},
        },
        [60],
        names=["time"],
    )
    path = tmp_path / kind
    if kind == "h5":
        td.exclude("b").to_h5(path).close()
    elif kind == "zarr":
        td.exclude("b").to_zarr(path)
    else:
        td.memmap(path)
    with xr.open_dataset(path, engine="tensordict", batch_dims="time") as ds:
        whole = ds.td.to_tensordict()
        for shuffle, window in ((True, None), ("full", None), (True, {"time": 5}), ("full", {"time": 5})):
            for batch in ds.td.batches(7, shuffle=shuffle, seed=0, window=window, buffer_size=30):
                assert_same_tensordict(whole[batch["n"]].rename_(*batch.names), batch)


def test_packed_values_and_times_are_decoded_and_computed_lazily(tmp_path):
    ds = numbered(10).assign(t=("time", np.arange(10).astype("M8[D]").astype("M8[ns]")))
    ds["x"].encoding = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}
    ds.to_zarr(tmp_path / "packed.zarr", encoding={"x": {"chunks": (3, 1)}}, consolidated=False)
    with xr.open_dataset(tmp_path / "packed.zarr", engine="tensordict", chunks={}) as opened:
        scaled = opened.assign(x=(opened["x"] - 1) * 2, double=opened["n"] * 2)
        assert_batches_of(scaled, scaled.td.to_tensordict(), 4)
        assert scaled.td.to_tensordict()["x"].flatten().tolist() == [2 * (n - 1) for n in range(10)]


@pytest.mark.parametrize("chunk", [10**15, 1000])
def test_more_rows_than_an_order_can_be_made_of_are_refused_at_once(tmp_path, chunk):
    root = zarr.open_group(tmp_path / "s.zarr", mode="w")
    root.create_array("x", shape=(10**15,), chunks=(chunk,), dtype="i1", dimension_names=["time"])
    ds, window = xr.open_dataset(tmp_path / "s.zarr", engine="tensordict"), {"window": {"time": 8}}
    for options in ({}, {"shuffle": True}, {"shuffle": "full"}, window, {**window, "gaps": "x"}):
        for make in (ds.td.batches, ds.td.to_torch_dataset):
            with pytest.raises(
                ValueError, match=r"s\.zarr: there are 1000000000000000 rows along \['time'\], and batches"
            ):
                make(4, **options)


@pytest.mark.parametrize("shuffle", [False, True])
def test_more_chunks_than_any_store_has_take_no_memory_for_their_borders(tmp_path, shuffle, monkeypatch):
    monkeypatch.setattr("xarray_tensordict.loading.kept._MOST_CHUNKS", 9)
    root = zarr.open_group(tmp_path / "s.zarr", mode="w")
    root.create_array("x", data=np.arange(20), chunks=(2,), dimension_names=["time"])
    ds = xr.open_dataset(tmp_path / "s.zarr", engine="tensordict")
    rows = torch.cat([batch["x"] for batch in ds.td.batches(3, shuffle=shuffle, seed=0)])
    assert sorted(rows.tolist()) == list(range(20))


def test_other_batch_dims_stay_and_partial_entries_are_broadcast():
    ds = grid_of(grid_ds())
    td = ds.td.to_tensordict()
    (first, _) = ds.td.batches(3)
    assert first.batch_size == (3, 3)
    assert first.names == ["time", "member"]
    assert_same_tensordict(td[:3], first)


def test_a_batch_is_the_callers_own():
    ds = grid_of(grid_ds())
    before = ds.copy(deep=True)
    for unbatched in ("keep", "drop"):
        td = ds.td.to_tensordict(unbatched=unbatched)
        batches = ds.td.batches(2, unbatched=unbatched)
        for _ in range(2):
            for number, batch in enumerate(batches):
                assert_same_tensordict(td[2 * number : 2 * number + 2], batch)
                for value in batch.values(include_nested=True, leaves_only=True):
                    if (
                        isinstance(value, torch.Tensor) and value.is_contiguous()
                    ):  # what is broadcast cannot be written to
                        value.zero_()
    xr.testing.assert_identical(ds, before)


def test_coords_and_names_may_be_left_out():
    ds = numbered(6, label=list("abcdef"))
    (batch,) = ds.td.batches(6, exclude=["x"])
    assert sorted(batch.keys()) == ["label", "n"]
    (batch,) = ds.td.batches(6, coords=False)
    assert sorted(batch.keys()) == ["n", "x"]
    (batch,) = ds.td.batches(1, batch_dims=["f", "time"])
    assert batch.batch_size == (1, 6)


def test_variables_that_no_tensordict_holds_are_left_out_with_one_warning():
    ds = numbered(4).assign(old=("time", np.array(["1500-01-01"] * 4, "M8[s]")))
    with pytest.warns(UserWarning, match="left out of the tensordict 'old'") as caught:
        found = list(ds.td.batches(2))
    assert len(caught) == 1
    assert sorted(found[0].keys()) == ["n", "x"]


def test_a_device_is_where_batches_are():
    ds = numbered(4)
    assert {batch.device for batch in ds.td.batches(2, device="meta")} == {torch.device("meta")}
    assert {batch["n"].device for batch in ds.td.batches(2, device="meta")} == {torch.device("meta")}
    assert {batch.device for batch in ds.td.batches(2, device="cpu")} == {torch.device("cpu")}


# --- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*has no rows")
@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 60),
    st.integers(1, 20),
    st.integers(1, 12),
    st.sampled_from([True, "full"]),
    st.integers(1, 50),
    st.integers(1, 4),
    st.integers(0, 2),
)
def test_a_shuffle_gives_each_row_once(rows, size, chunk, shuffle, buffer, world_size, epoch):
    ds = numbered(rows).chunk({"time": chunk})
    if 0 < rows < world_size:
        return
    options = {"shuffle": shuffle, "seed": 3, "epoch": epoch, "buffer_size": buffer}
    options |= {"world_size": world_size, "prefetch": 0}
    ranks = [rows_of(ds.td.batches(size, rank=rank, **options)) for rank in range(world_size)]
    assert len({len(rank) for rank in ranks}) == 1
    found = flat(flat(ranks))
    assert len(found) == len(set(found)) == rows - rows % world_size
    assert all(len(batch) == size for rank in ranks for batch in rank[:-1])
    dropped = [rows_of(ds.td.batches(size, rank=rank, drop_last=True, **options)) for rank in range(world_size)]
    assert all(full == rank[: len(full)] for full, rank in zip(dropped, ranks, strict=True))
    assert {len(batch) for rank in dropped for batch in rank} <= {size}


@pytest.mark.parametrize("shuffle", [True, "full"])
def test_each_epoch_has_an_order_of_its_own_and_can_be_run_again(shuffle):
    ds = numbered(50)
    batches = ds.td.batches(8, shuffle=shuffle, seed=1)
    first, second = rows_of(batches), rows_of(batches)
    assert first != second
    assert batches.epoch == 2
    batches.set_epoch(1)
    assert rows_of(batches) == second
    assert rows_of(ds.td.batches(8, shuffle=shuffle, seed=1, epoch=1)) == second
    assert rows_of(ds.td.batches(8, shuffle=shuffle, seed=2, epoch=1)) != second
    assert sorted(flat(first)) == list(range(50))


def test_without_a_seed_torch_chooses_one():
    ds = numbered(50)
    torch.manual_seed(0)
    found = ds.td.batches(8, shuffle=True)
    torch.manual_seed(0)
    again = ds.td.batches(8, shuffle=True)
    other = ds.td.batches(8, shuffle=True)
    assert found.seed == again.seed != other.seed
    assert rows_of(found) == rows_of(again) != rows_of(other)
    assert rows_of(ds.td.batches(8, shuffle=True, seed=found.seed)) == rows_of(
        ds.td.batches(8, shuffle=True, seed=found.seed, prefetch=0)
    )


@pytest.mark.parametrize("shuffle", [False, True, "full"])
def test_the_order_depends_neither_on_prefetch_nor_on_dask(shuffle, tmp_path):
    numbered(40, width=3).td.to_zarr(tmp_path / "n.zarr", chunks={"time": 5})
    found = []
    for chunks in (None, {}):
        with xr.open_dataset(tmp_path / "n.zarr", engine="tensordict", chunks=chunks) as ds:
            for prefetch in (0, 5):
                for scheduler in ("sync", "threads") if chunks is not None else ("sync",):
                    with dask.config.set(scheduler=scheduler):
                        options = {"shuffle": shuffle, "seed": 0, "buffer_size": 10, "prefetch": prefetch}
                        found.append(rows_of(ds.td.batches(6, **options)))
    assert all(rows == found[0] for rows in found)


def test_a_buffer_mixes_rows_of_several_chunks_and_keeps_to_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr("xarray_tensordict.loading.read_ahead.BLOCK_BYTES", 1)
    ds = numbered(100).chunk({"time": 5})
    found = np.array(rows_of(ds.td.batches(20, shuffle=True, seed=0, buffer_size=20)))
    chunks = [set(batch // 5) for batch in found]
    assert all(len(batch) == 4 for batch in chunks)  # four whole chunks
    assert not any((np.diff(batch) == 1).all() for batch in found)


# --- what is read ----------------------------------------------------------------------------------------------------


def test_each_chunk_is_read_once_in_an_epoch(counted):
    ds, chunks = counted
    for options in (
        {},
        {"shuffle": True, "seed": 0, "buffer_size": 20},
        {"shuffle": True, "seed": 0, "buffer_size": 7},
        {"shuffle": True, "seed": 0, "buffer_size": 1},
        {"shuffle": True, "seed": 0, "prefetch": 0},
    ):
        for keep in (0, 1 << 20):
            batches = ds.td.batches(8, keep=keep, **options)
            for epoch in range(2):
                chunks.clear()
                assert sorted(flat(rows_of(batches))) == list(range(100))
                expected = [] if keep and epoch else [f"n/c/{chunk}" for chunk in range(20)]
                assert sorted(chunks) == sorted(expected)


def test_each_chunk_of_dask_is_computed_once():
    computed = []

    lazy = dask.array.from_array(np.arange(100), chunks=10).map_blocks(
        lambda block, block_info: computed.append(block_info[0]["chunk-location"][0]) or block,
        dtype=int,
        meta=np.empty(0, int),
    )
    ds = xr.Dataset({"n": ("time", lazy)})
    computed.clear()
    assert sorted(flat(rows_of(ds.td.batches(8, shuffle=True, seed=0, buffer_size=20)))) == list(range(100))
    assert sorted(computed) == list(range(10))


@pytest.mark.parametrize(
    ("change", "repeats"),
    [
        (lambda x: x * 2 + 1, False),
        (lambda x: x - x.mean("time").compute(), False),
        (lambda x: x.rolling(time=3).mean(), False),
        (lambda x: x.isel(time=slice(None, None, -1)), False),
        (lambda x: x - x.mean("time"), True),
        (lambda x: x / x.std("time"), True),
        (lambda x: x.cumsum("time"), True),
    ],
)
def test_a_graph_that_each_batch_goes_through_anew_is_told(change, repeats, monkeypatch):
    monkeypatch.setattr("xarray_tensordict.loading.reader.READ_BYTES", 1)
    lazy = xr.Dataset({"x": (("time", "f"), np.ones((100, 2), "f4")), "n": ("time", np.arange(100))}).chunk(time=10)
    ds = lazy.assign(x=change(lazy["x"]))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ds.td.batches(10)
        ds.td.to_torch_dataset()
    assert [str(warning.message)[:57] for warning in told] == [
        "each read of a batch computes most of the dask graph of '"
    ] * (2 * repeats)
    assert all("graph of 'x', as" in str(warning.message) and warning.filename == __file__ for warning in told)


def test_a_part_of_the_rows_is_read_by_the_chunks_they_lie_in(counted):
    ds, chunks = counted
    part = ds.isel(time=slice(3, 33))
    chunks.clear()
    found = rows_of(part.td.batches(4, shuffle=True, seed=0, buffer_size=10))
    assert sorted(flat(found)) == list(range(3, 33))
    assert sorted(chunks) == sorted(f"n/c/{chunk}" for chunk in range(7))


def test_a_rank_reads_chunks_of_its_own(counted):
    ds, chunks = counted
    chunks.clear()
    for rank in range(2):
        list(ds.td.batches(10, shuffle=True, seed=0, rank=rank, world_size=2, buffer_size=20))
    assert sorted(chunks) == sorted(f"n/c/{chunk}" for chunk in range(20))


def test_only_the_chunks_that_hold_rows_of_a_full_shuffle_are_read(counted, monkeypatch):
    monkeypatch.setattr("xarray_tensordict.loading.batches.READ_BYTES", 1)
    ds, chunks = counted
    batches = ds.td.batches(3, shuffle="full", seed=0, prefetch=0, buffer_size=10, keep=0)
    chunks.clear()
    for batch in itertools.islice(batches, 5):
        assert sorted(chunks) == sorted({f"n/c/{row // 5}" for row in batch["n"].tolist()})
        chunks.clear()


def test_a_full_shuffle_reads_each_chunk_once_for_a_buffer_where_that_is_less_often(counted, monkeypatch):
    monkeypatch.setattr("xarray_tensordict.loading.batches.READ_BYTES", 1)
    ds, chunks = counted
    chunks.clear()
    assert sorted(flat(rows_of(ds.td.batches(3, shuffle="full", seed=0)))) == list(range(100))
    assert sorted(chunks) == sorted(f"n/c/{chunk}" for chunk in range(20))
    chunks.clear()
    assert sorted(flat(rows_of(ds.td.batches(3, shuffle="full", seed=0, buffer_size=50, keep=0)))) == list(range(100))
    assert 20 < len(chunks) <= 40


def test_nothing_is_read_before_the_first_batch(counted):
    ds, chunks = counted
    chunks.clear()
    batches = ds.td.batches(8, shuffle=True)
    assert len(batches) == 13
    assert "13 batches of [8]" in repr(batches)
    assert chunks == []


def test_entries_without_the_first_dim_are_read_once(tmp_path):
    ds = grid_of(grid_ds())
    ds.to_zarr(tmp_path / "g.zarr", zarr_format=3, consolidated=False)
    store = CountingStore(LocalStore(tmp_path / "g.zarr"))
    with xr.open_dataset(store, engine="tensordict") as opened:
        store.chunks.clear()
        list(opened.td.batches(1))
        assert sum(key.startswith("weight/") for key in store.chunks) == 1
        assert sum(key.startswith("who/") for key in store.chunks) == 1


# --- reading ahead ---------------------------------------------------------------------------------------------------


def slow(rows, pause=0.0, bad=None, seen=None):
    """A Dataset of dask chunks of one row; computing row `bad` fails."""

    def block(values, block_info):
        row = block_info[0]["chunk-location"][0]
        time.sleep(pause)
        if seen is not None:
            seen.append(row)
        if row == bad:
            raise RuntimeError("the disk is gone")
        return values

    lazy = dask.array.from_array(np.arange(rows), chunks=1).map_blocks(block, dtype=int, meta=np.empty(0, int))
    return xr.Dataset({"fine": ("time", np.arange(rows)), "n": ("time", lazy)})


@pytest.fixture
def one_by_one(monkeypatch):
    """Small reads: a batch at a time."""
    for name in ("batches.READ_BYTES", "batches.RAW_BYTES", "batches.HAND_BYTES"):
        monkeypatch.setattr(f"xarray_tensordict.loading.{name}", 1)
    for name in ("READ_BYTES", "WHOLE_BYTES", "BLOCK_BYTES"):
        monkeypatch.setattr(f"xarray_tensordict.loading.read_ahead.{name}", 1)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("shuffle", [False, "full"])
def test_an_error_of_reading_names_the_variable(prefetch, shuffle, one_by_one):
    batches = slow(20, bad=13).td.batches(4, prefetch=prefetch, shuffle=shuffle, seed=0)
    found = []
    with pytest.raises(RuntimeError, match="the disk is gone") as error:
        found.extend(batches)
    assert error.value.__notes__ == ["while reading the variable 'n'; exclude=['n'] leaves it out"]
    assert len(found) < 5
    wait_for_no_threads()


def test_an_error_of_a_store_names_the_variable(tmp_path):
    path = tmp_path / "n.zarr"
    numbered(100, width=50).td.to_zarr(path, chunks={"time": 10})
    (chunk,) = (path / "x" / "c" / "4").iterdir()
    chunk.write_bytes(b"no such data")
    with xr.open_dataset(path, engine="tensordict") as opened, pytest.raises(Exception) as error:
        list(opened.td.batches(10))
    assert "the variable 'x'" in error.value.__notes__[0]


def test_some_batches_are_read_ahead_and_no_more(one_by_one):
    seen = []
    iterator = iter(slow(40, seen=seen).td.batches(1, prefetch=2))
    seen.clear()
    next(iterator)
    deadline = time.monotonic() + 5
    while len(seen) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert 4 <= len(seen) <= 7  # one taken, two waiting, one in hand, and what is read for the next
    iterator.close()
    assert our_threads() == []


def test_batches_of_one_read_do_not_wait_for_the_next():
    """Many small batches are handed over together, but not those that are ready with those that are not."""
    going_on = threading.Event()

    def block(values, block_info):
        if block_info[0]["chunk-location"][0] == 1:
            assert going_on.wait(10)
        return values

    lazy = dask.array.from_array(np.arange(20), chunks=10).map_blocks(block, dtype=int, meta=np.empty(0, int))
    ds = xr.Dataset({"n": ("time", lazy)})
    for options in ({}, {"shuffle": True, "seed": 0, "buffer_size": 10}):
        going_on.clear()
        with dask.config.set(scheduler="synchronous"):
            iterator = iter(ds.td.batches(2, **options))
            if not options:
                going_on.set()
            first = [next(iterator)["n"].tolist() for _ in range(5)]
            going_on.set()
            assert len(first) + len(list(iterator)) == 10


def test_without_prefetch_there_is_no_thread(one_by_one):
    seen = []
    iterator = iter(slow(10, seen=seen).td.batches(2, prefetch=0))
    seen.clear()
    next(iterator)
    assert seen == [0, 1]
    assert our_threads() == []


def test_leaving_the_loop_ends_the_threads(one_by_one):
    batches = slow(1000).td.batches(1)
    for _ in batches:
        break
    wait_for_no_threads()
    iterator = iter(batches)
    next(iterator)
    gone = weakref.ref(iterator)
    cycle = [iterator]
    cycle.append(cycle)
    del iterator, cycle
    gc.collect()
    assert gone() is None
    wait_for_no_threads()


def test_an_interrupted_wait_ends_the_threads(one_by_one, monkeypatch):
    iterator = iter(slow(100, pause=0.05).td.batches(1))
    next(iterator)

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(iterator._source, "_take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert our_threads() == []


def test_two_loops_at_once_do_not_disturb_each_other():
    batches = numbered(30).td.batches(4, shuffle=True, seed=0)
    both = list(zip(batches, batches, strict=True))
    batches.set_epoch(0)
    assert [a["n"].tolist() for a, _ in both] == rows_of(batches)
    assert [b["n"].tolist() for _, b in both] == rows_of(batches)


def test_an_iterator_that_has_ended_stays_so():
    iterator = iter(numbered(4).td.batches(4))
    assert len(list(iterator)) == 1
    assert list(iterator) == []


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size: expected a whole number of at least 1"),
        ({"batch_size": 2.5}, TypeError, "batch_size: expected a whole number"),
        ({"batch_size": True}, ValueError, "batch_size"),
        ({"shuffle": "some"}, ValueError, "shuffle: expected False, True"),
        ({"seed": -1}, ValueError, "seed"),
        ({"epoch": -1}, ValueError, "epoch"),
        ({"prefetch": -1}, ValueError, "prefetch"),
        ({"rank": 2, "world_size": 2}, ValueError, "rank: expected 0 to 1 of world_size=2, got 2"),
        ({"world_size": 0}, ValueError, "world_size"),
        ({"world_size": 2, "shuffle": True}, ValueError, "every rank must be given the same seed"),
        ({"world_size": 7}, ValueError, "only 6 samples"),
        ({"buffer_size": 0}, ValueError, "buffer_size"),
        ({"window": {"time": 0}}, ValueError, "window of 'time': expected a whole number of at least 1"),
        ({"window": {"time": 2.0}}, TypeError, "window of 'time'"),
        ({"window": {"g": 2}}, ValueError, "window: there is no dim 'g'; there are"),
        ({"window": 3}, ValueError, "window: expected dims and numbers of rows"),
        ({"window": {"time": 2}, "stride": 0}, ValueError, "stride"),
        ({"stride": 2}, ValueError, "pass their length"),
        ({"within": "episode"}, ValueError, "pass their length"),
        ({"gaps": "n"}, ValueError, "pass their length, window="),
        ({"window": {"time": 2}, "within": "nobody"}, ValueError, "there is no variable 'nobody'"),
        (
            {"window": {"time": 2}, "within": ["done"]},
            TypeError,
            "within: expected the name of one variable.* got \\['done'\\]",
        ),
        ({"window": {"time": 2}, "gaps": {("done", "x"): 1}}, ValueError, "there is no variable 'done/x'"),
        ({"window": {"time": 2}, "within": "x"}, ValueError, "found the dims \\['time', 'f'\\]"),
        ({"window": {"time": 2}, "within": "done"}, ValueError, "holds flags"),
        ({"exclude": ["nobody"]}, ValueError, "there is no variable or group 'nobody'"),
        ({"unbatched": "raise"}, ValueError, "unbatched='raise': 'mask'"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(options, error, message):
    ds = numbered(6, width=2, episode=[0] * 6, done=[False] * 6).assign(mask=("f", [1.0, 1.0]))
    options = {"batch_size": 2, **options}
    with pytest.raises(error, match=message):
        ds.td.batches(options.pop("batch_size"), **options)


def test_there_may_be_no_rows():
    says = "'time' has no rows, so no batch holds a value"
    for shuffle in (False, True, "full"):
        with pytest.warns(UserWarning, match=says) as told:
            batches = numbered(0).td.batches(3, shuffle=shuffle, seed=0, world_size=2)
        assert len(told) == 1
        assert len(batches) == 0
        assert list(batches) == []
    with pytest.warns(UserWarning, match=says):
        assert list(numbered(0).td.batches(2, window={"time": 4})) == []
    with pytest.warns(UserWarning, match=says):
        assert len(numbered(0).td.to_torch_dataset()) == 0
    wide = xr.Dataset({"x": (("time", "member"), np.zeros((3, 0)))}).td.set_batch_dims("time", "member")
    with pytest.warns(UserWarning, match="'member' has no rows"):
        assert next(iter(wide.td.batches(2))).batch_size == (2, 0)


@pytest.mark.parametrize("dtype", ["bool", "i8", "u1", "f4"])
def test_flags_are_no_episodes_and_become_some_as_the_message_says(dtype):
    ds = numbered(6, done=np.array([0, 1, 0, 0, 1, 0], dtype))
    for refused in (
        lambda: ds.td.batches(9, window={"time": 2}, within="done"),
        lambda: ds.td.to_torch_dataset(window={"time": 2}, within="done"),
        lambda: ds.td.split({"a": 0.5, "b": 0.5}, by="done"),
    ):
        with pytest.raises(ValueError, match=r"'done' holds flags.* number them first, along ") as raised:
            refused()
    (line,) = re.findall("ds = ds.*td.concat.*?[)]", str(raised.value))
    exec(line, found := {"ds": ds})
    (batch,) = found["ds"].td.batches(9, window={"time": 2}, within="episode")
    assert batch["n"].tolist() == [[0, 1], [2, 3], [3, 4]]


@pytest.mark.parametrize("episode", [[0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0] * 6, [2, 2, 2, 3, 3, 2]])
def test_two_episodes_of_the_numbers_0_and_1_are_no_flags(episode):
    ds = numbered(6, episode=episode)
    assert len(ds.td.batches(1, window={"time": 3}, within="episode")) in (1, 2, 4)
    grid = xr.concat([ds, ds], "env", data_vars="all", coords="different", compat="equals").td.set_batch_dims(
        "env", "time"
    )
    assert len(grid.td.batches(1, window={"time": 3}, within="episode")) in (2, 4, 8)


@pytest.mark.parametrize(
    ("dims", "window", "size"),
    [
        (["init", "member"], None, [2, 5]),
        (["init", "member"], {"init": 3}, [2, 3, 5]),
        (["init", "member"], {"member": 3}, [2, 3]),
        (["init", "member", "lat"], {"init": 3}, [2, 3, 5, 4]),
        (["init", "member", "lat"], {"init": 3, "member": 2}, [2, 3, 2, 4]),
        (["init", "member"], {"init": 3, "lat": 2}, [2, 3, 2, 5]),
    ],
)
def test_the_repr_shows_the_size_of_a_batch_with_all_batch_dims(dims, window, size):
    ds = xr.Dataset({"x": (("init", "member", "lat", "lon"), np.zeros((6, 5, 4, 3)))}).td.set_batch_dims(dims)
    batches = ds.td.batches(2, window=window)
    assert f"{len(batches)} batches of {size}," in repr(batches)
    assert list(next(iter(batches)).batch_size) == size


def test_the_default_buffer_is_that_of_torch():
    assert order.BUFFER_ROWS == 10_000
    batches = numbered(20_000).td.batches(10, shuffle=True, seed=0)
    assert "in buffers of 10000" in repr(batches)
    first = np.concatenate([batch["n"].numpy() for batch in batches])
    assert len(np.unique(first)) == 20_000


@pytest.mark.parametrize("change", ["stacked", "levels", "set_index"])
def test_batches_along_a_multiindex_have_its_levels(change):
    x = np.arange(24.0).reshape(3, 4, 2)
    coords = {"init": [0, 10, 20], "member": range(4), "year": ("init", [1, 1, 2]), "day": ("init", [1, 2, 3])}
    ds = xr.Dataset({"x": (("init", "member", "lat"), x)}, coords)
    if change == "set_index":
        made = ds.drop_vars("init").set_index(init=["year", "day"])
        (batch,) = made.td.set_batch_dims("init").td.batches(3)
        assert (batch["year"].tolist(), batch["day"].tolist()) == ([1, 1, 2], [1, 2, 3])
        return
    made = ds.drop_vars(["year", "day"]).stack(sample=("init", "member")).transpose("sample", ...)
    made = made.reset_index("sample") if change == "levels" else made
    found = list(made.td.batches(5))
    assert torch.cat([batch["init"] for batch in found]).tolist() == np.repeat([0, 10, 20], 4).tolist()
    assert torch.cat([batch["x"] for batch in found]).tolist() == x.reshape(12, 2).tolist()
