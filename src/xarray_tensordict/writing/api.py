"""The public writers, ``ds.td.to_zarr`` and ``ds.td.to_h5``: check everything, then touch the target."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, Literal, get_args

import numpy as np
import xarray as xr

from ..core.suggest import there_are
from ..formats.zarr.open import client_errors
from .arguments import check_choice
from .encodings import check_sizes
from .plan import Source, add_unlimited, source_of_dataset, source_of_tree
from .stored_form import Layout

ZarrMode = Literal["w", "w-", "a", "a-", "r+"]
Region = Mapping[str, slice | Literal["auto"]] | Literal["auto"]

_REFUSED = frozenset({"scale_factor", "add_offset", "_FillValue", "missing_value", "units", "calendar", "_Unsigned"})


def to_zarr(ds: xr.Dataset, store: Any, *, layout: Layout = "tensordict", **options: Any) -> Any:
    """Write a Dataset to a zarr store that tensordict and xarray both read; parameters as ``Dataset.td.to_zarr``."""
    return _write_zarr(source_of_dataset(ds), store, layout=layout, **options)


def to_h5(ds: xr.Dataset, path: Any, *, layout: Layout = "tensordict", **options: Any) -> Any:
    """Write a Dataset to an HDF5 file that tensordict and xarray both read; parameters as ``Dataset.td.to_h5``."""
    return _write_h5(source_of_dataset(ds), path, layout=layout, **options)


def tree_to_h5(dt: xr.DataTree, path: Any, *, layout: Layout = "tensordict", **options: Any) -> Any:
    """Write a DataTree to an HDF5 file, one group for each node; parameters as for :func:`to_h5`."""
    return _write_h5(source_of_tree(dt), path, layout=layout, **options)


def _write_h5(
    source: Source,
    path: Any,
    *,
    layout: Layout,
    mode: str | None = None,
    group: str | None = None,
    append_dim: Hashable | None = None,
    encoding: Mapping[str, Mapping[str, Any]] | None = None,
    chunks: Mapping[str, int] | None = None,
    unlimited_dims: Iterable[str] = (),
    compute: bool = True,
    progress: bool = False,
) -> Any:
    from ..formats.hdf5.write import Hdf5Options, create_file

    check_choice("layout", layout, get_args(Layout))
    check_choice("mode", mode, (None, "w", "w-", "x", "a"))
    if append_dim is not None and mode not in {None, "a"}:
        raise ValueError(f"append_dim={append_dim!r} goes with mode='a' or none, found mode={mode!r}")
    add_unlimited(source, unlimited_dims)
    options = Hdf5Options(
        checked_encoding(encoding, source, layout), check_sizes("chunks", chunks, _sizes(source)), progress
    )
    prefix = tuple(part for part in (group or "").split("/") if part)
    return create_file(
        source,
        path,
        options,
        layout,
        mode=mode,
        prefix=prefix,
        compute=compute,
        append_dim=None if append_dim is None else str(append_dim),
    )


def _sizes(source: Source) -> dict[str, int]:
    """The sizes of all dims, under the names of the flat view and of the groups."""
    sizes = {str(dim): size for dim, size in source.flat.sizes.items()}
    for node in source.nodes.values():
        for variable in node.variables.values():
            sizes.update((str(dim), size) for dim, size in zip(variable.dims, variable.shape, strict=True))
    return sizes


def tree_to_zarr(dt: xr.DataTree, store: Any, *, layout: Layout = "tensordict", **options: Any) -> Any:
    """Write a DataTree to a zarr store, one group for each node; parameters as for :func:`to_zarr`."""
    return _write_zarr(source_of_tree(dt), store, layout=layout, **options)


def _write_zarr(
    source: Source,
    store: Any,
    *,
    layout: Layout,
    mode: ZarrMode | None = None,
    group: str | None = None,
    append_dim: Hashable | None = None,
    region: Region | None = None,
    compute: bool = True,
    encoding: Mapping[str, Mapping[str, Any]] | None = None,
    chunks: Mapping[str, int] | None = None,
    shards: Mapping[str, int] | None = None,
    compressors: Any = None,
    zarr_format: Literal[2, 3] | None = None,
    consolidated: bool | None = None,
    storage_options: dict[str, Any] | None = None,
    progress: bool = False,
) -> Any:
    from ..formats.registry import describe_source
    from ..formats.zarr.new_arrays import ZarrOptions
    from ..formats.zarr.target import resolve_target
    from ..formats.zarr.write import write_store

    check_choice("layout", layout, get_args(Layout))
    check_choice("mode", mode, (None, *get_args(ZarrMode)))
    check_choice("zarr_format", zarr_format, (None, 2, 3))
    sizes = _sizes(source)
    options = ZarrOptions(
        checked_encoding(encoding, source, layout),
        check_sizes("chunks", chunks, sizes),
        check_sizes("shards", shards, sizes),
        compressors,
        zarr_format,
        consolidated,
        compute,
        progress,
    )
    with client_errors(store, describe_source(store)):
        target = resolve_target(store, group, storage_options)
        return write_store(source, target, options, layout, mode=mode, append_dim=append_dim, region=region)


def checked_encoding(
    encoding: Mapping[str, Mapping[str, Any]] | None, source: Source, layout: Layout
) -> dict[str, dict[str, Any]]:
    """The caller's ``encoding=``, by the names of the Dataset.

    Raises
    ------
    ValueError
        For unknown names, and for packing that bare tensordict would show as it is stored.
    """
    found: dict[str, dict[str, Any]] = {}
    known = {name: variable for node in source.nodes.values() for name, variable in _named(node)}
    for name, asked in (encoding or {}).items():
        if name not in known:
            raise ValueError(f"encoding: there is no variable {name!r}; {there_are(name, known)}")
        refused = sorted(_REFUSED & set(asked)) if layout == "tensordict" else []
        if refused:
            raise ValueError(
                f"encoding: {refused} of {name!r} would make bare tensordict read what is stored in place of what it "
                "means; "
                f"leave it out, or write with layout='xarray'"
            )
        if layout == "tensordict" and "dtype" in asked:
            _check_dtype(name, known[name], asked["dtype"])
        found[name] = dict(asked)
    return found


def _check_dtype(name: str, variable: xr.Variable, dtype: Any) -> None:
    wanted = np.dtype(dtype)
    if variable.dtype.kind in "biufc" and np.can_cast(variable.dtype, wanted, "same_kind"):
        return
    raise ValueError(
        f"encoding: dtype {wanted} for {name!r} of dtype {variable.dtype} would change what bare tensordict reads; convert "
        f"the variable with .astype(), or write with layout='xarray'"
    )


def _named(node: Any) -> Iterator[tuple[str, xr.Variable]]:
    for local, variable in node.variables.items():
        yield node.names[local], variable
