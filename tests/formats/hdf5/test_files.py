"""HDF5 files are opened from whatever the user has, and stay usable in threads, pickles and other processes."""

import io
import multiprocessing
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask.array
import h5py
import netCDF4
import numpy as np
import psutil
import pytest
import xarray as xr
from xarray.core import indexing

from xarray_tensordict.core.model import walk
from xarray_tensordict.formats.hdf5.read import Hdf5Store

pytestmark = pytest.mark.filterwarnings("error")

ROWS = np.arange(4000, dtype="f4").reshape(1000, 4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "rows.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=ROWS, chunks=(10, 4), compression="gzip")
        file["deep/inner/y"] = np.arange(3)
        file["rec"] = np.zeros(2, [("a", "i4"), ("sub", [("b", "f4")])])
    return path


def lazy(store: Hdf5Store, name: str = "x") -> xr.Variable:
    array = store.group().arrays[name]
    return xr.Variable([f"d{axis}" for axis in range(len(array.shape))], indexing.LazilyIndexedArray(array.data))


_FOLDER: list[str] = []


@pytest.fixture(autouse=True)
def folder_of_this_test(tmp_path: Path) -> None:
    """Threads of other libraries read /proc at any moment, and tests elsewhere may have left files open."""
    _FOLDER[:] = [str(tmp_path)]


def open_paths() -> list[str]:
    return [file.path for file in psutil.Process().open_files() if file.path.startswith(_FOLDER[0])]


# What can be opened


def test_a_path_as_str_pathlike_home_or_file_url(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(path.parent))
    monkeypatch.chdir(path.parent)
    for source in (str(path), path, "rows.h5", "~/rows.h5", f"file://{path}"):
        store = Hdf5Store.open(source)
        assert store.description == str(path)
        np.testing.assert_array_equal(lazy(store).values, ROWS)
        store.close()
    assert str(path) not in open_paths()


def test_the_file_of_the_caller_is_read_and_never_closed(path: Path) -> None:
    with h5py.File(path) as file:
        store = Hdf5Store.open(file)
        np.testing.assert_array_equal(lazy(store).values, ROWS)
        store.close()
        assert file["x"][0, 1] == 1
        inner = Hdf5Store.open(file["deep"], root="inner")
        np.testing.assert_array_equal(lazy(inner, "y").values, [0, 1, 2])
        assert inner.description == f"{path}:/deep"
        inner.close()
        assert file


def test_a_file_open_for_writing_shows_what_was_just_written(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "new.h5", "w") as file:
        time = file.create_dataset("time", data=np.arange(2.0), maxshape=(None,))
        time.make_scale()
        v = file.create_dataset("v", data=np.arange(2.0), maxshape=(None,))
        v.dims[0].attach_scale(time)
        store = Hdf5Store.open(file)
        assert store.group().arrays["v"].shape == (2,)
        time.resize((5,))
        file["later"] = 1
        group = store.group()
        assert group.arrays["v"].shape == (5,)
        assert "later" in group.arrays


@pytest.mark.parametrize(
    "wrap", [lambda p: io.BytesIO(p.read_bytes()), lambda p: p.read_bytes(), lambda p: p.open("rb")]
)
def test_bytes_and_binary_file_objects(path: Path, wrap: Callable[[Path], Any]) -> None:
    source = wrap(path)
    store = Hdf5Store.open(source)
    np.testing.assert_array_equal(lazy(store)[[3, 900]].values, ROWS[[3, 900]])
    store.close()
    if not isinstance(source, bytes):
        assert not source.closed
        assert source.read(4) is not None
        source.close()


def test_a_user_block_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "block.h5"
    with h5py.File(path, "w", userblock_size=2048) as file:
        file["x"] = [1, 2]
    for source in (path, io.BytesIO(path.read_bytes())):
        store = Hdf5Store.open(source)
        assert list(store.group().arrays) == ["x"]
        store.close()


def test_the_group_to_open(path: Path) -> None:
    for root in ("deep/inner", "/deep/inner/"):
        store = Hdf5Store.open(path, root=root)
        group = store.group()
        assert group.key == ()
        assert list(group.arrays) == ["y"]
        store.close()


def test_records_can_be_the_group_to_open(path: Path) -> None:
    store = Hdf5Store.open(path, root="rec/sub")
    assert list(store.group().arrays) == ["b"]
    store.close()


# What cannot


def test_errors_name_the_file_and_say_what_it_is(tmp_path: Path) -> None:
    texts = {
        b"CDF\x01" + bytes(20): "netCDF-3.*scipy",
        b"CDF\x05" + bytes(20): "netCDF-3.*netcdf4",
        b"GRIB" + bytes(20): "GRIB.*cfgrib",
        b"PK\x03\x04" + bytes(20): "torch.save",
        b"": "empty",
        b"hello, world": "expected an HDF5 file, found a file that starts with b.hello",
    }
    path = tmp_path / "odd.bin"
    for content, message in texts.items():
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"odd.bin.*{message}"):
            Hdf5Store.open(path)
        with pytest.raises(ValueError, match=message):
            Hdf5Store.open(io.BytesIO(content))
    assert not open_paths()


def test_a_truncated_file(path: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.h5"
    short.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(OSError, match=r"short\.h5.*truncated.*not complete"):
        Hdf5Store.open(short)
    with pytest.raises(OSError, match="truncated"):
        Hdf5Store.open(io.BytesIO(short.read_bytes()))
    assert not open_paths()


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.h5"):
        Hdf5Store.open(tmp_path / "absent.h5")
    with pytest.raises(IsADirectoryError, match="directory"):
        Hdf5Store.open(tmp_path)
    with pytest.raises(ValueError, match="URL"):
        Hdf5Store.open("https://example.org/file.h5")


def test_things_that_are_no_files(path: Path) -> None:
    with pytest.raises(TypeError, match=r"not builtins\.int"):
        Hdf5Store.open(3)
    with path.open("r", encoding="latin-1") as text, pytest.raises(TypeError, match="binary mode"):
        Hdf5Store.open(text)
    with h5py.File(path) as file, pytest.raises(TypeError, match="Dataset"):
        Hdf5Store.open(file["x"])
    with pytest.raises(ValueError, match="closed"):
        Hdf5Store.open(file)


def test_a_missing_group_lists_those_there_are(path: Path) -> None:
    for root in ("nowhere", "x", "deep/inner/y", "deep/x", "rec/a"):
        with pytest.raises(OSError, match=rf"rows\.h5.*no group '/{root}'.*'/deep', '/deep/inner', '/rec'"):
            Hdf5Store.open(path, root=root)
    with pytest.raises(ValueError, match="must be a string"):
        Hdf5Store.open(path, root=3)  # type: ignore[arg-type]
    assert not open_paths()
    store = Hdf5Store.open(path)
    for key in (("nowhere",), ("x",), ("deep/inner",), (".",), ("",), ("rec", "a"), ("rec", "nowhere")):
        with pytest.raises(KeyError, match="no group"):
            store.group(key)
    store.close()


def test_a_file_locked_by_a_writer(path: Path) -> None:
    with h5py.File(path, "r+"):
        code = f"from xarray_tensordict.formats.hdf5.read import Hdf5Store\nHdf5Store.open({str(path)!r})"
        with (
            multiprocessing.get_context("spawn").Pool(1) as pool,
            pytest.raises(OSError, match=r"rows\.h5.*HDF5_USE_FILE_LOCKING"),
        ):
            pool.apply(exec, (code,))


# Closing and reading on


def test_reading_after_close_opens_the_file_again_as_xarray_does(path: Path) -> None:
    store = Hdf5Store.open(path)
    x = lazy(store)
    store.close()
    assert not open_paths()
    np.testing.assert_array_equal(x[5].values, ROWS[5])
    store.close()
    assert not open_paths()


def test_the_file_is_closed_with_the_last_array(path: Path) -> None:
    x = lazy(Hdf5Store.open(path))
    assert open_paths() == [str(path)]
    del x
    assert not open_paths()


def test_a_file_that_its_owner_has_closed(path: Path) -> None:
    with h5py.File(path) as file:
        x = lazy(Hdf5Store.open(file))
    with pytest.raises(ValueError, match=r"rows\.h5 was closed"):
        x.load()


def test_a_store_can_be_used_after_it_was_closed_or_pickled(tmp_path: Path) -> None:
    path = tmp_path / "enum.nc"
    with netCDF4.Dataset(path, "w") as nc:
        kind = nc.createEnumType("u1", "kind_t", {"a": 0, "b": 1})
        nc.createDimension("x", 2)
        nc.createGroup("g").createVariable("v", kind, ("x",), fill_value=0)[:] = [0, 1]
    store = Hdf5Store.open(path)
    for other in (store, store, pickle.loads(pickle.dumps(store))):
        array = other.group(("g",)).arrays["v"]
        assert array.encoding["dtype"].metadata["enum_name"] == "kind_t"
        assert array.dims == ("x",)
        other.close()


def test_more_files_than_xarray_keeps_open(path: Path, tmp_path: Path) -> None:
    copies = [tmp_path / f"copy{number}.h5" for number in range(5)]
    for copy in copies:
        copy.write_bytes(path.read_bytes())
    with xr.set_options(file_cache_maxsize=2):
        stores = [Hdf5Store.open(copy) for copy in copies]
        arrays = [lazy(store) for store in stores]
        assert len(open_paths()) <= 2
        for _ in range(2):
            for x in arrays:
                np.testing.assert_array_equal(x[7].values, ROWS[7])
        for store in stores:
            store.close()


def test_no_file_is_left_open(path: Path) -> None:
    store = Hdf5Store.open(path)
    for group in walk(store):
        for array in group.arrays.values():
            xr.Variable([str(axis) for axis in range(len(array.shape))], indexing.LazilyIndexedArray(array.data)).load()
    store.close()
    assert not open_paths()


# Threads, pickles, processes


def test_many_threads(path: Path) -> None:
    store = Hdf5Store.open(path)
    x = lazy(store)
    rows = np.random.default_rng(0).integers(0, 1000, 400)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda row: x[int(row)].values, rows))
    np.testing.assert_array_equal(found, ROWS[rows])
    store.close()


def test_a_pickle_holds_no_data(path: Path) -> None:
    store = Hdf5Store.open(path)
    array = store.group().arrays["x"]
    dumped = pickle.dumps(array)
    assert len(dumped) < 1500
    store.close()
    again = pickle.loads(dumped)
    np.testing.assert_array_equal(again.data[indexing.BasicIndexer((slice(2), slice(None)))], ROWS[:2])
    again.data._opened.source.close()


@pytest.mark.parametrize("root", [None, "deep"])
def test_arrays_of_the_callers_file_are_pickled_by_path(path: Path, root: str | None) -> None:
    with h5py.File(path) as file:
        store = Hdf5Store.open(file if root is None else file[root], root=None if root is None else "inner")
        name = "x" if root is None else "y"
        dumped, expected = pickle.dumps(lazy(store, name)), lazy(store, name).values
    again = pickle.loads(dumped)
    np.testing.assert_array_equal(again.values, expected)
    del again
    assert not open_paths()


def test_a_file_object_is_pickled_by_path_or_whole(path: Path) -> None:
    with path.open("rb") as source:
        dumped = pickle.dumps(lazy(Hdf5Store.open(source)))
        assert len(dumped) < 2000
    np.testing.assert_array_equal(pickle.loads(dumped).values, ROWS)
    memory = pickle.dumps(lazy(Hdf5Store.open(io.BytesIO(path.read_bytes()))))
    path.unlink()
    np.testing.assert_array_equal(pickle.loads(memory).values, ROWS)


def test_a_file_in_the_memory_of_the_caller_cannot_be_pickled(path: Path) -> None:
    with h5py.File(io.BytesIO(path.read_bytes())) as file:
        x = lazy(Hdf5Store.open(file))
        with pytest.raises(TypeError, match="by its path"):
            pickle.dumps(x)


def check_rows(x: xr.Variable, seed: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 1000, 200)
    for row in rows:
        np.testing.assert_array_equal(x[int(row)].values, ROWS[row])


def read_in_processes(method: str, x: xr.Variable) -> None:
    context: Any = multiprocessing.get_context(method)
    workers = [context.Process(target=check_rows, args=(x, seed)) for seed in range(3)]
    for worker in workers:
        worker.start()
    check_rows(x, 99)
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0


@pytest.mark.parametrize("kind", ["path", "file object", "bytes", "h5py"])
@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_forked_processes_read_at_the_same_time(path: Path, kind: str) -> None:
    with path.open("rb") as binary, h5py.File(path) as file:
        source = {"path": path, "file object": binary, "bytes": path.read_bytes(), "h5py": file}[kind]
        store = Hdf5Store.open(source)
        x = lazy(store)
        check_rows(x, 1)
        read_in_processes("fork", x)
        store.close()


def test_spawned_processes(path: Path) -> None:
    store = Hdf5Store.open(path)
    read_in_processes("spawn", lazy(store))
    store.close()


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_forks_while_other_threads_read_can_read(path: Path) -> None:
    """The child would wait for ever for what another thread of its parent has begun in HDF5."""
    store = Hdf5Store.open(path)
    x = lazy(store)
    stopped = threading.Event()

    def read() -> None:
        while not stopped.is_set():
            x[np.arange(0, 1000, 7)].load()

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    codes = []
    for seed in range(8):
        child: Any = multiprocessing.get_context("fork").Process(target=check_rows, args=(x, seed))
        child.start()
        child.join(30)
        codes.append(child.exitcode)
        child.kill()
    stopped.set()
    for thread in threads:
        thread.join()
    assert codes == [0] * 8
    store.close()


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_fork_by_whoever_holds_the_lock_goes_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from xarray.backends.locks import HDF5_LOCK

    monkeypatch.setattr("xarray_tensordict.formats.hdf5.file._FORK_WAITS", 0.2)
    store = Hdf5Store.open(path)
    x = lazy(store)
    child: Any = multiprocessing.get_context("fork").Process(target=check_rows, args=(x, 5))
    with HDF5_LOCK:
        child.start()
        child.join(60)
    assert child.exitcode == 0
    np.testing.assert_array_equal(x[5].values, ROWS[5])
    store.close()


def test_a_file_that_is_closed_while_threads_read_is_a_clear_error(path: Path) -> None:
    with h5py.File(path) as file, ThreadPoolExecutor(4) as pool:
        x = lazy(Hdf5Store.open(file))
        begun = threading.Barrier(5)

        def read() -> None:
            begun.wait()
            for _ in range(500):
                np.testing.assert_array_equal(x[5].values, ROWS[5])

        readers = [pool.submit(read) for _ in range(4)]
        begun.wait()
        file.close()
        for reader in readers:
            with pytest.raises(ValueError, match=r"rows\.h5 was closed by its owner"):
                reader.result()


@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_dask(path: Path, scheduler: str) -> None:
    store = Hdf5Store.open(path)
    chunked = lazy(store).chunk(d0=250)
    assert isinstance(chunked.data, dask.array.Array)
    np.testing.assert_array_equal(chunked.data.compute(scheduler=scheduler, num_workers=2), ROWS)
    store.close()
