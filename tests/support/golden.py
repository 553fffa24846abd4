"""Write the golden stores: small stores of each format, by the versions of that day, with the values that they hold.

    python tests/support/golden.py FOLDER own
    PYTHONPATH=FOLDER_WITH_THAT_VERSION python tests/support/golden.py FOLDER tensordict

A golden store is written once, and committed. It is not written again when a format or a library changes: that it still opens
is what `tests/integration/test_golden.py` is for.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import tensordict
import torch
from tensordict import NonTensorData, TensorDict

ROWS = 3


def weather() -> Any:
    import xarray as xr

    return xr.Dataset(
        {
            "t2m": (("time", "lat"), np.arange(6, dtype="f4").reshape(ROWS, 2), {"units": "K"}),
            "next/t2m": (("time", "lat"), np.arange(6, dtype="f4").reshape(ROWS, 2) + 2),
            "mask": ("lat", [True, False]),
            "label": ("time", np.array(["a", "ø", ""], object)),
        },
        coords={"time": np.arange(ROWS).astype("M8[D]").astype("M8[s]"), "lat": [10.0, -10.0]},
        attrs={"title": "golden"},
    ).td.set_batch_dims("time")


def tensors() -> TensorDict:
    return TensorDict(
        {
            "obs": torch.arange(6.0).reshape(ROWS, 2),
            "next": {"obs": torch.arange(6.0).reshape(ROWS, 2) + 2, "done": torch.tensor([False, False, True])},
            "action": torch.tensor([3, -1, 2], dtype=torch.int16),
        },
        [ROWS],
    )


def entries(td: Any, texts: dict[str, Any]) -> dict[str, Any]:
    """The entries of a tensordict as JSON: dtype and values."""
    found = {name: {"dtype": "non-tensor", "values": value} for name, value in texts.items()}
    for key, value in td.items(include_nested=True, leaves_only=True):
        name, value = key if isinstance(key, str) else "/".join(key), getattr(value, "data", value)
        found[name] = {"dtype": str(value.dtype), "values": value.tolist()}
    return found


def write_own(folder: Path) -> dict[str, Any]:
    import xarray_tensordict

    assert xarray_tensordict
    ds = weather()
    ds.td.to_zarr(folder / "own.zarr3", zarr_format=3)
    ds.td.to_zarr(folder / "own.zarr2", zarr_format=2)
    ds.td.to_zarr(folder / "own-xarray.zarr3", layout="xarray")
    ds.td.to_h5(folder / "own.h5")
    ds.td.to_memmap(folder / "own.memmap")
    td = ds.td.to_tensordict(unbatched="keep")
    said = {
        "batch_size": list(td.batch_size),
        "names": list(td.names),
        "entries": entries(td, {"label": ["a", "ø", ""]}),
    }
    return dict.fromkeys(["own.zarr3", "own.zarr2", "own-xarray.zarr3", "own.h5", "own.memmap"], said)


def write_tensordict(folder: Path) -> dict[str, Any]:
    version, numeric = tensordict.__version__, tensors()
    whole = numeric.clone()
    whole["task"] = NonTensorData("lift", batch_size=[ROWS])
    said = {}

    def add(name: str, td: TensorDict) -> Path:
        texts = {} if td is numeric else {"task": "lift"}
        said[name] = {"batch_size": [ROWS], "names": [None], "entries": entries(numeric, texts)}
        return folder / name

    whole.memmap(add(f"tensordict-{version}.memmap", whole))
    if not hasattr(TensorDict, "to_zarr"):
        return said
    whole.save(add(f"tensordict-{version}.tdz", whole))
    whole.to_zarr(add(f"tensordict-{version}.zarr", whole))
    from tensordict import PersistentTensorDict

    PersistentTensorDict.from_dict(numeric, filename=add(f"tensordict-{version}.h5", numeric)).close()
    return said


def main(folder: Path, what: str) -> None:
    expected = folder / "expected.json"
    known = json.loads(expected.read_text()) if expected.exists() else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known |= write_own(folder) if what == "own" else write_tensordict(folder)
    text = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(said, ensure_ascii=False)}" for name, said in sorted(known.items())
    )
    expected.write_text(f"{{\n{text}\n}}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
