"""A writer is killed on the way: afterwards there is nothing, the old store, the new one, or one that says it is not whole."""

import json
import random
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from tensordict import TensorDict

import crash_writers
from crash_writers import NEW, ROWS, dataset, lazy
from xarray_tensordict import open_persistent
from xarray_tensordict.testing import assert_same_tensordict

SIGKILL = -9
INCOMPLETE = "not complete|incomplete"


class Writers:
    """The process that forks the writers, see `crash_writers`."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, crash_writers.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, name: str, folder: Path, end: float | None = None) -> tuple[int, int]:
        """Do one write; returns its exit code, and how many changes it made if it was not killed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([name, str(folder), end]), file=self.process.stdin, flush=True)
        changes = -1
        for line in self.process.stdout:
            word, number = line.split()
            if word == "ended":
                return int(number), changes
            changes = int(number)
        raise AssertionError("the process that forks the writers has ended")

    def close(self) -> None:
        self.process.communicate(timeout=60)


@pytest.fixture(scope="module")
def writers() -> Iterator[Writers]:
    found = Writers()
    yield found
    found.close()


def prepare(name: str, folder: Path) -> None:
    """What is there before the write."""
    ds = dataset()
    if name in {"replace", "replace_xarray", "append", "append_in_memory", "add"}:
        # for "append" the last chunk is whole; for the others rows are added to it
        ds.td.to_zarr(folder / "out.zarr", chunks={"time": 2 if name == "append" else 4})
    elif name == "group":
        ds.td.to_zarr(folder / "out.zarr", group="train")
        ds.td.to_zarr(folder / "out.zarr", group="test")
    elif name == "archive":
        ds.td.to_zarr(folder / "out.zarr.zip")
    elif name in {"hdf5", "hdf5_add"}:
        ds.td.to_h5(folder / "out.h5")
    elif name == "netcdf":
        ds.td.to_h5(folder / "out.h5", layout="xarray")
    elif name == "memmap":
        ds.drop_vars("mask").td.to_memmap(folder / "out")
    elif name == "region":
        lazy(dataset(NEW)).td.to_zarr(folder / "out.zarr", compute=False, chunks={"time": 2})


def opened(name: str, folder: Path) -> xr.Dataset | str:
    """What the engine opens, through both doors; or why it does not, or what it warns of."""
    path = next(folder.glob("out*"), None)
    if path is None:
        return "absent"
    keywords = {"group": "train"} if name == "group" else {}
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with xr.open_dataset(path, engine="tensordict", **keywords) as ds, open_persistent(path, **keywords) as ptd:
                assert_same_tensordict(ds.td.to_tensordict(), ptd.to_tensordict())
                ds.load()
    except (OSError, ValueError, KeyError) as error:
        return str(error)
    said = [str(warning.message) for warning in told if issubclass(warning.category, UserWarning)]
    return said[0] if said else ds


def check(name: str, folder: Path, states: list[xr.Dataset | str]) -> str:
    """Whether the target is in one of the states that it may be in; returns which."""
    found = opened(name, folder)
    if isinstance(found, str):
        assert found in states or any(word in found for word in INCOMPLETE.split("|")), found
        return "absent" if found == "absent" else "told"
    for state, label in zip(states, ("old", "new"), strict=True):
        if isinstance(state, xr.Dataset) and found.identical(state):
            _check_bare(name, folder, found)
            return label
    raise AssertionError(f"neither the old store nor the new one: {found}")


def _check_bare(name: str, folder: Path, ds: xr.Dataset) -> None:
    """What passes for whole in this package does so for bare tensordict."""
    if name in {"replace", "append", "append_in_memory", "create", "add", "delayed"}:
        bare = TensorDict.from_zarr(folder / "out.zarr")
        assert tuple(bare.batch_size) == ds.td.batch_size
        np.testing.assert_array_equal(bare["obs"].numpy(), ds["obs"].values)


def leftovers(folder: Path) -> list[str]:
    return [child.name for child in folder.iterdir() if not child.name.startswith("out")]


class Target:
    """A folder with what is there before a write, and the two states that it may be in."""

    def __init__(self, name: str, writers: Writers, folder: Path) -> None:
        self.name, self.writers, self.folder = name, writers, folder
        (folder / "before").mkdir()
        prepare(name, folder / "before")
        before = opened(name, folder / "before")
        code, self.changes = writers.run(name, self.copy("after"))
        assert code == 0
        after = opened(name, folder / "after")
        assert isinstance(after, xr.Dataset), after
        assert leftovers(folder / "after") == []
        self.states = [before, after]

    def copy(self, label: str) -> Path:
        shutil.copytree(self.folder / "before", self.folder / label)
        return self.folder / label

    def killed(self, label: str, end: float) -> str:
        """Kill the writer, look, and write again: what a killed one has left is not in the way."""
        folder = self.copy(label)
        code, _ = self.writers.run(self.name, folder, end)
        assert code in {0, SIGKILL}
        found = check(self.name, folder, self.states)
        assert all(self._tells_what_it_is(left) for left in leftovers(folder))
        if self.name in {"replace", "replace_xarray", "group", "archive", "hdf5", "netcdf", "memmap", "region"}:
            assert self.writers.run(self.name, folder)[0] == 0
            assert check(self.name, folder, self.states) == "new"
        shutil.rmtree(folder)
        return found

    @staticmethod
    def _tells_what_it_is(left: str) -> bool:
        """Hidden, and named after what it was to become."""
        return left.startswith(".out") and (".tmp" in left or ".old" in left)


NAMES = [write.__name__ for write in crash_writers.WRITES]


@pytest.mark.parametrize("name", ["create", "replace", "append", "region", "archive", "hdf5_add"])
def test_killed_at_a_few_points(writers: Writers, tmp_path: Path, name: str) -> None:
    target = Target(name, writers, tmp_path)
    points = sorted({target.changes // 3, 2 * target.changes // 3, target.changes - 1})
    found = [target.killed(f"at {point}", point) for point in points]
    assert found != ["new"] * len(points)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_killed_before_every_change(writers: Writers, tmp_path: Path, name: str) -> None:
    target = Target(name, writers, tmp_path)
    step = max(1, target.changes // 40)
    for point in {*range(0, target.changes, step), *range(max(0, target.changes - 8), target.changes)}:
        target.killed(f"at {point}", point)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_killed_fifty_times_at_random_moments(writers: Writers, tmp_path: Path, name: str) -> None:
    target = Target(name, writers, tmp_path)
    moments = random.Random(name)
    for number in range(50):
        target.killed(str(number), moments.uniform(0.0, 0.4))


@pytest.mark.slow
def test_regions_complete_a_template_whose_writer_was_killed(writers: Writers, tmp_path: Path) -> None:
    prepare("region", tmp_path)
    assert isinstance(opened("region", tmp_path), str)
    for end in (3, 10, 20):
        writers.run("region", tmp_path, end)
    assert writers.run("region", tmp_path)[0] == 0
    with xr.open_dataset(tmp_path / "out.zarr", engine="tensordict") as found:
        xr.testing.assert_identical(found.load(), dataset(NEW).assign_coords(found.coords))
        np.testing.assert_array_equal(found["time"], np.arange(ROWS) + NEW + 1)
