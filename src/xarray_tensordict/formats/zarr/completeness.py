"""The mark of a zarr group whose chunks are not all written: a template that is to be filled, or an overwrite that died.

All other writes show nothing before they are whole. Chunks of a template are written even where they hold nothing but fill
values: what is missing has not been written.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import zarr

from ..._compat.zarr import each_at_once
from ...core.metadata import INCOMPLETE_ATTR

_AT_ONCE = 64


def mark_of(group: zarr.Group) -> Mapping[str, Any] | None:
    """The mark of a group, None where it has none."""
    found = group.attrs.get(INCOMPLETE_ATTR)
    return found if isinstance(found, Mapping) else None


def unwritten(group: zarr.Group, mark: Mapping[str, Any]) -> list[str]:
    """The arrays that a mark names and that have a chunk which nobody has written."""
    found = []
    for path in mark.get("arrays", ()):
        array = group.get(path)
        if not isinstance(array, zarr.Array) or _lacks_a_chunk(array):
            found.append(path)
    return found


def _lacks_a_chunk(array: zarr.Array[Any]) -> bool:
    keys = _chunk_keys(array)
    while batch := list(itertools.islice(keys, _AT_ONCE)):
        if not all(each_at_once(array.store.exists, batch)):
            return True
    return False


def _chunk_keys(array: zarr.Array[Any]) -> Iterator[str]:
    sizes = array.shards or array.chunks
    grid = (range(-(-size // chunk)) for size, chunk in zip(array.shape, sizes, strict=True))
    metadata: Any = array.metadata
    base = f"{array.path}/" if array.path else ""
    for coords in itertools.product(*grid):
        yield base + metadata.encode_chunk_key(coords)


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
    names = [path for path in mark.get("arrays", ()) if not below or f"{path}/".startswith(f"{below}/")]
    kind = mark.get("kind")
    if kind == "create" and mark.get("created"):
        lacking = unwritten(group, {"arrays": names})
        if not lacking:
            return None
        return (
            f"the store is not complete: {_listed(lacking)} have chunks that have not been written, which read as the fill "
            f"value (NaN for floats). Compute the Delayed that the writer returned, or write the missing parts with "
            f"ds.td.to_zarr(store, region=...)"
        )
    if kind == "overwrite" and names:
        return (
            f"the store is not complete: {_listed(names)} were being written, and that did not finish, so they may hold a "
            f"part of the old values and a part of the new ones; write them again with mode='a'"
        )
    if kind == "create":
        return (
            "the store is not complete: its writer stopped before all arrays were created; write it again with mode='w'"
        )
    return None


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:5]))
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
