"""Writes where there is too little room; a process of its own, since HDF5 and memory maps have been seen to crash it.

``full_disk_writers.py WRITER FOLDER limited`` writes below several limits of the size of a file, the last one large
enough, and prints what came of it; ``full_disk_writers.py WRITER FOLDER full`` writes to a disk that is full soon.
"""

import gc
import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import xarray_tensordict  # noqa: F401 - registers ds.td

LIMITS = 5


def dataset(value: int, *, lazy: bool = False, rows: int = 4) -> xr.Dataset:
    random = np.random.default_rng(value)
    ds = xr.Dataset(
        {
            "x": (("time", "f"), random.random((rows, 40000))),
            "y": ("time", np.full(rows, value)),
            "text": ("time", np.array([f"text {value}" * 9] * rows, object)),
            "packed": (("time", "f"), random.random((rows, 40000))),
            "word": "hello",
        },
        attrs={"title": "a" * 300},
    )
    ds["packed"].encoding = {"zlib": True, "chunksizes": (2, 500)}
    return ds.chunk(time=1) if lazy else ds


def more(ds: xr.Dataset) -> xr.Dataset:
    return ds.rename({name: f"{name}2" for name in (*ds.data_vars, "time")})


def to_object(path: Path, ds: xr.Dataset) -> None:
    with path.open("w+b", buffering=0) as file:
        ds.td.to_h5(file)


WRITERS: dict[str, Callable[[Path, xr.Dataset], Any]] = {
    "new": lambda path, ds: ds.td.to_h5(path),
    "new_netcdf": lambda path, ds: ds.td.to_h5(path, layout="xarray"),
    "append": lambda path, ds: ds.td.to_h5(path, append_dim="time"),
    "append_netcdf": lambda path, ds: ds.td.to_h5(path, append_dim="time"),
    "add": lambda path, ds: more(ds).td.to_h5(path, mode="a"),
    "add_netcdf": lambda path, ds: more(ds).td.to_h5(path, mode="a", layout="xarray"),
    "object": to_object,
    "memmap": lambda path, ds: ds.td.to_memmap(path),
    "archive.tdz": lambda path, ds: ds.td.to_memmap(path),
}


def old(writer: str, path: Path) -> None:
    """What is there before."""
    if writer in {"memmap", "archive.tdz"}:
        dataset(0).td.to_memmap(path)
    elif writer != "object":
        layout = "xarray" if writer.endswith("netcdf") else "tensordict"
        dataset(0).td.to_h5(path, layout=layout, unlimited_dims=["time"])


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def attempt(writer: str, folder: Path, ds: xr.Dataset, limit: int = resource.RLIM_INFINITY) -> dict[str, Any]:
    before = content(folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    error = None
    try:
        WRITERS[writer](folder / writer, ds)
    except OSError as found:
        error = str(found)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    gc.collect()
    return {"error": error, "same": content(folder) == before}


def full(writer: str, folder: Path) -> None:
    for lazy in (False, True):
        tell(attempt(writer, folder, dataset(1, lazy=lazy, rows=40)))


def limited(writer: str, folder: Path) -> None:
    path = folder / writer
    before = path.read_bytes() if path.exists() else b""
    for lazy in (False, True):
        renew(path, before)
        WRITERS[writer](path, dataset(1, lazy=lazy))
        with xr.open_dataset(path, engine="tensordict") as ds:
            expected = ds.load()
        whole = path.stat().st_size
        start = len(before) + 1 if writer.startswith(("append", "add")) else 1
        for limit in (*np.linspace(start, whole - 1, LIMITS).astype(int).tolist(), 2 * whole):
            renew(path, before)
            told = attempt(writer, folder, dataset(1, lazy=lazy), limit)
            if told["error"] is None:
                with xr.open_dataset(path, engine="tensordict") as ds:
                    told["whole"] = ds.load().identical(expected)
            tell(told)


def renew(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    if content:
        path.write_bytes(content)


def tell(told: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    writer, folder = sys.argv[1], Path(sys.argv[2])
    old(writer, folder / writer)
    limited(writer, folder) if "limited" in sys.argv else full(writer, folder)
