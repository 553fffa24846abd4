"""Values on their way to a store: in blocks where they are large and lazy, and checked to come back from their encoding.

A packing and a fill value outlive the values they were made for: ``xr.map_blocks(template=)``, ``copy(data=)``, ``concat`` of files
that are packed each in its own way, ``shift`` and ``reindex`` all keep an encoding whose integers then wrap around, or have no code
for NaN; and a value that has become the fill value is read as NaN. xarray does not look (measured: 1e6 in int16 with
``scale_factor=0.5`` is stored as -31616 * 0.5, without a warning). So values are encoded and decoded by xarray, and compared. No other
module asks whether a value comes back.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from xarray.conventions import decode_cf_variable, encode_cf_variable

from .._compat.xarray import data_of, in_memory, is_index_data, past_cache, read, remade
from ..core.blocks import PreferredChunks, merged_chunks, row_blocks
from ..core.metadata import CF_FILLS, CF_SCALES, CF_TIMES, CF_WORDS
from ..core.values import held_objects, jsonable
from ..dataset.entries import calendar_of
from ..warnings import XARRAY_SAYS, StoredFormWarning, quiet, warn

Values = np.ndarray[Any, Any]

STREAM_BYTES = 32 << 20
"""What is read at once; smaller arrays are read as a whole."""


def streamed(variable: xr.Variable) -> xr.Variable:
    """The variable, held by dask in blocks of about :data:`STREAM_BYTES` if it is lazy and larger than that.

    Examples
    --------
    >>> import numpy as np
    >>> streamed(xr.Variable("x", np.zeros(3))).chunks is None
    True
    """
    is_lazy = variable.chunks is None and variable.ndim and not (in_memory(variable) or is_index_data(variable))
    if not is_lazy or variable.nbytes <= STREAM_BYTES:
        return variable
    held: Any = past_cache(variable)
    # a name of its own: dask would pickle the array for one
    name = f"stream-{secrets.token_hex(8)}"
    blocks = dict(zip(variable.dims, _blocks(variable), strict=True))
    chunked: xr.Variable = held.chunk(blocks, from_array_kwargs={"name": name})
    chunked.encoding = variable.encoding
    return chunked


def _blocks(variable: xr.Variable) -> tuple[int, ...]:
    """Whole chunks of the store the values are read from, rows where it has none."""
    preferred = variable.encoding.get("preferred_chunks") or {}
    free = isinstance(preferred, PreferredChunks) and not preferred.stored
    sizes = dict(preferred.items())
    pieces = [sizes.get(dim, size) for dim, size in variable.sizes.items()]
    if free or not sizes or len(pieces) != variable.ndim or not all(isinstance(piece, int) for piece in pieces):
        return row_blocks(variable.shape, variable.dtype.itemsize, STREAM_BYTES)
    return merged_chunks(pieces, variable.shape, variable.dtype.itemsize, STREAM_BYTES)


# -- functions of values -----------------------------------------------------------------------------------------------


def map_values(variable: xr.Variable, function: Callable[[Values], Values], dtype: np.dtype[Any]) -> xr.Variable:
    """Apply an elementwise function: block by block where dask holds the values, to all of them at once elsewhere."""
    data: Any = (
        variable.data.map_blocks(function, dtype=dtype) if variable.chunks is not None else function(read(variable))
    )
    return remade(variable, data=data)


def read_now(variable: xr.Variable) -> Values:
    """The values, computed if dask holds them."""
    return np.asarray(variable.data.compute() if variable.chunks is not None else read(variable))


def check_text(texts: Iterable[str], what: str) -> None:
    """Raise a ValueError for half a character (a lone surrogate), which UTF-8 does not have."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} has half a character, which no store holds ({error}); replace it") from None


def contiguous(variable: xr.Variable) -> xr.Variable:
    """Text in C order: zarr writes strings of any length in the wrong order, silently, where it is not (measured)."""
    if variable.dtype.kind not in "OT" or variable.ndim < 2:
        return variable
    return map_values(variable, np.ascontiguousarray, variable.dtype)


def as_declared(variable: xr.Variable, name: str) -> xr.Variable:
    """The same variable; blocks of dask that are not of the dtype that was declared must lose nothing by becoming it.

    ``apply_ufunc(output_dtypes=)`` and ``map_blocks(template=)`` do not check the dtype that they are given, and stores
    cast silently.
    """
    dtype = variable.dtype
    if variable.chunks is None or dtype.kind not in "biufcUS":
        return variable
    return map_values(variable, partial(_cast_exactly, dtype=dtype, name=name), dtype)


def _cast_exactly(values: Values, *, dtype: np.dtype[Any], name: str) -> Values:
    """The values of one block in the declared dtype, if they are the same."""
    if values.dtype == dtype:
        return values
    if dtype.kind in "US":
        cast = values.astype(dtype) if values.dtype.kind in (dtype.kind, *"OT") else None
        if cast is not None and np.array_equal(cast, values):
            return cast
    elif np.can_cast(values.dtype, dtype, "same_kind"):
        cast = values.astype(dtype)
        if dtype.kind not in "iu" or np.array_equal(cast, values):
            return cast
    raise TypeError(
        f"variable {name!r}: its dtype was declared as {dtype}, and dask computes {values.dtype}, which does not "
        "fit; correct the dtype where it is declared (output_dtypes=, dtype=, template=), or convert with .astype()"
    )


_AT_ONCE = 1 << 20
"""How many numbers are encoded and decoded at once."""
_FAILS = (ValueError, OverflowError, TypeError)
# the resolution of times, and of the units that xarray turns into NaT, silently, where they are finer (measured)
_STEPS = {"s": 0, "ms": 1, "us": 2, "ns": 3}
_UNITS = {"milliseconds": 1, "microseconds": 2, "nanoseconds": 3}


def packed(
    name: str, variable: xr.Variable, encoding: Mapping[str, Any], asked: Mapping[str, Any]
) -> tuple[xr.Variable, dict[str, Any]]:
    """The variable, checked, and its encoding without a packing that does not hold its values.

    Parameters
    ----------
    encoding
        What came along with the variable.
    asked
        Passed by the caller: values may be rounded by that, and by nothing else.

    Raises
    ------
    ValueError
        Where a packing that was asked for has no code for a value. Values of dask are checked block by block while they
        are written, against any packing.

    Warns
    -----
    StoredFormWarning
        Where a packing that came along is dropped, since values in memory do not fit.
    """
    if None not in (asked.get("_FillValue"), asked.get("missing_value")) and with_one_fill(asked) != dict(asked):
        raise ValueError(
            f"encoding: variable {name!r} is to have _FillValue={asked['_FillValue']!r} and missing_value="
            f"{asked['missing_value']!r}, and one value stands for what is missing; pass one of them"
        )
    encoding = with_one_fill(encoding)
    whole = {**encoding, **asked}
    if not is_packing(variable, whole):
        return variable, encoding
    if set(CF_WORDS) & set(asked):
        found = misfit(np.empty(0, variable.dtype), whole, exactly=False) if variable.dtype.kind in "iufc" else None
        if found is not None:
            raise ValueError(f"encoding: variable {name!r}: {found}; pass another")
        return checked(name, variable, whole, exactly=False), encoding
    unpacked = {word: value for word, value in encoding.items() if word not in CF_WORDS}
    if variable.dtype.kind in "mMO":
        if not _keeps_times(variable, encoding):
            return variable, unpacked
    elif decoded_dtype(variable, encoding).kind.replace("u", "i") != variable.dtype.kind.replace("u", "i"):
        return variable, unpacked  # floats that were integers, and so on
    if variable.chunks is not None:
        return checked(name, variable, encoding, exactly=True), encoding
    # what has not been loaded is as it was packed
    found = misfit(read(variable), encoding) if in_memory(variable) and variable.dtype.kind in "iufc" else None
    if found is None:
        return variable, encoding
    warn(
        f"variable {name!r}: {found}, so it is written as {variable.dtype} without that; pass encoding= to choose another "
        "packing or fill value",
        StoredFormWarning,
    )
    return variable, unpacked


def with_one_fill(encoding: Mapping[str, Any]) -> dict[str, Any]:
    """An encoding with one value for what is missing: files may have several, which xarray reads and does not write."""
    found = dict(encoding)
    fill, others = found.get("_FillValue"), np.ravel(found.get("missing_value", []))
    if fill is None and others.size > 1:
        fill = found["_FillValue"] = others[0]
    if fill is not None and others.size and not np.array_equal(others, [fill], equal_nan=others.dtype.kind == "f"):
        del found["missing_value"]
    return found


def is_packing(variable: xr.Variable, encoding: Mapping[str, Any]) -> bool:
    """Whether values may be read as others than those written: they are packed, or some stand for missing ones."""
    kind = variable.dtype.kind
    if kind == "O":
        return encoding.get("units") is not None and held_objects(read_now(variable)) == "dates"
    if kind in "mM":
        return any(encoding.get(word) is not None for word in CF_WORDS)
    if kind not in "iufc":
        return False
    dtype = np.dtype(encoding.get("dtype") or variable.dtype)
    narrower = dtype.kind == kind and kind in "fc" and dtype.itemsize < variable.dtype.itemsize
    other = dtype.kind in "iub" or dtype.kind != kind or narrower
    marks = [encoding[word] for word in (*CF_SCALES, *CF_FILLS, "_Unsigned") if encoding.get(word) is not None]
    # NaN stands for itself
    marked = any(kind not in "fc" or dtype.kind not in "fc" or not _is_nan(mark) for mark in marks)
    return marked or (other and dtype != variable.dtype)


def _is_nan(value: Any) -> bool:
    return np.asarray(value).dtype.kind in "fc" and bool(np.isnan(value).all())


def _keeps_times(variable: xr.Variable, encoding: Mapping[str, Any]) -> bool:
    """Whether the units and the dtype that came along hold times exactly; xarray would change them, or refuse dask's."""
    if "units" not in encoding:
        return False
    if variable.chunks is None:
        return misfit(read(variable), encoding) is None
    step = _STEPS.get(np.datetime_data(variable.dtype)[0], 3)
    finer = _UNITS.get(str(encoding["units"]).partition(" ")[0], 0) > step
    return encoding.get("dtype") is not None and np.dtype(encoding["dtype"]).kind == "f" and not finer


def decoded_dtype(variable: xr.Variable, encoding: Mapping[str, Any], *, as_json: bool = False) -> np.dtype[Any]:
    """The dtype that values come back with; `as_json` where attributes are kept as JSON, which has one dtype of floats."""
    try:
        coded = _encoded(np.empty(0, variable.dtype), encoding)
    except _FAILS:
        return np.dtype(object)
    attrs = {word: jsonable(value) for word, value in coded.attrs.items()} if as_json else coded.attrs
    found: np.dtype[Any] = decode_cf_variable("values", xr.Variable(("q",), coded.values, attrs)).dtype
    return found


def checked(
    name: str, variable: xr.Variable, encoding: Mapping[str, Any], *, exactly: bool = False, remedy: str = ""
) -> xr.Variable:
    """The same variable; dask checks each block of it.

    Raises
    ------
    ValueError
        For values that the packing does not hold; `remedy` is the advice for that case.
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


def encoded(
    name: str, variable: xr.Variable, encoding: Mapping[str, Any], dtype: np.dtype[Any], *, remedy: str
) -> xr.Variable:
    """The values as an array of `dtype` stores them, and the attributes that record it; times are loaded.

    Raises
    ------
    ValueError
        For values that do not come back. What is packed with a scale is rounded by it.
    """
    words = {**{word: encoding[word] for word in CF_WORDS if word in encoding}, "dtype": dtype}
    held = variable
    if variable.dtype.kind in "mMO":
        held = xr.Variable(variable.dims, read_now(variable), variable.attrs, fastpath=True)
    scaled = any(words.get(word) is not None for word in CF_SCALES)
    held = checked(name, held, words, exactly=not scaled, remedy=remedy)
    coded = _encoded(data_of(held), words, held.dims, name)
    return xr.Variable(held.dims, data_of(coded), {**variable.attrs, **coded.attrs}, fastpath=True)


def _encoded(values: Any, encoding: Mapping[str, Any], dims: Any = ("q",), name: str = "values") -> xr.Variable:
    words = {word: encoding[word] for word in CF_WORDS if encoding.get(word) is not None}
    with quiet(*XARRAY_SAYS), np.errstate(all="ignore"):
        # _FillValue=None: otherwise xarray would needlessly record NaN as missing
        unpacked = xr.Variable(dims, values, {}, {"_FillValue": None, **with_one_fill(words)}, fastpath=True)
        return encode_cf_variable(unpacked, name=name)


def misfit(values: np.ndarray[Any, Any], encoding: Mapping[str, Any], *, exactly: bool = True) -> str | None:
    """Describe a value that does not come back from an encoding, None where all do.

    Parameters
    ----------
    values
        Numbers, datetimes, timedeltas, or dates of cftime.
    encoding
        The CF words; what xarray replaces by others (units of times, for one) is a misfit, too.
    exactly
        Whether numbers must come back as they are; else they may be rounded.

    Examples
    --------
    >>> misfit(np.array([1.0, 1e6]), {"dtype": "int16", "scale_factor": 0.5}, exactly=False)
    'int16 with scale_factor=0.5 does not hold 1000000.0'
    >>> misfit(np.array([0.25]), {"dtype": "int16", "scale_factor": 0.5})
    'int16 with scale_factor=0.5 does not hold 0.25'
    >>> misfit(np.array([np.nan, -999.0]), {"_FillValue": -999.0})
    'float64 with _FillValue=-999.0 does not hold -999.0'
    >>> misfit(np.array([np.nan]), {"dtype": "int16", "_FillValue": -1})
    """
    values = np.asarray(values).ravel()
    kind = values.dtype.kind
    if kind == "O" and not values.size:
        return None
    if kind in "iufc" and values.size > _AT_ONCE:
        parts = (values[start : start + _AT_ONCE] for start in range(0, values.size, _AT_ONCE))
        return next(filter(None, (misfit(part, encoding, exactly=exactly) for part in parts)), None)
    dtype = np.dtype(encoding.get("dtype") or values.dtype)
    codings = [
        f"{word}={encoding[word]!r}" if isinstance(encoding[word], str) else f"{word}={encoding[word]!s}"
        for word in CF_WORDS
        if word != "dtype" and encoding.get(word) is not None
    ]
    words = f"{dtype} with {', '.join(codings)}" if codings else str(dtype)
    if kind == "c" and dtype.kind != "c":
        return f"{words} does not hold complex numbers"
    try:
        coded = _encoded(values, encoding)
        with quiet(*XARRAY_SAYS), np.errstate(all="ignore"):
            # a stored array may have several values for what is missing; xarray reads all, and writes one
            missing = encoding.get("missing_value")
            read_as = coded.attrs if missing is None else {"missing_value": missing, **coded.attrs}
            stored = xr.Variable(("q",), coded.values, read_as)
            times = xr.coders.CFDatetimeCoder(use_cftime=True) if kind == "O" else True
            found = decode_cf_variable("values", stored, decode_times=times, decode_timedelta=kind == "m").values
    except _FAILS as error:
        return f"{words} does not hold its values ({error})"
    if kind in "mMO":
        units = {str(each["units"]).partition(" ")[0] for each in (coded.attrs, encoding) if each.get("units")}
        if found.dtype.kind != kind or len(units) > 1:
            return f"{words} does not hold its times"
        wrong = (found != values) & ~((found != found) & (values != values))
    else:
        wrong = _wrong_numbers(values, found, coded.dtype, encoding, exactly=exactly)
    return f"{words} does not hold {values[wrong][0]!s}" if wrong.any() else None


def _wrong_numbers(
    values: np.ndarray[Any, Any],
    found: np.ndarray[Any, Any],
    stored: np.dtype[Any],
    encoding: Mapping[str, Any],
    *,
    exactly: bool,
) -> np.ndarray[Any, Any]:
    """Which numbers came back as missing, which missing ones as numbers, and which differ by more than rounding."""
    scale, offset = (encoding.get(word) for word in CF_SCALES)
    scaled = scale is not None or offset is not None
    missing = np.isnan(values) if values.dtype.kind in "fc" else np.zeros(values.shape, bool)
    if (exactly and not scaled) or found.dtype.kind == "b":
        return np.asarray((found != values) & ~(missing & np.isnan(found)))
    with np.errstate(all="ignore"):
        lost = missing != np.isnan(found)
        if stored.kind not in "iu":  # floats are rounded as they are, and stay finite
            return np.asarray(lost | (np.isfinite(values) & ~np.isfinite(found)))
        step, origin = abs(float(scale or (1.0 if scale is None else 0.0))), abs(float(offset or 0.0))
        eps = float(np.finfo(values.dtype).eps) if values.dtype.kind == "f" else 0.0
        slack = step * (1e-3 if exactly else 0.501) + 4 * eps * np.maximum(np.abs(values.astype("float64")), origin)
        infinite = np.isinf(values) & (found != values)
        return np.asarray(lost | infinite | (np.abs(found - values) > slack))


def with_standard_dates(variables: Mapping[str, xr.Variable], names: Mapping[str, str]) -> dict[str, xr.Variable]:
    """The variables of a group, with dates along a time of the standard calendar as datetimes.

    ``ds.convert_calendar("standard")`` converts the time alone. Its bounds, and other dates along it, have its calendar
    (CF 7.1), and become the same dates of it.

    Parameters
    ----------
    variables
        By local name.
    names
        What the Dataset calls them.

    Raises
    ------
    ValueError
        Names all variables with dates that stay in another calendar; or one with a date that the standard calendar lacks.
    """
    calendars = {name: calendar_of(variable) for name, variable in variables.items() if variable.dtype.kind == "O"}
    dates = {name for name, calendar in calendars.items() if calendar}
    times = {name for name, variable in variables.items() if variable.dims == (name,) and variable.dtype.kind == "M"}
    follow = {name for name in dates if times.intersection(variables[name].dims)}
    if dates - follow:
        raise ValueError(why_refused(names[name] for name in variables if name in dates))
    return {
        name: _standard(variable, names[name], calendars[name]) if name in follow else variable
        for name, variable in variables.items()
    }


def why_refused(names: Iterable[str]) -> str:
    """The message for variables with dates of another calendar."""
    listed = list(names)
    shown = f"variable {listed[0]!r} holds" if len(listed) == 1 else f"variables {', '.join(map(repr, listed))} hold"
    return (
        f"{shown} cftime dates, and layout='tensordict' stores times as int64 nanoseconds of the standard calendar. Write with "
        f"layout='xarray', which keeps them, or convert them with ds.convert_calendar('standard'), or leave them out with "
        f"ds.drop_vars({listed})"
    )


def _standard(variable: xr.Variable, name: str, calendar: str) -> xr.Variable:
    values = read_now(variable)
    texts = ["NaT" if date is None or date != date else date.isoformat() for date in values.flat]
    try:
        dates = np.array(texts, "M8[us]").reshape(values.shape)
    except ValueError as error:
        raise ValueError(
            f"variable {name!r} holds a date that the standard calendar lacks ({error}), and the time along it has that calendar; "
            f"leave it out with ds.drop_vars({name!r})"
        ) from None
    warn(
        f"variable {name!r} holds dates of the calendar {calendar!r} along a time of the standard calendar; they are "
        "written as the same dates of the standard calendar",
        StoredFormWarning,
    )
    encoding = {word: value for word, value in variable.encoding.items() if word not in {*CF_TIMES, "dtype"}}
    attrs = {word: value for word, value in variable.attrs.items() if word not in CF_TIMES}
    return xr.Variable(variable.dims, dates, attrs, encoding)
