"""What a store says, made fit for a terminal: its names and attributes may hold sequences that control one.

Whatever prints them goes through this function: representations, warnings, the command line. HTML is escaped besides.
"""

from __future__ import annotations


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
