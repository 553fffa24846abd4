"""What is written in tests, and what has to come back of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr
from packaging.version import Version
from tensordict import NonTensorData, TensorDict

from xarray_tensordict._compat.tensordict import IS_0_14
from xarray_tensordict.testing import assert_same_tensordict


def era(rows: int = 4) -> xr.Dataset:
    """Reanalysis in small: coordinates, a mask without the batch dim, nested variables, strings, times, scalars."""
    shape = (rows, 2, 3)
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), np.arange(rows * 6, dtype="f4").reshape(shape), {"units": "K"}),
            "mask": (("lat", "lon"), np.array([[True, False, True], [False, True, True]])),
            "next/t2m": (("time", "lat", "lon"), np.arange(rows * 6, dtype="f4").reshape(shape) + 1),
            "station": ("time", np.array(["Åse", "", "Bø", "Oslo", "a", "b"][:rows], object)),
            "when": ("time", np.arange(rows).astype("M8[D]").astype("M8[us]")),
            "source": ((), "a model"),
            "done": ("time", np.arange(rows) % 2 == 0),
        },
        coords={
            "time": pd.date_range("2000-01-01", periods=rows).as_unit("s"),
            "lat": ("lat", [10.0, -10.0], {"standard_name": "latitude"}),
            "lon": [0.0, 120.0, 240.0],
            "height": 2.0,
            "run": ("time", np.arange(rows)),
        },
        attrs={"title": "in small", "levels": [1, 2]},
    )


def reopened_as(form: str, ds: xr.Dataset, folder: Path, *, rows: int) -> xr.Dataset:
    """A Dataset from a store: "zarr2" or "zarr3" with chunks of so many rows of time, "h5", "memmap"; "memory": as it is."""
    path = folder / f"store.{form}"
    if form == "memory":
        return ds
    if form == "h5":
        ds.td.to_h5(path)
    elif form == "memmap":
        ds.td.to_memmap(path)
    else:
        ds.td.to_zarr(path, chunks={"time": rows}, zarr_format=int(form[-1]))
    return xr.open_dataset(path, engine="tensordict")


def reopened(store: object, **keywords: object) -> xr.Dataset:
    with xr.open_dataset(store, engine="tensordict", **keywords) as ds:
        return ds.load()


def dtypes(ds: xr.Dataset) -> dict[str, object]:
    """Dtypes; text of any kind is text, and the length of bytes is left out."""
    kinds = {"O": "text", "U": "text", "T": "text", "S": "bytes"}
    return {str(name): kinds.get(v.dtype.kind, v.dtype.name) for name, v in ds.variables.items()}


def assert_equal(found: xr.Dataset, expected: xr.Dataset) -> None:
    """As :func:`assert_identical`, without attributes."""
    if Version(pd.__version__) < Version("3"):
        found, expected = _indexed_by_nanoseconds(found), _indexed_by_nanoseconds(expected)
    xr.testing.assert_equal(found, expected)


def assert_identical(found: xr.Dataset, expected: xr.Dataset) -> None:
    """As xarray does with pandas 3, to which indexes of times are the same whatever their resolution."""
    if Version(pd.__version__) < Version("3"):
        found, expected = _indexed_by_nanoseconds(found), _indexed_by_nanoseconds(expected)
    xr.testing.assert_identical(found, expected)


def _indexed_by_nanoseconds(ds: xr.Dataset) -> xr.Dataset:
    times = {name: ds[name] for name in ds.indexes if ds[name].dtype.kind in "mM"}
    return ds.assign_coords({name: array.astype(f"{array.dtype.kind}8[ns]") for name, array in times.items()})


def assert_gives_back(store: object, ds: xr.Dataset, **keywords: object) -> None:
    found = reopened(store, **keywords)
    assert_identical(found, ds.load())
    assert {name: v.dims for name, v in found.variables.items()} == {name: v.dims for name, v in ds.variables.items()}
    assert found.td.batch_dims == ds.td.batch_dims
    assert_same_tensordict(found.td.to_tensordict(), ds.td.to_tensordict())


def text(value: Any) -> Any:
    """The text that plain tensordict reads from HDF5: version 0.14 leaves it encoded."""
    return np.char.decode(value.astype(bytes)).tolist() if IS_0_14 else value


def plain(value: object) -> object:
    """A non-tensor value as Python's own lists and scalars."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def assert_bare_tensordict_reads(store: object, ds: xr.Dataset) -> None:
    """``from_zarr`` gives what ``to_tensordict`` gives, but for variables without all batch dims."""
    found, wanted = TensorDict.from_zarr(store), ds.td.to_tensordict()
    inference = ds.td.infer()
    assert found.batch_size == wanted.batch_size
    assert list(found.names) == list(wanted.names)
    for name in ds.variables:
        key = tuple(str(name).split("/"))
        if inference.classes[key] != "batched":
            continue
        got, expected = found.get(key), wanted.get(key)
        if isinstance(expected, torch.Tensor):
            assert got.dtype == expected.dtype
            np.testing.assert_array_equal(got.numpy(), expected.numpy())
        elif 0 in expected.batch_size and (IS_0_14 or not isinstance(expected, NonTensorData)):
            continue
        elif isinstance(expected, NonTensorData):
            assert plain(got.data) == plain(expected.data), name
        else:
            held = plain(got.data) if IS_0_14 else got.tolist()  # 0.14 reads all rows of text as one value
            assert held == expected.tolist(), name


def content(path: Path) -> dict[str, bytes]:
    """The bytes of a file, or of all files in a folder, by name."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    root = path.parent if path.is_file() else path
    return {str(file.relative_to(root)): file.read_bytes() for file in files}


def documents(path: Path) -> dict[str, bytes]:
    """The bytes of the documents of metadata of a zarr store in a folder, by name."""
    names = {"zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata"}
    return {name: held for name, held in content(path).items() if Path(name).name in names}
