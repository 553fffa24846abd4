"""What a job is, how it is measured, and how the results become a table."""

from __future__ import annotations

import gc
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SIDES = ("this package", "tensordict", "xarray", "other", "a loop", "limit")
"""The columns: "other" is tensorstore, h5py or xbatcher; "limit" is what the machine does without any library."""


@dataclass(frozen=True)
class Sizes:
    """How large the data is that is measured on."""

    rows: int = 16_384
    row: tuple[int, ...] = (3, 32, 32)
    chunk: int = 256
    picked: int = 64
    leaves: int = 500
    groups: tuple[int, ...] = (50, 100, 200)
    texts: int = 1_000_000
    batch: int = 256


TINY = Sizes(64, (2, 3), 16, 8, 5, (2, 4), 40, 8)


@dataclass
class Job:
    """One row of the table.

    Attributes
    ----------
    name
        What is done.
    sides
        For each column a function that does it.
    repeats
        How often each is called.
    other
        What the column "other" is here.
    shares
        The part of the work that a side does, where all of it would take too long; its time is taken for all.
    """

    name: str
    sides: Mapping[str, Callable[[], Any]]
    repeats: int = 7
    other: str = ""
    shares: Mapping[str, float] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)

    def run(self, repeats: int | None = None) -> None:
        """Measure all sides in turn, so that a machine that becomes slower does so for all; keep the medians."""
        found: dict[str, list[float]] = {side: [] for side in self.sides}
        for turn in range((repeats or self.repeats) + 1):
            for side, call in self.sides.items():
                gc.disable()
                start = time.perf_counter()
                result = call()
                taken = time.perf_counter() - start
                gc.enable()
                del result
                if turn:  # the first call warms the caches of the machine and of the libraries
                    found[side].append(taken)
        self.times = {side: statistics.median(times) / self.shares.get(side, 1) for side, times in found.items()}


Area = Callable[[Path, Sizes], Iterator[Job]]
"""A function that makes the data in a folder and yields jobs; one for each module of this folder."""


@contextmanager
def quiet() -> Iterator[None]:
    """What libraries warn of is not measured here."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def table(jobs: list[Job]) -> str:
    """The results in markdown, one table for the jobs on the same data: milliseconds, and how many times as long the others take."""
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.name.partition(": ")[0], []).append(job)
    return "\n\n".join(_table(name, group) for name, group in groups.items())


def _table(name: str, jobs: list[Job]) -> str:
    """A table with the columns that its jobs have."""
    sides = [side for side in SIDES if any(side in job.times for job in jobs)]
    others = {job.other for job in jobs if "other" in job.times}
    named = {"other": others.pop()} if len(others) == 1 else {}
    lines = [f"| {' | '.join([name, *(named.get(side, side) for side in sides)])} |", f"|---|{'---:|' * len(sides)}"]
    for job in jobs:
        label = "" if named else f"{job.other} "
        cells = [_cell(job.times.get(side), job.times["this package"], side, label) for side in sides]
        lines.append(f"| {' | '.join([job.name.partition(': ')[2] or job.name, *cells])} |")
    return "\n".join(lines)


def _cell(seconds: float | None, here: float, side: str, label: str) -> str:
    if seconds is None or side in ("this package", "limit"):
        return _shown(seconds)
    return f"{label if side == 'other' else ''}{_shown(seconds)} ({_ratio(seconds, here)}x)"


def _shown(seconds: float | None) -> str:
    if seconds is None:
        return ""
    milliseconds = seconds * 1e3
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.2g}"


def _ratio(over: float, under: float) -> str:
    ratio = over / under
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}"


def machine() -> str:
    """What it was measured on, and when."""
    import os

    import torch
    import xarray
    import zarr

    try:
        model = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
        cpu = model.split(":", 1)[1].strip()
    except (OSError, StopIteration):
        cpu = platform.processor() or platform.machine()
    try:
        load = f", load {os.getloadavg()[0]:.1f}"
    except (AttributeError, OSError):
        load = ""
    return (
        f"{time.strftime('%Y-%m-%d')}: {cpu}, {os.cpu_count()} cores{load}, {platform.system()}, "
        f"Python {platform.python_version()}, torch {torch.__version__.split('+')[0]}, zarr {zarr.__version__}, "
        f"xarray {xarray.__version__}"
    )
