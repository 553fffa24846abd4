"""The summary as text: ``print(ds.td)``. Lists are cut at :data:`~.summary.LONGEST` lines."""

from __future__ import annotations

from collections.abc import Sequence

from .summary import LONGEST, GroupLine, Row, Section, Summary, batch_text, size_text


def summary_text(summary: Summary) -> str:
    """The text of ``ds.td``."""
    total = f", {size_text(summary.nbytes)}" if summary.nbytes else ""
    lines = [f"<xarray_tensordict> batch ({batch_text(summary.batch)}){total}", f"    why: {summary.reason}"]
    lines += [f"    {sentence}" for sentence in summary.evidence]
    if summary.groups:
        texts = [f"{group.path}: ({group.batch})" for group in summary.groups]
        lines += ["Groups with a batch of their own:", *_indented(texts, len(texts))]
    for section in summary.sections:
        lines += [f"{section.title}:", *_indented(_table(section), section.total)]
    if summary.left_out:
        lines += ["Left out:", *_indented(summary.left_out, len(summary.left_out))]
    if summary.hidden:
        lines.append(f"Not shown: {summary.hidden}")
    lines += [f"    note: {note}" for note in summary.notes]
    return "\n".join(lines)


def tree_text(groups: Sequence[GroupLine]) -> str:
    """The text of ``dt.td``."""
    lines = ["<xarray_tensordict tree>"]
    for group in groups[:LONGEST]:
        lines += [f"{group.path}: batch ({group.batch})", f"    why: {group.reason}"]
    if len(groups) > LONGEST:
        lines.append(f"... and {len(groups) - LONGEST} more groups")
    return "\n".join(lines)


def cells(row: Row) -> tuple[str, ...]:
    """What a table shows of one entry: name, dtype, feature shape, dims, layout."""
    return (row.name, row.dtype, str(list(row.shape)), f"({', '.join(row.dims)})", row.layout)


def cut(lines: Sequence[str], total: int) -> list[str]:
    """The first of `total` lines, and how many more there are."""
    shown = list(lines[:LONGEST])
    return [*shown, f"... and {total - len(shown)} more"] if total > len(shown) else shown


def _indented(lines: Sequence[str], total: int) -> list[str]:
    return [f"    {line}" for line in cut(lines, total)]


def _table(section: Section) -> list[str]:
    table = [cells(row) for row in section.rows[:LONGEST]]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in table)
    return ["  ".join(row).rstrip() for row in padded]
