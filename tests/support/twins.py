"""Twins of the generated cases: the same content in other formats, written with plain zarr, h5py, netCDF4 and xarray.

A case is one store of one format, and stands for its whole kind. Here its content is described once, as a tree of
arrays or as a Dataset, and written in each format that can hold it; the tests expect the same of all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import torch
import xarray as xr
import zarr
from tensordict import NonTensorData, TensorDict

Make = Callable[[Path], Path]


@dataclass(frozen=True)
class Array:
    """One array of a twin. `dims` has a name or None for each axis; without it the format records no names at all."""

    data: Any
    dims: tuple[str | None, ...] | None = None
    attrs: dict[str, Any] = field(default_factory=dict)
    fill: Any = None
    chunks: tuple[int, ...] | None = None

    @property
    def values(self) -> np.ndarray[Any, Any]:
        return np.asarray(self.data)


Tree = dict[str, Array]
GroupAttrs = dict[str, dict[str, Any]]


def write_zarr(folder: Path, tree: Tree, attrs: GroupAttrs, *, zarr_format: int) -> Path:
    """Write a tree with zarr-python."""
    path = folder / f"twin{zarr_format}.zarr"
    root = zarr.open_group(str(path), mode="w", zarr_format=zarr_format)
    _put_in_zarr(root, tree)
    for name, group_attrs in attrs.items():
        (root[name] if name else root).attrs.update(group_attrs)
    return path


def write_zip(folder: Path, tree: Tree, attrs: GroupAttrs, *, zarr_format: int) -> Path:
    """Write a tree into one zip file."""
    path = folder / f"twin{zarr_format}.zarr.zip"
    with zarr.storage.ZipStore(str(path), mode="w") as store:
        root = zarr.create_group(store=store, zarr_format=zarr_format, attributes=attrs.get("", {}))
        _put_in_zarr(root, tree)
    return path


def _put_in_zarr(root: Any, tree: Tree) -> None:
    zarr_format = root.metadata.zarr_format
    for name, array in tree.items():
        values, attrs, keywords = array.values, dict(array.attrs), {}
        if values.dtype.kind == "S" and zarr_format == 3:  # zarr v3 has no specified dtype for byte strings
            values = values.astype(str).astype(object)
        if array.dims is not None and zarr_format == 3:
            keywords["dimension_names"] = array.dims
        elif array.dims is not None:
            attrs["_ARRAY_DIMENSIONS"] = list(array.dims)
            keywords["fill_value"] = None  # as xarray writes it: in its v2 arrays a fill value is a mask
        if array.fill is not None:
            keywords["fill_value"] = array.fill
        if array.chunks is not None:
            keywords["chunks"] = array.chunks
        dtype = str if values.dtype == object else values.dtype
        created = root.create_array(name, shape=values.shape, dtype=dtype, attributes=attrs, **keywords)
        created[...] = values


def write_hdf5(folder: Path, tree: Tree, attrs: GroupAttrs, *, scales: bool = True) -> Path:
    """Write a tree with h5py; dims are dimension scales, or with ``scales=False`` labels of the axes."""
    path = folder / "twin.h5"
    with h5py.File(path, "w") as file:
        for name, array in tree.items():
            file.create_dataset(name, **_for_hdf5(array))
        for name, array in tree.items():
            dataset = file[name]
            dataset.attrs.update(_without_time(array).attrs)
            if array.fill is not None:
                dataset.attrs["_FillValue"] = np.asarray(array.fill, dataset.dtype)
            for axis, dim in enumerate(array.dims or ()):
                if dim is not None and scales:
                    _attach_scale(dataset, axis, dim)
                elif dim is not None:
                    dataset.dims[axis].label = dim
        for name, group_attrs in attrs.items():
            file[name or "/"].attrs.update(group_attrs)
    return path


def _without_time(array: Array) -> Array:
    """HDF5 has no times: whole seconds, as CF encodes them."""
    values = array.values
    if values.dtype.kind not in "mM":
        return array
    unit = "seconds since 1970-01-01" if values.dtype.kind == "M" else "seconds"
    seconds = values.astype(f"{values.dtype.kind}8[s]").astype("i8")
    attrs = {**array.attrs, "units": unit}
    if values.dtype.kind == "m":
        attrs["dtype"] = "timedelta64[s]"
    return Array(seconds, array.dims, attrs, np.iinfo("i8").min)


def _for_hdf5(array: Array) -> dict[str, Any]:
    values = _without_time(array).values
    if values.dtype.kind in "UO":
        return {"data": values.astype(object), "dtype": h5py.string_dtype()}
    return {"data": values, "chunks": array.chunks}


def _attach_scale(dataset: h5py.Dataset, axis: int, dim: str) -> None:
    parent = dataset.parent
    if dim not in parent:
        parent.create_dataset(dim, (dataset.shape[axis],), dtype=">f4")
        name = f"This is a netCDF dimension but not a netCDF variable. {dataset.shape[axis]:10d}"
    else:
        name = dim
    scale = parent[dim]
    if not scale.is_scale:
        scale.make_scale(name)
    if scale != dataset:
        dataset.dims[axis].attach_scale(scale)


def write_netcdf4(folder: Path, tree: Tree, attrs: GroupAttrs) -> Path:
    """Write a flat tree, all of whose axes are named, with the netCDF-C library."""
    path = folder / "twin.nc"
    with netCDF4.Dataset(path, "w") as file:
        for name, array in tree.items():
            values = array.values
            for dim, size in zip(array.dims or (), values.shape, strict=True):
                if dim not in file.dimensions:
                    file.createDimension(dim, size)
            kind = str if values.dtype.kind in "UO" else values.dtype
            variable = file.createVariable(name, kind, array.dims or (), fill_value=array.fill)
            variable.set_auto_maskandscale(False)
            variable.setncatts(array.attrs)
            variable[...] = values.astype(object) if kind is str else values
        for name, group_attrs in attrs.items():
            (file[name] if name else file).setncatts(group_attrs)
    return path


WRITERS: dict[str, Callable[..., Path]] = {
    "zarr2": partial(write_zarr, zarr_format=2),
    "zarr3": partial(write_zarr, zarr_format=3),
    "zip2": partial(write_zip, zarr_format=2),
    "zip3": partial(write_zip, zarr_format=3),
    "hdf5": write_hdf5,
    "labels": partial(write_hdf5, scales=False),
    "netcdf4": write_netcdf4,
}


def write_dataset(folder: Path, dataset: Callable[[], xr.Dataset], form: str) -> Path:
    """Write a Dataset with plain xarray."""
    if form.startswith("zarr"):
        path = folder / f"twin_{form}.zarr"
        dataset().to_zarr(path, zarr_format=int(form[-1]), consolidated=False)
    else:
        path = folder / f"twin_{form}.nc"
        dataset().to_netcdf(path, engine=form)
    return path


# --- contents ------------------------------------------------------------------------------------------------------


def raw_rows() -> Tree:
    return {
        "obs": Array((np.arange(18, dtype="f4") / 4).reshape(6, 3)),
        "reward": Array(np.linspace(0, 1, 6)),
        "done": Array(np.array([0, 0, 1, 0, 0, 1], bool)),
    }


def anemoi() -> Tree:
    return {
        "data": Array(np.arange(40, dtype="f4").reshape(4, 2, 1, 5), chunks=(1, 2, 1, 5)),
        "dates": Array(np.arange("2020-01-01", "2020-01-05", dtype="M8[D]").astype("M8[s]")),
        "latitudes": Array(np.array([-90.0, -45.0, 5.0, 45.0, 90.0]), dims=("values",)),
        "longitudes": Array(np.linspace(0, 288, 5)),
        "mean": Array(np.array([19.5, 20.5])),
    }


ANEMOI_ATTRS: GroupAttrs = {"": {"variables": ["t", "q"], "frequency": "24h"}}


def null_names() -> Tree:
    return {
        "a": Array(np.arange(8.0).reshape(4, 2), dims=("time", None)),
        "b": Array(np.arange(12.0).reshape(4, 3), dims=("time", None)),
        "c": Array(np.float64(7.5)),
    }


def weather() -> xr.Dataset:
    v = np.arange(60, dtype="f4").reshape(4, 3, 5)
    return xr.Dataset(
        {"t2m": (("time", "lat", "lon"), 280 + v), "tp": (("time", "lat", "lon"), v / 100)},
        coords={
            "time": np.arange("2021-03-01", "2021-03-05", dtype="M8[D]").astype("M8[ns]"),
            "lat": [10.0, 0.0, -10.0],
            "lon": np.arange(5) * 72.0,
            "height": 2.0,
        },
    )


def square() -> xr.Dataset:
    return xr.Dataset(
        {
            "u": (("time", "cell"), np.arange(16.0).reshape(4, 4)),
            "v": (("time",), np.arange(4.0)),
            "cell_area": (("cell",), np.array([10.0, 20.0, 30.0, 40.0])),
        }
    )


def replay_buffer() -> Tree:
    return {
        "data/img": Array(np.arange(7 * 48, dtype="u2").astype("u1").reshape(7, 4, 4, 3), chunks=(2, 4, 4, 3)),
        "data/state": Array(np.arange(35, dtype="f4").reshape(7, 5), chunks=(2, 5)),
        "data/action": Array(np.arange(14, dtype="f4").reshape(7, 2), chunks=(2, 2)),
        "meta/episode_ends": Array(np.array([3, 7], "i8")),
    }


def robomimic() -> Tree:
    tree = {"mask/train": Array(np.array([b"demo_0"]))}
    for i, n in enumerate((3, 5)):
        tree[f"data/demo_{i}/actions"] = Array(np.arange(n * 3, dtype="f8").reshape(n, 3))
        tree[f"data/demo_{i}/dones"] = Array(np.eye(1, n, n - 1, dtype="i8")[0])
        tree[f"data/demo_{i}/obs/eef"] = Array(np.arange(n * 3, dtype="f4").reshape(n, 3) + i)
        tree[f"data/demo_{i}/obs/gripper"] = Array(np.zeros((n, 2), "f4"))
    return tree


ROBOMIMIC_ATTRS: GroupAttrs = {
    "data": {"total": 8, "env_args": '{"env_name": "Lift", "type": 1}'},
    "data/demo_0": {"num_samples": 3},
    "data/demo_1": {"num_samples": 5},
}


def d4rl() -> Tree:
    return {
        "observations": Array(np.arange(12, dtype="f4").reshape(6, 2)),
        "actions": Array(np.zeros((6, 1), "f4")),
        "terminals": Array(np.array([0, 0, 0, 0, 0, 1], bool)),
        "timeouts": Array(np.array([0, 0, 1, 0, 0, 0], bool)),
        "metadata/algorithm": Array(np.array("SAC", object)),
        "metadata/iteration": Array(np.int64(2000)),
        "metadata/policy/fc0/weight": Array(np.arange(6, dtype="f4").reshape(3, 2)),
    }


def same_trailing_size() -> Tree:
    return {
        "a": Array(np.arange(12, dtype="f4").reshape(3, 4)),
        "n/b": Array(np.ones((3, 4), "f4")),
    }


def stored_tensordict() -> TensorDict:
    """Case 12 less its dict, which tensordict cannot write to HDF5."""
    return TensorDict(
        {
            "a": torch.arange(12.0).reshape(3, 4),
            "b": torch.tensor([True, False, True]),
            "n": {"c": torch.ones(3, 2, dtype=torch.int16)},
            "s": NonTensorData("hello", batch_size=[3]),
        },
        [3],
        names=["time"],
    )


def write_tensordict_h5(folder: Path) -> Path:
    stored_tensordict().to_h5(folder / "td.h5").close()
    return folder / "td.h5"


def phony() -> Tree:
    return {
        "x": Array(np.arange(9.0).reshape(3, 3)),
        "y": Array(np.arange(3)),
        "z": Array(np.arange(15, dtype="f4").reshape(5, 3)),
    }


def bools() -> Tree:
    return {"done": Array(np.array([True, False, False, True])), "flag": Array(np.bool_(True))}


def bools_of_xarray() -> xr.Dataset:
    return xr.Dataset({"done": ("t", np.array([True, False, False, True])), "flag": ((), np.bool_(True))})


def write_unlimited_h5netcdf(folder: Path) -> Path:
    """A file whose variable `b` is shorter than its unlimited dim, as HDF5 allows and as h5netcdf reads it."""
    path = folder / "unlimited.h5"
    with h5py.File(path, "w") as file:
        time = file.create_dataset("time", (4,), maxshape=(None,), dtype=">f4")
        time.make_scale(f"This is a netCDF dimension but not a netCDF variable. {4:10d}")
        for name, data in (("a", [1.0, 2, 3, 4]), ("b", [9.0])):
            dataset = file.create_dataset(name, data=np.array(data), maxshape=(None,), chunks=(8,), fillvalue=-1.0)
            dataset.attrs["_FillValue"] = np.array([-1.0])
            dataset.dims[0].attach_scale(time)
    return path


def big_endian() -> Tree:
    return {
        "f": Array(np.array([1, 2.5, -3], ">f4")),
        "i": Array(np.array([1, 256, 65536], ">i4")),
        "u": Array(np.array([1, 256, 512], ">u2")),
    }


def packed() -> Tree:
    return {
        "sst": Array(
            np.array([0, 10, -999, -30], "i2"),
            dims=("time",),
            attrs={"scale_factor": 0.5, "add_offset": 10.0, "units": "degC"},
            fill=-999,
        )
    }


def packed_with_attribute() -> Tree:
    """In zarr v3 the fill value of an array is no mask: the CF attribute says so."""
    (array,) = packed().values()
    return {"sst": Array(array.data, array.dims, {**array.attrs, "_FillValue": -999}, -999)}


def times() -> xr.Dataset:
    t = np.array(["2000-01-01T00:35", "2000-01-01T06:35"], "M8[ns]")
    return xr.Dataset(
        {"t_obs": ("time", np.array([t[0], np.datetime64("NaT", "ns")])), "v": ("time", np.array([1.0, 2.0], "f4"))},
        coords={"time": t},
    )


def native_times() -> Tree:
    return {
        "when": Array(np.array(["2020-01-01", "NaT"], "M8[s]"), ("row",), fill=np.datetime64("NaT", "s")),
        "lag": Array(np.array([3, -1], "m8[s]"), ("row",), fill=np.timedelta64("NaT", "s")),
        "x": Array(np.array([0.5, 1.5]), ("row",), fill=float("nan")),
    }


def strings() -> Tree:
    return {
        "name": Array(np.array(["a", "", "blåbær"], object), ("row",)),
        "code": Array(np.array(["x1", "x2", "x3"], "U2"), ("row",)),
        "v": Array(np.array([1, 2, 3], "i4"), ("row",)),
    }


def placeholder() -> Tree:
    return {
        "v": Array(np.arange(6, dtype="f4").reshape(3, 2), ("row", "col")),
        "w": Array(np.array([7, 8, 9], "i4"), ("row",)),
        "t": Array(np.array([0.0, 0.5]), ("t",)),
    }


def write_stale(folder: Path, *, zarr_format: int) -> Path:
    """A consolidated store that was changed afterwards: one array resized, one added, one deleted."""
    path = folder / f"stale{zarr_format}.zarr"
    root = zarr.open_group(str(path), mode="w", zarr_format=zarr_format)
    _put_in_zarr(root, {"x": Array(np.array([0, 1], "i8"), ("t",), chunks=(2,))})
    _put_in_zarr(root, {"old": Array(np.array([5, 6], "i8"), ("t",))})
    zarr.consolidate_metadata(root.store)
    root = zarr.open_group(str(path), mode="r+", use_consolidated=False)
    root["x"].append(np.array([2, 3], "i8"))
    _put_in_zarr(root, {"new": Array(np.array([1.0, 2.0, 3.0, 4.0]), ("t",))})
    del root["old"]
    return path


def covariance() -> Tree:
    return {
        "cov": Array(np.arange(18.0).reshape(2, 3, 3), ("time", "site", "site")),
        "mu": Array(np.arange(6.0).reshape(2, 3), ("time", "site")),
    }


def table() -> xr.Dataset:
    return xr.Dataset(
        {"y": ("point", np.arange(4.0))},
        coords={"run": ("point", [0, 0, 1, 1]), "step": ("point", [0, 1, 0, 1])},
    )


def zipped() -> Tree:
    return {"x": Array(np.arange(6, dtype="f4").reshape(3, 2), ("t", "f"), {"units": "m"})}


AWKWARD_NAMES = ("air temp", "wind.speed", "metatime", "tail ", "størrelse", "keys")


def awkward() -> Tree:
    return {name: Array(np.array([i, i + 0.5]), ("row no.",)) for i, name in enumerate(AWKWARD_NAMES)}


def chunked() -> Tree:
    return {"x": Array(np.arange(24, dtype="i8").reshape(12, 2), ("t", "f"), chunks=(4, 2))}


def one_variable() -> xr.Dataset:
    return xr.Dataset({"x": ("t", np.arange(6.0))})


def rows() -> Tree:
    return {
        "x": Array(np.arange(64, dtype="f4").reshape(32, 2), ("row", "f"), chunks=(4, 2)),
        "y": Array(np.arange(32, dtype="i8"), ("row",), chunks=(4,)),
    }


# --- which case has which twins ------------------------------------------------------------------------------------

TREES: dict[str, tuple[Callable[[], Tree], tuple[str, ...], GroupAttrs]] = {
    "case_01": (raw_rows, ("zarr2", "hdf5"), {}),
    "case_02": (anemoi, ("zarr3", "hdf5"), ANEMOI_ATTRS),
    "case_03": (null_names, ("hdf5", "labels"), {}),
    "case_06": (replay_buffer, ("zarr3", "hdf5"), {}),
    "case_07": (robomimic, ("zarr2", "zarr3"), ROBOMIMIC_ATTRS),
    "case_09": (d4rl, ("zarr2", "zarr3"), {}),
    "case_11": (same_trailing_size, ("zarr2", "zarr3", "hdf5"), {}),
    "case_13": (phony, ("zarr2", "zarr3"), {}),
    "case_15": (bools, ("zarr2", "zarr3"), {}),
    "case_27": (big_endian, ("zarr2", "zarr3"), {}),
    "case_29": (packed, ("zarr2", "netcdf4", "hdf5"), {}),
    "case_32": (native_times, ("zarr3", "hdf5"), {}),
    "case_35": (strings, ("zarr2", "hdf5", "labels", "netcdf4"), {}),
    "case_37": (placeholder, ("zarr2", "zarr3", "hdf5"), {}),
    "case_40": (covariance, ("zarr2", "hdf5", "labels"), {}),
    "case_43": (zipped, ("zip2",), {"": {"title": "zipped"}}),
    "case_44": (awkward, ("zarr2", "hdf5", "labels"), {}),
    "case_49": (chunked, ("zarr2",), {}),
    "case_53": (rows, ("zip3", "hdf5"), {}),
}

DATASETS: dict[str, tuple[Callable[[], xr.Dataset], tuple[str, ...]]] = {
    "case_04": (weather, ("zarr2", "h5netcdf", "netcdf4")),
    "case_05": (square, ("zarr2", "h5netcdf", "netcdf4")),
    "case_15": (bools_of_xarray, ("zarr3", "h5netcdf", "netcdf4")),
    "case_31": (times, ("zarr2", "h5netcdf", "netcdf4")),
    "case_41": (table, ("zarr2", "h5netcdf")),
    "case_51": (one_variable, ("zarr2", "h5netcdf")),
}

WRITTEN_ALONE: dict[str, dict[str, Make]] = {
    "case_12": {"tensordict-h5": write_tensordict_h5},
    "case_23": {"hdf5": write_unlimited_h5netcdf},
    "case_38": {"zarr2": partial(write_stale, zarr_format=2)},
}


def twins_of(case: str) -> dict[str, Make]:
    """The twins of a case: what writes each into a folder and returns its path, by format."""
    found: dict[str, Make] = dict(WRITTEN_ALONE.get(case[:7], {}))
    if case[:7] in TREES:
        tree, forms, attrs = TREES[case[:7]]
        found |= {form: partial(_make_tree, tree, attrs, form) for form in forms}
    if case[:7] in DATASETS:
        dataset, forms = DATASETS[case[:7]]
        found |= {f"xarray-{form}": partial(write_dataset, dataset=dataset, form=form) for form in forms}
    return found


def _make_tree(tree: Callable[[], Tree], attrs: GroupAttrs, form: str, folder: Path) -> Path:
    return WRITERS[form](folder, tree(), attrs)
