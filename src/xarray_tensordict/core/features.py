"""What the name, the size or the CF attributes of a dim say: features or space, a time, or a name this package made up.

Who votes is in :mod:`.voting`, how the votes are counted in :mod:`.rules`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from .model import ArrayInfo, elements

Dims = tuple[str | None, ...]

# Names of feature dims (docs/rules/inference.md, rule 3), compared without case and as a whole.
_NAMES = frozenset(
    "lat lon latitude longitude x y z i j k xc yc s_rho s_w lev level plev height dep altitude pressure layer nz c channel "
    "channels band wavelength variable feature features bnds bounds nv vertices strlen".split()
)
_PATTERN = re.compile(r"(eta|xi|nav|nz)_.*|(south_north|west_east|bottom_top|depth).*|dept[tuvw]|nz\d+", re.DOTALL)
_PAIRED = re.compile(r"([xy])_.+", re.DOTALL)
_MADE_UP = re.compile(r"dim_(\d+)(_\d+)?")
_MARKED = re.compile(r"batch_\d+(_.*)?", re.DOTALL)

# CF sections 4.1 to 4.3: what marks a coordinate as spatial or vertical.
_SPATIAL_STANDARD_NAMES = frozenset(
    "latitude longitude grid_latitude grid_longitude projection_x_coordinate projection_y_coordinate altitude height depth "
    "air_pressure model_level_number geopotential_height atmosphere_sigma_coordinate ocean_sigma_coordinate "
    "atmosphere_hybrid_sigma_pressure_coordinate atmosphere_hybrid_height_coordinate ocean_s_coordinate "
    "ocean_s_coordinate_g1 ocean_s_coordinate_g2 ocean_layer".split()
)
_HORIZONTAL_UNITS = frozenset(
    "degrees_north degree_north degree_n degrees_n degreen degreesn "
    "degrees_east degree_east degree_e degrees_e degreee degreese".split()
)
_PRESSURE_UNITS = frozenset(
    "pa hpa kpa bar mbar mb dbar millibar millibars decibar decibars pascal hectopascal atm".split()
)
_SPATIAL_UNITS = _HORIZONTAL_UNITS | _PRESSURE_UNITS
_HORIZONTAL_NAMES = frozenset("lat latitude nav_lat xlat lon longitude nav_lon xlong".split())
_TIME_NAMES = frozenset({"time", "t", "date", "datetime"})

MADE_UP = "an axis without a name"


# -- names -------------------------------------------------------------------------------------------------------------


@lru_cache(2**14)  # stores of many arrays, and their reprs, ask for the same few names again and again
def _local(dim: str) -> str:
    """The name of a dim in its own group: the flat view calls it ``data.demo_0.dim_3``."""
    return dim.rpartition(".")[2]


@lru_cache(2**14)
def is_feature_name(dim: str) -> bool:
    """Whether a dim of this name holds features or space, whatever the store says of it."""
    name = _local(dim).lower()
    return name in _NAMES or _PATTERN.fullmatch(name) is not None


@lru_cache(2**14)
def is_made_up(dim: str, size: int) -> bool:
    """Whether this package made up the name of an axis: ``dim_<size>``; a selection may have shortened the axis since.

    xarray's own ``dim_0``, ``dim_1`` count axes. Such an axis is longer than its number.
    """
    number = _number(dim)
    return number is not None and size <= number


@lru_cache(2**14)
def _number(dim: str) -> int | None:
    found = _MADE_UP.fullmatch(_local(dim))
    return found and int(found[1])


@lru_cache(2**14)
def is_marked(dim: str | None) -> bool:
    """Whether this package named a dim as a batch axis: ``batch_0``, ``data.demo_0.batch_0``."""
    return dim is not None and _MARKED.fullmatch(_local(dim)) is not None


@lru_cache(2**14)
def _axis_of_pair(dim: str) -> str | None:
    found = _PAIRED.fullmatch(_local(dim).lower())
    return found and found[1]


# -- feature dims ------------------------------------------------------------------------------------------------------


def feature_dims(dims: Iterable[str], arrays: Iterable[ArrayInfo], voters: Iterable[ArrayInfo]) -> dict[str, str]:
    """Find the dims that hold features or space, each with the reason as the end of "'lat' is ...".

    Parameters
    ----------
    dims
        The dims that are asked for.
    arrays
        All arrays in reach: they say what a dim is.
    voters
        Those of them that vote.

    Examples
    --------
    >>> feature_dims(["time", "lat"], [], [])
    {'lat': 'a feature dim by its name'}
    """
    found = {dim: "a feature dim by its name" for dim in dims if is_feature_name(dim)}
    asked = set(dims)
    telling = [info for info in arrays if not asked.isdisjoint(info.dims)]
    longest: dict[str, int] = {}
    counted: set[str] = set()  # what xarray could have called these axes by counting them
    for axes in dict.fromkeys(info.axes for info in telling):
        pair = {letter: dim for dim, _ in axes if dim is not None and (letter := _axis_of_pair(dim))}
        if len(pair) == 2:
            found |= dict.fromkeys(pair.values(), "space, as one of a pair of x and y")
        seen = set()
        for dim, size in axes:
            if dim is not None:
                longest[dim] = max(size, longest.get(dim, 0))
                if (number := _number(dim)) is not None and number < len(axes):
                    counted.add(dim)
                if dim in seen:
                    found[dim] = "more than once in one array"
                seen.add(dim)
    if all(is_made_up(dim, longest[dim]) for dim in counted):
        counted = set()  # where none is longer than its number, none is xarray's
    found |= {dim: MADE_UP for dim, size in longest.items() if is_made_up(dim, size) and dim not in counted}
    grids = {info.dims: info.key[-1] for info in telling if len(info.dims) == 2 and _is_horizontal(info)}
    for grid, name in grids.items():
        if _is_grid(set(grid), voters):
            found |= {dim: f"space, on the grid of {name!r}" for dim in grid if dim is not None}
    spatial = [info.key[-1] for info in telling if info.dims == (info.key[-1],) and _is_spatial_coordinate(info)]
    return found | dict.fromkeys(spatial, "space by its CF attributes")


def _units(info: ArrayInfo) -> str:
    return str(info.attrs.get("units", "")).lower()


def _is_horizontal(info: ArrayInfo) -> bool:
    """Whether an array is a latitude or a longitude."""
    return (
        info.attrs.get("standard_name") in {"latitude", "longitude"}
        or _units(info) in _HORIZONTAL_UNITS
        or info.key[-1].lower() in _HORIZONTAL_NAMES
    )


def _is_spatial_coordinate(info: ArrayInfo) -> bool:
    return (
        str(info.attrs.get("axis", "")).upper() in {"X", "Y", "Z"}
        or info.attrs.get("standard_name") in _SPATIAL_STANDARD_NAMES
        or _units(info) in _SPATIAL_UNITS
        or info.attrs.get("positive") in {"up", "down"}
    )


def _is_grid(grid: set[str | None], voters: Iterable[ArrayInfo]) -> bool:
    """Whether the dims of a latitude are a grid: half of the numbers over them have another dim in front; else a swath."""
    over = [voter for voter in voters if grid <= set(voter.dims)]
    behind = [voter for voter in over if voter.dims[0] not in grid]
    return bool(behind) and 2 * elements(behind) >= elements(over)


# -- times -------------------------------------------------------------------------------------------------------------


@lru_cache(2**14)
def is_time_name(dim: str) -> bool:
    """Whether a dim of this name is a time, whatever its coordinate says."""
    return _local(dim).lower() in _TIME_NAMES


def is_time(info: ArrayInfo) -> bool:
    """Whether an array is a time, by its values or its CF attributes."""
    attrs = info.attrs
    encoded = " since " in str(attrs.get("units", ""))
    return info.kind == "time" or encoded or attrs.get("axis") == "T" or attrs.get("standard_name") == "time"
