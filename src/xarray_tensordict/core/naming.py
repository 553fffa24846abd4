"""A name for every axis, and messages about names that do not exist: pure functions.

The order is: what the caller passes, what the store records, the batch names, ``batch_0``, then ``dim_<size>``. Names
depend on no neighbour, no order of access and no group, so that ``obs`` and ``next/obs`` line up.

Names and attributes of a store may hold sequences that control a terminal, so all code that prints them calls
:func:`printable`. HTML is escaped besides.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import EllipsisType
from typing import Any

from .model import ArrayInfo, GroupBatch, Inference, Key, group_name
from .voting import is_marked

Dims = tuple[str, ...]
DimsArgument = Mapping[str | Key, Sequence[str | EllipsisType]]


def given_dims(
    argument: DimsArgument | None,
    key: Key,
    recorded: Sequence[str | None],
    shape: Sequence[int],
    *,
    batch: Sequence[str | None] | None = None,
) -> tuple[str | None, ...]:
    """Apply the caller's ``dims=`` to one array.

    Parameters
    ----------
    argument
        Key or glob to names: all of the array, or only of its last axes (the length decides). ``...`` stands for
        the axes that are not named; names in front of it are those of the first axes behind the batch, unless the
        first is the name of the batch itself.
    key
        The path of the array.
    recorded
        The names in the store, kept where the caller passes none.
    shape
        The shape of the array.
    batch
        The names of the batch axes that the array starts with. None: not known yet; names in front of ``...`` wait.

    Raises
    ------
    ValueError
        For more names than axes, or more than one ``...``.

    Examples
    --------
    >>> given_dims({"obs/*": ("obs",)}, ("obs", "eef"), (None, None), (6, 3))
    (None, 'obs')
    >>> given_dims({"images": ("channel", ...)}, ("images",), (None,) * 4, (9, 3, 32, 32), batch=("time",))
    (None, 'channel', None, None)
    >>> given_dims({"images": (..., "x")}, ("images",), (None,) * 4, (9, 3, 32, 32))
    (None, None, None, 'x')
    """
    names, is_glob = _lookup(argument, key)
    if names is None or (is_glob and len(names) - (... in names) + isinstance(names, FeaturesOnly) > len(shape)):
        return tuple(recorded)
    name, count = "/".join(key), sum(entry is ... for entry in names)
    if count > 1 or len(names) - count > len(shape):
        raise ValueError(
            f"dims: {name!r} has {len(shape)} axes (shape {list(shape)}), which {tuple(names)!r} does not fit"
        )
    if not count:
        return (*recorded[: len(shape) - len(names)], *_strings(names, name))
    where = [entry is ... for entry in names].index(True)
    front, back = _strings(names[:where], name), _strings(names[where + 1 :], name)
    end = len(shape) - len(back)
    if isinstance(names, FromFirstAxis):
        return (*front, *recorded[len(front) : end], *back)
    if not front or batch is None:
        return (*recorded[:end], *back)
    start = 0 if front[0] in {*batch, recorded[0]} else min(len(batch), end - len(front))
    return (*recorded[:start], *front, *recorded[start + len(front) : end], *back)


class FromFirstAxis(tuple[str | EllipsisType, ...]):
    """Names in front of ``...`` that are those of the first axes, and not of the first behind the batch."""

    __slots__ = ()


class FeaturesOnly(tuple[str | EllipsisType, ...]):
    """Names of a glob that matches arrays of more axes: they are those behind the batch, and no array's batch."""

    __slots__ = ()


def resolve_names(argument: DimsArgument | None, shapes: Mapping[Key, Sequence[int]]) -> DimsArgument | None:
    """Settle which axes the caller's names stand for, pattern by pattern.

    ``"obs/*": ("obs", ...)`` names the first axis behind the batch. Where an array that the pattern matches has no axis
    to spare for the batch, as with ``"*": ("time", ...)`` and a reward of one axis, the names are those of the first axes.
    """
    if not argument:
        return argument
    resolved: dict[str | Key, Sequence[str | EllipsisType]] = {}
    for pattern, given in argument.items():
        names = _as_tuple(given)
        needed = len(names) if ... in names and names[0] is not ... else 0
        matched = [shape for key, shape in shapes.items() if shape and _lookup({pattern: names}, key)[0] is not None]
        short = any(len(shape) < needed for shape in matched)
        resolved[pattern] = FromFirstAxis(names) if needed and short else names
        is_glob = isinstance(pattern, str) and tuple(pattern.split("/")) not in shapes
        if is_glob and ... not in names and any(len(shape) > len(names) for shape in matched):
            resolved[pattern] = FeaturesOnly(names)
    return resolved


def check_dims_argument(argument: Mapping[Any, Any] | None, keys: Iterable[Key]) -> None:
    """Check the caller's ``dims=`` against the arrays there are.

    Raises
    ------
    TypeError
        For something that is no mapping.
    ValueError
        For a key or glob that no array matches: a misspelt name would else do nothing.
    """
    if argument is None:
        return
    if not isinstance(argument, Mapping):
        raise TypeError(
            f"dims: expected a mapping of array names to dims, such as {{'images': ('y', 'x')}}, got {argument!r}"
        )
    names = ["/".join(key) for key in keys]
    for pattern in argument:
        text = "/".join(pattern) if isinstance(pattern, tuple) else pattern
        if not any(fnmatch.fnmatchcase(name, text) for name in names) and text not in names:
            raise ValueError(f"dims: no array is called {text!r}; {there_are(text, names)}")


def find_pattern(argument: Mapping[Any, Any], key: Key) -> tuple[Any, bool]:
    """Which entry of the caller's ``dims=`` is for an array, None where none is; and whether it is a glob.

    Examples
    --------
    >>> find_pattern({"*": ("a",), "obs/*": ("b",)}, ("obs", "eef"))
    ('obs/*', True)
    """
    name = "/".join(key)
    for exact in (name, key):
        if exact in argument:
            return exact, False
    matches = [each for each in argument if isinstance(each, str) and fnmatch.fnmatchcase(name, each)]
    # the most telling glob wins: the one with most plain characters
    return max(matches, key=lambda each: (len(each.replace("*", "")), each), default=None), True


def _lookup(argument: DimsArgument | None, key: Key) -> tuple[tuple[str | EllipsisType, ...] | None, bool]:
    """The names that the caller has for an array, and whether they are from a glob."""
    pattern, is_glob = find_pattern(argument or {}, key)
    return (None, False) if pattern is None or argument is None else (_as_tuple(argument[pattern]), is_glob)


def _as_tuple(names: str | Sequence[str | EllipsisType]) -> tuple[str | EllipsisType, ...]:
    if isinstance(names, (FromFirstAxis, FeaturesOnly)):
        return names
    return (names,) if isinstance(names, str) else tuple(names)


def _strings(names: Sequence[str | EllipsisType], key: str) -> tuple[str, ...]:
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"dims: expected names for {key!r}, found {name!r} of type {type(name).__name__}")
    return tuple(name for name in names if isinstance(name, str))


def fits_whole_or_features(argument: DimsArgument | None, info: ArrayInfo, leading: int) -> bool:
    """Whether the caller's names are as many as all axes, or as those behind the batch.

    Raises
    ------
    ValueError
        Where names given for this very array are neither.
    """
    names, is_glob = _lookup(argument, info.key)
    if names is None or ... in names or len(names) in {len(info.shape), len(info.shape) - leading}:
        return True
    if is_glob:
        return False
    raise ValueError(
        f"dims: expected {len(info.shape) - leading} names for the axes of {'/'.join(info.key)!r} behind the batch, or "
        f"{len(info.shape)} for all (shape {list(info.shape)}), found {len(names)}: {tuple(names)!r}"
    )


def name_axes(info: ArrayInfo, batch: GroupBatch, *, batched: bool, argument: DimsArgument | None = None) -> Dims:
    """Name every axis of one array; `argument` is the caller's ``dims=``, for names that go by where the batch ends.

    Examples
    --------
    >>> batch = GroupBatch((None,), (6,), "shared shape", "")
    >>> name_axes(ArrayInfo(("x",), (6, 3, 3), dims=(None,) * 3), batch, batched=True)
    ('batch_0', 'dim_3', 'dim_3_1')
    """
    names: list[str] = []
    leading = len(batch.sizes) if batched and info.shape[: len(batch.sizes)] == batch.sizes else 0
    recorded = given_dims(argument, info.key, info.dims, info.shape, batch=name_batch(batch)[:leading])
    taken = {dim for dim in recorded if dim is not None}
    for axis, dim in enumerate(recorded):
        if dim is not None:
            names.append(dim)
        elif axis < leading:
            names.append(batch.dims[axis] or f"batch_{axis}")
        else:
            names.append(feature_name(info.shape[axis], taken | set(names)))
    return tuple(names)


def feature_name(size: int, taken: Iterable[str]) -> str:
    """``dim_<size>``, with a counter for a second axis of that size in one array."""
    return free_name(f"dim_{size}", taken)


def free_name(name: str, taken: Iterable[str]) -> str:
    """`name`, with a counter where it is taken."""
    taken, free, counter = set(taken), name, 0
    while free in taken:
        counter += 1
        free = f"{name}_{counter}"
    return free


def name_batch(batch: GroupBatch) -> Dims:
    """The names of the batch dims themselves."""
    return tuple(dim or f"batch_{axis}" for axis, dim in enumerate(batch.dims))


def td_names(batch: GroupBatch) -> list[str | None]:
    """The dimension names a tensordict gets: those this package made up are None there."""
    return [None if dim is None or is_marked(dim) else dim for dim in batch.dims]


def renamed_batches(
    batches: Mapping[Key, GroupBatch],
    shapes: Mapping[Key, tuple[int, ...]],
    before: Mapping[Key, Dims],
    after: Mapping[Key, Dims],
) -> dict[Key, GroupBatch]:
    """The batches of groups where their arrays, and those below them, are called `after` and not `before`.

    Examples
    --------
    >>> key, batches = ("demo", "x"), {("demo",): GroupBatch(("time",), (3,), "given", "")}
    >>> renamed_batches(batches, {key: (3,)}, {key: ("time",)}, {key: ("demo.time",)})[("demo",)].dims
    ('demo.time',)
    """
    own: dict[Key, dict[tuple[str | None, int], str]] = {}
    below: dict[Key, dict[tuple[str | None, int], str]] = {}
    for key in sorted(before):
        pairs_here = zip(before[key], shapes[key], strict=True)
        names: dict[tuple[str | None, int], str] = dict(zip(pairs_here, after[key], strict=True))
        own.setdefault(key[:-1], {}).update(names)
        for length in range(len(key) - 1):
            below.setdefault(key[:length], {}).update(names)
    renamed = {}
    for group, batch in batches.items():
        known = {**below.get(group, {}), **own.get(group, {})}
        pairs = zip(batch.dims, batch.sizes, strict=True)
        renamed[group] = replace(batch, dims=tuple(known.get(pair, pair[0]) for pair in pairs))
    return renamed


def local_dim(dim: str, group: Key) -> str:
    """A dim of the flat view as its group calls it.

    Examples
    --------
    >>> local_dim("data.demo_0.time", ("data", "demo_0", "next")), local_dim("data.time", ("other",))
    ('time', 'data.time')
    """
    for length in range(len(group), 0, -1):
        prefix = ".".join(group[:length]) + "."
        if dim.startswith(prefix) and len(dim) > len(prefix):
            return dim[len(prefix) :]
    return dim


def settle_sizes(
    named: Mapping[Key, Dims], shapes: Mapping[Key, tuple[int, ...]], fixed: Mapping[str, int]
) -> tuple[dict[Key, Dims], list[str]]:
    """Resolve names that have two sizes among the arrays of one group.

    The size of the dim's own coordinate, or else of `fixed`, or else of the first array by name keeps the name;
    the others get their size as a suffix.

    Returns
    -------
    named
        The settled names.
    warnings
        One sentence for each array that was changed.
    """
    sizes = dict(fixed)
    for key in sorted(named):
        if named[key] == (key[-1],):
            sizes.setdefault(key[-1], shapes[key][0])
    for key in sorted(named):
        for dim, size in zip(named[key], shapes[key], strict=True):
            sizes.setdefault(dim, size)
    settled, warnings = {}, []
    for key, dims in named.items():
        changed = tuple(_fitting_name(dim, size, sizes) for dim, size in zip(dims, shapes[key], strict=True))
        settled[key] = changed
        for before, after, size in zip(dims, changed, shapes[key], strict=True):
            if before != after:
                warnings.append(
                    f"{'/'.join(key)!r} has size {size} along {before!r}, which has size {sizes[before]} elsewhere in its "
                    f"group: the dim is called {after!r}"
                )
    return settled, warnings


def _fitting_name(dim: str, size: int, sizes: dict[str, int]) -> str:
    """`dim`, or with its size as a suffix where the name has another size; the name is then taken."""
    name = dim
    while sizes.setdefault(name, size) != size:
        name = f"{dim}_{size}" if name == dim else f"{name}_"
    return name


def qualify(named: Mapping[Key, Dims], shapes: Mapping[Key, tuple[int, ...]], inference: Inference) -> dict[Key, Dims]:
    """Qualify dims that clash between groups, for the flat view: ``data.demo_0.batch_0``.

    A dim of the root keeps its name, and so does one that has the same size wherever it stands.
    """
    sizes: dict[str, set[int]] = {}
    at_root: dict[str, int] = {}
    for key, dims in named.items():
        for dim, size in zip(dims, shapes[key], strict=True):
            sizes.setdefault(dim, set()).add(size)
            if len(key) == 1:
                at_root[dim] = size
    clashing = {dim for dim, found in sizes.items() if len(found) > 1}
    if not clashing:
        return dict(named)
    owners = _owners(named, shapes, inference)
    qualified = {}
    for key, dims in named.items():
        pairs = zip(dims, shapes[key], strict=True)
        qualified[key] = tuple(
            ".".join((*owners[key[:-1], dim, size], dim)) if dim in clashing and at_root.get(dim) != size else dim
            for dim, size in pairs
        )
    return qualified


def _owners(
    named: Mapping[Key, Dims], shapes: Mapping[Key, tuple[int, ...]], inference: Inference
) -> dict[tuple[Key, str, int], Key]:
    """For each group, dim and size the topmost group (not the root) from which the dim comes down."""
    used: dict[Key, set[tuple[str, int]]] = {}
    for key, dims in named.items():
        used.setdefault(key[:-1], set()).update(zip(dims, shapes[key], strict=True))
    for key, batch in inference.groups.items():
        used.setdefault(key, set()).update(zip(name_batch(batch), batch.sizes, strict=True))
    owners = {}
    for group, pairs in used.items():
        for pair in pairs:
            owner = group
            while len(owner) > 1 and pair in used.get(owner[:-1], ()):
                owner = owner[:-1]
            owners[group, pair[0], pair[1]] = owner
    return owners


LONGEST = 50
"""Names that a message lists."""


def there_are(name: object, known: Iterable[object], what: str = "there are") -> str:
    """List the known names after the words `what`, and the one that was probably meant by `name`.

    Examples
    --------
    >>> there_are("tme", ["time", "lat"], "the dims there are")
    "the dims there are: ['lat', 'time']. Did you mean 'time'?"
    >>> there_are("x", [])
    'there are: none'
    """
    names = sorted(map(str, known))
    listed = f"{names[:LONGEST]} and {len(names) - LONGEST} more" if len(names) > LONGEST else str(names or "none")
    lowered = {each.lower(): each for each in reversed(names)}
    asked = str(name).lower()
    near = difflib.get_close_matches(asked, lowered, n=1) or [
        # lat for latitude; one letter says nothing
        each
        for each in lowered
        if min(len(each), len(asked)) > 2 and (asked.startswith(each) or each.startswith(asked))
    ]
    return f"{what}: {listed}. Did you mean {lowered[near[0]]!r}?" if near else f"{what}: {listed}"


def groups_there(key: Key, groups: Collection[Key]) -> str:
    """List the groups in the nearest one above `key` that is there, and suggest one whose path ends with `key`.

    Examples
    --------
    >>> groups_there(("b",), [("a",), ("a", "b")])
    "the groups there are: ['/a']. Did you mean '/a/b'?"
    """
    above = next(key[:length] for length in reversed(range(len(key))) if not length or key[:length] in groups)
    what = f"the groups in {group_name(above)!r} are" if above else "the groups there are"
    beside = [group_name(each) for each in groups if each[:-1] == above]
    ends = sorted(group_name(each) for each in groups if each[-len(key) :] == key)
    listed = there_are(group_name(key), beside, what)
    return f"{listed.partition('. Did you mean')[0]}. Did you mean {ends[0]!r}?" if ends else listed


def check_choice(argument: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise ``ValueError`` for a value that is none of the choices."""
    if value not in choices:
        raise ValueError(f"{argument}: expected one of {', '.join(map(repr, choices))}, found {value!r}")


def printable(text: object) -> str:
    r"""Text on one line, with an escape, as in ``repr``, for each character that is not printed.

    These are control characters (of C0 and C1, line ends included), marks that change the direction of text, and other
    separators than a space.

    Examples
    --------
    >>> printable("obs"), printable("\x1b[2Jobs\r")
    ('obs', '\\x1b[2Jobs\\r')
    """
    given = str(text)
    if given.isprintable():
        return given
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in given)
