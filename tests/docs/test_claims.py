"""What the pages state in tables about this package and others holds."""

import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from tensordict import TensorDict
from torch.utils.data import DataLoader

import xarray_tensordict

DOCS = Path(__file__).parents[2] / "docs"
FORECASTS = re.findall(
    r"^\| `\(([\w, ]+)\)` \| ([^|]+) \|$", (DOCS / "how-to" / "climate.md").read_text("utf-8"), re.MULTILINE
)


@pytest.mark.parametrize(("dims", "stated"), FORECASTS)
def test_the_batch_of_a_forecast_is_the_stated_one(dims, stated):
    names = dims.split(", ")
    ds = xr.Dataset({"t2m": (names, np.zeros(range(3, 3 + len(names)), "float32"))})
    assert ds.td.batch_dims == tuple(re.findall(r"`(\w+)`", stated.partition("because")[0]))


def test_the_page_on_climate_states_batches():
    assert len(FORECASTS) == 4


@pytest.fixture
def ds():
    return xr.Dataset(
        {
            "t2m": (("time", "lat"), np.arange(12, dtype="float32").reshape(6, 2), {"units": "K"}),
            "mask": ("lat", [True, False]),
        },
        coords={
            "time": np.datetime64("2024-01-01", "ns") + np.arange(6) * np.timedelta64(1, "h"),
            "lat": [1.0, 2.0],
            "task": ("time", list("abcdef")),
        },
        attrs={"title": "a run"},
    )


def test_a_memory_map_keeps_values_and_the_attributes_of_what_is_unbatched_only(ds, tmp_path):
    ds.td.to_memmap(tmp_path / "map")
    read = xr.open_dataset(tmp_path / "map", engine="tensordict")
    assert read["mask"].identical(ds["mask"])
    assert np.array_equal(read["t2m"].values, ds["t2m"].values)
    assert (read["t2m"].dims, read["t2m"].attrs) == (("time", "dim_2"), {})


@pytest.mark.parametrize(
    ("write", "in_xarray", "batch_size"),
    [
        (lambda ds, path: ds.to_zarr(path, consolidated=False), {"t2m", "mask", "time", "lat"}, []),
        (lambda ds, path: ds.td.to_zarr(path, layout="xarray"), {"t2m", "mask", "time", "lat"}, []),
        (lambda ds, path: ds.td.to_zarr(path), {"t2m", "time", "_unbatched"}, [6]),
    ],
    ids=["ds.to_zarr", "layout=xarray", "ds.td.to_zarr"],
)
def test_plain_libraries_see_what_the_table_of_writers_states(ds, tmp_path, write, in_xarray, batch_size):
    write(ds.drop_vars("task"), tmp_path / "written.zarr")
    assert set(xr.open_zarr(tmp_path / "written.zarr", consolidated=False).variables) == in_xarray
    assert list(TensorDict.from_zarr(tmp_path / "written.zarr").batch_size) == batch_size
    assert xarray_tensordict.open_persistent(tmp_path / "written.zarr").batch_size == (6,)


def test_a_loader_of_batches_without_collate_raises_the_stated_error(ds):
    data = ds.td.to_torch_dataset(2, shuffle=True, seed=0)
    with pytest.raises(TypeError, match=r"Tensor\.__getitem__"):
        next(iter(DataLoader(data, batch_size=None)))
    assert next(iter(DataLoader(data, batch_size=None, collate_fn=data.collate))).batch_size == (2,)
