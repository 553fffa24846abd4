"""Buffers that are made with ``TensorDict.from_schema`` and filled later: here, there, by several, while others read."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from tensordict import TensorDict

import xarray_tensordict
from buffer_rows import ROWS, row
from memmap_samples import in_both
from xarray_tensordict.testing import assert_same_tensordict

SCHEMA: dict[str, Any] = {
    "obs": ([4], torch.float32),
    "image": ([2, 3], torch.uint8),
    "reward": ([], torch.float64),
    "done": ([1], torch.bool),
    "step": ([], torch.int64),
}


def buffer(storage: str, path: Any, **options: Any) -> Any:
    where = {"prefix": path} if storage in {"memmap", "tdz"} else {"filename": path}
    kind = "memmap" if storage == "tdz" else storage
    return TensorDict.from_schema(SCHEMA, batch_size=[ROWS], storage=kind, **where, **options)


def expected(filled: list[int]) -> TensorDict:
    """The buffer with these rows filled."""
    whole = TensorDict.from_schema(SCHEMA, batch_size=[ROWS])
    for number in filled:
        whole[number] = row(number)
    return whole


def rows(first: int, last: int) -> xr.Dataset:
    """Rows as somebody has them who knows what the dims are."""
    td = torch.stack([row(number) for number in range(first, last)])
    names = {"obs": ("joint",), "image": ("y", "x"), "done": ("one",)}
    return xarray_tensordict.to_dataset(td, dims=names).rename_dims(batch_0="time").td.set_batch_dims("time")


STORAGES = [
    ("zarr", "buffer.zarr", {}),
    ("zarr", "buffer.zarr", {"chunks": (8,)}),
    ("zarr", "buffer.zarr", {"chunks": (8,), "compressors": zarr.codecs.ZstdCodec()}),
    ("h5", "buffer.h5", {}),
    ("h5", "buffer.h5", {"compression": "gzip", "chunks": True}),
    ("memmap", "buffer", {}),
    ("tdz", "buffer.tdz", {}),
]


@pytest.mark.parametrize(("storage", "name", "options"), STORAGES, ids=lambda value: str(value)[:30])
def test_rows_that_are_not_filled_read_as_zeros(tmp_path, storage, name, options):
    made = buffer(storage, tmp_path / name, **options)
    assert_same_tensordict(expected([]), in_both(tmp_path / name))
    for number in (0, 1, 7, 19):
        made[number] = row(number)
        found = in_both(tmp_path / name)  # while the buffer is open for writing here
        assert_same_tensordict(expected([n for n in (0, 1, 7, 19) if n <= number]), found)
    if hasattr(made, "close"):
        made.close()
    assert_same_tensordict(expected([0, 1, 7, 19]), in_both(tmp_path / name))


def test_a_file_that_another_process_has_open_for_writing_is_named(tmp_path):
    """HDF5 locks files; whoever fills one flushes and closes it, or hands out the open buffer."""
    path = tmp_path / "buffer.h5"
    buffer("h5", path).close()
    code = "import h5py, sys; f = h5py.File(sys.argv[1], 'r+'); print('open', flush=True); sys.stdin.readline()"
    arguments = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(OSError, match=r"buffer\.h5.*lock|lock.*buffer\.h5"):
            xr.open_dataset(path, engine="tensordict")
        other.communicate("close\n")
    assert_same_tensordict(expected([]), in_both(path))


@pytest.mark.parametrize("storage", ["zarr", "h5"])
def test_an_open_buffer_is_a_store(tmp_path, storage):
    made = buffer(storage, tmp_path / f"buffer.{storage}")
    made[3] = row(3)
    with xr.open_dataset(made, engine="tensordict") as ds:
        assert_same_tensordict(expected([3]), ds.td.to_tensordict())
    made[4] = row(4)
    assert_same_tensordict(expected([3, 4]), made.to_tensordict())
    made.close()


_FILL = """
import sys, torch
sys.path.insert(0, sys.argv[3])
import tensordict
from tensordict import TensorDict
from buffer_rows import ROWS, row
storage, path = sys.argv[1:3]
opened = TensorDict.from_zarr(path, mode="r+") if storage == "zarr" else tensordict.load(path)
if storage == "tdz":
    opened = TensorDict.load_memmap(path, mode="r+")
print("open", flush=True)
sys.stdin.readline()
for number in range(ROWS):
    opened[number] = row(number)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("storage", "name", "options"), [case for case in STORAGES if case[0] != "h5"], ids=str)
def test_a_buffer_is_read_while_another_process_fills_it(tmp_path, storage, name, options):
    path = tmp_path / name
    buffer(storage, path, **options)
    support = str(Path(__file__).parents[1] / "support")
    arguments = [sys.executable, "-W", "ignore", "-c", _FILL, storage, str(path), support]
    whole, empty = expected(list(range(ROWS))), expected([])
    with (
        subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other,
        xr.open_dataset(path, engine="tensordict", cache=False) as opened_before,
    ):
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        other.stdin.write("go\n")
        other.stdin.flush()
        while other.poll() is None:
            for found in (opened_before.td.to_tensordict(), in_both_apart(path)):
                for key, values in found.items():
                    # every element is as it was made, or as it was written
                    assert ((values == whole[key]) | (values == empty[key])).all()
        assert other.wait(30) == 0
        assert_same_tensordict(whole, opened_before.td.to_tensordict())
    assert_same_tensordict(whole, in_both(path))


def in_both_apart(path: Path) -> TensorDict:
    """Read through both libraries, of which the second may see more."""
    with xr.open_dataset(path, engine="tensordict") as ds:
        first = ds.td.to_tensordict()
    persistent = xarray_tensordict.open_persistent(path)
    second = persistent.to_tensordict()
    assert ((second["step"] == first["step"]) | (first["step"] == 0)).all()
    return second


# -- region ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"chunks": (5,)}], ids=str)
@pytest.mark.parametrize("dims", ["own", "as opened"])
def test_a_dataset_is_written_into_a_part_of_a_zarr_buffer(tmp_path, options, dims):
    path = tmp_path / "buffer.zarr"
    made = buffer("zarr", path, **options)
    part = rows(5, 10)
    if dims == "as opened":
        part = part.rename(time="batch_0", joint="dim_4", y="dim_2", x="dim_3", one="dim_1")
    batch = "time" if dims == "own" else "batch_0"
    part.td.to_zarr(path, region={batch: slice(5, 10)})
    assert_same_tensordict(expected([5, 6, 7, 8, 9]), made.to_tensordict())
    assert_same_tensordict(expected([5, 6, 7, 8, 9]), TensorDict.from_zarr(path))
    assert_same_tensordict(expected([5, 6, 7, 8, 9]), in_both(path))


@pytest.mark.parametrize("scheduler", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_dask_writes_into_a_part_of_a_zarr_buffer(tmp_path, scheduler):
    path = tmp_path / "buffer.zarr"
    buffer("zarr", path, chunks=(5,))
    with dask.config.set(scheduler=scheduler, num_workers=2):
        rows(5, 15).chunk(time=2).td.to_zarr(path, region={"time": slice(5, 15)})
    assert_same_tensordict(expected(list(range(5, 15))), TensorDict.from_zarr(path))


def test_a_variable_alone_is_written(tmp_path):
    path = tmp_path / "buffer.zarr"
    buffer("zarr", path)
    rows(5, 10)[["obs"]].td.to_zarr(path, region={"time": slice(5, 10)})
    found = TensorDict.from_zarr(path)
    assert torch.equal(found["obs"], expected([5, 6, 7, 8, 9])["obs"])
    assert not found["step"].any()


def test_what_does_not_fit_a_buffer_is_refused_before_a_byte_is_written(tmp_path):
    path = tmp_path / "buffer.zarr"
    buffer("zarr", path)
    for part, message in [
        (rows(5, 10).assign(obs=rows(5, 10)["obs"].astype("f8")), "variable 'obs' has dtype float32 there"),
        (rows(5, 10).isel(joint=slice(2)), "variable 'obs' needs size 4 along 'dim_4', found 2"),
        (rows(5, 10).assign_coords(time=np.arange(5)), r"\['time'\] are not there"),
        (rows(5, 9), "has size 4 in the dataset"),
    ]:
        with pytest.raises(ValueError, match=message):
            part.td.to_zarr(path, region={"time": slice(5, 10)})
    assert_same_tensordict(expected([]), TensorDict.from_zarr(path))


def test_a_zarr_buffer_can_grow(tmp_path):
    path = tmp_path / "buffer.zarr"
    buffer("zarr", path, chunks=(5,))
    rows(20, 23).td.to_zarr(path, append_dim="time")
    found = TensorDict.from_zarr(path)
    assert found.batch_size == (23,)
    assert found["step"].tolist() == [0] * 20 + [20, 21, 22]


# -- a store that is growing -------------------------------------------------------------------------------------------


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    path = tmp_path / "buffer.zarr"
    buffer("zarr", path, chunks=(8,))[:] = expected(list(range(ROWS)))
    return path


@pytest.mark.filterwarnings("ignore:.*does not start with the recorded batch size .* if it is being written")
@pytest.mark.filterwarnings("ignore:.*the recorded batch size .* does not fit")
def test_arrays_of_an_append_that_is_not_through_are_shown_as_they_are(growing):
    """The arrays get longer one after the other; the record of the batch is written last."""
    group = zarr.open_group(growing, mode="r+", use_consolidated=False)
    names = list(SCHEMA)
    for count, name in enumerate(names, 1):
        group[name].resize((25, *group[name].shape[1:]))
        found = in_both(growing)
        shorter = names[count:] if count < len(names) else names
        assert sorted(found.keys()) == sorted(shorter)
        for key in shorter:
            assert torch.equal(found[key][:ROWS], expected(list(range(ROWS)))[key])
        with xr.open_dataset(growing, engine="tensordict") as ds:
            assert set(ds.variables) == set(names)
            assert ds[name].shape[0] == 25
            assert not ds[name][ROWS:].any()
    assert in_both(growing).batch_size == (25,)


def test_what_an_append_does_to_a_reader_is_reported(growing):
    group = zarr.open_group(growing, mode="r+", use_consolidated=False)
    group["obs"].resize((25, 4))
    with pytest.warns(UserWarning, match=r"'obs' of shape \[25, 4\] does not start .* open it again when it is whole"):
        xr.open_dataset(growing, engine="tensordict").close()


def test_chunks_that_are_missing_read_as_fill(growing):
    shutil.rmtree(growing / "step" / "c")
    (growing / "obs" / "c" / "1" / "0").unlink()
    found, whole = in_both(growing), expected(list(range(ROWS)))
    assert not found["step"].any()
    assert torch.equal(found["obs"][:8], whole["obs"][:8])
    assert not found["obs"][8:16].any()
    assert torch.equal(found["obs"][16:], whole["obs"][16:])


def test_metadata_that_is_half_written_leaves_the_rest_readable(growing):
    (growing / "obs" / "zarr.json").write_text('{"shape": [25')
    (growing / "new").mkdir()
    with pytest.warns(UserWarning, match="left out 'obs': its metadata cannot be read"):
        ds = xr.open_dataset(growing, engine="tensordict")
    assert_same_tensordict(expected(list(range(ROWS))).exclude("obs"), ds.td.to_tensordict())
    ds.close()


@pytest.mark.filterwarnings("ignore:.*has size:UserWarning")
def test_arrays_with_names_that_differ_in_length(tmp_path):
    path = tmp_path / "written.zarr"
    rows(0, 20).assign_coords(time=np.arange(20)).chunk(time=8).td.to_zarr(path)
    group = zarr.open_group(path, mode="r+", use_consolidated=False)
    for name in ("time", "obs", "step"):
        group[name].resize((25, *group[name].shape[1:]))
        with pytest.warns(UserWarning, match="20.*25|25.*20"):
            ds = xr.open_dataset(path, engine="tensordict")
        assert set(ds.variables) == {*SCHEMA, "time"}
        assert torch.equal(torch.from_numpy(ds["reward"].values), expected(list(range(20)))["reward"])
        ds.close()
