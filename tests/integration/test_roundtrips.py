"""Who reads what whom has written: tensordict, xarray and this package, in zarr v2, zarr v3 and HDF5.

Each cell says what is expected, and the reasons that only a part, or nothing, is read are stated once.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
import zarr
from tensordict import PersistentTensorDict, TensorDict

import corpus
import twins
from xarray_tensordict.testing import assert_same_tensordict

pytestmark = pytest.mark.filterwarnings("ignore")  # what the other libraries warn of is theirs to judge

# -- contents ----------------------------------------------------------------------------------------------------------


def buffer() -> xr.Dataset:
    """A replay buffer: numbers and bools, nested, all with the batch in front."""
    return xr.Dataset(
        {
            "obs": (("time", "dim_3"), np.arange(18, dtype="f4").reshape(6, 3)),
            "done": ("time", np.arange(6) % 2 == 0),
            "next/obs": (("time", "dim_3"), np.arange(18, dtype="f4").reshape(6, 3) + 1),
            "next/reward": ("time", np.linspace(0, 1, 6)),
        }
    )


def era() -> xr.Dataset:
    """Fields on a grid with strings, times and bools, and coordinates, a mask and scalars that have no batch dim."""
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), np.arange(24, dtype="f4").reshape(4, 2, 3), {"units": "K"}),
            "mask": (("lat", "lon"), np.eye(2, 3, dtype=bool)),
            "name": ("time", np.array(["a", "", "blåbær", "b"], object)),
            "when": ("time", np.array(["2000-01-01", "NaT", "2020-02-02", "NaT"], "M8[ns]")),
            "done": ("time", [True, False, True, False]),
        },
        coords={
            "time": pd.date_range("2000", periods=4).as_unit("ns"),
            "lat": [10.0, -10.0],
            "lon": [0.0, 1.0, 2.0],
            "note": "a note",
            "height": 2.0,
        },
        attrs={"title": "fields"},
    )


def grid() -> xr.Dataset:
    """Two batch dims, and a coordinate that has one of them."""
    return xr.Dataset(
        {
            "y": (("member", "time", "f"), np.arange(24.0).reshape(2, 3, 4)),
            "z": (("member", "time"), np.arange(6).reshape(2, 3)),
        },
        coords={"lead": ("time", [0, 6, 12])},
    ).td.set_batch_dims(["member", "time"])


CONTENTS = {"buffer": buffer, "era": era, "grid": grid}
FORMATS = ("zarr2", "zarr3", "hdf5")

# -- writers -----------------------------------------------------------------------------------------------------------


def write_tensordict(ds: xr.Dataset, path: Path, form: str) -> None:
    td = ds.td.to_tensordict()
    if form == "hdf5":
        td.to_h5(path).close()
        return
    with zarr.config.set(default_zarr_format=int(form[-1])):
        td.to_zarr(path).close()


def write_xarray(ds: xr.Dataset, path: Path, form: str) -> None:
    if form == "hdf5":
        ds.to_netcdf(path, engine="h5netcdf")
    else:
        ds.to_zarr(path, zarr_format=int(form[-1]), consolidated=False)


def write_ours(layout: str) -> Callable[[xr.Dataset, Path, str], None]:
    def write(ds: xr.Dataset, path: Path, form: str) -> None:
        if form == "hdf5":
            ds.td.to_h5(path, layout=layout)
        else:
            ds.td.to_zarr(path, layout=layout, zarr_format=int(form[-1]))

    return write


WRITERS = {
    "tensordict": write_tensordict,
    "xarray": write_xarray,
    "ours": write_ours("tensordict"),
    "ours for xarray": write_ours("xarray"),
}

# -- readers: each says how much it has read ---------------------------------------------------------------------------

ALL = "all"
ROOT = "all of the root group"
BATCHED = "all that leads with the batch"
VALUES = "values, without the names of dims"
NO_BATCH = "arrays, without the batch"
NOTHING = "nothing"


def read_ours(ds: xr.Dataset, path: Path, form: str) -> str:
    with xr.open_dataset(path, engine="tensordict") as found:
        found.load()
        if found.identical(ds):
            assert_same_tensordict(found.td.to_tensordict(), ds.td.to_tensordict())
            return ALL
        # what to_tensordict has left out cannot come back
        wanted = {name: v for name, v in ds.variables.items() if name in found.variables}
        same_dims = all(found.variables[name].equals(v) for name, v in wanted.items() if is_batched(ds, name))
        for name, variable in wanted.items():
            if is_tensor(ds, name):
                np.testing.assert_array_equal(found.variables[name].values, as_tensor(variable))
        return BATCHED if same_dims else VALUES


def read_xarray(ds: xr.Dataset, path: Path, form: str) -> str:
    try:
        if form == "hdf5":
            found = xr.open_dataset(path, engine="h5netcdf", phony_dims="access").load()
        else:
            found = xr.open_zarr(path, consolidated=False).load()
    except KeyError as error:
        assert "dimension" in str(error)
        return NOTHING
    found.attrs.pop("__tensordict__", None)
    root = ds.drop_vars([name for name in ds.variables if "/" in str(name)])
    if found.identical(root):
        return ALL if len(root) == len(ds) else ROOT
    names = [name for name in root.variables if is_tensor(ds, name)]
    if all(name in found.variables and found.variables[name].equals(root.variables[name]) for name in names):
        return BATCHED
    stored = {name: root.variables[name].values for name in names if root.variables[name].dtype.kind != "M"}
    assert all(np.array_equal(found.variables[name].values, values) for name, values in stored.items())
    return VALUES


def read_tensordict(ds: xr.Dataset, path: Path, form: str) -> str:
    wanted = ds.td.to_tensordict()
    try:
        if form == "hdf5":
            found = PersistentTensorDict.from_h5(path, batch_size=wanted.batch_size).to_tensordict()
        else:
            found = TensorDict.from_zarr(path).to_tensordict()
    except (ValueError, TypeError) as error:
        assert "batch size and array size mismatch" in str(error) or "byte order" in str(error)
        return NOTHING
    if found.batch_size != wanted.batch_size:
        assert not found.batch_size
        return NO_BATCH
    for name in ds.variables:
        key = tuple(str(name).split("/"))
        if is_tensor(ds, name):
            assert torch.equal(found[key], wanted[key])
            assert found[key].dtype == wanted[key].dtype
    if list(found.names) != list(wanted.names):
        return VALUES
    whole = all(is_batched(ds, name) for name in ds.variables)
    return ALL if whole and set(found.keys()) == set(wanted.keys()) else BATCHED


def is_batched(ds: xr.Dataset, name: Any) -> bool:
    return ds.td.infer().classes[tuple(str(name).split("/"))] == "batched"


def is_tensor(ds: xr.Dataset, name: Any) -> bool:
    return is_batched(ds, name) and ds.variables[name].dtype.kind in "biufM"


def as_tensor(variable: xr.Variable) -> np.ndarray:
    """The values as a tensor holds them: times are nanoseconds."""
    return variable.values.astype("M8[ns]").view("i8") if variable.dtype.kind == "M" else variable.values


READERS = {"tensordict": read_tensordict, "xarray": read_xarray, "ours": read_ours}

# -- the table ---------------------------------------------------------------------------------------------------------

OTHERS = ("era", "grid")
"""The contents that have more than arrays that lead with the batch."""

EXPECTED: dict[tuple[str, str, str], dict[str, str]] = {}
"""Writer, reader and format: for each content how much is read."""


def expect(writer: str, reader: str, forms: tuple[str, ...], buffer_read: str, others_read: str) -> None:
    for form in forms:
        EXPECTED[writer, reader, form] = {"buffer": buffer_read, **dict.fromkeys(OTHERS, others_read)}


ZARR, HDF5 = ("zarr2", "zarr3"), ("hdf5",)

# tensordict writes no dimension names in zarr, and neither batch size nor names in HDF5
expect("tensordict", "tensordict", ZARR, ALL, BATCHED)
expect("tensordict", "tensordict", HDF5, VALUES, VALUES)
expect("tensordict", "xarray", ZARR, NOTHING, NOTHING)
expect("tensordict", "xarray", HDF5, VALUES, VALUES)
expect("tensordict", "ours", ZARR, ALL, VALUES)
expect("tensordict", "ours", HDF5, VALUES, VALUES)

# for tensordict, one coordinate with another leading size is the end of the batch; in HDF5 a batch size that is asked for
# does not fit it, and a placeholder for a dim has a byte order that torch lacks
expect("xarray", "tensordict", ZARR, VALUES, NO_BATCH)
expect("xarray", "tensordict", HDF5, NOTHING, NOTHING)
expect("xarray", "xarray", ZARR, ROOT, ALL)
expect("xarray", "xarray", HDF5, NOTHING, ALL)
expect("xarray", "ours", (*ZARR, *HDF5), ALL, ALL)

# this package: plain tensordict gets all that leads with the batch; HDF5 has no place for what tensordict calls names
expect("ours", "tensordict", ZARR, ALL, BATCHED)
expect("ours", "tensordict", HDF5, VALUES, VALUES)
expect("ours", "xarray", ZARR, ROOT, BATCHED)
expect("ours", "xarray", HDF5, VALUES, VALUES)
expect("ours", "ours", (*ZARR, *HDF5), ALL, ALL)

# and with layout="xarray" plain xarray gets all; nested groups by group=
expect("ours for xarray", "tensordict", ZARR, ALL, NO_BATCH)
expect("ours for xarray", "tensordict", HDF5, NOTHING, NOTHING)
expect("ours for xarray", "xarray", ZARR, ROOT, ALL)
expect("ours for xarray", "xarray", HDF5, ROOT, ALL)
expect("ours for xarray", "ours", (*ZARR, *HDF5), ALL, ALL)


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("reader", READERS)
def test_who_reads_what_whom_has_written(tmp_path, writer, reader, form, content):
    ds = CONTENTS[content]()
    path = tmp_path / ("x.h5" if form == "hdf5" else "x.zarr")
    expected = EXPECTED[writer, reader, form][content]
    if (writer, form, content) == ("xarray", "hdf5", "buffer"):
        with pytest.raises(ValueError, match="Forward slashes"):
            WRITERS[writer](ds, path, form)
        return
    WRITERS[writer](ds, path, form)
    assert READERS[reader](ds, path, form) == expected


# -- every store of the corpora ----------------------------------------------------------------------------------------

TARGETS = {"zarr2": "a2.zarr", "zarr3": "a3.zarr", "hdf5": "a.h5"}


def every_store() -> Iterator[Any]:
    for name in corpus.CASE_NAMES:
        yield pytest.param(corpus.cases.CASES[name], id=f"{name[:7]}-original")
        for form, make in twins.twins_of(name).items():
            yield pytest.param(make, id=f"{name[:7]}-{form}")
    for name in corpus.real_stores():
        yield pytest.param(lambda folder, name=name: corpus.REAL / name, id=name)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["tensordict", "xarray"])
@pytest.mark.parametrize("make", list(every_store()))
def test_this_package_gives_back_every_store_that_it_opens(make, tmp_path, layout):
    (tmp_path / "source").mkdir()
    with xr.open_dataset(make(tmp_path / "source"), engine="tensordict") as opened:
        ds = opened.isel({dim: slice(0, 5) for dim in opened.dims}).load()
    for form, name in TARGETS.items():
        reason = _refused(ds, form, layout)
        if reason is not None:
            with pytest.raises((TypeError, ValueError), match=reason):
                WRITERS["ours" if layout == "tensordict" else "ours for xarray"](ds, tmp_path / name, form)
            continue
        WRITERS["ours" if layout == "tensordict" else "ours for xarray"](ds, tmp_path / name, form)
        with xr.open_dataset(tmp_path / name, engine="tensordict", nested=True) as again:
            again.load()
            ragged = [name for name, v in ds.variables.items() if _is_ragged(v)]
            xr.testing.assert_identical(again.drop_vars(ragged), ds.drop_vars(ragged))
            assert again.td.batch_dims == ds.td.batch_dims
            assert_same_tensordict(again.td.to_tensordict(), ds.td.to_tensordict())


def _refused(ds: xr.Dataset, form: str, layout: str) -> str | None:
    """What is refused, with what the message has to say."""
    if any(_is_ragged(v) for v in ds.variables.values()) and (form, layout) != ("hdf5", "tensordict"):
        return "to_h5" if form != "hdf5" else "layout='tensordict'"
    objects = [v.values.ravel()[0] for v in ds.variables.values() if v.dtype.kind == "O" and v.size]
    if layout == "tensordict" and any(type(item).__module__.startswith("cftime") for item in objects):
        return "holds cftime dates"
    return None


def _is_ragged(variable: xr.Variable) -> bool:
    return variable.dtype.kind == "O" and any(isinstance(item, np.ndarray) for item in variable.values.ravel())
