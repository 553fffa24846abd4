"""The rows of many lazy arrays as one lazy array: the same as numpy's own joining, and read only where they are asked for."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from xarray.backends.common import BackendArray
from xarray.core import indexing

from xarray_tensordict.dataset.episodes import JoinedRows, RepeatedRow, is_joinable, joined_variable
from xarray_tensordict.formats.identity import place_of, sources_of


class Counted(BackendArray):
    """A lazy array that notes what was read of it."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values
        self.shape, self.dtype = values.shape, values.dtype
        self.reads: list[Any] = []

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> Any:
        self.reads.append(key)
        return indexing.NumpyIndexingAdapter(self.values).oindex[indexing.OuterIndexer(key)]


def parts_of(lengths: list[int], dtype: Any = "i8") -> list[np.ndarray[Any, Any]]:
    stops = np.cumsum(lengths)
    values = np.arange(int(stops[-1]) * 3).reshape(-1, 3).astype(dtype)
    return np.split(values, stops[:-1])


def variable_of(data: Any) -> xr.Variable:
    return xr.Variable(("row", "f"), indexing.LazilyIndexedArray(data))


LENGTHS = st.lists(st.integers(0, 4), min_size=1, max_size=6).filter(lambda lengths: sum(lengths) > 0)


def slices_of(size: int) -> st.SearchStrategy[slice]:
    """Slices that xarray takes apart: it fails for an empty one with a negative step."""
    return st.slices(size).filter(lambda found: len(range(size)[found]) > 0 or (found.step or 1) > 0)


@st.composite
def selections(draw: st.DrawFn) -> tuple[list[int], Any]:
    lengths = draw(LENGTHS)
    size = sum(lengths)
    row = st.integers(-size, size - 1)
    rows = draw(st.one_of(row, slices_of(size), st.lists(row, max_size=8).map(lambda found: np.array(found, int))))
    column = draw(st.one_of(st.integers(-3, 2), slices_of(3), st.just(np.array([2, 0]))))
    return lengths, (rows, column)


@settings(deadline=None)
@given(selections())
def test_any_selection_is_that_of_the_joined_values(drawn):
    lengths, key = drawn
    parts = parts_of(lengths)
    expected = xr.Variable(("row", "f"), np.concatenate(parts))[key]
    found = variable_of(JoinedRows([Counted(part) for part in parts], np.dtype("i8")))[key]
    np.testing.assert_array_equal(found.values, expected.values)
    assert (found.dims, found.shape, found.dtype) == (expected.dims, expected.shape, expected.dtype)


def test_only_the_parts_that_hold_the_rows_are_read_each_once():
    parts = [Counted(part) for part in parts_of([3, 0, 2, 4])]
    joined = variable_of(JoinedRows(parts, np.dtype("i8")))
    assert joined[[8, 3, 4, 8]].values[:, 0].tolist() == [24, 9, 12, 24]
    assert [len(part.reads) for part in parts] == [0, 0, 1, 1]
    assert joined[2:4].values[:, 0].tolist() == [6, 9]
    assert [len(part.reads) for part in parts] == [1, 0, 2, 1]


@pytest.mark.parametrize("row", [9, [0, 9]])
def test_a_row_behind_the_last_is_an_error(row):
    joined = JoinedRows([Counted(part) for part in parts_of([3, 2, 4])], np.dtype("i8"))
    with pytest.raises(IndexError, match="out of bounds for axis 0 with size 9"):
        joined[indexing.OuterIndexer((row if isinstance(row, int) else np.array(row), slice(None)))]


@pytest.mark.parametrize("value", ["text", "", ["a", "list"], {"a": 1}, None, 2.5, np.datetime64(3, "s")], ids=repr)
def test_one_value_is_repeated_as_it_is(value):
    held = np.empty((), object if not isinstance(value, (float, np.datetime64)) else np.asarray(value).dtype)
    held[()] = value
    for data in (held, indexing.LazilyIndexedArray(indexing.NumpyIndexingAdapter(held))):
        repeated = xr.Variable("row", indexing.LazilyIndexedArray(RepeatedRow(data, 4)))
        assert repeated.dtype == held.dtype
        assert repeated.values.tolist() == [held.item()] * 4
        assert repeated[1:3].values.tolist() == [held.item()] * 2
        assert repeated[[3, 0, 3]].values.tolist() == [held.item()] * 3


def test_an_array_is_repeated_without_reading_more_than_is_asked_for():
    inner = Counted(np.arange(6).reshape(2, 3))
    repeated = xr.Variable(("row", "a", "b"), indexing.LazilyIndexedArray(RepeatedRow(inner, 5)))
    np.testing.assert_array_equal(repeated[1:4, 1, [2, 0]].values, [[5, 3]] * 3)
    assert [key[0] for key in inner.reads] == [1]


def test_a_variable_is_one_array_of_dask_with_a_chunk_for_each_part():
    parts = [variable_of(Counted(part)) for part in parts_of([3, 2, 4])]
    for number, part in enumerate(parts):
        part.attrs, part.encoding = {"unit": "m", "number": number}, {"of": number}
    joined = joined_variable(parts, "row")
    assert joined.chunks == ((3, 2, 4), (3,))
    assert (joined.attrs, joined.encoding) == ({"unit": "m"}, {"of": 0})
    np.testing.assert_array_equal(joined.values, np.arange(27).reshape(9, 3))
    assert len(dict(joined.data.__dask_graph__())) == 4  # the array, and one task for each chunk
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(joined)).values, joined.values)


def test_a_long_part_has_several_chunks():
    import dask

    parts = [xr.Variable(("row", "f"), np.zeros((length, 2))) for length in (40, 10)]
    with dask.config.set({"array.chunk-size": "320B"}):
        joined = joined_variable(parts, "row")
    assert joined.chunks == ((20, 20, 10), (2,))


def test_strings_of_different_lengths_are_not_cut():
    parts = [xr.Variable("row", np.array(words)) for words in (["a", "b"], ["longer"])]
    joined = joined_variable(parts, "row")
    assert joined.dtype == np.dtype("<U6")
    assert joined.values.tolist() == ["a", "b", "longer"]


def test_what_is_in_memory_stays_its_owners():
    values = np.zeros((3, 2))
    joined = joined_variable([xr.Variable(("row", "f"), values)], "row")
    joined.compute().values[...] = 1
    assert not values.any()


def test_arrays_of_dask_and_of_other_libraries_are_left_to_xarray():
    values = xr.Variable("row", np.zeros(3))
    assert is_joinable(values)
    assert not is_joinable(values.chunk())
    assert not is_joinable(xr.Variable("row", pd.Categorical(["a", "b"])))


@pytest.mark.parametrize("suffix", [".zarr", ".h5"])
def test_episodes_are_the_same_however_they_are_opened(tmp_path: Path, suffix: str) -> None:
    def demo(number: int) -> xr.Dataset:
        length = number + 2
        values = np.arange(length) + 10.0 * number
        data = {"obs": (("time", "f"), values[:, None] + [0.25, 0.5]), "when": ("time", values.astype("M8[s]"))}
        coords = {"time": values, "label": ("f", ["a", "b"]), "word": ("time", [f"w{value}" for value in values])}
        return xr.Dataset({**data, "score": values.max(), "task": f"task {number}"}, coords=coords)

    dt = xr.DataTree.from_dict({f"/demo_{number}": demo(number) for number in range(4)})
    path = tmp_path / f"demos{suffix}"
    dt.td.to_zarr(path) if suffix == ".zarr" else dt.td.to_h5(path)
    with (
        xr.open_datatree(path, engine="tensordict") as lazy,
        xr.open_datatree(path, engine="tensordict", chunks={}) as chunked,
    ):
        found, expected = lazy.td.concat("time"), chunked.td.concat("time")
        assert list(found.variables) == list(expected.variables)
        assert set(found.xindexes) == set(expected.xindexes)
        for name, variable in found.variables.items():
            assert "time" not in variable.dims or variable.chunks == expected.variables[name].chunks, name
            assert variable.dtype == expected.variables[name].dtype, name
        xr.testing.assert_identical(found.load(), expected.load())
        again = pickle.loads(pickle.dumps(lazy.td.concat("time")))
        xr.testing.assert_identical(again.load(), found)


def test_the_stores_behind_it_are_found(tmp_path: Path) -> None:
    dt = xr.DataTree.from_dict({f"/demo_{n}": xr.Dataset({"x": ("time", np.arange(n + 2.0))}) for n in range(3)})
    dt.td.to_zarr(tmp_path / "demos.zarr")
    with xr.open_datatree(tmp_path / "demos.zarr", engine="tensordict") as opened:
        joined = opened.td.concat("time")
        places = set(sources_of(joined["x"].variable))
    assert places == {place_of(tmp_path / "demos.zarr" / f"demo_{n}" / "x") for n in range(3)}
