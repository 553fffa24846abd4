"""Files of ``td.consolidate(filename)``: one file, no folder and no archive."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import xarray as xr
from hypothesis import HealthCheck, given, settings
from tensordict import NonTensorStack, TensorDict, lazy_stack, tensorclass

from memmap_samples import both_doors
from strategies import tensordicts
from xarray_tensordict.dataset.tensorclasses import classes_of
from xarray_tensordict.testing import assert_same_tensordict


@tensorclass
class Note:
    data: torch.Tensor
    text: str


pytestmark = pytest.mark.filterwarnings("ignore:the dataset has a variable 'td':UserWarning")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "storage.memmap"


def sample() -> TensorDict:
    return TensorDict(
        {
            "a": torch.arange(3, dtype=torch.uint8),
            "b": {"c": torch.randn(3, 2).to(torch.bfloat16), "empty": torch.zeros(3, 0), "z": torch.ones(3) * 2j},
            "text": "hello",
            "rows": NonTensorStack("x", "y", "z"),
            "note": Note(data=torch.ones(3), text="note", batch_size=[3]),
        },
        [3],
        names=["time"],
    )


def test_what_tensordict_consolidates(path):
    sample().consolidate(path)
    loaded = TensorDict.from_consolidated(path)
    assert_same_tensordict(loaded, both_doors(path))
    assert both_doors(path)["rows"].tolist() == ["x", "y", "z"]
    assert_same_tensordict(loaded["b"], both_doors(path, group="b"))
    with xr.open_dataset(path, engine="tensordict") as ds:
        assert ds.td.batch_dims == ("time",)
        assert classes_of(ds) == {("note",): f"{__name__}.Note"}


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(td=tensordicts())
@pytest.mark.filterwarnings("ignore:.*suffix:UserWarning", "ignore:.*the batch size .* is lost:UserWarning")
def test_generated_tensordicts(td, tmp_path_factory):
    folder = tmp_path_factory.mktemp("generated")
    try:
        td.consolidate(folder / "file")
        loaded = TensorDict.from_consolidated(folder / "file")
    except (RuntimeError, TypeError, KeyError, ValueError):
        return  # what tensordict itself cannot consolidate, or load again
    if not any(torch.is_tensor(value) for value in loaded.values(include_nested=True, leaves_only=True)):
        return
    found = both_doors(folder / "file")
    if found.batch_size == loaded.batch_size:
        assert_same_tensordict(loaded, found)


@pytest.mark.parametrize("dim", [0, 1])
def test_lazy_stacks(path, dim):
    stack = lazy_stack([TensorDict({"x": torch.full((2,), i), "s": f"row {i}"}, [2]) for i in range(3)], dim)
    stack.consolidate(path)
    assert_same_tensordict(stack, both_doors(path))


@pytest.mark.parametrize("rows", [(["a"], ["b"]), (["a", "b"], ["c", "d"]), (["a"],), (["a", "a"],)], ids=str)
def test_stacks_of_stacks_of_rows(path, rows):
    stack = NonTensorStack(*(NonTensorStack(*row) for row in rows))
    TensorDict({"s": stack, "x": torch.ones(stack.batch_size)}, stack.batch_size).consolidate(path)
    assert both_doors(path)["s"].tolist() == [list(row) for row in rows]


def test_a_selection_is_a_copy_and_a_tensor_without_a_copy_is_private(path):
    TensorDict({"x": torch.arange(40.0).view(10, 4), "y": torch.ones(10)}, [10]).consolidate(path)
    before = path.read_bytes()
    with xr.open_dataset(path, engine="tensordict", cache=False) as ds:
        assert ds["x"][3:5].values[:, 1].tolist() == [13, 17]
        td = ds.td.to_tensordict(copy=False)
        td["x"].zero_()
        td["y"].zero_()
        assert ds["y"].values.sum() == 10
        assert len(pickle.dumps(ds)) < 5_000
    assert path.read_bytes() == before


def test_a_nested_tensor_is_left_out_by_name(path):
    ragged: Any = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    TensorDict({"ragged": ragged, "x": torch.ones(2)}, [2]).consolidate(path)
    with pytest.warns(UserWarning, match="left out 'ragged': it is a nested tensor"):
        ds = xr.open_dataset(path, engine="tensordict")
    assert list(ds.variables) == ["x"]


def test_a_file_that_is_damaged(path):
    sample().consolidate(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with pytest.raises(ValueError, match=r"storage\.memmap: expected a zarr store, an HDF5 file, a memory-mapped tensordict"):
        xr.open_dataset(path, engine="tensordict")
    # the footer of another file
    footer = json.dumps({"cls": "TensorDict", "leaves": {"x": ["torch.int64", [5], 0, 40, 0]}}).encode()
    path.write_bytes(bytes(8) + footer + len(footer).to_bytes(8, "little"))
    with pytest.warns(UserWarning, match=r"left out 'x': its 40 bytes are not all in bytes 0 to 8 of the damaged file"):
        xr.open_dataset(path, engine="tensordict").close()


def test_a_file_that_becomes_shorter_after_opening(path):
    sample().consolidate(path)
    with xr.open_dataset(path, engine="tensordict", cache=False) as ds:
        path.write_bytes(path.read_bytes()[:10])
        with pytest.raises(ValueError, match=r"storage\.memmap: expected metadata, .* none in its 10 bytes"):
            ds["b/c"].load()
