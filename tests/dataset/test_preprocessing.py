"""Open, preprocess, write, open again: the operations of `preprocessing`, on several kinds of stores."""

import warnings
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
def test_a_packed_store_preprocessed_with_dask_comes_back_in_both_libraries(
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


@pytest.mark.parametrize("layout", ["tensordict", "xarray"])
@pytest.mark.parametrize("writer", ["to_zarr", "to_h5"])
def test_integers_that_got_a_nan_are_written_as_floats(tmp_path: Path, writer: str, layout: str) -> None:
    xr.Dataset({"n": ("time", np.arange(4))}).td.to_zarr(tmp_path / "n.zarr")
    with xr.open_dataset(tmp_path / "n.zarr", engine="tensordict") as ds:
        shifted = ds.shift(time=1)
        getattr(shifted.td, writer)(tmp_path / "out", layout=layout)
    with xr.open_dataset(tmp_path / "out", engine="tensordict") as found:
        np.testing.assert_array_equal(found["n"].values, [np.nan, 0, 1, 2])
