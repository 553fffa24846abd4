"""``ds.td.batches`` and ``ds.td.to_torch_dataset``: thin shells, as the rest of the accessor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import xarray as xr

from ..core.inference import BatchDims
from ..core.model import Inference, Key
from ..dataset.records import infer_dataset

if TYPE_CHECKING:
    from ..dataset.entries import Names, Unbatched
    from .batches import Batches


class BatchOptions(TypedDict, total=False):
    """The options that :meth:`LoadingMethods.batches` and :meth:`LoadingMethods.to_torch_dataset` share."""

    shuffle: bool | Literal["full"]
    seed: int | None
    drop_last: bool
    device: Any
    window: Mapping[str, int] | None
    stride: int | Mapping[str, int]
    within: str | Key | None
    gaps: str | Key | Mapping[str, Any] | Literal[False] | None
    include: Names | None
    exclude: Names
    coords: bool | Iterable[str]
    unbatched: Unbatched
    prefetch: int
    buffer_size: int | None
    keep: int
    epoch: int
    start: int
    rank: int | None
    world_size: int | None


class LoadingMethods:
    """The part of ``ds.td`` that feeds training loops."""

    _ds: xr.Dataset

    def infer(self) -> Inference:
        """The decision about the batch."""
        raise NotImplementedError

    def batches(
        self,
        batch_size: int,
        *,
        shuffle: bool | Literal["full"] = False,
        seed: int | None = None,
        drop_last: bool = False,
        device: Any = None,
        window: Mapping[str, int] | None = None,
        stride: int | Mapping[str, int] = 1,
        within: str | Key | None = None,
        gaps: str | Key | Mapping[str, Any] | Literal[False] | None = None,
        batch_dims: BatchDims | None = None,
        include: Names | None = None,
        exclude: Names = (),
        coords: bool | Iterable[str] = True,
        unbatched: Unbatched = "drop",
        prefetch: int = 2,
        buffer_size: int | None = None,
        keep: int = 256 << 20,
        epoch: int = 0,
        start: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> Batches:
        """Iterate over TensorDicts of `batch_size` rows along the first batch dim, read when they are needed.

        Parameters
        ----------
        batch_size
            Samples in a batch: rows of the first batch dim (the other batch dims stay), or windows.
        shuffle
            False keeps the order of the store. True shuffles chunks, then the rows of a buffer of whole chunks, so that each
            chunk is read once; rows of one chunk come near each other. ``"full"`` draws any permutation of all rows with the
            same probability; a chunk is read for each buffer of rows that needs it.
        seed
            The order depends on the seed and the epoch. None draws it from torch's generator; several ranks must pass it.
        drop_last
            Leave out a last batch that is not full.
        device
            Where batches are sent; to a GPU through pinned memory, without waiting.

        Samples
        -------
        window
            ``{"time": 8}``: samples are windows of so many rows along this dim, and batches have the shape
            ``[batch_size, 8, ...]`` and the names ``[None, "time", ...]``. Windows run for each index of the batch dims in
            front of it. ``{"time": 8, "lat": 32, "lon": 32}``: samples are patches along several dims, which all become
            batch dims; those of one window along the first dim follow each other.
        stride
            Rows from the start of a window to that of the next, for all dims of `window` or by dim,
            ``{"lat": 32, "lon": 32}``; with the default of 1 windows overlap.
        within
            A variable whose runs of equal values along the first dim of the window are episodes: ``"episode"``,
            ``("next", "episode")``. No window crosses the end of an episode; episodes shorter than a window are skipped.
        gaps
            A variable that rises from row to row, such as a time or the ``step`` of ``concat``. No window goes on where rows are
            missing: where it rises by more than one and a half times its most common step, or does not rise.
            ``{"time": "2h"}`` or ``{"step": 1}`` give the largest step that is no gap. Without `within` and `gaps`, a warning
            says where windows go on over missing rows of an index, or into the next ``episode``; ``False`` says that this is meant.

        Entries
        -------
        batch_dims, include, exclude, coords, unbatched
            As in :meth:`to_tensordict`.

        Reading
        -------
        prefetch
            How many batches a background thread makes ahead; 0 makes each batch when the loop asks for it.
        buffer_size
            For ``shuffle=True`` how many samples are shuffled together, for ``"full"`` how many are read together; by default
            10,000, less where they would take more than 256 MB.
        keep
            How many bytes of decoded chunks are kept for the next epoch, of stores that are compressed or far away; the least
            recently used are forgotten first. Nothing is kept of what would be forgotten before it is used
            again: of a store more than four times as large, and without a shuffle of one that is larger. 0 keeps nothing:
            each epoch reads the store as it is then.

        Epochs
        ------
        epoch
            The first epoch. Each ``iter()`` runs the next one; ``set_epoch`` chooses it.
        start
            The batch that the first epoch begins with, to resume an interrupted loop; earlier batches are not read.

        Processes
        ---------
        rank, world_size
            Each process gets the same number of batches, and no row of another. Up to ``world_size - 1``
            rows are left out of an epoch; with a shuffle others in each. By default those of ``torch.distributed`` where it
            is initialised; ``rank=0, world_size=1`` give all rows to one process.

        Returns
        -------
        Batches
            An iterable with a length, of TensorDicts that are the caller's own. Without a shuffle they are, one after the
            other, what ``to_tensordict()`` gives.

        Raises
        ------
        ValueError
            Where there is no batch dim, or an argument is out of range. Errors of reading are raised by the iterator and
            name the variable.

        Examples
        --------
        >>> import numpy as np, xarray as xr, xarray_tensordict
        >>> ds = xr.Dataset({"obs": (("time", "x"), np.zeros((10, 3), "f4"))}, coords={"episode": ("time", [0] * 6 + [1] * 4)})
        >>> [batch.batch_size for batch in ds.td.batches(4, shuffle=True, seed=0)]
        [torch.Size([4]), torch.Size([4]), torch.Size([2])]
        >>> [batch["obs"].shape for batch in ds.td.batches(4, window={"time": 3}, within="episode")]
        [torch.Size([4, 3, 3]), torch.Size([2, 3, 3])]
        """
        options = dict(locals())
        from .batches import open_batches

        inference = self._inferred(options.pop("batch_dims"))
        return open_batches(options.pop("self")._ds, inference, **options)

    def to_torch_dataset(
        self,
        batch_size: int | None = None,
        *,
        batch_dims: BatchDims | None = None,
        **options: Unpack[BatchOptions],
    ) -> Any:
        """Make a dataset for ``torch.utils.data.DataLoader``.

        Parameters
        ----------
        batch_size
            None: a map-style dataset of single samples, which the DataLoader batches and shuffles. A number: an
            ``IterableDataset`` over :meth:`batches`, shared out over the workers.
        batch_dims
            As in :meth:`batches`.
        **options
            Those of :meth:`batches`: ``window``, ``stride``, ``within``, ``gaps``, ``include``, ``exclude``, ``coords``,
            ``unbatched``, ``keep``; with a `batch_size` also ``shuffle``, ``seed``, ``drop_last``, ``prefetch``, ``buffer_size``,
            ``epoch``, ``start``, ``rank``, ``world_size``.

        Returns
        -------
        torch.utils.data.Dataset
            Either has a ``collate`` to be passed as ``collate_fn``: ``DataLoader(data, batch_size=32, shuffle=True,
            collate_fn=data.collate)`` reads the rows of a batch at once; ``DataLoader(data, batch_size=None,
            collate_fn=data.collate)`` takes batches as they are. Both can be pickled, without their data, if the Dataset
            can.

        Examples
        --------
        >>> import numpy as np, xarray as xr, xarray_tensordict
        >>> from torch.utils.data import DataLoader
        >>> data = xr.Dataset({"obs": (("time", "x"), np.zeros((10, 3), "f4"))}).td.to_torch_dataset()
        >>> len(data), data[3].batch_size
        (10, torch.Size([]))
        >>> next(iter(DataLoader(data, batch_size=4, shuffle=True, collate_fn=data.collate))).batch_size
        torch.Size([4])
        """
        from .torch_datasets import torch_dataset

        return torch_dataset(self._ds, self._inferred(batch_dims), batch_size, dict(options))

    def split(
        self, parts: Mapping[str, float], *, by: str | Key | None = None, seed: int | None = None
    ) -> dict[str, xr.Dataset]:
        """Split into parts for training, validation and test, without a row of one near those of another.

        Parameters
        ----------
        parts
            The share of the rows of each part: ``{"train": 0.8, "val": 0.1, "test": 0.1}``. Shares may add up to less than 1.
        by
            What is kept together. None: chunks along the first batch dim (rows where nothing is chunked), so that no chunk is
            read for two parts. The name of a variable along one of the batch dims, such as ``"episode"`` or ``"time"``: rows of
            the same value. It is read. The name of a batch dim without coordinate: nothing, rows are cut anywhere.
        seed
            None: the first rows are the first part, the following ones the second. With `by` they are ordered by value if that
            is a number or a time, else as they appear. A number: chunks or values are drawn at random, the same ones for
            the same seed; the rows of each part stay in their order.

        Returns
        -------
        dict of Dataset
            For each part a lazy selection of the rows. The cuts are those nearest to the shares.

        Raises
        ------
        ValueError
            Where there is no batch dim, shares add up to more than 1, or a part would be empty.

        Examples
        --------
        >>> import numpy as np, xarray as xr, xarray_tensordict
        >>> ds = xr.Dataset({"obs": (("time", "x"), np.zeros((10, 3), "f4"))}, coords={"episode": ("time", [0] * 6 + [1] * 4)})
        >>> {name: dict(part.sizes)["time"] for name, part in ds.td.split({"train": 0.7, "test": 0.3}).items()}
        {'train': 7, 'test': 3}
        >>> ds.td.split({"train": 0.7, "test": 0.3}, by="episode")["train"].sizes["time"]
        6
        """
        from .splits import split

        return split(self._ds, self.infer(), parts, by=by, seed=seed)

    def _inferred(self, batch_dims: BatchDims | None) -> Inference:
        return self.infer() if batch_dims is None else infer_dataset(self._ds, given=batch_dims)
