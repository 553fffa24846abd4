"""Write beside, then rename: a crash leaves what was there before, and a store can be written onto itself.

Lazy arrays of the old store stay readable until the new one is whole.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
"""The error numbers of a full disk, file or quota."""


@contextmanager
def replaced(
    target: Path,
    lock: Callable[[], AbstractContextManager[Any]] = nullcontext,
    *,
    exclusive: bool = False,
    beside: Path | None = None,
) -> Iterator[Path]:
    """Give a path beside `target` to write to, a file or a folder, which becomes `target` if nothing is raised.

    What is at `target` is removed only after that. Links are followed: what they point to is replaced.

    Parameters
    ----------
    lock
        Entered when all is written, for the time of the exchange.
    exclusive
        Whether another process may not have put anything there in the meantime.
    beside
        Where the path is to be, if not beside `target`; on the same disk.

    Raises
    ------
    FileExistsError
        With `exclusive`, where another process has.

    Examples
    --------
    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "data.txt"
    >>> with replaced(target) as beside:
    ...     _ = beside.write_text("whole")
    >>> target.read_text()
    'whole'
    """
    target = Path(os.path.realpath(target))
    written = free_name(beside or target, "tmp")
    written.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield written
        with lock():
            if not exclusive:
                swap(written, target)
                return
            try:
                os.rename(written, target)  # where there is nothing, or an empty folder
            except OSError as error:
                if not target.exists():
                    raise
                raise FileExistsError(f"{target}: another process has written it in the meantime") from error
    except BaseException:
        remove(written)
        raise


def swap(new: Path, target: Path) -> None:
    """Put `new` in the place of `target`, of which it is a neighbour, and remove what was there."""
    if new.is_file() and not target.is_dir():
        os.replace(new, target)
        return
    if target.exists() and _exchange(new, target):
        remove(new)
        return
    old = None
    try:
        if target.exists():
            old = free_name(target, "old")
            os.rename(target, old)
        os.rename(new, target)
    except BaseException:
        if old is not None and old.exists() and not target.exists():
            os.rename(old, target)
        remove(new)
        raise
    if old is not None:
        remove(old)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step, so that a crash never leaves a folder's name to nothing; False where it cannot.

    Linux has ``renameat2`` for this and macOS ``renamex_np``, but not for every file system; Python offers neither.
    """
    if os.name != "posix":
        return False
    libc = ctypes.CDLL(None)
    names = os.fsencode(one), os.fsencode(other)
    if hasattr(libc, "renameat2"):
        here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
        return bool(libc.renameat2(here, names[0], here, names[1], exchange) == 0)
    if hasattr(libc, "renamex_np"):
        return bool(libc.renamex_np(*names, 2) == 0)  # RENAME_SWAP
    return False


def free_name(target: Path, kind: str) -> Path:
    """An unused name beside `target`."""
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.{kind}")


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        try:
            shutil.rmtree(path, ignore_errors=True)
        except BaseException:  # Ctrl-C: no other code would remove the rest
            shutil.rmtree(path, ignore_errors=True)
            raise
    else:
        with suppress(FileNotFoundError):
            path.unlink()


def allocate(number: int, start: int, stop: int, name: str | None) -> None:
    """Take the blocks of an open file from `start` to `stop`, where the system can; the file is as long then.

    Parameters
    ----------
    number
        The file descriptor.
    name
        What the message calls it.

    Raises
    ------
    OSError
        Where there are not as many.
    """
    if stop <= start or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(number, start, stop - start)
    except OSError as error:
        # other errors are those of file systems that cannot
        if error.errno in FULL:
            raise OSError(error.errno, os.strerror(error.errno), name) from error
