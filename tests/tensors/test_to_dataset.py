"""From tensordicts of every class to Datasets and DataTrees, and back to what they were made from."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensordict import (
    MetaData,
    NonTensorData,
    NonTensorStack,
    PersistentTensorDict,
    TensorClass,
    TensorDict,
    UnbatchedTensor,
    lazy_stack,
)

from persistent_samples import needs_0_15
from xarray_tensordict._compat.tensordict import IS_0_14
from xarray_tensordict.dataset.records import read_record, with_record
from xarray_tensordict.tensors.reading import to_tensordict
from xarray_tensordict.tensors.to_dataset import to_dataset, to_datatree
from xarray_tensordict.testing import assert_same_tensordict


class Sample(TensorClass):
    x: torch.Tensor
    label: str


def td_of(entries: dict[str, Any], *size: int, names: list[str | None] | None = None) -> TensorDict:
    return TensorDict(entries, batch_size=list(size), names=names)


def dims_of(ds: xr.Dataset) -> dict[Any, tuple[Any, ...]]:
    return {name: variable.dims for name, variable in ds.variables.items()}


# --- names and keys ---


def test_nested_keys_become_paths() -> None:
    td = td_of({"obs": torch.ones(4, 3), "next": {"obs": torch.zeros(4, 3), "deep": {"r": torch.zeros(4)}}}, 4)
    assert to_dataset(td, dims={"next/o*": ("joint",)})["next/obs"].dims == ("batch_0", "joint")
    ds = to_dataset(td)
    assert list(ds.data_vars) == ["obs", "next/obs", "next/deep/r"]
    assert ds["next/obs"].dims == ds["obs"].dims == ("batch_0", "dim_3")
    assert ds.attrs == {}
    assert np.array_equal(ds["obs"], td["obs"].numpy())


def test_batch_dims_have_the_names_of_the_tensordict_or_a_number() -> None:
    td = td_of({"x": torch.zeros(4, 2, 5)}, 4, 2, names=["time", None])
    assert to_dataset(td)["x"].dims == ("time", "batch_1", "dim_5")
    assert to_dataset(td_of({"x": torch.zeros(4)}, 4))["x"].dims == ("batch_0",)


def test_nested_batch_dims_beyond_the_parents_keep_their_names() -> None:
    td = td_of({"x": torch.zeros(4), "n": td_of({"y": torch.zeros(4, 2, 3)}, 4, 2, names=["time", "agent"])}, 4)
    td.names = ["time"]
    ds = to_dataset(td)
    assert ds["n/y"].dims == ("time", "agent", "dim_3")
    assert_same_tensordict(td, to_tensordict(ds))
    td["n"].names = ["time", None]
    assert to_dataset(td)["n/y"].dims == ("time", "batch_1", "dim_3")


def test_the_parents_name_wins_on_shared_axes() -> None:
    n = td_of({"y": torch.zeros(4, 2)}, 4, names=["step"])
    td = td_of({"x": torch.zeros(4)}, 4)
    td._tensordict["n"] = n  # tensordict itself would rename it
    assert td.names == [None]
    assert to_dataset(td)["n/y"].dims == (*to_dataset(td)["x"].dims, "dim_2")


@pytest.mark.parametrize("key", [("a/b",), ("n", "a/b"), ("a/b", "c")])
def test_a_slash_in_a_key_is_an_error_that_names_it(key: tuple[str, ...]) -> None:
    td = TensorDict({}, [2])
    td[key] = torch.zeros(2)
    for convert in (to_dataset, to_datatree):
        with pytest.raises(ValueError, match="has a '/' in 'a/b'"):
            convert(td)


def test_the_batch_is_recorded_only_where_it_could_not_be_inferred() -> None:
    assert to_dataset(td_of({"x": torch.zeros(4, 3)}, 4, names=["time"])).attrs == {}
    hidden = td_of({"x": torch.zeros(4, 3, 2)}, 4, names=["x_pos"])
    ds = to_dataset(hidden, dims={"x": ("u", "v")})
    assert_same_tensordict(hidden, to_tensordict(ds))
    two = td_of({"x": torch.zeros(4, 3)}, 4, 3, names=["time", "lat"])
    ds = to_dataset(two)
    assert read_record(ds.attrs)[()].names == ("time", "lat")
    assert_same_tensordict(two, to_tensordict(ds))
    assert to_dataset(TensorDict({}, [4])).attrs == {}


def test_a_name_with_two_sizes_gets_a_suffix_and_a_warning() -> None:
    td = td_of({"a": torch.zeros(4, 3), "b": torch.zeros(4, 5), "c": torch.zeros(4, 5)}, 4)
    with pytest.warns(UserWarning, match="'b' has size 5 along 'x'.*'c' has size 5") as caught:
        ds = to_dataset(td, dims={"*": ("x",)})
    assert len(caught) == 1
    assert ds["a"].dims == ("batch_0", "x")
    assert ds["b"].dims == ds["c"].dims == ("batch_0", "x_5")


def test_a_name_twice_in_one_array_gets_a_suffix_and_a_warning() -> None:
    with pytest.warns(UserWarning, match="'a' has two axes called 'x'") as caught:
        ds = to_dataset(td_of({"a": torch.zeros(4, 3, 3)}, 4), dims={"a": ("x", "x")})
    assert len(caught) == 1
    assert ds["a"].dims == ("batch_0", "x", "x_1")


def test_ragged_groups_get_a_suffix_in_a_dataset_and_none_in_a_tree() -> None:
    td = TensorDict({"d0": td_of({"x": torch.zeros(4, 2)}, 4), "d1": td_of({"x": torch.zeros(5, 2)}, 5)})
    with pytest.warns(UserWarning, match="'d1/x' has size 5 along 'batch_0'"):
        ds = to_dataset(td)
    assert ds["d0/x"].dims == ("batch_0", "dim_2")
    assert ds["d1/x"].dims == ("batch_0_5", "dim_2")
    dt = to_datatree(td)
    assert dt["d0/x"].dims == dt["d1/x"].dims == ("batch_0", "dim_2")
    assert dt["d1/x"].sizes["batch_0"] == 5


def test_a_dim_called_like_an_entry_without_axes_gives_way() -> None:
    td = td_of({"time": NonTensorData("noon", batch_size=[4]), "x": torch.zeros(4)}, 4, names=["time"])
    with pytest.warns(UserWarning, match="'x' has a dim 'time'.*called 'time_1'"):
        ds = to_dataset(td)
    assert ds["x"].dims == ("time_1",)
    assert ds["time"].item() == "noon"
    with pytest.warns(UserWarning, match="'time_1'"):
        assert to_datatree(td)["x"].dims == ("time_1",)


# --- dims= ---


@pytest.mark.parametrize(
    ("dims", "expected"),
    [
        ({"images": ("channel", "y", "x")}, ("time", "channel", "y", "x")),
        ({"images": ("time", "channel", "y", "x")}, ("time", "channel", "y", "x")),
        ({"images": ["channel", "y", "x"]}, ("time", "channel", "y", "x")),
        ({("images",): ("channel", "y", "x")}, ("time", "channel", "y", "x")),
        ({"im*": ("channel", "y", "x")}, ("time", "channel", "y", "x")),
        ({"*": ("a", "b", "c"), "images": ("channel", "y", "x")}, ("time", "channel", "y", "x")),
        ({"*": ("a", "b", "c"), "im*": ("channel", "y", "x")}, ("time", "channel", "y", "x")),
        ({"images": (..., "x")}, ("time", "dim_3", "dim_8", "x")),
        ({"images": ("channel", ...)}, ("time", "channel", "dim_8", "dim_8_1")),
        ({"images": ("time", "channel", ...)}, ("time", "channel", "dim_8", "dim_8_1")),
        ({"images": ("channel", ..., "x")}, ("time", "channel", "dim_8", "x")),
    ],
)
def test_the_caller_names_axes(dims: dict[Any, Any], expected: tuple[str, ...]) -> None:
    td = td_of({"images": torch.zeros(4, 3, 8, 8)}, 4, names=["time"])
    assert to_dataset(td, dims=dims)["images"].dims == expected


def test_full_tuples_name_the_batch_of_the_whole_tensordict() -> None:
    td = td_of({"a": torch.zeros(4, 3), "n": {"b": torch.zeros(4)}}, 4)
    ds = to_dataset(td, dims={"a": ("episode", "x")})
    assert ds["a"].dims == ("episode", "x")
    assert ds["n/b"].dims == ("episode",)
    with pytest.raises(ValueError, match="'n/b' calls batch axis 0 'u', and it is called 't'"):
        to_dataset(td, dims={"a": ("t", "x"), "n/b": ("u",)})


@pytest.mark.parametrize(
    ("dims", "match"),
    [
        ({"a": ("x",)}, r"expected 2 names .*'a'.*or 3 for all"),
        ({"a": ("t", "x", "y", "z")}, r"'a'.*found 4"),
        ({"b": ("x", "y")}, r"no array is called 'b'.*\['a'\]"),
        ({"a": "x"}, r"'x', which needs template="),
        ({"a": ("t", ..., "x", "y", "z")}, "'a'"),
    ],
)
def test_dims_that_do_not_fit_are_errors(dims: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        to_dataset(td_of({"a": torch.zeros(4, 3, 2)}, 4), dims=dims)


# --- values ---


def test_memory_is_shared_where_numpy_can() -> None:
    x = torch.zeros(4, 3)
    ds = to_dataset(td_of({"x": x}, 4))
    ds["x"].values[1, 2] = 7
    assert x[1, 2] == 7


def test_tensors_that_numpy_cannot_hold_are_widened_and_come_back() -> None:
    td = td_of({"b": torch.randn(4, 2).bfloat16(), "f8": torch.randn(4).to(torch.float8_e5m2)}, 4)
    ds = to_dataset(td)
    assert ds["b"].dtype == ds["f8"].dtype == np.float32
    assert ds["b"].encoding == {"torch_dtype": "bfloat16"}
    assert_same_tensordict(td, to_tensordict(ds))
    assert "torch_dtype" not in (ds["b"] + 1).encoding


def test_tensors_that_no_array_holds_are_errors_that_name_the_entry() -> None:
    with pytest.raises(TypeError, match=r"'n/a' is a sparse tensor.*to_dense"):
        to_dataset(td_of({"n": {"a": torch.eye(4).to_sparse()}}, 4))


def test_unbatched_tensors_have_no_batch_dims() -> None:
    td = td_of(
        {"x": torch.zeros(4, 2), "lat": UnbatchedTensor(torch.arange(3.0)), "k": UnbatchedTensor(torch.tensor(1))}, 4
    )
    ds = to_dataset(td, dims={"lat": ("lat",)})
    assert ds["lat"].dims == ("lat",)
    assert ds["k"].dims == ()
    assert_same_tensordict(td, to_tensordict(ds, unbatched="keep"))


def test_a_leaf_called_like_its_dim_is_an_index_coordinate() -> None:
    ds = to_dataset(td_of({"time": torch.arange(4), "x": torch.zeros(4)}, 4, names=["time"]))
    assert list(ds.xindexes) == ["time"]
    assert ds.sel(time=2)["x"].shape == ()
    half = to_dataset(td_of({"time": torch.arange(4).half()}, 4, names=["time"]))  # pandas has no such index
    assert half["time"].dtype == np.float16
    assert list(half.xindexes) == []
    objects = to_dataset(td_of({"time": NonTensorStack([1], {}, None, "a")}, 4, names=["time"]))
    assert list(objects.xindexes) == []
    flat = to_dataset(td_of({"time": torch.zeros(4, 2)}, 4, names=["time"]))
    assert flat["time"].dims == ("time", "dim_2")


# --- non-tensor data ---

VALUES: list[Any] = [
    "text",
    "",
    "zero\0",
    b"bytes",
    b"zero\0",
    True,
    3,
    2**80,
    -1.5,
    1j,
    None,
    {"a": [1]},
    [1, "a"],
    (1, 2),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_one_value_is_a_scalar_coordinate_and_comes_back(value: Any) -> None:
    td = td_of({"x": torch.zeros(4), "k": NonTensorData(value, batch_size=[4])}, 4)
    ds = to_dataset(td)
    assert "k" in ds.coords
    assert ds["k"].dims == ()
    assert ds["k"].encoding["tensordict_non_tensor"] is True
    assert_same_tensordict(td, to_tensordict(ds))
    assert (ds + 1)["x"].values.tolist() == [1] * 4


def test_strings_and_numbers_of_one_value_are_plain_arrays() -> None:
    td = td_of({"s": NonTensorData("a"), "i": NonTensorData(3), "b": NonTensorData(True), "f": NonTensorData(0.5)})
    assert [to_dataset(td)[name].dtype.kind for name in "sibf"] == ["U", "i", "b", "f"]


ROWS: dict[str, tuple[list[Any], str]] = {
    "strings": (["a", "bc", "", "zero\0"], "O"),
    "bytes": ([b"a", b"bc", b"", b"zero\0"], "O"),
    "strings and None": (["a", None, "b", float("nan")], "O"),
    "ints": ([1, 2, 3, 4], "i"),
    "large ints": ([1, 2, 3, 2**80], "O"),
    "floats": ([1.0, 2.5, float("nan"), -0.0], "f"),
    "bools": ([True, False, True, True], "b"),
    "mixed numbers": ([1, 2.5, True, 4], "O"),
    "lists": ([[1], [1, 2], [], ["a"]], "O"),
    "lists of one length": ([["a", "b"]] * 3 + [["c", "d"]], "O"),
    "dicts": ([{"a": 1}, {}, {"b": None}, {}], "O"),
    "ragged arrays": ([np.arange(n, dtype="u1") for n in range(4)], "O"),
    "equal arrays": ([np.arange(2, dtype="u1") + n for n in range(4)], "O"),
}


@pytest.mark.parametrize("case", ROWS)
def test_rows_are_a_coordinate_along_the_batch_and_come_back(case: str) -> None:
    values, kind = ROWS[case]
    stack = torch.stack([NonTensorData(value) for value in values])
    td = td_of({"x": torch.zeros(4, 2), "r": stack}, 4, names=["time"])
    ds = to_dataset(td)
    assert "r" in ds.coords
    assert "r" not in ds.xindexes
    assert ds["r"].dims == ("time",)
    assert ds["r"].dtype.kind == kind
    assert_same_tensordict(td, to_tensordict(ds))


def test_rows_of_strings_are_python_strings() -> None:
    ds = to_dataset(td_of({"s": NonTensorStack("a", "b")}, 2))
    assert [type(value) for value in ds["s"].values] == [str, str]


def test_rows_of_two_batch_dims_and_of_none() -> None:
    td = td_of({"s": NonTensorStack.from_list([["a", "b", "c"], ["d", "e", "f"]])}, 2, 3)
    assert to_dataset(td)["s"].values.tolist() == [["a", "b", "c"], ["d", "e", "f"]]
    if not IS_0_14:  # which holds no stack without rows
        empty = td_of({"s": NonTensorStack(), "x": torch.zeros(0, 2)}, 0)
        assert to_dataset(empty)["s"].shape == (0,)
    assert to_dataset(td_of({"x": torch.zeros(0, 3)}, 0, 3))["x"].shape == (0, 3)


def test_metadata_entries_are_one_value() -> None:
    assert to_dataset(td_of({"m": MetaData("q", batch_size=[4])}, 4))["m"].item() == "q"


# --- classes of tensordicts ---


def plain() -> TensorDict:
    n = {"y": torch.arange(8).reshape(4, 2)}
    return td_of(
        {"x": torch.rand(4, 3), "n": n, "s": NonTensorStack(*"abcd"), "k": NonTensorData("v", batch_size=[4])}, 4
    )


@needs_0_15("writes no rows of text")
def test_persistent_tensordicts_of_both_formats(tmp_path: Path) -> None:
    td = plain()
    expected = to_dataset(td)
    td.to_zarr(tmp_path / "x.zarr")
    xr.testing.assert_identical(to_dataset(TensorDict.from_zarr(tmp_path / "x.zarr"))[list(expected)], expected)
    td.to_h5(tmp_path / "x.h5")
    h5 = PersistentTensorDict.from_h5(tmp_path / "x.h5", batch_size=[4])
    ds = to_dataset(h5)  # str, although tensordict reads bytes (with a warning)
    xr.testing.assert_identical(ds[list(expected)], expected)
    assert ds["k"].item() == "v"


def test_tensorclasses() -> None:
    ds = to_dataset(Sample(x=torch.zeros(4, 2), label="hello", batch_size=[4]))
    assert dims_of(ds) == {"x": ("batch_0", "dim_2"), "label": ()}
    assert ds["label"].item() == "hello"
    stacked = lazy_stack([Sample(x=torch.zeros(4), label=label, batch_size=[4]) for label in "ab"])
    assert to_dataset(stacked)["label"].values.tolist() == [["a"] * 4, ["b"] * 4]


def test_lazy_stacks_whose_members_are_alike() -> None:
    members = [td_of({"x": torch.full((3,), float(n)), "n": {"y": torch.zeros(2)}, "s": str(n)}) for n in range(3)]
    ds = to_dataset(lazy_stack(members))
    assert ds["x"].values[:, 0].tolist() == [0, 1, 2]
    assert ds["n/y"].dims == ("batch_0", "dim_2")
    assert ds["s"].values.tolist() == ["0", "1", "2"]
    inner = lazy_stack([td_of({"x": torch.zeros(4, 3)}, 4, names=["time"])] * 2, dim=1)
    assert to_dataset(inner)["x"].dims == ("time", "batch_1", "dim_3")


@pytest.mark.parametrize(
    ("other", "match"),
    [
        ({"a": torch.zeros(4)}, r"'a' has shape \(3,\) in member 0 and \(4,\) in member 1"),
        ({"a": torch.zeros(3).double()}, r"'a' has dtype torch.float32 in member 0 and torch.float64 in member 1"),
        ({"a": torch.zeros(3), "b": torch.zeros(1)}, r"'b' is in member 1 and not in member 0"),
        ({"a": {"c": torch.zeros(3)}}, r"'a' is a tensor in member 0 and a nested tensordict in member 1"),
        ({"a": "text"}, r"'a' is a tensor in member 0 and a non-tensor entry in member 1"),
    ],
)
def test_lazy_stacks_whose_members_differ_are_errors(other: dict[str, Any], match: str) -> None:
    stack = lazy_stack([td_of({"a": torch.zeros(3)}), td_of(other)])
    with pytest.raises(ValueError, match=match):
        to_dataset(stack)
    with pytest.raises(ValueError, match=match.replace("'a'", "'n/a'").replace("'b'", "'n/b'")):
        to_datatree(TensorDict({"n": stack}, [2]))


def test_nested_batch_sizes_that_differ_between_members() -> None:
    members = [td_of({"n": td_of({"a": torch.zeros(3)}, 3)}), td_of({"n": td_of({"a": torch.zeros(3)})})]
    with pytest.raises(ValueError, match=r"'n' has batch size \[3\] in member 0 and \[\] in member 1"):
        to_dataset(lazy_stack(members))


def test_anything_else_is_a_type_error() -> None:
    for wrong in ({"a": 1}, torch.zeros(2), NonTensorData("a")):
        with pytest.raises(TypeError, match="expected a tensordict"):
            to_dataset(wrong)
    with pytest.raises(TypeError, match="template: expected a Dataset"):
        to_dataset(plain(), template={})  # type: ignore[arg-type]


def test_empty_groups_vanish() -> None:
    assert list(to_dataset(TensorDict({"a": {"b": {}}, "x": torch.zeros(2)}, [2])).variables) == ["x"]
    assert [node.path for node in to_datatree(TensorDict({"a": {"b": {}}, "x": torch.zeros(2)}, [2])).subtree] == ["/"]


# --- coords= ---


def test_coords_are_added_with_indexes() -> None:
    td = td_of({"x": torch.zeros(3, 2)}, 3, names=["time"])
    days = pd.date_range("2000", periods=3)
    ds = to_dataset(td, coords={"time": days, "u": ("dim_2", ["a", "b"]), "v": xr.DataArray(2.0)})
    assert ds.sel(time="2000-01-02")["x"].shape == (2,)
    assert set(ds.coords) == {"time", "u", "v"}
    dt = to_datatree(td, coords={"time": days})
    assert list(dt.xindexes) == ["time"]
    with pytest.raises(ValueError, match="conflicting sizes"):
        to_dataset(td, coords={"time": days[:2]})


# --- template= ---


def weather() -> xr.Dataset:
    rng = np.random.default_rng(0)
    ds = xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), rng.random((4, 3, 5)).astype("f4"), {"units": "K"}),
            "late": (("lat", "time", "lon"), rng.random((3, 4, 5)), {"units": "m"}),
            "mask": (("lat", "lon"), rng.random((3, 5)) > 0.5, {"flag": "land"}),
            "next/t2m": (("time", "lat", "lon"), rng.random((4, 3, 5))),
            "word": (("time",), np.array(["a", "b", "c", "d"])),
            "words": (("time", "q"), np.array([["a", "bb"]] * 4)),
            "same": (("time",), np.array(["s"] * 4, object)),
            "labels": (("q",), np.array(["u", "v"])),
            "k": ((), 3.5),
            "title": ((), "text"),
            "since": (("time",), np.array([0, 1, "NaT", 3], "m8[s]")),
            "count": (("time",), np.arange(4, dtype=">i2")),
            "extended": (("time",), np.arange(4, dtype="longdouble")),
            "ancient": (("time",), np.array(["0100-01-01"] * 4, "M8[s]")),
        },
        coords={
            "time": pd.date_range("2000", periods=4),
            "lat": ("lat", [1.0, 2.0, 3.0], {"units": "degrees_north"}),
            "lon": np.arange(5),
            "height": 2.0,
            "reference": np.datetime64("2000-01-01", "s"),
            "station": ("lat", ["x", "y", "z"]),
            "step": ("time", [1, 2, 3, 4]),
        },
        attrs={"title": "weather"},
    )
    return with_record(ds, {(): ["time"]})


def quietly(ds: Any, batch_dims: Any = None, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about what a tensordict cannot hold
        return to_tensordict(ds, batch_dims, **options)


@pytest.mark.parametrize("unbatched", ["drop", "keep", "expand"])
def test_with_the_template_it_is_identical(unbatched: Any) -> None:
    ds = weather()
    td = quietly(ds, unbatched=unbatched)
    back = to_dataset(td, template=ds)
    xr.testing.assert_identical(back, ds)
    assert list(back.data_vars) == list(ds.data_vars)
    assert list(back.coords) == list(ds.coords)
    assert list(back.xindexes) == list(ds.xindexes)
    assert_same_tensordict(td, quietly(back, unbatched=unbatched))


def test_coordinates_that_were_not_converted_come_back() -> None:
    ds = weather()
    xr.testing.assert_identical(to_dataset(quietly(ds, coords=False), template=ds), ds)


def test_batched_variables_that_were_left_out_stay_out() -> None:
    ds = weather()
    back = to_dataset(quietly(ds).select("t2m"), template=ds)
    assert set(ds.data_vars) - set(back.data_vars) == {"late", "next/t2m", "word", "words", "since", "count", "same"}
    assert set(back.coords) == set(ds.coords)


def test_dates_of_another_calendar_come_back() -> None:
    ds = weather().rename({"t2m": "x"})
    dates = xr.date_range("2000", periods=4, calendar="noleap", use_cftime=True)
    ds["when"] = ("time", np.array(dates))
    ds["when"].encoding["calendar"] = "noleap"  # as decoding leaves it
    td = quietly(ds)
    assert "when" not in list(td.keys())
    xr.testing.assert_identical(to_dataset(td, template=ds), ds)


def test_a_part_of_the_batch_drops_what_lies_along_the_whole() -> None:
    ds = weather()
    back = to_dataset(quietly(ds)[1:3], template=ds)
    xr.testing.assert_identical(back, ds.isel(time=slice(1, 3)).drop_vars(["extended", "ancient"]))
    with pytest.warns(UserWarning, match=r"'step', 'time'.*of the template are left out"):
        back = to_dataset(quietly(ds, coords=False)[1:3], template=ds)
    assert "time" not in back.coords
    assert "step" not in back.coords
    assert "lat" in back.coords
    none = to_dataset(quietly(ds, unbatched="expand")[:0], template=ds)
    assert none.sizes["time"] == 0
    assert none["lat"].equals(ds["lat"])


def test_rows_in_another_order_take_their_coordinates_along() -> None:
    ds = weather()
    order = [2, 0, 3, 1]
    back = to_dataset(quietly(ds)[order], template=ds)
    stay = ["extended", "ancient"]
    xr.testing.assert_identical(back.drop_vars(stay), ds.isel(time=order).drop_vars(stay))


def test_partial_variables_are_collapsed_again_unless_they_were_changed() -> None:
    ds = xr.Dataset(
        {"x": (("member", "time", "u"), np.arange(24.0).reshape(2, 3, 4)), "p": (("time",), [1.0, np.nan, -0.0])},
        coords={
            "time": [10, 20, 30],
            "who": ("member", ["a", "b"]),
            "when": ("time", ["a", "b", "c"]),
            "note": ("time", np.array(["x", "y", "z"], object)),
        },
    )
    ds = with_record(ds, {(): ["member", "time"]})
    td = to_tensordict(ds)
    assert td["p"].shape == (2, 3)
    xr.testing.assert_identical(to_dataset(td, template=ds), ds)
    xr.testing.assert_identical(to_dataset(td.clone(), template=ds), ds)
    td = td.clone()
    td["p"][0, 2] = 0.0  # equal to -0.0, but not the same
    assert to_dataset(td, template=ds)["p"].dims == ("member", "time")


def test_an_index_of_levels_comes_back_while_its_levels_are_unchanged() -> None:
    index = pd.MultiIndex.from_product([["a", "b"], [1, 2]], names=["run", "step"])
    ds = xr.Dataset({"x": ("point", np.arange(4.0))}, coords=xr.Coordinates.from_pandas_multiindex(index, "point"))
    td = to_tensordict(ds)
    back = to_dataset(td, template=ds)
    xr.testing.assert_identical(back, ds)
    assert isinstance(back.indexes["point"], pd.MultiIndex)
    part = to_dataset(td[1:3], template=ds)
    assert part["run"].values.tolist() == ["a", "b"]
    assert list(part.xindexes) == []
    turned = to_dataset(td[[3, 2, 1, 0]], template=ds)
    assert turned["step"].values.tolist() == [2, 1, 2, 1]
    assert list(turned.xindexes) == []


def test_coordinates_without_index_stay_without() -> None:
    ds = xr.Dataset({"x": ("time", np.zeros(3))}, coords=xr.Coordinates({"time": ("time", [1, 2, 3])}, indexes={}))
    back = to_dataset(to_tensordict(ds), template=ds)
    assert list(back.xindexes) == []
    assert "time" in back.coords


def test_dates_come_back_in_the_unit_of_the_template_where_that_is_exact() -> None:
    ds = xr.Dataset({"when": ("time", np.array(["2000-01-01", "NaT"], "M8[s]")), "x": ("time", [1.0, 2.0])})
    td = to_tensordict(ds)
    assert to_dataset(td, template=ds)["when"].dtype == np.dtype("M8[s]")
    td["when"] = td["when"] + torch.tensor([5, 0])
    back = to_dataset(td, template=ds)["when"]
    assert back.dtype == np.dtype("M8[ns]")
    assert back.values[0] == np.datetime64("2000-01-01T00:00:00.000000005")
    assert np.isnat(back.values[1])


def test_predictions_take_the_dims_of_another_variable() -> None:
    ds = weather()
    td = quietly(ds, coords=False).select("t2m")
    td["hat"] = td["t2m"] + 1
    td["error"] = td["t2m"].mean(-1)
    back = to_dataset(td, template=ds, dims={"hat": "t2m", "error": ("lat",)})
    assert back["hat"].dims == ("time", "lat", "lon")
    assert back["hat"].attrs == {"units": "K"}
    assert back["error"].dims == ("time", "lat")
    assert back["hat"].sel(lat=2.0).shape == (4, 5)
    with pytest.raises(ValueError, match=r"'error' has 1 axes behind the batch.*'t2m' has dims"):
        to_dataset(td, template=ds, dims={"error": "t2m"})
    with pytest.raises(ValueError, match="'nothing', which is not among"):
        to_dataset(td, template=ds, dims={"hat": "nothing"})


def test_axes_without_names_are_called_as_in_the_template() -> None:
    ds = weather()
    td = TensorDict({"t2m": torch.zeros(2, 3, 5)}, batch_size=[2])
    assert to_dataset(td, template=ds.isel(time=slice(2)))["t2m"].dims == ("time", "lat", "lon")
    with pytest.warns(UserWarning, match="'time' has size 4 there and 2 in the tensordict"):
        assert to_dataset(td, template=ds)["t2m"].dims == ("time", "lat", "lon")
    flat = TensorDict({"t2m": torch.zeros(8, 5)}, batch_size=[8])
    assert to_dataset(flat, template=ds)["t2m"].dims == ("batch_0", "lon")


def test_features_of_another_size_keep_their_name_and_lose_the_coordinates() -> None:
    ds = weather()
    td = quietly(ds)
    td["t2m"] = td["t2m"][..., :2]
    with pytest.warns(UserWarning, match="'t2m' has size 2 along 'lon'"):
        back = to_dataset(td, template=ds)
    assert back["t2m"].dims == ("time", "lat", "lon_2")
    with pytest.warns(UserWarning, match=r"\['lon'\] of the template are left out"):
        only = to_dataset(td.select("t2m"), template=ds)
    assert only["t2m"].dims == ("time", "lat", "lon")
    assert "lon" not in only.coords
    assert "mask" not in only
    assert "lat" in only.coords


def test_a_record_that_no_longer_holds_is_not_kept() -> None:
    ds = weather()
    td = quietly(ds, "time", coords=False).select("t2m").auto_batch_size_(2)
    back = to_dataset(td, template=ds)
    assert read_record(back.attrs)[()].names == ("time", "lat")


def test_repeated_dims_of_a_template_are_kept() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # xarray's own, about the repeated dim
        ds = xr.Dataset(
            {"cov": (("time", "site", "site"), np.arange(18.0).reshape(2, 3, 3)), "mu": ("time", [1.0, 2.0])}
        )
        xr.testing.assert_identical(to_dataset(to_tensordict(ds), template=ds), ds)


def test_lazy_templates_are_not_read() -> None:
    def explode(block: Any) -> Any:
        raise AssertionError("read")

    import dask.array

    lazy = dask.array.zeros((4, 3), chunks=2).map_blocks(explode, dtype="f8")
    ds = xr.Dataset(
        {"x": (("time", "u"), lazy), "table": (("k",), dask.array.zeros(2).map_blocks(explode, dtype="f8"))}
    )
    td = td_of({"x": torch.ones(4, 3)}, 4, names=["time"])
    back = to_dataset(td, template=ds)
    assert back["x"].dims == ("time", "u")
    assert back["table"].chunks is not None


# --- trees ---


def test_trees_have_local_names() -> None:
    td = td_of({"obs": torch.zeros(4, 3), "next": {"obs": torch.ones(4, 3), "time": torch.arange(1, 5)}}, 4)
    td.names = ["time"]
    dt = to_datatree(td)
    assert [node.path for node in dt.subtree] == ["/", "/next"]
    assert dt["next/obs"].dims == ("time", "dim_3")
    assert "time" in dt["next"].coords
    assert_same_tensordict(td, dt.td.to_tensordict())


def test_a_coordinate_that_differs_from_the_parents_loses_its_index() -> None:
    td = td_of({"time": torch.arange(4), "n": {"time": torch.arange(1, 5), "x": torch.zeros(4)}}, 4, names=["time"])
    dt = to_datatree(td)
    assert dt["n/time"].values.tolist() == [1, 2, 3, 4]
    assert dt["time"].values.tolist() == [0, 1, 2, 3]


def test_trees_come_back_with_a_tree_as_template() -> None:
    root = xr.Dataset(
        {"obs": (("time", "joint"), np.arange(8.0).reshape(4, 2), {"units": "rad"}), "table": ("k", [1, 2])},
        coords={"time": pd.date_range("2000", periods=4), "joint": ["a", "b"]},
        attrs={"robot": "panda"},
    )
    below = xr.Dataset(
        {"obs": (("time", "joint"), np.ones((4, 2))), "t": ("time", np.arange(4).astype("M8[s]"))}, attrs={"n": 1}
    )
    dt = xr.DataTree.from_dict(
        {"/": root, "/next": below, "/meta": xr.Dataset({"version": ((), 2), "c": ("q", [1.5])})}
    )
    for unbatched in ("drop", "keep"):
        td = dt.td.to_tensordict(unbatched=unbatched)
        xr.testing.assert_identical(to_datatree(td, template=dt), dt)
        flat = to_dataset(td, template=dt)
        assert flat["next/obs"].dims == ("time", "joint")
        assert flat["next/t"].dtype == np.dtype("M8[s]")


def test_an_empty_node_of_the_template_comes_back_and_one_that_was_left_out_does_not() -> None:
    nodes = {
        "/": xr.Dataset({"x": ("time", [1.0, 2.0])}),
        "/nothing": xr.Dataset(),
        "/y": xr.Dataset({"z": ("time", [3.0, 4.0])}),
    }
    dt = xr.DataTree.from_dict(nodes)
    td = dt.td.to_tensordict()
    assert set(to_datatree(td, template=dt).children) == {"nothing", "y"}
    assert set(to_datatree(td.select("x"), template=dt).children) == {"nothing"}


def test_trees_take_a_flat_template_too() -> None:
    ds = weather()
    dt = to_datatree(quietly(ds), template=ds)
    xr.testing.assert_identical(dt.to_dataset(), ds.drop_vars("next/t2m"))
    assert dt["next/t2m"].dims == ("time", "lat", "lon")


# --- any Dataset ---

DTYPES = ["f4", "f8", "i2", "i8", "u1", "?", "M8[s]", "m8[us]", "U3", "O"]


@st.composite
def datasets(draw: st.DrawFn) -> tuple[xr.Dataset, list[str]]:
    sizes = {dim: draw(st.integers(0, 3)) for dim in ("a", "b", "u", "v")}
    batch = draw(st.sampled_from([["a"], ["a", "b"], ["b"], []]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    names = draw(st.lists(st.sampled_from(["x", "y", "n/x", "n/m/y", "z", "w"]), unique=True, min_size=1))
    data: dict[str, Any] = {}
    for name in names:
        dims = draw(st.lists(st.sampled_from(list(sizes)), unique=True, max_size=3))
        dtype = draw(st.sampled_from(DTYPES))
        values = rng.integers(0, 5, [sizes[dim] for dim in dims])
        array = values.astype(str).astype("U3") if dtype in {"O", "U3"} else values
        array = array.astype(dtype)
        data[name] = (dims, array, {"of": name})
    coords = {dim: np.arange(sizes[dim]) * 2.0 for dim in draw(st.lists(st.sampled_from(["a", "b", "u"]), unique=True))}
    return xr.Dataset(data, coords=coords, attrs={"some": 1}), batch


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(datasets(), st.sampled_from(["drop", "keep", "expand"]), st.booleans(), st.booleans())
def test_any_dataset_comes_back(
    made: tuple[xr.Dataset, list[str]], unbatched: Any, clone: bool, inferred: bool
) -> None:
    ds, dims = made
    used = {dim for variable in ds.data_vars.values() for dim in variable.dims}
    batch = None if inferred else [dim for dim in dims if dim in used]
    td = quietly(ds, batch, unbatched=unbatched)
    back = to_dataset(td.clone() if clone else td, template=ds)
    if not inferred:
        back.attrs.pop("tensordict_batch_dims", None)
    xr.testing.assert_identical(back, ds)
    assert list(back.data_vars) == list(ds.data_vars)
    assert_same_tensordict(td, quietly(back, batch, unbatched=unbatched))


def test_coordinates_of_the_template_that_do_not_fit_are_left_out_with_a_warning() -> None:
    ds = xr.Dataset({"t2m": (("time", "lat"), np.zeros((6, 2)))}, coords={"time": np.arange(6) * 10, "lat": [0.5, 1.5]})
    pred = td_of({"h": torch.ones(4, 2)}, 4)
    with pytest.warns(UserWarning, match=r"\['time'\] of the template are left out.*isel\(time=slice") as caught:
        made = to_dataset(pred, template=ds, dims={"h": "t2m"})
    assert caught[0].filename == __file__
    assert list(made.coords) == ["lat"]
    made = to_dataset(pred, template=ds.isel(time=slice(2, None)), dims={"h": "t2m"})
    assert made.time.values.tolist() == [20, 30, 40, 50]


def test_a_flattened_batch_is_not_called_like_one_dim_of_the_template() -> None:
    ds = xr.Dataset({"t2m": (("time", "lat"), np.arange(6.0).reshape(3, 2))}, coords={"time": [0, 1, 2], "lat": [4, 5]})
    flat = ds.td.to_tensordict(batch_dims=["time", "lat"]).reshape(-1)
    made = to_dataset(flat, template=ds)
    assert {name: made[name].dims for name in made.variables} == dict.fromkeys(["t2m", "time", "lat"], ("batch_0",))
    assert made.time.values.tolist() == [0, 0, 1, 1, 2, 2]
    assert made.lat.values.tolist() == [4, 5] * 3
    assert not made.xindexes
