"""Create an HDF5 file, replace one, or add to one: always beside, and renamed when it is whole."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import h5py

from ...core.model import Key
from ...writing.plan import Source, WritePlan, plan_write
from ...writing.replacing import replaced
from ...writing.stored_form import Layout
from ...writing.streaming import stream_source
from .blocks import refuse_delayed
from .files import is_open_for_writing
from .output import Hdf5Output, written
from .write import Hdf5Options, check_attrs, write_with_h5py, write_with_xarray


def create_file(
    source: Source,
    path: Any,
    options: Hdf5Options,
    layout: Layout,
    *,
    mode: str,
    prefix: Key,
    compute: bool,
    append_dim: str | None = None,
) -> Any:
    """Write an HDF5 file.

    Parameters
    ----------
    mode
        "w" replaces what is there, "w-" and "x" refuse to, "a" adds to it.
    prefix
        The group that becomes the root.
    compute
        False: check everything now, and return a ``Delayed`` that writes.
    append_dim
        Append along this dim, to what is there.

    Raises
    ------
    FileExistsError
        With "w-" or "x" where there is a file.
    ValueError
        Where there is a folder, or a file that is no HDF5 file; where this process has the file open for writing.
    """
    stream_source(source)
    if isinstance(path, io.IOBase) or (hasattr(path, "write") and hasattr(path, "seek")):
        plan = _checked(plan_write(source, layout, "hdf5", encoding=options.encoding))
        return _run(lambda: _into_object(plan, path, prefix, options), compute=compute)
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path: expected a path or a binary file object to write to, found {type(path).__name__}")
    target = Path(os.path.expanduser(os.fsdecode(path).removeprefix("file://")))
    if "://" in str(path) and not str(path).startswith("file://"):
        raise ValueError(
            f"{path}: HDF5 is written to local files; write to one and copy it, or use ds.td.to_zarr for a URL"
        )
    _check_target(target, mode)
    if append_dim is not None:
        from .append import plan_append, write_append

        append = plan_append(source, target, prefix, append_dim)
        return _run(
            lambda: _change(target, lambda output: write_append(append, output, progress=options.progress)),
            compute=compute,
        )
    adds = mode == "a" and target.exists()
    if adds:
        from .update import plan_addition

        plan = _checked(plan_addition(source, target, layout, prefix, options.encoding))
    else:
        plan = _checked(plan_write(source, layout, "hdf5", encoding=options.encoding))

    def write() -> None:
        with replaced(target) as beside:
            if adds:
                shutil.copy2(os.path.realpath(target), beside)
            with _opened(plan, beside, target, new=not adds) as output:
                _write(plan, output, prefix, options, new=not adds)

    return _run(write, compute=compute)


def _checked(plan: WritePlan) -> WritePlan:
    check_attrs(plan)
    return plan


def _run(write: Callable[[], None], *, compute: bool) -> Any:
    if compute:
        write()
        return None
    refuse_delayed()
    from dask.delayed import delayed

    return delayed(write, pure=False)()


def _check_target(target: Path, mode: str) -> None:
    if mode in {"w-", "x"} and target.exists():
        raise FileExistsError(
            f"{target}: there is a file already. Pass mode='w' to replace it, or mode='a' to add to it"
        )
    if target.is_dir():
        raise ValueError(
            f"{target}: expected the path of a file, found a folder; choose another path, or use ds.td.to_zarr"
        )
    if target.exists() and target.stat().st_size and not h5py.is_hdf5(target):
        does = "adds to an HDF5 file" if mode == "a" else "would replace this file"
        raise ValueError(
            f"{target}: mode={mode!r} {does}, and this is none (it starts with {_start(target)!r}); choose another path, or "
            "delete the file first"
        )
    if is_open_for_writing(target):
        raise ValueError(
            f"{target}: this process has the file open for writing, and what is written there would be lost or mixed; "
            "close it first (file.close(), ptd.close())"
        )


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(8)


def _change(target: Path, change: Callable[[Hdf5Output], None]) -> None:
    """Change a copy, which takes the place of the file when that is done."""
    with replaced(target) as beside:
        shutil.copy2(os.path.realpath(target), beside)
        with written(beside, "r+", name=str(target)) as output:
            change(output)


def _opened(plan: WritePlan, path: Path, target: Path, *, new: bool) -> AbstractContextManager[Hdf5Output]:
    # netCDF-4 wants members in the order in which they were made
    order = {"track_order": True} if plan.layout == "xarray" else {}
    return written(path, "w" if new else "r+", name=str(target), **order)


def _write(plan: WritePlan, output: Hdf5Output, prefix: Key, options: Hdf5Options, *, new: bool) -> None:
    if plan.layout == "xarray":
        write_with_xarray(plan, output, prefix, options, new=new)
    else:
        write_with_h5py(plan, output, prefix, options)


def _into_object(plan: WritePlan, stream: Any, prefix: Key, options: Hdf5Options) -> None:
    if plan.layout == "xarray":
        raise ValueError("layout='xarray' writes to a path; write to a file and read it, or use layout='tensordict'")
    with written(stream, "w") as output:
        write_with_h5py(plan, output, prefix, options)
