"""Columns that pandas holds (``Int64``, ``boolean``, categories): one dtype in everything that is read of them, or a reason."""

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr

import xarray_tensordict
from xarray_tensordict.warnings import LeftOutWarning

ROWS = 6
NUMBERS = {
    "Int64": (pd.array(range(ROWS), dtype="Int64"), torch.int64),
    "UInt8": (pd.array(range(ROWS), dtype="UInt8"), torch.uint8),
    "boolean": (pd.array([True, False] * 3, dtype="boolean"), torch.bool),
    "Float32": (pd.array(np.arange(ROWS), dtype="Float32"), torch.float32),
    "Float32, missing": (pd.array([None, *range(1, ROWS)], dtype="Float32"), torch.float32),
    "Float64, missing": (pd.array([None, *range(1, ROWS)], dtype="Float64"), torch.float64),
    "sparse": (pd.arrays.SparseArray(np.arange(ROWS)), torch.int64),
    "sparse floats": (pd.arrays.SparseArray([np.nan, 1, 2, 3, 4, 5]), torch.float64),
    "time zone": (pd.date_range("2020-01-01", periods=ROWS, tz="Europe/Berlin"), torch.int64),
}
OBJECTS = {
    "categories": pd.Categorical(["a", "b", "c"] * 2),
    "categories of numbers, missing": pd.Categorical([1, None, 3] * 2),
    "string, missing": pd.array([None, *"bcdef"], dtype="string"),
    "period": pd.period_range("2020", periods=ROWS, freq="D").array,
}


def dataset(values, role):
    ds = xr.Dataset({"n": ("time", np.arange(ROWS))})
    if role == "index":
        return ds.assign_coords(time=pd.Index(values)), "time"
    return ds.assign(x=("time", values)), "x"


def all_reads(ds, name):
    """What each way of reading gives of a column, with the numbers of its rows."""
    ptd, rows = ds.td.to_persistent(), ds.td.to_torch_dataset()
    found = [
        ds.td.to_tensordict(),
        ptd.to_tensordict(),
        ptd[2:5].to_tensordict(),
        ptd[[3, 1]],
        rows.__getitems__([4, 0]),
    ]
    found += [*ds.td.batches(4), *ds.td.batches(4, shuffle="full", seed=0)]
    return [(td[name], td["n"].tolist()) for td in found]


@pytest.mark.parametrize("role", ["variable", "index"])
@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_that_pandas_holds_have_one_dtype_in_whatever_is_read(kind, role):
    values, dtype = NUMBERS[kind]
    ds, name = dataset(values, role)
    expected, _ = all_reads(ds, name)[0]
    for tensor, rows in all_reads(ds, name):
        assert tensor.dtype == dtype
        assert torch.equal(tensor.nan_to_num(-1), expected[rows].nan_to_num(-1))
    if kind == "time zone":
        assert expected[0] == pd.Timestamp("2019-12-31T23:00").value  # the time in UTC
    else:
        assert torch.equal(expected.nan_to_num(0), torch.arange(ROWS) % (2 if kind == "boolean" else ROWS) == 0) == (
            kind == "boolean"
        )
    assert xarray_tensordict.to_dataset(ds.td.to_tensordict(), template=ds)[name].dims == ("time",)


@pytest.mark.parametrize("kind", OBJECTS)
def test_objects_that_pandas_holds_are_non_tensor_data_in_whatever_is_read(kind):
    ds, name = dataset(OBJECTS[kind], "variable")
    expected = list(ds.td.to_tensordict()[name])
    for read, rows in all_reads(ds, name):
        assert [repr(row) for row in read] == [repr(expected[row]) for row in rows]


@pytest.mark.parametrize("kind", ["Int64", "UInt16", "boolean"])
def test_missing_integers_and_bools_are_left_out_by_name_and_say_what_to_do(kind):
    ds, name = dataset(pd.array([1, None, 0, 1, 1, None], dtype=kind), "variable")
    for read in (
        ds.td.to_tensordict,
        ds.td.to_persistent,
        lambda: next(iter(ds.td.batches(1))),  # also where nothing is missing in what is read
        lambda: ds.td.to_torch_dataset()[0],
    ):
        with pytest.warns(LeftOutWarning, match=rf"'x': its dtype {kind} has 2 missing values.*fillna"):
            assert name not in read().keys()  # noqa: SIM118 - iterating gives rows
    with pytest.warns(LeftOutWarning):
        back = xarray_tensordict.to_dataset(ds.td.to_tensordict(), template=ds)
    assert back.identical(ds)  # what a tensordict cannot hold comes from the template
    filled = ds.assign(x=ds["x"].fillna(0))
    assert filled.td.to_tensordict()["x"].tolist() == [1, 0, 0, 1, 1, 0]
    assert ds.assign(x=ds["x"].astype("float64")).td.to_tensordict()["x"].isnan().sum() == 2
