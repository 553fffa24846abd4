"""The summary as text and as HTML, which show the same; plain elements, since xarray's blocks are private."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from ..core.messages import printable
from .summary import LONGEST, GroupLine, Row, Summary, batch_text, size_text


def summary_text(summary: Summary, longest: int | None = LONGEST) -> str:
    """The text of ``ds.td``; lists are cut at `longest` lines, None shows all."""
    first, *more = head(summary)
    lines = [f"<xarray_tensordict> {first}", *(f"    {sentence}" for sentence in more)]
    for title, rows, total in lists(summary):
        lines += [f"{title}:", *(f"    {line}" for line in cut(aligned(rows[:longest]), total))]
    return "\n".join([*lines, *tail(summary)])


def tree_text(groups: Sequence[GroupLine]) -> str:
    """The text of ``dt.td``."""
    lines = ["<xarray_tensordict tree>"]
    for group in groups[:LONGEST]:
        lines += [printable(f"{group.path}: batch ({group.batch})"), printable(f"    why: {group.reason}")]
    return "\n".join(cut(lines, len(lines) + len(groups[LONGEST:]), "groups"))


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
    cells = (row.name, row.dtype, list(row.shape), f"({', '.join(row.dims)})", row.layout)
    return tuple(printable(cell) for cell in cells)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, each column as wide as its longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return ["  ".join(row).rstrip() for row in padded]


def cut(lines: Sequence[str], total: int, what: str = "") -> Iterable[str]:
    """The lines, and how many more there are in all."""
    more = f"... and {total - len(lines)} more {what}".rstrip()
    return [*lines, more] if total > len(lines) else lines


# Colours are those of the page, so that light and dark themes fit; what is wider than the page scrolls in its own list.
_FRAME = "line-height: 1.6; max-width: 60em;"
_HEADER = "border-bottom: 1px solid rgba(128, 128, 128, 0.3); padding: 4px 0; margin-bottom: 4px;"
_BODY = "overflow-x: auto; margin: 0 0 0.4em 1.2em;"
_HEADS = ("name", "dtype", "features", "dims", "stored in")
_CELL = "text-align: left; padding: 0 1em 0 0; border: none; background: none; white-space: nowrap;"


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
    cells = [(group.path, f"batch ({group.batch})", group.reason) for group in groups]
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
    for first, *others in (map(escape, row) for row in rows[:LONGEST]):
        cells = "".join(f"<td style='{_CELL}'>{cell}</td>" for cell in (f"<b>{first}</b>", *others))
        lines.append(f"<tr style='background: none'>{cells}</tr>")
    more = f"<div>... and {total - len(lines)} more</div>" if total > len(lines) else ""
    head = "".join(f"<th style='{_CELL}'>{_grey(name)}</th>" for name in heads)
    table = f"<table style='border: none; margin: 0'><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>{more}"
    summary = f"{escape(name)} ({total}) {_grey(hint.removesuffix(')'))}"
    return (
        f"<details{' open' if is_open else ''}><summary>{summary}</summary><div style='{_BODY}'>{table}</div></details>"
    )
