"""Which leading dims are the batch: a pure function from a description of arrays to a decision with evidence.

No I/O, no xarray, no torch: the engine describes the arrays of a store, the accessor those of a Dataset, and both
get the same answer. The rules for one group are in :mod:`.rules`; this module walks the tree of groups.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, TypeVar

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
)
from .rules import Ballot, by_given, by_named_dims, by_record, by_shape, no_batch
from .voting import feature_dims, sparse_kind, voters_of

__all__ = ["ArrayInfo", "EntryClass", "EvidenceKind", "GroupBatch", "Inference", "Kind", "Role", "infer_batch"]

BatchDims = str | Sequence[str] | int

T = TypeVar("T")


def infer_batch(
    arrays: Iterable[ArrayInfo],
    *,
    given: BatchDims | None = None,
    each: bool = False,
    recorded: Mapping[Key, RecordedBatch] | None = None,
    group_attrs: Mapping[Key, Mapping[str, Any]] | None = None,
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
    'time' leads 1 of 2 numeric data arrays ('t2m'); 'lat' is features or space by its name
    """
    ordered = tuple(arrays)
    tree = _Tree(sorted(ordered, key=lambda info: info.key), dict(group_attrs or {}), dict(recorded or {}), where, each)
    tree.decide((), None, given)
    classes = {
        info.key: classify(info, tree.batches[info.key[:-1]], sparse=tree.sparse(info.key[:-1]) is not None)
        for info in ordered
    }
    return Inference(tree.batches, classes, tuple(dict.fromkeys(tree.warnings)))


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
    batches: dict[Key, GroupBatch] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.own: dict[Key, list[ArrayInfo]] = {}
        self._ballots: dict[Key, Ballot] = {}
        self._inferences: dict[Key, GroupBatch] = {}
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

    def sparse(self, key: Key) -> str | None:
        if key not in self._sparse:  # every array of the group asks
            names = (info.key[-1] for info in self.own.get(key, ()))
            self._sparse[key] = sparse_kind(names, self.attrs.get(key, {}))
        return self._sparse[key]

    def below(self, key: Key) -> list[ArrayInfo]:
        """The arrays in a group and in those below it, which stand side by side."""
        return self.arrays[_side_by_side(self.arrays, key, lambda info: info.key)]

    def voters_below(self, key: Key) -> list[ArrayInfo]:
        groups = self.groups[_side_by_side(self.groups, key, lambda group: group)]
        return [voter for group in groups for voter in self.ballot(group).voters]

    def ballot(self, key: Key) -> Ballot:
        if key not in self._ballots:
            self._ballots[key] = self._new_ballot(key)
        return self._ballots[key]

    def _new_ballot(self, key: Key) -> Ballot:
        own = self.own.get(key, [])
        reach = [info for length in range(len(key), -1, -1) for info in self.own.get(key[:length], ())]
        voters = voters_of(own, sparse=self.sparse(key) is not None, group_attrs=self.attrs.get(key, {}))
        where = self.where if not key else f"{self.where}, group {group_name(key)!r}"
        return Ballot(tuple(voters), tuple(own), tuple(reach), feature_dims(reach, voters), where)

    def decide(
        self, key: Key, parent: GroupBatch | None, given: BatchDims | None = None, *, closed: bool = False
    ) -> None:
        """Decide a group, then the groups in it, which follow it where it has a batch.

        With `closed` a group has no batch but the one it records: the record of a group above says that it has none.
        """
        if given is None:
            batch = self._recorded(key, parent) or self._followed(parent)
            if batch is None:
                batch = no_batch("it is recorded that the group above it has none") if closed else self._inferred(key)
            record = self.recorded.get(key)
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

    def _is_for_each(self, key: Key, given: BatchDims) -> bool:
        """Whether a group leaves `given` to those in it: it has no voters, and theirs share no batch of that kind."""
        voters = self.voters_below(key)
        if self.ballot(key).voters or not voters or given == 0:
            return False
        names = _as_names(given)
        if set(names) & {dim for voter in voters for dim in voter.dims}:
            return any(len({size for voter in voters for size in _sizes_of(voter, name)}) > 1 for name in names)
        count = int(given) if isinstance(given, Integral) else len(names)
        return len({voter.shape[:count] for voter in voters}) > 1

    def _give_to_each(self, key: Key, given: BatchDims) -> None:
        """Decide the groups in one; `given` has to fit one of them, and arrays that contradict it are told."""
        errors: list[str] = []
        names = set(_as_names(given))
        children = [child for child in self.children[key] if self._has_voters(child)]
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
        below = self.below(key)
        if not ballot.voters:
            ballot = Ballot(
                tuple(self.voters_below(key)), tuple(below), tuple(below), ballot.stops, ballot.where, spans_groups=True
            )
            _check_one_size(ballot, given)
        elif not isinstance(given, Integral):
            ballot = Ballot(ballot.voters, tuple(below), ballot.reach, ballot.stops, ballot.where)
        return by_given(ballot, given)

    def _recorded(self, key: Key, parent: GroupBatch | None) -> GroupBatch | None:
        record = self.recorded.get(key)
        if record is None:
            return None
        record = _named_by_parent(record, parent)
        ballot = self.ballot(key)
        if not ballot.voters or record.sizes is None:
            ballot = Ballot(ballot.voters, tuple(self.below(key)), ballot.reach, ballot.stops, ballot.where)
        batch, warnings = by_record(ballot, record)
        if batch is not None and parent is not None and batch.sizes[: len(parent.sizes)] != parent.sizes:
            return None
        self.warnings.extend(warnings)
        return batch

    @staticmethod
    def _followed(parent: GroupBatch | None) -> GroupBatch | None:
        if parent is None or not parent.sizes:
            return None
        return GroupBatch(parent.dims, parent.sizes, "inherited", "it follows the group above it")

    def _inferred(self, key: Key) -> GroupBatch:
        # a parent without voters asks its children before they are decided: ask each once
        if key not in self._inferences:
            self._inferences[key] = self._infer(key)
        return self._inferences[key]

    def _infer(self, key: Key) -> GroupBatch:
        sparse = self.sparse(key)
        if sparse is not None:
            return no_batch(f"it is a {sparse}")
        ballot = self.ballot(key)
        if ballot.voters:
            batch = by_named_dims(ballot) or by_shape(ballot) or no_batch("the arrays share no leading size")
            batch = batch if batch.sizes else self._of_empty(key) or batch
        else:
            batch = self._shared_by_children(key)
        noted = [f"{child[-1]!r} is a {kind}" for child in self.children[key] if (kind := self.sparse(child))]
        if noted:
            batch = GroupBatch(batch.dims, batch.sizes, batch.evidence, f"{batch.reason}; {', '.join(noted)}")
        return batch

    def _of_empty(self, key: Key) -> GroupBatch | None:
        """A selection of no rows leaves a mask without the batch as the only one with elements: the names decide then."""
        ballot = self.ballot(key)
        voters = voters_of(ballot.arrays, sparse=False, group_attrs=self.attrs.get(key, {}), empty=True)
        if len(voters) == len(ballot.voters):
            return None
        return by_named_dims(replace(ballot, voters=tuple(voters), stops=feature_dims(ballot.reach, voters)))

    def _shared_by_children(self, key: Key) -> GroupBatch:
        """Rule 6: a group without voters takes what all its children share; children without voters do not count."""
        children = [child for child in self.children[key] if self._has_voters(child)]
        if not children:
            return no_batch("it has no numeric data arrays of its own")
        found = [self._recorded(child, None) or self._inferred(child) for child in children]
        first = found[0]
        length = 0
        while all(_agree(first, other, length) for other in found):
            length += 1
        if not length:
            lack = f"its group {children[0][-1]!r} has" if len(children) == 1 else f"its {len(children)} groups share"
            return no_batch(f"{lack} no batch dim" if len(children) == 1 else f"{lack} no leading dim")
        who = f"its group {children[0][-1]!r} has" if len(children) == 1 else f"its {len(children)} groups share"
        what = f"batch size {list(first.sizes[:length])}"
        return GroupBatch(first.dims[:length], first.sizes[:length], first.evidence, f"{who} {what}: {first.reason}")

    def _has_voters(self, key: Key) -> bool:
        return bool(self.ballot(key).voters) or any(self._has_voters(child) for child in self.children[key])


def _side_by_side(ordered: Sequence[T], group: Key, key_of: Callable[[T], Key]) -> slice:
    """Where those in a group stand in a sequence that is sorted by keys."""
    length = len(group)
    start = bisect_left(ordered, group, key=key_of)
    return slice(start, bisect_right(ordered, group, start, key=lambda item: key_of(item)[:length]))


def _as_names(given: Any) -> tuple[Any, ...]:
    return (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else ()


def _sizes_of(info: ArrayInfo, dim: str) -> list[int]:
    return [size for found, size in zip(info.dims, info.shape, strict=True) if found == dim]


def _check_one_size(ballot: Ballot, given: BatchDims) -> None:
    for name in _as_names(given):
        holders = {size: voter.key for voter in ballot.voters for size in _sizes_of(voter, name)}
        if len(holders) > 1:
            told = ", ".join(f"{size} in {group_name(key[:-1])!r}" for size, key in sorted(holders.items())[:5])
            raise ValueError(
                f"batch_dims={given!r}: the groups of {ballot.where} have several sizes of {name!r} ({told}), so it is no "
                f"batch dim of all of them; open one with group=, or each with its own batch by xr.open_datatree(...) or nested=True"
            )


def _named_by_parent(record: RecordedBatch, parent: GroupBatch | None) -> RecordedBatch:
    """The record with the names of the group above for the axes it shares: another dim may have the same size."""
    if parent is None or record.sizes is None or record.sizes[: len(parent.sizes)] != parent.sizes:
        return record
    own = record.names or (None,) * len(record.sizes)
    above = (*parent.dims, *(None,) * len(own))
    return replace(record, names=tuple(name or other for name, other in zip(own, above, strict=False)))


def _agree(one: GroupBatch, other: GroupBatch, axis: int) -> bool:
    if axis >= len(one.sizes) or axis >= len(other.sizes) or one.sizes[axis] != other.sizes[axis]:
        return False
    return one.dims[axis] is None or other.dims[axis] is None or one.dims[axis] == other.dims[axis]
