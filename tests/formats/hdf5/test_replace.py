"""Variables of HDF5 files that are written over with mode="a"."""

from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr

from written import assert_gives_back, reopened

LAYOUTS = pytest.mark.parametrize("layout", ["tensordict", "xarray"])


@pytest.fixture
def path(tmp_path: Any) -> Any:
    return tmp_path / "file.h5"


TIMES = np.datetime64("2024-01-01", "ns") + np.arange(3) * np.timedelta64(1, "D")
OVER = {
    "wider numbers": (("time", np.zeros(3, "int8")), ("time", np.array([300, 2**40, -5]))),
    "numbers over bools": (("time", [True, False, True]), ("time", [7, 8, 9])),
    "numbers over durations": (("time", np.arange(3).astype("m8[s]")), ("time", [3, 4, 5])),
    "float64 over float32": (("time", np.zeros(3, "f4")), ("time", [1e300, 0.1, np.nan])),
    "numbers over packed": (
        xr.Variable("time", [0.5, 1, 2], {}, {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -9}),
        ("time", [0.1, 1e9, 3]),
    ),
    "times over text": (("time", ["a", "b", "c"]), ("time", TIMES)),
    "text over None": (((), None), ((), "lift")),
    "None over a number": (((), 3), ((), None)),
    "rows over none": (("k", [1.0, 2.0]), ("time", [1.0, 2.0, 3.0])),
    "none over rows": (("time", [1.0, 2.0, 3.0]), ("k", [1.0, 2.0])),
    "other dims": (("time", [1.0, 2.0, 3.0]), (("time", "k"), np.ones((3, 2)))),
}  # fmt: skip


@LAYOUTS
@pytest.mark.parametrize("asked", ["tensordict", "xarray"])
@pytest.mark.parametrize("group", [None, "runs/a"])
@pytest.mark.parametrize("over", OVER)
def test_mode_a_replaces_a_variable_as_a_whole_in_the_layout_that_is_there(path, layout, asked, group, over):
    old, new = (
        xr.Dataset({"x": value, "next/x": value}, {"time": [0, 1, 2]}).assign(kept=("time", np.ones(3)))
        for value in OVER[over]
    )
    if not over.startswith("numbers over packed"):
        old["x"].attrs["old"] = "words"
    new["x"].attrs["note"] = "new"
    old.td.to_h5(path, layout=layout, mode="a", group=group)
    new.drop_vars("kept").td.to_h5(path, layout=asked, mode="a", group=group)
    assert_gives_back(path, new, nested=True, group=group)
    with h5py.File(path) as file:
        assert ("REFERENCE_LIST" in file[f"{group or ''}/time"].attrs) == (layout == "xarray")
    if layout == "xarray":
        with xr.open_dataset(path, engine="h5netcdf", group=group) as plain:
            assert plain["kept"].dims == ("time",)
            assert plain["x"].dims == new["x"].dims
            assert plain["time"].values.tolist() == [0, 1, 2]


@LAYOUTS
def test_mode_a_replaces_a_coordinate_and_everything_along_it_keeps_its_dim(path, layout):
    ds = xr.Dataset({"x": ("time", np.zeros(3)), "next/x": ("time", np.ones(3))}, {"time": [0, 1, 2]})
    ds.td.to_h5(path, layout=layout, unlimited_dims=["time"])
    new = ds.assign_coords(time=("time", TIMES, {"long_name": "day"}))
    with pytest.raises(ValueError, match=r"the values of 'time' are not those that the store has, and \['x'"):
        new[["next/x"]].td.to_h5(path, mode="a")
    assert_gives_back(path, ds, nested=True)
    new.td.to_h5(path, mode="a")
    assert_gives_back(path, new, nested=True)
    new.assign_coords(time=TIMES + np.timedelta64(3, "D")).td.to_h5(path, append_dim="time")
    assert reopened(path).sizes["time"] == 6
    if layout == "xarray":
        with xr.open_dataset(path, engine="h5netcdf") as plain:
            assert plain["x"].dims == ("time",)
            assert plain["time"].values[:3].tolist() == TIMES.tolist()


def test_mode_a_keeps_the_scale_of_another_writer_when_it_is_replaced(path):
    with h5py.File(path, "w") as file:
        scale = file.create_dataset("time", data=np.arange(3))
        scale.make_scale("time")
        file.create_dataset("x", data=np.ones(3)).dims[0].attach_scale(scale)
    xr.Dataset({"time": ("time", [0, 1, 2], {"units": "s"})}).td.to_h5(path, mode="a")
    with h5py.File(path) as file:
        assert file["x"].dims[0][0] == file["time"]
    assert reopened(path)["x"].dims == ("time",)
    assert reopened(path)["time"].attrs == {"units": "s"}


@LAYOUTS
def test_mode_a_keeps_chunks_and_compression_of_an_equal_variable(path, layout):
    ds = xr.Dataset({"x": ("time", np.zeros(6))})
    ds.td.to_h5(path, layout=layout, encoding={"x": {"zlib": True, "complevel": 3, "chunksizes": (2,)}})
    (ds + 1).td.to_h5(path, mode="a")
    with h5py.File(path) as file:
        assert (file["x"].chunks, file["x"].compression, file["x"].compression_opts) == ((2,), "gzip", 3)
    assert_gives_back(path, ds + 1)


@LAYOUTS
def test_mode_a_refuses_what_cannot_take_the_place_of_a_scale_and_encodings_of_the_other_layout(path, layout):
    ds = xr.Dataset({"x": ("time", np.zeros(3))}, {"time": [0, 1, 2]})
    ds.td.to_h5(path, layout="xarray")
    before = path.read_bytes()
    with pytest.raises(
        ValueError, match=r"'time' \(int64\) is the dimension scale of \['x'\].*found \['k'\] \(float64\)"
    ):
        xr.Dataset({"time": ("k", [1.0, 2.0])}).td.to_h5(path, layout=layout, mode="a", compute=False)
    assert path.read_bytes() == before
    with pytest.raises(ValueError, match="what is there has layout='xarray'; pass that"):
        ds.td.to_h5(path, mode="a", encoding={"x": {"zlib": True}})
    assert path.read_bytes() == before
