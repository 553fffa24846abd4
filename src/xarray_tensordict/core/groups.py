"""The batch of each group by itself (rule 6), from its arrays and the groups in it. Pure, like all of the inference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .choices import by_record, named_by_parent
from .model import ArrayInfo, GroupBatch, Key, RecordedBatch, cached_property, elements, group_name, private_group
from .rules import Ballot, by_named_dims, by_shape, find_batch, no_batch, with_notes
from .voting import EMPTY, did_not_vote, is_marked, names_of, silent_members, sparse_kind

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
