"""Files that no format opens: what they are, and what opens them."""

import os
import zipfile

import numpy as np
import pytest
import torch
import xarray as xr

import xarray_tensordict
from xarray_tensordict.formats.other_files import archive_names, what_starts_with


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


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.parquet", b"PAR1" + bytes(60) + b"PAR1", "a parquet file. pandas.read_parquet(path)"),
        ("a.feather", b"ARROW1" + bytes(60), "an Arrow file. pandas.read_feather(path)"),
        ("a.grib", b"GRIB" + bytes(60), "a GRIB file. Open it with engine='cfgrib'"),
        ("a.tif", b"II*\x00" + bytes(60), "a TIFF file. Open it with engine='rasterio'"),
        ("a.nc", b"CDF\x02" + bytes(60), "a netCDF-3 file (64-bit offset). Open it with engine='scipy'"),
        ("a.pkl", b"\x80\x05\x95" + bytes(20), "a pickle, which can run any code"),
        ("a.json", b'{"a": 3}', "a file of JSON that is no kerchunk reference"),
        (
            "a.csv",
            b"time,temp\n0,1.5\n",
            "a file that starts with b'time,tem'. If it is a table of text, pandas.read_csv",
        ),
        ("a.bin", bytes(64), "a file that starts with b'\\x00"),
        ("a", b"", "an empty file"),
    ],
)
def test_a_file_of_another_kind_says_what_opens_it(tmp_path, name, content, what):
    (tmp_path / name).write_bytes(content)
    assert error_of(str(tmp_path / name)).startswith(what)


def test_archives_say_what_they_hold(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.ones(3))
    np.save(tmp_path / "a.npy", np.ones(3))
    torch.save({"a": torch.ones(3)}, tmp_path / "a.pt")
    for name, members in (
        ("a.keras", ["config.json", "model.weights.h5"]),
        ("a.zip", ["b.txt", "a.txt"]),
    ):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for member in members:
                archive.writestr(member, "{}")
    for name, what in (
        ("a.npz", "an archive of numpy. Load it with numpy.load"),
        ("a.npy", "a file of numpy. Load it with numpy.load"),
        ("a.pt", "what looks like a file of torch.save. Load it with torch.load(path)"),
        ("a.keras", "a zip archive that looks like a model of Keras"),
        ("a.zip", "a zip archive with ['a.txt', 'b.txt'] in it. Unpack it"),
    ):
        assert error_of(str(tmp_path / name)).startswith(what)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert error_of(str(tmp_path / "pipe")) == "a device or a pipe"
    assert error_of("/dev/zero") == "a device or a pipe"
    assert error_of(str(tmp_path)) == "a folder with ['pipe'] in it"


def test_the_names_in_what_is_no_archive_are_not_known(tmp_path):
    (tmp_path / "cut.zip").write_bytes(b"PK\x03\x04" + bytes(20))
    assert archive_names(str(tmp_path / "cut.zip")) is None


def test_bytes_without_a_name_may_be_of_torch():
    assert "torch.load" in what_starts_with(b"PK\x03\x04")
