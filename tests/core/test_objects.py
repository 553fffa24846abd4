"""What an array of Python objects holds is asked in one place."""

from __future__ import annotations

from typing import Any

import cftime
import numpy as np
import pytest

from xarray_tensordict.core.objects import held_objects, same_object


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
