"""Memory-mapped tensordicts as :class:`...core.model.Store`: folders, ``.tdz`` archives, and checkpoints of replay buffers.

Opening reads metadata alone, all of it.
"""

from __future__ import annotations

from pathlib import Path

from ...core.model import Key, LeftOut, RecordedBatch, StoredGroup, group_name, path_key
from ...core.suggest import there_are
from ...warnings import LeftOutWarning, warn
from ..base import StoreOptions
from .checkpoints import STORAGE_META, read_checkpoint
from .files import root_of
from .folders import META, LevelReader
from .levels import Level


def is_memmap_folder(path: Path) -> bool:
    """Whether a folder looks like a memory-mapped tensordict, or a checkpoint of a replay buffer of torchrl."""
    return any((path / name).is_file() for name in (META, STORAGE_META, f"storage/{META}", f"storage/{STORAGE_META}"))


def open_memmap(path: str, description: str, options: StoreOptions) -> MemmapStore:
    """Open a folder with a ``meta.json``, a ``.tdz`` archive, what ``ReplayBuffer.dumps`` wrote or ``storage`` in it.

    Raises
    ------
    FileNotFoundError
        If there is no such group.
    ValueError
        If it is no such store, or is damaged.
    """
    folder = Path(path)
    if folder.is_dir() and not (folder / META).is_file() and not (folder / STORAGE_META).is_file():
        folder /= "storage"
    with root_of(str(folder)) as location:
        if isinstance(location, Path) and (location / STORAGE_META).is_file():
            level = read_checkpoint(location, description, options)
        else:
            level = LevelReader(allow_pickle=options.allow_pickle).level(location)
    key = path_key(options.group)
    try:
        return MemmapStore(level, key, description)
    except KeyError:
        there = there_are(group_name(key), _paths(level), "the groups there are")
        raise FileNotFoundError(f"{description}: group {group_name(key)!r} does not exist; {there}") from None


class MemmapStore:
    """A memory-mapped tensordict, whose metadata have been read; see :class:`...core.model.Store`."""

    def __init__(self, top: Level, key: Key, description: str) -> None:
        self._top, self._key = top, key
        self._root = _at(top, key)
        self._description = description
        self._has_warned = False

    @property
    def description(self) -> str:
        return self._description

    def enclosing(self) -> MemmapStore | None:
        """The group that holds the opened one."""
        return MemmapStore(self._top, self._key[:-1], self._description) if self._key else None

    def close(self) -> None:
        """Nothing stays open."""

    def group(self, key: Key = ()) -> StoredGroup:
        """Describe the group at `key`; nothing is read but metadata."""
        level = _at(self._root, key)
        if level.ragged is not None and not self._has_warned:
            self._has_warned = True
            first, last = (group_name((*key, name)) for name in ("0", next(reversed(level.children))))
            warn(
                f"{self._description}: the members of the lazy stack at {group_name(key)!r} differ ({level.ragged}), so "
                f"they are shown as the groups {first!r} to {last!r}. Open one of them with group=, or, where they "
                f"differ in the number of rows alone, concatenate them with xr.open_datatree(...).td.concat(dim)",
                LeftOutWarning,
            )
        return StoredGroup(
            key,
            dict(level.arrays),
            tuple(level.children),
            recorded=None if level.batch is None else RecordedBatch(level.batch, level.names),
            left_out=[LeftOut((*key, name), reason) for name, reason in level.left_out.items()],
            tensorclass=level.tensorclass,
        )


def _at(level: Level, key: Key) -> Level:
    for part in key:
        level = level.children[part]
    return level


def _paths(level: Level, key: Key = ()) -> list[str]:
    found = []
    for name, child in level.children.items():
        found += [group_name((*key, name)), *_paths(child, (*key, name))]
    return found
