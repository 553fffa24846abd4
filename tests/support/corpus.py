"""The stores the tests read: 33 generated cases, their twins in other formats, and twelve real ones.

The real stores are files of others: they lie in ``shared/`` beside the repository, not in it. Where that folder is absent,
the tests that need it are skipped by name.
"""

import json
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import cases
import twins
import xarray_tensordict
from xarray_tensordict.testing import assert_same_tensordict

SHARED = Path(__file__).parents[3] / "shared"
REAL = SHARED / "real"

CASE_NAMES = tuple(cases.CASES)

specified: set[str] = set()
"""The cases that some test names with `of_case`."""


def stores_of(number: int, *beside: Any, twin: bool = True, marks: Any = ()) -> list[Any]:
    """Parameters for case `number` and, with `twin`, its twins in other formats: what writes each, and `beside`."""
    (name,) = (name for name in CASE_NAMES if name.startswith(f"case_{number:02}_"))
    specified.add(name)
    makes = {"original": cases.CASES[name], **(twins.twins_of(name) if twin else {})}
    return [pytest.param(make, *beside, id=f"{name[:7]}-{form}", marks=marks) for form, make in makes.items()]


def of_case(number: int, *, twin: bool = True) -> pytest.MarkDecorator:
    """Run a test on case `number` and, with `twin`, on its twins in other formats; ``store`` is the path."""
    return pytest.mark.parametrize("store", stores_of(number, twin=twin), indirect=True)


def build(make: Callable[[Path], Path], folder: Path) -> Path:
    """Make a store; what the libraries that write it warn of is not what is tested."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(folder)


@dataclass
class Both:
    """One store, opened through both libraries with the same arguments."""

    path: Path
    ds: xr.Dataset
    ptd: Any
    keywords: dict[str, Any] = field(default_factory=dict)

    @property
    def td(self) -> Any:
        """In memory, with the unbatched entries kept to be looked at."""
        with self._told_where_empty():
            return self.ds.td.to_tensordict(unbatched="keep")

    def _told_where_empty(self) -> Any:
        empty = not self.ds.variables and self.ds.encoding.get("xarray_tensordict", {}).get("hidden_groups")
        return pytest.warns(xarray_tensordict.LeftOutWarning, match="is empty") if empty else nullcontext()

    def check_law(self) -> None:
        with self._told_where_empty():
            assert_same_tensordict(self.ptd.to_tensordict(), self.ds.td.to_tensordict())

    def close(self) -> None:
        self.ptd.close()
        self.ds.close()


def open_in_both(path: Any, **keywords: Any) -> Both:
    """Open `path` through both libraries and hold them to the law."""
    both = Both(
        path,
        xr.open_dataset(path, engine="tensordict", **keywords),
        xarray_tensordict.open_persistent(path, **keywords),
        keywords,
    )
    both.check_law()
    return both


def is_zarr(path: Path) -> bool:
    return path.is_dir() or path.name.endswith(".zip")


def write(ds: xr.Dataset, path: Path, *, suffix: str | None = None) -> Path:
    """Write with this package, in the format that the suffix names."""
    path = path.with_suffix(suffix) if suffix else path
    if path.suffix == ".zarr":
        ds.td.to_zarr(path)
    else:
        ds.td.to_h5(path)
    return path


def values(entry: Any) -> np.ndarray[Any, Any]:
    """The values of a tensor of a tensordict, an unbatched one too."""
    return entry.data.cpu().numpy()


def assert_entry(td: Any, key: Any, expected: Any, dtype: torch.dtype | None = None) -> None:
    """Assert that the entry `key` is a tensor with exactly the values `expected` (and the dtype `dtype`)."""
    entry = td[key]
    if dtype is torch.bfloat16:  # which numpy lacks
        assert entry.dtype == dtype
        entry, dtype = entry.float(), None
    assert isinstance(entry, torch.Tensor) or hasattr(entry, "data"), f"{key!r} is {type(entry)}"
    np.testing.assert_array_equal(values(entry), np.asarray(expected), err_msg=repr(key))
    if dtype is not None:
        assert entry.dtype == dtype, f"{key!r} has dtype {entry.dtype}"


def assert_unbatched(td: Any, key: Any, expected: Any) -> None:
    """Assert that the entry `key` has the values `expected`, and still has them all in one row of the batch."""
    assert_entry(td, key, expected)
    row = td
    for _ in td.batch_size:
        row = row[0]
    assert_entry(row, key, expected)


def text(entry: Any) -> Any:
    """Non-tensor data as plain Python: a str, a list of str, ..."""
    return entry.tolist() if hasattr(entry, "tolist") else list(entry) if not isinstance(entry, str | dict) else entry


def real_stores() -> dict[str, dict[str, dict[str, Any]]]:
    """What is expected of each real store, and of some groups of it."""
    if not (REAL / "expected.json").exists():
        return {}
    return json.loads((REAL / "expected.json").read_text())
