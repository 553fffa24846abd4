"""Every document of a store is parsed against a type, and what does not fit is one worded ValueError."""

import json
import math

import msgspec
import pytest

from xarray_tensordict.core.metadata import checked, parse


class Marker(msgspec.Struct):
    shape: list[int]
    names: list[str | None] | None = None


def test_a_document_is_given_as_the_type_and_other_members_are_left_out() -> None:
    assert parse(b'{"shape": [3], "names": [null], "more": 1}', Marker, "store 'a'") == Marker([3], [None])


def test_nan_and_infinity_are_read_as_python_writes_them() -> None:
    found = parse(json.dumps([math.nan, math.inf]), list[float], "store 'a'")
    assert math.isnan(found[0])
    assert found[1] == math.inf


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        (b'{"shape": [3, true]}', Marker, r"store 'a', __tensordict__: Expected `int`, got `bool` - at `\$\.shape\[1\]`"),
        (b'{"shape": [3], "names": ["t", 2]}', Marker, r"Expected `str \| null`, got `int` - at `\$\.names\[1\]`"),
        (b'{"names": null}', Marker, r"store 'a', __tensordict__: Object missing required field `shape`"),
        (b"[]", Marker, r"store 'a', __tensordict__: Expected `object`, got `array`"),
        (b'{"shape": [', Marker, r"store 'a', __tensordict__: not JSON \(Expecting value: line 1 column 12"),
        (b"\xff\xfe{", Marker, r"store 'a', __tensordict__: not JSON \("),
        (b"9" * 5000, int, r"store 'a', __tensordict__: not JSON \(Exceeds the limit"),
        (b"[" * 100_000, list, "store 'a', __tensordict__: nested too deeply"),
    ],
)  # fmt: skip
def test_what_does_not_fit_names_store_document_member_expected_and_found(
    content: bytes, kind: type, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        parse(content, kind, "store 'a', __tensordict__")


def test_what_was_read_from_json_is_checked_in_the_same_words() -> None:
    with pytest.raises(ValueError, match=r"store 'a', names: Expected `str`, got `int` - at `\$\[0\]`"):
        checked([1], list[str], "store 'a', names")
