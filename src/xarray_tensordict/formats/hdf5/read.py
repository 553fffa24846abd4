"""HDF5 and netCDF-4 files as :class:`...core.model.Store`: what is in each group, described without reading an array.

h5netcdf cannot do this: it refuses a whole file over one reference attribute or empty dataset, loses soft links, and
numbers dimensions without a name by the order of access. Where h5netcdf does read a file, the arrays, attributes and
encodings here are those that xarray's h5netcdf engine gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import h5py

from ...core.metadata import ARRAY_ATTR, BATCH_ATTR, INCOMPLETE_ATTR, parse_batch_record, read_array_record
from ...core.model import Key, LeftOut, StoredGroup, group_name, path_key, why_no_key
from ...core.naming import groups_there
from ..array_wrappers import DamagedError, named_errors
from .attrs import (
    NO_NAME,
    NON_COORD_PREFIX,
    ScaleTable,
    append_mark,
    identity,
    is_placeholder,
    marker,
    read_attributes,
    readable_name,
)
from .file import Hdf5Source, open_source
from .links import UnreadableError, member_of
from .variables import GroupFacts, check_readable, read_array, record_at

_PATHS, _PATHS_FOR_EACH = 1000, 10
"""How many paths to groups of a file there may be, beside so many for each group: by links there can be 2 ** 64."""

_LISTED = 100
"""How many groups are looked into for the message on one that is not there."""


@dataclass(frozen=True)
class _Node:
    """A group, or records shown as one, found by following names from the opened group.

    `chain` are the groups that enclose it (and itself, if it is one), the root of the file first; `path` its names from the
    group that was opened; `fields` the record fields on the way to it, if it is in the dataset `obj`.
    """

    obj: Any
    chain: list[Any]
    path: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()


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
        self._paths: dict[Key, tuple[Any, ...]] = {}

    @classmethod
    def open(cls, source: Any, *, root: str | None = None, allow_pickle: bool = False) -> Hdf5Store:
        """Open a file.

        Parameters
        ----------
        source
            A path, the bytes of a file, a binary file object, or an open ``h5py.File`` or ``h5py.Group``. What the
            caller opened is never closed.
        root
            The path of the group to open, by default the root (or the group that was given).
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
        opened = open_source(source)
        store = cls(opened, path_key(root), allow_pickle=allow_pickle)
        try:
            with opened.locked() as base, named_errors(repr(opened.description)):
                if store._find(base, ()) is not None:
                    return store
                wrong = store._no_group(base, ())
        except OSError:
            opened.close()
            raise
        opened.close()
        raise OSError(wrong)

    @property
    def description(self) -> str:
        """The path of the file, or what was given in its place."""
        return self._source.description

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
        OSError
            If the opened group itself is damaged; groups in it that are damaged are empty, and listed in `left_out`.
        """
        out, where = StoredGroup(key), self._where(key)
        wrong = record = None
        try:
            with self._source.locked() as base, named_errors(where):
                node = self._find(base, key)
                if node is None:
                    wrong = self._no_group(base, key)
                else:
                    record = self._described(node, out)
        except DamagedError as error:
            if not key:
                raise
            return StoredGroup(key, left_out=[LeftOut(key, str(error.__cause__))])
        if wrong is not None:
            raise KeyError(wrong)
        if len(self._paths) > _PATHS + _PATHS_FOR_EACH * len(set(self._paths.values())):
            raise ValueError(
                f"{where}: its groups are linked to one another: there are more than {len(self._paths)} paths, and no end of it; "
                f"open a group of it with group=..."
            )
        if record is not None:
            out.recorded = parse_batch_record(record, where)
        return out

    def _where(self, key: Key) -> str:
        return f"{self.description!r}, group {group_name((*self._root, *key))!r}"

    # Finding a group

    def _find(self, base: Any, key: Key) -> _Node | None:
        chain = [base.file["/"]]
        for name in filter(None, (base.name or "").split("/")):
            chain.append(chain[-1][name])
        node: _Node | None = _Node(base, chain)
        for name in (*self._root, *key):
            node = None if node is None else _step(node, name)
        return node

    def _no_group(self, base: Any, key: Key) -> str:
        wanted, top = (*self._root, *key), Hdf5Store(self._source)
        groups: dict[Key, None] = {}
        places = [wanted[:length] for length in range(len(wanted))]
        for place in places:  # first those above the group, then what is below these
            node = top._find(base, place)
            if node is not None and isinstance(node.obj, h5py.Group):
                below = [(*place, name) for name in _list_members(node, StoredGroup(()))[1]]
                new = [each for each in below if each not in groups and each not in places]
                places += new[: max(_LISTED - len(places), 0)]
                groups.update(dict.fromkeys(below))
        return f"{self.description!r} has no group {group_name(wanted)!r}; {groups_there(wanted, groups)}"

    # Describing a group

    def _described(self, node: _Node, out: StoredGroup) -> Any:
        """Fill `out`; gives its batch record, which is not read yet."""
        if node.obj.file.mode != "r" or node.obj.file.swmr_mode:
            self._scales = ScaleTable()  # sizes may be others by now
        self._paths[out.key] = identity(node.obj)
        if not node.fields:
            out.attrs = read_attributes(node.obj, out.key, out.left_out)
        is_group, record, groups = isinstance(node.obj, h5py.Group), None, list[str]()
        if is_group:
            # those that HDF5 would give back changed
            own = read_array_record(marker(node.obj, ARRAY_ATTR), out.key, out.left_out)
            out.attrs.update(own.get("attrs", {}))
            out.tensorclass, record = own.get("tensorclass"), marker(node.obj, BATCH_ATTR)
            members, groups = _list_members(node, out)
            self._scales.shared(node.obj, members)
        facts = self._facts(node, out)
        for name, dataset, path, field in list(_datasets(node, members, groups) if is_group else _fields(node)):
            key = (*out.key, name)
            try:
                if "/" in name or why_no_key(name):
                    raise UnreadableError("its name is no name for a variable (it is empty, '.' or '..', or has a '/')")
                check_readable(dataset)
                if record_at(dataset.dtype if field is None else field[1])[0].names is not None:
                    groups.append(name)
                elif field is not None or not is_placeholder(dataset):
                    out.arrays[name] = read_array(facts, dataset, path, key, out.left_out, field)
            except Exception as err:  # one broken dataset must not hide the others, and h5py raises nearly anything
                why = str(err) if isinstance(err, UnreadableError) else f"it cannot be read: {err}"
                out.left_out.append(LeftOut(key, why))
        out.groups, out.unlimited_dims = tuple(groups), frozenset(facts.unlimited)
        return record

    def _facts(self, node: _Node, out: StoredGroup) -> GroupFacts:
        own = self._scales.shared(node.chain[-1])
        netcdf = bool(own.numbers) or marker(node.chain[0], "_NCProperties") is not None
        unlimited = {axis.name for axis in own.scales if axis.unlimited and axis.name is not None}
        mark = None
        try:
            mark = append_mark(node.chain[0], self.description)
        except ValueError as error:
            out.left_out.append(LeftOut((), str(error), INCOMPLETE_ATTR))
        if mark is not None and f"{node.obj.name}/".startswith(f"{mark.group.rstrip('/')}/"):
            out.incomplete = (
                f"the file is not complete: an append along {mark.dim!r} has not finished, and the rows from before it are "
                f"shown. Unless it still runs, append the rows again with append_dim={mark.dim!r}, which first takes back what "
                f"it has left"
            )
        before = {} if mark is None else mark.before
        return GroupFacts(self._source, self._scales, node.chain, netcdf, self._allow_pickle, unlimited, before)


def _datasets(node: _Node, members: dict[str, Any], groups: list[str]) -> Iterator[tuple[str, Any, str, Any]]:
    """The datasets of a group, under the names that they are shown by, and their paths."""
    datasets = {name: member for name, member in members.items() if isinstance(member, h5py.Dataset)}
    for stored, dataset in datasets.items():
        name = stored.removeprefix(NON_COORD_PREFIX)
        # a name that is taken by a netCDF dimension alone is free for a variable
        if name != stored and (name in groups or (name in datasets and not is_placeholder(datasets[name]))):
            name = stored
        yield name, dataset, "/".join((*node.path, stored)), None


def _fields(node: _Node) -> Iterator[tuple[str, Any, str, Any]]:
    """The fields of records, each with what :func:`read_array` has to know of it."""
    dtype, outer = record_at(node.obj.dtype, node.fields)
    for name in dtype.names or ():
        yield name, node.obj, "/".join(node.path), ((*node.fields, name), dtype[name], outer)


def _step(node: _Node, name: str) -> _Node | None:
    """The group of that name in a node."""
    if isinstance(node.obj, h5py.Dataset):
        dtype, _ = record_at(node.obj.dtype, node.fields)
        is_there = name in (dtype.names or ()) and record_at(dtype[name])[0].names is not None
        return _Node(node.obj, node.chain, node.path, (*node.fields, name)) if is_there else None
    if "/" in name or why_no_key(name):
        return None
    for stored in (name, NON_COORD_PREFIX + name):
        child = None
        with suppress(Exception):  # h5py raises nearly anything for a dangling link
            child = member_of(node.obj, stored)
        path = (*node.path, stored)
        if isinstance(child, h5py.Group):
            is_enclosing = identity(child) in map(identity, node.chain)
            return None if is_enclosing else _Node(child, [*node.chain, child], path)
        if _is_record(child):
            return _Node(child, node.chain, path)
    return None


def _is_record(member: Any) -> bool:
    """Whether a member is a dataset of records, which is shown as a group with one array for each field."""
    with suppress(TypeError):  # a type that numpy does not have
        return isinstance(member, h5py.Dataset) and member.shape is not None and bool(record_at(member.dtype)[0].names)
    return False


def _list_members(node: _Node, out: StoredGroup) -> tuple[dict[str, Any], list[str]]:
    """The datasets and types of a group, opened, and the names of its groups; links to groups around it would never end."""
    members: dict[str, Any] = {}
    groups: list[str] = []
    enclosing = set(map(identity, node.chain))
    for name in node.obj:
        reason = NO_NAME if isinstance(name, bytes) else why_no_key(name)
        if reason is not None:
            out.left_out.append(LeftOut((*out.key, readable_name(name)), reason))
            continue
        try:
            member = member_of(node.obj, name)
            if not isinstance(member, h5py.Group):
                members[name] = member
            elif identity(member) in enclosing:
                reason = "it is a link to an enclosing group, and is not followed"
            else:
                groups.append(name)
        except Exception as err:  # a dangling link, a corrupt object; h5py raises nearly anything
            reason = _why_not_opened(node.obj, name, err)
        if reason is not None:
            out.left_out.append(LeftOut((*out.key, name), reason))
    return members, groups


def _why_not_opened(group: Any, name: str, err: Exception) -> str:
    if isinstance(err, UnreadableError):
        return str(err)
    link = None
    with suppress(Exception):  # a link of a kind that h5py does not know
        link = group.get(name, getlink=True)
    detail = err.args[0] if err.args else err
    if isinstance(link, h5py.SoftLink | h5py.ExternalLink):
        file = f" in the file {link.filename!r}" if isinstance(link, h5py.ExternalLink) else ""
        return f"it is a link to {link.path!r}{file}, which cannot be opened"
    return (
        f"it cannot be opened: {detail}" if link else f"it is a user-defined link, which cannot be followed: {detail}"
    )
