"""The caller's word on the batch, and the edges of the inference: what was asked for is what one gets."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from tensordict import NonTensorData, TensorDict

from xarray_tensordict import ArrayInfo, infer_batch, open_persistent
from xarray_tensordict.testing import assert_same_tensordict


@pytest.fixture
def ensemble() -> xr.Dataset:
    return xr.Dataset(
        {"t": (("member", "time", "lat"), np.arange(24.0).reshape(2, 3, 4)), "co2": ("time", np.arange(3.0))}
    )


class TestAChosenBatch:
    def test_holds_although_another_dim_stands_in_front(self, tmp_path: Path, ensemble: xr.Dataset) -> None:
        path = tmp_path / "ens.zarr"
        ensemble.to_zarr(path, consolidated=False)
        ds = xr.open_dataset(path, engine="tensordict", batch_dims="time")
        assert ds.td.batch_dims == ("time",)
        td = ds.td.to_tensordict()
        assert td.batch_size == (3,)
        np.testing.assert_array_equal(td["t"].numpy(), ensemble["t"].transpose("time", "member", "lat").values)
        assert_same_tensordict(td, open_persistent(path, batch_dims="time").to_tensordict())
        assert ensemble.td.set_batch_dims("time").td.batch_dims == ("time",)

    def test_of_a_nested_group_only(self, tmp_path: Path) -> None:
        group = zarr.open_group(tmp_path / "nested.zarr", mode="w")
        group.create_array("a", data=np.zeros((6, 4)), dimension_names=("time", "f"))
        group.create_array("g/c", data=np.zeros((6, 3)), dimension_names=("time", "q"))
        ds = xr.open_dataset(tmp_path / "nested.zarr", engine="tensordict", batch_dims="q")
        assert ds.td.batch_dims == ("q",)
        assert list(ds.td.to_tensordict().keys(include_nested=True, leaves_only=True)) == [("g", "c")]

    def test_of_no_dims_holds_for_nested_groups_too(self, tmp_path: Path) -> None:
        group = zarr.open_group(tmp_path / "nested.zarr", mode="w")
        group.create_array("a", data=np.zeros((6, 4)))
        group.create_array("g/c", data=np.zeros((6, 3)))
        ds = xr.open_dataset(tmp_path / "nested.zarr", engine="tensordict", batch_dims=0)
        assert set(ds.variables) == {"a", "g/c"}
        assert ds.td.to_tensordict()["g"].batch_size == ()

    def test_as_a_count_that_groups_contradict(self, tmp_path: Path) -> None:
        group = zarr.open_group(tmp_path / "buffer.zarr", mode="w")
        group.create_array("data/x", data=np.zeros((50, 4)))
        group.create_array("meta/ends", data=np.zeros(2))
        with pytest.raises(ValueError, match=r"'data/x' has shape.*'meta/ends' has"):
            xr.open_dataset(tmp_path / "buffer.zarr", engine="tensordict", batch_dims=1)

    def test_as_a_numpy_integer(self) -> None:
        assert infer_batch([ArrayInfo(("x",), (6, 3))], given=np.int64(1)).batch_size == (6,)

    def test_behind_a_repeated_dim(self) -> None:
        with pytest.warns(UserWarning, match="Duplicate dimension names"):
            ds = xr.Dataset({"w": (("site", "site", "time"), np.arange(18.0).reshape(3, 3, 2))})
        with pytest.warns(UserWarning, match="Duplicate dimension names"):
            td = ds.td.to_tensordict("time")
        np.testing.assert_array_equal(td["w"].numpy(), np.moveaxis(ds["w"].values, 2, 0))


@pytest.fixture
def grouped(tmp_path: Path) -> Path:
    """A store of two groups, in the first of which all arrays have two axes."""
    group = zarr.open_group(tmp_path / "store.zarr", mode="w")
    for name, shape in {"own": (2,), "g/obs": (6, 3), "g/act": (6, 3), "h/x": (5, 4, 2), "h/y": (5,)}.items():
        group.create_array(name, data=np.zeros(shape))
    return tmp_path / "store.zarr"


class TestTheAdviceOfTheEvidence:
    """What it says to pass is run where it is shown."""

    ADVICE = re.compile(r"(?:pass (?:group='([^']*)', )?|use dt\['(.*?)'\].td.to_tensordict\()batch_dims=(\d+)")

    def advice(self, text: str) -> tuple[str, str, int]:
        found = self.ADVICE.search(" ".join(text.split()))
        assert found is not None, text
        return found[1] or "", found[2] or "", int(found[3])

    @pytest.mark.parametrize(("below", "keywords"), [("g", {}), ("", {"group": "g"})], ids=["root", "group"])
    def test_of_the_group_that_is_opened(self, grouped: Path, below: str, keywords: dict[str, Any]) -> None:
        ds = xr.open_dataset(grouped / below, engine="tensordict", **keywords)
        assert self.advice(repr(ds.td)) == ("", "", 2)
        opened = xr.open_dataset(grouped / below, engine="tensordict", batch_dims=2, **keywords)
        assert opened.td.batch_size == (6, 3)

    def test_of_a_group_of_a_flat_dataset(self, tmp_path: Path, grouped: Path) -> None:
        group = zarr.open_group(tmp_path / "one.zarr", mode="w")
        for name in ("outer/g/obs", "outer/g/act"):
            group.create_array(name, data=np.zeros((6, 3)))
        ds = xr.open_dataset(tmp_path / "one.zarr", engine="tensordict", group="outer")
        path, _, count = self.advice(repr(ds.td))
        assert path == "/outer/g"
        opened = xr.open_dataset(tmp_path / "one.zarr", engine="tensordict", group=path, batch_dims=count)
        assert opened.td.batch_size == (6, 3)
        assert open_persistent(tmp_path / "one.zarr", group=path, batch_dims=count).batch_size == (6, 3)

    def test_of_a_node_of_a_tree(self) -> None:
        nodes = {
            f"/a/{name}": xr.Dataset({"x": (("t", "s"), np.zeros((size, 3)))})
            for name, size in {"g": 6, "h": 5}.items()
        }
        dt: Any = xr.DataTree.from_dict(nodes)
        found = re.search(
            r"use dt\['(.*?)'\].td.to_tensordict\(batch_dims=(.*?)\) to take it", " ".join(repr(dt.td).split())
        )
        assert found is not None
        assert dt[found[1]].td.to_tensordict(batch_dims=ast.literal_eval(found[2])).batch_size == (6, 3)


def test_an_array_without_names_that_a_choice_leaves_out_is_named(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "mixed.zarr", mode="w")
    for name in ("x", "y"):
        group.create_array(name, data=np.zeros((20, 5, 30)), dimension_names=("time", "chan", "f"))
    group.create_array("z", data=np.zeros(20), dimension_names=("time",))
    group.create_array("raw", data=np.zeros((20, 300)))
    ds = xr.open_dataset(tmp_path / "mixed.zarr", engine="tensordict")
    assert "pass batch_dims=['time', 'chan']" in " ".join(repr(ds.td).split())
    assert ds.td.to_tensordict()["raw"].shape == (20, 300)
    with pytest.warns(
        UserWarning, match=r"'raw' of shape \[20, 300\] is unbatched with batch_dims=\['time', 'chan'\].*dims="
    ):
        ds = xr.open_dataset(tmp_path / "mixed.zarr", engine="tensordict", batch_dims=["time", "chan"])
    assert "raw" in ds.td.unbatched
    named = {"raw": ("time", "sample")}
    ds = xr.open_dataset(tmp_path / "mixed.zarr", engine="tensordict", batch_dims=["time", "chan"], dims=named)
    assert ds.td.to_tensordict()["raw"].shape == (20, 5, 300)


def test_a_suffix_that_is_taken_does_not_fail_the_open(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "clash.zarr", mode="w")
    for name, size, dim in (("a", 4, "t"), ("t_5", 4, "t"), ("b", 5, "t"), ("t_5x", 3, "t_5")):
        group.create_array(name, data=np.arange(float(size)), dimension_names=(dim,))
    with pytest.warns(UserWarning, match="'b' has size 5 along 't'"):
        ds = xr.open_dataset(tmp_path / "clash.zarr", engine="tensordict")
    assert {name: ds[name].size for name in ("a", "t_5", "b", "t_5x")} == {"a": 4, "t_5": 4, "b": 5, "t_5x": 3}


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_store_that_is_one_array(tmp_path: Path, zarr_format: int) -> None:
    path = tmp_path / "frames.zarr"
    array = zarr.create_array(path, data=np.arange(12.0).reshape(4, 3), zarr_format=zarr_format)
    for source in (path, array):
        ds = xr.open_dataset(source, engine="tensordict")  # type: ignore[arg-type]
        assert list(ds.data_vars) == ["frames"]
        assert ds.td.batch_size == (4,)
    np.testing.assert_array_equal(open_persistent(path)["frames"].numpy(), np.arange(12.0).reshape(4, 3))


def test_a_batch_that_no_array_carries_is_told(tmp_path: Path) -> None:
    TensorDict({"s": NonTensorData("h", batch_size=[3])}, [3]).to_zarr(tmp_path / "s.zarr").close()
    with pytest.warns(UserWarning, match=r"batch size \[3\] is lost"):
        ds = xr.open_dataset(tmp_path / "s.zarr", engine="tensordict")
    assert ds.attrs == {}


def test_a_read_that_fails_names_the_variable(tmp_path: Path) -> None:
    path = tmp_path / "bad.zarr"
    zarr.open_group(path, mode="w").create_array("a", data=np.ones(3))
    (chunk,) = (file for file in path.rglob("*") if file.is_file() and file.name != "zarr.json")
    chunk.write_bytes(b"xx")
    for read in (xr.open_dataset(path, engine="tensordict").td.to_tensordict, open_persistent(path).to_tensordict):
        with pytest.raises((RuntimeError, OSError, ValueError)) as caught:
            read()
        assert any("'a'" in note for note in caught.value.__notes__)


def test_the_record_is_a_plain_list_where_that_says_it_all(tmp_path: Path) -> None:
    ds = xr.Dataset({"x": (("time", "lat"), np.zeros((3, 2)))})
    assert json.loads(ds.td.set_batch_dims("time").attrs["tensordict_batch_dims"]) == ["time"]


class TestNamesFromTheCaller:
    @pytest.fixture
    def buffer(self, tmp_path: Path) -> Path:
        group = zarr.open_group(tmp_path / "buffer.zarr", mode="w")
        for name, shape in {"actions": (40, 7), "rewards": (40,), "img": (40, 4, 4, 3), "scalar": ()}.items():
            group.create_array(name, data=np.zeros(shape))
        return tmp_path / "buffer.zarr"

    @pytest.mark.parametrize(
        ("dims", "expected"),
        [
            ({"*": ("time", ...)}, {"rewards": ("time",), "actions": ("time", "dim_7")}),
            ({"a*": ("feature", ...)}, {"actions": ("batch_0", "feature")}),
            ({"*": ("joint",)}, {"actions": ("batch_0", "joint"), "img": ("batch_0", "dim_4", "dim_4_1", "dim_3")}),
        ],
    )
    def test_name_the_axes_of_the_arrays_they_fit(self, buffer: Path, dims: Any, expected: dict[str, Any]) -> None:
        ds = xr.open_dataset(buffer, engine="tensordict", dims=dims)
        assert {name: ds[name].dims for name in expected} == expected
        assert ds.td.batch_dims == ds["rewards"].dims

    def test_that_are_too_few_are_refused(self, buffer: Path) -> None:
        with pytest.raises(ValueError, match=r"expected 3 names for the axes of 'img' behind the batch, or 4 for all"):
            xr.open_dataset(buffer, engine="tensordict", dims={"img": ("y", "x")})

    @pytest.mark.parametrize("names", ["dim_7", ["batch_0", "dim_7"]])
    def test_that_the_engine_itself_makes_up_are_no_new_names(self, buffer: Path, names: Any) -> None:
        with pytest.raises(ValueError, match=r"ds.td.set_batch_dims"):
            xr.open_dataset(buffer, engine="tensordict", batch_dims=names)


def test_evidence_from_the_opening_is_not_kept_for_another_size(tmp_path: Path) -> None:
    zarr.open_group(tmp_path / "raw.zarr", mode="w").create_array("x", data=np.zeros((6, 2)))
    ds = xr.open_dataset(tmp_path / "raw.zarr", engine="tensordict")
    assert "leading size 6" in " ".join(repr(ds.td).split())
    assert "leading size 6" not in " ".join(repr(ds.isel(batch_0=slice(3)).td).split())


def test_categories_are_text() -> None:
    ds = xr.Dataset({"c": ("time", pd.Categorical(["a", "b", "a"])), "y": ("time", np.zeros(3))})
    assert ds.td.to_tensordict().get("c").tolist() == ["a", "b", "a"]
    assert "'time' is the first dim" in repr(ds.td)


class TestADatasetChangedInPlace:
    """xarray keeps ``ds.td`` with the Dataset; what it says is about the Dataset as it is now."""

    def test_has_the_batch_of_its_new_variables(self) -> None:
        ds = xr.Dataset({"x": ("time", np.zeros(3))})
        assert ds.td.batch_dims == ("time",)
        ds["y"] = (("member", "time"), np.zeros((2, 3)))
        del ds["x"]
        assert ds.td.batch_dims == ("member",)
        assert set(ds.td.to_tensordict().keys()) == {"y"}

    def test_has_the_new_variables_in_its_tensordict(self) -> None:
        ds = xr.Dataset({"x": ("time", np.zeros(3))})
        ds.td.infer()
        ds["y"] = ("time", np.ones(3))
        assert set(ds.td.to_tensordict().keys()) == {"x", "y"}
        assert "y" in repr(ds.td)

    def test_has_the_batch_dims_of_its_new_attributes(self) -> None:
        ds = xr.Dataset({"x": (("time", "place"), np.zeros((3, 4)))}, attrs={"table": np.arange(3)})
        assert ds.td.batch_dims == ("time",)
        ds.attrs = {**ds.td.set_batch_dims("place").attrs, "table": np.arange(3)}
        assert ds.td.batch_dims == ("place",)

    def test_is_the_same_for_a_tree(self) -> None:
        dt = xr.DataTree.from_dict({"/a": xr.Dataset({"x": ("time", np.zeros(3))})})
        assert dt.td.batch_size == (3,)
        dt["b"] = xr.DataTree(xr.Dataset({"x": ("time", np.zeros(5))}))
        assert dt.td.batch_size == ()
