"""What is in a tensordict of any class: each entry as a numpy array, and a dim name for each of its axes.

Reading the entries of a tensordict has exceptions that depend on its class, and all of them are here: tensorclasses
hand out plain Python values, lazy stacks hide the keys that one of their members lacks and promote dtypes that differ,
and non-tensor data comes as one value for the batch or as one for each row.

For the names, the caller's ``dims=`` come first, then the names of the tensordict, the dims of the template, ``batch_0`` and
``dim_<size>``, as :mod:`..core.naming` has them. A template is only asked for the dims and shapes of its variables.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any, TypeAlias

import torch
import xarray as xr
from tensordict import (
    LazyStackedTensorDict,
    NonTensorStack,
    PersistentTensorDict,
    UnbatchedTensor,
    is_non_tensor,
    is_tensor_collection,
)

from ..core.model import GroupBatch, Key
from ..core.naming import Dims, check_dims_argument, feature_name, find_pattern, free_name, given_dims, settle_sizes
from ..core.values import flatten, rows
from .values import Array, numpy_from_tensor, one_value

TensorCollection: TypeAlias = Any
"""A TensorDict, PersistentTensorDict, lazy stack or tensorclass: tensordict has no common typed base for them."""


@dataclass(frozen=True)
class NonTensor:
    """A non-tensor entry.

    Attributes
    ----------
    value
        The value itself, or with ``stacked`` a list of values, nested once for each batch axis.
    batch_size
        The batch it is in.
    stacked
        Whether each row has its own value.
    """

    value: Any
    batch_size: tuple[int, ...]
    stacked: bool

    def tolist(self) -> Any:
        """One value per row in nested lists, as tensordict's ``tolist()``."""
        rows = self.value
        if not self.stacked:
            for size in reversed(self.batch_size):
                rows = [rows] * size
        return rows


Child: TypeAlias = "torch.Tensor | NonTensor | TensorCollection"


def children(td: TensorCollection) -> dict[str, Child]:
    """Return what one level of a tensordict holds: tensors, non-tensor entries and nested tensordicts.

    Strings that tensordict wrote to an HDF5 file are ``str``. tensordict itself reads them as bytes, with a warning, until
    its version 0.17.

    Examples
    --------
    >>> from tensordict import TensorDict
    >>> children(TensorDict({"a": torch.zeros(2), "b": "text"}, batch_size=[2]))["b"]
    NonTensor(value='text', batch_size=(2,), stacked=False)
    """
    size = tuple(td.batch_size)
    keys = list(td.keys())  # iterating the tensordict itself gives its rows
    if isinstance(td, PersistentTensorDict):
        return {key: _decoded(td, key) for key in keys}
    return {key: _child(td.get(key), size) for key in keys}


def is_node(child: Child) -> bool:
    """Whether an entry is a nested tensordict."""
    return not isinstance(child, (torch.Tensor, NonTensor))


def has_leaves(child: Child) -> bool:
    """Whether anything is left of an entry when empty groups are pruned."""
    if isinstance(child, (torch.Tensor, NonTensor)):
        return True
    stack = stack_of(child)
    if stack is not None:
        return any(has_leaves(member) for member in stack.tensordicts)
    size = tuple(child.batch_size)
    return any(has_leaves(_child(child.get(key), size)) for key in list(child.keys()))


def _child(value: Any, batch_size: tuple[int, ...]) -> Child:
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, NonTensorStack):
        return NonTensor(value.tolist(), tuple(value.batch_size), stacked=True)
    if is_non_tensor(value):
        return NonTensor(value.data, tuple(value.batch_size), stacked=False)
    if is_tensor_collection(value):
        return value
    # A tensorclass unwraps its fields: one value per row comes as a LinkedList, one value for all as it is.
    if type(value).__name__ == "LinkedList":
        return NonTensor(_plain_lists(value), batch_size, stacked=True)
    return NonTensor(value, batch_size, stacked=False)


def _decoded(td: PersistentTensorDict, key: str) -> Child:
    """Read one entry; what tensordict warns about as "a string which tensordict wrote, read as bytes" is decoded."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        child = _child(td.get(key), tuple(td.batch_size))
    is_text = False
    for warning in caught:
        if issubclass(warning.category, FutureWarning) and "reads the string" in str(warning.message):
            is_text = True
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if is_text and isinstance(child, NonTensor) and isinstance(child.value, bytes):
        return NonTensor(child.value.decode(), child.batch_size, child.stacked)
    return child


def _plain_lists(value: Any) -> Any:
    if type(value).__name__ == "LinkedList":
        return [_plain_lists(item) for item in value]
    return value


# --- lazy stacks ------------------------------------------------------------------------------------------------------


def stack_of(td: TensorCollection) -> LazyStackedTensorDict | None:
    """Return the lazy stack that `td` is, or that a tensorclass is made of; None for every other tensordict."""
    # a tensorclass has no public way to the tensordict it wraps
    inner = vars(td).get("_tensordict", td) if not isinstance(td, LazyStackedTensorDict) else td
    return inner if isinstance(inner, LazyStackedTensorDict) else None


def stack_conflict(td: TensorCollection, key: Sequence[str] = ()) -> str | None:
    """Why the members of a lazy stack cannot be one array per entry; None where they can.

    Examples
    --------
    >>> from tensordict import TensorDict, lazy_stack
    >>> stack_conflict(lazy_stack([TensorDict({"a": torch.zeros(n)}) for n in (2, 3)]))
    "'a' has shape (2,) in member 0 and (3,) in member 1"
    """
    stack = stack_of(td)
    if stack is None or not stack.tensordicts:
        return None
    first, *others = (children(member) for member in stack.tensordicts)
    for number, other in enumerate(others, start=1):
        for name in sorted(first.keys() | other.keys()):
            path = repr("/".join((*key, name)))
            if name not in first or name not in other:
                has, lacks = (0, number) if name in first else (number, 0)
                return f"{path} is in member {has} and not in member {lacks}"
            conflict = _child_conflict(first[name], other[name])
            if conflict:
                return f"{path} {conflict[0]} in member 0 and {conflict[1]} in member {number}"
    return None


def _child_conflict(a: Child, b: Child) -> tuple[str, str] | None:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.shape != b.shape:
            return f"has shape {tuple(a.shape)}", f"{tuple(b.shape)}"
        if a.dtype != b.dtype:
            return f"has dtype {a.dtype}", f"{b.dtype}"
        return None
    kinds = [_kind(child) for child in (a, b)]
    if is_node(a) and is_node(b) and a.batch_size != b.batch_size:  # type: ignore[union-attr]
        return f"has batch size {list(a.batch_size)}", f"{list(b.batch_size)}"  # type: ignore[union-attr]
    return (f"is a {kinds[0]}", f"a {kinds[1]}") if kinds[0] != kinds[1] else None


def _kind(child: Child) -> str:
    if isinstance(child, torch.Tensor):
        return "tensor"
    return "non-tensor entry" if isinstance(child, NonTensor) else "nested tensordict"


# --- one entry as an array --------------------------------------------------------------------------------------------

NON_TENSOR = "tensordict_non_tensor"
"""Marks a variable in its encoding: a tensordict holds its numbers (or its single value) as non-tensor data."""


@dataclass
class Leaf:
    """One entry, about to become a variable.

    Attributes
    ----------
    key
        Its key.
    values
        Its values.
    batch_axes
        How many of the leading axes are those of the batch.
    encoding
        The encoding of the variable.
    child
        What the tensordict holds.
    dims
        The names of its axes, once they are known.
    """

    key: Key
    values: Array
    batch_axes: int
    encoding: dict[str, Any] = field(default_factory=dict)
    child: torch.Tensor | NonTensor | None = None
    dims: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the variable."""
        return "/".join(self.key)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the variable."""
        return tuple(self.values.shape)

    @property
    def is_tensor(self) -> bool:
        """Whether it is data, and not non-tensor data, which becomes a coordinate."""
        return isinstance(self.child, torch.Tensor)


def read_leaf(key: Key, child: torch.Tensor | NonTensor, batch_axes: int) -> Leaf:
    """Read the values of one entry of a tensordict with so many batch dims.

    Raises
    ------
    TypeError, ValueError
        For tensors that no array can hold (sparse, nested, quantized, on the meta device).
    """
    if isinstance(child, torch.Tensor):
        values, torch_dtype = numpy_from_tensor(child, name="/".join(key))
        encoding: dict[str, Any] = {} if torch_dtype is None else {"torch_dtype": torch_dtype}
        return Leaf(key, values, 0 if isinstance(child, UnbatchedTensor) else batch_axes, encoding, child)
    if not child.stacked:
        return Leaf(key, one_value(child.value), 0, {NON_TENSOR: True}, child)
    values = rows(flatten(child.value, len(child.batch_size)), child.batch_size)
    encoding = {} if values.dtype.kind in "OSU" else {NON_TENSOR: True}
    return Leaf(key, values, min(batch_axes, values.ndim), encoding, child)


DimsArgument = Mapping[Any, str | Sequence[str | EllipsisType]]


class Namer:
    """Names the axes of the leaves of one tensordict.

    Parameters
    ----------
    nodes
        The batches of the tensordicts of the tree, parents first, with the names they have.
    leaves
        Their leaves.
    dims
        The caller's ``dims=``.
    template
        The variables of the template, by name.

    Attributes
    ----------
    batches
        The batch dims of every tensordict.
    referred
        The variable of the template whose dims a leaf takes although it is called otherwise.
    warnings
        One sentence for each array whose names had to be changed.
    """

    def __init__(
        self,
        nodes: Mapping[Key, GroupBatch],
        leaves: Sequence[Leaf],
        dims: DimsArgument | None,
        template: Mapping[str, xr.Variable],
    ) -> None:
        self.nodes = nodes
        self.leaves = leaves
        self.template = template
        self.given: dict[Key, tuple[str | EllipsisType, ...]] = {}
        self.references = {leaf.key: template[leaf.name] for leaf in leaves if leaf.name in template}
        self.referred: dict[Key, str] = {}
        self.warnings: list[str] = []
        self._read({} if dims is None else dims)
        self.batches: dict[Key, Dims] = {}
        for key in nodes:
            self.batches[key] = self._batch(key)

    def _read(self, argument: DimsArgument) -> None:
        """Sort the caller's dims into names and references to variables of the template."""
        check_dims_argument(argument, [leaf.key for leaf in self.leaves])
        for leaf in self.leaves:
            pattern, _ = find_pattern(argument, leaf.key)
            value = self._alike(leaf) if pattern is None else argument[pattern]
            if isinstance(value, str) and value in self.template:
                self.references[leaf.key], self.referred[leaf.key] = self.template[value], value
            elif isinstance(value, str):
                there = f"is not among {sorted(self.template)}" if self.template else "needs template="
                raise ValueError(
                    f"dims: expected a variable of the template for {leaf.name!r}, found {value!r}, which "
                    f"{there}; write a tuple, ({value!r},), to name a dim"
                )
            elif value is not None:
                self.given[leaf.key] = tuple(value)

    def _alike(self, leaf: Leaf) -> str | None:
        """The variable whose dims a new entry gets: it has exactly its shape, as others of that shape have the same dims."""
        if leaf.name in self.template or len(leaf.shape) <= leaf.batch_axes:
            return None
        same = {v.dims: name for name, v in reversed([*self.template.items()]) if v.shape == leaf.shape}
        return next(iter(same.values())) if len(same) == 1 else None

    def name(self, *, local: bool) -> None:
        """Name all axes: fills in the `dims` of the leaves.

        Parameters
        ----------
        local
            Whether a name may have another size in another branch of the tree, as in a DataTree.
        """
        for leaf in self.leaves:
            leaf.dims = self._axes(leaf, self.batches[leaf.key[:-1]])
        sizes: dict[Key, dict[str, int]] = {(): {}}
        scalars: dict[Key, set[str]] = {(): set()}
        for keys in [[key] for key in self.nodes] if local else [list(self.nodes)]:
            top = keys[0]
            sizes[top], scalars[top] = dict(sizes[top[:-1]]), set(scalars[top[:-1]])
            self._settle(keys, sizes[top], scalars[top])

    # -- the batch -----------------------------------------------------------------------------------------------------

    def _batch(self, key: Key) -> Dims:
        node = self.nodes[key]
        below = [leaf for leaf in self.leaves if leaf.key[: len(key)] == key]
        # the parent's name wins on the axes that are shared
        names = list(self.batches[key[:-1]]) if key else []
        for axis in range(len(names), len(node.sizes)):
            held = [leaf for leaf in below if leaf.batch_axes > axis]
            # what a full tuple of the caller calls a batch axis holds for the whole tensordict
            claimed = next((name for leaf in held if (name := self._full_names(leaf)[axis])), None)
            own = claimed or node.dims[axis] or self._batch_from_template(held, axis) or f"batch_{axis}"
            names.append(free_name(own, names))
        return tuple(names)

    def _full_names(self, leaf: Leaf) -> tuple[str | None, ...]:
        """What the caller calls the axes of an entry, where all are meant and not only those behind the batch."""
        given, unknown = self.given.get(leaf.key), (None,) * len(leaf.shape)
        if given is None or not self._is_full(leaf, given):
            return unknown
        return given_dims({leaf.name: given}, leaf.key, unknown, leaf.shape, batch=())

    def _is_full(self, leaf: Leaf, given: Sequence[str | EllipsisType]) -> bool:
        """Whether the caller names all axes of an entry, and not only those behind the batch: the length shows it.

        With ``...`` every length fits: then the names are for all axes if the first one is that of the batch.
        """
        if ... not in given or not leaf.batch_axes:
            return len(given) == len(leaf.shape)
        return given[0] == (self.nodes[leaf.key[:-1]].dims[0] or "batch_0")

    def _batch_from_template(self, held: Sequence[Leaf], axis: int) -> str | None:
        """The name of a batch axis without one, from the first of the entries with it that the template has as it is.

        Where an entry has fewer axes than in the template, the batch was reshaped: then only axes of the same size count.
        """
        known = [(leaf.shape, self.references[leaf.key]) for leaf in held if leaf.key in self.references]
        reshaped = any(len(shape) < len(reference.dims) for shape, reference in known)
        for shape, reference in known:
            if len(reference.dims) == len(shape) and not (reshaped and reference.shape[axis] != shape[axis]):
                return str(reference.dims[axis])
        return None

    # -- all axes of a leaf --------------------------------------------------------------------------------------------

    def _axes(self, leaf: Leaf, batch: Dims) -> Dims:
        lead = batch[: leaf.batch_axes]
        names: tuple[str | None, ...] = (*lead, *self._features_from_template(leaf, lead))
        given = self.given.get(leaf.key)
        if given is not None:
            behind = len(leaf.shape) - len(lead)
            most = len(leaf.shape) if self._is_full(leaf, given) else behind
            if len(given) != most if ... not in given else len(given) - 1 > most:
                raise ValueError(
                    f"dims: expected {behind} names for the axes of {leaf.name!r} behind the batch, or "
                    f"{len(leaf.shape)} for all (shape {list(leaf.shape)}, batch dims {list(lead)}), "
                    f"found {len(given)}: {given!r}"
                )
            for axis, (name, one) in enumerate(zip(self._full_names(leaf), lead, strict=False)):
                if name is not None and name != one:
                    raise ValueError(
                        f"dims: {leaf.name!r} calls batch axis {axis} {name!r}, and it is called {one!r}; give the "
                        f"batch axes one name, or only name the axes behind them"
                    )
            names = (*lead, *given_dims({leaf.name: given}, leaf.key, names, leaf.shape, batch=lead)[len(lead) :])
        elif leaf.key in self.references and None not in names and len({*self.references[leaf.key].dims}) < len(names):
            # xarray allows, and so does a template, what is called twice, as long as it is not resolved here
            return tuple(str(name) for name in names)
        return self._unrepeated(names, leaf)

    def _features_from_template(self, leaf: Leaf, batch: Dims) -> tuple[str | None, ...]:
        behind = len(leaf.shape) - len(batch)
        reference = self.references.get(leaf.key)
        if reference is None:
            return (None,) * behind
        pairs = zip(reference.dims, reference.shape, strict=True)
        found = [(str(dim), size) for dim, size in pairs if dim not in batch]
        if len(found) == behind:
            return tuple(dim for dim, _ in found)
        # the batch was reshaped, or has names the template does not know: the last axes, where the sizes agree
        last = found[len(found) - behind :] if behind < len(found) else []
        if last and tuple(size for _, size in last) == leaf.shape[len(batch) :]:
            return tuple(dim for dim, _ in last)
        if leaf.key in self.referred:
            raise ValueError(
                f"dims: {leaf.name!r} has {behind} axes behind the batch (shape {list(leaf.shape)}), and "
                f"{self.referred[leaf.key]!r} has dims {[dim for dim, _ in found]} there; give the names as a tuple"
            )
        return (None,) * behind

    def _unrepeated(self, names: Sequence[str | None], leaf: Leaf) -> Dims:
        """Fill in ``dim_<size>``, and distinguish axes of one array that have the same name."""
        taken = {name for name in names if name is not None}
        result: list[str] = []
        for name, size in zip(names, leaf.shape, strict=True):
            free = feature_name(size, taken.union(result)) if name is None else free_name(name, result)
            if name is not None and free != name:
                self.warnings.append(f"{leaf.name!r} has two axes called {name!r}: the second is called {free!r}")
            result.append(free)
        return tuple(result)

    # -- one size for a name -------------------------------------------------------------------------------------------

    def _settle(self, keys: Sequence[Key], sizes: dict[str, int], scalars: set[str]) -> None:
        """Give every name one size in the Dataset of some nodes.

        `sizes` are those of the names above, and `scalars` the entries without axes: xarray would take one for the
        coordinate of a dim of that name. Both are added to.
        """
        leaves = [leaf for leaf in self.leaves if leaf.key[:-1] in keys]
        scalars |= {"/".join(leaf.key[len(keys[0]) :]) for leaf in leaves if not leaf.shape}
        for leaf in leaves:
            self.warnings += [
                f"{leaf.name!r} has a dim {dim!r}, and there is an entry {dim!r} without axes: the dim is called "
                f"{free_name(dim, scalars)!r}"
                for dim in leaf.dims
                if dim in scalars
            ]
            leaf.dims = tuple(free_name(dim, scalars) for dim in leaf.dims)
        for key in keys:
            self.batches[key] = tuple(free_name(dim, scalars) for dim in self.batches[key])
        named = [pair for key in keys for pair in zip(self.batches[key], self.nodes[key].sizes, strict=True)]
        # of several sizes for one name the template's keeps the name, so that its coordinates fit
        known = {(str(dim), size) for v in self.template.values() for dim, size in zip(v.dims, v.shape, strict=True)}
        pairs = [pair for leaf in leaves for pair in zip(leaf.dims, leaf.shape, strict=True)]
        for dim, size in (*named, *(pair for pair in pairs if pair in known)):
            sizes.setdefault(dim, size)
        shapes = {leaf.key: leaf.shape for leaf in leaves}
        settled, warnings = settle_sizes({leaf.key: leaf.dims for leaf in leaves}, shapes, sizes)
        self.warnings += warnings
        for leaf in leaves:
            leaf.dims = settled[leaf.key]
            for dim, size in zip(leaf.dims, leaf.shape, strict=True):
                sizes.setdefault(dim, size)
        for key in keys:
            own = zip(self.batches[key], self.nodes[key].sizes, strict=True)
            self.batches[key] = tuple(dim if sizes[dim] == size else f"{dim}_{size}" for dim, size in own)
