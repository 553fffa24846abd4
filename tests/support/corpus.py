"""The stores the tests read: 33 generated cases, their twins in other formats, and twelve real ones.

The cases and the real stores lie in ``shared/`` beside the repository, not in it; where that folder is absent, tests
that need it are skipped by name, and the twins, which this folder generates itself, still run.
"""

import importlib.util
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import twins
import xarray_tensordict
from xarray_tensordict.testing import assert_same_tensordict

SHARED = Path(__file__).parents[3] / "shared"
CASES_FILE = SHARED / "cases" / "cases.py"
REAL = SHARED / "real"

CASE_NAMES = (
    "case_01_zarr3_without_dimension_names",
    "case_02_anemoi_like_zarr2_some_dims",
    "case_03_zarr3_null_dimension_names",
    "case_04_xarray_coords_block_batch_size",
    "case_05_equal_sizes_different_dims",
    "case_06_replay_buffer_zarr",
    "case_07_robomimic_hdf5",
    "case_09_d4rl_hdf5",
    "case_11_tensordict_h5_forgets_batch",
    "case_12_tensordict_zarr_names_and_nontensor",
    "case_13_h5py_phony_dims",
    "case_15_h5py_bool_enum",
    "case_17_compound_dtypes",
    "case_19_vlen_uint8_jpeg",
    "case_20_object_references",
    "case_21_links_and_cycles",
    "case_22_h5_empty_dataset",
    "case_23_unlimited_dim_short_variable",
    "case_26_bfloat16_and_float16",
    "case_27_big_endian",
    "case_29_packed_int16",
    "case_31_cf_datetimes",
    "case_32_zarr_native_datetime64",
    "case_35_string_columns",
    "case_37_netcdf_dimension_placeholder",
    "case_38_stale_consolidated_metadata",
    "case_40_repeated_dim_name",
    "case_41_multiindex_source",
    "case_43_zip_store",
    "case_44_awkward_names",
    "case_49_misaligned_dask_chunks",
    "case_51_rewrite_in_place",
    "case_53_dataloader_workers",
)

specified: set[str] = set()
"""The cases that some test names with `of_case`."""


def _load_cases() -> ModuleType | None:
    if not CASES_FILE.exists():
        return None
    spec = importlib.util.spec_from_file_location("shared_cases", CASES_FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CASES = _load_cases()


def of_case(number: int, *, twin: bool = True) -> pytest.MarkDecorator:
    """Run a test on case `number` and, with `twin`, on its twins in other formats; ``store`` is the path."""
    (name,) = (name for name in CASE_NAMES if name.startswith(f"case_{number:02}_"))
    specified.add(name)
    if CASES is None:
        absent = pytest.mark.skip(reason=f"{CASES_FILE.name} of the shared samples is absent: {name}")
        params = [pytest.param(None, id=f"{name[:7]}-original", marks=absent)]
    else:
        params = [pytest.param(getattr(CASES, name), id=f"{name[:7]}-original")]
    if twin:
        params += [pytest.param(make, id=f"{name[:7]}-{form}") for form, make in twins.twins_of(name).items()]
    return pytest.mark.parametrize("store", params, indirect=True)


def build(make: Callable[[Path], Path], folder: Path) -> Path:
    """Make a store; what the libraries that write it warn of is not what is tested."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(folder)


@dataclass
class Doors:
    """One store, opened through both doors with the same arguments."""

    path: Path
    ds: xr.Dataset
    ptd: Any
    keywords: dict[str, Any] = field(default_factory=dict)

    @property
    def td(self) -> Any:
        """In memory, with the unbatched entries kept to be looked at."""
        return self.ds.td.to_tensordict(unbatched="keep")

    def check_law(self) -> None:
        assert_same_tensordict(self.ptd.to_tensordict(), self.ds.td.to_tensordict())

    def close(self) -> None:
        self.ptd.close()
        self.ds.close()


def open_doors(path: Any, **keywords: Any) -> Doors:
    """Open `path` through both doors and hold them to the law."""
    doors = Doors(
        path,
        xr.open_dataset(path, engine="tensordict", **keywords),
        xarray_tensordict.open_persistent(path, **keywords),
        keywords,
    )
    doors.check_law()
    return doors


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
