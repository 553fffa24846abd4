"""What ``batches.stats()`` says: seconds by a clock that only moves where something is done, and counts that are known."""

import copy
import pickle
import threading
from contextlib import suppress

import numpy as np
import pytest
import xarray as xr
import zarr
from torch.utils.data import DataLoader
from zarr.storage import MemoryStore, WrapperStore

from loading_samples import numbered
from xarray_tensordict.formats import counting
from xarray_tensordict.formats.counting import COUNTED, Work
from xarray_tensordict.loading import batches as batches_module
from xarray_tensordict.loading.reader import RowReader

CHUNKS = 4


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self):
        self.time = 100.0

    def moves(self, seconds, function):
        """The same function, which takes so long."""

        def slow(*args, **options):
            self.time += seconds
            return function(*args, **options)

        return slow


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(counting, "now", lambda: found.time)
    return found


class FarStore(WrapperStore):
    """A store of somebody else, so it may be far away; each chunk takes 3 s by the clock."""

    clock = None

    async def get(self, key, prototype, byte_range=None):
        if self.clock is not None and "/c" in key:
            self.clock.time += 3
        return await super().get(key, prototype, byte_range)


@pytest.fixture
def far(monkeypatch):
    """A far store of 4 chunks of 8 rows, each read by itself."""
    monkeypatch.setattr("xarray_tensordict.loading.read_ahead.READ_BYTES", 1)
    memory = MemoryStore()
    ds = numbered(8 * CHUNKS, width=2).drop_vars("n")
    ds.to_zarr(memory, zarr_format=3, consolidated=False, encoding={"x": {"chunks": (8, 2), "compressors": None}})
    monkeypatch.setattr("xarray_tensordict.loading.reader.COLUMN_BYTES", 0)
    return xr.open_dataset(FarStore(memory), engine="tensordict")


def test_the_seconds_of_each_part_are_distinguished(far, clock, monkeypatch):
    monkeypatch.setattr(FarStore, "clock", clock)
    codec = zarr.codecs.BytesCodec
    decode = "_decode_sync" if hasattr(codec, "_decode_sync") else "_decode_single"  # before zarr 3.4
    monkeypatch.setattr(codec, decode, clock.moves(2, getattr(codec, decode)))
    monkeypatch.setattr(RowReader, "assemble", clock.moves(0.5, RowReader.assemble))
    monkeypatch.setattr(batches_module, "_sent", clock.moves(0.25, batches_module._sent))
    batches = far.td.batches(8, prefetch=0, device="cpu")
    for _ in batches:
        clock.time += 10
    found = batches.stats()
    assert (found.batches, found.samples, found.nbytes) == (4, 32, 32 * 8)
    assert (found.loop, found.waiting) == (40, 4 * 5.75)
    assert (found.requesting, found.reading) == (12, 20)
    assert (found.assembling, found.sending) == (2, 1)
    assert (found.requests, found.received, found.hits, found.misses) == (4, 32 * 8, 0, 4)
    assert found.bottleneck == "requests"
    assert "waited 37% of 63 s" in repr(batches)
    for _ in batches:  # the chunks are kept
        clock.time += 10
    again = batches.stats()
    assert (again.epoch, again.requests, again.hits, again.requesting, again.reading) == (1, 0, 4, 0, 0)
    assert (again.bottleneck, again.advice) == ("your loop", "Loading keeps up with it.")


def test_what_takes_longest_is_named_with_what_to_change(far, clock, monkeypatch):
    monkeypatch.setattr(FarStore, "clock", clock)

    def stats(**options):
        batches = far.td.batches(8, **options)
        list(batches)
        return batches.stats()

    assert "prefetch=2" in stats(prefetch=0).advice
    assert "the next epoch does not read them" in stats().advice
    assert "keep=256 holds all chunks" in stats(keep=0).advice
    assert "shuffle=True reads each chunk once" in stats(keep=0, shuffle="full", seed=0, buffer_size=1).advice
    monkeypatch.setattr("xarray_tensordict.loading.stats._MEMORY", 0)
    assert "Larger chunks need fewer requests" in stats(keep=0).advice
    monkeypatch.setattr("xarray_tensordict.loading.stats._SMALL", 1)
    assert "async.concurrency" in stats(keep=0).advice
    monkeypatch.setattr(FarStore, "clock", None)
    monkeypatch.setattr(RowReader, "assemble", clock.moves(1, RowReader.assemble))
    found = stats()
    assert found.bottleneck == "assembling"
    assert "exclude=[...]" in found.advice


@pytest.mark.parametrize("compressed", [False, True])
def test_another_layout_is_advised_where_there_is_a_faster_one(tmp_path, clock, monkeypatch, compressed):
    ds = xr.Dataset({"x": ("time", np.arange(16.0)), "y": (("time", "f"), np.zeros((16, 3)))})
    if compressed:
        ds.td.to_zarr(tmp_path / "a", chunks={"time": 4})
    else:
        ds.td.to_memmap(tmp_path / "a")
    monkeypatch.setattr(RowReader, "fetch", clock.moves(1, RowReader.fetch))
    batches = xr.open_dataset(tmp_path / "a", engine="tensordict").td.batches(8, keep=0)
    list(batches)
    assert batches.stats().bottleneck == "reading"
    assert ("no other layout is faster" in batches.stats().advice) is not compressed


@pytest.mark.parametrize("shuffle", [False, True, "full"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_requests_and_bytes_are_those_of_the_files_whichever_thread_reads(tmp_path, shuffle, prefetch):
    numbered(100, width=3).td.to_zarr(tmp_path / "n.zarr", chunks={"time": 5})
    files = [path.stat().st_size for path in tmp_path.rglob("c/*") if path.is_file()]
    files += [path.stat().st_size for path in tmp_path.rglob("c/*/0") if path.is_file()]
    with xr.open_dataset(tmp_path / "n.zarr", engine="tensordict") as ds:
        batches = ds.td.batches(8, shuffle=shuffle, seed=0, prefetch=prefetch)
        assert batches.stats().batches == 0
        for epoch in range(2):
            other = ds.td.batches(3, prefetch=2)
            for _ in zip(batches, other, strict=False):  # both read at the same time
                pass
            found = batches.stats()
            assert (found.epoch, found.batches, found.samples) == (epoch, 13, 100)
            assert (found.requests, found.received) == ((0, 0) if epoch else (len(files), sum(files)))
            assert (found.hits > 0, found.misses) == ((True, 0) if epoch else (found.hits > 0, len(files)))
            assert found.requesting is None  # files of this machine are not told apart from decoding
            assert "requests and decoding" in repr(found)


def test_what_the_library_of_a_format_reads_is_not_counted(tmp_path):
    ds = numbered(20, width=3)
    ds.td.to_h5(tmp_path / "n.h5", encoding={"x": {"zlib": True, "chunksizes": (5, 3)}})
    with xr.open_dataset(tmp_path / "n.h5", engine="tensordict") as opened:
        for each in (opened, opened.chunk(time=5), ds):
            batches = each.td.batches(8)
            list(batches)
            found = batches.stats()
            assert (found.samples, found.requests, found.received, found.requesting) == (20, None, None, None)


def test_a_break_a_resumed_epoch_and_an_error_are_counted_as_far_as_they_came(far):
    batches = far.td.batches(5, shuffle=True, seed=0)
    running = iter(batches)
    next(running), next(running)
    state = running.state_dict()
    running.close()
    assert (batches.stats().batches, batches.stats().samples) == (2, 10)
    resumed = far.td.batches(5, shuffle=True, seed=0)
    resumed.load_state_dict(state)
    list(resumed)
    assert (resumed.stats().batches, resumed.stats().samples) == (5, 22)
    running = iter(batches)
    running.load_state_dict(state)
    list(running)
    assert (batches.stats().epoch, batches.stats().samples) == (0, 22)
    assert far.td.batches(5, drop_last=True).stats().samples == 0
    dropping = far.td.batches(5, drop_last=True)
    list(dropping)
    assert dropping.stats().samples == 30
    assert batches[0].batch_size == (5,)
    assert batches.stats().samples == 22


def test_workers_count_for_themselves_and_a_copy_has_counted_nothing(far):
    data = far.td.to_torch_dataset(5)
    list(DataLoader(data, batch_size=None, num_workers=1, collate_fn=data.collate))
    assert data.batches.stats().batches == 0
    assert "each worker of a DataLoader counts its own batches" in repr(data.batches.stats())
    list(data)
    assert data.batches.stats().samples == 32
    for other in (pickle.loads(pickle.dumps(far.td.batches(5))), copy.deepcopy(data.batches)):
        assert other.stats().batches == 0


def test_what_several_threads_do_at_the_same_time_counts_once(clock):
    work = Work()
    with work:
        clock.time += 1
        with work:
            clock.time += 1
        assert work.seconds == 2
        clock.time += 1
    clock.time += 10
    with suppress(OSError), work:
        clock.time += 1
        raise OSError("gone")
    assert (work.seconds, work.times) == (4, 3)


def test_nothing_is_counted_outside_a_loop(far):
    seen = []

    def look():
        with COUNTED.get() as counted:
            seen.append(counted)

    for thread in (threading.Thread(target=look), threading.Thread(target=look)):
        thread.start()
        thread.join()
    far.td.to_tensordict()
    assert seen == [None, None]


def test_the_quality_of_a_shuffle_is_that_of_the_order(monkeypatch):
    monkeypatch.setattr("xarray_tensordict.loading.read_ahead.BLOCK_BYTES", 1)
    store = MemoryStore()
    numbered(400).td.to_zarr(store, chunks={"time": 10})
    ds = xr.open_dataset(store, engine="tensordict")
    qualities = [
        ds.td.batches(8, shuffle=shuffle, seed=0, buffer_size=size).shuffle_quality
        for shuffle, size in ((False, 10), (True, 10), (True, 50), (True, 400), ("full", 400))
    ]
    assert qualities[0] == pytest.approx(3 / 401)
    assert qualities == sorted(qualities[:4]) + qualities[4:]
    assert qualities[1] < 0.2
    assert min(qualities[3:]) > 0.9
    batches = ds.td.batches(8, shuffle=True, seed=0, buffer_size=50)
    order = np.concatenate([batch["n"].numpy() for batch in ds.td.batches(8, shuffle=True, seed=0, buffer_size=50)])
    assert batches.shuffle_quality == pytest.approx(np.abs(np.diff(order)).mean() * 3 / 401)
    assert f"shuffle quality {batches.shuffle_quality:.2f}" in repr(batches)
