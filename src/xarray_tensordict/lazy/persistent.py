"""The lazy door: a ``PersistentTensorDict`` over any store that the engine opens, or any Dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import xarray as xr
from tensordict import PersistentTensorDict

from ..core.inference import BatchDims
from ..core.messages import check_choice
from ..dataset.entries import plan_entries
from ..dataset.records import infer_dataset, opening_notes
from ..formats.registry import describe_source
from ..tensors.reading import leave_out_times
from .lazy_tensordict import OpenedStore, XarrayPersistentTensorDict


def open_persistent(
    store: Any,
    *,
    mode: str = "r",
    device: Any = None,
    batch_dims: BatchDims | None = None,
    **engine_keywords: Any,
) -> PersistentTensorDict:
    """Open a store as a ``PersistentTensorDict``: lazy, decoded, nested.

    The same as ``xr.open_dataset(store, engine="tensordict")``, through tensordict's door:
    ``open_persistent(store).to_tensordict()`` and ``ds.td.to_tensordict()`` are equal.

    Parameters
    ----------
    store
        Whatever the engine opens: a path, a URL, a zarr store or group, an h5py file or group, an open
        ``PersistentTensorDict``.
    mode
        ``"r"``: read only. ``"r+"``: for stores that plain tensordict reads to the same entries; the result is then
        tensordict's own writable object.
    device
        The device that entries are sent to when they are read.
    batch_dims
        Names, or a count, of the batch dims; by default they are inferred.
    **engine_keywords
        The parameters of the engine: ``group`` (open this group as the root), ``nested`` (True: show all nested groups,
        False: none), ``dims`` (names for axes), ``allow_pickle`` (load pickled entries, which can run any code),
        ``filled`` (trim a replay buffer to its filled rows), ``consolidated``, ``storage_options``,
        ``use_zarr_fill_value_as_mask``; and those of ``xr.open_dataset``: ``drop_variables`` (leave variables, or a
        group, out), ``mask_and_scale``, ``decode_times``, ``chunks``, ...

    Returns
    -------
    PersistentTensorDict
        With ``mode="r"``: entries are read when they are asked for, each time anew, and are the caller's own.

        ======================================  ============================================================
        ``ptd["x"]``, ``ptd["next", "x"]``      reads the entry
        ``ptd.get_at("x", index)``              reads these rows of the entry
        ``ptd[3]``, ``ptd[[5, 1]]``, a mask     reads these rows of all entries: a ``TensorDict``
        ``ptd[10:20]``                          reads nothing: a lazy view
        ``ptd.clone(False)``                    reads nothing: another lazy object over the same store
        ``ptd.to_tensordict()``, ``clone()``    reads everything: a ``TensorDict``
        ``ptd.unbatched``                       reads the entries without a batch dim: a ``TensorDict``
        ======================================  ============================================================

    Raises
    ------
    ValueError
        For an unknown mode, and for ``mode="r+"`` with a store that plain tensordict reads otherwise; the message names
        the first entry that differs.

    Examples
    --------
    >>> import tempfile, torch
    >>> from tensordict import TensorDict
    >>> path = tempfile.mkdtemp() + "/buffer.zarr"
    >>> _ = TensorDict({"obs": torch.arange(6.0).view(3, 2), "done": torch.zeros(3)}, [3]).to_zarr(path)
    >>> ptd = open_persistent(path)
    >>> ptd[[2, 0]]["obs"]
    tensor([[4., 5.],
            [0., 1.]])
    """
    check_choice("mode", mode, ("r", "r+"))
    if "engine" in engine_keywords:
        raise TypeError(
            "open_persistent always uses engine='tensordict'; for a Dataset of another engine use ds.td.to_persistent()"
        )
    keywords = {"cache": False, **engine_keywords}
    if batch_dims is not None:
        keywords["batch_dims"] = batch_dims
    ds = xr.open_dataset(store, engine="tensordict", **keywords)
    description = describe_source(store)
    if mode == "r+":
        from .writable import open_writable

        return open_writable(store, ds, description, device=device, keywords=engine_keywords)
    try:
        return persistent_from_dataset(ds, device=device, description=description, closer=ds.close)
    except BaseException:
        ds.close()
        raise


def persistent_from_dataset(
    ds: xr.Dataset,
    batch_dims: BatchDims | None = None,
    *,
    device: Any = None,
    description: str | None = None,
    closer: Callable[[], None] | None = None,
) -> PersistentTensorDict:
    """A lazy ``PersistentTensorDict`` over a Dataset of any engine; nothing is written, and no array is read yet.

    Parameters
    ----------
    ds
        The Dataset; it is not changed.
    batch_dims
        Names, or a count, of the batch dims; by default those of ``ds.td``.
    device
        The device that entries are sent to when they are read.
    description
        How messages call the store.
    closer
        What ``close()`` calls; by default nothing, and the Dataset stays open.
    """
    plan = plan_entries(ds, infer_dataset(ds, given=batch_dims))
    leave_out_times(plan)
    description = description or str(ds.encoding.get("source") or "the dataset")
    hidden = tuple(opening_notes(ds).get("hidden_groups", ()))
    unbatched = [entry.lazy() for entry in plan.unbatched]
    source = OpenedStore(description, {**_left_out(ds), **plan.left_out}, unbatched, closer, hidden)
    return XarrayPersistentTensorDict.of(plan.entries, plan, source, device)


def _left_out(ds: xr.Dataset) -> dict[str, str]:
    """What the opening left out, by name; the note holds sentences like ``'a/b': reason``."""
    found = {}
    for sentence in opening_notes(ds).get("left_out", ()):
        if sentence.startswith("attribute "):
            continue  # the variable itself is there
        quote = sentence[0]
        name, _, reason = sentence[1:].partition(f"{quote}: ")
        found[name] = reason
    return found
