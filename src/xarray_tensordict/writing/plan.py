"""Which variable goes where in a store, and how: the plan that both writers follow. Nothing is written here.

All that can be refused is refused while the plan is made, before the target is touched.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import xarray as xr

from .._compat.xarray import dataset_of, multiindex_dims, remade
from ..core.inference import infer_batch
from ..core.metadata import BATCH_DIMS_ATTR, MARKER_ATTRS, UNBATCHED_NAME, batch_record
from ..core.model import EntryClass, GroupBatch, Inference, Key, RecordedBatch
from ..core.naming import local_dim, printable, qualify, renamed_batches, td_names
from ..core.unbatched_entry import encode_array
from ..core.values import jsonable
from ..dataset.describe import check_paths, describe_dataset, key_of
from ..dataset.records import class_attrs, classes_of, infer_dataset, set_record_if_needed
from ..dataset.trees import flat_view, own_datasets
from .stored_form import Holds, Layout, Place, Stored, store_form
from .values import check_text, is_packing, read_now, streamed, with_standard_dates

_RESERVED = frozenset({".", "..", "zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"})


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """The options of all writers; see ``Dataset.td.to_zarr``. Checked by :mod:`.methods`."""

    layout: Layout = "tensordict"
    mode: str | None = None
    append_dim: Hashable | None = None
    compute: bool = True
    encoding: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    chunks: Mapping[str, int] = field(default_factory=dict)
    progress: bool = False


@dataclass(frozen=True)
class Written:
    """The summary that ``ds.td.to_zarr``, ``to_h5`` and ``to_memmap`` return."""

    target: str
    batch: GroupBatch
    in_unbatched: tuple[str, ...] = ()

    def __repr__(self) -> str:
        batch = (
            ", ".join(f"{dim}: {size}" for dim, size in zip(self.batch.dims, self.batch.sizes, strict=True)) or "none"
        )
        apart = f"; in the entry '_unbatched', for lack of batch dims: {', '.join(self.in_unbatched)}"
        return printable(f"<written {self.target}, batch ({batch}){apart if self.in_unbatched else ''}>")


@dataclass
class Node:
    """One group to be written: its own variables under their own names and dims.

    ``names`` has the name in the Dataset of each variable, ``attrs`` is None where the Dataset has none for it, and
    ``unlimited`` are dims that can grow.
    """

    variables: dict[str, xr.Variable] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    coords: set[str] = field(default_factory=set)
    attrs: dict[str, Any] | None = None
    unlimited: frozenset[str] = frozenset()


@dataclass
class Source:
    """What is to be written, group by group, parents first, and as one Dataset; and the decision about the batch.

    ``batches`` has that of each group under the local names of its dims, ``flat_batches`` its dims under the names of `flat`.
    ``in_unbatched`` are the paths of the variables that a whole store has in the entry ``_unbatched``, once the write is planned.
    """

    nodes: dict[Key, Node]
    batches: dict[Key, GroupBatch]
    classes: Mapping[Key, EntryClass]
    flat: xr.Dataset
    flat_batches: dict[Key, tuple[str | None, ...]]
    in_unbatched: tuple[str, ...] = ()

    def variables(self) -> Iterator[tuple[Key, str, xr.Variable]]:
        """The path of each variable, how messages call it, and the variable under the dims of its group."""
        for key, node in self.nodes.items():
            for local, variable in node.variables.items():
                yield (*key, local), node.names[local], variable


@dataclass
class GroupPlan:
    """One group of the store to be; the parts of the entry ``_unbatched`` are not among `stored`.

    ``attrs`` are those of the group, without any marker; None leaves those there are. ``batch_record`` is the value of
    ``__tensordict__``, None where there is to be none.
    """

    node: Node
    stored: dict[str, Stored] = field(default_factory=dict)
    attrs: dict[str, Any] | None = None
    batch_record: dict[str, Any] | None = None
    batch_dims: tuple[str, ...] = ()

    @property
    def coords(self) -> set[str]:
        """The local names of coordinates."""
        return {name for name, stored in self.stored.items() if stored.role == "coord"}


@dataclass
class WritePlan:
    """The store to be: its groups, and what goes into the entry ``_unbatched`` of the root, by path."""

    layout: Layout
    holds: Holds
    groups: dict[Key, GroupPlan]
    unbatched: dict[str, Stored] = field(default_factory=dict)


def unbatched_object(plan: WritePlan) -> dict[str, Any]:
    """The content of the entry ``_unbatched``."""
    return {
        path: encode_array(
            read_now(stored.variable),
            tuple(str(dim) for dim in stored.variable.dims),
            attrs={str(name): jsonable(value) for name, value in stored.variable.attrs.items()},
            role=stored.role,
            record=stored.record,
        )
        for path, stored in plan.unbatched.items()
    }


# -- what is to be written ---------------------------------------------------------------------------------------------


def source_of_dataset(ds: xr.Dataset, inference: Inference | None = None) -> Source:
    """Split a Dataset into its groups; dims that the flat view has qualified get their local names back.

    Raises
    ------
    ValueError
        For names that no path can have, or two variables that claim one path.
    NotImplementedError
        For a MultiIndex.
    """
    check_names(ds)
    _check_multiindex(ds)
    inference = infer_dataset(ds) if inference is None else inference
    local = _local_dims(ds, inference)
    nodes: dict[Key, Node] = {(): Node(attrs=_shown(ds.attrs))}
    for name in ds.variables:
        key = key_of(name)
        for length in range(1, len(key)):
            nodes.setdefault(key[:length], Node())
        _add(nodes[key[:-1]], key, ds, name, local[key])
    classes = classes_of(ds)
    for key in classes.keys() & nodes.keys():
        nodes[key].attrs = {**(nodes[key].attrs or {}), **class_attrs(classes[key])}
    return _source(nodes, ds, inference)


def source_of_tree(dt: xr.DataTree) -> Source:
    """The nodes of a DataTree, each with its own variables, attributes and dims."""
    nodes: dict[Key, Node] = {}
    for key, ds in own_datasets(dt).items():
        _check_multiindex(ds)
        classes = classes_of(ds)
        node = nodes[key] = Node(attrs={**_shown(ds.attrs), **(class_attrs(classes[()]) if () in classes else {})})
        for name, variable in ds.variables.items():
            if not isinstance(name, str) or not name or "/" in name or name in _RESERVED:
                raise ValueError(f"variable {name!r} of node {'/'.join(key)!r}: expected a name without '/', rename it")
            _add(node, (*key, name), ds, name, tuple(map(str, variable.dims)))
    return _source(nodes, *flat_view(dt))


def _add(node: Node, key: Key, ds: xr.Dataset, name: Hashable, dims: tuple[str, ...]) -> None:
    """Add the variable `name` of a Dataset to a group, which calls its dims `dims`."""
    variable, local = ds.variables[name], key[-1]
    node.variables[local] = remade(variable, dims=dims, attrs=_shown(variable.attrs))
    node.names[local] = "/".join(key)
    if name in ds.coords:
        node.coords.add(local)
    unlimited = set(map(str, ds.encoding.get("unlimited_dims", ())))
    node.unlimited |= {here for here, flat in zip(dims, variable.dims, strict=True) if str(flat) in unlimited}


def _source(nodes: dict[Key, Node], flat: xr.Dataset, inference: Inference) -> Source:
    found = {(*key, name): variable for key, node in nodes.items() for name, variable in node.variables.items()}
    local = {key: tuple(map(str, variable.dims)) for key, variable in found.items()}
    shapes = {key: variable.shape for key, variable in found.items()}
    flat_names = {key: tuple(map(str, flat.variables["/".join(key)].dims)) for key in found}
    return Source(
        dict(sorted(nodes.items(), key=lambda item: len(item[0]))),
        renamed_batches(inference.groups, shapes, flat_names, local),
        inference.classes,
        flat,
        {key: tuple(batch.dims) for key, batch in inference.groups.items()},
    )


def add_unlimited(source: Source, dims: Iterable[str]) -> None:
    """Let dims grow that the caller names as the flat view does, in every group.

    Raises
    ------
    ValueError
        For a dim that is not there.
    """
    if isinstance(dims, str):
        dims = (dims,)
    for dim in dims:
        if dim not in source.flat.dims:
            raise ValueError(
                f"unlimited_dims: there is no dim {dim!r}; the dims there are: {sorted(map(str, source.flat.dims))}"
            )
        for node in source.nodes.values():
            for local, variable in node.variables.items():
                flat = source.flat.variables[node.names[local]]
                node.unlimited |= {str(own) for own, name in zip(variable.dims, flat.dims, strict=True) if name == dim}


def stream_source(source: Source) -> None:
    """Let dask take over what is large and lazy among the variables of a source."""
    for node in source.nodes.values():
        for name, variable in node.variables.items():
            node.variables[name] = streamed(variable)


def check_names(ds: xr.Dataset) -> None:
    """Raise for names that no path in a store can have, and for two variables that claim one path."""
    for what, names in (("variable", ds.variables), ("dim", ds.dims)):
        for name in names:
            if not isinstance(name, str):
                raise TypeError(f"{what} {name!r}: expected a name of type str, found {type(name).__name__}; rename it")
            check_text([name], f"the name of {what} {name!r}")
    check_paths(ds)
    for name in ds.variables:
        bad = next((part for part in key_of(name) if part in _RESERVED), None)
        if bad is not None:
            raise ValueError(
                f"variable {name!r}: {bad!r} cannot be a part of a path in a store (a '/' separates nested keys); rename it"
            )


def _check_multiindex(ds: xr.Dataset) -> None:
    for name in sorted(multiindex_dims(ds)):
        raise NotImplementedError(
            f"coordinate {name!r} is a MultiIndex, which no store here holds; write ds.reset_index({name!r}), and set it "
            f"again after opening with ds.set_index({name}=[...])"
        )


def _shown(attrs: Mapping[Any, Any]) -> dict[Any, Any]:
    """Attributes without the markers of the formats, which plain xarray shows: they are made anew, never copied."""
    return {name: value for name, value in attrs.items() if name not in MARKER_ATTRS}


# -- local names of dims -----------------------------------------------------------------------------------------------


def _local_dims(ds: xr.Dataset, inference: Inference) -> dict[Key, tuple[str, ...]]:
    """The dims of each variable as its group calls them: ``data.demo_0.time`` in ``data/demo_0`` is ``time``.

    Only if the engine would give the flat names back on opening; the names are kept as they are otherwise.
    """
    flat = {key_of(name): tuple(map(str, variable.dims)) for name, variable in ds.variables.items()}
    local = {key: tuple(local_dim(dim, key[:-1]) for dim in dims) for key, dims in flat.items()}
    if local == flat:
        return flat
    shapes = {key_of(name): variable.shape for name, variable in ds.variables.items()}
    batches = renamed_batches(inference.groups, shapes, flat, local)
    again = qualify(local, shapes, Inference(batches, inference.classes))
    return local if again == flat else flat


# -- the plan ----------------------------------------------------------------------------------------------------------


def plan_write(
    source: Source,
    layout: Layout,
    holds: Holds,
    *,
    encoding: Mapping[str, Mapping[str, Any]] | None = None,
) -> WritePlan:
    """Plan the writing of a whole store.

    Parameters
    ----------
    encoding
        What the caller asks for, by the names of the Dataset.

    Raises
    ------
    ValueError, TypeError
        For what the store cannot hold, or could not give back; the variable is named.
    """
    plan = WritePlan(layout, holds, {})
    for key, node in source.nodes.items():
        batch = source.batches.get(key, source.batches[()])
        group = plan.groups[key] = GroupPlan(node, attrs=node.attrs, batch_dims=tuple(map(str, batch.dims)))
        if layout == "tensordict":
            group.batch_record = batch_record(batch.sizes, td_names(batch))
            node.variables = with_standard_dates(node.variables, node.names)
        for name, variable in node.variables.items():
            called = node.names[name]
            if layout == "tensordict" and (*key, name)[0] == UNBATCHED_NAME:
                raise ValueError(
                    f"variable {called!r}: {UNBATCHED_NAME!r} is where layout='tensordict' keeps the variables without "
                    "batch dims; rename it, or write with layout='xarray'"
                )
            asked = (encoding or {}).get(called, {})
            place = Place(called, layout, holds, source.classes[(*key, name)], group.batch_dims, asked)
            stored = store_form(variable, place)
            stored.role = "coord" if name in node.coords else "data"
            if stored.form == "unbatched":
                plan.unbatched["/".join((*key, name))] = stored
                continue
            group.stored[name] = stored
            _record_role(name, stored, node, cf=not (layout == "tensordict" and holds.typed_attributes))
    _prune(plan)
    source.in_unbatched = tuple(sorted(plan.unbatched))
    if layout == "xarray":
        _record_batch(plan, source)
    return plan


def _prune(plan: WritePlan) -> None:
    """Leave out groups that would be empty: plain tensordict would show them."""
    for key in sorted(plan.groups, key=len, reverse=True):
        below = any(len(other) > len(key) and other[: len(key)] == key for other in plan.groups)
        group = plan.groups[key]
        if key and not group.stored and not below and group.attrs is None:
            del plan.groups[key]


def _record_role(name: str, stored: Stored, node: Node, *, cf: bool) -> None:
    """Record what the engine would not see: marked arrays are coordinates unless their record differs, others are data.

    With `cf` coordinates are named in CF's attribute, which cannot name all.
    """
    marked = stored.stack or stored.form in {"json", "ragged"}
    dims = {str(dim) for variable in node.variables.values() for dim in variable.dims}
    is_index = stored.variable.dims == (name,)
    if marked and stored.role == "data":
        stored.record["role"] = "data"
    if stored.role == "coord" and not is_index and (not cf or " " in name or name in dims):
        stored.record["role"] = "coord"


def _record_batch(plan: WritePlan, source: Source) -> None:
    """With ``layout="xarray"``: tensordict's record where plain tensordict can honour it, else the engine's."""
    if _honest(plan, source):
        for key, group in plan.groups.items():
            batch = source.batches.get(key, source.batches[()])
            group.batch_record = batch_record(batch.sizes, td_names(batch))
        return
    unencoded = source.flat.copy(deep=False)
    unencoded.encoding = {}
    if plan.holds.unlimited_dims:
        unencoded.encoding = {"unlimited_dims": source.flat.encoding.get("unlimited_dims", ())}
    named = {key: tuple(dim or "" for dim in dims) for key, dims in source.flat_batches.items()}
    recorded = set_record_if_needed(unencoded, named) if source.flat.sizes else unencoded
    root = plan.groups[()]
    if BATCH_DIMS_ATTR in recorded.attrs:
        root.attrs = {**(root.attrs or {}), BATCH_DIMS_ATTR: recorded.attrs[BATCH_DIMS_ATTR]}


def _honest(plan: WritePlan, source: Source) -> bool:
    """Whether plain tensordict would open the arrays as they are, and read what they mean."""
    for key, group in plan.groups.items():
        batch = source.batches.get(key, source.batches[()])
        for name, stored in group.stored.items():
            variable = stored.variable
            if stored.form != "array" or variable.dtype.kind not in "biufc" or not variable.dtype.isnative:
                return False
            if is_packing(variable, {**variable.attrs, **stored.encoding}):
                return False
            if source.classes[(*key, name)] != "batched" or variable.shape[: len(batch.sizes)] != batch.sizes:
                return False
    return bool(source.batches[()].sizes)


# -- variables that are added to a store -------------------------------------------------------------------------------


def plan_added(
    source: Source,
    old: xr.Dataset,
    inference: Inference | None,
    names: Collection[str],
    layout: Layout,
    holds: Holds,
    encoding: Mapping[str, Mapping[str, Any]],
) -> WritePlan:
    """Plan the writing of the variables `names` among those of `old`, whose batch stays as it is.

    Raises
    ------
    ValueError
        Where a dim has two sizes, or two variables claim one path.
    """
    union = _merged(source.flat, old)
    if inference is not None:
        recorded = {key: RecordedBatch(None, tuple(batch.dims)) for key, batch in inference.groups.items()}
        decided = infer_batch(describe_dataset(union), recorded=recorded)
    else:
        decided = infer_dataset(union)
    whole = source_of_dataset(union, decided)
    for key, node in whole.nodes.items():
        node.variables = {
            name: source.nodes[key].variables[name] for name in node.variables if node.names[name] in names
        }
        node.attrs = source.nodes[key].attrs if key in source.nodes else None
    return plan_write(whole, layout, holds, encoding=encoding)


def _merged(new: xr.Dataset, old: xr.Dataset) -> xr.Dataset:
    """Both as one Dataset, the new variables in the place of the old ones.

    Raises
    ------
    ValueError
        Where a dim has two sizes.
    """
    for dim in set(new.sizes) & set(old.sizes):
        if new.sizes[dim] != old.sizes[dim]:
            raise ValueError(
                f"dim {dim!r} has size {old.sizes[dim]} in the store and {new.sizes[dim]} in the dataset; append "
                f"with append_dim={dim!r}, or select the same part"
            )
    variables = {**dict(old.variables), **dict(new.variables)}
    coords = {name for name in variables if name in new.coords or (name in old.coords and name not in new.variables)}
    return dataset_of(variables, coords, {**old.attrs, **new.attrs})
