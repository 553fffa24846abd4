"""``ds.td.to_zarr`` and ``ds.td.to_h5``: check everything, then touch the target."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal, get_args

import numpy as np
import xarray as xr

from ..core.blocks import Bytes
from ..core.model import path_key
from ..core.naming import check_choice, there_are
from .plan import Source, WriteOptions, Written, add_unlimited, source_of_dataset, source_of_tree
from .stored_form import Layout

ZarrMode = Literal["w", "w-", "a", "a-", "r+"]

_REFUSED = frozenset({"scale_factor", "add_offset", "_FillValue", "missing_value", "units", "calendar", "_Unsigned"})


class WritingMethods:
    """The part of ``ds.td`` that writes zarr stores and HDF5 files."""

    _ds: xr.Dataset

    def to_zarr(
        self,
        store: Any,
        *,
        mode: Literal["w", "w-", "a", "a-", "r+"] | None = None,
        layout: Literal["tensordict", "xarray"] = "tensordict",
        group: str | None = None,
        append_dim: Hashable | None = None,
        region: Any = None,
        chunks: Mapping[str, int | str] | None = None,
        shards: Mapping[str, int | str] | None = None,
        compressors: Any = None,
        encoding: Mapping[str, Mapping[str, Any]] | None = None,
        compute: bool = True,
        progress: bool = False,
        storage_options: dict[str, Any] | None = None,
        zarr_format: Literal[2, 3] | None = None,
        consolidated: bool | None = None,
    ) -> Any:
        """Write a Dataset to a zarr store that tensordict and xarray both read.

        This package reads completely what each writer writes. ``ds.to_zarr(path)`` of plain xarray and ``layout="xarray"`` are for
        readers with plain xarray, the default is for readers with plain tensordict: ``xr.open_zarr`` shows no ``lat`` or mask of it.

        Parameters
        ----------
        store
            A path, a URL, a ``zarr.abc.store.Store``, a ``zarr.Group``, a dict. A path that ends in ``.zip`` gives one
            zip file.
        mode
            As in ``Dataset.to_zarr``: "w-" (the default) refuses an existing target, "w" replaces it (a local store is
            written beside and renamed, so that it may be the one that `ds` reads from), "a" adds and overwrites variables,
            "r+" overwrites only, "a-" is "a" for appending.
        layout
            "tensordict": ``TensorDict.from_zarr`` opens the store with batch size, names and all batched entries; numeric
            variables without (all) batch dims are kept in the root entry ``_unbatched``, times as int64 nanoseconds,
            packed values decoded. "xarray": all variables are plain arrays, encoded as ``Dataset.to_zarr`` encodes them.
            This package reads both back without loss. ``ds.to_zarr`` writes a plain store without a batch size, which this package
            opens too.
        group
            The group that becomes the root.
        append_dim
            Append along this dim, in nested groups too. Variables without it must equal those of the store, and stay.
        region
            Write to a part of the store: slices by dim, or "auto" to find them by the index coordinates. Variables without
            a dim of the region must equal those of the store, and stay. Many processes can write regions of one store at the
            same time, if their borders are those of chunks (of shards); regions held by dask are refused otherwise.

        Arrays
        ------
        chunks, shards
            Sizes by dim: ``{"time": 24}``, -1 for the whole dim, ``{"time": "1MiB"}`` for as many rows as take so many bytes before
            compression. By default chunks are those of the store that was opened,
            or rows along the batch, of about 1 MiB and as dask has cut the other dims. Blocks of dask are aligned with
            chunks and shards, so that no two tasks write to one.
        compressors
            For all arrays, as in ``zarr.create_array``.
        encoding
            By variable, as in ``Dataset.to_zarr``.

        Running
        -------
        compute
            False: create all arrays, write what is in memory, and return one dask ``Delayed`` that writes the rest and
            finishes the metadata. Until then, or until regions have filled it, opening the store warns that it is not
            complete; unwritten values read as the fill value (NaN for floats, 0 for integers).
        progress
            Show a bar (of tqdm where it is installed, else of dask; with a cluster, its own).

        Storage
        -------
        storage_options
            For a URL.
        zarr_format
            2 or 3; by default that of the store, or zarr's default.
        consolidated
            False: do not consolidate the metadata, which is done otherwise where the store supports it.

        Returns
        -------
        Written or dask.delayed.Delayed
            A summary that prints the target, the batch, and the variables that went into ``_unbatched``. With ``compute=False``
            the ``Delayed`` that writes the rest.

        Raises
        ------
        FileExistsError
            Where the target exists and `mode` is not one that replaces or changes it.
        ValueError, TypeError, NotImplementedError
            For what the store cannot hold (times out of range, objects that are no JSON, a MultiIndex), or what does not
            fit the existing store. The target has not been touched.

        Examples
        --------
        >>> import tempfile, numpy as np, xarray as xr, xarray_tensordict
        >>> from tensordict import TensorDict
        >>> path = tempfile.mkdtemp() + "/era.zarr"
        >>> ds = xr.Dataset({"t2m": (("time", "lat"), np.zeros((4, 3), "f4"))}, coords={"lat": [1.0, 2.0, 3.0]})
        >>> ds.td.to_zarr(path)  # doctest: +ELLIPSIS
        <written ...era.zarr, batch (time: 4); in the entry '_unbatched', for lack of batch dims: lat>
        >>> TensorDict.from_zarr(path)["t2m"].shape
        torch.Size([4, 3])
        >>> xr.open_dataset(path, engine="tensordict").identical(ds)
        True
        """
        options = dict(locals())
        return write_zarr(options.pop("self")._ds, **options)

    def to_h5(
        self,
        path: Any,
        *,
        mode: Literal["w", "w-", "x", "a"] | None = None,
        layout: Literal["tensordict", "xarray"] = "tensordict",
        group: str | None = None,
        append_dim: Hashable | None = None,
        chunks: Mapping[str, int | str] | None = None,
        encoding: Mapping[str, Mapping[str, Any]] | None = None,
        unlimited_dims: Iterable[str] = (),
        compute: bool = True,
        progress: bool = False,
    ) -> Any:
        """Write a Dataset to an HDF5 file that tensordict and xarray both read.

        Parameters
        ----------
        path
            A path, or a binary file object.
        mode
            None replaces the group `group`, by default the root and so the file, and leaves other groups as they are. "w"
            replaces the file, "w-" and "x" refuse an existing file, "a" adds variables and groups to it. All of these write
            beside the file and rename, so it may be the one that `ds` reads from. A file of another kind is never replaced.
        layout
            "tensordict": plain ``TensorDict.from_h5`` reads the batched entries (numeric variables without all
            batch dims are in the root entry ``_unbatched``), dims are HDF5 dimension labels. "xarray": a netCDF-4 file, as
            ``Dataset.to_netcdf`` writes it, one group for each nested group. This package reads both back without loss.
        group, progress
            As in :meth:`to_zarr`.
        append_dim
            Append along this dim, in nested groups too, to datasets that can grow (see `unlimited_dims`). The file is changed
            in place. Where that fails the earlier rows stay. No other process may have the file open. Variables
            without the dim must equal those of the file.

        Arrays
        ------
        chunks
            Sizes by dim: ``{"time": 24}``, -1 for the whole dim.
        encoding
            By variable: ``{"x": {"zlib": True, "complevel": 4, "chunksizes": (10, 3)}}``, or h5py's words (``compression``,
            ``chunks``).
        unlimited_dims
            Dims that can grow later, besides ``ds.encoding["unlimited_dims"]``.

        Running
        -------
        compute
            False: check everything now (appended rows: when they are computed), and return a dask ``Delayed`` that writes the file.
            Not with a cluster: blocks are computed on any scheduler, and written by this process, one by one.

        Returns
        -------
        Written or dask.delayed.Delayed
            A summary, as of :meth:`to_zarr`. With ``compute=False`` the ``Delayed`` that writes the file.

        Raises
        ------
        FileExistsError
            With mode "w-" or "x" where there is a file.
        BlockingIOError
            Where another process writes to the file, or has changed it meanwhile; with `append_dim` also where one reads it.
        ValueError, TypeError, NotImplementedError
            For what the file cannot hold, and where this process writes to it. The target has not been touched.

        Examples
        --------
        >>> import tempfile, numpy as np, xarray as xr, xarray_tensordict
        >>> from tensordict import TensorDict
        >>> path = tempfile.mkdtemp() + "/era.h5"
        >>> ds = xr.Dataset({"t2m": (("time", "lat"), np.zeros((4, 3), "f4"))}, coords={"lat": [1.0, 2.0, 3.0]})
        >>> _ = ds.td.to_h5(path)
        >>> TensorDict.from_h5(path, batch_size=[4])["t2m"].shape
        torch.Size([4, 3])
        """
        options = dict(locals())
        return write_h5(options.pop("self")._ds, **options)


def write_zarr(
    data: xr.Dataset | xr.DataTree,
    store: Any,
    *,
    group: str | None = None,
    storage_options: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Write a zarr store that tensordict and xarray both read; parameters as ``Dataset.td.to_zarr``."""
    from ..formats.identity import describe_source
    from ..formats.zarr.new_arrays import ZarrOptions
    from ..formats.zarr.remote import raise_translated
    from ..formats.zarr.write import resolve_target, write_store

    source = _source_of(data)
    asked = ZarrOptions(**{**options, **_checked(source, options)})
    check_choice("mode", asked.mode, (None, *get_args(ZarrMode)))
    check_choice("zarr_format", asked.zarr_format, (None, 2, 3))
    try:
        delayed = write_store(source, resolve_target(store, group, storage_options), asked)
    except Exception as error:
        raise_translated(error, store, describe_source(store))
        raise
    return Written(describe_source(store), source.batches[()], source.in_unbatched) if delayed is None else delayed


def write_h5(
    data: xr.Dataset | xr.DataTree,
    path: Any,
    *,
    group: str | None = None,
    unlimited_dims: Iterable[str] = (),
    **options: Any,
) -> Any:
    """Write an HDF5 file that tensordict and xarray both read; parameters as ``Dataset.td.to_h5``."""
    from ..formats.hdf5.write import create_file
    from ..formats.identity import describe_source

    source = _source_of(data)
    asked = WriteOptions(**{**options, **_checked(source, options)})
    check_choice("mode", asked.mode, (None, "w", "w-", "x", "a"))
    if asked.append_dim is not None and asked.mode not in {None, "a"}:
        raise ValueError(f"append_dim={asked.append_dim!r} goes with mode='a' or none, found mode={asked.mode!r}")
    add_unlimited(source, unlimited_dims)
    delayed = create_file(source, path, asked, path_key(group))
    return Written(describe_source(path), source.batches[()], source.in_unbatched) if delayed is None else delayed


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
        raise TypeError(f"{argument}: expected sizes by dim, {{'time': 24}} or {{'time': '1MiB'}}, found {sizes!r}")
    found = {}
    for dim, size in sizes.items():
        if dim not in dims:
            raise ValueError(f"{argument}: there is no dim {dim!r}; {there_are(dim, dims, 'the dims there are')}")
        number = _bytes(size) if isinstance(size, str) else size
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or (number < 1 and number != -1):
            raise ValueError(
                f"{argument}: expected a size of at least 1, -1 for the whole dim, or bytes such as '1MiB' for {dim!r}, "
                f"found {size!r}"
            )
        found[str(dim)] = number if isinstance(number, Bytes) else int(number)
    return found


def _bytes(text: str) -> Bytes | None:
    from dask.utils import parse_bytes

    with suppress(ValueError, OverflowError):
        if re.match(r"[\d.]+\s*[A-Za-z]", text):
            return Bytes(parse_bytes(text))
    return None


def _checked_encoding(
    encoding: Mapping[str, Mapping[str, Any]], source: Source, layout: Layout
) -> dict[str, dict[str, Any]]:
    """The caller's ``encoding=``, by the names of the Dataset, without packing that plain tensordict would show as it is."""
    known = {node.names[local]: v for node in source.nodes.values() for local, v in node.variables.items()}
    for name, asked in encoding.items():
        if name not in known:
            raise ValueError(f"encoding: there is no variable {name!r}; {there_are(name, known)}")
        if layout == "xarray":
            continue
        refused = sorted(_REFUSED & set(asked))
        if refused:
            raise ValueError(
                f"encoding: {refused} of {name!r} would make plain tensordict read what is stored in place of what it "
                "means; leave it out, or write with layout='xarray'"
            )
        found = known[name].dtype
        if "dtype" in asked and not (
            found.kind in "biufc" and np.can_cast(found, np.dtype(asked["dtype"]), "same_kind")
        ):
            raise ValueError(
                f"encoding: dtype {np.dtype(asked['dtype'])} for {name!r} of dtype {found} would change what plain tensordict reads; "
                f"convert the variable with .astype(), or write with layout='xarray'"
            )
    return {name: dict(asked) for name, asked in encoding.items()}
