"""A choice of batch dims survives what people do with a Dataset, or a warning says which dim is gone."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
import zarr
from tensordict import TensorDict

from xarray_tensordict import InferredBatchWarning, open_persistent


@pytest.fixture
def ensemble() -> xr.Dataset:
    return xr.Dataset(
        {"t2m": (("time", "member", "latitude", "longitude"), np.arange(120.0).reshape(3, 2, 4, 5))},
        coords={
            "time": pd.date_range("2020", periods=3),
            "latitude": np.arange(4.0),
            "longitude": np.arange(5.0),
            "step": ("time", np.arange(3)),
        },
    )


CHOICES = [
    ["latitude", "longitude"],
    ["member"],
    ["time"],
    ["member", "latitude"],
    ["time", "member"],
    ["time", "latitude"],
]

Change = tuple[Callable[[xr.Dataset], xr.Dataset], dict[str, str], tuple[str, ...]]

CHANGES: dict[str, Change] = {
    "rename one": (lambda ds: ds.rename(latitude="lat"), {"latitude": "lat"}, ()),
    "rename two": (lambda ds: ds.rename(latitude="lat", longitude="lon"), {"latitude": "lat", "longitude": "lon"}, ()),
    "rename a dim without a coordinate": (lambda ds: ds.rename(member="number"), {"member": "number"}, ()),
    "rename_dims": (lambda ds: ds.rename_dims(time="t"), {"time": "t"}, ()),
    "swap_dims": (lambda ds: ds.swap_dims(time="step"), {"time": "step"}, ()),
    "stack in front": (lambda ds: ds.stack(s=("time", "member")), {"time": "s", "member": "s"}, ()),
    "stack behind": (lambda ds: ds.stack(s=("latitude", "longitude")), {"latitude": "s", "longitude": "s"}, ()),
    "transpose": (lambda ds: ds.transpose("longitude", "latitude", "member", "time"), {}, ()),
    "isel with a slice": (lambda ds: ds.isel(time=slice(2), latitude=slice(2)), {}, ()),
    "arithmetic": (lambda ds: ds + 1, {}, ()),
    "two Datasets": (lambda ds: ds - ds, {}, ()),
    "where": (lambda ds: ds.where(ds.t2m > 3), {}, ()),
    "a new variable": (lambda ds: ds.assign(twice=ds.t2m * 2), {}, ()),
    "concat along a dim that is there": (lambda ds: xr.concat([ds, ds], "time"), {}, ()),
    "merge": (lambda ds: xr.merge([ds, xr.Dataset({"height": ("latitude", np.zeros(4))})]), {}, ()),
    "concat along a new dim": (lambda ds: xr.concat([ds, ds], "run"), {}, ("run",)),
    "select and rename": (lambda ds: ds.isel(longitude=0).rename(latitude="lat"), {"latitude": "lat"}, ()),
    "rename and reduce": (lambda ds: ds.rename(latitude="lat").mean("lat"), {}, ()),
    "select and swap": (lambda ds: ds.isel(member=0).swap_dims(time="step"), {"time": "step"}, ()),
    "swap twice": (lambda ds: ds.swap_dims(time="step").rename(step="lead"), {"time": "lead"}, ()),
    "stack and unstack": (lambda ds: ds.stack(s=("time", "member")).unstack("s"), {}, ()),
    "rename a variable and a dim": (
        lambda ds: ds.assign(u10=ds.t2m * 2).rename(u10="u", latitude="lat"),
        {"latitude": "lat"},
        (),
    ),
    "windows": (lambda ds: ds.rolling(time=2).construct("window"), {}, ()),
    "coarsen": (lambda ds: ds.coarsen(latitude=2).mean(), {}, ()),
    "isel": (lambda ds: ds.isel(member=0), {}, ()),
    "mean": (lambda ds: ds.mean("latitude"), {}, ()),
    "sel": (lambda ds: ds.sel(latitude=2.0), {}, ()),
}
"""What is done, the new names of dims, and the dims that come in front."""


@pytest.mark.parametrize("change", CHANGES)
def test_a_choice_survives_but_for_dims_that_are_reduced_away_in_silence(ensemble: xr.Dataset, change: str) -> None:
    apply, names, front = CHANGES[change]
    for choice in CHOICES:
        changed = apply(ensemble.td.set_batch_dims(choice))
        left = [dim for dim in dict.fromkeys(names.get(dim, dim) for dim in choice) if dim in changed.dims]
        with warnings.catch_warnings():
            warnings.simplefilter("error", InferredBatchWarning)
            assert changed.td.batch_dims == (*front, *left) or not left, (choice, changed.td.infer().reason)


UNCLEAR: dict[str, Callable[[xr.Dataset], xr.Dataset]] = {
    "select without a coordinate and rename": lambda ds: ds.isel(member=0).rename(time="t", latitude="lat"),
    "reduce and rename its neighbour": lambda ds: ds.mean("member").rename(latitude="lat"),
    "reduce and join along a new dim": lambda ds: xr.concat([ds.mean("latitude")] * 2, "run"),
    "reduce and rename another": lambda ds: ds.mean("member").rename(longitude="lon"),
    "stack without an index": lambda ds: ds.stack(s=("member", "latitude"), create_index=False),
    "stack and rename": lambda ds: ds.stack(s=("time", "member")).rename(latitude="lat"),
    "join along a new dim and rename": lambda ds: xr.concat([ds, ds], "run").rename(latitude="lat", member="m"),
    "transpose and rename one": lambda ds: ds.transpose().rename(latitude="lat"),
    "rename and put in front": lambda ds: ds.rename(latitude="lat").transpose("lat", ...),
    "rename two and transpose": lambda ds: ds.transpose().rename(latitude="lat", member="m"),
    "rename all variables and a dim": lambda ds: ds.rename(t2m="t", latitude="lat"),
    "rename all variables, then dims": lambda ds: ds.rename(t2m="t").rename(latitude="lat", member="m", time="when"),
    "select all variables anew": lambda ds: ds.isel(member=0, latitude=0, drop=True).rename(time="t", longitude="lon"),
}
"""After these nothing tells a dim that was renamed from one that was reduced."""


@pytest.mark.parametrize("change", UNCLEAR)
def test_where_nothing_says_what_became_of_a_chosen_dim_a_warning_names_it(ensemble: xr.Dataset, change: str) -> None:
    for choice in CHOICES:
        changed = UNCLEAR[change](ensemble.td.set_batch_dims(choice))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = changed.td.infer()
        told = [str(each.message) for each in caught if each.category is InferredBatchWarning]
        for dim in (dim for dim in choice if dim not in changed.dims):
            assert f"{dim!r} is now" in found.reason or any(repr(dim) in text for text in told), (found.reason, told)
        kept = [dim for dim in choice if dim in changed.dims]
        assert not kept or set(kept) <= {*found.batch_dims}


@pytest.mark.parametrize(
    ("names", "choice", "expected"),
    [
        ({"latitude": "longitude", "longitude": "latitude"}, ["latitude"], ("longitude",)),
        ({"latitude": "member", "member": "latitude"}, ["member", "latitude"], ("latitude", "member")),
    ],
)
def test_dims_whose_names_were_exchanged_are_followed_by_their_sizes(
    ensemble: xr.Dataset, names: dict[str, str], choice: list[str], expected: tuple[str, ...]
) -> None:
    chosen = ensemble.drop_vars(["latitude", "longitude"]).td.set_batch_dims(choice)
    renamed = chosen.rename(names)
    with warnings.catch_warnings():
        warnings.simplefilter("error", InferredBatchWarning)
        assert renamed.td.batch_dims == expected
        assert chosen.transpose("longitude", "latitude", ...).td.batch_dims == tuple(choice)
    np.testing.assert_array_equal(renamed.td.to_tensordict()["t2m"], chosen.td.to_tensordict()["t2m"])


def test_a_quantile_is_no_new_name_and_no_batch_dim(ensemble: xr.Dataset) -> None:
    reduced = ensemble.td.set_batch_dims(["latitude", "time"]).quantile([0.1, 0.9], "time")
    with pytest.warns(
        InferredBatchWarning, match=r"\['time'\] are no dims any more; the batch dims are now \['latitude'\]"
    ):
        found = reduced.td.infer()
    assert found.batch_dims == ("latitude",)
    assert "is now" not in found.reason


def test_a_dim_that_was_renamed_and_cut_is_named_in_a_warning(ensemble: xr.Dataset) -> None:
    changed = ensemble.td.set_batch_dims(["latitude", "time"]).isel(time=slice(2)).rename(time="when")
    with pytest.warns(InferredBatchWarning, match=r"\['time'\] are no dims any more.* choose again"):
        assert changed.td.batch_dims == ("latitude",)


def test_a_fit_along_a_chosen_dim_reduces_it_in_silence(ensemble: xr.Dataset) -> None:
    fitted = ensemble.td.set_batch_dims(["latitude", "time"]).polyfit("time", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", InferredBatchWarning)
        assert fitted.td.batch_dims == ("latitude",)


WRITERS: dict[str, Callable[[xr.Dataset, Path], Any]] = {
    "zarr": lambda ds, path: ds.to_zarr(path, consolidated=False),
    "zarr of ds.td": lambda ds, path: ds.td.to_zarr(path),
    "netcdf": lambda ds, path: ds.to_netcdf(path, engine="h5netcdf"),
    "h5 of ds.td": lambda ds, path: ds.td.to_h5(path),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_choice_comes_back_from_a_store(ensemble, write, tmp_path: Path) -> None:
    for choice in CHOICES[:2] + CHOICES[4:]:
        path = tmp_path / "-".join(choice)
        write(ensemble.td.set_batch_dims(choice), path)
        with xr.open_dataset(path, engine="tensordict") as ds:
            assert ds.td.batch_dims == tuple(choice)
            renamed = ds.rename(latitude="lat")
            assert renamed.td.batch_dims == tuple(dim.replace("latitude", "lat") for dim in choice)
        assert open_persistent(path).names == choice


def test_a_chosen_dim_that_cannot_be_followed_is_named_in_a_warning(ensemble: xr.Dataset) -> None:
    chosen = ensemble.td.set_batch_dims(["latitude", "longitude"])
    other = xr.Dataset({"t2m": (("y0", "x0"), np.zeros((4, 5)))}, attrs=chosen.attrs)
    with pytest.warns(
        InferredBatchWarning, match=r"chosen batch dims \['latitude', 'longitude'\] are no dims any more"
    ):
        other.td.infer()
    other = xr.Dataset({"u": (("z0", "longitude"), np.zeros((4, 5)))}, attrs=chosen.attrs)
    with pytest.warns(
        InferredBatchWarning, match=r"\['latitude'\] are no dims .* the batch dims are now \['longitude'\]"
    ):
        other.td.infer()


def test_the_evidence_says_what_a_renamed_dim_was_called(ensemble: xr.Dataset) -> None:
    renamed = ensemble.td.set_batch_dims(["latitude"]).rename(latitude="lat")
    assert "'latitude' is now 'lat'" in renamed.td.infer().reason


def test_a_record_of_a_node_is_the_same_by_whichever_route(tmp_path: Path) -> None:
    path = tmp_path / "posterior.nc"
    for group, names in {"posterior": ("mu", "theta"), "log_likelihood": ("theta",), "sample_stats": ("mu",)}.items():
        dims = {"mu": ("chain", "draw"), "theta": ("chain", "draw", "school")}
        arrays = {name: (dims[name], np.zeros((2, 5, 3)[: len(dims[name])])) for name in names}
        xr.Dataset(arrays).to_netcdf(path, mode="a" if path.exists() else "w", group=group, engine="h5netcdf")
    with xr.open_datatree(path, engine="tensordict") as tree, xr.open_datatree(path, engine="tensordict") as other:
        groups = xr.open_groups(path, engine="tensordict")
        for name in ("posterior", "log_likelihood", "sample_stats"):
            with xr.open_dataset(path, engine="tensordict", group=name) as ds:
                assert ds.td.batch_dims == tree[name].td.batch_dims == ("chain", "draw")
                assert ds.attrs == tree[name].attrs == groups[f"/{name}"].attrs == other[name].to_dataset().attrs
                assert open_persistent(path, group=name).batch_size == (2, 5)


@pytest.mark.parametrize("form", ["zarr", "hdf5", "memmap"])
def test_recorded_names_that_contradict_those_of_the_group_above_are_left_out(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"s.{form}"
    record: dict[str, Any] = {"batch_size": [4], "version": 1}
    values = np.arange(8.0).reshape(4, 2)
    if form == "memmap":
        td = TensorDict({"x": torch.as_tensor(values), "next": {"y": torch.as_tensor(values)}}, batch_size=[4])
        td.memmap(path)
        for folder, names in ((path, ["time"]), (path / "next", ["other"])):
            meta = json.loads((folder / "meta.json").read_text())
            (folder / "meta.json").write_text(json.dumps({**meta, "_names": names, "names": names}))
    elif form == "hdf5":
        with h5py.File(path, "w") as file:
            file["x"] = file["next/y"] = values
            file.attrs["__tensordict__"] = json.dumps({**record, "names": ["time"]})
            file["next"].attrs["__tensordict__"] = json.dumps({**record, "names": ["other"]})
    else:
        group = zarr.open_group(path, mode="w", attributes={"__tensordict__": {**record, "names": ["time"]}})
        group.create_array("x", data=values)
        nested = group.create_group("next", attributes={"__tensordict__": {**record, "names": ["other"]}})
        nested.create_array("y", data=values)
    with pytest.warns(InferredBatchWarning, match=r"'/next'.*\['other'\], contradict .*\['time'\]") as warned:
        ds = xr.open_dataset(path, engine="tensordict")
    with pytest.warns(InferredBatchWarning, match=r"'/next'.*\['other'\], contradict .*\['time'\]"):
        lazy = open_persistent(path)
    td = lazy.to_tensordict()
    lazy.close()
    assert path.name in str(warned[0].message)
    assert (td == ds.td.to_tensordict()).all()
    assert td.names == td["next"].names == ["time"]
    np.testing.assert_array_equal(td["next", "y"], values)
    assert ds["next/y"].dims[0] == "time"
