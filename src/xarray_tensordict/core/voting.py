"""Who votes on the batch of a group, and why the others do not; and what the name, the size or the CF attributes of a dim show.

One rule for each kind of array that has no vote. How the votes are counted is in :mod:`.rules`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from .model import ArrayInfo, Key, elements, text_of

Silent = dict[str, str]
"""Members of a group that do not vote, each with the reason as the end of "'lat' did not vote, because ..."."""

NOT_NUMERIC = {
    "string": "strings have no vote",
    "time": "times have no vote",
    "object": "objects that are not numbers have no vote",
}
EMPTY = "arrays without elements have no vote"


def silent_members(
    arrays: Sequence[ArrayInfo], attrs: Mapping[str, Any], groups: Mapping[str, Iterable[int]]
) -> Silent:
    """Find the members of one group that do not vote.

    Parameters
    ----------
    arrays
        The arrays of the group.
    attrs
        The attributes of the group.
    groups
        The names of the groups in it, each with the leading sizes of its arrays.
    """
    claimed: Silent = {}
    for owner, owned in (
        ("the group", attrs),
        *((repr("/".join(info.key)), info.attrs) for info in arrays if info.attrs),
    ):
        for attr, names in _references(owned):
            new = [name for name in names if name not in claimed]
            claimed |= dict.fromkeys(new, f"the attribute {attr!r} of {owner} refers to it")
    found = ragged_members(arrays, groups)
    for info in arrays:
        why = found.get(info.key[-1]) or claimed.get(info.key[-1]) or _why_silent(info)
        if why:
            found[info.key[-1]] = why
    voting = [info for info in arrays if info.key[-1] not in found]
    empty = [info.key[-1] for info in voting if 0 in info.shape]
    # a group of nothing but empty arrays has the batch that they share
    return found | dict.fromkeys(empty, EMPTY) if len(empty) < len(voting) else found


def _why_silent(info: ArrayInfo) -> str | None:
    if info.kind != "numeric":
        return NOT_NUMERIC[info.kind]
    if info.role != "data":
        return "coordinates have no vote"
    return None if info.shape else "scalars have no vote"


# -- what CF attributes refer to ---------------------------------------------------------------------------------------

_REFER = "bounds climatology coordinates ancillary_variables grid_mapping cell_measures formula_terms".split()


def referenced_names(attrs: Mapping[str, Any]) -> set[str]:
    """List the variables that CF attributes refer to: bounds, grid mappings, coordinates and their like."""
    return {name for _, names in _references(attrs) for name in names}


def _references(attrs: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Each attribute that refers to variables, with their names.

    Cell measures and formula terms hold "word: name" pairs (CF 7.2, 4.3.3); a grid mapping may hold "name: name name" (5.6).
    """
    for attr in _REFER:
        words = attrs.get(attr)
        if isinstance(words, str):
            names = [word for word in words.split() if attr == "grid_mapping" or not word.endswith(":")]
            yield attr, [name.removesuffix(":") for name in names]


# -- sparse matrices ---------------------------------------------------------------------------------------------------

_TRIPLES = {"a CSR or CSC matrix": {"data", "indices", "indptr"}, "a CSC matrix": {"data", "ir", "jc"}}
_ENCODINGS = {f"{kind}{end}": f"a {kind.upper()} matrix" for kind in ("csr", "csc") for end in ("", "_matrix")}


def sparse_kind(names: Iterable[str], attrs: Mapping[str, Any]) -> str | None:
    """Describe a group that holds a sparse matrix: "a CSR matrix", "a CSC matrix", or one of the two; None for others."""
    encoding = text_of(attrs.get("encoding-type", attrs.get("h5sparse_format")))
    if isinstance(encoding, str) and encoding in _ENCODINGS:
        return _ENCODINGS[encoding]
    if "MATLAB_sparse" in attrs:
        return "a CSC matrix"
    found = {name.lower() for name in names}
    return next((kind for kind, triple in _TRIPLES.items() if triple <= found), None)


# -- ragged columns: one array that another cuts into rows -------------------------------------------------------------

_COUNTS = ("_index", "_length", "_lengths", "_row_lengths", "_lens", "_counts")
"""Suffixes of partners with one entry for each row: these vote."""
_BOUNDS = ("_offsets", "_splits", "_row_splits", "_indptr", "_ptr")
"""Suffixes of partners with one entry more than rows: these do not."""
_PAIRS = {  # names in one group: what cuts, what is cut, whether the first has one entry for each row
    "cumulative_length": (("flattened_data",), True),
    "lengths": (("values",), True),
    "offsets": (("content", "values", "data"), False),
    "row_splits": (("values", "flat_values"), False),
}


def ragged_members(arrays: Sequence[ArrayInfo], groups: Mapping[str, Iterable[int]]) -> Silent:
    """Find the members whose rows are not those of the group: values that a partner cuts, and the bounds of rows.

    Names are compared without case.

    Parameters
    ----------
    arrays
        The arrays of the group.
    groups
        The names of the groups in it, each with the leading sizes of its arrays.

    Examples
    --------
    >>> units = [ArrayInfo(("times",), (900,)), ArrayInfo(("times_index",), (4,)), ArrayInfo(("x",), (4,))]
    >>> ragged_members(units, {})
    {'times': "'times_index' cuts it into rows"}
    """
    shapes = {info.key[-1]: info.shape for info in arrays if info.shape}
    leading = {name: {shape[0]} for name, shape in shapes.items()} | {
        name: set(sizes) for name, sizes in groups.items()
    }
    called = {name.lower(): name for name in leading}
    found: Silent = {}
    group = arrays[0].key[:-1] if arrays else ()
    for info in arrays:
        if len(info.shape) != 1 or info.kind != "numeric" or not info.integral:
            continue
        name = info.key[-1]
        for whole, votes in _cut_by(name, shapes, leading, called):
            found[whole] = f"{'/'.join((*group, name))!r} cuts it into rows"
            if not votes:
                found.setdefault(name, f"it holds the bounds of the rows of {'/'.join((*group, whole))!r}")
    return found


def _cut_by(
    partner: str, shapes: Mapping[str, tuple[int, ...]], leading: Mapping[str, set[int]], called: Mapping[str, str]
) -> Iterator[tuple[str, bool]]:
    """What an array of integers cuts into rows, each with whether the array itself votes.

    Parameters
    ----------
    shapes, leading
        The shapes of the arrays, and the leading sizes of arrays and groups, by name.
    called
        The names of both by their names without case.
    """
    (size,) = shapes[partner]
    name = partner.lower()
    for suffix in (*_COUNTS, *_BOUNDS):
        whole = called.get(name.removesuffix(suffix)) if name.endswith(suffix) else None
        # the length of the partner is that of no axis of what it cuts
        if whole is None or size in leading[whole] or size in shapes.get(whole, ()):
            continue
        votes = suffix in _COUNTS
        others = {each: shape[0] for each, shape in shapes.items() if each not in (partner, whole)}
        # the rows are those of another array; failing that, it is shorter and no other array is as long as the whole
        if (size if votes else size - 1) in others.values():
            yield whole, votes
        elif whole in shapes and (suffix == "_index" or size <= max(leading[whole]) + 1):  # a lookup table is shorter
            as_long = [each.lower() for each, length in others.items() if length in leading[whole]]
            if all(any(f"{each}{suffix}" in called for suffix in (*_COUNTS, *_BOUNDS)) for each in as_long):
                yield whole, votes
    # beside the two there may be a mask; a table that happens to have such columns has more
    wholes, votes = _PAIRS.get(name, ((), False)) if len(leading) <= 3 else ((), False)
    for whole in (called[each] for each in wholes if each in called):
        if size not in leading[whole] and size not in shapes.get(whole, ()):
            yield whole, votes
    # the columns ``jet_pt``, ``jet_eta`` that ``jet_offsets`` or ``njet`` cuts, where other arrays have its rows
    bounds = next((suffix for suffix in _BOUNDS if name.endswith(suffix)), None)
    stem = name.removeprefix("n") if bounds is None else name.removesuffix(bounds)
    if stem in (name, "") or stem in called:
        return
    columns = [each for each in shapes if each.lower().startswith(f"{stem}_") and each != partner]
    lengths = {shapes[each][0] for each in columns}
    rest = {shape[0] for each, shape in shapes.items() if each not in (partner, *columns)}
    if len(lengths) == 1 and lengths.isdisjoint({size, *rest}) and (size if bounds is None else size - 1) in rest:
        yield from ((each, bounds is None) for each in columns)


# -- sentences ---------------------------------------------------------------------------------------------------------


def did_not_vote(silent: Mapping[str, str], group: Key) -> list[str]:
    """The members of a group that did not vote, one sentence for each reason."""
    reasons: dict[str, list[Key]] = {}
    for name, reason in sorted(silent.items()):
        reasons.setdefault(reason, []).append((*group, name))
    return [f"{names_of(keys)} did not vote, because {reason}" for reason, keys in sorted(reasons.items())]


def names_of(keys: Iterable[Key], limit: int = 4) -> str:
    """Name a few entries of many, for a sentence."""
    names = ["/".join(key) for key in keys]
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


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
    """Whether a dim of this name holds features or space, regardless of the store's metadata."""
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
        All arrays in reach: they define what a dim is.
    voters
        Those of them that vote.

    Examples
    --------
    >>> feature_dims(["time", "lat"], [], [])
    {'lat': 'a feature dimension because of its name'}
    """
    found = {dim: "a feature dimension because of its name" for dim in dims if is_feature_name(dim)}
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
    """Whether a dim of this name is a time, regardless of its coordinate."""
    return _local(dim).lower() in _TIME_NAMES


def is_time(info: ArrayInfo) -> bool:
    """Whether an array is a time, by its values or its CF attributes."""
    attrs = info.attrs
    encoded = " since " in str(attrs.get("units", ""))
    return info.kind == "time" or encoded or attrs.get("axis") == "T" or attrs.get("standard_name") == "time"
