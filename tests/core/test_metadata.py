"""The metadata of tensordict and of this package: what is read from it, and what is refused with which words."""

import json
import pickle
import re
import tracemalloc

import numpy as np
import pytest

from xarray_tensordict.core.metadata import (
    Incomplete,
    axes_of_multiscales,
    batch_record,
    decode_non_tensor,
    dims_from_attribute,
    is_pickled,
    parse_array_record,
    parse_attribute,
    parse_batch_record,
    read_array_record,
    scalar_array,
    stacked_array,
)
from xarray_tensordict.core.model import LeftOut, RecordedBatch

WHERE = "data.h5, group '/'"


def test_a_batch_record_as_an_object_or_as_its_text():
    expected = RecordedBatch((3, 0), ("time", None))
    record = {"batch_size": [3, 0], "names": ["time", None], "version": 1}
    for value in (
        record,
        json.dumps(record),
        json.dumps(record).encode(),
        {"batch_size": (3, 0), "names": ("time", None)},
    ):
        assert parse_batch_record(value, WHERE) == expected
    assert parse_batch_record({"batch_size": [3], "names": None}, WHERE) == RecordedBatch((3,), None)
    assert parse_batch_record({"batch_size": []}, WHERE) == RecordedBatch((), None)
    assert parse_batch_record({"names": ["t"]}, WHERE) == RecordedBatch(None, ("t",))


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("[", ": not JSON (Expecting value: line 1 column 2 (char 1))"),
        ("[" * 100_000, ": nested too deeply to be a document of metadata"),
        ("[1]", ": Expected `object`, got `array`"),
        (3, ": Expected `object`, got `int`"),
        ({"batch_size": 3}, ": Expected `array | null`, got `int` - at `$.batch_size`"),
        ({"batch_size": ["3"]}, ": Expected `int`, got `str` - at `$.batch_size[0]`"),
        ({"batch_size": [True]}, ": Expected `int`, got `bool` - at `$.batch_size[0]`"),
        ({"batch_size": [3, -1]}, ": Expected `int` >= 0 - at `$.batch_size[1]`"),
        ({"names": "t"}, ": Expected `array | null`, got `str` - at `$.names`"),
        ({"names": ["t", 1]}, ": Expected `str | null`, got `int` - at `$.names[1]`"),
        ({"batch_size": [3], "names": ["a", "b"]}, " has 1 batch sizes ([3]) and 2 names (['a', 'b'])"),
        ({"version": 1}, " has neither batch_size nor names"),
    ],
)
def test_a_malformed_batch_record_is_refused(value, what):
    with pytest.raises(ValueError) as caught:
        parse_batch_record(value, WHERE)
    assert str(caught.value) == (
        f"data.h5, group '/': the attribute '__tensordict__'{what}. "
        "Correct the attribute, or delete it: the batch is then inferred from the arrays"
    )


@pytest.mark.parametrize("version", [2, True, "1", None])
def test_a_batch_record_of_another_version_is_refused(version):
    with pytest.raises(ValueError) as caught:
        parse_batch_record({"batch_size": [3], "version": version}, WHERE)
    assert str(caught.value) == (
        f"data.h5, group '/': attribute '__tensordict__' has version {version!r}, expected 1; a newer tensordict or "
        "xarray-tensordict wrote it. Update xarray-tensordict, or delete the attribute: the batch is then inferred from the arrays"
    )


def test_a_batch_record_is_written_with_names_where_there_are_any():
    assert batch_record((3, 4), (None, "t")) == {"batch_size": [3, 4], "version": 1, "names": [None, "t"]}
    assert batch_record((3,), (None,)) == {"batch_size": [3], "version": 1}
    assert batch_record((3,), None) == {"batch_size": [3], "version": 1}


def test_the_record_of_an_array_or_none():
    for value in ({"role": "data"}, '{"role": "data"}', b'{"role": "data"}'):
        assert parse_array_record(value, WHERE) == {"role": "data"}
    assert parse_array_record(None, WHERE) == {}
    assert parse_array_record({"role": "data", "of a newer version": 3}, WHERE) == {"role": "data"}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (3, "Expected `object`, got `int`"),
        ("[", "not JSON"),
        ("[1]", "Expected `object`, got `array`"),
        (b"\xff", "not JSON"),
        ({"role": "index"}, "Invalid enum value 'index' - at `$.role`"),
        ({"dims": "time"}, "Expected `array`, got `str` - at `$.dims`"),
        ({"dims": [1]}, "Expected `str | null`, got `int` - at `$.dims[0]`"),
        ({"torch_dtype": "__class__"}, "Invalid enum value '__class__' - at `$.torch_dtype`"),
        ({"order": [0, 0]}, "expected the order of axes, found [0, 0]"),
        ({"order": [True, False]}, "Expected `int`, got `bool` - at `$.order[0]`"),
        ({"attrs": ["units"]}, "Expected `object`, got `array` - at `$.attrs`"),
        ({"shape": [True]}, "Expected `int`, got `bool` - at `$.shape[0]`"),
    ],
)
def test_a_malformed_record_of_an_array_is_refused_or_left_out_by_name(value, why):
    with pytest.raises(ValueError, match=re.escape(f"x.zarr: the attribute '__xarray_tensordict__': {why}")):
        parse_array_record(value, "x.zarr")
    left_out: list[LeftOut] = []
    assert read_array_record(value, ("g", "x"), left_out) == {}
    assert len(left_out) == 1
    assert str(left_out[0]).startswith(
        "attribute '__xarray_tensordict__' of 'g/x': it is malformed, and ignored ('g/x': the attribute "
        f"'__xarray_tensordict__': {why}"
    )


def test_the_mark_of_a_store_that_is_being_written():
    what = f"{WHERE}: the mark"
    mark = parse_attribute(
        '{"kind": "append", "dim": "time", "group": "/g", "before": {"/g/x": [3]}}', Incomplete, what
    )
    assert mark == Incomplete("append", group="/g", dim="time", before={"/g/x": (3,)})
    assert parse_attribute({"kind": "create"}, Incomplete, what) == Incomplete("create")
    for value in (
        None,
        {"kind": "x"},
        {"kind": "overwrite", "arrays": "ab"},
        {"kind": "append", "before": {"x": [-1]}},
    ):
        with pytest.raises(ValueError, match=r"^data\.h5, group '/': the mark: "):
            parse_attribute(value, Incomplete, what)


# -- non-tensor entries ------------------------------------------------------------------------------------------------


def decoded(payload, marker, *, stack=None, allow_pickle=False):
    attrs = {"__tensordict_non_tensor__": marker} | ({} if stack is None else {"__tensordict_stack__": stack})
    value, ndim = decode_non_tensor(payload, attrs, WHERE, allow_pickle=allow_pickle)
    return value.tolist(), ndim


def test_an_entry_as_json():
    for marker in ({"encoding": "json"}, '{"encoding": "json"}', b'{"encoding": "json"}'):
        assert decoded('{"lr": "µ"}'.encode(), marker) == ({"lr": "µ"}, 0)
    assert decoded(b"[[1, 2], [3, 4]]", {"encoding": "json"}, stack=[2, 2]) == ([[1, 2], [3, 4]], 2)
    assert decoded(b"3", {"encoding": "json"}, stack=[]) == (3, 0)


def test_an_entry_as_a_pickle_is_loaded_only_where_that_is_asked_for():
    payload = pickle.dumps({1, 2})
    assert decoded(payload, {"encoding": "pickle"}, allow_pickle=True) == ({1, 2}, 0)
    with pytest.raises(PermissionError) as caught:
        decoded(payload, {"encoding": "pickle"})
    assert str(caught.value) == (
        "it is a pickled Python object, and loading a pickle can run any code. Pass allow_pickle=True if you trust the store"
    )


@pytest.mark.parametrize(
    ("marker", "why"),
    [
        ({"encoding": "xml"}, ": unknown non-tensor encoding 'xml', expected 'json' or 'pickle'"),
        ({}, ": the attribute '__tensordict_non_tensor__': Object missing required field `encoding`"),
        (3, ": the attribute '__tensordict_non_tensor__': Expected `object`, got `int`"),
        (None, ": the attribute '__tensordict_non_tensor__': Expected `object`, got `null`"),
    ],
)
def test_an_entry_in_another_encoding_is_refused(marker, why):
    with pytest.raises(ValueError, match=f"^{re.escape(WHERE + why)}$"):
        decoded(b"1", marker)


@pytest.mark.parametrize(
    ("payload", "stack"),
    [
        (b"[" * 100_000, None),
        (b"[1, 2", None),
        (b"\xff", None),
        (b"[1]", ["1"]),
        (b"[1]", [-1]),
        (b"[1]", 1),
        (b"[1]", [10**15]),
        (b"[1]", [1, 10**15]),
        (b"[[1], [2, 3]]", [2, 1]),
        (b"3", [1]),
    ],
)
def test_an_entry_that_is_damaged_or_has_another_shape_is_refused_without_taking_memory(payload, stack):
    tracemalloc.start()
    with pytest.raises(ValueError):
        decoded(payload, {"encoding": "json"}, stack=stack)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_whether_an_array_holds_a_pickle():
    assert is_pickled({"__tensordict_non_tensor__": {"encoding": "pickle"}}) is True
    assert is_pickled({"__tensordict_non_tensor__": '{"encoding": "pickle"}'}) is True
    for attrs in ({}, {"__tensordict_non_tensor__": {"encoding": "json"}}, {"__tensordict_non_tensor__": "["}):
        assert is_pickled(attrs) is False


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (True, "?"),
        (1.5, "f8"),
        (3, "i8"),
        (2**63 - 1, "i8"),
        (-(2**63), "i8"),
        (2**63, "O"),
        (-(2**63) - 1, "O"),
        ("a", "O"),
        (None, "O"),
        ([1], "O"),
    ],
)
def test_one_value_in_an_array(value, dtype):
    held = scalar_array(value)
    assert (held.dtype, held.shape, held.item()) == (np.dtype(dtype), (), value)


def test_the_elements_of_a_stack():
    for values, dtype in (([[1, 2]], "i8"), ([[1.5, 2.0]], "f8"), ([[True, False]], "?")):
        held = stacked_array(values, (1, 2))
        assert (held.dtype, held.tolist()) == (np.dtype(dtype), values)
    for values in (["a", "b"], [1, 2.5], [1, True], [2**64, 1], [[1], {"a": 2}]):
        held = stacked_array(values, (2,))
        assert (held.dtype, held.tolist()) == (np.dtype(object), values)
    assert stacked_array([], (0,)).shape == (0,)


# -- names that other formats record -----------------------------------------------------------------------------------


def test_the_axes_of_ome_zarr():
    scale = {"axes": [{"name": "y"}, {"name": "x"}], "datasets": [{"path": "0"}, {"path": "1"}]}
    old = {"axes": ["z", "y"], "datasets": [{"path": "a"}]}
    expected = {"0": ("y", "x"), "1": ("y", "x")}
    assert axes_of_multiscales({"multiscales": [scale]}) == expected
    assert axes_of_multiscales({"ome": {"multiscales": [scale, old]}}) == {**expected, "a": ("z", "y")}
    unfit = [
        3,
        {"datasets": []},
        {"axes": "yx", "datasets": []},
        {"axes": ["a", "b"], "datasets": [{"path": 2}, 3]},
        {"axes": [{"name": 3}, "x"], "datasets": [{"path": "q"}]},
    ]
    assert axes_of_multiscales({"multiscales": [*unfit, old, {"axes": ["y"]}]}) == {"a": ("z", "y")}
    for attrs in ({}, {"ome": 3}, {"multiscales": 3}, {"ome": {}}):
        assert axes_of_multiscales(attrs) == {}


def test_the_dims_of_gpm():
    assert dims_from_attribute({"DimensionNames": "nscan, nray"}, 2) == ("nscan", "nray")
    assert dims_from_attribute({"DimensionNames": b"nscan,nray"}, 2) == ("nscan", "nray")
    assert dims_from_attribute({"DimensionNames": b"a\xff"}, 1) == ("a�",)
    for attrs, ndim in (
        ({}, 1),
        ({"DimensionNames": 3}, 1),
        ({"DimensionNames": "a,b"}, 1),
        ({"DimensionNames": "a,"}, 2),
    ):
        assert dims_from_attribute(attrs, ndim) is None
