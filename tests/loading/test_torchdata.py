"""torchdata's ``StatefulDataLoader`` over the iterable dataset: it goes on in the middle of an epoch."""

import itertools
import pickle

import pytest

from loading_samples import ROWS, episodes, numbered, rows_of

stateful_dataloader = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
# torchdata 0.11 calls a function that torch 2.13 is about to drop
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")


def dataset(shuffle, **options):
    return episodes().td.to_torch_dataset(4, shuffle=shuffle, seed=5, buffer_size=9, **options)


def stateful(data, workers=0, **options):
    context = "fork" if workers else None
    return stateful_dataloader.StatefulDataLoader(
        data, batch_size=None, num_workers=workers, collate_fn=data.collate, multiprocessing_context=context, **options
    )


@pytest.mark.parametrize(
    ("shuffle", "workers", "persistent", "every"),
    [(True, 0, False, 1), ("full", 2, False, 1), (True, 2, True, 1), (False, 2, False, 4)],
)
def test_torchdatas_loader_resumes_in_the_epoch_it_was_in(shuffle, workers, persistent, every):
    def made():
        return stateful(dataset(shuffle), workers, persistent_workers=persistent, snapshot_every_n_steps=every)

    loader = made()
    list(loader)
    running = iter(loader)
    first = rows_of(itertools.islice(running, 6))
    state = loader.state_dict()
    rest, following = rows_of(running), rows_of(loader)
    assert sorted(itertools.chain(*first, *rest)) == list(range(ROWS))
    ended = loader.state_dict()

    again = made()
    again.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert rows_of(again) == rest
    assert rows_of(again) == following
    after = made()
    after.load_state_dict(ended)
    assert rows_of(after) == rows_of(again)


def test_torchdatas_loader_reads_nothing_of_what_it_skips(counted):
    ds, chunks = counted
    loader = stateful(ds.td.to_torch_dataset(5, shuffle=True, seed=0, buffer_size=5, prefetch=0))
    running = iter(loader)
    for _ in itertools.islice(running, 15):
        pass
    state = loader.state_dict()
    chunks.clear()
    again = stateful(ds.td.to_torch_dataset(5, shuffle=True, seed=0, buffer_size=5, prefetch=0))
    again.load_state_dict(state)
    assert len(rows_of(again)) == len(chunks) == 5


def test_workers_resume_as_many_as_they_were():
    loader = stateful(dataset(True), 2)
    next(iter(loader))
    of_worker = loader.state_dict()["_snapshot"]["_worker_snapshots"]["worker_1"]["dataset_state"]
    with pytest.raises(ValueError, match="the state is that of worker 1 of 2 of a DataLoader"):
        dataset(True).load_state_dict(of_worker)
    again = stateful(dataset(True), 2)
    again.load_state_dict(loader.state_dict())
    assert len(list(again)) == len(list(loader)) - 1


def test_workers_need_the_seed_of_the_state():
    loader = stateful(numbered(20).td.to_torch_dataset(4, shuffle=True, seed=5), 1)
    next(iter(loader))
    again = stateful(numbered(20).td.to_torch_dataset(4, shuffle=True, seed=6), 1)
    again.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="make the dataset with seed=5"):
        next(iter(again))
    again = stateful(numbered(20).td.to_torch_dataset(4, shuffle=True, seed=5), 1)
    again.load_state_dict(loader.state_dict())
    assert len(list(again)) == 4
