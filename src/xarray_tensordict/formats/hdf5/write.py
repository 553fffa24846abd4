"""The HDF5 writer: carry a :class:`~...writing.plan.WritePlan` out with h5py, or with xarray's h5netcdf engine.

With ``layout="tensordict"`` the file holds nothing but the arrays that plain tensordict is to read, their dims as HDF5
dimension labels; netCDF's placeholders for dims would be entries there. Rows are appended by :mod:`.append`.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from operator import gt
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray as xr

from ..._compat.xarray import NetcdfWriter, data_of, dataset_of
from ...core.blocks import Bytes, rows_in
from ...core.metadata import BATCH_ATTR, NON_TENSOR_ATTR, STACK_ATTR, STR_ATTR, UNBATCHED_NAME
from ...core.model import Key, group_name
from ...core.values import to_json
from ...dataset.open import OpenOptions, open_flat
from ...dataset.records import infer_dataset
from ...writing.plan import (
    GroupPlan,
    Source,
    WriteOptions,
    WritePlan,
    plan_added,
    plan_write,
    stream_source,
    unbatched_object,
)
from ...writing.running import distributed_client
from ...writing.store_fit import check_labels
from ...writing.stored_form import Holds, Stored, storage_chunks
from ..base import Annotations, check_records
from .append import append_rows
from .attrs import free_axes, stored_attrs, unbatched_content
from .file import not_written, open_for_changes
from .output import (
    ONE_WRITER,
    Hdf5Output,
    Region,
    Target,
    opened_file,
    store_blocks,
    whole,
    write_values,
    written_beside,
)
from .read import Hdf5Store
from .replace import STORAGE, attach, check_replaced, layout_there, remove_netcdf, removed, take_storage

HOLDS = Holds(rows=True, typed_attributes=True, unlimited_dims=True)
_JSON_MARK = json.dumps({"encoding": "json"})
_H5PY_WORDS = ("dtype", "shuffle", "fletcher32", "compression", "compression_opts", "scaleoffset")
_KNOWN = frozenset(("zlib", "complevel", "chunksizes", "chunks", "contiguous", *_H5PY_WORDS))


def create_file(source: Source, path: Any, options: WriteOptions, prefix: Key) -> Any:
    """Write an HDF5 file.

    Parameters
    ----------
    options
        Mode "w" replaces the file, "w-" and "x" refuse to, "a" adds to it. None replaces the group at `prefix`: the file,
        where that is the root. Without ``compute`` all but the rows of an append is checked now, and a ``Delayed`` is returned.
    prefix
        The group that becomes the root.

    Raises
    ------
    FileExistsError
        With "w-" or "x" where there is a file.
    ValueError
        Where there is a folder, or a file that is no HDF5 file; where this process has the file open for writing.
    """
    write = _prepared(source, path, options, prefix)
    if options.compute:
        write()
        return None
    if distributed_client() is not None:
        raise NotImplementedError(ONE_WRITER)
    from dask.delayed import delayed

    return delayed(write, pure=False)()


def _prepared(source: Source, path: Any, options: WriteOptions, prefix: Key) -> Callable[[], None]:
    """What writes, after all checks."""
    stream_source(source)
    if hasattr(path, "write") and hasattr(path, "seek"):
        return partial(_into_object, _planned(source, options), path, prefix, options)
    mode = options.mode
    target = _target(path, mode)
    if options.append_dim is not None:
        return partial(append_rows, source, target, prefix, str(options.append_dim), progress=options.progress)
    with not_written(target):
        copied = target.exists() and (mode == "a" or (mode is None and bool(prefix)))
    plan = _planned(source, options, target if copied and mode == "a" else None, prefix)

    def write_file() -> None:
        # netCDF-4 wants members in the order in which they were made
        order = {"track_order": True} if plan.layout == "xarray" else {}
        exclusive = mode in {"w-", "x"} or (mode == "a" and not copied)
        with written_beside(target, copied=copied, exclusive=exclusive, **order) as output:
            if copied and mode is None:
                _remove_group(output.file, prefix, target)
            _write_plan(plan, output, prefix, options, new=not copied)

    return write_file


def _target(path: Any, mode: str | None) -> Path:
    """The path of the file; raises where `mode` does not allow an existing target: a folder, a file of another kind, any file."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path: expected a path or a binary file object to write to, found {type(path).__name__}")
    local = os.fsdecode(path).removeprefix("file://")
    if "://" in local:
        raise ValueError(
            f"{path}: HDF5 is written to local files; write to one and copy it, or use ds.td.to_zarr for a URL"
        )
    target = Path(os.path.abspath(os.path.expanduser(local)))
    if target.exists() and mode in {"w-", "x"}:
        raise FileExistsError(
            f"{target}: there is a file already. Pass mode='w' to replace it, or mode='a' to add to it"
        )
    if target.exists() and not target.is_file():
        what = "a folder" if target.is_dir() else "a FIFO, a socket or a device"
        raise ValueError(f"{target}: expected the path of a file, found {what}; choose another path")
    if target.exists() and target.stat().st_size and not h5py.is_hdf5(target):
        does = "adds to an HDF5 file" if mode == "a" else "would replace this file"
        with target.open("rb") as file:
            start = file.read(8)
        raise ValueError(
            f"{target}: mode={mode or 'w'!r} {does}, and this is none (it starts with {start!r}); choose another path, or "
            "delete the file first"
        )
    return target


def _planned(source: Source, options: WriteOptions, added_to: Path | None = None, prefix: Key = ()) -> WritePlan:
    """The plan for a new file, or for variables that are added to a group of one, whose batch stays as it is.

    Raises
    ------
    ValueError
        For dims that have another size there, labels that others there would get as well, and what cannot be replaced.
    """
    with ExitStack() as opened:
        where = group_name(prefix)
        file = {} if added_to is None else opened.enter_context(h5py.File(added_to, "r"))
        if where not in file:
            return plan_write(source, options.layout, HOLDS, encoding=options.encoding)
        old = open_flat(Hdf5Store.open(file, root=where), OpenOptions(nested=True))
        names = list(map(str, source.flat.variables))
        layout = layout_there(file[where], options.layout)
        if layout != options.layout and options.encoding:
            raise ValueError(
                f"{added_to}: encoding= was given for layout={options.layout!r}, and what is there has layout={layout!r}; pass "
                f"that, or leave encoding= out"
            )
        plan = plan_added(source, old, infer_dataset(old), names, layout, HOLDS, options.encoding)
        check_replaced(plan, file, prefix)
        check_labels(source, old, str(added_to))
        for group in plan.groups.values():
            for name, stored in group.stored.items():
                if group.node.names[name] in old.variables:
                    take_storage(stored, old.variables[group.node.names[name]])
            dims = {str(dim) for variable in group.node.variables.values() for dim in variable.dims}
            group.node.unlimited |= dims & set(old.encoding.get("unlimited_dims", ()))
            if BATCH_ATTR not in file[where].attrs and old.variables:
                # datasets of other writers need not start with the batch: no record of it
                group.batch_record = None
    return plan


def _remove_group(file: h5py.File, prefix: Key, target: Path) -> None:
    path = "/".join(prefix)
    if path in file and not isinstance(file[path], h5py.Group):
        raise ValueError(f"{target}: {path!r} is an array there, no group; choose another group=, or pass mode='w'")
    if path in file:
        del file[path]


def _into_object(plan: WritePlan, stream: Any, prefix: Key, options: WriteOptions) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.h5"
        with opened_file(getattr(stream, "name", None) or repr(stream), h5py.File, path, "w") as output:
            _write_plan(plan, output, prefix, options, new=True)
        stream.seek(0)
        stream.truncate()
        with path.open("rb") as file:
            while block := file.read(2**24):
                while block:  # a stream without a buffer takes parts
                    taken = stream.write(block)
                    block = block[len(block) if taken is None else taken :]


def _write_plan(plan: WritePlan, output: Hdf5Output, prefix: Key, options: WriteOptions, *, new: bool) -> None:
    if plan.layout == "xarray":
        _write_netcdf(plan, output, prefix, options, new=new)
    else:
        _write_with_h5py(plan, output, prefix, options)
    for key, group in plan.groups.items():
        if group.batch_record is not None:
            output.file[group_name((*prefix, *key))].attrs[BATCH_ATTR] = json.dumps(group.batch_record)


# -- layout="tensordict" -----------------------------------------------------------------------------------------------


def _write_with_h5py(plan: WritePlan, output: Hdf5Output, prefix: Key, options: WriteOptions) -> None:
    """Write the groups of a plan below `prefix`; members of the same names are replaced."""
    writes: list[tuple[Target, Region, xr.Variable]] = []
    for key, group in plan.groups.items():
        node = output.file.require_group(group_name((*prefix, *key)))
        node.attrs.update(stored_attrs(group.attrs or {}, {}, f"group {group_name(key)!r}"))
        for name, stored in group.stored.items():
            uses = removed(node[name]) if isinstance(node.get(name), h5py.Dataset) else []
            if name in node:
                del node[name]
            if stored.form == "json" and not stored.variable.ndim:
                dataset = _write_text(output, node, name, stored.payload)
            else:
                dataset, variable = _created(node, name, stored, group, options)
                writes.append((Target(output, dataset), whole(variable.shape), variable))
            owner = f"variable {group.node.names[name]!r}"
            dataset.attrs.update(stored_attrs(stored.variable.attrs, stored.record, owner))
            attach(dataset, uses)
    _write_unbatched(plan, output, prefix)
    write_values(writes, progress=options.progress)


def _write_unbatched(plan: WritePlan, output: Hdf5Output, prefix: Key) -> None:
    """Write the entry ``_unbatched``, with what is there and not written anew; each variable is in one place."""
    root = output.file.require_group(group_name(prefix))
    there = unbatched_content(root, str(output.file.filename)) if UNBATCHED_NAME in root else {}
    arrays = {"/".join((*key, name)) for key, group in plan.groups.items() for name in group.stored}
    for path in plan.unbatched:
        if isinstance(root.get(path), h5py.Dataset):
            removed(root[path])
    content = {path: value for path, value in there.items() if path not in arrays} | unbatched_object(plan)
    if content == there:
        return
    if UNBATCHED_NAME in root:
        del root[UNBATCHED_NAME]
    if content:
        _write_text(output, root, UNBATCHED_NAME, content)


def _created(
    node: h5py.Group, name: str, stored: Stored, group: GroupPlan, options: WriteOptions
) -> tuple[h5py.Dataset, xr.Variable]:
    """Create the dataset of a variable; what is to be written to it comes with it."""
    variable, dtype = _for_h5py(stored)
    keywords = {"dtype": dtype, **_dataset_options(name, stored, group, options)}
    unlimited = group.node.unlimited
    if unlimited & set(variable.dims):
        keywords["maxshape"] = tuple(None if dim in unlimited else size for dim, size in variable.sizes.items())
        keywords.setdefault("chunks", True)
    elif 0 in variable.shape:
        keywords = {"dtype": keywords["dtype"]}
    try:
        dataset = node.create_dataset(name, shape=variable.shape, **keywords)
    except (ValueError, TypeError, OSError) as error:
        raise type(error)(
            f"variable {group.node.names[name]!r}: HDF5 cannot store it with {keywords} ({error})"
        ) from error
    if dataset.dtype.kind == "S" and not h5py.check_opaque_dtype(dataset.dtype):
        stored.record["bytes"] = True
    for axis, dim in enumerate(variable.dims):
        dataset.dims[axis].label = str(dim)
    if stored.stack:
        dataset.attrs[STACK_ATTR] = list(group.batch_record["batch_size"]) if group.batch_record is not None else []
    return dataset, variable


def _for_h5py(stored: Stored) -> tuple[xr.Variable, np.dtype[Any]]:
    """The variable, and the dtype of its dataset."""
    variable = stored.variable
    if stored.form == "json":
        values = np.array(stored.payload)
        return xr.Variable(variable.dims, values), h5py.opaque_dtype(values.dtype)
    if stored.form == "ragged":
        first = next((row for row in variable.values.flat if isinstance(row, np.ndarray)), np.empty(0))
        return variable, h5py.vlen_dtype(first.dtype)
    return variable, h5py.string_dtype() if variable.dtype.kind in "UTO" else variable.dtype


def _write_text(output: Hdf5Output, node: h5py.Group, name: str, value: Any) -> h5py.Dataset:
    """Write one value: a text as it is, anything else as JSON."""
    is_text = isinstance(value, str) and "\0" not in value
    text = value if is_text else to_json(value, name)
    output.room(len(text.encode(errors="surrogatepass")))
    dataset = node.create_dataset(name, data=text, dtype=h5py.string_dtype())
    dataset.attrs.update({STR_ATTR: True} if is_text else {NON_TENSOR_ATTR: _JSON_MARK})
    return dataset


# -- how a dataset is stored -------------------------------------------------------------------------------------------


def _encoding_of(variable: xr.Variable, options: WriteOptions, unlimited: frozenset[str]) -> dict[str, Any]:
    """What a new dataset takes over from the variable's encoding, and its chunks, in the words of netCDF4."""
    if not variable.ndim:
        return {}
    encoding = {word: variable.encoding[word] for word in STORAGE if variable.encoding.get(word)}
    compression = encoding.get("compression")
    plugin = isinstance(compression, int) and bool(h5py.h5z.filter_avail(compression))
    # filters of numbers do not take texts and rows of any length, and plugins come and go
    if variable.dtype.kind in "UTO" or not (plugin or compression in (None, "gzip", "lzf")):
        encoding = {}
    chunks = _chunks(variable, options.chunks, unlimited)
    return encoding if chunks is None else {**encoding, "chunksizes": chunks}


def _chunks(variable: xr.Variable, asked: Mapping[str, int], unlimited: frozenset[str]) -> tuple[int, ...] | None:
    """The chunks that are asked for, or that a variable had; only dims that can grow have larger ones than they are."""
    dims, found = [str(dim) for dim in variable.dims], storage_chunks(variable)
    if any(dim in asked for dim in dims):
        own = [max(parts) for parts in variable.chunks] if variable.chunks is not None else variable.shape
        chosen_chunks = [
            size if isinstance(asked.get(dim), Bytes) else asked.get(dim, size)
            for dim, size in zip(dims, own, strict=True)
        ]
        for axis, dim in enumerate(dims):
            nbytes = asked.get(dim)
            if isinstance(nbytes, Bytes):
                whole = [full if size == -1 else size for size, full in zip(chosen_chunks, variable.shape, strict=True)]
                chosen_chunks[axis] = rows_in(nbytes, whole, axis, variable.dtype.itemsize)
    elif found is not None:
        chosen_chunks = list(variable.encoding.get("chunks") or variable.encoding["chunksizes"])
    else:
        return None
    if 0 in variable.shape and not unlimited & set(dims):
        return None
    sizes = zip(dims, chosen_chunks, variable.shape, strict=True)
    return tuple(
        max(1, full if size == -1 else size if dim in unlimited else min(size, full)) for dim, size, full in sizes
    )


def _dataset_options(name: str, stored: Stored, group: GroupPlan, options: WriteOptions) -> dict[str, Any]:
    """The arguments of ``create_dataset``, from an encoding in the words of netCDF4 or of h5py."""
    asked = options.encoding.get(group.node.names[name], {})
    unknown = sorted(asked.keys() - _KNOWN)
    if unknown:
        raise ValueError(
            f"unexpected encoding parameters for {group.node.names[name]!r}: {unknown}; layout='tensordict' knows "
            f"{sorted(_KNOWN)}"
        )
    if not stored.variable.ndim:
        return {}
    encoding = {**_encoding_of(stored.variable, options, group.node.unlimited), **asked}
    found = {word: encoding[word] for word in _H5PY_WORDS if encoding.get(word) not in (None, False)}
    if encoding.get("zlib"):
        found.setdefault("compression", "gzip")
    if encoding.get("complevel") and found.get("compression") == "gzip":
        found.setdefault("compression_opts", encoding["complevel"])
    chunks = encoding.get("chunksizes", encoding.get("chunks"))
    return found if chunks is None else {**found, "chunks": tuple(chunks) if isinstance(chunks, list) else chunks}


# -- layout="xarray" ---------------------------------------------------------------------------------------------------


def _write_netcdf(plan: WritePlan, output: Hdf5Output, prefix: Key, options: WriteOptions, *, new: bool) -> None:
    """Write the groups of a plan as netCDF-4, through xarray's h5netcdf engine."""
    if not new:
        remove_netcdf(plan, output.file, prefix)
    with NetcdfWriter(output.file, output.room_for, new=new) as writer:
        for key, group in plan.groups.items():
            ds = _netcdf_dataset(key, group, options)
            explicit = {}
            for name, variable in ds.variables.items():
                asked = options.encoding.get(group.node.names[str(name)], {})
                # xarray drops chunks that are larger than the dim unless they are asked for
                if asked or any(map(gt, variable.encoding.get("chunksizes", ()), variable.shape)):
                    explicit[str(name)] = {**variable.encoding, **asked}
            unlimited = sorted(group.node.unlimited & set(map(str, ds.dims)))
            writer.write(ds, group_name((*prefix, *key)), explicit, unlimited)
        held = zip(writer.targets, writer.sources, strict=True)
        store_blocks([(target, whole(source.shape), source) for target, source in held], progress=options.progress)


def _netcdf_dataset(key: Key, group: GroupPlan, options: WriteOptions) -> xr.Dataset:
    variables: dict[str, xr.Variable] = {}
    for name, stored in group.stored.items():
        owner = f"variable {group.node.names[name]!r}"
        attrs = stored_attrs(stored.variable.attrs, stored.record, owner, netcdf=True)
        if stored.form == "json":
            attrs[NON_TENSOR_ATTR] = _JSON_MARK
            variables[name] = xr.Variable((), to_json(stored.payload, name), attrs, {"coordinates": None})
        elif stored.form == "ragged":
            raise TypeError(
                f"variable {group.node.names[name]!r} holds one array for each element, which xarray cannot write; "
                f"write it with layout='tensordict', or pad the rows, or drop it"
            )
        else:
            cut = _encoding_of(stored.variable, options, group.node.unlimited)
            variables[name] = xr.Variable(stored.variable.dims, data_of(stored.variable), attrs, fastpath=True)
            variables[name].encoding = {**cut, **stored.encoding}
    # CF cannot name a coordinate that has its own record
    coords = {name for name in group.coords if group.stored[name].record.get("role") != "coord"}
    attrs = stored_attrs(group.attrs or {}, {}, f"group {group_name(key)!r}", netcdf=True)
    return dataset_of(variables, coords, attrs)


def annotate_hdf5(source: Any, annotations: Annotations) -> None:
    """Write labels and attributes into a file; see :meth:`~..base.Format.annotate`."""
    if isinstance(source, str):
        with open_for_changes(source) as file:
            annotate_hdf5(file, annotations)
        return
    group = (annotations.group or "").strip("/")
    root = source[group] if group else source
    check_records(root, annotations)
    named = {root["/".join(key)]: dims for key, dims in annotations.dims.items()}
    labels = {dataset: free_axes(dataset, dims) for dataset, dims in named.items()}
    for dataset, names in labels.items():
        for axis, name in names.items():
            dataset.dims[axis].label = name
    for key, record in annotations.records.items():
        node = root.get("/".join(key)) if key else root
        if isinstance(node, h5py.Group):
            node.attrs[BATCH_ATTR] = json.dumps(record)
