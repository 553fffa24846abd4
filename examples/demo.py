"""Open a store, look at its batch, preprocess it in parallel, write it, and read it again with xarray and with tensordict.

Run it with ``make demo``, or on a store of yours, which is only read, with ``make demo STORE=path``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch
import xarray as xr
from tensordict import NonTensorData, TensorDict

import xarray_tensordict
from xarray_tensordict.testing import assert_same_tensordict


def make_store(path: Path, steps: int = 1000) -> Path:
    """Write the tensordict of a short reinforcement learning run, with nested entries, to a zarr store."""
    torch.manual_seed(0)
    position = torch.randn(steps + 1, 3).cumsum(0)
    TensorDict(
        {
            "obs": {"position": position[:-1], "camera": torch.randint(0, 255, (steps, 8, 8, 3), dtype=torch.uint8)},
            "action": torch.randn(steps, 2),
            "next": {"obs": {"position": position[1:]}, "reward": -position[1:].norm(dim=-1)},
            "done": torch.arange(steps) % 100 == 99,
            "task": NonTensorData("reach", batch_size=[steps]),
        },
        [steps],
        names=["time"],
    ).to_zarr(path)
    return path


def open_first_batch(path: str | Path) -> xr.Dataset:
    """Open the root, or where it has no arrays of its own the first group with a batch."""
    ds = xr.open_dataset(path, engine="tensordict", chunks={})
    groups = ds.encoding.get("xarray_tensordict", {}).get("hidden_groups", {})
    if ds.td.batch_size or not groups:
        return ds
    title("the root has no batch; ds.td says which groups have one")
    print(ds.td)
    ds.close()
    return xr.open_dataset(path, engine="tensordict", chunks={}, group=next(iter(groups)))


def normalise(ds: xr.Dataset) -> xr.Dataset:
    """Give every float entry zero mean and unit spread along the batch; everything else stays as it is."""
    batch_dims = set(ds.td.batch_dims)
    floats = [name for name, var in ds.data_vars.items() if var.dtype.kind == "f" and batch_dims & set(var.dims)]
    if not floats:
        return ds
    batched = ds[floats]
    over = [dim for dim in ds.td.batch_dims if dim in batched.dims]
    spread = batched.std(over)
    scaled = (batched - batched.mean(over)) / spread.where(spread > 0, 1)
    return ds.assign({name: scaled[name].astype(ds[name].dtype) for name in floats})


def drop_other_calendars(ds: xr.Dataset) -> xr.Dataset:
    """Drop times of calendars that an int64 of nanoseconds cannot hold; `ds.convert_calendar` would keep them."""
    dropped = [name for name, var in ds.variables.items() if var.dtype == object and "calendar" in var.encoding]
    if dropped:
        print(f"\n(not written, times of another calendar: {', '.join(map(str, dropped))})")
    return ds.drop_vars(dropped)


def show_and_compare(out: Path) -> None:
    """Read `out` as a Dataset, as a lazy tensordict and with plain tensordict, and compare the three."""
    ds = xr.open_dataset(out, engine="tensordict")
    lazy = xarray_tensordict.open_persistent(out)
    plain = TensorDict.from_zarr(out)
    title("written and opened again: xr.open_dataset(out, engine='tensordict').td")
    print(ds.td)
    print("-> xarray shows every variable with its dims; .td says which dims are the batch, and why.")
    title("xarray_tensordict.open_persistent(out)")
    print(lazy)
    print("-> The same store as a lazy tensordict: an index reads its rows, from disk, decoded.")
    title("TensorDict.from_zarr(out), without this package")
    print(plain)
    print("-> Plain tensordict reads the store, too.")

    from_xarray = ds.td.to_tensordict()
    assert_same_tensordict(from_xarray, lazy.to_tensordict())
    batch_dims = set(
        ds.td.batch_dims
    )  # an entry with only some of them is broadcast here, which plain tensordict cannot show
    partial = [name for name, var in ds.variables.items() if set() < batch_dims & set(var.dims) < batch_dims]
    expected = from_xarray.exclude(*(tuple(str(name).split("/")) for name in partial))
    assert_same_tensordict(tensors(plain.to_tensordict()), tensors(expected))
    print("\nAll three hold the same values.")


def tensors(td: TensorDict) -> TensorDict:
    """Return the entries that are tensors."""
    return td.select(*td.keys(include_nested=True, leaves_only=True))


def title(text: str) -> None:
    """Print a heading."""
    print(f"\n=== {text}")


def main(arguments: list[str]) -> int:
    """Run the demo; `arguments` may name a store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("store", nargs="?", help="a zarr store or HDF5 file of yours, opened read-only")
    store = parser.parse_args(arguments).store
    with tempfile.TemporaryDirectory() as folder:
        path = store or make_store(Path(folder) / "run.zarr")
        ds = open_first_batch(path)
        title("xr.open_dataset(store, engine='tensordict', chunks={})")
        print(ds)
        title("ds.td: which dims are the batch, and why")
        print(ds.td)

        out = Path(folder) / "normalised.zarr"
        first = ds.td.batch_dims[0] if ds.td.batch_dims else None
        chunked = ds.chunk({first: max(1, ds.sizes[first] // 4)}) if first else ds
        drop_other_calendars(normalise(chunked)).td.to_zarr(out)  # dask computes the chunks in parallel
        show_and_compare(out)
        ds.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
