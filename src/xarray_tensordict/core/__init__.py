"""The pure core: descriptions of arrays in, names and decisions out. No I/O, no xarray, no torch."""
