"""What holds a training loop up: the seconds of its parts, which of them takes longest, and what to change."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from ..formats import counting
from ..formats.counting import COUNTED, Work
from ..show.summary import size_text
from .kept import counts_requests
from .order import Blocks, Options, Place
from .reader import RowReader

T = TypeVar("T")

_LITTLE = 0.1
"""A loop that waits for less than this part of its time is not held up."""
_SMALL = 1 << 18
"""To transfer fewer bytes than this takes less than the request for them."""
_MEMORY = 16 << 30
"""More bytes than this are not proposed to be kept."""


class Meter:
    """The seconds of one iterator, noted by the threads that work for it; entered while the loop waits. `place` moves on."""

    def __init__(self, place: Place, *, ahead: bool = False) -> None:
        self.place, self.start, self.process = place, place.position, os.getpid()
        # where no thread makes batches ahead, assembling is what is left of waiting: each look at the clock costs
        self.clock: Callable[[], float] = counting.now if ahead else float
        self._ahead = ahead
        self.waiting = self.making = self.sending = 0.0
        self.reading, self.requests = Work(), Work()
        self._first = self._asked = self._handed = 0.0

    def __enter__(self) -> None:
        """The loop begins to wait: for a batch, or for several small ones."""
        self._asked = counting.now()
        self._first = self._first or self._asked

    def __exit__(self, *_: object) -> None:
        """It gets them, or an error, or there are no more."""
        self._handed = counting.now()
        self.waiting += self._handed - self._asked

    @property
    def batches(self) -> int:
        """How many batches were handed over."""
        return self.place.position - self.start

    @property
    def loop(self) -> float:
        """What the loop took by itself, up to when it waited last."""
        return self._handed - self._first - self.waiting

    def waited_for(self, made: Iterator[T]) -> Iterator[T]:
        """The same items, which are made while the loop waits."""
        self._first = asked = counting.now()
        for found in made:
            self._handed = handed = counting.now()
            self.waiting += handed - asked
            yield found
            asked = counting.now()
        self._handed = counting.now()
        self.waiting += self._handed - asked

    @property
    def assembling(self) -> float:
        """What it took to make batches of what was read."""
        return (self.making if self._ahead else max(0.0, self.waiting - self.reading.seconds)) - self.sending

    def read(self, task: Callable[[], T]) -> T:
        """Carry out a read, in any thread."""
        token = COUNTED.set(self.requests)
        try:
            with self.reading:
                return task()
        finally:
            COUNTED.reset(token)


@dataclass(frozen=True)
class Stats:
    """Where the time of an epoch went so far, in this process. Seconds; parts that run at the same time overlap.

    Attributes
    ----------
    epoch, batches, samples, nbytes
        What was handed over. The bytes are those of the decoded samples; strings are estimated.
    loop, waiting
        The loop's own time between batches, and the time that it waited for them, up to when it waited last: small batches are
        handed over several at once.
    reading
        With a read under way: requests, files and decoding.
    requesting
        The part of `reading` with a request under way, for stores that are far away; else None: they are not measured apart.
    requests, received
        How many requests were made, or files of compressed chunks read, and the bytes of the answers. None for what reads by
        itself: HDF5, dask, local chunks that only zarr decodes, and maps of raw files.
    assembling, sending
        Cutting batches from what was read; sending them to the device.
    hits, misses
        How many chunks were found among the kept ones, and how many had to be read.
    bottleneck
        "your loop" where it hardly waits; else what takes longest: "requests" or "decoding", or "reading" where these are
        not measured apart; "assembling"; "sending". Empty before the first batch.
    advice
        What to change.
    """

    epoch: int = 0
    batches: int = 0
    samples: int = 0
    nbytes: int = 0
    loop: float = 0.0
    waiting: float = 0.0
    reading: float = 0.0
    requesting: float | None = None
    requests: int | None = None
    received: int | None = None
    assembling: float = 0.0
    sending: float = 0.0
    hits: int = 0
    misses: int = 0
    bottleneck: str = ""
    advice: str = ""

    @property
    def seconds(self) -> float:
        """What it took in all."""
        return self.loop + self.waiting

    @property
    def summary(self) -> str:
        """One sentence."""
        if not self.batches:
            return "nothing was handed over in this process; each worker of a DataLoader counts its own batches"
        share = self.waiting / max(self.seconds, 1e-9)
        return f"epoch {self.epoch}: the loop waited {share:.0%} of {self.seconds:.3g} s; bottleneck: {self.bottleneck}"

    def __repr__(self) -> str:
        if not self.batches:
            return f"Stats({self.summary})"
        parts = "requests and decoding"
        if self.requesting is not None:
            parts = f"{self.requesting:.3g} s of it with requests under way"
        lines = [
            f"epoch {self.epoch}: {self.batches} batches, {self.samples} samples, {size_text(self.nbytes)}",
            f"your loop {self.loop:.3g} s, waiting for batches {self.waiting:.3g} s; at the same time",
            f"reading {self.reading:.3g} s ({parts}), assembling {self.assembling:.3g} s, sending {self.sending:.3g} s",
        ]
        if self.requests is not None:
            lines.append(f"{self.requests} requests, {size_text(self.received or 0)}")
        if self.hits or self.misses:
            lines.append(f"chunks: {self.hits} were kept, {self.misses} were read")
        return "Stats(" + "\n      ".join([*lines, f"bottleneck: {self.bottleneck}. {self.advice}"]) + ")"


def stats_of(meter: Meter | None, reader: RowReader, blocks: Blocks, options: Options, count: int, width: int) -> Stats:
    """What an iterator took so far; nothing where there is none in this process.

    Parameters
    ----------
    meter
        That of the iterator.
    reader, blocks, options
        Those of the batches.
    count, width
        How many samples an epoch has, and how many rows a sample.
    """
    if meter is None or meter.process != os.getpid() or not meter.batches:
        return Stats()
    size = options.batch_size
    batches = count // size if options.drop_last else -(-count // size)
    own = replace(meter.place, position=0).numbers(batches, runs=options.shuffle is True)
    ended = meter.place.position == len(own) and own[-1] == batches - 1
    samples = meter.batches * size - (max(0, batches * size - count) if ended else 0)
    asked = meter.requests
    read = [column.planned.variable for column in reader.columns if column.held]
    counted = all(map(counts_requests, read)) and asked.times + asked.hits > 0
    found = Stats(
        epoch=meter.place.epoch,
        batches=meter.batches,
        samples=samples,
        nbytes=samples * width * reader.row_bytes,
        loop=meter.loop,
        waiting=meter.waiting,
        reading=meter.reading.seconds,
        requesting=asked.seconds if counted and reader.is_far else None,
        requests=asked.times if counted else None,
        received=asked.nbytes if counted else None,
        assembling=meter.assembling,
        sending=meter.sending,
        hits=asked.hits,
        misses=asked.misses,
    )
    bottleneck = _bottleneck(found)
    return replace(found, bottleneck=bottleneck, advice=_advice(found, bottleneck, reader, blocks, options))


def _bottleneck(found: Stats) -> str:
    if found.waiting < _LITTLE * found.seconds:
        return "your loop"
    stages = {"assembling": found.assembling, "sending": found.sending, "reading": found.reading}
    if found.requesting is not None:
        reading = stages.pop("reading")
        stages |= {"requests": found.requesting, "decoding": reading - found.requesting}
    return max(stages, key=stages.__getitem__)


def _advice(found: Stats, bottleneck: str, reader: RowReader, blocks: Blocks, options: Options) -> str:
    size = sum(column.entry.variable.nbytes for column in reader.columns if column.grid(keep=True) is not None)
    most, small = reader.kept.most, (found.received or 0) < _SMALL * (found.requests or 0)
    for applies, advice in (
        (bottleneck == "your loop", "Loading keeps up with it."),
        (not options.prefetch, "prefetch=2 makes batches while the loop runs."),
        (
            bottleneck in ("assembling", "sending"),
            "exclude=[...] leaves out entries that the loop does not use; a larger batch_size makes fewer batches.",
        ),
        (
            not size and all(column.raw is not None for column in reader.columns if column.held),
            "Rows are copied as they are stored: no other layout is faster.",
        ),
        (0 < size <= most and not found.hits, "The chunks are kept now: the next epoch does not read them."),
        (
            options.shuffle == "full" and blocks.read_whole and not blocks.repay_buffer,
            "shuffle=True reads each chunk once in an epoch, shuffle='full' several times.",
        ),
        (most < size <= _MEMORY, f"keep={size} holds all chunks ({size_text(size)}) from the first epoch on."),
        (bottleneck == "requests" and not small, "zarr.config.set({'async.concurrency': 128}) asks for more at once."),
        (bottleneck == "requests", "Larger chunks need fewer requests: xarray-tensordict bench STORE."),
    ):
        if applies:
            return advice
    return "xarray-tensordict bench STORE measures other layouts, such as an uncompressed copy."
