"""``ds.td.batches``: a Dataset as batches for a training loop."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from typing import Any, Literal, NamedTuple
from zlib import crc32

import numpy as np
import torch
import xarray as xr
from tensordict import TensorDict

from ..core.model import Inference, Key, cached_property
from ..dataset.entries import Names, Unbatched, plan_entries
from ..formats import counting
from ..formats.zarr.remote import KEEP_BYTES
from .crossings import warn_of_crossings
from .kept import Values
from .order import (
    HAND_BYTES,
    HAND_MOST,
    MIXED,
    RAW_BYTES,
    READ_BYTES,
    BlockOrder,
    Blocks,
    FullOrder,
    Ints,
    Options,
    Order,
    Place,
    Shuffle,
    every,
    mixing,
    reads,
)
from .patches import PatchPart, read_patches
from .read_ahead import ReadAhead, in_order, plan_blocks
from .reader import Part, RowReader
from .samples import Samples, for_windows, samples_of, whole_number
from .stats import Meter, Stats, stats_of


class _Read(NamedTuple):
    """What was read at once: for the parts of batches in it their first positions and their ends."""

    parts: Sequence[Part | PatchPart]
    firsts: list[int]
    lasts: list[int]


class BatchIterator(Iterator[TensorDict]):
    """The batches of one epoch, or of one worker's part of it. Reading begins when the first one is asked for."""

    def __init__(self, batches: Batches, place: Place, meter: Meter) -> None:
        self._batches = batches
        self._place = place
        self._meter = meter
        self._source: Iterator[TensorDict] | None = None

    def __next__(self) -> TensorDict:
        if self._source is None:
            self._source = self._batches.made_from(self._place, self._meter)
        batch = next(self._source)
        self._place.position += 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        """What :meth:`load_state_dict` needs to go on behind the batch that was handed over last."""
        return self._batches.state_of(self._place)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where a state was taken; nothing is read for what came before.

        Raises
        ------
        ValueError
            For a state of other samples, or of another order.
        """
        found = self._batches.load(state)
        self.close()
        self._place, self._meter = found, self._batches.meter_of(found)

    def close(self) -> None:
        """End the threads that read ahead."""
        source, self._source = self._source, None
        if isinstance(source, ReadAhead):
            source.close()


class Batches:
    """An iterable over the batches of a Dataset, as often as one likes; made by ``ds.td.batches``.

    Each ``iter()`` starts the next epoch, which with a shuffle has another order. Nothing is read before, except `within`,
    `gaps`, labels of ``concat``, and times that may not fit into int64 nanoseconds. ``batches[i]`` is batch `i` of the next epoch.

    Attributes
    ----------
    epoch
        The epoch that the next ``iter()`` runs; :meth:`set_epoch` chooses it.
    start
        The batch that it begins with, 0 unless ``start=`` or :meth:`load_state_dict` chose another one.
    seed
        The order of an epoch depends on the seed, the epoch, the sizes of the Dataset, and with ``shuffle=True`` on its
        chunks and on `batch_size`; not on `prefetch`, nor on how dask computes.
    """

    def __init__(self, reader: RowReader, samples: Samples, blocks: Blocks, options: Options, epoch: int) -> None:
        self._reader = reader
        self._samples = samples
        self._blocks = blocks
        self.options = options
        self.epoch = epoch
        self.start = 0
        self.place: Place | None = None
        self._meter: Meter | None = None
        self._last_order: tuple[tuple[int, int], Order] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_meter": None, "_last_order": None}  # which may be as long as the Dataset

    def __len__(self) -> int:
        """The number of batches of an epoch, the same on every rank."""
        whole, rest = divmod(self._per_rank, self.options.batch_size)
        return whole + bool(rest and not self.options.drop_last)

    @property
    def _per_rank(self) -> int:
        return len(self._samples) // self.options.world_size

    @property
    def seed(self) -> int:
        return self.options.seed

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next ``iter()`` runs, as of torch's ``DistributedSampler``.

        It begins with the first batch, unless it is the one that is resumed.
        """
        if whole_number(epoch, "epoch", 0) != self.epoch:
            self.epoch, self.start, self.place = int(epoch), 0, None

    def __iter__(self) -> BatchIterator:
        place = Place(self.epoch, self.start)
        self.epoch, self.start = self.epoch + 1, 0
        return self.run(place)

    def run(self, place: Place) -> BatchIterator:
        """The batches that are still to come behind a place, which moves with them."""
        return BatchIterator(self, place, self.meter_of(place))

    def meter_of(self, place: Place) -> Meter:
        """A new meter of what comes behind a place, which is that of these batches from now on."""
        self.place = place
        self._meter = Meter(place, ahead=self.options.prefetch > 0)
        return self._meter

    def __getitem__(self, number: int) -> TensorDict:
        """Read one batch of the next epoch."""
        count, given = len(self), operator.index(number)
        if not -count <= given < count:
            raise IndexError(f"batch {given} of {count}: expected {-count} to {count - 1}")
        meter, numbers = Meter(Place(self.epoch)), range(given % count, given % count + 1)
        (made,) = self._cut(self._read_one_by_one(self._next_order(), numbers, meter), 1, meter)
        return made[0]

    def stats(self) -> Stats:
        """What the epoch that began last took so far, in this process; what holds it up, and what to change.

        Examples
        --------
        >>> import numpy as np, xarray as xr, xarray_tensordict
        >>> batches = xr.Dataset({"obs": (("time", "x"), np.zeros((10, 3), "f4"))}).td.batches(4)
        >>> for batch in batches:
        ...     pass
        >>> batches.stats().batches, batches.stats().samples
        (3, 10)
        """
        return stats_of(self._meter, self._reader, self._blocks, self.options, self._per_rank, self._samples.width)

    def state_dict(self) -> dict[str, Any]:
        """Where the last ``iter()`` has come to, as numbers that ``torch.save`` or JSON can hold.

        It is the same on each rank. Batches that were read ahead and not handed over count as still to come.
        """
        return self.state_of(self.place or Place(self.epoch, self.start))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next ``iter()`` go on from where a state was taken; nothing is read for what came before.

        Parameters
        ----------
        state
            What ``state_dict()`` gave. Its seed replaces that of these batches.

        Raises
        ------
        ValueError
            For a state of other samples, of another order, or of a worker of a ``DataLoader``.
        """
        place = self.load(state)
        if place.workers > 1:
            raise ValueError(
                f"load_state_dict: the state is that of worker {place.worker} of {place.workers} of a DataLoader; load the state "
                f"of the whole StatefulDataLoader into a StatefulDataLoader with num_workers={place.workers}"
            )
        self.epoch, self.start, self.place = place.epoch, place.position, None

    @cached_property
    def _facts(self) -> dict[str, Any]:
        """What the order depends on, besides seed and epoch."""
        options, windows = self.options, self._samples.windows
        crc = 0 if windows is None else crc32(windows.first.data, windows.width)
        for side in self._samples.sides:
            crc = crc32(side.starts.data, crc + side.width)
        if options.shuffle is True:
            crc = crc32(self._blocks.marks.data, crc + self._blocks.buffer)
        names = ("batch_size", "shuffle", "drop_last", "world_size")
        return {"samples": len(self._samples), **{name: getattr(options, name) for name in names}, "order": crc}

    def _next_order(self) -> Order:
        """The order of the next epoch, which is held for the next question."""
        key = self.epoch, self.seed
        if self._last_order is None or self._last_order[0] != key:
            self._last_order = key, self.order(self.epoch)
        return self._last_order[1]

    @property
    def shuffle_quality(self) -> float:
        """How well the next epoch is shuffled, from near 0 (in order) to 1 (as a random permutation).

        It is the mean distance in the Dataset of samples that follow each other, divided by the mean of all permutations of
        `n` samples, ``(n + 1) / 3``; it is computed from the first 131,072 samples of the epoch.
        """
        return mixing(self._next_order().samples(0, min(self._per_rank, MIXED)), len(self._samples))

    def state_of(self, place: Place) -> dict[str, Any]:
        """The state at a place; see :meth:`state_dict`."""
        return {**asdict(place), "seed": self.seed, **self._facts}

    def load(self, state: Mapping[str, Any]) -> Place:
        """Take the seed of a state, and return its place; see :meth:`load_state_dict`."""
        names = [*Place.__dataclass_fields__, "seed"]
        if missing := [name for name in [*names, *self._facts] if name not in state]:
            raise ValueError(
                f"load_state_dict: expected what state_dict() of batches gave, found no {missing} in {state!r:.300}"
            )
        for name, here in self._facts.items():
            if state[name] != here:
                found = f"{name}={state[name]!r}, and here it is {here!r}"
                if name == "order":
                    found = "other chunks, windows or buffer_size"
                raise ValueError(
                    f"load_state_dict: the state was taken from batches with {found}, so its position says nothing about these. "
                    f"Make them from the same store with the same arguments, or choose where to begin: batches(..., epoch=, start=)"
                )
        epoch, position, worker, workers, seed = (whole_number(state[name], name, 0) for name in names)
        self.options = replace(self.options, seed=seed)
        return Place(epoch, position, worker, workers)

    def made_from(self, place: Place, meter: Meter) -> Iterator[TensorDict]:
        """The batches that are still to come behind a place; `meter` notes what they take.

        With ``shuffle=True`` each worker has a run of them, so that it reads chunks of its own; else every
        `workers`-th, so that in turn they give the batches in order.
        """
        numbers, epoch = place.numbers(len(self), runs=self.options.shuffle is True), place.epoch
        self._reader.begin_epoch()
        if not self.options.prefetch:
            made = self._cut(self._read_one_by_one(self.order(epoch), numbers, meter), 1, meter)
            return chain.from_iterable(meter.waited_for(made))
        together, depth = self._ahead
        one_by_one = not self._blocks.read_whole or (self.options.shuffle == "full" and not self._blocks.repay_buffer)
        # the next rows are read while batches are made of the last ones; but where a read is a batch, or a few, nothing is left
        # to do in another thread
        reading = self._read_one_by_one if one_by_one and not self._reader.is_far else self._read_at_once
        return ReadAhead(lambda: self._cut(reading(self.order(epoch), numbers, meter), together, meter), depth, meter)

    def _read_one_by_one(self, order: Order, numbers: range, meter: Meter) -> Iterator[_Read]:
        for read in self._reads(order, numbers, meter):
            yield read()

    def _read_at_once(self, order: Order, numbers: range, meter: Meter) -> Iterator[_Read]:
        largest = int(np.diff(order.cuts, prepend=0).max(initial=0)) * self._samples.width * self._reader.row_bytes
        return in_order(self._reads(order, numbers, meter), largest, far=self._reader.is_far)

    @property
    def _ahead(self) -> tuple[int, int]:
        """How many batches are handed over at once, several where they are small, and how many such lists may wait."""
        together = max(1, min(HAND_MOST, HAND_BYTES // max(1, self._batch_bytes)) // 2)
        return together, max(1 if together == 1 else 2, -(-self.options.prefetch // together))

    @property
    def _batch_bytes(self) -> int:
        return self.options.batch_size * self._samples.width * self._reader.row_bytes

    def order(self, epoch: int) -> Order:
        """The order of the samples of this rank in an epoch."""
        options = self.options
        count = len(self._samples)
        if options.shuffle == "full":
            first, last = options.rank * self._per_rank, (options.rank + 1) * self._per_rank
            together = max(self._together, self._blocks.buffer if self._blocks.repay_buffer else 0)
            return FullOrder(count, [options.seed, epoch], first, last, together)
        entropy = [options.seed, epoch] if options.shuffle else None
        order: BlockOrder = self._blocks.order(entropy, options.rank, options.world_size)
        if not self._blocks.read_whole:
            order.cuts = every(self._together, self._per_rank)
        return order

    @property
    def _together(self) -> int:
        """How many samples are read at once where no chunks say so: whole batches."""
        together = RAW_BYTES if self._reader.is_straight else READ_BYTES
        return self.options.batch_size * max(1, together // max(1, self._batch_bytes))

    def _reads(self, order: Order, numbers: range, meter: Meter) -> Iterator[Callable[[], _Read]]:
        """The reads of what the batches of these numbers need, each row once for all parts that are read together."""
        size, cuts = self.options.batch_size, order.cuts
        if numbers and self.options.shuffle and not self._samples.sides and self._reader.keeps_far:
            # the first batch waits for its own chunks, not for those of its buffer; they are kept for the next read
            cuts = np.union1d(cuts, [min((numbers[0] + 1) * size, cuts[-1])])
        for firsts, lasts in reads(cuts, size, numbers):
            spans = [(firsts[0], lasts[-1])] if numbers.step == 1 else zip(firsts, lasts, strict=True)
            samples = [order.samples(int(first), int(last)) for first, last in spans]
            found = samples[0] if len(samples) == 1 else np.concatenate(samples)
            yield partial(meter.read, partial(self._read, found, firsts.tolist(), lasts.tolist()))

    def _read(self, samples: Ints, firsts: list[int], lasts: list[int]) -> _Read:
        return _Read(_read_parts(self._reader, self._samples, samples), firsts, lasts)

    def _cut(self, found: Iterator[_Read], together: int, meter: Meter) -> Iterator[list[TensorDict]]:
        """Cut batches from what was read, so many at once, but those of a read before the next one.

        One that lies across several reads is put together.
        """
        size, count, width = self.options.batch_size, self._per_rank, self._samples.width
        pending: list[list[Values]] = []
        with closing(found):  # type: ignore[type-var]
            for parts, firsts, lasts in found:
                begun = meter.clock()
                offset, made = 0, []
                for first, last in zip(firsts, lasts, strict=True):
                    end = offset + (last - first) * width
                    pending.append([part.pick(offset, end) for part in parts])
                    offset = end
                    if last % size and last < count:
                        continue  # the rest of the batch is in the next read
                    made.append(self._built(pending, (last - 1) % size + 1, meter))
                    pending = []
                    if len(made) == together:
                        meter.making += meter.clock() - begun
                        yield made
                        made, begun = [], meter.clock()
                meter.making += meter.clock() - begun
                if made:
                    yield made

    def _built(self, pending: Sequence[list[Values]], count: int, meter: Meter) -> TensorDict:
        picked = pending[0] if len(pending) == 1 else self._reader.join(pending)
        td = self._reader.assemble(picked, self._samples.shape(count))
        if self.options.device is None:
            return td
        begun = counting.now()
        td = _sent(td, self.options.device)
        meter.sending += counting.now() - begun
        return td

    def __repr__(self) -> str:
        options, samples = self.options, self._samples
        lines = [f"{len(self)} batches of {[*samples.shape(options.batch_size), *samples.rest]}, {samples}"]
        if options.shuffle == "full":
            lines.append(f"order: a permutation of all, seed={options.seed}, next epoch {self.epoch}")
        elif options.shuffle:
            blocks = f"{len(self._blocks.marks) - 1} blocks"
            lines.append(f"order: {blocks} shuffled, then samples in buffers of {self._blocks.buffer}")
            lines.append(f"seed={options.seed}, next epoch {self.epoch}, shuffle quality {self.shuffle_quality:.2f}")
        rest = len(samples) % options.world_size
        if options.world_size > 1:
            lines.append(
                f"rank {options.rank} of {options.world_size}" + (f"; {rest} samples left over" if rest else "")
            )
        if self._meter is not None and self._meter.batches:
            lines.append(f"{self.stats().summary}; batches.stats() has more")
        return "Batches(" + "\n        ".join(lines) + ")"


def open_batches(
    ds: xr.Dataset,
    inference: Inference,
    batch_size: int,
    *,
    shuffle: Shuffle = False,
    seed: int | None = None,
    epoch: int = 0,
    start: int = 0,
    drop_last: bool = False,
    prefetch: int = 2,
    rank: int | None = None,
    world_size: int | None = None,
    device: Any = None,
    buffer_size: int | None = None,
    **rows: Any,
) -> Batches:
    """Make the batches of a Dataset; see ``Dataset.td.batches`` for the parameters, and :func:`open_rows` for `rows`."""
    if shuffle not in (False, True, "full"):
        raise ValueError(f"shuffle: expected False, True (by chunks) or 'full', got {shuffle!r}")
    rank, world_size = _chosen_rank(rank, world_size)
    options = Options(
        batch_size=whole_number(batch_size, "batch_size", 1),
        shuffle=shuffle if shuffle == "full" else bool(shuffle),
        seed=_chosen_seed(seed, shared=bool(shuffle) and world_size > 1),
        drop_last=bool(drop_last),
        prefetch=whole_number(prefetch, "prefetch", 0),
        rank=rank,
        world_size=world_size,
        device=None if device is None else torch.device(device),
    )
    samples, reader = open_rows(ds, inference, **rows)
    if 0 < len(samples) < world_size:
        raise ValueError(f"world_size={world_size}: there are only {len(samples)} samples, so a rank would have none")
    buffer = None if buffer_size is None else whole_number(buffer_size, "buffer_size", 1)
    if not shuffle:
        reader.least_kept = 1.0  # in order, what is kept is forgotten before its turn comes again
    blocks = plan_blocks(reader, samples, options.batch_size, shuffle=shuffle is not False, buffer=buffer)
    batches = Batches(reader, samples, blocks, options, whole_number(epoch, "epoch", 0))
    batches.start = whole_number(start, "start", 0)
    if batches.start > len(batches):
        raise ValueError(f"start: expected 0 to {len(batches)}, the number of batches of an epoch, got {start}")
    return batches


def open_rows(
    ds: xr.Dataset,
    inference: Inference,
    *,
    window: Mapping[str, int] | None = None,
    stride: int | Mapping[str, int] = 1,
    within: str | Key | None = None,
    gaps: str | Key | Mapping[str, Any] | Literal[False] | None = None,
    coords: bool | Iterable[str] = True,
    unbatched: Unbatched = "drop",
    include: Names | None = None,
    exclude: Names = (),
    keep: int = KEEP_BYTES,
) -> tuple[Samples, RowReader]:
    """The samples of a Dataset and what reads them."""
    windowed = for_windows(ds, inference, window)
    samples = samples_of(ds, windowed, window=window, stride=stride, within=within, gaps=gaps)
    warn_of_crossings(ds, [str(dim) for dim in inference.batch_dims], samples, within, gaps)
    plan = plan_entries(ds, windowed, coords=coords, unbatched=unbatched, include=include, exclude=exclude)
    return samples, RowReader(
        plan, samples.sizes, samples.names, unbatched=unbatched, keep=whole_number(keep, "keep", 0)
    )


def read_samples(reader: RowReader, samples: Samples, numbers: Ints) -> TensorDict:
    """Read samples at once, in the order of their numbers, each row once."""
    picked = [part.pick(0, len(numbers) * samples.width) for part in _read_parts(reader, samples, numbers)]
    return reader.assemble(picked, samples.shape(len(numbers)))


def _read_parts(reader: RowReader, samples: Samples, numbers: Ints) -> Sequence[Part | PatchPart]:
    if samples.sides:
        return read_patches(reader, samples.corners(numbers), samples.widths)
    return reader.read(samples.rows(numbers))


def _sent(td: TensorDict, device: torch.device) -> TensorDict:
    if device.type == "cuda":
        td = td.pin_memory()
    return td.to(device, non_blocking=True)


def _chosen_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if rank is None and world_size is None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    world_size = 1 if world_size is None else whole_number(world_size, "world_size", 1)
    rank = 0 if rank is None else whole_number(rank, "rank", 0)
    if rank >= world_size:
        raise ValueError(f"rank: expected 0 to {world_size - 1} of world_size={world_size}, got {rank}")
    return rank, world_size


def _chosen_seed(seed: int | None, *, shared: bool) -> int:
    if seed is not None:
        return whole_number(seed, "seed", 0)
    if shared:
        raise ValueError(
            "seed: with shuffle and world_size > 1 every rank must be given the same seed; without, the ranks would shuffle "
            "differently, and share rows"
        )
    # from torch's generator, as torch's own samplers do: torch.manual_seed makes it reproducible
    return int(torch.empty((), dtype=torch.int64).random_().item())
