"""The writers: zarr stores, HDF5 files and memory-mapped folders that both libraries read."""
