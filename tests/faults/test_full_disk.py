"""A disk that is full is told of by name: what was there is as it was, nothing is left over, and the process lives on."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr

from xarray_tensordict.testing import assert_same_tensordict

pytestmark = pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="blocks cannot be taken from the disk")

SCRIPT = Path(__file__).parents[1] / "support" / "full_disk_writers.py"
HDF5 = ["new", "new_netcdf", "append", "append_netcdf", "add", "add_netcdf"]


def written(writer: str, folder: Path, how: str) -> list[dict[str, Any]]:
    """What a process told that wrote and came to its end."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), writer, str(folder), how], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "Exception ignored" not in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "writer", [pytest.param(name, marks=[pytest.mark.slow] * name.endswith("netcdf")) for name in [*HDF5, "object"]]
)
def test_a_file_that_may_not_become_as_large(tmp_path: Path, writer: str) -> None:
    told = written(writer, tmp_path, "limited")
    assert len(told) == 12
    for each in (told[5], told[11]):
        assert each["error"] is None
        assert each["whole"]
    for each in (*told[:5], *told[6:11]):
        assert "File too large" in each["error"]
        assert each["same"] or writer == "object"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 6 MiB, where this process may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("writer", [*HDF5, "memmap", "archive.tdz"])
def test_a_full_disk(small_disk: Path, writer: str) -> None:
    told = written(writer, small_disk, "full")
    assert len(told) == 2  # from memory, and from dask
    for each in told:
        assert "No space left on device" in each["error"]
        assert str(small_disk / writer) in each["error"]
        assert each["same"]


@pytest.mark.parametrize("name", ["a", "a.tdz"])
@pytest.mark.parametrize("compute", [True, False])
def test_a_memory_map_has_its_blocks_before_values_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, compute: bool
) -> None:
    ds = xr.Dataset({"x": (("time", "f"), np.ones((4, 1000)))})
    ds.td.to_memmap(tmp_path / name)

    def full(number: int, start: int, length: int) -> None:
        if length == ds["x"].nbytes:
            raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=f"No space left on device: .*{name}'"):
        (ds + 1).td.to_memmap(tmp_path / name, compute=compute)
    assert os.listdir(tmp_path) == [name]
    with xr.open_dataset(tmp_path / name, engine="tensordict") as found:
        assert_same_tensordict(found.td.to_tensordict(), ds.td.to_tensordict())


def test_file_systems_that_cannot_take_blocks_are_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(number: int, start: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "posix_fallocate", cannot)
    ds = xr.Dataset({"x": ("time", np.arange(4.0))})
    ds.td.to_h5(tmp_path / "a.h5")
    ds.td.to_memmap(tmp_path / "a")
    for name in ("a", "a.h5"):
        with xr.open_dataset(tmp_path / name, engine="tensordict") as found:
            xr.testing.assert_equal(found.load(), ds)


@pytest.mark.parametrize("layout", ["tensordict", "xarray"])
def test_an_hdf5_file_keeps_no_blocks_that_it_does_not_use(tmp_path: Path, layout: Any) -> None:
    ds = xr.Dataset({"x": (("time", "f"), np.ones((4, 1000)))}).chunk(time=1)
    ds.td.to_h5(tmp_path / "a.h5", layout=layout, unlimited_dims=["time"])
    ds.td.to_h5(tmp_path / "a.h5", append_dim="time")
    with h5py.File(tmp_path / "a.h5") as file:
        assert os.path.getsize(tmp_path / "a.h5") == file.id.get_filesize()
        assert os.path.getsize(tmp_path / "a.h5") < 2 * ds.nbytes + 30_000
