"""What an array of Python objects holds is asked in one place."""

from __future__ import annotations

from typing import Any

import cftime
import numpy as np
import pytest

from xarray_tensordict.core.values import held_objects, is_text_dtype, jsonable, python_objects, same_object, to_json


def array_of(*items: Any) -> np.ndarray[Any, Any]:
    held = np.empty(len(items), object)
    held[:] = items
    return held


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ((), "text"),
        (("a", np.str_("b")), "text"),
        (("a", None), "objects"),
        ((b"a", np.bytes_(b"b")), "bytes"),
        ((b"a\0",), "objects"),
        ((cftime.DatetimeNoLeap(2000, 1, 1), cftime.DatetimeNoLeap(2000, 1, 2)), "dates"),
        ((np.arange(2), np.arange(3)), "rows"),
        (({"a": 1}, [1]), "objects"),
        ((1, 2.5), "objects"),
    ],
)
def test_an_object_array_holds(items: tuple[Any, ...], expected: str) -> None:
    assert held_objects(array_of(*items)) == expected


def test_rows_of_one_length_are_rows_as_well() -> None:
    rows = np.empty(2, object)
    rows[0], rows[1] = np.arange(3), np.arange(3)
    assert held_objects(rows) == "rows"


def test_equal_objects_have_equal_types() -> None:
    assert same_object({"a": [1, float("nan")]}, {"a": [1, float("nan")]})
    assert not same_object([1], [1.0])
    assert not same_object([1], [1, 2])


def test_dates_are_known_among_others_and_rows_too() -> None:
    date = cftime.DatetimeNoLeap(2000, 1, 1)
    assert held_objects(array_of(None, date)) == "dates"
    assert held_objects(array_of(None, np.arange(2))) == "rows"
    assert held_objects(array_of(np.arange(2), date)) == "dates"
    assert held_objects(array_of("a", b"b")) == "objects"


def test_a_dtype_says_that_it_holds_text() -> None:
    assert is_text_dtype(np.dtype("O", metadata={"element_type": str}))
    assert is_text_dtype(np.dtype("O", metadata={"vlen": str}))
    for other in (
        np.dtype("O"),
        np.dtype("O", metadata={"element_type": bytes}),
        np.dtype("O", metadata={"vlen": bytes}),
    ):
        assert is_text_dtype(other) is False


def test_objects_and_attributes_of_python() -> None:
    nested = array_of(np.float32(1.5), [np.int8(3)], "a")
    found = python_objects(nested.reshape(3, 1))
    assert found == [[1.5], [[np.int8(3)]], ["a"]]
    assert type(found[0][0]) is float
    assert python_objects(np.array([[1, 2]], "i2")) == [[1, 2]]
    assert python_objects(np.array(3)) == 3
    held = np.empty((), object)
    held[()] = [np.int8(1)]
    assert python_objects(held) == [1]
    assert jsonable(np.arange(2)) == [0, 1]
    assert type(jsonable(np.int8(1))) is int
    assert jsonable("a") == "a"


def test_objects_as_json() -> None:
    assert to_json({"a": [1, None]}, "x") == '{"a": [1, null]}'
    for payload in ({1, 2}, 1j):
        with pytest.raises(TypeError) as caught:
            to_json(payload, "x")
        assert str(caught.value) == (
            f"variable 'x' holds a Python object that JSON cannot hold (Object of type {type(payload).__name__} is not JSON "
            "serializable), and objects are stored as JSON, never as pickles; convert it to numbers, strings, lists or dicts, "
            "or drop it"
        )
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(TypeError, match="Circular reference"):
        to_json(loop, "x")


@pytest.mark.parametrize(
    ("one", "other"),
    [({"a": 1}, {"b": 1}), ({"a": 1}, {"a": 2}), ({"a": 1, "b": 2}, {"a": 1}), ([1, 2], [2, 1]), ([], [1]), (1, True),
     (float("nan"), 1.0), (1.5, 2.5), ("a", "b"), (object(), object()), ((1,), (1,))],
)  # fmt: skip
def test_objects_that_differ(one: Any, other: Any) -> None:
    assert not same_object(one, other)
    assert not same_object(other, one)


@pytest.mark.parametrize("value", [{"a": {"b": [1]}}, [], {}, None, True, "a", 1.5, float("inf")])
def test_objects_that_are_the_same(value: Any) -> None:
    assert same_object(value, value)
