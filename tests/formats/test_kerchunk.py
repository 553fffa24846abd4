"""References to chunks in other files open through both openings as ordinary stores."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
import xarray as xr
from tensordict import TensorDict

from corpus import open_in_both
from xarray_tensordict import annotate, inspect, open_persistent
from xarray_tensordict.testing import assert_same_tensordict


def references(store: Path) -> dict[str, Any]:
    """What kerchunk makes of a zarr store: documents as text, and where the bytes of each chunk are."""
    found: dict[str, Any] = {}
    for file in sorted(store.rglob("*")):
        if file.is_file():
            key = file.relative_to(store).as_posix()
            is_document = file.name.startswith(".z") or file.name == "zarr.json"
            found[key] = file.read_text() if is_document else [str(file), 0, file.stat().st_size]
    return found


@pytest.fixture
def whole() -> xr.Dataset:
    data = {
        "t2m": (("time", "lat"), np.arange(12, dtype="f4").reshape(4, 3)),
        "next/t2m": (("time", "lat"), np.ones((4, 3), "f4")),
    }
    return xr.Dataset(data, coords={"time": np.arange(4), "lat": np.arange(3.0)})


@pytest.fixture
def store(tmp_path: Path, whole: xr.Dataset) -> Path:
    path = tmp_path / "files.zarr"
    whole.td.to_zarr(path, zarr_format=2, layout="xarray", consolidated=False)
    return path


@pytest.fixture(params=["version 1", "version 0"])
def reference(request: pytest.FixtureRequest, tmp_path: Path, store: Path) -> Path:
    path = tmp_path / "refs.json"
    found = references(store)
    path.write_text(json.dumps({"version": 1, "refs": found} if request.param == "version 1" else found))
    return path


def test_a_json_reference_opens_through_both_openings(reference: Path, store: Path, whole: xr.Dataset) -> None:
    both = open_in_both(reference)
    assert_same_tensordict(both.ptd.to_tensordict(), open_persistent(store).to_tensordict())
    np.testing.assert_array_equal(both.ds["next/t2m"], whole["next/t2m"])
    assert both.ptd[[2, 0]]["t2m"].tolist() == whole["t2m"].values[[2, 0]].tolist()
    both.close()
    found = inspect(reference)
    assert (found.kind, found.batch_size) == ("kerchunk reference", (4,))
    assert xr.open_datatree(reference, engine="tensordict")["next/t2m"].shape == (4, 3)


def test_a_reference_of_a_store_of_tensordict_keeps_its_batch(tmp_path: Path) -> None:
    td = TensorDict({"obs": torch.rand(6, 3), "next": {"obs": torch.rand(6, 3)}}, [6], names=["time"])
    xr_path, path = tmp_path / "td.zarr", tmp_path / "td.json"
    td.to_zarr(xr_path)
    path.write_text(json.dumps({"version": 1, "refs": references(xr_path)}))
    assert_same_tensordict(open_persistent(path).to_tensordict(), td)


def test_a_reference_through_the_file_system_of_fsspec_and_by_url(reference: Path, store: Path) -> None:
    expected = open_persistent(store).to_tensordict()
    mapper = fsspec.filesystem("reference", fo=str(reference), asynchronous=True).get_mapper("")
    assert_same_tensordict(open_persistent(mapper).to_tensordict(), expected)
    fsspec.filesystem("memory").pipe("/refs/all.json", reference.read_bytes())
    far = open_persistent("memory://refs/all.json", storage_options={"remote_protocol": "file"})
    assert_same_tensordict(far.to_tensordict(), expected)


def test_a_reference_is_followed_to_the_urls_that_it_names(tmp_path: Path, store: Path, whole: xr.Dataset) -> None:
    found = references(store)
    for key, there in found.items():
        if isinstance(there, list):
            fsspec.filesystem("memory").pipe(f"/elsewhere/{key}", Path(there[0]).read_bytes())
            found[key] = [f"memory://elsewhere/{key}"]
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": found}))
    with xr.open_dataset(tmp_path / "refs.json", engine="tensordict") as ds:
        np.testing.assert_array_equal(ds["t2m"], whole["t2m"])


def test_a_reference_is_not_written_to(reference: Path) -> None:
    with pytest.raises(ValueError, match="reference to files of others"):
        open_persistent(reference, mode="r+")
    with pytest.raises(ValueError, match="describes files of others"):
        annotate(reference)


def test_a_json_file_that_is_no_reference_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}')
    with pytest.raises(ValueError, match=r"expected a zarr store, .* or a kerchunk reference, found a file"):
        xr.open_dataset(tmp_path / "a.json", engine="tensordict")


def test_a_reference_with_an_odd_template_is_an_error_that_names_it(tmp_path: Path) -> None:
    found = {
        "version": 1,
        "templates": {"u": "{{ [].__class__.__base__ }}"},
        "refs": {"x/0": ["{{v}}", 0, 1], ".zgroup": "{}"},
    }
    (tmp_path / "refs.json").write_text(json.dumps(found))
    with pytest.raises(OSError, match=r"refs\.json: it cannot be read"):
        open_persistent(tmp_path / "refs.json")


def test_generated_references_are_refused_by_name(reference: Path) -> None:
    """fsspec passes over them without a word, and their chunks would be fill values; or it makes them without an end."""
    document = json.loads(reference.read_text())
    rule = {"key": "x/{{i}}", "url": "data.bin", "dimensions": {"i": {"stop": 10**12}}}
    reference.write_text(json.dumps({"version": 1, "refs": document.get("refs", document), "gen": [rule]}))
    for opened in (partial(xr.open_dataset, engine="tensordict"), open_persistent):
        for options in (None, {"simple_templates": False}):
            with pytest.raises((OSError, ValueError), match=r"refs\.json.*'gen'"):
                opened(reference, storage_options=options)


@pytest.mark.parametrize(
    ("reference_of_chunk", "says"),
    [
        (None, r"got `null` - at `\$\[\.\.\.\]`"),
        (["{fifo}"], "expected a file, found a folder, a device or a pipe"),
        (["/dev/zero", 0, 8], "'/dev/zero': expected a file"),
        (["{folder}"], "expected a file, found a folder"),
    ],
)
def test_a_reference_that_leads_to_no_file_is_refused_by_name(
    tmp_path: Path, reference_of_chunk: Any, says: str
) -> None:
    os.mkfifo(tmp_path / "fifo")
    names = {"{fifo}": str(tmp_path / "fifo"), "{folder}": str(tmp_path)}
    chunk = reference_of_chunk and [names.get(part, part) for part in reference_of_chunk]
    array = {
        "zarr_format": 2,
        "shape": [1],
        "chunks": [1],
        "dtype": "<f8",
        "compressor": None,
        "fill_value": 0,
        "order": "C",
        "filters": None,
    }
    refs = {".zgroup": '{"zarr_format": 2}', "y/.zarray": json.dumps(array), "y/0": chunk}
    path = tmp_path / "refs.json"
    path.write_text(json.dumps({"version": 1, "refs": refs}))
    for opened in (lambda: xr.open_dataset(path, engine="tensordict"), lambda: open_persistent(path)):
        with pytest.raises((OSError, ValueError), match=rf"refs\.json.*{says}"):
            opened()
