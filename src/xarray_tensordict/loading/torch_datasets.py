"""Datasets for torch's ``DataLoader``: one of single samples, one of batches."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr
from tensordict import TensorDict, TensorDictBase
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from ..core.model import Inference
from ..core.suggest import there_are
from .batches import Batches, open_batches, open_rows, read_samples
from .epochs import Epochs
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
    where several DataLoaders iterate over one dataset at the same time.
    """

    collate: ClassVar[Callable[[Any], Any]] = staticmethod(collate)

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        self._epochs = Epochs(batches.epoch)

    def __len__(self) -> int:
        return len(self.batches)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration runs, in workers that are running already, too."""
        self.batches.set_epoch(epoch)
        self._epochs.choose(self.batches.epoch)

    def __iter__(self) -> Iterator[TensorDict]:
        info = get_worker_info()
        epoch = self._epochs.begin(info)
        return self.batches.run(epoch) if info is None else self.batches.run(epoch, info.id, info.num_workers)

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
