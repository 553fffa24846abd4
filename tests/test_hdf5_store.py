"""What the HDF5 reader makes of files that h5py, netCDF4 and tensordict write."""

import json
import pickle
import time
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict
from xarray.core import indexing
from xarray.core.variable import Variable

from xarray_tensordict.hdf5_store import Hdf5Store
from xarray_tensordict.metadata import parse_batch_record
from xarray_tensordict.model import RecordedBatch, StoredArray, StoredGroup, walk

pytestmark = pytest.mark.filterwarnings("error")

REAL = Path(__file__).parents[2] / "shared" / "real"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.h5"


def tree_of(source: Any, **keywords: Any) -> dict[str, StoredGroup]:
    store = Hdf5Store.open(source, **keywords)
    groups = {"/".join(group.key): group for group in walk(store)}
    store.close()
    return groups


def root_of(source: Any, **keywords: Any) -> StoredGroup:
    return tree_of(source, **keywords)[""]


def values(array: StoredArray) -> Any:
    variable = Variable([f"d{axis}" for axis in range(len(array.shape))], indexing.LazilyIndexedArray(array.data))
    found = variable.values
    assert found.shape == array.shape
    assert found.dtype == array.dtype
    return found


def left_out(group: StoredGroup) -> dict[str, str]:
    return {"/".join(member.key): member.reason for member in group.left_out}


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
    with pytest.warns(UnicodeWarning, match="'note' of '/' is not valid UTF-8"):
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
        "rec/a/b": "its name is no name for a variable (it is empty or has a '/')",
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
    dtype = np.dtype([("speed", "f4"), ("station", "S1", (8,))], align=True)
    with netCDF4.Dataset(path, "w") as nc:
        kind = nc.createCompoundType(dtype, "station_t")
        nc.createDimension("time", None)
        v = nc.createVariable("obs", kind, ("time",))
        v[0:2] = np.array([(1, b"abc"), (2, b"abcdefgh")], kind.dtype_view)
        nc.createVariable("long", "i4", ("time",))[0:3] = [1, 2, 3]
    obs = tree_of(path)["obs"]
    assert obs.arrays["speed"].dims == ("time",)
    assert obs.arrays["speed"].shape == (3,)
    assert values(obs.arrays["speed"])[:2].tolist() == [1, 2]
    assert values(obs.arrays["station"]).tolist() == ["abc", "abcdefgh", ""]
    assert obs.unlimited_dims == {"time"}


def test_complex_numbers_are_no_records(path):
    with h5py.File(path, "w") as file:
        file["z"] = np.array([1 + 2j, 3])
    array = root_of(path).arrays["z"]
    assert array.dtype == np.complex128
    assert values(array).tolist() == [1 + 2j, 3]


# What is left out


def test_what_has_no_value_is_left_out_by_name_and_the_rest_stays(path, tmp_path):
    with h5py.File(path, "w") as file:
        file["v"] = [1.0, 2.0]
        file["nothing"] = h5py.Empty("f4")
        file.create_dataset("refs", (2,), h5py.ref_dtype)[0] = file["v"].ref
        file.create_dataset("regions", (1,), h5py.regionref_dtype)
        file.create_dataset("ref_rows", (1,), h5py.vlen_dtype(h5py.ref_dtype))
        file.create_dataset("opaque", data=np.array([b"abc"], "V3"))
        h5py.h5d.create(file.id, b"clock", h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((2,)))
        file["soft"] = h5py.SoftLink("/nowhere")
        file["external"] = h5py.ExternalLink("nofile.h5", "/x")
        file["type"] = np.dtype("f4")
        file.attrs["palette"] = file["v"].ref
        file.attrs["empty_text"] = h5py.Empty("S4")
        file.attrs["empty_number"] = h5py.Empty("f4")
        file["v"].attrs["region"] = file["v"].regionref[0:1]
        file["v"].attrs["blob"] = np.void(b"abc")
        file["v"].attrs["units"] = "m"
    group = root_of(path)
    assert list(group.arrays) == ["v"]
    assert values(group.arrays["v"]).tolist() == [1, 2]
    assert group.arrays["v"].attrs == {"units": "m"}
    assert group.attrs["empty_text"] == ""
    assert group.attrs["empty_number"].shape == (0,)
    reasons = {(str(member).partition(":")[0], member.reason) for member in group.left_out}
    for name, reason in {
        "nothing": "null dataspace", "refs": "object references", "regions": "region references",
        "ref_rows": "object references", "opaque": "opaque data .3 bytes", "clock": "No NumPy equivalent",
        "soft": "soft link to '/nowhere'", "external": "'/x' in the file 'nofile.h5'",
    }.items():  # fmt: skip
        assert any(found == f"'{name}'" and _matches(reason, text) for found, text in reasons), name
    assert {reason for name, reason in reasons if name == "'v'"} == {
        "attribute 'region' is a region reference",
        "attribute 'blob' is opaque (3 bytes)",
    }
    assert ("''", "attribute 'palette' is an object reference") in reasons
    assert len(reasons) == 11


def _matches(pattern: str, text: str) -> bool:
    import re

    return re.search(pattern, text) is not None


def test_links_are_followed_and_cycles_cut(path):
    with h5py.File(path, "w") as file:
        file["raw"] = np.arange(3.0)
        file["alias"] = file["raw"]
        file["soft"] = h5py.SoftLink("/raw")
        a, b = file.create_group("a"), file.create_group("b")
        a["v"], b["w"] = [1], [2]
        a["self"] = h5py.SoftLink("/a")
        a["up"] = h5py.SoftLink("/")
        a["hard"] = a
        a["other"], b["other"] = b, a
    tree = tree_of(path)
    assert set(tree[""].arrays) == {"raw", "alias", "soft"}
    for array in tree[""].arrays.values():
        assert values(array).tolist() == [0, 1, 2]
    assert set(tree) == {"", "a", "a/other", "b", "b/other"}
    assert set(left_out(tree["a"])) == {"a/self", "a/up", "a/hard"}
    assert set(left_out(tree["a/other"])) == {"a/other/other"}
    assert "enclosing group" in left_out(tree["a"])["a/up"]
    assert tree_of(path, root="a/other")[""].groups == ()


def test_external_links_that_lead_somewhere(path, tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        scale = file.create_dataset("s", data=[1.0, 2.0])
        scale.make_scale()
        file["g/x"] = [3, 4]
        file["g/x"].dims[0].attach_scale(scale)
    with h5py.File(path, "w") as file:
        file["linked"] = h5py.ExternalLink("other.h5", "/g")
    tree = tree_of(path)
    assert values(tree["linked"].arrays["x"]).tolist() == [3, 4]
    assert tree["linked"].arrays["x"].dims == ("s",)


def test_a_filter_that_is_not_installed(path):
    with h5py.File(path, "w") as file:
        file["v"] = [1, 2]
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((2,))
        properties.set_filter(32099, h5py.h5z.FLAG_OPTIONAL, ())
        h5py.h5d.create(file.id, b"packed", h5py.h5t.NATIVE_INT32, h5py.h5s.create_simple((2,)), properties)
    group = root_of(path)
    assert list(group.arrays) == ["v"]
    assert "filter 32099" in left_out(group)["packed"]
    assert "hdf5plugin" in left_out(group)["packed"]


def test_a_corrupt_object_hides_nothing_else(path):
    with h5py.File(path, "w") as file:
        file["good"] = np.arange(3)
        file.create_group("bad")
        file["bad/x"] = 1
        address = h5py.h5o.get_info(file["bad"].id).addr
    content = bytearray(path.read_bytes())
    content[address : address + 8] = b"\xff" * 8
    path.write_bytes(content)
    group = root_of(path)
    assert list(group.arrays) == ["good"]
    assert "cannot be opened" in left_out(group)["bad"]


# Dimension names


def test_raw_files_record_no_names(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (3, 3), "f4", maxshape=(None, 3), chunks=(2, 3))
        file["n"] = 1
    group = root_of(path)
    assert group.arrays["x"].dims == (None, None)
    assert group.arrays["x"].unlimited == {0}
    assert group.unlimited_dims == frozenset()
    assert "preferred_chunks" not in group.arrays["x"].encoding
    assert group.arrays["x"].encoding["chunksizes"] == (2, 3)
    assert all(array.raw for array in group.arrays.values())


def test_scales_that_users_attach(path):
    with h5py.File(path, "w") as file:
        for name, scale_name in (("time", ""), ("alternative", "alt"), ("grid", "g")):
            file[name] = np.arange(3.0)
            file[name].make_scale(scale_name)
        file["both"] = np.ones((3, 2))
        file["both"].dims[0].attach_scale(file["time"])
        file["both"].dims[1].label = "feature"
        file["several"] = np.ones(3)
        file["several"].dims[0].attach_scale(file["time"])
        file["several"].dims[0].attach_scale(file["alternative"])
        file["half"] = np.ones((3, 4))
        file["half"].dims[0].attach_scale(file["grid"])
        file["inner/x"] = np.ones(3)
        file["inner/x"].dims[0].attach_scale(file["time"])
        file["inner/n"] = 3
    tree = tree_of(path)
    arrays = tree[""].arrays
    assert arrays["time"].dims == ("time",)
    assert arrays["both"].dims == ("time", "feature")
    assert arrays["several"].dims == ("alternative",), "of several scales the last, as netCDF-C and h5netcdf take it"
    assert arrays["half"].dims == ("grid", None)
    assert not arrays["half"].raw
    assert tree["inner"].arrays["x"].dims == ("time",)
    assert not tree["inner"].arrays["n"].raw, "a file with dimension scales is not raw"


def test_labels_and_dimension_names_attributes(path):
    with h5py.File(path, "w") as file:
        file["labelled"] = np.ones((2, 3, 4))
        file["labelled"].dims[0].label = "time"
        file["labelled"].dims[2].label = "feature"
        file["gpm"] = np.ones((2, 3))
        file["gpm"].attrs["DimensionNames"] = np.bytes_(b"nscan,nray")
        file["wrong"] = np.ones((2, 3))
        file["wrong"].attrs["DimensionNames"] = "nscan"
    arrays = root_of(path).arrays
    assert arrays["labelled"].dims == ("time", None, "feature")
    assert arrays["gpm"].dims == ("nscan", "nray")
    assert arrays["wrong"].dims == (None, None)
    assert arrays["wrong"].raw
    assert not arrays["gpm"].raw


def test_a_reference_to_a_scale_that_is_gone(path):
    with h5py.File(path, "w") as file:
        file["s"] = np.arange(2.0)
        file["s"].make_scale()
        file["x"] = np.ones(2)
        file["x"].dims[0].attach_scale(file["s"])
        file["x"].dims[0].label = "label"
        del file["s"]
    array = root_of(path).arrays["x"]
    assert values(array).tolist() == [1, 1]
    assert array.dims in {("label",), ("s",), (None,)}


def test_dimensions_without_a_variable_are_no_arrays(tmp_path):
    path = tmp_path / "placeholder.nc"
    with netCDF4.Dataset(path, "w") as nc:
        nc.createDimension("row", 3)
        nc.createDimension("more", None)
        nc.createVariable("v", "f4", ("row",))[:] = 1
        nc.createGroup("g").createVariable("w", "f4", ("row", "more"))[:] = np.ones((3, 4))
    tree = tree_of(path)
    assert list(tree[""].arrays) == ["v"]
    assert tree["g"].arrays["w"].dims == ("row", "more")
    assert tree["g"].arrays["w"].shape == (3, 4)
    assert tree["g"].unlimited_dims == {"more"}, "inherited, and used"
    inner = tree_of(path, root="g")[""]
    assert inner.arrays["w"].dims == ("row", "more")


def test_a_variable_named_like_a_dimension_it_does_not_describe(tmp_path):
    path = tmp_path / "clash.nc"
    with netCDF4.Dataset(path, "w") as nc:
        nc.createDimension("x", 2)
        nc.createDimension("y", 3)
        nc.createVariable("x", "f4", ("y",))[:] = [1, 2, 3]
    arrays = root_of(path).arrays
    assert list(arrays) == ["x"]
    assert arrays["x"].dims == ("y",)
    assert values(arrays["x"]).tolist() == [1, 2, 3]


# What tensordict and this package record


@pytest.fixture
def written(path):
    def write(**entries: Any) -> dict[str, StoredGroup]:
        TensorDict(entries, [3]).to_h5(path).close()
        return tree_of(path)

    return write


def test_what_tensordict_writes(written):
    tree = written(
        a=torch.arange(12.0).reshape(3, 4),
        done=torch.tensor([True, False, True]),
        n=TensorDict({"b": torch.ones(3, 2)}, [3]),
        text=NonTensorData("hello", batch_size=[3]),
        flag=NonTensorData(True, batch_size=[3]),
        count=NonTensorData(5, batch_size=[3]),
        rate=NonTensorData(0.5, batch_size=[3]),
        raw=NonTensorData(b"\xff\x01", batch_size=[3]),
    )
    arrays = tree[""].arrays
    assert values(arrays["a"]).shape == (3, 4)
    assert arrays["done"].dtype == np.bool_
    assert tree[""].groups == ("n",)
    found = {name: values(array).item() for name, array in arrays.items() if array.non_tensor}
    assert found == {"text": "hello", "flag": True, "count": 5, "rate": 0.5, "raw": b"\xff\x01"}
    assert [type(found[name]) for name in ("text", "flag", "count", "rate", "raw")] == [str, bool, int, float, bytes]
    for name in found:
        assert arrays[name].role == "coord"
        assert arrays[name].dims == ()
        assert not set(arrays[name].attrs)
    assert all(array.raw for array in arrays.values())
    assert arrays["a"].role is None


@pytest.mark.parametrize(
    "rows", [["a", "bø", ""], [b"a", b"b", b"c"], [b"a", b"bcd", b""], [True, False, True], [1, 2, 3], [0.5, 1.0, 2.0]], ids=repr
)
def test_non_tensor_stacks_are_rows(written, rows):
    array = written(rows=NonTensorStack(*rows), x=torch.zeros(3))[""].arrays["rows"]
    assert array.shape == (3,)
    assert array.non_tensor
    assert array.role == "coord"
    assert values(array).tolist() == rows
    assert [type(row) for row in values(array).tolist()] == [type(row) for row in rows]


def test_a_nested_stack(path):
    stack = LazyStackedTensorDict.lazy_stack([NonTensorStack("a", "b"), NonTensorStack("c", "d")])
    TensorDict({"rows": stack, "x": torch.zeros(2, 2)}, [2, 2]).to_h5(path).close()
    assert values(root_of(path).arrays["rows"]).tolist() == [["a", "b"], ["c", "d"]]


def test_an_opaque_array_that_is_no_stack_is_one_value(written):
    array = written(value=NonTensorData([1, 2, 3], batch_size=[3]), x=torch.zeros(3))[""].arrays["value"]
    assert array.shape == ()
    assert array.non_tensor
    assert values(array).item() == [1, 2, 3]


def test_the_batch_record(path):
    with h5py.File(path, "w") as file:
        file.attrs["__tensordict__"] = json.dumps({"batch_size": [3], "names": ["time"], "version": 1})
        file.create_group("n").attrs["__tensordict__"] = np.bytes_(b'{"batch_size": [3, 4], "version": 1}')
        file.create_group("plain")
        file["n/word"] = "text"
    tree = tree_of(path)
    assert tree[""].recorded == RecordedBatch((3,), ("time",))
    assert tree["n"].recorded == RecordedBatch((3, 4), None)
    assert tree["plain"].recorded is None
    assert tree[""].attrs == {}
    assert not tree["n"].arrays["word"].raw, "0-d arrays of a marked file are not raw"
    store = Hdf5Store.open(path)
    assert store.has_tensordict_marker
    store.close()
    store = Hdf5Store.open(path, root="plain")
    assert not store.has_tensordict_marker
    store.close()


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ('{"batch_size": [3], "version": 2}', "version 2"),
        ('{"batch_size": [3], "version": true}', "version True"),
        ("{", "no JSON"),
        ("[3]", "should be an object"),
        ('{"batch_size": 3}', "batch_size is 3"),
        ('{"batch_size": [-1]}', "batch_size"),
        ('{"batch_size": [true]}', "batch_size"),
        ('{"batch_size": ["a"]}', "batch_size"),
        ('{"batch_size": [3], "names": "t"}', "names is 't'"),
        ('{"batch_size": [3], "names": [1]}', "names"),
        ('{"batch_size": [3], "names": ["a", "b"]}', "1 batch sizes"),
        ("{}", "neither"),
    ],
)
def test_a_batch_record_that_cannot_be_read_is_an_error_that_names_store_and_group(path, record, message):
    with h5py.File(path, "w") as file:
        file.create_group("n").attrs["__tensordict__"] = record
    store = Hdf5Store.open(path)
    with pytest.raises(ValueError, match=rf"file\.h5', group '/n'.*{message}"):
        store.group(("n",))
    store.close()


def test_batch_records_as_zarr_holds_them():
    assert parse_batch_record({"batch_size": [], "version": 1}, "here") == RecordedBatch((), None)
    assert parse_batch_record({"names": ["a", None], "batch_size": None}, "here") == RecordedBatch(None, ("a", None))


def non_tensor(file: h5py.File, name: str, value: str, encoding: str = "json") -> None:
    file[name] = value
    file[name].attrs["__tensordict_non_tensor__"] = json.dumps({"encoding": encoding})


@pytest.mark.parametrize("value", ["text", "", True, 3, -1.5, None, [1, "a"], {"lr": 0.1, "n": {"b": []}}, 2**70], ids=repr)
def test_json_values(path, value):
    with h5py.File(path, "w") as file:
        non_tensor(file, "value", json.dumps(value))
    array = root_of(path).arrays["value"]
    assert array.shape == ()
    assert values(array).item() == value
    assert type(values(array).item()) is type(value)
    assert array.dtype.kind == {bool: "b", int: "i", float: "f"}.get(type(value), "O") or value == 2**70
    assert array.non_tensor
    assert array.role == "coord"
    again = pickle.loads(pickle.dumps(array))
    assert values(again).item() == value


def test_values_in_other_encodings_are_left_out(path):
    import base64

    with h5py.File(path, "w") as file:
        non_tensor(file, "broken", "{")
        non_tensor(file, "unknown", "x", "yaml")
        non_tensor(file, "pickled", base64.b64encode(pickle.dumps({1, 2})).decode(), "pickle")
        file["bytes"] = np.frombuffer(pickle.dumps((3, 4)), np.uint8)
        file["bytes"].attrs["__tensordict_non_tensor__"] = '{"encoding": "pickle"}'
        file["odd"] = 1
        file["odd"].attrs["__tensordict_non_tensor__"] = "?"
    group = root_of(path)
    assert not group.arrays
    reasons = left_out(group)
    assert "is none" in reasons["broken"]
    assert "'yaml'" in reasons["unknown"]
    assert "allow_pickle=True" in reasons["pickled"]
    assert "allow_pickle=True" in reasons["bytes"]
    assert "does not tell the encoding" in reasons["odd"]
    arrays = root_of(path, allow_pickle=True).arrays
    assert values(arrays["pickled"]).item() == {1, 2}
    assert values(arrays["bytes"]).item() == (3, 4)


def test_the_record_of_this_package(path):
    with h5py.File(path, "w") as file:
        file["w"] = np.ones((3, 2), "f4")
        file["w"].attrs["__xarray_tensordict__"] = json.dumps(
            {"role": "coord", "torch_dtype": "bfloat16", "dims": ["time", None]}
        )
        file["words"] = ["a", "b"]
        file["words"].attrs["__xarray_tensordict__"] = '{"role": "data"}'
        file["bad"] = [1, 2]
        file["bad"].attrs["__xarray_tensordict__"] = '{"dims": ["a", "b"]}'
    group = root_of(path)
    w = group.arrays["w"]
    assert (w.role, w.dims, w.encoding["torch_dtype"], w.raw) == ("coord", ("time", None), "bfloat16", False)
    assert w.attrs == {}
    assert group.arrays["words"].role == "data"
    assert group.arrays["bad"].dims == (None,)
    assert "malformed" in left_out(group)["bad"]


# Speed, and the rest


def test_opening_reads_no_array_and_takes_time_in_proportion(tmp_path):
    took = {}
    for number in (250, 2000):
        path = tmp_path / f"{number}.nc"
        with h5py.File(path, "w") as file:
            scale = file.create_dataset("t", data=np.arange(4.0), maxshape=(None,), chunks=(4,))
            scale.make_scale("t")
            for index in range(number):
                x = file.create_dataset(f"v{index}", (4,), "f4", maxshape=(None,), chunks=(4,))
                x.dims[0].attach_scale(scale)
        start = time.perf_counter()
        assert len(root_of(path).arrays) == number + 1
        took[number] = time.perf_counter() - start
    assert took[2000] < 8 * 3 * took[250]
    assert took[2000] < 5


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
        "n": 3, "flag": True, "text": "fixed", "utf8": "blåbær", "list": ["a", "b"], "fixed_list": ["ab", "cd"], "color": 1,
    }  # fmt: skip


@pytest.mark.skipif(not REAL.exists(), reason="the real stores are not beside this repository")
@pytest.mark.parametrize(
    ("name", "groups", "arrays", "missing"),
    [
        ("climate/cesm2_native.nc", 1, 19, 0),
        ("energy/rex_ri_wave_2010.h5", 2, 10, 0),
        ("ml/test_catvnoncat.h5", 1, 3, 0),
        ("neuro/nwb_ecephys_ogen.nwb", 27, 69, 5),
        ("rl/guda_trajectories.hdf5", 1, 5, 0),
        ("robotics/coinft_train.h5", 1, 6, 0),
        ("robotics/isaaclab_dataset.hdf5", 162, 300, 0),
        ("satellite/gpm_2A_RW_BRS.HDF5", 7, 22, 0),
        ("singlecell/anndata_v0.7.8.h5ad", 32, 87, 12),
    ],
)
def test_files_that_others_wrote(name, groups, arrays, missing):
    tree = tree_of(REAL / name)
    if groups is not None:
        assert len(tree) == groups
    if arrays is not None:
        assert sum(len(group.arrays) for group in tree.values()) == arrays
    found = [member for group in tree.values() for member in group.left_out]
    if missing is not None:
        assert len(found) == missing
    assert all("reference" in member.reason or "empty" in member.reason for member in found), found
    with h5py.File(REAL / name) as file:
        for group in tree.values():
            for array in group.arrays.values():
                read = values(array)
                member = file["/".join((*group.key, array.name))] if _is_dataset(file, group, array) else None
                if member is not None and read.dtype.kind not in "O":
                    np.testing.assert_array_equal(read, member[()])


def _is_dataset(file: h5py.File, group: StoredGroup, array: StoredArray) -> bool:
    return isinstance(file["/".join(group.key) or "/"], h5py.Group) and array.dtype.kind != "O"
