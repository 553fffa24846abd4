"""``mode="w"``, ``"w-"``, ``"x"``, ``"a"``: new stores that are filled through tensordict's own writable object."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensordict import PersistentTensorDict

from .._compat.tensordict import open_bare
from ..formats.base import Format
from ..formats.registry import FORMATS, describe_source, format_by_ending


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
    found = _format_for(path, mode)
    if path.exists():
        if mode != "w":
            raise FileExistsError(
                f"{path}: there is something already, and mode={mode!r} refuses to replace it; pass mode='r+' to change it, "
                f"or mode='w' to replace it"
            )
        found.check_replaceable(str(path))
    return open_bare(
        filename=str(path),
        mode="w" if path.exists() else "a",
        backend=found.backend,
        batch_size=list(batch_size),
        device=device,
    )


def _format_for(path: Path, mode: str) -> Format:
    found = format_by_ending(str(path))
    if found is None or found.backend is None:
        endings = [ending for each in FORMATS if each.backend for names in each.targets.values() for ending in names]
        raise ValueError(
            f"{path}: mode={mode!r} creates a store in the format that the ending of its name says: {', '.join(endings)}"
        )
    return found
