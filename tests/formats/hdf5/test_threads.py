"""HDF5 is read by one thread at a time, whoever asks: threads, processes, and forks of a process that reads."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import corpus
from xarray_tensordict import open_persistent

ROWS = 400


@pytest.fixture(params=["chunked", "whole", "packed"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    ds = xr.Dataset(
        {
            "obs": (("time", "f"), expected_rows()),
            "next/obs": (("time", "f"), expected_rows() + 0.5),
            "text": ("time", np.array([f"row {row}" for row in range(ROWS)], object)),
        }
    )
    options: dict[str, Any] = (
        {"encoding": {"obs": {"zlib": True, "chunksizes": (7, 5)}}} if request.param == "chunked" else {}
    )
    if request.param == "packed":
        options = {"layout": "xarray", "encoding": {"obs": {"dtype": "int32", "scale_factor": 0.5, "_FillValue": -1}}}
    ds.td.to_h5(tmp_path / "rows.h5", **options)
    return tmp_path / "rows.h5"


def expected_rows() -> np.ndarray[Any, Any]:
    return np.arange(ROWS * 5).reshape(ROWS, 5) * 0.5


def wrong_rows(ptd: Any, seed: int, count: int = 8) -> int:
    """How many of some random selections do not hold what they should."""
    rng = np.random.default_rng(seed)
    wrong = 0
    for number in range(count):
        rows = np.sort(rng.choice(ROWS - 3, 5, replace=False))
        if number % 2:
            found = ptd[rows.tolist()]
        else:
            rows = np.arange(rows[0], rows[0] + 3)
            found = ptd[int(rows[0]) : int(rows[0]) + 3]
        wrong += not np.array_equal(found["obs"].numpy(), expected_rows()[rows])
        wrong += not np.array_equal(found["next", "obs"].numpy(), expected_rows()[rows] + 0.5)
        wrong += corpus.text(found["text"]) != [f"row {row}" for row in rows]
    return wrong


def wrong_rows_of(path: Path, seed: int) -> int:
    with open_persistent(path) as ptd:
        return wrong_rows(ptd, seed)


def test_many_threads_read_random_rows_of_one_open_file(path: Path) -> None:
    with open_persistent(path) as ptd, ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda seed: wrong_rows(ptd, seed), range(16))) == [0] * 16


def test_many_threads_open_and_read_the_file_each_for_itself(path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda seed: wrong_rows_of(path, seed), range(16))) == [0] * 16


def test_threads_read_while_another_file_is_written(path: Path, tmp_path: Path) -> None:
    with open_persistent(path) as ptd, ThreadPoolExecutor(5) as pool:
        found = [pool.submit(wrong_rows, ptd, seed) for seed in range(8)]
        for _ in range(3):
            xr.Dataset({"x": (("time", "f"), expected_rows())}).chunk(time=20).td.to_h5(tmp_path / "other.h5")
        assert [future.result() for future in found] == [0] * 8
    with xr.open_dataset(tmp_path / "other.h5", engine="tensordict") as other:
        np.testing.assert_array_equal(other["x"].values, expected_rows())


@pytest.mark.slow
def test_many_processes_read_the_file(path: Path) -> None:
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert list(pool.map(wrong_rows_of, [path] * 6, range(6))) == [0] * 6
