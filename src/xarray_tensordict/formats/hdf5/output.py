"""HDF5 files that are written: room on the disk before HDF5 needs it, blocks of dask in their places, and one commit.

A file is created, or a copy of it is changed, beside its path and renamed when it is whole. An append alone changes the
file itself, under HDF5's own lock. What goes into a file is decided in :mod:`.write` and :mod:`.append`.
"""

from __future__ import annotations

import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import dask.base
import h5py
import numpy as np
import xarray as xr
from dask.callbacks import Callback
from dask.delayed import delayed

from ..._compat.xarray import read
from ...writing.replacing import FULL, allocate, replaced
from ...writing.running import distributed_client, own_callbacks, progress_bar
from ..fingerprint import identity_of
from .file import lock_out_writers, open_for_changes

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
        self._flushed = self._size if os.name == "posix" else 0

    def room_for(self, dataset: h5py.Dataset, region: Region, values: np.ndarray[Any, Any]) -> None:
        """Take room for values that are going to be written to a region; see `room`."""
        self.room(_bytes_of(dataset, region, values))

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
        allocate(self._number, max(self._allocated, self._size), stop, self._name)
        self._allocated, self._held = max(self._allocated, stop), self._held + size

    def flush(self) -> None:
        """Write what HDF5 holds back."""
        self.room(0)
        self._flush()

    def _flush(self) -> None:
        self.file.flush()
        self._held = 0
        self._flushed = self._size if os.name == "posix" else 0

    def close(self) -> None:
        """Close the file, and give back the room that it has not used."""
        try:
            self.flush()
            if self._allocated:
                os.ftruncate(self._number, self._size)
        finally:
            self.file.close()

    @property
    def _size(self) -> int:
        """Up to where HDF5 uses the file."""
        return int(self.file.id.get_filesize())

    @property
    def _number(self) -> int:
        return int(self.file.id.get_vfd_handle())


def _bytes_of(dataset: h5py.Dataset, region: Region, values: np.ndarray[Any, Any]) -> int:
    """How much of the disk values can take: whole chunks, not compressed."""
    longer = 0
    if dataset.dtype.kind == "O":
        longer = sum(64 + text_size(item) for item in values.flat)
    if dataset.chunks is None:
        whole = dataset.id.get_offset() is None  # nothing of it is stored yet
        return longer + (math.prod(dataset.shape) * dataset.dtype.itemsize if whole else 0)
    chunks = math.prod(
        (part.stop - 1) // size - part.start // size + 1 for part, size in zip(region, dataset.chunks, strict=True)
    )
    return int(longer + chunks * (math.prod(dataset.chunks) * dataset.dtype.itemsize + _PER_CHUNK))


def text_size(item: Any) -> int:
    """How many bytes a text, bytes or a row take."""
    if isinstance(item, str):
        return len(item.encode("utf-8", "surrogatepass"))
    return int(item.nbytes) if isinstance(item, np.ndarray) else len(item or b"")


class Part:
    """A part of a dataset, as a target for blocks: ``part[region] = block``."""

    def __init__(self, output: Hdf5Output, dataset: h5py.Dataset, where: Region | None = None) -> None:
        self._output = output
        self._dataset = dataset
        self._starts = [0] * dataset.ndim if where is None else [part.start for part in where]

    def size(self, values: xr.Variable) -> int:
        """How much of the disk values can take that are to be written from the start on; texts of dask are not known."""
        if 0 in values.shape:
            return 0
        known = np.empty(0, object) if values.chunks is not None else read(values)
        return _bytes_of(self._dataset, self._moved(_whole(values.shape)), known)

    def _moved(self, region: Region) -> Region:
        moved = zip(region, self._starts, strict=True)
        return tuple(slice(part.start + start, part.stop + start) for part, start in moved)

    def __setitem__(self, region: Region, block: np.ndarray[Any, Any]) -> None:
        dataset, where, values = self._dataset, self._moved(region), block
        self._output.room_for(dataset, where, values)
        row = h5py.check_vlen_dtype(dataset.dtype)
        if isinstance(row, np.dtype):
            # h5py takes rows of one length for an array with one more axis
            rows: np.ndarray[Any, Any] = np.empty(values.shape, dataset.dtype)
            rows.ravel()[:] = [np.asarray(item, row) for item in values.flat]
            dataset.write_direct(rows, dest_sel=where)
            return
        if h5py.check_opaque_dtype(dataset.dtype):
            values = values.astype(np.dtype(dataset.dtype.str)).astype(dataset.dtype)
        elif values.dtype.kind in "UT" and dataset.dtype.kind == "O":
            values = values.astype(object)
        try:
            dataset[where] = values
        except ValueError as error:
            if "NULL" not in str(error):
                raise
            raise ValueError(
                f"variable {dataset.name[1:]!r} holds a string with a NUL character, which HDF5 cannot hold; write it with "
                f"ds.td.to_zarr(), or remove the character"
            ) from error


def _whole(shape: tuple[int, ...]) -> Region:
    return tuple(slice(0, size) for size in shape)


def write_values(parts: Sequence[tuple[Part, xr.Variable]], *, progress: bool = False) -> None:
    """Write variables to their places: what is in memory or lazy first, then all that dask holds as one graph."""
    for part, variable in parts:
        if variable.chunks is None and 0 not in variable.shape:
            part[_whole(variable.shape)] = read(variable)
    held = [(part, variable.data) for part, variable in parts if variable.chunks is not None]
    store_blocks([data for _, data in held], [part for part, _ in held], progress=progress)


# -- files -------------------------------------------------------------------------------------------------------------


@contextmanager
def opened_file(path: Path, mode: str, name: str, **options: Any) -> Iterator[Hdf5Output]:
    """Open a file for writing, and close it with all that is in it."""
    with _named(name):
        output = Hdf5Output(h5py.File(path, mode, **options), name)
        try:
            yield output
        except BaseException:
            with suppress(Exception):
                output.close()
            raise
        output.close()


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Raise what the system has said to HDF5 with the name of the file."""
    try:
        yield
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
        with opened_file(beside, "r+" if copied else "w", str(target), **options) as output:
            yield output
        committing.enter_context(lock_out_writers(target))
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
    with _named(str(target)), open_for_changes(target) as file:
        output = Hdf5Output(file, str(target))
        try:
            config = file.id.get_mdc_config()
            config.evictions_enabled = config.incr_mode = config.decr_mode = config.flash_incr_mode = 0
            file.id.set_mdc_config(config)
            yield output
        finally:
            output.close()


# -- blocks of dask ----------------------------------------------------------------------------------------------------


def store_blocks(sources: Sequence[Any], targets: Sequence[Any], *, progress: bool = False) -> None:
    """Compute dask arrays as one graph, and write each block to its place as it comes.

    HDF5 has one writer. Whatever the scheduler, blocks are computed where it computes and come here, where each is
    written as soon as it is there and then forgotten. Local schedulers start no more blocks than they have workers before
    the ones that are done have been written; a cluster keeps finished blocks on its workers until they are fetched.

    Parameters
    ----------
    sources
        Dask arrays.
    targets
        What takes ``target[region] = block``, one for each source.
    progress
        Show a bar; of a cluster the dashboard shows it.
    """
    places: dict[str, tuple[Any, Region]] = {}
    blocks: list[Any] = []
    token = secrets.token_hex(8)
    for source, target in zip(sources, targets, strict=True):
        for block, region in zip(source.to_delayed(optimize_graph=False).ravel(), _regions(source), strict=True):
            # a task of its own: its result belongs to nobody else, and can be forgotten
            name = f"block-{token}-{len(blocks)}"
            blocks.append(delayed(np.asarray)(block, dask_key_name=name))
            places[name] = (target, region)
    if not blocks:
        return

    def put(name: str, block: Any) -> None:
        target, region = places.pop(name)
        if block.size:
            target[region] = block

    client = distributed_client()
    if client is not None:
        _from_cluster(client, blocks, put)
    else:
        _from_local(list(places), blocks, put, progress=progress)
    if places:
        raise RuntimeError(
            f"the scheduler of dask has not given {len(places)} of {len(blocks)} blocks; the file is not whole"
        )


def _regions(source: Any) -> Iterator[Region]:
    """The place of each block, in the order of ``to_delayed().ravel()``."""
    borders = [np.cumsum([0, *sizes]).tolist() for sizes in source.chunks]
    for index in np.ndindex(*source.numblocks):
        yield tuple(slice(border[part], border[part + 1]) for border, part in zip(borders, index, strict=True))


class _Put(Callback):
    """Writes a block when it is done; local schedulers call this in the thread that asked for the computation."""

    def __init__(self, put: Callable[[str, Any], None], names: Iterable[str]) -> None:
        self._put = put
        self.left = set(names)
        start: Any = super().__init__
        start()

    def _posttask(self, key: Any, result: Any, dsk: Any, state: Any, worker_id: Any) -> None:
        if key in self.left:
            self._put(key, result)
            self.left.remove(key)
            state["cache"][key] = None


def _from_local(names: list[str], blocks: list[Any], put: Callable[[str, Any], None], *, progress: bool) -> None:
    compute: Any = dask.base.compute
    written = _Put(put, names)
    with own_callbacks(written, *([progress_bar()] if progress else [])) as called:
        results = compute(*blocks, **called)
    for name, block in zip(names, results, strict=True):
        if name in written.left:  # by a scheduler of the caller, which does not call back
            put(name, block)


def _from_cluster(client: Any, blocks: list[Any], put: Callable[[str, Any], None]) -> None:
    import distributed

    worker_of: Any = distributed.get_worker
    with suppress(ValueError):
        worker_of()
        raise NotImplementedError(ONE_WRITER)
    futures = client.compute(blocks)
    iterate: Any = distributed.as_completed
    done = iterate(futures)
    try:
        del futures
        for future in done:
            put(future.key, future.result())
            future.release()
    except BaseException:
        client.cancel(list(done.futures))
        raise
