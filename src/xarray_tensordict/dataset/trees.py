"""DataTrees as one flat Dataset, their batches, and index coordinates that differ between a group and one above it.

A DataTree has one index for a dim along a branch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import xarray as xr

from .._compat.xarray import dataset_of, remade
from ..core.blocks import with_renamed_chunks
from ..core.inference import BatchDims, infer_batch
from ..core.metadata import BATCH_DIMS_ATTR
from ..core.model import ArrayInfo, Inference, Key, group_name, path_key
from ..core.naming import Dims, free_name, qualify, renamed_batches
from .describe import describe_dataset
from .records import classes_of, note_classes, read_record, set_record_if_needed, with_record


def node_key(node: xr.DataTree, root: xr.DataTree) -> Key:
    """The path of a node below `root`."""
    return path_key("" if node is root else node.relative_to(root))


def own_datasets(dt: xr.DataTree) -> dict[Key, xr.Dataset]:
    """The Dataset of each node; coordinates stay with the node they were set on, but the root has all it sees."""
    return {node_key(node, dt): node.to_dataset(inherit=node is dt) for node in dt.subtree}


def describe(dt: xr.DataTree) -> list[Any]:
    """All that the inference looks at."""
    datasets = own_datasets(dt)
    return [*_infos(datasets), {key: dict(ds.attrs) for key, ds in datasets.items()}]


def infer(dt: xr.DataTree, batch_dims: BatchDims | None = None) -> Inference:
    """Infer the batch of each node, under the names that the flat view uses.

    `batch_dims` are names of the nodes' own dims, or a count; where nodes without a common batch lie below one without
    variables, they are for each of them.
    """
    return _decide(own_datasets(dt), batch_dims)[0]


def flatten(dt: xr.DataTree) -> xr.Dataset:
    """Put the variables of all nodes into one Dataset, under their paths; dims that clash are qualified."""
    flat, inference = flat_view(dt)
    batches = {key: batch.dims for key, batch in inference.groups.items()}
    # a record of the root node speaks of the variables of that node alone
    return with_record(flat, batches) if BATCH_DIMS_ATTR in flat.attrs else set_record_if_needed(flat, batches)


def flat_view(dt: xr.DataTree, batch_dims: BatchDims | None = None) -> tuple[xr.Dataset, Inference]:
    """All nodes as one Dataset, and the decision about their batches."""
    datasets = own_datasets(dt)
    inference, flat_dims = _decide(datasets, batch_dims)
    variables: dict[str, xr.Variable] = {}
    coords: set[str] = set()
    for key, ds in datasets.items():
        for name, variable in ds.variables.items():
            path = (*key, str(name))
            moved = variable.to_base_variable() if key else variable
            if moved.dims != flat_dims[path]:
                moved = remade(variable, dims=flat_dims[path])
            variables["/".join(path)] = moved
            if name in ds.coords:
                coords.add("/".join(path))
    root = datasets[()]
    flat = dataset_of(variables, coords, root.attrs, root.xindexes)
    flat.encoding = root.encoding
    classes = {(*key, *below): name for key, ds in datasets.items() for below, name in classes_of(ds).items()}
    note_classes(flat, classes)
    return flat, inference


def _infos(datasets: Mapping[Key, xr.Dataset]) -> list[ArrayInfo]:
    return [info for key, ds in datasets.items() for info in describe_dataset(ds, key)]


def _decide(
    datasets: Mapping[Key, xr.Dataset], batch_dims: BatchDims | None = None
) -> tuple[Inference, dict[Key, Dims]]:
    """The batch of each node, and the dims of each variable, under the names of the flat view."""
    infos = _infos(datasets)
    attrs = {key: ds.attrs for key, ds in datasets.items()}
    recorded = {(*key, *below): each for key, ds in datasets.items() for below, each in read_record(ds.attrs).items()}
    local = infer_batch(
        infos,
        given=batch_dims,
        each=True,
        recorded=recorded,
        group_attrs=attrs,
        where="the tree",
        opened=None,
    )
    named: dict[Key, Any] = {info.key: info.dims for info in infos}
    shapes = {info.key: info.shape for info in infos}
    flat = qualify(named, shapes, local)
    return Inference(renamed_batches(local.groups, shapes, named, flat), local.classes, local.warnings), flat


def fit_indexes(datasets: Mapping[Key, xr.Dataset]) -> tuple[dict[Key, xr.Dataset], list[str]]:
    """Give a dim whose own coordinate differs from that of a group above a name of its own, below that group too.

    The coordinate keeps its name. Index coordinates are read where a group above has one of the same dim. `datasets`, by the key of
    their group, come parents first and without indexes. The second result has one sentence for each dim that was renamed.
    """
    renamed: dict[Key, dict[str, str]] = {}
    indexes: dict[Key, dict[str, xr.Variable]] = {}
    fitted: dict[Key, xr.Dataset] = {}
    sentences: list[str] = []
    for key, ds in datasets.items():
        above = indexes.get(key[:-1], {}) if key else {}
        names = dict(renamed.get(key[:-1], {})) if key else {}
        own = {str(dim): ds.variables[dim] for dim in ds.dims if dim in ds.variables and ds[dim].dims == (dim,)}
        for dim, variable in own.items():
            if dim in above and not variable.equals(above[dim]):
                names[dim] = free_name(f"{dim}_{key[-1]}", map(str, {*ds.variables, *ds.dims, *above}))
                sentences.append(
                    f"the coordinate {dim!r} of {group_name(key)!r} differs from that of the group above, so its dim is "
                    f"called {names[dim]!r}"
                )
        renamed[key], indexes[key] = names, {**above, **own}
        fitted[key] = _with_dims(ds, {dim: name for dim, name in names.items() if dim in ds.dims})
    return fitted, sentences


def _with_dims(ds: xr.Dataset, names: Mapping[str, str]) -> xr.Dataset:
    if not names:
        return ds
    moved = ds.rename_dims(names)
    for variable in moved.variables.values():
        variable.encoding = with_renamed_chunks(variable.encoding, names)
    unlimited = ds.encoding.get("unlimited_dims")
    moved.encoding = dict(ds.encoding)
    if unlimited:
        moved.encoding["unlimited_dims"] = {names.get(dim, dim) for dim in unlimited}
    return moved
