"""The rules that find a batch for one group, in their order: given, recorded, named dims, shapes only.

Each rule takes a :class:`Ballot`, what one group puts to the vote, and returns a :class:`~.model.GroupBatch` or None
("this rule has no answer"). Sources: section 6 of the design, rule numbers as there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

from .model import ArrayInfo, EvidenceKind, GroupBatch, Key, RecordedBatch
from .suggest import there_are
from .voting import is_time, is_time_name, names_of

Dims = tuple[str | None, ...]


@dataclass(frozen=True)
class Ballot:
    """What one group puts to the vote.

    Attributes
    ----------
    voters
        The numeric data arrays of the group that vote.
    arrays
        All arrays of the group.
    reach
        The arrays that say what a dim is: those of the group and of the groups above it.
    stops
        Dims before which a batch stops, each with the reason.
    where
        How messages call the group.
    spans_groups
        Whether the voters are those of several groups, because the group has none of its own.
    """

    voters: tuple[ArrayInfo, ...]
    arrays: tuple[ArrayInfo, ...]
    reach: tuple[ArrayInfo, ...]
    stops: dict[str, str]
    where: str
    spans_groups: bool = False

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
        axes = ((info, axis) for info in self.reach for axis in info.unlimited)
        return frozenset(info.dims[axis] for info, axis in axes if axis < len(info.dims))

    @cached_property
    def times(self) -> frozenset[str]:
        """The dims whose coordinate is a time."""
        return frozenset(info.key[-1] for info in self.reach if info.dims == (info.key[-1],) and is_time(info))


@dataclass(frozen=True)
class _Candidate:
    dims: tuple[str, ...]
    sizes: tuple[int, ...]
    covered: tuple[ArrayInfo, ...]
    stopped_by: str | None
    marked: bool = False


def no_batch(reason: str) -> GroupBatch:
    """The answer "nothing is shared", with what was looked at."""
    return GroupBatch((), (), "none", reason)


def is_made_up(dim: str) -> bool:
    """Whether the engine made the name of a feature axis up: ``dim_3``, ``dim_3_1``."""
    head, _, number = dim.rsplit(".", 1)[-1].partition("_")
    return head == "dim" and number.replace("_", "").isdigit()


def is_marked(dim: str | None) -> bool:
    """Whether the engine itself named this dim as a batch axis (``batch_0``, ``data.demo_0.batch_0``)."""
    if dim is None:
        return False
    head, _, number = dim.rsplit(".", 1)[-1].partition("_")
    return head == "batch" and number.partition("_")[0].isdigit()


# -- rule 3: named dims ------------------------------------------------------------------------------------------------


def by_named_dims(ballot: Ballot) -> GroupBatch | None:
    """Rule 3: the leading dims that every voter starts with or does without."""
    named = [info for info in ballot.voters if info.dims[0] is not None]
    if not named:
        return None
    rank = max(len(info.shape) for info in ballot.voters)
    # arrays of the same dims give the same candidates: ask one of each
    highest = {info.dims: info for info in named if len(info.shape) == rank}
    candidates = {candidate.dims: candidate for info in highest.values() for candidate in _prefixes(info, ballot)}
    best = min(candidates.values(), key=lambda candidate: _preference(candidate, ballot), default=None)
    if best is None or not (_is_preferred(best, ballot) or 2 * _elements(best.covered) > _elements(ballot.voters)):
        best = _overruling(ballot, {candidate.dims[0] for candidate in candidates.values()}) or best
    if best is None:
        if all(info.dims[0] is not None for info in ballot.voters):
            return no_batch(_why_not(ballot))
        return None
    return _cut_to_first_axis(best, ballot)


def _prefixes(info: ArrayInfo, ballot: Ballot, overruled: Collection[Key] = ()) -> list[_Candidate]:
    """All leading prefixes of the dims of `info` that every voter (but those overruled) starts with or has no dim of."""
    found = []
    for length in range(1, len(info.shape) + 1):
        last = info.dims[length - 1]
        if last is None or info.dims.count(last) > 1 or last in ballot.stops:
            break
        prefix = tuple(str(dim) for dim in info.dims[:length])
        # only those that have a dim of the prefix can disagree: many arrays may have dims of their own
        holders = (voter for dim in prefix for voter in ballot.holders[dim])
        if not all(voter.dims[:length] == prefix for voter in holders if voter.key not in overruled):
            continue
        covered = tuple(voter for voter in ballot.holders[prefix[0]] if voter.dims[:length] == prefix)
        marked = all(is_marked(dim) for dim in prefix)
        found.append(_Candidate(prefix, info.shape[:length], covered, _stop_after(info, length, ballot), marked))
    return found


def _elements(arrays: Sequence[ArrayInfo]) -> int:
    return sum(math.prod(info.shape) for info in arrays)


def _is_preferred(candidate: _Candidate, ballot: Ballot) -> bool:
    """Whether something but the number of elements speaks for a candidate."""
    first = candidate.dims[0]
    return candidate.marked or first in ballot.unlimited or _is_time_like(first, ballot)


def _is_time_like(dim: str, ballot: Ballot) -> bool:
    """Whether a dim is a time by its plain name or by its coordinate."""
    return is_time_name(dim) or dim in ballot.times


def _overruling(ballot: Ballot, not_vetoed: Collection[str]) -> _Candidate | None:
    """A minority cannot veto: the first dim of the arrays that hold more than half of the elements.

    Asked only where the strict rule explains no such majority (Argo: two arrays over (N_HISTORY, N_PROF) stand against
    all that lead with N_PROF).
    """
    firsts = {str(info.dims[0]) for info in ballot.voters if info.dims[0] is not None}
    total = _elements(ballot.voters)
    for first in sorted(firsts.difference(not_vetoed)):
        covered = tuple(info for info in ballot.holders[first] if info.dims[0] == first)
        if len(covered) > 1 and 2 * _elements(covered) > total:
            others = [info.key for info in ballot.voters if info.dims[0] != first]
            longest = [found for info in covered for found in _prefixes(info, ballot, others)[-1:]]
            return min(longest, key=lambda found: _preference(found, ballot), default=None)
    return None


def _stop_after(info: ArrayInfo, length: int, ballot: Ballot) -> str | None:
    if length == len(info.shape):
        return None
    following = info.dims[length]
    if following is None:
        return "the next axis has no name"
    if info.dims.count(following) > 1:
        return f"{following!r} stands twice in {'/'.join(info.key)!r}"
    if following in ballot.stops and not is_made_up(following):
        return f"{following!r} is {ballot.stops[following]}"
    return None


def _preference(candidate: _Candidate, ballot: Ballot) -> tuple[object, ...]:
    """Sort key, best first: marked, unlimited, time-like, more elements, longer, by name."""
    first = candidate.dims[0]
    return (
        not candidate.marked,
        first not in ballot.unlimited,
        not _is_time_like(first, ballot),
        -_elements(candidate.covered),
        -len(candidate.dims),
        candidate.dims,
    )


def _cut_to_first_axis(best: _Candidate, ballot: Ballot) -> GroupBatch:
    """Rule 5, then the sentence."""
    dims, sizes, stop = best.dims, best.sizes, best.stopped_by
    if len(dims) > 1 and not best.marked and all(len(info.shape) == len(dims) for info in best.covered):
        stop = f"{dims[1]!r} is taken as features, since nothing would be left of {names_of([i.key for i in best.covered])}"
        dims, sizes = dims[:1], sizes[:1]
    evidence: EvidenceKind = "shared named dims"
    lead = "leads" if len(dims) == 1 else "lead"
    what = " and ".join(repr(dim) for dim in dims)
    if dims[0] in ballot.unlimited:
        evidence, what = "unlimited dim", f"the unlimited dim {what}" if len(dims) == 1 else what
    counted = f"{len(best.covered)} of {len(ballot.voters)} numeric data arrays"
    reason = f"{what} {lead} {counted} ({names_of([info.key for info in best.covered])})"
    return GroupBatch(dims, sizes, evidence, f"{reason}; {stop}" if stop else reason)


def _why_not(ballot: Ballot) -> str:
    firsts = sorted({str(info.dims[0]) for info in ballot.voters})
    if all(is_made_up(dim) for dim in firsts):
        return "the arrays share no leading size, and no dim has a name"
    stopped = [f"{dim!r} is {ballot.stops[dim]}" for dim in firsts if dim in ballot.stops and not is_made_up(dim)]
    if stopped:
        return f"no batch dim was found: {'; '.join(stopped)}"
    return f"no batch dim was found: the arrays lead with {', '.join(map(repr, firsts))} and share none of them"


# -- rule 4: shapes only -----------------------------------------------------------------------------------------------


def by_shape(ballot: Ballot, *, at_most: int | None = None) -> GroupBatch | None:
    """Rule 4: the leading sizes that all numeric arrays share, or that those with most of the elements share."""
    voters = ballot.voters
    if not voters:
        return None
    prefix = _shared_prefix([info.shape for info in voters])
    if prefix:
        count = f"all {len(voters)} numeric arrays share" if len(voters) > 1 else f"{names_of([voters[0].key])} has"
        return _from_shape(prefix, voters, count, at_most)
    return _by_majority(ballot, at_most)


def _by_majority(ballot: Ballot, at_most: int | None) -> GroupBatch | None:
    """A minority cannot veto: the leading size of at least two arrays that hold more than half of the elements."""
    voting = {info.key for info in ballot.voters}
    electors = [info for info in ballot.arrays if info.shape and (info.key in voting or info.kind != "numeric")]
    total = sum(math.prod(info.shape) for info in electors)
    held: Counter[int] = Counter()
    for info in electors:
        held[info.shape[0]] += math.prod(info.shape)
    for size, elements in held.items():
        members = [info for info in electors if info.shape[0] == size]
        if len(members) >= 2 and 2 * elements > total:
            voters = [info for info in members if info.key in voting]
            prefix = _shared_prefix([info.shape for info in voters or members])
            share = f"{len(members)} of {len(electors)} arrays, with {elements / total:.1%} of the elements, share"
            return _from_shape(prefix, voters or members, share, at_most)
    return None


def _from_shape(prefix: tuple[int, ...], voters: Sequence[ArrayInfo], who: str, at_most: int | None) -> GroupBatch:
    note = ""
    if at_most is not None:
        prefix = prefix[:at_most]
    elif len(prefix) > 1 and all(len(info.shape) == len(prefix) for info in voters):
        note = "; the axes behind it are taken as features, since nothing else would be left"
        prefix = prefix[:1]
    dims = _names_at(voters, len(prefix))
    what = f"the leading size {prefix[0]}" if len(prefix) == 1 else f"the leading sizes {list(prefix)}"
    return GroupBatch(dims, prefix, "shared shape", f"{who} {what}{note}")


def _names_at(arrays: Sequence[ArrayInfo], length: int) -> Dims:
    """The name of each of the first axes, where an array has one."""
    return tuple(
        next((info.dims[axis] for info in arrays if info.dims[axis] is not None), None) for axis in range(length)
    )


def _shared_prefix(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    prefix: list[int] = []
    for sizes in zip(*shapes, strict=False):
        if len(set(sizes)) != 1:
            break
        prefix.append(sizes[0])
    return tuple(prefix)


# -- rule 2: recorded --------------------------------------------------------------------------------------------------


def by_record(ballot: Ballot, record: RecordedBatch) -> tuple[GroupBatch | None, list[str]]:
    """Rule 2: what the store records, corrected where the arrays contradict it.

    Returns
    -------
    batch
        None where the record has nothing to say any more.
    warnings
        One sentence for each correction.
    """
    if record.sizes is None:
        return _by_recorded_names(ballot, record), []
    length = len(record.sizes)
    names: Dims = (tuple(record.names or ()) + (None,) * length)[:length]
    dims = tuple(name or found for name, found in zip(names, _dims_of_leaders(ballot, record.sizes), strict=True))
    said = f"batch size {list(record.sizes)}" + (f" with names {list(names)}" if any(names) else "")
    batch = GroupBatch(dims, record.sizes, "recorded", f"the store records {said}")
    candidates = [info for info in ballot.voters if len(info.shape) >= length and not _is_partial(info, record, dims)]
    # arrays without elements have no vote, and still show that a batch of size zero is true
    empty = [info for info in ballot.arrays if 0 in info.shape]
    if not length or not candidates or any(info.shape[:length] == record.sizes for info in (*candidates, *empty)):
        contradicting = [info for info in ballot.voters if _contradicts(info, record, dims)]
        return batch, [_contradiction(info, record, ballot) for info in contradicting]
    return _corrected(ballot, record, dims)


def _contradicts(info: ArrayInfo, record: RecordedBatch, dims: Dims) -> bool:
    """Whether an array that a tensordict must have written does not lead with the recorded batch any more."""
    assert record.sizes is not None
    if not record.sizes or info.shape[: len(record.sizes)] == record.sizes:
        return False
    # a partial array has some of the batch dims: only their sizes can be wrong
    recorded = dict(zip(dims, record.sizes, strict=True))
    pairs = zip(info.dims, info.shape, strict=True)
    return info.dims[0] is None or any(size != recorded.get(dim, size) for dim, size in pairs if dim is not None)


def _is_partial(info: ArrayInfo, record: RecordedBatch, dims: Dims) -> bool:
    """Whether an array has some of the recorded dims, by name, and not all: it says nothing about the others."""
    names = set(dims)
    held = names.intersection(info.dims)
    return None not in names and bool(held) and held != names and not _contradicts(info, record, dims)


def _contradiction(info: ArrayInfo, record: RecordedBatch, ballot: Ballot) -> str:
    return (
        f"{ballot.where}: {'/'.join(info.key)!r} of shape {list(info.shape)} does not lead with the recorded batch size "
        f"{list(record.sizes or ())}, so it is unbatched; if it is being written, open it again when it is "
        f"whole, else write it again, or correct "
        f"the record"
    )


def _dims_of_leaders(ballot: Ballot, sizes: tuple[int, ...]) -> Dims:
    leaders = [info for info in ballot.arrays if info.shape[: len(sizes)] == sizes]
    # a batch dim without a recorded name is one that the engine has named: another dim may have the same size
    marked = [info for info in leaders if any(is_marked(dim) for dim in info.dims[: len(sizes)])]
    return _names_at(marked or leaders, len(sizes)) if leaders else (None,) * len(sizes)


def _corrected(ballot: Ballot, record: RecordedBatch, dims: Dims) -> tuple[GroupBatch | None, list[str]]:
    assert record.sizes is not None
    found = by_shape(ballot, at_most=len(record.sizes))
    sizes = found.sizes if found else ()
    first = next(info for info in ballot.voters if len(info.shape) >= len(record.sizes))
    warning = (
        f"{ballot.where}: the recorded batch size {list(record.sizes)} does not fit {'/'.join(first.key)!r} of shape "
        f"{list(first.shape)}; the batch size is taken from the arrays, {list(sizes)}. Write the store again or "
        f"annotate it to make the record true"
    )
    names = tuple(name or (found.dims[axis] if found else None) for axis, name in enumerate(dims[: len(sizes)]))
    reason = (
        f"the store records batch size {list(record.sizes)}, which the arrays contradict: they lead with {list(sizes)}"
    )
    return GroupBatch(names, sizes, "recorded", reason), [warning]


def _by_recorded_names(ballot: Ballot, record: RecordedBatch) -> GroupBatch | None:
    """Names that are no longer dims are dropped; dims that are now in front of them are added in front."""
    names = record.names or ()
    sizes = _sizes(ballot.arrays)
    kept = tuple(name for name in names if name is not None and name in sizes)
    if names and not kept:
        return None
    holders = [info for info in ballot.voters if set(kept) & set(info.dims)]
    front = _dims_in_front(holders, kept, record.in_front, ballot)
    dims = front + kept
    reason = f"batch dims {list(names)} are recorded in attrs['tensordict_batch_dims']"
    if len(kept) < len(names):
        reason += f"; of them {list(kept)} are still dims"
    if front:
        reason += f"; {list(front)} are now in front of them"
    return GroupBatch(dims, tuple(sizes[dim] for dim in dims), "recorded", reason)


def _dims_in_front(
    holders: Sequence[ArrayInfo], kept: tuple[str, ...], passed_over: Collection[str], ballot: Ballot
) -> tuple[str, ...]:
    fronts = set()
    for info in holders:
        first = min(info.dims.index(dim) for dim in kept if dim in info.dims)
        fronts.add(tuple(dim for dim in info.dims[:first] if dim not in passed_over))
    if len(fronts) != 1:
        return ()
    front = tuple(str(dim) for dim in fronts.pop())
    return () if any(dim in ballot.stops for dim in front) else front


def _sizes(arrays: Sequence[ArrayInfo]) -> dict[str, int]:
    """The size of each named dim; the larger one where two arrays disagree."""
    sizes: dict[str, int] = {}
    for info in arrays:
        for dim, size in zip(info.dims, info.shape, strict=True):
            if dim is not None:
                sizes[dim] = max(size, sizes.get(dim, 0))
    return sizes


# -- rule 1: given -----------------------------------------------------------------------------------------------------


def by_given(ballot: Ballot, given: Any) -> GroupBatch:
    """Rule 1: what the caller says (names or a count), checked against the arrays."""
    if isinstance(given, bool) or not isinstance(given, (Integral, Iterable)):
        raise TypeError(f"batch_dims: expected a name, a list of names or a count, got {given!r}")
    if isinstance(given, Integral):
        return _by_count(ballot, int(given))
    return _by_given_names(ballot, (given,) if isinstance(given, str) else tuple(given))


def _by_given_names(ballot: Ballot, names: tuple[str, ...]) -> GroupBatch:
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"batch_dims: expected names of dims, got {name!r} of type {type(name).__name__}")
    sizes = _sizes(ballot.arrays)
    reason = f"batch_dims={list(names)} was given"
    if len(set(names)) < len(names):
        raise ValueError(f"batch_dims={list(names)}: a dim can be a batch dim only once")
    unknown = [name for name in names if name not in sizes]
    if not unknown:
        for info in ballot.voters:
            twice = [name for name in names if info.dims.count(name) > 1]
            if twice:
                raise ValueError(
                    f"batch_dims={list(names)}: {'/'.join(info.key)!r} has the dim {twice[0]!r} more than once "
                    f"(dims {list(info.dims)}), so it cannot be a batch dim; leave {twice[0]!r} out of batch_dims"
                )
        return GroupBatch(names, tuple(sizes[name] for name in names), "given", reason)
    made_up = [name for name in unknown if is_made_up(name) or is_marked(name)]
    if made_up:
        raise ValueError(
            f"batch_dims={list(names)}: {made_up[0]!r} is a name that this package makes up for an axis without one, and "
            f"{ballot.where} does not record it. Open the store without batch_dims, then choose by the names it shows: "
            f"ds.td.set_batch_dims({list(names)})"
        )
    unnamed = [info for info in ballot.voters if None in info.dims[: len(names)]]
    if len(unknown) == len(names) and unnamed and len(unnamed) == len(ballot.voters):
        batch = _by_count(ballot, len(names))
        return GroupBatch(names, batch.sizes, "given", f"{reason}, as names for the leading axes")
    raise ValueError(
        f"batch_dims={list(names)}: {ballot.where} has no dim {unknown[0]!r}; "
        f"{there_are(unknown[0], sizes, 'the dims there are')}"
    )


def _by_count(ballot: Ballot, count: int) -> GroupBatch:
    if count < 0:
        raise ValueError(f"batch_dims={count}: expected a count of leading dims, 0 or more")
    reason = f"batch_dims={count} was given"
    if count == 0:
        return GroupBatch((), (), "given", reason)
    inferred = by_named_dims(ballot) or by_shape(ballot)
    unanimous = ballot.spans_groups or not (inferred and inferred.sizes)
    voters = list(ballot.voters) if unanimous or inferred is None else _led_by(ballot, inferred)
    if not voters:
        raise ValueError(
            f"batch_dims={count}: {ballot.where} has no numeric array that could lead with {count} batch dims"
        )
    reference = max(voters, key=lambda info: (len(info.shape), [-ord(c) for c in "/".join(info.key)]))
    dims, sizes = reference.dims[:count], reference.shape[:count]
    for dim in dims:
        if dim is not None and reference.dims.count(dim) > 1:
            raise ValueError(
                f"batch_dims={count}: {'/'.join(reference.key)!r} has the dim {dim!r} more than once (dims "
                f"{list(reference.dims)}), so it cannot be a batch dim; give a smaller count"
            )
    wrong = [info for info in voters if info.shape[:count] != sizes or len(info.shape) < count]
    if wrong:
        wrong = [info for info in wrong if info is not reference]
        raise ValueError(
            f"batch_dims={count}: the arrays of {ballot.where} do not share their first {count} axes: "
            + ", ".join(f"{'/'.join(info.key)!r} has shape {list(info.shape)}" for info in [reference, *wrong[:5]])
            + "; give a smaller count, or name the batch dims"
        )
    return GroupBatch(_names_at(voters, count), sizes, "given", reason)


def _led_by(ballot: Ballot, batch: GroupBatch) -> list[ArrayInfo]:
    first_dim, first_size = batch.dims[0], batch.sizes[0]
    return [
        info
        for info in ballot.voters
        if (info.dims[0] == first_dim if first_dim is not None and info.dims[0] else info.shape[0] == first_size)
    ]
