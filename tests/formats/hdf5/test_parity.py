"""netCDF-4 files read as xarray's own h5netcdf engine reads them: values, dims, attributes, encodings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
from packaging.version import Version
from xarray.core import indexing

from xarray_tensordict.core.model import StoredGroup
from xarray_tensordict.formats.hdf5.read import Hdf5Store

pytestmark = pytest.mark.filterwarnings("error")


def variables_of(group: StoredGroup) -> dict[str, xr.Variable]:
    return {
        name: xr.Variable(array.dims, indexing.LazilyIndexedArray(array.data), array.attrs, array.encoding)
        for name, array in group.arrays.items()
    }


def decoded(group: StoredGroup, **decoders: Any) -> xr.Dataset:
    variables = variables_of(group)
    coords = {name: variable for name, variable in variables.items() if variable.dims == (name,)}
    data = {name: variable for name, variable in variables.items() if name not in coords}
    return xr.decode_cf(xr.Dataset(data, coords, group.attrs), **decoders)


def assert_like_h5netcdf(path: Path, group: str | None = None, **decoders: Any) -> None:
    store = Hdf5Store.open(path, root=group)
    found = store.group()
    with xr.open_dataset(path, engine="h5netcdf", group=group, **decoders) as expected:
        actual = decoded(found, **decoders)
        xr.testing.assert_identical(actual, expected)
        for name in expected.variables:
            assert actual[name].dtype == expected[name].dtype, name
            assert_same_encoding(actual[name].encoding, expected[name].encoding)
            assert_same_types(actual[name].attrs, expected[name].attrs)
        assert_same_types(actual.attrs, expected.attrs)
        assert set(expected.encoding["unlimited_dims"]) <= found.unlimited_dims
    store.close()


def assert_same_encoding(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    # what dask is to read at once is decided when all arrays are known, see tests/dataset/test_open_chunks.py
    assert expected.keys() - actual.keys() <= {"preferred_chunks", "szip", "zstd", "bzip2", "blosc"}
    assert actual.keys() - expected.keys() <= {"contiguous", "zlib"}, "an older xarray says less of the filters"
    for key, value in expected.items():
        np.testing.assert_array_equal(actual.get(key, value), value, err_msg=key)
        if key == "dtype" and value is not str:
            enums = [(np.dtype(dtype).metadata or {}).get("enum") for dtype in (actual[key], value)]
            assert enums[0] == enums[1]


def assert_same_types(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        assert type(actual[key]) is type(value), key
        assert getattr(actual[key], "dtype", None) == getattr(value, "dtype", None), key


def characters(nc: Any) -> None:
    nc.createDimension("x", 2)
    nc.createDimension("strlen", 5)
    char = nc.createVariable("char", "S1", ("x", "strlen"))
    char[:] = netCDF4.stringtochar(np.array([b"abc", b"defgh"], "S5"))
    encoded = nc.createVariable("encoded", "S1", ("x", "strlen"))
    encoded._Encoding = "utf-8"
    encoded[:] = netCDF4.stringtochar(np.array(["é", "b"]), encoding="utf-8", n_strlen=5)
    nc.createVariable("letter", "S1", ())[...] = b"q"
    nc.createVariable("x", "S1", ("x",))[:] = [b"a", b"b"]


def char_coordinate(nc: Any) -> None:
    nc.createDimension("station", 2)
    nc.createDimension("strlen", 3)
    nc.createVariable("station", "S1", ("station", "strlen"))[:] = np.array([list("abc"), list("def")], "S1")
    nc.createVariable("v", "f4", ("station",))[:] = [1, 2]


def attributes(nc: Any) -> None:
    nc.title, nc.empty, nc.many = "blåbær", "", ["a", "b"]
    nc.createDimension("x", 1)
    v = nc.createVariable("v", "f4", ("x",), fill_value=-1)
    v.one, v.three, v.nothing = np.float32(1.5), np.arange(3, dtype="i2"), np.array([], "f4")
    v.valid_range = np.array([0, 9], "f4")
    v.text, v.letter, v.alone = "some text", "l", ["single"]
    v[:] = [3]


def fills(nc: Any) -> None:
    nc.createDimension("x", 3)
    packed = nc.createVariable("packed", "i2", ("x",), fill_value=-999)
    packed.set_auto_maskandscale(False)
    packed.scale_factor, packed.add_offset = 0.5, 10.0
    packed[:] = [0, -999, 4]
    nc.createVariable("none", "f8", ("x",), fill_value=False)[:] = [1, 2, 3]
    char = nc.createVariable("char", "S1", ("x",), fill_value=b"-")
    char[:] = [b"a", b"-", b"b"]
    missing = nc.createVariable("missing", "i4", ("x",))
    missing.missing_value = np.int32(7)
    missing[:] = [1, 7, 2]


def short_of_unlimited(nc: Any) -> None:
    nc.createDimension("time", None)
    nc.createDimension("x", 2)
    nc.createVariable("a", "f8", ("time",), fill_value=-1.0)[0:4] = [1, 2, 3, 4]
    nc.createVariable("b", "f8", ("time",), fill_value=-1.0)[0:1] = [9]
    nc.createVariable("c", "i2", ("time", "x"))[0:2] = [[1, 2], [3, 4]]
    nc.createVariable("d", "i4", ("time",))
    nc.createVariable("time", "f8", ("time",))[0:2] = [10, 20]


def nested(nc: Any) -> None:
    nc.createDimension("time", None)
    nc.createDimension("x", 2)
    nc.createVariable("x", "i4", ("x",))[:] = [5, 6]
    inner = nc.createGroup("a").createGroup("b")
    inner.createDimension("y", 2)
    inner.createVariable("v", "f4", ("time", "x", "y"))[:] = np.arange(12).reshape(3, 2, 2)
    inner.createVariable("x", "f4", ("x",))[:] = [1, 2]
    inner.createVariable("scalar", "i4", ())[...] = 4
    inner.note = "inner"


def enums(nc: Any) -> None:
    nc.createDimension("x", 3)
    cloud = nc.createEnumType(np.uint8, "cloud_t", {"clear": 0, "cumulus": 2})
    nc.createVariable("cloud", cloud, ("x",), fill_value=0)[:] = [0, 2, 2]
    group = nc.createGroup("g")
    group.createVariable("inherited", cloud, ("x",), fill_value=2)[:] = [0, 2, 0]


def compressed(nc: Any) -> None:
    nc.createDimension("x", 40)
    nc.createDimension("y", 3)
    data = np.arange(120).reshape(40, 3)
    options: dict[str, dict[str, Any]] = {
        "zlib": {"compression": "zlib", "complevel": 3, "shuffle": True},
        "sums": {"fletcher32": True, "chunksizes": (10, 3)},
        "plain": {"contiguous": True},
        "chunked": {"chunksizes": (7, 2)},
    }
    for name, kwargs in options.items():
        nc.createVariable(name, "i4", ("x", "y"), **kwargs)[:] = data


def clash(nc: Any) -> None:
    nc.createDimension("x", 2)
    nc.createDimension("y", 3)
    nc.createVariable("x", "f4", ("y",))[:] = [1, 2, 3]
    nc.createVariable("v", "f4", ("x", "y"))[:] = np.ones((2, 3))


NETCDF4 = [characters, char_coordinate, attributes, fills, short_of_unlimited, nested, enums, compressed, clash]


@pytest.mark.parametrize("write", NETCDF4, ids=lambda write: write.__name__)
def test_what_netcdf4_python_writes(write: Callable[[Any], None], tmp_path: Path) -> None:
    path = tmp_path / "file.nc"
    with netCDF4.Dataset(path, "w") as nc:
        write(nc)
    for group in (None, *groups_in(path)):
        assert_like_h5netcdf(path, group)
        assert_like_h5netcdf(path, group, mask_and_scale=False, decode_times=False, concat_characters=False)


def groups_in(path: Path) -> list[str]:
    found: list[str] = []
    with h5py.File(path) as file:
        file.visititems(lambda name, member: found.append(name) if isinstance(member, h5py.Group) else None)
    return found


def all_dtypes() -> xr.Dataset:
    n = 4
    codes = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8")
    ds = xr.Dataset({code: ("x", np.arange(n).astype(code)) for code in codes})
    ds["big"] = ("x", np.arange(n).astype(">f4"))
    ds["flag"] = ("x", np.array([True, False, True, True]))
    ds["text"] = ("x", np.array(["a", "bb", "", "blåbær"]))
    ds["object"] = ("x", np.array(["a", "bb", "", "c"], object))
    ds["bytes"] = ("x", np.array([b"a", b"bcd", b"", b"e"]))
    ds["scalar"] = ((), 3.5)
    ds["words"] = ((), "words")
    ds["when"] = ("x", np.array(["2000-01-01", "2000-01-02", "NaT", "2001-01-01"], "M8[ns]"))
    ds["lag"] = ("x", np.array([1, 2, 3, 4], "m8[s]").astype("m8[ns]"))
    return ds.assign_coords(x=[10, 20, 30, 40], label=("x", list("abcd"))).assign_attrs(title="t", n=3, many=["a", "b"])


def unlimited() -> xr.Dataset:
    ds = xr.Dataset({"v": (("time", "x"), np.arange(6.0).reshape(3, 2))}, {"time": [1, 2, 3]})
    ds.encoding["unlimited_dims"] = {"time"}
    return ds


def packed() -> xr.Dataset:
    ds = xr.Dataset({"v": (("x", "y"), np.arange(6.0).reshape(3, 2)), "w": ("x", [1.0, np.nan, 2.0])})
    ds["v"].encoding = {"dtype": "i2", "scale_factor": 0.5, "add_offset": 1.0, "_FillValue": -9}
    ds["v"].encoding |= {"zlib": True, "complevel": 4, "shuffle": True, "chunksizes": (2, 2)}
    ds["w"].encoding = {"compression": "lzf", "fletcher32": True, "chunksizes": (3,), "_FillValue": None}
    return ds


def characters_from_text() -> xr.Dataset:
    ds = xr.Dataset({"text": ("x", ["ab", "c"])})
    ds["text"].encoding = {"dtype": "S1", "char_dim_name": "letters"}
    return ds


def zero_length() -> xr.Dataset:
    return xr.Dataset({"v": (("x", "y"), np.zeros((0, 3))), "t": ("x", np.array([], "U3"))})


@pytest.mark.parametrize("make", [all_dtypes, unlimited, packed, characters_from_text, zero_length])
@pytest.mark.parametrize("engine", ["h5netcdf", "netcdf4"])
@pytest.mark.filterwarnings("ignore:'_FillValue':UserWarning")
def test_what_xarray_writes(make: Callable[[], xr.Dataset], engine: Any, tmp_path: Path) -> None:
    path = tmp_path / "file.nc"
    ds = make()
    if engine == "netcdf4" and make is packed:
        ds["w"].encoding.pop("compression")
    ds.to_netcdf(path, engine=engine)
    assert_like_h5netcdf(path)
    assert_like_h5netcdf(path, mask_and_scale=False, decode_times=False)


def test_groups_of_a_datatree(tmp_path: Path) -> None:
    path = tmp_path / "tree.nc"
    tree = xr.DataTree.from_dict(
        {"/": all_dtypes().rename(x="n"), "/a": unlimited(), "/a/b": xr.Dataset({"z": ("time", [1, 2, 3])})}
    )
    tree.to_netcdf(path, engine="h5netcdf")
    for group in (None, "a", "a/b", "/a/b/"):
        assert_like_h5netcdf(path, group)


def test_what_the_dimension_promises_and_was_not_stored_is_what_netcdf_c_reads(tmp_path: Path) -> None:
    """h5netcdf gives 0 where no fill value was set, and fails for strings; netCDF-C gives its default fill values."""
    path = tmp_path / "short.nc"
    with netCDF4.Dataset(path, "w") as nc:
        nc.createDimension("t", None)
        nc.createVariable("long", "f4", ("t",))[0:3] = [1, 2, 3]
        for code in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8", "S1"):
            nc.createVariable(code, code, ("t",), fill_value=False)[0:1] = np.ones(1).astype(code)
        nc.createVariable("text", str, ("t",))[0:1] = np.array(["a"], object)
    store = Hdf5Store.open(path)
    with xr.open_dataset(path, engine="netcdf4", mask_and_scale=False) as expected:
        xr.testing.assert_identical(decoded(store.group(), mask_and_scale=False).compute(), expected.compute())
    store.close()


def test_every_index_gives_what_numpy_gives(tmp_path: Path) -> None:
    path = tmp_path / "indexed.nc"
    with netCDF4.Dataset(path, "w") as nc:
        nc.createDimension("t", None)
        nc.createDimension("x", 6)
        nc.createVariable("v", "i4", ("t", "x"))[0:7] = np.arange(42).reshape(7, 6)
        nc.createVariable("t", "f8", ("t",))[0:9] = np.arange(9)
    store = Hdf5Store.open(path)
    lazy = xr.Variable(("t", "x"), indexing.LazilyIndexedArray(store.group().arrays["v"].data))
    whole = xr.Variable(("t", "x"), lazy.values)
    assert whole.shape == (9, 6)
    assert whole.values[7, 0] == -2147483647
    keys: list[Any] = [
        0, 8, -1, slice(2, None, 3), slice(None, None, -2), slice(8, 3, -1), slice(7, 9), slice(0, 0), [0, 5, 3, 3],
        [8, 0], [], [6, 7], [0, 2, 3, 4, 5], np.array([-1, -9]), np.arange(9) % 2 == 0, slice(3, 100),
    ]  # fmt: skip
    for key in keys:
        xr.testing.assert_identical(lazy[key], whole[key])
        for other in (slice(1, 5, 2), 2, [5, 0, 1], [], slice(None, None, -1)):
            if Version(xr.__version__) < Version("2026.9") and not whole[key, other].size:
                continue  # xarray raised an IndexError for some empty selections
            xr.testing.assert_identical(lazy[key, other], whole[key, other])
    points = {"t": xr.Variable("p", [8, 0, 3]), "x": xr.Variable("p", [1, 1, 5])}
    xr.testing.assert_identical(lazy[points], whole[points])
    store.close()
