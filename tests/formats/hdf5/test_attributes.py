"""Attributes in HDF5: those that it does not hold as they are come back, and what nothing holds is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xarray_tensordict  # noqa: F401 - registers ds.td

LAYOUTS = pytest.mark.parametrize("layout", ["tensordict", "xarray"])
VALUES = [
    [0.56, 0.635, "um"],
    np.complex128(4.3 + 1j),
    ["a", "b"],
    [1, 2.5],
    [],
    ["a", "b\0"],
    "b\0",
    "",
    {"a": [1]},
    None,
    True,
    [True],
]


@LAYOUTS
@pytest.mark.parametrize("value", VALUES, ids=str)
def test_an_attribute_comes_back(tmp_path: Path, layout: Any, value: Any) -> None:
    ds = xr.Dataset({"x": ("t", np.zeros(3), {"a": value})}, attrs={"b": value})
    ds.td.to_h5(tmp_path / "a.h5", layout=layout)
    with xr.open_dataset(tmp_path / "a.h5", engine="tensordict") as found:
        for attr in (found["x"].attrs["a"], found.attrs["b"]):
            assert (attr.tolist() if isinstance(attr, np.ndarray) else attr) == value


@LAYOUTS
@pytest.mark.parametrize("value", [[1j], object(), {1j: 2}], ids=["complex list", "object", "key"])
def test_an_attribute_that_nothing_holds_is_refused_by_name(tmp_path: Path, layout: Any, value: Any) -> None:
    ds = xr.Dataset({"x": ("t", np.zeros(3), {"wave": value})})
    with pytest.raises(TypeError, match=r"attribute 'wave' of variable 'x' is .*, which neither HDF5 nor JSON holds"):
        ds.td.to_h5(tmp_path / "a.h5", layout=layout)
    assert not (tmp_path / "a.h5").exists()
