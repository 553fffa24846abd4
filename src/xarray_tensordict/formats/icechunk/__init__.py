"""Icechunk repositories, which are read and written through the store of zarr that a session has."""
