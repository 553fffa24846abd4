"""What the command prints: rich tables for people, JSON for scripts."""

from __future__ import annotations

import json
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..show.inspection import Inspection, TensorEntry
from ..show.summary import Row, batch_text, size_text
from .check import Finding

_COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red"}


def print_json(value: Any) -> None:
    """Print JSON to standard output, and nothing else."""
    Console(soft_wrap=True, markup=False, highlight=False).print(json.dumps(value, indent=2, default=str))


def print_inspection(found: Inspection, *, longest: int | None) -> None:
    """Both doors side by side: each variable, and the entry it is in the tensordict."""
    console = Console()
    summary = found.dataset
    size = f", {size_text(summary.nbytes)}" if summary.nbytes else ""
    console.print(
        f"[bold]{escape(found.store)}[/]: {found.kind}, batch ([bold]{escape(batch_text(summary.batch))}[/]){size}"
    )
    for sentence in (f"why: {summary.reason}", *summary.evidence):
        console.print(escape(sentence), soft_wrap=True)
    entries = {"/".join(entry.key): entry for entry in found.entries}
    for section in summary.sections:
        rows = section.rows[:longest]
        console.print(_table(f"{section.title}, {section.total}", rows, entries))
        if section.total > len(rows):
            console.print(f"... and {section.total - len(rows)} more (--all shows them)")
    for group in summary.groups[:longest]:
        console.print(f"group {escape(group.path)}: batch ({escape(group.batch)})")
    for title, texts in (
        ("left out", summary.left_out[:longest]),
        ("not shown", [summary.hidden] if summary.hidden else []),
        ("note", summary.notes),
        ("warning", found.warnings),
    ):
        for text in texts:
            console.print(f"[yellow]{title}[/]: {escape(text)}", soft_wrap=True)


def _table(title: str, rows: tuple[Row, ...], entries: dict[str, TensorEntry]) -> Table:
    table = Table(
        title=escape(title), title_justify="left", title_style="bold", header_style="dim", box=box.SIMPLE_HEAD
    )
    for column in ("variable", "dims", "layout", "tensordict key", "dtype", "shape"):
        table.add_column(column, overflow="fold")
    for row in rows:
        entry = entries.get(row.name)
        key = "" if entry is None else repr(entry.key[0] if len(entry.key) == 1 else entry.key)
        kind, shape = ("", "") if entry is None else (entry.kind, str(list(entry.shape)))
        cells = (row.name, f"({', '.join(row.dims)})", row.layout, key or "-", kind or row.dtype, shape)
        table.add_row(*map(escape, cells))
    return table


def print_findings(store: str, findings: list[Finding]) -> None:
    """One line for each finding."""
    console = Console()
    console.print(f"[bold]{escape(store)}[/]")
    for each in findings:
        colour = _COLOURS[each.level]
        console.print(f"  [{colour}]{each.level:7}[/] {escape(each.about)}: {escape(each.message)}", soft_wrap=True)
