"""``ds.td.to_memmap``: what the tensordict of a Dataset holds, as a memory-mapped tensordict.

tensordict itself lays out the folder, with empty files; the values are then written into the files, block by block.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
import xarray as xr
from tensordict import NonTensorData, TensorDict

from ..._compat.xarray import in_memory, past_cache
from ...core.inference import BatchDims
from ...core.model import Inference, Key
from ...dataset.entries import Entry, Plan, plan_entries, td_names
from ...dataset.record import infer_dataset
from ...dataset.tensorclasses import classes_of
from ...dataset.trees import flat_view
from ...tensors.convert import Leaf, compute_together, make_leaf
from ...tensors.frames import Frame
from ...tensors.values import tensor_from_numpy, torch_dtype
from ...warnings import StoredFormWarning, warn
from ...writing.arguments import check_choice
from ...writing.disk_blocks import allocate
from ...writing.replacing import free_name, remove, replaced, swap
from ...writing.stored_form import as_declared, same_object
from .arrays import CODE_DTYPES
from .levels import CLASS_NAME, LOST_NAMES, META, file_stem, stack_shape

Mode = Literal["w", "w-"]

_ARCHIVE = ".tdz"
_BLOCK = 2**26


def to_memmap(
    ds: xr.Dataset,
    path: Any,
    batch_dims: BatchDims | None = None,
    *,
    coords: bool | Iterable[str] = True,
    unbatched: Literal["drop", "expand", "raise"] = "drop",
    exclude: Iterable[str] = (),
    mode: Mode = "w",
    compute: bool = True,
    progress: bool = False,
    inference: Inference | None = None,
) -> Any:
    """Write a Dataset as a memory-mapped tensordict; see ``Dataset.td.to_memmap`` for the parameters."""
    check_choice("mode", mode, get_args(Mode))
    if unbatched not in {"drop", "expand", "raise"}:
        raise ValueError(
            f"unbatched: expected 'drop', 'expand' or 'raise', found {unbatched!r}; tensordict memory-maps no "
            f"UnbatchedTensor, "
            f"and ds.td.to_zarr(path) keeps such variables"
        )
    if inference is None or batch_dims is not None:
        inference = infer_dataset(ds, given=batch_dims)
    plan = plan_entries(ds, inference, coords=coords, unbatched=unbatched, exclude=exclude)
    _check_plan(plan)
    target = _local(path)
    _check_target(target, mode)
    classes = classes_of(ds, [entry.name for entry in plan.entries])
    job = _Job(_template(plan, unbatched), plan.entries, classes)
    if not compute:
        return _delayed(job, target, mode)
    with _staged(target) as staged:
        _lay_out(job, staged, target)
        stored = _store_chunked(job, staged)
        if stored is not None:
            from ...writing.running import compute_all

            compute_all([stored], progress=progress)
        _put_in_place(staged, target)
    return None


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
                f"variable {entry.name!r}: {taken!r} is a word of {META} itself, and tensordict does not find an "
                f"entry of that "
                f"name again; rename it"
            )


def _local(path: Any) -> Path:
    text = os.fsdecode(path).removeprefix("file://")
    if "://" in text:
        raise ValueError(
            f"{text}: a memory-mapped tensordict is written to this machine, found a URL; ds.td.to_zarr writes to URLs"
        )
    return Path(os.path.realpath(os.path.expanduser(text)))


def _check_target(target: Path, mode: str) -> None:
    """Refuse a target that is there, if it must not be replaced or is something else than what is written."""
    if not os.path.lexists(target):
        return
    if mode == "w-":
        raise FileExistsError(
            f"{target}: there is something at that path; choose another one, or mode='w' to replace it"
        )
    if target.suffix == _ARCHIVE:
        if target.is_dir():
            raise FileExistsError(f"{target}: expected an archive to replace, found a folder; choose another path")
        return
    if not target.is_dir():
        raise FileExistsError(
            f"{target}: expected a folder to replace, found a file; choose another path, or delete it"
        )
    foreign = _foreign(target)
    if foreign is not None:
        raise FileExistsError(
            f"{target}: expected a memory-mapped tensordict to replace, or an empty folder, found one with "
            f"{foreign!r} in it, "
            f"which would be lost; choose another path, or delete the folder"
        )


def _foreign(folder: Path) -> str | None:
    """The first file below a folder that does not belong to a memory-mapped tensordict."""
    for here, folders, files in os.walk(folder):
        known = {META, "other.pickle", "pickle.pkl", "json_types.json"}
        for name in sorted(files):
            if name not in known and not name.endswith(".memmap"):
                return os.path.relpath(os.path.join(here, name), folder)
        if files and META not in files:
            return os.path.relpath(os.path.join(here, min(files)), folder)
        for name in folders:
            if os.path.islink(os.path.join(here, name)):
                return os.path.relpath(os.path.join(here, name), folder)
    return None


# -- the tensordict to be ----------------------------------------------------------------------------------------------


def _template(plan: Plan, unbatched: Any) -> TensorDict:
    """The tensordict with all that is not a tensor, and for each tensor one element that stands for all."""
    others = [entry for entry in plan.entries if entry.form != "tensor"]
    values = dict(zip((e.key for e in others), compute_together([e.variable for e in others]), strict=True))
    leaves: dict[Key, Leaf] = {}
    for entry in plan.entries:
        if entry.form == "tensor":
            leaves[entry.key] = torch.zeros((), dtype=_dtype(entry)).expand(_shape(entry))
        else:
            leaf = make_leaf(entry, values[entry.key], unbatched=unbatched)
            _check_json(entry, leaf)
            # tensordict cannot memory-map a stack without rows ("items cannot be empty")
            no_rows = entry.form == "rows" and 0 in entry.batch.sizes
            if entry.form == "rows" and not no_rows:
                _check_rows(entry, leaf)
            leaves[entry.key] = NonTensorData([], batch_size=entry.batch.sizes) if no_rows else leaf
    return Frame(plan.batches, leaves).filled(leaves)


def _dtype(entry: Entry) -> torch.dtype:
    if entry.torch_dtype is not None:
        found: Any = getattr(torch, entry.torch_dtype)
    else:
        found = torch_dtype(entry.variable.dtype)
    assert isinstance(found, torch.dtype)
    return found


def _shape(entry: Entry) -> tuple[int, ...]:
    """The shape in the tensordict; an unbatched entry that is not left out is expanded."""
    return (*entry.batch.sizes, *entry.shape) if entry.entry_class == "unbatched" else entry.shape


def _check_rows(entry: Entry, leaf: Any) -> None:
    """Raise for rows that tensordict takes for a deeper stack; where the batch has names it cannot load them at all."""
    depth = len(stack_shape(leaf.tolist(), ()))
    if depth > len(entry.batch.sizes) and any(td_names(entry.batch)):
        raise TypeError(
            f"variable {entry.name!r} has dims {list(entry.variable.dims)}, so each row is a list of objects, and tensordict "
            f"cannot load such rows from a memory-mapped tensordict whose batch has names ({list(entry.batch.dims)}); leave "
            f"it out with exclude=[{entry.name!r}], or write with ds.td.to_zarr(path)"
        )


def _check_json(entry: Entry, leaf: Any) -> None:
    """Raise for objects that tensordict would pickle: opening such a store runs code."""
    value = leaf.data if entry.form == "value" else leaf.tolist()
    try:
        same = same_object(json.loads(json.dumps(value)), value)
    except (TypeError, ValueError):
        same = False
    if not same:
        raise TypeError(
            f"variable {entry.name!r} holds {value!r:.80}, and objects are written as JSON, never as pickles, which "
            f"cannot hold "
            f"it exactly; convert it to numbers, strings, lists or dicts, or leave it out with exclude=[{entry.name!r}]"
        )


# -- writing -----------------------------------------------------------------------------------------------------------


@contextmanager
def _staged(target: Path) -> Iterator[Path]:
    """A folder beside the target to write to, which is gone afterwards."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = free_name(target, "tmp")
    try:
        yield staged
    finally:
        remove(staged)


@dataclass(frozen=True)
class _Job:
    """What is to be written: the tensordict to be, the entries it is made of, and the tensorclasses of its levels."""

    template: TensorDict
    entries: list[Entry]
    classes: dict[Key, str]

    @property
    def tensors(self) -> list[Entry]:
        """The entries that have a file."""
        return [entry for entry in self.entries if entry.form == "tensor" and 0 not in _shape(entry)]


def _lay_out(job: _Job, folder: Path, target: Path) -> None:
    """Make the folder: metadata, non-tensor entries, files of the right size, and the values that dask does not hold."""
    job.template.memmap_like(str(folder))
    for path in folder.rglob("*.memmap"):
        # writing to the map of a file that has no blocks kills the process where the disk is full
        with path.open("r+b") as file:
            allocate(file.fileno(), 0, path.stat().st_size, str(target))
    _tell_float8(job, folder)
    for key, names in _named_levels(job.template):
        _note(folder.joinpath(*map(file_stem, key)) / META, "_names", names)
    for key, name in job.classes.items():
        _note(folder.joinpath(*map(file_stem, key)) / META, CLASS_NAME, name)
    for entry in job.tensors:
        if entry.variable.chunks is None:
            _write_variable(entry, _Target.of(entry, folder))


def _tell_float8(job: _Job, folder: Path) -> None:
    """Warn of a dtype that tensordict writes to memory maps and cannot load again (measured, 0.15.3)."""
    names = [entry.name for entry in job.tensors if str(_dtype(entry)).startswith("torch.float8")]
    if not names:
        return
    try:
        TensorDict.load_memmap(folder)
    except KeyError:
        warn(
            f"{names} are of dtypes that tensordict writes to memory-mapped tensordicts and cannot load again; "
            f"xarray_tensordict.open_persistent and engine='tensordict' read them. To load them with tensordict.load, "
            f"widen them: del ds[{names[0]!r}].encoding['torch_dtype']",
            StoredFormWarning,
        )


def _named_levels(td: TensorDict, key: Key = ()) -> Iterator[tuple[Key, list[str]]]:
    """The names of the batch dims of each level that has some."""
    if any(td.names):
        yield key, td.names
    for name, value in td.items():
        if isinstance(value, TensorDict):
            yield from _named_levels(value, (*key, name))


def _note(path: Path, word: str, value: Any) -> None:
    """Add a word to a ``meta.json``, unless it is there: an entry may be called so.

    tensordict 0.14 writes no names of dims; and as tensordict keeps the name of a tensorclass, a store could only be loaded
    where the class is.
    """
    meta = json.loads(path.read_bytes())
    if word not in meta:
        path.write_text(json.dumps({**meta, word: value}))


def _store_chunked(job: _Job, folder: Path) -> Any:
    """What writes that which dask holds; each block goes to its own place in a file, so there is nothing to lock."""
    chunked = [entry for entry in job.tensors if entry.variable.chunks is not None]
    if not chunked:
        return None
    import dask.array

    targets: Any = [_Target.of(entry, folder) for entry in chunked]
    return dask.array.store([_source(entry) for entry in chunked], targets, lock=False, compute=False)


def _put_in_place(staged: Path, target: Path) -> None:
    """Give the folder that is whole, or the archive of it, the name of the target."""
    if target.suffix != _ARCHIVE:
        swap(staged, target)
        return
    from tensordict import pack_memmap

    with replaced(target) as archive:
        pack_memmap(staged, archive)


def _delayed(job: _Job, target: Path, mode: str) -> Any:
    """Lay the folder out now, and return what fills it and gives it its name.

    The folder is not laid out by a task: a scheduler that loses a worker runs tasks again, and a folder that is made
    anew would lose the blocks that are in it.
    """
    from dask.delayed import delayed

    target.parent.mkdir(parents=True, exist_ok=True)
    staged = free_name(target, "tmp")
    try:
        _lay_out(job, staged, target)
        stored = _store_chunked(job, staged)
    except BaseException:
        remove(staged)
        raise
    finish: Any = delayed(_finish, pure=False)
    return finish(str(staged), str(target), mode, os.stat(staged).st_ino, stored)


def _finish(staged: str, target: str, mode: str, number: int, stored: Any) -> None:
    """The last task. `number` is that of the folder, by which a second run knows that it has its name already."""
    if os.path.exists(target) and os.stat(target).st_ino == number:
        remove(Path(staged))  # the old one, which a lost worker could not remove any more
        return
    if not os.path.exists(staged):
        raise FileNotFoundError(f"{target}: {_gone(staged)}")
    _check_target(Path(target), mode)
    _put_in_place(Path(staged), Path(target))
    remove(Path(staged))


def _gone(folder: str) -> str:
    return f"the folder {folder!r}, which to_memmap had prepared, is gone; what it returned can be computed once. Call it again"


@dataclass(frozen=True)
class _Target:
    """A file to write blocks into; it pickles, so that workers in other processes can."""

    path: str
    name: str
    torch_dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, entry: Entry, folder: Path) -> _Target:
        *groups, last = map(file_stem, entry.key)
        path = folder.joinpath(*groups, f"{last}.memmap")
        return cls(str(path), entry.name, str(_dtype(entry)).removeprefix("torch."), _shape(entry))

    def __setitem__(self, region: tuple[slice, ...], block: Any) -> None:
        dtype = np.dtype(CODE_DTYPES.get(self.torch_dtype, self.torch_dtype))
        if not os.path.exists(self.path):
            raise FileNotFoundError(_gone(os.path.dirname(self.path)))
        file = np.memmap(self.path, dtype, "r+", shape=self.shape)
        file[region] = self._codes(np.asarray(block))

    def _codes(self, block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if self.torch_dtype == "complex32":
            halves = np.ascontiguousarray(block, "complex64")[..., None].view("float32").astype("float16")
            return halves.view("uint32")[..., 0]
        if self.torch_dtype in CODE_DTYPES:
            narrow = torch.from_numpy(np.array(block, "float32")).to(getattr(torch, self.torch_dtype))
            return narrow.view(getattr(torch, CODE_DTYPES[self.torch_dtype])).numpy()
        if block.dtype.kind in "mM":
            return tensor_from_numpy(block, name=self.name).numpy()
        return block


def _source(entry: Entry) -> Any:
    """The blocks of a variable, broadcast to the shape of the entry (which holds no value twice in memory)."""
    import dask.array

    data = as_declared(entry.variable, entry.name).data
    for axis in entry.missing_axes if entry.entry_class == "partial" else ():
        data = dask.array.expand_dims(data, axis)
    return dask.array.broadcast_to(data, _shape(entry))


def _write_variable(entry: Entry, target: _Target) -> None:
    """Write a variable that dask does not hold: as it is in memory, or some rows at a time from where it lies."""
    variable = past_cache(entry.variable)
    missing = entry.missing_axes if entry.entry_class == "partial" else ()
    everything = (slice(None),) * len(target.shape)
    step = _rows_at_once(variable)
    if not step:
        target[everything] = np.expand_dims(np.asarray(variable.values), missing)
        return
    # the axis of the entry that is the first one of the variable
    first = next(axis for axis in range(len(everything)) if axis not in missing)
    first = len(entry.batch.sizes) if entry.entry_class == "unbatched" else first
    for start in range(0, variable.shape[0], step):
        rows = slice(start, start + step)
        block = np.expand_dims(np.asarray(variable[rows].values), missing)
        target[(*everything[:first], rows, *everything[first + 1 :])] = block


def _rows_at_once(variable: xr.Variable) -> int:
    """How many rows to read at once, whole chunks of the store; 0 for all."""
    if in_memory(variable) or not variable.ndim or variable.nbytes <= _BLOCK:
        return 0
    rows = max(_BLOCK * variable.shape[0] // variable.nbytes, 1)
    encoding: Mapping[str, Any] = variable.encoding
    stored = encoding.get("shards") or encoding.get("chunks") or encoding.get("chunksizes")
    chunk = int(stored[0]) if stored and len(stored) == variable.ndim else 1
    return -(-rows // chunk) * chunk
