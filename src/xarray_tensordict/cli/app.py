"""The commands. Heavy imports are made when a command runs, so that ``--help`` and completion are quick."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Callable
from typing import Any

import click

from ..formats.registry import target_names

_STORE = click.argument("store")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


def _engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say how a store is opened."""
    for option in (
        click.option("--group", help="Open this group of the store as the root."),
        click.option(
            "--batch-dims", metavar="NAMES", help='The batch dims: "time", "episode,time", or a count such as 1.'
        ),
        click.option("--storage-options", metavar="JSON", help="For URLs: '{\"anon\": true}'."),
        click.option("--allow-pickle", is_flag=True, help="Load pickled entries. This can run any code."),
    ):
        command = option(command)

    @functools.wraps(command)
    def wrapped(
        *args: Any,
        group: str | None,
        batch_dims: str | None,
        storage_options: str | None,
        allow_pickle: bool,
        **rest: Any,
    ) -> Any:
        keywords: dict[str, Any] = {"group": group, "allow_pickle": allow_pickle or None}
        keywords["batch_dims"] = _parsed_dims(batch_dims)
        keywords["storage_options"] = _parsed_json(storage_options, "--storage-options")
        return command(*args, keywords={k: v for k, v in keywords.items() if v is not None}, **rest)

    return wrapped


def _parsed_dims(text: str | None) -> list[str] | int | None:
    if text is None:
        return None
    return int(text) if text.strip().isdigit() else [name.strip() for name in text.split(",") if name.strip()]


def _parsed_json(text: str | None, option: str) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise click.BadParameter(f"expected JSON, got {text!r} ({error})", param_hint=option) from error


def _parsed_sizes(pairs: tuple[str, ...]) -> dict[str, int] | None:
    found = {}
    for pair in pairs:
        name, equals, size = pair.rpartition("=")
        if not equals or not size.strip().isdigit():
            raise click.BadParameter(f"expected DIM=SIZE, got {pair!r}", param_hint="--chunk")
        found[name.strip()] = int(size)
    return found or None


def _plain_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """Show an error of ours as one message, without a traceback."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except (OSError, ValueError, TypeError, KeyError, NotImplementedError, ImportError) as error:
            message = error.args[0] if isinstance(error, KeyError) and error.args else error
            raise click.ClickException(f"{message}") from error

    return wrapped


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog='Tab completion, for bash: eval "$(_XARRAY_TENSORDICT_COMPLETE=bash_source xarray-tensordict)" (or zsh_source, fish_source).',
)
@click.version_option(package_name="xarray-tensordict")
def main() -> None:
    """Zarr stores, HDF5 files and memory-mapped tensordicts, seen by xarray and by tensordict.

    \b
    xarray-tensordict inspect run.zarr
    xarray-tensordict convert demos.hdf5 demos.zarr
    xarray-tensordict check demos.zarr
    """  # noqa: D301 - click reads the character


@main.command()
@_STORE
@_engine_options
@_JSON
@click.option("--all", "everything", is_flag=True, help="List all entries, not only the first 20 of each kind.")
@_plain_errors
def inspect(store: str, keywords: dict[str, Any], *, as_json: bool, everything: bool) -> None:
    """Show both doors side by side, the batch and why. Nothing is written, no array is read.

    \b
    Examples:
      xarray-tensordict inspect run.zarr
      xarray-tensordict inspect demos.hdf5 --group data/demo_0
      xarray-tensordict inspect s3://bucket/run.zarr --storage-options '{"anon": true}'
      xarray-tensordict inspect run.zarr --json | jq .batch_size
    """  # noqa: D301 - click reads the character
    from ..show.inspection import inspect as look
    from ..show.summary import LONGEST
    from .render import print_inspection, print_json

    found = look(store, **keywords)
    if as_json:
        print_json(found.to_dict())
    else:
        print_inspection(found, longest=None if everything else LONGEST)


@main.command()
@_STORE
@click.option("--group", help="Annotate this group and those below it.")
@click.option("--batch-dims", metavar="NAMES", help='The batch dims: "time", "episode,time", or a count such as 1.')
@click.option("--dims", metavar="JSON", help='Names for axes: \'{"images": ["y", "x", "channel"]}\'.')
@click.option("--storage-options", metavar="JSON", help="For URLs.")
@_JSON
@_plain_errors
def annotate(
    store: str,
    *,
    group: str | None,
    batch_dims: str | None,
    dims: str | None,
    storage_options: str | None,
    as_json: bool,
) -> None:
    """Add dimension names and the batch to a store that lacks them. Only metadata is written.

    \b
    Examples:
      xarray-tensordict annotate run.zarr --batch-dims time
      xarray-tensordict annotate run.zarr --dims '{"images": ["y", "x", "channel"]}'
    """  # noqa: D301 - click reads the character
    from ..annotate import annotate as write

    found = write(
        store,
        _parsed_dims(batch_dims),
        dims=_parsed_json(dims, "--dims"),
        group=group,
        storage_options=_parsed_json(storage_options, "--storage-options"),
    )
    if as_json:
        from .render import print_json

        print_json({"batch_dims": found.batch_dims, "batch_size": found.batch_size, "reason": found.reason})
    else:
        click.echo(
            f"{store}: batch dims {list(found.batch_dims)}, batch size {list(found.batch_size)} ({found.reason})"
        )


@main.command()
@click.argument("source")
@click.argument("target")
@_engine_options
@click.option(
    "--to",
    type=click.Choice(target_names()),
    help="What to write, where the ending does not say it.",
)
@click.option(
    "--layout",
    type=click.Choice(["tensordict", "xarray"]),
    default="tensordict",
    show_default=True,
    help="For whom a zarr store or HDF5 file is arranged.",
)
@click.option(
    "--chunk",
    "chunk_sizes",
    multiple=True,
    metavar="DIM=SIZE",
    help="Chunk size along a dim; can be given more than once.",
)
@click.option("--overwrite", is_flag=True, help="Replace what is there.")
@click.option("--progress/--no-progress", default=None, help="Show a progress bar (default: in a terminal).")
@_plain_errors
def convert(
    source: str, target: str, keywords: dict[str, Any], *, chunk_sizes: tuple[str, ...], **options: Any
) -> None:
    """Convert between zarr, zip, HDF5, memory-mapped folders and .tdz archives, block by block.

    Without --chunk, zarr chunks hold rows along the batch, as training reads them.

    \b
    Examples:
      xarray-tensordict convert demos.hdf5 demos.zarr
      xarray-tensordict convert era5.zarr era5.zarr.zip --chunk time=256
      xarray-tensordict convert run.zarr run_memmap --to memmap
      xarray-tensordict convert run.zarr run.tdz --overwrite
    """  # noqa: D301 - click reads the character
    from .convert import convert as write

    if options["progress"] is None:
        options["progress"] = sys.stderr.isatty()
    write(source, target, chunks=_parsed_sizes(chunk_sizes), **options, **keywords)
    click.echo(f"{target} written")


@main.command()
@_STORE
@_engine_options
@_JSON
@click.option("--values", "all_values", is_flag=True, help="Compare all values, not only the first and the last row.")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@_plain_errors
def check(store: str, keywords: dict[str, Any], *, as_json: bool, all_values: bool, strict: bool) -> None:
    """Open a store through every door and say what is wrong. Exit code 0: fine, 1: not.

    \b
    Examples:
      xarray-tensordict check run.zarr
      xarray-tensordict check run.zarr --values --strict && sbatch train.sh
    """  # noqa: D301 - click reads the character
    from .check import check as look
    from .check import worst
    from .render import print_findings, print_json

    findings = look(store, all_values=all_values, **keywords)
    bad = worst(findings) == "error" or (strict and worst(findings) == "warning")
    if as_json:
        print_json({"store": store, "ok": not bad, "findings": [dataclasses.asdict(each) for each in findings]})
    else:
        print_findings(store, findings)
    if bad:
        raise SystemExit(1)
