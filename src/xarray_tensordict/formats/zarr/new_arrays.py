"""New groups and arrays of a zarr store: from a :class:`~...writing.plan.WritePlan` to Datasets that xarray writes as they are.

Nested names never reach xarray, which writes them as nested arrays that it cannot read again.

The default chunks of an array are rows along the batch, as training reads them: the other dims are whole (or
as dask has cut them, since putting them together would hold all of the batch in memory); along the batch a chunk holds about
:data:`CHUNK_BYTES`, also where there are no rows yet. Where dask holds the values, its blocks are cut evenly, so that each is
written by itself. What the caller asks for is kept, also where it is more than there is: a store that is appended to keeps the
chunks of its first write.

Where the constants come from: Zarr's guide advises chunks of at least 1 MB (zarr.readthedocs.io, "Optimizing
performance"). Measured with rows of 16 KiB and zstd on a local disk, chunks of 0.25, 1, 4, 16 and 64 MiB: one random row
takes 3, 3, 12, 25 and 310 ms; batches of 512 consecutive rows come at 190, 730, 340, 330 and 20 MB/s.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
import zarr
from zarr.abc.codec import Codec
from zarr.storage import MemoryStore

from ..._compat.xarray import data_of, dataset_of, past_cache
from ..._compat.zarr import documents_of, is_transactional, join, on_store
from ...core.blocks import Bytes, merged_chunks, row_blocks, rows_in
from ...core.metadata import ARRAY_ATTR, NON_TENSOR_ATTR, STACK_ATTR, UNBATCHED_NAME, parse, parse_array_record
from ...core.model import Key
from ...core.values import jsonable, to_json
from ...writing.plan import GroupPlan, WriteOptions, WritePlan, unbatched_object
from ...writing.stored_form import Holds, Place, Stored, storage_chunks, store_form, with_values
from ...writing.values import contiguous
from .open import unpickles

if TYPE_CHECKING:
    from .update import There

HOLDS = Holds(objects=True)
CHUNK_BYTES = 1 << 20
"""The size of a chunk before compression."""
ROW_BYTES = 64 << 20
"""A row larger than this is cut, too: codecs take no more than 2 GiB."""
_TEXT_BYTES = 32  # what a string is taken to be long


@dataclass(frozen=True, kw_only=True)
class ZarrOptions(WriteOptions):
    """The options for a zarr store and its arrays; see ``Dataset.td.to_zarr``."""

    region: Any = None
    shards: Mapping[str, int] = field(default_factory=dict)
    compressors: Any = None
    zarr_format: int | None = None
    consolidated: bool | None = None


@dataclass(frozen=True)
class NewGroup:
    """One group as a Dataset, with the encoding that the caller asks for; checked."""

    ds: xr.Dataset
    encoding: dict[str, dict[str, Any]]
    batch_record: Mapping[str, Any] | None


def new_groups(plan: WritePlan, options: ZarrOptions) -> dict[Key, NewGroup]:
    """The groups of a plan; the entry ``_unbatched`` is in the root.

    Raises
    ------
    ValueError
        For shards that do not hold whole chunks.
    TypeError
        For attributes that JSON does not hold.
    """
    _check_attrs(plan)
    found = {}
    for key, group in plan.groups.items():
        ds = _dataset_of(plan, key, options)
        found[key] = NewGroup(ds, _explicit_encoding(ds, group, options), group.batch_record)
    return found


def _explicit_encoding(ds: xr.Dataset, group: GroupPlan, options: ZarrOptions) -> dict[str, dict[str, Any]]:
    """What the caller asks for by variable, over the encoding that was chosen."""
    found: dict[str, dict[str, Any]] = {}
    for local in group.stored:
        asked = options.encoding.get(group.node.names[local])
        if asked is None or local not in ds.variables:
            continue
        merged = {**ds.variables[local].encoding, **asked}
        shards, chunks = merged.get("shards"), merged.get("chunks")
        if shards is not None and not _fits_shards(chunks, shards):
            if asked.get("shards") is not None and asked.get("chunks") is not None:
                raise ValueError(
                    f"encoding: the shards {shards} of {group.node.names[local]!r} do not hold whole chunks, which are "
                    f"{chunks}; choose shards that are multiples of the chunks"
                )
            # one of both was asked for, and the other chosen here
            merged.pop("shards" if asked.get("shards") is None else "chunks")
            if "chunks" not in merged:
                merged["chunks"] = shards
        found[local] = merged
    return found


def _check_attrs(plan: WritePlan) -> None:
    for key, group in plan.groups.items():
        owners = {f"group {'/' + '/'.join(key)!r}": group.attrs or {}}
        owners |= {f"variable {group.node.names[name]!r}": v.attrs for name, v in group.node.variables.items()}
        for owner, attrs in owners.items():
            for name, value in attrs.items():
                try:
                    json.dumps(jsonable(value))
                except (TypeError, ValueError) as error:
                    raise TypeError(
                        f"attribute {name!r} of {owner} is {value!r:.60}, which JSON does not hold ({error}), and zarr keeps "
                        f"attributes as JSON; convert it to a number, a string or a list, or delete it"
                    ) from error


def _dataset_of(plan: WritePlan, key: Key, options: ZarrOptions) -> xr.Dataset:
    """One group as a Dataset whose variables xarray writes as they are, markers among their attributes."""
    group = plan.groups[key]
    sizes = tuple(group.batch_record["batch_size"]) if group.batch_record is not None else ()
    variables = {name: _variable(name, stored, plan, group, sizes, options) for name, stored in group.stored.items()}
    if not key and plan.unbatched:
        taken = {str(dim) for variable in variables.values() for dim in variable.dims}
        text = to_json(unbatched_object(plan), UNBATCHED_NAME)
        variables[UNBATCHED_NAME] = json_variable(UNBATCHED_NAME, text, {}, taken)
    # some coordinates are marked at the array itself, since CF cannot name them
    of_cf = {
        name
        for name, each in group.stored.items()
        if each.role == "coord" and each.record.get("role") != "coord" and each.form != "json"
    }
    return dataset_of(variables, of_cf, group.attrs or {})


def _variable(
    name: str, stored: Stored, plan: WritePlan, group: GroupPlan, sizes: tuple[int, ...], options: ZarrOptions
) -> xr.Variable:
    if stored.form == "json":
        attrs = {**stored.variable.attrs, **json_markers(stored, sizes)}
        taken = {str(dim) for other in group.node.variables.values() for dim in other.dims}
        return json_variable(name, to_json(stored.payload, name), attrs, taken)
    attrs = dict(stored.variable.attrs)
    if stored.stack:
        attrs[STACK_ATTR] = list(sizes)
    if stored.record:
        attrs[ARRAY_ATTR] = dict(stored.record)
    variable = xr.Variable(stored.variable.dims, data_of(past_cache(contiguous(stored.variable))), attrs, fastpath=True)
    cut = _encoding_of(group.node.names[name], stored.variable, group.batch_dims, options)
    variable.encoding = {**cut, **stored.encoding}
    if plan.layout == "tensordict" and options.zarr_format == 3 and "_FillValue" not in attrs:
        # xarray would add the attribute _FillValue = NaN, for nothing
        variable.encoding["_FillValue"] = None
    return variable


def json_markers(stored: Stored, sizes: tuple[int, ...]) -> dict[str, Any]:
    """The attributes of the bytes of a JSON text: tensordict's own, and the dims of what it holds."""
    record = dict(stored.record)
    if stored.variable.ndim:
        record["dims"] = [str(dim) for dim in stored.variable.dims]
    if stored.variable.ndim != (len(sizes) if stored.stack else 0):
        record["shape"] = list(stored.variable.shape)
    markers: dict[str, Any] = {NON_TENSOR_ATTR: {"encoding": "json"}}
    if stored.stack:
        markers[STACK_ATTR] = list(sizes)
    if record:
        markers[ARRAY_ATTR] = record
    return markers


def json_variable(name: str, text: str, attrs: Mapping[str, Any], taken: set[str]) -> xr.Variable:
    """A text as tensordict stores it: its bytes, under a dim of its own so that plain xarray opens the store."""
    dim = f"{name}_json"
    while dim in taken:
        dim += "_"
    values = np.frombuffer(text.encode("utf-8"), dtype="uint8")
    marked = {NON_TENSOR_ATTR: {"encoding": "json"}, **attrs}
    # no coordinate has to do with the bytes of a text
    return xr.Variable((dim,), values, marked, {"coordinates": None, "_FillValue": None})


# -- chunks and codecs -------------------------------------------------------------------------------------------------


def _encoding_of(name: str, variable: xr.Variable, batch_dims: Collection[str], options: ZarrOptions) -> dict[str, Any]:
    """How a new array is cut and compressed: as the caller asks, then as still fits of the variable's own encoding."""
    encoding: dict[str, Any] = {}
    own, dims = variable.encoding, [str(dim) for dim in variable.dims]
    if variable.ndim:
        inherited = None if set(dims) & set(options.chunks) else storage_chunks(variable)
        if inherited is not None and own.get("chunks") is None:
            # those of HDF5 are often tiny, and each would be a file
            inherited = merged_chunks(inherited, variable.shape, max(variable.dtype.itemsize, 1), CHUNK_BYTES)
        chunks = inherited or _dividing(default_chunks(variable, batch_dims, options.chunks), variable, options)
        encoding["chunks"] = chunks
        if set(dims) & set(options.shards):
            encoding["shards"] = _shards(name, variable, options.shards, chunks)
        elif inherited is not None and options.zarr_format == 3 and _fits_shards(chunks, own.get("shards")):
            encoding["shards"] = own["shards"]
    if options.compressors is not None:
        encoding["compressors"] = options.compressors
    elif isinstance(own.get("compressors"), tuple):  # v3 refuses those of v2, and the reverse
        is_v3 = all(isinstance(codec, Codec) for codec in own["compressors"])
        if is_v3 == (options.zarr_format == 3):
            encoding["compressors"] = own["compressors"]
    return encoding


def _dividing(chunks: tuple[int, ...], variable: xr.Variable, options: ZarrOptions) -> tuple[int, ...]:
    """Default chunks, such that given shards hold whole ones."""
    found = list(chunks)
    for axis, dim in enumerate(map(str, variable.dims)):
        shard, asked = options.shards.get(dim, -1), options.chunks.get(dim)
        if shard == -1 or not (asked is None or isinstance(asked, Bytes)):
            continue
        if isinstance(shard, Bytes):
            found[axis] = min(chunks[axis], rows_in(shard, variable.shape, axis, _itemsize(variable)))
        else:
            found[axis] = next(part for part in range(min(chunks[axis], shard), 0, -1) if shard % part == 0)
    return tuple(found)


def _fits_shards(chunks: Any, shards: Any) -> bool:
    if not isinstance(shards, tuple | list) or not isinstance(chunks, tuple | list) or len(shards) != len(chunks):
        return False
    return all(shard % chunk == 0 for shard, chunk in zip(shards, chunks, strict=True))


def _shards(name: str, variable: xr.Variable, shards: Mapping[str, int], chunks: tuple[int, ...]) -> tuple[int, ...]:
    """Shards by dim; dims that are not named get one that covers the dim (a whole number of chunks)."""
    found = []
    for dim, chunk, full in zip(variable.dims, chunks, variable.shape, strict=True):
        whole = -(-max(full, 1) // chunk) * chunk
        size = -1 if isinstance(shards.get(str(dim)), Bytes) else shards.get(str(dim), -1)
        if size != -1 and size % chunk:
            raise ValueError(
                f"shards: {size} along {dim!r} is no multiple of the chunk size {chunk} of {name!r}; choose shards "
                f"that hold whole chunks"
            )
        found.append(whole if size == -1 else size)
    for axis, (dim, chunk, full) in enumerate(zip(variable.dims, chunks, variable.shape, strict=True)):
        nbytes = shards.get(str(dim))
        if isinstance(nbytes, Bytes):  # as many whole chunks as fit, and no more than there are
            most = max(rows_in(nbytes, found, axis, _itemsize(variable)) // chunk, 1) * chunk
            found[axis] = min(most, -(-full // chunk) * chunk) if full else most
    return tuple(found)


def _itemsize(variable: xr.Variable) -> int:
    return variable.dtype.itemsize if variable.dtype.kind not in "OT" else _TEXT_BYTES


def default_chunks(
    variable: xr.Variable, batch_dims: Collection[str], fixed: Mapping[str, int] | None = None
) -> tuple[int, ...]:
    """The chunks of a new array.

    Parameters
    ----------
    variable
        Its values.
    batch_dims
        The dims of the batch; of a variable without any the first dim counts as such.
    fixed
        Sizes that the caller asks for, which may be larger than the dim; -1 is the whole dim. What is asked for in bytes takes
        the place of `CHUNK_BYTES`, and the dim that of one of the batch.

    Examples
    --------
    >>> import numpy as np
    >>> default_chunks(xr.Variable(("time", "y", "x"), np.zeros((1000, 64, 64), "f4")), ["time"])
    (64, 64, 64)
    """
    dims = [str(dim) for dim in variable.dims]
    asked = {dim: size for dim, size in (fixed or {}).items() if dim in dims}
    fixed = {dim: size for dim, size in asked.items() if not isinstance(size, Bytes)}
    budgets = {dim: size for dim, size in asked.items() if isinstance(size, Bytes)}
    chunk_bytes = max(budgets.values(), default=CHUNK_BYTES)
    sizes = [max(1, size) for size in variable.shape]
    blocks = [max(1, *parts) for parts in variable.chunks] if variable.chunks is not None else list(sizes)
    itemsize = _itemsize(variable)
    rows = [axis for axis, dim in enumerate(dims) if dim in batch_dims or dim in budgets] or [0][: len(dims)]
    features = [axis for axis in range(len(dims)) if axis not in rows]
    found = [
        size if fixed.get(dim) == -1 else fixed.get(dim, min(block, size))
        for dim, size, block in zip(dims, sizes, blocks, strict=True)
    ]
    free = [axis for axis in features if dims[axis] not in fixed]
    if itemsize * math.prod(found[axis] for axis in features) > ROW_BYTES and free:
        others = itemsize * math.prod(found[axis] for axis in features if axis not in free)
        cut = row_blocks([found[axis] for axis in free], others, ROW_BYTES)
        for axis, size in zip(free, cut, strict=True):
            found[axis] = size
    inner = itemsize * math.prod(found[axis] for axis in features)
    for position, axis in enumerate(rows):
        if dims[axis] in fixed:
            continue
        behind = inner * math.prod(found[later] for later in rows[position + 1 :])
        in_front = math.prod(found[earlier] for earlier in rows[:position])
        most = max(1, chunk_bytes // (behind * in_front))
        if not variable.shape[axis]:  # rows come with an append
            found[axis] = most
        elif variable.chunks is None:
            found[axis] = min(most, sizes[axis])
        else:  # the largest part that cuts a block evenly, unless that is far smaller
            block = min(blocks[axis], sizes[axis])
            even = (part for part in range(min(block, most), most // 2, -1) if block % part == 0)
            whole = min(most // block * block, sizes[axis]) if dims[axis] in budgets else block
            found[axis] = whole if block <= most else next(even, most)
    return tuple(found)


# -- texts: rows of Python objects, and the entry _unbatched ------------------------------------------------------------
#
# A new text goes into a chunk that the document does not name: the key of the chunk is spelled in another way each time. So
# readers see the old text until the document changes, and a write that dies leaves it.

_LARGEST_CHUNK = 1 << 30
"""Codecs refuse more than 2 GiB."""


def stage_texts(texts: Mapping[Key, xr.Variable], added: Mapping[str, Any], there: There) -> None:
    """Stage new values of variables that are kept as JSON: rows of objects, and parts of the entry ``_unbatched``.

    Parameters
    ----------
    added
        New parts of the entry ``_unbatched``, as they are stored.
    """
    rows = {key: variable for key, variable in texts.items() if "/".join(key) in there.arrays}
    for key, variable in rows.items():
        attrs = _attrs_of(there, "/".join(key))
        text, markers = _rows_text(key, variable, attrs, there)
        _stage(there, "/".join(key), text, {**attrs, **markers})
    if not added and len(rows) == len(texts):
        return
    content = _unbatched_content(there)
    for key, variable in texts.items():
        path = "/".join(key)
        if key in rows:
            continue
        if path not in content:
            raise ValueError(
                f"{there.where}: {path!r} has a dtype or a codec that cannot be written to; write a new store"
            )
        content[path] = with_values(path, content[path], np.asarray(variable.values))
    attrs = _attrs_of(there, UNBATCHED_NAME) or {NON_TENSOR_ATTR: {"encoding": "json"}}
    _stage(there, UNBATCHED_NAME, to_json({**content, **added}, UNBATCHED_NAME), attrs)


def _rows_text(key: Key, variable: xr.Variable, attrs: dict[str, Any], there: There) -> tuple[str, dict[str, Any]]:
    batch = there.batches[key[:-1]]
    name = "/".join(key)
    held = variable.copy(data=variable.values.astype(object))
    stored = store_form(held, Place(name, "tensordict", HOLDS, "batched", tuple(map(str, batch.dims))))
    stored.record = {k: v for k, v in parse_array_record(attrs.get(ARRAY_ATTR), name).items() if k == "role"}
    if stored.form != "json":
        stored.payload = held.values.tolist()
    return to_json(stored.payload, name), json_markers(stored, tuple(variable.shape[: len(batch.sizes)]))


def _attrs_of(there: There, path: str) -> dict[str, Any]:
    array = there.arrays.get(path)
    return {} if array is None else {name: v for name, v in array.attrs.items() if name != "_ARRAY_DIMENSIONS"}


def _unbatched_content(there: There) -> dict[str, Any]:
    array = there.arrays.get(UNBATCHED_NAME)
    if array is None:
        return {}
    if unpickles(array):
        raise PermissionError(
            f"{there.where}: a codec of the entry {UNBATCHED_NAME!r} would unpickle it, which can run any code; write the "
            f"store again, with mode='w'"
        )
    return parse(np.asarray(array[...]).tobytes(), dict[str, Any], f"{there.where}, entry {UNBATCHED_NAME!r}")


def _stage(there: There, path: str, text: str, attrs: Mapping[str, Any]) -> None:
    """Stage the document of the array of a text, and note its values."""
    change = there.change
    key, is_v3 = join(change.path, path), change.zarr_format == 3
    old = change.staged.document(join(key, "zarr.json" if is_v3 else ".zarray"))
    if is_transactional(change.staged.inner):
        old = None  # such a store keeps the old text itself, and has one spelling of keys
    other = old is not None and (old["chunk_key_encoding"]["name"] == "default" if is_v3 else len(old["shape"]) == 1)
    variable = json_variable(path.rpartition("/")[2], text, attrs, set())
    dim = str(variable.dims[0])
    shape, dims = ((variable.size,), [dim]) if is_v3 or not other else ((1, variable.size), [f"{dim}_text", dim])
    encoding: Any = {"name": "v2" if other else "default", "separator": "." if other else "/"}
    names: Any = dims
    version: Any = change.zarr_format
    array = zarr.create_array(
        MemoryStore(),
        name=key,
        zarr_format=version,
        shape=shape,
        chunks=tuple(max(1, min(size, _LARGEST_CHUNK)) for size in shape),
        dtype="uint8",
        chunk_key_encoding=encoding if is_v3 else None,
        dimension_names=names if is_v3 else None,
        attributes=dict(variable.attrs) if is_v3 else {**variable.attrs, "_ARRAY_DIMENSIONS": dims},
    )
    metadata: Any = array.metadata
    for name, document in documents_of(array).items():
        change.staged.put(join(key, name), document)
    whole = tuple(slice(0, size) for size in shape)
    grid = (-(-size // chunk) for size, chunk in zip(shape, array.chunks, strict=True))
    change.texts += [join(key, metadata.encode_chunk_key(place)) for place in np.ndindex(*grid)]
    change.blocks.append((variable.values.reshape(shape), on_store(array, change.staged.inner), whole))
