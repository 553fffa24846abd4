"""The benchmarks of training loops run, on few rows; nothing is said of how fast."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("xbatcher", reason="the benchmarks compare with xbatcher")
PATH = Path(__file__).parent.parent / "benchmarks" / "loading.py"


@pytest.mark.slow
def test_every_side_of_every_job_gives_rows():
    spec = importlib.util.spec_from_file_location("loading_benchmarks", PATH)
    benchmarks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmarks)
    table = list(benchmarks.measure(rows=512, repeats=1))
    assert len(table) == 25
    assert all(speed > 0 and xbatcher > 0 and hand > 0 for _, _, speed, xbatcher, hand in table)
