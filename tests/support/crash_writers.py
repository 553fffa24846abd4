"""Writers that are killed on the way: run as a script, it forks a process for each write that it is told of.

The forks start with everything imported. A write is told as JSON, one line on stdin: the name of the write, its folder,
and when to end it: before its N-th change of a file or folder (a number), after some seconds (a float), or never.
"""

import importlib
import json
import os
import pkgutil
import signal
import sys
import threading
import time
from pathlib import Path

import dask
import numpy as np
import xarray as xr

import xarray_tensordict

ROWS = 6


def dataset(offset: int = 0, rows: int = ROWS) -> xr.Dataset:
    """Numbers, strings, a nested entry, a coordinate of the batch and a mask that has none of it."""
    base = np.arange(rows * 4, dtype="f4").reshape(rows, 4) + 1 + offset
    return xr.Dataset(
        {
            "obs": (("time", "f"), base),
            "next/obs": (("time", "f"), base + 0.5),
            "done": ("time", base[:, 0] % 2 == 0),
            "text": ("time", np.array([f"row {offset + row}" for row in range(rows)], object)),
            "mask": ("f", np.array([1.0, 0.0, 1.0, 0.0]) + offset),
        },
        coords={"time": np.arange(rows) + offset + 1},
    ).td.set_batch_dims("time")


def lazy(ds: xr.Dataset) -> xr.Dataset:
    return ds.chunk(time=2)


NEW = 100


def create(folder: Path) -> None:
    lazy(dataset(NEW)).td.to_zarr(folder / "out.zarr")


def replace(folder: Path) -> None:
    lazy(dataset(NEW)).td.to_zarr(folder / "out.zarr", mode="w")


def replace_xarray(folder: Path) -> None:
    lazy(dataset(NEW)).td.to_zarr(folder / "out.zarr", mode="w", layout="xarray", zarr_format=2)


def group(folder: Path) -> None:
    lazy(dataset(NEW)).td.to_zarr(folder / "out.zarr", mode="w", group="train")


def append(folder: Path) -> None:
    lazy(added()).td.to_zarr(folder / "out.zarr", append_dim="time")


def append_xarray(folder: Path) -> None:
    append(folder)


def append_in_memory(folder: Path) -> None:
    added().td.to_zarr(folder / "out.zarr", append_dim="time")


def added() -> xr.Dataset:
    return dataset(ROWS).drop_vars("mask")


def add(folder: Path) -> None:
    ds = dataset()
    lazy(xr.Dataset({"speed": ds["obs"] * 2, "next/speed": ds["obs"] * 3})).td.to_zarr(folder / "out.zarr", mode="a")


def overwrite(folder: Path) -> None:
    lazy(dataset(NEW)).td.to_zarr(folder / "out.zarr", mode="a")


def delayed(folder: Path) -> None:
    lazy(dataset(NEW)).td.to_zarr(folder / "out.zarr", compute=False).compute()


def archive(folder: Path) -> None:
    lazy(dataset(NEW)).td.to_zarr(folder / "out.zarr.zip", mode="w")


def hdf5(folder: Path) -> None:
    lazy(dataset(NEW)).td.to_h5(folder / "out.h5")


def hdf5_add(folder: Path) -> None:
    ds = dataset()
    lazy(xr.Dataset({"speed": ds["obs"] * 2, "next/speed": ds["obs"] * 3})).td.to_h5(folder / "out.h5", mode="a")


def hdf5_append(folder: Path) -> None:
    lazy(added()).td.to_h5(folder / "out.h5", append_dim="time")


def netcdf(folder: Path) -> None:
    lazy(dataset(NEW)).td.to_h5(folder / "out.h5", layout="xarray")


def memmap(folder: Path) -> None:
    lazy(dataset(NEW).drop_vars("mask")).td.to_memmap(folder / "out")


def memmap_archive(folder: Path) -> None:
    lazy(dataset(NEW).drop_vars("mask")).td.to_memmap(folder / "out.tdz")


def region(folder: Path) -> None:
    for start in range(0, ROWS, 2):
        part = lazy(dataset(NEW)).isel(time=slice(start, start + 2)).drop_vars("mask")
        part.td.to_zarr(folder / "out.zarr", region={"time": slice(start, start + 2)})


WRITES = (
    create, replace, replace_xarray, group, append, append_xarray, append_in_memory, add, overwrite, delayed, archive,
    hdf5, hdf5_add, hdf5_append, netcdf, memmap, memmap_archive, region,
)  # fmt: skip


def run(name: str, folder: Path, end: int | float | None) -> None:
    """Do one write, and die on the way; the number of changes that were made goes to a file when it is whole."""
    write = {function.__name__: function for function in WRITES}[name]
    if isinstance(end, float):
        threading.Thread(target=lambda: (time.sleep(end), os.kill(os.getpid(), signal.SIGKILL)), daemon=True).start()
    else:
        _end_before(end, folder)
    with dask.config.set(scheduler="synchronous"):
        write(folder)


changes = 0


def _end_before(number: int | None, folder: Path) -> None:
    inside = os.fspath(folder)

    def watch(event: str, arguments: tuple) -> None:
        global changes
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if not writes and event not in {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate"}:
            return
        if not str(arguments[0]).startswith(inside) and event in {"open", "os.mkdir", "os.rename"}:
            return
        if number is not None and changes == number:
            os.kill(os.getpid(), signal.SIGKILL)
        changes += 1

    sys.addaudithook(watch)


def import_everything() -> None:
    """What a write would import, so that the forks need not."""
    found = [module.name for module in pkgutil.walk_packages(xarray_tensordict.__path__, "xarray_tensordict.")]
    wanted = [name for name in found if not name.endswith("__main__")]
    for name in [*wanted, "dask.array", "dask.distributed", "h5netcdf", "tensordict.persistent"]:
        importlib.import_module(name)


def main() -> None:
    import_everything()
    for line in sys.stdin:
        name, folder, end = json.loads(line)
        started = time.monotonic()
        child = os.fork()
        if not child:
            status = 1
            try:
                run(name, Path(folder), end)
                status = 0
            except BaseException as error:
                sys.stderr.write(f"{type(error).__name__}: {error}\n")
            finally:
                sys.stdout.write(f"changes {changes}\n")
                sys.stdout.flush()
                os._exit(status)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.stdout.write(f"seconds {time.monotonic() - started}\nended {code}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
