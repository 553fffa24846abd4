"""Whether a variable is read again as it is written: a packing and a fill value outlive the values they were made for.

``xr.map_blocks(template=)``, ``copy(data=)``, ``concat`` of files that are packed each in its own way, ``shift`` and
``reindex`` all keep an encoding whose integers then wrap around, or have no code for NaN; and a value that has become
the fill value is read as NaN. xarray does not look (measured: 1e6 in int16 with ``scale_factor=0.5`` is stored as
-31616 * 0.5, without a warning).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from ..callers import outside
from ..dataset.xarray_private import in_memory, read
from .stored_form import map_values

_FILLS = ("_FillValue", "missing_value")
_MARKS = ("scale_factor", "add_offset", *_FILLS)
PACKING = (*_MARKS, "dtype", "_Unsigned")


def packed(
    name: str, variable: xr.Variable, encoding: Mapping[str, Any], asked: Mapping[str, Any]
) -> tuple[xr.Variable, dict[str, Any]]:
    """The variable, checked, and its encoding without a packing that does not hold its values.

    Parameters
    ----------
    encoding
        What came along with the variable.
    asked
        What the caller says: values may be rounded by that, and nothing else.

    Raises
    ------
    ValueError
        Where a packing that was asked for has no code for a value. Values of dask are checked block by block while they
        are written, against any packing.

    Warns
    -----
    UserWarning
        Where a packing that came along is dropped, since values in memory do not fit.
    """
    encoding = with_one_fill(encoding)
    whole = {**encoding, **asked}
    if not _is_packing(variable, whole):
        return variable, dict(encoding)
    given = bool(set(PACKING) & set(asked))
    if not given and _is_stale(variable, whole):
        return variable, _bare(encoding)
    if given or variable.chunks is not None:
        return checked(name, variable, whole, exactly=not given), dict(encoding)
    # what has not been loaded is as it was packed
    found = misfit(read(variable), whole, exactly=True) if in_memory(variable) else None
    if found is not None:
        warnings.warn(
            f"variable {name!r}: {found}, so it is written as {variable.dtype} without that; pass encoding= to choose another "
            f"packing or fill value",
            UserWarning,
            stacklevel=outside(),
        )
        return variable, _bare(encoding)
    return variable, dict(encoding)


def with_one_fill(encoding: Mapping[str, Any]) -> dict[str, Any]:
    """An encoding with one value for what is missing: files may have several, which xarray reads and does not write."""
    fill = encoding.get("_FillValue")
    several = fill is not None and not np.array_equal(
        np.ravel(encoding.get("missing_value", fill)), [fill], equal_nan=True
    )
    return {word: value for word, value in encoding.items() if not (several and word == "missing_value")}


def _bare(encoding: Mapping[str, Any]) -> dict[str, Any]:
    return {word: value for word, value in encoding.items() if word not in PACKING}


def _is_packing(variable: xr.Variable, encoding: Mapping[str, Any]) -> bool:
    """Whether values may be read as others than those written: they are packed, or some stand for missing ones."""
    if variable.dtype.kind not in "iuf":
        return False
    if any(encoding.get(word) is not None for word in _MARKS):
        return True
    dtype = np.dtype(encoding.get("dtype") or variable.dtype)
    narrower = dtype.kind == "f" and variable.dtype.kind == "f" and dtype.itemsize < variable.dtype.itemsize
    return dtype != variable.dtype and (dtype.kind in "iu" or narrower)


def _is_stale(variable: xr.Variable, encoding: Mapping[str, Any]) -> bool:
    """Whether no store of this encoding decodes to this dtype: floats that were integers, integers that were floats."""
    decodes_to_floats = any(encoding.get(word) is not None for word in _MARKS)
    return decodes_to_floats == (variable.dtype.kind in "iu")


def checked(
    name: str, variable: xr.Variable, encoding: Mapping[str, Any], *, exactly: bool = False, remedy: str = ""
) -> xr.Variable:
    """The same variable; dask checks each block of it.

    Raises
    ------
    ValueError
        For values that the packing does not hold; `remedy` says what to do then.
    """
    remedy = (
        remedy or f"write ds.assign({{{name!r}: ds[{name!r}].drop_encoding()}}), or pass an encoding= that holds it"
    )

    def check(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        found = misfit(values, encoding, exactly=exactly)
        if found is not None:
            raise ValueError(f"variable {name!r}: {found}; {remedy}")
        return values

    if variable.chunks is None:
        check(read(variable))
        return variable
    return map_values(variable, check, variable.dtype)


def misfit(values: np.ndarray[Any, Any], encoding: Mapping[str, Any], *, exactly: bool) -> str | None:
    """Say which value a packing does not hold, None where it holds all; with `exactly` none may be rounded either.

    Examples
    --------
    >>> misfit(np.array([1.0, 1e6]), {"dtype": "int16", "scale_factor": 0.5}, exactly=False)
    'int16 with scale_factor=0.5 does not hold 1000000.0'
    >>> misfit(np.array([0.25]), {"dtype": "int16", "scale_factor": 0.5}, exactly=True)
    'int16 with scale_factor=0.5 does not hold 0.25'
    >>> misfit(np.array([np.nan, -999.0]), {"_FillValue": -999.0}, exactly=True)
    'float64 with _FillValue=-999.0 does not hold -999.0'
    >>> misfit(np.array([np.nan]), {"dtype": "int16", "_FillValue": -1}, exactly=True)
    """
    values = np.asarray(values)
    dtype = np.dtype(encoding.get("dtype") or values.dtype)
    fills = np.ravel([each for word in _FILLS if encoding.get(word) is not None for each in np.ravel(encoding[word])])
    missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, bool)
    if missing.any() and not fills.size and dtype.kind in "iu":
        return f"{_words(dtype, encoding)} has no _FillValue for NaN"
    present = values[~missing]
    if dtype.kind == "f" or not present.size:
        wrong = _taken(present, dtype, encoding, fills)
        if exactly:
            wrong |= _rounded(present, dtype, encoding)
    else:
        wrong = _without_code(present, dtype, encoding, fills, exactly=exactly)
    return f"{_words(dtype, encoding)} does not hold {present[wrong][0]!s}" if wrong.any() else None


def _words(dtype: np.dtype[Any], encoding: Mapping[str, Any]) -> str:
    said = [f"{word}={encoding[word]!s}" for word in PACKING if word != "dtype" and encoding.get(word) is not None]
    return f"{dtype} with {', '.join(said)}" if said else str(dtype)


def _taken(
    values: np.ndarray[Any, Any], dtype: np.dtype[Any], encoding: Mapping[str, Any], fills: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Which values would be read as missing, since they are stored as what stands for those."""
    if not fills.size:
        return np.zeros(values.shape, bool)
    step, origin = encoding.get("scale_factor") or 1, encoding.get("add_offset") or 0
    with np.errstate(over="ignore"):
        return np.isin(((values - origin) / step).astype(dtype), fills.astype(dtype))


def _rounded(values: np.ndarray[Any, Any], dtype: np.dtype[Any], encoding: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    if {"scale_factor", "add_offset"} & set(encoding):
        return np.zeros(values.shape, bool)
    with np.errstate(over="ignore"):
        return np.asarray(values.astype(dtype).astype(values.dtype) != values)


def _without_code(
    values: np.ndarray[Any, Any],
    dtype: np.dtype[Any],
    encoding: Mapping[str, Any],
    fills: np.ndarray[Any, Any],
    *,
    exactly: bool,
) -> np.ndarray[Any, Any]:
    unsigned = str(encoding.get("_Unsigned", "true" if dtype.kind == "u" else "false")) == "true"
    limits = np.iinfo(f"{'u' if unsigned else 'i'}{dtype.itemsize}")
    taken = [_within(int(fill), limits) for fill in fills[~np.isnan(fills)]]
    scale, offset = encoding.get("scale_factor"), encoding.get("add_offset")
    if values.dtype.kind in "iu" and scale is None and offset is None:
        # no way round by floats, which hold no int64
        wrong = (values < limits.min) | (values > limits.max)
        return np.asarray(wrong | np.isin(values, taken) if taken else wrong)
    step, origin = float(scale or 1.0), float(offset or 0.0)
    exact = (values.astype("float64") - origin) / step
    codes = np.rint(exact)
    wrong = ~((codes >= limits.min) & (codes <= limits.max))
    wrong |= np.isin(codes, taken)
    if exactly:
        eps = np.finfo(values.dtype).eps if values.dtype.kind == "f" else 0.0
        slack = 1e-3 + 4 * eps * np.maximum(np.abs(values.astype("float64")), abs(origin)) / abs(step)
        wrong |= np.abs(exact - codes) > slack
    return np.asarray(wrong)


def _within(code: int, limits: np.iinfo[Any]) -> int:
    """A code as its bits are read, with the sign or without."""
    if limits.min <= code <= limits.max:
        return code
    return code - (1 << limits.bits) if code > 0 else code + (1 << limits.bits)
