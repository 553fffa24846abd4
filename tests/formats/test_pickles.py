"""A store crafted to execute code does not: nothing is unpickled without ``allow_pickle=True``, through any door."""

from __future__ import annotations

import io
import json
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tensordict
import torch
import xarray as xr
import zarr
from tensordict import NonTensorData, NonTensorStack, TensorDict

import xarray_tensordict
from memmap_samples import Step
from xarray_tensordict import open_persistent
from xarray_tensordict.core.unbatched_entry import encode_array
from xarray_tensordict_engine import TensorDictBackendEntrypoint


class Evil:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (Path.touch, (self.mark,))


Make = Callable[[Path, bytes, Evil], None]
STACK = {"__tensordict_stack__": [3]}


def zarr_entries(path: Path, payload: bytes, zarr_format: Any) -> None:
    root = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    root.attrs["__tensordict__"] = {"batch_size": [3], "version": 1}
    root.create_array("x", data=np.arange(6.0).reshape(3, 2))
    for name, attrs in {"evil": {}, "nested/evil": {}, "rows": STACK}.items():
        marked = {"__tensordict_non_tensor__": {"encoding": "pickle"}, **attrs}
        root.create_array(name, data=np.frombuffer(payload, "u1"), attributes=marked)


def zarr_codec(path: Path, payload: bytes, dtype: str, filters: Any, compressor: Any, attrs: dict[str, Any]) -> None:
    """Arrays whose codec is numcodecs' pickle, written by hand: the libraries refuse to."""
    root = zarr.open_group(path, mode="w", zarr_format=2)
    root.create_array("x", data=np.arange(6.0).reshape(3, 2))
    for name in ("evil", "_unbatched", "nested/evil"):
        root.require_group(name.rpartition("/")[0]) if "/" in name else None
        (path / name).mkdir()
        array = {"shape": [3], "chunks": [3], "dtype": dtype, "fill_value": None, "order": "C"}
        array |= {"zarr_format": 2, "filters": filters, "compressor": compressor}
        (path / name / ".zarray").write_text(json.dumps(array))
        (path / name / ".zattrs").write_text(json.dumps(attrs))
        (path / name / "0").write_bytes(payload)


PICKLE = {"id": "pickle", "protocol": 5}
JSON = {"__tensordict_non_tensor__": {"encoding": "json"}}
CODECS = {
    "zarr2 filter behind vlen-utf8": ("|O", [{"id": "vlen-utf8"}, PICKLE], None, {}),
    "zarr2 filter": ("|O", [PICKLE], None, {}),
    "zarr2 compressor": ("<f8", None, PICKLE, {}),
    "zarr2 compressor behind vlen-utf8": ("|O", [{"id": "vlen-utf8"}], PICKLE, {}),
    "zarr2 compressor of JSON": ("|u1", None, PICKLE, JSON),
    "zarr2 filter of JSON": ("|u1", [{"id": "delta", "dtype": "|u1"}, PICKLE], None, JSON),
}


def zarr3_codec(path: Path, payload: bytes, evil: Evil) -> None:
    zarr_entries(path, payload, 3)
    (path / "other" / "c").mkdir(parents=True)
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [3],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [3]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": "numcodecs.pickle", "configuration": {}}],
        "attributes": {},
    }
    (path / "other" / "zarr.json").write_text(json.dumps(document))
    (path / "other" / "c" / "0").write_bytes(payload)


def hdf5(path: Path, payload: bytes, evil: Evil) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(6.0).reshape(3, 2)
        for name, data in {"evil": np.void(payload), "nested/evil": np.frombuffer(payload, "u1")}.items():
            file.create_dataset(name, data=data)
            file[name].attrs["__tensordict_non_tensor__"] = json.dumps({"encoding": "pickle"})


def npy_of_objects(path: Path, payload: bytes, evil: Evil) -> None:
    """The entry ``_unbatched`` with a numpy file of objects, whose loading is an unpickling."""
    ds = xr.Dataset({"x": (("time", "f"), np.arange(6.0).reshape(3, 2)), "lat": ("lat", [1.0, 2.0])})
    ds.td.to_zarr(path)
    stream = io.BytesIO()
    np.save(stream, np.array([evil], dtype=object), allow_pickle=True)
    import base64

    encoded = encode_array(np.zeros(1), ("lat",), attrs={}, role="data")
    text = json.dumps({"lat": {**encoded, "data": base64.b64encode(stream.getvalue()).decode()}}).encode()
    root = zarr.open_group(path, mode="r+", use_consolidated=False)
    del root["_unbatched"]
    root.create_array("_unbatched", data=np.frombuffer(text, "u1"), attributes=JSON)
    zarr.consolidate_metadata(path) if root.metadata.zarr_format == 2 else None


def of_tensordict(evil: Evil) -> TensorDict:
    td = TensorDict({"x": torch.arange(6.0).view(3, 2), "nested": TensorDict({"y": torch.zeros(3)}, [3])}, [3])
    td["evil"] = NonTensorData(evil, batch_size=[3])
    td["nested", "evil"] = NonTensorData(evil, batch_size=[3])
    td["rows"] = NonTensorStack(*[NonTensorData(evil) for _ in range(3)])
    td["step"] = Step(torch.zeros(3), evil, batch_size=[3])
    return td


def memmap(path: Path, payload: bytes, evil: Evil) -> None:
    of_tensordict(evil).memmap(str(path))
    torch.save(evil, path / "model.pt")
    torch.save(evil, path / "nested" / "y.pt")


def memmap_renamed(path: Path, payload: bytes, evil: Evil) -> None:
    """A tensor's file replaced by what ``torch.load`` and ``np.load`` would unpickle."""
    of_tensordict(evil).memmap(str(path))
    torch.save(evil, path / "x.memmap")
    np.save(path / "nested" / "y.npy", np.array([evil], dtype=object), allow_pickle=True)
    (path / "nested" / "y.npy").rename(path / "nested" / "y.memmap")


STORES: dict[str, tuple[str, Make]] = {
    "zarr2": ("s.zarr", lambda path, payload, evil: zarr_entries(path, payload, 2)),
    "zarr3": ("s.zarr", lambda path, payload, evil: zarr_entries(path, payload, 3)),
    **{
        name: ("s.zarr", lambda path, payload, evil, codec=codec: zarr_codec(path, payload, *codec))
        for name, codec in CODECS.items()
    },
    "zarr3 codec": ("s.zarr", zarr3_codec),
    "hdf5": ("s.h5", hdf5),
    "npy": ("s.zarr", npy_of_objects),
    "memmap": ("folder", memmap),
    "memmap with other files": ("folder", memmap_renamed),
    "tdz": ("s.tdz", lambda path, payload, evil: tensordict.save(of_tensordict(evil), str(path))),
}
PICKLED = ("zarr2", "zarr3", "hdf5", "memmap", "tdz")


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "mark"


@pytest.fixture
def crafted(request: pytest.FixtureRequest, tmp_path: Path, mark: Path) -> Path:
    """A store that leaves a mark when it is unpickled."""
    name, make = STORES[request.param]
    path, evil = tmp_path / name, Evil(mark)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make(path, pickle.dumps(evil), evil)
    mark.unlink(missing_ok=True)  # tensordict loads what it has saved
    return path


def look_at_all(ds: xr.Dataset) -> None:
    repr(ds), ds._repr_html_(), repr(ds.td), ds.td._repr_html_(), ds.td.infer()
    ds.load()
    ds.td.to_tensordict(unbatched="keep")


def both(path: Path, out: Path) -> dict[str, Callable[[], Any]]:
    """Every entry point."""

    def opened() -> xr.Dataset:
        return xr.open_dataset(path, engine="tensordict")

    return {
        "guess": lambda: TensorDictBackendEntrypoint().guess_can_open(path),
        "open_dataset": lambda: look_at_all(opened()),
        "nested": lambda: look_at_all(xr.open_dataset(path, engine="tensordict", nested=True)),
        "chunks": lambda: look_at_all(xr.open_dataset(path, engine="tensordict", chunks={})),
        "group": lambda: look_at_all(xr.open_dataset(path, engine="tensordict", group="nested")),
        "open_datatree": lambda: repr(xr.open_datatree(path, engine="tensordict").load()),
        "open_groups": lambda: [ds.load() for ds in xr.open_groups(path, engine="tensordict").values()],
        "open_persistent": lambda: repr(open_persistent(path).to_tensordict()),
        "r+": lambda: open_persistent(path, mode="r+").to_tensordict(),
        "inspect": lambda: repr(xarray_tensordict.inspect(path)),
        "to_zarr": lambda: opened().td.to_zarr(out / "out.zarr"),
        "to_h5": lambda: opened().td.to_h5(out / "out.h5"),
        "to_memmap": lambda: opened().td.to_memmap(out / "out"),
        "append": lambda: opened().load().td.to_zarr(path, append_dim="batch_0"),
        "add": lambda: xr.Dataset({"new": ("lut", [1.0])}).td.to_zarr(path, mode="a"),
        "annotate": lambda: xarray_tensordict.annotate(path),
    }


REFUSALS = (ValueError, OSError, TypeError, RuntimeError, KeyError, zarr.errors.BaseZarrError)


@pytest.mark.parametrize("crafted", STORES, indirect=True)
def test_nothing_unpickles(crafted: Path, mark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # newer versions of numcodecs refuse by themselves: this one would load it
    monkeypatch.setattr("numcodecs.pickles.Pickle.decode", lambda self, buf, out=None: pickle.loads(bytes(buf)))
    out = tmp_path / "out"
    out.mkdir()
    for name, use in both(crafted, out).items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                use()
            except REFUSALS as error:
                assert "pickle" in str(error) or name not in {"open_dataset", "open_datatree", "open_persistent"}, name
        assert not mark.exists(), f"{name} has executed the code of the store"


@pytest.mark.parametrize("crafted", [*CODECS, *PICKLED], indirect=True)
def test_what_is_left_out_is_named_with_the_reason(crafted: Path, mark: Path) -> None:
    with pytest.warns(UserWarning, match=r"'evil'.*(pickle|cannot be read)"):
        ds = xr.open_dataset(crafted, engine="tensordict")
    np.testing.assert_array_equal(ds["x"], np.arange(6.0).reshape(3, 2))
    assert "evil" not in ds.variables


@pytest.mark.parametrize("crafted", PICKLED, indirect=True)
def test_the_payload_is_a_real_one(crafted: Path, mark: Path) -> None:
    """With ``allow_pickle=True`` it does leave its mark, so the tests above can fail."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        xr.open_dataset(crafted, engine="tensordict", allow_pickle=True)
    assert mark.exists()


@pytest.mark.parametrize("crafted", PICKLED, indirect=True)
def test_a_pickle_goes_into_no_store_that_is_written(crafted: Path, mark: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        xr.open_dataset(crafted, engine="tensordict").td.to_zarr(tmp_path / "out.zarr")
    written = b"".join(file.read_bytes() for file in (tmp_path / "out.zarr").rglob("*") if file.is_file())
    assert b"touch" not in written
    assert b"pickle" not in written
