"""``xarray-tensordict convert``: from any store that opens to any kind that can be written, block by block."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import xarray as xr

from ..core.messages import check_choice
from ..dataset.entries import plan_entries
from ..dataset.records import opening_notes
from ..formats.registry import TARGETS, is_url, target_by_ending


def target_kind(path: str, to: str | None) -> str:
    """What to write, by the ending of the path or by the caller's word.

    Examples
    --------
    >>> target_kind("a/b.zarr.zip", None), target_kind("folder", "memmap")
    ('zip', 'memmap')

    Raises
    ------
    ValueError
        Where neither says it.
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
    exclude: Iterable[str] = (),
    overwrite: bool = False,
    progress: bool = False,
    **engine_keywords: Any,
) -> list[str]:
    """Convert a store, without ever holding a large variable in memory.

    Parameters
    ----------
    source
        Whatever the engine opens.
    target
        A path, or a URL for zarr.
    to
        "zarr", "zip", "hdf5", "memmap" or "tdz"; by default what the ending says.
    layout
        "tensordict" or "xarray", for zarr and HDF5: for whom bare arrays are arranged.
    chunks
        Chunk sizes by dim, for zarr and HDF5, in rows or as "1MiB"; by default those of `source`, or rows of about 1 MiB.
    shards
        The same for the shards of zarr; by default those of `source`.
    unbatched
        Whether variables that have no batch dim are written too.
    exclude
        Names of variables or groups to leave out.
    overwrite
        Replace what is there; else it is refused.
    progress
        Show a progress bar.

    Returns
    -------
    list of str
        The variables that ``unbatched="drop"`` left out.

    Raises
    ------
    FileExistsError
        For a target that is there, without `overwrite`.
    ValueError
        For names in `exclude` that are not there, and for shards of another format.
    """
    kind = target_kind(target, to)
    if shards and kind not in ("zarr", "zip"):
        raise ValueError(f"{target}: only zarr has shards, and this is {kind}; leave out --shard")
    if not overwrite and not is_url(target) and os.path.exists(target):
        raise FileExistsError(f"{target} exists already; choose another target, or pass --overwrite")
    opened, dropped = _open(source, engine_keywords), []
    if exclude or unbatched == "drop":
        with opened:
            flat = opened if isinstance(opened, xr.Dataset) else opened.td.to_dataset()
            plan = plan_entries(flat, flat.td.infer(), exclude=exclude)
        dropped = [entry.name for entry in plan.unbatched if unbatched == "drop"]
        left_out = [*engine_keywords.pop("drop_variables", ()), *exclude, *dropped]
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
