"""What is in 103 public stores, as the inference sees it, and the batch that people who know them expect.

Of each array the key, shape, kind, dims, role, unlimited axes and CF attributes are kept, and nothing of its values.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xarray_tensordict.core.model import ArrayInfo, Key, RecordedBatch

# The expected answer needs to know that the matrix X of AnnData counts cells in front; see docs/rules/inference.md.
NOT_FOUND = {"singlecell/anndataR_example.h5ad"}
ANSWERS = {"climate/cmip6_msftmz_Nor.nc": [[1], [1, 3]], "pose/sleap_robot_analysis.h5": [[3], [1]]}
"""The answers of stores where several are right."""


@dataclass(frozen=True)
class Described:
    """The inputs of the inference for one store, and the batch sizes that are right."""

    name: str
    arrays: list[ArrayInfo]
    recorded: Mapping[Key, RecordedBatch]
    group_attrs: Mapping[Key, Mapping[str, Any]]
    answers: list[list[int]]


def _key(path: str) -> Key:
    return tuple(path.split("/")) if path else ()


def _array(found: dict[str, Any]) -> ArrayInfo:
    return ArrayInfo(
        _key(found["key"]),
        tuple(found["shape"]),
        found.get("kind", "numeric"),
        tuple(found.get("dims") or ()),
        found.get("role", "data"),
        frozenset(found.get("unlimited", ())),
        found.get("attrs", {}),
    )


def _store(found: dict[str, Any]) -> Described:
    name = found["store"]
    return Described(
        name,
        [_array(array) for array in found["arrays"]],
        {
            _key(path): RecordedBatch(tuple(sizes), None if names is None else tuple(names))
            for path, (sizes, names) in found["recorded"].items()
        },
        {_key(path): attrs for path, attrs in found["groups"].items()},
        ANSWERS.get(name, [found["batch"]]),
    )


_FILE = Path(__file__).parent.parent / "data" / "inference_stores.json"
STORES = [store for each in json.loads(_FILE.read_text()) if (store := _store(each)).name not in NOT_FOUND]
