"""Every dataset of the tests, read and written in one thread, by threads, by processes and on a cluster: no bit differs."""

import warnings
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings

import corpus
import generated
import twins
from clusters import SCHEDULERS
from xarray_tensordict.testing import assert_same_tensordict

# what is left out of a store is told of elsewhere
pytestmark = [pytest.mark.faults, pytest.mark.filterwarnings("ignore::UserWarning")]


def stores(*names: str) -> list[Any]:
    """Makers of all stores of the corpus, or of some cases of it."""
    params = []
    for name in names or corpus.CASE_NAMES:
        params.append(pytest.param(corpus.cases.CASES[name], id=f"{name[:7]}-original"))
        params += [pytest.param(make, id=f"{name[:7]}-{form}") for form, make in twins.twins_of(name).items()]
    return params


SAMPLE = ("case_06_replay_buffer_zarr", "case_29_packed_int16", "case_31_cf_datetimes", "case_35_string_columns")

WRITERS: dict[str, Callable[[xr.Dataset, Path], Any]] = {
    "zarr": lambda ds, path: ds.td.to_zarr(path),
    "zarr v2, xarray": lambda ds, path: ds.td.to_zarr(path, zarr_format=2, layout="xarray"),
    "HDF5": lambda ds, path: ds.td.to_h5(path),
    "netCDF": lambda ds, path: ds.td.to_h5(path, layout="xarray"),
    "memmap": lambda ds, path: ds.td.to_memmap(path),
}


def outcome(write: Callable[[xr.Dataset, Path], Any], ds: xr.Dataset, path: Path) -> xr.Dataset | type[Exception]:
    """What is read after a write, or what it was refused with."""
    try:
        write(ds, path)
    except (TypeError, ValueError, NotImplementedError, OverflowError) as error:
        assert not path.exists()
        return type(error)
    with dask.config.set(scheduler="synchronous"), xr.open_dataset(path, engine="tensordict") as found:
        return found.load()


def assert_identical(one: xr.Dataset, other: xr.Dataset) -> None:
    """xarray cannot compare variables of one array per element: these are compared array by array."""
    ragged = [
        name
        for name, v in other.variables.items()
        if v.dtype.kind == "O" and any(isinstance(e, np.ndarray) for e in v.to_numpy().flat)
    ]
    for name in ragged:
        for first, second in zip(one[name].values.flat, other[name].values.flat, strict=True):
            np.testing.assert_array_equal(first, second, strict=True)
    xr.testing.assert_identical(one.drop_vars(ragged), other.drop_vars(ragged))


def check_same(expected: Any, found: Any) -> None:
    if isinstance(expected, type):
        assert found is expected
        return
    assert isinstance(found, xr.Dataset), f"refused with {found}"
    assert_identical(found, expected)
    assert found.td.batch_dims == expected.td.batch_dims
    for name, variable in expected.variables.items():
        assert found[name].dtype == variable.dtype or {found[name].dtype.kind, variable.dtype.kind} <= set("OTU"), name


def check(path: Path, folder: Path, scheduler: AbstractContextManager[Any], writers: dict[str, Any] = WRITERS) -> None:
    with warnings.catch_warnings():
        # zarr says of some dtypes that they are not in its specification
        warnings.simplefilter("ignore")
        with (
            xr.open_dataset(path, engine="tensordict") as eager,
            xr.open_dataset(path, engine="tensordict", chunks={}) as chunked,
            dask.config.set(scheduler="synchronous"),
        ):
            expected = {name: outcome(write, eager, folder / f"eager {name}") for name, write in writers.items()}
            with scheduler:
                assert_same_tensordict(eager.td.to_tensordict(), chunked.td.to_tensordict())
                assert_identical(chunked.compute(), eager.compute())
                for name, write in writers.items():
                    check_same(expected[name], outcome(write, chunked, folder / f"dask {name}"))


@pytest.mark.parametrize("scheduler", ["threads"], indirect=True)
@pytest.mark.parametrize("store", stores(*SAMPLE), indirect=True)
def test_threads_do_what_one_does(store: Path, tmp_path: Path, scheduler: AbstractContextManager[Any]) -> None:
    check(store, tmp_path, scheduler, {name: WRITERS[name] for name in ("zarr", "HDF5")})


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", SCHEDULERS, indirect=True)
@pytest.mark.parametrize("store", stores(), indirect=True)
def test_any_scheduler_does_what_one_thread_does_with_the_corpus(
    store: Path, tmp_path: Path, scheduler: AbstractContextManager[Any], request: pytest.FixtureRequest
) -> None:
    """Each store is written in another format on each scheduler, all formats by each: all pairs would take too long."""
    number = zlib.crc32(request.node.callspec.id.encode()) % len(WRITERS)
    name = list(WRITERS)[number]
    check(store, tmp_path, scheduler, {name: WRITERS[name]})


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", SCHEDULERS, indirect=True)
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(ds=generated.datasets())
def test_any_scheduler_does_what_one_thread_does_with_generated_datasets(
    tmp_path_factory: pytest.TempPathFactory, scheduler: AbstractContextManager[Any], ds: xr.Dataset
) -> None:
    folder = tmp_path_factory.mktemp("generated")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = {name: outcome(write, ds.load(), folder / f"eager {name}") for name, write in WRITERS.items()}
        chunked = ds.chunk(time=2)
        with scheduler:
            assert_same_tensordict(ds.td.to_tensordict(), chunked.td.to_tensordict())
            for name, write in WRITERS.items():
                check_same(expected[name], outcome(write, chunked, folder / f"dask {name}"))
