"""Open, preprocess, write, open again: the operations of `preprocessing`, on several kinds of stores."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from tensordict import TensorDict

from preprocessing import OPERATIONS, Operation, field
from xarray_tensordict import open_persistent
from xarray_tensordict.testing import assert_same_tensordict

PACKED = {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -32768}


def chunked(path: Path) -> None:
    field().td.to_zarr(path, chunks={"time": 3})


def sharded(path: Path) -> None:
    field().td.to_zarr(path, chunks={"time": 2, "lat": 2}, shards={"time": 6, "lat": 4})


def packed(path: Path) -> None:
    encoding = {"sst": PACKED, "t2m": {"dtype": "int16", "_FillValue": -999}}
    field().td.to_zarr(path, layout="xarray", zarr_format=2, chunks={"time": 5}, encoding=encoding)


def hdf5(path: Path) -> None:
    field().td.to_h5(path)


def netcdf(path: Path) -> None:
    field().td.to_h5(path, layout="xarray", encoding={"sst": {**PACKED, "zlib": True}})


KINDS = {"chunked": chunked, "sharded": sharded, "packed": packed, "hdf5": hdf5, "netcdf": netcdf}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("stores")
    for kind, make in KINDS.items():
        make(folder / kind)
    return {kind: folder / kind for kind in KINDS}


def apply(operation: Operation, ds: xr.Dataset) -> xr.Dataset:
    with warnings.catch_warnings():
        # what xarray says of its own coming defaults, and numpy of empty slices
        warnings.simplefilter("ignore")
        return operation.function(ds)


def assert_same_dataset(found: xr.Dataset, expected: xr.Dataset, *, exact: bool) -> None:
    found, expected = found.load(), expected.load()
    if exact:
        xr.testing.assert_identical(found, expected)
    else:
        xr.testing.assert_allclose(found, expected)
    for name, variable in expected.variables.items():
        assert found[name].dims == variable.dims, name
        texts = {found[name].dtype.kind, variable.dtype.kind} <= set("OTU")
        assert texts or found[name].dtype == variable.dtype, name


def check(operation: Operation, store: Path, out: Path, *, chunks: Any, layout: str) -> None:
    expected = apply(operation, field())
    with xr.open_dataset(store, engine="tensordict", chunks=chunks) as ds:
        made = apply(operation, ds)
        if out.suffix == ".zarr":
            made.td.to_zarr(out, layout=layout)
        else:
            made.td.to_h5(out, layout=layout)
        made.load()
    with xr.open_dataset(out, engine="tensordict") as found, open_persistent(out) as ptd:
        assert found.td.batch_dims == operation.batch
        td = found.td.to_tensordict()
        numeric = {"/".join(key) if isinstance(key, tuple) else key for key in td.keys(True, True)}
        assert numeric == set(operation.entries)
        assert_same_tensordict(ptd.to_tensordict(), td)
        assert_same_tensordict(made.td.to_tensordict(), td)
        assert_same_dataset(found, made, exact=True)
        assert_same_dataset(found, expected, exact=operation.exact)
    if out.suffix == ".zarr" and layout == "tensordict":
        bare = TensorDict.from_zarr(out)
        assert tuple(bare.batch_size) == found.td.batch_size
        for name in operation.entries:
            # what has only some of the batch dims is in the entry _unbatched
            if td.batch_size and set(operation.batch) <= set(found[name].dims):
                np.testing.assert_array_equal(
                    bare.get(tuple(name.split("/"))).numpy(), td[tuple(name.split("/"))].numpy()
                )


def names(operation: Operation) -> str:
    return operation.name


DAILY = {
    "nothing", "normalise", "map_blocks", "map_blocks with a template", "apply_ufunc", "groupby strings", "coarsen",
    "rolling construct", "concat along the batch", "concat along a new dim", "merge", "one row", "no rows", "shift",
    "where, drop", "stack and reset", "assign",
}  # fmt: skip


@pytest.mark.parametrize("operation", [row for row in OPERATIONS if row.name in DAILY], ids=names)
def test_a_packed_store_preprocessed_with_dask_comes_back_through_both_doors(
    stores: dict[str, Path], tmp_path: Path, operation: Operation
) -> None:
    check(operation, stores["packed"], tmp_path / "out.zarr", chunks={}, layout="tensordict")


TARGETS = [(".zarr", "tensordict"), (".h5", "tensordict"), (".zarr", "xarray"), (".h5", "xarray")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("operation", OPERATIONS, ids=names)
def test_any_store_comes_back_after_any_operation(
    stores: dict[str, Path], tmp_path: Path, operation: Operation, kind: str
) -> None:
    # each operation meets dask and numpy, and each target, and each kind of store does
    turn = OPERATIONS.index(operation) + list(KINDS).index(kind)
    suffix, layout = TARGETS[turn // 2 % len(TARGETS)]
    check(operation, stores[kind], tmp_path / f"out{suffix}", chunks={} if turn % 2 else None, layout=layout)


# -- what no store holds, and the way out that the message names -------------------------------------------------------


@pytest.mark.parametrize("writer", ["to_zarr", "to_h5"])
@pytest.mark.parametrize("layout", ["tensordict", "xarray"])
class TestRefused:
    def test_a_multiindex_of_stack(self, tmp_path: Path, writer: str, layout: str) -> None:
        fields = field()[["t2m"]].reset_coords(drop=True).sortby("lat")
        stacked = fields.stack(sample=("time", "lat", "lon"))
        with pytest.raises(NotImplementedError, match=r"'sample' is a MultiIndex.*reset_index\('sample'\)"):
            getattr(stacked.td, writer)(tmp_path / "out", layout=layout)
        assert not list(tmp_path.iterdir())
        getattr(stacked.reset_index("sample").td, writer)(tmp_path / "out", layout=layout)
        with xr.open_dataset(tmp_path / "out", engine="tensordict") as found:
            again = found.load().set_index(sample=["time", "lat", "lon"]).unstack("sample")
            xr.testing.assert_identical(again, fields)

    def test_the_intervals_of_groupby_bins(self, tmp_path: Path, writer: str, layout: str) -> None:
        binned = field()[["t2m"]].groupby_bins("lat", [0, 2, 4]).min()
        with pytest.raises(TypeError, match=r"'lat_bins' has the dtype interval.*interval\.mid for interval in"):
            getattr(binned.td, writer)(tmp_path / "out", layout=layout)
        assert not list(tmp_path.iterdir())
        binned["lat_bins"] = [interval.mid for interval in binned["lat_bins"].values]
        getattr(binned.td, writer)(tmp_path / "out", layout=layout)
        with xr.open_dataset(tmp_path / "out", engine="tensordict") as found:
            xr.testing.assert_identical(found.load(), binned)


# -- a packing outlives the values that it was made for -----------------------------------------------------------------


def packed_store(folder: Path, **packing: Any) -> xr.Dataset:
    ds = xr.Dataset({"x": ("time", np.arange(8) * 0.5)})
    encoding = {"x": {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -32768, **packing}}
    ds.td.to_zarr(folder / "packed.zarr", layout="xarray", encoding=encoding, chunks={"time": 3})
    return xr.open_dataset(folder / "packed.zarr", engine="tensordict", chunks={})


STALE = {
    "too large": lambda ds: xr.map_blocks(lambda block: block * 1e6, ds, template=ds),
    "between the codes": lambda ds: xr.map_blocks(lambda block: block + 0.1, ds, template=ds),
    "the code of NaN": lambda ds: xr.map_blocks(lambda block: block - 16384, ds, template=ds),
}


@pytest.mark.parametrize("writer", ["to_zarr", "to_h5"])
@pytest.mark.parametrize("change", STALE.values(), ids=STALE)
class TestAPackingThatDoesNotHoldTheValues:
    def test_is_dropped_with_a_warning_where_they_are_in_memory(self, tmp_path: Path, writer: str, change: Any) -> None:
        changed = change(packed_store(tmp_path)).load()
        with pytest.warns(UserWarning, match="'x': int16 with scale_factor=0.5, .* so it is written as float64"):
            getattr(changed.td, writer)(tmp_path / "out", layout="xarray")
        with xr.open_dataset(tmp_path / "out", engine="tensordict") as found:
            xr.testing.assert_identical(found.load(), changed)

    def test_stops_the_write_where_dask_computes_them(self, tmp_path: Path, writer: str, change: Any) -> None:
        changed = change(packed_store(tmp_path))
        with pytest.raises(ValueError, match=r"'x': int16 with scale_factor=0\.5, .* does not hold .*drop_encoding"):
            getattr(changed.td, writer)(tmp_path / "out", layout="xarray")
        assert not (tmp_path / "out").exists()
        bare = changed.assign(x=changed["x"].drop_encoding())
        getattr(bare.td, writer)(tmp_path / "out", layout="xarray")
        with xr.open_dataset(tmp_path / "out", engine="tensordict") as found:
            xr.testing.assert_identical(found.load(), changed.load())

    def test_does_not_matter_to_tensordicts_layout(self, tmp_path: Path, writer: str, change: Any) -> None:
        changed = change(packed_store(tmp_path))
        getattr(changed.td, writer)(tmp_path / "out")
        with xr.open_dataset(tmp_path / "out", engine="tensordict") as found:
            xr.testing.assert_identical(found.load(), changed.load())


@pytest.mark.parametrize("chunks", [None, {}], ids=["eager", "dask"])
def test_a_packing_that_holds_the_values_is_kept(tmp_path: Path, chunks: Any) -> None:
    ds = packed_store(tmp_path).isel(time=slice(1, 7)).shift(time=1)
    ds = ds.load() if chunks is None else ds
    ds.td.to_zarr(tmp_path / "out.zarr", layout="xarray")
    with xr.open_dataset(tmp_path / "out.zarr", engine="tensordict") as found:
        assert found["x"].encoding["dtype"] == np.dtype("int16")
        xr.testing.assert_identical(found.load(), ds.load())


@pytest.mark.parametrize("layout", ["tensordict", "xarray"])
@pytest.mark.parametrize("writer", ["to_zarr", "to_h5"])
def test_integers_that_got_a_nan_are_written_as_floats(tmp_path: Path, writer: str, layout: str) -> None:
    xr.Dataset({"n": ("time", np.arange(4))}).td.to_zarr(tmp_path / "n.zarr")
    with xr.open_dataset(tmp_path / "n.zarr", engine="tensordict") as ds:
        shifted = ds.shift(time=1)
        getattr(shifted.td, writer)(tmp_path / "out", layout=layout)
    with xr.open_dataset(tmp_path / "out", engine="tensordict") as found:
        np.testing.assert_array_equal(found["n"].values, [np.nan, 0, 1, 2])


def test_files_that_are_packed_each_in_its_own_way_are_concatenated_without_loss(tmp_path: Path) -> None:
    """xarray packs all by the first, and the others wrap around."""
    months = []
    for month, scale in enumerate((0.01, 1.0)):
        values = np.arange(6) * scale * 100 + month * 5000
        path = tmp_path / f"{month}.nc"
        encoding = {"t2m": {"dtype": "int16", "scale_factor": scale, "_FillValue": -32768}}
        xr.Dataset({"t2m": ("time", values)}).td.to_h5(path, layout="xarray", encoding=encoding)
        months.append(xr.open_dataset(path, engine="tensordict"))
    year = xr.concat(months, "time")
    assert year["t2m"].encoding["scale_factor"] == 0.01
    with pytest.warns(UserWarning, match="'t2m': int16 with scale_factor=0.01, .* does not hold 5000.0"):
        year.td.to_zarr(tmp_path / "year.zarr", layout="xarray")
    with xr.open_dataset(tmp_path / "year.zarr", engine="tensordict") as found:
        xr.testing.assert_identical(found.load(), year)


# -- so does a value that stands for missing ones ----------------------------------------------------------------------

FILLED = {
    "floats": ({"_FillValue": -999.0}, "float32 with _FillValue=-999.0"),
    "missing_value": ({"missing_value": -999.0}, "float32 with missing_value=-999.0"),
    "two values": ({"_FillValue": -999.0, "missing_value": 7.0}, "float32 with _FillValue=-999.0"),
    "packed integers": (
        {"_FillValue": -500, "missing_value": 7, "scale_factor": 2.0, "add_offset": 1.0, "dtype": "i2"},
        "int16",
    ),
    "packed floats": ({"_FillValue": -499.5, "scale_factor": 2.0, "dtype": "f4"}, "float32 with scale_factor=2.0"),
}


def filled_store(folder: Path, writer: str, encoding: Mapping[str, Any]) -> Path:
    """What xarray wrote: a value is missing."""
    path = folder / "filled"
    ds = xr.Dataset({"x": ("time", np.array([1, np.nan, 3], "f4"))}, coords={"time": np.arange(3)})
    encoding = {word: value for word, value in encoding.items() if value != 7}
    if writer == "to_zarr":
        ds.to_zarr(path, encoding={"x": encoding}, consolidated=False)
    else:
        ds.to_netcdf(path, engine="h5netcdf", encoding={"x": encoding}, unlimited_dims=["time"])
    return path


@pytest.mark.parametrize("writer", ["to_zarr", "to_h5"])
@pytest.mark.parametrize(("encoding", "told"), FILLED.values(), ids=FILLED)
class TestAValueThatHasBecomeTheFillValue:
    def changed(self, folder: Path, writer: str, encoding: Any, chunks: Any) -> xr.Dataset:
        ds = xr.open_dataset(filled_store(folder, writer, encoding), engine="tensordict", chunks=chunks)
        found = ds.assign(x=ds["x"].fillna(-999.0))
        found["x"].encoding = dict(encoding)
        return found.load() if chunks is None else found

    def test_is_kept_with_a_warning_where_it_is_in_memory(self, tmp_path, writer, encoding, told) -> None:
        changed = self.changed(tmp_path, writer, encoding, None)
        with pytest.warns(UserWarning, match=f"'x': {told}.* does not hold -999.0, so it is written as float"):
            getattr(changed.td, writer)(tmp_path / "out", layout="xarray")
        with xr.open_dataset(tmp_path / "out", engine="tensordict") as found:
            np.testing.assert_array_equal(found["x"].values, [1, -999, 3])

    def test_stops_the_write_where_dask_computes_it(self, tmp_path, writer, encoding, told) -> None:
        changed = self.changed(tmp_path, writer, encoding, {})
        with pytest.raises(ValueError, match=f"'x': {told}.* does not hold -999.0; .*drop_encoding"):
            getattr(changed.td, writer)(tmp_path / "out", layout="xarray")
        assert not (tmp_path / "out").exists()

    def test_missing_values_stay_missing(self, tmp_path, writer, encoding, told) -> None:
        with xr.open_dataset(filled_store(tmp_path, writer, encoding), engine="tensordict") as ds:
            ds["x"].encoding = dict(encoding)
            getattr(ds.td, writer)(tmp_path / "out", layout="xarray")
            with xr.open_dataset(tmp_path / "out", engine="tensordict") as found:
                np.testing.assert_array_equal(found["x"].values, [1, np.nan, 3])


# -- the record of the batch, and the dims it speaks of -----------------------------------------------------------------


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store without names; the caller names the batch, and the Dataset records it."""
    import torch

    path = tmp_path_factory.mktemp("raw") / "raw.zarr"
    rows = {
        "obs": torch.arange(24.0).view(8, 3),
        "next": {"obs": torch.arange(24.0).view(8, 3) + 1},
        "r": torch.ones(8),
    }
    TensorDict({"episode": rows}, []).to_zarr(path)
    return path


AFTER = {
    "isel": (lambda ds: ds.isel(step=slice(2, 5)), ("step",)),
    "one row": (lambda ds: ds.isel(step=2), ()),
    "mean": (lambda ds: ds.mean("step"), ()),
    "rename": (lambda ds: ds.rename(step="t"), ("t",)),
    "normalise": (lambda ds: (ds - ds.mean("step")) / (ds.std("step") + 1), ("step",)),
    "a new dim in front": (lambda ds: xr.concat([ds, ds], "episode"), ("episode", "step")),
    "transpose": (lambda ds: ds.transpose(..., "step"), ("step",)),
    "rolling construct": (lambda ds: ds.rolling(step=2).construct("window"), ("step",)),
    "coarsen": (lambda ds: ds.coarsen(step=2).max(), ("step",)),
}


@pytest.mark.parametrize(("function", "batch"), AFTER.values(), ids=AFTER)
def test_the_record_of_the_batch_is_never_stale(tmp_path: Path, raw: Path, function: Any, batch: Any) -> None:
    with xr.open_dataset(raw, engine="tensordict", group="episode", batch_dims="step", chunks={}) as ds:
        made = function(ds)
        assert made.td.batch_dims == batch
        made.td.to_zarr(tmp_path / "out.zarr")
        expected = made.td.to_tensordict()
    with (
        xr.open_dataset(tmp_path / "out.zarr", engine="tensordict") as found,
        open_persistent(tmp_path / "out.zarr") as ptd,
    ):
        assert found.td.batch_dims == batch
        assert_same_tensordict(found.td.to_tensordict(), expected)
        assert_same_tensordict(ptd.to_tensordict(), expected)
        if batch:
            assert tuple(TensorDict.from_zarr(tmp_path / "out.zarr").batch_size) == found.td.batch_size
