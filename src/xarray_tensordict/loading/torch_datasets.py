"""Datasets for torch's ``DataLoader``: one of single samples, one of batches, whose worker processes agree on the epoch."""

from __future__ import annotations

import operator
import os
import re
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from inspect import signature
from multiprocessing import current_process, parent_process
from multiprocessing.context import get_spawning_popen
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import xarray as xr
from tensordict import TensorDict, TensorDictBase
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from ..core.model import Inference
from ..core.naming import there_are
from .batches import Batches, BatchIterator, open_batches, open_rows, read_samples
from .order import Place
from .reader import RowReader
from .samples import Samples


def collate(samples: Any) -> Any:
    """Make a batch: of samples one by one, or of what was fetched together and is a batch already.

    For ``DataLoader(..., collate_fn=...)``, whose own function takes a TensorDict apart.
    """
    return samples if isinstance(samples, TensorDictBase) else torch.stack(list(samples))


class RowsDataset(Dataset[TensorDict]):
    """A map-style dataset: single samples, and with ``__getitems__`` those of a batch in one read.

    Made by ``ds.td.to_torch_dataset()``.
    """

    collate: ClassVar[Callable[[Any], Any]] = staticmethod(collate)

    def __init__(self, reader: RowReader, samples: Samples) -> None:
        self._reader = reader
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> TensorDict:
        try:
            number = operator.index(index)
        except TypeError:
            raise TypeError(
                f"expected the number of a sample, got {index!r}; several at once: data.__getitems__([0, 1, 2])"
            ) from None
        sample: TensorDict = self.__getitems__([number])[0]
        return sample

    def __getitems__(self, indices: Sequence[int]) -> TensorDict:
        """Read several samples at once: a TensorDict of batch ``[len(indices), ...]``."""
        given = np.asarray(indices).reshape(-1)
        if given.size and given.dtype.kind not in "iu":
            raise TypeError(f"expected the numbers of samples, got {indices!r:.80}")
        count = len(self)
        wrong = given[(given < -count) | (given >= count)]
        if len(wrong):
            raise IndexError(f"sample {wrong[0]} of {count}: expected -{count} to {count - 1}")
        numbers = given.astype(np.int64)
        return read_samples(self._reader, self._samples, np.where(numbers < 0, numbers + count, numbers))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._samples})"


class BatchesDataset(IterableDataset[TensorDict]):
    """An iterable dataset: the batches of ``ds.td.batches``, shared out over the workers of a DataLoader.

    Made by ``ds.td.to_torch_dataset(batch_size)``. Each iteration runs the next epoch, with workers and without, also
    where several DataLoaders iterate over one dataset at the same time. The dataset and its iterators have ``state_dict``
    and ``load_state_dict``, which torchdata's ``StatefulDataLoader`` calls.
    """

    collate: ClassVar[Callable[[Any], Any]] = staticmethod(collate)

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        self._epochs = Epochs(batches.epoch)
        self._resumed: Place | None = None
        self._alone = False

    def __len__(self) -> int:
        return len(self.batches)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration runs, in workers that are running already, too.

        It begins with the first batch, unless it is the one that is resumed.
        """
        if epoch == self.batches.epoch and self.batches.start and not self._epochs.begun():
            return
        self.batches.set_epoch(epoch)
        self.batches.start, self.batches.place = 0, None
        self._epochs.choose(self.batches.epoch)

    def __iter__(self) -> BatchIterator:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        resumed, self._resumed = self._resumed, None
        epoch = self._epochs.begin(info, None if resumed is None else resumed.epoch)
        if resumed is None:
            start, self.batches.start = self.batches.start if epoch == self.batches.epoch else 0, 0
            resumed = Place.behind(start, epoch, worker, workers)
            same = workers == 1 or not (start and self._alone and self.batches.options.shuffle is True)
        else:
            same = resumed.workers == workers
        if not same:
            raise ValueError(
                f"load_state_dict: the state was taken with num_workers={0 if self._alone else resumed.workers}, and is resumed with "
                f"num_workers={workers}; workers share out the batches, so resume with as many"
            )
        return self.batches.run(resumed)

    def state_dict(self) -> dict[str, Any]:
        """Where the last iteration has come to; see :meth:`Batches.state_dict`.

        Raises
        ------
        RuntimeError
            Where it ran in the workers of a ``DataLoader``, which alone know it.
        """
        if get_worker_info() is None and self._epochs.begun(workers=True):
            raise RuntimeError(
                "state_dict: the worker processes of the DataLoader know how far they are. Use the state_dict() of torchdata's "
                "StatefulDataLoader, or count the batches, and resume with to_torch_dataset(..., epoch=, start=)"
            )
        return self.batches.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on from where a state was taken; see :meth:`Batches.load_state_dict`."""
        if get_worker_info() is None:
            self.batches.load_state_dict(state)
            self._alone = True
            self._epochs.choose(self.batches.epoch)
            return
        seed = self.batches.seed
        self._resumed = self.batches.load(state)
        if self.batches.options.shuffle and seed != self.batches.seed:
            raise ValueError(
                f"load_state_dict: the state was taken with seed={self.batches.seed}, and here it is {seed}. A worker cannot change "
                f"that of later epochs: make the dataset with seed={self.batches.seed}"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.batches!r})"


def torch_dataset(
    ds: xr.Dataset, inference: Inference, batch_size: int | None, options: dict[str, Any]
) -> RowsDataset | BatchesDataset:
    """Make a dataset for torch; see ``Dataset.td.to_torch_dataset``."""
    of_rows = [*signature(open_rows).parameters][2:]
    known = [*[*signature(open_batches).parameters][3:-1], *of_rows]
    for name in options.keys() - set(known):
        raise TypeError(f"to_torch_dataset: there is no option {name!r}; {there_are(name, [*known, 'batch_dims'])}")
    if batch_size is not None:
        return BatchesDataset(open_batches(ds, inference, batch_size, **options))
    order = sorted(options.keys() - set(of_rows))
    if order:
        raise TypeError(
            f"to_torch_dataset: {', '.join(order)} can be given with a batch_size only, which gives an "
            f"IterableDataset of batches; the samples of a map-style dataset are shuffled and batched by the DataLoader"
        )
    samples, reader = open_rows(ds, inference, **options)
    return RowsDataset(reader, samples)


_CHOSEN = -1
_NO_WORKERS = -2


class Begun(NamedTuple):
    """A line of the list of iterations: that a process began its part of one, or that an epoch was chosen.

    Attributes
    ----------
    main
        The process whose iteration it is: the parent of the workers.
    choice
        How often ``set_epoch`` was called.
    seed
        The base of the seeds that torch draws for the workers of one iteration; or that it has no workers, or that
        this line chooses an epoch.
    workers
        How many workers there are.
    first
        The number of the process that is the first worker.
    again
        How often the process had begun before: workers that stay keep their seed.
    epoch
        The epoch that is chosen, or resumed; -1 for the next one.
    """

    main: int
    choice: int
    seed: int
    workers: int
    first: int
    again: int
    epoch: int = -1


def epoch_of(lines: Sequence[Begun], own: Begun, first: int) -> int:
    """The epoch of the iteration that `own` belongs to: the one behind that of the iteration which began before it.

    The order is that of the first line of each, and what is not there yet comes last. Where torch is seeded alike for two
    iterations their processes differ; those of one follow each other, or nearly so if several threads start processes.

    Parameters
    ----------
    lines
        What began.
    own
        The line of a process that begins.
    first
        The epoch of the first iteration behind a choice.

    Examples
    --------
    >>> one, two = (Begun(1, 0, seed, 2, 1, 0) for seed in (70, 80))
    >>> [epoch_of([one, two, two, one], own, 5) for own in (one, two)]
    [5, 6]
    >>> resumed = Begun(1, 0, 60, 2, 1, 0, epoch=3)
    >>> [epoch_of([resumed, one], own, 0) for own in (resumed, one)]
    [3, 4]
    """
    following = first
    begun: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for line in lines:
        if line.seed == _CHOSEN or (line.main, line.choice) != (own.main, own.choice):
            continue
        alike = begun.setdefault((line.seed, line.workers, line.again), [])
        epoch = next((epoch for process, epoch in alike if abs(line.first - process) < line.workers), None)
        if epoch is None:
            epoch = following if line.epoch < 0 else line.epoch
            following = epoch + 1
            alike.append((line.first, epoch))
        if line == own:
            return epoch
    return following


class Epochs:
    """Counts the iterations over a dataset, in this process and in the workers of its DataLoaders.

    The workers of a DataLoader are started anew for each iteration, with a copy of the dataset as it was, or stay and are
    asked again. So what begins an iteration adds a line to a file and then reads it. A file that is opened to append is
    written atomically: all find the iterations in the same order, and no lock can be left behind.

    Parameters
    ----------
    epoch
        The epoch of the first iteration.
    """

    def __init__(self, epoch: int) -> None:
        self._epoch, self._choice = epoch, 0
        self._process, self._again = os.getpid(), -1
        self._create()

    def _create(self) -> None:
        number, self._path = tempfile.mkstemp(prefix="xarray-tensordict-epochs-")
        os.close(number)
        weakref.finalize(self, _remove, self._path, os.getpid())

    def choose(self, epoch: int) -> None:
        """Let the next iteration run `epoch`, also in workers that are running already."""
        self._epoch, self._choice = epoch, self._choice + 1
        self._note(Begun(os.getpid(), self._choice, _CHOSEN, 0, 0, 0, epoch))

    def begun(self, *, workers: bool = False) -> bool:
        """Whether an iteration of this process began since the epoch was chosen, or with `workers` one of its workers."""
        own, none = (os.getpid(), self._choice), {_CHOSEN, _NO_WORKERS} if workers else {_CHOSEN}
        return any((line.main, line.choice) == own and line.seed not in none for line in self._lines())

    def begin(self, worker: Any, epoch: int | None = None) -> int:
        """Begin an iteration, or the part of one that belongs to a worker.

        Parameters
        ----------
        worker
            What torch's ``get_worker_info()`` gives: None where the dataset is iterated without workers.
        epoch
            The epoch that is resumed; None for the next one.

        Returns
        -------
        int
            The epoch, the same for all workers of the iteration.
        """
        process = os.getpid()
        self._again = self._again + 1 if process == self._process else 0
        self._process = process
        resumed = -1 if epoch is None else epoch
        if worker is None:
            own = Begun(process, self._choice, _NO_WORKERS, 1, 0, self._again, resumed)
            return epoch_of(self._note(own), own, self._epoch)
        parent = parent_process()
        main = process if parent is None else int(parent.pid or 0)
        choice, first_epoch = self._choice, self._epoch
        if self._again:  # started before an epoch may have been chosen
            chosen = [(line.choice, line.epoch) for line in self._lines() if (line.main, line.seed) == (main, _CHOSEN)]
            choice, first_epoch = max(chosen, default=(choice, first_epoch))
        number = re.search(r"\d+$", current_process().name)
        first = 0 if number is None else int(number[0]) - worker.id
        own = Begun(main, choice, worker.seed - worker.id, worker.num_workers, first, self._again, resumed)
        return epoch_of(self._note(own), own, first_epoch)

    def _note(self, line: Begun) -> list[Begun]:
        with open(self._path, "ab", buffering=0) as file:
            file.write(np.array(line, np.int64).tobytes())
        return self._lines()

    def _lines(self) -> list[Begun]:
        lines = np.fromfile(self._path, np.int64).reshape(-1, len(Begun._fields))
        return [Begun(*line) for line in lines.tolist()]

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:
            return self.__dict__  # a process that is being started goes on with the file
        own = Begun(os.getpid(), self._choice, _NO_WORKERS, 1, 0, self._again + 1)
        epoch = epoch_of(self._lines(), own, self._epoch)
        return {"_epoch": epoch, "_choice": 0, "_process": -1, "_again": -1}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "_path" not in state:
            self._create()


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:  # not a fork of it
        with suppress(OSError):
            os.remove(path)
