"""DataTrees as one flat Dataset, and their batches."""

from __future__ import annotations

from typing import Any

import xarray as xr

from ..core.inference import BatchDims, infer_batch
from ..core.model import ArrayInfo, Inference, Key, RecordedBatch
from ..core.naming import Dims, qualify
from .describe import describe_dataset
from .record import read_record
from .tensorclasses import classes_of, note_classes


def node_key(node: xr.DataTree, root: xr.DataTree) -> Key:
    """The path of a node below `root`."""
    return tuple(part for part in node.relative_to(root).split("/") if part not in {"", "."})


def own_datasets(dt: xr.DataTree) -> dict[Key, xr.Dataset]:
    """The Dataset of each node; coordinates stay with the node they were set on, but the root has all it sees."""
    return {node_key(node, dt): node.to_dataset(inherit=node is dt) for node in dt.subtree}


def describe(dt: xr.DataTree) -> list[Any]:
    """All that the inference looks at."""
    datasets = own_datasets(dt)
    return [*_infos(datasets), {key: dict(ds.attrs) for key, ds in datasets.items()}]


def infer(dt: xr.DataTree, batch_dims: BatchDims | None = None) -> Inference:
    """Infer the batch of each node under the names that the flat view uses."""
    datasets = own_datasets(dt)
    flat_dims = _flat_dims(datasets)
    infos = [_under(info, flat_dims[info.key]) for info in _infos(datasets)]
    recorded = {
        key: RecordedBatch(None, tuple(_flat_name(datasets, flat_dims, key, name) for name in record.names or ()))
        for key, record in _records(datasets).items()
    }
    attrs = {key: ds.attrs for key, ds in datasets.items()}
    return infer_batch(infos, given=batch_dims, recorded=recorded, group_attrs=attrs, where="the tree")


def flatten(dt: xr.DataTree) -> xr.Dataset:
    """Put the variables of all nodes into one Dataset, under their paths; dims that clash are qualified."""
    datasets = own_datasets(dt)
    flat_dims = _flat_dims(datasets)
    variables: dict[str, xr.Variable] = {}
    coords: set[str] = set()
    for key, ds in datasets.items():
        for name, variable in ds.variables.items():
            path = (*key, str(name))
            moved = variable.to_base_variable() if key else variable
            if moved.dims != flat_dims[path]:
                moved = xr.Variable(flat_dims[path], variable._data, variable.attrs, fastpath=True)
                moved.encoding = variable.encoding
            variables["/".join(path)] = moved
            if name in ds.coords:
                coords.add("/".join(path))
    root = datasets[()]
    data = {name: variable for name, variable in variables.items() if name not in coords}
    own = xr.Coordinates(
        {name: variable for name, variable in variables.items() if name in coords},
        indexes=dict(root.xindexes),
    )
    flat = xr.Dataset(data, coords=own, attrs=root.attrs)
    flat.encoding = root.encoding
    classes = {(*key, *below): name for key, ds in datasets.items() for below, name in classes_of(ds).items()}
    note_classes(flat, classes)
    return flat


def _infos(datasets: dict[Key, xr.Dataset]) -> list[ArrayInfo]:
    return [info for key, ds in datasets.items() for info in describe_dataset(ds, key)]


def _under(info: ArrayInfo, dims: Dims) -> ArrayInfo:
    return ArrayInfo(info.key, info.shape, info.kind, dims, info.role, info.unlimited, info.attrs)


def _records(datasets: dict[Key, xr.Dataset]) -> dict[Key, RecordedBatch]:
    records: dict[Key, RecordedBatch] = {}
    for key, ds in datasets.items():
        records.update({(*key, *below): record for below, record in read_record(ds.attrs).items()})
    return records


def _flat_dims(datasets: dict[Key, xr.Dataset]) -> dict[Key, Dims]:
    infos = _infos(datasets)
    local = infer_batch(infos, recorded=_records(datasets), group_attrs={key: ds.attrs for key, ds in datasets.items()})
    named: dict[Key, Any] = {info.key: info.dims for info in infos}
    return qualify(named, {info.key: info.shape for info in infos}, local)


def _flat_name(datasets: dict[Key, xr.Dataset], flat_dims: dict[Key, Dims], key: Key, name: str | None) -> str | None:
    """How the flat view calls the dim `name` of the node at `key`."""
    for info in describe_dataset(datasets.get(key, xr.Dataset()), key):
        for local, flat in zip(info.dims, flat_dims[info.key], strict=True):
            if local == name:
                return flat
    return name
