"""What reading costs, counted: memory, requests, imports. Nothing here looks at a clock."""

import subprocess
import sys
from typing import ClassVar

import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from tensordict import TensorDict

from xarray_tensordict import open_persistent


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Counting(zarr.storage.WrapperStore):
    """Notes each read of data; of all its copies, since zarr makes one that is read-only."""

    seen: ClassVar[list] = []

    async def get(self, key, prototype, byte_range=None):
        if "/c/" in key:
            self.seen.append((key, byte_range))
        return await self._store.get(key, prototype, byte_range)


ARRAY = np.arange(64 * 3, dtype="f4").reshape(64, 3)


def counted(**options) -> Counting:
    memory = zarr.storage.MemoryStore()
    zarr.create_group(memory).create_array("x", shape=ARRAY.shape, dtype="f4", **options)[...] = ARRAY
    Counting.seen.clear()
    return Counting(memory)


def test_of_a_shard_only_the_inner_chunks_that_hold_the_asked_rows_are_read():
    store = counted(chunks=(4, 3), shards=(32, 3), compressors=None)
    with open_persistent(store) as ptd:
        rows = [60, 1, 2, 33]
        np.testing.assert_array_equal(ptd.get_at("x", rows).numpy(), ARRAY[rows])
    whole = [key for key, byte_range in store.seen if byte_range is None]
    assert whole == []
    indexes = [key for key, byte_range in store.seen if isinstance(byte_range, zarr.abc.store.SuffixByteRequest)]
    assert sorted(indexes) == ["x/c/0/0", "x/c/1/0"]
    inner = [found for found in store.seen if isinstance(found[1], zarr.abc.store.RangeByteRequest)]
    assert {key for key, _ in inner} == {"x/c/0/0", "x/c/1/0"}
    of_chunk = 4 * 3 * 4
    found = {key: sum(part.end - part.start for each, part in inner if each == key) for key, _ in inner}
    assert found["x/c/0/0"] == of_chunk
    # zarr 3.4 asks once for two chunks that are near each other, and for what is between them
    assert 2 * of_chunk <= found["x/c/1/0"] <= 32 * 3 * 4 * 7 // 8 + of_chunk


def test_plain_opens_import_neither_torch_nor_this_package(tmp_path):
    xr.Dataset({"x": ("t", np.arange(3))}).to_netcdf(tmp_path / "s.nc", engine="h5netcdf")
    found = run(f"""
import sys, xarray as xr
xr.open_dataset({str(tmp_path / "s.nc")!r}).close()
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("torch", "tensordict", "xarray_tensordict")))
""")
    assert found.strip() == "[]"


def test_the_engine_that_xarray_imports_brings_nothing_that_xarray_has_not(tmp_path):
    xr.Dataset({"x": ("t", np.arange(3))}).to_netcdf(tmp_path / "s.nc", engine="h5netcdf")
    found = run(f"""
import sys, xarray as xr
from xarray.backends import plugins
entries = [e for e in plugins.entry_points(group="xarray.backends") if e.name != "tensordict"]
plugins.entry_points = lambda group: entries
xr.open_dataset({str(tmp_path / "s.nc")!r}).close()
before = set(sys.modules)
import xarray_tensordict_engine
print(sorted(set(sys.modules) - before))
""")
    assert found.strip() == "['xarray_tensordict_engine']"


def test_excluded_columns_are_not_read(tmp_path):
    store = counted(chunks=(8, 3))
    group = zarr.open_group(store._store)
    texts = group.create_array("text", shape=(64,), dtype=str, dimension_names=["row"])
    texts[...] = np.array(["word"] * 64, dtype=object)
    ds = xr.open_dataset(store, engine="tensordict")
    td = ds.td.to_tensordict(exclude=["text"])
    assert "text" not in td.keys()  # noqa: SIM118 - a tensordict is no dict
    assert not [key for key, _ in store.seen if key.startswith("text")]


def test_out_is_filled_in_place(tmp_path):
    path = tmp_path / "s.zarr"
    ds = xr.Dataset(
        {"x": (("t", "f"), ARRAY), "next/x": (("t", "f"), ARRAY + 1), "when": ("t", np.arange(64).astype("M8[ns]"))}
    )
    ds.td.to_zarr(path)
    opened = xr.open_dataset(path, engine="tensordict")
    expected = opened.td.to_tensordict()
    out = expected.clone().zero_()
    places = {key: value.data_ptr() for key, value in out.items(True, True)}
    assert opened.td.to_tensordict(out=out) is out
    assert (out == expected).all()
    assert {key: value.data_ptr() for key, value in out.items(True, True)} == places


def test_out_with_gaps_and_of_partial_entries_is_filled(tmp_path):
    ds = xr.Dataset({"x": (("t", "f"), ARRAY), "scale": ("f", [1.0, 2.0, 3.0])}).td.set_batch_dims(("t", "f"))
    path = tmp_path / "s.h5"
    ds.td.to_h5(path)
    opened = xr.open_dataset(path, engine="tensordict")
    expected = opened.td.to_tensordict()
    apart = torch.zeros(64, 6)[:, ::2]
    out = TensorDict({"x": apart, "scale": torch.zeros(64, 3, dtype=torch.float64)}, [64, 3])
    opened.td.to_tensordict(out=out)
    assert (out == expected).all()
    np.testing.assert_array_equal(apart.numpy(), ARRAY)


def test_out_that_does_not_fit_is_refused_before_anything_is_read(tmp_path):
    path = tmp_path / "s.zarr"
    xr.Dataset({"a": (("t", "f"), ARRAY), "b": (("t", "f"), ARRAY)}).td.to_zarr(path)
    opened = xr.open_dataset(path, engine="tensordict")
    out = TensorDict({"a": torch.zeros(64, 3), "b": torch.zeros(64, 3, dtype=torch.float64)}, [64])
    with pytest.raises(
        ValueError, match=r"out: expected torch.float32 \[64, 3\] at 'b', found torch.float64 \[64, 3\]"
    ):
        opened.td.to_tensordict(out=out)
    assert out["a"].sum() == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinned memory needs CUDA")
def test_pinned_memory_is_filled(tmp_path):
    path = tmp_path / "s.zarr"
    xr.Dataset({"a": (("t", "f"), ARRAY)}).td.to_zarr(path)
    out = TensorDict({"a": torch.zeros(64, 3).pin_memory()}, [64])
    xr.open_dataset(path, engine="tensordict").td.to_tensordict(out=out)
    np.testing.assert_array_equal(out["a"].numpy(), ARRAY)
    assert out["a"].is_pinned()


def test_zarrs_reads_the_same_values(tmp_path):
    path = tmp_path / "s.zarr"
    array = zarr.create_group(str(path)).create_array("x", shape=ARRAY.shape, dtype="f4", chunks=(8, 3))
    array[...] = ARRAY
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}), open_persistent(path) as ptd:
        np.testing.assert_array_equal(ptd["x"].numpy(), ARRAY)
        np.testing.assert_array_equal(ptd.get_at("x", [63, 0, 0, 17]).numpy(), ARRAY[[63, 0, 0, 17]])
