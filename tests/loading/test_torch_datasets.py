"""``ds.td.to_torch_dataset``: with torch's DataLoader, in this process and in workers of every kind."""

import itertools
import pickle

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch.utils.data import DataLoader, IterableDataset, Subset

import strategies
from loading_samples import numbered, rows_of
from persistent_samples import grid_ds, grid_of
from xarray_tensordict.loading.torch_datasets import collate
from xarray_tensordict.testing import assert_same_tensordict

KINDS = ["zarr", "h5"]


def store_of(kind, folder, rows=40, chunk=5):
    path = folder / f"n.{kind}"
    ds = numbered(rows, width=3, label=np.array([f"row {row}" for row in range(rows)], object))
    (ds.td.to_zarr if kind == "zarr" else ds.td.to_h5)(path, chunks={"time": chunk})
    return path


@pytest.fixture(params=KINDS)
def opened(request, tmp_path):
    with xr.open_dataset(store_of(request.param, tmp_path), engine="tensordict") as ds:
        yield ds


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


# --- single samples --------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(strategies.datasets(), st.data())
def test_samples_are_the_rows_of_to_tensordict(ds, data):
    if not ds.td.batch_dims:
        return
    td, rows = ds.td.to_tensordict(), ds.td.to_torch_dataset()
    count = td.batch_size[0]
    assert len(rows) == count
    picked = data.draw(st.lists(st.integers(-count, count - 1), min_size=1, max_size=6))
    assert_same_tensordict(td[picked], rows.__getitems__(picked))
    assert_same_tensordict(td[picked[0]], rows[picked[0]])
    for wrong in (count, -count - 1):
        with pytest.raises(IndexError, match=f"sample {wrong} of {count}"):
            rows[wrong]


def test_one_row_of_a_reversed_dataset_is_a_sample_like_any_other():
    times = np.arange(3).astype("M8[ns]")
    ds = xr.Dataset({"obs": (("time", "x"), np.arange(6.0).reshape(3, 2))}, coords={"time": times})
    backwards = ds.td.set_batch_dims("time").isel(time=slice(None, None, -1))
    samples = backwards.td.to_torch_dataset()
    assert [sample["obs"].tolist() for sample in (samples[0], samples[2])] == [[4.0, 5.0], [0.0, 1.0]]
    assert samples[0]["time"].item() == 2
    (one,) = backwards.isel(time=slice(0, 1)).td.batches(2)
    assert one["obs"].tolist() == backwards.isel(time=slice(0, 1)).td.to_tensordict()["obs"].tolist() == [[4.0, 5.0]]


def test_samples_may_be_windows():
    ds = numbered(10, episode=[0] * 6 + [1] * 4)
    rows = ds.td.to_torch_dataset(window={"time": 3}, within="episode")
    assert len(rows) == 6
    assert rows[4]["n"].tolist() == [6, 7, 8]
    assert rows[4].names == ["time"]
    assert rows.__getitems__([0, 5])["n"].tolist() == [[0, 1, 2], [7, 8, 9]]
    assert "6 windows of 3 rows along 'time'" in repr(rows)
    ds = grid_of(grid_ds())
    assert len(ds.td.to_torch_dataset(window={"member": 2})) == 8


def test_a_data_loader_reads_the_rows_of_a_batch_at_once(opened):
    td = opened.td.to_tensordict()
    rows = opened.td.to_torch_dataset()
    calls = []
    fetch = rows.__getitems__
    rows.__class__ = type(
        "Counted", (type(rows),), {"__getitems__": lambda self, found: calls.append(found) or fetch(found)}
    )
    loader = DataLoader(
        rows, batch_size=16, shuffle=True, collate_fn=rows.collate, generator=torch.Generator().manual_seed(0)
    )
    batches = list(loader)
    assert [batch.batch_size for batch in batches] == [torch.Size([16]), torch.Size([16]), torch.Size([8])]
    assert [batch["n"].tolist() for batch in batches] == calls
    assert sorted(flat(calls)) == list(range(40))
    for batch in batches:
        assert_same_tensordict(td[batch["n"].tolist()], batch)


def test_the_collate_takes_samples_one_by_one_too():
    rows = numbered(6).td.to_torch_dataset()
    assert collate([rows[0], rows[3]])["n"].tolist() == [0, 3]
    assert collate([rows[0], rows[3]]).batch_size == (2,)
    part = Subset(rows, [4, 2, 0])
    loader = DataLoader(part, batch_size=2, collate_fn=rows.collate)
    assert rows_of(loader) == [[4, 2], [0]]
    assert DataLoader(rows, batch_size=None, collate_fn=rows.collate).dataset[1]["n"] == 1
    assert pickle.loads(pickle.dumps(rows.collate)) is collate


def test_options_of_the_order_need_a_batch_size():
    with pytest.raises(TypeError, match="shuffle can be given with a batch_size only, which gives an IterableDataset"):
        numbered(4).td.to_torch_dataset(shuffle=True)
    for batch_size in (None, 2):
        with pytest.raises(TypeError, match=r"there is no option 'shufle'; there are: .*Did you mean 'shuffle'\?"):
            numbered(4).td.to_torch_dataset(batch_size, shufle=True)


def test_a_sample_has_a_number():
    data = numbered(4).td.to_torch_dataset()
    assert data[np.int64(2)]["n"] == 2
    for several in ([1.7], [True], ["1"], torch.tensor([0.0])):
        with pytest.raises(TypeError, match="expected the numbers of samples"):
            data.__getitems__(several)
    with pytest.raises(IndexError, match="sample 18446744073709551615 of"):
        data.__getitems__(np.array([2**64 - 1], "u8"))
    with pytest.raises(TypeError, match=r"got slice\(1, 3, None\); several at once: data.__getitems__"):
        data[1:3]


@pytest.mark.parametrize("kind", KINDS)
def test_a_pickle_of_a_dataset_holds_no_data(kind, tmp_path):
    sizes = []
    for rows in (100, 20_000):
        (tmp_path / f"{rows:05}").mkdir()
        with xr.open_dataset(store_of(kind, tmp_path / f"{rows:05}", rows, rows // 10), engine="tensordict") as opened:
            found = opened.td.to_torch_dataset(exclude=["label"])
            found[3]
            sizes.append(len(pickle.dumps(found)))
            assert pickle.loads(pickle.dumps(found))[7]["n"] == 7
    assert sizes[1] < sizes[0] + 200


# --- batches ---------------------------------------------------------------------------------------------------------


def loader_of(data, method=None, workers=2, **options):
    """A DataLoader over batches, or with ``batch_size=`` over samples; with a method with workers that start so."""
    workers = {"num_workers": workers, "multiprocessing_context": method} if method else {}
    return DataLoader(data, collate_fn=data.collate, **{"batch_size": None, **workers, **options})


def test_an_iterable_dataset_gives_the_batches_of_the_dataset(opened):
    data = opened.td.to_torch_dataset(16, shuffle=True, seed=0)
    assert isinstance(data, IterableDataset)
    assert len(data) == len(loader_of(data)) == 3
    expected = opened.td.batches(16, shuffle=True, seed=0)
    loader = loader_of(data)
    first, second = rows_of(loader), rows_of(loader)
    assert first == rows_of(expected)
    assert second == rows_of(expected)
    data.set_epoch(0)
    assert rows_of(loader) == first
    assert "3 batches of [16]" in repr(data)
    for batch in loader:
        assert isinstance(batch, TensorDict)
        assert batch.batch_dims == 1


@pytest.mark.filterwarnings("ignore:.*pin_memory:UserWarning")  # torch says where there is no accelerator to pin for
def test_a_loader_may_ask_for_pinned_memory(opened):
    for data, options in (
        (opened.td.to_torch_dataset(), {"batch_size": 16}),
        (opened.td.to_torch_dataset(16), {"batch_size": None}),
    ):
        batches = list(loader_of(data, pin_memory=True, **options))
        assert flat(batch["n"].tolist() for batch in batches) == list(range(40))
        assert {batch["n"].is_pinned() for batch in batches} == {torch.cuda.is_available()}
        assert batches[0]["label"] == [f"row {row}" for row in range(16)]


def check_workers(ds, method, *, persistent):
    """Single samples and batches through two workers; to start workers that are not forked takes seconds each time."""
    td = ds.td.to_tensordict()
    rows = ds.td.to_torch_dataset()
    batches = list(loader_of(rows, method, batch_size=16))
    assert [batch.batch_size for batch in batches] == [torch.Size([16]), torch.Size([16]), torch.Size([8])]
    assert_same_tensordict(td[:16], batches[0])
    assert_same_tensordict(td[32:], batches[2])
    data = ds.td.to_torch_dataset(6, shuffle=True, seed=0, buffer_size=10)
    loader = loader_of(data, method, persistent_workers=persistent)
    first, second = rows_of(loader), rows_of(loader)
    for epoch in (first, second):
        assert sorted(flat(epoch)) == list(range(40))
        assert len(epoch) == len(data)
    assert first != second


def test_workers_that_are_forked_share_out_the_batches(opened):
    check_workers(opened, "fork", persistent=False)


@pytest.mark.parametrize("opened", ["zarr"], indirect=True)
def test_unshuffled_batches_come_in_order_from_workers_too(opened):
    data = opened.td.to_torch_dataset(6)
    assert rows_of(loader_of(data, "fork")) == rows_of(opened.td.batches(6))


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_workers_that_start_anew_or_stay_share_out_the_batches(opened, method, persistent):
    check_workers(opened, method, persistent=persistent)


@pytest.mark.parametrize("opened", ["zarr"], indirect=True)
def test_an_epoch_can_be_chosen_whether_workers_stay_or_not(opened):
    for persistent in (False, True):
        data = opened.td.to_torch_dataset(6, shuffle=True, seed=0)
        loader = loader_of(data, "fork", persistent_workers=persistent)
        first, second = rows_of(loader), rows_of(loader)
        assert sorted(flat(second)) == list(range(40))
        data.set_epoch(0)
        assert rows_of(loader) == first
        assert rows_of(loader) == second != first


@pytest.mark.slow
def test_ranks_with_workers_share_out_the_rows(opened):
    found = []
    for rank in range(2):
        data = opened.td.to_torch_dataset(6, shuffle=True, seed=0, rank=rank, world_size=2, buffer_size=10)
        loader = loader_of(data, "fork")
        found.append([rows_of(loader), rows_of(loader)])
    for epoch in range(2):
        assert sorted(flat(found[0][epoch]) + flat(found[1][epoch])) == list(range(40))
        assert len(found[0][epoch]) == len(found[1][epoch])


def test_an_error_in_a_worker_names_the_variable(tmp_path):
    path = store_of("zarr", tmp_path)
    (chunk,) = (path / "x" / "c" / "4").iterdir()
    chunk.write_bytes(b"no such data")
    with xr.open_dataset(path, engine="tensordict") as ds:
        for data, size in ((ds.td.to_torch_dataset(), 8), (ds.td.to_torch_dataset(8), None)):
            with pytest.raises(Exception, match="the variable 'x'"):
                list(loader_of(data, "fork", 1, batch_size=size))


@pytest.mark.parametrize("opened", ["zarr"], indirect=True)
def test_leaving_a_loop_over_workers_early_hangs_nowhere(opened):
    data = opened.td.to_torch_dataset(2, shuffle=True, seed=0)
    loader = loader_of(data, "fork")
    for _ in range(2):
        for _batch in loader:
            break
    assert sorted(flat(rows_of(loader))) == list(range(40))
