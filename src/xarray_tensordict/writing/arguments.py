"""Arguments that all writers share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def check_choice(argument: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise ``ValueError`` for a value that is none of the choices."""
    if value not in choices:
        raise ValueError(f"{argument}: expected one of {', '.join(map(repr, choices))}, found {value!r}")


@contextmanager
def progress_bar(*, shown: bool) -> Iterator[None]:
    """Show dask's progress bar for what is computed inside, if asked to."""
    if not shown:
        yield
        return
    from dask.diagnostics.progress import ProgressBar

    bar: Any = ProgressBar
    with bar():
        yield
