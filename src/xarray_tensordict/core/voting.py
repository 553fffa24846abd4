"""Who votes on the batch of a group, and why the others do not: one rule for each kind of array that has no vote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .model import ArrayInfo, Key, text_of

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

_REFER = (
    "bounds",
    "climatology",
    "coordinates",
    "ancillary_variables",
    "grid_mapping",
    "cell_measures",
    "formula_terms",
)


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
_ENCODINGS = {
    "csr_matrix": "a CSR matrix",
    "csc_matrix": "a CSC matrix",
    "csr": "a CSR matrix",
    "csc": "a CSC matrix",
}


def sparse_kind(names: Iterable[str], attrs: Mapping[str, Any]) -> str | None:
    """Say "a CSR matrix", "a CSC matrix" or that it is one of them for a group that holds a sparse matrix, else None."""
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
    members = _Members(arrays, groups)
    found: Silent = {}
    group = arrays[0].key[:-1] if arrays else ()
    for name in members.partners:
        for whole, votes in members.cut_by(name):
            found[whole] = f"{'/'.join((*group, name))!r} cuts it into rows"
            if not votes:
                found.setdefault(name, f"it holds the bounds of the rows of {'/'.join((*group, whole))!r}")
    return found


class _Members:
    """The arrays and groups of one group, by their names without case.

    Attributes
    ----------
    partners
        The names of the arrays that can cut others: integers of one dim.
    """

    def __init__(self, arrays: Iterable[ArrayInfo], groups: Mapping[str, Iterable[int]]) -> None:
        self.shapes = {info.key[-1]: info.shape for info in arrays if info.shape}
        self.leading = {name: {shape[0]} for name, shape in self.shapes.items()}
        self.leading |= {name: set(sizes) for name, sizes in groups.items()}
        self.called = {name.lower(): name for name in self.leading}
        self.partners = [
            info.key[-1] for info in arrays if len(info.shape) == 1 and info.kind == "numeric" and info.integral
        ]

    def cut_by(self, partner: str) -> Iterator[tuple[str, bool]]:
        """What an array cuts into rows, each with whether the array itself votes."""
        name = partner.lower()
        for suffix in (*_COUNTS, *_BOUNDS):
            stem = name.removesuffix(suffix)
            votes = suffix in _COUNTS
            if stem != name and stem in self.called and self._cuts(partner, self.called[stem], votes=votes):
                yield self.called[stem], votes
        # beside the two there may be a mask; a table that happens to have such columns has more
        if name in _PAIRS and len(self.leading) <= 3:
            wholes, votes = _PAIRS[name]
            for each in wholes:
                if each in self.called and self._fits(partner, self.called[each]):
                    yield self.called[each], votes
        yield from self._columns_cut_by(partner)

    def _fits(self, partner: str, whole: str) -> bool:
        """Whether the length of a partner is that of no axis of what it cuts."""
        (size,) = self.shapes[partner]
        return size not in self.leading[whole] and size not in self.shapes.get(whole, ())

    def _cuts(self, partner: str, whole: str, *, votes: bool) -> bool:
        """Whether the rows are those of another array; failing that, it is shorter and no other array is as long as the whole."""
        if not self._fits(partner, whole):
            return False
        (size,) = self.shapes[partner]
        others = [name for name in self.shapes if name not in (partner, whole)]
        if any(self.shapes[name][0] == (size if votes else size - 1) for name in others):
            return True
        if whole not in self.shapes:
            return False
        alone = not any(self.shapes[name][0] in self.leading[whole] and not self._has_partner(name) for name in others)
        # a lookup table is shorter than its index
        shorter = partner.lower().endswith("_index") or size <= max(self.leading[whole]) + 1
        return alone and shorter

    def _has_partner(self, name: str) -> bool:
        return any(f"{name.lower()}{suffix}" in self.called for suffix in (*_COUNTS, *_BOUNDS))

    def _columns_cut_by(self, partner: str) -> Iterator[tuple[str, bool]]:
        """The columns ``jet_pt``, ``jet_eta`` that ``jet_offsets`` or ``njet`` cuts, where other arrays have its rows."""
        (size,) = self.shapes[partner]
        name = partner.lower()
        stem = next((name.removesuffix(suffix) for suffix in _BOUNDS if name.endswith(suffix)), None)
        votes = stem is None
        stem = name.removeprefix("n") if stem is None else stem
        if stem in (name, "") or stem in self.called:
            return
        columns = [each for each in self.shapes if each.lower().startswith(f"{stem}_") and each != partner]
        lengths = {self.shapes[each][0] for each in columns}
        others = {shape[0] for each, shape in self.shapes.items() if each not in (partner, *columns)}
        if len(lengths) == 1 and lengths.isdisjoint({size, *others}) and (size if votes else size - 1) in others:
            yield from ((each, votes) for each in columns)


# -- sentences ---------------------------------------------------------------------------------------------------------


def did_not_vote(silent: Mapping[str, str], group: Key) -> list[str]:
    """Say which members of a group did not vote, one sentence for each reason."""
    reasons: dict[str, list[Key]] = {}
    for name, reason in sorted(silent.items()):
        reasons.setdefault(reason, []).append((*group, name))
    return [f"{names_of(keys)} did not vote, because {reason}" for reason, keys in sorted(reasons.items())]


def names_of(keys: Iterable[Key], limit: int = 4) -> str:
    """Name a few entries of many, for a sentence."""
    names = ["/".join(key) for key in keys]
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
