"""Each request of a write fails once, or from there on: the store is as before or says what to do, and that works.

Rows of objects and the entry ``_unbatched`` are JSON texts, which are written anew as a whole: they are never lost.
"""

import asyncio
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr.storage
from tensordict import TensorDict

from xarray_tensordict.core.metadata import COMMIT_ATTR, INCOMPLETE_ATTR

FORMATS = pytest.mark.parametrize("zarr_format", [2, 3])
HOW_LONG = pytest.mark.parametrize(
    ("zarr_format", "for_good"),
    [
        pytest.param(2, True, id="v2, for good"),
        pytest.param(3, False, id="v3, once"),
        pytest.param(2, False, id="v2, once", marks=pytest.mark.slow),
        pytest.param(3, True, id="v3, for good", marks=pytest.mark.slow),
    ],
)


class Counting(zarr.storage.WrapperStore[zarr.storage.MemoryStore]):
    """A store to which something happens at the request to write number `first`."""

    def __init__(self, store: Any, first: int | None = None) -> None:
        super().__init__(store)
        self.first, self.requests = first, 0

    async def happen(self, number: int, key: str) -> None: ...

    async def set(self, key: str, value: Any) -> None:
        number, self.requests = self.requests, self.requests + 1
        await self.happen(number, key)
        await super().set(key, value)

    async def set_if_not_exists(self, key: str, value: Any) -> None:
        number, self.requests = self.requests, self.requests + 1
        await self.happen(number, key)
        await super().set_if_not_exists(key, value)


class FailingOnce(Counting):
    """One request fails."""

    async def happen(self, number: int, key: str) -> None:
        if number == self.first:
            raise OSError(f"no space left for {key}")


class FailingForGood(Counting):
    """A request fails, and all that come after it."""

    async def happen(self, number: int, key: str) -> None:
        if self.first is not None and number >= self.first:
            raise OSError(f"no space left for {key}")


class Interrupted(Counting):
    """Ctrl-C while a request is on its way: it is carried out all the same."""

    async def happen(self, number: int, key: str) -> None:
        if number == self.first:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            await asyncio.sleep(0.02)


class Recording(Counting):
    """A store that remembers what was in it before each request to write."""

    def __init__(self, store: Any, first: int | None = None) -> None:
        super().__init__(store, first)
        self.states: list[dict[str, Any]] = []

    async def happen(self, number: int, key: str) -> None:
        self.states.append(dict(self._store._store_dict))


def objects(rows: int, value: float) -> np.ndarray:
    found = np.empty((rows, 1), object)
    found[:, 0] = [{"row": row, "value": value, "text": "x" * int(value)} for row in range(rows)]
    return found


def dataset(rows: int = 4, value: float = 0.0) -> xr.Dataset:
    """`meta` holds objects; `clock` and `lut` do not start with the batch, and are kept in the entry ``_unbatched``."""
    numbers = np.arange(rows) + value
    return xr.Dataset(
        {
            "x": (("time", "run"), numbers[:, None]),
            "n/z": (("time", "run"), numbers[:, None].astype(int)),
            "meta": (("time", "run"), objects(rows, value)),
            "clock": ("time", numbers),
            "lut": ("k", np.arange(3.0)),
        }
    ).td.set_batch_dims(["time", "run"])


def joined(one: xr.Dataset, other: xr.Dataset) -> xr.Dataset:
    return xr.concat([one, other], "time", data_vars="minimal", coords="minimal", compat="override", join="outer")


def opened(store: Any) -> tuple[xr.Dataset, list[str]]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = xr.open_dataset(store, engine="tensordict").load()
    return found, [str(warning.message) for warning in told]


def assert_whole(store: Any, expected: xr.Dataset) -> None:
    found, told = opened(store)
    assert told == []
    assert_values(found, expected)
    assert found.td.batch_size == expected.td.batch_size


def assert_values(found: xr.Dataset, expected: xr.Dataset) -> None:
    assert set(found.variables) == set(expected.variables)
    for name, variable in expected.variables.items():
        assert found[name].dims == variable.dims, name
        assert found[name].values.tolist() == variable.values.tolist(), name


# -- the writes --------------------------------------------------------------------------------------------------------


def append(store: Any, value: float) -> xr.Dataset:
    dataset(2, value).td.to_zarr(store, append_dim="time")
    return joined(dataset(), dataset(2, value))


def append_lazily(store: Any, value: float) -> xr.Dataset:
    dataset(2, value).chunk(time=1).td.to_zarr(store, append_dim="time")
    return joined(dataset(), dataset(2, value))


def added(value: float) -> xr.Dataset:
    names = {"g/deep": (("time", "run"), np.ones((4, 1)) + value), "lut2": ("q", np.arange(2.0) + value)}
    return xr.Dataset({"new": (("time", "run"), np.ones((4, 1)) + value), **names})


def add(store: Any, value: float) -> xr.Dataset:
    added(value).td.to_zarr(store, mode="a")
    return dataset().assign(added(value).variables)


def overwrite(store: Any, value: float) -> xr.Dataset:
    dataset(4, value).td.to_zarr(store, mode="a")
    return dataset(4, value)


def region(store: Any, value: float) -> xr.Dataset:
    part = dataset(2, value).drop_vars("lut")
    part.td.to_zarr(store, region={"time": slice(1, 3)})
    expected = dataset()
    for name, variable in part.variables.items():
        place = tuple(slice(1, 3) if dim == "time" else slice(None) for dim in variable.dims)
        expected[name].values[place] = variable.values
    return expected


Write = Callable[[Any, float], xr.Dataset]
WRITES = pytest.mark.parametrize("write", [append, append_lazily, add, overwrite, region])


class Stores:
    """The same store anew for each request to which something happens."""

    def __init__(self, zarr_format: Any) -> None:
        held: dict[str, Any] = {}
        dataset().td.to_zarr(zarr.storage.MemoryStore(held), zarr_format=zarr_format, chunks={"time": 3})
        self.held = held

    def failing(
        self, write: Write, kind: type[Counting], error: type[BaseException]
    ) -> Iterator[zarr.storage.MemoryStore]:
        counting = Counting(zarr.storage.MemoryStore(dict(self.held)))
        write(counting, 5.0)
        for number in range(counting.requests):
            store = zarr.storage.MemoryStore(dict(self.held))
            with pytest.raises(error):
                write(kind(store, number), 5.0)
            yield store


def is_marked(store: Any) -> bool:
    return INCOMPLETE_ATTR in zarr.open_group(store, mode="r", use_consolidated=False).attrs


def assert_as_before_or_told(store: Any, write: Write) -> None:
    """What readers see of a store whose write has failed."""
    found, told = opened(store)
    if write is overwrite and told:
        assert len(told) == 1
        assert "the store is not complete: 'n/z', 'x' were being written" in told[0]
        assert is_marked(store)
    else:
        assert told == []
        assert not is_marked(store)
    if write is region or told:  # numbers are overwritten in place, texts are not
        found = found.assign(x=dataset()["x"], **{"n/z": dataset()["n/z"]})
    assert_values(found, dataset())
    group = zarr.open_group(store, mode="r", use_consolidated=False)
    if group.metadata.zarr_format == 3 or COMMIT_ATTR not in group.attrs:
        # zarr v2 has two documents that bare libraries read first, the last but one and the last that are written
        assert xr.open_zarr(store)["x"].shape == (4, 1)
        assert tuple(TensorDict.from_zarr(store).batch_size) == (4, 1)


@WRITES
@HOW_LONG
def test_readers_see_the_store_as_it_was_and_a_second_try_is_right(
    write: Write, zarr_format: Any, for_good: bool
) -> None:
    for store in Stores(zarr_format).failing(write, FailingForGood if for_good else FailingOnce, OSError):
        assert_as_before_or_told(store, write)
        assert_whole(store, write(store, 7.0))
        assert not is_marked(store)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Python's own handler: a shell that starts the tests in the background has SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("write", [append, pytest.param(add, marks=pytest.mark.slow)])
@FORMATS
def test_an_interrupted_write_never_leaves_rows_that_a_second_try_would_double(write: Write, zarr_format: Any) -> None:
    for store in Stores(zarr_format).failing(write, Interrupted, KeyboardInterrupt):
        assert_as_before_or_told(store, write)
        assert_whole(store, write(store, 7.0))


def is_in_commit(state: dict[str, Any], zarr_format: int) -> bool:
    root = state.get("zarr.json" if zarr_format == 3 else ".zattrs")
    return root is not None and COMMIT_ATTR.encode() in root.to_bytes()


@pytest.mark.parametrize("consolidated", [True, False])
@FORMATS
def test_a_commit_that_was_killed_is_rolled_back(zarr_format: Any, consolidated: bool) -> None:
    """All that a killed process has written is there, up to any request; nothing was cleaned up after it."""
    held: dict[str, Any] = {}
    dataset().td.to_zarr(
        zarr.storage.MemoryStore(held), zarr_format=zarr_format, chunks={"time": 3}, consolidated=consolidated
    )
    recording = Recording(zarr.storage.MemoryStore(dict(held)))
    dataset(2, 5.0).td.to_zarr(recording, append_dim="time", consolidated=consolidated)
    states = [state for state in recording.states if is_in_commit(state, zarr_format)]
    assert len(states) > 3
    for state in states:
        state.pop(".xarray-tensordict.lock")  # its writer is gone, and somebody has looked
        store = zarr.storage.MemoryStore(state)
        seen, told = opened(store)
        assert told == []
        assert seen.sizes["time"] in {4, 6}
        expected = dataset() if seen.sizes["time"] == 4 else joined(dataset(), dataset(2, 5.0))
        assert_values(seen, expected)
        dataset(2, 7.0).td.to_zarr(store, append_dim="time")
        assert not is_in_commit(state, zarr_format)
        assert_whole(
            store,
            joined(expected if "__xarray_tensordict_commit__" not in str(seen.attrs) else dataset(), dataset(2, 7.0)),
        )


@FORMATS
def test_texts_of_a_region_are_written_with_compute_false_as_well(zarr_format: Any) -> None:
    store = zarr.storage.MemoryStore()
    dataset().td.to_zarr(store, zarr_format=zarr_format, chunks={"time": 1})
    part = dataset(2, 5.0).drop_vars("lut").chunk(time=1)
    part.td.to_zarr(store, region={"time": slice(1, 3)}, compute=False).compute()
    other = zarr.storage.MemoryStore()
    dataset().td.to_zarr(other, zarr_format=zarr_format)
    assert_whole(store, region(other, 5.0))


# -- what else a failed write leaves -----------------------------------------------------------------------------------


def fails(block: Any) -> Any:
    raise RuntimeError("boom")


@FORMATS
def test_variables_that_could_not_be_added_leave_nothing_in_any_group(tmp_path: Path, zarr_format: Any) -> None:
    path = tmp_path / "a.zarr"
    old = xr.Dataset({"a": ("time", np.arange(4.0))}, coords={"time": np.arange(4)}, attrs={"title": "old"})
    old.td.to_zarr(path, zarr_format=zarr_format)
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    failing = da.map_blocks(fails, da.zeros(4, chunks=2), dtype="f8", meta=np.zeros(0))
    new = {"z": ("time", failing), "lut": ("k", np.arange(3.0)), "g/h/deep": ("time", np.arange(4.0))}
    with pytest.raises(RuntimeError, match="boom"):
        xr.Dataset(new, attrs={"title": "new"}).td.to_zarr(path, mode="a")
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


class FullArchive(zarr.storage.ZipStore):
    """A disk that is full after some entries."""

    room = 0

    async def set(self, key: str, value: Any) -> None:
        self.room -= 1
        if self.room < 0:
            raise OSError("no space left")
        await super().set(key, value)


@FORMATS
@pytest.mark.parametrize("group", [None, "deep/er"])
def test_a_part_of_an_archive_opens_as_no_store(tmp_path: Path, zarr_format: Any, group: str | None) -> None:
    ds, room, done = dataset(), 0, False
    while not done:
        store = FullArchive(tmp_path / f"{room}.zip", mode="w")
        store.room = room
        try:
            ds.td.to_zarr(store, zarr_format=zarr_format, group=group)
            done = True
        except OSError:
            store.close()
            # of chunks alone it is a zip archive of another kind
            with pytest.raises((FileNotFoundError, ValueError), match=re.escape(str(store.path))):
                xr.open_dataset(store.path, engine="tensordict", group=group)
        room += 1
    store.close()
    found = xr.open_dataset(store.path, engine="tensordict", group=group)
    assert_values(found, ds)
