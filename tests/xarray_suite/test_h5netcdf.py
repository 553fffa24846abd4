"""xarray's tests of its h5netcdf backend, and of trees in netCDF-4 and zarr."""

from __future__ import annotations

from xarray.tests.test_backends import (  # noqa: F401
    TestH5NetCDFAlreadyOpen,
    TestH5NetCDFData,
    TestH5NetCDFDataRos3Driver,
    TestH5NetCDFFileObject,
    TestH5NetCDFViaDaskData,
)
