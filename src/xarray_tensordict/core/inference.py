"""Which leading dims are the batch: a pure function from a description of arrays to a decision with evidence.

No I/O, no xarray, no torch: the engine describes the arrays of a store, the accessor those of a Dataset, and both
get the same answer. This module decides group by group, each from its arrays and the groups in it (rule 6). The rules for
the arrays of a group are in :mod:`.rules` and :mod:`.choices`, who votes in :mod:`.voting`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .choices import BatchDims as BatchDims
from .choices import by_given, by_record, given_names, named_by_parent
from .model import (
    ArrayInfo,
    EntryClass,
    GroupBatch,
    Inference,
    Key,
    RecordedBatch,
    cached_property,
    elements,
    group_name,
    private_group,
)
from .rules import Ballot, by_named_dims, by_shape, find_batch, no_batch, with_notes
from .voting import EMPTY, did_not_vote, is_marked, names_of, silent_members, sparse_kind

INHERITED = "it follows the group above it"
"""The reason of a group that has the batch of the one above."""


def infer_batch(
    arrays: Iterable[ArrayInfo],
    *,
    given: BatchDims | None = None,
    each: bool = False,
    recorded: Mapping[Key, RecordedBatch] | None = None,
    group_attrs: Mapping[Key, Mapping[str, Any]] | None = None,
    beside: Iterable[ArrayInfo] = (),
    where: str = "the dataset",
    opened: Key | None = (),
) -> Inference:
    """Decide which leading dims are the batch.

    Parameters
    ----------
    arrays
        The arrays of a group and of all groups below it, in any order: the answer does not depend on it.
    given
        Passed by the caller: names of dims, or how many of the first dims.
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
    opened
        The path of the root in its store: the evidence of another group shows what to pass as ``group=``. None for a tree in
        memory, whose evidence shows ``dt[...]``.

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
    'time' is the first dim of 1 of 2 numeric data arrays ('t2m'); 'lat' is a feature dimension because of its name
    """
    ordered = tuple(arrays)
    by_name = sorted(ordered, key=lambda info: info.key)
    groups = group_arrays(by_name, group_attrs or {}, recorded or {}, where, opened)
    groups[()].beside = group_arrays(sorted(beside, key=lambda info: info.key), {}, {}, where)[()].children
    decisions = _Decisions(each)
    decisions.decide(groups[()], None, given)
    classes = {
        info.key: classify(info, decisions.batches[info.key[:-1]], sparse=groups[info.key[:-1]].sparse is not None)
        for info in ordered
    }
    return Inference(decisions.batches, classes, tuple(dict.fromkeys(decisions.warnings)))


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
    """How one array relates to the batch of its group: by names where it has them, by leading sizes where not."""
    if not batch.sizes:
        return "batched"
    if sparse:
        return "unbatched"
    names = {dim for dim in batch.dims if dim is not None}
    held = names.intersection(info.dims)
    length = len(batch.sizes)
    if len(held) == length:
        return "batched"
    leading = zip(info.dims, batch.dims, strict=False)
    fits = all(dim is None or name is None or dim == name for dim, name in leading)
    if fits and info.shape[:length] == batch.sizes:
        return "batched"
    return "partial" if held else "unbatched"


@dataclass
class _Decisions:
    """The batches of groups under way to a decision, each with the groups in it."""

    each: bool
    batches: dict[Key, GroupBatch] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def decide(
        self, group: Group, parent: GroupBatch | None, given: BatchDims | None = None, *, closed: bool = False
    ) -> None:
        """Decide a group, then the groups in it, which follow it where it has a batch.

        With `closed` a group has no batch but the one it records: the record of a group above excludes one.
        """
        record = group.record
        if given is None:
            batch = self._recorded(group, parent) or _followed(parent)
            if batch is None:
                batch = no_batch("it is recorded that the group above it has none") if closed else group.inferred
                if record is not None and record.names and record.sizes is None:
                    batch = with_notes(batch, [f"the recorded batch dims {list(record.names)} are no dims any more"])
            closed = record.names == () if record is not None and record.sizes is None else closed
        else:
            try:
                batch = self._given(group, given)
            except ValueError as error:
                if not self.each or not group.asks_children:
                    raise
                self._give_to_each(group, given, error)
                return
        self.batches[group.key] = batch
        for child in group.children:
            # a batch of no dims that was asked for holds for the groups below too
            below = 0 if given is not None and not batch.sizes else None
            self.decide(child, batch, below, closed=closed)

    def _give_to_each(self, group: Group, given: BatchDims, error: ValueError) -> None:
        """Decide the groups in one; `given` has to fit one of them, and a warning names the arrays that contradict it."""
        self.batches[group.key] = no_batch(f"batch_dims={given!r} is for the groups in it")
        names = set(given_names(given))
        fits = False
        for child in group.children:
            try:
                self.decide(child, None, given if child in group.speaking else 0)
                fits = fits or child in group.speaking
            except ValueError as contradicted:
                if not names or names & {dim for info in child.below for dim in info.dims}:
                    self.warnings.append(f"{contradicted}; the group has no batch")
                self.decide(child, None, 0)
        if not fits:
            raise error

    def _given(self, group: Group, given: BatchDims) -> GroupBatch:
        ballot = replace(group.ballot, arrays=tuple(group.below))
        if group.asks_children:
            ballot = replace(ballot, voters=tuple(group.voters_below))
            _check_one_size(ballot, given)
        found = self._recorded(group, None) or group.inferred
        batch = by_given(ballot, given, found)
        self.warnings.extend(_no_longer_batched(ballot, found, batch))
        return batch

    def _recorded(self, group: Group, parent: GroupBatch | None) -> GroupBatch | None:
        batch, warnings = group.recorded(parent)
        self.warnings.extend(warnings)
        return batch


def _followed(parent: GroupBatch | None) -> GroupBatch | None:
    if parent is None or not parent.sizes:
        return None
    return GroupBatch(parent.dims, parent.sizes, "inherited", INHERITED)


def _no_longer_batched(ballot: Ballot, found: GroupBatch, given: GroupBatch) -> list[str]:
    """A sentence for each array without names that starts with the batch that is found, and not with further given dims."""
    if not set(given.dims).intersection(found.dims):
        return []
    return [
        f"{ballot.where}: {'/'.join(info.key)!r} of shape {list(info.shape)} is unbatched with batch_dims={list(given.dims)}: its "
        f"axes have no names, and it does not start with {list(given.sizes)}; name its axes with dims="
        for info in ballot.voters
        if None in info.dims and classify(info, found) == "batched" and classify(info, given) == "unbatched"
    ]


def _check_one_size(ballot: Ballot, given: BatchDims) -> None:
    for name in given_names(given):
        holders = {size: voter.key for voter in ballot.voters for dim, size in voter.axes if dim == name}
        if len(holders) > 1:
            sizes_text = ", ".join(f"{size} in {group_name(key[:-1])!r}" for size, key in sorted(holders.items())[:5])
            raise ValueError(
                f"batch_dims={given!r}: the groups of {ballot.where} have several sizes of {name!r} ({sizes_text}), so it is no "
                f"batch dim of all of them; open one with group=, or each with its own batch by xr.open_datatree(...) or nested=True"
            )


_SMALL = 10
"""What holds less than one of so many numbers decides nothing for the groups beside it."""


@dataclass(eq=False)
class Group:
    """One group: its arrays, the groups in it and beside it, its attributes and what it records."""

    key: Key
    parent: Group | None
    where: str
    attrs: Mapping[str, Any]
    record: RecordedBatch | None
    opened: Key | None
    own: list[ArrayInfo] = field(default_factory=list)
    children: list[Group] = field(default_factory=list)
    beside: Sequence[Group] = ()

    # -- who votes -----------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.key[-1]

    @cached_property
    def private(self) -> str | None:
        """What it is, where the format keeps it, or a group above it, for itself."""
        if self.parent is None:
            return None
        return self.parent.private or private_group(self.name, self.attrs)

    @cached_property
    def sparse(self) -> str | None:
        """What it is, where it holds a sparse matrix."""
        return sparse_kind((info.key[-1] for info in self.own), self.attrs)

    @cached_property
    def ballot(self) -> Ballot:
        """What its own arrays put to the vote."""
        if self.private or self.sparse:
            why = f"they are in {self.private}" if self.private else f"they are parts of {self.sparse}"
            silent = dict.fromkeys(
                [*(info.key[-1] for info in self.own), *(child.name for child in self.children)], why
            )
        else:
            leading = {child.name: {info.shape[0] for info in child.own if info.shape} for child in self.children}
            silent = silent_members(self.own, self.attrs, leading)
            silent |= {
                child.name: f"it is {what}" for child in self.children if (what := child.private or child.sparse)
            }
        voters = tuple(info for info in self.own if info.key[-1] not in silent)
        where = f"{self.where}, group {group_name(self.key)!r}" if self.key else self.where
        return Ballot(voters, silent, tuple(self.own), self.above, where, self.key, self.opened)

    @cached_property
    def above(self) -> tuple[ArrayInfo, ...]:
        """The named arrays of the groups above it."""
        if self.parent is None:
            return ()
        return (*(info for info in self.parent.own if any(info.dims)), *self.parent.above)

    @cached_property
    def speaking(self) -> list[Group]:
        """The groups in it that speak for it: those in which arrays vote."""
        return [child for child in self.children if child.name not in self.ballot.silent and child.voters_below]

    @cached_property
    def voters_below(self) -> list[ArrayInfo]:
        """Its voters and those of the groups in it that speak."""
        return [*self.ballot.voters, *(voter for child in self.speaking for voter in child.voters_below)]

    @cached_property
    def numbers(self) -> int:
        """How many numbers those hold."""
        return elements(self.ballot.voters) + sum(child.numbers for child in self.speaking)

    @cached_property
    def below(self) -> list[ArrayInfo]:
        """All arrays in it and in the groups in it."""
        return [*self.own, *(info for child in self.children for info in child.below)]

    # -- its batch -----------------------------------------------------------------------------------------------------

    def recorded(self, parent: GroupBatch | None) -> tuple[GroupBatch | None, list[str]]:
        """Rule 2: the batch that it records, None where the record does not apply; with warnings."""
        if self.record is None:
            return None, []
        record = named_by_parent(self.record, parent)
        ballot = self.ballot
        if not ballot.voters or record.sizes is None:
            ballot = replace(ballot, arrays=tuple(self.below))
        batch, warnings = by_record(ballot, record, lambda: self.inferred)
        if batch is None or parent is None:
            return batch, warnings
        if batch.sizes[: len(parent.sizes)] != parent.sizes:
            return None, []
        pairs = [(own, above) for own, above in zip(batch.dims, parent.dims, strict=False) if own and above]
        if any(own != above and not is_marked(own) and not is_marked(above) for own, above in pairs):
            warnings.append(
                f"{ballot.where}: the recorded names of its batch dims, {list(batch.dims)}, contradict those of the group above it, "
                f"{list(parent.dims)}, which hold. Write the store again or annotate it to make the record true"
            )
            further = (None if name in parent.dims else name for name in batch.dims[len(parent.dims) :])
            batch = replace(batch, dims=(*parent.dims, *further))
        return batch, warnings

    @cached_property
    def by_itself(self) -> GroupBatch:
        """The recorded batch, else the inferred one, regardless of the group above it."""
        return self.recorded(None)[0] or self.inferred

    @cached_property
    def inferred(self) -> GroupBatch:
        """What it has by itself; where a group beside it has more of the same dims, so much of them (rule 5)."""
        batch = self.alone
        starting = [info for info in self.ballot.voters if batch.sizes and info.dims[0] == batch.dims[0]]
        if len(batch.dims) == 1 and None not in batch.dims and starting:
            siblings = self.parent.longer_batches if self.parent else _longer_batches(self.beside)
            for more, sibling in siblings.get(batch.dims[0], {}).items():
                if all(info.dims[: len(more)] == more for info in starting):
                    reason = f"all arrays start with {list(more)}, the batch dims of the group {sibling!r} beside it"
                    return replace(batch, dims=more, sizes=starting[0].shape[: len(more)], reason=reason)
        return batch

    @cached_property
    def longer_batches(self) -> dict[str | None, dict[tuple[str | None, ...], str]]:
        """The batches of several named dims that groups in it have by themselves."""
        return _longer_batches(self.children)

    @cached_property
    def alone(self) -> GroupBatch:
        """Its batch regardless of the groups beside it."""
        what = self.private or self.sparse
        if what:
            return no_batch(f"it is {what}", did_not_vote(self.ballot.silent, self.key))
        if self.asks_children:
            return self._of_children
        return self.of_its_own if self.of_its_own.sizes else self._of_empty() or self.of_its_own

    @cached_property
    def of_its_own(self) -> GroupBatch:
        """The batch of its own arrays."""
        return find_batch(self.ballot)

    def _of_empty(self) -> GroupBatch | None:
        """A selection of no rows leaves a mask without the batch as the only one with elements: the names decide then."""
        if EMPTY not in self.ballot.silent.values():
            return None
        voters = tuple(info for info in self.own if self.ballot.silent.get(info.key[-1], EMPTY) == EMPTY)
        return by_named_dims(replace(self.ballot, voters=voters))

    @cached_property
    def asks_children(self) -> bool:
        """Whether it takes the batch of the groups in it: it has no voters, or small ones beside them.

        A minority cannot veto across levels: the frame rate, camera matrices or an empty list beside the groups with the data.
        """
        voters = self.ballot.voters
        if not voters or _SMALL * elements(voters) >= self.numbers:
            return not voters
        own = self.of_its_own
        if own.sizes and len(voters) > 1 and not self._of_children.sizes:
            return False  # they agree, and nothing speaks against them
        agree = [each for each in self.speaking if own.sizes and _shared([own, each.inferred]) == len(own.sizes)]
        return 2 * sum(each.numbers for each in agree) <= self.numbers - elements(voters)

    @cached_property
    def _of_children(self) -> GroupBatch:
        """Rule 6: it takes what all groups in it share; those without voters do not count."""
        notes = did_not_vote(self.ballot.silent, self.key)
        if self.ballot.voters:
            own = names_of(info.key for info in self.ballot.voters)
            notes = [f"{own} beside the groups did not count, because the groups hold nearly all numbers", *notes]
        # groups of nothing but text are asked where no others are
        silent = self.ballot.silent
        children = self.speaking or [each for each in self.children if each.name not in silent and each.alone.sizes]
        if not children:
            return with_notes(by_shape(self.ballot) or no_batch("it has no numeric data arrays that vote"), notes)
        main = _without_few(children)
        if len(main) < len(children) and _shared([child.by_itself for child in main]):
            few = names_of(child.key for child in children if child not in main)
            notes = [f"{few} did not count, because other groups hold nearly all numbers", *notes]
            children = main
        found = [child.by_itself for child in children]
        first, length = found[0], _shared(found)
        one = len(children) == 1
        who = f"its group {children[0].name!r} has" if one else f"its {len(children)} groups share"
        if length:
            dims, sizes = first.dims[:length], first.sizes[:length]
            reason = f"{who} batch size {list(sizes)}: {first.reason}"
            return GroupBatch(dims, sizes, first.evidence, reason, (*first.notes, *notes))
        if one:
            why = [f"{group_name(children[0].key)!r}: {first.reason}", *first.notes, *notes]
            return no_batch(f"{who} no batch dim", why)
        differ = {
            (batch.dims, batch.sizes): child.name for child, batch in zip(children[::-1], found[::-1], strict=True)
        }
        examples = [f"{name!r} has {list(sizes) or 'none'}" for (_, sizes), name in reversed(differ.items())]
        others = " and others" if len(examples) > 3 else ""
        return no_batch(f"{who} no leading dim ({', '.join(examples[:3])}{others})", notes)


def group_arrays(
    arrays: Iterable[ArrayInfo],
    attrs: Mapping[Key, Mapping[str, Any]],
    recorded: Mapping[Key, RecordedBatch],
    where: str,
    opened: Key | None = (),
) -> dict[Key, Group]:
    """Sort arrays into their groups; those above one that has arrays or records a batch are there too."""
    arrays = list(arrays)
    keys = {info.key[:-1] for info in arrays} | set(recorded) | {()}
    groups: dict[Key, Group] = {}
    for key in sorted({each[:length] for each in keys for length in range(len(each) + 1)}):
        parent = groups[key[:-1]] if key else None
        groups[key] = Group(key, parent, where, attrs.get(key, {}), recorded.get(key), opened)
        if parent is not None:
            parent.children.append(groups[key])
    for info in arrays:
        groups[info.key[:-1]].own.append(info)
    return groups


def _without_few(groups: Sequence[Group]) -> list[Group]:
    """Leave out small groups whose arrays do not all start with one batch: the axes of a grid, constants."""
    total = sum(group.numbers for group in groups)
    main = []
    for group in groups:
        first = group.by_itself.sizes[:1]
        agree = first and all(info.shape[:1] == first for info in group.ballot.voters)
        if agree or _SMALL * group.numbers >= total:
            main.append(group)
    return main


def _longer_batches(groups: Iterable[Group]) -> dict[str | None, dict[tuple[str | None, ...], str]]:
    """By their first dim, the batches of several named dims that groups have by themselves, the longest first, each with a group."""
    found: dict[tuple[str | None, ...], str] = {}
    for group in groups:
        if len(group.alone.dims) > 1 and None not in group.alone.dims:
            found.setdefault(group.alone.dims, group.name)
    by_first: dict[str | None, dict[tuple[str | None, ...], str]] = {}
    for dims in sorted(found, reverse=True):  # of two that start alike, the longer comes first
        by_first.setdefault(dims[0], {})[dims] = found[dims]
    return by_first


def _shared(batches: Sequence[GroupBatch]) -> int:
    """How many leading dims batches share: equal sizes, and equal names where both have one."""
    first, *others = batches
    length = 0
    for axis, size in enumerate(first.sizes):
        for other in others:
            if axis >= len(other.sizes) or other.sizes[axis] != size:
                return length
            if None not in (first.dims[axis], other.dims[axis]) and first.dims[axis] != other.dims[axis]:
                return length
        length += 1
    return length
