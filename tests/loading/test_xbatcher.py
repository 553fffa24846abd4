"""The examples of xbatcher's documentation (0.4), for a smaller field: each gives the same values here."""

import numpy as np
import pytest
import torch
import xarray as xr
from torch.utils.data import DataLoader, Subset, WeightedRandomSampler

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
        ({"time": 4}, {}, {}),
        ({"time": 7}, {}, {}),  # the last five rows are in no batch
        ({"time": 5}, {"time": 2}, {}),
        ({"lat": 3, "lon": 4}, {}, {"time": 1}),
        ({"lat": 3, "lon": 4}, {"lat": 1, "lon": 2}, {"time": 1}),
        ({"lat": 3, "lon": 4}, {"lat": 2, "lon": 3}, {"time": 4}),
        ({"time": 4, "lat": 3, "lon": 4}, {}, {}),
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


def test_the_cell_in_the_middle_of_the_last_time_is_predicted_from_the_times_before_it():
    ds, sizes = weather().isel(lon=slice(0, 6)), {"lat": 3, "lon": 3, "time": 4}
    theirs = xbatcher.BatchGenerator(
        ds["n"],
        input_dims=sizes,
        batch_dims={"lat": 6, "lon": 6, "time": 6},
        concat_input_dims=True,
        input_overlap={"lat": 2, "lon": 2, "time": 3},
    )
    for found, patches in zip(ds.td.batches(6 * 4 * 4, window=sizes), theirs, strict=True):
        past, last = found.split([3, 1], dim=1)
        patches = patches.transpose("input_batch", "time_input", "lat_input", "lon_input")
        features, labels = patches.isel(time_input=slice(0, 3)), patches.isel(lat_input=1, lon_input=1, time_input=3)
        np.testing.assert_array_equal(in_order(past["n"].numpy()), in_order(features.values))
        np.testing.assert_array_equal(last["n"][:, 0, 1, 1].sort()[0].numpy(), np.sort(labels.values))


def test_patches_are_filtered_and_drawn_by_the_samplers_of_torch():
    sizes = {"lat": 3, "lon": 4, "time": 3}
    theirs = [*xbatcher.BatchGenerator(weather(), input_dims=sizes)]
    good = [number for number, patch in enumerate(theirs) if not patch["flag"].any()]
    weights = [float(patch["n"].mean() > 300) for patch in theirs]
    window = {"lat": 3, "lon": 4, "time": 3}
    ours = weather().td.to_torch_dataset(window=window, stride=window)
    # xbatcher counts along the dims as they are given, time last; here it comes first
    number = np.arange(len(ours)).reshape(4, 4).T.reshape(-1)
    assert 0 < len(good) < len(ours) == len(theirs)
    loader = DataLoader(Subset(ours, number[good].tolist()), batch_size=2, collate_fn=ours.collate)
    kept = torch.cat([batch["n"] for batch in loader])
    np.testing.assert_array_equal(kept.numpy(), np.stack([theirs[at]["n"].transpose(*DIMS).values for at in good]))
    drawn = WeightedRandomSampler(np.array(weights)[number].tolist(), 20, generator=torch.Generator().manual_seed(0))
    for batch in DataLoader(ours, batch_size=5, sampler=drawn, collate_fn=ours.collate):
        assert (batch["n"].double().mean((1, 2, 3)) > 300).all()


def test_images_with_their_labels_come_in_batches_from_a_loader_of_torch():
    torch_loaders = pytest.importorskip("xbatcher.loaders.torch")
    images = np.arange(10 * 4 * 4.0, dtype="f4").reshape(10, 1, 4, 4)
    ds = xr.Dataset({"images": (("sample", "channel", "height", "width"), images), "labels": ("sample", np.arange(10))})
    sizes = {"sample": 5, "channel": 1, "height": 4, "width": 4}
    theirs = torch_loaders.MapDataset(
        xbatcher.BatchGenerator(ds["images"], input_dims=sizes),
        xbatcher.BatchGenerator(ds["labels"], input_dims={"sample": 5}),
    )
    ours = ds.td.to_torch_dataset(5, batch_dims="sample")
    loader = DataLoader(ours, batch_size=None, collate_fn=ours.collate)
    for batch, (features, labels) in zip(loader, DataLoader(theirs, batch_size=None), strict=True):
        assert torch.equal(batch["images"], features)
        assert torch.equal(batch["labels"], labels)
