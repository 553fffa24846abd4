"""The content of ``ds.td`` and ``dt.td``, as plain data, and as text and HTML that show the same. Nothing is read from a store.

The text keeps to a width: sentences are wrapped between words, and a column that does not fit becomes a line. The HTML has
plain elements, since xarray's blocks are private.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest
from typing import Any

import numpy as np
import xarray as xr

from .._compat.xarray import backend_array, in_memory, zarr_array
from ..core.inference import INHERITED
from ..core.model import GroupBatch, Inference, Key, group_name
from ..core.naming import printable
from ..core.values import is_text_dtype, short_dtype
from ..dataset.describe import hidden_text, numbered_text
from ..dataset.entries import Entry, Plan, plan_entries
from ..dataset.records import classes_of, opening_notes
from ..dataset.trees import infer, own_datasets
from ..formats.raw.arrays import RawArray

LONGEST = 20
"""How many lines of a list a repr shows; the rest is counted."""

MOST_ALIKE = 3
"""How many groups alike have a line each."""


@dataclass(frozen=True)
class Row:
    """One entry: the name of its variable (``"next/obs"`` is the entry ``("next", "obs")``) and how its values are kept.

    `dtype` is that of torch, with "ns" for times, or "str", "bytes" or "object" for what is no tensor. `shape` is the feature
    shape, that of one batch element; `dims` are all dims of the variable.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    dims: tuple[str, ...]
    layout: str


@dataclass(frozen=True)
class Section:
    """Entries of one class; `rows` are the first of them, `total` counts all."""

    kind: str
    title: str
    rows: tuple[Row, ...]
    total: int


@dataclass(frozen=True)
class GroupLine:
    """The batch of one group, or of several alike (``"/data/demo_* (30 groups)"``), and why."""

    path: str
    batch: str
    reason: str


@dataclass(frozen=True)
class Summary:
    """The content of ``ds.td``.

    `batch` has the batch dims and their sizes, `reason` the evidence in one sentence, `evidence` more of it: which arrays disagree,
    which dim came second, who did not vote and why. `groups` are those with a batch of their own, `hidden` is a sentence about
    groups that a flat Dataset does not show. `left_out` are sentences ``"'name': reason"``; `notes` are corrections of the inference
    and the tensorclasses of groups. `nbytes` is the size of the tensors in memory; Python objects are not counted.
    """

    batch: tuple[tuple[str, int], ...]
    reason: str
    evidence: tuple[str, ...]
    groups: tuple[GroupLine, ...]
    sections: tuple[Section, ...]
    left_out: tuple[str, ...]
    hidden: str
    notes: tuple[str, ...]
    nbytes: int


def summarize(ds: xr.Dataset, inference: Inference, *, longest: int | None = LONGEST) -> Summary:
    """Summarise what a Dataset becomes as a tensordict, and why; `longest` bounds the rows of a section, None gives all."""
    plan = plan_entries(ds, inference)
    batch = inference.groups[()]
    decided = _decision(ds, batch)
    own = [key for key, found in inference.groups.items() if key and found.sizes != inference.groups[key[:-1]].sizes]
    opened = opening_notes(ds)
    episodes = numbered_text(inference) if opened else []
    left_out = [
        *map(str, opened.get("left_out", ())),
        *(f"{name!r}: {reason}" for name, reason in plan.left_out.items()),
    ]
    return Summary(
        batch=tuple(zip(map(str, batch.dims), batch.sizes, strict=True)),
        reason=decided.reason,
        evidence=decided.notes,
        groups=tuple(_group_lines({key: inference.groups[key] for key in own})),
        sections=tuple(_sections(plan, longest)),
        left_out=tuple(left_out),
        hidden=hidden_text(opened.get("hidden_groups", {}), opened.get("episodes_in")),
        notes=(*inference.warnings, *_phony_dims(ds), *episodes, *map(_class_text, classes_of(ds).items())),
        # a partial entry is broadcast without copying
        nbytes=sum(entry.variable.nbytes for entry in plan.entries if entry.form == "tensor"),
    )


def summarize_tree(dt: xr.DataTree) -> tuple[GroupLine, ...]:
    """The batch of every group of a tree, and why."""
    groups, datasets = infer(dt).groups, own_datasets(dt)
    return tuple(_group_lines({key: _decision(datasets[key], batch) for key, batch in groups.items()}))


def _group_lines(groups: Mapping[Key, GroupBatch]) -> Iterator[GroupLine]:
    """A line for each group; one line for more than `MOST_ALIKE` whose names differ in numbers only, and whose batch dims agree."""
    alike: dict[Any, list[tuple[Key, GroupBatch]]] = {}
    for key, batch in groups.items():
        local = tuple(str(dim).removeprefix(".".join(key) + ".").rpartition(".")[2] for dim in batch.dims)
        alike.setdefault((re.sub(r"\d+", "*", group_name(key)), local), []).append((key, batch))
    for (path, dims), found in alike.items():
        together = len(found) > MOST_ALIKE
        for several in [found] if together else [[each] for each in found]:
            key, batch = several[0]
            sizes = list(zip(*(each.sizes for _, each in several), strict=True))
            ranges = [str(min(axis)) if min(axis) == max(axis) else f"{min(axis)} to {max(axis)}" for axis in sizes]
            text = ", ".join(f"{dim}: {size}" for dim, size in zip(dims, ranges, strict=True)) or "none"
            yield GroupLine(f"{path} ({len(several)} groups)" if together else group_name(key), text, batch.reason)


def batch_text(batch: Iterable[tuple[Any, int]]) -> str:
    """``time: 4, member: 2``, or "none"."""
    return ", ".join(f"{dim}: {size}" for dim, size in batch) or "none"


def size_text(nbytes: int) -> str:
    """A number of bytes in the unit that fits (IEC 80000-13), as "1.5 MiB"."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _class_text(found: tuple[Key, str]) -> str:
    key, name = found
    where = f" at {group_name(key)!r}" if key else ""
    return f"saved from the tensorclass {name}{where}" + ("" if key else "; to_tensordict(cls=...) gives it back")


def _decision(ds: xr.Dataset, batch: GroupBatch) -> GroupBatch:
    """The decision; that of the opening, which saw axes without names, as long as the Dataset is what was opened."""
    opened = opening_notes(ds)
    seen: Any = opened.get("batch")
    shapes = {str(name): variable.shape for name, variable in ds.variables.items()}
    same = seen is not None and (seen.dims, seen.sizes) == (batch.dims, batch.sizes) and opened["shapes"] == shapes
    return seen if same else batch


def _sections(plan: Plan, longest: int | None) -> list[Section]:
    titles = {
        "batched": "Batched" if plan.batches[()].sizes else "Entries",
        "partial": "Partial (broadcast by name)",
        "value": "One value for the whole batch",
        "unbatched": "Unbatched (left out of to_tensordict() by default; see ds.td.unbatched)",
    }
    by_kind: dict[str, list[Entry]] = {kind: [] for kind in titles}
    for entry in plan.entries:
        by_kind["value" if entry.entry_class == "unbatched" else entry.entry_class].append(entry)
    by_kind["unbatched"] = plan.unbatched
    found = {kind: entries for kind, entries in by_kind.items() if entries}
    return [Section(kind, titles[kind], tuple(map(_row, own[:longest])), len(own)) for kind, own in found.items()]


def _row(entry: Entry) -> Row:
    leading = len(entry.batch.sizes) if entry.entry_class != "unbatched" else 0
    features = tuple(entry.shape[leading:])
    dims = tuple(str(dim) for dim in entry.variable.dims)
    return Row(entry.name, _dtype_text(entry), features, dims, layout_text(entry.variable))


def _dtype_text(entry: Entry) -> str:
    if entry.form != "tensor":
        return _kind_of_objects(entry.variable)
    if entry.torch_dtype is not None:
        return entry.torch_dtype
    dtype = entry.variable.dtype
    return "int64 ns" if dtype.kind in "mM" else dtype.name


def _kind_of_objects(variable: xr.Variable) -> str:
    """``"str"``, ``"bytes"`` or ``"object"``; of objects in memory the first one decides, and nothing is read."""
    dtype = variable.dtype
    if dtype.kind in "UT" or (isinstance(dtype, np.dtype) and is_text_dtype(dtype)):
        return "str"
    first = next(variable.values.flat, None) if dtype.kind == "O" and in_memory(variable) else None
    return "str" if isinstance(first, str) else "bytes" if dtype.kind == "S" else "object"


def _phony_dims(ds: xr.Dataset) -> list[str]:
    """h5netcdf and netcdf4 number dims without a name, by the order in which they meet them."""
    made_up = sorted(str(dim) for dim in ds.dims if str(dim).startswith("phony_dim_"))
    note = (
        f"the engine that opened this made up the dims {made_up[:3]}, and shows no nested groups; "
        "xr.open_dataset(..., engine='tensordict') finds the batch of such a file"
    )
    return [note] if made_up else []


def layout_text(variable: xr.Variable) -> str:
    """How a variable is stored, in a few words; nothing is read.

    Examples
    --------
    >>> layout_text(xr.Variable("x", [1, 2]))
    'in memory'
    """
    if variable.chunks is not None:
        return f"dask chunks {_shape_text(tuple(max(sizes, default=0) for sizes in variable.chunks))}"
    if in_memory(variable) or isinstance(variable, xr.IndexVariable):
        return "in memory"
    encoding = variable.encoding
    chunks = encoding.get("chunks") or encoding.get("chunksizes")
    words = f"chunks {_shape_text(chunks)}" if chunks else "one chunk"
    if encoding.get("shards"):
        words = f"shards {_shape_text(encoding['shards'])} of {words}"
    backend = backend_array(variable)
    if isinstance(backend, RawArray):
        codec = (_compressor(variable, backend) or "compressed") if backend.is_compressed else "uncompressed"
    else:
        codec = _compressor(variable, backend)
    return f"{words}, {codec}" if codec else words


def _shape_text(sizes: Any) -> str:
    return "(" + ", ".join(str(int(size)) for size in sizes) + ")"


def _compressor(variable: xr.Variable, backend: Any) -> str:
    """The name of the compressor: zarr arrays are asked, since encodings leave the default out."""
    array = None if backend is None else zarr_array(backend)
    if array is not None:
        return ", ".join(map(_codec_name, array.compressors))
    compression = variable.encoding.get("compression")
    return str(compression) if compression else "zlib" if variable.encoding.get("zlib") else ""


def _codec_name(codec: Any) -> str:
    """``zstd`` of a codec of zarr v3 (a class ``ZstdCodec``) or v2 (numcodecs names its own)."""
    return str(getattr(codec, "codec_id", None) or type(codec).__name__.removesuffix("Codec").lower())


def summary_text(
    summary: Summary,
    longest: int | None = LONGEST,
    *,
    width: int | None = None,
    title: str = "",
    more: Iterable[str] = (),
) -> str:
    """The text of ``ds.td``, in lines of `width` characters (by default xarray's option ``display_width``).

    Lists are cut at `longest` lines, None shows all. `title` comes before the batch, `more` are lines after its reason, not wrapped.
    """
    width = width or xr.get_options()["display_width"]
    first, why, *evidence = head(summary)
    lines = [f"{title or '<xarray_tensordict>'} {first}", *wrapped(why, width), *(f"    {line}" for line in more)]
    for sentence in evidence:
        lines += wrapped(sentence, width)
    for heading, rows, total in lists(summary):
        lines += [f"{heading}:", *cut(_table(rows[:longest], width), total - len(rows[:longest]))]
    return "\n".join([*lines, *(line for text in tail(summary) for line in wrapped(text, width, ""))])


def tree_text(groups: Sequence[GroupLine]) -> str:
    """The text of ``dt.td``."""
    width = xr.get_options()["display_width"]
    lines = ["<xarray_tensordict tree>"]
    for group in groups[:LONGEST]:
        lines += wrapped(printable(f"{group.path}: batch ({group.batch})"), width, "")
        lines += wrapped(printable(f"why: {group.reason}"), width) if group.reason != INHERITED else []
    return "\n".join(cut(lines, len(groups[LONGEST:]), "groups"))


def wrapped(text: str, width: int, indent: str = "    ") -> list[str]:
    """A paragraph of lines, those behind the first further in; no word is broken."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def head(summary: Summary) -> list[str]:
    """The batch, and why."""
    size = f", {size_text(summary.nbytes)}" if summary.nbytes else ""
    lines = [f"batch ({batch_text(summary.batch)}){size}", f"why: {summary.reason}", *summary.evidence]
    return [printable(line) for line in lines]


def lists(summary: Summary) -> Iterator[tuple[str, Sequence[tuple[str, ...]], int]]:
    """The lists: a title, rows of cells, and how many rows there are in all."""
    if summary.groups:
        texts = [(printable(f"{group.path}: ({group.batch})"),) for group in summary.groups]
        yield "Groups with a batch of their own", texts, len(texts)
    for section in summary.sections:
        yield section.title, [_cells(row) for row in section.rows], section.total
    if summary.left_out:
        yield "Left out", [(printable(text),) for text in summary.left_out], len(summary.left_out)


def tail(summary: Summary) -> list[str]:
    """What comes behind the lists."""
    hidden = [f"Not shown: {summary.hidden}"] if summary.hidden else []
    return [printable(line) for line in (*hidden, *(f"note: {note}" for note in summary.notes))]


def _cells(row: Row) -> tuple[str, ...]:
    dtype, _, unit = row.dtype.partition(" ")
    features = f"[{','.join(map(str, row.shape))}]" if row.shape else ""
    tensor = f"{short_dtype(dtype)}{features} {unit}".rstrip()
    return tuple(map(printable, (row.name, tensor, f"({', '.join(row.dims)})", row.layout)))


def _table(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Rows of cells as aligned lines; where these are too wide, the last column becomes one line below."""
    if rows and len(rows[0]) == 1:
        return [line for (text,) in rows for line in wrapped(text, width)]
    lines = [f"    {line}" for line in aligned(rows)]
    if max(map(len, lines), default=0) <= width:
        return lines
    *_, last = zip(*rows, strict=True)
    below = wrapped(f"stored in: {'; '.join(dict.fromkeys(last))}", width)
    return [*(part for line in aligned([row[:-1] for row in rows]) for part in wrapped(line, width)), *below]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, each column as wide as its longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return ["  ".join(row).rstrip() for row in padded]


def cut(lines: Sequence[str], left_out: int, what: str = "") -> Iterable[str]:
    """The lines, and how many more there are."""
    return [*lines, f"    ... and {left_out} more {what}".rstrip()] if left_out > 0 else lines


# Colours are those of the page, so that light and dark themes fit. Cells wrap between words; a single word that is wider than the
# page scrolls in its own list.
_FRAME = "line-height: 1.6; max-width: 60em;"
_HEADER = "border-bottom: 1px solid rgba(128, 128, 128, 0.3); padding: 4px 0; margin-bottom: 4px;"
_BODY = "overflow-x: auto; margin: 0 0 0.4em 1.2em;"
_HEADS = ("name", "tensor", "dims", "stored in")
_CELL = "text-align: left; vertical-align: top; padding: 0 1em 0 0; border: none; background: none;"


def summary_html(summary: Summary) -> str:
    """The HTML of ``ds.td``."""
    batch, *more = head(summary)
    closed = {section.title for section in summary.sections if section.kind == "unbatched"}
    tables = {section.title for section in summary.sections}
    shown = [
        _list(title, rows, total, _HEADS if title in tables else (), is_open=title not in closed)
        for title, rows, total in lists(summary)
    ]
    return _frame("xarray_tensordict", batch, [_lines(more), *shown, _lines(tail(summary))])


def tree_html(groups: Sequence[GroupLine]) -> str:
    """The HTML of ``dt.td``."""
    cells = [(group.path, f"({group.batch})", group.reason) for group in groups]
    rows = [tuple(printable(cell) for cell in row) for row in cells]
    return _frame(
        "xarray_tensordict tree", "", [_list("Groups", rows, len(rows), ("path", "batch", "why"), is_open=True)]
    )


def _frame(title: str, text: str, parts: Iterable[str]) -> str:
    header = f"<div style='{_HEADER}'>{_grey(title)} <b>{escape(text)}</b></div>"
    return f"<div style='{_FRAME}'>{header}{''.join(parts)}</div>"


def _grey(text: str) -> str:
    return f"<span style='opacity: 0.65'>{escape(text)}</span>"


def _lines(texts: Iterable[str]) -> str:
    return "".join(f"<div>{escape(text)}</div>" for text in texts)


def _list(title: str, rows: Sequence[tuple[str, ...]], total: int, heads: Sequence[str], *, is_open: bool) -> str:
    name, _, hint = title.partition(" (")
    lines = []
    for row in rows[:LONGEST]:
        first, *others = map(escape, row)
        # of a table the name and what is behind it stay on one line; the other cells wrap
        styles = [f"{_CELL} white-space: nowrap; font-weight: bold;", f"{_CELL} white-space: nowrap;"] if heads else []
        cells = zip_longest((first, *others), styles, fillvalue=_CELL)
        lines.append(
            f"<tr style='background: none'>{''.join(f'<td style={style!r}>{cell}</td>' for cell, style in cells)}</tr>"
        )
    more = f"<div>... and {total - len(lines)} more</div>" if total > len(lines) else ""
    head = "".join(f"<th style='{_CELL}'>{_grey(name)}</th>" for name in heads)
    table = f"<table style='border: none; margin: 0'><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>{more}"
    summary = f"{escape(name)} ({total}) {_grey(hint.removesuffix(')'))}"
    return (
        f"<details{' open' if is_open else ''}><summary>{summary}</summary><div style='{_BODY}'>{table}</div></details>"
    )
