"""The mark of a zarr group that is being written: which arrays, and how to tell whether they are whole.

A writer sets :data:`~...core.metadata.INCOMPLETE_ATTR` on the group before it writes in place, and removes it after the last
byte. So a store whose writer died says so. Chunks of a new array are written even where they hold nothing but fill values
as long as the mark is there: what is missing has not been written.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import zarr
from zarr.core.sync import sync

from ...core.metadata import INCOMPLETE_ATTR

_AT_ONCE = 64


def mark_of(group: zarr.Group) -> Mapping[str, Any] | None:
    """The mark of a group, None where it has none."""
    found = group.attrs.get(INCOMPLETE_ATTR)
    return found if isinstance(found, Mapping) else None


@dataclass(frozen=True)
class JsonText:
    """A JSON text of a store, and the attributes of the array that holds it."""

    text: str
    attrs: Mapping[str, Any]


def kept_texts(group: zarr.Group) -> dict[str, JsonText]:
    """The JSON texts that the mark of a group keeps, by path: as they were before they were to be written anew."""
    texts = (mark_of(group) or {}).get("texts", {})
    return {path: JsonText(kept["text"], kept["attrs"]) for path, kept in texts.items()}


def is_json(text: Any) -> bool:
    """Whether bytes are a whole JSON text; an array that was created and not filled holds NUL bytes."""
    try:
        json.loads(text)
    except (TypeError, ValueError):
        return False
    return True


def unwritten(group: zarr.Group, mark: Mapping[str, Any]) -> list[str]:
    """The arrays that a mark names and that have a chunk which nobody has written."""
    found = []
    for path in mark.get("arrays", ()):
        array = group.get(path)
        if not isinstance(array, zarr.Array) or sync(_lacks_a_chunk(array)):
            found.append(path)
    return found


async def _lacks_a_chunk(array: zarr.Array[Any]) -> bool:
    keys = _chunk_keys(array)
    while batch := list(itertools.islice(keys, _AT_ONCE)):
        if not all(await asyncio.gather(*(array.store.exists(key) for key in batch))):
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
    if kind == "append" and names:
        part = f"{mark.get('start')}:{mark.get('stop')} along {mark.get('dim')!r}"
        return (
            f"the store is not complete: an append did not finish, and the rows {part} of {_listed(names)} may be missing; "
            f"write them, all variables at once, with ds.td.to_zarr(store, region={{{mark.get('dim')!r}: "
            f"slice({mark.get('start')}, {mark.get('stop')})}})"
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
