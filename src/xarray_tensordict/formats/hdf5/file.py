"""HDF5 files that stay usable: in threads, after pickling, after a fork, and beyond a full cache of open files.

Files are kept by xarray's file managers, and each use of h5py happens under xarray's lock for HDF5. This is the one
module that uses these two. It also controls who may write to a file.
"""

from __future__ import annotations

import errno
import io
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakSet

import h5py
from xarray.backends.file_manager import (
    CachingFileManager,
    DummyFileManager,
    FileManager,
    PickleableFileManager,
)
from xarray.backends.locks import HDF5_LOCK

from ..base import what_starts_with
from ..identity import Identity, RemovedError, identity_of
from ..raw.files import CAN_READ_AT
from .format import has_signature

try:
    import fcntl
except ImportError:  # Windows, where HDF5 alone locks files
    fcntl = None  # type: ignore[assignment]

_FORK_WAITS = 10
"""How many seconds a fork waits for a thread that uses HDF5, before it goes on without it."""

_lock: Any = HDF5_LOCK
_held_for_fork = False


def _before_fork() -> None:
    # in the child no thread would finish what another one has begun in HDF5, nor release its lock
    global _held_for_fork
    _held_for_fork = _lock.acquire(timeout=_FORK_WAITS)


def _after_fork(*, in_child: bool) -> None:
    global _lock
    if _held_for_fork:
        _lock.release()
    elif in_child:
        _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=partial(_after_fork, in_child=False),
        after_in_child=partial(_after_fork, in_child=True),
    )


@contextmanager
def without_readers() -> Iterator[None]:
    """No thread of this process describes or reads a file through this package, for as long as the context lasts."""
    with _lock:
        yield


def file_name(member: Any) -> str:
    """The name of the file that an object lies in, as ``member.file.filename``, which opens the file once more for it."""
    return os.fsdecode(h5py.h5f.get_name(member.id))


@dataclass
class OpenFile:
    """What is known of a file for as long as it stays open.

    Attributes
    ----------
    handle
        What the file manager has opened.
    writable
        Whether this process can write to it.
    identity
        What identifies it; None where it is no file that others can read.
    as_opened
        Whether it is the file that was opened first, as it was then.
    descriptor, size
        What HDF5 reads it by, where others can use that, and how large it was when it was opened.
    checked
        The datasets whose parts were looked at, and that were what they were when they were described.
    """

    handle: Any = None
    writable: bool = False
    identity: Identity | None = None
    as_opened: bool = False
    descriptor: int | None = None
    size: int = 0
    checked: set[str] = field(default_factory=set)


_sources: WeakSet[Hdf5Source] = WeakSet()


class Hdf5Source:
    """The group that was given, or the root group of the file that was given; opened anew where it has to be.

    Parameters
    ----------
    manager
        What keeps the file (or the group of the caller) open.
    description
        How messages call the source.
    path
        The path of a file that this package opens itself, None for what the caller has opened.

    Attributes
    ----------
    state
        What is known of the file that is open; for use inside of `locked`.
    """

    def __init__(self, manager: FileManager[Any], description: str, path: str | None = None) -> None:
        self._manager: Any = manager
        self.description = description
        self._path = path
        self._pid = os.getpid()
        self._inherited: FileManager[Any] | None = None
        self._identity: Identity | None = None
        self.state = OpenFile()
        with self.locked():
            self._identity, self.state.as_opened = self.state.identity, not self.state.writable
            _sources.add(self)  # before a writer can look for who has the file open

    @contextmanager
    def locked(self) -> Iterator[Any]:
        """The open h5py group, for as long as the context lasts, and for this thread alone.

        The lock is not reentrant: nothing inside the context may call `locked` again.
        """
        with _lock:
            if self._pid != os.getpid():
                self._reopen_after_fork()
            try:
                opened = self._manager.acquire(needs_lock=False)
                if not opened:
                    raise ValueError(
                        f"{self.description} was closed by its owner: open it again, or open it by its path"
                    )
                if self.state.handle is not opened:
                    self.state = self._looked_at(opened)
            except FileNotFoundError as error:
                raise RemovedError(
                    f"{self.description}: there is no such file any more; open it where it is now"
                ) from error
            except OSError as error:
                raise _cannot_open(repr(self.description), error) from error
            yield opened

    def _looked_at(self, opened: Any) -> OpenFile:
        """A file that is opened anew, by this source or by its owner, begins with nothing."""
        file = h5py.h5i.get_file_id(opened.id)
        state = OpenFile(opened, writable=file.get_intent() != h5py.h5f.ACC_RDONLY)
        if CAN_READ_AT and file.get_access_plist().get_driver() == h5py.h5fd.SEC2:
            state.descriptor = file.get_vfd_handle()
            status = os.fstat(state.descriptor)
            state.size, state.identity = status.st_size, identity_of(status)
            state.as_opened = not state.writable and state.identity == self._identity
        return state

    def check_size(self) -> None:
        """Raise where an open file became shorter: HDF5 reads what is behind its end as zeros."""
        if self.state.descriptor is None or self.state.writable:
            return
        found = os.fstat(self.state.descriptor).st_size
        if found < self.state.size:
            raise OSError(
                f"{self.description}: expected {self.state.size} bytes, as it was opened, found {found}. It was truncated; "
                f"restore it, and open it again"
            )

    def close(self) -> None:
        """Close the file if this package opened it. Lazy arrays by path open it again when they are read."""
        with _lock:
            self._manager.close(needs_lock=False)

    def release(self, path: str | os.PathLike[str]) -> None:
        """Close the file if it is the one at `path`, and was opened by its path; under the lock."""
        with suppress(OSError):
            if self._path is not None and self._pid == os.getpid() and os.path.samefile(self._path, path):
                self._manager.close(needs_lock=False)

    def _reopen_after_fork(self) -> None:
        self._pid = os.getpid()
        # a caller's own handle stays: HDF5 would give the same one again, and the caller may have opened it for writing
        if self._path is not None:
            # the parent's handle is kept, not closed: closing it here would release the parent's lock on the file
            self._inherited = self._manager
            self._manager = CachingFileManager(h5py.File, self._path, mode="r")

    def __getstate__(self) -> dict[str, Any]:
        if isinstance(self._manager, DummyFileManager):
            raise TypeError(
                f"an array of {self.description} cannot be pickled: the file was opened by the caller, and another process "
                f"cannot use that. Open the file by its path."
            )
        state = {**self.__dict__, "_inherited": None, "state": OpenFile()}
        del state["_pid"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._pid = os.getpid()
        with _lock:
            _sources.add(self)


# -- opening -----------------------------------------------------------------------------------------------------------


def open_source(source: Any) -> Hdf5Source:
    """Open what a user gave as an HDF5 file; the error describes what is no HDF5 file.

    Parameters
    ----------
    source
        A path, the bytes of a file, a binary file object, or an open ``h5py.File`` or ``h5py.Group``.
    """
    if isinstance(source, (str, os.PathLike)):
        path = os.fsdecode(source)
        if "://" in path:
            raise ValueError(
                f"{path!r} is a URL, and HDF5 files are opened by local paths: give an open file in its place, "
                f'for example fsspec.open({path!r}, "rb").open()'
            )
        path = os.path.abspath(path)
        return Hdf5Source(CachingFileManager(h5py.File, path, mode="r"), path, path)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _open_file_object(io.BytesIO(bytes(source)), f"<{len(source)} bytes>")
    if isinstance(source, h5py.Group):
        return _borrow(source)
    if hasattr(source, "read") and hasattr(source, "seek"):
        return _open_file_object(source, repr(source))
    raise TypeError(f"expected a path, bytes, a binary file object, an h5py.File or h5py.Group, found {type(source)}")


def _open_file_object(file: Any, description: str) -> Hdf5Source:
    if isinstance(file, io.TextIOBase):
        raise TypeError(f"{description} is open as text: open it in binary mode ('rb')")
    position = file.tell()
    try:
        file.seek(0)
        head = file.read(10)
        if not has_signature(file):
            raise ValueError(f"{description}: expected an HDF5 file, found {what_starts_with(head)}")
    finally:
        file.seek(position)
    path = _path_of(file)
    if path is not None:  # a forked or spawned process must not share its position with this one
        return open_source(path)
    with _lock:
        try:
            manager = PickleableFileManager(h5py.File, file, mode="r")
        except OSError as err:
            raise _cannot_open(description, err) from err
    return Hdf5Source(manager, description)


def _borrow(group: Any) -> Hdf5Source:
    if not group:
        raise ValueError(f"{group!r} is closed: open the file again, or give its path")
    file, name = group.file.filename, group.name or "/"
    description = file if name == "/" else f"{file}:{name}"
    return Hdf5Source(DummyFileManager(group, close=lambda: None), description)


def _path_of(file: Any) -> str | None:
    """The path of an open file of the operating system, if it is still that file."""
    with suppress(AttributeError, OSError, ValueError):
        name = file.name
        if isinstance(name, str) and os.path.samestat(os.fstat(file.fileno()), os.stat(name)):
            return os.path.abspath(name)
    return None


def _cannot_open(name: str, err: OSError) -> OSError:
    advice = ""
    if "truncated" in str(err) or "superblock" in str(err):
        advice = ". The file is damaged or not complete: copy or download it again"
    elif "lock" in str(err):
        advice = ". Close it where it is open for writing, or start Python with HDF5_USE_FILE_LOCKING=FALSE"
    elif "consistency flags" in str(err):
        advice = f". A writer was killed: run h5clear -s {name}, or copy the file from a backup"
    return OSError(f"{name} cannot be opened as an HDF5 file: {err}{advice}")


# -- who may write -----------------------------------------------------------------------------------------------------


@contextmanager
def open_for_changes(path: str | os.PathLike[str]) -> Iterator[h5py.File]:
    """Open an existing file for reading and writing, as its only writer.

    What this package has open of it for reading is closed, and opened again where it is read.

    Raises
    ------
    ValueError
        Where this process has it open for writing, or for reading by other means, which HDF5 does not allow.
    BlockingIOError
        Where another process has it open.
    OSError
        Where it cannot be opened otherwise; the message names it.
    """
    text = os.path.abspath(os.fsdecode(path).removeprefix("file://"))
    with _lock:
        _release_readers(text)
        with not_written(text):
            pass
        try:
            file = h5py.File(text, "r+")
        except OSError as error:
            if "already open for read-only" in str(error):
                raise ValueError(
                    f"{path}: this process has the file open for reading, and HDF5 cannot open it for writing until that "
                    f"is closed: file.close(), and ds.close() of each Dataset that another engine has opened from it"
                ) from error
            raise _locked(text, error) or _cannot_open(repr(text), error) from error
    try:
        with suppress(NotImplementedError, ValueError, FileNotFoundError):
            if not os.path.samestat(os.fstat(int(file.id.get_vfd_handle())), os.stat(text)):
                raise BlockingIOError(f"{text}: another writer has just replaced the file; try again")
        yield file
    finally:
        file.close()
        with _lock:  # those that were opened meanwhile would keep the file open for writing
            _release_readers(text)


def _release_readers(path: str | os.PathLike[str]) -> None:
    """Close what this package has open of a file for reading; lazy arrays open it again when they are read."""
    for source in list(_sources):
        source.release(path)


@contextmanager
def not_written(path: str | os.PathLike[str]) -> Iterator[None]:
    """Keep other writers from replacing a file or opening it for writing; readers may go on.

    Raises
    ------
    ValueError, BlockingIOError
        Where this process, or another one, has it open for writing.
    """
    with ExitStack() as held:
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks
                number = os.open(os.path.dirname(path), os.O_RDONLY)
                held.callback(os.close, number)
                fcntl.flock(number, fcntl.LOCK_EX)
        try:
            file = held.enter_context(h5py.File(path, "r"))
        except OSError as error:  # there is none, or a damaged one: no writer has it
            locked = _locked(path, error)
            if locked is not None:
                raise locked from error
        else:
            if file.id.get_intent() & h5py.h5f.ACC_RDWR:
                raise ValueError(
                    f"{path}: this process has the file open for writing, and what is written there would be lost or mixed; "
                    f"close it first (file.close(), ptd.close()), or try again when the other thread is done"
                )
            if os.name == "nt":  # which replaces no file that is open
                file.close()
        yield


def _locked(path: str | os.PathLike[str], error: OSError) -> BlockingIOError | None:
    if error.errno not in {errno.EAGAIN, errno.EACCES} or "lock" not in str(error):
        return None
    return BlockingIOError(
        f"{path}: the file is open elsewhere, and HDF5 allows one writer and no readers beside it. Nothing was written; try "
        f"again when it is closed there (ds.close())"
    )
