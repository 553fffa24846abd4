"""Plain ``Dataset.to_zarr`` and ``to_netcdf`` of what the engine has opened: no stale encoding, and the right batch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from tensordict import NonTensorData, TensorDict

import corpus
import twins
import xarray_tensordict
from xarray_tensordict.testing import assert_same_tensordict

# xarray writes neither dicts nor ragged rows, and knows of no bfloat16; integration/test_cases.py writes these
NOT_PLAIN = ("case_12", "case_19", "case_26")


def stores() -> Iterator[Any]:
    """Each case and its twins, and whether it is a twin; they are written in both versions of zarr in turn."""
    number = 0
    for name in corpus.CASE_NAMES:
        if not name.startswith(NOT_PLAIN):
            for form, make in {"original": corpus.cases.CASES[name], **twins.twins_of(name)}.items():
                number += 1
                yield pytest.param(make, form != "original", 2 + number % 2, id=f"{name[:7]}-{form}-{2 + number % 2}")


def changes(ds: xr.Dataset, *, twin: bool) -> Iterator[xr.Dataset]:
    """What users do before they write; to a twin what depends on the store that it was read from."""
    yield ds
    if not ds.td.batch_dims:
        return
    first = ds.td.batch_dims[0]
    part = ds.isel({first: slice(1, None)})
    # xarray refuses to encode times of dask in units that may round them, whoever opened them
    times = any(v.dtype.kind in "mM" for v in ds.data_vars.values())
    yield part if times else part.chunk(dict.fromkeys(ds.dims, -1))
    if twin:
        return
    if not times:
        yield part
    numbers = [name for name, v in ds.data_vars.items() if v.dtype.kind in "iuf" and first in v.dims]
    yield ds[numbers] * 2 + 1
    if numbers and all(len(set(v.dims)) == v.ndim for v in ds.variables.values()):
        yield ds[numbers].mean(first)


@pytest.mark.parametrize(("make", "twin", "zarr_format"), list(stores()))
@pytest.mark.filterwarnings("ignore")  # what is left out of a store, strings of a fixed length: told elsewhere
def test_what_was_opened_is_written_plainly(make, twin, tmp_path, zarr_format):
    (tmp_path / "source").mkdir()
    with xr.open_dataset(corpus.build(make, tmp_path / "source"), engine="tensordict") as ds:
        for number, changed in enumerate(changes(ds, twin=twin)):
            target = tmp_path / f"{number}.zarr"
            changed.to_zarr(target, zarr_format=zarr_format, consolidated=False)
            again = corpus.open_in_both(target, nested=True)
            xr.testing.assert_equal(again.ds.load(), changed.load())
            assert again.ds.td.batch_dims == changed.td.batch_dims
            assert_same_tensordict(again.ds.td.to_tensordict(), changed.td.to_tensordict())
            again.close()


@pytest.fixture
def buffer(tmp_path: Path) -> Path:
    """A replay buffer as tensordict writes it: one chunk for each array, no dimension names."""
    td = TensorDict(
        {
            "obs": torch.arange(24.0).reshape(6, 4),
            "done": torch.arange(6) % 2 == 0,
            "next": {"obs": torch.ones(6, 4), "reward": torch.zeros(6, 1)},
            "note": NonTensorData("a note", batch_size=[6]),
        },
        [6],
        names=["time"],
    )
    td.to_zarr(tmp_path / "buffer.zarr").close()
    return tmp_path / "buffer.zarr"


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.filterwarnings("ignore:The data type")
def test_a_replay_buffer_goes_through_plain_xarray_with_its_batch(buffer, tmp_path, zarr_format):
    with xr.open_dataset(buffer, engine="tensordict", chunks={}) as ds:
        ds.isel(time=slice(0, 4)).chunk(time=2).to_zarr(
            tmp_path / "a.zarr", zarr_format=zarr_format, consolidated=False
        )
    with xr.open_dataset(tmp_path / "a.zarr", engine="tensordict") as again:
        assert again.td.batch_dims == ("time",)
        assert again["next/obs"].dims == ("time", "dim_4")
        assert again["note"].item() == "a note"
    ptd = xarray_tensordict.open_persistent(tmp_path / "a.zarr")
    assert ptd.batch_size == torch.Size([4])
    assert ptd["next"].batch_size == torch.Size([4])
    ptd.close()


def test_a_buffer_without_nested_names_goes_through_plain_netcdf(buffer, tmp_path):
    with xr.open_dataset(buffer, engine="tensordict", nested=False) as ds:
        ds.isel(time=slice(1, None)).to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    both = corpus.open_in_both(tmp_path / "a.nc")
    assert both.ds.td.batch_size == (5,)
    assert both.ds["done"].dtype == bool
    both.close()


def test_plain_xarray_appends_to_what_this_package_wrote(tmp_path):
    ds = xr.Dataset(
        {"x": (("time", "lat"), np.arange(12.0).reshape(4, 3))}, coords={"time": np.arange(4), "lat": [1.0, 2.0, 3.0]}
    )
    ds.td.to_zarr(tmp_path / "a.zarr")
    ds.drop_vars("lat").to_zarr(tmp_path / "a.zarr", append_dim="time", consolidated=False)
    both = corpus.open_in_both(tmp_path / "a.zarr")
    assert both.ds.td.batch_size == (8,)
    assert both.ds["lat"].values.tolist() == [1.0, 2.0, 3.0]
    both.close()
    assert TensorDict.from_zarr(tmp_path / "a.zarr").batch_size == torch.Size([8])
