"""What a format is to the rest of the package: it claims sources, opens them as a ``Store``, and writes new ones.

A format is a folder with a module ``format.py`` and one line in :mod:`.registry`. No other module compares names of formats.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
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
