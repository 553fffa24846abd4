"""No two tasks write to one chunk or shard: any grid of dask on any grid of the store gives exact values, or is refused."""

import itertools
import shutil
import tempfile
from pathlib import Path

import dask
import dask.array
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpus import of_case
from written import content

SETTINGS = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def numbers(rows: int, columns: int = 2) -> np.ndarray:
    return np.arange(1, rows * columns + 1, dtype="f4").reshape(rows, columns)


@st.composite
def cuts(draw, size: int) -> tuple[int, ...]:
    """Chunks of dask, of any sizes."""
    borders = sorted(draw(st.sets(st.integers(1, max(size - 1, 1)), max_size=5)) - {size})
    edges = [0, *borders, size]
    return tuple(b - a for a, b in itertools.pairwise(edges))


@st.composite
def grids(draw) -> tuple[int, tuple[int, ...], int, int]:
    """The number of rows, the chunks of dask, the chunk and the shard of the store (0: none)."""
    rows = draw(st.integers(1, 24))
    chunk = draw(st.integers(1, 8))
    return rows, draw(cuts(rows)), chunk, chunk * draw(st.integers(0, 3))


def dataset(rows: int, parts: tuple[int, ...]) -> xr.Dataset:
    values = dask.array.from_array(numbers(rows), chunks=(parts, (1, 1)))
    return xr.Dataset({"x": (("t", "f"), values), "next/x": (("t", "f"), values + 100)})


def options(chunk: int, shard: int) -> dict:
    return {"chunks": {"t": chunk}, **({"shards": {"t": shard}} if shard else {})}


def assert_holds(path: Path, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(zarr.open_array(path / "x", mode="r")[...], expected)
    np.testing.assert_array_equal(zarr.open_array(path / "next" / "x", mode="r")[...], expected + 100)


@SETTINGS
@given(grids())
def test_any_grid_of_dask_fits_any_grid_of_a_new_store(grid):
    rows, parts, chunk, shard = grid
    with tempfile.TemporaryDirectory() as folder, dask.config.set(scheduler="threads", num_workers=4):
        path = Path(folder, "a.zarr")
        dataset(rows, parts).td.to_zarr(path, **options(chunk, shard))
        assert_holds(path, numbers(rows))
        array = zarr.open_array(path / "x", mode="r")
        assert array.chunks[0] == chunk
        assert (array.shards is None) == (shard == 0)
        assert shard >= rows or (array.shards or (0,))[0] == shard


@SETTINGS
@given(grids(), st.data())
def test_an_append_continues_a_chunk_that_is_not_full(grid, data):
    rows, _, chunk, shard = grid
    more = data.draw(st.integers(1, 20))
    parts = data.draw(cuts(more))
    whole = numbers(rows + more)
    with tempfile.TemporaryDirectory() as folder, dask.config.set(scheduler="threads", num_workers=4):
        path = Path(folder, "a.zarr")
        dataset(rows, (rows,)).td.to_zarr(path, **options(chunk, shard))
        added = dataset(rows + more, (rows, *parts)).isel(t=slice(rows, None))
        added.td.to_zarr(path, append_dim="t")
        assert_holds(path, whole)


@SETTINGS
@given(grids(), st.data())
def test_a_region_is_exact_or_refused_with_the_store_untouched(grid, data):
    rows, _, chunk, shard = grid
    start = data.draw(st.integers(0, rows - 1))
    stop = data.draw(st.integers(start + 1, rows))
    parts = data.draw(cuts(stop - start))
    with tempfile.TemporaryDirectory() as folder, dask.config.set(scheduler="threads", num_workers=4):
        path = Path(folder, "a.zarr")
        dataset(rows, (rows,)).td.to_zarr(path, **options(chunk, shard))
        size = (zarr.open_array(path / "x").shards or zarr.open_array(path / "x").chunks)[0]
        whole = start % size == 0 and (stop % size == 0 or stop == rows)
        before = content(path)
        part = dataset(stop - start, parts) * -1
        expected = numbers(rows)
        if whole:
            part.td.to_zarr(path, region={"t": slice(start, stop)})
        else:
            with pytest.raises(ValueError, match="cuts the chunks"):
                part.td.to_zarr(path, region={"t": slice(start, stop)})
            assert content(path) == before
            # one process that holds the values may write any part
            part.load().td.to_zarr(path, region={"t": slice(start, stop)})
        expected[start:stop] = -numbers(stop - start)
        np.testing.assert_array_equal(zarr.open_array(path / "x", mode="r")[...], expected)


def test_an_encoding_of_a_nested_variable_sets_its_grid(tmp_path):
    path = tmp_path / "a.zarr"
    dataset(12, (5, 7)).td.to_zarr(path, encoding={"next/x": {"chunks": (2, 1), "shards": (4, 2)}})
    array = zarr.open_array(path / "next" / "x", mode="r")
    assert (array.chunks, array.shards) == ((2, 1), (4, 2))
    assert_holds(path, numbers(12))
    # shards of the store that was opened go when other chunks are asked for
    with xr.open_dataset(path, engine="tensordict", chunks={}) as ds:
        assert ds["next/x"].chunks == ((4, 4, 4), (2,))
        ds.td.to_zarr(tmp_path / "b.zarr", encoding={"next/x": {"chunks": (3, 2)}})
    assert zarr.open_array(tmp_path / "b.zarr" / "next" / "x", mode="r").shards is None
    assert_holds(tmp_path / "b.zarr", numbers(12))


@of_case(49)
@pytest.mark.parametrize("keywords", [{"chunks": {"t": 4}}, {"chunks": {"t": 2}, "shards": {"t": 4}}])
@pytest.mark.parametrize("times", [8, pytest.param(300, marks=pytest.mark.slow)])
def test_threads_never_race_for_a_chunk_or_a_shard(both, tmp_path, keywords, times):
    ds = both.ds.chunk(t=3)
    expected = ds["x"].values
    with dask.config.set(scheduler="threads", num_workers=8):
        for _ in range(times):
            ds.td.to_zarr(tmp_path / "a.zarr", **keywords)
            np.testing.assert_array_equal(zarr.open_array(tmp_path / "a.zarr" / "x", mode="r")[...], expected)
            shutil.rmtree(tmp_path / "a.zarr")
