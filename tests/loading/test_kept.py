"""Chunks that are kept from one epoch to the next: which, how many, for how long."""

import pickle
import threading

import numpy as np
import pytest
import xarray as xr

from loading_samples import numbered, rows_of
from xarray_tensordict.loading.kept import Grid, KeptBlocks, chunk_marks, whole_grid


def claim(kept, numbers, rows=10, **options):
    return kept.claim(0, numbers, [rows] * len(numbers), 8, **{"pinned": False, **options})


def settle(kept, found):
    kept.settle(found.own, [np.zeros(10 * len(held.numbers)) for held in found.own])


def test_what_was_not_used_for_longest_is_forgotten_first():
    kept = KeptBlocks(240)
    for numbers in ([0], [1], [2], [0], [3]):  # of 80 bytes each
        settle(kept, claim(kept, numbers))
    again = claim(kept, [0, 1, 2, 3])
    assert [held.numbers for held in again.own] == [[1]]
    assert [held.numbers for held in again.held] == [[0], [1], [2], [3]]


def test_no_more_bytes_are_kept_than_asked_for_and_pinned_ones_do_not_count():
    kept = KeptBlocks(800)
    settle(kept, claim(kept, [-1], pinned=True))
    for first in range(0, 1000, 7):
        settle(kept, claim(kept, [*range(first, first + 7)]))
    found = claim(kept, [-1, *range(1007)])
    there = [held for held in found.held if held not in found.own]
    assert sum(held.values.result().nbytes for held in there) - 80 <= 800
    assert there[0].pinned
    assert len(there) > 8


def test_what_somebody_reads_is_waited_for_and_an_error_reaches_all():
    kept = KeptBlocks(1000)
    first, second = claim(kept, [0, 1]), claim(kept, [1, 2])
    assert [held.numbers for held in second.own] == [[2]]
    settle(kept, second)
    waiting = threading.Thread(target=lambda: second.held[0].values.result())
    waiting.start()
    settle(kept, first)
    waiting.join(5)
    assert not waiting.is_alive()
    failed, waits = claim(kept, [5]), claim(kept, [5])
    kept.fail(failed.own, OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        waits.held[0].values.result()
    assert claim(kept, [5]).own


def test_a_pickle_and_a_fork_hold_nothing(monkeypatch):
    kept = KeptBlocks(1000)
    settle(kept, claim(kept, [0]))
    assert claim(pickle.loads(pickle.dumps(kept)), [0]).own
    assert not claim(kept, [0]).own
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert claim(kept, [0]).own


def test_a_grid_tells_where_rows_are():
    grid = Grid((np.array([0, 2, 3]), np.array([0, 3, 5])))
    numbers, inside = grid.place(np.arange(15))
    assert numbers.tolist() == [0, 0, 0, 1, 1] * 2 + [2, 2, 2, 3, 3]
    assert inside.tolist() == [0, 1, 2, 0, 1, 3, 4, 5, 2, 3, 0, 1, 2, 0, 1]
    assert grid.sizes(np.arange(4)).tolist() == [6, 4, 3, 2]
    assert [*grid.slices(np.array([1, 2]))] == [(slice(0, 2), slice(3, 5)), (slice(2, 3), slice(0, 3))]
    assert whole_grid([15]).place(np.array([3, 14]))[1].tolist() == [3, 14]


def test_chunks_of_a_selection_are_those_of_the_store(tmp_path):
    numbered(20).td.to_zarr(tmp_path / "n.zarr", chunks={"time": 5})
    with xr.open_dataset(tmp_path / "n.zarr", engine="tensordict") as ds:
        assert chunk_marks(ds["n"].isel(time=slice(3, 17)).variable, 0).tolist() == [0, 2, 7, 12, 14]
        assert chunk_marks(ds["n"].isel(time=[0, 1, 9, 8, 15]).variable, 0).tolist() == [0, 2, 4, 5]
        assert chunk_marks(ds["n"].load().variable, 0) is None


# --- in a loop --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["zarr", "h5"])
def compressed(tmp_path, request):
    path = tmp_path / f"n.{request.param}"
    ds = numbered(100, width=3)
    if request.param == "zarr":
        ds.td.to_zarr(path, chunks={"time": 5})
    else:
        ds.td.to_h5(path, encoding={name: {"zlib": True, "chunksizes": (5, 3)[: ds[name].ndim]} for name in ("n", "x")})
    with xr.open_dataset(path, engine="tensordict") as opened:
        yield opened


def read_bytes(batches):
    return sum(held.values.result().nbytes for held in batches._reader.kept._used)


@pytest.mark.parametrize("shuffle", [False, True, "full"])
def test_chunks_of_a_compressed_store_are_kept_as_the_first_epoch_runs(compressed, shuffle):
    batches = compressed.td.batches(8, shuffle=shuffle, seed=0, buffer_size=20)
    expected = compressed.td.batches(8, shuffle=shuffle, seed=0, buffer_size=20, keep=0)
    for _ in range(2):
        assert rows_of(batches) == rows_of(expected)
        assert read_bytes(batches) == 100 * 8 + 300 * 4
        assert read_bytes(expected) == 0
    assert read_bytes(pickle.loads(pickle.dumps(batches))) == 0


def test_nothing_is_kept_of_what_would_be_forgotten_before_its_turn(compressed):
    size = 100 * 8 + 300 * 4
    for options, keep, kept in (({}, size - 1, False), ({}, size, True), ({"shuffle": True}, size // 4 - 1, False)):
        batches = compressed.td.batches(8, keep=keep, seed=0, **options)
        list(batches)
        assert bool(read_bytes(batches)) == kept
    half = compressed.td.batches(8, keep=size // 2, seed=0, shuffle=True, buffer_size=10)
    list(half)
    assert 0 < read_bytes(half) <= size // 2


def test_batches_are_the_callers_own_however_much_is_kept(compressed):
    batches = compressed.td.batches(100)
    for _ in range(3):
        (batch,) = batches
        assert batch["n"].tolist() == list(range(100))
        batch["n"].zero_()
        batch["x"].zero_()


def test_what_is_in_memory_or_raw_is_not_kept(tmp_path):
    ds = numbered(100, width=3)
    ds.td.to_zarr(
        tmp_path / "n.zarr", encoding={name: {"compressors": None, "chunks": (5, 3)[: ds[name].ndim]} for name in "nx"}
    )
    with xr.open_dataset(tmp_path / "n.zarr", engine="tensordict") as raw:
        for each in (ds, raw, raw.chunk(time=10)):
            batches = each.td.batches(8)
            list(batches)
            assert read_bytes(batches) == 0


def test_keep_is_a_number_of_bytes(compressed):
    with pytest.raises(ValueError, match="keep: expected a whole number of at least 0, got -1"):
        compressed.td.batches(8, keep=-1)
    with pytest.raises(TypeError, match="keep: expected a whole number, got '1 MB'"):
        compressed.td.to_torch_dataset(keep="1 MB")
