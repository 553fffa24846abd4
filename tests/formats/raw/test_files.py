"""Faults of the fast paths that were found by trying to break them."""

import subprocess
import sys

import dask
import numpy as np
import pytest
import torch
import xarray as xr
from tensordict import NonTensorData, PersistentTensorDict, TensorDict, lazy_stack

import xarray_tensordict
from xarray_tensordict.tensors import reading


def rows(values, **variables) -> xr.Dataset:
    return xr.Dataset({"a": ("time", values), **variables}).td.set_batch_dims("time")


def test_a_pool_of_processes_fills_no_copies(tmp_path):
    code = """
import numpy as np, xarray as xr, dask, torch, xarray_tensordict
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
if __name__ == "__main__":
    ds = xr.Dataset({"a": ("time", np.arange(1000.0))}).td.set_batch_dims("time").chunk({"time": 100})
    with get_context("spawn").Pool(1) as pool, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        for option in (executor, pool):
            with dask.config.set(pool=option):
                assert ds.td.to_tensordict()["a"].tolist() == list(range(1000))
                assert torch.cat([batch["a"] for batch in ds.td.batches(300)]).tolist() == list(range(1000))
"""
    script = tmp_path / "pools.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_chunks_that_went_elsewhere_are_computed_again(monkeypatch):
    """Whatever runs the tasks: what is not in its place is not taken for the values."""
    from xarray_tensordict._compat import dask as compat

    array = dask.array.arange(100, chunks=10)
    monkeypatch.setattr(compat._Places, "__setitem__", lambda self, key, chunk: None)
    (found,) = compat.compute_arrays([array])
    np.testing.assert_array_equal(found, np.arange(100))


class TestOut:
    def test_a_lazy_stack_and_a_part_by_index_are_filled(self):
        stack = lazy_stack([TensorDict({"a": torch.zeros((), dtype=torch.float64)}) for _ in range(4)])
        assert rows(np.arange(1.0, 5)).td.to_tensordict(out=stack) is stack
        assert stack["a"].tolist() == [1, 2, 3, 4]
        whole = TensorDict({"a": torch.zeros(8, dtype=torch.float64)}, [8])
        rows(np.arange(1.0, 5)).td.to_tensordict(out=whole._get_sub_tensordict(torch.tensor([1, 3, 5, 7])))
        assert whole["a"].tolist() == [0, 1, 0, 2, 0, 3, 0, 4]

    def test_a_store_is_filled_or_says_that_it_is_read_only(self, tmp_path):
        zeros = TensorDict({"a": torch.zeros(4, dtype=torch.float64)}, [4])
        PersistentTensorDict.from_dict(zeros, filename=tmp_path / "s.h5").close()
        ds = rows(np.arange(1.0, 5))
        with pytest.raises(TypeError, match=r"cannot write 'a': .*s.h5 is read-only"):
            ds.td.to_tensordict(out=xarray_tensordict.open_persistent(tmp_path / "s.h5"))
        opened = xarray_tensordict.open_persistent(tmp_path / "s.h5", mode="r+")
        ds.td.to_tensordict(out=opened)
        opened.close()
        assert xarray_tensordict.open_persistent(tmp_path / "s.h5")["a"].tolist() == [1, 2, 3, 4]

    @pytest.mark.parametrize("block", [8, 1 << 22])
    def test_an_expanded_tensor_is_refused(self, block, tmp_path, monkeypatch):
        monkeypatch.setattr(reading, "BLOCK_BYTES", block)
        ds = rows(np.arange(4.0))
        ds["a"].encoding = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}
        ds.to_zarr(tmp_path / "s.zarr", consolidated=False)
        with xr.open_dataset(tmp_path / "s.zarr", engine="tensordict") as opened:
            dtype = getattr(torch, opened["a"].dtype.name)
            out = TensorDict({"a": torch.zeros(1, dtype=dtype).expand(4)}, [4])
            with pytest.raises(ValueError, match="elements of the tensor at 'a' share their memory"):
                opened.td.to_tensordict(out=out)

    def test_tensors_that_share_memory_are_refused(self):
        ds = xr.Dataset(
            {"a": (("t", "f"), np.arange(12.0).reshape(6, 2)), "b": (("t", "f"), -np.arange(12.0).reshape(6, 2))}
        )
        windows = torch.zeros(7, dtype=torch.float64).unfold(0, 2, 1)
        with pytest.raises(ValueError, match="elements of the tensor at 'a' share their memory"):
            ds.td.to_tensordict(out=TensorDict({"a": windows, "b": torch.zeros_like(windows)}, [6]))
        one = torch.zeros(9, 2, dtype=torch.float64)
        for other in (one[:6], one[1:7]):
            with pytest.raises(ValueError, match="the tensors at 'a' and 'b' share their memory"):
                ds.td.to_tensordict(out=TensorDict({"a": one[:6], "b": other}, [6]))
        # columns of one buffer lie between each other, and share nothing
        both = torch.zeros(6, 2, 2, dtype=torch.float64)
        ds.td.to_tensordict(out=TensorDict({"a": both[:, 0], "b": both[:, 1]}, [6]))
        np.testing.assert_array_equal(both[:, 0], ds["a"])
        np.testing.assert_array_equal(both[:, 1], ds["b"])

    def test_a_tensor_that_requires_grad_is_refused_by_name(self):
        out = TensorDict({"a": torch.zeros(4, dtype=torch.float64, requires_grad=True)}, [4])
        ds = rows(np.arange(4.0))
        with pytest.raises(ValueError, match=r"'a' requires grad; pass out.detach\(\)"):
            ds.td.to_tensordict(out=out)
        ds.td.to_tensordict(out=out.detach())
        assert out["a"].tolist() == [0, 1, 2, 3]


def test_a_value_for_all_rows_belongs_to_the_caller(tmp_path):
    config = NonTensorData({"x": [1]}, batch_size=[3])
    TensorDict({"a": torch.arange(3), "config": config}, [3]).memmap(tmp_path / "m")
    ds = xr.open_dataset(tmp_path / "m", engine="tensordict")
    batches = ds.td.batches(1, prefetch=0)
    first, second, _ = batches
    first.get("config").data["x"].append("changed")
    ds.td.to_tensordict().get("config").data["x"].append("changed")
    for found in (second, next(iter(batches)), ds.td.to_tensordict()):
        assert found.get("config").data == {"x": [1]}
