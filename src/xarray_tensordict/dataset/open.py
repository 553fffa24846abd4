"""From an open store to Datasets: name the axes, decode each group by itself, flatten or keep the tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any

import xarray as xr
from xarray.backends.common import NONE_VAR_NAME
from xarray.conventions import decode_cf_variables
from xarray.core import indexing

from .._compat.xarray import dataset_of, remade, with_decoder
from ..core.blocks import preferred_chunks, with_renamed_chunks
from ..core.inference import BatchDims, infer_batch, may_have_more
from ..core.metadata import UNBATCHED_NAME
from ..core.model import (
    ArrayInfo,
    GroupBatch,
    Inference,
    Key,
    LeftOut,
    Store,
    StoredArray,
    StoredGroup,
    group_name,
    path_key,
    walk,
)
from ..core.naming import (
    Dims,
    DimsArgument,
    check_dims_argument,
    fits_whole_or_features,
    given_dims,
    name_axes,
    name_batch,
    qualify,
    renamed_batches,
    resolve_names,
    settle_sizes,
)
from ..core.unbatched_entry import restore_unbatched
from ..formats.array_wrappers import NamedFunction
from ..warnings import IncompleteStoreWarning, InferredBatchWarning, LeftOutWarning, MissingValuesWarning, quiet, warn
from .describe import describe_group, hidden_groups, hidden_text, is_within, mixed_groups, parent_of_episodes
from .records import (
    ENCODING_KEY,
    claim_nested_coordinates,
    how_to_decode,
    masked_text,
    masked_zeros,
    note_classes,
    odd_scale,
    read_record,
    restore,
    set_record_if_needed,
    stored_attrs,
    with_record,
)
from .trees import fit_indexes


@dataclass(frozen=True)
class OpenOptions:
    """What the caller asks of the opening, but for the store itself.

    ``group`` is the group of the store that is opened as the root, for paths in messages.
    """

    group: str | None = None
    nested: bool | None = None
    batch_dims: BatchDims | None = None
    dims: DimsArgument | None = None
    drop_variables: frozenset[str] = frozenset()
    decoders: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Layout:
    """The arrays of a store with their names and the decision about the batch."""

    groups: dict[Key, StoredGroup]
    infos: dict[Key, ArrayInfo]
    named: dict[Key, Dims]
    inference: Inference | None
    warnings: list[str]
    left_out: list[LeftOut]
    description: str
    masked: list[str] = field(default_factory=list)


def open_flat(store: Store, options: OpenOptions) -> xr.Dataset:
    """Open a group, with what is nested in it, as one Dataset."""
    shown = [store.group()] if options.nested is False else walk(store)
    layout = lay_out(store, shown, options)
    hidden: dict[Key, GroupBatch] = {}
    episodes_in: Key | None = None
    if options.nested is None and layout.inference is not None and not layout.inference.batch_size:
        hidden = hidden_groups(layout.inference)
        layout.warnings += mixed_groups(layout.inference, hidden, layout.infos)
        episodes_in = parent_of_episodes(hidden, layout.inference, layout.infos, layout.groups)
        _forget(layout, hidden)
    flat: Mapping[Key, Dims] = layout.named
    if layout.inference is not None and len(layout.groups) > 1:
        flat = qualify(layout.named, _shapes(layout), layout.inference)
    ds = _assemble(layout, options, flat)
    notes: dict[str, Any] = {}
    if hidden:
        notes["hidden_groups"] = {_path_in_store(key, options): batch.sizes for key, batch in hidden.items()}
        notes["episodes_in"] = None if episodes_in is None else _path_in_store(episodes_in, options)
    _warn_and_note(layout, ds, notes)
    if any(group.tensorclass for group in layout.groups.values()):
        note_classes(ds, {key: group.tensorclass for key, group in layout.groups.items() if group.tensorclass})
    return _with_batch(ds, layout, options, flat)


def open_tree(store: Store, options: OpenOptions, *, fit_parents: bool) -> dict[str, xr.Dataset]:
    """Open a group and those in it as one Dataset each, under their own names, by path (``"/"`` is the root).

    With `fit_parents`, a dim that has another size in a group above gets a name of its own, as a DataTree needs.
    """
    options = replace(options, nested=True)
    layout = lay_out(store, walk(store), options, fit_parents=fit_parents)
    datasets = {}
    for key, group in layout.groups.items():
        variables, coords, attrs = _decode_group(group, layout, options)
        datasets[key] = _dataset(_without_scalars_of_dims(variables, key, layout), coords, attrs, group.unlimited_dims)
    if fit_parents:
        datasets, texts = fit_indexes(datasets)
        layout.warnings += texts
    datasets = {key: _node_with_batch(key, ds, layout, options) for key, ds in datasets.items()}
    _warn_and_note(layout, datasets[()], {})
    for key, group in layout.groups.items():
        if group.tensorclass:
            note_classes(datasets[key], {(): group.tensorclass})
    return {group_name(key): ds for key, ds in datasets.items()}


def _node_with_batch(key: Key, ds: xr.Dataset, layout: Layout, options: OpenOptions) -> xr.Dataset:
    """Record the batch of a node where it would not be found again; a choice of the caller is recorded at the root."""
    given = options.batch_dims is not None
    if layout.inference is None:
        return ds
    from_siblings = bool(key) and key in layout.inference.groups and len(layout.inference.groups[key].dims) > 1
    if not (given or from_siblings or layout.groups[key].recorded is not None):
        return ds
    groups = layout.inference.groups
    batch = groups.get(key, groups[()])
    own = [dim for dim in name_batch(batch) if dim in ds.dims]
    has_all = bool(own) and len(own) == len(batch.sizes)
    above = groups[key[:-1]].sizes if key else ()
    if given and (not key or batch.sizes != above):
        ds = with_record(ds, {(): name_batch(batch)})
    elif has_all and above and batch.sizes != above:
        # alone it is found, in the tree it would follow the node above
        ds = with_record(ds, {(): own})
    elif has_all:
        ds = set_record_if_needed(ds, {(): own})
    return ds


def lay_out(store: Store, groups: Iterable[StoredGroup], options: OpenOptions, *, fit_parents: bool = False) -> Layout:
    """Name the axes of all arrays of `groups` and decide on the batch where the opening needs it."""
    by_key = {group.key: group for group in groups}
    if () in by_key and UNBATCHED_NAME in by_key[()].arrays:
        by_key = restore_unbatched(by_key, store.description)
    claim_nested_coordinates(by_key)
    left_out = [member for group in by_key.values() for member in group.left_out]
    _drop(by_key, options.drop_variables)
    shapes = {(*group.key, name): array.shape for group in by_key.values() for name, array in group.arrays.items()}
    check_dims_argument(options.dims, shapes)
    argument = resolve_names(options.dims, shapes)
    infos: dict[Key, ArrayInfo] = {}
    for group in by_key.values():
        dims = {
            name: given_dims(argument, (*group.key, name), array.dims, array.shape)
            for name, array in group.arrays.items()
        }
        infos.update((info.key, info) for info in describe_group(group, dims))
    infos = {key: _with_recorded_names(info, by_key) for key, info in infos.items()}
    inference = _infer(store, by_key, infos, options)
    named, settled = _name(by_key, infos, inference, argument, fit_parents=fit_parents)
    _prefer_chunks(by_key, named)
    warned = [*(inference.warnings if inference else ()), *settled]
    return Layout(by_key, infos, named, inference, warned, left_out, store.description)


def _with_recorded_names(info: ArrayInfo, groups: Mapping[Key, StoredGroup]) -> ArrayInfo:
    """Name the leading axes after ``__tensordict__["names"]`` of the groups around the array; those of an outer one hold."""
    if None not in info.dims:
        return info
    for length in range(len(info.key)):
        record = groups[info.key[:length]].recorded if info.key[:length] in groups else None
        if record is None or record.names is None or record.sizes is None:
            continue
        count = len(record.sizes)
        if info.shape[:count] == record.sizes:
            lead = tuple(dim or name for dim, name in zip(info.dims[:count], record.names, strict=True))
            info = replace(info, dims=(*lead, *info.dims[count:]))
    return info


def _drop(groups: dict[Key, StoredGroup], names: frozenset[str]) -> None:
    """Drop arrays by their own name in whichever group, or by their path or that of a group; "/obs" is the one in the root alone."""
    for group in groups.values() if names else ():
        for name in list(group.arrays):
            paths = set(accumulate((*group.key, name), "{}/{}".format))
            if not names.isdisjoint({name, *paths, *(f"/{path}" for path in paths)}):
                del group.arrays[name]


def _infer(
    store: Store, groups: Mapping[Key, StoredGroup], infos: Mapping[Key, ArrayInfo], options: OpenOptions
) -> Inference | None:
    """Infer the batch where the opening needs it; a flat store that names all its dims is left to ``ds.td``."""
    recorded = {key: group.recorded for key, group in groups.items() if group.recorded is not None}
    if options.dims:
        # the caller names the batch, too; names that are recorded have become those of the arrays already
        recorded = {key: replace(batch, names=None) if batch.sizes else batch for key, batch in recorded.items()}
    unnamed = options.dims or any(None in info.dims for info in infos.values())
    if not (recorded or unnamed or len(groups) > 1 or options.batch_dims is not None or path_key(options.group)):
        return None
    with suppress(KeyError, ValueError):  # a malformed one is left to ds.td to refuse
        recorded = {**read_record(groups[()].attrs), **recorded}
    asked: dict[str, Any] = {
        "given": options.batch_dims,
        "each": options.nested is True,
        "recorded": recorded,
        "group_attrs": {key: group.attrs for key, group in groups.items()},
        "where": store.description,
        "opened": path_key(options.group),
    }
    found = infer_batch(infos.values(), **asked)
    enclosing = store.enclosing() if options.group and may_have_more(found, infos.values()) else None
    if enclosing is None:
        return found
    beside = [enclosing.group((name,)) for name in enclosing.group().groups]
    arrays = [info for group in beside for info in describe_group(group, {n: a.dims for n, a in group.arrays.items()})]
    return infer_batch(infos.values(), **asked, beside=arrays)


def _name(
    groups: Mapping[Key, StoredGroup],
    infos: Mapping[Key, ArrayInfo],
    inference: Inference | None,
    argument: DimsArgument | None,
    *,
    fit_parents: bool,
) -> tuple[dict[Key, Dims], list[str]]:
    """Local names: those that ``group=`` and the tree show."""
    named: dict[Key, Dims] = {}
    warned: list[str] = []
    sizes: dict[Key, dict[str, int]] = {}
    nothing = GroupBatch((), (), "none", "")
    for key in sorted(groups, key=len):
        members = [infos[(*key, name)] for name in groups[key].arrays]
        batch = inference.groups.get(key, nothing) if inference else nothing
        batched = {info.key for info in members if inference is not None and inference.classes[info.key] == "batched"}
        first = {}
        for info in members:
            leading = len(batch.sizes) if info.key in batched else 0
            stored = groups[key].arrays[info.key[-1]].dims
            fits = fits_whole_or_features(argument, info, leading)
            fitted = info if fits else replace(info, dims=stored)
            first[info.key] = name_axes(fitted, batch, batched=info.key in batched, argument=argument if fits else None)
        shapes = {info.key: info.shape for info in members}
        inherited = sizes.get(key[:-1], {}) if fit_parents and key else {}
        settled, sentences = settle_sizes(first, shapes, inherited)
        named.update(settled)
        warned.extend(sentences)
        own = {dim: size for name, dims in settled.items() for dim, size in zip(dims, shapes[name], strict=True)}
        sizes[key] = {**inherited, **own}
    return named, warned


def _prefer_chunks(groups: Mapping[Key, StoredGroup], named: Mapping[Key, Dims]) -> None:
    """Record what dask reads at once of each array with ``chunks={}``."""
    lazy = {
        (*key, name): array
        for key, group in groups.items()
        for name, array in group.arrays.items()
        if array.shape and not array.non_tensor and "preferred_chunks" not in array.encoding
    }
    described = [(named[key], array) for key, array in lazy.items()]
    for array, chunks in zip(lazy.values(), preferred_chunks(described), strict=True):
        array.encoding["preferred_chunks"] = chunks


def _path_in_store(key: Key, options: OpenOptions) -> str:
    """The path of a group from the root of the store, as ``group=`` takes it."""
    return group_name((*path_key(options.group), *key))


def _forget(layout: Layout, hidden: Mapping[Key, GroupBatch]) -> None:
    layout.groups = {key: group for key, group in layout.groups.items() if not is_within(key, hidden)}
    layout.named = {key: dims for key, dims in layout.named.items() if not is_within(key[:-1], hidden)}
    layout.left_out = [member for member in layout.left_out if not is_within(member.key[:-1], hidden)]


def _shapes(layout: Layout) -> dict[Key, tuple[int, ...]]:
    return {key: layout.infos[key].shape for key in layout.named}


def _assemble(layout: Layout, options: OpenOptions, flat: Mapping[Key, Dims]) -> xr.Dataset:
    """Decode each group by itself, then flatten."""
    variables: dict[str, xr.Variable] = {}
    coord_names: set[str] = set()
    attrs: dict[str, Any] = {}
    unlimited: set[str] = set()
    for key, group in layout.groups.items():
        decoded, coords, group_attrs = _decode_group(group, layout, options)
        attrs = group_attrs if not key else attrs
        unlimited |= group.unlimited_dims
        for name, variable in decoded.items():
            if key:
                whole = (*key, name)
                renamed = dict(zip(layout.named[whole], flat[whole], strict=True)) if whole in flat else {}
                variable = _moved(variable, renamed)
            variables["/".join((*key, name))] = variable
        coord_names |= {"/".join((*key, name)) for name in coords}
    return _dataset(_without_scalars_of_dims(variables, (), layout), coord_names, attrs, unlimited)


def _moved(variable: xr.Variable, dims: Mapping[str, str]) -> xr.Variable:
    """A variable of a nested group in the flat view: other dims, and no reference to names of its own group."""
    moved = remade(variable, dims=tuple(dims.get(str(dim), str(dim)) for dim in variable.dims))
    moved.encoding = with_renamed_chunks(
        {name: value for name, value in variable.encoding.items() if name != "coordinates"}, dims
    )
    return moved


def _decode_group(
    group: StoredGroup, layout: Layout, options: OpenOptions
) -> tuple[dict[str, xr.Variable], set[str], dict[str, Any]]:
    everything = {name: _variable(array, layout.named[(*group.key, name)]) for name, array in group.arrays.items()}
    # non-tensor entries were decoded by the reader, and CF has no word for them
    variables = {
        name: variable
        for name, variable in everything.items()
        if not group.arrays[name].non_tensor and _decodes(name, variable, group, layout, options, whole=False)
    }
    try:
        decoded, attrs, coords = decode_cf_variables(variables, group.attrs, **options.decoders)
    except Exception:
        variables = {
            name: variable
            for name, variable in variables.items()
            if _decodes(name, variable, group, layout, options, whole=True)
        }
        decoded, attrs, coords = decode_cf_variables(variables, group.attrs, **options.decoders)
    for name, variable in decoded.items():
        with_decoder(variable, partial(NamedFunction, _where(layout, (*group.key, str(name)))))
    layout.masked += masked_zeros(group, decoded)
    names = {str(name) for name in coords}
    kept = {**decoded, **{name: variable for name, variable in everything.items() if group.arrays[name].non_tensor}}
    decoded = {
        str(name): restore(kept[name], group.arrays[name].record, _where(layout, (*group.key, name)))
        if name in group.arrays and group.arrays[name].record
        else kept[name]
        for name in (*everything, *decoded)
        if name in kept
    }
    for name, variable in decoded.items():
        array = group.arrays.get(name)
        # with decode_coords=False only the role of text and objects counts, which are no data variables
        counts = (
            options.decoders.get("decode_coords") is not False or array is None or array.dtype.kind not in "biufcmM"
        )
        role = array.role if array is not None and counts else None
        # an index stays a coordinate where its dim had to be renamed
        is_index = variable.dims == (name,) or (array is not None and array.dims == (name,))
        if is_index or role == "coord":
            names.add(str(name))
        elif role == "data":
            names.discard(str(name))
    return decoded, names, dict(attrs)


def _where(layout: Layout, key: Key) -> str:
    return f"{layout.description}: {'/'.join(key)!r}"


def _decodes(
    name: str, variable: xr.Variable, group: StoredGroup, layout: Layout, options: OpenOptions, *, whole: bool
) -> bool:
    """Whether a variable can be decoded, else it is left out; unless `whole`, only what reading its values would find out."""
    odd = odd_scale(variable) if options.decoders.get("mask_and_scale") is not False else None
    reason = None if odd is None else f"its {odd} is {variable.attrs[odd]!r:.100}, and its dtype {variable.dtype}"
    try:
        if whole:
            decode_cf_variables({name: variable}, {}, **options.decoders)
    except Exception as error:
        reason = f"it cannot be decoded ({type(error).__name__}: {error})"
    if reason is not None:
        reason += f"; {how_to_decode(variable, options.decoders)}"
        layout.left_out.append(LeftOut((*group.key, name), reason))
    return reason is None


def _variable(array: StoredArray, dims: Dims) -> xr.Variable:
    data = array.data
    if isinstance(data, indexing.ExplicitlyIndexed) and not isinstance(data, indexing.ExplicitlyIndexedNDArrayMixin):
        data = indexing.LazilyIndexedArray(data)
    # xarray warns that few operations take repeated dims
    with quiet(("Duplicate dimension names", UserWarning)) if len(set(dims)) < len(dims) else nullcontext():
        # without fastpath xarray turns None into NaN, and a list in an object array of 0 dims into nothing
        variable = xr.Variable(dims, data, stored_attrs(array.attrs, array.record), dict(array.encoding), fastpath=True)
    preferred = variable.encoding.get("preferred_chunks")
    if preferred and type(preferred) is dict:
        # xarray keyed them by the recorded names
        variable.encoding["preferred_chunks"] = dict(zip(dims, preferred.values(), strict=False))
    if array.non_tensor or array.record.get("non_tensor"):
        variable.encoding["tensordict_non_tensor"] = True
    return variable


def _without_scalars_of_dims(variables: Mapping[str, xr.Variable], key: Key, layout: Layout) -> dict[str, xr.Variable]:
    """Leave out variables without dims that are named as a dim of others, which no Dataset can hold."""
    dims = {dim for variable in variables.values() for dim in variable.dims}
    scalars = [name for name, variable in variables.items() if not variable.dims and name in dims]
    reason = "it has no dims, and other variables have a dim of this name: give that dim another name with dims={...}"
    layout.left_out += [LeftOut((*key, *path_key(name)), reason) for name in scalars]
    return {name: variable for name, variable in variables.items() if name not in scalars}


def _dataset(
    variables: Mapping[str, xr.Variable], coord_names: set[str], attrs: dict[str, Any], unlimited: Iterable[str]
) -> xr.Dataset:
    named: dict[Any, xr.Variable] = dict(variables)
    if NONE_VAR_NAME in named.keys() - coord_names:
        named[None] = named.pop(NONE_VAR_NAME)
    ds = dataset_of(named, coord_names, attrs)
    growing = {dim for dim in unlimited if dim in ds.dims}
    ds.encoding = {"unlimited_dims": growing} if growing else {}
    return ds


def _warn_and_note(layout: Layout, ds: xr.Dataset, notes: dict[str, Any]) -> None:
    """One warning for what was left out, one for what was changed; both stay with the Dataset for its repr.

    `notes` has the groups that are not shown.
    """
    left_out = [str(member) for member in layout.left_out if member.warns]
    if ds.variables and notes:
        left_out.append(hidden_text(notes["hidden_groups"], notes["episodes_in"]))
    if left_out:
        warn(f"{layout.description}: left out {'; '.join(left_out)}", LeftOutWarning)
    if layout.warnings:
        texts = "; ".join(warning.removeprefix(f"{layout.description}: ") for warning in layout.warnings)
        warn(f"{layout.description}: {texts}", InferredBatchWarning)
    if layout.masked:
        warn(f"{layout.description}: {masked_text(layout.masked)}", MissingValuesWarning)
    for sentence in dict.fromkeys(group.incomplete for group in layout.groups.values() if group.incomplete):
        warn(f"{layout.description}: {sentence}", IncompleteStoreWarning)
    if layout.left_out:
        notes["left_out"] = tuple(layout.left_out)
    if layout.inference is not None:
        root = layout.inference.groups[()]
        notes["batch"] = replace(root, dims=name_batch(root))
        notes["shapes"] = {str(name): variable.shape for name, variable in ds.variables.items()}
    if notes:
        ds.encoding[ENCODING_KEY] = notes


def _with_batch(ds: xr.Dataset, layout: Layout, options: OpenOptions, flat: Mapping[Key, Dims]) -> xr.Dataset:
    """Record the batch where ``ds.td`` would not find it again by itself."""
    if layout.inference is None:
        return ds
    named = {key: replace(batch, dims=name_batch(batch)) for key, batch in layout.inference.groups.items()}
    renamed = renamed_batches(named, _shapes(layout), layout.named, flat)
    shown = {key: name_batch(batch) for key, batch in renamed.items() if key in layout.groups}
    lost = [dim for dim in shown[()] if dim not in ds.dims]
    if lost:
        warn(
            f"the batch size {list(layout.inference.batch_size)} is lost: no array has the dims {lost}, and a Dataset has a "
            f"dim only where an array has it",
            InferredBatchWarning,
        )
        return ds
    return with_record(ds, shown) if options.batch_dims is not None else set_record_if_needed(ds, shown)
