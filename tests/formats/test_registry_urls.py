"""Stores as users hand them over: mappers, archives in archives, URLs of this machine, files that are still open."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from tensordict import TensorDict
from zarr.storage import FsspecStore, LocalStore, MemoryStore, StorePath, ZipStore

import xarray_tensordict
from corpus import open_doors
from s3_server import S3Server
from xarray_tensordict import annotate, open_persistent
from xarray_tensordict.testing import assert_same_tensordict


@pytest.fixture
def td() -> TensorDict:
    deep = {"reward": torch.rand(4, 1, dtype=torch.float64)}
    return TensorDict({"obs": torch.rand(4, 3), "next": {"obs": torch.rand(4, 3), "deep": deep}}, [4], names=["time"])


@pytest.fixture
def ds(td: TensorDict) -> xr.Dataset:
    return xarray_tensordict.to_dataset(td)


def assert_holds(store: Any, td: TensorDict, **keywords: Any) -> None:
    doors = open_doors(store, **keywords)
    try:
        assert_same_tensordict(doors.ds.td.to_tensordict(), td)
    finally:
        doors.close()


class TestAZipArchiveByAURL:
    @pytest.mark.filterwarnings("ignore:Object at")
    def test_shows_its_nested_groups(self, tmp_path: Path, td: TensorDict, ds: xr.Dataset) -> None:
        ds.td.to_zarr(tmp_path / "a.zip")
        assert_holds(f"zip://::file://{tmp_path}/a.zip", td)
        assert_holds(f"file://{tmp_path}/a.zip", td)

    def test_on_s3_is_found_with_the_advice_of_the_message(
        self, tmp_path: Path, td: TensorDict, ds: xr.Dataset, s3: S3Server
    ) -> None:
        ds.td.to_zarr(tmp_path / "a.zip")
        fsspec.filesystem("s3", **s3.options).put(str(tmp_path / "a.zip"), "bucket/found/a.zip")
        url = s3.url("found/a.zip")
        with pytest.raises(FileNotFoundError, match=f"opens as 'zip::{url}'"):
            xr.open_dataset(url, engine="tensordict", storage_options=s3.options)
        assert_holds(f"zip::{url}", td, storage_options={"s3": s3.options})


def test_an_archive_of_a_folder_and_not_of_what_is_in_it_says_so(tmp_path: Path, ds: xr.Dataset) -> None:
    ds.td.to_zarr(tmp_path / "a.zarr")
    packed = shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path, "a.zarr")
    with pytest.raises(FileNotFoundError, match=r"packed\.zip: .* in its folder 'a\.zarr': unpack it"):
        xr.open_dataset(packed, engine="tensordict")
    with zipfile.ZipFile(tmp_path / "empty.zip", "w"):
        pass
    with pytest.raises(FileNotFoundError, match="check the path"):
        xr.open_dataset(tmp_path / "empty.zip", engine="tensordict")


def test_a_mapper_of_fsspec_is_a_store(tmp_path: Path, td: TensorDict, ds: xr.Dataset) -> None:
    ds.td.to_zarr(tmp_path / "local.zarr")
    assert_holds(fsspec.get_mapper(str(tmp_path / "local.zarr")), td)
    mapper = fsspec.get_mapper(f"memory:/{tmp_path}/a.zarr")
    ds.td.to_zarr(mapper)
    assert_holds(mapper, td)
    ds.td.to_zarr(mapper, append_dim="time")
    assert_holds(mapper, torch.cat([td, td]))
    annotate(mapper)
    with pytest.raises(FileExistsError, match=r"a\.zarr: there is something already"):
        ds.td.to_zarr(mapper)


def test_messages_and_lone_arrays_go_by_the_path_of_a_store_object(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "lone.zarr", data=np.arange(3))
    mapper = fsspec.get_mapper(str(tmp_path / "lone.zarr"))
    for store in (LocalStore(tmp_path / "lone.zarr"), StorePath(LocalStore(tmp_path), "lone.zarr"), mapper):
        assert list(open_doors(store).ds.variables) == ["lone"]
    memory = MemoryStore()
    zarr.create_array(memory, data=np.arange(3))
    assert list(open_doors(memory).ds.variables) == ["data"]

    (tmp_path / "nothing").mkdir()
    with zipfile.ZipFile(tmp_path / "nothing.zip", "w"):
        pass
    for missing in (
        LocalStore(tmp_path / "nothing", read_only=True),
        ZipStore(tmp_path / "nothing.zip", mode="r"),
        FsspecStore.from_url(f"file://{tmp_path}/nothing", read_only=True),
    ):
        with pytest.raises(FileNotFoundError, match=f"{tmp_path}/nothing"):
            xr.open_dataset(missing, engine="tensordict")  # type: ignore[arg-type]


def test_every_writer_takes_a_file_url(
    tmp_path: Path, td: TensorDict, ds: xr.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    ds.td.to_zarr(f"file://{tmp_path}/a.zarr")
    ds.td.to_zarr(f"file://{tmp_path}/a.zip")
    ds.td.to_h5(f"file://{tmp_path}/a.h5")
    ds.td.to_memmap(f"file://{tmp_path}/a_memmap")
    ds.td.to_memmap(f"file://{tmp_path}/a.tdz")
    assert os.listdir(here) == []
    for name in ("a.zarr", "a.zip", "a.h5", "a_memmap", "a.tdz"):
        assert_holds(f"file://{tmp_path}/{name}", td)
        assert_holds(tmp_path / name, td)
    for name in ("a.zarr", "a.h5"):
        open_persistent(f"file://{tmp_path}/{name}", mode="r+").close()
        annotate(f"file://{tmp_path}/{name}")


def test_a_memmap_is_not_written_to_a_url_of_another_machine(
    tmp_path: Path, ds: xr.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"s3://bucket/x: .*to_zarr writes to URLs"):
        ds.td.to_memmap("s3://bucket/x")
    with pytest.raises(ValueError, match=r"s3://bucket/x\.h5"):
        ds.td.to_h5("s3://bucket/x.h5")
    assert os.listdir(tmp_path) == []


def test_a_file_that_a_dataset_has_open_is_not_changed_and_is_named(
    tmp_path: Path, td: TensorDict, ds: xr.Dataset
) -> None:
    path = tmp_path / "a.h5"
    ds.td.to_h5(path)
    with h5py.File(path) as file:
        for change in (lambda: open_persistent(path, mode="r+"), lambda: annotate(path)):
            with pytest.raises(ValueError, match=r"a\.h5: this process has the file open for reading.*ds\.close\(\)"):
                change()
        assert file["obs"].shape == (4, 3)
    open_persistent(path, mode="r+").close()
    annotate(path)
    assert_holds(path, td)
