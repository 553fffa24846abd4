"""What ``ds.td`` and ``dt.td`` show: the same in text and in HTML, bounded, and nothing is read for it."""

from __future__ import annotations

import re
from xml.etree.ElementTree import fromstring

import h5py
import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from tensordict import TensorDict

import xarray_tensordict
from xarray_tensordict.core.values import short_dtype
from xarray_tensordict.show.summary import LONGEST, layout_text, size_text, summarize


@pytest.fixture
def buffer() -> xr.Dataset:
    """A Dataset with entries of every class."""
    return xr.Dataset(
        {
            "obs": (("time", "member", "x"), np.zeros((4, 2, 3), "f4")),
            "next/obs": (("time", "member", "x"), np.zeros((4, 2, 3), "f4")),
            "year": (("time",), np.zeros(4, "i8")),
            "task": ((), "walk"),
            "label": (("time", "member"), np.full((4, 2), "a", object)),
            "mask": (("x",), np.zeros(3, bool)),
            "long": (("time", "member"), np.zeros((4, 2), np.longdouble)),
        },
        coords={"time": np.array(["2020-01-01", "2020-01-02", "2020-01-03", "2020-01-04"], "M8[ns]")},
    ).td.set_batch_dims(["time", "member"])


def shown(html: str) -> str:
    """The text of a page, in which every element that is opened is closed."""
    return "".join(fromstring(html.replace("<details open>", "<details>")).itertext())


def test_the_text_shows_batch_evidence_classes_dtypes_and_features(buffer):
    text = repr(buffer.td)
    lines = text.splitlines()
    assert lines[0] == "<xarray_tensordict> batch (time: 4, member: 2), 256 B"
    assert lines[1].startswith("    why: ")
    assert f"why: {buffer.td.infer().reason}" in " ".join(text.split())
    assert re.search(r"^Batched:\n    obs +f32\[3\] +\(time, member, x\) +in memory$", text, re.MULTILINE)
    assert re.search(r"^    label +str +\(time, member\)", text, re.MULTILINE)
    assert re.search(r"Partial \(broadcast by name\):\n    year +i64 ", text)
    assert re.search(r"^    time +i64 ns ", text, re.MULTILINE)
    assert re.search(r"One value for the whole batch:\n    task +str", text)
    assert re.search(r"^Unbatched .*:\n    mask +bool\[3\] +\(x\)", text, re.MULTILINE)
    assert re.search(r"^Left out:\n    'long': torch has no dtype for (longdouble|float128)", text, re.MULTILINE)


def test_the_text_keeps_to_80_columns_and_breaks_no_name(tmp_path):
    dims = {"time": 4, "level": 3, "latitude": 5, "longitude": 2}
    names = [f"surface_solar_radiation_{letter}" for letter in "abc"]
    grid = xr.Dataset(
        {name: (dims, np.zeros([*dims.values()], "f4")) for name in names}, {"where": ("time", [*"abcd"])}
    )
    grid.to_zarr(tmp_path / "grid.zarr", consolidated=False, zarr_format=2)
    ds = xr.open_dataset(tmp_path / "grid.zarr", engine="tensordict")
    for text in (repr(ds.td), xarray_tensordict.inspect(tmp_path / "grid.zarr").text(width=80)):
        shown = [line for line in text.splitlines() if str(tmp_path) not in line]
        assert max(map(len, shown)) <= 80
        for name in names:
            assert re.search(rf"^    {name}  f32\[3,5,2\]  \(time, level, latitude, longitude\)$", text, re.MULTILINE)
        assert re.search(r"^    stored in: \S+", text, re.MULTILINE)
    with xr.set_options(display_width=140):
        assert re.search(rf"^    {names[0]} .*longitude\)  (one chunk|chunks)", repr(ds.td), re.MULTILINE)


def test_a_tree_shows_groups_alike_in_one_line():
    episode = xr.Dataset({"obs": (("time", "x"), np.zeros((4, 2)))})
    nodes = {f"/data/demo_{n}": episode.isel(time=slice(2 + n % 3)) for n in range(30)}
    text = repr(xr.DataTree.from_dict(nodes | {"/test_1": episode, "/test_2": episode}).td)
    assert "\n/data/demo_* (30 groups): batch (time: 2 to 4)\n" in text
    assert "\n/test_1: batch (time: 4)\n" in text
    assert len(text.splitlines()) < 20


def test_the_html_says_what_the_text_says(buffer):
    html = buffer.td._repr_html_()
    text = shown(html)
    summary = summarize(buffer, buffer.td.infer())
    said = [dim for dim, _ in summary.batch] + [summary.reason, *summary.left_out]
    rows = [row for section in summary.sections for row in section.rows]
    said += [cell for row in rows for cell in (row.name, short_dtype(row.dtype), *row.dims, row.layout)]
    assert [words for words in said if words not in text] == []


def test_hundreds_of_variables_give_a_bounded_repr():
    ds = xr.Dataset({f"v{n:04}": ("time", np.zeros(3, "f4")) for n in range(300)})
    assert len(repr(ds.td).splitlines()) == LONGEST + 5
    assert "... and 280 more" in repr(ds.td)
    html = ds.td._repr_html_()
    assert "v0019" in html
    assert "v0020" not in html
    assert "... and 280 more" in html


def test_a_tree_says_what_the_store_records_as_a_dataset_does(tmp_path):
    TensorDict({"a": torch.zeros(5, 4, 3), "b": torch.zeros(5, 4), "in": {"c": torch.zeros(5)}}, [5]).to_zarr(
        tmp_path / "x.zarr"
    )
    for opened in (xr.open_dataset, xr.open_datatree):
        assert "why: the store records batch size [5]" in repr(opened(tmp_path / "x.zarr", engine="tensordict").td)


def test_a_tree_has_html_too():
    td = TensorDict({"a": torch.zeros(3), "sub": TensorDict({"b": torch.zeros(3, 2)}, [3, 2])}, [3])
    tree = xarray_tensordict.to_datatree(td)
    text = shown(tree.td._repr_html_())
    assert "/sub" in text
    assert "batch_0: 3" in text


@pytest.mark.parametrize(
    ("words", "write"),
    [
        ("one chunk, uncompressed", lambda group: group.create_array("x", shape=(8, 2), chunks=(8, 2), dtype="f4", compressors=None)),
        ("chunks (2, 2), uncompressed", lambda group: group.create_array("x", shape=(8, 2), chunks=(2, 2), dtype="f4", compressors=None)),
        ("chunks (2, 2), zstd", lambda group: group.create_array("x", shape=(8, 2), chunks=(2, 2), dtype="f4")),
        ("shards (4, 2) of chunks (2, 2), zstd",
            lambda group: group.create_array("x", shape=(8, 2), chunks=(2, 2), shards=(4, 2), dtype="f4")),
    ],
)  # fmt: skip
def test_the_layout_of_zarr_arrays(tmp_path, words, write):
    write(zarr.create_group(tmp_path / "a.zarr"))
    ds = xr.open_dataset(tmp_path / "a.zarr", engine="tensordict")
    assert layout_text(ds["x"].variable) == words


def test_the_layout_of_zarr_v2_hdf5_dask_and_memory(tmp_path):
    zarr.create_group(tmp_path / "a.zarr", zarr_format=2).create_array("x", shape=(8, 2), chunks=(2, 2), dtype="f4")
    v2 = xr.open_dataset(tmp_path / "a.zarr", engine="tensordict")
    assert re.fullmatch(r"chunks \(2, 2\), \w+", layout_text(v2["x"].variable))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((8, 2)))
        file.create_dataset("y", data=np.zeros((8, 2)), chunks=(2, 2), compression="gzip")
    with xr.open_dataset(tmp_path / "a.h5", engine="tensordict") as ds:
        assert layout_text(ds["x"].variable) == "one chunk, uncompressed"
        assert layout_text(ds["y"].variable) == "chunks (2, 2), zlib"
        assert layout_text(ds.chunk({"batch_0": 3})["y"].variable) == "dask chunks (3, 2)"
        assert layout_text(ds.load()["y"].variable) == "in memory"


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**30, "1.0 GiB"), (2**52, "4096.0 TiB")]
)
def test_sizes_are_in_powers_of_1024(nbytes, text):
    assert size_text(nbytes) == text
