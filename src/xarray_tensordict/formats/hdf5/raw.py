"""Which datasets of HDF5 lie in a local file as they are in memory: contiguous, of a type that numpy has."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from xarray.backends.common import BackendArray

from ..raw.arrays import RawArray
from ..raw.files import NotRawError, PlainFiles
from .files import Hdf5Source
from .opened import OpenedDataset


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
        path, known = self.opened_as.path, self.source.state(base).places
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
    if not source.has_descriptor(dataset) or dtype.kind not in "biufc" or not count:
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
