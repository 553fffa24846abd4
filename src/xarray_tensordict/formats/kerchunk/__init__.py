"""References to chunks in other files (kerchunk, VirtualiZarr), which are read as zarr."""
