"""Datasets whose entries tell their row, for the tests of batches and loaders."""

import functools

import numpy as np
import pytest
import xarray as xr
from zarr.storage import LocalStore, MemoryStore

import xarray_tensordict  # noqa: F401 - registers ds.td
from persistent_samples import CountingStore


def numbered(rows, *, width=1, **coords):
    """A Dataset whose entry ``n`` tells the row."""
    n = np.arange(rows)
    return xr.Dataset(
        {"n": ("time", n), "x": (("time", "f"), np.repeat(n[:, None], width, 1).astype("f4"))},
        coords={name: ("time", values) for name, values in coords.items()},
    ).td.set_batch_dims("time")


ROWS = 43


@functools.cache
def episodes(rows=ROWS, chunk=4):
    """Rows of episodes of 12, in a store in memory."""
    store = MemoryStore()
    numbered(rows, episode=[row // 12 for row in range(rows)]).td.to_zarr(store, chunks={"time": chunk})
    return xr.open_dataset(store, engine="tensordict")


def rows_of(batches):
    return [batch["n"].tolist() for batch in batches]


@pytest.fixture
def counted(tmp_path, monkeypatch):
    """A store of 20 chunks of 5 rows; chunks are not merged into larger blocks."""
    monkeypatch.setattr("xarray_tensordict.loading.read_ahead.BLOCK_BYTES", 1)
    numbered(100, width=2).drop_vars("x").td.to_zarr(tmp_path / "n.zarr", chunks={"time": 5})
    store = CountingStore(LocalStore(tmp_path / "n.zarr"))
    with xr.open_dataset(store, engine="tensordict") as ds:
        yield ds, store.chunks
