"""The zarr reader: one group of a zarr store as a :class:`~...core.model.StoredGroup`, v2 and v3 alike.

Variables are built by xarray's own
``ZarrStore``, so that encodings and fill values are what ``xr.open_zarr`` gives; what it refuses (arrays without
dimension names, dtypes that numpy lacks, one bad member) is prepared for it here, array by array.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import zarr
from msgspec import Struct
from xarray.backends.zarr import DIMENSION_KEY, ZarrStore
from xarray.core.indexing import LazilyIndexedArray
from zarr.codecs import BytesCodec, VLenBytesCodec, VLenUTF8Codec, ZstdCodec

from ..._compat.xarray import data_of, zarr_variable
from ..._compat.zarr import (
    IS_FASTER,
    codec_names,
    get_bytes,
    is_remote,
    join,
    on_store,
    read_documents,
    read_together,
    run,
    with_dims,
)
from ..._compat.zarr_codecs import with_checked_chunks
from ...core.metadata import (
    ARRAY_ATTR,
    BATCH_ATTR,
    INCOMPLETE_ATTR,
    LARGEST,
    MARKER_ATTRS,
    NON_TENSOR_ATTR,
    STACK_ATTR,
    axes_of_multiscales,
    checked,
    decode_non_tensor,
    dims_from_attribute,
    is_pickled,
    parse,
    parse_batch_record,
    read_array_record,
    stacked_array,
)
from ...core.model import Key, LeftOut, StoredArray, StoredGroup, cached_property, group_name
from ..array_wrappers import FieldArray, TextArray, WidenedArray
from ..base import StoreOptions
from ..identity import ChangedError
from .arrays import ChunkFiles, Guard, ZarrArray, as_raw
from .documents import CodedArray, Node, NotEnteredError
from .open import Opened, Tree, is_far, open_node, state_of, unpickles
from .remote import MERGED, AtOnce
from .transaction import incomplete_text

_DEFAULT_CODECS: dict[str, tuple[Any, ...]] = {
    "serializer": (BytesCodec(endian="little"), BytesCodec(endian=None), VLenUTF8Codec(), VLenBytesCodec()),
    "filters": ((), None),
    "compressors": ((ZstdCodec(),),),
}
"""What every writer chooses by itself."""


_CHECKED = frozenset({"blosc", "sharding_indexed"})
"""Codecs whose chunks are looked at before they are decoded, or may be."""


class _NczarrArray(Struct):
    dimrefs: list[str] | None = None
    dimension_references: list[str] | None = None


@dataclass(eq=False)
class ZarrGroupStore:
    """A zarr group, opened for reading; see :class:`~...core.model.Store`."""

    zarr_group: zarr.Group
    description: str
    options: StoreOptions
    tree: Tree
    owns: bool = False
    state: Any = None
    within: tuple[zarr.Group, str] | None = None
    single: tuple[str, zarr.Array[Any] | CodedArray] | None = None
    fields: dict[Key, StoredGroup] = field(default_factory=dict)
    _nodes: dict[Key, zarr.Group] = field(default_factory=dict)
    _listed: dict[Key, list[tuple[str, Any]]] = field(default_factory=dict)

    @classmethod
    def open(cls, source: Any, description: str, options: StoreOptions) -> ZarrGroupStore:
        """Open a path, a URL, a ``zarr.abc.store.Store`` or a ``zarr.Group``, which messages call `description`.

        Raises
        ------
        FileNotFoundError
            Where there is no store, or no group of that name in it; the groups there are get listed.
        ValueError
            Where its metadata cannot be read.
        """
        opened = open_node(source, description, options)
        if not isinstance(opened.node, zarr.Group):
            return cls._of_array(opened, opened.node, description, options)
        try:
            node = opened.tree.child(opened.node, options.group)
        except BaseException:
            if opened.owns:
                opened.node.store.close()
            raise
        parent, _, name = (options.group or "").strip("/").rpartition("/")
        within = (opened.node, parent) if name else None
        return cls(node, description, options, opened.tree, opened.owns, opened.state, within)

    @classmethod
    def _of_array(
        cls, opened: Opened, member: zarr.Array[Any] | CodedArray, description: str, options: StoreOptions
    ) -> ZarrGroupStore:
        """A store whose root is one array: it is shown as the only member of a group, named after the file."""
        array = member.array if isinstance(member, CodedArray) else member
        stand_in = zarr.create_group(zarr.storage.MemoryStore(), zarr_format=array.metadata.zarr_format)
        file_name = "" if description.startswith("<") else os.path.basename(description.rstrip("/"))
        name = (array.basename or file_name).removesuffix(".zip").removesuffix(".zarr")
        return cls(stand_in, description, options, opened.tree, opened.owns, single=(name or "data", member))

    @cached_property
    def nczarr(self) -> bool:
        """Whether netCDF-C wrote the store; asked for only where an array has no dims otherwise."""
        root = self.zarr_group
        keys = [join(root.path, name) for name in (".nczgroup", ".nczarr")]
        return root.metadata.zarr_format == 2 and any(run(root.store.exists(key)) for key in keys)

    def enclosing(self) -> ZarrGroupStore | None:
        """The group that holds the opened one, from the metadata that were read with it where those are consolidated."""
        if self.within is None:
            return None
        return ZarrGroupStore(
            self.tree.child(*self.within), self.description, self.options, self.tree, state=self.state
        )

    def close(self) -> None:
        if self.owns:
            node = self.zarr_group if self.single is None else self.single[1]
            (node.array if isinstance(node, CodedArray) else node).store.close()

    def group(self, key: Key = ()) -> StoredGroup:
        """Describe the group at `key`; no array data is read but the payloads of non-tensor entries."""
        if key in self.fields:
            return self.fields[key]
        node: Node = self.zarr_group
        if key:
            node = self._nodes.pop(key) if key in self._nodes else self.zarr_group["/".join(key)]
        if not isinstance(node, zarr.Group):
            raise KeyError(f"{self.description}: {group_name(key)!r} is an array, not a group")
        found = _GroupReader(self, node, key).read()
        if self.state is not None and state_of(self.zarr_group.store) != self.state:
            raise ChangedError(f"{self.description}: the store was changed while it was opened; open it again")
        return found

    def members(self, key: Key, node: zarr.Group) -> list[tuple[str, Any]]:
        """The members of a group, as :meth:`Tree.members` gives them.

        A request for those of a group below the root is one for all: they are opened together, level by level.
        """
        level = {} if key in self._listed else {key: node, **(self._nodes if key else {})}
        while level:
            below: dict[Key, zarr.Group] = {}
            for above, members in zip(level, self.tree.members(list(level.values())), strict=True):
                self._listed[above] = members
                below |= {(*above, name): member for name, member in members if isinstance(member, zarr.Group)}
            self._nodes |= below
            level = below if key else {}
        return self._listed.pop(key)

    def incomplete(self, node: zarr.Group, key: Key) -> str | None:
        """What is wrong with a group that is still being written; a group of a local store asks those above it, too."""
        found = incomplete_text(node) if INCOMPLETE_ATTR in node.attrs else None
        if found is not None or key or not node.path or is_remote(node.store):
            return found
        parts = node.path.split("/")
        for length in range(len(parts)):
            with suppress(FileNotFoundError, KeyError):
                above = zarr.open_group(node.store, path="/".join(parts[:length]), mode="r", use_consolidated=False)
                found = found or incomplete_text(above, "/".join(parts[length:]))
        return found


class _GroupReader:
    """Reads one group; kept apart so that each member can fail by itself."""

    def __init__(self, owner: ZarrGroupStore, node: zarr.Group, key: Key) -> None:
        self._owner = owner
        self._node = node
        self._key = key
        self._left_out: list[LeftOut] = []
        self._groups: list[str] = []
        self._arrays: dict[str, StoredArray] = {}
        self._payloads: dict[str, bytes | BaseException] = {}
        self._xarray_store = ZarrStore(node, mode="r", cache_members=False)

    def read(self) -> StoredGroup:
        attrs = dict(self._node.attrs)
        where = f"{self._owner.description}, group {group_name(self._key)!r}"
        record = attrs.get(BATCH_ATTR)
        recorded = None if record is None else parse_batch_record(record, where)
        self._multiscales = axes_of_multiscales(attrs)
        if self._owner.single is not None:
            self._add(*self._owner.single)
        members = list(self._members())
        self._read_payloads(members)
        for name, member in members:
            if isinstance(member, zarr.Group):
                self._groups.append(name)
            else:
                self._add(name, member)
        self._settle_scalars()
        shown = {
            name: value
            for name, value in attrs.items()
            if name not in MARKER_ATTRS and not name.lower().startswith("_nc")
        }
        return StoredGroup(
            self._key,
            self._arrays,
            tuple(self._groups),
            shown,
            recorded,
            left_out=self._left_out,
            tensorclass=read_array_record(attrs.get(ARRAY_ATTR), self._key, self._left_out).get("tensorclass"),
            incomplete=self._owner.incomplete(self._node, self._key),
        )

    def _read_payloads(self, members: list[tuple[str, Node]]) -> None:
        """Read the texts of all non-tensor entries at once; a pickle that may not be loaded is not even read."""
        requested = {
            name: member
            for name, member in members
            if isinstance(member, zarr.Array)
            and NON_TENSOR_ATTR in member.attrs
            and not unpickles(member)
            and (self._owner.options.allow_pickle or not is_pickled(dict(member.attrs)))
        }
        for name in [name for name, member in requested.items() if _decoded_bytes(member) > LARGEST]:
            size = _decoded_bytes(requested.pop(name))
            self._payloads[name] = ValueError(
                f"it has {size} bytes in a chunk or in all, and what is read while a store is opened may have {LARGEST >> 20} MiB"
            )
        if requested:
            self._payloads |= zip(requested, read_together(list(requested.values())), strict=True)

    def _settle_scalars(self) -> None:
        """v3 records no dims for a scalar: it counts as raw where all other arrays are."""
        others = [array.raw for array in self._arrays.values() if array.shape and not array.non_tensor]
        if others and all(others):
            for array in self._arrays.values():
                if array.shape or array.raw:
                    continue
                if array.role is None and array.dtype.kind in "OSUTVMm":
                    array.role = "coord"
                if array.dtype.kind == "S":
                    array.data = TextArray(array.data)

    def _members(self) -> Iterator[tuple[str, Node]]:
        """Each member that can be opened; those that cannot are left out by name."""
        for name, member in self._owner.members(self._key, self._node):
            if isinstance(member, BaseException):
                self._leave_out(name, member, "its metadata")
            else:
                yield name, member

    def _add(self, name: str, member: zarr.Array[Any] | CodedArray) -> None:
        try:
            self._add_checked(name, *(member if isinstance(member, CodedArray) else (member, None)))
        except Exception as error:
            self._leave_out(name, error, "it")

    def _leave_out(self, name: str, error: BaseException, what: str) -> None:
        reason = f"{what} cannot be read ({type(error).__name__}: {error})"
        reason = str(error) if isinstance(error, NotEnteredError) else reason
        self._left_out.append(LeftOut((*self._key, name), reason))

    def _add_checked(self, name: str, array: zarr.Array[Any], torch_dtype: str | None) -> None:
        attrs = dict(array.attrs)
        # stale consolidated metadata lists arrays that are gone, and zarr reads these as fill values; remote stores are not
        # asked, since that takes a request for each array
        is_listed = self._owner.tree.is_consolidated and not is_remote(self._node.store)
        if is_listed and read_documents([array.store_path], array.metadata.zarr_format)[0] is None:
            raise NotEnteredError(
                "the consolidated metadata lists it and it is not in the store; consolidate the metadata again"
            )
        if unpickles(array):
            raise NotEnteredError(
                "a codec of zarr's would unpickle it, and loading a pickle can run any code; this package never does so. "
                "If you trust the store, read it with zarr, with NUMCODECS_ALLOW_UNSAFE_PICKLE_DECODE=1 in the environment, and "
                "write it with another codec"
            )
        if NON_TENSOR_ATTR in attrs:
            self._add_non_tensor(name, attrs)
            return
        dims, named, by_xarray = self._recorded_dims(name, array, attrs)
        stored = self._through_xarray(name, array, torch_dtype, dims, raw=not named, mask=by_xarray)
        if torch_dtype is not None:
            stored.data = WidenedArray(stored.data, torch_dtype)
            stored.encoding = {"torch_dtype": torch_dtype}
            stored.attrs.pop("_FillValue", None)
        stored.record = own = read_array_record(attrs.get(ARRAY_ATTR), (*self._key, name), self._left_out)
        marked = STACK_ATTR in attrs
        if "torch_dtype" in own:
            stored.encoding["torch_dtype"] = own["torch_dtype"]
        if "role" in own:
            stored.role = own["role"]
        elif (marked or stored.raw) and stored.dtype.kind in "OSUTVMm":
            stored.role = "coord"
        if stored.raw and stored.dtype.kind == "S":
            stored.data = TextArray(stored.data)
        if stored.dtype.names:
            self._add_fields(name, stored)
        elif stored.dtype.kind == "V":
            raise NotEnteredError(f"its dtype {stored.dtype} holds raw bytes without a meaning")
        else:
            self._arrays[name] = stored

    def _where(self, name: str) -> str:
        """How messages call a member."""
        return f"{self._owner.description}, array {'/'.join((*self._key, name))!r}"

    def _add_non_tensor(self, name: str, attrs: Mapping[str, Any]) -> None:
        payload = self._payloads.get(name, b"")
        if isinstance(payload, BaseException):
            raise payload
        try:
            value, ndim = decode_non_tensor(
                payload, attrs, self._where(name), allow_pickle=self._owner.options.allow_pickle
            )
        except PermissionError as error:
            raise NotEnteredError(str(error)) from error
        own = read_array_record(attrs.get(ARRAY_ATTR), (*self._key, name), self._left_out)
        if "shape" in own:
            value, ndim = (
                stacked_array(value.item() if not ndim else value.tolist(), tuple(own["shape"])),
                len(own["shape"]),
            )
        shown = {k: v for k, v in attrs.items() if k not in MARKER_ATTRS and k != DIMENSION_KEY}
        dims: tuple[str | None, ...] = tuple(own.get("dims") or (None,) * value.ndim)
        self._arrays[name] = StoredArray(
            name,
            value,
            dims,
            shown,
            {},
            role=own.get("role", "coord"),
            non_tensor=True,
            raw=ndim > 0 and "dims" not in own,
            record=own,
        )

    def _recorded_dims(
        self, name: str, array: zarr.Array[Any], attrs: Mapping[str, Any]
    ) -> tuple[tuple[str | None, ...], bool, bool]:
        """The dims the store records, whether it records any, and whether it does so as xarray (or netCDF) writes."""
        metadata: Any = array.metadata
        found: Any = (
            getattr(metadata, "dimension_names", None) if metadata.zarr_format == 3 else attrs.get(DIMENSION_KEY)
        )
        if (
            found is None
            and metadata.zarr_format == 2
            and array.ndim
            and ("_nczarr_array" in attrs or self._owner.nczarr)
        ):
            found = self._nczarr_dims(name, attrs)
        if found is not None and len(found) == array.ndim:
            return tuple(found), any(dim is not None for dim in found) or not array.ndim, True
        found = dims_from_attribute(attrs, array.ndim) or self._multiscales.get(name)
        if found is not None and len(found) == array.ndim:
            return tuple(found), True, False
        return (None,) * array.ndim, False, False

    def _nczarr_dims(self, name: str, attrs: Mapping[str, Any]) -> list[str] | None:
        """NCZarr records fully qualified dims in ``.zarray``, newer versions in ``.zattrs``."""
        record = attrs.get("_nczarr_array")
        if record is None:
            content = run(get_bytes(self._node.store, join(self._node.path, name, ".zarray")))
            record = {} if content is None else parse(content, dict[str, Any], ".zarray").get("_NCZARR_ARRAY", {})
        found = checked(record, _NczarrArray, "_NCZARR_ARRAY")
        refs = found.dimension_references if found.dimrefs is None else found.dimrefs
        return None if refs is None else [ref.rsplit("/", 1)[-1] for ref in refs]

    def _through_xarray(
        self,
        name: str,
        array: zarr.Array[Any],
        torch_dtype: str | None,
        dims: tuple[str | None, ...],
        *,
        raw: bool,
        mask: bool,
    ) -> StoredArray:
        """Let xarray build the variable, under stand-in names where the store has none."""
        stand_ins = tuple(dim if dim is not None else f"\0{axis}" for axis, dim in enumerate(dims))
        is_v2 = array.metadata.zarr_format == 2
        asked = self._owner.options.use_zarr_fill_value_as_mask
        mask = (is_v2 and mask) if asked is None else asked
        far = is_far(array.store)
        array = on_store(array, AtOnce(array.store)) if far else array
        can_differ = IS_FASTER or not _CHECKED.isdisjoint(codec_names(array))
        shown = with_dims(with_checked_chunks(array) if can_differ else array, stand_ins)
        variable = zarr_variable(self._xarray_store, name, shown, mask=mask)
        attrs = {k: v for k, v in variable.attrs.items() if k not in MARKER_ATTRS}
        encoding = _clean_encoding(dict(variable.encoding), variable.shape, is_v2=is_v2)
        if variable.dtype.kind in "mM":
            # times of numpy's own dtypes have NaT: a fill value among the attributes makes a writer fail
            attrs.pop("_FillValue", None)
            encoding.pop("fill_value", None)
        data: Any = data_of(variable)
        straight = None
        if isinstance(data, LazilyIndexedArray):
            data = data.array  # it computes its shape anew each time it is asked
            guard = Guard.of(array, torch_dtype)
            data = ZarrArray(data, self._where(name), guard, far=far)
            straight = None if guard is None else as_raw(array, data, guard)
            data = data if straight is None else straight
        # rows of what is stored as it is are read as such; a compressed chunk is decompressed as a whole for each
        chunk_shape = _chunk_shape(array, encoding)
        plain = straight is not None and isinstance(straight.data, ChunkFiles)
        chunk_shape = None if plain and array.ndim and array.chunks[0] >= array.shape[0] else chunk_shape
        is_raw, masks = raw and array.ndim > 0, mask and asked is None
        merges = MERGED if far else None
        return StoredArray(
            name, data, dims, attrs, encoding, raw=is_raw, chunk_shape=chunk_shape, merges=merges, masks=masks
        )

    def _add_fields(self, name: str, stored: StoredArray) -> None:
        """Show a structured array as a group of its fields."""
        key = (*self._key, name)
        group = StoredGroup(key)
        for part in stored.dtype.names or ():
            data = FieldArray(stored.data, part)
            dims = stored.dims + (None,) * (len(data.shape) - len(stored.dims))
            role = "coord" if data.dtype.kind in "OSUT" else None
            chunk_shape = (
                None if stored.chunk_shape is None else (*stored.chunk_shape, *data.shape[len(stored.chunk_shape) :])
            )
            group.arrays[part] = StoredArray(
                part, data, dims, dict(stored.attrs), {}, role=role, raw=stored.raw, chunk_shape=chunk_shape
            )
        self._owner.fields[key] = group  # which stands for a structured array
        self._groups.append(name)


def _decoded_bytes(array: zarr.Array[Any]) -> int:
    """How many bytes there are at most at once, when an array is read as a whole."""
    return max(math.prod(array.shape), math.prod(array.shards or array.chunks)) * array.dtype.itemsize


def _chunk_shape(array: zarr.Array[Any], encoding: dict[str, Any]) -> tuple[int, ...] | None:
    """What is read at once: a shard, or a chunk; chunks of several sizes are left to xarray, which lists them."""
    listed = encoding.get("preferred_chunks", {})
    if any(not isinstance(size, int) for size in listed.values()):
        return None
    encoding.pop("preferred_chunks", None)
    return tuple(array.shards or array.chunks)


def _clean_encoding(encoding: dict[str, Any], shape: tuple[int, ...], *, is_v2: bool) -> dict[str, Any]:
    """Drop what would make a later plain ``to_zarr`` raise or warn: after a selection, or in the other zarr format."""
    # one chunk for the whole array, as tensordict writes it: after isel or chunk it no longer fits
    if encoding.get("chunks") == shape and encoding.get("shards") is None:
        encoding.pop("chunks", None)
    for name, defaults in _DEFAULT_CODECS.items():
        # codecs of v2 are refused by a v3 writer, which is the default; those of v3 that are no default by a v2 writer
        if encoding.get(name) in defaults or (is_v2 and name != "serializer"):
            encoding.pop(name, None)
    return encoding
