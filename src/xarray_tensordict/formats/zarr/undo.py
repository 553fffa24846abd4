"""A write to a zarr store that fails: what it has changed is put back, and where that fails too the mark tells.

Whoever changes something notes it first, so that an error at any request finds it noted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import zarr

from ...core.metadata import INCOMPLETE_ATTR
from .completeness import kept_texts
from .entries import Entries, entries_below, put_entries, remove_entries
from .finish import Finish, finish, mark, zarr_writes
from .texts import own_text, text_entries


@dataclass
class Undo:
    """What is to be put back.

    Attributes
    ----------
    step
        The last step of the write, which says where the store is.
    had_consolidated
        Whether the store had consolidated metadata.
    leaving
        The mark that stays behind when all has been put back, None for none.
    """

    step: Finish
    had_consolidated: bool
    leaving: Mapping[str, Any] | None = None
    _shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _texts: dict[str, Entries] = field(default_factory=dict)
    _attrs: dict[str, dict[str, Any]] = field(default_factory=dict)
    _created: list[str] = field(default_factory=list)

    def grows(self, path: str, shape: tuple[int, ...]) -> None:
        """An array gets another shape than the one it has."""
        self._shapes[path] = shape

    def rewrites(self, path: str) -> None:
        """A JSON text is written anew: what there is of it, or what a write that did not finish has kept."""
        root = self.step.open()
        kept = kept_texts(root).get(path)
        if kept is not None and own_text(root, path) is None:
            self._texts[path] = text_entries(root, path, kept)
        else:
            self._texts[path] = entries_below(root, path)

    def creates(self, path: str) -> None:
        """There is nothing at a path."""
        self._created.append(path)

    def changes_attrs(self, path: str) -> None:
        """A group gets other attributes; one that has been created goes as a whole."""
        if not any(f"{path}/".startswith(f"{created}/") for created in self._created):
            self._attrs[path] = dict(self._group(path).attrs)

    def back(self) -> None:
        """Put everything back, and the mark at last."""
        with zarr_writes():
            root = self.step.open()
            for path, entries in self._texts.items():
                put_entries(root, path, entries)
            for path in self._created:
                remove_entries(root, path)
            for path, attrs in self._attrs.items():
                self._set_attrs(path, attrs)
            for path, shape in self._shapes.items():
                _shrink(root, path, shape)
        if self.leaving is not None:
            mark(self.step, self.leaving)
        unmark = self.leaving is None
        finish(replace(self.step, consolidate=self.had_consolidated, records={}, batches={}), unmark=unmark)

    def _group(self, path: str) -> zarr.Group:
        return self.step.open(tuple(part for part in path.split("/") if part))

    def _set_attrs(self, path: str, attrs: dict[str, Any]) -> None:
        group = self._group(path)
        found = dict(group.attrs)
        # the mark of this write came later, or has been there
        kept = {name: value for name, value in found.items() if name == INCOMPLETE_ATTR}
        wanted = {name: value for name, value in attrs.items() if name != INCOMPLETE_ATTR} | kept
        if found != wanted:
            group.attrs.put(wanted)


def _shrink(root: zarr.Group, path: str, shape: tuple[int, ...]) -> None:
    array = root[path]
    assert isinstance(array, zarr.Array)
    if array.shape == shape:
        return
    with suppress(Exception):
        # the chunk at the edge keeps its rows past the new end, where nobody sees them: best without
        sizes = array.shards or array.chunks
        ends = [min(new, -(-old // chunk) * chunk) for old, new, chunk in zip(shape, array.shape, sizes, strict=True)]
        for axis, (old, end) in enumerate(zip(shape, ends, strict=True)):
            if end > old and array.fill_value is not None:
                array[tuple(slice(old, end) if other == axis else slice(None) for other in range(len(ends)))] = (
                    array.fill_value
                )
    array.resize(shape)


@contextmanager
def undone(undo: Undo, where: str) -> Iterator[Undo]:
    """Put back what is noted where the block raises. Where that fails as well, the mark stays in the store, and tells.

    Parameters
    ----------
    where
        How messages call the store.
    """
    try:
        yield undo
    except BaseException as error:
        try:
            undo.back()
        except Exception as second:
            error.add_note(
                f"{where}: what had been written could not be taken back ({type(second).__name__}: {second}), so the store "
                f"is marked as not complete; opening it tells what to do"
            )
        raise
