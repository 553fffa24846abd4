"""``xarray-tensordict bench``: every format, the command that it proposes, and what has no batch."""

import json
import shlex

import h5py
import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from click.testing import CliRunner
from tensordict import TensorDict

from xarray_tensordict.command_line.app import main
from xarray_tensordict.command_line.commands import Bench
from xarray_tensordict.loading.stats import Stats


def run(*arguments, code=0):
    result = CliRunner().invoke(main, ["bench", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    ds = xr.Dataset(
        {"x": (("time", "f"), np.zeros((600, 64), "f4")), "y": ("time", np.arange(600)), "lat": ("f", np.arange(64.0))}
    )
    ds.td.to_zarr(folder / "run.zarr", encoding={"x": {"chunks": (20, 16)}})
    ds.td.to_h5(folder / "run.h5")
    ds.td.to_memmap(folder / "run")
    xr.Dataset({"lat": ("lat", np.zeros(3)), "gain": ((), 1.0)}).td.to_zarr(folder / "lat.zarr")
    return folder


KINDS = {
    "run.zarr": ["--chunk time=600 --chunk f=64", "--to memmap"],
    "run.h5": ["--chunk time=600", "--to memmap"],
    "run": ["--chunk time=600"],
}


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_epoch_reads_the_rows_that_there_was_time_for(stores, name):
    found = json.loads(run(stores / name, "--seconds", 1e-9, "--batch-size", 100, "--json"))
    assert list(found["runs"]) == ["in order", "shuffled", "second epoch, kept chunks", *KINDS[name]]
    assert (found["rows"], found["total"], found["notes"]) == (100, 600, [])  # there was time for one batch
    assert {stats["samples"] for stats in found["runs"].values()} == {100}


ARRAYS = {"observations": (90, 17), "actions": (90, 6), "rewards": (90,), "terminals": (90,)}


@pytest.fixture(scope="module")
def nameless(tmp_path_factory):
    """Stores of other people, whose axes have no names."""
    folder = tmp_path_factory.mktemp("nameless")
    with h5py.File(folder / "d4rl.h5", "w") as file:
        for group in ("", "train/", "a/b/"):
            for name, shape in ARRAYS.items():
                file[group + name] = np.ones(shape, "f4")
    for version in (2, 3):
        root = zarr.open_group(folder / f"zarr{version}", mode="w", zarr_format=version)
        for name, shape in ARRAYS.items():
            root.create_array(name, data=np.ones(shape, "f4"))
    td = TensorDict({name: torch.ones(shape) for name, shape in ARRAYS.items()}, [90])
    td.memmap(folder / "memmap")
    wide = TensorDict({"obs": torch.ones(90, 4, 17), "next": {"reward": torch.ones(90, 4, 1)}}, [90, 4])
    wide.to_h5(folder / "wide.h5").close()
    wide.memmap(folder / "wide")
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ["d4rl.h5"],
        ["d4rl.h5", "--group", "train"],
        ["d4rl.h5", "--group", "a/b", "--batch-dims", "1"],
        ["d4rl.h5", "--batch-dims", "step"],
        ["zarr2"],
        ["zarr3"],
        ["zarr3", "--batch-dims", "step"],
        ["memmap"],
        ["wide.h5"],
        ["wide"],
    ],
    ids=" ".join,
)
def test_stores_without_names_of_dims_are_copied_and_read_as_others(nameless, arguments):
    store, *more = arguments
    found = json.loads(run(nameless / store, *more, "--seconds", 1e-9, "--batch-size", 50, "--json"))
    copies = [name for name in found["runs"] if name.startswith("--")]
    assert len(copies) == (1 if store in ("memmap", "wide") else 2)
    assert {stats["samples"] for stats in found["runs"].values()} == {50}
    assert (found["total"], found["notes"]) == (90, [])


def test_the_table_fits_into_80_columns_and_names_the_store(stores):
    lines = run("file://" + str(stores / "run.zarr"), "--seconds", 1e-9).splitlines()
    assert lines[0] == "file://" + str(stores / "run.zarr")
    assert lines[1] == "256 of 600 rows, 66.0 KiB, in batches of 256"
    assert max(map(len, lines[1:9])) <= 80
    assert not list(stores.glob("*-*"))  # copies are made elsewhere


def test_a_copy_is_proposed_where_it_is_faster_with_the_command_that_writes_it(stores, tmp_path):
    def advice(batches=4, **rates):
        runs = {
            name.replace("_", " "): Stats(batches=batches, samples=rate, waiting=1.0) for name, rate in rates.items()
        }
        return Bench(str(stores / "run.zarr"), 1, 1, 1, runs, ()).advice

    assert advice(shuffled=100, **{"--to memmap": 110, "--chunk time=4": 90}) == "None of these layouts is much faster."
    assert advice(batches=3, shuffled=100, **{"--to memmap": 900}).startswith("An epoch has fewer than 4 batches")
    found = advice(shuffled=100, **{"--to memmap": 150, "--chunk time=300 --chunk f=64": 350}).splitlines()
    assert found[0].startswith("3.5 times as fast")
    command = shlex.split(found[1])
    assert command == shlex.split(
        f"xarray-tensordict convert {stores / 'run.zarr'} run-chunked.zarr --chunk time=300 --chunk f=64"
    )
    command[3] = str(tmp_path / command[3])
    result = CliRunner().invoke(main, command[1:], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    with xr.open_dataset(tmp_path / "run-chunked.zarr", engine="tensordict") as copied:
        assert copied["x"].encoding["preferred_chunks"] == {"time": 300, "f": 64}


@pytest.mark.parametrize("seconds", ["nan", "inf"])
def test_seconds_that_are_no_number_are_refused(stores, seconds):
    assert f"--seconds: expected a positive number of seconds, found {seconds}" in run(
        stores / "run.h5", "--seconds", seconds, code=1
    )


def test_a_store_without_a_batch_is_refused_by_name(stores):
    output = run(stores / "lat.zarr", code=1)
    assert output.startswith(f"Error: {stores / 'lat.zarr'}: there are no rows for batches: ")
    assert "Pass --batch-dims" in output
    assert json.loads(run(stores / "lat.zarr", "--batch-dims", "lat", "--seconds", 1e-9, "--json"))["rows"] == 3
