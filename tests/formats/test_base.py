"""Files that no format opens: what they are, and what opens them."""

import os
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

import xarray_tensordict
from xarray_tensordict.formats.base import archive_names, what_starts_with


def error_of(path):
    """What both ways of opening say, which is the same."""
    said = []
    for opening in (xarray_tensordict.open_persistent, lambda path: xr.open_dataset(path, engine="tensordict")):
        with pytest.raises(ValueError) as caught:
            opening(path)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert said[0].startswith(f"{path}: expected ")
    return said[0].partition(", found ")[2]


def zipped(path, *members):
    with zipfile.ZipFile(path, "w") as archive:
        for member in members:
            archive.writestr(member, "{}")


OF_TORCH = "what looks like a file of torch.save. Load it with torch.load(path)"
KINDS = {
    "a.parquet": (b"PAR1" + bytes(60) + b"PAR1", "a parquet file. pandas.read_parquet(path)"),
    "a.feather": (b"ARROW1" + bytes(60), "an Arrow file. pandas.read_feather(path)"),
    "a.grib": (b"GRIB" + bytes(60), "a GRIB file. Open it with engine='cfgrib'"),
    "a.tif": (b"II*\x00" + bytes(60), "a TIFF file. Open it with engine='rasterio'"),
    "a.nc": (b"CDF\x02" + bytes(60), "a netCDF-3 file (64-bit offset). Open it with engine='scipy'"),
    "a.pkl": (b"\x80\x05\x95" + bytes(20), "a pickle, which can run any code"),
    "a.json": (b'{"a": 3}', "a file of JSON that is no kerchunk reference"),
    "a.csv": (b"time,temp\n0,1\n", "a file that starts with b'time,tem'. If it is a table of text, pandas.read_csv"),
    "a.bin": (bytes(64), "a file that starts with b'\\x00"),
    "a": (b"", "an empty file"),
    "a.npz": (lambda path: np.savez(path, a=np.ones(3)), "an archive of numpy. xarray_tensordict.to_dataset("),
    "a.npy": (lambda path: np.save(path, np.ones(3)), "a file of numpy. xr.DataArray(numpy.load(path))"),
    "a.pt": (partial(torch.save, {"a": torch.ones(3)}), OF_TORCH),
    "old.pt": (partial(torch.save, {"a": torch.ones(3)}, _use_new_zipfile_serialization=False), OF_TORCH),
    "a.keras": (
        lambda path: zipped(path, "config.json", "model.weights.h5"),
        "a zip archive that looks like a model of Keras",
    ),
    "a.zip": (lambda path: zipped(path, "b.txt", "a.txt"), "a zip archive with ['a.txt', 'b.txt'] in it. Unpack it"),
    "pipe": (os.mkfifo, "a device or a pipe"),  # which is not waited for
    "device": (lambda path: path.symlink_to("/dev/zero"), "a device or a pipe"),
    "folder": (Path.mkdir, "a folder with nothing in it"),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_no_format_opens_says_what_it_is_and_what_opens_it(tmp_path, name):
    make, what = KINDS[name]
    (Path.write_bytes if isinstance(make, bytes) else lambda path, make: make(path))(tmp_path / name, make)
    assert error_of(str(tmp_path / name)).startswith(what)


def test_the_names_in_what_is_no_archive_are_not_known_and_it_may_be_of_torch(tmp_path):
    (tmp_path / "cut.zip").write_bytes(b"PK\x03\x04" + bytes(20))
    assert archive_names(str(tmp_path / "cut.zip")) is None
    assert "torch.load" in what_starts_with(b"PK\x03\x04")
