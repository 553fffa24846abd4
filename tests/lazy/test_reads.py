"""What a read of the lazy tensordict costs and whom it belongs to, and tensordict's operations on it."""

import copy
import warnings

import dask
import numpy as np
import pytest
import tensordict
import torch
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensordict import LazyStackedTensorDict, TensorDict, lazy_stack
from torch.utils import _pytree as pytree
from zarr.storage import LocalStore

import xarray_tensordict
from persistent_samples import CountingStore, flat_td, grid_ds, grid_of, needs_0_15
from xarray_tensordict import open_persistent
from xarray_tensordict.lazy.persistent import persistent_from_dataset
from xarray_tensordict.testing import assert_same_tensordict

# --- what is read, and what it belongs to --------------------------------------------------------------------------


def test_what_was_read_is_the_callers_own(flat):
    td = flat_td()
    for _ in range(2):
        for read in (
            lambda: flat["obs"],
            lambda: flat.get_at("obs", slice(None)),
            lambda: flat[:]["obs"],
            lambda: flat[[0, 1, 2, 3, 4, 5]]["obs"],
            lambda: flat.to_tensordict()["obs"],
            lambda: dict(flat.items())["obs"],
            lambda: flat.clone()["obs"],
        ):
            tensor = read()
            assert torch.equal(tensor, td["obs"])
            tensor.zero_()
        flat[1]["obs"].fill_(9)
        flat["next"]["obs"].add_(1)
    assert_same_tensordict(flat, td)
    flat.lock_()
    flat["obs"].zero_()
    next(iter(flat.values(include_nested=True, leaves_only=True))).zero_()
    assert_same_tensordict(flat, td)


def test_no_read_changes_a_dataset_in_memory(grid):
    ds = grid_of(grid_ds())
    ptd = persistent_from_dataset(ds)
    before = ds.copy(deep=True)
    for key in ptd.keys(include_nested=True, leaves_only=True):
        ptd[key].zero_()
        ptd.get_at(key, slice(0, 2)).zero_()
        ptd[:2][key].zero_()
        ptd.get_at(key, 0).zero_()
    ptd.to_tensordict().zero_()
    ptd.unbatched.zero_()
    xr.testing.assert_identical(ds, before)


def test_broadcast_entries_can_be_written_to_element_by_element(grid):
    for tensor in (grid["weight"], grid[1:]["weight"], grid[[0, 1]]["weight"], grid.get_at("weight", slice(0, 2))):
        tensor[0, 0] = 77
        assert (tensor == 77).sum() == 1


def test_a_chunked_array_that_dask_shares_is_copied():
    values = np.arange(4.0)
    ptd = persistent_from_dataset(xr.Dataset({"x": ("t", dask.array.from_array(values, chunks=4))}))
    ptd["x"].zero_()
    assert values.tolist() == [0, 1, 2, 3]


@pytest.fixture
def counting(tmp_path):
    td = TensorDict({"x": torch.arange(40.0).view(8, 5), "n": {"y": torch.arange(8)}}, [8], names=["t"])
    td.to_zarr(tmp_path / "counted.zarr", chunks=1)
    return CountingStore(LocalStore(tmp_path / "counted.zarr"))


READS = {
    "open": (lambda p: None, []),
    "repr": (repr, []),
    "html": (lambda p: p._repr_html_(), []),
    "keys": (lambda p: list(p.keys(include_nested=True, leaves_only=True)), []),
    "slice": (lambda p: p[2:5][::2], []),
    "shape": (lambda p: (p.get_item_shape("x"), p.entry_class("x"), len(p), p.numel(), p.batch_size), []),
    "clone(False)": (lambda p: p.clone(False), []),
    "to(device)": (lambda p: p.to("cpu"), []),
    "lock": (lambda p: p.lock_(), []),
    "empty": (lambda p: p.empty(recurse=True), []),
    "memmap_like": (lambda p: p.memmap_like(), []),
    "int": (lambda p: p[3], ["n/y/c/3", "x/c/3/0"]),
    "list": (lambda p: p[[6, 1, 6]], ["n/y/c/1", "n/y/c/6", "x/c/1/0", "x/c/6/0"]),
    "get_at int": (lambda p: p.get_at("x", 3), ["x/c/3/0"]),
    "get_at list": (lambda p: p.get_at("x", [7, 0]), ["x/c/0/0", "x/c/7/0"]),
    "get_at mask": (lambda p: p.get_at("x", torch.arange(8) > 6), ["x/c/7/0"]),
    "get_at nested": (lambda p: p.get_at(("n", "y"), slice(2, 3)), ["n/y/c/2"]),
    "get_at features": (lambda p: p.get_at("x", (2, slice(0, 1))), ["x/c/2/0"]),
    "one of a view": (lambda p: p[4:]["n"].get_at("y", 1), ["n/y/c/5"]),
}


@pytest.mark.parametrize(("read", "chunks"), READS.values(), ids=READS.keys())
def test_only_what_is_asked_for_is_read(counting, read, chunks):
    ptd = open_persistent(counting)
    counting.chunks.clear()
    read(ptd)
    assert sorted(counting.chunks) == chunks
    ptd.close()


def test_what_the_dataset_has_loaded_is_not_read_again(counting):
    with xr.open_dataset(counting, engine="tensordict") as ds:
        ds["x"].load()
        counting.chunks.clear()
        ptd = ds.td.to_persistent()
        assert torch.equal(ptd["x"], torch.arange(40.0).view(8, 5))
        assert counting.chunks == []


def test_dask_computes_once_for_all_entries(tmp_path):
    ds = grid_of(grid_ds()).chunk()
    computed = []

    def scheduler(graph, keys, **kwargs):
        computed.append(keys)
        return dask.get(graph, keys, **kwargs)

    ptd = persistent_from_dataset(ds)
    with dask.config.set(scheduler=scheduler):
        ptd.to_tensordict()
        ptd[[0, 2]]
    assert len(computed) == 2


OF_TWO_STORES = pytest.mark.parametrize("flat", ["chunked-zarr", "dask"], indirect=True)
"""What tensordict makes of tensors that were read does not depend on where they were read."""


# --- tensordict's operations ---------------------------------------------------------------------------------------


@OF_TWO_STORES
def test_locking_reaches_nested_groups(flat):
    flat.lock_()
    assert flat.is_locked
    assert flat["next"].is_locked
    assert flat["next", "info"].is_locked
    assert torch.equal(flat["obs"], flat_td()["obs"])
    flat.unlock_()
    assert not flat["next", "info"].is_locked
    with flat.lock_():
        assert flat["next"].is_locked
    assert not flat.is_locked


@OF_TWO_STORES
@needs_0_15("writes no rows of text")
def test_cloning(flat, tmp_path):
    assert type(flat.clone()) is TensorDict
    assert_same_tensordict(flat.clone(), flat_td())
    lazy = flat.clone(False)
    assert type(lazy) is type(flat)
    assert lazy is not flat
    lazy.names = ["other"]
    assert flat.names == ["time"]
    assert_same_tensordict(flat.copy(), flat_td())
    assert_same_tensordict(copy.copy(flat), flat_td())
    written = flat.clone(newfile=tmp_path / "clone.zarr")
    assert_same_tensordict(written.to_tensordict(), flat_td())
    written["action"] = torch.zeros(6, dtype=torch.int16)
    assert_same_tensordict(flat, flat_td())


@OF_TWO_STORES
@needs_0_15("forgets the names of what it maps")
@pytest.mark.parametrize("threads", [0, 2])
def test_memory_maps(flat, tmp_path, threads):
    mapped = flat.memmap(tmp_path / "map", num_threads=threads)
    assert type(mapped) is TensorDict
    assert mapped.is_memmap()
    assert_same_tensordict(mapped, flat_td())
    loaded = TensorDict.load_memmap(tmp_path / "map", allow_pickle=True)
    assert type(loaded) is TensorDict
    assert_same_tensordict(loaded, flat_td())
    for meta in (tmp_path / "map").rglob("meta.json"):
        assert "Persistent" not in meta.read_text()
    assert_same_tensordict(flat.memmap(), flat_td())


@OF_TWO_STORES
@needs_0_15("forgets the names of what it saves")
def test_saving_and_loading(flat, tmp_path):
    flat.save(tmp_path / "saved")
    assert_same_tensordict(tensordict.load(tmp_path / "saved"), flat_td())
    flat.save(tmp_path / "saved.tdz", archive=True)
    assert_same_tensordict(tensordict.load(tmp_path / "saved.tdz"), flat_td())
    like = flat.memmap_like(tmp_path / "like")
    assert like["obs"].shape == (6, 3, 4)
    assert like["obs"].dtype == torch.float32


@OF_TWO_STORES
@needs_0_15("writes no rows of text")
@pytest.mark.filterwarnings("ignore:The h5 backend of PersistentTensorDict reads the string:FutureWarning")
def test_writing_with_tensordict(flat, tmp_path):
    assert_same_tensordict(flat.to_zarr(tmp_path / "new.zarr").to_tensordict(), flat_td())
    written = flat.to_h5(tmp_path / "new.h5")
    assert torch.equal(written["next", "obs"], flat_td()["next", "obs"])
    assert torch.equal(flat[1:4].to_zarr(tmp_path / "part.zarr")["obs"], flat_td()["obs"][1:4])
    assert type(flat).from_zarr(tmp_path / "new.zarr").batch_size == flat.batch_size
    written.close()


@OF_TWO_STORES
def test_devices_and_dtypes(flat):
    moved = flat.to("cpu")
    assert flat.device is None
    assert moved.device == moved["next"].device == torch.device("cpu")
    assert type(moved) is type(flat)
    assert_same_tensordict(moved[1:3], flat_td()[1:3])
    assert flat.to("meta")["obs"].device.type == "meta"
    assert flat.to("meta")[[0]]["next", "obs"].device.type == "meta"
    assert flat.to("meta")[:2]["next"].get_at("obs", 0).device.type == "meta"
    cast = flat.to(torch.float64)
    assert type(cast) is TensorDict
    assert cast["next", "obs"].dtype == torch.float64


def test_the_device_argument(zarr_path):
    ptd = open_persistent(zarr_path, device="meta")
    assert ptd.device == torch.device("meta")
    assert ptd["obs"].device.type == ptd[[1]]["obs"].device.type == ptd.to_tensordict().device.type == "meta"
    assert ptd["next"].device.type == "meta"
    ptd.close()


def double(value):
    return value * 2 if isinstance(value, torch.Tensor) else value


OPERATIONS = {
    "apply": lambda td: td.apply(lambda x: x * 2),
    "named_apply": lambda td: td.named_apply(lambda name, x: x + len(name), nested_keys=True),
    "stack": lambda td: torch.stack([td, td]),
    "stack dim 1": lambda td: torch.stack([td, td], 1),
    "cat": lambda td: torch.cat([td, td]),
    "lazy stack": lambda td: lazy_stack([td, td]).to_tensordict(),
    "split": lambda td: torch.cat(td.split(4)),
    "split first": lambda td: td.split([2, 4])[0],
    "chunk": lambda td: td.chunk(3)[1],
    "unbind": lambda td: td.unbind(0)[3],
    "gather": lambda td: td.gather(0, torch.tensor([3, 0])),
    "masked_select": lambda td: td.masked_select(torch.arange(6) > 3),
    "add": lambda td: td.select_tensors() + 1 if hasattr(td, "select_tensors") else td + 1,
    "flatten_keys": lambda td: td.flatten_keys("."),
    "split_keys": lambda td: td.split_keys(["obs"])[0],
    "contiguous": lambda td: td.contiguous(),
    "expand": lambda td: td.expand(2, 6),
    "pytree": lambda td: pytree.tree_map(double, td),
    "to_dict": lambda td: TensorDict({"obs": td.to_dict()["obs"], "y": td.to_dict()["next"]["info"]["step"]}),
    "numpy": lambda td: TensorDict({"obs": torch.from_numpy(td.numpy()["obs"])}),
    "empty": lambda td: td.empty(),
    "dense": lambda td: td.to_tensordict().view(2, 3),
}
OF_TEXT = {"pytree", "numpy"}


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param(
            operation, id=name, marks=needs_0_15("cannot do that with rows of text") if name in OF_TEXT else ()
        )
        for name, operation in OPERATIONS.items()
    ],
)
@OF_TWO_STORES
def test_operations_give_what_they_give_in_memory(flat, operation):
    assert_same_tensordict(operation(flat), operation(flat_td()))


@OF_TWO_STORES
def test_a_lazy_stack_of_stores(flat):
    stack = LazyStackedTensorDict(flat, flat.clone(False))
    assert torch.equal(stack["obs"], torch.stack([flat_td()["obs"]] * 2))
    assert_same_tensordict(stack[1].to_tensordict(), flat_td())
    assert ("next", "obs") in set(stack.keys(include_nested=True, leaves_only=True))


@OF_TWO_STORES
def test_it_is_a_part_of_other_tensordicts(flat):
    held = TensorDict({"store": flat}, [6])
    assert torch.equal(held["store", "obs"], flat_td()["obs"])
    assert_same_tensordict(held[[0, 2]]["store"], flat_td()[[0, 2]])


@OF_TWO_STORES
def test_the_batch_size_can_be_made_to_fit(flat):
    with pytest.raises(RuntimeError, match="batch size and array size mismatch"):
        flat.batch_size = [3]
    with pytest.raises(RuntimeError, match="mismatch"):
        flat.batch_size = [6, 3]
    assert list(flat.batch_size) == [6]
    assert flat.names == ["time"]
    flat.batch_size = []
    assert list(flat.batch_size) == []
    assert flat.names == []
    assert flat.to_tensordict().batch_size == torch.Size([])
    with pytest.raises(IndexError):
        flat[0]


@OF_TWO_STORES
def test_names_can_be_changed_for_this_object(flat):
    flat.names = ["step"]
    assert flat["next"].names == ["step"]
    assert flat[1:3].names == flat[[0]].names == flat.to_tensordict().names == ["step"]
    assert flat[1:3]["next"].names == ["step"]
    assert flat[0].names == []


def test_the_repr_shows_entries_without_reading_them(flat):
    text = repr(flat)
    assert text.startswith("XarrayPersistentTensorDict(batch_size=[6], names=[time], fields={")
    for part in ("obs: f32[3,4]", "task: NonTensorStack", f"\n    store: {flat.file.source.description}"):
        assert part in text
    assert max(map(len, text.splitlines()[:-1])) <= 80
    assert "obs" in flat._repr_html_()
    assert "batch_size=[2]" in str(flat[2:4])


# --- any dtype, any order ---------------------------------------------------------------------------------------------

FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
CODED = ("bfloat16", *FLOAT8, "complex32")
PLAIN = ("bool", "uint8", "uint16", "int16", "uint32", "int64", "float16", "float32", "float64", "complex64")
STORES = ("raw.zarr", "chunked.zarr", "v2.zarr", "s.h5", "memmap", "archive.tdz")
ROWS = 7


@pytest.fixture(scope="module")
def dtypes_in_stores(tmp_path_factory):
    """The tensordict of all dtypes, and for each kind of store a lazy object and a Dataset of it."""
    folder = tmp_path_factory.mktemp("dtypes")
    bits = torch.from_numpy(np.random.default_rng(0).integers(0, 100, (ROWS, 2, 16), dtype=np.uint8))
    entries = {name: bits.contiguous().view(getattr(torch, name)) for name in PLAIN if name != "bool"}
    td = TensorDict({**entries, "bool": bits % 2 == 0}, [ROWS], names=["time"])
    for name in CODED:
        values = torch.arange(ROWS * 2.0).view(ROWS, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # complex32 is experimental
            td[name] = (values + 1j * values if name == "complex32" else values).to(getattr(torch, name))
    ds = xarray_tensordict.to_dataset(td)
    whole = dict.fromkeys(ds.dims, -1)
    ds.td.to_zarr(folder / "raw.zarr", chunks=whole, encoding={name: {"compressors": ()} for name in ds.data_vars})
    ds.td.to_zarr(folder / "chunked.zarr", chunks={**whole, "time": 3})
    ds.td.to_zarr(folder / "v2.zarr", chunks={**whole, "time": 3}, zarr_format=2)
    ds.td.to_h5(folder / "s.h5")
    for kind in ("memmap", "archive.tdz"):
        with pytest.warns(UserWarning, match="float8_.* cannot load again"):
            ds.td.to_memmap(folder / kind)
    opened = {
        kind: (open_persistent(folder / kind), xr.open_dataset(folder / kind, engine="tensordict")) for kind in STORES
    }
    return td, opened


def bits_of(tensor):
    return tensor.contiguous().view(torch.uint8) if tensor.dtype is not torch.bool else tensor


def have_bits(tensor, expected):
    """Whether a tensor has these bits; one without elements cannot be viewed as another dtype."""
    if not expected.numel():
        return not tensor.numel()
    return torch.equal(bits_of(tensor).reshape(expected.shape), expected)


numbers = st.integers(-ROWS, ROWS - 1)
lists = st.lists(numbers, max_size=2 * ROWS)
indices = st.one_of(
    numbers,
    st.slices(ROWS).filter(lambda part: part.step is None or part.step > 0),
    lists,
    lists.map(lambda found: torch.tensor(found, dtype=torch.long)),
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=4).map(torch.tensor),
    st.lists(st.booleans(), min_size=ROWS, max_size=ROWS).map(torch.tensor),
    st.permutations(range(ROWS)).map(np.array),
)


@pytest.mark.parametrize("kind", STORES)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(index=indices)
def test_rows_of_any_dtype_in_any_order_have_the_bits_that_were_written(kind, index, dtypes_in_stores):
    td, opened = dtypes_in_stores
    ptd, _ = opened[kind]
    rows = ptd[index].to_tensordict()
    for name in (*PLAIN, *CODED):
        # picked as codes: torch itself cannot index all of these dtypes
        expected = bits_of(td[name])[index]
        assert rows[name].dtype == td[name].dtype
        assert have_bits(rows[name], expected), name
        assert have_bits(ptd.get_at(name, index), expected), name


@pytest.mark.parametrize("kind", STORES)
def test_batches_of_any_dtype_have_the_bits_that_were_written(kind, dtypes_in_stores):
    td, opened = dtypes_in_stores
    ds = opened[kind][1].assign_coords(row=("time", np.arange(ROWS)))
    for options in ({}, {"window": {"time": 3}}, {"shuffle": True}, {"shuffle": "full", "window": {"time": 3}}):
        for batch in ds.td.batches(4, seed=0, **options):
            for name in (*PLAIN, *CODED):
                assert batch[name].dtype == td[name].dtype
                assert have_bits(batch[name], bits_of(td[name])[batch["row"]]), name


@pytest.mark.parametrize("kind", STORES)
def test_whole_entries_of_any_dtype_have_the_bits_that_were_written(kind, dtypes_in_stores, monkeypatch):
    td, opened = dtypes_in_stores
    ptd, ds = opened[kind]
    read = [ptd.to_tensordict(), ptd.clone(), ptd[1:6:2].to_tensordict(), ds.td.to_tensordict()]
    monkeypatch.setattr("xarray_tensordict.tensors.reading.BLOCK_BYTES", 8)  # as if they were large
    read += [ds.td.to_tensordict(), ds.td.to_tensordict(out=ds.td.to_tensordict().apply(torch.zeros_like))]
    for found in read:
        rows = slice(1, 6, 2) if len(found) == 3 else slice(None)
        for name in (*PLAIN, *CODED):
            assert found[name].dtype == td[name].dtype
            assert have_bits(found[name], bits_of(td[name])[rows]), name


def test_rows_in_the_opposite_order_are_asked_for_by_number(dtypes_in_stores):
    ptd, _ = dtypes_in_stores[1]["chunked.zarr"]
    with pytest.raises(ValueError, match="step must be greater than zero"):  # as torch says
        ptd[::-1]
    assert torch.equal(ptd[torch.arange(ROWS - 1, -1, -1)]["int64"], ptd["int64"].flip(0))
