"""The xarray backend ``engine="tensordict"``.

xarray imports this module on any open without ``engine=``. It stands beside the package so that such an open neither
imports the package (torch and tensordict take seconds) nor registers ``ds.td``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import signature
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any, ClassVar

from xarray.backends import BackendEntrypoint

if TYPE_CHECKING:
    import xarray as xr

    from xarray_tensordict.core.model import Store
    from xarray_tensordict.dataset.open import OpenOptions

_TRIES = 100
"""So often a store is opened that changes just then."""
_DECODERS = ("mask_and_scale", "decode_times", "concat_characters", "decode_coords", "use_cftime", "decode_timedelta")

_OF_STORE = (
    "group",
    "consolidated",
    "storage_options",
    "zarr_format",
    "use_zarr_fill_value_as_mask",
    "allow_pickle",
    "filled",
)


class TensorDictBackendEntrypoint(BackendEntrypoint):
    """Open stores that tensordict, xarray or other tools wrote, and find the batch.

    Zarr stores, HDF5 and netCDF-4 files, memory-mapped tensordicts (folders and ``.tdz`` archives),
    and checkpoints of replay buffers of torchrl (the oldest row first; ``filled=False`` keeps the order of the storage).

    ``xr.open_dataset(store, engine="tensordict", ...)`` has the parameters of :func:`xarray_tensordict.open_persistent` except ``mode``
    and ``device``, and all those of xarray.

    Examples
    --------
    >>> import tempfile, torch, xarray as xr
    >>> from tensordict import TensorDict
    >>> path = tempfile.mkdtemp() + "/buffer.zarr"
    >>> td = TensorDict({"obs": torch.zeros(6, 3), "next": {"obs": torch.ones(6, 3)}}, [6], names=["time"])
    >>> _ = td.to_zarr(path)
    >>> ds = xr.open_dataset(path, engine="tensordict")
    >>> ds["next/obs"].dims
    ('time', 'dim_3')
    """

    description = "Open zarr stores and HDF5 files of tensordict, and those of other tools with an inferred batch"
    supports_groups = True

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Return True only for a local zarr folder with tensordict's ``__tensordict__`` attribute.

        HDF5 files need ``engine="tensordict"``, because netcdf4 and h5netcdf open them by default.
        """
        if not isinstance(filename_or_obj, (str, os.PathLike)):
            return False
        try:
            path = Path(os.fspath(filename_or_obj))
            return any(
                b'"__tensordict__"' in (path / name).read_bytes()
                for name in ("zarr.json", ".zattrs")
                if (path / name).is_file()
            )
        except (OSError, TypeError, ValueError):
            return False

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        drop_variables: str | Iterable[str | tuple[str, ...]] | None = None,
        mask_and_scale: bool | Mapping[str, bool] = True,
        decode_times: Any = True,
        concat_characters: bool | Mapping[str, bool] = True,
        decode_coords: Any = True,
        use_cftime: Any = None,
        decode_timedelta: Any = None,
        group: str | None = None,
        nested: bool | None = None,
        batch_dims: str | Sequence[str] | int | None = None,
        dims: Mapping[str, Sequence[str | EllipsisType]] | None = None,
        allow_pickle: bool = False,
        consolidated: bool | None = None,
        storage_options: dict[str, Any] | None = None,
        zarr_format: int | None = None,
        use_zarr_fill_value_as_mask: bool | None = None,
        filled: bool = True,
        **unknown: Any,
    ) -> xr.Dataset:
        """Open a store as one Dataset.

        Raises
        ------
        TypeError
            For an unknown parameter; the message lists the known ones.
        """
        arguments = {n: v for n, v in locals().items() if n not in {"self", "filename_or_obj", "unknown"}}
        self._check_known(unknown)
        from xarray_tensordict.dataset.open import open_flat

        ds: xr.Dataset = _open(filename_or_obj, arguments, open_flat, lambda opened: [opened])
        return ds

    # xarray asks for the signature of open_dataset alone: open_datatree shares it
    open_dataset_parameters: ClassVar[tuple[str, ...]] = tuple(signature(open_dataset).parameters)[1:-1]

    def open_datatree(self, filename_or_obj: Any, **kwargs: Any) -> xr.DataTree:
        """Open a store as a DataTree, one node for each group, under the local names of its dims."""
        from xarray.backends.common import datatree_from_dict_with_io_cleanup

        return datatree_from_dict_with_io_cleanup(self._open_groups(filename_or_obj, kwargs, fit_parents=True))

    def open_groups_as_dict(self, filename_or_obj: Any, **kwargs: Any) -> dict[str, xr.Dataset]:
        """Open every group of a store, by path; ``"/"`` is the root."""
        return self._open_groups(filename_or_obj, kwargs, fit_parents=False)

    def _check_known(self, unknown: Iterable[str]) -> None:
        for name in unknown:
            from xarray_tensordict.core.naming import there_are

            raise TypeError(
                f"engine 'tensordict' has no parameter {name!r}; {there_are(name, self.open_dataset_parameters[1:])}"
            )

    def _open_groups(self, source: Any, kwargs: dict[str, Any], *, fit_parents: bool) -> dict[str, xr.Dataset]:
        """A DataTree, unlike a dict, needs dims of one name to have one size along each branch."""
        self._check_known(set(kwargs).difference(self.open_dataset_parameters))
        from xarray_tensordict.dataset.open import open_tree

        opener = partial(open_tree, fit_parents=fit_parents)
        groups: dict[str, xr.Dataset] = _open(source, kwargs, opener, lambda opened: opened.values())
        return groups


def _open(
    source: Any,
    arguments: dict[str, Any],
    opener: Callable[[Store, OpenOptions], Any],
    datasets: Callable[[Any], Iterable[xr.Dataset]],
) -> Any:
    """Open the store, again where a writer changes it just then; close it with the Datasets or on an error."""
    from xarray_tensordict import accessor  # noqa: F401 - ds.td is there once the engine was used
    from xarray_tensordict.core.model import entry_name
    from xarray_tensordict.dataset.open import OpenOptions
    from xarray_tensordict.formats.identity import ChangedError
    from xarray_tensordict.formats.registry import open_store
    from xarray_tensordict.warnings import without_collection

    dropped = arguments.get("drop_variables") or ()
    options = OpenOptions(
        **{name: arguments.get(name) for name in ("group", "nested", "batch_dims", "dims")},
        drop_variables=frozenset([dropped] if isinstance(dropped, str) else map(entry_name, dropped)),
        decoders={name: arguments[name] for name in _DECODERS if name in arguments},
    )
    of_store = {name: arguments[name] for name in _OF_STORE if arguments.get(name) is not None}
    for _ in range(_TRIES):
        store = None
        try:
            store = open_store(source, **of_store)
            with without_collection():
                opened = opener(store, options)
        except BaseException as error:
            if store is not None:
                store.close()
            if not isinstance(error, ChangedError):
                raise
            changed = error
            continue
        for ds in datasets(opened):
            ds.set_close(store.close)
        return opened
    raise changed
