"""``xarray-tensordict check``: open a store with each library, and list what is wrong."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal

import xarray as xr

from ..dataset.records import opening_notes
from ..formats.registry import find_source
from ..lazy.persistent import persistent_from_dataset
from ..testing import assert_same_tensordict

Level = Literal["ok", "note", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One check and its result.

    Attributes
    ----------
    level
        "ok"; "note": a fact that needs no change; "warning": values are left out or metadata was corrected; "error": a
        library does not open the store, or the two read different values.
    about
        What was checked.
    message
        What was found.
    """

    level: Level
    about: str
    message: str


def check(store: Any, *, all_values: bool = False, **engine_keywords: Any) -> list[Finding]:
    """Open a store as a Dataset, as a tensordict, with plain xarray and with plain tensordict.

    With `all_values` all values are compared, else those of the first and the last row. `engine_keywords` are those of the engine.
    """
    findings = check_group(store, all_values=all_values, **engine_keywords)
    if not engine_keywords and worst(findings) != "error":
        findings += _plain_libraries(store)
    return findings


def check_group(store: Any, *, all_values: bool, **engine_keywords: Any) -> list[Finding]:
    """Open a group of a store, and those in it, as a Dataset and as a tensordict."""
    findings: list[Finding] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            ds = xr.open_dataset(store, engine="tensordict", cache=False, **engine_keywords)
        except Exception as error:
            return [Finding("error", "open_dataset", _described(error))]
        with ds:
            batch = ", ".join(f"{dim}: {size}" for dim, size in zip(ds.td.batch_dims, ds.td.batch_size, strict=True))
            findings.append(Finding("ok", "open_dataset", f"batch ({batch or 'none'}): {ds.td.infer().reason}"))
            findings.append(_same_values(ds, all_values=all_values))
            hidden = list(opening_notes(ds).get("hidden_groups", ()))
    messages = dict.fromkeys(str(each.message) for each in caught if issubclass(each.category, UserWarning))
    findings += [Finding("warning", "open_dataset", text) for text in messages]
    findings += _hidden_groups(store, hidden, all_values=all_values, **engine_keywords)
    return findings


def _hidden_groups(store: Any, paths: list[str], *, all_values: bool, **engine_keywords: Any) -> list[Finding]:
    """Check the groups that have a batch of their own, each by itself; those that are fine are counted."""
    findings: list[Finding] = []
    for path in paths:
        found = check_group(store, all_values=all_values, **{**engine_keywords, "group": path})
        findings += [replace(each, about=f"group {path}, {each.about}") for each in found if each.level != "ok"]
    wrong = {each.about.partition(",")[0] for each in findings}
    if len(paths) > len(wrong):
        findings.append(Finding("ok", "groups", f"{len(paths) - len(wrong)} with a batch of their own are fine"))
    return findings


def worst(findings: list[Finding]) -> Level:
    """The worst level there is."""
    order: tuple[Level, ...] = ("error", "warning", "note")
    return next((level for level in order if any(each.level == level for each in findings)), "ok")


def _same_values(ds: xr.Dataset, *, all_values: bool) -> Finding:
    """Compare the values in xarray and in tensordict: all of them, or the first and the last row."""
    dims, sizes = ds.td.batch_dims, ds.td.batch_size
    whole = all_values or len(dims) != 1 or not sizes[0]
    try:
        if whole:
            assert_same_tensordict(ds.td.to_tensordict(), persistent_from_dataset(ds).to_tensordict())
        else:
            rows = [0, sizes[0] - 1]
            eager = ds.isel({dims[0]: rows}).td.to_tensordict(batch_dims=dims)
            assert_same_tensordict(eager, persistent_from_dataset(ds)[rows])
    except Exception as error:
        return Finding("error", "both libraries", _described(error))
    what = "all values" if whole else "the first and the last row"
    return Finding("ok", "both libraries", f"{what} are the same in xarray and in tensordict")


def _plain_libraries(store: Any) -> list[Finding]:
    """What xarray and tensordict see without this package; it matters to those who share the store with them."""
    source = find_source(store)
    engine, backend = source.format.engine, source.format.backend
    if engine is None or backend is None:
        return []
    from tensordict import TensorDict

    def by_tensordict() -> str:
        return f"batch size {list(getattr(TensorDict, f'from_{backend}')(source.value).batch_size)}"

    def by_xarray() -> str:
        with xr.open_dataset(source.value, engine=engine) as ds:
            return f"variables {sorted(map(str, ds.variables))[:10]}, dims {dict(ds.sizes)}"

    found = []
    for about, look in (("plain tensordict", by_tensordict), ("plain xarray", by_xarray)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found.append(Finding("ok", about, look()))
            except Exception as error:
                found.append(Finding("note", about, f"does not open it ({_described(error)})"))
    return found


def _described(error: BaseException) -> str:
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {str(error).strip() or 'without a message'}{notes}"
