"""Run the benchmarks and print their tables: ``python -m benchmarks [--tiny] [--area reading] [--docs docs/performance.md]``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from .jobs import TINY, Area, Job, Sizes, machine, quiet, table

AREAS = ("reading", "loading", "opening", "texts")
"""The modules of this folder that have jobs."""
ALONE = ("far",)
"""Those that run only where they are asked for, and have tables of their own."""


def measure(areas: list[str], sizes: Sizes, repeats: int | None = None) -> list[Job]:
    """Run the jobs of some areas."""
    done = []
    for area in areas:
        jobs: Area = import_module(f"{__package__}.{area}").jobs
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, quiet():
            for job in jobs(Path(folder), sizes):
                job.run(repeats)
                print(f"{job.name}: {job.times}", file=sys.stderr)
                done.append(job)
    return done


def write_into(page: Path, text: str, name: str = "benchmarks") -> None:
    """Replace the tables of a page."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, _, rest = page.read_text().partition(start)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{start}\n\n{text}\n\n{end}{after}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="small data, one repeat: whether it runs")
    parser.add_argument("--area", choices=AREAS + ALONE, action="append", help="these areas only")
    parser.add_argument("--docs", type=Path, help="the page whose tables are replaced")
    options = parser.parse_args(arguments)
    done = measure(options.area or list(AREAS), TINY if options.tiny else Sizes(), 1 if options.tiny else None)
    how = "Milliseconds, medians, all sides in turn in one process; in brackets how many times as long as here."
    text = f"Measured on {machine()}. {how}\n\n{table(done)}"
    print(text)
    if options.docs is not None:
        alone = options.area is not None and len(options.area) == 1 and options.area[0] in ALONE
        write_into(options.docs, text, options.area[0] if alone else "benchmarks")


if __name__ == "__main__":
    main()
