"""``xarray-tensordict bench``: how fast a store can be trained from, and whether a copy in another layout is faster."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import xarray as xr

from ..core.messages import printable
from ..formats import counting
from ..formats.registry import TARGETS, find_source
from ..loading.batches import Batches
from ..loading.stats import Stats
from ..show.summary import size_text

_MOST = 64 << 20
"""So many bytes, decoded, are read in each run, and copied, at most."""
_CHUNK = 1 << 20
"""About the size of chunks that suit training."""
_FASTER = 1.2
"""A layout that is faster by less than this is not worth a copy."""
_SHUFFLED = "shuffled"


@dataclass(frozen=True)
class Bench:
    """What was measured on a store.

    Attributes
    ----------
    rows, total
        How many rows each epoch has, and the store.
    runs
        The fastest epoch of each kind; copies in another layout are called by the arguments of ``convert``.
    notes
        Why a copy could not be made.
    """

    store: str
    rows: int
    total: int
    batch_size: int
    runs: Mapping[str, Stats]
    notes: tuple[str, ...]

    @property
    def advice(self) -> str:
        """The layout that is faster, with the command that writes it."""
        copies = {name: _rate(stats) for name, stats in self.runs.items() if name.startswith("--")}
        best = max(copies, key=copies.__getitem__, default="")
        faster = copies.get(best, 0.0) / _rate(self.runs[_SHUFFLED])
        if faster < _FASTER:
            return "None of these layouts is much faster."
        name = Path(self.store.rstrip("/")).name.partition(".")[0] or "store"
        target = f"{name}-memmap" if "memmap" in best else f"{name}-chunked.zarr"
        line = f"xarray-tensordict convert {shlex.quote(self.store)} {shlex.quote(target)} {best}"
        return f"{faster:.1f} times as fast, shuffled, from a copy:\n{printable(line)}"

    def to_dict(self) -> dict[str, Any]:
        """Everything for JSON."""
        runs = {name: {"rows_per_second": _rate(stats), **asdict(stats)} for name, stats in self.runs.items()}
        return {**asdict(self), "runs": runs, "advice": self.advice}

    def text(self) -> str:
        """A table of 80 columns."""
        size = size_text(self.runs[_SHUFFLED].nbytes)
        return "\n".join(
            [
                printable(self.store),
                f"{self.rows:,} of {self.total:,} rows, {size}, in batches of {self.batch_size}",
                f"{'':32} {'rows/s':>11} {'MB/s':>9} {'stored':>8}  bottleneck",
                *(_line(name, stats) for name, stats in self.runs.items()),
                *(printable(f"note: {note}") for note in self.notes),
                "MB/s are those of decoded values, stored those of requests and chunk files.",
                self.advice,
            ]
        )


def _rate(stats: Stats) -> float:
    return stats.samples / max(stats.seconds, 1e-9)


def _line(name: str, stats: Stats) -> str:
    seconds = max(stats.seconds, 1e-9)
    stored = "" if stats.received is None else f"{stats.received / seconds / 1e6:,.1f}"
    decoded = stats.nbytes / seconds / 1e6
    return f"{printable(name)[:32]:32} {_rate(stats):>11,.0f} {decoded:>9,.1f} {stored:>8}  {stats.bottleneck}"


def bench(store: str, *, seconds: float = 5.0, batch_size: int = 256, **engine_keywords: Any) -> Bench:
    """Train from a store for a few seconds, without a model.

    Parameters
    ----------
    store
        Anything that the engine opens.
    seconds
        About how long it takes: one part of five decides how many rows an epoch has, then all kinds of epochs run in turn.
    batch_size
        Rows in a batch.
    **engine_keywords
        Those of the engine.

    Raises
    ------
    ValueError
        Where there are no rows, because there is no batch dim.
    """
    with ExitStack() as stack:
        ds = stack.enter_context(xr.open_dataset(store, engine="tensordict", cache=False, **engine_keywords))
        dims, end = ds.td.batch_dims, counting.now() + seconds
        if not dims or not ds.sizes[dims[0]]:
            why = ds.td.infer().reason
            raise ValueError(
                f"{store}: there are no rows for batches: {why}. Pass --batch-dims, or --group for one group"
            )
        dim, total = dims[0], ds.sizes[dims[0]]
        rows = _rows(ds.td.batches(batch_size), seconds / 5, _MOST * total // max(ds.nbytes, 1))
        part, notes = ds.isel({dim: slice(0, rows)}), []
        kept = _shuffled(part, batch_size)
        _epoch(kept)
        kinds: dict[str, Callable[[], Batches]] = {
            "in order": partial(part.td.batches, batch_size),
            _SHUFFLED: partial(_shuffled, part, batch_size),
            "second epoch, kept chunks": lambda: kept,
        }
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        is_memmap = find_source(store).format is TARGETS["memmap"]
        for arguments, path, failed in _copies(part.compute(), {dim: total}, folder, also_memmap=not is_memmap):
            if failed:
                notes.append(f"no copy with {arguments}: {failed}")
                continue
            copy = stack.enter_context(xr.open_dataset(path, engine="tensordict", batch_dims=list(dims), cache=False))
            kinds[arguments] = partial(_shuffled, copy, batch_size)
        runs = {name: _epoch(make()) for name, make in kinds.items()}
        while counting.now() < end:
            again = {name: _epoch(make()) for name, make in kinds.items()}
            runs = {name: min(runs[name], again[name], key=lambda stats: stats.seconds) for name in kinds}
    return Bench(store, rows, total, batch_size, runs, tuple(notes))


def _shuffled(ds: xr.Dataset, batch_size: int) -> Batches:
    batches: Batches = ds.td.batches(batch_size, shuffle=True, seed=0)
    return batches


def _rows(batches: Batches, seconds: float, most: int) -> int:
    """How many rows are read in order in so much time, but no more than `most` of them; at least a batch."""
    end = counting.now() + seconds
    with closing(iter(batches)) as running:
        for _ in islice(running, max(1, most // batches.options.batch_size)):
            if counting.now() >= end:
                break
    return batches.stats().samples


def _epoch(batches: Batches) -> Stats:
    for _ in batches:
        pass
    return batches.stats()


def _copies(
    part: xr.Dataset, of: dict[str, int], folder: Path, *, also_memmap: bool
) -> Iterator[tuple[str, Path, str]]:
    """Copies of rows in memory in layouts that may be faster: the arguments of ``convert``, where it is, and why there is none.

    Chunks hold whole rows, about 1 MiB of the variable with most bytes, and no more than the store has along the dim of `of`.
    """
    ((dim, total),) = of.items()
    largest = max((each for each in part.variables.values() if dim in each.dims), key=lambda each: each.nbytes)
    stored = largest.encoding.get("preferred_chunks", {})
    rows = max(1, _CHUNK * part.sizes[dim] // max(1, largest.nbytes))
    cut = {str(name): size for name, size in largest.sizes.items() if name != dim and stored.get(name, size) != size}
    chunks = {dim: min(rows, total), **cut}
    arguments = " ".join(f"--chunk {shlex.quote(f'{name}={size}')}" for name, size in chunks.items())
    writers: dict[str, tuple[Path, Callable[[Path], Any]]] = {
        arguments: (folder / "copy.zarr", partial(part.td.to_zarr, chunks=chunks))
    }
    if also_memmap:
        writers["--to memmap"] = folder / "copy", part.td.to_memmap
    for given, (path, write) in writers.items():
        try:
            write(path)
        except (ValueError, TypeError, NotImplementedError, OSError) as error:
            yield given, path, str(error)
        else:
            yield given, path, ""
