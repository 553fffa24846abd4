"""zarr stores, version 2 and 3: reader and writer."""
