"""Twelve files that other people's tools wrote: what they hold, through both libraries, and what is left out of them.

``expected.json`` beside the stores says what the batch of a store, or of a group of it, is. Arrays are compared with
what h5py or zarr-python read.
"""

import warnings
from functools import cache
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

import corpus
from corpus import REAL

NAMES = (
    "climate/cesm2_native.nc",
    "energy/rex_ri_wave_2010.h5",
    "geo/titiler_zarr_5d.zarr",
    "microscopy/ome_zarr_v04_labels.zarr",
    "ml/test_catvnoncat.h5",
    "neuro/nwb_ecephys_ogen.nwb",
    "rl/guda_trajectories.hdf5",
    "robotics/coinft_train.h5",
    "robotics/isaaclab_dataset.hdf5",
    "satellite/gpm_2A_RW_BRS.HDF5",
    "singlecell/anndata_v0.7.8.h5ad",
    "weatherml/gsp.zarr",
)

EXPECTED = corpus.real_stores()

# Entries below the ones that expected.json names: the fields of a record array.
FIELDS = {
    "energy/rex_ri_wave_2010.h5": {
        f"meta/{name}" for name in ("latitude", "longitude", "water_depth", "timezone", "distance", "jurisdiction")
    }
}

# What these stores may warn of: a member that nothing can represent, and one name for axes of two sizes (pyramids).
pytestmark = pytest.mark.filterwarnings("ignore:.*(left out|the dim is called):UserWarning")


def groups():
    """Every store, and each of its groups that something is expected of."""
    for name in NAMES:
        absent = [] if name in EXPECTED else [pytest.mark.skip(reason=f"the shared sample {name} is absent")]
        for group in EXPECTED.get(name, {"": {}}):
            yield pytest.param(name, group, id=f"{Path(name).name}:{group or '/'}", marks=absent)


GROUPS = pytest.mark.parametrize(("name", "group"), list(groups()))
STORES = pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            id=Path(name).name,
            marks=[] if name in EXPECTED else [pytest.mark.skip(reason=f"the shared sample {name} is absent")],
        )
        for name in NAMES
    ],
)


def group_keyword(group):
    return {"group": group} if group else {}


@cache
def numeric_arrays(name, group):
    """What h5py or zarr-python read: values and attributes of the numeric arrays right in a group."""
    path = REAL / name
    if path.is_file():
        with h5py.File(path) as file:
            parent = file[group or "/"]
            members = {key: parent.get(key) for key in parent}
            return {
                key: (array[()], dict(array.attrs))
                for key, array in members.items()
                if isinstance(array, h5py.Dataset) and array.shape is not None and array.dtype.kind in "biuf"
            }
    parent = zarr.open_group(str(path), path=group or None, mode="r")
    return {key: (array[...], dict(array.attrs)) for key, array in parent.arrays() if array.dtype.kind in "biuf"}


@GROUPS
def test_a_group_has_the_expected_batch_alone_and_in_the_tree(name, group, open_both):
    expected = EXPECTED[name][group]
    both = open_both(REAL / name, **group_keyword(group))
    ds = both.ds
    with xr.open_datatree(REAL / name, engine="tensordict") as dt:
        node = dt[group] if group else dt
        in_tree = node.td.to_tensordict()
        assert list(node.td.batch_size) == expected["batch_size"]
    for batch_size, names in (
        (ds.td.batch_size, ds.td.batch_dims),
        *((found.batch_size, found.names) for found in (both.td, both.ptd, in_tree)),
    ):
        assert list(batch_size) == expected["batch_size"]
        assert "names" not in expected or list(names) == expected["names"]
    if "unbatched" in expected:
        unbatched = {str(key) for key in ds.td.unbatched.variables}
        assert set(expected["unbatched"]) <= unbatched <= set(expected["unbatched"]) | FIELDS.get(name, set())
    assert not set(expected.get("absent", ())) & {str(key) for key in ds.variables}
    for key in expected.get("bool", ()):
        assert ds[key].dtype == np.bool_


@STORES
def test_opening_warns_at_most_once(name):
    for opener in (xr.open_dataset, xr.open_datatree):
        with warnings.catch_warnings(record=True) as recorded:
            warnings.simplefilter("always")
            opener(REAL / name, engine="tensordict").close()
        messages = [str(warning.message) for warning in recorded]
        assert len(messages) <= 1, messages
        assert all("left out" in message or "the dim is called" in message for message in messages)


@GROUPS
def test_values_are_those_of_h5py_and_zarr(name, group):
    ds = xr.open_dataset(REAL / name, engine="tensordict", **group_keyword(group))
    compared = 0
    for key, (raw, attrs) in numeric_arrays(name, group).items():
        if key in EXPECTED[name][group].get("absent", ()):
            continue
        found = ds[key].values
        assert found.shape == raw.shape
        if found.dtype.kind in "mMO":  # times, compared with xarray below
            continue
        fill = attrs.get("_FillValue")
        if fill is not None:
            raw = np.where(raw == np.asarray(fill).item(), np.nan, raw)
        np.testing.assert_array_equal(found, raw, err_msg=key)
        compared += 1
    ds.close()
    if EXPECTED[name][group]["batch_size"]:
        assert compared or not numeric_arrays(name, group)


# --- what is known of single stores --------------------------------------------------------------------------------


def of(name):
    return pytest.mark.skipif(name not in EXPECTED, reason=f"the shared sample {name} is absent")


@of("climate/cesm2_native.nc")
def test_climate_dims_are_no_variables_and_time_is_time(open_both):
    both = open_both(REAL / "climate/cesm2_native.nc")
    assert both.ds.TREFHT.dims == ("time", "lat", "lon")
    assert "bnds" in both.ds.dims
    assert both.ds.time.dtype.kind in "MO"


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        pytest.param(name, engine, marks=of(name))
        for name, engine in (("climate/cesm2_native.nc", "h5netcdf"), ("weatherml/gsp.zarr", "zarr"))
    ],
)
def test_what_xarray_opens_is_the_same(open_both, name, engine):
    both = open_both(REAL / name)
    with xr.open_dataset(REAL / name, engine=engine) as expected:
        xr.testing.assert_equal(both.ds, expected)
