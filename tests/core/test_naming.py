"""The name of every axis (what the caller says, what the store records, the batch names, then ``dim_<size>``); unknown names."""

import re

import pytest

from xarray_tensordict.core.model import ArrayInfo, GroupBatch, Inference
from xarray_tensordict.core.naming import (
    FeaturesOnly,
    FromFirstAxis,
    check_choice,
    check_dims_argument,
    feature_name,
    find_pattern,
    fits_whole_or_features,
    free_name,
    given_dims,
    groups_there,
    name_axes,
    name_batch,
    qualify,
    renamed_batches,
    resolve_names,
    settle_sizes,
    there_are,
)


def batch(*axes):
    return GroupBatch(tuple(dim for dim, _ in axes), tuple(size for _, size in axes), "given", "")


def given(names, shape, recorded=None, *, at=None, key="images", pattern=None):
    pattern = key if pattern is None else pattern
    return given_dims({pattern: names}, tuple(key.split("/")), recorded or (None,) * len(shape), shape, batch=at)


# -- names from the caller ---------------------------------------------------------------------------------------------


def test_names_are_those_of_the_last_axes():
    assert given(("y", "x"), (9, 3, 4)) == (None, "y", "x")
    assert given(("t", "y", "x"), (9, 3, 4)) == ("t", "y", "x")
    assert given("x", (9, 3, 4)) == (None, None, "x")
    assert given(("x",), (9, 3, 4), ("a", "b", "c")) == ("a", "b", "x")
    assert given((), (9, 3)) == (None, None)


def test_without_a_word_of_the_caller_what_is_recorded_stays():
    assert given_dims(None, ("a",), ("t", None), (3, 4)) == ("t", None)
    assert given_dims({"b": ("x",)}, ("a",), ["t", None], (3, 4)) == ("t", None)


def test_an_ellipsis_stands_for_the_axes_between():
    assert given((..., "x"), (9, 3, 4)) == (None, None, "x")
    assert given((..., "x"), (9, 3, 4), ("a", "b", "c")) == ("a", "b", "x")
    assert given(("c", ...), (9, 3, 4), at=("t",)) == (None, "c", None)
    assert given(("c", ..., "x"), (9, 3, 4, 5), at=("t",)) == (None, "c", None, "x")
    assert given(("c", ...), (9, 3, 4), ("a", "b", "d"), at=("t", "u")) == ("a", "b", "c")


def test_names_in_front_of_an_ellipsis_wait_for_the_batch():
    assert given(("c", ..., "x"), (9, 3, 4)) == (None, None, "x")


def test_names_in_front_of_an_ellipsis_are_of_the_first_axes_where_they_name_the_batch():
    assert given(("t", "c", ...), (9, 3, 4), at=("t",)) == ("t", "c", None)
    assert given(("t", "c", ...), (9, 3, 4), ("t", None, None), at=("b",)) == ("t", "c", None)
    assert given(FromFirstAxis(("t", ...)), (9, 3), at=("b",)) == ("t", None)
    assert given(FromFirstAxis(("t", ..., "x")), (9, 3, 4), ("a", "b", "c")) == ("t", "b", "x")


def test_names_in_front_of_an_ellipsis_that_do_not_fit_behind_the_batch_begin_in_it():
    assert given(("a", "b", ...), (9, 3), at=("t",)) == ("a", "b")
    assert given(("a", ..., "x"), (9, 3), at=("t",)) == ("a", "x")


@pytest.mark.parametrize("names", [("a", "b", "c"), ("a", "b", "c", ...), (..., "a", ...)])
def test_names_that_do_not_fit_are_refused(names):
    expected = f"dims: 'g/images' has 2 axes (shape [9, 3]), which {names!r} does not fit"
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        given(names, (9, 3), key="g/images")


def test_names_of_a_glob_pass_over_arrays_they_do_not_fit():
    assert given(("a", "b", "c"), (9, 3), ("t", None), pattern="*") == ("t", None)
    assert given(("a", "b", ...), (9, 3), at=(), pattern="*") == ("a", "b")
    assert given(("a", "b"), (9, 3), pattern="*") == ("a", "b")
    assert given(FeaturesOnly(("a", "b")), (9, 3), pattern="*") == (None, None)
    assert given(FeaturesOnly(("b",)), (9, 3), pattern="*") == (None, "b")


@pytest.mark.parametrize("names", [("a", 3), ("a", 3, ...), (..., "a", 3)])
def test_a_name_that_is_none_is_refused(names):
    with pytest.raises(TypeError, match=r"^dims: expected names for 'g/images', found 3 of type int$"):
        given(names, (9, 3, 4), at=(), key="g/images")


def test_an_exact_key_is_before_a_glob_and_the_glob_with_most_plain_characters_before_others():
    argument = {"*": ("a",), "obs/*": ("b",), "obs/e*": ("c",), ("obs", "eef"): ("d",), ("x",): ("e",)}
    assert find_pattern(argument, ("obs", "eef")) == (("obs", "eef"), False)
    assert find_pattern(argument, ("obs", "else")) == ("obs/e*", True)
    assert find_pattern(argument, ("obs", "arm")) == ("obs/*", True)
    assert find_pattern(argument, ("y",)) == ("*", True)
    assert find_pattern({"obs/eef": (), ("obs", "eef"): ()}, ("obs", "eef")) == ("obs/eef", False)
    assert find_pattern({"a*": (), "b*": ()}, ("c",)) == (None, True)
    assert find_pattern({"*a*": (), "?a": ()}, ("ba",)) == ("?a", True)
    assert find_pattern({"[ab]": (), "?[b]": (), "[a-b]": ()}, ("b",)) == ("[a-b]", True)
    assert find_pattern({"A": ()}, ("a",)) == (None, True)


def test_names_of_a_pattern_are_settled_by_the_arrays_it_matches():
    shapes = {("r",): (9,), ("x",): (9, 3), ("s",): ()}
    assert resolve_names(None, shapes) is None
    assert resolve_names({}, shapes) == {}
    settled = resolve_names({"*": ("time", ...)}, shapes)
    assert settled == {"*": ("time", ...)}
    assert type(settled["*"]) is FromFirstAxis
    assert type(resolve_names({"x": ("time", ...)}, shapes)["x"]) is tuple
    assert type(resolve_names({"x": ("a", "b", ...)}, shapes)["x"]) is FromFirstAxis
    assert type(resolve_names({"*": (..., "x", "y", "z")}, shapes)["*"]) is tuple
    assert type(resolve_names({"*": ("a",)}, shapes)["*"]) is FeaturesOnly
    assert type(resolve_names({"*": ("a", "b")}, shapes)["*"]) is tuple
    assert type(resolve_names({"x": ("a",)}, shapes)["x"]) is tuple
    assert type(resolve_names({("x",): ("a",)}, shapes)[("x",)]) is tuple
    assert type(resolve_names({"g/x": ("a",)}, {("g", "x"): (3, 4)})["g/x"]) is tuple
    assert resolve_names({"x": "a"}, shapes) == {"x": ("a",)}
    assert type(resolve_names({"q*": ("a",)}, shapes)["q*"]) is tuple


def test_a_settled_name_is_used_as_it_was_settled():
    shapes = {("r",): (9,), ("x",): (9, 3)}
    settled = resolve_names({"*": ("f",)}, shapes)
    assert given_dims(settled, ("r",), (None,), (9,)) == (None,)
    assert given_dims(settled, ("x",), (None, None), (9, 3)) == (None, "f")


def test_a_pattern_that_no_array_matches_is_refused():
    keys = [("images",), ("g", "x")]
    for fine in (None, {}, {"images": ()}, {"g/*": ()}, {("g", "x"): ()}, {"g/x": ()}):
        check_dims_argument(fine, keys)
    check_dims_argument({"a[b": ()}, [("a[b",)])
    with pytest.raises(
        ValueError,
        match=r"^dims: no array is called 'image'; there are: \['g/x', 'images'\]\. Did you mean 'images'\?$",
    ):
        check_dims_argument({"images": (), "image": ()}, keys)
    with pytest.raises(ValueError, match=r"^dims: no array is called 'g/q'; there are: "):
        check_dims_argument({("g", "q"): ()}, keys)
    with pytest.raises(
        TypeError, match=r"^dims: expected a mapping of array names to dims, such as \{'images': \('y', 'x'\)\}, got 5$"
    ):
        check_dims_argument(5, keys)


def test_names_of_one_array_fit_all_axes_or_those_behind_the_batch():
    info = ArrayInfo(("g", "x"), (9, 3, 4))
    for fine in (None, {"g/x": ("a", "b", "c")}, {"g/x": ("b", "c")}, {"g/x": ("a", ...)}, {"*": ("b", "c")}):
        assert fits_whole_or_features(fine, info, 1)
    assert not fits_whole_or_features({"*": ("c",)}, info, 1)
    expected = (
        "dims: expected 2 names for the axes of 'g/x' behind the batch, or 3 for all (shape [9, 3, 4]), found 1: ('c',)"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        fits_whole_or_features({"g/x": ("c",)}, info, 1)


# -- names of axes -----------------------------------------------------------------------------------------------------


def test_an_axis_without_a_name_gets_that_of_the_batch_or_of_its_size():
    two = batch((None, 6), ("env", 3))
    assert name_axes(ArrayInfo(("x",), (6, 3, 3)), two, batched=True) == ("batch_0", "env", "dim_3")
    assert name_axes(ArrayInfo(("x",), (6, 3, 3)), two, batched=False) == ("dim_6", "dim_3", "dim_3_1")
    assert name_axes(ArrayInfo(("x",), (6, 4)), two, batched=True) == ("dim_6", "dim_4")
    assert name_axes(ArrayInfo(("x",), (5, 5, 5), dims=(None, "dim_5", None)), batch(), batched=True) == (
        "dim_5_1",
        "dim_5",
        "dim_5_2",
    )
    named = name_axes(ArrayInfo(("x",), (6, 3, 3)), two, batched=True, argument={"x": ("batch_0", "env", "c", ...)})
    assert named == ("batch_0", "env", "c")
    assert name_axes(ArrayInfo(("x",), (6, 3, 4)), two, batched=True, argument={"x": ("c", ...)}) == (
        "batch_0",
        "env",
        "c",
    )
    assert name_axes(ArrayInfo(("x",), (6, 4, 4)), two, batched=True, argument={"x": ("c", ...)}) == (
        "c",
        "dim_4",
        "dim_4_1",
    )


def test_a_name_that_is_taken_gets_a_counter():
    assert feature_name(3, []) == "dim_3"
    assert feature_name(3, iter(["dim_3", "dim_3_1"])) == "dim_3_2"
    assert free_name("a", ["b"]) == "a"
    assert free_name("a", iter(["a", "a_1"])) == "a_2"


def test_batch_dims_without_a_name_are_numbered():
    assert name_batch(batch((None, 6), ("t", 3), (None, 2))) == ("batch_0", "t", "batch_2")


def test_batches_follow_their_arrays_to_new_names():
    before = {("a",): ("t",), ("g", "x"): ("t",), ("g", "h", "y"): ("t", "u"), ("q",): ("r",)}
    after = {("a",): ("time",), ("g", "x"): ("g.t",), ("g", "h", "y"): ("h.t", "h.u"), ("q",): ("r",)}
    shapes = {("a",): (3,), ("g", "x"): (4,), ("g", "h", "y"): (4, 5), ("q",): (2,)}
    batches = {
        (): batch(("t", 3)),
        ("g",): batch(("t", 4), ("u", 5)),
        ("g", "h"): batch(("t", 4), (None, 5)),
        ("z",): batch(("t", 3)),
    }
    found = renamed_batches(batches, shapes, before, after)
    assert {key: each.dims for key, each in found.items()} == {
        (): ("time",),
        ("g",): ("g.t", "h.u"),
        ("g", "h"): ("h.t", None),
        ("z",): ("t",),
    }
    assert renamed_batches({(): batch(("t", 4))}, shapes, before, after)[()].dims == ("g.t",)
    assert found[()].reason == ""


# -- two sizes of one name ---------------------------------------------------------------------------------------------


def test_a_name_of_two_sizes_stays_with_the_coordinate_then_the_first_array():
    named = {("b",): ("t",), ("a",): ("t",), ("c",): ("t",)}
    settled, warnings = settle_sizes(named, {("b",): (5,), ("a",): (4,), ("c",): (4,)}, {})
    assert settled == {("b",): ("t_5",), ("a",): ("t",), ("c",): ("t",)}
    assert list(settled) == list(named)
    assert warnings == ["'b' has size 5 along 't', which has size 4 elsewhere in its group: the dim is called 't_5'"]
    settled, _ = settle_sizes({("t",): ("t",), ("a",): ("t",)}, {("t",): (5,), ("a",): (4,)}, {})
    assert settled == {("t",): ("t",), ("a",): ("t_4",)}
    settled, _ = settle_sizes({("g", "t"): ("t",), ("g", "a"): ("t",)}, {("g", "t"): (5,), ("g", "a"): (4,)}, {})
    assert settled == {("g", "t"): ("t",), ("g", "a"): ("t_4",)}
    settled, _ = settle_sizes({("a",): ("t",), ("t",): ("t",)}, {("a",): (4,), ("t",): (5,)}, {"t": 4})
    assert settled == {("a",): ("t",), ("t",): ("t_5",)}
    assert settle_sizes({("g", "a"): ("t", "t")}, {("g", "a"): (4, 4)}, {}) == ({("g", "a"): ("t", "t")}, [])


def test_a_suffix_that_is_taken_gets_another():
    named = {("a",): ("t",), ("b",): ("t",), ("c",): ("t_5",), ("d",): ("t_5_",)}
    shapes = {("a",): (4,), ("b",): (5,), ("c",): (3,), ("d",): (2,)}
    settled, warnings = settle_sizes(named, shapes, {})
    assert settled == {("a",): ("t",), ("b",): ("t_5__",), ("c",): ("t_5",), ("d",): ("t_5_",)}
    assert warnings == ["'b' has size 5 along 't', which has size 4 elsewhere in its group: the dim is called 't_5__'"]
    _, warnings = settle_sizes({("g", "a"): ("t",), ("g", "b"): ("t",)}, {("g", "a"): (4,), ("g", "b"): (5,)}, {})
    assert warnings == ["'g/b' has size 5 along 't', which has size 4 elsewhere in its group: the dim is called 't_5'"]


# -- the flat view -----------------------------------------------------------------------------------------------------


def flat(named, shapes, **batches):
    groups = {tuple(key.split("/")): each for key, each in batches.items()}
    return qualify(
        {tuple(key.split("/")): dims for key, dims in named.items()},
        {tuple(key.split("/")): sizes for key, sizes in shapes.items()},
        Inference(groups, {}),
    )


def test_dims_that_clash_between_groups_are_qualified():
    named = {"x": ("t",), "a/x": ("t", "f"), "b/x": ("t", "f")}
    assert flat(named, {"x": (9,), "a/x": (9, 3), "b/x": (9, 3)}) == {
        ("x",): ("t",),
        ("a", "x"): ("t", "f"),
        ("b", "x"): ("t", "f"),
    }
    assert flat(named, {"x": (9,), "a/x": (9, 3), "b/x": (7, 3)}) == {
        ("x",): ("t",),
        ("a", "x"): ("t", "f"),
        ("b", "x"): ("b.t", "f"),
    }


def test_a_dim_comes_down_from_the_topmost_group_that_has_it():
    named = {"a/x": ("t",), "a/g/y": ("t",), "a/h/z": ("t",), "b/x": ("t",)}
    found = flat(named, {"a/x": (5,), "a/g/y": (5,), "a/h/z": (4,), "b/x": (9,)})
    assert found == {("a", "x"): ("a.t",), ("a", "g", "y"): ("a.t",), ("a", "h", "z"): ("a.h.t",), ("b", "x"): ("b.t",)}
    named = {"a/g/y": ("t",), "b/x": ("t",)}
    assert flat(named, {"a/g/y": (5,), "b/x": (9,)}, a=batch(("t", 5)))[("a", "g", "y")] == ("a.t",)
    assert flat(named, {"a/g/y": (5,), "b/x": (9,)}, a=batch((None, 5)))[("a", "g", "y")] == ("a.g.t",)
    named = {"a/g/y": ("batch_0",), "b/x": ("batch_0",)}
    assert flat(named, {"a/g/y": (5,), "b/x": (9,)}, a=batch((None, 5)))[("a", "g", "y")] == ("a.batch_0",)


def test_a_dim_comes_down_step_by_step_and_not_from_the_root():
    named = {"a/g/h/y": ("t",), "a/g/z": ("t",), "b/x": ("t",)}
    found = flat(named, {"a/g/h/y": (5,), "a/g/z": (5,), "b/x": (9,)})
    assert found == {("a", "g", "h", "y"): ("a.g.t",), ("a", "g", "z"): ("a.g.t",), ("b", "x"): ("b.t",)}
    named = {("a", "x"): ("t",), ("b", "x"): ("t",)}
    found = qualify(named, {("a", "x"): (5,), ("b", "x"): (9,)}, Inference({(): batch(("t", 5))}, {}))
    assert found[("a", "x")] == ("a.t",)


def test_names_and_sizes_of_another_number_are_an_error():
    key, batches = ("a", "x"), {("a",): batch(("t", 3))}
    for named, sizes in (({key: ("t",)}, {key: (3, 4)}), ({key: ("t", "f")}, {key: (3,)})):
        with pytest.raises(ValueError, match="zip"):
            qualify(named, sizes, Inference({}, {}))
        with pytest.raises(ValueError, match="zip"):
            settle_sizes(named, sizes, {})
        with pytest.raises(ValueError, match="zip"):
            renamed_batches(batches, sizes, named, named)
    with pytest.raises(ValueError, match="zip"):
        renamed_batches(batches, {key: (3, 4)}, {key: ("t", "f")}, {key: ("t",)})
    with pytest.raises(ValueError, match="zip"):
        renamed_batches({("a",): GroupBatch(("t",), (3, 4), "given", "")}, {key: (3,)}, {key: ("t",)}, {key: ("t",)})


# -- messages about a name that is not there


def test_the_names_there_are_in_order():
    assert there_are("x", ["b", "a"]) == "there are: ['a', 'b']"
    assert there_are("x", [], "the dims there are") == "the dims there are: none"


def test_the_nearest_name_without_regard_to_case():
    assert there_are("TIEM", ["lat", "time"]) == "there are: ['lat', 'time']. Did you mean 'time'?"
    assert there_are("times", ["Time", "TIME"]) == "there are: ['TIME', 'Time']. Did you mean 'TIME'?"
    assert there_are("latitude", ["lat", "time", "x"]) == "there are: ['lat', 'time', 'x']. Did you mean 'lat'?"
    assert there_are("lon", ["longitude", "time"]).endswith("Did you mean 'longitude'?")
    assert there_are("time_of_day", ["t", "ti", "x"]) == "there are: ['t', 'ti', 'x']"
    assert there_are(7, [77, 5]) == "there are: ['5', '77']. Did you mean '77'?"


def test_the_groups_in_the_nearest_one_that_is_there_and_the_path_that_ends_so():
    groups = [("data",), ("data", "demo_0"), ("data", "demo_0", "obs"), ("mask",)]
    assert groups_there(("demo_0",), groups) == "the groups there are: ['/data', '/mask']. Did you mean '/data/demo_0'?"
    assert groups_there(("demo_0", "obs"), groups).endswith("Did you mean '/data/demo_0/obs'?")
    assert groups_there(("data", "qqqqqqqqqq"), groups) == "the groups in '/data' are: ['/data/demo_0']"
    assert groups_there(("data", "demo_5", "obs"), groups).startswith("the groups in '/data' are: ['/data/demo_0']")
    assert groups_there(("x",), []) == "the groups there are: none"


def test_no_more_than_fifty_names():
    names = [f"n{number:02}" for number in range(51)]
    assert there_are("q", names[:50]) == f"there are: {names[:50]}"
    assert there_are("q", names) == f"there are: {names[:50]} and 1 more"
    assert there_are("q", [*names, "r"]) == f"there are: {names[:50]} and 2 more"


def test_a_value_that_is_none_of_the_choices():
    check_choice("mode", None, ("a", None))
    with pytest.raises(ValueError, match=r"^mode: expected one of 'a', None, found 'b'$"):
        check_choice("mode", "b", ("a", None))
