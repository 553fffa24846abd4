"""Datasets under Lightning, which is not installed here: its loop makes the calls of :func:`fit`, in their order."""

import itertools

import pytest
from torch.utils.data import DataLoader

from loading_samples import ROWS, episodes

EPOCHS, SIZE = 4, 4


def fit(train_dataloader, epochs=EPOCHS, *, current_epoch=0, step=0, state=None, stop=None):
    """The rows of each epoch; with `stop` also the state of the loader behind so many batches of the last one.

    As of Lightning 2.6 (``FitLoop``, ``_DataFetcher``): the loader is made once, when the epoch to resume is known; a state
    is loaded in mid-epoch only; the first iterator is made before the epoch is chosen, which it is for samplers only; and an
    epoch ends behind ``len(loader)`` batches, without a look for another one.
    """
    loader = train_dataloader(current_epoch)
    if state is not None:
        loader.load_state_dict(state)
    iterator, found = iter(loader), []
    for epoch in range(current_epoch, epochs):
        if hasattr(getattr(loader, "sampler", None), "set_epoch"):
            loader.sampler.set_epoch(epoch)
        if epoch > current_epoch:
            iterator = iter(loader)
        found.append([])
        for fetched in range(step, len(loader)):
            if stop == (epoch, fetched):
                return found, loader.state_dict()
            found[-1].append(next(iterator)["n"].tolist())
        step = 0
    return found


def iterable(current_epoch, **options):
    """What the page on loading shows for ``train_dataloader``."""
    return episodes().td.to_torch_dataset(SIZE, shuffle=True, seed=0, buffer_size=9, epoch=current_epoch, **options)


def plain(current_epoch, workers=0, **options):
    data = iterable(current_epoch)
    context = "fork" if workers else None
    return DataLoader(
        data, batch_size=None, num_workers=workers, collate_fn=data.collate, multiprocessing_context=context, **options
    )


def plain_with_workers(current_epoch):
    return plain(current_epoch, 2, persistent_workers=True)


def stateful(current_epoch):
    loaders = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    data = iterable(current_epoch)
    return loaders.StatefulDataLoader(data, batch_size=None, collate_fn=data.collate)


def batches(current_epoch):
    return iterable(current_epoch).batches


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("made", [plain, plain_with_workers, stateful, iterable, batches])
def test_each_epoch_has_an_order_of_its_own_and_one_that_is_resumed_has_that_of_its_number(made):
    whole = fit(made)
    for epoch in whole:
        assert sorted(len(batch) for batch in epoch) == [3] + [4] * 10
        assert sorted(itertools.chain(*epoch)) == list(range(ROWS))
    assert len({str(epoch) for epoch in whole}) == EPOCHS
    assert fit(made, current_epoch=2) == whole[2:]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("made", [stateful, iterable, batches])
def test_a_loader_with_a_state_goes_on_in_the_middle_of_an_epoch(made):
    whole = fit(made)
    before, state = fit(made, stop=(1, 5))
    assert before == [whole[0], whole[1][:5]]
    assert fit(made, current_epoch=1, step=5, state=state) == [whole[1][5:], *whole[2:]]
