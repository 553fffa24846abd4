"""From a tensordict of any class back to xarray: :func:`to_dataset` and :func:`to_datatree`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
import xarray as xr
from tensordict import TypedTensorDict, is_non_tensor, is_tensor_collection, is_tensorclass

from ..core.metadata import BATCH_DIMS_ATTR
from ..core.model import GroupBatch, Key
from ..core.naming import Dims
from ..dataset.describe import key_of
from ..dataset.record import read_record, set_record_if_needed
from ..dataset.tensorclasses import class_path, note_classes
from ..warnings import InferredBatchWarning, LeftOutWarning, warn
from .axis_names import DimsArgument, Named, Namer
from .leaf_arrays import Leaf, make_leaf
from .template import Template, same_values
from .walking import NonTensor, TensorCollection, children, has_leaves, stack_conflict

__all__ = ["to_dataset", "to_datatree"]


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
        entry or for those behind the batch (told apart by the length); ``...`` stands for axes that are not named. A
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
    parts = _read(td, dims, reference, local=False)
    ds = _assemble(parts, reference)
    note_classes(ds, parts.classes)
    if coords is not None:
        ds = ds.assign_coords(coords)
    return _record_batch(ds, parts.batches)


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
    parts = _read(td, dims, reference, local=True)
    made: dict[Key, xr.Dataset] = {}
    for key in _with_parents([*parts.batches, *sorted(reference.groups)]):
        above = [made[key[:n]] for n in range(len(key)) if key[:n] in made]
        node = _node(parts, key, reference, above)
        if not key and coords is not None:
            node = node.assign_coords(coords)
        if key in parts.batches or node.variables or reference.is_empty(key):
            made[key] = node
    return xr.DataTree.from_dict({"/" + "/".join(key): node for key, node in made.items()})


# --- reading the tensordict -------------------------------------------------------------------------------------------


@dataclass
class _Parts:
    """A tensordict as variables, and the batch dims of each of its levels."""

    batches: dict[Key, Dims]
    classes: dict[Key, str] = field(default_factory=dict)
    variables: dict[str, xr.Variable] = field(default_factory=dict)
    is_tensor: dict[str, bool] = field(default_factory=dict)


def _read(td: TensorCollection, dims: DimsArgument | None, template: Template, *, local: bool) -> _Parts:
    if not is_tensor_collection(td) or is_non_tensor(td):
        raise TypeError(f"td: expected a tensordict, found a {type(td).__name__}; TensorDict(...) makes one of a dict")
    nodes: dict[Key, GroupBatch] = {}
    leaves: list[Leaf] = []
    classes: dict[Key, str] = {}
    _collect(td, (), nodes, leaves, classes)
    asked = ["/".join(key) if isinstance(key, tuple) else key for key in dims or ()]
    new = {
        leaf.name: like
        for leaf in leaves
        if (like := template.alike(leaf)) and not any(fnmatchcase(leaf.name, pattern) for pattern in asked)
    }
    namer = Namer(nodes, leaves, {**new, **(dims or {})} or None, template.variables)
    for leaf in leaves:
        group = leaf.key[:-1]
        template.shape_non_tensor(leaf, namer.batches[group], nodes[group].sizes)
    named = namer.name(local=local)
    _warn(named)
    parts = _Parts(named.batches, classes)
    for leaf in leaves:
        variable = template.variable(leaf, named.dims[leaf.key], namer.referred.get(leaf.key))
        if variable is not None:
            parts.variables[leaf.name] = variable
            parts.is_tensor[leaf.name] = leaf.is_tensor
    return parts


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
    for name, child in children(td, decode_h5=True).items():
        if "/" in name:
            raise ValueError(
                f"the key {(*key, name)!r} has a '/' in {name!r}, which separates nested keys in a Dataset; rename it "
                "first with td.rename_key_(...)"
            )
        if isinstance(child, (torch.Tensor, NonTensor)):
            leaves.append(make_leaf((*key, name), child, len(td.batch_size)))
        elif has_leaves(child):
            _collect(child, (*key, name), nodes, leaves, classes)


def _warn(named: Named) -> None:
    if named.warnings:
        warn("; ".join(named.warnings), InferredBatchWarning)


def _warn_of_unfit_coords(unfit: Mapping[str, tuple[str, int, int]]) -> None:
    if unfit:
        dim, there, here = next(iter(unfit.values()))
        warn(
            f"the coordinates {sorted(unfit)} of the template are left out: {dim!r} has size {there} there and {here} in the "
            f"tensordict; give the rows it was made from, template=ds.isel({dim}=slice(...)), or new ones with coords=",
            LeftOutWarning,
        )


# --- putting the Dataset together -------------------------------------------------------------------------------------


def _assemble(
    parts: _Parts, template: Template, *, above: Mapping[Any, int] | None = None, groups: Iterable[str] = ()
) -> xr.Dataset:
    """Make a Dataset of variables and of what is left in the template."""
    variables = parts.variables
    kept = template.restored(variables, parts.batches, above or {}, groups)
    _warn_of_unfit_coords(template.unfit_coords(variables))
    data: dict[str, xr.Variable] = {}
    coords: dict[Any, xr.Variable] = {}
    found: dict[Any, Any] = {}
    for name in template.order([*variables, *(name for name in kept if name not in variables)]):
        known = template.variables.get(name)
        variable = template.variables[name] if name in kept else variables[name]
        is_coord = name in template.ds.coords if known is not None else not parts.is_tensor[name]
        if name in kept and name in template.ds.xindexes:
            coords[name], found[name] = variable, template.ds.xindexes[name]
        elif variable.dims == (name,):
            _add_dim_coord(name, variable, known is None or name in template.ds.xindexes, coords, found)
        else:
            (coords if is_coord else data)[name] = variable
    attrs = dict(template.ds.attrs)
    if BATCH_DIMS_ATTR in attrs and not _says(attrs, parts.batches):
        del attrs[BATCH_DIMS_ATTR]
    return xr.Dataset(data, coords=xr.Coordinates(coords, indexes=found), attrs=attrs)


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
    """Record the batch dims where they could not be inferred from the Dataset, and nothing says them already."""
    if BATCH_DIMS_ATTR in ds.attrs or not set(batches[()]) <= set(ds.dims):
        return ds
    return set_record_if_needed(ds, {key: batch for key, batch in batches.items() if set(batch) <= set(ds.dims)})


# --- putting the DataTree together ------------------------------------------------------------------------------------


def _with_parents(keys: Iterable[Key]) -> list[Key]:
    return list(dict.fromkeys(key[:length] for key in keys for length in range(len(key) + 1)))


def _node(parts: _Parts, key: Key, template: Template, above: Sequence[xr.Dataset]) -> xr.Dataset:
    """Make the Dataset of one node."""
    here = {name: variable for name, variable in parts.variables.items() if key_of(name)[:-1] == key}
    batch = next(parts.batches[key[:n]] for n in range(len(key), -1, -1) if key[:n] in parts.batches)
    local = _Parts(
        {(): batch},
        {(): parts.classes[key]} if key in parts.classes else {},
        {key_of(name)[-1]: variable for name, variable in here.items()},
        {key_of(name)[-1]: parts.is_tensor[name] for name in here},
    )
    sizes = {dim: size for ds in above for dim, size in ds.sizes.items()}
    groups = {other[len(key)] for other in parts.batches if len(other) > len(key) and other[: len(key)] == key}
    node = _assemble(local, template.at(key), above=sizes, groups=groups)
    note_classes(node, local.classes)
    for ds in above:
        # a node must have the index of the nodes above it; values of its own are kept without one
        foreign = [n for n in node.xindexes if n in ds.xindexes and not same_values(node.variables[n], ds.variables[n])]
        if foreign:
            node = node.drop_indexes(foreign)
    return _record_batch(node, {(): batch}) if key in parts.batches else node
