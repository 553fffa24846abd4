"""The lazy object: a ``PersistentTensorDict`` over any store that the engine opens, or any Dataset.

With ``mode="r+"`` it is tensordict's own object. A value written through it must mean the same in xarray, so anything that this
package decodes, leaves out or shapes (packed data, times, text, unbatched entries) is refused, with the name of the first such entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypedDict

import numpy as np
import torch
import xarray as xr
from tensordict import PersistentTensorDict, TensorDict

from .._compat.tensordict import entry_class, metadata_of
from ..core.inference import BatchDims
from ..core.model import Key, is_url
from ..core.naming import DimsArgument, check_choice, td_names
from ..dataset.entries import Entry, Plan, plan_entries
from ..dataset.records import infer_dataset, opening_notes
from ..formats.identity import describe_source
from ..formats.registry import find_source
from ..tensors.reading import finish, leave_out_times, read_entries, tensor_dtype
from ..testing import assert_same_tensordict
from ..warnings import quiet
from .lazy_tensordict import OpenedStore, XarrayPersistentTensorDict


class OpenOptions(TypedDict, total=False):
    """The parameters of :func:`open_persistent` that ``xr.open_dataset`` takes as well."""

    batch_dims: BatchDims | None
    group: str | None
    nested: bool | None
    dims: DimsArgument | None
    drop_variables: str | Iterable[str | Key] | None
    storage_options: dict[str, Any] | None
    filled: bool
    allow_pickle: bool
    consolidated: bool | None
    zarr_format: Literal[2, 3] | None
    use_zarr_fill_value_as_mask: bool | None
    mask_and_scale: bool | Mapping[str, bool] | None
    decode_times: Any
    decode_timedelta: Any
    use_cftime: Any
    decode_coords: Any
    concat_characters: bool | Mapping[str, bool] | None
    chunks: Any


def open_persistent(
    store: Any,
    *,
    batch_dims: BatchDims | None = None,
    group: str | None = None,
    nested: bool | None = None,
    dims: DimsArgument | None = None,
    drop_variables: str | Iterable[str | Key] | None = None,
    mode: Literal["r", "r+"] = "r",
    device: Any = None,
    storage_options: dict[str, Any] | None = None,
    filled: bool = True,
    allow_pickle: bool = False,
    consolidated: bool | None = None,
    zarr_format: Literal[2, 3] | None = None,
    use_zarr_fill_value_as_mask: bool | None = None,
    mask_and_scale: bool | Mapping[str, bool] | None = None,
    decode_times: Any = None,
    decode_timedelta: Any = None,
    use_cftime: Any = None,
    decode_coords: Any = None,
    concat_characters: bool | Mapping[str, bool] | None = None,
    **of_xarray: Any,
) -> PersistentTensorDict:
    """Open a store as a ``PersistentTensorDict``: lazy, decoded, nested.

    It opens what ``xr.open_dataset(store, engine="tensordict")`` opens, which takes the same parameters except `mode` and `device`.
    ``open_persistent(store).to_tensordict()`` and ``ds.td.to_tensordict()`` are equal.

    Parameters
    ----------
    store
        A path, a URL, a zarr store or group, an h5py file or group, or an open ``PersistentTensorDict``.
    batch_dims
        Names of the batch dims, or how many of the first dims are the batch. None takes them from the store's metadata, or infers
        them.
    group
        The path of the group that becomes the root.
    nested
        True shows all nested groups (in a Dataset as variables ``"group/name"``), False none. None shows those that have the
        batch of the root or no batch of their own.
    dims
        Names for axes: ``{"images": ("channel", "y", "x"), "obs/*": ("obs",)}``, for all axes of an array or for its features.
    drop_variables
        Names of variables to leave out of every group, or paths of variables or groups: ``"next/obs"``, ``("next", "obs")``.
        ``"/obs"`` leaves out the variable of the root alone.
    mode
        ``"r"``: read only. ``"r+"``: for stores that plain tensordict reads to the same entries; the result is then
        tensordict's own writable object.
    device
        The device that entries are sent to when they are read.

    Storage
    -------
    filled
        Trim a checkpoint of a torchrl replay buffer to its filled rows, the oldest first. False keeps the order of the storage.
    allow_pickle
        Load pickled non-tensor entries. Loading a pickle can run any code.
    storage_options, zarr_format, consolidated, use_zarr_fill_value_as_mask
        As in ``xr.open_zarr``. None reads consolidated metadata of remote stores only, and fill values as missing in zarr v2
        arrays with ``_ARRAY_DIMENSIONS`` only.

    Decoding
    --------
    mask_and_scale, decode_times, decode_timedelta, use_cftime, decode_coords, concat_characters, **of_xarray
        As in ``xr.open_dataset``, with its other parameters, such as ``chunks``. None stands for the defaults.

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
        ``ptd.close()``, ``with ptd:``          closes the store
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
    given = {name: value for name, value in locals().items() if value is not None}
    keywords = {name: given[name] for name in given.keys() - {"store", "mode", "device", "of_xarray"}}
    check_choice("mode", mode, ("r", "r+"))
    if "engine" in of_xarray:
        raise TypeError(
            "open_persistent always uses engine='tensordict'; for a Dataset of another engine use ds.td.to_persistent()"
        )
    ds = xr.open_dataset(store, engine="tensordict", **{"cache": False, **keywords, **of_xarray})
    description = describe_source(store)
    if mode == "r+":
        return open_writable(store, ds, description, device=device, keywords=keywords)
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

    Messages call the store by `description`. ``close()`` calls `closer`; without one the Dataset stays open.
    """
    plan = plan_entries(ds, infer_dataset(ds, given=batch_dims))
    leave_out_times(plan)
    description = description or str(ds.encoding.get("source") or "the dataset")
    notes = opening_notes(ds)
    # of what lacks but an attribute, the variable itself is there
    left_out = {"/".join(each.key): each.reason for each in notes.get("left_out", ()) if each.attribute is None}
    hidden = tuple(notes.get("hidden_groups", ()))
    unbatched = [entry.lazy() for entry in plan.unbatched]
    source = OpenedStore(description, {**left_out, **plan.left_out}, unbatched, closer, hidden)
    return XarrayPersistentTensorDict.of(plan.entries, plan, source, device)


_EPOCH = (
    "nanoseconds since 1970-01-01",
    "nanoseconds since 1970-01-01 00:00:00",
    "nanoseconds since 1970-01-01T00:00:00",
)
_NAT = np.iinfo(np.int64).min


def open_writable(
    store: Any, ds: xr.Dataset, description: str, *, device: Any = None, keywords: Mapping[str, Any]
) -> PersistentTensorDict:
    """Open a store as plain tensordict does, for reading and writing, after checking that it reads it correctly.

    `ds` is the same store, opened by the engine with `keywords`; it is closed here. Messages call the store by `description`.

    Raises
    ------
    ValueError
        Where tensordict reads something else than this package does; the message names the first variable.
    """
    source = find_source(store)

    def bare(mode: str, device: Any = None) -> PersistentTensorDict:
        options: dict[str, Any] = {"batch_size": plan.batches[()].sizes, "device": device}
        options["allow_pickle"] = keywords.get("allow_pickle") or None
        group = (keywords.get("group") or "").strip("/")
        return _settled(source.format.open_bare(source.value, group, mode, **options), plan)

    try:
        plan = plan_entries(ds, infer_dataset(ds))
        if source.is_path and is_url(source.value):
            reason: str | None = "it is a URL, and writing to URLs is not supported here"
        else:
            reason = source.format.why_not_changed(source.value) or _why_not_the_plan(plan, ds)
        reason = reason or _why_not_bare(bare, plan, close=source.is_path)
    finally:
        ds.close()
    if reason is not None:
        raise ValueError(
            f"{description} cannot be opened with mode='r+': {reason}. A write through tensordict would not mean the "
            f"same through xarray. Open it with mode='r', or open a copy, written with "
            f"ds.drop_vars(list(ds.td.unbatched.variables)).td.to_zarr(path)"
        )
    return bare("r+", device)


def _why_not_the_plan(plan: Plan, ds: xr.Dataset) -> str | None:
    """What this package makes of the store beyond its plain arrays."""
    not_shown = [
        *map(str, opening_notes(ds).get("left_out", ())),
        *(f"{name!r}: {why}" for name, why in plan.left_out.items()),
    ]
    if not_shown:
        return f"not all of it can be shown: {not_shown[0]}"
    for path in opening_notes(ds).get("hidden_groups", {}):
        return (
            f"the group {path!r} has a batch of its own and is not shown; ask for it with group={path!r}, or for all "
            f"with nested=True"
        )
    for entry in plan.unbatched:
        return f"{entry.name!r} has none of the batch dims {list(entry.batch.dims)}, and tensordict takes no such array"
    return next((f"{entry.name!r} {why}" for entry in plan.entries if (why := why_other(entry, ds))), None)


def why_other(entry: Entry, ds: xr.Dataset) -> str | None:
    """How plain tensordict would read an entry of a Dataset to something else; None where it would not."""
    dims = ds.variables[entry.name].dims
    has_batch = entry.entry_class == "batched" or (entry.entry_class == "unbatched" and entry.form != "tensor")
    if not has_batch or entry.variable.dims != dims:
        return f"has dims {list(dims)} of shape {list(entry.variable.shape)}, which do not start with the batch"
    return _why_decoded(entry)


def _why_decoded(entry: Entry) -> str | None:
    """How the values of an entry differ from those that are stored, as far as its encoding shows."""
    encoding, kind = entry.variable.encoding, entry.variable.dtype.kind
    for name in ("scale_factor", "add_offset", "char_dim_name"):
        if name in encoding:
            return f"is decoded ({name}={encoding[name]!r})"
    fills = [
        np.asarray(encoding[name]).ravel() for name in ("_FillValue", "missing_value") if encoding.get(name) is not None
    ]
    if kind in "mM":
        units, dtype = str(encoding.get("units")), encoding.get("dtype")
        plain = units in _EPOCH if kind == "M" else units == "nanoseconds"
        if not (plain and dtype == np.dtype("int64") and all((fill == _NAT).all() for fill in fills)):
            return f"holds times that are decoded (units={units!r})"
        return None
    if kind in "fc" and all(np.isnan(fill).all() for fill in fills):
        return None
    return f"has a missing value that is decoded ({fills[0].tolist()})" if fills and kind in "biufc" else None


def _why_not_bare(bare: Callable[[str], PersistentTensorDict], plan: Plan, *, close: bool) -> str | None:
    """How what tensordict finds differs from the plan."""
    try:
        td = bare("r")
    except (ValueError, KeyError, IndexError, TypeError, RuntimeError) as error:
        return f"tensordict does not open it ({error})"
    try:
        return next(_differences(td, plan), None)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return f"tensordict cannot read it ({type(error).__name__}: {error})"
    finally:
        if close:
            td.close()


def _differences(bare: PersistentTensorDict, plan: Plan) -> Iterator[str]:
    found: dict[Key, type] = {}
    for key in bare.keys(include_nested=True):
        found[(key,) if isinstance(key, str) else key] = entry_class(bare, key)
    entries = {entry.key: entry for entry in plan.entries}
    for key, entry in entries.items():
        if key not in found:
            yield f"tensordict does not see {entry.name!r}"
            continue
        difference = _entry_difference(bare, key, entry.lazy(), found[key])
        if difference is not None:
            yield f"{entry.name!r} {difference}"
    for key in sorted(found):
        if key not in entries and not issubclass(found[key], PersistentTensorDict):
            yield f"tensordict lists {'/'.join(key)!r}, which is no variable"


def _entry_difference(bare: PersistentTensorDict, key: Key, leaf: Entry, cls: type) -> str | None:
    if (cls is torch.Tensor) != (leaf.form == "tensor"):
        return f"is a {cls.__name__} there, and {'a tensor' if leaf.form == 'tensor' else 'non-tensor data'} here"
    if leaf.form == "tensor":
        there = metadata_of(bare, key)
        dtype, shape = there.get("dtype", "of a dtype that tensordict lacks"), list(there.get("shape", ()))
        if dtype != tensor_dtype(leaf) or shape != list(leaf.shape):
            return f"is {dtype} {shape} there, and {tensor_dtype(leaf)} {list(leaf.shape)} here: it is decoded"
        return None
    with quiet((".*reads the string", FutureWarning)):  # as bytes, for now
        value = bare.get(key)
    (array,) = read_entries([(leaf, None)])
    both = (finish(leaf, array, None, value.batch_size), value)
    try:
        assert_same_tensordict(*(TensorDict({"value": each}, batch_size=value.batch_size) for each in both))
    except AssertionError as error:
        return f"is read otherwise: {error}"
    return None


def _settled(td: PersistentTensorDict, plan: Plan) -> PersistentTensorDict:
    """Give each level its batch size and names: HDF5 records neither for tensordict, nested groups of zarr no names."""
    for key, batch in sorted(plan.batches.items(), key=lambda item: len(item[0])):
        level = td.get(key, None) if key else td
        if not isinstance(level, PersistentTensorDict):
            continue
        if tuple(level.batch_size) != tuple(batch.sizes):
            level.batch_size = batch.sizes
        names = td_names(batch)
        if any(name is not None for name in names):
            level.names = names
    return td
