"""Where a zarr store is to be written: what the ``store`` argument of ``ds.td.to_zarr`` is, and what is there."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import zarr
from zarr.abc.store import Store

from ..._compat.zarr import get_bytes, run
from ...core.model import Key, group_name
from ..places import Place, place_of
from ..registry import describe_source
from .transaction import LOCK, join

_MARKS = ("zarr.json", ".zgroup", ".zarray", ".zmetadata", ".zattrs")


@dataclass(frozen=True)
class ZarrTarget:
    """A place for a store.

    Attributes
    ----------
    kind
        "folder": a local folder, which can be written beside and renamed. "zip": one file, written once.
        "store": any other store, written in place.
    description
        How messages call it.
    path
        Of a folder or a zip file, absolute.
    store
        The store of zarr.
    prefix
        The group in it that is written.
    """

    kind: Literal["folder", "zip", "store"]
    description: str
    path: Path | None
    store: Store
    prefix: Key

    @property
    def name(self) -> str:
        """The target with its group, as messages call it."""
        return f"{self.description}, group {group_name(self.prefix)!r}" if self.prefix else self.description

    @property
    def place(self) -> Place:
        """The group, as a place."""
        return place_of(self.store).below("/".join(self.prefix))

    def exists(self) -> bool:
        """Whether there is anything at the target group."""
        if self.kind == "zip":
            assert self.path is not None
            return self.path.exists()
        if self.kind == "folder":
            assert self.path is not None
            place = self.path.joinpath(*self.prefix)
            names = {child.name for child in place.iterdir()} if place.is_dir() else set()
            return place.is_file() or bool(names - {LOCK})
        return node_at(self.store, "/".join(self.prefix)) is not None

    def group_format(self) -> int | None:
        """The zarr format of the group that is there; None where there is none."""
        if self.path is not None and not self.path.exists():
            return None
        found = node_at(self.store, "/".join(self.prefix))
        return found[1] if found is not None and found[0] == "group" else None

    def root(self) -> str:
        """The path of the outermost group: where the metadata is consolidated, and a change is noted."""
        for length in range(len(self.prefix) + 1):
            path = "/".join(self.prefix[:length])
            if node_at(self.store, path) is not None:
                return path
        return ""


def node_at(store: Store, path: str) -> tuple[str, int] | None:
    """What is at a path of a store, "group" or "array", and its zarr format; None where there is nothing."""
    found = run(get_bytes(store, join(path, "zarr.json")))
    if found is not None:
        return str(json.loads(found).get("node_type")), 3
    for name, kind in ((".zgroup", "group"), (".zarray", "array")):
        if run(get_bytes(store, join(path, name))) is not None:
            return kind, 2
    return None


def resolve_target(store: Any, group: str | None, storage_options: dict[str, Any] | None) -> ZarrTarget:
    """Say what the ``store`` argument is; relative paths start at the present working directory, now and later.

    Raises
    ------
    TypeError
        For what is no store.
    PermissionError
        For a store, or a group of one, that was opened for reading only.
    """
    prefix = tuple(part for part in (group or "").split("/") if part)
    if type(store).__module__ == "fsspec.mapping":
        store = zarr.storage.FsspecStore.from_mapper(store)
    description = describe_source(store)
    if getattr(store, "read_only", False) is True:
        raise PermissionError(f"{description}: the store was opened for reading only; open it for writing")
    if isinstance(store, zarr.Group | zarr.storage.StorePath):
        prefix = (*(part for part in store.path.split("/") if part), *prefix)
        store = store.store
    if isinstance(store, zarr.storage.LocalStore):
        return _folder(store.root, description, prefix)
    if isinstance(store, zarr.storage.ZipStore):
        return ZarrTarget("zip", description, Path(store.path), store, prefix)
    if isinstance(store, str | os.PathLike):
        text = os.fsdecode(os.fspath(store))
        if "://" in text and not text.startswith("file://"):
            opened = zarr.storage.FsspecStore.from_url(text, storage_options=storage_options)
            return ZarrTarget("store", description, None, opened, prefix)
        return _folder(text.removeprefix("file://"), description, prefix)
    if isinstance(store, dict):
        store = zarr.storage.MemoryStore(store)
    if isinstance(store, Store):
        return ZarrTarget("store", description, None, store, prefix)
    raise TypeError(
        f"store: expected a path, a URL, a zarr store or a zarr group to write to, found {type(store).__name__}"
    )


def _folder(path: Any, description: str, prefix: Key) -> ZarrTarget:
    absolute = Path(os.path.abspath(os.path.expanduser(path)))
    kind: Literal["folder", "zip"] = "zip" if absolute.suffix == ".zip" or absolute.is_file() else "folder"
    return ZarrTarget(kind, description, absolute, zarr.storage.LocalStore(absolute), prefix)


def check_replaceable(target: ZarrTarget) -> None:
    """Raise unless what is at a local target is a zarr store: ``mode="w"`` removes it.

    Raises
    ------
    ValueError
        For a folder or file of anything else.
    """
    if target.path is None or not target.path.exists():
        return
    if target.kind == "zip":
        with target.path.open("rb") as file:
            is_zip = target.path.is_file() and file.read(2) in (b"PK", b"")
        if not is_zip:
            raise ValueError(
                f"{target.description}: mode='w' would replace this file, which is no zip file; delete it first"
            )
        return
    there = {child.name for child in target.path.iterdir()} - {LOCK}
    if there and not any(name in there for name in _MARKS):
        raise ValueError(
            f"{target.description}: mode='w' would replace this folder, which is no zarr store: it holds "
            f"{sorted(there)[:5]}; choose another path, or delete it first"
        )
