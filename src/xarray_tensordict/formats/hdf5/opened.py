"""What a dataset of HDF5 was when its file was opened: a file that is opened again may be another one by then."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from ..fingerprint import Fingerprint, RemovedError, coding_of, replaced
from .attrs import read_attributes
from .files import Hdf5Source, file_name


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
    def of(cls, source: Hdf5Source, dataset: Any, path: str, attrs: Mapping[str, Any] | None) -> OpenedDataset:
        """Describe a dataset; `attrs` are those that it is read by, as :func:`read_attributes` gives them."""
        shape = tuple(dataset.shape)
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
        state = source.state(base)
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
