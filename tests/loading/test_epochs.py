"""Which epoch an iteration runs: as a list of what began, and with two DataLoaders over one dataset."""

import copy
import itertools
import os
import pickle
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from loading_samples import numbered
from xarray_tensordict.loading.torch_datasets import Begun, Epochs, epoch_of

ROWS = 48
STARTS = [
    ("fork", False),
    ("fork", True),
    pytest.param("forkserver", True, marks=pytest.mark.slow),  # to start each of these takes seconds
    pytest.param("spawn", True, marks=pytest.mark.slow),
]


# --- the list of what began ------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 1), st.integers(1, 3)), max_size=6),
    st.randoms(use_true_random=False),
)
def test_all_workers_of_an_iteration_find_one_epoch_however_those_of_several_loaders_interleave(loaders, random):
    """Each loader has workers, a seed that others may have as well, and rounds that its workers stay for."""
    queues, process, every = [], 1, []
    for workers, seed, rounds in loaders:
        first, process = process, process + workers
        lines = [Begun(1, 0, seed, workers, first, again) for again in range(rounds)]
        queues += [list(lines) for _ in range(workers)]
        every += lines
    noted, found = [], {}
    while any(queues):
        own = random.choice([queue for queue in queues if queue]).pop(0)
        noted.append(own)
        found.setdefault(own, set()).add(epoch_of(noted, own, 0))
    for own, numbers in found.items():
        assert len(numbers) == 1, own
    assert sorted(next(iter(numbers)) for numbers in found.values()) == list(range(len(every)))


def test_processes_that_two_threads_start_in_turn_belong_to_the_iteration_of_their_seed():
    # the workers of one are the processes 1 and 3, of the other 2 and 4
    noted = [Begun(1, 0, 70, 2, 1, 0), Begun(1, 0, 80, 2, 2, 0), Begun(1, 0, 80, 2, 3, 0), Begun(1, 0, 70, 2, 2, 0)]
    assert [epoch_of(noted, own, 0) for own in noted] == [0, 1, 1, 0]


def test_a_resumed_iteration_has_the_epoch_of_its_state_and_the_next_one_follows_it():
    before, resumed, behind = Begun(1, 0, 70, 2, 1, 0), Begun(1, 0, 80, 2, 3, 0, epoch=7), Begun(1, 0, 90, 2, 5, 0)
    noted = [before, resumed, behind, resumed, behind]
    assert [epoch_of(noted, own, 2) for own in noted] == [2, 7, 8, 7, 8]
    epochs = Epochs(2)
    assert [epochs.begin(None), epochs.begin(None, 7), epochs.begin(None)] == [2, 7, 8]


def test_each_iteration_without_workers_is_the_next_epoch_and_a_copy_goes_on_from_there():
    epochs = Epochs(5)
    assert [epochs.begin(None), epochs.begin(None)] == [5, 6]
    for again in (pickle.loads(pickle.dumps(epochs)), copy.deepcopy(epochs)):
        assert [again.begin(None), again.begin(None)] == [7, 8]
    assert epochs.begin(None) == 7
    epochs.choose(2)
    assert [epochs.begin(None), epochs.begin(None)] == [2, 3]


def test_the_file_goes_with_the_dataset_and_not_with_a_fork_of_it():
    epochs = Epochs(0)
    path = epochs._path
    child = os.fork()
    if not child:
        del epochs
        os._exit(0 if os.path.exists(path) else 1)
    assert os.waitpid(child, 0)[1] == 0
    del epochs
    assert not os.path.exists(path)


# --- DataLoaders -----------------------------------------------------------------------------------------------------


def start_slowly(worker):
    time.sleep(0.1 * worker)


def dataset():
    return numbered(ROWS).td.to_torch_dataset(8, shuffle="full", seed=0)


def loader_of(data, method="fork", **options):
    return DataLoader(
        data, batch_size=None, num_workers=2, collate_fn=data.collate, multiprocessing_context=method, **options
    )


def rows_of(batches):
    return list(itertools.chain.from_iterable(batch["n"].tolist() for batch in batches))


def epochs_of(*runs):
    """Which epoch each list of rows is, found by its rows as they come from two workers."""
    expected = numbered(ROWS).td.batches(8, shuffle="full", seed=0)
    orders = [rows_of(expected) for _ in range(6)]
    return [orders.index(rows) if rows in orders else None for rows in runs]


@pytest.mark.parametrize(("method", "persistent"), STARTS)
def test_two_loaders_that_start_at_the_same_time_give_every_row_once(method, persistent):
    data = dataset()
    options = {"worker_init_fn": start_slowly, "persistent_workers": persistent}
    one, two = (loader_of(data, method, **options) for _ in range(2))
    for first in (0, 2):
        pairs = list(zip(one, two, strict=True))
        runs = [rows_of(pair[number] for pair in pairs) for number in (0, 1)]
        assert sorted(epochs_of(*runs)) == [first, first + 1]


def test_loaders_with_generators_of_one_seed_run_an_epoch_each():
    data = dataset()
    options = {"worker_init_fn": start_slowly}
    made = [loader_of(data, generator=torch.Generator().manual_seed(0), **options) for _ in range(2)]
    pairs = list(zip(*made, strict=True))
    assert sorted(epochs_of(*(rows_of(pair[number] for pair in pairs) for number in (0, 1)))) == [0, 1]
    again = loader_of(data, generator=torch.Generator().manual_seed(0))
    assert epochs_of(rows_of(again)) == [2]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_that_is_left_half_way_disturbs_no_other(persistent):
    data = dataset()
    left = loader_of(data, worker_init_fn=start_slowly, persistent_workers=persistent)
    other = loader_of(data, persistent_workers=persistent)
    iterator = iter(left)
    next(iterator)
    assert epochs_of(rows_of(other)) == [1]
    del iterator
    assert epochs_of(rows_of(left), rows_of(other), rows_of(data)) == [2, 3, 4]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_chosen_epoch_holds_for_the_iteration_that_follows(persistent):
    data = dataset()
    late = loader_of(data, worker_init_fn=start_slowly)
    iterator = iter(late)  # whose second worker begins when the epoch has been chosen
    data.set_epoch(4)
    loader = loader_of(data, persistent_workers=persistent)
    assert epochs_of(rows_of(loader), rows_of(loader)) == [4, 5]
    assert epochs_of(rows_of(iterator)) == [0]
    data.set_epoch(1)
    assert epochs_of(rows_of(loader), rows_of(loader)) == [1, 2]
