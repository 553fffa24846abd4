"""The summary as text and as HTML, which show the same; plain elements, since xarray's blocks are private.

The text keeps to a width: sentences are wrapped between words, and a column that does not fit becomes a line.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import zip_longest

import xarray as xr

from ..core.inference import INHERITED
from ..core.messages import printable
from ..core.values import short_dtype
from .summary import LONGEST, GroupLine, Row, Summary, batch_text, size_text


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
