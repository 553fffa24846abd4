"""The store of an Icechunk session has transactions of its own: it is written to like any other, and committed by its owner."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from xarray_tensordict.formats.zarr.transaction import LOCK

icechunk = pytest.importorskip("icechunk", reason="icechunk is not installed")


def rows(start: int, stop: int) -> xr.Dataset:
    numbers = np.arange(start, stop, dtype="f8")
    return xr.Dataset({"obs": ("time", numbers), "next/obs": ("time", numbers + 0.5)}).td.set_batch_dims("time")


def test_a_session_is_created_appended_to_changed_and_replaced(tmp_path: Path) -> None:
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repository")))
    states = [
        (lambda store: rows(0, 4).td.to_zarr(store), [0, 1, 2, 3]),
        (lambda store: rows(4, 6).chunk(time=1).td.to_zarr(store, append_dim="time"), [0, 1, 2, 3, 4, 5]),
        (lambda store: (rows(2, 4) * -1).td.to_zarr(store, region={"time": slice(2, 4)}), [0, 1, -2, -3, 4, 5]),
        (lambda store: rows(0, 6).rename(obs="more")[["more"]].td.to_zarr(store, mode="a"), [0, 1, -2, -3, 4, 5]),
        (lambda store: rows(0, 2).td.to_zarr(store, mode="w"), [0, 1]),
    ]
    for write, expected in states:
        session = repository.writable_session("main")
        write(session.store)
        session.commit("a change")
        store = repository.readonly_session("main").store
        with xr.open_zarr(store, consolidated=False) as ds:
            assert ds["obs"].values.tolist() == expected
            assert LOCK not in ds.variables
