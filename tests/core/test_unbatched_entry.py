"""The entry of arrays that a tensordict with a batch cannot hold: to JSON and back."""

import base64
import io
import json
import re
import tracemalloc

import numpy as np
import pytest

from xarray_tensordict.core.model import StoredArray, StoredGroup
from xarray_tensordict.core.unbatched_entry import decode_array, encode_array, entry_record, restore_unbatched


def both(values):
    encoded = encode_array(values, tuple("xyz"[: values.ndim]), attrs={"units": "m"}, role="coord")
    return encoded, decode_array(json.loads(json.dumps(encoded)))


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "i8", "f2", "f4", "f8", ">i4", ">f8"])
def test_numbers_are_a_list(dtype):
    values = np.array([[1, 0], [1, 1]], dtype)
    encoded, decoded = both(values)
    assert encoded == {
        "dims": ["x", "y"],
        "dtype": np.dtype(dtype).newbyteorder("=").name,
        "attrs": {"units": "m"},
        "role": "coord",
        "data": values.tolist(),
    }
    assert decoded.dtype == np.dtype(dtype).newbyteorder("=")
    assert decoded.tolist() == values.tolist()


@pytest.mark.parametrize(
    "values",
    [
        np.array([1.0, np.nan]),
        np.array([np.inf]),
        np.array([1 + 2j]),
        np.array([1.5], np.longdouble),
        np.zeros((0, 3), "f4"),
        np.arange(1025),
        np.array([b"ab", b"c"]),
    ],
)
def test_what_json_cannot_hold_or_what_is_long_is_base64(values):
    encoded, decoded = both(values)
    assert isinstance(encoded["data"], str)
    assert decoded.dtype == values.dtype
    assert decoded.shape == values.shape
    np.testing.assert_array_equal(decoded, values)


def test_the_smallest_and_the_largest_number_of_a_dtype_come_back():
    for dtype in ("u8", "i8", "i1"):
        values = np.array([np.iinfo(dtype).min, 1, np.iinfo(dtype).max], dtype)
        np.testing.assert_array_equal(both(values)[1], values, strict=True)


@pytest.mark.parametrize(("dtype", "name"), [("M8[ns]", "M8[ns]"), (">M8[s]", "M8[s]"), ("m8[D]", "m8[D]")])
def test_times_are_their_counts(dtype, name):
    values = np.array([1, 2], "i8").view(np.dtype(dtype).newbyteorder("=")).astype(dtype)
    encoded, decoded = both(values)
    assert (encoded["dtype"], encoded["data"]) == (name, [1, 2])
    np.testing.assert_array_equal(decoded, values)
    assert decoded.dtype == np.dtype(name)
    long = np.arange(2000).view("M8[s]")
    assert decode_array(encode_array(long, ("t",), attrs={}, role="data")).tolist() == long.tolist()


@pytest.mark.parametrize("values", [np.array(["a", "bc"]), np.array(["a", "bc"], object), np.array("a")])
def test_text_is_a_list_with_the_same_words_as_numbers(values):
    encoded, decoded = both(values)
    dims, data = ["x"][: values.ndim], values.tolist()
    assert encoded == {"dims": dims, "dtype": "str", "attrs": {"units": "m"}, "role": "coord", "data": data}
    assert decoded.tolist() == data


def test_one_element_and_1024_are_a_list_and_bytes_have_their_length():
    for values in ([7], list(range(1024))):
        assert both(np.array(values))[0]["data"] == values
    assert both(np.array([b"abc"]))[0]["dtype"] == "S3"


def test_arrays_of_any_layout_and_of_no_dims():
    for values in (np.arange(6).reshape(2, 3).T, np.arange(6)[::2], np.array(3), np.array(1.5)):
        _, decoded = both(values)
        np.testing.assert_array_equal(decoded, values)
        assert decoded.shape == values.shape


def test_a_record_is_kept_beside_the_words_of_the_entry():
    encoded = encode_array(
        np.array([1]), ("x",), attrs={}, role="data", record={"torch_dtype": "bfloat16", "role": "x"}
    )
    assert encoded["role"] == "data"
    assert entry_record(encoded) == {"torch_dtype": "bfloat16"}


def test_an_npy_file_that_would_need_a_pickle_is_refused():
    buffer = io.BytesIO()
    np.save(buffer, np.array([{}], object), allow_pickle=True)
    text = base64.b64encode(buffer.getvalue()).decode()
    with pytest.raises(ValueError, match="it is a pickle, which is never loaded here"):
        decode_array({"dtype": "int64", "data": text})


def test_the_header_of_an_npy_file_takes_no_memory():
    tracemalloc.start()
    for shape in ((10**15,), (-1,), (3, -1), (10**9, 10**9)):
        header = str({"descr": "<i8", "fortran_order": False, "shape": shape}).encode()
        header += b" " * (53 - len(header) % 64 if len(header) % 64 < 54 else 117 - len(header) % 64) + b"\n"
        text = base64.b64encode(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(16)).decode()
        with pytest.raises((ValueError, TypeError)):
            decode_array({"dtype": "int64", "data": text})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def npy(values, cut=0):
    buffer = io.BytesIO()
    np.save(buffer, values)
    return base64.b64encode(buffer.getvalue()[: len(buffer.getvalue()) - cut]).decode()


# -- back into the groups ----------------------------------------------------------------------------------------------


def entry(value, **more):
    held = np.empty((), object)
    held[()] = value
    return StoredArray("_unbatched", held, (), non_tensor=True, **more)


def restored(value, **groups):
    root = StoredGroup((), {"_unbatched": entry(value)}, tuple(groups))
    found = {(): root} | {(name,): group for name, group in groups.items()}
    return restore_unbatched(found, "store.zarr")


def number(**more):
    return {"dims": ["x"], "dtype": "int16", "data": [1, 2], **more}


def test_arrays_go_back_into_their_groups():
    there = StoredGroup(("g",))
    groups = restored({"a": number(), "g/b": number(), "g/h/c": number(), "i/j/d": number()}, g=there)
    assert set(groups) == {(), ("g",), ("g", "h"), ("i",), ("i", "j")}
    assert set(groups[()].arrays) == {"a"}
    assert groups[()].groups == ("g", "i")
    assert groups["g",] is there
    assert (set(there.arrays), there.groups) == ({"b"}, ("h",))
    assert (set(groups["i",].arrays), groups["i",].groups, groups["i",].key) == (set(), ("j",), ("i",))
    assert set(groups["i", "j"].arrays) == {"d"}


def test_a_group_that_is_listed_and_was_empty_is_listed_once():
    root = StoredGroup((), {"_unbatched": entry({"g/b": number()})}, ("g",))
    assert restore_unbatched({(): root}, "s")[()].groups == ("g",)


def test_an_array_is_what_a_reader_gives():
    value = {
        "a": number(role="data", attrs={"units": "m"}),
        "s": {"dims": [], "dtype": "str", "data": "x", "role": "data"},
        "c": number(role="coord", torch_dtype="bfloat16"),
        "n": number(),
    }
    arrays = restored(value)[()].arrays
    assert (arrays["a"].name, arrays["a"].dims, arrays["a"].attrs, arrays["a"].role) == (
        "a",
        ("x",),
        {"units": "m"},
        None,
    )
    assert arrays["a"].data.tolist() == [1, 2]
    assert (arrays["a"].encoding, arrays["a"].record) == ({}, {})
    assert (arrays["s"].role, arrays["s"].dims) == ("data", ())
    assert arrays["c"].role == "coord"
    assert arrays["c"].encoding == {"torch_dtype": "bfloat16"}
    assert arrays["c"].record == {"torch_dtype": "bfloat16"}
    assert arrays["n"].role is None


@pytest.mark.parametrize("role", [{}, {"role": "data"}])
@pytest.mark.parametrize(("dtype", "data"), [("bool", [True, False]), ("float64", [1.5, 2]), ("uint8", [1, 2])])
def test_numbers_that_are_data_may_become_coordinates_by_cf(dtype, data, role):
    found = restored({"a": {"dims": ["x"], "dtype": dtype, "data": data, **role}})[()].arrays["a"]
    assert found.role is None


def test_times_are_nanoseconds_with_their_unit():
    value = {
        "t": {"dims": ["x"], "dtype": "M8[s]", "data": [1, 2], "role": "data", "attrs": {"long_name": "t"}},
        "d": {"dims": ["x"], "dtype": "m8[ns]", "data": [1, 2]},
    }
    arrays = restored(value)[()].arrays
    assert arrays["t"].data.dtype == np.int64
    assert arrays["t"].data.tolist() == [10**9, 2 * 10**9]
    assert arrays["t"].record == {"datetime_unit": "s"}
    assert arrays["t"].attrs == {
        "long_name": "t",
        "units": "nanoseconds since 1970-01-01",
        "calendar": "proleptic_gregorian",
    }
    assert (arrays["d"].data.tolist(), arrays["d"].record) == ([1, 2], {})
    assert arrays["d"].attrs == {"units": "nanoseconds", "dtype": "timedelta64[ns]"}
    assert arrays["t"].role is None


@pytest.mark.parametrize("value", [3, [1], {"a": 3}, {"a": {"dtype": "i2"}}, {"a": number(), "b": {}}])
def test_an_entry_of_another_kind_is_the_users_own(value):
    assert set(restored(value)[()].arrays) == {"_unbatched"}


def test_an_array_of_that_name_is_the_users_own():
    for array in (
        StoredArray("_unbatched", np.zeros(2), ("x",), non_tensor=True),
        StoredArray("_unbatched", entry({"a": number()}).data, ()),
    ):
        groups = {(): StoredGroup((), {"_unbatched": array})}
        assert set(restore_unbatched(groups, "s")[()].arrays) == {"_unbatched"}
    assert restore_unbatched({(): StoredGroup(())}, "s")[()].arrays == {}
    assert restore_unbatched({}, "s") == {}


@pytest.mark.parametrize(
    ("encoded", "why"),
    [
        ({"dims": ["x"], "dtype": "int16"}, "Object missing required field `data`"),
        ({"dims": "x", "dtype": "int16", "data": [1]}, "Expected `array`, got `str` - at `$.dims`"),
        ({"dims": [3], "dtype": "int16", "data": [1]}, "Expected `str | null`, got `int` - at `$.dims[0]`"),
        ({"dims": ["x"], "dtype": 3, "data": [1]}, "Expected `str`, got `int` - at `$.dtype`"),
        (number(attrs=[]), "Expected `object`, got `array` - at `$.attrs`"),
        (number(role="index"), "Invalid enum value 'index' - at `$.role`"),
        (number(torch_dtype="load"), "Invalid enum value 'load' - at `$.torch_dtype`"),
        (number(data=[1.5, 2]), "expected values of dtype int16, found others among them"),
        (number(data=["1", "2"]), "expected values of dtype int16, found others among them"),
        (number(data=[1, 10**9]), None),
        (number(data=[1, 10**30]), None),
        (number(dtype="S99", data=["a", "b"]), "expected an array of dtype |S99 as base64, found list"),
        (number(dtype="object", data=[{}, {}]), "expected an array of dtype object as base64, found list"),
        (number(dtype="str", data=["a", 2]), "expected text, found other values among it"),
        (number(dtype="M8[D]", data=[1, 2**40]), "3010362559-12-15 is no time that int64 nanoseconds hold"),
        (number(data=npy(np.array([1, 2], "f8"))), "expected values of dtype int16, found float64"),
        (number(data=npy(np.array([1, 2], "i2"), cut=1)), None),
        ({"dims": ["x", "y"], "dtype": "int16", "data": [1]}, "it has dims ['x', 'y'] for shape [1]"),
        ({"dims": ["x"], "dtype": "int16", "data": [None]}, None),
        ({"dims": ["x"], "dtype": "int16", "data": "?"}, None),
        ({"dims": ["x"], "dtype": "?!", "data": []}, None),
    ],
)
def test_a_damaged_entry_names_the_array(encoded, why):
    with pytest.raises(ValueError, match=r"^store.zarr: the entry '_unbatched' is damaged at 'g/b': ") as caught:
        restored({"g/b": encoded})
    if why:
        assert str(caught.value) == f"store.zarr: the entry '_unbatched' is damaged at 'g/b': {why}"


@pytest.mark.parametrize("path", ["", "/abs", "a/", "a//b", "..", "a/../b", ".", "a/.", "a\0b"])
def test_a_name_that_is_none_is_refused(path):
    with pytest.raises(
        ValueError, match=rf"^store.zarr: the entry '_unbatched' is damaged at {re.escape(repr(path))}: it |: a"
    ):
        restored({path: number()})


def test_an_array_or_a_group_that_is_there_is_not_replaced():
    x = StoredArray("x", np.zeros(2), ("d",))
    for path, why in (
        ("x", "there is an array or a group of that name already"),
        ("g", "there is an array or a group of that name already"),
        ("x/y", "'x' is an array"),
        ("x/y/z", "'x' is an array"),
    ):
        root = StoredGroup((), {"_unbatched": entry({path: number()}), "x": x}, ("g",))
        with pytest.raises(ValueError) as caught:
            restore_unbatched({(): root, ("g",): StoredGroup(("g",))}, "store.zarr")
        assert str(caught.value) == f"store.zarr: the entry '_unbatched' is damaged at {path!r}: {why}"


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0), (0, 0, 1)], ids=str)
def test_text_of_no_values_keeps_its_shape(shape: tuple[int, ...]) -> None:
    dims = tuple("abc"[: len(shape)])
    encoded = json.loads(json.dumps(encode_array(np.empty(shape, object), dims, attrs={}, role="data")))
    found = decode_array(encoded)
    assert found.shape == shape
    assert found.dtype.kind == "U"
