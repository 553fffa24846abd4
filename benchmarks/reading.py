"""Reading: one row, a batch of random rows, everything; for each layout that stores have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
import xarray as xr
import zarr
from tensordict import TensorDict

from xarray_tensordict import open_persistent

from .jobs import Job, Sizes


def jobs(folder: Path, sizes: Sizes) -> Iterator[Job]:
    """The jobs of reading."""
    values = np.random.default_rng(0).random((sizes.rows, *sizes.row), "f4")
    yield from _raw_zarr(folder, values, sizes)
    yield from _raw_hdf5(folder, values, sizes)
    yield from _memmap(folder, values, sizes)
    yield from _chunked_zarr(folder, values, sizes)
    yield from _compressed_zarr(folder, values, sizes)
    yield from _compressed_hdf5(folder, values, sizes)


def _picked(sizes: Sizes) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).permutation(sizes.rows)[: sizes.picked]


def _raw_jobs(what: str, path: Path, bare: Any, sizes: Sizes, file: Path, offset: int) -> Iterator[Job]:
    picked = _picked(sizes)
    index = torch.from_numpy(picked)
    ptd = open_persistent(path)
    ds = xr.open_dataset(path, engine="tensordict")
    memory = ds.copy(deep=True).load()
    dim = ds["images"].dims[0]
    shape = (sizes.rows, *sizes.row)

    def mapped() -> Any:
        return np.memmap(file, "f4", "r", offset, shape)

    def bare_sides(call: Any) -> dict[str, Any]:
        return {} if bare is None else {"tensordict": call}

    yield Job(
        f"{what}: one row",
        {
            "this package": lambda: ptd.get_at("images", 3),
            **bare_sides(lambda: bare.get_at("images", 3)),
            "limit": lambda: mapped()[3].copy(),
        },
    )
    yield Job(
        f"{what}: {sizes.picked} random rows",
        {
            "this package": lambda: ptd.get_at("images", index),
            **bare_sides(lambda: bare.get_at("images", index)),
            "limit": lambda: mapped()[picked],
        },
    )
    yield Job(
        f"{what}: {sizes.picked} random rows of a Dataset (limit: a Dataset in memory)",
        {
            "this package": lambda: ds["images"].isel({dim: picked}).values,
            "limit": lambda: memory["images"].isel({dim: picked}).values,
        },
    )
    out = ds.td.to_tensordict()
    yield Job(
        f"{what}: everything",
        {
            "this package": ds.td.to_tensordict,
            **bare_sides(lambda: bare.to_tensordict()),
            "limit": lambda: np.fromfile(file, "f4", int(np.prod(shape)), offset=offset),
        },
    )
    yield Job(
        f"{what}: everything, `out=`",
        {
            "this package": lambda: ds.td.to_tensordict(out=out),
            "limit": lambda: out["images"].copy_(memory_tensor(memory)),
        },
    )


def memory_tensor(memory: xr.Dataset) -> torch.Tensor:
    return torch.from_numpy(memory["images"].values)


def _raw_zarr(folder: Path, values: Any, sizes: Sizes) -> Iterator[Job]:
    path = folder / "default.zarr"
    TensorDict({"images": torch.from_numpy(values)}, [sizes.rows]).to_zarr(str(path))
    file = max((found for found in path.rglob("*") if found.is_file()), key=lambda found: found.stat().st_size)
    yield from _raw_jobs("zarr as tensordict writes it", path, TensorDict.from_zarr(str(path)), sizes, file, 0)


def _raw_hdf5(folder: Path, values: Any, sizes: Sizes) -> Iterator[Job]:
    path = folder / "default.h5"
    TensorDict({"images": torch.from_numpy(values)}, [sizes.rows]).to_h5(str(path)).close()
    with h5py.File(path, "r") as opened:
        offset = opened["images"].id.get_offset()
    bare = TensorDict.from_h5(str(path), mode="r")
    yield from _raw_jobs("HDF5 as tensordict writes it", path, bare, sizes, path, offset)
    bare.close()


def _memmap(folder: Path, values: Any, sizes: Sizes) -> Iterator[Job]:
    path = folder / "memmap"
    TensorDict({"images": torch.from_numpy(values)}, [sizes.rows]).memmap(str(path))
    yield from _raw_jobs("memory-mapped tensordict", path, None, sizes, path / "images.memmap", 0)


def _zarr_of(path: Path, values: Any, sizes: Sizes, **options: Any) -> None:
    group = zarr.create_group(str(path), attributes={"__tensordict__": {"batch_size": [sizes.rows], "version": 1}})
    group.create_array(
        "images",
        shape=values.shape,
        dtype=values.dtype,
        chunks=(sizes.chunk, *sizes.row),
        dimension_names=["row", "channel", "y", "x"][: values.ndim],
        **options,
    )[...] = values


def _zarr_jobs(what: str, path: Path, sizes: Sizes, limit: Any) -> Iterator[Job]:
    picked = _picked(sizes)
    index = torch.from_numpy(picked)
    ptd, bare = open_persistent(path), TensorDict.from_zarr(str(path))
    plain = xr.open_zarr(path, chunks=None, consolidated=False)
    other = _tensorstore(path)

    def of_other(call: Any) -> dict[str, Any]:
        return {} if other is None else {"other": call}

    yield Job(
        f"{what}: {sizes.picked} random rows",
        {
            "this package": lambda: ptd.get_at("images", index),
            "tensordict": lambda: bare.get_at("images", index),
            "xarray": lambda: plain["images"].isel(row=picked).values,
            **of_other(lambda: other[picked].read().result()),
        },
        repeats=5,
        other="tensorstore",
    )
    yield Job(
        f"{what}: everything",
        {
            "this package": ptd.to_tensordict,
            "tensordict": bare.to_tensordict,
            "xarray": lambda: plain.copy().compute(),
            **of_other(lambda: other.read().result()),
            **limit,
        },
        repeats=5,
        other="tensorstore",
    )


def _tensorstore(path: Path) -> Any:
    try:
        import tensorstore
    except ImportError:
        return None
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path / "images")}}
    return tensorstore.open(spec, read=True).result()


def _chunked_zarr(folder: Path, values: Any, sizes: Sizes) -> Iterator[Job]:
    path = folder / "chunked.zarr"
    _zarr_of(path, values, sizes, compressors=None)
    file = folder / "plain.bin"
    values.tofile(file)
    yield from _zarr_jobs(
        f"zarr in chunks of {sizes.chunk} rows", path, sizes, {"limit": lambda: np.fromfile(file, "f4")}
    )


def _compressed_zarr(folder: Path, values: Any, sizes: Sizes) -> Iterator[Job]:
    path = folder / "compressed.zarr"
    _zarr_of(path, (values * 1000).astype("i2"), sizes)
    yield from _zarr_jobs(f"zarr in chunks of {sizes.chunk} rows, zstd", path, sizes, {})


def _compressed_hdf5(folder: Path, values: Any, sizes: Sizes) -> Iterator[Job]:
    path = folder / "compressed.h5"
    codes = (values * 1000).astype("i2")
    with h5py.File(path, "w") as file:
        file.create_dataset("images", data=codes, chunks=(sizes.chunk, *sizes.row), compression="gzip", shuffle=True)
    picked = _picked(sizes)
    index, ordered = torch.from_numpy(picked), np.sort(picked)
    ptd, bare = open_persistent(path), TensorDict.from_h5(str(path), mode="r")
    opened = h5py.File(path, "r")
    yield Job(
        f"HDF5 in chunks of {sizes.chunk} rows, gzip: {sizes.picked} random rows",
        {
            "this package": lambda: ptd.get_at("images", index),
            "tensordict": lambda: bare.get_at("images", index),
            "other": lambda: opened["images"][ordered],
        },
        repeats=3,
        other="h5py, sorted",
    )
    yield Job(
        f"HDF5 in chunks of {sizes.chunk} rows, gzip: everything",
        {"this package": ptd.to_tensordict, "tensordict": bare.to_tensordict, "other": lambda: opened["images"][...]},
        repeats=3,
        other="h5py",
    )
    opened.close()
    bare.close()
