"""What the batch of well-known kinds of datasets is: the tables of ``tests/support``, and laws over all their rows."""

import ast
import random
import re
from dataclasses import replace

import pytest

from inference_rows import Row, key_of
from inference_rules import ROWS
from inference_stores import STORES, Described
from xarray_tensordict.core.inference import infer_batch
from xarray_tensordict.core.model import path_key

EACH = pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])


def infer(row, arrays=None):
    return infer_batch(row.arrays if arrays is None else arrays, group_attrs=row.group_attrs)


def keys(paths):
    return {key_of(path) for path in paths.split()}


@EACH
def test_batch(row: Row):
    found = infer(row)
    explained = f"{row.why}; found: {found.reason}"
    assert list(zip(found.batch_dims, found.batch_size, strict=True)) == list(row.batch), explained
    assert found.evidence == row.evidence, explained
    assert found.reason
    for path, sizes in row.groups.items():
        assert found.groups[key_of(path)].sizes == sizes, f"{path}: {found.groups[key_of(path)].reason}"


@EACH
def test_classes(row: Row):
    found = infer(row)
    either = keys(row.either)
    assert set(found.classes) == {info.key for info in row.arrays}
    assert set(found.keys("unbatched")) - either == keys(row.unbatched), row.why
    assert set(found.keys("partial")) - either == keys(row.partial), row.why


@pytest.mark.parametrize("store", STORES, ids=[store.name for store in STORES])
def test_the_batch_of_a_real_store(store: Described):
    found = infer_batch(store.arrays, recorded=store.recorded, group_attrs=store.group_attrs)
    assert list(found.batch_size) in store.answers, found.reason


@EACH
def test_the_order_of_the_arrays_does_not_matter(row: Row):
    expected = infer(row)
    stream = random.Random(row.name)
    for _ in range(5):
        arrays = list(row.arrays)
        stream.shuffle(arrays)
        found = infer(row, arrays)
        assert dict(found.groups) == dict(expected.groups)
        assert dict(found.classes) == dict(expected.classes)
        assert sorted(found.warnings) == sorted(expected.warnings)


def in_upper_case(info):
    """The same array with its dims, its own name and the names it refers to in upper case."""
    refer = {"bounds", "climatology", "coordinates", "grid_mapping", "ancillary_variables"}
    attrs = {key: value.upper() if key in refer else value for key, value in info.attrs.items()}
    if "cell_measures" in attrs:
        measure, _, name = attrs["cell_measures"].partition(": ")
        attrs["cell_measures"] = f"{measure}: {name.upper()}"
    dims = tuple(dim and dim.upper() for dim in info.dims)
    return replace(info, key=(*info.key[:-1], info.key[-1].upper()), dims=dims, attrs=attrs)


@pytest.mark.parametrize("row", [row for row in ROWS if row.other_case], ids=lambda row: row.name)
def test_the_case_of_the_names_does_not_matter(row: Row):
    expected = infer(row)
    sparse = bool(row.group_attrs)  # data, indices and indptr are names of a format
    found = infer(row, row.arrays if sparse else [in_upper_case(info) for info in row.arrays])
    assert found.batch_size == expected.batch_size
    assert found.evidence == expected.evidence


def described(stores):
    return [
        *[(row.name, row.arrays, {}, row.group_attrs) for row in stores if isinstance(row, Row)],
        *[
            (store.name, store.arrays, store.recorded, store.group_attrs)
            for store in stores
            if isinstance(store, Described)
        ],
    ]


EVERY = pytest.mark.parametrize(
    ("arrays", "recorded", "group_attrs"),
    [pytest.param(*rest, id=name) for name, *rest in described([*ROWS, *STORES])],
)


@EVERY
def test_the_batch_that_is_found_can_be_given(arrays, recorded, group_attrs):
    """By count, by its names, and under new names where its axes have none."""
    found = infer_batch(arrays, recorded=recorded, group_attrs=group_attrs)
    for count in range(len(found.batch_size) + 1):
        given = infer_batch(arrays, recorded=recorded, group_attrs=group_attrs, given=count)
        assert given.batch_size == found.batch_size[:count]
        assert given.batch_dims == found.batch_dims[:count]
    names = [dim or f"axis_number_{axis}" for axis, dim in enumerate(found.batch_dims)]
    if not names or len(set(names)) < len(names):
        return
    named = infer_batch(arrays, recorded=recorded, group_attrs=group_attrs, given=names)
    assert named.batch_size == found.batch_size
    assert list(named.batch_dims) == names
    assert named.evidence == "given"
    if None not in found.batch_dims:
        assert named.classes == found.classes


@EVERY
def test_what_the_evidence_says_to_pass_can_be_passed(arrays, recorded, group_attrs):
    """What is said of a group is passed with the path of the group, and then it is the root."""
    found = infer_batch(arrays, recorded=recorded, group_attrs=group_attrs)
    for sentence in {sentence for batch in found.groups.values() for sentence in (batch.reason, *batch.notes)}:
        for path, advice in re.findall(r"pass (?:group='([^']*)', )?batch_dims=(\d+|'[^']*'|\[[^\]]*\])", sentence):
            wanted, group = ast.literal_eval(advice), path_key(path)
            start = len(group)
            given = infer_batch(
                [replace(info, key=info.key[start:]) for info in arrays if info.key[:start] == group],
                recorded={key[start:]: record for key, record in recorded.items() if key[:start] == group},
                group_attrs={key[start:]: attrs for key, attrs in group_attrs.items() if key[:start] == group},
                given=wanted,
            )
            if isinstance(wanted, int):
                assert len(given.batch_size) == wanted
            else:
                assert given.batch_dims == ((wanted,) if isinstance(wanted, str) else tuple(wanted)), sentence
