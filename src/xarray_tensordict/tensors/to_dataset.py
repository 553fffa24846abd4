"""From a tensordict of any class back to xarray: :func:`to_dataset` and :func:`to_datatree`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from tensordict import TypedTensorDict, is_non_tensor, is_tensor_collection, is_tensorclass

from ..core.metadata import BATCH_DIMS_ATTR
from ..core.model import GroupBatch, Key
from ..core.naming import Dims
from ..dataset.records import class_path, note_classes, read_record, set_record_if_needed
from ..warnings import InferredBatchWarning, warn
from .templates import Template
from .walking import (
    DimsArgument,
    Leaf,
    Namer,
    NonTensor,
    TensorCollection,
    children,
    has_leaves,
    read_leaf,
    stack_conflict,
)


def to_dataset(
    td: TensorCollection,
    *,
    dims: DimsArgument | None = None,
    coords: Mapping[Any, Any] | None = None,
    template: xr.Dataset | xr.DataTree | None = None,
) -> xr.Dataset:
    """Make a Dataset of a tensordict.

    The entry ``("next", "obs")`` becomes the variable ``"next/obs"``. Tensors are data variables; they are detached and
    moved to the CPU, and share memory with the tensordict where numpy can. Entries that hold no tensors (strings,
    numbers, objects) are coordinates, so that arithmetic with the Dataset works. Unbatched tensors have no batch dims.

    Parameters
    ----------
    td
        A TensorDict, a PersistentTensorDict, a tensorclass, or a lazy stack whose members are alike.
    dims
        Names of axes, by key or glob: ``{"images": ("channel", "y", "x"), "obs/*": ("obs",)}``, for all axes of the
        entry or for those behind the batch (the length decides); ``...`` stands for axes that are not named. A
        str takes the dims and the attributes of a variable of the template: ``{"t2m_hat": "t2m"}``. Other axes are
        called as in the template, the batch as in ``td.names`` or ``batch_0``, the rest ``dim_<size>``.
    coords
        Coordinates to add, as in ``Dataset.assign_coords``.
    template
        A Dataset that entries of the same names were made from: dims, coordinates, attributes, datetimes and variables
        that the tensordict does not carry come from it, as far as the sizes agree.
        ``to_dataset(ds.td.to_tensordict(), template=ds)`` is identical to ``ds``.

    Returns
    -------
    xarray.Dataset
        It records the batch dims in ``attrs["tensordict_batch_dims"]`` only if they could not be inferred from it.

    Raises
    ------
    ValueError
        For a key with a ``"/"`` in it, a lazy stack whose members differ, and `dims` that do not fit.
    TypeError
        For tensors that no array can hold (sparse, nested, quantized).

    Warns
    -----
    UserWarning
        Where one name would have two sizes, or stand twice in one array; it then gets a suffix. Where coordinates of the
        template are left out because they have another size.

    Examples
    --------
    >>> import torch
    >>> from tensordict import TensorDict
    >>> td = TensorDict({"obs": torch.zeros(4, 3), "next": {"obs": torch.ones(4, 3)}}, batch_size=[4], names=["time"])
    >>> ds = to_dataset(td)
    >>> list(ds.data_vars), ds["next/obs"].dims
    (['obs', 'next/obs'], ('time', 'dim_3'))
    >>> to_dataset(td, dims={"*obs": ("joint",)}, coords={"joint": ["a", "b", "c"]})["obs"].dims
    ('time', 'joint')
    """
    reference = Template(template)
    found = _read(td, dims, reference, local=False)
    ds = _assemble(found, reference)
    if coords is not None:
        ds = ds.assign_coords(coords)
    return _record_batch(ds, found.batches)


def to_datatree(
    td: TensorCollection,
    *,
    dims: DimsArgument | None = None,
    coords: Mapping[Any, Any] | None = None,
    template: xr.Dataset | xr.DataTree | None = None,
) -> xr.DataTree:
    """Make a DataTree of a tensordict: one node for each nested tensordict.

    Parameters
    ----------
    td
        As in :func:`to_dataset`, and so are the other parameters: keys are written with ``"/"``.
    dims
        Names of axes, by key or glob.
    coords
        Coordinates to add to the root, from which all nodes inherit those that have indexes.
    template
        A DataTree, or a Dataset, to take dims, coordinates and attributes from.

    Returns
    -------
    xarray.DataTree
        A dim has one size along each branch, and may have another one in another branch.

    Examples
    --------
    >>> import torch
    >>> from tensordict import TensorDict
    >>> td = TensorDict({"obs": torch.zeros(4, 3), "next": {"obs": torch.ones(4, 3)}}, batch_size=[4], names=["time"])
    >>> to_datatree(td)["next"]["obs"].dims
    ('time', 'dim_3')
    """
    reference = Template(template, local=True)
    found = _read(td, dims, reference, local=True)
    made: dict[Key, xr.Dataset] = {}
    keys = [*found.batches, *sorted(reference.nodes)]
    for key in dict.fromkeys(each[:length] for each in keys for length in range(len(each) + 1)):
        above = [made[key[:n]] for n in range(len(key)) if key[:n] in made]
        node = _node(found, key, reference, above)
        if not key and coords is not None:
            node = node.assign_coords(coords)
        if key in found.batches or node.variables or reference.is_empty(key):
            made[key] = node
    return xr.DataTree.from_dict({"/" + "/".join(key): node for key, node in made.items()})


# --- reading the tensordict -------------------------------------------------------------------------------------------


@dataclass
class _Found:
    """The entries of a tensordict as variables, the batch dims of each of its levels, and their tensorclasses."""

    batches: dict[Key, Dims]
    classes: dict[Key, str]
    entries: dict[Key, tuple[xr.Variable, bool]]
    """The variable of each entry, and whether it is a tensor."""

    def at(self, key: Key) -> _Found:
        """One level by itself; one that is not there has the batch of the level above."""
        batch = next(self.batches[key[:n]] for n in range(len(key), -1, -1) if key[:n] in self.batches)
        entries = {each[-1:]: entry for each, entry in self.entries.items() if each[:-1] == key}
        return _Found({(): batch}, {(): self.classes[key]} if key in self.classes else {}, entries)


def _read(td: TensorCollection, dims: DimsArgument | None, template: Template, *, local: bool) -> _Found:
    if not is_tensor_collection(td) or is_non_tensor(td):
        raise TypeError(f"td: expected a tensordict, found a {type(td).__name__}; TensorDict(...) makes one of a dict")
    nodes: dict[Key, GroupBatch] = {}
    leaves: list[Leaf] = []
    classes: dict[Key, str] = {}
    _collect(td, (), nodes, leaves, classes)
    namer = Namer(nodes, leaves, dims, template.variables)
    for leaf in leaves:
        template.shape_non_tensor(leaf, namer.batches[leaf.key[:-1]], nodes[leaf.key[:-1]].sizes)
    namer.name(local=local)
    if namer.warnings:
        warn("; ".join(namer.warnings), InferredBatchWarning)
    made = ((leaf, template.variable(leaf, namer.referred.get(leaf.key))) for leaf in leaves)
    entries = {leaf.key: (variable, leaf.is_tensor) for leaf, variable in made if variable is not None}
    return _Found(namer.batches, classes, entries)


def _collect(
    td: TensorCollection, key: Key, nodes: dict[Key, GroupBatch], leaves: list[Leaf], classes: dict[Key, str]
) -> None:
    conflict = stack_conflict(td, key)
    if conflict is not None:
        raise ValueError(
            f"the members of a lazy stack must be alike to become arrays: {conflict}; pad them or make one Dataset of "
            "each member"
        )
    nodes[key] = GroupBatch(tuple(td.names), tuple(td.batch_size), "recorded", "the batch size of the tensordict")
    if is_tensorclass(td) or isinstance(td, TypedTensorDict):
        classes[key] = class_path(type(td))
    for name, child in children(td).items():
        if "/" in name:
            raise ValueError(
                f"the key {(*key, name)!r} has a '/' in {name!r}, which separates nested keys in a Dataset; rename it "
                "first with td.rename_key_(...)"
            )
        if isinstance(child, (torch.Tensor, NonTensor)):
            leaves.append(read_leaf((*key, name), child, len(td.batch_size)))
        elif has_leaves(child):
            _collect(child, (*key, name), nodes, leaves, classes)


# --- putting the Dataset together -------------------------------------------------------------------------------------


def _assemble(
    found: _Found, template: Template, *, above: Mapping[Any, int] | None = None, groups: Iterable[str] = ()
) -> xr.Dataset:
    """Make a Dataset of entries and of what is left in the template."""
    carried = {"/".join(key): entry for key, entry in found.entries.items()}
    variables = {name: variable for name, (variable, _) in carried.items()}
    kept = template.restored(variables, found.batches, above or {}, groups)
    template.warn_of_unfit_coords(variables)
    data: dict[str, xr.Variable] = {}
    coords: dict[Any, xr.Variable] = {}
    indexes: dict[Any, Any] = {}
    for name in template.order(dict.fromkeys([*variables, *kept])):
        known, indexed = name in template.variables, name in template.ds.xindexes
        variable = template.variables[name] if name in kept else variables[name]
        if name in kept and indexed:
            coords[name], indexes[name] = variable, template.ds.xindexes[name]
        elif variable.dims == (name,):
            _add_dim_coord(name, variable, indexed or not known, coords, indexes)
        elif name in template.ds.coords if known else not carried[name][1]:
            coords[name] = variable
        else:
            data[name] = variable
    attrs = dict(template.ds.attrs)
    if BATCH_DIMS_ATTR in attrs and not _says(attrs, found.batches):
        del attrs[BATCH_DIMS_ATTR]
    ds = xr.Dataset(data, coords=xr.Coordinates(coords, indexes=indexes), attrs=attrs)
    note_classes(ds, found.classes)
    return ds


def _add_dim_coord(
    name: str, variable: xr.Variable, indexed: bool, coords: dict[Any, xr.Variable], indexes: dict[Any, Any]
) -> None:
    """Add a coordinate named like its dim: with an index, unless pandas has none for such values."""
    plain = variable.dtype.kind != "O" or all(isinstance(item, (str, bytes)) for item in variable.values)
    if not indexed or variable.dtype == np.float16 or not plain:
        coords[name] = variable
        return
    made = xr.Coordinates({name: variable})
    coords.update(made.variables)
    coords[name].encoding = dict(variable.encoding)
    indexes.update(made.xindexes)


def _says(attrs: Mapping[Any, Any], batches: Mapping[Key, Dims]) -> bool:
    """Whether the record in the attributes of the template still holds."""
    recorded = {key: tuple(batch.names or ()) for key, batch in read_record(attrs, "the template").items()}
    for key, dims in batches.items():
        known = next((key[:n] for n in range(len(key), -1, -1) if key[:n] in recorded), None)
        if known is None or recorded[known] != tuple(dims):
            return False
    return True


def _record_batch(ds: xr.Dataset, batches: Mapping[Key, Dims]) -> xr.Dataset:
    """Record the batch dims where they could not be inferred from the Dataset, and no record names them already."""
    if BATCH_DIMS_ATTR in ds.attrs or not set(batches[()]) <= set(ds.dims):
        return ds
    return set_record_if_needed(ds, {key: batch for key, batch in batches.items() if set(batch) <= set(ds.dims)})


def _node(found: _Found, key: Key, template: Template, above: Sequence[xr.Dataset]) -> xr.Dataset:
    """Make the Dataset of one node of a tree, below those `above`."""
    local = found.at(key)
    sizes = {dim: size for ds in above for dim, size in ds.sizes.items()}
    groups = {other[len(key)] for other in found.batches if len(other) > len(key) and other[: len(key)] == key}
    node = _assemble(local, template.at(key), above=sizes, groups=groups)
    for ds in above:
        # a node must have the index of the nodes above it; values of its own are kept without one
        common = [name for name in node.xindexes if name in ds.xindexes]
        node = node.drop_indexes([name for name in common if not node.variables[name].equals(ds.variables[name])])
    return _record_batch(node, local.batches) if key in found.batches else node
