"""DataTrees: hierarchies of every kind open, keep their own batches, convert, are written and come back."""

from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from tensordict import PersistentTensorDict, TensorDict

import corpus
from xarray_tensordict import open_persistent
from xarray_tensordict.testing import assert_same_tensordict

pytestmark = pytest.mark.filterwarnings("ignore:.*Zarr format 3.*", "ignore:.*does not have a Zarr V3 specification.*")

FORMATS = pytest.mark.parametrize("form", ["zarr", "h5"])
LAYOUTS = pytest.mark.parametrize("layout", ["tensordict", "xarray"])
PAIRS = [("zarr", "tensordict"), ("h5", "xarray"), ("zarr", "xarray"), ("h5", "tensordict")]


def open_tree(path: Any, **keywords: Any) -> xr.DataTree:
    return xr.open_datatree(path, engine="tensordict", **keywords)


def store(path: Path, form: str, arrays: dict[str, Any], attrs: dict[str, Any] | None = None) -> Path:
    """A store of arrays by path, as its field fills it; text as the format has it."""
    root: Any = zarr.open_group(path, mode="w") if form == "zarr" else h5py.File(path, "w")
    for name, given in arrays.items():
        group, _, local = f"/{name}".rpartition("/")
        parent, values = root.require_group(group or "/") if group else root, np.asarray(given)
        if form == "zarr":
            parent.create_array(local, data=values.astype("U20") if values.dtype.kind in "SUO" else values)
        else:
            parent.create_dataset(local, data=values.astype("S20") if values.dtype.kind == "U" else values)
    for name, found in (attrs or {}).items():
        (root[name] if name else root).attrs.update(found)
    if form == "h5":
        root.close()
    return path


def batches(td: TensorDict) -> dict[str, list[int]]:
    """The batch size of the root and of every nested tensordict."""
    nested = {
        "/".join(key) if isinstance(key, tuple) else key: value
        for key, value in td.items(include_nested=True)
        if isinstance(value, TensorDict)
    }
    return {"": list(td.batch_size)} | {key: list(value.batch_size) for key, value in nested.items()}


def assert_tree_keeps_the_law(path: Path, dt: xr.DataTree, **keywords: Any) -> None:
    """The tree, the flat view and the lazy tensordict are one store."""
    td = dt.td.to_tensordict()
    with open_persistent(path, nested=True, **keywords) as ptd:
        assert_same_tensordict(ptd.to_tensordict(), td)
    with xr.open_dataset(path, engine="tensordict", nested=True, **keywords) as ds:
        assert_same_tensordict(ds.td.to_tensordict(), td)
        xr.testing.assert_identical(dt.td.to_dataset().load(), ds.load())


# -- hierarchies of the fields -----------------------------------------------------------------------------------------

LENGTHS = {"demo_0": 3, "demo_2": 5, "demo_12": 4}
ROBOMIMIC = {
    **{f"data/{demo}/actions": np.arange(n * 2.0).reshape(n, 2) for demo, n in LENGTHS.items()},
    **{f"data/{demo}/dones": np.arange(n) == n - 1 for demo, n in LENGTHS.items()},
    **{f"data/{demo}/obs/eef": np.ones((n, 3)) for demo, n in LENGTHS.items()},
    "mask/train": ["demo_0", "demo_2"],
}
MINARI = {
    f"episode_{number}/{name}": np.zeros((n + (name == "observations"), *more))
    for number, n in enumerate((4, 6))
    for name, more in {
        "actions": (2,),
        "rewards": (),
        "terminations": (),
        "infos/success": (),
        "observations": (3,),
    }.items()
}
ANNDATA = {
    "obs/_index": [f"cell{i}" for i in range(5)],
    "obs/n_genes": np.arange(5),
    "obs/leiden/codes": np.array([0, 1, 1, 0, 1], "i1"),
    "obs/leiden/categories": ["a", "b"],
    "var/_index": [f"gene{i}" for i in range(3)],
    "var/mean": np.zeros(3),
    "X/data": np.ones(4, "f4"),
    "X/indices": np.array([0, 1, 2, 0]),
    "X/indptr": np.array([0, 1, 2, 3, 4, 4]),
    "layers/counts": np.ones((5, 3)),
    "obsm/pca": np.ones((5, 2)),
}
ANNDATA_ATTRS = {
    "": {"encoding-type": "anndata", "encoding-version": "0.1.0"},
    "obs": {"encoding-type": "dataframe", "_index": "_index", "column-order": ["n_genes", "leiden"]},
    "obs/leiden": {"encoding-type": "categorical", "ordered": False},
    "X": {"encoding-type": "csr_matrix", "shape": [5, 3]},
}
NWB = {
    "session_start_time": "2020-01-01",
    "acquisition/ecephys/lfp/data": np.zeros((20, 4), "f4"),
    "acquisition/ecephys/lfp/timestamps": np.arange(20.0),
    "intervals/trials/start_time": np.arange(3.0),
    "intervals/trials/stop_time": np.arange(3.0) + 1,
    "intervals/trials/outcome": ["hit", "miss", "hit"],
}
PYRAMID = {
    "0": np.zeros((2, 3, 8, 8), "u2"),
    "1": np.zeros((2, 3, 4, 4), "u2"),
    "labels/nuclei/0": np.zeros((8, 8), "i4"),
}
SPLITS = {
    f"{name}/{x}": np.zeros((n, *more))
    for name, n in (("train", 8), ("test", 3))
    for x, more in (("x", (4, 4)), ("y", ()))
}

FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, list[int]]]] = {
    "robomimic": (
        ROBOMIMIC,
        {f"data/{demo}": {"num_samples": n} for demo, n in LENGTHS.items()},
        {"data": [], **{f"data/{demo}{below}": [n] for demo, n in LENGTHS.items() for below in ("", "/obs")}},
    ),
    "minari": (MINARI, {}, {f"episode_{i}{below}": [n] for i, n in ((0, 4), (1, 6)) for below in ("", "/infos")}),
    "anndata": (ANNDATA, ANNDATA_ATTRS, {"layers": [5], "obsm": [5], "obs": [5], "var": [3]}),
    "nwb": (NWB, {}, {"acquisition/ecephys/lfp": [20], "intervals/trials": [3]}),
    "pyramid": (PYRAMID, {}, {}),
    "splits": (SPLITS, {}, {"train": [8], "test": [3]}),
}
OF_FIELDS = pytest.mark.parametrize(("arrays", "attrs", "expected"), FIELDS.values(), ids=FIELDS)
OF_FIELDS_IN_PAIRS = pytest.mark.parametrize(
    ("arrays", "attrs", "expected", "form", "layout"),
    [
        pytest.param(*field, *pair, id="-".join((name, *pair)))
        for name, field in FIELDS.items()
        for pair in (PAIRS if name in ("anndata", "nwb") else PAIRS[:2])  # those with text in all
    ],
)


@pytest.mark.filterwarnings("ignore:.*the dim is called:UserWarning")
class TestHierarchiesOfTheFields:
    @OF_FIELDS
    @FORMATS
    def test_each_node_has_its_own_batch_and_both_libraries_agree(self, tmp_path, arrays, attrs, expected, form):
        path = store(tmp_path / "store", form, arrays, attrs)
        groups = xr.open_groups(path, engine="tensordict")
        with open_tree(path) as dt:
            found, text = batches(dt.td.to_tensordict()), repr(dt.td)
            for key, sizes in expected.items():
                assert found[key] == list(dt[key].td.batch_size) == sizes
                assert f"/{key}: batch ({'none' if not sizes else ''}" in text
            assert_tree_keeps_the_law(path, dt)
            assert set(groups) == {node.path for node in dt.subtree}
            for name, ds in groups.items():
                assert set(ds.variables) == set(dt[name].to_dataset(inherit=False).variables)
                ds.close()

    @OF_FIELDS_IN_PAIRS
    def test_a_tree_that_is_written_comes_back(self, tmp_path, arrays, attrs, expected, form, layout):
        with open_tree(store(tmp_path / "store", form, arrays, attrs)) as dt:
            for suffix in ("zarr", "h5"):
                target = tmp_path / f"copy.{suffix}"
                getattr(dt.td, f"to_{suffix}")(target, layout=layout)
                with open_tree(target) as again:
                    xr.testing.assert_identical(again.load(), dt.load())
                    assert_same_tensordict(again.td.to_tensordict(), dt.td.to_tensordict())
                    assert_tree_keeps_the_law(target, again)
            if layout == "tensordict":
                bare, ours = TensorDict.from_zarr(tmp_path / "copy.zarr"), dt.td.to_tensordict()
                for key, sizes in expected.items():
                    group = tuple(key.split("/"))
                    assert list(bare[group].batch_size) == sizes
                    for name, value in ours[group].items():
                        assert not isinstance(value, torch.Tensor) or torch.equal(bare[(*group, name)], value)
            else:
                with xr.open_datatree(tmp_path / "copy.zarr", engine="zarr") as plain:
                    for node in dt.subtree:
                        numbers = [
                            n for n, v in node.to_dataset(inherit=False).variables.items() if v.dtype.kind in "biuf"
                        ]
                        for name in numbers:
                            xr.testing.assert_equal(plain[node.path][name].variable, dt[node.path][name].variable)

    def test_nothing_is_read_on_opening(self, tmp_path):
        store(tmp_path / "store", "zarr", ROBOMIMIC)
        with open_tree(tmp_path / "store") as dt:
            repr(dt.td)
            flat = dt.td.to_dataset()
            loaded = [node.path for node in dt.subtree for v in node.variables.values() if v._in_memory]
            assert loaded == []
            assert not any(v._in_memory for v in flat.variables.values())

    def test_a_subtree_is_a_tree(self, tmp_path):
        store(tmp_path / "store", "h5", ROBOMIMIC)
        with open_tree(tmp_path / "store") as dt, open_tree(tmp_path / "store", group="data") as data:
            assert_same_tensordict(dt["data"].td.to_tensordict(), data.td.to_tensordict())
            assert_same_tensordict(dt["data"].td.to_tensordict(), dt.td.to_tensordict()["data"])
            demo = dt["data/demo_2"].td.to_dataset()
            assert set(demo.variables) == {"actions", "dones", "obs/eef"}
            assert dict(demo.sizes) == {"batch_0": 5, "dim_2": 2, "dim_3": 3}
            dt["data/demo_2"].td.to_zarr(tmp_path / "demo.zarr")
        assert TensorDict.from_zarr(tmp_path / "demo.zarr")["obs"].batch_size == (5,)


# -- the corpora -------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*(left out|the dim is called):UserWarning")
@pytest.mark.parametrize("name", list(corpus.real_stores()))
def test_real_stores_are_one_store_as_a_tree_and_in_both_libraries(name):
    with open_tree(corpus.REAL / name) as dt:
        assert_tree_keeps_the_law(corpus.REAL / name, dt)


# -- what DataTrees refuse ---------------------------------------------------------------------------------------------


class TestWhatATreeCannotHold:
    @FORMATS
    def test_another_index_than_that_of_the_group_above_gets_a_dim_of_its_own(self, tmp_path, form):
        path = tmp_path / "store"
        write = (
            xr.Dataset.to_zarr
            if form == "zarr"
            else (lambda ds, path, **kw: ds.to_netcdf(path, engine="h5netcdf", **kw))
        )
        write(xr.Dataset({"a": ("time", np.ones(3))}, coords={"time": [0, 1, 2]}), path)
        write(xr.Dataset({"b": ("time", np.ones(3))}, coords={"time": [10, 11, 12]}), path, group="x", mode="a")
        write(xr.Dataset({"c": ("time", np.ones(3))}, coords={"time": [10, 11, 12]}), path, group="x/below", mode="a")
        write(xr.Dataset({"d": ("time", np.ones(3))}), path, group="same", mode="a")
        with pytest.warns(
            UserWarning, match=r"coordinate 'time' of '/x' differs from that of the group above.*'time_x'"
        ):
            dt = open_tree(path)
        with dt:
            assert dt["x"].b.dims == dt["x/below"].c.dims == ("time_x",)
            assert dt["x"].coords["time"].values.tolist() == [10, 11, 12]
            assert dt["same"].coords["time"].values.tolist() == [0, 1, 2], "it is inherited"
            assert dt["x"].td.batch_size == (3,)
        groups = xr.open_groups(path, engine="tensordict")
        assert groups["/x"].b.dims == ("time",), "a dict of Datasets can hold it"
        for ds in groups.values():
            ds.close()

    @FORMATS
    def test_another_size_than_that_of_the_group_above_gets_a_dim_of_its_own(self, tmp_path, form):
        path = tmp_path / "store"
        if form == "zarr":
            root = zarr.open_group(path, mode="w")
            for name, size in (("a", 3), ("x/b", 5), ("x/time", 5)):
                root.create_array(name, data=np.arange(size), dimension_names=("time",))
        else:
            with h5py.File(path, "w") as file:
                file["a"], file["x/b"] = np.ones(3), np.ones(5)
                file["a"].dims[0].label = file["x/b"].dims[0].label = "time"
        with pytest.warns(UserWarning, match="'x/b' has size 5 along 'time'.*called 'time_5'"):
            dt = open_tree(path)
        assert dt["x"].b.dims == ("time_5",)
        assert form == "h5" or "time" in dt["x"].coords
        dt.close()

    def test_coordinates_of_the_group_above_are_inherited(self, tmp_path):
        parent = xr.Dataset({"a": ("time", np.ones(3))}, coords={"time": [5, 6, 7]})
        child = xr.Dataset({"b": (("time", "f"), np.ones((3, 2)))})
        tree = xr.DataTree.from_dict({"/": parent, "/x": child})
        tree.td.to_zarr(tmp_path / "store")
        with open_tree(tmp_path / "store") as dt:
            assert dt["x"].coords["time"].values.tolist() == [5, 6, 7]
            assert set(dt["x"].td.to_dataset().variables) == {"b", "time"}
            assert dt["x"].td.to_tensordict()["time"].tolist() == [5, 6, 7]
            assert set(dt.td.to_tensordict()["x"].keys()) == {"b"}, "each entry once"
            assert zarr.open_group(tmp_path / "store", mode="r")["x"].members()[0][0] == "b"


# -- the batch that the caller chooses ---------------------------------------------------------------------------------


class TestBatchDimsOfTrees:
    @pytest.fixture
    def ragged(self, tmp_path: Path) -> Path:
        return store(tmp_path / "store", "h5", ROBOMIMIC)

    @pytest.fixture
    def agents(self) -> xr.DataTree:
        return xr.DataTree.from_dict(
            {
                "/": xr.Dataset({"a": (("time", "f"), np.ones((4, 2)))}),
                "/x": xr.Dataset({"b": (("time", "agent", "f"), np.ones((4, 3, 2)))}),
            }
        )

    @pytest.mark.parametrize(("given", "name"), [("time", "time"), (["time"], "time"), (1, "batch_0")])
    def test_are_given_to_each_group_where_they_have_no_common_one(self, ragged, given, name):
        with open_tree(ragged, batch_dims=given) as dt:
            assert dt["data/demo_2"].actions.dims == (name, "dim_2")
            assert dt["data/demo_2/obs"].eef.dims == (name, "dim_3")
            assert batches(dt.td.to_tensordict())["data/demo_12/obs"] == [4]
            assert_tree_keeps_the_law(ragged, dt, batch_dims=given)

    def test_for_one_call_go_by_the_dims_of_the_nodes(self, ragged):
        with open_tree(ragged) as dt:
            assert_same_tensordict(dt.td.to_tensordict("batch_0"), dt.td.to_tensordict())
            assert dt["data/demo_2/obs"].td.to_tensordict(2).batch_size == (5, 3)
            with pytest.raises(ValueError, match="no dim 'step'"):
                dt.td.to_tensordict("step")

    def test_of_one_call_are_those_of_the_tree_and_not_of_the_flat_view(self, agents):
        td = agents.td.to_tensordict(["time", "agent"])
        assert batches(td) == {"": [4, 3], "x": [4, 3]}
        assert td["a"].shape == (4, 3, 2), "broadcast by name"

    @pytest.mark.parametrize("given", [["time", "agent"], "time", 1, 0])
    @pytest.mark.parametrize(("form", "layout"), PAIRS[:2])
    def test_hold_through_conversion_and_writing(self, tmp_path, agents, given, form, layout):
        getattr(agents.td, f"to_{form}")(tmp_path / "store")
        with open_tree(tmp_path / "store", batch_dims=given) as dt:
            expected = agents.td.to_tensordict(given)
            assert_same_tensordict(dt.td.to_tensordict(), expected)
            assert_tree_keeps_the_law(tmp_path / "store", dt, batch_dims=given)
            getattr(dt.td, f"to_{form}")(tmp_path / "again", layout=layout)
        with open_tree(tmp_path / "again") as again:
            assert_same_tensordict(again.td.to_tensordict(), expected)

    def test_that_one_group_contradicts_are_reported_and_that_all_do_are_an_error(self, tmp_path):
        arrays = {"good/x": (4, 2), "good/y": (4, 2), "odd/mean": (2, 2), "odd/std": (3, 2)}
        store(tmp_path / "store", "zarr", {name: np.zeros(shape) for name, shape in arrays.items()})
        with pytest.warns(UserWarning, match=r"group '/odd' do not share their first 1 axes.*has no batch"):
            dt = open_tree(tmp_path / "store", batch_dims=1)
        assert batches(dt.td.to_tensordict())["good"] == [4]
        dt.close()
        with pytest.raises(ValueError, match="has no dim 'time'"):
            xr.DataTree.from_dict(
                {"/a": xr.Dataset({"x": ("s", np.ones(3))}), "/b": xr.Dataset({"x": ("t", np.ones(2))})}
            ).td.to_tensordict("time")

    def test_are_refused_for_a_flat_view_in_which_groups_have_several_sizes_of_them(self, tmp_path):
        demos = {f"/demo_{n}": xr.Dataset({"x": (("time", "f"), np.ones((n, 2)))}) for n in (3, 5)}
        xr.DataTree.from_dict(demos).td.to_zarr(tmp_path / "store")
        with pytest.raises(ValueError, match=r"3 in '/demo_3', 5 in '/demo_5'.*open_datatree"):
            xr.open_dataset(tmp_path / "store", engine="tensordict", batch_dims="time")


# -- writing -----------------------------------------------------------------------------------------------------------


def runs(length: int = 3, first: float = 0.0) -> xr.DataTree:
    rows = first + np.arange(length * 2.0).reshape(length, 2)
    return xr.DataTree.from_dict(
        {
            "/": xr.Dataset({"a": (("time", "f"), rows), "scale": ("f", [1.0, 2.0])}, attrs={"title": "runs"}),
            "/next": xr.Dataset(
                {"a": (("time", "f"), rows + 1), "label": ("time", np.array([f"r{i}" for i in rows[:, 0]], object))}
            ),
        }
    )


class TestWriting:
    @LAYOUTS
    @FORMATS
    def test_modes(self, tmp_path, form, layout):
        path = tmp_path / "store"
        write = lambda tree, **kw: getattr(tree.td, f"to_{form}")(path, layout=layout, **kw)  # noqa: E731
        write(runs())
        with pytest.raises(FileExistsError):
            write(runs(), mode="w-")
        write(runs(2), mode="w")
        with open_tree(path) as dt:
            assert dt.td.batch_size == (2,)
        write(xr.DataTree.from_dict({"/extra": xr.Dataset({"z": ("time", np.ones(2))})}), mode="a")
        with open_tree(path) as dt:
            assert set(dt.children) == {"next", "extra"}
            np.testing.assert_array_equal(dt["next"].a, runs(2)["next"].a)
            assert dt.attrs["title"] == "runs"

    @LAYOUTS
    @FORMATS
    def test_into_a_group_later(self, tmp_path, form, layout):
        chunked = runs().chunk({"time": 2})
        delayed = getattr(chunked.td, f"to_{form}")(tmp_path / "store", layout=layout, group="one/two", compute=False)
        delayed.compute()
        with open_tree(tmp_path / "store", group="one/two") as dt:
            xr.testing.assert_identical(dt.load(), runs())
        with open_tree(tmp_path / "store") as dt:
            assert dt["one/two/next"].a.shape == (3, 2)

    @LAYOUTS
    @FORMATS
    def test_append_and_region(self, tmp_path, form, layout):
        path = tmp_path / "store"
        first, more = runs(), runs(2, 100.0)
        write = first.td.to_zarr if form == "zarr" else partial(first.td.to_h5, unlimited_dims=["time"])
        write(path, layout=layout)
        getattr(more.td, f"to_{form}")(path, layout=layout, append_dim="time")
        with open_tree(path) as dt:
            assert dt.td.batch_size == (5,)
            np.testing.assert_array_equal(dt["next"].a[3:], more["next"].a)
            assert dt["next"].label.values.tolist() == [*first["next"].label.values, *more["next"].label.values]
            assert_tree_keeps_the_law(path, dt)
        if form == "zarr":
            part = runs(2, 50.0)
            part.td.to_zarr(path, layout=layout, region={"time": slice(1, 3)})
            with open_tree(path) as dt:
                np.testing.assert_array_equal(dt["next"].a[1:3], part["next"].a)
                np.testing.assert_array_equal(dt.a[[0, 3, 4], 0], [0.0, 100.0, 102.0])

    @FORMATS
    def test_with_encoding_by_path(self, tmp_path, form):
        chunks = {"chunks": (1, 2)} if form == "zarr" else {"chunksizes": (1, 2)}
        getattr(runs().td, f"to_{form}")(tmp_path / "store", encoding={"next/a": chunks})
        with open_tree(tmp_path / "store") as dt:
            found = dt["next"].a.encoding
            assert (found.get("chunks") or found.get("chunksizes")) == (1, 2)
        with pytest.raises(ValueError, match="no variable 'nowhere/a'"):
            getattr(runs().td, f"to_{form}")(tmp_path / "other", encoding={"nowhere/a": chunks})
        assert not (tmp_path / "other").exists()

    def test_what_a_tree_cannot_be_written_with_is_refused_by_name(self, tmp_path):
        with pytest.raises(TypeError, match="append_dims"):
            runs().td.to_h5(tmp_path / "store.h5", append_dims="time")

    def test_over_the_store_that_it_reads_from(self, tmp_path):
        runs().td.to_zarr(tmp_path / "store")
        with open_tree(tmp_path / "store") as dt:
            xr.map_over_datasets(lambda ds: ds.assign(a=ds.a * 2), dt).td.to_zarr(tmp_path / "store", mode="w")
        with open_tree(tmp_path / "store") as dt:
            assert dt["next"].label.values.tolist() == runs()["next"].label.values.tolist()
            np.testing.assert_array_equal(dt["next"].a, runs()["next"].a * 2)

    def test_hdf5_for_bare_tensordict(self, tmp_path):
        demos = {f"/demo_{n}": xr.Dataset({"x": (("time", "f"), np.full((n, 2), n))}) for n in (3, 5)}
        xr.DataTree.from_dict(demos).td.to_h5(tmp_path / "store.h5")
        bare = PersistentTensorDict.from_h5(tmp_path / "store.h5")
        assert bare["demo_5", "x"].shape == (5, 2)
        bare.close()
