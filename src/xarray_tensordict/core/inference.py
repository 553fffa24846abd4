"""Which leading dims are the batch: a pure function from a description of arrays to a decision with evidence.

No I/O, no xarray, no torch: the engine describes the arrays of a store, the accessor those of a Dataset, and both
get the same answer. This module decides group by group. The batch of a group by itself is in :mod:`.groups`, the rules for its
arrays are in :mod:`.rules` and :mod:`.choices`, who votes in :mod:`.voting`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .choices import BatchDims as BatchDims
from .choices import by_given, given_names
from .groups import Group, group_arrays
from .model import ArrayInfo, EntryClass, GroupBatch, Inference, Key, RecordedBatch, group_name
from .rules import Ballot, no_batch, with_notes

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
