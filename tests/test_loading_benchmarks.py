"""The benchmarks of training loops run, on few rows; nothing is said of how fast."""

from pathlib import Path

import pytest

pytest.importorskip("xbatcher", reason="the benchmarks compare with xbatcher")
ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_every_side_of_every_job_gives_rows(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import loading

    table = list(loading.measure(rows=512, repeats=1))
    assert len(table) == 25
    assert all(speed > 0 and xbatcher > 0 and hand > 0 for _, _, speed, xbatcher, hand in table)
