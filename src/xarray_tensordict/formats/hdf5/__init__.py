"""HDF5 and netCDF-4 files: reader and writer."""
