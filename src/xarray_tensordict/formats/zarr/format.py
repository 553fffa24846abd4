"""What is read as a store of zarr, as :class:`~..base.Format`: zarr stores, Icechunk repositories, references to chunks in other files.

The store of an Icechunk session (``session.store``) is a store of zarr like any other: it is read and written as one. A
reference of kerchunk or VirtualiZarr, a JSON file or a folder of parquet files, names for each chunk the file that has its
bytes.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from ...core.metadata import checked, parse
from ..array_wrappers import named_errors
from ..base import Annotations, Format, StoreOptions, archive_names

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


_BRANCH = "main"


class IcechunkFormat(ZarrFormat):
    """A repository is read as its branch "main" is at that time; a session as it is."""

    expects = "an Icechunk repository"
    marks = "'snapshots' and 'manifests'"
    targets: ClassVar = {}
    engine = None
    backend = None
    why_not_annotated = (
        "a repository changes in a session: annotate the store of repository.writable_session('main') in its place, and "
        "commit the session"
    )

    def claims(self, source: Any) -> bool:
        if isinstance(source, str):
            return all(os.path.isdir(os.path.join(source, name)) for name in ("snapshots", "manifests"))
        return type(source).__module__.startswith("icechunk.") and (
            _is_session(source) or type(source).__name__ == "Repository"
        )

    def store_of(self, source: Any, options: StoreOptions) -> Any:
        if _is_session(source):
            return source.store
        if isinstance(source, str):
            try:
                import icechunk
            except ImportError as error:
                raise ImportError(
                    f"{source}: an Icechunk repository needs a package that is missing ({error})"
                ) from error
            with named_errors(source):
                _check_files(source)
                repository = icechunk.Repository.open(icechunk.local_filesystem_storage(source))
                return repository.readonly_session(_BRANCH).store
        return source.readonly_session(_BRANCH).store

    def kind(self, source: Any) -> str:
        return "Icechunk session" if _is_session(source) else "Icechunk repository"

    def why_not_changed(self, source: Any) -> str | None:
        return (
            "a repository changes in a session: open the store of repository.writable_session('main') in its place, and "
            "commit the session"
        )


def _check_files(folder: str) -> None:
    """Raise for a pipe or a device in a repository: Icechunk would wait for it for ever."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                _check_files(entry.path)
            elif not entry.is_file():
                raise ValueError(f"{entry.path} is a pipe, a device or a link to nothing: expected a file or a folder")


def _is_session(source: Any) -> bool:
    return type(source).__name__.endswith("Session")


_HEAD = 4096
_KEYS = (b'"refs"', b'".zgroup"', b'".zattrs"', b'".zmetadata"', b'zarr.json"')


def _check_references(source: str) -> None:
    """Raise for references that fsspec passes over, or that point to no file.

    fsspec reads the file again: references that it is given would be in every pickle of a Dataset.
    """
    with open(source, "rb") as file:
        document = parse(file.read(), dict[str, Any], source)
    given = document.get("refs", document) if "version" in document else document
    if "version" in document and document.get("gen"):
        raise ValueError("it generates references ('gen'), which are not read: write them out one by one")
    references = checked(given, dict[str, str | list[Any] | dict[str, Any]], f"{source}, refs")
    for key, each in references.items():
        kinds = [type(part) for part in each] if isinstance(each, list) else [str]
        if kinds not in ([str], [str, int, int]):
            raise ValueError(
                f"the reference {key!r} is {each!r:.80}: expected [path] or [path, first byte, number of bytes]"
            )
    for path in {each[0] for each in references.values() if isinstance(each, list)}:
        local = path.removeprefix("file://")
        if "://" not in local and os.path.exists(local) and not os.path.isfile(local):
            raise ValueError(f"it refers to {path!r}: expected a file, found a folder, a device or a pipe")


class KerchunkFormat(ZarrFormat):
    """``storage_options`` are those of fsspec's ``ReferenceFileSystem`` (``remote_protocol``, ``remote_options``, ...)."""

    expects = "a kerchunk reference"
    marks = "'.zmetadata' with a record size"
    targets: ClassVar = {}
    url_endings = (".json", ".parq", ".parquet")
    engine = None
    backend = None
    why_not_annotated = "a reference describes files of others: write a store with ds.td.to_zarr, and annotate that"

    def claims(self, source: Any) -> bool:
        if not isinstance(source, str):
            return False
        if os.path.isdir(source):
            return is_parquet_reference(source)
        with open(source, "rb") as file:
            head = file.read(_HEAD)
        return head.lstrip().startswith(b"{") and any(key in head for key in _KEYS)

    def store_of(self, source: Any, options: StoreOptions) -> Any:
        import fsspec
        from zarr.storage import FsspecStore

        with named_errors(str(source)):
            if os.path.isfile(source):
                _check_references(source)
            files = fsspec.filesystem(
                "reference", fo=source, **{**(options.storage_options or {}), "asynchronous": True}
            )
        return FsspecStore(files, read_only=True, path="")

    def kind(self, source: Any) -> str:
        return "kerchunk reference"

    def why_not_changed(self, source: Any) -> str | None:
        return "it is a reference to files of others"
