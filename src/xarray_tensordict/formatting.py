"""What ``ds.td`` shows: the decision, the sentence that says why, and what is not in the tensordict."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import replace

import xarray as xr

from .core.model import GroupBatch, Inference, group_name
from .dataset.entries import Entry, Plan, plan_entries

LONGEST = 20
"""Entries that one section of a repr lists; the rest is counted."""


def batch_text(batch: GroupBatch) -> str:
    """``time: 4, member: 2``, or "none"."""
    pairs = [f"{dim}: {size}" for dim, size in zip(batch.dims, batch.sizes, strict=True)]
    return ", ".join(pairs) or "none"


def dtype_text(entry: Entry) -> str:
    """The dtype as torch will call it."""
    if entry.form != "tensor":
        return "one object for each row" if entry.form == "rows" else "one object for all"
    if entry.torch_dtype is not None:
        return entry.torch_dtype
    dtype = entry.variable.dtype
    return f"int64 (ns, {'since 1970' if dtype.kind == 'M' else 'duration'})" if dtype.kind in "mM" else dtype.name


def _lines(entries: Iterable[Entry]) -> list[str]:
    entries = list(entries)
    rows: list[tuple[str, ...]] = []
    for entry in entries[:LONGEST]:
        lead = len(entry.batch.sizes) if entry.entry_class != "unbatched" else 0
        features = list(entry.shape[lead:]) if entry.form == "tensor" else []
        dims = ", ".join(str(dim) for dim in entry.variable.dims)
        rows.append((entry.name, dtype_text(entry), str(features), f"({dims})"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)] if rows else []
    lines = [
        "    " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    if len(entries) > LONGEST:
        lines.append(f"    ... and {len(entries) - LONGEST} more")
    return lines


def dataset_repr(ds: xr.Dataset, inference: Inference) -> str:
    """The text of ``ds.td``."""
    plan = plan_entries(ds, inference)
    batch = inference.groups[()]
    lines = [f"<xarray_tensordict> batch ({batch_text(batch)})", f"    why: {_reason(ds, inference)}"]
    own = [
        f"    {group_name(key)}: ({batch_text(found)})"
        for key, found in inference.groups.items()
        if key and found.sizes != inference.groups[key[:-1]].sizes
    ]
    if own:
        lines += ["Groups with a batch of their own:", *own[:LONGEST]]
    for title, rows in _sections(plan).items():
        if rows:
            lines += [title, *rows]
    lines += _left_out(ds, plan)
    lines += [f"    note: {warning}" for warning in inference.warnings]
    return "\n".join(lines)


def _reason(ds: xr.Dataset, inference: Inference) -> str:
    """The evidence; where the engine decided from shapes and named the dims itself, what it saw then."""
    notes = ds.encoding.get("xarray_tensordict", {})
    seen = (tuple(notes.get("batch_dims", ())), tuple(notes.get("batch_size", ())))
    if notes.get("reason") and seen == (inference.batch_dims, inference.batch_size):
        return str(notes["reason"])
    return inference.reason


def _sections(plan: Plan) -> dict[str, list[str]]:
    tensors = [entry for entry in plan.entries if entry.entry_class == "batched"]
    partial = [entry for entry in plan.entries if entry.entry_class == "partial"]
    values = [entry for entry in plan.entries if entry.entry_class == "unbatched"]
    title = "Batched:" if plan.batches[()].sizes else "Entries:"
    return {
        title: _lines(tensors),
        "Partial (broadcast by name):": _lines(partial),
        "One value for the whole batch:": _lines(values),
        "Unbatched (not in the tensordict; ds.td.unbatched, or unbatched='keep' | 'expand'):": _lines(plan.unbatched),
    }


def _left_out(ds: xr.Dataset, plan: Plan) -> list[str]:
    notes = ds.encoding.get("xarray_tensordict", {})
    told = [*notes.get("left_out", ()), *(f"{name!r}: {reason}" for name, reason in plan.left_out.items())]
    lines = ["Left out:", *(f"    {text}" for text in told[:LONGEST])] if told else []
    if len(told) > LONGEST:
        lines.append(f"    ... and {len(told) - LONGEST} more")
    hidden = notes.get("hidden_groups", {})
    if hidden:
        shown = ", ".join(f"{path} {list(sizes)}" for path, sizes in list(hidden.items())[:5])
        more = f" and {len(hidden) - 5} more" if len(hidden) > 5 else ""
        lines.append(
            f"Not shown: {len(hidden)} group{'s' if len(hidden) > 1 else ''} with a batch of their own ({shown}{more}); "
            f"open one with group='{next(iter(hidden))}', all with xr.open_datatree(...) or nested=True; episodes of different "
            f"lengths become one Dataset with dt['{parent_of(next(iter(hidden)))}'].td.concat('time')"
        )
    return lines


def parent_of(path: str) -> str:
    """The path of the group above."""
    return path.rstrip("/").rpartition("/")[0] or "/"


def tree_repr(inference: Inference) -> str:
    """The text of ``dt.td``."""
    lines = ["<xarray_tensordict tree>"]
    groups = list(inference.groups.items())
    for key, batch in groups[:LONGEST]:
        prefix = ".".join(key) + "."
        local = replace(batch, dims=tuple(str(dim).removeprefix(prefix).rpartition(".")[2] for dim in batch.dims))
        lines.append(f"{group_name(key)}: batch ({batch_text(local)})")
        lines.append(f"    why: {batch.reason}")
    if len(groups) > LONGEST:
        lines.append(f"... and {len(groups) - LONGEST} more groups")
    return "\n".join(lines)


def dataset_html(ds: xr.Dataset, inference: Inference) -> str:
    """The HTML of ``ds.td``: the same text."""
    return f"<pre>{html.escape(dataset_repr(ds, inference))}</pre>"
