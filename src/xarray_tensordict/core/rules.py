"""The rules that find the batch of one group from its arrays: named dims, shapes, and what must be left of an array.

Each rule takes a :class:`Ballot`, what one group puts to the vote. The rules have the numbers of docs/rules/inference.md: 3, 4
and 5 are here, 1 and 2 (given, recorded) in :mod:`.choices`, 6 (groups) in :mod:`.inference`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .model import ArrayInfo, EvidenceKind, GroupBatch, Key, cached_property, elements, group_name
from .naming import local_dim
from .voting import (
    MADE_UP,
    NOT_NUMERIC,
    Dims,
    Silent,
    did_not_vote,
    feature_dims,
    is_marked,
    is_time,
    is_time_name,
    names_of,
)


@dataclass(frozen=True)
class Ballot:
    """What one group puts to the vote.

    Attributes
    ----------
    voters
        The arrays that vote.
    silent
        The members that do not vote, each with the reason.
    arrays
        All arrays of the group.
    above
        The named arrays of the groups above it. Together with `arrays` they define what a dim is.
    where
        How messages call the group.
    key
        The path of the group.
    opened
        See :func:`.inference.infer_batch`.
    """

    voters: tuple[ArrayInfo, ...]
    silent: Silent
    arrays: tuple[ArrayInfo, ...]
    above: tuple[ArrayInfo, ...]
    where: str
    key: Key = ()
    opened: Key | None = ()

    def to_choose(self, given: Sequence[str] | int) -> str:
        """What to pass, or to call, so that this group has another batch: names of dims, or a count of axes."""
        names = [] if isinstance(given, int) else [local_dim(dim, self.key) for dim in given]
        batch_dims: Any = names[0] if len(names) == 1 else names or given
        if not self.key:
            return f"pass batch_dims={batch_dims!r}"
        if self.opened is None:
            return f"use dt[{'/'.join(self.key)!r}].td.to_tensordict(batch_dims={batch_dims!r})"
        return f"pass group={group_name((*self.opened, *self.key))!r}, batch_dims={batch_dims!r}"

    @cached_property
    def reach(self) -> tuple[ArrayInfo, ...]:
        """The arrays that define what a dim is."""
        return (*self.arrays, *self.above)

    @cached_property
    def stops(self) -> dict[str, str]:
        """The feature dims, each with the reason."""
        dims = {dim for info in self.arrays for dim in info.dims if dim is not None}
        return feature_dims(dims, self.reach, self.voters)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The size of each named dim; the larger one where two arrays disagree."""
        sizes: dict[str, int] = {}
        for info in self.arrays:
            for dim, size in info.axes:
                if dim is not None:
                    sizes[dim] = max(size, sizes.get(dim, 0))
        return sizes

    @cached_property
    def by_path(self) -> dict[str, ArrayInfo]:
        """The arrays by their paths, as records name them."""
        return {"/".join(info.key): info for info in self.arrays}

    @cached_property
    def holders(self) -> dict[str, list[ArrayInfo]]:
        """The voters that have a dim."""
        found: dict[str, list[ArrayInfo]] = {}
        for info in self.voters:
            for dim in dict.fromkeys(info.dims):
                if dim is not None:
                    found.setdefault(dim, []).append(info)
        return found

    @cached_property
    def unlimited(self) -> frozenset[str | None]:
        """The dims that can grow."""
        return frozenset(info.dims[axis] for info in self.reach for axis in info.unlimited)

    @cached_property
    def times(self) -> frozenset[str]:
        """The dims whose coordinate is a time."""
        return frozenset(info.key[-1] for info in self.reach if info.dims == (info.key[-1],) and is_time(info))

    @cached_property
    def contenders(self) -> list[_Contender]:
        """All dims that are no features, the best first."""
        found = [_Contender(dim, self) for dim in self.holders if dim not in self.stops]
        return sorted(found, key=lambda each: each.rank)

    @cached_property
    def named(self) -> int:
        """The numbers of the voters whose first axis has a name."""
        return elements(info for info in self.voters if info.dims[0] is not None)

    @cached_property
    def rivals_of_time(self) -> tuple[int, int]:
        """The highest rank of the voters that do not start with a feature dim, and their numbers."""
        rivals = [info for info in self.voters if info.dims[0] not in self.stops]
        return max(len(info.shape) for info in rivals), elements(rivals)


def no_batch(reason: str, notes: Iterable[str] = ()) -> GroupBatch:
    """The answer "nothing is shared", with what was looked at."""
    return GroupBatch((), (), "none", reason, tuple(notes))


def with_notes(batch: GroupBatch, notes: Iterable[str]) -> GroupBatch:
    """The same decision with more sentences behind those it has."""
    return replace(batch, notes=(*batch.notes, *notes))


def find_batch(ballot: Ballot) -> GroupBatch:
    """Rules 3, 4, 5 and 7: the batch of the arrays of one group, with its evidence."""
    found = by_named_dims(ballot)
    if found is None and any(info.dims[0] is None for info in ballot.voters):
        found = by_shape(ballot)
    return with_notes(found or _nothing(ballot), did_not_vote(ballot.silent, ballot.key))


# -- rule 3: named dims ------------------------------------------------------------------------------------------------

_PREFERRED = (
    "is a batch axis by its name",
    "can grow",
    "is a time",
    "is the first dim of more numbers",
    "comes first by name",
)


class _Contender:
    """A dim that could be the first of the batch.

    Attributes
    ----------
    starting, elsewhere
        The voters that start with it, and those that have it elsewhere.
    rank
        Sort key, the best first, see `_PREFERRED`.
    lost
        Why it cannot be the first of the batch, "" where it can; "{}" stands for the names of `elsewhere`.
    """

    def __init__(self, dim: str, ballot: Ballot) -> None:
        self.dim = dim
        self.starting = tuple(info for info in ballot.holders[dim] if info.dims[0] == dim)
        self.elsewhere = tuple(info for info in ballot.holders[dim] if info.dims[0] != dim)
        numbers = elements(self.starting)
        is_time_like = is_time_name(dim) or dim in ballot.times
        self.rank = (not is_marked(dim), dim not in ballot.unlimited, not is_time_like, -numbers, dim)
        self.lost = self._lost(numbers, ballot)

    @property
    def preferred(self) -> bool:
        """Whether something but the number of elements speaks for it."""
        return not all(self.rank[:3])

    def _lost(self, numbers: int, ballot: Ballot) -> str:
        if not self.starting:
            return "it is not the first dim of {}"
        if self.elsewhere and numbers <= elements(self.elsewhere):
            return "it is not the first dim of {}, with as many numbers or more"
        if not self.preferred:
            return "" if 2 * numbers >= ballot.named else "it is the first dim of less than half of the numbers"
        # a land mask, tie points or a mask of three dims do not outvote a time
        highest, of_rivals = ballot.rivals_of_time
        is_main = any(len(info.shape) == highest for info in self.starting) or 2 * numbers > of_rivals
        return "" if is_main else "it is the first dim of no array of the highest rank, nor of most of the numbers"


def by_named_dims(ballot: Ballot) -> GroupBatch | None:
    """Rule 3: the first dim of the main arrays, then each next dim that all of them share."""
    best = next((each for each in ballot.contenders if not each.lost), None)
    if best is None:
        return None
    unnamed = elements(info for info in ballot.voters if info.dims[0] is None)
    shared = by_shape(ballot) if not best.preferred and 2 * unnamed > elements(ballot.voters) else None
    return shared or _grown(best, ballot)


def _grown(best: _Contender, ballot: Ballot) -> GroupBatch:
    """The first dim, then each next dim that the arrays starting with it share; rule 5; then the sentences."""
    covered: tuple[ArrayInfo, ...] = best.starting
    dims: tuple[str, ...] = (best.dim,)
    stop: str | None = None
    while stop is None:
        covered, dims, stop = _one_further(covered, dims, ballot)
    marked = all(is_marked(dim) for dim in dims)
    if len(dims) > 1 and not marked and all(len(info.shape) == len(dims) for info in covered):
        because = f"otherwise every axis of {_names(covered)} would be batch"
        stop = f"{dims[1]!r} is treated as features, because {because}; {ballot.to_choose(dims)} to take it"
        covered, dims = best.starting, dims[:1]
    evidence: EvidenceKind = "unlimited dim" if best.dim in ballot.unlimited else "shared named dims"
    what = " and ".join(map(repr, dims)) + (" are the first dims of" if len(dims) > 1 else " is the first dim of")
    if evidence == "unlimited dim" and len(dims) == 1:
        what = f"the unlimited dim {what}"
    reason = f"{what} {len(covered)} of {len(ballot.voters)} numeric data arrays ({_names(covered)})"
    notes = []
    if best.elsewhere:
        have = f"{_names(best.elsewhere)} with {best.dim!r} elsewhere"
        notes.append(f"{have} hold fewer numbers, so they do not count against it")
    notes += _second(best, dims, ballot)
    return GroupBatch(
        dims, covered[0].shape[: len(dims)], evidence, "; ".join(filter(None, (reason, stop))), tuple(notes)
    )


def _one_further(
    covered: tuple[ArrayInfo, ...], dims: tuple[str, ...], ballot: Ballot
) -> tuple[tuple[ArrayInfo, ...], tuple[str, ...], str | None]:
    """One more dim for the batch, or why there is none: "" where no reason is needed."""
    length = len(dims)
    longer = [info for info in covered if len(info.shape) > length]
    following = list(dict.fromkeys(info.dims[length] for info in longer))
    further = [dim for dim in following if dim is not None and dim not in ballot.stops]
    if not further:
        return covered, dims, _why_stopped(following, ballot)
    if len(further) > 1:
        most = max(further, key=lambda dim: (elements(ballot.holders[dim]), dim))
        go_on = f"the arrays go on with {' or '.join(map(repr, further[:4]))}"
        return covered, dims, f"{go_on}; {ballot.to_choose((*dims, most))} to take {most!r} as well"
    dim = further[0]
    on = tuple(info for info in longer if info.dims[length] == dim)
    behind = {name for info in on for name in info.dims[length + 1 :]} & ballot.stops.keys()
    keys = {info.key for info in on}
    apart = [info for info in ballot.holders[dim] if info.key not in keys]
    # a static field: what is left of it is space that stands behind the dim elsewhere (a mask for each member)
    without = [
        info
        for info in covered
        if info.key not in keys and not (info.dims[length:] and behind.issuperset(info.dims[length:]))
    ]
    if apart or without:
        why = f"it is elsewhere in {_names(apart)}" if apart else f"it is not in {_names(without)}"
        return covered, dims, f"{dim!r} is not taken as well: {why}; {ballot.to_choose((*dims, dim))} to take it"
    return on, (*dims, dim), None


def _why_stopped(following: Sequence[str | None], ballot: Ballot) -> str:
    first = next((dim for dim in following if dim is not None), None)
    if first is None:
        return "the next axis has no name" if following else ""
    return "" if ballot.stops[first] == MADE_UP else f"{first!r} is {ballot.stops[first]}"


def _names(arrays: Iterable[ArrayInfo]) -> str:
    return names_of([info.key for info in arrays])


def _second(best: _Contender, dims: Sequence[str], ballot: Ballot) -> list[str]:
    """The dim that came second, why it lost, and what to pass to get it."""
    others = [each for each in ballot.contenders if each.dim not in dims and each.starting]
    if not others:
        return []
    other = min(others, key=lambda each: bool(each.lost))
    why = other.lost.format(_names(other.elsewhere))
    if not why:
        ranks = zip(_PREFERRED, best.rank, other.rank, strict=True)
        why = f"{best.dim!r} " + next(word for word, one, two in ranks if one != two)
    return [
        f"{other.dim!r}, the first dim of {_names(other.starting)}, is not taken: {why}; {ballot.to_choose([other.dim])} to take it instead"
    ]


# -- rule 7: nothing shared --------------------------------------------------------------------------------------------


def _nothing(ballot: Ballot) -> GroupBatch:
    """No batch, with the dim that could be meant: a time behind a feature dim, or the most frequent first dim."""
    notes = []
    if ballot.contenders:
        best = max(ballot.contenders, key=lambda each: (each.preferred, elements(ballot.holders[each.dim])))
        why = best.lost.format(_names(best.elsewhere))
        notes = [f"{best.dim!r} is not taken: {why}; {ballot.to_choose([best.dim])} to take it"]
    firsts = dict.fromkeys(info.dims[0] for info in ballot.voters)
    names = sorted(dim for dim in firsts if dim is not None and ballot.stops.get(dim) != MADE_UP)
    if not names:
        reason, advice = _most_shared(ballot.voters)
        return no_batch(f"{reason}, and their first axes have no names", [*notes, *advice])
    why_not = [f"{dim!r} is {ballot.stops[dim]}" for dim in names if dim in ballot.stops]
    if len(why_not) < len(firsts):
        starts = f"the arrays start with {', '.join(map(repr, names[:4]))}" + (" and others" if len(names) > 4 else "")
        why_not.insert(0, f"{starts}, and none of these dims is the first of the main arrays")
    return no_batch(f"no batch dim was found: {'; '.join(why_not)}", notes)


def _most_shared(voters: Sequence[ArrayInfo]) -> tuple[str, list[str]]:
    """Which arrays come nearest to a shared leading size, and how to choose it as a sentence."""
    by_size: dict[int, list[ArrayInfo]] = {}
    for info in voters:
        by_size.setdefault(info.shape[0], []).append(info)
    reason = "the arrays share no leading size"
    if not by_size:
        return reason, []
    size, arrays = max(by_size.items(), key=lambda item: (len(item[1]) > 1, elements(item[1]), item[0]))
    if len(by_size) == 1:
        reason = f"all arrays start with {size}"
    elif len(arrays) > 1:
        reason += f" ({len(arrays)} of {len(voters)} start with {size})"
    if len(arrays[0].key) > 1:
        return reason, []
    start = "start" if len(arrays) > 1 else "starts"
    dim = arrays[0].dims[0] or f"dim_{size}"
    return reason, [f"{_names(arrays)} {start} with {size}; choose it with ds.td.set_batch_dims({dim!r})"]


# -- rule 4: shapes only -----------------------------------------------------------------------------------------------


def by_shape(ballot: Ballot, *, at_most: int | None = None) -> GroupBatch | None:
    """Rule 4: the leading sizes that all numeric arrays share, or that those with most of the elements share."""
    voters = ballot.voters
    prefix = _shared_prefix(voters)
    if prefix:
        who = f"all {len(voters)} numeric arrays share" if len(voters) > 1 else f"{_names(voters)} has"
        return _from_shape(prefix, voters, who, at_most, ballot)
    return _by_majority(ballot, at_most)


def _by_majority(ballot: Ballot, at_most: int | None) -> GroupBatch | None:
    """A minority cannot veto: the leading size of at least two arrays that hold more than half of the elements."""
    counted = set(NOT_NUMERIC.values())
    electors = [info for info in ballot.arrays if info.shape and ballot.silent.get(info.key[-1]) in counted]
    if not ballot.voters:
        # a table of nothing but text, whose axes have no names but those that this package gave them
        electors = [info for info in electors if info.dims[0] is None or is_marked(info.dims[0])]
    electors += ballot.voters
    held: Counter[int] = Counter()
    for info in electors:
        held[info.shape[0]] += info.size
    size, most = max(held.items(), key=lambda item: item[1], default=(0, 0))
    members = [info for info in electors if info.shape[0] == size]
    if len(members) < 2 or 2 * most <= held.total():
        return None
    voters = [info for info in ballot.voters if info.shape[0] == size]
    share = f"{len(members)} of {len(electors)} arrays, with {most / held.total():.1%} of the elements, share"
    found = _from_shape(_shared_prefix(voters or members), voters or members, share, at_most, ballot)
    others = [info for info in ballot.voters if info.shape[0] != size]
    return with_notes(found, [f"{_names(others)} start with other sizes"] if others else [])


def _from_shape(
    prefix: tuple[int, ...], arrays: Sequence[ArrayInfo], who: str, at_most: int | None, ballot: Ballot
) -> GroupBatch:
    note = ""
    if at_most is not None:
        prefix = prefix[:at_most]
    elif len(prefix) > 1 and all(len(info.shape) == len(prefix) for info in arrays):
        to_take = ballot.to_choose(len(prefix))
        note = f"; only the first axis is the batch, because otherwise every axis would be; {to_take} to take more"
        prefix = prefix[:1]
    what = f"the leading size {prefix[0]}" if len(prefix) == 1 else f"the leading sizes {list(prefix)}"
    return GroupBatch(names_at(arrays, len(prefix)), prefix, "shared shape", f"{who} {what}{note}")


def names_at(arrays: Sequence[ArrayInfo], length: int) -> Dims:
    """The name of each of the first axes, where an array has one."""
    return tuple(
        next((info.dims[axis] for info in arrays if info.dims[axis] is not None), None) for axis in range(length)
    )


def _shared_prefix(arrays: Sequence[ArrayInfo]) -> tuple[int, ...]:
    prefix: list[int] = []
    for sizes in zip(*(info.shape for info in arrays), strict=False):
        if len(set(sizes)) != 1:
            break
        prefix.append(sizes[0])
    return tuple(prefix)
