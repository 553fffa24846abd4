"""A dataset that was described when its file was opened: whether it is still that one, and where its bytes lie.

A file that is opened again may be another one by then. A contiguous dataset of a type that numpy has lies in a local file
as it is in memory, and is read without HDF5.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from xarray.backends.common import BackendArray

from ..fingerprint import Fingerprint, RemovedError, coding_of, replaced
from ..raw.arrays import RawArray
from ..raw.files import NotRawError, PlainFiles
from .attrs import read_attributes
from .file import Hdf5Source, file_name


@dataclass(frozen=True)
class OpenedDataset:
    """A dataset, as it was when it was described.

    Attributes
    ----------
    path
        Its path from the group of the source.
    dtype
        Its type in words, without the byte order: HDF5 tells that with the values.
    shape, grows
        Its shape, and which axes can be longer later.
    coding
        The attributes that say what its numbers mean; None where they are not used.
    linked
        Whether it may be in another file than the source, behind an external link.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    grows: tuple[bool, ...]
    coding: str | None
    linked: bool

    @classmethod
    def of(
        cls,
        source: Hdf5Source,
        dataset: Any,
        path: str,
        attrs: Mapping[str, Any] | None,
        limits: tuple[int, ...] | None = None,
    ) -> OpenedDataset:
        """Describe a dataset; `attrs` are those that it is read by, as :func:`read_attributes` gives them.

        `limits` is the shape that is shown, where that can be smaller.
        """
        shape = tuple(map(min, dataset.shape, limits or dataset.shape))
        grows = tuple(most is None or most > size for size, most in zip(shape, dataset.maxshape, strict=True))
        return cls(
            path,
            _type_name(dataset.dtype),
            shape,
            grows,
            None if attrs is None else coding_of(attrs),
            file_name(dataset) != source.description,
        )

    def find(self, source: Hdf5Source, base: Any) -> Any:
        """The dataset in a file that is open now; `base` is the group that `source` has locked.

        Raises
        ------
        ReplacedError
            Where there is none, or what it holds would not be what was described.
        """
        state = source.state
        if not self.linked and (state.as_opened or self.path in state.fitting):
            return base[self.path]
        where = f"{source.description}: {self.path!r}"
        try:
            dataset = base[self.path]
        except KeyError as error:
            raise replaced(where, f"{self.dtype} {list(self.shape)}", "no such dataset") from error
        self._compare(dataset, where, attributes=not state.writable)
        if not state.writable:
            state.fitting.add(self.path)
        return dataset

    def _compare(self, dataset: Any, where: str, *, attributes: bool) -> None:
        now = None
        if isinstance(dataset, h5py.Dataset) and dataset.shape is not None:
            compared = attributes and self.coding is not None
            means = {"attributes": coding_of(read_attributes(dataset, (), []))} if compared else {}
            now = Fingerprint(_type_name(dataset.dtype), tuple(dataset.shape), means=means)
        coding = {} if self.coding is None else {"attributes": self.coding}
        Fingerprint(self.dtype, self.shape, self.grows, coding).compare(now, where)


def _type_name(dtype: np.dtype[Any]) -> str:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return f"{list(shape)} of {_type_name(base)}"
    if dtype.names is not None:
        return ", ".join(f"{name}: {_type_name(dtype[name])}" for name in dtype.names).join("{}")
    if dtype.metadata is None:
        return dtype.name
    text = h5py.check_string_dtype(dtype)
    if text is not None:
        return "text" if text.length is None else f"text of {text.length} bytes"
    row = h5py.check_vlen_dtype(dtype)
    if row is not None:
        return f"rows of {_type_name(np.dtype(row))}"
    codes = h5py.check_enum_dtype(dtype)
    return dtype.name if codes is None else f"{dtype.name} {dict(sorted(codes.items()))}"


@dataclass(frozen=True)
class VirtualSources:
    """The files that a virtual dataset is made of; HDF5 gives the fill value for what it cannot open.

    Attributes
    ----------
    there
        Those that were there when the dataset was described, with their sizes.
    missing
        The names of the others.
    """

    there: tuple[tuple[str, int], ...]
    missing: tuple[str, ...]

    @classmethod
    def of(cls, dataset: Any, file: str) -> VirtualSources | None:
        """The sources of a dataset in a file; None where it is not virtual."""
        if not dataset.is_virtual:
            return None
        # "." is the file itself; a name with % stands for as many files as there are
        names = {part.file_name for part in dataset.virtual_sources()}
        found = {name: _where_is(name, file) for name in sorted(names) if name != "." and "%" not in name}
        there = tuple((path, os.stat(path).st_size) for path in found.values() if path is not None)
        return cls(there, tuple(name for name, path in found.items() if path is None))

    def check(self, where: str) -> None:
        """Raise where a file that was there is gone, or became shorter."""
        for path, size in self.there:
            try:
                found = os.stat(path).st_size
            except OSError as error:
                raise RemovedError(
                    f"{where}: {path}, which holds a part of it, is not there any more, and HDF5 would give the fill value in "
                    f"its place. Restore it, or leave the variable out with drop_variables=[...]"
                ) from error
            if found < size:
                raise replaced(f"{where}: {path}", f"{size} bytes", f"{found}")


def _where_is(name: str, file: str) -> str | None:
    """Where HDF5 finds a source (H5Pset_virtual_prefix, and ``H5F_prefix_open_file``); None where it finds none."""
    prefixes = os.environ.get("HDF5_VDS_PREFIX", "").split(":")
    folders = [*prefixes, os.path.dirname(file), "", os.path.dirname(os.path.realpath(file))]
    names = [name, os.path.basename(name)] if os.path.isabs(name) else [name]
    candidates = [
        os.path.join(folder.replace("${ORIGIN}", os.path.dirname(file)), each) for each in names for folder in folders
    ]
    return next((os.path.abspath(path) for path in candidates if os.path.isfile(path)), None)


# -- bytes without HDF5 --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ContiguousDataset(PlainFiles):
    """The bytes of a contiguous dataset, read through the file that HDF5 has open.

    So it is the file that was opened, even where another one has taken its name since; and as HDF5 lets nobody in this
    process write to a file that it has open for reading alone, nothing waits in its buffers.
    """

    source: Hdf5Source
    opened_as: OpenedDataset
    dtype: str
    size: int

    def where(self, number: int) -> str:
        return f"{self.source.description}: {self.opened_as.path!r}"

    @contextmanager
    def opened(self, number: int) -> Iterator[tuple[int, int]]:
        with self.source.locked() as base:
            place = self._known_place(base)
            if place is None:
                raise NotRawError(f"{self.where(number)} is to be read by HDF5")
            fileno, offset = place
        try:
            found = os.fstat(fileno).st_size
            if found < offset + self.size:
                raise OSError(
                    f"{self.where(number)}: expected {self.size} bytes from {offset} on, and the file ends at {found}. It "
                    f"was truncated; restore it, or leave the variable out with drop_variables=[...]"
                )
            yield fileno, offset
        finally:
            os.close(fileno)

    def _known_place(self, base: Any) -> tuple[int, int] | None:
        """As `place_of`, looked up once while a file is open: what is contiguous and stored stays where it is."""
        path, known = self.opened_as.path, self.source.state.places
        if path in known:
            fileno, offset = known[path]
            return os.dup(fileno), offset
        self.opened_as.find(self.source, base)
        place = place_of(base, path, self.dtype, self.size)
        if place is not None:
            own = h5py.h5i.get_file_id(base.id).get_vfd_handle()
            # a dataset behind an external link is in another file, which HDF5 closes again
            if os.path.sameopenfile(place[0], own):
                known[path] = own, place[1]
        return place


def as_raw(
    source: Hdf5Source, opened: OpenedDataset, dataset: Any, dtype: Any, otherwise: BackendArray
) -> RawArray | None:
    """The dataset as an array that is read without HDF5; None where HDF5 has to convert, unpack or collect it.

    Parameters
    ----------
    source, opened
        The file, and what the dataset in it was when it was described.
    dataset
        The open dataset.
    dtype
        What its elements become.
    otherwise
        What reads it through HDF5: in a file that this process has open for writing, or where nothing is stored yet.
    """
    count = math.prod(dataset.shape)  # h5py asks HDF5 for `size` anew
    if source.state.descriptor is None or dtype.kind not in "biufc" or not count:
        return None
    if dataset.id.get_create_plist().get_layout() != h5py.h5d.CONTIGUOUS:
        return None
    found = dataset.dtype
    if not dataset.id.get_type().equal(h5py.h5t.py_create(found)) or found.itemsize != dtype.itemsize:
        return None
    size = count * dtype.itemsize
    return RawArray(ContiguousDataset(source, opened, dtype.str, size), dtype, tuple(dataset.shape), otherwise)


def place_of(base: Any, path: str, dtype: str, size: int) -> tuple[int, int] | None:
    """A copy of the file descriptor that HDF5 reads from, and where the bytes of the dataset begin.

    None where they are not as in memory (numpy's `dtype`), not stored in one piece, or may wait in the buffers of HDF5.

    It is copied while the dataset is open: behind an external link HDF5 closes the file with its last object.
    """
    dataset = h5py.h5d.open(base.id, path.encode())
    file = h5py.h5i.get_file_id(dataset)
    offset = dataset.get_offset()
    # the intent is that of the file, not of this handle: it tells of all that this process has open
    if offset is None or file.get_intent() != h5py.h5f.ACC_RDONLY or dataset.get_storage_size() != size:
        return None
    if not dataset.get_type().equal(h5py.h5t.py_create(np.dtype(dtype))):
        return None
    return os.dup(file.get_vfd_handle()), offset
