"""What is declared fits together: environment.yml and pyproject.toml, constraints, hooks, files that are shipped."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import entry_points, requires, version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OWN = "xarray-tensordict"

CONDA_NAMES = {"torch": "pytorch", "dask": "dask-core", "matplotlib": "matplotlib-base"}
"""Packages that conda-forge calls otherwise."""
ONLY_ON_PYPI = frozenset({"moto", "tensordict", "torchdata", "torchrl", "zarrs"})
"""Packages that environment.yml takes from PyPI: conda-forge lacks them, or the extra that the tests need."""


def requirements(extra: str | None = None) -> dict[str, Requirement]:
    """The requirements of the project, or of an extra, those of other extras that it names included."""
    found = {}
    for text in PROJECT["dependencies"] if extra is None else PROJECT["optional-dependencies"][extra]:
        requirement = Requirement(text)
        if requirement.name == OWN:
            for other in requirement.extras:
                found.update(requirements(other))
        else:
            found[canonicalize_name(requirement.name)] = requirement
    return found


def environment() -> tuple[dict[str, str], dict[str, str]]:
    """The packages of environment.yml from conda and from PyPI, each with its version."""
    listed = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pip = next(each["pip"] for each in listed if isinstance(each, dict))
    conda = [each for each in listed if isinstance(each, str)]
    return _split(conda), _split(each for each in pip if not each.startswith("-e"))


def _split(lines) -> dict[str, str]:
    found = {}
    for line in lines:
        name, version = re.fullmatch(r"([A-Za-z0-9._-]+)(?:\[[a-z,]+\])?(.*)", line).groups()
        found[canonicalize_name(name)] = version
    return found


def test_environment_yml_holds_the_dependencies_and_the_extra_dev_with_the_same_versions():
    conda, pip = environment()
    wanted = {**requirements(), **requirements("dev")}
    expected_pip = {name: str(each.specifier) for name, each in wanted.items() if name in ONLY_ON_PYPI}
    expected_conda = {
        CONDA_NAMES.get(name, name): str(each.specifier) for name, each in wanted.items() if name not in ONLY_ON_PYPI
    }
    assert pip == expected_pip
    assert conda == {**expected_conda, "python": PROJECT["requires-python"], "pip": ""}


def test_every_requirement_is_in_the_constraints():
    pinned = {
        canonicalize_name(line.partition("==")[0])
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    wanted = {name for extra in (None, *PROJECT["optional-dependencies"]) for name in requirements(extra)}
    assert sorted(wanted - pinned) == []


def test_the_other_tensordict_that_is_tested_is_one_that_is_allowed():
    pins = [Requirement(line) for line in (ROOT / "constraints-torchrl.txt").read_text().splitlines() if line[0] != "#"]
    (pinned,) = (each for each in pins if each.name == "tensordict")
    assert requirements()["tensordict"].specifier.contains(str(pinned.specifier).removeprefix("=="))


def test_torchrl_accepts_the_tensordict_that_it_is_tested_with():
    (asked,) = (each for each in map(Requirement, requires("torchrl")) if each.name == "tensordict")
    assert asked.specifier.contains(version("tensordict"))


def test_the_extras_that_messages_name_exist():
    assert {"dev", "docs", "s3", "viz", "zarrs"} <= set(PROJECT["optional-dependencies"])


def test_the_hooks_run_the_ruff_of_the_constraints():
    (pinned,) = re.findall(r"^ruff==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert [hook["additional_dependencies"] for hook in hooks] == [[f"ruff=={pinned}"]] * 2


def lowest(requirement: Requirement) -> Version:
    (bound,) = (each for each in requirement.specifier if each.operator == ">=")
    return Version(bound.version)


def test_the_oldest_versions_that_are_tested_are_the_lowest_that_are_allowed():
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line[0] != "#"]
    pinned = {each.name: Version(str(each.specifier).removeprefix("==")) for each in pins}
    expected = {name: lowest(each) for name, each in requirements().items()}
    # dask and distributed are released together; torch is the build for CPUs of constraints.txt
    expected |= {"distributed": lowest(requirements("test")["distributed"]), "torch": pinned["torch"]}
    assert pinned == expected
    assert f"torch=={pinned['torch']}\n" in (ROOT / "constraints.txt").read_text()


def test_the_newest_versions_that_are_tested_are_no_older_than_the_constraints():
    pins = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"]
    pinned = {each.name: Version(str(each.specifier).removeprefix("==")) for each in pins}
    for line in (ROOT / "constraints-newest.txt").read_text().splitlines()[1:]:
        asked = Requirement(line)
        if asked.name == "torchrl":  # the newest one that takes the newest tensordict
            assert asked.specifier.contains(pinned["torchrl"])
        else:
            assert lowest(asked).release[:2] >= pinned[asked.name].release[:2], line


def test_the_workflow_runs_targets_of_the_makefile_and_every_python_that_is_declared():
    targets = set(re.findall(r"^([a-z-]+(?: [a-z-]+)*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    known = {name for line in targets for name in line.split()}
    jobs = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]
    run = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert all(command.startswith("make ") for command in run)
    matrix = [job["strategy"]["matrix"] for job in jobs.values()]
    named = [each["target"] for each in jobs["versions"]["strategy"]["matrix"]["include"]]
    named += [target for each in matrix for line in each.get("target", []) for target in line.split()]
    named += [name for command in run for name in command.split()[1:] if re.fullmatch("[a-z-]+", name)]
    assert set(named) - known == set()
    assert {"test", "test-oldest", "test-newest", "lint", "types", "docs", "dist"} <= set(named)
    classifiers = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert jobs["tests"]["strategy"]["matrix"]["python"] == classifiers


@pytest.mark.parametrize("path", sorted((ROOT / ".github/ISSUE_TEMPLATE").rglob("*.yml")), ids=lambda path: path.name)
def test_issue_templates_are_forms_that_can_be_read(path):
    form = yaml.safe_load(path.read_text())
    assert form["name"]
    assert form["description"]
    assert all(part["type"] in {"markdown", "textarea", "input", "dropdown"} for part in form["body"])


def test_engine_and_command_are_registered():
    (engine,) = entry_points(group="xarray.backends", name="tensordict")
    assert engine.value == "xarray_tensordict_engine:TensorDictBackendEntrypoint"
    (command,) = entry_points(group="console_scripts", name="xarray-tensordict")
    assert command.load().name == "main"


@pytest.mark.slow
def test_the_wheel_holds_the_package_the_engine_and_the_mark_of_types(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    assert sources <= names
    assert "xarray_tensordict/py.typed" in names
    assert not any(name.startswith(("tests", "docs", "src")) for name in names)
