"""Where the bytes of a memory-mapped tensordict lie: in the files of a folder, or in the entries of a ``.tdz`` archive.

How they are copied out is the business of :mod:`..raw.files`. What is handed out holds paths and sizes only, so it
pickles small, and works in other processes and from many threads.
"""

from __future__ import annotations

import json
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from ...core.model import Key
from ..fingerprint import Described, Entry
from ..raw.files import Buffer, Bytes, Places, PlainFiles, open_file
from ..raw.kept import Kept

_LOCAL_HEADER = struct.Struct("<4s5H3I2H")  # of a zip entry (APPNOTE.TXT, 4.3.7)
_PIECE = 2**24
# zlib, bz2 and lzma raise errors of their own, zipfile some others (RuntimeError: encrypted)
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    NotImplementedError,
    RuntimeError,
    EOFError,
    OSError,
    KeyError,
    zlib.error,
    lzma.LZMAError,
)


class Files(Protocol):
    """The files of one memory-mapped tensordict; a path is a tuple of its parts below the root."""

    def where(self, path: Key) -> str:
        """How messages call a file or folder."""

    def names(self, folder: Key) -> AbstractSet[str]:
        """The names of what is in a folder; empty where there is no such folder."""

    def read(self, path: Key) -> bytes | None:
        """A small file as a whole; None where there is none."""

    def described(self, path: Key) -> Described | None:
        """A JSON file that describes arrays; None where there is none."""

    def array(self, path: Key, size: int, what: str, entry: Entry) -> Bytes:
        """The bytes of an array; `size` is how many there have to be and `what` says why, ``"float32 [4, 3]"``.

        `entry` tells whether the metadata still say so.
        """


# -- a folder ----------------------------------------------------------------------------------------------------------


class FolderFiles:
    """The files in a folder and those below it."""

    def __init__(self, root: str) -> None:
        self._root = os.path.abspath(root)

    def where(self, path: Key) -> str:
        return os.path.join(self._root, *path)

    def names(self, folder: Key) -> AbstractSet[str]:
        try:
            return set(os.listdir(self.where(folder)))
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def read(self, path: Key) -> bytes | None:
        try:
            with open(self.where(path), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def described(self, path: Key) -> Described | None:
        where = self.where(path)
        try:
            return Described(where, partial(_json_in, where), os.stat(where))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def array(self, path: Key, size: int, what: str, entry: Entry) -> Bytes:
        return FileBytes(self.where(path), size, what, entry)


def _json_in(path: str) -> Any:
    with open(path, "rb") as file:
        return json.loads(file.read())


@dataclass(frozen=True)
class FileBytes(PlainFiles):
    """A file that holds the bytes of one array, from `offset` on."""

    path: str
    size: int
    what: str
    entry: Entry
    offset: int = 0

    def where(self, number: int) -> str:
        return self.path

    def place(self, number: int) -> tuple[str, int]:
        return self.path, self.offset

    @contextmanager
    def opened(self, number: int) -> Iterator[tuple[int, int]]:
        with open_file(self.path) as fileno:
            # after the file is opened: what is renamed in between is seen
            self.entry.check(self.path)
            _check_size(self.path, self.what, self.size, os.fstat(fileno).st_size - self.offset)
            yield fileno, self.offset

    def mapped(self, number: int, kept: Kept) -> Buffer | None:
        self.entry.check(self.path)  # tensordict writes over a file that is there, and a map shows what it wrote
        return super().mapped(number, kept)


def _check_size(name: str, what: str, expected: int, found: int) -> None:
    if found < expected:
        raise ValueError(
            f"{name}: meta.json says that it holds {what}, which is {expected} bytes, and it has {found}. It was "
            f"truncated, "
            f"or meta.json is of another version of the store: restore it, or leave the entry out with "
            f"drop_variables=[...]"
        )


# -- an archive --------------------------------------------------------------------------------------------------------


class ArchiveFiles:
    """The entries of a zip archive that tensordict (or ``zip``) made of such a folder."""

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)
        self._texts: dict[str, bytes] = {}
        self._status = os.stat(self._path)
        try:
            with zipfile.ZipFile(self._path) as archive:
                self._entries = {info.filename: info for info in archive.infolist() if not info.is_dir()}
                # all that opening reads, so that the file need not stay open
                for name in self._entries:
                    if name.endswith(".json"):
                        self._texts[name] = archive.read(name)
        except _ZIP_ERRORS as error:
            raise ValueError(f"{path}: expected a .tdz archive, found a damaged zip file ({error})") from error
        self._names: dict[str, set[str]] = {}
        for name in self._entries:
            while name:
                folder, _, last = name.rpartition("/")
                self._names.setdefault(folder, set()).add(last)
                name = folder

    def where(self, path: Key) -> str:
        return f"{self._path}::{'/'.join(path)}"

    def names(self, folder: Key) -> AbstractSet[str]:
        return self._names.get("/".join(folder), set())

    def read(self, path: Key) -> bytes | None:
        name = "/".join(path)
        if name in self._texts or name not in self._entries:
            return self._texts.get(name)
        try:
            with zipfile.ZipFile(self._path) as archive:
                return archive.read(name)
        except _ZIP_ERRORS as error:
            raise ValueError(f"{self.where(path)}: the entry of the archive cannot be read: {error}") from error

    def described(self, path: Key) -> Described | None:
        name = "/".join(path)
        return (
            Described(self._path, partial(_json_of_entry, self._path, name), self._status)
            if name in self._texts
            else None
        )

    def array(self, path: Key, size: int, what: str, entry: Entry) -> Bytes:
        info = self._entries["/".join(path)]
        if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:
            return StoredEntry(self._path, info.filename, info.header_offset, info.file_size, size, what, entry)
        return CompressedEntry(self._path, info.filename, size, what, entry)


def _json_of_entry(archive: str, name: str) -> Any:
    with zipfile.ZipFile(archive) as opened:
        return json.loads(opened.read(name))


@dataclass(frozen=True)
class StoredEntry(PlainFiles):
    """An entry that is not compressed: a part of the file."""

    archive: str
    name: str
    header: int
    held: int
    size: int
    what: str
    entry: Entry

    def where(self, number: int) -> str:
        return f"{self.archive}::{self.name}"

    @contextmanager
    def opened(self, number: int) -> Iterator[tuple[int, int]]:
        where = self.where(number)
        _check_size(where, self.what, self.size, self.held)
        with open_file(self.archive) as fileno:
            fixed = os.pread(fileno, _LOCAL_HEADER.size, self.header)
            signature, _, flags, method, *_, name_length, extra_length = (
                _LOCAL_HEADER.unpack(fixed) if len(fixed) == _LOCAL_HEADER.size else (b"", 0, 0, 0, 0, 0)
            )
            name = os.pread(fileno, name_length, self.header + _LOCAL_HEADER.size)
            is_plain = method == zipfile.ZIP_STORED and not flags & 1
            if signature != b"PK\x03\x04" or name not in _encoded(self.name) or not is_plain:
                raise ValueError(
                    f"{where}: the entry is no longer where it was; another file has taken the place of the archive "
                    f"since it "
                    f"was opened. Open it again"
                )
            self.entry.check(where)
            offset = self.header + _LOCAL_HEADER.size + name_length + extra_length
            _check_size(where, self.what, self.size, os.fstat(fileno).st_size - offset)
            yield fileno, offset


def _encoded(name: str) -> list[bytes]:
    try:
        return [name.encode("utf-8"), name.encode("cp437")]
    except UnicodeEncodeError:
        return [name.encode("utf-8")]


@dataclass(frozen=True)
class CompressedEntry:
    """An entry that has to be decompressed, from its beginning to the last byte that is wanted."""

    archive: str
    name: str
    size: int
    what: str
    entry: Entry

    @property
    def is_compressed(self) -> bool:
        return True

    def view(self, start: int, stop: int) -> Buffer:
        where = f"{self.archive}::{self.name}"
        found = bytearray()
        try:
            with zipfile.ZipFile(self.archive) as opened, opened.open(self.name) as entry:
                _check_size(where, self.what, self.size, opened.getinfo(self.name).file_size)
                left = start
                while left and (skipped := len(entry.read(min(left, _PIECE)))):
                    left -= skipped
                while len(found) < stop - start and (piece := entry.read(min(stop - start - len(found), _PIECE))):
                    found += piece
                if stop == self.size:
                    entry.read(1)  # zipfile compares the checksum at the end
        except _ZIP_ERRORS as error:
            raise ValueError(f"{where}: the entry of the archive cannot be read: {error}") from error
        self.entry.check(where)
        if len(found) != stop - start:
            raise ValueError(f"{where}: the entry of the archive ends too early; the archive is damaged")
        return np.frombuffer(found, np.uint8)

    def rows(self, starts: Places, out: Buffer, kept: Kept | None = None) -> bool:
        return False

    def private(self) -> Buffer | None:
        return None
