"""The entries of a zarr store as bytes: documents of metadata, and the chunks of small arrays.

What is put back as bytes is what it was. And a new text is put together in memory first, so that in the store nothing goes
before what takes its place is there.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import zarr
from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import WrapperStore

from ..._compat.zarr import METADATA_KEYS, document, run
from ...core.metadata import INCOMPLETE_ATTR

Entries = Mapping[str, bytes]
"""Bytes by key, from the root of the store."""


def key_below(group: zarr.Group, path: str) -> str:
    """The key of what is at a path below a group."""
    return f"{group.path}/{path}" if group.path else path


def entries_below(group: zarr.Group, path: str) -> dict[str, bytes]:
    """All there is of a member of a group."""

    async def read() -> dict[str, bytes]:
        keys = [key async for key in group.store.list_prefix(f"{key_below(group, path)}/")]
        found = {key: await group.store.get(key, default_buffer_prototype()) for key in keys}
        return {key: buffer.to_bytes() for key, buffer in found.items() if buffer is not None}

    return run(read())


def put_entries(group: zarr.Group, path: str, wanted: Entries) -> None:
    """Make a member of a group consist of these entries: chunks come first, what is no longer wanted goes last."""
    if not wanted:
        remove_entries(group, path)  # with the folders
        return
    found = entries_below(group, path)

    async def write() -> None:
        for key in sorted(wanted, key=lambda key: key.rpartition("/")[2] in METADATA_KEYS):
            if found.get(key) != wanted[key]:
                await set_bytes(group.store, key, wanted[key])
        for key in found.keys() - wanted.keys():
            await group.store.delete(key)

    run(write())


def remove_entries(group: zarr.Group, path: str) -> None:
    """Remove a member of a group, also one that zarr does not list since not all of it is there."""
    run(group.store.delete_dir(key_below(group, path)))


async def set_bytes(store: Store, key: str, content: bytes) -> None:
    """Set one entry of a store."""
    await store.set(key, default_buffer_prototype().buffer.from_bytes(content))


def attrs_key(group: zarr.Group, path: str = "") -> str:
    """The key of the document that holds the attributes of a group, or of a member of it."""
    name = "zarr.json" if group.metadata.zarr_format == 3 else ".zattrs"
    return key_below(group, f"{path}/{name}" if path else name)


def with_attrs(group: zarr.Group, path: str, **changed: Any) -> bytes:
    """The document of the attributes of a group with other ones; those that are None are left out."""
    is_v3 = group.metadata.zarr_format == 3
    name = "zarr.json" if is_v3 else ".zattrs"
    whole = document(group, f"{path}/{name}" if path else name) or {}
    attrs = {**(whole.get("attributes", {}) if is_v3 else whole), **changed}
    attrs = {name: value for name, value in attrs.items() if value is not None or name not in changed}
    return as_json({**whole, "attributes": attrs} if is_v3 else attrs)


def unmarked(group: zarr.Group) -> bytes:
    """The document of the attributes of a group without its mark."""
    return with_attrs(group, "", **{INCOMPLETE_ATTR: None})


def as_json(content: Any) -> bytes:
    """A document as zarr writes it."""
    return json.dumps(content, indent=zarr.config.get("json_indent")).encode()


class Overlay(WrapperStore[Store]):
    """A store over another, for which nothing is written: its documents are shown in the place of the other's."""

    def __init__(self, store: Store, documents: Entries) -> None:
        super().__init__(store)
        self.documents = dict(documents)

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        if key in self.documents:
            if byte_range is not None:
                raise NotImplementedError("documents are read as a whole")
            return prototype.buffer.from_bytes(self.documents[key])
        return await self._store.get(key, prototype, byte_range)

    async def set(self, key: str, value: Any) -> None:
        self.documents[key] = value.to_bytes()

    async def exists(self, key: str) -> bool:
        return key in self.documents or await self._store.exists(key)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        start = f"{prefix.rstrip('/')}/" if prefix.rstrip("/") else ""
        names = {key.removeprefix(start).partition("/")[0] for key in self.documents if key.startswith(start)}
        async for name in self._store.list_dir(prefix):
            names.discard(name)
            yield name
        for name in names:
            yield name
