"""Take the blocks of a file from the disk before something writes to it that does not survive a full disk."""

from __future__ import annotations

import errno
import os

FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
"""What the system says where a disk, a file or a quota is full."""


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
