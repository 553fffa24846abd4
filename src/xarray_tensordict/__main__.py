"""``python -m xarray_tensordict``: the command line."""

from .command_line.app import main

main(prog_name="xarray-tensordict")
