"""Small stores that real tools write and that break readers today, as generators.

One function per case: ``case_NN_slug(folder) -> path`` writes one store or file below ``folder`` with plain libraries
(numpy, zarr, h5py, netCDF4, xarray, tensordict) and returns its path. The docstring names public reports of the
same problem and then says what is right. ``CASES`` holds them all, for parametrize.

Words used below
  ds    xr.open_dataset(path, engine="tensordict")
  td    ds.td.to_tensordict(unbatched="keep")      in memory, unbatched entries kept to be looked at
  ptd   xarray_tensordict.open_persistent(path)    lazy; by the law of two doors it equals ds.td.to_tensordict()
  dt    xr.open_datatree(path, engine="tensordict")
The rules of batch inference and of dimension names are those in docs/rules. Each case stands for its whole kind:
the zarr v2, zarr v3 and HDF5 twins of a case have the same right answer.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np


def _z(path, fmt=3):
    import zarr

    return zarr.open_group(str(path), mode="w", zarr_format=fmt)


def _put(group, name, data, *, dims=None, attrs=None, **kw):
    """Write ``data`` with zarr-python; dims go to dimension_names (v3) or _ARRAY_DIMENSIONS (v2)."""
    data = np.asarray(data)
    attrs = dict(attrs or {})
    if dims is not None:
        if group.metadata.zarr_format == 3:
            kw["dimension_names"] = dims
        else:
            attrs["_ARRAY_DIMENSIONS"] = list(dims)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arr = group.create_array(name, shape=data.shape, dtype=kw.pop("dtype", data.dtype), attributes=attrs, **kw)
        if data.size:
            arr[...] = data
    return arr


def case_01_zarr3_without_dimension_names(folder: Path) -> Path:
    """zarr-python written v3 group, no ``dimension_names`` at all.

    Source: pydata/xarray#9970, zarr-developers/zarr-python#2740, pydata/xarray#8749,
    zarr-developers/zarr-specs#348.
    Expect: no KeyError. ds.obs (6,3) float32 == arange(18)/4, ds.reward (6,) float64, ds.done (6,) bool;
    the leading axis of the three is ONE dim of size 6, obs has its own second dim of size 3.
    td.batch_size == [6], td["obs"].dtype float32, td["done"].dtype torch.bool, td[2]["obs"] == [1.5,1.75,2.0].
    """
    p = folder / "plain3.zarr"
    g = _z(p)
    _put(g, "obs", (np.arange(18, dtype="f4") / 4).reshape(6, 3))
    _put(g, "reward", np.linspace(0, 1, 6))
    _put(g, "done", np.array([0, 0, 1, 0, 0, 1], bool))
    return p


def case_02_anemoi_like_zarr2_some_dims(folder: Path) -> Path:
    """v2 store where only a few arrays carry ``_ARRAY_DIMENSIONS`` (anemoi-datasets layout).

    Source: ecmwf/anemoi-datasets#122, #334, EarthyScience/Browzarr#390.
    Expect: opens. ds.latitudes keeps dims ("values",) size 5; ds.data (4,2,1,5) float32 with made-up dims (none of them
    "values" with a size other than 5); ds.dates datetime64 (4,) equal to 2020-01-01..04 in any resolution;
    ds.attrs["variables"] == ["t","q"]. data and dates share axis 0 and hold most of the elements: td.batch_size == [4],
    td["dates"] int64 ns, latitudes, longitudes and mean unbatched and whole.
    """
    p = folder / "anemoi.zarr"
    g = _z(p, 2)
    g.attrs.update({"variables": ["t", "q"], "frequency": "24h", "ensemble_dimension": 2})
    _put(g, "data", np.arange(40, dtype="f4").reshape(4, 2, 1, 5), chunks=(1, 2, 1, 5))
    _put(g, "dates", np.array(["2020-01-01", "2020-01-02", "2020-01-03", "2020-01-04"], "M8[s]"))
    _put(g, "latitudes", np.array([-90.0, -45.0, 5.0, 45.0, 90.0]), dims=["values"])
    _put(g, "longitudes", np.linspace(0, 288, 5))
    _put(g, "mean", np.array([19.5, 20.5]))
    return p


def case_03_zarr3_null_dimension_names(folder: Path) -> Path:
    """v3 ``dimension_names`` present but with null members (legal in the spec).

    Source: zarr-developers/zarr-specs#162 (field definition), pydata/xarray PR#9669,
    zarr-developers/VirtualiZarr PR#897 (None on scalars).
    Expect: ds.a dims ("time", X) sizes (4,2), ds.b dims ("time", Y) sizes (4,3), X != Y and both str (never None);
    ds.c is 0-d. The scalar has no vote: td.batch_size == [4], names ["time"], td["c"] unbatched and equal to 7.5.
    Never "conflicting sizes for dimension None".
    """
    p = folder / "nulls.zarr"
    g = _z(p)
    _put(g, "a", np.arange(8.0).reshape(4, 2), dims=("time", None))
    _put(g, "b", np.arange(12.0).reshape(4, 3), dims=("time", None))
    _put(g, "c", np.float64(7.5))
    return p


def case_04_xarray_coords_block_batch_size(folder: Path) -> Path:
    """Ordinary xarray-written store: coordinate arrays have other leading sizes than the data.

    Source: xarray-contrib/xbatcher#84, #37; pytorch/tensordict PR#1754 (fallback inference); ecmwf/anemoi-datasets#334.
    Expect: lat and lon are spatial, so td.batch_size == [4], td.names == ["time"]; t2m, tp float32 (4,3,5) equal to the
    stored values; time int64 ns, batched; lat, lon, height unbatched (not sliced by td[0]); in ds all four are coords.
    batch_dims=["time","lat","lon"] gives [4,3,5]. Plain tensordict infers [] from the same store because lat(3), lon(5),
    height() vote. ds.td.to_zarr(new): TensorDict.from_zarr(new) has batch_size [4], names ["time"], and
    xr.open_dataset(new, engine="tensordict") is identical to ds.
    """
    import xarray as xr

    p = folder / "era.zarr"
    v = np.arange(60, dtype="f4").reshape(4, 3, 5)
    xr.Dataset(
        {"t2m": (("time", "lat", "lon"), 280 + v), "tp": (("time", "lat", "lon"), v / 100)},
        coords={
            "time": np.arange("2021-03-01", "2021-03-05", dtype="M8[D]").astype("M8[ns]"),
            "lat": [10.0, 0.0, -10.0],
            "lon": np.arange(5) * 72.0,
            "height": 2.0,
        },
    ).to_zarr(p, zarr_format=3, consolidated=False)
    return p


def case_05_equal_sizes_different_dims(folder: Path) -> Path:
    """Sizes agree by accident: time == cell == 4, so shape-based inference merges unrelated axes.

    Source: pytorch/tensordict PR#798 and PR#336 (auto / nested batch size), pydata/xarray PR#11006 (default dims clash).
    Expect: by names u=(time,cell), v=(time), cell_area=(cell): td.batch_size == [4], names ["time"], cell_area unbatched:
    td[0]["cell_area"] is the full (4,) [10,20,30,40]. Plain tensordict gives [4] and td[0]["cell_area"] == 10.
    """
    import xarray as xr

    p = folder / "square.zarr"
    xr.Dataset(
        {
            "u": (("time", "cell"), np.arange(16.0).reshape(4, 4)),
            "v": (("time",), np.arange(4.0)),
            "cell_area": (("cell",), np.array([10.0, 20.0, 30.0, 40.0])),
        }
    ).to_zarr(p, zarr_format=3, consolidated=False)
    return p


def case_06_replay_buffer_zarr(folder: Path) -> Path:
    """diffusion-policy style replay buffer: /data/* has N rows, /meta/episode_ends has E rows, v2, no dims.

    Source: krishanrana/imle_policy#1, Stanford-TML/PDP#4, huggingface/lerobot PR#16, real-stanford/diffusion_policy#37.
    Expect: dt.td.to_tensordict(): batch_size [], ["data"] [7], ["meta"] [2]; ["data","img"] uint8 (7,4,4,3) with its zeros (the
    v2 fill_value 0 of a raw array is no mask); ds of the root shows neither group (each has its own batch) and ds.td says so,
    group="data" has img/state/action with one shared leading dim, dt has /data and /meta (today one group without
    names fails the whole tree).
    """
    p = folder / "pusht.zarr"
    g = _z(p, 2)
    d, m = g.create_group("data"), g.create_group("meta")
    _put(d, "img", np.arange(7 * 48, dtype="u2").astype("u1").reshape(7, 4, 4, 3), chunks=(2, 4, 4, 3))
    _put(d, "state", np.arange(35, dtype="f4").reshape(7, 5), chunks=(2, 5))
    _put(d, "action", np.arange(14, dtype="f4").reshape(7, 2), chunks=(2, 2))
    _put(m, "episode_ends", np.array([3, 7], "i8"))
    return p


def case_07_robomimic_hdf5(folder: Path) -> Path:
    """robomimic layout: data/demo_i/{actions,obs/*} with a different length per demo, masks as byte strings.

    Source: ARISE-Initiative/robomimic#168, #238, #260.
    Expect: in dt.td.to_tensordict(): ["data","demo_0"] [3], ["data","demo_1"] [5], ["data"] []; ["data","demo_1","obs","eef"] (5,3)
    float32; mask/train reads as ["demo_0"] (str) non-tensor, not a crash; attrs survive as Python: ds("data/demo_0").attrs["num_samples"]
    == 3, json.loads(root data attr env_args)["env_name"] == "Lift". No batch dim beyond the first even though the arrays of demo_0
    are (3,3) and (3,3): the second axis is features. dt["data"].td.concat("time", index="episode"): one lazy Dataset of 8 rows with
    coords episode [0,0,0,1,1,1,1,1] (or the demo names) and step [0,1,2,0,1,2,3,4].
    """
    import h5py

    p = folder / "robomimic.hdf5"
    with h5py.File(p, "w") as f:
        data = f.create_group("data")
        data.attrs["total"] = 8
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1})
        for i, n in enumerate((3, 5)):
            demo = data.create_group(f"demo_{i}")
            demo.attrs["num_samples"] = n
            demo["actions"] = np.arange(n * 3, dtype="f8").reshape(n, 3)
            demo["dones"] = np.eye(1, n, n - 1, dtype="i8")[0]
            demo["obs/eef"] = np.arange(n * 3, dtype="f4").reshape(n, 3) + i
            demo["obs/gripper"] = np.zeros((n, 2), "f4")
        f["mask/train"] = np.array([b"demo_0"])
    return p


def case_09_d4rl_hdf5(folder: Path) -> Path:
    """D4RL-like file: flat (N, ...) arrays next to a metadata group of scalars, weights and strings.

    Source: Farama-Foundation/D4RL PR#104 (comment: scalar entries indexed like rows), RLinf/RLinf PR#1586, pytorch/rl PR#928,
    AgileRL/AgileRL#71.
    Expect: nested groups do not vote for the parent: td.batch_size == [6]; ds has four batched variables over one dim of
    size 6; "metadata/algorithm" == "SAC" as str; "metadata/policy/fc0/weight" (3,2) is unbatched: td[0]["metadata"] keeps it
    whole. terminals and timeouts are bool. batch_dims=1 is accepted.
    """
    import h5py

    p = folder / "hopper.hdf5"
    with h5py.File(p, "w") as f:
        f.create_dataset("observations", data=np.arange(12, dtype="f4").reshape(6, 2), compression="gzip")
        f.create_dataset("actions", data=np.zeros((6, 1), "f4"), compression="gzip")
        f.create_dataset("terminals", data=np.array([0, 0, 0, 0, 0, 1], bool))
        f.create_dataset("timeouts", data=np.array([0, 0, 1, 0, 0, 0], bool))
        f["metadata/algorithm"] = "SAC"
        f["metadata/iteration"] = np.int64(2000)
        f["metadata/policy/fc0/weight"] = np.arange(6, dtype="f4").reshape(3, 2)
    return p


def case_11_tensordict_h5_forgets_batch(folder: Path) -> Path:
    """``TensorDict.to_h5`` stores neither batch size nor names, so trailing dims of equal size turn into batch dims.

    Source: pytorch/tensordict PR#798, PR#356 (names), PR#289.
    Expect: every array is (3,4), so nothing says that the second axis is batch: td.batch_size == [3] (plain tensordict says
    [3,4]), batch_dims=2 gives [3,4]. A file written by ds.td.to_h5() reopens with batch_size [3], names ["time"], and dims
    ("time","feat") for "a", through both doors.
    """
    import torch
    from tensordict import TensorDict

    p = folder / "td.h5"
    td = TensorDict({"a": torch.arange(12.0).reshape(3, 4), "n": {"b": torch.ones(3, 4)}}, [3], names=["time"])
    td.to_h5(p).close()
    return p


def case_12_tensordict_zarr_names_and_nontensor(folder: Path) -> Path:
    """``TensorDict.to_zarr`` keeps batch_size/names in ``__tensordict__`` but writes no ``dimension_names``.

    Source: pytorch/tensordict PR#1754.
    Expect: ds.a dims ("time", "dim_4"), ds.b dims ("time",) bool, ds["n/c"] dims ("time", "dim_2") int16; s and cfg are coords.
    ds.attrs has no "__tensordict__". "s" and "cfg" are not uint8 variables of bytes: ds.s.item() == "hello",
    ds.cfg.item() == {"lr": 0.1}; td["s"] == "hello", td["cfg"] == {"lr": 0.1}; ds.td.to_zarr(new) and TensorDict.from_zarr(new)
    give the tensordict that was stored.
    """
    import torch
    from tensordict import NonTensorData, TensorDict

    p = folder / "td.zarr"
    TensorDict(
        {
            "a": torch.arange(12.0).reshape(3, 4),
            "b": torch.tensor([True, False, True]),
            "n": {"c": torch.ones(3, 2, dtype=torch.int16)},
            "s": NonTensorData("hello", batch_size=[3]),
            "cfg": NonTensorData({"lr": 0.1}, batch_size=[3]),
        },
        [3],
        names=["time"],
    ).to_zarr(p)
    return p


def case_13_h5py_phony_dims(folder: Path) -> Path:
    """h5py file without dimension scales, two unrelated axes of equal length.

    Source: pydata/xarray#10049, h5netcdf/h5netcdf#43, #178, fsspec/kerchunk#41.
    Expect: no warning storm, no error; x (3,3) gets two DIFFERENT dim names, y (3,) shares the first, z (5,3) a new first
    one. The naming is stable: same names whatever the order of access, and the same through group=... and datatree.
    """
    import h5py

    p = folder / "plain.h5"
    with h5py.File(p, "w") as f:
        f["x"] = np.arange(9.0).reshape(3, 3)
        f["y"] = np.arange(3)
        f["z"] = np.arange(15, dtype="f4").reshape(5, 3)
    return p


def case_15_h5py_bool_enum(folder: Path) -> Path:
    """numpy bool written by h5py is an HDF5 enum.

    Source: Unidata/netcdf-c#267, pydata/xarray#5192, #4826, #4386 (bool turns into int8 on the second write).
    Expect: ds.done.dtype bool, td["done"].dtype torch.bool, both after one and after two write/read cycles to zarr and to
    h5; flag (0-d) is True; no leftover attrs["dtype"] == "bool". In files that xarray wrote (int8 + attribute dtype="bool")
    ptd must also say torch.bool (plain tensordict reads int8 there).
    """
    import h5py

    p = folder / "bools.h5"
    with h5py.File(p, "w") as f:
        f["done"] = np.array([True, False, False, True])
        f["flag"] = np.bool_(True)
    return p


def case_17_compound_dtypes(folder: Path) -> Path:
    """Structured (compound) dataset next to a plain one.

    Source: pytroll/satpy#3052, h5netcdf/h5netcdf#49, zarr-developers/zarr-python#2134, #110.
    Expect: the plain array is readable whatever happens to the other: td["w"] (3,) float64. The record array becomes nested
    entries: td["rec","id"] int32 [7,8,9], td["rec","pos"] float32 (3,2), td.batch_size == [3]; never a V12 tensor of bytes.
    """
    import h5py

    p = folder / "compound.h5"
    rec = np.zeros(3, dtype=[("id", "<i4"), ("pos", "<f4", (2,))])
    rec["id"] = [7, 8, 9]
    rec["pos"] = np.arange(6).reshape(3, 2)
    with h5py.File(p, "w") as f:
        f["rec"] = rec
        f["w"] = np.array([0.1, 0.2, 0.3])
    return p


def case_19_vlen_uint8_jpeg(folder: Path) -> Path:
    """Ragged uint8 rows (encoded images) in a vlen dataset, labels beside it.

    Source: h5py/h5py#1787, #745, #2744, google-deepmind/torch-hdf5#66.
    Expect: td.batch_size == [3] with td["label"] int64; "jpeg" is one item per row: td[1]["jpeg"] is 4 uint8 values
    [255,216,0,1], td[2]["jpeg"] is empty; reading ds.label does not read jpeg. Never an object array passed to torch.
    """
    import h5py

    p = folder / "ragged.h5"
    rows = [[255, 216], [255, 216, 0, 1], []]
    with h5py.File(p, "w") as f:
        d = f.create_dataset("jpeg", (3,), dtype=h5py.vlen_dtype(np.uint8))
        for i, r in enumerate(rows):
            d[i] = np.array(r, "u1")
        f["label"] = np.array([4, 5, 6])
    return p


def case_20_object_references(folder: Path) -> Path:
    """A dataset of HDF5 object references and an attribute that is a reference.

    Source: pytroll/satpy#3147, h5netcdf/h5netcdf#203, #16, NCAS-CMS/pyfive#119.
    Expect: td["x"] (2,) float64 [1,2] readable; "refs" skipped with one warning or kept as the target paths
    ["/x","/y"]; the attribute palette becomes the path "/x" or is dropped with a warning naming it; opening never fails
    on an unreadable attribute, and to_zarr/to_h5 of the rest works.
    """
    import h5py

    p = folder / "refs.h5"
    with h5py.File(p, "w") as f:
        f["x"] = np.array([1.0, 2.0])
        f["y"] = np.array([3.0, 4.0])
        r = f.create_dataset("refs", (2,), dtype=h5py.ref_dtype)
        r[0], r[1] = f["x"].ref, f["y"].ref
        f["y"].attrs["palette"] = f["x"].ref
    return p


def case_21_links_and_cycles(folder: Path) -> Path:
    """Soft, hard, dangling and cyclic links.

    Source: h5py/h5py#671, #777, fsspec/kerchunk PR#463.
    Expect: keys are found by walking names, not by File.visit: root has raw, alias (hard), soft (soft) all (3,) equal;
    the dangling link "gone" is ignored or reported, not a KeyError; the cyclic group loop/self does not recurse forever
    (nested keys finite; raise or cut). keys(include_nested=True) agrees with iterating key by key.
    """
    import h5py

    p = folder / "links.h5"
    with h5py.File(p, "w") as f:
        f["raw"] = np.arange(3.0)
        f["alias"] = f["raw"]
        f["soft"] = h5py.SoftLink("/raw")
        f["gone"] = h5py.SoftLink("/nowhere")
        g = f.create_group("loop")
        g["v"] = np.arange(3)
        g["self"] = h5py.SoftLink("/loop")
    return p


def case_22_h5_empty_dataset(folder: Path) -> Path:
    """h5py.Empty dataset and attribute (null dataspace) next to data.

    Source: h5py/h5py#279, #1044, HDFGroup/h5pyd#103.
    Expect: td["v"] == [1,2]; batch_size [2] (the empty one does not vote, no "NoneType" error); "nothing" reads as None /
    is left out; attrs["note"] is None, "" or absent but does not raise.
    """
    import h5py

    p = folder / "empty.h5"
    with h5py.File(p, "w") as f:
        f["v"] = np.array([1.0, 2.0])
        f["nothing"] = h5py.Empty("f4")
        f["v"].attrs["note"] = h5py.Empty("S4")
    return p


def case_23_unlimited_dim_short_variable(folder: Path) -> Path:
    """Unlimited netCDF-4 dim where one variable was extended and the other was not.

    Source: h5netcdf/h5netcdf PR#103, #52; pydata/xarray PR#1637; NCAS-CMS/cfdm PR#114 (zero-size unlimited).
    Expect: ds.sizes["time"] == 4; ds.a == [1,2,3,4], ds.b == [9, fill, fill, fill] with fill NaN (masked), both (4,);
    td.batch_size == [4]. The HDF5 dataset of b has shape (1,): batch size from raw shapes is wrong here.
    ds.encoding["unlimited_dims"] contains "time" and to_h5 keeps it resizable.
    """
    import netCDF4

    p = folder / "unlim.nc"
    with netCDF4.Dataset(p, "w") as nc:
        nc.createDimension("time", None)
        a = nc.createVariable("a", "f8", ("time",), fill_value=-1.0)
        b = nc.createVariable("b", "f8", ("time",), fill_value=-1.0)
        a[0:4] = [1, 2, 3, 4]
        b[0:1] = [9]
    return p


def case_26_bfloat16_and_float16(folder: Path) -> Path:
    """A v3 array whose data_type is "bfloat16" (as TensorStore/JAX write it) next to float16.

    Source: zarr-developers/zarr-python#711, zarr-developers/zarr-specs#130, keras-team/keras PR#19091, markean/aimz PR#58.
    Expect: td["h"] float16 [0.5,1.5] and stays float16 through to_zarr/to_h5. "w" = bytes 0x3f80,0x4000 = bfloat16
    [1.0,2.0]: either td["w"].dtype torch.bfloat16 with those values, or an error that names "w" and bfloat16 while "h" and
    the rest of the group stay readable. ds.td.to_zarr of a torch bfloat16 leaf: same rule, never float16 bits.
    """
    p = folder / "half.zarr"
    g = _z(p)
    _put(g, "h", np.array([0.5, 1.5], "f2"), dims=("p",))
    _put(g, "w", np.array([0x3F80, 0x4000], "<u2"), dims=("p",), compressors=None)
    meta = p / "w" / "zarr.json"
    m = json.loads(meta.read_text())
    m["data_type"], m["fill_value"] = "bfloat16", 0.0
    meta.write_text(json.dumps(m))
    return p


def case_27_big_endian(folder: Path) -> Path:
    """Big-endian float/int arrays in HDF5 (h5py keeps the order).

    Source: pydata/xarray#416, cositools/cosipy#636, fideus-labs/KonfAI PR#77, Unidata/netcdf4-python#554.
    Expect: td["f"] float32 [1,2.5,-3], td["i"] int32 [1,256,65536], td["u"] uint16 [1,256,512]: native tensors, values
    swapped correctly; they are tensors (not NonTensorData) and count for batch_size [3]. On write the encoding may keep '>f4'.
    Same for zarr v2 '>f4' and v3 bytes codec endian=big.
    """
    import h5py

    p = folder / "be.h5"
    with h5py.File(p, "w") as f:
        f["f"] = np.array([1, 2.5, -3], ">f4")
        f["i"] = np.array([1, 256, 65536], ">i4")
        f["u"] = np.array([1, 256, 512], ">u2")
    return p


def case_29_packed_int16(folder: Path) -> Path:
    """CF packed data: int16 with scale_factor, add_offset and _FillValue.

    Source: pydata/xarray#2304, #9041, zarr-developers/zarr-python#2926, pydata/xarray#5263.
    Expect: ds.sst float == [10.0, 15.0, nan, -5.0] (scale .5, offset 10); td["sst"] and ptd["sst"] give the SAME decoded floats
    (NaN at index 2); with mask_and_scale=False both give int16 [0,10,-999,-30]. A plain PersistentTensorDict gives the codes.
    If a value can be written through ptd at all it is encoded (12.0 at index 0 is 4 on disk and reads 12.0 again), else the
    write is refused with a clear error. ds.td.to_zarr(new) may keep the packing only if TensorDict.from_zarr(new) does not then
    show codes: the default writes decoded floats.
    """
    p = folder / "packed.zarr"
    g = _z(p)
    _put(
        g,
        "sst",
        np.array([0, 10, -999, -30], "i2"),
        dims=("time",),
        attrs={"scale_factor": 0.5, "add_offset": 10.0, "units": "degC"},
        fill_value=-999,
    )
    g["sst"].attrs["_FillValue"] = -999
    return p


def case_31_cf_datetimes(folder: Path) -> Path:
    """CF encoded time as data variable and as coordinate; torch has no datetime dtype.

    Source: huggingface/datasets PR#8440, ray-project/ray#20947, pydata/xarray#5969, #10639 (units drift on append).
    Expect: ds.time datetime64 [2000-01-01T00:35, ..T06:35]; to_tensordict: never TypeError from torch:
    int64 nanoseconds since 1970, also through ptd: time int64 [946686900_000000000, 946708500_000000000], t_obs
    [946686900_000000000, -2**63]; NaT -> int64 min -> NaT.
    Appending later rows keeps 6-hour steps (no rounding to days).
    """
    import xarray as xr

    p = folder / "times.zarr"
    t = np.array(["2000-01-01T00:35", "2000-01-01T06:35"], "M8[ns]")
    xr.Dataset(
        {"t_obs": ("time", np.array([t[0], np.datetime64("NaT", "ns")])), "v": ("time", np.array([1.0, 2.0], "f4"))},
        coords={"time": t},
    ).to_zarr(p, zarr_format=3, consolidated=False)
    return p


def case_32_zarr_native_datetime64(folder: Path) -> Path:
    """datetime64/timedelta64 as zarr dtypes (no CF), v2, with NaT fill.

    Source: zarr-developers/zarr-python#3028, #342, pydata/xarray#2265, #7790.
    Expect: ds.when datetime64[s or ns] [2020-01-01, NaT], ds.lag timedelta64 3 s, -1 s; no units attr is needed.
    td.batch_size == [2] from x float64; when/lag follow the rule of case 31 and are not opaque NonTensorData of the whole column
    (row 0 of td must give the row's own time).
    """
    p = folder / "native.zarr"
    g = _z(p, 2)
    _put(g, "when", np.array(["2020-01-01", "NaT"], "M8[s]"), dims=["row"], fill_value=np.datetime64("NaT", "s"))
    _put(g, "lag", np.array([3, -1], "m8[s]"), dims=["row"], fill_value=np.timedelta64("NaT", "s"))
    _put(g, "x", np.array([0.5, 1.5]), dims=["row"], fill_value=float("nan"))
    return p


def case_35_string_columns(folder: Path) -> Path:
    """Variable-length and fixed-width strings, an empty one and a non-ASCII one, v3.

    Source: pydata/xarray#11466, #10077, #10487, #2724, zarr-developers/zarr-python#2347, PR#2036, zarr-extensions#35,
    fsspec/kerchunk#32 (v2 object strings: run the same case with _z(p, 2)).
    Expect: ds.name == ["a","","blåbær"] and ds.code (<U2) == ["x1","x2","x3"]; to_tensordict keeps rows: td[2]["name"] ==
    "blåbær", td.batch_size == [3] (strings vote by their dim name, not by bytes); to_zarr -> open -> to_zarr keeps the
    text (#10487 lost it) and a dtype of the same kind; to_h5 likewise.
    """
    p = folder / "strings.zarr"
    g = _z(p)
    _put(g, "name", np.array(["a", "", "blåbær"], dtype=object), dims=("row",), dtype=str)
    _put(g, "code", np.array(["x1", "x2", "x3"], "U2"), dims=("row",))
    _put(g, "v", np.array([1, 2, 3], "i4"), dims=("row",))
    return p


def case_37_netcdf_dimension_placeholder(folder: Path) -> Path:
    """Any netCDF-4 dim without coordinate variable leaves a big-endian float32 placeholder dataset in the HDF5 file.

    Source: Unidata/netcdf-c#1477, h5netcdf/h5netcdf PR#283 (dump), Unidata/netcdf4-python#945.
    Expect: "row" and "col" are dims, not variables: td has v and w (t unbatched), batch_size [3] (v(row,col), w(row)), names ["row"];
    td.to_tensordict() works (plain tensordict lists "row","col" as leaves and then dies on their byte order, so NO file written by
    netCDF4/h5netcdf/xarray with such a dim can be loaded). A real 1-D variable named like its dim ("t") is a coordinate.
    """
    import netCDF4

    p = folder / "placeholder.nc"
    with netCDF4.Dataset(p, "w") as nc:
        for d, n in (("row", 3), ("col", 2), ("t", 2)):
            nc.createDimension(d, n)
        nc.createVariable("v", "f4", ("row", "col"))[:] = np.arange(6).reshape(3, 2)
        nc.createVariable("w", "i4", ("row",))[:] = [7, 8, 9]
        nc.createVariable("t", "f8", ("t",))[:] = [0.0, 0.5]
    return p


def case_38_stale_consolidated_metadata(folder: Path) -> Path:
    """Consolidated store changed afterwards: one array resized, one added, one deleted, without re-consolidating.

    Source: pydata/xarray#5878, EOPF-Explorer/data-model#188, bcdev/nc2zarr PR#48, ai2cm/fv3net#1179.
    Expect: ds.x == [0,1,2,3] (4 rows, not 2), ds has "new", has no "old"; td.batch_size == [4]. If the engine trusts the
    consolidated copy it has to be the same for both doors and it must be refreshed by every write the package does
    (to_zarr(mode="a"), ptd["k"]=..., append). A listed but missing array gives an error naming it, not zeros.
    """
    import shutil

    import zarr

    p = folder / "stale.zarr"
    g = _z(p)
    _put(g, "x", np.array([0, 1], "i8"), dims=("t",), chunks=(2,))
    _put(g, "old", np.array([5, 6], "i8"), dims=("t",))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(g.store)
    g = zarr.open_group(str(p), mode="r+", use_consolidated=False)
    g["x"].append(np.array([2, 3], "i8"))
    _put(g, "new", np.array([1.0, 2.0, 3.0, 4.0]), dims=("t",))
    shutil.rmtree(p / "old")
    return p


def case_40_repeated_dim_name(folder: Path) -> Path:
    """Covariance matrix with the same dim twice.

    Source: openghg/fluxie#119, #160; zarr-developers/zarr-specs#162; atmtools/typhon PR#144.
    Expect: opens (with at most xarray's own UserWarning); td["cov"] is (2,3,3) and exact; the batch stops before
    the repeated dim: batch_size [2], names ["time"]; batch_dims=3 raises ValueError about the repeated "site". Round
    trip keeps dims ("time","site","site").
    """
    p = folder / "cov.zarr"
    g = _z(p)
    _put(g, "cov", np.arange(18.0).reshape(2, 3, 3), dims=("time", "site", "site"))
    _put(g, "mu", np.arange(6.0).reshape(2, 3), dims=("time", "site"))
    return p


def case_41_multiindex_source(folder: Path) -> Path:
    """Stacked table: levels stored as plain columns; set_xindex/stack in memory makes a MultiIndex.

    Source: pydata/xarray#8628, #8743, xarray-contrib/xeofs#148, pydata/xarray#11034.
    Expect: opens as plain coords; then ``ds.set_index(point=["run","step"]).td.to_zarr(...)`` either stores the levels and
    restores the MultiIndex, or raises NotImplementedError naming "point" before the target is touched (an existing
    store at the target stays whole); ``.td.to_tensordict()`` of it works: batch_size [4], no tuple/object array in torch.
    """
    import xarray as xr

    p = folder / "table.zarr"
    xr.Dataset(
        {"y": ("point", np.arange(4.0))},
        coords={"run": ("point", [0, 0, 1, 1]), "step": ("point", [0, 1, 0, 1])},
    ).to_zarr(p, zarr_format=3, consolidated=False)
    return p


def case_43_zip_store(folder: Path) -> Path:
    """A zarr ZipStore file written once, to be opened, appended to and rewritten.

    Source: pydata/xarray#10827, #2586, zarr-developers/zarr-python#3580, scverse/anndata#1971, Deltares/imod-python#1707.
    Expect: engine="tensordict" opens "x.zarr.zip" by its name; td.batch_size [3], names ["t"]. ds.td.to_zarr("y.zarr.zip") gives a zip
    (not a folder of that name) whose namelist has no duplicates; in-place change/append on a zip raises a clear error.
    """
    import zarr

    p = folder / "x.zarr.zip"
    with zarr.storage.ZipStore(str(p), mode="w") as store:
        g = zarr.create_group(store=store, attributes={"title": "zipped"})
        a = g.create_array("x", shape=(3, 2), dtype="f4", dimension_names=("t", "f"), attributes={"units": "m"})
        a[...] = np.arange(6, dtype="f4").reshape(3, 2)
    return p


def case_44_awkward_names(folder: Path) -> Path:
    """Names with spaces, dots, trailing blank, a leading "meta", unicode, and one clashing with TensorDict methods.

    Source: pydata/xarray#7943, #8029, #6853, pytorch/tensordict#1440, h5netcdf/h5netcdf#209, zarr-specs#128, epochpic/sdf-xarray#6.
    Expect: ds variables and td keys are exactly "air temp", "wind.speed", "metatime", "tail ", "størrelse", "keys", each
    [2] float64 and batch_size [2]; both doors and both formats agree. A variable named "PASS/FAIL" in memory: to_zarr/to_h5
    raise ValueError naming it, or quote it reversibly; never a silent subgroup "PASS".
    """
    p = folder / "names.zarr"
    g = _z(p)
    for i, n in enumerate(["air temp", "wind.speed", "metatime", "tail ", "størrelse", "keys"]):
        _put(g, n, np.array([i, i + 0.5]), dims=("row no.",))
    return p


def case_49_misaligned_dask_chunks(folder: Path) -> Path:
    """Source for a parallel write whose dask chunks (3,...) do not fit the zarr chunks (4,...).

    Source: dask/dask#12583, pydata/xarray#9072, #5286, #9914, #10724, openghg#1159.
    Expect: ds.chunk(t=3).td.to_zarr(out, chunks={"t":4}) with a threaded scheduler: output equals arange(24) for every run
    (rechunk/align), or ValueError before writing. ``ds.isel(t=slice(1,9)).chunk(t=4)`` with inherited encoding likewise. Region
    write region={"t": slice(2,6)} that touches half chunks from two workers: refused or locked.
    """
    p = folder / "chunks.zarr"
    g = _z(p)
    _put(g, "x", np.arange(24, dtype="i8").reshape(12, 2), dims=("t", "f"), chunks=(4, 2))
    return p


def case_51_rewrite_in_place(folder: Path) -> Path:
    """Store to be opened lazily, changed and written onto itself with mode="w".

    Source: pydata/xarray#11159, #6456, #7403, xarray-contrib/datatree#168, pydata/xarray#10487.
    Expect: ``(open(path) + 1).td.to_zarr(path, mode="w")`` raises (or writes to a temporary and swaps), and afterwards the
    store still holds [0..5] (or [1..6]): never NaN/0/fill values. Same for ds.td.to_h5 on the file it is read from
    (no truncated file, no BlockingIOError without explanation).
    """
    import xarray as xr

    p = folder / "self.zarr"
    xr.Dataset({"x": ("t", np.arange(6.0))}).to_zarr(p, zarr_format=3, consolidated=False)
    return p


def case_53_dataloader_workers(folder: Path) -> Path:
    """Small chunked store to read from DataLoader workers after the parent has already read it.

    Source: czbiohub-sf/iohub#416, pytorch/pytorch#11929, #11887, galilai-group/stable-worldmodel PR#194,
    mehta-lab/VisCy#417, ACEsuit/mace PR#117.
    Expect: parent reads one row, then DataLoader(num_workers=2) with fork, forkserver and spawn gives rows 0..31 exactly once,
    within 30 s, for zarr (dir and zip) and h5; the object pickles (size does not grow with the data) and reopens in the worker
    by path; batches arrive as plain TensorDicts.
    """
    p = folder / "loader.zarr"
    g = _z(p)
    _put(g, "x", np.arange(64, dtype="f4").reshape(32, 2), dims=("row", "f"), chunks=(4, 2))
    _put(g, "y", np.arange(32, dtype="i8"), dims=("row",), chunks=(4,))
    return p


CASES = [v for k, v in sorted(globals().items()) if k.startswith("case_")]
