"""Preprocessing as people write it: one table of operations, with the batch and the entries that each is to give."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

FIELDS = ("t2m", "sst", "next/t2m")
BATCHED = (*FIELDS, "count", "step", "time")
TIME = ("time",)


@dataclass(frozen=True)
class Operation:
    """What is done, and what the store that is written afterwards holds.

    Attributes
    ----------
    batch
        The batch dims.
    entries
        The numeric entries of ``to_tensordict()``, without the unbatched ones.
    exact
        Whether dask computes the very bits that numpy does.
    """

    name: str
    function: Callable[[xr.Dataset], xr.Dataset]
    batch: tuple[str, ...] = TIME
    entries: tuple[str, ...] = BATCHED
    exact: bool = True


def field() -> xr.Dataset:
    """Fields with NaN, a nested one, one number for each row, a mask without the batch, strings on and off it.

    Whole numbers and halves: sums of them are the same in any order.
    """
    rng = np.random.default_rng(0)

    def whole(*shape: int) -> np.ndarray[Any, Any]:
        return rng.integers(-50, 50, shape)

    sst = np.where(rng.random((12, 4, 3)) < 0.1, np.nan, whole(12, 4, 3) * 0.5)
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), whole(12, 4, 3).astype("f4"), {"units": "K"}),
            "sst": (("time", "lat", "lon"), sst),
            "next/t2m": (("time", "lat", "lon"), whole(12, 4, 3).astype("f4")),
            "count": ("time", whole(12)),
            "mask": (("lat", "lon"), np.arange(12.0).reshape(4, 3)),
        },
        coords={
            "time": pd.date_range("2000-01-01", periods=12).as_unit("ns"),
            "lat": [4.0, 3.0, 2.0, 1.0],
            "lon": [0.0, 1.0, 2.0],
            "station": ("time", np.array([f"s{row % 3}" for row in range(12)], object)),
            "name": "a field",
            "step": ("time", np.arange(12) % 4),
        },
    )


def normalise(ds: xr.Dataset) -> xr.Dataset:
    return (ds.td.batched - ds.td.batched.mean("time")) / ds.td.batched.std("time")


def without_strings(ds: xr.Dataset) -> xr.Dataset:
    """xarray reduces no strings."""
    return ds.drop_vars(["station", "name"])


def held(ds: xr.Dataset) -> xr.Dataset:
    """xarray groups by labels in memory."""
    return ds.assign_coords(station=ds["station"].load(), step=ds["step"].load())


def joined(ds: xr.Dataset, dim: Any) -> xr.Dataset:
    options: dict[str, Any] = {"coords": "minimal", "compat": "override", "join": "outer"}
    return xr.concat([ds, ds + 1], dim, data_vars="all", **options)


def in_two(ds: xr.Dataset) -> xr.Dataset:
    parts = [ds.isel(time=slice(0, 5)), ds.isel(time=slice(5, None))]
    return xr.concat(parts, "time", data_vars="minimal", coords="minimal", compat="override", join="outer")


def centred(ds: xr.Dataset) -> xr.Dataset:
    return xr.apply_ufunc(
        lambda rows: rows - rows.max(-1, keepdims=True),
        ds[["t2m", "next/t2m"]],
        input_core_dims=[["lon"]],
        output_core_dims=[["lon"]],
        dask="parallelized",
        output_dtypes=["f4"],
        dask_gufunc_kwargs={"allow_rechunk": True},
    )


NEXT = ("t2m", "next/t2m", "step", "time")
REDUCED = (*FIELDS, "count")
LESS = (*REDUCED, "time")

OPERATIONS = [
    Operation("nothing", lambda ds: ds),
    Operation("normalise", normalise, exact=False),
    Operation("normalise batched", lambda ds: ds.td.batched - ds.td.batched.min("time")),
    Operation("map", lambda ds: ds.map(lambda values: values * 2 + 1)),
    Operation("map_blocks", lambda ds: xr.map_blocks(lambda block: block * 2, ds)),
    Operation(
        "map_blocks with a template",
        lambda ds: xr.map_blocks(lambda b: b[["t2m"]], ds, template=ds[["t2m"]]),
        entries=("t2m", "step", "time"),
    ),
    Operation("apply_ufunc", lambda ds: xr.apply_ufunc(np.square, ds, dask="parallelized", keep_attrs=True)),
    Operation("apply_ufunc along a dim", centred, entries=NEXT),
    Operation("mean over the batch", lambda ds: ds.mean("time"), (), (*REDUCED, "mask", "lat", "lon")),
    Operation("mean over space", lambda ds: ds.mean("lat"), exact=False),
    Operation(
        "groupby a field of the time",
        lambda ds: ds.groupby("time.month").min(),
        ("month",),
        (*REDUCED, "mask", "month"),
    ),
    Operation("groupby strings", lambda ds: held(ds).groupby("station").max(), ("station",), (*REDUCED, "mask")),
    Operation(
        "anomalies of groups",
        lambda ds: held(ds).td.batched.groupby("step") - held(ds).td.batched.groupby("step").min(),
    ),
    Operation(
        "groupby map",
        lambda ds: held(ds)[["t2m", "next/t2m"]].groupby("step").map(lambda group: group - group.min("time")),
        entries=NEXT,
    ),
    Operation(
        "groupby_bins with labels",
        lambda ds: ds[["t2m", "next/t2m"]].groupby_bins("time", ds["time"].values[[0, 5, 11]], labels=[1, 2]).min(),
        ("time_bins",),
        ("t2m", "next/t2m", "time_bins"),
    ),
    Operation("rolling mean", lambda ds: ds.rolling(time=3).min()),
    Operation("rolling construct", lambda ds: ds.td.batched.rolling(time=3).construct("window")),
    Operation(
        "whole windows", lambda ds: ds.td.batched.rolling(time=3).construct("window").isel(time=slice(2, None, 2))
    ),
    Operation("coarsen", lambda ds: without_strings(ds).coarsen(time=3).max()),
    Operation(
        "coarsen construct",
        lambda ds: ds[["t2m", "next/t2m"]].coarsen(time=3).construct(time=("block", "row")),
        ("block", "row"),
        NEXT,
    ),
    Operation("coarsen space", lambda ds: without_strings(ds).coarsen(lat=2).max()),
    Operation("resample", lambda ds: ds.resample(time="3D").max(), entries=(*LESS, "mask")),
    Operation("upsample", lambda ds: ds.resample(time="12h").ffill(), entries=LESS),
    Operation("concat along the batch", in_two),
    Operation("concat along a new dim", lambda ds: joined(ds, "member"), ("member", "time"), (*BATCHED, "mask")),
    Operation(
        "concat with labels",
        lambda ds: joined(ds, pd.Index(["a", "b"], name="member")),
        ("member", "time"),
        (*BATCHED, "mask"),
    ),
    Operation("merge", lambda ds: xr.merge([ds, (ds[["t2m"]] * 2).rename(t2m="twice")]), entries=(*BATCHED, "twice")),
    Operation("isel", lambda ds: ds.isel(time=slice(2, 9, 2), lat=[3, 0])),
    Operation("one row", lambda ds: ds.isel(time=3), (), (*BATCHED, "mask", "lat", "lon")),
    Operation("no rows", lambda ds: ds.isel(time=slice(0, 0))),
    Operation("sel", lambda ds: ds.sel(time=slice("2000-01-03", "2000-01-07"), lat=2.0)),
    Operation("where", lambda ds: ds.where(ds["t2m"] > 0), entries=(*BATCHED, "mask")),
    Operation("where some rows", lambda ds: ds.td.batched.where(ds["step"] > 1)),
    Operation("where, drop", lambda ds: ds.td.batched.where((ds["step"] > 1).compute(), drop=True)),
    Operation(
        "stack and reset",
        lambda ds: ds[["t2m", "next/t2m"]].stack(sample=("time", "lat", "lon")).reset_index("sample"),
        ("sample",),
        (*NEXT, "lat", "lon"),
    ),
    Operation(
        "stack and unstack",
        lambda ds: ds[["t2m", "count"]].stack(cell=("lat", "lon")).unstack("cell"),
        entries=("t2m", "count", "step", "time"),
    ),
    Operation(
        "assign",
        lambda ds: ds.assign({"speed": ds["t2m"] + ds["sst"], "next/speed": ds["next/t2m"] * 2, "constant": 3.5}),
        entries=(*BATCHED, "speed", "next/speed"),
    ),
    Operation(
        "assign_coords",
        lambda ds: ds.assign_coords(lat=ds["lat"] * 2, day=ds["time"].dt.dayofyear),
        entries=(*BATCHED, "day"),
    ),
    Operation(
        "rename",
        lambda ds: ds.rename({"t2m": "temp", "time": "t", "next/t2m": "later/temp"}),
        ("t",),
        ("temp", "sst", "later/temp", "count", "step", "t"),
    ),
    Operation("swap_dims", lambda ds: ds.swap_dims(time="step"), ("step",)),
    Operation("set_index", lambda ds: ds.drop_vars("time").set_index(time="station"), entries=(*REDUCED, "step")),
    Operation("drop the index", lambda ds: ds.drop_vars("time"), entries=(*REDUCED, "step")),
    Operation("astype", lambda ds: ds.td.batched.astype("f2")),
    Operation("astype int", lambda ds: ds[["t2m", "next/t2m"]].astype("i8"), entries=NEXT),
    Operation("to bool", lambda ds: ds[["t2m", "next/t2m"]] > 0, entries=NEXT),
    Operation("complex", lambda ds: ds[["t2m", "next/t2m"]] * 1j, entries=NEXT),
    Operation("shift", lambda ds: ds.shift(time=1)),
    Operation("diff", lambda ds: ds.diff("time")),
    Operation("roll", lambda ds: ds.roll(lon=1, roll_coords=True)),
    Operation("fillna", lambda ds: ds.fillna(0)),
    Operation("cumsum", lambda ds: ds.cumsum("time")),
    Operation("clip", lambda ds: ds.clip(-10, 10)),
    Operation("differentiate", lambda ds: ds[["t2m", "next/t2m"]].differentiate("lat"), entries=NEXT, exact=False),
    Operation("interp", lambda ds: ds[["sst"]].interp(lat=[1.5, 2.5]), entries=("sst", "step", "time"), exact=False),
    Operation("weighted", lambda ds: ds.weighted(ds["mask"]).sum(("lat", "lon"))),
    Operation(
        "quantile",
        lambda ds: ds[["t2m", "next/t2m"]].chunk(time=-1).quantile([0.25, 0.5], "time"),
        ("quantile",),
        ("t2m", "next/t2m", "quantile"),
    ),
    Operation("sortby", lambda ds: ds.sortby("lat").sortby("time", ascending=False)),
    Operation(
        "drop_vars",
        lambda ds: ds.drop_vars(["sst", "mask", "name"]),
        entries=("t2m", "next/t2m", "count", "step", "time"),
    ),
    Operation("expand_dims", lambda ds: ds.expand_dims(env=2), ("env", "time"), (*BATCHED, "mask")),
    Operation(
        "expand_dims with labels", lambda ds: ds.expand_dims(env=["x", "y"]), ("env", "time"), (*BATCHED, "mask")
    ),
    Operation(
        "broadcast",
        lambda ds: xr.broadcast(ds[["t2m", "count", "mask"]])[0],
        entries=("t2m", "count", "mask", "step", "time"),
    ),
    Operation("thin", lambda ds: ds.thin(time=5)),
    Operation("times", lambda ds: ds.assign(age=ds["time"] - ds["time"][0]), entries=(*BATCHED, "age")),
    Operation("argmax", lambda ds: ds[["t2m", "next/t2m"]].argmax("lat"), entries=NEXT),
    Operation(
        "reindex", lambda ds: without_strings(ds).reindex(time=pd.date_range("1999-12-31", periods=14).as_unit("ns"))
    ),
    Operation(
        "stack of variables",
        lambda ds: ds[["t2m", "sst"]].to_array("variable").transpose("time", ...).to_dataset(name="x"),
        entries=("x", "step", "time"),
    ),
]
