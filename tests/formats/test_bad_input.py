"""Bad input: the fitting built-in error, which names the store and what to do, with no file left open.

And laziness, which is counted and not trusted.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil
import pytest
import torch
import xarray as xr
import zarr
from tensordict import TensorDict
from zarr.storage import LocalStore

from persistent_samples import CountingStore
from xarray_tensordict import open_persistent


def open_files(path: Path) -> list[str]:
    return [file.path for file in psutil.Process().open_files() if str(path) in file.path]


def store(path: Path) -> Path:
    TensorDict(
        {"obs": torch.arange(18.0).reshape(6, 3), "next": {"obs": torch.ones(6, 3)}}, [6], names=["time"]
    ).to_zarr(path)
    return path


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "opener", [xr.open_dataset, xr.open_datatree, open_persistent], ids=["dataset", "datatree", "persistent"]
)
class TestBadStores:
    @staticmethod
    def fails(opener: Any, path: Any, error: type[Exception], match: str, **kwargs: Any) -> None:
        if opener is not open_persistent:
            kwargs["engine"] = "tensordict"
        with pytest.raises(error, match=match):
            opener(path, **kwargs)
        if isinstance(path, Path):
            assert open_files(path) == []

    def test_a_missing_path(self, opener: Any, tmp_path: Path) -> None:
        self.fails(opener, tmp_path / "nothing.zarr", FileNotFoundError, "No such file.*nothing.zarr")

    @pytest.mark.parametrize(
        "content", [b"", b"garbage", b"CDF\x01rest", b"GRIBrest"], ids=["empty", "garbage", "netcdf3", "grib"]
    )
    def test_a_file_that_is_neither(self, opener: Any, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "file.nc"
        path.write_bytes(content)
        engine = {b"CDF": "netCDF-3.*engine='scipy'", b"GRI": "GRIB.*engine='cfgrib'"}.get(content[:3], "found")
        self.fails(opener, path, ValueError, f"file.nc.*{engine}")

    def test_a_folder_that_is_neither(self, opener: Any, tmp_path: Path) -> None:
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "notes.txt").write_text("x")
        self.fails(opener, tmp_path / "folder", ValueError, "folder.*zarr.json.*notes.txt")

    def test_a_truncated_hdf5_file(self, opener: Any, tmp_path: Path) -> None:
        path = tmp_path / "cut.h5"
        with h5py.File(path, "w") as file:
            file["x"] = np.arange(10_000.0)
        path.write_bytes(path.read_bytes()[:5_000])
        self.fails(opener, path, OSError, "cut.h5.*truncated")

    @pytest.mark.parametrize("text", ["{", "[]", "\x00"], ids=["cut", "list", "binary"])
    def test_a_corrupt_root_zarr_json(self, opener: Any, tmp_path: Path, text: str) -> None:
        path = store(tmp_path / "td.zarr")
        (path / "zarr.json").write_text(text)
        self.fails(opener, path, ValueError, "td.zarr")

    def test_an_unknown_version_of_the_record(self, opener: Any, tmp_path: Path) -> None:
        path = store(tmp_path / "td.zarr")
        zarr.open_group(path, mode="r+").attrs["__tensordict__"] = {"batch_size": [6], "version": 7}
        self.fails(opener, path, ValueError, "td.zarr.*version 7, expected 1")

    def test_an_unknown_batch_dim(self, opener: Any, tmp_path: Path) -> None:
        path = store(tmp_path / "td.zarr")
        self.fails(opener, path, ValueError, r"td.zarr.*no dim 'tiem'.*'time'", batch_dims="tiem")

    def test_a_count_that_the_arrays_contradict(self, opener: Any, tmp_path: Path) -> None:
        zarr.open_group(tmp_path / "raw.zarr", mode="w").create_array("x", data=np.zeros((6, 3)))
        zarr.open_group(tmp_path / "raw.zarr", mode="a").create_array("y", data=np.zeros((6, 2)))
        self.fails(
            opener, tmp_path / "raw.zarr", ValueError, "'x' has shape.*'y' has|'y' has shape.*'x' has", batch_dims=2
        )

    def test_a_group_that_is_not_there(self, opener: Any, tmp_path: Path) -> None:
        self.fails(
            opener, store(tmp_path / "td.zarr"), (FileNotFoundError, KeyError), "td.zarr.*'/nxt'.*'/next'", group="nxt"
        )
        with h5py.File(tmp_path / "file.h5", "w") as file:
            file["next/x"] = np.arange(3.0)
        self.fails(
            opener, tmp_path / "file.h5", (FileNotFoundError, KeyError, OSError), "file.h5.*nxt.*next", group="nxt"
        )

    def test_something_that_is_no_store(self, opener: Any) -> None:
        self.fails(opener, 3, TypeError, "expected a path.*int")


def test_a_contradicted_batch_size_is_corrected_with_a_warning(tmp_path: Path) -> None:
    path = store(tmp_path / "td.zarr")
    group = zarr.open_group(path, mode="r+")
    group.attrs["__tensordict__"] = {"batch_size": [4], "names": ["time"], "version": 1}
    with pytest.warns(UserWarning, match=r"td.zarr.*recorded batch size \[4\].*'obs'.*\[6\]"):
        ds = xr.open_dataset(path, engine="tensordict")
    assert ds.td.batch_size == (6,)
    assert ds.td.batch_dims == ("time",)


@pytest.mark.parametrize(
    "text", ["{", '{"zarr_format": 3, "node_type": "array"}', "\x00"], ids=["cut", "incomplete", "binary"]
)
def test_one_corrupt_member_leaves_the_rest_readable(tmp_path: Path, text: str) -> None:
    path = store(tmp_path / "td.zarr")
    (path / "obs" / "zarr.json").write_text(text)
    with pytest.warns(UserWarning, match="left out 'obs'"):
        ds = xr.open_dataset(path, engine="tensordict")
    assert list(ds.variables) == ["next/obs"]
    assert "'obs'" in repr(ds.td)


def test_two_variables_that_claim_one_path() -> None:
    ds = xr.Dataset({"a": ("t", [1.0]), "a/b": ("t", [2.0])})
    with pytest.raises(ValueError, match="'a' and 'a/b' claim one path"):
        ds.td.to_tensordict()


# -- laziness ----------------------------------------------------------------------------------------------------------


def test_opening_and_selecting_read_the_chunks_that_they_need(tmp_path: Path) -> None:
    ds = xr.Dataset(
        {"t2m": (("time", "lat"), np.arange(60.0).reshape(20, 3)), "orography": ("lat", np.arange(3.0))},
        coords={"time": np.arange(20), "lat": [1.0, 2.0, 3.0]},
    )
    ds.to_zarr(tmp_path / "era.zarr", encoding={"t2m": {"chunks": (5, 3)}}, consolidated=False)
    store = CountingStore(LocalStore(tmp_path / "era.zarr", read_only=True))
    store.chunks.clear()
    ds = xr.open_dataset(store, engine="tensordict")  # type: ignore[arg-type]
    assert {key.split("/")[0] for key in store.chunks} == {"time", "lat"}, "coordinates that are indexes"
    store.chunks.clear()
    repr(ds), repr(ds.td), ds.td._repr_html_(), ds.td.batched, ds.td.unbatched
    assert store.chunks == []
    ds["t2m"].isel(time=7).load()
    ds.isel(time=slice(0, 5)).td.to_tensordict()
    assert store.chunks == ["t2m/c/1/0", "t2m/c/0/0"]


def test_a_dask_backed_dataset_is_computed_once_as_one_graph() -> None:
    import dask

    calls: list[int] = []

    def block(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        calls.append(1)
        return x

    base = dask.array.ones((6, 2), chunks=(3, 2)).map_blocks(block, meta=np.ones((0, 0)))
    ds = xr.Dataset({"a": (("time", "f"), base), "b": (("time", "f"), base * 2)})
    td = ds.td.to_tensordict()
    assert len(calls) == 2
    assert td["b"].sum() == 24


def test_pickles_are_small_and_hold_no_data(tmp_path: Path) -> None:
    path = tmp_path / "big.zarr"
    zarr.open_group(path, mode="w").create_array("x", data=np.zeros((1000, 1000)))
    with h5py.File(tmp_path / "big.h5", "w") as file:
        file["x"] = np.zeros((1000, 1000))
    for source in (path, tmp_path / "big.h5"):
        ds = xr.open_dataset(source, engine="tensordict")
        text = pickle.dumps(ds)
        assert len(text) < 10_000
        assert pickle.loads(text)["x"].isel(batch_0=3).sum() == 0


def test_files_are_closed_with_their_dataset(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3.0)
    with xr.open_dataset(path, engine="tensordict") as ds:
        ds.load()
    assert open_files(path) == []


def test_a_file_the_caller_opened_stays_open(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "file.h5", "w") as file:
        file["g/x"] = np.arange(3.0)
    with h5py.File(tmp_path / "file.h5") as file:
        with xr.open_dataset(file["g"], engine="tensordict") as ds:
            assert ds["x"].sum() == 3
        assert file["g/x"][1] == 1
