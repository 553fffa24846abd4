"""The only parse of JSON that a store holds: against a type, and with one sentence where it does not fit."""

from __future__ import annotations

import json
from typing import TypeVar

import msgspec

T = TypeVar("T")

LARGEST = 64 << 20
"""How many bytes one value may have that is read when a store is opened, decompressed."""


def parse(content: bytes | str, kind: type[T], what: str) -> T:
    """A document of a store, which is JSON, as a type.

    Parameters
    ----------
    content
        JSON, with ``NaN`` and ``Infinity`` as Python's ``json`` writes them.
    kind
        Anything that msgspec checks: a ``msgspec.Struct``, a ``TypedDict``, ``list[str]``, ...
    what
        The store and the document in it, for messages.

    Returns
    -------
    T
        The document. Members that a struct does not name are left out.

    Raises
    ------
    ValueError
        Where it is no JSON, is nested too deeply, or a member is missing or of another type: store, document, member, what was
        expected and what was found.

    Examples
    --------
    >>> parse(b'["time", "env"]', list[str], "store 'a.zarr', array 'obs', dimension_names")
    ['time', 'env']
    >>> parse(b'["time", 3]', list[str], "store 'a.zarr', array 'obs', dimension_names")
    Traceback (most recent call last):
    ...
    ValueError: store 'a.zarr', array 'obs', dimension_names: Expected `str`, got `int` - at `$[1]`
    """
    try:
        value = json.loads(content)
    except RecursionError:
        raise ValueError(f"{what}: nested too deeply to be a document of metadata") from None
    except ValueError as error:  # beside what is no JSON: no UTF-8, an integer of thousands of digits
        raise ValueError(f"{what}: not JSON ({error})") from None
    return checked(value, kind, what)


def checked(value: object, kind: type[T], what: str) -> T:
    """What was read from JSON already as a type; as :func:`parse`.

    Examples
    --------
    >>> checked({"shape": [3, True]}, dict[str, list[int]], "store 'a.zarr', __tensordict__")
    Traceback (most recent call last):
    ...
    ValueError: store 'a.zarr', __tensordict__: Expected `int`, got `bool` - at `$[...][1]`
    """
    try:
        return msgspec.convert(value, kind)
    except RecursionError:
        raise ValueError(f"{what}: nested too deeply to be a document of metadata") from None
    except msgspec.ValidationError as error:
        raise ValueError(f"{what}: {error}") from None
