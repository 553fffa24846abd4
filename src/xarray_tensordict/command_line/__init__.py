"""The command ``xarray-tensordict``: look at stores, annotate, convert and check them from a terminal."""
