"""The end of a message about a name that is not there."""

import pytest

from xarray_tensordict.core.messages import check_choice, there_are


def test_the_names_there_are_in_order():
    assert there_are("x", ["b", "a"]) == "there are: ['a', 'b']"
    assert there_are("x", [], "the dims there are") == "the dims there are: none"


def test_the_nearest_name_without_regard_to_case():
    assert there_are("TIEM", ["lat", "time"]) == "there are: ['lat', 'time']. Did you mean 'time'?"
    assert there_are("times", ["Time", "TIME"]) == "there are: ['TIME', 'Time']. Did you mean 'TIME'?"
    assert there_are(7, [77, 5]) == "there are: ['5', '77']. Did you mean '77'?"


def test_no_more_than_fifty_names():
    names = [f"n{number:02}" for number in range(51)]
    assert there_are("q", names[:50]) == f"there are: {names[:50]}"
    assert there_are("q", names) == f"there are: {names[:50]} and 1 more"
    assert there_are("q", [*names, "r"]) == f"there are: {names[:50]} and 2 more"


def test_a_value_that_is_none_of_the_choices():
    check_choice("mode", None, ("a", None))
    with pytest.raises(ValueError, match=r"^mode: expected one of 'a', None, found 'b'$"):
        check_choice("mode", "b", ("a", None))
