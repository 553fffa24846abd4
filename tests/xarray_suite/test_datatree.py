"""xarray's tests of trees in netCDF-4 files and zarr stores."""

from __future__ import annotations

from xarray.tests.test_backends_datatree import (  # noqa: F401
    TestH5NetCDFDatatreeIO,
    TestZarrDatatreeIO,
    unaligned_datatree_nc,
    unaligned_datatree_zarr_factory,
)
