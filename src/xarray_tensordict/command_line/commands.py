"""What ``check``, ``convert`` and ``bench`` do: open a store with each library, rewrite it block by block, measure how fast it is read."""

from __future__ import annotations

import math
import os
import shlex
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import xarray as xr

from ..core.model import is_url
from ..core.naming import check_choice, printable
from ..core.voting import is_made_up, is_marked
from ..dataset.entries import Names, chosen_names, plan_entries
from ..dataset.records import opening_notes
from ..formats import counting
from ..formats.registry import TARGETS, find_source, target_by_ending
from ..lazy.persistent import persistent_from_dataset
from ..loading.batches import Batches
from ..loading.stats import Stats
from ..show.summary import size_text
from ..testing import assert_same_tensordict

Level = Literal["ok", "note", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One check and its result.

    Attributes
    ----------
    level
        "ok"; "note": a fact that needs no change; "warning": values are left out or metadata was corrected; "error": a
        library does not open the store, or the two read different values.
    about
        What was checked.
    message
        What was found.
    """

    level: Level
    about: str
    message: str


def check(store: Any, *, all_values: bool = False, **engine_keywords: Any) -> list[Finding]:
    """Open a store as a Dataset, as a tensordict, with plain xarray and with plain tensordict.

    With `all_values` all values are compared, else those of the first and the last row. `engine_keywords` are those of the engine.
    """
    findings = check_group(store, all_values=all_values, **engine_keywords)
    if not engine_keywords and worst(findings) != "error":
        findings += _plain_libraries(store)
    return findings


def check_group(store: Any, *, all_values: bool, **engine_keywords: Any) -> list[Finding]:
    """Open a group of a store, and those in it, as a Dataset and as a tensordict."""
    findings: list[Finding] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            ds = xr.open_dataset(store, engine="tensordict", cache=False, **engine_keywords)
        except Exception as error:
            return [Finding("error", "open_dataset", _described(error))]
        with ds:
            batch = ", ".join(f"{dim}: {size}" for dim, size in zip(ds.td.batch_dims, ds.td.batch_size, strict=True))
            findings.append(Finding("ok", "open_dataset", f"batch ({batch or 'none'}): {ds.td.infer().reason}"))
            findings.append(_same_values(ds, all_values=all_values))
            hidden = list(opening_notes(ds).get("hidden_groups", ()))
    messages = dict.fromkeys(str(each.message) for each in caught if issubclass(each.category, UserWarning))
    findings += [Finding("warning", "open_dataset", text) for text in messages]
    findings += _hidden_groups(store, hidden, all_values=all_values, **engine_keywords)
    return findings


def _hidden_groups(store: Any, paths: list[str], *, all_values: bool, **engine_keywords: Any) -> list[Finding]:
    """Check the groups that have a batch of their own, each by itself; those that are fine are counted."""
    findings: list[Finding] = []
    for path in paths:
        found = check_group(store, all_values=all_values, **{**engine_keywords, "group": path})
        findings += [replace(each, about=f"group {path}, {each.about}") for each in found if each.level != "ok"]
    wrong = {each.about.partition(",")[0] for each in findings}
    if len(paths) > len(wrong):
        findings.append(Finding("ok", "groups", f"{len(paths) - len(wrong)} with a batch of their own are fine"))
    return findings


def worst(findings: list[Finding]) -> Level:
    """The worst level there is."""
    order: tuple[Level, ...] = ("error", "warning", "note")
    return next((level for level in order if any(each.level == level for each in findings)), "ok")


def _same_values(ds: xr.Dataset, *, all_values: bool) -> Finding:
    """Compare the values in xarray and in tensordict: all of them, or the first and the last row."""
    dims, sizes = ds.td.batch_dims, ds.td.batch_size
    whole = all_values or len(dims) != 1 or not sizes[0]
    try:
        if whole:
            assert_same_tensordict(ds.td.to_tensordict(), persistent_from_dataset(ds).to_tensordict())
        else:
            rows = [0, sizes[0] - 1]
            eager = ds.isel({dims[0]: rows}).td.to_tensordict(batch_dims=dims)
            assert_same_tensordict(eager, persistent_from_dataset(ds)[rows])
    except Exception as error:
        return Finding("error", "both libraries", _described(error))
    what = "all values" if whole else "the first and the last row"
    return Finding("ok", "both libraries", f"{what} are the same in xarray and in tensordict")


def _plain_libraries(store: Any) -> list[Finding]:
    """What xarray and tensordict see without this package; it matters to those who share the store with them."""
    source = find_source(store)
    engine, backend = source.format.engine, source.format.backend
    if engine is None or backend is None:
        return []
    from tensordict import TensorDict

    def by_tensordict() -> str:
        return f"batch size {list(getattr(TensorDict, f'from_{backend}')(source.value).batch_size)}"

    def by_xarray() -> str:
        with xr.open_dataset(source.value, engine=engine) as ds:
            return f"variables {sorted(map(str, ds.variables))[:10]}, dims {dict(ds.sizes)}"

    found = []
    for about, look in (("plain tensordict", by_tensordict), ("plain xarray", by_xarray)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found.append(Finding("ok", about, look()))
            except Exception as error:
                found.append(Finding("note", about, f"does not open it ({_described(error)})"))
    return found


def _described(error: BaseException) -> str:
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {str(error).strip() or 'without a message'}{notes}"


def target_kind(path: str, to: str | None) -> str:
    """What to write, by the ending of the path or by `to`; raises ``ValueError`` where neither names a format.

    Examples
    --------
    >>> target_kind("a/b.zarr.zip", None), target_kind("folder", "memmap")
    ('zip', 'memmap')
    """
    found = target_by_ending(path)
    if to is not None:
        check_choice("to", to, tuple(TARGETS))
    chosen = "zip" if to == "zarr" and found == "zip" else to or found
    if chosen is None:
        endings = [ending for name, each in TARGETS.items() for ending in each.targets[name]]
        raise ValueError(
            f"{path}: the ending does not name a format; pass --to ({', '.join(TARGETS)}), or use one of the endings "
            f"{', '.join(endings)}"
        )
    return chosen


def convert(
    source: Any,
    target: str,
    *,
    to: str | None = None,
    layout: str = "tensordict",
    chunks: Mapping[str, int | str] | None = None,
    shards: Mapping[str, int | str] | None = None,
    unbatched: Literal["keep", "drop"] = "keep",
    include: Names | None = None,
    exclude: Names = (),
    overwrite: bool = False,
    progress: bool = False,
    **engine_keywords: Any,
) -> list[str]:
    """Convert a store block by block; the parameters are those of the command.

    Returns
    -------
    list of str
        The variables that ``unbatched="drop"`` left out.

    Raises
    ------
    FileExistsError
        For an existing target, without `overwrite`.
    ValueError
        For a name in `include` or `exclude` that the store does not have, and for shards of another format.
    """
    kind = target_kind(target, to)
    if shards and kind not in ("zarr", "zip"):
        raise ValueError(f"{target}: only zarr has shards, and this is {kind}; leave out --shard")
    if not overwrite and not is_url(target) and os.path.exists(target):
        raise FileExistsError(f"{target} exists already; choose another target, or pass --overwrite")
    opened, dropped = _open(source, engine_keywords), []
    if include is not None or exclude or unbatched == "drop":
        with opened:
            flat = opened if isinstance(opened, xr.Dataset) else opened.td.to_dataset()
            plan = plan_entries(flat, flat.td.infer(), include=include, exclude=exclude)
            others = set(flat.variables) - chosen_names(flat, include, exclude)
        dropped = [entry.name for entry in plan.unbatched if unbatched == "drop"]
        # with a slash in front: a name alone is that of variables in all groups
        left_out = [*engine_keywords.pop("drop_variables", ()), *(f"/{name}" for name in (*others, *dropped))]
        opened = _open(source, {**engine_keywords, "drop_variables": left_out})
    with opened:
        options: dict[str, Any] = {"mode": "w" if overwrite else "w-", "layout": layout, "chunks": chunks}
        options |= {"shards": shards} if shards else {}
        TARGETS[kind].write(opened, target, progress=progress, **options)
    return dropped


def _open(source: Any, engine_keywords: Mapping[str, Any]) -> Any:
    """A Dataset, or a DataTree where a flat one does not show all groups."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opened = xr.open_dataset(source, engine="tensordict", chunks={}, **engine_keywords)
    if not opening_notes(opened).get("hidden_groups"):
        for each in caught:  # of a Dataset that is not used, the groups that it does not show
            warnings.warn(each.message, each.category, stacklevel=2)
        return opened
    opened.close()
    return xr.open_datatree(source, engine="tensordict", chunks={}, **engine_keywords)


_MOST = 64 << 20
"""So many bytes, decoded, are read in each run, and copied, at most."""
_CHUNK = 1 << 20
"""About the size of chunks that suit training."""
_FASTER = 1.2
"""A layout that is faster by less than this is not worth a copy."""
_FEWEST = 4
"""An epoch of fewer batches takes about as long as starting it."""
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
        if self.runs[_SHUFFLED].batches < _FEWEST:
            return (
                f"An epoch has fewer than {_FEWEST} batches, which is too little to compare layouts; pass a smaller --batch-size, "
                f"or longer --seconds."
            )
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
        Where there are no rows, because there is no batch dim; for `seconds` that are no positive number.
    """
    if not 0 < seconds < math.inf:
        raise ValueError(f"--seconds: expected a positive number of seconds, found {seconds}")
    with ExitStack() as stack:
        ds = stack.enter_context(xr.open_dataset(store, engine="tensordict", cache=False, **engine_keywords))
        dims, end = ds.td.batch_dims, counting.now() + seconds
        if not dims or not ds.sizes[dims[0]]:
            why = ds.td.infer().explained
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
        # names that were made up for a store without any are not written; its batch is the first axes
        nameless = any(is_marked(dim) or is_made_up(dim, ds.sizes[dim]) for dim in dims)
        chosen = len(dims) if nameless else list(dims)
        for arguments, path, failed in _copies(part.compute(), {dim: total}, folder, also_memmap=not is_memmap):
            if failed:
                notes.append(f"no copy with {arguments}: {failed}")
                continue
            copy = stack.enter_context(xr.open_dataset(path, engine="tensordict", batch_dims=chosen, cache=False))
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
