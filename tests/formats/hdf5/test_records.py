"""What tensordict and this package record in HDF5 files."""

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict

from hdf5_reading import left_out, root_of, tree_of, values
from persistent_samples import needs_0_15
from xarray_tensordict.core.model import RecordedBatch, StoredGroup
from xarray_tensordict.formats.hdf5.read import Hdf5Store

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.h5"


# What tensordict and this package record


@pytest.fixture
def written(path):
    def write(**entries: Any) -> dict[str, StoredGroup]:
        TensorDict(entries, [3]).to_h5(path).close()
        return tree_of(path)

    return write


def test_what_tensordict_writes(written):
    tree = written(
        a=torch.arange(12.0).reshape(3, 4),
        done=torch.tensor([True, False, True]),
        n=TensorDict({"b": torch.ones(3, 2)}, [3]),
        text=NonTensorData("hello", batch_size=[3]),
        flag=NonTensorData(True, batch_size=[3]),
        count=NonTensorData(5, batch_size=[3]),
        rate=NonTensorData(0.5, batch_size=[3]),
        raw=NonTensorData(b"\xff\x01", batch_size=[3]),
    )
    arrays = tree[""].arrays
    assert values(arrays["a"]).shape == (3, 4)
    assert arrays["done"].dtype == np.bool_
    assert tree[""].groups == ("n",)
    found = {name: values(array).item() for name, array in arrays.items() if array.shape == ()}
    assert found == {"text": "hello", "flag": True, "count": 5, "rate": 0.5, "raw": b"\xff\x01"}
    assert [type(found[name]) for name in ("text", "flag", "count", "rate", "raw")] == [str, bool, int, float, bytes]
    for name in found:
        assert arrays[name].role == "coord"
        assert arrays[name].dims == ()
        assert not set(arrays[name].attrs)
    assert all(array.raw for array in arrays.values())
    assert arrays["a"].role is None


@needs_0_15("writes no rows of text")
@pytest.mark.parametrize(
    "rows",
    [["a", "bø", ""], [b"a", b"b", b"c"], [b"a", b"bcd", b""], [True, False, True], [1, 2, 3], [0.5, 1.0, 2.0]],
    ids=repr,
)
def test_non_tensor_stacks_are_rows(written, rows):
    array = written(rows=NonTensorStack(*rows), x=torch.zeros(3))[""].arrays["rows"]
    assert array.shape == (3,)
    assert array.non_tensor
    assert array.role == "coord"
    assert values(array).tolist() == rows
    assert [type(row) for row in values(array).tolist()] == [type(row) for row in rows]


@needs_0_15("writes no rows of text")
def test_a_nested_stack(path):
    stack = LazyStackedTensorDict.lazy_stack([NonTensorStack("a", "b"), NonTensorStack("c", "d")])
    TensorDict({"rows": stack, "x": torch.zeros(2, 2)}, [2, 2]).to_h5(path).close()
    assert values(root_of(path).arrays["rows"]).tolist() == [["a", "b"], ["c", "d"]]


def test_an_opaque_array_that_is_no_stack_is_one_value(written):
    array = written(value=NonTensorData([1, 2, 3], batch_size=[3]), x=torch.zeros(3))[""].arrays["value"]
    assert array.shape == ()
    assert array.non_tensor
    assert values(array).item() == [1, 2, 3]


def test_the_batch_record(path):
    with h5py.File(path, "w") as file:
        file.attrs["__tensordict__"] = json.dumps({"batch_size": [3], "names": ["time"], "version": 1})
        file.create_group("n").attrs["__tensordict__"] = np.bytes_(b'{"batch_size": [3, 4], "version": 1}')
        file.create_group("plain")
        file["n/word"] = "text"
    tree = tree_of(path)
    assert tree[""].recorded == RecordedBatch((3,), ("time",))
    assert tree["n"].recorded == RecordedBatch((3, 4), None)
    assert tree["plain"].recorded is None
    assert tree[""].attrs == {}
    assert not tree["n"].arrays["word"].raw, "0-d arrays of a marked file are not raw"


def test_a_batch_record_that_cannot_be_read_is_an_error_that_names_store_and_group(path):
    with h5py.File(path, "w") as file:
        file.create_group("n").attrs["__tensordict__"] = '{"batch_size": [3], "version": 2}'
    store = Hdf5Store.open(path)
    with pytest.raises(ValueError, match=r"file\.h5', group '/n'.*version 2"):
        store.group(("n",))
    store.close()


def non_tensor(file: h5py.File, name: str, value: str, encoding: str = "json") -> None:
    file[name] = value
    file[name].attrs["__tensordict_non_tensor__"] = json.dumps({"encoding": encoding})


@pytest.mark.parametrize(
    "value", ["text", "", True, 3, -1.5, None, [1, "a"], {"lr": 0.1, "n": {"b": []}}, 2**70], ids=repr
)
def test_json_values(path, value):
    with h5py.File(path, "w") as file:
        non_tensor(file, "value", json.dumps(value))
    array = root_of(path).arrays["value"]
    assert array.shape == ()
    assert values(array).item() == value
    assert type(values(array).item()) is type(value)
    assert array.dtype.kind == {bool: "b", int: "i", float: "f"}.get(type(value), "O") or value == 2**70
    assert array.non_tensor
    assert array.role == "coord"
    again = pickle.loads(pickle.dumps(array))
    assert values(again).item() == value


def test_values_in_other_encodings_are_left_out(path):
    with h5py.File(path, "w") as file:
        non_tensor(file, "broken", "{")
        non_tensor(file, "unknown", "x", "yaml")
        non_tensor(file, "pickled", base64.b64encode(pickle.dumps({1, 2})).decode(), "pickle")
        file["bytes"] = np.frombuffer(pickle.dumps((3, 4)), np.uint8)
        file["bytes"].attrs["__tensordict_non_tensor__"] = '{"encoding": "pickle"}'
        file["odd"] = 1
        file["odd"].attrs["__tensordict_non_tensor__"] = "?"
    group = root_of(path)
    assert not group.arrays
    reasons = left_out(group)
    assert "cannot be read" in reasons["broken"]
    assert "'yaml'" in reasons["unknown"]
    assert "allow_pickle=True" in reasons["pickled"]
    assert "allow_pickle=True" in reasons["bytes"]
    assert "cannot be read" in reasons["odd"]
    arrays = root_of(path, allow_pickle=True).arrays
    assert values(arrays["pickled"]).item() == {1, 2}
    assert values(arrays["bytes"]).item() == (3, 4)


def test_the_record_of_this_package(path):
    with h5py.File(path, "w") as file:
        file["w"] = np.ones((3, 2), "f4")
        file["w"].attrs["__xarray_tensordict__"] = json.dumps(
            {"role": "coord", "torch_dtype": "bfloat16", "dims": ["time", None]}
        )
        file["words"] = ["a", "b"]
        file["words"].attrs["__xarray_tensordict__"] = '{"role": "data"}'
        file["bad"] = [1, 2]
        file["bad"].attrs["__xarray_tensordict__"] = '{"dims": ["a", "b"]}'
    group = root_of(path)
    w = group.arrays["w"]
    assert (w.role, w.dims, w.encoding["torch_dtype"], w.raw) == ("coord", ("time", None), "bfloat16", False)
    assert w.attrs == {}
    assert group.arrays["words"].role == "data"
    assert group.arrays["bad"].dims == (None,)
    assert "for shape [2]" in left_out(group)["bad"]
