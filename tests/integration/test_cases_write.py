"""The generated cases that are about writing: 43, 49 and 51.

Tests with the mark ``later`` belong to parts that have their own milestone.
"""

import re
import zipfile

import dask
import numpy as np
import pytest
import torch
import xarray as xr

from corpus import assert_entry, is_zarr, of_case

# --- case 43: writing a zip file -----------------------------------------------------------------------------------


@pytest.mark.later
@of_case(43)
def test_a_zip_store_is_written_as_one_file_without_duplicates(doors, tmp_path, open_both):
    target = tmp_path / "y.zarr.zip"
    doors.ds.td.to_zarr(target)
    assert target.is_file()
    with zipfile.ZipFile(target) as archive:
        names = archive.namelist()
    assert len(names) == len(set(names))
    again = open_both(target)
    assert_entry(again.td, "x", np.arange(6).reshape(3, 2), torch.float32)
    assert list(again.td.batch_size) == [3]


@pytest.mark.later
@of_case(43)
def test_a_zip_store_is_not_changed_in_place(store, doors, open_both):
    loaded = doors.ds.load()
    before = store.read_bytes()
    for keywords in ({"append_dim": "t"}, {"region": {"t": slice(0, 3)}}):
        with pytest.raises((ValueError, TypeError, NotImplementedError), match="zip"):
            loaded.td.to_zarr(store, **keywords)
    assert store.read_bytes() == before
    assert_entry(open_both(store).td, "x", np.arange(6).reshape(3, 2))


# --- case 49: dask chunks that do not fit the chunks of the store --------------------------------------------------


@pytest.mark.later
@of_case(49)
def test_a_region_that_cuts_chunks_is_refused_or_locked(store, doors, open_both):
    region = (doors.ds.isel(t=slice(2, 6)) + 100).chunk(t=2)
    expected = np.arange(24).reshape(12, 2)
    with dask.config.set(scheduler="threads", num_workers=2):
        try:
            region.td.to_zarr(store, region={"t": slice(2, 6)})
        except ValueError:
            pass
        else:
            expected = expected.copy()
            expected[2:6] += 100
    assert_entry(open_both(store).td, "x", expected)


# --- case 51: a store written onto itself --------------------------------------------------------------------------


@of_case(51)
@pytest.mark.parametrize("changed", [True, False])
def test_a_store_is_never_lost_by_writing_it_onto_itself(store, open_both, changed):
    expected = np.arange(6.0)
    with xr.open_dataset(store, engine="tensordict", chunks={} if changed else None) as ds:
        made = ds + 1 if changed else ds
        try:
            made.td.to_zarr(store, mode="w") if is_zarr(store) else made.td.to_h5(store, mode="w")
        except (ValueError, OSError, RuntimeError) as error:
            assert re.search(re.escape(store.name), str(error)), "the message names the store"
        else:
            expected = expected + changed
    assert_entry(open_both(store).td, "x", expected)
