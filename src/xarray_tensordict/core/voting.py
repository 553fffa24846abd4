"""Who votes on the batch of a group, and why the others do not: one rule for each kind of array that has no vote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .model import ArrayInfo, Key

Silent = dict[str, str]
"""Members of a group that do not vote, each with the reason as the end of "'lat' did not vote, because ..."."""

NOT_NUMERIC = {
    "string": "strings have no vote",
    "time": "times have no vote",
    "object": "objects that are not numbers have no vote",
}
_COORDINATE = "coordinates have no vote"
_SCALAR = "scalars have no vote"
EMPTY = "arrays without elements have no vote"


def silent_members(
    arrays: Sequence[ArrayInfo], attrs: Mapping[str, Any], groups: Mapping[str, Iterable[int]] | None = None
) -> Silent:
    """Find the members of one group that do not vote, whatever the other arrays of the group are.

    Parameters
    ----------
    arrays
        The arrays of the group.
    attrs
        The attributes of the group.
    groups
        The names of the groups in it, each with the leading sizes of its arrays.
    """
    names = [info.key[-1] for info in arrays]
    matrix = sparse_kind(names, attrs)
    if matrix is not None:
        return dict.fromkeys([*names, *(groups or ())], f"they are parts of a {matrix}")
    claimed = dict(_references(attrs, "the group"))
    for info in arrays:
        claimed.update(_references(info.attrs, repr(info.key[-1])))
    found = ragged_members(arrays, groups or {})
    for info in arrays:
        name = info.key[-1]
        if name in found:
            continue
        if name in claimed:
            found[name] = f"{claimed[name]} refers to it"
        elif info.kind != "numeric":
            found[name] = NOT_NUMERIC[info.kind]
        elif info.role != "data":
            found[name] = _COORDINATE
        elif not info.shape:
            found[name] = _SCALAR
    return found


def without_elements(arrays: Iterable[ArrayInfo], silent: Silent) -> Silent:
    """Find the arrays without elements: they say nothing where others have some."""
    voting = [info for info in arrays if info.key[-1] not in silent]
    empty = [info.key[-1] for info in voting if 0 in info.shape]
    return dict.fromkeys(empty, EMPTY) if len(empty) < len(voting) else {}


# -- what CF attributes refer to ---------------------------------------------------------------------------------------


def referenced_names(attrs: Mapping[str, Any]) -> set[str]:
    """List the variables that CF attributes refer to: bounds, grid mappings, coordinates and their like."""
    return {name for name, _ in _references(attrs, "")}


def _references(attrs: Mapping[str, Any], owner: str) -> Iterator[tuple[str, str]]:
    """Each variable that is referred to, and by which attribute of whom.

    ``cell_measures`` and ``formula_terms`` hold "word: name" pairs (CF 7.2 and 4.3.3), ``grid_mapping`` may.
    """
    for attr in ("bounds", "climatology", "coordinates", "ancillary_variables", "grid_mapping"):
        value = attrs.get(attr)
        if isinstance(value, str):
            yield from ((word.rstrip(":"), f"the attribute {attr!r} of {owner}") for word in value.split())
    for attr in ("cell_measures", "formula_terms"):
        value = attrs.get(attr)
        if isinstance(value, str):
            words = (word for word in value.split() if not word.endswith(":"))
            yield from ((word, f"the attribute {attr!r} of {owner}") for word in words)


# -- sparse matrices ---------------------------------------------------------------------------------------------------

_TRIPLES = {"CSR or CSC matrix": {"data", "indices", "indptr"}, "CSC matrix": {"data", "ir", "jc"}}
_ENCODINGS = {"csr_matrix": "CSR matrix", "csc_matrix": "CSC matrix", "csr": "CSR matrix", "csc": "CSC matrix"}


def sparse_kind(names: Iterable[str], attrs: Mapping[str, Any]) -> str | None:
    """Say "CSR matrix", "CSC matrix" or that it is one of them for a group that holds a sparse matrix, else None."""
    encoding = attrs.get("encoding-type", attrs.get("h5sparse_format"))
    if isinstance(encoding, bytes):
        encoding = encoding.decode("utf-8", "replace")
    if isinstance(encoding, str) and encoding in _ENCODINGS:
        return _ENCODINGS[encoding]
    if "MATLAB_sparse" in attrs:
        return "CSC matrix"
    found = {name.lower() for name in names}
    return next((kind for kind, triple in _TRIPLES.items() if triple <= found), None)


# -- ragged columns: one array that another cuts into rows -------------------------------------------------------------

_COUNTS = ("_index", "_length", "_lengths", "_row_lengths", "_lens", "_counts")
"""Suffixes of partners with one entry for each row: these vote."""
_BOUNDS = ("_offsets", "_splits", "_row_splits", "_indptr", "_ptr")
"""Suffixes of partners with one entry more than rows: these do not."""
_PAIRS = {  # names in one group: what cuts, what is cut, whether the first has one entry for each row
    ("cumulative_length", "flattened_data"): True,
    ("lengths", "values"): True,
    ("offsets", "content"): False,
    ("offsets", "values"): False,
    ("offsets", "data"): False,
    ("row_splits", "values"): False,
    ("row_splits", "flat_values"): False,
}


def ragged_members(arrays: Iterable[ArrayInfo], groups: Mapping[str, Iterable[int]]) -> Silent:
    """Find the members whose rows are not those of the group: values that a partner cuts, and the bounds of rows.

    Names are compared without case.

    Examples
    --------
    >>> units = [ArrayInfo(("times",), (900,)), ArrayInfo(("times_index",), (4,)), ArrayInfo(("x",), (4,))]
    >>> ragged_members(units, {})
    {'times': "'times_index' cuts it into rows"}
    """
    called = {info.key[-1].lower(): info.key[-1] for info in arrays if info.shape} | {
        name.lower(): name for name in groups
    }
    sizes = {info.key[-1]: info.shape[0] for info in arrays if info.shape}
    members = {name: {size} for name, size in sizes.items()} | {name: set(leading) for name, leading in groups.items()}
    found: Silent = {}

    def cut(whole: str | None, partner: str | None, *, votes: bool) -> None:
        if whole is not None and partner in sizes and sizes[partner] not in members[whole]:
            found[whole] = f"{partner!r} cuts it into rows"
            if not votes:
                found.setdefault(partner, f"it holds the bounds of the rows of {whole!r}")

    for name in sizes:
        lower = name.lower()
        for suffix in (*_COUNTS, *_BOUNDS) if lower.endswith((*_COUNTS, *_BOUNDS)) else ():
            if lower.endswith(suffix):
                cut(called.get(lower.removesuffix(suffix)), name, votes=suffix in _COUNTS)
    for (partner, whole), votes in _PAIRS.items():
        # beside the two there may be a mask; a table that happens to have such columns has more
        if len(members) <= 3:
            cut(called.get(whole), called.get(partner), votes=votes)
    return found


# -- sentences ---------------------------------------------------------------------------------------------------------


def did_not_vote(silent: Mapping[str, str]) -> list[str]:
    """Say who did not vote, one sentence for each reason."""
    reasons: dict[str, list[Key]] = {}
    for name, reason in sorted(silent.items()):
        reasons.setdefault(reason, []).append((name,))
    return [f"{names_of(keys)} did not vote, because {reason}" for reason, keys in sorted(reasons.items())]


def names_of(keys: Iterable[Key], limit: int = 4) -> str:
    """Name a few entries of many, for a sentence."""
    names = ["/".join(key) for key in keys]
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
