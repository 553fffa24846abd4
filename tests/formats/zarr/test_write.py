"""Writing zarr stores: what plain tensordict and plain xarray see, and what this package gives back."""

import json
import os
import tempfile
from pathlib import Path

import cftime
import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
import zarr
from hypothesis import HealthCheck, given, settings
from tensordict import TensorDict

import generated
from written import (
    assert_bare_tensordict_reads,
    assert_equal,
    assert_gives_back,
    assert_identical,
    content,
    dtypes,
    era,
    plain,
    reopened,
)
from xarray_tensordict._compat.tensordict import IS_0_14
from xarray_tensordict.writing.running import replaced

FORMATS = pytest.mark.parametrize("zarr_format", [2, 3])
LAYOUTS = pytest.mark.parametrize("layout", ["tensordict", "xarray"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.zarr"


# -- what is seen ------------------------------------------------------------------------------------------------------


@FORMATS
def test_bare_tensordict_sees_batch_size_names_and_all_batched_entries(path, zarr_format):
    era().td.to_zarr(path, zarr_format=zarr_format)
    td = TensorDict.from_zarr(path)
    assert td.batch_size == torch.Size([4])
    assert td.names == ["time"]
    assert td["t2m"].dtype == torch.float32
    assert td["next", "t2m"].shape == (4, 2, 3)
    assert td["done"].dtype == torch.bool
    assert plain(td["station"]) == ["Åse", "", "Bø", "Oslo"]
    assert IS_0_14 or td[2]["station"] == "Bø", "0.14 reads all rows of text as one value"
    assert td["source"] == "a model"
    assert td["when"].tolist() == [day * 86_400 * 10**9 for day in range(4)]
    assert set(td.keys()) == {"t2m", "next", "station", "when", "source", "done", "time", "run", "_unbatched"}
    assert td[0]["next"].batch_size == torch.Size([])


@FORMATS
def test_bare_tensordict_keeps_what_it_shows_as_one_entry(path, tmp_path, zarr_format):
    ds = era().drop_vars("station" if IS_0_14 else [])  # 0.14 pickles rows of text
    ds.td.to_zarr(path, zarr_format=zarr_format)
    TensorDict.from_zarr(path).to_zarr(tmp_path / "again.zarr").close()
    again = reopened(tmp_path / "again.zarr")
    np.testing.assert_array_equal(again["mask"], ds["mask"])
    assert "lat" in again.coords
    assert again["height"].item() == 2.0


@LAYOUTS
@FORMATS
def test_plain_xarray_sees_the_root_and_with_layout_tensordict_its_batched_variables(path, layout, zarr_format):
    ds = era()
    ds.td.to_zarr(path, layout=layout, zarr_format=zarr_format)
    expected = ds.drop_vars("next/t2m")
    if layout == "tensordict":
        expected = ds[["t2m", "station", "done"]].drop_vars(["lat", "lon", "height"])
    with xr.open_zarr(path) as found:
        found = found.load()
        assert set(found.coords) == set(expected.coords)
        assert_equal(found[list(expected.data_vars)], expected)
        if layout == "xarray":
            assert_identical(found, expected)
    with xr.open_zarr(path, group="next") as found:
        np.testing.assert_array_equal(found["t2m"], ds["next/t2m"])


# -- any Dataset -------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(ds=generated.datasets())
def test_any_dataset_is_appended_as_it_would_be_written_at_once(ds):
    # the batch of a part without rows may be another
    ds = ds.td.set_batch_dims(ds.td.batch_dims)
    rows = ds.sizes["time"]
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/x.zarr"
        ds.isel(time=slice(0, rows // 2)).td.to_zarr(path)
        ds.isel(time=slice(rows // 2, None)).td.to_zarr(path, append_dim="time")
        xr.testing.assert_identical(reopened(path, nested=True), ds.load())


# -- times -------------------------------------------------------------------------------------------------------------


@LAYOUTS
@FORMATS
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_every_resolution(path, layout, zarr_format, unit):
    ds = xr.Dataset(
        {
            "x": ("time", [1.0, 2.0, 3.0]),
            "when": ("time", np.array(["1999-12-31T23:59:59", "NaT", "2262-01-01"], f"M8[{unit}]")),
            "lag": ("time", np.array([1, "NaT", -5], f"m8[{unit}]")),
        },
        coords={"time": np.array(["2000-01-01", "2000-01-02", "2000-01-03"], f"M8[{unit}]")},
    )
    ds.td.to_zarr(path, layout=layout, zarr_format=zarr_format)
    assert_gives_back(path, ds)
    if layout == "tensordict":
        assert dtypes(reopened(path)) == dtypes(ds)
        assert TensorDict.from_zarr(path)["when"][1] == -(2**63)
        assert reopened(path, decode_times=False)["when"].dtype == "int64"


def test_times_of_a_resolution_can_be_written_on_plainly(path, tmp_path):
    """xarray would make NaT of ``datetime64[s]`` with the units in nanoseconds that the store has."""
    ds = xr.Dataset({"x": ("time", [1.0, 2.0])}, coords={"time": np.array(["2000-01-01", "2000-01-02"], "M8[s]")})
    ds.td.to_zarr(path)
    reopened(path).isel(time=[1]).to_zarr(tmp_path / "part.zarr", consolidated=False)
    assert reopened(tmp_path / "part.zarr")["time"].values == np.datetime64("2000-01-02")


# -- strings and objects -----------------------------------------------------------------------------------------------


@FORMATS
def test_python_objects_are_stored_as_json(path, zarr_format):
    ds = xr.Dataset(
        {
            "x": ("time", [1.0, 2.0]),
            "config": ((), np.array({"lr": 0.1, "layers": [1, 2], "note": None}, object)),
            "mixed": ("time", np.array([None, 3], object)),
            "info": ("time", np.array([{"a": 1}, [1, 2]], object)),
        }
    )
    ds.td.to_zarr(path, zarr_format=zarr_format)
    assert_gives_back(path, ds)
    td = TensorDict.from_zarr(path)
    assert td["config"] == {"lr": 0.1, "layers": [1, 2], "note": None}
    assert td["mixed"] == [None, 3]
    assert td["info"] == [{"a": 1}, [1, 2]]
    assert IS_0_14 or td[1]["info"] == [1, 2]


# -- numbers -----------------------------------------------------------------------------------------------------------


@FORMATS
def test_packed_values_are_written_decoded(path, tmp_path, zarr_format):
    packed = xr.Dataset({"sst": ("time", [10.0, 15.0, np.nan])})
    packed["sst"].encoding = {"dtype": "int16", "scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -999}
    packed.to_netcdf(tmp_path / "packed.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "packed.nc", engine="tensordict") as ds:
        ds.td.to_zarr(path, zarr_format=zarr_format)
        xr.testing.assert_identical(reopened(path), ds.load())
    assert zarr.open_array(path / "sst").dtype.kind == "f"
    assert TensorDict.from_zarr(path)["sst"][:2].tolist() == [10.0, 15.0]
    with pytest.raises(ValueError, match=r"'sst'.*layout='xarray'"):
        packed.td.to_zarr(tmp_path / "no.zarr", encoding={"sst": {"scale_factor": 0.5}})
    packed.td.to_zarr(tmp_path / "kept.zarr", layout="xarray", zarr_format=zarr_format)
    assert zarr.open_array(tmp_path / "kept.zarr" / "sst").dtype == "int16"
    xr.testing.assert_identical(reopened(tmp_path / "kept.zarr"), packed)


@FORMATS
@LAYOUTS
def test_batch_dims_that_do_not_lead_come_back_in_their_place(path, zarr_format, layout):
    ds = xr.Dataset(
        {
            "x": (("lat", "time", "env"), np.arange(24).reshape(2, 3, 4)),
            "y": (("env", "time"), np.arange(12).reshape(4, 3)),
        }
    ).td.set_batch_dims(["time", "env"])
    ds.td.to_zarr(path, layout=layout, zarr_format=zarr_format)
    assert_gives_back(path, ds)
    if layout == "tensordict":
        assert_bare_tensordict_reads(path, ds)
        part = xr.open_dataset(path, engine="tensordict")["x"].isel(lat=1, env=[3, 0])
        np.testing.assert_array_equal(part, ds["x"].isel(lat=1, env=[3, 0]))


def test_a_made_up_batch_dim_is_not_taken_for_another_of_the_same_size(path):
    ds = xr.Dataset({"x": (("batch_0", "dim_3"), np.zeros((3, 3))), "table": (("dim_3", "dim_2"), np.zeros((3, 2)))})
    assert ds.td.batch_dims == ("batch_0",)
    ds.td.to_zarr(path)
    assert_gives_back(path, ds)
    assert TensorDict.from_zarr(path).names == [None]


@FORMATS
def test_text_in_any_memory_order_comes_back(path, zarr_format):
    """zarr itself writes text that is not in C order wrongly."""
    text = np.array([["a", "b", "c"], ["d", "e", "f"]], object)
    ds = xr.Dataset({"s": (("row", "col"), np.asfortranarray(text)), "t": (("row", "col"), text.reshape(3, 2).T)})
    ds.td.to_zarr(path, zarr_format=zarr_format)
    assert_gives_back(path, ds)
    ds.td.to_zarr(path, append_dim="row")
    np.testing.assert_array_equal(reopened(path)["t"].values[2:], ds["t"].values)
    ds.chunk(row=1).td.to_zarr(path, mode="w", layout="xarray", zarr_format=zarr_format)
    assert_gives_back(path, ds)


# -- names -------------------------------------------------------------------------------------------------------------


def test_a_multiindex_is_refused_before_the_target_is_touched(path):
    before = xr.Dataset({"y": ("point", np.arange(4.0))})
    before.td.to_zarr(path)
    index = pd.MultiIndex.from_product([[0, 1], [0, 1]], names=["run", "step"])
    stacked = before.assign_coords(xr.Coordinates.from_pandas_multiindex(index, "point"))
    with pytest.raises(NotImplementedError, match="'point'"):
        stacked.td.to_zarr(path, mode="w")
    assert_gives_back(path, before)
    stacked.reset_index("point").td.to_zarr(path, mode="w")
    assert reopened(path).set_index(point=["run", "step"]).identical(stacked.load())


@FORMATS
def test_clashing_dims_of_nested_groups_have_local_names_in_the_store(path, tmp_path, zarr_format):
    root = zarr.open_group(tmp_path / "demos.zarr", mode="w", zarr_format=zarr_format)
    for number, rows in enumerate((3, 5)):
        root.create_array(f"data/demo_{number}/obs", data=np.arange(rows * 2.0).reshape(rows, 2))
        root.create_array(f"data/demo_{number}/reward", data=np.arange(float(rows)))
    ds = reopened(tmp_path / "demos.zarr", nested=True)
    assert "data.demo_0.batch_0" in ds.dims
    ds.td.to_zarr(path, zarr_format=zarr_format)
    assert_gives_back(path, ds, nested=True)
    assert reopened(path, group="data/demo_1")["obs"].dims == ("batch_0", "dim_2")
    td = TensorDict.from_zarr(path)
    assert td["data", "demo_0"].batch_size == torch.Size([3])


def test_nested_groups_may_have_a_longer_batch(path):
    ds = xr.Dataset({"x": ("time", np.zeros(6)), "agents/obs": (("time", "agent", "f"), np.zeros((6, 2, 3)))})
    ds.attrs["tensordict_batch_dims"] = json.dumps({"": ["time"], "agents": ["time", "agent"]})
    ds.td.to_zarr(path)
    assert_gives_back(path, ds)
    assert TensorDict.from_zarr(path)["agents"].batch_size == torch.Size([6, 2])


def test_markers_that_plain_xarray_shows_are_made_anew(path, tmp_path):
    era().td.to_zarr(path)
    with xr.open_zarr(path) as shown:
        assert shown.attrs["__tensordict__"]["batch_size"] == [4]
        part = shown.drop_vars("_unbatched").isel(time=slice(0, 2)).load()
    part.td.to_zarr(tmp_path / "part.zarr")
    assert TensorDict.from_zarr(tmp_path / "part.zarr").batch_size == torch.Size([2])
    part.td.to_zarr(tmp_path / "plain.zarr", layout="xarray")
    assert "__tensordict__" not in zarr.open_group(tmp_path / "plain.zarr").attrs


# -- modes and safety --------------------------------------------------------------------------------------------------


def test_what_is_no_store_is_never_replaced(tmp_path):
    with pytest.raises(TypeError, match="found int"):
        era().td.to_zarr(3)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="no zarr store"):
        era().td.to_zarr(tmp_path / "notes", mode="w")
    assert (tmp_path / "notes" / "thesis.txt").exists()


def test_what_is_beside_is_removed_and_links_are_followed(tmp_path):
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real", tmp_path / "link")
    with replaced(tmp_path / "link") as beside:
        beside.mkdir()
        (beside / "new").touch()
    assert (tmp_path / "link").is_symlink()
    assert [child.name for child in (tmp_path / "real").iterdir()] == ["new"]
    with pytest.raises(FileNotFoundError), replaced(tmp_path / "real") as beside:
        (beside / "half" / "way").mkdir()
    assert sorted(child.name for child in tmp_path.iterdir()) == ["link", "real"]


@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
@pytest.mark.parametrize(("kind", "compute"), [("memory", True), ("memory", False), ("folder", False)])
def test_what_is_written_in_place_is_not_written_onto_itself(path, kind, chunks, compute):
    store = zarr.storage.MemoryStore() if kind == "memory" else path
    era().td.to_zarr(store)
    ds = xr.open_dataset(store, engine="tensordict", chunks=chunks)
    with pytest.raises(ValueError, match="read lazily from the store"):
        ds.td.to_zarr(store, mode="w", compute=compute)
    assert_gives_back(store, era())


# -- chunks, codecs, encodings -----------------------------------------------------------------------------------------


def test_chunks_shards_and_compressors_go_through(path):
    codec = zarr.codecs.BloscCodec(cname="lz4", clevel=3)
    era().td.to_zarr(path, chunks={"time": 2}, shards={"time": 4}, compressors=codec)
    array = zarr.open_array(path / "t2m")
    assert array.chunks == (2, 2, 3)
    assert array.shards == (4, 2, 3)
    assert isinstance(array.compressors[0], zarr.codecs.BloscCodec)
    assert zarr.open_array(path / "next" / "t2m").chunks == (2, 2, 3)
    assert_gives_back(path, era())


@FORMATS
def test_encoding_goes_through_by_the_names_of_the_dataset(path, zarr_format):
    era().td.to_zarr(path, encoding={"next/t2m": {"chunks": (1, 1, 3), "dtype": "float16"}}, zarr_format=zarr_format)
    assert zarr.open_array(path / "next" / "t2m").chunks == (1, 1, 3)
    assert TensorDict.from_zarr(path)["next", "t2m"].dtype == torch.float16


@LAYOUTS
@pytest.mark.parametrize("source", ["zarr2", "zarr3", "netcdf"])
@FORMATS
def test_stale_encodings_never_fail_a_write(path, tmp_path, layout, source, zarr_format):
    if source == "netcdf":
        era().td.to_h5(tmp_path / "a.nc", layout="xarray", encoding={"t2m": {"zlib": True, "chunksizes": (3, 2, 3)}})
    else:
        era().td.to_zarr(tmp_path / "a.nc", layout="xarray", zarr_format=int(source[-1]), chunks={"time": 3})
    with xr.open_dataset(tmp_path / "a.nc", engine="tensordict", chunks={"time": 3}) as ds:
        part = ds.isel(time=slice(1, None))
        part.td.to_zarr(path, layout=layout, zarr_format=zarr_format)
        assert_gives_back(path, part)


# -- append ------------------------------------------------------------------------------------------------------------


def test_append_along_another_dim_than_the_batch_grows_what_is_kept_as_json(path):
    whole = era()
    whole.isel(lon=slice(0, 2)).td.to_zarr(path)
    whole.isel(lon=slice(2, None)).td.to_zarr(path, append_dim="lon")
    assert_gives_back(path, whole)


@FORMATS
def test_append_to_a_store_that_tensordict_wrote(path, zarr_format):
    td = TensorDict({"obs": torch.arange(6.0).reshape(3, 2), "next": {"obs": torch.ones(3, 2)}}, [3])
    td.to_zarr(path).close()
    more = reopened(path).isel(batch_0=slice(0, 2))
    more.td.to_zarr(path, append_dim="batch_0")
    found = TensorDict.from_zarr(path)
    assert found.batch_size == torch.Size([5])
    assert torch.equal(found["obs"], torch.cat([td["obs"], td["obs"][:2]]))


def test_times_between_the_units_of_a_store_are_not_rounded(path):
    whole = xr.Dataset({"x": ("time", np.arange(3.0))}, coords={"time": pd.date_range("2000", periods=3, freq="D")})
    whole.to_zarr(path, consolidated=False)
    late = whole.isel(time=[2]).assign_coords(time=whole["time"].values[[2]] + np.timedelta64(5, "h"))
    with pytest.raises(ValueError, match="'days since"):
        late.td.to_zarr(path, append_dim="time")
    whole.isel(time=[2]).td.to_zarr(path, append_dim="time")
    assert reopened(path)["time"].values[-1] == whole["time"].values[-1]


# -- region ------------------------------------------------------------------------------------------------------------


@LAYOUTS
@FORMATS
@pytest.mark.parametrize(
    ("region", "rows"),
    [
        ({"time": slice(1, 3)}, slice(1, 3)),
        ({"time": slice(-3, -1)}, slice(1, 3)),
        ({"time": slice(None, 2)}, slice(0, 2)),
        ({"time": slice(2, None)}, slice(2, 4)),
        ({"time": "auto"}, slice(1, 3)),
        ("auto", slice(1, 3)),
    ],
    ids=str,
)
def test_a_region_is_written_and_nothing_else(path, layout, zarr_format, region, rows):
    ds = era()
    ds.td.to_zarr(path, layout=layout, zarr_format=zarr_format)
    expected = ds.copy(deep=True)
    for name in ("t2m", "next/t2m"):
        expected[name][rows] += 100
    expected["station"][rows] = ["w", "x"]
    expected.isel(time=rows).td.to_zarr(path, region=region)
    assert_gives_back(path, expected)
    if layout == "tensordict":
        assert_bare_tensordict_reads(path, expected)


@FORMATS
def test_regions_fill_a_template(path, zarr_format):
    ds = era()
    template = ds.chunk(time=2)
    template.td.to_zarr(path, compute=False, zarr_format=zarr_format)
    with pytest.warns(UserWarning, match="not complete"):
        assert xr.open_dataset(path, engine="tensordict").td.batch_size == (4,)
    for start in (0, 2):
        ds.isel(time=slice(start, start + 2)).td.to_zarr(path, region="auto")
    assert_gives_back(path, ds)


# -- targets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [None, "w"])
def test_a_group_of_a_store_is_written_and_the_rest_stays(path, mode):
    era().td.to_zarr(path, group="new/store")
    assert_gives_back(path, era(), group="new/store")
    assert "new" in zarr.open_group(path)
    era().td.to_zarr(path, mode="w")
    if mode == "w":
        era(2).td.to_zarr(path, group="runs/a")
    era(3).td.to_zarr(path, group="runs/a", mode=mode)
    assert_gives_back(path, era(3), group="runs/a")
    np.testing.assert_array_equal(reopened(path, nested=False)["t2m"], era()["t2m"])
    with pytest.raises(FileExistsError, match="runs/a"):
        era().td.to_zarr(path, group="runs/a")


def test_a_zip_file_can_be_written_onto_itself(tmp_path):
    target = tmp_path / "era.zarr.zip"
    era().td.to_zarr(target)
    with xr.open_dataset(target, engine="tensordict", chunks={}) as ds:
        ds.isel(time=slice(0, 2)).td.to_zarr(target, mode="w")
    assert reopened(target).sizes["time"] == 2
    assert [child.name for child in tmp_path.iterdir()] == ["era.zarr.zip"]


@pytest.mark.parametrize("keywords", [{"append_dim": "time"}, {"region": "auto"}, {"mode": "a"}, {"mode": "r+"}])
def test_a_zip_file_is_not_changed_in_place(tmp_path, keywords):
    target = tmp_path / "era.zip"
    era().td.to_zarr(target)
    before = target.read_bytes()
    with pytest.raises(ValueError, match="zip file cannot be changed"):
        era().td.to_zarr(target, **keywords)
    with pytest.raises(NotImplementedError, match="zip"):
        era().chunk().td.to_zarr(target, mode="w", compute=False)
    assert target.read_bytes() == before


# -- layout="xarray", consolidation -----------------------------------------------------------------------------------


def test_with_layout_xarray_the_record_is_written_where_tensordict_can_honour_it(path, tmp_path):
    buffer = xr.Dataset({"obs": (("time", "f"), np.zeros((6, 3))), "next/obs": (("time", "f"), np.ones((6, 3)))})
    buffer.td.to_zarr(path, layout="xarray")
    assert TensorDict.from_zarr(path).batch_size == torch.Size([6])
    era().td.to_zarr(tmp_path / "era.zarr", layout="xarray")
    assert "__tensordict__" not in zarr.open_group(tmp_path / "era.zarr").attrs
    assert reopened(tmp_path / "era.zarr").attrs == era().attrs


@pytest.mark.parametrize("consolidated", [None, True, False])
def test_metadata_is_consolidated_unless_it_is_turned_off(path, consolidated):
    era().td.to_zarr(path, consolidated=consolidated)
    found = zarr.open_group(path, mode="r").metadata.consolidated_metadata
    assert (found is None) == (consolidated is False)
    if found is not None:
        assert "next/t2m" in found.flattened_metadata


def test_consolidated_metadata_never_goes_stale(path):
    era().td.to_zarr(path)
    era(2).td.to_zarr(path, append_dim="time", consolidated=False)
    found = zarr.open_consolidated(path)
    assert found["t2m"].shape[0] == 6
    assert found.attrs["__tensordict__"]["batch_size"] == [6]


def test_nothing_is_written_to_the_dataset(path):
    ds = era().chunk(time=2)
    attrs, encodings = dict(ds.attrs), {name: dict(v.encoding) for name, v in ds.variables.items()}
    copies = {name: dict(v.attrs) for name, v in ds.variables.items()}
    ds.td.to_zarr(path)
    assert dict(ds.attrs) == attrs
    assert {name: dict(v.attrs) for name, v in ds.variables.items()} == copies
    assert {name: dict(v.encoding) for name, v in ds.variables.items()} == encodings
    assert ds["t2m"].chunks is not None


def test_an_empty_dataset(path):
    xr.Dataset(attrs={"a": 1}).td.to_zarr(path)
    assert_gives_back(path, xr.Dataset(attrs={"a": 1}))


# -- what is refused, before anything is written -----------------------------------------------------------------------


def objects(*values: object) -> np.ndarray:
    found = np.empty(len(values), object)
    found[:] = values
    return found


def rows_of(name: str, values: object) -> xr.Dataset:
    return xr.Dataset({"x": ("row", [1.0, 2.0]), name: ("row", values)})


def with_attr(owner: str) -> xr.Dataset:
    ds = era()
    ds[owner].attrs["bad"] = object()
    return ds


NANOSECONDS = r"'event' holds .*layout='xarray'"
NEVER_WRITTEN = [
    (rows_of("event", np.array(["3000-01-01", "2000-01-01"], "M8[s]")), {}, NANOSECONDS),
    (rows_of("event", np.array(["2000-01-01", "1000-01-01"], "M8[us]")).chunk(row=1), {}, NANOSECONDS),
    (rows_of("event", np.array([400 * 365 * 86_400, 0], "m8[s]")), {}, NANOSECONDS),
    (
        rows_of("event", [cftime.DatetimeNoLeap(2000, 1, day) for day in (1, 2)]),
        {},
        r"'event' holds cftime dates.*layout",
    ),
    *(
        (rows_of("config", objects("a", value)), {}, r"'config'.*JSON")
        for value in ({1, 2}, (1, 2), {1: "a"}, object(), 1j)
    ),
    (rows_of("jpeg", objects(np.arange(2), np.arange(3))), {}, r"'jpeg'.*to_h5"),
    (rows_of("x/b", [1, 2]), {}, "claim one path"),
    *((rows_of(name, [1, 2]), {}, "part of a path") for name in ("a//b", "/a", "a/..", "zarr.json")),
    *((rows_of(name, [1, 2]), {}, "rename it") for name in ("_unbatched", "_unbatched/a")),
    *(
        (with_attr(owner), {"layout": layout}, f"attribute 'bad' of variable '{owner}'")
        for owner in ("done", "next/t2m", "lat", "mask")
        for layout in ("tensordict", "xarray")
    ),
    (era().assign_attrs(bad={1, 2}), {}, "attribute 'bad' of group '/'"),
    (era(), {"chunks": {"level": 2}}, "no dim 'level'"),
    (era(), {"chunks": {"time": 0}}, "at least 1"),
    (era(), {"chunks": {"time": 2}, "shards": {"time": 3}}, "multiple of the chunk size"),
    (era(), {"chunks": {"time": 2}, "shards": {"time": 3}, "compute": False}, "multiple of the chunk size"),
    (era(), {"encoding": {"next/t2m": {"chunks": (3, 2, 3), "shards": (4, 2, 3)}}}, "hold whole chunks"),
    (era(), {"encoding": {"nothing": {}}}, "no variable 'nothing'"),
    (era(), {"encoding": {"t2m": {"zlib": True}}}, "zlib"),
    (era(), {"encoding": {"t2m": {"dtype": "int8"}}}, "'t2m'"),
    (era(), {"layout": "hdf5"}, "layout"),
    (era(), {"mode": "r"}, "mode"),
    (era(), {"zarr_format": 1}, "zarr_format"),
    *((era(), keywords, "mode='w'") for keywords in ({"append_dim": "time"}, {"region": "auto"}, {"mode": "r+"})),
]


@pytest.mark.parametrize(("ds", "keywords", "message"), NEVER_WRITTEN)
def test_what_a_store_cannot_hold_is_refused_by_name_and_leaves_nothing(path, ds, keywords, message):
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
        ds.td.to_zarr(path, **keywords)
    assert not path.exists()


FIRST_TWO = {"region": {"time": slice(0, 2)}}
NEVER_CHANGED = [
    (lambda ds: ds, FIRST_TWO, "has size 4"),
    (lambda ds: ds.isel(time=[0]), {"region": {"time": slice(0, 4, 2)}}, "step"),
    (lambda ds: ds.isel(time=[0]), {"region": {"level": slice(0, 1)}}, "'level'"),
    (lambda ds: ds.isel(time=[0, 1]).assign(new=("time", [1, 2])), FIRST_TWO, "cannot add"),
    (lambda ds: ds.isel(time=[0, 2]), {"region": "auto"}, "contiguous"),
    (lambda ds: ds.assign_coords(time=ds["time"] + np.timedelta64(1, "s")), {"region": "auto"}, "not among"),
    (lambda ds: ds[["t2m"]].isel(time=[0, 1]).drop_vars("time"), {"region": "auto"}, "'time' has none"),
    (lambda ds: ds.isel(time=slice(1, 3)).chunk(time=1), {"region": {"time": slice(1, 3)}}, "cuts the chunks"),
    (lambda ds: ds.isel(time=[0, 1]).assign(mask=~ds["mask"]), FIRST_TWO, "'mask' has no dim 'time'"),
    (lambda ds: ds.isel(time=[0, 1]).assign(source=((), "other")), FIRST_TWO, "'source' has no dim 'time'"),
    (lambda ds: ds.isel(time=[0, 1]).assign_coords(height=3.0), FIRST_TWO, "'height' has no dim 'time'"),
    (
        lambda ds: ds[["t2m"]].isel(time=[2, 3]),
        FIRST_TWO,
        r"not those that the store has in the region 0:2.*region='auto'",
    ),
    (
        lambda ds: ds[["t2m"]].rename(t2m="q").assign_coords(time=ds["time"] + np.timedelta64(3, "D")),
        {"mode": "a"},
        r"'time' are not those that the store has, and .*'t2m'",
    ),
    (
        lambda ds: ds[["done"]].isel(time=[0, 1]).drop_vars(["time", "run", "height"]).rename(done="new"),
        {"mode": "a"},
        "'time' has size 4 in the store",
    ),
    (lambda ds: ds[["t2m"]].rename(t2m="new"), {"mode": "r+"}, "adds no variables"),
    (lambda ds: xr.Dataset({"new": ("time", np.zeros(4))}, attrs={"bad": {1}}), {"mode": "a"}, "'bad' of group '/'"),
    (lambda ds: ds, {"append_dim": "time", "region": "auto"}, "append_dim or region"),
    (lambda ds: ds, {"append_dim": "time", "mode": "w"}, "append_dim"),
    (lambda ds: ds, {"region": "auto", "mode": "w"}, "region"),
]


@pytest.mark.parametrize(("change", "keywords", "message"), NEVER_CHANGED)
def test_what_does_not_fit_a_store_is_refused_and_changes_nothing(path, change, keywords, message):
    era().td.to_zarr(path)
    before = content(path)
    with pytest.raises((ValueError, TypeError), match=message):
        change(era()).td.to_zarr(path, **keywords)
    assert content(path) == before


def test_what_is_read_from_the_store_may_be_added_to_it_and_not_written_over_it_by_dask(path):
    era().td.to_zarr(path, chunks={"time": 2})
    ds = xr.open_dataset(path, engine="tensordict", chunks={})
    ds.assign(double=ds["t2m"] * 2)[["double"]].td.to_zarr(path, mode="a")
    np.testing.assert_array_equal(reopened(path)["double"], era()["t2m"] * 2)
    for part, keywords in ((ds, {"mode": "a"}), (ds.isel(time=slice(0, 2)), FIRST_TWO)):
        with pytest.raises(ValueError, match="dask would read"):
            (part[["t2m"]] + 1).td.to_zarr(path, **keywords)
    lazy = xr.open_dataset(path, engine="tensordict")
    lazy[["done"]].isel(time=slice(2, 4)).drop_vars("time").td.to_zarr(path, **FIRST_TWO)
    assert reopened(path)["done"].values.tolist() == [True, False, True, False]
    (era()[["t2m"]] * 2).td.to_zarr(path, mode="r+")
    np.testing.assert_array_equal(reopened(path)["t2m"], era()["t2m"] * 2)


def test_dates_of_another_calendar_are_kept_by_xarray(path):
    ds = rows_of("event", [cftime.DatetimeNoLeap(2000, 1, day) for day in (1, 2)])
    ds.td.to_zarr(path, layout="xarray")
    xr.testing.assert_identical(reopened(path), ds)


def test_a_region_is_of_the_whole_dim_where_it_has_no_coordinate(path):
    ds = xr.Dataset({"x": ("t", np.arange(4.0))})
    ds.td.to_zarr(path)
    (ds * 2).td.to_zarr(path, region="auto")
    np.testing.assert_array_equal(reopened(path)["x"], ds["x"] * 2)
