"""What was found by loading samples of Datasets that others have turned round."""

from __future__ import annotations

import numpy as np
import torch
import xarray as xr

import xarray_tensordict  # noqa: F401
from xarray_tensordict.tensors.values import tensor_from_numpy


def test_one_row_of_a_reversed_dataset_is_a_sample_like_any_other() -> None:
    times = np.arange(3).astype("M8[ns]")
    ds = xr.Dataset({"obs": (("time", "x"), np.arange(6.0).reshape(3, 2))}, coords={"time": times})
    backwards = ds.td.set_batch_dims("time").isel(time=slice(None, None, -1))
    samples = backwards.td.to_torch_dataset()
    assert [sample["obs"].tolist() for sample in (samples[0], samples[2])] == [[4.0, 5.0], [0.0, 1.0]]
    assert samples[0]["time"].item() == 2
    (one,) = backwards.isel(time=slice(0, 1)).td.batches(2)
    assert one["obs"].tolist() == backwards.isel(time=slice(0, 1)).td.to_tensordict()["obs"].tolist() == [[4.0, 5.0]]


def test_axes_of_one_element_may_have_any_stride() -> None:
    field = np.ones(1, [("value", "f4"), ("flag", "u1")])["value"]
    for array in (field, np.ones((1, 2))[::-1], np.ones((1, 1))[::-1, ::-1], np.ones((0, 3))[:, ::-1]):
        np.testing.assert_array_equal(tensor_from_numpy(array, name="x").numpy(), array)
        assert isinstance(tensor_from_numpy(array, name="x"), torch.Tensor)
