"""Dimension names that an HDF5 file records."""

from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest

from hdf5_reading import root_of, tree_of, values

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.h5"


# Dimension names


def test_raw_files_record_no_names(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (3, 3), "f4", maxshape=(None, 3), chunks=(2, 3))
        file["n"] = 1
    group = root_of(path)
    assert group.arrays["x"].dims == (None, None)
    assert group.arrays["x"].unlimited == {0}
    assert group.unlimited_dims == frozenset()
    assert "preferred_chunks" not in group.arrays["x"].encoding
    assert group.arrays["x"].encoding["chunksizes"] == (2, 3)
    assert all(array.raw for array in group.arrays.values())


def test_scales_that_users_attach(path):
    with h5py.File(path, "w") as file:
        for name, scale_name in (("time", ""), ("alternative", "alt"), ("grid", "g")):
            file[name] = np.arange(3.0)
            file[name].make_scale(scale_name)
        file["both"] = np.ones((3, 2))
        file["both"].dims[0].attach_scale(file["time"])
        file["both"].dims[1].label = "feature"
        file["several"] = np.ones(3)
        file["several"].dims[0].attach_scale(file["time"])
        file["several"].dims[0].attach_scale(file["alternative"])
        file["half"] = np.ones((3, 4))
        file["half"].dims[0].attach_scale(file["grid"])
        file["inner/x"] = np.ones(3)
        file["inner/x"].dims[0].attach_scale(file["time"])
        file["inner/n"] = 3
    tree = tree_of(path)
    arrays = tree[""].arrays
    assert arrays["time"].dims == ("time",)
    assert arrays["both"].dims == ("time", "feature")
    assert arrays["several"].dims == ("alternative",), "of several scales the last, as netCDF-C and h5netcdf take it"
    assert arrays["half"].dims == ("grid", None)
    assert not arrays["half"].raw
    assert tree["inner"].arrays["x"].dims == ("time",)
    assert not tree["inner"].arrays["n"].raw, "a file with dimension scales is not raw"


def test_labels_and_dimension_names_attributes(path):
    with h5py.File(path, "w") as file:
        file["labelled"] = np.ones((2, 3, 4))
        file["labelled"].dims[0].label = "time"
        file["labelled"].dims[2].label = "feature"
        file["gpm"] = np.ones((2, 3))
        file["gpm"].attrs["DimensionNames"] = np.bytes_(b"nscan,nray")
        file["wrong"] = np.ones((2, 3))
        file["wrong"].attrs["DimensionNames"] = "nscan"
    arrays = root_of(path).arrays
    assert arrays["labelled"].dims == ("time", None, "feature")
    assert arrays["gpm"].dims == ("nscan", "nray")
    assert arrays["wrong"].dims == (None, None)
    assert arrays["wrong"].raw
    assert not arrays["gpm"].raw


def test_a_reference_to_a_scale_that_is_gone(path):
    with h5py.File(path, "w") as file:
        file["s"] = np.arange(2.0)
        file["s"].make_scale()
        file["x"] = np.ones(2)
        file["x"].dims[0].attach_scale(file["s"])
        file["x"].dims[0].label = "label"
        del file["s"]
    array = root_of(path).arrays["x"]
    assert values(array).tolist() == [1, 1]
    assert array.dims in {("label",), ("s",), (None,)}


def test_dimensions_without_a_variable_are_no_arrays(tmp_path):
    path = tmp_path / "placeholder.nc"
    with netCDF4.Dataset(path, "w") as nc:
        nc.createDimension("row", 3)
        nc.createDimension("more", None)
        nc.createVariable("v", "f4", ("row",))[:] = 1
        nc.createGroup("g").createVariable("w", "f4", ("row", "more"))[:] = np.ones((3, 4))
    tree = tree_of(path)
    assert list(tree[""].arrays) == ["v"]
    assert tree["g"].arrays["w"].dims == ("row", "more")
    assert tree["g"].arrays["w"].shape == (3, 4)
    assert tree["g"].unlimited_dims == {"more"}, "inherited, and used"
    inner = tree_of(path, root="g")[""]
    assert inner.arrays["w"].dims == ("row", "more")


def test_a_variable_named_like_a_dimension_it_does_not_describe(tmp_path):
    path = tmp_path / "clash.nc"
    with netCDF4.Dataset(path, "w") as nc:
        nc.createDimension("x", 2)
        nc.createDimension("y", 3)
        nc.createVariable("x", "f4", ("y",))[:] = [1, 2, 3]
    arrays = root_of(path).arrays
    assert list(arrays) == ["x"]
    assert arrays["x"].dims == ("y",)
    assert values(arrays["x"]).tolist() == [1, 2, 3]


def test_an_axis_that_can_grow_makes_an_unlimited_dimension_however_it_is_named(path):
    with h5py.File(path, "w") as file:
        for name in ("label", "attribute", "own", "nameless"):
            file.create_dataset(name, (2, 3), "f4", maxshape=(None, 3), chunks=(1, 3))
        file["label"].dims[0].label = "time"
        file["attribute"].attrs["DimensionNames"] = "scan,ray"
        file["own"].attrs["__xarray_tensordict__"] = '{"dims": ["row", "column"]}'
    assert root_of(path).unlimited_dims == {"time", "scan", "row"}
