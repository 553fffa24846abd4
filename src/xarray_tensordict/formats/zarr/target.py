"""Where a zarr store is to be written: what the ``store`` argument of ``ds.td.to_zarr`` is, and what is there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import zarr
from zarr.abc.store import Store

from ...core.model import Key, group_name
from ..registry import describe_source

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
        Of a folder or a zip file.
    store
        What zarr and xarray take.
    prefix
        The group in it that is written.
    storage_options
        For a URL.
    """

    kind: Literal["folder", "zip", "store"]
    description: str
    path: Path | None
    store: Any
    prefix: Key
    storage_options: dict[str, Any] | None = None

    def exists(self) -> bool:
        """Whether there is anything at the target group."""
        if self.kind == "zip":
            assert self.path is not None
            return self.path.exists()
        if self.kind == "folder":
            assert self.path is not None
            place = self.path.joinpath(*self.prefix)
            return place.is_file() or (place.is_dir() and any(place.iterdir()))
        return self.group() is not None or self._array_there()

    def group(self) -> zarr.Group | None:
        """The group that is there, past consolidated metadata; None where there is none."""
        try:
            return zarr.open_group(
                self.store,
                path="/".join(self.prefix),
                mode="r",
                use_consolidated=False,
                storage_options=self.storage_options,
            )
        except (FileNotFoundError, KeyError, zarr.errors.GroupNotFoundError, zarr.errors.ContainsArrayError):
            return None

    def _array_there(self) -> bool:
        try:
            zarr.open_array(self.store, path="/".join(self.prefix), mode="r", storage_options=self.storage_options)
        except (FileNotFoundError, KeyError, zarr.errors.ArrayNotFoundError, zarr.errors.ContainsGroupError):
            return False
        return True

    @property
    def name(self) -> str:
        """The target with its group, as messages call it."""
        return f"{self.description}, group {group_name(self.prefix)!r}" if self.prefix else self.description


def resolve_target(store: Any, group: str | None, storage_options: dict[str, Any] | None) -> ZarrTarget:
    """Say what the ``store`` argument is.

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
    if isinstance(store, zarr.storage.LocalStore) and not store.read_only:
        return ZarrTarget("folder", description, Path(store.root), str(store.root), prefix)
    if isinstance(store, zarr.storage.ZipStore):
        return ZarrTarget("zip", description, Path(store.path), store, prefix)
    if isinstance(store, str | os.PathLike):
        text = os.fspath(store)
        if isinstance(text, bytes):
            text = os.fsdecode(text)
        if "://" in text and not text.startswith("file://"):
            return ZarrTarget("store", description, None, text, prefix, storage_options)
        path = Path(os.path.abspath(os.path.expanduser(text.removeprefix("file://"))))
        kind: Literal["folder", "zip"] = "zip" if path.suffix == ".zip" or path.is_file() else "folder"
        return ZarrTarget(kind, description, path, str(path), prefix)
    if isinstance(store, Store):
        return ZarrTarget("store", description, None, store, prefix)
    if isinstance(store, dict):
        return ZarrTarget("store", description, None, zarr.storage.MemoryStore(store), prefix)
    raise TypeError(
        f"store: expected a path, a URL, a zarr store or a zarr group to write to, found {type(store).__name__}"
    )


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
    there = [child.name for child in target.path.iterdir()]
    if there and not any(name in there for name in _MARKS):
        raise ValueError(
            f"{target.description}: mode='w' would replace this folder, which is no zarr store: it holds "
            f"{sorted(there)[:5]}; "
            f"choose another path, or delete it first"
        )
