"""Text, names and integers that no store can hold are refused by the name of their variable, before anything is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import xarray_tensordict  # noqa: F401 - registers ds.td

DS = xr.Dataset({"x": ("time", np.arange(3.0))})
WRITERS = pytest.mark.parametrize("writer", ["to_zarr", "to_h5"])


@pytest.mark.parametrize(("writer", "dtype"), [("to_zarr", object), ("to_h5", object), ("to_h5", "U2")])
def test_half_a_character(tmp_path: Path, writer: str, dtype: object) -> None:
    ds = DS.assign(bad=("time", np.array(["a", "b\ud800", "c"], dtype)))
    with pytest.raises(ValueError, match="variable 'bad' has half a character"):
        getattr(ds.td, writer)(tmp_path / "a")
    assert not (tmp_path / "a").exists()


@WRITERS
def test_half_a_character_in_a_name(tmp_path: Path, writer: str) -> None:
    with pytest.raises(ValueError, match=r"the name of variable 'x\\ud800' has half a character"):
        getattr(DS.rename(x="x\ud800").td, writer)(tmp_path / "a")


def test_an_integer_beyond_64_bits_in_a_column_of_hdf5(tmp_path: Path) -> None:
    ds = DS.assign(big=("time", np.array([1, 2**70, 3], object)))
    with pytest.raises(TypeError, match=r"variable 'big' holds .*integers beyond 64 bits.*to_zarr"):
        ds.td.to_h5(tmp_path / "a.h5")
    ds.td.to_zarr(tmp_path / "a.zarr")
    assert xr.open_dataset(tmp_path / "a.zarr", engine="tensordict")["big"].values[1] == 2**70


def test_two_names_of_one_path() -> None:
    ds = xr.Dataset({1: ("time", np.zeros(3)), "1": ("time", np.ones(3))})
    with pytest.raises(ValueError, match="variables 1 and '1' claim one path"):
        ds.td.to_tensordict()
