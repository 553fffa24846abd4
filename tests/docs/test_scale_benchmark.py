"""The benchmark of scale goes its whole way, with few rows on one worker."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.faults

FILE = Path(__file__).parents[2] / "benchmarks" / "scale.py"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets that close while the cluster ends
def test_a_few_rows_go_from_store_to_store_and_are_read_right(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    spec = importlib.util.spec_from_file_location("scale", FILE)
    scale = importlib.util.module_from_spec(spec)
    # workers load functions of this file by its name
    monkeypatch.syspath_prepend(str(FILE.parent))
    monkeypatch.setenv("PYTHONPATH", str(FILE.parent), prepend=":")
    spec.loader.exec_module(scale)
    found = scale.run(tmp_path, megabytes=48, limit_megabytes=800, workers=1, batches=2)
    assert found["rows_checked"] == 64
    assert found["workers_lost"] == 0
    assert 0 < found["worker_peaks"][0] < 800
