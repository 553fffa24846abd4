"""Where a warning is to point: at the user's own line."""

from __future__ import annotations

import sys
from pathlib import Path

import xarray as xr

_INSIDE = (str(Path(__file__).parent), str(Path(xr.__file__).parent))


def outside() -> int:
    """The stack level of the first frame that is neither this package nor xarray: the user's call."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        level, frame = level + 1, frame.f_back
    return level
