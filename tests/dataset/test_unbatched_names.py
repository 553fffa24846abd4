"""What the entry ``_unbatched`` may hold: the same through both ways of opening, in zarr, HDF5 and memory-mapped stores."""

import json
import re

import h5py
import numpy as np
import pytest
import torch
import xarray as xr
from tensordict import NonTensorData, TensorDict

import xarray_tensordict
from memmap_samples import in_both

GOOD = {"dims": ["lat"], "dtype": "float64", "attrs": {}, "role": "data", "data": [1.0, 2.0]}


def written(folder, kind, content):
    td = TensorDict({"x": torch.zeros(3), "g": {"y": torch.ones(3)}}, [3], names=["time"])
    path = folder / f"store.{kind}"
    if kind == "h5":
        td.to_h5(str(path)).close()
        with h5py.File(path, "r+") as file:
            file["_unbatched"] = json.dumps(content)
            file["_unbatched"].attrs["__tensordict_non_tensor__"] = '{"encoding": "json"}'
            file.attrs["__tensordict__"] = '{"batch_size": [3], "names": ["time"], "version": 1}'
        return path
    td["_unbatched"] = NonTensorData(content, batch_size=[3])
    {"zarr": td.to_zarr, "memmap": td.memmap}[kind](str(path))
    return path


def refused(path, name, why):
    for opening in (
        lambda: xr.open_dataset(path, engine="tensordict"),
        lambda: xarray_tensordict.open_persistent(path),
    ):
        with pytest.raises(
            ValueError, match=re.escape(f"the entry '_unbatched' is damaged at {name!r}: {why}")
        ) as caught:
            opening()
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("kind", ["zarr", "h5", "memmap"])
def test_a_part_of_it_that_is_malformed_is_refused_by_both_ways_of_opening(tmp_path, kind):
    found = in_both(written(tmp_path, kind, {"lat": GOOD, "g/lon": GOOD}), mapped=False)
    assert sorted(map(str, found.keys(True, True))) == ["('g', 'y')", "x"]
    for name, part, why in (
        ("", GOOD, "it is empty"),
        ("/abs", GOOD, "a part of it is empty"),
        ("a//b", GOOD, "a part of it is empty"),
        ("../up", GOOD, "it has the part '..'"),
        ("a/.", GOOD, "it has the part '.'"),
        ("x", GOOD, "there is an array or a group of that name already"),
        ("g", GOOD, "there is an array or a group of that name already"),
        ("lat", {**GOOD, "dims": [3]}, "Expected `str | null`, got `int` - at `$.dims[0]`"),
        ("lat", {**GOOD, "dtype": ["f8"]}, "Expected `str`, got `array` - at `$.dtype`"),
        ("lat", {**GOOD, "data": [1.0]}, None),
    ):
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        path = written(folder, kind, {name: part})
        if why is None:  # one of lat is as good as two
            assert np.array_equal(xr.open_dataset(path, engine="tensordict")["lat"], [1.0])
        else:
            refused(path, name, why)
