"""What a store holds, as the readers hand it to the engine: plain descriptions and lazy arrays.

A reader (:mod:`..formats.zarr.read`, :mod:`..formats.hdf5.read`) knows one library and turns each group of a store into a
:class:`StoredGroup`. Everything after it (naming, inference, decoding, flattening) works on these classes alone and
knows neither zarr nor h5py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict

import numpy as np

from .values import CodedDtype

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    def cached_property(function: Callable[[Any], Any]) -> Any:
        """As :func:`functools.cached_property`, without the lock that it has in Python 3.11.

        There it holds one for all objects of a class while it computes, and a process that is forked meanwhile waits for it for
        ever (measured with threads that read beside a DataLoader that starts its workers).
        """
        found = functools.cached_property(function)
        found.lock = nullcontext()
        return found


Key = tuple[str, ...]
"""The path of an entry or of a group, one part for each level; ``()`` is the root."""


@dataclass(frozen=True)
class LeftOut:
    """One member of a store that is not shown, and why.

    Attributes
    ----------
    key
        The path of the member.
    reason
        What it is and what to do about it, as the end of the sentence "'a/b' is left out: ...".
    attribute
        The name of the attribute of that member that is left out; None where the member itself is.
    warns
        False for what users do not miss: it is listed, and opening does not warn about it.
    """

    key: Key
    reason: str
    attribute: str | None = None
    warns: bool = True

    def __str__(self) -> str:
        path = repr("/".join(self.key) or "/")
        return f"{path if self.attribute is None else f'attribute {self.attribute!r} of {path}'}: {self.reason}"


class ArrayRecord(TypedDict, total=False):
    """What this package wrote down of an array, see :mod:`..dataset.records`, or of a group.

    Attributes
    ----------
    role, dims
        As in :class:`StoredArray`.
    torch_dtype
        The dtype that the values were widened from.
    order
        Which axis of the variable each axis of the array is.
    unpacked
        The dtype of floats before they were packed.
    datetime_unit
        The resolution of times, which are stored as nanoseconds.
    shape
        That of a variable which is stored as one text.
    non_tensor
        Whether numbers were non-tensor data.
    bytes
        Whether strings of a fixed length are bytes (HDF5).
    attrs
        Attributes that HDF5 would give back changed.
    tensorclass
        The class whose fields a group holds.
    """

    role: Literal["data", "coord"]
    torch_dtype: CodedDtype
    dims: list[str | None]
    order: list[int]
    unpacked: Literal["float16", "float32", "float64"]
    datetime_unit: str
    shape: list[int]
    non_tensor: bool
    bytes: bool
    attrs: dict[str, Any]
    tensorclass: str


@dataclass
class StoredArray:
    """One array of a group, not read yet.

    Attributes
    ----------
    name
        The name of the member in its group.
    data
        A lazy array that xarray can index (an ``ExplicitlyIndexed``, as ``xarray.backends.BackendArray``): it has
        ``shape`` and ``dtype``, and reads only what is indexed.
    dims
        The dimension names that the store records for it, one for each axis; ``None`` for an axis without one.
    attrs
        The attributes a user should see. Markers of the format (``_ARRAY_DIMENSIONS``, dimension scales,
        ``__tensordict_*``) are not among them.
    encoding
        What xarray keeps in ``Variable.encoding``, as xarray's own backend for the format fills it.
    unlimited
        The axes that the store can grow along (HDF5: ``maxshape`` is None there).
    role
        ``"data"`` or ``"coord"`` where the store records it, else ``None``.
    non_tensor
        True for an entry that a tensordict shows as non-tensor data although its values may be numbers (a JSON
        scalar); it has been decoded by the reader.
    raw
        True where the store records no dimension names for the array at all: it was not written for xarray.
    record
        What this package wrote down of the array, see :mod:`..dataset.records`.
    chunk_shape
        The sizes of what the store reads at once, one for each axis: a chunk, or a shard. None where it reads some rows
        as cheaply as all.
    merges
        Where chunks of fewer bytes than the first number are better read several at once, if there are more of them than the
        second; None where they are not.
    masks
        Whether the fill value of the store stands for missing values only because xarray takes it so, not the caller.
    """

    name: str
    data: Any
    dims: tuple[str | None, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    encoding: dict[str, Any] = field(default_factory=dict)
    unlimited: frozenset[int] = frozenset()
    role: str | None = None
    non_tensor: bool = False
    raw: bool = False
    record: ArrayRecord = field(default_factory=ArrayRecord)
    chunk_shape: tuple[int, ...] | None = None
    merges: tuple[int, int] | None = None
    masks: bool = False

    def __post_init__(self) -> None:
        if len(self.dims) != len(self.shape):
            raise ValueError(f"it has dims {list(self.dims)} for shape {list(self.shape)}")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = np.dtype(self.data.dtype)
        return dtype


@dataclass(frozen=True)
class RecordedBatch:
    """The batch that a store records for a group: sizes, and names where it has any.

    ``sizes`` is None where only names are recorded. ``in_front`` are the other dims that were there then and could stand in
    front of them, so that only dims that came later are taken for new batch dims. ``axes`` are the dims that some variables
    had then, and ``lengths`` the sizes of these dims, so that a renamed dim can be followed.
    """

    sizes: tuple[int, ...] | None
    names: tuple[str | None, ...] | None
    in_front: frozenset[str] = field(default=frozenset(), repr=False)
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    lengths: Mapping[str, int] = field(default_factory=dict, repr=False)


@dataclass
class StoredGroup:
    """One group of a store: its arrays and attributes, and the names of the groups in it.

    ``tensorclass`` is the name of the class whose fields it holds, where the store records it. It is never imported.
    ``incomplete`` is a sentence about a write to it that has not finished.
    """

    key: Key
    arrays: dict[str, StoredArray] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    attrs: dict[str, Any] = field(default_factory=dict)
    recorded: RecordedBatch | None = None
    unlimited_dims: frozenset[str] = frozenset()
    left_out: list[LeftOut] = field(default_factory=list)
    tensorclass: str | None = None
    incomplete: str | None = None


MOST_GROUPS = 100_000
DEEPEST_GROUP = 32
"""How many groups a store may have that is opened whole, and how deep."""


class Store(Protocol):
    """An open store of any format."""

    @property
    def description(self) -> str:
        """How messages call the store: its path or URL, or the repr of what was given."""

    def group(self, key: Key = ()) -> StoredGroup:
        """The group at `key`, relative to the group that was opened. Raises ``KeyError`` if there is none."""

    def enclosing(self) -> Store | None:
        """The group that holds the opened one, read from what is open already; None for the root."""

    def close(self) -> None:
        """Close what this package opened; what the caller opened stays open."""


def walk(store: Store) -> Iterator[StoredGroup]:
    """Yield the groups of a store, parents first; groups that the format keeps for itself are left out of their parents.

    Raises
    ------
    ValueError
        Where there are too many, or too deep ones: a store of links to itself never ends.
    """
    for number, group in enumerate(_walk(store, store.group()), 1):
        check_size(store.description, number, group.key)
        yield group


def check_size(description: str, number: int, key: Key) -> None:
    """Raise where a store has more groups than one may have that is opened whole, or where the group at `key` is too deep."""
    if number > MOST_GROUPS or len(key) > DEEPEST_GROUP:
        most = f"{MOST_GROUPS} groups" if number > MOST_GROUPS else f"{DEEPEST_GROUP} levels of groups"
        raise ValueError(
            f"{description}: expected at most {most}, found more, the last one {group_name(key)!r:.200}; open a part of it with "
            f"group=..."
        )


def _walk(store: Store, group: StoredGroup) -> Iterator[StoredGroup]:
    yield group
    for name in group.groups:
        key = (*group.key, name)
        child = None if private_group(name, {}) else store.group(key)
        what = private_group(name, child.attrs if child else {})
        if child is not None and what is None:
            yield from _walk(store, child)
        else:
            group.left_out.append(LeftOut(key, f"it is {what}; group={'/'.join(key)!r} opens it", warns=False))


def text_of(value: Any) -> Any:
    """A value of an attribute; bytes, as HDF5 has them, as text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def private_group(name: str, attrs: Mapping[str, Any]) -> str | None:
    """Describe a group that a format keeps for itself, None for others.

    MATLAB's ``#refs#`` and ``#subsystem#``, the search indexes of PyTables, and hidden groups.

    Examples
    --------
    >>> private_group("_i_table", {})
    'the search index of a PyTables table'
    """
    if name.startswith("_i_") or text_of(attrs.get("CLASS")) in ("TINDEX", "INDEX"):
        return "the search index of a PyTables table"
    if name in {"#refs#", "#subsystem#"}:
        return "a group that MATLAB keeps for itself"
    return "a hidden group" if name.startswith(".") else None


def group_name(key: Key) -> str:
    """The path of a group as messages and ``group=`` write it, ``"/"`` for the root."""
    return "/" + "/".join(key)


def path_key(path: str | None) -> Key:
    """The key of a group that ``group=``, or a store, writes as a path; ``()`` for the root.

    Examples
    --------
    >>> path_key("/data/demo_0/"), path_key(None)
    (('data', 'demo_0'), ())
    """
    return tuple(part for part in (path or "").split("/") if part)


def is_url(path: str) -> bool:
    """Whether a path is a URL of something that is not a local file."""
    return "://" in path and not path.startswith("file://")


def entry_name(name: Any) -> Any:
    """The name of the variable that is an entry: that of ``("next", "done")`` is ``"next/done"``, other names stay as they are.

    Examples
    --------
    >>> entry_name(("next", "done")), entry_name("next/done"), entry_name(None)
    ('next/done', 'next/done', None)
    """
    return "/".join(map(str, name)) if isinstance(name, tuple) else name


def why_no_key(path: str) -> str | None:
    """Why a path that a store writes names no entry, as the end of a sentence; None where it does.

    Everything that is named by a path in a document (the entry ``_unbatched``, a ``meta.json``, members of archives) is asked
    here, so that no name points out of its store, and none is shown by one library and not by another.

    Examples
    --------
    >>> why_no_key("next/obs")
    >>> why_no_key("../obs")
    "it has the part '..'"
    """
    if "\0" in path:
        return "it has a NUL in it"
    parts = path.split("/")
    if "" in parts:
        return "a part of it is empty" if path else "it is empty"
    return next((f"it has the part {part!r}" for part in parts if part in (".", "..")), None)


Kind = Literal["numeric", "string", "time", "object"]
"""What the elements are. ``"time"``: datetimes and timedeltas, encoded ones (``units = "days since ..."``) included."""

Role = Literal["data", "coord", "index"]
"""``"index"``: a one-dimensional coordinate named like its dim."""

EntryClass = Literal["batched", "partial", "unbatched"]

EvidenceKind = Literal["given", "recorded", "unlimited dim", "shared named dims", "shared shape", "inherited", "none"]


@dataclass(frozen=True)
class ArrayInfo:
    """Everything the inference may know of one array.

    Attributes
    ----------
    key
        Its path, ``("next", "obs")``.
    shape
        One size for each axis.
    kind
        What the elements are.
    dims
        One name for each axis, None for an axis without a name; by default no axis has one.
    role
        Data, coordinate or index coordinate.
    unlimited
        Axes that can grow.
    attrs
        CF attributes (``axis``, ``standard_name``, ``units``, ``bounds``, ``coordinates``, ``grid_mapping``,
        ``cell_measures``, ``ancillary_variables``), whether they are in attrs or in the encoding.
    integral
        False for floating point numbers, which count nothing and are no bounds of rows.
    """

    key: Key
    shape: tuple[int, ...]
    kind: Kind = "numeric"
    dims: tuple[str | None, ...] = ()
    role: Role = "data"
    unlimited: frozenset[int] = frozenset()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    integral: bool = True

    def __post_init__(self) -> None:
        if not self.dims and self.shape:
            object.__setattr__(self, "dims", (None,) * len(self.shape))
        if len(self.dims) != len(self.shape):
            raise ValueError(
                f"{'/'.join(self.key)!r}: {len(self.dims)} dims {list(self.dims)} for shape {list(self.shape)}"
            )

    @property
    def axes(self) -> tuple[tuple[str | None, int], ...]:
        """Name and size of each axis."""
        return tuple(zip(self.dims, self.shape, strict=True))

    @cached_property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)


def elements(arrays: Iterable[ArrayInfo]) -> int:
    """How many elements arrays hold together."""
    return sum(info.size for info in arrays)


@dataclass(frozen=True)
class GroupBatch:
    """The batch of one group.

    Attributes
    ----------
    dims
        Its names, None for an axis that has no name (only before the engine names it).
    sizes
        Its size, as in ``TensorDict.batch_size``.
    evidence
        The kind of evidence the decision rests on.
    reason
        The same as a sentence, without a full stop.
    notes
        More sentences: which arrays disagree, which dim came second and what to pass to get it, who did not vote and why.
    """

    dims: tuple[str | None, ...]
    sizes: tuple[int, ...]
    evidence: EvidenceKind
    reason: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inference:
    """The decision for a tree of groups.

    Attributes
    ----------
    groups
        For each group that holds arrays (and each group above one) its batch; ``()`` is the root.
    classes
        For each array how it relates to the batch of its group.
    warnings
        What was corrected or could not be honoured, one sentence each.
    """

    groups: Mapping[Key, GroupBatch]
    classes: Mapping[Key, EntryClass]
    warnings: tuple[str, ...] = ()

    @property
    def batch_dims(self) -> tuple[str | None, ...]:
        """The batch dims of the root."""
        return self.groups[()].dims

    @property
    def batch_size(self) -> tuple[int, ...]:
        """The batch size of the root."""
        return self.groups[()].sizes

    @property
    def evidence(self) -> EvidenceKind:
        """The kind of evidence for the batch of the root."""
        return self.groups[()].evidence

    @property
    def reason(self) -> str:
        """The evidence for the batch of the root, as a sentence."""
        return self.groups[()].reason

    @property
    def explained(self) -> str:
        """The evidence for the batch of the root and what could be chosen instead, for a message."""
        return ". ".join((self.reason, *self.groups[()].notes))

    def keys(self, entry_class: EntryClass) -> tuple[Key, ...]:
        """The keys of all arrays of a class, in the order of the arrays that were given."""
        return tuple(key for key, found in self.classes.items() if found == entry_class)
