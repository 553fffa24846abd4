"""Advice that is run: for each message that says what to do, the mistake, its message, and the advice, followed.

Advice that other modules follow is not repeated here: dates of other calendars (``writing/test_dates.py``), episodes that differ
(``dataset/test_hidden_groups.py``), orders of flags (``loading/test_batches.py``), columns of episodes
(``dataset/test_episode_tables.py``).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import fsspec
import h5py
import numpy as np
import pandas as pd
import pytest
import tensordict
import torch
import xarray as xr
import zarr
from click.testing import CliRunner
from tensordict import NonTensorData, TensorDict

import xarray_tensordict as xtd
from xarray_tensordict.command_line.app import main

TIMES = np.datetime64("2024-01-01", "ns") + np.arange(6) * np.timedelta64(1, "D")


def weather(**more: Any) -> xr.Dataset:
    return xr.Dataset(
        {"t2m": (("time", "lat"), np.arange(12, dtype="f4").reshape(6, 2)), "mask": ("lat", [True, False]), **more},
        coords={"time": TIMES, "lat": [1.0, 2.0]},
    )


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


OPENING = [
    Case(
        "give a smaller count, or leave out the others with drop_variables=",
        lambda: opened(hdf5(a=np.zeros((6, 3)), b=np.zeros((6, 2))), batch_dims=2),
        lambda: (
            rows("file.h5", batch_dims=1) == 6
            and opened("file.h5", batch_dims=2, drop_variables=["b"]).td.batch_size == (6, 3)
        ),
    ),
    Case(
        "open one group with group=, or leave out the others with drop_variables=",
        lambda: opened(hdf5(**{"obsm/pca": np.zeros((6, 3)), "varm/pcs": np.zeros((4, 3))}), batch_dims="cell"),
        lambda: (
            rows("file.h5", batch_dims="cell", drop_variables=["varm"])
            == rows("file.h5", batch_dims="cell", group="obsm")
            == 6
        ),
    ),
    Case(
        "Open the store without batch_dims, then choose by the names it shows: ds.td.set_batch_dims(",
        lambda: opened(hdf5(a=np.zeros((6, 3)), b=np.zeros(6)), batch_dims="batch_0"),
        lambda: opened("file.h5").td.set_batch_dims(["batch_0"]).td.batch_dims == ("batch_0",),
    ),
    Case(
        "open one with group=",
        lambda: opened(split()).td.to_tensordict(),
        lambda: (
            rows("split.zarr", group="train") == 8
            and len(xr.open_datatree("split.zarr", engine="tensordict").children) == 2
            and len(opened("split.zarr", nested=True)) == 2
        ),
    ),
    Case(
        "open it with group='/train', all groups with nested=True or xr.open_datatree(...)",
        lambda: xtd.open_persistent(split())["train"],
        lambda: (
            xtd.open_persistent("split.zarr", group="train").batch_size == (8,)
            and "train" in xtd.open_persistent("split.zarr", nested=True).keys()  # noqa: SIM118 - a tensordict has no `in`
        ),
    ),
    Case(
        "In it are ['run.zarr']: open one of these",
        lambda: (run(), opened(".")),
        lambda: rows("run.zarr") == 6,
    ),
    Case(
        "for a Dataset of another engine use ds.td.to_persistent()",
        lambda: xtd.open_persistent(plain(), engine="zarr"),
        lambda: xr.open_zarr("plain.zarr", consolidated=False).td.to_persistent().batch_size == (6,),
    ),
    Case(
        "give an open file in its place, for example fsspec.open(",
        lambda: (weather().td.to_h5("a.h5"), fsspec.filesystem("memory").put("a.h5", "/a.h5"), opened("memory://a.h5")),
        lambda: rows(fsspec.open("memory://a.h5", "rb").open()) == 6,
    ),
    Case(
        "open it in binary mode ('rb')",
        lambda: opened(open(hdf5(a=np.zeros(6)))),  # noqa: SIM115
        lambda: rows(open("file.h5", "rb")) == 6,  # noqa: SIM115
    ),
    Case(
        "use_zarr_fill_value_as_mask=False opens the zeros as zeros",
        lambda: opened(v2_image()),
        lambda: opened("v2.zarr", use_zarr_fill_value_as_mask=False)["image"].dtype == np.uint8,
    ),
    Case(
        "Use ds['td'] for the variable",
        lambda: weather(td=("time", np.zeros(6))).td,
        lambda: weather(td=("time", np.zeros(6)))["td"].shape == (6,),
    ),
    Case(
        "Pass allow_pickle=True if you trust the store",
        lambda: opened(pickled()),
        lambda: opened("pickled.zarr", allow_pickle=True)["seen"].item() == {1, 2},
    ),
]

ANNOTATING = [
    Case(
        "Write a store that both read with ds.td.to_zarr(...)",
        lambda: xtd.annotate(plain()),
        lambda: (opened("plain.zarr").td.to_zarr("both.zarr"), TensorDict.from_zarr("both.zarr").batch_size == (6,))[1],
    ),
    Case(
        "give the names on opening with dims=",
        lambda: (
            TensorDict({"x": torch.zeros(6, 3)}, [6]).memmap("mapped"),
            xtd.annotate("mapped", "time", dims={"x": ("f",)}),
        ),
        lambda: opened("mapped", batch_dims="time", dims={"x": ("f",)})["x"].dims == ("time", "f"),
    ),
    Case("delete it with h5py (del file['/obs'].attrs['DIMENSION_LABELS'])", refused_labels, mended_labels),
    Case(
        "annotate it to make the record true",
        lambda: (stale(), opened("run.zarr")),
        lambda: (xtd.annotate("run.zarr"), TensorDict.from_zarr("run.zarr").batch_size == (6,))[1],
    ),
    Case(
        "pass --to (",
        lambda: cli("convert", run(), "copy.what"),
        lambda: (cli("convert", "run.zarr", "copy.what", "--to", "hdf5"), rows("copy.what") == 6)[1],
    ),
    Case(
        "choose another target, or pass --overwrite",
        lambda: cli("convert", run(), hdf5(a=np.zeros(2))),
        lambda: (cli("convert", "run.zarr", "file.h5", "--overwrite"), rows("file.h5") == 6)[1],
    ),
]

CONVERTING = [
    Case(
        "choose unbatched='drop', 'keep' or 'expand'",
        lambda: weather().td.to_tensordict(unbatched="raise"),
        lambda: all(
            weather().td.to_tensordict(unbatched=choice).batch_size == (6,) for choice in ("drop", "keep", "expand")
        ),
    ),
    Case(
        "convert it with .astype('float64')",
        lambda: weather(z=("time", np.zeros(6, np.longdouble))).td.to_tensordict(),
        lambda: weather(z=("time", np.zeros(6, np.longdouble).astype("float64"))).td.to_tensordict()["z"].shape == (6,),
    ),
    Case(
        "rename one of them",
        lambda: xr.Dataset({"a": ("t", [1.0]), "a/b": ("t", [2.0])}).td.to_tensordict(),
        lambda: xr.Dataset({"a": ("t", [1.0]), "c/b": ("t", [2.0])}).td.to_tensordict()["c", "b"] == 2,
    ),
    Case(
        "Call compute_chunk_sizes() of the array before it becomes a variable",
        lambda: xr.Dataset({"x": ("t", unknown())}).td.batch_size,
        lambda: xr.Dataset({"x": ("t", unknown().compute_chunk_sizes())}).td.batch_size == (10,),
    ),
    Case(
        "copy=None (copies only where it must) or copy=True",
        lambda: weather().assign(t2m=weather()["t2m"].astype(">f4")).td.to_tensordict(copy=False),
        lambda: all(
            weather().assign(t2m=weather()["t2m"].astype(">f4")).td.to_tensordict(copy=copy)["t2m"][1, 0] == 2
            for copy in (None, True)
        ),
    ),
    Case(
        "pass out.detach(), which shares its memory",
        lambda: weather().td.to_tensordict(out=weather().td.to_tensordict().apply(graded)),
        lambda: weather().td.to_tensordict(out=weather().td.to_tensordict().apply(graded).detach())["t2m"][1, 0] == 2,
    ),
    Case(
        "rename it first with td.rename_key_(",
        lambda: xtd.to_dataset(TensorDict({"a/b": torch.zeros(3)}, [3])),
        lambda: "ab" in xtd.to_dataset(TensorDict({"a/b": torch.zeros(3)}, [3]).rename_key_("a/b", "ab")),
    ),
    Case(
        "call .to_dense() first",
        lambda: xtd.to_dataset(TensorDict({"a": torch.eye(3).to_sparse()}, [3])),
        lambda: xtd.to_dataset(TensorDict({"a": torch.eye(3).to_sparse().to_dense()}, [3]))["a"].shape == (3, 3),
    ),
    Case(
        "give the rows it was made from, template=ds.isel(",
        lambda: xtd.to_dataset(weather().td.to_tensordict().exclude("time")[2:5], template=weather()),
        lambda: np.array_equal(
            xtd.to_dataset(
                weather().td.to_tensordict().exclude("time")[2:5], template=weather().isel(time=slice(2, 5))
            )["time"],
            TIMES[2:5],
        ),
    ),
    Case(
        "drop or add variables, or pass another class",
        lambda: weather().td.to_tensordict(cls=Step),
        lambda: weather().rename(t2m="obs").drop_vars("time").td.to_tensordict(cls=Step).obs.shape == (6, 2),
    ),
    Case(
        "use bool(...) or a mask",
        lambda: xtd.open_persistent(run())[np.True_],
        lambda: xtd.open_persistent("run.zarr")[bool(np.True_)].batch_size == (1, 6),
    ),
]

LAZY = [
    Case(
        "Convert it first, with to_tensordict() to memory or ds.td.to_zarr(path) to a new store, or open it with mode='r+'",
        lambda: xtd.open_persistent(run()).set_("obs", torch.ones(6, 3)),
        lambda: (
            xtd.open_persistent("run.zarr").to_tensordict().set_("obs", torch.ones(6, 3))["obs"].all()
            and xtd.open_persistent("run.zarr", mode="r+").set_("obs", torch.ones(6, 3))["obs"].all()
        ),
    ),
    Case(
        "write a copy with ds.td.batched.td.to_zarr(path) and open that",
        lambda: xtd.open_persistent(plain(), mode="r+"),
        lambda: (
            opened("plain.zarr").td.batched.td.to_zarr("copy.zarr"),
            xtd.open_persistent("copy.zarr", mode="r+").set_at_("t2m", torch.ones(2), 0)["t2m"][0].sum() == 2,
        )[1],
    ),
    Case(
        "the store was closed with close(); open it again",
        lambda: closed()["obs"],
        lambda: xtd.open_persistent("run.zarr")["obs"].shape == (6, 3),
    ),
]

LOADING = [
    Case(
        "episodes of different lengths become one Dataset with xr.open_datatree(...)['/'].td.concat('time')",
        lambda: opened(
            hdf5(**{f"demo_{n}/{name}": np.zeros((4 + n, 2)) for n in range(2) for name in "ab"})
        ).td.batches(2),
        lambda: len(xr.open_datatree("file.h5", engine="tensordict")["/"].td.concat("time").td.batches(3)) == 3,
    ),
    Case(
        "Pass batch_dims=..., or set it with ds.td.set_batch_dims(...)",
        lambda: columns().td.batches(2),
        lambda: (
            len(columns().td.batches(2, batch_dims="p")) == len(columns().td.set_batch_dims("p").td.batches(2)) == 2
        ),
    ),
    Case(
        "Set it with ds.td.set_batch_dims(...)",
        lambda: columns().td.split({"a": 0.5, "b": 0.5}),
        lambda: set(columns().td.set_batch_dims("p").td.split({"a": 0.5, "b": 0.5})) == {"a", "b"},
    ),
    Case(
        "are for windows: pass their length, window=",
        lambda: weather().td.batches(2, stride=2),
        lambda: len(weather().td.batches(2, window={"time": 2}, stride=2)) == 2,
    ),
    Case(
        "pass a variable of numbers or strings",
        lambda: list(objects({1}, {2}, {3}).td.batches(2, window={"time": 1}, within="z")),
        lambda: len(objects("a", "a", "b").td.batches(1, window={"time": 2}, within="z")) == 1,
    ),
    Case(
        "or choose where to begin: batches(..., epoch=, start=)",
        lambda: (
            weather()
            .td.batches(3, seed=0, shuffle=True)
            .load_state_dict(weather().td.batches(2, seed=0, shuffle=True).state_dict())
        ),
        lambda: len(list(weather().td.batches(3, seed=0, shuffle=True, epoch=1, start=1))) == 1,
    ),
    Case(
        "Pass a larger share than",
        lambda: weather().td.split({"a": 0.99, "b": 0.01}),
        lambda: len(weather().td.split({"a": 0.8, "b": 0.2})) == 2,
    ),
]

WRITING = [
    Case(
        "Pass mode='w' to replace it, mode='a' to add to it, or append_dim= to append",
        lambda: (written(), written()),
        lambda: (
            written(mode="w"),
            written(weather()[["t2m"]].rename(t2m="u"), mode="a"),
            later(u=weather()["t2m"].assign_coords(time=TIMES + np.timedelta64(6, "D"))).td.to_zarr(
                "written.zarr", append_dim="time"
            ),
            rows("written.zarr") == 12,
        )[-1],
    ),
    Case(
        "load them first (ds.load()), or write to another store",
        lambda: opened(written(), chunks={}).td.to_zarr("written.zarr", region={"time": slice(0, 6)}),
        lambda: (
            opened("written.zarr", chunks={})
            .drop_vars(["mask", "lat"])
            .load()
            .td.to_zarr("written.zarr", region={"time": slice(0, 6)}),
            opened("written.zarr", chunks={}).td.to_zarr("other.zarr"),
            rows("other.zarr") == 6,
        )[-1],
    ),
    Case(
        "with ds.encoding['unlimited_dims'] =",
        lambda: (weather().td.to_h5("log.h5"), later().td.to_h5("log.h5", append_dim="time")),
        grow_fixed_file,
    ),
    Case(
        "drop them, or write to a new store",
        lambda: later(u=("time", np.zeros(6))).td.to_zarr(written(), append_dim="time"),
        lambda: (later().td.to_zarr("written.zarr", append_dim="time"), rows("written.zarr") == 12)[1],
    ),
    Case(
        "convert it with .astype(",
        lambda: later().astype("f8").assign(mask=weather()["mask"]).td.to_zarr(written(), append_dim="time"),
        lambda: (
            later()
            .assign(t2m=later()["t2m"].astype("f8").astype("float32"))
            .td.to_zarr("written.zarr", append_dim="time"),
            rows("written.zarr") == 12,
        )[1],
    ),
    Case(
        "transpose or rename the dims",
        lambda: later().rename(lat="y").td.to_zarr(written(), append_dim="time"),
        lambda: (
            later().rename(lat="y").rename(y="lat").td.to_zarr("written.zarr", append_dim="time"),
            rows("written.zarr") == 12,
        )[1],
    ),
    Case(
        "drop it, or overwrite it with mode='a' first",
        lambda: later(mask=("lat", [True, True])).td.to_zarr(written(), append_dim="time"),
        lambda: (
            later().drop_vars("mask").td.to_zarr("written.zarr", append_dim="time"),
            later(mask=("lat", [True, True]))[["mask"]].td.to_zarr("written.zarr", mode="a"),
            bool(opened("written.zarr")["mask"].all()),
        )[-1],
    ),
    Case(
        "a region cannot add variables; drop them",
        lambda: (
            weather(u=("time", np.zeros(6)))
            .drop_vars(["mask", "lat"])
            .td.to_zarr(written(), region={"time": slice(0, 6)})
        ),
        lambda: (weather()[["t2m"]].drop_vars("lat").td.to_zarr("written.zarr", region={"time": slice(0, 6)}), True)[1],
    ),
    Case(
        "Let region='auto' find their place",
        lambda: (
            weather()[["t2m"]]
            .drop_vars("lat")
            .isel(time=slice(2, 4))
            .td.to_zarr(written(), region={"time": slice(0, 2)})
        ),
        lambda: (
            (weather()[["t2m"]].drop_vars("lat").isel(time=slice(2, 4)) * 0).td.to_zarr("written.zarr", region="auto"),
            opened("written.zarr")["t2m"].values[2:4].sum() == 0,
        )[1],
    ),
    Case(
        "give the region as a slice, region=",
        lambda: weather()[["t2m"]].drop_vars(["lat", "time"])[{"time": slice(3)}].td.to_zarr(written(), region="auto"),
        lambda: (
            weather()[["t2m"]].drop_vars(["lat", "time"]).td.to_zarr("written.zarr", region={"time": slice(0, 6)}),
            True,
        )[1],
    ),
    Case(
        "mode='r+' adds no variables; pass mode='a'",
        lambda: xr.Dataset({"u": ("time", np.zeros(6))}).td.to_zarr(written(), mode="r+"),
        lambda: (
            xr.Dataset({"u": ("time", np.zeros(6))}).td.to_zarr("written.zarr", mode="a"),
            "u" in opened("written.zarr"),
        )[1],
    ),
    Case(
        "choose shards that hold whole chunks",
        lambda: written(chunks={"time": 2}, shards={"time": 3}),
        lambda: rows(written(chunks={"time": 2}, shards={"time": 4})) == 6,
    ),
    Case(
        "write to a new store, with strings of any length (.astype(object))",
        lambda: (
            words("a", "b").pipe(fixed).td.to_zarr("w.zarr"),
            words("long").pipe(fixed).td.to_zarr("w.zarr", append_dim="time"),
        ),
        lambda: (
            words("a", "b").td.to_zarr("v.zarr"),
            words("long").td.to_zarr("v.zarr", append_dim="time"),
            rows("v.zarr") == 3,
        )[-1],
    ),
    Case(
        "and set it again after opening with ds.set_index(",
        lambda: stacked().td.to_zarr("m.zarr"),
        lambda: (
            stacked().reset_index("place").td.to_zarr("m.zarr"),
            opened("m.zarr").set_index(place=["y", "x"])["v"].sel(y=1, x="b").item() == 3,
        )[1],
    ),
    Case(
        "rename it, or write with layout='xarray'",
        lambda: weather(_unbatched=("time", np.zeros(6))).td.to_zarr("u.zarr"),
        lambda: (
            weather(_unbatched=("time", np.zeros(6))).td.to_zarr("u.zarr", layout="xarray"),
            weather(_unbatched=("time", np.zeros(6))).rename(_unbatched="rest").td.to_zarr("r.zarr"),
            rows("u.zarr") == rows("r.zarr") == 6,
        )[-1],
    ),
    Case(
        "write with layout='xarray', or drop the variable",
        lambda: weather(early=("time", EARLY)).td.to_zarr("e.zarr"),
        lambda: (
            weather(early=("time", EARLY)).td.to_zarr("e.zarr", layout="xarray"),
            weather(early=("time", EARLY)).drop_vars("early").td.to_zarr("d.zarr"),
            np.array_equal(opened("e.zarr")["early"], EARLY),
        )[-1],
    ),
    Case(
        "leave it out, or write with layout='xarray'",
        lambda: weather().td.to_zarr("p.zarr", encoding={"t2m": PACKED}),
        lambda: (
            weather().td.to_zarr("p.zarr", layout="xarray", encoding={"t2m": PACKED}),
            opened("p.zarr")["t2m"][1, 0].item() == 2,
        )[1],
    ),
    Case(
        "convert it to numbers, strings, lists or dicts, or drop it",
        lambda: objects({1}, {2}).td.to_zarr("o.zarr"),
        lambda: (objects([1], {"a": 2}).td.to_zarr("o.zarr"), opened("o.zarr")["z"].values[1] == {"a": 2})[1],
    ),
    Case(
        "convert it, or drop it",
        lambda: objects((1, 2), (3, 4)).td.to_zarr("o.zarr"),
        lambda: (objects([1, 2], [3, 4]).td.to_zarr("o.zarr"), opened("o.zarr")["z"].values[1] == [3, 4])[1],
    ),
    Case(
        "write it with ds.td.to_zarr(), or remove the character",
        lambda: words("a\0b", "c").td.to_h5("n.h5"),
        lambda: (words("a\0b", "c").td.to_zarr("n.zarr"), opened("n.zarr")["word"].values[0] == "a\0b")[1],
    ),
    Case(
        "fill them with .fillna('')",
        lambda: objects("a", None).td.to_h5("n.h5"),
        lambda: (
            objects("a", None).assign(z=objects("a", None)["z"].fillna("")).td.to_h5("n.h5"),
            opened("n.h5")["z"].values[1] == "",
        )[1],
    ),
    Case(
        "write to one and copy it, or use ds.td.to_zarr for a URL",
        lambda: weather().td.to_h5("memory://advice/a.h5"),
        lambda: (weather().td.to_zarr("memory://advice/a.zarr", mode="w"), rows("memory://advice/a.zarr") == 6)[1],
    ),
    Case(
        "choose another group=, or pass mode='w'",
        lambda: weather().td.to_h5(hdf5(x=np.zeros(3)), group="x"),
        lambda: (weather().td.to_h5("file.h5", group="x", mode="w"), rows("file.h5", group="x") == 6)[1],
    ),
    Case(
        "unpack it, change the folder, and write it again with mode='w'",
        lambda: (weather().td.to_zarr("w.zip"), later().td.to_zarr("w.zip", append_dim="time")),
        lambda: (
            opened("w.zip").td.to_zarr("folder.zarr"),
            later().td.to_zarr("folder.zarr", append_dim="time"),
            opened("folder.zarr").td.to_zarr("w.zip", mode="w"),
            rows("w.zip") == 12,
        )[-1],
    ),
    Case(
        "a zip file is written at once, compute=False is not possible; write to a folder",
        lambda: weather().td.to_zarr("w.zip", compute=False),
        lambda: (weather().chunk().td.to_zarr("w.zarr", compute=False).compute(), rows("w.zarr") == 6)[1],
    ),
    Case(
        "or leave it out with exclude=['z']",
        lambda: objects({1}, {2}).td.to_memmap("mapped"),
        lambda: (objects({1}, {2}).td.to_memmap("mapped", exclude=["z"]), rows("mapped") == 2)[1],
    ),
    Case(
        "choose another path, or mode='w' to replace it",
        lambda: (weather().td.to_memmap("mapped"), later().td.to_memmap("mapped", mode="w-")),
        lambda: (later().td.to_memmap("mapped", mode="w"), tensordict.load("mapped").batch_size == (6,))[1],
    ),
    Case(
        "To load them with tensordict.load, widen them: del ds['w'].encoding['torch_dtype']",
        lambda: xtd.to_dataset(EIGHT_BITS).td.to_memmap("eight"),
        lambda: (widened().td.to_memmap("eight", mode="w"), tensordict.load("eight")["w"].dtype == torch.float32)[1],
    ),
]

MORE = [
    Case(
        "round them, or write to a new store",
        lambda: (hours("s").td.to_zarr("h.zarr"), hours("ns", 1).td.to_zarr("h.zarr", append_dim="time")),
        lambda: (
            hours("ns", 1).assign_coords(time=hours("s")["time"]).td.to_zarr("h.zarr", append_dim="time"),
            rows("h.zarr") == 6,
        )[1],
    ),
    Case(
        "convert the values and the attribute",
        lambda: later(t2m=kelvin("degC")).td.to_zarr(written(weather(t2m=kelvin("K"))), append_dim="time"),
        lambda: (later(t2m=kelvin("K")).td.to_zarr("written.zarr", append_dim="time"), rows("written.zarr") == 12)[1],
    ),
    Case(
        "fill them with .fillna(...), or convert it with .astype('float64')",
        lambda: masked().td.to_tensordict(),
        lambda: (
            masked().assign(n=("t", pd.array([1, 0], "Int64"))).td.to_tensordict()["n"].tolist() == [1, 0]
            and masked().astype("float64").td.to_tensordict()["n"].isnan().tolist() == [False, True]
        ),
    ),
    Case(
        "give the names as a tuple",
        lambda: xtd.to_dataset(
            weather().td.to_tensordict().set("new", torch.zeros(6, 2, 4)), template=weather(), dims={"new": "t2m"}
        ),
        lambda: (
            "z"
            in xtd.to_dataset(
                weather().td.to_tensordict().set("new", torch.zeros(6, 2, 4)), dims={"new": ("lat", "z")}
            ).dims
        ),
    ),
    Case(
        "write it with ds.td.to_h5(), or pad the rows, or drop it",
        lambda: objects(np.zeros(2), np.zeros(3)).td.to_zarr("r.zarr"),
        lambda: (
            objects(np.zeros(2), np.zeros(3)).td.to_h5("r.h5"),
            objects(np.zeros(2), np.zeros(3)).drop_vars("z").td.to_zarr("r.zarr"),
            opened("r.h5")["z"].values[1].shape == (3,),
        )[-1],
    ),
    Case(
        "write it with layout='tensordict', or pad the rows, or drop it",
        lambda: objects(np.zeros(2), np.zeros(3)).td.to_h5("r.h5", layout="xarray"),
        lambda: (objects(np.zeros(2), np.zeros(3)).td.to_h5("r.h5"), opened("r.h5")["z"].values[1].shape == (3,))[1],
    ),
    Case(
        "pad it with tensordict, or read it with tensordict.load",
        lambda: (nested().memmap("nested"), opened("nested")),
        lambda: (
            TensorDict({"x": nested()["x"].to_padded_tensor(0.0), "y": torch.zeros(2)}, [2]).memmap("padded"),
            opened("padded")["x"].shape == (2, 3) and tensordict.load("nested")["x"].is_nested,
        )[1],
    ),
    Case(
        "choose a region of whole chunks, or load the dataset",
        lambda: part().chunk().td.to_zarr(written(chunks={"time": 4}), region={"time": slice(0, 3)}),
        lambda: (
            part().chunk().load().td.to_zarr("written.zarr", region={"time": slice(0, 3)}),
            part(4).chunk().td.to_zarr("written.zarr", region={"time": slice(0, 4)}),
            opened("written.zarr")["t2m"].values[:4].sum() == 0,
        )[-1],
    ),
    Case(
        "leave it out with exclude=['z'], or write with ds.td.to_zarr(path) or unbatched='keep'",
        lambda: listed().td.to_memmap("lists", unbatched="expand"),
        lambda: (
            listed().td.to_memmap("lists", unbatched="expand", exclude=["z"]),
            listed().td.to_memmap("kept"),
            listed().td.to_zarr("lists.zarr"),
            opened("lists.zarr")["z"].shape == (2, 2),
        )[-1],
    ),
]


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


CASES = [*OPENING, *ANNOTATING, *CONVERTING, *LAZY, *LOADING, *WRITING, *MORE]


def messages_of(mistake: Callable[[], Any]) -> str:
    """What is raised, or else what is warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            mistake()
        except Exception as error:
            return str(error)
    return "\n".join(str(warning.message) for warning in caught)


@pytest.mark.parametrize("case", CASES, ids=[case.says[:50] for case in CASES])
def test_the_advice_of_the_message_gives_what_it_promises(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert case.says in messages_of(case.mistake)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert case.advice()
