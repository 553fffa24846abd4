"""Members of local zarr stores are opened from their metadata files, and are what zarr itself opens."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_equal
from zarr.storage import StorePath

from xarray_tensordict._compat import zarr as documents
from xarray_tensordict._compat.zarr import Document
from xarray_tensordict.formats.zarr import open as zarr_members
from xarray_tensordict.formats.zarr.arrays import Nodes
from xarray_tensordict.formats.zarr.open import Tree
from xarray_tensordict.warnings import ZARR_SAYS, quiet

pytestmark = pytest.mark.filterwarnings(
    "ignore:The data type:zarr.errors.UnstableSpecificationWarning", "ignore:Consolidated metadata"
)

FORMATS = [2, 3]
ODD_VALUES = st.sampled_from([None, 0, -1, 2.5, "x", [], [4], {}, {"name": "unknown"}, True])


@pytest.fixture
def by_requests(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Calls a function with all documents read as those of any other store."""

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        with monkeypatch.context() as patched:
            for module in (documents, zarr_members):
                patched.setattr(module, "is_local", lambda node: False)
            return function(*args, **kwargs)

    return call


def open_members(groups: list[zarr.Group]) -> list[list[tuple[str, Any]]]:
    return Tree().members(groups)


def make_store(path: Path, zarr_format: Any) -> zarr.Group:
    """Arrays of several dtypes and layouts, alike but for attributes, or not; groups; and what is no member."""
    root = zarr.create_group(str(path), zarr_format=zarr_format, attributes={"title": "a"})
    root.create_array("x0", shape=(4, 2), dtype="f4", attributes={"number": 0, "of": [0]})[...] = 1
    for number in range(1, 70):  # more than are read one after the other
        _copy_of(path / "x0", path / f"x{number}", {"number": number, "of": [number]})
    for dtype in ("i1", "u2", "?", "f8", "c8", "<U3", "M8[s]"):
        root.create_array(f"dtype_{np.dtype(dtype).kind}", shape=(3,), dtype=dtype)
    root.create_array("fill_nan", shape=(3,), dtype="f4", fill_value=np.nan)
    root.create_array("fill_one", shape=(3,), dtype="i4", fill_value=1)
    root.create_array("scalar", shape=(), dtype="i4")
    root.create_array("chunked", shape=(10, 4), chunks=(3, 4), dtype="f4")
    if zarr_format == 3:
        root.create_array("named", shape=(4, 2), dtype="f4", dimension_names=["row", "f"])
        root.create_array("sharded", shape=(8, 4), chunks=(2, 4), shards=(4, 4), dtype="f4")
    inner = root.create_group("nested", attributes={"level": 1})
    inner.create_array("x0", shape=(4, 2), dtype="f4")
    root.create_group("nested/deeper")
    root.create_group("empty")
    return root


def _copy_of(path: Path, copied: Path, attributes: dict[str, Any]) -> None:
    shutil.copytree(path, copied)
    if (copied / ".zattrs").exists():
        (copied / ".zattrs").write_text(json.dumps(attributes))
    else:
        document = json.loads((copied / "zarr.json").read_text())
        (copied / "zarr.json").write_text(json.dumps({**document, "attributes": attributes}))


def shown(member: Any) -> Any:
    """All that tells one member from another."""
    if isinstance(member, BaseException):
        return type(member), str(member)
    if isinstance(member, zarr.Array):
        data = member[...].tolist() if member.name in {"/x0", "/x69", "/fill_one", "/sharded", "/nested/x0"} else None
        return "array", member.path, member.metadata.to_dict(), type(member.metadata), member.order, data
    return "group", member.path, member.metadata.to_dict()


def assert_same_members(found: list[tuple[str, Any]], expected: list[tuple[str, Any]]) -> None:
    assert [name for name, _ in found] == [name for name, _ in expected]
    for (name, member), (_, other) in zip(found, expected, strict=True):
        assert_equal(shown(member), shown(other), err_msg=name)  # NaN equals NaN


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_members_are_those_that_zarr_opens(tmp_path: Path, zarr_format: int, by_requests: Any) -> None:
    make_store(tmp_path / "s.zarr", zarr_format)
    root = zarr.open_group(str(tmp_path / "s.zarr"), mode="r", use_consolidated=False)
    expected = sorted(root.members())
    (tmp_path / "s.zarr" / "notes.txt").write_text("no member")
    (tmp_path / "s.zarr" / "folder").mkdir()
    (found,) = open_members([root])
    assert_same_members(found, expected)
    assert_same_members(by_requests(open_members, [root])[0], expected)
    groups = [member for _, member in found if isinstance(member, zarr.Group)]
    assert len(groups) == 2
    for inner, group in zip(open_members(groups), groups, strict=True):
        assert_same_members(inner, sorted(group.members()))


@pytest.mark.parametrize("zarr_format", FORMATS)
@pytest.mark.parametrize("consolidated", [False, True])
def test_a_dataset_is_the_same_in_every_way(
    tmp_path: Path, zarr_format: int, consolidated: bool, by_requests: Any
) -> None:
    path = tmp_path / "s.zarr"
    make_store(path, zarr_format)
    if consolidated:
        zarr.consolidate_metadata(str(path))
    found = xr.open_dataset(path, engine="tensordict")
    expected = by_requests(xr.open_dataset, path, engine="tensordict", consolidated=consolidated)
    xr.testing.assert_identical(found, expected)
    assert list(found.variables) == list(expected.variables)
    for name, variable in found.variables.items():
        assert_equal(variable.encoding, expected.variables[name].encoding, err_msg=str(name))


def test_attributes_of_arrays_that_are_alike_are_their_own(tmp_path: Path) -> None:
    make_store(tmp_path / "s.zarr", 3)
    ds = xr.open_dataset(tmp_path / "s.zarr", engine="tensordict")
    ds["x1"].attrs["of"].append("changed")
    ds["x1"].encoding["changed"] = True
    assert ds["x2"].attrs == {"number": 2, "of": [2]}
    assert "changed" not in ds["x2"].encoding


def test_values_that_are_equal_in_python_and_not_in_json_are_told_apart(tmp_path: Path) -> None:
    root = zarr.create_group(str(tmp_path / "s.zarr"))
    first = {
        "shape": [2],
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "zarr_format": 3,
        "node_type": "array",
    }
    nodes = Nodes()
    found = [
        nodes.node(StorePath(root.store, name), Document("zarr.json", {**first, "fill_value": fill}))
        for name, fill in (("a", 0.0), ("b", -0.0))
    ]
    assert [bool(np.signbit(array.fill_value)) for array in found] == [False, True]


def test_what_cannot_be_read_is_left_out_alike_in_every_way(tmp_path: Path, by_requests: Any) -> None:
    path = tmp_path / "s.zarr"
    root = zarr.create_group(str(path))
    for name in ("good", "cut", "text", "old", "listed"):
        root.create_array(name, shape=(2,), dtype="f4")
    (path / "cut" / "zarr.json").write_text('{"shape": [2')
    (path / "text" / "zarr.json").write_bytes(b"\xff\xfe\x00")
    (path / "listed" / "zarr.json").write_text("[]")
    document = json.loads((path / "old" / "zarr.json").read_text())
    (path / "old" / "zarr.json").write_text(json.dumps({**document, "zarr_format": 2}))
    with pytest.warns(UserWarning, match="left out") as found:
        ds = xr.open_dataset(path, engine="tensordict")
    with pytest.warns(UserWarning, match="left out") as expected:
        by_requests(xr.open_dataset, path, engine="tensordict")
    assert list(ds.data_vars) == ["good"]
    assert [str(told.message) for told in found] == [str(told.message) for told in expected]


def _paths(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(document, (dict, list)):
        for key, value in document.items() if isinstance(document, dict) else enumerate(document):
            yield (*path, key)
            yield from _paths(value, (*path, key))


@settings(max_examples=150, deadline=None)
@given(data=st.data(), zarr_format=st.sampled_from(FORMATS))
def test_a_damaged_document_that_opens_is_what_zarr_opens(data: st.DataObject, zarr_format: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = zarr.create_group(folder, zarr_format=zarr_format)
        root.create_array("a", shape=(4, 2), dtype="f4", attributes={"units": "m"})
        root.create_array("b", shape=(4, 2), dtype="f4", attributes={"units": "m"})
        names = {2: [".zarray", ".zattrs"], 3: ["zarr.json"]}[zarr_format]
        file = Path(folder) / "b" / data.draw(st.sampled_from(names))
        document = json.loads(file.read_text())
        *above, last = data.draw(st.sampled_from(list(_paths(document))))
        place = document
        for key in above:
            place = place[key]
        if data.draw(st.booleans()):
            del place[last]
        else:
            place[last] = data.draw(ODD_VALUES)
        file.write_text(json.dumps(document))
        ((_, intact), (_, found)) = open_members([root])[0]
        assert isinstance(intact, zarr.Array)
        if isinstance(found, zarr.Array):
            with quiet(*ZARR_SAYS):
                assert found.metadata.to_dict() == root["b"].metadata.to_dict()
        else:
            assert isinstance(found, Exception | zarr.Group)


@pytest.mark.parametrize("late", [0.0, float("inf")], ids=["by threads", "one after the other"])
def test_many_members_are_read_alike_from_disks_that_answer_late(tmp_path, monkeypatch, late):
    monkeypatch.setattr(documents, "_LATE", late)
    ds = xr.Dataset({f"v{number}": ("t", np.full(2, number)) for number in range(150)})
    ds.td.to_zarr(tmp_path / "a.zarr")
    (tmp_path / "a.zarr" / "v77" / "zarr.json").write_text("{")
    with pytest.warns(UserWarning, match="left out 'v77'"):
        found = xr.open_dataset(tmp_path / "a.zarr", engine="tensordict")
    xr.testing.assert_equal(found, ds.drop_vars("v77"))
