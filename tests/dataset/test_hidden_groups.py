"""Groups that a flat Dataset leaves out: which, what is said of them, and the ways that are named are run."""

from __future__ import annotations

import ast
import re
import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

from xarray_tensordict import InferredBatchWarning, LeftOutWarning, open_persistent


def write(path: Path, arrays: dict[str, np.ndarray], form: str) -> Path:
    if form == "h5":
        with h5py.File(path, "w") as file:
            for name, values in arrays.items():
                file[name] = values
    else:
        group = zarr.open_group(path, mode="w")
        for name, values in arrays.items():
            group.create_array(name, data=values)
    return path


def advised(sentence: str) -> list[str]:
    """The names in ``drop_variables=[...]`` of a message."""
    (names,) = re.findall(r"drop_variables=(\[.*?\])", sentence)
    return ast.literal_eval(names)


FORMATS = pytest.mark.parametrize("form", ["h5", "zarr3"])


def episodes(*rows: int, extra: int = 0) -> dict[str, np.ndarray]:
    found = {}
    for number, count in enumerate(rows):
        found[f"demo_{number}/obs"] = np.arange((count + extra) * 2.0).reshape(-1, 2)
        found |= {f"demo_{number}/{name}": np.arange(count * 1.0) for name in ("act", "rew", "done")}
    return found


@FORMATS
def test_are_named_in_a_warning_where_something_else_is_shown(tmp_path: Path, form: str) -> None:
    path = write(tmp_path / "store", {"lookup": np.arange(7.0), **episodes(5, 9)}, form)
    with pytest.warns(LeftOutWarning, match=r"2 groups with a batch of their own \(/demo_0 \[5\], /demo_1 \[9\]\)"):
        ds = xr.open_dataset(path, engine="tensordict")
    assert set(ds.variables) == {"lookup"}
    assert "Not shown: 2 groups with a batch of their own" in repr(ds.td)
    ds.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write(tmp_path / "alone", episodes(5, 9), form)
        xr.open_dataset(tmp_path / "alone", engine="tensordict").close()


@FORMATS
def test_are_named_in_a_warning_where_a_tensordict_is_empty_for_them(tmp_path: Path, form: str) -> None:
    rows = {"data/action": np.zeros((60, 2)), "data/state": np.zeros((60, 5)), "meta/episode_ends": np.arange(3)}
    path = write(tmp_path / "store", rows, form)
    said = r"the tensordict is empty, because 2 groups .* open one with group='/data'"
    with xr.open_dataset(path, engine="tensordict") as ds, pytest.warns(LeftOutWarning, match=said):
        assert ds.td.to_tensordict().is_empty()
    with open_persistent(path) as ptd, pytest.warns(LeftOutWarning, match=said):
        assert ptd.to_tensordict().is_empty()


@FORMATS
def test_that_are_asked_for_by_name_are_an_error_with_the_ways_to_them(tmp_path: Path, form: str) -> None:
    path = write(tmp_path / "store", episodes(5, 9), form)
    with open_persistent(path) as ptd:
        for key in ("demo_1", ("demo_1", "obs")):
            with pytest.raises(
                KeyError, match=r"is in the group '/demo_1', which has a batch of its own and is not shown"
            ):
                ptd[key]
    with open_persistent(path, nested=True) as ptd:
        assert ptd["demo_1"].batch_size == (9,)
    with open_persistent(path, group="/demo_1") as ptd:
        assert ptd.batch_size == (9,)


@FORMATS
def test_the_hint_to_join_them_is_given_only_where_it_works(tmp_path: Path, form: str) -> None:
    alike = write(tmp_path / "alike", episodes(5, 9), form)
    with xr.open_dataset(alike, engine="tensordict") as ds:
        (hint,) = re.findall(
            r"xr\.open_datatree\(\.\.\.\)\['(.*?)'\]\.td\.concat\('time'\)", " ".join(repr(ds.td).split())
        )
    with xr.open_datatree(alike, engine="tensordict") as dt:
        joined = dt[hint].td.concat("time")
        assert joined.sizes["time"] == 14
    fewer = episodes(5, 9)
    del fewer["demo_1/rew"]
    wider, finer = ({**episodes(5, 9), "demo_1/obs": obs} for obs in (np.zeros((9, 3)), np.zeros((9, 2), np.float32)))
    for name, other in {"fewer": fewer, "wider": wider, "finer": finer}.items():
        with xr.open_dataset(write(tmp_path / name, other, form), engine="tensordict") as ds:
            assert "concat" not in repr(ds.td)


@FORMATS
def test_of_the_same_entries_are_shown_or_left_out_together(tmp_path: Path, form: str) -> None:
    """Two episodes have one observation more than actions, so many numbers that they have no batch; the third has not."""
    arrays = {}
    for number, extra in enumerate((1, 0, 1)):
        arrays[f"demo_{number}/obs"] = np.zeros((4 + extra, 9))
        arrays[f"demo_{number}/act"] = np.zeros((4, 2))
    path = write(tmp_path / "store", arrays, form)
    with pytest.warns(
        InferredBatchWarning,
        match=r"same entries differ: 'demo_1' has batch size \[4\], 'demo_0', 'demo_2' none.* 'obs' has 5 rows",
    ) as told:
        ds = xr.open_dataset(path, engine="tensordict")
    assert {name.partition("/")[0] for name in map(str, ds.variables)} == {"demo_0", "demo_1", "demo_2"}
    ds.close()
    with (
        xr.open_datatree(path, engine="tensordict") as dt,
        pytest.raises(ValueError, match=r"'demo_0' has the same entries .* 'obs' has 5 rows, 'act' 4"),
    ):
        dt.td.concat("time")
    with xr.open_datatree(path, engine="tensordict", drop_variables=advised(str(told.list[0].message))) as dt:
        assert dt.td.concat("time").sizes["time"] == 12


@FORMATS
def test_episodes_of_which_one_has_an_entry_of_another_length_are_named_by_length(tmp_path: Path, form: str) -> None:
    arrays = {**episodes(4, 6, extra=1), "demo_1/obs": np.zeros((6, 2))}
    path = write(tmp_path / "store", arrays, form)
    with (
        xr.open_datatree(path, engine="tensordict") as dt,
        pytest.raises(
            ValueError, match=r"'obs' has 6 rows in episode 'demo_1', .* and 5 in 'demo_0', where they have 4"
        ),
    ):
        dt.td.concat("time")
    with xr.open_datatree(path, engine="tensordict", drop_variables=["obs"]) as dt:
        assert dt.td.concat("time").sizes["time"] == 10


MINARI = {"one group of entries": "", "entries in a group": "/obs"}


@FORMATS
@pytest.mark.parametrize("below", MINARI.values(), ids=MINARI)
@pytest.mark.parametrize("lengths", [(5, 6), (5, 5)])
def test_episodes_with_one_observation_more_than_actions_say_so_by_length_and_the_advice_joins_them(
    tmp_path: Path, form: str, below: str, lengths: tuple[int, int]
) -> None:
    arrays = {}
    for number, length in enumerate(lengths):
        arrays[f"episode_{number}/observations{below}"] = np.zeros((length + 1, 4))
        arrays |= {f"episode_{number}/{name}": np.arange(length * 1.0) for name in ("actions", "rewards")}
    path = write(tmp_path / "store", arrays, form)
    with warnings.catch_warnings(record=True) as caught, xr.open_datatree(path, engine="tensordict") as dt:
        warnings.simplefilter("always")
        try:
            assert set(dt.td.concat("time").data_vars) == {"actions", "rewards"}
            said = next(str(each.message) for each in caught if each.category is LeftOutWarning)
        except ValueError as error:
            said = str(error)
    assert re.search(r"observations(/obs)?: 6, actions: 5|'observations' has 6 rows, 'actions' 5", said), said
    assert "expand" not in said
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with xr.open_datatree(path, engine="tensordict", drop_variables=advised(said)) as dt:
            joined = dt.td.concat("time")
    assert joined["actions"].values.tolist() == [*range(5), *range(lengths[1])]


@FORMATS
def test_entries_of_other_shapes_cannot_be_expanded_and_the_error_names_them(tmp_path: Path, form: str) -> None:
    arrays = episodes(5, 6)
    for number, count in enumerate((3, 4)):
        arrays[f"demo_{number}/camera/frames"] = np.zeros((count, 7))
    path = write(tmp_path / "store", arrays, form)
    with (
        xr.open_datatree(path, engine="tensordict") as dt,
        pytest.raises(ValueError, match=r"'camera/frames' has dims .*, 3, 7\).* 4, 7\)") as caught,
    ):
        dt.td.concat("time", unbatched="expand")
    with xr.open_datatree(path, engine="tensordict", drop_variables=advised(str(caught.value))) as dt:
        assert dt.td.concat("time", unbatched="expand").sizes["time"] == 11


def test_an_index_of_pytables_is_not_shown_in_place_of_its_table(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "frame.h5", "w") as file:
        file["df/table/a"], file["df/table/b"] = np.zeros(50), np.zeros((50, 2))
        file["df/_i_table/index/sorted"] = np.zeros(9000)
        file["df/other/x"], file["df/other/y"] = np.zeros(900), np.zeros(900)
        file["df/other"].attrs["CLASS"] = np.bytes_("TINDEX")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds = xr.open_dataset(tmp_path / "frame.h5", engine="tensordict")
    assert set(ds.variables) == {"df/table/a", "df/table/b"}
    assert ds.td.batch_size == (50,)
    text = " ".join(repr(ds.td).split())
    assert "'df/_i_table': it is the search index of a PyTables table; group='df/_i_table' opens it" in text
    assert "'df/other': it is the search index" in text
    ds.close()
    with xr.open_dataset(tmp_path / "frame.h5", engine="tensordict", group="df/_i_table") as ds:
        assert set(ds.variables) == {"index/sorted"}
    with xr.open_datatree(tmp_path / "frame.h5", engine="tensordict") as dt:
        assert set(dt["df"].children) == {"table"}


def test_a_variable_whose_attribute_is_left_out_is_there(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "store.h5", "w") as file:
        file["x"] = np.zeros((4, 2))
        file["x"].attrs["blob"] = np.void(b"abc")
    with pytest.warns(LeftOutWarning, match=r"left out attribute 'blob' of 'x': it is opaque"):
        ptd = open_persistent(tmp_path / "store.h5")
    assert ptd["x"].shape == (4, 2)
    ptd.close()
