"""Many stores as one Dataset: what `xr.open_mfdataset`, `xr.concat` and `xr.combine_nested` make of them is one batch."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from tensordict import TensorDict

from written import assert_gives_back
from xarray_tensordict import open_persistent
from xarray_tensordict._compat.tensordict import IS_0_14
from xarray_tensordict.testing import assert_same_tensordict

LENGTHS = (4, 2, 3)

pytestmark = pytest.mark.filterwarnings("ignore:.*Zarr format 3.*", "ignore:.*does not have a Zarr V3 specification.*")


def buffer(number: int, length: int, names: list[str] | None) -> TensorDict:
    values = torch.arange(length * 3).reshape(length, 3).float() + 100 * number
    fields = {"obs": values, "next": {"obs": values + 1}, "done": torch.arange(length) == length - 1}
    return TensorDict(fields, [length], names=names)


def weather(number: int, length: int) -> xr.Dataset:
    first = sum(LENGTHS[:number])
    hours = (np.arange(length) + first).astype("M8[h]").astype("M8[ns]")
    return xr.Dataset(
        {
            "t2m": (("time", "lat"), np.arange(length * 3.0).reshape(length, 3) + 100 * number),
            "station": ("time", np.array([f"run{number}-{row}" for row in range(length)], object)),
            "seen": ("time", hours),
            "orography": ("lat", [5.0, 6.0, 7.0]),
        },
        coords={"time": np.arange(length) + first, "lat": [1.0, 2.0, 3.0]},
        attrs={"title": "weather"},
    )


TENSORDICT_WRITERS = {
    "zarr": lambda td, path: td.to_zarr(path),
    "hdf5": lambda td, path: td.to_h5(path),
    "memmap": lambda td, path: td.memmap(path),
}
XARRAY_WRITERS = {
    "xarray-zarr3": lambda ds, path: ds.to_zarr(path, zarr_format=3),
    "xarray-netcdf": lambda ds, path: ds.to_netcdf(path, engine="h5netcdf"),
    "ours-zarr2": lambda ds, path: ds.td.to_zarr(path, zarr_format=2),
    "ours-zarr3": lambda ds, path: ds.td.to_zarr(path),
    "ours-hdf5": lambda ds, path: ds.td.to_h5(path),
    "ours-zarr-for-xarray": lambda ds, path: ds.td.to_zarr(path, layout="xarray"),
}
BUFFERS = pytest.mark.parametrize("write", list(TENSORDICT_WRITERS.values()), ids=list(TENSORDICT_WRITERS))
FORMS = pytest.mark.parametrize("write", list(XARRAY_WRITERS.values()), ids=list(XARRAY_WRITERS))


def written(write, parts, folder: Path) -> list[Path]:
    paths = [folder / f"part-{number}" for number in range(len(parts))]
    for part, path in zip(parts, paths, strict=True):
        write(part, path)
    return paths


def open_many(paths, **keywords):
    given = {"combine": "nested", "concat_dim": "time"}
    given |= {"data_vars": "minimal", "coords": "minimal", "compat": "override"}
    if keywords.get("combine") == "by_coords":
        del given["concat_dim"]
    return xr.open_mfdataset(paths, engine="tensordict", **{**given, **keywords})


def assert_lazy(ds: xr.Dataset) -> None:
    assert {str(name) for name, v in ds.data_vars.items() if v.chunks is None} == set()


def assert_written_and_read_in_both_libraries(ds: xr.Dataset, folder: Path) -> None:
    for write, path in ((ds.td.to_zarr, folder / "joined.zarr"), (ds.td.to_h5, folder / "joined.h5")):
        write(path)
        assert_gives_back(path, ds.compute())
        with open_persistent(path) as ptd:
            assert_same_tensordict(ptd.to_tensordict(), ds.td.to_tensordict())


class TestOfTensordicts:
    @BUFFERS
    def test_the_concat_dim_is_the_batch(self, tmp_path, write):
        """HDF5 forgets names, and tensordict 0.14 those of memmaps too, so all are asked for by name."""
        parts = [buffer(number, length, ["time"]) for number, length in enumerate(LENGTHS)]
        paths = written(write, parts, tmp_path)
        if write is not TENSORDICT_WRITERS["hdf5"] and not (IS_0_14 and write is TENSORDICT_WRITERS["memmap"]):
            with open_many(paths) as ds:
                assert_same_tensordict(ds.td.to_tensordict(), torch.cat(parts))
        with open_many(paths, batch_dims="time") as ds:
            assert_lazy(ds)
            assert ds["next/obs"].chunks == (LENGTHS, (3,))
            assert (ds.td.batch_dims, ds.td.batch_size) == (("time",), (9,))
            assert_same_tensordict(ds.td.to_tensordict(), torch.cat(parts))
            assert_written_and_read_in_both_libraries(ds, tmp_path)

    @BUFFERS
    def test_without_names_the_leading_axis_is_called_batch_0_or_as_the_caller_says(self, tmp_path, write):
        parts = [buffer(number, length, None) for number, length in enumerate(LENGTHS)]
        paths = written(write, parts, tmp_path)
        with open_many(paths, concat_dim="batch_0") as ds:
            assert_same_tensordict(ds.td.to_tensordict(), torch.cat(parts))
        with open_many(paths, batch_dims="time") as ds:
            assert (ds.td.batch_dims, ds.td.batch_size) == (("time",), (9,))
            assert torch.equal(ds.td.to_tensordict()["next", "obs"], torch.cat(parts)["next", "obs"])

    @BUFFERS
    @pytest.mark.parametrize("named", [True, False])
    def test_a_new_dim_stands_in_front_of_the_batch(self, tmp_path, write, named):
        parts = [buffer(number, 4, ["time"]) for number in range(2)]
        keywords = {"batch_dims": "time"} if named else {}
        with open_many(written(write, parts, tmp_path), concat_dim="run", data_vars="all", **keywords) as ds:
            assert_lazy(ds)
            assert ds.td.batch_size == (2, 4)
            assert ds.td.batch_dims[0] == "run"
            td = ds.td.to_tensordict()
            assert torch.equal(td["next", "obs"], torch.stack(parts)["next", "obs"])
            assert td["next"].batch_size == (2, 4)
            assert_written_and_read_in_both_libraries(ds, tmp_path)

    def test_a_batch_of_two_dims_grows_along_the_one_that_is_named(self, tmp_path):
        parts = [TensorDict({"x": torch.rand(2, 3, 5)}, [2, 3], names=["env", "time"]) for _ in range(2)]
        with open_many(written(TENSORDICT_WRITERS["zarr"], parts, tmp_path)) as ds:
            assert (ds.td.batch_dims, ds.td.batch_size) == (("env", "time"), (2, 6))
            assert_same_tensordict(ds.td.to_tensordict(), torch.cat(parts, 1))


class TestOfDatasets:
    @FORMS
    def test_rows_of_every_kind_are_joined_and_entries_without_rows_are_kept_once(self, tmp_path, write):
        parts = [
            weather(number, length).assign({"next/t2m": weather(number, length).t2m + 1})
            for number, length in enumerate(LENGTHS)
        ]
        if write in {XARRAY_WRITERS[name] for name in ("xarray-zarr3", "xarray-netcdf")}:
            parts = [part.drop_vars("next/t2m") for part in parts]
        with open_many(written(write, parts, tmp_path)) as ds:
            assert_lazy(ds)
            expected = xr.concat(parts, "time", data_vars="minimal", coords="minimal", compat="override")
            xr.testing.assert_equal(ds.compute(), expected)
            assert ds.orography.dims == ("lat",)
            assert (ds.td.batch_dims, ds.td.batch_size) == (("time",), (9,))
            assert_same_tensordict(ds.td.to_tensordict(), expected.td.to_tensordict())
            assert_written_and_read_in_both_libraries(ds.drop_encoding(), tmp_path)

    @pytest.mark.parametrize("write", [XARRAY_WRITERS["xarray-netcdf"], XARRAY_WRITERS["ours-zarr3"]])
    def test_coordinates_put_the_parts_in_order(self, tmp_path, write):
        parts = [weather(number, length) for number, length in enumerate(LENGTHS)]
        paths = written(write, parts, tmp_path)
        with open_many(paths[::-1], combine="by_coords") as ds:
            assert ds["time"].values.tolist() == list(range(9))
            assert_same_tensordict(ds.td.to_tensordict(), open_many(paths).td.to_tensordict())

    def test_a_new_dim_leaves_unbatched_entries_alone_or_decides(self, tmp_path):
        parts = [weather(number, 4).drop_vars("time") for number in range(2)]
        paths = written(XARRAY_WRITERS["xarray-zarr3"], parts, tmp_path)
        with open_many(paths, concat_dim="run", data_vars=["t2m", "station", "seen"]) as ds:
            assert (ds.td.batch_dims, ds.td.batch_size) == (("run", "time"), (2, 4))
            assert list(ds.td.unbatched.data_vars) == ["orography"]
        with open_many(paths, concat_dim="run", data_vars="all") as ds:
            assert ds.td.batch_dims == ("run", "time"), "orography(run, lat) is a field of space for each run"
        with open_many(paths, concat_dim="run", data_vars="all", batch_dims="time") as ds:
            assert (ds.td.batch_dims, ds.td.batch_size) == (("run", "time"), (2, 4))

    @pytest.mark.parametrize("combine_attrs", ["override", "drop", "drop_conflicts", "no_conflicts", "identical"])
    def test_the_chosen_batch_survives_what_becomes_of_attributes_where_they_are_kept(self, tmp_path, combine_attrs):
        parts = [xr.Dataset({"x": (("member", "time"), np.ones((2, 3)))}) for _ in range(2)]
        paths = written(XARRAY_WRITERS["xarray-zarr3"], parts, tmp_path)
        with open_many(paths, batch_dims=["time"], combine_attrs=combine_attrs) as ds:
            assert ds.td.batch_dims == (("member",) if combine_attrs == "drop" else ("time",))
        more = {"batch_dims": ["time"], "combine_attrs": combine_attrs, "concat_dim": "run", "data_vars": "all"}
        with open_many(paths, **more) as ds:
            expected = ("run", "member") if combine_attrs == "drop" else ("run", "time")
            assert ds.td.batch_dims == expected[: len(ds.td.batch_dims)]

    def test_choices_that_differ_between_the_parts_are_settled_by_combine_attrs(self):
        ds = xr.Dataset({"x": (("member", "time"), np.ones((2, 3)))})
        parts = [ds.td.set_batch_dims("time"), ds.td.set_batch_dims("member")]
        assert xr.concat(parts, "time", combine_attrs="override").td.batch_dims == ("time",)
        assert xr.concat(parts, "time", combine_attrs="drop_conflicts").td.batch_dims == ("member",)
        with pytest.raises(xr.MergeError):
            xr.concat(parts, "time", combine_attrs="no_conflicts")


class TestAsXarrayDoes:
    @pytest.fixture
    def paths(self, tmp_path):
        return written(XARRAY_WRITERS["ours-zarr3"], [weather(n, length) for n, length in enumerate(LENGTHS)], tmp_path)

    def test_with_chunks(self, paths):
        with pytest.warns(UserWarning, match="separate the stored chunks"):
            ds = open_many(paths, chunks={"time": 2, "lat": -1})
        with ds:
            assert ds.t2m.chunks == ((2, 2, 2, 2, 1), (3,))

    @pytest.mark.parametrize("join", [xr.concat, xr.combine_nested], ids=["concat", "combine_nested"])
    def test_opened_datasets_are_joined_by_hand(self, paths, join):
        opened = [xr.open_dataset(path, engine="tensordict", chunks={}) for path in paths]
        joined = join(opened, "time", data_vars="minimal", coords="minimal", compat="override")
        assert joined.td.batch_size == (9,)
        with open_many(paths) as expected:
            assert_same_tensordict(joined.td.to_tensordict(), expected.td.to_tensordict())
        for ds in opened:
            ds.close()

    def test_a_grid_of_stores(self, tmp_path):
        for run, part in itertools.product(range(2), range(2)):
            x = np.full((3, 2), 10.0 * run + part)
            xr.Dataset({"x": (("time", "f"), x), "done": ("time", x[:, 0] > 0)}).td.to_zarr(tmp_path / f"{run}{part}")
        grid = [[tmp_path / f"{run}{part}" for part in range(2)] for run in range(2)]
        with open_many(grid, concat_dim=["run", "time"], data_vars="all") as ds:
            assert (ds.td.batch_dims, ds.td.batch_size) == (("run", "time"), (2, 6))
            assert ds.td.to_tensordict()["x"][:, :, 0].tolist() == [[0.0] * 3 + [1.0] * 3, [10.0] * 3 + [11.0] * 3]


def test_stores_of_different_lengths_without_names_are_refused_with_the_dim_that_differs(tmp_path):
    parts = [buffer(number, length, None) for number, length in enumerate(LENGTHS)]
    paths = written(TENSORDICT_WRITERS["zarr"], parts, tmp_path)
    with pytest.raises(ValueError, match="batch_0"):
        open_many(paths, data_vars="all")
