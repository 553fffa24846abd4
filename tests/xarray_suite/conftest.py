"""xarray's own tests, with this package's engine in the place of xarray's.

xarray ships its tests. They name their engines (``engine="zarr"``), so the engine takes the place of theirs for the time
of a test. Where an answer differs on purpose, the test is in `DIFFERENT`, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import xarray as xr
from xarray.backends import plugins
from xarray.backends.common import BACKEND_ENTRYPOINTS
from xarray.tests.conftest import (  # noqa: F401 - fixtures that the tests ask for
    create_test_datatree,
    handle_numpy_1_warnings,
    simple_datatree,
    time_unit,
    use_dask,
)

from xarray_tensordict_engine import TensorDictBackendEntrypoint

# parameters of the engines that stand aside; the tests pass them, and they do not change what is read
_FOREIGN = frozenset(
    "mode cache_members engine store format lock invalid_netcdf phony_dims decode_vlen_strings driver driver_kwds open_kwargs"
    " autoclose auto_complex".split()
)

DIFFERENT = {
    "test_read_non_consolidated_warning": "local stores are read as they are, which is as fast, so nothing is to be warned of",
    "test_compressor_encoding[2]": "codecs of zarr v2 are no part of the encoding: the default writer (v3) refuses them",
    "test_check_encoding_is_consistent_after_append[2]": "codecs of zarr v2 are no part of the encoding, as above",
    "test_zarr_encoding[zarr_format=2]": "codecs of zarr v2 are no part of the encoding, as above",
    "test_to_zarr_not_consolidated": "reading a local store unconsolidated is no reason to warn, as above",
    "test_phony_dims_warning": "axes without a name get one that depends on no order of access: nothing to warn of",
    "test_decode_utf8_warning": "the same warning, in other words",
    "test_open_badbytes": "the same error, in other words; it also says what was found",
    "test_child_group_with_inconsistent_dimensions": "nested groups without a batch of their own are shown in the root",
    "test_open_datatree_unaligned_hierarchy": "a dim that clashes with that of a group above is renamed, with a warning",
    "test_open_groups[zarr_format": "the root, opened by itself, shows nested groups without a batch of their own, as above",
    "test_zarr_fill_value_setting[2-": "use_zarr_fill_value_as_mask=False is honoured; xarray's engine ignores it",
}


class _InPlaceOf(TensorDictBackendEntrypoint):
    """The engine under the name, and with the signature, of one of xarray's own."""

    open_dataset_parameters = (*TensorDictBackendEntrypoint.open_dataset_parameters, *sorted(_FOREIGN))

    def open_dataset(self, filename_or_obj: Any, **kwargs: Any) -> xr.Dataset:
        return super().open_dataset(filename_or_obj, **_ours(kwargs))

    def open_groups_as_dict(self, filename_or_obj: Any, **kwargs: Any) -> dict[str, xr.Dataset]:
        return super().open_groups_as_dict(filename_or_obj, **_ours(kwargs))


class ZarrInPlace(_InPlaceOf):
    def guess_can_open(self, filename_or_obj: Any) -> bool:
        return xr.backends.ZarrBackendEntrypoint().guess_can_open(filename_or_obj)


class H5netcdfInPlace(_InPlaceOf):
    def guess_can_open(self, filename_or_obj: Any) -> bool:
        return xr.backends.H5netcdfBackendEntrypoint().guess_can_open(filename_or_obj)


def _ours(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name not in _FOREIGN}


@pytest.fixture(autouse=True)
def engine_in_place(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``engine="zarr"`` and ``engine="h5netcdf"`` are this package's engine for the time of a test."""
    with xr.set_options(warn_for_unclosed_files=True):
        yield from _engine_in_place(monkeypatch)


def _engine_in_place(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(BACKEND_ENTRYPOINTS, "zarr", ("zarr", ZarrInPlace))
    monkeypatch.setitem(BACKEND_ENTRYPOINTS, "h5netcdf", ("h5netcdf", H5netcdfInPlace))
    plugins.list_engines.cache_clear()
    yield
    plugins.list_engines.cache_clear()


# importing xarray's tests sets this for the whole process, and the files of other tests are none of their business
xr.set_options(warn_for_unclosed_files=False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "xarray_suite" not in str(item.path):
            continue
        item.add_marker(pytest.mark.slow)
        # the warnings that xarray's tests cause are xarray's to judge
        item.add_marker(pytest.mark.filterwarnings("ignore"))
        for name, reason in DIFFERENT.items():
            if item.name.startswith(name):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """``skip_if_param`` is a marker that xarray's own (unshipped) configuration understands."""
    for mark in item.iter_markers("skip_if_param"):
        wanted = {name: value for name, value in mark.kwargs.items() if name not in {"reason", "condition"}}
        params = getattr(getattr(item, "callspec", None), "params", {})
        if mark.kwargs.get("condition", True) and all(params.get(name, ...) == value for name, value in wanted.items()):
            pytest.skip(mark.kwargs["reason"])
