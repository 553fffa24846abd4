"""``python -m xarray_tensordict``: the command line."""

from .cli.app import main

main(prog_name="xarray-tensordict")
