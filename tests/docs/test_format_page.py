"""The examples on the page "The format on disk" are what is written; its schema holds for what is written."""

import base64
import io
import json
import re
from pathlib import Path

import h5py
import jsonschema
import numpy as np
import pytest
import xarray as xr
import zarr

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
PROGRAM = re.search(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]
EXAMPLES = re.findall(r"^% example: ([^\n]+)\n```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    folder = tmp_path_factory.mktemp("format")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(compile(PROGRAM, "format.md", "exec"), {})
    return folder


def in_zarr(folder, path, what):
    node = zarr.open_group(folder / "example.zarr", mode="r", use_consolidated=False)
    node = node[path.strip("/")] if path != "/" else node
    if what == "attributes":
        return dict(node.attrs)
    return json.loads(np.asarray(node[...]).tobytes())


def in_hdf5(folder, path, what):
    with h5py.File(folder / "example.h5", "r") as file:
        if what == "record":
            return json.loads(file[path].attrs["__xarray_tensordict__"])
        return json.loads(file[path][()])


@pytest.mark.parametrize(
    ("what", "text"), [each for each in EXAMPLES if each[0] != "schema"], ids=lambda value: value[:40]
)
def test_the_example_is_what_is_written(example, what, text):
    store, path, part = what.split()
    found = (in_zarr if store == "zarr" else in_hdf5)(example, path, part)
    assert found == json.loads(text)


def test_every_json_block_is_compared():
    assert len(EXAMPLES) == len(re.findall(r"^```json", PAGE, re.MULTILINE)) > 10


def test_the_schema_holds_for_large_small_and_special_arrays(tmp_path):
    schema = json.loads(dict(EXAMPLES)["schema"])
    arrays = {
        "large": np.arange(1025.0),
        "small": np.arange(1024),
        "gaps": np.array([1.0, np.nan]),
        "dates": np.array(["2024-01-01", "NaT"], "M8[s]"),
        "phases": np.array([1j]),
    }
    ds = xr.Dataset({"x": ("time", np.zeros(3)), "one": ((), 7.5)})
    ds = ds.assign({name: (f"along_{name}", values) for name, values in arrays.items()})
    ds.td.to_zarr(tmp_path / "s.zarr")
    root = zarr.open_group(tmp_path / "s.zarr", mode="r", use_consolidated=False)
    content = json.loads(np.asarray(root["_unbatched"][...]).tobytes())
    jsonschema.validate(content, schema)
    assert isinstance(content["small"]["data"], list)
    for name in ("large", "gaps", "phases"):
        assert np.array_equal(
            np.load(io.BytesIO(base64.b64decode(content[name]["data"]))), arrays[name], equal_nan=True
        )
    assert content["dates"]["dtype"] == "M8[s]"
    assert content["one"]["data"] == 7.5


def test_the_names_of_the_page_are_those_of_the_source():
    from xarray_tensordict.core import metadata

    names = {*metadata.MARKER_ATTRS, metadata.UNBATCHED_NAME, metadata.BATCH_DIMS_ATTR}
    assert all(f"`{name}`" in PAGE for name in names)
    assert f"It is version **{metadata.KNOWN_VERSION}**" in PAGE
