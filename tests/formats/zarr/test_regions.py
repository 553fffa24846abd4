"""``region=``: a template is filled by many processes, and nothing but the region changes."""

import subprocess
import sys

import dask.array
import numpy as np
import pytest
import xarray as xr
import zarr

from written import assert_gives_back, content, era, reopened

LAYOUTS = pytest.mark.parametrize("layout", ["tensordict", "xarray"])
FORMATS = pytest.mark.parametrize("zarr_format", [2, 3])


def test_a_region_of_two_dims_is_a_block(tmp_path):
    ds = era()
    ds.td.to_zarr(tmp_path / "a")
    part = ds[["t2m"]].isel(time=slice(1, 3), lat=slice(0, 1)) * 0
    part.td.to_zarr(tmp_path / "a", region={"time": slice(1, 3), "lat": "auto"})
    expected = ds["t2m"].values.copy()
    expected[1:3, :1] = 0
    np.testing.assert_array_equal(reopened(tmp_path / "a")["t2m"], expected)


WRITER = """
import sys, numpy as np, xarray as xr, warnings
import xarray_tensordict
path, start = sys.argv[1], int(sys.argv[2])
rows = np.arange(start, start + 5)
part = xr.Dataset({"x": (("time", "f"), np.repeat(rows[:, None], 3, 1).astype("f4")), "next/n": ("time", rows)},
                  coords={"time": rows})
part.td.to_zarr(path, region=sys.argv[3] if sys.argv[3] == "auto" else {"time": slice(start, start + 5)})
"""


@pytest.mark.slow
@LAYOUTS
@pytest.mark.parametrize("region", ["auto", "slice"])
def test_independent_processes_fill_a_template(tmp_path, layout, region):
    path = tmp_path / "a.zarr"
    template = xr.Dataset(
        {
            "x": (("time", "f"), dask.array.zeros((20, 3), chunks=(5, 3), dtype="f4")),
            "next/n": ("time", dask.array.zeros(20, chunks=5, dtype="i8")),
        },
        coords={"time": np.arange(20)},
    )
    template.td.to_zarr(path, layout=layout, compute=False)
    with pytest.warns(UserWarning, match="not complete"):
        empty = reopened(path)
    assert np.isnan(empty["x"]).all()
    assert (empty["next/n"] == 0).all()
    running = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(start), region]) for start in range(0, 20, 5)
    ]
    assert [process.wait(300) for process in running] == [0] * 4
    rows = np.arange(20)
    assert_gives_back(
        path,
        xr.Dataset(
            {"x": (("time", "f"), np.repeat(rows[:, None], 3, 1).astype("f4")), "next/n": ("time", rows)},
            coords={"time": rows},
        ),
    )
    assert "__xarray_tensordict_incomplete__" not in zarr.open_group(path, mode="r").attrs


def test_a_region_leaves_the_metadata_of_a_whole_store_as_it_is(tmp_path):
    ds = era()
    ds.td.to_zarr(tmp_path / "a", chunks={"time": 2})
    before = content(tmp_path / "a")
    part = ds[["t2m"]].isel(time=slice(0, 2)) + 1
    part.chunk(time=1).td.to_zarr(tmp_path / "a", region="auto", compute=False).compute()
    after = content(tmp_path / "a")
    assert {name for name in after if after[name] != before.get(name)} == {"t2m/c/0/0/0"}


def test_rows_without_labels_are_written_where_the_region_says(tmp_path):
    era().td.to_zarr(tmp_path / "a")
    later = era()[["t2m"]].isel(time=slice(2, 4)).drop_vars("time")
    later.td.to_zarr(tmp_path / "a", region={"time": slice(0, 2)})
    np.testing.assert_array_equal(reopened(tmp_path / "a")["t2m"][:2], later["t2m"])
