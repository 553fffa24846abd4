"""The command ``xarray-tensordict``, run as a person and as a script would run it."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from importlib import metadata

import h5py
import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from click.testing import CliRunner
from tensordict import TensorDict

import xarray_tensordict
from xarray_tensordict import LeftOutWarning
from xarray_tensordict.command_line.app import main
from xarray_tensordict.testing import assert_same_tensordict


def run(*arguments: str, code: int = 0):
    result = CliRunner(env={"COLUMNS": "200"}).invoke(main, list(arguments), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def buffer(tmp_path):
    td = TensorDict(
        {"obs": torch.arange(18.0).view(6, 3), "task": "walk", "next": {"obs": torch.ones(6, 3)}}, [6], names=["time"]
    )
    td.to_zarr(tmp_path / "run.zarr")
    return tmp_path / "run.zarr"


@pytest.fixture
def demos(tmp_path):
    """Ragged episodes, as robomimic lays them out."""
    with h5py.File(tmp_path / "demos.hdf5", "w") as file:
        for number, length in enumerate([4, 6, 5]):
            group = file.create_group(f"data/demo_{number}")
            group["actions"] = np.full((length, 2), number, "f4")
            group["obs/eef"] = np.full((length, 3), number, "f4")
    return tmp_path / "demos.hdf5"


def test_help_names_every_command_and_each_has_examples():
    text = run("--help").output
    for name in ("inspect", "annotate", "convert", "check"):
        assert name in text
        lines = [line.strip() for line in run(name, "--help").output.splitlines()]
        assert any(line.startswith(f"xarray-tensordict {name} ") for line in lines)
        assert not any("\\b" in line for line in lines)


def test_it_runs_as_a_program_and_as_a_module(buffer):
    module = [sys.executable, "-m", "xarray_tensordict", "inspect", str(buffer), "--json"]
    assert json.loads(subprocess.check_output(module, text=True))["batch_size"] == [6]
    program = [str(sys.prefix) + "/bin/xarray-tensordict", "--version"]
    assert metadata.version("xarray-tensordict") in subprocess.check_output(program, text=True)


def test_help_needs_neither_torch_nor_xarray():
    code = "import sys, xarray_tensordict.command_line.app; print(sorted({'torch', 'tensordict'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_inspect_starts_with_kind_batch_why_and_lines_that_open_the_store(buffer):
    first, why, dataset, lazy, *_ = run("inspect", str(buffer), "--batch-dims", "time").output.splitlines()
    assert first.startswith(f"{buffer}: zarr store, batch (time: 6), ")
    assert why == "    why: batch_dims=['time'] was given"
    opened = {"xr": xr, "xarray_tensordict": xarray_tensordict}
    with eval(dataset.removeprefix("    open: "), opened) as ds, eval(lazy, opened) as ptd:
        assert ds.td.batch_dims == ("time",)
        assert ptd["next", "obs"].shape == (6, 3)


def test_text_is_wrapped_between_words_at_the_width_of_the_terminal(demos):
    for command in ("inspect", "check"):
        text = CliRunner(env={"COLUMNS": "80"}).invoke(main, [command, str(demos)]).output
        lines = [line for line in text.splitlines() if str(demos) not in line]
        assert max(map(len, lines)) <= 80
        assert "3 with a batch of their own" in text or "['/data'].td.concat('time')" in text
    lazily = xarray_tensordict.inspect(demos).opened_with[1]
    with eval(lazily, {"xarray_tensordict": xarray_tensordict}) as ptd:
        assert ptd["data", "demo_1", "actions"].shape == (6, 2)


def test_inspect_as_json_is_what_inspect_gives_in_python(buffer):
    found = json.loads(run("inspect", str(buffer), "--json").output)
    assert found == json.loads(json.dumps(xarray_tensordict.inspect(buffer).to_dict()))
    assert [entry["key"] for entry in found["entries"]] == [["obs"], ["next", "obs"], ["task"]]


def test_inspect_takes_the_options_of_the_engine(demos):
    found = json.loads(run("inspect", str(demos), "--group", "data/demo_1", "--json").output)
    assert found["batch_size"] == [6]
    assert "3 groups with a batch of their own" in run("inspect", str(demos)).output
    named = json.loads(run("inspect", str(demos), "--group", "data/demo_1", "--batch-dims", "time", "--json").output)
    assert named["names"] == ["time"]


def test_inspect_lists_twenty_and_counts_the_rest(tmp_path):
    group = zarr.create_group(tmp_path / "many.zarr")
    for number in range(25):
        group.create_array(f"v{number:02}", data=np.zeros((4, 2)))
    assert "... and 5 more" in run("inspect", str(tmp_path / "many.zarr")).output
    assert "v24" in run("inspect", str(tmp_path / "many.zarr"), "--all").output
    assert len(json.loads(run("inspect", str(tmp_path / "many.zarr"), "--json").output)["entries"]) == 25


def test_what_cannot_be_done_is_one_message_without_a_traceback(buffer, tmp_path):
    (tmp_path / "there.zarr").mkdir()
    for arguments, message in [
        (["inspect", str(tmp_path / "nope.zarr")], "No such file or directory"),
        (["convert", str(buffer), str(tmp_path / "there.zarr")], f"{tmp_path / 'there.zarr'} exists already"),
        (["convert", str(buffer), str(tmp_path / "out")], f"{tmp_path / 'out'}: the ending does not name a format"),
        (["convert", str(buffer), str(tmp_path / "out")], "pass --to"),
        (
            ["convert", str(buffer), str(tmp_path / "o.zarr"), "--exclude", "mast"],
            "there is no variable or group 'mast'",
        ),
    ]:
        output = run(*arguments, code=1).output
        assert output.startswith("Error: ")
        assert message in output
        assert "Traceback" not in output
    assert not (tmp_path / "o.zarr").exists()


def test_convert_takes_chunk_sizes_and_overwrites(buffer, tmp_path):
    for rows in (3, 2):
        run("convert", str(buffer), str(tmp_path / "out.zarr"), "--overwrite", "--chunk", f"time={rows}")
        assert zarr.open_group(tmp_path / "out.zarr")["obs"].chunks == (rows, 3)


def test_convert_takes_chunks_and_shards_in_bytes(buffer, tmp_path):
    sizes = ("--chunk", "time=24B", "--shard", "time=48B")
    run("convert", str(buffer), str(tmp_path / "out.zarr"), *sizes)
    array = zarr.open_group(tmp_path / "out.zarr")["obs"]
    assert (array.chunks, array.shards) == ((2, 3), (4, 3))
    output = run("convert", str(buffer), str(tmp_path / "out.h5"), *sizes, code=1).output
    assert "only zarr has shards, and this is hdf5; leave out --shard" in output
    assert not (tmp_path / "out.h5").exists()


def test_convert_keeps_ragged_groups(demos, tmp_path):
    run("convert", str(demos), str(tmp_path / "demos.zarr"))
    tree = xr.open_datatree(tmp_path / "demos.zarr", engine="tensordict")
    assert [tree[f"data/demo_{n}"].td.batch_size for n in range(3)] == [(4,), (6,), (5,)]
    np.testing.assert_array_equal(tree["data/demo_2/obs/eef"], np.full((5, 3), 2, "f4"))


@pytest.mark.parametrize("options", [[], ["--to", "memmap"], ["--exclude", "data/demo_1/actions"]], ids=" ".join)
def test_convert_warns_of_what_is_lost_alone(demos, tmp_path, options):
    with h5py.File(demos, "a") as file:
        file["mask/train"] = np.array([b"demo_0", b"demo_1"])
    run("convert", str(demos), str(tmp_path / "out.zarr"), *options)  # a warning is an error in tests
    with h5py.File(demos, "a") as file:
        file["opaque"] = np.zeros(3, "V5")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run("convert", str(demos), str(tmp_path / "out.zarr"), "--overwrite", *options)
    texts = [str(each.message) for each in caught]
    assert texts
    assert all("opaque" in text and "groups with a batch of their own" not in text for text in texts)


def test_convert_warns_of_what_a_flat_store_loses(tmp_path):
    with h5py.File(tmp_path / "flat.h5", "w") as file:
        file["x"], file["opaque"] = np.zeros((6, 2)), np.zeros(6, "V5")
    with pytest.warns(LeftOutWarning, match="opaque"):
        run("convert", str(tmp_path / "flat.h5"), str(tmp_path / "flat.zarr"))


def test_annotate_makes_a_store_of_another_tool_open_in_plain_xarray(tmp_path):
    zarr.create_group(tmp_path / "raw.zarr").create_array("images", data=np.zeros((6, 4, 4, 3), "u1"))
    run("annotate", str(tmp_path / "raw.zarr"), "--batch-dims", "time", "--dims", '{"images": ["y", "x", "channel"]}')
    with xr.open_zarr(tmp_path / "raw.zarr", consolidated=False) as ds:
        assert ds["images"].dims == ("time", "y", "x", "channel")


def test_check_passes_a_good_store_and_says_what_bare_libraries_see(buffer):
    result = run("check", str(buffer), "--values", "--strict")
    assert "all values are the same in xarray and in tensordict" in result.output
    assert "plain tensordict: batch size [6]" in result.output
    assert "plain xarray: does not open it" in result.output  # no dimension names: nobody's fault, exit code 0


def test_check_looks_into_groups_that_a_flat_dataset_does_not_show(demos):
    assert "3 with a batch of their own are fine" in run("check", str(demos), "--values").output
    with h5py.File(demos, "a") as file:
        del file["data/demo_1/actions"]
        damaged = file.create_dataset("data/demo_1/actions", data=np.zeros((6, 2)), chunks=(6, 2), compression="gzip")
        offset, size = damaged.id.get_chunk_info(0).byte_offset, damaged.id.get_chunk_info(0).size
    with open(demos, "r+b") as raw:
        raw.seek(offset)
        raw.write(b"\0" * size)
    text = run("check", str(demos), "--values", code=1).output
    assert "group /data/demo_1, both libraries" in text
    assert "actions" in text
    assert "2 with a batch of their own are fine" in text


def test_hidden_groups_are_named_by_their_path_in_the_store(demos):
    for group in (None, "data"):
        with xr.open_dataset(demos, engine="tensordict", group=group) as ds:
            assert "open one with group='/data/demo_0'" in repr(ds.td)
    assert "not shown: 3 groups with a batch of their own" in repr(xarray_tensordict.open_persistent(demos))


def test_check_fails_with_1_for_a_store_that_does_not_open(tmp_path):
    zarr.create_group(tmp_path / "new.zarr").attrs["__tensordict__"] = {"batch_size": [1], "version": 99}
    result = run("check", str(tmp_path / "new.zarr"), "--json", code=1)
    found = json.loads(result.output)
    assert found["ok"] is False
    assert [each["level"] for each in found["findings"]] == ["error"]
    assert "99" in found["findings"][0]["message"]


def test_check_warns_of_stale_metadata_and_strict_makes_that_a_failure(buffer):
    attrs = zarr.open_group(buffer).attrs
    attrs["__tensordict__"] = {**attrs["__tensordict__"], "batch_size": [7]}
    assert "warning" in run("check", str(buffer)).output
    run("check", str(buffer), "--strict", code=1)


@pytest.mark.parametrize(("option", "value"), [("--chunk", "time"), ("--storage-options", "{"), ("--to", "csv")])
def test_options_that_cannot_be_read_are_usage_errors(buffer, tmp_path, option, value):
    assert option in run("convert", str(buffer), str(tmp_path / "o.zarr"), option, value, code=2).output


@pytest.fixture
def weather(tmp_path):
    """Variables with and without the batch dim, at the root and in a group."""
    variables = {
        "t2m": (("time", "lat"), np.arange(24.0).reshape(8, 3)),
        "mask": ("lat", [True, False, True]),
        "mean": ("lat", np.ones(3)),
        "station": ("lat", np.array([b"A", b"BB", b"CCC"])),
        "code": ("time", np.array([b"x", b"yy"] * 4)),
        "height": ((), 2.0),
        "next/t2m": (("time", "lat"), np.ones((8, 3))),
        "next/scale": ("lat", np.ones(3)),
    }
    ds = xr.Dataset(variables, coords={"lat": [10.0, 20.0, 30.0]})
    ds.td.to_zarr(tmp_path / "weather.zarr")
    return tmp_path / "weather.zarr"


@pytest.mark.parametrize("target", ["out.zarr", "out.zarr.zip", "out.h5", "out.tdz", "mapped"])
def test_convert_keeps_every_variable_and_its_values(weather, tmp_path, target):
    run("convert", str(weather), str(tmp_path / target), *(["--to", "memmap"] if target == "mapped" else []))
    run("convert", str(tmp_path / target), str(tmp_path / "back.zarr"))
    for path in (tmp_path / target, tmp_path / "back.zarr"):
        with (
            xr.open_dataset(weather, engine="tensordict") as expected,
            xr.open_dataset(path, engine="tensordict") as found,
        ):
            assert set(found.variables) == set(expected.variables)
            for name in expected.variables:
                assert found[name].dtype == expected[name].dtype, name
                assert found[name].values.tolist() == expected[name].values.tolist(), name
    assert_same_tensordict(
        xarray_tensordict.open_persistent(tmp_path / "back.zarr").to_tensordict(),
        xarray_tensordict.open_persistent(weather).to_tensordict(),
    )


@pytest.mark.parametrize("target", ["out.zarr", "out.h5", "out.tdz"])
def test_convert_leaves_out_what_it_is_asked_to_and_names_it(weather, tmp_path, target):
    result = run("convert", str(weather), str(tmp_path / target), "--unbatched", "drop", "--exclude", "code")
    assert "without " in result.output
    assert all(name in result.output for name in ("mask", "mean", "station", "height", "lat", "next/scale"))
    with xr.open_dataset(tmp_path / target, engine="tensordict") as found:
        assert set(found.variables) == {"t2m", "next/t2m"}
    run("convert", str(weather), str(tmp_path / target), "--overwrite", "--exclude", "next", "--exclude", "mean")
    with xr.open_dataset(tmp_path / target, engine="tensordict") as found:
        assert set(found.variables) == {"t2m", "mask", "station", "code", "height", "lat"}


def test_convert_excludes_from_groups_that_a_flat_dataset_does_not_show(demos, tmp_path):
    run("convert", str(demos), str(tmp_path / "some.zarr"), "--exclude", "data/demo_1", "--exclude", "data/demo_2/obs")
    tree = xr.open_datatree(tmp_path / "some.zarr", engine="tensordict")
    assert not any(node.variables for node in tree["data/demo_1"].subtree)
    assert set(tree["data/demo_2"].variables) == {"actions"}
    assert tree["data/demo_0/obs/eef"].shape == (4, 3)
