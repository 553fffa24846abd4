"""Rules 1 and 2: the batch that the caller gives, and the one that a store or a Dataset records."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

from .model import ArrayInfo, GroupBatch, RecordedBatch
from .naming import there_are
from .rules import Ballot, by_shape, names_at, no_batch
from .voting import Dims, is_made_up, is_marked

BatchDims = str | Sequence[str] | int


# -- rule 1: given -----------------------------------------------------------------------------------------------------


def given_names(given: Any) -> tuple[Any, ...]:
    """The names in what the caller gave; ``()`` for a count."""
    return (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else ()


def by_given(ballot: Ballot, given: Any, found: GroupBatch) -> GroupBatch:
    """Rule 1: the names or the count that the caller passes, checked against the arrays.

    Parameters
    ----------
    found
        The batch without `given`. It can always be given: by count, or by names where its axes have none.
    """
    if isinstance(given, bool) or not isinstance(given, (Integral, Iterable)):
        raise TypeError(f"batch_dims: expected a name, a list of names or a count, got {given!r}")
    if isinstance(given, Integral):
        return _by_count(ballot, int(given), found)
    return _by_given_names(ballot, given_names(given), found)


def _by_given_names(ballot: Ballot, names: tuple[Any, ...], found: GroupBatch) -> GroupBatch:
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"batch_dims: expected names of dims, got {name!r} of type {type(name).__name__}")
    if len(set(names)) < len(names):
        raise ValueError(f"batch_dims={list(names)}: a dim can be a batch dim only once")
    sizes = ballot.sizes
    reason = f"batch_dims={list(names)} was given"
    unknown = [name for name in names if name not in sizes]
    if not unknown:
        _check_not_repeated(ballot.voters, names, "leave it out of batch_dims")
        return GroupBatch(names, tuple(sizes[name] for name in names), "given", reason)
    made_up = [name for name in unknown if is_made_up(name, 0) or is_marked(name)]
    if made_up:
        raise ValueError(
            f"batch_dims={list(names)}: {made_up[0]!r} is a name that this package makes up for an axis without one, and "
            f"{ballot.where} does not record it. Open the store without batch_dims, then choose by the names it shows: "
            f"ds.td.set_batch_dims({list(names)})"
        )
    leading = [found.dims, *(info.dims for info in _starting_with(ballot.voters, found))]
    pairs = [(name, dim) for dims in leading for name, dim in zip(names, dims, strict=False)]
    new = {name for name, dim in pairs if dim is None}
    if new == set(unknown) and all(dim in (None, name) for name, dim in pairs):
        batch = _by_count(ballot, len(names), found, asked=list(names))
        return GroupBatch(names, batch.sizes, "given", f"{reason}, as names for the leading axes")
    raise ValueError(
        f"batch_dims={list(names)}: {ballot.where} has no dim {unknown[0]!r}; "
        f"{there_are(unknown[0], sizes, 'the dims there are')}"
    )


def _by_count(ballot: Ballot, count: int, found: GroupBatch, asked: object = None) -> GroupBatch:
    """The batch of the first axes; `asked` is what was passed, where it was names for them."""
    asked = count if asked is None else asked
    if count < 0:
        raise ValueError(f"batch_dims={count}: expected a count of leading dims, 0 or more")
    reason = f"batch_dims={count} was given"
    if count <= len(found.sizes):
        return GroupBatch(found.dims[:count], found.sizes[:count], "given", reason)
    voters = _starting_with(ballot.voters, found)
    if not voters:
        raise ValueError(
            f"batch_dims={asked}: {ballot.where} has no numeric array that could start with {count} batch dims"
        )
    # the longest array, the first by name of several
    reference = min(voters, key=lambda info: (-len(info.shape), info.key))
    dims, sizes = reference.dims[:count], reference.shape[:count]
    _check_not_repeated([reference], [dim for dim in dims if dim is not None], "give a smaller count")
    wrong = [info for info in voters if info.shape[:count] != sizes]
    if wrong or len(sizes) < count:
        raise ValueError(
            f"batch_dims={asked}: the arrays of {ballot.where} do not share their first {count} axes: "
            + ", ".join(f"{'/'.join(info.key)!r} has shape {list(info.shape)}" for info in [reference, *wrong[:5]])
            + f"; {'give a smaller count' if isinstance(asked, int) else 'open one group with group='}, or leave out the others with "
            "drop_variables=[...]"
        )
    return GroupBatch(names_at(voters, count), sizes, "given", reason)


def _check_not_repeated(arrays: Iterable[ArrayInfo], names: Iterable[str], advice: str) -> None:
    for info in arrays:
        for name in names:
            if info.dims.count(name) > 1:
                raise ValueError(
                    f"batch_dims: {'/'.join(info.key)!r} has the dim {name!r} more than once (dims {list(info.dims)}), so it "
                    f"cannot be a batch dim; {advice}"
                )


def _starting_with(voters: Sequence[ArrayInfo], found: GroupBatch) -> list[ArrayInfo]:
    """The arrays that start with the first dim of a batch, by name where both have one, else by size; all without a batch."""
    if not found.sizes:
        return list(voters)
    dim, size = found.dims[0], found.sizes[0]
    return [info for info in voters if (info.dims[0] == dim if dim and info.dims[0] else info.shape[0] == size)]


# -- rule 2: recorded --------------------------------------------------------------------------------------------------


def by_record(
    ballot: Ballot, record: RecordedBatch, infer: Callable[[], GroupBatch]
) -> tuple[GroupBatch | None, list[str]]:
    """Rule 2: what the store records, corrected where the arrays contradict it.

    Parameters
    ----------
    infer
        Gives the batch without the record.

    Returns
    -------
    batch
        None where the record no longer applies.
    warnings
        One sentence for each correction.
    """
    if record.sizes is None:
        return _by_recorded_names(ballot, record, infer)
    length = len(record.sizes)
    names: Dims = (tuple(record.names or ()) + (None,) * length)[:length]
    dims = tuple(name or seen_dim for name, seen_dim in zip(names, _dims_of_size(ballot, record.sizes), strict=True))
    named: dict[str | None, int] = {dim: size for dim, size in zip(dims, record.sizes, strict=True) if dim is not None}
    some_fit = any(info.shape[:length] == record.sizes for info in ballot.arrays)
    wrong = [
        info
        for info in ballot.voters
        if info.shape[:length] != record.sizes
        and (
            info.dims[0] is None
            or not (named or some_fit)
            or any(named.get(dim, size) != size for dim, size in info.axes)
        )
    ]
    if wrong and not some_fit:
        return _corrected(wrong[0], ballot, record, dims)
    record_text = f"batch size {list(record.sizes)}" + (f" with names {list(names)}" if any(names) else "")
    return GroupBatch(dims, record.sizes, "recorded", f"the store records {record_text}"), [
        f"{ballot.where}: {'/'.join(info.key)!r} of shape {list(info.shape)} does not start with the recorded batch size "
        f"{list(record.sizes)}, so it is unbatched; if it is being written, open it again when it is whole, else write it "
        f"again, or correct the record"
        for info in wrong
    ]


def _dims_of_size(ballot: Ballot, sizes: tuple[int, ...]) -> Dims:
    of_this_size = [info for info in ballot.arrays if info.shape[: len(sizes)] == sizes]
    # a batch dim without a recorded name is one that the engine has named: another dim may have the same size
    marked = [info for info in of_this_size if any(is_marked(dim) for dim in info.dims[: len(sizes)])]
    return names_at(marked or of_this_size, len(sizes))


def _corrected(
    wrong: ArrayInfo, ballot: Ballot, record: RecordedBatch, dims: Dims
) -> tuple[GroupBatch | None, list[str]]:
    recorded = list(record.sizes or ())
    found = by_shape(ballot, at_most=len(recorded)) or no_batch("")
    sizes = list(found.sizes)
    warning = (
        f"{ballot.where}: the recorded batch size {recorded} does not fit {'/'.join(wrong.key)!r} of shape "
        f"{list(wrong.shape)}; the batch size is taken from the arrays, {sizes}. Write the store again or "
        f"annotate it to make the record true"
    )
    names = tuple(dim or name for dim, name in zip(found.dims, dims, strict=False))
    reason = f"the store records batch size {recorded}, which the arrays contradict: they start with {sizes}"
    return GroupBatch(names, found.sizes, "recorded", reason), [warning]


# -- rule 2: names that were recorded in memory ------------------------------------------------------------------------


def _by_recorded_names(
    ballot: Ballot, record: RecordedBatch, infer: Callable[[], GroupBatch]
) -> tuple[GroupBatch | None, list[str]]:
    """Renamed dims are followed, reduced ones dropped; dims that are now in front are added in front."""
    names = [name for name in record.names or () if name is not None]
    sizes = ballot.sizes
    then = record.in_front.union(names, *record.axes.values())
    # a scalar of the name of a dim is what a selection leaves of it
    gone = then - sizes.keys() - {info.key[-1] for info in ballot.arrays if not info.shape}
    followed, unclear = _followed(gone, then, record, ballot)
    now = {dim: dim for dim in then if dim in sizes} | followed | _exchanged(record, ballot)
    lost = [name for name in names if name not in now]
    kept = tuple(dict.fromkeys(now[name] for name in names if name in now))
    if lost and not record.axes and (not kept or _holds_in_order((found := infer()).dims, kept)):
        return found if kept else None, []  # what was chosen is what is found anyhow, and so it is now
    new = set(sizes) - set(now.values())
    renamed = [name for name in lost if name in unclear]
    warnings: list[str] = []
    if renamed:
        left = f"the batch dims are now {list(kept)}" if kept else "the batch is inferred again"
        warnings.append(
            f"{ballot.where}: the chosen batch dims {renamed} are no dims any more; {left}. If they were renamed, choose again "
            f"with ds.td.set_batch_dims(...)"
        )
    if names and not kept:
        return None, warnings
    holders = [info for info in ballot.voters if set(kept) & set(info.dims)]
    known = record.axes.keys() & ballot.by_path.keys()
    # a new dim in front may be one that was renamed and has another size now, or that of coefficients, as of polyfit
    front = () if renamed or (gone.intersection(lost) and not known) else _dims_in_front(holders, kept, new, ballot)
    dims = front + kept
    reason = f"batch dims {names} are recorded in attrs['tensordict_batch_dims']"
    renames = [f"{name!r} is now {now[name]!r}" for name in names if now.get(name, name) != name]
    if renames:
        reason += f"; {', '.join(renames)}"
    if lost:
        reason += f"; of them {lost} are no dims any more"
    if front:
        reason += f"; {list(front)} are now in front of them"
    return GroupBatch(dims, tuple(sizes[dim] for dim in dims), "recorded", reason), warnings


def _holds_in_order(dims: Sequence[str | None], some: Sequence[str]) -> bool:
    rest = iter(dims)
    return all(dim in rest for dim in some)


def _followed(
    gone: frozenset[str], then: frozenset[str], record: RecordedBatch, ballot: Ballot
) -> tuple[dict[str, str], frozenset[str]]:
    """What the missing dims of the record are called now, and those that may or may not have been renamed.

    ``swap_dims``, ``rename_dims`` and ``stack`` leave a coordinate of the old name over the new dim. After ``rename`` a variable
    has another dim of the same size in the place of the old one; after a reduction it has none there.
    """
    found = {info.key[-1]: str(info.dims[0]) for info in ballot.arrays if len(info.dims) == 1 and info.key[-1] in gone}
    new = {dim: size for dim, size in ballot.sizes.items() if dim not in then}
    unclear = set(gone) if new and not record.axes else set()
    for variable, axes in record.axes.items():
        info = ballot.by_path.get(variable)
        before = [dim for dim in axes if dim in ballot.sizes or dim in gone]
        stacked = [dim for dim in axes if dim in gone]
        size = math.prod(record.lengths.get(dim, 0) for dim in stacked)
        into = [] if info is None else [str(dim) for dim, found_size in info.axes if dim in new and found_size == size]
        if len(into) == 1 < len(stacked) and {*stacked} <= {
            *(record.names or ())
        }:  # without an index, all of them chosen
            found = dict.fromkeys(stacked, into[0]) | found
        if info is not None and len(info.dims) == len(before):
            pairs = [(old, dim, size) for old, (dim, size) in zip(before, info.axes, strict=True) if old != dim]
            if all(old in gone and dim in new and record.lengths.get(old, size) == size for old, dim, size in pairs):
                found = {old: str(dim) for old, dim, _ in pairs} | found
        # a dim of another size than the one it is found for has several in it
        others = new.keys() - {
            dim for old, dim in found.items() if record.lengths.get(old, new.get(dim)) == new.get(dim)
        }
        for old in before:
            # without the variable, only the size of a new dim shows that it may be the old one
            if any(
                record.lengths.get(old, new[dim]) == new[dim] if info is None else dim in info.dims for dim in others
            ):
                unclear.add(old)
    return found, gone & unclear - found.keys()


def _exchanged(record: RecordedBatch, ballot: Ballot) -> dict[str, str]:
    """What dims are called now whose names were exchanged: that leaves the sizes in their places, a transposition moves them."""
    for variable, before in record.axes.items():
        info = ballot.by_path.get(variable)
        if info is not None and sorted(map(str, info.dims)) == sorted(before):
            moved = [(old, str(dim), size) for old, (dim, size) in zip(before, info.axes, strict=True) if old != dim]
            lengths = record.lengths
            if moved and all(lengths.get(old) == size != lengths.get(dim) for old, dim, size in moved):
                return {old: dim for old, dim, _ in moved}
    return {}


def _dims_in_front(
    holders: Sequence[ArrayInfo], kept: tuple[str, ...], new: Collection[str | None], ballot: Ballot
) -> tuple[str, ...]:
    fronts = set()
    for info in holders:
        first = min(info.dims.index(dim) for dim in kept if dim in info.dims)
        fronts.add(tuple(dim for dim in info.dims[:first] if dim in new))
    if len(fronts) != 1:
        return ()
    front = tuple(str(dim) for dim in fronts.pop())
    return () if any(dim in ballot.stops for dim in front) else front


def named_by_parent(record: RecordedBatch, parent: GroupBatch | None) -> RecordedBatch:
    """The record with the names of the group above for the axes it shares: another dim may have the same size."""
    if parent is None or record.sizes is None or record.sizes[: len(parent.sizes)] != parent.sizes:
        return record
    own = record.names or (None,) * len(record.sizes)
    above = (*parent.dims, *(None,) * len(own))
    return replace(record, names=tuple(name or other for name, other in zip(own, above, strict=False)))
