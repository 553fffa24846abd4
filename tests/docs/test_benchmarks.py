"""The benchmarks run; what they find is nobody's business here."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("area", ["loading", "opening", "reading", "far"])
def test_each_area_fills_its_rows(area, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    if area == "loading":
        pytest.importorskip("xbatcher", reason="the benchmarks of loading compare with xbatcher")
    from benchmarks.__main__ import ALONE, AREAS, measure
    from benchmarks.jobs import TINY, table

    assert area in AREAS + ALONE
    done = measure([area], TINY, 1)
    assert all(set(job.times) == set(job.sides) and min(job.times.values()) > 0 for job in done)
    tables = [text.splitlines() for text in table(done).split("\n\n")]
    assert sum(len(lines) - 2 for lines in tables) == len(done)
    assert all(len({line.count("|") for line in lines}) == 1 for lines in tables)
    sys.modules.pop("benchmarks", None)


def test_the_tables_of_a_page_are_replaced_and_the_rest_stays(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.__main__ import write_into

    page = tmp_path / "page.md"
    page.write_text("before\n<!-- benchmarks -->\n\nold\n\n<!-- end of benchmarks -->\nafter\n")
    for text in ("new", "newer"):
        write_into(page, text)
    assert page.read_text() == "before\n<!-- benchmarks -->\n\nnewer\n\n<!-- end of benchmarks -->\nafter\n"
