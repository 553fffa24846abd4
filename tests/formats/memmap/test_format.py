"""Memory-mapped tensordicts and checkpoints of replay buffers, through both libraries."""

import json
import pickle
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensordict
import torch
import xarray as xr
from hypothesis import HealthCheck, given, settings
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict, lazy_stack

import xarray_tensordict
from memmap_samples import Step, as_saved, edit, in_both
from persistent_samples import needs_0_15
from strategies import tensordicts
from xarray_tensordict._compat.tensordict import IS_0_14
from xarray_tensordict.dataset.records import classes_of
from xarray_tensordict.formats.memmap import files as memmap_files
from xarray_tensordict.formats.memmap.files import file_stem
from xarray_tensordict.formats.raw import arrays as raw_arrays
from xarray_tensordict.testing import assert_same_tensordict

# of torch and torchrl, on import and on first use of a dtype
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:torchrl"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning"),
    pytest.mark.filterwarnings("ignore:the dataset has a variable 'td':UserWarning"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "saved"


# -- what tensordict saves ---------------------------------------------------------------------------------------------

DTYPES = (
    "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 float32 float64 complex64 complex128 bfloat16 "
    "complex32"
).split()
FLOAT8 = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
ESCAPED = ["air temp", "..", ".", "100%", "a:b", "x*?", "størrelse", "tab\t", "_names", "type", "dtype", "data", "len"]
WORDS = ["_class", "_format_version", "_names", "stack_dim", "_is_non_tensor", "index", "data", "dtype", "_source_"]


def nested() -> TensorDict:
    deep = {"obs": torch.ones(4, 3), "deep": {"done": torch.zeros(4) > 0}}
    return TensorDict({"obs": torch.arange(12.0).view(4, 3), "next": deep}, [4], names=["time"])


def of_all_dtypes() -> TensorDict:
    values = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (4, 3)))
    held = {dtype: values.to(getattr(torch, dtype)) for dtype in DTYPES}
    rows = {f"{dtype}_row": value[:, 0] for dtype, value in held.items()}
    return TensorDict({**held, **rows, **{f"{dtype}_none": value[:, :0] for dtype, value in held.items()}}, [4])


def non_tensors() -> TensorDict:
    return TensorDict(
        {
            "x": torch.zeros(2, 3),
            "text": NonTensorData("hi", batch_size=[2, 3]),
            "number": NonTensorData(3, batch_size=[2, 3]),
            "config": NonTensorData({"lr": [0.1, None]}, batch_size=[2, 3]),
            "rows": NonTensorStack(NonTensorStack("a", "b", "c"), NonTensorStack("d", "e", "f")),
            "counts": NonTensorStack(NonTensorStack(1, 2, 3), NonTensorStack(4, 5, 6)),
        },
        [2, 3],
    )


def step() -> Step:
    return Step(torch.arange(6.0).view(2, 3), "reach", batch_size=[2])


SAVED = {
    "nested ones and names": nested,
    "every dtype": of_all_dtypes,
    "scalars": lambda: TensorDict({"x": torch.tensor(3), "y": torch.tensor(1.5, dtype=torch.bfloat16)}, []),
    "no rows": lambda: TensorDict({"x": torch.zeros(0, 3), "n": {"y": torch.zeros(0)}}, [0]),
    "names that are escaped": lambda: TensorDict({name: torch.ones(2) * i for i, name in enumerate(ESCAPED)}, [2]),
    "words of the metadata as keys": lambda: TensorDict(
        {**{key: torch.arange(3) for key in WORDS}, "next": {key: torch.ones(3) for key in WORDS}}, [3]
    ),
    "non-tensor data": non_tensors,
    "stacks of lists": lambda: TensorDict({"x": torch.zeros(2), "rows": NonTensorStack(["a"], ["b"])}, [2]),
    "a lazy stack": lambda: lazy_stack([TensorDict({"x": torch.full((3,), i)}, [3]) for i in range(4)]),
    "a tensorclass": step,
    "a tensorclass in a tensordict": lambda: TensorDict({"x": torch.zeros(2), "step": step()}, [2]),
}


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize("name", SAVED)
def test_what_tensordict_saves(path, name, archive):
    td = SAVED[name]()
    td.memmap(path)
    loaded = Step.load_memmap(path) if isinstance(td, Step) else tensordict.load(path)
    if archive:
        path = tensordict.pack_memmap(path, path.with_suffix(".tdz"))
    found = in_both(path)
    assert_same_tensordict(loaded, found)
    assert_same_tensordict(as_saved(td), found)


@needs_0_15("forgets the names of what it maps")
def test_its_batch_variables_groups_and_classes(path, tmp_path):
    nested().memmap(path)
    with xr.open_dataset(str(path), engine="tensordict") as ds:
        assert ds.td.batch_dims == ("time",)
        assert list(ds) == ["obs", "next/obs", "next/deep/done"]
        assert not ds.attrs
    assert_same_tensordict(nested()["next"], in_both(path, group="next"))
    non_tensors().memmap(tmp_path / "objects")
    with xr.open_dataset(tmp_path / "objects", engine="tensordict") as ds:
        assert set(ds.coords) == {"text", "number", "config", "rows", "counts"}
        assert ds["rows"].dims == ds["x"].dims
        assert ds["rows"].values.tolist() == [["a", "b", "c"], ["d", "e", "f"]]
    TensorDict({"x": torch.zeros(2), "step": step()}, [2]).memmap(tmp_path / "outer")
    assert_same_tensordict(step(), in_both(tmp_path / "outer", group="step"))
    with xr.open_dataset(tmp_path / "outer", engine="tensordict", group="step") as ds:
        assert classes_of(ds)[()] == "memmap_samples.Step"


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(td=tensordicts())
def test_generated_tensordicts(td, tmp_path_factory):
    path = tmp_path_factory.mktemp("generated")
    td.memmap(path / "td")
    loaded = tensordict.load(path / "td")
    with warnings.catch_warnings():
        # two sizes of one dim name get a suffix, and a warning
        warnings.simplefilter("ignore", UserWarning)
        found = in_both(path / "td")
    if len(list(loaded.keys(include_nested=True, leaves_only=True))) and found.batch_size == loaded.batch_size:
        assert_same_tensordict(loaded, found)
    else:  # a Dataset without an array over the batch does not know its size
        assert not any(torch.is_tensor(value) for value in loaded.values(include_nested=True, leaves_only=True))


def test_dtypes_that_numpy_lacks_keep_every_bit(path):
    codes = {dtype: torch.arange(256, dtype=torch.uint8) for dtype in FLOAT8}
    codes["bfloat16"] = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    for dtype, held in codes.items():
        TensorDict({"x": held.view(getattr(torch, dtype))}, [len(held)]).memmap(path)
        with xr.open_dataset(path, engine="tensordict") as ds:
            assert ds["x"].dtype == np.float32
            assert ds["x"].encoding["torch_dtype"] == dtype
            mapped = ds.td.to_tensordict(copy=False)["x"]
        for found in (mapped, in_both(path)["x"]):
            assert found.dtype == getattr(torch, dtype)
            assert torch.equal(found.view(held.dtype), held)
        if dtype in FLOAT8:
            with pytest.raises(KeyError):
                tensordict.load(path)
        shutil.rmtree(path)


def test_names_as_older_versions_wrote_them(path):
    td = TensorDict({"air temp": torch.ones(2), "100%": {"a b": torch.zeros(2)}}, [2])
    td.memmap(path, robust_key=False)
    assert (path / "air temp.memmap").exists()
    assert_same_tensordict(td, in_both(path))


@pytest.mark.parametrize("key", ["a/b", "", "wind speed/10m", "..", "."])
def test_files_are_called_as_tensordict_calls_them(path, key):
    TensorDict({key: torch.ones(2)}, [2]).memmap(path)
    assert (path / f"{file_stem(key)}.memmap").is_file()


def ragged() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch says that the interface is a prototype
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.strided)


LEFT_OUT = {
    "names that no variable has": (
        lambda: {"a/b": torch.ones(2), "": torch.ones(2)},
        "'a/b': its key has a '/'.*its key is empty",
    ),
    "nested tensors": (lambda: {"r": ragged()}, "'r': it is a nested tensor"),
    "a view": (
        lambda: {"v": TensorDict({"x": torch.zeros(4)}, [4])._get_sub_tensordict(slice(2))},
        "'v': it is a view of another tensordict",
    ),
    **{
        key: (
            lambda key=key: {key: torch.ones(2), "next": {key: {"y": torch.ones(2)}}},
            rf"left out '{key}': meta.json has a use .* 'next/{key}': .*save it again",
        )
        for key in ("shape", "device", "_type")  # which tensordict loses
    },
}


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize("what", LEFT_OUT)
def test_what_cannot_be_shown_is_left_out_by_name(path, what, archive):
    make, why = LEFT_OUT[what]
    TensorDict({**make(), "x": torch.zeros(2)}, [2]).memmap(path)
    if archive:
        path = tensordict.pack_memmap(path, path.with_suffix(".tdz"))
    with pytest.warns(UserWarning, match=why):
        ds = xr.open_dataset(path, engine="tensordict")
    assert list(ds.variables) == ["x"]


def test_a_view_cannot_be_opened(path):
    TensorDict({"v": TensorDict({"x": torch.zeros(4)}, [4])._get_sub_tensordict(slice(2))}, [2]).memmap(path)
    with pytest.raises(ValueError, match="found a view of another tensordict"):
        xr.open_dataset(path / "v", engine="tensordict")


@pytest.mark.parametrize("archive", [False, True])
def test_every_row_of_a_stack_of_two_by_one_is_read(path, tmp_path, archive):
    if archive:
        path = tmp_path / "saved.tdz"
    rows = NonTensorStack(NonTensorStack("a"), NonTensorStack("b"))
    TensorDict({"x": torch.ones(2, 1), "s": rows}, [2, 1]).save(path)
    assert in_both(path).get("s").tolist() == [["a"], ["b"]]


def test_a_folder_that_is_nothing_and_a_group_that_is_not_there(path):
    path.mkdir()
    with pytest.raises(
        ValueError, match=r"expected a zarr store .* a memory-mapped tensordict \(.*, found a folder with"
    ):
        xr.open_dataset(path, engine="tensordict")
    nested().memmap(path)
    with pytest.raises(FileNotFoundError, match=r"group '/m' does not exist; the groups there are: \['/next'\]"):
        xr.open_dataset(path, engine="tensordict", group="m")


def test_what_other_parts_say_of_it(path):
    nested().memmap(path)
    with pytest.raises(ValueError, match="load_memmap"):
        xarray_tensordict.open_persistent(path, mode="r+")
    with pytest.raises(ValueError, match="memory-mapped tensordict"):
        xarray_tensordict.annotate(path)


# -- non-tensor data ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("archive", [False, True])
def test_non_tensor_data_of_older_versions(path, tmp_path, archive):
    td = TensorDict(
        {
            "x": torch.arange(2),
            "robot": "panda",
            "tags": NonTensorData(["a", "b", "c"], batch_size=[2]),
            "nested": {"y": torch.ones(2), "task": NonTensorData("lift", batch_size=[2])},
            "rows": NonTensorStack("a", "b"),
            "pickled": NonTensorData(frozenset({1}), batch_size=[2]),
            "members": lazy_stack([TensorDict({"z": torch.ones(1), "name": n}) for n in "ab"]),
        },
        [2],
    )
    td.memmap(path)
    for meta in path.rglob("meta.json"):
        content = json.loads(meta.read_text())
        new = ("_is_non_tensor", "_format_version", "_class")
        meta.write_text(json.dumps({key: value for key, value in content.items() if key not in new}))
    (path / "members" / "1" / "name" / "_tensordict").mkdir()
    (path / "members" / "1" / "name" / "_tensordict" / "meta.json").write_text('{"_type": "TensorDict", "shape": []}')
    if archive:
        path = tensordict.pack_memmap(path, tmp_path / "saved.tdz")
    with pytest.warns(UserWarning, match="'pickled': it is a pickled Python object"):
        found = in_both(path, mapped=False)
    assert_same_tensordict(td.exclude("pickled"), found)
    assert in_both(path, mapped=False, allow_pickle=True)["pickled"] == frozenset({1})


def test_a_pickle_elsewhere_is_not_followed(path, tmp_path):
    TensorDict({"x": torch.zeros(2), "bad": NonTensorStack(frozenset({1}), frozenset({2}))}, [2]).memmap(path)
    (tmp_path / "other.pkl").write_bytes(pickle.dumps([1, 2]))
    edit(path / "bad" / "meta.json", data="../../other.pkl")
    with pytest.warns(UserWarning, match=r"'bad'.*expected rows or 'pickle\.pkl'"):
        xr.open_dataset(path, engine="tensordict", allow_pickle=True)


def test_a_class_that_a_store_names_is_not_imported(path, tmp_path, monkeypatch):
    (tmp_path / "evil_module.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w').close()\nclass Evil: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    Step(torch.zeros(2, 3), "reach", batch_size=[2]).memmap(path)
    edit(path / "meta.json", _type="<class 'evil_module.Evil'>", _class="evil_module:Evil")
    with xr.open_dataset(path, engine="tensordict") as ds:
        assert ds["obs"].shape == (2, 3)
        assert classes_of(ds) == {(): "evil_module.Evil"}
    assert "evil_module" not in sys.modules
    assert not (tmp_path / "mark").exists()


# -- lazy stacks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("nested", [False, True])
def test_a_lazy_stack_of_equal_members(path, dim, nested):
    members = [
        TensorDict(
            {
                "x": torch.full((4, 2), float(i)),
                "b": torch.full((4,), i, dtype=torch.bfloat16),
                "n": {"y": torch.arange(4) + i},
                "name": NonTensorData(f"m{i}", batch_size=[4]),
                "same": NonTensorData("all", batch_size=[4]),
                "rows": NonTensorStack(*(f"{i}{j}" for j in range(4))),
            },
            [4],
            names=["time"],
        )
        for i in range(3)
    ]
    stack = LazyStackedTensorDict.lazy_stack(members, dim=dim)
    stack = TensorDict({"deep": stack}, stack.batch_size, names=stack.names) if nested else stack
    stack.memmap(path)
    loaded = tensordict.load(path)
    assert_same_tensordict(as_saved(stack), in_both(path, mapped=False))
    assert_same_tensordict(loaded, in_both(path, mapped=False))
    prefix = "deep/" if nested else ""
    with xr.open_dataset(path, engine="tensordict") as ds:
        x = ds[f"{prefix}x"]
        whole = x.values
        for key in [(1,), (slice(None), [2, 0]), (slice(1, 1),), ([0, 2], 1), (slice(None, None, -1), slice(1, None))]:
            lazy = xr.open_dataset(path, engine="tensordict")[f"{prefix}x"]
            np.testing.assert_array_equal(lazy[key], x.copy(data=whole)[key])
        assert ds[f"{prefix}same"].shape == ()


def test_members_that_differ_are_named_and_shown_as_groups(path):
    stack = lazy_stack(
        [TensorDict({"x": torch.ones(i + 2, 3) * i, "n": {"y": torch.ones(i + 2)}}, [i + 2]) for i in range(3)]
    )
    stack.memmap(path)
    with pytest.warns(
        UserWarning, match=r"lazy stack at '/' differ \('x' is float32 \[2, 3\] in member 0 and float32 \[3, 3\]"
    ):
        tree = xr.open_datatree(path, engine="tensordict")
    assert tree["1"]["x"].shape == (3, 3)
    whole = tree.td.concat("time")
    assert whole["n/y"].shape == (9,)
    assert whole["episode"].values.tolist() == [0] * 2 + [1] * 3 + [2] * 4
    assert_same_tensordict(stack[2], in_both(path, group="2"))


def test_only_the_part_of_a_stack_that_differs_is_not_stacked(path):
    lazy_stack([TensorDict({"x": torch.ones(3), "n": {"y": torch.ones(3, i + 1)}}, [3]) for i in range(2)]).memmap(path)
    with pytest.warns(UserWarning, match="at '/n' differ .'y' is"):
        ds = xr.open_dataset(path, engine="tensordict")
    assert ds["x"].shape == (2, 3)
    assert {"n/0/y", "n/1/y"} <= set(ds.variables)


def test_a_key_that_only_some_members_have(path):
    lazy_stack(
        [TensorDict({"x": torch.ones(3)}, [3]), TensorDict({"x": torch.ones(3), "z": torch.ones(3)}, [3])]
    ).memmap(path)
    with pytest.warns(UserWarning, match="'z' is absent in member 0 and float32"):
        xr.open_dataset(path, engine="tensordict")


# -- laziness ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def views(monkeypatch) -> list[tuple[str, int, int]]:
    """The parts of files that are read."""
    seen: list[tuple[str, int, int]] = []
    view = memmap_files.FileBytes.view

    def noted(self, start, stop):
        seen.append((Path(self.path).name, start, stop))
        return view(self, start, stop)

    def rows_noted(self, starts, out, kept=None):
        seen.append((Path(self.path).name, min(starts), max(starts) + out.shape[1]))
        return rows(self, starts, out, kept)

    rows = memmap_files.FileBytes.rows
    monkeypatch.setattr(memmap_files.FileBytes, "view", noted)
    monkeypatch.setattr(memmap_files.FileBytes, "rows", rows_noted)
    return seen


def test_opening_reads_metadata_alone(path, monkeypatch):
    TensorDict({"n": {f"x{i}": torch.full((3,), i) for i in range(100)}}, [3]).memmap(path)
    read = []
    original = memmap_files.read_small
    monkeypatch.setattr(memmap_files, "read_small", lambda file: read.append(file) or original(file))
    monkeypatch.setattr(memmap_files.FileBytes, "opened", None)
    with xr.open_dataset(path, engine="tensordict") as ds:
        assert len(ds) == 100
        assert "batch_0: 3" in repr(ds.td)
    assert read == [path / "meta.json", path / "n" / "meta.json"]


def test_a_selection_reads_its_rows(path, views):
    TensorDict({"x": torch.arange(40.0).view(10, 4), "y": torch.zeros(10)}, [10]).memmap(path)
    ds = xr.open_dataset(path, engine="tensordict", cache=False)
    whole = np.arange(40.0, dtype="f4").reshape(10, 4)
    cases = [
        (3, 48, 64),
        (slice(2, 4), 32, 64),
        (slice(8, 1, -3), 32, 144),
        ([7, 3], 48, 128),
        (-1, 144, 160),
        (np.array([], int), None, None),
        ((slice(None), [1, 3]), 0, 160),
        ((slice(1, 9, 3), 2), 16, 128),
    ]
    for key, start, stop in cases:
        views.clear()
        np.testing.assert_array_equal(ds["x"][key], whole[key])
        assert views == ([] if start is None else [("x.memmap", start, stop)]), key
    points = xr.DataArray([5, 2, 5], dims="points")
    views.clear()
    np.testing.assert_array_equal(ds["x"].isel(batch_0=points, dim_4=points % 4), whole[[5, 2, 5], [1, 2, 1]])
    assert views == [("x.memmap", 32, 96)]


@pytest.mark.parametrize("dtype", ["bfloat16", "complex32"])
def test_a_selection_of_widened_values(path, views, dtype):
    whole = torch.arange(40).view(10, 4).to(getattr(torch, dtype))
    TensorDict({"x": whole}, [10]).memmap(path)
    ds = xr.open_dataset(path, engine="tensordict", cache=False)
    for key in [3, slice(2, 4), [7, 3], (slice(None), [1, 3]), ([5, 2], 1), (3, 1)]:
        np.testing.assert_array_equal(ds["x"][key], np.arange(40).reshape(10, 4)[key])
    points = xr.DataArray([5, 2, 5], dims="points")
    np.testing.assert_array_equal(ds["x"].isel(batch_0=points, dim_4=points % 4), [21, 10, 21])
    assert views[0] == ("x.memmap", 3 * 4 * whole.itemsize, 4 * 4 * whole.itemsize)


def test_get_at_reads_its_rows(path, views):
    TensorDict({"x": torch.arange(40.0).view(10, 4)}, [10]).memmap(path)
    ptd = xarray_tensordict.open_persistent(path)
    views.clear()
    assert ptd.get_at("x", 3).tolist() == [12, 13, 14, 15]
    assert ptd[[5, 1]]["x"][:, 0].tolist() == [20, 4]
    assert views == [("x.memmap", 16, 96)]  # one row by itself is copied from the map of the whole file, which is kept


def test_without_a_copy_tensors_lie_over_private_maps(path, monkeypatch):
    TensorDict({"x": torch.arange(40.0).view(10, 4), "b": torch.ones(10, dtype=torch.bfloat16)}, [10]).memmap(path)
    ds = xr.open_dataset(path, engine="tensordict")
    monkeypatch.setattr(raw_arrays.RawArray, "__getitem__", None)
    monkeypatch.setattr(memmap_files.FileBytes, "view", None)
    td = ds.isel(batch_0=slice(2, 8, 2)).td.to_tensordict(copy=False)
    assert td["x"][:, 0].tolist() == [8, 16, 24]
    assert td["b"].dtype == torch.bfloat16
    td["x"].fill_(-1)
    td["b"].zero_()
    again = ds.td.to_tensordict(copy=False)
    assert again["x"][2, 0] == 8
    assert again["b"].all()
    assert tensordict.load(path)["x"][2, 0] == 8


def test_a_loaded_dataset_can_be_saved_over_its_store(path):
    TensorDict({"x": torch.arange(10.0)}, [10]).memmap(path)
    ds = xr.load_dataset(path, engine="tensordict")
    for file in path.iterdir():
        file.unlink()
    path.rmdir()
    ds.td.to_zarr(path)
    assert ds["x"].values.sum() == 45
    assert in_both(path)["x"].sum() == 45


# -- checkpoints of replay buffers -------------------------------------------------------------------------------------

STORAGES = pytest.mark.parametrize("storage", ["LazyMemmapStorage", "LazyTensorStorage"])


@pytest.fixture
def buffers() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations of tensordict in torchrl
        import torchrl.data

        return torchrl.data


@pytest.fixture
def dumped(path, buffers) -> Any:
    """Fills a replay buffer and dumps it."""

    def dump(storage: str, size: int, *parts: Any, **options: Any) -> Path:
        kind = buffers.TensorDictReplayBuffer if isinstance(parts[0], TensorDict) else buffers.ReplayBuffer
        checkpointer = options.pop("checkpointer", None)
        rb = kind(storage=getattr(buffers, storage)(size, **options), batch_size=2)
        if checkpointer is not None:
            rb.storage.checkpointer = checkpointer
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for part in parts:
                rb.extend(part)
            rb.dumps(path)
        return path

    return dump


def transitions(start: int, stop: int) -> TensorDict:
    count = stop - start
    return TensorDict(
        {
            "obs": torch.arange(start * 3.0, stop * 3.0).view(count, 3),
            "next": {"obs": torch.ones(count, 3), "done": torch.zeros(count, 1) > 0},
            "task": NonTensorStack(*(f"t{i}" for i in range(start, stop))),
        },
        [count],
    )


@STORAGES
@pytest.mark.parametrize(("times", "first", "rows"), [(1, 0, 3), (2, 1, 5), (3, 4, 5)])
def test_a_checkpoint_has_the_rows_that_were_filled_from_the_oldest_on(dumped, storage, times, first, rows):
    path = dumped(storage, 5, *(transitions(start, start + 3) for start in range(0, 3 * times, 3)))
    whole = tensordict.load(path / "storage")
    expected = torch.cat([whole[first:rows], whole[:first]])
    for store in (path, path / "storage"):
        assert_same_tensordict(expected, in_both(store))
        assert_same_tensordict(whole, in_both(store, filled=False))
    if not (IS_0_14 and storage == "LazyMemmapStorage"):  # it gives all rows the text of the first
        assert in_both(path).get("task").tolist() == [f"t{i}" for i in range(3 * times)][-rows:]
    assert_same_tensordict(expected["next"], in_both(path, group="next"))


@STORAGES
@pytest.mark.parametrize(("times", "rows"), [(1, 6), (2, 10)])
def test_a_storage_of_two_dims_counts_elements(dumped, storage, times, rows):
    parts = [TensorDict({"obs": torch.arange(12 * i, 12 * i + 12).view(2, 6)}, [2, 6]) for i in range(times)]
    path = dumped(storage, 20, *parts, ndim=2)
    found, whole = in_both(path), tensordict.load(path / "storage")
    assert whole.batch_size == (10, 2)
    # with twelve rows in ten, the oldest two were written over
    assert_same_tensordict(torch.cat([whole[2:rows], whole[:2]]) if times == 2 else whole[:rows], found)
    assert_same_tensordict(whole, in_both(path, filled=False))


def test_rows_of_a_wrapped_buffer_are_read_as_numpy_would(dumped):
    parts = [TensorDict({"step": torch.arange(i, i + 5), "x": torch.rand(5, 2)}, [5]) for i in (0, 5)]
    path = dumped("LazyMemmapStorage", 7, *parts)
    whole = xr.open_dataset(path, engine="tensordict").load()
    ds = xr.open_dataset(path, engine="tensordict", cache=False)
    assert whole["step"].values.tolist() == [3, 4, 5, 6, 7, 8, 9]
    (dim,) = whole["step"].dims
    mask = np.array([True, False] * 3 + [True])
    for rows in (0, -1, slice(2, 6), slice(None, None, -2), slice(3, 3), [5, 0, 5], mask):
        xr.testing.assert_identical(ds.isel({dim: rows}).load(), whole.isel({dim: rows}))


@pytest.mark.parametrize(("length", "cursor", "shown"), [(6, 0, [0, 1]), (12, 1, [1, 2, 3, 0])])
@pytest.mark.filterwarnings("ignore:.*the members of the lazy stack:UserWarning")
def test_members_that_are_the_rows_of_a_buffer_are_shown_as_rows_are(path, length, cursor, shown):
    members = lazy_stack([TensorDict({"x": torch.full((3, i + 1), i)}, [3]) for i in range(4)])
    TensorDict({"y": torch.arange(4)[:, None].expand(4, 3), "n": members}, [4, 3]).memmap(path / "storage")
    (path / "storage" / "storage_metadata.json").write_text(json.dumps({"len": length}))
    (path / "writer").mkdir()
    (path / "writer" / "metadata.json").write_text(json.dumps({"cursor": cursor}))
    tree = xr.open_datatree(path, engine="tensordict")
    assert tree["y"].values[:, 0].tolist() == shown
    assert [tree[f"n/{row}/x"].values.max() for row in range(len(shown))] == shown
    assert len(tree["n"].children) == len(shown)


def test_a_cursor_that_does_not_fit_the_rows_is_refused(dumped):
    parts = [TensorDict({"step": torch.arange(start, stop)}, [stop - start]) for start, stop in ((0, 5), (5, 7))]
    path = dumped("LazyMemmapStorage", 5, *parts)
    (path / "writer" / "metadata.json").write_text('{"cursor": 9}')
    with pytest.warns(xarray_tensordict.IncompleteStoreWarning, match="would write row 9 next, and there are 5"):
        ds = xr.open_dataset(path, engine="tensordict")
    assert ds["step"].values.tolist() == [5, 6, 2, 3, 4]


def test_a_compact_checkpoint_is_shown_as_it_is_stored_and_says_so(dumped, buffers):
    from torchrl.data.replay_buffers.checkpointers import FlatStorageCheckpointer

    done = torch.tensor([0, 0, 1, 0, 0, 1]).bool().view(6, 1)
    td = TensorDict({"obs": torch.arange(6.0).view(6, 1), "done": torch.zeros_like(done)}, [6])
    td["collector", "traj_ids"] = torch.zeros(6, dtype=torch.int)
    td["next"] = {"obs": td["obs"] + 1, "done": done, "terminated": done, "truncated": done, "reward": done.float()}
    path = dumped("LazyMemmapStorage", 20, td, checkpointer=FlatStorageCheckpointer())
    with pytest.warns(UserWarning, match=r"compact form of torchrl's own .* not trimmed to its 6 elements"):
        ds = xr.open_dataset(path, engine="tensordict")
    assert {"obs", "done", "reward"} <= set(ds)
    # what it advises
    rb = buffers.TensorDictReplayBuffer(storage=buffers.LazyMemmapStorage(20))
    default, rb.storage.checkpointer = rb.storage.checkpointer, FlatStorageCheckpointer()
    rb.loads(path)
    rb.storage.checkpointer = default
    rb.dumps(path.parent / "again")
    assert xr.open_dataset(path.parent / "again", engine="tensordict").td.batch_size == (6,)


def test_how_many_rows_with_a_batch_of_their_own_are_filled_is_asked_of_the_writer(dumped):
    path = dumped("LazyTensorStorage", 10, TensorDict({"obs": torch.ones(4, 7, 2)}, [4, 7]))
    assert_same_tensordict(tensordict.load(path / "storage")[:4], in_both(path))
    (path / "writer" / "metadata.json").unlink()
    with pytest.warns(UserWarning, match=r"4 elements of batch size \[10, 7\].*filled=False for all 10"):
        ds = xr.open_dataset(path, engine="tensordict")
    assert ds["obs"].shape == (4, 7, 2)
    assert xr.open_dataset(path, engine="tensordict", filled=False)["obs"].shape == (10, 7, 2)


def test_a_checkpoint_without_a_tensordict(dumped):
    path = dumped(
        "LazyTensorStorage", 10, {"a": torch.arange(4.0), "b": {"c": torch.ones(4, 2)}, "t": (torch.ones(4),)}
    )
    found = in_both(path)
    assert found.batch_size == (4,)
    assert set(found.keys(include_nested=True, leaves_only=True)) == {"a", ("b", "c"), ("t", "0")}
    assert found["a"].tolist() == [0, 1, 2, 3]
    assert in_both(path, filled=False)["b", "c"].shape == (10, 2)


def test_a_checkpoint_of_one_tensor_is_named_after_the_folder(dumped):
    path = dumped("LazyTensorStorage", 10, torch.arange(12.0).view(4, 3))
    assert in_both(path / "storage")["saved"].sum() == 66


def test_a_checkpoint_in_an_hdf5_file_is_named(path):
    (path / "storage").mkdir(parents=True)
    (path / "storage" / "checkpoint.h5").touch()
    with pytest.raises(ValueError, match=r"checkpoint\.h5"):
        xr.open_dataset(path, engine="tensordict")
