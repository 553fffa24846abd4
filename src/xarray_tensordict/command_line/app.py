"""The commands. Heavy imports are made when a command runs, so that ``--help`` and completion are quick."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import click

from ..core.naming import printable
from ..formats.registry import TARGETS


def _dims(_context: click.Context, _option: click.Parameter, text: str | None) -> list[str] | int | None:
    if text is None:
        return None
    return int(text) if text.strip().isdigit() else [name.strip() for name in text.split(",") if name.strip()]


def _json(_context: click.Context, _option: click.Parameter, text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except json.JSONDecodeError as error:
        raise click.BadParameter(f"expected JSON, got {text!r} ({error})") from error


def _sizes(_context: click.Context, _option: click.Parameter, pairs: tuple[str, ...]) -> dict[str, Any] | None:
    found: dict[str, int | str] = {}
    for pair in pairs:
        name, equals, size = pair.rpartition("=")
        if not equals:
            raise click.BadParameter(f"expected DIM=SIZE, got {pair!r}")
        found[name.strip()] = int(size) if size.strip().isdigit() else size
    return found or None


_STORE = click.argument("store")
_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
_GROUP = click.option("--group", help="The group of the store that is the root.")
_BATCH_DIMS = click.option(
    "--batch-dims",
    metavar="NAMES",
    callback=_dims,
    help='The batch dims: "time", "episode,time", or a count such as 1.',
)
_STORAGE = click.option("--storage-options", metavar="JSON", callback=_json, help="For URLs: '{\"anon\": true}'.")
_PICKLE = click.option("--allow-pickle", is_flag=True, help="Load pickled entries. This can run any code.")


_COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red"}


def _opens(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for opening a store: keywords of the engine."""
    for option in (_PICKLE, _STORAGE, _BATCH_DIMS, _GROUP):
        command = option(command)
    return command


def _given(keywords: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in keywords.items() if value not in (None, False, ())}


def _width() -> int:
    """The columns of the terminal; without one those of ``COLUMNS``, or 80."""
    return shutil.get_terminal_size().columns


def _echo_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, default=str))


class _Commands(click.Group):
    """Shows an error of ours as one message, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (OSError, ValueError, TypeError, KeyError, NotImplementedError, ImportError) as error:
            message = error.args[0] if isinstance(error, KeyError) and error.args else error
            raise click.ClickException(printable(message)) from error


@click.group(
    cls=_Commands,
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
    xarray-tensordict bench demos.zarr
    """  # noqa: D301 - click reads the character


@main.command()
@_STORE
@_opens
@_AS_JSON
@click.option("--all", "everything", is_flag=True, help="List all entries, not only the first 20 of each kind.")
def inspect(store: str, *, as_json: bool, everything: bool, **keywords: Any) -> None:
    """Show what a store is, its batch and why, and how to open it. Nothing is written, no array is read.

    \b
    Examples:
      xarray-tensordict inspect run.zarr
      xarray-tensordict inspect demos.hdf5 --group data/demo_0
      xarray-tensordict inspect s3://bucket/run.zarr --storage-options '{"anon": true}'
      xarray-tensordict inspect run.zarr --json | jq .batch_size
    """  # noqa: D301 - click reads the character
    from ..show.inspection import inspect as look
    from ..show.summary import LONGEST

    found = look(store, **_given(keywords))
    if as_json:
        _echo_json(found.to_dict())
    else:
        click.echo(found.text(None if everything else LONGEST, _width()))


@main.command()
@_STORE
@_GROUP
@_BATCH_DIMS
@click.option("--dims", metavar="JSON", callback=_json, help='Names for axes: \'{"images": ["y", "x", "channel"]}\'.')
@_STORAGE
@_AS_JSON
def annotate(store: str, *, batch_dims: Any, as_json: bool, **keywords: Any) -> None:
    """Add dimension names and the batch to a store that lacks them. Only metadata is written.

    \b
    Examples:
      xarray-tensordict annotate run.zarr --batch-dims time
      xarray-tensordict annotate run.zarr --dims '{"images": ["y", "x", "channel"]}'
    """  # noqa: D301 - click reads the character
    from ..annotate import annotate as write

    found = write(store, batch_dims, **keywords)
    if as_json:
        _echo_json({"batch_dims": found.batch_dims, "batch_size": found.batch_size, "reason": found.reason})
    else:
        batch = f"batch dims {list(found.batch_dims)}, batch size {list(found.batch_size)}"
        click.echo(printable(f"{store}: {batch} ({found.reason})"))


@main.command()
@click.argument("source")
@click.argument("target")
@_opens
@click.option("--to", type=click.Choice(list(TARGETS)), help="What to write; by default the ending of TARGET decides.")
@click.option(
    "--layout",
    type=click.Choice(["tensordict", "xarray"]),
    default="tensordict",
    show_default=True,
    help="For whom a zarr store or HDF5 file is arranged.",
)
@click.option(
    "--chunk",
    "chunks",
    multiple=True,
    metavar="DIM=SIZE",
    callback=_sizes,
    help="Chunk size along a dim, in rows or as 1MiB; can be given more than once.",
)
@click.option(
    "--shard",
    "shards",
    multiple=True,
    metavar="DIM=SIZE",
    callback=_sizes,
    help="The same for the shards of zarr, each one file.",
)
@click.option(
    "--unbatched",
    type=click.Choice(["keep", "drop"]),
    default="keep",
    show_default=True,
    help="Whether variables without a batch dim are written.",
)
@click.option(
    "--include", multiple=True, metavar="NAME", help="Write this variable or group only; can be given more than once."
)
@click.option(
    "--exclude", multiple=True, metavar="NAME", help="Leave out a variable or a group; can be given more than once."
)
@click.option("--overwrite", is_flag=True, help="Replace an existing target.")
@click.option("--progress/--no-progress", default=None, help="Show a progress bar (default: in a terminal).")
def convert(source: str, target: str, *, progress: bool | None, **keywords: Any) -> None:
    """Convert between zarr, zip, HDF5, memory-mapped folders and .tdz archives, block by block.

    Without --chunk, zarr chunks are those of SOURCE, or hold rows of about 1 MiB along the batch, as training reads them.

    \b
    Examples:
      xarray-tensordict convert demos.hdf5 demos.zarr
      xarray-tensordict convert era5.zarr era5.zarr.zip --chunk time=256
      xarray-tensordict convert era5.nc s3://bucket/era5.zarr --chunk time=1MiB --shard time=64MiB
      xarray-tensordict convert run.zarr run_memmap --to memmap
      xarray-tensordict convert run.zarr run.tdz --overwrite --exclude next/info
    """  # noqa: D301 - click reads the character
    from .commands import convert as write

    left_out = write(source, target, progress=sys.stderr.isatty() if progress is None else progress, **_given(keywords))
    click.echo(f"{target} written")
    if left_out:
        click.echo(f"without {printable(', '.join(left_out))}, which have no batch dim (--unbatched keep writes them)")


@main.command()
@_STORE
@_opens
@_AS_JSON
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), default=5.0, show_default=True, help="How long, about."
)
@click.option("--batch-size", type=click.IntRange(min=1), default=256, show_default=True, help="Rows in a batch.")
def bench(store: str, *, as_json: bool, **keywords: Any) -> None:
    """Measure how fast a store can be trained from, and whether a copy in another layout is faster.

    At most 64 MiB are read in each run, and copied into a temporary folder. Chunks that were just read come from the memory of
    the system: a store larger than that is slower.

    \b
    Examples:
      xarray-tensordict bench run.zarr
      xarray-tensordict bench s3://bucket/run.zarr --seconds 20 --batch-size 64
    """  # noqa: D301 - click reads the character
    from .commands import bench as measure

    found = measure(store, **_given(keywords))
    if as_json:
        _echo_json(found.to_dict())
    else:
        click.echo(found.text())


@main.command()
@_STORE
@_opens
@_AS_JSON
@click.option("--values", "all_values", is_flag=True, help="Compare all values, not only the first and the last row.")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
def check(store: str, *, as_json: bool, all_values: bool, strict: bool, **keywords: Any) -> None:
    """Open a store with each library and list what is wrong. Exit code 0: no error, 1: an error.

    \b
    Examples:
      xarray-tensordict check run.zarr
      xarray-tensordict check run.zarr --values --strict && sbatch train.sh
    """  # noqa: D301 - click reads the character
    from .commands import check as look
    from .commands import worst

    findings = look(store, all_values=all_values, **_given(keywords))
    bad = worst(findings) == "error" or (strict and worst(findings) == "warning")
    if as_json:
        _echo_json({"store": store, "ok": not bad, "findings": [dataclasses.asdict(each) for each in findings]})
    else:
        click.secho(store, bold=True)
        for each in findings:
            text = printable(f"{each.about}: {each.message}")
            first, *more = textwrap.wrap(text, _width() - 10, break_long_words=False, break_on_hyphens=False)
            click.echo(f"  {click.style(f'{each.level:7}', fg=_COLOURS[each.level])} {first}")
            click.echo("".join(f"{' ' * 10}{line}\n" for line in more), nl=False)
    if bad:
        raise SystemExit(1)
