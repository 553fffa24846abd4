"""A full ring buffer of torchrl, in zarr, HDF5 and as memory maps: in age order, and no window over the writer's cursor."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from tensordict import TensorDict

from xarray_tensordict import open_persistent
from xarray_tensordict.testing import assert_same_tensordict

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:torch.meshgrid:UserWarning"),
]

ROWS, STEPS = 10, 16
"""A buffer of 10 rows that took 16 steps: it holds steps 6 to 15, step 10 in its first row."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("ring")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torchrl's binaries
        data = pytest.importorskip("torchrl.data", reason="torchrl makes the checkpoint")
    buffer = data.TensorDictReplayBuffer(storage=data.LazyMemmapStorage(ROWS, scratch_dir=tmp_path / "s"), batch_size=2)
    for start in range(0, STEPS, 4):
        steps = torch.arange(start, start + 4)
        rows = TensorDict({"t": steps, "episode": steps // 8, "x": steps[:, None] * 0.5}, [4])
        rows["collector", "traj_ids"] = steps // 8
        rows["next", "done"] = (steps % 8 == 7)[:, None]
        buffer.extend(rows)
    buffer.dumps(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


@pytest.fixture(scope="module", params=["checkpoint", "zarr", "h5", "memmap"])
def ds(request: pytest.FixtureRequest, checkpoint: Path) -> xr.Dataset:
    """The buffer, or a copy of it in another form."""
    ds, target = xr.open_dataset(checkpoint, engine="tensordict"), checkpoint.parent / f"copy.{request.param}"
    if request.param == "checkpoint":
        return ds
    writers: dict[str, Any] = {"zarr": ds.td.to_zarr, "h5": ds.td.to_h5, "memmap": ds.td.to_memmap}
    writers[request.param](target)
    with open_persistent(target) as ptd:
        assert_same_tensordict(ptd.to_tensordict(), ds.td.to_tensordict())
    return xr.open_dataset(target, engine="tensordict")


def test_rows_come_in_the_order_in_which_they_were_written(ds: xr.Dataset) -> None:
    assert ds["t"].values.tolist() == list(range(STEPS - ROWS, STEPS))
    np.testing.assert_array_equal(ds["x"].values[:, 0], ds["t"].values * 0.5)
    assert ds.td.to_tensordict()["t"].tolist() == ds["t"].values.tolist()


@pytest.mark.parametrize("options", [{"within": "episode"}, {"gaps": "t"}], ids=str)
def test_no_window_joins_the_newest_row_to_the_oldest(ds: xr.Dataset, options: dict[str, Any]) -> None:
    windows = [window["t"].tolist() for batch in ds.td.batches(3, window={"batch_0": 2}, **options) for window in batch]
    across = [[7, 8]] if "gaps" in options else []
    assert windows == sorted([[6, 7], *across, *([t, t + 1] for t in range(8, STEPS - 1))])


def test_episodes_are_cut_by_the_ids_of_the_collector_which_stay_an_entry(ds: xr.Dataset) -> None:
    ds = ds.drop_vars("episode").td.concat("time")
    assert ds["episode"].values.tolist() == ds["collector/traj_ids"].values.tolist() == [0] * 2 + [1] * 8
    assert ds["step"].values.tolist() == [0, 1, *range(8)]
    assert "collector/traj_ids" in ds.data_vars
    by_flags = ds.drop_vars(["episode", "step", "collector/traj_ids"]).td.concat("time")
    assert by_flags["step"].values.tolist() == ds["step"].values.tolist()


def test_rows_as_they_are_stored_are_no_neighbours_over_the_cursor(checkpoint: Path) -> None:
    """``filled=False`` shows the storage itself: the step says where the newest row meets the oldest."""
    ds = xr.open_dataset(checkpoint, engine="tensordict", filled=False)
    stored = ds["t"].values.tolist()
    assert stored == [*range(10, 16), *range(6, 10)]
    windows = [w["t"].tolist() for batch in ds.td.batches(3, window={"batch_0": 2}, gaps="t") for w in batch]
    assert [15, 6] not in windows
    assert len(windows) == 8
