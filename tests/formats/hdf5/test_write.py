"""Writing HDF5 files: what plain tensordict and plain xarray see, and what this package gives back."""

import io
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import xarray as xr
from dask.delayed import Delayed
from tensordict import PersistentTensorDict, TensorDict

from written import assert_gives_back, assert_identical, dtypes, era, reopened, text
from xarray_tensordict import open_persistent
from xarray_tensordict.testing import assert_same_tensordict

LAYOUTS = pytest.mark.parametrize("layout", ["tensordict", "xarray"])
# tensordict warns that it reads strings as bytes until its version 0.17
BYTES = pytest.mark.filterwarnings("ignore:The h5 backend of PersistentTensorDict reads the string:FutureWarning")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.h5"


def bare(path: Path, batch_size: object = None) -> object:
    """A file through plain tensordict, in memory."""
    ptd = PersistentTensorDict.from_h5(path, batch_size=batch_size)
    td = ptd.to_tensordict()
    ptd.close()
    return td


# -- what is seen ------------------------------------------------------------------------------------------------------


@BYTES
def test_bare_tensordict_sees_all_batched_entries_and_nothing_else(path):
    era().td.to_h5(path)
    td = bare(path, [4])
    assert td["t2m"].dtype == torch.float32
    assert td["next", "t2m"].shape == (4, 2, 3)
    assert td["done"].dtype == torch.bool
    assert text(td["station"]) == ["Åse", "", "Bø", "Oslo"]
    assert td["when"].tolist() == [day * 86_400 * 10**9 for day in range(4)]
    assert set(td.keys()) == {"t2m", "next", "station", "when", "source", "done", "time", "run", "_unbatched"}
    with h5py.File(path) as file:
        assert set(file) == set(td.keys()), "no placeholders for dims"
        assert [dim.label for dim in file["t2m"].dims] == ["time", "lat", "lon"]
        assert '"batch_size": [4]' in file["next"].attrs["__tensordict__"]
    xr.Dataset({"x": (("time", "f"), np.zeros((4, 3))), "lat": ("lat", [1.0])}).td.to_h5(path)
    assert bare(path).batch_size == torch.Size([4, 3]), "the longest prefix, without a batch size"


def test_plain_xarray_reads_all_with_layout_xarray(path):
    ds = era()
    ds.td.to_h5(path, layout="xarray")
    for engine in ("h5netcdf", "netcdf4"):
        with xr.open_dataset(path, engine=engine) as found:
            assert_identical(found.load(), ds.drop_vars("next/t2m"))
        with xr.open_dataset(path, engine=engine, group="next") as found:
            np.testing.assert_array_equal(found["t2m"], ds["next/t2m"])


@LAYOUTS
def test_it_comes_back_as_it_was(path, layout):
    ds = era().assign(config=((), np.array({"lr": 0.1, "l": [1, 2]}, object)))
    ds.td.to_h5(path, layout=layout)
    assert_gives_back(path, ds)
    if layout == "tensordict":
        assert dtypes(reopened(path)) == dtypes(ds)


# -- values ------------------------------------------------------------------------------------------------------------


def test_ragged_rows_are_kept(path):
    rows = np.empty(3, object)
    rows[0], rows[1], rows[2] = np.arange(2, dtype="u1"), np.arange(4, dtype="u1"), np.empty(0, "u1")
    ds = xr.Dataset({"jpeg": ("row", rows), "label": ("row", [4, 5, 6])})
    ds.td.to_h5(path)
    with xr.open_dataset(path, engine="tensordict") as found:
        assert [row.tolist() for row in found["jpeg"].values] == [[0, 1], [0, 1, 2, 3], []]
        assert found["jpeg"].values[0].dtype == "uint8"
        assert "jpeg" in found.data_vars
        assert_same_tensordict(found.td.to_tensordict(), ds.td.to_tensordict())
    with pytest.raises(TypeError, match=r"'jpeg'.*layout='tensordict'"):
        ds.td.to_h5(path, layout="xarray")


def test_rows_of_mixed_objects_are_refused_with_the_way_out(path):
    ds = xr.Dataset({"x": ("row", [1.0, 2.0]), "mixed": ("row", np.array([None, 3], object))})
    with pytest.raises(TypeError, match=r"'mixed'.*to_zarr"):
        ds.td.to_h5(path)
    assert not path.exists()


@pytest.mark.parametrize("chunked", [False, True])
def test_strings_with_a_nul_are_refused_by_name_and_leave_the_old_file(path, chunked):
    era().td.to_h5(path)
    ds = xr.Dataset({"text": ("row", np.array(["a\0b", "c"], object)), "x": ("row", [1, 2])})
    with pytest.raises(ValueError, match=r"'text'.*NUL"):
        (ds.chunk(row=1) if chunked else ds).td.to_h5(path)
    assert_gives_back(path, era())
    assert [child.name for child in path.parent.iterdir()] == [path.name]


# -- storage -----------------------------------------------------------------------------------------------------------


@LAYOUTS
def test_compression_and_chunks_go_through(path, layout):
    encoding = {"t2m": {"zlib": True, "complevel": 4, "shuffle": True, "chunksizes": (2, 2, 3)}}
    if layout == "tensordict":
        encoding["next/t2m"] = {"compression": "lzf", "chunks": (1, 2, 3), "dtype": "float16"}
    era().td.to_h5(path, layout=layout, encoding=encoding)
    with h5py.File(path) as file:
        assert file["t2m"].compression == "gzip"
        assert file["t2m"].compression_opts == 4
        assert file["t2m"].shuffle
        assert file["t2m"].chunks == (2, 2, 3)
        if layout == "tensordict":
            assert file["next/t2m"].compression == "lzf"
            assert file["next/t2m"].dtype == "float16"
    era().td.to_h5(path, layout=layout, chunks={"time": 1})
    with h5py.File(path) as file:
        assert file["t2m"].chunks == (1, 2, 3)


def test_inherited_options_are_kept_where_they_fit(path, tmp_path):
    era().td.to_h5(path, encoding={"t2m": {"zlib": True, "chunksizes": (4, 2, 3)}})
    reopened(path).isel(time=slice(0, 2)).td.to_h5(tmp_path / "part.h5")
    with h5py.File(tmp_path / "part.h5") as file:
        assert file["t2m"].compression == "gzip"
        assert file["t2m"].chunks == (2, 2, 3)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"encoding": {"t2m": {"shards": (1,)}}}, "shards"),
        ({"encoding": {"nothing": {}}}, "no variable 'nothing'"),
        ({"encoding": {"t2m": {"scale_factor": 0.5}}}, "'t2m'"),
        ({"chunks": {"level": 1}}, "no dim 'level'"),
        ({"mode": "r+"}, "mode"),
    ],
)
def test_invalid_options_raise_and_leave_nothing(path, keywords, message):
    with pytest.raises(ValueError, match=message):
        era().td.to_h5(path, **keywords)
    assert not path.exists()


@LAYOUTS
def test_unlimited_dims_stay_resizable(path, layout):
    ds = era()
    ds.encoding["unlimited_dims"] = {"time"}
    ds.td.to_h5(path, layout=layout)
    with h5py.File(path) as file:
        assert file["t2m"].maxshape[0] is None
        assert file["next/t2m"].maxshape[0] is None
    assert_gives_back(path, ds)


# -- modes -------------------------------------------------------------------------------------------------------------


def test_mode_a_refuses_a_dim_of_another_size(path):
    era().td.to_h5(path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="'time' has size 4 in the store"):
        era(2)[["done"]].rename(done="new").td.to_h5(path, mode="a")
    assert path.read_bytes() == before


@LAYOUTS
def test_with_compute_false_one_delayed_writes_the_file(path, layout):
    delayed = era().chunk(time=2).td.to_h5(path, layout=layout, compute=False)
    assert isinstance(delayed, Delayed)
    assert not path.exists()
    delayed.compute()
    assert_gives_back(path, era())


@LAYOUTS
def test_text_with_missing_values_is_refused_with_the_way_out(path, layout):
    ds = xr.Dataset({"s": ("time", np.array(["a", None, "c"], object)), "x": ("time", np.zeros(3))})
    with pytest.raises(TypeError, match=r"'s' holds text with missing values.*fillna\(''\)"):
        ds.td.to_h5(path, layout=layout)
    assert not path.exists()
    ds.fillna({"s": ""}).td.to_h5(path, layout=layout)
    assert reopened(path)["s"].values.tolist() == ["a", "", "c"]


@LAYOUTS
def test_targets_of_every_kind(tmp_path, layout):
    era().td.to_h5(str(tmp_path / "text.h5"), layout=layout, mode="a")
    assert_gives_back(tmp_path / "text.h5", era())
    stream = io.BytesIO(b"what was there before is replaced" * 1000)
    era().chunk(time=1).td.to_h5(stream, layout=layout)
    assert_gives_back(stream.getvalue(), era())
    with pytest.raises(TypeError, match="found int"):
        era().td.to_h5(3)
    with pytest.raises(ValueError, match="folder"):
        era().td.to_h5(tmp_path)
    with pytest.raises(ValueError, match="local files"):
        era().td.to_h5("s3://bucket/a.h5")


def test_a_file_of_another_kind_is_never_replaced(path: Path) -> None:
    path.write_text("a,b\n1,2\n")
    for use in (
        lambda: era().td.to_h5(path),
        lambda: era().td.to_h5(path, mode="w"),
        lambda: era().td.to_h5(path, mode="a"),
    ):
        with pytest.raises(ValueError, match=r"a,b.*delete"):
            use()
    assert path.read_text() == "a,b\n1,2\n"


@pytest.mark.parametrize("mode", ["w", "a"])
def test_a_file_that_this_process_has_open_for_writing_is_an_error_that_says_so(path: Path, mode: Any) -> None:
    TensorDict({"x": torch.zeros(4)}, [4]).to_h5(path).close()
    new = xr.Dataset({"y": ("time", np.zeros(4))})
    with h5py.File(path, "r+"), pytest.raises(ValueError, match=r"has the file open for writing.*close it first"):
        new.td.to_h5(path, mode=mode)
    ptd = PersistentTensorDict.from_h5(path, mode="r+")
    with pytest.raises(ValueError, match="has the file open for writing"):
        new.td.to_h5(path, mode=mode)
    ptd["x"] = torch.ones(4)
    ptd.close()
    with h5py.File(path) as file:
        assert file["x"][:].tolist() == [1.0] * 4
    new.td.to_h5(path, mode=mode)


def test_mode_a_keeps_attributes_scales_and_storage_of_what_is_there(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.attrs["history"] = "by hand"
        scale = file.create_dataset("time", data=np.arange(4))
        scale.make_scale("time")
        scale.attrs["long_name"] = "hour"
        x = file.create_dataset("x", data=np.ones((4, 3)), chunks=(2, 3), compression="gzip", shuffle=True)
        x.dims[0].attach_scale(scale)
        x.dims[1].label = "f"
        file.create_group("notes").attrs["author"] = "Åse"
    xr.Dataset({"y": ("time", np.zeros(4)), "next/x": (("time", "f"), np.zeros((4, 3)))}).td.to_h5(path, mode="a")
    with h5py.File(path) as file:
        assert file.attrs["history"] == "by hand"
        assert file["time"].attrs["long_name"] == "hour"
        assert file["x"].dims[0][0] == file["time"]
        assert (file["x"].chunks, file["x"].compression, file["x"].shuffle) == ((2, 3), "gzip", True)
        assert file["notes"].attrs["author"] == "Åse"
        assert set(file) == {"time", "x", "y", "next", "notes"}
    assert reopened(path)["next/x"].shape == (4, 3)


@LAYOUTS
@pytest.mark.parametrize("size", [512, 2048])
def test_a_user_block_is_read_over_and_kept(path: Path, layout: Any, size: int) -> None:
    plain = path.with_name("plain.h5")
    era(4).td.to_h5(plain, layout=layout, unlimited_dims=["time"])
    with h5py.File(plain) as old, h5py.File(path, "w", userblock_size=size) as new:
        for name in old:
            old.copy(name, new)
        new.attrs.update(old.attrs)
    with path.open("r+b") as file:
        file.write(b"#!/bin/sh\n")
    if layout == "tensordict":
        assert_gives_back(path, era())
        era(2).td.to_h5(path, append_dim="time")
        xr.Dataset({"more": ("time", np.zeros(6))}).td.to_h5(path, mode="a")
        assert reopened(path).sizes["time"] == 6
        assert "more" in reopened(path)
    ptd = open_persistent(path)
    assert ptd.batch_size == reopened(path).td.batch_size
    ptd.close()
    assert path.read_bytes()[:10] == b"#!/bin/sh\n"
    with h5py.File(path) as file:
        assert file.userblock_size == size


# -- groups of a file --------------------------------------------------------------------------------------------------


@LAYOUTS
def test_a_group_is_replaced_and_the_other_groups_stay(path, layout):
    era().td.to_h5(path, layout=layout)
    era(3).td.to_h5(path, layout=layout, group="runs/a")
    era(3).td.to_h5(path, layout=layout, group="runs/b")
    era(2)[["done"]].td.to_h5(path, layout=layout, group="runs/a")
    assert list(reopened(path, group="runs/a").data_vars) == ["done"]
    assert reopened(path, group="runs/a").sizes["time"] == 2
    assert_gives_back(path, era(3), group="runs/b")
    np.testing.assert_array_equal(reopened(path, nested=False)["t2m"], era()["t2m"])
    era(3).td.to_h5(path, layout=layout, group="runs/a", mode="w")
    with h5py.File(path) as file:
        assert list(file) == ["runs"]
        assert list(file["runs"]) == ["a"]


def test_an_array_is_not_replaced_by_a_group(path):
    era().td.to_h5(path)
    with pytest.raises(ValueError, match="'t2m' is an array there, no group"):
        era(3).td.to_h5(path, group="t2m")
    assert_gives_back(path, era())


def test_the_cost_of_a_group_does_not_grow_with_the_number_of_groups(path, monkeypatch):
    """h5netcdf looks at all objects of a file when it opens it."""
    import h5netcdf

    opened = []
    original = h5netcdf.File.__init__
    monkeypatch.setattr(h5netcdf.File, "__init__", lambda *args, **kw: (opened.append(1), original(*args, **kw))[1])
    ds = xr.Dataset({f"demo_{number}/obs": ("time", np.full(3, number)) for number in range(20)})
    ds.td.to_h5(path, layout="xarray")
    assert len(opened) == 1
    assert reopened(path, nested=True)["demo_7/obs"].values.tolist() == [7, 7, 7]


# -- what HDF5 and netCDF are particular about -------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [[[1, 2, 3]], [[1, 2], [3, 4]], [[1], [2, 3]], [[], [2]]], ids=str)
@pytest.mark.parametrize("chunked", [False, True])
def test_ragged_rows_come_back_whatever_their_lengths(path, tmp_path, rows, chunked):
    with h5py.File(tmp_path / "source.h5", "w") as file:
        ragged = file.create_dataset("v", (len(rows),), h5py.vlen_dtype(np.uint8))
        for number, row in enumerate(rows):
            ragged[number] = np.array(row, "u1")
        file["k"] = np.arange(float(len(rows)))
    ds = reopened(tmp_path / "source.h5")
    (ds.chunk(batch_0=1) if chunked else ds).td.to_h5(path)
    assert [row.tolist() for row in reopened(path)["v"].values] == rows


@LAYOUTS
def test_filters_of_numbers_are_not_taken_over_by_texts(path, tmp_path, layout):
    with h5py.File(tmp_path / "source.h5", "w") as file:
        file.create_dataset("x", data=np.arange(22.0), chunks=(22,), fletcher32=True)
        file.create_dataset("name", data=np.array([b"abc"] * 22), chunks=(22,), fletcher32=True, shuffle=True)
    reopened(tmp_path / "source.h5").td.to_h5(path, layout=layout)
    found = reopened(path)
    assert found["name"].values.tolist() == ["abc"] * 22
    with h5py.File(path) as file:
        assert file["x"].fletcher32


def test_filters_that_hdf5_refuses_are_an_error_that_names_the_variable(path):
    ds = xr.Dataset({"x": ("row", [1.0, 2.0]), "name": ("row", ["a", "b"])})
    with pytest.raises(ValueError, match="variable 'name': HDF5 cannot store"):
        ds.td.to_h5(path, encoding={"name": {"fletcher32": True}})
    assert not path.exists()


@LAYOUTS
@pytest.mark.parametrize("rows", [0, 4])
def test_chunks_that_are_asked_for_may_be_larger_than_a_dim_that_grows(path, layout, rows):
    ds = xr.Dataset({"x": (("time", "f"), np.zeros((rows, 3), "f4"))})
    ds.td.to_h5(path, layout=layout, chunks={"time": 1000}, unlimited_dims=["time"])
    with h5py.File(path) as file:
        assert file["x"].chunks == (1000, 3)
    ds = reopened(path)
    ds.td.to_h5(path, layout=layout)
    with h5py.File(path) as file:
        assert file["x"].chunks == (1000, 3)
    ds = xr.Dataset({"x": (("time", "f"), np.zeros((4, 3), "f4"))})
    ds.td.to_h5(path, layout=layout, chunks={"time": 1000})
    with h5py.File(path) as file:
        assert file["x"].chunks == (4, 3)


# -- attributes --------------------------------------------------------------------------------------------------------

ATTRIBUTES = {
    "mixed": [0.56, 0.635, "um"],
    "complex": np.complex128(4.3 + 1j),
    "array": np.array([1, 2]),
    "text": "a",
    "texts": ["a", "b"],
    "one": [1],
    "alone": ["a"],
    "floats": [1.5, 2.5],
    "numbers": [1, 2.5],
    "none": [],
    "NULs": ["a", "b\0"],
    "NUL": "b\0",
    "empty": "",
    "nested": {"a": [1, {"b": 2}]},
    "nothing": None,
    "flag": True,
    "flags": [True],
    "large": 2**70,
}


@LAYOUTS
def test_attributes_come_back_or_are_refused_by_name(path, layout):
    ds = xr.Dataset({"x": ("t", np.zeros(3), dict(ATTRIBUTES))}, attrs=dict(ATTRIBUTES))
    ds.td.to_h5(path, layout=layout)
    assert_gives_back(path, ds)
    for value in ([1j], object(), {1j: 2}):
        with pytest.raises(
            TypeError, match=r"attribute 'bad' of variable 'x' is .*, which neither HDF5 nor JSON holds"
        ):
            xr.Dataset({"x": ("t", np.zeros(3), {"bad": value})}).td.to_h5(path, layout=layout)
        with pytest.raises(TypeError, match="'bad' of group '/'"):
            ds.assign_attrs(bad=value).td.to_h5(path, layout=layout)
    with pytest.raises(ValueError, match="variable 'x' has an attribute whose name is empty"):
        xr.Dataset({"x": ("t", [1, 2], {"": "nameless"})}).td.to_h5(path, layout=layout)
    assert_gives_back(path, ds)
