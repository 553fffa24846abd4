"""``chunks={}``: what dask reads at once of each kind of store, and what its graph carries."""

import subprocess
import sys

import cloudpickle
import dask
import h5py
import numpy as np
import pytest
import tensordict
import torch
import xarray as xr
import zarr
from tensordict import TensorDict

from xarray_tensordict.core import blocks


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 4 KiB in place of 128 MiB."""
    monkeypatch.setattr(blocks, "READ_BYTES", 4096)


def td(rows: int = 100) -> TensorDict:
    obs = torch.arange(rows * 64, dtype=torch.float32).reshape(rows, 64)
    nested = {"obs": obs + 1, "reward": torch.arange(rows, dtype=torch.float64)}
    return TensorDict({"obs": obs, "reward": torch.ones(rows), "next": nested}, [rows], names=["time"])


def opened(path, **keywords) -> xr.Dataset:
    return xr.open_dataset(path, engine="tensordict", **{"chunks": {}, **keywords})


def rows_of(ds: xr.Dataset) -> dict[str, tuple[int, ...]]:
    return {str(name): variable.chunks[0] for name, variable in ds.variables.items() if variable.chunks}


def written(kind: str, folder, data: TensorDict):
    path = folder / f"data.{kind}"
    if kind == "h5":
        data.to_h5(path)
    elif kind == "zarr":
        data.to_zarr(path)
    elif kind == "memmap":
        data.memmap(path)
    else:
        tensordict.save(data, path)
    return path


@pytest.mark.parametrize("kind", ["zarr", "h5", "memmap", "tdz"])
def test_arrays_without_chunks_are_read_in_blocks_of_rows_that_all_share(tmp_path, small_blocks, kind):
    path = written(kind, tmp_path, td())
    with opened(path, **({"batch_dims": 1} if kind == "h5" else {})) as ds:
        # 64 float32 in a row: 16 rows are 4 KiB
        assert set(rows_of(ds).values()) == {(16,) * 6 + (4,)}
        assert len(set(ds.chunks[ds["obs"].dims[0]])) == 2
        assert ds["obs"].chunks[1] == (64,)
        np.testing.assert_array_equal((ds["obs"] + ds["next/obs"]).values, 2 * td()["obs"].numpy() + 1)
        assert "chunks" not in ds["obs"].encoding


def test_the_blocks_of_real_size_are_128_mib(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (3000, 256, 256), "f4")  # nothing is allocated
        file.create_dataset("y", (3000,), "f4")
    with opened(tmp_path / "a.h5", batch_dims=1) as ds:
        assert rows_of(ds)["x"] == rows_of(ds)["y"] == (512,) * 5 + (440,)


def test_a_row_larger_than_a_block_is_cut(tmp_path, small_blocks):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((2, 50, 64), "f4"))
    with opened(tmp_path / "a.h5", batch_dims=1) as ds:
        assert ds["x"].chunks == ((1, 1), (16, 16, 16, 2), (64,))


def test_a_compressed_chunk_is_read_as_a_whole(tmp_path, small_blocks):
    td().to_zarr(tmp_path / "a.zarr", compressors="auto")
    with opened(tmp_path / "a.zarr") as ds:
        assert rows_of(ds)["obs"] == (100,)
        assert "chunks" not in ds["obs"].encoding


def test_chunks_of_zarr_and_whole_shards_are_followed(tmp_path):
    root = zarr.create_group(tmp_path / "a.zarr")
    for name, shards in (("plain", None), ("sharded", (20, 4))):
        root.create_array(name, shape=(50, 4), chunks=(5, 4), shards=shards, dtype="f4", dimension_names=("time", "f"))
    root.create_array("raw", shape=(50, 4), chunks=(5, 2), shards=(10, 4), dtype="f4")
    with opened(tmp_path / "a.zarr") as ds:
        assert ds["plain"].chunks == ((5,) * 10, (4,))
        assert ds["sharded"].chunks == ((20, 20, 10), (4,))
        assert ds["raw"].chunks == ((10,) * 5, (4,))
    # a part of a shard can be read: no warning
    with opened(tmp_path / "a.zarr", chunks={"time": 10}) as ds:
        assert ds["sharded"].chunks[0] == (10,) * 5


def test_tiny_chunks_of_hdf5_are_read_several_at_once(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("tiny", data=np.zeros((20_000, 6), "f4"), chunks=(16, 3))
        file.create_dataset("few", data=np.zeros((20_000, 6), "f4"), chunks=(5_000, 6))
    with opened(tmp_path / "a.h5", batch_dims=1) as ds:
        assert ds["tiny"].chunks == ((20_000,), (6,))
        assert ds["few"].chunks == ((5_000,) * 4, (6,))
    # as small as the caller likes, down to the chunks of the file: no warning
    with opened(tmp_path / "a.h5", batch_dims=1, chunks={"batch_0": 160, "dim_6": 3}, drop_variables="few") as ds:
        assert ds["tiny"].chunks[1] == (3, 3)
    with pytest.warns(UserWarning, match="separate the stored chunks"):
        opened(tmp_path / "a.h5", batch_dims=1, chunks={"batch_0": 10}, drop_variables="few").close()


@pytest.mark.parametrize("chunks", ["auto", 7, -1, {"time": 7}, {"time": "auto"}, {"time": -1}])
def test_chunks_that_the_caller_chooses_are_free_where_the_store_has_none(tmp_path, small_blocks, chunks):
    with opened(written("memmap", tmp_path, td()), chunks=chunks, batch_dims="time") as ds:
        asked = chunks["time"] if isinstance(chunks, dict) else chunks
        expected = {7: (7,) * 14 + (2,), -1: (100,), "auto": (100,)}[asked]
        assert rows_of(ds)["obs"] == rows_of(ds)["next/obs"] == expected
        np.testing.assert_array_equal(ds["obs"].values, td()["obs"].numpy())


def test_a_graph_carries_no_data(tmp_path):
    data = td(20_000)
    for kind in ("zarr", "h5", "memmap"):
        path = written(kind, tmp_path, data)
        with opened(path, batch_dims=["time"] if kind != "h5" else 1) as ds:
            assert len(cloudpickle.dumps(ds)) < 40_000
            again = cloudpickle.loads(cloudpickle.dumps(ds))
            np.testing.assert_array_equal(again["next/obs"][-1].values, data["next", "obs"][-1].numpy())


TOKEN = """
import sys, dask.base, xarray as xr
ds = xr.open_dataset(sys.argv[1], engine="tensordict", chunks={})
print(dask.base.tokenize([*ds.variables.items()], ds.attrs), ds["obs"].data.name)
"""


def test_a_store_has_the_same_token_in_every_process_until_it_is_replaced(tmp_path):
    """Of the variables in their order: for a dict, dask 2025.1 sorts names by hashes, which each process has its own."""
    path = str(tmp_path / "a.zarr")
    td().to_zarr(path)
    command = [sys.executable, "-c", TOKEN, path]
    elsewhere = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    with opened(path) as ds:
        token = f"{dask.base.tokenize([*ds.variables.items()], ds.attrs)} {ds['obs'].data.name}\n"
        assert elsewhere == token
        ds.load().td.to_zarr(path, mode="w")
    with opened(path) as ds:
        # as xarray does it, the time of the last change of the path is a part of the token
        assert dask.base.tokenize([*ds.variables.items()], ds.attrs) not in token


def test_trees_have_the_same_blocks(tmp_path, small_blocks):
    path = written("zarr", tmp_path, td())
    with xr.open_datatree(path, engine="tensordict", chunks={}) as dt:
        assert dt["obs"].chunks[0] == dt["next/obs"].chunks[0] == dt["next/reward"].chunks[0] == (16,) * 6 + (4,)
