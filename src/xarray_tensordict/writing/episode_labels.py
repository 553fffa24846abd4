"""The labels of episodes in rows that are appended: ``concat`` counts them from 0 in each file.

A label that comes back would make one episode of two: windows would cross the border, and a split would not see it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import xarray as xr

from ..core.metadata import STEP_ATTR
from ..warnings import StoredFormWarning, warn
from .values import read_now


def changed_label_attrs(
    new: xr.Dataset, there: xr.Dataset, dims: Collection[str], where: str
) -> dict[str, dict[str, Any]]:
    """Check the labels of episodes, of which the last stored one is read, and say which of their attributes change.

    Returns
    -------
    dict
        The attributes by variable; those that are None go.

    Raises
    ------
    ValueError
        For labels that are not behind those of the store, unless the rows continue its last episode.
    """
    changed = {}
    for name, label in new.variables.items():
        old = there.variables[name]
        if not label.size or not old.size or label.dtype.kind not in "iu" or set(dims).isdisjoint(label.dims):
            continue
        step = label.attrs.get(STEP_ATTR, old.attrs.get(STEP_ATTR))
        if label.ndim != 1 or not isinstance(step, str):
            continue
        labels, last = read_now(label), _end(old, -1)
        continues = int(labels[0]) == last and _goes_on(new, there, step)
        lowest = int(labels.min())
        if lowest < last or (lowest == last and not continues):
            shift = max(len(_items(old.attrs.get("names")) or ()), last + 1 - lowest)
            raise ValueError(
                f"{where}: {name!r} numbers episodes, and the last one there is {last}; the rows to be appended start with "
                f"{lowest}, and would be taken for its rows, or for those before it. Write ds.assign_coords({{{name!r}: "
                f"ds[{name!r}].copy(data=ds[{name!r}] + {shift})}}). Rows of the episode {last} itself need {step!r} to go on"
            )
        attrs = _true_attrs(labels, label.attrs, old.attrs)
        if attrs:
            changed[str(name)] = attrs
        if attrs.get("names", ()) is None:
            warn(
                f"{where}: the attributes {sorted(attrs)} of {name!r} do not describe the episodes that are appended, and are "
                f"removed",
                StoredFormWarning,
            )
    return changed


def _end(variable: xr.Variable, place: int) -> int:
    return int(read_now(variable[[place]])[0])


def _goes_on(new: xr.Dataset, there: xr.Dataset, step: str) -> bool:
    """Whether the steps of the first new row follow those of the last stored one, where both have some."""
    variables = [ds.variables.get(step) for ds in (new, there)]
    counted = [each for each in variables if each is not None and each.ndim == 1 and each.size]
    return len(counted) < 2 or _end(counted[0], 0) == _end(counted[1], -1) + 1


def _items(value: Any) -> list[Any] | None:
    if isinstance(value, np.ndarray):
        return list(value.ravel().tolist())
    return list(value) if isinstance(value, list | tuple) else None


def _true_attrs(
    labels: np.ndarray[Any, Any], new: Mapping[Any, Any], old: Mapping[Any, Any]
) -> dict[str, list[Any] | None]:
    """The lists with an item for each episode: joined where the new labels number the new items, gone where nothing does."""
    names, more = (_items(attrs.get("names")) for attrs in (old, new))
    if names is None or (labels.max() < len(names) and more in (None, names)):
        return {}
    lists = {str(word): _items(value) for word, value in old.items()}
    own = {word: items for word, items in lists.items() if items is not None and len(items) == len(names)}
    numbered = range(len(names), len(names) + len(more or ()))
    if more is None or np.unique(labels).tolist() != list(numbered):
        return dict.fromkeys(own)
    added = {word: _items(new.get(word)) or [] for word in own}
    return {word: items + added[word] if len(added[word]) == len(more) else None for word, items in own.items()}
