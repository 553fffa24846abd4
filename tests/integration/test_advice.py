"""Advice that is run: for each message that says what to do, the mistake, its message, and the advice, followed.

The messages are those of the code in which a clause starts with a verb that advises something (``VERBS``). Each of them is claimed,
by a piece of its text, by a row of the tables here, by a test elsewhere that follows it (``FOLLOWED``), or by a reason why no test can
(``EXEMPT``). A new message without one fails.
"""

from __future__ import annotations

import ast
import gzip
import json
import os
import pickle
import re
import shutil
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import cftime
import fsspec
import h5py
import netCDF4
import numcodecs
import numpy as np
import pandas as pd
import pytest
import tensordict
import torch
import xarray as xr
import zarr
from click.testing import CliRunner
from tensordict import LazyStackedTensorDict, NonTensorData, PersistentTensorDict, TensorDict

import xarray_tensordict as xtd
from xarray_tensordict.command_line.app import main
from xarray_tensordict.tensors.values import tensor_from_numpy

SRC = Path(xtd.__file__).parent
TIMES = np.datetime64("2024-01-01", "ns") + np.arange(6) * np.timedelta64(1, "D")


def weather(**more: Any) -> xr.Dataset:
    return xr.Dataset(
        {"t2m": (("time", "lat"), np.arange(12, dtype="f4").reshape(6, 2)), "mask": ("lat", [True, False]), **more},
        coords={"time": TIMES, "lat": [1.0, 2.0]},
    )


def shadowed() -> None:
    """What is said once in a process."""
    with patch("xarray_tensordict.accessor._shadow_warned", False):
        _ = weather(td=("time", np.zeros(6))).td


def objects(*values: Any) -> xr.Dataset:
    column = np.empty(len(values), object)
    column[:] = values
    return xr.Dataset({"x": ("time", np.zeros(len(values))), "z": ("time", column)})


def opened(path: Any, **keywords: Any) -> xr.Dataset:
    return xr.open_dataset(path, engine="tensordict", **keywords)


def run() -> str:
    """A store of tensordict: `obs`, `next/obs` over `time`."""
    td = TensorDict({"obs": torch.zeros(6, 3), "next": {"obs": torch.zeros(6, 3)}}, [6], names=["time"])
    td.to_zarr("run.zarr")
    return "run.zarr"


def split() -> str:
    """Two groups with batches of their own."""
    groups = {name: TensorDict({"x": torch.zeros(rows, 2)}, [rows]) for name, rows in {"train": 8, "test": 3}.items()}
    TensorDict(groups).to_zarr("split.zarr")
    return "split.zarr"


def split_by_name() -> str:
    """The same two, along dims of one name."""
    sizes = {"train": 8, "test": 3}
    parts = {name: xr.Dataset({"x": (("time", "f"), np.zeros((size, 2)))}) for name, size in sizes.items()}
    xr.DataTree.from_dict(parts).td.to_zarr("split.zarr")
    return "split.zarr"


def hdf5(**arrays: Any) -> str:
    with h5py.File("file.h5", "w") as file:
        for name, values in arrays.items():
            file[name] = values
    return "file.h5"


def plain(ds: xr.Dataset | None = None, path: str = "plain.zarr") -> str:
    (weather() if ds is None else ds).to_zarr(path, consolidated=False)
    return path


def written(ds: xr.Dataset | None = None, **keywords: Any) -> str:
    (weather() if ds is None else ds).td.to_zarr("written.zarr", **keywords)
    return "written.zarr"


def later(**more: Any) -> xr.Dataset:
    return weather(**more).assign_coords(time=TIMES + np.timedelta64(6, "D"))


def cli(*arguments: str) -> str:
    result = CliRunner().invoke(main, list(arguments))
    if result.exit_code:
        raise ValueError(result.output)
    return result.output


def rows(path: Any, **keywords: Any) -> int:
    return opened(path, **keywords).td.batch_size[0]


class Case(NamedTuple):
    says: str
    """A part of the message, with its advice."""
    mistake: Callable[[], Any]
    advice: Callable[[], Any]
    """What it advises; true if that gave what was promised."""


def grow_fixed_file() -> bool:
    weather().td.to_h5("log.h5")
    with opened("log.h5") as before:
        joined = xr.concat([before.load(), later()], "time", data_vars="minimal")
    joined.encoding["unlimited_dims"] = {"time"}
    joined.td.to_h5("log.h5", mode="w")
    later().assign_coords(time=TIMES + np.timedelta64(12, "D")).td.to_h5("log.h5", append_dim="time")
    return rows("log.h5") == 18


def refused_labels() -> None:
    hdf5(obs=np.zeros((6, 3)))
    with h5py.File("file.h5", "r+") as file:
        file["obs"].attrs["DIMENSION_LABELS"] = np.array([1, 2])
    xtd.annotate("file.h5", "time")


def mended_labels() -> bool:
    with h5py.File("file.h5", "r+") as file:
        del file["obs"].attrs["DIMENSION_LABELS"]
    return xtd.annotate("file.h5", "time").batch_dims == ("time",)


EARLY = np.array(["1500-01-01"] * 6, "datetime64[s]")
PACKED = {"dtype": "int16", "scale_factor": 0.5}
EIGHT_BITS = TensorDict({"w": torch.ones(4).to(torch.float8_e5m2)}, [4])


def v2_image() -> str:
    root = zarr.open_group("v2.zarr", mode="w", zarr_format=2)
    image = root.create_array("image", data=np.array([[0, 7], [0, 5]], "u1"))
    image.attrs["_ARRAY_DIMENSIONS"] = ["y", "x"]
    return "v2.zarr"


def pickled() -> str:
    TensorDict({"x": torch.zeros(4), "seen": NonTensorData({1, 2}, batch_size=[4])}, [4]).to_zarr("pickled.zarr")
    return "pickled.zarr"


def stale() -> None:
    attrs = zarr.open_group(run()).attrs
    attrs["__tensordict__"] = {**attrs["__tensordict__"], "batch_size": [7]}


def closed() -> Any:
    ptd = xtd.open_persistent(run())
    ptd.close()
    return ptd


def unknown() -> Any:
    import dask.array

    values = dask.array.arange(20, chunks=5)
    return values[values % 2 == 0]


def graded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone().requires_grad_(tensor.is_floating_point())


@tensordict.tensorclass
class Step:
    obs: torch.Tensor


def columns() -> xr.Dataset:
    return xr.Dataset({"a": ("p", np.zeros(3)), "b": ("q", np.zeros(4)), "c": ("r", np.zeros(4))})


def words(*values: str) -> xr.Dataset:
    return xr.Dataset({"x": ("time", np.zeros(len(values))), "word": ("time", np.array(values, object))})


def fixed(ds: xr.Dataset) -> xr.Dataset:
    return ds.assign(word=ds["word"].astype("S4" if ds.sizes["time"] == 1 else "S1"))


def stacked() -> xr.Dataset:
    index = pd.MultiIndex.from_product([[0, 1], ["a", "b"]], names=["y", "x"])
    return xr.Dataset({"v": ("place", np.arange(4))}, coords=xr.Coordinates.from_pandas_multiindex(index, "place"))


def widened() -> xr.Dataset:
    ds = xtd.to_dataset(EIGHT_BITS)
    del ds["w"].encoding["torch_dtype"]
    return ds


# fmt: off
OPENING = [
    Case(", or leave out the others with drop_variables=[...]",
         lambda: opened(hdf5(a=np.zeros((6, 3)), b=np.zeros((6, 2))), batch_dims=2),
         lambda: (rows("file.h5", batch_dims=1) == 6
             and opened("file.h5", batch_dims=2, drop_variables=["b"]).td.batch_size == (6, 3))),
    Case("open one group with group=",
         lambda: opened(hdf5(**{"obsm/pca": np.zeros((6, 3)), "varm/pcs": np.zeros((4, 3))}), batch_dims="cell"),
         lambda: (rows("file.h5", batch_dims="cell", drop_variables=["varm"]) == rows("file.h5", batch_dims="cell",
             group="obsm") == 6)),
    Case("Open the store without batch_dims, then choose by the names it shows: ds.td.set_batch_dims(",
         lambda: opened(hdf5(a=np.zeros((6, 3)), b=np.zeros(6)), batch_dims="batch_0"),
         lambda: opened("file.h5").td.set_batch_dims(["batch_0"]).td.batch_dims == ("batch_0",)),
    Case("are not shown; open one with group=",
         lambda: opened(split()).td.to_tensordict(),
         lambda: (rows("split.zarr", group="train") == 8 and len(xr.open_datatree("split.zarr", engine="tensordict").children) == 2
             and len(opened("split.zarr", nested=True)) == 2)),
    Case(", all groups with nested=True or xr.open_datatree(...)",
         lambda: xtd.open_persistent(split())["train"],
         lambda: (xtd.open_persistent("split.zarr", group="train").batch_size == (8,)
             and "train" in xtd.open_persistent("split.zarr", nested=True).keys())),  # noqa: SIM118 - a tensordict has no `in`
    Case(": open one of these", lambda: (run(), opened(".")), lambda: rows("run.zarr") == 6),
    Case("for a Dataset of another engine use ds.td.to_persistent()",
         lambda: xtd.open_persistent(plain(), engine="zarr"),
         lambda: xr.open_zarr("plain.zarr", consolidated=False).td.to_persistent().batch_size == (6,)),
    Case("give an open file in its place, for example fsspec.open(",
         lambda: (weather().td.to_h5("a.h5"), fsspec.filesystem("memory").put("a.h5", "/a.h5"), opened("memory://a.h5")),
         lambda: rows(fsspec.open("memory://a.h5", "rb").open()) == 6),
    Case("open it in binary mode ('rb')",
         lambda: opened(open(hdf5(a=np.zeros(6)))),  # noqa: SIM115
         lambda: rows(open("file.h5", "rb")) == 6),  # noqa: SIM115
    Case("use_zarr_fill_value_as_mask=False opens the zeros as zeros",
         lambda: opened(v2_image()), lambda: opened("v2.zarr", use_zarr_fill_value_as_mask=False)["image"].dtype == np.uint8),
    Case("is the accessor of xarray-tensordict. Use ",
         shadowed, lambda: weather(td=("time", np.zeros(6)))["td"].shape == (6,)),
    Case("Pass allow_pickle=True if you trust the store",
         lambda: opened(pickled()), lambda: opened("pickled.zarr", allow_pickle=True)["seen"].item() == {1, 2}),
]

ANNOTATING = [
    Case("), or choose other batch_dims (now ",
         lambda: xtd.annotate(plain()),
         lambda: (opened("plain.zarr").td.to_zarr("both.zarr"), TensorDict.from_zarr("both.zarr").batch_size == (6,))[1]),
    Case("give the names on opening with dims=",
         lambda: (TensorDict({"x": torch.zeros(6, 3)}, [6]).memmap("mapped"), xtd.annotate("mapped", "time", dims={"x": ("f",)})),
         lambda: opened("mapped", batch_dims="time", dims={"x": ("f",)})["x"].dims == ("time", "f")),
    Case("; delete it with h5py (del file[", refused_labels, mended_labels),
    Case("; the batch size is taken from the arrays, ",
         lambda: (stale(), opened("run.zarr")),
         lambda: (xtd.annotate("run.zarr"), TensorDict.from_zarr("run.zarr").batch_size == (6,))[1]),
    Case("pass --to (",
         lambda: cli("convert", run(), "copy.what"),
         lambda: (cli("convert", "run.zarr", "copy.what", "--to", "hdf5"), rows("copy.what") == 6)[1]),
    Case("choose another target, or pass --overwrite",
         lambda: cli("convert", run(), hdf5(a=np.zeros(2))),
         lambda: (cli("convert", "run.zarr", "file.h5", "--overwrite"), rows("file.h5") == 6)[1]),
]

CONVERTING = [
    Case("; pass coords=",
         lambda: weather().td.to_tensordict(include=["t2m", "lat"], coords=["time"]),
         lambda: "mask" not in weather().td.to_tensordict(include=["t2m", "lat"], coords=["lat"], unbatched="keep")),
    Case("choose unbatched='drop', 'keep' or 'expand'",
         lambda: weather().td.to_tensordict(unbatched="raise"),
         lambda: all(weather().td.to_tensordict(unbatched=choice).batch_size == (6,) for choice in ("drop", "keep", "expand"))),
    Case("torch has no dtype for ",
         lambda: weather(z=("time", np.ones(6, np.clongdouble) * 1j)).td.to_tensordict(),
         lambda: (weather(z=("time", np.ones(6, np.clongdouble) * 1j)).astype("complex128").td.to_tensordict()["z"][0] == 1j)),
    Case("rename one of them",
         lambda: xr.Dataset({"a": ("t", [1.0]), "a/b": ("t", [2.0])}).td.to_tensordict(),
         lambda: xr.Dataset({"a": ("t", [1.0]), "c/b": ("t", [2.0])}).td.to_tensordict()["c", "b"] == 2),
    Case("Call compute_chunk_sizes() of the array before it becomes a variable",
         lambda: xr.Dataset({"x": ("t", unknown())}).td.batch_size,
         lambda: xr.Dataset({"x": ("t", unknown().compute_chunk_sizes())}).td.batch_size == (10,)),
    Case("copy=None (copies only where it must) or copy=True",
         lambda: weather().assign(t2m=weather()["t2m"].astype(">f4")).td.to_tensordict(copy=False),
         lambda: all(weather().assign(t2m=weather()["t2m"].astype(">f4")).td.to_tensordict(copy=copy)["t2m"][1,
             0] == 2 for copy in (None, True))),
    Case("pass out.detach(), which shares its memory",
         lambda: weather().td.to_tensordict(out=weather().td.to_tensordict().apply(graded)),
         lambda: weather().td.to_tensordict(out=weather().td.to_tensordict().apply(graded).detach())["t2m"][1, 0] == 2),
    Case("rename it first with td.rename_key_(",
         lambda: xtd.to_dataset(TensorDict({"a/b": torch.zeros(3)}, [3])),
         lambda: "ab" in xtd.to_dataset(TensorDict({"a/b": torch.zeros(3)}, [3]).rename_key_("a/b", "ab"))),
    Case("call .to_dense() first",
         lambda: xtd.to_dataset(TensorDict({"a": torch.eye(3).to_sparse()}, [3])),
         lambda: xtd.to_dataset(TensorDict({"a": torch.eye(3).to_sparse().to_dense()}, [3]))["a"].shape == (3, 3)),
    Case("give the rows it was made from, template=ds.isel(",
         lambda: xtd.to_dataset(weather().td.to_tensordict().exclude("time")[2:5], template=weather()),
         lambda: np.array_equal(xtd.to_dataset(weather().td.to_tensordict().exclude("time")[2:5],
             template=weather().isel(time=slice(2, 5)))["time"], TIMES[2:5])),
    Case("drop or add variables, or pass another class",
         lambda: weather().td.to_tensordict(cls=Step),
         lambda: weather().rename(t2m="obs").drop_vars("time").td.to_tensordict(cls=Step).obs.shape == (6, 2)),
    Case("use bool(...) or a mask",
         lambda: xtd.open_persistent(run())[np.True_], lambda: xtd.open_persistent("run.zarr")[bool(np.True_)].batch_size == (1, 6)),
]

LAZY = [
    Case("Convert it first, with to_tensordict() to memory or ds.td.to_zarr(path) to a new store, or open it with mode='r+'",
         lambda: xtd.open_persistent(run()).set_("obs", torch.ones(6, 3)),
         lambda: (xtd.open_persistent("run.zarr").to_tensordict().set_("obs", torch.ones(6, 3))["obs"].all()
             and xtd.open_persistent("run.zarr", mode="r+").set_("obs", torch.ones(6, 3))["obs"].all())),
    Case("or open a copy, written with ds.drop_vars(list(ds.td.unbatched.variables)).td.to_zarr(path)",
         lambda: xtd.open_persistent(plain(), mode="r+"),
         lambda: ((ds := opened("plain.zarr")).drop_vars(list(ds.td.unbatched.variables)).td.to_zarr("copy.zarr"),
             xtd.open_persistent("copy.zarr", mode="r+").set_at_("t2m", torch.ones(2), 0)["t2m"][0].sum() == 2)[1]),
    Case("the store was closed with close(); open it again",
         lambda: closed()["obs"], lambda: xtd.open_persistent("run.zarr")["obs"].shape == (6, 3)),
]

LOADING = [
    Case("pass a smaller --batch-size, or longer --seconds",
         lambda: cli("bench", plain(), "--batch-size", "2", "--seconds", "0.1"),
         lambda: "fewer than" not in cli("bench", "plain.zarr", "--batch-size", "1", "--seconds", "0.1")),
    Case("episodes of different lengths become one Dataset with xr.open_datatree(...)[",
         lambda: opened(hdf5(**{f"demo_{n}/{name}": np.zeros((4 + n, 2)) for n in range(2) for name in "ab"})).td.batches(2),
         lambda: len(xr.open_datatree("file.h5", engine="tensordict")["/"].td.concat("time").td.batches(3)) == 3),
    Case("Pass batch_dims=..., or set it with ds.td.set_batch_dims(...)",
         lambda: columns().td.batches(2),
         lambda: (len(columns().td.batches(2, batch_dims="p")) == len(columns().td.set_batch_dims("p").td.batches(2)) == 2)),
    Case("there is no batch dim to split along: ",
         lambda: columns().td.split({"a": 0.5, "b": 0.5}),
         lambda: set(columns().td.set_batch_dims("p").td.split({"a": 0.5, "b": 0.5})) == {"a", "b"}),
    Case("are for windows: pass their length, ",
         lambda: weather().td.batches(2, stride=2), lambda: len(weather().td.batches(2, window={"time": 2}, stride=2)) == 2),
    Case("pass a variable of numbers or strings",
         lambda: list(objects({1}, {2}, {3}).td.batches(2, window={"time": 1}, within="z")),
         lambda: len(objects("a", "a", "b").td.batches(1, window={"time": 2}, within="z")) == 1),
    Case("or choose where to begin: batches(..., epoch=, start=)",
         lambda: (weather().td.batches(3, seed=0,
             shuffle=True).load_state_dict(weather().td.batches(2, seed=0, shuffle=True).state_dict())),
         lambda: len(list(weather().td.batches(3, seed=0, shuffle=True, epoch=1, start=1))) == 1),
    Case("Pass a larger share than",
         lambda: weather().td.split({"a": 0.99, "b": 0.01}), lambda: len(weather().td.split({"a": 0.8, "b": 0.2})) == 2),
]

WRITING = [
    Case("Pass mode='w' to replace it, mode='a' to add to it, or append_dim= to append",
         lambda: (written(), written()),
         lambda: (written(mode="w"), written(weather()[["t2m"]].rename(t2m="u"), mode="a"),
             later(u=weather()["t2m"].assign_coords(time=TIMES + np.timedelta64(6, "D"))).td.to_zarr("written.zarr",
             append_dim="time"), rows("written.zarr") == 12)[-1]),
    Case("dask would read ",
         lambda: opened(written(), chunks={}).td.to_zarr("written.zarr", region={"time": slice(0, 6)}),
         lambda: (opened("written.zarr", chunks={}).drop_vars(["mask", "lat"]).load().td.to_zarr("written.zarr",
             region={"time": slice(0, 6)}), opened("written.zarr", chunks={}).td.to_zarr("other.zarr"), rows("other.zarr") == 6)[-1]),
    Case("with ds.encoding['unlimited_dims'] =",
         lambda: (weather().td.to_h5("log.h5"), later().td.to_h5("log.h5", append_dim="time")), grow_fixed_file),
    Case("drop them, or write to a new store",
         lambda: later(u=("time", np.zeros(6))).td.to_zarr(written(), append_dim="time"),
         lambda: (later().td.to_zarr("written.zarr", append_dim="time"), rows("written.zarr") == 12)[1]),
    Case(") if nothing is lost by that",
         lambda: later().astype("f8").assign(mask=weather()["mask"]).td.to_zarr(written(), append_dim="time"),
         lambda: (later().assign(t2m=later()["t2m"].astype("f8").astype("float32")).td.to_zarr("written.zarr", append_dim="time"),
             rows("written.zarr") == 12)[1]),
    Case("transpose or rename the dims",
         lambda: later().rename(lat="y").td.to_zarr(written(), append_dim="time"),
         lambda: (later().rename(lat="y").rename(y="lat").td.to_zarr("written.zarr", append_dim="time"),
             rows("written.zarr") == 12)[1]),
    Case("drop it, or overwrite it with mode='a' first",
         lambda: later(mask=("lat", [True, True])).td.to_zarr(written(), append_dim="time"),
         lambda: (later().drop_vars("mask").td.to_zarr("written.zarr", append_dim="time"),
             later(mask=("lat", [True, True]))[["mask"]].td.to_zarr("written.zarr", mode="a"),
             bool(opened("written.zarr")["mask"].all()))[-1]),
    Case("a region cannot add variables; drop them",
         lambda: (weather(u=("time", np.zeros(6))).drop_vars(["mask", "lat"]).td.to_zarr(written(), region={"time": slice(0, 6)})),
         lambda: (weather()[["t2m"]].drop_vars("lat").td.to_zarr("written.zarr", region={"time": slice(0, 6)}), True)[1]),
    Case("Let region='auto' find their place",
         lambda: (weather()[["t2m"]].drop_vars("lat").isel(time=slice(2, 4)).td.to_zarr(written(), region={"time": slice(0, 2)})),
         lambda: ((weather()[["t2m"]].drop_vars("lat").isel(time=slice(2, 4)) * 0).td.to_zarr("written.zarr", region="auto"),
             opened("written.zarr")["t2m"].values[2:4].sum() == 0)[1]),
    Case("give the region as a slice, region=",
         lambda: weather()[["t2m"]].drop_vars(["lat", "time"])[{"time": slice(3)}].td.to_zarr(written(), region="auto"),
         lambda: (weather()[["t2m"]].drop_vars(["lat", "time"]).td.to_zarr("written.zarr", region={"time": slice(0, 6)}), True)[1]),
    Case("mode='r+' adds no variables; pass mode='a'",
         lambda: xr.Dataset({"u": ("time", np.zeros(6))}).td.to_zarr(written(), mode="r+"),
         lambda: (xr.Dataset({"u": ("time", np.zeros(6))}).td.to_zarr("written.zarr", mode="a"), "u" in opened("written.zarr"))[1]),
    Case("choose shards that hold whole chunks",
         lambda: written(chunks={"time": 2}, shards={"time": 3}), lambda: rows(written(chunks={"time": 2}, shards={"time": 4})) == 6),
    Case("write to a new store, with strings of any length (.astype(object))",
         lambda: (words("a", "b").pipe(fixed).td.to_zarr("w.zarr"),
             words("long").pipe(fixed).td.to_zarr("w.zarr", append_dim="time")),
         lambda: (words("a", "b").td.to_zarr("v.zarr"), words("long").td.to_zarr("v.zarr", append_dim="time"),
             rows("v.zarr") == 3)[-1]),
    Case("and set it again after opening with ds.set_index(",
         lambda: stacked().td.to_zarr("m.zarr"),
         lambda: (stacked().reset_index("place").td.to_zarr("m.zarr"),
             opened("m.zarr").set_index(place=["y", "x"])["v"].sel(y=1, x="b").item() == 3)[1]),
    Case("rename it, or write with layout='xarray'",
         lambda: weather(_unbatched=("time", np.zeros(6))).td.to_zarr("u.zarr"),
         lambda: (weather(_unbatched=("time", np.zeros(6))).td.to_zarr("u.zarr", layout="xarray"),
             weather(_unbatched=("time", np.zeros(6))).rename(_unbatched="rest").td.to_zarr("r.zarr"),
             rows("u.zarr") == rows("r.zarr") == 6)[-1]),
    Case("write with layout='xarray', or drop the variable",
         lambda: weather(early=("time", EARLY)).td.to_zarr("e.zarr"),
         lambda: (weather(early=("time", EARLY)).td.to_zarr("e.zarr", layout="xarray"),
             weather(early=("time", EARLY)).drop_vars("early").td.to_zarr("d.zarr"),
             np.array_equal(opened("e.zarr")["early"], EARLY))[-1]),
    Case("leave it out, or write with layout='xarray'",
         lambda: weather().td.to_zarr("p.zarr", encoding={"t2m": PACKED}),
         lambda: (weather().td.to_zarr("p.zarr", layout="xarray", encoding={"t2m": PACKED}),
             opened("p.zarr")["t2m"][1, 0].item() == 2)[1]),
    Case("convert it to numbers, strings, lists or dicts, or drop it",
         lambda: objects({1}, {2}).td.to_zarr("o.zarr"),
         lambda: (objects([1], {"a": 2}).td.to_zarr("o.zarr"), opened("o.zarr")["z"].values[1] == {"a": 2})[1]),
    Case("convert it, or drop it",
         lambda: objects((1, 2), (3, 4)).td.to_zarr("o.zarr"),
         lambda: (objects([1, 2], [3, 4]).td.to_zarr("o.zarr"), opened("o.zarr")["z"].values[1] == [3, 4])[1]),
    Case("write it with ds.td.to_zarr(), or remove the character",
         lambda: words("a\0b", "c").td.to_h5("n.h5"),
         lambda: (words("a\0b", "c").td.to_zarr("n.zarr"), opened("n.zarr")["word"].values[0] == "a\0b")[1]),
    Case("fill them with .fillna('')",
         lambda: objects("a", None).td.to_h5("n.h5"),
         lambda: (objects("a", None).assign(z=objects("a", None)["z"].fillna("")).td.to_h5("n.h5"),
             opened("n.h5")["z"].values[1] == "")[1]),
    Case("write to one and copy it, or use ds.td.to_zarr for a URL",
         lambda: weather().td.to_h5("memory://advice/a.h5"),
         lambda: (weather().td.to_zarr("memory://advice/a.zarr", mode="w"), rows("memory://advice/a.zarr") == 6)[1]),
    Case("choose another group=, or pass mode='w'",
         lambda: weather().td.to_h5(hdf5(x=np.zeros(3)), group="x"),
         lambda: (weather().td.to_h5("file.h5", group="x", mode="w"), rows("file.h5", group="x") == 6)[1]),
    Case("unpack it, change the folder, and write it again with mode='w'",
         lambda: (weather().td.to_zarr("w.zip"), later().td.to_zarr("w.zip", append_dim="time")),
         lambda: (opened("w.zip").td.to_zarr("folder.zarr"), later().td.to_zarr("folder.zarr", append_dim="time"),
             opened("folder.zarr").td.to_zarr("w.zip", mode="w"), rows("w.zip") == 12)[-1]),
    Case("a zip file is written at once, compute=False is not possible; write to a folder",
         lambda: weather().td.to_zarr("w.zip", compute=False),
         lambda: (weather().chunk().td.to_zarr("w.zarr", compute=False).compute(), rows("w.zarr") == 6)[1]),
    Case(", which cannot hold it exactly; convert it",
         lambda: objects({1}, {2}).td.to_memmap("mapped"),
         lambda: (objects({1}, {2}).td.to_memmap("mapped", exclude=["z"]), rows("mapped") == 2)[1]),
    Case("choose another path, or mode='w' to replace it",
         lambda: (weather().td.to_memmap("mapped"), later().td.to_memmap("mapped", mode="w-")),
         lambda: (later().td.to_memmap("mapped", mode="w"), tensordict.load("mapped").batch_size == (6,))[1]),
    Case("To load them with tensordict.load, widen them: del ds[",
         lambda: xtd.to_dataset(EIGHT_BITS).td.to_memmap("eight"),
         lambda: (widened().td.to_memmap("eight", mode="w"), tensordict.load("eight")["w"].dtype == torch.float32)[1]),
]

MORE = [
    Case("round them, or write to a new store",
         lambda: (hours("s").td.to_zarr("h.zarr"), hours("ns", 1).td.to_zarr("h.zarr", append_dim="time")),
         lambda: (hours("ns", 1).assign_coords(time=hours("s")["time"]).td.to_zarr("h.zarr", append_dim="time"),
             rows("h.zarr") == 6)[1]),
    Case("convert the values and the attribute",
         lambda: later(t2m=kelvin("degC")).td.to_zarr(written(weather(t2m=kelvin("K"))), append_dim="time"),
         lambda: (later(t2m=kelvin("K")).td.to_zarr("written.zarr", append_dim="time"), rows("written.zarr") == 12)[1]),
    Case("fill them with .fillna(...), or convert it with .astype('float64')",
         lambda: masked().td.to_tensordict(),
         lambda: (masked().assign(n=("t", pd.array([1, 0], "Int64"))).td.to_tensordict()["n"].tolist() == [1, 0]
             and masked().astype("float64").td.to_tensordict()["n"].isnan().tolist() == [False, True])),
    Case("give the names as a tuple",
         lambda: xtd.to_dataset(weather().td.to_tensordict().set("new", torch.zeros(6, 2, 4)), template=weather(),
             dims={"new": "t2m"}),
         lambda: ("z" in xtd.to_dataset(weather().td.to_tensordict().set("new", torch.zeros(6, 2, 4)),
             dims={"new": ("lat", "z")}).dims)),
    Case("write it with ds.td.to_h5(), or pad the rows, or drop it",
         lambda: objects(np.zeros(2), np.zeros(3)).td.to_zarr("r.zarr"),
         lambda: (objects(np.zeros(2), np.zeros(3)).td.to_h5("r.h5"),
             objects(np.zeros(2), np.zeros(3)).drop_vars("z").td.to_zarr("r.zarr"), opened("r.h5")["z"].values[1].shape == (3,))[-1]),
    Case("write it with layout='tensordict', or pad the rows, or drop it",
         lambda: objects(np.zeros(2), np.zeros(3)).td.to_h5("r.h5", layout="xarray"),
         lambda: (objects(np.zeros(2), np.zeros(3)).td.to_h5("r.h5"), opened("r.h5")["z"].values[1].shape == (3,))[1]),
    Case("pad it with tensordict, or read it with tensordict.load",
         lambda: (nested().memmap("nested"), opened("nested")),
         lambda: (TensorDict({"x": nested()["x"].to_padded_tensor(0.0), "y": torch.zeros(2)}, [2]).memmap("padded"),
             opened("padded")["x"].shape == (2, 3) and tensordict.load("nested")["x"].is_nested)[1]),
    Case("choose a region of whole chunks, or load the dataset",
         lambda: part().chunk().td.to_zarr(written(chunks={"time": 4}), region={"time": slice(0, 3)}),
         lambda: (part().chunk().load().td.to_zarr("written.zarr", region={"time": slice(0, 3)}),
             part(4).chunk().td.to_zarr("written.zarr", region={"time": slice(0, 4)}),
             opened("written.zarr")["t2m"].values[:4].sum() == 0)[-1]),
    Case("], or write with ds.td.to_zarr(path) or unbatched='keep'",
         lambda: listed().td.to_memmap("lists", unbatched="expand"),
         lambda: (listed().td.to_memmap("lists", unbatched="expand", exclude=["z"]), listed().td.to_memmap("kept"),
             listed().td.to_zarr("lists.zarr"), opened("lists.zarr")["z"].shape == (2, 2))[-1]),
]
# fmt: on


def hours(unit: str, offset: int = 0) -> xr.Dataset:
    times = np.datetime64("2024-01-01", unit) + np.arange(3) * np.timedelta64(3600, "s") + np.timedelta64(offset, unit)
    return xr.Dataset({"x": ("time", np.zeros(3))}, coords={"time": times})


def kelvin(units: str) -> xr.Variable:
    return xr.Variable(("time", "lat"), np.zeros((6, 2), "f4"), {"units": units})


def masked() -> xr.Dataset:
    return xr.Dataset({"n": ("t", pd.array([1, None], "Int64"))})


def nested() -> TensorDict:
    rows = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    return TensorDict({"x": rows, "y": torch.zeros(2)}, [2])


def part(size: int = 3) -> xr.Dataset:
    return weather()[["t2m"]].drop_vars(["lat", "time"]).isel(time=slice(size)) * 0


def listed() -> xr.Dataset:
    column = np.empty((2, 2), object)
    column[:] = [["a", "b"], ["c", "d"]]
    return xr.Dataset({"x": ("time", np.zeros(2)), "z": (("time", "k"), column)}).td.set_batch_dims("time")


def messages_of(mistake: Callable[[], Any]) -> str:
    """What is raised, or what the text that is returned says, or what is warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = mistake()
        except Exception as error:
            return str(error)
    return found if isinstance(found, str) else "\n".join(str(warning.message) for warning in caught)


def quiet(opening: Callable[[], Any]) -> bool:
    """Whether nothing is warned of."""
    return not messages_of(opening)


def mark(path: str, value: Any, name: str = "__tensordict__", group: str = "") -> None:
    """Set an attribute of a group of a store, or delete it."""
    with h5py.File(path, "r+") if path.endswith(".h5") else nullcontext(zarr.open_group(path + group)) as root:
        if value is None:
            del root.attrs[name]
        else:
            root.attrs[name] = value


def square() -> str:
    root = zarr.open_group("square.zarr", mode="w")
    for name, dims in {"cov": ["t", "x", "x"], "mean": ["t", "x"]}.items():
        root.create_array(name, data=np.zeros((5, 3, 3)[: len(dims)]), dimension_names=dims)
    return "square.zarr"


def pair() -> str:
    TensorDict({"a": torch.zeros(6), "b": torch.zeros(6)}, [6]).to_zarr("pair.zarr")
    return "pair.zarr"


def finer() -> None:
    hours("s").td.to_zarr("hours.zarr")
    array = zarr.open_array("hours.zarr/time", mode="r+")
    array[1] = array[1] + np.timedelta64(1, "ns") if array.dtype.kind == "M" else array[1] + 1


def mapped(td: TensorDict | None = None, path: str = "mapped") -> str:
    shutil.rmtree(path, ignore_errors=True)
    (TensorDict({"obs": torch.zeros(6, 3), "more": torch.zeros(6)}, [6]) if td is None else td).memmap(path)
    return path


def chunked() -> str:
    with h5py.File("chunked.h5", "w") as file:
        file.create_dataset("a", data=np.ones((600, 9)), chunks=(50, 9))
    return "chunked.h5"


def meta(key: str, value: Any) -> None:
    path = Path(mapped(), "meta.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))


def cut_while_open(path: str) -> None:
    with opened(path, cache=False) as ds:
        file = f"{path}/obs.memmap" if os.path.isdir(path) else path
        os.truncate(file, os.stat(file).st_size // 2)
        ds.load()


def view() -> Any:
    return TensorDict({"a": torch.ones(6)}, [6])._get_sub_tensordict(slice(4))


def uneven() -> Any:
    return LazyStackedTensorDict(*(TensorDict({"x": torch.zeros(n, 2)}, [n], names=["time"]) for n in (2, 3)))


def scaled() -> str:
    with h5py.File("scaled.h5", "w") as file:
        file["time"], file["x"], file["y"] = np.arange(4), np.zeros((4, 3)), np.ones((4, 3))
        file["time"].make_scale("time")
        file["x"].dims[0].attach_scale(file["time"])
    return "scaled.h5"


def move(path: str, old: str, new: str) -> None:
    with h5py.File(path, "r+") as file:
        file.move(old, new)


def virtual(part: str) -> None:
    layout = h5py.VirtualLayout((6, 2), "f8")
    layout[:] = h5py.VirtualSource(part, "part", (6, 2))
    with h5py.File("virtual.h5", "w") as file:
        file.create_virtual_dataset("x", layout)


def netcdf(form: Any) -> str:
    with netCDF4.Dataset("three.nc", "w", format=form) as file:
        file.createDimension("time", 6)
        file.createVariable("t2m", "f4", ("time",))[:] = 1
    return "three.nc"


def in_engines(*engines: Any) -> bool:
    return all(xr.open_dataset("three.nc", engine=engine).td.batch_size == (6,) for engine in engines)


def zipped() -> str:
    weather().td.to_zarr("w.zip", mode="w")
    return "w.zip"


def fill_zip(times: int = 1) -> None:
    with zarr.storage.ZipStore("new.zip", mode="w") as store:
        for _ in range(times):
            weather().td.to_zarr(store, mode="w")


def repository() -> Any:
    import icechunk

    storage = icechunk.local_filesystem_storage(os.path.abspath("repository"))
    if os.path.exists("repository"):
        return icechunk.Repository.open(storage)
    made = icechunk.Repository.create(storage)
    session = made.writable_session("main")
    zarr.open_group(session.store).create_array("obs", data=np.random.rand(6, 300), dimension_names=["time", "f"])
    session.commit("six rows")
    return made


def reference(**more: Any) -> str:
    weather().drop_vars("mask").td.to_zarr("files.zarr", mode="w", zarr_format=2, layout="xarray", consolidated=False)
    refs: dict[str, Any] = {}
    for file in Path("files.zarr").absolute().rglob("*"):
        if file.is_file():
            key = file.relative_to(Path("files.zarr").absolute()).as_posix()
            refs[key] = file.read_text() if file.name[:2] == ".z" else [str(file), 0, file.stat().st_size]
    Path("refs.json").write_text(json.dumps({"version": 1, "refs": refs, **more}))
    return "refs.json"


def unpickled(name: str = "z") -> str:
    """A store with an array of the codec pickle, which zarr does not make any more."""
    folder = Path(written(zarr_format=2, mode="w"), name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    array = {"shape": [2], "chunks": [2], "dtype": "|O", "fill_value": None, "order": "C", "compressor": None}
    filters = [{"id": "vlen-utf8"}, {"id": "pickle", "protocol": 5}]
    (folder / ".zarray").write_text(json.dumps({**array, "zarr_format": 2, "filters": filters}))
    (folder / ".zattrs").write_text(json.dumps({"_ARRAY_DIMENSIONS": ["lat"]}))
    (folder / "0").write_bytes(numcodecs.Pickle().encode(numcodecs.VLenUTF8().encode(np.array(["a", "b"], object))))
    return "written.zarr"


def filled_v2() -> str:
    root = zarr.open_group("filled.zarr", mode="w", zarr_format=2)
    root.create_array("image", data=np.full((6, 4), 7), fill_value=7)
    return "filled.zarr"


def twice() -> xr.Dataset:
    return xr.Dataset({name: ("t", np.zeros(3)) for name in ("x", "done", "next/done")})


def episodes(**more: Any) -> xr.Dataset:
    return xr.Dataset({"x": ("t", np.arange(4.0)), "episode_ends": ("n", [2, 4]), **more})


def tree(second: dict[str, Any] | None = None, **more: Any) -> str:
    """Two episodes of 2 and 3 rows in a file; the arrays of the second by name, and more of the first."""
    second = {"x": np.zeros((3, 2)), "y": np.zeros(3)} if second is None else second
    first = {"x": np.zeros((2, 2)), "y": np.zeros(2), **more}
    return hdf5(
        **{f"{name}/{key}": each for name, arrays in (("a", first), ("b", second)) for key, each in arrays.items()}
    )


def joined(
    path: str = "file.h5", dim: str = "time", names: dict[str, str] | None = None, **keywords: Any
) -> xr.Dataset:
    with xr.open_datatree(path, engine="tensordict", **keywords) as dt:
        return dt.td.concat(dim, **names or {}).load()


def noleap(name: str = "when") -> xr.Dataset:
    dates = [cftime.DatetimeNoLeap(2001, 1, day) for day in range(1, 7)]
    return weather().assign_coords(time=dates) if name == "time" else weather(when=("time", dates))


def missing_in_noleap() -> str:
    ds = noleap("time")
    ds["t2m"] = ds["t2m"].where(ds["t2m"] != 3)
    ds.drop_vars("mask").td.to_zarr("n.zarr", layout="xarray", encoding={"t2m": {"_FillValue": 1e20}}, mode="w")
    return "n.zarr"


def without_cftime(opening: Callable[[], Any]) -> Any:
    """As where the package is not installed: no import finds it, and xarray found none either."""
    with patch.dict("sys.modules", {"cftime": None}), patch("xarray.coding.times.cftime", None):
        return opening()


def early() -> xr.Dataset:
    return xr.Dataset({"x": ("time", np.zeros(3)), "when": ("time", np.array(["1500", "2000", "2001"], "M8[s]"))})


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.tensor([1.0, 2, 3]), 0.1, 0, torch.quint8)


def vast() -> xr.Dataset:
    import dask.array

    return xr.Dataset({"x": ("time", dask.array.zeros(2**41, chunks=2**38, dtype="u1"))})


def packed(value: float) -> xr.Dataset:
    values = xr.Variable("time", np.full(6, value, "f4"), encoding={"dtype": "int16", "scale_factor": 0.5})
    return xr.Dataset({"x": values})


def numbered(values: list[Any]) -> xr.Dataset:
    return xr.Dataset({"x": ("time", np.zeros(len(values))), "n": ("time", values)})


def d4rl() -> xr.Dataset:
    flags = {"terminals": [0, 0, 0, 1, 0, 0], "timeouts": [0, 1, 0, 0, 0, 1]}
    return xr.Dataset(
        {"x": ("time", np.zeros(6)), **{name: ("time", np.array(each, bool)) for name, each in flags.items()}}
    )


def windows(ds: xr.Dataset, dim: str, **options: Any) -> int:
    """How many of two rows there are; nothing is warned of."""
    made: list[Any] = []
    assert quiet(lambda: made.append(ds.td.batches(1, window={dim: 2}, **options)))
    return len(made[0])


def demos() -> xr.DataTree:
    return xr.DataTree.from_dict({f"data/{n}": xr.Dataset({"x": ("time", np.zeros(2 + n))}) for n in range(2)})


def number_flags(ds: xr.Dataset, flags: str) -> list[int]:
    """The line of the message is run; the numbers of the episodes."""
    text = messages_of(lambda: ds.td.batches(1, window={"time": 2}, within=flags))
    (line,) = re.findall("ds = ds.*td.concat.*?[)]", text)
    exec(line, found := {"ds": ds})
    assert len(found["ds"].td.batches(1, window={found["ds"]["episode"].dims[0]: 1}, within="episode"))
    return found["ds"]["episode"].values.tolist()


def grid() -> xr.Dataset:
    flags = np.tile([[False], [True]], (3, 2))
    return xr.Dataset(
        {
            "x": (("time", "env"), np.zeros((6, 2))),
            "n": (("time", "env"), np.zeros((6, 2), int)),
            "next/done": (("time", "env"), flags),
        }
    )


HELD: list[Any] = []
MEMORY = "memory://advice/lazy.zarr"
RECORDS = np.zeros(3, [("a", "i4"), ("b", "f4")])


def renamed() -> xr.Dataset:
    return weather().td.set_batch_dims(["lat", "time"]).isel(time=slice(2)).rename(time="when")


def both() -> xr.Dataset:
    return xr.concat([weather(), later()], "time", data_vars="minimal")


def labelled(*labels: list[int]) -> str:
    parts = {
        str(n): xr.Dataset({"x": (("t", "f"), np.zeros((2, 2)))}, coords={"f": each}) for n, each in enumerate(labels)
    }
    xr.DataTree.from_dict(parts).td.to_zarr("tree.zarr", mode="w")
    return "tree.zarr"


def unbatched(value: float) -> xr.Dataset:
    values = xr.Variable("lat", np.full(2, value, "f4"), encoding={"dtype": "int16", "scale_factor": 0.5})
    return weather(s=values)


def recorded() -> str:
    zarr.open_group("records.zarr", mode="w").create_array("r", data=RECORDS)
    return "records.zarr"


def killed() -> str:
    """A file as a writer leaves it that is killed, and the whole one."""
    with h5py.File("whole.h5", "w", libver="latest") as file:
        file["a"] = np.zeros(6)
        file.flush()
        shutil.copy("whole.h5", "killed.h5")
    return "killed.h5"


def damage(path: str, chunk: str) -> None:
    Path(path, chunk).write_bytes(b"damaged")


def broken(cut: bool) -> str:
    """A file that is cut off, or whose superblock is overwritten; the whole one is beside it."""
    shutil.copy(hdf5(a=np.zeros((600, 3))), "half.h5")
    whole = Path("half.h5").read_bytes()
    Path("half.h5").write_bytes(whole[:4000] if cut else whole[:8] + b"\xff" * 32 + whole[40:])
    return "half.h5"


def to_h5() -> str:
    TensorDict({"obs": torch.zeros(6, 3)}, [6], names=["time"]).to_h5("td.h5").close()
    return "td.h5"


DAY = 86_400 * 10**9


def trusted(path: str) -> Any:
    with patch.object(numcodecs.pickles, "ALLOW_UNSAFE_PICKLE_DECODE", True, create=True):
        return zarr.open_array(path)[:]


# fmt: off
OPENING_MORE = [
    Case("leave it out of batch_dims",
         lambda: opened(square(), batch_dims=["t", "x"]), lambda: rows("square.zarr", batch_dims="t") == 5),
    Case("give a smaller count", lambda: opened(square(), batch_dims=3), lambda: rows("square.zarr", batch_dims=1) == 5),
    Case("open it again when it is whole",
         lambda: (zarr.open_group(pair())["a"].resize((7,)), opened("pair.zarr")),
         lambda: (zarr.open_group("pair.zarr")["a"].resize((6,)), quiet(lambda: opened("pair.zarr")))),
    Case("which hold. Write the store again or annotate it to make the record true",
         lambda: (mark(run(), {"batch_size": [6], "version": 1, "names": ["step"]}, group="/next"), opened("run.zarr")),
         lambda: (xtd.annotate("run.zarr"), quiet(lambda: opened("run.zarr")))),
    Case("open one with group=, or each with its own batch by xr.open_datatree(...) or nested=True",
         lambda: opened(split_by_name(), batch_dims="time"),
         lambda: (rows("split.zarr", group="train", batch_dims="time") == 8
             and len(xr.open_datatree("split.zarr", engine="tensordict", batch_dims="time").children) == 2
             and len(opened("split.zarr", nested=True, batch_dims="time")) == 2)),
    Case("Correct the attribute, or delete it: the batch is then inferred from the arrays",
         lambda: (hdf5(a=np.zeros((6, 3)), b=np.zeros(6)), mark("file.h5", "{"), opened("file.h5")),
         lambda: (mark("file.h5", None), rows("file.h5") == 6)),
    Case("Update xarray-tensordict, or delete the attribute",
         lambda: (mark(run(), {"version": 99}), opened("run.zarr")), lambda: (mark("run.zarr", None), rows("run.zarr") == 6)),
    Case("open a part of it with group=...",
         lambda: opened(hdf5(**{"g/" * 40 + "a": np.zeros(6)})), lambda: rows("file.h5", group="g/" * 20) == 6),
    Case("install cftime (pip install cftime), or ",
         lambda: (path := missing_in_noleap(), without_cftime(lambda: opened(path))),
         lambda: (opened("n.zarr")["time"].dt.calendar == "noleap"
             and without_cftime(lambda: opened("n.zarr", decode_times=False))["t2m"].isnull().sum() == 1)),
    Case("open with decode_times=False to get its numbers",
         lambda: (zarr.open_group(missing_in_noleap())["time"].attrs.update(units="days since when"), opened("n.zarr")),
         lambda: opened("n.zarr", decode_times=False)["t2m"].isnull().sum() == 1),
    Case("open with decode_cf=False to get it as stored",
         lambda: (zarr.open_group(plain())["t2m"].attrs.update(scale_factor="two"), opened("plain.zarr")),
         lambda: opened("plain.zarr", decode_cf=False)["t2m"].attrs["scale_factor"] == "two"),
    Case("open the store with decode_times=False to get the nanoseconds",
         lambda: (finer(), opened("hours.zarr").load()),
         lambda: opened("hours.zarr", decode_times=False)["time"].values[1] % 10 == 1),
    Case("If the store is damaged, restore it, or leave the variable out with drop_variables=[...]",
         lambda: (damage(plain(weather(u=("time", np.ones(6)))), "t2m/c/0/0"), opened("plain.zarr").load()),
         lambda: rows("plain.zarr", drop_variables=["t2m"]) == 6),
    Case("of another version of the store: restore it, or leave the entry out with",
         lambda: cut_while_open(mapped()), lambda: opened("mapped", drop_variables=["obs"])["more"].shape == (6,)),
    Case(" says that it holds ", lambda: (os.truncate(f"{mapped()}/obs.memmap", 8), opened("mapped")), lambda: rows(mapped()) == 6),
    Case("Another file has taken its place since; open the store again",
         lambda: (ds := opened(mapped()), mapped(TensorDict({"obs": torch.ones(4, 5)}, [4])), ds.load()),
         lambda: opened("mapped")["obs"].shape == (4, 5)),
    Case("open it again where it is now",
         lambda: (ds := opened(plain()), os.rename("plain.zarr", "moved.zarr"), ds.load()), lambda: rows("moved.zarr") == 6),
    Case("Check the spelling; relative paths start at",
         lambda: (run(), opened("rum.zarr")), lambda: rows("run.zarr") == rows(os.path.abspath("run.zarr")) == 6),
    Case("open the store itself, by its path; its group with group=",
         lambda: opened(xtd.open_persistent(run())["next"]), lambda: rows("run.zarr") == rows("run.zarr", group="/next") == 6),
    Case("open the PersistentTensorDict, and select from the Dataset (xr.open_dataset(ptd, engine='tensordict').isel(...))",
         lambda: opened(PersistentTensorDict.from_h5(to_h5())[2:4]),
         lambda: opened(PersistentTensorDict.from_h5("td.h5")).isel(batch_0=slice(2, 4)).td.batch_size == (2,)),
    Case("ask for it with group=",
         lambda: xtd.open_persistent(split(), mode="r+"),
         lambda: (xtd.open_persistent("split.zarr", group="train").batch_size == (8,)
             and quiet(lambda: xtd.open_persistent("split.zarr", nested=True)))),
    Case("If they were renamed, choose again with ds.td.set_batch_dims(...)",
         lambda: renamed().td.batch_dims, lambda: renamed().td.set_batch_dims("lat", "when").td.batch_dims == ("lat", "when")),
    Case(" with a batch of their own (",
         lambda: opened(hdf5(lookup=np.arange(7.0),
             **{f"demo_{n}/{name}": np.zeros((5 + 4 * n, 2)) for n in range(2) for name in "abcd"})),
         lambda: (rows("file.h5", group="demo_0") == len(xr.open_datatree("file.h5", engine="tensordict")["demo_0/a"]) == 5
             and len(opened("file.h5", nested=True)) == 9)),
]

FILES = [
    Case("there is no file to append to; write one first, with mode='w'",
         lambda: weather().td.to_h5("log.h5", append_dim="time"),
         lambda: (weather().td.to_h5("log.h5", mode="w", unlimited_dims=["time"]), later().td.to_h5("log.h5", append_dim="time"),
             rows("log.h5") == 12)),
    Case("has an attribute whose name is empty, which HDF5 cannot hold; rename it",
         lambda: weather().assign_attrs({"": 1}).td.to_h5("a.h5"),
         lambda: (weather().assign_attrs(n=1).td.to_h5("a.h5"), opened("a.h5").attrs["n"] == 1)),
    Case("which neither HDF5 nor JSON holds",
         lambda: weather().assign_attrs(n=object()).td.to_h5("a.h5"),
         lambda: (weather().assign_attrs(n=[1, "a"]).td.to_h5("a.h5"), opened("a.h5").attrs["n"] == [1, "a"])),
    Case("rename the scale with h5py, file.move(...), or leave the axis out of dims=. Nothing was changed",
         lambda: (xtd.annotate(scaled(), "time"), xtd.annotate("scaled.h5", dims={"*": ("row", ...)})),
         lambda: (xtd.annotate(scaled(), "time").batch_dims == ("time",)
             and (move("scaled.h5", "time", "row"),
             xtd.annotate("scaled.h5", "row", dims={"*": ("row", ...)}).batch_dims == ("row",))[1])),
    Case(". The file is damaged or not complete: copy or download it again",
         lambda: min((messages_of(lambda cut=cut: opened(broken(cut))) for cut in (True, False)), key=lambda each: "damaged" in each),
         lambda: (shutil.copy("file.h5", "half.h5"), rows("half.h5") == 600)),
    Case(" bytes, as it was opened, found ", lambda: cut_while_open(chunked()), lambda: rows(chunked()) == 600),
    Case(", and the file ends at ",
         lambda: cut_while_open(hdf5(a=np.zeros((600, 3)), b=np.zeros(2))), lambda: rows(hdf5(a=np.zeros((600, 3)))) == 600),
    Case("was closed by its owner: open it again, or open it by its path",
         lambda: (file := h5py.File(hdf5(a=np.zeros(6))), ds := opened(file), file.close(), ds.load()),
         lambda: rows(h5py.File("file.h5")) == rows("file.h5") == 6),
    Case("there is no such file any more; open it where it is now",
         lambda: (ds := opened(hdf5(a=np.zeros(6))), ds.close(), os.rename("file.h5", "moved.h5"), ds.load()),
         lambda: rows("moved.h5") == 6),
    Case("another process cannot use that. Open the file by its path",
         lambda: pickle.dumps(opened(h5py.File(hdf5(a=np.zeros(6))))),
         lambda: pickle.loads(pickle.dumps(opened("file.h5"))).load().td.batch_size == (6,)),
    Case("is closed: open the file again, or give its path",
         lambda: (file := h5py.File(hdf5(a=np.zeros(6))), group := file["/"], file.close(), opened(group)),
         lambda: rows(h5py.File("file.h5")) == rows("file.h5") == 6),
    Case("files, of which these are not there:",
         lambda: (hdf5(part=np.zeros((6, 2))), virtual("file.h5"), os.rename("file.h5", "gone.h5"), opened("virtual.h5")),
         lambda: (os.rename("gone.h5", "file.h5"), rows("virtual.h5") == 6)),
    Case(", which is not there; restore it",
         lambda: (hdf5(part=np.zeros((6, 2))), virtual("file.h5"), hdf5(other=np.zeros(6)), opened("virtual.h5").load()),
         lambda: (hdf5(part=np.zeros((6, 2))), rows("virtual.h5") == 6)),
    Case("there is a file already. Pass mode='w' to replace it, or mode='a' to add to it",
         lambda: (weather().td.to_h5("a.h5"), weather().td.to_h5("a.h5", mode="w-")),
         lambda: (weather()[["t2m"]].rename(t2m="u").td.to_h5("a.h5", mode="a"), "t2m" in opened("a.h5"),
             weather().isel(time=slice(2)).td.to_h5("a.h5", mode="w"), rows("a.h5") == 2)),
    Case("rename it, or write all variables with mode='w'",
         lambda: (weather().td.to_h5("a.h5", layout="xarray"), xr.Dataset({"time": ("k", [1.0])}).td.to_h5("a.h5", mode="a")),
         lambda: (xr.Dataset({"hour": ("k", [1.0])}).td.to_h5("a.h5", mode="a"), "hour" in opened("a.h5"),
             xr.Dataset({"time": ("k", [1.0])}).td.to_h5("a.h5", mode="w"), opened("a.h5")["time"].dims == ("k",))),
    Case("and what is there has layout=",
         lambda: (weather().td.to_h5("a.h5", layout="xarray"), weather().td.to_h5("a.h5", mode="a", encoding={"t2m": {"zlib": True}})),
         lambda: (weather().td.to_h5("a.h5", mode="a", layout="xarray", encoding={"t2m": {"zlib": True}}),
             weather().td.to_h5("a.h5", mode="a"), opened("a.h5")["t2m"].encoding["zlib"])),
    Case("expected the path of a file, found",
         lambda: (os.mkdir("a.h5"), weather().td.to_h5("a.h5")), lambda: (weather().td.to_h5("a.h5/b.h5"), rows("a.h5/b.h5") == 6)),
    Case("choose another path, or delete the file first",
         lambda: (Path("a.txt").write_text("text"), weather().td.to_h5("a.txt")),
         lambda: (os.remove("a.txt"), weather().td.to_h5("a.txt"), rows("a.txt") == 6)),
    Case("separates nested keys in a Dataset; rename it with td.rename_key_(...), and save it again",
         lambda: opened(mapped(TensorDict({"a/b": torch.ones(4), "c": torch.ones(4)}, [4]))),
         lambda: ("ab" in opened(mapped(TensorDict({"a/b": torch.ones(4), "c": torch.ones(4)}, [4]).rename_key_("a/b", "ab"))))),
    Case("no variable has such a name; rename it with td.rename_key_(...), and save it again",
         lambda: opened(mapped(TensorDict({"": torch.ones(4), "c": torch.ones(4)}, [4]))),
         lambda: "ab" in opened(mapped(TensorDict({"": torch.ones(4), "c": torch.ones(4)}, [4]).rename_key_("", "ab")))),
    Case("so tensordict has written the values and not what they are; rename the key and save it again",
         lambda: opened(mapped(TensorDict({"shape": torch.ones(4), "a": torch.ones(4)}, [4]))),
         lambda: ("form" in opened(mapped(TensorDict({"shape": torch.ones(4), "a": torch.ones(4)}, [4]).rename_key_("shape",
             "form"))))),
    Case("save its .contiguous() or .to_tensordict() to open it here",
         lambda: opened(mapped(view())),
         lambda: rows(mapped(view().to_tensordict())) == 4),
    Case("; correct '_names', or delete it",
         lambda: (meta("_names", ["a", "b"]), opened("mapped")), lambda: (meta("_names", ["time"]), rows("mapped") == 6)),
    Case("; save its .contiguous() instead",
         lambda: opened(mapped(TensorDict({"a": torch.ones(4),
             "v": view()}, [4]))),
         lambda: ("v/a" in opened(mapped(TensorDict({"a": torch.ones(4),
             "v": view().contiguous()}, [4]))))),
    Case("Open one of them with group=, or, where they differ in the number of rows alone, concatenate them with",
         lambda: opened(mapped(uneven())),
         lambda: (rows("mapped", group="1") == 3
             and xr.open_datatree("mapped", engine="tensordict").td.concat("time").sizes["time"] == 5)),
    Case("what it returned can be computed once. Call it again",
         lambda: (later := weather().chunk().td.to_memmap("mapped", compute=False), later.compute(), weather().td.to_memmap("mapped"),
             later.compute()),
         lambda: (weather().chunk().td.to_memmap("mapped", compute=False).compute(), rows("mapped") == 6)),
    Case("expected an archive to replace, found a folder; choose another path",
         lambda: (os.mkdir("a.tdz"), weather().td.to_memmap("a.tdz")), lambda: (weather().td.to_memmap("b.tdz"), rows("b.tdz") == 6)),
    Case("expected a folder to replace, found a file; choose another path, or delete it",
         lambda: (Path("a").write_text("x"), weather().td.to_memmap("a")),
         lambda: (os.remove("a"), weather().td.to_memmap("a"), rows("a") == 6)),
    Case("in it, which would be lost; choose another path, or delete the folder",
         lambda: (os.mkdir("a"), Path("a/thesis.txt").write_text("x"), weather().td.to_memmap("a")),
         lambda: (shutil.rmtree("a"), weather().td.to_memmap("a"), rows("a") == 6)),
    Case("and tensordict does not find an entry of that name again; rename it",
         lambda: weather(shape=("time", np.zeros(6))).td.to_memmap("a"),
         lambda: (weather(form=("time", np.zeros(6))).td.to_memmap("a"), tensordict.load("a")["form"].shape == (6,))),
    Case("a netCDF-3 file. Open it with engine='scipy' or engine='netcdf4'",
         lambda: opened(netcdf("NETCDF3_CLASSIC")), lambda: in_engines("scipy", "netcdf4")),
    Case("a netCDF-3 file (64-bit offset). Open it with engine='scipy' or engine='netcdf4'",
         lambda: opened(netcdf("NETCDF3_64BIT")), lambda: in_engines("scipy", "netcdf4")),
    Case("a netCDF-3 file (CDF-5). Open it with engine='netcdf4'",
         lambda: opened(netcdf("NETCDF3_64BIT_DATA")), lambda: in_engines("netcdf4")),
    Case("a gzip file. Unpack it",
         lambda: (Path("a.gz").write_bytes(gzip.compress(Path(hdf5(a=np.zeros(6))).read_bytes())), opened("a.gz")),
         lambda: (Path("a.h5").write_bytes(gzip.decompress(Path("a.gz").read_bytes())), rows("a.h5") == 6)),
    Case("a file of numpy. xr.DataArray(numpy.load(path)).to_dataset(name='x')",
         lambda: (np.save("a.npy", np.zeros((6, 2))), opened("a.npy")),
         lambda: xr.DataArray(np.load("a.npy")).to_dataset(name="x")["x"].shape == (6, 2)),
    Case("xarray_tensordict.to_dataset(TensorDict(dict(numpy.load(path)), [N]))",
         lambda: (np.savez("a.npz", x=np.zeros((6, 2)), y=np.zeros(6)), np.savez("b.npz", x=np.zeros(6), y=np.zeros(5)), opened("a.npz")),
         lambda: (xtd.to_dataset(TensorDict(dict(np.load("a.npz")), [6])).td.batch_size == (6,)
             and xtd.to_dataset(TensorDict(dict(np.load("b.npz")), []))["y"].shape == (5,))),
    Case("Load it with torch.load(path), for a tensordict torch.load(path, weights_only=False)",
         lambda: (torch.save({"x": torch.zeros(6)}, "b.pt"), torch.save(TensorDict({"x": torch.zeros(6)}, [6]), "a.pt"), opened("a.pt")),
         lambda: (torch.load("b.pt")["x"].shape == (6,)
             and xtd.to_dataset(torch.load("a.pt", weights_only=False)).td.batch_size == (6,))),
    Case("in it. Unpack it",
         lambda: (shutil.make_archive("a", "zip", ".", hdf5(a=np.zeros(6))), opened("a.zip")),
         lambda: (shutil.unpack_archive("a.zip", "unpacked"), rows("unpacked/file.h5") == 6)),
]

ZARR = [
    Case("open the store of repository.writable_session('main') in its place, and commit the session",
         lambda: (repository(), xtd.open_persistent("repository", mode="r+")),
         lambda: (session := repository().writable_session("main"), xtd.annotate(session.store, "time"),
             xtd.open_persistent(session.store, mode="r+").set_at_("obs", torch.ones(300), 2), session.commit("one row"),
             opened("repository")["obs"].values[2].sum() == 300)),
    Case("write a store with ds.td.to_zarr, and annotate that",
         lambda: xtd.annotate(reference()),
         lambda: (opened("refs.json").td.to_zarr("own.zarr"), xtd.annotate("own.zarr").batch_dims == ("time",))),
    Case("which are not read: write them out one by one",
         lambda: opened(reference(gen=[{"key": "x/{{i}}", "url": "d", "dimensions": {"i": {"stop": 2}}}])),
         lambda: rows(reference()) == 6),
    Case("choose shards that are multiples of the chunks",
         lambda: weather().td.to_zarr("s.zarr", encoding={"t2m": {"chunks": (2, 2), "shards": (3, 2)}}),
         lambda: (weather().td.to_zarr("s.zarr", encoding={"t2m": {"chunks": (2, 2), "shards": (4, 2)}}), rows("s.zarr") == 6)),
    Case("and zarr keeps attributes as JSON; convert it to a number, a string or a list, or delete it",
         lambda: weather().assign_attrs(n=object()).td.to_zarr("a.zarr"),
         lambda: (weather().assign_attrs(n=[1]).td.to_zarr("a.zarr"), opened("a.zarr").attrs["n"] == [1])),
    Case("check the path",
         lambda: opened(zarr.storage.LocalStore(os.path.dirname(os.path.abspath(run())))),
         lambda: rows(zarr.storage.LocalStore("run.zarr")) == 6),
    Case("the archive has one in its folder",
         lambda: (shutil.make_archive("a", "zip", ".", plain()), opened("a.zip")),
         lambda: (shutil.unpack_archive("a.zip", "unpacked"), rows("unpacked/plain.zarr") == 6)),
    Case("a store of this kind has no consolidated metadata; pass consolidated=None",
         lambda: opened(repository(), consolidated=True), lambda: rows(repository(), consolidated=None) == 6),
    Case("it has no consolidated metadata; pass consolidated=None",
         lambda: opened(plain(), consolidated=True), lambda: rows("plain.zarr", consolidated=None) == 6),
    Case("consolidate the metadata again",
         lambda: (weather().to_zarr("c.zarr", consolidated=True), shutil.rmtree("c.zarr/mask"), opened("c.zarr", consolidated=True)),
         lambda: (zarr.consolidate_metadata("c.zarr"), quiet(lambda: opened("c.zarr", consolidated=True)))),
    Case("in the environment, and write it with another codec",
         lambda: opened(unpickled()),
         lambda: (zarr.open_group("written.zarr").create_array("y", data=trusted("written.zarr/z").astype("U1")),
             opened("written.zarr")["y"].values.tolist() == ["a", "b"])),
    Case("Compute the Delayed that the writer returned, or write the missing parts with",
         lambda: (weather().chunk(time=2).td.to_zarr("d.zarr", compute=False), opened("d.zarr")),
         lambda: (weather().td.to_zarr("d.zarr", mode="w", compute=False),
             weather()[["t2m"]].drop_vars(["lat", "time"]).td.to_zarr("d.zarr", region={"time": slice(0, 6)}),
             quiet(lambda: opened("d.zarr")))),
    Case("its writer stopped before all arrays were created; write it again with mode='w'",
         lambda: (mark(run(), {"kind": "create", "created": False, "arrays": []}, "__xarray_tensordict_incomplete__"),
             opened("run.zarr")),
         lambda: (weather().td.to_zarr("run.zarr", mode="w"), quiet(lambda: opened("run.zarr")))),
    Case("is no document of a store; delete the attribute",
         lambda: (mark(run(), {"x/c/0": "{}"}, "__xarray_tensordict_commit__"), opened("run.zarr")),
         lambda: (mark("run.zarr", None, "__xarray_tensordict_commit__"), rows("run.zarr") == 6)),
    Case("are read lazily from the store that is to be overwritten",
         lambda: (weather().td.to_zarr(MEMORY, mode="w"), opened(MEMORY, chunks={}).td.to_zarr(MEMORY, mode="w")),
         lambda: (opened(MEMORY, chunks={}).load().td.to_zarr(MEMORY, mode="w"), opened(MEMORY, chunks={}).td.to_zarr("other.zarr"),
             rows(MEMORY) == rows("other.zarr") == 6)),
    Case("; write the store again, with mode='w'",
         lambda: weather(mask=("lat", [False, False])).td.to_zarr(unpickled("_unbatched"), mode="a"),
         lambda: (written(mode="w"), quiet(lambda: opened("written.zarr")))),
    Case("has a dtype or a codec that cannot be written to; write a new store",
         lambda: opened(recorded()).load().td.to_zarr("records.zarr", mode="a"),
         lambda: (opened("records.zarr").load().td.to_zarr("new.zarr"), opened("new.zarr")["r/a"].shape == (3,))),
    Case("annotate the store of repository.writable_session('main') in its place, and commit the session",
         lambda: (repository(), xtd.annotate("repository")),
         lambda: (session := repository().writable_session("main"), xtd.annotate(session.store, "time"), session.commit("names"),
             rows("repository") == 6)),
    Case("too. Write to a new store, drop",
         lambda: later()[["t2m"]].rename(t2m="u").td.to_zarr(written(), mode="a"),
         lambda: (later()[["t2m"]].rename(t2m="u").drop_vars("time").td.to_zarr("written.zarr", mode="a"),
             later(u=later()["t2m"]).td.to_zarr("written.zarr", mode="a"),
             opened("written.zarr")["time"].values[0] == TIMES[0] + np.timedelta64(6, "D"))),
    Case("for missing data: ",
         lambda: xtd.annotate(filled_v2()),
         lambda: (opened("filled.zarr").td.to_zarr("own.zarr"), (TensorDict.from_zarr("own.zarr")["image"] == 7).all())),
    Case("there is no zarr group to change; write one first, with mode='w'",
         lambda: weather().td.to_zarr("n.zarr", append_dim="time"),
         lambda: (weather().td.to_zarr("n.zarr", mode="w"), later().td.to_zarr("n.zarr", append_dim="time"), rows("n.zarr") == 12)),
    Case("unpack it, write the group to the folder, and pack it again",
         lambda: weather().td.to_zarr(zipped(), group="g", mode="w"),
         lambda: (shutil.unpack_archive("w.zip", "w.zarr"), weather().td.to_zarr("w.zarr", group="g"),
             shutil.make_archive("packed", "zip", "w.zarr"), rows("packed.zip", group="g") == 6)),
    Case("open a new one with mode='w'", lambda: fill_zip(times=2), lambda: (fill_zip(), rows("new.zip") == 6)),
    Case("the store was opened for reading only; open it for writing",
         lambda: weather().td.to_zarr(zarr.storage.LocalStore(plain(), read_only=True), mode="w"),
         lambda: (weather().td.to_zarr(zarr.storage.LocalStore("plain.zarr"), mode="w"), rows("plain.zarr") == 6)),
    Case("which is no zarr store: it holds",
         lambda: (os.mkdir("a"), Path("a/thesis.txt").write_text("x"), weather().td.to_zarr("a", mode="w")),
         lambda: (weather().td.to_zarr("b"), shutil.rmtree("a"), weather().td.to_zarr("a", mode="w"), rows("a") == rows("b") == 6)),
    Case("which is no zip file; delete it first",
         lambda: (Path("a.zip").write_text("text"), weather().td.to_zarr("a.zip", mode="w")),
         lambda: (os.remove("a.zip"), weather().td.to_zarr("a.zip", mode="w"), rows("a.zip") == 6)),
    Case("was opened for reading only; open it with mode 'r+' to annotate it",
         lambda: xtd.annotate(h5py.File(hdf5(a=np.zeros(6)))),
         lambda: xtd.annotate(h5py.File("file.h5", "r+"), "time").batch_dims == ("time",)),
    Case("; write a new store with ds.td.to_zarr",
         lambda: xtd.annotate(zipped()),
         lambda: (opened("w.zip").td.to_zarr("own.zarr"), xtd.annotate("own.zarr").batch_dims == ("time",))),
]

NAMES = [
    Case(". Set it with ds.td.set_batch_dims(...), or delete it",
         lambda: weather().assign_attrs(tensordict_batch_dims="{").td.batch_dims,
         lambda: (weather().assign_attrs(tensordict_batch_dims="{").td.set_batch_dims("time").td.batch_dims == ("time",)
             and weather().td.batch_dims == ("time",))),
    Case("pass group=",
         lambda: " ".join(repr(opened(hdf5(**{f"o/g/{name}": np.zeros((6, 3)) for name in "ab"}), group="o").td).split()),
         lambda: opened("file.h5", group="/o/g", batch_dims=2).td.batch_size == (6, 3)),
    Case(". Leave out what has another number of rows than most arrays: ",
         lambda: opened(hdf5(**{f"demo_{n}/{name}": np.zeros((4 + (n != 1 and name == "obs"), 9)) for n in range(3)
             for name in ("obs", "act")})),
         lambda: joined(drop_variables=["obs"]).sizes["time"] == 12),
    Case("; or leave it out with exclude=[",
         lambda: noleap().td.to_memmap("a"), lambda: (noleap().td.to_memmap("a", exclude=["when"]), rows("a") == 6)),
    Case("leave out --shard",
         lambda: cli("convert", run(), "a.h5", "--shard", "obs=4"), lambda: (cli("convert", "run.zarr", "a.h5"), rows("a.h5") == 6)),
    Case(" can be several names, or ",
         lambda: twice().td.to_tensordict(exclude=("next", "done")),
         lambda: (set(twice().td.to_tensordict(exclude=["next/done"]).keys()) == {"x", "done"}
             and set(twice().td.to_tensordict(exclude=["next", "done"]).keys()) == {"x"})),
    Case("'' cannot be a part of a path (a '/' separates nested keys); rename it",
         lambda: xr.Dataset({"a//b": ("t", [1.0])}).td.to_tensordict(),
         lambda: xr.Dataset({"a/b": ("t", [1.0])}).td.to_tensordict()["a", "b"] == 1),
    Case("; rename one of the two",
         lambda: xr.Dataset({"1": ("t", [1.0]), 1: ("t", [2.0])}).td.to_tensordict(),
         lambda: xr.Dataset({"1": ("t", [1.0]), 2: ("t", [2.0])}).td.to_tensordict()["2"] == 2),
    Case("cannot be a part of a path in a store (a '/' separates nested keys); rename it",
         lambda: weather(**{"a/..": ("time", np.zeros(6))}).td.to_zarr("a.zarr"),
         lambda: (weather(**{"a/b": ("time", np.zeros(6))}).td.to_zarr("a.zarr"), "a/b" in opened("a.zarr"))),
    Case("expected a name of type str, found",
         lambda: xr.Dataset({1: ("t", [1.0])}).td.to_zarr("a.zarr"),
         lambda: (xr.Dataset({1: ("t", [1.0])}).rename({1: "one"}).td.to_zarr("a.zarr"), rows("a.zarr") == 1)),
    Case("expected a name without '/', rename it",
         lambda: xr.DataTree.from_dict({"g": xr.Dataset({"..": ("t", [1.0])})}).td.to_zarr("a.zarr"),
         lambda: (xr.DataTree.from_dict({"g": xr.Dataset({"x": ("t", [1.0])})}).td.to_zarr("a.zarr"),
             rows("a.zarr", group="g") == 1)),
    Case("has half a character, which no store holds",
         lambda: words("a\ud800").td.to_zarr("a.zarr"),
         lambda: (words("a\ufffd").td.to_zarr("a.zarr"), opened("a.zarr")["word"].item() == "a\ufffd")),
    Case("choose another name for the column with index= or step=",
         lambda: episodes(step=("t", [1.0, 2, 3, 4])).td.concat("time"),
         lambda: episodes(step=("t", [1.0, 2, 3, 4])).td.concat("time", step="n")["n"].values.tolist() == [0, 1, 0, 1]),
    Case("already; choose another name with index= or step=",
         lambda: (tree({"x": np.zeros((3, 2)), "y": np.zeros(3)}), joined(names={"step": "x"})),
         lambda: joined(names={"step": "n"})["n"].values.tolist() == [0, 1, 0, 1, 2]),
    Case("is the name of something else than the batch there; choose another dim",
         lambda: (tree(), joined(dim="dim_2")), lambda: joined(dim="row").sizes["row"] == 5),
    Case("when opening, or give each episode an entry of that name",
         lambda: (tree({"x": np.zeros((3, 2))}), joined()),
         lambda: joined(drop_variables=["y"]).sizes["time"] == 5 and (tree(), joined().sizes["time"] == 5)[1]),
    Case("episodes must agree but for their length. Leave it out with",
         lambda: (tree({"x": np.zeros((3, 4)), "y": np.zeros(3)}), joined()),
         lambda: joined(drop_variables=["x"]).sizes["time"] == 5),
    Case("select what they share, or leave it out with",
         lambda: joined(labelled([0, 1], [1, 2])),
         lambda: (xr.open_datatree("tree.zarr", engine="tensordict").sel(f=[1]).td.concat("time").sizes["time"] == 4
             and joined(labelled([0, 1], [1, 2]), drop_variables=["f"]).sizes["time"] == 4)),
]

VALUES = [
    Case("convert the calendar with ds.convert_calendar('standard')",
         lambda: noleap().td.to_memmap("a"),
         lambda: (noleap("time").convert_calendar("standard").td.to_memmap("a"),
             opened("a")["time"].values[1] - opened("a")["time"].values[0] == DAY)),
    Case("where that is right, open with decode_times=False to get the numbers, or leave the variable out",
         lambda: tensor_from_numpy(noleap()["when"].values, name="when"),
         lambda: (noleap().td.to_zarr("n.zarr", layout="xarray"),
             xr.open_zarr("n.zarr", decode_times=False).td.to_tensordict()["when"].tolist() == [*range(6)]
             and noleap("time").convert_calendar("standard").td.to_tensordict()["time"].shape == (6,)
             and noleap().td.to_tensordict(exclude=["when"]).get("when", None) is None)),
    Case("which torch does not have; convert it first with .astype('complex128')",
         lambda: tensor_from_numpy(np.zeros(3, np.clongdouble), name="z"),
         lambda: tensor_from_numpy(np.zeros(3, np.clongdouble).astype("complex128"), name="z").shape == (3,)),
    Case("which torch does not have; convert it first with .astype('float64')",
         lambda: tensor_from_numpy(np.zeros(3, np.longdouble), name="z"),
         lambda: tensor_from_numpy(np.zeros(3, np.longdouble).astype("float64"), name="z").shape == (3,)),
    Case("take its fields one by one, or convert it to a dtype that torch has",
         lambda: tensor_from_numpy(RECORDS, name="z"), lambda: tensor_from_numpy(RECORDS["a"], name="z").shape == (3,)),
    Case("a tensordict holds it as non-tensor data, or convert it first with .astype(...)",
         lambda: tensor_from_numpy(np.array(["1", "2"]), name="z"),
         lambda: tensor_from_numpy(np.array(["1", "2"]).astype("i8"), name="z").tolist() == [1, 2]),
    Case("convert them to days or another fixed unit first",
         lambda: tensor_from_numpy(np.array([1, 2], "m8[M]"), name="z"),
         lambda: tensor_from_numpy(np.array([30, 60], "m8[D]"), name="z")[0] == 30 * DAY),
    Case("is finer than a nanosecond, which is what a tensor holds",
         lambda: tensor_from_numpy(np.array([1], "m8[ps]"), name="z"),
         lambda: tensor_from_numpy(np.array([1001], "m8[ps]").astype("m8[ns]"), name="z").tolist() == [1]),
    Case("select what lies inside, leave the variable out, or store it as numbers",
         lambda: early().td.to_tensordict(),
         lambda: (early().isel(time=slice(1, None)).td.to_tensordict()["when"].shape == (2,)
             and early().td.to_tensordict(exclude=["when"]).get("when", None) is None
             and early().astype("i8").td.to_tensordict()["when"].shape == (3,))),
    Case("pad it first with tensor.to_padded_tensor(...), or store its rows as separate entries",
         lambda: xtd.to_dataset(nested()),
         lambda: (xtd.to_dataset(TensorDict({"x": nested()["x"].to_padded_tensor(0.0)}, [2]))["x"].shape == (2, 3)
             and xtd.to_dataset(TensorDict({str(n): row for n, row in enumerate(nested()["x"].unbind())}))["1"].shape == (3,))),
    Case("call .dequantize() or .int_repr() first",
         lambda: xtd.to_dataset(TensorDict({"q": quantized()}, [3])),
         lambda: (xtd.to_dataset(TensorDict({"q": quantized().dequantize(), "i": quantized().int_repr()},
             [3]))["i"].values.tolist() == [10, 20, 30])),
    Case("fill it on a real device first",
         lambda: xtd.to_dataset(TensorDict({"m": torch.zeros(3, device="meta")}, [3])),
         lambda: (xtd.to_dataset(TensorDict({"m": torch.zeros_like(torch.zeros(3, device="meta"), device="cpu")},
             [3]))["m"].shape == (3,))),
    Case("pad them or make one Dataset of each member",
         lambda: xtd.to_dataset(uneven()),
         lambda: [xtd.to_dataset(member).td.batch_size for member in uneven().tensordicts] == [(2,), (3,)]),
    Case("write a tuple, (",
         lambda: xtd.to_dataset(TensorDict({"a": torch.zeros(3, 2)}, [3]), dims={"a": "f"}),
         lambda: "f" in xtd.to_dataset(TensorDict({"a": torch.zeros(3, 2)}, [3]), dims={"a": ("f",)}).dims),
    Case("batch axes one name, or only name the axes behind them",
         lambda: xtd.to_dataset(TensorDict({"a": torch.zeros(3, 2), "b": torch.zeros(3, 2)}, [3]),
             dims={"a": ("t", "x"), "b": ("u", "x")}),
         lambda: (xtd.to_dataset(TensorDict({"a": torch.zeros(3, 2), "b": torch.zeros(3, 2)}, [3]),
             dims={"a": ("t", "x"), "b": ("x",)})["b"].dims == ("t", "x"))),
    Case("Cast the tensordict without its times, td.exclude(",
         lambda: xtd.to_dataset(later().td.to_tensordict().float(), template=weather()),
         lambda: (np.array_equal(xtd.to_dataset(weather().td.to_tensordict().exclude("time").float(), template=weather())["time"],
             TIMES) and np.array_equal(xtd.to_dataset(later().td.to_tensordict().float(), template=later())["time"],
             later()["time"]))),
    Case("take a shorter one, window=",
         lambda: weather().td.batches(2, window={"time": 7}), lambda: len(weather().td.batches(2, window={"time": 6})) == 1),
    Case("Select a part with ds.isel(...)", lambda: vast().td.batches(2), lambda: len(vast().isel(time=slice(4)).td.batches(2)) == 2),
    Case("convert the variable with .astype(), or write with layout='xarray'",
         lambda: weather().td.to_zarr("e.zarr", encoding={"t2m": {"dtype": "int16"}}),
         lambda: (weather().assign(t2m=weather()["t2m"].astype("int16")).td.to_zarr("e.zarr"),
             weather().td.to_zarr("x.zarr", encoding={"t2m": {"dtype": "int16"}}, layout="xarray"),
             opened("e.zarr")["t2m"].dtype == "int16" and opened("x.zarr")["t2m"][1, 0] == 2)),
    Case(" in the dataset; append with append_dim=",
         lambda: (weather().td.to_h5("a.h5", unlimited_dims=["time"]), both().td.to_h5("a.h5", mode="a")),
         lambda: (both().isel(time=slice(6)).td.to_h5("a.h5", mode="a"),
             both().isel(time=slice(6, None)).td.to_h5("a.h5", append_dim="time"), rows("a.h5") == 12)),
    Case(", use_cftime=True)",
         lambda: (noleap("time").td.to_zarr("n.zarr", layout="xarray"), later().td.to_zarr("n.zarr", append_dim="time")),
         lambda: (later().convert_calendar("noleap", use_cftime=True).td.to_zarr("n.zarr", append_dim="time"), rows("n.zarr") == 12)),
    Case("convert the dates with ds.convert_calendar(",
         lambda: (noleap("time").td.to_zarr("n.zarr", layout="xarray"),
             later().convert_calendar("standard", use_cftime=True).td.to_zarr("n.zarr", append_dim="time")),
         lambda: (later().convert_calendar("noleap").td.to_zarr("n.zarr", append_dim="time"), rows("n.zarr") == 12)),
    Case("so their rows would be missing; add them",
         lambda: later().drop_vars("t2m").assign(u=("time", np.zeros(6))).td.to_zarr(written(), append_dim="time"),
         lambda: (later().td.to_zarr("written.zarr", append_dim="time"), rows("written.zarr") == 12)),
    Case(" stores it so; write to a new store",
         lambda: (packed(1.0).td.to_zarr("p.zarr", layout="xarray"), packed(1e9).td.to_zarr("p.zarr", append_dim="time")),
         lambda: (packed(1e9).td.to_zarr("q.zarr", layout="xarray"), opened("q.zarr")["x"].values[0] == 1e9)),
    Case("convert it with .astype() to a dtype of numpy, or drop it",
         lambda: xr.Dataset({"c": ("t", pd.array(["a", "b"], "category"))}).td.to_zarr("c.zarr"),
         lambda: (xr.Dataset({"c": ("t", pd.array([1, 2], "category").astype("i8"))}).td.to_zarr("c.zarr"), rows("c.zarr") == 2)),
    Case("split it into one variable for each field, or drop it",
         lambda: xr.Dataset({"r": ("t", RECORDS)}).td.to_zarr("r.zarr"),
         lambda: (xr.Dataset({name: ("t", RECORDS[name]) for name in "ab"}).td.to_zarr("r.zarr"), rows("r.zarr") == 3)),
    Case("back. To store",
         lambda: packed(1.0).td.to_zarr("n.zarr", layout="xarray"),
         lambda: (packed(1.0).assign(x=packed(1.0)["x"].drop_encoding()).td.to_zarr("m.zarr", layout="xarray"),
             xr.open_zarr("m.zarr")["x"].dtype == "f4")),
    Case("neither torch nor zarr has a dtype for",
         lambda: weather(z=("time", np.zeros(6, np.longdouble))).td.to_zarr("l.zarr"),
         lambda: (weather(z=("time", np.zeros(6, np.longdouble).astype("float64"))).td.to_zarr("l.zarr"), rows("l.zarr") == 6)),
    Case("; convert the rows, or drop it",
         lambda: objects(np.zeros(2), np.array(["a"])).td.to_h5("r.h5"),
         lambda: (objects(np.zeros(2), np.zeros(1)).td.to_h5("r.h5"), opened("r.h5")["z"].values[1].shape == (1,))),
    Case("or convert it to strings, or drop it",
         lambda: objects(1, "a").td.to_h5("o.h5"),
         lambda: (objects(1, "a").td.to_zarr("o.zarr"), objects("1", "a").td.to_h5("o.h5"), opened("o.h5")["z"].values[0] == "1")),
    Case("which is reserved for how times are stored; delete the attribute",
         lambda: weather(when=("time", TIMES, {"units": "d"})).td.to_zarr("t.zarr"),
         lambda: (weather(when=("time", TIMES)).td.to_zarr("t.zarr"), np.array_equal(opened("t.zarr")["when"], TIMES))),
    Case("; pass encoding= to choose another packing or fill value",
         lambda: packed(0.3).td.to_zarr("p.zarr", layout="xarray"),
         lambda: (quiet(lambda: packed(0.3).td.to_zarr("p.zarr", layout="xarray",
             encoding={"x": {"dtype": "int16", "scale_factor": 0.1}})), abs(opened("p.zarr")["x"][0] - 0.3) < 0.01)),
    Case("or pass an encoding= that holds it",
         lambda: packed(0.3).chunk().td.to_zarr("p.zarr", layout="xarray"),
         lambda: (packed(0.3).chunk().pipe(lambda ds: ds.assign({"x": ds["x"].drop_encoding()})).td.to_zarr("p.zarr",
             layout="xarray"), opened("p.zarr")["x"][0] == np.float32(0.3))),
    Case("one value stands for what is missing; pass one of them",
         lambda: weather().td.to_zarr("m.zarr", layout="xarray", encoding={"t2m": {"_FillValue": 1e20, "missing_value": -1.0}}),
         lambda: (weather().td.to_zarr("m.zarr", layout="xarray", encoding={"t2m": {"_FillValue": 1e20}}), rows("m.zarr") == 6)),
    Case("; pass another",
         lambda: weather().td.to_zarr("m.zarr", layout="xarray", encoding={"t2m": {"dtype": "int8", "_FillValue": 999}}),
         lambda: (weather().td.to_zarr("m.zarr", layout="xarray", encoding={"t2m": {"dtype": "int8", "_FillValue": -1}}),
             rows("m.zarr") == 6)),
    Case("is packed so; write to a new store",
         lambda: (unbatched(0.5).td.to_zarr("u.zarr"), unbatched(1e9).drop_encoding().td.to_zarr("u.zarr", mode="a")),
         lambda: (unbatched(1e9).drop_encoding().td.to_zarr("v.zarr"), opened("v.zarr")["s"].values[0] == 1e9)),
    Case("plain tensordict cannot read arrays of records: ",
         lambda: xtd.annotate(recorded()),
         lambda: (opened("records.zarr").td.to_zarr("own.zarr"), TensorDict.from_zarr("own.zarr")["r", "a"].shape == (3,))),
    Case("A writer was killed: run h5clear -s", lambda: opened(killed()), lambda: rows(shutil.copy("whole.h5", "killed.h5")) == 6),
    Case("in a compact form of torchrl's own; open",
         lambda: (os.makedirs("ring/storage"), shutil.copy(hdf5(a=np.zeros(6)), "ring/storage/a.h5"), opened("ring")),
         lambda: rows("ring/storage/a.h5") == 6),
]

FURTHER = [
    Case("xr.open_mfdataset(paths, engine='tensordict', ...)",
         lambda: (weather().td.to_h5("a.h5"), later().td.to_zarr("b.zarr"), xtd.open_persistent(["a.h5", "b.zarr"])),
         lambda: (xr.open_mfdataset(["a.h5", "b.zarr"], engine="tensordict", data_vars="minimal", compat="no_conflicts").td.batch_size
             == (12,))),
    Case("; bring its rows together first, for example with ds.sortby(",
         lambda: numbered([0, 1, 0]).td.concat("row", by="n"),
         lambda: numbered([0, 1, 0]).sortby("n").td.concat("row", by="n")["episode"].values.tolist() == [0, 0, 1]),
    Case("; number them first, along ",
         lambda: d4rl().td.batches(1, window={"time": 2}, within="terminals"),
         lambda: number_flags(d4rl(), "terminals") == number_flags(d4rl().astype(int), "terminals") == [0, 0, 1, 1, 2, 2]
             and number_flags(grid().td.set_batch_dims("env", "time"), "next/done")[-1] == 5),
    Case(". Add it: ds = ds.assign_coords(",
         lambda: weather().td.split({"a": 0.5}, by="day"),
         lambda: len(weather().assign_coords(day=weather()["time"].dt.day).td.split({"a": 0.5}, by="day")) == 1),
    Case(", which a Dataset has: ",
         lambda: demos().td.batches(2), lambda: len(demos()["data/0"].td.to_dataset().td.batches(2)) == 1),
    Case(" of all episodes beside it",
         lambda: demos().td.split({"a": 0.5}), lambda: len(demos()["data"].td.concat("time").td.split({"a": 0.5}, by="episode")) == 1),
    Case("does not rise by its usual step",
         lambda: weather().isel(time=[0, 1, 2, 5]).td.batches(1, window={"time": 2}),
         lambda: [windows(weather().isel(time=[0, 1, 2, 5]), "time", gaps=gaps) for gaps in ("time", False)] == [2, 3]),
    Case("go on from one episode into the next, as ",
         lambda: numbered([0, 0, 1, 1]).td.concat("row", by="n").td.batches(1, window={"row": 2}),
         lambda: [windows(numbered([0, 0, 1, 1]).td.concat("row", by="n"), "row", **option)
             for option in ({"within": "episode"}, {"gaps": False})] == [2, 3]),
    Case("TensorDict(...) makes one of a dict",
         lambda: xtd.to_dataset({"a": torch.zeros(3)}), lambda: xtd.to_dataset(TensorDict({"a": torch.zeros(3)}))["a"].shape == (3,)),
    Case("ds.td.to_zarr writes to URLs",
         lambda: weather().td.to_memmap("memory://advice/mapped"),
         lambda: (weather().td.to_zarr("memory://advice/mapped", mode="w"), rows("memory://advice/mapped") == 6)),
    Case("and ds.close() of each Dataset that another engine has opened from it",
         lambda: (weather().td.to_h5("a.h5", unlimited_dims=["time"]), HELD.append(h5py.File("a.h5")),
             later().td.to_h5("a.h5", append_dim="time")),
         lambda: (HELD.pop().close(), later().td.to_h5("a.h5", append_dim="time"), rows("a.h5") == 12)),
    Case("If it is a table of text, pandas.read_csv(path).to_xarray()",
         lambda: (Path("a.csv").write_text("time,temp\n0,1\n1,2\n"), opened("a.csv")),
         lambda: pd.read_csv("a.csv").to_xarray().td.batch_size == (2,)),
    Case(" when opening leaves them out without this warning",
         lambda: (tree({"x": np.zeros((3, 2)), "y": np.zeros(3), "z": np.zeros(4)}, z=np.zeros(3)), joined()),
         lambda: quiet(lambda: joined(drop_variables=["z"]))),
    Case("unbatched='expand' repeats them for each row",
         lambda: (tree({"x": np.zeros((3, 2)), "y": np.zeros(3), "z": np.zeros(5)}, z=np.zeros(5)), joined()),
         lambda: joined(names={"unbatched": "expand"})["z"].shape == (5, 5)),
    Case("made up the dims ",
         lambda: repr(xr.open_dataset(hdf5(a=np.zeros((6, 3)), b=np.zeros(6)), engine="h5netcdf", phony_dims="sort").td),
         lambda: rows("file.h5") == 6),
    Case("which ds.td.set_batch_dims(...) chooses",
         lambda: grid().td.batches(1, window={"time": 2}, within="n"),
         lambda: len(grid().td.set_batch_dims("env", "time").td.batches(1, window={"time": 2}, within="n")) == 10),
    Case("ds.td.concat('row') joins the rows of a table with episodes of its own in each column",
         lambda: grid().td.set_batch_dims("time", "env").td.split({"a": 0.5, "b": 0.5}, by="next/done"),
         lambda: [part.sizes["row"] for part in
             grid().td.set_batch_dims("time", "env").td.concat("row").td.split({"a": 0.5, "b": 0.5}, by="episode").values()] == [6, 6]),
    Case(" There are some in ",
         lambda: (hdf5(**{f"data/{n}/{name}": np.zeros(2 + n) for n in range(2) for name in "ab"}), joined()),
         lambda: xr.open_datatree("file.h5", engine="tensordict")["data"].td.concat("time").sizes["time"] == 5),
    Case("if the groups in ",
         lambda: " ".join(repr(opened(hdf5(**{f"data/{n}/{name}": np.zeros(3) for n in range(2) for name in "ab"})).td).split()),
         lambda: xr.open_datatree("file.h5", engine="tensordict")["/data"].td.concat("time").sizes["time"] == 6),
    Case("where dt[...].td.concat(...) takes them together",
         lambda: opened(hdf5(**{f"data/{n}/{name}": np.zeros(2 + n) for n in range(2) for name in "ab"})).td.concat("time"),
         lambda: xr.open_datatree("file.h5", engine="tensordict")["data"].td.concat("time").sizes["time"] == 5),
    Case(" has no batch dim: it is in .unbatched of this tensordict, and in ds.td.unbatched",
         lambda: xtd.open_persistent(plain())["mask"],
         lambda: xtd.open_persistent("plain.zarr").unbatched["mask"].shape == opened("plain.zarr").td.unbatched["mask"].shape == (2,)),
]
# fmt: on

CASES = [*OPENING, *OPENING_MORE, *ANNOTATING, *CONVERTING, *LAZY, *LOADING, *WRITING, *MORE, *FILES, *ZARR, *NAMES]
CASES += [*VALUES, *FURTHER]


FOLLOWED = {
    "Pass --batch-dims, or --group for one group": "test_a_store_without_a_batch_is_refused_by_name",
    "pass batch_dims=": "test_an_array_without_names_that_a_choice_leaves_out_is_named",
    "].td.to_tensordict(batch_dims=": "test_of_a_node_of_a_tree",
    "; name its axes with dims=": "test_an_array_without_names_that_a_choice_leaves_out_is_named",
    "; choose it with ds.td.set_batch_dims(": "test_the_dim_that_the_evidence_of_an_unnamed_store_names_can_be_chosen",
    "give that dim another name with dims={...}": "test_a_scalar_that_is_named_as_a_dim_is_left_out",
    "; select first, isel(": "test_flags_along_three_batch_dims_are_refused_and_one_can_be_selected",
    "is in the table already. Choose another": "test_a_name_that_is_taken_is_refused_and_the_advice_joins_the_same_rows",
    "name another variable with by=": "test_cut_by_the_variable_that_is_named",
    "replace the intervals, as with": "test_the_intervals_of_groupby_bins",
    "append the rows again with append_dim=": "test_a_killed_append_leaves_the_old_rows_and_a_retry_works",
    "start Python with HDF5_USE_FILE_LOCKING=FALSE": "test_a_file_locked_by_a_writer",
    "it does not fit into memory": "test_a_shape_larger_than_memory_opens_and_is_refused_where_it_is_read",
    "are linked to one another": "test_groups_that_are_linked_to_one_another_have_an_end",
    "this process has the file open for writing": "test_a_file_that_this_process_has_open_for_writing_is_an_error_that_says_so",
    "the replay buffer was saved in a compact form": "test_a_compact_checkpoint_is_shown_as_it_is_stored_and_says_so",
    "Open with filled=False for all": "test_how_many_rows_with_a_batch_of_their_own_are_filled_is_asked_of_the_writer",
    "the zip store is open for writing": "test_an_open_zip_store_is_neither_filled_twice_nor_read_before_it_is_whole",
    "Pass credentials in storage_options": "test_errors_name_the_store_and_the_way_out",
    "the bucket is not there": "test_errors_name_the_store_and_the_way_out",
    "URLs of this kind need a package that is missing": "test_a_url_of_http_names_its_package_and_obstore_opens_it",
    ", or obstore and open zarr.storage": "test_a_url_of_http_names_its_package_and_obstore_opens_it",
    "check address and network": "test_errors_name_the_store_and_the_way_out",
    "were changed by another program": "test_another_append_comes_first_and_the_delayed_one_is_refused",
    "another process or thread is changing the store": "test_a_store_that_somebody_else_changes_is_refused_with_nothing_changed",
    "If that writer is gone, delete the object": "test_an_object_of_a_writer_that_is_gone_can_be_deleted",
    "compute with scheduler='threads'": "test_a_delayed_append_is_refused_where_no_process_could_hold_the_store",
    "Compute such statistics first": "test_a_graph_that_each_batch_goes_through_anew_is_told",
    "Use the state_dict() of torchdata's StatefulDataLoader": "test_torchs_own_loader_goes_on_behind_some_batches",
    "load the state of the whole StatefulDataLoader": "test_workers_resume_as_many_as_they_were",
    "make the dataset with seed=": "test_workers_need_the_seed_of_the_state",
    "a DataArray has no td: use ds.td of the Dataset": "test_an_array_says_where_its_tensordict_is",
    "cftime dates, and layout=": "test_all_variables_with_such_dates_are_refused_together_and_each_advice_works",
    "holds a date that the standard calendar lacks": "test_a_date_that_the_standard_calendar_lacks_is_refused_by_name",
    "write them again with mode='a'": "test_while_adding_a_variable",
    "numbers episodes, and the last one there is": "test_labels_of_episodes_that_come_back_are_refused_and_the_advice_keeps_them_apart",
    "correct the dtype where it is declared": "test_strings_that_are_longer_than_dask_was_told_are_not_cut_off_in_a_store",
}
"""Messages whose advice another test follows: a piece of the message, and the name of the test."""
RACE = "two writers would have to meet within microseconds; it says to do the same again"
OTHER_VERSION = "it needs another version of a library than the one that is installed"
MISSING = "it needs a program or a package that is not among those of the tests"
NO_ADVICE = "it is no message, or a part of one that advises nothing"
EXEMPT = {
    "].astype(bool)})": "a part of the message that numbers flags",
    "see ds.td.unbatched)": NO_ADVICE,
    "…; ds.td works on a Dataset from any engine": NO_ADVICE,
    "ds.td.concat('row'). By hand": NO_ADVICE,
    "expected [path] or [path, first byte, number of bytes]": NO_ADVICE,
    "xr.open_…(…": NO_ADVICE,
    "a parquet file. pandas.read_parquet(path)": MISSING,
    "an Arrow file. pandas.read_feather(path)": MISSING,
    "(private interfaces), which open_persistent": OTHER_VERSION,
    "install a version of xarray that its dependencies allow": OTHER_VERSION,
    "install tensordict 0.15": OTHER_VERSION,
    "a newer tensordict wrote it. Update xarray-tensordict": OTHER_VERSION,
    "install hdf5plugin and import it before opening the file": MISSING,
    "a GRIB file. Open it with engine='cfgrib'": MISSING,
    "a TIFF file. Open it with engine='rasterio'": MISSING,
    "an HDF4 file. Convert it to HDF5 with h4toh5": MISSING,
    "Load it with keras.models.load_model": MISSING,
    "If another engine of xarray opens it, name that engine": "which engine that is depends on the file",
    "has just replaced the file; try again": RACE,
    "another writer has changed the file since this one began": RACE,
    "the file is open elsewhere, and HDF5 allows one writer": RACE,
    "the store was changed while it was opened": RACE,
    "was changed by another program just now": RACE,
    "change its permissions, or annotate a copy": "the user root, who runs some tests, may write everywhere",
    "change entries with ": NO_ADVICE,
    "set update set_non_tensor": NO_ADVICE,
    "write entries": NO_ADVICE,
    "write rows": NO_ADVICE,
    "an HDF5 file has one writer, the client of a dask cluster": "it needs a cluster of dask",
}
"""Messages whose advice no test can follow, and why."""
VERBS = (
    "add ask annotate append bring call cast change check choose close commit compare compute concatenate consolidate convert copy correct "
    "count create declare delete download drop dump exclude export extract fill follow give import install keep leave let list load "
    "make mend mount move name number open pad pass pickle put read rename replace reset restore resume round run save select send set "
    "start stop store take transpose trim trust try unpack unzip update upgrade use wait widen wrap write"
)
IMPERATIVE = re.compile(
    rf"(?:^|[.;:(] |, |\b(?:or|and|then|first) )(?:{VERBS.replace(' ', '|')})\b(?![-=:'])|\b(?:ds|dt|xr|pandas)[.[]",
    re.IGNORECASE,
)


def texts_of_the_code() -> set[str]:
    """The texts in the code, with "…" for each value; no docstrings, no help of the command line."""
    found = set()
    for path in sorted(SRC.rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        skipped = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        skipped |= {id(node.value) for node in nodes if isinstance(node, ast.keyword) and node.arg == "help"}
        skipped |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in nodes:
            if id(node) in skipped or not isinstance(node, ast.JoinedStr | ast.Constant):
                continue
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
            if " " in text:
                found.add(text)
    return found


@pytest.mark.parametrize("case", CASES, ids=[case.says[:50] for case in CASES])
def test_the_advice_of_the_message_gives_what_it_promises(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert case.says in messages_of(case.mistake)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = case.advice()
        assert found[-1] if isinstance(found, tuple) else found


def test_each_message_that_advises_something_is_in_the_table():
    texts = texts_of_the_code()
    claimed = {
        claim: [text for text in texts if claim in text]
        for claim in [*(case.says for case in CASES), *FOLLOWED, *EXEMPT]
    }
    assert {claim: found for claim, found in claimed.items() if len(found) != 1} == {}, (
        "a claim is a piece of one message"
    )
    advising = {text for text in texts if IMPERATIVE.search(text)}
    assert sorted(advising - {text for found in claimed.values() for text in found}) == [], (
        "messages without a test of their advice"
    )


def test_the_tests_that_are_named_are_about_these_messages():
    texts = texts_of_the_code()
    sources = [path.read_text().replace("\\", "") for path in Path(__file__).parents[1].rglob("test_*.py")]
    for claim, name in FOLLOWED.items():
        (text,) = (text for text in texts if claim in text)
        words = [clause.split() for clause in re.split(r"[…,;:]|[.] ", text)]
        runs = {" ".join(each[n : n + 3]) for each in words for n in range(max(len(each) - 2, 1))}
        found = [source for source in sources if f"def {name}(" in source]
        assert any(run in source for source in found for run in runs if len(run) > 6), (claim, name)
