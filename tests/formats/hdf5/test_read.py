"""What the HDF5 reader makes of the values, records and attributes of a file."""

import time
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
from xarray.core import indexing
from xarray.core.variable import Variable

from hdf5_reading import left_out, root_of, tree_of, values

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.h5"


# Values


def test_bool_is_bool_and_other_enums_are_their_codes(path):
    with h5py.File(path, "w") as file:
        file["done"] = np.array([True, False])
        file["flag"] = np.bool_(True)
        file.create_dataset("color", data=[1, 0], dtype=h5py.enum_dtype({"red": 0, "blue": 1}, "i2"))
    arrays = root_of(path).arrays
    assert arrays["done"].dtype == np.bool_
    assert values(arrays["done"]).tolist() == [True, False]
    assert values(arrays["flag"]).item() is True
    assert arrays["color"].dtype == np.int16
    assert values(arrays["color"]).tolist() == [1, 0]
    assert values(arrays["color"]).dtype.metadata is None
    assert arrays["color"].encoding["dtype"].metadata == {"enum": {"red": 0, "blue": 1}}


@pytest.mark.parametrize("code", [">f4", ">i8", "<u2", "f2", "c8", ">c16", "g", "u1"])
def test_numbers_stay_as_stored(path, code):
    data = np.array([[0, 1, 2], [3, 4, 5]]).astype(code)
    with h5py.File(path, "w") as file:
        file["x"] = data
    array = root_of(path).arrays["x"]
    assert array.dtype == data.dtype
    assert array.encoding["dtype"] == data.dtype
    np.testing.assert_array_equal(values(array), data)


def test_times_that_h5py_writes(path):
    when = np.array(["2020-01-01", "NaT"], "M8[ms]")
    with h5py.File(path, "w") as file:
        file["when"] = when.astype(h5py.opaque_dtype(when.dtype))
        file["lag"] = np.array([3, -1], "m8[s]").astype(h5py.opaque_dtype(np.dtype("m8[s]")))
    arrays = root_of(path).arrays
    np.testing.assert_array_equal(values(arrays["when"]), when)
    assert arrays["when"].dtype == when.dtype
    assert values(arrays["lag"]).tolist() == np.array([3, -1], "m8[s]").tolist()
    assert not arrays["when"].non_tensor
    assert "dtype" not in arrays["when"].encoding


def test_strings_are_str_rows_and_coords_of_a_raw_file(path):
    with h5py.File(path, "w") as file:
        file["vlen"] = ["a", "", "blåbær"]
        file.create_dataset("ascii", data=["x", "y"], dtype=h5py.string_dtype("ascii"))
        file["fixed"] = np.array([b"demo_0", "é".encode()], "S6")
        file["letters"] = np.array([b"a", b"b"], "S1")
        file["word"] = "alone"
        file["fixed_word"] = np.bytes_(b"alone")
        file.create_dataset("none", (0,), h5py.string_dtype())
    arrays = root_of(path).arrays
    found = {name: values(array).tolist() for name, array in arrays.items()}
    assert found == {
        "vlen": ["a", "", "blåbær"], "ascii": ["x", "y"], "fixed": ["demo_0", "é"], "letters": ["a", "b"],
        "word": "alone", "fixed_word": "alone", "none": [],
    }  # fmt: skip
    for array in arrays.values():
        assert array.dtype == object
        assert array.role == "coord"
        assert array.raw
        assert "dtype" not in array.encoding, "xarray would read the whole column to open the file"


def test_bytes_that_are_no_utf8_never_make_the_file_unreadable(path):
    with h5py.File(path, "w") as file:
        vlen = file.create_dataset("vlen", (2,), h5py.string_dtype("ascii"))
        vlen[:] = np.array([b"\xff\xfe", b"ok"], object)
        file["fixed"] = np.array([b"\xff\x00\xfe", b"ok"], "S3")
        file.attrs["note"] = np.bytes_(b"\xff")
        file.attrs["long"] = np.bytes_(b"\xff\xfe")
    group = root_of(path)
    assert values(group.arrays["vlen"]).tolist() == ["\udcff\udcfe", "ok"]
    assert values(group.arrays["fixed"]).tolist() == [b"\xff\x00\xfe", "ok"]
    assert group.attrs == {"note": b"\xff", "long": "\udcff\udcfe"}


def test_ragged_rows(path):
    with h5py.File(path, "w") as file:
        rows = file.create_dataset("jpeg", (4,), h5py.vlen_dtype(np.uint8))
        rows[0], rows[1], rows[2] = [255, 216], [1, 2, 3], [9]
        equal = file.create_dataset("equal", (2,), h5py.vlen_dtype(np.float32))
        equal[0], equal[1] = [1, 2], [3, 4]
        file.create_dataset("one", (), h5py.vlen_dtype(np.int16))[()] = np.array([7, 8], "i2")
        words = file.create_dataset("words", (2,), h5py.vlen_dtype(h5py.string_dtype()))
        words[0] = np.array(["a", "bø"], object)
    arrays = root_of(path).arrays
    jpeg = values(arrays["jpeg"])
    assert [row.tolist() for row in jpeg] == [[255, 216], [1, 2, 3], [9], []]
    assert {row.dtype for row in jpeg} == {np.dtype("u1")}
    assert [row.tolist() for row in values(arrays["equal"])] == [[1, 2], [3, 4]]
    assert values(arrays["one"]).item().tolist() == [7, 8]
    assert [row.tolist() for row in values(arrays["words"])] == [["a", "bø"], []]
    assert arrays["jpeg"].role == "coord"
    lazy = Variable("r", indexing.LazilyIndexedArray(arrays["jpeg"].data))
    assert lazy[1].values.item().tolist() == [1, 2, 3]
    assert [row.tolist() for row in lazy[[2, 0]].values] == [[9], [255, 216]]


def test_array_types_have_their_own_axes(path):
    data = np.arange(24, dtype="f4").reshape(4, 2, 3)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (4,), np.dtype(("f4", (2, 3))), maxshape=(None,), chunks=(2,))[:] = data
    array = root_of(path).arrays["x"]
    np.testing.assert_array_equal(values(array), data)
    assert array.shape == (4, 2, 3)
    assert array.dims == (None, None, None)
    assert array.unlimited == {0}
    assert array.encoding["chunksizes"] == (2, 2, 3)
    lazy = Variable(("a", "b", "c"), indexing.LazilyIndexedArray(array.data))
    np.testing.assert_array_equal(lazy[[3, 0], 1, ::-1].values, data[[3, 0], 1, ::-1])


def test_virtual_datasets_are_read(path, tmp_path):
    for number in range(2):
        with h5py.File(tmp_path / f"part{number}.h5", "w") as file:
            file["x"] = np.arange(3) + 10 * number
    layout = h5py.VirtualLayout((2, 3), "i8")
    for number in range(2):
        layout[number] = h5py.VirtualSource(tmp_path / f"part{number}.h5", "x", (3,))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("all", layout)
    assert values(root_of(path).arrays["all"]).tolist() == [[0, 1, 2], [10, 11, 12]]


def test_bitfields_are_unsigned(path):
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple((2,))
        h5py.h5d.create(file.id, b"bits", h5py.h5t.STD_B16LE, space)
    assert root_of(path).arrays["bits"].dtype == np.uint16


# Records


RECORD = np.dtype(
    [
        ("id", ">i4"),
        ("pos", "f4", (2,)),
        ("ok", "?"),
        ("name", "S4"),
        ("label", h5py.string_dtype()),
        ("z", "c8"),
        ("inner", [("a", "f8"), ("deep", [("b", "i2", (2, 2))])]),
        ("many", [("c", "i4")], (3,)),
        ("ref", h5py.ref_dtype),
        ("rows", h5py.vlen_dtype(np.int32)),
        ("a/b", "i4"),
    ]
)


def test_records_are_a_group_with_an_array_for_each_field(path):
    data = np.zeros(3, RECORD)
    data["ref"] = h5py.Reference()
    data["id"], data["pos"], data["ok"] = [7, 8, 9], np.arange(6).reshape(3, 2), [1, 0, 1]
    data["name"], data["label"], data["z"] = [b"a", b"bcde", b""], ["æ", "b", ""], [1j, 2, 3]
    data["inner"]["a"], data["inner"]["deep"]["b"] = [1, 2, 3], np.arange(12).reshape(3, 2, 2)
    data["many"]["c"] = np.arange(9).reshape(3, 3)
    data["rows"] = [np.arange(number, dtype="i4") for number in range(3)]
    with h5py.File(path, "w") as file:
        file.create_dataset("rec", (3,), RECORD, maxshape=(None,), chunks=(2,))[:] = data
        file["rec"].attrs["units"] = "m"
        file["w"] = [0.1, 0.2, 0.3]
    tree = tree_of(path)
    assert tree[""].groups == ("rec",)
    assert list(tree[""].arrays) == ["w"]
    rec = tree["rec"]
    assert rec.attrs == {"units": "m"}
    assert rec.groups == ("inner", "many")
    assert {name: array.shape for name, array in rec.arrays.items()} == {
        "id": (3,), "pos": (3, 2), "ok": (3,), "name": (3,), "label": (3,), "z": (3,), "rows": (3,),
    }  # fmt: skip
    assert left_out(rec) == {
        "rec/ref": "it holds object references, which have no value outside the file",
        "rec/a/b": "its name is no name for a variable (it is empty, '.' or '..', or has a '/')",
    }
    for name in ("id", "pos", "ok", "z"):
        np.testing.assert_array_equal(values(rec.arrays[name]), data[name])
        assert rec.arrays[name].dtype == data[name].dtype
    assert values(rec.arrays["name"]).tolist() == ["a", "bcde", ""]
    assert values(rec.arrays["label"]).tolist() == ["æ", "b", ""]
    assert [row.tolist() for row in values(rec.arrays["rows"])] == [[], [0], [0, 1]]
    assert rec.arrays["name"].role == "coord"
    assert rec.arrays["pos"].dims == (None, None)
    assert rec.arrays["pos"].unlimited == {0}
    assert rec.arrays["pos"].encoding["chunksizes"] == (2, 2)
    np.testing.assert_array_equal(values(tree["rec/inner"].arrays["a"]), data["inner"]["a"])
    np.testing.assert_array_equal(values(tree["rec/inner/deep"].arrays["b"]), data["inner"]["deep"]["b"])
    np.testing.assert_array_equal(values(tree["rec/many"].arrays["c"]), data["many"]["c"])
    lazy = Variable(("r", "f"), indexing.LazilyIndexedArray(rec.arrays["pos"].data))
    np.testing.assert_array_equal(lazy[[2, 0], 1].values, data["pos"][[2, 0], 1])


def test_a_single_record(path):
    with h5py.File(path, "w") as file:
        file["rec"] = np.array((1, [2, 3], (4,)), [("a", "i4"), ("b", "f4", (2,)), ("c", [("d", "u1")])])
    tree = tree_of(path)
    assert values(tree["rec"].arrays["a"]).item() == 1
    assert values(tree["rec"].arrays["b"]).tolist() == [2, 3]
    assert values(tree["rec/c"].arrays["d"]).item() == 4


def test_records_of_netcdf(tmp_path):
    path = tmp_path / "records.nc"
    dtype = np.dtype([("speed", "f4"), ("station", "S1", (3,))], align=True)
    with netCDF4.Dataset(path, "w") as nc:
        kind = nc.createCompoundType(dtype, "station_t")
        nc.createDimension("time", None)
        nc.createVariable("obs", kind, ("time",))[0:2] = np.array([(1, b"abc"), (2, b"de")], kind.dtype_view)
        nc.createVariable("long", "i4", ("time",))[0:3] = [1, 2, 3]
    obs = tree_of(path)["obs"]
    assert obs.arrays["speed"].dims == ("time",)
    assert obs.arrays["speed"].shape == (3,)
    assert values(obs.arrays["speed"])[:2].tolist() == [1, 2]
    assert values(obs.arrays["station"])[:2].tolist() == [["a", "b", "c"], ["d", "e", ""]]
    assert obs.unlimited_dims == {"time"}


def test_complex_numbers_are_no_records(path):
    with h5py.File(path, "w") as file:
        file["z"] = np.array([1 + 2j, 3])
    array = root_of(path).arrays["z"]
    assert array.dtype == np.complex128
    assert values(array).tolist() == [1 + 2j, 3]


# Speed, and the rest


def test_opening_reads_no_values(path, monkeypatch):
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3)
        file["words"] = ["a", "b"]
        file["rows"] = np.array([np.arange(2), np.arange(3)], object).astype(h5py.vlen_dtype("i4"))
        file["rec"] = np.zeros(2, [("a", "i4"), ("s", "S3")])

    def read(*_: Any, **__: Any) -> None:
        raise AssertionError("a dataset was read")

    monkeypatch.setattr(h5py.Dataset, "__getitem__", read)
    assert set(tree_of(path)) == {"", "rec"}


def test_rows_of_chunked_datasets_are_read_chunk_by_chunk(path):
    data = np.arange(4000).reshape(1000, 4)
    words = np.array([f"w{index}" for index in range(1000)], object)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=data, chunks=(7, 3), compression="gzip")
        file.create_dataset("words", data=words, chunks=(9,), dtype=h5py.string_dtype())
        file.create_dataset("rec", data=data.astype([("a", "i4")]), chunks=(10, 2))
    tree = tree_of(path)
    rows = np.random.default_rng(0).integers(-1000, 1000, 100)
    for array, expected in (
        (tree[""].arrays["x"], data),
        (tree["rec"].arrays["a"], data),
        (tree[""].arrays["words"], words),
    ):
        lazy = Variable([f"d{axis}" for axis in range(expected.ndim)], indexing.LazilyIndexedArray(array.data))
        np.testing.assert_array_equal(lazy[rows].values, expected[rows])
        if expected.ndim == 2:
            np.testing.assert_array_equal(lazy[rows, [3, 0]].values, expected[rows][:, [3, 0]])
            np.testing.assert_array_equal(lazy[2, [3, 0]].values, expected[2, [3, 0]])


def test_opening_reads_no_array_and_takes_time_in_proportion(tmp_path):
    took = {}
    for number in (100, 800):
        path = tmp_path / f"{number}.nc"
        with h5py.File(path, "w") as file:
            scale = file.create_dataset("t", data=np.arange(4.0), maxshape=(None,), chunks=(4,))
            scale.make_scale("t")
            for index in range(number):
                x = file.create_dataset(f"v{index}", (4,), "f4", maxshape=(None,), chunks=(4,))
                x.dims[0].attach_scale(scale)
        start = time.process_time()
        assert len(root_of(path).arrays) == number + 1
        took[number] = time.process_time() - start
    assert took[800] < 8 * 3 * took[100], "8 times as many datasets; in quadratic time it would be 64 times"


def test_attributes_are_plain_values(path):
    with h5py.File(path, "w") as file:
        file.attrs["n"] = 3
        file.attrs["flag"] = True
        file.attrs["text"] = np.bytes_(b"fixed")
        file.attrs["utf8"] = np.bytes_("blåbær".encode())
        file.attrs["list"] = ["a", "b"]
        file.attrs["fixed_list"] = np.array([b"ab", b"cd"])
        file.attrs["color"] = np.array(1, h5py.enum_dtype({"red": 1}, "i1"))
    attrs = root_of(path).attrs
    assert attrs == {
        "n": 3,
        "flag": True,
        "text": "fixed",
        "utf8": "blåbær",
        "list": ["a", "b"],
        "fixed_list": ["ab", "cd"],
        "color": 1,
    }
