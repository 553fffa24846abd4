"""``ds.td.to_zarr``: a store is created or replaced, or one that is there is changed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Hashable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import zarr
from zarr.abc.store import Store
from zarr.storage import LocalStore, ZipStore

from ..._compat.zarr import each_at_once, get_bytes, holds_something, is_transactional, run, set_bytes
from ...core.metadata import INCOMPLETE_ATTR
from ...core.model import Key
from ...writing.lazy_sources import refuse_reading_from
from ...writing.plan import Source, plan_write
from ...writing.replacing import replaced, swap
from ...writing.stored_form import Layout
from ...writing.streaming import stream_source
from .blocks import held_by_dask, write_in_memory, writes
from .change import Change, carry_out, delayed, settle, zarr_writes
from .new_arrays import NewGroup, ZarrOptions, new_groups
from .target import ZarrTarget, check_replaceable, node_at
from .transaction import JOURNAL, LOCK, Staged, is_document, join, pending, taken

Groups = Mapping[Key, NewGroup]


def write_store(
    source: Source,
    target: ZarrTarget,
    options: ZarrOptions,
    layout: Layout,
    *,
    mode: str | None,
    append_dim: Hashable | None,
    region: Any,
) -> Any:
    """Write a store as ``Dataset.to_zarr`` does with the same arguments.

    Returns
    -------
    dask.delayed.Delayed or None
        With ``compute=False`` what writes the values.

    Raises
    ------
    FileExistsError
        Where something is there and may not be replaced.
    FileNotFoundError
        Where there is no store to be changed.
    ValueError, TypeError, NotImplementedError
        For what does not fit the store; nothing has been written.
    BlockingIOError, OSError
        Where another writer is changing the store, or has changed it; nothing has been written.
    """
    _check_arguments(target, mode, append_dim, region)
    if append_dim is None and region is None and mode not in {"a", "a-", "r+"}:
        return _create(source, target, options, layout, replace=mode == "w")
    found = target.group_format()
    if found is None:
        if mode in {"a", "a-"} and append_dim is None:
            return _create(source, target, options, layout, replace=False)
        raise FileNotFoundError(f"{target.name}: there is no zarr group to change; write one first, with mode='w'")
    if options.zarr_format not in (None, found):
        raise ValueError(
            f"{target.name}: zarr_format={options.zarr_format} was given, and the store has zarr format {found}"
        )
    options = replace(options, zarr_format=found)
    if region is not None:
        return _write_region(source, target, options, region)
    return _change(source, target, options, layout, mode=str(mode), append_dim=append_dim)


def _check_arguments(target: ZarrTarget, mode: str | None, append_dim: Hashable | None, region: Any) -> None:
    changes = append_dim is not None or region is not None or mode in {"a", "a-", "r+"}
    if changes and target.kind == "zip":
        raise ValueError(
            f"{target.description}: a zip file cannot be changed in place; unpack it, change the folder, and write "
            "it again with mode='w'"
        )
    if append_dim is not None and region is not None:
        raise ValueError(f"expected append_dim or region, found both: append_dim={append_dim!r}, region={region!r}")
    if append_dim is not None and mode not in {None, "a", "a-"}:
        raise ValueError(f"append_dim={append_dim!r} goes with mode='a' or none, found mode={mode!r}")
    if region is not None and mode not in {None, "a", "r+"}:
        raise ValueError(f"region goes with mode='r+', 'a' or none, found mode={mode!r}")


# -- a store that is there ---------------------------------------------------------------------------------------------


def _change(
    source: Source, target: ZarrTarget, options: ZarrOptions, layout: Layout, *, mode: str, append_dim: Hashable | None
) -> Any:
    from .update import add, append, open_there, settle_lazy

    with taken(target.store, target.name, target.root()), zarr_writes():
        there = open_there(target, options, options.zarr_format or 3)
        settle_lazy(source, there)
        if append_dim is None:
            add(source, there, options, layout, mode=mode)
        else:
            append(source, there, str(append_dim))
        if options.compute:
            carry_out(there.change, progress=options.progress)
            return None
    return delayed(there.change)


def _write_region(source: Source, target: ZarrTarget, options: ZarrOptions, region: Any) -> Any:
    """Whole chunks are written without more ado, by many processes at once; for anything else the store is taken."""
    from .update import open_there, settle_lazy, write_region

    def planned() -> tuple[Any, bool]:
        there = open_there(target, options, options.zarr_format or 3)
        settle_lazy(source, there)
        return there, write_region(source, there, region)

    root = target.root()
    if pending(target.store, root) is not None:
        with taken(target.store, target.name, root):
            pass  # which puts back what a killed writer has left
    there, is_apart = planned()
    if not is_apart:
        with taken(target.store, target.name, root):
            there, _ = planned()
            if options.compute:
                carry_out(there.change, progress=options.progress)
        if not options.compute:
            return delayed(there.change)
    last = partial(settle, target, root, there.change.consolidate)
    if is_apart:
        with zarr_writes():
            write_in_memory(there.change.blocks)
        held = held_by_dask(there.change.blocks)
        if not options.compute:
            return writes(held, last)
        if held:
            _compute(writes(held, _nothing), options)
    last()
    return None


def _nothing(first: Any) -> None:
    return None


def _compute(delayed: Any, options: ZarrOptions) -> None:
    from ...writing.running import compute_all

    with zarr_writes():
        compute_all([delayed], progress=options.progress)


# -- a new store -------------------------------------------------------------------------------------------------------


def _create(source: Source, target: ZarrTarget, options: ZarrOptions, layout: Layout, *, replace: bool) -> Any:
    """Write a new store: a local folder or a zip file beside and renamed, any other in place."""
    if not replace:
        _refuse_existing(target)
    else:
        check_replaceable(target)
    if target.kind == "zip" and target.prefix and target.exists():
        raise ValueError(
            f"{target.name}: a zip file cannot be changed in place, and all else in it would be lost; unpack it, write the "
            "group to the folder, and pack it again"
        )
    if target.kind == "zip" and not options.compute:
        raise NotImplementedError(
            f"{target.description}: a zip file is written at once, compute=False is not possible; write to a folder, "
            "and pack it when it is whole"
        )
    options = _with_format(target, options)
    beside = target.kind == "zip" or (target.kind == "folder" and options.compute)
    if not beside:
        refuse_reading_from(source.flat, target.place, target.name)
    stream_source(source)
    plan = plan_write(source, layout, "zarr", encoding=options.encoding)
    groups = new_groups(plan, options)
    if target.kind == "zip":
        _create_zip(groups, target, options)
    elif beside:
        _create_folder(groups, target, options, replace=replace)
    else:
        return _create_in_place(groups, target, options, replace=replace)
    return None


def _refuse_existing(target: ZarrTarget) -> None:
    if target.exists():
        raise FileExistsError(
            f"{target.name}: there is something already. Pass mode='w' to replace it, mode='a' to add to it, or "
            "append_dim= to append; or choose another path"
        )


def _with_format(target: ZarrTarget, options: ZarrOptions) -> ZarrOptions:
    """A group in a store has the format of the store; a new store that which is asked for, or zarr's default."""
    found = None
    if target.prefix and target.kind != "zip":
        found = replace(target, prefix=()).group_format()
        if found is not None and options.zarr_format not in (None, found):
            raise ValueError(
                f"{target.description}: zarr_format={options.zarr_format} was given, and the store has zarr format {found}"
            )
    default = int(zarr.config.get("default_zarr_format", 3))
    return replace(options, zarr_format=options.zarr_format or found or default)


def _staged(groups: Groups, target: ZarrTarget, options: ZarrOptions, *, consolidate: bool) -> Change:
    """All groups of a new store, staged."""
    with zarr_writes():
        change = Change(Staged(target.store), target, target.root(), options.zarr_format or 3, consolidate)
        change.require_parents()
        for key, group in groups.items():
            change.create(key, group)
    return change


def _fill(groups: Groups, store: Store, target: ZarrTarget, options: ZarrOptions, *, consolidate: bool) -> None:
    """Write to a store that nobody sees."""
    carry_out(
        _staged(groups, replace(target, store=store), options, consolidate=consolidate), progress=options.progress
    )


def _create_folder(groups: Groups, target: ZarrTarget, options: ZarrOptions, *, replace: bool) -> None:
    assert target.path is not None
    if not target.prefix or not target.path.exists():
        lock = partial(taken, target.store, target.name) if target.path.exists() else nullcontext
        with replaced(target.path, lock, exclusive=not replace) as beside:
            _fill(groups, LocalStore(beside), target, options, consolidate=options.consolidated is not False)
        return
    # a group of a store: it alone is replaced
    root = Path(os.path.realpath(target.path))
    with tempfile.TemporaryDirectory(prefix=f".{root.name}.", suffix=".tmp", dir=root.parent) as folder:
        _fill(groups, LocalStore(folder), target, options, consolidate=False)
        with taken(target.store, target.name, target.root()), zarr_writes():
            if not replace:
                _refuse_existing(target)
            change = _parents(target, options)
            root.joinpath(*target.prefix[:-1]).mkdir(parents=True, exist_ok=True)
            swap(Path(folder).joinpath(*target.prefix), root.joinpath(*target.prefix))
            change.finish()


def _parents(target: ZarrTarget, options: ZarrOptions) -> Change:
    """The groups above one that is put into a store as a whole."""
    version, consolidate = options.zarr_format or 3, options.consolidated is not False
    change = Change(Staged(target.store), target, target.root(), version, consolidate)
    change.require_parents()
    return change


def _create_in_place(groups: Groups, target: ZarrTarget, options: ZarrOptions, *, replace: bool) -> Any:
    """Nothing is seen of a new store before it is whole; one that is replaced says so until then."""
    with taken(target.store, target.name, target.root()), zarr_writes():
        if not replace:
            _refuse_existing(target)
        else:
            _empty(target, options)
        change = _staged(groups, target, options, consolidate=options.consolidated is not False)
        change.set_attrs(change.path, **{INCOMPLETE_ATTR: None})
        if options.compute:
            carry_out(change, progress=options.progress)
            return None
        held = held_by_dask(change.blocks)
        if held:  # a template: tensordict opens it, and other processes may fill it
            arrays = [
                join(*key, str(name)) for key, g in groups.items() for name, v in g.ds.variables.items() if v.chunks
            ]
            change.set_attrs(change.path, **{INCOMPLETE_ATTR: {"kind": "create", "created": True, "arrays": arrays}})
        change.blocks = [block for block in change.blocks if not hasattr(block[0], "dask")]
        carry_out(change, progress=False)
    return writes(held, partial(settle, target, change.root, change.consolidate, all_written=True))


def _empty(target: ZarrTarget, options: ZarrOptions) -> None:
    """Leave an empty group that is marked in the place of what is there."""
    path, version = "/".join(target.prefix), options.zarr_format or 3
    if node_at(target.store, path) is None:
        return
    if is_transactional(target.store):
        run(target.store.delete_dir(path))
        return
    staged = Staged(zarr.storage.MemoryStore())
    zarr.create_group(staged, path=path, zarr_format=version, attributes={INCOMPLETE_ATTR: {"kind": "create"}})  # type: ignore[arg-type]
    kept = {key: content for key, content in staged.documents.items() if content is not None}
    kept = {key: content for key, content in kept.items() if key.startswith(f"{path}/") or not path}

    async def others() -> list[str]:
        keys = [key async for key in target.store.list_prefix(f"{path}/" if path else "")]
        return [key for key in keys if key not in kept and key.rpartition("/")[2] not in (JOURNAL, LOCK)]

    for key, content in sorted(kept.items()):
        run(set_bytes(target.store, key, content))
    each_at_once(target.store.delete, run(others()))


def _create_zip(groups: Groups, target: ZarrTarget, options: ZarrOptions) -> None:
    """Write to a folder, then pack it: an entry of a zip file cannot be replaced, and zarr would write some twice."""
    assert target.path is not None
    opened = target.store if isinstance(target.store, ZipStore) else None
    if opened is not None and holds_something(opened):
        raise ValueError(
            f"{target.description}: the zip store holds something already, and an entry of a zip file cannot be replaced; "
            f"open a new one with mode='w'"
        )
    with tempfile.TemporaryDirectory(prefix=f".{target.path.name}.", suffix=".tmp", dir=_parent(target.path)) as folder:
        _fill(groups, LocalStore(folder), target, options, consolidate=False)
        if opened is not None:
            _copy(LocalStore(folder), opened)
            return
        with replaced(target.path) as beside, ZipStore(beside, mode="w") as archive:
            _copy(LocalStore(folder), archive)


def _parent(path: Path) -> Path:
    parent = Path(os.path.realpath(path)).parent
    parent.mkdir(parents=True, exist_ok=True)
    return parent


def _copy(source: Store, archive: ZipStore) -> None:
    """Each entry once, those of the root last, so that a part of an archive opens as no store."""

    async def keys() -> list[str]:
        return [key async for key in source.list()]

    for key in sorted(run(keys()), key=lambda key: (-key.count("/"), is_document(key), key != ".zattrs", key)):
        content = run(get_bytes(source, key))
        assert content is not None
        run(set_bytes(archive, key, content))
