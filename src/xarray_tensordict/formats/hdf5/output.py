"""HDF5 files that are written: room on the disk before HDF5 needs it, blocks of dask in their places, and one commit.

A file is created, or a copy of it is changed, beside its path and renamed when it is whole. An append alone changes the
file itself, under HDF5's own lock. What goes into a file is decided in :mod:`.write` and :mod:`.append`.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import dask
import dask.array
import h5py
import numpy as np
import xarray as xr
from dask.array.core import slices_from_chunks
from dask.array.optimization import fuse_slice
from dask.delayed import delayed
from dask.utils import SerializableLock

from ..._compat.dask import is_in_this_process
from ..._compat.xarray import read
from ...writing.running import FULL, allocate, compute_all, distributed_client, replaced
from ..identity import identity_of
from .file import not_written, open_for_changes

Region = tuple[slice, ...]

ONE_WRITER = (
    "an HDF5 file has one writer, the client of a dask cluster, and this would run on a worker: call ds.td.to_h5 in the "
    "client with compute=True, or write with ds.td.to_zarr, which writes from all workers"
)
_SPARE = 2**16
"""Room for the metadata that HDF5 makes while it flushes."""
_HELD = 2**26
"""How much HDF5 is given before it is flushed, so that what it does not need is not taken from the disk."""
_PER_CHUNK = 256
"""Room for the entry of a chunk in the index of chunks."""


class Hdf5Output:
    """An HDF5 file that is open for writing.

    HDF5 writes much of what it is given later, and a disk that is full then can crash the process. So room is taken from
    the disk first, which raises by name.

    Parameters
    ----------
    file
        As h5py has it.
    name
        What messages call the file.
    """

    def __init__(self, file: h5py.File, name: str) -> None:
        self.file = file
        self._name = name
        self._allocated = self._held = 0
        self._flushed = self._size

    def room_for(self, dataset: h5py.Dataset, region: Region, values: np.ndarray[Any, Any]) -> None:
        """Take room for values that are going to be written to a region: whole chunks, not compressed."""
        size = 0
        if dataset.dtype.kind == "O":
            sizes = (item.nbytes if isinstance(item, np.ndarray) else 4 * len(item or "") for item in values.flat)
            size = 64 * values.size + sum(sizes)
        if dataset.chunks is not None:
            parts = zip(region, dataset.chunks, strict=True)
            chunks = math.prod((part.stop - 1) // length - part.start // length + 1 for part, length in parts)
            size += chunks * (math.prod(dataset.chunks) * dataset.dtype.itemsize + _PER_CHUNK)
        elif dataset.id.get_offset() is None:  # nothing of it is stored yet
            size += dataset.nbytes
        self.room(int(size))

    def room(self, size: int) -> None:
        """Take room from the disk for so many bytes that HDF5 is given before it is flushed the next time.

        Raises
        ------
        OSError
            Where there is none; HDF5 has not been given anything by then.
        """
        if os.name != "posix":
            return
        if self._held > _HELD:
            self._flush()
        stop = max(self._size, self._flushed + self._held) + size + _SPARE
        number = int(self.file.id.get_vfd_handle())
        allocate(number, max(self._allocated, self._size), stop, self._name)
        self._allocated, self._held = max(self._allocated, stop), self._held + size

    def flush(self) -> None:
        """Write what HDF5 holds back."""
        self.room(0)
        self._flush()

    def _flush(self) -> None:
        self.file.flush()
        self._held, self._flushed = 0, self._size

    def close(self) -> None:
        """Close the file, and give back the room that it has not used."""
        try:
            self.flush()
            if self._allocated:
                os.ftruncate(int(self.file.id.get_vfd_handle()), self._size)
        finally:
            self.file.close()

    @property
    def _size(self) -> int:
        """Up to where HDF5 uses the file."""
        return int(self.file.id.get_filesize())


class Target:
    """A dataset, as a target for blocks: ``target[region] = block``."""

    def __init__(self, output: Hdf5Output, dataset: h5py.Dataset) -> None:
        self._output = output
        self._dataset = dataset

    def __setitem__(self, region: Region, values: np.ndarray[Any, Any]) -> None:
        dataset = self._dataset
        self._output.room_for(dataset, region, values)
        row = h5py.check_vlen_dtype(dataset.dtype)
        if isinstance(row, np.dtype):
            # h5py takes rows of one length for an array with one more axis
            rows: np.ndarray[Any, Any] = np.empty(values.shape, dataset.dtype)
            rows.ravel()[:] = [np.asarray(item, row) for item in values.flat]
            dataset.write_direct(rows, dest_sel=region)
            return
        if h5py.check_opaque_dtype(dataset.dtype):
            values = values.astype(np.dtype(dataset.dtype.str)).astype(dataset.dtype)
        elif values.dtype.kind in "UT" and dataset.dtype.kind == "O":
            values = values.astype(object)
        try:
            dataset[region] = values
        except ValueError as error:
            if "NULL" not in str(error):
                raise
            raise ValueError(
                f"variable {dataset.name[1:]!r} holds a string with a NUL character, which HDF5 cannot hold; write it with "
                f"ds.td.to_zarr(), or remove the character"
            ) from error


def whole(shape: Sequence[int]) -> Region:
    """The region that is all of an array."""
    return tuple(slice(0, size) for size in shape)


def write_values(writes: Iterable[tuple[Target, Region, xr.Variable]], *, progress: bool = False) -> None:
    """Write variables to their places: what is in memory or lazy first, then all that dask holds as one graph."""
    held = []
    for target, region, variable in writes:
        if variable.chunks is not None:
            held.append((target, region, variable.data))
        elif 0 not in variable.shape:
            target[region] = read(variable)
    store_blocks(held, progress=progress)


# -- files -------------------------------------------------------------------------------------------------------------


@contextmanager
def opened_file(name: str, opener: Callable[..., h5py.File], *args: Any, **options: Any) -> Iterator[Hdf5Output]:
    """Open a file for writing, and close it with all that is in it; errors of the system in HDF5 are raised with `name`."""
    try:
        output = Hdf5Output(opener(*args, **options), name)
        try:
            yield output
        except BaseException:
            with suppress(Exception):
                output.close()
            raise
        output.close()
    except OSError as error:
        if error.errno in FULL and error.filename is None:
            raise OSError(error.errno, os.strerror(error.errno), name) from error
        raise


@contextmanager
def written_beside(target: Path, *, copied: bool, exclusive: bool, **options: Any) -> Iterator[Hdf5Output]:
    """A file beside `target` to write to, which takes its place when it is whole.

    Parameters
    ----------
    copied
        Begin with what is at `target`, and refuse to take its place where that has changed since.
    exclusive
        Refuse to take the place of anything.

    Raises
    ------
    FileExistsError, BlockingIOError
        Where another writer came first; its file stays as it is.
    """
    target = Path(os.path.realpath(target))
    before = identity_of(target.stat()) if copied else None
    with ExitStack() as committing, replaced(target) as beside:
        if copied:
            shutil.copy2(target, beside)
        with opened_file(str(target), h5py.File, beside, "r+" if copied else "w", **options) as output:
            yield output
        committing.enter_context(not_written(target))
        if copied and (not target.exists() or identity_of(target.stat()) != before):
            raise BlockingIOError(
                f"{target}: another writer has changed the file since this one began, so nothing was written; try again"
            )
        if exclusive and target.exists():
            raise FileExistsError(f"{target}: another writer has made this file, so nothing was written")


@contextmanager
def changed_in_place(target: Path) -> Iterator[Hdf5Output]:
    """The file at `target` itself, open for writing and locked for all others; metadata is written by ``flush`` alone.

    Raises
    ------
    ValueError, BlockingIOError
        Where this process or another one has it open.
    """
    with open_for_changes(target) as file, opened_file(str(target), lambda: file) as output:
        config = file.id.get_mdc_config()
        config.evictions_enabled = config.incr_mode = config.decr_mode = config.flash_incr_mode = 0
        file.id.set_mdc_config(config)
        yield output


# -- blocks of dask ----------------------------------------------------------------------------------------------------


def store_blocks(writes: Sequence[tuple[Any, Region, Any]], *, progress: bool = False) -> None:
    """Compute dask arrays as one graph, and write each block to its place as it comes.

    HDF5 has one writer, this process. Blocks are computed by its threads, with any local scheduler, or by a cluster,
    and each is written as soon as it is there and then forgotten. A cluster keeps finished blocks until they are fetched.

    Parameters
    ----------
    writes
        What takes ``target[region] = block``, where in it an array goes, and the array.
    progress
        Show a bar; of a cluster the dashboard shows it.
    """
    if not writes:
        return
    client = distributed_client()
    if client is not None:
        _from_cluster(client, writes)
        return
    store: Any = dask.array.store
    targets = [delayed(target, pure=False, traverse=False) for target, _, _ in writes]
    stored = store(
        [source for _, _, source in writes],
        targets,
        regions=[region for _, region, _ in writes],
        lock=SerializableLock(),
        compute=False,
    )
    threads = nullcontext() if is_in_this_process() else dask.config.set(scheduler="threads", pool=None)
    with threads:
        compute_all([stored], progress=progress)


def _from_cluster(client: Any, writes: Sequence[tuple[Any, Region, Any]]) -> None:
    import distributed

    worker_of: Any = distributed.get_worker
    with suppress(ValueError):
        worker_of()
        raise NotImplementedError(ONE_WRITER)
    places: dict[str, tuple[Any, Region]] = {}
    blocks: list[Any] = []
    fuse: Any = fuse_slice
    for target, region, source in writes:
        own = source.to_delayed(optimize_graph=False).ravel()
        for block, part in zip(own, slices_from_chunks(source.chunks), strict=True):
            # a task of its own: no other task uses its result, which can be forgotten
            blocks.append(delayed(np.asarray)(block))
            places[blocks[-1].key] = target, fuse(region, part)
    futures = client.compute(blocks)
    iterate: Any = distributed.as_completed
    done = iterate(futures)
    try:
        del futures
        for future in done:
            target, region = places[future.key]
            block = future.result()
            if block.size:
                target[region] = block
            future.release()
    except BaseException:
        client.cancel(list(done.futures))
        raise
