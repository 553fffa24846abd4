"""Times as int64 nanoseconds since 1970-01-01: what the writers store, and what a tensor holds."""

from __future__ import annotations

from typing import Any

import numpy as np

_MAX = 2**63 - 1
"""The last nanosecond that int64 holds; its negative is the first, one below that is NaT."""
_PER_UNIT = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "D": 86_400_000_000_000,
    "W": 604_800_000_000_000,
}


def to_nanoseconds(times: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], Any]:
    """The int64 nanoseconds of datetimes or timedeltas of any unit, NaT the smallest int64.

    Returns
    -------
    counts
        A view where the times are nanoseconds.
    lost
        The first time that nanoseconds do not hold, out of range or finer; None where there is none. numpy wraps around
        silently, both ways, so its own conversion cannot tell.

    Examples
    --------
    >>> to_nanoseconds(np.array(["1970-01-02", "NaT"], "M8[s]"))
    (array([      86400000000000, -9223372036854775808]), None)
    >>> to_nanoseconds(np.array(["2500-01-01"], "M8[s]"))[1]
    np.datetime64('2500-01-01T00:00:00')
    """
    native = np.asarray(times).astype(times.dtype.newbyteorder("="), copy=False)
    unit, step = np.datetime_data(native.dtype)
    if step == 1 and unit in {"ns", "generic"}:
        return native.view(np.int64), None
    finest = f"{native.dtype.kind}8[ns]"
    if unit in {"ps", "fs", "as"}:
        converted = native.astype(finest)
        lost = (converted.astype(native.dtype) != native) & ~np.isnat(native)
    else:
        first, last = _range_in_steps(native.dtype)
        counts = native.view(np.int64)
        lost = ((counts < first) | (counts > last)) & ~np.isnat(native)
        converted = (np.where(lost, np.array(0, native.dtype), native) if lost.any() else native).astype(finest)
    return converted.view(np.int64), native[lost].ravel()[0] if lost.any() else None


def _range_in_steps(dtype: np.dtype[Any]) -> tuple[int, int]:
    """The first and the last count of the unit of a dtype whose nanoseconds fit into int64."""
    unit, step = np.datetime_data(dtype)
    if unit in _PER_UNIT:
        ns = _PER_UNIT[unit] * step
        return -(_MAX // ns), _MAX // ns
    # years and months: the one that the first nanosecond lies in has begun before it
    first = int(np.datetime64(-_MAX, "ns").astype(dtype).view(np.int64)) + 1
    return first, int(np.datetime64(_MAX, "ns").astype(dtype).view(np.int64))
