"""The summary as text: ``print(ds.td)``."""

from __future__ import annotations

from .summary import Row, Summary, TreeSummary, batch_text, size_text


def summary_text(summary: Summary) -> str:
    """The text of ``ds.td``."""
    total = f", {size_text(summary.nbytes)}" if summary.nbytes else ""
    lines = [f"<xarray_tensordict> batch ({batch_text(summary.batch)}){total}", f"    why: {summary.reason}"]
    lines += [f"    {sentence}" for sentence in summary.evidence]
    if summary.groups:
        lines.append("Groups with a batch of their own:")
        lines += [f"    {group.path}: ({group.batch})" for group in summary.groups]
        lines += _more(summary.groups_total, len(summary.groups))
    for section in summary.sections:
        lines += [f"{section.title}:", *_table(section.rows), *_more(section.total, len(section.rows))]
    if summary.left_out:
        lines += ["Left out:", *(f"    {text}" for text in summary.left_out)]
        lines += _more(summary.left_out_total, len(summary.left_out))
    if summary.hidden:
        lines.append(f"Not shown: {summary.hidden}")
    lines += [f"    note: {note}" for note in summary.notes]
    return "\n".join(lines)


def tree_text(summary: TreeSummary) -> str:
    """The text of ``dt.td``."""
    lines = ["<xarray_tensordict tree>"]
    for group in summary.groups:
        lines += [f"{group.path}: batch ({group.batch})", f"    why: {group.reason}"]
    if summary.total > len(summary.groups):
        lines.append(f"... and {summary.total - len(summary.groups)} more groups")
    return "\n".join(lines)


def cells(row: Row) -> tuple[str, ...]:
    """What a table shows of one entry: name, dtype, feature shape, dims, layout."""
    return (row.name, row.dtype, str(list(row.shape)), f"({', '.join(row.dims)})", row.layout)


def _table(rows: tuple[Row, ...]) -> list[str]:
    table = [cells(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "    " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
    ]


def _more(total: int, shown: int) -> list[str]:
    return [f"    ... and {total - shown} more"] if total > shown else []
