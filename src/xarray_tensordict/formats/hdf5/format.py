"""HDF5 and netCDF-4 files as a :class:`~..base.Format`: paths, bytes, file objects, and the files and groups of h5py."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

from ..base import Annotations, Format, StoreOptions

if TYPE_CHECKING:
    import xarray as xr
    from tensordict import PersistentTensorDict

    from ...core.model import Store

_SIGNATURE = b"\x89HDF\r\n\x1a\n"


class Hdf5Format(Format):
    """HDF5 of any writer."""

    expects = "an HDF5 file"
    targets: ClassVar = {"hdf5": (".h5", ".hdf5", ".hdf", ".nc", ".nc4")}
    url_endings = (".h5", ".hdf5", ".hdf", ".nc", ".nc4")
    engine = "h5netcdf"
    backend = "h5"

    def claims(self, source: Any) -> bool:
        if isinstance(source, str):
            if not os.path.isfile(source):
                return False
            with open(source, "rb") as file:
                return has_signature(file)
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
            with open_for_changes(source):  # its errors name the cause, which those of tensordict do not
                pass
        if not group:
            given = {"filename": source} if is_path else {"group": source}
            return open_bare(backend="h5", mode=mode, **given, **options)
        if is_path:
            import h5py

            source = h5py.File(source, mode)
        td = open_bare(group=source[group], backend="h5", mode=mode, **options)
        close_with_file(td)
        return td

    def annotate(self, source: Any, description: str, annotations: Annotations) -> None:
        from .write import annotate_hdf5

        annotate_hdf5(source, annotations)

    def write(self, ds: xr.Dataset | xr.DataTree, target: str, *, layout: str, chunks: Any, **options: Any) -> None:
        ds.td.to_h5(target, layout=layout, chunks=chunks, **options)


def has_signature(file: BinaryIO) -> bool:
    """HDF5 looks for its signature at 0, 512, 1024 and every doubling after (HDF5 format specification, II.A)."""
    offset = 0
    while True:
        file.seek(offset)
        found = file.read(len(_SIGNATURE))
        if found == _SIGNATURE or len(found) < len(_SIGNATURE):
            return found == _SIGNATURE
        offset = offset * 2 or 512
