"""``xarray-tensordict convert``: from any store that opens to any kind that can be written, block by block."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import xarray as xr

from ..formats.registry import FORMATS, format_of_target, target_by_ending, target_names


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
    kinds = target_names()
    if to is not None and to not in kinds:
        raise ValueError(f"to: expected one of {list(kinds)}, got {to!r}")
    found = target_by_ending(path)
    if to == "zarr" and found == "zip":
        return "zip"
    chosen = next((kind for kind in kinds if kind == to), found)
    if chosen is None:
        endings = [ending for each in FORMATS for names in each.targets.values() for ending in names]
        raise ValueError(
            f"{path}: the ending does not say what to write; say it with --to ({', '.join(kinds)}), or use one of the endings "
            f"{', '.join(endings)}"
        )
    return chosen


def convert(
    source: Any,
    target: str,
    *,
    to: str | None = None,
    layout: str = "tensordict",
    chunks: Mapping[str, int] | None = None,
    overwrite: bool = False,
    progress: bool = False,
    **engine_keywords: Any,
) -> None:
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
        Chunk sizes by dim, for zarr and HDF5; by default those that suit reading rows for training.
    overwrite
        Replace what is there; else it is refused.
    progress
        Show a progress bar.

    Raises
    ------
    FileExistsError
        For a target that is there, without `overwrite`.
    """
    kind = target_kind(target, to)
    mode = "w" if overwrite else "w-"
    if not overwrite and "://" not in target and os.path.exists(target):
        raise FileExistsError(f"{target} is there already; choose another target, or say --overwrite")
    opened: Any = xr.open_dataset(source, engine="tensordict", chunks={}, **engine_keywords)
    if opened.encoding.get("xarray_tensordict", {}).get("hidden_groups"):
        opened.close()
        opened = xr.open_datatree(source, engine="tensordict", chunks={}, **engine_keywords)
    with opened:
        options: dict[str, Any] = {"mode": mode, "layout": layout, "chunks": chunks, "progress": progress}
        format_of_target(kind).write(opened, target, **options)
