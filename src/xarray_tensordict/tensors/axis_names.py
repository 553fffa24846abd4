"""A dim name for every axis of the entries of a tensordict (section 5 of the design).

The caller's ``dims=`` come first, then the names of the tensordict, the dims of the template, ``batch_0`` and
``dim_<size>``. Pure functions: a template is only asked for the dims of a variable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any, Protocol

from ..core.model import GroupBatch, Key
from ..core.naming import (
    Dims,
    check_dims_argument,
    feature_name,
    find_pattern,
    free_name,
    given_dims,
    settle_sizes,
)
from .leaf_arrays import Leaf

DimsArgument = Mapping[Any, str | Sequence[str | EllipsisType]]


class Reference(Protocol):
    """A variable of the template, as far as naming asks."""

    @property
    def dims(self) -> tuple[Any, ...]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass
class Named:
    """The names that were found.

    Attributes
    ----------
    batches
        The batch dims of every tensordict of the tree.
    dims
        One name for each axis of each leaf.
    warnings
        One sentence for each array whose names had to be changed.
    """

    batches: dict[Key, Dims] = field(default_factory=dict)
    dims: dict[Key, Dims] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


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
        The batch dims of every tensordict, as they are before names with two sizes are resolved.
    """

    def __init__(
        self,
        nodes: Mapping[Key, GroupBatch],
        leaves: Sequence[Leaf],
        dims: DimsArgument | None,
        template: Mapping[str, Reference],
    ) -> None:
        self.nodes = nodes
        self.leaves = leaves
        self.template = template
        self.given: dict[Key, tuple[str | EllipsisType, ...]] = {}
        self.references: dict[Key, Reference] = {
            leaf.key: template[leaf.name] for leaf in leaves if leaf.name in template
        }
        self.referred: dict[Key, str] = {}
        self._read(dims or {})
        self.batches: dict[Key, Dims] = {}
        claimed = self._claimed()
        for key in nodes:
            self.batches[key] = self._batch(key, claimed)

    def _read(self, argument: DimsArgument) -> None:
        """Sort the caller's dims into names and references to variables of the template."""
        check_dims_argument(argument, [leaf.key for leaf in self.leaves])
        for leaf in self.leaves:
            pattern, _ = find_pattern(argument, leaf.key)
            if pattern is None:
                continue
            value = argument[pattern]
            if not isinstance(value, str):
                self.given[leaf.key] = tuple(value)
            elif value in self.template:
                self.references[leaf.key] = self.template[value]
                self.referred[leaf.key] = value
            else:
                there = f"is not among {sorted(self.template)}" if self.template else "needs template="
                raise ValueError(
                    f"dims: expected a variable of the template for {leaf.name!r}, found {value!r}, which "
                    f"{there}; write a tuple, ({value!r},), to name a dim"
                )

    def name(self, *, local: bool) -> Named:
        """Name all axes.

        Parameters
        ----------
        local
            Whether a name may have another size in another branch of the tree, as in a DataTree.
        """
        named = Named(dict(self.batches))
        for leaf in self.leaves:
            names = self._axes(leaf, named.batches[leaf.key[:-1]])
            reference = self.references.get(leaf.key)
            # xarray allows, and so does a template, what is called twice, as long as it is not resolved here
            repeated = reference is not None and len(set(reference.dims)) < len(reference.dims)
            if repeated and None not in names and leaf.key not in self.given:
                named.dims[leaf.key] = tuple(str(name) for name in names)
            else:
                named.dims[leaf.key] = _unrepeated(names, leaf, named.warnings)
        self._settle(named, local=local)
        return named

    # -- the batch -----------------------------------------------------------------------------------------------------

    def _batch(self, key: Key, claimed: Mapping[tuple[Key, int], str]) -> Dims:
        node = self.nodes[key]
        # the parent's name wins on the axes that are shared
        names = list(self.batches[key[:-1]]) if key else []
        for axis in range(len(names), len(node.sizes)):
            name = (
                claimed.get((key, axis)) or node.dims[axis] or self._batch_from_template(key, axis) or f"batch_{axis}"
            )
            names.append(free_name(name, names))
        return tuple(names)

    def _claimed(self) -> dict[tuple[Key, int], str]:
        """What full tuples of the caller call the batch axes: such a name holds for the whole tensordict."""
        claimed: dict[tuple[Key, int], tuple[str, str]] = {}
        for leaf in self.leaves:
            given = self.given.get(leaf.key)
            if given is None or not leaf.batch_axes or not self._is_full(leaf, given):
                continue
            axes = given_dims({leaf.name: given}, leaf.key, (None,) * len(leaf.shape), leaf.shape, batch=())[
                : leaf.batch_axes
            ]
            for axis, name in enumerate(axes):
                if name is None:
                    continue
                place = (self._owner(leaf.key[:-1], axis), axis)
                first, by = claimed.setdefault(place, (name, leaf.name))
                if first != name:
                    raise ValueError(
                        f"dims: {leaf.name!r} calls batch axis {axis} {name!r} and {by!r} calls it {first!r}; give the "
                        "batch axes one name, or only name the axes behind them"
                    )
        return {place: name for place, (name, _) in claimed.items()}

    def _owner(self, key: Key, axis: int) -> Key:
        """The topmost tensordict that has a batch axis."""
        return next(key[:n] for n in range(len(key) + 1) if len(self.nodes[key[:n]].sizes) > axis)

    def _is_full(self, leaf: Leaf, given: Sequence[str | EllipsisType]) -> bool:
        """Whether the caller names all axes of an entry, and not only those behind the batch: told by the length.

        With ``...`` every length fits: then the names are for all axes if the first one is that of the batch.
        """
        if ... not in given or not leaf.batch_axes:
            return len(given) == len(leaf.shape)
        return given[0] == (self.nodes[leaf.key[:-1]].dims[0] or "batch_0")

    def _batch_from_template(self, key: Key, axis: int) -> str | None:
        """The name of a batch axis without one, from the first entry below that the template has as it is.

        Where an entry has fewer axes than in the template, the batch was reshaped: then only axes of the same size count.
        """
        below = [
            (leaf, self.references[leaf.key])
            for leaf in self.leaves
            if leaf.key in self.references and leaf.batch_axes > axis and leaf.key[: len(key)] == key
        ]
        reshaped = any(len(leaf.shape) < len(reference.dims) for leaf, reference in below)
        for leaf, reference in below:
            if len(reference.dims) == len(leaf.shape) and not (reshaped and reference.shape[axis] != leaf.shape[axis]):
                return str(reference.dims[axis])
        return None

    # -- all axes of a leaf --------------------------------------------------------------------------------------------

    def _axes(self, leaf: Leaf, batch: Dims) -> tuple[str | None, ...]:
        lead = batch[: leaf.batch_axes]
        recorded = (*lead, *self._features_from_template(leaf, lead))
        given = self.given.get(leaf.key)
        if given is None:
            return recorded
        behind = len(leaf.shape) - len(lead)
        most = len(leaf.shape) if self._is_full(leaf, given) else behind
        if len(given) != most if ... not in given else len(given) - 1 > most:
            raise ValueError(
                f"dims: expected {behind} names for the axes of {leaf.name!r} behind the batch, or "
                f"{len(leaf.shape)} for all (shape {list(leaf.shape)}, batch dims {list(lead)}), "
                f"found {len(given)}: {given!r}"
            )
        # a batch axis has one name in the whole tensordict, which what was given for all axes has decided
        return (*lead, *given_dims({leaf.name: given}, leaf.key, recorded, leaf.shape, batch=lead)[len(lead) :])

    def _features_from_template(self, leaf: Leaf, batch: Dims) -> tuple[str | None, ...]:
        behind = len(leaf.shape) - len(batch)
        unknown: tuple[str | None, ...] = (None,) * behind
        reference = self.references.get(leaf.key)
        if reference is None:
            return unknown
        pairs = [(str(dim), size) for dim, size in zip(reference.dims, reference.shape, strict=True)]
        pairs = [(dim, size) for dim, size in pairs if dim not in batch]
        if len(pairs) == behind:
            return tuple(dim for dim, _ in pairs)
        # the batch was reshaped, or has names the template does not know: the last axes, where the sizes say so too
        last = pairs[len(pairs) - behind :] if behind < len(pairs) else []
        fits = bool(last) and tuple(size for _, size in last) == leaf.shape[len(batch) :]
        if leaf.key in self.referred and not fits:
            raise ValueError(
                f"dims: {leaf.name!r} has {behind} axes behind the batch (shape {list(leaf.shape)}), and "
                f"{self.referred[leaf.key]!r} has dims {[dim for dim, _ in pairs]} there; give the names as a tuple"
            )
        return tuple(dim for dim, _ in last) if fits else unknown

    # -- one size for a name -------------------------------------------------------------------------------------------

    def _settle(self, named: Named, *, local: bool) -> None:
        """Give every name one size in the Dataset (or along each branch of a tree)."""
        shapes = {leaf.key: leaf.shape for leaf in self.leaves}
        self._avoid_scalars(named, local=local)
        sizes: dict[Key, dict[str, int]] = {}
        for key, node in self.nodes.items():
            known = sizes[key[:-1]] if key else {}
            sizes[key] = dict(known) if local else known
            here = (
                [leaf for leaf in self.leaves if leaf.key[:-1] == key] if local else ([] if key else list(self.leaves))
            )
            if not key and not local:
                for each, batch in named.batches.items():
                    _add_sizes(sizes[()], batch, self.nodes[each].sizes)
            _add_sizes(sizes[key], named.batches[key], node.sizes)
            self._prefer_template_sizes(named, here, sizes[key])
            settled, warnings = settle_sizes(
                {leaf.key: named.dims[leaf.key] for leaf in here},
                {leaf.key: shapes[leaf.key] for leaf in here},
                sizes[key],
            )
            named.dims.update(settled)
            named.warnings.extend(warnings)
            for leaf in here:
                _add_sizes(sizes[key], named.dims[leaf.key], leaf.shape)
        for key, node in self.nodes.items():
            named.batches[key] = tuple(
                dim if sizes[key].get(dim, size) == size else f"{dim}_{size}"
                for dim, size in zip(named.batches[key], node.sizes, strict=True)
            )

    def _prefer_template_sizes(self, named: Named, leaves: Iterable[Leaf], sizes: dict[str, int]) -> None:
        """Of several sizes for one name the template's keeps the name, so that its coordinates fit."""
        wanted = {
            str(dim): size
            for reference in self.template.values()
            for dim, size in zip(reference.dims, reference.shape, strict=True)
        }
        for leaf in leaves:
            for dim, size in zip(named.dims[leaf.key], leaf.shape, strict=True):
                if wanted.get(dim) == size:
                    sizes.setdefault(dim, size)

    def _avoid_scalars(self, named: Named, *, local: bool) -> None:
        """Rename dims that are called like an entry without axes: xarray takes that for the dim's coordinate."""
        for key in self.nodes:
            scalars = {
                (leaf.key[-1] if local else leaf.name)
                for leaf in self.leaves
                if not leaf.shape and (not local or leaf.key[:-1] == key)
            }
            if not scalars or (key and not local):
                continue
            for leaf in self.leaves:
                if local and leaf.key[: len(key)] != key:
                    continue
                named.warnings.extend(
                    f"{leaf.name!r} has a dim {dim!r}, and there is an entry {dim!r} without axes: the dim is called "
                    f"{free_name(dim, scalars)!r}"
                    for dim in named.dims[leaf.key]
                    if dim in scalars
                )
                named.dims[leaf.key] = tuple(free_name(dim, scalars) for dim in named.dims[leaf.key])
            for each in self.nodes:
                if each[: len(key)] == key or not local:
                    named.batches[each] = tuple(free_name(dim, scalars) for dim in named.batches[each])


def _add_sizes(sizes: dict[str, int], dims: Dims, shape: Sequence[int]) -> None:
    for dim, size in zip(dims, shape, strict=True):
        sizes.setdefault(dim, size)


def _unrepeated(names: Sequence[str | None], leaf: Leaf, warnings: list[str]) -> Dims:
    """Fill in ``dim_<size>``, and tell apart axes of one array that have the same name."""
    taken = {name for name in names if name is not None}
    result: list[str] = []
    for axis, name in enumerate(names):
        if name is None:
            result.append(feature_name(leaf.shape[axis], taken | set(result)))
            continue
        free = free_name(name, result)
        if free != name:
            warnings.append(f"{leaf.name!r} has two axes called {name!r}: the second is called {free!r}")
        result.append(free)
    return tuple(result)
