"""Times as int64 nanoseconds: what comes out, and the first time that does not fit."""

import numpy as np
import pytest

from xarray_tensordict.core.values import to_nanoseconds

NAT = np.iinfo(np.int64).min
NS = {
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
    "D": 86400 * 10**9,
    "W": 7 * 86400 * 10**9,
}


@pytest.mark.parametrize("kind", "Mm")
@pytest.mark.parametrize("unit", NS)
def test_every_unit_is_exact_up_to_its_ends(kind, unit):
    last = (2**63 - 1) // NS[unit]
    counts = np.array([0, 1, -3, last, -last, NAT])
    found, lost = to_nanoseconds(counts.view(f"{kind}8[{unit}]"))
    assert lost is None
    assert found.tolist() == [0, NS[unit], -3 * NS[unit], last * NS[unit], -last * NS[unit], NAT]
    for beyond in (last + 1, -last - 1):
        times = np.array([NAT, 1, beyond, 2]).view(f"{kind}8[{unit}]")
        _, lost = to_nanoseconds(times)
        assert lost == times[2]


def test_steps_of_several_units():
    found, lost = to_nanoseconds(np.array([1, 4], "m8[25s]"))
    assert (found.tolist(), lost) == ([25 * 10**9, 100 * 10**9], None)
    assert to_nanoseconds(np.array([2**63 - 1], "m8[2ns]"))[1] == np.timedelta64(2**63 - 1, "2ns")
    assert to_nanoseconds(np.array([3], "m8[2ns]"))[0].tolist() == [6]


def test_nanoseconds_are_a_view():
    times = np.array(["1970-01-02", "NaT"], "M8[ns]")
    found, lost = to_nanoseconds(times)
    assert np.shares_memory(found, times)
    assert (found.tolist(), lost) == ([86400 * 10**9, NAT], None)
    generic = np.array([NAT]).view("m8")
    assert to_nanoseconds(generic)[0].tolist() == [NAT]
    counted = np.array([5, 7]).view("m8")
    assert to_nanoseconds(counted)[0].tolist() == [5, 7]
    assert np.shares_memory(to_nanoseconds(counted)[0], counted)


def test_another_byte_order():
    times = np.array(["1970-01-02"], "M8[ns]").astype(">M8[ns]")
    found, _ = to_nanoseconds(times)
    assert found.tolist() == [86400 * 10**9]
    assert found.dtype == np.int64


@pytest.mark.parametrize(("unit", "per"), [("ps", 10**3), ("fs", 10**6), ("as", 10**9)])
def test_finer_units_lose_what_is_no_whole_nanosecond(unit, per):
    found, lost = to_nanoseconds(np.array([per * 7, NAT, -per]).view(f"m8[{unit}]"))
    assert (found.tolist(), lost) == ([7, NAT, -1], None)
    times = np.array([per, NAT, per + 1, per + 2]).view(f"m8[{unit}]")
    assert to_nanoseconds(times)[1] == times[2]


@pytest.mark.parametrize(("first", "last", "unit"), [(1678, 2262, "Y"), ("1677-10", "2262-04", "M")])
def test_months_and_years_that_nanoseconds_hold(first, last, unit):
    times = (
        np.array([first, last, "1970"], f"M8[{unit}]") if unit == "M" else np.array([str(first), str(last)], "M8[Y]")
    )
    found, lost = to_nanoseconds(times)
    assert lost is None
    assert found.tolist() == times.astype("M8[ns]").view(np.int64).tolist()
    one = np.timedelta64(1, unit)
    for beyond in (times[0] - one, times[1] + one):
        assert to_nanoseconds(np.array([beyond]))[1] == beyond


def test_a_shape_is_kept():
    found, lost = to_nanoseconds(np.zeros((2, 3), "M8[s]"))
    assert (found.shape, lost) == ((2, 3), None)
    times = np.array([[0, 1], [2**62, 2**61]]).view("M8[s]")
    assert to_nanoseconds(times)[1] == times[1, 0]
