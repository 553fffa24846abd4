"""Stores that were saved from a tensorclass, and the way back to it."""

import json
from typing import Any

import numpy as np
import pytest
import tensordict
import torch
import xarray as xr
from tensordict import TensorClass, TensorDict, TypedTensorDict, tensorclass

import xarray_tensordict
from xarray_tensordict._compat.tensordict import IS_0_14
from xarray_tensordict.dataset.records import classes_of
from xarray_tensordict.testing import assert_same_tensordict


@tensorclass
class Camera:
    image: torch.Tensor
    name: str = "front"


@tensorclass(autocast=True)  # without it tensordict 0.14 makes tensors of numbers
class Step:
    obs: torch.Tensor
    task: str
    camera: Camera
    mask: torch.Tensor | None = None
    weight: float = 2.5


class Reward(TensorClass):
    value: torch.Tensor


class Pair(TypedTensorDict):
    x: torch.Tensor
    y: torch.Tensor


STEP = f"{__name__}.Step"
CAMERA = f"{__name__}.Camera"
BOTH = {(): STEP, ("camera",): CAMERA}


def step() -> Any:
    camera = Camera(image=torch.arange(24).view(4, 2, 3), name="wrist", batch_size=[4])
    return Step(obs=torch.arange(12.0).view(4, 3), task="lift", camera=camera, weight=1.5, batch_size=[4])


def assert_is_step(found: Any) -> None:
    assert type(found) is Step
    assert type(found.camera) is Camera
    assert torch.equal(found.obs, step().obs)
    assert torch.equal(found.camera.image, step().camera.image)
    assert (found.task, found.camera.name, found.mask, found.weight) == ("lift", "wrist", None, 1.5)
    assert found.batch_size == found.camera.batch_size == (4,)


SAVED = {
    "memmap": lambda td, path: td.memmap(path),
    "tdz": lambda td, path: td.save(path),
    "zarr": lambda td, path: td.to_zarr(path),
    "h5": lambda td, path: td.to_h5(path)._tensordict.close(),  # td.close() warns that a tensorclass has no such method
}
WRITTEN: dict[str, Any] = {
    "written.zarr": lambda ds, path: ds.td.to_zarr(path),
    "v2.zarr": lambda ds, path: ds.td.to_zarr(path, zarr_format=2),
    "plain.zarr": lambda ds, path: ds.td.to_zarr(path, layout="xarray"),
    "written.zarr.zip": lambda ds, path: ds.td.to_zarr(path),
    "written.h5": lambda ds, path: ds.td.to_h5(path),
    "plain.h5": lambda ds, path: ds.td.to_h5(path, layout="xarray"),
    "written": lambda ds, path: ds.td.to_memmap(path),
    "written.tdz": lambda ds, path: ds.td.to_memmap(path),
}


@pytest.mark.parametrize("kind", SAVED)
def test_a_store_that_tensordict_saved_gives_the_tensorclass_back(tmp_path, kind):
    path = tmp_path / f"saved.{kind}"
    SAVED[kind](step(), path)
    with xr.open_dataset(path, engine="tensordict") as ds:
        assert_is_step(ds.td.to_tensordict(cls=Step))
        # tensordict itself says in zarr and HDF5 nowhere what the class was
        assert classes_of(ds) == (BOTH if kind in {"memmap", "tdz"} else {})
    persistent = xarray_tensordict.open_persistent(path)
    found = Step.from_tensordict(persistent.to_tensordict())
    if IS_0_14:  # which makes tensorclasses of no nested ones
        found.camera = Camera.from_tensordict(found.camera)
    assert_is_step(found)
    persistent.close()


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.filterwarnings("ignore:The data type .* does not have a Zarr V3 specification")
def test_the_class_is_written_and_read_again(tmp_path, name):
    step().memmap(tmp_path / "source")
    path = tmp_path / name
    WRITTEN[name](xr.open_dataset(tmp_path / "source", engine="tensordict"), path)
    with xr.open_dataset(path, engine="tensordict") as again:
        assert classes_of(again) == BOTH
        assert not again.attrs
        assert_is_step(again.td.to_tensordict(cls=Step))
        assert f"saved from the tensorclass {STEP}; to_tensordict(cls=...) gives it back" in " ".join(
            repr(again.td).split()
        )
        again.td.to_memmap(tmp_path / "once more")
    with xr.open_dataset(tmp_path / "once more", engine="tensordict") as third:
        assert classes_of(third) == BOTH


def test_bare_tensordict_reads_the_stores_as_ever(tmp_path):
    ds, expected = xarray_tensordict.to_dataset(step()), step().to_tensordict(retain_none=False)
    ds.td.to_zarr(tmp_path / "a.zarr")
    ds.td.to_h5(tmp_path / "a.h5")
    ds.td.to_memmap(tmp_path / "a")
    assert_same_tensordict(expected, TensorDict.from_zarr(tmp_path / "a.zarr"))
    assert_same_tensordict(expected, tensordict.load(tmp_path / "a"))
    h5 = TensorDict.from_h5(tmp_path / "a.h5", batch_size=[4])
    assert torch.equal(h5["camera", "image"], expected["camera", "image"])
    h5.close()
    with xr.open_zarr(tmp_path / "a.zarr") as plain:
        assert plain["obs"].shape == (4, 3)


def test_an_append_keeps_the_class(tmp_path):
    ds = xarray_tensordict.to_dataset(step())
    ds.td.to_zarr(tmp_path / "a.zarr")
    ds.td.to_zarr(tmp_path / "a.zarr", append_dim="batch_0")
    with xr.open_dataset(tmp_path / "a.zarr", engine="tensordict") as again:
        assert classes_of(again) == BOTH
        assert again.td.to_tensordict(cls=Step).batch_size == (8,)


def test_the_class_holds_as_long_as_the_fields_do(tmp_path):
    step().memmap(tmp_path / "source")
    with xr.open_dataset(tmp_path / "source", engine="tensordict") as ds:
        assert classes_of(ds.isel(batch_0=slice(2))) == BOTH
        assert classes_of(ds.drop_vars("camera/name")) == {(): STEP}
        assert classes_of(ds.drop_vars("task")) == {("camera",): CAMERA}
        assert classes_of(ds.assign(new=ds["obs"])) == {("camera",): CAMERA}
        ds.drop_vars("task").td.to_zarr(tmp_path / "a.zarr")
        ds.td.to_memmap(tmp_path / "a", exclude=["task"])
    for path in ("a.zarr", "a"):
        with xr.open_dataset(tmp_path / path, engine="tensordict") as again:
            assert classes_of(again) == {("camera",): CAMERA}


@pytest.mark.parametrize("name", ["written.zarr", "written.h5", "written"])
def test_trees_keep_the_class_of_each_node(tmp_path, name):
    step().memmap(tmp_path / "source")
    path = tmp_path / name
    dt = xr.open_datatree(tmp_path / "source", engine="tensordict")
    assert classes_of(dt["camera"].to_dataset()) == {(): CAMERA}
    write = {".zarr": dt.td.to_zarr, ".h5": dt.td.to_h5, "": dt.td.to_memmap}[path.suffix]
    write(path)
    again = xr.open_datatree(path, engine="tensordict")
    assert classes_of(again.to_dataset()) == {(): STEP}
    assert classes_of(again["camera"].to_dataset()) == {(): CAMERA}
    assert_is_step(again.td.to_tensordict(cls=Step))
    assert classes_of(xarray_tensordict.to_datatree(step())["camera"].to_dataset()) == {(): CAMERA}


def test_a_class_that_a_store_names_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "evil_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    ds = xr.Dataset({"x": ("time", [1.0])})
    ds.td.to_memmap(tmp_path / "a")
    meta = tmp_path / "a" / "meta.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "_tensorclass": "evil_module.Step"}))
    with xr.open_dataset(tmp_path / "a", engine="tensordict") as again:
        assert classes_of(again) == {(): "evil_module.Step"}
        assert type(again.td.to_tensordict()) is TensorDict
        again.td.to_zarr(tmp_path / "a.zarr")
    with xr.open_dataset(tmp_path / "a.zarr", engine="tensordict") as again:
        assert classes_of(again) == {(): "evil_module.Step"}


def test_an_entry_may_be_called_like_the_record(tmp_path):
    td = Pair(x=torch.ones(3), y=torch.zeros(3), batch_size=[3])
    td["_tensorclass"] = torch.arange(3)
    ds = xarray_tensordict.to_dataset(td)
    ds.td.to_memmap(tmp_path / "a")
    assert_same_tensordict(td.to_tensordict(), tensordict.load(tmp_path / "a"))
    with xr.open_dataset(tmp_path / "a", engine="tensordict") as again:
        assert again["_tensorclass"].values.tolist() == [0, 1, 2]
        assert classes_of(again) == {}


# -- cls= --------------------------------------------------------------------------------------------------------------


def dataset() -> xr.Dataset:
    return xarray_tensordict.to_dataset(step())


def test_fields_that_are_not_there_get_their_default():
    made = dataset().drop_vars(["camera/name", "weight"]).td.to_tensordict(cls=Step)
    assert (made.camera.name, made.weight, made.mask) == ("front", 2.5, None)


def test_a_value_that_was_dropped_is_not_replaced_by_a_default():
    ds = dataset().assign_coords(weight=7.0)
    with pytest.raises(ValueError, match=r"its fields \['weight'\] have no batch dim and were dropped"):
        ds.td.to_tensordict(cls=Step)
    assert (ds.td.to_tensordict(cls=Step, unbatched="expand").weight == 7).all()
    assert ds.td.to_tensordict(cls=Step, exclude=["weight"]).weight == 2.5


def test_a_class_that_lacks_fields_names_them():
    with pytest.raises(
        ValueError, match=r"Step does not fit: its fields \['obs', 'task'\] are not there\. It has the fields"
    ):
        dataset().drop_vars(["obs", "task"]).td.to_tensordict(cls=Step)
    with pytest.raises(ValueError, match=r"Camera at 'camera' does not fit: its fields \['image'\] are not there"):
        dataset().drop_vars("camera/image").td.to_tensordict(cls=Step)
    with pytest.raises(ValueError, match=r"its fields \['task'\] are not there"):
        dataset().td.to_tensordict(cls=Step, coords=False)


def test_entries_that_are_no_fields_are_named():
    with pytest.raises(ValueError, match=r"the entries \['action'\] are none of its fields"):
        dataset().assign(action=("batch_0", np.zeros(4))).td.to_tensordict(cls=Step)
    with pytest.raises(
        ValueError, match=r"its fields \['value'\] are not there and the entries \['camera', 'obs', 'task', 'weight'\]"
    ):
        dataset().td.to_tensordict(cls=Reward)


def test_what_is_no_tensorclass_is_refused():
    for wrong in (dict, int, "Step", TensorDict, step()):
        with pytest.raises(TypeError, match="cls: expected a tensorclass or a TypedTensorDict, got"):
            dataset().td.to_tensordict(cls=wrong)


def test_typed_tensordicts():
    ds = xarray_tensordict.to_dataset(Pair(x=torch.ones(3), y=torch.zeros(3), batch_size=[3]))
    assert classes_of(ds) == {(): f"{__name__}.Pair"}
    made = ds.td.to_tensordict(cls=Pair)
    assert type(made) is Pair
    assert made.x.sum() == 3
    with pytest.raises(ValueError, match=r"Pair does not fit: its fields \['y'\] are not there"):
        ds.drop_vars("y").td.to_tensordict(cls=Pair)


def test_a_lazy_stack_of_tensorclasses(tmp_path):
    tensordict.lazy_stack([step(), step()]).memmap(tmp_path / "a")
    with xr.open_dataset(tmp_path / "a", engine="tensordict") as ds:
        made = ds.td.to_tensordict(cls=Step)
        assert made.batch_size == (2, 4)
        assert_is_step(made[0])
