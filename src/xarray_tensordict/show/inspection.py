"""``inspect(store)``: what a store is, seen through both doors, without reading an array."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

import xarray as xr

from ..core.messages import printable
from ..dataset.entries import Entry
from ..formats.registry import find_source
from ..lazy.lazy_tensordict import Group
from ..lazy.persistent import persistent_from_dataset
from ..tensors.reading import tensor_dtype
from .summary import LONGEST, Summary, summarize
from .text import aligned, cut, summary_text


@dataclass(frozen=True)
class TensorEntry:
    """One entry as the lazy door gives it: its key, what it is, its shape with the batch."""

    key: tuple[str, ...]
    kind: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Inspection:
    """A store, seen through both doors.

    Attributes
    ----------
    store
        What was inspected, as messages call it.
    kind
        What it is: ``"zarr store"``, ``"HDF5 file"``, ``"memory-mapped tensordict"``.
    dataset
        The batch, the evidence, the variables by class: what ``ds.td`` shows.
    batch_size, names
        Those of the tensordict.
    entries
        The entries of the tensordict.
    warnings
        What was said when it was opened.
    """

    store: str
    kind: str
    dataset: Summary
    batch_size: tuple[int, ...]
    names: tuple[str | None, ...]
    entries: tuple[TensorEntry, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything as lists, dicts, strings and numbers, for JSON."""
        return dataclasses.asdict(self)

    def text(self, longest: int | None = LONGEST) -> str:
        """Both sides as text; lists are cut at `longest` lines, None shows all."""
        size = f"batch_size={list(self.batch_size)}, names={list(self.names)}, {len(self.entries)} entries"
        rows = [
            (repr(e.key if len(e.key) > 1 else e.key[0]), e.kind, str(list(e.shape))) for e in self.entries[:longest]
        ]
        entries = [f"    {line}" for line in cut(aligned(rows), len(self.entries))]
        lines = [
            printable(f"{self.store}: {self.kind}"),
            summary_text(self.dataset, longest),
            f"as a tensordict: {size}",
            *entries,
        ]
        return "\n".join([*lines, *(printable(f"warning: {text}") for text in self.warnings)])

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.text())}</pre>"


def inspect(store: Any, **engine_keywords: Any) -> Inspection:
    """Look at a store through both doors; no array is read, nothing is written.

    Parameters
    ----------
    store
        Whatever the engine opens.
    **engine_keywords
        Those of ``xr.open_dataset(store, engine="tensordict")``: ``group``, ``batch_dims``, ``dims``, ``storage_options``, ...

    Returns
    -------
    Inspection
        Prints as text and shows as HTML; ``to_dict()`` is for scripts.

    Raises
    ------
    FileNotFoundError, ValueError, TypeError
        As ``xr.open_dataset``.

    Examples
    --------
    >>> import tempfile, torch, xarray_tensordict
    >>> from tensordict import TensorDict
    >>> path = tempfile.mkdtemp() + "/td.zarr"
    >>> _ = TensorDict({"obs": torch.zeros(6, 3)}, [6], names=["time"]).to_zarr(path)
    >>> found = xarray_tensordict.inspect(path)
    >>> found.kind, found.batch_size, found.names
    ('zarr store', (6,), ('time',))
    """
    source = find_source(store)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with xr.open_dataset(store, engine="tensordict", cache=False, **engine_keywords) as ds:
            summary = summarize(ds, ds.td.infer(), longest=None)
            ptd = persistent_from_dataset(ds)
            entries = tuple(_entries(ptd.file))
            batch_size, names = tuple(ptd.batch_size), tuple(ptd.names)
    told = tuple(dict.fromkeys(str(each.message) for each in caught if each.category is not DeprecationWarning))
    return Inspection(source.description, source.kind, summary, batch_size, names, entries, told)


def _entries(group: Group, prefix: tuple[str, ...] = ()) -> Iterator[TensorEntry]:
    for name, member in group.members.items():
        key = (*prefix, name)
        if not isinstance(member, Entry):
            yield from _entries(member.file, key)
        else:
            kind = {"rows": "NonTensorStack", "value": "NonTensorData"}.get(member.form, "")
            yield TensorEntry(key, kind or str(tensor_dtype(member)).removeprefix("torch."), tuple(member.shape))
