"""Memory-mapped tensordicts of strangers: what is no store ends with a sentence, takes no memory and waits for nobody."""

import json
import os
import shutil
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tensordict
import torch
import xarray as xr
from tensordict import NonTensorData, TensorDict, lazy_stack, tensorclass

import xarray_tensordict
from memmap_samples import edit, in_both
from xarray_tensordict.formats.memmap import files, folders

TENSORDICT = "<class 'tensordict._td.TensorDict'>"


@tensorclass
class Shaped:
    obs: torch.Tensor
    shape_: str
    stack_dim: str


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "saved"
    TensorDict({"x": torch.zeros(3), "y": torch.ones(3), "n": {"z": torch.ones(3)}}, [3]).memmap(path)
    return path


def left_out(path: Path, match: str) -> list[str]:
    """What is shown beside what is left out, which is the same through both ways of opening."""
    with pytest.warns(UserWarning, match=match):
        found = in_both(path)
    return sorted("/".join(key) if isinstance(key, tuple) else key for key in found.keys(True, True))


# -- an entry ----------------------------------------------------------------------------------------------------------

MALFORMED = "metadata are malformed: "


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (
            {"dtype": "torch.float32", "shape": [10**15]},
            r"has 12 bytes, .*\[1000000000000000\], .*4000000000000000 bytes",
        ),
        ({"dtype": "torch.float32", "shape": [10**30]}, "no array can have the shape"),
        ({"dtype": "torch.float32", "shape": [10**12, 10**12, 0]}, "no array can have the shape"),
        ({"dtype": "torch.float32", "shape": [-3]}, rf"{MALFORMED}Expected `int` >= 0 - at `\$\.shape\[0\]`"),
        ({"dtype": "torch.float32", "shape": [True]}, f"{MALFORMED}Expected `int`, got `bool`"),
        ({"dtype": "torch.float32", "shape": "3"}, f"{MALFORMED}Expected `array`, got `str`"),
        ({"dtype": ["torch.float32"], "shape": [3]}, f"{MALFORMED}Expected `str`, got `array`"),
        ({"dtype": "torch.float32", "shape": [3], "is_nested": 1}, f"{MALFORMED}Expected `bool`, got `int`"),
        ({"shape": [3]}, f"{MALFORMED}Object missing required field `dtype`"),
        ({}, f"{MALFORMED}Object missing required field `dtype`"),
        ({"dtype": "torch.qint8", "shape": [3]}, "dtype torch.qint8 has no twin"),
        ({"dtype": "__import__('os')", "shape": [3]}, "no twin"),
    ],
)
def test_an_entry_whose_metadata_do_not_fit_is_left_out_without_taking_memory(path, entry, why):
    edit(path / "meta.json", x=entry)
    in_both(path / "n", mapped=False)  # what is imported and kept is no matter
    tracemalloc.start()
    assert left_out(path, f"'x': .*{why}") == ["n/z", "y"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24


FILES = {
    "a pipe": (os.mkfifo, "expected a file, found a device or a pipe"),
    "a folder": (Path.mkdir, "expected a file, found a folder"),
    "a device": (lambda file: file.symlink_to("/dev/zero"), "expected a file, found a device or a pipe"),
    "nothing": (lambda file: None, "its file x.memmap is missing"),
    "too few bytes": (
        lambda file: file.write_bytes(bytes(4)),
        r"its file x\.memmap has 4 bytes, .* holds float32 \[3\], which is 12 bytes; it was truncated",
    ),
}


@pytest.mark.parametrize("what", FILES)
def test_what_is_no_file_is_left_out_and_not_waited_for(path, what):
    make, why = FILES[what]
    (path / "x.memmap").unlink()
    make(path / "x.memmap")
    assert left_out(path, f"'x': .*{why}") == ["n/z", "y"]


@pytest.mark.parametrize("make", [os.mkfifo, Path.touch])
def test_what_takes_the_place_of_a_file_later_is_not_waited_for(path, make):
    with xr.open_dataset(path, engine="tensordict") as ds:
        (path / "x.memmap").unlink()
        make(path / "x.memmap")
        with pytest.raises(ValueError, match=r"x\.memmap: meta\.json states .* 12 bytes, and it has 0"):
            ds["x"].load()


def test_links_to_files_elsewhere_are_followed(path, tmp_path):
    (path / "x.memmap").rename(tmp_path / "blob")
    (path / "x.memmap").symlink_to(tmp_path / "blob")
    assert in_both(path)["x"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("key", ["", "/abs", "a//b", "a/b"])
def test_a_key_that_is_no_name_is_left_out(path, key):
    edit(path / "meta.json", **{key: {"dtype": "torch.float32", "shape": [3]}})
    assert left_out(path, f"'{key or '/'}': its key") == ["n/z", "x", "y"]


# -- a group -----------------------------------------------------------------------------------------------------------


def rows_of(data):
    meta = {"_type": "<class 'tensordict.tensorclass.NonTensorStack'>", "stack_dim": 0, "data": data}
    return lambda group: (group / "meta.json").write_text(json.dumps(meta)), "expected rows or 'pickle.pkl'"


def a_stack(group, shape, **changes):
    shutil.rmtree(group)
    lazy_stack([TensorDict({"name": NonTensorData(name, batch_size=[2])}, [2]) for name in "ab"]).memmap(group)
    edit(group / "meta.json", **changes)
    for number in "01":
        edit(group / number / "meta.json", shape=shape)


GROUPS = {
    "no metadata": (lambda group: (group / "meta.json").unlink(), "its folder n has no meta.json"),
    "metadata that are a pipe": (
        lambda group: ((group / "meta.json").unlink(), os.mkfifo(group / "meta.json")),
        r"it cannot be read: .*meta\.json: expected a file, found a device",
    ),
    "an unknown kind": (
        lambda group: (group / "meta.json").write_text('{"_type": "<class \'other.Thing\'>", "value": 3}'),
        r"it cannot be read: .*does not know \(other\.Thing\)",
    ),
    "a link to a folder above": (
        lambda group: (shutil.rmtree(group), group.symlink_to(group.parent)),
        "it cannot be read: .*saved/n: it links to a folder above it",
    ),
    "rows that are text": rows_of("pickle"),
    "rows that are a number": rows_of(3),
    "rows that are a mapping": rows_of({"a": 1}),
    "a stack along an axis that its members lack": (
        lambda group: a_stack(group, [2], stack_dim=7),
        "expected a stack along an axis up to 1, found one along axis 7",
    ),
    "values for a huge batch": (lambda group: a_stack(group, [10**15]), "would be 2 times .* Python objects"),
}


@pytest.mark.parametrize("what", GROUPS)
def test_a_group_that_cannot_be_read_is_left_out(path, what):
    damage, why = GROUPS[what]
    damage(path / "n")
    assert left_out(path, f"'n': .*{why}") == ["x", "y"]


def test_folders_that_link_to_each_other_are_read_once_for_each_way_and_no_more(path, tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "MOST_GROUPS", 500)
    names = ("left", "right")
    for depth in range(12):  # 4096 ways
        folder = tmp_path / f"d{depth}"
        folder.mkdir()
        entries = {name: {"type": "TensorDict"} for name in names[: 2 * (depth < 11)]}
        (folder / "meta.json").write_text(json.dumps({"_type": TENSORDICT, "shape": [], **entries}))
        for name in entries:
            (folder / name).symlink_to(tmp_path / f"d{depth + 1}")
    with pytest.warns(UserWarning, match="one of more than 500 folders"):
        xr.open_dataset(tmp_path / "d0", engine="tensordict").close()


def test_fields_of_a_tensorclass_may_be_called_as_words_are(tmp_path):
    saved = tmp_path / "class"
    Shaped(torch.zeros(3), "round", "none", batch_size=[3]).memmap(saved)
    edit(saved / "meta.json", shape=[1, "two"], names=3)
    found = in_both(saved)
    assert (found["shape"], found["stack_dim"], found["names"]) == ([1, "two"], "none", 3)
    edit(saved / "meta.json", obs=3, **{"a/b": 1})
    with pytest.warns(UserWarning, match=r"'obs': .*has a field of that name.*'a/b': its key has a '/'"):
        assert in_both(saved)["obs"].tolist() == [0, 0, 0]


# -- the root ----------------------------------------------------------------------------------------------------------

META, STORAGE, WRITER = "meta.json", "storage/storage_metadata.json", "writer/metadata.json"
NO_TENSORDICT, NO_STORAGE = "it is not the metadata of a tensordict", "it is not the metadata of a storage of torchrl"


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        (META, "{", "not JSON"),
        (META, "[" * 100_000, "nested too deeply"),
        (META, "[1]", "Expected `object`, got `array`"),
        (META, '{"version": 1}', f"{NO_TENSORDICT}: Object missing required field `_type`"),
        (META, '{"_type": 3}', f"{NO_TENSORDICT}: Expected `str`, got `int` - at `$._type`"),
        (META, '{"_type": "x", "shape": [true]}', "Expected `int`, got `bool` - at `$.shape[0]`"),
        (META, '{"_type": "x", "shape": [], "_names": [1]}', "Expected `str | null`, got `int` - at `$._names[0]`"),
        (META, '{"_type": "x", "shape": [3, 2], "_names": ["t"]}', "it has 2 batch sizes ([3, 2]) and 1 names (['t'])"),
        (META, '{"_type": "x", "stack_dim": "0"}', "Expected `int | null`, got `str` - at `$.stack_dim`"),
        (META, '{"_type": "x", "shape": [], "_format_version": "1"}', "Expected `int`, got `str`"),
        (META, '{"_type": "x", "shape": [], "_format_version": 9}', "it has format version 9, expected at most 1"),
        (STORAGE, '{"len": "4"}', f"{NO_STORAGE}: Expected `int`"),
        (STORAGE, '{"len": -1}', f"{NO_STORAGE}: Expected `int` >= 0 - at `$.len`"),
        (STORAGE, '{"len": true}', f"{NO_STORAGE}: Expected `int`, got `bool` - at `$.len`"),
        (STORAGE, '{"len": 3, "is_pytree": "yes"}', f"{NO_STORAGE}: Expected `bool`, got `str` - at `$.is_pytree`"),
        (STORAGE, '{"len": 3, "metadata": ["a"]}', f"{NO_STORAGE}: Expected `object | null`, got `array`"),
        (STORAGE, '{"len": 3, "metadata": {"a": {"dtype": "f", "shape": [-3]}}}', f"{NO_STORAGE}: Expected `int` >= 0"),
        (WRITER, '{"cursor": "1"}', "Expected `int | null`, got `str` - at `$.cursor`"),
    ],
)
def test_metadata_are_parsed(tmp_path, file, text, why):
    for name, held in {META: None, STORAGE: '{"len": 3}', WRITER: "{}", file: text}.items():
        if held is not None and (name != STORAGE or file != META):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(held)
    for opening in (xarray_tensordict.open_persistent, lambda path: xr.open_dataset(path, engine="tensordict")):
        with pytest.raises(ValueError) as caught:
            opening(tmp_path)
        assert f"{tmp_path / file}: " in str(caught.value)
        assert why in str(caught.value)


def test_a_pipe_in_place_of_the_metadata_is_not_waited_for(path):
    (path / "meta.json").unlink()
    os.mkfifo(path / "meta.json")
    with pytest.raises(ValueError, match="found a folder with"):
        xr.open_dataset(path, engine="tensordict")


def test_metadata_that_are_too_large_are_not_read(path, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST", 2**20)
    with zipfile.ZipFile(tmp_path / "bomb.tdz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("meta.json", b" " * 2**25)
    (path / "n" / "meta.json").write_bytes(b" " * (2**20 + 1))
    assert left_out(path, r"'n': .*meta\.json: it has 1048577 bytes, and .* may have 1 MiB") == ["x", "y"]
    with pytest.raises(ValueError, match=r"bomb\.tdz/meta\.json: it has 33554432 bytes, and .* may have 1 MiB"):
        xr.open_dataset(tmp_path / "bomb.tdz", engine="tensordict")


@pytest.mark.parametrize("method", [None, "deflate"])
def test_metadata_in_an_archive_whose_bytes_are_damaged_are_named(path, tmp_path, method):
    archive = tensordict.pack_memmap(path, tmp_path / "saved.tdz", compression=method)
    with zipfile.ZipFile(archive) as opened:
        header = opened.getinfo("meta.json").header_offset
    content = bytearray(Path(archive).read_bytes())
    at = header + 30 + sum(struct.unpack("<2H", content[header + 26 : header + 30])) + 2
    content[at : at + 8] = b"\xff" * 8
    Path(archive).write_bytes(content)
    with pytest.raises(OSError, match=r"saved\.tdz/meta\.json: it cannot be read"):
        xr.open_dataset(archive, engine="tensordict")


@pytest.mark.parametrize("name", ["../../secret", "/etc/secret", "a/../../secret", "..", "", "a..b", "a\0b"])
def test_a_path_in_the_metadata_of_a_checkpoint_does_not_lead_out_of_it(tmp_path, name):
    folder = tmp_path / "buffer" / "storage"
    folder.mkdir(parents=True)
    (tmp_path / "secret.memmap").write_bytes(bytes(12))
    np.ones(3, "f4").tofile(folder / "a.memmap")
    entry = {"dtype": "torch.float32", "shape": [3]}
    meta = {"len": 3, "is_pytree": True, "metadata": {"a": entry, name: entry}}
    (folder / "storage_metadata.json").write_text(json.dumps(meta))
    assert left_out(tmp_path / "buffer", "its path in the metadata of the storage is none of a tensor") == ["a"]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_archive_that_says_that_a_member_is_huge_is_not_believed(path, tmp_path, method):
    edit(path / "meta.json", x={"dtype": "torch.float32", "shape": [10**8]})
    archive = tmp_path / "saved.tdz"
    with zipfile.ZipFile(archive, "w", method) as opened:
        for file in sorted(path.rglob("*.*")):
            opened.write(file, file.relative_to(path))
        info = opened.getinfo("x.memmap")
        info.file_size = 4 * 10**8
        if method == zipfile.ZIP_STORED:
            info.compress_size = 4 * 10**8
    assert left_out(archive, r"'x': its file x\.memmap has \d+ bytes, .* which is 400000000 bytes") == ["n/z", "y"]


def test_a_lazy_stack_without_members_is_named(tmp_path):
    members = [TensorDict({"x": torch.ones(3)}, [3])] * 2
    lazy_stack(members).memmap(tmp_path / "stack")
    for number in range(2):
        shutil.rmtree(tmp_path / "stack" / str(number))
    with pytest.raises(ValueError, match="stack: expected a folder '0' with the first member of a lazy stack"):
        xr.open_dataset(tmp_path / "stack", engine="tensordict")
