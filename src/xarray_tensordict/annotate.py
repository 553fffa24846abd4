"""Add to an existing store what the other library needs: dimension names, and the batch.

Only metadata is written: no array data is read or rewritten, and nothing is written before everything was checked.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import Any

import xarray as xr

from .core.inference import BatchDims, infer_batch
from .core.metadata import batch_record
from .core.model import Inference, Key, Store, is_url, walk
from .core.naming import Dims, DimsArgument, given_dims, name_batch, resolve_names
from .dataset.entries import plan_entries, td_names
from .dataset.open import Layout, OpenOptions, lay_out, open_flat
from .dataset.records import infer_dataset
from .formats.base import Annotations
from .formats.registry import Source, find_source


def annotate(
    store: Any,
    batch_dims: BatchDims | None = None,
    *,
    dims: DimsArgument | None = None,
    group: str | None = None,
    storage_options: dict[str, Any] | None = None,
) -> Inference:
    """Add dimension names and the record of the batch to a store that lacks them.

    Afterwards plain xarray opens a zarr store that tensordict or raw zarr wrote, and plain tensordict finds the batch
    of a store that others wrote. An HDF5 file gets dimension labels, and a record that this package reads (HDF5 holds
    no metadata that tensordict would read).

    Parameters
    ----------
    store
        A path, a URL, a zarr store or group, or an h5py file or group that is open for writing.
    batch_dims
        Names or a count; None infers the batch.
    dims
        Names for axes, as in ``xr.open_dataset(..., engine="tensordict")``, in place of those that the store may have. What
        is not mentioned keeps its names.
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
        Where plain tensordict would not read the values that the store means: the message names the arrays in the way, those that
        do not start with the batch and those whose stored values are not what they mean (packed data, encoded times).
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
    source = find_source(store)
    if source.format.why_not_annotated is not None:
        raise ValueError(f"{source.description}: {source.format.why_not_annotated}")
    _check_writable(source)
    opened = source.open(group=group, consolidated=False, storage_options=storage_options)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # what is in the way is raised below
            options = OpenOptions(nested=True, batch_dims=batch_dims, dims=dims)
            in_store = {"/".join((*node.key, name)) for node in walk(opened) for name in node.arrays}
            layout = lay_out(opened, list(walk(opened)), options)
            ds = open_flat(opened, options)
        inference = layout.inference or infer_batch(
            layout.infos.values(), group_attrs={key: group.attrs for key, group in layout.groups.items()}
        )
        # variables in the entry _unbatched are not read by plain tensordict
        restored = {str(name) for name in ds.variables} - in_store
        _check_readable(ds, restored, batch_dims, source.description)
        named = _changed_names(opened, layout, dims)
    finally:
        opened.close()
    records = {
        key: batch_record(batch.sizes, td_names(replace(batch, dims=name_batch(batch))))
        for key, batch in inference.groups.items()
        if key in layout.groups
    }
    source.format.annotate(source.value, source.description, Annotations(named, records, group, storage_options))
    return inference


# -- checks, before anything is written --------------------------------------------------------------------------------


def _check_writable(source: Source) -> None:
    value, description = source.value, source.description
    if source.is_path and not is_url(value):
        fixed = source.format.why_not_changed(value)
        if fixed is not None:
            raise PermissionError(f"{description}: {fixed}; write a new store with ds.td.to_zarr")
        if not os.access(value, os.W_OK):
            raise PermissionError(f"{description} cannot be written to; change its permissions, or annotate a copy")
    read_only = getattr(value, "read_only", None)
    mode = getattr(getattr(value, "file", None), "mode", None)
    if read_only is True or mode == "r":
        raise PermissionError(f"{description} was opened for reading only; open it with mode 'r+' to annotate it")


def _check_readable(ds: xr.Dataset, restored: set[str], batch_dims: BatchDims | None, description: str) -> None:
    """Plain tensordict opens the store to the values it means, or an error names what is in the way."""
    from .lazy.persistent import why_other

    inference = infer_dataset(ds)
    plan = plan_entries(ds, inference, unbatched="keep")
    in_the_way = [f"{name!r} ({reason})" for name, reason in plan.left_out.items()]
    for entry in plan.entries:
        if entry.form != "tensor" or entry.name in restored:
            continue
        reason = why_other(entry, ds)
        if reason is not None:
            in_the_way.append(f"{entry.name!r} ({reason})")
    if in_the_way:
        batch = dict(zip(inference.batch_dims, inference.batch_size, strict=True))
        raise ValueError(
            f"{description}: plain tensordict could not open this store with batch {batch} to the values it means. In the way: "
            f"{'; '.join(in_the_way)}. Write a store that both read with ds.td.to_zarr(...), or choose other batch_dims "
            f"(now {batch_dims!r}). Nothing was changed"
        )


def _changed_names(store: Store, layout: Layout, dims: DimsArgument | None) -> dict[Key, Dims]:
    """The names of the axes of arrays that lack one, or that the caller gives other names."""
    shapes = {key: info.shape for key, info in layout.infos.items()}
    argument = resolve_names(dims, shapes)
    changed: dict[Key, Dims] = {}
    for group in walk(store):
        for name, array in group.arrays.items():
            key = (*group.key, name)
            if array.non_tensor or key not in layout.named:
                continue
            is_asked = any(given_dims(argument, key, (None,) * len(array.shape), array.shape, batch=()))
            kept = (None,) * len(array.shape) if is_asked else array.dims
            names = tuple(then or now for then, now in zip(kept, layout.named[key], strict=True))
            if names != array.dims:
                changed[key] = names
    return changed
