"""Create a zarr store, or replace one: beside and renamed where it is a local folder or a zip file."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import zarr

from ..._compat.zarr import holds_something
from ...writing.lazy_sources import refuse_reading_from
from ...writing.plan import Source, WritePlan, plan_write
from ...writing.replacing import replaced, swap
from ...writing.stored_form import Layout
from ...writing.streaming import stream_source
from .finish import Finish, finish
from .target import ZarrTarget, check_replaceable
from .write import ZarrOptions, check_attrs, write_new


def create_store(
    source: Source, target: ZarrTarget, options: ZarrOptions, layout: Layout, *, replace: bool, zarr_format: int | None
) -> Any:
    """Write a new store.

    Parameters
    ----------
    replace
        Whether a store that is there may be replaced.
    zarr_format
        What the caller asks for.

    Raises
    ------
    FileExistsError
        Where something is there and may not be replaced.
    """
    if not replace and target.exists():
        raise FileExistsError(
            f"{target.name}: there is something already. Pass mode='w' to replace it, mode='a' to add to it, or "
            "append_dim= to "
            f"append; or choose another path"
        )
    if replace:
        check_replaceable(target)
    if target.kind == "zip" and target.prefix and target.exists():
        raise ValueError(
            f"{target.name}: a zip file cannot be changed in place, and all else in it would be lost; unpack it, write the "
            "group to the folder, and pack it again"
        )
    options = _with_format(target, options, zarr_format)
    if target.kind != "zip" and not (target.kind == "folder" and options.compute):
        refuse_reading_from(source.flat, target)
    stream_source(source)
    plan = plan_write(source, layout, "zarr", encoding=options.encoding)
    check_attrs(plan)
    if target.kind == "zip":
        _create_zip(plan, target, options)
        return None
    if target.kind == "folder" and options.compute:
        _create_folder(plan, target, options)
        return None
    _require_parents(target, options)
    return write_new(plan, target.store, target.prefix, options)


def _with_format(target: ZarrTarget, options: ZarrOptions, asked: int | None) -> ZarrOptions:
    """A group in a store has the format of the store; a new store that which is asked for, or zarr's default."""
    default = int(zarr.config.get("default_zarr_format", 3))
    found = None
    if target.prefix and target.kind != "zip":
        root = replace(target, prefix=()).group()
        found = root.metadata.zarr_format if root is not None else None
        if asked is not None and found is not None and asked != found:
            raise ValueError(
                f"{target.description}: zarr_format={asked} was given, and the store has zarr format {found}"
            )
    return replace(options, zarr_format=asked or found or default)


def _require_parents(target: ZarrTarget, options: ZarrOptions) -> None:
    """Groups above the one that is written: without them neither door finds it."""
    for length in range(len(target.prefix)):
        zarr.open_group(
            target.store,
            path="/".join(target.prefix[:length]),
            mode="a",
            use_consolidated=False,
            zarr_format=options.zarr_format,  # type: ignore[arg-type]
            storage_options=options.storage_options,
        )


def _create_folder(plan: WritePlan, target: ZarrTarget, options: ZarrOptions) -> None:
    assert target.path is not None
    if not target.prefix or not target.path.exists():
        with replaced(target.path) as beside:
            fresh = replace(target, path=beside, store=str(beside))
            _require_parents(fresh, options)
            write_new(plan, fresh.store, target.prefix, options, in_place=False)
        return
    # a group of a store: it alone is replaced
    root = Path(os.path.realpath(target.path))
    had = is_consolidated(target, options)
    with tempfile.TemporaryDirectory(prefix=f".{root.name}.", suffix=".tmp", dir=root.parent) as folder:
        write_new(plan, folder, target.prefix, replace(options, consolidated=False), in_place=False)
        _require_parents(target, options)
        swap(Path(folder).joinpath(*target.prefix), root.joinpath(*target.prefix))
    if options.consolidated is not False or had:
        finish(Finish(target.store, (), options.storage_options, True), unmark=False)


def is_consolidated(target: ZarrTarget, options: ZarrOptions) -> bool:
    """Whether a store has consolidated metadata; to be asked before a change, which may remove it."""
    root = zarr.open_group(target.store, mode="r", storage_options=options.storage_options)
    return root.metadata.consolidated_metadata is not None


def _create_zip(plan: WritePlan, target: ZarrTarget, options: ZarrOptions) -> None:
    """Write to a folder, then pack it: an entry of a zip file cannot be replaced, and zarr would write some twice."""
    if not options.compute:
        raise NotImplementedError(
            f"{target.description}: a zip file is written at once, compute=False is not possible; write to a folder, "
            "and "
            f"pack it when it is whole"
        )
    assert target.path is not None
    if isinstance(target.store, zarr.storage.ZipStore):
        _fill_zip_store(plan, target, options)
        return
    with (
        replaced(target.path) as beside,
        tempfile.TemporaryDirectory(dir=beside.parent, prefix=f"{beside.name}.") as folder,
    ):
        written = replace(target, kind="folder", path=Path(folder), store=folder)
        _require_parents(written, options)
        write_new(plan, folder, target.prefix, replace(options, consolidated=False), in_place=False)
        with zipfile.ZipFile(beside, "w", compression=zipfile.ZIP_STORED, allowZip64=True) as archive:
            for member in sorted(Path(folder).rglob("*")):
                if member.is_file():
                    archive.write(member, member.relative_to(folder).as_posix())


def _fill_zip_store(plan: WritePlan, target: ZarrTarget, options: ZarrOptions) -> None:
    """Copy each entry once into an open, empty ``ZipStore``; those of the root last, so that a part opens as no store."""
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.sync import sync

    if holds_something(target.store):
        raise ValueError(
            f"{target.description}: the zip store holds something already, and an entry of a zip file cannot be replaced; "
            f"open a new one with mode='w'"
        )
    memory: Mapping[str, Any] = {}
    store = zarr.storage.MemoryStore(memory)  # type: ignore[arg-type]
    _require_parents(replace(target, kind="store", path=None, store=store), options)
    write_new(plan, store, target.prefix, replace(options, consolidated=False), in_place=False)

    async def copy() -> None:
        for key in sorted(
            [key async for key in store.list()], key=lambda key: (-key.count("/"), key != ".zattrs", key)
        ):
            buffer = await store.get(key, default_buffer_prototype())
            assert buffer is not None
            await target.store.set(key, buffer)

    sync(copy())
