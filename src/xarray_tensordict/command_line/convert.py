"""``xarray-tensordict convert``: from any store that opens to any kind that can be written, block by block."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

import xarray as xr

from ..core.messages import check_choice
from ..dataset.entries import Names, chosen_names, plan_entries
from ..dataset.records import opening_notes
from ..formats.registry import TARGETS, is_url, target_by_ending


def target_kind(path: str, to: str | None) -> str:
    """What to write, by the ending of the path or by `to`; raises ``ValueError`` where neither names a format.

    Examples
    --------
    >>> target_kind("a/b.zarr.zip", None), target_kind("folder", "memmap")
    ('zip', 'memmap')
    """
    found = target_by_ending(path)
    if to is not None:
        check_choice("to", to, tuple(TARGETS))
    chosen = "zip" if to == "zarr" and found == "zip" else to or found
    if chosen is None:
        endings = [ending for name, each in TARGETS.items() for ending in each.targets[name]]
        raise ValueError(
            f"{path}: the ending does not name a format; pass --to ({', '.join(TARGETS)}), or use one of the endings "
            f"{', '.join(endings)}"
        )
    return chosen


def convert(
    source: Any,
    target: str,
    *,
    to: str | None = None,
    layout: str = "tensordict",
    chunks: Mapping[str, int | str] | None = None,
    shards: Mapping[str, int | str] | None = None,
    unbatched: Literal["keep", "drop"] = "keep",
    include: Names | None = None,
    exclude: Names = (),
    overwrite: bool = False,
    progress: bool = False,
    **engine_keywords: Any,
) -> list[str]:
    """Convert a store block by block; the parameters are those of the command.

    Returns
    -------
    list of str
        The variables that ``unbatched="drop"`` left out.

    Raises
    ------
    FileExistsError
        For an existing target, without `overwrite`.
    ValueError
        For a name in `include` or `exclude` that the store does not have, and for shards of another format.
    """
    kind = target_kind(target, to)
    if shards and kind not in ("zarr", "zip"):
        raise ValueError(f"{target}: only zarr has shards, and this is {kind}; leave out --shard")
    if not overwrite and not is_url(target) and os.path.exists(target):
        raise FileExistsError(f"{target} exists already; choose another target, or pass --overwrite")
    opened, dropped = _open(source, engine_keywords), []
    if include is not None or exclude or unbatched == "drop":
        with opened:
            flat = opened if isinstance(opened, xr.Dataset) else opened.td.to_dataset()
            plan = plan_entries(flat, flat.td.infer(), include=include, exclude=exclude)
            others = set(flat.variables) - chosen_names(flat, include, exclude)
        dropped = [entry.name for entry in plan.unbatched if unbatched == "drop"]
        # with a slash in front: a name alone is that of variables in all groups
        left_out = [*engine_keywords.pop("drop_variables", ()), *(f"/{name}" for name in (*others, *dropped))]
        opened = _open(source, {**engine_keywords, "drop_variables": left_out})
    with opened:
        options: dict[str, Any] = {"mode": "w" if overwrite else "w-", "layout": layout, "chunks": chunks}
        options |= {"shards": shards} if shards else {}
        TARGETS[kind].write(opened, target, progress=progress, **options)
    return dropped


def _open(source: Any, engine_keywords: Mapping[str, Any]) -> Any:
    """A Dataset, or a DataTree where a flat one does not show all groups."""
    opened = xr.open_dataset(source, engine="tensordict", chunks={}, **engine_keywords)
    if not opening_notes(opened).get("hidden_groups"):
        return opened
    opened.close()
    return xr.open_datatree(source, engine="tensordict", chunks={}, **engine_keywords)
