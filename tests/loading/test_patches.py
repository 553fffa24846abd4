"""Windows along several dims: patches, and what is read for them. Those of xbatcher: ``test_xbatcher.py``."""

import functools
import itertools

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import LocalStore, MemoryStore

import xarray_tensordict  # noqa: F401 - registers ds.td
from persistent_samples import CountingStore
from written import reopened_as
from xarray_tensordict.loading.patches import cover

DIMS = ("time", "lat", "lon")
NAMES = ("n", "wind", "turned", "index", "mask", "lat", "lon")


def weather(times=12, lats=6, lons=8):
    """A field that numbers its cells, series, a mask and coordinates."""
    n = np.arange(times * lats * lons).reshape(times, lats, lons)
    return xr.Dataset(
        {
            "n": (("time", "lat", "lon"), n),
            "wind": (("time", "lat", "lon", "uv"), np.stack([n, -n], -1).astype("f4")),
            "turned": (("lon", "time", "lat"), n.transpose(2, 0, 1)),
            "index": ("time", np.arange(times) * 10),
            "mask": (("lat", "lon"), n[0] % 3),
        },
        coords={"time": np.arange(times), "lat": np.arange(lats) * 0.5, "lon": np.arange(lons) * 2.0},
    ).td.set_batch_dims("time")


@functools.cache
def stored():
    """The same in compressed chunks along all dims; those of one variable are not those of the others."""
    store, chunks = MemoryStore(), {"n": (5, 4, 3), "wind": (4, 6, 8, 1), "turned": (8, 3, 2), "mask": (6, 5)}
    weather().td.to_zarr(store, encoding={name: {"chunks": sizes} for name, sizes in chunks.items()})
    return xr.open_dataset(store, engine="tensordict").td.set_batch_dims("time")


def whole(ds):
    """Each variable with all dims of the windows in front, as patches show it."""
    return {name: ds[name].broadcast_like(ds["n"]).transpose(*DIMS, ...).values for name in NAMES}


def keys_of(sizes, window, stride):
    """Where every patch lies, in the order of the dims."""
    starts = [range(0, sizes[dim] - window[dim] + 1, stride.get(dim, 1)) for dim in DIMS]
    for begin in itertools.product(*starts):
        yield tuple(slice(at, at + window[dim]) for dim, at in zip(DIMS, begin, strict=True))


@settings(max_examples=12, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 6),
    st.integers(1, 8),
    st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(1, 9)),
    st.integers(1, 9),
    st.sampled_from([False, True, "full"]),
    st.sampled_from(["memory", "dask", "zarr", "some of it"]),
)
def test_patches_are_those_cut_by_hand(time, lat, lon, strides, size, shuffle, where):
    ds = stored() if where in ("zarr", "some of it") else weather()
    ds = ds.chunk({"time": 4, "lat": 3, "lon": 4}) if where == "dask" else ds
    ds, expected = (
        part.isel(time=slice(1, 11), lon=slice(None, None, -1)) if where == "some of it" else part
        for part in (ds, weather())
    )
    window, stride = {"time": time, "lat": lat, "lon": lon}, dict(zip(DIMS, strides, strict=True))
    batches = ds.td.batches(
        size, window=window, stride=stride, shuffle=shuffle, seed=0, buffer_size=20, prefetch=0, coords=["lat", "lon"]
    )
    keys, arrays = [*keys_of(expected.sizes, window, stride)], whole(expected)
    for _ in range(2):  # the second epoch is that of kept chunks
        found = torch.cat([*batches])
        assert found.names == [None, *DIMS]
        first = [array[0, 0, 0] for array in (arrays["n"][key] for key in keys)]
        order = np.argsort(first)
        same = found["n"][:, 0, 0, 0].argsort() if shuffle else torch.arange(len(keys))
        for name in NAMES:
            patches = np.stack([arrays[name][key] for key in keys])
            np.testing.assert_array_equal(
                found[name][same].numpy(), patches[order] if shuffle else patches, err_msg=name
            )


@pytest.mark.filterwarnings("ignore:.*Zarr format 3.*", "ignore:.*does not have a Zarr V3 specification.*")
@pytest.mark.parametrize("form", ["zarr2", "zarr3", "h5", "memmap"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_patches_come_from_every_format_and_everywhere_the_same(form, shuffle, tmp_path):
    ds = reopened_as(form, weather(), tmp_path, rows=3).td.set_batch_dims("time")
    names = [dim for dim in ds["n"].dims if dim != "time"]  # a memory map names no others
    window = {"time": 4, names[0]: 3, names[1]: 4}
    options = {"window": window, "stride": {"time": 2, names[0]: 3, names[1]: 4}, "exclude": ["turned", "mask"]}
    batches = ds.td.batches(3, **options, shuffle=shuffle, seed=1)
    values = torch.cat([batch["n"] for batch in batches])
    keys = keys_of(weather().sizes, {"time": 4, "lat": 3, "lon": 4}, {"time": 2, "lat": 3, "lon": 4})
    wanted = [weather()["n"].values[key] for key in keys]
    assert sorted(values.flatten(1).tolist()) == sorted(np.stack(wanted).reshape(len(wanted), -1).tolist())
    assert shuffle or values.tolist() == np.stack(wanted).tolist()
    batches.set_epoch(0)
    assert torch.equal(batches[1]["n"], values[3:6])
    rows = ds.td.to_torch_dataset(**options)
    assert len(rows) == len(wanted)
    np.testing.assert_array_equal(rows[5]["n"].numpy(), wanted[5])


def test_patches_of_single_times_need_no_window_along_them():
    ds = weather()
    (batch, *_) = ds.td.batches(4, window={"lat": 3, "lon": 4}, stride={"lat": 3, "lon": 4})
    assert batch.names == [None, "lat", "lon"]
    assert batch.batch_size == (4, 3, 4)
    keys = keys_of({"time": 1, "lat": 6, "lon": 8}, {"time": 1, "lat": 3, "lon": 4}, {"lat": 3, "lon": 4})
    np.testing.assert_array_equal(batch["n"].numpy(), np.concatenate([ds["n"].values[key] for key in keys]))
    (lines, *_) = ds.td.batches(4, window={"lon": 8})
    assert lines.batch_size == (4, 8)
    assert lines["n"].tolist() == ds["n"].values.transpose(0, 2, 1)[:4].tolist()


def test_a_batch_dim_between_is_a_sample_for_each_index():
    n = np.arange(2 * 5 * 4).reshape(2, 5, 4)
    ds = xr.Dataset({"n": (("time", "member", "lat"), n)}).td.set_batch_dims(["time", "member", "lat"])
    batches = ds.td.batches(99, window={"time": 2, "lat": 2}, stride={"time": 1, "lat": 2})
    (batch,) = batches
    assert batch.names == [None, "time", "lat"]
    assert batch["n"].tolist() == [n[:, member, at : at + 2].tolist() for member in range(5) for at in (0, 2)]


def test_patches_stay_in_their_episode_and_gaps_cut_them():
    ds = weather().assign_coords(episode=("time", [0] * 5 + [1] * 7))
    batches = ds.td.batches(99, window={"time": 3, "lat": 6, "lon": 4}, stride={"lon": 4}, within="episode")
    (batch,) = batches
    assert batch["index"][:, :, 0, 0].tolist() == [
        [10 * (t + i) for i in range(3)] for t in (0, 1, 2, 5, 6, 7, 8, 9) for _ in (0, 1)
    ]
    assert "16 windows of 3 x 6 x 4 rows along 'time', 'lat', 'lon'" in repr(batches)
    cut = ds.isel(time=[0, 1, 2, 5, 6, 7]).td.batches(9, window={"time": 3, "lat": 6, "lon": 8}, gaps="time")
    assert len(cut._samples) == 2


def test_each_chunk_is_read_once_in_an_epoch(tmp_path, monkeypatch):
    weather(40)[["n"]].drop_vars(["time", "lat", "lon"]).td.to_zarr(tmp_path / "w.zarr", chunks={"time": 5})
    store = CountingStore(LocalStore(tmp_path / "w.zarr"))
    with xr.open_dataset(store, engine="tensordict") as ds:
        for options in ({}, {"shuffle": True, "seed": 0, "buffer_size": 40}):
            stride = {"time": 5, "lat": 3, "lon": 4}
            batches = ds.td.batches(3, window={"time": 5, "lat": 3, "lon": 4}, stride=stride, keep=0, **options)
            store.chunks.clear()
            assert sum(len(batch) for batch in batches) == 32
            assert sorted(store.chunks) == sorted(f"n/c/{chunk}/0/0" for chunk in range(8))


@pytest.mark.parametrize("shuffle", [False, True, "full"])
def test_chunks_are_kept_so_that_windows_which_overlap_read_each_once_and_the_next_epoch_none(tmp_path, shuffle):
    weather(40)[["n"]].drop_vars(["time", "lat", "lon"]).td.to_zarr(
        tmp_path / "w.zarr", chunks={"time": 5, "lat": 4, "lon": 8}
    )
    store = CountingStore(LocalStore(tmp_path / "w.zarr"))
    options = {"window": {"time": 4, "lat": 3, "lon": 4}, "stride": {"time": 1, "lat": 3, "lon": 4}, "shuffle": shuffle}
    with xr.open_dataset(store, engine="tensordict") as ds:
        batches = ds.td.batches(3, seed=0, buffer_size=8, **options)
        data = ds.td.to_torch_dataset(window=options["window"], stride=options["stride"])
        for loop in (lambda: len([*batches]), lambda: len([data[number] for number in range(len(data))])):
            store.chunks.clear()
            loop()
            assert sorted(store.chunks) == sorted(f"n/c/{time}/{lat}/0" for time in range(8) for lat in range(2))
            loop()
            assert len(store.chunks) == 16
        first = batches[0]["n"]
        expected = first.clone()
        first.zero_()
        assert torch.equal(batches[0]["n"], expected)  # a batch is the caller's own


def test_text_and_what_has_no_dim_of_the_windows():
    ds = weather().assign(
        text=(("time", "lat"), np.array([[f"{t}.{lat}" for lat in range(6)] for t in range(12)], object)),
        scale=("uv", [1.0, 2.0]),
    )
    (batch, *_) = ds.td.batches(2, window={"time": 2, "lat": 2, "lon": 3}, stride=2, unbatched="keep")
    assert batch["text"][1][0][1][2] == "0.1"
    assert batch["scale"].tolist() == [1.0, 2.0]


def test_what_is_resumed_goes_on_with_the_next_patch():
    batches = weather().td.batches(5, window={"time": 3, "lat": 3, "lon": 4}, stride=2, shuffle=True, seed=0)
    running = iter(batches)
    next(running)
    state = running.state_dict()
    again = iter(batches)
    again.load_state_dict(state)
    for batch, expected in zip(again, running, strict=True):
        assert torch.equal(batch["n"], expected["n"])
    other = weather().td.batches(5, window={"time": 3, "lat": 4, "lon": 3}, stride=2, shuffle=True, seed=0)
    with pytest.raises(ValueError, match="other chunks, windows"):
        other.load_state_dict({**state, "samples": len(other._samples)})


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40)), min_size=1, max_size=30), st.integers(1, 9))
def test_boxes_hold_every_patch_once_and_not_much_else(starts, width):
    corners = [np.array(along) for along in zip(*starts, strict=True)]
    groups = cover(corners, [width, width])
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(starts)))
    for group in groups:
        cells = {
            (a + i, b + j) for a, b in {starts[each] for each in group} for i in range(width) for j in range(width)
        }
        box = np.prod([np.ptp(along[group]) + width for along in corners])
        assert box <= 4 * len({starts[each] for each in group}) * width**2
        assert box >= len(cells)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"window": {"time": 2, "lat": 7}}, ValueError, "no window of 7 along 'lat' fits: 'lat' has 6 rows"),
        ({"window": {"time": 2, "nowhere": 1}}, ValueError, "there is no dim 'nowhere'"),
        ({"window": {}}, ValueError, "window: expected dims and numbers of rows"),
        ({"window": {"time": 2, "lat": 0}}, ValueError, "window of 'lat'"),
        ({"window": {"time": 2}, "stride": {"lat": 1}}, ValueError, "stride: 'lat' is none of the dims of window="),
        ({"window": {"time": 2, "lat": 1}, "stride": {"lat": 0}}, ValueError, "stride of 'lat'"),
    ],
)
def test_what_makes_no_patches_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        weather().td.batches(2, **options)
