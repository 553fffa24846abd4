"""Mutated stores of every kind: no dead interpreter, no endless loop, no error without a name, no silently wrong value."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fuzz_stores
import mutants

SCRIPT = Path(__file__).parents[1] / "support" / "fuzzing.py"
CORPUS = Path(__file__).parents[1] / "data" / "mutants.json"
pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are those of Linux"),
]


def findings(tmp_path: Path, *arguments: object) -> list[dict[str, Any]]:
    """What is wrong with mutants that a process of its own examines, but for the faults that h5py alone has too."""
    report = tmp_path / "report.jsonl"
    command = [sys.executable, str(SCRIPT), "--report", str(report), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in report.read_text().splitlines()]
    return [finding for finding in found if not finding["what"].endswith(" of h5py")]


def test_mutants_that_once_were_answered_wrongly(tmp_path: Path) -> None:
    """Those that still are say what is `known` of them, until they are not: then the word is deleted in the corpus."""
    found = findings(tmp_path, "--corpus", CORPUS)
    corpus = json.loads(CORPUS.read_text())
    known = [each["recipe"] for each in corpus if "known" in each]
    assert [finding for finding in found if finding["recipe"] not in known] == []
    assert [each for each in corpus if "known" in each and each["recipe"] not in [f["recipe"] for f in found]] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", fuzz_stores.KINDS)
def test_new_mutants_of_a_kind_of_store(tmp_path: Path, name: str) -> None:
    assert findings(tmp_path, "--count", 40, "--seed", 0, "--kinds", name) == []


FAULTS = {
    "crash": "os.kill(os.getpid(), 11)",
    "hang": "while True: pass",
    "unclassed": "raise TypeError('x')",
    "unnamed": "raise ValueError('x')",
    "unclassed: MemoryError": "bytearray(1 << 40)",
    "changed: x": "values['x'] = 'other'",
    "lost: group/x": "del values['group/x']",
}


def test_each_kind_of_fault_is_found() -> None:
    """The check of the check: readers that go wrong where one array, which is not theirs, was changed."""
    script = """
import json, os, pathlib, sys, tempfile
sys.path.insert(0, sys.argv[1])
import fuzzing
fuzzing.SECONDS = 2
before, now = fuzzing.dataset, ""
def dataset(path):
    td, values = before(path)
    if "mutant" in path:
        exec(now)
    return td, values
fuzzing.dataset = dataset
folder = pathlib.Path(tempfile.mkdtemp())
kind = fuzzing.Kind.built("zarr-sharded", folder / "kind")
recipe = [{"do": "set", "file": "s.zarr/y/zarr.json", "at": ["attributes"], "value": {"units": "m"}}]
for now in json.loads(sys.argv[2]):
    found = list(fuzzing.examine_all(kind, [recipe], folder))
    print(json.dumps([f"{each['what']}: {each['message']}" for each in found if each["way"] in ("", "dataset")]))
"""
    command = [sys.executable, "-c", script, str(SCRIPT.parent), json.dumps(list(FAULTS.values()))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(FAULTS), done.stderr[-2000:]
    for expected, said in zip(FAULTS, found, strict=True):
        assert any(each.startswith(expected) for each in said), (expected, said)


def test_recipes_can_be_applied_again(tmp_path: Path) -> None:
    """A recipe of the corpus that no longer fits its store tests nothing."""
    for name in {each["kind"] for each in json.loads(CORPUS.read_text())} - {"icechunk"}:
        fuzz_stores.build(name, tmp_path / name)
        held = mutants.contents(tmp_path / name)
        for each in json.loads(CORPUS.read_text()):
            if each["kind"] == name:
                assert mutants.apply(held, each["recipe"]) != held, each
