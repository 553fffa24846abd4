"""Fixtures: a store of the corpus, and both libraries to it."""

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import pytest

import corpus
import s3_server
from clusters import local_cluster, process_pool, scheduler  # noqa: F401 - fixtures
from loading_samples import counted  # noqa: F401 - a fixture
from persistent_samples import flat, grid, zarr_path  # noqa: F401 - fixtures


def pytest_report_header() -> str:
    """The versions on which most depends: the tests run with several."""
    names = (
        "tensordict",
        "torchrl",
        "torch",
        "xarray",
        "dask",
        "zarr",
        "numcodecs",
        "h5py",
        "h5netcdf",
        "numpy",
        "pandas",
    )
    return ", ".join(f"{name} {version(name)}" for name in names)


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what was imported and collected: it is looked through in each full collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The path of the store that `corpus.of_case` names."""
    folder = tmp_path / "store"
    folder.mkdir()
    return corpus.build(request.param, folder)


@pytest.fixture
def open_both() -> Iterator[Callable[..., corpus.Both]]:
    """Open stores through both libraries; they are closed after the test."""
    with ExitStack() as opened:

        def open_and_close(path: object, **keywords: object) -> corpus.Both:
            both = corpus.open_in_both(path, **keywords)
            opened.callback(both.close)
            return both

        yield open_and_close


@pytest.fixture
def both(store: Path, open_both: Callable[..., corpus.Both]) -> corpus.Both:
    """The store in both libraries, opened without arguments. Both libraries agree has been checked."""
    return open_both(store)


@pytest.fixture(scope="session")
def s3_of_session() -> Iterator[s3_server.S3Server]:
    with s3_server.running() as server:
        yield server


@pytest.fixture
def s3(s3_of_session: s3_server.S3Server) -> s3_server.S3Server:
    """An S3 API on loopback; it remembers the requests of this test."""
    s3_of_session.requests.clear()
    return s3_of_session
