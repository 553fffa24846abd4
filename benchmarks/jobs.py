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

SIDES = ("this package", "tensordict", "xarray", "other", "limit")
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
    texts: tuple[int, ...] = (100_000, 1_000_000)
    batch: int = 256


TINY = Sizes(64, (2, 3), 16, 8, 5, (2, 4), (20, 40), 8)


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
    """The results in markdown: milliseconds, and how many times as long the others take."""
    lines = [
        f"| job | this package | {' | '.join(SIDES[1:])} | tensordict / this | xarray / this | other / this | this / limit |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for job in jobs:
        here = job.times["this package"]
        cells = [_shown(job.times.get(side)) for side in SIDES]
        if "other" in job.times:
            cells[3] = f"{job.other} {cells[3]}"
        ratios = [
            _ratio(job.times.get("tensordict"), here),
            _ratio(job.times.get("xarray"), here),
            _ratio(job.times.get("other"), here),
            _ratio(here, job.times.get("limit")),
        ]
        lines.append(f"| {' | '.join([job.name, *cells, *ratios])} |")
    return "\n".join(lines)


def _shown(seconds: float | None) -> str:
    if seconds is None:
        return ""
    milliseconds = seconds * 1e3
    return f"{milliseconds:.0f}" if milliseconds >= 100 else f"{milliseconds:.2g}"


def _ratio(over: float | None, under: float | None) -> str:
    if over is None or under is None:
        return ""
    ratio = over / under
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"


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
