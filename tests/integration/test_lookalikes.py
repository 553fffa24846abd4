"""Small stores as the tools of a field write them, made here, through both openings: batch, names, and what is left out.

Each stands for a real file that other tests read where it is there (``tests/integration/test_real.py``). Groups of
episodes, cells and draws are in ``tests/dataset/test_trees.py`` and ``test_records.py``, replay buffers in ``test_cases.py``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

from xarray_tensordict import LeftOutWarning, open_persistent
from xarray_tensordict.testing import assert_same_tensordict

# the scales of a pyramid have other sizes along dims of one name
pytestmark = pytest.mark.filterwarnings("ignore:.*the dim is called:UserWarning")

RANDOM = np.random.default_rng(0)


def ints(*shape: int) -> np.ndarray:
    return RANDOM.integers(1, 99, shape)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.random(shape).astype("f4")


def hdf5(path: Path, arrays: dict[str, Any], attrs: dict[str, dict[str, Any]] | None = None) -> Path:
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values
        for name, found in (attrs or {}).items():
            file.require_group(name) if name not in file else None
            file[name].attrs.update(found)
    return path


def ome_zarr(path: Path) -> Path:
    """A pyramid: axes in the group's metadata, no dims on the arrays, zarr v2."""
    root = zarr.open_group(path, mode="w", zarr_format=2)
    for scale, size in enumerate((16, 8)):
        root.create_array(str(scale), data=ints(5, 2, size, size).astype("u2"), fill_value=0)
    axes = [{"name": "t", "type": "time"}, {"name": "c", "type": "channel"}, {"name": "y"}, {"name": "x"}]
    datasets = [{"path": str(scale)} for scale in range(2)]
    root.attrs["multiscales"] = [{"version": "0.4", "axes": axes, "datasets": datasets}]
    return path


def climate_netcdf(path: Path) -> Path:
    """CMIP: time with bounds, a land mask, packed values."""
    time = ("time", np.arange(12.0) + 15, {"units": "days since 2000-01-01", "bounds": "time_bnds", "axis": "T"})
    ds = xr.Dataset(
        {
            "tas": (("time", "lat", "lon"), floats(12, 4, 8)),
            "time_bnds": (("time", "bnds"), np.arange(24.0).reshape(12, 2)),
            "sftlf": (("lat", "lon"), floats(4, 8)),
        },
        coords={"time": time, "lat": np.linspace(-60, 60, 4), "lon": np.arange(8) * 45.0},
    )
    ds.to_netcdf(path, engine="h5netcdf", encoding={"tas": {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -99}})
    return path


def scan_lines(path: Path) -> Path:
    """GPM: names of dims in an attribute, in groups."""
    arrays = {"NS/Latitude": floats(9, 5), "NS/SLV/rain": floats(9, 5, 7), "NS/ScanTime/Year": ints(9)}
    dims = {"NS/Latitude": "nscan,nray", "NS/SLV/rain": "nscan,nray,nbin", "NS/ScanTime/Year": "nscan"}
    return hdf5(path, arrays, {name: {"DimensionNames": text} for name, text in dims.items()})


def table_with_index(path: Path) -> Path:
    """PyTables: a table of records and its search index."""
    rows = np.zeros(8, [("time", "f8"), ("charge", "i4"), ("pos", "f4", (3,))])
    arrays = {"hits": rows, "_i_hits/time/sorted": np.zeros(8192), "_i_hits/time/bounds": np.zeros(127)}
    return hdf5(path, arrays, {"_i_hits": {"CLASS": np.bytes_("TINDEX")}})


def matlab(path: Path) -> Path:
    """MATLAB v7.3: references and a private group beside the data."""
    with h5py.File(hdf5(path, {"spikes": floats(50, 4), "rate": floats(50), "#refs#/a": floats(7)}), "a") as file:
        file["cells"] = np.array([file["#refs#/a"].ref], h5py.ref_dtype)
    return path


def jets(path: Path) -> Path:
    """Events by offsets: a flat column that does not vote."""
    arrays = {"pt_offsets": np.arange(0, 41, 4), "pt": floats(40), "met": floats(10), "weight": floats(10)}
    return hdf5(path, arrays)


def mesh(path: Path) -> Path:
    """UGRID: the topology of a mesh is no batch, the series on its faces have one."""
    ds = xr.Dataset(
        {
            "mesh2d": ((), 0, {"cf_role": "mesh_topology", "face_node_connectivity": "mesh2d_face_nodes"}),
            "mesh2d_face_nodes": (("mesh2d_nFaces", "mesh2d_nMax"), ints(12, 3)),
            "waterlevel": (("time", "mesh2d_nFaces"), floats(20, 12)),
            "velocity": (("time", "mesh2d_nFaces"), floats(20, 12)),
        }
    )
    ds.to_netcdf(path, engine="h5netcdf", unlimited_dims=["time"])
    return path


@dataclass(frozen=True)
class Lookalike:
    """A store, the batch that its field expects, and words of what is left out."""

    make: Callable[[Path], Path]
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    shown: frozenset[str]
    left_out: str | None = None


STORES = [
    Lookalike(ome_zarr, ("t",), (5,), frozenset({"0", "1"})),
    Lookalike(climate_netcdf, ("time",), (12,), frozenset({"tas", "sftlf"})),
    Lookalike(scan_lines, ("nscan",), (9,), frozenset({"NS/SLV/rain"})),
    Lookalike(table_with_index, ("batch_0",), (8,), frozenset({"hits/time", "hits/charge", "hits/pos"})),
    Lookalike(matlab, ("batch_0",), (50,), frozenset({"spikes", "rate"}), left_out="'cells'"),
    Lookalike(jets, ("batch_0",), (10,), frozenset({"met", "weight", "pt"})),
    Lookalike(mesh, ("time",), (20,), frozenset({"waterlevel", "mesh2d_face_nodes"})),
]


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.make.__name__)
def test_every_opening_shows_the_batch_of_its_field_and_it_is_written_and_read_again(
    tmp_path: Path, store: Lookalike
) -> None:
    path = store.make(tmp_path / "store")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ds = xr.open_dataset(path, engine="tensordict")
    told = [str(each.message) for each in caught if each.category is LeftOutWarning]
    assert len(told) == (store.left_out is not None), told
    assert all(str(store.left_out) in text for text in told)
    assert (ds.td.batch_dims, ds.td.batch_size) == (store.names, store.sizes)
    assert store.shown <= {str(name) for name in ds.variables}
    td = ds.td.to_tensordict(unbatched="keep")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeftOutWarning)
        ptd = open_persistent(path)
    assert_same_tensordict(ptd.to_tensordict(), ds.td.to_tensordict())
    assert tuple(ptd.batch_size) == store.sizes
    assert [name or "batch_0" for name in ptd.names] == list(store.names)
    for name in store.shown:
        found = td[tuple(name.split("/"))]
        np.testing.assert_array_equal(np.asarray(found), ds[name].transpose(*store.names, ..., missing_dims="ignore"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with xr.open_datatree(path, engine="tensordict") as dt:
            assert dt.td.batch_size == store.sizes
    for write, suffix in ((ds.td.to_zarr, "zarr"), (ds.td.to_h5, "h5")):
        write(tmp_path / f"copy.{suffix}")
        with xr.open_dataset(tmp_path / f"copy.{suffix}", engine="tensordict") as copy:
            assert (copy.td.batch_dims, copy.td.batch_size) == (store.names, store.sizes)
            assert_same_tensordict(copy.td.to_tensordict(), ds.td.to_tensordict())
    ds.close()
    ptd.close()
