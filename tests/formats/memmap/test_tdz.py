"""``.tdz`` archives: stored entries are mapped, compressed ones read on access."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tensordict
import torch
import xarray as xr
from tensordict import NonTensorData, NonTensorStack, TensorDict

from memmap_samples import as_saved, in_both
from xarray_tensordict.formats.memmap import files as memmap_files
from xarray_tensordict.testing import assert_same_tensordict

METHODS = [None, "deflate", "bzip2", "lzma"]


pytestmark = pytest.mark.filterwarnings("ignore:the dataset has a variable 'td':UserWarning")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "saved.tdz"


def sample() -> TensorDict:
    return TensorDict(
        {
            "obs": torch.arange(120.0).view(40, 3),
            "next": {"done": torch.arange(40) > 7, "air temp": torch.ones(40, dtype=torch.complex64)},
            "empty": torch.zeros(40, 0),
            "text": NonTensorData("hi", batch_size=[40]),
            "rows": NonTensorStack(*map(str, range(40))),
        },
        [40],
        names=["time"],
    )


@pytest.mark.parametrize("method", METHODS)
def test_what_tensordict_saves(path, method):
    sample().save(path, compression=method)
    assert_same_tensordict(tensordict.load(path), in_both(path))
    assert_same_tensordict(as_saved(sample()), in_both(path))
    assert_same_tensordict(as_saved(sample()["next"]), in_both(path, group="next"))


@pytest.mark.parametrize("method", METHODS)
def test_selections(path, method):
    sample().save(path, compression=method)
    ds = xr.open_dataset(path, engine="tensordict", cache=False)
    whole = np.arange(120.0, dtype="f4").reshape(40, 3)
    for key in [5, slice(3, 30, 4), slice(30, 3, -4), [9, 2, 9], (slice(None), [2, 0]), ([1, 30], slice(1, 3)), (3, 1)]:
        found = ds["obs"][key].values
        np.testing.assert_array_equal(found, xr.Variable(("time", "f"), whole)[key])
        found[...] = -1
    np.testing.assert_array_equal(ds["obs"], whole)


def test_stored_entries_are_mapped_without_a_read(path, monkeypatch):
    sample().save(path)
    ds = xr.open_dataset(path, engine="tensordict")
    monkeypatch.setattr(memmap_files.FileBytes, "view", None)
    td = ds.drop_vars(["text", "rows"]).td.to_tensordict(copy=False)
    td["obs"].zero_()
    assert tensordict.load(path)["obs"].sum() == 119 * 60


def test_compressed_entries_are_read_as_far_as_needed(path, monkeypatch):
    sample().save(path, compression="deflate")
    ds = xr.open_dataset(path, engine="tensordict", cache=False)
    seen = []
    view = memmap_files.CompressedMember.view
    monkeypatch.setattr(
        memmap_files.CompressedMember,
        "view",
        lambda self, start, stop: seen.append((self.name, start, stop)) or view(self, start, stop),
    )
    assert ds["obs"][2:4].values.sum() == sum(range(6, 12))
    assert seen == [("obs.memmap", 24, 48)]


def test_archives_of_other_programs(path, tmp_path):
    """Not aligned, and with compressed metadata, as ``zip -r`` makes them, under any name."""
    path = path.with_suffix(".zip")
    sample().memmap(tmp_path / "folder")
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("x", b"1")
            for file in sorted((tmp_path / "folder").rglob("*")):
                archive.write(file, file.relative_to(tmp_path / "folder"))
        assert_same_tensordict(as_saved(sample()), in_both(path))


# -- damage ------------------------------------------------------------------------------------------------------------


def test_a_zip_file_that_is_cut(path):
    sample().save(path)
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(OSError, match=r"saved\.tdz: expected a \.tdz archive, found a damaged zip file"):
        xr.open_dataset(path, engine="tensordict")


@pytest.mark.parametrize("method", [None, "deflate"])
def test_an_entry_that_is_shorter_than_meta_json_says(path, tmp_path, method):
    sample().memmap(tmp_path / "folder")
    (tmp_path / "folder" / "obs.memmap").write_bytes(b"1234")
    tensordict.pack_memmap(tmp_path / "folder", path, compression=method)
    with pytest.warns(UserWarning, match=r"'obs': its file obs\.memmap has 4 bytes, and meta\.json says"):
        found = in_both(path, mapped=method is None)
    assert "obs" not in list(found.keys())


@pytest.mark.parametrize("method", ["deflate", "bzip2", "lzma"])
def test_a_compressed_entry_that_is_damaged(path, method):
    td = TensorDict({"x": torch.rand(5000)}, [5000])
    td.save(path, compression=method)
    with zipfile.ZipFile(path) as archive:
        at = archive.getinfo("x.memmap").header_offset + 2000
    content = bytearray(path.read_bytes())
    content[at : at + 64] = bytes(64)
    path.write_bytes(content)
    with (
        xr.open_dataset(path, engine="tensordict") as ds,
        pytest.raises(OSError, match=r"saved\.tdz/x\.memmap: the entry .* cannot be read"),
    ):
        ds["x"].load()


def test_an_archive_that_is_replaced_while_it_is_open(path):
    sample().save(path)
    ds = xr.open_dataset(path, engine="tensordict", cache=False)
    TensorDict({"a" * 99: torch.zeros(3000), "obs": torch.zeros(3000)}, [3000]).save(path)
    with pytest.raises(
        ValueError, match=r"saved\.tdz: expected metadata.* no next/meta\.json in it.* Another file has taken its place"
    ):
        ds["next/done"].load()
    with pytest.raises(ValueError, match=r"obs\.memmap: expected float32 \[40, 3\].* found float32 \[3000\]"):
        ds["obs"].load()
    sample().save(path)
    assert ds["obs"].values.sum() == 119 * 60
    TensorDict({"a" * 99: torch.zeros(40), **sample()}, [40]).save(path)
    with pytest.raises(
        ValueError, match=r"obs\.memmap: expected .* in the bytes \d+ to \d+, as .* Another file has taken"
    ):
        ds["obs"].load()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", b"1")
    with pytest.raises(ValueError, match=r"saved\.tdz"):
        ds["next/done"].load()


def test_an_archive_that_is_nested_too_deep_ends(path):
    meta = json.dumps({"n": {"type": "TensorDict"}, "shape": [], "_type": "<class 'tensordict._td.TensorDict'>"})
    with zipfile.ZipFile(path, "w") as archive:
        for depth in range(200):
            archive.writestr("n/" * depth + "meta.json", meta)
    with pytest.warns(UserWarning, match="nested more than 32 levels deep"):
        xr.open_dataset(path, engine="tensordict").close()


@pytest.mark.parametrize("name", ["/x/meta.json", "a//meta.json", "//", "a//b"])
def test_an_archive_with_an_empty_name_in_a_path_is_refused(path, name):
    sample().save(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, b"{}")
    with pytest.raises(ValueError, match=rf"saved\.tdz: expected a \.tdz archive, found one with the path '{name}'"):
        xr.open_dataset(path, engine="tensordict")
