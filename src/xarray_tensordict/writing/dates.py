"""Dates of other calendars, which int64 nanoseconds cannot hold: converted where the time beside them was, else refused together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import xarray as xr

from ..core.metadata import CF_TIMES
from ..dataset.entries import calendar_of
from ..warnings import StoredFormWarning, warn
from .values import read_now


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
    dates = {name for name, variable in variables.items() if variable.dtype.kind == "O" and calendar_of(variable)}
    times = {name for name, variable in variables.items() if variable.dims == (name,) and variable.dtype.kind == "M"}
    follow = {name for name in dates if times.intersection(variables[name].dims)}
    if dates - follow:
        raise ValueError(why_refused(names[name] for name in variables if name in dates))
    return {
        name: _standard(variable, names[name]) if name in follow else variable for name, variable in variables.items()
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


def _standard(variable: xr.Variable, name: str) -> xr.Variable:
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
        f"variable {name!r} holds dates of the calendar {calendar_of(variable)!r} along a time of the standard calendar; they are "
        "written as the same dates of the standard calendar",
        StoredFormWarning,
    )
    encoding = {word: value for word, value in variable.encoding.items() if word not in {*CF_TIMES, "dtype"}}
    attrs = {word: value for word, value in variable.attrs.items() if word not in CF_TIMES}
    return xr.Variable(variable.dims, dates, attrs, encoding)
