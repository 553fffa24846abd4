"""Short ways to what the HDF5 reader makes of a file, for its tests."""

from typing import Any

from xarray.core import indexing
from xarray.core.variable import Variable

from xarray_tensordict.core.model import StoredArray, StoredGroup, walk
from xarray_tensordict.formats.hdf5.read import Hdf5Store


def tree_of(source: Any, **keywords: Any) -> dict[str, StoredGroup]:
    store = Hdf5Store.open(source, **keywords)
    groups = {"/".join(group.key): group for group in walk(store)}
    store.close()
    return groups


def root_of(source: Any, **keywords: Any) -> StoredGroup:
    return tree_of(source, **keywords)[""]


def values(array: StoredArray) -> Any:
    variable = Variable([f"d{axis}" for axis in range(len(array.shape))], indexing.LazilyIndexedArray(array.data))
    found = variable.values
    assert found.shape == array.shape
    assert found.dtype == array.dtype
    return found


def left_out(group: StoredGroup) -> dict[str, str]:
    return {"/".join(member.key): member.reason for member in group.left_out}
