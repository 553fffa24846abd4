"""What may stand at the root of a zarr store, and between its groups; stores that are opened by a relative path."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from zarr.storage import LocalStore, MemoryStore

from xarray_tensordict import open_persistent
from xarray_tensordict.testing import assert_same_tensordict

FORMATS = pytest.mark.parametrize("zarr_format", [2, 3])
DOCUMENTS = ("zarr.json", ".zgroup", ".zattrs")


# -- groups without a document -----------------------------------------------------------------------------------------


@FORMATS
def test_a_folder_without_a_document_that_holds_groups_is_a_group(tmp_path: Path, zarr_format: int) -> None:
    path = tmp_path / "plate.zarr"
    zarr.open_group(path, mode="w", zarr_format=zarr_format).create_group("A/1/0").create_array(
        "image", data=np.ones((4, 3))
    )
    for folder in ("A", "A/1"):
        for name in DOCUMENTS:
            (path / folder / name).unlink(missing_ok=True)
    assert list(xr.open_dataset(path, engine="tensordict", nested=True).variables) == ["A/1/0/image"]
    tree = xr.open_datatree(path, engine="tensordict")
    assert tree["A/1/0/image"].shape == (4, 3)
    assert open_persistent(path, nested=True)["A", "1", "0", "image"].shape == (4, 3)
    assert list(xr.open_dataset(path, engine="tensordict", group="A").variables) == ["1/0/image"]
    with pytest.raises(FileNotFoundError, match=r"group '/B' does not exist.*'/A'"):
        xr.open_dataset(path, engine="tensordict", group="B")


def test_a_group_without_a_document_is_found_in_a_store_that_is_no_folder() -> None:
    store = MemoryStore()
    zarr.open_group(store, mode="w").create_group("A/1").create_array("image", data=np.ones((4, 3)))
    del store._store_dict["A/zarr.json"]
    assert list(xr.open_dataset(store, engine="tensordict", nested=True).variables) == ["A/1/image"]


@FORMATS
def test_folders_that_hold_no_group_are_ignored(tmp_path: Path, zarr_format: int, recwarn: Any) -> None:
    path = tmp_path / "s.zarr"
    zarr.open_group(path, mode="w", zarr_format=zarr_format).create_array("x", data=np.ones(3))
    (path / ".git" / "objects").mkdir(parents=True)
    (path / "notes").mkdir()
    (path / "notes" / "a.txt").write_text("nothing")
    assert list(xr.open_datatree(path, engine="tensordict").children) == []
    assert not recwarn.list


# -- a root that is an array -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", ["bfloat16", "float8_e5m2"])
def test_the_one_array_of_a_store_may_have_a_dtype_that_numpy_lacks(tmp_path: Path, declared: str) -> None:
    path = tmp_path / "weights.zarr"
    values = torch.tensor([[1.0, 2.0], [0.5, -3.0]]).to(getattr(torch, declared))
    code = "uint16" if declared == "bfloat16" else "uint8"
    zarr.create_array(path, data=values.view(getattr(torch, code)).numpy(), zarr_format=3)
    document = path / "zarr.json"
    document.write_text(document.read_text().replace(f'"{code}"', f'"{declared}"'))
    found = xr.open_dataset(path, engine="tensordict").td.to_tensordict()
    assert found["weights"].dtype == values.dtype
    assert found["weights"].float().tolist() == values.float().tolist()
    assert_same_tensordict(open_persistent(path).to_tensordict(), found)


@pytest.mark.parametrize(
    ("fill", "expected"), [(0.0, 0.0), (-0.0, -0.0), (1.5, 1.5), ("0x8000", -0.0), ("NaN", np.nan)]
)
def test_a_chunk_that_is_not_there_has_the_fill_value_of_a_dtype_that_numpy_lacks(
    tmp_path: Path, fill: float | str, expected: float
) -> None:
    path = tmp_path / "weights.zarr"
    zarr.create_array(path, shape=(2,), dtype="uint16", zarr_format=3)
    document = path / "zarr.json"
    document.write_text(json.dumps({**json.loads(document.read_text()), "data_type": "bfloat16", "fill_value": fill}))
    found = xr.open_dataset(path, engine="tensordict").td.to_tensordict()["weights"]
    assert torch.equal(found.view(torch.int16), torch.full((2,), expected, dtype=torch.bfloat16).view(torch.int16))


# -- relative paths ----------------------------------------------------------------------------------------------------

OPENED = {
    "a path": lambda name: name,
    "a path with a dot": lambda name: f"./{name}",
    "a Path": Path,
    "a LocalStore": LocalStore,
    "a group": lambda name: zarr.open_group(name, mode="r"),
}


@FORMATS
@pytest.mark.parametrize("compressors", [None, "auto"])
@pytest.mark.parametrize("kind", OPENED)
def test_a_store_opened_by_a_relative_path_stays_that_store(
    tmp_path: Path, monkeypatch: Any, kind: str, compressors: Any, zarr_format: int
) -> None:
    for folder, value in (("here", 1.0), ("there", 2.0)):
        (tmp_path / folder).mkdir()
        group = zarr.open_group(tmp_path / folder / "s.zarr", mode="w", zarr_format=zarr_format)
        group.create_array("obs", data=np.full((6, 3), value), compressors=compressors)
    monkeypatch.chdir(tmp_path / "here")
    source = OPENED[kind]("s.zarr")
    ds = xr.open_dataset(source, engine="tensordict", cache=False)
    ptd = open_persistent(source)
    for folder in (tmp_path / "there", tmp_path):
        os.chdir(folder)
        assert ds["obs"].values.max() == 1.0
        assert pickle.loads(pickle.dumps(ds))["obs"].values[2, 0] == 1.0
        assert ptd[[4, 1]]["obs"].max() == 1.0


@pytest.mark.parametrize("name", ["s.h5", "s.zarr.zip", "memmap", "s.tdz"])
def test_a_file_opened_by_a_relative_path_stays_that_file(tmp_path: Path, monkeypatch: Any, name: str) -> None:
    for folder, value in (("here", 1.0), ("there", 2.0)):
        (tmp_path / folder).mkdir()
        ds = xr.Dataset({"obs": (("time", "f"), np.full((6, 3), value))}).td.set_batch_dims("time")
        path = tmp_path / folder / name
        (ds.td.to_h5 if name == "s.h5" else ds.td.to_zarr if name.endswith(".zip") else ds.td.to_memmap)(path)
    monkeypatch.chdir(tmp_path / "here")
    opened = xr.open_dataset(name, engine="tensordict", cache=False)
    for folder in (tmp_path / "there", tmp_path):
        os.chdir(folder)
        assert opened["obs"].values.max() == 1.0
    opened.close()
