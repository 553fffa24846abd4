"""``inspect(store)``: what a store is, as a Dataset and as a tensordict, without reading an array."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import xarray as xr

from ..core.naming import printable
from ..dataset.entries import Entry
from ..formats.registry import find_source
from ..lazy.lazy_tensordict import Group
from ..lazy.persistent import persistent_from_dataset
from ..tensors.reading import tensor_dtype
from .summary import LONGEST, Summary, summarize, summary_text, wrapped


@dataclass(frozen=True)
class TensorEntry:
    """One entry of the tensordict: its key, its dtype or class, its shape with the batch."""

    key: tuple[str, ...]
    kind: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Inspection:
    """A store as a Dataset and as a tensordict.

    Attributes
    ----------
    store
        Its path, or what messages call it.
    kind
        What it is: ``"zarr store"``, ``"HDF5 file"``, ``"memory-mapped tensordict"``.
    dataset
        The batch, the evidence, the variables by class: what ``ds.td`` shows.
    batch_size, names
        Those of the tensordict.
    entries
        The entries of the tensordict.
    warnings
        The warnings of opening it.
    opened_with
        The calls that open it: as a Dataset or DataTree, and as a lazy tensordict.
    """

    store: str
    kind: str
    dataset: Summary
    batch_size: tuple[int, ...]
    names: tuple[str | None, ...]
    entries: tuple[TensorEntry, ...]
    warnings: tuple[str, ...]
    opened_with: tuple[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Everything as lists, dicts, strings and numbers, for JSON."""
        return dataclasses.asdict(self)

    def text(self, longest: int | None = LONGEST, width: int | None = None) -> str:
        """Kind, batch, why, how to open it, the variables; lists are cut at `longest` lines, None shows all."""
        width = width or xr.get_options()["display_width"]
        title = printable(f"{self.store}: {self.kind},")
        opening = [f"{mark:6}{printable(line)}" for mark, line in zip(("open:", ""), self.opened_with, strict=True)]
        text = summary_text(self.dataset, longest, width=width, title=title, more=opening)
        entries = f"As a tensordict: batch_size={list(self.batch_size)}, names={list(self.names)}, {len(self.entries)} entries"
        sentences = [entries, *(printable(f"warning: {text}") for text in self.warnings)]
        return "\n".join([text, *(line for sentence in sentences for line in wrapped(sentence, width, ""))])

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.text())}</pre>"


def inspect(store: Any, **engine_keywords: Any) -> Inspection:
    """Show what a store is, its batch and why, and how to open it; no array is read, nothing is written.

    Parameters
    ----------
    store
        Anything that :func:`~xarray_tensordict.open_persistent` opens.
    **engine_keywords
        The parameters of :func:`~xarray_tensordict.open_persistent` except `mode` and `device`: ``group``, ``batch_dims``, ...

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
    messages = tuple(dict.fromkeys(str(each.message) for each in caught if each.category is not DeprecationWarning))
    opened = _opening_lines(store, engine_keywords, as_tree=bool(summary.hidden))
    return Inspection(source.description, source.kind, summary, batch_size, names, entries, messages, opened)


def _opening_lines(store: Any, keywords: Mapping[str, Any], *, as_tree: bool) -> tuple[str, str]:
    path = repr(os.fspath(store)) if isinstance(store, str | os.PathLike) else "store"
    options = "".join(f", {name}={value!r}" for name, value in keywords.items())
    lazy = f"xarray_tensordict.open_persistent({path}{', nested=True' if as_tree else ''}{options})"
    return f"xr.open_{'datatree' if as_tree else 'dataset'}({path}, engine='tensordict'{options})", lazy


def _entries(group: Group, prefix: tuple[str, ...] = ()) -> Iterator[TensorEntry]:
    for name, member in group.members.items():
        key = (*prefix, name)
        if not isinstance(member, Entry):
            yield from _entries(member.file, key)
        else:
            kind = {"rows": "NonTensorStack", "value": "NonTensorData"}.get(member.form, "")
            yield TensorEntry(key, kind or str(tensor_dtype(member)).removeprefix("torch."), tuple(member.shape))
