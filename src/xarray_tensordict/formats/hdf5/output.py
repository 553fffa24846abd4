"""An HDF5 file that is written: no error of the disk is lost, and none takes the process down.

HDF5 writes much of what it is given later, when a dataset is closed, where Python swallows what is raised, or the file.
So writers flush what they have written. Metadata that the disk does not take makes HDF5 crash the process when the file
is closed, or at exit, so there is room for it before it is flushed. A file that is given up is closed in memory.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import h5py

from ...writing.disk_blocks import FULL, allocate

_SPARE = 2**16
"""Room for the metadata that HDF5 makes while it flushes."""

_COPIED = 2**29
"""How much of a file that is given up is taken into memory, where HDF5 reads its metadata again."""

_REFUSED = re.compile(r"(?:file write failed|unable to extend file).*?errno = (\d+)", re.DOTALL)
_limit_lock = threading.Lock()


class Hdf5Output:
    """An HDF5 file that is open for writing.

    Attributes
    ----------
    file
        As h5py has it.
    """

    def __init__(self, file: h5py.File, name: str | None, stream: _Stream | None) -> None:
        self.file = file
        self._name = name
        self._stream = stream
        self._allocated = 0

    def flush(self, dataset: h5py.Dataset | None = None) -> None:
        """Write what HDF5 holds back, of a dataset that was written, or of all.

        Raises
        ------
        OSError
            Where the disk does not take it.
        """
        if self._stream is None and os.name == "posix":
            if dataset is not None:
                dataset.id.get_storage_size()  # chunks that HDF5 holds back get their places in the file
            size = self._size + _SPARE
            allocate(self._number, self._allocated, size, self._name)
            self._allocated = max(self._allocated, size)
        (self.file if dataset is None else dataset).flush()

    @property
    def _size(self) -> int:
        """Up to where HDF5 uses the file."""
        return int(self.file.id.get_filesize())

    @property
    def _number(self) -> int:
        return int(self.file.id.get_vfd_handle())

    def close(self) -> None:
        """Close the file, and give back the room it has not used."""
        self.flush()
        if self._allocated:
            os.ftruncate(self._number, self._size)
        self.file.close()

    def give_up(self, *, is_full: bool) -> None:
        """Close the file whatever happens; it is thrown away."""
        with suppress(Exception):
            if not is_full:
                self.close()
                return
        with suppress(Exception), _no_limit_of_size():
            if self._stream is not None:
                self._stream.move_to_memory()
            elif os.name == "posix":
                _move_to_memory(self._number)
            self.file.close()
        with suppress(Exception):
            self.file.close()


@contextmanager
def written(target: Any, mode: str, *, name: str | None = None, **options: Any) -> Iterator[Hdf5Output]:
    """Open a file for writing, a path or a binary file object, and close it with all that is in it.

    Parameters
    ----------
    name
        What messages call it.
    **options
        For h5py.

    Raises
    ------
    OSError
        Where the disk does not take it; the file is not whole then.
    """
    stream = _Stream(target) if hasattr(target, "write") else None
    try:
        output = Hdf5Output(h5py.File(target if stream is None else stream, mode, **options), name, stream)
        try:
            yield output
            output.close()
        except BaseException as error:
            output.give_up(is_full=_refused(error, stream, name) is not None)
            raise
    except Exception as error:
        refused = _refused(error, stream, name)
        if refused is None or refused is error:
            raise
        raise refused from error


def _refused(error: BaseException, stream: _Stream | None, name: str | None) -> BaseException | None:
    """What the disk or the file object has said, where that is why HDF5 raised this error."""
    if stream is not None and stream.error is not None:
        return stream.error
    if isinstance(error, OSError) and error.errno in FULL and error.filename is not None:
        return error
    found = _REFUSED.search(str(error))
    return OSError(int(found[1]), os.strerror(int(found[1])), name) if found is not None else None


class _Stream:
    """A file object as HDF5 needs it: it takes all of what it is given, also where it is not buffered."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, data: Any) -> None:
        rest = memoryview(data).cast("B")
        try:
            while len(rest):
                taken = self._stream.write(rest)
                rest = rest[len(rest) if taken is None else taken :]
        except Exception as error:
            self.error = error  # HDF5 tells of an error, not always of this one
            raise

    def move_to_memory(self) -> None:
        memory = io.BytesIO()
        raw = getattr(self._stream, "raw", self._stream)  # what is buffered cannot be written any more
        raw.seek(0)
        memory.write(raw.read(_COPIED))
        self._stream = memory


def _move_to_memory(number: int) -> None:
    """Make an open file one in memory, with the same content."""
    with _memory() as memory:
        done = 0
        while done < _COPIED and (block := os.pread(number, 2**24, done)):
            memory.write(block)
            done += len(block)
        memory.flush()
        os.dup2(memory.fileno(), number, inheritable=False)


def _memory() -> Any:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("hdf5"), "w+b")
    return tempfile.TemporaryFile()


@contextmanager
def _no_limit_of_size() -> Iterator[None]:
    """Lift the limit that ``ulimit -f`` sets, which holds for memory as well."""
    if os.name != "posix":
        yield
        return
    import resource

    with _limit_lock:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
