"""Which epoch it is, for worker processes that know nothing of each other.

The workers of a DataLoader are started anew for each epoch, with a copy of the dataset as it was, or stay and are asked
again. Either way all must run the same epoch, and the next time the next one, or they would share rows.
"""

from __future__ import annotations

import torch

_WORKERS = 1024
_ID_BITS = 32
"""Epoch and id stand in one number, so that nobody can see one without the other."""


class WorkerEpochs:
    """A table in shared memory: for each worker the epoch it began last, and the DataLoader's iteration it was in.

    Parameters
    ----------
    epoch
        The first epoch to begin.
    """

    def __init__(self, epoch: int) -> None:
        self._table = torch.zeros(_WORKERS + 1, dtype=torch.int64).share_memory_()
        self.restart(epoch)

    def restart(self, epoch: int) -> None:
        """Let `epoch` be the next that any worker begins."""
        self._table[:-1] = 0
        self._table[-1] = epoch

    def begin(self, worker: int, iteration: int | None) -> int:
        """Begin an epoch.

        Parameters
        ----------
        worker
            The number of the worker.
        iteration
            What the workers of one iteration share: the base of the DataLoader's seeds, and how many they are. It stays
            the same for workers that stay, and comes again where torch is seeded again. None without workers.

        Returns
        -------
        int
            That of the workers of the same iteration that have begun already, or the one behind the last.
        """
        if worker >= _WORKERS:
            raise ValueError(f"worker {worker}: expected no more than {_WORKERS} workers")
        same = 0 if iteration is None else iteration % (1 << (_ID_BITS - 1)) + 1
        begun = [divmod(state, 1 << _ID_BITS) for state in self._table[:-1].tolist()]
        latest = max(count for count, _ in begun)
        # only the latest epoch can be one that is just beginning: an older one of the same workers was another iteration
        is_beginning = same and (latest, same) in begun and begun[worker] != (latest, same)
        count: int = latest if is_beginning else latest + 1
        self._table[worker] = (count << _ID_BITS) | same
        return int(self._table[-1]) + count - 1
