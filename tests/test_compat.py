"""Private names of xarray, zarr, dask, h5py and tensordict are used in ``_compat`` alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
LIBRARIES = frozenset({"xarray", "zarr", "dask", "h5py", "tensordict", "h5netcdf", "numcodecs"})
PRIVATE_MODULES = ("zarr.core", "zarr.storage._", "tensordict._", "tensordict.persistent", "tensordict.base")
"""Modules whose names their libraries may change at any time."""

# Attributes that belong to xarray, zarr, dask, h5py or tensordict: nothing in this package is called so.
PRIVATE_ATTRIBUTES = frozenset(
    "_data _async_array _async_group _is_open _sync_open _ensure_open _h5ds _cache_members _store "
    "_use_zarr_fill_value_as_mask _from_bytes_v2 _backend _open_zarr _open_h5 _to_temp_dataset _td_dim_names "
    "_nested_tensordicts _batch_size _device _non_tensor_as_stack _source _encoding _variables _coord_names".split()
)


def defined(path: Path) -> Iterator[str]:
    """The names that a file gives to functions, classes, variables and attributes."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


OWN = frozenset(name for path in SOURCE.rglob("*.py") for name in defined(path))
"""What this package defines: an attribute that is none of these and begins with "_" is somebody else's."""


def strays(path: Path) -> Iterator[str]:
    """The private names of libraries that a file uses."""
    tree = ast.parse(path.read_text())
    own = {
        target.attr
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if _is_private(node.module, alias.name):
                    yield f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if _is_private(alias.name, ""))
        elif isinstance(node, ast.Attribute) and node.attr in PRIVATE_ATTRIBUTES:
            is_own = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"} and node.attr in own
            if not is_own:
                yield f".{node.attr}"
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            is_of_python = isinstance(node.value, ast.Name) and node.value.id in {"os", "sys"}
            if node.attr not in OWN and not is_of_python:
                yield f".{node.attr}"


def _is_private(module: str, name: str) -> bool:
    if module.partition(".")[0] not in LIBRARIES:
        return False
    parts = [*module.split("."), name]
    return module.startswith(PRIVATE_MODULES) or any(
        part.startswith("_") and not part.startswith("__") for part in parts
    )


def outside() -> dict[str, list[str]]:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix().removeprefix("xarray_tensordict/")
        if not name.startswith("_compat/") and (names := sorted(set(strays(path)))):
            found[name] = names
    return found


def test_private_names_of_libraries_are_in_compat_alone() -> None:
    assert outside() == {}, "move these to _compat"


def test_a_stray_is_found(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "from zarr.core.sync import sync\nimport tensordict._td\nfrom xarray import Dataset\nx = variable._data\n"
        "y = variable._in_memory\n"
    )
    assert sorted(strays(path)) == ["._data", "._in_memory", "tensordict._td", "zarr.core.sync.sync"]
