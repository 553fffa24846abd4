"""The mark of a zarr group whose chunks are not all written: a template that is to be filled, or an overwrite that died.

All other writes show nothing before they are whole. Chunks of a template are written even where they hold nothing but fill
values: what is missing has not been written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import zarr

from ...core.documents import checked
from ...core.metadata import INCOMPLETE_ATTR, Incomplete


def mark_of(group: zarr.Group) -> Incomplete | None:
    """The mark of a group, None where it has none.

    Raises
    ------
    ValueError
        Where it is malformed.
    """
    found = group.attrs.get(INCOMPLETE_ATTR)
    what = f"{group.store_path}: the attribute {INCOMPLETE_ATTR!r}"
    return None if found is None else checked(found, Incomplete, what)


def unwritten(group: zarr.Group, names: Iterable[str]) -> list[str]:
    """Those of some arrays that are not there, or have a chunk (a shard) that nobody has written."""
    found = []
    for path in names:
        array = group.get(path)
        if isinstance(array, zarr.Array):
            sizes = array.shards or array.chunks
            inside = math.prod(size // chunk for size, chunk in zip(sizes, array.chunks, strict=True))
            count = math.prod(-(-size // stored) for size, stored in zip(array.shape, sizes, strict=True))
            if array.nchunks_initialized // inside == count:
                continue
        found.append(path)
    return found


def tell_incomplete(group: zarr.Group, below: str = "") -> str | None:
    """What is wrong with a group that bears a mark, as a sentence; None where all has been written after all.

    Parameters
    ----------
    below
        Only arrays below this path count.
    """
    mark = mark_of(group)
    if mark is None:
        return None
    names = [path for path in mark.arrays if not below or f"{path}/".startswith(f"{below}/")]
    if mark.kind == "create" and mark.created:
        lacking = unwritten(group, names)
        if not lacking:
            return None
        return (
            f"the store is not complete: {_listed(lacking)} have chunks that have not been written, which read as the fill "
            f"value (NaN for floats). Compute the Delayed that the writer returned, or write the missing parts with "
            f"ds.td.to_zarr(store, region=...)"
        )
    if mark.kind == "overwrite" and names:
        return (
            f"the store is not complete: {_listed(names)} were being written, and that did not finish, so they may hold a "
            f"part of the old values and a part of the new ones; write them again with mode='a'"
        )
    if mark.kind == "create":
        return (
            "the store is not complete: its writer stopped before all arrays were created; write it again with mode='w'"
        )
    return None


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:5]))
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
