"""Going on in the middle of an epoch: ``state_dict``, ``start=`` and ``batches[i]``, and what is read for that."""

import itertools
import json
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from loading_samples import ROWS, episodes, numbered, rows_of


@settings(max_examples=8, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "shuffle": st.sampled_from([False, True, "full"]),
            "window": st.sampled_from([None, {"time": 3}]),
            "world_size": st.integers(1, 3),
            "buffer_size": st.sampled_from([1, 9, 100]),
            "drop_last": st.booleans(),
            "prefetch": st.sampled_from([0, 0, 0, 2]),
        }
    ),
    st.integers(1, 12),
    st.integers(0, 2),
    st.data(),
)
def test_what_is_resumed_goes_on_as_it_would_have_gone_on(options, size, epoch, data):
    ds = episodes()
    options["within"] = "episode" if options["window"] else None
    options["rank"] = data.draw(st.integers(0, options["world_size"] - 1))
    batches = ds.td.batches(size, seed=5, epoch=epoch, **options)
    assert [batches[number]["n"].tolist() for number in range(len(batches))] == rows_of(batches)
    following = rows_of(batches)
    batches.set_epoch(epoch)
    taken = data.draw(st.integers(0, len(batches)))
    running = iter(batches)
    first = rows_of(itertools.islice(running, taken))
    states = [json.loads(json.dumps(found.state_dict())) for found in (running, batches)]
    assert states[0] == states[1]
    rest = rows_of(running)
    batches.set_epoch(epoch)
    assert first + rest == rows_of(batches)

    other = {**options, "seed": 6, "rank": 0, "epoch": 9}
    for number in range(2):
        again = ds.td.batches(size, **{**other, "rank": options["rank"]})
        resumed = again if number else iter(again)
        resumed.load_state_dict(states[number])
        if number:
            assert (again.epoch, again.start, again.seed) == (epoch, taken, 5)
            again.set_epoch(epoch)
        assert rows_of(resumed) == rest
        if number:
            assert rows_of(again) == following
    started = ds.td.batches(size, seed=5, epoch=epoch, start=taken, **options)
    assert started.state_dict() == states[0]
    assert rows_of(started) == rest
    assert rows_of(started) == following


def test_the_state_of_one_rank_is_that_of_all():
    made = [numbered(40).td.batches(4, shuffle=True, seed=0, rank=rank, world_size=2) for rank in range(2)]
    for batches in made:
        next(iter(batches))
    assert made[0].state_dict() == made[1].state_dict()


def test_a_copy_holds_its_place_and_no_order():
    batches = numbered(5000).td.batches(4, shuffle="full", seed=0)
    before = len(pickle.dumps(batches))
    assert batches[3]["n"].tolist() == batches[-len(batches) + 3]["n"].tolist()
    assert len(pickle.dumps(batches)) < before + 1000
    next(iter(batches))
    assert pickle.loads(pickle.dumps(batches)).state_dict() == batches.state_dict()


def test_numbers_of_batches_are_checked():
    batches = numbered(10).td.batches(4)
    for wrong in (3, -4):
        with pytest.raises(IndexError, match=f"batch {wrong} of 3: expected -3 to 2"):
            batches[wrong]
    with pytest.raises(TypeError):
        batches[0:2]
    with pytest.raises(ValueError, match="start: expected 0 to 3, the number of batches of an epoch, got 4"):
        numbered(10).td.batches(4, start=4)


# --- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "options"),
    [
        (5, {}),
        (5, {"shuffle": True, "buffer_size": 5}),
        (5, {"shuffle": True, "buffer_size": 25}),
        (1, {"shuffle": "full", "buffer_size": 5}),
    ],
)
def test_what_comes_before_is_not_read(size, options, counted, monkeypatch):
    """100 rows in 20 chunks, three quarters of which were handed over."""
    monkeypatch.setattr("xarray_tensordict.loading.batches.READ_BYTES", 1)
    ds, chunks = counted

    def made():
        chunks.clear()
        return ds.td.batches(size, seed=1, prefetch=0, **options)

    running = iter(made())
    taken = rows_of(itertools.islice(running, 75 // size))
    state = running.state_dict()
    rest = rows_of(running)
    whole = len(chunks)
    resumed = iter(made())
    resumed.load_state_dict(state)
    assert chunks == []
    assert rows_of(resumed) == rest
    assert sorted(set(chunks)) == sorted({f"n/c/{row // 5}" for batch in rest for row in batch})
    assert len(taken) == 3 * len(rest)
    if options.get("shuffle") == "full":
        assert len(chunks) <= 25
    else:
        assert (whole, len(chunks)) == (20, 5)


# --- DataLoaders -----------------------------------------------------------------------------------------------------


def dataset(shuffle, **options):
    return episodes().td.to_torch_dataset(4, shuffle=shuffle, seed=5, buffer_size=9, **options)


@pytest.mark.parametrize(("shuffle", "workers"), [(True, 0), ("full", 0), (False, 2), ("full", 2)])
def test_torchs_own_loader_goes_on_behind_some_batches(shuffle, workers):
    def loader_of(data):
        context = "fork" if workers else None
        return DataLoader(
            data, batch_size=None, num_workers=workers, collate_fn=data.collate, multiprocessing_context=context
        )

    data = dataset(shuffle, rank=1, world_size=2)
    whole = loader_of(data)
    epochs = [rows_of(whole) for _ in range(3)]
    data = dataset(shuffle, rank=1, world_size=2, epoch=1, start=3)
    data.set_epoch(1)  # as loops do before each epoch
    assert data.state_dict()["position"] == 3
    resumed = loader_of(data)
    assert rows_of(resumed) == epochs[1][3:]
    assert rows_of(resumed) == epochs[2]
    data.set_epoch(1)
    assert rows_of(resumed) == epochs[1]
    if workers:
        with pytest.raises(RuntimeError, match="the worker processes of the DataLoader know how far they are"):
            data.state_dict()


def test_the_dataset_says_where_a_loop_without_workers_is():
    data = dataset("full")
    loop = iter(DataLoader(data, batch_size=None, collate_fn=data.collate))
    rows_of(itertools.islice(loop, 4))
    state = data.state_dict()
    assert (state["epoch"], state["position"]) == (0, 4)
    again = dataset("full")
    again.load_state_dict(state)
    loader = DataLoader(again, batch_size=None, collate_fn=again.collate)
    assert rows_of(loader) == rows_of(loop)
    assert rows_of(loader) == rows_of(data)


# --- states that say nothing about these batches ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 5}, "batch_size=4, and here it is 5"),
        ({"rows": 44}, "samples=43, and here it is 44"),
        ({"shuffle": "full"}, "shuffle=True, and here it is 'full'"),
        ({"drop_last": True}, "drop_last=False, and here it is True"),
        ({"world_size": 2}, "world_size=1, and here it is 2"),
        ({"chunk": 5}, "other chunks, windows or buffer_size"),
        ({"buffer_size": 10}, "other chunks, windows or buffer_size"),
    ],
)
def test_a_state_of_another_order_is_refused(options, message):
    def made(*, batch_size=4, rows=ROWS, chunk=4, shuffle=True, **more):
        return episodes(rows, chunk).td.batches(batch_size, shuffle=shuffle, **{"seed": 0, "buffer_size": 9, **more})

    state = made().state_dict()
    for resumed in (made(**options), iter(made(**options))):
        with pytest.raises(ValueError, match=f"batches with {message}"):
            resumed.load_state_dict(state)


def test_a_state_of_other_windows_is_refused():
    state = numbered(20).td.batches(2, window={"time": 2}, stride=3).state_dict()
    with pytest.raises(ValueError, match="other chunks, windows"):
        numbered(20).td.batches(2, window={"time": 4}, stride=3).load_state_dict({**state, "samples": 6})


@pytest.mark.parametrize("state", [{}, {"epoch": 1, "model": 3}])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(ValueError, match="expected what state_dict"):
        numbered(4).td.batches(2).load_state_dict(state)


def test_a_state_without_workers_is_refused_in_workers():
    alone, data = dataset(True), dataset(True)
    next(iter(alone))
    data.load_state_dict(alone.state_dict())
    loader = DataLoader(data, batch_size=None, num_workers=2, collate_fn=data.collate, multiprocessing_context="fork")
    with pytest.raises(ValueError, match="taken with num_workers=0, and is resumed with num_workers=2"):
        list(loader)


def test_a_state_can_be_saved_by_torch_as_weights(tmp_path):
    batches = numbered(20).td.batches(4, shuffle=True)
    next(iter(batches))
    torch.save(batches.state_dict(), tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == batches.state_dict()
