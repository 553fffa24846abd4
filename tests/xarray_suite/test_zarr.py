"""xarray's tests of its zarr backend: stores in folders and in dicts, formats 2 and 3, regions."""

from __future__ import annotations

from xarray.tests.test_backends import (  # noqa: F401
    TestZarrDictStore,
    TestZarrDirectoryStore,
    TestZarrRegionAuto,
    default_zarr_format,
    tmp_store,
)
