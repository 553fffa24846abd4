"""Stores that were written once, by the versions of that day, open for ever: `support/golden.py` wrote them."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from tensordict import TensorDict

import corpus

FOLDER = Path(__file__).parents[1] / "data" / "golden"
EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text())


def test_each_golden_store_has_its_values_written_down():
    assert sorted(EXPECTED) == sorted(path.name for path in FOLDER.iterdir() if path.name != "expected.json")


@pytest.fixture(params=sorted(EXPECTED))
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy: what is committed stays as it is, whatever a test does."""
    source, target = FOLDER / request.param, tmp_path / request.param
    return Path(shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target))


def test_a_golden_store_opens_in_both_libraries_with_its_values(golden: Path, open_both: Any) -> None:
    expected, both = EXPECTED[golden.name], open_both(golden)
    td, entries = both.td, EXPECTED[golden.name]["entries"]
    assert list(td.batch_size) == expected["batch_size"] == list(both.ptd.batch_size)
    assert list(td.names) == expected["names"] == list(both.ptd.names)
    keys = td.keys(include_nested=True, leaves_only=True, is_leaf=lambda kind: not issubclass(kind, TensorDict))
    assert sorted(key if isinstance(key, str) else "/".join(key) for key in keys) == sorted(entries)
    for name, entry in entries.items():
        if entry["dtype"] == "non-tensor":
            assert corpus.text(td[tuple(name.split("/"))]) == entry["values"]
        else:
            dtype = getattr(torch, entry["dtype"].removeprefix("torch."))
            corpus.assert_entry(td, tuple(name.split("/")), np.asarray(entry["values"]), dtype)


@pytest.mark.parametrize("name", ["own.h5", "own.zarr2", "own.zarr3"])
def test_a_golden_store_of_this_package_keeps_what_is_no_tensor(name: str) -> None:
    with xr.open_dataset(FOLDER / name, engine="tensordict") as ds:
        assert ds.td.batch_dims == ("time",)
        assert ds.attrs["title"] == "golden"
        assert ds["t2m"].attrs == {"units": "K"}
        assert ds["time"].values.tolist() == np.arange(3).astype("M8[D]").astype("M8[s]").tolist()
        assert ds["time"].dtype == np.dtype("M8[s]")
        assert ds["t2m"].dims == ("time", "lat")


@pytest.mark.parametrize("name", sorted(name for name in EXPECTED if name.startswith("tensordict")))
def test_a_golden_store_of_tensordict_opens_with_tensordict_too(name: str) -> None:
    read = {
        ".zarr": TensorDict.from_zarr,
        ".memmap": TensorDict.load_memmap,
        ".tdz": TensorDict.load,
        ".h5": TensorDict.from_h5,
    }
    entries = EXPECTED[name]["entries"]
    found = read[Path(name).suffix](FOLDER / name)
    assert found["next", "obs"].tolist() == entries["next/obs"]["values"]
