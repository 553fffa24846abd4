"""Tensordicts and Datasets that the tests of the lazy tensordict open, and how they are stored."""

from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from tensordict import TensorDict
from zarr.storage import WrapperStore

from xarray_tensordict import open_persistent, to_dataset
from xarray_tensordict._compat.tensordict import IS_0_14
from xarray_tensordict.lazy.persistent import persistent_from_dataset


def needs_0_15(what):
    """Skip a test, or a case of one, with tensordict 0.14, which cannot do `what`."""
    return pytest.mark.skipif(IS_0_14, reason=f"tensordict 0.14 {what}")


def flat_td():
    """One batch dim, nested groups, rows of text, one value for all."""
    return TensorDict(
        {
            "obs": torch.arange(6 * 3 * 4.0).view(6, 3, 4),
            "action": torch.arange(6, dtype=torch.int16),
            "done": torch.tensor([False, True, False, False, True, True]),
            "task": ["a", "bb", "", "dé", "e", "f"],
            "robot": "panda",
            "next": {"obs": torch.arange(6 * 3.0).view(6, 3) / 7, "info": {"step": torch.arange(6)}},
        },
        batch_size=[6],
        names=["time"],
    )


def grid_ds():
    """Two batch dims, partial entries, unbatched entries, times, text of one and of two batch dims."""
    rng = np.random.default_rng(0)
    return xr.Dataset(
        {
            "x": (("time", "member", "lat"), rng.random((4, 3, 5)).astype("f4")),
            "mask": (("time", "member"), rng.random((4, 3)) > 0.5),
            "weight": (("member",), np.array([1, 2, 3], "u1")),
            "per_time": (("time", "lat"), rng.random((4, 5))),
            "lat_weight": (("lat",), rng.random(5)),
        },
        coords={
            "time": pd.date_range("2000-01-01", periods=4, unit="ns"),
            "lat": np.linspace(-90, 90, 5),
            "label": (("time", "member"), np.array([[f"{i}{j}" for j in range(3)] for i in range(4)], dtype=object)),
            "who": (("member",), np.array(["p", "q", "r"], dtype=object)),
        },
    )


def grid_of(ds):
    return ds.td.set_batch_dims(["time", "member"])


def write_td(td, store, **options):
    """Write a store of tensordict's; 0.14 writes no rows of text and no names of groups, so this package does it there."""
    as_hdf5 = str(store).endswith(".h5")
    if IS_0_14:
        ds = to_dataset(td)
        chunks = {"chunks": {ds.td.batch_dims[0]: options["chunks"]}} if options and td.batch_dims else {}
        (ds.td.to_h5 if as_hdf5 else ds.td.to_zarr)(store, **chunks)
    else:
        (td.to_h5 if as_hdf5 else td.to_zarr)(store, **options).close()


def as_zarr(td, path):
    write_td(td, path)


def as_chunked_zarr(td, path):
    write_td(td, path, chunks=2)


def as_hdf5(td, path):
    write_td(td, path)


FORMATS = {"zarr": (as_zarr, ".zarr"), "chunked-zarr": (as_chunked_zarr, ".zarr"), "hdf5": (as_hdf5, ".h5")}
STORES = [*FORMATS, "memory", "dask"]


def make_persistent(kind, folder):
    """The lazy object for `flat_td`, by the kind of its store."""
    td = flat_td()
    if kind in FORMATS:
        write, suffix = FORMATS[kind]
        path = folder / f"flat{suffix}"
        write(td, path)
        ptd = open_persistent(path)
        ptd.names = ["time"]  # HDF5 of tensordict records none
        return ptd
    as_zarr(td, folder / "flat.zarr")
    ds = xr.open_dataset(folder / "flat.zarr", engine="tensordict")
    return persistent_from_dataset(ds.load() if kind == "memory" else ds.chunk({"time": 2}))


@pytest.fixture(params=STORES)
def flat(request, tmp_path):
    ptd = make_persistent(request.param, tmp_path)
    yield ptd
    ptd.close()


GRIDS = ["store", "memory", "dask"]


def make_grid(kind, folder):
    """The lazy object for `grid_ds`, by the kind of its store."""
    ds = grid_of(grid_ds())
    if kind == "store":
        ds.to_zarr(folder / "grid.zarr", zarr_format=3, consolidated=False)
        return open_persistent(folder / "grid.zarr")
    return persistent_from_dataset(ds if kind == "memory" else ds.chunk({"time": 2, "member": 1}))


@pytest.fixture(params=GRIDS)
def grid(request, tmp_path):
    ptd = make_grid(request.param, tmp_path)
    yield ptd
    ptd.close()


@pytest.fixture
def zarr_path(tmp_path):
    path = tmp_path / "buffer.zarr"
    write_td(flat_td(), path, chunks=1)
    return path


class CountingStore(WrapperStore):
    """A zarr store that counts what is read of each array."""

    chunks: ClassVar = []  # of all instances: zarr makes a read-only one of its own

    async def get(self, key, prototype, byte_range=None):
        if "/c/" in key or key.endswith("/c"):
            self.chunks.append(key)
        return await super().get(key, prototype, byte_range)
