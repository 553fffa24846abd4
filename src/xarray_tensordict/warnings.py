"""The classes of this package's warnings. All are ``UserWarning``, so a filter can name one kind or all of them.

Examples
--------
>>> import warnings
>>> from xarray_tensordict import LeftOutWarning
>>> warnings.simplefilter("ignore", LeftOutWarning)
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import xarray as xr

from .core.messages import printable

__all__ = [
    "IncompleteStoreWarning",
    "InferredBatchWarning",
    "LeftOutWarning",
    "MissingValuesWarning",
    "SlowReadWarning",
    "StoredFormWarning",
]


class InferredBatchWarning(UserWarning):
    """The batch dimensions differ from those that were recorded or chosen, or a dimension had to be renamed."""


class LeftOutWarning(UserWarning):
    """A variable, an entry or a group is left out of the result; the message names it and the reason."""


class IncompleteStoreWarning(UserWarning):
    """The store is not whole: a writer was interrupted, or another program changed only a part of it."""


class MissingValuesWarning(UserWarning):
    """Values are read as missing (NaN), and the store does not make sure that they are."""


class SlowReadWarning(UserWarning):
    """The result is right, but reading it costs more than it has to; the message shows what to change."""


class StoredFormWarning(UserWarning):
    """A variable is stored in another form than its encoding or the caller asked for; its values are kept."""


_INSIDE = (str(Path(__file__).parent), str(Path(xr.__file__).parent))


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the user's own line: the first frame that is neither in this package nor in xarray."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        level, frame = level + 1, frame.f_back
    warnings.warn(printable(message), category, stacklevel=level)
