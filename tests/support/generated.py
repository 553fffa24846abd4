"""Datasets that hypothesis makes: every dtype the writers know, on and off the batch, flat and nested."""

from typing import Any

import numpy as np
import xarray as xr
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

NUMBERS = ("bool", "i1", "u1", "i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", ">f4")
TIMES = ("M8[s]", "M8[ms]", "M8[us]", "M8[ns]", "m8[s]", "m8[ms]", "m8[us]", "m8[ns]")
# what int64 nanoseconds hold, in seconds, with a margin
SECONDS = 9_000_000_000
STEPS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
# HDF5 strings end at a NUL, and the surrogates are no text
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=("Cs",)), max_size=5)
NAMES = st.sampled_from(["x", "obs", "reward", "air temp", "wind.speed", "størrelse", "keys", "t2m", "value 2"])
GROUPS = st.sampled_from(["", "", "", "next/", "next/deep/", "info/"])


@st.composite
def values(draw: st.DrawFn, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """An array of some dtype."""
    kind = draw(st.sampled_from(["number", "number", "number", "time", "text", "fixed", "bytes"]))
    if kind == "number":
        # torch makes no tensor of a numpy scalar of this dtype, so tensordict cannot read its own
        known = NUMBERS if shape else tuple(dtype for dtype in NUMBERS if dtype != "u8")
        return draw(hnp.arrays(draw(st.sampled_from(known)), shape))
    if kind == "time":
        dtype = np.dtype(draw(st.sampled_from(TIMES)))
        limit = SECONDS * STEPS[np.datetime_data(dtype)[0]]
        counts = draw(hnp.arrays("int64", shape, elements=st.integers(-limit, limit)))
        missing = draw(hnp.arrays("bool", shape, elements=st.booleans()))
        return np.where(missing, np.iinfo("int64").min, counts).view(dtype).reshape(shape)
    if kind == "bytes":
        return draw(
            hnp.arrays("S3", shape, elements=st.binary(max_size=3).filter(lambda item: not item.endswith(b"\0")))
        )
    size = int(np.prod(shape))
    texts = draw(st.lists(TEXT, min_size=size, max_size=size))
    array = np.empty(size, object)
    array[:] = texts
    array = array.reshape(shape)
    return array if kind == "text" else array.astype("U5")


@st.composite
def datasets(draw: st.DrawFn) -> xr.Dataset:
    """A Dataset that leads with ``time`` (and ``env``), with coordinates, scalars and nested variables."""
    sizes = {
        "time": draw(st.integers(0, 3)),
        "env": draw(st.integers(1, 2)),
        "feature": draw(st.integers(0, 3)),
        "lat": draw(st.integers(1, 2)),
    }
    shapes = [
        ("time",),
        ("time", "feature"),
        ("time", "env"),
        ("time", "env", "feature"),
        ("lat",),
        ("env",),
        (),
        ("feature", "lat"),
        ("lat", "time"),
        ("env", "feature", "time"),
    ]
    ds = xr.Dataset({"data": (("time", "env", "lat"), np.zeros((sizes["time"], sizes["env"], sizes["lat"]), "f4"))})
    for _ in range(draw(st.integers(0, 5))):
        name = draw(GROUPS) + draw(NAMES)
        if name in ds or any(str(other).startswith(name + "/") for other in ds.variables):
            continue
        dims = draw(st.sampled_from(shapes))
        attrs = draw(st.sampled_from([{}, {"long_name": "a name"}, {"levels": [1, 2]}, {"one": [1], "text": ""}]))
        variable = xr.Variable(dims, draw(values(tuple(sizes[dim] for dim in dims))), attrs)
        ds = ds.assign_coords({name: variable}) if draw(st.booleans()) else ds.assign({name: variable})
    if draw(st.booleans()):
        ds = ds.assign_coords(lat=np.arange(sizes["lat"]) * 1.5)
    if draw(st.booleans()):
        ds = ds.assign_coords(
            time=np.datetime64("2000-01-01", draw(st.sampled_from(list(STEPS)))) + np.arange(sizes["time"])
        )
    ds.attrs = draw(st.sampled_from([{}, {"title": "a title", "n": 3, "x": [0.5, 1.5]}]))
    batch = draw(st.sampled_from([None, "time", ("time", "env"), ()]))
    ds = ds if batch is None else ds.td.set_batch_dims(batch)
    return ds.chunk(time=1) if draw(st.integers(0, 3)) == 0 else ds
