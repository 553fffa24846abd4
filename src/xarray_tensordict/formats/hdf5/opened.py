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

from ..array_wrappers import named_errors
from ..fingerprint import Fingerprint, RemovedError, coding_of, replaced
from ..raw.arrays import RawArray
from ..raw.files import NotRawError, PlainFiles
from .attrs import read_attributes
from .file import Hdf5Source, file_name


@dataclass(frozen=True)
class OpenedDataset:
    """A dataset of a source, as it was when it was described.

    Attributes
    ----------
    source, path
        The file, and the path from its group.
    fingerprint
        Its type in words without the byte order, which HDF5 gives with the values, its shape, and the attributes that say
        what its numbers mean.
    linked
        Whether it may be in another file than the source, behind an external link.
    parts
        The files that a virtual dataset is made of, with their sizes: HDF5 gives the fill value for what it cannot open.
    """

    source: Hdf5Source
    path: str
    fingerprint: Fingerprint
    linked: bool
    parts: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(
        cls,
        source: Hdf5Source,
        dataset: Any,
        path: str,
        attrs: Mapping[str, Any] | None,
        limits: tuple[int, ...] | None = None,
        parts: tuple[tuple[str, int], ...] = (),
    ) -> OpenedDataset:
        """Describe a dataset; `attrs` are those that it is read by, as :func:`read_attributes` gives them.

        `limits` is the shape that is shown, where that can be smaller.
        """
        shape = tuple(map(min, dataset.shape, limits or dataset.shape))
        grows = tuple(most is None or most > size for size, most in zip(shape, dataset.maxshape, strict=True))
        means = {} if attrs is None else {"attributes": coding_of(attrs)}
        fingerprint = Fingerprint(_type_name(dataset.dtype), shape, grows, means)
        return cls(source, path, fingerprint, file_name(dataset) != source.description, parts)

    @property
    def where(self) -> str:
        """How messages call it."""
        return f"{self.source.description}: {self.path!r}"

    @contextmanager
    def read(self) -> Iterator[Any]:
        """The open dataset, for as long as the context lasts; then a look at whether the files still hold what was read.

        Raises
        ------
        ReplacedError
            Where there is none, or what it holds would not be what was described.
        OSError
            Where a file became shorter, and for whatever HDF5 raises; the message names the file and the dataset.
        """
        with self.source.locked() as base:
            try:
                with named_errors(self.where):
                    yield self._found(base)
            finally:  # HDF5 may raise something else for the same reason
                self.source.check_size()
                for path, size in self.parts:
                    if not os.path.exists(path):
                        raise RemovedError(
                            f"{self.where}: {path}, which holds a part of it, is not there any more, and HDF5 would give the "
                            f"fill value in its place. Restore it, or leave the variable out with drop_variables=[...]"
                        )
                    if os.path.getsize(path) < size:
                        raise replaced(f"{self.where}: {path}", f"{size} bytes", f"{os.path.getsize(path)}")

    def _found(self, base: Any) -> Any:
        state = self.source.state
        if not self.linked and (state.as_opened or self.path in state.fitting):
            return base[self.path]
        dataset, now = base.get(self.path), None
        if isinstance(dataset, h5py.Dataset) and dataset.shape is not None:
            compared = bool(self.fingerprint.means) and not state.writable
            means = {"attributes": coding_of(read_attributes(dataset, (), []))} if compared else {}
            now = Fingerprint(_type_name(dataset.dtype), tuple(dataset.shape), means=means)
        self.fingerprint.compare(now, self.where)
        if not state.writable:
            state.fitting.add(self.path)
        return dataset


def _type_name(dtype: np.dtype[Any]) -> str:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return f"{list(shape)} of {_type_name(base)}"
    if dtype.names is not None:
        return ", ".join(f"{name}: {_type_name(dtype[name])}" for name in dtype.names).join("{}")
    text = h5py.check_string_dtype(dtype)
    if text is not None:
        return "text" if text.length is None else f"text of {text.length} bytes"
    row = h5py.check_vlen_dtype(dtype)
    if row is not None:
        return f"rows of {_type_name(np.dtype(row))}"
    codes = h5py.check_enum_dtype(dtype)
    return dtype.name if codes is None else f"{dtype.name} {dict(sorted(codes.items()))}"


def virtual_parts(dataset: Any) -> dict[str, str | None]:
    """The files that a virtual dataset is made of, by their names in it; None for those that are not there.

    HDF5 looks for them as ``H5Pset_virtual_prefix`` says, and ``H5F_prefix_open_file`` does.
    """
    if dataset.chunks is not None or not dataset.is_virtual:
        return {}
    file = file_name(dataset)
    prefixes = os.environ.get("HDF5_VDS_PREFIX", "").split(":")
    folders = [*prefixes, os.path.dirname(file), "", os.path.dirname(os.path.realpath(file))]
    found: dict[str, str | None] = {}
    for name in sorted({part.file_name for part in dataset.virtual_sources()}):
        if name == "." or "%" in name:  # the file itself; as many files as there are
            continue
        names = [name, os.path.basename(name)] if os.path.isabs(name) else [name]
        places = (
            os.path.join(folder.replace("${ORIGIN}", os.path.dirname(file)), each)
            for each in names
            for folder in folders
        )
        found[name] = next((os.path.abspath(place) for place in places if os.path.isfile(place)), None)
    return found


# -- bytes without HDF5 --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ContiguousDataset(PlainFiles):
    """The bytes of a contiguous dataset, read through the file that HDF5 has open.

    So it is the file that was opened, even where another one has taken its name since; and as HDF5 lets nobody in this
    process write to a file that it has open for reading alone, nothing waits in its buffers.
    """

    dataset: OpenedDataset
    offset: int
    size: int

    def where(self, number: int) -> str:
        return self.dataset.where

    @contextmanager
    def opened(self, number: int) -> Iterator[tuple[int, int]]:
        with self.dataset.source.locked():
            state = self.dataset.source.state
            if not state.as_opened or state.descriptor is None:
                raise NotRawError(f"{self.dataset.where} is to be read by HDF5")
            fileno = os.dup(state.descriptor)  # HDF5 may close its own meanwhile
        try:
            found = os.fstat(fileno).st_size
            if found < self.offset + self.size:
                raise OSError(
                    f"{self.dataset.where}: expected {self.size} bytes from {self.offset} on, and the file ends at {found}. It "
                    f"was truncated; restore it, or leave the variable out with drop_variables=[...]"
                )
            yield fileno, self.offset
        finally:
            os.close(fileno)


def as_raw(opened: OpenedDataset, dataset: Any, dtype: np.dtype[Any], otherwise: BackendArray) -> RawArray | None:
    """The dataset as an array that is read without HDF5; None where HDF5 has to convert, unpack or collect it.

    Parameters
    ----------
    opened, dataset
        What the dataset was when it was described, and the dataset itself.
    dtype
        What its elements become.
    otherwise
        What reads it through HDF5, where the file is another one by then.
    """
    state = opened.source.state
    if opened.linked or not state.as_opened or state.descriptor is None or dtype.kind not in "biufc":
        return None
    if dataset.id.get_create_plist().get_layout() != h5py.h5d.CONTIGUOUS:
        return None
    # not yet stored, or in files of its own; of a type that numpy does not have
    offset, size = dataset.id.get_offset(), math.prod(dataset.shape) * dtype.itemsize
    if not size or offset is None or dataset.id.get_storage_size() != size:
        return None
    found = dataset.dtype
    if found.itemsize != dtype.itemsize or not dataset.id.get_type().equal(h5py.h5t.py_create(found)):
        return None
    return RawArray(ContiguousDataset(opened, offset, size), dtype, tuple(dataset.shape), otherwise)
