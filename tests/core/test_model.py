"""Plain descriptions of what a store holds."""

import os
import signal
import threading

import numpy as np
import pytest

from xarray_tensordict.core.model import (
    ArrayInfo,
    LeftOut,
    StoredArray,
    StoredGroup,
    cached_property,
    elements,
    group_name,
    private_group,
    text_of,
    walk,
    why_no_key,
)


def test_what_is_left_out_is_a_sentence():
    assert str(LeftOut(("a", "b"), "it is broken")) == "'a/b': it is broken"
    assert str(LeftOut((), "it is broken", "units")) == "attribute 'units' of '/': it is broken"


def test_an_array_has_the_shape_and_dtype_of_its_data():
    array = StoredArray("x", np.zeros((2, 3), "i2"), (None, None))
    assert (array.shape, array.dtype) == ((2, 3), np.dtype("i2"))


def test_dims_are_as_many_as_axes():
    assert ArrayInfo(("x",), (2, 3)).dims == (None, None)
    assert ArrayInfo(("x",), ()).dims == ()
    assert ArrayInfo(("x",), (2,), dims=("t",)).axes == (("t", 2),)
    for dims, shape in ((("t",), (2, 3)), (("t",), ())):
        with pytest.raises(ValueError) as caught:
            ArrayInfo(("g", "x"), shape, dims=dims)
        assert str(caught.value) == f"'g/x': 1 dims ['t'] for shape {list(shape)}"


def test_elements_are_counted():
    assert elements([ArrayInfo(("x",), (2, 3)), ArrayInfo(("y",), ())]) == 7


@pytest.mark.parametrize(
    ("name", "attrs", "expected"),
    [
        ("_i_table", {}, "the search index of a PyTables table"),
        ("x", {"CLASS": "TINDEX"}, "the search index of a PyTables table"),
        ("x", {"CLASS": b"INDEX"}, "the search index of a PyTables table"),
        ("x", {"CLASS": b"\xff"}, None),
        ("#refs#", {}, "a group that MATLAB keeps for itself"),
        ("#subsystem#", {}, "a group that MATLAB keeps for itself"),
        (".hidden", {}, "a hidden group"),
        ("_own", {"CLASS": "GROUP"}, None),
    ],
)
def test_groups_that_a_format_keeps_for_itself(name, attrs, expected):
    assert private_group(name, attrs) == expected


def test_names_of_groups_and_text_of_attributes():
    assert (group_name(()), group_name(("a", "b"))) == ("/", "/a/b")
    assert (text_of(b"a\xff"), text_of("a"), text_of(3)) == ("a�", "a", 3)


class Groups:
    """A store of groups without arrays; `asked` lists the groups that were opened."""

    description = "a store"

    def __init__(self, **attrs):
        self.attrs, self.asked = attrs, []

    def group(self, key=()):
        self.asked.append(key)
        below = {
            path[len(key)]
            for path in map(tuple, (name.split("__") for name in self.attrs))
            if path[: len(key)] == key and len(path) > len(key)
        }
        return StoredGroup(key, groups=tuple(sorted(below)), attrs=self.attrs.get("__".join(key), {}))


def test_a_walk_passes_over_private_groups_and_names_them():
    store = Groups(**{"a": {}, "a__b": {}, "a__b__.h": {}, "_i_t": {}, "c": {"CLASS": "INDEX"}, "c__d": {}})
    found = list(walk(store))
    assert [group.key for group in found] == [(), ("a",), ("a", "b")]
    assert [str(each) for each in found[2].left_out] == ["'a/b/.h': it is a hidden group; group='a/b/.h' opens it"]
    assert ("_i_t",) not in store.asked
    what = "it is the search index of a PyTables table"
    assert found[0].left_out == [
        LeftOut(("_i_t",), f"{what}; group='_i_t' opens it", warns=False),
        LeftOut(("c",), f"{what}; group='c' opens it", warns=False),
    ]


@pytest.mark.parametrize("path", ["", "/", "/a", "a/", "a//b", ".", "..", "a/./b", "../a", "a\0", "\0"])
def test_a_path_with_a_part_that_is_no_name_is_no_key(path):
    assert why_no_key(path) is not None


@pytest.mark.parametrize("path", ["a", "a/b", "...", ".a", "a.", "a b", "µ", "a\\b", "%2E"])
def test_any_other_path_is_a_key(path):
    assert why_no_key(path) is None


def test_a_stored_array_has_a_dim_for_each_axis():
    with pytest.raises(ValueError, match=r"it has dims \['x'\] for shape \[2, 3\]"):
        StoredArray("a", np.zeros((2, 3)), ("x",))


class Computed:
    """One whose property waits until it may be computed."""

    def __init__(self, may_go_on):
        self.started, self.may_go_on, self.computed = threading.Event(), may_go_on, 0

    @cached_property
    def value(self):
        self.started.set()
        self.may_go_on.wait(30)
        self.computed += 1
        return self.computed


def test_a_property_is_computed_once():
    go = threading.Event()
    go.set()
    one = Computed(go)
    assert (one.value, one.value, one.computed) == (1, 1, 1)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_process_forked_while_a_thread_computes_a_property_computes_its_own():
    go, wait = threading.Event(), threading.Event()
    go.set()
    busy, other = Computed(wait), Computed(go)
    thread = threading.Thread(target=lambda: busy.value)
    thread.start()
    busy.started.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # ends the process where it waits for a lock that nobody holds any more
        os._exit(0 if other.value == 1 else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    wait.set()
    thread.join()
    assert code == 0
