"""The summary as text: ``print(ds.td)``, and the parts that text and HTML both show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

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
