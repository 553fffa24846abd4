"""How many files of the package a job passes through: a newcomer who follows one should not have to open many.

The budgets may be lowered, not raised.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xarray_tensordict
from xarray_tensordict import open_persistent

PACKAGE = str(Path(xarray_tensordict.__file__).parent)
BUDGETS = {
    "open_dataset": 24,
    "open_dataset and to_tensordict": 28,
    "to_zarr, a new store": 24,
    "to_zarr, rows appended": 28,
    "ptd[idx]": 9,
}


def files_entered(job: Callable[[], Any]) -> set[str]:
    """The files of the package whose functions a job calls, in any thread."""
    entered: set[str] = set()

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            entered.add(frame.f_code.co_filename.removeprefix(PACKAGE))

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        job()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return entered


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[[], Any]]:
    folder = tmp_path_factory.mktemp("stores")
    ds = xr.Dataset(
        {
            "x": (("time", "f"), np.zeros((64, 3), "f4")),
            "lat": ("f", np.arange(3.0)),
            "next/y": ("time", np.arange(64)),
        },
        coords={"time": np.arange(64)},
    )
    ds.td.to_zarr(folder / "read.zarr")
    ds.td.to_zarr(folder / "grows.zarr")
    time.sleep(0.1)  # what has just been written is looked at more closely
    ptd = open_persistent(folder / "read.zarr")
    ptd[[5, 1]]

    def opened() -> xr.Dataset:
        return xr.open_dataset(folder / "read.zarr", engine="tensordict")

    return {
        "open_dataset": opened,
        "open_dataset and to_tensordict": lambda: opened().td.to_tensordict(),
        "to_zarr, a new store": lambda: ds.td.to_zarr(folder / "new.zarr", mode="w"),
        "to_zarr, rows appended": lambda: ds.drop_vars("lat").td.to_zarr(folder / "grows.zarr", append_dim="time"),
        "ptd[idx]": lambda: ptd[[5, 1]],
    }


@pytest.mark.parametrize("job", BUDGETS)
def test_a_job_enters_no_more_files_than_its_budget(jobs: dict[str, Callable[[], Any]], job: str) -> None:
    entered = files_entered(jobs[job])
    assert len(entered) <= BUDGETS[job], sorted(entered)
