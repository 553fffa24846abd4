"""The tensorclass that a Dataset was saved from: its name, never the class, which may come from anywhere.

The name is kept in ``ds.encoding`` with the fields there were, for the root and for nested groups, and holds as long as
these are the fields. Writers write it, and the engine reads it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import xarray as xr

from ..core.metadata import ARRAY_ATTR
from ..core.model import Key, group_name, path_key
from .describe import key_of

ENCODING_KEY = "xarray_tensordict"
"""Where a Dataset keeps what the engine has to say about it."""
_CLASSES = "tensorclasses"


def opening_notes(ds: xr.Dataset) -> Mapping[str, Any]:
    """What the engine noted when it opened a Dataset; nothing for any other."""
    notes: Mapping[str, Any] = ds.encoding.get(ENCODING_KEY, {})
    return notes


def class_path(cls: type) -> str:
    """How a class is called.

    Examples
    --------
    >>> class_path(dict)
    'builtins.dict'
    """
    return f"{cls.__module__}.{cls.__qualname__}"


def note_classes(ds: xr.Dataset, classes: Mapping[Key, str]) -> None:
    """Keep the names of classes by group, with the fields that the groups have now."""
    if not classes:
        return
    fields = _fields(ds.variables, classes)
    noted = {group_name(key): {"class": name, "fields": fields[key]} for key, name in classes.items()}
    ds.encoding = {**ds.encoding, ENCODING_KEY: {**opening_notes(ds), _CLASSES: noted}}


def classes_of(ds: xr.Dataset, names: Iterable[Any] | None = None) -> dict[Key, str]:
    """The classes by group whose fields are still those of the Dataset, or of its variables `names`.

    Examples
    --------
    >>> ds = xr.Dataset({"obs": ("time", [1.0]), "next/obs": ("time", [2.0])})
    >>> note_classes(ds, {(): "robots.Step", ("next",): "robots.Observation"})
    >>> classes_of(ds)
    {(): 'robots.Step', ('next',): 'robots.Observation'}
    >>> classes_of(ds.drop_vars("obs"))
    {('next',): 'robots.Observation'}
    """
    noted: Mapping[str, Any] = opening_notes(ds).get(_CLASSES, {})
    found = {path_key(path): entry for path, entry in noted.items()}
    fields = _fields(ds.variables if names is None else names, found)
    return {key: entry["class"] for key, entry in found.items() if fields[key] == entry["fields"]}


def class_attrs(name: str) -> dict[str, str]:
    """The attributes of a group in a store that tell of the class. A text, since netCDF holds no objects."""
    return {ARRAY_ATTR: json.dumps({"tensorclass": name})}


def _fields(names: Iterable[Any], groups: Iterable[Key]) -> dict[Key, list[str]]:
    """What is in each of some groups."""
    found: dict[Key, set[str]] = {key: set() for key in groups}
    for key in map(key_of, names) if found else ():
        for length in range(len(key)):
            if key[:length] in found:
                found[key[:length]].add(key[length])
    return {key: sorted(fields) for key, fields in found.items()}
