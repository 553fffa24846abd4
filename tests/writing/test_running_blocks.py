"""What was found by writing, through dask, what its blocks do not declare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr

import xarray_tensordict  # noqa: F401

TEXTS = ["x" * (number % 5) for number in range(12)]


def of_blocks(values: Any, declared: str) -> xr.Dataset:
    """A Dataset of one variable, whose blocks have a dtype of their own whatever was declared."""
    held = np.asarray(values)
    blocks: Any = da.map_blocks(lambda rows: held[rows], da.arange(12, chunks=3), dtype=declared)
    return xr.Dataset({"a": ("time", blocks)}).td.set_batch_dims("time")


WRITERS: dict[str, dict[str, Any]] = {
    "to_memmap": {},
    "to_memmap later": {"compute": False},
    "to_zarr": {},
    "to_zarr for xarray": {"layout": "xarray"},
    "to_h5": {},
    "to_h5 for xarray": {"layout": "xarray"},
}


@pytest.mark.parametrize(("writer", "options"), WRITERS.items(), ids=WRITERS)
def test_blocks_that_lose_values_by_the_dtype_they_were_declared_with_are_refused(
    tmp_path: Path, writer: str, options: dict[str, Any]
) -> None:
    def write(ds: xr.Dataset) -> None:
        delayed = getattr(ds.td, writer.split()[0])(tmp_path / "store", **options)
        if options.get("compute") is False:
            delayed.compute()

    with pytest.raises(TypeError, match="'a': its dtype was declared as int64, and dask computes float64"):
        write(of_blocks(np.arange(12) * 1.5, "int64"))
    assert options.get("compute") is False or not list(tmp_path.iterdir())
    write(of_blocks(np.arange(12, dtype="int32"), "int64"))
    found = xr.open_dataset(tmp_path / "store", engine="tensordict")["a"]
    np.testing.assert_array_equal(found.values, np.arange(12))
    assert found.dtype == np.int64


@pytest.mark.parametrize("layout", ["tensordict", "xarray"])
@pytest.mark.parametrize("kind", ["U", "S"])
def test_strings_that_are_longer_than_dask_was_told_are_not_cut_off_in_a_store(
    tmp_path: Path, layout: Any, kind: str
) -> None:
    texts = np.array(TEXTS, kind)
    store = tmp_path / "texts.zarr"
    with pytest.raises(TypeError, match=r"'a': its dtype was declared as .*1, and dask computes .*4"):
        of_blocks(texts, f"{kind}1").td.to_zarr(store, layout=layout)
    assert not store.exists()
    of_blocks(texts, f"{kind}9").td.to_zarr(store, layout=layout)
    assert xr.open_dataset(store, engine="tensordict")["a"].values.tolist() == texts.tolist()


@pytest.mark.parametrize("layout", ["tensordict", "xarray"])
def test_hdf5_holds_strings_of_any_length_that_dask_declares(tmp_path: Path, layout: Any) -> None:
    of_blocks(TEXTS, "U1").td.to_h5(tmp_path / "texts.h5", layout=layout)
    assert xr.open_dataset(tmp_path / "texts.h5", engine="tensordict")["a"].values.tolist() == TEXTS


def grow_zarr(ds: xr.Dataset, path: Path, layout: Any) -> None:
    ds.td.to_zarr(path, layout=layout, append_dim="time")


def fill_region(ds: xr.Dataset, path: Path, layout: Any) -> None:
    ds.td.to_zarr(path, layout=layout, region={"time": slice(0, 12)})


def overwrite(ds: xr.Dataset, path: Path, layout: Any) -> None:
    ds.td.to_zarr(path, layout=layout, mode="a")


def grow_hdf5(ds: xr.Dataset, path: Path, layout: Any) -> None:
    ds.td.to_h5(path, layout=layout, append_dim="time")


@pytest.mark.parametrize("layout", ["tensordict", "xarray"])
@pytest.mark.parametrize("change", [grow_zarr, fill_region, overwrite, grow_hdf5])
@pytest.mark.parametrize(
    ("values", "declared"),
    [
        (np.arange(12) * 1.5, "int64"),
        (np.arange(12) * 100, "int8"),
        (np.arange(12), "bool"),
        (np.datetime64("2001-01-01", "ns") + np.arange(12), "datetime64[s]"),
    ],
)
def test_a_store_that_is_changed_keeps_its_values_where_blocks_do_not_fit_the_dtype_they_were_declared_with(
    tmp_path: Path, values: Any, declared: str, change: Any, layout: Any
) -> None:
    old = xr.Dataset({"a": ("time", np.ones(12, "int64").astype(declared))}).td.set_batch_dims("time")
    path = tmp_path / "store"
    if change is grow_hdf5:
        old.td.to_h5(path, layout=layout, unlimited_dims=["time"])
    else:
        old.td.to_zarr(path, layout=layout)
    with pytest.raises((TypeError, ValueError), match="'a'"):
        change(of_blocks(values, declared), path, layout)
    if change is not overwrite:  # a store that was being overwritten says so
        with xr.open_dataset(path, engine="tensordict") as there:
            np.testing.assert_array_equal(there["a"].values, old["a"].values)
    fitting = old["a"].values
    change(of_blocks(fitting, declared), path, layout)
    with xr.open_dataset(path, engine="tensordict") as there:
        np.testing.assert_array_equal(there["a"].values[-12:], fitting)
        assert there["a"].dtype.kind == old["a"].dtype.kind
