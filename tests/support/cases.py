"""Small stores that real tools write and that break readers today, as generators.

One function per case: ``case_NN_slug(folder) -> path`` writes one store or file below ``folder`` with plain libraries
(numpy, zarr, h5py, netCDF4, xarray, tensordict) and returns its path. The docstring names public reports of the
same problem; what is right is said by the table in ``tests/integration/test_cases.py``, or here. ``CASES`` holds them all.
What :mod:`twins` writes in other formats, too, it writes here.

Words used below
  ds    xr.open_dataset(path, engine="tensordict")
  td    ds.td.to_tensordict(unbatched="keep")      in memory, unbatched entries kept to be looked at
  ptd   xarray_tensordict.open_persistent(path)    lazy; by the law that both libraries agree it equals ds.td.to_tensordict()
  dt    xr.open_datatree(path, engine="tensordict")
The rules of batch inference and of dimension names are those in docs/rules. Each case stands for its whole kind:
the zarr v2, zarr v3 and HDF5 twins of a case have the same right answer.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np

import twins


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
    """
    return twins.write_zarr(folder, twins.raw_rows(), {}, zarr_format=3)


def case_02_anemoi_like_zarr2_some_dims(folder: Path) -> Path:
    """v2 store where only a few arrays carry ``_ARRAY_DIMENSIONS`` (anemoi-datasets layout).

    Source: ecmwf/anemoi-datasets#122, #334, EarthyScience/Browzarr#390.
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
    """
    return twins.write_zarr(folder, twins.null_names(), {}, zarr_format=3)


def case_04_xarray_coords_block_batch_size(folder: Path) -> Path:
    """Ordinary xarray-written store: coordinate arrays have other leading sizes than the data.

    Source: xarray-contrib/xbatcher#84, #37; pytorch/tensordict PR#1754 (fallback inference); ecmwf/anemoi-datasets#334.
    """
    return twins.write_dataset(folder, twins.weather, "zarr3")


def case_05_equal_sizes_different_dims(folder: Path) -> Path:
    """Sizes agree by accident: time == cell == 4, so shape-based inference merges unrelated axes.

    Source: pytorch/tensordict PR#798 and PR#336 (auto / nested batch size), pydata/xarray PR#11006 (default dims clash).
    """
    return twins.write_dataset(folder, twins.square, "zarr3")


def case_06_replay_buffer_zarr(folder: Path) -> Path:
    """diffusion-policy style replay buffer: /data/* has N rows, /meta/episode_ends has E rows, v2, no dims.

    Source: krishanrana/imle_policy#1, Stanford-TML/PDP#4, huggingface/lerobot PR#16, real-stanford/diffusion_policy#37.
    Expect: dt.td.to_tensordict(): batch_size [], ["data"] [7], ["meta"] [2]; ["data","img"] uint8 (7,4,4,3) with its zeros (the
    v2 fill_value 0 of a raw array is no mask); ds of the root shows neither group (each has its own batch) and ds.td says so,
    group="data" has img/state/action with one shared leading dim, dt has /data and /meta (today one group without
    names fails the whole tree).
    """
    return twins.write_zarr(folder, twins.replay_buffer(), {}, zarr_format=2)


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
    return twins.write_hdf5(folder, twins.phony(), {})


def case_15_h5py_bool_enum(folder: Path) -> Path:
    """numpy bool written by h5py is an HDF5 enum.

    Source: Unidata/netcdf-c#267, pydata/xarray#5192, #4826, #4386 (bool turns into int8 on the second write).
    """
    return twins.write_hdf5(folder, twins.bools(), {})


def case_17_compound_dtypes(folder: Path) -> Path:
    """Structured (compound) dataset next to a plain one.

    Source: pytroll/satpy#3052, h5netcdf/h5netcdf#49, zarr-developers/zarr-python#2134, #110.
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
    """
    return twins.write_hdf5(folder, twins.big_endian(), {})


def case_29_packed_int16(folder: Path) -> Path:
    """CF packed data: int16 with scale_factor, add_offset and _FillValue.

    Source: pydata/xarray#2304, #9041, zarr-developers/zarr-python#2926, pydata/xarray#5263.
    """
    return twins.write_zarr(folder, twins.packed_with_attribute(), {}, zarr_format=3)


def case_31_cf_datetimes(folder: Path) -> Path:
    """CF encoded time as data variable and as coordinate; torch has no datetime dtype.

    Source: huggingface/datasets PR#8440, ray-project/ray#20947, pydata/xarray#5969, #10639 (units drift on append).
    """
    return twins.write_dataset(folder, twins.times, "zarr3")


def case_32_zarr_native_datetime64(folder: Path) -> Path:
    """datetime64/timedelta64 as zarr dtypes (no CF), v2, with NaT fill.

    Source: zarr-developers/zarr-python#3028, #342, pydata/xarray#2265, #7790.
    """
    return twins.write_zarr(folder, twins.native_times(), {}, zarr_format=2)


def case_35_string_columns(folder: Path) -> Path:
    """Variable-length and fixed-width strings, an empty one and a non-ASCII one, v3.

    Source: pydata/xarray#11466, #10077, #10487, #2724, zarr-developers/zarr-python#2347, PR#2036, zarr-extensions#35,
    fsspec/kerchunk#32 (v2 object strings: run the same case with _z(p, 2)).
    """
    return twins.write_zarr(folder, twins.strings(), {}, zarr_format=3)


def case_37_netcdf_dimension_placeholder(folder: Path) -> Path:
    """Any netCDF-4 dim without coordinate variable leaves a big-endian float32 placeholder dataset in the HDF5 file.

    Source: Unidata/netcdf-c#1477, h5netcdf/h5netcdf PR#283 (dump), Unidata/netcdf4-python#945.
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
    """
    return twins.write_zarr(folder, twins.covariance(), {}, zarr_format=3)


def case_41_multiindex_source(folder: Path) -> Path:
    """Stacked table: levels stored as plain columns; set_xindex/stack in memory makes a MultiIndex.

    Source: pydata/xarray#8628, #8743, xarray-contrib/xeofs#148, pydata/xarray#11034.
    """
    return twins.write_dataset(folder, twins.table, "zarr3")


def case_43_zip_store(folder: Path) -> Path:
    """A zarr ZipStore file written once, to be opened, appended to and rewritten.

    Source: pydata/xarray#10827, #2586, zarr-developers/zarr-python#3580, scverse/anndata#1971, Deltares/imod-python#1707.
    """
    return twins.write_zip(folder, twins.zipped(), {"": {"title": "zipped"}}, zarr_format=3)


def case_44_awkward_names(folder: Path) -> Path:
    """Names with spaces, dots, trailing blank, a leading "meta", unicode, and one clashing with TensorDict methods.

    Source: pydata/xarray#7943, #8029, #6853, pytorch/tensordict#1440, h5netcdf/h5netcdf#209, zarr-specs#128, epochpic/sdf-xarray#6.
    """
    return twins.write_zarr(folder, twins.awkward(), {}, zarr_format=3)


def case_49_misaligned_dask_chunks(folder: Path) -> Path:
    """Source for a parallel write whose dask chunks (3,...) do not fit the zarr chunks (4,...).

    Source: dask/dask#12583, pydata/xarray#9072, #5286, #9914, #10724, openghg#1159.
    Expect: ds.chunk(t=3).td.to_zarr(out, chunks={"t":4}) with a threaded scheduler: output equals arange(24) for every run
    (rechunk/align), or ValueError before writing. ``ds.isel(t=slice(1,9)).chunk(t=4)`` with inherited encoding likewise. Region
    write region={"t": slice(2,6)} that touches half chunks from two workers: refused or locked.
    """
    return twins.write_zarr(folder, twins.chunked(), {}, zarr_format=3)


def case_51_rewrite_in_place(folder: Path) -> Path:
    """Store to be opened lazily, changed and written onto itself with mode="w".

    Source: pydata/xarray#11159, #6456, #7403, xarray-contrib/datatree#168, pydata/xarray#10487.
    Expect: ``(open(path) + 1).td.to_zarr(path, mode="w")`` raises (or writes to a temporary and swaps), and afterwards the
    store still holds [0..5] (or [1..6]): never NaN/0/fill values. Same for ds.td.to_h5 on the file it is read from
    (no truncated file, no BlockingIOError without explanation).
    """
    return twins.write_dataset(folder, twins.one_variable, "zarr3")


def case_53_dataloader_workers(folder: Path) -> Path:
    """Small chunked store to read from DataLoader workers after the parent has already read it.

    Source: czbiohub-sf/iohub#416, pytorch/pytorch#11929, #11887, galilai-group/stable-worldmodel PR#194,
    mehta-lab/VisCy#417, ACEsuit/mace PR#117.
    Expect: parent reads one row, then DataLoader(num_workers=2) with fork, forkserver and spawn gives rows 0..31 exactly once,
    within 30 s, for zarr (dir and zip) and h5; the object pickles (size does not grow with the data) and reopens in the worker
    by path; batches arrive as plain TensorDicts.
    """
    return twins.write_zarr(folder, twins.rows(), {}, zarr_format=3)


CASES = [v for k, v in sorted(globals().items()) if k.startswith("case_")]
