"""What ``to_tensordict`` takes of memory: each tensor once."""

import subprocess
import sys
from pathlib import Path

import dask.array
import numpy as np
import pytest
import torch
import xarray as xr

import xarray_tensordict  # noqa: F401 - ds.td

STORES = {
    "zarr raw": """
group = zarr.create_group(path)
for name in names:
    group.create_array(name, data=values(), chunks=values().shape, compressors=None)
""",
    "zarr in chunks": """
group = zarr.create_group(path)
for name in names:
    group.create_array(name, data=values(), chunks=(256, 1600))
""",
    "HDF5 contiguous": """
with h5py.File(path, "w") as file:
    for name in names:
        file[name] = values()
""",
    "HDF5 compressed": """
with h5py.File(path, "w") as file:
    for name in names:
        file.create_dataset(name, data=values(), chunks=(256, 1600), compression="gzip", compression_opts=1)
""",
    "memmap": """
TensorDict({name: torch.from_numpy(values()) for name in names}, [32768 // count]).memmap(path)
""",
}

PACKED = "scale_factor=0.5, add_offset=1.0, _FillValue=5"
LAZILY_DECODED = {
    "zarr v3 packed, raw": f"""
stored = zarr.create_group(path).create_array("x0", data=values().astype("i2"), chunks=values().shape, compressors=None)
stored.attrs.update({PACKED})
""",
    "zarr v2 packed, in chunks": f"""
stored = zarr.create_group(path, zarr_format=2).create_array("x0", data=values().astype("i2"), chunks=(256, 1600))
stored.attrs.update({PACKED})
""",
    "zarr v2 big-endian": """
group = zarr.create_group(path, zarr_format=2)
group.create_array("x0", data=values().astype(">f4"), chunks=values().shape, compressors=None)
""",
    "zarr v3 columns": """
zarr.create_group(path).create_array("x0", data=values(), chunks=(256, 400), compressors=None)
""",
    "zarr v3 one chunk of gzip": """
zarr.create_group(path).create_array("x0", data=values(), chunks=values().shape, compressors=zarr.codecs.GzipCodec(level=1))
""",
    "zarr v2 one chunk of blosc": """
group = zarr.create_group(path, zarr_format=2)
group.create_array("x0", data=values(), chunks=values().shape, compressors=numcodecs.Blosc())
""",
    "zarr v3 one chunk of zstd": """
zarr.create_group(path).create_array("x0", data=values(), chunks=values().shape)
""",
    "HDF5 packed": f"""
with h5py.File(path, "w") as file:
    file["x0"] = values().astype("i2")
    file["x0"].attrs.update({PACKED.replace("_FillValue=5", "_FillValue=np.int16(5)")})
""",
    "HDF5 packed, compressed": f"""
with h5py.File(path, "w") as file:
    chunks = (min(256, len(values())), 1600)
    file.create_dataset("x0", data=values().astype("i2"), chunks=chunks, compression="gzip", compression_opts=1)
    file["x0"].attrs.update({PACKED.replace("_FillValue=5", "_FillValue=np.int16(5)")})
""",
}
"""What is decoded, or in chunks that are not read in place."""

DOORS = {
    "Dataset": "source = xr.open_dataset(path, engine='tensordict').td",
    "dask": "source = xr.open_dataset(path, engine='tensordict', chunks={'batch_0': 256}).td",
    "persistent": "source = xarray_tensordict.open_persistent(path)",
}

IMPORTS = """
import sys
import dask.array, h5py, numcodecs, numpy as np, torch, xarray as xr, xarray_tensordict, zarr
from tensordict import TensorDict

path, count = sys.argv[1], int(sys.argv[2])
names = [f"x{number}" for number in range(count)]
"""

WRITTEN = """
values = lambda: np.arange(32768 // count * 1600, dtype="f4").reshape(-1, 1600) % 97
WRITE
path, count, names = path + ".small", 32, ["x0"]
WRITE
"""

MEASURED = """
full, path = path, path + ".small"
DOOR
source.to_tensordict()
path = full
DOOR
def memory(what):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(what))
td = OUT
before = memory("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
td = source.to_tensordict(**({} if td is None else {"out": td}))
print((memory("VmHWM") - before) * 1024 / sum(t.numel() * t.element_size() for t in td.values()))
"""
FILLED = "xr.open_dataset(path, engine='tensordict').td.to_tensordict().apply(lambda x: torch.zeros_like(x).fill_(1))"


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", IMPORTS + script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def times_the_result(script: str, door: str, folder: Path, out: str = "None") -> float:
    """How much memory ``to_tensordict`` takes, as a multiple of what it gives."""
    return float(run(script.replace("DOOR", DOORS[door]).replace("OUT", out), str(folder / "store"), "1"))


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux for the most memory since a moment")
@pytest.mark.parametrize("kind", [*STORES, *LAZILY_DECODED])
def test_at_most_a_fifth_more_than_the_result(tmp_path, kind):
    run(WRITTEN.replace("WRITE", {**STORES, **LAZILY_DECODED}[kind]), str(tmp_path / "store"), "1")
    for door in DOORS if kind in STORES else ("Dataset", "persistent"):
        assert times_the_result(MEASURED, door, tmp_path) <= 1.2, door
    if kind not in ("zarr in chunks", "HDF5 compressed"):
        assert times_the_result(MEASURED, "Dataset", tmp_path, FILLED) <= 0.2


@pytest.mark.parametrize("scheduler", ["synchronous", "processes"])
def test_chunks_of_dask_are_joined_under_every_scheduler(scheduler):
    values = np.arange(24.0).reshape(6, 4)
    ds = xr.Dataset({"x": (("time", "f"), values), "n": ("time", np.arange(6)), "s": ("time", list("abcdef"))})
    with dask.config.set(scheduler=scheduler):
        td = ds.chunk(time=2, f=3).td.to_tensordict()
    np.testing.assert_array_equal(td["x"], values)
    np.testing.assert_array_equal(td["n"], np.arange(6))
    assert td.get("s").tolist() == list("abcdef")


def test_chunks_of_another_dtype_than_the_array_says_keep_their_values():
    wrong = dask.array.arange(6, chunks=2, dtype="i4").map_blocks(lambda block: block + 0.5, dtype="i4")
    td = xr.Dataset({"x": ("time", wrong)}).td.to_tensordict()
    assert td["x"].dtype == torch.float64
    assert td["x"].tolist() == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]
