"""What the inference decides and says, word for word: of every row, every real store, and every choice.

The words are in ``tests/data/inference_evidence.json``. After a change that is meant, write them again with
``python tests/core/test_evidence.py`` and read the difference.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))

from inference_choices import CHOICES
from inference_rows import coord, named, raw, var
from inference_rules import ROWS
from inference_stores import STORES
from xarray_tensordict.core.inference import infer_batch, may_have_more
from xarray_tensordict.core.model import Inference, RecordedBatch
from xarray_tensordict.core.voting import referenced_names

FILE = Path(__file__).parent.parent / "data" / "inference_evidence.json"
EXPECTED = json.loads(FILE.read_text())


def said_of(found: Inference) -> dict:
    groups = {
        "/".join(key): [list(batch.dims), list(batch.sizes), batch.evidence, batch.reason, *batch.notes]
        for key, batch in found.groups.items()
    }
    assert set(found.classes.values()) <= {"batched", "partial", "unbatched"}
    classes = {name: sorted("/".join(key) for key in found.keys(name)) for name in ("partial", "unbatched")}
    return {"groups": groups, **classes, "warnings": list(found.warnings)}


def everything() -> Iterator[tuple[str, dict]]:
    for choice in CHOICES:
        each = ({"each": True} if choice.each else {}) | ({} if choice.opened == () else {"opened": choice.opened})
        try:
            found = infer_batch(
                choice.arrays, given=choice.given, recorded=choice.recorded, beside=choice.beside, **each
            )
            yield f"choice: {choice.name}", said_of(found)
        except (TypeError, ValueError) as error:
            yield f"choice: {choice.name}", {type(error).__name__: str(error)}
    for row in ROWS:
        yield f"row: {row.name}", said_of(infer_batch(row.arrays, group_attrs=row.group_attrs))
    for store in STORES:
        found = infer_batch(store.arrays, recorded=store.recorded, group_attrs=store.group_attrs)
        yield f"store: {store.name}", said_of(found)


def test_everything_that_is_decided_and_said():
    """It stops at the first difference, so that a mutant of the inference takes no longer than it must."""
    seen = set()
    for name, said in everything():
        if said != EXPECTED[name]:  # pytest would compare the two line by line, which takes longer than the inference
            pytest.fail(name)
        seen.add(name)
    assert seen == EXPECTED.keys()


def test_a_group_beside_is_asked_only_where_it_could_have_more():
    swallowed = [var("th", chain=2, draw=5, s=3), var("mu", chain=2, draw=5), coord("chain", chain=2)]
    assert may_have_more(infer_batch(swallowed[:1]), swallowed[:1])
    for arrays in (
        swallowed,  # has both dims already
        [*swallowed[:1], var("r", chain=2)],  # an array without the second dim
        [var("x", chain=2, draw=5), var("y", chain=2, f=3)],  # two second dims
        [named("x", ("chain", None), (2, 5))],
        [raw("x", 4, 3)],
        [var("m", lat=3, lon=4)],
    ):
        assert not may_have_more(infer_batch(arrays), arrays)


def test_only_the_data_of_the_root_say_whether_a_group_beside_is_asked():
    one = var("th", chain=2, draw=5, s=3)
    for other in (
        var("g/x", chain=2, f=3),
        coord("c", chain=2, f=3),
        var("name", kind="string", chain=2, f=3),
        var("m", row=4, chain=2, f=3),
    ):
        assert may_have_more(infer_batch([one]), [one, other])
    assert may_have_more(infer_batch([one]), [one, var("mu", chain=2, draw=5, q=4)])
    assert not may_have_more(infer_batch([one], given="chain"), [one])
    assert not may_have_more(infer_batch([one], recorded={(): RecordedBatch((2,), None)}), [one])


def test_cf_attributes_refer_to_variables_by_name():
    attrs = {
        "bounds": "b",
        "coordinates": "lat lon",
        "cell_measures": "area: a",
        "grid_mapping": "crs: x",
        "units": "m",
    }
    assert referenced_names(attrs) == {"b", "lat", "lon", "a", "crs", "x"}
    assert referenced_names({"bounds": 3}) == set()


if __name__ == "__main__":
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(said)}" for name, said in everything())
    FILE.write_text(f"{{\n{lines}\n}}\n")
