"""Stores in object storage, against a real S3 API on loopback: what is read, what is asked for, and what is written."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from threading import Thread
from typing import Any

import dask
import dask.array
import numpy as np
import obstore
import obstore.store
import pytest
import torch
import xarray as xr
import zarr
from fsspec.registry import _registry as fsspec_registry
from tensordict import TensorDict
from zarr.storage import FsspecStore, ObjectStore

import xarray_tensordict
from s3_server import S3Server
from written import assert_bare_tensordict_reads, assert_gives_back, era, reopened
from xarray_tensordict._compat.xarray import IS_BEFORE_2026_9
from xarray_tensordict.formats.zarr import transaction
from xarray_tensordict.testing import assert_same_tensordict
from xarray_tensordict_engine import TensorDictBackendEntrypoint

FORMATS = pytest.mark.parametrize("zarr_format", [2, 3])


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


KINDS = list(product(["url", "fsspec", "obstore"], [3, 2], ["tensordict", "xarray"]))
FAST = {("url", 3, "tensordict"), ("obstore", 2, "xarray")}
ALL_KINDS = pytest.mark.parametrize(
    ("way", "zarr_format", "layout"),
    [pytest.param(*kind, marks=() if kind in FAST else pytest.mark.slow) for kind in KINDS],
)


def place(s3: S3Server, way: str, name: str) -> tuple[Any, dict[str, Any]]:
    """A store of that name in the bucket, and the keywords that go with it."""
    if way == "url":
        return s3.url(name), {"storage_options": s3.options}
    if way == "fsspec":
        return FsspecStore.from_url(s3.url(name), storage_options=s3.options), {}
    return ObjectStore(s3.obstore(name)), {}


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name in the bucket that no other test has."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name) + ".zarr"


def batched(rows: int = 10) -> xr.Dataset:
    """Nothing but chunked arrays: opening reads metadata alone."""
    values = np.arange(rows * 4.0).reshape(rows, 4)
    return xr.Dataset(
        {
            "obs": (("time", "f"), values),
            "next/obs": (("time", "f"), values + 1),
            "word": ("time", np.array([f"w{row}" for row in range(rows)], object)),
        }
    )


def asked(s3: S3Server) -> list[tuple[str, str]]:
    """The requests since the last call, but for the first of the texts, which xarray before 2026.9 reads on opening."""
    return [request for request in s3.asked() if not (IS_BEFORE_2026_9 and "/word/" in request[1])]


# -- what is asked for -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "layout"),
    [
        ("url", "tensordict"),
        ("obstore", "tensordict"),
        pytest.param("fsspec", "tensordict", marks=pytest.mark.slow),
        pytest.param("url", "xarray", marks=pytest.mark.slow),
    ],
)
def test_opening_takes_one_request_and_a_selection_its_chunks(s3: S3Server, name: str, way: str, layout: Any) -> None:
    store, keywords = place(s3, way, name)
    batched().td.to_zarr(store, chunks={"time": 2}, layout=layout, **keywords)
    s3.asked()
    ds = xr.open_dataset(store, engine="tensordict", **keywords)
    repr(ds), repr(ds.td), ds.td.batch_dims
    assert asked(s3) == [("GET", f"{name}/zarr.json")]
    ds["obs"].isel(time=7).load()
    assert s3.asked() == [("GET", f"{name}/obs/c/3/0")]
    ds.isel(time=slice(2, 4)).td.to_tensordict()
    rows = [("GET", f"{name}/{key}") for key in ("next/obs/c/1/0", "obs/c/1/0", "word/c/1")]
    assert s3.asked() == rows

    ptd = xarray_tensordict.open_persistent(store, **keywords)
    assert ptd.batch_size == torch.Size([10])
    assert asked(s3) == [("GET", f"{name}/zarr.json")]
    assert ptd[3]["next", "obs"].tolist() == [13.0, 14.0, 15.0, 16.0]
    assert s3.asked() == rows
    ptd.get_at("obs", slice(0, 4))
    assert s3.asked() == [("GET", f"{name}/obs/c/{chunk}/0") for chunk in (0, 1)]


def test_the_metadata_of_zarr_v2_takes_one_request_too(s3: S3Server, name: str) -> None:
    store = s3.url(name)
    batched().td.to_zarr(store, chunks={"time": 2}, zarr_format=2, storage_options=s3.options)
    s3.asked()
    xr.open_dataset(store, engine="tensordict", storage_options=s3.options, zarr_format=2)
    assert asked(s3) == [("GET", f"{name}/.zmetadata")]
    ds = xr.open_dataset(store, engine="tensordict", storage_options=s3.options)
    tried, *found = asked(s3)
    assert tried == ("GET", f"{name}/.zmetadata")
    assert found == [("GET", f"{name}/zarr.json")], "the format was not given: v3 was tried"
    ds["obs"].isel(time=0).load()
    assert s3.asked() == [("GET", f"{name}/obs/0.0")]


@FORMATS
def test_texts_that_belong_to_the_metadata_are_read_once_and_a_tree_asks_no_more(
    s3: S3Server, name: str, zarr_format: Any
) -> None:
    ds = batched().assign(lat=("lat", [1.0, 2.0]), task="pick", robot="ur5")
    ds.td.to_zarr(s3.url(name), storage_options=s3.options, zarr_format=zarr_format)
    keywords = {"engine": "tensordict", "storage_options": s3.options, "zarr_format": zarr_format}
    s3.asked()
    for open_it in (xr.open_dataset, xr.open_datatree, xr.open_groups):
        open_it(s3.url(name), **keywords)
        keys = [key.removeprefix(f"{name}/").partition("/")[0] for method, key in asked(s3)]
        assert sorted(keys) == sorted(
            ["zarr.json" if zarr_format == 3 else ".zmetadata", "_unbatched", "robot", "task"]
        )


def test_a_group_of_a_store_takes_one_request_for_metadata(s3: S3Server, name: str) -> None:
    batched().td.to_zarr(s3.url(name), storage_options=s3.options, group="runs/a")
    s3.asked()
    ds = xr.open_dataset(s3.url(name), engine="tensordict", storage_options=s3.options, group="runs/a")
    assert asked(s3) == [("GET", f"{name}/zarr.json")]
    assert ds["next/obs"].isel(time=2).values.tolist() == [9.0, 10.0, 11.0, 12.0]


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
def test_the_groups_beside_one_without_a_record_are_in_the_metadata_that_were_read(s3: S3Server, name: str) -> None:
    store = FsspecStore.from_url(s3.url(name), storage_options=s3.options)
    likelihood = xr.Dataset({"theta": (("chain", "draw", "school"), np.zeros((2, 5, 3)))})
    likelihood.to_zarr(store, group="log_likelihood", consolidated=False)
    posterior = likelihood.assign(mu=likelihood["theta"].isel(school=0))
    posterior.to_zarr(store, group="posterior", consolidated=False)
    zarr.consolidate_metadata(store)
    s3.asked()
    ds = xr.open_dataset(s3.url(name), engine="tensordict", storage_options=s3.options, group="log_likelihood")
    assert asked(s3) == [("GET", f"{name}/zarr.json")]
    assert ds.td.batch_dims == ("chain", "draw"), "as the group beside it"


def test_guessing_asks_for_nothing(s3: S3Server, name: str) -> None:
    batched().td.to_zarr(s3.url(name), storage_options=s3.options)
    s3.asked()
    guess = TensorDictBackendEntrypoint().guess_can_open
    assert not guess(s3.url(name))
    assert not guess(FsspecStore.from_url(s3.url(name), storage_options=s3.options))
    assert s3.asked() == []


# -- both libraries, bare libraries ----------------------------------------------------------------------------------------


@ALL_KINDS
def test_it_comes_back_as_it_was_in_every_library(
    s3: S3Server, name: str, way: str, zarr_format: Any, layout: Any
) -> None:
    store, keywords = place(s3, way, name)
    ds = era()
    ds.td.to_zarr(store, layout=layout, zarr_format=zarr_format, **keywords)
    assert_gives_back(store, ds, **keywords)
    ptd = xarray_tensordict.open_persistent(store, **keywords)
    assert_same_tensordict(ptd.to_tensordict(), ds.td.to_tensordict())
    tree = xr.open_datatree(store, engine="tensordict", **keywords)
    np.testing.assert_array_equal(tree["next/t2m"], ds["next/t2m"])
    again = zarr.open_group(store, mode="r", **keywords)
    assert "next/t2m" in again.metadata.consolidated_metadata.flattened_metadata
    if layout == "tensordict":
        assert_bare_tensordict_reads(again.store, ds)
    bare = xr.open_zarr(store, **keywords)
    np.testing.assert_array_equal(bare["t2m"], ds["t2m"])
    assert bare["t2m"].dims == ds["t2m"].dims


@pytest.mark.parametrize("way", ["url", "obstore"])
@FORMATS
def test_stores_without_consolidated_metadata_open(s3: S3Server, name: str, way: str, zarr_format: Any) -> None:
    store, keywords = place(s3, way, name)
    ds = era()
    ds.td.to_zarr(store, zarr_format=zarr_format, consolidated=False, **keywords)
    assert zarr.open_group(store, mode="r", **keywords).metadata.consolidated_metadata is None
    assert_gives_back(store, ds, **keywords)


@FORMATS
def test_what_bare_tensordict_and_bare_xarray_wrote_opens(s3: S3Server, name: str, zarr_format: Any) -> None:
    td = TensorDict({"obs": torch.rand(6, 3), "next": {"obs": torch.rand(6, 3)}}, [6], names=["time"])
    group = zarr.open_group(s3.url(name), mode="w", storage_options=s3.options, zarr_format=zarr_format)
    td.to_zarr(group.store)
    ds = xr.open_dataset(s3.url(name), engine="tensordict", storage_options=s3.options)
    assert_same_tensordict(ds.td.to_tensordict(), td)
    plain = xr.Dataset({"x": (("time", "lat"), np.ones((4, 3)))}, coords={"lat": [1.0, 2.0, 3.0]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # consolidated metadata is no part of v3 yet
        plain.to_zarr(s3.url(f"x-{name}"), storage_options=s3.options, zarr_format=zarr_format)
    assert_gives_back(s3.url(f"x-{name}"), plain, storage_options=s3.options)


def test_a_store_whose_root_is_one_array(s3: S3Server, name: str) -> None:
    for zarr_format in (2, 3):
        url = s3.url(f"{zarr_format}-{name}")
        zarr.save_array(url, np.arange(6.0), storage_options=s3.options, zarr_format=zarr_format)
        ds = xr.open_dataset(url, engine="tensordict", storage_options=s3.options)
        assert next(iter(ds.data_vars.values())).values.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


# -- changes -----------------------------------------------------------------------------------------------------------


@ALL_KINDS
def test_append_and_region_keep_all_records_true(
    s3: S3Server, name: str, way: str, zarr_format: Any, layout: Any
) -> None:
    store, keywords = place(s3, way, name)
    whole = era(6)
    whole.isel(time=slice(0, 4)).td.to_zarr(store, layout=layout, zarr_format=zarr_format, **keywords)
    rows = whole.isel(time=slice(4, 6))
    rows.chunk(time=1).td.to_zarr(store, append_dim="time", compute=False, **keywords)  # nobody computes it
    assert_gives_back(store, whole.isel(time=slice(0, 4)), **keywords)
    rows.td.to_zarr(store, append_dim="time", **keywords)
    assert_gives_back(store, whole, **keywords)
    changed = whole.copy(deep=True)
    changed["t2m"][1:3] = -1
    changed["next/t2m"][1:3] = -2
    changed["done"][1:3] = True
    changed["station"] = ("time", np.array([*whole["station"].values[:1], "neu", "b", *whole["station"].values[3:]]))
    part = changed.isel(time=slice(1, 3))
    part.td.to_zarr(store, region={"time": slice(1, 3)}, **keywords)
    part.td.to_zarr(store, region="auto", **keywords)
    assert_gives_back(store, changed.assign(station=changed["station"].astype(object)), **keywords)
    found = zarr.open_group(store, mode="r", **keywords)
    assert found.metadata.consolidated_metadata.flattened_metadata["next/t2m"].shape[0] == 6
    if layout == "tensordict":
        assert found.attrs["__tensordict__"]["batch_size"] == [6]
        assert found["next"].attrs["__tensordict__"]["batch_size"] == [6]
        assert TensorDict.from_zarr(found.store)["next", "t2m"][1].unique().tolist() == [-2.0]


@pytest.mark.parametrize("way", ["url", "obstore"])
def test_one_writer_at_a_time_takes_a_store(s3: S3Server, name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store, keywords = place(s3, way, name)
    batched(4).td.to_zarr(store, **keywords)
    opened = ObjectStore(s3.obstore(name))
    with transaction.taken(opened, "here"), monkeypatch.context() as patch:
        patch.setattr(transaction, "WAIT", 0.1)
        with pytest.raises(BlockingIOError, match="try again"):
            batched(2).td.to_zarr(store, append_dim="time", **keywords)
    s3.asked()
    batched(2).td.to_zarr(store, append_dim="time", **keywords)
    keys = [key for method, key in s3.asked() if method == "PUT"]
    assert keys.count(f"{name}/{transaction.LOCK}") == 1
    assert xr.open_dataset(store, engine="tensordict", **keywords).sizes["time"] == 6


@pytest.mark.parametrize(
    ("way", "zarr_format"), [("url", 3), pytest.param("url", 2, marks=pytest.mark.slow), ("obstore", 2)]
)
def test_modes(s3: S3Server, name: str, way: str, zarr_format: Any) -> None:
    store, keywords = place(s3, way, name)
    era().td.to_zarr(store, mode="w-", zarr_format=zarr_format, **keywords)
    with pytest.raises(FileExistsError, match="mode='w'"):
        era(2).td.to_zarr(store, mode="w-", **keywords)
    assert_gives_back(store, era(), **keywords)
    era().assign(more=("time", np.arange(4)))[["more"]].td.to_zarr(store, mode="a", **keywords)
    assert reopened(store, **keywords)["more"].values.tolist() == [0, 1, 2, 3]
    # a variable that is not in the new one goes, its chunks too
    era(2).drop_vars("done").td.to_zarr(store, mode="w", zarr_format=zarr_format, **keywords)
    assert_gives_back(store, era(2).drop_vars("done"), **keywords)
    s3.asked()
    assert not [key for key in zarr.open_group(store, mode="r", use_consolidated=False, **keywords) if key == "done"]


def test_a_group_beside_the_rest(s3: S3Server, name: str) -> None:
    keywords = {"storage_options": s3.options}
    era().td.to_zarr(s3.url(name), **keywords)
    era(3).td.to_zarr(s3.url(name), group="runs/a", **keywords)
    era(2).td.to_zarr(s3.url(name), group="runs/a", mode="w", **keywords)
    assert_gives_back(s3.url(name), era(2), group="runs/a", **keywords)
    np.testing.assert_array_equal(reopened(s3.url(name), nested=False, **keywords)["t2m"], era()["t2m"])
    group = zarr.open_group(s3.url(name), **keywords)
    assert_gives_back(group["runs/a"], era(2))


def test_annotate(s3: S3Server, name: str) -> None:
    keywords = {"storage_options": s3.options}
    root = zarr.open_group(s3.url(name), mode="w", **keywords)
    root.create_array("obs", data=np.zeros((6, 3)))
    root.create_array("next/obs", data=np.zeros((6, 3)))
    xarray_tensordict.annotate(s3.url(name), "time", **keywords)
    assert xr.open_zarr(s3.url(name), consolidated=False, **keywords)["obs"].dims[0] == "time"
    assert TensorDict.from_zarr(zarr.open_group(s3.url(name), **keywords).store).names == ["time"]


def test_a_store_is_not_written_onto_what_it_is_read_from(s3: S3Server, name: str) -> None:
    keywords = {"storage_options": s3.options}
    batched().td.to_zarr(s3.url(name), **keywords)
    ds = xr.open_dataset(s3.url(name), engine="tensordict", **keywords)
    with pytest.raises(ValueError, match="read lazily from the store"):
        ds.td.to_zarr(s3.url(name), mode="w", **keywords)
    assert_gives_back(s3.url(name), batched(), **keywords)


# -- dask --------------------------------------------------------------------------------------------------------------


def _half(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return block / 2


@pytest.mark.parametrize(
    ("way", "scheduler"),
    [
        ("url", "threads"),
        ("obstore", "threads"),
        pytest.param("fsspec", "threads", marks=pytest.mark.slow),
        pytest.param("url", "processes", marks=pytest.mark.slow),
    ],
)
def test_dask_reads_and_writes(s3: S3Server, name: str, way: str, scheduler: Any) -> None:
    store, keywords = place(s3, way, name)
    batched().td.to_zarr(store, chunks={"time": 2}, **keywords)
    target, _ = place(s3, way, f"half-{name}")
    ds = xr.open_dataset(store, engine="tensordict", chunks={}, **keywords)
    assert ds["obs"].chunks == ((2,) * 5, (4,))
    again = pickle.loads(pickle.dumps(ds))
    assert len(pickle.dumps(ds)) < 40_000
    # one worker for all that is computed: each imports torch
    spawned = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(1, spawned) if scheduler == "processes" else ThreadPoolExecutor(2)
    with pool, dask.config.set(scheduler=scheduler, pool=pool):
        half = again.assign(
            {key: again[key].copy(data=again[key].data.map_blocks(_half)) for key in ("obs", "next/obs")}
        )
        half.td.to_zarr(target, **keywords)
        half.isel(time=slice(0, 4)).td.to_zarr(target, append_dim="time", **keywords)
        half.isel(time=slice(4, 6)).drop_vars("word").td.to_zarr(target, region={"time": slice(0, 2)}, **keywords)
        found = xr.open_dataset(target, engine="tensordict", chunks={}, **keywords).load()
    expected = np.concatenate([np.arange(40.0).reshape(10, 4), np.arange(16.0).reshape(4, 4)]) / 2
    expected[:2] = expected[4:6]
    np.testing.assert_array_equal(found["obs"], expected)
    np.testing.assert_array_equal(found["next/obs"], expected + 0.5)
    assert found["word"].values.tolist() == [*(f"w{row}" for row in range(10)), *(f"w{row}" for row in range(4))]


@pytest.mark.parametrize("compute_later", [True, False])
def test_a_template_is_filled_by_regions(s3: S3Server, name: str, compute_later: bool) -> None:
    keywords = {"storage_options": s3.options}
    ds = batched().drop_vars("word").chunk(time=2)
    delayed = ds.td.to_zarr(s3.url(name), compute=False, **keywords)
    if compute_later:
        delayed.compute()
    else:
        for start in range(0, 10, 2):
            part = ds.isel(time=slice(start, start + 2))
            part.td.to_zarr(s3.url(name), region={"time": slice(start, start + 2)}, **keywords)
    assert_gives_back(s3.url(name), batched().drop_vars("word"), **keywords)


@pytest.mark.parametrize("way", ["url", "fsspec"])
def test_a_lazy_tensordict_pickles_with_its_storage_options(s3: S3Server, name: str, way: str) -> None:
    store, keywords = place(s3, way, name)
    batched().td.to_zarr(store, **keywords)
    ptd = xarray_tensordict.open_persistent(store, **keywords)
    again = pickle.loads(pickle.dumps(ptd))
    assert_same_tensordict(again.to_tensordict(), batched().td.to_tensordict())


# -- errors ------------------------------------------------------------------------------------------------------------


def test_errors_name_the_store_and_the_way_out(s3: S3Server, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keywords = {"storage_options": s3.options}
    url, elsewhere = s3.url(name), f"s3://no-such-bucket/{name}"
    for open_it in (xr.open_dataset, xr.open_datatree):
        with pytest.raises(FileNotFoundError, match=rf"{url}: no zarr group was found"):
            open_it(url, engine="tensordict", **keywords)
    with pytest.raises(FileNotFoundError, match="no-such-bucket"):
        xarray_tensordict.open_persistent(elsewhere, **keywords)
    with pytest.raises(FileNotFoundError, match=f"{elsewhere}: the bucket is not there"):
        batched().td.to_zarr(elsewhere, **keywords)
    with pytest.raises(FileNotFoundError, match=f"{url}: there is no zarr group to change"):
        batched().td.to_zarr(url, append_dim="time", **keywords)

    nobody = {"storage_options": s3.client_options}
    with pytest.raises(PermissionError, match=f"{url}: the store refuses access.*storage_options.*'anon'"):
        xr.open_dataset(url, engine="tensordict", **nobody)
    with pytest.raises(PermissionError, match=f"{url}: the store refuses access"):
        batched().td.to_zarr(url, **nobody)

    batched().td.to_zarr(url, **keywords)
    xr.open_dataset(url, engine="tensordict", **keywords)
    fast = {"retries": {"max_attempts": 1}, "connect_timeout": 1}
    nowhere = {**s3.options, "client_kwargs": {"endpoint_url": "http://127.0.0.1:9"}, "config_kwargs": fast}
    with pytest.raises(ConnectionError, match=f"{url}: the store does not answer"):
        xr.open_dataset(url, engine="tensordict", storage_options=nowhere)

    # a process in which it is not installed, and fsspec has not imported it
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(fsspec_registry, "s3")
    with pytest.raises(ImportError, match=rf"{url}.*xarray-tensordict\[s3\]"):
        xr.open_dataset(url, engine="tensordict", **keywords)
    with pytest.raises(ImportError, match=r"xarray-tensordict\[s3\]"):
        batched().td.to_zarr(url, **keywords)


def test_a_url_of_http_names_its_package_and_obstore_opens_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batched().td.to_zarr(tmp_path / "a.zarr")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(tmp_path)))
    Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/a.zarr"
    try:
        monkeypatch.setitem(sys.modules, "fsspec.implementations.http", None)
        monkeypatch.delitem(fsspec_registry, "http", raising=False)
        with pytest.raises(ImportError, match=r"need a package that is missing.*install 'aiohttp'") as raised:
            xr.open_dataset(url, engine="tensordict")
        code = str(raised.value).partition("or obstore and open ")[2].partition(", which repeats requests that fail")[0]
        store = eval(code, {"zarr": zarr, "obstore": obstore, "url": url})
        with xr.open_dataset(store, engine="tensordict") as ds:
            assert ds.td.batch_size == (10,)
    finally:
        server.shutdown()
        server.server_close()


def test_errors_of_obstore(s3: S3Server, name: str) -> None:
    store, _ = place(s3, "obstore", name)
    with pytest.raises(FileNotFoundError, match="no zarr group was found"):
        xr.open_dataset(store, engine="tensordict")
    with pytest.raises(FileNotFoundError, match="there is no zarr group to change"):
        batched().td.to_zarr(store, append_dim="time")
    batched().td.to_zarr(store)
    with pytest.raises(FileExistsError):
        batched().td.to_zarr(store)


def test_a_local_error_is_left_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="No such file or directory"):
        xr.open_dataset(tmp_path / "none.zarr", engine="tensordict")
