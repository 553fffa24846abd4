"""The same zarr store or HDF5 file as an xarray Dataset and as a PersistentTensorDict.

``xr.open_dataset(store, engine="tensordict")`` opens a store, ``ds.td`` shows its batch and converts it.
Importing the package registers ``ds.td``; torch and tensordict are imported when they are first needed.

- ``ds.td``, ``dt.td``: the batch of a Dataset or DataTree and why, ``to_tensordict``, ``to_zarr``, ``to_h5``, ``to_memmap``
- :func:`open_persistent`: a lazy ``PersistentTensorDict`` over any store the engine opens
- :func:`to_dataset`, :func:`to_datatree`: from a tensordict to labelled arrays
- :func:`inspect`: show what a store is, its batch and why
- :func:`annotate`: add dimension names and the batch to a store that exists
- :func:`infer_batch`, :class:`ArrayInfo`: the inference by itself
- :class:`LeftOutWarning` and others: the kinds of warnings, for filters
- :mod:`~xarray_tensordict.testing`: ``assert_same_tensordict``
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import accessor as _accessor  # noqa: F401 - registers ds.td and dt.td
from .annotate import (
    annotate,  # at once: a submodule of the name of its function would take its place when it is imported later
)
from .warnings import (
    IncompleteStoreWarning,
    InferredBatchWarning,
    LeftOutWarning,
    MissingValuesWarning,
    SlowReadWarning,
    StoredFormWarning,
)

if TYPE_CHECKING:
    from . import testing
    from .core.inference import infer_batch
    from .core.model import ArrayInfo
    from .lazy.persistent import open_persistent
    from .show.inspection import inspect
    from .tensors.to_dataset import to_dataset, to_datatree

__all__ = [
    "ArrayInfo",
    "IncompleteStoreWarning",
    "InferredBatchWarning",
    "LeftOutWarning",
    "MissingValuesWarning",
    "SlowReadWarning",
    "StoredFormWarning",
    "annotate",
    "infer_batch",
    "inspect",
    "open_persistent",
    "testing",
    "to_dataset",
    "to_datatree",
]

_WHERE = {
    "ArrayInfo": "core.model",
    "infer_batch": "core.inference",
    "inspect": "show.inspection",
    "open_persistent": "lazy.persistent",
    "to_dataset": "tensors.to_dataset",
    "to_datatree": "tensors.to_dataset",
}


def __getattr__(name: str) -> Any:
    if name == "testing":
        return importlib.import_module(".testing", __name__)
    if name in _WHERE:
        # a submodule of the same name replaces the attribute when it is imported: put the function back
        value = getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
