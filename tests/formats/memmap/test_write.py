"""``ds.td.to_memmap``: what the tensordict of a Dataset holds, for ``tensordict.load``."""

import pickle
import tracemalloc
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import dask
import dask.array
import numpy as np
import pytest
import tensordict
import torch
import xarray as xr
from hypothesis import HealthCheck, given, settings
from tensordict import NonTensorData, NonTensorStack, TensorDict

import xarray_tensordict
from memmap_samples import as_saved, beside, in_both, weather
from persistent_samples import needs_0_15
from strategies import datasets, tensordicts
from xarray_tensordict._compat.tensordict import IS_0_14
from xarray_tensordict.testing import assert_same_tensordict
from xarray_tensordict.writing import values as streaming

pytestmark = pytest.mark.filterwarnings("ignore:the dataset has a variable 'td':UserWarning")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "written"


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("unbatched", ["drop", "expand"])
@pytest.mark.parametrize("name", ["written", "written.tdz"])
def test_what_the_tensordict_holds(tmp_path, chunked, unbatched, name):
    path = tmp_path / name
    ds = weather().chunk({"time": 3, "lat": 2}) if chunked else weather()
    ds.td.to_memmap(path, unbatched=unbatched)
    expected = weather().td.to_tensordict(unbatched=unbatched)
    assert expected.names == ["member", "time"]
    assert_same_tensordict(as_saved(expected), tensordict.load(path))
    assert_same_tensordict(expected, in_both(path))
    assert beside(path) == []


def test_the_arguments_of_to_tensordict(path):
    options: Any = {"coords": ["time"], "exclude": ["late"], "unbatched": "drop"}
    weather().td.to_memmap(path, ["time"], **options)
    assert_same_tensordict(as_saved(weather().td.to_tensordict(["time"], **options)), tensordict.load(path))
    with pytest.raises(ValueError, match="unbatched='raise': 'mask'"):
        weather().td.to_memmap(path, unbatched="raise")
    with pytest.raises(ValueError, match="unbatched: expected 'drop', 'keep', 'expand' or 'raise', got 'all'"):
        weather().td.to_memmap(path, unbatched="all")
    with pytest.raises(ValueError, match="mode: expected one of 'w', 'w-'"):
        weather().td.to_memmap(path, mode="a")


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("name", ["written", "written.tdz"])
def test_variables_without_batch_dims_are_kept_and_restored(tmp_path, chunked, name):
    ds = weather()
    ds["lat"].attrs = {"units": "degrees_north", "valid_range": np.array([-90.0, 90.0])}
    ds["seasons"] = ("season", np.array(["DJF", "ø"], object))
    ds["codes"] = ("season", np.array([b"a", b"\xff\x00b"]))
    ds["since"] = ("season", np.array(["2000-01-01", "NaT"], "M8[s]"))
    ds["grid/area"] = (("lat", "season"), np.full((3, 2), np.inf, "f4"))
    (ds.chunk() if chunked else ds).td.to_memmap(tmp_path / name)
    bare = tensordict.load(tmp_path / name)
    kept = {"lat", "mask", "height", "seasons", "codes", "since", "grid/area"}
    assert set(bare["_unbatched"]) == kept
    assert_same_tensordict(as_saved(weather().td.to_tensordict()), bare.exclude("_unbatched"))
    with xr.open_dataset(tmp_path / name, engine="tensordict") as found:
        assert "_unbatched" not in found.variables
        for each in kept:
            xr.testing.assert_equal(found[each].variable, ds[each].variable)
            assert found[each].dtype == ds[each].dtype or each == "seasons"
        assert found["lat"].attrs == {"units": "degrees_north", "valid_range": [-90.0, 90.0]}
        assert {"lat", "height"} <= set(found.coords)
        assert set(found.td.unbatched.variables) >= {"mask", "grid/area"}
    assert in_both(tmp_path / name).batch_size == (2, 4)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("name", ["written", "written.tdz"])
def test_bytes_come_back_as_bytes(tmp_path, chunked, name):
    held = np.empty(3, object)
    held[:] = [b"", b"\x00\xff", "ø".encode()]
    ds = xr.Dataset(
        {
            "x": ("t", np.zeros(3)),
            "allele": ("t", np.array([b"CA", b"GT", b"C\xe9"])),
            "next/allele": (("t", "ploidy"), np.array([[b"C", b"A"]] * 3)),
            "any_length": ("t", held),
            "flag": ("t", np.array([b"a", b"b", b"c"])),
            "version": ((), np.bytes_(b"1.0")),
        }
    ).drop_vars("flag" if chunked else ())
    refused = rf"'allele' cannot be written to .*{name}: .* no UTF-8, .*exclude=\['allele'\]"
    with pytest.raises(ValueError, match=refused) if IS_0_14 else nullcontext():
        (ds.chunk() if chunked else ds).td.to_memmap(tmp_path / name)
    if IS_0_14:
        return
    assert tensordict.load(tmp_path / name)["allele"].tolist()[:2] == ["CA", "GT"]
    with xr.open_dataset(tmp_path / name, engine="tensordict") as found:
        for each in ds.variables:
            assert found[each].values.tolist() == ds[each].values.tolist(), each
            assert found[each].dtype == ("S2" if each == "next/allele" else ds[each].dtype), each
    assert in_both(tmp_path / name)["any_length"].tolist() == held.tolist()


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(ds=datasets())
def test_generated_datasets(ds, tmp_path_factory):
    path = tmp_path_factory.mktemp("generated") / "td"
    # see test_rows_that_are_lists
    batch = set(ds.td.batch_dims)
    strings = {name: set(v.dims) for name, v in ds.variables.items() if v.dtype.kind in "OU"}
    exclude = [name for name, dims in strings.items() if dims & batch and dims - batch]
    for each in (ds, ds.chunk()):
        each.td.to_memmap(path, exclude=exclude, unbatched="drop")
        assert_same_tensordict(as_saved(ds.td.to_tensordict(exclude=exclude)), tensordict.load(path))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(td=tensordicts())
@pytest.mark.filterwarnings("ignore:.*suffix:UserWarning", "ignore:.*the batch size .* is lost:UserWarning")
def test_generated_tensordicts_there_and_back(td, tmp_path_factory):
    path = tmp_path_factory.mktemp("generated") / "td"
    ds = xarray_tensordict.to_dataset(td)
    ds.td.to_memmap(path)
    assert_same_tensordict(as_saved(ds.td.to_tensordict()), tensordict.load(path))


def test_the_files_are_those_of_tensordict(path, tmp_path):
    td = weather().td.to_tensordict()
    td["deep"] = {"x": torch.ones(2, 4, dtype=torch.bfloat16), "text": NonTensorData("hi", batch_size=[2, 4])}
    td.memmap(tmp_path / "tensordict")
    xarray_tensordict.to_dataset(td).td.to_memmap(path)
    files = {file.relative_to(path) for file in path.rglob("*")}
    assert files == {file.relative_to(tmp_path / "tensordict") for file in (tmp_path / "tensordict").rglob("*")}
    for file in files:
        if file.suffix == ".memmap":
            assert (path / file).read_bytes() == (tmp_path / "tensordict" / file).read_bytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "complex32", "float8_e5m2", "float8_e4m3fn"])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.filterwarnings(
    "ignore:ComplexHalf support is experimental:UserWarning", "ignore:.*cannot load again:UserWarning"
)
def test_dtypes_that_numpy_lacks_keep_their_bits(path, tmp_path, dtype, chunked):
    values = torch.arange(200, dtype=torch.uint8).to(torch.float32).to(getattr(torch, dtype)).view(100, 2)
    TensorDict({"x": values}, [100]).memmap(tmp_path / "source")
    with xr.open_dataset(tmp_path / "source", engine="tensordict", chunks={"batch_0": 30} if chunked else None) as ds:
        ds.td.to_memmap(path)
    assert (path / "x.memmap").read_bytes() == (tmp_path / "source" / "x.memmap").read_bytes()
    assert (path / "meta.json").read_bytes() == (tmp_path / "source" / "meta.json").read_bytes()


def test_a_dtype_that_tensordict_cannot_load_again_is_reported(path, tmp_path):
    TensorDict({"x": torch.ones(4).to(torch.float8_e5m2), "y": torch.ones(4)}, [4]).memmap(tmp_path / "source")
    with xr.open_dataset(tmp_path / "source", engine="tensordict") as ds:
        with pytest.warns(UserWarning, match=r"\['x'\] are of dtypes that tensordict writes .* and cannot load again"):
            ds.td.to_memmap(path)
        assert in_both(path)["x"].dtype == torch.float8_e5m2
        del ds["x"].encoding["torch_dtype"]
        ds.td.to_memmap(path)
    assert tensordict.load(path)["x"].dtype == torch.float32


def of_sizes(*sizes: int) -> xr.Dataset:
    dims = ["t", "m"][: len(sizes)]
    return xr.Dataset({"x": (dims, np.zeros(sizes)), "s": (dims, np.zeros(sizes, "U3"))}).td.set_batch_dims(dims)


CONFIG = np.array(None, object)
CONFIG[()] = {"lr": [0.1, None], "name": "ø"}
ESCAPED = ["air temp", "..", "100%", "a:b", "deep down/x*?", "deep down/."]
SMALL = {
    "scalars": xr.Dataset({"a": 5, "b": np.datetime64("1970-01-02", "ns"), "c": "x"}),
    "names that are escaped": xr.Dataset({name: ("time", np.full(3, i)) for i, name in enumerate(ESCAPED)}),
    "JSON": xr.Dataset({"x": ("time", np.zeros(2))}, coords={"config": ((), CONFIG)}),
    **{f"sizes {sizes}": of_sizes(*sizes) for sizes in ((0,), (0, 3), (2, 0))},
}


NO_ROWS = needs_0_15("holds no stack of texts without rows")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=NO_ROWS if name.startswith("sizes") else ()) for name in SMALL]
)
def test_small_ones(path, name):
    SMALL[name].td.to_memmap(path)
    assert_same_tensordict(as_saved(SMALL[name].td.to_tensordict()), tensordict.load(path))


# -- streaming ---------------------------------------------------------------------------------------------------------


def test_dask_is_streamed(path):
    blocks = dask.array.zeros((64, 2**17), chunks=(1, 2**17))  # 64 blocks of 1 MiB
    ds = xr.Dataset({"x": (("time", "f"), blocks)}).td.set_batch_dims("time")
    small = ds.isel(time=slice(2))
    small.td.to_memmap(path)  # what is imported on the way
    tracemalloc.start()
    try:
        ds.td.to_memmap(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * 2**20
    assert tensordict.load(path)["x"].shape == (64, 2**17)


@pytest.mark.parametrize("dims", [("time", "f"), ("f", "time"), ("f", "g")])
def test_variables_on_disk_are_read_some_rows_at_a_time(path, tmp_path, monkeypatch, dims):
    monkeypatch.setattr(streaming, "STREAM_BYTES", 1000)
    shape = (30, 100) if dims == ("f", "time") else (100, 30)
    ds = xr.Dataset({"x": (dims, np.arange(3000.0).reshape(shape)), "p": ("member", np.arange(30.0))})
    ds["m"] = (("member", "time"), np.arange(3000.0).reshape(30, 100))
    ds = ds.td.set_batch_dims(["member", "time"])
    ds.td.to_zarr(tmp_path / "source.zarr", chunks={"time": 7})
    expected = ds.td.to_tensordict(unbatched="expand")
    with xr.open_dataset(tmp_path / "source.zarr", engine="tensordict", cache=False) as lazy:
        lazy.td.set_batch_dims(["member", "time"]).td.to_memmap(path, unbatched="expand")
    assert_same_tensordict(as_saved(expected), tensordict.load(path))


# -- the target --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["written", "written.tdz"])
@pytest.mark.parametrize("chunks", [None, {"batch_0": 2}])
def test_onto_the_store_it_reads_from(tmp_path, name, chunks):
    path = tmp_path / name
    TensorDict({"x": torch.arange(10.0), "y": torch.ones(10, 2)}, [10]).save(path)
    ds = xr.open_dataset(path, engine="tensordict", chunks=chunks)
    (ds.isel(batch_0=slice(2, 7)) * 2).td.to_memmap(path)
    loaded = tensordict.load(path)
    assert loaded["x"].tolist() == [4, 6, 8, 10, 12]
    assert loaded["y"].shape == (5, 2)
    assert beside(path) == []


def test_tensors_over_the_old_store_stay_valid(path):
    TensorDict({"x": torch.arange(10.0)}, [10]).memmap(path)
    old = xr.open_dataset(path, engine="tensordict").td.to_tensordict(copy=False)
    xr.Dataset({"x": ("t", np.zeros(2))}).td.to_memmap(path)
    assert old["x"].sum() == 45


@pytest.mark.parametrize("file", ["thesis.txt", "sub/thesis.txt", "storage_metadata.json"])
def test_a_folder_with_other_things_is_not_replaced(path, file):
    weather().td.to_memmap(path)
    (path / file).parent.mkdir(exist_ok=True)
    (path / file).write_text("years of work")
    with pytest.raises(FileExistsError, match=f"found one with '{file}' in it, which would be lost"):
        weather().td.to_memmap(path)
    assert (path / file).read_text() == "years of work"


def test_what_is_there_is_replaced_or_not(path, tmp_path):
    weather().td.to_memmap(str(tmp_path / "a" / "b"), mode="w-")
    with pytest.raises(FileExistsError, match="mode='w' to replace"):
        weather().td.to_memmap(tmp_path / "a" / "b", mode="w-")
    path.mkdir()
    weather().td.to_memmap(path)
    assert tensordict.load(path).batch_size == (2, 4)
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileExistsError, match="expected a folder to replace, found a file"):
        weather().td.to_memmap(tmp_path / "file")
    (tmp_path / "a.tdz").mkdir()
    with pytest.raises(FileExistsError, match="expected an archive to replace, found a folder"):
        weather().td.to_memmap(tmp_path / "a.tdz")


def test_an_error_on_the_way_leaves_the_old_store(path):
    weather().td.to_memmap(path, unbatched="drop")
    failing = dask.array.ones(4, chunks=1).map_blocks(lambda block: 1 // 0, dtype="f8", meta=np.zeros(0))
    for name in (path, path.with_suffix(".tdz")):
        with pytest.raises(ZeroDivisionError):
            xr.Dataset({"x": ("time", failing)}).td.to_memmap(name)
    assert_same_tensordict(as_saved(weather().td.to_tensordict()), tensordict.load(path))
    assert beside(path) == []


# -- refusals ----------------------------------------------------------------------------------------------------------


def objects(*values):
    held = np.empty(len(values), object)
    held[:] = values
    return ("time", held)


LOST = ["shape", "device", "_type", "next/shape", "shape/next", "a/device/b"]  # by tensordict
PICKLED = [{1, 2}, [b"bytes"], (1, 2), {1: 2}, np.arange(3)]
REFUSED = [
    *((name, ("time", np.zeros(2)), ValueError, f"'{name}': .* rename it") for name in LOST),
    *(("bad", objects(value, value), TypeError, "'bad' holds .* never as pickles") for value in PICKLED),
    ("bad", objects(b"a", "a"), TypeError, "'bad' holds"),
    ("when", ("time", np.array(["1500-01-01", "2000-01-01"], "M8[s]")), OverflowError, "'when' holds dates from 1500"),
    ("wide", ("time", np.zeros(2, "longdouble")), TypeError, "'wide' cannot be written: torch has no dtype"),
]


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("name", "variable", "error", "message"), REFUSED, ids=lambda value: str(value)[:20])
def test_what_cannot_be_written_is_refused_by_name(path, name, variable, error, message, chunked):
    ds = xr.Dataset({"x": ("time", np.zeros(2)), name: variable})
    ds = ds.chunk() if chunked and variable[1].dtype != object else ds
    with pytest.raises(error, match=message) as caught:
        ds.td.to_memmap(path, compute=chunked or error is not ValueError)
    if error is TypeError:
        assert f"exclude=[{name!r}]" in str(caught.value)
    assert not path.exists()
    assert beside(path) == []
    ds.td.to_memmap(path, exclude=[name])
    assert list(tensordict.load(path).keys()) == ["x"]


def test_rows_that_are_lists(path, tmp_path):
    td = TensorDict({"tags": NonTensorStack(["a", "b"], ["c", "d"])}, [2], names=["time"])
    td.memmap(tmp_path / "bare")
    with nullcontext() if IS_0_14 else pytest.raises(IndexError):
        tensordict.load(tmp_path / "bare")
    ds = xr.Dataset({"x": ("time", np.zeros(2)), "tags": (("time", "tag"), np.array([["a", "b"], ["c", "d"]], object))})
    with pytest.raises(TypeError, match=r"'tags' has dims \['time', 'tag'\].*exclude=\['tags'\]"):
        ds.td.to_memmap(path, unbatched="drop")
    assert not path.exists()
    ds.td.to_memmap(path)
    assert list(tensordict.load(path)["_unbatched"]) == ["tags"]
    assert_same_tensordict(ds.td.to_tensordict(), in_both(path))
    ds["tags"][0, 0] = 3
    with pytest.raises(TypeError, match=r"'tags' has dims \['time', 'tag'\].*exclude=\['tags'\]"):
        ds.td.to_memmap(path)


# -- in parallel, and put off -------------------------------------------------------------------------------------------


def many_blocks() -> xr.Dataset:
    """Blocks that cut rows, so that tasks write to interleaved places of one file."""
    whole = np.arange(60 * 50, dtype="f4").reshape(60, 50)
    return xr.Dataset(
        {
            "x": (("time", "f"), dask.array.from_array(whole, chunks=(7, 11))),
            "next/x": (("time", "f"), dask.array.from_array(whole + 1, chunks=(60, 1))),
            "half": ("time", dask.array.arange(60, chunks=1, dtype="f4")),
            "label": ("time", [f"row {i}" for i in range(60)]),
        },
        coords={"time": np.arange(60)},
    ).td.set_batch_dims("time")


# -- schedulers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheduler", "put_off"),
    [("sync", False), ("threads", True), pytest.param("processes", False, marks=pytest.mark.slow), ("processes", True)],
)
def test_every_scheduler_writes_the_same_bits(path, scheduler, put_off):
    ds = many_blocks()
    with dask.config.set(scheduler=scheduler, num_workers=8 if scheduler == "threads" else 2):
        written = ds.td.to_memmap(path, compute=not put_off)
        if put_off:
            written.compute()
    assert_same_tensordict(as_saved(ds.td.to_tensordict()), tensordict.load(path))
    assert_same_tensordict(ds.td.to_tensordict(), in_both(path))
    assert beside(path) == []


# -- put off -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["written", "written.tdz"])
def test_what_is_put_off_leaves_the_old_store_until_it_is_computed(tmp_path, name):
    path = tmp_path / name
    weather().td.to_memmap(path, unbatched="drop")
    later = many_blocks().td.to_memmap(path, compute=False)
    assert_same_tensordict(as_saved(weather().td.to_tensordict()), tensordict.load(path))
    later = pickle.loads(pickle.dumps(later))
    later.compute()
    assert_same_tensordict(as_saved(many_blocks().td.to_tensordict()), tensordict.load(path))
    assert beside(path) == []


def test_a_dataset_without_dask_can_be_put_off_too(path):
    later = weather().td.to_memmap(path, compute=False, unbatched="drop")
    assert not path.exists()
    later.compute()
    assert_same_tensordict(as_saved(weather().td.to_tensordict()), tensordict.load(path))
    later.compute()  # there is nothing left to do
    assert_same_tensordict(as_saved(weather().td.to_tensordict()), tensordict.load(path))


def test_what_failed_can_be_computed_again(path):
    flag = path.with_name("flag")

    def fail_once(block: Any) -> Any:
        if not flag.exists():
            flag.touch()
            raise ZeroDivisionError
        return block

    data = dask.array.ones((4, 2), chunks=(1, 2)).map_blocks(fail_once, meta=np.zeros((0, 0)))
    later = xr.Dataset({"x": (("time", "f"), data)}).td.to_memmap(path, compute=False)
    with pytest.raises(ZeroDivisionError):
        later.compute()
    assert not path.exists()
    later.compute()
    assert tensordict.load(path)["x"].sum() == 8


def test_computing_it_twice_does_not_lose_what_came_between(path):
    later = many_blocks().td.to_memmap(path, compute=False)
    later.compute()
    weather().td.to_memmap(path, unbatched="drop")
    with pytest.raises(FileNotFoundError, match=r"can be computed once\. Call it again"):
        later.compute()
    assert_same_tensordict(as_saved(weather().td.to_tensordict()), tensordict.load(path))


def test_mode_w_minus_is_asked_again_when_it_is_computed(path):
    later = many_blocks().td.to_memmap(path, mode="w-", compute=False)
    weather().td.to_memmap(path, unbatched="drop")
    with pytest.raises(FileExistsError, match="mode='w' to replace"):
        later.compute()
    assert_same_tensordict(as_saved(weather().td.to_tensordict()), tensordict.load(path))


def test_progress_is_shown(path, capsys):
    many_blocks().td.to_memmap(path, progress=True)
    assert "100%" in capsys.readouterr().err


# -- trees -------------------------------------------------------------------------------------------------------------


def episodes() -> xr.DataTree:
    def episode(length: int) -> xr.Dataset:
        rows = np.arange(length * 2.0).reshape(length, 2)
        return xr.Dataset({"obs": (("time", "f"), rows), "task": ("time", [f"{i}" for i in range(length)])})

    return xr.DataTree.from_dict(
        {"/data/demo_0": episode(3), "/data/demo_1": episode(5), "/data/demo_1/next": episode(5)}
    )


@pytest.mark.parametrize("name", ["written", "written.tdz"])
@pytest.mark.parametrize("chunked", [False, True])
def test_the_nodes_of_a_tree_keep_their_own_batches(tmp_path, name, chunked):
    path = tmp_path / name
    if chunked:
        later = episodes().chunk().td.to_memmap(path, compute=False)
        assert not path.exists()
        later.compute()
    else:
        episodes().td.to_memmap(path)
    loaded = tensordict.load(path)
    assert_same_tensordict(as_saved(episodes().td.to_tensordict()), loaded)
    assert loaded["data"].batch_size == ()
    assert [loaded["data", f"demo_{i}"].batch_size for i in (0, 1)] == [(3,), (5,)]
    assert loaded["data", "demo_1", "next"].batch_size == (5,)
    again = xr.open_datatree(path, engine="tensordict")
    assert again["data/demo_1"].td.batch_size == (5,)
    assert_same_tensordict(episodes().td.to_tensordict(), again.td.to_tensordict())
