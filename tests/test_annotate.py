"""``annotate``: dimension names and the batch for stores that lack them, without touching the data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
import zarr
from tensordict import NonTensorData, NonTensorStack, PersistentTensorDict, TensorDict

import xarray_tensordict
from written import content, documents
from xarray_tensordict import annotate
from xarray_tensordict.testing import assert_same_tensordict


@pytest.fixture(params=[2, 3], ids=["v2", "v3"])
def zarr_format(request: pytest.FixtureRequest) -> Any:
    with zarr.config.set(default_zarr_format=request.param):
        yield request.param


def buffer() -> TensorDict:
    return TensorDict(
        {
            "obs": torch.arange(18.0).reshape(6, 3),
            "done": torch.tensor([0, 0, 1, 0, 0, 1], dtype=torch.bool),
            "next": TensorDict({"obs": torch.ones(6, 3)}, [6], names=["time"]),
            "task": NonTensorData("lift", batch_size=[6]),
            "word": NonTensorStack(*"abcdef"),
        },
        [6],
        names=["time"],
    )


def chunk_files(path: Path) -> dict[str, tuple[bytes, int]]:
    """The bytes and the time of change of every file that is no metadata."""
    names = content(path).keys() - documents(path).keys()
    return {name: ((path / name).read_bytes(), (path / name).stat().st_mtime_ns) for name in names}


def test_a_tensordict_store_opens_with_plain_xarray(tmp_path: Path, zarr_format: int) -> None:
    td = buffer()
    td.to_zarr(tmp_path / "td.zarr").close()
    before = chunk_files(tmp_path / "td.zarr")

    found = annotate(tmp_path / "td.zarr")

    assert found.batch_size == (6,)
    assert chunk_files(tmp_path / "td.zarr") == before
    with xr.open_zarr(tmp_path / "td.zarr", consolidated=True) as ds:
        assert ds["obs"].dims == ("time", "dim_3")
        np.testing.assert_array_equal(ds["obs"].values, td["obs"].numpy())
        assert ds["done"].dims == ("time",)
    assert_same_tensordict(TensorDict.from_zarr(tmp_path / "td.zarr").to_tensordict(), td)
    with xr.open_dataset(tmp_path / "td.zarr", engine="tensordict") as ds:
        assert set(ds.coords) == {"task", "word"}
        assert_same_tensordict(ds.td.to_tensordict(), td)


def test_entries_that_tensordict_added_or_replaced_are_named_by_a_second_call(tmp_path: Path, zarr_format: int) -> None:
    path = tmp_path / "td.zarr"
    buffer().to_zarr(path).close()
    annotate(path)
    td = PersistentTensorDict.from_zarr(path, mode="r+")
    td["reward"] = torch.arange(6.0)
    td.del_("obs")
    td["obs"] = torch.zeros(6, 5)
    td.close()

    annotate(path)

    with xr.open_zarr(path, consolidated=True) as ds:
        assert ds["reward"].dims == ("time",)
        assert ds["obs"].dims == ("time", "dim_5")


def test_a_raw_store_gets_names_and_batch(tmp_path: Path, zarr_format: int) -> None:
    path = tmp_path / "raw.zarr"
    group = zarr.open_group(path, mode="w")
    group.create_array("images", data=np.zeros((6, 2, 2), "u1"))
    group.create_array("label", data=np.arange(6))

    annotate(path, batch_dims=["sample"], dims={"images": ("y", "x")})

    with xr.open_zarr(path, consolidated=False) as ds:
        assert ds["images"].dims == ("sample", "y", "x")
        # in v2 the fill value would else become a mask: all zeros NaN
        assert ds["images"].dtype == np.uint8
    bare = TensorDict.from_zarr(path)
    assert bare.batch_size == torch.Size([6])
    assert bare.names == ["sample"]
    assert_same_tensordict(bare.to_tensordict(), xarray_tensordict.open_persistent(path).to_tensordict())


def test_chunks_that_were_never_written_still_read_as_zero(tmp_path: Path, zarr_format: int) -> None:
    path = tmp_path / "sparse.zarr"
    array = zarr.open_group(path, mode="w").create_array("x", shape=(4,), chunks=(2,), dtype="f4")
    array[:2] = [1, 2]

    annotate(path)

    with xr.open_dataset(path, engine="tensordict") as ds:
        assert ds["x"].values.tolist() == [1, 2, 0, 0]
    with xr.open_zarr(path, consolidated=False) as ds:
        assert ds["x"].values.tolist() == [1, 2, 0, 0]


def of_xarray(other: Any) -> Any:
    return lambda path: xr.Dataset({"x": ("time", [1.0, 2.0]), **other}).to_zarr(path, consolidated=False)


def filled(path: Path) -> None:
    zarr.open_group(path, mode="w", zarr_format=2).create_array("x", data=np.array([1, -9]), fill_value=-9)


def records(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["rec"] = np.zeros(3, dtype=[("id", "<i4"), ("pos", "<f4", (2,))])


TIMES = np.array(["2000-01-01", "2000-01-02"], "M8[ns]")
PACKED = {"scale_factor": 0.5, "dtype": "i2", "_FillValue": -1}
IN_THE_WAY = {
    "coordinate": (of_xarray({"lat": ("lat", [1.0, 2.0, 3.0])}), "'lat'"),
    "scalar": (of_xarray({"height": ((), 2.0)}), "'height'"),
    "packed": (of_xarray({"p": ("time", [1.0, 2.0], {}, PACKED)}), "'p'.*scale_factor"),
    "encoded time": (of_xarray({"t": ("time", TIMES)}), "'t'.*times"),
    "a fill value that would become a mask": (filled, r"'x' \(fill_value -9\)"),
    "records": (records, r"records: \['rec'\]"),
}


@pytest.mark.parametrize("what", IN_THE_WAY)
def test_what_bare_tensordict_could_not_honestly_read_is_in_the_way(
    tmp_path: Path, zarr_format: int, what: str
) -> None:
    write, in_the_way = IN_THE_WAY[what]
    path = tmp_path / "store"
    write(path)
    before = content(path)
    with pytest.raises(ValueError, match=in_the_way) as caught:
        annotate(path)
    assert what == "records" or str(path) in str(caught.value)
    assert content(path) == before


def test_consolidated_metadata_stays_true_and_is_not_added(tmp_path: Path) -> None:
    path = tmp_path / "raw.zarr"
    zarr.open_group(path, mode="w").create_array("x", data=np.arange(3.0))
    annotate(path)
    assert zarr.open_group(path, mode="r").metadata.consolidated_metadata is None


def test_an_hdf5_file_gets_labels_and_a_record(tmp_path: Path) -> None:
    path = tmp_path / "td.h5"
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(12.0).reshape(3, 4)
        file["n/b"] = np.ones((3, 4))

    annotate(path, batch_dims=["env", "time"])

    with h5py.File(path) as file:
        assert [dim.label for dim in file["n/b"].dims] == ["env", "time"]
        assert json.loads(file.attrs["__tensordict__"]) == {
            "batch_size": [3, 4],
            "names": ["env", "time"],
            "version": 1,
        }
    with xr.open_dataset(path, engine="tensordict") as ds:
        assert ds.td.to_tensordict().names == ["env", "time"]
        assert ds.td.batch_size == (3, 4)
    assert PersistentTensorDict.from_h5(path).batch_size == torch.Size([3, 4])


def test_a_group_inside_a_store(tmp_path: Path) -> None:
    path = tmp_path / "nested.zarr"
    root = zarr.open_group(path, mode="w")
    root.create_array("other", data=np.zeros((2, 2)))
    root.create_group("data").create_array("x", data=np.arange(5.0))

    annotate(path, group="data")

    opened = zarr.open_group(path, mode="r")
    assert opened["data/x"].metadata.dimension_names == ("batch_0",)
    assert opened["data"].attrs["__tensordict__"]["batch_size"] == [5]
    assert opened["other"].metadata.dimension_names is None
    assert "__tensordict__" not in opened.attrs


def test_stores_that_cannot_be_written_to_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "raw.zarr"
    zarr.open_group(path, mode="w").create_array("x", data=np.arange(3.0))
    with pytest.raises(PermissionError, match="mode 'r\\+'"):
        annotate(zarr.open_group(path, mode="r"))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.arange(3.0)
    with h5py.File(tmp_path / "x.h5", "r") as file, pytest.raises(PermissionError, match="mode 'r\\+'"):
        annotate(file)
    with pytest.raises(FileNotFoundError, match="missing"):
        annotate(tmp_path / "missing.zarr")


@pytest.mark.parametrize("name", ["both.zarr", "both.h5"])
def test_a_store_of_this_package_can_be_annotated_and_stays_as_it_is(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    ds = xr.Dataset(
        {
            "x": (("time", "lat"), np.zeros((5, 3))),
            "mask": ("lat", [True, False, True]),
            "sub/table": ("k", np.zeros(2)),
        },
        coords={"lat": [1.0, 2.0, 3.0], "time": pd.date_range("2024", periods=5, unit="ns")},
    )
    (ds.td.to_zarr if name.endswith("zarr") else ds.td.to_h5)(path)
    assert annotate(path).batch_dims == ("time",)
    with xr.open_dataset(path, engine="tensordict") as found:
        xr.testing.assert_identical(found, ds)


# --- a second time ---


def raw_store(path: Path, form: str) -> Path:
    arrays = {"images": np.zeros((6, 2, 2), "u1"), "label": np.arange(6), "next/images": np.ones((6, 2, 2), "u1")}
    if form == "h5":
        with h5py.File(path, "w") as file:
            for name, values in arrays.items():
                file[name] = values
        return path
    root = zarr.open_group(path, mode="w", zarr_format=int(form[-1]))
    for name, values in arrays.items():
        root.create_array(name, data=values)
    return path


def dims_of(path: Path) -> dict[str, tuple[str, ...]]:
    with xr.open_dataset(path, engine="tensordict") as ds:
        return {str(name): tuple(map(str, variable.dims)) for name, variable in ds.variables.items()}


FORMS = pytest.mark.parametrize("form", ["zarr2", "zarr3", "h5"])


@FORMS
@pytest.mark.parametrize("first", [{}, {"batch_dims": ["sample"]}, {"dims": {"images": ("y", "x")}}], ids=str)
def test_other_names_replace_those_of_the_first_time(tmp_path: Path, form: str, first: dict[str, Any]) -> None:
    path = raw_store(tmp_path / "store", form)
    annotate(path, **first)
    before = dims_of(path)
    batch = "sample" if "batch_dims" in first else "batch_0"

    assert annotate(path, dims={"images": ("row", "col")}).batch_dims == (batch,)

    assert dims_of(path) == {**before, "images": (batch, "row", "col")}
    annotate(path, dims={"*images": ("lat", "lon")})
    assert dims_of(path)["images"] == (batch, "lat", "lon")
    annotate(path, dims={"next/*": (..., "lon")})
    assert dims_of(path)["next/images"][2] == "lon"
    again = dims_of(path)
    annotate(path)
    assert dims_of(path) == again
    if form == "h5":
        with h5py.File(path) as file:
            assert [dim.label for dim in file["images"].dims] == [batch, "lat", "lon"]
    else:
        with xr.open_zarr(path, consolidated=False) as ds:
            assert ds["images"].dims == (batch, "lat", "lon")
            assert ds["images"].dtype == np.uint8


@FORMS
def test_the_batch_gets_another_name_where_all_arrays_get_it(tmp_path: Path, form: str) -> None:
    path = raw_store(tmp_path / "store", form)
    annotate(path, batch_dims=["sample"])
    before = dims_of(path)
    with pytest.raises(ValueError, match=r"has no dim 'frame'; the dims there are"):
        annotate(path, batch_dims=["frame"])
    with pytest.raises(ValueError, match="In the way: 'next/images'"):
        annotate(path, dims={"images": ("frame", "y", "x"), "label": ("frame",)})
    assert dims_of(path) == before
    with pytest.raises(ValueError, match="no array is called 'image'"):
        annotate(path, dims={"image": ("y", "x")})
    assert dims_of(path) == before

    found = annotate(path, dims={"*images": ("frame", "y", "x"), "label": ("frame",)})

    assert found.batch_dims == ("frame",)
    assert dims_of(path) == {"images": ("frame", "y", "x"), "label": ("frame",), "next/images": ("frame", "y", "x")}
    with xr.open_dataset(path, engine="tensordict") as ds:
        assert ds.td.to_tensordict().names == ["frame"]
    if form != "h5":
        assert TensorDict.from_zarr(path).names == ["frame"]


def test_a_name_that_a_dimension_scale_gives_is_not_changed_and_the_scale_is_named(tmp_path: Path) -> None:
    path = tmp_path / "scales.h5"
    with h5py.File(path, "w") as file:
        file["x"], file["y"] = np.zeros((4, 3)), np.ones((4, 3))
        file["n/time"] = np.arange(4)
        file["n/time"].make_scale("time")
        file["x"].dims[0].attach_scale(file["n/time"])
    annotate(path, batch_dims=["time"], dims={"n/time": ("time",), "y": ("time", "f")})
    before = path.read_bytes()
    with pytest.raises(
        ValueError, match=r"axis 0 of '/x' was to be called 'row', and the dimension scale 'time' names"
    ):
        annotate(path, dims={"*": ("row", ...)})
    assert path.read_bytes() == before
    annotate(path, dims={"x": ("time", "g"), "y": ("time", "g")})
    assert dims_of(path)["x"] == dims_of(path)["y"] == ("time", "g")


def test_a_memory_mapped_tensordict_has_no_place_for_names_which_is_reported(tmp_path: Path) -> None:
    TensorDict({"images": torch.zeros(6, 2, 2)}, [6]).memmap(tmp_path / "folder")
    before = content(tmp_path / "folder")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"no place for the names of other dims.*dims=\{...\}"):
            annotate(tmp_path / "folder", dims={"images": ("y", "x")})
    assert content(tmp_path / "folder") == before
