"""Messages about a name that does not exist, and how messages show text of a store.

Names and attributes may hold sequences that control a terminal, so all code that prints them calls :func:`printable`. HTML is escaped
besides.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

LONGEST = 50
"""Names that a message lists."""


def there_are(name: object, known: Iterable[object], what: str = "there are") -> str:
    """List the known names after the words `what`, and the one that was probably meant by `name`.

    Examples
    --------
    >>> there_are("tme", ["time", "lat"], "the dims there are")
    "the dims there are: ['lat', 'time']. Did you mean 'time'?"
    >>> there_are("x", [])
    'there are: none'
    """
    names = sorted(map(str, known))
    listed = f"{names[:LONGEST]} and {len(names) - LONGEST} more" if len(names) > LONGEST else str(names or "none")
    lowered = {each.lower(): each for each in reversed(names)}
    near = difflib.get_close_matches(str(name).lower(), lowered, n=1)
    return f"{what}: {listed}. Did you mean {lowered[near[0]]!r}?" if near else f"{what}: {listed}"


def check_choice(argument: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise ``ValueError`` for a value that is none of the choices."""
    if value not in choices:
        raise ValueError(f"{argument}: expected one of {', '.join(map(repr, choices))}, found {value!r}")


def printable(text: object) -> str:
    r"""Text on one line, with an escape, as in ``repr``, for each character that is not printed.

    These are control characters (of C0 and C1, line ends included), marks that change the direction of text, and other
    separators than a space.

    Examples
    --------
    >>> printable("obs"), printable("\x1b[2Jobs\r")
    ('obs', '\\x1b[2Jobs\\r')
    """
    given = str(text)
    if given.isprintable():
        return given
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in given)
