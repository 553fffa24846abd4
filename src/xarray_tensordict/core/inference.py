"""Which leading dims are the batch: a pure function from a description of arrays to a decision with evidence.

No I/O, no xarray, no torch: the engine describes the arrays of a store, the accessor those of a Dataset, and both
get the same answer. This module walks the tree of groups (rule 6). The rules for one group are in :mod:`.rules` and
:mod:`.choices`, who votes in :mod:`.voting`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, TypeVar

from .choices import BatchDims, by_given, by_record, given_names, named_by_parent
from .features import feature_dims
from .model import (
    ArrayInfo,
    EntryClass,
    EvidenceKind,
    GroupBatch,
    Inference,
    Key,
    Kind,
    RecordedBatch,
    Role,
    group_name,
    private_group,
)
from .rules import Ballot, by_named_dims, by_shape, elements, find_batch, no_batch, with_notes
from .voting import EMPTY, did_not_vote, names_of, silent_members, sparse_kind, without_elements

__all__ = [
    "ArrayInfo",
    "BatchDims",
    "EntryClass",
    "EvidenceKind",
    "GroupBatch",
    "Inference",
    "Kind",
    "Role",
    "infer_batch",
]

T = TypeVar("T")

_SMALL = 10
"""A lone array decides nothing for the groups beside it if it holds less than one of so many numbers."""


def infer_batch(
    arrays: Iterable[ArrayInfo],
    *,
    given: BatchDims | None = None,
    each: bool = False,
    recorded: Mapping[Key, RecordedBatch] | None = None,
    group_attrs: Mapping[Key, Mapping[str, Any]] | None = None,
    beside: Iterable[ArrayInfo] = (),
    where: str = "the dataset",
) -> Inference:
    """Decide which leading dims are the batch.

    Parameters
    ----------
    arrays
        The arrays of a group and of all groups below it, in any order: the answer does not depend on it.
    given
        What the caller says: names of dims, or how many leading dims.
    each
        Where groups without a common batch lie below one without arrays of its own, `given` is for each of them, as in
        a tree; False: it is for the root, and such groups contradict it.
    recorded
        For each group that records a batch, what it records.
    group_attrs
        The attributes of groups: ``coordinates`` and ``encoding-type`` are read.
    beside
        The arrays of the groups beside this one, under keys like ``("posterior", "mu")``, where it is not a root.
    where
        How messages call the store.

    Returns
    -------
    Inference
        The batch of each group with its evidence, and the class of each array.

    Raises
    ------
    ValueError
        For a name in `given` that no array has (the dims there are get listed), or a count that the arrays
        contradict (they get named).
    TypeError
        For a `given` that is neither.

    Examples
    --------
    >>> found = infer_batch(
    ...     [
    ...         ArrayInfo(("t2m",), (4, 3, 5), dims=("time", "lat", "lon")),
    ...         ArrayInfo(("orography",), (3, 5), dims=("lat", "lon")),
    ...     ]
    ... )
    >>> found.batch_dims, found.batch_size, found.keys("unbatched")
    (('time',), (4,), (('orography',),))
    >>> print(found.reason)
    'time' leads 1 of 2 numeric data arrays ('t2m'); 'lat' is a feature dim by its name
    """
    ordered = tuple(arrays)
    siblings = _Tree(sorted(beside, key=lambda info: info.key), {}, {}, where) if beside else None
    tree = _Tree(
        sorted(ordered, key=lambda info: info.key), dict(group_attrs or {}), dict(recorded or {}), where, each, siblings
    )
    tree.decide((), None, given)
    classes = {
        info.key: classify(info, tree.batches[info.key[:-1]], sparse=tree.sparse(info.key[:-1]) is not None)
        for info in ordered
    }
    return Inference(tree.batches, classes, tuple(dict.fromkeys(tree.warnings)))


def may_have_more(inference: Inference, arrays: Iterable[ArrayInfo]) -> bool:
    """Whether the root could have a longer batch if a group beside it had one: all its arrays go on with one named dim.

    A batch that is given or recorded is not asked of other groups.
    """
    if inference.groups[()].evidence in ("given", "recorded"):
        return False
    first, *more = inference.batch_dims or (None,)
    seconds = {
        info.dims[1:2]
        for info in arrays
        if len(info.key) == 1 and info.role == "data" and info.kind == "numeric" and first in info.dims[:1]
    }
    return first is not None and not more and len(seconds) == 1 and seconds.isdisjoint({(), (None,)})


def classify(info: ArrayInfo, batch: GroupBatch, *, sparse: bool = False) -> EntryClass:
    """Say how one array relates to the batch of its group: by names where it has them, by leading sizes where not."""
    if not batch.sizes:
        return "batched"
    if sparse:
        return "unbatched"
    names = {dim for dim in batch.dims if dim is not None}
    held = names & set(info.dims)
    if names and held == names and len(names) == len(batch.dims):
        return "batched"
    length = len(batch.sizes)
    if len(info.shape) >= length and info.shape[:length] == batch.sizes and _unnamed_fit(info, batch):
        return "batched"
    return "partial" if held else "unbatched"


def _unnamed_fit(info: ArrayInfo, batch: GroupBatch) -> bool:
    """Whether the leading axes carry the batch names or none, one of them none (else the names decide)."""
    leading = info.dims[: len(batch.sizes)]
    fits = all(dim is None or name is None or dim == name for dim, name in zip(leading, batch.dims, strict=True))
    return fits and (None in leading or None in batch.dims)


@dataclass
class _Tree:
    """The groups under way to a decision."""

    arrays: list[ArrayInfo]
    attrs: dict[Key, Mapping[str, Any]]
    recorded: dict[Key, RecordedBatch]
    where: str
    each: bool = False
    beside: _Tree | None = None
    batches: dict[Key, GroupBatch] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.own: dict[Key, list[ArrayInfo]] = {}
        self._ballots: dict[Key, Ballot] = {}
        self._alone: dict[Key, GroupBatch] = {}
        self._inferences: dict[Key, GroupBatch] = {}
        self._asking: dict[Key, bool] = {}
        self._sparse: dict[Key, str | None] = {}
        self.children: dict[Key, list[Key]] = {(): []}
        keys = {info.key[:-1] for info in self.arrays} | set(self.recorded) | {()}
        for info in self.arrays:
            self.own.setdefault(info.key[:-1], []).append(info)
        every = {key[:length] for key in keys for length in range(len(key) + 1)}
        self.groups = sorted(every)
        for key in self.groups:
            self.children.setdefault(key, [])
            if key:
                self.children[key[:-1]].append(key)

    # -- who votes -----------------------------------------------------------------------------------------------------

    def sparse(self, key: Key) -> str | None:
        if key not in self._sparse:  # every array of the group asks
            names = (info.key[-1] for info in self.own.get(key, ()))
            self._sparse[key] = sparse_kind(names, self.attrs.get(key, {}))
        return self._sparse[key]

    def private(self, key: Key) -> str | None:
        """What a group is that the format keeps for itself, or that lies in one."""
        return (key and (self.private(key[:-1]) or private_group(key[-1], self.attrs.get(key, {})))) or None

    def below(self, key: Key) -> list[ArrayInfo]:
        """The arrays in a group and in those below it, which stand side by side."""
        return self.arrays[_side_by_side(self.arrays, key, lambda info: info.key)]

    def ballot(self, key: Key) -> Ballot:
        if key not in self._ballots:
            self._ballots[key] = self._new_ballot(key)
        return self._ballots[key]

    def _new_ballot(self, key: Key) -> Ballot:
        own = self.own.get(key, [])
        reach = [info for length in range(len(key), -1, -1) for info in self.own.get(key[:length], ())]
        where = self.where if not key else f"{self.where}, group {group_name(key)!r}"
        private = self.private(key)
        if private:
            silent = {info.key[-1]: f"they are in {private}" for info in own}
        else:
            leading = {
                child[-1]: {info.shape[0] for info in self.own.get(child, ()) if info.shape}
                for child in self.children[key]
            }
            silent = silent_members(own, self.attrs.get(key, {}), leading)
            silent |= {child[-1]: what for child in self.children[key] if (what := self._why_silent(child))}
            silent |= without_elements(own, silent)
        voters = tuple(info for info in own if info.key[-1] not in silent)
        return Ballot(voters, silent, tuple(own), tuple(reach), feature_dims(reach, voters), where)

    def _why_silent(self, child: Key) -> str | None:
        private, sparse = self.private(child), self.sparse(child)
        return f"it is {private}" if private else f"it is a {sparse}" if sparse else None

    def speaking(self, key: Key) -> list[Key]:
        """The groups in one that speak for it: those in which arrays vote."""
        silent = self.ballot(key).silent
        return [
            child
            for child in self.children[key]
            if child[-1] not in silent and (self.ballot(child).voters or self.speaking(child))
        ]

    def voters_below(self, key: Key) -> list[ArrayInfo]:
        """The voters of a group and of those in it that speak."""
        found = list(self.ballot(key).voters)
        return found + [voter for child in self.speaking(key) for voter in self.voters_below(child)]

    # -- the decision --------------------------------------------------------------------------------------------------

    def decide(
        self, key: Key, parent: GroupBatch | None, given: BatchDims | None = None, *, closed: bool = False
    ) -> None:
        """Decide a group, then the groups in it, which follow it where it has a batch.

        With `closed` a group has no batch but the one it records: the record of a group above says that it has none.
        """
        if given is None:
            batch = self._recorded(key, parent) or self._followed(parent)
            record = self.recorded.get(key)
            if batch is None:
                batch = no_batch("it is recorded that the group above it has none") if closed else self._inferred(key)
                if record is not None and record.names and record.sizes is None:
                    batch = with_notes(batch, [f"the recorded batch dims {list(record.names)} are no dims any more"])
            closed = record.names == () if record is not None and record.sizes is None else closed
        elif self.each and self._is_for_each(key, given):
            self.batches[key] = no_batch(f"batch_dims={given!r} is for the groups in it")
            self._give_to_each(key, given)
            return
        else:
            batch = self._given(key, given)
        self.batches[key] = batch
        for child in self.children[key]:
            # a batch of no dims that was asked for holds for the groups below too
            below = 0 if given is not None and not batch.sizes else None
            self.decide(child, batch, below, closed=closed)

    @staticmethod
    def _followed(parent: GroupBatch | None) -> GroupBatch | None:
        if parent is None or not parent.sizes:
            return None
        return GroupBatch(parent.dims, parent.sizes, "inherited", "it follows the group above it")

    # -- given (rule 1) ------------------------------------------------------------------------------------------------

    def _is_for_each(self, key: Key, given: BatchDims) -> bool:
        """Whether a group leaves `given` to those in it: they speak for it, and share no batch of that kind."""
        voters = self.voters_below(key)
        if not self._asks_children(key) or not voters or given == 0:
            return False
        names = given_names(given)
        if set(names) & {dim for voter in voters for dim in voter.dims}:
            return any(len({size for voter in voters for size in _sizes_of(voter, name)}) > 1 for name in names)
        count = int(given) if isinstance(given, Integral) else len(names)
        return count > len(self._inferred(key).sizes) and len({voter.shape[:count] for voter in voters}) > 1

    def _give_to_each(self, key: Key, given: BatchDims) -> None:
        """Decide the groups in one; `given` has to fit one of them, and a warning names the arrays that contradict it."""
        errors: list[str] = []
        names = set(given_names(given))
        children = self.speaking(key)
        for child in self.children[key]:
            try:
                self.decide(child, None, given if child in children else 0)
            except ValueError as error:
                errors.append(str(error))
                dims = {dim for info in self.below(child) for dim in info.dims}
                if not names or names & dims:
                    self.warnings.append(f"{error}; the group has no batch")
                self.decide(child, None, 0)
        if len(errors) == len(children):
            raise ValueError(errors[0])

    def _given(self, key: Key, given: BatchDims) -> GroupBatch:
        ballot = self.ballot(key)
        if self._asks_children(key):
            ballot = replace(ballot, voters=tuple(self.voters_below(key)), arrays=tuple(self.below(key)))
            _check_one_size(ballot, given)
        elif not isinstance(given, Integral):
            ballot = replace(ballot, arrays=tuple(self.below(key)))
        return by_given(ballot, given, self._recorded(key, None) or self._inferred(key))

    # -- recorded (rule 2) ---------------------------------------------------------------------------------------------

    def _recorded(self, key: Key, parent: GroupBatch | None) -> GroupBatch | None:
        record = self.recorded.get(key)
        if record is None:
            return None
        record = named_by_parent(record, parent)
        ballot = self.ballot(key)
        if not ballot.voters or record.sizes is None:
            ballot = replace(ballot, arrays=tuple(self.below(key)))
        batch, warnings = by_record(ballot, record, lambda: self._inferred(key))
        if batch is not None and parent is not None and batch.sizes[: len(parent.sizes)] != parent.sizes:
            return None
        self.warnings.extend(warnings)
        return batch

    # -- inferred (rules 3 to 7) ---------------------------------------------------------------------------------------

    def _inferred(self, key: Key) -> GroupBatch:
        """What a group has by itself; where a group beside it has more of the same dims, so much of them."""
        if key not in self._inferences:
            batch = self._by_itself(key)
            tree = self if key else self.beside or self
            siblings = tree.children[key[:-1]] if key or self.beside else []
            for sibling in siblings if len(batch.dims) == 1 else ():
                more = tree._by_itself(sibling).dims
                if len(more) > len(batch.dims) and more[0] == batch.dims[0]:
                    batch = self._as_sibling(key, batch, sibling, more)
            self._inferences[key] = batch
        return self._inferences[key]

    def _as_sibling(self, key: Key, batch: GroupBatch, sibling: Key, more: tuple[str | None, ...]) -> GroupBatch:
        """The batch of a group over the same dims, where all arrays that the batch leads go on with them."""
        led = [info for info in self.ballot(key).voters if info.dims[0] == batch.dims[0]]
        if None in more or not led or any(info.dims[: len(more)] != more for info in led):
            return batch
        reason = f"all arrays lead with {list(more)}, the batch dims of the group {sibling[-1]!r} beside it"
        return replace(batch, dims=more, sizes=led[0].shape[: len(more)], reason=reason)

    def _by_itself(self, key: Key) -> GroupBatch:
        # a parent without voters asks its children before they are decided: ask each once
        if key not in self._alone:
            self._alone[key] = self._infer(key)
        return self._alone[key]

    def _infer(self, key: Key) -> GroupBatch:
        private, sparse = self.private(key), self.sparse(key)
        if private or sparse:
            return no_batch(
                f"it is {private}" if private else f"it is a {sparse}", did_not_vote(self.ballot(key).silent)
            )
        if self._asks_children(key):
            return self._shared_by_children(key)
        batch = find_batch(self.ballot(key))
        return batch if batch.sizes else self._of_empty(key) or batch

    def _of_empty(self, key: Key) -> GroupBatch | None:
        """A selection of no rows leaves a mask without the batch as the only one with elements: the names decide then."""
        ballot = self.ballot(key)
        silent = {name: why for name, why in ballot.silent.items() if why != EMPTY}
        voters = tuple(info for info in ballot.arrays if info.key[-1] not in silent)
        if len(voters) == len(ballot.voters):
            return None
        stops = feature_dims(ballot.reach, voters)
        return by_named_dims(replace(ballot, voters=voters, silent=silent, stops=stops))

    def _asks_children(self, key: Key) -> bool:
        """Whether a group takes the batch of those in it: it has no voters, or a small lone one beside them.

        A minority cannot veto across levels: the frame rate, a lookup table or an empty list beside the groups with the data.
        """
        ballot = self.ballot(key)
        if not ballot.voters:
            return True
        if key not in self._asking:
            own, below = elements(ballot.voters), elements(self.voters_below(key))
            self._asking[key] = _SMALL * own < below and self._is_overruled(key)
        return self._asking[key]

    def _is_overruled(self, key: Key) -> bool:
        """Whether the groups in one speak against its own arrays: those that agree do not hold most of the numbers."""
        ballot = self.ballot(key)
        own = find_batch(ballot)
        if own.sizes and len(ballot.voters) > 1:
            return False
        children = {child: elements(self.voters_below(child)) for child in self.speaking(key)}
        agree = [
            held
            for child, held in children.items()
            if own.sizes and all(_agree(own, self._inferred(child), axis) for axis in range(len(own.sizes)))
        ]
        return 2 * sum(agree) <= sum(children.values())

    def _shared_by_children(self, key: Key) -> GroupBatch:
        """Rule 6: a group takes what all those in it share; those without voters do not count."""
        ballot = self.ballot(key)
        notes = did_not_vote(ballot.silent)
        if ballot.voters:
            few = names_of(info.key for info in ballot.voters)
            notes = [f"{few} beside the groups did not count, because the groups hold nearly all numbers", *notes]
        # groups of nothing but text are asked where no others are
        children = self.speaking(key) or [
            child for child in self.children[key] if child[-1] not in ballot.silent and self._by_itself(child).sizes
        ]
        if not children:
            return with_notes(by_shape(ballot) or no_batch("it has no numeric data arrays that vote"), notes)
        found = [self._recorded(child, None) or self._inferred(child) for child in children]
        first = found[0]
        length = 0
        while all(_agree(first, other, length) for other in found):
            length += 1
        who = f"its group {children[0][-1]!r} has" if len(children) == 1 else f"its {len(children)} groups share"
        if not length:
            what = "no batch dim" if len(children) == 1 else f"no leading dim ({self._for_example(children, found)})"
            why = [f"{group_name(children[0])!r}: {first.reason}", *first.notes] if len(children) == 1 else []
            return no_batch(f"{who} {what}", [*why, *notes])
        dims, sizes = first.dims[:length], first.sizes[:length]
        reason = f"{who} batch size {list(sizes)}: {first.reason}"
        return GroupBatch(dims, sizes, first.evidence, reason, (*first.notes, *notes))

    @staticmethod
    def _for_example(children: Sequence[Key], found: Sequence[GroupBatch]) -> str:
        sizes = {children[at][-1]: list(batch.sizes) for at, batch in reversed(list(enumerate(found)))}
        differ = [f"{name!r} has {size or 'none'}" for name, size in reversed(sizes.items())]
        return ", ".join(differ[:3]) + (" and others" if len(differ) > 3 else "")


def _side_by_side(ordered: Sequence[T], group: Key, key_of: Callable[[T], Key]) -> slice:
    """Where those in a group stand in a sequence that is sorted by keys."""
    length = len(group)
    start = bisect_left(ordered, group, key=key_of)
    return slice(start, bisect_right(ordered, group, start, key=lambda item: key_of(item)[:length]))


def _sizes_of(info: ArrayInfo, dim: str) -> list[int]:
    return [size for found, size in zip(info.dims, info.shape, strict=True) if found == dim]


def _check_one_size(ballot: Ballot, given: BatchDims) -> None:
    for name in given_names(given):
        holders = {size: voter.key for voter in ballot.voters for size in _sizes_of(voter, name)}
        if len(holders) > 1:
            told = ", ".join(f"{size} in {group_name(key[:-1])!r}" for size, key in sorted(holders.items())[:5])
            raise ValueError(
                f"batch_dims={given!r}: the groups of {ballot.where} have several sizes of {name!r} ({told}), so it is no "
                f"batch dim of all of them; open one with group=, or each with its own batch by xr.open_datatree(...) or nested=True"
            )


def _agree(one: GroupBatch, other: GroupBatch, axis: int) -> bool:
    if axis >= len(one.sizes) or axis >= len(other.sizes) or one.sizes[axis] != other.sizes[axis]:
        return False
    return one.dims[axis] is None or other.dims[axis] is None or one.dims[axis] == other.dims[axis]
