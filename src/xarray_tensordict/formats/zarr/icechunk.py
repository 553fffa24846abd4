"""Icechunk as a :class:`~..base.Format`: a repository, the folder of a local one, or a session.

The store of a session (``session.store``) is a store of zarr like any other: it is read and written as one.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

from ..array_wrappers import named_errors
from ..base import StoreOptions
from .format import ZarrFormat

_BRANCH = "main"


class IcechunkFormat(ZarrFormat):
    """A repository is read as its branch "main" is at that time; a session as it is."""

    expects = "an Icechunk repository"
    marks = "'snapshots' and 'manifests'"
    targets: ClassVar = {}
    engine = None
    backend = None
    why_not_annotated = (
        "a repository changes in a session: annotate the store of repository.writable_session('main') in its place, and "
        "commit the session"
    )

    def claims(self, source: Any) -> bool:
        if isinstance(source, str):
            return all(os.path.isdir(os.path.join(source, name)) for name in ("snapshots", "manifests"))
        return type(source).__module__.startswith("icechunk.") and (
            _is_session(source) or type(source).__name__ == "Repository"
        )

    def store_of(self, source: Any, options: StoreOptions) -> Any:
        if _is_session(source):
            return source.store
        if isinstance(source, str):
            try:
                import icechunk
            except ImportError as error:
                raise ImportError(
                    f"{source}: an Icechunk repository needs a package that is missing ({error})"
                ) from error
            with named_errors(source):
                _check(source)
                repository = icechunk.Repository.open(icechunk.local_filesystem_storage(source))
                return repository.readonly_session(_BRANCH).store
        return source.readonly_session(_BRANCH).store

    def kind(self, source: Any) -> str:
        return "Icechunk session" if _is_session(source) else "Icechunk repository"

    def why_not_changed(self, source: Any) -> str | None:
        return (
            "a repository changes in a session: open the store of repository.writable_session('main') in its place, and "
            "commit the session"
        )


def _check(folder: str) -> None:
    """Raise for a pipe or a device in a repository: Icechunk would wait for it for ever."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                _check(entry.path)
            elif not entry.is_file():
                raise ValueError(f"{entry.path} is a pipe, a device or a link to nothing: expected a file or a folder")


def _is_session(source: Any) -> bool:
    return type(source).__name__.endswith("Session")
