"""``ds.td.to_memmap``: what the tensordict of a Dataset holds, as a memory-mapped tensordict.

tensordict itself lays out the folder, with empty files; the values are then written into the files, block by block.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from tensordict import NonTensorData, TensorDict

from ..._compat.tensordict import IS_0_14
from ..._compat.xarray import past_cache
from ...core.inference import BatchDims
from ...core.metadata import UNBATCHED_NAME
from ...core.model import Inference, Key
from ...core.naming import check_choice
from ...core.unbatched_entry import encode_array
from ...core.values import CODE_DTYPES, same_object, to_json
from ...dataset.entries import Entry, Names, Plan, Unbatched, plan_entries, td_names
from ...dataset.records import classes_of, infer_dataset
from ...dataset.trees import flat_view
from ...tensors.reading import Frame, make_leaf, read_variables
from ...tensors.values import tensor_from_numpy, torch_dtype
from ...warnings import StoredFormWarning, warn
from ...writing.plan import Written
from ...writing.running import allocate, free_name, remove, replaced, swap
from ...writing.values import as_declared, streamed
from .files import file_stem
from .folders import BYTES, CLASS_NAME, LOST_NAMES, META
from .levels import stack_shape

_ARCHIVE = ".tdz"
_OWN_FILES = {META, "other.pickle", "pickle.pkl", "json_types.json"}


def to_memmap(
    ds: xr.Dataset,
    path: Any,
    batch_dims: BatchDims | None = None,
    *,
    coords: bool | Iterable[str] = True,
    unbatched: Unbatched = "keep",
    include: Names | None = None,
    exclude: Names = (),
    mode: str = "w",
    compute: bool = True,
    progress: bool = False,
    inference: Inference | None = None,
) -> Any:
    """Write a Dataset as a memory-mapped tensordict; see ``Dataset.td.to_memmap`` for the parameters."""
    check_choice("mode", mode, ("w", "w-"))
    plan = plan_entries(
        ds,
        inference or infer_dataset(ds, given=batch_dims),
        coords=coords,
        unbatched=unbatched,
        include=include,
        exclude=exclude,
    )
    _check_plan(plan)
    target = _local(path)
    _check_target(target, mode)
    job = _job(ds, plan, unbatched, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    # beside the target, and laid out now: a scheduler that loses a worker runs tasks again, and would lose the blocks
    # that are in a folder that is made anew
    staged = free_name(target, "tmp")
    try:
        stored = _lay_out(job, staged, target)
        if not compute:
            from dask.delayed import delayed

            finish: Any = delayed(_finish, pure=False)
            return finish(str(staged), str(target), mode, os.stat(staged).st_ino, stored)
        if stored is not None:
            from ...writing.running import compute_all

            compute_all([stored], progress=progress)
        _put_in_place(staged, target)
    except BaseException:
        remove(staged)
        raise
    return Written(os.fsdecode(path), plan.batches[()], job.kept)


def tree_to_memmap(dt: xr.DataTree, path: Any, batch_dims: BatchDims | None = None, **options: Any) -> Any:
    """Write a DataTree as nested memory-mapped tensordicts, each node with its own batch."""
    flat, inference = flat_view(dt, batch_dims)
    return to_memmap(flat, path, inference=inference, **options)


# -- checks, before anything is written --------------------------------------------------------------------------------


def _check_plan(plan: Plan) -> None:
    for name, reason in plan.left_out.items():
        raise TypeError(f"variable {name!r} cannot be written: {reason}; or leave it out with exclude=[{name!r}]")
    for entry in plan.entries:
        taken = next((part for part in entry.key if part in LOST_NAMES), None)
        if taken is not None:
            raise ValueError(
                f"variable {entry.name!r}: {taken!r} is a word of {META} itself, and tensordict does not find an entry of "
                f"that name again; rename it"
            )


def _local(path: Any) -> Path:
    text = os.fsdecode(path).removeprefix("file://")
    if "://" in text:
        raise ValueError(
            f"{text}: a memory-mapped tensordict is written to this machine, found a URL; ds.td.to_zarr writes to URLs"
        )
    return Path(os.path.realpath(os.path.expanduser(text)))


def _check_target(target: Path, mode: str) -> None:
    """Refuse a target that exists, if it must not be replaced or is something else than what is written."""
    if not os.path.lexists(target):
        return
    if mode == "w-":
        raise FileExistsError(f"{target} exists; choose another path, or mode='w' to replace it")
    if target.suffix == _ARCHIVE and target.is_dir():
        raise FileExistsError(f"{target}: expected an archive to replace, found a folder; choose another path")
    if target.suffix != _ARCHIVE and not target.is_dir():
        raise FileExistsError(
            f"{target}: expected a folder to replace, found a file; choose another path, or delete it"
        )
    other = _other_file(target) if target.is_dir() else None
    if other is not None:
        raise FileExistsError(
            f"{target}: expected a memory-mapped tensordict to replace, or an empty folder, found one with "
            f"{str(other.relative_to(target))!r} in it, which would be lost; choose another path, or delete the folder"
        )


def _other_file(folder: Path) -> Path | None:
    """The first file below a folder that does not belong to a memory-mapped tensordict."""
    for path in sorted(folder.rglob("*")):
        own = path.is_dir() or path.name in _OWN_FILES or path.suffix == ".memmap"
        if path.is_symlink() or not own or (path.is_file() and not (path.parent / META).is_file()):
            return path
    return None


# -- the tensordict to be ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    """What is to be written: the tensordict, the entries it is made of, the notes at its levels, and what ``_unbatched`` holds."""

    template: TensorDict
    tensors: list[Entry]
    notes: dict[Key, dict[str, Any]]
    kept: tuple[str, ...]


def _job(ds: xr.Dataset, plan: Plan, unbatched: Unbatched, target: Path) -> _Job:
    """The tensordict with all that is not a tensor, and for each tensor one element that stands for all."""
    kept = [entry for entry in plan.entries if unbatched == "keep" and _is_kept_apart(entry)]
    entries = [entry for entry in plan.entries if entry not in kept]
    others = [entry for entry in entries if entry.form != "tensor"]
    values = dict(
        zip(
            (e.key for e in others), read_variables([e.variable for e in others], [e.name for e in others]), strict=True
        )
    )
    leaves: dict[Key, Any] = {}
    classes = classes_of(ds, [entry.name for entry in plan.entries])
    notes: dict[Key, dict[str, Any]] = {key: {CLASS_NAME: name} for key, name in classes.items()}
    # tensordict 0.14 writes no names of dims
    for key in {entry.key[:length] for entry in entries for length in range(len(entry.key))}:
        if any(names := td_names(plan.batches[key])):
            notes.setdefault(key, {})["_names"] = names
    for entry in entries:
        if entry.form == "tensor":
            leaves[entry.key] = torch.zeros((), dtype=_dtype(entry)).expand(_shape(entry))
            continue
        text, dtype = _without_bytes(values[entry.key])
        if dtype is not None:
            notes.setdefault(entry.key[:-1], {}).setdefault(BYTES, []).append([entry.key[-1], dtype])
        leaves[entry.key] = _non_tensor(entry, make_leaf(entry, text, unbatched="expand"), target)
    if kept:
        leaves[UNBATCHED_NAME,] = NonTensorData(_kept_apart(ds, kept), batch_size=plan.batches[()].sizes)
    tensors = [replace(e, variable=streamed(e.variable)) for e in entries if e.form == "tensor" and 0 not in _shape(e)]
    return _Job(Frame(plan.batches, leaves).filled(leaves), tensors, notes, tuple(entry.name for entry in kept))


def _is_kept_apart(entry: Entry) -> bool:
    """Whether tensordict has no place for an array of numbers or text: what has no batch dim, rows of lists of text."""
    if entry.form == "tensor":
        return entry.entry_class == "unbatched"
    # tensordict takes lists in rows for a deeper stack, which has no names
    depth = entry.variable.ndim + len(entry.missing_axes)
    is_deeper = depth > len(entry.batch.sizes) and any(td_names(entry.batch))
    if not (entry.variable.ndim if entry.form == "value" else is_deeper):
        return False
    values = np.asarray(entry.variable.values)
    return values.dtype.kind in "SUT" or all(isinstance(item, str) for item in values.flat)


def _kept_apart(ds: xr.Dataset, entries: list[Entry]) -> dict[str, Any]:
    """The content of the entry ``_unbatched``, from which this package restores variables."""
    content = {}
    variables = [ds.variables[entry.name] for entry in entries]
    values = read_variables(variables, [entry.name for entry in entries])
    for entry, variable, array in zip(entries, variables, values, strict=True):
        attrs = {k: v.tolist() if isinstance(v, np.ndarray | np.generic) else v for k, v in variable.attrs.items()}
        # CF takes an array of single bytes for characters, and joins them
        content[entry.name] = encode_array(
            array.astype("S2") if array.dtype == "S1" else array,
            tuple(map(str, variable.dims)),
            attrs=json.loads(to_json(attrs, entry.name)),
            role="coord" if entry.name in ds.coords else "data",
            record=None if entry.torch_dtype is None else {"torch_dtype": entry.torch_dtype},
        )
    return content


def _dtype(entry: Entry) -> torch.dtype:
    found: Any = torch_dtype(entry.variable.dtype) if entry.torch_dtype is None else getattr(torch, entry.torch_dtype)
    assert isinstance(found, torch.dtype)
    return found


def _shape(entry: Entry) -> tuple[int, ...]:
    """The shape in the tensordict; an unbatched entry that is not left out is expanded."""
    return (*entry.batch.sizes, *entry.shape) if entry.entry_class == "unbatched" else entry.shape


def _without_bytes(values: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], str | None]:
    """Bytes as text, from which they come back as they are, and their dtype; anything else as it is."""
    if values.dtype.kind != "S" and not (values.size and all(isinstance(item, bytes) for item in values.flat)):
        return values, None
    text = np.empty(values.shape, object)
    for index in np.ndindex(values.shape):
        text[index] = bytes(values[index]).decode("utf-8", "surrogateescape")
    return text, values.dtype.str


def _check_utf8(entry: Entry, value: Any, target: Path) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"variable {entry.name!r} cannot be written to {target}: it holds bytes or text that are no UTF-8, which "
            f"tensordict before 0.15 does not write to a memory-mapped tensordict; install tensordict 0.15, write with "
            f"ds.td.to_zarr(path), or leave it out with exclude=[{entry.name!r}]"
        ) from None


def _non_tensor(entry: Entry, leaf: Any, target: Path) -> Any:
    """The leaf of Python objects, if it comes back: opening what tensordict pickles runs code.

    Raises
    ------
    TypeError
        For objects that are no JSON; for rows that tensordict takes for a deeper stack, which it cannot load where the
        batch has names.
    ValueError
        For bytes and text that are no UTF-8, with tensordict 0.14.
    """
    sizes = entry.batch.sizes
    value = leaf.data if entry.form == "value" else leaf.tolist()
    try:
        same = same_object(json.loads(json.dumps(value)), value)
    except (TypeError, ValueError):
        same = False
    if not same:
        raise TypeError(
            f"variable {entry.name!r} holds {value!r:.80}, and objects are written as JSON, never as pickles, which cannot "
            f"hold it exactly; convert it to numbers, strings, lists or dicts, or leave it out with exclude=[{entry.name!r}]"
        )
    if IS_0_14:
        _check_utf8(entry, value, target)
    if entry.form == "value":
        return leaf
    if 0 in sizes:  # tensordict cannot memory-map a stack without rows ("items cannot be empty")
        return NonTensorData([], batch_size=sizes)
    if len(stack_shape(value, ())) > len(sizes) and any(td_names(entry.batch)):
        raise TypeError(
            f"variable {entry.name!r} has dims {list(entry.variable.dims)}, so each row is a list of objects, and tensordict "
            f"cannot load such rows from a memory-mapped tensordict whose batch has names ({list(entry.batch.dims)}); leave "
            f"it out with exclude=[{entry.name!r}], or write with ds.td.to_zarr(path) or unbatched='keep'"
        )
    return leaf


# -- writing -----------------------------------------------------------------------------------------------------------


def _lay_out(job: _Job, folder: Path, target: Path) -> Any:
    """Make the folder: metadata, non-tensor entries, files of the right size, and the values that dask does not hold.

    Returns what writes the others; each block goes to its own place in a file, so there is nothing to lock.
    """
    job.template.memmap_like(str(folder))
    for path in folder.rglob("*.memmap"):
        # writing to the map of a file that has no blocks kills the process where the disk is full
        with path.open("r+b") as file:
            allocate(file.fileno(), 0, path.stat().st_size, str(target))
    _warn_float8(job, folder)
    for key, notes in job.notes.items():
        path = folder.joinpath(*map(file_stem, key)) / META
        # unless they are there: an entry may be called so
        path.write_text(json.dumps({**notes, **json.loads(path.read_bytes())}))
    chunked: list[tuple[Any, _Target]] = []
    for entry in job.tensors:
        *groups, last = map(file_stem, entry.key)
        place = _Target(str(folder.joinpath(*groups, f"{last}.memmap")), entry.name, _dtype(entry), _shape(entry))
        missing = entry.missing_axes if entry.entry_class == "partial" else ()
        if entry.variable.chunks is None:
            values = np.asarray(past_cache(entry.variable).values)
            place[(slice(None),) * len(place.shape)] = np.expand_dims(values, missing)
        else:
            chunked.append((_blocks(entry, missing), place))
    if not chunked:
        return None
    import dask.array

    sources, targets = map(list, zip(*chunked, strict=True))
    return dask.array.store(sources, targets, lock=False, compute=False)


def _blocks(entry: Entry, missing: tuple[int, ...]) -> Any:
    """The blocks of a variable, broadcast to the shape of the entry (which holds no value twice in memory)."""
    import dask.array

    data = as_declared(entry.variable, entry.name).data
    for axis in missing:
        data = dask.array.expand_dims(data, axis)
    return dask.array.broadcast_to(data, _shape(entry))


def _warn_float8(job: _Job, folder: Path) -> None:
    """Warn of a dtype that tensordict writes to memory maps and cannot load again (measured, 0.15.3)."""
    names = [entry.name for entry in job.tensors if str(_dtype(entry)).startswith("torch.float8")]
    try:
        if names:
            TensorDict.load_memmap(folder)
    except KeyError:
        warn(
            f"{names} are of dtypes that tensordict writes to memory-mapped tensordicts and cannot load again; "
            f"xarray_tensordict.open_persistent and engine='tensordict' read them. To load them with tensordict.load, "
            f"widen them: del ds[{names[0]!r}].encoding['torch_dtype']",
            StoredFormWarning,
        )


def _put_in_place(staged: Path, target: Path) -> None:
    """Give the folder that is whole, or the archive of it, the name of the target."""
    if target.suffix != _ARCHIVE:
        swap(staged, target)
        return
    from tensordict import pack_memmap

    with replaced(target) as archive:
        pack_memmap(staged, archive)
    remove(staged)


def _finish(staged: str, target: str, mode: str, number: int, stored: Any) -> None:
    """The last task. `number` is that of the folder, by which a second run knows that it has its name already."""
    if os.path.exists(target) and os.stat(target).st_ino == number:
        remove(Path(staged))  # the old one, which a lost worker could not remove any more
        return
    if not os.path.exists(staged):
        raise FileNotFoundError(f"{target}: {_gone(staged)}")
    _check_target(Path(target), mode)
    _put_in_place(Path(staged), Path(target))


def _gone(folder: str) -> str:
    return f"the folder {folder!r}, which to_memmap had prepared, is gone; what it returned can be computed once. Call it again"


@dataclass(frozen=True)
class _Target:
    """A file to write blocks into; it pickles, so that workers in other processes can."""

    path: str
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    def __setitem__(self, region: tuple[slice, ...], block: Any) -> None:
        if not os.path.exists(self.path):
            raise FileNotFoundError(_gone(os.path.dirname(self.path)))
        name = str(self.dtype).removeprefix("torch.")
        file = np.memmap(self.path, CODE_DTYPES.get(name, name), "r+", shape=self.shape)
        torch.from_numpy(file).view(self.dtype)[region] = tensor_from_numpy(np.asarray(block), name=self.name)
