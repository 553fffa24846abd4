"""Training on several ranks: two processes, each a rank of torch.distributed, which waits for the other at each step."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from loading_samples import numbered

PROGRAM = Path(__file__).with_name("ddp_program.py")


def run_ranks(folder, workers, shuffle):
    """What both ranks found. One that waits for ever for the other is ended, which is an error."""
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder), str(rank), str(workers), json.dumps(shuffle)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=500)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this build of torch has no torch.distributed")
@pytest.mark.parametrize(
    ("workers", "shuffle"),
    [(0, True), pytest.param(0, False, marks=pytest.mark.slow), pytest.param(2, True, marks=pytest.mark.slow)],
)
def test_two_ranks_train_on_rows_of_their_own_and_resume_without_waiting_for_ever(tmp_path, workers, shuffle):
    """43 rows are 21 for each rank, six batches, the last of them of one row; one row is left over."""
    numbered(43).td.to_zarr(tmp_path / "rows.zarr", chunks={"time": 4})
    found = run_ranks(tmp_path, workers, shuffle)
    for epoch in range(3):
        of_ranks = [whole[epoch] for whole, *_ in found]
        assert [[len(batch) for batch in batches] for batches in of_ranks] == [[4, 4, 4, 4, 4, 1]] * 2
        rows = list(itertools.chain(*of_ranks[0], *of_ranks[1]))
        assert len(set(rows)) == len(rows) == 42
    for whole, before, after, chosen, everything, text in found:
        assert not shuffle or whole[0] != whole[1]
        assert before == [whole[0], whole[1][:3]]
        assert after == [whole[1][3:], whole[2]]
        assert chosen == [whole[1][:3]]  # set_epoch goes back, too
        assert everything == 11
        assert "of 2; 1 samples left over" in text


def test_ranks_that_are_given_come_before_those_of_torch(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    ds = numbered(16)
    rows = [batch["n"].tolist() for batch in ds.td.batches(8)]
    assert rows == [[8, 9, 10, 11]]
    assert len(ds.td.batches(8, rank=0, world_size=1)) == len(ds.td.batches(8, world_size=1)) == 2
    with pytest.raises(ValueError, match="every rank must be given the same seed"):
        ds.td.batches(8, shuffle=True)
