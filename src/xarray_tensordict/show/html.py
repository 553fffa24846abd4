"""The summary as HTML: a header, and lists that open and close. Plain elements, since xarray's blocks are private."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from .summary import LONGEST, GroupLine, Summary
from .text import head, lists, tail

_CELL = "text-align: left; padding: 0 1em 0 0; white-space: nowrap;"


def summary_html(summary: Summary) -> str:
    """The HTML of ``ds.td``."""
    first, *more = head(summary)
    closed = {section.title for section in summary.sections if section.kind == "unbatched"}
    shown = [_list(title, rows, total, is_open=title not in closed) for title, rows, total in lists(summary)]
    return f"<div><b>xarray_tensordict</b> {escape(first)}{_lines(more)}{''.join(shown)}{_lines(tail(summary))}</div>"


def tree_html(groups: Sequence[GroupLine]) -> str:
    """The HTML of ``dt.td``."""
    rows = [(group.path, f"batch ({group.batch})", group.reason) for group in groups]
    return f"<div><b>xarray_tensordict tree</b>{_list('Groups', rows, len(rows), is_open=True)}</div>"


def _lines(texts: Iterable[str]) -> str:
    return "".join(f"<div>{escape(text)}</div>" for text in texts)


def _list(title: str, rows: Sequence[tuple[str, ...]], total: int, *, is_open: bool) -> str:
    cells = ("".join(f"<td style='{_CELL}'>{escape(cell)}</td>" for cell in row) for row in rows[:LONGEST])
    lines = [f"<tr>{row}</tr>" for row in cells]
    more = f"<div>... and {total - len(lines)} more</div>" if total > len(lines) else ""
    table = f"<table style='margin: 0 0 0.4em 1.5em'><tbody>{''.join(lines)}</tbody></table>{more}"
    return f"<details{' open' if is_open else ''}><summary>{escape(title)} ({total})</summary>{table}</details>"
