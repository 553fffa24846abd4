"""Episodes of different lengths as one Dataset: from groups, and from one table, with every row where it belongs."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from xarray_tensordict import open_persistent
from xarray_tensordict.testing import assert_same_tensordict

pytestmark = pytest.mark.filterwarnings("ignore:.*Zarr format 3.*", "ignore:.*does not have a Zarr V3 specification.*")

LENGTHS = {"demo_0": 3, "demo_2": 5, "demo_12": 4}


def demo(number: int, length: int) -> xr.Dataset:
    rows = np.arange(length) + 100.0 * number
    return xr.Dataset(
        {
            "actions": (("time", "act"), rows[:, None] + [0.25, 0.5]),
            "done": ("time", np.arange(length) == length - 1),
            "word": ("time", np.array([f"{number}:{row}" for row in range(length)], object)),
            "when": ("time", (np.arange(length) + number).astype("M8[D]").astype("M8[ns]")),
        },
        attrs={"num_samples": length, "env": "Lift", "model": "<xml/>" * 100 + str(number)},
    )


def tree(lengths: dict[str, int] = LENGTHS, **more: Any) -> xr.DataTree:
    nodes: dict[str, xr.Dataset] = {}
    for name, length in sorted(lengths.items()):
        ds = demo(int(name.rpartition("_")[2]), length)
        nodes[f"/data/{name}"] = ds.assign({key: make(ds) for key, make in more.items()})
        nodes[f"/data/{name}/obs"] = xr.Dataset(
            {"eef": (("time", "xyz"), np.full((length, 3), ds.actions[:1, :1] * 2))}
        )
    return xr.DataTree.from_dict(nodes)


def written(dt: xr.DataTree, path: Path) -> Path:
    dt.td.to_zarr(path) if path.suffix == ".zarr" else dt.td.to_h5(path)
    return path


def stored(path: Path, arrays: dict[str, Any]) -> Path:
    """A store of arrays without names, by path."""
    if path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file.update({name: np.asarray(values) for name, values in arrays.items()})
        return path
    root = zarr.open_group(path, mode="w")
    for name, values in arrays.items():
        root.create_array(name, data=np.asarray(values))
    return path


def open_tree(path: Path, **keywords: Any) -> xr.DataTree:
    return xr.open_datatree(path, engine="tensordict", **keywords)


SUFFIXES = pytest.mark.parametrize("suffix", [".zarr", ".h5"])


class TestGroups:
    @SUFFIXES
    @pytest.mark.parametrize(
        "keywords", [{}, {"chunks": {}}, {"chunks": {"time": 2}}], ids=["as-is", "chunks", "chunks-of-2"]
    )
    @pytest.mark.filterwarnings("ignore:.*separate the stored chunks")
    def test_are_joined_lazily_in_natural_order(self, tmp_path, suffix, keywords):
        with open_tree(written(tree(), tmp_path / f"demos{suffix}"), **keywords) as dt:
            ds = dt["data"].td.concat("time", index="episode")
            assert {name for name, v in ds.data_vars.items() if v.chunks is None} == set()
            assert not any(v._in_memory for node in dt.subtree for v in node.to_dataset().variables.values())
            assert ds["episode"].values.tolist() == [0] * 3 + [1] * 5 + [2] * 4
            assert ds["step"].values.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2, 3]
            assert ds["episode"].attrs["names"] == ["demo_0", "demo_2", "demo_12"]
            assert ds.actions.chunks[0] == ((2, 1, 2, 2, 1, 2, 2) if keywords.get("chunks") else (3, 5, 4))
            assert (ds.td.batch_dims, ds.td.batch_size) == (("time",), (12,))
            expected = [demo(number, length) for number, length in ((0, 3), (2, 5), (12, 4))]
            for name in expected[0]:
                np.testing.assert_array_equal(ds[name], np.concatenate([part[name] for part in expected]))
            assert ds["obs/eef"][3:8].values.tolist() == [[400.5] * 3] * 5

    def test_attributes_that_all_share_are_kept_and_short_ones_that_differ_are_listed(self):
        ds = tree()["data"].td.concat("time")
        assert ds.attrs == {"env": "Lift"}
        assert ds["episode"].attrs == {
            "names": ["demo_0", "demo_2", "demo_12"],
            "step_variable": "step",
            "num_samples": [3, 5, 4],
        }

    def test_what_is_joined_is_written_and_read_in_both_libraries(self, tmp_path):
        with open_tree(written(tree(success=lambda ds: ds.done.any()), tmp_path / "demos.h5")) as dt:
            ds = dt["data"].td.concat("time")
            expected = ds.td.to_tensordict()
            for target in (tmp_path / "joined.zarr", tmp_path / "joined.h5"):
                ds.td.to_zarr(target) if target.suffix == ".zarr" else ds.td.to_h5(target)
                with xr.open_dataset(target, engine="tensordict") as again:
                    xr.testing.assert_identical(again.load(), ds.compute())
                    assert_same_tensordict(again.td.to_tensordict(), expected)
                with open_persistent(target) as ptd:
                    assert_same_tensordict(ptd.to_tensordict(), expected)
        bare = TensorDict.from_zarr(tmp_path / "joined.zarr")
        assert bare.batch_size == (12,)
        assert torch.equal(bare["obs", "eef"], expected["obs", "eef"])
        assert torch.equal(bare["episode"], expected["episode"])

    def test_other_names(self):
        ds = tree()["data"].td.concat("row", index="demo", step="t")
        assert set(ds.coords) == {"demo", "t"}
        assert ds.sizes["row"] == 12

    @pytest.mark.parametrize("taken", ["episode", "step"])
    def test_that_have_a_variable_of_that_name_are_refused(self, taken):
        dt = tree(**{taken: lambda ds: ds.done})
        with pytest.raises(ValueError, match=f"'/data/demo_0' has a variable '{taken}' already; choose another name"):
            dt["data"].td.concat("time")

    def test_the_name_of_a_feature_dim_is_refused(self):
        with pytest.raises(ValueError, match="'act' is the name of something else than the batch there"):
            tree()["data"].td.concat("act")

    @SUFFIXES
    def test_single_values_become_one_for_each_row(self, tmp_path, suffix):
        dt = tree(success=lambda ds: ds.done.any() & (ds.sizes["time"] > 3), score=lambda ds: ds.actions.max())
        for node in dt["data"].children.values():
            node["task"] = f"task of {node.name}"
        with open_tree(written(dt, tmp_path / f"demos{suffix}")) as opened:
            ds = opened["data"].td.concat("time")
            assert ds["success"].values.tolist() == [False] * 3 + [True] * 9
            assert ds["score"].values.tolist() == [2.5] * 3 + [204.5] * 5 + [1203.5] * 4
            assert ds["task"][[0, 3, 8]].values.tolist() == ["task of demo_0", "task of demo_2", "task of demo_12"]
            assert ds["success"].chunks is not None

    def test_arrays_of_single_episodes_are_left_out_by_name_or_repeated(self):
        dt = tree(start=lambda ds: xr.Variable("joint", ds.actions.values[0]))
        with pytest.warns(UserWarning, match=r"without \['start'\].*unbatched='expand'.*dt\['demo_0'\]"):
            assert "start" not in dt["data"].td.concat("time")
        ds = dt["data"].td.concat("time", unbatched="expand")
        assert ds["start"].dims == ("time", "joint")
        assert ds["start"][:, 0].values.tolist() == [0.25] * 3 + [200.25] * 5 + [1200.25] * 4
        with pytest.raises(ValueError, match="unbatched: expected"):
            dt["data"].td.concat("time", unbatched="keep")

    def test_coordinates_of_features_stay_as_they_are_and_must_be_equal(self):
        dt = tree()
        for node in dt["data"].children.values():
            node.coords["act"] = ["x", "y"]
        ds = dt["data"].td.concat("time")
        assert ds.coords["act"].dims == ("act",)
        assert ds["act"].values.tolist() == ["x", "y"]
        dt["data/demo_2"].coords["act"] = ["y", "x"]
        with pytest.raises(ValueError, match="'act' differs between the episodes 'demo_0' and 'demo_2'"):
            dt["data"].td.concat("time")

    def test_an_index_of_rows_becomes_one_of_all_rows(self):
        dt = tree()
        for node in dt["data"].children.values():
            node.coords["time"] = np.arange(node.sizes["time"]) * 0.1
        ds = dt["data"].td.concat("time")
        np.testing.assert_allclose(ds["time"], ds["step"] * 0.1)

    def test_that_lack_a_variable_are_refused_by_name(self):
        nodes = {"/demo_0": demo(0, 3), "/demo_2": demo(2, 2).drop_vars("actions")}
        with pytest.raises(ValueError, match=r"'actions' is in episode 'demo_0' and not in 'demo_2'.*\['actions'\]"):
            xr.DataTree.from_dict(nodes).td.concat("time")

    @pytest.mark.parametrize(
        "change",
        [
            lambda ds: ds.assign(actions=ds.actions.astype("f4")),
            lambda ds: ds.isel(act=[0]),
            lambda ds: ds.rename(act="other"),
        ],
        ids=["dtype", "feature size", "feature name"],
    )
    def test_that_differ_in_more_than_length_are_refused_by_group_and_variable(self, change):
        nodes = {"/demo_0": demo(0, 3), "/demo_2": demo(2, 2), "/demo_12": change(demo(12, 4))}
        with pytest.raises(ValueError, match=r"'actions' has dims .* in episode 'demo_0'.* in 'demo_12'"):
            xr.DataTree.from_dict(nodes).td.concat("time")

    @SUFFIXES
    def test_whose_feature_sizes_equal_their_length_are_no_exception(self, tmp_path, suffix):
        """Without names, an episode of 4 rows of 4 numbers could be taken for a batch of 4 by 4."""
        arrays: dict[str, Any] = {}
        for name, length in (("a_1", 4), ("a_2", 6)):
            arrays |= {f"{name}/x": np.full((length, 4), length * 1.0), f"{name}/y": np.zeros((length, 4, 2))}
        with open_tree(stored(tmp_path / f"raw{suffix}", arrays)) as dt:
            ds = dt.td.concat("time")
            assert ds.y.dims == ("time", "dim_4", "dim_2")
            assert ds.x[:, 0].values.tolist() == [4.0] * 4 + [6.0] * 6

    def test_beside_groups_without_a_batch_are_joined_and_those_are_told(self):
        odd = xr.Dataset({"mean": ("feature", [1.0, 2.0]), "std": ("channel", [1.0, 2.0, 3.0])})
        dt = xr.DataTree.from_dict(
            {"/demo_1": demo(1, 2), "/stats": odd, "/mask": xr.Dataset({"train": ("n", ["demo_1"])})}
        )
        with pytest.warns(UserWarning, match="groups without a batch are no episodes: 'stats'"):
            assert dt.td.concat("time").sizes["time"] == 2

    def test_are_looked_for_and_pointed_at(self):
        with pytest.raises(ValueError, match=r"holds no episodes.*There are some in 'data': dt\['data'\].td.concat"):
            tree().td.concat("time")

    @SUFFIXES
    def test_of_equal_length_one_group_down_are_pointed_at_and_are_not_columns_of_one_episode(self, tmp_path, suffix):
        arrays = {f"data/demo_{n}/{name}": np.zeros((20, 3)) for n in range(3) for name in ("actions", "obs/eef")}
        with open_tree(stored(tmp_path / f"equal{suffix}", {**arrays, "data/total": 60})) as dt:
            with pytest.raises(
                ValueError, match=r"holds no episodes.*There are some in 'data': dt\['data'\].td.concat"
            ):
                dt.td.concat("time")
            assert dt["data"].td.concat("time")["episode"].values.tolist() == [0] * 20 + [1] * 20 + [2] * 20

    def test_with_numbered_groups_of_their_own_keep_these_as_entries(self):
        agents = {f"/ep_{n}/agent_{m}": xr.Dataset({"x": ("time", np.zeros(4))}) for n in range(2) for m in range(2)}
        ds = xr.DataTree.from_dict(agents).td.concat("time")
        assert (set(ds.data_vars), ds.sizes["time"]) == ({"agent_0/x", "agent_1/x"}, 8)

    @SUFFIXES
    @pytest.mark.parametrize("dim", ["time", "row"])
    @pytest.mark.parametrize("order", [("env", "time"), ("time", "env")])
    def test_of_several_envs_are_joined_along_their_steps(self, tmp_path, suffix, dim, order):
        def steps(start: int, length: int) -> xr.Dataset:
            rows = np.arange(start, start + 2 * length).reshape(2, length)
            fields = {"obs": (("env", "time", "f"), rows[..., None] + [0.0, 0.5, 0.25]), "r": (("env", "time"), rows)}
            return xr.Dataset(fields).transpose(*order, ...).td.set_batch_dims(list(order))

        dt = xr.DataTree.from_dict({"/ep0": steps(0, 3), "/ep1": steps(100, 4)})
        with open_tree(written(dt, tmp_path / f"envs{suffix}")) as opened:
            ds = opened.td.concat(dim)
            assert (ds.td.batch_dims, ds.td.batch_size) == ((dim, "env"), (7, 2))
            rows = np.array([[0, 1, 2, 100, 101, 102, 103], [3, 4, 5, 104, 105, 106, 107]])
            np.testing.assert_array_equal(ds["r"].transpose("env", dim), rows)
            np.testing.assert_array_equal(ds["obs"].isel(f=1).transpose("env", dim), rows + 0.5)
            assert ds["step"].values.tolist() == [0, 1, 2, 0, 1, 2, 3]


# -- one table ---------------------------------------------------------------------------------------------------------


def table(**more: Any) -> xr.Dataset:
    fields = {"state": (("row", "f"), np.arange(20.0).reshape(10, 2)), "reward": ("row", np.arange(10.0))}
    return xr.Dataset({**fields, **more})


def cut(ds: xr.Dataset) -> dict[int, list[float]]:
    """The rewards of each episode."""
    groups: dict[int, list[float]] = {}
    for number, reward in zip(ds["episode"].values.tolist(), ds["reward"].values.tolist(), strict=True):
        groups.setdefault(number, []).append(reward)
    return groups


EPISODES = {0: [0.0, 1.0, 2.0, 3.0], 1: [4.0, 5.0, 6.0, 7.0, 8.0, 9.0]}
NUMBERS = np.array([0] * 4 + [1] * 6)
FLAGS = np.isin(np.arange(10), [3, 9])


class TestTables:
    @SUFFIXES
    @pytest.mark.parametrize("place", ["meta/episode_ends", "data/episode_ends"])
    def test_of_diffusion_policy(self, tmp_path, suffix, place):
        arrays = {"data/state": table().state, "data/reward": table().reward, place: np.array([4, 10])}
        with open_tree(stored(tmp_path / f"buffer{suffix}", arrays)) as dt:
            for node in (dt, dt["data"]):
                ds = node.td.concat("time")
                assert cut(ds) == EPISODES
                assert ds["step"].values.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5]
                assert set(ds.data_vars) == {"state", "reward"}
                assert (ds.td.batch_dims, ds.td.batch_size) == (("time",), (10,))

    @pytest.mark.parametrize(
        "more",
        [
            {"episode_ends": ("n", [4, 10])},
            {"episode_index": ("row", NUMBERS)},
            {"episode": ("row", NUMBERS)},
            {"collector/traj_ids": ("row", NUMBERS)},
            {"terminals": ("row", np.isin(np.arange(10), [3])), "timeouts": ("row", np.isin(np.arange(10), [9]))},
            {"terminals": ("row", FLAGS)},
            {"next/done": (("row", "one"), FLAGS[:, None])},
            {"dones": ("row", FLAGS.astype(int))},
            {"dones": ("row", FLAGS.astype("f4"))},
            {"terminated": ("row", np.isin(np.arange(10), [3])), "truncated": ("row", np.isin(np.arange(10), [9]))},
            {"terminations": ("row", np.isin(np.arange(10), [9])), "truncations": ("row", np.isin(np.arange(10), [3]))},
            {"is_last": ("row", FLAGS), "is_terminal": ("row", np.zeros(10, bool))},
            {"is_last": ("row", FLAGS)},
            {"is_first": ("row", np.isin(np.arange(10), [0, 4]))},
            {"is_init": (("row", "one"), np.isin(np.arange(10), [0, 4])[:, None])},
        ],
        ids=lambda more: "+".join(more),
    )
    def test_as_a_dataset_or_as_a_tree(self, more):
        ds = table(**more)
        joined = ds.td.concat("time")
        assert cut(joined) == EPISODES
        assert joined["state"].dims == ("time", "f")
        nested: dict[str, xr.Dataset] = {}
        for name, variable in ds.variables.items():
            group, _, local = f"/{name}".rpartition("/")
            nested[group or "/"] = nested.get(group or "/", xr.Dataset()).assign({local: variable})
        xr.testing.assert_identical(xr.DataTree.from_dict(nested).td.concat("time"), joined)

    @pytest.mark.parametrize(
        "more",
        [{"stop": ("n", [4, 10])}, {"traj": ("row", NUMBERS)}, {"last": ("row", FLAGS)}],
        ids=["ends", "numbers", "flags"],
    )
    def test_cut_by_the_variable_that_is_named(self, more):
        (name,) = more
        with pytest.raises(ValueError, match="holds no episodes"):
            table(**more).td.concat("time")
        assert cut(table(**more).td.concat("time", by=name)) == EPISODES
        with pytest.raises(ValueError, match="by: the dataset has no variable 'nothing'"):
            table(**more).td.concat("time", by="nothing")

    @pytest.mark.parametrize(
        "names", [("terminated", "truncated"), ("terminals", "timeouts"), ("is_terminal", "is_last")]
    )
    def test_cut_by_one_of_a_pair_are_cut_by_both(self, names):
        ends = {names[0]: ("row", np.arange(10) == 3), names[1]: ("row", np.isin(np.arange(10), [6, 9]))}
        for name in names:
            joined = table(**ends).td.concat("time", by=name)
            assert np.bincount(joined["episode"]).tolist() == [4, 3, 3]
            assert {*names} <= {*joined.data_vars}
        alone = table(**{names[0]: ends[names[0]]}).td.concat("time", by=names[0])
        assert np.bincount(alone["episode"]).tolist() == [4, 6]

    def test_marked_by_one_of_a_pair_alone_are_refused_with_its_name(self):
        with pytest.raises(ValueError, match=r"name another variable with by='timeouts'[.] Found variables"):
            table(timeouts=np.isin(np.arange(10), [3, 6, 9])).td.concat("time")

    @pytest.mark.parametrize("dtype", [bool, int, "f4"])
    def test_cut_by_flags_of_first_rows(self, dtype):
        first = np.isin(np.arange(10), [0, 4]).astype(dtype)
        assert cut(table(is_first=("row", first)).td.concat("time", by="is_first")) == EPISODES
        first[0] = 0  # the table begins within an episode
        assert cut(table(is_first=("row", first)).td.concat("time", by="is_first")) == EPISODES

    @pytest.mark.parametrize("value", [0.5, 2.0, np.nan])
    def test_by_flags_of_other_values_than_0_and_1_are_refused(self, value):
        flags = FLAGS.astype(float)
        flags[2] = value
        with pytest.raises(ValueError, match=r"'dones' of dtype float64 .* expected one of 0 or 1"):
            table(dones=("row", flags)).td.concat("time")

    def test_by_a_list_are_refused_and_one_of_a_pair_is_enough(self):
        with pytest.raises(TypeError, match=r"by: expected the name of one variable.*terminated with truncated"):
            table(terminated=("row", FLAGS), truncated=("row", FLAGS)).td.concat("time", by=["terminated", "truncated"])

    def test_keep_the_numbers_of_a_part(self):
        """The episodes 7 and 5 of a LeRobot data set."""
        ds = table(episode_index=("row", np.array([7] * 4 + [5] * 6))).td.concat("time")
        assert cut(ds) == {7: EPISODES[0], 5: EPISODES[1]}

    def test_whose_episodes_come_back_are_refused(self):
        with pytest.raises(ValueError, match=r"episode 0 of 'episode_index' comes back in row 4.*sortby"):
            table(episode_index=("row", np.array([0, 0, 1, 1, 0, 0, 2, 2, 2, 2]))).td.concat("time")

    def test_rows_behind_the_last_end_are_no_episode_and_those_behind_the_last_flag_are_one(self):
        assert cut(table(episode_ends=("n", [4, 6])).td.concat("time")) == {0: EPISODES[0], 1: [4.0, 5.0]}
        assert cut(table(terminals=("row", np.arange(10) == 3)).td.concat("time")) == EPISODES

    @pytest.mark.parametrize("ends", [[4, 11], [6, 4], []], ids=["too far", "descending", "none"])
    def test_that_their_ends_do_not_fit_are_refused(self, ends):
        with pytest.raises(ValueError, match="does not fit a table of 10 rows"):
            table(episode_ends=("n", np.array(ends, int))).td.concat("time")

    def test_stay_lazy(self, tmp_path):
        table(episode_index=("row", NUMBERS)).td.to_zarr(tmp_path / "table.zarr")
        with xr.open_dataset(tmp_path / "table.zarr", engine="tensordict") as ds:
            joined = ds.td.concat("time")
            assert not joined["state"].variable._in_memory
        table(episode_index=("row", NUMBERS)).td.to_zarr(tmp_path / "chunked.zarr", chunks={"row": 5})
        with xr.open_dataset(tmp_path / "chunked.zarr", engine="tensordict", chunks={}) as ds:
            assert ds.td.concat("time")["state"].chunks == ((5, 5), (2,))

    def test_that_were_joined_are_cut_again(self, tmp_path):
        ds = tree()["data"].td.concat("time")
        ds.td.to_zarr(tmp_path / "joined.zarr")
        with xr.open_dataset(tmp_path / "joined.zarr", engine="tensordict") as again:
            same = again.drop_vars("step").td.concat("time")
            assert same["step"].values.tolist() == ds["step"].values.tolist()
            assert same["episode"].values.tolist() == ds["episode"].values.tolist()


# -- torchrl -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rl() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its binaries, and deprecations of tensordict
        import torchrl.data

        return torchrl.data


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
class TestSliceSampler:
    @pytest.mark.parametrize("lazy", [False, True])
    def test_samples_no_slice_of_two_episodes(self, tmp_path, rl, lazy):
        tree({"demo_0": 7, "demo_2": 11, "demo_12": 6})["data"].td.concat("time").td.to_zarr(tmp_path / "joined.zarr")
        with open_persistent(tmp_path / "joined.zarr") as ptd:
            td = ptd if lazy else ptd.to_tensordict()
            storage = rl.TensorStorage(td) if lazy else rl.LazyTensorStorage(len(td))
            sampler = rl.SliceSampler(slice_len=4, traj_key="episode")
            buffer = rl.ReplayBuffer(storage=storage, sampler=sampler, batch_size=32)
            lazy or buffer.extend(td)
            for _ in range(5):
                slices = buffer.sample().reshape(-1, 4)
                assert (slices["episode"] == slices["episode"][:, :1]).all()
                assert (slices["step"].diff(dim=1) == 1).all()
                number = torch.tensor([0, 2, 12])[slices["episode"]]
                assert torch.equal(slices["actions"][..., 0], number * 100 + slices["step"] + 0.25)


# -- properties --------------------------------------------------------------------------------------------------------

NAMES = st.lists(
    st.tuples(st.sampled_from(["demo_", "ep", "", "é "]), st.integers(0, 120)).map(lambda pair: f"{pair[0]}{pair[1]}"),
    min_size=1,
    max_size=5,
    unique=True,
)


@st.composite
def episode_groups(draw: st.DrawFn) -> dict[str, xr.Dataset]:
    dtypes = {name: draw(st.sampled_from(["f4", "i2", "?", "M8[ns]"])) for name in ("x", "obs/eef")}
    features = draw(st.integers(1, 3))
    found = {}
    for place, name in enumerate(draw(NAMES)):
        length = draw(st.integers(0, 4))
        rows = (np.arange(length * features).reshape(length, features) + 50 * place) % 251
        variables = {entry: (("time", "f"), rows.astype(dtype)) for entry, dtype in dtypes.items()}
        found[name] = xr.Dataset({**variables, "first": ("time", rows[:, 0].astype(float))}, attrs={"place": place})
    return found


def as_tree(groups: dict[str, xr.Dataset]) -> xr.DataTree:
    nodes = {}
    for name, ds in groups.items():
        nodes[f"/{name}"] = ds.drop_vars("obs/eef").assign_attrs(ds.attrs)
        nodes[f"/{name}/obs"] = ds[["obs/eef"]].rename({"obs/eef": "eef"}).drop_attrs()
    return xr.DataTree.from_dict(nodes)


WRITERS = {
    "ours.zarr": lambda dt, path: dt.td.to_zarr(path),
    "ours.h5": lambda dt, path: dt.td.to_h5(path),
    "for-xarray.zarr": lambda dt, path: dt.td.to_zarr(path, layout="xarray"),
    "for-xarray.h5": lambda dt, path: dt.td.to_h5(path, layout="xarray"),
    "xarray.zarr": lambda dt, path: dt.to_zarr(path),
    "xarray.nc": lambda dt, path: dt.to_netcdf(path, engine="h5netcdf"),
}


@settings(deadline=None, max_examples=12)
@given(groups=episode_groups(), writer=st.sampled_from(sorted(WRITERS)))
def test_each_row_is_that_of_its_group_and_none_is_lost(groups, writer):
    order = sorted(groups, key=_by_number)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / writer
        WRITERS[writer](as_tree(groups), path)
        with open_tree(path) as dt:
            ds = dt.td.concat("time").load()
            td = dt.td.to_tensordict()
            with open_persistent(path, nested=True) as ptd:
                assert_same_tensordict(ptd.to_tensordict(), td)
        assert ds["episode"].attrs["names"] == order
        assert ds.sizes["time"] == sum(part.sizes["time"] for part in groups.values())
        for number, name in enumerate(order):
            rows = ds.isel(time=np.flatnonzero(ds["episode"].values == number))
            assert rows["step"].values.tolist() == list(range(groups[name].sizes["time"]))
            for entry in ("x", "obs/eef", "first"):
                assert rows[entry].dtype == groups[name][entry].dtype
                np.testing.assert_array_equal(rows[entry].values, groups[name][entry].values)


def _by_number(name: str) -> tuple[str, int]:
    head = name.rstrip("0123456789")
    return head, int(name[len(head) :])


@pytest.mark.parametrize("ends", [[3.5, 12.0], [True, True], [3.0, np.nan], [3.0, np.inf], ["3", "12"]])
def test_ends_that_are_no_numbers_of_rows_are_refused(ends):
    ds = xr.Dataset({"x": ("t", np.arange(12)), "episode_ends": ("e", np.array(ends))})
    with pytest.raises(ValueError, match=r"'episode_ends' .* has values that are no numbers of rows"):
        ds.td.concat("t")


def test_ends_that_were_decoded_to_floats_are_numbers_of_rows():
    ds = xr.Dataset({"x": ("t", np.arange(12)), "episode_ends": ("e", np.array([3.0, 12.0]))})
    assert np.bincount(ds.td.concat("t")["episode"]).tolist() == [3, 9]
