"""A writer is killed on the way: afterwards there is nothing, the old store, the new one, or one that says it is not whole."""

import json
import random
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import dask
import numpy as np
import pytest
import xarray as xr
from tensordict import TensorDict

import crash_writers
from crash_writers import NEW, ROWS, dataset, lazy
from xarray_tensordict import open_persistent
from xarray_tensordict.testing import assert_same_tensordict

pytestmark = pytest.mark.faults

SIGKILL = -9
INCOMPLETE = "not complete"
BARE = {"create", "replace", "append", "append_in_memory", "add", "overwrite", "delayed", "region"}
"""Writes to what plain tensordict reads: a zarr store, at its root, in tensordict's layout."""
AGAIN = {
    "replace",
    "replace_xarray",
    "group",
    "add",
    "overwrite",
    "archive",
    "hdf5",
    "netcdf",
    "memmap",
    "memmap_archive",
    "region",
}
"""Writes that may be made again over what a killed one has left."""


class Writers:
    """The process that forks the writers, see `crash_writers`."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, crash_writers.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, name: str, folder: Path, end: float | None = None) -> dict[str, float]:
        """Do one write; returns how it "ended", its "seconds", and how many "changes" it made if it was not killed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([name, str(folder), end]), file=self.process.stdin, flush=True)
        told: dict[str, float] = {}
        for line in self.process.stdout:
            word, number = line.split()
            told[word] = float(number)
            if word == "ended":
                return told
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
    if name in {"replace", "replace_xarray", "append", "append_in_memory", "add", "overwrite"}:
        # for "append" the last chunk is whole; for the others rows are added to it
        ds.td.to_zarr(folder / "out.zarr", chunks={"time": 2 if name == "append" else 4})
    elif name == "append_xarray":
        ds.td.to_zarr(folder / "out.zarr", chunks={"time": 4}, layout="xarray", zarr_format=2)
    elif name == "group":
        ds.td.to_zarr(folder / "out.zarr", group="train")
        ds.td.to_zarr(folder / "out.zarr", group="test")
    elif name == "archive":
        ds.td.to_zarr(folder / "out.zarr.zip")
    elif name in {"hdf5", "hdf5_add", "hdf5_append"}:
        ds.encoding["unlimited_dims"] = {"time"}
        ds.td.to_h5(folder / "out.h5")
    elif name == "netcdf":
        ds.td.to_h5(folder / "out.h5", layout="xarray")
    elif name in {"memmap", "memmap_archive"}:
        ds.drop_vars("mask").td.to_memmap(folder / ("out" if name == "memmap" else "out.tdz"))
    elif name == "region":
        lazy(dataset(NEW)).td.to_zarr(folder / "out.zarr", compute=False, chunks={"time": 2})


def opened(name: str, folder: Path) -> xr.Dataset | str:
    """What the engine opens, through both libraries; or why it does not, or what it warns of."""
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
    if name == "group":
        with xr.open_dataset(folder / "out.zarr", engine="tensordict", group="test") as other:
            xr.testing.assert_identical(other.load(), dataset().assign_coords(other.coords))
    found = opened(name, folder)
    if isinstance(found, str):
        assert found in states or INCOMPLETE in found, found
        return "absent" if found == "absent" else "told"
    for state, label in zip(states, ("old", "new"), strict=True):
        if isinstance(state, xr.Dataset) and found.identical(state):
            if name in BARE:
                check_bare(folder / "out.zarr", found)
            return label
    raise AssertionError(f"neither the old store nor the new one: {found}")


def check_bare(path: Path, ds: xr.Dataset) -> None:
    """What passes for whole in this package does so for plain tensordict."""
    with warnings.catch_warnings():
        # a file that zarr writes before it renames it, which the killed writer has left
        warnings.filterwarnings("ignore", message=".*partial is not recognized as a component")
        bare = TensorDict.from_zarr(path)
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
        told = writers.run(name, self.copy("after"))
        assert told["ended"] == 0
        self.changes, self.seconds = int(told["changes"]), told["seconds"]
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
        assert self.writers.run(self.name, folder, end)["ended"] in {0, SIGKILL}
        found = check(self.name, folder, self.states)
        assert all(self._tells_what_it_is(left) for left in leftovers(folder))
        if self.name in AGAIN:
            assert self.writers.run(self.name, folder)["ended"] == 0
            assert check(self.name, folder, self.states) == "new"
        shutil.rmtree(folder)
        return found

    @staticmethod
    def _tells_what_it_is(left: str) -> bool:
        """Hidden, and named after what it was to become."""
        return left.startswith(".out") and (".tmp" in left or ".old" in left)


@pytest.fixture(scope="module")
def target(writers: Writers, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Target]:
    made: dict[str, Target] = {}

    def of(name: str) -> Target:
        if name not in made:
            made[name] = Target(name, writers, tmp_path_factory.mktemp(name))
        return made[name]

    return of


NAMES = [write.__name__ for write in crash_writers.WRITES]


@pytest.mark.parametrize("name", ["create", "append", "region", "archive", "hdf5_add", "memmap", "memmap_archive"])
def test_killed_at_a_few_points(target: Callable[[str], Target], name: str) -> None:
    changes = target(name).changes
    points = sorted({changes // 3, 2 * changes // 3, changes - 1})
    found = [target(name).killed(f"at {point}", point) for point in points]
    assert found != ["new"] * len(points)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_killed_before_a_change_of_a_file(target: Callable[[str], Target], name: str) -> None:
    """All along the write, and before each of the last changes, when a store becomes a whole one."""
    changes = target(name).changes
    for point in sorted({*(changes * part // 8 for part in range(8)), *range(max(0, changes - 5), changes)}):
        target(name).killed(f"before {point}", point)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(50))
def test_killed_fifty_times_at_random_moments(target: Callable[[str], Target], number: int) -> None:
    writer = target(NAMES[number % len(NAMES)])
    moment = random.Random(number).uniform(0.0, writer.seconds)
    writer.killed(f"moment {number}", moment)


@pytest.mark.slow
def test_regions_complete_a_template_whose_writer_was_killed(writers: Writers, tmp_path: Path) -> None:
    prepare("region", tmp_path)
    assert isinstance(opened("region", tmp_path), str)
    for end in (3, 10, 20):
        writers.run("region", tmp_path, end)
    assert writers.run("region", tmp_path)["ended"] == 0
    with xr.open_dataset(tmp_path / "out.zarr", engine="tensordict") as found:
        xr.testing.assert_identical(found.load(), dataset(NEW).assign_coords(found.coords))
        np.testing.assert_array_equal(found["time"], np.arange(ROWS) + NEW + 1)


def test_another_write_does_not_make_an_incomplete_store_pass_for_a_whole_one(tmp_path: Path) -> None:
    prepare("region", tmp_path)
    before = opened("region", tmp_path)
    ds = dataset(NEW)
    with pytest.raises(ValueError, match=f"{INCOMPLETE}.*Nothing else is written"):
        xr.Dataset({"speed": ds["obs"]}).td.to_zarr(tmp_path / "out.zarr", mode="a")
    assert opened("region", tmp_path) == before


def test_an_overwrite_that_fails_half_way_reports_it(tmp_path: Path) -> None:
    prepare("overwrite", tmp_path)
    ds = lazy(dataset(NEW))
    broken = ds.assign(done=(("time",), ds["done"].data.map_blocks(_fails, dtype=bool, meta=np.zeros(0, bool))))
    with pytest.raises(RuntimeError, match="no such block"), dask.config.set(scheduler="synchronous"):
        broken.td.to_zarr(tmp_path / "out.zarr", mode="a")
    told = opened("overwrite", tmp_path)
    assert isinstance(told, str)
    assert INCOMPLETE in told
    ds.td.to_zarr(tmp_path / "out.zarr", mode="a")
    found = opened("overwrite", tmp_path)
    assert isinstance(found, xr.Dataset)
    np.testing.assert_array_equal(found["obs"], dataset(NEW)["obs"])
    np.testing.assert_array_equal(found["mask"], dataset(NEW)["mask"])


def _fails(block: np.ndarray) -> np.ndarray:
    raise RuntimeError("no such block")
