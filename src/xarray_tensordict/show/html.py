"""The summary as HTML, in the style of xarray's own reprs: a header and sections that open and close.

xarray's building blocks (``xarray.core.formatting_html``) are private; where a version lacks one, the text is shown.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from xarray.core import formatting_html

from .summary import LONGEST, GroupLine, Row, Section, Summary, size_text
from .text import cells, cut, summary_text, tree_text

_NEEDED = ("collapsible_section", "_obj_repr", "format_dims")
_MISSING = [name for name in _NEEDED if not hasattr(formatting_html, name)]

_OPEN = {"batched": True, "partial": True, "value": True, "unbatched": False}
"""Sections that are open at first."""

# The body of a section stands in a grid of xarray's: it takes all columns, and scrolls where it is wider than the frame.
_BODY = "grid-column: 1 / -1; overflow-x: auto; margin: 0 0 0.4em 1.5em; padding: 0;"
_CELL = "text-align: left; padding: 0 1em 0 0; border: none; background: none; white-space: nowrap;"


class _Shown:
    """What xarray's frame asks of an object: its text, for notebooks that are not trusted."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def summary_html(summary: Summary) -> str:
    """The HTML of ``ds.td``."""
    text = summary_text(summary)
    if _MISSING:
        return f"<pre>{html.escape(text)}</pre>"
    sizes = dict(summary.batch)
    header = [
        "<div class='xr-obj-type'>xarray_tensordict</div>",
        "<div class='xr-obj-name'>batch</div>",
        formatting_html.format_dims(sizes, sizes) or "<div class='xr-obj-name'>none</div>",
        f"<div class='xr-obj-type'>&ensp;{size_text(summary.nbytes)}</div>" if summary.nbytes else "",
    ]
    sections = [_line("Why:", summary.reason), *(_line("", sentence) for sentence in summary.evidence)]
    if summary.groups:
        sections.append(_list("Groups with a batch of their own:", _group_texts(summary.groups)))
    sections += [_entries(section) for section in summary.sections]
    if summary.left_out:
        sections.append(_list("Left out:", list(map(html.escape, summary.left_out))))
    if summary.hidden:
        sections.append(_line("Not shown:", summary.hidden))
    sections += [_line("Note:", note) for note in summary.notes]
    return str(formatting_html._obj_repr(_Shown(text), header, sections))


def tree_html(groups: Sequence[GroupLine]) -> str:
    """The HTML of ``dt.td``."""
    text = tree_text(groups)
    if _MISSING:
        return f"<pre>{html.escape(text)}</pre>"
    header = ["<div class='xr-obj-type'>xarray_tensordict tree</div>"]
    return str(formatting_html._obj_repr(_Shown(text), header, [_list("Groups:", _group_texts(groups))]))


def _line(title: str, text: str) -> str:
    """A section that does not open: a title and a sentence beside it."""
    sentence = f"<span style='white-space: normal'>{html.escape(text)}</span>"
    return _section(title, inline_details=sentence, enabled=False, collapsed=True)


def _list(title: str, items: list[str]) -> str:
    shown = "".join(f"<li style='white-space: normal'>{item}</li>" for item in cut(items, len(items)))
    details = f"<ul style='{_BODY} list-style: none'>{shown}</ul>"
    return _section(title, details=details, n_items=len(items), collapsed=False)


def _entries(section: Section) -> str:
    title, _, hint = section.title.partition(" (")
    rows = "".join(_table_row(row) for row in section.rows[:LONGEST])
    if section.total > LONGEST:
        rows += f"<tr><td style='{_CELL}'>... and {section.total - LONGEST} more</td></tr>"
    details = f"<div style='{_BODY}'><table style='border: none; margin: 0'><tbody>{rows}</tbody></table></div>"
    return _section(
        f"{html.escape(title)}:",
        inline_details=html.escape(hint.removesuffix(")")),
        details=details,
        n_items=section.total,
        collapsed=not _OPEN[section.kind],
    )


def _table_row(row: Row) -> str:
    size = "" if row.nbytes is None else size_text(row.nbytes)
    columns = [*map(html.escape, (*cells(row), size))]
    columns[0] = f"<b>{columns[0]}</b>"
    return "<tr style='background: none'>" + "".join(f"<td style='{_CELL}'>{cell}</td>" for cell in columns) + "</tr>"


def _group_texts(groups: Sequence[GroupLine]) -> list[str]:
    escaped = [map(html.escape, (group.path, group.batch, group.reason)) for group in groups]
    return [f"<b>{path}</b> ({batch}): {reason}" for path, batch, reason in escaped]


def _section(title: str, **options: Any) -> str:
    return str(formatting_html.collapsible_section(title, **options))
