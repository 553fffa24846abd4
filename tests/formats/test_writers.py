"""What the writers of zarr v2, zarr v3 and HDF5 do alike: what comes back of them, modes, and what a failure leaves."""

import tempfile
import warnings
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import HealthCheck, given, settings
from tensordict import PersistentTensorDict, TensorDict

import generated
import xarray_tensordict
from written import assert_bare_tensordict_reads, assert_gives_back, dtypes, era, plain, reopened
from xarray_tensordict.testing import assert_same_tensordict

LAYOUTS = pytest.mark.parametrize("layout", ["tensordict", "xarray"])
KINDS = pytest.mark.parametrize("kind", ["zarr2", "zarr3", "h5"])
BOTH = pytest.mark.parametrize("kind", ["zarr3", "h5"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def write(ds: xr.Dataset | xr.DataTree, path: Path, kind: str, layout: Any = "tensordict", **keywords: Any) -> None:
    if kind == "h5":
        ds.td.to_h5(path, layout=layout, **keywords)
    else:
        ds.td.to_zarr(path, layout=layout, zarr_format=int(kind[-1]), **keywords)


# -- values and names --------------------------------------------------------------------------------------------------


# tensordict warns that it reads strings as bytes until its version 0.17
@pytest.mark.filterwarnings("ignore:The h5 backend of PersistentTensorDict reads the string:FutureWarning")
@KINDS
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(ds=generated.datasets())
def test_any_dataset_comes_back_and_bare_tensordict_reads_it(kind, ds):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        write(ds, path, kind)
        assert_gives_back(path, ds, nested=True)
        assert dtypes(reopened(path, nested=True)) == dtypes(ds)
        (assert_bare_tensordict_reads_h5 if kind == "h5" else assert_bare_tensordict_reads)(path, ds)
        write(ds, path, kind, "xarray", mode="w")
        assert_gives_back(path, ds, nested=True)


def assert_bare_tensordict_reads_h5(path: Path, ds: xr.Dataset) -> None:
    ptd = PersistentTensorDict.from_h5(path, batch_size=ds.td.batch_size)
    found, wanted = ptd.to_tensordict(), ds.td.to_tensordict()
    ptd.close()
    for key in ds.td.infer().keys("batched"):
        if isinstance(wanted.get(key), torch.Tensor):
            assert found.get(key).dtype == wanted.get(key).dtype
            np.testing.assert_array_equal(found.get(key).numpy(), wanted.get(key).numpy())


@KINDS
def test_strings_keep_their_kind(path, kind):
    ds = xr.Dataset(
        {
            "x": ("row", [1.0, 2.0]),
            "fixed": ("row", np.array(["ab", "blåbær"])),
            "bytes": ("row", np.array([b"ab", b"c"])),
            "single": ("col", np.array([b"p", b"q", b"r"])),
            "as_objects": ("row", np.array([b"p", b"q"], object)),
            "labels": ("col", np.array(["p", "q", "r"])),
            "codes": (("row", "col"), np.array([["a", "b", "c"], ["d", "e", "f"]])),
        }
    )
    write(ds, path, kind)
    assert_gives_back(path, ds)
    kinds = {name: v.dtype.kind for name, v in ds.data_vars.items()} | {"as_objects": "S"}
    if kind == "h5":  # text of the batch is text of any length
        kinds |= dict.fromkeys(("fixed", "codes"), "O")
    assert {name: v.dtype.kind for name, v in reopened(path).data_vars.items()} == kinds
    if kind != "h5":
        td = TensorDict.from_zarr(path)
        assert plain(td["bytes"]) == [b"ab", b"c"]
        assert plain(td["codes"]) == [["a", "b", "c"], ["d", "e", "f"]]


@LAYOUTS
@BOTH
def test_torch_dtypes_come_back_bit_for_bit(path, kind, layout):
    td = TensorDict({"w": torch.tensor([1.0, 2.5, -3.0]).to(torch.bfloat16), "lat": torch.ones(3)}, [3], names=["row"])
    write(xarray_tensordict.to_dataset(td), path, kind, layout)
    found = reopened(path).td.to_tensordict()["w"]
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, td["w"])


@LAYOUTS
@KINDS
def test_awkward_names_come_back(path, kind, layout):
    names = ["air temp", "wind.speed", "metatime", "tail ", "størrelse", "keys", "a/b c/d.e"]
    ds = xr.Dataset({name: ("row no.", [number, number + 0.5]) for number, name in enumerate(names)})
    ds = ds.assign_coords({"run id": ("row no.", [1, 2]), "a/run id": ("row no.", [3, 4])})
    write(ds, path, kind, layout)
    assert_gives_back(path, ds)


@BOTH
def test_repeated_dims_come_back(path, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ds = xr.Dataset({"cov": (("time", "site", "site"), np.arange(18.0).reshape(2, 3, 3)), "m": ("time", [1, 2])})
        write(ds, path, kind)
        found = reopened(path)
    assert found["cov"].dims == ("time", "site", "site")
    np.testing.assert_array_equal(found["cov"].values, ds["cov"].values)


@LAYOUTS
@KINDS
def test_a_tree_comes_back_as_it_was(path, kind, layout):
    second = xr.Dataset({"obs": (("time", "f"), np.ones((5, 2))), "note": ((), "second")}, attrs={"n": 5})
    tree = xr.DataTree.from_dict(
        {
            "/": xr.Dataset(attrs={"title": "demos"}),
            "/data": xr.Dataset(attrs={"total": 8}),
            "/data/demo_0": xr.Dataset({"obs": (("time", "f"), np.zeros((3, 2))), "scale": ("f", [1.0, 2.0])}),
            "/data/demo_1": second,
        }
    )
    write(tree, path, kind, layout)
    with xr.open_datatree(path, engine="tensordict") as found:
        xr.testing.assert_identical(found.load(), tree)
        assert_same_tensordict(found.td.to_tensordict(), tree.td.to_tensordict())
    if layout == "tensordict" and kind != "h5":
        assert TensorDict.from_zarr(path)["data", "demo_1"].batch_size == torch.Size([5])


# -- modes and failures ------------------------------------------------------------------------------------------------


@BOTH
def test_an_existing_target_is_refused_unless_the_mode_replaces_it(path, kind):
    write(era(), path, kind, mode="w-")
    for mode in ("w-", "x" if kind == "h5" else None):
        with pytest.raises(FileExistsError, match="mode='w'"):
            write(era(2), path, kind, mode=mode)
    assert_gives_back(path, era())
    write(era(2), path, kind, mode="w")
    assert_gives_back(path, era(2))
    assert [child.name for child in path.parent.iterdir()] == [path.name]


@LAYOUTS
@KINDS
def test_mode_a_starts_a_store_adds_to_it_and_overwrites(path, kind, layout):
    ds = era()
    # a variable without the batch dim beside one that has it, in both
    write(ds[["t2m", "done"]], path, kind, layout, mode="a")
    more = ds.assign(done=~ds["done"]).drop_vars("t2m")
    more["extra/deep/x"] = (("time", "k"), np.ones((4, 2)))
    more["table"] = (("lat", "k"), np.ones((2, 2)))
    kept = {"t2m": ds["t2m"]}
    if kind == "h5" and layout == "xarray":  # netCDF cannot take a variable out of a file
        more, kept["done"] = more.drop_vars([*ds.coords, "done"]), ds["done"]
    write(more, path, kind, layout, mode="a")
    assert_gives_back(path, more.assign(kept))
    if layout == "tensordict" and kind != "h5":
        assert_bare_tensordict_reads(path, more.assign(kept))


def single(value: Any) -> np.ndarray:
    """One value, also where numpy would make an axis of it."""
    held = np.empty((), object)
    held[()] = value
    return held


SCALARS = {
    "text": (np.array("lift"), np.array("push")),
    "text of any length": (np.array("lift", np.dtypes.StringDType()), np.array("push", np.dtypes.StringDType())),
    "bytes": (np.array(b"ab"), np.array(b"cd")),
    "object text": (single("lift"), single("push")),
    "dict": (single({"a": 1}), single({"a": 2, "b": [1]})),
    "list": (single([1, 2]), single([1, "x"])),
    "none": (single(None), single([None])),
    "datetime": (np.array("2024-01-01", "M8[ns]"), np.array("NaT", "M8[ns]")),
    "timedelta": (np.array(5, "m8[s]"), np.array(7, "m8[s]")),
    "bool": (np.array(True), np.array(False)),
}


@LAYOUTS
@KINDS
@pytest.mark.parametrize("scalar", SCALARS)
def test_a_store_with_a_scalar_of_any_kind_is_overwritten_and_added_to(path, kind, layout, scalar):
    now, other = SCALARS[scalar]
    rows = xr.Dataset({"x": ("time", np.zeros(3)), "task": ((), now), "in/task": ((), now)}).set_coords("task")
    write(rows, path, kind, layout, **({"unlimited_dims": ["time"]} if kind == "h5" else {}))
    write(rows, path, kind, layout, mode="a")
    assert_gives_back(path, rows, nested=True)
    write(rows.assign(y=("time", np.ones(3))).drop_vars("x"), path, kind, layout, mode="a")
    rows["y"] = ("time", np.ones(3))
    assert_gives_back(path, rows, nested=True)
    changed = rows.assign({"task": ((), other), "in/task": ((), other)})
    write(changed, path, kind, layout, mode="a")
    assert_gives_back(path, changed, nested=True)


@LAYOUTS
@KINDS
@pytest.mark.parametrize("scalar", SCALARS)
def test_rows_are_appended_where_a_scalar_of_any_kind_is_equal_and_refused_where_it_is_not(path, kind, layout, scalar):
    now, other = SCALARS[scalar]
    rows = xr.Dataset({"x": ("time", np.zeros(3)), "task": ((), now)})
    write(rows, path, kind, layout, **({"unlimited_dims": ["time"]} if kind == "h5" else {}))
    write(rows, path, kind, layout, append_dim="time")
    whole = rows.assign(x=("time", np.zeros(6)))
    assert_gives_back(path, whole)
    with pytest.raises(ValueError, match="variable 'task' has no dim 'time', so it stays as it is"):
        write(rows.assign(task=((), other)), path, kind, layout, append_dim="time")
    assert_gives_back(path, whole)


@LAYOUTS
@BOTH
@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
def test_a_local_store_can_be_written_onto_itself(path, kind, chunks, layout):
    write(era(), path, kind, layout)
    with xr.open_dataset(path, engine="tensordict", chunks=chunks) as ds:
        write(ds.assign(t2m=ds["t2m"] + 1), path, kind, layout, mode="w")
    np.testing.assert_array_equal(reopened(path)["t2m"], era()["t2m"] + 1)
    assert [child.name for child in path.parent.iterdir()] == [path.name]


def _fail(block: np.ndarray) -> np.ndarray:
    if block.size:
        raise RuntimeError("half way")
    return block


@LAYOUTS
@BOTH
def test_a_write_that_fails_leaves_the_old_store_whole_and_nothing_beside_it(path, kind, layout):
    ds = era()
    write(ds, path, kind)
    broken = ds["t2m"].copy(data=dask.array.from_array(ds["t2m"].values).map_blocks(_fail, dtype="f4"))
    for change, error in (({"t2m": broken}, "half way"), ({"bad": ((), object())}, "bad")):
        with pytest.raises((RuntimeError, TypeError), match=error):
            write(ds.assign(change), path, kind, layout, mode="w")
        assert_gives_back(path, ds)
        assert [child.name for child in path.parent.iterdir()] == [path.name]
