"""Icechunk repositories open through both openings, and are written through the store of a session."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import torch
import xarray as xr
import zarr

from corpus import open_in_both
from written import assert_gives_back, era
from xarray_tensordict import annotate, inspect, open_persistent
from xarray_tensordict.formats.zarr.transaction import LOCK
from xarray_tensordict.testing import assert_same_tensordict


@pytest.fixture
def repository(tmp_path: Path) -> icechunk.Repository:
    return icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repository")))


@pytest.fixture
def committed(repository: icechunk.Repository) -> icechunk.Repository:
    session = repository.writable_session("main")
    era(4).td.to_zarr(session.store)
    session.commit("four rows")
    return repository


SOURCES = {
    "the repository": lambda repository, path: repository,
    "the folder": lambda repository, path: path,
    "the folder as a string": lambda repository, path: str(path),
    "a session": lambda repository, path: repository.readonly_session("main"),
    "a writable session": lambda repository, path: repository.writable_session("main"),
    "the store of a session": lambda repository, path: repository.readonly_session("main").store,
}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_repository_opens_through_both_openings(committed: Any, tmp_path: Path, kind: str) -> None:
    source = SOURCES[kind](committed, tmp_path / "repository")
    assert_gives_back(source, era(4))
    both = open_in_both(source)
    assert both.ptd.batch_size == (4,)
    assert_same_tensordict(both.ptd[1:3].to_tensordict(), both.ds.isel(time=slice(1, 3)).td.to_tensordict())
    both.close()
    assert xr.open_datatree(source, engine="tensordict")["next/t2m"].shape[0] == 4
    assert inspect(source).batch_size == (4,)


@pytest.mark.parametrize("layout", ["tensordict", "xarray"])
def test_a_session_is_written_appended_changed_and_replaced_and_read_after_its_commit(
    repository: Any, layout: Any
) -> None:
    whole = era(6)
    changed = whole.copy(deep=True)
    changed["t2m"][1:3] = 1
    added = changed.assign(more=("time", np.arange(6)))
    steps = [
        (whole.isel(time=slice(0, 4)), {"layout": layout}, whole.isel(time=slice(0, 4))),
        (whole.isel(time=slice(4, 6)).chunk(time=1), {"append_dim": "time"}, whole),
        (changed.isel(time=slice(1, 3)), {"region": {"time": slice(1, 3)}}, changed),
        (added[["more"]], {"mode": "a"}, added),
        (era(2), {"mode": "w", "layout": layout}, era(2)),
    ]
    before = []
    for written, options, expected in steps:
        session = repository.writable_session("main")
        written.td.to_zarr(session.store, **options)
        session.commit("a change")
        before.append((repository.readonly_session("main"), expected))
        with xr.open_zarr(before[-1][0].store, consolidated=False) as plain:
            assert LOCK not in plain.variables
    for session, expected in before:
        assert_gives_back(session, expected)


def test_what_is_not_committed_is_seen_by_its_session_alone(committed: Any) -> None:
    session = committed.writable_session("main")
    era(6).td.to_zarr(session.store, mode="w")
    assert xr.open_dataset(session, engine="tensordict").sizes["time"] == 6
    assert xr.open_dataset(committed, engine="tensordict").sizes["time"] == 4


def test_the_store_of_a_writable_session_is_changed_through_tensordict(repository: Any) -> None:
    session = repository.writable_session("main")
    xr.Dataset({"obs": (("time", "f"), np.zeros((4, 3), "f4"))}).td.to_zarr(session.store)
    ptd = open_persistent(session.store, mode="r+")
    ptd.set_at_("obs", torch.ones(3), 2)
    session.commit("one row")
    assert open_persistent(repository)["obs"][2].tolist() == [1.0] * 3


def test_a_repository_says_that_it_is_changed_in_a_session(committed: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"writable_session\('main'\)"):
        open_persistent(tmp_path / "repository", mode="r+")
    with pytest.raises(ValueError, match=r"writable_session\('main'\)"):
        annotate(tmp_path / "repository")


def test_the_store_of_a_session_is_annotated(repository: Any) -> None:
    session = repository.writable_session("main")
    zarr.open_group(session.store, mode="w").create_array("obs", data=np.zeros((6, 3)))
    assert annotate(session.store, batch_dims=1).batch_size == (6,)
    session.commit("names of dimensions")
    plain = xr.open_zarr(repository.readonly_session("main").store, consolidated=False)
    assert plain["obs"].dims == ("batch_0", "dim_3")


def test_a_group_of_a_repository_opens_as_the_root(committed: Any, tmp_path: Path) -> None:
    assert xr.open_dataset(tmp_path / "repository", engine="tensordict", group="next")["t2m"].shape[0] == 4
    with pytest.raises(FileNotFoundError, match="group '/other' does not exist"):
        xr.open_dataset(tmp_path / "repository", engine="tensordict", group="other")


def test_a_damaged_repository_is_an_error_that_names_it(committed: Any, tmp_path: Path) -> None:
    refs = (tmp_path / "repository").rglob("ref.json")
    next(refs, tmp_path / "repository" / "repo").write_text(
        "{}"
    )  # since version 2 of icechunk one file has all branches
    with pytest.raises(OSError, match="repository: it cannot be read"):
        open_persistent(tmp_path / "repository")


@pytest.mark.parametrize("part", ["manifests", "snapshots"])
def test_a_pipe_among_the_files_of_a_repository_is_refused(committed: Any, tmp_path: Path, part: str) -> None:
    file = next(path for path in (tmp_path / "repository" / part).iterdir())
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(OSError, match=f"{re.escape(str(file))} is a pipe"):
        xr.open_dataset(str(tmp_path / "repository"), engine="tensordict")
