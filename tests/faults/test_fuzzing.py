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


@pytest.mark.parametrize(
    ("mutation", "expected"),
    [
        (b"import os; os.kill(os.getpid(), 11)", "crash"),
        (b"while True: pass", "hang"),
        (b"raise TypeError('x')", "unclassed"),
        (b"raise ValueError('x')", "unnamed"),
        (b"bytearray(1 << 40)", "unclassed"),
    ],
)
def test_each_kind_of_fault_is_found(tmp_path: Path, mutation: bytes, expected: str) -> None:
    """The check of the check: a reader that goes wrong where a chunk says so."""
    script = (
        f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r})\n"
        "import fuzzing, pathlib, tempfile\n"
        f"fuzzing.SECONDS = 2\nbefore = fuzzing.dataset\n"
        "def dataset(path):\n"
        "    if 'mutant' in path:\n"
        f"        {mutation.decode()}\n"
        "    return before(path)\n"
        "fuzzing.dataset = dataset\n"
        "folder = pathlib.Path(tempfile.mkdtemp())\n"
        "kind = fuzzing.Kind.built('zarr2-plain', folder / 'kind')\n"
        "recipe = [{'do': 'bytes', 'file': 's.zarr/y/0', 'at': 0, 'hex': '00', 'over': 0}]\n"
        "print([finding['what'] for finding in fuzzing.examine_all(kind, [recipe], folder)])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert f"'{expected}'" in done.stdout, done.stdout + done.stderr[-2000:]


def test_an_untouched_entry_that_changes_or_goes_is_found(tmp_path: Path) -> None:
    """The check of the check: one array is changed, and another is said to have been."""
    script = (
        f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r})\n"
        "import fuzzing, pathlib, tempfile, numpy\n"
        "before = fuzzing.dataset\n"
        "def dataset(path):\n"
        "    td, values = before(path)\n"
        "    if 'mutant' in path:\n"
        "        values['x'] = 'other'\n"
        "        del values['group/x']\n"
        "    return td, values\n"
        "fuzzing.dataset = dataset\n"
        "folder = pathlib.Path(tempfile.mkdtemp())\n"
        "kind = fuzzing.Kind.built('zarr-sharded', folder / 'kind')\n"
        "recipe = [{'do': 'set', 'file': 's.zarr/y/zarr.json', 'at': ['attributes'], 'value': {'units': 'm'}}]\n"
        "print([(f['what'], f['message'][:7]) for f in fuzzing.examine_all(kind, [recipe], folder)])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert "('changed', 'x: " in done.stdout, done.stdout + done.stderr[-2000:]
    assert "('lost', 'group/x'" in done.stdout


def test_recipes_can_be_applied_again(tmp_path: Path) -> None:
    """A recipe of the corpus that no longer fits its store tests nothing."""
    for name in {each["kind"] for each in json.loads(CORPUS.read_text())} - {"icechunk"}:
        fuzz_stores.build(name, tmp_path / name)
        held = mutants.contents(tmp_path / name)
        for each in json.loads(CORPUS.read_text()):
            if each["kind"] == name:
                assert mutants.apply(held, each["recipe"]) != held, each
