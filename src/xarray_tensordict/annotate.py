"""Add to an existing store what the other library needs: dimension names, and the batch.

Only metadata is written: no array data is read or rewritten, and nothing is written before everything was checked.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import xarray as xr

from .core.inference import BatchDims, infer_batch
from .core.metadata import BATCH_ATTR, NON_TENSOR_ATTR, UNBATCHED_NAME, batch_record
from .core.model import GroupBatch, Inference, Key, Store, walk
from .core.naming import Dims, DimsArgument, name_batch
from .dataset.entries import plan_entries, td_names
from .dataset.open import Layout, OpenOptions, lay_out, open_flat
from .dataset.record import infer_dataset
from .formats.registry import describe_source, format_of, open_store, unwrapped
from .quiet import ZARR_SAYS, quiet

Dimensions = dict[Key, tuple[int, Dims]]
"""For each array to be named its number of axes and their names."""


def annotate(
    store: Any,
    batch_dims: BatchDims | None = None,
    *,
    dims: DimsArgument | None = None,
    group: str | None = None,
    storage_options: dict[str, Any] | None = None,
) -> Inference:
    """Add dimension names and the record of the batch to a store that lacks them.

    Afterwards plain xarray opens a zarr store that tensordict or raw zarr wrote, and bare tensordict finds the batch
    of a store that others wrote. An HDF5 file gets dimension labels, and a record that this package reads (HDF5 holds
    no metadata that tensordict would read).

    Parameters
    ----------
    store
        A path, a URL, a zarr store or group, or an h5py file or group that is open for writing.
    batch_dims
        Names or a count; None infers the batch.
    dims
        Names for axes, as in ``xr.open_dataset(..., engine="tensordict")``. What the store names keeps its name.
    group
        Annotate this group and those below it.
    storage_options
        For a URL.

    Returns
    -------
    Inference
        The batch that was recorded, with the evidence.

    Raises
    ------
    ValueError
        Where bare tensordict could not honestly open the store: the message names the arrays in the way, those that
        do not lead with the batch and those whose stored values are not what they mean (packed data, encoded times).
    PermissionError
        For a store that cannot be written to.

    Examples
    --------
    >>> import tempfile, torch, xarray as xr, zarr
    >>> from tensordict import TensorDict
    >>> path = tempfile.mkdtemp() + "/td.zarr"
    >>> _ = TensorDict({"obs": torch.zeros(6, 3)}, [6], names=["time"]).to_zarr(path)
    >>> annotate(path).batch_dims
    ('time',)
    >>> xr.open_zarr(path)["obs"].dims
    ('time', 'dim_3')
    """
    source = unwrapped(store)
    description = describe_source(source)
    if format_of(source, description) == "memmap":
        raise ValueError(
            f"{description}: a memory-mapped tensordict records its batch, and has no place for the names of other dims; set "
            f"td.names with tensordict, or give the names on opening with dims={{...}}"
        )
    _check_writable(source, description)
    opened = open_store(
        source,
        group=group,
        consolidated=False if _is_zarr(source, description) else None,
        storage_options=storage_options,
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # annotating tells of what is in the way by raising
            options = OpenOptions(nested=True, batch_dims=batch_dims, dims=dims)
            in_store = {"/".join((*node.key, name)) for node in walk(opened) for name in node.arrays}
            layout = lay_out(opened, list(walk(opened)), options)
            ds = open_flat(opened, options)
        inference = layout.inference or _infer_all(layout)
        # what the entry _unbatched holds is in nobody's way
        restored = {str(name) for name in ds.variables} - in_store
        _check_honest(ds, restored, batch_dims, description)
        missing = _missing_dims(opened, layout)
        _check_fill_values(opened, missing, description)
    finally:
        opened.close()
    records = {key: _record(batch) for key, batch in inference.groups.items() if key in layout.groups}
    if _is_zarr(source, description):
        _write_zarr(source, group, missing, records, storage_options)
    else:
        _write_hdf5(source, group, missing, records)
    return inference


def _is_zarr(source: Any, description: str) -> bool:
    return format_of(source, description) == "zarr"


def _infer_all(layout: Layout) -> Inference:
    return infer_batch(layout.infos.values(), group_attrs={key: group.attrs for key, group in layout.groups.items()})


def _record(batch: GroupBatch) -> dict[str, Any]:
    named = GroupBatch(name_batch(batch), batch.sizes, batch.evidence, batch.reason)
    return batch_record(batch.sizes, td_names(named))


# -- checks, before anything is written --------------------------------------------------------------------------------


def _check_writable(source: Any, description: str) -> None:
    if isinstance(source, (str, os.PathLike)) and "://" not in os.fspath(source):
        is_zarr = _is_zarr(source, description)
        if is_zarr and os.path.isfile(source):
            raise PermissionError(
                f"{description} is a zip archive, whose entries cannot be replaced; write a new one with ds.td.to_zarr"
            )
        if not os.access(source, os.W_OK):
            raise PermissionError(f"{description} cannot be written to; change its permissions, or annotate a copy")
    read_only = getattr(source, "read_only", None)
    mode = getattr(getattr(source, "file", None), "mode", None)
    if read_only is True or mode == "r":
        raise PermissionError(f"{description} was opened for reading only; open it with mode 'r+' to annotate it")


def _check_honest(ds: xr.Dataset, restored: set[str], batch_dims: BatchDims | None, description: str) -> None:
    """Bare tensordict opens the store to the values it means, or an error names what is in the way."""
    from .lazy.writable import why_decoded

    inference = infer_dataset(ds)
    plan = plan_entries(ds, inference, unbatched="keep")
    in_the_way = [f"{name!r} ({reason})" for name, reason in plan.left_out.items()]
    for entry in plan.entries:
        if entry.form != "tensor" or entry.name in restored:
            continue
        shape = list(entry.variable.shape)
        if entry.entry_class != "batched" or entry.variable.dims != ds.variables[entry.name].dims:
            in_the_way.append(
                f"{entry.name!r} (its dims {list(ds.variables[entry.name].dims)} of shape {shape} do not lead with the batch)"
            )
        elif (decoded := why_decoded(entry)) is not None:
            in_the_way.append(f"{entry.name!r} ({decoded})")
    if in_the_way:
        batch = dict(zip(inference.batch_dims, inference.batch_size, strict=True))
        raise ValueError(
            f"{description}: bare tensordict could not open this store with batch {batch} to the values it means. In the way: "
            f"{'; '.join(in_the_way)}. Write a store that both read with ds.td.to_zarr(...), or choose other batch_dims "
            f"(now {batch_dims!r}). Nothing was changed"
        )


def _missing_dims(store: Store, layout: Layout) -> Dimensions:
    """The arrays that lack a name for an axis, with the names of all their axes."""
    missing: Dimensions = {}
    for group in walk(store):
        for name, array in group.arrays.items():
            key = (*group.key, name)
            if array.non_tensor:
                continue
            if None in array.dims and key in layout.named:
                missing[key] = (len(array.shape), layout.named[key])
    return missing


def _check_records(root: Any, missing: Dimensions) -> None:
    """Arrays of records are shown as groups of their fields; tensordict has no such thing."""
    records = sorted(
        {"/".join(key[:-1]) for key in missing if len(key) > 1 and hasattr(root["/".join(key[:-1])], "dtype")}
    )
    if records:
        raise ValueError(
            f"bare tensordict cannot read arrays of records: {records}. Write a store that both read with ds.td.to_zarr(...). "
            f"Nothing was changed"
        )


def _check_fill_values(store: Store, missing: Dimensions, description: str) -> None:
    """In zarr v2 dimension names make xarray take the fill value for a mask: 0 can be taken back, others cannot."""
    root = getattr(store, "zarr_group", None)
    if root is None or root.metadata.zarr_format != 2:
        return
    masked = [
        f"{'/'.join(key)!r} (fill_value {root['/'.join(key)].fill_value})"
        for key in missing
        if root["/".join(key)].fill_value not in (None, 0, 0.0, False, "", b"")
        and root["/".join(key)].dtype.kind not in "mM"
        and not _is_nan(root["/".join(key)].fill_value)
    ]
    if masked:
        raise ValueError(
            f"{description}: with dimension names, plain xarray would take the fill value of these zarr v2 arrays for missing "
            f"data: {', '.join(masked)}. Write the store again with ds.td.to_zarr(...). Nothing was changed"
        )


def _is_nan(value: Any) -> bool:
    return bool(value != value)


# -- writing -----------------------------------------------------------------------------------------------------------


def _write_zarr(
    source: Any,
    group: str | None,
    missing: Dimensions,
    records: Mapping[Key, dict[str, Any]],
    storage_options: dict[str, Any] | None,
) -> None:
    import zarr

    with quiet(*ZARR_SAYS):
        if isinstance(source, zarr.Group):
            whole = source
        else:
            where = os.fspath(source) if isinstance(source, os.PathLike) else source
            whole = zarr.open_group(where, mode="r+", use_consolidated=False, storage_options=storage_options)
        consolidated = _consolidated_paths(whole)
        root: Any = whole[group.strip("/")] if group and group.strip("/") else whole
        _check_records(root, missing)
        texts = list(_byte_arrays(root))
        for key, (_, dims) in missing.items():
            _name_zarr_array(root["/".join(key)], dims)
        for path, array in texts:
            _name_zarr_array(array, (f"{path.rsplit('/', 1)[-1]}_json",))
        for key, record in records.items():
            node = root.get("/".join(key)) if key else root  # a group may be in the entry _unbatched alone
            if isinstance(node, zarr.Group) and dict(node.attrs).get(BATCH_ATTR) != record:
                node.attrs[BATCH_ATTR] = record
        for path in consolidated:
            zarr.consolidate_metadata(whole.store, path=path)


def _consolidated_paths(whole: Any) -> list[str]:
    """Where the store has consolidated metadata: at its root, or at the group that was given."""
    import zarr

    found = []
    for path in dict.fromkeys(["", whole.path]):
        try:
            node = zarr.open_group(whole.store, mode="r", path=path or None)
        except (FileNotFoundError, ValueError):
            continue
        if node.metadata.consolidated_metadata is not None:
            found.append(path)
    return found


def _byte_arrays(root: Any) -> Iterator[tuple[str, Any]]:
    """The arrays of bytes that hold non-tensor entries and have no dimension name: without one open_zarr raises."""
    import zarr

    from .formats.zarr.members import walk_members

    for path, node in walk_members(root):
        if isinstance(node, zarr.Array) and NON_TENSOR_ATTR in node.attrs:
            named = getattr(node.metadata, "dimension_names", None) or node.attrs.get("_ARRAY_DIMENSIONS")
            if not named and path != UNBATCHED_NAME:
                yield path, node


def _name_zarr_array(array: Any, dims: Dims) -> None:
    """Write dimension names into the metadata document of an array; zarr has no call that does so."""
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.sync import sync

    prototype = default_buffer_prototype()

    def rewrite(name: str, change: Mapping[str, Any]) -> None:
        key = f"{array.path}/{name}" if array.path else name
        buffer = sync(array.store.get(key, prototype))
        document = json.loads(buffer.to_bytes()) if buffer is not None else {}
        sync(array.store.set(key, prototype.buffer.from_bytes(json.dumps({**document, **change}, indent=2).encode())))

    if array.metadata.zarr_format == 3:
        rewrite("zarr.json", {"dimension_names": list(dims)})
        return
    if array.fill_value is not None and not _is_nan(array.fill_value):
        # checked before: it is zero, which is what a missing chunk reads as without a fill value too
        rewrite(".zarray", {"fill_value": None})
    rewrite(".zattrs", {"_ARRAY_DIMENSIONS": list(dims)})


def _write_hdf5(source: Any, group: str | None, missing: Dimensions, records: Mapping[Key, dict[str, Any]]) -> None:
    import h5py

    from .formats.hdf5.attrs import is_named, write_label
    from .formats.hdf5.file import open_for_changes

    if isinstance(source, (str, os.PathLike)):
        with open_for_changes(source) as file:
            _write_hdf5(file, group, missing, records)
        return
    root = source[group] if group and group.strip("/") else source
    _check_records(root, missing)
    for key, (_, dims) in missing.items():
        dataset = root["/".join(key)]
        for axis, dim in enumerate(dims):
            if not is_named(dataset, axis):
                write_label(dataset, axis, dim)
    for key, record in records.items():
        node = root.get("/".join(key)) if key else root
        if isinstance(node, h5py.Group):
            node.attrs[BATCH_ATTR] = json.dumps(record)
