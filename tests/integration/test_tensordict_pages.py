"""The lines of tensordict's pages about stores, run; and each store opened as a Dataset. What other tests hold is left out.

"Storing TensorDicts in zarr", "Saving TensorDict and tensorclass objects" (memory maps, archives, consolidated files),
and "Storing large heterogeneous data" with the reference of ``PersistentTensorDict``, ``to_h5`` and ``from_h5``. Sizes are
smaller here. Each test says what a reader of the page would expect of the Dataset.
"""

from typing import Any

import pytest
import tensordict
import torch
import xarray as xr
from tensordict import NonTensorData, PersistentTensorDict, TensorDict, TensorDictBase, tensorclass
from torch import nn

import xarray_tensordict
from xarray_tensordict.dataset.records import classes_of
from xarray_tensordict.testing import assert_same_tensordict


@tensorclass
class MyClass:
    data: torch.Tensor
    metadata: str


def expect(store: Any, variables: dict[str, tuple[Any, ...]], batch: dict[str, int], **keywords: Any) -> TensorDict:
    """Open a store through both libraries: `variables` are the dims by name, or ``("value", what)`` for a non-tensor."""
    with xr.open_dataset(store, engine="tensordict", **keywords) as ds:
        values = {name: found[1] for name, found in variables.items() if found[:1] == ("value",)}
        dims = {name: () if name in values else found for name, found in variables.items()}
        assert {name: variable.dims for name, variable in ds.variables.items()} == dims
        assert {name: ds[name].item() for name in values} == values
        assert dict(zip(ds.td.batch_dims, ds.td.batch_size, strict=True)) == batch
        td = ds.td.to_tensordict()
    persistent = xarray_tensordict.open_persistent(store, **keywords)
    assert_same_tensordict(td, persistent.to_tensordict())
    persistent.close()
    return td


# -- "Storing TensorDicts in zarr" -------------------------------------------------------------------------------------


@pytest.fixture
def td() -> TensorDict:
    return TensorDict(
        {
            "images": torch.randn(128, 3, 8, 8),
            "labels": torch.randint(10, (128,)),
            "meta": {"description": "a small dataset"},
        },
        batch_size=[128],
    )


DATASET = {
    "images": ("batch_0", "dim_3", "dim_8", "dim_8_1"),
    "labels": ("batch_0",),
    "meta/description": ("value", "a small dataset"),
}


def test_zarr_saving_loading_and_lazy_access(td, tmp_path):
    td_zarr = td.to_zarr(tmp_path / "dataset.zarr")
    assert_same_tensordict(td, expect(td_zarr, DATASET, {"batch_0": 128}))
    td_back = TensorDict.from_zarr(tmp_path / "dataset.zarr")
    assert td_back.batch_size == torch.Size([128])
    assert td_back["meta", "description"] == "a small dataset"
    assert_same_tensordict(td, expect(tmp_path / "dataset.zarr", DATASET, {"batch_0": 128}))
    persistent = xarray_tensordict.open_persistent(tmp_path / "dataset.zarr")
    for index in (3, slice(0, 16), torch.tensor([1, 17, 121])):
        assert torch.equal(td_back.get_at("images", index), persistent.get_at("images", index))
        assert torch.equal(td["images"][index], persistent.get_at("images", index))


# -- "Saving TensorDict and tensorclass objects" -----------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
def test_the_weights_of_a_model(tmp_path):
    model = nn.Transformer(8, 2, 1, 1, 8)
    weights = TensorDict.from_module(model)
    weights_disk = weights.memmap(tmp_path / "model", num_threads=4)
    new_weights = TensorDict.load_memmap(tmp_path / "model")
    assert (weights_disk == new_weights).all()
    with xr.open_dataset(tmp_path / "model", engine="tensordict") as ds:
        assert ds["encoder/layers/0/linear1/bias"].dims == ("dim_8",)
        assert ds.td.batch_dims == ()
        assert_same_tensordict(weights.detach(), ds.td.to_tensordict())
    weights.data.save(tmp_path / "model.tdz")
    sub = TensorDict.load_memmap(tmp_path / "model.tdz", subpath="encoder/layers")
    with xr.open_dataset(tmp_path / "model.tdz", engine="tensordict", group="encoder/layers") as ds:
        assert_same_tensordict(sub, ds.td.to_tensordict())


@pytest.mark.parametrize("lazy", [False, True])
def test_a_stack_and_a_tensorclass_in_one_folder(tmp_path, lazy):
    members = [TensorDict({"item": i}, batch_size=[]) for i in range(4)]
    stacked = tensordict.lazy_stack(members) if lazy else torch.stack(members)
    tc = MyClass(torch.randn(3), metadata="some text", batch_size=[])
    data = TensorDict({"td_list": stacked, "tensorclass": tc}, [])
    data.memmap_(tmp_path / "data")
    loaded = TensorDictBase.load_memmap(tmp_path / "data")
    assert (loaded == data).all()
    variables = {
        "td_list/item": ("batch_0",),
        "tensorclass/data": ("dim_3",),
        "tensorclass/metadata": ("value", "some text"),
    }
    assert_same_tensordict(loaded, expect(tmp_path / "data", variables, {}, nested=True))
    dt = xr.open_datatree(tmp_path / "data", engine="tensordict")
    assert dt["td_list"].td.batch_size == (4,)
    assert_same_tensordict(loaded, dt.td.to_tensordict())
    with xr.open_dataset(tmp_path / "data", engine="tensordict", group="tensorclass") as ds:
        assert classes_of(ds) == {(): f"{__name__}.MyClass"}
        assert ds.td.to_tensordict(cls=MyClass).metadata == "some text"


def test_an_archive_that_is_written_in_place(tmp_path):
    TensorDict({"a": torch.zeros(10)}, [10]).save(tmp_path / "data.tdz")
    td = TensorDict.load_memmap(tmp_path / "data.tdz", mode="r+")
    td["a"].add_(1)
    # its checksums are stale now
    assert expect(tmp_path / "data.tdz", {"a": ("batch_0",)}, {"batch_0": 10})["a"].sum() == 10
    tensordict.refresh_archive_checksums(tmp_path / "data.tdz")
    assert expect(tmp_path / "data.tdz", {"a": ("batch_0",)}, {"batch_0": 10})["a"].sum() == 10


# -- "Storing large heterogeneous data", PersistentTensorDict, to_h5, from_h5 ------------------------------------------


def test_an_hdf5_file_that_is_made_entry_by_entry(tmp_path):
    data = PersistentTensorDict(filename=tmp_path / "data.h5", batch_size=[3], mode="w")
    data["a", "b"] = torch.zeros(3, 4)
    data["a", "b"] += 1
    data["label"] = NonTensorData(data="cat", batch_size=[3])
    variables = {"a/b": ("batch_0", "dim_4"), "label": ("value", "cat")}
    assert expect(data, variables, {"batch_0": 3})["a", "b"].sum() == 12
    data.close()
    assert expect(tmp_path / "data.h5", variables, {"batch_0": 3})["a", "b"].sum() == 12
