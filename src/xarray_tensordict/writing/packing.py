"""Whether a variable is read again as it is written: a packing and a fill value outlive the values they were made for.

``xr.map_blocks(template=)``, ``copy(data=)``, ``concat`` of files that are packed each in its own way, ``shift`` and
``reindex`` all keep an encoding whose integers then wrap around, or have no code for NaN; and a value that has become
the fill value is read as NaN. xarray does not look (measured: 1e6 in int16 with ``scale_factor=0.5`` is stored as
-31616 * 0.5, without a warning).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from xarray.conventions import decode_cf_variable, encode_cf_variable

from .._compat.xarray import in_memory, read
from ..core.metadata import CF_FILLS, CF_PACKING, CF_SCALES, CF_TIMES
from ..quiet import XARRAY_SAYS, quiet
from ..warnings import StoredFormWarning, warn
from .stored_form import map_values

_MARKS = (*CF_SCALES, *CF_FILLS)
_ALL = (*CF_PACKING, *CF_TIMES)


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
    _check_fills(name, variable, asked)
    encoding = with_one_fill(encoding)
    whole = {**encoding, **asked}
    if not _is_packing(variable, whole):
        return variable, dict(encoding)
    given = bool(set(_ALL) & set(asked))
    if variable.dtype.kind in "mM" and not given and variable.chunks is None:
        return variable, dict(encoding)  # the encoding was chosen by these values
    if not given and _is_stale(variable, whole):
        return variable, _bare(encoding)
    if given or variable.chunks is not None:
        return checked(name, variable, whole, exactly=not given), dict(encoding)
    # what has not been loaded is as it was packed
    found = misfit(read(variable), whole, exactly=True) if in_memory(variable) else None
    if found is not None:
        warn(
            f"variable {name!r}: {found}, so it is written as {variable.dtype} without that; pass encoding= to choose another "
            f"packing or fill value",
            StoredFormWarning,
        )
        return variable, _bare(encoding)
    return variable, dict(encoding)


def _check_fills(name: str, variable: xr.Variable, asked: Mapping[str, Any]) -> None:
    if None not in (asked.get("_FillValue"), asked.get("missing_value")) and with_one_fill(asked) != dict(asked):
        raise ValueError(
            f"encoding: variable {name!r} is to have _FillValue={asked['_FillValue']!r} and missing_value="
            f"{asked['missing_value']!r}, and one value stands for what is missing; pass one of them"
        )
    dtype = np.dtype(asked.get("dtype") or variable.dtype)
    if dtype.kind in "iu" and variable.dtype.kind in "biufc" and not all(map(partial(_is_code, dtype), _fills(asked))):
        raise ValueError(
            f"encoding: variable {name!r} is to be {_words(dtype, asked)}, and {dtype} does not hold that value; pass another"
        )


def with_one_fill(encoding: Mapping[str, Any]) -> dict[str, Any]:
    """An encoding with one value for what is missing: files may have several, which xarray reads and does not write."""
    found = dict(encoding)
    fill, others = found.get("_FillValue"), np.ravel(found.get("missing_value", []))
    if fill is None and others.size > 1:
        fill = found["_FillValue"] = others[0]
    if fill is not None and others.size and not np.array_equal(others, [fill], equal_nan=others.dtype.kind == "f"):
        del found["missing_value"]
    return found


def _bare(encoding: Mapping[str, Any]) -> dict[str, Any]:
    return {word: value for word, value in encoding.items() if word not in _ALL}


def _has(encoding: Mapping[str, Any], words: Iterable[str]) -> bool:
    return any(encoding.get(word) is not None for word in words)


def _is_packing(variable: xr.Variable, encoding: Mapping[str, Any]) -> bool:
    """Whether values may be read as others than those written: they are packed, or some stand for missing ones."""
    kind = variable.dtype.kind
    if kind in "mM":
        return _has(encoding, _ALL)
    if kind not in "iufc":
        return False
    if _has(encoding, _MARKS):
        return True
    dtype = np.dtype(encoding.get("dtype") or variable.dtype)
    narrower = dtype.kind == kind and kind in "fc" and dtype.itemsize < variable.dtype.itemsize
    other = dtype.kind in "iub" or dtype.kind != kind or narrower
    return bool(other and dtype != variable.dtype)


def _is_stale(variable: xr.Variable, encoding: Mapping[str, Any]) -> bool:
    """Whether no store of this encoding decodes to numbers of this kind: floats that were integers, and so on."""
    kind = variable.dtype.kind.replace("u", "i")
    if kind not in "if":
        return False
    stored = np.dtype(encoding.get("dtype") or variable.dtype).kind.replace("u", "i")
    return bool(("f" if _has(encoding, _MARKS) else stored) != kind)


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
    if values.dtype.kind in "mM":
        return time_misfit(values, encoding)
    dtype = np.dtype(encoding.get("dtype") or values.dtype)
    fills = _fills(encoding)
    missing = np.isnan(values) if values.dtype.kind in "fc" else np.zeros(values.shape, bool)
    if missing.any() and not fills.size and dtype.kind in "iub":
        return f"{_words(dtype, encoding)} has no _FillValue for NaN"
    if values.dtype.kind == "c" and dtype.kind != "c":
        return f"{_words(dtype, encoding)} does not hold complex numbers"
    if dtype.kind in "iu" and not all(map(partial(_is_code, dtype), fills)):
        return f"{_words(dtype, encoding)} has a value for missing ones that {dtype} does not hold"
    present = values[~missing]
    if dtype.kind in "iu":
        wrong = _without_code(present, dtype, encoding, fills, exactly=exactly)
    else:
        wrong = _changed(present, dtype, encoding, exactly=exactly) | _taken(present, dtype, encoding, fills)
    return f"{_words(dtype, encoding)} does not hold {present[wrong][0]!s}" if wrong.any() else None


def _fills(encoding: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """The values that stand for missing ones."""
    return np.ravel([each for word in CF_FILLS if encoding.get(word) is not None for each in np.ravel(encoding[word])])


def _words(dtype: np.dtype[Any], encoding: Mapping[str, Any]) -> str:
    said = [f"{word}={encoding[word]!s}" for word in _ALL if word != "dtype" and encoding.get(word) is not None]
    return f"{dtype} with {', '.join(said)}" if said else str(dtype)


def _codes(values: np.ndarray[Any, Any], encoding: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """What is stored for values, before it is rounded."""
    scale, offset = encoding.get("scale_factor"), encoding.get("add_offset")
    found = values if offset is None else values - np.asarray(offset, "float64")
    return found if scale is None else found / np.asarray(scale, "float64")


def _taken(
    values: np.ndarray[Any, Any], dtype: np.dtype[Any], encoding: Mapping[str, Any], fills: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Which values would be read as missing, since they are stored as what stands for those."""
    if not fills.size:
        return np.zeros(values.shape, bool)
    with np.errstate(all="ignore"):
        return np.isin(_codes(values, encoding).astype(dtype), fills.astype(dtype))


def _changed(
    values: np.ndarray[Any, Any], dtype: np.dtype[Any], encoding: Mapping[str, Any], *, exactly: bool
) -> np.ndarray[Any, Any]:
    """Which values become others as floats or as bools; without `exactly` floats may be rounded, and stay finite."""
    with np.errstate(all="ignore"):
        codes = _codes(values, encoding)
        stored = codes.astype(dtype)
        if dtype.kind == "b" or (exactly and not _has(encoding, CF_SCALES)):
            return np.asarray(stored.astype(values.dtype) != values)
        return np.asarray(np.isfinite(values) & ~np.isfinite(stored))


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
    if values.dtype.kind in "iu" and not _has(encoding, CF_SCALES):
        # no way round by floats, which hold no int64
        wrong = (values < limits.min) | (values > limits.max)
        return np.asarray(wrong | np.isin(values, taken) if taken else wrong)
    with np.errstate(all="ignore"):
        exact = _codes(values.astype("float64"), encoding)
    codes = np.rint(exact)
    wrong = ~((codes >= limits.min) & (codes <= limits.max))
    wrong |= np.isin(codes, taken)
    if exactly:
        eps = np.finfo(values.dtype).eps if values.dtype.kind == "f" else 0.0
        step, origin = float(encoding.get("scale_factor") or 1.0), float(encoding.get("add_offset") or 0.0)
        slack = 1e-3 + 4 * eps * np.maximum(np.abs(values.astype("float64")), abs(origin)) / abs(step)
        wrong |= np.abs(exact - codes) > slack
    return np.asarray(wrong)


def _is_code(dtype: np.dtype[Any], fill: Any) -> bool:
    """Whether an integer dtype holds a fill value, with the sign or without; NaN says that there is none."""
    size = 1 << 8 * dtype.itemsize
    return bool(np.isnan(fill)) or (fill == int(fill) and -(size >> 1) <= int(fill) < size)


def _within(code: int, limits: np.iinfo[Any]) -> int:
    """A code as its bits are read, with the sign or without."""
    if limits.min <= code <= limits.max:
        return code
    return code - (1 << limits.bits) if code > 0 else code + (1 << limits.bits)


# -- times -------------------------------------------------------------------------------------------------------------


def time_misfit(values: np.ndarray[Any, Any], encoding: Mapping[str, Any], *, units: bool = False) -> str | None:
    """The same for times, which are encoded and decoded.

    Parameters
    ----------
    units
        Whether it is a misfit, too, that xarray takes other units than those of the encoding.
    """
    words = {word: encoding[word] for word in _ALL if encoding.get(word) is not None}
    with quiet(*XARRAY_SAYS), np.errstate(all="ignore"):
        try:
            coded = encode_cf_variable(xr.Variable(("time",), values.ravel(), {}, words), name="time")
            found = decode_cf_variable("time", coded, decode_timedelta=values.dtype.kind == "m").values
        except (ValueError, OverflowError, TypeError) as error:
            return f"its encoding {words} does not hold its times ({error})"
    is_other = units and str(coded.attrs.get("units")).split()[:1] != str(words.get("units")).split()[:1]
    if found.dtype.kind != values.dtype.kind or is_other:
        return f"its encoding {words} does not hold its times"
    wrong = ~((found == values.ravel()) | (np.isnat(found) & np.isnat(values.ravel())))
    return f"its encoding {words} does not hold {values.ravel()[wrong][0]!s}" if wrong.any() else None
