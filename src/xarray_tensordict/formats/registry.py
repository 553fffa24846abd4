"""The formats there are, and which of them a ``store`` argument has.

A store is what users pass to xarray, zarr, h5py and tensordict: paths, URLs, stores, groups, files, open
``PersistentTensorDict`` objects.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ..core.model import is_url
from .base import Format, StoreOptions, archive_names, what_starts_with
from .hdf5.format import Hdf5Format
from .identity import describe_source
from .memmap.format import MemmapFormat
from .zarr.format import IcechunkFormat, KerchunkFormat, ZarrFormat

if TYPE_CHECKING:
    from ..core.model import Store

FORMATS: tuple[Format, ...] = (
    ZarrFormat(),
    Hdf5Format(),
    MemmapFormat(),
    IcechunkFormat(),
    KerchunkFormat(),
)
"""In the order in which they are asked; the first one opens URLs whose ending belongs to no other."""

TARGETS: dict[str, Format] = {name: each for each in FORMATS for name in each.targets}
"""The kinds of stores that are written, as ``convert --to`` takes them."""


@dataclass(frozen=True)
class Source:
    """A ``store`` argument, understood.

    Attributes
    ----------
    value
        What the libraries take: a local path is absolute, so that a later ``os.chdir`` does not change the store.
    description
        How messages call it.
    format
        Its format.
    """

    value: Any
    description: str
    format: Format

    @property
    def is_path(self) -> bool:
        """Whether it is a path or a URL, and not an object that the caller has opened."""
        return isinstance(self.value, str)

    @property
    def kind(self) -> str:
        """What it is, in words."""
        return self.format.kind(self.value)

    def open(self, **options: Any) -> Store:
        """Open it; see :func:`open_store`."""
        return self.format.open(self.value, self.description, StoreOptions(**options))


def open_store(store: Any, **options: Any) -> Store:
    """Open a store of any kind.

    Parameters
    ----------
    store
        A path, a URL, or an object of a library.
    **options
        Those of :class:`~.base.StoreOptions`.

    Raises
    ------
    FileNotFoundError
        For a path at which there is nothing, or a group that is not there.
    ValueError
        For a file or folder of no known format; the message names the engine that opens it, where that is known.
    TypeError
        For an object of a type that no format opens.
    """
    return find_source(store).open(**options)


def find_source(store: Any) -> Source:
    """Find out what a ``store`` argument is; raises as :func:`open_store` does."""
    value = _unwrapped(store)
    description = describe_source(value)
    if not isinstance(value, (str, os.PathLike)):
        found = _claiming(value)
        if found is None:
            many = isinstance(value, list | tuple)
            hint = (
                "; xr.open_mfdataset(paths, engine='tensordict', ...) makes one Dataset of several stores"
                if many
                else ""
            )
            raise TypeError(
                f"expected a path, a URL, a zarr store or group, an h5py file or group, a binary file object or a "
                f"PersistentTensorDict, found {type(value).__name__}{hint}"
            )
        return Source(value, description, found)
    path = os.fspath(value)
    if is_url(path):
        return Source(path, description, _format_of_url(path))
    path = os.path.abspath(path.removeprefix("file://"))
    return Source(path, description, _format_of_path(path, description))


def _format_of_url(url: str) -> Format:
    return next((each for each in FORMATS if each.url_endings and url.lower().endswith(each.url_endings)), FORMATS[0])


def target_by_ending(path: str) -> str | None:
    """The kind of store that the ending of a name stands for, as ``convert --to`` takes it."""
    ending = PurePosixPath(path).suffix.lower()
    return next((name for name, each in TARGETS.items() if ending in each.targets[name]), None)


def _unwrapped(store: Any) -> Any:
    """The group behind an open ``PersistentTensorDict``, so that the file is not opened twice; the store behind a mapper."""
    if isinstance(store, str):
        return os.path.expanduser(store) if store.startswith("~") else store
    module = type(store).__module__
    if module == "fsspec.mapping":
        from zarr.storage import FsspecStore

        return FsspecStore.from_mapper(store)
    if module.startswith("tensordict.") and hasattr(store, "file"):
        return store.file
    if module.startswith(("tensordict.", "xarray_tensordict.lazy")):
        raise TypeError(_why_no_store(store))
    return store


def _why_no_store(td: Any) -> str:
    name = type(td).__name__
    if name == "XarrayPersistentTensorDict":
        return (
            f"found {name}, which reads through a Dataset and holds no file of its own: open the store itself, by its path; "
            f"its group with group="
        )
    if name == "_SubTensorDict":
        return (
            "found an indexed view of a PersistentTensorDict: open the PersistentTensorDict, and select from the Dataset "
            "(xr.open_dataset(ptd, engine='tensordict').isel(...))"
        )
    return (
        f"expected a store or an open PersistentTensorDict, found {name}, which is in memory: "
        f"xarray_tensordict.to_dataset(td) makes a Dataset of it"
    )


def _claiming(value: Any) -> Format | None:
    return next((each for each in FORMATS if each.claims(value)), None)


def _format_of_path(path: str, description: str) -> Format:
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"No such file or directory: {description!r}. Check the spelling; relative paths start at "
            f"{str(Path.cwd())!r}"
        )
    if not _is_readable(path):
        raise ValueError(f"{description}: expected a file or a folder, found a device or a pipe")
    claiming = _claiming(path)
    if claiming is not None:
        return claiming
    marks = {each: f" (a folder with {each.marks})" if each.marks and os.path.isdir(path) else "" for each in FORMATS}
    *others, last = (f"{each.expects}{marks[each]}" for each in FORMATS)
    raise ValueError(f"{description}: expected {', '.join(others)} or {last}, found {_found_at(Path(path))}")


def _found_at(path: Path) -> str:
    """What is at a path that no format claims, and what to do."""
    if path.is_dir():
        inside = sorted(child.name for child in path.iterdir())[:10]
        stores = [name for name in inside if _is_claimed(path / name)]
        hint = f". In it are {stores}: open one of these" if stores else ""
        return f"a folder with {inside or 'nothing'} in it{hint}"
    with path.open("rb") as file:
        head = file.read(64)
    return what_starts_with(head, archive_names(str(path)))


def _is_claimed(path: Path) -> bool:
    try:
        return _is_readable(str(path)) and _claiming(str(path)) is not None
    except OSError:
        return False


def _is_readable(path: str) -> bool:
    """Whether it is a file or a folder; reading a pipe waits for a writer."""
    return os.path.isfile(path) or os.path.isdir(path)
