"""Carry out a change of a zarr store: grow arrays, write parts of them and JSON texts, and what comes last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...core.model import Key
from ...writing.running import compute_all
from .completeness import mark_of
from .finish import Finish, delayed_finish, finish, mark, settle_mark, zarr_writes
from .json_texts import rewrite_texts
from .texts import whole_texts
from .there import Change, There
from .undo import Undo, undone
from .write import ZarrOptions


def mark_there(there: There, step: Finish, content: Mapping[str, Any], texts: Sequence[str]) -> None:
    """Mark the store, with the JSON texts that are written anew: of those, a process that dies would leave nothing.

    The group is opened anew: it keeps the attributes that it had, and would write them back without the mark.
    """
    kept = {
        path: {"text": text.text, "attrs": dict(text.attrs)} for path, text in whole_texts(there.root, texts).items()
    }
    mark(step, {**content, "texts": kept} if kept else content)
    there.root = step.open()


def texts_of(change: Change, there: There) -> list[str]:
    """The paths of the JSON texts that a change writes anew."""
    return sorted({there.text_path(key) for key in change.texts})


def write_change(
    change: Change, there: There, options: ZarrOptions, undo: Undo, created: Sequence[Any] = ()
) -> list[Any]:
    """Resize, write what is in memory, then what dask holds as one graph; what has to be undone is noted first.

    Parameters
    ----------
    created
        What writes arrays that have just been created.

    Returns
    -------
    list
        With ``compute=False`` what writes the rest.
    """
    for part in change.parts:
        if part.shape is not None:
            undo.grows(part.path, part.before)
    stored = [*created, *_write_parts(change, there)]
    if options.compute:
        compute_all(stored, progress=options.progress)
    # last, since a dask graph can fail while it is computed
    _write_texts(change.texts, there, undo)
    return stored


def finish_change(step: Finish, options: ZarrOptions, stored: Sequence[Any]) -> Any:
    """Carry out the last step, or with ``compute=False`` give the ``Delayed`` that does."""
    if not options.compute:
        return delayed_finish(step, stored)
    finish(step)
    return None


def _write_texts(texts: Mapping[Key, Any], there: There, undo: Undo) -> None:
    if texts:
        with zarr_writes():
            rewrite_texts(texts, there, undo)


def write_region(change: Change, there: There, step: Finish, options: ZarrOptions, region: Mapping[str, slice]) -> Any:
    """Write to a part of the arrays; their metadata stay, so that many processes can do so at the same time."""
    stored = _write_parts(change, there)
    if options.compute:
        compute_all(stored, progress=options.progress)
    if change.texts:
        _write_texts_of_region(change, there, step)
    settle = partial(settle_mark, step, dict(region), sorted(change.names))
    if not options.compute:
        from dask.delayed import delayed

        return delayed(partial(_settle_after, settle), pure=False)(stored)
    settle()
    return None


def _settle_after(settle: partial[None], results: Any) -> None:
    settle()


def _write_texts_of_region(change: Change, there: There, step: Finish) -> None:
    """Write texts under a mark that keeps them, and leave the mark that was there before."""
    names = sorted("/".join(key) for key in change.texts)
    had = mark_of(there.root)
    if had is not None and had.get("kind") == "overwrite" and set(names).issuperset(had["arrays"]):
        had = None  # of texts, which are whole when they have been written
    with undone(Undo(step, there.consolidated, had), there.where) as undo:
        content = {"kind": "overwrite", "arrays": names} if had is None else had
        mark_there(there, step, content, texts_of(change, there))
        _write_texts(change.texts, there, undo)
        if had is not None:
            mark(step, had)
        finish(step, unmark=had is None)


def _write_parts(change: Change, there: There) -> list[Any]:
    """Write what is in memory; returns a ``Delayed`` for what dask holds."""
    sources, targets, regions = [], [], []
    found = mark_of(there.root)
    with zarr_writes():
        for part in change.parts:
            array, variable = part.array, part.variable
            if part.shape is not None:
                array.resize(part.shape)
            if found is not None and found.get("kind") == "create":
                # as long as the mark is there, a chunk that is missing counts as not written
                array = array.with_config({"write_empty_chunks": True})
            if variable.chunks is None:
                if 0 not in variable.shape:
                    array[part.where] = np.asarray(variable.values)
                continue
            sources.append(_aligned(variable.data, part.where, array.shards or array.chunks))
            targets.append(array)
            regions.append(part.where)
        if not sources:
            return []
        import dask.array

        store: Any = dask.array.store
        return [store(sources, targets, regions=regions, lock=False, compute=False)]


def _aligned(data: Any, where: tuple[slice, ...], chunks: tuple[int, ...]) -> Any:
    """Rechunk so that each chunk of the store is written by one task."""
    wanted = []
    for part, sizes, chunk in zip(where, data.chunks, chunks, strict=True):
        step = max(chunk, -(-max(sizes, default=1) // chunk) * chunk)
        length = part.stop - part.start
        first = min(length, (step - part.start % chunk) if part.start % chunk else step)
        rest = length - first
        wanted.append(tuple(size for size in (first, *[step] * (rest // step), rest % step) if size) or (0,))
    return data.rechunk(tuple(wanted))
