"""HDF5 and netCDF-4 files as a :class:`~..base.Format`: paths, bytes, file objects, and the files and groups of h5py."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, ClassVar

from ..base import Annotations, Format, StoreOptions

if TYPE_CHECKING:
    import xarray as xr
    from tensordict import PersistentTensorDict

    from ...core.model import Store

_MAGIC = b"\x89HDF\r\n\x1a\n"


class Hdf5Format(Format):
    """HDF5, whoever wrote it."""

    expects = "an HDF5 file"
    targets: ClassVar = {"hdf5": (".h5", ".hdf5", ".hdf", ".nc", ".nc4")}
    url_endings = (".h5", ".hdf5", ".hdf", ".nc", ".nc4")
    engine = "h5netcdf"
    backend = "h5"

    def claims(self, source: Any) -> bool:
        if isinstance(source, str):
            return os.path.isfile(source) and has_signature(source)
        is_data = isinstance(source, (bytes, memoryview, io.IOBase)) or hasattr(source, "read")
        return is_data or type(source).__module__.partition(".")[0] == "h5py"

    def open(self, source: Any, description: str, options: StoreOptions) -> Store:
        from .read import Hdf5Store

        return Hdf5Store.open(source, root=options.group, allow_pickle=options.allow_pickle)

    def kind(self, source: Any) -> str:
        return "HDF5 file"

    def why_not_changed(self, source: Any) -> str | None:
        return None

    def open_bare(self, source: Any, group: str, mode: str, **options: Any) -> PersistentTensorDict:
        from ..._compat.tensordict import close_with_file, open_bare
        from .file import open_for_changes

        is_path = isinstance(source, str)
        if is_path and mode == "r+":
            open_for_changes(source).close()  # says what is in the way, which tensordict does not
        if not group:
            given = {"filename": source} if is_path else {"group": source}
            return open_bare(backend="h5", mode=mode, **given, **options)
        if is_path:
            import h5py

            source = h5py.File(source, mode)
        td = open_bare(group=source[group], backend="h5", mode=mode, **options)
        close_with_file(td)
        return td

    def check_replaceable(self, path: str) -> None:
        if os.path.isdir(path):
            raise ValueError(f"{path}: expected the path of a file, found a folder; choose another path")
        with open(path, "rb") as file:
            start = file.read(8)
        if start and start != _MAGIC:
            raise ValueError(
                f"{path}: mode='w' would replace this file, which is no HDF5 file (it starts with {start!r}); delete it first"
            )
        from .file import is_open_for_writing

        if is_open_for_writing(path):
            raise ValueError(
                f"{path}: this process has the file open for writing; close it first (file.close(), ptd.close())"
            )

    def annotate(self, source: Any, description: str, annotations: Annotations) -> None:
        from .annotate import annotate_hdf5

        annotate_hdf5(source, annotations)

    def write(self, ds: xr.Dataset | xr.DataTree, target: str, *, layout: str, chunks: Any, **options: Any) -> None:
        ds.td.to_h5(target, layout=layout, chunks=chunks, **options)


def has_signature(path: str) -> bool:
    """HDF5 looks for its signature at 0, 512, 1024 and every doubling after (HDF5 format specification, II.A)."""
    size = os.path.getsize(path)
    offset = 0
    with open(path, "rb") as file:
        while offset < size:
            file.seek(offset)
            if file.read(8) == _MAGIC:
                return True
            offset = offset * 2 or 512
    return False
