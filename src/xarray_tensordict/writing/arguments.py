"""Arguments that all writers share."""

from __future__ import annotations

from typing import Any


def check_choice(argument: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise ``ValueError`` for a value that is none of the choices."""
    if value not in choices:
        raise ValueError(f"{argument}: expected one of {', '.join(map(repr, choices))}, found {value!r}")
