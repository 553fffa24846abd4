"""zarr stores as a :class:`~..base.Format`: folders, zip archives, URLs, and the stores and groups of zarr."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from ..base import Annotations, Format, StoreOptions
from ..other_files import archive_names

if TYPE_CHECKING:
    import xarray as xr
    from tensordict import PersistentTensorDict

    from ...core.model import Store

_ROOT_FILES = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")


class ZarrFormat(Format):
    """zarr, versions 2 and 3."""

    expects = "a zarr store"
    marks = "'zarr.json' or '.zgroup'"
    targets: ClassVar = {"zarr": (".zarr",), "zip": (".zip",)}
    engine: ClassVar[str | None] = "zarr"
    backend: ClassVar[str | None] = "zarr"

    def claims(self, source: Any) -> bool:
        if not isinstance(source, str):
            return _is_zarr_object(source)
        if os.path.isdir(source):
            found = next((name for name in _ROOT_FILES if os.path.exists(os.path.join(source, name))), None)
            return found is not None and not (found == ".zmetadata" and is_parquet_reference(source))
        return _is_archive_of_zarr(source)

    def open(self, source: Any, description: str, options: StoreOptions) -> Store:
        from .read import ZarrGroupStore

        store = self.store_of(source, options)
        own = options if store is source else replace(options, storage_options=None)
        return ZarrGroupStore.open(store, description, own)

    def store_of(self, source: Any, options: StoreOptions) -> Any:
        """What zarr opens; formats that are read through a store of zarr override it."""
        return source

    def kind(self, source: Any) -> str:
        return "zarr store"

    def why_not_changed(self, source: Any) -> str | None:
        if isinstance(source, str) and os.path.isfile(source):
            return "it is a zip archive, whose entries cannot be replaced"
        return None

    def open_bare(self, source: Any, group: str, mode: str, **options: Any) -> PersistentTensorDict:
        import zarr

        from ..._compat.tensordict import open_bare

        if isinstance(source, zarr.Group):
            node = source[group] if group else source
        else:
            node = zarr.open_group(source, mode=mode, path=group or None, use_consolidated=False)  # type: ignore[arg-type]
        return open_bare(group=node, backend="zarr", mode=mode, **options)

    def annotate(self, source: Any, description: str, annotations: Annotations) -> None:
        from .update import annotate_zarr

        annotate_zarr(source, description, annotations)

    def write(self, ds: xr.Dataset | xr.DataTree, target: str, *, layout: str, chunks: Any, **options: Any) -> None:
        ds.td.to_zarr(target, layout=layout, chunks=chunks, **options)


def _is_zarr_object(source: Any) -> bool:
    if type(source).__module__.partition(".")[0] == "zarr":
        return True
    from zarr.abc.store import Store as ZarrStore
    from zarr.storage import StorePath

    return isinstance(source, (ZarrStore, StorePath, dict))


def is_parquet_reference(folder: str) -> bool:
    """Whether a folder holds references to chunks in other files, whose ``.zmetadata`` looks like that of zarr v2."""
    try:
        with open(os.path.join(folder, ".zmetadata"), "rb") as file:
            return b'"record_size"' in file.read()
    except OSError:
        return False


def _is_archive_of_zarr(path: str) -> bool:
    """An archive of tensordict is one, too, but for its ``meta.json``; a damaged one is known by its name."""
    with open(path, "rb") as file:
        if file.read(4) not in (b"PK\x03\x04", b"PK\x05\x06"):
            return False
    names = archive_names(path)
    if names is None:
        return not path.endswith(".tdz")
    holds_documents = any(name.rpartition("/")[2] in _ROOT_FILES for name in names)
    return "meta.json" not in names and (holds_documents or not names)
