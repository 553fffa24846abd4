"""``mode="w"``, ``"w-"``, ``"x"``, ``"a"``: new stores that are filled through tensordict's own writable object."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from tensordict import PersistentTensorDict

from .._compat.tensordict import open_bare
from ..formats.hdf5.file import is_open_for_writing
from ..formats.registry import HDF5_MAGIC, describe_source

_HDF5 = (".h5", ".hdf5", ".hdf", ".nc", ".nc4")


def create_persistent(store: Any, mode: str, batch_size: Sequence[int], *, device: Any = None) -> PersistentTensorDict:
    """Create an empty store of tensordict's, open for writing.

    Parameters
    ----------
    store
        A path: the ending says the format, ``.zarr`` or one of HDF5 (``.h5``, ``.hdf5``, ``.nc``).
    mode
        "w" replaces a store of the same format; "w-", "x" and "a" refuse where there is something ("a" opens what there
        is elsewhere).
    batch_size
        Of the new tensordict.

    Raises
    ------
    FileExistsError
        Where there is something, and `mode` does not say that it goes.
    ValueError
        For a path whose ending says no format; where what would be replaced is no store of that format, or is open for
        writing in this process.
    """
    if not isinstance(store, (str, os.PathLike)) or "://" in os.fspath(store):
        raise ValueError(
            f"mode={mode!r} creates a local store, by its path, found {describe_source(store)}; write others with "
            f"ds.td.to_zarr(store)"
        )
    path = Path(os.path.expanduser(os.fspath(store)))
    backend = _backend(path, mode)
    if path.exists():
        if mode != "w":
            raise FileExistsError(
                f"{path}: there is something already, and mode={mode!r} refuses to replace it; pass mode='r+' to change it, "
                f"or mode='w' to replace it"
            )
        _check_replaceable(path, backend)
    return open_bare(
        filename=str(path),
        mode="w" if backend == "h5" else "a" if not path.exists() else "w",
        backend=backend,
        batch_size=list(batch_size),
        device=device,
    )


def _backend(path: Path, mode: str) -> Literal["h5", "zarr"]:
    if path.suffix in _HDF5:
        return "h5"
    if path.suffix == ".zarr":
        return "zarr"
    raise ValueError(
        f"{path}: mode={mode!r} creates a store in the format that the ending of its name says: .zarr, or one of "
        f"{', '.join(_HDF5)}"
    )


def _check_replaceable(path: Path, backend: str) -> None:
    if backend == "zarr":
        from ..formats.zarr.target import check_replaceable, resolve_target

        check_replaceable(resolve_target(path, None, None))
        return
    if path.is_dir():
        raise ValueError(f"{path}: expected the path of a file, found a folder; choose another path")
    with path.open("rb") as file:
        start = file.read(8)
    if start and start != HDF5_MAGIC:
        raise ValueError(
            f"{path}: mode='w' would replace this file, which is no HDF5 file (it starts with {start!r}); delete it first"
        )
    if is_open_for_writing(path):
        raise ValueError(
            f"{path}: this process has the file open for writing; close it first (file.close(), ptd.close())"
        )
