"""Who votes on the batch, and where a batch must stop: pure readings of CF attributes and of well-known names."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from .model import ArrayInfo, Key

# Dims that hold features or space, never a batch (design, section 6, rule 3). Compared without case, as a whole.
_FEATURE_NAMES = frozenset(
    "lat lon latitude longitude x y z i j k xc yc s_rho s_w lev level plev height depth altitude pressure layer c channel "
    "channels band wavelength variable feature features bnds bounds nv vertices strlen".split()
)
_FEATURE_PATTERNS = tuple("x_* y_* eta_* xi_* nav_* south_north* west_east* bottom_top* dep* nz* dim_[0-9]*".split())
_NOT_FEATURE = re.compile(r"dim_\d+(_\d+)?$")

# CF section 4: what marks a coordinate as spatial or vertical.
_SPATIAL_STANDARD_NAMES = frozenset(
    "latitude longitude grid_latitude grid_longitude projection_x_coordinate projection_y_coordinate altitude height depth "
    "air_pressure model_level_number geopotential_height atmosphere_sigma_coordinate ocean_sigma_coordinate "
    "atmosphere_hybrid_sigma_pressure_coordinate atmosphere_hybrid_height_coordinate ocean_s_coordinate "
    "ocean_s_coordinate_g1 ocean_s_coordinate_g2 ocean_layer".split()
)
_LATITUDE_UNITS = frozenset("degrees_north degree_north degree_n degrees_n degreen degreesn".split())
_LONGITUDE_UNITS = frozenset("degrees_east degree_east degree_e degrees_e degreee degreese".split())

_TIME_NAMES = frozenset({"time", "t", "date", "datetime"})
_SPARSE_TRIPLE = frozenset({"data", "indices", "indptr"})
_SPARSE_ENCODINGS = {"csr_matrix": "CSR matrix", "csc_matrix": "CSC matrix", "csr": "CSR matrix", "csc": "CSC matrix"}


@lru_cache(2**14)  # stores of many arrays ask for the same few names again and again
def is_feature_name(dim: str) -> bool:
    """Whether a dim of this name holds features or space, whatever the store says of it."""
    name = dim.lower().rsplit(".", 1)[-1]
    if name.startswith("dim_"):
        return bool(_NOT_FEATURE.match(name))
    return name in _FEATURE_NAMES or any(fnmatch.fnmatchcase(name, pattern) for pattern in _FEATURE_PATTERNS)


def is_latitude(info: ArrayInfo) -> bool:
    """Whether CF attributes, or the plain name, make the array a latitude."""
    units = str(info.attrs.get("units", "")).lower()
    return (
        info.attrs.get("standard_name") == "latitude"
        or units in _LATITUDE_UNITS
        or info.key[-1].lower() in {"lat", "latitude", "nav_lat", "xlat"}
    )


def is_longitude(info: ArrayInfo) -> bool:
    """Whether CF attributes, or the plain name, make the array a longitude."""
    units = str(info.attrs.get("units", "")).lower()
    return (
        info.attrs.get("standard_name") == "longitude"
        or units in _LONGITUDE_UNITS
        or info.key[-1].lower() in {"lon", "longitude", "nav_lon", "xlong"}
    )


def _is_spatial_coordinate(info: ArrayInfo) -> bool:
    attrs = info.attrs
    units = str(attrs.get("units", "")).lower()
    return (
        str(attrs.get("axis", "")).upper() in {"X", "Y", "Z"}
        or attrs.get("standard_name") in _SPATIAL_STANDARD_NAMES
        or units in _LATITUDE_UNITS
        or units in _LONGITUDE_UNITS
        or (attrs.get("positive") in {"up", "down"} and info.kind == "numeric")
    )


def feature_dims(arrays: Iterable[ArrayInfo], voters: Iterable[ArrayInfo]) -> dict[str, str]:
    """Find the dims before which a batch stops, each with the reason.

    Parameters
    ----------
    arrays
        All arrays in reach: the coordinates among them say what a dim is.
    voters
        The arrays that vote.

    Returns
    -------
    dict
        Dim name to the reason, for example ``{"lat": "a latitude"}``.
    """
    arrays, voters = tuple(arrays), tuple(voters)
    found: dict[str, str] = {}
    for info in (*arrays, *voters):
        for dim in info.dims:
            if dim is not None and dim not in found and is_feature_name(dim):
                found[dim] = "features or space by its name"
    for info in arrays:
        if info.dims == (info.key[-1],) and _is_spatial_coordinate(info):
            found[info.key[-1]] = "space by its CF attributes"
        elif _is_grid(info, voters):
            found.update((dim, f"the grid of {info.key[-1]!r}") for dim in info.dims if dim is not None)
    return found


def _is_grid(info: ArrayInfo, voters: Iterable[ArrayInfo]) -> bool:
    """A 2-D latitude or longitude whose dims some voter has behind another; without that it is a swath."""
    if len(info.shape) != 2 or None in info.dims or not (is_latitude(info) or is_longitude(info)):
        return False
    return any(_has_dims_behind_another(voter.dims, info.dims) for voter in voters)


def _has_dims_behind_another(dims: tuple[str | None, ...], grid: tuple[str | None, ...]) -> bool:
    return set(grid) <= set(dims) and dims[0] not in grid


def is_time_name(dim: str) -> bool:
    """Whether a dim of this name is a time, whatever its coordinate says."""
    return dim.lower() in _TIME_NAMES


def is_time(info: ArrayInfo) -> bool:
    """Whether an array is a time, by its values or its CF attributes."""
    return info.kind == "time" or info.attrs.get("axis") == "T" or info.attrs.get("standard_name") == "time"


def referenced_names(attrs: Mapping[str, Any]) -> set[str]:
    """List the variables that CF attributes refer to: bounds, grid mappings, coordinates and their like.

    ``cell_measures`` and ``formula_terms`` hold "word: name" pairs (CF 7.2 and 4.3.3), ``grid_mapping`` may.
    """
    names: set[str] = set()
    for attr in ("bounds", "climatology", "coordinates", "ancillary_variables", "grid_mapping"):
        value = attrs.get(attr)
        if isinstance(value, str):
            names.update(word.rstrip(":") for word in value.split())
    for attr in ("cell_measures", "formula_terms"):
        value = attrs.get(attr)
        if isinstance(value, str):
            names.update(word for word in value.split() if not word.endswith(":"))
    return names


def sparse_kind(names: Iterable[str], attrs: Mapping[str, Any]) -> str | None:
    """Say "CSR matrix" or "CSC matrix" for a group that holds a compressed sparse matrix, else None."""
    encoding = attrs.get("encoding-type", attrs.get("h5sparse_format"))
    if isinstance(encoding, bytes):
        encoding = encoding.decode("utf-8", "replace")
    if isinstance(encoding, str) and encoding in _SPARSE_ENCODINGS:
        return _SPARSE_ENCODINGS[encoding]
    return "CSR matrix" if set(names) >= _SPARSE_TRIPLE and len(set(names)) <= len(_SPARSE_TRIPLE) + 1 else None


def voters_of(
    arrays: Iterable[ArrayInfo], *, sparse: bool, group_attrs: Mapping[str, Any], empty: bool = False
) -> list[ArrayInfo]:
    """Select the arrays of one group that vote: numeric data with at least one axis that no CF attribute claims.

    With `empty` those without elements vote too.
    """
    arrays = list(arrays)
    if sparse:
        return []
    claimed = referenced_names(group_attrs)
    for info in arrays:
        claimed |= referenced_names(info.attrs)
    voters = [
        info
        for info in arrays
        if info.kind == "numeric" and info.role == "data" and info.shape and info.key[-1] not in claimed
    ]
    # an array without elements says nothing where others have some; a buffer of nothing but such keeps its [0]
    return voters if empty else [info for info in voters if 0 not in info.shape] or voters


def names_of(keys: Iterable[Key], limit: int = 4) -> str:
    """Name a few entries of many, for a sentence."""
    names = ["/".join(key) for key in keys]
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
