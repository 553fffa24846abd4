"""HDF5 files are opened from whatever the user has, and stay usable in threads, pickles and other processes."""

import io
import multiprocessing
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil
import pytest
import xarray as xr
from xarray.core import indexing

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


def test_a_path_is_closed_on_request_and_with_its_last_array_and_opened_again_to_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    for source in (str(path), path, "rows.h5"):
        store = Hdf5Store.open(source)
        assert store.description == str(path)
        x = lazy(store)
        store.close()
        assert not open_paths()
        np.testing.assert_array_equal(x.values, ROWS)
        assert open_paths() == [str(path)]
        del x, store
        assert not open_paths()
    for root, names in (("deep/inner", ["y"]), ("/deep/inner/", ["y"]), ("rec/sub", ["b"])):
        assert list(Hdf5Store.open(path, root=root).group().arrays) == names


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
    for content, message in texts.items():
        (tmp_path / "odd.bin").write_bytes(content)
        with (tmp_path / "odd.bin").open("rb") as file, pytest.raises(ValueError, match=f"odd.bin.*{message}"):
            Hdf5Store.open(file)
        with pytest.raises(ValueError, match=message):
            Hdf5Store.open(content)
    assert not open_paths()


def test_a_truncated_file(path: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.h5"
    short.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(OSError, match=r"short\.h5.*truncated.*not complete"):
        Hdf5Store.open(short)
    with pytest.raises(OSError, match="truncated"):
        Hdf5Store.open(io.BytesIO(short.read_bytes()))
    assert not open_paths()


def test_things_that_are_no_files(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.h5"):
        Hdf5Store.open(path.parent / "absent.h5")
    with pytest.raises(ValueError, match="URL"):
        Hdf5Store.open("https://example.org/file.h5")
    with pytest.raises(TypeError, match="found <class 'int'>"):
        Hdf5Store.open(3)
    with path.open("r", encoding="latin-1") as text, pytest.raises(TypeError, match="binary mode"):
        Hdf5Store.open(text)
    with h5py.File(path) as file, pytest.raises(TypeError, match="Dataset"):
        Hdf5Store.open(file["x"])
    with pytest.raises(ValueError, match="closed"):
        Hdf5Store.open(file)


def test_a_missing_group_lists_those_there_are(path: Path) -> None:
    lists = {"nowhere": r"\['/deep'\]", "x": r"\['/deep'\]", "rec/a": r"\['/deep'\]"}
    lists |= {"deep/x": r"in '/deep' are: \['/deep/inner'\]", "deep/inner/y": "in '/deep/inner' are: none"}
    for root, listed in lists.items():
        with pytest.raises(OSError, match=rf"rows\.h5.*no group '/{root}'; the groups .*{listed}"):
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
            pytest.raises(OSError, match=r"rows\.h5.*Close it where it is open.*HDF5_USE_FILE_LOCKING=FALSE"),
        ):
            pool.apply(exec, (code,))
    exec(code)


# Closing and reading on


def test_a_store_can_be_used_after_it_was_closed_or_pickled(path: Path) -> None:
    store = Hdf5Store.open(path)
    for other in (store, store, pickle.loads(pickle.dumps(store))):
        assert list(other.group(("deep", "inner")).arrays) == ["y"]
        other.close()


# Threads, pickles, processes


@pytest.mark.parametrize("kind", ["path", "file object", "bytes"])
def test_a_pickle_holds_no_data_but_for_a_file_in_memory(path: Path, kind: str) -> None:
    with path.open("rb") as binary:
        source = {"path": path, "file object": binary, "bytes": path.read_bytes()}[kind]
        dumped = pickle.dumps(lazy(Hdf5Store.open(source)))
    assert kind == "bytes" or len(dumped) < 2000
    np.testing.assert_array_equal(pickle.loads(dumped).values, ROWS)


def test_what_the_caller_has_opened_cannot_be_pickled(path: Path) -> None:
    with h5py.File(path) as file:
        x = lazy(Hdf5Store.open(file))
        with pytest.raises(TypeError, match="by its path"):
            pickle.dumps(x)


def check_rows(x: xr.Variable, seed: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 1000, 200)
    for row in rows:
        np.testing.assert_array_equal(x[int(row)].values, ROWS[row])


@pytest.mark.parametrize("kind", ["path", "file object", "bytes", "h5py"])
@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_forked_processes_read_at_the_same_time(path: Path, kind: str) -> None:
    with path.open("rb") as binary, h5py.File(path) as file:
        source = {"path": path, "file object": binary, "bytes": path.read_bytes(), "h5py": file}[kind]
        store = Hdf5Store.open(source)
        x = lazy(store)
        check_rows(x, 1)
        context: Any = multiprocessing.get_context("fork")
        workers = [context.Process(target=check_rows, args=(x, seed)) for seed in range(3)]
        for worker in workers:
            worker.start()
        check_rows(x, 99)
        for worker in workers:
            worker.join(60)
            assert worker.exitcode == 0
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
def test_a_fork_by_the_holder_of_the_lock_goes_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
