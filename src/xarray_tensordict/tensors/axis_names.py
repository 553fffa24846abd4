"""A dim name for every axis of the entries of a tensordict (docs: names of dims).

The caller's ``dims=`` come first, then the names of the tensordict, the dims of the template, ``batch_0`` and
``dim_<size>``, as :mod:`..core.naming` has them. A template is only asked for the dims and shapes of its variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any

import xarray as xr

from ..core.model import GroupBatch, Key
from ..core.naming import Dims, check_dims_argument, feature_name, find_pattern, free_name, given_dims, settle_sizes
from .walking import Leaf

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
