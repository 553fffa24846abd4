"""Memory-mapped tensordicts and checkpoints of replay buffers, through both doors."""

import json
import multiprocessing
import pickle
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensordict
import torch
import xarray as xr
from hypothesis import HealthCheck, given, settings
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict, lazy_stack, tensorclass

import xarray_tensordict
from memmap_samples import both_doors
from strategies import tensordicts
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


@tensorclass
class Step:
    obs: torch.Tensor
    task: str


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "saved"


# -- what tensordict saves ---------------------------------------------------------------------------------------------


def test_a_tensordict_with_nested_ones_and_names(path):
    td = TensorDict(
        {"obs": torch.arange(12.0).view(4, 3), "next": {"obs": torch.ones(4, 3), "deep": {"done": torch.zeros(4) > 0}}},
        batch_size=[4],
        names=["time"],
    )
    td.memmap(path)
    assert_same_tensordict(td, both_doors(path))
    assert_same_tensordict(tensordict.load(path), both_doors(str(path)))
    with xr.open_dataset(path, engine="tensordict") as ds:
        assert ds.td.batch_dims == ("time",)
        assert list(ds) == ["obs", "next/obs", "next/deep/done"]
        assert not ds.attrs
    assert_same_tensordict(td["next"], both_doors(path, group="next"))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(td=tensordicts())
def test_generated_tensordicts(td, tmp_path_factory):
    path = tmp_path_factory.mktemp("generated")
    td.memmap(path / "td")
    loaded = tensordict.load(path / "td")
    with warnings.catch_warnings():
        # two sizes of one dim name get a suffix, and a warning
        warnings.simplefilter("ignore", UserWarning)
        found = both_doors(path / "td")
    if len(list(loaded.keys(include_nested=True, leaves_only=True))) and found.batch_size == loaded.batch_size:
        assert_same_tensordict(loaded, found)
    else:  # a Dataset without an array over the batch does not know its size
        assert not any(torch.is_tensor(value) for value in loaded.values(include_nested=True, leaves_only=True))


@pytest.mark.parametrize(
    "dtype",
    "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 float32 float64 complex64 complex128 bfloat16 "
    "complex32".split(),
)
@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 0)])
def test_every_dtype(path, dtype, shape):
    values = torch.from_numpy(np.random.default_rng(0).integers(0, 2, shape)).to(getattr(torch, dtype))
    TensorDict({"x": values}, [4]).memmap(path)
    assert_same_tensordict(tensordict.load(path), both_doors(path))


@pytest.mark.parametrize(
    "dtype", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
)
def test_float8_which_tensordict_writes_and_cannot_load(path, dtype):
    every = torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype))
    TensorDict({"x": every}, [256]).memmap(path)
    with pytest.raises(KeyError):
        tensordict.load(path)
    found = both_doors(path)["x"]
    assert found.dtype == every.dtype
    assert torch.equal(found.float().nan_to_num(7), every.float().nan_to_num(7))
    with xr.open_dataset(path, engine="tensordict") as ds:
        assert ds["x"].dtype == np.float32
        assert ds["x"].encoding["torch_dtype"] == dtype


def test_bfloat16_keeps_every_bit(path):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)
    TensorDict({"x": every}, [2**16]).memmap(path)
    with xr.open_dataset(path, engine="tensordict") as ds:
        assert ds["x"].dtype == np.float32
        mapped = ds.td.to_tensordict(copy=False)["x"]
    assert torch.equal(mapped.view(torch.int16), every.view(torch.int16))
    assert_same_tensordict(tensordict.load(path), both_doors(path))


def test_scalars_and_empty_batches(path, tmp_path):
    TensorDict({"x": torch.tensor(3), "y": torch.tensor(1.5, dtype=torch.bfloat16)}, []).memmap(path)
    assert_same_tensordict(tensordict.load(path), both_doors(path))
    TensorDict({"x": torch.zeros(0, 3), "n": {"y": torch.zeros(0)}}, [0]).memmap(tmp_path / "none")
    assert not list((tmp_path / "none").glob("*.memmap"))
    assert_same_tensordict(tensordict.load(tmp_path / "none"), both_doors(tmp_path / "none"))


def test_names_that_are_escaped_in_files(path):
    names = [
        "air temp",
        "..",
        ".",
        "100%",
        "a:b",
        "x*?",
        "størrelse",
        "tab\t",
        "_names",
        "type",
        "dtype",
        "data",
        "len",
    ]
    TensorDict({name: torch.full((2,), float(i)) for i, name in enumerate(names)}, [2]).memmap(path)
    assert (path / "air%20temp.memmap").exists()
    assert_same_tensordict(tensordict.load(path), both_doors(path))


def test_names_as_older_versions_wrote_them(path):
    td = TensorDict({"air temp": torch.ones(2), "100%": {"a b": torch.zeros(2)}}, [2])
    td.memmap(path, robust_key=False)
    assert (path / "air temp.memmap").exists()
    assert_same_tensordict(td, both_doors(path))


@pytest.mark.parametrize("key", ["a/b", "", "wind speed/10m", "..", "."])
def test_files_are_called_as_tensordict_calls_them(path, key):
    TensorDict({key: torch.ones(2)}, [2]).memmap(path)
    assert (path / f"{file_stem(key)}.memmap").is_file()


def test_keys_that_no_variable_can_have_are_named(path):
    TensorDict({"a/b": torch.ones(2), "": torch.ones(2), "x": torch.zeros(2)}, [2]).memmap(path)
    with pytest.warns(UserWarning, match="'a/b': its key has a '/'.*its key is empty"):
        ds = xr.open_dataset(path, engine="tensordict")
    assert list(ds) == ["x"]


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
            "pickled": NonTensorData({1}, batch_size=[2]),
            "members": lazy_stack([TensorDict({"z": torch.ones(1), "name": n}) for n in "ab"]),
        },
        [2],
    )
    td.memmap(path)
    for meta in path.rglob("meta.json"):
        content = json.loads(meta.read_text())
        for key in ("_is_non_tensor", "_format_version", "_class"):
            content.pop(key, None)
        meta.write_text(json.dumps(content))
    (path / "members" / "1" / "name" / "_tensordict").mkdir()
    (path / "members" / "1" / "name" / "_tensordict" / "meta.json").write_text('{"_type": "TensorDict", "shape": []}')
    if archive:
        path = tensordict.pack_memmap(path, tmp_path / "saved.tdz")
    with pytest.warns(UserWarning, match="'pickled': it is a pickled Python object"):
        found = both_doors(path, mapped=False)
    assert_same_tensordict(td.exclude("pickled"), found)
    assert both_doors(path, mapped=False, allow_pickle=True)["pickled"] == {1}


def test_an_entry_of_an_unknown_kind_is_left_out_by_name(path):
    TensorDict({"x": torch.zeros(2), "odd": NonTensorData("?", batch_size=[2])}, [2]).memmap(path)
    (path / "odd" / "meta.json").write_text('{"_type": "<class \'other.Thing\'>", "value": 3}')
    with pytest.warns(UserWarning, match=r"'odd': it cannot be read: .*does not know \(other\.Thing\)"):
        ds = xr.open_dataset(path, engine="tensordict")
    assert list(ds.variables) == ["x"]


def test_folders_that_link_to_one_above_them_end(path):
    TensorDict({"x": torch.zeros(2), "n": {"y": torch.zeros(2)}}, [2]).memmap(path)
    for file in (path / "n").iterdir():
        file.unlink()
    (path / "n").rmdir()
    (path / "n").symlink_to(path)
    with pytest.warns(UserWarning, match="'n': it cannot be read: .*saved/n: it links to a folder above it"):
        xr.open_dataset(path, engine="tensordict").close()


def test_non_tensor_data_and_stacks(path):
    td = TensorDict(
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
    td.memmap(path)
    assert_same_tensordict(tensordict.load(path), both_doors(path))
    with xr.open_dataset(path, engine="tensordict") as ds:
        assert set(ds.coords) == {"text", "number", "config", "rows", "counts"}
        assert ds["rows"].dims == ds["x"].dims
        assert ds["rows"].values.tolist() == [["a", "b", "c"], ["d", "e", "f"]]


def test_stacks_of_lists(path):
    TensorDict({"x": torch.zeros(2), "rows": NonTensorStack(["a"], ["b"])}, [2]).memmap(path)
    assert_same_tensordict(tensordict.load(path), both_doors(path))


class Payload:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("kind", ["data", "stack", "tensorclass", "archive"])
def test_a_pickle_is_not_loaded_unless_asked_for(path, tmp_path, kind):
    mark = tmp_path / "mark"
    payload = pickle.dumps({"data": Payload(mark), "secret": 1})
    if kind == "stack":
        TensorDict({"x": torch.zeros(2), "bad": NonTensorStack({1}, {2})}, [2]).memmap(path)
        (path / "bad" / "pickle.pkl").write_bytes(pickle.dumps([Payload(mark), 2]))
    elif kind == "tensorclass":
        TensorDict({"x": torch.zeros(2), "bad": Step(torch.zeros(2), "t", batch_size=[2])}, [2]).memmap(path)
        (path / "bad" / "other.pickle").write_bytes(payload)
    else:
        TensorDict({"x": torch.zeros(2), "bad": NonTensorData({1}, batch_size=[2])}, [2]).memmap(path)
        (path / "bad" / "other.pickle").write_bytes(payload)
        if kind == "archive":
            path = tensordict.pack_memmap(path, tmp_path / "saved.tdz")
    with pytest.warns(UserWarning, match="'bad.*pickled.*allow_pickle=True") as caught:
        ds = xr.open_dataset(path, engine="tensordict")
    ds.load()
    assert len(caught) == 1
    assert "x" in ds
    with pytest.warns(UserWarning, match="'bad"):
        xarray_tensordict.open_persistent(path).to_tensordict()
    assert not mark.exists()
    xr.open_dataset(path, engine="tensordict", allow_pickle=True)
    assert mark.exists()


def test_a_value_that_was_pickled(path):
    TensorDict({"x": torch.zeros(2), "s": NonTensorData({1, 2}, batch_size=[2])}, [2]).memmap(path)
    with xr.open_dataset(path, engine="tensordict", allow_pickle=True) as ds:
        assert ds["s"].item() == {1, 2}


def test_a_pickle_elsewhere_is_not_followed(path, tmp_path):
    TensorDict({"x": torch.zeros(2), "bad": NonTensorStack({1}, {2})}, [2]).memmap(path)
    (tmp_path / "other.pkl").write_bytes(pickle.dumps([1, 2]))
    edit(path / "bad" / "meta.json", data="../../other.pkl")
    with pytest.warns(UserWarning, match=r"'bad'.*expected rows or 'pickle\.pkl'"):
        xr.open_dataset(path, engine="tensordict", allow_pickle=True)


# -- tensorclasses -----------------------------------------------------------------------------------------------------


def test_tensorclasses(path, tmp_path):
    step = Step(torch.arange(6.0).view(2, 3), "reach", batch_size=[2])
    step.memmap(path)
    assert_same_tensordict(Step.load_memmap(path), both_doors(path))
    with xr.open_dataset(path, engine="tensordict") as ds:
        assert classes_of(ds)[()] == f"{__name__}.Step"
    TensorDict({"x": torch.zeros(2), "step": step}, [2]).memmap(tmp_path / "outer")
    assert_same_tensordict(tensordict.load(tmp_path / "outer"), both_doors(tmp_path / "outer"))
    assert_same_tensordict(step, both_doors(tmp_path / "outer", group="step"))


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
    assert_same_tensordict(stack, both_doors(path, mapped=False))
    assert_same_tensordict(loaded, both_doors(path, mapped=False))
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
    assert_same_tensordict(stack[2], both_doors(path, group="2"))


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


def test_nested_tensors_are_left_out_by_name(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch says that the interface is a prototype
        ragged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.strided)
    TensorDict({"x": torch.zeros(2), "r": ragged}, [2]).memmap(path)
    with pytest.warns(UserWarning, match="'r': it is a nested tensor"):
        ds = xr.open_dataset(path, engine="tensordict")
    assert list(ds) == ["x"]


def test_a_view_of_another_tensordict_is_named(path):
    source = TensorDict({"x": torch.zeros(4)}, [4])
    TensorDict({"y": torch.ones(2), "v": source._get_sub_tensordict(slice(2))}, [2]).memmap(path)
    with pytest.warns(UserWarning, match="'v': it is a view of another tensordict"):
        ds = xr.open_dataset(path, engine="tensordict")
    assert list(ds) == ["y"]
    with pytest.raises(ValueError, match="found a view of another tensordict"):
        xr.open_dataset(path / "v", engine="tensordict")


# -- damage ------------------------------------------------------------------------------------------------------------


def test_a_file_that_is_too_short_is_named(path):
    TensorDict({"x": torch.zeros(1000, 3), "y": torch.ones(1000)}, [1000]).memmap(path)
    with (path / "x.memmap").open("r+b") as file:
        file.truncate(100)
    with pytest.warns(
        UserWarning,
        match=r"'x': its file x.memmap has 100 bytes, .* holds float32 \[1000, 3\], which is 12000 bytes; it was truncated",
    ):
        found = both_doors(path)
    assert list(found.keys()) == ["y"]
    assert found["y"].all()


def test_a_file_that_becomes_shorter_after_opening(path):
    TensorDict({"x": torch.zeros(1000, 3)}, [1000]).memmap(path)
    with xr.open_dataset(path, engine="tensordict") as ds:
        assert ds["x"][:2].values.shape == (2, 3)
        with (path / "x.memmap").open("r+b") as file:
            file.truncate(0)
        with pytest.raises(ValueError, match=r"x\.memmap"):
            ds["x"][2:].values  # noqa: B018


def test_a_file_that_is_missing_is_named(path):
    TensorDict({"x": torch.zeros(3), "y": torch.ones(3), "n": {"z": torch.ones(3)}}, [3]).memmap(path)
    (path / "x.memmap").unlink()
    (path / "n" / "meta.json").unlink()
    with pytest.warns(UserWarning, match="'x': its file x.memmap is missing; 'n': its folder n has no meta.json"):
        ds = xr.open_dataset(path, engine="tensordict")
    assert list(ds) == ["y"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": {"dtype": "torch.qint8", "shape": [3]}}, "dtype torch.qint8 has no twin"),
        (
            {"x": {"dtype": "torch.float32", "shape": [-3]}},
            r"its metadata are malformed: Expected `int` >= 0 - at `\$\.shape\[0\]`",
        ),
        ({"x": {"dtype": "__import__('os')", "shape": [3]}}, "no twin"),
    ],
)
def test_an_entry_that_cannot_be_is_left_out(path, changes, message):
    TensorDict({"x": torch.zeros(3), "y": torch.ones(3)}, [3]).memmap(path)
    edit(path / "meta.json", **changes)
    with pytest.warns(UserWarning, match=message):
        assert list(xr.open_dataset(path, engine="tensordict")) == ["y"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"meta\.json: not JSON"),
        ("[" * 100_000, r"meta\.json: nested too deeply"),
        ("[1]", r"meta\.json: Expected `object`, got `array`"),
        ('{"version": 1}', "it is not the metadata of a tensordict: Object missing required field `_type`"),
        (
            '{"_type": 3}',
            r"meta\.json: it is not the metadata of a tensordict: Expected `str`, got `int` - at `\$\._type`",
        ),
        ('{"_type": "x", "shape": [true]}', r"Expected `int`, got `bool` - at `\$\.shape\[0\]`"),
        ('{"_type": "x", "shape": [], "_names": [1]}', r"Expected `str \| null`, got `int` - at `\$\._names\[0\]`"),
        (
            '{"_type": "x", "shape": [3, 2], "_names": ["t"]}',
            r"it has 2 batch sizes \(\[3, 2\]\) and 1 names \(\['t'\]\)",
        ),
        ('{"_type": "x", "stack_dim": "0"}', r"Expected `int \| null`, got `str` - at `\$\.stack_dim`"),
        ('{"_type": "x", "shape": [], "_format_version": "1"}', r"Expected `int`, got `str`"),
        ('{"_type": "x", "shape": [], "_format_version": 9}', "format version 9, expected at most 1"),
    ],
)
def test_metadata_that_is_not_of_tensordict(path, text, message):
    path.mkdir()
    (path / "meta.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        xr.open_dataset(path, engine="tensordict")


def test_a_folder_that_is_nothing(path):
    path.mkdir()
    with pytest.raises(
        ValueError, match=r"expected a zarr store .* a memory-mapped tensordict \(.*, found a folder with nothing"
    ):
        xr.open_dataset(path, engine="tensordict")
    TensorDict({"x": torch.zeros(3), "n": {"y": torch.zeros(3)}}, [3]).memmap(path)
    with pytest.raises(FileNotFoundError, match=r"group '/m' does not exist; the groups there are: \['/n'\]"):
        xr.open_dataset(path, engine="tensordict", group="m")


def test_what_other_parts_say_of_it(path):
    TensorDict({"x": torch.zeros(3)}, [3]).memmap(path)
    with pytest.raises(ValueError, match="load_memmap"):
        xarray_tensordict.open_persistent(path, mode="r+")
    with pytest.raises(ValueError, match="memory-mapped tensordict"):
        xarray_tensordict.annotate(path)


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
    TensorDict({"n": {f"x{i}": torch.full((3,), i) for i in range(1000)}}, [3]).memmap(path)
    read = []
    original = memmap_files.read_small
    monkeypatch.setattr(memmap_files, "read_small", lambda file: read.append(file) or original(file))
    monkeypatch.setattr(memmap_files.FileBytes, "opened", None)
    with xr.open_dataset(path, engine="tensordict") as ds:
        assert len(ds) == 1000
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


def test_large_rows_are_read_one_by_one(path, monkeypatch):
    whole = torch.arange(10 * 5000).view(10, 50, 100)
    TensorDict({"x": whole}, [10]).memmap(path)
    monkeypatch.setattr(memmap_files.FileBytes, "view", None)
    ds = xr.open_dataset(path, engine="tensordict", cache=False)
    for key in [3, -1, slice(2, 4), slice(8, 1, -3), slice(5, 5), [7, 3, 7, -1], [], 0, slice(None)]:
        found = ds["x"][key].values
        np.testing.assert_array_equal(found, whole.numpy()[key if key != [] else slice(0)])
        found[...] = 0
    with pytest.raises(IndexError):
        ds["x"][[10]].values  # noqa: B018


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
    assert views == [("x.memmap", 48, 64), ("x.memmap", 16, 96)]


def test_what_is_read_is_the_caller_s_own(path):
    TensorDict({"x": torch.zeros(10, 4)}, [10]).memmap(path)
    ds = xr.open_dataset(path, engine="tensordict", cache=False)
    for values in (ds["x"].values, ds["x"][2:5].values, ds["x"][:, 1].values, ds["x"][[3, 1]].values):
        assert values.flags.writeable
        values[:] = 7
    assert not ds["x"].values.any()
    ptd = xarray_tensordict.open_persistent(path)
    ptd["x"].fill_(7)
    ptd.get_at("x", slice(3)).fill_(7)
    assert not ptd["x"].any()
    assert not tensordict.load(path)["x"].any()


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
    assert both_doors(path)["x"].sum() == 45


def test_lazy_arrays_pickle_small(path):
    TensorDict({"x": torch.zeros(10**6), "b": torch.zeros(10**6, dtype=torch.bfloat16)}, [10**6]).memmap(path)
    pickled = pickle.dumps(xr.open_dataset(path, engine="tensordict"))
    assert len(pickled) < 10_000
    assert pickle.loads(pickled)["x"].shape == (10**6,)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers(path, method):
    TensorDict({"x": torch.arange(10.0), "b": torch.ones(10, dtype=torch.bfloat16)}, [10]).memmap(path)
    ds = xr.open_dataset(path, engine="tensordict")
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(getattr, (ds["x"][3:5], "values")).tolist() == [3, 4]
        assert pool.apply(getattr, (ds["b"][3:5], "values")).tolist() == [1, 1]


def test_threads(path):
    TensorDict({"x": torch.arange(1000).view(-1, 1).expand(1000, 50)}, [1000]).memmap(path)
    ds = xr.open_dataset(path, engine="tensordict", cache=False)
    with ThreadPoolExecutor(8) as threads:
        rows = list(threads.map(lambda i: ds["x"][i : i + 2, 7].values.tolist(), range(900)))
    assert rows == [[i, i + 1] for i in range(900)]


def test_dask_chunks(path):
    TensorDict({"x": torch.arange(40.0).view(10, 4)}, [10]).memmap(path)
    with xr.open_dataset(path, engine="tensordict", chunks={"batch_0": 3}) as ds:
        assert ds["x"].chunks[0] == (3, 3, 3, 1)
        assert float(ds["x"].sum()) == 780


# -- what tensordict loses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize("key", ["shape", "device", "_type"])
def test_keys_that_tensordict_loses_are_named(path, tmp_path, key, archive):
    if archive:
        path = tmp_path / "saved.tdz"
    td = TensorDict({key: torch.ones(3), "next": {key: {"y": torch.ones(3)}}, "x": torch.zeros(3)}, [3])
    td.save(path)
    assert key not in list(tensordict.load(path).keys())
    with pytest.warns(UserWarning, match=rf"left out '{key}': meta.json has a use .* 'next/{key}': .*save it again"):
        ds = xr.open_dataset(path, engine="tensordict")
    assert list(ds.variables) == ["x"]


@pytest.mark.parametrize(
    "key", ["_class", "_format_version", "_names", "stack_dim", "_is_non_tensor", "index", "data", "dtype", "_source_"]
)
def test_other_words_of_the_metadata_are_keys_like_any(path, key):
    td = TensorDict({key: torch.arange(3), "next": {key: torch.ones(3)}, "x": torch.zeros(3)}, [3])
    td.memmap(path)
    assert_same_tensordict(tensordict.load(path), both_doors(path))
    assert_same_tensordict(td, both_doors(path))


@pytest.mark.parametrize("archive", [False, True])
def test_every_row_of_a_stack_of_two_by_one_is_read(path, tmp_path, archive):
    if archive:
        path = tmp_path / "saved.tdz"
    rows = NonTensorStack(NonTensorStack("a"), NonTensorStack("b"))
    TensorDict({"x": torch.ones(2, 1), "s": rows}, [2, 1]).save(path)
    assert both_doors(path)["s"].tolist() == [["a"], ["b"]]


# -- checkpoints of replay buffers -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def buffers() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations of tensordict in torchrl
        import torchrl.data

        return torchrl.data


def dump(buffer: Any, path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        buffer.dumps(path)
    return path


def transitions(count: int) -> TensorDict:
    return TensorDict(
        {
            "obs": torch.arange(count * 3.0).view(count, 3),
            "next": {"obs": torch.ones(count, 3), "done": torch.zeros(count, 1) > 0},
            "task": NonTensorStack(*(f"t{i}" for i in range(count))),
        },
        [count],
    )


@pytest.mark.parametrize("storage", ["LazyMemmapStorage", "LazyTensorStorage"])
def test_a_checkpoint_is_trimmed_to_what_has_been_filled(path, buffers, storage):
    rb = buffers.TensorDictReplayBuffer(storage=getattr(buffers, storage)(10), batch_size=2)
    rb.extend(transitions(4))
    dump(rb, path)
    whole = tensordict.load(path / "storage")
    for store in (path, path / "storage"):
        found = both_doors(store)
        assert found.batch_size == (4,)
        assert_same_tensordict(whole[:4], found)
        assert_same_tensordict(whole, both_doors(store, filled=False))
    assert both_doors(path)["task"].tolist() == ["t0", "t1", "t2", "t3"]
    assert_same_tensordict(whole["next"][:4], both_doors(path, group="next"))


def test_a_full_buffer(path, buffers):
    rb = buffers.TensorDictReplayBuffer(storage=buffers.LazyTensorStorage(5), batch_size=2)
    rb.extend(transitions(4))
    rb.extend(transitions(3))
    dump(rb, path)
    stored = tensordict.load(path / "storage")
    assert_same_tensordict(stored, both_doors(path, filled=False))
    # the writer has overwritten two rows, so the third is the oldest
    assert_same_tensordict(torch.cat([stored[2:], stored[:2]]), both_doors(path))


@pytest.mark.parametrize("storage", ["LazyMemmapStorage", "LazyTensorStorage"])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_buffer_that_has_wrapped_around_begins_with_its_oldest_row(path, buffers, storage, times):
    rb = buffers.TensorDictReplayBuffer(storage=getattr(buffers, storage)(5), batch_size=2)
    for start in range(times):
        rb.extend(TensorDict({"step": torch.arange(start * 3, start * 3 + 3)}, [3]))
    dump(rb, path)
    expected = {1: [0, 1, 2], 2: [1, 2, 3, 4, 5], 3: [4, 5, 6, 7, 8]}[times]
    assert both_doors(path)["step"].tolist() == expected
    assert both_doors(path, filled=False)["step"].tolist() == tensordict.load(path / "storage")["step"].tolist()


@pytest.mark.parametrize("storage", ["LazyMemmapStorage", "LazyTensorStorage"])
@pytest.mark.filterwarnings("ignore:torch.meshgrid:UserWarning")
def test_a_storage_of_two_dims_that_has_wrapped_around(path, buffers, storage):
    rb = buffers.TensorDictReplayBuffer(storage=getattr(buffers, storage)(20, ndim=2), batch_size=2)
    for start in (0, 12):
        rb.extend(TensorDict({"obs": torch.arange(start, start + 12).view(2, 6)}, [2, 6]))
    dump(rb, path)
    found = both_doors(path)
    assert found.batch_size == (10, 2)
    assert_same_tensordict(tensordict.load(path / "storage"), both_doors(path, filled=False))
    # the first eight rows were written and then two more over the oldest
    assert found["obs"][-2:].tolist() == tensordict.load(path / "storage")["obs"][:2].tolist()


def test_rows_of_a_wrapped_buffer_are_read_as_numpy_would(path, buffers):
    rb = buffers.TensorDictReplayBuffer(storage=buffers.LazyMemmapStorage(7), batch_size=2)
    for start in (0, 5):
        rb.extend(TensorDict({"step": torch.arange(start, start + 5), "x": torch.rand(5, 2)}, [5]))
    dump(rb, path)
    ds = xr.open_dataset(path, engine="tensordict")
    whole = ds.load().copy()
    ds = xr.open_dataset(path, engine="tensordict", cache=False)
    assert whole["step"].values.tolist() == [3, 4, 5, 6, 7, 8, 9]
    (dim,) = whole["step"].dims
    for rows in (
        0,
        -1,
        slice(2, 6),
        slice(None, None, -2),
        slice(3, 3),
        [5, 0, 5],
        np.array([True, False] * 3 + [True]),
    ):
        xr.testing.assert_identical(ds.isel({dim: rows}).load(), whole.isel({dim: rows}))


def test_a_cursor_that_does_not_fit_the_rows_is_refused(path, buffers):
    rb = buffers.TensorDictReplayBuffer(storage=buffers.LazyMemmapStorage(5), batch_size=2)
    rb.extend(TensorDict({"step": torch.arange(5)}, [5]))
    rb.extend(TensorDict({"step": torch.arange(5, 7)}, [2]))
    dump(rb, path)
    (path / "writer" / "metadata.json").write_text('{"cursor": 9}')
    with pytest.warns(xarray_tensordict.IncompleteStoreWarning, match="would write row 9 next, and there are 5"):
        ds = xr.open_dataset(path, engine="tensordict")
    assert ds["step"].values.tolist() == [5, 6, 2, 3, 4]


def test_what_torchrl_refuses_to_dump_is_no_checkpoint(path, buffers):
    rb = buffers.TensorDictReplayBuffer(storage=buffers.ListStorage(10), batch_size=2)
    rb.extend(transitions(4))
    with pytest.raises(NotImplementedError):
        dump(rb, path)
    with pytest.raises(ValueError, match=r"expected a zarr store .* a memory-mapped tensordict"):
        xr.open_dataset(path, engine="tensordict")


def test_a_compact_checkpoint_is_shown_as_it_is_stored_and_says_so(path, buffers):
    from torchrl.data.replay_buffers.checkpointers import FlatStorageCheckpointer

    rb = buffers.TensorDictReplayBuffer(storage=buffers.LazyMemmapStorage(20), batch_size=2)
    rb.storage.checkpointer = FlatStorageCheckpointer()
    done = torch.tensor([0, 0, 1, 0, 0, 1]).bool().view(6, 1)
    td = TensorDict({"obs": torch.arange(6.0).view(6, 1), "done": torch.zeros_like(done)}, [6])
    td["collector", "traj_ids"] = torch.zeros(6, dtype=torch.int)
    td["next"] = {"obs": td["obs"] + 1, "done": done, "terminated": done, "truncated": done, "reward": done.float()}
    rb.extend(td)
    dump(rb, path)
    with pytest.warns(UserWarning, match=r"compact form of torchrl's own .* not trimmed to its 6 elements"):
        ds = xr.open_dataset(path, engine="tensordict")
    assert {"obs", "done", "reward"} <= set(ds)


def test_a_storage_of_two_dims_counts_elements(path, buffers):
    rb = buffers.TensorDictReplayBuffer(storage=buffers.LazyTensorStorage(20, ndim=2), batch_size=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch.meshgrid, which torchrl calls
        rb.extend(TensorDict({"obs": torch.arange(12.0).view(2, 6)}, [2, 6]))
    dump(rb, path)
    whole = tensordict.load(path / "storage")
    assert whole.batch_size == (10, 2)
    assert_same_tensordict(whole[:6], both_doors(path))


def test_rows_with_a_batch_of_their_own(path, buffers):
    rb = buffers.TensorDictReplayBuffer(storage=buffers.LazyTensorStorage(10), batch_size=2)
    rb.extend(TensorDict({"obs": torch.ones(4, 7, 2)}, [4, 7]))
    dump(rb, path)
    assert_same_tensordict(tensordict.load(path / "storage")[:4], both_doors(path))


def test_how_many_rows_are_filled_cannot_always_be_told(path, buffers):
    rb = buffers.TensorDictReplayBuffer(storage=buffers.LazyTensorStorage(10), batch_size=2)
    rb.extend(TensorDict({"obs": torch.ones(4, 7, 2)}, [4, 7]))
    dump(rb, path)
    (path / "writer" / "metadata.json").unlink()
    with pytest.warns(UserWarning, match=r"4 elements of batch size \[10, 7\].*filled=False for all 10"):
        ds = xr.open_dataset(path, engine="tensordict")
    assert ds["obs"].shape == (4, 7, 2)


def test_a_checkpoint_without_a_tensordict(path, buffers):
    rb = buffers.ReplayBuffer(storage=buffers.LazyTensorStorage(10), batch_size=2)
    rb.extend({"a": torch.arange(4.0), "b": {"c": torch.ones(4, 2)}, "t": (torch.ones(4),)})
    dump(rb, path)
    found = both_doors(path)
    assert found.batch_size == (4,)
    assert set(found.keys(include_nested=True, leaves_only=True)) == {"a", ("b", "c"), ("t", "0")}
    assert found["a"].tolist() == [0, 1, 2, 3]
    assert both_doors(path, filled=False)["b", "c"].shape == (10, 2)


def test_a_checkpoint_of_one_tensor_is_named_after_the_folder(path, buffers):
    rb = buffers.ReplayBuffer(storage=buffers.LazyTensorStorage(10), batch_size=2)
    rb.extend(torch.arange(12.0).view(4, 3))
    dump(rb, path)
    assert both_doors(path / "storage")["saved"].sum() == 66


def test_a_checkpoint_that_is_damaged(path, buffers):
    rb = buffers.TensorDictReplayBuffer(storage=buffers.LazyTensorStorage(10), batch_size=2)
    rb.extend(transitions(4))
    dump(rb, path)
    (path / "storage" / "storage_metadata.json").write_text('{"len": "4"}')
    with pytest.raises(
        ValueError, match=r"storage_metadata\.json: it is not the metadata of a storage of torchrl: Expected `int`"
    ):
        xr.open_dataset(path, engine="tensordict")


def test_a_checkpoint_in_an_hdf5_file_is_named(path):
    (path / "storage").mkdir(parents=True)
    (path / "storage" / "checkpoint.h5").touch()
    with pytest.raises(ValueError, match=r"checkpoint\.h5"):
        xr.open_dataset(path, engine="tensordict")
