"""HDF5 files of strangers: nothing in them kills the process, hangs it, or raises an error without a name."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr

import xarray_tensordict as xt
from xarray_tensordict.core.metadata import LARGEST
from xarray_tensordict.formats.registry import find_source
from xarray_tensordict.warnings import LeftOutWarning

pytestmark = pytest.mark.filterwarnings("ignore::xarray_tensordict.InferredBatchWarning")

JSON_MARK = '{"encoding": "json"}'


def made(path: Path, fill: Callable[[h5py.File], Any]) -> Path:
    with h5py.File(path, "w") as file:
        file["ok"] = np.arange(6.0)
        fill(file)
    return path


def open_quietly(path: Path) -> xr.Dataset:
    return xr.open_dataset(path, engine="tensordict", nested=True)


def run_alone(code: str) -> None:
    """Run what might kill the interpreter, or wait for ever."""
    start = "import signal, sys, warnings, numpy as np, xarray as xr, xarray_tensordict as xt; warnings.simplefilter('ignore')\n"
    found = subprocess.run(
        [sys.executable, "-c", start + textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr[-2000:]


# -- the interpreter lives ---------------------------------------------------------------------------------------------

VLEN_REFS = h5py.vlen_dtype(h5py.ref_dtype)
USE = np.dtype([("dataset", h5py.ref_dtype), ("dimension", "i4")])

ODD_VALUES: dict[str, Callable[[h5py.File], tuple[Any, Any]]] = {
    "a number": lambda f: (-1, None),
    "text": lambda f: ("time", None),
    "a null dataspace": lambda f: (h5py.Empty("f4"), None),
    "no element": lambda f: (np.zeros(0), None),
    "a table": lambda f: (np.zeros((2, 2)), None),
    "text as long as a class": lambda f: (b"DiMENSION_SCALE", _terminated(16)),
    "texts as long as a class": lambda f: ([b"DIMENSION_SCALE"] * 500, _terminated(16)),
    "bytes that are no UTF-8": lambda f: (np.array([b"\xff\xfe", b"a"], "S2"), None),
    "a reference": lambda f: (f["ok"].ref, None),
    "a region": lambda f: (f["ok"].regionref[:2], None),
    "null references": lambda f: (_rows([h5py.Reference()], [h5py.Reference()]), VLEN_REFS),
    "references to groups": lambda f: (_rows([f["g"].ref], [f.ref]), VLEN_REFS),
    "references to itself": lambda f: (_rows([f["y"].ref], [f["y"].ref]), VLEN_REFS),
    "too few lists": lambda f: (_rows([f["x"].ref]), VLEN_REFS),
    "lists of numbers": lambda f: (_rows([1.0], [2.0], dtype="f8"), h5py.vlen_dtype("f8")),
    "uses of axes that are not there": lambda f: (np.array([(f["y"].ref, 99), (f["g"].ref, -1)], USE), USE),
}


def _terminated(size: int) -> h5py.Datatype:
    """The type of texts of a fixed length that end with a zero, as HDF5's own functions write them."""
    found = h5py.h5t.C_S1.copy()
    found.set_size(size)
    found.set_strpad(h5py.h5t.STR_NULLTERM)
    return h5py.Datatype(found)


def _rows(*rows: list[Any], dtype: Any = h5py.ref_dtype) -> np.ndarray[Any, Any]:
    found = np.empty(len(rows), object)
    for number, row in enumerate(rows):
        found[number] = np.array(row, dtype)
    return found


def _with_odd_attributes(path: Path, names: list[str]) -> list[Path]:
    paths = []
    for number, (value, owner) in enumerate((value, owner) for value in ODD_VALUES.values() for owner in "xyu"):
        file_path = path / f"{number}.h5"
        with h5py.File(file_path, "w") as file:
            file["ok"] = np.arange(6.0)
            file["x"] = np.arange(6.0)
            file["x"].make_scale("x")
            file["y"] = np.ones((6, 4))
            file["y"].dims[0].attach_scale(file["x"])
            file.create_group("g")
            file.create_dataset("u", (4,), "f4", maxshape=(None,)).make_scale("u")
            content, dtype = value(file)
            for name in names:
                if name in file[owner].attrs:
                    del file[owner].attrs[name]
                file[owner].attrs.create(name, content, dtype=dtype)
        paths.append(file_path)
    return paths


def test_attributes_of_dimension_scales_may_hold_anything(tmp_path: Path) -> None:
    paths = []
    for names in (
        ["DIMENSION_LIST"],
        ["DIMENSION_LABELS"],
        ["REFERENCE_LIST"],
        ["CLASS", "NAME"],
        ["_Netcdf4Dimid", "_Netcdf4Coordinates"],
        ["DimensionNames"],
    ):
        folder = tmp_path / names[0]
        folder.mkdir()
        paths += map(str, _with_odd_attributes(folder, names))
    run_alone(f"""
        for path in {paths}:
            print(path, file=sys.stderr)
            ds = xr.open_dataset(path, engine="tensordict").load()
            np.testing.assert_array_equal(ds["ok"], np.arange(6.0))
            np.testing.assert_array_equal(ds["y"], np.ones((6, 4)))
    """)


def test_labels_that_are_no_names_are_passed_over_and_not_written_over(tmp_path: Path) -> None:
    paths = []
    for number, value in enumerate([-1, "time", np.zeros((2, 2)), np.array([1, 2]), np.array([b"a"])]):
        paths.append(str(tmp_path / f"{number}.h5"))
        with h5py.File(paths[-1], "w") as file:
            file["x"] = np.ones((6, 3))
            file["x"].attrs["DIMENSION_LABELS"] = value
    run_alone(f"""
        for path in {paths}:
            print(path, file=sys.stderr)
            with xr.open_dataset(path, engine="tensordict") as ds:
                assert ds["x"].dims == ("batch_0", "dim_3"), ds
            try:
                xt.annotate(path, dims={{"x": ("time", "f")}})
            except ValueError as error:
                assert "'/x' has an attribute DIMENSION_LABELS" in str(error), error
            else:
                raise AssertionError(path)
    """)


@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize(
    "sources", [{"v": "./v"}, {"v": "./w", "w": "./v"}, {"v": "s.h5/v"}, {"v": "link.h5/v"}], ids=str
)
def test_a_virtual_dataset_made_of_itself_is_left_out(tmp_path: Path, sources: dict[str, str], grows: bool) -> None:
    def fill(file: h5py.File) -> None:
        for name, source in sources.items():
            _virtual(file, *source.split("/"), to=name, grows=grows)

    (tmp_path / "link.h5").symlink_to(tmp_path / "s.h5")
    path = made(tmp_path / "s.h5", fill)
    with pytest.warns(LeftOutWarning, match="virtual dataset that is made of itself"):
        ds = open_quietly(path)
    assert list(ds.data_vars) == ["ok"]


def test_a_circle_of_virtual_datasets_in_several_files_is_an_error_when_it_is_read(tmp_path: Path) -> None:
    """HDF5 would go round until its stack is full. At opening other files are not looked at: there may be thousands."""
    for number in range(3):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["ok"] = np.arange(6.0)
            _virtual(file, f"{(number + 1) % 3}.h5")
    run_alone(f"""
        path = {str(tmp_path / "0.h5")!r}
        ds, ptd = xr.open_dataset(path, engine="tensordict"), xt.open_persistent(path)
        assert ds["ok"].values.tolist() == ptd["ok"].tolist() == list(range(6))
        for read in (lambda: ds.load(), lambda: ds.td.to_tensordict(), lambda: ptd["v"], lambda: ptd[2]):
            try:
                read()
            except OSError as error:
                assert "0.h5: 'v'" in str(error) and "made of itself" in str(error), error
            else:
                raise AssertionError
    """)


def test_a_virtual_dataset_of_numbered_files_may_be_made_of_itself_too(tmp_path: Path) -> None:
    """``0%b.h5`` is 00.h5, 01.h5, and so on, as far as they are there: here the file itself."""
    path = made(tmp_path / "00.h5", lambda file: _numbered(file, "0%b.h5", "v"))
    with pytest.warns(LeftOutWarning, match="virtual dataset that is made of itself"):
        ds = open_quietly(path)
    assert list(ds.data_vars) == ["ok"]


@pytest.mark.parametrize("names", [("%b.h5", "d"), ("0.h5", "d%b")])
def test_a_virtual_dataset_of_numbered_files_or_datasets_is_read(tmp_path: Path, names: tuple[str, str]) -> None:
    for number in range(3):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["d"] = np.full(6, number)
            for other in range(3):
                file[f"d{other}"] = np.full(6, other)
    path = made(tmp_path / "s.h5", lambda file: _numbered(file, *names))
    assert open_quietly(path)["v"].values[:, 0].tolist() == [0, 1, 2]


def test_a_virtual_dataset_lacks_a_part(tmp_path: Path) -> None:
    """HDF5 would give the fill value for it."""
    made(tmp_path / "0.h5", lambda file: None)
    path = made(tmp_path / "s.h5", lambda file: _virtual(file, "0.h5", "lost"))
    with pytest.raises(OSError, match=r"s.h5: 'v': .*it is made of 'lost' of .*0.h5, which is not there; restore it"):
        open_quietly(path)["v"].load()


def test_many_virtual_datasets_of_many_are_looked_at_once_each(tmp_path: Path) -> None:
    """Four on each of ten levels, each made of all on the next: 4 ** 10 ways lead to the last."""

    def fill(file: h5py.File) -> None:
        for number in range(4):
            file[f"0-{number}"] = np.full(1, number)
            for level in range(1, 10):
                layout = h5py.VirtualLayout((4,), int)
                for below in range(4):
                    layout[below] = h5py.VirtualSource(".", f"{level - 1}-{below}", (4 if level > 1 else 1,))[:1]
                file.create_virtual_dataset(f"{level}-{number}", layout)

    ds = open_quietly(made(tmp_path / "s.h5", fill))
    assert ds["1-0"].values.tolist() == list(range(4))
    assert len(ds.variables) == 1 + 4 * 10


def _virtual(file: h5py.File, source: str, name: str = "v", *, to: str = "v", grows: bool = False) -> None:
    most = (None,) if grows else (6,)
    layout = h5py.VirtualLayout((6,), float, maxshape=most)
    end = h5py.h5s.UNLIMITED if grows else 6
    layout[0:end] = h5py.VirtualSource(source, name, (6,), maxshape=most)[0:end]
    file.create_virtual_dataset(to, layout)


def _numbered(file: h5py.File, source: str, name: str) -> None:
    """Row number n of a dataset `v` is what is called so, with n in place of ``%b``."""
    space = h5py.h5s.create_simple((1, 6), (h5py.h5s.UNLIMITED, 6))
    rows = space.copy()
    rows.select_hyperslab((0, 0), (h5py.h5s.UNLIMITED, 1), (1, 1), (1, 6))
    made_of = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made_of.set_virtual(rows, source.encode(), name.encode(), h5py.h5s.create_simple((6,)))
    h5py.h5d.create(file.id, b"v", h5py.h5t.NATIVE_INT64, space, made_of)


PARTS: dict[str, Callable[[h5py.File], Any]] = {
    "external link": lambda f: f.update({"v": h5py.ExternalLink("fifo", "/v")}),
    "soft link behind it": lambda f: f.update({"v": h5py.SoftLink("/w/v"), "w": h5py.ExternalLink("fifo", "/")}),
    "link to a link": lambda f: f.update({"v": h5py.ExternalLink("other.h5", "/v")}),
    "virtual": lambda f: _virtual(f, "fifo"),
    "virtual that grows": lambda f: _virtual(f, "fifo", grows=True),
    "virtual of a link": lambda f: (PARTS["external link"](f), f.move("v", "w"), _virtual(f, ".", "w")),
    "external storage": lambda f: f.create_dataset("v", (6,), float, external=[("fifo", 0, 48)]),
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs here")
def test_parts_in_what_is_no_file_are_left_out_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where HDF5 looks for external storage
    os.mkfifo("fifo")
    made(tmp_path / "other.h5", PARTS["external link"])
    paths = [str(made(tmp_path / f"{number}.h5", fill)) for number, fill in enumerate(PARTS.values())]
    run_alone(f"""
        for path in {paths}:
            signal.alarm(30)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                ds = xr.open_dataset(path, engine="tensordict").load()
                td = xt.open_persistent(path).to_tensordict()
            assert list(ds.variables) == list(td.keys()) == ["ok"], path
            said = [str(warning.message) for warning in caught]
            assert sum(path in text and "'v': it points to" in text and "fifo" in text for text in said) == 2, said
    """)


# -- no loop, no bomb --------------------------------------------------------------------------------------------------


def test_groups_that_are_linked_to_one_another_have_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xarray_tensordict.formats.hdf5.read._PATHS", 50)

    def fill(file: h5py.File) -> None:
        group = file
        for _ in range(24):  # 2 ** 24 paths
            inner = group.create_group("a")
            group["b"] = inner
            group = inner

    path = made(tmp_path / "s.h5", fill)
    with pytest.raises(ValueError, match=r"linked to one another.*open a group of it with group=") as error:
        open_quietly(path)
    assert "s.h5" in str(error.value)
    xr.open_dataset(path, engine="tensordict", group="a/" * 22).close()


def test_groups_are_followed_to_a_depth(tmp_path: Path) -> None:
    path = made(tmp_path / "s.h5", lambda file: file.create_group("/".join(["g"] * 40)))
    with pytest.raises(ValueError, match=r"s\.h5: expected at most 32 levels of groups"):
        open_quietly(path)
    assert xr.open_dataset(path, engine="tensordict", group="/".join(["g"] * 30), nested=True).sizes == {}


@pytest.mark.parametrize("name", ["b", "_unbatched"])
@pytest.mark.parametrize("dtype", ["u1", f"S{LARGEST + 1}"])
def test_values_that_inflate_are_not_read_when_a_file_is_opened(tmp_path: Path, name: str, dtype: str) -> None:
    def fill(file: h5py.File) -> None:
        if dtype == "u1":
            dataset = file.create_dataset(name, (2**31,), "u1", chunks=(2**20,), compression="gzip", fillvalue=32)
        else:
            dataset = file.create_dataset(name, (), dtype)
        dataset.attrs["__tensordict_non_tensor__"] = JSON_MARK

    path = made(tmp_path / "s.h5", fill)
    with pytest.warns(LeftOutWarning, match=f"{name}.*values have {LARGEST} at most"):
        assert list(open_quietly(path).variables) == ["ok"]


@pytest.mark.parametrize("chunks", [(1000,), None], ids=["chunks", "contiguous"])
def test_a_shape_larger_than_memory_opens_and_is_refused_where_it_is_read(tmp_path: Path, chunks: Any) -> None:
    path = made(tmp_path / "s.h5", lambda file: file.create_dataset("huge", (10**15,), "f8", chunks=chunks))
    ds = open_quietly(path)
    assert ds["huge"].shape == (10**15,)
    assert ds["huge"][10**14].item() == 0
    for read in (ds["huge"].load, ds.td.to_tensordict, xt.open_persistent(path).to_tensordict):
        with pytest.raises(OSError, match=r"s\.h5: 'huge': it does not fit into memory"):
            read()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs here")
@pytest.mark.parametrize("what", ["fifo", "device"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, what: str) -> None:
    path = Path("/dev/zero") if what == "device" else tmp_path / "s.h5"
    if what == "fifo":
        os.mkfifo(path)
    start = time.monotonic()
    for attempt in (find_source, lambda path: xr.Dataset({"x": ("t", [1.0])}).td.to_h5(path, mode="w")):
        with pytest.raises(ValueError, match=r"a FIFO, a socket or a device|a device or a pipe"):
            attempt(path)
    assert time.monotonic() - start < 10
    assert not path.is_file()


# -- documents ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", ["[1]", "{", '{"attrs": 3}', '{"dims": [1]}'])
def test_a_malformed_record_is_left_out_by_name(tmp_path: Path, document: str) -> None:
    def fill(file: h5py.File) -> None:
        file["x"] = np.arange(6)
        for owner in (file, file["x"]):
            owner.attrs["__xarray_tensordict__"] = document

    path = made(tmp_path / "s.h5", fill)
    with pytest.warns(LeftOutWarning, match="attribute '__xarray_tensordict__' of 'x'"):
        ds = open_quietly(path)
    assert set(ds.data_vars) == {"ok", "x"}


@pytest.mark.parametrize("word", ["_FillValue", "missing_value"])
def test_a_fill_value_of_rows_of_lengths_of_their_own_is_left_out_by_name(tmp_path: Path, word: str) -> None:
    def fill(file: h5py.File) -> None:
        rows = file.create_dataset("rows", (6,), h5py.vlen_dtype("i4"))
        rows[...] = _rows(*([number] * number for number in range(6)), dtype="i4")
        rows.attrs[word] = 3

    path = made(tmp_path / "s.h5", fill)
    with pytest.warns(LeftOutWarning, match=rf"s\.h5.*{word}.*'rows': rows of lengths"):
        ds = open_quietly(path)
    assert [row.tolist() for row in ds["rows"].values] == [[number] * number for number in range(6)]
    with pytest.warns(LeftOutWarning, match=rf"s\.h5.*{word}.*'rows': rows of lengths"):
        lazy = xt.open_persistent(path)
    assert list(lazy.to_tensordict().keys()) == list(ds.td.to_tensordict().keys())


@pytest.mark.parametrize("document", ["{", "[" * 9999])
def test_a_malformed_batch_is_refused_by_name(tmp_path: Path, document: str) -> None:
    path = made(tmp_path / "s.h5", lambda file: file.attrs.update({"__tensordict__": document}))
    for attempt in (open_quietly, xt.open_persistent, xt.inspect):
        with pytest.raises(ValueError, match=r"s\.h5.*'__tensordict__'"):
            attempt(path)


@pytest.mark.parametrize("document", ["{", "[1]", '{"kind": "append", "before": {"/ok": ["a"]}}'])
def test_a_malformed_mark_of_an_append_is_named(tmp_path: Path, document: str) -> None:
    mark = {"__xarray_tensordict_incomplete__": document}
    path = made(tmp_path / "s.h5", lambda file: file.attrs.update(mark))
    with pytest.warns(LeftOutWarning, match="__xarray_tensordict_incomplete__"):
        ds = open_quietly(path)
    np.testing.assert_array_equal(ds["ok"], np.arange(6.0))


@pytest.mark.filterwarnings("ignore::xarray_tensordict.IncompleteStoreWarning")
@pytest.mark.parametrize("before", [[7], [3, 3]])
def test_a_mark_of_an_append_shows_no_rows_that_are_not_there(tmp_path: Path, before: list[int]) -> None:
    mark = f'{{"kind": "append", "dim": "t", "group": "/", "before": {{"/ok": {before}}}}}'
    path = made(tmp_path / "s.h5", lambda file: file.attrs.update({"__xarray_tensordict_incomplete__": mark}))
    with pytest.warns(LeftOutWarning, match="'ok'"):
        assert not open_quietly(path).variables


@pytest.mark.parametrize("path", ["", "a/../b"])
def test_names_of_the_unbatched_entry_obey_the_law(tmp_path: Path, path: str) -> None:
    encoded = f'{{"{path}": {{"dims": ["x"], "dtype": "float64", "attrs": {{}}, "role": "data", "data": [1.0]}}}}'

    def fill(file: h5py.File) -> None:
        file["_unbatched"] = encoded
        file["_unbatched"].attrs["__tensordict_non_tensor__"] = JSON_MARK

    file_path = made(tmp_path / "s.h5", fill)
    for attempt in (open_quietly, xt.open_persistent):
        with pytest.raises(ValueError, match=r"s\.h5.*_unbatched"):
            attempt(file_path)


def test_names_that_are_no_text_or_lead_elsewhere_are_left_out(tmp_path: Path) -> None:
    def fill(file: h5py.File) -> None:
        for name in (b"n\xff", b"..", b"g\xff/x"):
            file[name] = np.arange(6.0)
        h5py.h5a.create(file["ok"].id, b"a\xff", h5py.h5t.IEEE_F64LE, h5py.h5s.create(h5py.h5s.SCALAR))

    path = made(tmp_path / "s.h5", fill)
    with pytest.warns(LeftOutWarning) as warned:
        ds = open_quietly(path)
    text = str(warned[0].message)
    assert list(ds.variables) == ["ok"]
    assert not ds["ok"].attrs
    assert all(name in text for name in ("n\\\\xff", "g\\\\xff", "'..'", "a\\\\xff"))


# -- damage ------------------------------------------------------------------------------------------------------------

READERS: dict[str, Callable[[Path], Any]] = {
    "open and load": lambda path: open_quietly(path).load(),
    "to_tensordict": lambda path: open_quietly(path).td.to_tensordict(),
    "lazy": lambda path: xt.open_persistent(path).to_tensordict(),
    "rows": lambda path: xt.open_persistent(path)[[0, 5]],
    "batches": lambda path: list(open_quietly(path).td.batches(4)),
    "dask": lambda path: xr.open_dataset(path, engine="tensordict", chunks={}).compute(scheduler="sync"),
}
FILTERS: dict[str, dict[str, Any]] = {
    "gzip": {"compression": "gzip"},
    "lzf": {"compression": "lzf"},
    "checksum": {"fletcher32": True},
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("stored", FILTERS)
def test_a_damaged_chunk_is_named(tmp_path: Path, stored: str, reader: str) -> None:
    path = tmp_path / "s.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("obs", data=np.arange(64.0).reshape(8, 8), chunks=(8, 8), **FILTERS[stored])
        file["obs"].dims[0].label = "time"
        place = file["obs"].id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[place + 8 : place + 40] = b"\xff" * 32
    path.write_bytes(content)
    with pytest.raises(OSError, match=r"s\.h5: 'obs': it cannot be read"):
        READERS[reader](path)


def test_a_damaged_group_is_left_out_and_the_others_are_read(tmp_path: Path) -> None:
    path = made(tmp_path / "s.h5", lambda file: file.create_group("g").create_dataset("x", data=np.arange(6.0)))
    content = path.read_bytes()
    heaps = [place for place in range(len(content)) if content.startswith(b"HEAP", place)]
    path.write_bytes(content[: heaps[-1]] + b"HEEP" + content[heaps[-1] + 4 :])
    with pytest.warns(LeftOutWarning, match="'g'"):
        ds = open_quietly(path)
    assert list(ds.variables) == ["ok"]
