"""Small stores of every kind that this package reads, one folder each: what `mutants` changes, and `fuzzing` opens."""

from __future__ import annotations

import json
import os
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
import zarr
from tensordict import NonTensorData, NonTensorStack, TensorDict, lazy_stack

from written import era

Make = Callable[[Path], Path]
KINDS: dict[str, Make] = {}
"""Writers by the name of the kind: each writes into a folder, and returns the path that is opened."""


def kind(name: str) -> Callable[[Make], Make]:
    def add(make: Make) -> Make:
        KINDS[name] = make
        return make

    return add


def build(name: str, folder: Path) -> Path:
    """Write the store of a kind; what the writing libraries warn of is not what is tested."""
    folder.mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return KINDS[name](folder)


def sample(rows: int = 6) -> TensorDict:
    return TensorDict(
        {
            "obs": torch.arange(rows * 3.0).reshape(rows, 3),
            "next": {"obs": torch.ones(rows, 3), "done": torch.arange(rows) > 3},
            "action": torch.arange(rows, dtype=torch.int16),
            "task": NonTensorData({"name": "lift", "tries": [1, 2]}, batch_size=[rows]),
            "label": NonTensorStack(*(f"row {i}" for i in range(rows))),
        },
        [rows],
        names=["time"],
    )


def plain(rows: int = 6) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays without any metadata."""
    return {
        "x": np.arange(rows * 3.0).reshape(rows, 3),
        "y": np.arange(rows, dtype="i2"),
        "group/x": np.arange(rows * 2, dtype="f4").reshape(rows, 2) + 1,
    }


# -- zarr --------------------------------------------------------------------------------------------------------------


@kind("zarr3")
def own_zarr3(folder: Path) -> Path:
    era(4).td.to_zarr(folder / "s.zarr", chunks={"time": 2})
    return folder / "s.zarr"


@kind("zarr2")
def own_zarr2(folder: Path) -> Path:
    era(4).td.to_zarr(folder / "s.zarr", zarr_format=2)
    return folder / "s.zarr"


@kind("zarr3-xarray")
def xarray_zarr3(folder: Path) -> Path:
    era(4).td.to_zarr(folder / "s.zarr", layout="xarray")
    return folder / "s.zarr"


@kind("zarr2-xarray")
def xarray_zarr2(folder: Path) -> Path:
    flat = era(4).drop_vars(["next/t2m", "source"])
    flat.to_zarr(folder / "s.zarr", zarr_format=2, consolidated=True)
    return folder / "s.zarr"


@kind("zarr-sharded")
def sharded(folder: Path) -> Path:
    root = zarr.open_group(folder / "s.zarr", mode="w")
    for name, values in plain(8).items():
        chunks = (2, *values.shape[1:])
        root.create_array(name, data=values, chunks=chunks, shards=(4, *values.shape[1:]), dimension_names=None)
    return folder / "s.zarr"


@kind("zarr2-plain")
def plain_zarr2(folder: Path) -> Path:
    from numcodecs import Blosc, Delta

    root = zarr.open_group(folder / "s.zarr", mode="w", zarr_format=2)
    for name, values in plain().items():
        filters = [Delta(dtype=values.dtype)] if values.dtype.kind == "i" else None
        root.create_array(name, data=values, chunks=values.shape, compressors=Blosc(), filters=filters, order="F")
    return folder / "s.zarr"


@kind("zarr-zip")
def zipped(folder: Path) -> Path:
    era(4).td.to_zarr(folder / "s.zarr.zip")
    return folder / "s.zarr.zip"


@kind("zarr2-zip")
def zipped2(folder: Path) -> Path:
    plain_zarr2(folder)
    with zipfile.ZipFile(folder / "s.zip", "w") as archive:
        for file in sorted(file for file in (folder / "s.zarr").rglob("*") if file.is_file()):
            archive.writestr(zipfile.ZipInfo(str(file.relative_to(folder / "s.zarr"))), file.read_bytes())
            file.unlink()
    return folder / "s.zip"


@kind("zarr-tensordict")
def tensordict_zarr(folder: Path) -> Path:
    sample().to_zarr(folder / "s.zarr")
    return folder / "s.zarr"


@kind("kerchunk")
def kerchunk(folder: Path) -> Path:
    own = era(4).drop_vars(["source", "station"])
    own.td.to_zarr(folder / "files.zarr", zarr_format=2, layout="xarray", consolidated=False)
    found: dict[str, Any] = {}
    for file in sorted(file for file in (folder / "files.zarr").rglob("*") if file.is_file()):
        key = file.relative_to(folder / "files.zarr").as_posix()
        found[key] = file.read_text() if file.name.startswith(".z") else [str(file), 0, file.stat().st_size]
    (folder / "refs.json").write_text(json.dumps({"version": 1, "refs": found}))
    return folder / "refs.json"


@kind("icechunk")
def icechunk(folder: Path) -> Path:
    import icechunk as library

    repository = library.Repository.create(library.local_filesystem_storage(str(folder / "repository")))
    session = repository.writable_session("main")
    era(4).td.to_zarr(session.store)
    session.commit("four rows")
    return folder / "repository"


# -- HDF5 --------------------------------------------------------------------------------------------------------------


@kind("hdf5")
def own_hdf5(folder: Path) -> Path:
    era(4).td.to_h5(folder / "s.h5")
    return folder / "s.h5"


@kind("hdf5-tensordict")
def tensordict_hdf5(folder: Path) -> Path:
    from tensordict import PersistentTensorDict

    td = sample().exclude("task", "label")
    PersistentTensorDict.from_dict(td, filename=folder / "s.h5").close()
    return folder / "s.h5"


@kind("netcdf4")
def netcdf4(folder: Path) -> Path:
    era(4).drop_vars(["next/t2m"]).to_netcdf(folder / "s.nc", engine="netcdf4", unlimited_dims=["time"])
    return folder / "s.nc"


@kind("netcdf-h5netcdf")
def h5netcdf(folder: Path) -> Path:
    era(4).drop_vars(["next/t2m"]).to_netcdf(folder / "s.nc", engine="h5netcdf")
    return folder / "s.nc"


@kind("hdf5-scales")
def scales(folder: Path) -> Path:
    with h5py.File(folder / "s.h5", "w") as file:
        for name, values in plain(8).items():
            file.create_dataset(name, data=values, chunks=(4, *values.shape[1:]), compression="gzip", fletcher32=True)
        file["time"] = np.arange(8.0)
        file["time"].make_scale("time")
        for name in plain():
            file[name].dims[0].attach_scale(file["time"])
            file[name].dims[0].label = "time"
    return folder / "s.h5"


@kind("hdf5-types")
def types(folder: Path) -> Path:
    with h5py.File(folder / "s.h5", "w") as file:
        file["x"] = np.arange(12.0).reshape(4, 3)
        file.create_dataset("text", data=["a", "b", "ø", ""], dtype=h5py.string_dtype())
        file["fixed"] = np.array([b"ab", b"c", b"", b"def"])
        file["flag"] = np.array([True, False, True, True])
        file["colour"] = np.array([0, 1, 1, 0], h5py.enum_dtype({"red": 0, "green": 1}, basetype="i1"))
        file["pair"] = np.zeros(4, [("a", "i4"), ("b", "f8", (2,))])
        file["complex"] = np.ones(4, "c8")
        vlen = file.create_dataset("vlen", (4,), dtype=h5py.vlen_dtype("i2"))
        vlen[...] = np.array([np.arange(n, dtype="i2") for n in (1, 2, 0, 3)], object)
        file.create_dataset("ref", data=[file["x"].ref] * 4, dtype=h5py.ref_dtype)
        file["empty"] = h5py.Empty("f4")
        file["x"].attrs["names"] = ["a", "b", "c"]
    return folder / "s.h5"


@kind("hdf5-links")
def links(folder: Path) -> Path:
    with h5py.File(folder / "other.h5", "w") as other:
        other["x"] = np.arange(6.0)
    with h5py.File(folder / "s.h5", "w") as file:
        file["x"] = np.arange(6.0)
        file["soft"] = h5py.SoftLink("/x")
        file["hard"] = file["x"]
        file["external"] = h5py.ExternalLink("other.h5", "x")
        layout = h5py.VirtualLayout((2, 6), "f8")
        layout[0], layout[1] = h5py.VirtualSource("other.h5", "x", (6,)), h5py.VirtualSource(".", "x", (6,))
        file.create_virtual_dataset("virtual", layout, fillvalue=-1.0)
        file.create_group("group/deep")["x"] = np.arange(6.0)
        file["group/loop"] = h5py.SoftLink("/group")
    return folder / "s.h5"


# -- memory-mapped tensordicts -----------------------------------------------------------------------------------------


@kind("memmap")
def memmap(folder: Path) -> Path:
    sample().memmap(folder / "saved")
    return folder / "saved"


@kind("memmap-own")
def own_memmap(folder: Path) -> Path:
    era(4).td.to_memmap(folder / "saved")
    return folder / "saved"


@kind("memmap-ragged")
def ragged(folder: Path) -> Path:
    lazy_stack([TensorDict({"x": torch.ones(n, 2), "y": torch.tensor(float(n))}) for n in (1, 2, 3)]).memmap(
        folder / "saved"
    )
    return folder / "saved"


@kind("tdz")
def archive(folder: Path) -> Path:
    sample().save(folder / "s.tdz")
    return folder / "s.tdz"


@kind("tdz-deflate")
def compressed(folder: Path) -> Path:
    sample().save(folder / "s.tdz", compression="deflate")
    return folder / "s.tdz"


@kind("torchrl")
def checkpoint(folder: Path) -> Path:
    """As torchrl's default checkpointer lays it out; torchrl itself takes seconds to import."""
    sample().memmap(folder / "saved" / "storage")
    (folder / "saved" / "storage" / "storage_metadata.json").write_text('{"is_pytree": false, "len": 4}')
    for name, text in {"writer/writer_metadata.json": '{"cursor": 4}', "sampler/sampler_metadata.json": "{}"}.items():
        os.makedirs((folder / "saved" / name).parent)
        (folder / "saved" / name).write_text(text)
    (folder / "saved" / "buffer_metadata.json").write_text('{"batch_size": 2}')
    return folder / "saved"
