"""Stores far away: how many requests are on their way, how often each is made, and that the values are those of a near one."""

import asyncio
import itertools
import threading
from typing import ClassVar

import numpy as np
import pytest
import xarray as xr
import zarr
from torch.utils.data import DataLoader
from zarr.experimental.cache_store import CacheStore
from zarr.storage import LocalStore, MemoryStore, WrapperStore

from xarray_tensordict import open_persistent
from xarray_tensordict.formats.zarr import remote
from xarray_tensordict.formats.zarr.open import is_far
from xarray_tensordict.loading.kept import chunk_marks
from xarray_tensordict.testing import assert_same_tensordict

ROWS, LATE = 1024, 0.02


class FarStore(WrapperStore):
    """A store whose answers take a while: it counts the requests, and those that are on their way at once."""

    counted = "/c"
    asked: ClassVar[list[str]] = []
    now: ClassVar[list[None]] = []
    most = 0

    async def get(self, key, prototype, byte_range=None):
        if self.counted not in key:
            return await super().get(key, prototype, byte_range)
        self.asked.append(key)
        self.now.append(None)
        type(self).most = max(self.most, len(self.now))
        try:
            await asyncio.sleep(LATE)
            return await super().get(key, prototype, byte_range)
        finally:
            self.now.pop()


def table(rows=ROWS):
    return xr.Dataset(
        {"x": (("time", "f"), np.arange(rows * 8.0).reshape(rows, 8)), "y": ("time", np.arange(rows))}
    ).td.set_batch_dims("time")


def written(ds, **encoding):
    memory = MemoryStore()
    ds.to_zarr(memory, zarr_format=3, consolidated=False, encoding=encoding)
    return FarStore(memory)


@pytest.fixture(scope="module")
def chunks():
    """A store of 128 chunks of x, and one of y."""
    return written(table(), x={"chunks": (8, 8)}, y={"chunks": (ROWS,)})


@pytest.fixture
def far(chunks):
    FarStore.asked.clear()
    FarStore.most = 0
    return chunks


def opened(store, **options):
    return xr.open_dataset(store, engine="tensordict", **options)


def of_x():
    return [key for key in FarStore.asked if key.startswith("x/")]


# --- how many requests ------------------------------------------------------------------------------------------------


def loop(store, **options):
    return list(opened(store).td.batches(32, **options))


READERS = {
    "in order": loop,
    "shuffled": lambda store: loop(store, shuffle=True, seed=0),
    "full": lambda store: loop(store, shuffle="full", seed=0),
    "to_tensordict": lambda store: opened(store).td.to_tensordict(),
    "rows of ptd": lambda store: open_persistent(store)[list(range(0, ROWS, 4))],
    "dask": lambda store: opened(store, chunks={}).compute(),
    "map-style": lambda store: opened(store).td.to_torch_dataset().__getitems__(list(range(0, ROWS, 4))),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_64_requests_are_under_way_for_all_readers_and_each_chunk_is_asked_for_once(far, read):
    read(far)
    assert 32 <= FarStore.most <= 64
    assert sorted(FarStore.asked) == sorted({*FarStore.asked})
    assert FarStore.asked.count("y/c/0") == 1


def test_all_readers_of_a_process_together_make_no_more_requests_and_zarr_is_as_before(far):
    threads = [threading.Thread(target=loop, args=(far,), kwargs={"keep": 0}) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(of_x()) == 3 * 128
    assert 48 <= FarStore.most <= 64
    assert zarr.config.get("async.concurrency") == 10


def test_what_the_user_sets_in_zarr_holds_for_all_readers_together(far):
    with zarr.config.set({"async.concurrency": 5}):
        loop(far)
        assert zarr.config.get("async.concurrency") == 5
    assert FarStore.most == 5


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_documents_are_asked_for_as_chunks_are(zarr_format, monkeypatch):
    memory = MemoryStore()
    xr.Dataset({f"v{number}": ("t", [number]) for number in range(80)}).to_zarr(
        memory, zarr_format=zarr_format, consolidated=False
    )
    monkeypatch.setattr(FarStore, "counted", "/zarr.json" if zarr_format == 3 else "/.z")
    monkeypatch.setattr(FarStore, "most", 0)
    assert len(opened(FarStore(memory), consolidated=False).variables) == 80
    assert 32 <= FarStore.most <= 64


def test_shards_are_asked_for_as_a_whole_and_large_ones_by_chunk():
    store = written(table(), x={"chunks": (8, 8), "shards": (128, 8)}, y={"chunks": (ROWS,)})
    for options in ({}, {"shuffle": True, "seed": 0}):
        FarStore.asked.clear()
        loop(store, **options)
        assert sorted(of_x()) == [f"x/c/{shard}/0" for shard in range(8)]
    FarStore.asked.clear()
    opened(store).td.to_torch_dataset()[5]
    assert set(of_x()) == {"x/c/0/0"}  # its index, and the chunk of the row
    x = opened(store)["x"].variable
    assert [len(chunk_marks(x, 0, shard_bytes)) for shard_bytes in (128 * 64, 128 * 64 - 1)] == [9, 129]


def test_columns_of_many_chunks_are_not_read_as_a_whole_before_the_first_batch():
    store = written(table(), x={"chunks": (8, 8)}, y={"chunks": (8,)})
    FarStore.asked.clear()
    batches = opened(store).td.batches(8, prefetch=0)
    next(iter(batches))
    assert "y/c/0" in FarStore.asked


@pytest.mark.parametrize("shuffle", [True, "full"])
def test_the_first_batch_of_a_shuffle_waits_for_its_own_chunks_alone(far, shuffle):
    batches = opened(far).td.batches(16, shuffle=shuffle, seed=0, prefetch=0)
    for start in (0, 20):
        batches.start, before = start, len(of_x())
        next(iter(batches))
        assert 0 < len(of_x()) - before <= 16


# --- what is read -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "shuffle"), [(0, "full"), (1000, False), (1000, "full"), (20_000, True), (1 << 20, True)]
)
@pytest.mark.parametrize("encoding", [{"chunks": (5, 3)}, {"chunks": (2, 8), "shards": (10, 8)}])
def test_batches_are_those_of_the_dataset_however_much_is_kept(keep, shuffle, encoding):
    ds = table(103)
    store = written(ds, x=encoding, y={"chunks": (7,)})
    expected = ds.td.to_tensordict()
    batches = opened(store).isel(time=slice(2, None)).td.batches(4, shuffle=shuffle, seed=0, keep=keep, buffer_size=30)
    for _ in range(3):
        for batch in batches:
            assert_same_tensordict(expected[batch["y"]], batch)


@pytest.mark.parametrize("keep", [0, 1 << 20])
def test_windows_along_a_later_dim_are_cut_from_chunks_along_both(keep):
    values = np.arange(6 * 20 * 2.0).reshape(6, 20, 2)
    ds = xr.Dataset(
        {"x": (("run", "time", "f"), values), "r": ("run", np.arange(6)), "t": ("time", np.arange(20))}
    ).td.set_batch_dims(["run", "time"])
    store = written(ds, x={"chunks": (2, 7, 2)}, r={"chunks": (4,)}, t={"chunks": (3,)})
    batches = opened(store).td.batches(5, window={"time": 4}, shuffle=True, seed=0, keep=keep)
    for _ in range(2):
        seen = 0
        for batch in batches:
            assert (batch["x"].numpy() == values[batch["r"], batch["t"]]).all()
            seen += len(batch)
        assert seen == 6 * 17


@pytest.mark.parametrize("workers", [0, 2])
def test_a_map_style_dataset_keeps_chunks(far, workers):
    data = opened(far).td.to_torch_dataset()
    for _ in range(2):
        loader = DataLoader(data, batch_size=64, shuffle=True, collate_fn=data.collate, num_workers=workers)
        assert sorted(itertools.chain.from_iterable(batch["y"].tolist() for batch in loader)) == list(range(ROWS))
    if not workers:
        assert sorted(FarStore.asked) == sorted({*FarStore.asked})


# --- the settings -----------------------------------------------------------------------------------------------------


def test_what_somebody_else_wraps_around_a_store_may_be_far_away():
    assert is_far(FarStore(MemoryStore()))
    assert not is_far(MemoryStore())
    assert not is_far(zarr.storage.LoggingStore(MemoryStore()))
    assert is_far(zarr.storage.LoggingStore(FarStore(MemoryStore())))


def test_a_copy_on_the_local_disk_is_read_by_later_epochs_and_later_runs(tmp_path):
    """The recipe of the page on stores: zarr's own ``CacheStore``, and what it does not do."""

    def cached():
        return CacheStore(far, cache_store=LocalStore(tmp_path / "copy"), max_size=1 << 30)

    ds = table()
    memory = MemoryStore()
    ds[["x"]].td.to_zarr(memory, layout="xarray", chunks={"time": 8}, shards={"time": 64})
    far, options = FarStore(memory), {"shuffle": True, "seed": 0, "keep": 0}
    expected = [batch["x"].tolist() for batch in ds[["x"]].td.batches(32)]
    batches = opened(cached()).td.batches(32, keep=0)
    FarStore.asked.clear()
    FarStore.most = 0
    assert [batch["x"].tolist() for batch in batches] == expected
    assert sorted(FarStore.asked) == sorted({*FarStore.asked})
    assert len(of_x()) == 16
    assert FarStore.most >= 8
    later = cached()
    for store in (batches, opened(later).td.batches(32, **options)):
        FarStore.asked.clear()
        assert sum(len(batch) for batch in store) == ROWS
        assert FarStore.asked == []
    assert later.cache_info()["current_size"] == 0  # what an earlier run has left does not count
    (ds[["x"]] * 0).td.to_zarr(memory, layout="xarray", mode="w", chunks={"time": 8}, shards={"time": 64})
    assert [
        batch["x"].tolist() for batch in opened(cached()).td.batches(32, keep=0)
    ] == expected  # nor is a change seen


def test_zarr_asks_for_more_while_somebody_reads():
    with remote.many_at_once():
        with remote.many_at_once():
            assert zarr.config.get("async.concurrency") == 64
        assert zarr.config.get("async.concurrency") == 64
        zarr.config.set({"async.concurrency": 7})
    assert zarr.config.get("async.concurrency") == 7
    zarr.config.set({"async.concurrency": 10})
