"""A write that fails leaves the store as it was: nothing half-written passes for data."""

from __future__ import annotations

import shutil
import threading
import warnings
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from tensordict import TensorDict

import xarray_tensordict  # noqa: F401 - registers ds.td
from xarray_tensordict.core.metadata import INCOMPLETE_ATTR


def fails(block: Any) -> Any:
    raise RuntimeError("boom")


FAILING = da.map_blocks(fails, da.zeros(4, chunks=2), dtype="f8", meta=np.zeros(0))


@pytest.fixture
def base() -> xr.Dataset:
    return xr.Dataset({"a": ("time", np.arange(4.0)), "q": ("time", np.arange(4.0)), "lut": ("x", np.arange(3.0))})


@pytest.mark.parametrize(
    "changed", [((), 9.0), ("x", np.arange(3.0)), ((), "text")], ids=["scalar", "other dim", "text"]
)
def test_an_append_whose_variable_lost_the_dim_is_refused(tmp_path: Path, base: xr.Dataset, changed: Any) -> None:
    base.td.to_zarr(tmp_path / "a.zarr")
    with pytest.raises(ValueError, match=r"'q' has dims \['time'\] there"):
        base.assign(q=changed).td.to_zarr(tmp_path / "a.zarr", append_dim="time")
    xr.testing.assert_identical(xr.open_dataset(tmp_path / "a.zarr", engine="tensordict").load(), base)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_consolidated_metadata_has_the_mark_of_a_nested_group_that_was_being_overwritten(
    tmp_path: Path, base: xr.Dataset, zarr_format: Any
) -> None:
    path = tmp_path / "a.zarr"
    for group in ("g", "h"):
        base.td.to_zarr(path, group=group, zarr_format=zarr_format)
    with pytest.raises(RuntimeError, match="boom"):
        base.assign(a=("time", FAILING)).td.to_zarr(path, group="g", mode="a")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata")
        root = zarr.open_group(path, mode="r", use_consolidated=True)
        assert [INCOMPLETE_ATTR in root[name].attrs for name in ("g", "h")] == [True, False]
        base.td.to_zarr(path, group="g", mode="a")
        assert INCOMPLETE_ATTR not in zarr.open_group(path, mode="r", use_consolidated=True)["g"].attrs


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("layout", ["tensordict", "xarray"])
class TestAGraphThatFails:
    def test_while_appending(self, tmp_path: Path, base: xr.Dataset, zarr_format: Any, layout: Any) -> None:
        base.td.to_zarr(tmp_path / "a.zarr", zarr_format=zarr_format, layout=layout)
        with pytest.raises(RuntimeError, match="boom"):
            base.assign(a=("time", FAILING)).td.to_zarr(tmp_path / "a.zarr", append_dim="time")
        xr.testing.assert_identical(xr.open_dataset(tmp_path / "a.zarr", engine="tensordict").load(), base)
        if layout == "tensordict":
            assert TensorDict.from_zarr(tmp_path / "a.zarr").batch_size == (4,)

    def test_while_adding_a_variable(self, tmp_path: Path, base: xr.Dataset, zarr_format: Any, layout: Any) -> None:
        base.td.to_zarr(tmp_path / "a.zarr", zarr_format=zarr_format, layout=layout)
        with pytest.raises(RuntimeError, match="boom"):
            base.assign(z=("time", FAILING)).td.to_zarr(tmp_path / "a.zarr", mode="a")
        # the other arrays were being overwritten, here with the same values; the text that holds 'lut' comes last
        arrays = "'a', 'lut', 'q'" if layout == "xarray" else "'a', 'q'"
        with pytest.warns(UserWarning, match=f"the store is not complete: {arrays} were being written"):
            found = xr.open_dataset(tmp_path / "a.zarr", engine="tensordict").load()
        xr.testing.assert_identical(found, base)
        base.td.to_zarr(tmp_path / "a.zarr", mode="a")
        xr.testing.assert_identical(xr.open_dataset(tmp_path / "a.zarr", engine="tensordict").load(), base)


@pytest.mark.parametrize("writer", ["to_zarr", "to_h5"])
def test_a_node_without_the_batch_of_its_parent_comes_back_as_it_was(
    tmp_path: Path, base: xr.Dataset, writer: str
) -> None:
    tree = xr.DataTree.from_dict({"/": base, "/d": xr.Dataset({"z": ("k", np.arange(2))})})
    getattr(tree.td, writer)(tmp_path / "tree")
    with xr.open_datatree(tmp_path / "tree", engine="tensordict") as found:
        xr.testing.assert_identical(found.load(), tree)


@pytest.mark.parametrize("writer", ["to_zarr", "to_memmap"])
def test_ctrl_c_while_the_old_store_is_removed_leaves_nothing_of_it(
    tmp_path: Path, base: xr.Dataset, monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    getattr(base.td, writer)(tmp_path / "a")
    rmtree, calls = shutil.rmtree, []

    def interrupted(path: Any, **options: Any) -> None:
        if threading.current_thread() is threading.main_thread():  # zarr removes as well
            calls.append(path)
            if len(calls) == 1:
                raise KeyboardInterrupt
        rmtree(path, **options)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        getattr((base + 1).td, writer)(tmp_path / "a", mode="w")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    with xr.open_dataset(tmp_path / "a", engine="tensordict") as found:
        np.testing.assert_array_equal(found["a"], base["a"] + 1)
