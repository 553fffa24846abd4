"""Orders of samples, as numbers: every sample once, the same for the same seed and epoch, chunks together."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xarray_tensordict.loading.order import (
    Blocks,
    FullOrder,
    Place,
    common_marks,
    every,
    merge_marks,
    ranges,
    reads,
    share,
)
from xarray_tensordict.loading.samples import changes, find_windows


@st.composite
def marks(draw, most=12):
    return np.cumsum([0, *draw(st.lists(st.integers(1, 9), max_size=most))])


def all_of(order):
    return order.samples(0, int(order.cuts[-1]) if len(order.cuts) else 0)


@settings(deadline=None)
@given(marks(), st.integers(1, 40), st.integers(0, 3), st.integers(0, 3), st.integers(1, 5))
def test_the_ranks_share_out_the_samples_without_overlap_and_equally(found, buffer, seed, epoch, world_size):
    count = int(found[-1])
    for entropy in (None, [seed, epoch]):
        orders = [all_of(Blocks(found, buffer).order(entropy, rank, world_size)) for rank in range(world_size)]
        assert {len(order) for order in orders} == {count // world_size}
        together = np.concatenate(orders)
        assert len(np.unique(together)) == len(together) == count - count % world_size
        assert set(together) <= set(range(count))


@settings(deadline=None)
@given(marks(), st.integers(1, 40), st.integers(1, 4))
def test_unshuffled_samples_come_as_they_are(found, buffer, world_size):
    orders = [all_of(Blocks(found, buffer).order(None, rank, world_size)) for rank in range(world_size)]
    assert np.concatenate(orders).tolist() == list(range(int(found[-1]) // world_size * world_size))


@settings(deadline=None)
@given(marks(), st.integers(1, 40), st.integers(0, 9))
def test_a_block_lies_within_one_buffer(found, buffer, seed):
    order = Blocks(found, buffer).order([seed, 0], 0, 1)
    position = np.argsort(all_of(order))
    read = np.searchsorted(order.cuts, position, "right")
    for begin, end in itertools.pairwise(found):
        assert len(set(read[begin:end])) == 1
    assert np.max(np.diff(order.cuts, prepend=0), initial=0) < buffer + np.max(np.diff(found), initial=1)


@settings(deadline=None)
@given(marks(), st.integers(1, 40), st.integers(0, 9), st.data())
def test_any_part_of_an_order_is_what_stands_there(found, buffer, seed, data):
    count = int(found[-1])
    for order in (
        Blocks(found, buffer).order([seed, 0], 0, 1),
        Blocks(found, buffer).order(None, 0, 1),
        FullOrder(count, [seed, 0], 0, count, 3),
    ):
        whole = order.samples(0, count)
        for _ in range(3):
            first = data.draw(st.integers(0, count))
            last = data.draw(st.integers(first, count))
            assert order.samples(first, last).tolist() == whole[first:last].tolist()


def test_all_permutations_are_reached_where_everything_fits_in_one_buffer():
    blocks = Blocks(np.array([0, 2, 4]), 100)
    found = {tuple(blocks.order([seed, 0], 0, 1).samples(0, 4).tolist()) for seed in range(2000)}
    assert len(found) == 24
    full = {tuple(FullOrder(4, [seed, 0], 0, 4, 1).samples(0, 4).tolist()) for seed in range(2000)}
    assert len(full) == 24


def test_seed_and_epoch_choose_the_order():
    blocks = Blocks(np.arange(0, 101, 10), 30)
    orders = {
        (seed, epoch): tuple(blocks.order([seed, epoch], 0, 1).samples(0, 100).tolist())
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(set(orders.values())) == 9
    assert orders[1, 2] == tuple(blocks.order([1, 2], 0, 1).samples(0, 100).tolist())


@settings(deadline=None)
@given(marks(), st.integers(1, 30))
def test_merged_blocks_cut_no_chunk(found, target):
    merged = merge_marks(found, target)
    assert set(merged) <= set(found)
    assert merged[0] == found[0]
    assert merged[-1] == found[-1]
    sizes = np.diff(merged)
    largest = np.max(np.diff(found), initial=0)
    assert (sizes < target + largest).all()


def test_common_borders_of_chunks():
    assert common_marks([], 5) is None
    assert common_marks([(np.array([0, 5, 10]), 1)], 5).tolist() == [0, 5, 10]
    assert common_marks([(np.array([0, 5, 10]), 1), (np.array([0, 2, 4, 6, 8, 10]), 9)], 10).tolist() == [0, 10]
    assert common_marks([(np.array([0, 5, 10]), 1), (np.array([0, 2, 4, 6, 8, 10]), 9)], 5).tolist()[1] == 2


@settings(deadline=None)
@given(st.integers(0, 50), st.integers(1, 9), st.integers(1, 9), st.data())
def test_reads_hold_each_position_of_their_batches_once_and_none_crosses_a_cut(count, step, size, data):
    cuts = every(step, count)
    whole = -(-count // size)
    start = data.draw(st.integers(0, whole))
    numbers = range(start, data.draw(st.integers(start, whole)), data.draw(st.integers(1, 4)))
    wanted = [position for number in numbers for position in range(number * size, min((number + 1) * size, count))]
    found, ends = [], []
    for firsts, lasts in reads(cuts, size, numbers):
        assert len(firsts)
        assert (firsts < lasts).all()
        assert (firsts // size == (lasts - 1) // size).all()
        (end,) = set(np.searchsorted(cuts, lasts - 1, "right")) | set(np.searchsorted(cuts, firsts, "right"))
        ends.append(end)
        found += ranges(firsts, lasts).tolist()
    assert found == wanted
    assert ends == sorted(set(ends))


@pytest.mark.parametrize(("count", "world_size"), [(0, 3), (10, 3), (9, 3), (2, 3)])
def test_shares_are_equal(count, world_size):
    shares = [share(count, rank, world_size) for rank in range(world_size)]
    assert {last - first for first, last in shares} == {count // world_size}


def in_turn(parts):
    """What a DataLoader makes of the batches of its workers: one of each in turn, those that have none left are passed over."""
    rounds = itertools.zip_longest(*parts)
    return [number for found in rounds for number in found if number is not None]


@given(st.integers(0, 30), st.integers(1, 5), st.booleans(), st.data())
def test_workers_that_begin_behind_some_batches_go_on_as_they_would_have(count, workers, runs, data):
    whole = in_turn(Place(0, 0, worker, workers).numbers(count, runs=runs) for worker in range(workers))
    assert sorted(whole) == list(range(count))
    assert runs or whole == list(range(count))
    start = data.draw(st.integers(0, count))
    places = [Place.behind(start, 3, worker, workers) for worker in range(workers)]
    assert {place.epoch for place in places} == {3}
    assert in_turn(place.numbers(count, runs=runs) for place in places) == whole[start:]


# --- windows ---------------------------------------------------------------------------------------------------------


def windows_by_hand(episodes, width, stride):
    """Every window, by looking at each row."""
    found, short, runs = [], 0, 0
    for table, row in enumerate(episodes):
        begin = 0
        for _, run in itertools.groupby(row):
            length = len(list(run))
            runs += 1
            short += length < width
            found += [table * len(row) + begin + start for start in range(0, length, stride) if start + width <= length]
            begin += length
    return found, runs, short


@settings(deadline=None)
@given(
    st.integers(1, 3).flatmap(
        lambda tables: st.integers(0, 20).flatmap(
            lambda rows: st.lists(
                st.lists(st.integers(0, 2), min_size=rows, max_size=rows), min_size=tables, max_size=tables
            )
        )
    ),
    st.integers(1, 6),
    st.integers(1, 6),
)
def test_windows_are_those_found_by_hand(episodes, width, stride):
    table = np.array(episodes).reshape(len(episodes), -1)
    found = find_windows(table.shape, width, stride, changes(table))
    assert (found.first.tolist(), found.episodes, found.skipped) == windows_by_hand(episodes, width, stride)
    whole = find_windows(table.shape, width, stride)
    assert whole.first.tolist() == windows_by_hand([[0] * len(row) for row in episodes], width, stride)[0]


@pytest.mark.parametrize(
    "values",
    [
        np.array(["a", "a", "b", "a"]),
        np.array(["a", "a", "b", "a"], object),
        np.array([1.0, 1.0, np.nan, 1.0]),
        np.array([np.nan, np.nan, 1.0, np.nan]),
        np.array(["2000", "2000", "NaT", "2000"], "M8[ns]"),
        np.array(["NaT", "NaT", "2000", "NaT"], "M8[ns]"),
    ],
)
def test_episodes_may_be_distinguished_by_values_of_any_kind(values):
    assert find_windows((1, 4), 1, 9, changes(values[None])).first.tolist() == [0, 2, 3]
