"""What a format is to the rest of the package: it claims sources, opens them as a ``Store``, and writes new ones.

A format is a folder with a module ``format.py`` and one line in :mod:`.registry`. No other module compares names of formats.
What a file is that no format opens is here, too.
"""

from __future__ import annotations

import zipfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import xarray as xr
    from tensordict import PersistentTensorDict

    from ..core.model import Key, Store


@dataclass(frozen=True)
class StoreOptions:
    """How a store is opened; a format passes over the options that mean nothing to it.

    Attributes
    ----------
    group
        The path of the group that is opened as the root.
    consolidated
        Whether zarr reads consolidated metadata; None: of remote stores only.
    storage_options
        For a URL, as in ``xr.open_zarr``.
    zarr_format
        2 or 3, where it is known.
    use_zarr_fill_value_as_mask
        As in ``xr.open_zarr``; None: of zarr v2 arrays with ``_ARRAY_DIMENSIONS`` only.
    allow_pickle
        Whether pickled entries are loaded. Loading a pickle can run any code.
    filled
        Whether a checkpoint of a replay buffer is trimmed to the rows that have been filled.
    """

    group: str | None = None
    consolidated: bool | None = None
    storage_options: dict[str, Any] | None = None
    zarr_format: int | None = None
    use_zarr_fill_value_as_mask: bool | None = None
    allow_pickle: bool = False
    filled: bool = True


@dataclass(frozen=True)
class Annotations:
    """What ``annotate`` adds to the metadata of a store; keys are relative to its `group`.

    Attributes
    ----------
    dims
        For each array that lacks a dimension name the names of all its axes.
    records
        For each group the record of its batch.
    group
        The group that is annotated.
    storage_options
        For a URL.
    """

    dims: Mapping[Key, tuple[str, ...]]
    records: Mapping[Key, dict[str, Any]]
    group: str | None = None
    storage_options: dict[str, Any] | None = None


class Format(ABC):
    """One format of stores. A source is a local path (absolute, a str), a URL, or an object of a library.

    Attributes
    ----------
    expects
        What it opens, as messages list it.
    marks
        The files that mark a folder of it, as messages list them; empty where it has no folders.
    targets
        What it writes: by the name that ``convert --to`` takes, the endings of the names of new files.
    url_endings
        The endings of URLs that it opens.
    engine
        The engine of xarray's own that opens such stores, None where there is none.
    backend
        The backend of ``PersistentTensorDict`` that opens such stores, None where there is none.
    why_not_annotated
        Why no metadata can be added to such a store, and what to do; None where that can be done.
    """

    expects: ClassVar[str]
    marks: ClassVar[str] = ""
    targets: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    url_endings: ClassVar[tuple[str, ...]] = ()
    engine: ClassVar[str | None] = None
    backend: ClassVar[str | None] = None
    why_not_annotated: ClassVar[str | None] = None

    @abstractmethod
    def claims(self, source: Any) -> bool:
        """Whether a path that exists, or an object, is of this format; URLs are known by their endings."""

    @abstractmethod
    def open(self, source: Any, description: str, options: StoreOptions) -> Store:
        """Open a source for reading.

        Parameters
        ----------
        source
            What :meth:`claims` returned True for.
        description
            How messages call it.
        options
            How it is opened.

        Raises
        ------
        FileNotFoundError
            Where there is no such store, or no such group in it.
        ValueError
            Where it is damaged.
        """

    @abstractmethod
    def kind(self, source: Any) -> str:
        """What a source is, in words: "zarr store"."""

    def why_not_changed(self, source: Any) -> str | None:
        """Why the values of a source cannot be changed in place, as the end of a sentence; None where they can."""
        return f"a {self.kind(source)} is read only here"

    def open_bare(self, source: Any, group: str, mode: str, **options: Any) -> PersistentTensorDict:
        """A group of a source as tensordict itself opens it, where there is a `backend`; `options` are tensordict's."""
        raise NotImplementedError

    def annotate(self, source: Any, description: str, annotations: Annotations) -> None:
        """Add dimension names and records of batches to the metadata of a source; first all is checked.

        Raises
        ------
        ValueError
            Where these would change what a library reads.
        """
        raise NotImplementedError

    def write(self, ds: xr.Dataset | xr.DataTree, target: str, *, layout: str, chunks: Any, **options: Any) -> None:
        """Write a new store to a path, or to a URL where the format takes one."""
        raise NotImplementedError


def check_records(root: Any, annotations: Annotations) -> None:
    """Refuse arrays of records, which are shown as groups of their fields; tensordict has no such thing."""
    above = {"/".join(key[:-1]) for key in annotations.dims if len(key) > 1}
    records = sorted(path for path in above if hasattr(root[path], "dtype"))
    if records:
        raise ValueError(
            f"plain tensordict cannot read arrays of records: {records}. Write a store that both read with ds.td.to_zarr(...). "
            f"Nothing was changed"
        )


# How files of formats begin (the format specifications of Unidata, WMO, the HDF group, PKWARE, Apache, Adobe).
_ENGINES = {
    b"CDF\x01": "a netCDF-3 file. Open it with engine='scipy' or engine='netcdf4'",
    b"CDF\x02": "a netCDF-3 file (64-bit offset). Open it with engine='scipy' or engine='netcdf4'",
    b"CDF\x05": "a netCDF-3 file (CDF-5). Open it with engine='netcdf4'",
    b"GRIB": "a GRIB file. Open it with engine='cfgrib'",
    b"\x0e\x03\x13\x01": "an HDF4 file. Convert it to HDF5 with h4toh5",
    b"II*\x00": "a TIFF file. Open it with engine='rasterio' (rioxarray)",
    b"MM\x00*": "a TIFF file. Open it with engine='rasterio' (rioxarray)",
    b"\x1f\x8b": "a gzip file. Unpack it",
    b"\x93NUMPY": "a file of numpy. xr.DataArray(numpy.load(path)).to_dataset(name='x') makes a Dataset of it",
    b"PAR1": "a parquet file. pandas.read_parquet(path).to_xarray() makes a Dataset of it",
    b"ARROW1": "an Arrow file. pandas.read_feather(path).to_xarray() makes a Dataset of it",
}
_OF_TORCH = (
    "what looks like a file of torch.save. Load it with torch.load(path), for a tensordict torch.load(path, weights_only=False), which "
    "can run any code, so only where you trust the file; then xarray_tensordict.to_dataset(td) makes a Dataset of a tensordict"
)
_TORCH_BEFORE_ZIP = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 "


def archive_names(path: str) -> list[str] | None:
    """The paths in a zip archive; None where it is none, or is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError):
        return None


def what_starts_with(head: bytes, names: Collection[str] | None = None) -> str:
    """What a file is, and what opens it.

    Parameters
    ----------
    head
        Its first bytes.
    names
        The paths in it where it is a zip archive, as far as they are known.

    Examples
    --------
    >>> what_starts_with(b"GRIB")
    "a GRIB file. Open it with engine='cfgrib'; ds.td works on a Dataset from any engine"
    """
    if head.startswith(_TORCH_BEFORE_ZIP) or (head.startswith(b"PK") and names is None):
        return _OF_TORCH
    if head.startswith(b"PK"):
        return _what_has(names or ())
    for start, what in _ENGINES.items():
        if head.startswith(start):
            return f"{what}; ds.td works on a Dataset from any engine"
    if head[:1] == b"\x80":
        return "a pickle, which can run any code when it is loaded; nothing here loads it"
    if head.lstrip().startswith(b"{"):
        return "a file of JSON that is no kerchunk reference"
    found = f"a file that starts with {head[:8]!r}" if head else "an empty file"
    if head and all(byte in b"\t\r\n" or 32 <= byte < 127 for byte in head):
        return f"{found}. If it is a table of text, pandas.read_csv(path).to_xarray() makes a Dataset of it"
    return f"{found}. If another engine of xarray opens it, name that engine; ds.td works on a Dataset from any engine"


def _what_has(names: Collection[str]) -> str:
    if any(name.endswith("/data.pkl") for name in names):  # as torch.save writes it
        return _OF_TORCH
    if all(name.endswith(".npy") for name in names):
        return (
            "an archive of numpy. xarray_tensordict.to_dataset(TensorDict(dict(numpy.load(path)), [N])) makes a Dataset of arrays "
            "with N rows each; pass [] where these differ"
        )
    if "config.json" in names:
        return "a zip archive that looks like a model of Keras. Load it with keras.models.load_model"
    return f"a zip archive with {sorted(names)[:5]} in it. Unpack it"
