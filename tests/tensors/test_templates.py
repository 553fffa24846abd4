"""What ``template=`` gives back: times that were cast, and the dims of a new entry."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr

from xarray_tensordict import StoredFormWarning, to_dataset

TIMES = pd.date_range("2020-01-01", periods=3, freq="6h")


def series(unit: str = "ns") -> xr.Dataset:
    return xr.Dataset(
        {
            "t2m": (("time", "lat"), np.ones((3, 2), "f4"), {"units": "K"}),
            "wind": (("time", "level"), np.ones((3, 5), "f4")),
            "lead": ("time", np.array([6, 12, 18], "m8[h]").astype("m8[ns]")),
        },
        coords={"time": TIMES.as_unit(unit), "lat": [10.0, 20.0]},
    )


@pytest.mark.parametrize("unit", ["ns", "us", "s"])
@pytest.mark.parametrize("cast", ["float", "double", "half", "bfloat16"])
def test_times_that_were_cast_are_those_of_the_template(unit: str, cast: str) -> None:
    ds = series(unit)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = to_dataset(getattr(ds.td.to_tensordict(), cast)(), template=ds)
    xr.testing.assert_identical(back[["time", "lead"]], ds[["time", "lead"]])
    assert back["t2m"].attrs == {"units": "K"}


def test_a_part_of_the_rows_that_was_cast_has_its_times() -> None:
    ds = series()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = to_dataset(ds.td.to_tensordict()[[2, 0]].double(), template=ds)
    assert back["time"].values.tolist() == ds["time"].values[[2, 0]].tolist()


def test_times_that_are_no_times_of_the_template_stay_numbers_and_are_named() -> None:
    ds = series()
    td = ds.td.to_tensordict().float()
    td["lead"] = td["lead"] * 2
    with pytest.warns(StoredFormWarning, match=r"'lead' holds times as float32.*not those of the template"):
        back = to_dataset(td, template=ds)
    assert back["lead"].dtype == np.float32
    assert back["time"].dtype.kind == "M"


def test_a_new_entry_of_the_shape_of_one_of_the_template_has_its_dims() -> None:
    ds = series()
    td = ds.td.to_tensordict()
    td["t2m_hat"], td["wind_hat"], td["other"] = torch.zeros(3, 2), torch.zeros(3, 5), torch.zeros(3, 4)
    back = to_dataset(td, template=ds)
    assert back["t2m_hat"].dims == ("time", "lat")
    assert back["wind_hat"].dims == ("time", "level")
    assert back["other"].dims == ("time", "dim_4")
    assert (back["t2m_hat"] - back["t2m"]).dims == ("time", "lat")


def test_a_new_entry_of_which_the_shape_does_not_say_the_dims_can_be_given_them() -> None:
    ds = series().assign(dew=(("time", "place"), np.ones((3, 2), "f4")))
    td = ds.td.to_tensordict()
    td["new"] = torch.zeros(3, 2)
    assert to_dataset(td, template=ds)["new"].dims == ("time", "dim_2")
    assert to_dataset(td, template=ds, dims={"new": "t2m"})["new"].dims == ("time", "lat")
    assert to_dataset(td, template=ds, dims={"new": ("place",)})["new"].dims == ("time", "place")
