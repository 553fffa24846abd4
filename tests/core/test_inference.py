"""What the batch of well-known kinds of datasets is: the tables of ``tests/support``, and laws over all their rows."""

import ast
import random
import re
from dataclasses import replace

import pytest

from inference_rows import Row, key_of
from inference_rules import ROWS
from inference_stores import STORES
from xarray_tensordict.core.inference import infer_batch
from xarray_tensordict.core.model import path_key


def infer(arrays, recorded=None, group_attrs=None, **given):
    return infer_batch(arrays, recorded=recorded or {}, group_attrs=group_attrs or {}, **given)


def keys(paths):
    return {key_of(path) for path in paths.split()}


EVERY = [
    *((row.name, row.arrays, {}, row.group_attrs) for row in ROWS),
    *((store.name, store.arrays, store.recorded, store.group_attrs) for store in STORES),
]
"""Of every row and every real store the name, the arrays, the records and the attributes of groups."""


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_the_batch_and_the_class_of_each_array(row: Row):
    found, either = infer_batch(row.arrays, group_attrs=row.group_attrs), keys(row.either)
    explained = f"{row.why}; found: {found.reason}"
    assert list(zip(found.batch_dims, found.batch_size, strict=True)) == list(row.batch), explained
    assert found.evidence == row.evidence, explained
    assert found.reason
    for path, sizes in row.groups.items():
        assert found.groups[key_of(path)].sizes == sizes, f"{path}: {found.groups[key_of(path)].reason}"
    assert set(found.classes) == {info.key for info in row.arrays}
    assert set(found.keys("unbatched")) - either == keys(row.unbatched), row.why
    assert set(found.keys("partial")) - either == keys(row.partial), row.why


def test_the_batch_of_a_real_store():
    found = {store.name: infer(store.arrays, store.recorded, store.group_attrs) for store in STORES}
    wrong = {store.name: found[store.name] for store in STORES if [*found[store.name].batch_size] not in store.answers}
    assert not wrong


def test_the_order_of_the_arrays_does_not_matter():
    for name, arrays, *more in EVERY:
        expected, stream, shuffled = infer(arrays, *more), random.Random(name), list(arrays)
        for _ in range(3):
            stream.shuffle(shuffled)
            found = infer(shuffled, *more)
            assert dict(found.groups) == dict(expected.groups), name
            assert dict(found.classes) == dict(expected.classes), name
            assert sorted(found.warnings) == sorted(expected.warnings), name


def in_upper_case(info):
    """The same array with its dims, its own name and the names it refers to in upper case."""
    refer = {"bounds", "climatology", "coordinates", "grid_mapping", "ancillary_variables"}
    attrs = {key: value.upper() if key in refer else value for key, value in info.attrs.items()}
    if "cell_measures" in attrs:
        measure, _, name = attrs["cell_measures"].partition(": ")
        attrs["cell_measures"] = f"{measure}: {name.upper()}"
    dims = tuple(dim and dim.upper() for dim in info.dims)
    return replace(info, key=(*info.key[:-1], info.key[-1].upper()), dims=dims, attrs=attrs)


def test_the_case_of_the_names_does_not_matter():
    for row in ROWS:
        if row.other_case:
            sparse = bool(row.group_attrs)  # data, indices and indptr are names of a format
            arrays = row.arrays if sparse else [in_upper_case(info) for info in row.arrays]
            expected, found = (infer_batch(each, group_attrs=row.group_attrs) for each in (row.arrays, arrays))
            assert (found.batch_size, found.evidence) == (expected.batch_size, expected.evidence), row.name


def test_the_batch_that_is_found_can_be_given():
    """By count, by its names, and under new names where its axes have none."""
    for name, *described in EVERY:
        found = infer(*described)
        for count in range(len(found.batch_size) + 1):
            given = infer(*described, given=count)
            assert given.batch_size == found.batch_size[:count], name
            assert given.batch_dims == found.batch_dims[:count], name
        names = [dim or f"axis_number_{axis}" for axis, dim in enumerate(found.batch_dims)]
        if names and len(set(names)) == len(names):
            given = infer(*described, given=names)
            assert given.batch_size == found.batch_size, name
            assert (list(given.batch_dims), given.evidence) == (names, "given"), name
            assert None in found.batch_dims or given.classes == found.classes, name


def test_what_the_evidence_says_to_pass_can_be_passed():
    """What is said of a group is passed with the path of the group, and then it is the root."""
    for name, arrays, recorded, group_attrs in EVERY:
        found = infer(arrays, recorded, group_attrs)
        sentences = {sentence for batch in found.groups.values() for sentence in (batch.reason, *batch.notes)}
        advice = re.compile(r"pass (?:group='([^']*)', )?batch_dims=(\d+|'[^']*'|\[[^\]]*\])")
        for path, choice in {each for sentence in sentences for each in advice.findall(sentence)}:
            wanted, group = ast.literal_eval(choice), path_key(path)
            start = len(group)
            given = infer(
                [replace(info, key=info.key[start:]) for info in arrays if info.key[:start] == group],
                {key[start:]: record for key, record in recorded.items() if key[:start] == group},
                {key[start:]: attrs for key, attrs in group_attrs.items() if key[:start] == group},
                given=wanted,
            )
            if isinstance(wanted, int):
                assert len(given.batch_size) == wanted, name
            else:
                assert given.batch_dims == ((wanted,) if isinstance(wanted, str) else tuple(wanted)), name
