"""Writes through the lazy tensordict: refused in words with ``mode="r"``, tensordict's own with ``mode="r+"``."""

import operator

import h5py
import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from tensordict import PersistentTensorDict, TensorDict

import xarray_tensordict  # noqa: F401 - registers ds.td
from persistent_samples import FORMATS, flat_td, needs_0_15, write_td
from written import content
from xarray_tensordict import open_persistent
from xarray_tensordict.testing import assert_same_tensordict

# --- read-only, in words -------------------------------------------------------------------------------------------

WRITES = {
    "set": lambda p: p.set("obs", torch.zeros(6, 3, 4)),
    "set a new key": lambda p: p.set("new", torch.zeros(6)),
    "set nested": lambda p: p.set(("next", "new"), torch.zeros(6)),
    "set in a new group": lambda p: p.set(("new", "new"), torch.zeros(6)),
    "set a group": lambda p: p.set("new", TensorDict({"a": torch.zeros(6)}, [6])),
    "[]": lambda p: operator.setitem(p, "obs", torch.zeros(6, 3, 4)),
    "[] of rows": lambda p: operator.setitem(p, 0, flat_td()[0]),
    "[] of rows by a number": lambda p: operator.setitem(p, slice(2), 0),
    "set_": lambda p: p.set_("obs", torch.zeros(6, 3, 4)),
    "set_at_": lambda p: p.set_at_("obs", torch.zeros(3, 4), 0),
    "set_at_ nested": lambda p: p.set_at_(("next", "obs"), torch.zeros(3), 0),
    "set_non_tensor": lambda p: p.set_non_tensor("robot", "ur5"),
    "update": lambda p: p.update({"obs": torch.zeros(6, 3, 4)}),
    "update_": lambda p: p.update_(flat_td()),
    "update_at_": lambda p: p.update_at_(flat_td()[0], 0),
    "copy_": lambda p: p.copy_(flat_td()),
    "copy_at_": lambda p: p.copy_at_(flat_td()[0], 0),
    "del": lambda p: operator.delitem(p, "obs"),
    "del_": lambda p: p.del_("obs"),
    "pop": lambda p: p.pop("obs"),
    "popitem": lambda p: p.popitem(),
    "clear": lambda p: p.clear(),
    "setdefault": lambda p: p.setdefault("new", torch.zeros(6)),
    "rename_key_": lambda p: p.rename_key_("obs", "other"),
    "zero_": lambda p: p.zero_(),
    "fill_": lambda p: p.fill_("obs", 1.0),
    "masked_fill_": lambda p: p.masked_fill_(torch.ones(6, dtype=torch.bool), 0),
    "apply_": lambda p: p.apply_(lambda x: x + 1),
    "add_": lambda p: p.add_(1),
    "mul_": lambda p: p.mul_(2),
    "nested zero_": lambda p: p["next"].zero_(),
    "create_nested": lambda p: p.create_nested("new"),
    "replace": lambda p: p.replace({"obs": torch.zeros(6, 3, 4)}),
    "stack out": lambda p: torch.stack([flat_td()[0]] * 6, out=p),
    "through a sub-tensordict": lambda p: p._get_sub_tensordict(0).set_("obs", torch.zeros(3, 4)),
    "into a view": lambda p: p[:2].set_("action", torch.zeros(2, dtype=torch.int16)),
    "memmap_": lambda p: p.memmap_(),
}


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    """A store, and the bytes of its files: no test changes them."""
    path = tmp_path_factory.mktemp("refused") / "buffer.zarr"
    write_td(flat_td(), path, chunks=1)
    return path, content(path)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_writes_are_refused_in_words_and_change_nothing(untouched, write):
    path, files = untouched
    with open_persistent(path) as ptd:
        with pytest.raises(TypeError, match=r"buffer\.zarr.* is read-only.*to_tensordict\(\).*mode='r\+'"):
            write(ptd)
        assert content(path) == files
        assert_same_tensordict(ptd, flat_td())


def test_the_refusal_names_the_entry(zarr_path):
    ptd = open_persistent(zarr_path)
    with pytest.raises(TypeError, match="write 'next/obs'"):
        ptd["next"].set_at_("obs", torch.zeros(3), 0)
    with pytest.raises(TypeError, match="delete 'next/obs'"):
        del ptd["next", "obs"]
    ptd.close()


# --- mode="r+" -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
def test_a_store_of_tensordict_opens_for_writing(form, tmp_path):
    td = flat_td().exclude("robot", "task")
    write, suffix = FORMATS[form]
    path = tmp_path / f"td{suffix}"
    write(td, path)
    ptd = open_persistent(path, mode="r+")
    assert type(ptd) is PersistentTensorDict
    assert_same_tensordict(ptd.to_tensordict().refine_names("time"), td)
    ptd.set_at_("obs", torch.full((3, 4), -1.0), 2)
    ptd["new"] = torch.ones(6)
    ptd.close()
    again = open_persistent(path)
    assert (again.get_at("obs", 2) == -1).all()
    assert again["new"].tolist() == [1] * 6
    again.close()


@needs_0_15("writes no rows of text")
def test_text_written_by_tensordict_in_zarr_is_read_the_same(tmp_path):
    flat_td().to_zarr(tmp_path / "td.zarr")
    ptd = open_persistent(tmp_path / "td.zarr", mode="r+")
    assert_same_tensordict(ptd.to_tensordict(), flat_td())
    assert ptd["next"].names == ["time"]


def test_a_group_opens_for_writing(tmp_path):
    for path in (tmp_path / "td.zarr", tmp_path / "td.h5"):
        td = TensorDict({"g": {"x": torch.arange(3.0)}, "y": torch.zeros(3)}, [3])
        (td.to_zarr if path.suffix == ".zarr" else td.to_h5)(path).close()
        ptd = open_persistent(path, mode="r+", group="g")
        ptd.set_at_("x", torch.tensor(7.0), 1)
        ptd.close()
        assert open_persistent(path)["g", "x"].tolist() == [0, 7, 2]


def test_ragged_groups_open_for_writing_when_they_are_asked_for(tmp_path):
    with h5py.File(tmp_path / "demos.h5", "w") as file:
        for number, length in enumerate((3, 5)):
            file[f"demo_{number}/actions"] = np.zeros((length, 2), "f4")
            file[f"demo_{number}/reward"] = np.zeros(length, "f4")
    with pytest.raises(ValueError, match=r"'/demo_0' .* nested=True"):
        open_persistent(tmp_path / "demos.h5", mode="r+")
    ptd = open_persistent(tmp_path / "demos.h5", mode="r+", nested=True)
    assert [list(ptd[key].batch_size) for key in sorted(ptd.keys())] == [[3], [5]]
    ptd["demo_1"].set_at_("reward", torch.tensor(1.0), 4)
    ptd.close()
    assert open_persistent(tmp_path / "demos.h5", group="demo_1")["reward"].tolist() == [0, 0, 0, 0, 1]


def plain(**variables):
    return xr.Dataset({"x": (("t", "f"), np.arange(6.0).reshape(3, 2)), **variables}, coords={})


CLOCK = np.array([0, 3600, 7200], "M8[s]").astype("M8[ns]")
REFUSED = {
    "packed": (plain(p=("t", np.array([0.5, 1.0, 2.0]))), {"p": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}},
        "'p' is decoded"),
    "a missing value": (plain(p=("t", np.arange(3.0))), {"p": {"_FillValue": -9.0}}, "'p' has a missing value"),
    "integers with a missing value": (plain(p=("t", np.arange(3.0))), {"p": {"dtype": "i2", "_FillValue": -9}}, "'p'"),
    "times": (plain(p=("t", CLOCK)), {"p": {"units": "hours since 1970-01-01", "dtype": "i8"}}, "'p' holds times"),
    "bools as bytes": (plain(p=("t", np.array([True, False, True]))), {}, "'p'"),
    "an unbatched entry": (plain(p=("lat", np.arange(5.0))), {}, "'p' has none of the batch dims"),
    "a batch that does not lead": (plain(p=(("f", "t"), np.zeros((2, 3)))), {},
        r"'p' has dims \['f', 't'\] .* do not start with the batch"),
}  # fmt: skip


@pytest.mark.parametrize(("ds", "encoding", "message"), REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("suffix", [".zarr", ".nc"])
def test_what_bare_tensordict_reads_otherwise_is_refused(ds, encoding, message, suffix, tmp_path):
    path = tmp_path / f"store{suffix}"
    if suffix == ".zarr":
        if "bool" in str(ds.dtypes.get("p")):
            pytest.skip("zarr stores bools as they are")
        ds.to_zarr(path, encoding=encoding, zarr_format=3, consolidated=False)
    else:
        ds.to_netcdf(path, encoding=encoding, engine="h5netcdf")
    with pytest.raises(ValueError, match=rf"store\{suffix} cannot be opened with mode='r\+': {message}"):
        open_persistent(path, mode="r+", batch_dims=["t"])
    open_persistent(path, batch_dims=["t"]).close()


@needs_0_15("writes no rows of text")
def test_text_that_tensordict_reads_as_bytes_is_refused(tmp_path):
    flat_td().to_h5(tmp_path / "td.h5").close()
    with pytest.raises(ValueError, match=r"'(robot|task)'.*str"):
        open_persistent(tmp_path / "td.h5", mode="r+")


def test_raw_codes_can_be_written_when_they_are_asked_for(tmp_path):
    ds = plain(p=("t", np.array([0.5, 1.0, 2.0])))
    ds.to_zarr(
        tmp_path / "p.zarr",
        encoding={"p": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}},
        zarr_format=3,
        consolidated=False,
    )
    ptd = open_persistent(tmp_path / "p.zarr", mode="r+", mask_and_scale=False, batch_dims=["t"])
    assert ptd["p"].tolist() == [1, 2, 4]


def test_zip_archives_are_refused(tmp_path):
    with zarr.storage.ZipStore(tmp_path / "td.zarr.zip", mode="w") as zipped:
        write_td(flat_td(), zipped)
    with pytest.raises(ValueError, match="zip archive"):
        open_persistent(tmp_path / "td.zarr.zip", mode="r+")


def test_an_unknown_mode(zarr_path):
    with pytest.raises(ValueError, match=r"expected one of 'r', 'r\+'.*found 'rb'"):
        open_persistent(zarr_path, mode="rb")
