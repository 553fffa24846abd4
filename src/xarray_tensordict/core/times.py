"""Times as int64 nanoseconds since 1970-01-01: what the writers store, and what a tensor holds."""

from __future__ import annotations

from typing import Any

import numpy as np


def to_nanoseconds(times: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], Any]:
    """The int64 nanoseconds of datetimes or timedeltas of any unit, NaT the smallest int64.

    Returns
    -------
    counts
        A view where the times are nanoseconds.
    lost
        The first time that nanoseconds do not hold, out of range or finer; None where there is none. numpy wraps around
        silently.

    Examples
    --------
    >>> to_nanoseconds(np.array(["1970-01-02", "NaT"], "M8[s]"))
    (array([      86400000000000, -9223372036854775808]), None)
    >>> to_nanoseconds(np.array(["2500-01-01"], "M8[s]"))[1]
    np.datetime64('2500-01-01T00:00:00')
    """
    native = np.asarray(times).astype(times.dtype.newbyteorder("="), copy=False)
    if np.datetime_data(native.dtype) in {("ns", 1), ("generic", 1)}:
        return native.view(np.int64), None
    finest = f"{native.dtype.kind}8[ns]"
    try:
        converted = native.astype(finest)
    except OverflowError:  # newer versions of numpy
        converted = np.full(native.shape, "NaT", finest)
    same = (converted.astype(native.dtype) == native) | (np.isnat(converted) & np.isnat(native))
    return converted.view(np.int64), None if same.all() else native[~same].ravel()[0]
