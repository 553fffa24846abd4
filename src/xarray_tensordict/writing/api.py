"""The public writers, ``ds.td.to_zarr`` and ``ds.td.to_h5``: check everything, then touch the target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import numpy as np
import xarray as xr

from ..core.suggest import check_choice, there_are
from .plan import Source, WriteOptions, add_unlimited, source_of_dataset, source_of_tree
from .stored_form import Layout

ZarrMode = Literal["w", "w-", "a", "a-", "r+"]

_REFUSED = frozenset({"scale_factor", "add_offset", "_FillValue", "missing_value", "units", "calendar", "_Unsigned"})


def to_zarr(
    data: xr.Dataset | xr.DataTree,
    store: Any,
    *,
    group: str | None = None,
    storage_options: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Write a zarr store that tensordict and xarray both read; parameters as ``Dataset.td.to_zarr``."""
    from ..formats.registry import describe_source
    from ..formats.zarr.new_arrays import ZarrOptions
    from ..formats.zarr.open import client_errors
    from ..formats.zarr.write import resolve_target, write_store

    source = _source_of(data)
    asked = ZarrOptions(**{**options, **_checked(source, options)})
    check_choice("mode", asked.mode, (None, *get_args(ZarrMode)))
    check_choice("zarr_format", asked.zarr_format, (None, 2, 3))
    with client_errors(store, describe_source(store)):
        return write_store(source, resolve_target(store, group, storage_options), asked)


def to_h5(
    data: xr.Dataset | xr.DataTree,
    path: Any,
    *,
    group: str | None = None,
    unlimited_dims: Iterable[str] = (),
    **options: Any,
) -> Any:
    """Write an HDF5 file that tensordict and xarray both read; parameters as ``Dataset.td.to_h5``."""
    from ..formats.hdf5.write import create_file

    source = _source_of(data)
    asked = WriteOptions(**{**options, **_checked(source, options)})
    check_choice("mode", asked.mode, (None, "w", "w-", "x", "a"))
    if asked.append_dim is not None and asked.mode not in {None, "a"}:
        raise ValueError(f"append_dim={asked.append_dim!r} goes with mode='a' or none, found mode={asked.mode!r}")
    add_unlimited(source, unlimited_dims)
    return create_file(source, path, asked, tuple(part for part in (group or "").split("/") if part))


def _source_of(data: xr.Dataset | xr.DataTree) -> Source:
    return source_of_tree(data) if isinstance(data, xr.DataTree) else source_of_dataset(data)


def _checked(source: Source, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are given by variable or by dim, checked."""
    layout: Layout = options.get("layout", "tensordict")
    check_choice("layout", layout, get_args(Layout))
    # under the names of the flat view and of the groups
    sizes = {str(dim): size for dim, size in source.flat.sizes.items()}
    for node in source.nodes.values():
        for variable in node.variables.values():
            sizes.update((str(dim), size) for dim, size in zip(variable.dims, variable.shape, strict=True))
    found: dict[str, Any] = {
        name: _checked_sizes(name, options[name], sizes) for name in ("chunks", "shards") if name in options
    }
    return {**found, "encoding": _checked_encoding(options.get("encoding") or {}, source, layout)}


def _checked_sizes(argument: str, sizes: Any, dims: Mapping[str, int]) -> dict[str, int]:
    if sizes is None:
        return {}
    if not isinstance(sizes, Mapping):
        raise TypeError(f"{argument}: expected sizes by dim, {{'time': 24}}, found {sizes!r}")
    for dim, size in sizes.items():
        if dim not in dims:
            raise ValueError(f"{argument}: there is no dim {dim!r}; {there_are(dim, dims, 'the dims there are')}")
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or (size < 1 and size != -1):
            raise ValueError(
                f"{argument}: expected a size of at least 1, or -1 for the whole dim, for {dim!r}, found {size!r}"
            )
    return {str(dim): int(size) for dim, size in sizes.items()}


def _checked_encoding(
    encoding: Mapping[str, Mapping[str, Any]], source: Source, layout: Layout
) -> dict[str, dict[str, Any]]:
    """The caller's ``encoding=``, by the names of the Dataset, without packing that bare tensordict would show as it is."""
    known = {node.names[local]: v for node in source.nodes.values() for local, v in node.variables.items()}
    for name, asked in encoding.items():
        if name not in known:
            raise ValueError(f"encoding: there is no variable {name!r}; {there_are(name, known)}")
        if layout == "xarray":
            continue
        refused = sorted(_REFUSED & set(asked))
        if refused:
            raise ValueError(
                f"encoding: {refused} of {name!r} would make bare tensordict read what is stored in place of what it "
                "means; leave it out, or write with layout='xarray'"
            )
        found = known[name].dtype
        if "dtype" in asked and not (
            found.kind in "biufc" and np.can_cast(found, np.dtype(asked["dtype"]), "same_kind")
        ):
            raise ValueError(
                f"encoding: dtype {np.dtype(asked['dtype'])} for {name!r} of dtype {found} would change what bare tensordict reads; "
                f"convert the variable with .astype(), or write with layout='xarray'"
            )
    return {name: dict(asked) for name, asked in encoding.items()}
