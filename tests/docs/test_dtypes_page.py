"""The tables of dtypes say what is."""

import numpy as np
import pytest
import xarray as xr

from dtype_table import PAGE, page


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
def test_the_tables_of_dtypes_are_up_to_date():
    """``python tests/support/dtype_table.py`` writes them."""
    assert PAGE.read_text() == page()


@pytest.mark.parametrize("dtype", ["longdouble", "clongdouble"])
@pytest.mark.skipif(np.dtype("longdouble") == np.dtype("float64"), reason="numpy has no wider float here")
def test_what_neither_torch_nor_zarr_has_is_refused_by_name(tmp_path, dtype):
    ds = xr.Dataset({"x": ("time", np.zeros(3)), "wide": ("time", np.zeros(3, dtype))})
    with pytest.warns(UserWarning, match=f"'wide': torch has no dtype for {np.dtype(dtype).name}"):
        assert list(ds.td.to_tensordict().keys()) == ["x"]
    for write in (ds.td.to_zarr, ds.td.to_h5, ds.td.to_memmap):
        with pytest.raises(TypeError, match="'wide'"):
            write(tmp_path / "written")
        assert not (tmp_path / "written").exists()
