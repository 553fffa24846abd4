"""Both libraries agree: what ``open_persistent`` reads is what ``xr.open_dataset(...).td.to_tensordict()`` gives.

Over generated content, and every writer that content has.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import xarray as xr
import zarr
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tensordict import NonTensorStack, TensorDict

import strategies
from xarray_tensordict import open_persistent, to_dataset
from xarray_tensordict.testing import assert_same_tensordict

# one of the generated names
pytestmark = pytest.mark.filterwarnings("ignore:the dataset has a variable 'td'")

EXAMPLES = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)


def assert_law(path: Path, **kwargs: object) -> TensorDict:
    """Open both libraries and compare; return what they show."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # both libraries tell of what they leave out; the table tests hold the words
        with xr.open_dataset(path, engine="tensordict", **kwargs) as ds:
            eager = ds.td.to_tensordict()
        persistent = open_persistent(path, **kwargs)
        lazy = persistent.to_tensordict()
        if lazy.batch_dims and lazy.batch_size[0]:
            rows = torch.tensor([-1, 0, -1])
            assert_same_tensordict(eager[rows], persistent[rows])
        persistent.close()
    assert_same_tensordict(eager, lazy)
    return eager


def holds_its_batch(td: TensorDict) -> bool:
    """A Dataset has a dim only where an array has it: a tensordict of nothing but single values cannot keep its batch."""
    return not td.batch_size or any(
        isinstance(value, torch.Tensor) for value in td.values(include_nested=True, leaves_only=True)
    )


def write_zarr(td: TensorDict, path: Path, zarr_format: int) -> None:
    with zarr.config.set(default_zarr_format=zarr_format), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        td.to_zarr(path).close()


@pytest.mark.parametrize("zarr_format", [2, 3])
@EXAMPLES
@given(td=strategies.tensordicts())
def test_zarr_stores_that_tensordict_wrote(td: TensorDict, zarr_format: int) -> None:
    assume(holds_its_batch(td))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "td.zarr"
        write_zarr(td, path, zarr_format)
        assert_same_tensordict(td, assert_law(path))


@pytest.mark.parametrize("rows", [[["", "", ""], ["", "", "0"]], [["a"], ["b"]], [["a", "a"], ["b", "b"]]])
def test_a_stack_of_stacks_that_tensordict_would_take_for_one_value_is_kept(
    rows: list[list[str]], tmp_path: Path
) -> None:
    assert strategies.is_lost_by_tensordict(rows)
    td = TensorDict({"x": torch.zeros(len(rows), len(rows[0]))}, [len(rows), len(rows[0])])
    td.set("a", NonTensorStack(*(NonTensorStack(*row) for row in rows)))
    to_dataset(td).td.to_zarr(tmp_path / "td.zarr")
    to_dataset(td).td.to_h5(tmp_path / "td.h5")
    for path in (tmp_path / "td.zarr", tmp_path / "td.h5"):
        assert assert_law(path)["a"].tolist() == rows


@EXAMPLES
@given(td=strategies.tensordicts(non_tensors=False))
def test_hdf5_files_that_tensordict_wrote(td: TensorDict) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "td.h5"
        td.to_h5(path).close()
        shown = assert_law(path)
        for key, value in td.items(include_nested=True, leaves_only=True):
            # the file does not say what the batch was; the values and their dtype are what was written
            found = shown.get(key, None)
            if found is not None:
                assert found.dtype == value.dtype
                torch.testing.assert_close(found, value, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("zarr_format", [2, 3])
@EXAMPLES
@given(ds=strategies.datasets())
def test_zarr_stores_that_xarray_wrote(ds: xr.Dataset, zarr_format: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ds.zarr"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ds.to_zarr(path, zarr_format=zarr_format, consolidated=False)
            with (
                xr.open_zarr(path, consolidated=False, chunks=None) as expected,
                xr.open_dataset(path, engine="tensordict") as found,
            ):
                xr.testing.assert_identical(expected, found)
        assert_law(path)


@EXAMPLES
@given(ds=strategies.datasets())
def test_netcdf_files_that_xarray_wrote(ds: xr.Dataset) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ds.nc"
        ds.to_netcdf(path, engine="h5netcdf")
        with xr.open_dataset(path, engine="h5netcdf") as expected, xr.open_dataset(path, engine="tensordict") as found:
            xr.testing.assert_identical(expected, found)
        assert_law(path)


WRITERS: dict[str, Callable[[xr.Dataset, Path], object]] = {
    "zarr v3, tensordict": lambda ds, path: ds.td.to_zarr(path, zarr_format=3),
    "zarr v2, tensordict": lambda ds, path: ds.td.to_zarr(path, zarr_format=2),
    "zarr v3, xarray": lambda ds, path: ds.td.to_zarr(path, zarr_format=3, layout="xarray"),
    "HDF5, tensordict": lambda ds, path: ds.td.to_h5(path),
    "HDF5, xarray": lambda ds, path: ds.td.to_h5(path, layout="xarray"),
}


@settings(EXAMPLES, max_examples=30)
@given(ds=strategies.datasets(), writer=st.sampled_from(sorted(WRITERS)))
def test_stores_that_this_package_wrote(ds: xr.Dataset, writer: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("ds.h5" if "HDF5" in writer else "ds.zarr")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zarr warns that strings have no v3 spec yet
            WRITERS[writer](ds, path)
        with xr.open_dataset(path, engine="tensordict") as found:
            xr.testing.assert_identical(ds, found.load())
        assert_same_tensordict(ds.td.to_tensordict(), assert_law(path))


@EXAMPLES
@given(td=strategies.tensordicts())
def test_a_tensordict_comes_back_from_its_dataset(td: TensorDict) -> None:
    assume(holds_its_batch(td))
    assert_same_tensordict(td, to_dataset(td).td.to_tensordict())
