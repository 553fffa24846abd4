"""Memory-mapped tensordicts as a :class:`~..base.Format`: folders, archives, replay buffers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..base import Format, StoreOptions
from ..other_files import archive_names

if TYPE_CHECKING:
    import xarray as xr

    from ...core.model import Store


class MemmapFormat(Format):
    """What ``td.memmap``, ``td.save`` and ``ReplayBuffer.dumps`` write."""

    expects = "a memory-mapped tensordict"
    marks = "'meta.json'"
    targets: ClassVar = {"memmap": (), "tdz": (".tdz",)}
    why_not_annotated = (
        "a memory-mapped tensordict records its batch, and has no place for the names of other dims; set td.names with "
        "tensordict, or give the names on opening with dims={...}"
    )

    def claims(self, source: Any) -> bool:
        if not isinstance(source, str):
            return False
        if os.path.isdir(source):
            from .read import is_memmap_folder

            return is_memmap_folder(Path(source)) or bool(_compact_files(source))
        return _is_archive(source)

    def open(self, source: Any, description: str, options: StoreOptions) -> Store:
        from .read import is_memmap_folder, open_memmap

        if os.path.isdir(source) and not is_memmap_folder(Path(source)):
            raise ValueError(
                f"{description}: expected a checkpoint of a replay buffer with memory-mapped tensors, found one that "
                f"keeps them in an HDF5 file, in a compact form of torchrl's own; open {_compact_files(source)[0]!r} for "
                f"its arrays"
            )
        return open_memmap(source, description, options)

    def kind(self, source: Any) -> str:
        return "archive of a tensordict" if str(source).endswith(".tdz") else "memory-mapped tensordict"

    def why_not_changed(self, source: Any) -> str | None:
        return "it is a memory-mapped tensordict, which tensordict.TensorDict.load_memmap(path, mode='r+') opens for writing"

    def write(self, ds: xr.Dataset | xr.DataTree, target: str, *, layout: str, chunks: Any, **options: Any) -> None:
        ds.td.to_memmap(target, **options)


def _compact_files(folder: str) -> list[str]:
    """The HDF5 files of a checkpoint of torchrl that keeps no memory-mapped tensors."""
    return sorted(map(str, Path(folder).glob("storage/*.h5")))


def _is_archive(path: str) -> bool:
    names = archive_names(path)
    return path.endswith(".tdz") if names is None else "meta.json" in names
