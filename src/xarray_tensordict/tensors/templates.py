"""What the caller asks to get back: a tensorclass (``cls=``), or the Dataset that a tensordict was before (``template=``).

``to_dataset(ds.td.to_tensordict(), template=ds)`` is identical to ``ds``. What a tensordict does not carry (unbatched
variables, dates as dates, attributes) comes from the template, as far as the sizes still agree.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import torch
import xarray as xr
from tensordict import TensorDictBase, TypedTensorDict, is_tensor_collection, is_tensorclass

from .._compat.xarray import dataset_of
from ..core.model import Key
from ..core.naming import Dims
from ..core.values import flatten, nested_shape, objects
from ..dataset.describe import key_of
from ..dataset.entries import why_not, with_numpy_dtype
from ..warnings import LeftOutWarning, StoredFormWarning, warn
from .values import Array, numpy_from_tensor, tensor_from_numpy
from .walking import Leaf, NonTensor


class Template:
    """A Dataset to take things from, or nothing.

    Parameters
    ----------
    source
        The template; a DataTree counts as the Dataset of all its variables.
    local
        Whether it is for a tree, whose nodes have the names and sizes of dims for themselves.

    Attributes
    ----------
    ds
        The Dataset, empty without a template (and with `local`, where :meth:`at` gives that of each node).
    nodes
        With `local` the Dataset of each node.
    variables
        The variables by name, those of a node with its path.
    """

    def __init__(self, source: xr.Dataset | xr.DataTree | None, *, local: bool = False) -> None:
        if source is not None and not isinstance(source, (xr.Dataset, xr.DataTree)):
            raise TypeError(f"template: expected a Dataset or a DataTree, found a {type(source).__name__}")
        self.nodes: dict[Key, xr.Dataset] = {}
        if isinstance(source, xr.DataTree):
            from ..dataset.trees import flatten, node_key

            if local:
                self.nodes = {node_key(node, source): node.to_dataset(inherit=False) for node in source.subtree}
            source = None if local else flatten(source)
        elif local and source is not None:
            self.nodes = _split(source)
        self.ds = xr.Dataset() if source is None or local else source
        datasets = self.nodes if local else {(): self.ds}
        self.variables: dict[str, xr.Variable] = {
            "/".join((*key, str(name))): variable
            for key, ds in datasets.items()
            for name, variable in ds.variables.items()
        }

    def is_empty(self, key: Key) -> bool:
        """Whether a node of a tree is there and has no variables of its own."""
        return key in self.nodes and not self.nodes[key].variables

    def at(self, key: Key) -> Template:
        """The template of one node, with the names that its variables have there."""
        return Template(self.nodes.get(key))

    # -- non-tensor data -----------------------------------------------------------------------------------------------

    def shape_non_tensor(self, leaf: Leaf, batch: Dims, sizes: Sequence[int]) -> None:
        """Give non-tensor data the axes of its variable: lists become arrays, one value for all rows a value for each.

        Parameters
        ----------
        leaf
            Changed in place, where it fits the template.
        batch, sizes
            The batch dims of the tensordict it is in.
        """
        variable = self.variables.get(leaf.name)
        if variable is None or not isinstance(leaf.child, NonTensor):
            return
        known = tuple(size for dim, size in zip(variable.dims, variable.shape, strict=True) if dim not in batch)
        if leaf.child.stacked and known and leaf.shape == tuple(sizes):
            rows = leaf.values.ravel().tolist()
            shapes = {_outer_shape(row, known) for row in rows} or {known}
            shape = shapes.pop()
            if shape is not None and not shapes:
                leaf.values = objects(
                    (item for row in rows for item in flatten(row, len(known))), (*leaf.shape, *shape)
                )
        elif not leaf.child.stacked and variable.ndim:
            shape = _outer_shape(leaf.child.value, known)
            if known and shape is not None:
                leaf.values, leaf.encoding = objects(flatten(leaf.child.value, len(known)), shape), {}
            if len(known) < variable.ndim and leaf.values.ndim == len(known):
                leaf.values = np.broadcast_to(leaf.values, (*sizes, *leaf.shape))
                leaf.batch_axes = len(sizes)
        leaf.values = _as_dtype(leaf.values, variable.dtype)

    # -- one variable --------------------------------------------------------------------------------------------------

    def variable(self, leaf: Leaf, reference: str | None = None) -> xr.Variable | None:
        """Make the variable of a leaf; None if it has no rows and the template knows more.

        Parameters
        ----------
        leaf
            The entry.
        reference
            The variable of the template whose dims were asked for.
        """
        own = self.variables.get(leaf.name)
        values, dims, names = leaf.values, leaf.dims, list(leaf.dims)
        if own is not None:
            values = _as_times(leaf, with_numpy_dtype(own)) if leaf.is_tensor else values
            for axis in reversed(range(leaf.batch_axes)):
                if dims[axis] in own.dims or not {*own.dims} <= {*dims}:
                    continue
                # the variable was broadcast to the batch: one of the equal rows is the variable
                if not values.shape[axis]:
                    return None
                if is_constant(values, axis):
                    values = values.take(0, axis)
                    del names[axis]
        source = self.variables[reference] if reference is not None else own
        attrs = {} if source is None else dict(source.attrs)
        # fastpath: xarray would make NaN of None among strings, and datetime64 of datetimes
        made = xr.Variable(names, values, attrs, dict(leaf.encoding), fastpath=True)
        if own is not None and sorted(map(str, own.dims)) == sorted(set(names)) and tuple(own.dims) != tuple(names):
            encoding, made = made.encoding, made.transpose(*own.dims)
            made.encoding = encoding
        return made

    # -- what the tensordict does not carry ----------------------------------------------------------------------------

    def warn_of_unfit_coords(self, carried: Mapping[str, xr.Variable]) -> None:
        """Warn of coordinates that the tensordict does not carry and that do not fit it."""
        sizes = _sizes(carried)
        unfit = {}
        for name in map(str, self.ds.coords):
            wrong = [(dim, size) for dim, size in self.variables[name].sizes.items() if sizes.get(dim, size) != size]
            # the tuples of a MultiIndex are there as its levels
            if wrong and carried.keys().isdisjoint({name, *self._together(name)}):
                unfit[name] = wrong[-1]
        if unfit:
            dim, size = next(iter(unfit.values()))
            warn(
                f"the coordinates {sorted(unfit)} of the template are left out: {dim!r} has size {size} there and {sizes[dim]} in "
                f"the tensordict; give the rows it was made from, template=ds.isel({dim}=slice(...)), or new ones with coords=",
                LeftOutWarning,
            )

    def restored(
        self,
        carried: Mapping[str, xr.Variable],
        batches: Mapping[Key, Dims],
        above: Mapping[Any, int],
        groups: Iterable[str],
    ) -> list[str]:
        """The names of the variables to be taken from the template as they are.

        Those are coordinates, unbatched and partial variables, and what torch has no dtype for: a tensordict lacks
        them although they were not left out. Also coordinates that it carries unchanged, so that their indexes stay.

        Parameters
        ----------
        carried
            The variables made from the tensordict.
        batches
            The batch dims of every tensordict in it.
        above
            The sizes of dims that are fixed already.
        groups
            The names of nested tensordicts.
        """
        sizes = {**above, **_sizes(carried)}
        taken = {*carried, *groups}
        names = set()
        for name, variable in self.variables.items():
            if name in carried:
                if name in self.ds.xindexes and carried[name].equals(variable):
                    names.add(name)
            elif self._fits(name, variable, sizes, taken) and self._is_missed(name, variable, batches):
                names.add(name)
        # without coordinates that share an index with one that is not among them (levels of a MultiIndex)
        return [name for name in self.variables if name in names and self._together(name) <= names]

    def _together(self, name: str) -> set[Any]:
        return {*self.ds.xindexes.get_all_coords(name, errors="ignore")}

    def _fits(self, name: str, variable: xr.Variable, sizes: Mapping[Any, int], carried: Iterable[str]) -> bool:
        if any(sizes.get(dim, size) != size for dim, size in variable.sizes.items()):
            return False
        if name in sizes and name not in variable.dims:
            return False
        # "a" and "a/b" cannot both be there
        return not any(f"{other}/".startswith(f"{name}/") or name.startswith(f"{other}/") for other in carried)

    def _is_missed(self, name: str, variable: xr.Variable, batches: Mapping[Key, Dims]) -> bool:
        key = key_of(name)[:-1]
        batch = batches[next(key[:n] for n in range(len(key), -1, -1) if key[:n] in batches)]
        return name in self.ds.coords or not set(batch) <= set(variable.dims) or _is_beyond_torch(variable, name)

    def order(self, names: Iterable[str]) -> list[str]:
        """Sort names as the template has them, new ones behind."""
        place = {name: number for number, name in enumerate(self.variables)}
        return sorted(names, key=lambda name: place.get(name, len(place)))


def _sizes(variables: Mapping[str, xr.Variable]) -> dict[Any, int]:
    return {dim: size for variable in variables.values() for dim, size in variable.sizes.items()}


def _split(ds: xr.Dataset) -> dict[Key, xr.Dataset]:
    """The variables of each group of a flat Dataset, under the names they have there."""
    keys = {name: key_of(name) for name in ds.variables}
    nodes: dict[Key, xr.Dataset] = {(): ds.drop_vars([name for name, key in keys.items() if len(key) > 1])}
    for group in {key[:-1] for key in keys.values()} - {()}:
        own = {key[-1]: name for name, key in keys.items() if key[:-1] == group}
        coords = {name for name, full in own.items() if full in ds.coords}
        nodes[group] = dataset_of({name: ds.variables[full] for name, full in own.items()}, coords, {}, {})
    return nodes


def _outer_shape(value: Any, known: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of nested lists along as many axes as `known` has; behind one without elements they are `known`'s."""
    shape = nested_shape(value, len(known))
    if 0 in shape:
        shape = (*shape, *known[len(shape) :])
    return shape if len(shape) == len(known) else None


def _is_beyond_torch(variable: xr.Variable, name: str) -> bool:
    """Whether no tensordict can hold a variable, so that it was not left out on purpose."""
    try:
        variable = with_numpy_dtype(variable)
        if variable.dtype.kind in "mM":
            tensor_from_numpy(variable.values, name=name)
    except (OverflowError, TypeError, ValueError):
        return True
    return why_not(variable) is not None


def is_constant(values: Array, axis: int) -> bool:
    """Whether all steps along an axis are equal (NaN to NaN)."""
    if values.strides[axis] == 0 or values.shape[axis] == 1:
        return True
    first = values.take([0], axis)
    if values.dtype.kind == "O":
        pairs = zip(values.ravel(), np.broadcast_to(first, values.shape).ravel(), strict=True)
        return all(a is b or (type(a) is type(b) and isinstance(a, (str, bytes, int)) and a == b) for a, b in pairs)
    if values.dtype.kind in "biufcmM":
        # to the bit: an expanded NaN is the same everywhere, and 0.0 is not -0.0
        values, first = (np.ascontiguousarray(array)[..., None].view(np.uint8) for array in (values, first))
    return bool(np.all(values == first))


def _as_times(leaf: Leaf, own: xr.Variable) -> Array:
    """Nanoseconds as the datetimes or timedeltas they were; in the unit of the template if that is exact."""
    values, dtype = leaf.values, own.dtype
    if dtype.kind not in "mM":
        return values
    if values.dtype != np.int64:
        return _times_of_cast(leaf, own)
    times = np.ascontiguousarray(values).reshape(values.shape).view(f"{dtype.kind}8[ns]")
    if np.datetime_data(dtype)[0] == "generic":
        return times
    converted = times.astype(dtype)
    exact = np.array_equal(converted.astype(times.dtype), times, equal_nan=True)
    return converted if exact else times


def _times_of_cast(leaf: Leaf, own: xr.Variable) -> Array:
    """The times of the template whose nanoseconds were cast to another dtype, as ``td.float()`` does; it rounds them."""
    times, values = np.asarray(own.values), leaf.values
    assert isinstance(leaf.child, torch.Tensor)
    cast = numpy_from_tensor(tensor_from_numpy(times, name=leaf.name).to(leaf.child.dtype), name=leaf.name)[0]
    if cast.shape == values.shape and np.array_equal(cast, values, equal_nan=True):
        return times
    found, first, counts = np.unique(cast, return_index=True, return_counts=True)
    place = np.searchsorted(found, values).clip(max=max(len(found) - 1, 0))
    if len(found) and (counts == 1).all() and np.array_equal(found[place], values):
        looked_up: Array = times.ravel()[first][place]
        return looked_up
    warn(
        f"{leaf.name!r} holds times as {values.dtype}, which rounds nanoseconds, and they are not those of the template: they are "
        f"left as numbers. Cast the tensordict without its times, td.exclude({leaf.name!r}), or give the rows it was made from as "
        f"template=",
        StoredFormWarning,
    )
    return values


def _as_dtype(values: Array, dtype: Any) -> Array:
    """Strings and numbers in the dtype of the template, if that changes none of them."""
    if values.dtype == dtype or not isinstance(dtype, np.dtype) or dtype.kind not in "USTbiufc":
        return values
    plain = np.dtype(dtype.kind) if dtype.kind in "US" else dtype
    allowed: tuple[type, ...] = {"U": (str,), "T": (str,), "S": (bytes,)}.get(dtype.kind, (bool, int, float, complex))
    items = values.ravel().tolist()
    if not items or not all(type(item) in allowed for item in items):
        return values
    converted = np.array(items, dtype=plain).reshape(values.shape)
    return converted if converted.ravel().tolist() == items else values


def as_class(td: TensorDictBase, cls: Any, dropped: AbstractSet[Key] = frozenset()) -> Any:
    """Make an instance of `cls` from a tensordict; nested tensordicts become the classes in the annotations of `cls`.

    Fields that are not there get their default, or None where their annotation allows it; those whose values were
    `dropped`, since they have no batch dim, do not.

    Raises
    ------
    TypeError
        If `cls` is no tensorclass.
    ValueError
        If the entries are not its fields; both are named.
    """
    if not _is_class(cls):
        raise TypeError(f"cls: expected a tensorclass or a TypedTensorDict, got {cls!r}")
    if issubclass(cls, TypedTensorDict):
        _check(cls.__required_keys__, set(cls.__expected_keys__) | set(td.keys()), td, cls, (), dropped)
        return cls.from_tensordict(td)
    return _made(td, cls, (), dropped)


def _is_class(cls: Any) -> bool:
    return isinstance(cls, type) and (is_tensorclass(cls) or issubclass(cls, TypedTensorDict))


def _made(td: TensorDictBase, cls: Any, where: Key, dropped: AbstractSet[Key]) -> Any:
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = _hints(cls)
    _check({name for name in fields if not _may_lack(fields[name], hints)}, set(fields), td, cls, where, dropped)
    made = cls.from_tensordict(td)
    present = list(td.keys())
    for name, field in fields.items():
        value = td.get(name) if name in present else None
        nested = _nested_class(hints.get(name))
        if nested is not None and value is not None and is_tensor_collection(value):
            setattr(made, name, _made(value, nested, (*where, name), dropped))
        elif name not in present and field.default is not dataclasses.MISSING:
            setattr(made, name, field.default)
        elif name not in present and field.default_factory is not dataclasses.MISSING:
            setattr(made, name, field.default_factory())
    return made


def _check(
    required: Any, known: set[str], td: TensorDictBase, cls: type, where: Key, dropped: AbstractSet[Key]
) -> None:
    present = set(td.keys())
    lost = sorted(name for name in known - present if (*where, name) in dropped)
    lacking, unknown = sorted(set(required) - present - set(lost)), sorted(present - known)
    if not lacking and not unknown and not lost:
        return
    place = f" at {'/'.join(where)!r}" if where else ""
    misfits = [f"its fields {lacking} are not there"] * bool(lacking)
    misfits += [f"its fields {lost} have no batch dim and were dropped (unbatched='expand' keeps them)"] * bool(lost)
    misfits += [f"the entries {unknown} are none of its fields"] * bool(unknown)
    raise ValueError(
        f"cls: {cls.__qualname__}{place} does not fit: {' and '.join(misfits)}. It has the fields {sorted(known)}, and the "
        f"tensordict has {sorted(present)}; drop or add variables, or pass another class"
    )


def _hints(cls: type) -> Mapping[str, Any]:
    """The annotations as types; as texts where they name what cannot be found, a class local to a function."""
    try:
        return typing.get_type_hints(cls)
    except NameError:
        return {field.name: field.type for field in dataclasses.fields(cls)}


def _may_lack(field: Any, hints: Mapping[str, Any]) -> bool:
    if field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING:
        return True
    hint = hints.get(field.name)
    if isinstance(hint, str):
        return "Optional[" in hint or "None" in hint.replace(" ", "").split("|")
    return type(None) in typing.get_args(hint)


def _nested_class(hint: Any) -> Any:
    """The tensorclass that an annotation asks for, ``Inner`` of ``Inner | None``."""
    return next((found for found in (hint, *typing.get_args(hint)) if _is_class(found)), None)
