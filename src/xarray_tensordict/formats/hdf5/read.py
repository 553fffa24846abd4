"""HDF5 and netCDF-4 files as :class:`...core.model.Store`: what is in each group, described without reading an array.

h5netcdf cannot do this: it refuses a whole file over one reference attribute or empty dataset, loses soft links, and
numbers dimensions without a name by the order of access. Where h5netcdf does read a file, the arrays, attributes and
encodings here are those that xarray's h5netcdf engine gives.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any

import h5py
import numpy as np

from ...core.metadata import ARRAY_ATTR, BATCH_ATTR, INCOMPLETE_ATTR, own_array_record, parse_batch_record
from ...core.model import Key, LeftOut, StoredGroup, group_name
from ...core.suggest import there_are
from ...warnings import LeftOutWarning, warn
from .arrays import Hdf5Array
from .attrs import (
    NON_COORD_PREFIX,
    Scale,
    ScaleTable,
    UnreadableError,
    identity,
    is_placeholder,
    is_scale,
    marker,
    read_attributes,
)
from .file import Hdf5Source, open_source
from .variables import GroupFacts, check_readable, is_record, read_array, read_field, record_dtype

_LISTED_GROUPS = 1000  # as many as an error message looks at: a file can have a million


class _NoGroupError(KeyError):
    """There is no such group; to the caller a KeyError, or an OSError from `Hdf5Store.open`."""


@dataclass
class _Node:
    """A group, or records shown as one, found by following names from the opened group.

    Attributes
    ----------
    obj
        The h5py group, or the dataset of the records.
    chain
        The groups that enclose it (and itself, if it is one), the root of the file first.
    path
        Its names in the file, from the group that was opened.
    fields
        The record fields that lead to it, if it is in a dataset.
    """

    obj: Any
    chain: list[Any]
    path: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()


@dataclass
class _Members:
    """The members of one group: datasets, opened; names of groups; enum types with a name, encoded."""

    datasets: list[tuple[str, Any]] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    types: list[tuple[str, bytes]] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    broken: str | None = None


@dataclass(frozen=True)
class _Shared:
    """What the groups below a group need to know of it."""

    dimension_ids: dict[int, Scale]
    enum_types: list[tuple[str, bytes]]
    scales: tuple[Scale, ...]


class Hdf5Store:
    """An open HDF5 file. Use :meth:`open`.

    Parameters
    ----------
    source
        The file or group.
    root
        The path of the group in it that is opened.
    allow_pickle
        Whether pickled Python objects are read.
    """

    def __init__(self, source: Hdf5Source, root: Key = (), *, allow_pickle: bool = False) -> None:
        self._source = source
        self._root = root
        self._allow_pickle = allow_pickle
        self._scales = ScaleTable()
        self._known: dict[Any, _Shared] = {}

    @classmethod
    def open(
        cls,
        source: Any,
        *,
        root: str | None = None,
        driver_kwds: Mapping[str, Any] | None = None,
        allow_pickle: bool = False,
    ) -> Hdf5Store:
        """Open a file.

        Parameters
        ----------
        source
            A path, the bytes of a file, a binary file object, or an open ``h5py.File`` or ``h5py.Group``. What the
            caller opened is never closed.
        root
            The path of the group to open, by default the root (or the group that was given).
        driver_kwds
            Arguments of ``h5py.File``, for example ``{"rdcc_nbytes": 2**24}`` or ``{"locking": False}``.
        allow_pickle
            Read values that are pickled Python objects. This runs code that the file brings.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        OSError
            If the file cannot be opened, or has no group `root`.
        ValueError
            If it is no HDF5 file.
        """
        if root is not None and not isinstance(root, str):
            raise ValueError(f"group must be a string or None, not {root!r}")
        opened = open_source(source, driver_kwds)
        store = cls(opened, tuple(part for part in (root or "").split("/") if part), allow_pickle=allow_pickle)
        try:
            with opened.locked() as base:
                store._find(base, ())
        except _NoGroupError as err:
            opened.close()
            raise OSError(err.args[0]) from None
        except Exception as err:  # h5py raises nearly anything for a corrupt file
            opened.close()
            raise OSError(f"{opened.description!r} cannot be read: {err.args[0] if err.args else err}") from err
        return store

    @property
    def description(self) -> str:
        """The path of the file, or what was given in its place."""
        return self._source.description

    @property
    def has_tensordict_marker(self) -> bool:
        """Whether the opened group bears the batch record of a tensordict."""
        with self._source.locked() as base:
            return BATCH_ATTR in self._find(base, ()).obj.attrs

    def enclosing(self) -> Hdf5Store | None:
        """The group that holds the opened one."""
        return Hdf5Store(self._source, self._root[:-1], allow_pickle=self._allow_pickle) if self._root else None

    def close(self) -> None:
        """Close the file, unless the caller opened it."""
        self._source.close()

    def group(self, key: Key = ()) -> StoredGroup:
        """The group at `key`, relative to the opened group; records are a group of their fields.

        Raises
        ------
        KeyError
            If there is no such group.
        ValueError
            If its batch record is malformed, or of an unknown version.
        """
        with self._source.locked() as base:
            node = self._find(base, key)
            if _can_change(node.obj.file):
                self._scales.forget_sizes()
            out = StoredGroup(key)
            if isinstance(node.obj, h5py.Dataset):
                self._read_records(node, out)
            else:
                self._read_group(node, out)
        self._tell_missing_sources(out)
        return out

    def _tell_missing_sources(self, group: StoredGroup) -> None:
        """One warning: HDF5 gives the fill value for what is in a file that is not there."""
        missing = {
            name: array.data.missing_sources
            for name, array in group.arrays.items()
            if isinstance(array.data, Hdf5Array) and array.data.missing_sources
        }
        if not missing:
            return

        listed = "; ".join(f"{name!r}: {', '.join(map(repr, files[:5]))}" for name, files in missing.items())
        warn(
            f"{self.description}, group {group_name((*self._root, *group.key))!r}: files that virtual datasets are made of are "
            f"not there, and HDF5 gives the fill value (zero, if there is none) for their values: {listed}. Put them where "
            f"the file expects them, or leave the variables out with drop_variables=[...]",
            LeftOutWarning,
        )

    # Finding a group

    def _find(self, base: Any, key: Key) -> _Node:
        node = _Node(base, _enclosing(base))
        names = (*self._root, *key)
        for name in names:
            found = self._step(node, name)
            if found is None:
                raise _NoGroupError(self._no_group(base, names))
            node = found
        return node

    def _step(self, node: _Node, name: str) -> _Node | None:
        if isinstance(node.obj, h5py.Dataset):
            dtype, _ = _record_at(node.obj.dtype, node.fields)
            if name not in (dtype.names or ()) or record_dtype(dtype[name]) is None:
                return None
            return _Node(node.obj, node.chain, node.path, (*node.fields, name))
        if not name or name == "." or "/" in name:
            return None
        for stored in (name, NON_COORD_PREFIX + name):
            child = _opened(node.obj, stored)
            path = (*node.path, stored)
            if isinstance(child, h5py.Group):
                enclosed = identity(child) not in {identity(group) for group in node.chain}
                return _Node(child, [*node.chain, child], path) if enclosed else None
            if _is_readable_record(child):
                return _Node(child, node.chain, path)
        return None

    def _no_group(self, base: Any, names: Key) -> str:
        there = ["/" + found for found in islice(_walk_groups(base), _LISTED_GROUPS)]
        name = group_name(names)
        return f"{self.description!r} has no group {name!r}; {there_are(name, there, 'the groups there are')}"

    # Describing a group

    def _read_group(self, node: _Node, out: StoredGroup) -> None:
        out.attrs = read_attributes(node.obj, out.key, out.left_out)
        # those that HDF5 would give back changed
        own = own_array_record(marker(node.obj, ARRAY_ATTR))
        out.attrs.update(own.get("attrs", {}))
        out.tensorclass = own.get("tensorclass")
        record = marker(node.obj, BATCH_ATTR)
        if record is not None:
            where = f"{self.description!r}, group {group_name((*self._root, *out.key))!r}"
            out.recorded = parse_batch_record(record, where)
        out.incomplete = _unfinished(node)
        members = _list_members(node.obj, {identity(group) for group in node.chain})
        out.left_out += [LeftOut((*out.key, name), reason) for name, reason in members.left_out]
        if members.broken is not None:
            out.left_out.append(LeftOut(out.key, members.broken))
        facts = self._facts(node, members)
        taken = {name for name, _ in members.datasets} | set(members.groups)
        groups = list(members.groups)
        for stored, dataset in members.datasets:
            name = stored.removeprefix(NON_COORD_PREFIX)
            if name != stored and name in taken and not _is_placeholder_of(members, name):
                name = stored
            try:
                check_readable(dataset)
                if is_record(dataset):
                    groups.append(name)
                elif not is_placeholder(dataset):
                    path = "/".join((*node.path, stored))
                    out.arrays[name] = read_array(facts, dataset, path, name, out.key, out.left_out)
            except UnreadableError as err:
                out.left_out.append(LeftOut((*out.key, name), str(err)))
            except Exception as err:  # one broken dataset must not hide the others, and h5py raises nearly anything
                out.left_out.append(LeftOut((*out.key, name), f"it cannot be read: {err}"))
        out.groups = tuple(groups)
        out.unlimited_dims = frozenset(facts.unlimited)

    def _read_records(self, node: _Node, out: StoredGroup) -> None:
        """The fields of the records of a dataset, as the arrays of a group."""
        dataset, groups = node.obj, []
        if not node.fields:
            out.attrs = read_attributes(dataset, out.key, out.left_out)
        facts = self._facts(node, _list_members(node.chain[-1], set()))
        dtype, outer = _record_at(dataset.dtype, node.fields)
        for name in dtype.names or ():
            try:
                if "/" in name or not name:
                    raise UnreadableError("its name is no name for a variable (it is empty or has a '/')")
                if record_dtype(dtype[name]) is not None:
                    groups.append(name)
                else:
                    fields = (*node.fields, name)
                    out.arrays[name] = read_field(facts, dataset, "/".join(node.path), fields, dtype[name], outer)
            except UnreadableError as err:
                out.left_out.append(LeftOut((*out.key, name), str(err)))
            except Exception as err:  # as for datasets
                out.left_out.append(LeftOut((*out.key, name), f"it cannot be read: {err}"))
        out.groups = tuple(groups)
        out.unlimited_dims = frozenset(facts.unlimited)

    def _facts(self, node: _Node, members: _Members) -> GroupFacts:
        own = self._share(members)
        above = node.chain[:-1]

        @cache
        def shared() -> list[_Shared]:
            return [*(self._shared_by(group) for group in above), own]

        netcdf = bool(own.dimension_ids) or marker(node.chain[0], "_NCProperties") is not None
        marked = netcdf or bool(own.scales) or any(marker(group, BATCH_ATTR) is not None for group in node.chain)
        return GroupFacts(
            self._source,
            self._scales,
            netcdf,
            marked=lambda: marked or any(part.scales for part in shared()),
            dimension_ids=lambda: {number: scale for part in shared() for number, scale in part.dimension_ids.items()},
            enum_types=lambda: [known for part in reversed(shared()) for known in part.enum_types],
            allow_pickle=self._allow_pickle,
            unlimited={scale.name for scale in own.scales if scale.unlimited},
        )

    def _shared_by(self, group: Any) -> _Shared:
        """What `group` shares with the groups below it; listed once, unless the file can be written to."""
        found = identity(group)
        if found not in self._known or _can_change(group.file):
            self._known[found] = self._share(_list_members(group, set()))
        return self._known[found]

    def _share(self, members: _Members) -> _Shared:
        numbers: dict[int, Scale] = {}
        scales = []
        for name, dataset in members.datasets:
            try:
                if dataset.shape and is_scale(dataset):
                    scales.append(self._scales.add(dataset, name))
                    number = marker(dataset, "_Netcdf4Dimid")
                    if number is not None:
                        numbers[int(np.ravel(number)[0])] = scales[-1]
            except Exception:  # noqa: S112 - it is corrupt, and said to be when it is described as an array
                continue
        return _Shared(numbers, members.types, tuple(scales))


def _unfinished(node: _Node) -> str | None:
    """What is told of an append to a group, or to one above it, that was killed or still runs."""
    try:
        mark = json.loads(marker(node.chain[0], INCOMPLETE_ATTR) or "null")
        if mark is None or not f"{node.obj.name}/".startswith(f"{mark['group'].rstrip('/')}/"):
            return None
        dim = mark["dim"]
    except (TypeError, ValueError, KeyError, AttributeError):  # of another version, or of another program
        return None
    return (
        f"the file is not complete: an append along {dim!r} has not finished, and the rows from before it are shown. Unless "
        f"it still runs, append the rows again with append_dim={dim!r}, which first takes back what it has left"
    )


def _can_change(file: Any) -> bool:
    return bool(file.mode != "r" or file.swmr_mode)


def _opened(group: Any, name: str) -> Any:
    """A member of `group`, None if it is absent or cannot be opened."""
    try:
        return group[name]
    except Exception:  # h5py raises nearly anything for a link that leads nowhere
        return None


def _enclosing(base: Any) -> list[Any]:
    """The groups from the root of the file down to `base`."""
    chain = [base.file["/"]]
    for name in (base.name or "").split("/"):
        if name:
            chain.append(chain[-1][name])
    return chain


def _record_at(dtype: np.dtype[Any], fields: tuple[str, ...]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The compound dtype that `fields` lead to, and the axes of the array types around it."""
    axes: tuple[int, ...] = ()
    for name in (None, *fields):
        dtype = dtype if name is None else dtype[name]
        while dtype.subdtype is not None:
            dtype, shape = dtype.subdtype
            axes = (*axes, *shape)
    return dtype, axes


def _list_members(group: Any, enclosing: set[Any]) -> _Members:
    """Open the members of `group`; links to the groups `enclosing` it would never end, and are left out."""
    members = _Members()
    try:
        names = list(group)
    except Exception as err:  # a corrupt index of links; h5py raises nearly anything
        members.broken = f"its members cannot be listed: {err.args[0] if err.args else err}"
        return members
    for name in names:
        try:
            _add_member(members, name, group[name], enclosing)
        except Exception as err:  # a dangling link, a corrupt object; as above
            members.left_out.append((name, _why_not_opened(group, name, err)))
    return members


def _add_member(members: _Members, name: str, member: Any, enclosing: set[Any]) -> None:
    if isinstance(member, h5py.Datatype):
        if h5py.check_enum_dtype(member.dtype) is not None:
            members.types.append((name, member.id.encode()))
    elif isinstance(member, h5py.Dataset):
        members.datasets.append((name, member))
    elif identity(member) in enclosing:
        members.left_out.append((name, "it is a link to an enclosing group, and is not followed"))
    else:
        members.groups.append(name)


def _why_not_opened(group: Any, name: str, err: Exception) -> str:
    try:
        link = group.get(name, getlink=True)
    except Exception:  # a link of a kind that h5py does not know
        return f"it is a user-defined link, which cannot be followed: {err.args[0] if err.args else err}"
    if isinstance(link, h5py.SoftLink):
        return f"it is a soft link to {link.path!r}, which is not there"
    if isinstance(link, h5py.ExternalLink):
        return f"it is a link to {link.path!r} in the file {link.filename!r}, which cannot be opened"
    return f"it cannot be opened: {err.args[0] if err.args else err}"


def _is_placeholder_of(members: _Members, name: str) -> bool:
    """Whether `name` is taken by a netCDF dimension alone, which leaves it free for a variable."""
    return any(is_placeholder(dataset) for other, dataset in members.datasets if other == name)


def _walk_groups(base: Any, path: str = "", chain: tuple[Any, ...] = ()) -> Iterator[str]:
    """The paths of the groups below `base`."""
    members = _list_members(base, {*chain, identity(base)})
    for name in members.groups:
        yield f"{path}{name}"
        yield from _walk_groups(base[name], f"{path}{name}/", (*chain, identity(base)))
    for name, dataset in members.datasets:
        if _is_readable_record(dataset):
            yield f"{path}{name}"


def _is_readable_record(member: Any) -> bool:
    try:
        return isinstance(member, h5py.Dataset) and member.shape is not None and is_record(member)
    except TypeError:  # a type that numpy does not have
        return False
