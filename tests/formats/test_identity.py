"""A store that is removed or replaced after it was opened gives the values of one of both, or one error by name."""

import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from tensordict import LazyStackedTensorDict, TensorDict

from xarray_tensordict import open_persistent

FIRST = np.arange(10, dtype="f4")
TAKEN = "Another file has taken its place since; open the store again"
OTHERS = {
    "of another dtype and as many bytes": np.arange(10, dtype="i4") + 100,
    "of another dtype and more bytes": np.arange(10, dtype="f8") + 100,
    "of as many bytes and another shape": np.arange(20, dtype="f2"),
    "of another number of axes": FIRST.reshape(5, 2),
    "of one more axis": np.arange(20, dtype="f4").reshape(10, 2),
    "shorter": FIRST[:5],
}


def readings(path: Path):
    """What reads a store that was opened now, in every way there is."""
    ds = xr.open_dataset(path, engine="tensordict", cache=False)
    persistent = open_persistent(path)
    blob, other_blob = pickle.dumps(ds), pickle.dumps(persistent)
    started = iter(ds.td.batches(2, shuffle="full", seed=0, prefetch=0))
    ways = {
        "values": lambda: ds["x"].values,
        "rows": lambda: ds["x"][[7, 2]].values,
        "part": lambda: ds["x"][3:5].values,
        "tensordict": lambda: ds.td.to_tensordict(copy=True),
        "batches": lambda: list(ds.td.batches(5, prefetch=0)),
        "shuffled": lambda: list(ds.td.batches(5, shuffle="full", seed=0, prefetch=0)),
        "an epoch that has begun": lambda: list(started),
        "persistent": lambda: persistent["x"],
        "a row": lambda: persistent.get_at("x", 7),
        "a pickle": lambda: pickle.loads(blob)["x"].values,
        "a pickled persistent one": lambda: pickle.loads(other_blob)["x"],
    }
    return ds, persistent, ways


def assert_refused(ways, *words: str, error: type[Exception] = OSError) -> None:
    for name, way in ways.items():
        with pytest.raises(error) as caught:
            pytest.fail(f"{name}: {way()!r}")
        assert all(word in str(caught.value) for word in words), (name, caught.value)


# -- HDF5 --------------------------------------------------------------------------------------------------------------


def write_h5(path: Path, array: np.ndarray, **options) -> None:
    beside = path.with_suffix(".new")
    with h5py.File(beside, "w") as file:
        file.create_dataset("x", data=array, **options)
    beside.replace(path)


def opened_h5(path: Path):
    """Closed, so that each reading opens the file anew; what its owner has closed for good is not asked."""
    ds, persistent, ways = readings(path)
    ds.close()
    persistent.close()
    return without(ways, "an epoch that has begun", "persistent", "a row")


def without(ways, *names: str):
    return {name: way for name, way in ways.items() if name not in names}


@pytest.mark.parametrize("chunks", [None, True])
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_an_hdf5_file_with_another_dataset_in_its_place_is_refused(other, chunks, tmp_path):
    path = tmp_path / "s.h5"
    write_h5(path, FIRST, chunks=chunks)
    ways = opened_h5(path)
    write_h5(path, other, chunks=chunks)
    words = ("s.h5: 'x'", "expected float32 [10]", f"found {other.dtype.name} {list(other.shape)}", TAKEN)
    assert_refused(ways, *words)


@pytest.mark.parametrize("options", [{}, {"chunks": (3,)}, {"dtype": ">f4"}], ids=str)
@pytest.mark.parametrize("before", [{}, {"chunks": (5,)}], ids=str)
def test_an_hdf5_file_with_values_of_the_same_dtype_and_shape_gives_the_new_ones(before, options, tmp_path):
    path = tmp_path / "s.h5"
    write_h5(path, FIRST, **before)
    ways = opened_h5(path)
    write_h5(path, FIRST + 100, **options)
    np.testing.assert_array_equal(ways["values"](), FIRST + 100)
    np.testing.assert_array_equal(ways["rows"](), [107, 102])
    np.testing.assert_array_equal(ways["a pickle"](), FIRST + 100)
    np.testing.assert_array_equal(ways["a pickled persistent one"](), FIRST + 100)
    assert ways["values"]().dtype == np.float32


def test_a_writer_of_this_package_replaces_a_file_that_another_process_has_opened(tmp_path):
    path = tmp_path / "s.h5"
    xr.Dataset({"x": ("t", FIRST)}).td.to_h5(path)
    with xr.open_dataset(path, engine="tensordict") as ds:
        blob = tmp_path / "blob"
        blob.write_bytes(pickle.dumps(ds))
    xr.Dataset({"x": ("t", OTHERS["of another dtype and as many bytes"])}).td.to_h5(path)
    code = f"import pickle; print(pickle.load(open({str(blob)!r}, 'rb'))['x'].values)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "s.h5: 'x': expected float32 [10]" in done.stderr
    assert done.returncode == 1


def test_a_file_that_xarray_has_closed_for_others_is_compared_when_it_is_opened_again(tmp_path):
    path = tmp_path / "s.h5"
    write_h5(path, FIRST)
    write_h5(tmp_path / "other.h5", FIRST)
    with xr.set_options(file_cache_maxsize=1):
        ds = xr.open_dataset(path, engine="tensordict", cache=False)
        xr.open_dataset(tmp_path / "other.h5", engine="tensordict")["x"].load()
        write_h5(path, FIRST.astype("i4"))
        with pytest.raises(OSError, match=r"expected float32 \[10\], as it was opened, found int32"):
            ds["x"].load()


@pytest.mark.parametrize("grown", ["t", "x"])
def test_a_netcdf_dimension_that_has_grown_since_gives_the_rows_there_were(grown, tmp_path):
    path = tmp_path / "s.nc"
    with h5py.File(path, "w") as file:
        file.create_dataset("t", data=np.arange(4), maxshape=(None,), chunks=(2,)).make_scale("t")
        file.create_dataset("x", data=FIRST[:3], maxshape=(None,), chunks=(2,), fillvalue=-1)
        file["x"].dims[0].attach_scale(file["t"])
    ds = xr.open_dataset(path, engine="tensordict", decode_cf=False, cache=False)
    before = ds["x"].values
    assert before.tolist() == [0, 1, 2, -1]
    ds.close()
    with h5py.File(path, "r+") as file:
        file[grown].resize((8,))
        file[grown][4:] = 7
    np.testing.assert_array_equal(ds["x"].values, before)


@pytest.mark.parametrize("name", ["scale_factor", "_FillValue", "units"])
def test_an_hdf5_file_whose_numbers_mean_something_else_is_refused(name, tmp_path):
    path = tmp_path / "s.nc"
    for value in (2, 3):
        with h5py.File(path, "w") as file:
            file["x"] = np.arange(4, dtype="i2")
            file["x"].attrs[name] = np.int16(value)
        if value == 2:
            ds = xr.open_dataset(path, engine="tensordict", cache=False)
            ds.close()
    with pytest.raises(OSError, match=rf"s\.nc: 'x': expected the attributes \[\('{name}', 2\)\]"):
        ds["x"].load()


@pytest.mark.parametrize("what", ["dataset", "group", "file", "format"])
def test_an_hdf5_file_without_what_was_opened_is_refused(what, tmp_path):
    path = tmp_path / "s.h5"
    write_h5(path, FIRST)
    ways = opened_h5(path)
    path.unlink()
    if what == "format":
        path.write_bytes(b"something else")
    elif what != "file":
        with h5py.File(path, "w") as file:
            file.create_group("x" if what == "group" else "y")
    assert_refused(ways, "s.h5")


def test_text_that_has_become_numbers_is_refused(tmp_path):
    path = tmp_path / "s.h5"
    write_h5(path, np.array(["a", "b"], object), dtype=h5py.string_dtype())
    ds = xr.open_dataset(path, engine="tensordict", cache=False)
    ds.close()
    write_h5(path, np.arange(2))
    with pytest.raises(OSError, match=r"expected text \[2\], as it was opened, found int64 \[2\]"):
        ds["x"].load()


def test_a_dataset_that_the_owner_of_the_file_makes_anew_is_refused(tmp_path):
    with h5py.File(tmp_path / "s.h5", "w") as file:
        file["x"] = FIRST
        ds = xr.open_dataset(file, engine="tensordict", cache=False)
        file["x"][:] = FIRST + 1
        np.testing.assert_array_equal(ds["x"].values, FIRST + 1)
        del file["x"]
        file["x"] = FIRST[:5]
        with pytest.raises(OSError, match=r"expected float32 \[10\], as it was opened, found float32 \[5\]"):
            ds["x"].load()


def test_a_file_behind_an_external_link_that_was_replaced_is_refused(tmp_path):
    write_h5(tmp_path / "other.h5", FIRST)
    with h5py.File(tmp_path / "s.h5", "w") as file:
        file["x"] = h5py.ExternalLink("other.h5", "x")
    with xr.open_dataset(tmp_path / "s.h5", engine="tensordict", cache=False) as ds:
        np.testing.assert_array_equal(ds["x"].values, FIRST)
        write_h5(tmp_path / "other.h5", FIRST.astype("i4"))
        with pytest.raises(OSError, match=r"expected float32 \[10\], as it was opened, found int32 \[10\]"):
            ds["x"].load()


def test_a_chunked_hdf5_file_cut_short_while_it_is_open_is_an_error(tmp_path):
    path = tmp_path / "s.h5"
    write_h5(path, np.ones((4000, 100)), chunks=(100, 100))
    with xr.open_dataset(path, engine="tensordict", cache=False) as ds:
        size = path.stat().st_size
        os.truncate(path, size // 2)
        with pytest.raises(OSError, match=rf"s\.h5: expected {size} bytes, as it was opened, found {size // 2}"):
            ds["x"].load()


def virtual(path: Path, source: Path) -> None:
    layout = h5py.VirtualLayout((10,), "f4")
    layout[:] = h5py.VirtualSource(source.name, "x", (10,))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("x", layout)


def test_a_virtual_dataset_whose_source_is_missing_is_left_out(tmp_path):
    virtual(tmp_path / "s.h5", tmp_path / "source.h5")
    with pytest.warns(UserWarning, match=r"s\.h5.*'x': it is made of 1 files, .* not there: \['source\.h5'\]"):
        assert not xr.open_dataset(tmp_path / "s.h5", engine="tensordict").variables


@pytest.mark.parametrize("what", ["removed", "cut short"])
def test_a_virtual_dataset_whose_source_goes_away_is_an_error(what, tmp_path):
    source = tmp_path / "source.h5"
    write_h5(source, FIRST)
    virtual(tmp_path / "s.h5", source)
    with xr.open_dataset(tmp_path / "s.h5", engine="tensordict", cache=False) as ds:
        np.testing.assert_array_equal(ds["x"].values, FIRST)
        if what == "removed":
            source.unlink()
        else:
            os.truncate(source, 100)
        with pytest.raises(OSError, match=r"s\.h5: 'x': .*source\.h5"):
            ds["x"].load()


# -- memory-mapped tensordicts -----------------------------------------------------------------------------------------


def by_package(path: Path, array: np.ndarray) -> None:
    xr.Dataset({"x": (("t", "f")[: array.ndim], array)}).td.to_memmap(path)


def by_tensordict(path: Path, array: np.ndarray) -> None:
    TensorDict({"x": torch.from_numpy(array)}, [len(array)]).memmap(str(path))


def as_archive(path: Path, array: np.ndarray) -> None:
    path.unlink(missing_ok=True)
    TensorDict({"x": torch.from_numpy(array)}, [len(array)]).save(path)


MEMMAP = {
    "m": (by_package, r"m/x.memmap"),
    "m.tdz": (by_package, r"m.tdz"),
    "t": (by_tensordict, r"t/x.memmap"),
    "t.tdz": (as_archive, r"t.tdz"),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("name", MEMMAP)
def test_a_memory_mapped_tensordict_with_another_tensor_in_its_place_is_refused(name, other, tmp_path):
    write, where = MEMMAP[name]
    write(tmp_path / name, FIRST)
    _, _, ways = readings(tmp_path / name)
    write(tmp_path / name, np.ascontiguousarray(other))
    assert_refused(ways, where, error=ValueError)


@pytest.mark.parametrize("name", MEMMAP)
def test_a_memory_mapped_tensordict_with_new_values_gives_those(name, tmp_path):
    write, _ = MEMMAP[name]
    write(tmp_path / name, FIRST)
    _, persistent, ways = readings(tmp_path / name)
    write(tmp_path / name, FIRST + 100)
    for _ in range(2):
        np.testing.assert_array_equal(ways["values"](), FIRST + 100)
        np.testing.assert_array_equal(ways["a pickle"](), FIRST + 100)
        assert persistent.get_at("x", 7) == 107


def test_a_member_of_a_lazy_stack_that_was_replaced_is_refused(tmp_path):
    def member(dtype: torch.dtype) -> TensorDict:
        return TensorDict({"x": torch.arange(4).to(dtype)}, [4])

    LazyStackedTensorDict(member(torch.float32), member(torch.float32)).memmap(str(tmp_path / "m"))
    ds = xr.open_dataset(tmp_path / "m", engine="tensordict", cache=False)
    member(torch.int32).memmap(str(tmp_path / "m" / "1"))
    with pytest.raises(ValueError, match=r"m/1/x\.memmap: expected float32 \[4\], as it was opened, found int32 \[4\]"):
        ds["x"].load()


def test_metadata_that_are_gone_or_half_written_are_an_error(tmp_path):
    by_tensordict(tmp_path / "m", FIRST)
    _, _, ways = readings(tmp_path / "m")
    (tmp_path / "m" / "meta.json").write_bytes(b'{"x": {"dty')
    assert_refused({"values": ways["values"]}, "meta.json", "cannot be read", error=ValueError)
    (tmp_path / "m" / "meta.json").unlink()
    assert_refused({"values": ways["values"]}, "meta.json", "removed", error=FileNotFoundError)


@pytest.mark.parametrize("how", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_an_archive_that_was_packed_anew_with_compression_is_refused(how, tmp_path):
    folder, path = tmp_path / "m", tmp_path / "m.tdz"
    by_tensordict(folder, FIRST)

    def pack(method: int) -> None:
        with zipfile.ZipFile(path, "w", method) as archive:
            for name in ("x.memmap", "meta.json"):
                archive.write(folder / name, name)
            archive.writestr("notes.txt", os.urandom(5000))

    pack(zipfile.ZIP_STORED)
    ds = xr.open_dataset(path, engine="tensordict", cache=False)
    pack(how)
    with pytest.raises(
        ValueError,
        match=r"m\.tdz.*in the bytes \d+ to \d+, as .*found float32 \[10\]\. Another file has taken its place",
    ):
        ds["x"].load()


# -- zarr --------------------------------------------------------------------------------------------------------------


def write_zarr(path: Path, array: np.ndarray, zarr_format: int, kind: str, fill_value: float = 0) -> None:
    shutil.rmtree(path, ignore_errors=True)
    chunks = (5, *array.shape[1:])
    options = {"compressors": None} if kind == "raw" else {}
    if kind == "filtered" and zarr_format == 3:
        options["shards"] = chunks
    elif kind == "filtered":
        options["order"] = "F"
    group = zarr.create_group(str(path), zarr_format=zarr_format)
    made = group.create_array(
        "x", shape=array.shape, chunks=chunks, dtype=array.dtype, fill_value=fill_value, **options
    )
    made[...] = array


FORMATS = pytest.mark.parametrize("zarr_format", [2, 3])
KINDS = pytest.mark.parametrize("kind", ["raw", "compressed", "filtered"])


@FORMATS
@KINDS
@pytest.mark.parametrize("what", ["removed", "renamed", "the array removed"])
def test_a_zarr_store_that_is_gone_is_an_error_and_not_fill_values(what, kind, zarr_format, tmp_path):
    path = tmp_path / "s.zarr"
    write_zarr(path, FIRST, zarr_format, kind)
    _, _, ways = readings(path)
    if what == "renamed":
        path.rename(tmp_path / "t.zarr")
    else:
        shutil.rmtree(path if what == "removed" else path / "x")
    assert_refused(ways, "s.zarr/x", "removed or renamed since it was opened", error=FileNotFoundError)


@FORMATS
@KINDS
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_zarr_store_with_another_array_in_its_place_is_refused(other, kind, zarr_format, tmp_path):
    path = tmp_path / "s.zarr"
    write_zarr(path, FIRST, zarr_format, kind)
    _, _, ways = readings(path)
    write_zarr(path, other, zarr_format, kind)
    assert_refused(ways, "s.zarr/x", "expected float32 [10]", f"found {other.dtype} {list(other.shape)}", TAKEN)


@FORMATS
@KINDS
def test_a_zarr_store_with_another_fill_value_or_of_the_other_format_is_refused(kind, zarr_format, tmp_path):
    path = tmp_path / "s.zarr"
    write_zarr(path, FIRST, zarr_format, kind)
    _, _, ways = readings(path)
    write_zarr(path, FIRST, zarr_format, kind, fill_value=7)
    assert_refused(ways, "s.zarr/x", "fill_value", TAKEN)
    write_zarr(path, FIRST, 5 - zarr_format, kind)
    assert_refused(without(ways, "an epoch that has begun"), "s.zarr/x", error=FileNotFoundError)


@FORMATS
@KINDS
def test_a_zarr_store_with_new_values_or_more_rows_gives_those(kind, zarr_format, tmp_path):
    path = tmp_path / "s.zarr"
    write_zarr(path, FIRST, zarr_format, kind)
    _, persistent, ways = readings(path)
    for new in (FIRST + 100, np.arange(20, dtype="f4") + 50):
        write_zarr(path, new, zarr_format, kind)
        for _ in range(2):
            np.testing.assert_array_equal(ways["values"](), new[:10])
            np.testing.assert_array_equal(ways["a pickle"](), new[:10])
            assert persistent.get_at("x", 7) == new[7]


def test_a_zarr_array_whose_numbers_mean_something_else_is_refused(tmp_path):
    path = tmp_path / "s.zarr"
    ds = xr.Dataset({"x": ("t", FIRST, {"long_name": "before"})})
    for scale in (0.5, 0.25):
        encoding = {"x": {"dtype": "i2", "scale_factor": scale, "_FillValue": -1}}
        ds.to_zarr(path, mode="w", encoding=encoding, consolidated=False)
        if scale == 0.5:
            opened = xr.open_dataset(path, engine="tensordict", cache=False)
    with pytest.raises(OSError, match=r"s\.zarr/x: expected .*'scale_factor', 0\.5.*found .*'scale_factor', 0\.25"):
        opened["x"].load()


def test_attributes_that_say_nothing_of_the_values_may_change(tmp_path):
    path = tmp_path / "s.zarr"
    write_zarr(path, FIRST, 3, "compressed")
    _, _, ways = readings(path)
    zarr.open_array(path, path="x").attrs["long_name"] = "after"
    np.testing.assert_array_equal(ways["values"](), FIRST)


@pytest.mark.parametrize("declared", ["bfloat16", "float8_e5m2"])
def test_an_array_of_a_dtype_that_numpy_lacks_is_compared_by_that(declared, tmp_path):
    path = tmp_path / "s.zarr"
    code = "uint16" if declared == "bfloat16" else "uint8"
    write_zarr(path, np.arange(10).astype(code), 3, "compressed")
    document = path / "x" / "zarr.json"
    plain = document.read_text()
    document.write_text(plain.replace(f'"{code}"', f'"{declared}"'))
    ds = xr.open_dataset(path, engine="tensordict", cache=False)
    values = ds["x"].values
    document.write_text(plain.replace(f'"{code}"', f'"{declared}"') + "\n")
    np.testing.assert_array_equal(ds["x"].values, values)
    document.write_text(plain)
    with pytest.raises(OSError, match=rf"s\.zarr/x: expected .*{declared}"):
        ds["x"].load()
