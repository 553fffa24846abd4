"""The measuring instrument: it passes what is the same and nothing else, and names the first difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import (
    LazyStackedTensorDict,
    MemoryMappedTensor,
    MetaData,
    NonTensorData,
    NonTensorStack,
    PersistentTensorDict,
    TensorClass,
    TensorDict,
    UnbatchedTensor,
    lazy_stack,
)

from xarray_tensordict.testing import assert_same_tensordict


class Sample(TensorClass):
    x: torch.Tensor
    label: str
    extra: Any = None


OBS = torch.arange(12.0).reshape(4, 3)


def nested(*names: str, **changes: torch.Tensor) -> TensorDict:
    return TensorDict({"obs": torch.ones(4, 2, 5), **changes}, [4, 2][: len(names)], names=list(names))


def make(**changes: Any) -> TensorDict:
    entries: dict[str, Any] = {
        "obs": OBS,
        "done": torch.tensor([False, False, True, False]),
        "next": nested("time", "cell"),
        "word": NonTensorStack("a", "b", "c", "d"),
        "robot": NonTensorData("panda", batch_size=[4]),
    }
    entries.update(changes)
    return TensorDict({key: value for key, value in entries.items() if value is not None}, [4], names=["time"])


def differs(a: Any, b: Any, match: str) -> None:
    for first, second in ((a, b), (b, a)):
        with pytest.raises(AssertionError, match=r"tensordicts differ at .*expected .*found"):
            assert_same_tensordict(first, second)
    with pytest.raises(AssertionError, match=match):
        assert_same_tensordict(a, b)


# --- what is the same ---


def test_a_tensordict_is_the_same_as_itself_and_its_clone() -> None:
    td = make()
    assert_same_tensordict(td, td)
    assert_same_tensordict(td, td.clone())


def test_the_order_of_keys_and_empty_groups_do_not_count() -> None:
    a = TensorDict({"a": torch.zeros(2), "b": torch.ones(2)}, [2])
    b = TensorDict({"b": torch.ones(2), "e": {"f": {}}, "a": torch.zeros(2)}, [2])
    assert_same_tensordict(a, b)
    assert_same_tensordict(b, a)


def test_every_nan_equals_every_nan() -> None:
    quiet = torch.tensor([0x7FC00000], dtype=torch.int32).view(torch.float32)
    payload = torch.tensor([0x7FC12345], dtype=torch.int32).view(torch.float32)
    negative = torch.tensor([-0x00400000], dtype=torch.int32).view(torch.float32)
    for other in (payload, negative):
        assert_same_tensordict(TensorDict({"x": quiet}), TensorDict({"x": other}))
    assert_same_tensordict(
        TensorDict({"x": torch.tensor([complex(1, float("nan"))])}),
        TensorDict({"x": torch.tensor([complex(1, float("nan"))])}),
    )
    assert_same_tensordict(TensorDict({"x": NonTensorData(float("nan"))}), TensorDict({"x": NonTensorData(np.nan)}))


def test_one_value_is_the_same_as_a_stack_of_equal_rows() -> None:
    one = make(robot=NonTensorData("panda", batch_size=[4]))
    stack = make(robot=NonTensorStack(*["panda"] * 4))
    meta = make(robot=MetaData("panda", batch_size=[4]))
    assert_same_tensordict(one, stack)
    assert_same_tensordict(stack, one)
    assert_same_tensordict(meta, stack)
    differs(one, make(robot=NonTensorStack("panda", "panda", "panda", "ur5")), r"'robot'\[3\]: expected 'panda'")


def test_classes_of_tensordicts_and_tensors_do_not_count(tmp_path: Path) -> None:
    td = make(word=None, robot=None)
    assert_same_tensordict(td, td.to_zarr(tmp_path / "x.zarr"))
    assert_same_tensordict(td, td.to_h5(tmp_path / "x.h5"))
    assert_same_tensordict(td, td.memmap(tmp_path / "memmap"))
    assert_same_tensordict(td.unbind(0)[0], lazy_stack(list(td.unbind(0)))[0])
    td = TensorDict({"x": torch.arange(6).reshape(2, 3), "n": {"w": NonTensorStack("a", "b")}}, [2])
    assert_same_tensordict(td, lazy_stack(list(td.unbind(0))))
    mapped = TensorDict({"x": MemoryMappedTensor.from_tensor(td["x"]), "n": {"w": NonTensorStack("a", "b")}}, [2])
    assert_same_tensordict(td, mapped)
    parameter = TensorDict({"x": torch.nn.Parameter(torch.ones(2))}, [2])
    assert_same_tensordict(parameter, TensorDict({"x": torch.ones(2)}, [2]))


def test_persistent_tensordicts_with_non_tensor_entries(tmp_path: Path) -> None:
    td = make(next=None)
    td.to_zarr(tmp_path / "x.zarr")
    persistent = TensorDict.from_zarr(tmp_path / "x.zarr")
    assert type(persistent) is PersistentTensorDict
    assert_same_tensordict(td, persistent)
    differs(
        make(next=None, word=NonTensorStack("a", "b", "c", "e")), persistent, r"'word'\[3\]: expected 'e'.*found 'd'"
    )


def test_tensorclasses() -> None:
    sample = Sample(x=torch.zeros(2), label="hello", batch_size=[2])
    assert_same_tensordict(sample, sample.clone())
    as_dict = TensorDict({"x": torch.zeros(2), "label": NonTensorData("hello", batch_size=[2])}, [2])
    assert_same_tensordict(sample, as_dict)
    differs(sample, Sample(x=torch.zeros(2), label="hallo", batch_size=[2]), r"'label'.*: expected 'hello'")
    differs(
        sample, Sample(x=torch.zeros(2), label="hello", extra="x", batch_size=[2]), r"'extra': expected no such key"
    )
    stacked = lazy_stack([Sample(x=torch.zeros(3), label=label, batch_size=[3]) for label in "ab"])
    same = TensorDict({"x": torch.zeros(2, 3), "label": NonTensorStack.from_list([["a"] * 3, ["b"] * 3])}, [2, 3])
    assert_same_tensordict(stacked, same)
    same["x"] = same["x"].double()
    differs(stacked, same, r"'x': dtype")


# --- near misses ---


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"obs": OBS.double()}, r"'obs': dtype: expected torch.float32, found torch.float64"),
        ({"obs": OBS.bfloat16()}, r"'obs': dtype"),
        ({"obs": OBS[..., None]}, r"'obs': shape: expected \(4, 3\), found \(4, 3, 1\)"),
        ({"obs": None}, r"'obs': expected a tensor, found no such key"),
        ({"zzz": torch.zeros(4)}, r"'zzz': expected no such key, found a tensor"),
        ({"done": torch.tensor([0, 0, 1, 0], dtype=torch.uint8)}, r"'done': dtype"),
        ({"done": torch.tensor([False, False, True, True])}, r"'done': element \[3\].*\(1 of 4 differ\)"),
        ({"word": NonTensorStack("a", "b", "c", "D")}, r"'word'\[3\]: expected 'd' \(str\), found 'D' \(str\)"),
        ({"word": NonTensorStack("a", "b", "c", b"d")}, r"'word'\[3\]: expected 'd' \(str\), found b'd' \(bytes\)"),
        ({"word": NonTensorStack("a", "b", "c", np.str_("d"))}, r"'word'\[3\]: .*\(str_\)"),
        ({"word": NonTensorStack("a", "b", "c", None)}, r"'word'\[3\]: .*None"),
        ({"word": NonTensorData(["a", "b", "c", "d"], batch_size=[4])}, r"'word'\[0\]"),
        ({"word": torch.zeros(4)}, r"'word': expected a non-tensor entry, found a tensor"),
        ({"robot": NonTensorData(b"panda", batch_size=[4])}, r"'robot': expected 'panda' \(str\)"),
        ({"next": torch.zeros(4)}, r"'next': expected a nested tensordict, found a tensor"),
        ({"next": TensorDict({}, [4])}, r"'next': expected a nested tensordict, found no such key"),
        ({"next": nested("time")}, r"'next': batch size: expected \[4, 2\], found \[4\]"),
        ({"next": nested("time", "x")}, r"'next': names: expected \['time', 'cell'\], found \['time', 'x'\]"),
        ({"next": nested("time", "cell", done=torch.ones(4, 2))}, r"'next/done': expected no such key"),
        (
            {"next": nested("time", "cell", obs=torch.ones(4, 2, 5).nextafter(torch.tensor(2.0)))},
            r"'next/obs': element \[0, 0, 0\].*\(40 of 40 differ\)",
        ),
    ],
)
def test_one_change_is_found_and_named(changes: dict[str, Any], match: str) -> None:
    differs(make(), make(**changes), match)


def test_names_and_batch_size_of_the_root() -> None:
    a = TensorDict({"x": torch.zeros(4, 2)}, [4], names=["time"])
    differs(a, TensorDict({"x": torch.zeros(4, 2)}, [4]), r"the root: names: expected \['time'\], found \[None\]")
    differs(a, TensorDict({"x": torch.zeros(4, 2)}, []), r"the root: batch size: expected \[4\], found \[\]")
    differs(a, TensorDict({"x": torch.zeros(4, 2)}, [4, 2], names=["time", "b"]), r"the root: batch size")


BIT_PAIRS = {
    "last bit of float64": (torch.ones(1, dtype=torch.float64), torch.tensor([1.0 + 2**-52], dtype=torch.float64)),
    "negative zero": (torch.tensor([0.0]), torch.tensor([-0.0])),
    "negative zero, bfloat16": (torch.tensor([0.0]).bfloat16(), torch.tensor([-0.0]).bfloat16()),
    "negative zero, imaginary": (torch.tensor([complex(1, 0.0)]), torch.tensor([complex(1, -0.0)])),
    "float16": (torch.tensor([1.0]).half(), torch.tensor([1.0009765625]).half()),
    "float8": (torch.tensor([1.0]).to(torch.float8_e4m3fn), torch.tensor([1.125]).to(torch.float8_e4m3fn)),
    "int64 beyond the mantissa": (torch.tensor([2**53]), torch.tensor([2**53 + 1])),
    "uint64": (torch.tensor([2**63], dtype=torch.uint64), torch.tensor([2**63 + 1], dtype=torch.uint64)),
    "nan against a number": (torch.tensor([float("nan")]), torch.tensor([0.0])),
    "inf": (torch.tensor([float("inf")]), torch.tensor([-float("inf")])),
    "complex nan on the other side": (torch.tensor([complex(1, np.nan)]), torch.tensor([complex(np.nan, 1)])),
    "0-d": (torch.tensor(1), torch.tensor(2)),
}


@pytest.mark.parametrize("case", BIT_PAIRS)
def test_the_last_bit_counts(case: str) -> None:
    a, b = BIT_PAIRS[case]
    assert_same_tensordict(TensorDict({"x": a}), TensorDict({"x": a.clone()}))
    differs(TensorDict({"x": a}), TensorDict({"x": b}), r"'x': (element|value)")


VALUE_PAIRS: dict[str, tuple[Any, Any]] = {
    "bool and int": (True, 1),
    "int and float": (1, 1.0),
    "str and bytes": ("a", b"a"),
    "None and str": (None, "None"),
    "nan and None": (float("nan"), None),
    "float": (1.0, 1.0 + 2**-52),
    "negative zero": (0.0, -0.0),
    "list and tuple": ([1, 2], (1, 2)),
    "lengths": ([1, 2], [1]),
    "deep": ({"a": [1, {"b": "x"}]}, {"a": [1, {"b": b"x"}]}),
    "keys": ({"a": 1}, {"b": 1}),
    "types of keys": ({1: "a"}, {True: "a"}),
    "sets": ({1}, {1.0}),
    "array dtype": (np.arange(2, dtype="i4"), np.arange(2, dtype="i8")),
    "array shape": (np.zeros((2, 1)), np.zeros(2)),
    "array values": (np.arange(2), np.arange(1, 3)),
    "array and list": (np.arange(2), [0, 1]),
    "array NaN": (np.array([np.nan, 1]), np.array([np.nan, 2])),
    "array negative zero": (np.array([0.0]), np.array([-0.0])),
    "object arrays": (np.array(["a", None], object), np.array([b"a", None], object)),
    "ragged arrays": (
        [np.arange(2, dtype="f4"), np.arange(3, dtype="f4")],
        [np.arange(2, dtype="f4"), np.arange(3, dtype="f8")],
    ),
    "dates": (np.datetime64("2000-01-01", "ns"), np.datetime64("2000-01-02", "ns")),
    "objects": (slice(1), slice(2)),
}


@pytest.mark.parametrize("case", VALUE_PAIRS)
def test_non_tensor_values_are_compared_with_their_types(case: str) -> None:
    a, b = VALUE_PAIRS[case]
    assert_same_tensordict(TensorDict({"x": NonTensorData(a)}), TensorDict({"x": NonTensorData(a)}))
    differs(TensorDict({"x": NonTensorData(a)}), TensorDict({"x": NonTensorData(b)}), r"'x'")
    stacks = [TensorDict({"x": torch.stack([NonTensorData("same"), NonTensorData(value)])}, [2]) for value in (a, b)]
    assert_same_tensordict(stacks[0], stacks[0].clone())
    differs(*stacks, r"'x'\[1\]")


def test_numbers_of_numpy_are_those_of_python() -> None:
    """An HDF5 file gives ``np.int64(3)`` where a zarr store gives 3."""
    a = TensorDict({"x": NonTensorData(np.int64(3)), "y": NonTensorData(np.bool_(True))})
    assert_same_tensordict(a, TensorDict({"x": NonTensorData(3), "y": NonTensorData(True)}))
    differs(a, TensorDict({"x": NonTensorData(3), "y": NonTensorData(1)}), r"'y'")


def test_a_value_for_an_empty_batch_still_counts() -> None:
    differs(
        TensorDict({"x": NonTensorData("a", batch_size=[0])}, [0]),
        TensorDict({"x": NonTensorData("b", batch_size=[0])}, [0]),
        r"'x'",
    )


def test_values_that_cannot_be_compared_are_not_the_same() -> None:
    class Rude:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no")

        __hash__ = None  # type: ignore[assignment]

    rude = Rude()
    assert_same_tensordict(TensorDict({"x": NonTensorData(rude)}), TensorDict({"x": NonTensorData(rude)}))
    differs(TensorDict({"x": NonTensorData(rude)}), TensorDict({"x": NonTensorData(Rude())}), r"'x'")


def test_unbatched_tensors_are_the_same_only_among_themselves() -> None:
    a = TensorDict({"u": UnbatchedTensor(torch.arange(4))}, [4])
    assert_same_tensordict(a, a.clone())
    differs(a, TensorDict({"u": torch.arange(4)}, [4]), r"'u': expected an unbatched tensor, found a tensor")
    differs(a, TensorDict({"u": UnbatchedTensor(torch.arange(1, 5))}, [4]), r"'u': element \[0\]")
    differs(a, TensorDict({"u": UnbatchedTensor(torch.arange(4).int())}, [4]), r"'u': dtype")


def ragged(*members: dict[str, Any]) -> LazyStackedTensorDict:
    stack = lazy_stack([TensorDict(member) for member in members])
    assert isinstance(stack, LazyStackedTensorDict)
    return stack


ZEROS, PAIR = {"x": torch.zeros(2)}, ragged({"x": torch.zeros(2)}, {"x": torch.zeros(3)})
HIDDEN = ragged(ZEROS, {**ZEROS, "hidden": torch.zeros(1)})
STACKED = TensorDict({"x": torch.zeros(2, 2)}, [2])


@pytest.mark.parametrize(
    ("a", "b", "match"),
    [
        (PAIR, ragged(ZEROS, {"x": torch.zeros(4)}), r"'\[1\]/x': shape"),
        (PAIR, ragged(ZEROS, {"x": torch.ones(3)}), r"'\[1\]/x': element"),
        (HIDDEN, STACKED, r"'\[1\]/hidden': expected a tensor, found no such key"),
        (ragged(ZEROS, {"x": torch.zeros(2, dtype=torch.int32)}), STACKED, r"'\[1\]/x': dtype: expected torch.int32"),
        (
            TensorDict({"n": PAIR}, [2]),
            TensorDict({"n": ragged(ZEROS, {"x": torch.ones(3)})}, [2]),
            r"'n/\[1\]/x': element \[0\]",
        ),
    ],
    ids=["shapes", "values", "a key that the stack hides", "a dtype that it promotes", "below the root"],
)
def test_ragged_lazy_stacks_are_compared_member_by_member(a: Any, b: Any, match: str) -> None:
    assert "hidden" not in list(a.keys())
    assert_same_tensordict(a, a.clone())
    differs(a, b, match)


def test_the_first_of_several_differences_is_named() -> None:
    a = TensorDict({"b": torch.zeros(1), "a": {"z": torch.zeros(1)}, "c": torch.zeros(1)})
    b = TensorDict({"c": torch.ones(1), "b": torch.ones(1), "a": {"z": torch.ones(1)}})
    differs(a, b, r"differ at 'a/z'")


def test_other_arguments_are_a_type_error() -> None:
    with pytest.raises(TypeError, match="expected two tensordicts, found a dict"):
        assert_same_tensordict(TensorDict({}), {})


def test_sparse_tensors() -> None:
    eye = torch.eye(2).to_sparse()
    assert_same_tensordict(TensorDict({"x": eye}), TensorDict({"x": eye.clone()}))
    differs(TensorDict({"x": eye}), TensorDict({"x": eye.to_dense()}), r"'x': layout")
    differs(TensorDict({"x": eye}), TensorDict({"x": 2 * eye}), r"'x': element \[0, 0\]")
