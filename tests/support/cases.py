"""Small stores that real tools write and that break readers today: `CASES`, what writes each into a folder and returns its path.

What is right is said by the table in ``tests/integration/test_cases.py``. Each case stands for its whole kind: its twins
in other formats have the same right answer. What :mod:`twins` writes in those it writes here; the rest is written with
plain h5py, netCDF4, zarr and tensordict. The comments and docstrings name public reports of the same problem.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import twins


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

    Source: zarr-developers/zarr-python#711, zarr-developers/zarr-specs#130, keras-team/keras PR#19091, markean/aimz
    PR#58.
    """
    import zarr

    p = folder / "half.zarr"
    g = zarr.open_group(p, mode="w")
    g.create_array("h", data=np.array([0.5, 1.5], "f2"), dimension_names=("p",))
    g.create_array("w", data=np.array([0x3F80, 0x4000], "<u2"), dimension_names=("p",), compressors=None)
    meta = p / "w" / "zarr.json"
    m = json.loads(meta.read_text())
    m["data_type"], m["fill_value"] = "bfloat16", 0.0
    meta.write_text(json.dumps(m))
    return p


def _tree(content: Any, form: str, attrs: Any = None) -> twins.Make:
    return lambda folder: twins.WRITERS[form](folder, content(), attrs or {})


def _dataset(content: Any, form: str) -> twins.Make:
    return partial(twins.write_dataset, dataset=content, form=form)


CASES: dict[str, twins.Make] = {
    # zarr-python written v3 group, no ``dimension_names`` at all. pydata/xarray#9970, zarr-developers/zarr-python#2740,
    # pydata/xarray#8749, zarr-developers/zarr-specs#348.
    "case_01_zarr3_without_dimension_names": _tree(twins.raw_rows, "zarr3"),
    # v2 store where only a few arrays carry ``_ARRAY_DIMENSIONS`` (anemoi-datasets layout). ecmwf/anemoi-datasets#122,
    # #334, EarthyScience/Browzarr#390.
    "case_02_anemoi_like_zarr2_some_dims": _tree(
        twins.anemoi, "zarr2", {"": {**twins.ANEMOI_ATTRS[""], "ensemble_dimension": 2}}
    ),
    # v3 ``dimension_names`` present but with null members (legal in the spec). zarr-developers/zarr-specs#162 (field
    # definition), pydata/xarray PR#9669, zarr-developers/VirtualiZarr PR#897 (None on scalars).
    "case_03_zarr3_null_dimension_names": _tree(twins.null_names, "zarr3"),
    # Ordinary xarray-written store: coordinate arrays have other leading sizes than the data. xarray-contrib/xbatcher#84,
    # #37; pytorch/tensordict PR#1754 (fallback inference); ecmwf/anemoi-datasets#334.
    "case_04_xarray_coords_block_batch_size": _dataset(twins.weather, "zarr3"),
    # Sizes agree by accident: time == cell == 4, so shape-based inference merges unrelated axes. pytorch/tensordict
    # PR#798 and PR#336 (auto / nested batch size), pydata/xarray PR#11006 (default dims clash).
    "case_05_equal_sizes_different_dims": _dataset(twins.square, "zarr3"),
    # diffusion-policy style replay buffer: /data/* has N rows, /meta/episode_ends has E rows, v2, no dims.
    # krishanrana/imle_policy#1, Stanford-TML/PDP#4, huggingface/lerobot PR#16, real-stanford/diffusion_policy#37.
    "case_06_replay_buffer_zarr": _tree(twins.replay_buffer, "zarr2"),
    # robomimic layout: data/demo_i/{actions,obs/*} with a different length per demo, masks as byte strings.
    # ARISE-Initiative/robomimic#168, #238, #260.
    "case_07_robomimic_hdf5": _tree(twins.robomimic, "hdf5", twins.ROBOMIMIC_ATTRS),
    # D4RL-like file: flat (N, ...) arrays next to a metadata group of scalars, weights and strings.
    # Farama-Foundation/D4RL PR#104 (comment: scalar entries indexed like rows), RLinf/RLinf PR#1586, pytorch/rl PR#928,
    # AgileRL/AgileRL#71.
    "case_09_d4rl_hdf5": _tree(twins.d4rl, "hdf5"),
    "case_11_tensordict_h5_forgets_batch": case_11_tensordict_h5_forgets_batch,
    "case_12_tensordict_zarr_names_and_nontensor": case_12_tensordict_zarr_names_and_nontensor,
    # h5py file without dimension scales, two unrelated axes of equal length. pydata/xarray#10049, h5netcdf/h5netcdf#43,
    # #178, fsspec/kerchunk#41.
    "case_13_h5py_phony_dims": _tree(twins.phony, "hdf5"),
    # numpy bool written by h5py is an HDF5 enum. Unidata/netcdf-c#267, pydata/xarray#5192, #4826, #4386 (bool turns into
    # int8 on the second write).
    "case_15_h5py_bool_enum": _tree(twins.bools, "hdf5"),
    "case_17_compound_dtypes": case_17_compound_dtypes,
    "case_19_vlen_uint8_jpeg": case_19_vlen_uint8_jpeg,
    "case_20_object_references": case_20_object_references,
    "case_21_links_and_cycles": case_21_links_and_cycles,
    "case_22_h5_empty_dataset": case_22_h5_empty_dataset,
    "case_23_unlimited_dim_short_variable": case_23_unlimited_dim_short_variable,
    "case_26_bfloat16_and_float16": case_26_bfloat16_and_float16,
    # Big-endian float/int arrays in HDF5 (h5py keeps the order). pydata/xarray#416, cositools/cosipy#636,
    # fideus-labs/KonfAI PR#77, Unidata/netcdf4-python#554.
    "case_27_big_endian": _tree(twins.big_endian, "hdf5"),
    # CF packed data: int16 with scale_factor, add_offset and _FillValue. pydata/xarray#2304, #9041,
    # zarr-developers/zarr-python#2926, pydata/xarray#5263.
    "case_29_packed_int16": _tree(twins.packed_with_attribute, "zarr3"),
    # CF encoded time as data variable and as coordinate; torch has no datetime dtype. huggingface/datasets PR#8440,
    # ray-project/ray#20947, pydata/xarray#5969, #10639 (units drift on append).
    "case_31_cf_datetimes": _dataset(twins.times, "zarr3"),
    # datetime64/timedelta64 as zarr dtypes (no CF), v2, with NaT fill. zarr-developers/zarr-python#3028, #342,
    # pydata/xarray#2265, #7790.
    "case_32_zarr_native_datetime64": _tree(twins.native_times, "zarr2"),
    # Variable-length and fixed-width strings, an empty one and a non-ASCII one, v3. pydata/xarray#11466, #10077, #10487,
    # #2724, zarr-developers/zarr-python#2347, PR#2036, zarr-extensions#35, fsspec/kerchunk#32.
    "case_35_string_columns": _tree(twins.strings, "zarr3"),
    # Any netCDF-4 dim without coordinate variable leaves a big-endian float32 placeholder dataset in the HDF5 file.
    # Unidata/netcdf-c#1477, h5netcdf/h5netcdf PR#283 (dump), Unidata/netcdf4-python#945.
    "case_37_netcdf_dimension_placeholder": _tree(twins.placeholder, "netcdf4"),
    # Consolidated store changed afterwards: one array resized, one added, one deleted, without re-consolidating.
    # pydata/xarray#5878, EOPF-Explorer/data-model#188, bcdev/nc2zarr PR#48, ai2cm/fv3net#1179.
    "case_38_stale_consolidated_metadata": partial(twins.write_stale, zarr_format=3),
    # Covariance matrix with the same dim twice. openghg/fluxie#119, #160; zarr-developers/zarr-specs#162; atmtools/typhon
    # PR#144.
    "case_40_repeated_dim_name": _tree(twins.covariance, "zarr3"),
    # Stacked table: levels stored as plain columns; set_xindex/stack in memory makes a MultiIndex. pydata/xarray#8628,
    # #8743, xarray-contrib/xeofs#148, pydata/xarray#11034.
    "case_41_multiindex_source": _dataset(twins.table, "zarr3"),
    # A zarr ZipStore file written once, to be opened, appended to and rewritten. pydata/xarray#10827, #2586,
    # zarr-developers/zarr-python#3580, scverse/anndata#1971, Deltares/imod-python#1707.
    "case_43_zip_store": _tree(twins.zipped, "zip3", {"": {"title": "zipped"}}),
    # Names with spaces, dots, trailing blank, a leading "meta", unicode, and one clashing with TensorDict methods.
    # pydata/xarray#7943, #8029, #6853, pytorch/tensordict#1440, h5netcdf/h5netcdf#209, zarr-specs#128,
    # epochpic/sdf-xarray#6.
    "case_44_awkward_names": _tree(twins.awkward, "zarr3"),
    # Source for a parallel write whose dask chunks (3,...) do not fit the zarr chunks (4,...). dask/dask#12583,
    # pydata/xarray#9072, #5286, #9914, #10724, openghg#1159.
    "case_49_misaligned_dask_chunks": _tree(twins.chunked, "zarr3"),
    # Store to be opened lazily, changed and written onto itself with mode="w". pydata/xarray#11159, #6456, #7403,
    # xarray-contrib/datatree#168, pydata/xarray#10487.
    "case_51_rewrite_in_place": _dataset(twins.one_variable, "zarr3"),
    # Small chunked store to read from DataLoader workers after the parent has already read it. czbiohub-sf/iohub#416,
    # pytorch/pytorch#11929, #11887, galilai-group/stable-worldmodel PR#194, mehta-lab/VisCy#417, ACEsuit/mace PR#117.
    "case_53_dataloader_workers": _tree(twins.rows, "zarr3"),
}
