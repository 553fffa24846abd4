"""What the batch of well-known kinds of datasets is: the tables of ``tests/support``, and laws over all their rows."""

import ast
import random
import re
from dataclasses import replace

import pytest

import inference_fields
import inference_practice
import inference_rows
import inference_rules
from inference_rows import Row, coord, grid, key_of, named, raw, time, var
from inference_stores import STORES, Described
from xarray_tensordict.core.inference import infer_batch
from xarray_tensordict.core.model import RecordedBatch, path_key

ROWS = [
    *inference_rows.ROWS,
    *inference_practice.FAULTS,
    *inference_practice.PRACTICE,
    *inference_practice.GUARDS,
    *inference_rules.RULES,
    *inference_fields.FIELDS,
]
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


def test_a_sparse_matrix_is_called_so():
    (row,) = (row for row in ROWS if row.name == "AnnData")
    found = infer(row)
    assert "CSR matrix" in found.groups[("X",)].reason
    assert found.groups[("X",)].sizes == ()


def test_a_sparse_matrix_is_known_by_its_three_arrays():
    triple = [raw("X/data", 239), raw("X/indices", 239), raw("X/indptr", 31)]
    found = infer_batch([*triple, raw("obs/n", 30)])
    assert found.batch_size == (30,)
    assert set(found.keys("unbatched")) == {info.key for info in triple}


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


def test_who_did_not_vote_is_named_with_its_group():
    arrays = [var("g/x", time=4, f=2), coord("g/c", time=4), var("g/label", kind="string", time=4)]
    assert infer_batch(arrays).groups[()].notes == (
        "'g/c' did not vote, because coordinates have no vote",
        "'g/label' did not vote, because strings have no vote",
    )


# --- given (rule 1) ------------------------------------------------------------------------------------------------

FORECAST = [var("t2m", time=4, lat=3, lon=5), var("late", lat=3, time=4), time(4), *grid()]


def test_given_names_are_the_batch():
    found = infer_batch(FORECAST, given=["time", "lat"])
    assert found.batch_dims == ("time", "lat")
    assert found.batch_size == (4, 3)
    assert found.evidence == "given"


def test_a_single_given_name_may_be_a_str():
    assert infer_batch(FORECAST, given="lat").batch_size == (3,)


def test_a_variable_that_has_a_given_dim_elsewhere_is_batched():
    found = infer_batch(FORECAST, given="time")
    assert ("late",) in found.keys("batched")
    assert set(found.keys("unbatched")) == {("lat",), ("lon",)}


def test_a_given_count_takes_the_leading_dims():
    found = infer_batch([raw("obs", 6, 3), raw("act", 6, 3)], given=2)
    assert found.batch_size == (6, 3)
    assert found.evidence == "given"


def test_a_count_of_zero_is_no_batch():
    found = infer_batch([raw("obs", 6, 3), raw("act", 6, 3)], given=0)
    assert found.batch_size == ()
    assert not found.keys("unbatched")


def test_an_unknown_name_lists_the_dims_there_are():
    with pytest.raises((ValueError, KeyError)) as error:
        infer_batch(FORECAST, given="tiem")
    for word in ("tiem", "time", "lat", "lon"):
        assert word in str(error.value)


def test_a_count_that_the_arrays_contradict_names_them():
    with pytest.raises(ValueError, match="act"):
        infer_batch([raw("obs", 6, 3), raw("act", 6, 2)], given=2)


# --- recorded (rule 2) ---------------------------------------------------------------------------------------------


def test_a_record_is_taken():
    arrays = [raw("obs", 6, 3), raw("act", 6, 3), raw("next/obs", 6, 3)]
    found = infer_batch(arrays, recorded={(): RecordedBatch((6, 3), ("time", None))})
    assert found.batch_size == (6, 3)
    assert found.evidence == "recorded"
    assert not found.warnings


def test_a_recorded_size_is_corrected_from_the_arrays_with_a_warning():
    found = infer_batch([var("obs", time=4, f=3), var("r", time=4)], recorded={(): RecordedBatch((9,), ("time",))})
    assert found.batch_size == (4,)
    assert found.batch_dims == ("time",)
    (warning,) = found.warnings
    assert "9" in warning
    assert "4" in warning


def test_recorded_names_that_are_gone_are_dropped():
    arrays = [var("obs", time=4, f=3), var("r", time=4)]
    found = infer_batch(arrays, recorded={(): RecordedBatch(None, ("member", "time"))})
    assert found.batch_dims == ("time",)


def test_when_no_recorded_name_is_left_the_batch_is_inferred():
    arrays = [var("obs", time=4, f=3), var("r", time=4)]
    found = infer_batch(arrays, recorded={(): RecordedBatch(None, ("member",))})
    assert found.batch_dims == ("time",)
    assert found.evidence == "shared named dims"


def test_dims_in_front_of_the_recorded_ones_are_added():
    arrays = [var("obs", member=2, time=4, f=3), var("r", member=2, time=4)]
    found = infer_batch(arrays, recorded={(): RecordedBatch(None, ("time",))})
    assert found.batch_dims == ("member", "time")
    assert found.batch_size == (2, 4)


def test_an_index_coordinate_is_no_voter_and_follows_its_dim():
    found = infer_batch([var("x", t=3, f=2), coord("f", f=2), coord("t", t=3), named("s", (), ())])
    assert found.batch_dims == ("t",)
    assert set(found.keys("batched")) == {("x",), ("t",)}
