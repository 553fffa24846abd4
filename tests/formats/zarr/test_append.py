"""``append_dim=``: what stays true after each append, and what is refused before a byte is written."""

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
import zarr
from tensordict import PersistentTensorDict, TensorDict

import xarray_tensordict
from written import (
    assert_bare_tensordict_reads,
    assert_gives_back,
    assert_identical,
    content,
    documents,
    era,
    reopened,
    text,
)
from xarray_tensordict.testing import assert_same_tensordict

LAYOUTS = pytest.mark.parametrize("layout", ["tensordict", "xarray"])
KINDS = pytest.mark.parametrize("kind", ["zarr2", "zarr3", "h5"])


def write(ds: xr.Dataset, path, kind: str, layout: str = "tensordict", **keywords) -> None:
    if kind == "h5":
        ds.td.to_h5(path, layout=layout, unlimited_dims=["time"], **keywords)
    else:
        ds.td.to_zarr(path, layout=layout, zarr_format=int(kind[-1]), **keywords)


def append(ds: xr.Dataset, path, kind: str, dim: str = "time", **keywords) -> object:
    return (ds.td.to_h5 if kind == "h5" else ds.td.to_zarr)(path, append_dim=dim, **keywords)


# tensordict warns that it reads strings as bytes until its version 0.17
@pytest.mark.filterwarnings("ignore:The h5 backend of PersistentTensorDict reads the string:FutureWarning")
@LAYOUTS
@KINDS
@pytest.mark.parametrize("chunked", [False, True])
def test_everything_stays_true_after_each_of_several_appends(tmp_path, layout, kind, chunked):
    path, whole = tmp_path / "a", era(6)
    write(whole.isel(time=slice(0, 2)), path, kind, layout, chunks={"time": 2})
    for start, stop in ((2, 3), (3, 6)):
        part = whole.isel(time=slice(start, stop))
        append(part.chunk(time=1) if chunked else part, path, kind)
        expected = whole.isel(time=slice(0, stop))
        assert_gives_back(path, expected)
        lazy = xarray_tensordict.open_persistent(path)
        assert_same_tensordict(lazy.to_tensordict(), expected.td.to_tensordict())
        lazy.close()
    if kind == "h5" and layout == "tensordict":
        bare = PersistentTensorDict.from_h5(path, batch_size=[6])
        assert bare["next", "t2m"].shape == (6, 2, 3)
        assert text(bare["station"]) == whole["station"].values.tolist()
        bare.close()
    if kind == "h5" and layout == "xarray":
        with xr.open_dataset(path, engine="h5netcdf") as found:
            assert_identical(found.load(), whole.drop_vars("next/t2m"))
    if kind == "h5":
        return
    if layout == "tensordict":
        assert_bare_tensordict_reads(path, whole)
        nested = TensorDict.from_zarr(path)["next"]
        assert nested.batch_size == torch.Size([6])
    with xr.open_zarr(path, consolidated=True) as plain:
        assert plain.sizes["time"] == 6
        assert_values = plain["t2m"].values
    np.testing.assert_array_equal(assert_values, whole["t2m"])


@LAYOUTS
@KINDS
def test_groups_with_rows_of_their_own_each_grow(tmp_path, kind, layout):
    path = tmp_path / "a"
    text = xr.Dataset({"x": ("time", np.arange(5.0)), "t": ("time", np.array(["a", "b", "c", "d", "e"], object))})
    tree = xr.DataTree.from_dict({"/one": xr.Dataset({"x": ("time", np.arange(3.0))}), "/two": text})
    named = {"unlimited_dims": ["one.time", "two.time"]} if kind == "h5" else {"zarr_format": int(kind[-1])}
    (tree.td.to_h5 if kind == "h5" else tree.td.to_zarr)(path, layout=layout, **named)
    append(tree.isel(time=slice(2)), path, kind)
    with xr.open_datatree(path, engine="tensordict") as found:
        assert found["one/x"].values.tolist() == [0, 1, 2, 0, 1]
        assert found["two/x"].values.tolist() == [0, 1, 2, 3, 4, 0, 1]
        assert found["two/t"].values.tolist() == [*"abcde", *"ab"]
        assert found["one"].td.batch_size == (5,)


@KINDS
def test_rows_with_names_of_dims_go_into_a_store_that_has_none(tmp_path, kind):
    path, rows = tmp_path / "a", xr.Dataset({"x": (("time", "joint"), np.ones((2, 3), "f4"))})
    unnamed = TensorDict({"x": torch.zeros(4, 3)}, [4])
    made_up = {"unlimited_dims": ["batch_0"]} if kind == "h5" else {"zarr_format": int(kind[-1])}
    ds = xarray_tensordict.to_dataset(unnamed)
    (ds.td.to_h5 if kind == "h5" else ds.td.to_zarr)(path, **made_up)
    append(rows, path, kind)
    assert reopened(path)["x"].values[:, 0].tolist() == [0, 0, 0, 0, 1, 1]
    assert reopened(path).td.batch_size == (6,)
    with pytest.raises(ValueError, match="append_dim='day' is no dim there"):
        append(rows, path, kind, "day")


@KINDS
def test_with_compute_false_an_append_finishes_in_the_delayed(tmp_path, kind):
    path, whole = tmp_path / "a", era(4)
    write(whole.isel(time=slice(0, 2)), path, kind)
    delayed = append(whole.isel(time=slice(2, 4)).chunk(time=1), path, kind, compute=False)
    if kind != "h5":
        assert_gives_back(path, whole.isel(time=slice(0, 2)))
    delayed.compute()
    assert_gives_back(path, whole)


def shown(path) -> dict[str, list]:
    return {str(name): variable.values.tolist() for name, variable in reopened(path).variables.items()}


REFUSED = [
    (lambda ds: ds.drop_vars("station"), r"\['station'\] have the dim 'time' there"),
    (lambda ds: ds.drop_vars("next/t2m"), "'next/t2m'"),
    (lambda ds: ds.assign(more=("time", [1, 2])), "'more'.* are not there"),
    (lambda ds: ds.assign(flag=((), 3)), "'flag'.* are not there"),
    (lambda ds: ds.assign(done=ds["done"].astype("i8")), "'done' has dtype bool"),
    (lambda ds: ds.assign(t2m=ds["t2m"].astype("f8")), "'t2m' has dtype float32 there, found float64"),
    (lambda ds: ds.assign(run=ds["run"].astype("i4")), "'run' has dtype int64"),
    (lambda ds: ds.rename(lat="latitude"), "dims"),
    (lambda ds: ds.assign(t2m=ds["t2m"].transpose("lat", ...)), "dims"),
    (lambda ds: ds.assign({"next/t2m": ds["next/t2m"].isel(time=0)}), "'next/t2m'"),
    (lambda ds: ds.assign(when=ds["when"].astype("M8[ns]") + np.timedelta64(1, "ns")), "'when' has the resolution"),
    (lambda ds: ds.isel(lon=slice(0, 2)), "size 3 along 'lon'"),
    (lambda ds: ds.assign(mask=~ds["mask"]), "'mask' has no dim 'time'"),
    (lambda ds: ds.assign_coords(lat=ds["lat"] + 1), "'lat' has no dim 'time'"),
    (lambda ds: ds.assign(source=((), "another model")), "'source' has no dim 'time'"),
    (lambda ds: ds.assign(t2m=ds["t2m"].assign_attrs(units="degC")), "'t2m' has the units 'K' there, found 'degC'"),
    (lambda ds: ds.rename(time="day"), "append_dim='time' is no dim of the dataset"),
]


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("kind", "layout", "changes"),
    [
        *((kind, "tensordict", REFUSED) for kind in ("zarr3", "h5")),
        *((kind, "xarray", [REFUSED[number] for number in (0, 1, 4, 7, 10, 12, 15)]) for kind in ("zarr2", "h5")),
    ],
    ids=["zarr3", "h5", "zarr2-xarray", "h5-xarray"],
)
def test_rows_that_do_not_fit_are_refused_before_a_byte_is_written(tmp_path, kind, layout, changes, chunked):
    path = tmp_path / "a"
    write(era(), path, kind, layout)
    # what dask finds wrong while it computes leaves chunks behind the last row, of which the metadata knows nothing
    seen = (shown if kind == "h5" else documents) if chunked else content
    before = seen(path)
    for change, message in changes:
        rows = change(era(2))
        with pytest.raises(ValueError, match=message.partition(" has the resolution")[0]):
            append(rows.chunk() if chunked else rows, path, kind)
        assert seen(path) == before, message
        assert [child.name for child in tmp_path.iterdir()] == ["a"]


def test_strings_longer_than_those_of_the_store_are_refused(tmp_path):
    for kind in ("zarr2", "zarr3"):
        path = tmp_path / kind
        ds = xr.Dataset({"x": ("time", [1.0]), "code": ("time", np.array(["ab"]))})
        write(ds, path, kind)
        with pytest.raises(ValueError, match="'code' has strings of at most"):
            append(ds.assign(code=("time", np.array(["abc"]))), path, kind)
        append(ds.assign(code=("time", np.array(["c"]))), path, kind)
        assert reopened(path)["code"].values.tolist() == ["ab", "c"]


@LAYOUTS
def test_datasets_without_room_are_refused_with_a_way_out(tmp_path, layout):
    path = tmp_path / "a.h5"
    era(2).td.to_h5(path, layout=layout)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"cannot grow along 'time'.*mode='w'.*unlimited_dims"):
        era(2).td.to_h5(path, append_dim="time")
    assert path.read_bytes() == before
    # the way out
    with xr.open_dataset(path, engine="tensordict") as ds:
        ds.td.to_h5(path, unlimited_dims=["time"])
    era(4).isel(time=slice(2, 4)).td.to_h5(path, append_dim="time")
    assert_gives_back(path, era(4))
    with pytest.raises(ValueError, match="no dim 'level'"):
        era(2).td.to_h5(path, unlimited_dims=["level"])
    with pytest.raises(FileNotFoundError, match="no file to append to"):
        era(2).td.to_h5(tmp_path / "none.h5", append_dim="time")


@LAYOUTS
def test_a_netcdf_dim_without_a_coordinate_grows(tmp_path, layout):
    path = tmp_path / "a.nc"
    ds = xr.Dataset({"x": (("time", "f"), np.arange(12.0).reshape(6, 2))})
    write(ds.isel(time=slice(0, 4)), path, "h5", layout)
    append(ds.isel(time=slice(4, 6)), path, "h5")
    assert_gives_back(path, ds)
    if layout == "xarray":
        for engine in ("h5netcdf", "netcdf4"):
            with xr.open_dataset(path, engine=engine) as plain:
                xr.testing.assert_equal(plain, ds)


# -- labels of episodes -------------------------------------------------------------------------------------------------


def episodes(*lengths: int, start: int = 0) -> xr.Dataset:
    """What ``concat`` makes of one file."""
    demos = {
        f"/demo_{start + number}": xr.Dataset({"x": ("time", np.full(rows, start + number))}, {}, {"rows": rows})
        for number, rows in enumerate(lengths)
    }
    return xr.DataTree.from_dict(demos).td.concat("time").load()


@LAYOUTS
@KINDS
def test_labels_of_episodes_that_come_back_are_refused_and_the_advice_keeps_them_apart(tmp_path, kind, layout):
    path, first, more = tmp_path / "a", episodes(2, 3), episodes(3, 1, 2, start=7)
    write(first, path, kind, layout)
    with pytest.raises(ValueError, match=r"'episode' numbers episodes, and the last one there is 1.*\+ 2\)") as raised:
        append(more, path, kind)
    assert_gives_back(path, first)
    advice = "ds.assign_coords" + str(raised.value).split("Write ds.assign_coords")[1].split(". Rows of")[0]
    append(eval(advice, {"ds": more}), path, kind)
    found = reopened(path)
    assert found["episode"].values.tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 3, 4, 4]
    names = ["demo_0", "demo_1", "demo_7", "demo_8", "demo_9"]
    attrs = {name: text if isinstance(text, str) else list(text) for name, text in found["episode"].attrs.items()}
    assert attrs == {"names": names, "step_variable": "step", "rows": [2, 3, 3, 1, 2]}
    if kind != "h5":
        assert xr.open_zarr(path)["episode"].attrs["names"] == names


@LAYOUTS
@KINDS
def test_one_file_is_written_in_parts_that_cut_an_episode(tmp_path, kind, layout):
    path, whole = tmp_path / "a", episodes(2, 4, 1)
    write(whole.isel(time=slice(0, 3)), path, kind, layout)
    append(whole.isel(time=slice(3, 5)), path, kind)
    with pytest.raises(ValueError, match="Rows of the episode 1 itself need 'step' to go on"):
        append(whole.isel(time=slice(4, 7)), path, kind)
    append(whole.isel(time=slice(5, 7)), path, kind)
    assert_gives_back(path, whole)


@LAYOUTS
@KINDS
def test_names_that_do_not_describe_what_is_appended_go(tmp_path, kind, layout):
    path, more = tmp_path / "a", episodes(1, 2, start=7).isel(time=slice(1, 3))
    write(episodes(2, 3), path, kind, layout)
    shifted = more.assign_coords(episode=more["episode"].copy(data=more["episode"] + 2))
    with pytest.warns(UserWarning, match=r"the attributes \['names', 'rows'\] of 'episode' do not describe"):
        append(shifted, path, kind)
    assert reopened(path)["episode"].attrs == {"step_variable": "step"}
    assert reopened(path)["episode"].values.tolist() == [0, 0, 1, 1, 1, 3, 3]


@KINDS
def test_episodes_of_a_table_are_known_by_their_labels_as_well(tmp_path, kind):
    path = tmp_path / "a"
    table = xr.Dataset({"x": ("time", np.arange(4.0)), "done": ("time", [False, True, False, True])})
    ds = table.td.concat("time", by="done", step="frame")
    write(ds, path, kind)
    with pytest.raises(ValueError, match=r"the last one there is 1.*\+ 2\).*'frame'"):
        append(ds, path, kind)
    append(ds.assign_coords(episode=ds["episode"].copy(data=ds["episode"] + 2)), path, kind)
    assert reopened(path)["episode"].values.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


# -- what plain xarray appends to our stores ---------------------------------------------------------------------------


def flat(rows: int, start: int = 0, unit: str = "s") -> xr.Dataset:
    time = pd.date_range("2000-01-01", periods=start + rows)[start:].as_unit(unit)
    values = np.arange(start, start + rows, dtype="f4")
    return xr.Dataset({"x": ("time", values), "done": ("time", values > 1)}, coords={"time": time})


@LAYOUTS
@pytest.mark.parametrize("unit", ["s", "us", "ns"])
def test_a_plain_append_leaves_a_batch_that_is_inferred_from_the_arrays(tmp_path, layout, unit):
    path = tmp_path / "a.zarr"
    flat(3).td.to_zarr(path, layout=layout, consolidated=False)
    flat(2, 3, unit).to_zarr(path, append_dim="time", consolidated=False)
    # plain xarray rewrites the attributes of the group, and the record goes with them
    assert "__tensordict__" not in zarr.open_group(path, mode="r").attrs
    lost = layout == "tensordict" and unit != "ns"
    found = reopened(path)
    assert found.td.batch_size == (5,)
    np.testing.assert_array_equal(found["x"], flat(5)["x"])
    if lost:  # xarray writes NaT, silently, where the units are nanoseconds and the resolution is another
        assert np.isnat(found["time"].values[3:]).all()
        return
    np.testing.assert_array_equal(found["time"].values.astype("M8[s]"), flat(5)["time"].values.astype("M8[s]"))


def test_times_of_the_wrong_resolution_are_not_misread(tmp_path):
    path = tmp_path / "a.zarr"
    flat(3).td.to_zarr(path, consolidated=False)
    late = flat(1, 3, "ns").assign_coords(time=flat(1, 3, "ns")["time"] + np.timedelta64(1, "ns"))
    late.to_zarr(path, append_dim="time", consolidated=False)
    assert reopened(path, drop_variables="time")["x"].shape == (4,)
    with pytest.raises(ValueError, match="resolution"):
        reopened(path)


def test_a_record_that_others_left_behind_is_corrected_with_a_warning(tmp_path):
    path = tmp_path / "a.zarr"
    flat(3).td.to_zarr(path, consolidated=False)
    for name in ("x", "done", "time"):
        zarr.open_array(path / name, mode="r+").resize((5,))
    with pytest.warns(UserWarning, match="batch size"):
        found = reopened(path)
    assert found["x"].shape == (5,)
