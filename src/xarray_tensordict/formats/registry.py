"""What the ``store`` argument is, and which reader opens it.

Everything users hand to xarray, zarr, h5py and tensordict: paths, URLs, stores, groups, files, open
``PersistentTensorDict`` objects. The readers are imported when they are needed.
"""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..core.model import Store

_ZARR_FILES = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")
# Magic bytes of formats that other engines open (Unidata's and WMO's format specifications).
_OTHERS = {
    b"CDF\x01": ("a netCDF-3 file", "engine='scipy' or engine='netcdf4'"),
    b"CDF\x02": ("a netCDF-3 file (64-bit offset)", "engine='scipy' or engine='netcdf4'"),
    b"CDF\x05": ("a netCDF-3 file (CDF-5)", "engine='netcdf4'"),
    b"GRIB": ("a GRIB file", "engine='cfgrib'"),
}
HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"


def open_store(
    source: Any,
    *,
    group: str | None = None,
    consolidated: bool | None = None,
    storage_options: dict[str, Any] | None = None,
    zarr_format: int | None = None,
    use_zarr_fill_value_as_mask: bool | None = None,
    allow_pickle: bool = False,
    filled: bool = True,
) -> Store:
    """Open whatever `source` is, at `group`.

    Raises
    ------
    FileNotFoundError
        For a path at which there is nothing, or a group that is not there.
    ValueError
        For a file or folder that is neither zarr nor HDF5; the message says which engine opens it, where that is
        known.
    TypeError
        For an object of a type that nobody here opens.
    """
    source = unwrapped(source)
    description = describe_source(source)
    found = format_of(source, description)
    if found == "memmap":
        from .memmap.read import MemmapStore

        path = os.fspath(source).removeprefix("file://")
        return MemmapStore.open(path, description=description, root=group, allow_pickle=allow_pickle, filled=filled)
    if found == "zarr":
        from .zarr.read import ZarrGroupStore

        return ZarrGroupStore.open(
            os.fspath(source) if isinstance(source, os.PathLike) else source,
            description=description,
            root=group,
            consolidated=consolidated,
            storage_options=storage_options,
            zarr_format=zarr_format,
            allow_pickle=allow_pickle,
            mask=use_zarr_fill_value_as_mask,
        )
    from .hdf5.read import Hdf5Store

    return Hdf5Store.open(source, root=group, allow_pickle=allow_pickle)


def unwrapped(source: Any) -> Any:
    """The group behind an open ``PersistentTensorDict``, so that the file is not opened twice; the store behind a mapper."""
    if isinstance(source, str):
        return os.path.expanduser(source) if source.startswith("~") else source
    module = type(source).__module__
    if module == "fsspec.mapping":
        from zarr.storage import FsspecStore

        return FsspecStore.from_mapper(source)
    if module.startswith("tensordict.") and hasattr(source, "file"):
        return source.file
    if module.startswith(("tensordict.", "xarray_tensordict.lazy")):
        raise TypeError(_no_source(source))
    return source


def _no_source(source: Any) -> str:
    """Why a tensordict is no store, with the way out."""
    name = type(source).__name__
    if name == "XarrayPersistentTensorDict":
        return (
            f"found {name}, which reads through a Dataset and holds no file of its own: open the store itself, by its path; "
            f"its group with group="
        )
    if name == "_SubTensorDict":
        return (
            "found an indexed view of a PersistentTensorDict: open the PersistentTensorDict, and select from the Dataset "
            "(xr.open_dataset(ptd, engine='tensordict').isel(...))"
        )
    return (
        f"expected a store or an open PersistentTensorDict, found {name}, which is in memory: "
        f"xarray_tensordict.to_dataset(td) makes a Dataset of it"
    )


def describe_source(source: Any) -> str:
    """How messages call a source."""
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source) if isinstance(source, str) else str(os.fspath(source))
    for attribute in ("filename", "store_path", "name"):
        value = getattr(source, attribute, None)
        if isinstance(value, str):
            return value
        if value is not None and attribute == "store_path":
            return str(value)
    parent = getattr(getattr(source, "file", None), "filename", None)
    if isinstance(parent, str):
        return f"{parent}{getattr(source, 'name', '')}"
    return _describe_zarr_store(source) if type(source).__module__.startswith("zarr.") else f"<{type(source).__name__}>"


def _describe_zarr_store(store: Any) -> str:
    """Where it is, as far as it tells: a store in memory has a number that nobody knows."""
    from zarr.storage import FsspecStore, LocalStore, ObjectStore, StorePath, ZipStore

    if isinstance(store, LocalStore):
        return str(store.root)
    if isinstance(store, ZipStore):
        return str(store.path)
    if isinstance(store, FsspecStore) and store.path:
        return str(store.fs.unstrip_protocol(store.path))
    if isinstance(store, StorePath):
        inside = _describe_zarr_store(store.store)
        return f"{inside.rstrip('/')}/{store.path}" if store.path else inside
    return str(store.store) if isinstance(store, ObjectStore) else f"<{type(store).__name__}>"


def format_of(source: Any, description: str) -> str:
    """Say "zarr", "hdf5" or "memmap", or raise with what was found instead."""
    if isinstance(source, (str, os.PathLike)):
        return _format_of_path(os.fspath(source), description)
    module = type(source).__module__.partition(".")[0]
    if module == "h5py" or isinstance(source, (bytes, memoryview)):
        return "hdf5"
    if module == "zarr" or _is_zarr_store(source):
        return "zarr"
    if isinstance(source, io.IOBase) or hasattr(source, "read"):
        return "hdf5"
    raise TypeError(
        f"expected a path, a URL, a zarr store or group, an h5py file or group, a binary file object or a "
        f"PersistentTensorDict, found {type(source).__name__}"
    )


def _is_zarr_store(source: Any) -> bool:
    from zarr.abc.store import Store as ZarrStore
    from zarr.storage import StorePath

    return isinstance(source, (ZarrStore, StorePath, dict))


def _format_of_path(path: str, description: str) -> str:
    if "://" in path and not path.startswith("file://"):
        return "hdf5" if path.endswith((".h5", ".hdf5", ".nc", ".nc4")) else "zarr"
    local = Path(path.removeprefix("file://"))
    if not local.exists():
        raise FileNotFoundError(
            f"No such file or directory: {description!r}. Check the spelling; relative paths start at "
            f"{str(Path.cwd())!r}"
        )
    if local.is_dir():
        return _format_of_folder(local, description)
    with local.open("rb") as file:
        magic = file.read(8)
    if magic.startswith(HDF5_MAGIC) or _has_userblock(local):
        return "hdf5"
    if magic.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "memmap" if _is_archive_of_tensordict(local) else "zarr"
    for start, (what, engine) in _OTHERS.items():
        if magic.startswith(start):
            raise ValueError(
                f"{description}: expected a zarr store, an HDF5 file or a .tdz archive, found {what}. Open it with "
                f"{engine}; "
                f"ds.td works on a Dataset from any engine"
            )
    found = f"a file that starts with {magic!r}" if magic else "an empty file"
    raise ValueError(
        f"{description}: expected a zarr store, an HDF5 file or a .tdz archive, found {found}. If another engine of "
        f"xarray opens it, "
        f"name that engine; ds.td works on a Dataset from any engine"
    )


def _format_of_folder(local: Path, description: str) -> str:
    if any((local / name).exists() for name in _ZARR_FILES):
        return "zarr"
    from .memmap.read import is_memmap_folder

    if is_memmap_folder(local):
        return "memmap"
    there = sorted(child.name for child in local.iterdir())[:10]
    compact = sorted(local.glob("storage/*.h5"))
    if compact:
        raise ValueError(
            f"{description}: expected a checkpoint of a replay buffer with memory-mapped tensors, found one that "
            f"keeps them in "
            f"an HDF5 file, in a compact form of torchrl's own; open {str(compact[0])!r} for its arrays"
        )
    stores = [name for name in there if _looks_like_a_store(local / name)]
    hint = f". In it are {stores}: open one of these" if stores else ""
    raise ValueError(
        f"{description}: expected a zarr store (a folder with {_ZARR_FILES[0]!r} or {_ZARR_FILES[1]!r}) or a "
        f"memory-mapped "
        f"tensordict (a folder with 'meta.json'), found a folder with {there or 'nothing'} in it{hint}"
    )


def _looks_like_a_store(path: Path) -> bool:
    if path.is_dir():
        return any((path / name).is_file() for name in (*_ZARR_FILES, "meta.json"))
    return path.suffix in {".h5", ".hdf5", ".nc", ".tdz"} or path.name.endswith(".zarr.zip")


def _is_archive_of_tensordict(local: Path) -> bool:
    try:
        with zipfile.ZipFile(local) as archive:
            names = set(archive.namelist())
    except (zipfile.BadZipFile, NotImplementedError):
        return local.suffix == ".tdz"
    return "meta.json" in names and names.isdisjoint(_ZARR_FILES)


def _has_userblock(local: Path) -> bool:
    """HDF5 looks for its signature at 0, 512, 1024 and every doubling after (HDF5 format specification, II.A)."""
    size = local.stat().st_size
    offset = 512
    with local.open("rb") as file:
        while offset < size:
            file.seek(offset)
            if file.read(8) == HDF5_MAGIC:
                return True
            offset *= 2
    return False
