"""What other libraries warn of is left out for a moment only, whatever other threads do: no warning of ours is lost."""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

import xarray_tensordict
from xarray_tensordict.warnings import quiet


def with_a_pickle(path: Path) -> Path:
    """A store of which something is left out, with a warning."""
    xr.Dataset({"x": ("t", np.arange(4.0))}).td.to_zarr(path)
    marker = {"__tensordict_non_tensor__": {"encoding": "pickle"}}
    zarr.open_group(path).create_array("p", shape=(3,), dtype="u1", attributes=marker)[:] = 1
    return path


@pytest.mark.parametrize(
    "opens", [xarray_tensordict.open_persistent, lambda path: xr.open_dataset(path, engine="tensordict")]
)
def test_threads_that_open_stores_leave_the_filters_as_they_were(tmp_path, opens):
    paths = [tmp_path / f"{number}.zarr" for number in range(4)]
    for path in paths:
        xr.Dataset({f"x{number}": ("t", np.arange(4.0)) for number in range(4)}).td.to_zarr(path)
    # xarray's own reading of times changes them, too, and sometimes leaves something behind
    before = [entry for entry in warnings.filters if entry[0] == "ignore"]
    with ThreadPoolExecutor(8) as threads:
        for opened in threads.map(opens, paths * 20):
            opened.close()
    assert [entry for entry in warnings.filters if entry[0] == "ignore"] == before
    with pytest.warns(UserWarning, match="left out 'p'"):
        xr.open_dataset(with_a_pickle(tmp_path / "p.zarr"), engine="tensordict").close()


def test_what_is_left_out_comes_back():
    with quiet(("nobody", UserWarning)), quiet(("nobody", UserWarning)):
        warnings.warn("nobody asked", UserWarning, stacklevel=1)
        with pytest.raises(UserWarning, match="somebody"):
            warnings.warn("somebody asked", UserWarning, stacklevel=1)
    with pytest.raises(UserWarning, match="nobody"):
        warnings.warn("nobody asked", UserWarning, stacklevel=1)


def test_a_filter_that_somebody_else_has_set_stays():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="nobody", category=UserWarning)
        with quiet(("nobody", UserWarning)):
            pass
        warnings.warn("nobody asked", UserWarning, stacklevel=1)


def test_the_last_of_several_threads_brings_it_back():
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with quiet(("nobody", UserWarning)):
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with quiet(("nobody", UserWarning)):
        thread.start()
        inside.wait()
    warnings.warn("nobody asked", UserWarning, stacklevel=1)
    leave.set()
    thread.join()
    with pytest.raises(UserWarning, match="nobody"):
        warnings.warn("nobody asked", UserWarning, stacklevel=1)


def test_it_is_no_matter_that_others_keep_and_put_back_the_filters():
    entry = warnings.catch_warnings()
    with quiet(("nobody", UserWarning)):
        entry.__enter__()  # another thread does so in the middle
    with pytest.raises(UserWarning, match="nobody"):
        warnings.warn("nobody asked", UserWarning, stacklevel=1)
    entry.__exit__(None, None, None)
    with pytest.raises(UserWarning, match="nobody"):
        warnings.warn("nobody asked", UserWarning, stacklevel=1)
