"""The schedulers of dask that tests run on; worker processes start once for a session."""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import dask
import pytest

SCHEDULERS = ("threads", "processes", "cluster")


@pytest.fixture(scope="session")
def local_cluster() -> Iterator[Any]:
    """The client of two worker processes."""
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        silence_logs=50,
    )
    with cluster, distributed.Client(cluster, set_as_default=False) as client:
        yield client


@pytest.fixture(scope="session")
def process_pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


class Again(AbstractContextManager[Any]):
    """A context that can be entered again, as for each example of hypothesis: those of dask hold once."""

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make = make

    def __enter__(self) -> Any:
        self._entered = self._make()
        return self._entered.__enter__()

    def __exit__(self, *error: object) -> bool | None:
        return self._entered.__exit__(*error)


@pytest.fixture
def scheduler(request: pytest.FixtureRequest) -> AbstractContextManager[Any]:
    """A context in which dask computes on the scheduler that the parameter names."""
    if request.param == "threads":
        return Again(lambda: dask.config.set(scheduler="threads", num_workers=4))
    if request.param == "processes":
        pool = request.getfixturevalue("process_pool")
        return Again(lambda: dask.config.set(scheduler="processes", pool=pool))
    return Again(request.getfixturevalue("local_cluster").as_current)
