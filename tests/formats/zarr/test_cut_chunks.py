"""A chunk of blosc that was cut short is an error, in every way of reading: the library itself reads behind its end."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.codecs import BloscCodec
from zarr.core import codec_pipeline

from xarray_tensordict import open_persistent
from xarray_tensordict._compat.zarr import PIPELINES

VALUES = np.random.default_rng(0).random((8, 64))
"""Numbers that blosc cannot compress, which it copies as they are."""


@pytest.fixture(params=["zarr2", "zarr3", "zip"])
def cut(request: Any, tmp_path: Path) -> Path:
    """A store with chunks of whole rows in `rows`, and of parts of rows in `parts`; the first chunk of each is cut."""
    v3 = request.param == "zarr3"
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=3 if v3 else 2)
    for name, chunks in (("rows", (4, 64)), ("parts", (4, 32)), ("whole", (4, 64))):
        codec = BloscCodec(cname="lz4", shuffle="noshuffle") if v3 else numcodecs.Blosc(cname="lz4", shuffle=0)
        group.create_array(name, data=VALUES, chunks=chunks, compressors=codec)
    for name in ("rows", "parts"):
        first = tmp_path / "a.zarr" / name / ("c/0/0" if v3 else "0.0")
        first.write_bytes(first.read_bytes()[:500])
    if request.param != "zip":
        return tmp_path / "a.zarr"
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for file in sorted((tmp_path / "a.zarr").rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(tmp_path / "a.zarr"))
    return tmp_path / "a.zip"


@pytest.mark.parametrize("name", ["rows", "parts"])
@pytest.mark.parametrize("chunks", [None, {}], ids=["numpy", "dask"])
def test_reading_it_names_the_array(cut: Path, name: str, chunks: Any) -> None:
    with xr.open_dataset(cut, engine="tensordict", chunks=chunks) as ds:
        for read in (lambda: ds[name].load(), lambda: ds[[name]].td.to_tensordict(), lambda: ds[name][:2, :3].values):
            with pytest.raises(OSError, match=rf"{name}.*cut short: expected \d+ bytes, found 500"):
                read()
        np.testing.assert_array_equal(ds[name][4:], VALUES[4:])
        np.testing.assert_array_equal(ds["whole"], VALUES)
    ptd = open_persistent(cut)
    with pytest.raises(OSError, match="cut short"):
        ptd[[1, 0]]
    assert ptd[5][name].tolist() == VALUES[5].tolist()


@pytest.mark.skipif(len(PIPELINES) == 1, reason="zarr has one pipeline before 3.4")
def test_another_pipeline_is_used_for_arrays_of_this_package_only(tmp_path: Path, monkeypatch: Any) -> None:
    """What a setting of zarr would change for arrays of others, too: their stores may do more in `get`."""
    whole = xr.Dataset({"x": (("time", "k"), VALUES)})
    whole.td.to_zarr(tmp_path / "a.zarr", layout="xarray", chunks={"time": 2}, shards={"time": 4})
    used = []
    for name in PIPELINES:
        pipeline: Any = getattr(codec_pipeline, name.rpartition(".")[2])
        read = pipeline.read

        async def noted(self: Any, *arguments: Any, read: Any = read, **options: Any) -> Any:
            used.append((type(self).__name__, zarr.config.get("codec_pipeline.path")))
            return await read(self, *arguments, **options)

        monkeypatch.setattr(pipeline, "read", noted)
    with xr.open_dataset(tmp_path / "a.zarr", engine="tensordict") as ds:
        np.testing.assert_array_equal(ds["x"][1:3], VALUES[1:3])
    assert set(used) == {("FusedCodecPipeline", PIPELINES[0])}
