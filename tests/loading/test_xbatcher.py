"""The examples of xbatcher's documentation (0.4), for a smaller field: each gives the same values here."""

import numpy as np
import pytest
import xarray as xr

import xarray_tensordict  # noqa: F401 - registers ds.td

xbatcher = pytest.importorskip("xbatcher", reason="xbatcher is not installed")
DIMS = ("time", "lat", "lon")


def weather():
    """A field that numbers its cells."""
    n = np.arange(12 * 6 * 8).reshape(12, 6, 8)
    return xr.Dataset({"n": (DIMS, n), "flag": (DIMS, n % 97 == 0)}).td.set_batch_dims("time")


def in_order(patches):
    """Patches, whichever comes first."""
    return patches[patches.reshape(len(patches), -1)[:, 0].argsort()]


@pytest.mark.parametrize(
    ("sizes", "overlap", "batch"),
    [
        ({"time": 7}, {}, {}),  # the last five rows are in no batch
        ({"time": 5}, {"time": 2}, {}),
        ({"lat": 3, "lon": 4}, {}, {"time": 1}),
        ({"lat": 3, "lon": 4}, {"lat": 1, "lon": 2}, {"time": 1}),
        ({"lat": 3, "lon": 4}, {"lat": 2, "lon": 3}, {"time": 4}),
        ({"time": 4, "lat": 6, "lon": 8}, {"time": 3}, {}),
        ({"lat": 2, "lon": 8}, {}, {"time": 12}),
    ],
)
def test_inputs_batch_dims_and_overlap_are_windows_and_strides(sizes, overlap, batch):
    theirs = weather()["n"].batch.generator(input_dims=sizes, input_overlap=overlap, batch_dims=batch)
    window = {**batch, **sizes}
    stride = {dim: size - overlap.get(dim, 0) for dim, size in window.items()}
    ours = weather().td.batches(1, window=window, stride=stride)
    assert len(ours) == len(theirs)
    for batch_of_one, patch in zip(ours, theirs, strict=True):
        patch = patch.unstack("sample") if "sample" in patch.dims else patch
        np.testing.assert_array_equal(batch_of_one["n"][0].numpy(), patch.transpose(*DIMS).values)


@pytest.mark.parametrize(
    ("sizes", "overlap", "batch", "samples"),
    [
        ({"lat": 3, "lon": 4}, {}, {"time": 2}, 4),
        ({"time": 3}, {}, {"time": 6}, 2),
        ({"time": 3}, {"time": 2}, {"time": 6}, 6),
        ({"lat": 3, "lon": 4, "time": 4}, {"lat": 2, "lon": 3, "time": 3}, {"lat": 6, "lon": 8, "time": 6}, 6 * 4 * 5),
    ],
)
def test_concatenated_inputs_are_the_samples_of_a_batch(sizes, overlap, batch, samples):
    theirs = xbatcher.BatchGenerator(
        weather()["n"], input_dims=sizes, input_overlap=overlap, batch_dims=batch, concat_input_dims=True
    )
    window = {**batch, **sizes}
    stride = {dim: size - overlap.get(dim, 0) for dim, size in window.items()}
    ours = weather().td.batches(samples, window=window, stride=stride)
    assert len(ours) == len(theirs)
    for found, patches in zip(ours, theirs, strict=True):
        patches = patches.unstack("sample") if "sample" in patches.dims else patches
        expected = patches.transpose("input_batch", *(f"{dim}_input" if dim in sizes else dim for dim in DIMS)).values
        np.testing.assert_array_equal(in_order(found["n"].numpy()), in_order(expected))
