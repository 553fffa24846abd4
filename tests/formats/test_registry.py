"""Stores as users hand them over: objects of zarr and others, archives, mappers, URLs, files that are still open."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import shutil
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from tensordict import PersistentTensorDict, TensorDict
from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore, MemoryStore, StorePath, WrapperStore, ZipStore

import xarray_tensordict
from corpus import open_in_both
from persistent_samples import needs_0_15
from s3_server import S3Server
from written import assert_gives_back, era, reopened
from xarray_tensordict import annotate, open_persistent
from xarray_tensordict.testing import assert_same_tensordict

FORMATS = pytest.mark.parametrize("zarr_format", [2, 3])


class _Foreign(Store):
    """The least a store can be: somebody else's, over a dict."""

    supports_writes = supports_deletes = supports_listing = True
    supports_partial_writes = False
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, inner: MemoryStore | None = None, *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only)
        self.inner = inner or MemoryStore()

    def with_read_only(self, read_only: bool = False) -> Any:
        return ForeignStore(self.inner, read_only=read_only)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Foreign) and other.inner is self.inner


def _passed_on(name: str) -> Any:
    return lambda self, *arguments, **keywords: getattr(self.inner, name)(*arguments, **keywords)


ForeignStore: Any = type(
    "ForeignStore",
    (_Foreign,),
    {name: _passed_on(name) for name in Store.__abstractmethods__ - {"__eq__"} - set(vars(_Foreign))},
)


STORES: dict[str, Callable[[Path], Any]] = {
    "MemoryStore": lambda path: MemoryStore(),
    "dict": lambda path: {},
    "a store of somebody else": lambda path: ForeignStore(),
    "WrapperStore": lambda path: WrapperStore(LocalStore(path)),
    "LocalStore": LocalStore,
    "StorePath": lambda path: StorePath(MemoryStore(), "a/b"),
    "StorePath of a folder": lambda path: StorePath(LocalStore(path), "a/b"),
    "Group": lambda path: zarr.open_group(MemoryStore(), mode="w").create_group("x"),
    "Group of a folder": lambda path: zarr.open_group(path, mode="w").create_group("x"),
}


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("layout", ["tensordict", "xarray"])
def test_any_store_is_written_changed_and_read_by_both_libraries(tmp_path: Path, kind: str, layout: Any) -> None:
    store = STORES[kind](tmp_path / "store.zarr")
    whole = era(6)
    whole.isel(time=slice(0, 4)).td.to_zarr(store, layout=layout, mode="w")
    whole.isel(time=slice(4, 6)).td.to_zarr(store, append_dim="time")
    changed = whole.assign(
        t2m=whole["t2m"].where(whole["run"] % 2 == 0, -1).astype("f4").assign_attrs(whole["t2m"].attrs)
    )
    changed.isel(time=slice(1, 3)).td.to_zarr(store, region="auto")
    changed.isel(time=slice(3, 6)).td.to_zarr(store, region={"time": slice(3, 6)})
    # an open group has read its attributes already
    again = zarr.open_group(store.store, path=store.path) if isinstance(store, zarr.Group) else store
    assert_gives_back(again, changed)
    open_in_both(again).close()
    inner = getattr(store, "store", store)
    if isinstance(inner, Store) and not isinstance(inner, LocalStore):
        assert inner._is_open, "the store of the caller is never closed here"
    assert_gives_back(again, changed)


@pytest.mark.parametrize("make", [MemoryStore, ForeignStore])
def test_a_read_only_store_is_read_and_refuses_in_words(make: Any, tmp_path: Path) -> None:
    store = make()
    era().td.to_zarr(store)
    read_only = store.with_read_only(True)
    open_in_both(read_only).close()
    era().td.to_zarr(tmp_path / "era.zarr")
    for target in (read_only, zarr.open_group(store, mode="r"), LocalStore(tmp_path / "era.zarr", read_only=True)):
        for keywords in ({"mode": "w"}, {"mode": "a"}, {"append_dim": "time"}, {"region": "auto"}):
            with pytest.raises(PermissionError, match="opened for reading only"):
                era().td.to_zarr(target, **keywords)
    assert_gives_back(read_only, era())
    assert_gives_back(tmp_path / "era.zarr", era())


# -- zip archives ------------------------------------------------------------------------------------------------------


@FORMATS
@pytest.mark.parametrize("name", ["era.zip", "era.zarr.zip"])
def test_a_zip_archive_by_name_and_by_object(tmp_path: Path, zarr_format: Any, name: str) -> None:
    path = tmp_path / name
    era().td.to_zarr(path, zarr_format=zarr_format)
    with zipfile.ZipFile(path) as archive:
        assert len(archive.namelist()) == len(set(archive.namelist()))
    still_open = ZipStore(path, mode="r")
    still_open._sync_open()
    for store in (path, str(path), ZipStore(path, mode="r"), still_open):
        assert_gives_back(store, era())
        both = open_in_both(store)
        assert_same_tensordict(pickle.loads(pickle.dumps(both.ptd)).to_tensordict(), era().td.to_tensordict())
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(both.ds))["t2m"], era()["t2m"])
        both.close()
    assert still_open._is_open
    still_open.close()
    assert reopened(path, group="next")["t2m"].shape == (4, 2, 3)
    assert xr.open_datatree(path, engine="tensordict")["next/t2m"].shape == (4, 2, 3)


def test_compressed_and_duplicated_members_of_zip_archives(tmp_path: Path) -> None:
    td = TensorDict({"obs": torch.rand(6, 3), "next": {"obs": torch.rand(6, 3)}}, [6], names=["time"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are there already
        with ZipStore(tmp_path / "td.zip", mode="w") as store:
            td.to_zarr(store)
            zarr.open_group(store, mode="a").attrs["note"] = "metadata that is written twice"
    with zipfile.ZipFile(tmp_path / "td.zip") as archive:
        names = archive.namelist()
        assert len(names) > len(set(names))
        for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
            with zipfile.ZipFile(tmp_path / f"{method}.zip", "w", method) as packed:
                for name in set(names):
                    packed.writestr(name, archive.read(name))
    for name in ("td.zip", "8.zip", "12.zip", "14.zip"):
        both = open_in_both(tmp_path / name)
        assert_same_tensordict(both.ptd.to_tensordict(), td)
        both.close()


def _read_rows(ds: xr.Dataset, results: Any) -> None:
    results.put(all(int(ds["x"][row, 0]) == row for row in range(200)))


def test_forked_processes_read_the_zip_store_of_the_caller(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    values = np.arange(200)[:, None] * np.ones((1, 50), int)
    xr.Dataset({"x": (("time", "f"), values)}).td.to_zarr(path, chunks={"time": 1})
    ds = xr.open_dataset(ZipStore(path, mode="r"), engine="tensordict")
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=_read_rows, args=(ds, results)) for _ in range(3)]
    for process in processes:
        process.start()
    assert [results.get(timeout=60) for _ in processes] == [True] * 3
    for process in processes:
        process.join(60)


def test_a_group_in_a_zip_archive_that_is_there_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "era.zip"
    era().td.to_zarr(path, group="runs/a")
    assert_gives_back(path, era(), group="runs/a")
    before = path.read_bytes()
    for mode in ("w", "w-"):
        with pytest.raises((ValueError, FileExistsError), match=r"era\.zip, group '/runs/b'"):
            era().td.to_zarr(path, group="runs/b", mode=mode)
    assert path.read_bytes() == before


@pytest.mark.parametrize("mode", [None, "w"])
def test_an_open_zip_store_is_neither_filled_twice_nor_read_before_it_is_whole(tmp_path: Path, mode: Any) -> None:
    with ZipStore(tmp_path / "era.zip", mode="w") as store:
        era().td.to_zarr(store, mode=mode)
        with pytest.raises(ValueError, match="cannot be replaced"):
            era().td.to_zarr(store, mode="w")
        with pytest.raises(ValueError, match=r"open for writing.*close it"):
            xr.open_dataset(store, engine="tensordict")
    with zipfile.ZipFile(tmp_path / "era.zip") as archive:
        assert len(archive.namelist()) == len(set(archive.namelist()))
    assert_gives_back(tmp_path / "era.zip", era())


# -- an open PersistentTensorDict --------------------------------------------------------------------------------------


def buffer() -> TensorDict:
    return TensorDict({"obs": torch.arange(18.0).view(6, 3), "next": {"obs": torch.ones(6, 3)}}, [6])


OPENED: dict[str, Callable[[Path, str], Any]] = {
    "h5": lambda path, mode: PersistentTensorDict.from_h5(path / "td.h5", mode=mode),
    "zarr": lambda path, mode: TensorDict.from_zarr(path / "td.zarr", mode=mode),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    buffer().to_h5(tmp_path / "td.h5").close()
    buffer().to_zarr(tmp_path / "td.zarr")
    return tmp_path


@pytest.mark.parametrize("backend", OPENED)
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_an_open_persistent_tensordict_is_a_source(folder: Path, backend: str, mode: str) -> None:
    ptd = OPENED[backend](folder, mode)
    for source, expected in ((ptd, buffer()), (ptd["next"], buffer()["next"])):
        both = open_in_both(source)
        assert_same_tensordict(both.ptd.to_tensordict(), expected)
        both.close()
        assert source["obs"].shape == (6, 3), "closing the Dataset leaves the file of the caller open"
    if mode == "r+":
        ptd["obs"] = torch.full((6, 3), 7.0)
        ptd["next"].set_at_("obs", torch.full((3,), 8.0), 2)
        ds = xr.open_dataset(ptd, engine="tensordict")
        assert ds["obs"].values.tolist() == [[7.0] * 3] * 6, "not flushed, and fresh"
        assert ds["next/obs"].values[2].tolist() == [8.0] * 3
        writable = open_persistent(ptd, mode="r+")
        writable.set_at_("obs", torch.zeros(3), 0)
        assert ptd["obs"][0].tolist() == [0.0] * 3
    ptd.close()


def test_what_is_no_store_says_what_to_do(folder: Path) -> None:
    ptd = OPENED["h5"](folder, "r")
    for source, message in (
        (ptd[2:4], "indexed view.*isel"),
        (open_persistent(folder / "td.zarr"), "open the store itself, by its path"),
        (buffer(), "to_dataset"),
    ):
        with pytest.raises(TypeError, match=message):
            xr.open_dataset(source, engine="tensordict")
        with pytest.raises(TypeError, match=message):
            open_persistent(source)
    ptd.close()


# -- HDF5 through file objects -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["tensordict", "xarray"])
def test_hdf5_through_file_objects_near_and_far(s3: S3Server, tmp_path: Path, layout: Any) -> None:
    path = tmp_path / "era.h5"
    era().td.to_h5(path, layout=layout, group="runs/a")
    s3fs = fsspec.filesystem("s3", **s3.options)
    s3fs.put(str(path), "bucket/era.h5")
    with (
        s3fs.open("bucket/era.h5", "rb") as far,
        fsspec.open(str(path), "rb") as near,
        path.open("rb") as plain,
        h5py.File(path) as file,
    ):
        for source in (far, near, plain, io.BytesIO(path.read_bytes()), file):
            assert_gives_back(source, era(), group="runs/a")
            open_in_both(source, group="runs/a").close()
            tree = xr.open_datatree(source, engine="tensordict")
            assert tree["runs/a/next/t2m"].shape == (4, 2, 3)
        assert_gives_back(file["runs/a"], era())
        assert bool(file)
        assert not far.closed
    with pytest.raises(ValueError, match=r"fsspec\.open"):
        xr.open_dataset(s3.url("era.h5"), engine="tensordict", storage_options=s3.options)


# -- strings, non_tensor_as_stack --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:The h5 backend of PersistentTensorDict reads the string:FutureWarning")
@pytest.mark.parametrize("suffix", [".h5", ".zarr"])
@pytest.mark.parametrize("as_stack", [True, False])
@needs_0_15("writes no rows of text")
def test_text_is_str_and_stacks_are_honoured(tmp_path: Path, suffix: str, as_stack: bool) -> None:
    words = [f"w{row}" for row in range(4)]
    td = TensorDict({"x": torch.zeros(4)}, [4])
    td["task"] = "pick"
    td["word"] = words
    path = tmp_path / f"td{suffix}"
    opened = td.to_h5(path) if suffix == ".h5" else td.to_zarr(path)
    opened.close()
    bare = PersistentTensorDict(
        filename=str(path), batch_size=[4], backend="h5" if suffix == ".h5" else "zarr", non_tensor_as_stack=as_stack
    )
    for source in (path, bare):
        both = open_in_both(source)
        assert both.ds["task"].item() == "pick"
        assert both.ds["word"].values.tolist() == words
        assert {type(word) for word in both.ds["word"].values} == {str}
        assert both.ptd["word"] == words
        assert both.ptd[1]["word"] == "w1"
        both.close()
    bare.close()


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_scalar_of_fixed_bytes_is_text_as_its_neighbours_are(tmp_path, zarr_format):
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=zarr_format)
    for name, shape in (("one", ()), ("rows", (3,))):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # v3 has no specification of the dtype yet
            group.create_array(name, shape=shape, dtype="S4")[...] = np.array(b"ab")
    group.create_array("x", shape=(3, 2), dtype="f4")[...] = 1
    with xr.open_dataset(tmp_path / "a.zarr", engine="tensordict") as ds:
        assert ds["one"].values.tolist() == "ab"
        assert ds["one"].dtype == ds["one"].values.dtype == ds["rows"].dtype
        assert ds["rows"][1].item() == "ab"


# -- mappers, archives in archives, URLs of this machine ----------------------------------------------------------------


@pytest.fixture
def td() -> TensorDict:
    deep = {"reward": torch.rand(4, 1, dtype=torch.float64)}
    return TensorDict({"obs": torch.rand(4, 3), "next": {"obs": torch.rand(4, 3), "deep": deep}}, [4], names=["time"])


@pytest.fixture
def ds(td: TensorDict) -> xr.Dataset:
    return xarray_tensordict.to_dataset(td)


def assert_holds(store: Any, td: TensorDict, **keywords: Any) -> None:
    both = open_in_both(store, **keywords)
    assert_same_tensordict(both.ds.td.to_tensordict(), td)
    both.close()


@pytest.mark.filterwarnings("ignore:Object at")
def test_a_zip_archive_by_a_url(tmp_path: Path, td: TensorDict, ds: xr.Dataset, s3: S3Server) -> None:
    ds.td.to_zarr(tmp_path / "a.zip")
    assert_holds(f"zip://::file://{tmp_path}/a.zip", td)
    assert_holds(f"file://{tmp_path}/a.zip", td)
    fsspec.filesystem("s3", **s3.options).put(str(tmp_path / "a.zip"), "bucket/found/a.zip")
    url = s3.url("found/a.zip")
    with pytest.raises(FileNotFoundError, match=f"opens as 'zip::{url}'"):
        xr.open_dataset(url, engine="tensordict", storage_options=s3.options)
    assert_holds(f"zip::{url}", td, storage_options={"s3": s3.options})


def test_an_archive_of_a_folder_and_not_of_what_is_in_it_is_reported(tmp_path: Path, ds: xr.Dataset) -> None:
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
        assert list(open_in_both(store).ds.variables) == ["lone"]
    memory = MemoryStore()
    zarr.create_array(memory, data=np.arange(3))
    assert list(open_in_both(memory).ds.variables) == ["data"]

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
