"""Training from compressed zarr, far away and here: this package and insitubatch, whose stores are on this disk, or on a server
on this machine that answers late.

"limit" is what the requests alone take: all objects, 64 at once, not decoded. insitubatch needs Python 3.12 or newer;
without it its column stays empty.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from zarr.abc.store import Store
from zarr.codecs import ZstdCodec
from zarr.storage import LocalStore, ObjectStore

import xarray_tensordict  # noqa: F401 - registers ds.td

from .jobs import Job, Sizes

BATCH = 64
AT_ONCE = 64
ROW = (4, 48, 48)


def jobs(folder: Path, sizes: Sizes) -> Iterator[Job]:
    """The jobs of epochs from each store, at each latency."""
    rows = 64 * sizes.picked // 4
    stores = write_stores(folder, rows)
    for name in stores:
        yield from epochs(str(folder / f"{name}.zarr"), None, f"on this disk, {stores[name]}", rows)
    for late in (10, 30, 100) if sizes == Sizes() else (1,):
        with served(folder, late / 1e3) as url:
            for name in stores:
                yield from epochs(f"{url}/{name}.zarr", folder / f"{name}.zarr", f"{late} ms, {stores[name]}", rows)


def write_stores(folder: Path, rows: int) -> dict[str, str]:
    """The same rows of 37 kB in three layouts; returns what each is called."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(1, *ROW)) + rng.normal(size=(rows, *ROW)) * 0.1
    ds = xr.Dataset(
        {"x": (("time", "c", "lat", "lon"), np.round(values.astype("f4"), 2)), "y": ("time", rng.integers(0, 10, rows))}
    )
    layouts: dict[str, tuple[str, dict[str, Any], int]] = {
        "chunks": ("chunks of 16 rows", {"chunks": (16, *ROW)}, 16),
        "many": ("chunks of 2 rows", {"chunks": (2, *ROW)}, rows),
        "shards": ("shards of 128 rows", {"chunks": (8, *ROW), "shards": (128, *ROW)}, 32),
    }
    for name, (_, of_x, of_y) in layouts.items():
        encoding = {"x": {**of_x, "compressors": [ZstdCodec(level=3)]}, "y": {"chunks": (of_y,)}}
        ds.to_zarr(folder / f"{name}.zarr", zarr_format=3, consolidated=True, encoding=encoding)
    return {name: called for name, (called, *_) in layouts.items()}


@contextmanager
def served(folder: Path, seconds: float) -> Iterator[str]:
    """The address of a server of a folder."""
    program = [sys.executable, str(Path(__file__).with_name("far_server.py")), str(folder), str(seconds)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        finally:
            server.terminate()


def epochs(url: str, folder: Path | None, what: str, rows: int) -> Iterator[Job]:
    """The jobs of one store; `folder` is what is behind its URL."""
    for case, options in (("in order", {}), ("shuffled", {"shuffle": True, "seed": 0})):
        sides = {"this package": lambda options=options: epoch(ours(url, options), rows)}
        if folder is not None:
            sides["limit"] = transfer(url, folder)
        if find_spec("insitubatch") is not None:
            sides["other"] = theirs(url, rows, shuffle=bool(options))
        yield Job(f"{what}: {case}", sides, repeats=3, other="insitubatch")
    kept = ours(url, {"shuffle": True, "seed": 0})
    sides = {"this package": lambda: epoch(kept, rows)}
    if find_spec("insitubatch") is not None:
        sides["other"] = theirs(url, rows, shuffle=True, keep=True)
    yield Job(f"{what}: the second epoch", sides, repeats=3, other="insitubatch")


def opened(url: str) -> Store:
    if "://" not in url:
        return LocalStore(url, read_only=True)
    from obstore.store import HTTPStore

    return ObjectStore(HTTPStore.from_url(url, client_options={"allow_http": True}), read_only=True)


def ours(url: str, options: dict[str, Any]) -> Any:
    return xr.open_dataset(opened(url), engine="tensordict").td.batches(BATCH, **options)


def epoch(batches: Any, rows: int) -> None:
    found = 0
    for batch in batches:
        float(batch["y"].sum())
        found += len(batch["y"])
    assert found == rows, f"expected {rows} rows, got {found}"


def theirs(url: str, rows: int, *, shuffle: bool, keep: bool = False) -> Callable[[], None]:
    import insitubatch as isb

    def new() -> Any:
        store = opened(url)
        geometries = isb.open_geometries(store)
        split = isb.split_by_chunk(geometries["x"], fractions=(1.0, 0.0, 0.0))
        cache = {"cache_budget_bytes": 1 << 30} if keep else {}
        return isb.InSituDataset(store, split, geometries=geometries, batch_size=BATCH, shuffle=shuffle, **cache)

    kept = new() if keep else None

    def run() -> None:
        data = kept if keep else new()
        try:
            epoch(map(isb.to_torch, data.train), rows)
        finally:
            if not keep:
                data.close()

    return run


def transfer(url: str, folder: Path) -> Callable[[], None]:
    """All chunks, and nothing done with them."""
    store: Any = opened(url)
    keys = [path.relative_to(folder).as_posix() for path in folder.glob("*/c/**/*") if path.is_file()]

    async def all_of_them() -> None:
        import obstore

        limit = asyncio.Semaphore(AT_ONCE)

        async def one(key: str) -> None:
            async with limit:
                await (await obstore.get_async(store.store, key)).bytes_async()

        await asyncio.gather(*map(one, keys))

    return lambda: asyncio.run(all_of_them())
