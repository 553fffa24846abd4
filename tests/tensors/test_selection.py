"""Indices of the lazy tensordict: the same rows as in memory, and no more read of a store than they need."""

import numpy as np
import pytest
import torch
import zarr
from tensordict import TensorDict
from zarr.storage import LocalStore

import xarray_tensordict  # noqa: F401 - registers ds.td
from persistent_samples import (
    GRIDS,
    STORES,
    CountingStore,
    flat_td,
    grid_ds,
    grid_of,
    make_grid,
    make_persistent,
    write_td,
)
from xarray_tensordict import open_persistent
from xarray_tensordict._compat.tensordict import IS_0_14
from xarray_tensordict.testing import assert_same_tensordict


@pytest.fixture(scope="module", params=STORES)
def flat(request, tmp_path_factory):
    """One for all tests: no index changes it."""
    ptd = make_persistent(request.param, tmp_path_factory.mktemp("flat"))
    yield ptd
    ptd.close()


@pytest.fixture(scope="module", params=GRIDS)
def grid(request, tmp_path_factory):
    ptd = make_grid(request.param, tmp_path_factory.mktemp("grid"))
    yield ptd
    ptd.close()


# --- indices -------------------------------------------------------------------------------------------------------

ROWS_OF_6 = {
    "int": 2,
    "negative int": -1,
    "numpy int": np.int64(3),
    "0-d tensor": torch.tensor(4),
    "list": [4, 0],
    "list with duplicates": [1, 1, 1],
    "list with negative numbers": [-1, 0, -6],
    "unsorted list": [5, 3, 4, 0],
    "list of bools": [True, False, False, True, False, False],
    "range": range(1, 6, 2),
    "tensor": torch.tensor([3, 1]),
    "tensor of int32": torch.tensor([0, 5], dtype=torch.int32),
    "2-d tensor": torch.tensor([[0, 1], [5, 4], [2, 2]]),
    "empty tensor": torch.tensor([], dtype=torch.long),
    "array": np.array([2, 5]),
    "array of uint16": np.array([2, 5], dtype="u2"),
    "mask": torch.tensor([True, False, True, False, False, True]),
    "mask of nothing": torch.zeros(6, dtype=torch.bool),
    "array mask": np.array([True, True, False, False, False, False]),
    "new dim": None,
    "new dim and int": (None, 2),
    "int and ellipsis": (2, ...),
    "ellipsis and tensor": (..., torch.tensor([1, 0])),
    "slice and new dim": (slice(1, 3), None),
    "tuple of one list": ([1, 2],),
}
SLICES_OF_6 = {
    "slice": slice(1, 4),
    "open slice": slice(None, 3),
    "negative slice": slice(-3, None),
    "stepped slice": slice(None, None, 2),
    "empty slice": slice(4, 2),
    "slice too long": slice(2, 100),
    "everything": slice(None),
    "tuple of a slice": (slice(0, 2),),
    "ellipsis": ...,
    "nothing": (),
    "slice and ellipsis": (slice(1, 2), ...),
}
ROWS_OF_4_BY_3 = {
    "int": 1,
    "two ints": (1, -1),
    "int and slice": (1, slice(0, 2)),
    "slice and int": (slice(1, 3), 2),
    "slice and list": (slice(None), [2, 0]),
    "list and int": ([3, 0, 0], 1),
    "int and list": (1, [2, 0]),
    "pairs": ([3, 0, 3], [2, 2, 0]),
    "pairs in a grid": (torch.tensor([[0], [3]]), torch.tensor([[0, 2]])),
    "mask of both": torch.arange(12).view(4, 3) % 5 == 0,
    "mask of nothing": torch.zeros(4, 3, dtype=torch.bool),
    "mask of the first": torch.tensor([True, False, False, True]),
    "mask of the second": (slice(None), torch.tensor([True, False, True])),
    "ellipsis and int": (..., 0),
    "new dim between": (slice(None), None, 1),
    "tensor of both": (torch.tensor([1, 2]), slice(0, 3, 2)),
}
SLICES_OF_4_BY_3 = {
    "slice": slice(1, 3),
    "two slices": (slice(1, 3), slice(None, None, 2)),
    "ellipsis": (..., slice(1, 2)),
}


NAMED_WRONG_BY_0_14 = [
    *(ROWS_OF_6[name] for name in ("2-d tensor", "empty tensor")),
    *(ROWS_OF_4_BY_3[name] for name in ("pairs", "pairs in a grid", "mask of both", "mask of nothing")),
    SLICES_OF_6["empty slice"],
]


def ids(table):
    return pytest.mark.parametrize("index", table.values(), ids=table.keys())


def named_wrong(index):
    """Whether tensordict 0.14 itself gives one name to several dims of the result, or none to no rows."""
    return IS_0_14 and any(index is wrong for wrong in NAMED_WRONG_BY_0_14)


def assert_rows(found, td, index, key):
    assert type(found) is TensorDict
    if named_wrong(index):
        picked = torch.arange(td.numel()).view(td.batch_size)[as_torch(index)]
        assert torch.equal(found[key], td[key].flatten(0, td.batch_dims - 1)[picked])
    else:
        assert_same_tensordict(found, td[as_torch(index)])


@ids(ROWS_OF_6)
def test_rows_by_number_are_loaded(flat, index):
    assert_rows(flat[index], flat_td(), index, ("next", "obs"))


@ids(SLICES_OF_6)
def test_a_slice_is_a_lazy_view(flat, index):
    found = flat[index]
    assert type(found) is type(flat)
    if not named_wrong(index):
        assert_same_tensordict(found.to_tensordict(), flat_td()[index])
        assert_same_tensordict(found, flat_td()[index])


@ids(ROWS_OF_4_BY_3)
def test_rows_of_two_batch_dims(grid, index):
    assert_rows(grid[index], grid_of(grid_ds()).td.to_tensordict(), index, "x")


@ids(SLICES_OF_4_BY_3)
def test_slices_of_two_batch_dims(grid, index):
    found = grid[index]
    assert type(found) is type(grid)
    assert_same_tensordict(found.to_tensordict(), grid_of(grid_ds()).td.to_tensordict()[index])


def as_torch(index):
    """The same index where tensordict or torch in memory do not take its form."""
    if isinstance(index, tuple):
        return tuple(as_torch(part) for part in index)
    return torch.as_tensor(index.astype("int64")) if isinstance(index, np.ndarray) and index.dtype == "u2" else index


@ids({**ROWS_OF_6, **SLICES_OF_6})
def test_get_at_reads_rows_of_one_tensor(flat, index):
    for key in ("obs", "action", "done", ("next", "obs"), ("next", "info", "step")):
        expected = flat_td()[key][as_torch((list(index),) if isinstance(index, (list, range)) else index)]
        found = flat.get_at(key, index)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


INTO_FEATURES = {
    "row and feature": (2, 1),
    "slices": (slice(1, 3), slice(None), slice(0, 4, 3)),
    "list of features": (slice(None), [2, 0]),
    "last feature": (..., -1),
    "points": ([0, 5, 5], [2, 0, 2], [3, 3, 0]),
    "mask of everything": torch.arange(72).view(6, 3, 4) % 7 == 0,
    "mask of features": (1, torch.arange(12).view(3, 4) > 8),
    "apart": ([0, 1], slice(None), [3, 2]),
    "new dim": (None, 0, None, [1, 1]),
}


@ids(INTO_FEATURES)
def test_get_at_reaches_into_features(flat, index):
    assert torch.equal(flat.get_at("obs", index), flat_td()["obs"][index])


@ids({**ROWS_OF_4_BY_3, **SLICES_OF_4_BY_3})
def test_get_at_of_batched_and_partial_entries(grid, index):
    td = grid_of(grid_ds()).td.to_tensordict()
    for key in ("x", "mask", "weight", "per_time", "time"):
        found, expected = grid.get_at(key, index), td[key][index]
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
        assert found.is_contiguous()


@ids({**ROWS_OF_4_BY_3, **SLICES_OF_4_BY_3})
def test_get_at_of_rows_of_text(grid, index):
    td = grid_of(grid_ds()).td.to_tensordict()
    picked = torch.arange(12).view(4, 3)[index]
    for key in ("label", "who"):
        texts = np.array(td.get(key).tolist(), dtype=object).reshape(-1)
        found = grid.get_at(key, index)
        assert tuple(found.batch_size) == tuple(picked.shape)
        assert (found.tolist() if picked.ndim else [found.data]) == np.atleast_1d(texts[picked.numpy()]).tolist()


@ids({**ROWS_OF_6, **SLICES_OF_6})
def test_get_at_of_one_value_and_of_groups(flat, index):
    batch = torch.zeros(6)[as_torch(index if isinstance(index, tuple) else (index,))].shape
    value = flat.get_at("robot", index)
    assert value.data == "panda"
    assert value.batch_size == batch
    if not named_wrong(index):
        assert_same_tensordict(flat.get_at("next", index), flat_td()["next"][as_torch(index)])


@ids({name: ROWS_OF_6[name] for name in ("int", "list", "unsorted list", "tensor", "mask")} | {"slice": slice(1, 4)})
def test_sub_tensordicts_read_through(flat, index):
    sub = flat._get_sub_tensordict(index if isinstance(index, (int, slice)) else torch.as_tensor(index))
    assert_same_tensordict(sub, flat_td()[index])
    assert_same_tensordict(sub.to_tensordict(), flat_td()[index])


WRONG = {
    "too large": (6, IndexError),
    "too small": (-7, IndexError),
    "in a list": ([0, 6], IndexError),
    "in an array": (np.array([-7]), IndexError),
    "mask too short": (torch.ones(5, dtype=torch.bool), IndexError),
    "mask of two dims": (torch.ones(6, 2, dtype=torch.bool), IndexError),
    "floats": (torch.tensor([0.5]), IndexError),
    "a float": (1.5, IndexError),
    "negative step": (slice(None, None, -1), ValueError),
    "zero step": (slice(None, None, 0), ValueError),
    "numpy bool": (np.bool_(True), IndexError),
    "two ellipses": ((..., ...), IndexError),
    "array of text": (np.array(["a"]), IndexError),
}


@pytest.mark.parametrize(("index", "error"), WRONG.values(), ids=WRONG.keys())
def test_what_is_no_index_raises_as_torch_does(flat, index, error):
    with pytest.raises(error):
        flat[index]
    with pytest.raises(error):
        flat.get_at("action", index)
    with pytest.raises(error):
        flat.get_at("task", index)


def test_an_index_of_too_many_dims_raises(flat):
    with pytest.raises(IndexError, match="too many"):
        flat[0, 0]
    with pytest.raises(IndexError, match="too many"):
        flat.get_at("action", (0, 0))


def test_a_view_of_a_view_of_a_view(flat):
    td = flat_td()
    assert_same_tensordict(flat[1:][::2][1:][0], td[1:][::2][1:][0])
    assert torch.equal(flat[2:5].get_at("obs", [2, 0]), td[2:5]["obs"][[2, 0]])
    assert_same_tensordict(flat[1:]["next"][::2].to_tensordict(), td[1:]["next"][::2])


def test_nested_groups_with_more_batch_dims(tmp_path):
    td = TensorDict(
        {
            "x": torch.arange(4.0),
            "sub": TensorDict({"y": torch.arange(24).view(4, 3, 2)}, [4, 3], names=["t", "agent"]),
        },
        [4],
        names=["t"],
    )
    write_td(td, tmp_path / "td.zarr")
    ptd = open_persistent(tmp_path / "td.zarr")
    assert list(ptd["sub"].batch_size) == [4, 3]
    assert ptd["sub"].names == ["t", "agent"]
    assert_same_tensordict(ptd, td)
    for index in (0, [1, 3], slice(1, 3), torch.tensor([True, False, True, False]), None, (..., [0])):
        assert_same_tensordict(ptd[index], td[index])
    assert_same_tensordict(ptd["sub"][:, 1], td["sub"][:, 1])
    if not IS_0_14:  # it gives the one dim both names
        assert_same_tensordict(ptd["sub"][[0, 1], [2, 2]], td["sub"][[0, 1], [2, 2]])
    ptd.close()


def test_points_of_a_large_grid_are_read_alone(tmp_path):
    array = np.arange(12 * 12).reshape(12, 12)
    zarr.create_array(str(tmp_path / "g.zarr" / "x"), data=array, chunks=(1, 1), dimension_names=("a", "b"))
    zarr.open_group(str(tmp_path / "g.zarr"), mode="a")
    store = CountingStore(LocalStore(tmp_path / "g.zarr"))
    ptd = open_persistent(store, batch_dims=["a", "b"])
    store.chunks.clear()
    points = (torch.arange(0, 12, 2), torch.arange(11, 0, -2))
    assert torch.equal(ptd[points]["x"], torch.from_numpy(array)[points])
    assert len(store.chunks) == 6
