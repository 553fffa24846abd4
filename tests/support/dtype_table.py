"""What every dtype is on every side: each cell of the tables in ``docs/rules/values.md`` is run.

``python tests/support/dtype_table.py`` writes them.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import tensordict
import torch
import xarray as xr
from tensordict import TensorDict

import xarray_tensordict
from xarray_tensordict.testing import assert_same_tensordict

PAGE = Path(__file__).parents[2] / "docs" / "rules" / "values.md"
START, END = "<!-- dtypes -->\n", "<!-- end of dtypes -->\n"
DTYPES = (
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64 bfloat16 float8_e4m3fn "
    "float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu complex32 complex64 complex128"
).split()

SAVED: dict[str, Callable[[TensorDict, Path], Any]] = {
    "`td.to_zarr`": lambda td, path: td.to_zarr(path / "a.zarr"),
    "`td.to_h5`": lambda td, path: td.to_h5(path / "a.h5").close(),
    "`td.memmap`": lambda td, path: td.memmap(path / "a"),
    "`td.save(x.tdz)`": lambda td, path: td.save(path / "a.tdz"),
}
WRITTEN: dict[str, Callable[[xr.Dataset, Path], Any]] = {
    "`ds.td.to_zarr`": lambda ds, path: ds.td.to_zarr(path / "a.zarr"),
    "`ds.td.to_h5`": lambda ds, path: ds.td.to_h5(path / "a.h5"),
    "`ds.td.to_memmap`": lambda ds, path: ds.td.to_memmap(path / "a"),
    "`ds.td.to_memmap(x.tdz)`": lambda ds, path: ds.td.to_memmap(path / "a.tdz"),
}

_SAVED = """
Saved by tensordict and opened here: the dtype in the Dataset, and in the tensordict if it differs. "refused": tensordict {version}
itself does not write it. †: `tensordict.load` cannot load what tensordict {version} has written; this package can.

"""
_WRITTEN = """
Written here: the dtype that plain tensordict shows. "cannot load": plain tensordict {version} fails on it; this package
gives the dtype of torch back from each.

"""


def values(dtype: str) -> torch.Tensor:
    """Every code of an 8-bit dtype; many of the others, NaN and infinity among them."""
    torch_dtype = getattr(torch, dtype)
    if dtype == "bool":
        return torch.arange(256) % 3 == 0
    if torch_dtype.itemsize == 1:
        return torch.arange(256, dtype=torch.uint8).view(torch_dtype)
    codes = np.random.default_rng(0).integers(0, 256, 256 * torch_dtype.itemsize, dtype=np.uint8)
    found = torch.from_numpy(codes).view(torch_dtype)
    if torch_dtype.is_complex or torch_dtype.is_floating_point:
        found[:3] = torch.tensor([float("nan"), float("inf"), 0.0]).to(torch_dtype)
    return found


def _sample(dtype: str) -> TensorDict:
    return TensorDict({"x": values(dtype)}, [256])


def _opened(path: Path, expected: TensorDict) -> str:
    """The dtype in the Dataset, if both libraries give the tensordict back; what they give otherwise."""
    with xr.open_dataset(path, engine="tensordict") as ds:
        shown, found = ds["x"].dtype.name, ds.td.to_tensordict()
    persistent = xarray_tensordict.open_persistent(path)
    assert_same_tensordict(found, persistent.to_tensordict())
    persistent.close()
    assert_same_tensordict(expected, found)
    wanted = str(expected["x"].dtype).removeprefix("torch.")
    return f"`{shown}`" if shown == wanted else f"`{shown}`, `{wanted}`"


def _only(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def _loads(path: Path) -> torch.Tensor | None:
    """What plain tensordict makes of a store; None where it fails."""
    try:
        if path.suffix == ".zarr":
            return TensorDict.from_zarr(path)["x"]
        if path.suffix == ".h5":
            persistent = TensorDict.from_h5(path)
            found = persistent["x"]
            persistent.close()
            return found
        return tensordict.load(path)["x"]
    except (KeyError, TypeError):
        return None


def saved_cell(dtype: str, save: Callable[[TensorDict, Path], Any]) -> str:
    """What a store that tensordict wrote is here."""
    with tempfile.TemporaryDirectory() as name:
        folder, td = Path(name), _sample(dtype)
        try:
            with suppress(KeyError):  # an archive is loaded at once, which fails where loading does
                save(td, folder)
        except TypeError:
            return "refused"
        mark = "" if _loads(_only(folder)) is not None else " †"
        return _opened(_only(folder), td) + mark


def written_cell(dtype: str, write: Callable[[xr.Dataset, Path], Any]) -> str:
    """What plain tensordict makes of a store that this package wrote, if this package gives the tensor back."""
    with tempfile.TemporaryDirectory() as name:
        folder, td = Path(name), _sample(dtype)
        write(xarray_tensordict.to_dataset(td), folder)
        _opened(_only(folder), td)
        bare = _loads(_only(folder))
        if bare is None:
            return "cannot load"
        widened = td["x"] if bare.dtype == td["x"].dtype else td["x"].to(bare.dtype)
        assert_same_tensordict(TensorDict({"x": widened}, [256]), TensorDict({"x": torch.as_tensor(bare)}, [256]))
        return f"`{str(bare.dtype).removeprefix('torch.')}`"


def memory_cell(dtype: str) -> str:
    """What a tensor is in a Dataset, if the Dataset gives it back."""
    td = _sample(dtype)
    ds = xarray_tensordict.to_dataset(td)
    assert_same_tensordict(td, ds.td.to_tensordict())
    assert_same_tensordict(td, ds.td.to_persistent().to_tensordict())
    return f"`{ds['x'].dtype.name}`"


def _table(heads: list[str], cells: dict[str, list[str]]) -> str:
    """One row for the dtypes with the same cells, one column for the writers with the same cells."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for dtype, row in cells.items():
        rows.setdefault(tuple(cell.replace(f"`{dtype}`", "the same") for cell in row), []).append(f"`{dtype}`")
    columns: dict[tuple[str, ...], list[str]] = {}
    for head, column in zip(heads, zip(*rows, strict=True), strict=True):
        columns.setdefault(column, []).append(head)
    lines = [["torch", *map(", ".join, columns.values())], ["---"] * (len(columns) + 1)]
    lines += [[", ".join(dtypes), *row] for dtypes, row in zip(rows.values(), zip(*columns, strict=True), strict=True)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def tables() -> str:
    """Both tables, as the page has them."""
    version = tensordict.__version__.partition("+")[0]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="ComplexHalf support is experimental")
        warnings.filterwarnings("ignore", message=".* cannot load again")
        saved = {d: [memory_cell(d), *(saved_cell(d, save) for save in SAVED.values())] for d in DTYPES}
        written = {d: [written_cell(d, write) for write in WRITTEN.values()] for d in DTYPES}
    return (
        _SAVED.format(version=version)
        + _table(["`to_dataset(td)`", *SAVED], saved)
        + _WRITTEN.format(version=version)
        + _table([*WRITTEN], written)
        + "\n"
    )


def page() -> str:
    """The page with the tables of today."""
    before, _, rest = PAGE.read_text().partition(START)
    return f"{before}{START}{tables()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.stdout.write(f"{PAGE}\n")
