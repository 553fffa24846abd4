"""Memory-mapped tensordicts of strangers: what is no store ends with a sentence, takes no memory and waits for nobody."""

import json
import os
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensordict
import torch
import xarray as xr
from tensordict import NonTensorData, TensorDict, lazy_stack, tensorclass

import xarray_tensordict
from memmap_samples import both_doors
from xarray_tensordict.formats.memmap import files, folders, levels

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


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def left_out(path: Path, match: str) -> list[str]:
    """What is shown beside what is left out, which is the same through both ways of opening."""
    with pytest.warns(UserWarning, match=match):
        found = both_doors(path)
    return sorted("/".join(key) if isinstance(key, tuple) else key for key in found.keys(True, True))


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (
            {"dtype": "torch.float32", "shape": [10**15]},
            r"has 12 bytes, .* float32 \[1000000000000000\], .*4000000000000000 bytes",
        ),
        ({"dtype": "torch.float32", "shape": [10**30]}, "no array can have the shape"),
        ({"dtype": "torch.float32", "shape": [10**12, 10**12, 0]}, "no array can have the shape"),
        ({"dtype": "torch.float32", "shape": [True]}, "metadata are malformed: Expected `int`, got `bool`"),
        ({"dtype": "torch.float32", "shape": "3"}, "metadata are malformed: Expected `array`, got `str`"),
        ({"dtype": ["torch.float32"], "shape": [3]}, "metadata are malformed: Expected `str`, got `array`"),
        ({"shape": [3]}, "metadata are malformed: Object missing required field `dtype`"),
        (
            {"dtype": "torch.float32", "shape": [3], "is_nested": 1},
            "metadata are malformed: Expected `bool`, got `int`",
        ),
        ({}, "metadata are malformed: Object missing required field `dtype`"),
    ],
)
def test_an_entry_whose_metadata_do_not_fit_is_left_out_without_taking_memory(path, entry, why):
    edit(path / "meta.json", x=entry)
    both_doors(path / "n", mapped=False)  # what is imported and kept is no matter
    tracemalloc.start()
    assert left_out(path, f"'x': .*{why}") == ["n/z", "y"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24


@pytest.mark.parametrize("what", ["pipe", "folder", "device"])
def test_what_is_no_file_is_left_out_and_not_waited_for(path, what):
    (path / "x.memmap").unlink()
    if what == "pipe":
        os.mkfifo(path / "x.memmap")
    elif what == "folder":
        (path / "x.memmap").mkdir()
    else:
        (path / "x.memmap").symlink_to("/dev/zero")
    kind = "a folder" if what == "folder" else "a device or a pipe"
    assert left_out(path, rf"'x': .*x\.memmap: expected a file, found {kind}") == ["n/z", "y"]


def test_a_pipe_that_takes_the_place_of_a_file_later_is_not_waited_for(path):
    with xr.open_dataset(path, engine="tensordict") as ds:
        (path / "x.memmap").unlink()
        os.mkfifo(path / "x.memmap")
        with pytest.raises(ValueError, match=r"x\.memmap: meta\.json says .* 12 bytes, and it has 0"):
            ds["x"].load()


@pytest.mark.parametrize("name", ["meta.json", "n/meta.json"])
def test_a_pipe_in_place_of_the_metadata_is_not_waited_for(path, name):
    (path / name).unlink()
    os.mkfifo(path / name)
    if name == "meta.json":
        with pytest.raises(ValueError, match="found a folder with"):
            xr.open_dataset(path, engine="tensordict")
    else:
        assert left_out(path, r"'n': it cannot be read: .*meta\.json: expected a file, found a device") == ["x", "y"]


def test_links_to_files_elsewhere_are_followed(path, tmp_path):
    (path / "x.memmap").rename(tmp_path / "blob")
    (path / "x.memmap").symlink_to(tmp_path / "blob")
    assert both_doors(path)["x"].tolist() == [0, 0, 0]


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


@pytest.mark.parametrize("key", ["", "/abs", "a//b", "a/b"])
def test_a_key_that_is_no_name_is_left_out(path, key):
    edit(path / "meta.json", **{key: {"dtype": "torch.float32", "shape": [3]}})
    assert left_out(path, f"'{key or '/'}': its key") == ["n/z", "x", "y"]


def test_fields_of_a_tensorclass_may_be_called_as_words_are(path, tmp_path):
    saved = tmp_path / "class"
    Shaped(torch.zeros(3), "round", "none", batch_size=[3]).memmap(saved)
    edit(saved / "meta.json", shape=[1, "two"], names=3)
    found = both_doors(saved)
    assert (found["shape"], found["stack_dim"], found["names"]) == ([1, "two"], "none", 3)
    edit(saved / "meta.json", obs=3, **{"a/b": 1})
    with pytest.warns(UserWarning, match=r"'obs': .*has a field of that name.*'a/b': its key has a '/'"):
        assert both_doors(saved)["obs"].tolist() == [0, 0, 0]


def test_rows_that_are_no_list_are_left_out(path):
    saved = path / "rows"
    saved.mkdir()
    edit(path / "meta.json", rows={"type": "NonTensorStack"})
    for data in ("pickle", 3, {"a": 1}):
        meta = {"_type": "<class 'tensordict.tensorclass.NonTensorStack'>", "stack_dim": 0, "data": data}
        (saved / "meta.json").write_text(json.dumps(meta))
        assert left_out(path, "'rows': it cannot be read: .*expected rows or 'pickle.pkl'") == ["n/z", "x", "y"]


def test_members_of_a_stack_along_an_axis_they_lack_are_left_out(path):
    lazy_stack([TensorDict({"a": torch.zeros(2)}, [2]) for _ in range(2)]).memmap(path / "stack")
    edit(path / "meta.json", stack={"type": "LazyStackedTensorDict"})
    edit(path / "stack" / "meta.json", stack_dim=7)
    assert left_out(path, "'stack': .*expected a stack along an axis up to 1, found one along axis 7") == [
        "n/z",
        "x",
        "y",
    ]


def test_values_that_would_fill_a_huge_batch_are_left_out(path):
    members = [TensorDict({"name": NonTensorData(name, batch_size=[2])}, [2]) for name in "ab"]
    lazy_stack(members).memmap(path / "stack")
    edit(path / "meta.json", stack={"type": "LazyStackedTensorDict"})
    for number in "01":
        edit(path / "stack" / number / "meta.json", shape=[10**15])
    assert left_out(path, "'stack': .*would be 2 times .* Python objects") == ["n/z", "x", "y"]
    assert levels._MOST_ROWS < 10**15


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


@pytest.mark.parametrize(
    ("meta", "why"),
    [
        ({"len": -1}, "Expected `int` >= 0 - at `$.len`"),
        ({"len": True}, "Expected `int`, got `bool` - at `$.len`"),
        ({"len": 3, "is_pytree": "yes"}, "Expected `bool`, got `str` - at `$.is_pytree`"),
        ({"len": 3, "is_pytree": True, "metadata": ["a"]}, "Expected `object | null`, got `array` - at `$.metadata`"),
        ({"len": 3, "is_pytree": True, "metadata": {"a": {"dtype": "f", "shape": [-3]}}}, "Expected `int` >= 0"),
    ],
)
def test_metadata_of_a_checkpoint_are_parsed(tmp_path, meta, why):
    (tmp_path / "storage_metadata.json").write_text(json.dumps(meta))
    for opening in (xarray_tensordict.open_persistent, lambda path: xr.open_dataset(path, engine="tensordict")):
        with pytest.raises(ValueError) as caught:
            opening(tmp_path)
        assert f"storage_metadata.json: it is not the metadata of a storage of torchrl: {why}" in str(caught.value)


def test_the_note_of_a_writer_that_is_damaged_is_named(path, tmp_path):
    buffer = tmp_path / "buffer"
    (buffer / "writer").mkdir(parents=True)
    path.rename(buffer / "storage")
    (buffer / "storage" / "storage_metadata.json").write_text('{"len": 3}')
    (buffer / "writer" / "metadata.json").write_text('{"cursor": "1"}')
    with pytest.raises(ValueError, match=r"writer/metadata\.json: Expected `int \| null`, got `str` - at `\$\.cursor`"):
        xr.open_dataset(buffer, engine="tensordict")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_archive_that_says_that_a_member_is_huge_is_not_believed(path, tmp_path, method):
    edit(path / "meta.json", x={"dtype": "torch.float32", "shape": [10**8]})
    archive = tmp_path / "saved.tdz"
    with zipfile.ZipFile(archive, "w", method) as opened:
        for file in sorted(path.rglob("*.*")):
            opened.write(file, file.relative_to(path))
        info = opened.getinfo("x.memmap")
        info.file_size, info.compress_size = (
            4 * 10**8,
            4 * 10**8 if method == zipfile.ZIP_STORED else info.compress_size,
        )
    assert left_out(archive, r"'x': its file x\.memmap has \d+ bytes, .* which is 400000000 bytes") == ["n/z", "y"]
