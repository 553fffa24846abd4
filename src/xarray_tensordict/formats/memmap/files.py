"""Where a memory-mapped tensordict lies: in a folder (``pathlib.Path``), or in a ``.tdz`` archive (``zipfile.Path``).

Nothing stays open. The bytes of arrays (:class:`FileBytes`, :class:`CompressedMember`) hold paths and sizes only, so they
pickle small, and are read in other processes and from many threads.
"""

from __future__ import annotations

import lzma
import mmap
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ...core.metadata import LARGEST, Size, checked, parse
from ..identity import Described, replaced
from ..raw.files import Buffer, Bytes, Kept, Places, PlainFiles, map_file, open_file

Location = Path | zipfile.Path

_LOCAL_HEADER = struct.Struct("<4s5H3I2H")  # of a zip entry (APPNOTE.TXT, 4.3.7)
# zlib, lzma and struct raise errors of their own, zipfile some others (RuntimeError: encrypted)
ZIP_ERRORS = (
    *(zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, KeyError),
    *(struct.error, zlib.error, lzma.LZMAError),
)
_MOST_COMPRESSED = 2**17
"""How many bytes one byte of an archive can be, at most (bzip2: about 50,000)."""
_UNSAFE = {*'/<>:"|?*\\ \0%', *map(chr, range(32)), chr(127)}


def file_stem(key: str) -> str:
    """How tensordict calls the file (or folder) of a key.

    Examples
    --------
    >>> file_stem("wind speed/10m"), file_stem(".."), file_stem("")
    ('wind%20speed%2F10m', '%2E%2E', '%')
    """
    if not key:
        return "%"
    if key in (".", ".."):
        return "%2E" * len(key)
    return "".join(f"%{ord(char):02X}" if char in _UNSAFE else char for char in key)


def stem_in(folder: Location, key: str, suffix: str) -> str:
    """The encoded name of a key, or the plain one that older versions wrote, if only that is in the folder."""
    stem = file_stem(key)
    is_safe = key not in ("", ".", "..") and not {"/", "\\", "\0"} & set(key)
    if is_safe and key != stem and not (folder / f"{stem}{suffix}").exists() and (folder / f"{key}{suffix}").exists():
        return key
    return stem


@contextmanager
def root_of(path: str) -> Iterator[Location]:
    """The root of a folder, or of an archive, which is open meanwhile.

    Raises
    ------
    OSError
        For an archive that is damaged.
    ValueError
        For one with a path that has an empty part.
    """
    path = os.path.abspath(path)
    if os.path.isdir(path):
        yield Path(path)
        return
    try:
        archive = zipfile.ZipFile(path)
    except ZIP_ERRORS as error:
        raise OSError(f"{path}: expected a .tdz archive, found a damaged zip file ({error})") from error
    with archive:
        nameless = [name for name in archive.namelist() if "" in name.removesuffix("/").split("/")]
        if nameless:
            raise ValueError(f"{path}: expected a .tdz archive, found one with the path {nameless[0]!r} in it")
        yield zipfile.Path(archive)


def size_of(file: Location) -> int:
    """How many bytes are in a file, or in the member of an archive when it is decompressed.

    Links are followed to any place: a cache keeps its files elsewhere.

    Raises
    ------
    FileNotFoundError
        Where there is none.
    ValueError
        Where it is no file: a folder, a device, or a pipe, on which reading waits for a writer.
    """
    if isinstance(file, zipfile.Path):
        if not file.exists():
            raise FileNotFoundError(f"there is no {file}")
        if not file.is_file():
            raise ValueError(f"{file}: expected a file, found a folder")
        info, held = file.root.getinfo(file.at), os.path.getsize(str(file.root.filename))
        # the size in the archive may be wrong, and memory is taken for it
        return min(info.file_size, held if info.compress_type == zipfile.ZIP_STORED else held * _MOST_COMPRESSED)
    status = os.stat(file)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(
            f"{file}: expected a file, found {'a folder' if stat.S_ISDIR(status.st_mode) else 'a device or a pipe'}"
        )
    return status.st_size


def read_small(file: Location) -> bytes:
    """The bytes of a file that is no array.

    Raises
    ------
    FileNotFoundError
        Where there is none.
    OSError
        Where it cannot be read from its archive.
    ValueError
        Where it is no file, or is too large.
    """
    size = size_of(file)
    if size > LARGEST:
        raise ValueError(
            f"{file}: it has {size} bytes, and what is read while a store is opened may have {LARGEST >> 20} MiB"
        )
    try:
        return file.read_bytes()
    except ZIP_ERRORS as error:
        raise OSError(f"{file}: it cannot be read: {error}") from error


def read_json(file: Location) -> tuple[dict[str, Any], Described]:
    """A JSON document, and a check whether it is still the same; raises as :func:`read_small`."""
    if isinstance(file, Path):
        status = os.stat(file)
        return _json_in(file), Described(str(file), partial(_json_in, file), status)
    archive = str(file.root.filename)
    return _json_in(file), Described(archive, partial(_json_in_archive, archive, file.at), os.stat(archive))


def _json_in(file: Location) -> dict[str, Any]:
    """A JSON document; in an archive with the places of the tensors that it describes."""
    document = parse(read_small(file), dict[str, Any], str(file))
    if isinstance(file, zipfile.Path):
        folder: Any = file.parent
        for key, entry in document.items():
            if isinstance(entry, dict) and "dtype" in entry:
                entry["_place"] = _place(folder / f"{stem_in(folder, key, '.memmap')}.memmap")
    return document


def _json_in_archive(path: str, name: str) -> dict[str, Any]:
    with root_of(path) as root:
        if not (root / name).exists():
            raise ValueError(f"there is no {name} in it")
        return _json_in(root / name)


def _place(member: zipfile.Path) -> tuple[int, int] | None:
    """From where to where in its archive the bytes of a file lie, behind a header of its own; None if compressed."""
    info = member.root.NameToInfo.get(member.at)
    if info is None or info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        return None
    with open_file(str(member.root.filename)) as fileno:
        header = os.pread(fileno, _LOCAL_HEADER.size, info.header_offset)
    if len(header) < _LOCAL_HEADER.size:
        raise OSError(f"{member}: its header in the archive is cut; the archive is damaged")
    *_, name_length, extra_length = _LOCAL_HEADER.unpack(header)
    start = info.header_offset + _LOCAL_HEADER.size + name_length + extra_length
    return start, start + info.file_size


class TensorEntry(msgspec.Struct, frozen=True, rename={"place": "_place"}):
    """The description of a tensor in a ``meta.json`` or in the metadata of a checkpoint.

    Attributes
    ----------
    dtype, shape
        Of the tensor.
    is_nested
        Whether its rows have sizes of their own.
    place
        From where to where its bytes lie in an archive, None where it is compressed, or there is no archive.
    """

    dtype: str
    shape: tuple[Size, ...]
    is_nested: bool = False
    place: tuple[Size, Size] | None = None

    def __str__(self) -> str:
        lie = "" if self.place is None else " in the bytes {} to {}".format(*self.place)
        return f"{self.dtype.removeprefix('torch.')} {list(self.shape)}{lie}"


@dataclass(frozen=True)
class Noted:
    """What was noted of one array when the store was opened.

    Attributes
    ----------
    described
        The file with the metadata.
    keys
        Where in it.
    stated
        The description of the array in it.
    """

    described: Described
    keys: tuple[str, ...]
    stated: TensorEntry

    def check(self, where: str) -> None:
        """Raise where the metadata have changed; `where` is how messages call the array."""
        now = self.described.changed()
        if now is None:
            return
        for key in self.keys:
            now = now.get(key) if isinstance(now, dict) else None
        try:
            found: TensorEntry | str = checked(now, TensorEntry, where)
        except ValueError:
            found = "no array"
        if found != self.stated:
            raise replaced(where, str(self.stated), str(found))


def bytes_of(file: Location, size: int, entry: Noted) -> Bytes:
    """The bytes of an array: how many there have to be, and its description in the metadata."""
    if isinstance(file, Path) or not size:  # of an array without elements there is no file
        return FileBytes(str(file), size, entry)
    archive, place = str(file.root.filename), entry.stated.place
    if place is None:
        return CompressedMember(archive, file.at, size, entry)
    return FileBytes(archive, size, entry, *place, file.at)


@dataclass(frozen=True)
class FileBytes(PlainFiles):
    """The bytes of one array: a file, or its part from `offset` to `stop`, which is the member `name` of an archive."""

    path: str
    size: int
    entry: Noted
    offset: int = 0
    stop: int | None = None
    name: str = ""

    def where(self, number: int) -> str:
        return os.path.join(self.path, self.name) if self.name else self.path

    def place(self, number: int) -> tuple[str, int]:
        return self.path, self.offset

    @contextmanager
    def opened(self, number: int) -> Iterator[tuple[int, int]]:
        with open_file(self.path) as fileno:
            # after the file is opened: what is renamed in between is seen
            self.entry.check(self.where(number))
            end = os.fstat(fileno).st_size
            held = (end if self.stop is None else min(self.stop, end)) - self.offset
            _check_size(self.where(number), self.entry, self.size, held)
            yield fileno, self.offset

    def mapped(self, number: int, kept: Kept) -> Buffer | None:
        self.entry.check(self.path)  # tensordict writes over an existing file, and a map shows what it wrote
        return super().mapped(number, kept)

    def private(self) -> Buffer | None:
        if not self.size:
            return np.empty(0, np.uint8)
        with self.opened(0) as (fileno, offset):
            return map_file(fileno, offset, self.size, mmap.ACCESS_COPY)


def _check_size(name: str, entry: Noted, expected: int, found: int) -> None:
    if found < expected:
        raise ValueError(
            f"{name}: meta.json states that it holds {entry.stated}, which is {expected} bytes, and it has {max(found, 0)}. It was "
            f"truncated, or meta.json is of another version of the store: restore it, or leave the entry out with "
            f"drop_variables=[...]"
        )


@dataclass(frozen=True)
class CompressedMember:
    """A member of an archive that has to be decompressed, from its beginning to the last byte that is asked for."""

    path: str
    name: str
    size: int
    entry: Noted

    @property
    def is_compressed(self) -> bool:
        return True

    def view(self, start: int, stop: int) -> Buffer:
        where = os.path.join(self.path, self.name)
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(self.name) as member:
                held = archive.getinfo(self.name).file_size
                member.seek(start)  # which decompresses
                found = member.read(stop - start)  # at the end zipfile compares the checksum
        except ZIP_ERRORS as error:
            raise OSError(f"{where}: the entry of the archive cannot be read: {error}") from error
        self.entry.check(where)
        _check_size(where, self.entry, self.size, held)
        if len(found) != stop - start:
            raise OSError(f"{where}: the entry of the archive ends too early; the archive is damaged")
        return np.frombuffer(found, np.uint8)

    def rows(self, starts: Places, out: Buffer, kept: Kept | None = None) -> bool:
        return False

    def private(self) -> Buffer | None:
        return None
