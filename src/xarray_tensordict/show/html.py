"""The summary as HTML: a header, and lists that open and close. Plain elements, since xarray's blocks are private."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ..core.messages import printable
from .summary import LONGEST, GroupLine, Summary
from .text import head, lists, tail

# Colours are those of the page, so that light and dark themes fit; what is wider than the page scrolls in its own list.
_FRAME = "line-height: 1.6; max-width: 60em;"
_HEADER = "border-bottom: 1px solid rgba(128, 128, 128, 0.3); padding: 4px 0; margin-bottom: 4px;"
_BODY = "overflow-x: auto; margin: 0 0 0.4em 1.2em;"
_CELL = "text-align: left; padding: 0 1em 0 0; border: none; background: none; white-space: nowrap;"


def summary_html(summary: Summary) -> str:
    """The HTML of ``ds.td``."""
    batch, *more = head(summary)
    closed = {section.title for section in summary.sections if section.kind == "unbatched"}
    shown = [_list(title, rows, total, is_open=title not in closed) for title, rows, total in lists(summary)]
    return _frame("xarray_tensordict", batch, [_lines(more), *shown, _lines(tail(summary))])


def tree_html(groups: Sequence[GroupLine]) -> str:
    """The HTML of ``dt.td``."""
    cells = [(group.path, f"batch ({group.batch})", group.reason) for group in groups]
    rows = [tuple(printable(cell) for cell in row) for row in cells]
    return _frame("xarray_tensordict tree", "", [_list("Groups", rows, len(rows), is_open=True)])


def _frame(title: str, text: str, parts: Iterable[str]) -> str:
    header = f"<div style='{_HEADER}'>{_grey(title)} <b>{escape(text)}</b></div>"
    return f"<div style='{_FRAME}'>{header}{''.join(parts)}</div>"


def _grey(text: str) -> str:
    return f"<span style='opacity: 0.65'>{escape(text)}</span>"


def _lines(texts: Iterable[str]) -> str:
    return "".join(f"<div>{escape(text)}</div>" for text in texts)


def _list(title: str, rows: Sequence[tuple[str, ...]], total: int, *, is_open: bool) -> str:
    name, _, hint = title.partition(" (")
    lines = [f"<tr style='background: none'>{_cells(row)}</tr>" for row in rows[:LONGEST]]
    more = f"<div>... and {total - len(lines)} more</div>" if total > len(lines) else ""
    table = f"<table style='border: none; margin: 0'><tbody>{''.join(lines)}</tbody></table>{more}"
    summary = f"{escape(name)} ({total}) {_grey(hint.removesuffix(')'))}"
    return (
        f"<details{' open' if is_open else ''}><summary>{summary}</summary><div style='{_BODY}'>{table}</div></details>"
    )


def _cells(row: Sequence[str]) -> str:
    first, *others = map(escape, row)
    return "".join(f"<td style='{_CELL}'>{cell}</td>" for cell in (f"<b>{first}</b>", *others))
