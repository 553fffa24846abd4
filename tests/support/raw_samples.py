"""Indices for arrays of files, and the array behind a variable."""

from typing import Any

import torch
import xarray as xr
from hypothesis import strategies as st

from xarray_tensordict.formats.raw.arrays import RawArray


def raw_behind(ds: xr.Dataset, name: str = "x") -> RawArray:
    data = ds.variables[name]._data
    while not isinstance(data, RawArray):
        data = data.array
    return data


def index_for(size: int) -> st.SearchStrategy[Any]:
    number = st.integers(-size, size - 1)
    bound = st.none() | st.integers(-size - 2, size + 2)
    return st.one_of(
        number,
        st.builds(slice, bound, bound, st.none() | st.integers(1, 4)),
        st.lists(number, max_size=6).map(lambda found: torch.tensor(found, dtype=torch.long)),
        st.lists(st.booleans(), min_size=size, max_size=size).map(torch.tensor),
        st.lists(st.lists(number, min_size=2, max_size=2), min_size=1, max_size=3).map(torch.tensor),
    )
