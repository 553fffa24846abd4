"""What an HDF5 file holds that has no value, or leads nowhere, hides nothing else."""

import re
from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest

from hdf5_reading import left_out, root_of, tree_of, values

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.h5"


# What is left out


def test_what_has_no_value_is_left_out_by_name_and_the_rest_stays(path, tmp_path):
    with h5py.File(path, "w") as file:
        file["v"] = [1.0, 2.0]
        file["nothing"] = h5py.Empty("f4")
        file.create_dataset("refs", (2,), h5py.ref_dtype)[0] = file["v"].ref
        file.create_dataset("regions", (1,), h5py.regionref_dtype)
        file.create_dataset("ref_rows", (1,), h5py.vlen_dtype(h5py.ref_dtype))
        file.create_dataset("opaque", data=np.array([b"abc"], "V3"))
        h5py.h5d.create(file.id, b"clock", h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((2,)))
        file["soft"] = h5py.SoftLink("/nowhere")
        file["external"] = h5py.ExternalLink("nofile.h5", "/x")
        file["type"] = np.dtype("f4")
        file.attrs["palette"] = file["v"].ref
        file.attrs["empty_text"] = h5py.Empty("S4")
        file.attrs["empty_number"] = h5py.Empty("f4")
        file["v"].attrs["region"] = file["v"].regionref[0:1]
        file["v"].attrs["blob"] = np.void(b"abc")
        file["v"].attrs["units"] = "m"
    group = root_of(path)
    assert list(group.arrays) == ["v"]
    assert values(group.arrays["v"]).tolist() == [1, 2]
    assert group.arrays["v"].attrs == {"units": "m"}
    assert group.attrs["empty_text"] == ""
    assert group.attrs["empty_number"].shape == (0,)
    reasons = {tuple(str(member).split(": ", 1)) for member in group.left_out}
    for name, reason in {
        "nothing": "null dataspace", "refs": "object references", "regions": "region references",
        "ref_rows": "object references", "opaque": "opaque data .3 bytes", "clock": "No NumPy equivalent",
        "soft": "link to '/nowhere'", "external": "'/x' in the file 'nofile.h5'",
    }.items():  # fmt: skip
        assert any(found == f"'{name}'" and re.search(reason, text) for found, text in reasons), name
    assert ("attribute 'region' of 'v'", "it is a region reference") in reasons
    assert ("attribute 'blob' of 'v'", "it is opaque (3 bytes)") in reasons
    assert ("attribute 'palette' of '/'", "it is an object reference") in reasons
    assert len(reasons) == 11


def test_links_are_followed_and_cycles_cut(path):
    with h5py.File(path, "w") as file:
        file["raw"] = np.arange(3.0)
        file["alias"] = file["raw"]
        file["soft"] = h5py.SoftLink("/raw")
        a, b = file.create_group("a"), file.create_group("b")
        a["v"], b["w"] = [1], [2]
        a["self"] = h5py.SoftLink("/a")
        a["up"] = h5py.SoftLink("/")
        a["hard"] = a
        a["x"], a["y"] = h5py.SoftLink("/a/y"), h5py.SoftLink("/a/x")
        a["out"] = h5py.ExternalLink(path.name, "/a/out")
        a["other"], b["other"] = b, a
    tree = tree_of(path)
    assert set(tree[""].arrays) == {"raw", "alias", "soft"}
    for array in tree[""].arrays.values():
        assert values(array).tolist() == [0, 1, 2]
    assert set(tree) == {"", "a", "a/other", "b", "b/other"}
    assert set(left_out(tree["a"])) == {"a/self", "a/up", "a/hard", "a/x", "a/y", "a/out"}
    assert set(left_out(tree["a/other"])) == {"a/other/other"}
    assert "enclosing group" in left_out(tree["a"])["a/up"]
    assert tree_of(path, root="a/other")[""].groups == ()


def test_external_links_that_lead_somewhere(path, tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        scale = file.create_dataset("s", data=[1.0, 2.0])
        scale.make_scale()
        file["g/x"] = [3, 4]
        file["g/x"].dims[0].attach_scale(scale)
    with h5py.File(path, "w") as file:
        file["linked"] = h5py.ExternalLink("other.h5", "/g")
    tree = tree_of(path)
    assert values(tree["linked"].arrays["x"]).tolist() == [3, 4]
    assert tree["linked"].arrays["x"].dims == ("s",)


def test_a_filter_that_is_not_installed(path):
    with h5py.File(path, "w") as file:
        file["v"] = [1, 2]
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((2,))
        properties.set_filter(32099, h5py.h5z.FLAG_OPTIONAL, ())
        h5py.h5d.create(file.id, b"packed", h5py.h5t.NATIVE_INT32, h5py.h5s.create_simple((2,)), properties)
    group = root_of(path)
    assert list(group.arrays) == ["v"]
    assert "filter 32099" in left_out(group)["packed"]
    assert "hdf5plugin" in left_out(group)["packed"]


def test_a_corrupt_variable_of_an_unlimited_dimension(path):
    with netCDF4.Dataset(path, "w") as nc:
        nc.createDimension("time", None)
        for name in ("good", "bad"):
            nc.createVariable(name, "f4", ("time",))[:] = [1, 2, 3]
    with h5py.File(path) as file:
        address = h5py.h5o.get_info(file["bad"].id).addr
    content = bytearray(path.read_bytes())
    content[address + 8 : address + 16] = b"\xff" * 8
    path.write_bytes(content)
    group = root_of(path)
    assert values(group.arrays["good"]).tolist() == [1, 2, 3]
    assert group.arrays["good"].dims == ("time",)
    assert "cannot be opened" in left_out(group)["bad"]
