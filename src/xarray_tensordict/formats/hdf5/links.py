"""Targets of links and of the parts of datasets: HDF5 waits for a FIFO or a device, and never ends to read what contains itself."""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from typing import Any

import h5py

from .file import file_name

_MOST_LINKS = _VIRTUAL_LEVELS = 16
_MOST_BLOCKS = 1024
"""So many of the datasets that one name with ``%b`` stands for are looked at."""

Part = tuple[str, str]
"""The real path of a file, and the name of a dataset in it."""


class UnreadableError(Exception):
    """What an HDF5 object holds has no counterpart here; the message describes it."""


def member_of(group: Any, name: str | bytes) -> Any:
    """Open a member of a group.

    Raises
    ------
    UnreadableError
        Where its link or a part of it points to what is no regular file, and for a virtual dataset that is made of itself.
    Exception
        Nearly anything, by h5py, for a dangling link and a corrupt object.
    """
    _check_link(group, os.fsdecode(name), [])
    member = group[name]
    if isinstance(member, h5py.Dataset):
        check_parts(member, elsewhere=False)
    return member


def _check_path(group: Any, path: str, followed: list[str]) -> None:
    """Look at the links on a path; `followed` are those on the way to it."""
    at = group.file if path.startswith("/") else group
    names = [name for name in path.split("/") if name not in {"", "."}]
    for number, name in enumerate(names, 1):
        _check_link(at, name, followed)
        if number < len(names):
            at = at[name]


def _check_link(group: Any, name: str, followed: list[str]) -> None:
    link = os.fsencode(name)
    kind = group.id.links.get_info(link).type
    if kind not in {h5py.h5l.TYPE_SOFT, h5py.h5l.TYPE_EXTERNAL}:
        return
    followed.append(name)
    if len(followed) > _MOST_LINKS:
        raise UnreadableError(f"it goes through more than {_MOST_LINKS} links")
    target = group.id.links.get_val(link)
    if kind == h5py.h5l.TYPE_SOFT:
        _check_path(group, os.fsdecode(target), followed)
        return
    place = _place(os.fsdecode(target[0]), _folders(group, "HDF5_EXT_PREFIX"))
    if place is not None:
        with suppress(OSError, KeyError), h5py.File(place, "r") as other:
            _check_path(other, os.fsdecode(target[1]), followed)


def check_parts(dataset: Any, *, elsewhere: bool, above: tuple[Part, ...] = (), seen: set[Part] | None = None) -> None:
    """Look at the files that a dataset is made of, and at the datasets that a virtual one is made of.

    Parameters
    ----------
    elsewhere
        Whether those in other files are looked at, too: each file is opened for it, which takes as long as reading.
    above, seen
        The datasets that are made of this one, and all that were looked at.

    Raises
    ------
    UnreadableError
        Where a part is no regular file, and for what HDF5 would never come to an end with.
    """
    for name, _, _ in dataset.external or ():
        _place(name, _folders(dataset, "HDF5_EXTFILE_PREFIX"))
    if dataset.chunks is not None or not dataset.is_virtual:
        return
    sources, _ = _sources(dataset)
    seen = set() if seen is None else seen
    own = os.path.realpath(file_name(dataset))
    this = (own, dataset.name)
    if this in above or len(above) > _VIRTUAL_LEVELS:
        raise UnreadableError("it is a virtual dataset that is made of itself")
    if this in seen:
        return
    seen.add(this)
    for place, name, is_one_of_many in sources:
        if not (elsewhere or place == own):
            continue
        with suppress(OSError), h5py.File(place, "r") if place != own else nullcontext(dataset.file) as file:
            try:
                _check_path(file, f"/{name}", [])
                source = file[name]
            except (KeyError, RuntimeError) as error:  # HDF5 would give the fill value
                if is_one_of_many:
                    continue
                raise UnreadableError(f"it is made of {name!r} of {place}, which is not there; restore it") from error
            if isinstance(source, h5py.Dataset):
                check_parts(source, elsewhere=elsewhere, above=(*above, this), seen=seen)


def virtual_parts(dataset: Any) -> list[str]:
    """The files that a virtual dataset is made of; HDF5 gives the fill value for what is in files that are not there."""
    return [] if dataset.chunks is not None or not dataset.is_virtual else _sources(dataset)[1]


def _sources(dataset: Any) -> tuple[set[tuple[str, str, bool]], list[str]]:
    """The datasets that a virtual one is made of, each with whether its name stands for many, and the files by name.

    Raises
    ------
    UnreadableError
        Where a file is not there; of a name that stands for many, those are taken that are.
    """
    folders = _folders(dataset, "HDF5_VDS_PREFIX")
    places: dict[str, str | None] = {".": file_name(dataset)}
    found, named = set(), set()
    for part in dataset.virtual_sources():
        names = part.file_name, part.dset_name
        many = any("%b" in name for name in names)  # HDF5 puts the number of a block there
        if "%" not in part.file_name and part.file_name != ".":
            named.add(part.file_name)
        for block in range(_MOST_BLOCKS if many else 1):
            file, name = (each.replace("%b", str(block)) for each in names)
            if file not in places:
                places[file] = _place(file, folders)
            place = places[file]
            if place is None:
                break
            found.add((place, name, many))
    missing = sorted(name for name in named if places[name] is None)
    if missing:
        raise UnreadableError(
            f"it is made of {len(named)} files, of which these are not there: {missing[:5]}; restore them"
        )
    real = {place: os.path.realpath(place) for place in places.values() if place is not None}
    return {(real[place], name, many) for place, name, many in found}, [str(places[name]) for name in sorted(named)]


def _folders(member: Any, variable: str) -> list[str]:
    """Where HDF5 looks for the files that one names, as its ``H5F_prefix_open_file`` does."""
    file = file_name(member)
    prefixes = os.environ.get(variable, "").replace("${ORIGIN}", os.path.dirname(file)).split(":")
    return [*prefixes, os.path.dirname(file), "", os.path.dirname(os.path.realpath(file))]


def _place(name: str, folders: list[str]) -> str | None:
    """The file of that name, None where it is not there."""
    for each in [name, os.path.basename(name)] if os.path.isabs(name) else [name]:
        for folder in folders:
            place = os.path.abspath(os.path.join(folder, each))
            if os.path.isfile(place):
                return place
            if os.path.exists(place) and not os.path.isdir(place):
                raise UnreadableError(f"it points to {place}, which is no regular file (a FIFO, a socket or a device)")
    return None
